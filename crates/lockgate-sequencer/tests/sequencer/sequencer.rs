//! Sequencers over sources, ledgers and sinks that fail. The tests named S4 are for defects of a published sequencer.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use lockgate_conformance::ledger::Lossy;
use lockgate_consumer::{MemoryOptions, MemoryQueue, MemoryRecords, memory::Receipt};
use lockgate_coordination::{
    AskToResign, Campaign, Coordinator, ElectionState, EndReason, Ended, Fence, HandOver,
    LeaderCareer, Next, Observe, RecordsCoordinator, Singleton, Term, Unit,
};
use lockgate_core::{
    Accepted, Backoff, ElectionName, Epoch, Fate, Header, HolderName, InputId, Leased, Level,
    Message, MessageName, QueueName, ReaderName, ReceiveRequest, Settlement, Sink,
    SinkCapabilities, Source, SourceCapabilities, TransportError, UniqueId,
    ledger::{
        Append, Appended, EVENT_BYTES_MAX, Event, Ledger, LedgerError, LedgerHead, LedgerOptions,
        LedgerPage, NewEvent, ReadLedger, ReaderPosition, SequenceId,
    },
};
use lockgate_sequencer::{
    Followed, Follower, MemoryLedger, News, Sequencer, SequencerError, SequencerOptions, event_of,
};
use tokio::{
    sync::mpsc,
    task::{JoinSet, yield_now},
};

use crate::follower::{Kept, add, all, filled};

/// A queue in memory whose messages have names that last, and which fails as it is told.
#[derive(Clone)]
pub(crate) struct Named {
    pub(crate) queue: MemoryQueue,
    settles: Arc<AtomicU64>,
    /// What becomes of the settle call of that number, from 0.
    fails: fn(u64) -> Fails,
}

const SHORT: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fails {
    No,
    /// It does not, but there is a step before and one behind.
    Slow,
    /// It does not happen.
    Lost,
    /// It happens, and its answer is lost.
    Unknown,
    /// It does not happen, and has no end.
    Hangs,
}

impl Named {
    pub(crate) fn new(fails: fn(u64) -> Fails) -> Self {
        Self::leased(Duration::from_secs(60), fails)
    }

    /// Messages whose settlement was lost come again after so long.
    pub(crate) fn leased(lease: Duration, fails: fn(u64) -> Fails) -> Self {
        let options = MemoryOptions {
            lease,
            ..MemoryOptions::default()
        };
        Self {
            queue: MemoryQueue::new(options).unwrap(),
            settles: Arc::default(),
            fails,
        }
    }

    pub(crate) async fn push(&self, body: &str) {
        self.queue
            .push(Message::new(body.to_owned()))
            .await
            .unwrap();
    }

    /// Pushes a message with its unique id in a header, as a queue in memory has it.
    async fn push_unique(&self, id: &str, body: &str) {
        self.queue.push(unique(id, body)).await.unwrap();
    }
}

fn unique(id: &str, body: &str) -> Message {
    let mut message = Message::new(body.to_owned());
    message.headers.push(Header {
        name: "unique_id".into(),
        kind: "String".into(),
        value: id.to_owned().into(),
    });
    message
}

impl Source for Named {
    type Receipt = Receipt;

    fn source_capabilities(&self) -> SourceCapabilities {
        self.queue.source_capabilities()
    }

    async fn receive_batch(
        &self,
        request: ReceiveRequest,
    ) -> Result<Vec<Leased<Receipt>>, TransportError> {
        let mut leased = self.queue.receive_batch(request).await?;
        for one in &mut leased {
            let number = one.sequence.unwrap();
            one.name = Some(MessageName::Text(number.to_string().into()));
        }
        Ok(leased)
    }

    async fn settle_batch(
        &self,
        settles: Vec<(Receipt, Settlement)>,
    ) -> Vec<Result<(), TransportError>> {
        let failed = TransportError::new(Fate::Unknown, "a planted loss");
        let count = settles.len();
        match (self.fails)(self.settles.fetch_add(1, Ordering::Relaxed)) {
            Fails::No => return self.queue.settle_batch(settles).await,
            Fails::Slow => {
                yield_now().await;
                let settled = self.queue.settle_batch(settles).await;
                yield_now().await;
                return settled;
            }
            Fails::Lost => {}
            Fails::Unknown => drop(self.queue.settle_batch(settles).await),
            Fails::Hangs => std::future::pending().await,
        }
        vec![Err(failed); count]
    }

    async fn extend_batch(
        &self,
        receipts: Vec<Receipt>,
        lease: Duration,
    ) -> Vec<Result<Duration, TransportError>> {
        self.queue.extend_batch(receipts, lease).await
    }
}

/// A sink that keeps what it is sent, and fails as it is told.
#[derive(Clone)]
pub(crate) struct Engine {
    events: Arc<Mutex<Vec<Event>>>,
    sends: Arc<AtomicU64>,
    /// What becomes of the send of that number, from 0: how many of its messages are kept, and how many of them are answered.
    fails: fn(u64) -> Option<(usize, usize)>,
}

impl Engine {
    pub(crate) fn new(fails: fn(u64) -> Option<(usize, usize)>) -> Self {
        Self {
            events: Arc::default(),
            sends: Arc::default(),
            fails,
        }
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}

impl Sink for Engine {
    type Id = u64;

    fn sink_capabilities(&self) -> SinkCapabilities {
        let mut can = SinkCapabilities::bodies_only(Level::Memory);
        can.batch_max = 4;
        can.headers = true;
        can
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<u64>, TransportError>> {
        let number = self.sends.fetch_add(1, Ordering::Relaxed);
        let (kept, answered) = (self.fails)(number).unwrap_or((usize::MAX, usize::MAX));
        let kept = messages
            .iter()
            .take(kept)
            .map(|message| event_of(message).unwrap());
        self.events.lock().unwrap().extend(kept);
        let accepted = Accepted {
            id: None,
            sequence: None,
            duplicate: false,
        };
        let lost = TransportError::new(Fate::Unknown, "a planted loss");
        let result = |(at, _)| match at < answered {
            true => Ok(accepted.clone()),
            false => Err(lost.clone()),
        };
        messages.iter().enumerate().map(result).collect()
    }
}

pub(crate) fn fence(epoch: u64) -> Fence {
    Fence::new(ElectionName::new("orders").unwrap(), Epoch(epoch))
}

pub(crate) fn term(epoch: u64) -> Term {
    Term {
        election: ElectionName::new("orders").unwrap(),
        epoch: Epoch(epoch),
        leader: HolderName::new("host").unwrap(),
        predecessor: None,
        last_checkpoint: None,
    }
}

pub(crate) fn reader(name: &str) -> ReaderName {
    ReaderName::new(name).unwrap()
}

pub(crate) fn sequencer<S: Source, L: Ledger>(source: S, ledger: L) -> Sequencer<S, L> {
    let options = SequencerOptions {
        wait: Duration::from_millis(5),
        backoff: Backoff { first: 0, max: 1 },
        ..SequencerOptions::default()
    };
    Sequencer::new(QueueName::new("orders").unwrap(), source, ledger).options(options)
}

/// Executes until `done`, in the term of that epoch.
pub(crate) async fn execute_until<S: Source, L: Ledger>(
    sequencer: &mut Sequencer<S, L>,
    epoch: u64,
    done: impl Fn() -> bool,
) {
    let executes = async {
        while !done() {
            let next = sequencer.execute(&fence(epoch)).await.unwrap();
            assert_eq!(next, Next::Again);
        }
    };
    // It would go on for ever otherwise.
    let executed = tokio::time::timeout(Duration::from_secs(60), executes);
    executed.await.expect("what is waited for comes");
}

pub(crate) async fn end<S: Source, L: Ledger>(sequencer: &mut Sequencer<S, L>, epoch: u64) {
    let hand_over = HandOver {
        reason: EndReason::Asked,
        within: Duration::from_secs(60),
        unit: Unit::Ended,
        fence: &fence(epoch),
    };
    sequencer.hand_over(hand_over).await.unwrap();
}

async fn bodies(ledger: &MemoryLedger) -> Vec<Bytes> {
    all(ledger)
        .await
        .into_iter()
        .map(|event| event.payload)
        .collect()
}

/// S4: the standby took a lock, and nothing stopped the leader before it, whose next batch was committed all the same.
#[tokio::test]
async fn a_standby_that_leads_fences_the_leader_before_it() {
    let (source, ledger) = (Named::new(|_| Fails::No), filled(0).await);
    let mut old = sequencer(source.clone(), ledger.clone());
    let mut standby = sequencer(source.clone(), ledger.clone());
    old.inaugurate(&term(1), &fence(1)).await.unwrap();
    source.push("a").await;
    execute_until(&mut old, 1, || source.queue.counts().acknowledged == 1).await;
    standby.inaugurate(&term(2), &fence(2)).await.unwrap();
    // The old one does not know yet, and has a batch.
    source.push("b").await;
    match old.execute(&fence(1)).await {
        Err(SequencerError::Ledger(LedgerError::Deposed { epoch, newest })) => {
            assert_eq!((epoch, newest), (Epoch(1), Epoch(2)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(bodies(&ledger).await, ["a"]);
    // What it had is given back, and its successor has it.
    execute_until(&mut standby, 2, || source.queue.counts().acknowledged == 2).await;
    assert_eq!(bodies(&ledger).await, ["a", "b"]);
    assert_eq!(all(&ledger).await[1].epoch, Epoch(2));
    // Nor does it come back.
    let back = old.inaugurate(&term(1), &fence(1)).await.unwrap_err();
    assert!(back.to_string().contains("deposed"), "{back}");
}

/// S4: an event without unique id, a crash after the commit of the database and before that of the offset: it was sequenced a
/// second time.
#[tokio::test]
async fn an_input_without_unique_id_is_sequenced_once_after_a_crash_before_its_settlement() {
    let source = Named::leased(
        SHORT,
        |number| if number == 0 { Fails::Hangs } else { Fails::No },
    );
    let ledger = filled(0).await;
    source.push("order").await;
    source.push("order").await;
    {
        let mut crashes = sequencer(source.clone(), ledger.clone());
        crashes.inaugurate(&term(1), &fence(1)).await.unwrap();
        let fence = fence(1);
        let mut unit = pin!(crashes.execute(&fence));
        while source.settles.load(Ordering::Relaxed) == 0 {
            tokio::select! {
                biased;
                ended = &mut unit => panic!("{ended:?}"),
                () = yield_now() => {}
            }
        }
    }
    assert_eq!(all(&ledger).await.len(), 2, "committed, and not settled");
    let mut next = sequencer(source.clone(), ledger.clone());
    next.inaugurate(&term(2), &fence(2)).await.unwrap();
    execute_until(&mut next, 2, || source.queue.counts().acknowledged == 2).await;
    assert!(next.counts().duplicates >= 2);
    assert_eq!(bodies(&ledger).await, ["order", "order"]);
    // Once it is settled the ledger forgets it: names are not kept for ever.
    end(&mut next, 2).await;
    let again = NewEvent {
        input: Some(InputId::new("orders/1").unwrap()),
        ..NewEvent::default()
    };
    let again = Append {
        epoch: Epoch(2),
        head: None,
        events: vec![again],
        settled: Vec::new(),
    };
    assert!(!ledger.append(again).await.unwrap().events[0].is_duplicate);
}

/// S4: a duplicate was ignored, and its event, whose first publish was lost, never sent.
#[tokio::test]
async fn a_duplicate_whose_publish_was_lost_is_published() {
    let (source, ledger) = (Named::new(|_| Fails::No), filled(0).await);
    let away = Engine::new(|_| Some((0, 0)));
    let mut first =
        sequencer(source.clone(), ledger.clone()).publish(reader("engine"), away.clone());
    first.inaugurate(&term(1), &fence(1)).await.unwrap();
    source.push_unique("transfer-7", "7 coins").await;
    execute_until(&mut first, 1, || away.sends.load(Ordering::Relaxed) > 0).await;
    // It crashes: nothing was published.
    drop(first);
    assert!(away.events().is_empty());
    let engine = Engine::new(|_| None);
    let mut next =
        sequencer(source.clone(), ledger.clone()).publish(reader("engine"), engine.clone());
    next.inaugurate(&term(2), &fence(2)).await.unwrap();
    source.push_unique("transfer-7", "7 coins").await;
    execute_until(&mut next, 2, || {
        next_has(&engine, 1) && source.queue.counts().acknowledged == 2
    })
    .await;
    end(&mut next, 2).await;
    assert_eq!(next.counts().duplicates, 1);
    assert_eq!(engine.events(), all(&ledger).await);
    let place = ReaderPosition {
        reader: reader("engine"),
        sequence_id: SequenceId(1),
    };
    assert_eq!(ledger.readers().await.unwrap(), [place]);
}

fn next_has(engine: &Engine, count: usize) -> bool {
    engine.events.lock().unwrap().len() >= count
}

/// S4: one query for each message that has a unique id.
#[tokio::test]
async fn a_batch_costs_one_append_and_no_lookup() {
    let source = Named::new(|_| Fails::No);
    let ledger = Lossy::new(filled(0).await, |_| None);
    for number in 0..1_000 {
        source.push_unique(&number.to_string(), "x").await;
    }
    let mut sequencer = sequencer(source.clone(), ledger.clone());
    sequencer.inaugurate(&term(1), &fence(1)).await.unwrap();
    let (commands, reads) = (ledger.commands(), ledger.reads());
    sequencer.execute(&fence(1)).await.unwrap();
    assert_eq!(sequencer.counts().appended, 1_000);
    let asked = (
        ledger.commands() - commands,
        ledger.reads() - reads,
        ledger.finds(),
    );
    assert_eq!(asked, (1, 0, 0));
    assert_eq!(source.queue.counts().acknowledged, 1_000);
}

/// S4: sends were not waited for, so the loss of the last one was invisible. Here the watermark stays, and a follower of the
/// sink finds it by itself too.
#[tokio::test]
async fn a_lost_tail_is_published_again_and_found_by_a_follower() {
    let (source, ledger) = (Named::new(|_| Fails::No), filled(0).await);
    // The second send keeps only the first of its messages.
    let engine = Engine::new(|number| (number == 1).then_some((1, 1)));
    let mut sequencer =
        sequencer(source.clone(), ledger.clone()).publish(reader("engine"), engine.clone());
    for number in 0..6 {
        source.push(&number.to_string()).await;
    }
    sequencer.inaugurate(&term(1), &fence(1)).await.unwrap();
    execute_until(&mut sequencer, 1, || next_has(&engine, 6)).await;
    end(&mut sequencer, 1).await;
    assert_eq!(engine.events(), all(&ledger).await);

    let (sender, mut feed) = mpsc::channel(10);
    for event in &engine.events()[..5] {
        sender.send(News::Event(event.clone())).await.unwrap();
    }
    ledger.seal(Epoch(1)).await.unwrap();
    let mut kept = Kept::default();
    let follower = Follower::new(ledger.clone());
    let followed = follower
        .run_with(&mut feed, &mut kept, std::future::pending())
        .await;
    assert_eq!(followed, Ok(Followed::Sealed));
    assert_eq!(kept.events, engine.events());
}

/// Every answer of the ledger may be lost, before or after it has happened.
#[tokio::test]
async fn an_append_in_doubt_is_decided_again() {
    let losses: [fn(u64) -> Option<bool>; 3] = [
        |number| (number % 3 == 1).then_some(true),
        |number| (number % 3 == 1).then_some(false),
        |number| (number % 2 == 0).then_some(number % 4 == 0),
    ];
    for lose in losses {
        let source = Named::new(|_| Fails::No);
        let inner = filled(0).await;
        let ledger = Lossy::new(inner.clone(), lose);
        let mut sequencer = sequencer(source.clone(), ledger);
        sequencer.inaugurate(&term(1), &fence(1)).await.unwrap();
        for number in 0..20_u64 {
            source.push(&number.to_string()).await;
            let count = number + 1;
            execute_until(&mut sequencer, 1, || {
                source.queue.counts().acknowledged == count
            })
            .await;
        }
        let expected: Vec<_> = (0..20).map(|number| number.to_string()).collect();
        assert_eq!(bodies(&inner).await, expected);
    }
}

/// It names the head that it has seen: whoever has appended meanwhile, in whichever term, is seen before anything is appended.
#[tokio::test]
async fn a_head_that_somebody_moved_is_taken_from_the_refusal() {
    let (source, inner) = (Named::new(|_| Fails::No), filled(0).await);
    let ledger = Lossy::new(inner.clone(), |_| None);
    let mut sequencer = sequencer(source.clone(), ledger.clone());
    sequencer.inaugurate(&term(1), &fence(1)).await.unwrap();
    add(&inner, 0..3).await;
    source.push("a").await;
    let before = (ledger.commands(), ledger.reads());
    sequencer.execute(&fence(1)).await.unwrap();
    let asked = (ledger.commands() - before.0, ledger.reads() - before.1);
    assert_eq!(
        asked,
        (2, 0),
        "refused, and appended behind the head that the refusal names"
    );
    assert_eq!(bodies(&inner).await, ["0", "1", "2", "a"]);
}

/// What a sink lacks and the ledger keeps no more is not passed over in silence: it ends the term, until an operator moves the sink's
/// reader.
#[tokio::test]
async fn a_sink_that_is_too_far_behind_ends_the_term() {
    let (source, ledger) = (Named::new(|_| Fails::No), filled(5).await);
    ledger.trim(SequenceId(3)).await.unwrap();
    let engine = Engine::new(|_| None);
    let mut sequencer =
        sequencer(source.clone(), ledger.clone()).publish(reader("engine"), engine.clone());
    sequencer.inaugurate(&term(1), &fence(1)).await.unwrap();
    let error = loop {
        if let Err(error) = sequencer.execute(&fence(1)).await {
            break error;
        }
    };
    let is_told = |reader: &ReaderName, why: &LedgerError| {
        reader.as_str() == "engine" && matches!(why, LedgerError::Trimmed { .. })
    };
    assert!(
        matches!(&error, SequencerError::Unread { reader, why } if is_told(reader, why)),
        "{error}"
    );
    end(&mut sequencer, 1).await;
    let place = ReaderPosition {
        reader: reader("engine"),
        sequence_id: SequenceId(2),
    };
    ledger.move_reader(place, None).await.unwrap();
    sequencer.inaugurate(&term(2), &fence(2)).await.unwrap();
    execute_until(&mut sequencer, 2, || next_has(&engine, 3)).await;
    let first = engine.events()[0].sequence_id;
    assert_eq!(first, SequenceId(3));
}

/// A sink of a leader that sleeps while it sends: the next one has published all meanwhile.
struct Overtaken {
    engine: Engine,
    ledger: MemoryLedger,
}

impl Sink for Overtaken {
    type Id = u64;

    fn sink_capabilities(&self) -> SinkCapabilities {
        let mut can = self.engine.sink_capabilities();
        can.batch_max = 2;
        can
    }

    async fn send_batch(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<u64>, TransportError>> {
        let results = self.engine.send_batch(messages).await;
        let place = ReaderPosition {
            reader: reader("engine"),
            sequence_id: SequenceId(5),
        };
        self.ledger.move_reader(place, None).await.unwrap();
        results
    }
}

#[tokio::test]
async fn a_deposed_leader_that_has_slept_moves_no_reader_back() {
    let (source, ledger) = (Named::new(|_| Fails::No), filled(5).await);
    let engine = Engine::new(|_| None);
    let sink = Overtaken {
        engine: engine.clone(),
        ledger: ledger.clone(),
    };
    let mut sequencer = sequencer(source.clone(), ledger.clone()).publish(reader("engine"), sink);
    sequencer.inaugurate(&term(1), &fence(1)).await.unwrap();
    // It is done when all is published.
    source.queue.close();
    while sequencer.execute(&fence(1)).await.unwrap() != Next::Done {}
    // Otherwise it would be at 2, and publish what the next leader has published.
    assert_eq!(engine.events().len(), 2);
    let readers = ledger.readers().await.unwrap();
    assert_eq!(readers[0].sequence_id, SequenceId(5));
}

/// A ledger in the place of which an older copy can be put.
#[derive(Clone)]
struct Restored(Arc<Mutex<MemoryLedger>>);

impl Restored {
    fn now(&self) -> MemoryLedger {
        self.0.lock().unwrap().clone()
    }
}

impl Ledger for Restored {
    async fn append(&self, append: Append) -> Result<Appended, LedgerError> {
        self.now().append(append).await
    }

    async fn head(&self) -> Result<LedgerHead, LedgerError> {
        self.now().head().await
    }

    async fn read(&self, read: ReadLedger) -> Result<LedgerPage, LedgerError> {
        self.now().read(read).await
    }

    async fn find(&self, unique_id: UniqueId) -> Result<Option<SequenceId>, LedgerError> {
        self.now().find(unique_id).await
    }

    async fn move_reader(
        &self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        self.now().move_reader(position, from).await
    }

    async fn forget_reader(&self, reader: ReaderName) -> Result<bool, LedgerError> {
        self.now().forget_reader(reader).await
    }

    async fn readers(&self) -> Result<Vec<ReaderPosition>, LedgerError> {
        self.now().readers().await
    }

    async fn seal(&self, epoch: Epoch) -> Result<LedgerHead, LedgerError> {
        self.now().seal(epoch).await
    }

    async fn trim(&self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        self.now().trim(first).await
    }
}

/// Followers have events that it lacks, and would get others with their numbers.
#[tokio::test]
async fn a_ledger_that_was_restored_from_an_older_copy_ends_the_sequencer() {
    let went_back = |error: SequencerError| match error {
        SequencerError::WentBack { seen, head } => (seen.0, head.0),
        other => panic!("{other}"),
    };
    let source = Named::new(|_| Fails::No);
    let ledger = Restored(Arc::new(Mutex::new(filled(3).await)));
    let mut sequencer = sequencer(source.clone(), ledger.clone());
    sequencer.inaugurate(&term(1), &fence(1)).await.unwrap();
    source.push("a").await;
    execute_until(&mut sequencer, 1, || {
        source.queue.counts().acknowledged == 1
    })
    .await;
    let newest = ledger.now();
    let copy = filled(2).await;
    *ledger.0.lock().unwrap() = copy.clone();
    source.push("b").await;
    let error = sequencer.execute(&fence(1)).await.unwrap_err();
    assert!(error.to_string().contains("older copy"), "{error}");
    assert_eq!(went_back(error), (4, 2));
    assert_eq!(bodies(&copy).await.len(), 2, "nothing was appended");
    // The next term is no better, and neither is one that stands by.
    let error = sequencer.inaugurate(&term(2), &fence(2)).await;
    assert_eq!(went_back(error.unwrap_err()), (4, 2));
    // With all that was seen it goes on.
    *ledger.0.lock().unwrap() = newest.clone();
    sequencer.inaugurate(&term(3), &fence(3)).await.unwrap();
    execute_until(&mut sequencer, 3, || {
        source.queue.counts().acknowledged == 2
    })
    .await;
    assert_eq!(bodies(&newest).await.len(), 5);
}

/// A ledger that stays away ends the term, and what was received is given back.
#[tokio::test]
async fn a_ledger_that_stays_away_ends_the_term() {
    let source = Named::new(|_| Fails::No);
    let inner = filled(0).await;
    let ledger = Lossy::new(inner.clone(), |number| (number > 0).then_some(false));
    let mut leader = sequencer(source.clone(), ledger);
    leader.inaugurate(&term(1), &fence(1)).await.unwrap();
    source.push("a").await;
    let error = leader.execute(&fence(1)).await.unwrap_err();
    assert!(matches!(error, SequencerError::Ledger(_)), "{error}");
    assert_eq!(source.queue.counts().waiting, 1);
    let mut next = sequencer(source.clone(), inner.clone());
    next.inaugurate(&term(2), &fence(2)).await.unwrap();
    execute_until(&mut next, 2, || source.queue.counts().acknowledged == 1).await;
    assert_eq!(bodies(&inner).await, ["a"]);
}

#[tokio::test]
async fn what_can_never_be_an_event_is_rejected_and_the_rest_goes_on() {
    let (source, ledger) = (Named::new(|_| Fails::No), filled(0).await);
    source.push("a").await;
    source.push(&"x".repeat(EVENT_BYTES_MAX + 1)).await;
    source.push_unique("\n", "b").await;
    source.push("c").await;
    let mut sequencer = sequencer(source.clone(), ledger.clone());
    sequencer.inaugurate(&term(1), &fence(1)).await.unwrap();
    execute_until(&mut sequencer, 1, || {
        source.queue.counts().acknowledged == 2
    })
    .await;
    assert_eq!(bodies(&ledger).await, ["a", "c"]);
    assert_eq!(sequencer.counts().rejected, 2);
    let reasons = source.queue.take_dead_letters().into_iter();
    let reasons: Vec<_> = reasons.map(|letter| letter.reason.unwrap()).collect();
    assert!(reasons[0].contains("has 1048577 bytes"), "{reasons:?}");
    assert!(
        reasons[1].contains("its header unique_id is \"\\n\""),
        "{reasons:?}"
    );
}

/// A queue in memory has no names that last.
#[tokio::test]
async fn a_message_without_any_id_is_refused_unless_repeats_are_allowed() {
    let (queue, ledger) = (
        MemoryQueue::new(MemoryOptions::default()).unwrap(),
        filled(0).await,
    );
    queue.push(unique("u", "a")).await.unwrap();
    let mut strict = sequencer(queue.clone(), ledger.clone());
    strict.inaugurate(&term(1), &fence(1)).await.unwrap();
    strict.execute(&fence(1)).await.unwrap();
    queue.push(Message::new("b")).await.unwrap();
    let error = strict.execute(&fence(1)).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a message of orders has no unique id"),
        "{error}"
    );
    assert_eq!(
        (queue.counts().waiting, queue.counts().acknowledged),
        (1, 1)
    );
    let options = SequencerOptions {
        allow_repeats: true,
        ..SequencerOptions::default()
    };
    let mut lax = sequencer(queue.clone(), ledger.clone()).options(options);
    lax.inaugurate(&term(2), &fence(2)).await.unwrap();
    lax.execute(&fence(2)).await.unwrap();
    assert_eq!(bodies(&ledger).await, ["a", "b"]);
}

#[tokio::test]
async fn a_sink_that_carries_bodies_only_is_refused_before_anybody_stands() {
    struct Bodies;
    impl Sink for Bodies {
        type Id = u64;

        fn sink_capabilities(&self) -> SinkCapabilities {
            SinkCapabilities::bodies_only(Level::Memory)
        }

        async fn send_batch(&self, _: Vec<Message>) -> Vec<Result<Accepted<u64>, TransportError>> {
            Vec::new()
        }
    }
    let ledger = filled(0).await;
    let mut sequencer = sequencer(Named::new(|_| Fails::No), ledger).publish(reader("x"), Bodies);
    let state = ElectionState {
        leader: None,
        history: Vec::new(),
        last_checkpoint: None,
        candidates: Vec::new(),
    };
    let error = sequencer.warm_up(&state).await.unwrap_err().to_string();
    assert!(
        error.starts_with("the sink x cannot carry events: this sink carries bodies"),
        "{error}"
    );
    let options = SequencerOptions {
        batch_max: 0,
        ..SequencerOptions::default()
    };
    let error = sequencer
        .options(options)
        .warm_up(&state)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "batch_max is 1 to 10000, and not 0");
}

/// A sink that panics ends the term; nothing is lost by it.
#[tokio::test]
async fn a_sink_that_panics_ends_the_term() {
    let (source, ledger) = (Named::new(|_| Fails::No), filled(1).await);
    let engine = Engine::new(|_| panic!("a planted panic"));
    let mut leader = sequencer(source.clone(), ledger.clone()).publish(reader("x"), engine);
    leader.inaugurate(&term(2), &fence(2)).await.unwrap();
    let error = loop {
        if let Err(error) = leader.execute(&fence(2)).await {
            break error;
        }
    };
    assert_eq!(error.to_string(), "a sink has panicked: Some(\"x\")");
    assert_eq!(ledger.readers().await, Ok(Vec::new()));
}

/// Three processes, of which one is asked to go again and again, over a ledger that loses answers, a source that loses
/// settlements, and two engines of which one loses messages: each input is one event, and each engine has them all in order.
#[tokio::test]
async fn switches_and_losses_leave_no_gap_and_no_double() {
    const SWITCHES: u64 = 8;
    const EACH: u64 = 10;
    let source = Named::leased(SHORT, |number| match number % 4 {
        1 => Fails::Lost,
        2 => Fails::Unknown,
        _ => Fails::No,
    });
    let inner = MemoryLedger::new(LedgerOptions {
        hashed: true,
        ..LedgerOptions::default()
    });
    let ledger = Lossy::new(inner.clone(), |number| {
        (number % 5 == 3).then_some(number % 2 == 0)
    });
    let engines = [
        Engine::new(|_| None),
        Engine::new(|number| (number % 3 == 1).then_some((2, 1))),
    ];
    let coordinator = RecordsCoordinator::new(MemoryRecords::new());
    let election = ElectionName::new("orders").unwrap();
    let mut tasks = JoinSet::new();
    for name in ["a", "b", "c"] {
        let campaign = Campaign::new(election.clone(), HolderName::new(name).unwrap());
        let backoff = Backoff { first: 1, max: 2 };
        let singleton = Singleton::new(coordinator.clone(), campaign).backoff(backoff);
        let mut sequencer = sequencer(source.clone(), ledger.clone())
            .publish(reader("one"), engines[0].clone())
            .publish(reader("two"), engines[1].clone());
        tasks.spawn(async move { singleton.run(&mut sequencer).await });
    }
    let mut seen = None;
    for round in 0..SWITCHES {
        for number in 0..EACH {
            let body = format!("{round}-{number}");
            match number % 2 {
                0 => source.push(&body).await,
                _ => {
                    // Sent twice, as by a producer that has lost an answer.
                    source.push_unique(&body, &body).await;
                    source.push_unique(&body, &body).await;
                }
            }
        }
        switch(&coordinator, &election, &mut seen).await;
    }
    source.queue.close();
    // The source is empty: whoever leads is done, and then the next one.
    while let Some(ended) = tasks.join_next().await {
        assert_eq!(ended.unwrap(), Ok(Ended::Done));
    }
    let events = all(&inner).await;
    let inputs: BTreeSet<_> = events.iter().map(|event| event.payload.clone()).collect();
    assert_eq!(inputs.len() as u64, SWITCHES * EACH, "none is lost");
    assert_eq!(events.len() as u64, SWITCHES * EACH, "none is there twice");
    for engine in engines {
        let mut next = 1;
        for event in engine.events() {
            assert!(event.sequence_id.0 <= next, "it lacks {next}");
            assert_eq!(
                events[usize::try_from(event.sequence_id.0 - 1).unwrap()],
                event
            );
            next = next.max(event.sequence_id.0 + 1);
        }
        assert_eq!(next, SWITCHES * EACH + 1);
    }
    let unique = UniqueId::new("0-1").unwrap();
    assert!(inner.find(unique).await.unwrap().is_some());
}

/// Asks the leader after `seen` to resign, once somebody stands to follow it.
async fn switch(
    coordinator: &RecordsCoordinator<MemoryRecords>,
    election: &ElectionName,
    seen: &mut Option<Epoch>,
) {
    let leader = loop {
        let observe = Observe {
            election: election.clone(),
            seen: None,
            wait: Duration::ZERO,
        };
        let state = coordinator.observe(observe).await.unwrap();
        let next = state.leader.filter(|leader| Some(leader.epoch) != *seen);
        match next {
            Some(leader) if !state.candidates.is_empty() => break leader,
            _ => yield_now().await,
        }
    };
    *seen = Some(leader.epoch);
    let ask = AskToResign {
        election: election.clone(),
        epoch: leader.epoch,
        by: HolderName::new("operator").unwrap(),
        even_if_alone: false,
    };
    // It may have given up its term meanwhile.
    drop(coordinator.ask_to_resign(ask).await);
}
