//! Messages that share a payload: in the log, in compaction, in a backup.

use lockgate_core::{ExchangeName, Message, RoutingKey};
use lockgate_engine::{Answer, EngineError, OutputKind, StopReason, Work, verify_backup};
use lockgate_machine::{
    Bind, BindTo, BindingOptions, Command, CreateExchange, ExchangeKind, Pattern, Publish,
    QueueSettings, SettleAction, Unroutable, read_message,
};

use crate::{
    backup::{backup, restored},
    maintenance::options,
    support::{Answered, Shard, create, name, send, settle, text},
};

const QUEUES: [&str; 3] = ["a", "b", "c"];
const BODY: u64 = 4_000;

fn exchange() -> ExchangeName {
    ExchangeName::new("all").unwrap()
}

fn fanout() -> Shard {
    fanout_to(&QUEUES)
}

fn fanout_to(queues: &[impl AsRef<str>]) -> Shard {
    let mut shard = Shard::with_options(&options());
    let made = CreateExchange {
        name: exchange(),
        kind: ExchangeKind::Fanout,
        unroutable: Unroutable::Reject,
        notes: Default::default(),
    };
    shard.run(Command::CreateExchange(made)).unwrap();
    for queue in queues {
        let queue = queue.as_ref();
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
    text(&format!(
        "{number:08} {}",
        "x".repeat(usize::try_from(BODY).unwrap())
    ))
}

fn publish_of(message: Message) -> Command {
    Command::Publish(Box::new(Publish {
        exchange: exchange(),
        routing_key: RoutingKey::new("").unwrap(),
        message,
        subject: None,
    }))
}

fn publish(shard: &mut Shard, messages: u64) {
    for first in (0..messages).step_by(100) {
        let batch = (first..messages.min(first + 100)).map(|number| publish_of(body(number)));
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

/// A fanout to 100 queues, and a request of so many publishes that one group does not make all of their copies. A send behind
/// it is ticket 1.
fn overfull() -> (Shard, Vec<Answered>) {
    let queues: Vec<String> = (0..100).map(|number| format!("q{number}")).collect();
    let mut shard = fanout_to(&queues);
    shard
        .run(create("other", QueueSettings::default()))
        .unwrap();
    shard.next_ticket = 0;
    let publishes = (0..250).map(|number| publish_of(text(&number.to_string())));
    let send = send("other", text("x"));
    let works = [Work::Commands(publishes.collect()), Work::from(send)];
    let answers = shard.group(works);
    (shard, answers)
}

fn messages(shard: &Shard, queue: &str) -> usize {
    let view = shard.driver.machine().state_view();
    view.queues[&name(queue)].messages.len()
}

#[test]
fn publishes_to_many_queues_give_way_and_go_on_in_their_order() {
    let (mut shard, mut answers) = overfull();
    // The steps of finding the queues count a little, too.
    let first = messages(&shard, "q0");
    assert!((80..=100).contains(&first), "{first}");
    assert_eq!(messages(&shard, "other"), 1);
    assert!(shard.driver.is_behind());
    // Behind those that wait.
    answers.extend(shard.group([Work::from(publish_of(text("last")))]));
    assert_eq!(messages(&shard, "q99"), 2 * first);
    answers.extend(shard.group([]));
    assert_eq!(messages(&shard, "q99"), 251);
    assert!(!shard.driver.is_behind());
    answers.extend(shard.sync());
    answers.sort_by_key(|answer| answer.ticket);
    let done = answers
        .iter()
        .map(|answer| match answer.result.as_ref().unwrap() {
            Answer::Commands(results) => results.iter().filter(|result| result.is_ok()).count(),
            other => panic!("{other:?}"),
        });
    assert_eq!(done.collect::<Vec<_>>(), [250, 1, 1]);
    let bodies = bodies(&shard)
        .into_iter()
        .filter(|(queue, ..)| queue == "q99");
    let bodies: Vec<_> = bodies.map(|(.., message)| message.body).collect();
    let numbers = (0..250).map(|number| number.to_string());
    let expected: Vec<_> = numbers.chain(["last".to_owned()]).collect();
    assert_eq!(bodies, expected);
}

/// Of a request that had begun it is unknown what was done; one that had not is certain not to have been.
#[test]
fn publishes_that_wait_when_the_driver_stops_say_what_is_known() {
    let (mut shard, _) = overfull();
    let late = publish_of(text("late"));
    let _ = shard.group([Work::from(late.clone()), Work::from(late)]);
    // The first one is begun again, and the others wait behind it.
    assert!(shard.driver.is_behind());
    let mut ends = Vec::new();
    shard.driver.stop(StopReason::ShutDown, &mut |output| {
        if let OutputKind::Answer { ticket, result } = output.kind {
            ends.push((ticket, result.unwrap_err()));
        }
    });
    let [
        (0, EngineError::UnknownOutcome { .. }),
        (2, EngineError::Stopped { .. }),
        (3, EngineError::Stopped { .. }),
    ] = &ends[..]
    else {
        panic!("{ends:?}");
    };
}
