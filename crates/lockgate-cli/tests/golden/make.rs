//! Makes the folders: by the real log and engine, with a clock set by hand and fixed seeds.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use lockgate_core::{
    CatchUp, Clock as _, ExchangeName, Header, HolderName, Incarnation, Key, Message, Now, Overlap,
    QueueName, RoutingKey, ScheduleName, Timing, UniqueId, WallTime,
};
use lockgate_engine::{
    Answer, Beginning, Driver, EngineOptions, OutputKind, Request, Work, restore,
};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
use lockgate_machine::{
    Bind, BindTo, BindingOptions, ChangeSchedule, Command, CreateExchange, CreateQueue,
    DeleteExchange, DeleteQueue, DeleteSchedule, Delivery, EngineCommand, ExchangeKind,
    ExchangeNotes, Filter, FilterScope, HeaderPair, HeadersMatch, KeyFrom, Pattern, Publish,
    PutSchedule, QueueSettings, Receive, RunSchedule, ScheduleChange, ScheduleSpec, ScheduleTo,
    SendMessage, Settle, SettleAction, TopicPattern, Unbind, Unroutable, UpdateExchange,
};
use lockgate_sim::ManualClock;

/// One folder for each of these.
pub(crate) const NAMES: [&str; 11] = [
    "plain",
    "keyed-leases",
    "delayed-dedup",
    "dead-letters",
    "snapshot-trimmed",
    "damaged-middle",
    "torn-tail",
    "key-sequences",
    "failures",
    "exchanges",
    "schedules",
];

/// A backup of `keyed-leases`.
pub(crate) const BACKUP: &str = "keyed-leases.backup";

fn log(folder: &Path) -> LocalLog {
    let disk = FolderDisk::open(folder).unwrap();
    let options = LocalLogOptions {
        segment_bytes: 16 << 10,
        record_bytes_max: 4 << 10,
        free_bytes_min: 0,
        reserve_segments: 0,
        write_ahead_bytes_max: 0,
        generation_seed: Some(7),
        ..LocalLogOptions::default()
    };
    LocalLog::open(Arc::new(disk), options).unwrap()
}

/// A shard in a folder.
struct Shard {
    driver: Driver<u64>,
    clock: ManualClock,
}

impl Shard {
    fn new(folder: &Path) -> Self {
        let clock = ManualClock::new(WallTime(1_800_000_000_000));
        let beginning = Beginning {
            wall: clock.wall(),
            since_boot: clock.since_boot(),
            boot_id: clock.boot_id(),
            incarnation: Incarnation(5),
            secret: [3; 32],
        };
        let (driver, _) =
            Driver::recover(log(folder), &EngineOptions::default(), || beginning).unwrap();
        Self { driver, clock }
    }

    fn now(&self) -> Now {
        Now {
            wall: self.clock.wall(),
            machine: self.driver.machine_time(self.clock.since_boot()),
        }
    }

    fn work(&mut self, work: Work) -> Answer {
        self.clock.advance(10);
        let mut outcome = None;
        let now = self.now();
        let request = Request { work, ticket: 1 };
        self.driver.run_group([request], now, &mut |output| {
            if let OutputKind::Answer { result, .. } = output.kind {
                outcome = Some(result.unwrap());
            }
        });
        let durable = self.driver.progress().sync().unwrap();
        self.driver.reached(durable);
        outcome.unwrap()
    }

    fn run(&mut self, command: impl Into<Work>) {
        match self.work(command.into()) {
            Answer::Commands(results) => _ = results.into_iter().next().unwrap().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn create(&mut self, queue: &str, settings: QueueSettings) {
        self.run(Command::CreateQueue(Box::new(CreateQueue {
            name: QueueName::new(queue).unwrap(),
            settings,
            annotations: BTreeMap::new(),
            tags: BTreeMap::from([("team".to_owned(), "golden".to_owned())]),
        })));
    }

    fn send(&mut self, queue: &str, message: Message) {
        self.run(Command::Send(Box::new(SendMessage {
            queue: QueueName::new(queue).unwrap(),
            message,
        })));
    }

    fn receive(&mut self, queue: &str, max: u16) -> Vec<Delivery> {
        let receive = Receive {
            queue: QueueName::new(queue).unwrap(),
            max,
            key_max: None,
            lease: None,
            holder: HolderName::new("worker").unwrap(),
        };
        match self.work(Work::Receive {
            receive,
            until: None,
        }) {
            Answer::Received(deliveries) => deliveries.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, delivery: &Delivery, action: SettleAction) {
        let token = delivery.token;
        self.run(Command::Settle(Settle { token, action }));
    }
}

fn keyed() -> QueueSettings {
    QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    }
}

fn message(number: u32) -> Message {
    Message::new(format!("message {number}"))
}

fn with_key(number: u32, key: &str) -> Message {
    message(number).with_key(Key::new(key).unwrap())
}

/// Makes all folders, and the backup, in `into`.
pub(crate) fn all(into: &Path) {
    let folder = |name: &str| {
        let folder = into.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        folder
    };
    plain(&folder("plain"));
    keyed_leases(&folder("keyed-leases"), &into.join(BACKUP));
    delayed_dedup(&folder("delayed-dedup"));
    dead_letters(&folder("dead-letters"));
    snapshot_trimmed(&folder("snapshot-trimmed"), &into.join(BACKUP));
    plain(&folder("damaged-middle"));
    plain(&folder("torn-tail"));
    key_sequences(&folder("key-sequences"));
    failures(&folder("failures"));
    exchanges(&folder("exchanges"));
    schedules(&folder("schedules"));
    change(&into.join("damaged-middle"), |bytes, _end| {
        let text = b"message 2";
        let mut windows = bytes.windows(text.len());
        let at = windows.position(|window| window == text).unwrap();
        bytes[at] ^= 1;
    });
    change(&into.join("torn-tail"), |bytes, end| {
        bytes[end + 30..end + 90].fill(9);
    });
    for name in NAMES {
        // It names the process that made the folder.
        fs::remove_file(into.join(name).join("lock")).unwrap();
    }
}

/// Sends, an ack, an end in good order.
fn plain(folder: &Path) {
    let mut shard = Shard::new(folder);
    shard.create("mail", QueueSettings::default());
    for number in 1..=5 {
        shard.send("mail", message(number));
    }
    let delivery = shard.receive("mail", 1).remove(0);
    shard.settle(&delivery, SettleAction::Ack);
    shard.run(EngineCommand::EndTerm);
}

/// Keys, a lease that lasts, one that was extended, one that came back.
fn keyed_leases(folder: &Path, backup: &Path) {
    let mut shard = Shard::new(folder);
    shard.create("orders", keyed());
    for number in 0..9 {
        shard.send(
            "orders",
            with_key(number, ["a", "b", "c"][number as usize % 3]),
        );
    }
    let first = shard.receive("orders", 1).remove(0);
    shard.settle(&first, SettleAction::Extend { lease: 60_000 });
    let second = shard.receive("orders", 1).remove(0);
    shard.settle(
        &second,
        SettleAction::Nack {
            delay: 5_000,
            reason: None,
        },
    );
    let third = shard.receive("orders", 1).remove(0);
    shard.settle(&third, SettleAction::Ack);
    shard.receive("orders", 2);
    let mut bytes = Vec::new();
    let now = shard.now();
    shard.driver.backup(now, &mut bytes).unwrap();
    fs::write(backup, bytes).unwrap();
}

/// Due times and unique ids.
fn delayed_dedup(folder: &Path) {
    let mut shard = Shard::new(folder);
    shard.create("later", keyed());
    let due = shard.clock.wall().plus(3_600_000);
    for number in 0..3 {
        let id = UniqueId::new(&format!("id-{number}")).unwrap();
        shard.send("later", with_key(number, "k").with_unique_id(id.clone()));
        shard.send("later", with_key(number, "k").with_unique_id(id));
        let due = due.plus(u64::from(number) * 1_000);
        shard.send("later", with_key(number, "d").with_due(due));
    }
}

/// A message that was rejected, and one that failed too often.
fn dead_letters(folder: &Path) {
    let mut shard = Shard::new(folder);
    shard.create("dead", keyed());
    let dead_letter = Some(QueueName::new("dead").unwrap());
    shard.create(
        "orders",
        QueueSettings {
            dead_letter,
            attempts_max: 1,
            ..keyed()
        },
    );
    for number in 0..4 {
        shard.send("orders", with_key(number, "k"));
    }
    let first = shard.receive("orders", 1).remove(0);
    let reason = Some("it is no order".into());
    shard.settle(&first, SettleAction::Reject { reason });
    let second = shard.receive("orders", 1).remove(0);
    shard.settle(
        &second,
        SettleAction::Nack {
            delay: 0,
            reason: None,
        },
    );
    shard.receive("orders", 1);
}

/// A log that begins with a snapshot, as a restore leaves it.
fn snapshot_trimmed(folder: &Path, backup: &Path) {
    let backup = fs::read(backup).unwrap();
    restore(&mut &backup[..], log(folder), None).unwrap();
    let mut shard = Shard::new(folder);
    shard.send("orders", with_key(9, "d"));
}

/// Numbers key by key: counts in a snapshot, of keys that have messages and of one that has none, and
/// messages behind it that go on from there.
fn key_sequences(folder: &Path) {
    let mut shard = Shard::new(folder);
    let settings = QueueSettings {
        key_sequences_max: 2,
        ..keyed()
    };
    shard.create("orders", settings);
    for (number, key) in (0..).zip(["gone", "a", "b", "a"]) {
        shard.send("orders", with_key(number, key));
    }
    for _ in 0..2 {
        let delivery = shard.receive("orders", 1).remove(0);
        shard.settle(&delivery, SettleAction::Ack);
    }
    let mut backup = Vec::new();
    let now = shard.now();
    shard.driver.backup(now, &mut backup).unwrap();
    drop(shard);
    fs::remove_dir_all(folder).unwrap();
    restore(&mut &backup[..], log(folder), None).unwrap();
    let mut shard = Shard::new(folder);
    for (number, key) in (4..).zip(["a", "b", "gone", "a"]) {
        shard.send("orders", with_key(number, key));
    }
}

/// Failures with reasons: of a dead letter in a snapshot, and behind it of one that comes again.
fn failures(folder: &Path) {
    let mut shard = Shard::new(folder);
    shard.create("dead", keyed());
    let settings = QueueSettings {
        dead_letter: Some(QueueName::new("dead").unwrap()),
        attempts_max: 2,
        ..keyed()
    };
    shard.create("orders", settings);
    for number in 0..2 {
        shard.send("orders", with_key(number, "k"));
    }
    let fail = |shard: &mut Shard, reason: &str| {
        let delivery = shard.receive("orders", 1).remove(0);
        let reason = Some(reason.into());
        shard.settle(&delivery, SettleAction::Nack { delay: 0, reason });
    };
    fail(&mut shard, "no stock");
    fail(&mut shard, "the warehouse does not answer");
    fail(&mut shard, "no address");
    let mut backup = Vec::new();
    let now = shard.now();
    shard.driver.backup(now, &mut backup).unwrap();
    drop(shard);
    fs::remove_dir_all(folder).unwrap();
    restore(&mut &backup[..], log(folder), None).unwrap();
    let mut shard = Shard::new(folder);
    fail(&mut shard, "still no address");
}

/// Exchanges of every kind in a snapshot, with bindings of every sort, and behind it publishes, a change and a removal.
pub(crate) fn exchanges(folder: &Path) {
    let mut shard = Shard::new(folder);
    let queue = |name: &str| BindTo::Queue(QueueName::new(name).unwrap());
    let exchange = |name: &str| ExchangeName::new(name).unwrap();
    shard.create("mail", QueueSettings::default());
    shard.create("orders", keyed());
    let small = QueueSettings {
        quota_messages: Some(1),
        ..QueueSettings::default()
    };
    shard.create("small", small);
    for (name, kind, unroutable) in [
        ("rest", ExchangeKind::Fanout, Unroutable::Drop),
        ("direct", ExchangeKind::Direct, Unroutable::Reject),
        ("headers", ExchangeKind::Headers, Unroutable::Reject),
        (
            "topic",
            ExchangeKind::Topic,
            Unroutable::Alternate(exchange("rest")),
        ),
    ] {
        let name = exchange(name);
        let notes = ExchangeNotes {
            tags: [("team".to_owned(), "shop".to_owned())].into(),
            ..ExchangeNotes::default()
        };
        shard.run(Command::from(CreateExchange {
            name,
            kind,
            unroutable,
            notes,
        }));
    }
    let pair = HeaderPair {
        name: "shop".into(),
        value: Some("7".into()),
    };
    let headers = HeadersMatch::any(vec![pair]).unwrap();
    let policy = r#"{"shop": ["7", {"prefix": "8"}]}"#;
    let filter = Filter::new(FilterScope::Headers, policy).unwrap();
    let topic = |text: &str| Pattern::Topic(TopicPattern::new(text).unwrap());
    let direct = Pattern::RoutingKey(RoutingKey::new("new").unwrap());
    let plain = BindingOptions::default;
    let bind = |name: &str, to, pattern, options| {
        Command::from(Bind {
            keep: false,
            exchange: exchange(name),
            to,
            pattern,
            options,
        })
    };
    let keyed_by = |from| BindingOptions {
        key_from: Some(from),
        ..plain()
    };
    for bind in [
        bind("direct", queue("mail"), direct, plain()),
        bind(
            "topic",
            queue("mail"),
            topic("orders.new.*"),
            BindingOptions {
                envelope: Some("arn:aws:sns:us-east-1:000000000000:orders".into()),
                overflow: Some(QueueName::new("dead").unwrap()),
                ..plain()
            },
        ),
        bind(
            "headers",
            queue("orders"),
            Pattern::Headers(headers.into()),
            keyed_by(KeyFrom::Header("shop".into())),
        ),
        bind(
            "topic",
            queue("orders"),
            topic("orders.*.eu"),
            keyed_by(KeyFrom::RoutingKey),
        ),
        bind(
            "topic",
            queue("small"),
            topic("orders.#"),
            BindingOptions {
                skip_when_full: true,
                ..plain()
            },
        ),
        bind(
            "topic",
            BindTo::Exchange(exchange("headers")),
            topic("#"),
            BindingOptions {
                filter: Some(filter),
                ..plain()
            },
        ),
    ] {
        shard.run(bind);
    }
    let publish = |name: &str, routing_key: &str, number: u32, shop: &str| {
        let mut message =
            message(number).with_unique_id(UniqueId::new(&format!("id-{number}")).unwrap());
        message.headers = vec![Header {
            name: "shop".into(),
            kind: "String".into(),
            value: shop.to_owned().into(),
        }];
        Command::from(Publish {
            subject: None,
            exchange: exchange(name),
            routing_key: RoutingKey::new(routing_key).unwrap(),
            message,
        })
    };
    shard.run(publish("topic", "orders.new.eu", 1, "7"));
    let mut backup = Vec::new();
    let now = shard.now();
    shard.driver.backup(now, &mut backup).unwrap();
    drop(shard);
    fs::remove_dir_all(folder).unwrap();
    restore(&mut &backup[..], log(folder), None).unwrap();
    let mut shard = Shard::new(folder);
    // One that is known, one for which a queue is full, one that goes by an exchange, one that goes nowhere.
    shard.run(publish("topic", "orders.new.eu", 1, "7"));
    shard.run(publish("topic", "orders.new.eu", 2, "9"));
    shard.run(publish("topic", "returns", 3, "7"));
    shard.run(publish("topic", "returns", 4, "9"));
    shard.run(bind("rest", queue("mail"), Pattern::Everything, plain()));
    shard.run(publish("topic", "returns", 5, "9"));
    shard.run(Command::from(UpdateExchange {
        notes: None,
        exchange: exchange("direct"),
        unroutable: Some(Unroutable::Drop),
    }));
    shard.run(Command::from(Unbind {
        exchange: exchange("topic"),
        to: queue("small"),
        pattern: topic("orders.#"),
    }));
    shard.run(Command::from(DeleteExchange {
        exchange: exchange("headers"),
        force: true,
    }));
    shard.run(Command::DeleteQueue(DeleteQueue {
        queue: QueueName::new("small").unwrap(),
    }));
    let copy = shard.receive("orders", 1).remove(0);
    shard.settle(&copy, SettleAction::Ack);
    drop(shard);
}

/// Schedules of each timing, that have fired, wait, are paused, moved, run by hand and deleted.
fn schedules(folder: &Path) {
    let mut shard = Shard::new(folder);
    shard.create("mail", QueueSettings::default());
    shard.create("jobs", keyed());
    let news = ExchangeName::new("news").unwrap();
    shard.run(Command::from(CreateExchange {
        name: news.clone(),
        kind: ExchangeKind::Fanout,
        unroutable: Unroutable::Drop,
        notes: ExchangeNotes::default(),
    }));
    let name = |name: &str| ScheduleName::new(name).unwrap();
    let to = |queue: &str| ScheduleTo::Queue(QueueName::new(queue).unwrap());
    let second = shard.clock.wall().plus(1_000);
    let every = Timing::Every {
        period: 1_000,
        from: None,
    };
    let cron = Timing::Cron {
        expression: "*/2 * * * * *".into(),
        zone: "UTC".into(),
    };
    let of_news = ScheduleTo::Exchange {
        exchange: news,
        routing_key: RoutingKey::new("a.b").unwrap(),
    };
    let specs = [
        ("once", Timing::At(second), to("mail"), message(1)),
        ("waits", every.clone(), to("jobs"), with_key(2, "k")),
        ("news", cron, of_news, message(3)),
        ("paused", every.clone(), to("mail"), message(4)),
        ("moved", every.clone(), to("mail"), message(5)),
        ("gone", every, to("mail"), message(6)),
    ];
    for (of, timing, to, message) in specs {
        let mut spec = ScheduleSpec::new(timing, to, message);
        if of == "waits" {
            (spec.overlap, spec.catch_up) = (Overlap::Queue, CatchUp::All);
        }
        shard.run(Command::from(PutSchedule {
            name: name(of),
            spec: Arc::new(spec),
            next: Some(second),
            generation: None,
        }));
    }
    let change = |of: &str, change| {
        let (name, generation) = (name(of), None);
        Command::from(ChangeSchedule {
            name,
            change,
            generation,
        })
    };
    shard.run(change("paused", ScheduleChange::Pause));
    let later = shard.clock.wall().plus(3_600_000);
    shard.run(change("moved", ScheduleChange::Move(later)));
    for _ in 0..3 {
        shard.clock.advance(1_000);
        shard.send("mail", message(7));
    }
    let generation = None;
    shard.run(Command::from(RunSchedule {
        name: name("paused"),
        generation,
    }));
    shard.run(Command::from(DeleteSchedule {
        name: name("gone"),
        generation,
    }));
    drop(shard);
}

/// Changes the bytes of the first segment; the second argument is where its records end.
fn change(folder: &Path, change: impl FnOnce(&mut Vec<u8>, usize)) {
    let file = folder.join("00000001.log");
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes.resize(bytes.len().max(end + 200), 0);
    change(&mut bytes, end);
    fs::write(&file, bytes).unwrap();
}
