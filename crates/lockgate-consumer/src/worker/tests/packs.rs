//! Packs, which a worker takes apart.

use lockgate_core::pack;

use super::*;
use crate::{Coalesce, coalesce::Merge};

async fn push_pack(queue: &MemoryQueue, of: &str, bodies: &[&str]) {
    let bodies = bodies.iter();
    let messages = bodies.map(|body| Message::new((*body).to_owned()).with_key(key(of)));
    let messages: Vec<_> = messages.collect();
    queue.push(pack::pack(&messages, true)).await.unwrap();
}

/// The bodies that ran, with the attempt of each.
type Ran = Arc<Mutex<Vec<(String, u32)>>>;

/// Runs all: a body that has the attempt in it fails then, and `bad` is rejected.
async fn run(queue: &MemoryQueue, builder: WorkerBuilder) -> (Ended, Vec<(String, u32)>) {
    let ran = Ran::default();
    let seen = ran.clone();
    let worker = builder.backoff(at_once()).start(move |job: Job| {
        let (body, attempt) = (text(&job), job.attempt());
        seen.lock().unwrap().push((body.clone(), attempt));
        async move {
            match &*body {
                "bad" => Err(Failure::reject("it is bad")),
                body if body.contains(&attempt.to_string()) => Err("not yet".into()),
                _ => Ok(()),
            }
        }
    });
    let ended = to_the_end(queue, worker.unwrap()).await;
    let ran = ran.lock().unwrap().clone();
    (ended, ran)
}

fn ran(expected: &[(&str, u32)]) -> Vec<(String, u32)> {
    let expected = expected.iter();
    expected
        .map(|(body, attempt)| ((*body).to_owned(), *attempt))
        .collect()
}

#[tokio::test]
async fn messages_of_a_pack_run_in_order_among_others() {
    let queue = queue(|_| {});
    push(&queue, "k", "a").await;
    push_pack(&queue, "k", &["b", "c", "d"]).await;
    push(&queue, "k", "e").await;
    let (ended, seen) = run(&queue, Worker::over(queue.clone())).await;
    let all = ["a", "b", "c", "d", "e"].map(|body| (body, 1));
    assert_eq!((ended.counts.acknowledged, seen), (5, ran(&all)));
}

#[tokio::test]
async fn a_pack_with_a_failure_comes_again_without_what_was_done() {
    let queue = queue(|options| options.attempts = Some((5, KeyPolicy::Skip)));
    push_pack(&queue, "k", &["a", "fails 1", "c", "fails 12"]).await;
    let (ended, seen) = run(&queue, Worker::over(queue.clone())).await;
    let expected = [
        ("a", 1),
        ("fails 1", 1),
        ("fails 1", 2),
        ("c", 2),
        ("fails 12", 2),
        ("fails 12", 3),
    ];
    assert_eq!(seen, ran(&expected));
    assert_eq!((ended.counts.acknowledged, ended.counts.failed), (4, 2));
}

#[tokio::test]
async fn a_pack_with_a_rejected_message_is_rejected_when_the_others_are_done() {
    let queue = queue(|_| {});
    push_pack(&queue, "k", &["a", "bad", "fails 1"]).await;
    let (_, seen) = run(&queue, Worker::over(queue.clone())).await;
    let expected = [("a", 1), ("bad", 1), ("fails 1", 1), ("fails 1", 2)];
    assert_eq!(seen, ran(&expected));
    let dead = queue.take_dead_letters();
    assert_eq!(dead.len(), 1);
    assert!(pack::is_pack(&dead[0].message));
    let reason = dead[0].reason.as_deref();
    assert_eq!(reason, Some("message 2 of 3 in its pack: it is bad"));
}

#[tokio::test]
async fn a_pack_that_is_none_fails_and_others_do_not() {
    let covering = |builder: WorkerBuilder| {
        let all = Merge::Append { max: 3 };
        builder.coalesce(Coalesce::new(all))
    };
    let builders: [fn(WorkerBuilder) -> WorkerBuilder; 3] = [
        |it| it.run_max(3),
        |it| it.run_max(3).at_most_once(),
        covering,
    ];
    for builder in builders {
        let queue = queue(|options| options.attempts = Some((2, KeyPolicy::Skip)));
        push(&queue, "k", "a").await;
        let mut none = Message::new("none").with_key(key("k"));
        none.content_type = Some(pack::CONTENT_TYPE.into());
        queue.push(none).await.unwrap();
        push(&queue, "k", "b").await;
        let (ended, seen) = run(&queue, builder(Worker::over(queue.clone()))).await;
        assert_eq!(seen, ran(&[("a", 1), ("b", 1)]));
        assert_eq!((ended.counts.acknowledged, ended.counts.failed), (2, 2));
        let dead = queue.take_dead_letters();
        assert_eq!((dead.len(), &dead[0].message.body[..]), (1, &b"none"[..]));
    }
}

/// One acknowledgement would count for messages that have not begun.
#[tokio::test]
async fn a_worker_that_acknowledges_first_takes_no_packs() {
    let queue = queue(|options| options.attempts = Some((2, KeyPolicy::Skip)));
    push_pack(&queue, "k", &["a", "b"]).await;
    let (_, seen) = run(&queue, Worker::over(queue.clone()).at_most_once()).await;
    assert_eq!(seen, []);
    let dead = queue.take_dead_letters();
    assert!(pack::is_pack(&dead[0].message));
    let reason = dead[0].reason.as_deref().unwrap_or_default();
    assert!(reason.contains("at_most_once"), "{reason}");
}

#[tokio::test]
async fn a_pack_has_one_lease_which_lasts_until_its_last_message_is_done() {
    let queue = queue(|_| {});
    push_pack(&queue, "k", &["a", "b", "c"]).await;
    let (tell, told) = mpsc::unbounded_channel();
    let source = Faulty {
        extended: Some(tell),
        ..Faulty::over(&queue)
    };
    let told = Arc::new(tokio::sync::Mutex::new(told));
    let builder = Worker::over(source).lease(Duration::from_secs(1));
    let worker = builder.start(move |_: Job| {
        let told = told.clone();
        async move {
            // Each message stays until the lease has been extended once more.
            assert_eq!(told.lock().await.recv().await, Some(1));
            Ok(())
        }
    });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    let counts = ended.counts;
    assert_eq!((counts.acknowledged, ended.panics, counts.lost), (3, 0, 0));
}

/// Its lease is lost while a message runs, and the pack comes again.
#[tokio::test]
async fn what_was_done_of_a_pack_that_is_lost_is_not_done_again() {
    let queue = queue(|_| {});
    push_pack(&queue, "k", &["a", "b"]).await;
    let source = Faulty::over(&queue);
    let loses = source.loses.clone();
    let (seen, all) = (Ran::default(), Ran::default());
    let (tells, lease) = (seen.clone(), Duration::from_millis(300));
    let builder = Worker::over(source).lease(lease).cancel_grace(SOON);
    let worker = builder.start(move |job: Job| {
        let (body, attempt) = (text(&job), job.attempt());
        let loses = loses.clone();
        tells.lock().unwrap().push((body.clone(), attempt));
        async move {
            if (&*body, attempt) == ("b", 1) {
                loses.store(true, Ordering::SeqCst);
                job.context().cancelled().await;
                loses.store(false, Ordering::SeqCst);
            }
            Ok(())
        }
    });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    assert_eq!((ended.counts.lost, ended.counts.acknowledged), (2, 1));
    all.lock()
        .unwrap()
        .extend(ran(&[("a", 1), ("b", 1), ("b", 2)]));
    assert_eq!(*seen.lock().unwrap(), *all.lock().unwrap());
}

/// Its acknowledgement does not get through, and the pack comes again.
#[tokio::test]
async fn a_pack_of_which_all_was_done_is_acknowledged_when_it_comes_again() {
    let queue = queue(|_| {});
    push_pack(&queue, "k", &["a", "b"]).await;
    let source = Faulty::over(&queue);
    source.refused.store(1, Ordering::SeqCst);
    let builder = Worker::over(source).lease(Duration::from_millis(300));
    let (ended, seen) = run(&queue, builder).await;
    assert_eq!(seen, ran(&[("a", 1), ("b", 1)]));
    assert_eq!((ended.counts.lost, ended.counts.acknowledged), (2, 1));
    assert_eq!(queue.counts().leased, 0);
}

/// A body of a few KiB can become many MiB: packs for which there is no room go back unopened.
#[tokio::test]
async fn no_more_of_packs_is_opened_than_there_is_room_for() {
    let queue = queue(|_| {});
    for number in 0..3 {
        let message = Message::new(vec![0; 10 << 20]).with_key(key(&number.to_string()));
        let pack = pack::pack(&[message], true);
        assert!(pack.body.len() < 100 << 10);
        queue.push(pack).await.unwrap();
    }
    let worker = Worker::over(queue.clone()).held_bytes_max(1);
    let worker = worker.start(|job: Job| async move {
        assert_eq!(job.body().len(), 10 << 20);
        Ok(())
    });
    let counts = to_the_end(&queue, worker.unwrap()).await.counts;
    assert_eq!((counts.acknowledged, counts.given_back), (3, 1));
}
