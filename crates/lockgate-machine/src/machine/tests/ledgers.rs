//! Ledgers: what an append does, what is remembered, what is freed, and what a restart or a lost record leaves.

use std::collections::BTreeMap;

use bytes::Bytes;
use lockgate_core::{
    Epoch, HolderName, InputId, LedgerId, LedgerName, Position, ReaderName, UniqueId, WallTime,
    ledger::{
        Append, AppendedEvent, Chain, Event, LedgerError, LedgerHead, LedgerOptions, NewEvent,
        SequenceId,
    },
};

use super::{
    harness::{Run, name},
    images::loaded,
};
use crate::{
    AppendEvents, Command, CreateLedger, CreateQueue, DeleteLedger, DescribeLedger, Effect,
    EngineCommand, FindEvent, ListLedgers, LocateEvents, Machine, MachineLimits, MoveReader, Query,
    QueryReply, QueueSettings, Receive, Rejection, Reply, SealLedger, SendMessage, Settle,
    SettleAction, StaleReason, TrimLedger, TypedCommand, encode_record, read_events,
};

pub(super) fn ledger(text: &str) -> LedgerName {
    LedgerName::new(text).unwrap()
}

pub(super) fn id(text: &str) -> UniqueId {
    UniqueId::new(text).unwrap()
}

fn input(text: &str) -> InputId {
    InputId::new(text).unwrap()
}

/// Events as `payload`, `payload#unique-id` or `payload<input`.
pub(super) fn append(epoch: u64, events: &[&str]) -> AppendEvents {
    let event = |text: &&str| {
        let (text, input_of) = text
            .split_once('<')
            .map_or((*text, None), |(a, b)| (a, Some(b)));
        let (payload, unique_id) = text
            .split_once('#')
            .map_or((text, None), |(a, b)| (a, Some(b)));
        NewEvent {
            unique_id: unique_id.map(id),
            input: input_of.map(input),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
        }
    };
    AppendEvents {
        ledger: ledger("l"),
        append: Append {
            epoch: Epoch(epoch),
            head: None,
            events: events.iter().map(event).collect(),
            settled: Vec::new(),
        },
        settles: Vec::new(),
    }
}

#[track_caller]
pub(super) fn give<C: TypedCommand>(run: &mut Run, command: C) -> Result<C::Reply, Rejection> {
    let command: Command = command.into();
    let reply = run.give(&command);
    run.check_invariants(&format!("{command:?}"));
    reply.map(|reply| C::reply(reply).expect("the reply is of its command"))
}

pub(super) fn create(run: &mut Run, options: LedgerOptions) {
    let name = ledger("l");
    assert!(!give(run, CreateLedger { name, options }).unwrap().existed);
}

pub(super) fn made() -> Run {
    let mut run = Run::new();
    create(&mut run, LedgerOptions::default());
    run
}

/// The places of the events, with a `=` behind those of duplicates.
#[track_caller]
pub(super) fn places(run: &mut Run, command: AppendEvents) -> String {
    let appended = give(run, command).unwrap();
    let place = |event: &AppendedEvent| {
        let mark = if event.is_duplicate { "=" } else { "" };
        format!("{}{mark}", event.sequence_id)
    };
    let places: Vec<_> = appended.events.iter().map(place).collect();
    places.join(" ")
}

pub(super) fn refusal<T: std::fmt::Debug>(reply: Result<T, Rejection>) -> LedgerError {
    match reply {
        Err(Rejection::Ledger(refused)) => refused,
        other => panic!("{other:?}"),
    }
}

fn head(machine: &Machine) -> LedgerHead {
    machine.ledgers().next().expect("there is one").head
}

/// All events behind `after`, read as an engine reads them; in pages of `limit`.
fn read(run: &Run, machine: &Machine, of: &str, after: u64, limit: usize) -> Vec<Event> {
    let (mut after, mut found) = (SequenceId(after), Vec::new());
    loop {
        let locate = Query::LocateEvents(LocateEvents {
            ledger: ledger(of),
            after,
            limit,
        });
        let QueryReply::EventPlaces(places) = machine.query(&locate, run.now).unwrap() else {
            unreachable!()
        };
        let mut page = Vec::new();
        for place in &places.blocks {
            let Some(position) = place.position else {
                continue;
            };
            let record = run.log.iter().find(|(at, _)| *at == position);
            let (_, effects) = record.expect("it is in the log");
            let mut record = Vec::new();
            encode_record(effects, &mut record);
            let block = read_events(&record.into(), places.ledger, place.first).unwrap();
            let events = block.into_events().expect("the hashes fit");
            page.extend(events.into_iter().filter(|event| event.sequence_id > after));
        }
        page.truncate(limit);
        let Some(last) = page.last() else {
            return found;
        };
        after = last.sequence_id;
        found.append(&mut page);
    }
}

fn payloads(run: &Run) -> Vec<String> {
    let first = head(&run.machine).first_id.previous();
    let mut chain = Chain::behind(first);
    let events = read(run, &run.machine, "l", first.0, 2);
    for event in &events {
        chain.follow(event).unwrap();
    }
    let text = |event: &Event| String::from_utf8(event.payload.to_vec()).unwrap();
    events.iter().map(text).collect()
}

#[test]
fn events_have_dense_places_and_a_duplicate_that_of_the_first() {
    let mut run = made();
    assert_eq!(places(&mut run, append(1, &["a#1", "b", "c#3"])), "1 2 3");
    assert_eq!(
        places(&mut run, append(1, &["x#3", "d", "y#1", "e#5", "z#5"])),
        "3= 4 1= 5 5="
    );
    assert_eq!(payloads(&run), ["a", "b", "c", "d", "e"]);
    let find = |unique_id| {
        let find = FindEvent {
            ledger: ledger("l"),
            unique_id: id(unique_id),
        };
        match run.machine.query(&find.into(), run.now).unwrap() {
            QueryReply::Event(place) => place,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((find("5"), find("2")), (Some(SequenceId(5)), None));
    // Duplicates alone change nothing.
    let records = run.log.len();
    assert_eq!(places(&mut run, append(1, &["x#1"])), "1=");
    assert_eq!(run.log.len(), records);
    run.check_recovery();
}

#[test]
fn an_input_is_a_duplicate_until_it_is_settled() {
    let mut run = made();
    assert_eq!(places(&mut run, append(1, &["a<q/1", "b<q/2"])), "1 2");
    assert_eq!(places(&mut run, append(1, &["a<q/1", "c<q/3"])), "1= 3");
    let mut settling = append(1, &["d<q/2"]);
    // The look for duplicates comes first; an input may be settled by the append that it comes with.
    settling.append.settled = vec![input("q/1"), input("q/2"), input("nobody's")];
    assert_eq!(places(&mut run, settling), "2=");
    assert_eq!(
        places(&mut run, append(1, &["a<q/1", "b<q/2", "c<q/3"])),
        "4 5 3="
    );
    let mut both = append(1, &["e<q/4"]);
    both.append.settled = vec![input("q/4")];
    assert_eq!(places(&mut run, both), "6");
    assert_eq!(places(&mut run, append(1, &["e<q/4"])), "7");
    run.check_recovery();
}

#[test]
fn a_deposed_writer_or_one_with_another_head_changes_nothing() {
    let mut run = made();
    places(&mut run, append(5, &["a"]));
    let records = run.log.len();
    assert!(matches!(
        refusal(give(&mut run, append(4, &["b"]))),
        LedgerError::Deposed {
            newest: Epoch(5),
            ..
        }
    ));
    let mut behind = append(9, &["b"]);
    behind.append.head = Some(SequenceId(0));
    assert!(matches!(
        refusal(give(&mut run, behind)),
        LedgerError::Moved { .. }
    ));
    assert_eq!(run.log.len(), records);
    // An append of nothing raises the epoch.
    assert_eq!(places(&mut run, append(6, &[])), "");
    assert!(matches!(
        refusal(give(&mut run, append(5, &["b"]))),
        LedgerError::Deposed { .. }
    ));
    let seal = |epoch| SealLedger {
        ledger: ledger("l"),
        epoch: Epoch(epoch),
    };
    assert!(matches!(
        refusal(give(&mut run, seal(5))),
        LedgerError::Deposed { .. }
    ));
    assert!(give(&mut run, seal(7)).unwrap().is_sealed);
    assert_eq!(give(&mut run, seal(8)).unwrap().epoch, Epoch(7));
    assert!(matches!(
        refusal(give(&mut run, append(7, &["b"]))),
        LedgerError::Sealed { .. }
    ));
    assert_eq!(payloads(&run), ["a"]);
    run.check_recovery();
}

#[test]
fn messages_are_settled_in_the_record_of_their_events_or_nothing_happens() {
    let mut run = made();
    let queue = name("orders");
    let settings = QueueSettings {
        keyed: false,
        ..QueueSettings::default()
    };
    let new = CreateQueue {
        name: queue.clone(),
        settings,
        annotations: BTreeMap::new(),
        tags: BTreeMap::new(),
    };
    give(&mut run, new).unwrap();
    for body in ["a", "b"] {
        let message = lockgate_core::Message::new(body);
        let queue = queue.clone();
        give(&mut run, SendMessage { queue, message }).unwrap();
    }
    let receive = Receive {
        queue: queue.clone(),
        max: 2,
        key_max: None,
        lease: None,
        holder: HolderName::new("sequencer").unwrap(),
    };
    let received = give(&mut run, receive).unwrap();
    let settles = received.iter().map(|delivery| Settle {
        token: delivery.token,
        action: SettleAction::Ack,
    });
    let settles: Vec<_> = settles.collect();
    let mut both = append(1, &["a", "b"]);
    both.settles = settles.clone();
    let records = run.log.len();
    assert_eq!(places(&mut run, both.clone()), "1 2");
    assert_eq!(run.log.len(), records + 1);
    assert_eq!(run.describe("orders").counts.in_flight, 0);
    // The leases are over: another append does not happen, and neither does this one without ids.
    let error = give(&mut run, both).unwrap_err();
    let stale = Rejection::TransactionStale {
        index: 0,
        reason: StaleReason::Gone,
    };
    assert_eq!(error, stale);
    assert_eq!(payloads(&run), ["a", "b"]);
    // The block is found behind the effects of the settles.
    run.check_recovery();
}

#[test]
fn what_is_trimmed_is_freed_in_steps_and_gives_its_space_back() {
    let mut run = made();
    for number in 0..600 {
        places(&mut run, append(1, &[&format!("{number}#{number}"), "x"]));
    }
    let live = |run: &Run| -> u64 {
        run.machine
            .live_ranges()
            .map(|(_, live)| live.messages)
            .sum()
    };
    assert_eq!(live(&run), 600);
    let trim = |first| TrimLedger {
        ledger: ledger("l"),
        first: SequenceId(first),
    };
    let beyond = refusal(give(&mut run, trim(1_202)));
    assert!(matches!(beyond, LedgerError::Beyond { .. }));
    assert_eq!(
        give(&mut run, trim(1_100)).unwrap().first_id,
        SequenceId(1_100)
    );
    // The block with events 1,099 and 1,100 stays whole.
    run.tick();
    assert_eq!(live(&run), 51);
    assert_eq!(payloads(&run).len(), 101);
    let trimmed = LocateEvents {
        ledger: ledger("l"),
        after: SequenceId(1_098),
        limit: 1,
    };
    let refused = run.machine.query(&trimmed.into(), run.now);
    assert!(matches!(
        refused,
        Err(Rejection::Ledger(LedgerError::Trimmed { .. }))
    ));
    // A lower one undoes nothing, and ids are remembered for ever.
    assert_eq!(give(&mut run, trim(1)).unwrap().first_id, SequenceId(1_100));
    assert_eq!(places(&mut run, append(1, &["again#0"])), "1=");
    give(&mut run, trim(1_201)).unwrap();
    run.tick();
    assert_eq!((live(&run), payloads(&run).len()), (0, 0));
    assert_eq!(places(&mut run, append(1, &["more"])), "1201");
    run.check_recovery();
}

#[test]
fn events_are_kept_for_the_retention_and_time_never_goes_back() {
    let mut run = Run::new();
    create(
        &mut run,
        LedgerOptions {
            hashed: true,
            retention: Some(1_000),
        },
    );
    let start = run.now.wall;
    let first = |run: &mut Run, after: u64| {
        run.now.wall = start.plus(after);
        run.tick();
        run.check_invariants("time");
        head(&run.machine).first_id.0
    };
    places(&mut run, append(1, &["a", "b"]));
    assert_eq!(first(&mut run, 400), 1);
    places(&mut run, append(1, &["c"]));
    assert_eq!(first(&mut run, 1_000), 1);
    assert_eq!(first(&mut run, 1_001), 3);
    // The clock is set back: the event has the time of the one before, and is kept as long.
    run.now.wall = start;
    places(&mut run, append(1, &["d"]));
    assert_eq!(head(&run.machine).time, start.plus(400));
    assert_eq!(first(&mut run, 1_400), 3);
    assert_eq!(first(&mut run, 1_401), 5);
    assert_eq!(head(&run.machine).sequence_id, SequenceId(4));
    run.check_recovery();
}

#[test]
fn a_deleted_ledger_is_gone_at_once_and_freed_in_steps() {
    let mut run = made();
    for number in 0..300 {
        places(
            &mut run,
            append(1, &[&format!("{number}#{number}<i/{number}")]),
        );
    }
    give(
        &mut run,
        DeleteLedger {
            ledger: ledger("l"),
        },
    )
    .unwrap();
    assert!(matches!(
        refusal(give(&mut run, append(1, &["a"]))),
        LedgerError::NotFound { .. }
    ));
    run.tick();
    let view = run.machine.state_view();
    assert_eq!((view.ledgers.len(), view.ledgers_made), (0, 1));
    assert_eq!(run.machine.live_ranges().count(), 0);
    // Another one of that name knows nothing of it.
    create(&mut run, LedgerOptions::default());
    assert_eq!(places(&mut run, append(1, &["0#0<i/0"])), "1");
    assert_eq!(run.machine.ledgers().next().unwrap().id, LedgerId(2));
    run.check_recovery();
}

#[test]
fn a_ledger_is_made_once() {
    let mut run = made();
    let options = LedgerOptions::default();
    let again = |options| CreateLedger {
        name: ledger("l"),
        options,
    };
    assert!(give(&mut run, again(options)).unwrap().existed);
    let hashed = LedgerOptions {
        hashed: true,
        ..options
    };
    let refused = refusal(give(&mut run, again(hashed)));
    assert!(matches!(refused, LedgerError::Invalid { .. }), "{refused}");
    for other in ["a", "m", "z"] {
        let name = ledger(other);
        give(&mut run, CreateLedger { name, options }).unwrap();
    }
    let page = |after: Option<&str>| {
        let list = ListLedgers {
            prefix: String::new(),
            after: after.map(ledger),
            limit: 2,
        };
        match run.machine.query(&list.into(), run.now).unwrap() {
            QueryReply::Ledgers(page) => {
                let names = page.ledgers.iter().map(|ledger| ledger.name.to_string());
                (names.collect::<Vec<_>>().join(" "), page.next.is_some())
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(page(None), ("a l".to_owned(), true));
    assert_eq!(page(Some("l")), ("m z".to_owned(), false));
}

#[test]
fn readers_move_within_the_ledger_and_are_forgotten() {
    let mut run = made();
    places(&mut run, append(1, &["a", "b"]));
    let to = |to: Option<u64>| MoveReader {
        ledger: ledger("l"),
        reader: ReaderName::new("engine").unwrap(),
        to: to.map(SequenceId),
        from: None,
    };
    let beyond = refusal(give(&mut run, to(Some(3))));
    assert!(matches!(beyond, LedgerError::Beyond { .. }));
    assert!(!give(&mut run, to(Some(2))).unwrap());
    assert!(give(&mut run, to(Some(1))).unwrap());
    let describe = DescribeLedger {
        ledger: ledger("l"),
    };
    let QueryReply::Ledger(described) = run.machine.query(&describe.into(), run.now).unwrap()
    else {
        unreachable!()
    };
    assert_eq!(described.readers[0].sequence_id, SequenceId(1));
    assert!(give(&mut run, to(None)).unwrap());
    assert!(!give(&mut run, to(None)).unwrap());
    // One that is not known is at 0, and a refused move is none.
    let step = |from, place| MoveReader {
        from: Some(SequenceId(from)),
        ..to(Some(place))
    };
    let records = run.log.len();
    for (from, place, now) in [(1, 2, 0), (0, 1, 1), (0, 2, 1), (2, 0, 1), (1, 2, 2)] {
        let moved = give(&mut run, step(from, place));
        match now == place {
            true => drop(moved.unwrap()),
            false => assert_eq!(
                refusal(moved),
                LedgerError::ReaderMoved {
                    sequence_id: SequenceId(now)
                }
            ),
        }
    }
    assert_eq!(run.log.len(), records + 2);
    run.check_recovery();
}

/// What is remembered is bounded. What is full refuses what would be more, and nothing else.
#[test]
fn ids_beyond_the_bound_are_refused_and_nothing_is_forgotten() {
    let mut run = Run::with_limits(MachineLimits {
        ledger_bytes_max: 4 * 64,
        ledgers_max: 1,
        ..MachineLimits::default()
    });
    create(&mut run, LedgerOptions::default());
    assert_eq!(places(&mut run, append(1, &["a#1", "b#2", "c#3"])), "1 2 3");
    let full = refusal(give(&mut run, append(1, &["d", "e#4"])));
    assert!(matches!(full, LedgerError::Full { .. }), "{full}");
    assert_eq!(places(&mut run, append(1, &["d", "x#1"])), "4 1=");
    let second = CreateLedger {
        name: ledger("second"),
        options: LedgerOptions::default(),
    };
    let full = give(&mut run, second).unwrap_err();
    assert!(matches!(full, Rejection::ShardFull { .. }), "{full}");
    give(
        &mut run,
        DeleteLedger {
            ledger: ledger("l"),
        },
    )
    .unwrap();
    run.tick();
    create(&mut run, LedgerOptions::default());
    assert_eq!(places(&mut run, append(1, &["a#1"])), "1");
}

/// Whoever hears that a ledger is gone must not find it again after a power cut.
#[test]
fn that_a_ledger_is_gone_rests_on_its_deletion() {
    let mut run = made();
    run.set_syncing(false);
    let deleted_at = run.log.len();
    let l = ledger("l");
    give(&mut run, DeleteLedger { ledger: l.clone() }).unwrap();
    let deleted_at = Some(run.log[deleted_at].0);
    let late = Command::from(append(1, &["a"]));
    let decision = run.machine.decide(&late, run.now);
    assert!(matches!(
        decision.outcome,
        Err(Rejection::Ledger(LedgerError::NotFound { .. }))
    ));
    assert_eq!(decision.rests_on, deleted_at);
    assert_eq!(run.machine.ledger_rests_on(&l), deleted_at);
    assert_eq!(run.machine.ledgers_rest_on(), deleted_at);
    run.sync();
    assert_eq!(run.machine.decide(&late, run.now).rests_on, None);
    assert_eq!(run.machine.ledger_rests_on(&l), None);
    assert_eq!(run.machine.ledgers_rest_on(), None);
}

/// Inputs never leave memory for an index, so a ledger whose inputs nobody settles must not stop the others.
#[test]
fn one_ledger_leaves_room_for_the_others() {
    // An input of one letter takes 129 bytes.
    let mut run = Run::with_limits(MachineLimits {
        ledger_bytes_max: 16 * 129,
        unique_id_index: true,
        ..MachineLimits::default()
    });
    create(&mut run, LedgerOptions::default());
    let names = ["second", "third"].map(ledger);
    for name in names.clone() {
        let options = LedgerOptions::default();
        give(&mut run, CreateLedger { name, options }).unwrap();
    }
    // How many inputs the ledger takes before it is full.
    let fill = |run: &mut Run, name: &LedgerName| {
        let mut taken = 0;
        loop {
            let letter = char::from(b'a' + taken);
            let mut command = append(1, &[&format!("x<{letter}")]);
            command.ledger = name.clone();
            match give(run, command) {
                Ok(_) => taken += 1,
                Err(Rejection::Ledger(LedgerError::Full { .. })) => return taken,
                other => panic!("{other:?}"),
            }
        }
    };
    let [second, third] = names;
    assert_eq!(fill(&mut run, &ledger("l")), 12);
    assert_eq!(fill(&mut run, &second), 3);
    assert_eq!(fill(&mut run, &third), 0);
    let full = refusal(give(&mut run, append(1, &["x<z"])));
    assert!(matches!(full, LedgerError::Full { .. }), "{full}");
    // What the first one gives back is for all of them.
    let mut settles = append(1, &[]);
    settles.append.settled = ["a", "b", "c", "d", "e", "f", "g", "h"].map(input).to_vec();
    places(&mut run, settles);
    assert_eq!(fill(&mut run, &third), 6);
    assert_eq!(run.recovered().problems(), Vec::<String>::new());
    run.check_recovery();
}

#[test]
fn an_append_that_forgets_as_much_as_it_adds_is_never_full() {
    let mut run = Run::with_limits(MachineLimits {
        ledger_bytes_max: 4 * 129,
        ..MachineLimits::default()
    });
    create(&mut run, LedgerOptions::default());
    assert_eq!(places(&mut run, append(1, &["x<a", "x<b", "x<c"])), "1 2 3");
    let with = |events: &[&str], settled: &[&str]| {
        let mut command = append(1, events);
        command.append.settled = settled.iter().map(|text| input(text)).collect();
        command
    };
    for (events, settled) in [
        (&["x<d"][..], &[][..]),
        (&["x<d"], &["z"]),
        (&["x<d", "x<e"], &["a", "a"]),
    ] {
        let full = refusal(give(&mut run, with(events, settled)));
        assert!(matches!(full, LedgerError::Full { .. }), "{full}");
    }
    assert_eq!(places(&mut run, with(&["x<d"], &["a"])), "4");
    // An input that comes and goes in one append takes nothing.
    assert_eq!(places(&mut run, with(&["x<e"], &["e"])), "5");
    assert_eq!(places(&mut run, with(&[], &["b", "c"])), "");
    assert_eq!(places(&mut run, append(1, &["x<f", "x<g"])), "6 7");
    run.check_recovery();
}

/// A record that was lost is a gap that a reader sees; what came behind it is there.
#[test]
fn events_of_a_lost_record_are_missed_by_who_reads_them() {
    let mut run = Run::new();
    create(
        &mut run,
        LedgerOptions {
            hashed: true,
            retention: None,
        },
    );
    for events in [&["a", "b"][..], &["c#3"], &["d", "e"]] {
        places(&mut run, append(1, events));
    }
    let lost = run.log.len() - 2;
    let mut machine = Machine::new(MachineLimits::default());
    for (index, (position, effects)) in run.log.iter().enumerate() {
        if index != lost {
            machine.fold(effects, *position);
        }
    }
    assert_eq!(machine.problems(), Vec::<String>::new());
    assert_eq!(head(&machine).sequence_id, SequenceId(5));
    let places = |after| {
        let locate = LocateEvents {
            ledger: ledger("l"),
            after: SequenceId(after),
            limit: 9,
        };
        match machine.query(&locate.into(), run.now).unwrap() {
            QueryReply::EventPlaces(places) => places.blocks,
            other => panic!("{other:?}"),
        }
    };
    let there = |after| -> Vec<_> {
        let each = places(after).into_iter();
        each.map(|place| (place.first.0, place.position.is_some()))
            .collect()
    };
    assert_eq!(there(0), [(1, true), (3, false), (4, true)]);
    assert_eq!(there(2), [(3, false), (4, true)]);
    assert_eq!(there(3), [(4, true)]);
    // A part of the log that is lost as a whole.
    let events: Vec<_> = machine.blocks_in(|_| true);
    assert_eq!(events.len(), 2);
    for block in events {
        let lose = EngineCommand::LoseEvents {
            ledger: block.ledger,
            first: block.first,
        };
        let decision = machine.decide(&lose, run.now);
        machine.fold(&decision.effects, Position(1 << 40));
    }
    assert_eq!(machine.problems(), Vec::<String>::new());
    assert_eq!(machine.live_ranges().count(), 0);
}

/// What the random histories know of their ledger.
#[derive(Debug, Default)]
pub(super) struct Seen {
    events: Vec<(Option<String>, String)>,
    inputs: BTreeMap<String, u64>,
    first: u64,
    epoch: u64,
    is_sealed: bool,
    time: WallTime,
    readers: BTreeMap<String, u64>,
    made: bool,
}

impl Seen {
    /// A step whose numbers choose what is done; the answer is compared with what is known.
    pub(super) fn step(&mut self, run: &mut Run, what: u8, how: u8, with: u8) {
        if !self.made {
            *self = Self {
                made: true,
                first: 1,
                ..Self::default()
            };
            let options = LedgerOptions {
                hashed: how.is_multiple_of(2),
                retention: None,
            };
            let name = ledger("random");
            let made = run.give(&Command::CreateLedger(CreateLedger { name, options }));
            assert!(matches!(made, Ok(Reply::Ledger(made)) if !made.existed));
            return;
        }
        match what % 16 {
            0..=9 => self.append(run, how, with),
            10 => self.trim(run, how),
            11 => self.move_reader(run, how, with),
            12 => compact(run, with),
            13 if how.is_multiple_of(8) => {
                let seal = SealLedger {
                    ledger: ledger("random"),
                    epoch: Epoch(self.epoch),
                };
                run.give(&Command::SealLedger(seal)).unwrap();
                self.is_sealed = true;
            }
            14 if how.is_multiple_of(4) => {
                let ledger = ledger("random");
                run.give(&Command::DeleteLedger(DeleteLedger { ledger }))
                    .unwrap();
                self.made = false;
                return;
            }
            15 => {
                run.index(1 + usize::from(how % 5));
            }
            _ => {}
        }
        self.check(run);
    }

    fn append(&mut self, run: &mut Run, how: u8, with: u8) {
        let count = how % 4;
        let event = |number: u8| {
            let draw = with.wrapping_mul(7).wrapping_add(number * 31);
            let unique_id = draw.is_multiple_of(3).then(|| format!("id-{}", draw % 20));
            let input = draw.is_multiple_of(2).then(|| format!("in-{}", draw % 14));
            (unique_id, input, format!("{draw}"))
        };
        let events: Vec<_> = (0..count).map(event).collect();
        let settled = how.is_multiple_of(5).then(|| format!("in-{}", with % 14));
        // Now and then a writer that was deposed, or the next one.
        let epoch = (self.epoch + u64::from(how.is_multiple_of(7)))
            .saturating_sub(u64::from(with.is_multiple_of(9)));
        let new =
            |(unique_id, input_id, payload): &(Option<String>, Option<String>, String)| NewEvent {
                unique_id: unique_id.as_deref().map(id),
                input: input_id.as_deref().map(input),
                payload: Bytes::copy_from_slice(payload.as_bytes()),
            };
        let command = AppendEvents {
            ledger: ledger("random"),
            append: Append {
                epoch: Epoch(epoch),
                head: None,
                events: events.iter().map(new).collect(),
                settled: settled.iter().map(|text| input(text)).collect(),
            },
            settles: Vec::new(),
        };
        run.tick();
        let now = run.now.wall;
        let reply = run.give(&Command::AppendEvents(Box::new(command)));
        if epoch < self.epoch {
            assert!(matches!(
                reply,
                Err(Rejection::Ledger(LedgerError::Deposed { .. }))
            ));
            return;
        }
        let before = (self.events.clone(), self.inputs.clone());
        let mut expected = Vec::new();
        for (unique_id, input, payload) in events {
            let known = unique_id.as_ref().and_then(|wanted| {
                let at = self
                    .events
                    .iter()
                    .position(|(id, _)| id.as_ref() == Some(wanted))?;
                Some(at as u64 + 1)
            });
            let known = known.or_else(|| self.inputs.get(input.as_ref()?).copied());
            let sequence_id = SequenceId(known.unwrap_or(self.events.len() as u64 + 1));
            if known.is_none() {
                self.events.push((unique_id, payload));
                if let Some(input) = input {
                    self.inputs.insert(input, sequence_id.0);
                }
            }
            expected.push(AppendedEvent {
                sequence_id,
                is_duplicate: known.is_some(),
            });
        }
        if self.is_sealed && self.events.len() > before.0.len() {
            (self.events, self.inputs) = before;
            assert!(matches!(
                reply,
                Err(Rejection::Ledger(LedgerError::Sealed { .. }))
            ));
            return;
        }
        let Ok(Reply::Appended(appended)) = reply else {
            panic!("{reply:?}")
        };
        assert_eq!(appended.events, expected);
        self.epoch = epoch;
        if self.events.len() > before.0.len() {
            self.time = self.time.max(now);
        }
        if let Some(input) = settled {
            self.inputs.remove(&input);
        }
    }

    fn trim(&mut self, run: &mut Run, how: u8) {
        let first = u64::from(how) % (self.events.len() as u64 + 1) / 2 + 1;
        let trim = TrimLedger {
            ledger: ledger("random"),
            first: SequenceId(first),
        };
        run.give(&Command::TrimLedger(trim)).unwrap();
        self.first = self.first.max(first);
    }

    fn move_reader(&mut self, run: &mut Run, how: u8, with: u8) {
        let reader = format!("reader-{}", how % 3);
        let to =
            (!with.is_multiple_of(4)).then(|| u64::from(with) % (self.events.len() as u64 + 1));
        let command = MoveReader {
            ledger: ledger("random"),
            reader: ReaderName::new(&reader).unwrap(),
            to: to.map(SequenceId),
            from: None,
        };
        let reply = run.give(&Command::MoveReader(command));
        let before = match to {
            Some(to) => self.readers.insert(reader, to),
            None => self.readers.remove(&reader),
        };
        assert!(matches!(reply, Ok(Reply::ReaderMoved(was)) if was == before.is_some()));
    }

    /// What is kept is what is known, from this machine and from one that was loaded from its image.
    fn check(&self, run: &mut Run) {
        let image = loaded(&mut run.machine);
        for machine in [&run.machine, &image] {
            let described = machine.ledgers().next().expect("it is there");
            let head = described.head;
            assert_eq!(head.sequence_id.0, self.events.len() as u64);
            assert_eq!((head.epoch.0, head.is_sealed), (self.epoch, self.is_sealed));
            assert_eq!((head.first_id.0, head.time), (self.first, self.time));
            assert_eq!(described.inputs, self.inputs.len() as u64);
            let readers = described.readers.iter();
            let readers = readers.map(|at| (at.reader.to_string(), at.sequence_id.0));
            assert_eq!(readers.collect::<BTreeMap<_, _>>(), self.readers);
            let after = head.first_id.previous();
            let events = read(run, machine, "random", after.0, 3);
            assert_eq!(events.len() as u64, head.sequence_id.0 - after.0);
            let mut chain = Chain::behind(after);
            for event in events {
                chain.follow(&event).unwrap();
                let (unique_id, payload) =
                    &self.events[usize::try_from(event.sequence_id.0).unwrap() - 1];
                assert_eq!(
                    event.unique_id.as_ref().map(UniqueId::as_str),
                    unique_id.as_deref()
                );
                assert_eq!(event.payload, payload.as_bytes());
            }
            chain.agrees_with(&head).unwrap();
        }
    }
}

/// Reads a record of the log as an engine does, and compacts its events.
fn compact(run: &mut Run, which: u8) {
    let at = usize::from(which) * run.log.len() / 256;
    let (position, effects) = run.log[at].clone();
    for effect in effects {
        let block = match effect {
            Effect::EventsAppended(appended) if !appended.block.events.is_empty() => appended.block,
            Effect::EventsCompacted(block) => *block,
            _ => continue,
        };
        for from in [Position(position.0 + 1), position] {
            run.tick();
            let before = run.log.len();
            let lives = run.machine.has_events_at(block.ledger, block.first, from);
            let block = Box::new(block.clone());
            run.give(&EngineCommand::CompactEvents { block, from })
                .unwrap();
            assert_eq!(run.log.len() > before, lives);
        }
    }
}
