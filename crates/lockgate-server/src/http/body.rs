//! Reading a request's body, and what bodies and answers may take of the memory.

use std::{
    mem,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::{connection::Client, refusal::Refusal};

/// Bytes of each body that the budget does not count: enough for any settling request. Also what is
/// set aside at most before a client has sent anything: to get more it must send, so that clients
/// who declare much and send little cannot use the budget up.
const FREE_BYTES: usize = 16 << 10;

/// Memory for all bodies of a server, or for all its answers.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    max: usize,
    used: AtomicUsize,
}

/// One body's part of the [`BodyBudget`]; given back when dropped.
#[derive(Debug)]
pub(crate) struct BodyShare<B: Deref<Target = BodyBudget>> {
    budget: B,
    bytes: usize,
}

/// An answer's part of the budget of answers, held until the client has taken it: one that does not
/// read must not make the server keep ten megabytes for each of its connections.
pub(crate) type AnswerShare = BodyShare<Arc<BodyBudget>>;

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

    /// Whether a body of `len` bytes would have room now. Refusing it later costs more.
    fn admit(&self, len: usize) -> Result<(), Refusal> {
        let more = len.saturating_sub(FREE_BYTES);
        if more > 0 && self.used() + more > self.max {
            return Err(Refusal::BodiesFull);
        }
        Ok(())
    }

    fn share(&self) -> BodyShare<&Self> {
        BodyShare {
            budget: self,
            bytes: 0,
        }
    }

    /// The share of an answer of `len` bytes; none if it is free.
    pub(crate) fn hold(self: &Arc<Self>, len: usize) -> Result<Option<AnswerShare>, Refusal> {
        if len <= FREE_BYTES {
            return Ok(None);
        }
        let mut share = BodyShare {
            budget: self.clone(),
            bytes: 0,
        };
        match share.cover(len) {
            Ok(()) => Ok(Some(share)),
            Err(_) => Err(Refusal::AnswersFull),
        }
    }
}

impl<B: Deref<Target = BodyBudget>> BodyShare<B> {
    /// Raises the share to cover a buffer of `len` bytes.
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

impl<B: Deref<Target = BodyBudget>> Drop for BodyShare<B> {
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
) -> Result<(Bytes, BodyShare<&BodyBudget>), Refusal> {
    let max = client.core.limits.body_bytes_max;
    let mut share = client.core.bodies.share();
    let declared = body.size_hint().exact();
    let declared = match declared.map(usize::try_from) {
        None => None,
        Some(Ok(len)) if len <= max => Some(len),
        Some(_) => return Err(Refusal::BodyTooLarge { max }),
    };
    client.core.bodies.admit(declared.unwrap_or(0))?;
    let mut whole = Vec::new();
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
        if whole.capacity() < len {
            let doubled = (2 * whole.capacity()).max(FREE_BYTES).min(max);
            let wanted = declared.unwrap_or(max).min(doubled).max(len);
            whole.reserve_exact(wanted - whole.len());
        }
        whole.extend_from_slice(&data);
        share.cover(whole.capacity())?;
    }
    check_framing(client, index)?;
    Ok((whole.into(), share))
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
        budget.admit(FREE_BYTES + 20_000).unwrap();
        assert!(budget.admit(FREE_BYTES + 20_001).is_err());
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

    #[test]
    fn an_answer_holds_its_share_until_it_is_out() {
        let budget = Arc::new(BodyBudget::new(100_000));
        assert!(budget.hold(FREE_BYTES).unwrap().is_none());
        let share = budget.hold(FREE_BYTES + 60_000).unwrap();
        assert!(matches!(
            budget.hold(FREE_BYTES + 40_001),
            Err(Refusal::AnswersFull)
        ));
        assert_eq!(budget.used(), 60_000);
        drop(share);
        assert_eq!(budget.used(), 0);
    }
}
