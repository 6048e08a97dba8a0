//! What a queue's owner may set.

use lockgate_core::{Key, Level, MachineTime, Millis, QueueName};

use crate::Rejection;

/// A queue's settings. All can be changed later but [`keyed`](Self::keyed).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// Whether messages of one key are kept in order with one holder at a time. Fixed at creation.
    /// A keyed queue refuses a message without key; an unkeyed queue refuses one with a key, shares
    /// fairly between groups, if messages have any, and locks nothing. Default: false.
    pub keyed: bool,
    /// Durability of sends and settles. Default: [`Level::Disk`].
    pub level: Level,
    /// How long a lease lasts when the receive does not say (SQS: VisibilityTimeout). 0 to 12 h;
    /// default 30 s.
    pub lease: Millis,
    /// How long a message waits before its first delivery when it does not say itself (SQS:
    /// DelaySeconds). Any length; default 0.
    pub delay: Millis,
    /// How long a message is kept (SQS: MessageRetentionPeriod). At least 1 s; default 4 days.
    pub retention: Millis,
    /// How long a receive waits when it does not say. Kept for the caller; default 0.
    pub receive_wait: Millis,
    /// The largest message in bytes, body and headers. 1 to 16 MiB; default 1 MiB.
    pub message_bytes_max: u32,
    /// Deduplication by unique id.
    pub dedup: Dedup,
    /// Where messages go after too many attempts.
    pub dead_letter: Option<DeadLetter>,
    /// What a failing message does to its key. `None`: `skip` with a dead-letter queue, else
    /// `block`.
    pub key_policy: Option<KeyPolicy>,
    /// After how many attempts [`KeyPolicy::Park`] freezes the key. 1 to 1,000; default 5. The limit
    /// of `skip` stands with the dead-letter queue.
    pub park_after: u16,
    /// Which rules a batch of one key follows. A change holds for the next batch: what is leased of
    /// a key keeps the rules it was leased under.
    pub key_profile: KeyProfile,
    /// How much the queue may hold.
    pub quota: Quota,
    /// How many messages may be in flight. Default 120,000 (as SQS).
    pub in_flight_max: u32,
    /// What a power cut may take of what the queue answered below [`Level::Disk`], where it is not
    /// the same as the log's.
    pub sync_window: SyncWindow,
    /// For how many keys, or groups of an unkeyed queue, messages are numbered key by key
    /// ([`key_sequence`](crate::StoredMessage::key_sequence)). The count of a key outlives its
    /// messages and takes up to 64 bytes; beyond so many keys the one whose last message came longest
    /// ago is forgotten, and begins at 1 again. A purge forgets none. 0: messages are not numbered so,
    /// and what was counted is forgotten. At most 100,000,000; default 0.
    pub key_sequences_max: u32,
}

/// How long records may stay unsynced that were answered below [`Level::Disk`]: whatever comes first
/// starts a sync.
///
/// A queue below `Disk` may have a shorter window than the log's, or a longer one; a queue at `Disk` only a
/// shorter one, for what it writes below that level. Queues share a log, so the shortest of what is
/// unsynced holds, and one sync serves all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncWindow {
    /// The queue's oldest is never older than this when a sync starts. 1 ms to 1 h; default: as the
    /// log.
    pub after: Option<Millis>,
    /// With one of the queue's among them, never more records than this, whosever they are, are
    /// unsynced when a sync starts. 1 or more; default: as the log.
    pub records: Option<u64>,
}

impl SyncWindow {
    /// The one that holds where both are asked for.
    #[must_use]
    pub fn shorter(self, other: Self) -> Self {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Self {
            after: least(self.after, other.after),
            records: least(self.records, other.records),
        }
    }

    /// This one where it says something, else the other.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            after: self.after.or(other.after),
            records: self.records.or(other.records),
        }
    }

    /// The one that holds where either is enough.
    pub(crate) fn longer(self, other: Self) -> Self {
        Self {
            after: self.after.max(other.after),
            records: self.records.max(other.records),
        }
    }
}

/// Deduplication by unique id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dedup {
    /// How long a unique id is remembered after the send that brought it. 0: never. Default 5 min.
    pub window: Millis,
    /// Within what a unique id is unique.
    pub scope: DedupScope,
    /// From when on the scope holds for sends, by the machine's clock, if it was changed: before, the
    /// other one does. `None`: it was never changed. The machine sets it, [`Dedup::SCOPE_CHANGE`] after
    /// the change; what a command says here counts for nothing.
    pub scope_from: Option<MachineTime>,
    /// Whether a message without a unique id takes the SHA-256 of its body as one. The caller
    /// computes it; a message that arrives without one is refused.
    pub content_based: bool,
    /// Memory for remembered ids, in bytes; each counts as 64, however long its text. When it is used
    /// up, sends with a unique id are refused and nothing is forgotten early. Default 256 MiB.
    pub bytes_max: u64,
    /// Whether a purge leaves remembered ids in place. Default false, as on SQS.
    pub survives_purge: bool,
}

/// Within what a unique id is unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum DedupScope {
    /// The queue.
    #[default]
    Queue = 1,
    /// The message's key.
    Key = 2,
}

/// Where messages go after too many attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The dead-letter queue; of the same kind (keyed or not).
    pub queue: QueueName,
    /// How many leases a message gets (SQS: maxReceiveCount). 1 to 1,000.
    pub attempts_max: u16,
}

/// What a failing message does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KeyPolicy {
    /// It is tried again in its place; the key waits.
    Block = 1,
    /// After the attempt limit it goes to the dead-letter queue and the key goes on.
    Skip = 2,
    /// After the attempt limit the key is frozen until an operator resumes or drops it.
    Park = 3,
}

/// Which rules a batch of consecutive messages of one key follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum KeyProfile {
    /// Amazon's: each message of the batch has its own lease; what became visible in front of the
    /// first message still in flight may be handed out again. For queues made by the SQS API.
    Sqs = 1,
    /// One batch, settled as a prefix: nothing more of the key to anybody until all of the batch is
    /// settled or its leases have ended. The default for embedded queues.
    #[default]
    Strict = 2,
}

/// How much a queue may hold; sends beyond it are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Messages in any state. Default: no limit.
    pub messages_max: u64,
    /// Bytes of bodies and headers. Default: no limit.
    pub bytes_max: u64,
}

/// What a message costs the machine in heap memory at most, in bytes, just after its tables have grown:
/// 96 for a message, 200 for a key that no other message has, 64 for a lease or a delay.
const MESSAGE_MEMORY_MAX: u64 = 96 + 200 + 64;

/// What the count of a key's messages costs.
const KEY_SEQUENCE_MEMORY_MAX: u64 = 64;

impl QueueSettings {
    /// Whether a queue with these settings is what somebody wants who gives those: all but
    /// [`Dedup::scope_from`], which nobody gives, is equal.
    #[must_use]
    pub fn is_what_asks(&self, given: &Self) -> bool {
        let mut given = given.clone();
        given.dedup.scope_from = self.dedup.scope_from;
        *self == given
    }

    /// The longest lease, also with all it is extended by: 12 h from when it was given (as SQS has it).
    pub const LEASE_MAX: Millis = 12 * 3600 * 1000;

    /// How much heap memory the machine may need for the queue, in bytes: full to its quota with messages
    /// that each have a key of their own and a lease or a delay, and with all the unique ids and key
    /// sequences it may remember. `None` without a limit of messages.
    ///
    /// Sends are held to the quota; what is moved into the queue as dead letters comes on top.
    #[must_use]
    pub fn memory_bytes_max(&self) -> Option<u64> {
        let messages = Some(self.quota.messages_max).filter(|&max| max < u64::MAX)?;
        let bytes = messages.saturating_mul(MESSAGE_MEMORY_MAX);
        let key_sequences = u64::from(self.key_sequences_max) * KEY_SEQUENCE_MEMORY_MAX;
        Some(bytes.saturating_add(self.unique_ids_bytes_max() + key_sequences))
    }

    /// What a message's place in the queue of that name goes by: the key of a keyed queue, the group of an
    /// unkeyed one. Neither is taken for the other, so that nobody believes in an order that is not kept.
    ///
    /// # Errors
    /// [`Rejection::KeyNotTaken`] and [`Rejection::GroupNotTaken`].
    pub fn key_or_group<'a>(
        &self,
        queue: &QueueName,
        key: Option<&'a Key>,
        group: Option<&'a Key>,
    ) -> Result<Option<&'a Key>, Rejection> {
        let queue = || queue.clone();
        match (self.keyed, key, group) {
            (true, _, Some(_)) => Err(Rejection::GroupNotTaken { queue: queue() }),
            (false, Some(_), _) => Err(Rejection::KeyNotTaken { queue: queue() }),
            (true, key, None) => Ok(key),
            (false, None, group) => Ok(group),
        }
    }

    /// How much of that unique ids may take, in bytes.
    #[must_use]
    pub fn unique_ids_bytes_max(&self) -> u64 {
        match self.dedup.window {
            0 => 0,
            _ => self.dedup.bytes_max,
        }
    }
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            messages_max: u64::MAX,
            bytes_max: u64::MAX,
        }
    }
}

impl Dedup {
    /// How long after a change of the scope sends go on under the former one, as at AWS, where a change
    /// takes up to 60 s to reach all of the service.
    pub const SCOPE_CHANGE: Millis = 60_000;

    /// Within what the id of a message is unique that is sent now.
    pub(crate) fn scope_at(&self, now: MachineTime) -> DedupScope {
        match self.scope_from {
            Some(from) if now < from => self.scope.other(),
            _ => self.scope,
        }
    }

    /// Takes the place of other settings of the queue.
    pub(crate) fn follow(&mut self, before: &Self, now: MachineTime) {
        self.scope_from = if self.scope == before.scope {
            before.scope_from
        } else if self.scope == before.scope_at(now) {
            // A change that did not hold yet was taken back.
            Some(now)
        } else {
            Some(now.plus(Self::SCOPE_CHANGE))
        };
    }
}

impl DedupScope {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Queue => Self::Key,
            Self::Key => Self::Queue,
        }
    }
}

impl Default for Dedup {
    fn default() -> Self {
        Self {
            window: 5 * 60 * 1000,
            scope: DedupScope::default(),
            scope_from: None,
            content_based: false,
            bytes_max: 256 << 20,
            survives_purge: false,
        }
    }
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            keyed: false,
            level: Level::default(),
            lease: 30_000,
            delay: 0,
            retention: 4 * 24 * 3600 * 1000,
            receive_wait: 0,
            message_bytes_max: 1 << 20,
            dedup: Dedup::default(),
            dead_letter: None,
            key_policy: None,
            park_after: 5,
            key_profile: KeyProfile::default(),
            quota: Quota::default(),
            in_flight_max: 120_000,
            sync_window: SyncWindow::default(),
            key_sequences_max: 0,
        }
    }
}

/// Why settings were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A number is outside its range.
    #[error("{setting} is {value}, allowed is {min} to {max}")]
    OutOfRange {
        /// Which setting.
        setting: &'static str,
        /// What was given.
        value: u64,
        /// The lowest allowed.
        min: u64,
        /// The highest allowed.
        max: u64,
    },
    /// `skip` needs somewhere to put the message.
    #[error("key policy skip needs a dead-letter queue: set one, or use block or park")]
    SkipWithoutDeadLetter,
    /// `key_policy` or another keyed-only setting on an unkeyed queue.
    #[error("{setting} needs a keyed queue")]
    NeedsKeys {
        /// Which setting.
        setting: &'static str,
    },
    /// `keyed` cannot change after creation.
    #[error("whether a queue is keyed is fixed when it is created")]
    KeyedIsFixed,
    /// A queue cannot be its own dead-letter queue.
    #[error("a queue cannot be its own dead-letter queue")]
    OwnDeadLetter,
    /// The dead-letter queue is missing.
    #[error("dead-letter queue {queue} does not exist")]
    DeadLetterMissing {
        /// Its name.
        queue: QueueName,
    },
    /// The dead-letter queue is keyed and the queue is not, or the other way round.
    #[error("dead-letter queue {queue} must be keyed exactly if the queue is")]
    DeadLetterKind {
        /// Its name.
        queue: QueueName,
    },
}
