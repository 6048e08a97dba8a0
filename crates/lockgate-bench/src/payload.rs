//! Bytes to send: random, so that nothing can compress them.

use anyhow::anyhow;
use bytes::Bytes;

/// Bodies of one size, cut at random places from a pool of random text. Text, because bodies over
/// HTTP are in JSON, and both ways must send the same.
#[derive(Clone)]
pub(crate) struct Payloads {
    pool: Bytes,
    size: usize,
    random: u64,
}

/// Larger than any cache, so that copying has its real cost.
const POOL_BYTES: usize = 16 << 20;

impl Payloads {
    pub(crate) fn new(size: usize) -> anyhow::Result<Self> {
        const LETTERS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut pool = vec![0; POOL_BYTES + size];
        getrandom::fill(&mut pool).map_err(|error| anyhow!("drawing random bytes: {error}"))?;
        for byte in &mut pool {
            *byte = LETTERS[usize::from(*byte % 64)];
        }
        Ok(Self {
            pool: pool.into(),
            size,
            random: 0x9e37_79b9_7f4a_7c15,
        })
    }

    /// The same pool for another caller, which then gets other bodies.
    pub(crate) fn for_caller(&self, caller: u64) -> Self {
        Self {
            random: self.random.wrapping_mul(caller.wrapping_mul(2) | 1),
            ..self.clone()
        }
    }

    /// The same pool with bodies of another size.
    pub(crate) fn with_size(&self, size: usize) -> Self {
        Self {
            size: size.min(self.pool.len()),
            ..self.clone()
        }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The next body; shares the pool's memory.
    pub(crate) fn next(&mut self) -> Bytes {
        // Marsaglia's xorshift64; any random sequence would do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let places = (self.pool.len() - self.size) as u64 + 1;
        let at = usize::try_from(self.random % places).unwrap_or(0);
        self.pool.slice(at..at + self.size)
    }

    /// `len` bytes of the pool, for the floor.
    pub(crate) fn bytes(&self, len: usize) -> Bytes {
        self.pool.slice(..len.min(self.pool.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_size_and_differ() {
        let payloads = Payloads::new(100).unwrap();
        let (mut one, mut other) = (payloads.for_caller(0), payloads.for_caller(1));
        let first = one.next();
        assert_eq!(first.len(), 100);
        assert_ne!(first, one.next());
        assert_ne!(first, other.next());
    }
}
