//! The value of a state record, byte by byte.
//!
//! All numbers are big-endian.
//!
//! ```text
//! format 1       u8
//! born           writer u64, call u64
//! key            accepted u64, covered u64, covered_by u64, started u64, failures u32
//! recent         count u8, each: writer u64, call u64, trigger u64
//! parts          u8: 1 there is a run, 2 something waits
//! run            token u64, upto u64, batch
//! waiting        batch
//! batch          triggers u64, count u32, each: length u32, bytes
//! ```

use std::{collections::VecDeque, sync::Arc};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::{
    super::{Batch, KeyState, Token, machine::Running},
    protocol::{Op, RECENT_MAX, SharedState},
};

const FORMAT: u8 = 1;
const RUNS: u8 = 1;
const WAITS: u8 = 2;

/// Bytes of a state without its batches, with all parts.
const FIXED: usize = 1 + 16 + 36 + 1 + RECENT_MAX * 24 + 1 + 16;

/// At most how many bytes [`encode`] makes of it.
pub(super) fn encoded_len(state: &SharedState) -> usize {
    let running = state.key.running_batch().map(|batch| &**batch);
    let batches = running.into_iter().chain(state.key.waiting());
    let batches = batches.map(|batch| {
        let payloads = batch.payloads().iter();
        12 + payloads.map(|payload| 4 + payload.len()).sum::<usize>()
    });
    FIXED + batches.sum::<usize>()
}

pub(super) fn encode(state: &SharedState) -> Bytes {
    let key = &state.key;
    let mut to = BytesMut::with_capacity(encoded_len(state));
    to.put_u8(FORMAT);
    put_op(&mut to, state.born);
    for number in [key.accepted, key.covered, key.covered_by.0, key.started.0] {
        to.put_u64(number);
    }
    to.put_u32(key.failures);
    to.put_u8(u8::try_from(state.recent.len()).unwrap_or(u8::MAX));
    for (op, trigger) in &state.recent {
        put_op(&mut to, *op);
        to.put_u64(*trigger);
    }
    let runs = key.running.as_ref().map_or(0, |_| RUNS);
    to.put_u8(runs | key.waiting.as_ref().map_or(0, |_| WAITS));
    if let Some(run) = &key.running {
        to.put_u64(run.token.0);
        to.put_u64(run.upto);
        put_batch(&mut to, &run.batch);
    }
    if let Some(batch) = &key.waiting {
        put_batch(&mut to, batch);
    }
    to.freeze()
}

fn put_op(to: &mut BytesMut, op: Op) {
    to.put_u64(op.writer);
    to.put_u64(op.call);
}

fn put_batch(to: &mut BytesMut, batch: &Batch<Bytes>) {
    // A record has fewer bytes than these numbers can say.
    let number = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    to.put_u64(batch.triggers());
    to.put_u32(number(batch.payloads().len()));
    for payload in batch.payloads() {
        to.put_u32(number(payload.len()));
        to.put_slice(payload);
    }
}

/// The state of these bytes. `None`: they are no state.
pub(super) fn decode(mut from: Bytes) -> Option<SharedState> {
    let from = &mut from;
    if from.try_get_u8().ok()? != FORMAT {
        return None;
    }
    let born = op(from)?;
    let mut key = KeyState {
        accepted: number(from)?,
        covered: number(from)?,
        covered_by: Token(number(from)?),
        started: Token(number(from)?),
        failures: from.try_get_u32().ok()?,
        running: None,
        waiting: None,
    };
    let recent = from.try_get_u8().ok()?;
    let recent = (0..recent).map(|_| Some((op(from)?, number(from)?)));
    let recent: VecDeque<_> = recent.collect::<Option<_>>()?;
    let parts = from.try_get_u8().ok()?;
    if parts & RUNS != 0 {
        key.running = Some(Running {
            token: Token(number(from)?),
            upto: number(from)?,
            batch: Arc::new(batch(from)?),
            until: None,
        });
    }
    if parts & WAITS != 0 {
        key.waiting = Some(batch(from)?);
    }
    let upto = key.running.as_ref().map_or(key.covered, |run| run.upto);
    let is_whole = from.is_empty() && parts <= RUNS | WAITS && recent.len() <= RECENT_MAX;
    let is_ordered = key.covered <= upto && upto <= key.accepted;
    let is_above = key
        .running
        .as_ref()
        .is_none_or(|run| run.token <= key.started);
    (is_whole && is_ordered && is_above).then_some(SharedState { born, key, recent })
}

/// What counts something. Nothing has counted so far that one more is too many.
fn number(from: &mut Bytes) -> Option<u64> {
    let number = from.try_get_u64().ok()?;
    (number <= u64::MAX / 4).then_some(number)
}

fn op(from: &mut Bytes) -> Option<Op> {
    Some(Op {
        writer: from.try_get_u64().ok()?,
        call: from.try_get_u64().ok()?,
    })
}

fn batch(from: &mut Bytes) -> Option<Batch<Bytes>> {
    let triggers = number(from)?;
    let count = from.try_get_u32().ok()?;
    let payloads = (0..count).map(|_| {
        let len = from.try_get_u32().ok()? as usize;
        (len <= from.len()).then(|| from.split_to(len))
    });
    // An iterator of options has no lower bound, so nothing is reserved for a count that is a lie.
    let payloads = payloads.collect::<Option<_>>()?;
    Some(Batch::from_parts(payloads, triggers))
}

/// What a fuzzer gives its bytes to.
pub fn fuzz(bytes: &[u8]) -> Result<(), String> {
    let state = decode(Bytes::copy_from_slice(bytes)).ok_or("no state")?;
    let again = encode(&state);
    assert!(again.len() <= encoded_len(&state), "longer than it says");
    assert_eq!(again, bytes, "encoded again");
    Ok(())
}
