//! `drain.*`: the space of a log that is filled and emptied as users do: by key, over the SQS API,
//! ten messages in a call.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use lockgate_engine::Engine;
use lockgate_server::Server;
use serde_json::json;

use crate::{
    Course, Courses, Setup, folder,
    http::{HttpReceiver, HttpSender, Running, make_queue, options},
    load::{Stop, as_f64, drive, keys, start_engine},
    queue::params,
    report::{Params, Report},
};

/// Messages at scale 1, ten for each key.
const MESSAGES: u32 = 10_000_000;
const MESSAGES_OF_KEY: u32 = 10;

/// The most messages of a call.
const BATCH: u16 = 10;
const CALLERS: u16 = 16;

/// Longer than filling and emptying takes.
const TIME: Duration = Duration::from_hours(12);

/// How long after the last acknowledgement the remaining space is measured, usually and with
/// `--quick`, and its limit.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
const SETTLED_AFTER_QUICK: Duration = Duration::from_secs(1);
const DRAINED_MAX: f64 = 67_108_864.0;
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The part of the peak that may be left when half of the messages are acknowledged.
const HALF_MAX: f64 = 0.6;

struct DrainCourse {
    engine: Engine,
    server: Running,
    senders: Vec<HttpSender>,
    receivers: Vec<HttpReceiver>,
    folder: PathBuf,
    params: Params,
    messages: u64,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    let course = setup.runtime.block_on(open_course(setup))?;
    Ok(vec![Box::new(course)])
}

async fn open_course(setup: &Setup) -> anyhow::Result<DrainCourse> {
    let messages = setup.scaled(MESSAGES).max(1_000);
    let key_count = u32::try_from(messages / u64::from(MESSAGES_OF_KEY)).unwrap_or(u32::MAX);
    let folder = setup.folder("drain");
    let engine = start_engine(&folder)?;
    let server = Running::start(Server::bind(options(), engine.clone()).await)?;
    let (_, url) = make_queue(setup, &engine, server.address(), setup.level()).await?;
    let mut params = Params {
        keys: key_count,
        ..params(setup, BATCH, CALLERS)
    };
    params.more.insert("messages", json!(messages));
    let server_at = server.address();
    let keys = keys("user", key_count);
    Ok(DrainCourse {
        senders: HttpSender::several(
            CALLERS,
            server_at,
            &url,
            &keys,
            BATCH,
            &setup.payloads,
            true,
        ),
        receivers: HttpReceiver::several(CALLERS, server_at, &url, BATCH, true),
        engine,
        server,
        folder,
        params,
        messages,
    })
}

impl Course for DrainCourse {
    /// Everything is measured once, see [`finish`](Course::finish).
    fn round(&mut self, _: &Setup, _: Duration, _: &mut Report) -> anyhow::Result<()> {
        Ok(())
    }

    fn finish(&mut self, setup: &Setup, report: &mut Report) -> anyhow::Result<()> {
        let params = self.params.clone();
        let runtime = &setup.runtime;
        let empty = folder::taken(&self.folder)?;
        report.quantity("drain.empty", &params, as_f64(empty), "bytes", None);

        let stop = |messages| Stop {
            after: TIME,
            messages,
        };
        let senders = std::mem::take(&mut self.senders);
        let sent = runtime.block_on(drive(senders, stop(self.messages)))?;
        report.quantity("drain.sent", &params, sent.rate(), "messages/s", None);
        let peak = folder::taken(&self.folder)?;
        report.quantity("drain.peak", &params, as_f64(peak), "bytes", None);

        // At full speed: measured in between, without giving the engine time to catch up.
        let receivers = std::mem::take(&mut self.receivers);
        let half = runtime.block_on(drive(receivers, stop(sent.messages / 2)))?;
        let left = folder::taken(&self.folder)?;
        let ratio = as_f64(left) / as_f64(peak.max(1));
        report.quantity("drain.half", &params, ratio, "of the peak", Some(HALF_MAX));
        let rest = stop(sent.messages - half.messages);
        let rest = runtime.block_on(drive(half.callers, rest))?;
        let rate = rest.rate();
        report.quantity("drain.received", &params, rate, "messages/s", None);
        let last = Instant::now();
        let mut small_after = None;
        let settled_after = if setup.args.quick {
            SETTLED_AFTER_QUICK
        } else {
            SETTLED_AFTER
        };
        while last.elapsed() < settled_after {
            if as_f64(folder::taken(&self.folder)?) <= DRAINED_MAX && small_after.is_none() {
                small_after = Some(last.elapsed());
            }
            thread::sleep(LOOK_EVERY);
        }
        if let Some(after) = small_after {
            let seconds = after.as_secs_f64();
            report.quantity("drain.small_after", &params, seconds, "s", None);
        }
        let drained = as_f64(folder::taken(&self.folder)?);
        let most = Some(DRAINED_MAX);
        report.quantity("drain.drained", &params, drained, "bytes", most);
        let maintenance = self.engine.metrics().maintenance;
        for (figure, count, unit) in [
            ("drain.snapshots", maintenance.snapshots, "snapshots"),
            ("drain.snapshot_bytes", maintenance.snapshot_bytes, "bytes"),
            ("drain.compacted", maintenance.compacted_bytes, "bytes"),
        ] {
            report.quantity(figure, &params, as_f64(count), unit, None);
        }
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        let course = *self;
        // The clients' connections first, so that the server does not wait for them.
        drop((course.senders, course.receivers));
        setup.runtime.block_on(course.server.stop());
    }
}
