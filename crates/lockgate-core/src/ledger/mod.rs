//! Ledgers: event logs with one total order, without a gap and without a duplicate.
//!
//! A ledger gives each event a [`SequenceId`], dense from 1: no id is left out, and none is used up by an append that failed.
//! Events stay. A ledger is appended to by one writer at a time: an [`Append`] names the [`Epoch`] of the writer's term and the
//! head that it expects, so a writer that was deposed, or is behind, changes nothing. A [unique id](NewEvent::unique_id) is
//! remembered for ever, and an [input](NewEvent::input) until the writer has settled it there: an event that comes again has the
//! sequence id of the first one.
//!
//! Readers see what is committed and nothing else: no event comes late below a [head](LedgerHead) that somebody has read.

mod chain;
mod decide;

pub use chain::{Chain, ChainBreak, EventHash, EventHashError};
pub use decide::Decision;

use std::{fmt, future::Future, time::Duration};

use bytes::Bytes;

use crate::{Epoch, InputId, LedgerName, Millis, ReaderName, UniqueId, WallTime};

/// The most bytes of an event's payload: 1 MiB.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// The place of an event in its ledger: 1 for the first, and one more for each one behind it. 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

impl SequenceId {
    /// Before the first event.
    pub const START: Self = Self(0);

    /// The id behind this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The id before this one; 0 for the first event, and for 0.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An event of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its place.
    pub sequence_id: SequenceId,
    /// The place of the event before it; 0 for the first.
    pub previous_id: SequenceId,
    /// The id by which its producer tells whether it came before.
    pub unique_id: Option<UniqueId>,
    /// When it was appended, by the ledger's clock. Never before the event in front of it.
    pub time: WallTime,
    /// The term of the writer that has appended it. Never below the one of the event in front of it.
    pub epoch: Epoch,
    /// The running hash up to this event, if the ledger has one.
    pub hash: Option<EventHash>,
    /// What has happened.
    pub payload: Bytes,
}

/// An event that is to be appended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewEvent {
    /// An id that the ledger remembers for ever: an event whose id it knows is a duplicate.
    pub unique_id: Option<UniqueId>,
    /// Which input it came with. The ledger remembers it until the writer says that it is [settled](Append::settled), so that
    /// an input that comes again because its settlement was lost is a duplicate, also without a unique id.
    pub input: Option<InputId>,
    /// What has happened, in at most [`EVENT_BYTES_MAX`].
    pub payload: Bytes,
}

impl NewEvent {
    /// The bytes of its unique id and its input.
    #[must_use]
    pub fn id_bytes(&self) -> usize {
        let unique_id = self.unique_id.as_ref().map_or(0, |id| id.as_str().len());
        unique_id + self.input.as_ref().map_or(0, |input| input.as_str().len())
    }
}

/// Appends events, all of them or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// The term of the writer. Once the ledger has seen a later one, this one is [deposed](LedgerError::Deposed).
    pub epoch: Epoch,
    /// The head that the writer expects; `None`: whichever it is. A repeat of an append whose outcome is not known needs an id,
    /// a unique one or an input's, on each event; or else this, which refuses the repeat.
    pub head: Option<SequenceId>,
    /// The events, in order: at most [`EVENTS_MAX`](Self::EVENTS_MAX), with [`BYTES_MAX`](Self::BYTES_MAX) of payloads and
    /// [`ID_BYTES_MAX`](Self::ID_BYTES_MAX) of ids. None is an append too: it raises the epoch and forgets inputs.
    pub events: Vec<NewEvent>,
    /// Inputs that never come again, so the ledger forgets them, after it has looked for duplicates. One that it does not know
    /// is passed over.
    pub settled: Vec<InputId>,
}

impl Append {
    /// The most events of one append: 10,000; and the most settled inputs.
    pub const EVENTS_MAX: usize = 10_000;

    /// The most bytes of payloads of one append: 8 MiB.
    pub const BYTES_MAX: usize = 8 << 20;

    /// The most bytes of the unique ids and inputs of the events of one append: 4 MiB.
    pub const ID_BYTES_MAX: usize = 4 << 20;

    /// Whether it is within its bounds: what every ledger checks first.
    ///
    /// # Errors
    /// [`Invalid`](LedgerError::Invalid), which names the event.
    pub fn check(&self) -> Result<(), LedgerError> {
        let invalid = |why| Err(LedgerError::Invalid { why });
        let (events, settled, max) = (self.events.len(), self.settled.len(), Self::EVENTS_MAX);
        if events > max || settled > max {
            return invalid(format!(
                "an append has at most {max} events and {max} settled inputs, this one has {events} and {settled}"
            ));
        }
        let (mut bytes, mut id_bytes) = (0, 0);
        for (at, event) in self.events.iter().enumerate() {
            let len = event.payload.len();
            if len > EVENT_BYTES_MAX {
                return invalid(format!(
                    "event {at} of the append has {len} bytes: an event has at most {EVENT_BYTES_MAX}"
                ));
            }
            bytes += len;
            id_bytes += event.id_bytes();
        }
        if id_bytes > Self::ID_BYTES_MAX {
            return invalid(format!(
                "the unique ids and inputs of the append have {id_bytes} bytes: at most {} together",
                Self::ID_BYTES_MAX
            ));
        }
        if bytes > Self::BYTES_MAX {
            return invalid(format!(
                "the events of the append have {bytes} bytes: at most {} together",
                Self::BYTES_MAX
            ));
        }
        Ok(())
    }
}

/// What an append did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Of each event, in the order of the append.
    pub events: Vec<AppendedEvent>,
    /// The head behind it.
    pub head: LedgerHead,
}

/// What an append did with one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedEvent {
    /// Its place; of a duplicate, the place of the first one.
    pub sequence_id: SequenceId,
    /// Whether it came before: earlier, or further ahead in the same append.
    pub is_duplicate: bool,
}

/// The end of a ledger at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerHead {
    /// The place of the last event; 0 if there was none.
    pub sequence_id: SequenceId,
    /// The place of the first event that is still kept: one behind the last if none is.
    pub first_id: SequenceId,
    /// The latest term that the ledger has seen.
    pub epoch: Epoch,
    /// The time of the last event.
    pub time: WallTime,
    /// The running hash up to the last event, if the ledger has one.
    pub hash: Option<EventHash>,
    /// Whether nothing can be appended any more.
    pub is_sealed: bool,
}

/// What a ledger is made with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerOptions {
    /// Whether each event has a [running hash](EventHash). Unless asked for, none has.
    pub hashed: bool,
    /// How long events are kept at least. Unless said, for ever. Unique ids are remembered for ever all the same.
    pub retention: Option<Millis>,
}

/// In words, for messages: `with hashes, and events kept for 86400000 ms at least`.
impl fmt::Display for LedgerOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hashes = if self.hashed { "with" } else { "without" };
        match self.retention {
            Some(span) => write!(
                out,
                "{hashes} hashes, and events kept for {span} ms at least"
            ),
            None => write!(out, "{hashes} hashes, and events kept for ever"),
        }
    }
}

/// Reads events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadLedger {
    /// Events behind this one: the last one that the reader has.
    pub after: SequenceId,
    /// The most events, 1 to [`LIMIT_MAX`](Self::LIMIT_MAX).
    pub limit: usize,
    /// How long to wait for an event if there is none. The page is empty if none comes; its head is news all the same. A sealed
    /// ledger answers at once, also whoever waits already.
    pub wait: Duration,
}

impl ReadLedger {
    /// The most events of a page.
    pub const LIMIT_MAX: usize = 10_000;

    /// A page ends with the event that takes its payloads to this many bytes: 4 MiB.
    pub const BYTES_MAX: usize = 4 << 20;

    /// The longest wait: 60 s.
    pub const WAIT_MAX: Duration = Duration::from_secs(60);

    /// Whether it is within its bounds: what every ledger checks first.
    ///
    /// # Errors
    /// [`Invalid`](LedgerError::Invalid).
    pub fn check(&self) -> Result<(), LedgerError> {
        let (limit, max) = (self.limit, Self::LIMIT_MAX);
        let why = if !(1..=max).contains(&limit) {
            format!("a page has 1 to {max} events, and not {limit}")
        } else if self.wait > Self::WAIT_MAX {
            let (wait, max) = (self.wait.as_millis(), Self::WAIT_MAX.as_millis());
            format!("a read waits at most {max} ms, and not {wait}")
        } else {
            return Ok(());
        };
        Err(LedgerError::Invalid { why })
    }
}

/// Events that follow one another, and the head of the ledger as of then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerPage {
    /// The events; the first one is directly behind [`ReadLedger::after`].
    pub events: Vec<Event>,
    /// The head, at or behind the last of the events.
    pub head: LedgerHead,
}

/// How far a reader is that the ledger keeps the place of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderPosition {
    /// Whose.
    pub reader: ReaderName,
    /// The last event that it is done with.
    pub sequence_id: SequenceId,
}

impl ReaderPosition {
    /// Whether a reader that is at `now` may be moved by who expects it at `from`.
    ///
    /// # Errors
    /// `ReaderMoved`.
    pub fn check_from(
        now: Option<SequenceId>,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        let sequence_id = now.unwrap_or_default();
        match from.is_none_or(|from| from == sequence_id) {
            true => Ok(()),
            false => Err(LedgerError::ReaderMoved { sequence_id }),
        }
    }
}

/// Why a ledger did nothing, or may have done it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The head is another than the writer expects: somebody else has appended, or this append came through before.
    #[error("the head of the ledger is {head}: somebody has appended to it")]
    Moved {
        /// Where the head is.
        head: SequenceId,
    },
    /// A later term has written: this one is over.
    #[error("epoch {} is deposed: the ledger has seen epoch {}", epoch.0, newest.0)]
    Deposed {
        /// Of the writer.
        epoch: Epoch,
        /// The latest one.
        newest: Epoch,
    },
    /// Nothing is appended to a ledger that was sealed.
    #[error("the ledger is sealed at {head}")]
    Sealed {
        /// Its last event.
        head: SequenceId,
    },
    /// There is no such ledger.
    #[error("there is no ledger {ledger}")]
    NotFound {
        /// Which one.
        ledger: LedgerName,
    },
    /// The events that are asked for are not kept any more.
    #[error("the ledger keeps events from {first} on: those behind {after} are gone")]
    Trimmed {
        /// Behind which event was asked.
        after: SequenceId,
        /// The first one that is kept.
        first: SequenceId,
    },
    /// A place that the ledger has not reached.
    #[error("the ledger ends at {head}: there is no event {sequence_id} yet")]
    Beyond {
        /// Which place was named.
        sequence_id: SequenceId,
        /// Where the ledger ends.
        head: SequenceId,
    },
    /// The reader is at another place than the one from which it was to be moved: somebody has moved it.
    #[error("the reader is at {sequence_id}: somebody has moved it")]
    ReaderMoved {
        /// Where it is.
        sequence_id: SequenceId,
    },
    /// The command can never succeed: something is out of its bounds.
    #[error("{why}")]
    Invalid {
        /// What is wrong, and what is right.
        why: String,
    },
    /// This ledger cannot do it: see its [capabilities](Ledger::capabilities).
    #[error("this ledger does not {what}")]
    Unsupported {
        /// What it does not do.
        what: &'static str,
    },
    /// What the ledger keeps contradicts itself, or cannot be read.
    #[error("the ledger is damaged: {why}")]
    Damaged {
        /// What is wrong, and where.
        why: String,
    },
    /// The store has no room for more.
    #[error("the ledger's store is full: {why}")]
    Full {
        /// What is full, and what to do.
        why: String,
    },
    /// The command may have happened: its answer was lost.
    #[error("the command's outcome is not known: {why}")]
    Unknown {
        /// What happened to the answer.
        why: String,
    },
    /// The store does not let the caller do that. Nothing happened.
    #[error("the ledger's store refuses access: {why}")]
    Denied {
        /// Why.
        why: String,
    },
    /// The command did not happen, and may succeed later.
    #[error("the ledger does not answer now: {why}")]
    Unavailable {
        /// Why.
        why: String,
    },
}

impl LedgerError {
    /// Whether a later attempt of the same writer or reader may fare better, though nobody mends anything.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Unavailable { .. }
                | Self::Unknown { .. }
                | Self::Moved { .. }
                | Self::ReaderMoved { .. }
                | Self::Full { .. }
        )
    }
}

/// What a ledger can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LedgerCapabilities {
    /// Whether what was answered survives a crash.
    pub lasts: bool,
    /// Whether a read that waits is answered as soon as there is an event. If false, the ledger looks now and then.
    pub wakes: bool,
    /// Whether it keeps a running hash where that was asked for.
    pub hashes: bool,
}

impl LedgerCapabilities {
    /// One that can do all of it.
    pub const ALL: Self = Self {
        lasts: true,
        wakes: true,
        hashes: true,
    };

    /// The same, but that a crash takes it all.
    #[must_use]
    pub const fn forgetful(self) -> Self {
        Self {
            lasts: false,
            ..self
        }
    }

    /// The same, but that waiting reads look now and then.
    #[must_use]
    pub const fn polling(self) -> Self {
        Self {
            wakes: false,
            ..self
        }
    }
}

/// One ledger. Each operation takes effect at one instant between call and answer, and what was answered, or was read, stays.
///
/// # Cancellation
/// A command whose future is dropped may have happened. Reads change nothing.
pub trait Ledger: Send + Sync + 'static {
    /// What this ledger can do; unless it says otherwise, all. Constant for the life of the instance.
    fn capabilities(&self) -> LedgerCapabilities {
        LedgerCapabilities::ALL
    }

    /// Appends events that it does not know, in their order, all in one step with what it remembers of them.
    ///
    /// The checks, in this order: bounds, the epoch, the seal, the head; then duplicates. An event is a duplicate if its unique
    /// id is known, or else if its input is. A sealed ledger refuses an append only if it has an event that is no duplicate. An
    /// append that is refused changes nothing, also not the epoch.
    ///
    /// # Errors
    /// `Invalid`, `Deposed`, `Sealed`, `Moved`, `NotFound`, `Full`, `Damaged`, `Unknown` and `Unavailable`.
    fn append(&self, append: Append) -> impl Future<Output = Result<Appended, LedgerError>> + Send;

    /// The head.
    ///
    /// # Errors
    /// `NotFound`, `Damaged` and `Unavailable`.
    fn head(&self) -> impl Future<Output = Result<LedgerHead, LedgerError>> + Send;

    /// Events behind one that the reader has.
    ///
    /// # Errors
    /// `Invalid`, [`Trimmed`](LedgerError::Trimmed), [`Beyond`](LedgerError::Beyond), `NotFound`, `Damaged` and `Unavailable`.
    fn read(
        &self,
        read: ReadLedger,
    ) -> impl Future<Output = Result<LedgerPage, LedgerError>> + Send;

    /// The place of the event with that unique id; `None`: no event had it.
    ///
    /// # Errors
    /// `NotFound`, `Damaged` and `Unavailable`.
    fn find(
        &self,
        unique_id: UniqueId,
    ) -> impl Future<Output = Result<Option<SequenceId>, LedgerError>> + Send;

    /// Keeps how far a reader is, in the place of what was kept. It may go back.
    ///
    /// `from`: only if it is there now, where a reader that the ledger does not know is at 0. So of two that move one reader,
    /// such as a leader and a deposed one that has slept, none undoes what it has not seen. `None`: wherever it is.
    ///
    /// # Errors
    /// `Beyond`, [`ReaderMoved`](LedgerError::ReaderMoved), `NotFound`, `Full`, `Unknown` and `Unavailable`.
    fn move_reader(
        &self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Forgets a reader. True if there was one.
    ///
    /// # Errors
    /// `NotFound`, `Unknown` and `Unavailable`.
    fn forget_reader(
        &self,
        reader: ReaderName,
    ) -> impl Future<Output = Result<bool, LedgerError>> + Send;

    /// How far all readers are, in the order of their names.
    ///
    /// # Errors
    /// `NotFound`, `Damaged` and `Unavailable`.
    fn readers(&self) -> impl Future<Output = Result<Vec<ReaderPosition>, LedgerError>> + Send;

    /// Ends the ledger: nothing is appended any more. Of a sealed one it changes nothing.
    ///
    /// # Errors
    /// `Deposed`, `NotFound`, `Unknown` and `Unavailable`.
    fn seal(&self, epoch: Epoch) -> impl Future<Output = Result<LedgerHead, LedgerError>> + Send;

    /// Lets go of events before that one. Unique ids, and the places of all others, stay. Nothing is undone by a lower one.
    ///
    /// # Errors
    /// `Beyond` for more than one behind the head, `NotFound`, `Unknown` and `Unavailable`.
    fn trim(
        &self,
        first: SequenceId,
    ) -> impl Future<Output = Result<LedgerHead, LedgerError>> + Send;
}
