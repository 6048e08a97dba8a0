//! The states of keys, between handlers and sources.
//!
//! The messages of a key that one receive brings share a [`Cell`]: what handlers read, and the version that the next
//! write replaces. A run changes what is read at once. When it has ended, the changes of the messages that succeeded
//! become one [`Write`], which goes out with their acknowledgements, all or nothing; what the others changed is undone.
//!
//! # Invariants
//! - A write goes out only together with the acknowledgements of all messages that it covers.
//! - A run that has ended changes nothing any more.
//! - Behind a write that was refused no other one of the same cell goes out, and no run begins: it would read what was
//!   never written.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
};

use bytes::Bytes;
use lockgate_core::{
    Fate, Key, KeyState, KeyStateWrite, Leased, RECORD_BYTES_MAX, RecordVersion, Replaces,
    Settlement, TransportError,
};
use tokio::task::JoinSet;

use super::source::{AnySource, Call, HeldMessage};
use crate::sync::{Mutex, MutexGuard};

/// Settlements of one call, so that not too many states are written at the same time.
pub(super) const CALLS_MAX: usize = 16;

/// Why the state of a key cannot be read or set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// There is none to be had.
    #[error("the worker was not started with key_states, or the message has no key")]
    None,
    /// It is not what is expected.
    #[error("the state of the key is not the JSON that is expected")]
    Read(#[source] serde_json::Error),
    /// It is no JSON.
    #[error("the new state of the key cannot be written as JSON")]
    Write(#[source] serde_json::Error),
    /// It is too large.
    #[error("the new state of the key has {bytes} bytes, and {RECORD_BYTES_MAX} are the most")]
    TooLarge {
        /// What it has.
        bytes: usize,
    },
    /// The run has ended or is cancelled: what it sets counts nothing.
    #[error("the run of the message has ended")]
    NotCurrent,
}

/// The state of a key, as the messages of one receive have it.
#[derive(Debug)]
struct Cell(Mutex<CellState>);

#[derive(Debug)]
struct CellState {
    /// What a handler reads.
    current: Option<Bytes>,
    /// The same without what the run under way has changed.
    kept: Option<Bytes>,
    /// What the next write replaces. `Err`: an earlier one was refused, so none goes out.
    version: Result<Option<RecordVersion>, ()>,
    /// The run under way; other numbers are those of runs that have ended.
    turn: u64,
}

/// What a lease has of its key's state.
#[derive(Debug)]
pub(crate) struct LeaseState {
    cell: Arc<Cell>,
    /// Bytes of the state that came with this lease.
    bytes: u64,
    /// What the run under way has set with this message.
    draft: Mutex<Option<Option<Bytes>>>,
    /// What goes out with its acknowledgement.
    write: Mutex<Option<Arc<Write>>>,
}

/// A state to be written with the acknowledgements of some messages.
#[derive(Debug)]
struct Write {
    value: Option<Bytes>,
    /// How many messages.
    covers: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One for each message with a key; those of one key share their cell.
pub(super) fn states_of<Receipt>(received: &mut [Leased<Receipt>]) -> Vec<Option<LeaseState>> {
    let mut cells: HashMap<Key, Arc<Cell>> = HashMap::new();
    let states = received.iter_mut().map(|leased| {
        let (state, key) = (leased.state.take(), leased.message.key.as_ref()?);
        let bytes = state.as_ref().map_or(0, |state| state.value.len() as u64);
        let cell = cells.entry(key.clone());
        let cell = cell.or_insert_with(|| Arc::new(Cell::new(state))).clone();
        Some(LeaseState {
            cell,
            bytes,
            draft: Mutex::new(None),
            write: Mutex::new(None),
        })
    });
    states.collect()
}

impl Cell {
    fn new(state: Option<KeyState>) -> Self {
        let (value, version) = match state {
            Some(state) => (Some(state.value), Some(state.version)),
            None => (None, None),
        };
        Self(Mutex::new(CellState {
            current: value.clone(),
            kept: value,
            version: Ok(version),
            turn: 0,
        }))
    }
}

impl LeaseState {
    /// A run with the message begins; returns its number.
    pub(super) fn begin(&self) -> u64 {
        *lock(&self.draft) = None;
        lock(&self.cell.0).turn
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn read(&self) -> Option<Bytes> {
        lock(&self.cell.0).current.clone()
    }

    pub(crate) fn set(&self, turn: u64, value: Option<Bytes>) -> Result<(), StateError> {
        let bytes = value.as_ref().map_or(0, Bytes::len);
        if bytes > RECORD_BYTES_MAX {
            return Err(StateError::TooLarge { bytes });
        }
        let mut cell = lock(&self.cell.0);
        if cell.turn != turn {
            return Err(StateError::NotCurrent);
        }
        cell.current.clone_from(&value);
        *lock(&self.draft) = Some(value);
        Ok(())
    }
}

/// Whether what the message's handler would read was refused.
pub(super) fn is_lost(held: &HeldMessage) -> bool {
    let state = held.lease().state.as_ref();
    state.is_some_and(|state| lock(&state.cell.0).version.is_err())
}

fn states(held: &[HeldMessage]) -> impl Iterator<Item = &LeaseState> {
    held.iter().filter_map(|held| held.lease().state.as_ref())
}

/// A run of these messages has ended, and the first `done` succeeded.
pub(super) fn end(held: &[HeldMessage], done: usize) {
    let (succeeded, others) = held.split_at(done.min(held.len()));
    let mut last = None;
    for state in states(succeeded) {
        last = lock(&state.draft).take().or(last);
    }
    for state in states(others) {
        *lock(&state.draft) = None;
    }
    let write = last.map(|value| {
        let covers = succeeded.len();
        Arc::new(Write { value, covers })
    });
    for state in states(held) {
        let mut cell = lock(&state.cell.0);
        if let Some(write) = &write {
            cell.kept.clone_from(&write.value);
        }
        cell.current = cell.kept.clone();
        cell.turn += 1;
    }
    if let Some(write) = write {
        for state in states(succeeded) {
            *lock(&state.write) = Some(write.clone());
        }
    }
}

/// What is settled together, with the places of the answers.
struct Part {
    places: Vec<usize>,
    settles: Vec<(HeldMessage, Settlement)>,
    write: Option<Arc<Write>>,
}

/// Settles, each key's messages in order and those with a new state together with it.
pub(super) fn settle(
    source: Arc<dyn AnySource>,
    settles: Vec<(HeldMessage, Settlement)>,
) -> Call<Vec<Result<(), TransportError>>> {
    let count = settles.len();
    let lanes = in_lanes(settles);
    Box::pin(async move {
        let mut calls = JoinSet::new();
        for lane in lanes {
            calls.spawn(settle_lane(source.clone(), lane));
        }
        let unanswered = || Err(TransportError::new(Fate::Unknown, "the call was dropped"));
        let mut results: Vec<_> = (0..count).map(|_| unanswered()).collect();
        while let Some(lane) = calls.join_next().await {
            for (place, result) in lane.unwrap_or_default() {
                results[place] = result;
            }
        }
        results
    })
}

/// The parts of each lane, in order. What has no new state in its whole lane is one lane.
fn in_lanes(settles: Vec<(HeldMessage, Settlement)>) -> Vec<Vec<Part>> {
    let mut lanes: Vec<(*const Cell, Vec<Part>)> = Vec::new();
    for (place, (held, how)) in settles.into_iter().enumerate() {
        let state = held.lease().state.as_ref();
        let cell = state.map_or(std::ptr::null(), |state| Arc::as_ptr(&state.cell));
        let write = state.and_then(|state| lock(&state.write).clone());
        let write = write.filter(|_| how == Settlement::Ack);
        if lanes.last().is_none_or(|(last, _)| *last != cell) {
            lanes.push((cell, Vec::new()));
        }
        let parts = &mut lanes.last_mut().expect("it was just added").1;
        let is_same = |part: &&mut Part| match (&part.write, &write) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        match parts.last_mut().filter(is_same) {
            Some(part) => {
                part.places.push(place);
                part.settles.push((held, how));
            }
            None => parts.push(Part {
                places: vec![place],
                settles: vec![(held, how)],
                write,
            }),
        }
    }
    let (plain, with_states): (Vec<_>, Vec<_>) = lanes
        .into_iter()
        .map(|(_, parts)| parts)
        .partition(|parts| parts.iter().all(|part| part.write.is_none()));
    let plain = plain.into_iter().flatten().reduce(|mut all, part| {
        all.places.extend(part.places);
        all.settles.extend(part.settles);
        all
    });
    let plain = plain.map(|part| vec![part]);
    plain.into_iter().chain(with_states).collect()
}

async fn settle_lane(
    source: Arc<dyn AnySource>,
    parts: Vec<Part>,
) -> Vec<(usize, Result<(), TransportError>)> {
    let mut results = Vec::new();
    let mut failed: Option<TransportError> = None;
    for Part {
        places,
        settles,
        write,
    } in parts
    {
        let answers = match (&failed, write) {
            // What is behind it waits for it.
            (Some(error), Some(_)) if error.fate == Fate::Retry || error.fate == Fate::Unknown => {
                let error = TransportError::new(Fate::Retry, "what is before it is not settled");
                vec![Err(error); places.len()]
            }
            (_, Some(write)) => {
                let answer = write_with(&source, settles, &write).await;
                vec![answer; places.len()]
            }
            (_, None) => source.clone().settle(settles).await,
        };
        failed = answers
            .iter()
            .find_map(|answer| answer.as_ref().err().cloned());
        results.extend(places.into_iter().zip(answers));
    }
    results
}

/// Acknowledges all that the write covers together with it.
async fn write_with(
    source: &Arc<dyn AnySource>,
    settles: Vec<(HeldMessage, Settlement)>,
    write: &Write,
) -> Result<(), TransportError> {
    if settles.len() < write.covers {
        // The others come with the next call, as they are behind these.
        let error = "not all messages of the state are settled together";
        return Err(TransportError::new(Fate::Retry, error));
    }
    let last = settles
        .last()
        .and_then(|(held, _)| held.lease().state.as_ref());
    let Some(cell) = last.map(|state| state.cell.clone()) else {
        return Err(TransportError::new(Fate::Refused, StateError::None));
    };
    let version = lock(&cell.0).version;
    let Ok(version) = version else {
        let error = "an earlier state of the key was not written";
        return Err(TransportError::new(Fate::Refused, error));
    };
    let back: Vec<HeldMessage> = settles.iter().map(|(held, _)| held.clone()).collect();
    let state = KeyStateWrite {
        replaces: Replaces::Version(version),
        value: write.value.clone(),
    };
    let result = source.clone().settle_with_state(settles, state).await;
    match result {
        Ok(version) => {
            lock(&cell.0).version = Ok(version);
            Ok(())
        }
        Err(error) => {
            if !matches!(error.fate, Fate::Retry | Fate::Unknown) {
                lock(&cell.0).version = Err(());
            }
            if error.fate == Fate::Refused {
                // Somebody else has written the state: the messages are tried again with that, at once. The lease of
                // the first of them gives back the others of its key.
                let nack = |held| {
                    let delay = std::time::Duration::ZERO;
                    let reason = None;
                    (held, Settlement::Nack { delay, reason })
                };
                let back = back.into_iter().take(1).map(nack);
                drop(source.clone().settle(back.collect()).await);
            }
            Err(error)
        }
    }
}
