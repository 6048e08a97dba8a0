//! Schedules: when they fire and when not, what they send, what a restart, an image and a lost record leave.
//!
//! These bugs, made on purpose, failed a test here or in the random histories:
//!
//! | broken | seen as |
//! |---|---|
//! | a step ignores the generation | a stale step fires |
//! | a step ignores the next time | a time fires twice |
//! | a step ignores the clock | a time fires early |
//! | a message that leaves releases nobody | a schedule waits for ever |
//! | an image forgets who is due | a due schedule is in no place |
//! | a paused schedule keeps its timer | a paused schedule is in a place |
//! | a replaced message in flight is dropped | the lease of the holder ends |

use std::sync::Arc;

use bytes::Bytes;
use lockgate_core::{
    CatchUp, ExchangeName, Header, HolderName, Key, LeaseToken, Message, MessageId, Overlap,
    QueueName, RoutingKey, ScheduleName, Timing, UniqueId, WallTime,
};

use super::{
    harness::{Run, name},
    images::loaded,
    ledgers::give,
};
use crate::{
    AnyCommand, Cancel, ChangeSchedule, Command, DeleteSchedule, DescribeSchedule, DueSchedule,
    EngineCommand, Firing, ListSchedules, MachineLimits, PutSchedule, Query, QueryReply, Receive,
    Rejection, RunSchedule, ScheduleChange, ScheduleDescription, ScheduleError, SchedulePut,
    ScheduleSpec, ScheduleStep, ScheduleTo, SchedulesPage, Settle, SettleAction, TypedQuery,
};

const SECOND: u64 = 1_000;

fn schedule(text: &str) -> ScheduleName {
    ScheduleName::new(text).unwrap()
}

fn spec(to: &str) -> ScheduleSpec {
    ScheduleSpec {
        timing: Timing::Every {
            period: 10 * SECOND,
            from: None,
        },
        to: ScheduleTo::Queue(name(to)),
        message: Arc::new(Message {
            body: Bytes::from_static(b"work"),
            ..Message::default()
        }),
        catch_up: CatchUp::All,
        overlap: Overlap::Allow,
        late_max: 60 * SECOND,
    }
}

fn with_overlap(to: &str, overlap: Overlap) -> ScheduleSpec {
    ScheduleSpec {
        overlap,
        ..spec(to)
    }
}

fn put(run: &mut Run, what: &str, spec: ScheduleSpec, after: u64) -> SchedulePut {
    let next = Some(run.now.wall.plus(after));
    let put = PutSchedule {
        name: schedule(what),
        spec: Arc::new(spec),
        next,
        generation: None,
    };
    give(run, put).unwrap()
}

fn describe(run: &Run, what: &str) -> ScheduleDescription {
    let schedule = schedule(what);
    let query = Query::from(DescribeSchedule { schedule });
    let reply = run.machine.query(&query, run.now).unwrap();
    DescribeSchedule::reply(reply).unwrap()
}

fn due(run: &Run) -> Vec<DueSchedule> {
    run.machine.due_schedules().collect()
}

fn wait(run: &mut Run, millis: u64) {
    run.now.wall = run.now.wall.plus(millis);
    run.now.machine = run.now.machine.plus(millis);
    run.tick();
    run.check_invariants("a wait");
}

/// A step that fires for the time that has come, and goes on 10 seconds later.
fn step_of(due: &DueSchedule) -> ScheduleStep {
    ScheduleStep {
        schedule: due.id,
        generation: due.generation,
        from: due.next,
        fires: Some(due.next),
        missed: 0,
        next: Some(due.next.plus(10 * SECOND)),
    }
}

fn take(run: &mut Run, step: ScheduleStep) -> Result<(), Rejection> {
    let command = EngineCommand::StepSchedule(step);
    let reply = run.give(AnyCommand::Engine(&command));
    run.check_invariants(&format!("{step:?}"));
    reply.map(|_| ())
}

/// Takes the steps of all that are due; how many.
fn fire(run: &mut Run) -> usize {
    run.tick();
    let steps: Vec<_> = due(run).iter().map(step_of).collect();
    for step in &steps {
        take(run, *step).unwrap();
    }
    steps.len()
}

fn made() -> Run {
    let mut run = Run::new();
    run.lines("queue q");
    run
}

/// How many messages of the queue are ready and in flight.
fn counts(run: &Run) -> (u64, u64) {
    let counts = run.describe("q").counts;
    (counts.ready, counts.in_flight)
}

/// Leases the next message for an hour.
fn receive(run: &mut Run) -> LeaseToken {
    let receive = Receive {
        queue: name("q"),
        max: 1,
        key_max: None,
        lease: Some(3_600 * SECOND),
        holder: HolderName::new("somebody").unwrap(),
    };
    give(run, receive).unwrap().remove(0).token
}

fn settle(run: &mut Run, action: SettleAction) {
    let token = receive(run);
    give(run, Settle { token, action }).unwrap();
}

#[test]
fn it_fires_at_its_times_and_never_before() {
    let mut run = made();
    let made = put(&mut run, "s", spec("q"), 10 * SECOND);
    assert!(made.created && made.changed);
    let first = made.schedule.next.unwrap();
    wait(&mut run, 10 * SECOND - 1);
    assert_eq!(due(&run), []);
    wait(&mut run, 1);
    let now_due = due(&run);
    assert_eq!(now_due.len(), 1);
    assert_eq!((now_due[0].next, now_due[0].anchor), (first, first));
    let step = step_of(&now_due[0]);
    take(&mut run, step).unwrap();
    assert_eq!(counts(&run), (1, 0));
    // The same step again is one for another time.
    take(&mut run, step).unwrap();
    assert_eq!(counts(&run), (1, 0));
    assert_eq!(due(&run), []);
    let shown = describe(&run, "s");
    assert_eq!(shown.next, Some(first.plus(10 * SECOND)));
    assert_eq!((shown.counts.fired, shown.unsettled), (1, true));
    let last = shown.last.unwrap();
    assert_eq!((last.scheduled, last.at), (Some(first), run.now.wall));
    run.check_recovery();
}

#[test]
fn a_step_for_another_state_does_nothing() {
    let mut run = made();
    put(&mut run, "s", spec("q"), 10 * SECOND);
    wait(&mut run, 10 * SECOND);
    let good = step_of(&due(&run)[0]);
    let (from, now) = (good.from, run.now.wall);
    for step in [
        ScheduleStep {
            generation: good.generation + 1,
            ..good
        },
        ScheduleStep {
            generation: good.generation - 1,
            ..good
        },
        ScheduleStep {
            from: from.plus(1),
            ..good
        },
        ScheduleStep {
            from: WallTime(from.0 - 1),
            ..good
        },
        // Early.
        ScheduleStep {
            fires: Some(now.plus(1)),
            ..good
        },
        ScheduleStep {
            fires: Some(WallTime(from.0 - 1)),
            ..good
        },
        // It would fire for this time again.
        ScheduleStep {
            next: Some(from),
            ..good
        },
        ScheduleStep {
            schedule: lockgate_core::ScheduleId(99),
            ..good
        },
    ] {
        let before = run.machine.state_view();
        take(&mut run, step).unwrap();
        assert_eq!(run.machine.state_view(), before, "{step:?}");
    }
    // The clock stepped back since.
    run.now.wall = WallTime(from.0 - 1);
    take(&mut run, good).unwrap();
    assert_eq!(counts(&run), (0, 0));
    run.now.wall = from;
    take(&mut run, good).unwrap();
    assert_eq!(counts(&run), (1, 0));
}

#[test]
fn a_message_says_of_which_schedule_and_time_it_is() {
    let mut run = made();
    let mut spec = spec("q");
    Arc::make_mut(&mut spec.message).headers = vec![Header {
        name: "own".into(),
        kind: "String".into(),
        value: Bytes::from_static(b"1"),
    }];
    put(&mut run, "s", spec, 10 * SECOND);
    let at = describe(&run, "s").next.unwrap();
    wait(&mut run, 11 * SECOND);
    fire(&mut run);
    let sent = run.log.iter().flat_map(|(_, effects)| effects);
    let sent: Vec<_> = sent
        .filter_map(|effect| match effect {
            crate::Effect::Accepted(stored) => Some(stored.message.clone()),
            _ => None,
        })
        .collect();
    let headers: Vec<_> = sent[0]
        .headers
        .iter()
        .map(|header| (&*header.name, str::from_utf8(&header.value).unwrap()))
        .collect();
    let time = crate::exchanges::envelope::instant(at);
    assert_eq!(
        headers,
        [
            ("own", "1"),
            ("lockgate.schedule", "s"),
            ("lockgate.scheduled-at", &*time)
        ]
    );
    let incarnation = run.machine.term().incarnation.0;
    let id = format!("schedule-1-1-{incarnation:x}");
    assert_eq!(sent[0].unique_id, UniqueId::new(&id).ok());
}

#[test]
fn the_same_again_changes_nothing() {
    let mut run = made();
    let first = put(&mut run, "s", spec("q"), 10 * SECOND).schedule;
    wait(&mut run, SECOND);
    let before = run.log.len();
    let again = put(&mut run, "s", spec("q"), 10 * SECOND);
    assert!(!again.created && !again.changed);
    assert_eq!(again.schedule, first);
    assert_eq!(run.log.len(), before);
    // Another body: its next time stays.
    let mut other = spec("q");
    Arc::make_mut(&mut other.message).body = Bytes::from_static(b"other");
    let changed = put(&mut run, "s", other.clone(), 10 * SECOND);
    assert!(!changed.created && changed.changed);
    assert_eq!(changed.schedule.next, first.next);
    assert!(changed.schedule.generation > first.generation);
    // Another timing: it has another next time.
    other.timing = Timing::Every {
        period: 20 * SECOND,
        from: None,
    };
    let changed = put(&mut run, "s", other, 20 * SECOND);
    assert_eq!(changed.schedule.next, Some(run.now.wall.plus(20 * SECOND)));
    assert_eq!(changed.schedule, describe(&run, "s"));
    run.check_recovery();
}

#[test]
fn a_generation_guards_every_change() {
    let mut run = made();
    let generation = put(&mut run, "s", spec("q"), SECOND).schedule.generation;
    let wrong = |run: &mut Run, command: Command| match run.give(&command) {
        Err(Rejection::Schedule(ScheduleError::Generation { is, .. })) => is,
        other => panic!("{other:?}"),
    };
    let stale = Some(generation - 1);
    let name = schedule("s");
    let put = |generation| PutSchedule {
        name: name.clone(),
        spec: Arc::new(with_overlap("q", Overlap::Skip)),
        next: Some(WallTime(1)),
        generation,
    };
    assert_eq!(wrong(&mut run, put(Some(0)).into()), generation);
    assert_eq!(wrong(&mut run, put(stale).into()), generation);
    let change = |generation| ChangeSchedule {
        name: name.clone(),
        change: ScheduleChange::Pause,
        generation,
    };
    assert_eq!(wrong(&mut run, change(stale).into()), generation);
    let delete = |generation| DeleteSchedule {
        name: name.clone(),
        generation,
    };
    assert_eq!(wrong(&mut run, delete(stale).into()), generation);
    let stale_run = RunSchedule {
        name: name.clone(),
        generation: stale,
    };
    assert_eq!(wrong(&mut run, stale_run.into()), generation);
    let paused = give(&mut run, change(Some(generation))).unwrap();
    give(&mut run, delete(Some(paused.generation))).unwrap();
    // One of the same name has another generation.
    assert_eq!(wrong(&mut run, put(Some(paused.generation)).into()), 0);
    let again = give(&mut run, put(Some(0))).unwrap();
    assert!(again.created && again.schedule.generation > paused.generation);
}

#[test]
fn a_pause_lets_times_pass() {
    let mut run = made();
    put(&mut run, "s", spec("q"), 10 * SECOND);
    let change = |run: &mut Run, change| {
        let name = schedule("s");
        let generation = None;
        give(
            run,
            ChangeSchedule {
                name,
                change,
                generation,
            },
        )
        .unwrap()
    };
    let paused = change(&mut run, ScheduleChange::Pause);
    assert!(paused.paused);
    wait(&mut run, 25 * SECOND);
    assert_eq!(due(&run), []);
    let next = Some(run.now.wall.plus(5 * SECOND));
    let resumed = change(&mut run, ScheduleChange::Resume { next });
    assert_eq!((resumed.paused, resumed.next), (false, next));
    wait(&mut run, 5 * SECOND);
    assert_eq!(fire(&mut run), 1);
    // A next time that has not passed stays.
    let before = describe(&run, "s").next;
    change(&mut run, ScheduleChange::Pause);
    let resumed = change(&mut run, ScheduleChange::Resume { next: None });
    assert_eq!(resumed.next, before);
    // Resumed twice is resumed.
    let again = change(&mut run, ScheduleChange::Resume { next: None });
    assert_eq!(again.generation, resumed.generation);
    run.check_recovery();
}

#[test]
fn a_moved_time_stands_in_for_the_next_one() {
    let mut run = made();
    let made = put(&mut run, "s", spec("q"), 10 * SECOND).schedule;
    let to = run.now.wall.plus(3 * SECOND);
    let moved = |to| ChangeSchedule {
        name: schedule("s"),
        change: ScheduleChange::Move(to),
        generation: None,
    };
    let shown = give(&mut run, moved(to)).unwrap();
    assert_eq!((shown.next, shown.planned), (Some(to), made.next));
    // Moved again, it stands in for the same one.
    let to = run.now.wall.plus(4 * SECOND);
    let shown = give(&mut run, moved(to)).unwrap();
    assert_eq!((shown.next, shown.planned), (Some(to), made.next));
    wait(&mut run, 4 * SECOND);
    assert_eq!(due(&run)[0].planned, made.next);
    fire(&mut run);
    assert_eq!(describe(&run, "s").planned, None);
    run.check_recovery();
}

#[test]
fn a_run_by_hand_leaves_the_times_as_they_are() {
    let mut run = made();
    let made = put(&mut run, "s", spec("q"), 10 * SECOND).schedule;
    let by_hand = RunSchedule {
        name: schedule("s"),
        generation: None,
    };
    let message = give(&mut run, by_hand.clone()).unwrap();
    let shown = describe(&run, "s");
    assert_eq!(shown.next, made.next);
    assert_eq!((shown.counts.by_hand, shown.counts.fired), (1, 0));
    let firing = Firing {
        scheduled: None,
        at: run.now.wall,
        message: Some(message),
    };
    assert_eq!(shown.last, Some(firing));
    // Also while it is due.
    wait(&mut run, 10 * SECOND);
    give(&mut run, by_hand).unwrap();
    assert_eq!(counts(&run), (2, 0));
    assert_eq!(fire(&mut run), 1);
    assert_eq!(counts(&run), (3, 0));
    run.check_recovery();
}

#[test]
fn overlap_skip_leaves_times_out_while_the_last_message_is_there() {
    let mut run = made();
    put(&mut run, "s", with_overlap("q", Overlap::Skip), 10 * SECOND);
    wait(&mut run, 10 * SECOND);
    fire(&mut run);
    wait(&mut run, 10 * SECOND);
    assert_eq!(fire(&mut run), 1);
    assert_eq!(counts(&run), (1, 0));
    let shown = describe(&run, "s");
    assert_eq!((shown.counts.fired, shown.counts.overlapped), (1, 1));
    // The last firing is the one that sent something.
    let first = run.now.wall.0 - 10 * SECOND;
    assert_eq!(shown.last.unwrap().scheduled, Some(WallTime(first)));
    assert!(shown.unsettled);
    let by_hand = RunSchedule {
        name: schedule("s"),
        generation: None,
    };
    let refused = give(&mut run, by_hand).unwrap_err();
    assert!(matches!(
        refused,
        Rejection::Schedule(ScheduleError::Unsettled { .. })
    ));
    settle(&mut run, SettleAction::Ack);
    wait(&mut run, 10 * SECOND);
    fire(&mut run);
    assert_eq!(counts(&run), (1, 0));
    assert_eq!(describe(&run, "s").counts.fired, 2);
    run.check_recovery();
}

#[test]
fn overlap_queue_waits_until_the_last_message_is_gone() {
    for gone in ["ack", "cancel", "purge q", "reject"] {
        let mut run = made();
        put(
            &mut run,
            "s",
            with_overlap("q", Overlap::Queue),
            10 * SECOND,
        );
        wait(&mut run, 10 * SECOND);
        fire(&mut run);
        wait(&mut run, 15 * SECOND);
        assert_eq!(due(&run), []);
        let shown = describe(&run, "s");
        assert_eq!(shown.waits_for, shown.last.and_then(|last| last.message));
        assert!(shown.waits_for.is_some());
        // Also in a new life, and in one that began with an image.
        assert_eq!(run.recovered().due_schedules().count(), 0);
        let image = loaded(&mut run.machine);
        assert_eq!(image.state_view(), run.machine.state_view());
        assert_eq!(image.due_schedules().count(), 0);
        match gone {
            "cancel" => {
                let message = shown.waits_for.unwrap();
                give(
                    &mut run,
                    Cancel {
                        queue: name("q"),
                        message,
                    },
                )
                .unwrap();
            }
            "purge q" => run.lines("purge q"),
            "ack" => settle(&mut run, SettleAction::Ack),
            _ => settle(&mut run, SettleAction::Reject { reason: None }),
        }
        run.check_invariants(gone);
        let now_due = due(&run);
        assert_eq!(now_due.len(), 1, "{gone}");
        assert!(now_due[0].waited);
        let image = loaded(&mut run.machine);
        assert_eq!(image.due_schedules().collect::<Vec<_>>(), now_due);
        fire(&mut run);
        assert_eq!(describe(&run, "s").counts.fired, 2);
        run.check_recovery();
    }
}

#[test]
fn what_begins_to_wait_late_is_missed_all_the_same() {
    for (late, waited) in [(10 * SECOND, true), (100 * SECOND, false)] {
        let mut run = made();
        put(
            &mut run,
            "s",
            with_overlap("q", Overlap::Queue),
            10 * SECOND,
        );
        wait(&mut run, 10 * SECOND);
        fire(&mut run);
        wait(&mut run, 10 * SECOND + late);
        assert!(describe(&run, "s").waits_for.is_some());
        let image = loaded(&mut run.machine);
        assert_eq!(image.state_view(), run.machine.state_view());
        settle(&mut run, SettleAction::Ack);
        assert_eq!(due(&run)[0].waited, waited, "{late}");
        run.check_recovery();
    }
}

#[test]
fn one_that_is_over_and_moved_fires_once_more() {
    let mut run = made();
    let at = run.now.wall.plus(10 * SECOND);
    let once = ScheduleSpec {
        timing: Timing::At(at),
        ..spec("q")
    };
    put(&mut run, "s", once, 10 * SECOND);
    wait(&mut run, 10 * SECOND);
    let step = ScheduleStep {
        next: None,
        ..step_of(&due(&run)[0])
    };
    take(&mut run, step).unwrap();
    assert_eq!(describe(&run, "s").next, None);
    // To a time before its own: that one does not come again behind it.
    let moved = ChangeSchedule {
        name: schedule("s"),
        change: ScheduleChange::Move(WallTime(at.0 - 5 * SECOND)),
        generation: None,
    };
    assert_eq!(give(&mut run, moved).unwrap().planned, Some(at));
}

#[test]
fn a_queue_that_is_deleted_lets_nobody_wait() {
    let mut run = made();
    put(
        &mut run,
        "s",
        with_overlap("q", Overlap::Queue),
        10 * SECOND,
    );
    wait(&mut run, 10 * SECOND);
    fire(&mut run);
    wait(&mut run, 10 * SECOND);
    run.lines("delete q");
    let step = step_of(&due(&run)[0]);
    // It stays due until it can fire.
    let refused = take(&mut run, step).unwrap_err();
    assert!(matches!(refused, Rejection::QueueNotFound { .. }));
    assert_eq!(due(&run).len(), 1);
    run.lines("queue q");
    assert_eq!(fire(&mut run), 1);
    assert_eq!(counts(&run), (1, 0));
}

#[test]
fn overlap_replace_cancels_what_waits_and_leaves_what_is_in_flight() {
    let mut run = made();
    put(
        &mut run,
        "s",
        with_overlap("q", Overlap::Replace),
        10 * SECOND,
    );
    for _ in 0..3 {
        wait(&mut run, 10 * SECOND);
        fire(&mut run);
        assert_eq!(counts(&run), (1, 0));
    }
    assert_eq!(describe(&run, "s").counts.replaced, 2);
    receive(&mut run);
    for _ in 0..2 {
        wait(&mut run, 10 * SECOND);
        fire(&mut run);
        assert_eq!(counts(&run), (1, 1));
    }
    assert_eq!(describe(&run, "s").counts.replaced, 3);
    run.check_recovery();
}

#[test]
fn what_a_queue_would_never_take_is_refused_when_it_is_made() {
    let mut run = Run::new();
    run.lines("queue q keyed");
    let refused = |run: &mut Run, spec: ScheduleSpec| {
        let put = PutSchedule {
            name: schedule("s"),
            spec: Arc::new(spec),
            next: Some(run.now.wall),
            generation: None,
        };
        give(run, put).unwrap_err().to_string()
    };
    let text = refused(&mut run, spec("q"));
    assert!(text.contains("could not send its message"), "{text}");
    let text = refused(&mut run, spec("none"));
    assert!(text.contains("queue none does not exist"), "{text}");
    let keyed = Message {
        key: Key::new("k").ok(),
        ..Message::default()
    };
    let over = PutSchedule {
        name: schedule("s"),
        spec: Arc::new(ScheduleSpec {
            message: Arc::new(keyed),
            ..spec("q")
        }),
        next: None,
        generation: None,
    };
    let text = give(&mut run, over).unwrap_err().to_string();
    assert!(text.contains("would never fire"), "{text}");
    let mut with = |change: &dyn Fn(&mut ScheduleSpec, &mut Message)| {
        let mut spec = spec("q");
        let mut message = Message {
            key: Key::new("k").ok(),
            ..Message::clone(&spec.message)
        };
        change(&mut spec, &mut message);
        spec.message = Arc::new(message);
        refused(&mut run, spec)
    };
    for (change, word) in [
        (
            &(|_: &mut ScheduleSpec, it: &mut Message| it.due = Some(WallTime(1)))
                as &dyn Fn(&mut ScheduleSpec, &mut Message),
            "due time",
        ),
        (&|_, it| it.unique_id = UniqueId::new("x").ok(), "unique id"),
        (&|_, it| it.group = Key::new("g").ok(), "a key or a group"),
        (
            &|_, it| {
                it.headers.push(Header {
                    name: "lockgate.schedule".into(),
                    kind: "String".into(),
                    value: Bytes::new(),
                });
            },
            "sets the headers",
        ),
        (&|it, _| it.late_max = 999, "lateness"),
        (
            &|it, _| {
                it.timing = Timing::Every {
                    period: 99,
                    from: None,
                }
            },
            "period",
        ),
        (
            &|it, _| {
                it.timing = Timing::Cron {
                    expression: "".into(),
                    zone: "UTC".into(),
                }
            },
            "cron expression",
        ),
        (
            &|it, _| {
                it.to = ScheduleTo::Exchange {
                    exchange: ExchangeName::new("e").unwrap(),
                    routing_key: RoutingKey::new("").unwrap(),
                };
                it.overlap = Overlap::Skip;
            },
            "overlap allow",
        ),
    ] {
        let text = with(change);
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_full_queue_leaves_it_due() {
    let mut run = Run::new();
    run.lines("queue q messages=1\nsend q");
    put(&mut run, "s", spec("q"), 10 * SECOND);
    wait(&mut run, 10 * SECOND);
    let step = step_of(&due(&run)[0]);
    let refused = take(&mut run, step).unwrap_err();
    assert!(matches!(refused, Rejection::QuotaExceeded { .. }));
    assert_eq!(due(&run).len(), 1);
    assert_eq!(describe(&run, "s").counts.fired, 0);
}

#[test]
fn whoever_sends_the_unique_id_of_a_firing_first_does_not_swallow_it() {
    let mut run = made();
    run.lines("queue f window=forever");
    for queue in ["q", "f"] {
        put(&mut run, queue, spec(queue), 10 * SECOND);
    }
    let incarnation = run.machine.term().incarnation.0;
    run.lines(&format!(
        "send q id=schedule-1-1-{incarnation:x}\nsend f id=schedule-2-1-{incarnation:x}"
    ));
    wait(&mut run, 10 * SECOND);
    fire(&mut run);
    for queue in ["q", "f"] {
        assert_eq!(run.describe(queue).counts.ready, 2);
        assert_eq!(describe(&run, queue).counts.fired, 1);
    }
    // Nor does a firing keep others from sending.
    wait(&mut run, 10 * SECOND);
    fire(&mut run);
    run.lines(&format!("send q id=schedule-1-2-{incarnation:x}"));
    assert_eq!(run.describe("q").counts.ready, 4);
    run.check_recovery();
}

#[test]
fn schedules_have_bounds() {
    let mut run = Run::with_limits(MachineLimits {
        schedules_max: 2,
        schedule_bytes_max: 3_000,
        ..MachineLimits::default()
    });
    run.lines("queue q");
    put(&mut run, "a", spec("q"), SECOND);
    let mut long = spec("q");
    Arc::make_mut(&mut long.message).body = vec![b'x'; 3_000].into();
    let one = |name: &str, spec: &ScheduleSpec| PutSchedule {
        name: schedule(name),
        spec: Arc::new(spec.clone()),
        next: None,
        generation: None,
    };
    for name in ["a", "b"] {
        let refused = give(&mut run, one(name, &long)).unwrap_err();
        assert!(
            refused.to_string().contains("bytes of schedules"),
            "{refused}"
        );
    }
    put(&mut run, "b", spec("q"), SECOND);
    let refused = give(&mut run, one("c", &spec("q"))).unwrap_err();
    assert!(matches!(
        refused,
        Rejection::ShardFull {
            what: "schedules",
            max: 2
        }
    ));
    let delete = DeleteSchedule {
        name: schedule("a"),
        generation: None,
    };
    give(&mut run, delete).unwrap();
    put(&mut run, "c", spec("q"), SECOND);
    let list = ListSchedules {
        prefix: String::new(),
        after: None,
        limit: 1,
    };
    let reply = run.machine.query(&Query::from(list), run.now).unwrap();
    let QueryReply::Schedules(SchedulesPage { schedules, next }) = reply else {
        panic!("{reply:?}");
    };
    assert_eq!(schedules[0].name, schedule("b"));
    assert_eq!(next, Some(schedule("b")));
}

/// One that has fired stays to be seen, and gives way to a new one when there is no room.
#[test]
fn what_is_over_makes_room() {
    let mut run = Run::with_limits(MachineLimits {
        schedules_max: 3,
        ..MachineLimits::default()
    });
    run.lines("queue q");
    for (number, what) in ["a", "b", "c"].into_iter().enumerate() {
        let at = run.now.wall.plus(SECOND * (3 - number as u64));
        let once = ScheduleSpec {
            timing: Timing::At(at),
            ..spec("q")
        };
        put(&mut run, what, once, 0);
    }
    // It fires first c, then b; a is still to come.
    for _ in 0..2 {
        wait(&mut run, SECOND);
        let due = &due(&run)[0];
        let last = ScheduleStep {
            next: None,
            ..step_of(due)
        };
        take(&mut run, last).unwrap();
    }
    assert_eq!(describe(&run, "c").next, None);
    let names = |run: &Run| -> Vec<String> {
        let view = run.machine.state_view();
        let names = view.schedules.values();
        names.map(|schedule| schedule.name.to_string()).collect()
    };
    put(&mut run, "d", spec("q"), SECOND);
    assert_eq!(names(&run), ["a", "b", "d"]);
    run.check_recovery();
    // What is over makes room for itself, too.
    put(&mut run, "b", spec("q"), SECOND);
    let refused = PutSchedule {
        name: schedule("e"),
        spec: Arc::new(spec("q")),
        next: Some(run.now.wall.plus(SECOND)),
        generation: None,
    };
    let refused = give(&mut run, refused).unwrap_err().to_string();
    assert!(refused.contains("3 schedules"), "{refused}");
    assert_eq!(names(&run), ["a", "b", "d"]);
    run.check_recovery();
}

fn queue_of(number: u8) -> QueueName {
    let queues = super::random::QUEUES;
    name(queues[usize::from(number) % queues.len()])
}

/// A step whose numbers choose what is done.
pub(super) fn random_step(run: &mut Run, what: u8, how: u8, with: u8) {
    let name = schedule(&format!("s{}", how % 4));
    let soon = |with: u8| run.now.wall.plus(u64::from(with) * 40);
    let generation = None;
    let command: Command = match what % 8 {
        0..3 => {
            let overlap = Overlap::ALL[usize::from(with) % 4];
            let mut spec = with_overlap("x", overlap);
            spec.to = ScheduleTo::Queue(queue_of(how / 4));
            let message = Arc::make_mut(&mut spec.message);
            message.key = Key::new(&format!("{}", with % 3)).ok();
            if with > 200 {
                spec.timing = Timing::At(soon(how));
            }
            PutSchedule {
                name,
                spec: Arc::new(spec),
                next: Some(soon(with)),
                generation,
            }
            .into()
        }
        3 => {
            let change = match with % 4 {
                0 => ScheduleChange::Pause,
                1 | 2 => ScheduleChange::Resume {
                    next: Some(soon(with)),
                },
                _ => ScheduleChange::Move(soon(with)),
            };
            ChangeSchedule {
                name,
                change,
                generation,
            }
            .into()
        }
        4 if with > 200 => DeleteSchedule { name, generation }.into(),
        4 => RunSchedule { name, generation }.into(),
        _ => {
            run.tick();
            let before: Vec<_> = due(run);
            for due in &before {
                assert!(due.next <= run.now.wall || run.now.wall.0 < due.next.0);
                let step = ScheduleStep {
                    next: Some(due.next.plus(u64::from(with) * 40 + 1)),
                    ..step_of(due)
                };
                let is_early = due.next > run.now.wall;
                let fired = describe(run, due.name.as_str()).counts.fired;
                let _ = run.give(AnyCommand::Engine(&EngineCommand::StepSchedule(step)));
                let now_fired = describe(run, due.name.as_str()).counts.fired;
                assert!(!is_early || fired == now_fired, "it fires early");
            }
            return;
        }
    };
    let _ = run.give(&command);
}

/// Schedules share no message: an id that is not there is nobody's.
#[test]
fn a_message_that_never_was_is_settled() {
    let mut run = made();
    put(
        &mut run,
        "s",
        with_overlap("q", Overlap::Queue),
        10 * SECOND,
    );
    assert!(!describe(&run, "s").unsettled);
    assert_eq!(describe(&run, "s").waits_for, None::<MessageId>);
}
