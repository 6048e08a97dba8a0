//! A leader that crashes at every step.

use std::{collections::BTreeMap, future::poll_fn, pin::pin, task::Poll, time::Duration};

use lockgate_coordination::LeaderCareer;
use lockgate_core::{
    Epoch, ReaderName, UniqueId,
    ledger::{
        Append, Appended, Ledger, LedgerError, LedgerHead, LedgerPage, ReadLedger, ReaderPosition,
        SequenceId,
    },
};
use lockgate_sequencer::{MemoryLedger, Sequencer, SequencerOptions};
use tokio::task::yield_now;

use crate::{
    follower::{all, filled},
    sequencer::{Engine, Fails, Named, end, execute_until, fence, reader, sequencer, term},
};

/// A ledger whose commands have a step before they happen, and one before they are answered.
#[derive(Clone)]
struct Steps(MemoryLedger);

async fn steps<T>(act: impl Future<Output = T>) -> T {
    yield_now().await;
    let done = act.await;
    yield_now().await;
    done
}

impl Ledger for Steps {
    async fn append(&self, append: Append) -> Result<Appended, LedgerError> {
        steps(self.0.append(append)).await
    }

    async fn head(&self) -> Result<LedgerHead, LedgerError> {
        self.0.head().await
    }

    async fn read(&self, read: ReadLedger) -> Result<LedgerPage, LedgerError> {
        self.0.read(read).await
    }

    async fn find(&self, unique_id: UniqueId) -> Result<Option<SequenceId>, LedgerError> {
        self.0.find(unique_id).await
    }

    async fn move_reader(
        &self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        steps(self.0.move_reader(position, from)).await
    }

    async fn forget_reader(&self, reader: ReaderName) -> Result<bool, LedgerError> {
        self.0.forget_reader(reader).await
    }

    async fn readers(&self) -> Result<Vec<ReaderPosition>, LedgerError> {
        self.0.readers().await
    }

    async fn seal(&self, epoch: Epoch) -> Result<LedgerHead, LedgerError> {
        self.0.seal(epoch).await
    }

    async fn trim(&self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        self.0.trim(first).await
    }
}

const INPUTS: u64 = 6;

fn small<L: Ledger>(source: &Named, ledger: L, engine: &Engine) -> Sequencer<Named, L> {
    let options = SequencerOptions {
        batch_max: 2,
        wait: Duration::from_millis(5),
        ..SequencerOptions::default()
    };
    sequencer(source.clone(), ledger)
        .options(options)
        .publish(reader("engine"), engine.clone())
}

/// Lets a leader take so many steps, and drops it. Whether it was done before.
async fn crashes(source: &Named, ledger: &Steps, engine: &Engine, steps: u32) -> bool {
    let mut leader = small(source, ledger.clone(), engine);
    let (term, fence) = (term(1), fence(1));
    let mut work = pin!(async {
        leader.inaugurate(&term, &fence).await.unwrap();
        loop {
            leader.execute(&fence).await.unwrap();
        }
    });
    for _ in 0..steps {
        let is_sequenced = source.queue.counts().acknowledged == INPUTS;
        if is_sequenced && engine.events().len() as u64 == INPUTS {
            return true;
        }
        poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await;
        // And what it has spawned.
        yield_now().await;
    }
    false
}

/// Whatever step a leader crashes at, its successor goes on without a gap and without a double: of inputs without unique ids, in
/// the ledger, and at the sink.
#[tokio::test]
async fn a_leader_may_crash_at_every_step() {
    let mut steps = 0;
    loop {
        let source = Named::leased(Duration::from_millis(10), |_| Fails::Slow);
        let ledger = Steps(filled(0).await);
        let engine = Engine::new(|_| None);
        for number in 0..INPUTS {
            source.push(&number.to_string()).await;
        }
        let is_done = crashes(&source, &ledger, &engine, steps).await;
        let mut next = small(&source, ledger.0.clone(), &engine);
        next.inaugurate(&term(2), &fence(2)).await.unwrap();
        let place = || engine.events().last().map(|event| event.sequence_id);
        execute_until(&mut next, 2, || {
            source.queue.counts().acknowledged == INPUTS && place() >= Some(SequenceId(INPUTS))
        })
        .await;
        end(&mut next, 2).await;

        let events = all(&ledger.0).await;
        let mut bodies: Vec<_> = events.iter().map(|event| &event.payload[..]).collect();
        bodies.sort_unstable();
        let expected: [&[u8]; 6] = [b"0", b"1", b"2", b"3", b"4", b"5"];
        assert_eq!(bodies, expected, "after {steps} steps");
        let by_place = engine
            .events()
            .into_iter()
            .map(|event| (event.sequence_id, event));
        let published: BTreeMap<_, _> = by_place.collect();
        let published: Vec<_> = published.into_values().collect();
        assert_eq!(published, events, "after {steps} steps");
        if is_done {
            break;
        }
        steps += 1;
    }
    assert!(steps > 10, "{steps} are too few to have seen something");
}
