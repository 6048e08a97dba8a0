//! Receipts (SQS: receipt handles): a lease's token, sealed so that only receipts of this shard are
//! accepted.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use lockgate_core::{
    Epoch, Incarnation, LeaseNumber, LeaseToken, MessageId, QueueId, Sequence, ShardId, Term,
};
use sha2::Sha256;

/// Version of the layout. The seal covers it.
const VERSION: u8 = 1;
/// Version, shard, queue, sequence, epoch, incarnation, lease number, message.
const TOKEN_LEN: usize = 1 + 2 + 4 + 8 + 8 + 8 + 8 + 16;
/// The first 16 bytes of an HMAC-SHA256: a guess succeeds with a chance of 2^-128.
const SEAL_LEN: usize = 16;
const HANDLE_LEN: usize = TOKEN_LEN + SEAL_LEN;
/// Separates these seals from any other use of the shard's secret.
const DOMAIN: &[u8] = b"lockgate receipt handle";

/// Makes and opens receipt handles.
///
/// A handle is the base64url form of the lease's token with a keyed hash of the token. The hash's
/// key is the shard's secret, drawn at the first start and kept in the log. So handles stay valid
/// over a restart, and a handle with any bit changed is told apart from one that is merely stale.
/// The token contains the shard's number, so a handle of another shard is told apart from a forged
/// one.
#[derive(Clone)]
pub(crate) struct Receipts {
    shard: ShardId,
    keyed: Hmac<Sha256>,
}

/// Why a text is no receipt handle of this shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReceiptError {
    /// This shard never gave it out.
    #[error("this server did not give it out")]
    Unknown,
    /// The handle names another shard. Only that shard can tell whether it gave it out.
    #[error("it is of shard {given}, and this is shard {own}: take it to shard {given}")]
    OtherShard { given: ShardId, own: ShardId },
}

impl std::fmt::Debug for Receipts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Does not print the secret.
        f.write_str("Receipts")
    }
}

impl Receipts {
    /// Takes the shard's number and its secret.
    pub(crate) fn new(shard: ShardId, secret: &[u8; 32]) -> Self {
        let mut keyed = Hmac::new_from_slice(secret).expect("HMAC takes a key of any length");
        keyed.update(DOMAIN);
        Self { shard, keyed }
    }

    /// The handle for a lease.
    pub(crate) fn seal(&self, token: LeaseToken) -> String {
        let mut handle = [0u8; HANDLE_LEN];
        handle[0] = VERSION;
        handle[1..3].copy_from_slice(&token.shard().get().to_be_bytes());
        handle[3..7].copy_from_slice(&token.queue.0.to_be_bytes());
        handle[7..15].copy_from_slice(&token.sequence.0.to_be_bytes());
        handle[15..23].copy_from_slice(&token.term.epoch.0.to_be_bytes());
        handle[23..31].copy_from_slice(&token.term.incarnation.0.to_be_bytes());
        handle[31..39].copy_from_slice(&token.lease.0.to_be_bytes());
        handle[39..TOKEN_LEN].copy_from_slice(&token.message.to_bits().to_be_bytes());
        let mut mac = self.keyed.clone();
        mac.update(&handle[..TOKEN_LEN]);
        let seal = mac.finalize().into_bytes();
        handle[TOKEN_LEN..].copy_from_slice(&seal[..SEAL_LEN]);
        URL_SAFE_NO_PAD.encode(handle)
    }

    /// The lease a handle names.
    ///
    /// # Errors
    /// If this shard never gave out such a handle.
    pub(crate) fn open(&self, handle: &str) -> Result<LeaseToken, ReceiptError> {
        let bytes = decode(handle).ok_or(ReceiptError::Unknown)?;
        let given = shard_of(&bytes).ok_or(ReceiptError::Unknown)?;
        if given != self.shard {
            let own = self.shard;
            return Err(ReceiptError::OtherShard { given, own });
        }
        self.verified(&bytes, given).ok_or(ReceiptError::Unknown)
    }

    fn verified(&self, bytes: &[u8; HANDLE_LEN], shard: ShardId) -> Option<LeaseToken> {
        let (token, seal) = bytes.split_at(TOKEN_LEN);
        let mut mac = self.keyed.clone();
        mac.update(token);
        mac.verify_truncated_left(seal).ok()?;
        let number = |at: usize| {
            let mut number = [0u8; 8];
            number.copy_from_slice(&token[at..at + 8]);
            u64::from_be_bytes(number)
        };
        let mut queue = [0u8; 4];
        queue.copy_from_slice(&token[3..7]);
        let mut message = [0u8; 16];
        message.copy_from_slice(&token[39..]);
        Some(LeaseToken {
            queue: QueueId(u32::from_be_bytes(queue)),
            sequence: Sequence(number(7)),
            message: MessageId::from_bits(u128::from_be_bytes(message)),
            term: Term {
                shard,
                epoch: Epoch(number(15)),
                incarnation: Incarnation(number(23)),
            },
            lease: LeaseNumber(number(31)),
        })
    }
}

/// The bytes of a handle of this version.
fn decode(handle: &str) -> Option<[u8; HANDLE_LEN]> {
    // Strict base64: no padding, no unused bits, exactly one text per handle.
    let mut bytes = [0u8; HANDLE_LEN + 2];
    let len = URL_SAFE_NO_PAD.decode_slice(handle, &mut bytes).ok()?;
    let bytes: [u8; HANDLE_LEN] = bytes.get(..len)?.try_into().ok()?;
    (bytes[0] == VERSION).then_some(bytes)
}

/// The shard that a handle names, without verifying the seal.
fn shard_of(bytes: &[u8; HANDLE_LEN]) -> Option<ShardId> {
    ShardId::new(u16::from_be_bytes([bytes[1], bytes[2]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(number: u16) -> ShardId {
        ShardId::new(number).unwrap()
    }

    fn receipts() -> Receipts {
        Receipts::new(shard(5), &[1; 32])
    }

    fn token() -> LeaseToken {
        LeaseToken {
            queue: QueueId(7),
            sequence: Sequence(42),
            message: MessageId::new(QueueId(5), Sequence(40), Term::default()),
            term: Term {
                shard: shard(5),
                epoch: Epoch(3),
                incarnation: Incarnation(0xfeed_beef),
            },
            lease: LeaseNumber(9),
        }
    }

    #[test]
    fn a_handle_opens_to_its_token() {
        let receipts = receipts();
        let largest = LeaseToken {
            queue: QueueId(u32::MAX),
            sequence: Sequence(u64::MAX),
            message: MessageId::from_bits(u128::MAX),
            term: Term {
                shard: ShardId::MAX,
                epoch: Epoch(u64::MAX),
                incarnation: Incarnation(u64::MAX),
            },
            lease: LeaseNumber(u64::MAX),
        };
        assert_eq!(receipts.open(&receipts.seal(token())), Ok(token()));
        let receipts = Receipts::new(ShardId::MAX, &[1; 32]);
        assert_eq!(receipts.open(&receipts.seal(largest)), Ok(largest));
    }

    /// The error for a handle that shard 5 did not seal.
    fn refusal(version: u8, named: u16) -> ReceiptError {
        match ShardId::new(named) {
            Some(given) if version == VERSION && given != shard(5) => {
                let own = shard(5);
                ReceiptError::OtherShard { given, own }
            }
            _ => ReceiptError::Unknown,
        }
    }

    #[test]
    fn no_handle_with_a_flipped_bit_opens() {
        let receipts = receipts();
        let handle = receipts.seal(token());
        // Every bit of the sealed bytes ...
        let bytes = URL_SAFE_NO_PAD.decode(&handle).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let named = u16::from_be_bytes([changed[1], changed[2]]);
            let refused = refusal(changed[0], named);
            let changed = URL_SAFE_NO_PAD.encode(changed);
            assert_eq!(receipts.open(&changed), Err(refused), "bit {bit}");
        }
        // ... and every bit of the text.
        for bit in 0..handle.len() * 8 {
            let mut changed = handle.clone().into_bytes();
            changed[bit / 8] ^= 1 << (bit % 8);
            if let Ok(changed) = String::from_utf8(changed) {
                assert!(receipts.open(&changed).is_err(), "bit {bit} of the text");
            }
        }
    }

    #[test]
    fn a_handle_of_another_shard_is_told_which() {
        let receipts = receipts();
        // Also a handle of another shard with the same secret, as after a restore under another
        // number.
        for secret in [[1; 32], [2; 32]] {
            let handle = Receipts::new(shard(6), &secret).seal(LeaseToken {
                term: Term {
                    shard: shard(6),
                    ..token().term
                },
                ..token()
            });
            let error = receipts.open(&handle).unwrap_err();
            let (given, own) = (shard(6), shard(5));
            assert_eq!(error, ReceiptError::OtherShard { given, own });
            assert_eq!(
                error.to_string(),
                "it is of shard 6, and this is shard 5: take it to shard 6"
            );
        }
    }

    #[test]
    fn other_texts_and_other_secrets_handles_do_not_open() {
        let receipts = receipts();
        let handle = receipts.seal(token());
        let unknown = Err(ReceiptError::Unknown);
        assert_eq!(Receipts::new(shard(5), &[2; 32]).open(&handle), unknown);
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
            assert_eq!(receipts.open(text), unknown, "{text:.80}");
        }
    }
}
