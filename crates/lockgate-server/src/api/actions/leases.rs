//! Operations on leases: receive, settle, and settle, send and publish in one transaction.

use std::{num::NonZeroU64, time::Duration};

use lockgate_core::{Failures, HolderName, Key, LeaseToken, QueueName, limits::HoldScope};
use lockgate_engine::{Batch, EngineError, QueueEntry, Received};
use lockgate_machine::{
    Command, DeadLetterReason, Origin, Receive, Rejection, Reply, SendMessage, Settle,
    SettleAction, Settled, StoredMessage, Transact, WriteState,
};
use serde::Deserialize;

use super::{
    check_len,
    exchanges::{exchange_of, published},
    key_states::{state_write, versions},
    messages::BATCH_MAX,
    unanswered,
};
use crate::{
    answer,
    api::{
        Code, Problem, Request, Service,
        input::entry,
        shapes::{
            Content, Encoding, FailureView, HeaderView, HoldScopeWord, Instant, OriginReasonWord,
            OriginView, ReceiveMessages, ReceivedMessage, ReceivedMessages, SettleActionWord,
            SettleInput, SettleMessages, SettleResult, SettleResults, Transacted, Transaction,
            TransactionPublish, TransactionSend, Within,
        },
    },
    auth::Verb,
    few::Few,
    http::response::KeepGuard,
    waiting,
};

impl Service {
    /// Takes messages. The guard gives the leases back unless it is kept.
    pub(in crate::api) async fn receive_messages(
        &self,
        request: &Request<'_>,
        queue: &str,
        input: ReceiveMessages,
    ) -> Result<(ReceivedMessages, Option<KeepGuard>), Problem> {
        let came = self.engine.now().machine;
        let queue = self.queue(request, Verb::Receive, queue)?;
        let max = input.max.map_or(1, Within::get);
        let wait = input.wait_ms.map(Within::get);
        let lease = input.lease_ms.map(Within::get);
        let holder = match input.holder {
            Some(name) => {
                HolderName::new(&name).map_err(|error| Problem::invalid("holder", error))?
            }
            None => request.holder.clone(),
        };
        let count = |count| u16::try_from(count).unwrap_or(u16::MAX);
        let receive = Receive {
            queue: queue.name.clone(),
            max: count(max),
            key_max: input.key_max.map(|max| count(max.get())),
            lease,
            holder,
        };
        let wait = Duration::from_millis(wait.unwrap_or(queue.settings.receive_wait));
        let mut batch = if wait.is_zero() || self.drain.has_begun() {
            self.engine.receive(receive, Duration::ZERO).await?
        } else {
            tokio::select! {
                biased;
                batch = waiting::receive(&self.engine, receive, wait, &request.hangup) => batch?,
                () = self.drain.begun() => {
                    let nothing = ReceivedMessages {
                        messages: vec![],
                        took_ms: self.engine.now().machine.since(came),
                    };
                    return Ok((nothing, None));
                }
            }
        };
        let stored = batch.iter().map(|received| {
            let state = received.delivery.state.as_deref();
            (Some(&received.stored), state)
        });
        let fits = answer::fitting(stored, answer::json_len, true);
        batch.truncate(fits);
        // Before it is told how long leases last: what passes in between counts as on the way.
        let took_ms = self.engine.now().machine.since(came);
        let messages = batch
            .iter()
            .map(|received| self.received(&queue, received))
            .collect();
        let guard = (!batch.is_empty()).then(|| KeepGuard::new(move || drop(batch.keep())));
        Ok((ReceivedMessages { messages, took_ms }, guard))
    }

    pub(in crate::api) async fn settle_messages(
        &self,
        request: &Request<'_>,
        queue: &str,
        input: SettleMessages<'_>,
    ) -> Result<SettleResults, Problem> {
        let queue = self.queue(request, Verb::Receive, queue)?;
        check_len("settles", input.settles.len(), BATCH_MAX)?;
        check_entries("settles", &input.settles)?;
        let mut results = Vec::with_capacity(input.settles.len());
        let mut commands = Batch::with_capacity(input.settles.len());
        let drops_rejected =
            queue.settings.dead_letter.is_none() || self.is_dead_letter_missing(&queue.settings);
        // Of those that go to the engine: how long the leases last that are to be extended, and whether the message is
        // dropped.
        let mut extends = Vec::with_capacity(input.settles.len());
        for (at, settle) in input.settles.into_entries(entry).enumerate() {
            let settle = settle.map_err(|problem| problem.within(&format!("settles[{at}]")))?;
            let prepared = self.settle(settle).and_then(|(settle, state)| {
                // Of a queue that is gone the leases are gone, too, also where its name was given again.
                let of = settle.token.queue;
                if of == queue.id || self.engine.directory().by_id(of).is_none() {
                    Ok((settle, state))
                } else {
                    Err(invalid_receipt("it is of another queue"))
                }
            });
            match prepared {
                Ok((settle, state)) => {
                    extends.push(match settle.action {
                        SettleAction::Extend { lease } => (Some(lease), false),
                        SettleAction::Reject { .. } => (None, drops_rejected),
                        _ => (None, false),
                    });
                    // With a state it is a transaction of its own.
                    commands.push(match state {
                        None => Command::from(settle),
                        Some(state) => Command::from(Transact {
                            settles: vec![settle],
                            states: vec![state],
                            sends: Vec::new(),
                            publishes: Vec::new(),
                        }),
                    });
                    results.push(None);
                }
                Err(problem) => results.push(Some(problem.within(&format!("settles[{at}]")))),
            }
        }
        let mut replies = if commands.is_empty() {
            Vec::new()
        } else {
            self.engine.submit_all(commands).await?
        }
        .into_iter()
        .zip(extends);
        let now = self.engine.now().machine;
        let refused = |problem| SettleResult::Refused {
            problem: Box::new(problem),
        };
        let mut result = |(at, problem): (usize, Option<Problem>)| match problem {
            Some(problem) => refused(problem),
            None => match replies.next() {
                Some((
                    Ok(Reply::Settled(Settled::Stale(reason)))
                    | Err(Rejection::TransactionStale { reason, .. }),
                    _,
                )) => SettleResult::Stale {
                    reason: reason.into(),
                },
                Some((Ok(Reply::Settled(Settled::Extended { deadline, .. })), _)) => {
                    SettleResult::Done {
                        remaining_ms: Some(deadline.since(now)),
                        dropped: false,
                        state_version: None,
                    }
                }
                Some((Ok(Reply::Transacted(done)), (extended, dropped))) => SettleResult::Done {
                    remaining_ms: extended,
                    dropped,
                    state_version: versions(&done.states).next().flatten(),
                },
                // A lease that had ended: the message is kept back for as long.
                Some((Ok(_), (extended, dropped))) => SettleResult::Done {
                    remaining_ms: extended,
                    dropped,
                    state_version: None,
                },
                Some((Err(rejection), _)) => {
                    refused(Problem::from(rejection).within(&format!("settles[{at}]")))
                }
                None => refused(unanswered()),
            },
        };
        Ok(SettleResults {
            results: results.into_iter().enumerate().map(&mut result).collect(),
        })
    }

    pub(in crate::api) async fn transact(
        &self,
        request: &Request<'_>,
        input: Transaction<'_>,
    ) -> Result<Transacted, Problem> {
        check_len(
            "settles, sends and publishes",
            input.settles.len() + input.sends.len() + input.publishes.len(),
            BATCH_MAX,
        )?;
        check_entries("settles", &input.settles)?;
        check_entries("sends", &input.sends)?;
        check_entries("publishes", &input.publishes)?;
        let mut settles = Vec::with_capacity(input.settles.len());
        let mut states = Vec::new();
        for (at, settle) in input.settles.into_entries(entry).enumerate() {
            let within = |problem: Problem| problem.within(&format!("settles[{at}]"));
            let (settle, state) = settle
                .and_then(|settle| self.settle(settle))
                .map_err(within)?;
            states.extend(state);
            // If the queue was deleted, its leases are gone, and the machine reports that.
            if let Some(entry) = self.engine.directory().by_id(settle.token.queue) {
                self.queue(request, Verb::Receive, entry.name.as_str())
                    .map_err(within)?;
            }
            settles.push(settle);
        }
        let mut sends = Vec::with_capacity(input.sends.len());
        for (at, send) in input.sends.into_entries(entry).enumerate() {
            let send: TransactionSend =
                send.map_err(|problem| problem.within(&format!("sends[{at}]")))?;
            let queue = self
                .queue(request, Verb::Send, &send.queue)
                .map_err(|problem| problem.within(&format!("sends[{at}].queue")))?;
            let message = self
                .message(&queue, send.message)
                .map_err(|problem| problem.within(&format!("sends[{at}].message")))?;
            sends.push(SendMessage {
                queue: queue.name.clone(),
                message,
            });
        }
        let mut publishes = Vec::with_capacity(input.publishes.len());
        for (at, publish) in input.publishes.into_entries(entry).enumerate() {
            let within = |problem: Problem| problem.within(&format!("publishes[{at}]"));
            let publish: TransactionPublish = publish.map_err(within)?;
            let exchange = exchange_of(request, Verb::Send, "exchange", &publish.exchange);
            let exchange = exchange.map_err(within)?;
            let to_publish = self.to_publish(&exchange, &publish.routing_key, publish.message);
            publishes.push(to_publish.map_err(within)?);
        }
        let transact = Transact {
            settles,
            states,
            sends,
            publishes,
        };
        let done = match self.engine.submit(transact).await {
            Ok(done) => done,
            Err(EngineError::Rejected(Rejection::TransactionPublishRefused { index, source })) => {
                let problem = self.publish_refused(request, *source);
                return Err(problem.within(&format!("publishes[{index}]")));
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Transacted {
            state_versions: versions(&done.states).collect(),
            sent: done.sent.into_iter().map(Into::into).collect(),
            published: (done.published.into_iter())
                .map(|publication| published(request, publication))
                .collect(),
        })
    }

    /// Checks a settle and turns it into the machine's form.
    pub(super) fn settle(
        &self,
        given: SettleInput,
    ) -> Result<(Settle, Option<WriteState>), Problem> {
        let action = given.action;
        let only = |field: &str, given: bool, of: &str, fits: bool| {
            if given && !fits {
                return Err(Problem::invalid(field, format_args!("is for {of} only")));
            }
            Ok(())
        };
        let delays = matches!(action, SettleActionWord::Nack | SettleActionWord::Defer);
        only(
            "delay_ms",
            given.delay_ms.is_some(),
            "nack and defer",
            delays,
        )?;
        let extends = action == SettleActionWord::Extend;
        only("lease_ms", given.lease_ms.is_some(), "extend", extends)?;
        let has_reason = matches!(action, SettleActionWord::Nack | SettleActionWord::Reject);
        only(
            "reason",
            given.reason.is_some(),
            "nack and reject",
            has_reason,
        )?;
        let defers = action == SettleActionWord::Defer;
        only("hold", given.hold.is_some(), "defer", defers)?;
        if given.hold.is_some() && given.delay_ms.map_or(0, Within::get) == 0 {
            return Err(Problem::invalid("hold", "needs a delay_ms of 1 or more"));
        }
        let reason = given.reason.map(Into::into);
        let delay = given.delay_ms.map_or(0, Within::get);
        let token = self.lease(&given.receipt)?;
        let state = given.state.map(state_write).transpose();
        let state = state.map_err(|problem| problem.within("state"))?;
        let settle = Settle {
            token,
            action: match action {
                SettleActionWord::Ack => SettleAction::Ack,
                SettleActionWord::Nack => SettleAction::Nack { delay, reason },
                SettleActionWord::Defer => match given.hold {
                    None => SettleAction::Defer { delay },
                    Some(hold) => SettleAction::Hold {
                        delay,
                        scope: match hold {
                            HoldScopeWord::Key => HoldScope::Key,
                            HoldScopeWord::Queue => HoldScope::Queue,
                        },
                    },
                },
                SettleActionWord::Extend => SettleAction::Extend {
                    lease: given.lease_ms.map(Within::get).ok_or_else(|| {
                        Problem::invalid("lease_ms", "extend needs it, 1 to 43200000 milliseconds")
                    })?,
                },
                SettleActionWord::Reject => SettleAction::Reject { reason },
                SettleActionWord::GiveBack => SettleAction::GiveBack,
            },
        };
        Ok((settle, state.map(|write| WriteState { token, write })))
    }

    /// The lease that a receipt names.
    fn lease(&self, receipt: &str) -> Result<LeaseToken, Problem> {
        self.receipts
            .open(receipt)
            .map_err(|error| invalid_receipt(&error.to_string()))
    }

    fn received(&self, queue: &QueueEntry, received: &Received) -> ReceivedMessage {
        let Received { delivery, stored } = received;
        let now = self.engine.now();
        let remaining = delivery.deadline.since(now.machine);
        let message = &stored.message;
        ReceivedMessage {
            id: delivery.id.to_string(),
            receipt: self.receipts.seal(delivery.token),
            attempt: delivery.attempt,
            lease_ends_at: Instant(now.wall.plus(remaining)),
            remaining_ms: remaining,
            due_at: message.due.map(Instant),
            time_to_live_ms: message.time_to_live,
            level: message.level.map(Into::into),
            state: delivery.state.as_deref().map(Into::into),
            content: content(
                queue,
                stored,
                delivery.token.sequence.0,
                History {
                    origin: delivery.origin.as_ref(),
                    failures: delivery.failures.as_deref(),
                },
                true,
            ),
        }
    }
}

/// Checks that every entry of a list can be parsed, before the first is used.
pub(super) fn check_entries<'a, T: Deserialize<'a>>(
    name: &str,
    list: &Few<'a, T>,
) -> Result<(), Problem> {
    let within = |(at, problem): (usize, Problem)| problem.within(&format!("{name}[{at}]"));
    list.check(entry).map_err(within)
}

/// What became of a message before.
#[derive(Clone, Copy)]
pub(super) struct History<'a> {
    pub(super) origin: Option<&'a Origin>,
    pub(super) failures: Option<&'a Failures>,
}

impl History<'_> {
    pub(super) fn failures(self) -> Vec<FailureView> {
        let kept = self.failures.map_or(&[][..], Failures::kept).iter();
        kept.map(|failure| FailureView {
            attempt: failure.attempt,
            at: Instant(failure.at),
            error: failure.error.to_string(),
        })
        .collect()
    }

    pub(super) fn failures_left_out(self) -> u64 {
        self.failures.map_or(0, Failures::left_out)
    }
}

/// A message as the API returns it. `sequence` is its number in the queue where it is now.
pub(super) fn content(
    queue: &QueueEntry,
    stored: &StoredMessage,
    sequence: u64,
    history: History<'_>,
    with_body: bool,
) -> Content {
    let message = &stored.message;
    let body = with_body.then(|| Encoding::encode(&message.body));
    let (body, body_encoding) = body.unzip();
    let headers = message.headers.iter().map(|header| {
        let (value, encoding) = Encoding::encode(&header.value);
        let value = HeaderView {
            kind: header.kind.to_string(),
            value,
            encoding,
        };
        (header.name.to_string(), value)
    });
    Content {
        sequence,
        sent_at: Instant(stored.accepted),
        key: key(queue, message.key.as_ref()),
        group: group(queue, message.key.as_ref()),
        key_sequence: stored.key_sequence.map(NonZeroU64::get),
        unique_id: message.unique_id.as_ref().map(ToString::to_string),
        body,
        body_encoding,
        headers: headers.collect(),
        content_type: message.content_type.as_deref().map(ToOwned::to_owned),
        trace_context: message.trace_context.as_deref().map(ToOwned::to_owned),
        priority: message.priority,
        origin: history.origin.map(origin_view),
        failures: history.failures(),
        failures_left_out: history.failures_left_out(),
    }
}

/// The key of a message, if the queue keeps an order by keys.
pub(super) fn key(queue: &QueueEntry, place: Option<&Key>) -> Option<String> {
    place.filter(|_| queue.settings.keyed).map(Key::to_string)
}

/// The group of a message, if the queue's groups only take turns.
pub(super) fn group(queue: &QueueEntry, place: Option<&Key>) -> Option<String> {
    place.filter(|_| !queue.settings.keyed).map(Key::to_string)
}

fn origin_view(origin: &Origin) -> OriginView {
    let (reason, detail, attempts) = match &origin.reason {
        DeadLetterReason::Attempts { attempts } => {
            (OriginReasonWord::Attempts, None, Some(*attempts))
        }
        DeadLetterReason::Rejected { reason } => {
            (OriginReasonWord::Rejected, reason.as_deref(), None)
        }
        _ => (OriginReasonWord::Redriven, None, None),
    };
    OriginView {
        queue: origin.name.as_ref().map(QueueName::to_string),
        sequence: origin.sequence.0,
        reason,
        detail: detail.map(ToOwned::to_owned),
        attempts,
        moved_at: Instant(origin.at),
    }
}

fn invalid_receipt(why: &str) -> Problem {
    Problem::new(Code::InvalidReceipt, format!("receipt: {why}")).at("receipt")
}
