//! Unique ids.

use std::sync::Arc;

use lockgate_core::{Message, Sequence, UniqueId};

use super::harness::{Run, check, name};
use crate::{
    Command, IdAnswer, IdSpace, ImageLoader, LookedUp, Machine, MachineLimits, Rejection, Reply,
    SendMessage, dedup::digest,
};

#[test]
fn a_duplicate_gets_the_first_answer_until_the_window_ends() {
    check(
        "
        queue q window=5min
        send q id=x                     => #1
        send q id=y                     => #2
        send q id=x                     => #1 duplicate
        receive q 1                     => 1
        // also when the message is gone, and counted from the first send
        ack q 1
        wait 299999ms
        send q id=x                     => #1 duplicate
        unique-ids q                    => 2
        wait 1ms
        send q id=x                     => #3
        totals q                        => accepted 3, duplicates 2, acknowledged 1, leased 1
        ",
    );
}

#[test]
fn ids_are_unique_within_the_queue_or_the_key() {
    check(
        "
        queue q keyed
        send q key=a id=x               => #1
        send q key=b id=x               => #1 duplicate
        queue k keyed scope-key
        send k key=a id=x               => #1
        send k key=b id=x               => #2
        send k key=b id=x               => #2 duplicate
        ",
    );
}

#[test]
fn a_changed_scope_holds_a_minute_later_and_ids_count_as_when_they_were_sent() {
    check(
        "
        queue q keyed
        send q key=a id=x               => #1
        change q scope-key
        send q key=b id=x               => #1 duplicate
        send q key=b id=y               => #2
        send q key=c id=y               => #2 duplicate
        wait 59999ms
        send q key=c id=y               => #2 duplicate
        wait 1ms
        // the new scope holds, and what was sent before is still unique in the queue
        send q key=c id=y               => #2 duplicate
        send q key=a id=z               => #3
        send q key=b id=z               => #4
        send q key=b id=z               => #4 duplicate
        change q scope-queue
        send q key=c id=z               => #5
        send q key=c id=z               => #5 duplicate
        // taken back before it held
        change q scope-key
        send q key=d id=z               => #6
        send q key=d id=z               => #6 duplicate
        change q scope-queue
        wait 1min
        send q key=d id=z               => #6 duplicate
        send q key=e id=w               => #7
        send q key=f id=w               => #7 duplicate
        wait 5min
        send q key=f id=w               => #8
        send q key=e id=w               => #8 duplicate
        unique-ids q                    => 1
        ",
    );
}

#[test]
fn an_id_without_a_group_is_none_of_a_group_when_the_scope_has_changed() {
    check(
        "
        queue q unkeyed
        change q scope-key
        wait 1min
        send q id=x                     => #1
        send q group=g id=x             => #2
        send q group=g id=x             => #2 duplicate
        send q id=x                     => #1 duplicate
        ",
    );
}

#[test]
fn a_window_of_zero_remembers_nothing() {
    check(
        "
        queue q window=0s
        send q id=x                     => #1
        send q id=x                     => #2
        unique-ids q                    => 0
        ",
    );
}

#[test]
fn content_based_queues_want_an_id_on_every_message() {
    check(
        "
        queue q content-based
        send q                          => refused UniqueIdRequired
        send q id=digest                => #1
        ",
    );
}

#[test]
fn a_full_memory_refuses_new_ids_and_forgets_none() {
    check(
        "
        queue q dedup-bytes=127
        send q id=x                     => #1
        send q id=y                     => refused DedupFull
        send q                          => #2
        send q id=x                     => #1 duplicate
        wait 5min
        send q id=y                     => #3
        ",
    );
}

#[test]
fn a_purge_forgets_ids_unless_told_otherwise() {
    check(
        "
        queue q
        send q id=x                     => #1
        purge q                         => dropped 1
        unique-ids q                    => 0
        send q id=x                     => #2
        queue k survives-purge
        send k id=x                     => #1
        purge k                         => dropped 1
        send k id=x                     => #1 duplicate
        wait 5min
        send k id=x                     => #2
        ",
    );
}

#[test]
fn a_shorter_window_is_kept_to_also_beside_older_ids() {
    check(
        "
        queue q window=10min
        send q id=x                     => #1
        change q window=1min
        send q id=y                     => #2
        wait 1min
        send q id=y                     => #3
        send q id=x                     => #1 duplicate
        wait 9min
        send q id=x                     => #4
        ",
    );
}

#[test]
fn a_window_does_not_depend_on_when_time_was_last_noticed() {
    // The send is the first record for an hour: its window counts from now, not from the last
    // record.
    check(
        "
        queue q
        wait 1h
        send q id=x                     => #1
        wait 299s
        send q id=x                     => #1 duplicate
        ",
    );
}

#[test]
fn an_id_for_ever_is_known_in_memory_and_in_the_index() {
    check(
        "
        queue q window=forever
        send q id=a                     => #1
        send q id=b                     => #2
        send q                          => #3
        send q id=c                     => #4
        index 2                         => 2 ids
        unique-ids q                    => 1
        send q id=a                     => #1 duplicate
        send q id=b                     => #2 duplicate
        send q id=c                     => #4 duplicate
        send q id=d                     => #5
        wait 100000d
        send q id=a                     => #1 duplicate
        send q id=d                     => #5 duplicate
        restart power
        unique-ids q                    => 2
        send q id=a                     => #1 duplicate
        send q id=d                     => #5 duplicate
        index 9                         => 2 ids
        unique-ids q                    => 0
        send q id=d                     => #5 duplicate
        send q id=e                     => #6
        ",
    );
}

/// If damage has taken the records of messages, but not the one that says their ids are in the index.
#[test]
fn what_the_index_has_of_lost_messages_is_not_relied_on() {
    let mut run = Run::new();
    for line in ["queue q window=forever", "send q id=a", "send q id=b"] {
        run.line(line);
    }
    assert_eq!(run.index(9), "2 ids");
    let lost = run.log.len() - 2;
    let mut machine = Machine::new(MachineLimits::default());
    for (at, (position, effects)) in run.log.iter().enumerate() {
        if at != lost {
            machine.fold(effects, *position);
        }
    }
    let (_, up_to, next) = machine.id_spaces().next().unwrap();
    assert_eq!((up_to, next), (Sequence(1), Sequence(2)));
}

/// However many queues there are: their owner copies and drops the ids in one step.
#[test]
fn a_round_of_moves_is_bounded_over_all_queues() {
    check(
        "
        queue a window=forever
        queue b window=forever
        queue c window=forever
        send a id=x                     => #1
        send b id=x                     => #1
        send b id=y                     => #2
        send b id=z                     => #3
        send c id=x                     => #1
        send c id=y                     => #2
        index 4                         => 4 ids
        unique-ids a                    => 1
        unique-ids b                    => 0
        unique-ids c                    => 1
        send b id=z                     => #3 duplicate
        send c id=x                     => #1 duplicate
        index 4                         => 2 ids
        send a id=x                     => #1 duplicate
        send c id=y                     => #2 duplicate
        index 4                         => 0 ids
        ",
    );
}

#[test]
fn only_durable_ids_go_to_the_index() {
    check(
        "
        queue q window=forever
        send q id=a                     => #1
        syncing off
        send q id=b                     => #2
        index 9                         => 1 ids
        index 9                         => 0 ids
        sync
        index 9                         => 1 ids
        send q id=b                     => #2 duplicate
        ",
    );
}

#[test]
fn a_purge_forgets_indexed_ids_too_unless_told_otherwise() {
    check(
        "
        queue q window=forever
        send q id=a                     => #1
        index 9                         => 1 ids
        send q id=b                     => #2
        purge q                         => dropped 2
        send q id=a                     => #3
        send q id=b                     => #4
        send q id=a                     => #3 duplicate
        index 9                         => 2 ids
        send q id=a                     => #3 duplicate
        restart kill
        send q id=b                     => #4 duplicate
        queue k window=forever survives-purge
        send k id=a                     => #1
        index 9                         => 1 ids
        purge k                         => dropped 1
        send k id=a                     => #1 duplicate
        ",
    );
}

/// A batch is looked up as one before its first command is decided, and a purge in it takes ids out of memory.
#[test]
fn behind_a_purge_no_id_has_to_be_looked_up() {
    let mut run = check(
        "
        queue q window=forever
        send q id=a                     => #1
        send q id=b                     => #2
        index 1                         => 1 ids
        ",
    );
    let send = |id: &str| {
        let message = Message::new("x").with_unique_id(UniqueId::new(id).unwrap());
        Command::Send(Box::new(SendMessage {
            queue: name("q"),
            message,
        }))
    };
    assert_eq!(run.machine.ids_to_look_up(&send("b"), run.now), []);
    run.lines("purge q                  => dropped 2");
    for id in ["a", "b", "c"] {
        assert_eq!(run.machine.ids_to_look_up(&send(id), run.now), []);
        let sent = run.machine.decide(&send(id), run.now).outcome;
        assert!(
            matches!(sent, Ok(Reply::Sent(sent)) if !sent.duplicate),
            "{sent:?}"
        );
    }
    run.lines(
        "
        send q id=b                     => #3
        index 1                         => 1 ids
        ",
    );
    assert_eq!(run.machine.ids_to_look_up(&send("a"), run.now).len(), 1);
    run.lines(
        "
        send q id=a                     => #4
        send q id=b                     => #3 duplicate
        ",
    );
}

#[test]
fn ids_for_ever_are_from_the_creation_on_or_never() {
    check(
        "
        queue q window=forever
        change q window=1d              => refused ForeverIsFixed
        change q scope-key              => refused ForeverIsFixed
        change q retention=1d
        queue p window=1d
        change p window=forever         => refused ForeverIsFixed
        ",
    );
    let mut run = Run::with_limits(MachineLimits::default());
    assert_eq!(
        run.line("queue q window=forever"),
        "refused ForeverUnsupported"
    );
}

#[test]
fn memory_for_ids_that_are_not_in_the_index_is_bounded() {
    check(
        "
        queue q window=forever dedup-bytes=64
        send q id=a                     => #1
        send q id=b                     => refused DedupFull
        index 9                         => 1 ids
        send q id=b                     => #2
        send q id=a                     => #1 duplicate
        ",
    );
}

#[test]
fn an_old_answer_of_the_index_decides_nothing() {
    let mut run = check(
        "
        queue q window=forever
        send q id=a                     => #1
        send q id=b                     => #2
        index 1                         => 1 ids
        ",
    );
    let message = Message::new("x").with_unique_id(UniqueId::new("b").unwrap());
    let command = Command::Send(Box::new(SendMessage {
        queue: name("q"),
        message,
    }));
    let asked = digest(None, "b");
    let queue = IdSpace::Queue(run.machine.queue_id(&name("q")).unwrap());
    let answered = |up_to, found| {
        let answer = IdAnswer {
            up_to: Sequence(up_to),
            found,
        };
        Command::LookedUp(Box::new(LookedUp {
            answers: Arc::new([((queue, asked), answer)].into()),
            command: command.clone(),
        }))
    };
    // In memory: no answer is needed.
    assert_eq!(run.machine.ids_to_look_up(&command, run.now), []);
    // When it was looked up, it was not in the index yet.
    let old = answered(1, None);
    assert_eq!(run.line("index 1"), "1 ids");
    for stale in [&command, &old] {
        assert_eq!(run.machine.ids_to_look_up(stale, run.now), [(queue, asked)]);
        let refused = run.machine.decide(stale, run.now).outcome;
        assert!(
            matches!(refused, Err(Rejection::LookUp { .. })),
            "{refused:?}"
        );
    }
    let new = answered(2, Some(Sequence(2)));
    assert_eq!(run.machine.ids_to_look_up(&new, run.now), []);
    let sent = run.machine.decide(&new, run.now).outcome;
    let Ok(Reply::Sent(sent)) = sent else {
        panic!("{sent:?}");
    };
    assert_eq!((sent.sequence, sent.duplicate), (Sequence(2), true));
}

#[test]
fn an_image_keeps_what_is_indexed() {
    let mut run = check(
        "
        queue q window=forever
        send q id=a                     => #1
        send q id=b                     => #2
        index 1                         => 1 ids
        purge q                         => dropped 2
        send q id=c                     => #3
        ",
    );
    let mut frozen = run.machine.freeze();
    let mut loader = ImageLoader::new(MachineLimits::default());
    let mut buffer = Vec::new();
    while let Some(piece) = frozen.next_piece(&mut buffer) {
        loader.piece(piece).unwrap();
    }
    let loaded = loader.finish_checked().unwrap();
    assert_eq!(loaded.state_view(), run.machine.state_view());
    let indexed: Vec<_> = loaded.id_spaces().collect();
    let queue = loaded.queue_id(&name("q")).unwrap();
    let queue = IdSpace::Queue(queue);
    assert_eq!(indexed, [(queue, Sequence(1), Sequence(4))]);
}
