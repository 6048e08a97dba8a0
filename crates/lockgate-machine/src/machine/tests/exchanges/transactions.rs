//! Publishes in transactions.

use lockgate_core::{HolderName, Message, UniqueId};

use super::{
    publish::{messages, publish, queue_with},
    *,
};
use crate::{
    IdAnswer, IdSpace, LookedUp, Publish, Receive, SendMessage, Settle, SettleAction, Transact,
    Transacted, dedup::digest,
};

fn transact(run: &mut Run, transact: Transact) -> Result<Transacted, Rejection> {
    give(run, transact)
}

fn publishes(publishes: impl IntoIterator<Item = Publish>) -> Transact {
    Transact {
        publishes: publishes.into_iter().collect(),
        ..Transact::default()
    }
}

/// The acknowledgement of the queue's next message.
fn ack(run: &mut Run, queue: &str) -> Settle {
    let receive = Receive {
        queue: name(queue),
        max: 1,
        key_max: None,
        lease: None,
        holder: HolderName::new("h").unwrap(),
    };
    let leases = give(run, receive).unwrap();
    Settle {
        token: leases[0].token,
        action: SettleAction::Ack,
    }
}

fn send(to: &str, body: &str) -> SendMessage {
    SendMessage {
        queue: name(to),
        message: Message::new(body.to_owned()),
    }
}

/// Queue `work` with a message, `small` with room for one, and `a`, behind an exchange of all.
fn with_work() -> Run {
    let mut run = with_queues(&["work", "a"]);
    let one = QueueSettings {
        quota_messages: Some(1),
        ..QueueSettings::default()
    };
    queue_with(&mut run, "small", one);
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    for queue in ["a", "small"] {
        bind(&mut run, "e", to_queue(queue), Pattern::Everything);
    }
    give(&mut run, send("work", "1")).unwrap();
    run
}

#[test]
fn settles_sends_and_publishes_are_one_record() {
    let mut run = with_work();
    let settle = ack(&mut run, "work");
    let records = run.log.len();
    let done = transact(
        &mut run,
        Transact {
            settles: vec![settle],
            sends: vec![send("work", "2")],
            ..publishes([publish("e", "", "3")])
        },
    );
    let done = done.unwrap();
    assert_eq!(run.log.len(), records + 1);
    assert_eq!((done.sent.len(), done.published.len()), (1, 1));
    let copies: Vec<_> = done.published[0]
        .copies
        .iter()
        .map(|it| &it.queue)
        .collect();
    assert_eq!(copies, [&name("a"), &name("small")]);
    assert_eq!(messages(&run, &["work", "a", "small"]), [1, 1, 1]);
    let counts = describe(&run, "e").counts;
    assert_eq!((counts.published, counts.copies), (1, 2));
    run.check_recovery();
}

#[test]
fn one_refused_publish_refuses_all() {
    let mut run = with_work();
    make(&mut run, "none", ExchangeKind::Fanout, Unroutable::Reject);
    let settle = ack(&mut run, "work");
    let records = run.log.len();
    let with = |more: [Publish; 2]| Transact {
        settles: vec![settle.clone()],
        sends: vec![send("work", "2")],
        ..publishes(more)
    };
    // The second copy of `small` is the first one too many.
    let full = with([publish("e", "", "3"), publish("e", "", "4")]);
    let refused = transact(&mut run, full).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "publish 1 of the transaction was refused: queue small refused the message that was published to exchange e: queue \
         small is full: its quota_messages is 1. Receive some messages, or raise the quota"
    );
    let unroutable = with([publish("e", "", "3"), publish("none", "", "4")]);
    let refused = transact(&mut run, unroutable).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "publish 1 of the transaction was refused: exchange none has no queue for the message"
    );
    assert_eq!(describe(&run, "none").counts.refused, 1);
    assert_eq!(describe(&run, "e").counts, ExchangeCounts::default());
    let stale = Transact {
        settles: vec![settle.clone(), settle],
        ..publishes([publish("e", "", "3")])
    };
    let refused = transact(&mut run, stale).unwrap_err();
    assert!(matches!(
        refused,
        Rejection::TransactionStale { index: 1, .. }
    ));
    assert_eq!(run.log.len(), records);
    assert_eq!(messages(&run, &["work", "a", "small"]), [0, 0, 0]);
    assert_eq!(run.describe("work").counts.in_flight, 1);
    run.check_recovery();
}

#[test]
fn publishes_see_what_comes_before_them() {
    let mut run = with_work();
    let keyed = QueueSettings {
        keyed: true,
        key_sequences_max: 10,
        ..QueueSettings::default()
    };
    queue_with(&mut run, "keyed", keyed);
    make(&mut run, "k", ExchangeKind::Fanout, Unroutable::Reject);
    bind(&mut run, "k", to_queue("keyed"), Pattern::Everything);
    // The queue is full, and the settle makes room.
    give(&mut run, send("small", "1")).unwrap();
    let settle = ack(&mut run, "small");
    let keyed = |id: &str| {
        let mut publish = publish("k", "", "x");
        publish.message.key = Key::new("a").ok();
        publish.message.unique_id = UniqueId::new(id).ok();
        publish
    };
    let all = Transact {
        settles: vec![settle],
        ..publishes([
            publish("e", "", "2"),
            keyed("one"),
            keyed("two"),
            // An id that is there twice is sent once.
            keyed("one"),
        ])
    };
    let done = transact(&mut run, all).unwrap();
    let copies = done.published[1..].iter().map(|it| it.copies[0].sent);
    let copies: Vec<_> = copies
        .map(|sent| (sent.sequence.0, sent.duplicate))
        .collect();
    assert_eq!(copies, [(1, false), (2, false), (1, true)]);
    assert_eq!(run.describe("keyed").totals.duplicates, 1);
    let counts = describe(&run, "k").counts;
    assert_eq!((counts.published, counts.copies), (3, 2));
    assert_eq!(messages(&run, &["small", "keyed"]), [1, 2]);
    run.check_recovery();
}

/// Each publish alone could be done, and all of them are more than one record takes.
#[test]
fn the_copies_of_a_transaction_have_bounds() {
    let mut run = with_queues(&["a", "b"]);
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    for queue in ["a", "b"] {
        bind(&mut run, "e", to_queue(queue), Pattern::Everything);
    }
    let many = |count| publishes((0..count).map(|_| publish("e", "", "")));
    let refused = transact(&mut run, many(1_001)).unwrap_err();
    assert!(matches!(refused, Rejection::OutOfRange { max: 1_000, .. }));
    transact(&mut run, many(1_000)).unwrap();

    // What the queues know counts, too: an answer names each copy.
    for queue in 0..100 {
        let queue = format!("q{queue}");
        make_queue(&mut run, &queue);
        bind(&mut run, "e", to_queue(&queue), Pattern::Everything);
    }
    // The payloads are not the copies', and the keys are.
    let mut large = publish("e", "", &"x".repeat(100_000));
    large.message.key = Key::new(&"k".repeat(1_024)).ok();
    let large = |count| publishes(std::iter::repeat_n(large.clone(), count));
    let refused = transact(&mut run, large(74)).unwrap_err();
    let Rejection::TransactionPublishRefused { index: 73, source } = refused else {
        panic!("{refused}");
    };
    assert!(source.to_string().contains("8388608 bytes"), "{source}");
    transact(&mut run, large(73)).unwrap();
    let mut known = publish("e", "", "");
    known.message.unique_id = UniqueId::new("u").ok();
    let same = |count| publishes(std::iter::repeat_n(known.clone(), count));
    let refused = transact(&mut run, same(643)).unwrap_err();
    let Rejection::TransactionPublishRefused { index: 642, source } = refused else {
        panic!("{refused}");
    };
    assert_eq!(
        source.to_string(),
        "number of copies must be 0 to 65535, not 65586"
    );
    transact(&mut run, same(642)).unwrap();
}

#[test]
fn unique_ids_of_publishes_are_looked_up() {
    let mut run = Run::new();
    let for_ever = QueueSettings {
        dedup_window: QueueSettings::FOREVER,
        ..QueueSettings::default()
    };
    queue_with(&mut run, "q", for_ever);
    make(&mut run, "e", ExchangeKind::Fanout, Unroutable::Reject);
    bind(&mut run, "e", to_queue("q"), Pattern::Everything);
    let with_id = |id: &str| {
        let mut publish = publish("e", "", "x");
        publish.message.unique_id = UniqueId::new(id).ok();
        publish
    };
    for id in ["a", "b"] {
        give(&mut run, with_id(id)).unwrap();
    }
    assert_eq!(run.line("index 1"), "1 ids");
    let command = Command::from(publishes([with_id("b"), with_id("a")]));
    let queue = IdSpace::Queue(run.machine.queue_id(&name("q")).unwrap());
    let asked = (queue, digest(None, "a"));
    assert_eq!(run.machine.ids_to_look_up(&command, run.now), [asked]);
    let answer = IdAnswer {
        up_to: lockgate_core::Sequence(1),
        found: Some(lockgate_core::Sequence(1)),
    };
    let looked = Command::LookedUp(Box::new(LookedUp {
        answers: Arc::new([(asked, answer)].into()),
        command,
    }));
    let Ok(Reply::Transacted(done)) = run.give(&looked) else {
        panic!("it is answered");
    };
    let copies = done.published.iter().map(|it| it.copies[0].sent);
    let copies: Vec<_> = copies
        .map(|sent| (sent.sequence.0, sent.duplicate))
        .collect();
    assert_eq!(copies, [(2, true), (1, true)]);
}
