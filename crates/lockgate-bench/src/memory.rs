//! `memory.*`: the machine's memory per message, at the worst moment.
//!
//! With the feature `count-memory`, an allocator counts every allocated byte. Without it, the
//! figure is what the machine's tables report plus the texts of keys.

use std::time::Duration;

use anyhow::anyhow;
use lockgate_core::{
    BootId, Epoch, HolderName, Incarnation, Key, MachineTime, Message, Now, Position, QueueName,
    ShardId, Term, UniqueId, WallTime,
};
use lockgate_machine::{
    AnyCommand, Command, CreateQueue, EngineCommand, Machine, MachineLimits, QueueSettings,
    Receive, SendMessage,
};
use serde_json::json;

use crate::{
    Course, Courses, Setup,
    load::as_f64,
    queue::params,
    report::{Params, Report},
};

#[cfg(feature = "count-memory")]
#[global_allocator]
static COUNTING: &stats_alloc::StatsAlloc<std::alloc::System> = &stats_alloc::INSTRUMENTED_SYSTEM;

/// Messages at scale 1; the memory of one does not depend on it.
const MESSAGES: u32 = 1_000_000;

/// Messages of each key, in the kinds with several.
const PER_KEY: u64 = 10;

/// The limit for a key, including its bytes.
const KEY_BYTES: u64 = 200;

/// How often the memory is measured while the second half of the messages comes, during which each
/// table grows.
const LOOKS: u64 = 2_000;

/// The constant wall time.
const START: u64 = 1_700_000_000_000;

/// How far delayed messages reach.
const YEAR_MS: u64 = 365 * 86_400_000;

/// What a message has besides itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unkeyed,
    Keyed,
    Key,
    UniqueId,
    InFlight,
    Delayed,
}

/// The figure, its kind, and the limit of bytes per message.
const KINDS: [(&str, Kind, f64); 6] = [
    ("memory.unkeyed", Kind::Unkeyed, 64.0),
    ("memory.keyed", Kind::Keyed, 96.0),
    ("memory.key", Kind::Key, 96.0 + 200.0),
    ("memory.unique_id", Kind::UniqueId, 128.0),
    ("memory.in_flight", Kind::InFlight, 128.0),
    ("memory.delayed", Kind::Delayed, 128.0),
];

struct MemoryCourse {
    params: Params,
    messages: u64,
    measured: bool,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    // Below some size, fixed parts of the machine would show.
    let messages = setup.scaled(MESSAGES).max(50_000);
    let mut params = Params {
        size: 1,
        keys: 0,
        ..params(setup, 1, 1)
    };
    params.more.insert("messages", json!(messages));
    let counted = if cfg!(feature = "count-memory") {
        "allocator"
    } else {
        "tables"
    };
    params.more.insert("counted_by", json!(counted));
    Ok(vec![Box::new(MemoryCourse {
        params,
        messages,
        measured: false,
    })])
}

impl Course for MemoryCourse {
    fn round(
        &mut self,
        _setup: &Setup,
        _time: Duration,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        // Counts are the same in every round, so the warm-up round is enough.
        if !std::mem::replace(&mut self.measured, true) {
            return Ok(());
        }
        for (figure, kind, at_most) in KINDS {
            let value = worst(kind, self.messages)?;
            report.quantity(figure, &self.params, value, "bytes/message", Some(at_most));
        }
        Ok(())
    }

    fn close(self: Box<Self>, _setup: &Setup) {}
}

/// The most bytes per message while the second half of them comes.
fn worst(kind: Kind, messages: u64) -> anyhow::Result<f64> {
    let before = allocated();
    let mut shard = Shard::new(kind)?;
    let mut worst = 0.0_f64;
    for number in 1..=messages {
        shard.add(number)?;
        if number > messages / 2 && number.is_multiple_of((messages / 2 / LOOKS).max(1)) {
            let keys = shard.keys(number);
            let bytes = match (before, allocated()) {
                (Some(before), Some(now)) => now.saturating_sub(before) as u64,
                // A text has two counters, in steps of sixteen bytes.
                _ => shard.machine.heap_bytes() as u64 + keys * 48,
            };
            let allowed = match kind {
                Kind::Keyed => keys * KEY_BYTES,
                _ => 0,
            };
            worst = worst.max(as_f64(bytes.saturating_sub(allowed)) / as_f64(number));
        }
    }
    Ok(worst)
}

/// Allocated bytes, if they are counted.
pub(crate) fn allocated() -> Option<usize> {
    #[cfg(feature = "count-memory")]
    return {
        let stats = COUNTING.stats();
        Some(
            stats
                .bytes_allocated
                .saturating_sub(stats.bytes_deallocated),
        )
    };
    #[cfg(not(feature = "count-memory"))]
    None
}

/// How often memory was allocated, or made larger or smaller, if that is counted.
pub(crate) fn allocations() -> Option<usize> {
    #[cfg(feature = "count-memory")]
    return {
        let stats = COUNTING.stats();
        Some(stats.allocations + stats.reallocations)
    };
    #[cfg(not(feature = "count-memory"))]
    None
}

/// A machine with one queue; its log is a position that counts.
struct Shard {
    kind: Kind,
    machine: Machine,
    queue: QueueName,
    position: u64,
}

impl Shard {
    fn new(kind: Kind) -> anyhow::Result<Self> {
        let mut shard = Self {
            kind,
            machine: Machine::new(MachineLimits::default()),
            queue: QueueName::new("bench").expect("letters"),
            position: 0,
        };
        shard.give(&EngineCommand::StartTerm {
            term: Term {
                shard: ShardId::default(),
                epoch: Epoch(1),
                incarnation: Incarnation(1),
            },
            boot_id: BootId([1; 16]),
            clock_offset: 0,
            secret: [1; 32],
        })?;
        let usual = QueueSettings::default();
        shard
            .give(&Command::CreateQueue(Box::new(CreateQueue {
                name: shard.queue.clone(),
                settings: QueueSettings {
                    keyed: matches!(kind, Kind::Keyed | Kind::Key),
                    in_flight_max: u32::MAX,
                    // No limit in practice.
                    dedup_bytes_max: 1 << 40,
                    ..usual
                },
                annotations: std::collections::BTreeMap::new(),
                tags: std::collections::BTreeMap::new(),
            })))
            .map(drop)?;
        Ok(shard)
    }

    /// The number of keys of so many messages.
    fn keys(&self, messages: u64) -> u64 {
        match self.kind {
            Kind::Keyed => messages.div_ceil(PER_KEY),
            Kind::Key => messages,
            _ => 0,
        }
    }

    fn add(&mut self, number: u64) -> anyhow::Result<()> {
        let mut message = Message::new("x");
        let key = match self.kind {
            // Ten of a key in succession, so that the number of keys grows with the messages.
            Kind::Keyed => Some(number.div_ceil(PER_KEY)),
            Kind::Key => Some(number),
            _ => None,
        };
        if let Some(key) = key {
            message.key = Some(Key::new(&format!("user-{key:011}")).expect("letters and digits"));
        }
        match self.kind {
            Kind::UniqueId => {
                let id = UniqueId::new(&format!("id-{number}")).expect("letters and digits");
                message.unique_id = Some(id);
            }
            Kind::Delayed => {
                // Over a year, in no order.
                let after = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % YEAR_MS;
                message.due = Some(WallTime(START + 1_000_000 + after));
            }
            _ => {}
        }
        let queue = self.queue.clone();
        self.give(&Command::Send(Box::new(SendMessage { queue, message })))?;
        if self.kind == Kind::InFlight {
            self.give(&Command::Receive(Receive {
                queue: self.queue.clone(),
                max: 1,
                key_max: None,
                lease: Some(1_000_000 + number),
                holder: HolderName::new("bench").expect("letters"),
            }))?;
        }
        Ok(())
    }

    fn give<'a>(&mut self, command: impl Into<AnyCommand<'a>>) -> anyhow::Result<()> {
        let now = Now {
            wall: WallTime(START),
            machine: MachineTime(1_000),
        };
        let decision = self.machine.decide(command, now);
        decision.outcome.map_err(|refused| anyhow!("{refused}"))?;
        self.position += 1_000;
        self.machine
            .fold(&decision.effects, Position(self.position));
        self.machine.reached(Position(self.position + 1));
        Ok(())
    }
}
