//! `engine.send` and `engine.receive`: durable sends, then receiving and acknowledging them.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use lockgate_core::{Level, QueueName};
use lockgate_engine::Engine;

use super::{
    Course, Courses, Setup,
    floor::DiskFloor,
    load::{Receiver, Sender, Stop, as_f64, between, drive, keys, make_queue, purge, start_engine},
    report::{Params, Report, Round},
};
use crate::exit::Failure;

/// Batch and callers that are measured unless others are asked for.
const USUAL: [(u16, u16); 3] = [(1, 1), (1, 16), (100, 16)];

const FLOOR: &str = "write+fdatasync of the same bytes a sync into a pre-written file";

struct QueueCourse {
    engine: Engine,
    queue: QueueName,
    params: Params,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
    /// One file for all courses, which take turns.
    disk: Rc<RefCell<DiskFloor>>,
}

pub(crate) fn open(setup: &Setup) -> Result<Courses, Failure> {
    let disk = DiskFloor::new(&setup.folder("floor"), &setup.payloads)?;
    let disk = Rc::new(RefCell::new(disk));
    setup
        .shapes_or(&USUAL)
        .into_iter()
        .map(|(batch, callers)| -> Result<Box<dyn Course>, Failure> {
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
        level: Level::from(setup.level()).name(),
        more: BTreeMap::new(),
    }
}

impl Course for QueueCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> Result<(), Failure> {
        let before = self.engine.metrics();
        let senders = std::mem::take(&mut self.senders);
        let sent = setup
            .runtime
            .block_on(drive(senders, Stop::after(time.mul_f64(0.25))))?;
        let between_phases = self.engine.metrics();
        let receivers = std::mem::take(&mut self.receivers);
        let stop = Stop {
            after: time.mul_f64(0.4),
            messages: sent.messages,
        };
        let received = setup.runtime.block_on(drive(receivers, stop))?;
        let after = self.engine.metrics();
        setup.runtime.block_on(purge(&self.engine, &self.queue))?;

        // What the disk would have allowed: as many syncs of as many bytes, and nothing else. For
        // sends only the payload is counted as useful bytes; a receive has no payload to write, so
        // it is measured against what its records took.
        let (syncs, _) = between(&before, &between_phases);
        let payload = sent.messages * setup.payloads.size() as u64;
        let round = self.beside_disk(setup, sent.rate(), sent.messages, syncs, payload, time)?;
        report.add(
            "engine.send",
            &self.params,
            Some(FLOOR),
            round,
            &sent.latency,
        );

        let (syncs, bytes) = between(&between_phases, &after);
        let (rate, messages) = (received.rate(), received.messages);
        let round = self.beside_disk(setup, rate, messages, syncs, bytes, time)?;
        report.add(
            "engine.receive",
            &self.params,
            Some(FLOOR),
            round,
            &received.latency,
        );
        self.senders = sent.callers;
        self.receivers = received.callers;
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}

impl QueueCourse {
    fn beside_disk(
        &mut self,
        setup: &Setup,
        rate: f64,
        messages: u64,
        syncs: u64,
        bytes: u64,
        time: Duration,
    ) -> Result<Round, Failure> {
        let mut round = Round {
            rate: Some(rate),
            floor: None,
            syncs_per_message: Some(as_f64(syncs) / as_f64(messages.max(1))),
        };
        // At the levels below, syncs are no part of what a caller waits for.
        if setup.level() == super::Level::Disk && syncs > 0 {
            let piece = usize::try_from(bytes / syncs).unwrap_or(usize::MAX);
            let mut disk = self.disk.borrow_mut();
            let syncs_a_second = disk.run(&setup.payloads, piece, time.mul_f64(0.2))?;
            round.floor = Some(syncs_a_second * as_f64(messages) / as_f64(syncs));
        }
        Ok(round)
    }
}
