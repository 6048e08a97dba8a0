//! What sinks get.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use lockgate_coordination::LeaderCareer as _;
use lockgate_core::{
    Accepted, Epoch, Fate, Level, Message, ReaderName, Sink, SinkCapabilities, TransportError,
    UniqueId,
    ledger::{
        Append, Appended, Ledger, LedgerError, LedgerHead, LedgerOptions, LedgerPage, ReadLedger,
        ReaderPosition, SequenceId,
    },
};
use lockgate_sequencer::{MemoryLedger, event_of};

use crate::{
    follower::filled,
    sequencer::{Fails, Named, end, execute_until, fence, reader, sequencer, term},
};

/// A sink that keeps an order of keys, carries no payload with an `X`, and has no room for event 2 at first.
#[derive(Clone, Default)]
struct Ordered {
    has: Arc<Mutex<Vec<SequenceId>>>,
    refusals: Arc<AtomicU64>,
}

impl Ordered {
    fn has(&self) -> Vec<u64> {
        self.has.lock().unwrap().iter().map(|id| id.0).collect()
    }
}

impl Sink for Ordered {
    type Id = u64;

    fn sink_capabilities(&self) -> SinkCapabilities {
        let mut can = SinkCapabilities::bodies_only(Level::Memory);
        can.batch_max = 10;
        (can.headers, can.keys) = (true, true);
        can
    }

    fn can_carry(&self, message: &Message) -> Result<(), TransportError> {
        match message.body.contains(&b'X') {
            true => Err(TransportError::new(Fate::Refused, "an X has no place here")),
            false => Ok(()),
        }
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<u64>, TransportError>> {
        let send = |message: &Message| {
            let event = event_of(message).unwrap();
            if event.sequence_id == SequenceId(2)
                && self.refusals.fetch_add(1, Ordering::Relaxed) < 3
            {
                return Err(TransportError::new(Fate::Retry, "it is full"));
            }
            self.has.lock().unwrap().push(event.sequence_id);
            Ok(Accepted {
                id: None,
                sequence: None,
                duplicate: false,
            })
        };
        messages.iter().map(send).collect()
    }
}

/// Nothing is behind an event that the sink has not taken yet.
#[tokio::test]
async fn an_event_that_a_sink_refuses_for_a_while_holds_up_those_behind_it() {
    let (source, ledger, sink) = (
        Named::new(|_| Fails::No),
        filled(5).await,
        Ordered::default(),
    );
    let mut leader = sequencer(source, ledger).publish(reader("x"), sink.clone());
    leader.inaugurate(&term(2), &fence(2)).await.unwrap();
    execute_until(&mut leader, 2, || sink.has().len() == 5).await;
    end(&mut leader, 2).await;
    assert_eq!(sink.has(), [1, 2, 3, 4, 5]);
    assert!(sink.refusals.load(Ordering::Relaxed) > 3);
}

/// One producer cannot stop a sink for all.
#[tokio::test]
async fn a_message_that_a_sink_can_never_carry_is_no_event() {
    let (source, ledger) = (
        Named::new(|_| Fails::No),
        MemoryLedger::new(LedgerOptions::default()),
    );
    let sink = Ordered::default();
    sink.refusals.store(3, Ordering::Relaxed);
    for body in ["a", "X", "b"] {
        source.queue.push(Message::new(body)).await.unwrap();
    }
    let mut leader = sequencer(source, ledger.clone()).publish(reader("x"), sink.clone());
    leader.inaugurate(&term(2), &fence(2)).await.unwrap();
    execute_until(&mut leader, 2, || sink.has().len() == 2).await;
    end(&mut leader, 2).await;
    assert_eq!(leader.counts().rejected, 1);
    assert_eq!(ledger.head().await.unwrap().sequence_id, SequenceId(2));
}

/// A ledger that moves no reader at first.
#[derive(Clone)]
struct Unmoved(MemoryLedger, Arc<AtomicU64>);

impl Ledger for Unmoved {
    async fn append(&self, append: Append) -> Result<Appended, LedgerError> {
        self.0.append(append).await
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
        if self.1.fetch_add(1, Ordering::Relaxed) < 5 {
            let why = "the disk is full".to_owned();
            return Err(LedgerError::Unavailable { why });
        }
        self.0.move_reader(position, from).await
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

/// Only the move is tried again, not the send before it.
#[tokio::test]
async fn a_move_that_fails_sends_nothing_again() {
    let ledger = filled(5).await;
    let (moves, sink) = (Arc::new(AtomicU64::new(0)), Ordered::default());
    sink.refusals.store(3, Ordering::Relaxed);
    let unmoved = Unmoved(ledger.clone(), moves.clone());
    let source = Named::new(|_| Fails::No);
    let mut leader = sequencer(source, unmoved).publish(reader("x"), sink.clone());
    leader.inaugurate(&term(2), &fence(2)).await.unwrap();
    execute_until(&mut leader, 2, || moves.load(Ordering::Relaxed) == 6).await;
    end(&mut leader, 2).await;
    assert_eq!(sink.has(), [1, 2, 3, 4, 5]);
    let places = ledger.readers().await.unwrap();
    assert_eq!(places[0].sequence_id, SequenceId(5));
}
