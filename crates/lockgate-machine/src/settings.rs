//! What a queue's owner may set.

mod table;
mod words;

use lockgate_core::{Key, Level, MachineTime, Millis, QueueName};

use self::table::SettingType;
pub use self::{
    table::{Kind, Setting, Value},
    words::{DedupScope, KeyPolicy, KeyProfile},
};
use crate::{Rejection, codec::CRITICAL};

/// Declares all settings: the struct, its defaults and the table.
///
/// A row has the name, type and default, the number that stands for it in records (never that of another one,
/// also of one that is gone), and what else [`Setting`] says of it. Its sentences are its documentation
/// everywhere.
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])+
        $name:ident: $type:ty = $default:expr, $($option:ident: $value:expr),+;
    )*) => {
        /// A queue's settings. All can be changed later but [`keyed`](Self::keyed).
        ///
        /// [`SETTINGS`] has a row for each, with its bounds.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct QueueSettings {
            /// Whether messages of one key are kept in order with one holder at a time. Fixed at creation.
            /// A keyed queue refuses a message without key; an unkeyed queue refuses one with a key, shares
            /// fairly between groups, if messages have any, and locks nothing. Default: false.
            pub keyed: bool,
            $(
                $(#[doc = $about])+
                #[doc = concat!("\n\nDefault: `", stringify!($default), "`.")]
                pub $name: $type,
            )*
            /// From when on [`dedup_scope`](Self::dedup_scope) holds for sends, by the machine's clock, if it was
            /// changed: before, the other one does. `None`: it was never changed. The machine sets it,
            /// [`QueueSettings::SCOPE_CHANGE`] after the change; what a command says here counts for nothing.
            pub dedup_scope_from: Option<MachineTime>,
        }

        impl Default for QueueSettings {
            fn default() -> Self {
                Self { keyed: false, $($name: $default,)* dedup_scope_from: None }
            }
        }

        /// Every setting but [`keyed`](QueueSettings::keyed), which is fixed when a queue is made.
        pub static SETTINGS: &[Setting] = &[$(
            Setting {
                get: |settings| settings.$name.value(),
                set: |settings, value| match SettingType::of(value) {
                    Some(value) => {
                        settings.$name = value;
                        true
                    }
                    None => false,
                },
                $($option: $value,)+
                ..Setting::new([stringify!($name), concat!(stringify!($name), "_ms")], concat!($($about),+), <$type as SettingType>::KIND)
            },
        )*];
    };
}

settings! {
    /// What an answered send or settle survives.
    level: Level = Level::Disk, number: 2;
    /// How long a lease lasts when the receive does not say.
    lease: Millis = 30_000, number: 3,
        kind: Kind::Time { min: 0, max: QueueSettings::LEASE_MAX }, sqs: Some("VisibilityTimeout");
    /// How long a message waits before its first delivery when it does not say.
    delay: Millis = 0, number: 4,
        kind: Kind::Time { min: 0, max: TIME_MAX }, sqs: Some("DelaySeconds");
    /// How long a message is kept.
    retention: Millis = 4 * DAY, number: 5,
        kind: Kind::Time { min: 1000, max: TIME_MAX }, sqs: Some("MessageRetentionPeriod");
    /// How long a receive over HTTP waits for a first message when it does not say.
    receive_wait: Millis = 0, number: 6,
        kind: Kind::Time { min: 0, max: 20_000 }, sqs: Some("ReceiveMessageWaitTimeSeconds");
    /// The largest message, body and headers; what a request may carry limits it too.
    message_bytes_max: u32 = 1 << 20, number: 7,
        kind: Kind::Bytes { min: 1, max: 16 << 20 }, sqs: Some("MaximumMessageSize");
    /// How many messages may be in flight.
    in_flight_max: u32 = 120_000, number: 19, kind: Kind::Count { min: 1, max: u32::MAX as u64 };
    /// Where messages go that are rejected, or that had as many attempts as they may; it is keyed exactly if
    /// the queue is.
    dead_letter: Option<QueueName> = None, number: 13, none: Some("none"), sqs: Some("RedrivePolicy");
    /// How many attempts a message has before it goes to the dead-letter queue, or before the policy `park`
    /// parks its key.
    attempts_max: u16 = 5, number: 15, kind: Kind::Count { min: 1, max: 1000 };
    /// What a failing message does to its key: it blocks it, is skipped, or parks it.
    key_policy: Option<KeyPolicy> = None, number: 14,
        none: Some("skip with a dead-letter queue, else block"), keyed: true;
    /// Which rules a batch of one key follows. A change holds for the next batch: what is leased of a key
    /// keeps the rules it was leased under.
    key_profile: KeyProfile = KeyProfile::Strict, number: 16, keyed: true;
    /// For how many keys, or groups of an unkeyed queue, messages are numbered key by key. The count of a key
    /// outlives its messages and takes up to 64 bytes; beyond so many keys the one whose last message came
    /// longest ago is forgotten and begins at 1 again. 0: messages are not numbered, and what was counted is
    /// forgotten.
    key_sequences_max: u32 = 0, number: 22 | CRITICAL, kind: Kind::Count { min: 0, max: 100_000_000 };
    /// How many messages the queue may hold, in any state; sends beyond it are refused.
    quota_messages: Option<u64> = None, number: 17,
        kind: Kind::Count { min: 1, max: u64::MAX }, none: Some("no limit");
    /// How many bytes of bodies and headers the queue may hold; sends beyond it are refused.
    quota_bytes: Option<u64> = None, number: 18,
        kind: Kind::Bytes { min: 1, max: u64::MAX }, none: Some("no limit");
    /// How long a unique id is remembered after the send that brought it; 0: not at all.
    dedup_window: Millis = 5 * 60_000, number: 8,
        kind: Kind::Time { min: 0, max: 3653 * DAY }, keyed: true;
    /// Within what a unique id is unique.
    dedup_scope: DedupScope = DedupScope::Queue, number: 9, sqs: Some("DeduplicationScope");
    /// Whether a message without a unique id takes the SHA-256 of its body as one; the caller computes it.
    dedup_content: bool = false, number: 10, sqs: Some("ContentBasedDeduplication");
    /// Memory for remembered unique ids, of which each counts as 64 bytes; when it is used up, sends with a
    /// unique id are refused and nothing is forgotten early.
    dedup_bytes_max: u64 = 256 << 20, number: 11,
        kind: Kind::Bytes { min: 64, max: 1 << 40 }, keyed: true;
    /// Whether a purge leaves remembered unique ids in place.
    dedup_survives_purge: bool = false, number: 12, keyed: true;
    /// The queue's oldest unsynced record is never older than this when a sync starts: shorter than the log's
    /// window, or, for a queue below level `disk`, longer.
    sync_window: Option<Millis> = None, number: 20,
        kind: Kind::Time { min: 1, max: 3_600_000 }, none: Some("as the log");
    /// With a record of the queue among them, never more records than this are unsynced when a sync starts,
    /// whosever they are.
    sync_records: Option<u64> = None, number: 21,
        kind: Kind::Count { min: 1, max: u64::MAX }, none: Some("as the log");
}

const DAY: Millis = 24 * 3600 * 1000;

/// The longest time that is kept with a message, in 48 bits.
pub(crate) const TIME_MAX: Millis = (1 << 48) - 1;

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

/// What a message costs the machine in heap memory at most, in bytes, just after its tables have grown:
/// 96 for a message, 200 for a key that no other message has, 64 for a lease or a delay.
const MESSAGE_MEMORY_MAX: u64 = 96 + 200 + 64;

/// What the count of a key's messages costs.
const KEY_SEQUENCE_MEMORY_MAX: u64 = 64;

impl QueueSettings {
    /// What a queue made over HTTP has unless it is told otherwise: its batches follow Amazon's rules, since
    /// its consumers may well use the SQS API.
    #[must_use]
    pub fn over_http(keyed: bool) -> Self {
        Self {
            keyed,
            key_profile: KeyProfile::Sqs,
            ..Self::default()
        }
    }

    /// Whether a queue with these settings is what somebody wants who gives those: all but
    /// [`dedup_scope_from`](Self::dedup_scope_from), which nobody gives, is equal.
    #[must_use]
    pub fn is_what_asks(&self, given: &Self) -> bool {
        let mut given = given.clone();
        given.dedup_scope_from = self.dedup_scope_from;
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
        let messages = self.quota_messages?;
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
        match self.dedup_window {
            0 => 0,
            _ => self.dedup_bytes_max,
        }
    }

    /// What a power cut may take of what the queue answered below [`Level::Disk`], where that is not the same
    /// as the log's.
    #[must_use]
    pub fn unsynced_max(&self) -> SyncWindow {
        SyncWindow {
            after: self.sync_window,
            records: self.sync_records,
        }
    }

    /// Whether the queue of that name may have these settings in place of those of `before`, as far as that
    /// does not depend on other queues.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub fn check(&self, name: &QueueName, before: Option<&Self>) -> Result<(), SettingsError> {
        for setting in SETTINGS {
            setting.check(&setting.get(self))?;
        }
        if before.is_some_and(|before| before.keyed != self.keyed) {
            return Err(SettingsError::KeyedIsFixed);
        }
        if self.dead_letter.as_ref() == Some(name) {
            return Err(SettingsError::OwnDeadLetter);
        }
        match self.key_policy {
            Some(KeyPolicy::Skip) if self.dead_letter.is_none() => {
                Err(SettingsError::SkipWithoutDeadLetter)
            }
            Some(KeyPolicy::Park) if !self.keyed => Err(SettingsError::NeedsKeys {
                what: "key_policy park",
            }),
            _ => Ok(()),
        }
    }

    /// How long after a change of [`dedup_scope`](Self::dedup_scope) sends go on under the former one, as at
    /// AWS, where a change takes up to 60 s to reach all of the service.
    pub const SCOPE_CHANGE: Millis = 60_000;

    /// Within what the id of a message is unique that is sent now.
    pub(crate) fn dedup_scope_at(&self, now: MachineTime) -> DedupScope {
        match self.dedup_scope_from {
            Some(from) if now < from => self.dedup_scope.other(),
            _ => self.dedup_scope,
        }
    }

    /// Takes the place of other settings of the queue.
    pub(crate) fn follow(&mut self, before: &Self, now: MachineTime) {
        self.dedup_scope_from = if self.dedup_scope == before.dedup_scope {
            before.dedup_scope_from
        } else if self.dedup_scope == before.dedup_scope_at(now) {
            // A change that did not hold yet was taken back.
            Some(now)
        } else {
            Some(now.plus(Self::SCOPE_CHANGE))
        };
    }
}

/// Why settings were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A value is of another kind, or out of bounds.
    #[error("{setting} must be {allowed}, not {value}")]
    NotAllowed {
        setting: &'static str,
        /// What was given, as people write it.
        value: String,
        /// What values there are, in words.
        allowed: String,
    },
    /// `skip` needs somewhere to put the message.
    #[error("key_policy skip needs a dead-letter queue: set one, or use block or park")]
    SkipWithoutDeadLetter,
    /// Only a keyed queue has keys to park or to list.
    #[error("{what} needs a keyed queue")]
    NeedsKeys { what: &'static str },
    /// `keyed` cannot change after creation.
    #[error("whether a queue is keyed is fixed when it is created")]
    KeyedIsFixed,
    /// A queue cannot be its own dead-letter queue.
    #[error("a queue cannot be its own dead-letter queue")]
    OwnDeadLetter,
    /// The dead-letter queue is missing.
    #[error("dead-letter queue {queue} does not exist")]
    DeadLetterMissing { queue: QueueName },
    /// The dead-letter queue is keyed and the queue is not, or the other way round.
    #[error("dead-letter queue {queue} must be keyed exactly if the queue is")]
    DeadLetterKind { queue: QueueName },
}

impl SettingsError {
    /// The name of the setting at fault, or `keyed`.
    #[must_use]
    pub fn setting(&self) -> &'static str {
        match self {
            Self::NotAllowed { setting, .. } => setting,
            Self::SkipWithoutDeadLetter | Self::NeedsKeys { .. } => "key_policy",
            Self::KeyedIsFixed => "keyed",
            Self::OwnDeadLetter | Self::DeadLetterMissing { .. } | Self::DeadLetterKind { .. } => {
                "dead_letter"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_setting_has_a_name_and_a_number_of_its_own() {
        // 1 and 127 stand for `keyed` and `dedup_scope_from`, which are no rows.
        let mut numbers = BTreeSet::from([0, 1, 127]);
        let mut names = BTreeSet::new();
        for setting in SETTINGS {
            assert!(numbers.insert(setting.number & !CRITICAL), "{setting:?}");
            assert!(names.insert(setting.name), "{setting:?}");
            assert!(setting.about().ends_with('.'), "{setting:?}");
        }
    }

    #[test]
    fn values_are_read_as_they_are_shown() {
        let default = QueueSettings::default();
        for setting in SETTINGS {
            let value = setting.get(&default);
            if value != Value::None {
                assert_eq!(
                    setting.parse(&setting.show(&value)),
                    Ok(value),
                    "{setting:?}"
                );
            }
            let mut settings = default.clone();
            for wrong in ["", "x y", "a/b"] {
                assert!(setting.parse(wrong).is_err(), "{setting:?} takes {wrong:?}");
            }
            if let Kind::Count { min, max } | Kind::Time { min, max } | Kind::Bytes { min, max } =
                setting.kind
            {
                for end in [min, max] {
                    setting.set(&mut settings, Value::Number(end)).unwrap();
                    assert_eq!(setting.get(&settings), Value::Number(end), "{setting:?}");
                }
                for beyond in [min.checked_sub(1), max.checked_add(1)]
                    .into_iter()
                    .flatten()
                {
                    let refused = setting.set(&mut settings, Value::Number(beyond));
                    let error = refused.unwrap_err();
                    assert_eq!(error.setting(), setting.name);
                    assert_eq!(setting.get(&settings), Value::Number(max), "{setting:?}");
                }
            }
            if setting.none.is_none() {
                setting.set(&mut settings, Value::None).unwrap_err();
            }
        }
    }

    #[test]
    fn a_refused_value_is_told_with_its_unit() {
        let lease = Setting::named("lease").unwrap();
        assert_eq!(
            lease.parse("13h").unwrap_err().to_string(),
            "lease must be a time from 0s to 12h, not 13h"
        );
        assert_eq!(
            lease.parse("5").unwrap_err().to_string(),
            "lease must be a time from 0s to 12h, not 5: write 5s"
        );
        let quota = Setting::named("quota_bytes").unwrap();
        assert_eq!(
            quota.parse("0B").unwrap_err().to_string(),
            "quota_bytes must be a size, 1B or more, not 0B"
        );
        let level = Setting::named("level").unwrap();
        assert_eq!(
            level.parse("ram").unwrap_err().to_string(),
            "level must be memory, process, disk or replicated, not ram"
        );
    }
}
