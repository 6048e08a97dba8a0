//! Making, changing, purging and deleting queues.

use lockgate_core::QueueName;

use super::harness::{Run, check, name};
use crate::{
    Command, CreateQueue, ListQueues, MachineLimits, Query, QueryReply, QueuePage, QueueSettings,
    Rejection,
};

#[test]
fn settings_are_checked() {
    check(
        "
        queue dead keyed
        queue loose
        queue q keyed dlq=nowhere/3     => refused DeadLetterMissing
        queue q keyed dlq=q/3           => refused OwnDeadLetter
        queue q keyed dlq=loose/3       => refused DeadLetterKind
        queue q keyed dlq=dead/0        => refused NotAllowed
        queue q keyed policy=skip       => refused SkipWithoutDeadLetter
        queue q policy=park             => refused NeedsKeys
        queue q lease=13h               => refused NotAllowed
        queue q retention=999ms         => refused NotAllowed
        queue q in-flight=0             => refused NotAllowed
        queue q message-bytes=16777217  => refused NotAllowed
        queue q window=9999d            => refused NotAllowed
        queue q level=replicated        => refused Level
        queue q keyed dlq=dead/3        => made
        queue q keyed                   => existed
        change q unkeyed                => refused KeyedIsFixed
        change q keyed lease=5s         => done
        ",
    );
}

#[test]
fn a_purge_is_one_cut() {
    check(
        "
        queue q keyed lease=10s
        send q key=a                    => #1
        send q key=a                    => #2
        send q key=b due=+5s            => #3
        send q key=c ttl=5s             => #4
        park q c
        receive q 1                     => 1
        purge q                         => dropped 4
        counts q                        => ready 0, in flight 0, delayed 0
        keys q                          => 0, parked 0
        ack q 1                         => stale Gone
        cancel q 2                      => refused MessageNotFound
        damaged q 2                     => dropped 0
        send q key=a                    => #5
        // no timer of the purged ones touches what is there now
        wait 10s
        receive q 9                     => 5
        send q key=c                    => #6
        receive q 9                     => 6
        housekeep
        totals q                        => accepted 6, leased 3, stale settles 1, purged 4
        counts q                        => ready 0, in flight 2, delayed 0
        ",
    );
}

#[test]
fn purged_memory_is_freed_in_steps() {
    let mut run = check(
        "
        queue q keyed
        send q key=a id=x
        send q key=b id=y
        send q key=b due=+5s
        park q z
        receive q 1
        purge q
        ",
    );
    let mut steps = 0;
    while run.machine.housekeep(1).is_unfinished() {
        run.check_invariants("a step");
        steps += 1;
    }
    assert!(
        steps >= 6,
        "three messages, two ids and a key in {steps} steps"
    );
    assert_eq!(run.machine.memory_in_use(), (0, 0, 0));
    run.check_recovery();
}

#[test]
fn a_deleted_queue_is_gone_and_its_name_is_free() {
    let run = check(
        "
        queue q keyed
        send q key=a id=x               => #1
        send q key=a
        receive q 1                     => 1
        ack q 1
        receive q 1                     => 2
        delete q                        => done
        ack q 2                         => stale Gone
        send q key=a                    => refused QueueNotFound
        queue q keyed                   => made
        // another queue under the same name
        ack q 2                         => stale Gone
        send q key=a id=x               => #1
        counts q                        => ready 1, in flight 0, delayed 0
        wait 1h
        housekeep
        receive q 1                     => 1
        totals shard                    => accepted 3, acknowledged 1, leased 3, stale settles 2, queue deleted 1
        ",
    );
    assert_eq!(run.machine.queue_id(&name("q")).unwrap().0, 2);
}

#[test]
fn queues_are_listed_in_pages() {
    let run = check("queue a1\nqueue a2\nqueue a3\nqueue b1");
    let list = |prefix: &str, after: Option<&str>, limit| {
        let query = Query::ListQueues(ListQueues {
            prefix: prefix.to_owned(),
            after: after.map(name),
            limit,
        });
        match run.machine.query(&query, run.now).unwrap() {
            QueryReply::Queues(QueuePage { queues, next }) => {
                let names = queues.iter().map(|queue| queue.name.to_string());
                (names.collect::<Vec<_>>().join(" "), next)
            }
            other => panic!("{other:?}"),
        }
    };
    let page = |names: &str, next: Option<&str>| (names.to_owned(), next.map(name));
    assert_eq!(list("", None, 9), page("a1 a2 a3 b1", None));
    assert_eq!(list("a", None, 2), page("a1 a2", Some("a2")));
    assert_eq!(list("a", Some("a2"), 2), page("a3", None));
    assert_eq!(list("b", Some("a2"), 2), page("b1", None));
    assert_eq!(list("c", None, 2), page("", None));
    assert_eq!(list("a b", None, 2), page("", None));
}

#[test]
fn the_number_of_queues_is_limited() {
    let mut run = Run::with_limits(MachineLimits {
        queues_max: 1,
        ..MachineLimits::default()
    });
    let mut create = |text: &str| {
        let create = CreateQueue {
            name: QueueName::new(text).unwrap(),
            settings: QueueSettings::default(),
            annotations: Default::default(),
            tags: Default::default(),
        };
        run.give(&Command::CreateQueue(Box::new(create)))
    };
    assert!(create("a").is_ok());
    assert!(matches!(
        create("b").unwrap_err(),
        Rejection::ShardFull { max: 1, .. }
    ));
    assert!(create("a").is_ok(), "it is there");
}
