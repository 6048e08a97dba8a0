//! Who holds which key while the database is stopped again and again in the middle of the work.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use lockgate_core::{BootId, Clock, HolderName, Level, Millis, WallTime};
use lockgate_engine::{Engine, EngineError, EngineOptions};
use lockgate_log::SystemClock;
use lockgate_machine::{
    Command, CreateQueue, DescribeQueue, Query, QueryReply, QueueSettings, Receive, Settle,
    SettleAction,
};
use lockgate_postgres::{PostgresLog, PostgresLogOptions};
use tokio::{runtime::Runtime, sync::watch};

use crate::{
    engine::{queue, send},
    server::{Server, batch, shared_server},
};

const MESSAGES: u64 = 6_000;
const STOPS: u64 = 5;
const LEASE: Millis = 6_000;
const PRODUCERS: usize = 4;
const KEYS_EACH: usize = 10;
const CONSUMERS: usize = 8;

/// Messages that wait at least and at most, so that there is something to receive and to send at every stop.
const AHEAD: std::ops::Range<u64> = 200..1_000;

/// Runs as the system's, and can be moved on.
#[derive(Default)]
struct Hurried {
    clock: SystemClock,
    ahead: AtomicU64,
}

impl Clock for Hurried {
    fn wall(&self) -> WallTime {
        WallTime(self.clock.wall().0 + self.ahead.load(Relaxed))
    }

    fn since_boot(&self) -> Millis {
        self.clock.since_boot() + self.ahead.load(Relaxed)
    }

    fn boot_id(&self) -> BootId {
        self.clock.boot_id()
    }
}

/// What is under way.
#[derive(Clone)]
enum Phase {
    Working(Engine),
    /// Who receives now keeps what it got, and nothing else is begun: leases are the last that the database
    /// was told of.
    Keeping(Engine),
    Stopped,
    Ended,
}

/// What happened to the messages of a key.
#[derive(Default)]
struct OfKey {
    /// The end of the last lease, unless its holder has begun to acknowledge.
    held_until: Option<Millis>,
    /// The highest number delivered.
    delivered: Option<u64>,
    /// Numbers whose send was answered.
    sent: BTreeSet<u64>,
    /// Numbers of which an acknowledgement was begun, and was not refused.
    given_up: BTreeSet<u64>,
    /// Numbers whose acknowledgement was answered.
    acknowledged: BTreeSet<u64>,
}

#[derive(Default)]
struct Book {
    keys: BTreeMap<usize, OfKey>,
    sent: u64,
    acknowledged: u64,
    /// Sends without an answer, and acknowledgements.
    unknown: u64,
    unknown_settles: u64,
    deliveries: u64,
    /// Messages that are kept over the next stop.
    kept: u64,
    faults: Vec<String>,
}

impl Book {
    /// Messages sent and not acknowledged, about.
    fn waiting(&self) -> u64 {
        self.sent.saturating_sub(self.acknowledged)
    }

    fn deliver(&mut self, key: usize, number: u64, now: Millis, until: Millis) {
        let of_key = self.keys.entry(key).or_default();
        let mut fault = |what: String| self.faults.push(format!("key {key}, {number}: {what}"));
        if let Some(held) = of_key.held_until.filter(|&end| end > now) {
            fault(format!("somebody holds the key for {} ms more", held - now));
        }
        if of_key.acknowledged.contains(&number) {
            fault("it was acknowledged".to_owned());
        }
        if of_key.delivered.is_some_and(|last| last > number) {
            fault("one behind it came before".to_owned());
        }
        let mut before = of_key.sent.range(..number);
        if let Some(before) = before.find(|before| !of_key.given_up.contains(before)) {
            fault(format!("{before} was not settled"));
        }
        of_key.held_until = Some(until);
        of_key.delivered = of_key.delivered.max(Some(number));
        self.deliveries += 1;
    }
}

struct Scene {
    clock: Arc<Hurried>,
    book: Mutex<Book>,
    changed: Condvar,
    phase: watch::Sender<Phase>,
}

impl Scene {
    fn change<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        let changed = change(&mut self.book.lock().unwrap());
        self.changed.notify_all();
        changed
    }

    fn wait(&self, until: impl Fn(&Book) -> bool) {
        let book = self.book.lock().unwrap();
        drop(self.changed.wait_while(book, |book| !until(book)).unwrap());
    }

    /// Whether it came to that soon.
    fn comes(&self, until: impl Fn(&Book) -> bool) -> bool {
        let book: MutexGuard<'_, Book> = self.book.lock().unwrap();
        let soon = Duration::from_millis(20);
        let waited = self
            .changed
            .wait_timeout_while(book, soon, |book| !until(book));
        !waited.unwrap().1.timed_out()
    }

    /// The engine that takes sends, when there is one; `None` at the end.
    async fn working(&self) -> Option<Engine> {
        let mut phases = self.phase.subscribe();
        let settled = |phase: &Phase| matches!(phase, Phase::Working(_) | Phase::Ended);
        match &*phases.wait_for(settled).await.unwrap() {
            Phase::Working(engine) => Some(engine.clone()),
            _ => None,
        }
    }

    /// The engine that gives leases, when there is one; `None` at the end.
    async fn giving(&self) -> Option<Engine> {
        let mut phases = self.phase.subscribe();
        let settled = |phase: &Phase| !matches!(phase, Phase::Stopped);
        match &*phases.wait_for(settled).await.unwrap() {
            Phase::Working(engine) | Phase::Keeping(engine) => Some(engine.clone()),
            _ => None,
        }
    }

    async fn produce(&self, producer: usize) {
        let mut number = 0;
        while number < MESSAGES / PRODUCERS as u64 {
            let Some(engine) = self.working().await else {
                return;
            };
            let is_ahead = self.change(|book| book.waiting() >= AHEAD.end);
            if is_ahead {
                // The pace, and nothing that anything waits for.
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            }
            let key = producer * KEYS_EACH + usize::try_from(number).unwrap() % KEYS_EACH;
            let body = format!("{key} {number}");
            match engine.submit(send(&queue(), &body, key)).await {
                Ok(_) => self.change(|book| {
                    book.keys.entry(key).or_default().sent.insert(number);
                    book.sent += 1;
                }),
                // It may be there or not, and is not looked for.
                Err(EngineError::UnknownOutcome { .. }) => {
                    self.change(|book| book.unknown += 1);
                    self.stopped(&engine).await;
                }
                Err(_) => {
                    self.stopped(&engine).await;
                    continue;
                }
            }
            number += 1;
        }
    }

    async fn consume(&self, consumer: usize) {
        let receive = Receive {
            queue: queue(),
            max: 1,
            key_max: None,
            lease: None,
            holder: HolderName::new(&format!("consumer-{consumer}")).unwrap(),
        };
        while let Some(engine) = self.giving().await {
            let is_scarce = self.change(|book| {
                let all_sent = book.sent + book.unknown >= MESSAGES;
                book.waiting() < AHEAD.start && !all_sent
            });
            if is_scarce && matches!(&*self.phase.borrow(), Phase::Working(_)) {
                // The pace, as above.
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            }
            let wait = Duration::from_secs(1);
            let Ok(batch) = engine.receive(receive.clone(), wait).await else {
                self.stopped(&engine).await;
                continue;
            };
            let Some(received) = batch.keep().pop() else {
                continue;
            };
            let body = String::from_utf8(received.stored.message.body.to_vec()).unwrap();
            let (key, number) = body.split_once(' ').unwrap();
            let (key, number) = (key.parse().unwrap(), number.parse().unwrap());
            let left = engine.remaining(received.delivery.deadline).as_millis();
            let now = self.clock.since_boot();
            let until = now + u64::try_from(left).unwrap();
            self.change(|book| book.deliver(key, number, now, until));
            // The work.
            tokio::time::sleep(Duration::from_millis(1)).await;
            let keeps = matches!(&*self.phase.borrow(), Phase::Keeping(_));
            if keeps {
                self.change(|book| book.kept += 1);
                self.stopped(&engine).await;
                continue;
            }
            self.change(|book| {
                let of_key = book.keys.entry(key).or_default();
                // It no longer counts on the key.
                of_key.held_until = of_key.held_until.filter(|&end| end != until);
                of_key.given_up.insert(number);
            });
            let settle = Settle {
                token: received.delivery.token,
                action: SettleAction::Ack,
            };
            let settled = engine.submit(Command::Settle(settle)).await;
            self.change(|book| {
                let of_key = book.keys.entry(key).or_default();
                match settled {
                    Ok(_) => {
                        of_key.acknowledged.insert(number);
                        book.acknowledged += 1;
                    }
                    Err(EngineError::UnknownOutcome { .. }) => book.unknown_settles += 1,
                    // It certainly did not happen.
                    Err(_) => {
                        of_key.given_up.remove(&number);
                    }
                }
            });
        }
    }

    /// Waits until the engine has stopped and everybody knows.
    async fn stopped(&self, engine: &Engine) {
        engine.stopped().await;
        let is_another = |phase: &Phase| match phase {
            Phase::Working(next) => next.term() != engine.term(),
            Phase::Keeping(_) => false,
            Phase::Stopped | Phase::Ended => true,
        };
        let mut phases = self.phase.subscribe();
        drop(phases.wait_for(is_another).await.unwrap());
    }

    fn start(&self, url: &str) -> Engine {
        let log = PostgresLog::open(url, "shard", PostgresLogOptions::default()).unwrap();
        let mut options = EngineOptions::default();
        // So that nothing is synced but what is asked for.
        options.sync_window.after = Some(3_600_000);
        let (engine, report) = Engine::start(log, self.clock.clone(), options).unwrap();
        assert!(report.damaged.is_empty(), "{report:?}");
        engine
    }
}

fn waiting(runtime: &Runtime, engine: &Engine) -> u64 {
    let query = Query::DescribeQueue(DescribeQueue { queue: queue() });
    let QueryReply::Queue(queue) = runtime.block_on(engine.query(query)).unwrap() else {
        panic!("another kind of answer");
    };
    queue.counts.ready + queue.counts.in_flight
}

#[test]
fn no_key_has_two_holders_while_the_database_is_stopped_again_and_again() {
    let name = "no_key_has_two_holders_while_the_database_is_stopped_again_and_again";
    if shared_server(name).is_none() {
        return;
    }
    let server = Server::start();
    // What nobody waits for stays in the memory of the server.
    batch(&server.url, "ALTER SYSTEM SET wal_writer_delay = '10s'");
    server.crash();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let scene = Arc::new(Scene {
        clock: Arc::default(),
        book: Mutex::default(),
        changed: Condvar::new(),
        phase: watch::channel(Phase::Stopped).0,
    });
    let mut engine = scene.start(&server.url);
    let create = Command::CreateQueue(Box::new(CreateQueue {
        name: queue(),
        settings: QueueSettings {
            keyed: true,
            level: Level::Disk,
            lease: LEASE,
            ..QueueSettings::default()
        },
        annotations: BTreeMap::new(),
        tags: BTreeMap::new(),
    }));
    runtime.block_on(engine.submit(create)).unwrap();
    scene.phase.send_replace(Phase::Working(engine.clone()));
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let scene = scene.clone();
            runtime.spawn(async move { scene.produce(producer).await })
        })
        .collect();
    let consumers: Vec<_> = (0..CONSUMERS)
        .map(|consumer| {
            let scene = scene.clone();
            runtime.spawn(async move { scene.consume(consumer).await })
        })
        .collect();

    let mut kept = 0;
    for stop in 1..=STOPS {
        let due = MESSAGES * stop / (STOPS + 1);
        scene.wait(|book| book.acknowledged >= due);
        // Every other time in the middle of sends and acknowledgements, whose syncs have leases synced too.
        if stop % 2 == 1 {
            scene.phase.send_replace(Phase::Keeping(engine.clone()));
            scene.wait(|book| book.kept >= CONSUMERS as u64);
        }
        server.abort();
        runtime.block_on(async {
            assert!(engine.stopped().await.is_failure());
            scene.phase.send_replace(Phase::Stopped);
            engine.shutdown().await;
        });
        let deliveries = scene.change(|book| {
            kept += std::mem::take(&mut book.kept);
            book.deliveries
        });
        server.start_again();
        engine = scene.start(&server.url);
        scene.phase.send_replace(Phase::Working(engine.clone()));
        // What is held back is held back for half a minute: here time passes faster.
        while !scene.comes(|book| book.deliveries > deliveries) {
            scene.clock.ahead.fetch_add(500, Relaxed);
            engine.clock_changed();
        }
    }
    runtime.block_on(async {
        for producer in producers {
            producer.await.unwrap();
        }
    });
    while waiting(&runtime, &engine) > 0 {
        scene.comes(|_| false);
    }
    scene.phase.send_replace(Phase::Ended);
    runtime.block_on(async {
        for consumer in consumers {
            consumer.await.unwrap();
        }
        engine.shutdown().await;
    });
    let book = scene.book.lock().unwrap();
    println!(
        "{} sends and {} acknowledgements answered, {} and {} without an answer, {} deliveries, {kept} kept \
         over {STOPS} stops",
        book.sent, book.acknowledged, book.unknown, book.unknown_settles, book.deliveries
    );
    let faults = &book.faults[..book.faults.len().min(10)];
    assert!(
        book.faults.is_empty(),
        "{} faults: {faults:#?}",
        book.faults.len()
    );
    for (key, of_key) in &book.keys {
        let mut lost = of_key.sent.difference(&of_key.given_up);
        assert_eq!(lost.next(), None, "key {key}: lost");
    }
}
