//! Whose turn it is: priorities with aging, and deficit round robin below them.

use std::collections::HashMap;

use lockgate_core::{Key, Millis};
use slab::Slab;

use super::{
    PRIORITY_MAX,
    lane::Lane,
    list::{Link, Linked, List, place},
};

/// Ready lanes in the order in which they run.
///
/// A *ring* has the ready lanes of one source and one priority of messages. The ring whose first lane
/// has the highest priority runs; each `aging` that the lane has waited counts as one more. Within a
/// ring, *flows* (keys or tenants) take turns by deficit round robin (M. Shreedhar, G. Varghese,
/// *Efficient Fair Queueing using Deficit Round Robin*, SIGCOMM 1995): each turn a flow may run as many
/// messages as the largest run has, and what it takes beyond its share it owes its next turn. A flow
/// is skipped at most once for each of its runs, so that a pick costs O(1).
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

#[derive(Debug)]
struct Flow {
    ring: u16,
    /// What it is found by, if more than one lane may be in it.
    name: Option<Option<Key>>,
    lanes: List,
    deficit: i64,
    next: Link,
}

/// Which flow a lane belongs to.
pub(super) enum FlowOf<'k> {
    /// One of its own.
    Own,
    /// The one of this name, shared with others.
    Shared(&'k Option<Key>),
}

impl Linked for Flow {
    fn link(&self) -> Link {
        self.next
    }

    fn link_mut(&mut self) -> &mut Link {
        &mut self.next
    }
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
        let flow = match flow_of {
            FlowOf::Own => self.begin_flow(ring, None),
            FlowOf::Shared(name) => match self.by_name.get(&(ring, name.clone())) {
                Some(&flow) => flow,
                None => {
                    let flow = self.begin_flow(ring, Some(name.clone()));
                    self.by_name.insert((ring, name.clone()), flow);
                    flow
                }
            },
        };
        self.flows[flow as usize].lanes.push_back(lanes, lane);
        self.ready += 1;
    }

    fn begin_flow(&mut self, ring: u16, name: Option<Option<Key>>) -> u32 {
        let flow = place(self.flows.insert(Flow {
            ring,
            name,
            lanes: List::default(),
            deficit: self.quantum,
            next: None,
        }));
        let list = &mut self.rings[usize::from(ring)];
        if list.len() == 0 {
            self.busy.push(ring);
        }
        list.push_back(&mut self.flows, flow);
        flow
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
        let mut flow = list.first()?;
        while self.flows[flow as usize].deficit <= 0 {
            self.flows[flow as usize].deficit += self.quantum;
            list.pop_front(&mut self.flows);
            list.push_back(&mut self.flows, flow);
            flow = list.first()?;
        }
        let entry = &mut self.flows[flow as usize];
        let lane = entry.lanes.pop_front(lanes)?;
        self.ready -= 1;
        let count = taken(lanes, lane);
        entry.deficit -= i64::try_from(count).unwrap_or(i64::MAX);
        if entry.lanes.len() == 0 {
            list.pop_front(&mut self.flows);
            let ended = self.flows.remove(flow as usize);
            if let Some(name) = ended.name {
                self.by_name.remove(&(ended.ring, name));
            }
            if list.len() == 0 {
                self.busy.retain(|&busy| busy != ring);
            }
        }
        Some(lane)
    }

    /// The ring whose first lane has the highest priority, its waiting counted.
    fn choose(&self, lanes: &Slab<Lane>, priorities: &[u8], now: Millis) -> Option<u16> {
        if let [only] = self.busy[..] {
            return Some(only);
        }
        let rank = |&ring: &u16| {
            let flow = self.rings[usize::from(ring)].first()?;
            let lane = self.flows[flow as usize].lanes.first()?;
            let source = usize::from(ring) / RINGS;
            let priority = u64::from(priorities[source]) + (usize::from(ring) % RINGS) as u64;
            let waited = now.saturating_sub(lanes[lane as usize].ready_since);
            Some(priority.saturating_mul(self.aging).saturating_add(waited))
        };
        (self.busy.iter().copied()).max_by_key(rank)
    }

    /// Forgets all lanes; none is in a list any more.
    pub(super) fn clear(&mut self, lanes: &mut Slab<Lane>) {
        for (_, flow) in &mut self.flows {
            while flow.lanes.pop_front(lanes).is_some() {}
        }
        self.flows.clear();
        self.by_name.clear();
        self.rings.fill(List::default());
        self.busy.clear();
        self.ready = 0;
    }
}

/// Rings of a source: one for each priority of messages.
const RINGS: usize = PRIORITY_MAX as usize + 1;
