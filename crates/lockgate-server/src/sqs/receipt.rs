//! Receipt handles: the lease's token, sealed so that only handles we gave out are taken.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use lockgate_core::{
    Epoch, Incarnation, LeaseNumber, LeaseToken, MessageId, QueueId, Sequence, Term,
};
use sha2::Sha256;

/// Version of the layout; part of what is sealed.
const VERSION: u8 = 1;
/// Version, queue, sequence, epoch, incarnation, lease number, message.
const TOKEN_LEN: usize = 1 + 4 + 8 + 8 + 8 + 8 + 16;
/// The first 16 bytes of an HMAC-SHA256: 2^-128 for a guess.
const SEAL_LEN: usize = 16;
const HANDLE_LEN: usize = TOKEN_LEN + SEAL_LEN;
/// Separates these seals from any other use of the shard's secret.
const DOMAIN: &[u8] = b"lockgate receipt handle";

/// Makes and opens receipt handles.
///
/// A handle is the base64url form of the lease's token and a keyed hash of it under the shard's
/// secret, which is drawn at the first start and kept in the log: handles stay good over a restart,
/// and one with any bit changed, or from another shard, is told apart from one that is merely stale.
#[derive(Clone)]
pub(crate) struct Receipts {
    keyed: Hmac<Sha256>,
}

impl std::fmt::Debug for Receipts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key stays out of logs.
        f.write_str("Receipts")
    }
}

impl Receipts {
    /// With the shard's secret.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        let mut keyed = Hmac::new_from_slice(secret).expect("HMAC takes a key of any length");
        keyed.update(DOMAIN);
        Self { keyed }
    }

    /// The handle for a lease.
    pub(crate) fn seal(&self, token: LeaseToken) -> String {
        let mut handle = [0u8; HANDLE_LEN];
        handle[0] = VERSION;
        handle[1..5].copy_from_slice(&token.queue.0.to_be_bytes());
        handle[5..13].copy_from_slice(&token.sequence.0.to_be_bytes());
        handle[13..21].copy_from_slice(&token.term.epoch.0.to_be_bytes());
        handle[21..29].copy_from_slice(&token.term.incarnation.0.to_be_bytes());
        handle[29..37].copy_from_slice(&token.lease.0.to_be_bytes());
        handle[37..TOKEN_LEN].copy_from_slice(&token.message.to_bits().to_be_bytes());
        let mut mac = self.keyed.clone();
        mac.update(&handle[..TOKEN_LEN]);
        let seal = mac.finalize().into_bytes();
        handle[TOKEN_LEN..].copy_from_slice(&seal[..SEAL_LEN]);
        URL_SAFE_NO_PAD.encode(handle)
    }

    /// The lease a handle names, or `None` if we never gave out such a handle.
    pub(crate) fn open(&self, handle: &str) -> Option<LeaseToken> {
        // Strict base64: no padding, no spare bits, exactly one text per handle.
        let mut bytes = [0u8; HANDLE_LEN + 2];
        let len = URL_SAFE_NO_PAD.decode_slice(handle, &mut bytes).ok()?;
        let bytes: &[u8; HANDLE_LEN] = bytes.get(..len)?.try_into().ok()?;
        let (token, seal) = bytes.split_at(TOKEN_LEN);
        let mut mac = self.keyed.clone();
        mac.update(token);
        mac.verify_truncated_left(seal).ok()?;
        if token[0] != VERSION {
            return None;
        }
        let number = |at: usize| {
            let mut number = [0u8; 8];
            number.copy_from_slice(&token[at..at + 8]);
            u64::from_be_bytes(number)
        };
        let mut queue = [0u8; 4];
        queue.copy_from_slice(&token[1..5]);
        let mut message = [0u8; 16];
        message.copy_from_slice(&token[37..]);
        Some(LeaseToken {
            queue: QueueId(u32::from_be_bytes(queue)),
            sequence: Sequence(number(5)),
            message: MessageId::from_bits(u128::from_be_bytes(message)),
            term: Term {
                epoch: Epoch(number(13)),
                incarnation: Incarnation(number(21)),
            },
            lease: LeaseNumber(number(29)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> LeaseToken {
        LeaseToken {
            queue: QueueId(7),
            sequence: Sequence(42),
            message: MessageId::new(QueueId(5), Sequence(40), Term::default()),
            term: Term {
                epoch: Epoch(3),
                incarnation: Incarnation(0xfeed_beef),
            },
            lease: LeaseNumber(9),
        }
    }

    #[test]
    fn a_handle_opens_to_its_token() {
        let receipts = Receipts::new(&[1; 32]);
        let largest = LeaseToken {
            queue: QueueId(u32::MAX),
            sequence: Sequence(u64::MAX),
            message: MessageId::from_bits(u128::MAX),
            term: Term {
                epoch: Epoch(u64::MAX),
                incarnation: Incarnation(u64::MAX),
            },
            lease: LeaseNumber(u64::MAX),
        };
        for token in [token(), largest] {
            assert_eq!(receipts.open(&receipts.seal(token)), Some(token));
        }
    }

    #[test]
    fn no_handle_with_a_flipped_bit_opens() {
        let receipts = Receipts::new(&[1; 32]);
        let handle = receipts.seal(token());
        // Every bit of what is sealed ...
        let bytes = URL_SAFE_NO_PAD.decode(&handle).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let changed = URL_SAFE_NO_PAD.encode(changed);
            assert_eq!(receipts.open(&changed), None, "bit {bit}");
        }
        // ... and every bit of its text.
        for bit in 0..handle.len() * 8 {
            let mut changed = handle.clone().into_bytes();
            changed[bit / 8] ^= 1 << (bit % 8);
            if let Ok(changed) = String::from_utf8(changed) {
                assert_eq!(receipts.open(&changed), None, "bit {bit} of the text");
            }
        }
    }

    #[test]
    fn other_texts_and_other_shards_handles_do_not_open() {
        let receipts = Receipts::new(&[1; 32]);
        let handle = receipts.seal(token());
        assert_eq!(Receipts::new(&[2; 32]).open(&handle), None);
        for text in [
            "",
            "garbage",
            "\u{1f512}",
            &handle[1..],
            &format!("{handle}A"),
            &format!("{handle}="),
            &format!("{handle}{handle}"),
            &" ".repeat(100_000),
        ] {
            assert_eq!(receipts.open(text), None, "{text:.80}");
        }
    }
}
