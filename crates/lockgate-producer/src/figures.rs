//! What a producer counts.

use std::{
    fmt::{self, Write as _},
    time::Duration,
};

/// Why a record that was accepted is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum DropReason {
    /// There was no room for it.
    #[error("there was no room, and what comes last is dropped")]
    Newest,
    /// A later one needed its room.
    #[error("a later record needed its room")]
    Oldest,
    /// One of a higher priority needed its room.
    #[error("there was room for records of a higher priority only")]
    LowestPriority,
    /// There was no room, and it was not one of those that are kept.
    #[error("there was no room, and it was not one of the sample")]
    Sampled,
    /// Its time was over.
    #[error("its time was over before the sink confirmed it")]
    Expired,
    /// What became of it at the sink is unknown, and it is [not sent again](crate::WhenUnknown::GiveUp).
    #[error("the sink may have it or not, and it is not sent again")]
    Unknown,
    /// The sink can never take it.
    #[error("the sink refused it")]
    Refused,
    /// The producer was closed, and the record was in memory only. Who waits for one that is in the spool is told the
    /// same, and it is delivered by the next producer that opens the spool.
    #[error(
        "the producer was closed before the sink took it; what a spool has is sent when it is opened again"
    )]
    Closed,
    /// Another has taken over, so nothing is sent any more: see [`Producer::fenced`](crate::Producer::fenced). What a spool
    /// has stays there.
    #[error("another has taken over; what a spool has is sent when it is opened again")]
    Fenced,
    /// The disk of the spool has no room for it, or opens no file. It is still sent as long as this process lives, and written when there is
    /// room.
    #[error("the disk of the spool is full, or opens no file, so the record is in memory only")]
    SpoolFull,
    /// The spool could not write or sync it. It is still sent as long as this process lives.
    #[error("the spool has failed, so the record is in memory only")]
    SpoolFailed,
    /// The spool's file was damaged.
    #[error("its bytes in the spool are damaged")]
    Unreadable,
}

impl DropReason {
    /// Every reason for which records are dropped.
    pub const ALL: [Self; 9] = [
        Self::Newest,
        Self::Oldest,
        Self::LowestPriority,
        Self::Sampled,
        Self::Expired,
        Self::Unknown,
        Self::Refused,
        Self::Closed,
        Self::Unreadable,
    ];

    /// Its word in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Oldest => "oldest",
            Self::LowestPriority => "lowest_priority",
            Self::Sampled => "sampled",
            Self::Expired => "expired",
            Self::Unknown => "unknown",
            Self::Refused => "refused",
            Self::Closed => "closed",
            Self::Fenced => "fenced",
            Self::SpoolFull => "spool_full",
            Self::SpoolFailed => "spool_failed",
            Self::Unreadable => "unreadable",
        }
    }
}

/// What a producer has counted since it was opened, and what it holds now. Always holds:
/// `accepted + recovered = delivered + dropped + pending`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Records that were accepted, those included that a policy dropped at once.
    pub accepted: u64,
    /// Records that an earlier run has left in the spool.
    pub recovered: u64,
    /// Records that the sink has confirmed.
    pub delivered: u64,
    /// Those among them that the sink knew already.
    pub duplicates: u64,
    /// By the place of the reason in [`DropReason::ALL`].
    pub(crate) dropped: [u64; DropReason::ALL.len()],
    /// Those among the dropped records that the sink may have all the same.
    pub dropped_uncertain: u64,
    /// Records that are neither delivered nor dropped.
    pub pending: u64,
    /// Sends that were not accepted.
    pub refused: u64,
    /// Batches that were sent, and the records in them, repeats included.
    pub batches: u64,
    /// Records in the batches that were sent, repeats included.
    pub sent: u64,
    /// Messages that were sent with several records in them, repeats included.
    pub packs: u64,
    /// Batches of which the sink took nothing.
    pub failed_batches: u64,
    /// Records that went back to be sent again.
    pub retries: u64,
    /// Times that it was unknown whether a sink has a record which it cannot recognise.
    pub uncertain: u64,
    /// Records in memory, and their bytes.
    pub memory_count: u64,
    /// Bytes of the records in memory, with what the producer keeps beside them.
    pub memory_bytes: u64,
    /// Records that are being sent.
    pub in_flight: u64,
    /// Records that are on disk only.
    pub spool_count: u64,
    /// Bytes of the spool's files.
    pub spool_bytes: u64,
    /// Times that the disk of the spool had no room.
    pub spool_full: u64,
    /// Whether the spool has failed, so that it takes nothing before the producer is opened again.
    pub spool_failed: bool,
    /// Whether the sink is left alone because batches failed.
    pub breaker_open: bool,
    /// Lanes or keys that wait because the sink could not take one of their records.
    pub delayed_lanes: u64,
    /// Whether another has taken over, so that nothing is sent any more.
    pub fenced: bool,
    /// How long batches take, in milliseconds: an average over about the last eight.
    pub batch_millis: u64,
    /// How long batches took in all until they were answered, those on their way included; counted in milliseconds.
    pub sending: Duration,
    /// Batches that are on their way at the same time at most.
    pub batches_in_flight_max: u64,
}

impl Figures {
    pub(crate) fn drop(&mut self, reason: DropReason) {
        let at = DropReason::ALL.iter().position(|it| *it == reason);
        if let Some(count) = at.and_then(|at| self.dropped.get_mut(at)) {
            *count += 1;
        }
    }

    /// How many records were dropped for that reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        let at = DropReason::ALL.iter().position(|it| *it == reason);
        at.and_then(|at| self.dropped.get(at))
            .copied()
            .unwrap_or_default()
    }

    /// How many records were dropped.
    #[must_use]
    pub fn dropped_all(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// The figures in the text format of Prometheus, each with the label `producer`.
    ///
    /// ```
    /// let text = lockgate_producer::Figures::default().prometheus("billing");
    /// assert!(text.contains("lockgate_producer_accepted_total{producer=\"billing\"} 0\n"));
    /// ```
    #[must_use]
    pub fn prometheus(&self, producer: &str) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(producer, &mut text);
        text
    }

    fn write(&self, producer: &str, to: &mut String) -> fmt::Result {
        let counters = [
            ("accepted", "Records accepted.", self.accepted),
            (
                "recovered",
                "Records that an earlier run has left in the spool.",
                self.recovered,
            ),
            (
                "delivered",
                "Records that the sink has confirmed.",
                self.delivered,
            ),
            (
                "duplicates",
                "Records among them that the sink knew.",
                self.duplicates,
            ),
            ("refused", "Sends that were not accepted.", self.refused),
            ("batches", "Batches sent.", self.batches),
            (
                "sent",
                "Records in the batches sent, repeats included.",
                self.sent,
            ),
            (
                "packs",
                "Messages sent with several records in them, repeats included.",
                self.packs,
            ),
            (
                "failed_batches",
                "Batches of which the sink took nothing.",
                self.failed_batches,
            ),
            ("retries", "Records to be sent again.", self.retries),
            (
                "uncertain",
                "Times that nobody knew whether a sink has a record that it cannot recognise.",
                self.uncertain,
            ),
            (
                "dropped_uncertain",
                "Dropped records that the sink may have all the same.",
                self.dropped_uncertain,
            ),
            (
                "spool_full",
                "Times that the spool's disk had no room.",
                self.spool_full,
            ),
        ];
        for (name, help, value) in counters {
            let name = format!("lockgate_producer_{name}_total");
            to.push_str(&metric(&name, help, "counter", producer, value));
        }
        to.push_str(&metric(
            "lockgate_producer_sending_seconds_total",
            "Seconds that batches took until they were answered, together.",
            "counter",
            producer,
            self.sending.as_secs_f64(),
        ));
        let label = escaped(producer);
        let name = "lockgate_producer_dropped_total";
        writeln!(to, "# HELP {name} Records dropped, by reason.")?;
        writeln!(to, "# TYPE {name} counter")?;
        for reason in DropReason::ALL {
            let (reason, count) = (reason.name(), self.dropped(reason));
            writeln!(
                to,
                "{name}{{producer=\"{label}\",reason=\"{reason}\"}} {count}"
            )?;
        }
        let gauges = [
            (
                "pending",
                "Records neither delivered nor dropped.",
                self.pending,
            ),
            ("memory_records", "Records in memory.", self.memory_count),
            (
                "memory_bytes",
                "Bytes of the records in memory.",
                self.memory_bytes,
            ),
            ("in_flight", "Records being sent.", self.in_flight),
            (
                "spool_records",
                "Records that are on disk only.",
                self.spool_count,
            ),
            (
                "spool_bytes",
                "Bytes of the spool's files.",
                self.spool_bytes,
            ),
            (
                "spool_failed",
                "1 if the spool has failed, and takes nothing before another start.",
                self.spool_failed.into(),
            ),
            (
                "breaker_open",
                "1 while the sink is left alone because batches failed.",
                self.breaker_open.into(),
            ),
            (
                "delayed_lanes",
                "Lanes or keys that wait because the sink could not take a record of theirs.",
                self.delayed_lanes,
            ),
            ("fenced", "1 if another has taken over.", self.fenced.into()),
            (
                "batches_in_flight_max",
                "Batches on their way at the same time at most.",
                self.batches_in_flight_max,
            ),
        ];
        for (name, help, value) in gauges {
            let name = format!("lockgate_producer_{name}");
            to.push_str(&metric(&name, help, "gauge", producer, value));
        }
        Ok(())
    }
}

/// A metric in the text format of Prometheus, with what it is.
pub(crate) fn metric(
    name: &str,
    help: &str,
    kind: &str,
    producer: &str,
    value: impl fmt::Display,
) -> String {
    let label = escaped(producer);
    format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{producer=\"{label}\"}} {value}\n")
}

fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
