//! What a run did, in numbers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    Fault, FileSystem,
    checker::{Problem, Promise, Report},
};

/// Figures of one episode, or of several of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    pub fault: Fault,
    /// Where it struck; `None`: on whatever holds the temporary files.
    pub file_system: Option<FileSystem>,
    /// How many episodes these are: each has its own data folder, history and verdict.
    pub episodes: u64,
    pub injected: u64,
    /// Faults that met a server with work under way whose outcome they could change.
    pub effective: u64,
    /// Servers killed with SIGKILL.
    pub kills: u64,
    /// Ends of a server, by kill or by cut, that left a snapshot half written.
    #[serde(default)]
    pub in_snapshot: u64,
    /// Messages whose send was acknowledged.
    pub sent: u64,
    pub delivered: u64,
    /// Messages whose ack was acknowledged.
    pub acked: u64,
    /// Deliveries beyond the first of their message.
    pub duplicates: u64,
    /// Requests nobody was told the outcome of.
    pub unknown: u64,
    pub refused: u64,
    pub lost: u64,
    pub undone: u64,
    /// Messages out of the order of their key.
    pub reordered: u64,
    /// Times that a key had two holders.
    pub two_in_flight: u64,
    /// Other broken promises.
    pub other: u64,
    /// The longest time from a start to the first answer, in milliseconds.
    pub recovery_ms_max: u64,
    /// The most memory a server used, in bytes.
    pub memory_bytes_max: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Seeds of the episodes that failed.
    pub failed_seeds: Vec<u64>,
    /// What was wrong, in words; the first of them.
    pub problems: Vec<String>,
}

/// So many problems are told in words.
const PROBLEMS_MAX: usize = 50;

impl Figures {
    /// Adds those of another run of the same kind.
    pub fn merge(&mut self, other: &Self) {
        self.episodes += other.episodes;
        self.injected += other.injected;
        self.effective += other.effective;
        self.kills += other.kills;
        self.in_snapshot += other.in_snapshot;
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.acked += other.acked;
        self.duplicates += other.duplicates;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.lost += other.lost;
        self.undone += other.undone;
        self.reordered += other.reordered;
        self.two_in_flight += other.two_in_flight;
        self.other += other.other;
        self.recovery_ms_max = self.recovery_ms_max.max(other.recovery_ms_max);
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
        self.seconds += other.seconds;
        self.failed_seeds.extend(&other.failed_seeds);
        self.problems.extend(other.problems.iter().cloned());
        self.problems.truncate(PROBLEMS_MAX);
    }

    /// Whether every promise was kept, and the run came to its end.
    pub fn good(&self) -> bool {
        self.failed_seeds.is_empty()
    }

    pub(crate) fn judged(&mut self, report: &Report) {
        self.sent = report.sent as u64;
        self.delivered = report.delivered as u64;
        self.acked = report.acked as u64;
        self.duplicates = report.duplicates as u64;
        self.unknown = report.unknown as u64;
        self.refused = report.refused as u64;
        for problem in &report.problems {
            self.broken(problem);
        }
    }

    pub(crate) fn broken(&mut self, problem: &Problem) {
        *match problem.broken {
            Promise::Kept => &mut self.lost,
            Promise::Acked => &mut self.undone,
            Promise::Ordered => &mut self.reordered,
            Promise::OneHolder => &mut self.two_in_flight,
            _ => &mut self.other,
        } += 1;
        self.wrong(problem.to_string());
    }

    pub(crate) fn wrong(&mut self, text: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text);
        }
    }

    pub(crate) fn recovered_within(&mut self, time: Duration) {
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.recovery_ms_max = self.recovery_ms_max.max(time);
    }
}
