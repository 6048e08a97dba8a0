//! Whose turn it is: priorities with aging, and deficit round robin below them.

use std::collections::HashMap;

use lockgate_core::{Key, Millis};
use slab::Slab;

use super::{
    PRIORITY_MAX,
    lane::Lane,
    list::{List, place},
};

/// Ready lanes in the order in which they run.
///
/// A *ring* has the ready lanes of one source and one priority of messages. The ring whose first lane
/// has the highest priority runs; each `aging` that the lane has waited counts as one more. Within a
/// ring, lanes take turns. Those of a tenant are one *flow*: its first lane stands in the ring, the others
/// wait behind it. Flows take turns by deficit round robin (M. Shreedhar, G. Varghese, *Efficient Fair
/// Queueing using Deficit Round Robin*, SIGCOMM 1995): each turn a flow may run as many messages as the
/// largest run has, and what it takes beyond its share it owes its next turn. A flow is skipped at most
/// once for each of its runs, so that a pick costs O(1).
#[derive(Debug)]
pub(super) struct Turns {
    flows: Slab<Flow>,
    by_name: HashMap<(u16, Option<Key>), u32>,
    rings: Vec<List>,
    /// Rings that are not empty.
    busy: Vec<u16>,
    quantum: i64,
    aging: Millis,
    ready: usize,
}

/// Lanes of which one at a time stands in the ring.
#[derive(Debug)]
struct Flow {
    ring: u16,
    name: Option<Key>,
    /// Those that do not stand in the ring.
    waiting: List,
    deficit: i64,
}

/// Which flow a lane belongs to.
pub(super) enum FlowOf<'k> {
    /// None: it takes turns by itself.
    Own,
    /// The one of this name, shared with others.
    Shared(&'k Option<Key>),
}

impl Turns {
    pub(super) fn new(sources: usize, quantum: usize, aging: Millis) -> Self {
        Self {
            flows: Slab::new(),
            by_name: HashMap::new(),
            rings: vec![List::default(); sources * RINGS],
            busy: Vec::new(),
            quantum: i64::try_from(quantum).unwrap_or(i64::MAX),
            aging,
            ready: 0,
        }
    }

    /// How many lanes are ready.
    pub(super) fn ready(&self) -> usize {
        self.ready
    }

    /// Adds a lane that is ready behind the others of its flow.
    pub(super) fn push(
        &mut self,
        lanes: &mut Slab<Lane>,
        lane: u32,
        priority: u8,
        flow_of: FlowOf<'_>,
    ) {
        let source = lanes[lane as usize].source;
        let ring = u16::try_from(source as usize * RINGS + usize::from(priority.min(PRIORITY_MAX)))
            .expect("there are at most 6,553 sources");
        self.ready += 1;
        if let FlowOf::Shared(name) = flow_of {
            let name = (ring, name.clone());
            if let Some(&flow) = self.by_name.get(&name) {
                return self.flows[flow as usize].waiting.push_back(lanes, lane);
            }
            let flow = place(self.flows.insert(Flow {
                ring,
                name: name.1.clone(),
                waiting: List::default(),
                deficit: self.quantum,
            }));
            self.by_name.insert(name, flow);
            lanes[lane as usize].flow = Some(flow);
        }
        let list = &mut self.rings[usize::from(ring)];
        if list.len() == 0 {
            self.busy.push(ring);
        }
        list.push_back(lanes, lane);
    }

    /// Takes the lane whose turn it is. `taken` says how many of its messages run.
    pub(super) fn pop(
        &mut self,
        lanes: &mut Slab<Lane>,
        priorities: &[u8],
        now: Millis,
        taken: impl FnOnce(&mut Slab<Lane>, u32) -> usize,
    ) -> Option<u32> {
        let ring = self.choose(lanes, priorities, now)?;
        let list = &mut self.rings[usize::from(ring)];
        let lane = loop {
            let lane = list.pop_front(lanes)?;
            match lanes[lane as usize].flow {
                Some(flow) if self.flows[flow as usize].deficit <= 0 => {
                    self.flows[flow as usize].deficit += self.quantum;
                    list.push_back(lanes, lane);
                }
                _ => break lane,
            }
        };
        self.ready -= 1;
        let count = taken(lanes, lane);
        if let Some(at) = lanes[lane as usize].flow.take() {
            let flow = &mut self.flows[at as usize];
            flow.deficit -= i64::try_from(count).unwrap_or(i64::MAX);
            if let Some(next) = flow.waiting.pop_front(lanes) {
                lanes[next as usize].flow = Some(at);
                list.push_front(lanes, next);
            } else {
                let ended = self.flows.remove(at as usize);
                self.by_name.remove(&(ended.ring, ended.name));
            }
        }
        if list.len() == 0 {
            self.busy.retain(|&busy| busy != ring);
        }
        Some(lane)
    }

    /// The ring whose first lane has the highest priority, its waiting counted.
    fn choose(&self, lanes: &Slab<Lane>, priorities: &[u8], now: Millis) -> Option<u16> {
        if let [only] = self.busy[..] {
            return Some(only);
        }
        let rank = |&ring: &u16| {
            let lane = self.rings[usize::from(ring)].first()?;
            let source = usize::from(ring) / RINGS;
            let priority = u128::from(priorities[source]) + (usize::from(ring) % RINGS) as u128;
            let waited = now.saturating_sub(lanes[lane as usize].ready_since);
            Some(priority * u128::from(self.aging) + u128::from(waited))
        };
        (self.busy.iter().copied()).max_by_key(rank)
    }

    /// Forgets all lanes; none is in a list any more.
    pub(super) fn clear(&mut self, lanes: &mut Slab<Lane>) {
        let waiting = self.flows.iter_mut().map(|(_, flow)| &mut flow.waiting);
        for list in self.rings.iter_mut().chain(waiting) {
            while let Some(lane) = list.pop_front(lanes) {
                lanes[lane as usize].flow = None;
            }
        }
        self.flows.clear();
        self.by_name.clear();
        self.busy.clear();
        self.ready = 0;
    }
}

/// Rings of a source: one for each priority of messages.
const RINGS: usize = PRIORITY_MAX as usize + 1;
