//! Runs that cover all that is here of a key.

use super::*;
use crate::{Coalesce, CoalesceError, coalesce::Merge};

/// What each run was given: the bodies, and for how many messages each stands.
type Runs = Arc<Mutex<Vec<Vec<(String, usize)>>>>;

fn note(runs: &Runs, batch: &Batch) {
    let jobs = batch.jobs().iter().map(|job| (text(job), job.covers()));
    runs.lock().unwrap().push(jobs.collect());
}

fn joined(earlier: Message, later: Message) -> Message {
    let bodies = [&earlier.body[..], &later.body[..]];
    Message {
        body: bodies.concat().into(),
        ..later
    }
}

#[tokio::test]
async fn a_run_is_given_what_the_policy_leaves() {
    let cases = [
        (Merge::KeepFirst, vec![("a", 3)]),
        (Merge::KeepLast, vec![("c", 3)]),
        (Merge::with(joined), vec![("abc", 3)]),
        (Merge::Count, vec![("", 3)]),
        (Merge::Append { max: 3 }, vec![("a", 1), ("b", 1), ("c", 1)]),
    ];
    for (merge, expected) in cases {
        let queue = queue(|_| {});
        for body in ["a", "b", "c"] {
            push(&queue, "k", body).await;
        }
        let name = format!("{merge:?}");
        let runs = Runs::default();
        let seen = runs.clone();
        let worker = Worker::over(queue.clone()).coalesce(Coalesce::new(merge));
        let worker = worker.start(handler::batches(move |batch: Batch| {
            note(&seen, &batch);
            assert!(batch.jobs().iter().all(|job| job.key() == Some(&key("k"))));
            async { Ok(()) }
        }));
        let ended = to_the_end(&queue, worker.unwrap()).await;
        let expected: Vec<_> = expected
            .iter()
            .map(|(body, covers)| (body.to_string(), *covers))
            .collect();
        assert_eq!(*runs.lock().unwrap(), [expected], "{name}");
        let counts = ended.counts;
        assert_eq!(
            (counts.started, counts.acknowledged, counts.covered),
            (1, 3, 2)
        );
    }
}

#[tokio::test]
async fn a_run_that_fails_is_tried_again_with_what_has_come() {
    let queue = queue(|_| {});
    for body in ["a", "b"] {
        push(&queue, "k", body).await;
    }
    let runs = Runs::default();
    let (seen, pushes) = (runs.clone(), queue.clone());
    let coalesce = Coalesce::new(Merge::Append { max: 10 });
    let worker = Worker::over(queue.clone())
        .coalesce(coalesce)
        .backoff(at_once());
    let worker = worker.start(handler::batches(move |batch: Batch| {
        note(&seen, &batch);
        let is_first = seen.lock().unwrap().len() == 1;
        let pushes = pushes.clone();
        async move {
            if is_first {
                push(&pushes, "k", "c").await;
                pushes.close();
                // Whatever it says it has done.
                batch.context().succeeded(1);
                return Err("no".into());
            }
            Ok(())
        }
    }));
    let ended = tokio::time::timeout(SOON, worker.unwrap().ended())
        .await
        .unwrap();
    let runs = runs.lock().unwrap();
    let one_each = |bodies: &[&str]| bodies.iter().map(|body| (body.to_string(), 1)).collect();
    let expected: [Vec<_>; 2] = [one_each(&["a", "b"]), one_each(&["a", "b", "c"])];
    assert_eq!(*runs, expected);
    assert_eq!((ended.counts.acknowledged, ended.counts.covered), (3, 2));
}

/// The message waits in the queue, so that what comes meanwhile is covered too.
#[tokio::test]
async fn a_debounce_covers_what_comes_while_it_waits() {
    let queue = queue(|_| {});
    push(&queue, "k", "a").await;
    let runs = Runs::default();
    let seen = runs.clone();
    let coalesce = Coalesce::new(Merge::KeepLast);
    let coalesce = coalesce.debounce(Duration::from_secs(1), Duration::from_secs(600));
    let worker = Worker::over(queue.clone()).coalesce(coalesce);
    let worker = worker.start(handler::batches(move |batch: Batch| {
        note(&seen, &batch);
        async { Ok(()) }
    }));
    let worker = worker.unwrap();
    while worker.state().await.unwrap().counts.deferred == 0 {
        tokio::task::yield_now().await;
    }
    push(&queue, "k", "b").await;
    to_the_end(&queue, worker).await;
    assert_eq!(*runs.lock().unwrap(), [[("b".to_owned(), 2)]]);
}

/// A key that rested runs at once, or with `throttle_trailing` at the end of a period, and what comes before the next
/// period begins runs together.
#[tokio::test]
async fn a_throttle_lets_a_key_run_once_in_a_period() {
    let period = Duration::from_secs(1);
    let throttled = || Coalesce::new(Merge::Append { max: 9 });
    for (coalesce, expected) in [
        (
            throttled().throttle(period),
            vec![vec!["a"], vec!["b", "c"]],
        ),
        (
            throttled().throttle_trailing(period),
            vec![vec!["a", "b", "c"]],
        ),
    ] {
        let queue = queue(|_| {});
        push(&queue, "k", "a").await;
        let runs = Runs::default();
        let seen = runs.clone();
        let worker = Worker::over(queue.clone()).coalesce(coalesce);
        let worker = worker.start(handler::batches(move |batch: Batch| {
            note(&seen, &batch);
            async { Ok(()) }
        }));
        let worker = worker.unwrap();
        // The first has run, or has gone back to wait.
        loop {
            let counts = worker.state().await.unwrap().counts;
            if counts.acknowledged + counts.deferred > 0 {
                break;
            }
            tokio::task::yield_now().await;
        }
        for body in ["b", "c"] {
            push(&queue, "k", body).await;
        }
        to_the_end(&queue, worker).await;
        let bodies = |run: &Vec<(String, usize)>| -> Vec<String> {
            run.iter().map(|(body, _)| body.clone()).collect()
        };
        let runs: Vec<_> = runs.lock().unwrap().iter().map(bodies).collect();
        assert_eq!(runs, expected);
    }
}

#[tokio::test]
async fn what_does_not_go_together_with_it_is_refused() {
    let coalesce = || Coalesce::new(Merge::KeepLast);
    let by = coalesce().by(|message| message.group.clone());
    let worker = |coalesce| Worker::over(queue(|_| {})).coalesce(coalesce);
    let source_number = 0;
    let cases = [
        (
            worker(coalesce()).order(Order::Unordered),
            CoalesceError::Order,
        ),
        (worker(coalesce()).at_most_once(), CoalesceError::AtMostOnce),
        (worker(by), CoalesceError::By { source_number }),
    ];
    for (builder, expected) in cases {
        match builder.start(|_: Job| async { Ok(()) }) {
            Err(StartError::Coalesce(error)) => assert_eq!(error, expected),
            other => panic!("{other:?}"),
        }
    }
    let builder = worker(coalesce().debounce(Duration::from_secs(2), Duration::from_secs(1)));
    let refused = builder.start(|_: Job| async { Ok(()) });
    assert!(matches!(refused, Err(StartError::Options(error)) if error.what == "quiet"));
}
