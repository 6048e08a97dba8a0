//! The requests to a driver, and its answers.

use std::{marker::PhantomData, sync::Arc};

use bytes::Bytes;
use lockgate_core::{KeyStateWrite, MachineTime, RecordName, Revision, coordination::FenceMark};
use lockgate_machine::{
    AnyCommand, ChangeQueue, Command, Delivery, EngineCommand, Fenced, FindLookedUp, IdAnswers,
    IdSpace, KeyPage, KeyStatePage, LocateEvents, LookedUp, Machine, MessagePage, Move, Query,
    QueryReply, QueuePage, Receive, Rejection, Reply, Transact, Upcoming,
};
use smallvec::SmallVec;

/// Work for a driver, with the ticket of its answer.
#[derive(Debug)]
pub struct Request<T> {
    pub work: Work,
    pub ticket: T,
}

/// The kinds of work.
#[derive(Debug)]
pub enum Work {
    /// Commands, each decided and logged separately, answered together.
    Commands(SmallVec<[Command; 1]>),
    /// The engine's own commands, decided and logged like others.
    Engine(SmallVec<[EngineCommand; 1]>),
    /// Leases on messages that are leasable now, or become so before `until`.
    Receive {
        receive: Receive,
        /// Until when to wait for a first message. `None`: do not wait.
        until: Option<MachineTime>,
    },
    Query(Query),
    /// The record as soon as it is another than the caller has seen, or as it is at `until`. The answer is that to a
    /// query for it.
    Watch {
        name: RecordName,
        seen: Option<Revision>,
        until: MachineTime,
    },
    /// Where events are, as soon as there are some, or at `until`. The answer is that to a query for them.
    ReadEvents {
        locate: LocateEvents,
        until: MachineTime,
    },
}

/// The answer to a [`Work`] of the same kind.
#[derive(Debug)]
pub enum Answer {
    /// One result per command, in order.
    Commands(SmallVec<[Result<Reply, Rejection>; 1]>),
    /// Leases; none if the time ran out.
    Received(Result<Vec<Delivery>, Rejection>),
    Query(Result<QueryReply, Rejection>),
    /// Nothing was decided: what the index says of these ids must come with the work.
    LookUp(Box<LookUp>),
}

/// Commands that cannot be decided, or a query that cannot be answered, before ids were looked up.
#[derive(Debug)]
pub struct LookUp {
    pub work: Work,
    /// The ids, each with its queue or ledger.
    pub ids: Vec<(IdSpace, u128)>,
}

impl LookUp {
    /// The work again, with what the index says of the ids. Earlier answers stay: of two spaces, each may have moved on while the
    /// other was asked, and then only the ids of one are asked for again.
    #[must_use]
    pub fn answered(self, answers: IdAnswers) -> Work {
        match self.work {
            Work::Commands(commands) => {
                let commands = commands.into_iter().map(|command| {
                    let (command, answers) = match command {
                        Command::LookedUp(earlier) => {
                            let mut merged = (*earlier.answers).clone();
                            merged.extend(answers.iter().map(|(id, answer)| (*id, *answer)));
                            (earlier.command, Arc::new(merged))
                        }
                        command => (command, Arc::clone(&answers)),
                    };
                    Command::LookedUp(Box::new(LookedUp { answers, command }))
                });
                Work::Commands(commands.collect())
            }
            Work::Query(
                Query::FindEvent(find) | Query::FindLookedUp(FindLookedUp { find, .. }),
            ) => Work::Query(Query::FindLookedUp(FindLookedUp { find, answers })),
            work => work,
        }
    }
}

impl Answer {
    pub(crate) fn look_up(work: Work, ids: Vec<(IdSpace, u128)>) -> Self {
        Self::LookUp(Box::new(LookUp { work, ids }))
    }

    /// The approximate memory of the answer, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Commands(results) => {
                    let sent = |result: &Result<Reply, Rejection>| match result {
                        Ok(Reply::Transacted(done)) => {
                            let published = done.published.iter();
                            let copies = published.map(|done| size_of_val(&done.copies[..]));
                            size_of_val(&done.sent[..])
                                + size_of_val(&done.states[..])
                                + size_of_val(&done.published[..])
                                + copies.sum::<usize>()
                        }
                        Ok(Reply::Received(deliveries)) => delivery_bytes(deliveries),
                        Ok(Reply::Published(done)) => size_of_val(&done.copies[..]),
                        Ok(Reply::Appended(appended)) => size_of_val(&appended.events[..]),
                        _ => 0,
                    };
                    size_of_val(&results[..]) + results.iter().map(sent).sum::<usize>()
                }
                Self::Received(Ok(deliveries)) => delivery_bytes(deliveries),
                Self::Query(Ok(QueryReply::Queues(QueuePage { queues, .. }))) => {
                    size_of_val(&queues[..])
                }
                Self::Query(Ok(QueryReply::Messages(MessagePage { messages, .. }))) => {
                    size_of_val(&messages[..])
                }
                Self::Query(Ok(QueryReply::Keys(KeyPage { keys, .. }))) => size_of_val(&keys[..]),
                Self::Query(Ok(QueryReply::KeyStates(KeyStatePage { states, .. }))) => {
                    size_of_val(&states[..])
                }
                Self::Query(Ok(QueryReply::KeyState(Some(state)))) => {
                    size_of_val(&**state) + state.value.len()
                }
                Self::Query(Ok(QueryReply::Record(Some(record)))) => {
                    size_of_val(&**record) + record.value.len()
                }
                Self::Query(Ok(QueryReply::EventPlaces(places))) => size_of_val(&places.blocks[..]),
                Self::Query(Ok(QueryReply::Ledgers(page))) => size_of_val(&page.ledgers[..]),
                Self::Query(Ok(QueryReply::Exchanges(page))) => size_of_val(&page.exchanges[..]),
                Self::Query(Ok(QueryReply::Bindings(page))) => size_of_val(&page.bindings[..]),
                Self::Query(Ok(QueryReply::Producers(page))) => size_of_val(&page.producers[..]),
                Self::Query(Ok(QueryReply::Records(page))) => {
                    let values = page.records.iter().map(|record| record.value.len());
                    size_of_val(&page.records[..]) + values.sum::<usize>()
                }
                Self::LookUp(look_up) => size_of_val(&look_up.ids[..]) + look_up.work.bytes(),
                Self::Received(Err(_)) | Self::Query(_) => 0,
            }
    }
}

fn delivery_bytes(deliveries: &[Delivery]) -> usize {
    let states = deliveries
        .iter()
        .filter_map(|delivery| delivery.state.as_deref());
    size_of_val(deliveries) + states.map(|state| state.value.len()).sum::<usize>()
}

impl Work {
    /// What the work will need from the machine.
    pub(crate) fn upcoming(&self) -> impl Iterator<Item = Upcoming<'_>> {
        let (commands, receive) = match self {
            Self::Commands(commands) => (&commands[..], None),
            Self::Receive { receive, .. } => (&[][..], Some(Upcoming::Receive(receive))),
            Self::Engine(_) | Self::Query(_) | Self::Watch { .. } | Self::ReadEvents { .. } => {
                (&[][..], None)
            }
        };
        commands.iter().map(Upcoming::Command).chain(receive)
    }

    /// The most messages that the work may concern, approximately.
    pub(crate) fn messages_max(&self) -> usize {
        match self {
            Self::Commands(commands) => commands.len(),
            Self::Receive { receive, .. } => usize::from(receive.max),
            Self::Engine(commands) => commands.len(),
            Self::Query(_) | Self::Watch { .. } | Self::ReadEvents { .. } => 0,
        }
    }

    /// Whether the work adds load and reduces none, so that it may be refused under load.
    pub(crate) fn is_send(&self) -> bool {
        match self {
            Self::Commands(commands) => commands.iter().all(|command| match command.plain() {
                Command::Send(_) | Command::Publish(_) => true,
                Command::AppendEvents(command) => {
                    command.settles.is_empty() && !command.append.events.is_empty()
                }
                _ => false,
            }),
            Self::Engine(_)
            | Self::Receive { .. }
            | Self::Query(_)
            | Self::Watch { .. }
            | Self::ReadEvents { .. } => false,
        }
    }

    /// The approximate bytes of its records, as far as the request shows.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Commands(commands) => commands.iter().map(command_bytes).sum(),
            Self::Engine(commands) => commands.iter().map(engine_command_bytes).sum(),
            Self::Receive { .. }
            | Self::Query(_)
            | Self::Watch { .. }
            | Self::ReadEvents { .. } => 0,
        }
    }
}

/// Commands of one type for [`Engine::submit_all`](crate::Engine::submit_all), in the order in
/// which they are decided.
#[derive(Clone, Debug)]
pub struct Batch<C> {
    commands: SmallVec<[Command; 1]>,
    kind: PhantomData<fn(C)>,
}

impl<C> Default for Batch<C> {
    fn default() -> Self {
        Self::with_capacity(0)
    }
}

impl<C> Batch<C> {
    #[must_use]
    pub fn with_capacity(commands: usize) -> Self {
        Self {
            commands: SmallVec::with_capacity(commands),
            kind: PhantomData,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The same commands, each under that fence.
    pub(crate) fn fenced(self, mark: &FenceMark) -> Self {
        let commands = self.commands.into_iter().map(|command| {
            let mark = mark.clone();
            Command::from(Fenced { mark, command })
        });
        Self {
            commands: commands.collect(),
            kind: PhantomData,
        }
    }
}

impl<C: Into<Command>> Batch<C> {
    pub fn push(&mut self, command: C) {
        self.commands.push(command.into());
    }
}

impl<C: Into<Command>> FromIterator<C> for Batch<C> {
    fn from_iter<I: IntoIterator<Item = C>>(commands: I) -> Self {
        Self {
            commands: commands.into_iter().map(Into::into).collect(),
            kind: PhantomData,
        }
    }
}

impl From<Vec<Command>> for Batch<Command> {
    fn from(commands: Vec<Command>) -> Self {
        Self {
            commands: commands.into(),
            kind: PhantomData,
        }
    }
}

impl<C> From<Batch<C>> for Work {
    fn from(batch: Batch<C>) -> Self {
        Self::Commands(batch.commands)
    }
}

impl From<Command> for Work {
    fn from(command: Command) -> Self {
        Self::Commands(SmallVec::from_buf([command]))
    }
}

impl From<EngineCommand> for Work {
    fn from(command: EngineCommand) -> Self {
        Self::Engine(SmallVec::from_buf([command]))
    }
}

/// Whether a command adds to the shard's contents, so that a full log refuses it first.
pub(crate) fn grows(machine: &Machine, command: AnyCommand<'_>) -> bool {
    let command = match command {
        AnyCommand::Caller(command) => command,
        AnyCommand::Engine(EngineCommand::StepSchedule(step)) => return step.fires.is_some(),
        AnyCommand::Engine(_) => return false,
    };
    match command.plain() {
        Command::Send(_)
        | Command::Publish(_)
        | Command::CreateQueue(_)
        | Command::ChangeQueue(_)
        | Command::PutRecord(_)
        | Command::OpenProducer(_)
        | Command::CreateLedger(_)
        | Command::CreateExchange(_)
        | Command::UpdateExchange(_)
        | Command::PutSchedule(_)
        | Command::RunSchedule(_)
        | Command::Bind(_) => true,
        Command::AppendEvents(command) => !command.append.events.is_empty(),
        // One that is not there is made.
        Command::LeaseRecord(lease) => machine.record_revision(&lease.name).is_none(),
        Command::Transact(Transact {
            states,
            sends,
            publishes,
            ..
        }) => {
            !(sends.is_empty() && publishes.is_empty())
                || states.iter().any(|state| state.write.value.is_some())
        }
        Command::ChangeKeyState(change) => change.write.value.is_some(),
        _ => false,
    }
}

/// An upper bound on a record's bytes for a message besides its variable parts; most settles and
/// other small effects take about as much.
const FIXED_BYTES: usize = 256;

fn state_bytes(write: &KeyStateWrite) -> usize {
    FIXED_BYTES + write.value.as_ref().map_or(0, Bytes::len)
}

/// The approximate bytes of the record with the command's effects, which count in the inbox. The
/// log later reserves the exact bytes.
pub(crate) fn command_bytes(command: &Command) -> usize {
    match command.plain() {
        Command::Send(send) => message_bytes(&send.message),
        // For the first queue.
        Command::Publish(publish) => message_bytes(&publish.message),
        Command::Transact(Transact {
            settles,
            states,
            sends,
            publishes,
        }) => {
            let sends: usize = sends.iter().map(|send| message_bytes(&send.message)).sum();
            let published = publishes.iter().map(|publish| &publish.message);
            let sends = sends + published.map(message_bytes).sum::<usize>();
            let states: usize = states.iter().map(|state| state_bytes(&state.write)).sum();
            sends + states + settles.len() * FIXED_BYTES
        }
        Command::ChangeKeyState(change) => state_bytes(&change.write),
        Command::PutSchedule(put) => message_bytes(&put.spec.message),
        Command::CreateQueue(create) => {
            FIXED_BYTES + map_bytes(&create.annotations) + map_bytes(&create.tags)
        }
        Command::ChangeQueue(ChangeQueue {
            annotations, tags, ..
        }) => {
            let maps = [annotations, tags];
            FIXED_BYTES + maps.into_iter().flatten().map(map_bytes).sum::<usize>()
        }
        Command::AppendEvents(command) => {
            let append = &command.append;
            let events = append
                .events
                .iter()
                .map(|event| event.payload.len() + event.id_bytes() + 16);
            let settled = append.settled.iter().map(|input| input.as_str().len() + 2);
            let settles = command.settles.len() * FIXED_BYTES;
            FIXED_BYTES + events.chain(settled).sum::<usize>() + settles
        }
        Command::PutRecord(put) => FIXED_BYTES + put.name.as_str().len() + put.value.len(),
        Command::Receive(receive) => usize::from(receive.max) * FIXED_BYTES,
        Command::Move(Move { max, .. }) => usize::from(*max) * FIXED_BYTES,
        _ => FIXED_BYTES,
    }
}

fn engine_command_bytes(command: &EngineCommand) -> usize {
    match command {
        EngineCommand::Compact { copies, .. } => {
            message_bytes(copies.payload()) + copies.messages().len() * FIXED_BYTES
        }
        EngineCommand::CompactEvents { block, .. } => {
            let events = block.events.iter().map(|event| {
                let id = event.unique_id.as_ref().map_or(0, |id| id.as_str().len());
                event.payload.len() + id + 8
            });
            FIXED_BYTES + events.sum::<usize>()
        }
        _ => FIXED_BYTES,
    }
}

fn message_bytes(message: &lockgate_core::Message) -> usize {
    let text = |text: Option<&str>| text.map_or(0, str::len);
    FIXED_BYTES
        + message.size()
        + message.headers.len() * 16
        + text(message.key.as_ref().map(AsRef::as_ref))
        + text(message.group.as_ref().map(AsRef::as_ref))
        + text(message.unique_id.as_ref().map(AsRef::as_ref))
        + text(message.content_type.as_deref())
        + text(message.trace_context.as_deref())
        + message
            .producer
            .as_ref()
            .map_or(0, |produced| produced.mark.producer().as_str().len())
}

fn map_bytes(map: &std::collections::BTreeMap<String, String>) -> usize {
    map.iter().map(|(k, v)| k.len() + v.len() + 8).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lockgate_core::{QueueId, Sequence};
    use lockgate_machine::IdAnswer;

    use super::*;

    /// A command with ids of two spaces, of which each is asked for again when only the other one's answer is new enough, has
    /// both in the end.
    #[test]
    fn answers_of_an_earlier_look_up_stay() {
        let id = |queue| (IdSpace::Queue(QueueId(queue)), 7);
        let answer = |up_to| IdAnswer {
            up_to: Sequence(up_to),
            found: None,
        };
        let answers = |of: &[(u32, u64)]| -> IdAnswers {
            let of = of.iter().map(|&(queue, up_to)| (id(queue), answer(up_to)));
            Arc::new(of.collect::<BTreeMap<_, _>>())
        };
        let mut work = Work::Commands([Command::from(Transact::default())].into_iter().collect());
        for round in [&[(1, 10), (2, 10)][..], &[(2, 20)], &[(1, 30)]] {
            let look_up = LookUp {
                work,
                ids: Vec::new(),
            };
            work = look_up.answered(answers(round));
        }
        let Work::Commands(commands) = work else {
            panic!("commands stay commands");
        };
        let Some(Command::LookedUp(looked)) = commands.first() else {
            panic!("{commands:?}");
        };
        assert!(matches!(looked.command, Command::Transact(_)));
        assert_eq!(looked.answers, answers(&[(1, 30), (2, 20)]));
    }
}
