//! What the shard is asked.

use std::collections::BTreeMap;

use lockgate_core::{Clock, HolderName, LeaseToken, Level, Message, UniqueId, limits::HoldScope};
use lockgate_engine::{Request, Work};
use lockgate_machine::{
    Cancel, ChangeKey, Command, CreateQueue, DeleteQueue, DescribeQueue, KeyAction, KeyPolicy,
    Pause, Purge, Query, QueueSettings, Receive, Reschedule, SendMessage, Settle, SettleAction,
    Transact, WriteState,
};

use crate::{
    Violation,
    answers::{Asked, AskedSettle},
    model::{Existence, Known, has_no_dead_letters},
    planted::Bug,
    states::AskedState,
    world::{
        DEAD, DELAY_MS_MAX, KEYED, KEYS, LEASE_MS, PASSING, PLAIN, QUEUES, SKIPPED, SKIPPING,
        WRITTEN, World, in_order, key, name,
    },
};

/// Where a send goes, and with what.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sending {
    pub(crate) queue: &'static str,
    pub(crate) key: Option<u64>,
    pub(crate) unique: Option<u64>,
    pub(crate) delay_ms: Option<u64>,
}

impl World {
    /// Makes those of the queues that are not there.
    pub(crate) fn make_queues(&mut self) -> Result<(), Violation> {
        let requests = [DEAD, SKIPPED, KEYED, SKIPPING, PLAIN, WRITTEN, PASSING]
            .map(|queue| self.make_queue(queue))
            .into_iter()
            .chain(self.make_exchanges())
            .collect();
        self.group(requests)?;
        self.sync()
    }

    pub(crate) fn make_queue(&mut self, queue: &'static str) -> Request<u64> {
        let mut settings = QueueSettings {
            lease: LEASE_MS,
            keyed: is_keyed(queue),
            attempts_max: 2,
            ..QueueSettings::default()
        };
        // Longer than any history.
        settings.dedup_window = 365 * 24 * 3_600_000;
        settings.retention = settings.dedup_window;
        match queue {
            WRITTEN => settings.level = Level::Process,
            PLAIN => settings.dead_letter = Some(name(DEAD)),
            SKIPPING => {
                settings.dead_letter = Some(name(SKIPPED));
                settings.key_policy = Some(KeyPolicy::Skip);
            }
            _ => {}
        }
        let create = CreateQueue {
            name: name(queue),
            settings,
            annotations: BTreeMap::new(),
            tags: BTreeMap::new(),
        };
        self.ask(Command::CreateQueue(Box::new(create)))
    }

    /// A command whose answer tells nothing that matters.
    pub(crate) fn ask(&mut self, command: impl Into<Work>) -> Request<u64> {
        self.request(command.into(), vec![Asked::Nothing])
    }

    pub(crate) fn any_request(&mut self) -> Request<u64> {
        // What keeps ranges from being released is left out where a mistake needs that.
        let has_ledger = self.bug != Some(Bug::ReleasedBeforeAck);
        match self.random.below(100) {
            // So many that ids are asked for again when they have left memory.
            what if what.is_multiple_of(10) && self.index.is_some() && has_ledger => {
                self.any_ledger_request()
            }
            0..34 => {
                let sending = self.any_sending();
                self.send(&[sending])
            }
            34..40 => {
                let count = 2 + self.random.index(6);
                let sendings: Vec<_> = (0..count).map(|_| self.any_sending()).collect();
                self.send(&sendings)
            }
            57..59 if has_ledger => self.any_ledger_request(),
            40..59 => self.any_receive(),
            // What producers send is acknowledged less often, which that mistake needs.
            59..63 if self.bug != Some(Bug::ReleasedBeforeAck) => self.any_producer_request(),
            59..86 => self.any_settle(),
            86..90 => self.any_transaction(),
            90..92 => self.any_cancel(),
            92 => self.any_reschedule(),
            93 => self.any_key_action(),
            94 => {
                let queue = self.any_queue();
                self.purge(queue)
            }
            95 => self.delete(PASSING),
            96 => self.make_queue(PASSING),
            97 => self.any_state_request(),
            98 if self.random.chance(50) => self.any_hold(),
            98 => {
                let (queue, paused) = (name(self.any_queue()), self.random.chance(40));
                self.ask(Command::Pause(Pause { queue, paused }))
            }
            99 if self.random.chance(70) => self.any_record_request(),
            _ => {
                let queue = name(self.any_queue());
                self.request(
                    Work::Query(Query::DescribeQueue(DescribeQueue { queue })),
                    vec![Asked::Nothing],
                )
            }
        }
    }

    fn any_queue(&mut self) -> &'static str {
        QUEUES[self.random.index(QUEUES.len())]
    }

    fn any_sending(&mut self) -> Sending {
        let queue = [KEYED, KEYED, SKIPPING, PLAIN, PLAIN, WRITTEN, PASSING][self.random.index(7)];
        let is_keyed = is_keyed(queue);
        Sending {
            queue,
            key: (is_keyed || self.random.chance(30)).then(|| self.random.below(KEYS)),
            unique: self.random.chance(40).then(|| self.random.below(12)),
            delay_ms: self
                .random
                .chance(20)
                .then(|| self.random.below(DELAY_MS_MAX)),
        }
    }

    /// One request with so many sends.
    pub(crate) fn send(&mut self, sendings: &[Sending]) -> Request<u64> {
        let (commands, asked) = sendings
            .iter()
            .map(|sending| {
                let (message, send) = self.sending(*sending);
                (Command::Send(Box::new(send)), Asked::Send { message })
            })
            .unzip();
        self.request(Work::Commands(commands), asked)
    }

    pub(crate) fn sending(&mut self, sending: Sending) -> (u64, SendMessage) {
        let Sending {
            queue,
            key: key_number,
            unique,
            delay_ms,
        } = sending;
        let number = self.model.messages.len() as u64;
        let due = delay_ms.map(|delay| self.clock.wall().plus(delay));
        let known = Known {
            queue,
            key: key_number,
            unique,
            state: Existence::Perhaps,
            id: None,
            order: None,
            enters: self.clock.wall().max(due.unwrap_or_default()),
            seen: false,
            doubtful: false,
            ended: false,
            acks_asked: 0,
        };
        self.model.messages.insert(number, known);
        let mut message = Message::new(self.body(number));
        let place = if is_keyed(queue) {
            &mut message.key
        } else {
            &mut message.group
        };
        *place = key_number.map(key);
        message.unique_id = unique.map(|id| UniqueId::new(&format!("id-{id}")).expect("a good id"));
        message.due = due;
        self.note(format!("send {number}: {sending:?}"));
        let queue = name(queue);
        (number, SendMessage { queue, message })
    }

    fn any_receive(&mut self) -> Request<u64> {
        let queue = [
            KEYED, KEYED, SKIPPING, SKIPPED, PLAIN, DEAD, WRITTEN, PASSING,
        ][self.random.index(8)];
        let holder = self.random.below(1_000_000);
        let max = [1, 2, 5][self.random.index(3)];
        let mut request = self.receive(queue, holder, max);
        if self.random.chance(15)
            && let Work::Receive { until, .. } = &mut request.work
        {
            *until = Some(self.now().machine.plus(2_000));
        }
        request
    }

    pub(crate) fn receive(&mut self, queue: &'static str, holder: u64, max: u16) -> Request<u64> {
        let receive = Receive {
            queue: name(queue),
            max,
            key_max: None,
            lease: None,
            holder: HolderName::new(&format!("holder-{holder}")).expect("a good name"),
        };
        let work = Work::Receive {
            receive,
            until: None,
        };
        let cuts = self.model.cuts(queue);
        let asked = Asked::Receive {
            queue,
            holder,
            cuts,
            holds: self.model.states.holds_told(),
        };
        self.request(work, vec![asked])
    }

    fn any_settle(&mut self) -> Request<u64> {
        let Some(token) = self.any_lease() else {
            let sending = self.any_sending();
            return self.send(&[sending]);
        };
        let action = match self.random.below(11) {
            0..6 => SettleAction::Ack,
            6 => SettleAction::Nack {
                delay: 0,
                reason: None,
            },
            7 if token.sequence.0.is_multiple_of(4) => SettleAction::Hold {
                delay: 2_000,
                scope: match token.sequence.0.is_multiple_of(8) {
                    true => HoldScope::Key,
                    false => HoldScope::Queue,
                },
            },
            7 if token.sequence.0.is_multiple_of(2) => SettleAction::Defer { delay: 2_000 },
            7 => SettleAction::Nack {
                delay: 2_000,
                reason: None,
            },
            8 => SettleAction::Extend { lease: 40_000 },
            9 => SettleAction::Reject { reason: None },
            _ => SettleAction::GiveBack,
        };
        self.settle(token, action)
    }

    fn any_lease(&mut self) -> Option<LeaseToken> {
        let tokens = in_order(self.model.leases.keys().copied().collect());
        (!tokens.is_empty()).then(|| tokens[self.random.index(tokens.len())])
    }

    pub(crate) fn settle(&mut self, token: LeaseToken, action: SettleAction) -> Request<u64> {
        let (asked, settle) = self.settling(token, action);
        let command = Command::Settle(settle);
        self.request(Work::from(command), vec![Asked::Settle(asked)])
    }

    fn settling(&mut self, token: LeaseToken, action: SettleAction) -> (AskedSettle, Settle) {
        if let Some(lease) = self.model.leases.get_mut(&token) {
            let (message, holder) = (lease.message, lease.holder);
            let known = self
                .model
                .messages
                .get_mut(&message)
                .expect("was delivered");
            match action {
                // It may be gone, until an answer says so or says otherwise.
                SettleAction::Ack => {
                    known.acks_asked += 1;
                    if known.state == Existence::There {
                        known.state = Existence::Perhaps;
                    }
                    lease.until_ms = 0;
                }
                // It may be anybody's from now on; so may the rest of its batch, which the strict
                // profile takes back with it. A rejected one without a dead-letter queue is dropped.
                SettleAction::Nack { .. }
                | SettleAction::ChangeVisibility { .. }
                | SettleAction::Defer { .. }
                | SettleAction::Hold { .. }
                | SettleAction::GiveBack
                | SettleAction::Reject { .. } => {
                    if matches!(action, SettleAction::Reject { .. }) {
                        known.doubt();
                    }
                    let key = known.key;
                    for lease in self.model.leases.values_mut() {
                        if lease.holder == holder && self.model.messages[&lease.message].key == key
                        {
                            lease.until_ms = 0;
                        }
                    }
                }
                SettleAction::Extend { .. } => {}
            }
        }
        self.note(format!(
            "settle {:?} by {action:?}",
            (token.queue, token.sequence)
        ));
        let asked = AskedSettle {
            token,
            action: action.clone(),
            asked_at: self.real_ms,
        };
        (asked, Settle { token, action })
    }

    fn any_transaction(&mut self) -> Request<u64> {
        let count = self.random.index(3);
        let mut tokens: Vec<_> = (0..count).filter_map(|_| self.any_lease()).collect();
        tokens.dedup();
        let sendings: Vec<_> = (0..1 + self.random.index(3))
            .map(|_| self.any_sending())
            .collect();
        let states = self.any_states(&tokens);
        self.transact_with(&tokens, states, &sendings)
    }

    /// Acknowledges and sends, all or nothing.
    pub(crate) fn transact(&mut self, tokens: &[LeaseToken], sendings: &[Sending]) -> Request<u64> {
        self.transact_with(tokens, (Vec::new(), Vec::new()), sendings)
    }

    fn transact_with(
        &mut self,
        tokens: &[LeaseToken],
        (asked_states, states): (Vec<AskedState>, Vec<WriteState>),
        sendings: &[Sending],
    ) -> Request<u64> {
        let (asked_settles, settles) = tokens
            .iter()
            .map(|token| self.settling(*token, SettleAction::Ack))
            .unzip();
        let (asked_sends, sends) = sendings
            .iter()
            .map(|sending| self.sending(*sending))
            .unzip();
        let asked = Asked::Transact {
            settles: asked_settles,
            states: asked_states,
            sends: asked_sends,
        };
        let transact = Transact {
            settles,
            states,
            sends,
            publishes: Vec::new(),
        };
        self.request(Work::from(Command::Transact(transact)), vec![asked])
    }

    /// A message that is thought to be there, and has an id.
    fn any_message(&mut self) -> Option<u64> {
        let there: Vec<_> = self
            .model
            .messages
            .iter()
            .filter(|(_, known)| known.state == Existence::There && known.id.is_some())
            .map(|(number, _)| *number)
            .collect();
        (!there.is_empty()).then(|| there[self.random.index(there.len())])
    }

    fn any_cancel(&mut self) -> Request<u64> {
        let message = self.any_message();
        match message.and_then(|message| self.cancel(message)) {
            Some(request) => request,
            None => self.any_receive(),
        }
    }

    /// `None` if its id is not known.
    pub(crate) fn cancel(&mut self, message: u64) -> Option<Request<u64>> {
        let known = self.known(message);
        let id = known.id?;
        known.doubt();
        let queue = name(known.queue);
        self.note(format!("cancel {message}"));
        let cancel = Command::Cancel(Cancel { queue, message: id });
        Some(self.request(Work::from(cancel), vec![Asked::Cancel { message }]))
    }

    fn any_reschedule(&mut self) -> Request<u64> {
        let message = self.any_message();
        let span = self.random.below(DELAY_MS_MAX);
        match message.and_then(|message| self.reschedule(message, span)) {
            Some(request) => request,
            None => self.any_receive(),
        }
    }

    /// To `span` milliseconds from now. `None` if its id is not known.
    pub(crate) fn reschedule(&mut self, message: u64, span: u64) -> Option<Request<u64>> {
        let due = self.clock.wall().plus(span);
        let known = self.known(message);
        let id = known.id?;
        // It may come then, or at the time that was told before; in what order nobody knows.
        known.enters = known.enters.min(due);
        known.order = None;
        let queue = name(known.queue);
        self.note(format!("reschedule {message} to {due:?}"));
        let reschedule = Command::Reschedule(Reschedule {
            queue,
            message: id,
            due,
        });
        Some(self.request(Work::from(reschedule), vec![Asked::Reschedule]))
    }

    fn any_key_action(&mut self) -> Request<u64> {
        let queue = [KEYED, SKIPPING][self.random.index(2)];
        let number = self.random.below(KEYS);
        let action = [KeyAction::Park, KeyAction::Resume, KeyAction::Drop][self.random.index(3)];
        self.key_action(queue, number, action)
    }

    pub(crate) fn key_action(
        &mut self,
        queue: &'static str,
        number: u64,
        action: KeyAction,
    ) -> Request<u64> {
        if action == KeyAction::Drop {
            self.model.doubt(queue, Some(number));
        }
        self.note(format!("{action:?} key {number} of {queue}"));
        self.ask(Command::ChangeKey(ChangeKey {
            queue: name(queue),
            key: key(number),
            action,
        }))
    }

    pub(crate) fn purge(&mut self, queue: &'static str) -> Request<u64> {
        self.note(format!("purge {queue}"));
        self.empty(queue, Command::Purge(Purge { queue: name(queue) }))
    }

    pub(crate) fn delete(&mut self, queue: &'static str) -> Request<u64> {
        self.note(format!("delete {queue}"));
        self.empty(
            queue,
            Command::DeleteQueue(DeleteQueue { queue: name(queue) }),
        )
    }

    /// All that was sent to the queue goes, unless it has been moved on.
    fn empty(&mut self, queue: &'static str, command: Command) -> Request<u64> {
        let messages = self.model.messages.iter();
        let messages = messages
            .filter(|(_, known)| known.queue == queue && has_no_dead_letters(queue))
            .map(|(&number, _)| number)
            .collect();
        // It may happen or not.
        self.model.doubt(queue, None);
        self.model.unique.retain(|(of, _), _| *of != queue);
        self.request(Work::from(command), vec![Asked::Empty { messages }])
    }
}

fn is_keyed(queue: &str) -> bool {
    [KEYED, SKIPPING, SKIPPED].contains(&queue)
}
