//! The machine of a follower, under any loss, repetition and order of what it is told.

use bytes::Bytes;
use lockgate_core::{
    Epoch, WallTime,
    ledger::{Chain, Event, EventHash, LedgerHead, LedgerPage, ReadLedger, SequenceId},
};
use lockgate_sequencer::{Evidence, FollowMachine, FollowOptions, FollowState, Output};
use proptest::{collection::vec, prelude::*};

/// Events that follow one another. Each third one begins a new term.
fn events(count: u64, hashed: bool, text: &str) -> Vec<Event> {
    let mut hash = EventHash::START;
    let event = |id| {
        let payload = Bytes::from(format!("{text}{id}"));
        hash = hash.next(&payload);
        Event {
            sequence_id: SequenceId(id),
            previous_id: SequenceId(id - 1),
            unique_id: None,
            time: WallTime(1_000 + id),
            epoch: Epoch(1 + id / 3),
            hash: hashed.then_some(hash),
            payload,
        }
    };
    (1..=count).map(event).collect()
}

fn chain_of(event: &Event) -> Chain {
    Chain {
        sequence_id: event.sequence_id,
        hash: event.hash,
        epoch: event.epoch,
        time: event.time,
    }
}

/// The head of a ledger with these events.
fn head(events: &[Event]) -> LedgerHead {
    let last = events.last().map_or(Chain::START, chain_of);
    LedgerHead {
        sequence_id: last.sequence_id,
        first_id: SequenceId(1),
        epoch: last.epoch,
        time: last.time,
        hash: last.hash,
        is_sealed: false,
    }
}

fn page(events: &[Event], after: u64, limit: usize) -> LedgerPage {
    let after = usize::try_from(after).unwrap();
    let behind = events.iter().skip(after).take(limit);
    LedgerPage {
        events: behind.cloned().collect(),
        head: head(events),
    }
}

/// What a follower meets.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The ledger has so many more events.
    Commit(u64),
    /// An event of the feed.
    Live(u64),
    /// A heartbeat of then.
    Head(u64),
    /// The page that it has asked for.
    Answer,
    /// The page is lost.
    Lose,
    /// A page that nobody has asked for, or that comes late.
    OldPage(u64, usize),
    /// Time.
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (1..5_u64).prop_map(Step::Commit),
        6 => (0..40_u64).prop_map(Step::Live),
        1 => (0..40_u64).prop_map(Step::Head),
        2 => Just(Step::Answer),
        1 => Just(Step::Lose),
        1 => (0..40_u64, 0..6_usize).prop_map(|(after, limit)| Step::OldPage(after, limit)),
        1 => (0..3_000_u64).prop_map(Step::Pass),
    ]
}

fn options() -> impl Strategy<Value = FollowOptions> {
    let bytes = prop_oneof![Just(5_usize), Just(20), Just(1 << 20)];
    (1..5_usize, 0..6_usize, bytes).prop_map(|(page_events, buffer_events_max, bytes)| {
        FollowOptions {
            page_events,
            buffer_events_max,
            buffer_bytes_max: bytes,
            ..FollowOptions::default()
        }
    })
}

/// A machine, and what it has said so far.
struct Run {
    machine: FollowMachine,
    options: FollowOptions,
    now: u64,
    asked: Option<ReadLedger>,
    delivered: Vec<Event>,
    evidence: Option<Evidence>,
}

impl Run {
    fn new(start: Chain, options: FollowOptions, has_feed: bool) -> Self {
        Self {
            machine: FollowMachine::new(start, options, has_feed),
            options,
            now: 0,
            asked: None,
            delivered: Vec::new(),
            evidence: None,
        }
    }

    fn poll(&mut self) {
        // Beside one page, whose payloads have at most 8 bytes here.
        let FollowOptions {
            page_events: page, ..
        } = self.options;
        let (events, bytes) = self.machine.held();
        assert!(events <= self.options.buffer_events_max + page);
        assert!(bytes <= self.options.buffer_bytes_max + 8 * page);
        while self.evidence.is_none()
            && let Some(output) = self.machine.poll(self.now)
        {
            match output {
                Output::Deliver { events, position } => {
                    assert_eq!(position, chain_of(events.last().unwrap()));
                    self.delivered.extend(events);
                }
                Output::Read(read) => {
                    read.check().unwrap();
                    assert!(self.asked.replace(read).is_none(), "one page at a time");
                }
                Output::Halt(evidence) => self.evidence = Some(evidence),
            }
        }
    }

    fn step(&mut self, step: Step, all: &[Event], committed: &mut u64) {
        let len = all.len() as u64;
        let ledger = |committed: u64| &all[..usize::try_from(committed).unwrap()];
        match step {
            Step::Commit(more) => *committed = (*committed + more).min(len),
            Step::Live(id) if *committed > 0 => {
                let at = usize::try_from(id % *committed).unwrap();
                self.machine.live(all[at].clone());
            }
            Step::Live(_) => {}
            Step::Head(then) => {
                let head = head(ledger(then.min(*committed)));
                self.machine.heartbeat(&head, self.now);
            }
            Step::Answer => self.answer(ledger(*committed)),
            Step::Lose => {
                if self.asked.take().is_some() {
                    self.machine.failed(self.now, 7);
                }
            }
            Step::OldPage(after, limit) if self.asked.is_none() => {
                let page = page(
                    ledger(*committed),
                    after,
                    limit.min(self.options.page_events),
                );
                self.machine.page(page, self.now, 7);
            }
            Step::OldPage(..) => {}
            Step::Pass(span) => self.now += span,
        }
        self.poll();
    }

    fn answer(&mut self, ledger: &[Event]) {
        if let Some(read) = self.asked.take() {
            match read.after.0 > ledger.len() as u64 {
                true => self.machine.beyond(head(ledger).sequence_id),
                false => {
                    let page = page(ledger, read.after.0, read.limit);
                    self.machine.page(page, self.now, 7);
                }
            }
        }
    }

    /// From now on nothing is lost but the feed, which says nothing more.
    fn settle(&mut self, ledger: &[Event]) {
        // Each page brings an event, or time passes.
        for _ in 0..4 * ledger.len() + 10 {
            self.answer(ledger);
            self.now = self.machine.deadline().unwrap_or(0).max(self.now);
            self.poll();
        }
    }
}

/// Where a follower starts: knowing nothing, a sequence id, one with a hash, or all of its position.
fn start(events: &[Event], at: usize, knows: u8) -> Chain {
    let Some(event) = at.checked_sub(1).and_then(|at| events.get(at)) else {
        return Chain::START;
    };
    match knows {
        0 => Chain::behind(event.sequence_id),
        1 => Chain {
            hash: event.hash,
            ..Chain::behind(event.sequence_id)
        },
        _ => chain_of(event),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Each event comes once and in order, whatever is lost, comes twice or comes late; nothing is left out at the end,
    /// also where the last one was lost; and memory is bounded throughout.
    #[test]
    fn each_event_is_delivered_once_and_in_order(
        steps in vec(step(), 0..200),
        options in options(),
        has_feed: bool,
        hashed: bool,
        at in 0..10_usize,
        knows in 0..3_u8,
    ) {
        let all = events(40, hashed, "e");
        let mut committed = at as u64;
        let mut run = Run::new(start(&all, at, knows), options, has_feed);
        run.poll();
        for step in steps {
            run.step(step, &all, &mut committed);
            prop_assert_eq!(&run.evidence, &None);
        }
        run.settle(&all);
        prop_assert_eq!(&run.evidence, &None);
        prop_assert_eq!(&run.delivered[..], &all[at..]);
        prop_assert_eq!(run.machine.state(), FollowState::Live);
        prop_assert_eq!(run.machine.held(), (0, 0));
    }

    /// Whatever a follower of one branch is told of another one, it halts. By a hash it does so before it applies anything of
    /// the other; by epochs alone, as soon as it meets an event that it has another one for.
    #[test]
    fn a_fork_halts(
        common in 0..20_u64,
        own in 1..10_u64,
        steps in vec(step(), 0..100),
        options in options(),
        hashed: bool,
        restarts: bool,
    ) {
        let mine = events(common + own, hashed, "e");
        let at = usize::try_from(common).unwrap();
        // Another leader went on from the common part.
        let mut other = events(40, hashed, "e");
        let mut hash = mine[..at].last().map_or(Some(EventHash::START), |event| event.hash);
        for event in &mut other[at..] {
            event.payload = format!("other {}", event.sequence_id).into();
            event.epoch.0 += u64::from(!hashed) * 10;
            hash = hash.map(|hash| hash.next(&event.payload));
            event.hash = event.hash.and(hash);
        }
        let mut run = Run::new(Chain::START, options, true);
        run.poll();
        run.settle(&mine);
        prop_assert_eq!(&run.delivered, &mine);
        if restarts {
            let start = chain_of(mine.last().unwrap());
            run = Run { delivered: mine.clone(), ..Run::new(start, options, true) };
        }
        let mut committed = 40;
        for step in steps {
            run.step(step, &other, &mut committed);
        }
        // In the end it is told all of it.
        run.settle(&other);
        for event in &other {
            run.machine.live(event.clone());
            run.poll();
        }
        prop_assert!(run.evidence.is_some());
        prop_assert_eq!(run.machine.state(), FollowState::Halted);
        if hashed || restarts {
            prop_assert_eq!(&run.delivered, &mine);
        }
        // It stays halted, and says the same.
        let said = run.machine.poll(u64::MAX);
        prop_assert_eq!(said, run.evidence.map(Output::Halt));
    }
}

fn roomy() -> FollowOptions {
    FollowOptions {
        buffer_events_max: 3,
        ..FollowOptions::default()
    }
}

#[test]
fn a_gap_is_repaired_by_one_page_and_what_waits_is_used() {
    let all = events(6, true, "e");
    let mut run = Run::new(Chain::START, roomy(), true);
    run.poll();
    run.answer(&[]);
    assert_eq!(run.machine.state(), FollowState::Live);
    // The farthest ones give way to those that are nearer, and are fetched again.
    for id in [6, 5, 4, 2, 3] {
        run.machine.live(all[id - 1].clone());
    }
    let known = SequenceId(6);
    assert_eq!(run.machine.state(), FollowState::Repairing { known });
    assert_eq!(run.machine.held(), (3, 6));
    run.poll();
    let read = run.asked.take().unwrap();
    assert_eq!((read.after, read.wait.is_zero()), (SequenceId(0), true));
    run.machine.page(page(&all, 0, 1), 0, 0);
    run.poll();
    assert_eq!(run.delivered, all[..4]);
    assert_eq!(run.asked.as_ref().unwrap().after, SequenceId(4));
    run.answer(&all);
    run.poll();
    assert_eq!(run.delivered, all);
}

#[test]
fn a_lost_tail_is_found_by_a_heartbeat() {
    let all = events(3, false, "e");
    let mut run = Run::new(Chain::START, roomy(), true);
    run.poll();
    run.answer(&all[..2]);
    run.poll();
    assert_eq!(
        (run.delivered.len(), run.machine.deadline()),
        (2, Some(1_000))
    );
    // One that a feed carries is enough.
    let mut told = run.machine.clone();
    told.heartbeat(&head(&all), 1);
    assert!(matches!(told.poll(1), Some(Output::Read(read)) if read.after == SequenceId(2)));
    // Where the feed says nothing the ledger is asked.
    run.now = 999;
    run.poll();
    assert_eq!(run.asked, None);
    run.now = 1_000;
    run.poll();
    run.answer(&all);
    run.poll();
    assert_eq!(run.delivered, all);
}

#[test]
fn what_contradicts_itself_is_shown() {
    let all = events(4, true, "e");
    let halted = |act: &dyn Fn(&mut FollowMachine)| {
        let mut run = Run::new(Chain::START, roomy(), true);
        run.poll();
        run.answer(&all[..2]);
        run.poll();
        act(&mut run.machine);
        run.poll();
        assert_eq!(run.delivered, all[..2]);
        run.evidence.unwrap()
    };
    let mut lies = all[2].clone();
    lies.previous_id = SequenceId(1);
    let evidence = halted(&|machine| machine.live(lies.clone()));
    assert!(matches!(evidence, Evidence::Follows { .. }), "{evidence}");
    let mut lies = all[1].clone();
    lies.previous_id = SequenceId(0);
    let evidence = halted(&|machine| machine.live(lies.clone()));
    assert!(matches!(evidence, Evidence::Follows { .. }), "{evidence}");
    // Before there is room to apply either.
    let mut other = all[3].clone();
    other.payload = "x".into();
    let evidence = halted(&|machine| {
        machine.live(all[3].clone());
        machine.live(other.clone());
    });
    assert!(matches!(evidence, Evidence::TwoEvents { .. }), "{evidence}");
    let mut early = head(&all[..2]);
    early.hash = Some(EventHash::START);
    let evidence = halted(&|machine| machine.heartbeat(&early, 1));
    assert!(matches!(evidence, Evidence::Head { .. }), "{evidence}");
    let evidence = halted(&|machine| machine.beyond(SequenceId(1)));
    assert_eq!(
        evidence.to_string(),
        "the ledger ends at event 1, and the follower has event 2"
    );
    let evidence = halted(&|machine| machine.trimmed(SequenceId(4), 1, 0));
    assert_eq!(
        evidence.to_string(),
        "the ledger keeps events from 4 on, and the follower has those up to 2"
    );
}

/// A page that was asked for before an event came need not have it. One that was asked for behind it must.
#[test]
fn an_event_that_the_ledger_does_not_have_is_shown() {
    let all = events(4, true, "e");
    let mut run = Run::new(Chain::START, roomy(), true);
    run.poll();
    run.machine.live(all[3].clone());
    run.answer(&all[..2]);
    run.poll();
    assert_eq!(run.evidence, None);
    run.now += 60_000;
    run.poll();
    run.answer(&all[..2]);
    run.poll();
    assert_eq!(
        run.evidence.unwrap().to_string(),
        "event 4 came by the feed, and the ledger ends at event 2"
    );
}

/// The event at the start may be gone as long as the next one is not.
#[test]
fn a_start_whose_event_was_trimmed_is_taken_as_it_is() {
    let all = events(5, true, "e");
    let mut run = Run::new(chain_of(&all[2]), roomy(), true);
    run.machine.live(all[3].clone());
    run.poll();
    assert_eq!(run.asked.take().unwrap().after, SequenceId(2));
    assert!(run.delivered.is_empty(), "nothing before it was compared");
    run.machine.trimmed(SequenceId(4), 0, 0);
    run.settle(&all);
    assert_eq!(run.delivered, all[3..]);
}
