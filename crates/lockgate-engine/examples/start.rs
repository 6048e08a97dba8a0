//! How long a start takes, to be run under a profiler.
//!
//! ```text
//! cargo run --release -p lockgate-engine --example start FOLDER [MESSAGES [kills]]
//! ```
//!
//! Makes a log of MESSAGES (default 10,000,000) over a tenth as many keys in FOLDER, unless there is
//! one: a snapshot at two thirds of them, and behind it the other sends and a turnover of a twentieth.
//! Then it starts three times as after a kill, and, over a last snapshot, three times as after a clean
//! stop; the system's cache stays as it is. With `kills` only the former, which leave the log as it is but
//! for a record each. `lockgate-bench backlog` is where figures come from.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Instant};

use lockgate_core::{Clock as _, HolderName, Incarnation, Key, Level, Message, Now, QueueName};
use lockgate_engine::{Answer, Beginning, Driver, EngineOptions, OutputKind, Request, Work};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
use lockgate_machine::{
    Command, CreateQueue, QueueSettings, Receive, SendMessage, Settle, SettleAction,
};

/// The binary's, for a profile of what the binary does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const GROUP_LEN: usize = 1_000;
const GROUP: u64 = GROUP_LEN as u64;
const ROUNDS: usize = 3;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().expect("the first argument is a folder");
    let messages = arguments.next().map_or(10_000_000, |text| {
        text.parse().expect("the second argument is a number")
    });
    let only_kills = arguments.next().is_some_and(|text| text == "kills");
    let folder = Path::new(&folder);
    if !folder.exists() {
        fill(folder, messages);
    }
    for _ in 0..ROUNDS {
        drop(start(folder, "kill"));
    }
    if only_kills {
        return;
    }
    let mut driver = start(folder, "kill");
    let now = now(&driver);
    driver.final_snapshot(now).expect("a snapshot is written");
    drop(driver);
    for _ in 0..ROUNDS {
        drop(start(folder, "clean stop"));
    }
}

fn start(folder: &Path, after: &str) -> Driver<u64> {
    let started = Instant::now();
    let (driver, report) = open(folder);
    println!(
        "after a {after}: {:.3?}, {} records of {} MB, a snapshot of {} MB, {} messages",
        started.elapsed(),
        report.records,
        report.bytes >> 20,
        report.snapshot_bytes >> 20,
        report.messages
    );
    driver
}

fn open(folder: &Path) -> (Driver<u64>, lockgate_engine::StartReport) {
    let disk = FolderDisk::open(folder).expect("the folder can be opened");
    let log = LocalLog::open(Arc::new(disk), LocalLogOptions::default()).expect("it is free");
    let clock = SystemClock::new();
    let beginning = Beginning {
        wall: clock.wall(),
        since_boot: clock.since_boot(),
        boot_id: clock.boot_id(),
        incarnation: Incarnation(1),
        secret: [9; 32],
    };
    Driver::recover(log, &EngineOptions::default(), || beginning).expect("it starts")
}

fn now(driver: &Driver<u64>) -> Now {
    let clock = SystemClock::new();
    Now {
        wall: clock.wall(),
        machine: driver.machine_time(clock.since_boot()),
    }
}

fn fill(folder: &Path, messages: u64) {
    let (mut driver, _) = open(folder);
    let queue = QueueName::new("bench").expect("a valid name");
    let settings = QueueSettings {
        keyed: true,
        level: Level::Disk,
        ..QueueSettings::default()
    };
    let create = Command::CreateQueue(Box::new(CreateQueue {
        name: queue.clone(),
        settings,
        annotations: BTreeMap::new(),
        tags: BTreeMap::new(),
    }));
    run(&mut driver, Work::from(create));
    let keys = (messages / 10).max(1);
    let first = messages * 2 / 3;
    send(&mut driver, &queue, 0..first, keys);
    let now = now(&driver);
    driver.final_snapshot(now).expect("a snapshot is written");
    send(&mut driver, &queue, first..messages, keys);
    let mut turned = 0;
    while turned < messages / 20 {
        let receive = Receive {
            queue: queue.clone(),
            max: 100,
            key_max: None,
            lease: None,
            holder: HolderName::new("bench").expect("a valid name"),
        };
        let leases = run(
            &mut driver,
            Work::Receive {
                receive,
                until: None,
            },
        );
        let settles = leases.iter().map(|&token| {
            let action = SettleAction::Ack;
            Command::Settle(Settle { token, action })
        });
        run(&mut driver, Work::Commands(settles.collect()));
        let from = messages + turned;
        turned += leases.len() as u64;
        send(&mut driver, &queue, from..messages + turned, keys);
    }
    driver.progress().sync().expect("it syncs");
}

fn send(driver: &mut Driver<u64>, queue: &QueueName, numbers: std::ops::Range<u64>, keys: u64) {
    for first in numbers.clone().step_by(GROUP_LEN) {
        let numbers = first..numbers.end.min(first + GROUP);
        let sends = numbers.map(|number| {
            // In no order, and each as often as any other.
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys;
            let key = Key::new(&format!("user-{key}")).expect("a valid key");
            Command::Send(Box::new(SendMessage {
                queue: queue.clone(),
                message: Message::new(vec![7; 100]).with_key(key),
            }))
        });
        run(driver, Work::Commands(sends.collect()));
        if first % (64 * GROUP) == 0 {
            let durable = driver.progress().sync().expect("it syncs");
            driver.reached(durable);
        }
    }
    let durable = driver.progress().sync().expect("it syncs");
    driver.reached(durable);
}

/// The tokens of what was received.
fn run(driver: &mut Driver<u64>, work: Work) -> Vec<lockgate_core::LeaseToken> {
    let mut tokens = Vec::new();
    let now = now(driver);
    driver.run_group([Request { work, ticket: 0 }], now, &mut |output| {
        if let OutputKind::Answer { result, .. } = output.kind
            && let Answer::Received(Ok(deliveries)) = result.expect("it does not fail")
        {
            tokens.extend(deliveries.iter().map(|delivery| delivery.token));
        }
    });
    tokens
}
