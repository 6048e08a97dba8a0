//! `engine.send` and `engine.receive`: durable sends, then receiving and acknowledging them.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use hdrhistogram::Histogram;
use lockgate_core::QueueName;
use lockgate_engine::Engine;

use crate::{
    Course, Courses, Level, Setup,
    floor::DiskFloor,
    load::{
        Load, Receiver, Sender, Stop, as_f64, between, drive, keys, make_queue, purge, start_engine,
    },
    report::{Params, Report, Round, histogram, merge},
};

/// Batch and callers that are measured by default.
const USUAL: [(u16, u16); 6] = [(1, 1), (100, 1), (1, 16), (100, 16), (1, 256), (100, 256)];

/// How often figure and floor alternate in a round.
const SLICES: u32 = 4;

const FLOOR: &str = "write+fdatasync of the same bytes a sync into a pre-written file";

struct QueueCourse {
    engine: Engine,
    queue: QueueName,
    params: Params,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    /// One file for all courses, which use it in turn.
    disk: Rc<RefCell<DiskFloor>>,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    let disk = DiskFloor::new(&setup.folder("floor"), &setup.payloads)?;
    let disk = Rc::new(RefCell::new(disk));
    setup
        .shapes_or(&USUAL)
        .into_iter()
        .map(|(batch, callers)| -> anyhow::Result<Box<dyn Course>> {
            let folder = setup.folder(&format!("engine-{batch}-{callers}"));
            let engine = start_engine(&folder)?;
            let keyed = setup.keys() > 0;
            let queue =
                setup
                    .runtime
                    .block_on(make_queue(&engine, "bench", keyed, setup.level()))?;
            let keys = keys("user", setup.keys());
            Ok(Box::new(QueueCourse {
                senders: Sender::several(callers, &engine, &queue, &keys, batch, &setup.payloads),
                receivers: Receiver::several(callers, &engine, &queue, batch, None),
                disk: Rc::clone(&disk),
                params: params(setup, batch, callers),
                engine,
                queue,
            }))
        })
        .collect()
}

pub(crate) fn params(setup: &Setup, batch: u16, callers: u16) -> Params {
    Params {
        size: setup.payloads.size(),
        batch,
        keys: setup.keys(),
        callers,
        level: lockgate_core::Level::from(setup.level()).name(),
        more: BTreeMap::new(),
    }
}

impl Course for QueueCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        // Figure and floor alternate several times in a round: the speed of a shared disk changes
        // from moment to moment, and both should meet the same moments.
        let slice = time / (2 * SLICES);
        let mut sent = Phase::default();
        for _ in 0..SLICES {
            let before = self.engine.metrics();
            let senders = std::mem::take(&mut self.senders);
            let stop = Stop::after(slice.mul_f64(0.55));
            let load = setup.runtime.block_on(drive(senders, stop))?;
            let (syncs, _) = between(&before, &self.engine.metrics());
            // Only the payload counts as bytes that had to be written.
            let bytes = load.messages * setup.payloads.size() as u64;
            self.floor(
                setup,
                &mut sent,
                load.messages,
                syncs,
                bytes,
                slice.mul_f64(0.45),
            )?;
            sent.add(&load, syncs);
            self.senders = load.callers;
        }

        let mut received = Phase::default();
        for _ in 0..SLICES {
            let left = sent.messages.saturating_sub(received.messages);
            if left == 0 {
                break;
            }
            let before = self.engine.metrics();
            let receivers = std::mem::take(&mut self.receivers);
            let stop = Stop {
                after: slice.mul_f64(0.75),
                messages: left,
            };
            let load = setup.runtime.block_on(drive(receivers, stop))?;
            // A receive has no payload to write, so the bytes of its records count.
            let (syncs, bytes) = between(&before, &self.engine.metrics());
            self.floor(
                setup,
                &mut received,
                load.messages,
                syncs,
                bytes,
                slice.mul_f64(0.25),
            )?;
            received.add(&load, syncs);
            self.receivers = load.callers;
        }
        setup.runtime.block_on(purge(&self.engine, &self.queue))?;

        for (figure, phase) in [("engine.send", sent), ("engine.receive", received)] {
            report.add(
                figure,
                &self.params,
                Some(FLOOR),
                phase.round(),
                &phase.latency,
            );
        }
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}

impl QueueCourse {
    /// What the disk alone does in `time`: as many bytes a sync as the engine chose, and nothing else.
    fn floor(
        &self,
        setup: &Setup,
        phase: &mut Phase,
        messages: u64,
        syncs: u64,
        bytes: u64,
        time: Duration,
    ) -> anyhow::Result<()> {
        // At lower levels a caller does not wait for syncs.
        if setup.level() != Level::Disk || syncs == 0 {
            return Ok(());
        }
        let piece = usize::try_from(bytes / syncs).unwrap_or(usize::MAX);
        let mut disk = self.disk.borrow_mut();
        let (floor_syncs, elapsed) = disk.run(&setup.payloads, piece, time)?;
        phase.floor_messages += f64::from(floor_syncs) * as_f64(messages) / as_f64(syncs);
        phase.floor_elapsed += elapsed;
        Ok(())
    }
}

/// The sum of a round's slices of sending, or of receiving.
struct Phase {
    messages: u64,
    elapsed: Duration,
    syncs: u64,
    latency: Histogram<u64>,
    /// How many messages the disk would have taken in the floor's time.
    floor_messages: f64,
    floor_elapsed: Duration,
}

impl Default for Phase {
    fn default() -> Self {
        Self {
            messages: 0,
            elapsed: Duration::ZERO,
            syncs: 0,
            latency: histogram(),
            floor_messages: 0.0,
            floor_elapsed: Duration::ZERO,
        }
    }
}

impl Phase {
    fn add<C>(&mut self, load: &Load<C>, syncs: u64) {
        self.messages += load.messages;
        self.elapsed += load.elapsed;
        self.syncs += syncs;
        merge(&mut self.latency, &load.latency);
    }

    fn round(&self) -> Round {
        let floor = self.floor_messages / self.floor_elapsed.as_secs_f64();
        Round {
            rate: Some(as_f64(self.messages) / self.elapsed.as_secs_f64()),
            floor: (self.floor_messages > 0.0).then_some(floor),
            syncs_per_message: Some(as_f64(self.syncs) / as_f64(self.messages.max(1))),
        }
    }
}
