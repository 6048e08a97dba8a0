//! What the shard wrote, as seen between it and its log, and what must be left of it.

use std::sync::{Arc, Mutex, MutexGuard};

use lockgate_core::{DamagedRange, LogRecord, Position, RecoveryReport};
use lockgate_machine::{Effects, Machine, MachineLimits, decode_record};

use crate::Violation;

/// Shared by the world and the log of the current life.
#[derive(Default)]
pub(crate) struct Witness {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Clone, Default)]
pub(crate) struct Seen {
    /// Every record that was appended and not lost, in order. State is what folding them gives.
    pub(crate) records: Vec<LogRecord>,
    /// Records that start before it must be found by the next recovery.
    pub(crate) promised: Position,
    /// The same, as long as the power does not go before that recovery is done.
    cached: Position,
    /// Behind the last append that was answered.
    pub(crate) appended: Position,
    /// Bytes were damaged: what is lost must be told, and need not be there.
    pub(crate) damaged: bool,
    /// The last recovery began before what the log was trimmed to: with a snapshot that is of no use
    /// any more.
    pub(crate) is_useless: bool,
    /// Records that a recovery did not find among others, which were damaged then. A read that goes
    /// wrong once may find them the next time.
    set_aside: Vec<LogRecord>,
    /// What the last recovery handed over, until it is judged.
    recovered: Option<Recovered>,
}

#[derive(Clone)]
struct Recovered {
    from: Position,
    records: Vec<LogRecord>,
    report: RecoveryReport,
    /// Records there were before it; what was appended since comes behind.
    known: usize,
    /// What had been promised before it.
    promised: Position,
}

impl Witness {
    pub(crate) fn share(&self) -> Self {
        Self {
            seen: self.seen.clone(),
        }
    }

    /// One of its own, for another future of the same past.
    pub(crate) fn fork(&self) -> Self {
        Self {
            seen: Arc::new(Mutex::new(self.lock().clone())),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Judges what the last recovery handed over, once it is known what the disk did to it.
    pub(crate) fn verdict(&self) -> Result<(), Violation> {
        self.lock().judge()
    }

    /// The state that the records give.
    pub(crate) fn folded(&self) -> Machine {
        let seen = self.lock();
        let mut machine = Machine::new(MachineLimits::default());
        for record in &seen.records {
            machine.fold(&effects(record), record.position);
        }
        machine
    }
}

impl Seen {
    /// A group was given to the log; whether it is there is known if `answered`.
    pub(crate) fn appended(&mut self, records: Vec<LogRecord>, tail: Position, answered: bool) {
        self.records.extend(records);
        if answered {
            self.appended = tail;
        }
    }

    pub(crate) fn synced(&mut self, up_to: Position) {
        self.promised = self.promised.max(up_to);
    }

    /// The process dies and the system lives, so that what was written is there; or the system dies
    /// with it.
    pub(crate) fn died(&mut self, system_lives: bool) {
        if !system_lives {
            self.appended = self.promised;
        }
        self.cached = self.appended;
    }

    /// A recovery handed this over.
    pub(crate) fn recovered(
        &mut self,
        from: Position,
        records: Vec<LogRecord>,
        report: RecoveryReport,
    ) {
        self.recovered = Some(Recovered {
            from,
            records,
            report,
            known: self.records.len(),
            promised: self.promised.max(self.cached),
        });
    }

    fn judge(&mut self) -> Result<(), Violation> {
        let Some(recovered) = self.recovered.take() else {
            return Ok(());
        };
        let since = self.records.split_off(recovered.known);
        self.check_recovered(&recovered)?;
        self.records.extend(since);
        Ok(())
    }

    /// Holds what recovery handed over against what was appended.
    fn check_recovered(&mut self, recovered: &Recovered) -> Result<(), Violation> {
        let Recovered {
            from,
            records: visited,
            report,
            promised,
            ..
        } = recovered;
        let from = *from;
        self.is_useless = from < report.trimmed;
        if self.is_useless {
            return Ok(());
        }
        let first = self
            .records
            .partition_point(|record| record.position < from);
        if self.damaged {
            return self.check_damaged(first, visited, report);
        }
        let expected = &self.records[first..];
        let found = expected.iter().zip(visited).take_while(|(a, b)| a == b);
        let found = found.count();
        if found < visited.len() {
            return Err(format!(
                "{} is not what was appended there, or not next",
                visited[found].position
            ));
        }
        if !report.damaged.is_empty() {
            return Err(format!("nothing was damaged: {report:?}"));
        }
        if let Some(lost) = expected[found..]
            .iter()
            .find(|record| record.position < *promised)
        {
            return Err(format!(
                "the record at {} is lost, {promised} was promised",
                lost.position
            ));
        }
        self.records.truncate(first + found);
        Ok(())
    }

    /// What is there was there before, and what is missing between was told: by the range it was in,
    /// or by the number of records that are.
    fn check_damaged(
        &mut self,
        first: usize,
        visited: &[LogRecord],
        report: &RecoveryReport,
    ) -> Result<(), Violation> {
        let last = visited.last().map(|record| record.position);
        let (mut missing, mut untold) = (0, 0);
        let known = self.records.split_off(first);
        for record in &known {
            let found = visited.binary_search_by_key(&record.position, |other| other.position);
            match found {
                Ok(at) if visited[at] != *record => {
                    return Err(format!("{} is not what was appended", record.position));
                }
                Ok(_) => {}
                Err(_) => {
                    let told =
                        |range: &DamagedRange| (range.from..range.to).contains(&record.position);
                    let is_told = report.damaged.iter().any(told);
                    if Some(record.position) < last {
                        missing += 1;
                        untold += u64::from(!is_told);
                    }
                    self.set_aside.push(record.clone());
                }
            }
        }
        let from_nowhere = visited
            .iter()
            .find(|record| !known.contains(record) && !self.set_aside.contains(record));
        if let Some(record) = from_nowhere {
            return Err(format!("{} was never appended", record.position));
        }
        self.records.extend_from_slice(visited);
        if untold > 0 && missing > report.records_lost() {
            return Err(format!(
                "{missing} records are missing and not told, the last of them at {:?}: {report:?}",
                self.set_aside.last().map(|record| record.position)
            ));
        }
        Ok(())
    }
}

pub(crate) fn effects(record: &LogRecord) -> Effects {
    decode_record(&record.payload).expect("the shard wrote it")
}
