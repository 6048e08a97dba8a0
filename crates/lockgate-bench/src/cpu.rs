//! `http.cpu`: the processor time of a request in the server, compared with a request that does nothing.
//!
//! Server and clients run in this process, but the server has its own thread with its own name, and the
//! kernel counts the time of each thread. Figure and floor alternate: the same clients send the same requests
//! to the same server; for the floor, with an unknown action. The server checks heads and reads whole bodies
//! in both cases. Then it either checks, logs and answers the messages, or it refuses.
//!
//! The queue is emptied every quarter of a second, as consumers that keep up would do, so that the
//! log turns over instead of growing. The figures include the engine's cost of that.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use lockgate_core::{Key, QueueName};
use lockgate_engine::Engine;
use lockgate_server::Server;
use tokio::runtime::Runtime;

use crate::{
    Course, Courses, Level, Setup,
    http::{HttpSender, Running, make_queue, options},
    load::{ENGINE_THREADS, Stop, as_f64, drive, keys, purge, start_engine},
    queue::params,
    report::{Params, Report},
};

const BATCH: u16 = 10;
const CALLERS: u16 = 4;

/// How long the queue grows before it is emptied.
const FILLING: Duration = Duration::from_millis(250);

const SERVER_THREADS: &str = "bench-serve";

/// The threads that serve a request: their names, as the kernel cuts them, and the figure of each.
const SERVED: [(&str, &str); 4] = [
    (SERVER_THREADS, "http.cpu.server"),
    (ENGINE_THREADS, "http.cpu.owner"),
    ("bench-engine-sy", "http.cpu.sync"),
    ("bench-engine-ma", "http.cpu.maintenance"),
];
const FLOOR: [(&str, &str); 1] = [(SERVER_THREADS, "http.cpu.floor")];

struct CpuCourse {
    engine: Engine,
    queue: QueueName,
    params: Params,
    runtime: Runtime,
    server: Running,
    served: Side,
    refused: Side,
}

/// The clients, and the threads whose time is measured.
struct Side {
    senders: Vec<HttpSender>,
    threads: &'static [(&'static str, &'static str)],
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    let engine = start_engine(&setup.folder("http-cpu"))?;
    let level = setup.args.level.unwrap_or(Level::Process);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(SERVER_THREADS)
        .enable_all()
        .build()
        .context("starting a runtime")?;
    let server = {
        let _inside = runtime.enter();
        let bound = runtime.block_on(Server::bind(options(), engine.clone()));
        Running::start(bound)?
    };
    let address = server.address();
    let (queue, url) = setup
        .runtime
        .block_on(make_queue(setup, &engine, address, level))?;
    let keys: Arc<[Key]> = keys("user", setup.keys());
    let callers = setup.args.callers.unwrap_or(CALLERS);
    let senders = |served| {
        HttpSender::several(
            callers,
            address,
            &url,
            &keys,
            BATCH,
            &setup.payloads,
            served,
        )
    };
    let params = Params {
        level: lockgate_core::Level::from(level).name(),
        ..params(setup, BATCH, callers)
    };
    Ok(vec![Box::new(CpuCourse {
        engine,
        queue,
        params,
        runtime,
        server,
        served: Side {
            senders: senders(true),
            threads: &SERVED,
        },
        refused: Side {
            senders: senders(false),
            threads: &FLOOR,
        },
    })])
}

impl Side {
    /// Microseconds of processor time of each of the threads for each request. `None`: the system
    /// does not report it.
    fn run(
        &mut self,
        setup: &Setup,
        time: Duration,
        mut empty: impl FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<Vec<f64>>> {
        let before = processor_times(self.threads);
        let began = Instant::now();
        let mut messages = 0;
        while began.elapsed() < time {
            let senders = std::mem::take(&mut self.senders);
            let stop = Stop::after(FILLING.min(time));
            let load = setup.runtime.block_on(drive(senders, stop))?;
            self.senders = load.callers;
            messages += load.messages;
            empty()?;
        }
        let after = processor_times(self.threads);
        let requests = as_f64(messages / u64::from(BATCH)).max(1.0);
        Ok(before.zip(after).map(|(before, after)| {
            let each = before.into_iter().zip(after);
            each.map(|(before, after)| (after - before).as_secs_f64() * 1e6 / requests)
                .collect()
        }))
    }
}

impl Course for CpuCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let served = self.served.run(setup, time / 2, || {
            setup.runtime.block_on(purge(&self.engine, &self.queue))
        })?;
        let floor = self.refused.run(setup, time / 2, || Ok(()))?;
        let Some((served, floor)) = served.zip(floor) else {
            return Ok(());
        };
        let params = &self.params;
        let mut tell = |figure, value| {
            report.quantity(figure, params, value, "us/request", None);
        };
        let (all_served, all_floor): (f64, f64) = (served.iter().sum(), floor.iter().sum());
        tell("http.cpu", all_served);
        let figures = SERVED.iter().chain(&FLOOR).map(|&(_, figure)| figure);
        for (figure, value) in figures.zip(served.into_iter().chain(floor)) {
            tell(figure, value);
        }
        report.quantity(
            "http.cpu.ratio",
            params,
            all_served / all_floor.max(1e-9),
            "times a request that is refused",
            Some(3.0),
        );
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        let course = *self;
        setup.runtime.block_on(async {
            course.server.stop().await;
            course.engine.shutdown().await;
        });
        course.runtime.shutdown_background();
    }
}

/// The processor time of this process's threads with each of these names.
fn processor_times(names: &[(&str, &str)]) -> Option<Vec<Duration>> {
    let mut times = vec![Duration::ZERO; names.len()];
    for task in fs::read_dir("/proc/self/task").ok()? {
        let task = task.ok()?.path();
        // A thread may end while the list is read.
        let Ok(name) = fs::read_to_string(task.join("comm")) else {
            continue;
        };
        let known = names
            .iter()
            .position(|&(known, _)| known == name.trim_end());
        if let Some(at) = known {
            let spent = fs::read_to_string(task.join("schedstat")).ok()?;
            times[at] += Duration::from_nanos(spent.split(' ').next()?.parse().ok()?);
        }
    }
    Some(times)
}
