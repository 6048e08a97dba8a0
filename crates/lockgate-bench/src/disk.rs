//! `disk.*`: the space of a log, and the bytes written in addition to the callers' own.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use lockgate_core::{LeaseToken, QueueName};
use lockgate_engine::Engine;
use lockgate_machine::{Command, Receive, Settle, SettleAction};
use serde_json::json;

use crate::{
    Course, Courses, Setup, folder,
    load::{Sender, as_f64, make_queue, receive, start_engine, submit_all},
    queue::params,
    report::{Params, Report},
};

/// Messages of 1 KiB at scale 1: 2 GB.
const MESSAGES: u32 = 2_000_000;

/// As long as a lease can last.
const LEASE_MS: u64 = 12 * 3600 * 1000;

/// Messages in a call.
const BATCH: u16 = 1000;

/// The bytes that were written, by purpose.
struct Written {
    /// All bytes given to the operating system, where it reports them.
    total: Option<u64>,
    /// Records of callers' commands.
    records: u64,
    /// Records written again by compaction.
    compacted: u64,
    /// Completed snapshots.
    snapshots: u64,
}

impl Written {
    /// Since the start.
    fn now(engine: &Engine) -> Self {
        let metrics = engine.metrics();
        let compacted = metrics.maintenance.compacted_bytes;
        Self {
            total: folder::transferred().map(|(_, written)| written),
            // `compacted` includes headers and `bytes` does not. So this is a little less than was
            // accepted, and the amplification appears no smaller than it is.
            records: metrics.bytes.saturating_sub(compacted),
            compacted,
            snapshots: metrics.maintenance.snapshot_bytes,
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            total: self.total.zip(before.total).map(|(now, then)| now - then),
            records: self.records.saturating_sub(before.records),
            compacted: self.compacted - before.compacted,
            snapshots: self.snapshots - before.snapshots,
        }
    }

    fn report(&self, params: &Params, amplification_max: Option<f64>, report: &mut Report) {
        let Some(total) = self.total else {
            return;
        };
        report.quantity(
            "disk.amplification",
            params,
            as_f64(total) / as_f64(self.records.max(1)),
            "bytes written per byte accepted",
            amplification_max,
        );
        // Headers, zeros written ahead, alignment, and snapshots that were not finished.
        let rest = total.saturating_sub(self.records + self.compacted + self.snapshots);
        for (figure, bytes) in [
            ("disk.written.records", self.records),
            ("disk.written.compacted", self.compacted),
            ("disk.written.snapshots", self.snapshots),
            ("disk.written.rest", rest),
        ] {
            report.quantity(figure, params, as_f64(bytes), "bytes", None);
        }
    }
}

struct DiskCourse {
    engine: Engine,
    queue: QueueName,
    folder: PathBuf,
    params: Params,
    messages: u64,
    random: u64,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    let messages = setup.scaled(MESSAGES).max(1_000);
    let folder = setup.folder("disk");
    let engine = start_engine(&folder)?;
    let queue = setup
        .runtime
        .block_on(make_queue(&engine, "bench", false, setup.level()))?;
    // Without keys, because a key's messages would have to be settled in order.
    let mut params = Params {
        keys: 0,
        ..params(setup, BATCH, 1)
    };
    params.more.insert("messages", json!(messages));
    Ok(vec![Box::new(DiskCourse {
        engine,
        queue,
        folder,
        params,
        messages,
        random: 0x9e37_79b9_7f4a_7c15,
    })])
}

impl DiskCourse {
    async fn fill(&self, setup: &Setup, messages: u64) -> anyhow::Result<()> {
        let keys = [].into();
        let mut senders = Sender::several(1, &self.engine, &self.queue, &keys, 1, &setup.payloads);
        match senders.first_mut() {
            Some(sender) => sender.fill(messages).await,
            None => Ok(()),
        }
    }

    /// Leases all waiting messages.
    async fn lease_all(&self) -> anyhow::Result<Vec<LeaseToken>> {
        let mut tokens = Vec::new();
        loop {
            let receive = Receive {
                lease: Some(LEASE_MS),
                ..receive(&self.queue, BATCH, "bench")
            };
            let received = self
                .engine
                .receive(receive, Duration::ZERO)
                .await
                .context("leasing all messages")?
                .keep();
            if received.is_empty() {
                return Ok(tokens);
            }
            tokens.extend(received.iter().map(|one| one.delivery.token));
        }
    }

    /// Removes and sends twice as many messages as there are, so many at a time.
    fn churn(
        &mut self,
        setup: &Setup,
        tokens: &mut Vec<LeaseToken>,
        step: u64,
    ) -> anyhow::Result<()> {
        for _ in 0..2 * self.messages / step {
            setup.runtime.block_on(async {
                self.ack_some(tokens, step).await?;
                self.fill(setup, step).await?;
                tokens.extend(self.lease_all().await?);
                anyhow::Ok(())
            })?;
        }
        Ok(())
    }

    /// Acknowledges so many random tokens.
    async fn ack_some(&mut self, tokens: &mut Vec<LeaseToken>, count: u64) -> anyhow::Result<()> {
        let mut left = usize::try_from(count)
            .unwrap_or(usize::MAX)
            .min(tokens.len());
        while left > 0 {
            let acks: Vec<_> = (0..left.min(BATCH.into()))
                .map(|_| {
                    let at = self.next_random() % tokens.len() as u64;
                    let at = usize::try_from(at).unwrap_or(0);
                    Command::Settle(Settle {
                        token: tokens.swap_remove(at),
                        action: SettleAction::Ack,
                    })
                })
                .collect();
            left -= acks.len();
            submit_all(&self.engine, acks).await?;
        }
        Ok(())
    }

    fn next_random(&mut self) -> u64 {
        // Marsaglia's xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

impl Course for DiskCourse {
    /// Everything is measured once, see [`finish`](Course::finish).
    fn round(&mut self, _: &Setup, _: Duration, _: &mut Report) -> anyhow::Result<()> {
        Ok(())
    }

    fn finish(&mut self, setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
        let params = self.params.clone();
        let runtime = &setup.runtime;

        // Removes random messages and sends as many: first until the log has reached its steady
        // size, then measured; a few at a time, and half of all at a time.
        runtime.block_on(self.fill(setup, self.messages))?;
        let mut tokens = runtime.block_on(self.lease_all())?;
        for (part, longest) in [(20, Some(1.5)), (2, None)] {
            let step = (self.messages / part).max(1);
            for _ in 0..2 {
                self.churn(setup, &mut tokens, step)?;
            }
            let before = Written::now(&self.engine);
            self.churn(setup, &mut tokens, step)?;
            let written = Written::now(&self.engine).since(&before);
            let mut params = params.clone();
            params.more.insert("step", json!(step));
            written.report(&params, longest, report);
        }

        let peak = folder::taken(&self.folder)?;
        report.quantity("disk.peak", &params, as_f64(peak), "bytes", None);
        runtime.block_on(self.ack_some(&mut tokens, self.messages / 2))?;
        let half = folder::settled(&self.folder, &self.engine)?;
        report.quantity(
            "disk.half",
            &params,
            as_f64(half) / as_f64(peak.max(1)),
            "of the peak",
            Some(0.6),
        );
        runtime.block_on(self.ack_some(&mut tokens, u64::MAX))?;
        let drained = folder::settled(&self.folder, &self.engine)?;
        report.quantity("disk.drained", &params, as_f64(drained), "bytes", None);
        let maintenance = self.engine.metrics().maintenance;
        for (figure, count, unit) in [
            ("disk.snapshots", maintenance.snapshots, "snapshots"),
            ("disk.compacted", maintenance.compacted_bytes, "bytes"),
            ("disk.released", maintenance.ranges_released, "ranges"),
        ] {
            report.quantity(figure, &params, as_f64(count), unit, None);
        }
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}
