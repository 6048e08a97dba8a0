//! `backlog.*`: the cost of a backlog with ten messages for each of very many keys.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use lockgate_core::{Key, QueueName};
use lockgate_engine::Engine;
use serde_json::json;

use crate::{
    Course, Courses, Setup, folder,
    load::{
        Load, Receiver, Sender, Stop, as_f64, drive, keys, make_queue, open_engine, purge,
        start_engine,
    },
    payload::Payloads,
    queue::params,
    report::{Params, Report, Round},
};

/// Waiting messages at scale 1.
const MESSAGES: u32 = 10_000_000;

/// Messages for each key.
const PER_KEY: u64 = 10;

/// Bodies are small by default: the bench measures choosing, not copying.
const SIZE: usize = 100;

const BATCH: u16 = 100;
const CALLERS: u16 = 16;

/// How often a start is measured.
const STARTS: usize = 3;

/// Longer than it takes to receive a message of every key.
const TURN_OVER_MAX: Duration = Duration::from_secs(3600);

const FLOOR: &str = "the same messages on an empty queue";

struct BacklogCourse {
    full: Side,
    empty: Side,
    folder: PathBuf,
    params: Params,
    messages: u64,
}

/// An engine with one queue.
struct Side {
    engine: Engine,
    queue: QueueName,
    senders: Vec<Sender>,
    receivers: Vec<Receiver>,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    let messages = setup.scaled(MESSAGES);
    let key_count = u32::try_from(messages.div_ceil(PER_KEY)).unwrap_or(u32::MAX);
    let keys = keys("user", key_count);
    let folder = setup.folder("backlog");
    let mut full = Side::new(setup, start_engine(&folder)?, &keys)?;
    let empty = Side::new(setup, start_engine(&setup.folder("no-backlog"))?, &keys)?;
    setup.runtime.block_on(async {
        full.fill(messages).await?;
        // Removes the first message of each key, so that receives do not find messages that were
        // sent together.
        let gone = full.receive(TURN_OVER_MAX, messages / PER_KEY).await?;
        full.fill(gone.messages).await
    })?;
    let mut params = Params {
        size: size(setup),
        keys: key_count,
        ..params(setup, BATCH, CALLERS)
    };
    params.more.insert("backlog", json!(messages));
    Ok(vec![Box::new(BacklogCourse {
        full,
        empty,
        folder,
        params,
        messages,
    })])
}

/// Bytes of a body.
fn size(setup: &Setup) -> usize {
    setup.args.size.unwrap_or(SIZE)
}

impl Side {
    fn new(setup: &Setup, engine: Engine, keys: &Arc<[Key]>) -> anyhow::Result<Self> {
        let queue = setup
            .runtime
            .block_on(make_queue(&engine, "bench", true, setup.level()))?;
        let payloads: Payloads = setup.payloads.with_size(size(setup));
        let senders = Sender::several(CALLERS, &engine, &queue, keys, BATCH, &payloads);
        Ok(Self {
            senders: senders.into_iter().map(Sender::scattered).collect(),
            receivers: Receiver::several(CALLERS, &engine, &queue, BATCH, None),
            engine,
            queue,
        })
    }

    async fn fill(&mut self, messages: u64) -> anyhow::Result<()> {
        self.senders[0].fill(messages).await
    }

    async fn send(&mut self, time: Duration) -> anyhow::Result<Load<()>> {
        let mut load = drive(std::mem::take(&mut self.senders), Stop::after(time)).await?;
        self.senders = std::mem::take(&mut load.callers);
        Ok(load.without_callers())
    }

    async fn receive(&mut self, time: Duration, messages: u64) -> anyhow::Result<Load<()>> {
        let stop = Stop {
            after: time,
            messages,
        };
        let mut load = drive(std::mem::take(&mut self.receivers), stop).await?;
        self.receivers = std::mem::take(&mut load.callers);
        Ok(load.without_callers())
    }
}

impl Course for BacklogCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let snapshots = |side: &Side| side.engine.metrics().maintenance.snapshots;
        let before = snapshots(&self.full);
        // Both sides send for the same time, and both receive as many messages as they got.
        let limit = time.max(Duration::from_secs(1)) * 20;
        let [(empty_sent, empty_received), (full_sent, full_received)] =
            setup.runtime.block_on(async {
                let mut loads = Vec::new();
                for side in [&mut self.empty, &mut self.full] {
                    let sent = side.send(time / 4).await?;
                    let received = side.receive(limit, sent.messages).await?;
                    // Callers that were receiving when the limit was reached took a few more.
                    side.fill(received.messages.saturating_sub(sent.messages))
                        .await?;
                    loads.push((sent, received));
                }
                purge(&self.empty.engine, &self.empty.queue).await?;
                let both = <[_; 2]>::try_from(loads);
                both.map_err(|_| anyhow!("both sides were measured"))
            })?;
        let longest = full_sent.latency.max().max(full_received.latency.max());
        let mut params = self.params.clone();
        let snapshot = snapshots(&self.full) > before;
        params.more.insert("snapshot", json!(snapshot));
        report.quantity("backlog.stall", &params, as_f64(longest) / 1e6, "ms", None);
        for (figure, full, empty) in [
            ("backlog.send", full_sent, empty_sent),
            ("backlog.receive", full_received, empty_received),
        ] {
            let round = Round {
                rate: Some(full.rate()),
                floor: Some(empty.rate()),
                syncs_per_message: None,
            };
            report.add(figure, &self.params, Some(FLOOR), round, &full.latency);
        }
        Ok(())
    }

    fn finish(&mut self, setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
        for _ in 0..STARTS {
            // Only then does a copy equal what a kill would leave.
            folder::settled(&self.folder, &self.full.engine)?;
            for cache in [Cache::Warm, Cache::Cold] {
                self.measure_starts(setup, cache, report)?;
            }
        }
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(async {
            self.full.engine.shutdown().await;
            self.empty.engine.shutdown().await;
        });
    }
}

/// A measured start.
struct Start {
    time: Duration,
    /// Bytes of the snapshot and the records that the state was built from.
    bytes: u64,
    /// The time to read as many bytes, one after the other.
    floor: Duration,
}

/// Where a start, and the read that it is compared with, find the folder's bytes.
#[derive(Clone, Copy)]
enum Cache {
    /// In memory, as after a kill.
    Warm,
    /// On the disk, as after a restart of the machine.
    Cold,
}

impl Cache {
    fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Cold => "cold",
        }
    }

    fn prepare(self, folder: &Path) -> anyhow::Result<()> {
        match self {
            Self::Warm => Ok(()),
            Self::Cold => folder::forget(folder),
        }
    }
}

impl BacklogCourse {
    /// A start after a kill and one after a clean stop, each compared with a read of as many bytes.
    fn measure_starts(
        &self,
        setup: &Setup,
        cache: Cache,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let killed = setup.folder("killed");
        // The copy just made is in the system's cache.
        folder::copy(&self.folder, &killed)?;
        for (after, longest) in [("kill", None), ("clean stop", Some(1.0))] {
            let start = self.start(setup, &killed, cache)?;
            let seconds = start.time.as_secs_f64();
            let mut params = self.params.clone();
            let more = [
                ("messages", json!(self.messages)),
                ("after", json!(after)),
                ("cache", json!(cache.name())),
            ];
            params.more.extend(more);
            report.quantity("backlog.recovery", &params, seconds, "s", longest);
            let bytes = as_f64(start.bytes);
            report.quantity("backlog.recovery.bytes", &params, bytes, "bytes", None);
            if longest.is_none() {
                // The target assumes a disk of that rate, whatever this disk does.
                let read = start.floor.as_secs_f64().max(bytes / 500e6);
                report.quantity(
                    "backlog.recovery.ratio",
                    &params,
                    seconds / read,
                    "times a sequential read at 500 MB/s at most",
                    Some(1.5),
                );
            }
            // That start ended cleanly, so the next one on the same folder is a start after a clean stop.
        }
        folder::remove(&killed)
    }

    /// Starts an engine over the folder and stops it in order.
    fn start(&self, setup: &Setup, folder: &Path, cache: Cache) -> anyhow::Result<Start> {
        cache.prepare(folder)?;
        let started = Instant::now();
        let (engine, found) = open_engine(folder)?;
        let time = started.elapsed();
        // The sources of the state: without blocks that have no records, and nothing twice.
        let bytes = found.snapshot_bytes + found.bytes;
        // A running engine releases files, so it ends first; its last snapshot has what it read.
        setup.runtime.block_on(engine.shutdown());
        cache.prepare(folder)?;
        let floor = folder::read_log(folder, bytes)?;
        if found.messages < self.messages {
            return Err(anyhow!(
                "{} of {} messages were recovered",
                found.messages,
                self.messages
            ));
        }
        Ok(Start { time, bytes, floor })
    }
}
