//! Watches of records.

use lockgate_core::{PutRecord, Record, RecordName, RecordVersion, Revision};
use lockgate_engine::{Answer, EngineError, EngineOptions, Work};
use lockgate_machine::{Command, QueryReply, QueueSettings, Reply};

use crate::support::{Answered, Shard, create};

fn put(value: &'static str, replaces: Option<u64>) -> Command {
    let put = PutRecord {
        name: RecordName::new("a").unwrap(),
        value: value.into(),
        replaces: replaces.map(RecordVersion),
        epoch: None,
    };
    put.into()
}

fn watch(shard: &Shard, seen: Option<Revision>, wait: u64) -> Work {
    Work::Watch {
        name: RecordName::new("a").unwrap(),
        seen,
        until: shard.now().machine.plus(wait),
    }
}

fn record(answered: Answered) -> Option<Record> {
    match answered.result {
        Ok(Answer::Query(Ok(QueryReply::Record(record)))) => record.map(|record| *record),
        other => panic!("{other:?}"),
    }
}

/// The write's revision, of a write that is durable.
fn write(shard: &mut Shard, value: &'static str, replaces: Option<u64>) -> Revision {
    match shard.run(put(value, replaces)).unwrap() {
        Reply::RecordWritten(written) => written.revision,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_watch_shows_nothing_that_can_be_taken_back() {
    let mut shard = Shard::new();
    let waiting = watch(&shard, None, 1_000);
    assert!(shard.group([waiting]).is_empty(), "there is no record yet");
    let answers = shard.group([put("one", None).into()]);
    assert!(answers.is_empty(), "the write is on its way");
    let at_once = watch(&shard, None, 1_000);
    assert!(shard.group([at_once]).is_empty(), "it shows that write too");
    let answers = shard.sync();
    assert_eq!(answers.len(), 3);
    let shown = answers
        .into_iter()
        .filter(|it| matches!(it.result, Ok(Answer::Query(_))));
    let shown: Vec<_> = shown.map(record).collect();
    assert_eq!(shown.len(), 2);
    assert!(shown.iter().all(|it| it.as_ref().unwrap().value == "one"));
}

#[test]
fn a_watch_ends_with_a_change_or_with_its_time() {
    let mut shard = Shard::new();
    let first = write(&mut shard, "one", None);
    let waiting = watch(&shard, Some(first), 1_000);
    assert!(shard.group([waiting]).is_empty());
    // Of two changes in one group, the last is seen.
    assert!(
        shard
            .group([put("two", Some(1)).into(), put("three", Some(2)).into()])
            .is_empty()
    );
    let answers = shard.sync();
    let seen = answers
        .into_iter()
        .find(|it| matches!(it.result, Ok(Answer::Query(_))));
    let seen = record(seen.unwrap()).unwrap();
    assert_eq!(
        (seen.value, seen.version),
        ("three".into(), RecordVersion(3))
    );

    let waiting = watch(&shard, Some(seen.revision), 1_000);
    assert!(shard.group([waiting]).is_empty());
    shard.clock.advance(999);
    assert!(shard.group([]).is_empty());
    shard.clock.advance(1);
    let mut answers = shard.group([]);
    answers.extend(shard.sync());
    assert_eq!(answers.len(), 1);
    assert_eq!(record(answers.remove(0)).unwrap().revision, seen.revision);
}

#[test]
fn watches_and_receives_that_wait_have_one_bound() {
    let mut shard = Shard::with_options(&EngineOptions {
        waiters_max: 2,
        ..EngineOptions::default()
    });
    shard.run(create("q", QueueSettings::default())).unwrap();
    let works = [
        shard.wait_for("q", 1_000),
        watch(&shard, None, 1_000),
        watch(&shard, None, 1_000),
        // What need not wait is answered.
        watch(&shard, Some(Revision(1)), 1_000),
    ];
    let answers = shard.group(works);
    assert_eq!(answers.len(), 2);
    assert!(matches!(answers[0].result, Err(EngineError::Overloaded)));
    assert!(answers[1].result.is_ok());
}
