//! Settings beyond SQS, set per queue by tags named `lockgate:...`.
//!
//! Tags are free text in every SDK and tool, and AWS ignores them, so one deployment script works
//! on both. Without a tag, AWS's own limits and errors hold. Every setting that no SQS attribute
//! sets has a tag with the setting's name, and takes its value when the tag is set or removed. The
//! tags of [`SWITCHES`] allow more in requests, and are read with each request.

use std::collections::BTreeMap;

use lockgate_core::units;
use lockgate_machine::{KeyPolicy, QueueSettings, SETTINGS, Setting};

use super::{
    Invalid,
    kind::{Kind, kind_of},
};

/// A queue's tags.
type Tags = BTreeMap<String, String>;

/// The prefix of all these tags.
const PREFIX: &str = "lockgate:";

const DELAY_MAX: &str = "lockgate:delay-max";
const FIFO_DELAY: &str = "lockgate:fifo-delay";
const BATCH_MAX: &str = "lockgate:batch-max";
const ZERO_VISIBILITY: &str = "lockgate:zero-visibility";
const KEY_POLICY: &str = "lockgate:key-policy";
const DEDUP_WINDOW: &str = "lockgate:dedup-window";
const DEDUP_SURVIVES_PURGE: &str = "lockgate:dedup-survives-purge";

/// The longest delay without a tag, in seconds.
pub(crate) const DELAY_SECONDS_MAX: u64 = 900;
/// The most entries of a batch, and messages of a receive, without a tag.
const ENTRIES_MAX: usize = 10;
/// The value of `unlimited`: a hundred years.
const DELAY_SECONDS_UNLIMITED: u64 = 36_525 * 24 * 3600;

/// A tag that allows more in requests.
struct Switch {
    tag: &'static str,
    /// Whether only FIFO queues may have it.
    fifo_only: bool,
    /// The allowed values, in words that follow "must be".
    values: &'static str,
    /// Whether the tag may have this value.
    takes: fn(&str) -> bool,
}

/// Every switch, in order of names.
const SWITCHES: &[Switch] = &[
    Switch {
        tag: BATCH_MAX,
        fifo_only: false,
        values: "a number from 10 to 1000",
        takes: |value| entries(value).is_some(),
    },
    Switch {
        tag: DELAY_MAX,
        fifo_only: false,
        values: "a time from 15m to 36525d, as in 12h or 90d, or unlimited",
        takes: |value| delay(value).is_some(),
    },
    Switch {
        tag: FIFO_DELAY,
        fifo_only: true,
        values: "true or false",
        takes: |value| value.parse::<bool>().is_ok(),
    },
    Switch {
        tag: ZERO_VISIBILITY,
        fifo_only: false,
        values: "nack or defer",
        takes: |value| matches!(value, "nack" | "defer"),
    },
];

/// The tag of a setting.
fn tag_of(setting: &Setting) -> String {
    format!("{PREFIX}{}", setting.flag_name())
}

/// The settings that have a tag: those that no SQS attribute sets.
fn tagged() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| setting.sqs.is_none())
}

/// Changes the settings whose tags differ between `before` and `after`. Other settings stay, so
/// that a setting that was changed by other means keeps its value.
pub(crate) fn apply(
    before: &Tags,
    after: &Tags,
    settings: &mut QueueSettings,
) -> Result<(), Invalid> {
    let ours = |tag: &&String| tag.starts_with(PREFIX);
    for tag in before.keys().chain(after.keys()).filter(ours) {
        let value = after.get(tag).map(String::as_str);
        if before.get(tag).map(String::as_str) == value {
            continue;
        }
        if let Some(setting) = tagged().find(|setting| tag_of(setting) == *tag) {
            change(setting, tag, value, settings)?;
            continue;
        }
        let switch = SWITCHES.iter().find(|switch| switch.tag == tag);
        match (switch, value) {
            (Some(switch), Some(value)) => switch.check(value, settings)?,
            (None, Some(_)) => return Err(unknown(tag)),
            // An unknown tag is from a later version and may be removed.
            (_, None) => {}
        }
    }
    let changed = |tag| before.get(tag) != after.get(tag);
    if (changed(DEDUP_WINDOW) || changed(DEDUP_SURVIVES_PURGE))
        && !after.contains_key(DEDUP_SURVIVES_PURGE)
    {
        // A purge resets AWS's window of five minutes, but not a window that a tag set.
        settings.dedup_survives_purge = after.contains_key(DEDUP_WINDOW);
    }
    if before.get(DELAY_MAX) != after.get(DELAY_MAX) {
        check_delay(after, settings)?;
    }
    Ok(())
}

/// Refuses settings from tags that do not fit together; called once all settings are in place.
pub(crate) fn check(settings: &QueueSettings) -> Result<(), Invalid> {
    if settings.key_policy == Some(KeyPolicy::Skip) && settings.dead_letter.is_none() {
        return Err(Invalid::value(
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

/// Whether messages of a FIFO queue may have their own delays.
pub(crate) fn fifo_delay(tags: &Tags) -> bool {
    tags.get(FIFO_DELAY).is_some_and(|value| value == "true")
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
    fn check(&self, value: &str, settings: &QueueSettings) -> Result<(), Invalid> {
        check_kind(self.fifo_only, self.tag, value, settings)?;
        if (self.takes)(value) {
            return Ok(());
        }
        Err(refused(self.tag, value, self.values))
    }
}

/// Sets a setting to the value of its tag, or to its default if the tag is gone.
fn change(
    setting: &Setting,
    tag: &str,
    value: Option<&str>,
    settings: &mut QueueSettings,
) -> Result<(), Invalid> {
    let value = match value {
        None => setting.get(&QueueSettings::over_http(settings.keyed)),
        Some(text) => {
            check_kind(setting.keyed, tag, text, settings)?;
            let value = setting.parse(text);
            value.map_err(|_| {
                let values = setting.values();
                match setting.with_unit(text) {
                    Some(better) => refused(tag, text, &format!("{values}: write {better}")),
                    None => refused(tag, text, &values),
                }
            })?
        }
    };
    let set = setting.set(settings, value);
    set.map_err(|error| Invalid::other(error.to_string()))
}

fn check_kind(
    fifo_only: bool,
    tag: &str,
    value: &str,
    settings: &QueueSettings,
) -> Result<(), Invalid> {
    if fifo_only && kind_of(settings) == Kind::Standard {
        let reason = "Only FIFO queues take this tag.";
        return Err(Invalid::value(value, tag, reason));
    }
    Ok(())
}

fn refused(tag: &str, value: &str, values: &str) -> Invalid {
    Invalid::value(value, tag, format_args!("It must be {values}."))
}

/// A queue's own delay may not exceed the longest delay of its messages.
fn check_delay(tags: &Tags, settings: &QueueSettings) -> Result<(), Invalid> {
    let (delay, max) = (settings.delay / 1000, delay_seconds_max(tags));
    if delay <= max {
        return Ok(());
    }
    Err(Invalid::other(format!(
        "The queue's DelaySeconds is {delay}, and without a longer {DELAY_MAX} at most {max} are \
         allowed: set DelaySeconds first."
    )))
}

fn unknown(tag: &str) -> Invalid {
    let switches = SWITCHES.iter().map(|switch| switch.tag.to_owned());
    let mut known: Vec<_> = tagged().map(tag_of).chain(switches).collect();
    known.sort_unstable();
    Invalid::value(
        tag,
        "Tags",
        format_args!(
            "Of the tags that begin with {PREFIX} these are known: {}.",
            known.join(", ")
        ),
    )
}

/// The value of the tag [`DELAY_MAX`], in seconds.
fn delay(text: &str) -> Option<u64> {
    if text == "unlimited" {
        return Some(DELAY_SECONDS_UNLIMITED);
    }
    let seconds = units::millis(text).ok()? / 1000;
    (DELAY_SECONDS_MAX..=DELAY_SECONDS_UNLIMITED)
        .contains(&seconds)
        .then_some(seconds)
}

/// The value of the tag [`BATCH_MAX`]. The machine gives and takes at most 1,000 at once.
fn entries(text: &str) -> Option<usize> {
    let entries = text.parse().ok()?;
    (ENTRIES_MAX..=1_000).contains(&entries).then_some(entries)
}

#[cfg(test)]
mod tests {
    use lockgate_core::Level;
    use lockgate_machine::KeyProfile;

    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        let pair = |&(tag, value): &(&str, &str)| (format!("{PREFIX}{tag}"), value.to_owned());
        pairs.iter().map(pair).collect()
    }

    fn applied(kind: Kind, pairs: &[(&str, &str)]) -> Result<QueueSettings, Invalid> {
        let mut settings = QueueSettings::over_http(kind == Kind::Fifo);
        apply(&Tags::new(), &tags(pairs), &mut settings)?;
        Ok(settings)
    }

    #[test]
    fn the_table_is_in_order_and_every_switch_says_what_it_takes() {
        assert!(SWITCHES.is_sorted_by_key(|switch| switch.tag));
        let switches = SWITCHES
            .iter()
            .map(|switch| (switch.tag.to_owned(), switch.values.to_owned()));
        let settings = tagged().map(|setting| (tag_of(setting), setting.values()));
        for (tag, values) in switches.chain(settings) {
            for value in ["", "nonsense", "-1", "1.5", "99999999999999999999"] {
                let refused = applied(Kind::Fifo, &[(&tag[PREFIX.len()..], value)]).unwrap_err();
                let expected = format!(
                    "Value {value} for parameter {tag} is invalid. Reason: It must be {values}."
                );
                assert_eq!(refused.to_string(), expected);
            }
        }
    }

    #[test]
    fn a_removed_tag_leaves_what_holds_without_it() {
        let set = tags(&[
            ("batch-max", "100"),
            ("attempts-max", "3"),
            ("dedup-bytes-max", "1MiB"),
            ("dedup-survives-purge", "true"),
            ("dedup-window", "7d"),
            ("delay-max", "unlimited"),
            ("fifo-delay", "true"),
            ("in-flight-max", "7"),
            ("key-policy", "park"),
            ("key-profile", "strict"),
            ("key-sequences-max", "1000"),
            ("level", "process"),
            ("limit-concurrency", "3 per key"),
            ("limit-gap", "200ms per key"),
            ("limit-rate", "100/s + 10/s per key"),
            ("producer-age", "7d"),
            ("producers-max", "10"),
            ("quota-bytes", "2GiB"),
            ("quota-messages", "9"),
            ("sync-records", "100"),
            ("sync-window", "50ms"),
            ("zero-visibility", "defer"),
        ]);
        assert_eq!(set.len(), SWITCHES.len() + tagged().count());
        let mut settings = QueueSettings::over_http(true);
        apply(&Tags::new(), &set, &mut settings).unwrap();
        assert_eq!(settings.dedup_bytes_max, 1 << 20);
        assert_eq!(settings.dedup_window, 7 * 24 * 3_600_000);
        assert!(settings.dedup_survives_purge);
        assert_eq!(settings.level, Level::Process);
        assert_eq!(settings.in_flight_max, 7);
        assert_eq!(settings.key_policy, Some(KeyPolicy::Park));
        assert_eq!(settings.key_profile, KeyProfile::Strict);
        assert_eq!(settings.key_sequences_max, 1000);
        assert_eq!(settings.attempts_max, 3);
        assert_eq!(settings.limit_rate.to_string(), "100/s + 10/s per key");
        assert_eq!(settings.limit_concurrency.to_string(), "3 per key");
        assert_eq!(settings.limit_gap.to_string(), "200ms per key");
        assert_eq!(settings.quota_bytes, Some(2 << 30));
        assert_eq!(settings.quota_messages, Some(9));
        assert_eq!(settings.producer_age, 7 * 24 * 3_600_000);
        assert_eq!(settings.producers_max, 10);
        assert_eq!(settings.sync_window, Some(50));
        assert_eq!(settings.sync_records, Some(100));
        assert_eq!(delay_seconds_max(&set), DELAY_SECONDS_UNLIMITED);
        assert_eq!(batch_max(&set), 100);
        assert!(fifo_delay(&set) && zero_visibility_defers(&set));
        apply(&set, &Tags::new(), &mut settings).unwrap();
        assert_eq!(settings, QueueSettings::over_http(true));
        assert_eq!(delay_seconds_max(&Tags::new()), 900);
        assert_eq!(batch_max(&Tags::new()), 10);
        assert!(!fifo_delay(&Tags::new()) && !zero_visibility_defers(&Tags::new()));
    }

    #[test]
    fn values_are_taken_at_the_ends_of_their_ranges_and_not_beyond() {
        for (tag, allowed, refused) in [
            ("batch-max", ["10", "1000"], ["9", "1001"]),
            ("dedup-window", ["1ms", "3653d"], ["3654d", "ever"]),
            ("dedup-window", ["0s", "forever"], ["for ever", "-1s"]),
            ("dedup-bytes-max", ["64B", "1TiB"], ["63B", "2TiB"]),
            ("dedup-bytes-max", ["100B", "1kB"], ["100", "0"]),
            ("delay-max", ["15m", "36525d"], ["14m", "36526d"]),
            ("in-flight-max", ["1", "4294967295"], ["0", "4294967296"]),
            ("attempts-max", ["1", "1000"], ["0", "1001"]),
            ("quota-bytes", ["1B", "1048576TiB"], ["0B", "1048577TiB"]),
            ("quota-messages", ["1", "1000000000000000"], ["0", "1m"]),
            (
                "sync-records",
                ["1", "1000000000000000"],
                ["0", "1000000000000001"],
            ),
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
                && error.message.contains(
                    "lockgate:attempts-max, lockgate:batch-max, lockgate:dedup-bytes-max"
                ),
            "{error}"
        );
        for tag in [FIFO_DELAY, KEY_POLICY, DEDUP_WINDOW] {
            let error = applied(Kind::Standard, &[(&tag[PREFIX.len()..], "1")]).unwrap_err();
            assert!(error.message.contains("Only FIFO queues"), "{error}");
        }
        // A tag from another version that exists already is no error.
        let mut settings = QueueSettings::over_http(true);
        let (old, new) = (
            tags(&[("nope", "1")]),
            tags(&[("nope", "1"), ("attempts-max", "2")]),
        );
        apply(&old, &new, &mut settings).unwrap();
        apply(&new, &Tags::new(), &mut settings).unwrap();
    }

    #[test]
    fn a_setting_changed_by_other_means_stays_until_its_tag_changes() {
        let (old, new) = (
            tags(&[("attempts-max", "2")]),
            tags(&[("attempts-max", "2"), ("quota-messages", "1")]),
        );
        let mut settings = QueueSettings {
            attempts_max: 9,
            ..QueueSettings::over_http(true)
        };
        apply(&old, &new, &mut settings).unwrap();
        assert_eq!(settings.attempts_max, 9);
    }
}
