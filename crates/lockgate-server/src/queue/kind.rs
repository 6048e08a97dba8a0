//! The two kinds of queue, and the names each may have.

use lockgate_core::QueueName;
use lockgate_machine::QueueSettings;

use super::Invalid;

/// The suffix of every FIFO queue's name.
pub(crate) const FIFO_SUFFIX: &str = ".fifo";

/// The two kinds of queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Unkeyed: best-effort order, any number of messages in flight.
    Standard,
    /// Keyed by message group, in order, one message of a group in flight.
    Fifo,
}

/// Checks a queue's name by the rules of its kind.
pub(crate) fn queue_name(name: &str, kind: Kind) -> Result<QueueName, Invalid> {
    let plain = match kind {
        Kind::Standard => Some(name),
        Kind::Fifo => name.strip_suffix(FIFO_SUFFIX),
    };
    let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
    plain
        .filter(|plain| !plain.is_empty() && plain.bytes().all(allowed))
        .and_then(|_| QueueName::new(name).ok())
        .ok_or_else(|| {
            Invalid::other(match kind {
                Kind::Standard => {
                    "Can only include alphanumeric characters, hyphens, or underscores. \
                     1 to 80 in length"
                }
                Kind::Fifo => {
                    "The name of a FIFO queue can only include alphanumeric characters, hyphens, \
                     or underscores, must end with .fifo suffix and be 1 to 80 in length"
                }
            })
        })
}

/// Checks the name of a queue of either kind, and returns whether it is a FIFO queue's.
pub(crate) fn check_name(name: &str) -> Result<(QueueName, bool), Invalid> {
    let fifo = name.ends_with(FIFO_SUFFIX);
    let kind = if fifo { Kind::Fifo } else { Kind::Standard };
    Ok((queue_name(name, kind)?, fifo))
}

/// The kind of a queue with these settings.
pub(crate) fn kind_of(settings: &QueueSettings) -> Kind {
    if settings.keyed {
        Kind::Fifo
    } else {
        Kind::Standard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_names_follow_the_rules_of_their_kind() {
        let longest = "x".repeat(80);
        let longest_fifo = format!("{}.fifo", "x".repeat(75));
        for (name, standard, fifo) in [
            ("orders", true, false),
            ("Orders-2_x", true, false),
            ("orders.fifo", false, true),
            (longest.as_str(), true, false),
            (longest_fifo.as_str(), false, true),
            ("", false, false),
            (".fifo", false, false),
            ("a.b", false, false),
            ("a.b.fifo", false, false),
            ("a b", false, false),
            ("a/b", false, false),
            ("öre", false, false),
            ("orders.FIFO", false, false),
        ] {
            assert_eq!(queue_name(name, Kind::Standard).is_ok(), standard, "{name}");
            assert_eq!(queue_name(name, Kind::Fifo).is_ok(), fifo, "{name} as fifo");
        }
        assert!(queue_name(&format!("{longest}x"), Kind::Standard).is_err());
        assert!(queue_name(&format!("x{longest_fifo}"), Kind::Fifo).is_err());
    }
}
