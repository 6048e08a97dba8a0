//! What a follower does, as a pure machine: events, heads, pages and time come in, events in order and requests for pages come out.
//!
//! ```text
//!            a gap, or a head that is ahead            a contradiction
//!   Live ──────────────────────────────► Repairing ───────────────────► Halted
//!        ◄──────────────────────────────                                  ▲
//!            a page that closes it        └──────────────── or in Live ───┘
//! ```
//!
//! # Invariants
//! - Each event is given out once, directly behind the one before it, and checked against it.
//! - At most [`buffer_events_max`](FollowOptions::buffer_events_max) events beside one page are held. What has no room is
//!   fetched again.
//! - At most one page is asked for at a time.
//! - What contradicts anything that is held or remembered halts the machine, and nothing is given out behind it.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use lockgate_core::{
    Backoff, Millis,
    ledger::{Chain, ChainBreak, Event, LedgerHead, LedgerPage, ReadLedger, SequenceId},
};

use super::{
    evidence::Evidence,
    past::{Past, chain_of, differs},
};

/// Options of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowOptions {
    /// Events of one page of a repair; 1 to 10,000. Default: 1,000.
    pub page_events: usize,
    /// How many live events wait while it repairs. Default: 10,000.
    pub buffer_events_max: usize,
    /// How many bytes of payloads they may have. Default: 16 MiB.
    pub buffer_bytes_max: usize,
    /// With a live feed: how long nothing may be heard of the ledger before it is asked for its head, so that a lost tail is
    /// noticed. Default: 1 s.
    pub heartbeat: Duration,
    /// Without a live feed: how long one read waits for an event; at most 60 s. Default: 30 s.
    pub wait: Duration,
    /// How long it waits before it asks again for a page that did not come. Default: 50 ms, doubling up to 5 s.
    pub backoff: Backoff,
}

impl Default for FollowOptions {
    fn default() -> Self {
        Self {
            page_events: 1_000,
            buffer_events_max: 10_000,
            buffer_bytes_max: 16 << 20,
            heartbeat: Duration::from_secs(1),
            wait: Duration::from_secs(30),
            backoff: Backoff {
                first: 50,
                max: 5_000,
            },
        }
    }
}

/// What a follower is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowState {
    /// It has every event that it knows of.
    Live,
    /// It knows of an event up to here, and lacks some before.
    Repairing {
        /// The last one that it knows of.
        known: SequenceId,
    },
    /// It stops for good.
    Halted,
}

/// What a machine asks of its shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Give these events to the handler; they follow one another.
    Deliver {
        /// 1 or more.
        events: Vec<Event>,
        /// Behind the last of them.
        position: Chain,
    },
    /// Read this page, and tell what came of it.
    Read(ReadLedger),
    /// Stop.
    Halt(Evidence),
}

/// The machine of a follower. Call [`poll`](Self::poll) until it has nothing more to say, after each input and at each
/// [deadline](Self::deadline). Times are milliseconds of one clock that never goes back.
#[derive(Clone, Debug)]
pub struct FollowMachine {
    options: FollowOptions,
    has_feed: bool,
    /// Behind the last event in `ready`, or that was given out.
    chain: Chain,
    /// Whether the event at the start was compared with the ledger's.
    is_start_checked: bool,
    past: Past,
    /// The last event that it knows of.
    known: SequenceId,
    /// The highest event that came by the feed.
    fed: SequenceId,
    /// The same when the page was asked for that is being read: what is published is in the ledger, and in its head.
    asked_behind: SequenceId,
    /// In order, to be given out.
    ready: VecDeque<Event>,
    /// Live events behind a gap.
    ahead: BTreeMap<SequenceId, Event>,
    /// Payloads of both.
    bytes: usize,
    is_reading: bool,
    /// No page is asked for before.
    not_before: Millis,
    failures: u32,
    /// When it last heard of the ledger itself.
    heard: Option<Millis>,
    sealed: Option<SequenceId>,
    evidence: Option<Evidence>,
}

impl FollowMachine {
    /// A machine that goes on behind that position, once it has compared it with the ledger's event there.
    #[must_use]
    pub fn new(position: Chain, options: FollowOptions, has_feed: bool) -> Self {
        Self {
            options,
            has_feed,
            chain: position,
            is_start_checked: position.sequence_id == SequenceId::START,
            past: Past::new(position),
            known: position.sequence_id,
            fed: SequenceId::START,
            asked_behind: SequenceId::START,
            ready: VecDeque::new(),
            ahead: BTreeMap::new(),
            bytes: 0,
            is_reading: false,
            not_before: 0,
            failures: 0,
            heard: None,
            sealed: None,
            evidence: None,
        }
    }

    /// What it is doing.
    #[must_use]
    pub fn state(&self) -> FollowState {
        if self.evidence.is_some() {
            FollowState::Halted
        } else if self.is_repairing() {
            FollowState::Repairing { known: self.known }
        } else {
            FollowState::Live
        }
    }

    /// Whether the ledger is sealed, and all its events were given out.
    #[must_use]
    pub fn is_at_the_end(&self) -> bool {
        let is_last = self.sealed == Some(self.chain.sequence_id);
        is_last && self.is_start_checked && self.ready.is_empty() && self.evidence.is_none()
    }

    /// How many events it holds, and how many bytes of payloads they have.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.ready.len() + self.ahead.len(), self.bytes)
    }

    /// An event of the live feed: any, in any order, as often as it comes.
    pub fn live(&mut self, event: Event) {
        self.offer(event, false);
        self.take_held();
    }

    /// A head, as a heartbeat tells it: also one that is late.
    pub fn heartbeat(&mut self, head: &LedgerHead, now: Millis) {
        if self.evidence.is_some() {
            return;
        }
        self.heard = Some(now);
        self.known = self.known.max(head.sequence_id);
        if head.is_sealed {
            self.sealed = Some(head.sequence_id);
        }
        // What is remembered of that place, or of the last one before it.
        let at = head.sequence_id.min(self.chain.sequence_id);
        let Some(last) = self.past.at(at).copied() else {
            return;
        };
        if let Err(why) = last.agrees_with(head) {
            let head = *head;
            self.evidence = Some(Evidence::Head { last, head, why });
        }
    }

    /// The page that was asked for, or one that comes late. Behind [`failed`](Self::failed), the page of the read that has failed
    /// must not be given while another is asked for. `random` is any number, each equally likely.
    pub fn page(&mut self, page: LedgerPage, now: Millis, random: u64) {
        let is_asked = std::mem::take(&mut self.is_reading);
        let before = (self.chain.sequence_id, self.is_start_checked);
        for event in page.events {
            self.offer(event, is_asked);
        }
        self.take_held();
        if is_asked && !self.is_start_checked && page.head.sequence_id < self.chain.sequence_id {
            // Asked for the event at the start itself, the ledger has the one before it, and no more.
            self.beyond(page.head.sequence_id);
        }
        if is_asked && page.head.sequence_id < self.asked_behind {
            let (event, head) = (self.asked_behind, page.head.sequence_id);
            self.evidence
                .get_or_insert(Evidence::NotThere { event, head });
        }
        self.heartbeat(&page.head, now);
        if before == (self.chain.sequence_id, self.is_start_checked) && self.is_repairing() {
            self.failed(now, random);
        } else {
            self.failures = 0;
        }
    }

    /// The page that was asked for did not come.
    pub fn failed(&mut self, now: Millis, random: u64) {
        self.is_reading = false;
        self.failures = self.failures.saturating_add(1);
        self.not_before = now.saturating_add(self.options.backoff.after(self.failures, random));
    }

    /// The page that was asked for is gone: the ledger keeps events from that one on.
    pub fn trimmed(&mut self, first: SequenceId, now: Millis, random: u64) {
        if first > self.chain.sequence_id.next() {
            let last = self.chain;
            self.is_reading = false;
            self.evidence
                .get_or_insert(Evidence::Trimmed { last, first });
        } else if self.is_start_checked {
            self.failed(now, random);
        } else {
            // The event at the start is gone, and the next one is not: there is nothing to compare.
            self.is_reading = false;
            self.is_start_checked = true;
            self.take_held();
        }
    }

    /// The ledger ends there, before what was asked for.
    pub fn beyond(&mut self, head: SequenceId) {
        self.is_reading = false;
        let last = self.chain;
        self.evidence.get_or_insert(Evidence::Ends { last, head });
    }

    /// The live feed has ended: from now on pages tell of new events.
    pub fn feed_ended(&mut self) {
        self.has_feed = false;
    }

    /// What to do next, if anything.
    pub fn poll(&mut self, now: Millis) -> Option<Output> {
        if !self.ready.is_empty() {
            let events: Vec<_> = self.ready.drain(..).collect();
            self.bytes -= events
                .iter()
                .map(|event| event.payload.len())
                .sum::<usize>();
            let position = self.chain;
            return Some(Output::Deliver { events, position });
        }
        if let Some(evidence) = &self.evidence {
            return Some(Output::Halt(evidence.clone()));
        }
        if self.is_at_the_end() || self.deadline().is_none_or(|deadline| deadline > now) {
            return None;
        }
        self.is_reading = true;
        self.asked_behind = self.fed;
        let last = self.chain.sequence_id;
        let waits = !self.has_feed && !self.is_repairing();
        Some(Output::Read(ReadLedger {
            after: match self.is_start_checked {
                true => last,
                false => last.previous(),
            },
            limit: self.options.page_events,
            wait: match waits {
                true => self.options.wait,
                false => Duration::ZERO,
            },
        }))
    }

    /// When to poll again though nothing came in. `None`: not before the page comes.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        if self.is_reading {
            return None;
        }
        let next = match self.heard {
            Some(heard) if self.has_feed && !self.is_repairing() => {
                let beat = self.options.heartbeat.as_millis();
                heard.saturating_add(Millis::try_from(beat).unwrap_or(Millis::MAX))
            }
            _ => 0,
        };
        Some(next.max(self.not_before))
    }

    fn is_repairing(&self) -> bool {
        self.chain.sequence_id < self.known || !self.is_start_checked
    }

    fn has_room(&self, bytes: usize) -> bool {
        let (events, held) = self.held();
        events < self.options.buffer_events_max && held + bytes <= self.options.buffer_bytes_max
    }

    /// Takes or holds an event. One that was asked for has room.
    fn offer(&mut self, event: Event, is_asked: bool) {
        if self.evidence.is_some() {
            return;
        }
        let (at, last) = (event.sequence_id, self.chain.sequence_id);
        self.known = self.known.max(at);
        if !is_asked {
            self.fed = self.fed.max(at);
        }
        if at > last.next() || at > last && !self.is_start_checked {
            self.hold(event);
        } else if at <= last || is_asked || self.has_room(event.payload.len()) {
            self.take(event);
        }
    }

    /// Holds an event behind a gap. The nearest ones have the room.
    fn hold(&mut self, event: Event) {
        if let Some(held) = self.ahead.get(&event.sequence_id) {
            let first = chain_of(held);
            if differs(&first, &event) || held.payload != event.payload {
                let second = Box::new(event);
                self.evidence = Some(Evidence::TwoEvents { first, second });
            }
            return;
        }
        while !self.has_room(event.payload.len()) {
            match self.ahead.last_entry() {
                Some(farthest) if *farthest.key() > event.sequence_id => {
                    self.bytes -= farthest.remove().payload.len();
                }
                _ => return,
            }
        }
        self.bytes += event.payload.len();
        self.ahead.insert(event.sequence_id, event);
    }

    /// Takes the next event, or one that came before.
    fn take(&mut self, event: Event) {
        if event.sequence_id <= self.chain.sequence_id {
            self.compare(event);
            return;
        }
        if let Some(held) = self.ahead.remove(&event.sequence_id) {
            self.bytes -= held.payload.len();
            if differs(&chain_of(&held), &event) || held.payload != event.payload {
                let (first, second) = (chain_of(&held), Box::new(event));
                self.evidence = Some(Evidence::TwoEvents { first, second });
                return;
            }
        }
        let last = self.chain;
        match self.chain.follow(&event) {
            Ok(()) => {
                self.past.push(self.chain);
                self.bytes += event.payload.len();
                self.ready.push_back(event);
            }
            Err(why) => {
                let event = Box::new(event);
                self.evidence = Some(Evidence::Follows { last, event, why });
            }
        }
    }

    fn compare(&mut self, event: Event) {
        let Some(known) = self.past.at(event.sequence_id).copied() else {
            return;
        };
        let is_start = !self.is_start_checked && event.sequence_id == self.chain.sequence_id;
        if event.sequence_id != event.previous_id.next() {
            let (found, previous) = (event.sequence_id, event.previous_id);
            let last = known.sequence_id;
            let why = ChainBreak::Place {
                last,
                found,
                previous,
            };
            let (last, event) = (known, Box::new(event));
            self.evidence = Some(Evidence::Follows { last, event, why });
        } else if differs(&known, &event) {
            let second = Box::new(event);
            self.evidence = Some(Evidence::TwoEvents {
                first: known,
                second,
            });
        } else if is_start {
            self.chain = chain_of(&event);
            self.past = Past::new(self.chain);
            self.is_start_checked = true;
        }
    }

    /// Takes events that were held, as far as there is no gap.
    fn take_held(&mut self) {
        while self.is_start_checked
            && self.evidence.is_none()
            && let Some(event) = self.ahead.first_entry()
            && *event.key() <= self.chain.sequence_id.next()
        {
            let event = event.remove();
            self.bytes -= event.payload.len();
            self.take(event);
        }
    }
}
