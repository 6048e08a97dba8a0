//! Which item is taken next, and when: the items of a queue as this process knows them, in their order.
//!
//! - What is listed takes the place of what was known, and what appears or vanishes since changes it; an item that is in hand stays in hand until it is let go.
//! - An item is given out at most once at a time, never before it is due, and never while it rests: it has failed here, or
//!   somebody else holds it.
//! - When nothing can be taken, the next wake is the earliest time at which something can. An item that is held by others,
//!   or a name that is no item, never postpones another one.
//!
//! It has no clock and no I/O.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap, HashSet},
};

use super::names::{self, Kind};

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Claim the item of that name.
    Claim(String),
    /// Nothing before that time, in milliseconds since 1970, unless something changes.
    WaitUntil(i64),
    /// Nothing until something changes.
    Wait,
}

/// The items of a queue.
#[derive(Debug)]
pub struct Schedule {
    kind: Kind,
    items: BTreeSet<Entry>,
    in_hand: HashSet<String>,
    /// Until when items rest.
    resting: HashMap<String, i64>,
    /// How often items have failed here, of kinds whose names do not say it.
    failed: HashMap<String, u32>,
    /// How many items are being put again.
    requeues: usize,
    /// What has appeared meanwhile.
    late: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    kind: Kind,
    name: String,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        names::order(self.kind, &self.name, &other.name)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Schedule {
    /// One without items.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            items: BTreeSet::new(),
            in_hand: HashSet::new(),
            resting: HashMap::new(),
            failed: HashMap::new(),
            requeues: 0,
            late: Vec::new(),
        }
    }

    /// These are the children of the queue's node now.
    pub fn listed(&mut self, children: impl IntoIterator<Item = String>) {
        let kind = self.kind;
        let children = children.into_iter().filter(|name| names::is_item(name));
        self.items = children.map(|name| Entry { kind, name }).collect();
        let items = &self.items;
        let has = |name: &String| {
            let name = name.clone();
            items.contains(&Entry { kind, name })
        };
        self.resting.retain(|name, _| has(name));
        let in_hand = &self.in_hand;
        self.failed
            .retain(|name, _| in_hand.contains(name) || has(name));
    }

    /// That child is there since now.
    pub fn appeared(&mut self, name: &str) {
        if names::is_item(name) {
            // It may be an item that rests as soon as its new name is known; the name of a delayed one says until when.
            if self.requeues > 0 && self.kind != Kind::Delay {
                return self.late.push(name.to_owned());
            }
            let (kind, name) = (self.kind, name.to_owned());
            self.items.insert(Entry { kind, name });
        }
    }

    /// That child is not there any more. If it is in hand, whoever has it lets it go.
    pub fn vanished(&mut self, name: &str) {
        let (kind, name) = (self.kind, name.to_owned());
        self.late.retain(|late| *late != name);
        self.resting.remove(&name);
        if !self.in_hand.contains(&name) {
            self.failed.remove(&name);
        }
        self.items.remove(&Entry { kind, name });
    }

    /// An item in hand is being put again: ZooKeeper tells of its new node before it says that this was done.
    pub fn requeue_begins(&mut self) {
        self.requeues += 1;
    }

    /// It is put again, or not.
    pub fn requeue_ends(&mut self) {
        self.requeues = self.requeues.saturating_sub(1);
        if self.requeues == 0 {
            for late in std::mem::take(&mut self.late) {
                self.appeared(&late);
            }
        }
    }

    /// Takes an item in hand out of its turn. False: it is in hand already.
    pub fn claims(&mut self, name: &str) -> bool {
        self.in_hand.insert(name.to_owned())
    }

    /// How many items could be taken at that time.
    #[must_use]
    pub fn due(&self, now: i64) -> usize {
        let is_due = |entry: &&Entry| self.kind != Kind::Delay || names::due(&entry.name) <= now;
        let due = self.items.iter().take_while(is_due);
        due.filter(|Entry { name, .. }| {
            let rests = self.resting.get(name).is_some_and(|until| *until > now);
            !rests && !self.in_hand.contains(name)
        })
        .count()
    }

    /// What to do at that time. An item to claim is in hand from now on.
    pub fn next(&mut self, now: i64) -> Next {
        let mut wake = None;
        for Entry { name, .. } in &self.items {
            if self.in_hand.contains(name) {
                continue;
            }
            let due = match self.kind {
                Kind::Delay => names::due(name),
                _ => 0,
            };
            let rests = self.resting.get(name).copied();
            let free = rests.map_or(due, |until| until.max(due));
            if free <= now {
                self.in_hand.insert(name.clone());
                return Next::Claim(name.clone());
            }
            wake = Some(wake.map_or(free, |wake: i64| wake.min(free)));
            // Those behind it are due later still.
            if self.kind == Kind::Delay && due > now {
                break;
            }
        }
        wake.map_or(Next::Wait, Next::WaitUntil)
    }

    /// Whether the item is in hand.
    #[must_use]
    pub fn holds(&self, name: &str) -> bool {
        self.in_hand.contains(name)
    }

    /// The item in hand is gone: done, or taken by somebody else.
    pub fn gone(&mut self, name: &str) {
        let (kind, name) = (self.kind, name.to_owned());
        self.in_hand.remove(&name);
        self.resting.remove(&name);
        self.failed.remove(&name);
        self.items.remove(&Entry { kind, name });
    }

    /// The item in hand is let go, and rests until that time: somebody else holds it, or nobody knows.
    pub fn rests(&mut self, name: &str, until: i64) {
        self.in_hand.remove(name);
        let (kind, name) = (self.kind, name.to_owned());
        let entry = Entry { kind, name };
        if self.items.contains(&entry) {
            self.resting.insert(entry.name, until);
        } else {
            self.failed.remove(&entry.name);
        }
    }

    /// The item in hand has failed, and is put again under that name.
    pub fn again(&mut self, name: &str, new: String, attempts: u32, until: i64) {
        let kind = self.kind;
        self.gone(name);
        if kind != Kind::Delay {
            self.resting.insert(new.clone(), until);
            self.failed.insert(new.clone(), attempts);
        }
        self.items.insert(Entry { kind, name: new });
    }

    /// How often an item has failed: of a delay queue as its name says it, else in this process.
    #[must_use]
    pub fn attempts(&self, name: &str) -> u32 {
        match self.kind {
            Kind::Delay => names::attempts(name),
            _ => self.failed.get(name).copied().unwrap_or(0),
        }
    }

    /// All that is known, due or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// What is in hand.
    #[must_use]
    pub fn in_hand(&self) -> usize {
        self.in_hand.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Kind, children: &[&str]) -> Schedule {
        let mut schedule = Schedule::new(kind);
        schedule.listed(children.iter().map(|name| (*name).to_owned()));
        schedule
    }

    fn claim(name: &str) -> Next {
        Next::Claim(name.to_owned())
    }

    #[test]
    fn no_item_is_given_before_it_is_due_nor_twice() {
        let mut delay = of(Kind::Delay, &["queue-|14|2", "queue-|0A|1", "foo", "0"]);
        assert_eq!(delay.len(), 2);
        assert_eq!(delay.next(9), Next::WaitUntil(10));
        assert_eq!(delay.next(10), claim("queue-|0A|1"));
        assert_eq!(delay.next(10), Next::WaitUntil(20));
        // It is listed still: its deletion is under way.
        delay.listed(["queue-|0A|1".to_owned(), "queue-|14|2".to_owned()]);
        assert_eq!(delay.next(10), Next::WaitUntil(20));
        delay.gone("queue-|0A|1");
        assert_eq!(delay.next(20), claim("queue-|14|2"));
        assert_eq!((delay.next(20), delay.in_hand()), (Next::Wait, 1));
    }

    #[test]
    fn an_item_that_others_hold_postpones_none() {
        let mut delay = of(Kind::Delay, &["queue-|0A|1", "queue-|14|2"]);
        assert_eq!(delay.next(10), claim("queue-|0A|1"));
        delay.rests("queue-|0A|1", 500);
        assert_eq!(delay.next(10), Next::WaitUntil(20));
        assert_eq!(delay.next(20), claim("queue-|14|2"));
        assert_eq!(delay.next(20), Next::WaitUntil(500));
        assert_eq!(delay.next(500), claim("queue-|0A|1"));
    }

    #[test]
    fn what_appears_and_vanishes_is_as_if_it_were_listed() {
        let mut delay = of(Kind::Delay, &["queue-|14|1"]);
        delay.appeared("queue-|0A|2");
        delay.appeared("foo");
        assert_eq!((delay.len(), delay.due(9), delay.due(10)), (2, 0, 1));
        assert_eq!(delay.next(30), claim("queue-|0A|2"));
        assert!(!delay.claims("queue-|0A|2") && delay.claims("queue-|14|1"));
        assert_eq!((delay.due(30), delay.next(30)), (0, Next::Wait));
        delay.vanished("queue-|14|1");
        delay.vanished("queue-|0A|2");
        assert_eq!((delay.len(), delay.in_hand()), (0, 2));
        delay.rests("queue-|14|1", 100);
        delay.gone("queue-|0A|2");
        assert_eq!((delay.next(100), delay.in_hand()), (Next::Wait, 0));
    }

    #[test]
    fn an_item_that_is_put_again_rests_though_its_node_is_told_first() {
        let mut plain = of(Kind::Plain, &["queue-1"]);
        assert_eq!(plain.next(0), claim("queue-1"));
        plain.requeue_begins();
        for name in ["queue-2", "queue-3", "queue-4"] {
            plain.appeared(name);
        }
        plain.vanished("queue-4");
        assert_eq!(plain.next(0), Next::Wait);
        plain.again("queue-1", "queue-2".to_owned(), 1, 100);
        plain.requeue_ends();
        assert_eq!(plain.next(0), claim("queue-3"));
        assert_eq!(plain.next(0), Next::WaitUntil(100));
        assert_eq!((plain.len(), plain.attempts("queue-2")), (2, 1));
    }

    #[test]
    fn an_earlier_item_that_comes_later_is_next() {
        let mut delay = of(Kind::Delay, &["queue-|14|1", "queue-|15|2"]);
        assert_eq!(delay.next(30), claim("queue-|14|1"));
        delay.listed(["queue-|15|2", "queue-|0A|3"].map(str::to_owned));
        assert_eq!(delay.next(30), claim("queue-|0A|3"));
    }

    #[test]
    fn an_item_that_has_failed_rests_and_its_attempts_are_counted() {
        let mut plain = of(Kind::Plain, &["queue-1", "queue-2"]);
        assert_eq!(plain.next(0), claim("queue-1"));
        assert_eq!(plain.attempts("queue-1"), 0);
        plain.again("queue-1", "queue-3".to_owned(), 1, 100);
        assert_eq!(plain.next(0), claim("queue-2"));
        plain.gone("queue-2");
        assert_eq!(plain.next(99), Next::WaitUntil(100));
        assert_eq!(plain.next(100), claim("queue-3"));
        assert_eq!(plain.attempts("queue-3"), 1);
        // Somebody else has taken it meanwhile: nothing is kept.
        plain.listed([]);
        plain.gone("queue-3");
        assert!(plain.is_empty() && plain.failed.is_empty() && plain.resting.is_empty());

        let mut delay = of(Kind::Delay, &["queue-|0A|1"]);
        assert_eq!(delay.next(10), claim("queue-|0A|1"));
        delay.again("queue-|0A|1", "queue-a1|64|2".to_owned(), 1, 100);
        assert_eq!(delay.next(99), Next::WaitUntil(100));
        assert_eq!(delay.next(100), claim("queue-a1|64|2"));
        assert_eq!(delay.attempts("queue-a1|64|2"), 1);
    }
}
