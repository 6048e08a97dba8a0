//! Reading a request's body, within what it may take.

use std::{
    mem,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::{connection::Client, refusal::Refusal};

/// Bytes of each body that the budget does not count: enough for any settling request.
const FREE_BYTES: usize = 16 << 10;

/// What is set aside at once for a body of declared length. A client must send before it gets more.
const FIRST_CAPACITY: usize = 64 << 10;

/// Memory for all bodies of a server.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    max: usize,
    used: AtomicUsize,
}

/// One body's part of the [`BodyBudget`]; given back when dropped.
#[derive(Debug)]
pub(crate) struct BodyShare<'a> {
    budget: &'a BodyBudget,
    bytes: usize,
}

impl BodyBudget {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            used: AtomicUsize::new(0),
        }
    }

    /// Bytes in memory now, without what is free for each body.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn share(&self) -> BodyShare<'_> {
        BodyShare {
            budget: self,
            bytes: 0,
        }
    }
}

impl BodyShare<'_> {
    /// Raises the share to cover a body of `len` bytes.
    fn cover(&mut self, len: usize) -> Result<(), Refusal> {
        let more = len.saturating_sub(FREE_BYTES).saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let used = self.budget.used.fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
        if used + more > self.budget.max {
            return Err(Refusal::BodiesFull); // dropping the share takes it back
        }
        Ok(())
    }
}

impl Drop for BodyShare<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            let bytes = mem::take(&mut self.bytes);
            self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// Reads the body of request `index` of `client`.
///
/// A body that came in one piece with its head, as small ones do, is not copied.
pub(crate) async fn read(
    client: &Client,
    index: u64,
    mut body: Incoming,
) -> Result<(Bytes, BodyShare<'_>), Refusal> {
    let max = client.core.limits.body_bytes_max;
    let mut share = client.core.bodies.share();
    let declared = body.size_hint().exact();
    let declared = match declared.map(usize::try_from) {
        None => None,
        Some(Ok(len)) if len <= max => Some(len),
        Some(_) => return Err(Refusal::BodyTooLarge { max }),
    };
    share.cover(declared.unwrap_or(0))?;
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::BodyBroken)?;
        let Ok(data) = frame.into_data() else {
            continue; // trailers mean nothing here
        };
        if declared == Some(data.len()) {
            check_framing(client, index)?;
            return Ok((data, share));
        }
        let len = whole.len() + data.len();
        if len > max {
            return Err(Refusal::BodyTooLarge { max });
        }
        share.cover(len)?;
        if whole.is_empty() {
            whole.reserve(declared.unwrap_or(len).clamp(len, FIRST_CAPACITY.max(len)));
        }
        whole.extend_from_slice(&data);
    }
    check_framing(client, index)?;
    Ok((whole.freeze(), share))
}

/// hyper takes some malformed chunks for good ones.
fn check_framing(client: &Client, index: u64) -> Result<(), Refusal> {
    match client.progress.violation(index) {
        Some(violation) => Err(Refusal::Framing(violation)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_counts_what_is_beyond_the_free_part_and_takes_it_back() {
        let budget = BodyBudget::new(100_000);
        let mut small = budget.share();
        small.cover(FREE_BYTES).unwrap();
        assert_eq!(budget.used(), 0);
        let mut large = budget.share();
        large.cover(FREE_BYTES + 60_000).unwrap();
        large.cover(FREE_BYTES + 80_000).unwrap();
        large.cover(10).unwrap();
        assert_eq!(budget.used(), 80_000);
        let mut refused = budget.share();
        assert!(matches!(
            refused.cover(FREE_BYTES + 20_001),
            Err(Refusal::BodiesFull)
        ));
        drop(refused);
        small.cover(FREE_BYTES).unwrap();
        drop(large);
        assert_eq!(budget.used(), 0);
    }
}
