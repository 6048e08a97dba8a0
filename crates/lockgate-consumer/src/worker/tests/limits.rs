//! Limits of a worker's own.

use lockgate_core::limits::{Limits, Scoped};

use super::*;

#[tokio::test]
async fn no_more_run_at_a_time_than_the_limit_says() {
    let queue = queue(|_| {});
    for number in 0..100 {
        push(&queue, &format!("k{}", number % 10), "m").await;
    }
    let going = Arc::new(AtomicUsize::new(0));
    let limits = Limits {
        concurrency: Some(2),
        ..Limits::default()
    };
    let builder = Worker::over(queue.clone()).limits(Scoped {
        queue: Some(limits),
        key: None,
    });
    let worker = builder.start(move |_: Job| {
        let going = going.clone();
        async move {
            assert!(going.fetch_add(1, Ordering::SeqCst) < 2);
            tokio::task::yield_now().await;
            going.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    assert_eq!((ended.counts.acknowledged, ended.panics), (100, 0));
}

#[tokio::test]
async fn what_costs_nothing_is_rejected_and_a_panic_costs_one() {
    let queue = queue(|options| options.attempts = Some((1, KeyPolicy::Skip)));
    for body in ["0", "1", "panic"] {
        push(&queue, body, body).await;
    }
    let limits = Scoped {
        queue: Some(Limits::default()),
        key: None,
    };
    let builder = Worker::over(queue.clone()).limits(limits);
    let builder = builder.cost_by(|message| {
        let body = std::str::from_utf8(&message.body).unwrap();
        body.parse().unwrap()
    });
    let worker = builder.start(|_: Job| async { Ok(()) });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    let counts = (ended.counts.acknowledged, ended.counts.rejected);
    assert_eq!((counts, ended.panics), ((2, 1), 0));
}

/// The other key has its turn, and waits all the same.
#[tokio::test]
async fn a_hold_stops_all_keys_for_a_while() {
    let queue = queue(|_| {});
    for key in ["a", "b"] {
        push(&queue, key, key).await;
    }
    let times = Arc::new(Mutex::new(Vec::new()));
    let seen = times.clone();
    let builder = Worker::over(queue.clone()).concurrency(1);
    let worker = builder.start(move |_: Job| {
        let mut seen = seen.lock().unwrap();
        seen.push(std::time::Instant::now());
        let is_first = seen.len() == 1;
        async move {
            match is_first {
                true => Err(Failure::hold(Duration::from_millis(300))),
                false => Ok(()),
            }
        }
    });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    assert_eq!(ended.counts.acknowledged, 2);
    let times = times.lock().unwrap();
    assert!(
        times[1] - times[0] >= Duration::from_millis(300),
        "{times:?}"
    );
}
