//! `http.cpu`: what a request costs the server's processor, beside one that nothing is done for.
//!
//! Servers and clients run in this process, but each server has threads of its own, whose names say
//! so; the kernel counts the time of each thread.

use std::{fs, sync::Arc, time::Duration};

use lockgate_core::{Key, QueueName};
use lockgate_engine::Engine;
use lockgate_server::Server;
use tokio::runtime::Runtime;

use super::{
    Course, Courses, Level, Setup,
    http::{HttpSender, Running, make_queue, options},
    load::{ENGINE_THREADS, Stop, as_f64, drive, keys, purge, start_engine},
    queue::params,
    report::{Params, Report},
};
use crate::exit::{Exit, Failure};

const BATCH: u16 = 10;
const CALLERS: u16 = 4;

/// How names of threads begin.
const SERVER_THREADS: &str = "bench-serve";
const FLOOR_THREADS: &str = "bench-floor";

struct CpuCourse {
    engine: Engine,
    queue: QueueName,
    params: Params,
    server: Side,
    floor: Side,
}

/// A server on threads of its own, and who sends to it.
struct Side {
    runtime: Runtime,
    running: Running,
    senders: Vec<HttpSender>,
    threads: &'static [&'static str],
}

pub(crate) fn open(setup: &Setup) -> Result<Courses, Failure> {
    let engine = start_engine(&setup.folder("http-cpu"))?;
    let level = setup.args.level.unwrap_or(Level::Process);
    let (served, floor) = (runtime(SERVER_THREADS)?, runtime(FLOOR_THREADS)?);
    let running = {
        let _inside = served.enter();
        let bound = served.block_on(Server::bind(options(), engine.clone()));
        Running::start(bound)?
    };
    let floor_running = {
        let _inside = floor.enter();
        let bound = floor.block_on(Server::bind_floor(options()));
        Running::start(bound)?
    };
    let (queue, url) =
        setup
            .runtime
            .block_on(make_queue(setup, &engine, running.endpoint(), level))?;
    let keys: Arc<[Key]> = keys("user", setup.keys());
    let senders = |running: &Running, decode| {
        let endpoint = running.endpoint();
        HttpSender::several(
            CALLERS,
            endpoint,
            &url,
            &keys,
            BATCH,
            &setup.payloads,
            decode,
        )
    };
    let params = Params {
        level: lockgate_core::Level::from(level).name(),
        ..params(setup, BATCH, CALLERS)
    };
    Ok(vec![Box::new(CpuCourse {
        engine,
        queue,
        params,
        server: Side {
            senders: senders(&running, true),
            runtime: served,
            running,
            threads: &[SERVER_THREADS, ENGINE_THREADS],
        },
        floor: Side {
            senders: senders(&floor_running, false),
            runtime: floor,
            running: floor_running,
            threads: &[FLOOR_THREADS],
        },
    })])
}

fn runtime(name: &str) -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(|error| Failure::from_error(Exit::Failed, error).context("starting a runtime"))
}

impl Side {
    /// Microseconds of processor time for each request. `None`: the system does not tell.
    fn run(&mut self, setup: &Setup, time: Duration) -> Result<Option<f64>, Failure> {
        let before = processor_time(self.threads);
        let senders = std::mem::take(&mut self.senders);
        let load = setup.runtime.block_on(drive(senders, Stop::after(time)))?;
        let after = processor_time(self.threads);
        self.senders = load.callers;
        let requests = as_f64(load.messages / u64::from(BATCH)).max(1.0);
        Ok(before
            .zip(after)
            .map(|(before, after)| (after - before).as_secs_f64() * 1e6 / requests))
    }

    fn stop(self, setup: &Setup) {
        drop(self.senders);
        setup.runtime.block_on(self.running.stop());
        self.runtime.shutdown_background();
    }
}

impl Course for CpuCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> Result<(), Failure> {
        let served = self.server.run(setup, time / 2)?;
        let floor = self.floor.run(setup, time / 2)?;
        setup.runtime.block_on(purge(&self.engine, &self.queue))?;
        if let Some((served, floor)) = served.zip(floor) {
            let params = &self.params;
            report.quantity("http.cpu", params, served, "us/request", None);
            report.quantity("http.cpu.floor", params, floor, "us/request", None);
            let ratio = served / floor.max(1e-9);
            report.quantity(
                "http.cpu.ratio",
                params,
                ratio,
                "times a handler that does nothing",
                Some(2.0),
            );
        }
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        let course = *self;
        course.server.stop(setup);
        course.floor.stop(setup);
        setup.runtime.block_on(course.engine.shutdown());
    }
}

/// Time on a processor of all threads of this process whose names begin with one of these.
fn processor_time(names: &[&str]) -> Option<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir("/proc/self/task").ok()? {
        let task = task.ok()?.path();
        // A thread may end while the list is read.
        let Ok(name) = fs::read_to_string(task.join("comm")) else {
            continue;
        };
        if names.iter().any(|begin| name.starts_with(begin)) {
            let times = fs::read_to_string(task.join("schedstat")).ok()?;
            let time: u64 = times.split(' ').next()?.parse().ok()?;
            nanos += time;
        }
    }
    Some(Duration::from_nanos(nanos))
}
