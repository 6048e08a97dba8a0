//! What goes beyond SQS, switched on per queue by tags named `lockgate:...`.
//!
//! Tags are free text in every SDK and tool and mean nothing to AWS, so one deployment script works
//! on both. Without a tag AWS's own limits and errors hold. All there is stands in one table,
//! [`SWITCHES`]. Most switches are settings of the queue that no attribute of SQS reaches; they are
//! taken over when the tag is set or removed. The others widen what requests may ask for, and are
//! read from the tags with each request.

use std::collections::BTreeMap;

use lockgate_core::Millis;
use lockgate_machine::{KeyPolicy, KeyProfile, QueueSettings};

use super::{
    error::SqsError,
    names::Kind,
    queue_attributes::{DELAY_SECONDS_MAX, Form, kind_of},
};

/// A queue's tags.
type Tags = BTreeMap<String, String>;

/// What the names of all switches begin with.
const PREFIX: &str = "lockgate:";

const DELAY_MAX: &str = "lockgate:delay-max";
const FIFO_DELAY: &str = "lockgate:fifo-delay";
const BATCH_MAX: &str = "lockgate:batch-max";
const ZERO_VISIBILITY: &str = "lockgate:zero-visibility";
const KEY_POLICY: &str = "lockgate:key-policy";

/// Entries of a batch, and messages of a receive, where no tag says otherwise.
const ENTRIES_MAX: usize = 10;
/// What `unlimited` stands for: a hundred years.
const DELAY_SECONDS_UNLIMITED: u64 = 36_525 * 24 * 3600;
/// Ten years; what is remembered longer needs an index on disk.
const DEDUP_SECONDS_MAX: u64 = 3_653 * 24 * 3600;

/// A row of the table.
struct Switch {
    tag: &'static str,
    /// Whether only FIFO queues take it.
    fifo_only: bool,
    /// What values it takes, in words that follow "must be".
    values: &'static str,
    /// Takes a value over; `None` sets what holds without the tag. False: the value is refused.
    apply: fn(&mut QueueSettings, Option<&str>) -> bool,
}

/// Every switch, in order of names.
const SWITCHES: &[Switch] = &[
    Switch {
        tag: BATCH_MAX,
        fifo_only: false,
        values: "a number from 10 to 1000",
        apply: |_, value| value.is_none_or(|value| entries(value).is_some()),
    },
    Switch {
        tag: "lockgate:dedup-bytes",
        fifo_only: true,
        values: "bytes from 64 to 1TiB, as in 1048576 or 64MiB",
        apply: |settings, value| {
            set(
                &mut settings.dedup.bytes_max,
                value,
                defaults().dedup.bytes_max,
                |value| bytes(value).filter(|bytes| (64..=1 << 40).contains(bytes)),
            )
        },
    },
    Switch {
        tag: "lockgate:dedup-window",
        fifo_only: true,
        values: "a time from 1s to 3653d, as in 90s, 15m, 12h or 7d; forever is not possible yet, it \
                 needs an index on disk",
        apply: |settings, value| {
            // A purge forgets AWS's five minutes, not a window that somebody asked for.
            settings.dedup.survives_purge = value.is_some();
            set(
                &mut settings.dedup.window,
                value,
                defaults().dedup.window,
                |value| millis(value, 1, DEDUP_SECONDS_MAX),
            )
        },
    },
    Switch {
        tag: DELAY_MAX,
        fifo_only: false,
        values: "a time from 15m to 36525d, as in 12h or 90d, or unlimited",
        apply: |_, value| value.is_none_or(|value| delay(value).is_some()),
    },
    Switch {
        tag: "lockgate:durability",
        fifo_only: false,
        values: "memory, process, disk or replicated",
        apply: |settings, value| {
            set(&mut settings.level, value, defaults().level, |value| {
                value.parse().ok()
            })
        },
    },
    Switch {
        tag: FIFO_DELAY,
        fifo_only: true,
        values: "on or off",
        apply: |_, value| value.is_none_or(|value| switched(value).is_some()),
    },
    Switch {
        tag: "lockgate:in-flight-max",
        fifo_only: false,
        values: "a number from 1 to 4294967295",
        apply: |settings, value| {
            set(
                &mut settings.in_flight_max,
                value,
                defaults().in_flight_max,
                |value| u32::try_from(number(value)?).ok().filter(|&max| max > 0),
            )
        },
    },
    Switch {
        tag: KEY_POLICY,
        fifo_only: true,
        values: "block, skip or park",
        apply: |settings, value| {
            set(&mut settings.key_policy, value, None, |value| match value {
                "block" => Some(Some(KeyPolicy::Block)),
                "skip" => Some(Some(KeyPolicy::Skip)),
                "park" => Some(Some(KeyPolicy::Park)),
                _ => None,
            })
        },
    },
    Switch {
        tag: "lockgate:key-profile",
        fifo_only: true,
        values: "sqs or strict",
        apply: |settings, value| {
            set(
                &mut settings.key_profile,
                value,
                KeyProfile::Sqs,
                |value| match value {
                    "sqs" => Some(KeyProfile::Sqs),
                    "strict" => Some(KeyProfile::Strict),
                    _ => None,
                },
            )
        },
    },
    Switch {
        tag: "lockgate:key-sequences",
        fifo_only: false,
        values: "a number of groups from 1 to 100000000",
        apply: |settings, value| {
            set(&mut settings.key_sequences_max, value, 0, |value| {
                let keys = number(value).filter(|keys| (1..=100_000_000).contains(keys))?;
                u32::try_from(keys).ok()
            })
        },
    },
    Switch {
        tag: "lockgate:park-after",
        fifo_only: true,
        values: "a number from 1 to 1000",
        apply: |settings, value| {
            set(
                &mut settings.park_after,
                value,
                defaults().park_after,
                |value| {
                    let attempts =
                        number(value).filter(|attempts| (1..=1000).contains(attempts))?;
                    u16::try_from(attempts).ok()
                },
            )
        },
    },
    Switch {
        tag: "lockgate:quota-bytes",
        fifo_only: false,
        values: "bytes, 1 or more, as in 1048576 or 10GiB",
        apply: |settings, value| {
            set(&mut settings.quota.bytes_max, value, u64::MAX, |value| {
                bytes(value).filter(|&bytes| bytes > 0)
            })
        },
    },
    Switch {
        tag: "lockgate:quota-messages",
        fifo_only: false,
        values: "a number, 1 or more",
        apply: |settings, value| {
            set(&mut settings.quota.messages_max, value, u64::MAX, |value| {
                number(value).filter(|&messages| messages > 0)
            })
        },
    },
    Switch {
        tag: "lockgate:sync-records",
        fifo_only: false,
        values: "a number, 1 or more",
        apply: |settings, value| {
            set(&mut settings.sync_window.records, value, None, |value| {
                number(value).filter(|&records| records > 0).map(Some)
            })
        },
    },
    Switch {
        tag: "lockgate:sync-window",
        fifo_only: false,
        values: "a time from 1ms to 1h, as in 50ms or 2s",
        apply: |settings, value| {
            // A bare number would be milliseconds to some and seconds to others.
            let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
            set(&mut settings.sync_window.after, value, None, |value| {
                with_unit(value, &units)
                    .filter(|_| value.ends_with(char::is_alphabetic))
                    .filter(|after| (1..=3_600_000).contains(after))
                    .map(Some)
            })
        },
    },
    Switch {
        tag: ZERO_VISIBILITY,
        fifo_only: false,
        values: "nack or defer",
        apply: |_, value| value.is_none_or(|value| matches!(value, "nack" | "defer")),
    },
];

/// Takes over into the settings what differs between a queue's tags before and after. What did not
/// change is not set again: a setting changed by other means stays as it was changed.
pub(crate) fn apply(
    before: &Tags,
    after: &Tags,
    settings: &mut QueueSettings,
) -> Result<(), SqsError> {
    let ours = |tag: &&String| tag.starts_with(PREFIX);
    for tag in before.keys().chain(after.keys()).filter(ours) {
        let value = after.get(tag).map(String::as_str);
        if before.get(tag).map(String::as_str) == value {
            continue;
        }
        let switch = SWITCHES.iter().find(|switch| switch.tag == tag);
        match (switch, value) {
            (Some(switch), _) => switch.change(settings, value)?,
            (None, Some(_)) => return Err(unknown(tag)),
            // Of a later version; it may go.
            (None, None) => {}
        }
    }
    if before.get(DELAY_MAX) != after.get(DELAY_MAX) {
        check_delay(after, settings)?;
    }
    Ok(())
}

/// Refuses settings that tags made and that do not fit together, once all else is set.
pub(crate) fn check(settings: &QueueSettings) -> Result<(), SqsError> {
    if settings.key_policy == Some(KeyPolicy::Skip) && settings.dead_letter.is_none() {
        return Err(SqsError::invalid_value(
            "skip",
            KEY_POLICY,
            "skip moves messages to a dead-letter queue: set a RedrivePolicy, or use block or park.",
        ));
    }
    Ok(())
}

/// The longest delay, in seconds.
pub(crate) fn delay_seconds_max(tags: &Tags) -> u64 {
    let asked = tags.get(DELAY_MAX).and_then(|value| delay(value));
    asked.unwrap_or(DELAY_SECONDS_MAX)
}

/// Whether messages of a FIFO queue may have delays of their own.
pub(crate) fn fifo_delay(tags: &Tags) -> bool {
    let asked = tags.get(FIFO_DELAY).and_then(|value| switched(value));
    asked.unwrap_or(false)
}

/// How many entries a batch may have, and how many messages a receive.
pub(crate) fn batch_max(tags: &Tags) -> usize {
    let asked = tags.get(BATCH_MAX).and_then(|value| entries(value));
    asked.unwrap_or(ENTRIES_MAX)
}

/// Whether a visibility timeout of zero gives a message back without counting the attempt.
pub(crate) fn zero_visibility_defers(tags: &Tags) -> bool {
    tags.get(ZERO_VISIBILITY)
        .is_some_and(|value| value == "defer")
}

impl Switch {
    fn change(&self, settings: &mut QueueSettings, value: Option<&str>) -> Result<(), SqsError> {
        if self.fifo_only && value.is_some() && kind_of(settings) == Kind::Standard {
            return Err(SqsError::invalid_value(
                value.unwrap_or_default(),
                self.tag,
                "Only FIFO queues take this tag.",
            ));
        }
        if (self.apply)(settings, value) {
            return Ok(());
        }
        Err(SqsError::invalid_value(
            value.unwrap_or_default(),
            self.tag,
            format_args!("It must be {}.", self.values),
        ))
    }
}

/// A queue's own delay may not be longer than its messages' may be.
fn check_delay(tags: &Tags, settings: &QueueSettings) -> Result<(), SqsError> {
    let (delay, max) = (settings.delay / 1000, delay_seconds_max(tags));
    if delay <= max {
        return Ok(());
    }
    Err(SqsError::invalid_parameter(format!(
        "The queue's DelaySeconds is {delay}, and without a longer {DELAY_MAX} at most {max} are \
         allowed: set DelaySeconds first."
    )))
}

fn unknown(tag: &str) -> SqsError {
    let known: Vec<_> = SWITCHES.iter().map(|switch| switch.tag).collect();
    SqsError::invalid_value(
        tag,
        "Tags",
        format_args!(
            "Of the tags that begin with {PREFIX} these are known: {}.",
            known.join(", ")
        ),
    )
}

/// What queues of the SQS API have without tags.
fn defaults() -> QueueSettings {
    Form::new(Kind::Fifo).settings
}

/// Sets a value that was given and can be read, or the default if none was given.
fn set<T>(
    setting: &mut T,
    value: Option<&str>,
    default: T,
    read: impl FnOnce(&str) -> Option<T>,
) -> bool {
    match value.map_or(Some(default), read) {
        Some(value) => {
            *setting = value;
            true
        }
        None => false,
    }
}

/// Digits and nothing else.
fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// A number and what it counts; the unit may be left out.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (digits, factor) = units
        .iter()
        .find_map(|&(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1));
    number(digits)?.checked_mul(factor)
}

fn seconds(text: &str) -> Option<u64> {
    with_unit(text, &[("s", 1), ("m", 60), ("h", 3600), ("d", 24 * 3600)])
}

fn millis(text: &str, seconds_min: u64, seconds_max: u64) -> Option<Millis> {
    let seconds = seconds(text).filter(|seconds| (seconds_min..=seconds_max).contains(seconds))?;
    Some(seconds * 1000)
}

fn bytes(text: &str) -> Option<u64> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
    ];
    with_unit(text, &units)
}

fn switched(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// The value of [`DELAY_MAX`], in seconds.
fn delay(text: &str) -> Option<u64> {
    if text == "unlimited" {
        return Some(DELAY_SECONDS_UNLIMITED);
    }
    seconds(text).filter(|seconds| (DELAY_SECONDS_MAX..=DELAY_SECONDS_UNLIMITED).contains(seconds))
}

/// The value of [`BATCH_MAX`]. What the machine gives and takes at once ends at 1,000.
fn entries(text: &str) -> Option<usize> {
    let entries = usize::try_from(number(text)?).ok()?;
    (ENTRIES_MAX..=1_000).contains(&entries).then_some(entries)
}

#[cfg(test)]
mod tests {
    use lockgate_core::Level;

    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        let pair = |&(tag, value): &(&str, &str)| (format!("{PREFIX}{tag}"), value.to_owned());
        pairs.iter().map(pair).collect()
    }

    fn applied(kind: Kind, pairs: &[(&str, &str)]) -> Result<QueueSettings, SqsError> {
        let mut settings = Form::new(kind).settings;
        apply(&Tags::new(), &tags(pairs), &mut settings)?;
        Ok(settings)
    }

    #[test]
    fn the_table_is_in_order_and_every_switch_says_what_it_takes() {
        assert!(SWITCHES.is_sorted_by_key(|switch| switch.tag));
        for switch in SWITCHES {
            assert!(switch.tag.starts_with(PREFIX), "{}", switch.tag);
            for value in ["", "nonsense", "-1", "+1", "1.5", "99999999999999999999"] {
                let name = &switch.tag[PREFIX.len()..];
                let refused = applied(Kind::Fifo, &[(name, value)]).unwrap_err();
                let expected = format!(
                    "Value {value} for parameter {} is invalid. Reason: It must be {}.",
                    switch.tag, switch.values
                );
                assert_eq!(refused.message, expected);
            }
        }
    }

    #[test]
    fn a_removed_tag_leaves_what_holds_without_it() {
        let set = tags(&[
            ("batch-max", "100"),
            ("dedup-bytes", "1MiB"),
            ("dedup-window", "7d"),
            ("delay-max", "unlimited"),
            ("durability", "process"),
            ("fifo-delay", "on"),
            ("in-flight-max", "7"),
            ("key-policy", "park"),
            ("key-profile", "strict"),
            ("key-sequences", "1000"),
            ("park-after", "3"),
            ("quota-bytes", "2GiB"),
            ("quota-messages", "9"),
            ("sync-records", "100"),
            ("sync-window", "50ms"),
            ("zero-visibility", "defer"),
        ]);
        assert_eq!(set.len(), SWITCHES.len());
        let mut settings = defaults();
        apply(&Tags::new(), &set, &mut settings).unwrap();
        assert_eq!(settings.dedup.bytes_max, 1 << 20);
        assert_eq!(settings.dedup.window, 7 * 24 * 3_600_000);
        assert!(settings.dedup.survives_purge);
        assert_eq!(settings.level, Level::Process);
        assert_eq!(settings.in_flight_max, 7);
        assert_eq!(settings.key_policy, Some(KeyPolicy::Park));
        assert_eq!(settings.key_profile, KeyProfile::Strict);
        assert_eq!(settings.key_sequences_max, 1000);
        assert_eq!(settings.park_after, 3);
        assert_eq!(settings.quota.bytes_max, 2 << 30);
        assert_eq!(settings.quota.messages_max, 9);
        assert_eq!(settings.sync_window.after, Some(50));
        assert_eq!(settings.sync_window.records, Some(100));
        assert_eq!(delay_seconds_max(&set), DELAY_SECONDS_UNLIMITED);
        assert_eq!(batch_max(&set), 100);
        assert!(fifo_delay(&set) && zero_visibility_defers(&set));
        apply(&set, &Tags::new(), &mut settings).unwrap();
        assert_eq!(settings, defaults());
        assert_eq!(delay_seconds_max(&Tags::new()), 900);
        assert_eq!(batch_max(&Tags::new()), 10);
        assert!(!fifo_delay(&Tags::new()) && !zero_visibility_defers(&Tags::new()));
    }

    #[test]
    fn values_are_taken_at_the_ends_of_their_ranges_and_not_beyond() {
        for (tag, allowed, refused) in [
            ("batch-max", ["10", "1000"], ["9", "1001"]),
            ("dedup-window", ["1", "3653d"], ["0s", "forever"]),
            ("dedup-bytes", ["64", "1TiB"], ["63", "2TiB"]),
            ("delay-max", ["900", "36525d"], ["14m", "36526d"]),
            ("in-flight-max", ["1", "4294967295"], ["0", "4294967296"]),
            ("park-after", ["1", "1000"], ["0", "1001"]),
            ("quota-bytes", ["1", "16777215TiB"], ["0", "16777216TiB"]),
            ("quota-messages", ["1", "18446744073709551615"], ["0", "1m"]),
            ("sync-records", ["1", "18446744073709551615"], ["0", "1s"]),
            ("sync-window", ["1ms", "1h"], ["0ms", "61m"]),
            ("sync-window", ["20s", "60m"], ["100", "ms"]),
        ] {
            for value in allowed {
                assert!(
                    applied(Kind::Fifo, &[(tag, value)]).is_ok(),
                    "{tag}={value}"
                );
            }
            for value in refused {
                assert!(
                    applied(Kind::Fifo, &[(tag, value)]).is_err(),
                    "{tag}={value}"
                );
            }
        }
    }

    #[test]
    fn unknown_tags_and_those_of_fifo_queues_are_refused_by_name() {
        let error = applied(Kind::Fifo, &[("nope", "1")]).unwrap_err();
        assert!(
            error
                .message
                .starts_with("Value lockgate:nope for parameter Tags is invalid.")
                && error
                    .message
                    .contains("lockgate:batch-max, lockgate:dedup-bytes"),
            "{error}"
        );
        for switch in SWITCHES.iter().filter(|switch| switch.fifo_only) {
            let name = &switch.tag[PREFIX.len()..];
            let error = applied(Kind::Standard, &[(name, "1")]).unwrap_err();
            assert!(error.message.contains("Only FIFO queues"), "{error}");
        }
        // One that is there already, from another version, is in nobody's way.
        let mut settings = defaults();
        let (old, new) = (
            tags(&[("nope", "1")]),
            tags(&[("nope", "1"), ("park-after", "2")]),
        );
        apply(&old, &new, &mut settings).unwrap();
        apply(&new, &Tags::new(), &mut settings).unwrap();
    }

    #[test]
    fn a_setting_changed_by_other_means_stays_until_its_tag_changes() {
        let (old, new) = (
            tags(&[("park-after", "2")]),
            tags(&[("park-after", "2"), ("quota-messages", "1")]),
        );
        let mut settings = QueueSettings {
            park_after: 9,
            ..defaults()
        };
        apply(&old, &new, &mut settings).unwrap();
        assert_eq!(settings.park_after, 9);
    }
}
