//! The cases.

use std::time::Duration;

use lockgate_core::{
    Accepted, ElectionName, Epoch, Fate, HolderName, Key, KeyOrder, KeyStateWrite, Leased, Message,
    PRIORITY_MAX, Produced, ProducerIncarnation, ProducerMark, ProducerName, ProducerRefused,
    REASON_BYTES_MAX, ReceiveRequest, RecordVersion, Replaces, Settlement, Sink, Source,
    TransportError, UniqueId, WallTime,
    coordination::{Fence, FenceError},
    limits::HoldScope,
};

use super::{Fixture, Shown};

type Sent<Q> = Vec<Result<Accepted<<Q as Sink>::Id>, TransportError>>;

/// Runs the cases in order, and names each before it is run.
macro_rules! cases {
    ($($case:ident)+) => {
        pub(super) async fn run<F: Fixture>(fixture: &mut F) -> Vec<&'static str> {
            let mut not_run = Vec::new();
            $(
                println!("transport conformance: {}", stringify!($case));
                let shown = $case(fixture).await;
                println!("transport conformance: {} {shown}", stringify!($case));
                if shown == Shown::NotRun {
                    not_run.push(stringify!($case));
                }
            )+
            not_run
        }
    };
}

cases! {
    what_is_sent_is_received_whole
    bodies_are_any_bytes
    a_batch_has_a_result_for_each_message
    a_batch_of_a_wrong_size_is_refused
    what_a_sink_cannot_carry_it_refuses
    a_unique_id_is_accepted_once
    a_record_of_a_producer_is_accepted_once
    two_copies_of_a_spool_lose_nothing_and_double_nothing
    whoever_was_deposed_sends_nothing
    a_message_comes_no_earlier_than_it_is_due
    a_nack_counts_as_an_attempt_and_giving_back_does_not
    a_hold_is_of_the_key_or_of_the_queue
    a_message_keeps_its_name
    the_reasons_of_nacks_are_kept
    a_rejected_message_comes_no_more
    a_settled_lease_is_stale
    a_lease_that_ends_brings_the_message_again
    an_extended_lease_lasts
    a_key_is_locked_and_keeps_its_order
    a_receive_takes_as_many_of_a_key_as_it_says
    a_prefix_of_a_key_is_settled_and_the_rest_keeps_its_order
    a_state_is_written_with_the_settlement_and_comes_with_the_lease
    an_empty_queue_answers_at_once
    a_wait_ends_with_a_message
    a_dropped_receive_keeps_no_message
    a_queue_that_is_gone_is_closed
}

/// How long leases last that say nothing.
const LEASE: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(3_600);

fn request(max: usize) -> ReceiveRequest {
    ReceiveRequest {
        max,
        key_max: None,
        wait: Duration::ZERO,
        lease: None,
        holder: HolderName::new("conformance").expect("a good name"),
    }
}

/// A message that the queue takes whatever it is.
fn message<Q: Sink>(queue: &Q, body: &str) -> Message {
    let message = Message::new(body.to_owned());
    if queue.sink_capabilities().keys_only {
        // One key each, so that none waits for another.
        message.with_key(key(body))
    } else {
        message
    }
}

fn key(text: &str) -> Key {
    Key::new(text).expect("a good key")
}

async fn send<Q: Sink>(queue: &Q, messages: impl IntoIterator<Item = Message>) -> Sent<Q> {
    let max = queue.sink_capabilities().batch_max;
    let messages: Vec<Message> = messages.into_iter().collect();
    let mut results = Vec::new();
    for some in messages.chunks(max) {
        let answers = queue.send_batch(some.to_vec()).await;
        assert_eq!(answers.len(), some.len(), "one result for each");
        results.extend(answers);
    }
    results
}

async fn send_all<Q: Sink>(queue: &Q, messages: impl IntoIterator<Item = Message>) {
    for result in send(queue, messages).await {
        result.expect("the message is accepted");
    }
}

async fn take<Q: Source>(queue: &Q, max: usize) -> Vec<Leased<Q::Receipt>> {
    let max = max.min(queue.source_capabilities().receive_max);
    let received = queue.receive_batch(request(max)).await;
    received.expect("the receive is answered")
}

async fn take_one<Q: Source>(queue: &Q) -> Leased<Q::Receipt> {
    let mut received = take(queue, 1).await;
    assert_eq!(received.len(), 1, "there is a message");
    received.remove(0)
}

/// So far ahead, by the system's clock.
fn ahead(span: Duration) -> WallTime {
    let now = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970");
    let due = (now + span).as_millis();
    WallTime(due.try_into().expect("it fits"))
}

/// How a message returns to its place at once.
fn return_it<Q: Source>(queue: &Q) -> Settlement {
    match queue.source_capabilities().give_back {
        true => Settlement::GiveBack,
        false => Settlement::Nack {
            delay: Duration::ZERO,
            reason: None,
        },
    }
}

async fn settle<Q: Source>(
    queue: &Q,
    leased: &Leased<Q::Receipt>,
    settlement: Settlement,
) -> Result<(), TransportError> {
    let mut results = queue
        .settle_batch(vec![(leased.receipt.clone(), settlement)])
        .await;
    assert_eq!(results.len(), 1, "one result for each");
    results.remove(0)
}

fn fate<T: std::fmt::Debug>(result: Result<T, TransportError>) -> Fate {
    result.expect_err("it is not done").fate
}

fn bodies<R>(received: &[Leased<R>]) -> Vec<String> {
    let text = |leased: &Leased<R>| String::from_utf8_lossy(&leased.message.body).into_owned();
    received.iter().map(text).collect()
}

async fn what_is_sent_is_received_whole<F: Fixture>(fixture: &mut F) -> Shown {
    for keyed in [false, true] {
        let queue = fixture.queue(keyed).await;
        let can = queue.sink_capabilities();
        let mut sent = message(&queue, "hello");
        if can.groups {
            sent.group = Some(key("group"));
        }
        if can.unique_ids {
            sent.unique_id = Some(UniqueId::new("once").expect("a good id"));
        }
        if can.headers {
            // In the order of their names, which is the one that they come in from some.
            let headers: [(&str, &str, &[u8]); 3] = [
                ("blob", "Binary.any", b"\0\xff\x80"),
                ("kind", "String", b"greeting \"to\" \\ all\n"),
                ("number", "Number.int", b"-17"),
            ];
            for (name, kind, value) in headers {
                sent.headers.push(lockgate_core::Header {
                    name: name.into(),
                    kind: kind.into(),
                    value: value.into(),
                });
            }
            sent.content_type = Some("text/plain; charset=utf-8".into());
            sent.trace_context = Some("00-0af7651916cd43dd8448eb211c80319c-01".into());
        }
        if can.time_to_live {
            sent.time_to_live = Some(86_400_000);
        }
        if can.priority {
            sent.priority = PRIORITY_MAX;
        }
        sent.level = Some(can.level_max);
        let accepted = send(&queue, [sent.clone()]).await.remove(0);
        let accepted = accepted.expect("the message is accepted");
        assert!(!accepted.duplicate);
        let received = take_one(&queue).await;
        if received.message.level.is_none() {
            sent.level = None;
        }
        assert_eq!(received.message, sent, "keyed: {keyed}");
        assert_eq!(received.attempt, 1);
        assert!(received.remaining > Duration::ZERO && received.remaining <= LEASE);
        if let (Some(accepted), Some(received)) = (accepted.sequence, received.sequence) {
            assert_eq!(accepted, received);
        }
        settle(&queue, &received, Settlement::Ack)
            .await
            .expect("the lease is current");
        assert!(take(&queue, 1).await.is_empty(), "it has left the queue");
    }
    Shown::Holds
}

async fn bodies_are_any_bytes<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    let every: Vec<u8> = (0..=255).collect();
    let bodies: [&[u8]; 6] = [
        b"",
        b"\x01\x02\x7f",
        "t\u{fc}r \u{1f600} \u{ffff}".as_bytes(),
        b"{\"a\": \"\\n\"}\r\n",
        b"\xed\xa0\x80",
        &every,
    ];
    for body in bodies {
        let sent = Message {
            body: body.to_vec().into(),
            ..message(&queue, "key")
        };
        send_all(&queue, [sent]).await;
        let received = take_one(&queue).await;
        assert_eq!(received.message.body, body, "{body:?}");
        settle(&queue, &received, Settlement::Ack)
            .await
            .expect("the lease is current");
    }
    Shown::Holds
}

async fn a_batch_has_a_result_for_each_message<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    let can = queue.sink_capabilities();
    if can.batch_max < 3 || can.message_bytes_max > 64 << 20 {
        return Shown::NotRun;
    }
    let large = usize::try_from(can.message_bytes_max).expect("it is small") + 1;
    if large as u64 + 2 > can.batch_bytes_max {
        return Shown::NotRun;
    }
    let batch = ["a".to_owned(), "x".repeat(large), "c".to_owned()];
    let key = key("k");
    let of_batch = |body: String| Message {
        key: can.keys_only.then(|| key.clone()),
        ..Message::new(body)
    };
    let results = send(&queue, batch.map(of_batch)).await;
    let [first, second, third] = <[_; 3]>::try_from(results).expect("three results");
    first.expect("it is accepted");
    assert_eq!(fate(second), Fate::Refused);
    third.expect("the one before does not matter");
    let mut received = bodies(&take(&queue, 3).await);
    received.sort_unstable();
    assert_eq!(received, ["a", "c"]);
    Shown::Holds
}

async fn a_batch_of_a_wrong_size_is_refused<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    let max = queue.sink_capabilities().batch_max;
    assert!(queue.send_batch(Vec::new()).await.is_empty());
    if max > 100_000 {
        return Shown::NotRun;
    }
    let messages = vec![message(&queue, "a"); max + 1];
    let results = queue.send_batch(messages).await;
    assert_eq!(results.len(), max + 1);
    for result in results {
        assert_eq!(fate(result), Fate::Refused);
    }
    assert!(take(&queue, 1).await.is_empty(), "none is there");
    let max = queue.source_capabilities().receive_max;
    for wrong in [0, max + 1] {
        let refused = queue.receive_batch(request(wrong)).await;
        assert_eq!(fate(refused), Fate::Refused, "{wrong}");
    }
    Shown::Holds
}

async fn what_a_sink_cannot_carry_it_refuses<F: Fixture>(fixture: &mut F) -> Shown {
    for keyed in [false, true] {
        let queue = fixture.queue(keyed).await;
        let can = queue.sink_capabilities();
        let plain = message(&queue, "hello");
        let due = plain.clone().with_due(WallTime(1));
        let unique = UniqueId::new("id").expect("a good id");
        let variants = [
            Message::new("no key"),
            plain.clone().with_key(key("k")),
            plain.clone().with_group(key("g")),
            plain.clone().with_unique_id(unique),
            due,
            plain.clone().with_priority(1),
            plain.clone().with_priority(PRIORITY_MAX + 1),
        ];
        if !can.producers {
            let opened = queue.open_producer(producer()).await.map(|_| ());
            assert_eq!(fate(opened), Fate::Unsupported);
            let marked = plain.with_producer(record(ProducerIncarnation(1), 1, 1));
            let sent = send(&queue, [marked]).await.remove(0);
            assert_eq!(fate(sent), Fate::Unsupported);
        }
        for variant in variants {
            let checked = can.check(&variant);
            let result = send(&queue, [variant.clone()]).await.remove(0);
            match (checked, result) {
                (Err(_), result) => assert_eq!(fate(result), Fate::Unsupported, "{variant:?}"),
                (Ok(()), Err(error)) => panic!("{variant:?}: {error:?}"),
                (Ok(()), Ok(_)) => {}
            }
        }
    }
    Shown::Holds
}

async fn a_unique_id_is_accepted_once<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    let can = queue.sink_capabilities();
    if !can.unique_ids {
        return Shown::NotRun;
    }
    let window = can.unique_id_window;
    assert!(
        window.is_none_or(|window| !window.is_zero()),
        "it knows ids for a while"
    );
    let unique = UniqueId::new("id").expect("a good id");
    let sent = message(&queue, "a").with_unique_id(unique);
    let first = send(&queue, [sent.clone()]).await.remove(0);
    let again = send(&queue, [sent]).await.remove(0);
    let first = first.expect("it is accepted");
    let again = again.expect("it is known");
    assert!(!first.duplicate && again.duplicate == can.tells_duplicates);
    assert_eq!(
        first.id.map(|id| id.to_string()),
        again.id.map(|id| id.to_string())
    );
    assert_eq!(take(&queue, 2).await.len(), 1);
    Shown::Holds
}

fn producer() -> ProducerName {
    ProducerName::new("ä/1 %2F").expect("a good name")
}

/// Record `number` of an opening, in a lane of all of them.
fn record(incarnation: ProducerIncarnation, opening: u64, number: u64) -> Produced {
    let mark = ProducerMark::new(producer(), opening, 15, number).expect("a good mark");
    Produced {
        mark,
        incarnation,
        after: 0,
    }
}

/// Sends records, and tells of each whether it was known.
async fn send_records<Q: Sink>(
    queue: &Q,
    records: impl IntoIterator<Item = Produced>,
) -> Vec<Result<bool, Option<ProducerRefused>>> {
    let messages = records.into_iter().map(|record| {
        let body = format!("{:x}-{}", record.mark.opening(), record.mark.number());
        message(queue, &body).with_producer(record)
    });
    let results = send(queue, messages.collect::<Vec<_>>()).await;
    let shown = results.into_iter().map(|result| match result {
        Ok(accepted) => {
            assert_eq!(
                accepted.id.is_none(),
                accepted.duplicate,
                "known is nameless"
            );
            assert_eq!(accepted.sequence.is_none(), accepted.duplicate);
            Ok(accepted.duplicate)
        }
        Err(error) => {
            let refused = error.producer_refused();
            let fate = match refused {
                Some(ProducerRefused::Gap) => Fate::Retry,
                _ => Fate::Stale,
            };
            assert_eq!(error.fate, fate, "{error:?}");
            Err(refused)
        }
    });
    shown.collect()
}

async fn all_bodies<Q: Source>(queue: &Q) -> Vec<String> {
    let mut bodies = Vec::new();
    loop {
        let taken = take(queue, 10).await;
        if taken.is_empty() {
            bodies.sort();
            return bodies;
        }
        for leased in taken {
            assert_eq!(
                leased.message.producer, None,
                "it is not for whoever receives"
            );
            bodies.push(String::from_utf8(leased.message.body.to_vec()).expect("a text"));
        }
    }
}

async fn a_record_of_a_producer_is_accepted_once<F: Fixture>(fixture: &mut F) -> Shown {
    for keyed in [false, true] {
        let queue = fixture.queue(keyed).await;
        if !queue.sink_capabilities().producers {
            return Shown::NotRun;
        }
        let unknown = Err(Some(ProducerRefused::Unknown));
        let early = send_records(&queue, [record(ProducerIncarnation(1), 7, 1)]).await;
        assert_eq!(early, [unknown]);
        let open = || queue.open_producer(producer());
        let first = open().await.expect("it is opened");
        let sent = [1, 1, 2, 5, 4, 5].map(|number| record(first, u64::MAX, number));
        let known = [false, true, false, false, true, true].map(Ok);
        assert_eq!(send_records(&queue, sent).await, known);
        let second = open().await.expect("it is opened again");
        assert!(second > first);
        let fenced = ProducerRefused::Fenced { current: second };
        let late = [5, 6].map(|number| record(first, u64::MAX, number));
        assert_eq!(send_records(&queue, late).await, [Err(Some(fenced)); 2]);
        let beyond = ProducerIncarnation(second.0 + 1);
        let beyond = send_records(&queue, [record(beyond, u64::MAX, 6)]).await;
        assert_eq!(beyond, [unknown]);
        let sent = [5, 6].map(|number| record(second, u64::MAX, number));
        assert_eq!(send_records(&queue, sent).await, [Ok(true), Ok(false)]);
        let all = [1, 2, 5, 6].map(|number| format!("ffffffffffffffff-{number}"));
        assert_eq!(all_bodies(&queue).await, all);
        // Each may name the one before it, which must be there.
        let chained = |number, after| Produced {
            after,
            ..record(second, 1, number)
        };
        let gap = Err(Some(ProducerRefused::Gap));
        let sent = [chained(2, 1), chained(3, 2)];
        assert_eq!(send_records(&queue, sent).await, [gap, gap]);
        let sent = [chained(1, 0), chained(3, 1), chained(4, 3), chained(6, 5)];
        let accepted = [Ok(false), Ok(false), Ok(false), gap];
        assert_eq!(send_records(&queue, sent).await, accepted);
        assert_eq!(all_bodies(&queue).await, ["1-1", "1-3", "1-4"]);
    }
    Shown::Holds
}

/// Both hold records 1 to 3 of opening 1. Each accepts more under an opening of its own, and they take turns.
async fn two_copies_of_a_spool_lose_nothing_and_double_nothing<F: Fixture>(
    fixture: &mut F,
) -> Shown {
    let queue = fixture.queue(false).await;
    if !queue.sink_capabilities().producers {
        return Shown::NotRun;
    }
    let mut left = [2, 3].map(|own| {
        let shared = (1..=3).map(|number| (1, number));
        let own = (1..=4).map(move |number| (own, number));
        shared.chain(own).collect::<Vec<_>>()
    });
    let mut known = 0;
    for turn in 0.. {
        let copy = &mut left[turn % 2];
        if copy.is_empty() {
            break;
        }
        let incarnation = queue.open_producer(producer()).await.expect("it is opened");
        let batch = &copy[..copy.len().min(2)];
        let batch = batch
            .iter()
            .map(|&(opening, number)| record(incarnation, opening, number));
        for result in send_records(&queue, batch).await {
            known += usize::from(result.expect("it may send"));
            copy.remove(0);
        }
    }
    assert!(left.iter().all(Vec::is_empty));
    assert_eq!(
        known, 3,
        "what both hold is known to the second that sends it"
    );
    let all = [(1, 3), (2, 4), (3, 4)]
        .map(|(opening, last)| (1..=last).map(move |number| format!("{opening}-{number}")));
    let all: Vec<String> = all.into_iter().flatten().collect();
    assert_eq!(all_bodies(&queue).await, all);
    Shown::Holds
}

async fn whoever_was_deposed_sends_nothing<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    let election = ElectionName::new("whoever sends").expect("a good name");
    let fenced = |epoch| queue.fenced(&Fence::new(election.clone(), Epoch(epoch)));
    let (old, new) = match (fenced(7), fenced(9)) {
        (Ok(old), Ok(new)) => (old, new),
        (Err(refused), _) | (_, Err(refused)) => {
            assert!(
                matches!(refused, FenceError::Unsupported { .. }),
                "{refused}"
            );
            return Shown::NotRun;
        }
    };
    send_all(&old, [message(&queue, "a")]).await;
    send_all(&new, [message(&queue, "b")]).await;
    for sent in send(&old, [message(&queue, "c"), message(&queue, "d")]).await {
        let error = sent.expect_err("it was deposed");
        assert_eq!(error.fate, Fate::Stale);
        let expected = FenceError::Deposed {
            election: election.clone(),
            epoch: Epoch(7),
            newest: Epoch(9),
        };
        assert_eq!(
            error.source.downcast_ref(),
            Some(&expected),
            "{}",
            error.source
        );
    }
    send_all(&new, [message(&queue, "e")]).await;
    let came = take(&queue, 10).await;
    let bodies: Vec<_> = came.iter().map(|leased| &leased.message.body[..]).collect();
    assert_eq!(bodies, [b"a", b"b", b"e"]);
    Shown::Holds
}

async fn a_message_comes_no_earlier_than_it_is_due<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    let can = queue.sink_capabilities();
    if !can.due {
        return Shown::NotRun;
    }
    let never = match can.due_max {
        // Years ahead of every clock of a test.
        None => WallTime(32_503_680_000_000),
        Some(max) => {
            let late = message(&queue, "late").with_due(ahead(2 * max));
            let refused = send(&queue, [late]).await.remove(0);
            assert_eq!(fate(refused), Fate::Unsupported, "it is too far ahead");
            ahead(max / 2)
        }
    };
    let late = message(&queue, "late").with_due(never);
    send_all(&queue, [late, message(&queue, "now")]).await;
    assert_eq!(bodies(&take(&queue, 2).await), ["now"]);
    Shown::Holds
}

async fn a_nack_counts_as_an_attempt_and_giving_back_does_not<F: Fixture>(
    fixture: &mut F,
) -> Shown {
    let queue = fixture.queue(false).await;
    let can = queue.source_capabilities();
    send_all(&queue, [message(&queue, "a")]).await;
    let first = take_one(&queue).await;
    let delay = Duration::ZERO;
    let reason = None;
    settle(&queue, &first, Settlement::Nack { delay, reason })
        .await
        .expect("the lease is current");
    let second = take_one(&queue).await;
    assert_eq!((first.attempt, second.attempt), (1, 2));
    if can.give_back {
        settle(&queue, &second, Settlement::GiveBack)
            .await
            .expect("the lease is current");
        assert_eq!(take_one(&queue).await.attempt, 2);
    } else {
        let refused = settle(&queue, &second, Settlement::GiveBack).await;
        assert_eq!(fate(refused), Fate::Unsupported);
    }
    Shown::Holds
}

async fn a_hold_is_of_the_key_or_of_the_queue<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(true).await;
    let (can, gives) = (queue.source_capabilities(), queue.sink_capabilities());
    let delay = LONG;
    let hold = |scope| Settlement::Hold { delay, scope };
    if !can.hold {
        send_all(&queue, [message(&queue, "a")]).await;
        let first = take_one(&queue).await;
        let refused = settle(&queue, &first, hold(HoldScope::Key)).await;
        assert_eq!(fate(refused), Fate::Unsupported);
        return Shown::Holds;
    }
    if !gives.keys {
        return Shown::NotRun;
    }
    let keyed = |name: &str, key: &str| message(&queue, name).with_key(self::key(key));
    send_all(
        &queue,
        [
            keyed("a", "k"),
            keyed("b", "k"),
            keyed("c", "l"),
            keyed("d", "m"),
        ],
    )
    .await;
    let first = take_one(&queue).await;
    let held = settle(&queue, &first, hold(HoldScope::Key)).await;
    held.expect("the lease is current");
    let second = take_one(&queue).await;
    assert_eq!(
        bodies(std::slice::from_ref(&second)),
        ["c"],
        "the other keys flow"
    );
    let held = settle(&queue, &second, hold(HoldScope::Queue)).await;
    held.expect("the lease is current");
    assert!(take(&queue, 1).await.is_empty(), "all of it is held");
    if fixture.pass(delay) {
        let again = take(&queue, 4).await;
        assert_eq!(bodies(&again).len(), 4);
        assert!(again.iter().all(|leased| leased.attempt == 1));
    }
    Shown::Holds
}

async fn a_message_keeps_its_name<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    // Two of the same content are two messages.
    let mut other = message(&queue, "other");
    other.body = "same".into();
    send_all(&queue, [message(&queue, "same"), other]).await;
    let (first, second) = (take_one(&queue).await, take_one(&queue).await);
    let Some(name) = first.name.clone() else {
        assert_eq!(second.name, None, "a source names all messages or none");
        return Shown::NotRun;
    };
    assert_ne!(Some(&name), second.name.as_ref(), "no two have one name");
    let returned = settle(&queue, &first, return_it(&queue)).await;
    returned.expect("it returns to its place");
    let again = take_one(&queue).await;
    assert_eq!(again.name, Some(name), "it is the same message");
    Shown::Holds
}

async fn the_reasons_of_nacks_are_kept<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    send_all(&queue, [message(&queue, "a")]).await;
    let nack = |reason: &str| Settlement::Nack {
        delay: Duration::ZERO,
        reason: Some(reason.into()),
    };
    let first = take_one(&queue).await;
    assert_eq!(first.failures, None);
    if !queue.source_capabilities().nack_reasons {
        let refused = settle(&queue, &first, nack("no room")).await;
        assert_eq!(fate(refused), Fate::Unsupported);
        return Shown::Holds;
    }
    let long = settle(&queue, &first, nack(&"x".repeat(REASON_BYTES_MAX + 1))).await;
    assert_eq!(fate(long), Fate::Refused);
    // In turn with an attempt of which nobody says how it ended.
    let reasons = [Some("no room"), None, Some(&*"x".repeat(REASON_BYTES_MAX))];
    let mut leased = first;
    for reason in reasons {
        let reason = reason.map(Into::into);
        let delay = Duration::ZERO;
        let nacked = settle(&queue, &leased, Settlement::Nack { delay, reason }).await;
        nacked.expect("the lease is current");
        leased = take_one(&queue).await;
    }
    let failures = leased.failures.expect("it failed");
    let kept = failures.kept().iter();
    let kept: Vec<_> = kept.map(|one| (one.attempt, Some(&*one.error))).collect();
    assert_eq!(kept, [(1, reasons[0]), (3, reasons[2])]);
    assert_eq!(failures.left_out(), 0);
    Shown::Holds
}

async fn a_rejected_message_comes_no_more<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    send_all(&queue, [message(&queue, "a")]).await;
    let received = take_one(&queue).await;
    let reason = Some("it is bad".into());
    let result = settle(&queue, &received, Settlement::Reject { reason }).await;
    if queue.source_capabilities().reject {
        result.expect("the lease is current");
        assert!(take(&queue, 1).await.is_empty());
    } else {
        assert_eq!(fate(result), Fate::Unsupported);
    }
    Shown::Holds
}

async fn a_settled_lease_is_stale<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    send_all(&queue, ["a", "b"].map(|body| message(&queue, body))).await;
    let mut received = take(&queue, 2).await;
    if received.len() < 2 {
        received.extend(take(&queue, 1).await);
    }
    settle(&queue, &received[0], Settlement::Ack)
        .await
        .expect("the lease is current");
    let again = settle(&queue, &received[0], Settlement::Ack).await;
    assert_eq!(fate(again), Fate::Stale);
    let extended = queue
        .extend_batch(vec![received[0].receipt.clone()], Duration::from_secs(60))
        .await;
    assert_eq!(
        fate(extended.into_iter().next().expect("a result")),
        Fate::Stale
    );
    settle(&queue, &received[1], Settlement::Ack)
        .await
        .expect("the other lease is current");
    Shown::Holds
}

async fn a_lease_that_ends_brings_the_message_again<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    send_all(&queue, [message(&queue, "a")]).await;
    let first = take_one(&queue).await;
    assert!(take(&queue, 1).await.is_empty(), "somebody has it");
    if !fixture.pass(LONG) {
        return Shown::NotRun;
    }
    let again = take_one(&queue).await;
    assert_eq!(again.attempt, 2);
    let stale = settle(&queue, &first, Settlement::Ack).await;
    assert_eq!(fate(stale), Fate::Stale);
    settle(&queue, &again, Settlement::Ack)
        .await
        .expect("the lease is current");
    Shown::Holds
}

async fn an_extended_lease_lasts<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    if queue.source_capabilities().lease_max < 2 * LONG {
        return Shown::NotRun;
    }
    send_all(&queue, [message(&queue, "a")]).await;
    let received = take_one(&queue).await;
    let extended = queue
        .extend_batch(vec![received.receipt.clone()], 2 * LONG)
        .await;
    let left = extended.into_iter().next().expect("a result");
    let left = left.expect("the lease is current");
    assert!(left > LONG && left <= 2 * LONG, "{left:?}");
    if !fixture.pass(LONG) {
        return Shown::NotRun;
    }
    assert!(take(&queue, 1).await.is_empty(), "the lease lasts");
    settle(&queue, &received, Settlement::Ack)
        .await
        .expect("the lease is current");
    Shown::Holds
}

async fn a_key_is_locked_and_keeps_its_order<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(true).await;
    if queue.source_capabilities().key_order != KeyOrder::Locked {
        return Shown::NotRun;
    }
    let of = |body: &str, of: &str| Message::new(body.to_owned()).with_key(key(of));
    send_all(&queue, [of("a1", "a"), of("a2", "a"), of("b1", "b")]).await;
    let first = take_one(&queue).await;
    assert_eq!(first.message.body, "a1");
    assert_eq!(bodies(&take(&queue, 2).await), ["b1"], "a is busy, b flows");
    settle(&queue, &first, Settlement::Ack)
        .await
        .expect("the lease is current");
    assert_eq!(bodies(&take(&queue, 2).await), ["a2"]);
    Shown::Holds
}

async fn a_receive_takes_as_many_of_a_key_as_it_says<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(true).await;
    if !queue.source_capabilities().key_max {
        return Shown::NotRun;
    }
    let of = |body: &str, of: &str| Message::new(body.to_owned()).with_key(key(of));
    let sent = [of("a1", "a"), of("a2", "a"), of("a3", "a"), of("b1", "b")];
    send_all(&queue, sent).await;
    let receive = |key_max| {
        let request = request(4);
        queue.receive_batch(ReceiveRequest {
            key_max: Some(key_max),
            ..request
        })
    };
    let received = receive(2).await.expect("the receive is answered");
    let mut some = bodies(&received);
    some.sort_unstable();
    assert_eq!(some, ["a1", "a2", "b1"]);
    let rest = receive(2).await.expect("the receive is answered");
    assert!(rest.is_empty(), "the key is locked: {:?}", bodies(&rest));
    assert_eq!(fate(receive(0).await), Fate::Refused);
    Shown::Holds
}

async fn a_prefix_of_a_key_is_settled_and_the_rest_keeps_its_order<F: Fixture>(
    fixture: &mut F,
) -> Shown {
    let queue = fixture.queue(true).await;
    let can = queue.source_capabilities();
    if can.key_order != KeyOrder::Locked || can.settle_max < 3 {
        return Shown::NotRun;
    }
    let sent = ["1", "2", "3", "4"].map(|body| Message::new(body).with_key(key("k")));
    send_all(&queue, sent).await;
    let received = take(&queue, 3).await;
    if received.len() < 3 {
        return Shown::NotRun;
    }
    assert_eq!(bodies(&received), ["1", "2", "3"]);
    let settlements = [Settlement::Ack, return_it(&queue), return_it(&queue)];
    let receipts = received.iter().map(|leased| leased.receipt.clone());
    // Stale is what the rest may be, where giving back the first one gives back those behind it.
    for result in queue
        .settle_batch(receipts.zip(settlements).collect())
        .await
    {
        assert!(
            result.as_ref().is_ok() || matches!(&result, Err(error) if error.fate == Fate::Stale),
            "{result:?}"
        );
    }
    let mut rest = Vec::new();
    while rest.len() < 3 {
        let received = take(&queue, 3).await;
        assert!(!received.is_empty(), "{rest:?}");
        for leased in received {
            settle(&queue, &leased, Settlement::Ack)
                .await
                .expect("the lease is current");
            rest.extend(bodies(std::slice::from_ref(&leased)));
        }
    }
    assert_eq!(rest, ["2", "3", "4"]);
    Shown::Holds
}

async fn a_state_is_written_with_the_settlement_and_comes_with_the_lease<F: Fixture>(
    fixture: &mut F,
) -> Shown {
    for keyed in [false, true] {
        let queue = fixture.queue(keyed).await;
        let can = queue.source_capabilities();
        let sent = ["1", "2", "3"].map(|body| match queue.sink_capabilities().keys {
            true => Message::new(body).with_key(key("k")),
            false => Message::new(body),
        });
        send_all(&queue, sent).await;
        let received = take(&queue, 1).await;
        let write = |replaces: Option<RecordVersion>, value: &'static str| KeyStateWrite {
            replaces: Replaces::Version(replaces),
            value: (!value.is_empty()).then(|| value.into()),
        };
        let settle = |leased: &[Leased<<F::Queue as Source>::Receipt>], write| {
            let receipts = leased.iter().map(|leased| leased.receipt.clone());
            let acks = receipts.map(|receipt| (receipt, Settlement::Ack));
            queue.settle_with_state(acks.collect(), write)
        };
        assert!(received.iter().all(|leased| leased.state.is_none()));
        let first = settle(&received, write(None, "one")).await;
        if !can.key_states {
            assert_eq!(fate(first), Fate::Unsupported);
            continue;
        }
        let version = first.expect("the lease is current").expect("it has one");
        let again = settle(&received, write(Some(version), "two")).await;
        assert_eq!(fate(again), Fate::Stale, "the lease is settled");
        let received = take(&queue, 2).await;
        assert_eq!(bodies(&received), ["2", "3"]);
        let state = received[0].state.as_ref().expect("it comes with the first");
        assert_eq!((&state.value[..], state.version), (&b"one"[..], version));
        assert_eq!(received[1].state, None, "it comes once");
        let other = settle(&received, write(None, "two")).await;
        assert_eq!(fate(other), Fate::Refused, "it is another version");
        let next = settle(&received, write(Some(version), "")).await;
        assert_eq!(next.expect("nothing was settled before"), None);
        assert!(take(&queue, 1).await.is_empty());
        send_all(&queue, [Message::new("4").with_key(key("k"))]).await;
        assert_eq!(take_one(&queue).await.state, None, "it was dropped");
    }
    Shown::Holds
}

async fn an_empty_queue_answers_at_once<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    assert!(take(&queue, 1).await.is_empty());
    Shown::Holds
}

async fn a_wait_ends_with_a_message<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    let wait = queue
        .source_capabilities()
        .wait_max
        .min(Duration::from_secs(600));
    if wait.is_zero() {
        return Shown::NotRun;
    }
    let waiting = queue.receive_batch(ReceiveRequest { wait, ..request(1) });
    let sending = send_all(&queue, [message(&queue, "a")]);
    let (received, ()) = tokio::join!(waiting, sending);
    assert_eq!(bodies(&received.expect("it is answered")), ["a"]);
    Shown::Holds
}

async fn a_dropped_receive_keeps_no_message<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    let wait = queue
        .source_capabilities()
        .wait_max
        .min(Duration::from_secs(600));
    if wait.is_zero() {
        return Shown::NotRun;
    }
    let waiting = || queue.receive_batch(ReceiveRequest { wait, ..request(1) });
    tokio::select! {
        biased;
        received = waiting() => panic!("there is nothing: {received:?}"),
        () = tokio::task::yield_now() => {}
    }
    send_all(&queue, [message(&queue, "a")]).await;
    let received = waiting().await.expect("it is answered");
    assert_eq!(bodies(&received), ["a"]);
    assert_eq!(received[0].attempt, 1);
    Shown::Holds
}

async fn a_queue_that_is_gone_is_closed<F: Fixture>(fixture: &mut F) -> Shown {
    let queue = fixture.queue(false).await;
    send_all(&queue, [message(&queue, "a")]).await;
    let received = take_one(&queue).await;
    if !fixture.delete(&queue).await {
        return Shown::NotRun;
    }
    let sent = send(&queue, [message(&queue, "b")]).await.remove(0);
    assert_eq!(fate(sent), Fate::Closed);
    assert_eq!(fate(queue.receive_batch(request(1)).await), Fate::Closed);
    let settled = settle(&queue, &received, Settlement::Ack).await;
    let settled = fate(settled);
    assert!(
        [Fate::Closed, Fate::Stale].contains(&settled),
        "{settled:?}"
    );
    Shown::Holds
}
