//! An embedded queue as a place where messages go and come from.

use std::time::Duration;

use lockgate_core::{
    Accepted, Fate, KeyOrder, KeyStateWrite, LeaseToken, Leased, Message, MessageId, MessageName,
    ProducerIncarnation, ProducerName, ReceiveRequest, RecordVersion, Settlement, Sink,
    SinkCapabilities, Source, SourceCapabilities, TransportError,
    coordination::{Fence, FenceError},
    one_by_one,
};
use lockgate_engine::{Batch, EngineError};
use lockgate_machine::{
    ExchangeError, OpenProducer, Query, QueueSettings, Receive, Rejection, Sent, Settle,
    SettleAction, Settled, StaleReason, Transact, WriteState,
};

use crate::{ErrorKind, Queue, browse::as_sent, error::kind, queue::millis, settling::action};

/// Sends and settles of one call: as many as a page may have.
pub(crate) const BATCH_MAX: usize = Query::LIMIT_MAX;

/// A lease that is not current any more.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the lease is not current any more ({0:?})")]
struct Stale(StaleReason);

/// A call of another size than the capabilities say.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a call has 1 to {max} of them, this one has {given}")]
struct WrongSize {
    given: usize,
    max: usize,
}

impl Sink for Queue {
    type Id = MessageId;

    fn sink_capabilities(&self) -> SinkCapabilities {
        let settings = self.settings();
        let mut can = SinkCapabilities::bodies_only(self.engine().level_max());
        can.batch_max = BATCH_MAX;
        can.batch_bytes_max = Receive::BYTES_MAX;
        can.message_bytes_max = u64::from(settings.message_bytes_max);
        can.keys = settings.keyed;
        can.keys_only = settings.keyed;
        can.groups = !settings.keyed;
        can.unique_ids = settings.dedup_window > 0;
        can.unique_id_window = Some(Duration::from_millis(settings.dedup_window));
        can.tells_duplicates = true;
        can.due = true;
        can.time_to_live = true;
        can.headers = true;
        can.priority = true;
        can.producers = true;
        can
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let can = self.sink_capabilities();
        let bytes: u64 = messages.iter().map(|message| message.size() as u64).sum();
        let all_refused = |error: &TransportError, count| vec![Err(error.clone()); count];
        let count = messages.len();
        if let Err(error) = check_size(count) {
            return all_refused(&error, count);
        }
        if let Err(error) = check_bytes(bytes, can.batch_bytes_max) {
            return all_refused(&error, count);
        }
        let mut sends = Batch::with_capacity(count);
        let mut refused = Vec::with_capacity(count);
        for message in messages {
            match can.check(&message) {
                Ok(()) => {
                    sends.push(self.to_send(message));
                    refused.push(None);
                }
                Err(part) => refused.push(Some(part.into())),
            }
        }
        let sent = if sends.is_empty() {
            Ok(Vec::new())
        } else {
            self.engine().submit_all(sends).await
        };
        let sent = sent.map(|results| results.into_iter().map(known).collect());
        join(refused, sent.map_err(failed), |sent| Ok(accepted(sent)))
    }

    /// As one transaction. If that is refused, one by one up to the message that is to blame.
    async fn send_in_order(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let can = self.sink_capabilities();
        let is_plain = |it: &Message| it.producer.is_none() && can.check(it).is_ok();
        if messages.len() > 1 && messages.len() <= BATCH_MAX && messages.iter().all(is_plain) {
            let transact = Transact {
                sends: messages.iter().map(|it| self.to_send(it.clone())).collect(),
                ..Transact::default()
            };
            match self.engine().submit(transact).await {
                Ok(done) => {
                    return done
                        .sent
                        .into_iter()
                        .map(|sent| Ok(accepted(Some(sent))))
                        .collect();
                }
                Err(EngineError::Rejected(_)) => {}
                Err(error) => return vec![Err(failed(error))],
            }
        }
        one_by_one(self, messages).await
    }

    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        Ok(Self::fenced(self, fence))
    }

    async fn open_producer(
        &self,
        producer: ProducerName,
    ) -> Result<ProducerIncarnation, TransportError> {
        let queue = self.name().clone();
        let open = OpenProducer { queue, producer };
        self.engine().submit(open).await.map_err(failed)
    }
}

impl Source for Queue {
    type Receipt = LeaseToken;

    fn source_capabilities(&self) -> SourceCapabilities {
        let longest = Duration::from_millis(QueueSettings::LEASE_MAX);
        let mut can = SourceCapabilities::plain();
        can.receive_max = BATCH_MAX;
        can.settle_max = BATCH_MAX;
        can.wait_max = Duration::MAX;
        can.key_order = if self.settings().keyed {
            KeyOrder::Locked
        } else {
            KeyOrder::None
        };
        can.key_max = self.settings().keyed;
        can.lease_max = longest;
        can.nack_delay_max = Duration::from_millis(Settle::DELAY_MAX);
        can.nack_reasons = true;
        can.defer = true;
        can.hold = true;
        can.reject = true;
        can.give_back = true;
        can.key_states = self.settings().keyed;
        can
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<LeaseToken>>, TransportError> {
        check_size(request.max)?;
        let receive = Receive {
            queue: self.name().clone(),
            // It was checked to be no more.
            max: u16::try_from(request.max).unwrap_or(u16::MAX),
            key_max: (request.key_max)
                .map(|max| u16::try_from(max.min(request.max)).unwrap_or(u16::MAX)),
            lease: request.lease.map(millis),
            holder: request.holder,
        };
        let keyed = self.settings().keyed;
        let batch = self.engine().receive(receive, request.wait).await;
        let received = batch.map_err(failed)?.keep().into_iter();
        Ok(received
            .map(|received| Leased {
                receipt: received.delivery.token,
                name: Some(MessageName::Id(received.delivery.id)),
                message: as_sent(received.stored.message, keyed),
                sequence: Some(received.delivery.token.sequence),
                attempt: u32::from(received.delivery.attempt),
                accepted: Some(received.stored.accepted),
                failures: received.delivery.failures,
                state: received.delivery.state.map(|state| *state),
                remaining: self.engine().remaining(received.delivery.deadline),
            })
            .collect())
    }

    async fn settle_batch(
        &self,
        settles: Vec<(LeaseToken, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        let settles = settles.into_iter();
        let settles = settles.map(|(token, settlement)| Settle {
            token,
            action: action(settlement),
        });
        self.settle(settles.collect(), |settled| match settled {
            Settled::Done | Settled::Extended { .. } => Ok(()),
            Settled::Stale(reason) => Err(TransportError::new(Fate::Stale, Stale(reason))),
        })
        .await
    }

    async fn settle_with_state(
        &self,
        settles: Vec<(LeaseToken, Settlement)>,
        write: KeyStateWrite,
    ) -> Result<Option<RecordVersion>, TransportError> {
        check_size(settles.len())?;
        let states = settles
            .first()
            .map(|&(token, _)| WriteState { token, write });
        let settles = settles.into_iter().map(|(token, settlement)| Settle {
            token,
            action: action(settlement),
        });
        let transact = Transact {
            settles: settles.collect(),
            states: states.into_iter().collect(),
            sends: Vec::new(),
            publishes: Vec::new(),
        };
        let done = self.engine().submit(transact).await.map_err(failed)?;
        Ok(done.states.first().copied().flatten())
    }

    async fn extend_batch(
        &self,
        receipts: Vec<LeaseToken>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        let action = SettleAction::Extend {
            lease: millis(lease),
        };
        let settles = receipts.into_iter().map(|token| Settle {
            token,
            action: action.clone(),
        });
        self.settle(settles.collect(), |settled| match settled {
            Settled::Extended { deadline, .. } => Ok(self.engine().remaining(deadline)),
            // The lease had ended; the message is kept back for as long.
            Settled::Done => Ok(lease),
            Settled::Stale(reason) => Err(TransportError::new(Fate::Stale, Stale(reason))),
        })
        .await
    }
}

impl Queue {
    async fn settle<T>(
        &self,
        settles: Vec<Settle>,
        take: impl Fn(Settled) -> Result<T, TransportError>,
    ) -> Vec<Result<T, TransportError>> {
        let refused = settles.iter().map(|_| None).collect();
        let settled = match check_size(settles.len()) {
            Ok(()) => {
                let settled = self.engine().submit_all(settles.into_iter().collect());
                settled.await.map_err(failed)
            }
            Err(error) => Err(error),
        };
        join(refused, settled, take)
    }
}

/// One result for each: what was refused before it got to the engine, and what that said.
pub(crate) fn join<A, T>(
    refused: Vec<Option<TransportError>>,
    answers: Result<Vec<Result<A, Rejection>>, TransportError>,
    take: impl Fn(A) -> Result<T, TransportError>,
) -> Vec<Result<T, TransportError>> {
    let (mut answers, failed) = match answers {
        Ok(answers) => (answers.into_iter(), None),
        Err(failed) => (Vec::new().into_iter(), Some(failed)),
    };
    let results = refused.into_iter().map(|refused| match (refused, &failed) {
        (Some(error), _) => Err(error),
        (None, Some(failed)) => Err(failed.clone()),
        (None, None) => match answers.next() {
            Some(Ok(answer)) => take(answer),
            Some(Err(rejection)) => Err(self::failed(rejection.into())),
            // The engine has an answer for each; else it would not be known what became of this one.
            None => Err(TransportError::new(Fate::Unknown, "it was not answered")),
        },
    });
    results.collect()
}

/// That a record of a producer was sent before is an answer: `None`.
fn known(result: Result<Sent, Rejection>) -> Result<Option<Sent>, Rejection> {
    match result {
        Err(Rejection::SentBefore { .. }) => Ok(None),
        result => result.map(Some),
    }
}

/// `None`: a record of a producer that was sent before.
fn accepted(sent: Option<Sent>) -> Accepted<MessageId> {
    Accepted {
        id: sent.map(|sent| sent.id),
        sequence: sent.map(|sent| sent.sequence),
        duplicate: sent.is_none_or(|sent| sent.duplicate),
    }
}

pub(crate) fn check_size(given: usize) -> Result<(), TransportError> {
    let max = BATCH_MAX;
    if (1..=max).contains(&given) {
        return Ok(());
    }
    Err(TransportError::new(Fate::Refused, WrongSize { given, max }))
}

pub(crate) fn check_bytes(given: u64, max: u64) -> Result<(), TransportError> {
    if given <= max {
        return Ok(());
    }
    let rejection = Rejection::OutOfRange {
        what: "bytes of a batch",
        value: given,
        min: 0,
        max,
    };
    Err(TransportError::new(Fate::Refused, rejection))
}

pub(crate) fn failed(error: EngineError) -> TransportError {
    match error {
        EngineError::Rejected(Rejection::Producer { refused, .. }) => return refused.into(),
        EngineError::Rejected(Rejection::Fenced(refused)) => return refused.into(),
        _ => {}
    }
    let fate = match kind(&error) {
        // What was asked is not at fault.
        _ if matches!(
            error,
            EngineError::Rejected(
                Rejection::QueueNotFound { .. }
                    | Rejection::Exchange(ExchangeError::NotFound { .. })
            )
        ) =>
        {
            Fate::Closed
        }
        _ if matches!(
            error,
            EngineError::Rejected(
                Rejection::TransactionStale { .. } | Rejection::KeyStateStale { .. }
            )
        ) =>
        {
            Fate::Stale
        }
        // As the capabilities say.
        _ if matches!(
            error,
            EngineError::Rejected(Rejection::KeyStateNotTaken { .. })
        ) =>
        {
            Fate::Unsupported
        }
        ErrorKind::Input => Fate::Refused,
        ErrorKind::Retry => Fate::Retry,
        ErrorKind::Unknown => Fate::Unknown,
        ErrorKind::Closed => Fate::Closed,
    };
    TransportError::new(fate, error)
}
