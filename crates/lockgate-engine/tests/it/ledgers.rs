//! Ledgers of a shard: what readers are shown and when, and events where space comes back, files are lost, and backups are
//! restored.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockgate_core::{
    Epoch, LedgerName, Position, UniqueId,
    ledger::{Append, Chain, Event, LedgerError, LedgerOptions, NewEvent, SequenceId},
};
use lockgate_engine::{Answer, EngineError, EngineOptions, StartError, Work, restore};
use lockgate_machine::{
    AppendEvents, Command, CreateLedger, DeleteLedger, DescribeLedger, EventPlaces, ListLedgers,
    LocateEvents, Query, QueryReply, QueueSettings, Rejection, Reply, SettleAction, TrimLedger,
    read_events,
};
use lockgate_sim::{FaultyDisk, ManualClock};

use crate::{
    maintenance::{options, refusal},
    support::{Shard, blocks, create, local_log, send, settle, text, with_blocks},
};

fn ledger() -> LedgerName {
    LedgerName::new("trades").unwrap()
}

fn make(shard: &mut Shard) {
    let create = CreateLedger {
        name: ledger(),
        options: LedgerOptions {
            hashed: true,
            retention: None,
        },
    };
    shard.run(Command::CreateLedger(create)).unwrap();
}

fn append(payloads: impl IntoIterator<Item = String>) -> Command {
    let event = |payload: String| NewEvent {
        unique_id: Some(UniqueId::new(payload.split(' ').next().unwrap()).unwrap()),
        input: None,
        payload: Bytes::from(payload),
    };
    AppendEvents {
        ledger: ledger(),
        append: Append {
            epoch: Epoch(1),
            head: None,
            events: payloads.into_iter().map(event).collect(),
            settled: Vec::new(),
        },
        settles: Vec::new(),
    }
    .into()
}

fn read(shard: &Shard, after: u64, wait: u64) -> Work {
    Work::ReadEvents {
        locate: LocateEvents {
            ledger: ledger(),
            after: SequenceId(after),
            limit: 10,
        },
        until: shard.now().machine.plus(wait),
    }
}

/// What reads were answered, in order.
fn places(answers: Vec<crate::support::Answered>) -> Vec<EventPlaces> {
    let places = answers
        .into_iter()
        .filter_map(|answered| match answered.result {
            Ok(Answer::Query(Ok(QueryReply::EventPlaces(places)))) => Some(*places),
            _ => None,
        });
    places.collect()
}

/// All events that can be read, and the first of those that cannot.
fn events(shard: &Shard) -> (Vec<Event>, Option<SequenceId>) {
    let reader = shard.driver.reader();
    let head = shard.driver.machine().ledgers().next().unwrap().head;
    let (mut found, mut lost) = (Vec::new(), None);
    let mut after = head.first_id.previous();
    while after < head.sequence_id {
        let locate = LocateEvents {
            ledger: ledger(),
            after,
            limit: 10_000,
        };
        let query = Query::LocateEvents(locate);
        let QueryReply::EventPlaces(places) =
            shard.driver.machine().query(&query, shard.now()).unwrap()
        else {
            unreachable!()
        };
        for place in &places.blocks {
            let Some(position) = place.position else {
                lost = lost.or(Some(place.first));
                after = place.first;
                continue;
            };
            let record = reader.read(position).unwrap();
            let block = read_events(&record, places.ledger, place.first).unwrap();
            let block = block.into_events().expect("the hashes fit");
            found.extend(block.into_iter().filter(|event| event.sequence_id > after));
        }
        after = found
            .last()
            .map_or(after, |last: &Event| last.sequence_id.max(after));
        if lost.is_some_and(|lost| lost == after) {
            after = after.next();
        }
    }
    (found, lost)
}

#[test]
fn a_read_shows_nothing_that_can_be_taken_back() {
    let mut shard = Shard::new();
    make(&mut shard);
    let waiting = read(&shard, 0, 1_000);
    assert!(shard.group([waiting]).is_empty(), "there is no event yet");
    let answers = shard.group([append(["a".to_owned()]).into()]);
    assert!(answers.is_empty(), "the append is on its way");
    let at_once = read(&shard, 0, 1_000);
    assert!(
        shard.group([at_once]).is_empty(),
        "it shows that append too"
    );
    let shown = places(shard.sync());
    assert_eq!(shown.len(), 2);
    for places in shown {
        assert_eq!(
            (places.head.sequence_id, places.blocks.len()),
            (SequenceId(1), 1)
        );
    }
}

#[test]
fn that_a_ledger_is_gone_is_not_told_before_its_deletion_is_durable() {
    let mut shard = Shard::new();
    make(&mut shard);
    let waiting = read(&shard, 0, 1_000);
    assert!(shard.group([waiting]).is_empty(), "there is no event yet");
    let delete = DeleteLedger { ledger: ledger() };
    assert!(shard.group([Command::from(delete).into()]).is_empty());
    let list = ListLedgers {
        prefix: String::new(),
        after: None,
        limit: 9,
    };
    let asked = [
        Work::Query(DescribeLedger { ledger: ledger() }.into()),
        Work::Query(list.into()),
        read(&shard, 0, 1_000),
        append(["a".to_owned()]).into(),
    ];
    let answers = shard.group(asked);
    assert!(answers.is_empty(), "{answers:?}");
    let answers = shard.sync();
    let gone = answers.iter().filter(|answered| match &answered.result {
        Ok(Answer::Query(Err(Rejection::Ledger(refused)))) => {
            matches!(refused, LedgerError::NotFound { .. })
        }
        Ok(Answer::Query(Ok(QueryReply::Ledgers(page)))) => page.ledgers.is_empty(),
        Ok(Answer::Commands(results)) => matches!(results[0], Ok(Reply::Done) | Err(_)),
        _ => false,
    });
    assert_eq!((gone.count(), answers.len()), (6, 6), "{answers:?}");
}

#[test]
fn a_read_ends_with_an_event_with_the_seal_or_with_its_time() {
    let mut shard = Shard::new();
    make(&mut shard);
    shard.run(append(["a".to_owned()])).unwrap();
    let waiting = read(&shard, 1, 1_000);
    assert!(shard.group([waiting]).is_empty());
    shard.clock.advance(999);
    assert!(shard.group([]).is_empty());
    shard.clock.advance(1);
    let mut answers = shard.group([]);
    answers.extend(shard.sync());
    let ended = places(answers);
    assert_eq!((ended.len(), ended[0].blocks.len()), (1, 0));

    let waiting = read(&shard, 1, 1_000);
    assert!(shard.group([waiting]).is_empty());
    let seal = lockgate_machine::SealLedger {
        ledger: ledger(),
        epoch: Epoch(1),
    };
    shard.group([Command::SealLedger(seal).into()]);
    let sealed = places(shard.sync());
    assert!(sealed.len() == 1 && sealed[0].head.is_sealed);
    // One of a sealed ledger need not wait.
    let at_once = read(&shard, 1, 1_000);
    let mut answers = shard.group([at_once]);
    answers.extend(shard.sync());
    assert_eq!(places(answers).len(), 1);
}

#[test]
fn reads_that_wait_count_among_the_waiters() {
    let mut shard = Shard::with_options(&EngineOptions {
        waiters_max: 1,
        ..EngineOptions::default()
    });
    make(&mut shard);
    let works = [read(&shard, 0, 1_000), read(&shard, 0, 1_000)];
    let answers = shard.group(works);
    assert_eq!(answers.len(), 1);
    assert!(matches!(answers[0].result, Err(EngineError::Overloaded)));
}

/// A shard whose ranges hold events between many messages that go.
fn mixed() -> Shard {
    let mut shard = Shard::with_options(&options());
    shard.run(create("q", QueueSettings::default())).unwrap();
    make(&mut shard);
    let body = "x".repeat(1_000);
    for number in 0..80 {
        let sends = (0..50).map(|_| send("q", text(&body)));
        let events = append((0..3).map(|part| format!("{number}/{part} {}", "y".repeat(500))));
        let commands: Vec<_> = sends.chain([events]).collect();
        shard.group([Work::Commands(commands.into())]);
        shard.keep();
    }
    shard
}

#[test]
fn events_are_moved_forward_where_the_messages_around_them_went() {
    let mut shard = mixed();
    let before = events(&shard).0;
    assert_eq!(before.len(), 240);
    let peak = shard.driver.space().used_bytes;
    loop {
        let leases = shard.receive_now("q", 100);
        if leases.is_empty() {
            break;
        }
        let acks = leases.iter().map(|it| settle(it.token, SettleAction::Ack));
        shard.group([Work::Commands(acks.collect())]);
        shard.keep();
    }
    shard.keep();
    assert!(shard.driver.maintenance_counts().compacted_messages > 0);
    let held = shard.driver.space().used_bytes;
    assert!(held < peak, "{held} of {peak}");
    assert_eq!(events(&shard), (before.clone(), None));
    let state = shard.driver.machine().state_view();
    let (shard, report) = shard.restarted();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(shard.driver.machine().state_view().ledgers, state.ledgers);
    assert_eq!(events(&shard), (before, None));
}

#[test]
fn what_was_trimmed_gives_its_space_back() {
    let mut shard = Shard::with_options(&options());
    make(&mut shard);
    let body = "x".repeat(50_000);
    for number in 0..100 {
        shard.run(append([format!("{number} {body}")])).unwrap();
        shard.keep();
    }
    let peak = shard.driver.space().used_bytes;
    let trim = TrimLedger {
        ledger: ledger(),
        first: SequenceId(100),
    };
    shard.run(Command::TrimLedger(trim)).unwrap();
    shard.keep();
    let held = shard.driver.space().used_bytes;
    assert!(held + (1 << 20) < peak, "{held} of {peak}");
    assert_eq!(events(&shard).0.len(), 1);
    // An id is remembered all the same.
    let Reply::Appended(appended) = shard.run(append(["7 again".to_owned()])).unwrap() else {
        unreachable!()
    };
    assert!(appended.events[0].is_duplicate);
}

/// The file with events is gone: the start says which ledger, and who accepts that reads an error there, and all behind it.
#[test]
fn events_of_a_file_that_is_missing_are_named_and_missed() {
    let mut shard = mixed();
    // So that the state is in a snapshot.
    shard.keep();
    let before = events(&shard).0;
    let blocks = shard.driver.machine().blocks_in(|_| true);
    let mut by_range: BTreeMap<Position, u64> = BTreeMap::new();
    for block in &blocks {
        *by_range.entry(block.range).or_default() += block.events;
    }
    let (&range, &lost) = by_range.iter().nth(1).unwrap();
    let file = format!("{:08x}.log", range.0 >> 32);
    let mut image = shard.disk.kill().image();
    image.remove(&file).unwrap();
    let disk = FaultyDisk::from_image(image);
    let error = refusal(&disk);
    let StartError::Missing { parts, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(parts[0].ledgers, [(ledger(), lost)]);
    let told = format!("{lost} events of ledger trades");
    assert!(error.to_string().contains(&told), "{error}");

    let accepting = EngineOptions {
        accept_loss: true,
        ..options()
    };
    let (shard, report) = Shard::start(disk, ManualClock::default(), &accepting);
    assert_eq!(&report.missing, parts);
    let (there, missed) = events(&shard);
    assert_eq!(there.len() as u64, before.len() as u64 - lost);
    assert!(there.iter().all(|event| before.contains(event)));
    assert!(missed.is_some());
    // It need not be said again.
    let (shard, report) = shard.restarted();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(events(&shard), (there, missed));
}

/// The file that is missing has the creation of a ledger: its events in the other files are of no use, and are counted.
#[test]
fn events_of_ledgers_whose_creation_is_missing_are_counted() {
    let mut shard = Shard::new();
    make(&mut shard);
    let body = "x".repeat(10_000);
    let mut number = 0;
    let mut more = |shard: &mut Shard| {
        number += 1;
        let texts = (0..2).map(|part| format!("{number}/{part} {body}"));
        shard.run(append(texts)).unwrap();
    };
    while shard.driver.tail().0 >> 32 == 1 {
        more(&mut shard);
    }
    (0..5).for_each(|_| more(&mut shard));
    let blocks = shard.driver.machine().blocks_in(|_| true);
    let in_others = blocks.iter().filter(|block| block.range.0 >> 32 > 1);
    let first_left = in_others.clone().next().unwrap().first;
    let left: u64 = in_others.map(|block| block.events).sum();
    // Of the first block that is left one event is trimmed.
    let trim = TrimLedger {
        ledger: ledger(),
        first: first_left.next(),
    };
    shard.run(Command::TrimLedger(trim)).unwrap();
    let mut image = shard.disk.kill().image();
    image.remove("00000001.log").unwrap();
    let disk = FaultyDisk::from_image(image);
    let error = refusal(&disk);
    let StartError::Missing { without_queue, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!((without_queue.events, without_queue.ledgers), (left - 1, 1));
    assert_eq!(without_queue.messages, 0);
    let told = format!(
        "{} events of 1 ledger whose creation is lost cannot",
        left - 1
    );
    assert!(error.to_string().contains(&told), "{error}");
    let accepting = EngineOptions {
        accept_loss: true,
        ..options()
    };
    let (_, report) = Shard::start(disk, ManualClock::default(), &accepting);
    assert_eq!(&report.without_queue, without_queue);
    assert!(!report.is_clean());
}

/// Events that cannot be read may be so again when their file is put back, so nothing gives them up before a trim.
#[test]
fn damaged_events_stay_until_they_are_mended_or_trimmed() {
    let shard = mixed();
    let before = events(&shard).0;
    let blocks = shard.driver.machine().blocks_in(|_| true);
    let damaged = &blocks[blocks.len() / 2];
    let (range, first) = (damaged.range, damaged.first);
    let file = format!("{:08x}.log", range.0 >> 32);
    let (shard, _) = shard.restarted();
    let whole = shard.disk.kill().image();
    let mut image = whole.clone();
    let payload = before.iter().find(|event| event.sequence_id == first);
    let payload = payload.unwrap().payload.clone();
    let bytes = image.get_mut(&file).unwrap();
    let at = bytes
        .windows(payload.len())
        .position(|window| window == payload);
    bytes[at.unwrap()] ^= 1;
    let mut shard = Shard::start(
        FaultyDisk::from_image(image),
        ManualClock::default(),
        &options(),
    )
    .0;
    for number in 0..20 {
        let body = "z".repeat(60_000);
        shard
            .run(append([format!("later-{number} {body}")]))
            .unwrap();
        shard.keep();
    }
    let has_some = |shard: &Shard| {
        let blocks = shard.driver.machine().blocks_in(|start| start == range);
        blocks.iter().any(|block| block.first == first)
    };
    assert!(has_some(&shard));
    let mut image = shard.disk.kill().image();
    image.insert(file.clone(), whole[&file].clone());
    let (mut shard, report) = Shard::start(
        FaultyDisk::from_image(image),
        ManualClock::default(),
        &options(),
    );
    assert!(report.is_clean(), "{report:?}");
    let (after, lost) = events(&shard);
    assert_eq!((&after[..before.len()], lost), (&before[..], None));
    let trim = TrimLedger {
        ledger: ledger(),
        first: after.last().unwrap().sequence_id,
    };
    shard.run(Command::TrimLedger(trim)).unwrap();
    shard.keep();
    assert!(!has_some(&shard));
}

#[test]
fn a_backup_has_the_events_with_their_ids_and_readers() {
    let mut shard = mixed();
    let trim = TrimLedger {
        ledger: ledger(),
        first: SequenceId(11),
    };
    shard.run(Command::TrimLedger(trim)).unwrap();
    let reader = lockgate_machine::MoveReader {
        from: None,
        ledger: ledger(),
        reader: lockgate_core::ReaderName::new("engine").unwrap(),
        to: Some(SequenceId(20)),
    };
    shard.run(Command::MoveReader(reader)).unwrap();
    let (before, now) = (events(&shard).0, shard.now());
    let mut bytes = Vec::new();
    let taken = shard.driver.backup(now, &mut bytes).unwrap();
    assert_eq!(
        (taken.unreadable, taken.unreadable_events),
        (0, 0),
        "{taken:?}"
    );
    // From 11 on, though the block of 10 to 12 is whole in it.
    assert_eq!(taken.events, 230);
    let verified = lockgate_engine::verify_backup(&mut &bytes[..]).unwrap();
    assert_eq!((verified.events, verified.unreadable_events), (230, 0));
    assert_eq!(
        (verified.messages, verified.unreadable),
        (taken.messages, 0)
    );

    let disk = FaultyDisk::new();
    let report = restore(&mut &bytes[..], local_log(&disk), None).unwrap();
    assert_eq!(
        (report.messages, report.events),
        (taken.messages, taken.events)
    );
    assert_eq!((report.dropped, report.lost_appends), (0, 0));
    let (mut restored, report) = Shard::start(disk, ManualClock::default(), &options());
    assert!(report.is_clean(), "{report:?}");
    let described = |shard: &Shard| shard.driver.machine().ledgers().next().unwrap();
    let (one, other) = (described(&shard), described(&restored));
    assert_eq!((one.head, one.readers), (other.head, other.readers));
    assert_eq!(events(&restored), (before.clone(), None));
    let mut chain = Chain::behind(SequenceId(10));
    for event in &before {
        chain.follow(event).unwrap();
    }
    let Reply::Appended(appended) = restored
        .run(append(["0/0 again".to_owned(), "new".to_owned()]))
        .unwrap()
    else {
        unreachable!()
    };
    let places: Vec<_> = appended
        .events
        .iter()
        .map(|event| event.sequence_id.0)
        .collect();
    assert_eq!(places, [1, 241]);
}

/// What could not be read when the backup was taken is missed by who reads it, and nothing else.
#[test]
fn events_that_a_backup_lacks_are_lost() {
    let mut shard = Shard::with_options(&options());
    make(&mut shard);
    for text in ["a", "b", "c"] {
        shard.run(append([text.to_owned()])).unwrap();
    }
    let now = shard.now();
    let mut bytes = Vec::new();
    shard.driver.backup(now, &mut bytes).unwrap();
    let cut = without_a_block(&bytes);
    let verified = lockgate_engine::verify_backup(&mut &cut[..]).unwrap();
    assert_eq!((verified.events, verified.unreadable_events), (2, 1));
    let disk = FaultyDisk::new();
    let report = restore(&mut &cut[..], local_log(&disk), None).unwrap();
    assert_eq!((report.events, report.lost_appends), (2, 1), "{report:?}");
    let (restored, _) = Shard::start(disk, ManualClock::default(), &options());
    let (there, missed) = events(&restored);
    assert_eq!((there.len(), missed), (2, Some(SequenceId(2))));
}

/// The backup as if its second record had not been readable.
fn without_a_block(backup: &[u8]) -> Vec<u8> {
    let mut blocks = blocks(backup);
    let is_record = |(_, (kind, _)): &(usize, &(u8, Vec<u8>))| *kind == 2;
    let (second, _) = blocks.iter().enumerate().filter(is_record).nth(1).unwrap();
    blocks.remove(second);
    let records = blocks.iter().filter(|(kind, _)| *kind == 2).count() as u64;
    blocks.last_mut().unwrap().1 = records.to_le_bytes().to_vec();
    with_blocks(backup, &blocks)
}
