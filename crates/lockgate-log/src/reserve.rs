//! One bound for the reserves of several logs.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError},
};

use crate::sync::{Mutex, MutexGuard};

/// A bound on the total reserves of several logs of one process: give each of them a clone in
/// [`LocalLogOptions::shared_reserve`](crate::LocalLogOptions::shared_reserve).
///
/// Each log keeps its share in its own folder, so a log that is emptied on a full disk takes
/// nothing from the others. If together they want more than the bound, each gets a part in
/// proportion to what it wants, but always at least one of its segments: with many logs, that can
/// exceed the bound.
#[derive(Clone)]
pub struct SharedReserve(Arc<Pool>);

struct Pool {
    bytes_max: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    logs: BTreeMap<u64, Claim>,
}

/// Bytes of one log.
#[derive(Clone, Copy, Default)]
struct Claim {
    wanted: u64,
    granted: u64,
}

impl SharedReserve {
    /// The bound in bytes; if one segment for each log in use is more, that applies.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self(Arc::new(Pool {
            bytes_max,
            state: Mutex::default(),
        }))
    }

    /// The share of another log.
    pub(crate) fn share(&self) -> Share {
        let mut state = self.0.lock();
        state.next_id += 1;
        Share {
            pool: self.0.clone(),
            id: state.next_id,
        }
    }
}

impl Default for SharedReserve {
    /// 192 MiB: the default reserve of one large log.
    fn default() -> Self {
        Self::new(192 << 20)
    }
}

impl fmt::Debug for SharedReserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReserve")
            .field("bytes_max", &self.0.bytes_max)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// No code that holds the lock can panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A log's part of a [`SharedReserve`]. Dropping it gives the part to the others.
pub(crate) struct Share {
    pool: Arc<Pool>,
    id: u64,
}

impl Share {
    /// Claims a number of segments of this size, and returns how many the log may have. Other logs
    /// give back what exceeds their part at their next claim. Until then this log gets what is
    /// left, but at least one segment, even beyond the bound.
    pub(crate) fn claim(&self, segments: usize, segment_bytes: u32) -> usize {
        let segment_bytes = u64::from(segment_bytes.max(1));
        let wanted = (segments as u64).saturating_mul(segment_bytes);
        let bytes_max = self.pool.bytes_max;
        let mut state = self.pool.lock();
        let others = (state.logs.iter()).filter(|(id, _)| **id != self.id);
        let (mut all_wanted, mut granted) = (wanted, 0_u64);
        for (_, other) in others {
            all_wanted = all_wanted.saturating_add(other.wanted);
            granted = granted.saturating_add(other.granted);
        }
        let part = if all_wanted <= bytes_max {
            wanted
        } else {
            let part = u128::from(bytes_max) * u128::from(wanted) / u128::from(all_wanted);
            u64::try_from(part).unwrap_or(wanted)
        };
        let part = part.min(bytes_max.saturating_sub(granted)) / segment_bytes;
        let part = part.max(u64::from(segments > 0));
        let granted = part * segment_bytes;
        state.logs.insert(self.id, Claim { wanted, granted });
        usize::try_from(part).unwrap_or(segments).min(segments)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pool.lock().logs.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_kept_at_every_moment_and_shared_by_what_is_wanted() {
        let reserve = SharedReserve::new(100);
        let shares = [(); 4].map(|()| reserve.share());
        let mut granted = [0; 4];
        assert_eq!(shares[0].claim(8, 10), 8, "the only one that wants any");
        granted[0] = 8;
        // The others first get what is left, and their whole part once the first one has given
        // back.
        for _ in 0..3 {
            for (share, granted) in shares.iter().zip(&mut granted) {
                *granted = share.claim(8, 10);
            }
            // One segment each is always granted, whatever the bound.
            let single = granted.iter().filter(|granted| **granted == 1).count();
            assert!(granted.iter().sum::<usize>() <= 10 + single, "{granted:?}");
        }
        assert_eq!(granted, [2, 2, 2, 2]);
        // The bound counts bytes, not segments.
        assert_eq!(shares[3].claim(1, 80), 1, "one is always granted");
        let [first, second, third, fourth] = shares;
        assert_eq!((first.claim(8, 10), second.claim(0, 10)), (1, 0));
        drop((third, fourth));
        assert_eq!(first.claim(8, 10), 8, "all others but that one are gone");
    }

    #[test]
    fn each_log_in_use_has_one_segment_whatever_the_bound_is() {
        let reserve = SharedReserve::new(30);
        let shares = [(); 64].map(|()| reserve.share());
        assert!(shares.iter().all(|share| share.claim(3, 10) >= 1));
        assert!(shares.iter().all(|share| share.claim(3, 10) == 1));
        assert!(shares.iter().all(|share| share.claim(0, 10) == 0));
        assert_eq!(shares[9].claim(3, 10), 3, "nobody else wants any");
    }
}
