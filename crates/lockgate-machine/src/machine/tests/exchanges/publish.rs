//! What a publish does to queues.

use lockgate_core::{
    HolderName, Message, Produced, ProducerIncarnation, ProducerMark, ProducerName, UniqueId,
};

use super::*;
use crate::{
    LiveRange, Payload, Publication, Publish, Receive, Settle, SettleAction, encode_record,
    read_message,
};

pub(super) fn publish(to: &str, routing_key: &str, body: &str) -> Publish {
    Publish {
        exchange: exchange(to),
        routing_key: key(routing_key),
        message: Message::new(body.to_owned()),
        subject: None,
    }
}

pub(super) fn queue_with(run: &mut Run, text: &str, settings: QueueSettings) {
    let create = CreateQueue {
        name: name(text),
        settings,
        annotations: Default::default(),
        tags: Default::default(),
    };
    run.give(&Command::CreateQueue(Box::new(create))).unwrap();
}

fn got(published: &Publication) -> Vec<&str> {
    let copies = published.copies.iter();
    copies.map(|copied| copied.queue.as_str()).collect()
}

pub(super) fn messages(run: &Run, queues: &[&str]) -> Vec<u64> {
    let ready = |queue: &&str| run.describe(queue).counts.ready;
    queues.iter().map(ready).collect()
}

#[test]
fn every_queue_gets_the_message_by_one_record_or_none_does() {
    let mut run = with_queues(&["a", "b"]);
    let small = QueueSettings {
        quota_messages: Some(1),
        ..QueueSettings::default()
    };
    queue_with(&mut run, "small", small);
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    for queue in ["a", "small", "b"] {
        bind(&mut run, "e", to_queue(queue), Pattern::Everything);
    }
    let records = run.log.len();
    let published = give(&mut run, publish("e", "", "one")).unwrap();
    assert_eq!(got(&published), ["a", "small", "b"]);
    assert_eq!((published.skipped, published.dropped), (0, false));
    assert_eq!(run.log.len(), records + 1);
    assert_eq!(messages(&run, &["a", "small", "b"]), [1, 1, 1]);

    // One that is full makes all refuse, wherever it stands.
    let refused = give(&mut run, publish("e", "", "two")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "queue small refused the message that was published to exchange e: queue small is full: its quota_messages is 1. Receive some messages, or \
         raise the quota"
    );
    assert_eq!(messages(&run, &["a", "small", "b"]), [1, 1, 1]);

    // Unless its binding says otherwise.
    let mut skips = binding("e", to_queue("small"), Pattern::Everything);
    skips.options.skip_when_full = true;
    give(&mut run, skips).unwrap();
    let published = give(&mut run, publish("e", "", "three")).unwrap();
    assert_eq!((got(&published), published.skipped), (vec!["a", "b"], 1));
    let counts = ExchangeCounts {
        published: 2,
        copies: 5,
        skipped: 1,
        ..ExchangeCounts::default()
    };
    assert_eq!(describe(&run, "e").counts, counts);
    run.check_recovery();
}

#[test]
fn a_copy_has_the_settings_of_its_queue() {
    let mut run = Run::new();
    let keyed = QueueSettings {
        keyed: true,
        dedup_window: 300_000,
        ..QueueSettings::default()
    };
    queue_with(&mut run, "keyed", keyed);
    let later = QueueSettings {
        delay: 1_000,
        dedup_window: 0,
        ..QueueSettings::default()
    };
    queue_with(&mut run, "later", later);
    make(&mut run, "e", ExchangeKind::Topic, Unroutable::Reject);
    let mut by_user = binding("e", to_queue("keyed"), by_topic("orders.#"));
    by_user.options.key_from = Some(KeyFrom::Header("user".into()));
    give(&mut run, by_user).unwrap();
    bind(&mut run, "e", to_queue("later"), by_topic("*.*.eu"));
    let mut order = publish("e", "orders.new.eu", "x");
    let refused = give(&mut run, order.clone()).unwrap_err().to_string();
    assert!(refused.contains("keyed"), "without a key: {refused}");
    order.message.headers = vec![header("user", "7")];
    order.message.unique_id = UniqueId::new("o-1").ok();
    let first = give(&mut run, order.clone()).unwrap();
    assert_eq!(got(&first), ["keyed", "later"]);
    assert_eq!(messages(&run, &["keyed", "later"]), [1, 0]);
    assert_eq!(run.describe("later").counts.delayed, 1);
    // Known by the queue that remembers it.
    let again = give(&mut run, order).unwrap();
    assert_eq!(again.copies[0].sent.id, first.copies[0].sent.id);
    let duplicates: Vec<_> = again.copies.iter().map(|it| it.sent.duplicate).collect();
    assert_eq!(duplicates, [true, false]);
    assert_eq!(run.describe("keyed").totals.duplicates, 1);
    let counts = describe(&run, "e").counts;
    assert_eq!((counts.published, counts.copies), (2, 3));
    run.check_recovery();
}

#[test]
fn what_no_queue_takes_is_refused_or_dropped_and_counted() {
    let mut run = with_queues(&["rest"]);
    make(&mut run, "strict", ExchangeKind::Direct, Unroutable::Reject);
    make(&mut run, "lax", ExchangeKind::Direct, Unroutable::Drop);
    make(&mut run, "all", ExchangeKind::Fanout, Unroutable::Reject);
    make(&mut run, "e", ExchangeKind::Direct, alternate("all"));
    bind(&mut run, "all", to_queue("rest"), Pattern::Everything);
    let refused = give(&mut run, publish("strict", "x", "1")).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "exchange strict has no queue for the message"
    );
    assert_eq!(describe(&run, "strict").counts.refused, 1);
    assert!(give(&mut run, publish("lax", "x", "1")).unwrap().dropped);
    let counts = describe(&run, "lax").counts;
    let dropped = (counts.published, counts.unroutable, counts.dropped);
    assert_eq!(dropped, (1, 1, 1));
    let published = give(&mut run, publish("e", "x", "1")).unwrap();
    assert_eq!(got(&published), ["rest"]);
    let counts = describe(&run, "e").counts;
    let rest = (counts.copies, counts.unroutable, counts.dropped);
    assert_eq!(rest, (1, 1, 0));
    run.check_recovery();
}

#[test]
fn a_record_of_a_producer_is_not_published() {
    let mut run = with_queues(&["a"]);
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    bind(&mut run, "e", to_queue("a"), Pattern::Everything);
    let mut marked = publish("e", "", "x");
    let mark = ProducerMark::new(ProducerName::new("p").unwrap(), 1, 0, 1).unwrap();
    marked.message.producer = Some(Box::new(Produced {
        mark,
        incarnation: ProducerIncarnation(1),
        after: 0,
    }));
    let refused = give(&mut run, marked).unwrap_err();
    assert!(refused.to_string().contains("no mark"), "{refused}");
}

/// One publish goes to as many queues as it may, and its messages are found by their places in the record.
#[test]
fn a_publish_to_many_queues_is_one_record() {
    const QUEUES: usize = 4_000;
    let mut run = Run::new();
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    for queue in 0..QUEUES {
        let queue = format!("q{queue}");
        make_queue(&mut run, &queue);
        quick(
            &mut run,
            binding("e", to_queue(&queue), Pattern::Everything),
        )
        .unwrap();
    }
    let long = "x".repeat(1_024);
    let mut large = publish("e", "", "x");
    large.message.key = Some(Key::new(&long).unwrap());
    large.message.unique_id = Some(UniqueId::new(&long).unwrap());
    let large = give(&mut run, large).map(|_| ()).unwrap_err();
    assert!(large.to_string().contains("8388608 bytes"), "{large}");
    let published = give(&mut run, publish("e", "", &"x".repeat(100_000))).unwrap();
    assert_eq!(published.copies.len(), QUEUES);
    let (position, effects) = run.log.last().unwrap();
    let mut record = Vec::new();
    encode_record(effects, &mut record);
    assert!(
        record.len() < 100_000 + QUEUES * 50,
        "{} bytes",
        record.len()
    );
    let record = Bytes::from(record);
    // The first, the last, and some between.
    for copied in published
        .copies
        .iter()
        .step_by(QUEUES / 20 + 1)
        .chain(published.copies.last())
    {
        let id = copied.sent.id;
        let at = run.machine.location(id.queue(), id.sequence()).unwrap();
        assert_eq!(at.position, *position);
        let stored = read_message(&record, at.part).unwrap();
        assert_eq!((stored.id, stored.message.body.len()), (id, 100_000));
    }
    run.check_recovery();
}

fn live(run: &Run) -> LiveRange {
    let ranges = run.machine.live_ranges().map(|(_, live)| live);
    ranges.fold(LiveRange::default(), |sum, live| LiveRange {
        messages: sum.messages + live.messages,
        bytes: sum.bytes + live.bytes,
    })
}

fn settle_one(run: &mut Run, queue: &str) {
    let receive = Receive {
        queue: name(queue),
        max: 1,
        key_max: None,
        lease: None,
        holder: HolderName::new("worker").unwrap(),
    };
    let Ok(Reply::Received(deliveries)) = run.give(&Command::Receive(receive)) else {
        panic!("nothing can be received of {queue}");
    };
    let settle = Settle {
        token: deliveries[0].token,
        action: SettleAction::Ack,
    };
    run.give(&Command::Settle(settle)).unwrap();
}

/// However a copy goes, the payload counts once until the last one is gone.
#[test]
fn a_payload_counts_once_until_its_last_copy_is_gone() {
    const OF_EACH: u64 = 80;
    let mut run = with_queues(&["a", "b", "c", "dead"]);
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    for queue in ["a", "b", "c"] {
        bind(&mut run, "e", to_queue(queue), Pattern::Everything);
    }
    let expect = |run: &Run, messages: u64, payloads: u64| {
        let bytes = messages * OF_EACH + payloads * 1_000;
        assert_eq!(live(run), LiveRange { messages, bytes });
    };
    give(&mut run, publish("e", "", &"x".repeat(1_000))).unwrap();
    expect(&run, 3, 1);
    run.lines("purge a");
    while run.machine.housekeep(10).is_unfinished() {}
    expect(&run, 2, 1);
    // It is moved to another queue, and is the only one for a moment.
    settle_one(&mut run, "b");
    expect(&run, 1, 1);
    run.lines("move c dead 10");
    expect(&run, 1, 1);
    run.check_recovery();
    settle_one(&mut run, "dead");
    expect(&run, 0, 0);
    run.check_recovery();
}

fn enveloped(topic: &str) -> BindingOptions {
    BindingOptions {
        envelope: Some(topic.into()),
        ..BindingOptions::default()
    }
}

/// The bodies and the headers of the copies that a command makes, by queue.
fn copies(run: &mut Run, command: impl Into<Command>) -> Vec<(QueueId, Bytes, usize)> {
    let decision = run.machine.decide(&command.into(), run.now);
    decision.outcome.unwrap();
    let mut record = Vec::new();
    encode_record(&decision.effects, &mut record);
    let record = Bytes::from(record);
    let copies = (0..)
        .zip(&decision.effects)
        .filter_map(|(part, effect)| match effect {
            Effect::Accepted(_) => {
                let stored = read_message(&record, part).unwrap();
                let message = stored.message;
                Some((stored.queue, message.body, message.headers.len()))
            }
            _ => None,
        });
    copies.collect()
}

/// Broken on purpose, and seen here: an envelope for each queue, the headers kept beside the envelope, and all that is
/// published has one id.
#[test]
fn an_envelope_is_made_once_and_holds_the_headers() {
    let mut run = with_queues(&["raw", "one", "two", "other"]);
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    bind(&mut run, "e", to_queue("raw"), Pattern::Everything);
    for (queue, topic) in [("one", "t"), ("two", "t"), ("other", "t.fifo")] {
        let mut bind = binding("e", to_queue(queue), Pattern::Everything);
        bind.options = enveloped(topic);
        give(&mut run, bind).unwrap();
    }
    let mut order = publish("e", "", "x");
    order.message.headers = vec![header("user", "7")];
    order.subject = Some("s".into());
    let copies = copies(&mut run, order.clone());
    let published = give(&mut run, order.clone()).unwrap();
    assert_eq!(published.number, 1);
    let [raw, one, two, other] = &copies[..] else {
        panic!("{copies:?}");
    };
    assert_eq!((&raw.1[..], raw.2), (&b"x"[..], 1));
    assert_eq!((one.1.as_ptr(), one.2), (two.1.as_ptr(), 0));
    let text = |body: &Bytes| String::from_utf8(body.to_vec()).unwrap();
    for part in [
        format!("\"MessageId\" : \"{}\"", published.id),
        "\"TopicArn\" : \"t\"".to_owned(),
        "\"Subject\" : \"s\"".to_owned(),
        "\"user\" : {\"Type\":\"String\",\"Value\":\"7\"}".to_owned(),
    ] {
        assert!(text(&one.1).contains(&part), "{part}");
    }
    assert!(text(&other.1).contains("\"SequenceNumber\" : \"00000000000000000001\""));
    let (_, effects) = run.log.last().unwrap();
    let payloads = effects.iter().filter_map(|effect| match effect {
        Effect::Accepted(stored) => Some(stored.payload),
        _ => None,
    });
    let payloads: Vec<_> = payloads.collect();
    let [
        Payload::Own,
        Payload::Shared,
        Payload::Of { part: 1, .. },
        Payload::Own,
    ] = payloads[..]
    else {
        panic!("queues that get the same text share it: {payloads:?}");
    };
    let again = give(&mut run, order).unwrap();
    assert_eq!(again.number, 2);
    assert_ne!(again.id, published.id);
    let ids = again.copies.iter().map(|copied| copied.sent.id);
    assert!(ids.chain([published.id]).all(|id| id != again.id));

    let mut bytes = publish("e", "", "");
    bytes.message.body = Bytes::from_static(b"\xff");
    let refused = exchange_error(give(&mut run, bytes));
    assert!(refused.contains("is not UTF-8"), "{refused}");
    run.check_recovery();
}

/// Broken on purpose, and seen here: the size of the message alone is counted, and not of its envelopes.
#[test]
fn envelopes_count_against_the_bytes_of_a_record() {
    let mut run = Run::new();
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    for number in 0..6 {
        let queue = format!("q{number}");
        let large = QueueSettings {
            message_bytes_max: 4 << 20,
            ..QueueSettings::default()
        };
        queue_with(&mut run, &queue, large);
        let mut bind = binding("e", to_queue(&queue), Pattern::Everything);
        bind.options = enveloped(&format!("t{number}"));
        give(&mut run, bind).unwrap();
    }
    let refused = give(&mut run, publish("e", "", &"\u{1}".repeat(300_000)));
    assert!(exchange_error(refused).contains("8388608 bytes"));
    assert!(give(&mut run, publish("e", "", &"x".repeat(300_000))).is_ok());
}

/// Broken on purpose, and seen here: what the queue refuses for another reason goes on too, the copy of a keyed queue keeps
/// its key in an unkeyed one, and a missing queue for overflow makes the publish refuse as missing.
#[test]
fn what_a_full_queue_does_not_take_goes_to_the_queue_for_overflow() {
    let mut run = with_queues(&["dead"]);
    let keyed = QueueSettings {
        keyed: true,
        quota_messages: Some(1),
        message_bytes_max: 1024,
        ..QueueSettings::default()
    };
    queue_with(&mut run, "keyed", keyed);
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    let mut bind = binding("e", to_queue("keyed"), Pattern::Everything);
    bind.options = BindingOptions {
        overflow: Some(name("dead")),
        ..enveloped("t")
    };
    give(&mut run, bind.clone()).unwrap();
    let with_key = |body: &str| {
        let mut publish = publish("e", "", body);
        publish.message.key = Key::new("k").ok();
        publish
    };
    let large = give(&mut run, with_key(&"x".repeat(1000))).unwrap();
    assert_eq!(
        got(&large),
        ["dead"],
        "the envelope is larger than the queue allows"
    );
    assert_eq!(got(&give(&mut run, with_key("1")).unwrap()), ["keyed"]);
    let records = run.log.len();
    assert_eq!(got(&give(&mut run, with_key("2")).unwrap()), ["dead"]);
    assert_eq!(run.log.len(), records + 1);
    assert_eq!(messages(&run, &["keyed", "dead"]), [1, 2]);
    assert_eq!(describe(&run, "e").counts.copies, 3);

    let keyless = give(&mut run, publish("e", "", "3")).unwrap_err();
    assert!(keyless.to_string().contains("keyed"), "{keyless}");
    bind.options.overflow = Some(name("gone"));
    give(&mut run, bind.clone()).unwrap();
    let full = give(&mut run, with_key("4")).unwrap_err().to_string();
    assert!(full.contains("queue keyed is full"), "{full}");
    bind.options.skip_when_full = true;
    give(&mut run, bind).unwrap();
    assert_eq!(give(&mut run, with_key("5")).unwrap().skipped, 1);
    run.check_recovery();
}
