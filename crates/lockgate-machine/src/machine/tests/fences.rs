//! Fences: which commands pass, and what they leave of the guard.

use lockgate_core::{
    ElectionName, Epoch, Message, PutRecord, RecordName, RecordVersion, Revision,
    coordination::{FenceError, FenceMark},
};

use super::harness::Run;
use crate::{Command, CreateQueue, Fenced, QueueSettings, Rejection, Reply, SendMessage};

fn fenced(epoch: u64, command: impl Into<Command>) -> Command {
    let election = ElectionName::new("reports").unwrap();
    let mark = FenceMark {
        election,
        epoch: Epoch(epoch),
    };
    let command = command.into();
    Fenced { mark, command }.into()
}

fn put(record: &str, value: &str, replaces: Option<u64>) -> PutRecord {
    PutRecord {
        name: RecordName::new(record).unwrap(),
        value: value.to_owned().into(),
        replaces: replaces.map(RecordVersion),
        epoch: None,
    }
}

#[track_caller]
fn give(run: &mut Run, command: &Command) -> Result<Reply, Rejection> {
    let reply = run.give(command);
    run.check_invariants(&format!("{command:?}"));
    reply
}

fn guard(run: &Run) -> Option<(String, Revision)> {
    let name = RecordName::new("fence/reports").unwrap();
    let record = run.machine.record(&name, run.now)?;
    let value = String::from_utf8(record.value.to_vec()).unwrap();
    Some((value, record.revision))
}

fn deposed(reply: Result<Reply, Rejection>) -> bool {
    matches!(reply, Err(Rejection::Fenced(FenceError::Deposed { newest, .. })) if newest == Epoch(9))
}

#[test]
fn a_command_of_an_earlier_term_does_nothing() {
    let mut run = Run::new();
    give(&mut run, &fenced(7, put("a", "one", None))).unwrap();
    assert_eq!(guard(&run).unwrap().0, "7");
    give(&mut run, &fenced(9, put("a", "two", Some(1)))).unwrap();
    let (value, revision) = guard(&run).unwrap();
    assert_eq!(value, "9");
    assert!(deposed(give(
        &mut run,
        &fenced(8, put("a", "late", Some(2)))
    )));
    // The same term again changes the guard no more, and a command without a fence needs none.
    give(&mut run, &fenced(9, put("a", "three", Some(2)))).unwrap();
    assert_eq!(guard(&run), Some((value, revision)));
    give(&mut run, &put("a", "four", Some(3)).into()).unwrap();
    run.check_recovery();
    assert!(deposed(give(
        &mut run,
        &fenced(8, put("a", "late", Some(4)))
    )));
}

#[test]
fn no_two_changes_of_a_fenced_command_have_one_revision() {
    let mut run = Run::new();
    let Ok(Reply::RecordWritten(written)) = give(&mut run, &fenced(7, put("a", "one", None)))
    else {
        panic!("it is written");
    };
    let (_, raised) = guard(&run).unwrap();
    assert!(raised > written.revision);
    let Ok(Reply::RecordWritten(next)) = give(&mut run, &put("b", "x", None).into()) else {
        panic!("it is written");
    };
    assert!(next.revision > raised);
}

#[test]
fn a_message_of_an_earlier_term_is_not_sent() {
    let mut run = Run::new();
    let queue = super::harness::name("q");
    let create = CreateQueue {
        name: queue.clone(),
        settings: QueueSettings::default(),
        annotations: Default::default(),
        tags: Default::default(),
    };
    give(&mut run, &create.into()).unwrap();
    let send = |queue: &lockgate_core::QueueName| SendMessage {
        queue: queue.clone(),
        message: Message::new("a"),
    };
    assert!(matches!(
        give(&mut run, &fenced(9, send(&queue))),
        Ok(Reply::Sent(_))
    ));
    assert!(deposed(give(&mut run, &fenced(7, send(&queue)))));
    assert!(matches!(
        give(&mut run, &send(&queue).into()),
        Ok(Reply::Sent(_))
    ));
    run.check_recovery();
}

#[test]
fn a_refused_command_raises_no_guard() {
    let mut run = Run::new();
    give(&mut run, &fenced(9, put("a", "x", Some(5)))).unwrap_err();
    assert_eq!(guard(&run), None);
    // Two fences, and a fence around its own guard, are mistakes.
    give(&mut run, &fenced(9, fenced(9, put("a", "x", None)))).unwrap_err();
    give(&mut run, &fenced(9, put("fence/reports", "1", None))).unwrap_err();
    assert_eq!(guard(&run), None);
    give(&mut run, &fenced(9, put("a", "x", None))).unwrap();
    give(&mut run, &fenced(9, put("fence/reports", "1", Some(1)))).unwrap_err();
    assert_eq!(guard(&run).unwrap().0, "9");
}

#[test]
fn a_guard_that_is_no_number_lets_nothing_pass() {
    let mut run = Run::new();
    give(&mut run, &put("fence/reports", "x", None).into()).unwrap();
    assert!(give(&mut run, &fenced(9, put("a", "x", None))).is_err());
    let written = run.machine.record(&RecordName::new("a").unwrap(), run.now);
    assert_eq!(written, None);
}
