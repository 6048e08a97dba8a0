//! Sources, handlers and runtimes that do what they should not.

use super::*;

/// Its leases have ended when they come, or its settle calls have no end.
struct Ill {
    queue: MemoryQueue,
    too_late: bool,
    asked: mpsc::UnboundedSender<tokio::time::Instant>,
}

impl Source for Ill {
    type Receipt = Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        self.queue.source_capabilities()
    }

    async fn receive_batch(
        &self,
        mut request: ReceiveRequest,
    ) -> Result<Vec<Leased<Receipt>>, TransportError> {
        let _ = self.asked.send(tokio::time::Instant::now());
        if self.too_late {
            request.max = 1;
        }
        let mut leased = self.queue.receive_batch(request).await?;
        if self.too_late {
            for one in &mut leased {
                one.remaining = Duration::ZERO;
            }
        }
        Ok(leased)
    }

    async fn settle_batch(
        &self,
        _settles: Vec<(Receipt, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        std::future::pending().await
    }

    async fn extend_batch(
        &self,
        _receipts: Vec<Receipt>,
        _lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        std::future::pending().await
    }
}

/// The waits are at least so long, and may be longer.
#[tokio::test]
async fn a_source_whose_leases_have_ended_is_asked_less_and_less_often() {
    let queue = queue(|_| {});
    for number in 0..10 {
        push(&queue, &number.to_string(), "m").await;
    }
    let (asked, mut times) = mpsc::unbounded_channel();
    let source = Ill {
        queue,
        too_late: true,
        asked,
    };
    let worker = Worker::over(source).start(|_: Job| async { panic!("it is somebody else's") });
    let worker = worker.unwrap();
    let mut before = times.recv().await.unwrap();
    for least in [50, 100, 200] {
        let at = times.recv().await.unwrap();
        assert!(at - before >= Duration::from_millis(least), "{least}");
        before = at;
    }
    let state = worker.state().await.unwrap();
    assert_eq!((state.panics, state.counts.lost), (0, state.counts.arrived));
    let error = lockgate_core::with_sources(state.errors[0].as_ref().unwrap());
    assert!(error.contains("have ended"), "{error}");
}

#[tokio::test]
async fn a_settle_call_without_an_end_does_not_keep_its_messages() {
    for at_most_once in [false, true] {
        let queue = queue(|_| {});
        push(&queue, "k", "m").await;
        let (asked, _times) = mpsc::unbounded_channel();
        let too_late = false;
        let source = Ill {
            queue,
            too_late,
            asked,
        };
        let mut builder = Worker::over(source).lease(Duration::from_millis(100));
        if at_most_once {
            builder = builder.at_most_once();
        }
        builder.call_time_max = Duration::from_millis(150);
        let worker = builder.start(|_: Job| async { Ok(()) }).unwrap();
        let over = async {
            while worker.state().await.unwrap().counts.unconfirmed == 0 {
                tokio::task::yield_now().await;
            }
        };
        let over = tokio::time::timeout(SOON, over).await;
        assert_eq!(over, Ok(()), "at most once: {at_most_once}");
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::panic_any(Bomb);
    }
}

#[tokio::test]
async fn a_panic_whose_value_panics_when_it_is_dropped_ends_no_worker() {
    let queue = queue(|options| options.attempts = Some((1, KeyPolicy::Skip)));
    push(&queue, "k", "m").await;
    let builder = Worker::over(queue.clone()).fair_by(|_| std::panic::panic_any(Bomb));
    let worker = builder.start(|job: Job| async move {
        if !job.body().is_empty() {
            std::panic::panic_any(Bomb);
        }
        Ok(())
    });
    let ended = to_the_end(&queue, worker.unwrap()).await;
    assert_eq!((ended.counts.failed, ended.panics, ended.left), (1, 1, 0));
}

#[test]
fn a_runtime_without_timers_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let error = runtime.unwrap().block_on(async {
        let started = Worker::over(queue(|_| {})).start(|_: Job| async { Ok(()) });
        started.map(drop).map_err(|error| error.to_string())
    });
    assert!(error.unwrap_err().contains("enable_time"));
}

/// Gives two messages at a time; its second answer comes when it is let, and the others say that it is closed.
struct Closing {
    queue: MemoryQueue,
    calls: AtomicUsize,
    second: Arc<Notify>,
}

impl Source for Closing {
    type Receipt = Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        let mut can = self.queue.source_capabilities();
        can.receive_max = 2;
        can
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Receipt>>, TransportError> {
        match self.calls.fetch_add(1, Ordering::SeqCst) {
            0 => {}
            1 => self.second.notified().await,
            _ => return Err(TransportError::new(Fate::Closed, "it is closed")),
        }
        self.queue.receive_batch(request).await
    }

    async fn settle_batch(
        &self,
        settles: Vec<(Receipt, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        self.queue.settle_batch(settles).await
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Receipt>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        self.queue.extend_batch(receipts, lease).await
    }
}

#[tokio::test]
async fn what_a_receive_under_way_brings_from_a_closed_source_is_handled() {
    let queue = queue(|_| {});
    for number in 0..3 {
        push(&queue, &number.to_string(), "m").await;
    }
    let second = Arc::new(Notify::new());
    let source = Closing {
        queue,
        calls: AtomicUsize::new(0),
        second: second.clone(),
    };
    let worker = Worker::over(source).start(|_: Job| async { Ok(()) });
    let worker = worker.unwrap();
    let first_two = async {
        loop {
            let state = worker.state().await.expect("a receive is under way");
            if state.counts.acknowledged == 2 && state.errors[0].is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, first_two).await.unwrap();
    second.notify_one();
    let ended = tokio::time::timeout(SOON, worker.ended()).await.unwrap();
    assert_eq!((ended.counts.acknowledged, ended.left), (3, 0));
}
