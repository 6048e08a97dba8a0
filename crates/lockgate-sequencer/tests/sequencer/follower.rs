//! Followers over ledgers and feeds that fail.

use std::{future::pending, time::Duration};

use lockgate_conformance::ledger::Lossy;
use lockgate_consumer::{MemoryOptions, MemoryQueue};
use lockgate_core::{
    Backoff, Epoch, Header, HolderName, Message, UniqueId, WallTime,
    ledger::{
        Append, Chain, ChainBreak, Event, EventHash, Ledger, LedgerOptions, NewEvent, ReadLedger,
        SequenceId,
    },
};
use lockgate_sequencer::{
    Apply, Evidence, FollowError, FollowOptions, FollowStatus, Followed, Follower, MemoryLedger,
    News, ReplayError, Replica, SourceFeed, event_of, message_of, replay,
};
use tokio::sync::mpsc;

/// Fast where nothing is lost by it.
fn options() -> FollowOptions {
    FollowOptions {
        page_events: 7,
        buffer_events_max: 5,
        heartbeat: Duration::from_millis(1),
        backoff: Backoff { first: 0, max: 1 },
        ..FollowOptions::default()
    }
}

pub(crate) async fn filled(count: u64) -> MemoryLedger {
    let hashed = LedgerOptions {
        hashed: true,
        ..LedgerOptions::default()
    };
    let ledger = MemoryLedger::new(hashed);
    add(&ledger, 0..count).await;
    ledger
}

pub(crate) async fn add(ledger: &MemoryLedger, numbers: std::ops::Range<u64>) {
    let events = numbers.map(|number| NewEvent {
        unique_id: Some(UniqueId::new(&format!("u{number}")).unwrap()),
        payload: number.to_string().into(),
        ..NewEvent::default()
    });
    let append = Append {
        epoch: Epoch(1),
        head: None,
        events: events.collect(),
        settled: Vec::new(),
    };
    ledger.append(append).await.unwrap();
}

pub(crate) async fn all(ledger: &MemoryLedger) -> Vec<Event> {
    let read = ReadLedger {
        after: SequenceId(0),
        limit: ReadLedger::LIMIT_MAX,
        wait: Duration::ZERO,
    };
    ledger.read(read).await.unwrap().events
}

/// What a service keeps in one transaction: what it has applied, and its position.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) events: Vec<Event>,
    pub(crate) position: Option<Chain>,
    /// The next so many batches are not applied.
    fails: u32,
}

impl Kept {
    pub(crate) fn position(&self) -> Chain {
        self.position.unwrap_or(Chain::START)
    }
}

impl Apply for Kept {
    type Error = &'static str;

    async fn apply(&mut self, events: Vec<Event>, position: Chain) -> Result<(), &'static str> {
        if self.fails > 0 {
            self.fails -= 1;
            return Err("the database is away");
        }
        self.events.extend(events);
        self.position = Some(position);
        Ok(())
    }
}

/// Whether a follower is behind that event.
fn behind(place: u64) -> impl Fn(&FollowStatus) -> bool {
    move |status| status.position.sequence_id.0 == place
}

#[tokio::test]
async fn a_follower_is_pushed_each_event_until_the_ledger_is_sealed() {
    let ledger = filled(20).await;
    let follower = Follower::new(ledger.clone()).options(options());
    let mut status = follower.status();
    let mut kept = Kept::default();
    let (followed, ()) = tokio::join!(follower.run(&mut kept, pending()), async {
        status.wait_for(behind(20)).await.unwrap();
        add(&ledger, 20..23).await;
        status.wait_for(behind(23)).await.unwrap();
        ledger.seal(Epoch(1)).await.unwrap();
    });
    assert_eq!(followed, Ok(Followed::Sealed));
    assert_eq!(kept.events, all(&ledger).await);
}

/// The feed loses every third event and the last ones, repeats some, and brings others late; the ledger is away now and then.
#[tokio::test]
async fn what_a_feed_loses_is_repaired_from_the_ledger() {
    let ledger = filled(100).await;
    let expected = all(&ledger).await;
    let (sender, mut feed) = mpsc::channel(200);
    for at in 0..90_usize {
        let late = if at % 10 == 0 { at + 5 } else { at };
        for event in expected.iter().skip(late).take(1 + at % 2) {
            if event.sequence_id.0 % 3 != 0 {
                sender.send(News::Event(event.clone())).await.unwrap();
            }
        }
    }
    let lossy = Lossy::new(ledger.clone(), |number| (number % 3 == 1).then_some(false));
    let follower = Follower::new(lossy).options(options());
    let mut kept = Kept::default();
    let mut status = follower.status();
    let stop = async {
        drop(status.wait_for(behind(100)).await);
    };
    let followed = follower.run_with(&mut feed, &mut kept, stop).await;
    assert_eq!(followed, Ok(Followed::Stopped));
    assert_eq!(kept.events, expected);
    drop(sender);
}

/// S4: a publish that was lost is only noticed when a later event arrives, so the loss of the last one is never noticed.
#[tokio::test]
async fn a_lost_tail_is_found_though_nothing_comes_after_it() {
    let ledger = filled(3).await;
    let expected = all(&ledger).await;
    let (sender, mut feed) = mpsc::channel(10);
    let follower = Follower::new(ledger.clone()).options(options());
    let mut status = follower.status();
    let mut kept = Kept::default();
    let stop = async {
        status.wait_for(behind(3)).await.unwrap();
        // Two more, and the feed has only the first of them.
        add(&ledger, 3..5).await;
        let event = all(&ledger).await.swap_remove(3);
        sender.send(News::Event(event)).await.unwrap();
        status.wait_for(behind(5)).await.unwrap();
    };
    let followed = follower.run_with(&mut feed, &mut kept, stop).await;
    assert_eq!(followed, Ok(Followed::Stopped));
    assert_eq!(kept.events[..3], expected);
    assert_eq!(kept.events, all(&ledger).await);
}

#[tokio::test]
async fn a_feed_that_ends_is_done_without() {
    let ledger = filled(3).await;
    let (sender, mut feed) = mpsc::channel::<News>(1);
    drop(sender);
    let slow = FollowOptions {
        heartbeat: Duration::from_secs(3_600),
        ..options()
    };
    let follower = Follower::new(ledger.clone()).options(slow);
    let mut kept = Kept::default();
    let (followed, ()) = tokio::join!(follower.run_with(&mut feed, &mut kept, pending()), async {
        add(&ledger, 3..5).await;
        ledger.seal(Epoch(1)).await.unwrap();
    });
    assert_eq!(followed, Ok(Followed::Sealed));
    assert_eq!(kept.events.len(), 5);
}

#[tokio::test]
async fn what_was_not_applied_is_applied_by_the_next_run() {
    let ledger = filled(20).await;
    let mut kept = Kept::default();
    let mut runs = 0;
    loop {
        // Every second run fails at its first batch.
        kept.fails = u32::from(runs % 2 == 0);
        let follower = Follower::new(ledger.clone())
            .from(kept.position())
            .options(options());
        let mut status = follower.status();
        let stop = async {
            drop(status.wait_for(behind(20)).await);
        };
        match follower.run(&mut kept, stop).await {
            Ok(followed) => {
                assert_eq!(followed, Followed::Stopped);
                break;
            }
            Err(FollowError::Apply { first, error }) => {
                assert_eq!(
                    (first.0, error),
                    (kept.events.len() as u64 + 1, "the database is away")
                );
            }
            Err(error) => panic!("{error}"),
        }
        runs += 1;
    }
    assert_eq!(kept.events, all(&ledger).await);
}

/// A snapshot has a sequence id and a hash: one that was made over another ledger, or over another branch, applies nothing.
#[tokio::test]
async fn a_snapshot_of_another_ledger_halts_before_anything_is_applied() {
    let ledger = filled(10).await;
    let mut position = Chain {
        hash: all(&ledger).await[4].hash,
        ..Chain::behind(SequenceId(5))
    };
    let mut kept = Kept::default();
    ledger.seal(Epoch(1)).await.unwrap();
    let follower = Follower::new(ledger.clone()).from(position);
    assert_eq!(
        follower.run(&mut kept, pending()).await,
        Ok(Followed::Sealed)
    );
    assert_eq!(kept.events.len(), 5);

    position.hash = Some(EventHash::START);
    let mut kept = Kept::default();
    let follower = Follower::new(ledger.clone()).from(position);
    match follower.run(&mut kept, pending()).await {
        Err(FollowError::Halted(Evidence::TwoEvents { first, second })) => {
            assert_eq!((first, second.sequence_id), (position, SequenceId(5)));
        }
        other => panic!("{other:?}"),
    }
    let ahead = Follower::new(ledger).from(Chain::behind(SequenceId(12)));
    match ahead.run(&mut kept, pending()).await {
        Err(FollowError::Halted(Evidence::Ends { head, .. })) => assert_eq!(head, SequenceId(10)),
        other => panic!("{other:?}"),
    }
    assert!(kept.events.is_empty());
}

#[tokio::test]
async fn a_feed_over_a_queue_rejects_what_is_no_event() {
    let ledger = filled(6).await;
    let queue = MemoryQueue::new(MemoryOptions::default()).unwrap();
    let expected = all(&ledger).await;
    for event in &expected[2..] {
        queue.push(message_of(event)).await.unwrap();
    }
    queue.push(Message::new("x")).await.unwrap();
    queue.close();
    let mut feed = SourceFeed::new(queue.clone(), HolderName::new("engine-1").unwrap());
    let follower = Follower::new(ledger.clone()).options(options());
    let mut kept = Kept::default();
    let (followed, ()) = tokio::join!(follower.run_with(&mut feed, &mut kept, pending()), async {
        while queue.counts().rejected == 0 {
            tokio::task::yield_now().await;
        }
        ledger.seal(Epoch(1)).await.unwrap();
    });
    assert_eq!(followed, Ok(Followed::Sealed));
    assert_eq!(kept.events, expected);
    let reason = queue.take_dead_letters()[0].reason.clone().unwrap();
    assert_eq!(
        &*reason,
        "the message has no header sequence_id, so it is no event"
    );
}

#[tokio::test]
async fn an_event_is_read_from_its_message_as_it_was() {
    for event in all(&filled(2).await).await {
        assert_eq!(event_of(&message_of(&event)), Ok(event.clone()));
        let plain = Event {
            unique_id: None,
            hash: None,
            time: WallTime(u64::MAX),
            ..event
        };
        let mut message = message_of(&plain);
        assert_eq!(event_of(&message), Ok(plain));
        message.headers[0].value = "-1".into();
        let error = event_of(&message).unwrap_err().to_string();
        assert_eq!(
            error,
            "the header sequence_id of the message is \"-1\", so it is no event"
        );
        let long = Header {
            name: "hash".into(),
            kind: "String".into(),
            value: vec![0xff; 1_000].into(),
        };
        message.headers[0] = long;
        assert!(event_of(&message).unwrap_err().to_string().len() < 500);
    }
}

/// A handler whose state depends on how its events come, if `batches` says so.
struct Folds {
    state: EventHash,
    batches: bool,
}

impl Apply for Folds {
    type Error = &'static str;

    async fn apply(&mut self, events: Vec<Event>, position: Chain) -> Result<(), &'static str> {
        assert_eq!(position.sequence_id, events.last().unwrap().sequence_id);
        for event in &events {
            self.state = self.state.next(&event.payload);
        }
        if self.batches && position.sequence_id > SequenceId(1_000) {
            self.state = self.state.next(b"one batch more");
        }
        Ok(())
    }
}

impl Replica for Folds {
    fn state_hash(&self) -> EventHash {
        self.state
    }
}

#[tokio::test]
async fn a_replay_tells_whether_a_handler_is_deterministic() {
    let ledger = filled(1_500).await;
    let state = EventHash::START;
    let folds = |batches| Folds { state, batches };
    let to = SequenceId(1_500);
    let mut same = [folds(false), folds(false)];
    let replayed = replay(&ledger, Chain::START, to, &mut same).await.unwrap();
    let last = all(&ledger).await.pop().unwrap();
    assert_eq!(replayed.position.hash, last.hash);
    assert_eq!(
        Some(replayed.state_hash),
        last.hash,
        "it folds as the chain does"
    );

    let mut other = [folds(true), folds(true)];
    match replay(&ledger, Chain::START, to, &mut other).await {
        Err(ReplayError::Diverged { agreed, differ, .. }) => {
            assert_eq!((agreed, differ), (SequenceId(1_000), to));
        }
        other => panic!("{other:?}"),
    }
    let beyond = replay(&ledger, Chain::START, to.next(), &mut same).await;
    assert!(matches!(beyond, Err(ReplayError::Ledger(_))));
    let wrong = Chain {
        hash: Some(EventHash::START),
        ..Chain::behind(SequenceId(3))
    };
    let mut same = [folds(false), folds(false)];
    let wrong = replay(&ledger, wrong, to, &mut same).await;
    assert!(matches!(
        wrong,
        Err(ReplayError::Chain(ChainBreak::Hash { .. }))
    ));
}
