//! Messages that share a payload: in the log, in compaction, in a backup.

use lockgate_core::{ExchangeName, Message, RoutingKey};
use lockgate_engine::{Work, verify_backup};
use lockgate_machine::{
    Bind, BindTo, BindingOptions, Command, CreateExchange, ExchangeKind, Pattern, Publish,
    QueueSettings, SettleAction, Unroutable, read_message,
};

use crate::{
    backup::{backup, restored},
    maintenance::options,
    support::{Shard, create, name, settle, text},
};

const QUEUES: [&str; 3] = ["a", "b", "c"];
const BODY: u64 = 4_000;

fn exchange() -> ExchangeName {
    ExchangeName::new("all").unwrap()
}

fn fanout() -> Shard {
    let mut shard = Shard::with_options(&options());
    let made = CreateExchange {
        name: exchange(),
        kind: ExchangeKind::Fanout,
        unroutable: Unroutable::Reject,
        notes: Default::default(),
    };
    shard.run(Command::CreateExchange(made)).unwrap();
    for queue in QUEUES {
        shard.run(create(queue, QueueSettings::default())).unwrap();
        let bind = Bind {
            exchange: exchange(),
            to: BindTo::Queue(name(queue)),
            pattern: Pattern::Everything,
            options: BindingOptions::default(),
            keep: false,
        };
        shard.run(Command::Bind(Box::new(bind))).unwrap();
    }
    shard
}

fn body(number: u64) -> Message {
    text(&format!("{number:08} {}", "x".repeat(BODY as usize)))
}

fn publish(shard: &mut Shard, messages: u64) {
    for first in (0..messages).step_by(100) {
        let batch = (first..messages.min(first + 100)).map(|number| {
            Command::Publish(Box::new(Publish {
                exchange: exchange(),
                routing_key: RoutingKey::new("").unwrap(),
                message: body(number),
                subject: None,
            }))
        });
        let answers = shard.group([Work::Commands(batch.collect())]);
        drop(answers);
        shard.keep();
    }
}

/// Settles those messages of a queue that `chosen` says, by their order.
fn settle_chosen(shard: &mut Shard, queue: &str, chosen: impl Fn(usize) -> bool) {
    let mut seen = 0;
    loop {
        let leases = shard.receive_now(queue, 100);
        if leases.is_empty() {
            return;
        }
        let settles = leases.iter().zip(seen..).filter(|(_, at)| chosen(*at));
        let settles: Vec<_> = settles
            .map(|(lease, _)| settle(lease.token, SettleAction::Ack))
            .collect();
        seen += leases.len();
        shard.group([Work::Commands(settles.into())]);
        shard.keep();
    }
}

/// What the log has, and the bodies of all messages in order of their queues and numbers.
fn bodies(shard: &Shard) -> Vec<(String, u64, Message)> {
    let reader = shard.driver.reader();
    let mut found = Vec::new();
    for (queue, view) in shard.driver.machine().state_view().queues {
        for (sequence, message) in view.messages {
            let record = reader.read(message.location.position).unwrap();
            let stored = read_message(&record, message.location.part).unwrap();
            assert_eq!(stored.id, message.id);
            found.push((queue.to_string(), sequence.0, stored.message));
        }
    }
    found
}

fn live(shard: &Shard) -> (u64, u64) {
    let ranges = shard.driver.machine().live_ranges();
    ranges.fold((0, 0), |(messages, bytes), (_, live)| {
        (messages + live.messages, bytes + live.bytes)
    })
}

#[test]
fn the_log_has_a_payload_once_before_and_after_compaction() {
    const MESSAGES: u64 = 3_000;
    let mut shard = fanout();
    publish(&mut shard, MESSAGES);
    let appended = shard.driver.counts().bytes;
    let most = MESSAGES * (BODY + 500);
    assert!(
        appended < most,
        "{appended} bytes of log for {MESSAGES} payloads"
    );
    let (messages, bytes) = live(&shard);
    assert_eq!(messages, 3 * MESSAGES);
    assert!(bytes < most, "{bytes} live");

    // A few copies stay in each part of the log: of some messages one, of some two, of some all.
    settle_chosen(&mut shard, "a", |at| at % 10 != 0);
    settle_chosen(&mut shard, "b", |at| at % 20 != 0);
    settle_chosen(&mut shard, "c", |at| at % 30 != 10);
    let kept = bodies(&shard);
    assert_eq!(kept.len(), 300 + 150 + 100);
    let payloads = 300; // those of queue a
    shard.keep();
    let counts = shard.driver.maintenance_counts();
    assert!(counts.compacted_messages > 0, "{counts:?}");
    assert!(
        counts.compacted_bytes < 4 * payloads * (BODY + 500),
        "{} bytes written again for {payloads} payloads",
        counts.compacted_bytes
    );
    let (messages, bytes) = live(&shard);
    assert_eq!(messages, 300 + 150 + 100);
    assert!(
        bytes < payloads * (BODY + 500),
        "{bytes} live of {payloads} payloads"
    );
    assert_eq!(bodies(&shard), kept);
    let (mut shard, _) = shard.restarted();
    assert_eq!(bodies(&shard), kept);
    for queue in QUEUES {
        settle_chosen(&mut shard, queue, |_| true);
    }
    shard.clock.advance(60_000);
    for queue in QUEUES {
        settle_chosen(&mut shard, queue, |_| true);
    }
    assert_eq!(live(&shard), (0, 0));
}

#[test]
fn a_backup_has_a_payload_once_and_a_restored_log_too() {
    const MESSAGES: u64 = 200;
    let mut shard = fanout();
    publish(&mut shard, MESSAGES);
    // The copy with the payload is gone of some, and another one of others.
    settle_chosen(&mut shard, "a", |at| at % 3 == 0);
    settle_chosen(&mut shard, "c", |at| at % 3 == 1);
    let kept = bodies(&shard);
    let (bytes, report) = backup(&mut shard);
    assert_eq!((report.messages, report.unreadable), (kept.len() as u64, 0));
    let most = MESSAGES * (BODY + 700);
    assert!(report.bytes < most, "{} bytes", report.bytes);
    let verified = verify_backup(&mut &bytes[..]).unwrap();
    assert_eq!(
        (verified.messages, verified.unreadable),
        (report.messages, 0)
    );

    let (disk, report) = restored(&bytes);
    assert_eq!((report.messages, report.dropped), (kept.len() as u64, 0));
    let (shard, _) = Shard::start(disk, shard.clock.clone(), &options());
    assert_eq!(bodies(&shard), kept);
    let (messages, bytes) = live(&shard);
    assert_eq!(messages, kept.len() as u64);
    assert!(bytes < most, "{bytes} live");
    let problems = shard.driver.machine().problems();
    assert!(problems.is_empty(), "{problems:#?}");
}
