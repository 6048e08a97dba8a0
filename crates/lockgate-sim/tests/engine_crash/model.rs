//! What is known of the shard from its answers alone.

use std::collections::{BTreeMap, HashMap};

use lockgate_core::{LeaseToken, Sequence, WallTime};
use lockgate_machine::Sent;

/// What must be true, as far as answers tell.
#[derive(Default)]
pub(crate) struct Model {
    /// Every message ever given to a send, by the number in its body.
    pub(crate) messages: BTreeMap<u64, Known>,
    /// The answer that a unique id was first given, if it is certain to be remembered.
    pub(crate) unique: HashMap<(&'static str, u64), Sent>,
    pub(crate) leases: HashMap<LeaseToken, Lease>,
    pub(crate) delivered: u64,
    pub(crate) purges: HashMap<&'static str, u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) queue: &'static str,
    pub(crate) key: Option<u64>,
    pub(crate) unique: Option<u64>,
    pub(crate) state: Existence,
    /// Its place in its key's order, once it is known.
    pub(crate) order: Option<(WallTime, Sequence)>,
    /// When it was given to the shard, or when it is due if that is later.
    pub(crate) enters: WallTime,
    /// It has been delivered.
    pub(crate) seen: bool,
    /// It was under a purge while nobody knew whether it is there.
    pub(crate) purged: bool,
    /// An acknowledgement was answered.
    pub(crate) acked: bool,
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
