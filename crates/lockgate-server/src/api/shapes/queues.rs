//! Queues, their settings and counts.

use std::collections::BTreeMap;

use lockgate_core::{Level, Millis, QueueName};
use lockgate_machine::{
    DeadLetter, DedupScope, KeyPolicy, KeyProfile, QueueCounts, QueueDescription, QueueSettings,
    QueueTotals,
};
use serde::{Deserialize, Serialize};

use super::{super::problem::Problem, Instant, given};
use crate::few::FewByName;

/// Tags of a queue.
const TAGS_MAX: usize = 50;
/// Tags that one request changes: all of a queue's are removed, and as many are added.
const TAG_CHANGES_MAX: usize = 2 * TAGS_MAX;

/// A page of queues.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Queues {
    /// In order of their names.
    pub(crate) queues: Vec<Queue>,
    /// What to give as `page` for the next page; not there on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page: Option<String>,
}

/// Which queues to list.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQueues {
    /// Only queues whose names start with this.
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    /// How many at most, 1 to 1000. Default 100.
    #[serde(default)]
    pub(crate) limit: Option<u16>,
    /// The `next_page` of the page before.
    #[serde(default)]
    pub(crate) page: Option<String>,
}

/// A queue.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Queue {
    /// Its name.
    pub(crate) name: String,
    /// Whether messages of one key are kept in order, with one holder at a time. Such a queue's name
    /// ends in `.fifo`.
    pub(crate) keyed: bool,
    /// Whether it gives no leases, because somebody paused it.
    pub(crate) paused: bool,
    /// When it was made.
    pub(crate) created_at: Instant,
    /// When its settings or tags last changed.
    pub(crate) changed_at: Instant,
    /// What it holds now. Exact.
    pub(crate) counts: Counts,
    /// What came and went since it was made. Exact: `accepted + moved_in = acknowledged + moved_out
    /// + dropped + what it holds`.
    pub(crate) totals: Totals,
    /// Its settings, all of them.
    pub(crate) settings: Settings,
    /// Its tags.
    pub(crate) tags: BTreeMap<String, String>,
}

/// What a queue holds: `ready + in_flight + delayed` is all of it.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Counts {
    /// Waiting for a lease, also behind a message of the same key that is in flight or parked.
    pub(crate) ready: u64,
    /// Leased, or given back and waiting for its next attempt.
    pub(crate) in_flight: u64,
    /// Not yet due.
    pub(crate) delayed: u64,
    /// Bytes of bodies and headers.
    pub(crate) bytes: u64,
    /// Keys (of an unkeyed queue: groups) with at least one message.
    pub(crate) keys: u64,
    /// Parked keys.
    pub(crate) parked_keys: u64,
    /// Unique ids that are remembered.
    pub(crate) unique_ids: u64,
    /// When the oldest message was accepted; not there for an empty queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_at: Option<Instant>,
}

/// What came and went.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Totals {
    /// Sends accepted, duplicates not counted.
    pub(crate) accepted: u64,
    /// Sends recognised as duplicates, since the last start.
    pub(crate) duplicates: u64,
    /// Messages that came from another queue.
    pub(crate) moved_in: u64,
    /// Messages that went to another queue.
    pub(crate) moved_out: u64,
    /// Messages acknowledged.
    pub(crate) acknowledged: u64,
    /// Messages dropped, by reason.
    pub(crate) dropped: Dropped,
    /// Leases given.
    pub(crate) leased: u64,
    /// Leases that ran out.
    pub(crate) leases_ended: u64,
    /// Settles of leases that were not current, since the last start.
    pub(crate) stale: u64,
    /// Messages of level `memory` that crashes may have taken: at most so many.
    pub(crate) possibly_lost: u64,
}

/// Messages dropped, by reason.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Dropped {
    /// By a purge.
    pub(crate) purged: u64,
    /// By age.
    pub(crate) expired: u64,
    /// Unreadable.
    pub(crate) damaged: u64,
    /// Rejected where there is no dead-letter queue.
    pub(crate) rejected: u64,
    /// Cancelled by id.
    pub(crate) cancelled: u64,
    /// Dropped with their key.
    pub(crate) key_dropped: u64,
}

/// How much may be unsynced of what was answered below `disk`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SyncWindow {
    /// The queue's oldest unsynced record is never older than this when a sync starts.
    pub(crate) after_ms: Option<Millis>,
    /// With one of the queue's among them, never more records than this are unsynced when a sync starts.
    pub(crate) records: Option<u64>,
}

/// A queue's settings.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Settings {
    /// What an answered send or settle survives.
    pub(crate) level: LevelWord,
    /// How long a lease lasts when the receive does not say.
    pub(crate) lease_ms: Millis,
    /// How long a message waits before its first delivery when it does not say.
    pub(crate) delay_ms: Millis,
    /// How long a message is kept.
    pub(crate) retention_ms: Millis,
    /// How long a receive waits for a first message when it does not say.
    pub(crate) receive_wait_ms: Millis,
    /// The largest message: body and headers.
    pub(crate) message_bytes_max: u32,
    /// How many messages may be in flight.
    pub(crate) in_flight_max: u32,
    /// For how many keys or groups messages are numbered key by key, as `key_sequence`; beyond so many
    /// the one whose last message came longest ago is forgotten and begins at 1 again. 0: not numbered.
    pub(crate) key_sequences_max: u32,
    /// What a power cut may take of what was answered below `disk`; the server's own window holds too.
    pub(crate) sync_window: SyncWindow,
    /// Deduplication by unique id.
    pub(crate) dedup: Dedup,
    /// Where messages go after too many attempts; `null`: nowhere.
    pub(crate) dead_letter: Option<DeadLetterView>,
    /// What a failing message does to its key; `null`: `skip` with a dead-letter queue, else `block`.
    pub(crate) key_policy: Option<KeyPolicyWord>,
    /// After how many attempts the policy `park` parks the key.
    pub(crate) park_after: u16,
    /// Which rules a batch of one key follows.
    pub(crate) key_profile: KeyProfileWord,
    /// How much the queue may hold.
    pub(crate) quota: Quota,
}

/// Deduplication by unique id.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Dedup {
    /// How long a unique id is remembered after the send that brought it; 0: never.
    pub(crate) window_ms: Millis,
    /// Within what a unique id is unique.
    pub(crate) scope: DedupScopeWord,
    /// If the scope was changed shortly ago: for how much longer sends follow the former one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scope_pending_ms: Option<Millis>,
    /// Whether a message without a unique id takes the SHA-256 of its body as one.
    pub(crate) content_based: bool,
    /// Memory for remembered ids; when it is used up, sends with a unique id are refused.
    pub(crate) bytes_max: u64,
    /// Whether a purge leaves remembered ids in place.
    pub(crate) survives_purge: bool,
}

/// Where messages go after too many attempts.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DeadLetterView {
    /// The dead-letter queue.
    pub(crate) queue: String,
    /// How many leases a message gets.
    pub(crate) attempts_max: u16,
}

/// How much a queue may hold; sends beyond it are refused. `null`: no limit.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Quota {
    /// Messages in any state.
    pub(crate) messages_max: Option<u64>,
    /// Bytes of bodies and headers.
    pub(crate) bytes_max: Option<u64>,
}

/// Declares a word of the API and what it stands for in the machine.
macro_rules! words {
    ($(#[$doc:meta])* $word:ident for $type:ident { $($(#[$variant_doc:meta])* $variant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(test, derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum $word {
            $($(#[$variant_doc])* $variant,)*
        }

        impl From<$type> for $word {
            fn from(value: $type) -> Self {
                match value { $($type::$variant => Self::$variant,)* }
            }
        }

        impl From<$word> for $type {
            fn from(value: $word) -> Self {
                match value { $($word::$variant => Self::$variant,)* }
            }
        }
    };
}

words! {
    /// What an answered send or settle survives; each survives everything the ones before it do.
    LevelWord for Level {
        /// Nothing is promised.
        Memory,
        /// A crash of the server.
        Process,
        /// A power cut.
        Disk,
        /// The loss of a machine; refused where the log cannot do it.
        Replicated,
    }
}

words! {
    /// Within what a unique id is unique.
    DedupScopeWord for DedupScope {
        /// The queue.
        Queue,
        /// The message's key.
        Key,
    }
}

words! {
    /// What a failing message does to its key.
    KeyPolicyWord for KeyPolicy {
        /// It is tried again in its place, and the key waits.
        Block,
        /// After the attempt limit it goes to the dead-letter queue, and the key goes on.
        Skip,
        /// After the attempt limit the key is parked until somebody resumes or drops it.
        Park,
    }
}

words! {
    /// Which rules a batch of consecutive messages of one key follows.
    KeyProfileWord for KeyProfile {
        /// Amazon's: each message of the batch has a lease of its own.
        Sqs,
        /// Settled as a prefix, and nothing more of the key to anybody until all of it is.
        Strict,
    }
}

/// A queue to be made.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateQueue {
    /// Its name: 1 to 80 letters, digits, `-` and `_`, and for a keyed queue `.fifo` at its end.
    pub(crate) name: String,
    /// Settings that are not to be the default.
    #[serde(default)]
    pub(crate) settings: SettingsChange,
    /// Its tags, up to 50.
    #[serde(default)]
    pub(crate) tags: FewByName<String, TAGS_MAX>,
}

/// What is to change about a queue.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeQueue {
    /// Settings that change.
    #[serde(default)]
    pub(crate) settings: SettingsChange,
    /// Tags that change; `null` removes one.
    #[serde(default)]
    pub(crate) tags: FewByName<Option<String>, TAG_CHANGES_MAX>,
}

/// Settings that are to change, or not to be the default. What is not named stays; `null` is the
/// default.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SettingsChange {
    /// What an answered send or settle survives. Default `disk`.
    #[serde(deserialize_with = "given")]
    pub(crate) level: Option<Option<LevelWord>>,
    /// How long a lease lasts when the receive does not say. 0 to 12 h; default 30 s.
    #[serde(deserialize_with = "given")]
    pub(crate) lease_ms: Option<Option<Millis>>,
    /// How long a message waits before its first delivery when it does not say. Any length; default 0.
    #[serde(deserialize_with = "given")]
    pub(crate) delay_ms: Option<Option<Millis>>,
    /// How long a message is kept. 1 s or more; default 4 days.
    #[serde(deserialize_with = "given")]
    pub(crate) retention_ms: Option<Option<Millis>>,
    /// How long a receive waits for a first message when it does not say. 0 to 20 s; default 0.
    #[serde(deserialize_with = "given")]
    pub(crate) receive_wait_ms: Option<Option<Millis>>,
    /// The largest message, body and headers. 1 to 16 MiB; default 1 MiB. What a request may carry
    /// (`--body-max`) limits it too.
    #[serde(deserialize_with = "given")]
    pub(crate) message_bytes_max: Option<Option<u32>>,
    /// How many messages may be in flight. Default 120,000.
    #[serde(deserialize_with = "given")]
    pub(crate) in_flight_max: Option<Option<u32>>,
    /// For how many keys or groups messages are numbered key by key, as `key_sequence`; beyond so many
    /// the one whose last message came longest ago is forgotten and begins at 1 again. Up to 64 bytes of
    /// memory each. 0 to 100,000,000; default 0: not numbered, and what was counted is forgotten.
    #[serde(deserialize_with = "given")]
    pub(crate) key_sequences_max: Option<Option<u32>>,
    /// What a power cut may take of what was answered below `disk`.
    pub(crate) sync_window: SyncWindowChange,
    /// Deduplication by unique id.
    pub(crate) dedup: DedupChange,
    /// Where messages go after too many attempts; `null`, the default: nowhere. It must exist and be
    /// keyed exactly if the queue is.
    #[serde(deserialize_with = "given")]
    pub(crate) dead_letter: Option<Option<DeadLetterChange>>,
    /// What a failing message does to its key; `null`, the default: `skip` with a dead-letter queue,
    /// else `block`.
    #[serde(deserialize_with = "given")]
    pub(crate) key_policy: Option<Option<KeyPolicyWord>>,
    /// After how many attempts the policy `park` parks the key. 1 to 1000; default 5.
    #[serde(deserialize_with = "given")]
    pub(crate) park_after: Option<Option<u16>>,
    /// Which rules a batch of one key follows. Default `sqs`.
    #[serde(deserialize_with = "given")]
    pub(crate) key_profile: Option<Option<KeyProfileWord>>,
    /// How much the queue may hold.
    pub(crate) quota: QuotaChange,
}

/// What is to change about the sync window.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SyncWindowChange {
    /// The queue's oldest unsynced record is never older than this when a sync starts: shorter than the
    /// server's window, or, of a queue below `disk`, longer. 1 ms to 1 h; `null`, the default: the server's.
    #[serde(deserialize_with = "given")]
    pub(crate) after_ms: Option<Option<Millis>>,
    /// With one of the queue's among them, never more records than this are unsynced when a sync starts. 1
    /// and more; `null`, the default: no limit.
    #[serde(deserialize_with = "given")]
    pub(crate) records: Option<Option<u64>>,
}

/// What is to change about deduplication.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DedupChange {
    /// How long a unique id is remembered; 0: never. Default 5 minutes.
    #[serde(deserialize_with = "given")]
    pub(crate) window_ms: Option<Option<Millis>>,
    /// Within what a unique id is unique. Default `queue`.
    #[serde(deserialize_with = "given")]
    pub(crate) scope: Option<Option<DedupScopeWord>>,
    /// Whether a message without a unique id takes the SHA-256 of its body as one. Default no.
    #[serde(deserialize_with = "given")]
    pub(crate) content_based: Option<Option<bool>>,
    /// Memory for remembered ids; each counts as 64 bytes. Default 256 MiB.
    #[serde(deserialize_with = "given")]
    pub(crate) bytes_max: Option<Option<u64>>,
    /// Whether a purge leaves remembered ids in place. Default no.
    #[serde(deserialize_with = "given")]
    pub(crate) survives_purge: Option<Option<bool>>,
}

/// Where messages are to go after too many attempts.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct DeadLetterChange {
    /// The dead-letter queue.
    pub(crate) queue: String,
    /// How many leases a message gets. 1 to 1000; default 5.
    #[serde(default = "attempts_max")]
    pub(crate) attempts_max: u16,
}

fn attempts_max() -> u16 {
    5
}

/// What is to change about the quota; `null`: no limit, the default.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QuotaChange {
    /// Messages in any state.
    #[serde(deserialize_with = "given")]
    pub(crate) messages_max: Option<Option<u64>>,
    /// Bytes of bodies and headers.
    #[serde(deserialize_with = "given")]
    pub(crate) bytes_max: Option<Option<u64>>,
}

impl SettingsChange {
    /// Takes the change over into settings.
    pub(crate) fn apply(self, settings: &mut QueueSettings) -> Result<(), Problem> {
        fn set<T, U: Into<T>>(place: &mut T, change: Option<Option<U>>, default: T) {
            match change {
                None => {}
                Some(None) => *place = default,
                Some(Some(value)) => *place = value.into(),
            }
        }
        let wait = self.receive_wait_ms.flatten().unwrap_or(0);
        if wait > super::WAIT_MS_MAX {
            return Err(Problem::invalid(
                "settings.receive_wait_ms",
                format_args!("{wait} is not from 0 to {}", super::WAIT_MS_MAX),
            ));
        }
        let default = default_settings(settings.keyed);
        let (to, from) = (&mut *settings, default);
        set(&mut to.level, self.level, from.level);
        set(&mut to.lease, self.lease_ms, from.lease);
        set(&mut to.delay, self.delay_ms, from.delay);
        set(&mut to.retention, self.retention_ms, from.retention);
        set(
            &mut to.receive_wait,
            self.receive_wait_ms,
            from.receive_wait,
        );
        let (bytes_max, in_flight_max) = (self.message_bytes_max, self.in_flight_max);
        set(&mut to.message_bytes_max, bytes_max, from.message_bytes_max);
        set(&mut to.in_flight_max, in_flight_max, from.in_flight_max);
        set(&mut to.park_after, self.park_after, from.park_after);
        let sequences_max = self.key_sequences_max;
        set(
            &mut to.key_sequences_max,
            sequences_max,
            from.key_sequences_max,
        );
        if let Some(after) = self.sync_window.after_ms {
            to.sync_window.after = after;
        }
        if let Some(records) = self.sync_window.records {
            to.sync_window.records = records;
        }
        set(&mut to.key_profile, self.key_profile, from.key_profile);
        if let Some(policy) = self.key_policy {
            to.key_policy = policy.map(Into::into);
        }
        if let Some(dead_letter) = self.dead_letter {
            to.dead_letter = dead_letter.map(DeadLetterChange::checked).transpose()?;
        }
        let (change, to, from) = (self.dedup, &mut settings.dedup, from.dedup);
        set(&mut to.window, change.window_ms, from.window);
        set(&mut to.scope, change.scope, from.scope);
        set(
            &mut to.content_based,
            change.content_based,
            from.content_based,
        );
        set(&mut to.bytes_max, change.bytes_max, from.bytes_max);
        set(
            &mut to.survives_purge,
            change.survives_purge,
            from.survives_purge,
        );
        let (change, to) = (self.quota, &mut settings.quota);
        set(&mut to.messages_max, change.messages_max, u64::MAX);
        set(&mut to.bytes_max, change.bytes_max, u64::MAX);
        Ok(())
    }
}

/// What a queue made by this API has unless it is told otherwise. Its batches follow Amazon's rules,
/// as its consumers may well use the SQS API.
pub(crate) fn default_settings(keyed: bool) -> QueueSettings {
    QueueSettings {
        keyed,
        key_profile: KeyProfile::Sqs,
        ..QueueSettings::default()
    }
}

impl DeadLetterChange {
    fn checked(self) -> Result<DeadLetter, Problem> {
        Ok(DeadLetter {
            queue: QueueName::new(&self.queue)
                .map_err(|error| Problem::invalid("settings.dead_letter.queue", error))?,
            attempts_max: self.attempts_max,
        })
    }
}

impl From<QueueDescription> for Queue {
    fn from(queue: QueueDescription) -> Self {
        Self {
            name: queue.name.to_string(),
            keyed: queue.settings.keyed,
            paused: queue.paused,
            created_at: Instant(queue.created),
            changed_at: Instant(queue.changed),
            counts: queue.counts.into(),
            totals: queue.totals.into(),
            settings: queue.settings.into(),
            tags: queue.tags,
        }
    }
}

impl From<QueueCounts> for Counts {
    fn from(counts: QueueCounts) -> Self {
        Self {
            ready: counts.ready,
            in_flight: counts.in_flight,
            delayed: counts.delayed,
            bytes: counts.bytes,
            keys: counts.keys,
            parked_keys: counts.parked_keys,
            unique_ids: counts.unique_ids,
            oldest_at: counts.oldest.map(Instant),
        }
    }
}

impl From<QueueTotals> for Totals {
    fn from(totals: QueueTotals) -> Self {
        Self {
            accepted: totals.accepted,
            duplicates: totals.duplicates,
            moved_in: totals.moved_in,
            moved_out: totals.moved_out,
            acknowledged: totals.acknowledged,
            dropped: Dropped {
                purged: totals.dropped.purged,
                expired: totals.dropped.expired,
                damaged: totals.dropped.damaged,
                rejected: totals.dropped.rejected,
                cancelled: totals.dropped.cancelled,
                key_dropped: totals.dropped.key_dropped,
            },
            leased: totals.leased,
            leases_ended: totals.leases_ended,
            stale: totals.stale,
            possibly_lost: totals.possibly_lost,
        }
    }
}

impl From<QueueSettings> for Settings {
    fn from(settings: QueueSettings) -> Self {
        let limit = |max: u64| (max != u64::MAX).then_some(max);
        Self {
            level: settings.level.into(),
            lease_ms: settings.lease,
            delay_ms: settings.delay,
            retention_ms: settings.retention,
            receive_wait_ms: settings.receive_wait,
            message_bytes_max: settings.message_bytes_max,
            in_flight_max: settings.in_flight_max,
            key_sequences_max: settings.key_sequences_max,
            sync_window: SyncWindow {
                after_ms: settings.sync_window.after,
                records: settings.sync_window.records,
            },
            dedup: Dedup {
                window_ms: settings.dedup.window,
                scope: settings.dedup.scope.into(),
                // Whoever knows the time says it.
                scope_pending_ms: None,
                content_based: settings.dedup.content_based,
                bytes_max: settings.dedup.bytes_max,
                survives_purge: settings.dedup.survives_purge,
            },
            dead_letter: settings.dead_letter.map(|dead_letter| DeadLetterView {
                queue: dead_letter.queue.to_string(),
                attempts_max: dead_letter.attempts_max,
            }),
            key_policy: settings.key_policy.map(Into::into),
            park_after: settings.park_after,
            key_profile: settings.key_profile.into(),
            quota: Quota {
                messages_max: limit(settings.quota.messages_max),
                bytes_max: limit(settings.quota.bytes_max),
            },
        }
    }
}

/// How many messages a purge removed.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Purged {
    /// What the queue held when it was emptied.
    pub(crate) messages: u64,
}
