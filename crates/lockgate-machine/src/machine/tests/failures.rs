//! The failures of a message: what is kept of them, and for how long.

use lockgate_core::{FailedAttempt, Failures, HolderName, Key, Sequence, WallTime};

use super::harness::{Run, check, name};
use crate::{
    Command, Delivery, Machine, MachineLimits, Query, QueryReply, Receive, Reply, Settle,
    SettleAction,
};

/// `attempt:reason` of each, and how many were left out.
fn words(failures: Option<&Failures>) -> String {
    let Some(failures) = failures else {
        return "none".to_owned();
    };
    let each = failures.kept().iter();
    let each = each.map(|failure| format!("{}:{}", failure.attempt, failure.error));
    let mut words = each.collect::<Vec<_>>().join(" ");
    if failures.left_out() > 0 {
        words += &format!(" and {}", failures.left_out());
    }
    words
}

fn of(machine: &Machine, queue: &str, sequence: u64) -> String {
    let view = &machine.state_view().queues[&name(queue)];
    words(view.messages[&Sequence(sequence)].failures.as_deref())
}

fn receive(run: &mut Run, queue: &str) -> Delivery {
    let receive = Command::Receive(Receive {
        queue: name(queue),
        max: 1,
        key_max: None,
        lease: None,
        holder: HolderName::new("worker").unwrap(),
    });
    match run.give(&receive) {
        Ok(Reply::Received(mut deliveries)) => deliveries.remove(0),
        other => panic!("{other:?}"),
    }
}

fn nack(run: &mut Run, delivery: &Delivery, reason: &str) {
    let settle = Command::Settle(Settle {
        token: delivery.token,
        action: SettleAction::Nack {
            delay: 0,
            reason: Some(reason.into()),
        },
    });
    run.give(&settle).unwrap();
}

#[test]
fn a_message_keeps_its_failures_in_a_dead_letter_queue_and_back() {
    let run = check(
        "
        queue dead keyed
        queue q keyed dlq=dead/3 lease=30s
        send q key=a                    => #1
        send q key=a                    => #2
        receive q 1                     => 1
        nack q 1 0ms timeout
        receive q 1                     => 1/2
        // Nobody says why: its lease ends.
        wait 30s
        receive q 1                     => 1/3
        nack q 1 5s refused
        wait 5s
        receive q 1                     => 2
        receive dead 1                  => 1<q#1
        nack dead 1 0ms odd
        move dead q 9
        ack q 2
        receive q 9                     => 3<dead#1
        nack q 3 0ms again
        ",
    );
    assert_eq!(
        of(&run.machine, "q", 3),
        "1:timeout 3:refused 1:odd 1:again"
    );
    let query = Query::ListMessages(crate::ListMessages {
        queue: name("q"),
        key: Some(Key::new("a").unwrap()),
        after: None,
        limit: 1,
    });
    let Ok(QueryReply::Messages(page)) = run.machine.query(&query, run.now) else {
        panic!("a query for messages")
    };
    let failures = page.messages[0].failures.as_deref().unwrap();
    let start = run.now.wall.0 - 35_000;
    assert_eq!(
        failures.kept()[1],
        FailedAttempt {
            attempt: 3,
            at: WallTime(start + 30_000),
            error: "refused".into()
        }
    );
}

#[test]
fn what_is_gone_keeps_nothing() {
    for end in ["ack q 1", "reject q 1", "purge q", "delete q", "wait 5d"] {
        let mut run = check(&format!(
            "
            queue q keyed
            send q key=a                    => #1
            receive q 1                     => 1
            nack q 1 0ms timeout
            receive q 1                     => 1/2
            {end}
            wait 1s
            "
        ));
        run.machine.housekeep(1_000);
        run.check_recovery();
        assert_eq!(run.machine.failures_in_use(), (0, 0), "{end}");
    }
}

#[test]
fn a_delivery_shows_the_failures_before_it_and_an_image_keeps_them() {
    let mut run = Run::new();
    run.lines("queue q keyed\n send q key=a");
    for attempt in 1..=12 {
        let delivery = receive(&mut run, "q");
        assert_eq!(delivery.attempt, attempt);
        nack(&mut run, &delivery, &format!("e{attempt}"));
    }
    let shown = "1:e1 4:e4 5:e5 6:e6 7:e7 8:e8 9:e9 10:e10 11:e11 12:e12 and 2";
    assert_eq!(words(receive(&mut run, "q").failures.as_deref()), shown);
    run.lines("send q key=b");
    assert_eq!(receive(&mut run, "q").failures, None);
    run.check_recovery();

    let mut frozen = run.machine.freeze();
    let mut loader = crate::ImageLoader::new(MachineLimits::default());
    let mut buffer = Vec::new();
    while let Some(piece) = frozen.next_piece(&mut buffer) {
        loader.piece(piece).unwrap();
    }
    let loaded = loader.finish_checked().unwrap();
    assert_eq!(of(&loaded, "q", 1), shown);
    assert_eq!(loaded.failures_in_use(), run.machine.failures_in_use());
    assert_eq!(loaded.state_view(), run.machine.state_view());
}

/// A backlog that fails must not use up the memory.
#[test]
fn where_there_is_no_room_failures_are_counted() {
    let mut run = Run::with_limits(MachineLimits {
        failure_bytes_max: 200,
        ..MachineLimits::default()
    });
    run.lines("queue q keyed");
    for key in ["a", "b"] {
        run.lines(&format!("send q key={key}"));
        for attempt in 1..=2 {
            let delivery = receive(&mut run, "q");
            assert_eq!(delivery.attempt, attempt, "{key}");
            nack(&mut run, &delivery, "12345");
        }
        if key == "a" {
            assert_eq!(of(&run.machine, "q", 1), "1:12345 2:12345");
            receive(&mut run, "q");
        }
    }
    assert_eq!(of(&run.machine, "q", 2), " and 2");
    run.check_recovery();
}

#[test]
fn a_reason_has_a_bound() {
    let mut run = Run::new();
    run.lines("queue q keyed\n send q key=a");
    let token = receive(&mut run, "q").token;
    for (bytes, refused) in [(1_025, true), (1_024, false)] {
        let reason = Some("r".repeat(bytes).into());
        let settle = Command::Settle(Settle {
            token,
            action: SettleAction::Nack { delay: 0, reason },
        });
        let outcome = run.give(&settle);
        assert_eq!(outcome.is_err(), refused, "{outcome:?}");
    }
}
