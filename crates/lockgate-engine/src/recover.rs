//! From a log to a driver in service.

use std::time::Instant;

use lockgate_core::{
    BootId, Incarnation, Log, LogRecord, MachineTime, Millis, Now, Position, Term, WallTime,
    with_sources,
};
use lockgate_machine::{
    Answer, ClockState, Command, DecodeError, Effect, Machine, MachineLimits, Query, decode_record,
};

use crate::{Driver, EngineOptions, StartError, StartReport, Ticket};

/// What a start brings along: readings of the clock, and randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The wall clock's reading.
    pub wall: WallTime,
    /// Time since boot.
    pub since_boot: Millis,
    /// Which boot.
    pub boot_id: BootId,
    /// Drawn for this start.
    pub incarnation: Incarnation,
    /// Drawn for this start; the shard keeps the first it was given.
    pub secret: [u8; 32],
}

impl<T: Ticket> Driver<T> {
    /// Recovers the shard that `log` holds and begins a new term, synced before this returns.
    ///
    /// Recovering is nothing but folding all records again: what was ever decided is there, and
    /// nothing is decided anew.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn recover(
        mut log: Box<dyn Log>,
        options: &EngineOptions,
        beginning: Beginning,
    ) -> Result<(Self, StartReport), StartError> {
        let started = Instant::now();
        let limits = MachineLimits {
            log_level: log.capabilities().sync_level,
            ..MachineLimits::default()
        };
        let mut machine = Machine::new(limits);
        let mut folding = Folding::default();
        let recovered = log
            .recover(Position(0), &mut |record| {
                folding.fold(&mut machine, record)
            })
            .map_err(StartError::Recover)?;
        if let Some((at, reason)) = folding.newer {
            return Err(StartError::NewerFormat { at, reason });
        }
        let term = Term {
            epoch: recovered.epoch.max(machine.term().epoch).next(),
            incarnation: beginning.incarnation,
        };
        log.begin_epoch(term.epoch).map_err(StartError::BeginTerm)?;

        let clock_offset = clock_offset(machine.clock_state(), &beginning);
        let now = Now {
            wall: beginning.wall,
            machine: machine_time(clock_offset, beginning.since_boot),
        };
        let mut driver = Self::new(machine, log, term.epoch, clock_offset, options);
        let start = Command::StartTerm {
            term,
            boot_id: beginning.boot_id,
            clock_offset,
            secret: beginning.secret,
        };
        driver.begin(&start, now)?;
        // Also for what was recovered: after a mere kill it may be in the system's cache only.
        let durable = driver.log.syncer().sync().map_err(StartError::Sync)?;
        driver.reached(durable);

        let mut report = StartReport {
            term,
            records: recovered.records,
            bytes: recovered.bytes,
            damaged: recovered.damaged,
            undecodable: folding.undecodable,
            tail_bytes_cut: recovered.tail_bytes_cut,
            crashed: recovered.records > 0 && !folding.ended,
            ..StartReport::default()
        };
        driver.for_each_queue(now, |queue| {
            let counts = &queue.counts;
            report.queues += 1;
            report.messages += counts.ready + counts.in_flight + counts.delayed;
            report.possibly_lost += queue.totals.possibly_lost;
        });
        report.duration = started.elapsed();
        Ok((driver, report))
    }

    /// Machine time minus time since boot, for this term.
    #[must_use]
    pub fn clock_offset(&self) -> i64 {
        self.clock_offset
    }

    /// The machine time of this term at `since_boot`.
    #[must_use]
    pub fn machine_time(&self, since_boot: Millis) -> MachineTime {
        machine_time(self.clock_offset, since_boot)
    }

    /// Visits all queues, a page at a time.
    pub(crate) fn for_each_queue(
        &self,
        now: Now,
        mut visit: impl FnMut(lockgate_machine::QueueDescription),
    ) {
        let mut after = None;
        loop {
            let page = Query::Queues {
                prefix: String::new(),
                after: after.take(),
                limit: 1_000,
            };
            let Ok(Answer::Queues { queues, more }) = self.machine.query(&page, now) else {
                return;
            };
            after = queues.last().map(|queue| queue.name.clone());
            queues.into_iter().for_each(&mut visit);
            if !more || after.is_none() {
                return;
            }
        }
    }
}

pub(crate) fn machine_time(offset: i64, since_boot: Millis) -> MachineTime {
    MachineTime(since_boot.saturating_add_signed(offset))
}

/// Within one boot machine time goes on as if nothing had been, so that a lease runs on while the
/// process is down. After a reboot nobody knows how long it was: machine time goes on from the last
/// logged instant, which makes leases last longer than promised, never shorter.
fn clock_offset(last: ClockState, beginning: &Beginning) -> i64 {
    let kept = machine_time(last.clock_offset, beginning.since_boot);
    if last.boot_id == beginning.boot_id && kept >= last.now.machine {
        last.clock_offset
    } else {
        last.now
            .machine
            .0
            .wrapping_sub(beginning.since_boot)
            .cast_signed()
    }
}

/// Folds records, and remembers which could not be read.
#[derive(Default)]
struct Folding {
    undecodable: u64,
    /// The last record ends a term in good order.
    ended: bool,
    newer: Option<(Position, String)>,
}

impl Folding {
    fn fold(&mut self, machine: &mut Machine, record: LogRecord) {
        self.ended = false;
        match decode_record(&record.payload) {
            Ok(effects) => {
                self.ended = matches!(effects[..], [Effect::TermEnded { .. }]);
                machine.fold(&effects, record.position);
            }
            Err(error @ DecodeError::NewerFormat { .. }) => {
                self.newer
                    .get_or_insert_with(|| (record.position, with_sources(&error)));
            }
            // Its checksum is good, so it was written like this: by a fault of ours or of memory.
            // Stopping here would hold everything else hostage.
            Err(error) => {
                self.undecodable += 1;
                tracing::error!(
                    position = record.position.0,
                    error = &error as &dyn std::error::Error,
                    "skipped a record that makes no sense"
                );
            }
        }
    }
}
