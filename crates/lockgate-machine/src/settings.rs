//! The settings of a queue.

mod table;
mod words;

use std::num::NonZeroU32;

use lockgate_core::{
    Key, Level, MachineTime, Millis, QueueName,
    limits::{Gap, Limits, Rate, Scoped},
};

use self::table::SettingType;
pub use self::{
    table::{Kind, Setting, Value},
    words::{DedupScope, KeyPolicy, KeyProfile},
};
use crate::{Rejection, codec::CRITICAL};

/// Declares all settings: the struct, its defaults and the table.
///
/// A row has the name, type and default, the number of the setting in records (never that of
/// another one, even of a removed one), and further properties, see [`Setting`]. Its sentences are
/// its documentation everywhere.
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
            /// From when on [`dedup_scope`](Self::dedup_scope) applies to sends, by the machine's
            /// clock, if it was changed; until then the former scope applies. `None`: it was never
            /// changed. The machine sets this, [`QueueSettings::SCOPE_CHANGE`] after the change,
            /// and ignores the value in a command.
            pub dedup_scope_from: Option<MachineTime>,
        }

        impl Default for QueueSettings {
            fn default() -> Self {
                Self { keyed: false, $($name: $default,)* dedup_scope_from: None }
            }
        }

        /// Every setting except [`keyed`](QueueSettings::keyed), which is fixed when a queue is created.
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
    /// What an answered send or settle survives: nothing, a killed process, a power cut, or the loss of a machine.
    level: Level = Level::Disk, number: 2;
    /// How long a lease lasts if the receive does not say.
    lease: Millis = 30_000, number: 3,
        kind: Kind::Time { min: 0, max: QueueSettings::LEASE_MAX }, sqs: Some("VisibilityTimeout");
    /// How long a message waits before its first delivery if its send does not say.
    delay: Millis = 0, number: 4,
        kind: Kind::Time { min: 0, max: QueueSettings::DELAY_MAX }, sqs: Some("DelaySeconds");
    /// How long a message is kept.
    retention: Millis = 4 * DAY, number: 5,
        kind: Kind::Time { min: 1000, max: QueueSettings::DELAY_MAX }, sqs: Some("MessageRetentionPeriod");
    /// How long a receive over HTTP waits for a first message if it does not say.
    receive_wait: Millis = 0, number: 6,
        kind: Kind::Time { min: 0, max: 20_000 }, sqs: Some("ReceiveMessageWaitTimeSeconds");
    /// The largest message, body and headers together. The size of a request limits it too.
    message_bytes_max: u32 = 1 << 20, number: 7,
        kind: Kind::Bytes { min: 1, max: 16 << 20 }, sqs: Some("MaximumMessageSize");
    /// How many messages may be in flight.
    in_flight_max: u32 = 120_000, number: 19, kind: Kind::Count { min: 1, max: u32::MAX as u64 };
    /// The queue that gets messages that a consumer rejected or that had all their attempts. It is keyed if the
    /// queue is, else unkeyed.
    dead_letter: Option<QueueName> = None, number: 13, none: Some("none"), sqs: Some("RedrivePolicy");
    /// How many attempts a message has before it goes to the dead-letter queue, or before the policy `park`
    /// parks its key.
    attempts_max: u16 = 5, number: 15, kind: Kind::Count { min: 1, max: 1000 };
    /// What a failing message does to its key: it blocks the key, goes to the dead-letter queue (`skip`), or parks
    /// the key.
    key_policy: Option<KeyPolicy> = None, number: 14,
        none: Some("skip with a dead-letter queue, else block"), keyed: true;
    /// Which rules a batch of one key follows. A change holds for the next batch of a key.
    key_profile: KeyProfile = KeyProfile::Strict, number: 16, keyed: true;
    /// For how many keys, or groups of an unkeyed queue, the queue numbers messages key by key. It keeps the count
    /// of a key when the key's messages are gone, in up to 64 bytes. Beyond so many keys it forgets the key whose
    /// last message came longest ago; that one begins at 1 again. With 0 it numbers nothing and forgets all counts.
    key_sequences_max: u32 = 0, number: 22 | CRITICAL, kind: Kind::Count { min: 0, max: 100_000_000 };
    /// How many messages may be leased in a time, at a burst of one second's worth unless it says another: of the
    /// queue, per key (or per group of an unkeyed queue), or both. What a limit holds waits and keeps its place.
    limit_rate: Scoped<Rate> = Scoped::NONE, number: 23 | CRITICAL, none: Some("no limit");
    /// How many messages may be under a lease at a time: of the queue, per key (or per group), or both.
    limit_concurrency: Scoped<NonZeroU32> = Scoped::NONE, number: 24 | CRITICAL,
        none: Some("no limit");
    /// The least time from one lease to the next: of the queue, per key (or per group), or both.
    limit_gap: Scoped<Gap> = Scoped::NONE, number: 25 | CRITICAL, none: Some("no limit");
    /// How many messages the queue may hold, in any state. It refuses sends beyond that.
    quota_messages: Option<u64> = None, number: 17,
        kind: Kind::Count { min: 1, max: MANY }, none: Some("no limit");
    /// How many bytes of bodies and headers the queue may hold. It refuses sends beyond that.
    quota_bytes: Option<u64> = None, number: 18,
        kind: Kind::Bytes { min: 1, max: 1 << 60 }, none: Some("no limit");
    /// How long the queue remembers a unique id after the send that brought it; with 0 not at all.
    dedup_window: Millis = 5 * 60_000, number: 8,
        kind: Kind::Time { min: 0, max: 3653 * DAY }, forever: true, keyed: true;
    /// Whether a unique id is unique in the queue, or in its key.
    dedup_scope: DedupScope = DedupScope::Queue, number: 9, sqs: Some("DeduplicationScope");
    /// Whether a message without a unique id takes the SHA-256 of its body as one; the caller computes it.
    dedup_content: bool = false, number: 10, sqs: Some("ContentBasedDeduplication");
    /// Memory for remembered unique ids, of which each counts as 64 bytes. When it is used up, the queue refuses
    /// sends with a unique id, and forgets none early.
    dedup_bytes_max: u64 = 256 << 20, number: 11,
        kind: Kind::Bytes { min: 64, max: 1 << 40 }, keyed: true;
    /// Whether the queue still remembers unique ids after a purge.
    dedup_survives_purge: bool = false, number: 12, keyed: true;
    /// How long the queue remembers a producer, and the records of an opening of its spool, that was not used.
    producer_age: Millis = 30 * DAY, number: 26,
        kind: Kind::Time { min: 60_000, max: 3653 * DAY };
    /// How many producers, and how many openings of their spools, the queue remembers. When there are so many, it
    /// refuses others, and forgets none early. Each takes up to 320 bytes.
    producers_max: u32 = 100_000, number: 27, kind: Kind::Count { min: 0, max: 1_000_000 };
    /// How old the oldest unsynced record of the queue may be when a sync starts. It may be shorter than the log's
    /// window, and for a queue below level `disk` longer.
    sync_window: Option<Millis> = None, number: 20,
        kind: Kind::Time { min: 1, max: 3_600_000 }, none: Some("as the log");
    /// How many records, of all queues, may be unsynced when a sync starts, if one of them is of this queue.
    sync_records: Option<u64> = None, number: 21,
        kind: Kind::Count { min: 1, max: MANY }, none: Some("as the log");
}

const DAY: Millis = 24 * 3600 * 1000;

const _: () = assert!(QueueSettings::DELAY_MAX < 1 << 48);

/// More than a shard ever holds, and exact as a number of JSON in every language.
const MANY: u64 = 1_000_000_000_000_000;
const _: () = assert!(MANY < 1 << 53);

/// How long records that were answered below [`Level::Disk`] may stay unsynced. The limit that is
/// reached first starts a sync.
///
/// A queue below `Disk` may have a shorter or a longer window than the log's. A queue at `Disk` may
/// only have a shorter one, for what it writes below that level. Queues share a log, so the
/// shortest window among the unsynced records applies, and one sync serves all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncWindow {
    /// The oldest age of the queue's records when a sync starts. 1 ms to 1 h; default: the log's.
    pub after: Option<Millis>,
    /// The most unsynced records, of any queue, when a sync starts, if one of them is this queue's.
    /// 1 or more; default: the log's.
    pub records: Option<u64>,
}

impl SyncWindow {
    /// The window that applies if both are asked for.
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

    /// This window where it has a limit, else the other.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            after: self.after.or(other.after),
            records: self.records.or(other.records),
        }
    }

    /// The window that applies if either one is enough.
    pub(crate) fn longer(self, other: Self) -> Self {
        Self {
            after: self.after.max(other.after),
            records: self.records.max(other.records),
        }
    }
}

/// The most heap memory that a message needs in the machine, in bytes, just after its tables have
/// grown: 96 for the message, 200 for a key that no other message has, 64 for a lease or a delay.
const MESSAGE_MEMORY_MAX: u64 = 96 + 200 + 64;

/// The memory for a producer and an opening of its spool.
const PRODUCER_MEMORY_MAX: u64 = 640;

/// The memory for the count of a key's messages.
const KEY_SEQUENCE_MEMORY_MAX: u64 = 64;

impl QueueSettings {
    /// The default settings of a queue that is created over HTTP: its batches follow Amazon's
    /// rules, because its consumers may use the SQS API.
    #[must_use]
    pub fn over_http(keyed: bool) -> Self {
        Self {
            keyed,
            key_profile: KeyProfile::Sqs,
            ..Self::default()
        }
    }

    /// Whether a queue with these settings satisfies a caller who gives those: all except
    /// [`dedup_scope_from`](Self::dedup_scope_from), which no caller gives, are equal.
    #[must_use]
    pub fn is_what_asks(&self, given: &Self) -> bool {
        let mut given = given.clone();
        given.dedup_scope_from = self.dedup_scope_from;
        *self == given
    }

    /// The value of a time that never ends, for settings that may have it ([`Setting::forever`]). Exact as a number of
    /// JSON in every language.
    pub const FOREVER: Millis = (1 << 53) - 1;

    /// Whether the queue remembers unique ids for ever.
    #[must_use]
    pub fn remembers_for_ever(&self) -> bool {
        self.dedup_window == Self::FOREVER
    }

    /// The longest lease, including all its extensions: 12 h from when it was given (as in SQS).
    pub const LEASE_MAX: Millis = 12 * 3600 * 1000;

    /// The longest delay of a message, its own or its queue's: longer than anybody waits, and short enough for the
    /// 48 bits that a time has which is kept with a message.
    pub const DELAY_MAX: Millis = 3_000_000 * DAY;

    /// How much heap memory the machine may need for the queue, in bytes: full to its quota with
    /// messages that each have their own key and a lease or a delay, and with all the unique ids, key
    /// sequences and producers that it may remember. `None` without a limit of messages.
    ///
    /// Only sends are bound by the quota; dead letters that are moved into the queue come on top, and so does what keys
    /// owe under a rate or a gap of each: it is remembered when their messages are gone, and has a bound for all queues
    /// together ([`owing_keys_max`](crate::MachineLimits::owing_keys_max)).
    #[must_use]
    pub fn memory_bytes_max(&self) -> Option<u64> {
        let messages = self.quota_messages?;
        let bytes = messages.saturating_mul(MESSAGE_MEMORY_MAX);
        let key_sequences = u64::from(self.key_sequences_max) * KEY_SEQUENCE_MEMORY_MAX;
        let producers = u64::from(self.producers_max) * PRODUCER_MEMORY_MAX;
        Some(bytes.saturating_add(self.unique_ids_bytes_max() + key_sequences + producers))
    }

    /// Whether keys owe something after a lease, because there is a rate or a gap of each.
    #[must_use]
    pub fn keys_owe(&self) -> bool {
        let limits = self.limits().key.unwrap_or_default();
        limits.rate.is_some() || limits.gap.is_some()
    }

    /// The key or group that determines a message's place in the queue with that name: the key in a
    /// keyed queue, the group in an unkeyed one. Neither is used for the other, so that nobody
    /// expects an order that is not kept.
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

    /// The limits of starts, of the queue as a whole and of each key.
    #[must_use]
    pub fn limits(&self) -> Scoped<Limits> {
        Scoped::of(self.limit_rate, self.limit_concurrency, self.limit_gap)
    }

    /// How much of that unique ids may take, in bytes.
    #[must_use]
    pub fn unique_ids_bytes_max(&self) -> u64 {
        match self.dedup_window {
            0 => 0,
            _ => self.dedup_bytes_max,
        }
    }

    /// The window in which a power cut may take what the queue answered below [`Level::Disk`],
    /// where it differs from the log's.
    #[must_use]
    pub fn unsynced_max(&self) -> SyncWindow {
        SyncWindow {
            after: self.sync_window,
            records: self.sync_records,
        }
    }

    /// Whether the queue with that name may have these settings in place of `before`, without
    /// checking other queues.
    ///
    /// # Errors
    /// The first problem with them.
    pub fn check(&self, name: &QueueName, before: Option<&Self>) -> Result<(), SettingsError> {
        for setting in SETTINGS {
            setting.check(&setting.get(self))?;
        }
        if before.is_some_and(|before| before.keyed != self.keyed) {
            return Err(SettingsError::KeyedIsFixed);
        }
        if let Some(before) = before
            && (before.remembers_for_ever() != self.remembers_for_ever()
                || before.remembers_for_ever() && before.dedup_scope != self.dedup_scope)
        {
            return Err(SettingsError::ForeverIsFixed);
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

    /// How long after a change of [`dedup_scope`](Self::dedup_scope) the former scope still applies
    /// to sends. At AWS, a change takes up to 60 s to reach the whole service.
    pub const SCOPE_CHANGE: Millis = 60_000;

    /// The scope that applies to a message that is sent now.
    pub(crate) fn dedup_scope_at(&self, now: MachineTime) -> DedupScope {
        match self.dedup_scope_from {
            Some(from) if now < from => self.dedup_scope.other(),
            _ => self.dedup_scope,
        }
    }

    /// Replaces other settings of the queue.
    pub(crate) fn follow(&mut self, before: &Self, now: MachineTime) {
        self.dedup_scope_from = if self.dedup_scope == before.dedup_scope {
            before.dedup_scope_from
        } else if self.dedup_scope == before.dedup_scope_at(now) {
            // A change that did not apply yet was taken back.
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
    /// A value has another type, or is out of bounds.
    #[error("{setting} must be {allowed}, not {value}")]
    NotAllowed {
        setting: &'static str,
        /// The value as people write it.
        value: String,
        /// The allowed values, in words.
        allowed: String,
    },
    /// `skip` needs a dead-letter queue.
    #[error(
        "key_policy skip needs a dead-letter queue: set dead_letter, or use key_policy block or park"
    )]
    SkipWithoutDeadLetter,
    /// Only a keyed queue has keys to park or to list.
    #[error("{what} needs a keyed queue")]
    NeedsKeys { what: &'static str },
    /// `keyed` cannot change after creation.
    #[error(
        "keyed cannot change after creation: create another queue, and end its name in .fifo if it is to be keyed"
    )]
    KeyedIsFixed,
    /// Whether unique ids are remembered for ever cannot change after creation, nor their scope if they are.
    #[error(
        "a queue remembers unique ids for ever from its creation on or never, and their scope is fixed then: create \
         another queue"
    )]
    ForeverIsFixed,
    /// Unique ids cannot be remembered for ever here.
    #[error(
        "dedup_window forever is unsupported on this log: it needs an index on disk beside the log, which a log in a \
         folder has; use a time up to 3653d"
    )]
    ForeverUnsupported,
    /// A queue cannot be its own dead-letter queue.
    #[error("a queue cannot be its own dead-letter queue: name another one, or none")]
    OwnDeadLetter,
    /// The dead-letter queue is missing.
    #[error("dead-letter queue {queue} does not exist: create it first")]
    DeadLetterMissing { queue: QueueName },
    /// The dead-letter queue is keyed and the queue is not, or the other way round.
    #[error(
        "queue {queue} is of the other kind: both must be keyed (their names end in .fifo), or neither"
    )]
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
            Self::ForeverIsFixed | Self::ForeverUnsupported => "dedup_window",
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
        // 1 and 127 are the numbers of `keyed` and `dedup_scope_from`, which are no rows.
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
            "quota_bytes must be a size from 1B to 1048576TiB, not 0B"
        );
        assert_eq!(
            quota.parse("64").unwrap_err().to_string(),
            "quota_bytes must be a size from 1B to 1048576TiB, not 64: write 64B"
        );
        let delay = Setting::named("delay").unwrap();
        assert_eq!(
            delay.parse("5").unwrap_err().to_string(),
            "delay must be a time from 0s to 3000000d, not 5: write 5s"
        );
        let level = Setting::named("level").unwrap();
        assert_eq!(
            level.parse("ram").unwrap_err().to_string(),
            "level must be memory, process, disk or replicated, not ram"
        );
    }
}
