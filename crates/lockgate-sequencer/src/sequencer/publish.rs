//! Sends what a ledger has to a sink.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use lockgate_core::{
    Backoff, Epoch, Key, Message, ReaderName, Sink, SinkCapabilities, TransportError, UniqueId,
    Unsupported, WallTime,
    coordination::{Fence, FenceError},
    ledger::{
        Event, EventHash, Ledger, LedgerError, NewEvent, ReadLedger, ReaderPosition, SequenceId,
    },
    with_sources,
};
use tokio::sync::watch;
use tracing::warn;

use super::{
    SequencerError,
    decide::{ledger_lasts, sink_lasts},
};
use crate::{message::message_of, random::drawn};

/// How long a publisher waits for an event before it looks whether its term goes on.
const WAIT: Duration = Duration::from_secs(1);

/// The most events of one send.
const BATCH_MAX: usize = 1_000;

const BACKOFF: Backoff = Backoff {
    first: 50,
    max: 5_000,
};

type Sent<'s> = Pin<Box<dyn Future<Output = Vec<Result<(), TransportError>>> + Send + 's>>;

/// Any sink, whatever it calls its messages.
trait Outlet: Send + Sync {
    fn capabilities(&self) -> SinkCapabilities;

    fn can_carry(&self, message: &Message) -> Result<(), TransportError>;

    /// Results up to the first that is an error.
    fn send(&self, messages: Vec<Message>) -> Sent<'_>;
}

impl<S: Sink> Outlet for S {
    fn capabilities(&self) -> SinkCapabilities {
        self.sink_capabilities()
    }

    fn can_carry(&self, message: &Message) -> Result<(), TransportError> {
        Sink::can_carry(self, message)
    }

    fn send(&self, messages: Vec<Message>) -> Sent<'_> {
        Box::pin(async move {
            // A sink without keys keeps no order.
            let results = match self.sink_capabilities().keys {
                true => self.send_in_order(messages).await,
                false => self.send_batch(messages).await,
            };
            results.into_iter().map(|result| result.map(drop)).collect()
        })
    }
}

/// Why a step did not go through.
enum Setback {
    /// A later step may.
    Passes(String),
    /// No later step does, if nobody helps.
    Lasts(SequencerError),
}

/// Where a publisher is in its term.
#[derive(Default)]
struct Place {
    /// The sink has everything up to there, if that is known.
    after: Option<SequenceId>,
    /// The sink has said that it has what is between these two, and the reader may not be moved.
    unmoved: Option<(SequenceId, SequenceId)>,
}

/// A sink, and the reader by which the ledger knows how far it is.
#[derive(Clone)]
pub(super) struct Publisher {
    pub(super) reader: ReaderName,
    sink: Arc<dyn Outlet>,
    /// Up to where the sink has everything.
    published: watch::Sender<SequenceId>,
}

impl Publisher {
    pub(super) fn new(reader: ReaderName, sink: impl Sink + 'static) -> Self {
        Self {
            reader,
            sink: Arc::new(sink),
            published: watch::Sender::new(SequenceId::START),
        }
    }

    /// Whether the sink takes all that a message of an event has.
    pub(super) fn check(&self) -> Result<(), Unsupported> {
        let can = self.sink.capabilities();
        let event = Event {
            sequence_id: SequenceId(1),
            previous_id: SequenceId(0),
            unique_id: None,
            time: Default::default(),
            epoch: Default::default(),
            hash: None,
            payload: Default::default(),
        };
        can.check(&self.message(&event, &can))
    }

    /// Whether the sink could carry that event, whatever its place and time will be; or why not.
    pub(super) fn carries(&self, event: &NewEvent) -> Result<(), String> {
        let event = Event {
            sequence_id: SequenceId(u64::MAX),
            previous_id: SequenceId(u64::MAX),
            unique_id: event.unique_id.clone(),
            time: WallTime(u64::MAX),
            epoch: Epoch(u64::MAX),
            hash: Some(EventHash::START),
            payload: event.payload.clone(),
        };
        let message = self.message(&event, &self.sink.capabilities());
        let carried = self.sink.can_carry(&message);
        carried.map_err(|error| {
            format!(
                "the sink {} cannot carry it: {}",
                self.reader,
                with_sources(&error)
            )
        })
    }

    /// Where sinks keep an order of keys, all events have one key, so they stay in order. Where they know unique ids, an event
    /// that is sent again, by another leader too, is known for some time.
    fn message(&self, event: &Event, can: &SinkCapabilities) -> Message {
        let mut message = message_of(event);
        if can.unique_ids {
            let id = format!("{}-{}-{}", event.sequence_id, event.epoch.0, event.time.0);
            message.unique_id = UniqueId::new(&id).ok();
        }
        match Key::new(self.reader.as_str()) {
            Ok(key) if can.keys => message.with_key(key),
            _ => message,
        }
    }

    /// Waits until the sink has everything up to there.
    pub(super) async fn reaches(&self, sequence_id: SequenceId) {
        let mut published = self.published.subscribe();
        // Its sender lives as long as this does.
        let _ = published.wait_for(|place| *place >= sequence_id).await;
    }

    /// Publishes from the watermark on, until `stop` says true or the term is over.
    ///
    /// # Errors
    /// What lasts: no event can be published any more.
    pub(super) async fn run<L: Ledger>(
        self,
        ledger: Arc<L>,
        fence: Fence,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), SequencerError> {
        let mut failures = 0;
        let mut place = Place::default();
        loop {
            if *stop.borrow_and_update() || fence.check().is_err() {
                return Ok(());
            }
            let step = self.step(&*ledger, &fence, &mut place, &mut stop).await;
            let error = match step {
                Ok(()) => {
                    failures = 0;
                    continue;
                }
                Err(Setback::Lasts(error)) => return Err(error),
                Err(Setback::Passes(error)) => error,
            };
            // An operator may have moved the reader.
            place.after = None;
            failures += 1;
            let wait = BACKOFF.after(failures, drawn());
            warn!(reader = %self.reader, error, wait, "events are published again later");
            tokio::select! {
                biased;
                _ = stop.changed() => {}
                () = tokio::time::sleep(Duration::from_millis(wait)) => {}
            }
        }
    }

    fn told(&self, error: LedgerError) -> Setback {
        match ledger_lasts(&error) {
            true => Setback::Lasts(SequencerError::Unread {
                reader: self.reader.clone(),
                why: error,
            }),
            false => Setback::Passes(error.to_string()),
        }
    }

    async fn move_to<L: Ledger>(
        &self,
        ledger: &L,
        fence: &Fence,
        from: SequenceId,
        to: SequenceId,
    ) -> Result<(), Setback> {
        // Whoever leads now may be further, and a move can go back. If this process sleeps behind the check, the reader is not
        // where it is expected any more.
        fence.check().map_err(over)?;
        let position = ReaderPosition {
            reader: self.reader.clone(),
            sequence_id: to,
        };
        let moved = ledger.move_reader(position, Some(from)).await;
        moved.map(drop).map_err(|error| self.told(error))
    }

    /// Sends one page, as far as the sink takes it, and moves the watermark behind that.
    async fn step<L: Ledger>(
        &self,
        ledger: &L,
        fence: &Fence,
        place: &mut Place,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), Setback> {
        let told = |error| self.told(error);
        let after = match place.after {
            Some(after) => after,
            None => {
                let readers = ledger.readers().await.map_err(told)?;
                let mut readers = readers.into_iter();
                let kept = readers.find(|position| position.reader == self.reader);
                let kept = kept.map_or(SequenceId::START, |kept| kept.sequence_id);
                // What the sink has is not sent again for a move that has failed, unless somebody else has moved the reader.
                match place.unmoved.take() {
                    Some((from, to)) if kept == from => {
                        place.unmoved = Some((from, to));
                        self.move_to(ledger, fence, from, to).await?;
                        place.unmoved = None;
                        to
                    }
                    _ => kept,
                }
            }
        };
        place.after = Some(after);
        self.published.send_replace(after);
        let can = self.sink.capabilities();
        let read = ReadLedger {
            after,
            limit: can.batch_max.clamp(1, BATCH_MAX),
            wait: WAIT,
        };
        let page = tokio::select! {
            biased;
            _ = stop.changed() => return Ok(()),
            page = ledger.read(read) => page.map_err(told)?,
        };
        let messages = page.events.iter().map(|event| self.message(event, &can));
        let messages = within(messages, can.batch_bytes_max);
        if messages.is_empty() {
            return match page.head.is_sealed {
                // Nothing comes any more.
                true => {
                    // Told, or dropped.
                    let _ = stop.changed().await;
                    Ok(())
                }
                false => Ok(()),
            };
        }
        fence.check().map_err(over)?;
        let results = self.sink.send(messages).await;
        // Where the sink keeps no order, those behind one that failed may be there too, and come again.
        let count = results.iter().take_while(|result| result.is_ok()).count();
        if let Some(last) = count.checked_sub(1).and_then(|last| page.events.get(last)) {
            place.unmoved = Some((after, last.sequence_id));
            self.move_to(ledger, fence, after, last.sequence_id).await?;
            (place.after, place.unmoved) = (Some(last.sequence_id), None);
            self.published.send_replace(last.sequence_id);
        }
        match results.into_iter().find_map(Result::err) {
            Some(source) if sink_lasts(source.fate) => {
                Err(Setback::Lasts(SequencerError::Refused {
                    reader: self.reader.clone(),
                    source,
                }))
            }
            Some(error) => Err(Setback::Passes(with_sources(&error))),
            None => Ok(()),
        }
    }
}

fn over(error: FenceError) -> Setback {
    Setback::Passes(error.to_string())
}

/// The first messages that have at most so many bytes together, and one at least.
fn within(messages: impl Iterator<Item = Message>, bytes_max: u64) -> Vec<Message> {
    let mut bytes = 0;
    let mut fitting = Vec::new();
    for message in messages {
        bytes += message.size() as u64;
        if bytes > bytes_max && !fitting.is_empty() {
            break;
        }
        fitting.push(message);
    }
    fitting
}
