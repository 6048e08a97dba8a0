//! What a producer may be told.

use std::{fmt, num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use lockgate_core::{Backoff, Key, Message, ProducerName, SinkCapabilities, pack};

/// When a send is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AnswerLevel {
    /// The record is in memory. A crash loses it, unless the spool had it by then.
    Accepted,
    /// The record is on disk: it survives `kill -9` and a power cut, and is delivered after a restart. Needs a spool.
    Durable,
    /// The sink has confirmed the record.
    #[default]
    Delivered,
}

/// What happens to a send that finds the buffer, or the part of its tenant, full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// It waits until there is room. A [`try_send`](crate::Producer::try_send) is refused.
    #[default]
    Block,
    /// It is refused.
    Reject,
    /// It is accepted and dropped.
    DropNewest,
    /// The oldest record that is not being sent is dropped for it.
    DropOldest,
    /// The oldest record of the lowest [priority](Message::priority) that is not being sent is dropped for it, if its own
    /// priority is higher; otherwise it is dropped itself.
    DropLowestPriority,
    /// One send of so many is kept, by dropping the oldest record that is not being sent; the others are dropped.
    Sample(NonZeroU32),
    /// It goes to the spool only, and comes back to memory when there is room. Needs a spool. Where a tenant has filled
    /// its part, it waits as with [`Block`](Self::Block).
    Spool,
}

/// What happens to a send that finds the spool, or its disk, full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenSpoolFull {
    /// It waits until there is room. A [`try_send`](crate::Producer::try_send) is refused.
    #[default]
    Block,
    /// It is refused.
    Reject,
    /// It is accepted and dropped.
    DropNewest,
    /// The records of the oldest file are dropped, durable ones too; those that are being sent, when the sink has not taken
    /// them. When none can be, or the disk gives the room back later, it waits as with [`Block`](Self::Block).
    /// Nothing is dropped for a spool that has failed, or that cannot open a file.
    /// A crash within about a second brings dropped records back, perhaps behind later ones of their key.
    DropOldest,
    /// It is kept in memory only, as far as there is room, and a crash loses it. A send of level
    /// [`Durable`](AnswerLevel::Durable) is refused.
    MemoryOnly,
}

impl WhenSpoolFull {
    /// Whether a send waits that finds no room.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Block | Self::DropOldest)
    }
}

/// When records are made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Persist {
    /// Each record at once; sends that come at the same time share one sync.
    #[default]
    Each,
    /// All that came within this time, together. A power cut loses at most so much of what was only
    /// [accepted](AnswerLevel::Accepted); `kill -9` loses what was not yet written, a few milliseconds.
    Every(Duration),
    /// So many records together, and every second what there is.
    Count(NonZeroU32),
    /// Only what finds no room in memory ([`WhenFull::Spool`]). A crash loses what is in memory.
    Overflow,
}

/// A spool: where records wait on disk.
#[derive(Clone, Debug)]
pub struct SpoolOptions {
    /// Its folder. It is made if it is missing, and belongs to one producer at a time.
    pub folder: PathBuf,
    /// When records are made durable. Default: [`Persist::Each`].
    pub persist: Persist,
    /// At most so many bytes of records, twice `file_bytes` or more; what files have beside them comes on top, about a
    /// twentieth, and one file that is made ready. A file goes when all of its records, and all of earlier files, are over; so a record
    /// that the sink will not take holds what came after it. Default: 1 GiB.
    pub bytes_max: u64,
    /// What happens to a send that finds the spool, or its disk, full. Default: [`WhenSpoolFull::Block`].
    pub when_full: WhenSpoolFull,
    /// So many bytes of the disk stay free. Default: 256 MiB.
    pub free_bytes_min: u64,
    /// Bytes of a file, from 64 KiB. Space comes back file by file. Default: 8 MiB.
    pub file_bytes: u32,
    /// The most records a second that are sent of those that an earlier run has left, so that a long backlog does not
    /// overrun the sink; after a time in which the sink took none, those of one second more. New records are not counted,
    /// and those of keys that have nothing in the backlog do not wait for it. `None`: as fast as all others. Default:
    /// `None`.
    ///
    /// New records that go to disk stay there until what is before them is over. So `bytes_max` must have room for what
    /// comes while the backlog is sent.
    pub replay_rate: Option<NonZeroU32>,
}

impl SpoolOptions {
    /// A spool in this folder, with the defaults.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            persist: Persist::default(),
            bytes_max: 1 << 30,
            when_full: WhenSpoolFull::default(),
            free_bytes_min: 256 << 20,
            file_bytes: 8 << 20,
            replay_rate: None,
        }
    }
}

/// Says whose a message is, where each tenant has a part of the buffer.
pub type TenantFn = dyn Fn(&Message) -> Option<Key> + Send + Sync;

/// The part of the buffer that one tenant may fill.
#[derive(Clone)]
pub struct Quota {
    /// Whose a message is. `None` of it: no quota counts it. It must be quick, and must not use the producer.
    pub tenant: Arc<TenantFn>,
    /// At most so many records of a tenant in memory; 1 or more.
    pub count_max: usize,
    /// At most so many bytes of a tenant in memory; 1 or more.
    pub bytes_max: u64,
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota")
            .field("count_max", &self.count_max)
            .field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

impl Quota {
    /// So many records and bytes for each key or group.
    #[must_use]
    pub fn per_key(count_max: usize, bytes_max: u64) -> Self {
        Self {
            tenant: Arc::new(|message| message.key.clone().or_else(|| message.group.clone())),
            count_max,
            bytes_max,
        }
    }
}

/// Several records in one message, for a sink that takes few messages, or for small records. A
/// [worker](lockgate_consumer::Worker) takes them apart by itself; who receives without one uses [`pack::unpack`].
///
/// Records go together if they follow each other in their lane, have the same key, group, priority and level, and have no
/// unique id, due time or time to live of their own. All of a pack have one message id. A pack that the sink refuses is
/// sent again as single records, and so is what a spool has of an earlier run.
///
/// Over a sink that knows no [records of producers](SinkCapabilities::producers), a pack whose answer is lost is sent
/// again as it was, with one unique id where the sink knows those; but a crash at that moment may make its records come
/// twice, within the window of unique ids too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackOptions {
    /// Records of a pack at most; 2 to [`pack::MESSAGES_MAX`]. Default: 256.
    pub count_max: usize,
    /// Bytes of its records at most, before they are compressed; 1 to [`pack::BYTES_MAX`], and what the sink takes in one
    /// message if that is less. No capability tells that a sink, such as Amazon SQS, carries packs in base64, which is a
    /// third larger: there choose less than three quarters of the largest message, or full packs that do not get smaller
    /// by compression are refused, and sent again as single records. Default: 64 KiB.
    pub bytes_max: u64,
    /// Whether packs are compressed (LZ4) where that saves a tenth or more. Default: yes.
    pub compress: bool,
}

impl Default for PackOptions {
    fn default() -> Self {
        Self {
            count_max: 256,
            bytes_max: 64 << 10,
            compress: true,
        }
    }
}

impl PackOptions {
    pub(crate) fn within(mut self, sink: &SinkCapabilities) -> Self {
        let message_max = sink.message_bytes_max.min(sink.batch_bytes_max);
        let room = message_max.saturating_sub(pack::HEADER_BYTES as u64);
        self.bytes_max = self.bytes_max.min(room);
        self
    }
}

/// How long a batch waits for more records before it is sent, when it is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linger {
    /// So long.
    Fixed(Duration),
    /// Not at all while nothing is being sent; else as long as batches take, shared by how many may be sent at the same
    /// time, and at most this. So an idle sink answers at once, and a busy one gets fuller batches.
    Adaptive(Duration),
}

/// What happens to a record of which nobody knows whether the sink has it, where the sink can recognise neither
/// [records of producers](lockgate_core::SinkCapabilities::producers) nor unique ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenUnknown {
    /// It is sent again, and may come twice.
    #[default]
    Resend,
    /// It is given up as [`DropReason::Unknown`](crate::DropReason::Unknown), and may be missing.
    GiveUp,
}

/// When a sink is left alone for a while (a *circuit breaker*). Batches of which the sink accepted or refused anything
/// count as successes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// After so many batches in a row that have failed, 1 or more. Default: 3.
    pub failures: u32,
    /// How long, and ever longer, until one batch is tried. Default: 500 ms, at most 30 s.
    pub open: Backoff,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            failures: 3,
            open: Backoff {
                first: 500,
                max: 30_000,
            },
        }
    }
}

/// How much of what is sent may be retries that fail, so that a sink which refuses some records is not asked for them
/// over and over (Marc Brooker, *Fixing retries with token buckets and circuit breakers*, 2022). A batch with a record
/// that was sent before takes a token; it gets it back if that succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// Tokens for each 100 batches that succeed. Default: 20.
    pub percent: u32,
    /// Tokens a second, whatever succeeds; 1 or more. Default: 10. So many seconds' worth may be saved: 10.
    pub per_second: u32,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            percent: 20,
            per_second: 10,
        }
    }
}

/// The options of a [`Producer`](crate::Producer).
#[derive(Clone, Debug)]
pub struct ProducerOptions {
    /// The producer's name at the sink, where the sink knows producers. With a spool the name is kept there, and one
    /// that is given must be the same. `None`: a random one. Two producers that run at the same time must not share it.
    pub name: Option<ProducerName>,
    /// The level of [`send`](crate::Producer::send). Default: [`AnswerLevel::Delivered`].
    pub level: AnswerLevel,
    /// Records in memory; 1 or more. Default: 65,536.
    pub buffer_count: usize,
    /// Bytes of records in memory: bodies, headers, and what the producer keeps beside them; 1 or more. Default: 64 MiB.
    pub buffer_bytes: u64,
    /// What happens when the buffer or a tenant's part of it is full. Default: [`WhenFull::Block`].
    pub when_full: WhenFull,
    /// The part of each tenant. Default: `None`.
    pub quota: Option<Quota>,
    /// Messages of a batch at most, 1 or more; the sink may take fewer. Default: 1,000.
    pub batch_count: usize,
    /// Bytes of a batch at most, 1 or more; the sink may take fewer. A larger message goes alone. Default: 1 MiB.
    pub batch_bytes: u64,
    /// Whether several records share a message. `None`: each is a message. Default: `None`.
    pub pack: Option<PackOptions>,
    /// How long a batch waits for more. Default: adaptive, at most 5 ms.
    pub linger: Linger,
    /// Batches that are being sent at the same time, 1 or more. Default: 4.
    pub batches_in_flight: usize,
    /// How long a batch may take; then it is unknown what became of it, and it is tried again. More than 0. Default:
    /// 30 s.
    pub send_timeout: Duration,
    /// How long a record may wait for the sink, from when it was accepted; then it is dropped. `None`: for ever. A send
    /// may have a [deadline](crate::Send::within) of its own. Default: `None`.
    pub deliver_within: Option<Duration>,
    /// The waits of a record that the sink could not take. Default: 100 ms, at most 30 s.
    pub backoff: Backoff,
    /// When the sink is left alone.
    pub breaker: Breaker,
    /// How much retries may fail.
    pub retry_budget: RetryBudget,
    /// What happens where it is not known whether the sink has a record. Default: [`WhenUnknown::Resend`].
    pub when_unknown: WhenUnknown,
    /// Where records wait on disk. `None`: nowhere. Default: `None`.
    pub spool: Option<SpoolOptions>,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            name: None,
            level: AnswerLevel::default(),
            buffer_count: 1 << 16,
            buffer_bytes: 64 << 20,
            when_full: WhenFull::default(),
            quota: None,
            batch_count: 1_000,
            batch_bytes: 1 << 20,
            pack: None,
            linger: Linger::Adaptive(Duration::from_millis(5)),
            batches_in_flight: 4,
            send_timeout: Duration::from_secs(30),
            deliver_within: None,
            backoff: Backoff {
                first: 100,
                max: 30_000,
            },
            breaker: Breaker::default(),
            retry_budget: RetryBudget::default(),
            when_unknown: WhenUnknown::default(),
            spool: None,
        }
    }
}

/// An option that is out of range, or needs another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// It must be more than zero.
    #[error("{option} is zero, and must be more")]
    Zero {
        /// Its name.
        option: &'static str,
    },
    /// It needs a spool.
    #[error("{option} needs a spool: set `spool`")]
    NeedsSpool {
        /// Its name and value.
        option: &'static str,
    },
    /// Files of the spool are too small.
    #[error("file_bytes is {given}, and must be at least {min}")]
    FileBytes {
        /// What was given.
        given: u32,
        /// The least.
        min: u32,
    },
    /// A pack has other bounds.
    #[error("{option} is {given}, and must be {min} to {max}")]
    Range {
        /// Its name.
        option: &'static str,
        /// What was given.
        given: u64,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// The sink carries no content types, by which a consumer knows a pack.
    #[error("pack needs a sink that carries content types, and this one does not")]
    NoPacks,
    /// The sink looks at each message to see where it goes.
    #[error("pack needs a sink that does not route messages: an exchange looks at each one")]
    Routes,
    /// A spool has room for at least two files, because the last one never goes.
    #[error("the spool's bytes_max is {given}, and must be at least {min}, twice its file_bytes")]
    SpoolBytes {
        /// What was given.
        given: u64,
        /// The least.
        min: u64,
    },
}

/// The smallest [`SpoolOptions::file_bytes`].
const FILE_BYTES_MIN: u32 = 64 << 10;

impl ProducerOptions {
    /// Whether they fit, and fit the sink.
    pub(crate) fn check(&self, sink: &SinkCapabilities) -> Result<(), OptionsError> {
        let zero = |it: bool, option| it.then_some(OptionsError::Zero { option });
        let quota = self.quota.as_ref();
        let wrong = [
            zero(self.buffer_count == 0, "buffer_count"),
            zero(self.buffer_bytes == 0, "buffer_bytes"),
            zero(quota.is_some_and(|it| it.count_max == 0), "quota.count_max"),
            zero(quota.is_some_and(|it| it.bytes_max == 0), "quota.bytes_max"),
            zero(self.batch_count == 0, "batch_count"),
            zero(self.batch_bytes == 0, "batch_bytes"),
            zero(self.batches_in_flight == 0, "batches_in_flight"),
            zero(self.send_timeout.is_zero(), "send_timeout"),
            zero(self.breaker.failures == 0, "breaker.failures"),
            zero(self.retry_budget.per_second == 0, "retry_budget.per_second"),
            zero(
                self.deliver_within.is_some_and(|it| it.is_zero()),
                "deliver_within",
            ),
        ];
        if let Some(wrong) = wrong.into_iter().flatten().next() {
            return Err(wrong);
        }
        if let Some(pack) = &self.pack {
            let of = |option, given, min, max| match (min..=max).contains(&given) {
                true => Ok(()),
                false => Err(OptionsError::Range {
                    option,
                    given,
                    min,
                    max,
                }),
            };
            let (count, bytes) = (pack::MESSAGES_MAX as u64, pack::BYTES_MAX as u64);
            of("pack.count_max", pack.count_max as u64, 2, count)?;
            of("pack.bytes_max", pack.bytes_max, 1, bytes)?;
            if !sink.headers {
                return Err(OptionsError::NoPacks);
            }
            if sink.routes {
                return Err(OptionsError::Routes);
            }
        }
        let Some(spool) = &self.spool else {
            let needs = |option| Err(OptionsError::NeedsSpool { option });
            return match (self.when_full, self.level) {
                (WhenFull::Spool, _) => needs("when_full = Spool"),
                (_, AnswerLevel::Durable) => needs("level = Durable"),
                _ => Ok(()),
            };
        };
        if matches!(spool.persist, Persist::Every(every) if every.is_zero()) {
            return Err(OptionsError::Zero {
                option: "spool.persist = Every",
            });
        }
        if spool.file_bytes < FILE_BYTES_MIN {
            return Err(OptionsError::FileBytes {
                given: spool.file_bytes,
                min: FILE_BYTES_MIN,
            });
        }
        let min = 2 * u64::from(spool.file_bytes);
        if spool.bytes_max < min {
            return Err(OptionsError::SpoolBytes {
                given: spool.bytes_max,
                min,
            });
        }
        Ok(())
    }
}
