//! Unique ids of ledgers that have left memory for the index.

use std::sync::Arc;

use lockgate_core::{
    LedgerId, Sequence,
    ledger::{LedgerError, LedgerOptions, SequenceId},
};

use super::{
    harness::Run,
    images::loaded,
    ledgers::{append, create, give, id, ledger, made, places, refusal},
};
use crate::{
    Command, DeleteLedger, EngineCommand, FindEvent, FindLookedUp, IdSpace, LookedUp, Machine,
    MachineLimits, Query, QueryReply, Rejection, Reply, dedup::digest,
};

const FIRST: IdSpace = IdSpace::Ledger(LedgerId(1));

fn in_memory(machine: &Machine) -> u64 {
    machine.ledgers().next().expect("there is one").unique_ids
}

fn find(unique_id: &str) -> FindEvent {
    FindEvent {
        ledger: ledger("l"),
        unique_id: id(unique_id),
    }
}

/// Where the event with that id is, after as many look-ups as it takes.
fn found(run: &Run, unique_id: &str) -> Option<u64> {
    let mut query = Query::FindEvent(find(unique_id));
    while let Some(asked) = run.machine.id_to_look_up(&query) {
        let refused = run.machine.query(&query, run.now).unwrap_err();
        assert!(matches!(refused, Rejection::LookUp { space: FIRST }));
        query = Query::FindLookedUp(FindLookedUp {
            find: find(unique_id),
            answers: run.answers([asked]),
        });
    }
    match run.machine.query(&query, run.now).unwrap() {
        QueryReply::Event(place) => place.map(|place| place.0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_id_that_has_left_memory_has_its_first_place_for_ever() {
    let mut run = made();
    assert_eq!(places(&mut run, append(1, &["a#1", "b", "c#3"])), "1 2 3");
    assert_eq!(run.index(1), "1 ids");
    assert_eq!(in_memory(&run.machine), 1);
    assert_eq!(
        places(&mut run, append(1, &["x#3", "d#4", "y#1", "e"])),
        "3= 4 1= 5"
    );
    assert_eq!(run.index(9), "2 ids");
    assert_eq!(in_memory(&run.machine), 0);
    assert_eq!(run.index(9), "0 ids");
    for how in ["kill", "power", "clean"] {
        assert_eq!(
            places(&mut run, append(1, &["x#1", "y#3", "z#4"])),
            "1= 3= 4="
        );
        assert_eq!(
            ["1", "3", "4", "5"].map(|id| found(&run, id)),
            [Some(1), Some(3), Some(4), None]
        );
        run.restart(how);
    }
    // Events that are let go of leave their ids.
    let trim = crate::TrimLedger {
        ledger: ledger("l"),
        first: SequenceId(6),
    };
    give(&mut run, trim).unwrap();
    assert_eq!(places(&mut run, append(1, &["x#1", "f#6"])), "1= 6");
    assert_eq!(found(&run, "6"), Some(6));
    run.check_recovery();
}

/// As when ids leave memory while what was looked up of them is on its way.
#[test]
fn an_answer_from_before_a_move_decides_nothing() {
    let mut run = made();
    places(&mut run, append(1, &["a#1", "b#2"]));
    assert_eq!(run.index(1), "1 ids");
    let command = Command::AppendEvents(Box::new(append(1, &["x#2"])));
    let query = Query::FindEvent(find("2"));
    let asked = (FIRST, digest(None, "2"));
    // It is in memory: there is nothing to look up.
    assert_eq!(run.machine.ids_to_look_up(&command, run.now), []);
    assert_eq!(run.machine.id_to_look_up(&query), None);
    let new = Command::AppendEvents(Box::new(append(1, &["x#3"])));
    let (before, of_new) = (
        run.answers([asked]),
        run.answers([(FIRST, digest(None, "3"))]),
    );
    let with = |answers: &crate::IdAnswers, command: &Command| {
        let answers = Arc::clone(answers);
        let command = command.clone();
        Command::LookedUp(Box::new(LookedUp { answers, command }))
    };
    // An id that is not in the index is new, if the index had all that memory lacks.
    assert_eq!(
        run.machine.ids_to_look_up(&with(&of_new, &new), run.now),
        []
    );
    assert_eq!(run.index(1), "1 ids");
    for stale in [&command, &with(&before, &command), &with(&of_new, &new)] {
        assert_eq!(run.machine.ids_to_look_up(stale, run.now).len(), 1);
        let refused = run.machine.decide(stale, run.now).outcome;
        assert!(
            matches!(refused, Err(Rejection::LookUp { space: FIRST })),
            "{refused:?}"
        );
    }
    let stale = Query::FindLookedUp(FindLookedUp {
        find: find("2"),
        answers: before,
    });
    for stale in [&query, &stale] {
        assert_eq!(run.machine.id_to_look_up(stale), Some(asked));
        run.machine.query(stale, run.now).unwrap_err();
    }
    let command = with(&run.answers([asked]), &command);
    assert_eq!(run.machine.ids_to_look_up(&command, run.now), []);
    let Ok(Reply::Appended(appended)) = run.machine.decide(&command, run.now).outcome else {
        panic!("it is a duplicate");
    };
    assert!(appended.events[0].is_duplicate);
    assert_eq!(appended.events[0].sequence_id, SequenceId(2));
}

#[test]
fn only_durable_ids_leave_memory() {
    let mut run = made();
    places(&mut run, append(1, &["a#1"]));
    run.sync();
    run.set_syncing(false);
    places(&mut run, append(1, &["b#2"]));
    assert_eq!(
        (run.index(9), run.index(9)),
        ("1 ids".into(), "0 ids".into())
    );
    run.sync();
    assert_eq!(run.index(9), "1 ids");
    // A number that no event has is none.
    for (space, up_to) in [(FIRST, 3), (IdSpace::Ledger(LedgerId(2)), 1)] {
        let up_to = Sequence(up_to);
        let records = run.log.len();
        run.give(&EngineCommand::IdsIndexed { space, up_to })
            .unwrap();
        assert_eq!(run.log.len(), records);
    }
}

#[test]
fn ids_move_when_a_ledger_has_many_or_half_of_the_memory_is_taken() {
    let mut run = Run::with_limits(MachineLimits {
        // All but the last append leave a third of what their ledger has.
        ledger_bytes_max: 8 * 64 + 112,
        unique_id_index: true,
        ..MachineLimits::default()
    });
    create(&mut run, LedgerOptions::default());
    let other = crate::CreateLedger {
        name: ledger("other"),
        options: LedgerOptions::default(),
    };
    give(&mut run, other).unwrap();
    places(&mut run, append(1, &["a#1"]));
    let mut to_other = append(1, &["b#1", "c#2", "d#3"]);
    to_other.ledger = ledger("other");
    assert_eq!(places(&mut run, to_other), "1 2 3");
    let moves = |run: &Run, more_than, most| -> Vec<(u64, Vec<u64>)> {
        let moves = run.machine.ids_to_index(more_than, most).into_iter();
        moves
            .map(|of| {
                let places: Vec<_> = of.ids.iter().map(|(_, place)| *place).collect();
                assert_eq!(Some(&of.up_to.0), places.last());
                (of.space.number() - (1 << 32), places)
            })
            .collect()
    };
    assert_eq!(moves(&run, 3, 9), []);
    assert_eq!(moves(&run, 2, 9), [(2, vec![1, 2, 3])]);
    // The fullest comes first, and all together are so many at most.
    assert_eq!(moves(&run, 0, 9), [(2, vec![1, 2, 3]), (1, vec![1])]);
    assert_eq!(moves(&run, 0, 2), [(2, vec![1, 2])]);
    places(&mut run, append(1, &["e#5"]));
    assert_eq!(
        moves(&run, 3, 9),
        [(2, vec![1, 2, 3]), (1, vec![1, 2])],
        "half of the memory is taken"
    );
    places(&mut run, append(1, &["f#6", "g#7", "h#8"]));
    let full = refusal(give(&mut run, append(1, &["i#9"])));
    assert!(full.to_string().contains("index on disk"), "{full}");
    assert!(matches!(full, LedgerError::Full { .. }), "{full}");
    assert_eq!(run.index(9), "8 ids");
    assert_eq!(places(&mut run, append(1, &["x#8", "i#9"])), "5= 6");
    run.check_recovery();
}

#[test]
fn an_image_keeps_how_far_ids_of_ledgers_are_in_the_index() {
    let mut run = made();
    places(&mut run, append(1, &["a#1", "b", "c#3"]));
    assert_eq!(run.index(1), "1 ids");
    let image = loaded(&mut run.machine);
    assert_eq!(image.state_view(), run.machine.state_view());
    let spaces: Vec<_> = image.id_spaces().collect();
    assert_eq!(spaces, [(FIRST, Sequence(1), Sequence(4))]);
    assert!(image.needs_index());
    // What it must look up, it knows from the image alone.
    run.machine = image;
    assert_eq!(
        places(&mut run, append(1, &["x#1", "y#3", "d#4"])),
        "1= 3= 4"
    );
    assert_eq!(found(&run, "1"), Some(1));
    assert!(!made().machine.needs_index());
}

#[test]
fn a_ledger_knows_no_ids_of_one_that_was_deleted() {
    let mut run = made();
    places(&mut run, append(1, &["a#1", "b#2"]));
    assert_eq!(run.index(1), "1 ids");
    let old = run.answers([(FIRST, digest(None, "1"))]);
    let delete = DeleteLedger {
        ledger: ledger("l"),
    };
    give(&mut run, delete).unwrap();
    assert_eq!(run.machine.id_spaces().count(), 0, "its ids may go");
    assert_eq!(run.machine.ids_to_index(0, 9), []);
    let up_to = Sequence(2);
    let space = FIRST;
    run.give(&EngineCommand::IdsIndexed { space, up_to })
        .unwrap();
    create(&mut run, LedgerOptions::default());
    let late = Command::LookedUp(Box::new(LookedUp {
        answers: old,
        command: append(1, &["x#1"]).into(),
    }));
    let Ok(Reply::Appended(appended)) = run.machine.decide(&late, run.now).outcome else {
        panic!("it is new");
    };
    assert!(!appended.events[0].is_duplicate);
    assert_eq!(places(&mut run, append(1, &["x#1", "y#2"])), "1 2");
    assert_eq!(run.index(9), "2 ids");
    let second = IdSpace::Ledger(LedgerId(2));
    let late = run.answers([(FIRST, digest(None, "2"))]);
    let asked = [(second, digest(None, "2"))];
    let late = Command::LookedUp(Box::new(LookedUp {
        answers: late,
        command: append(1, &["x#2"]).into(),
    }));
    assert_eq!(run.machine.ids_to_look_up(&late, run.now), asked);
    run.check_recovery();
}

#[test]
fn what_the_index_has_of_lost_events_is_not_relied_on() {
    let mut run = made();
    places(&mut run, append(1, &["a#1"]));
    places(&mut run, append(1, &["b#2"]));
    assert_eq!(run.index(9), "2 ids");
    let lost = run.log.len() - 2;
    let mut machine = Machine::new(MachineLimits::default());
    for (at, (position, effects)) in run.log.iter().enumerate() {
        if at != lost {
            machine.fold(effects, *position);
        }
    }
    assert_eq!(machine.problems(), Vec::<String>::new());
    let spaces: Vec<_> = machine.id_spaces().collect();
    assert_eq!(spaces, [(FIRST, Sequence(1), Sequence(2))]);
}
