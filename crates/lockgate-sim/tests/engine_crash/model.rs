//! What is known of the shard from its answers alone.

use std::collections::{BTreeMap, HashMap};

use lockgate_core::{LeaseToken, MessageId, Sequence, WallTime};
use lockgate_machine::Sent;

use crate::states::States;
use crate::world::{DEAD, PLAIN, SKIPPED, SKIPPING};
use crate::{ledgers::KnownLedger, producers::Spools, records::Records};

/// What must be true, as far as answers tell.
#[derive(Clone, Default)]
pub(crate) struct Model {
    /// Every message ever given to a send, by the number in its body.
    pub(crate) messages: BTreeMap<u64, Known>,
    /// The answer that a unique id was first given, if it is certain to be remembered.
    pub(crate) unique: HashMap<(&'static str, u64), Sent>,
    pub(crate) leases: HashMap<LeaseToken, Lease>,
    pub(crate) delivered: u64,
    /// How often all leases of a queue became uncertain: it was purged, or deleted.
    pub(crate) cuts: HashMap<&'static str, u64>,
    pub(crate) records: Records,
    pub(crate) ledger: KnownLedger,
    pub(crate) spools: Spools,
    pub(crate) states: States,
}

#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) queue: &'static str,
    pub(crate) key: Option<u64>,
    pub(crate) unique: Option<u64>,
    pub(crate) state: Existence,
    /// The id that its send was answered with.
    pub(crate) id: Option<MessageId>,
    /// Its place in its key's order, once it is known.
    pub(crate) order: Option<(WallTime, Sequence)>,
    /// When it was given to the shard, or when it is due if that is later.
    pub(crate) enters: WallTime,
    /// It has been delivered.
    pub(crate) seen: bool,
    /// Something that may remove it was asked for while nobody knew whether it is there.
    pub(crate) doubtful: bool,
    /// Its end, an acknowledgement or a cancellation, was answered.
    pub(crate) ended: bool,
    /// Acknowledgements without an answer so far.
    pub(crate) acks_asked: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existence {
    /// Nobody knows whether it was accepted, or whether it is still there.
    Perhaps,
    /// Accepted, and not gone.
    There,
    /// Gone for good, or never there.
    Gone,
}

#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) message: u64,
    pub(crate) queue: &'static str,
    pub(crate) holder: u64,
    /// Until when the holder may count on it, in real time.
    pub(crate) until_ms: u64,
}

/// The queue whose dead letters this one takes.
fn source(queue: &str) -> Option<&'static str> {
    match queue {
        DEAD => Some(PLAIN),
        SKIPPED => Some(SKIPPING),
        _ => None,
    }
}

/// Whether what was sent to the queue is there or nowhere.
pub(crate) fn has_no_dead_letters(queue: &str) -> bool {
    [DEAD, SKIPPED]
        .iter()
        .all(|dead| source(dead) != Some(queue))
}

impl Known {
    /// It may be gone by what was asked for, and nothing that was asked before tells otherwise.
    pub(crate) fn doubt(&mut self) {
        self.doubtful = true;
        if self.state == Existence::There {
            self.state = Existence::Perhaps;
        }
    }
}

impl Model {
    /// Something was asked for that may remove messages of the queue, and leases with them.
    pub(crate) fn doubt(&mut self, queue: &'static str, key: Option<u64>) {
        let sources = [Some(queue), source(queue)];
        for known in self.messages.values_mut() {
            if sources.contains(&Some(known.queue)) && (key.is_none() || known.key == key) {
                known.doubt();
            }
        }
        let messages = &self.messages;
        for lease in self.leases.values_mut() {
            if lease.queue == queue && (key.is_none() || messages[&lease.message].key == key) {
                lease.until_ms = 0;
            }
        }
        *self.cuts.entry(queue).or_default() += 1;
    }

    /// Records were damaged: nothing that was answered is certain any more, but that nothing comes
    /// from nowhere.
    pub(crate) fn forgive(&mut self) {
        for known in self.messages.values_mut() {
            known.state = Existence::Perhaps;
            known.order = None;
            known.doubtful = true;
            known.ended = false;
        }
        self.unique.clear();
        self.records.clear();
        self.ledger.forgive();
        self.spools.clear();
        self.states.forgive();
        self.leases.clear();
    }

    /// The message is dropped, whatever is on the disk: it may have been a single read that went wrong.
    pub(crate) fn taken_for_damaged(&mut self, id: MessageId) {
        let is_it = |known: &&mut Known| known.id == Some(id);
        for known in self.messages.values_mut().filter(is_it) {
            known.state = Existence::Perhaps;
            known.order = None;
            known.doubtful = true;
        }
    }

    pub(crate) fn cuts(&self, queue: &str) -> u64 {
        self.cuts.get(queue).copied().unwrap_or(0)
    }

    pub(crate) fn known(&mut self, message: u64) -> &mut Known {
        self.messages
            .get_mut(&message)
            .expect("every number was sent")
    }
}
