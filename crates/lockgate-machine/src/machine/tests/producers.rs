//! Records of producers: which are new, who may send them, and what is forgotten when.

use lockgate_core::{ProducerIncarnation, ProducerName};

use super::harness::{Run, check, name};
use crate::{
    Command, ImageLoader, ListProducers, MachineLimits, OpenProducer, Query, QueryReply,
    QueueSettings, Reply,
};

#[test]
fn a_record_is_accepted_once_however_late_it_comes_again() {
    check(
        "
        queue q keyed
        open q p                              => i1
        send q key=a mark=p/7/0/1             => #1
        send q key=a mark=p/7/0/1             => refused SentBefore
        // holes are allowed, going back is not
        send q key=a mark=p/7/0/5             => #2
        send q key=a mark=p/7/0/3             => refused SentBefore
        // every lane, opening and producer, and every queue, numbers on its own
        send q key=a mark=p/7/15/1            => #3
        send q key=a mark=p/8/0/1             => #4
        open q r                              => i1
        send q key=a mark=r/7/0/1             => #5
        queue other keyed
        open other p                          => i1
        send other key=a mark=p/7/0/1         => #1
        // the messages come and go, the marks stay
        receive q 9                           => 1 2 3 4 5
        ack q 1                               => done
        purge q                               => dropped 4
        wait 29d
        send q key=a mark=p/7/0/5             => refused SentBefore
        send q key=a mark=p/7/0/6             => #6
        totals q                              => accepted 6, sent before 3, acknowledged 1, leased 5, purged 4
        ",
    );
}

#[test]
fn two_copies_of_a_spool_send_what_they_share_once_and_lose_nothing() {
    check(
        "
        queue q
        // both hold records 1 to 3 of opening 7; each has an opening of its own for what it accepted since
        open q p                              => i1
        send q mark=p/7/0/1                   => #1
        send q mark=p/7/0/2                   => #2
        open q p                              => i2
        send q mark=p/7/0/3/i1                => refused Fenced
        send q mark=p/7/0/1                   => refused SentBefore
        send q mark=p/7/0/2                   => refused SentBefore
        send q mark=p/7/0/3                   => #3
        send q mark=p/22/0/1                  => #4
        open q p                              => i3
        send q mark=p/7/0/3                   => refused SentBefore
        // the same number of another opening is another record
        send q mark=p/33/0/1                  => #5
        totals q                              => accepted 5, sent before 3, fenced 1
        producers q                           => p i3: 3, 0 ms
        ",
    );
}

#[test]
fn a_record_that_names_the_one_before_it_is_accepted_behind_it_only() {
    check(
        "
        queue q
        open q p                              => i1
        send q mark=p/7/0/2/i1/1              => refused Gap
        send q mark=p/7/0/3/i1/2              => refused Gap
        send q mark=p/7/0/1                   => #1
        send q mark=p/7/0/4/i1/2              => refused Gap
        send q mark=p/7/0/2/i1/1              => #2
        // it is known, whatever it names
        send q mark=p/7/0/1/i1/9              => refused SentBefore
        // of another lane or opening, nothing is there
        send q mark=p/7/1/3/i1/2              => refused Gap
        send q mark=p/8/0/3/i1/2              => refused Gap
        transact send q mark=p/7/0/3/i1/2; send q mark=p/7/0/5/i1/4  => refused at 1: Producer
        transact send q mark=p/7/0/3/i1/2; send q mark=p/7/0/5/i1/3  => #3 #4
        openings q                            => 1
        ",
    );
}

#[test]
fn only_the_last_incarnation_sends() {
    check(
        "
        queue q
        send q mark=p/7/0/1                   => refused Unknown
        open q p                              => i1
        open q p                              => i2
        send q mark=p/7/0/1/i1                => refused Fenced
        send q mark=p/7/0/1/later             => refused Unknown
        send q mark=p/7/0/1/i2                => #1
        // also what was sent before is told only to the last one
        send q mark=p/7/0/1/i1                => refused Fenced
        forget q p                            => done
        forget q p                            => refused ProducerNotFound
        send q mark=p/7/0/2/i2                => refused Unknown
        // who was forgotten begins anew, above what it had
        open q p                              => i3
        send q mark=p/7/0/1/i2                => refused Fenced
        send q mark=p/7/0/1                   => #2
        open nowhere p                        => refused QueueNotFound
        forget nowhere p                      => refused QueueNotFound
        producers nowhere                     => refused QueueNotFound
        ",
    );
}

/// The harness checks that each incarnation is above the one before.
#[test]
fn an_incarnation_rises_over_a_deleted_queue_a_clock_that_goes_back_and_restarts() {
    check(
        "
        queue q
        open q p                              => i1
        wall -1h
        open q p                              => i2
        delete q                              => done
        queue q
        open q p                              => i3
        restart kill
        open q p                              => i4
        restart power
        restart clean
        open q p                              => i5
        send q mark=p/7/0/1/i4                => refused Fenced
        send q mark=p/7/0/1                   => #1
        ",
    );
}

#[test]
fn marks_survive_restarts_and_images() {
    let mut run = check(
        "
        queue q producer-age=1h
        open q p                              => i1
        wait 30min
        send q mark=p/7/0/9                   => #1
        wait 20min
        open q r                              => i1
        open q gone                           => i1
        send q mark=gone/1/0/1                => #2
        send q mark=gone/2/0/1                => #3
        send q mark=p/7/15/300                => #4
        forget q gone                         => done
        ",
    );
    let mut frozen = run.machine.freeze();
    run.log.clear();
    run.lines("send q mark=p/8/0/1            => #5");
    let mut loader = ImageLoader::new(MachineLimits::default());
    let mut buffer = Vec::new();
    while let Some(piece) = frozen.next_piece(&mut buffer) {
        loader.piece(piece).unwrap();
    }
    let mut loaded = loader.finish_checked().unwrap();
    // What is loaded goes on as what was frozen: also what is to be freed.
    for wait in ["0s", "1s", "10min", "30min", "30min"] {
        run.line(&format!("wait {wait}"));
        for (position, effects) in run.log.drain(..) {
            loaded.fold(&effects, position);
        }
        assert_eq!(loaded.state_view(), run.machine.state_view(), "{wait}");
        assert_eq!(loaded.problems(), Vec::<String>::new());
        assert_eq!(run.machine.image_bytes(), loaded.image_bytes());
    }
    run.lines("producers q                    => nothing");
}

#[test]
fn what_was_not_used_is_forgotten_and_nothing_earlier() {
    check(
        "
        queue q producer-age=1h
        open q p                              => i1
        send q mark=p/7/0/1                   => #1
        wait 40min
        // one opening is used, the other is not
        send q mark=p/8/0/1                   => #2
        wait 20min
        openings q                            => 1
        send q mark=p/7/0/1                   => #3
        wait 59min
        producers q                           => p i1: 1, 3540000 ms
        wait 1min
        producers q                           => nothing
        openings q                            => 0
        send q mark=p/7/0/2                   => refused Unknown
        open q p                              => i2
        send q mark=p/7/0/1                   => #4
        // a shorter age holds at once, a longer one too
        wait 10min
        change q producer-age=5min
        wait 1ms
        producers q                           => nothing
        open q p                              => i3
        change q producer-age=2h
        wait 119min
        producers q                           => p i3: 0, 7140000 ms
        wait 1min
        producers q                           => nothing
        ",
    );
}

#[test]
fn what_is_full_refuses_new_ones_and_forgets_nothing() {
    check(
        "
        queue q producers=2
        open q a                              => i1
        open q b                              => i1
        open q c                              => refused ProducersFull
        open q a                              => i2
        send q mark=a/1/0/1                   => #1
        send q mark=a/2/0/1                   => #2
        send q mark=b/1/0/1                   => refused ProducersFull
        // what has a row goes on
        send q mark=a/1/0/1                   => refused SentBefore
        send q mark=a/1/5/1                   => #3
        forget q a                            => done
        wait 1ms
        send q mark=b/1/0/1                   => #4
        open q c                              => i1
        producers q                           => b i1: 1, 0 ms c i1: 0, 0 ms
        change q producers=1
        send q mark=c/1/0/1                   => refused ProducersFull
        send q mark=b/1/0/2                   => #5
        change q producers=0
        open q b                              => i2
        ",
    );
}

#[test]
fn a_forgotten_producer_is_freed_in_steps_and_a_deleted_queue_too() {
    let mut run = Run::new();
    run.lines("queue q\n open q p\n open q r");
    for opening in 0..1_000 {
        run.lines(&format!(
            "send q mark=p/{opening}/0/1\n send q mark=r/{opening}/1/1"
        ));
    }
    run.lines("forget q p\n openings q => 2000");
    let before = run.log.len();
    run.lines("wait 1ms\n openings q => 1000");
    assert!(run.log.len() - before > 3, "a step frees a bounded number");
    run.lines("delete q => done");
    let bytes = run.machine.heap_bytes();
    assert!(run.machine.housekeep(100).is_unfinished());
    run.lines("housekeep");
    assert!(run.machine.heap_bytes() < bytes);
    run.check_recovery();
}

/// As [`QueueSettings::memory_bytes_max`] says, and the description of `producers_max`.
#[test]
fn rows_take_no_more_memory_than_the_settings_say() {
    const ROWS: u32 = 10_000;
    let most = |producers_max| {
        let settings = QueueSettings {
            quota_messages: Some(1),
            producers_max,
            ..QueueSettings::default()
        };
        settings.memory_bytes_max().unwrap()
    };
    let most = most(ROWS) - most(0);
    let mut run = Run::new();
    run.line(&format!("queue q producers={ROWS}"));
    let empty = run.machine.heap_bytes();
    for number in 0..ROWS {
        run.line(&format!("open q producer-{number}"));
        run.line(&format!("send q mark=producer-{number}/{number}/15/9"));
    }
    run.lines("openings q => 10000\n purge q => dropped 10000\n housekeep");
    // A name comes with two counters, in steps of sixteen bytes.
    let taken = (run.machine.heap_bytes() - empty) as u64 + u64::from(ROWS) * 48;
    assert!((most / 2..=most).contains(&taken), "{taken} of {most}");
}

#[test]
fn a_duplicate_waits_for_the_record_that_it_depends_on() {
    let mut run = Run::new();
    run.lines(
        "
        queue q
        open q p                              => i1
        syncing off
        send q mark=p/7/0/1                   => #1
        answer                                => disk
        send q mark=p/7/0/1                   => refused SentBefore
        answer                                => process, rests on record 3
        open q p                              => i2
        send q mark=p/7/0/1/i1                => refused Fenced
        answer                                => memory, rests on record 4
        sync
        send q mark=p/7/0/1                   => refused SentBefore
        answer                                => process
        queue m level=memory
        open m p                              => i1
        send m mark=p/7/0/1                   => #1
        send m mark=p/7/0/1                   => refused SentBefore
        answer                                => memory
        send m mark=p/7/0/1 level=disk        => refused SentBefore
        ",
    );
    assert!(run.line("answer").starts_with("process, rests on"));
}

#[test]
fn a_power_cut_takes_mark_and_message_together() {
    let mut run = Run::new();
    run.lines("queue q\n open q p => i1\n send q mark=p/7/0/1 => #1");
    let kept = run.log.len();
    run.lines("send q mark=p/7/0/2 => #2\n send q mark=p/7/0/2 => refused SentBefore");
    run.lose_all_but(kept);
    run.lines(
        "
        send q mark=p/7/0/1                   => refused SentBefore
        send q mark=p/7/0/2                   => #2
        counts q                              => ready 2, in flight 0, delayed 0
        ",
    );
}

/// A start that lost the record which opened a producer goes on with what it finds.
#[test]
fn a_lost_opening_of_a_producer_loses_no_mark() {
    let mut run = Run::new();
    run.lines("queue q\n open q p => i1");
    run.log.pop();
    run.lines("send q mark=p/7/0/4 => #1");
    run.machine = run.recovered();
    run.lines("send q mark=p/7/0/4 => refused SentBefore\n send q mark=p/7/0/5 => #2");
    run.check_recovery();
}

#[test]
fn a_duplicate_by_unique_id_raises_the_mark() {
    check(
        "
        queue q keyed window=5min
        open q p                              => i1
        send q key=a id=u                     => #1
        send q key=a id=u mark=p/7/0/1        => #1 duplicate
        answer                                => disk
        wait 6min
        send q key=a id=u mark=p/7/0/1        => refused SentBefore
        send q key=a id=u mark=p/7/0/2        => #2
        totals q                              => accepted 2, duplicates 1, sent before 1
        ",
    );
}

#[test]
fn a_transaction_with_a_record_that_was_sent_happens_once() {
    check(
        "
        queue q
        queue to producers=1
        open to p                             => i1
        send q
        receive q 1                           => 1
        transact send to mark=p/7/0/2; send to mark=p/7/0/1           => refused at 1: SentBefore
        transact send to mark=p/7/0/1; send to mark=p/8/0/1           => refused at 1: ProducersFull
        transact ack q 1; send to mark=p/7/0/1; send to mark=p/7/0/2  => #1 #2
        transact ack q 1; send to mark=p/7/0/1                        => refused at 0: stale Gone
        transact send to mark=p/7/0/2                                 => refused at 0: SentBefore
        ",
    );
}

#[test]
fn a_moved_message_raises_no_mark() {
    check(
        "
        queue dead
        queue q dlq=dead/1
        open q p                              => i1
        open dead p                           => i1
        send q mark=p/7/0/1                   => #1
        receive q 1                           => 1
        reject q 1                            => done
        send dead mark=p/7/0/1                => #2
        move dead q 1                         => moved 1, left 1, next 0 below 3
        send q mark=p/7/0/1                   => refused SentBefore
        send q mark=p/7/0/2                   => #3
        ",
    );
}

#[test]
fn pages_are_bounded_and_their_limit_has_a_range() {
    let mut run = Run::new();
    run.lines("queue q");
    for number in 0..5 {
        let open = OpenProducer {
            queue: name("q"),
            producer: ProducerName::new(&format!("p{number}")).unwrap(),
        };
        let reply = run.give(&Command::OpenProducer(open));
        assert!(matches!(
            reply,
            Ok(Reply::ProducerOpened(ProducerIncarnation(1..)))
        ));
    }
    let page = |after: Option<&str>, limit| {
        let list = ListProducers {
            queue: name("q"),
            after: after.map(|after| ProducerName::new(after).unwrap()),
            limit,
        };
        run.machine.query(&Query::ListProducers(list), run.now)
    };
    let names = |reply| match reply {
        Ok(QueryReply::Producers(page)) => {
            let names = page
                .producers
                .iter()
                .map(|status| status.producer.to_string());
            (
                names.collect::<Vec<_>>().join(" "),
                page.next.map(|next| next.to_string()),
            )
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(names(page(None, 2)), ("p0 p1".into(), Some("p1".into())));
    assert_eq!(names(page(Some("p1"), 3)), ("p2 p3 p4".into(), None));
    assert_eq!(names(page(Some("p9"), 3)), (String::new(), None));
    for limit in [0, 1_001] {
        assert!(page(None, limit).is_err());
    }
}
