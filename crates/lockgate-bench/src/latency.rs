//! `engine.latency`: the time of a send when sends arrive on a schedule.
//!
//! Callers that send the next message only after the last answer hide a stall: while it lasts they
//! send nothing, and it counts as one slow call. Here messages arrive at a steady rate whatever
//! happens, and each is timed from its scheduled instant.

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use lockgate_core::{Key, QueueName};
use lockgate_engine::Engine;
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    Course, Courses, Setup,
    load::{Caller as _, Sender, Stop, drive, keys, make_queue, purge, record, start_engine},
    queue::params,
    report::{Params, Report, Round, histogram},
};

/// Callers at full load. The schedule uses half of their rate.
const CALLERS: u16 = 16;

/// How long full load is measured to find the rate.
const FULL_LOAD: Duration = Duration::from_millis(300);

struct LatencyCourse {
    engine: Engine,
    queue: QueueName,
    keys: Arc<[Key]>,
    params: Params,
    /// Messages a second.
    rate: f64,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    let engine = start_engine(&setup.folder("latency"))?;
    let keys = keys("user", setup.keys());
    let callers = setup.args.callers.unwrap_or(CALLERS);
    let (queue, rate) = setup.runtime.block_on(async {
        let queue = make_queue(&engine, "bench", !keys.is_empty(), setup.level()).await?;
        let senders = Sender::several(callers, &engine, &queue, &keys, 1, &setup.payloads);
        let full = drive(senders, Stop::after(FULL_LOAD)).await?;
        purge(&engine, &queue).await?;
        anyhow::Ok((queue, (full.rate() / 2.0).max(1.0).round()))
    })?;
    let mut params = params(setup, 1, callers);
    params.more.insert("rate", json!(rate));
    Ok(vec![Box::new(LatencyCourse {
        engine,
        queue,
        keys,
        params,
        rate,
    })])
}

impl Course for LatencyCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let latency = Arc::new(Mutex::new(histogram()));
        let mut senders =
            Sender::several(1, &self.engine, &self.queue, &self.keys, 1, &setup.payloads);
        let sender = senders.remove(0);
        let mut tasks = JoinSet::new();
        let started = Instant::now();
        // A separate thread keeps the schedule, because the runtime's timers have a resolution of
        // milliseconds.
        for number in 0_u32.. {
            let due = started + Duration::from_secs_f64(f64::from(number) / self.rate);
            if due >= started + time {
                break;
            }
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let mut sender = sender.for_arrival(number);
            let latency = Arc::clone(&latency);
            tasks.spawn_on(
                async move {
                    sender.call().await?;
                    let took = due.elapsed();
                    record(
                        &mut latency.lock().unwrap_or_else(PoisonError::into_inner),
                        took,
                    );
                    anyhow::Ok(())
                },
                setup.runtime.handle(),
            );
        }
        setup.runtime.block_on(async {
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            purge(&self.engine, &self.queue).await
        })?;
        let round = Round {
            rate: None,
            floor: None,
            syncs_per_message: None,
        };
        let latency = latency.lock().unwrap_or_else(PoisonError::into_inner);
        report.add("engine.latency", &self.params, None, round, &latency);
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}
