//! Queue attributes: between SQS's names and texts and a queue's settings and annotations.
//!
//! [`QueueSettings`] holds what the machine acts on. Annotations, under the attribute's own name,
//! hold what is only kept: policies, encryption labels, the throughput mode.

use std::{borrow::Cow, collections::BTreeMap};

use lockgate_core::{Millis, QueueName};
use lockgate_machine::{DedupScope, QueueCounts, QueueSettings};
use serde_json::Value;

use super::{
    Config,
    error::{ErrorCode, SqsError},
    policy, redrive,
    shapes::TextMap,
};
use crate::queue::{
    extension::{self, DELAY_SECONDS_MAX},
    kind::{Kind, kind_of},
};

/// Declares the attributes once: the enum and its names.
macro_rules! attributes {
    ($($attribute:ident),* $(,)?) => {
        /// A queue attribute of SQS.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Attribute {
            $(#[doc = concat!("`", stringify!($attribute), "`.")] $attribute,)*
        }

        impl Attribute {
            /// Every attribute.
            pub(crate) const ALL: &[Self] = &[$(Self::$attribute,)*];

            /// Its name on the wire.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$attribute => stringify!($attribute),)*
                }
            }
        }
    };
}

attributes! {
    VisibilityTimeout,
    MaximumMessageSize,
    MessageRetentionPeriod,
    DelaySeconds,
    ReceiveMessageWaitTimeSeconds,
    Policy,
    RedrivePolicy,
    RedriveAllowPolicy,
    KmsMasterKeyId,
    KmsDataKeyReusePeriodSeconds,
    SqsManagedSseEnabled,
    FifoQueue,
    ContentBasedDeduplication,
    DeduplicationScope,
    FifoThroughputLimit,
    QueueArn,
    CreatedTimestamp,
    LastModifiedTimestamp,
    ApproximateNumberOfMessages,
    ApproximateNumberOfMessagesNotVisible,
    ApproximateNumberOfMessagesDelayed,
}

impl Attribute {
    /// The attribute with that name.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.name() == name)
    }

    /// Whether its value changes with every message, so that only the engine knows it.
    pub(crate) const fn is_count(self) -> bool {
        matches!(
            self,
            Self::ApproximateNumberOfMessages
                | Self::ApproximateNumberOfMessagesNotVisible
                | Self::ApproximateNumberOfMessagesDelayed
        )
    }
}

/// The longest life a message in flight may have, in seconds.
pub(crate) const VISIBILITY_SECONDS_MAX: u64 = QueueSettings::LEASE_MAX / 1000;
/// The longest long poll, in seconds.
pub(crate) const WAIT_SECONDS_MAX: u64 = 20;
/// The largest message, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 1_048_576;

const MESSAGE_BYTES_MIN: u64 = 1_024;
const RETENTION_SECONDS_MIN: u64 = 60;
const RETENTION_SECONDS_MAX: u64 = 1_209_600;
const KMS_REUSE_SECONDS_MIN: u64 = 60;
const KMS_REUSE_SECONDS_MAX: u64 = 86_400;
/// The default, which AWS does not return.
const KMS_REUSE_SECONDS_DEFAULT: u64 = 300;
/// The longest id of a KMS key, in bytes.
const KMS_KEY_ID_LEN_MAX: usize = 2_048;

/// The part of a queue that attributes describe.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Form {
    pub(crate) kind: Kind,
    pub(crate) settings: QueueSettings,
    pub(crate) annotations: BTreeMap<String, String>,
    /// The longest delay its tags allow, in seconds.
    delay_seconds_max: u64,
}

/// Looks up the target of a redrive policy.
pub(crate) trait Targets {
    /// The kind and annotations of a queue, if it exists.
    fn target(&self, name: &QueueName) -> Option<(Kind, BTreeMap<String, String>)>;
}

impl Form {
    /// A new queue with AWS's defaults.
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            settings: QueueSettings::over_http(kind == Kind::Fifo),
            annotations: BTreeMap::new(),
            delay_seconds_max: DELAY_SECONDS_MAX,
        }
    }

    /// An existing queue.
    pub(crate) fn of(settings: &QueueSettings, annotations: &BTreeMap<String, String>) -> Self {
        Self {
            kind: kind_of(settings),
            settings: settings.clone(),
            annotations: annotations.clone(),
            delay_seconds_max: DELAY_SECONDS_MAX,
        }
    }

    /// Applies the tags that change the bounds of attributes.
    pub(crate) fn tagged(mut self, tags: &BTreeMap<String, String>) -> Self {
        self.delay_seconds_max = extension::delay_seconds_max(tags);
        self
    }

    /// Applies changes of the queue's tags; on an error, some may be applied.
    pub(crate) fn apply_tags(
        &mut self,
        before: &BTreeMap<String, String>,
        after: &BTreeMap<String, String>,
    ) -> Result<(), SqsError> {
        self.delay_seconds_max = extension::delay_seconds_max(after);
        Ok(extension::apply(before, after, &mut self.settings)?)
    }

    /// Applies the given attributes; on an error, some may be applied.
    pub(crate) fn apply(
        &mut self,
        given: &TextMap<'_>,
        name: &QueueName,
        config: &Config,
        targets: &impl Targets,
    ) -> Result<(), SqsError> {
        for (attribute, value) in given {
            let known = Attribute::from_name(attribute)
                .ok_or_else(|| SqsError::unknown_attribute(attribute))?;
            self.set(known, value, name, config, targets)?;
        }
        self.check_encryption(given)?;
        self.check_throughput()
    }

    fn set(
        &mut self,
        attribute: Attribute,
        value: &str,
        name: &QueueName,
        config: &Config,
        targets: &impl Targets,
    ) -> Result<(), SqsError> {
        let seconds = |min, max| number(attribute, value, min, max).map(|n| n * 1000);
        let fifo_only = || match self.kind {
            Kind::Fifo => Ok(()),
            Kind::Standard => Err(SqsError::new(
                ErrorCode::InvalidAttributeName,
                format!(
                    "You can specify the {} only when FifoQueue is set to true.",
                    attribute.name()
                ),
            )),
        };
        match attribute {
            Attribute::VisibilityTimeout => {
                self.settings.lease = seconds(0, VISIBILITY_SECONDS_MAX)?;
            }
            Attribute::MessageRetentionPeriod => {
                self.settings.retention = seconds(RETENTION_SECONDS_MIN, RETENTION_SECONDS_MAX)?;
            }
            Attribute::DelaySeconds => {
                self.settings.delay = seconds(0, self.delay_seconds_max)?;
            }
            Attribute::ReceiveMessageWaitTimeSeconds => {
                self.settings.receive_wait = seconds(0, WAIT_SECONDS_MAX)?;
            }
            Attribute::MaximumMessageSize => {
                let bytes = number(attribute, value, MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX)?;
                self.settings.message_bytes_max =
                    u32::try_from(bytes).map_err(|_| invalid(attribute))?;
            }
            Attribute::FifoQueue => match self.kind {
                Kind::Standard => return Err(SqsError::unknown_attribute(attribute.name())),
                Kind::Fifo if boolean(attribute, value)? => {}
                Kind::Fifo => {
                    return Err(SqsError::new(
                        ErrorCode::InvalidAttributeValue,
                        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type \
                         is not supported.",
                    ));
                }
            },
            Attribute::ContentBasedDeduplication => {
                if self.kind == Kind::Standard {
                    return Err(SqsError::unknown_attribute(attribute.name()));
                }
                self.settings.dedup_content = boolean(attribute, value)?;
            }
            Attribute::DeduplicationScope => {
                fifo_only()?;
                self.settings.dedup_scope = match value {
                    "queue" => DedupScope::Queue,
                    "messageGroup" => DedupScope::Key,
                    _ => return Err(invalid(attribute)),
                };
            }
            Attribute::FifoThroughputLimit => {
                fifo_only()?;
                if !matches!(value, "perQueue" | "perMessageGroupId") {
                    return Err(invalid(attribute));
                }
                self.keep(attribute, value);
            }
            Attribute::RedrivePolicy => {
                let policy = if value.is_empty() {
                    None
                } else {
                    Some(redrive::policy(value, self.kind, name, config, targets)?)
                };
                // AWS allows a queue to name itself. Its messages would never leave, so the policy
                // is kept and returned, and moves nothing.
                let own = policy.as_ref().filter(|(queue, _)| queue == name);
                let kept = own.map(|(queue, max)| redrive::policy_text(queue, *max, config));
                self.keep(attribute, &kept.unwrap_or_default());
                self.settings.dead_letter = None;
                if let Some((queue, attempts_max)) = policy.filter(|(queue, _)| queue != name) {
                    self.settings.dead_letter = Some(queue);
                    self.settings.attempts_max = attempts_max;
                }
            }
            Attribute::RedriveAllowPolicy => {
                if !value.is_empty() {
                    redrive::check_allow_policy(value)?;
                }
                self.keep(attribute, value);
            }
            Attribute::Policy => {
                if !value.is_empty() {
                    policy::check(value)?;
                }
                self.keep(attribute, value);
            }
            Attribute::KmsMasterKeyId => self.keep(attribute, key_id(value)?),
            Attribute::KmsDataKeyReusePeriodSeconds => {
                let period = number(
                    attribute,
                    value,
                    KMS_REUSE_SECONDS_MIN,
                    KMS_REUSE_SECONDS_MAX,
                )?;
                let kept = (period != KMS_REUSE_SECONDS_DEFAULT).then(|| period.to_string());
                self.keep(attribute, kept.as_deref().unwrap_or_default());
            }
            Attribute::SqsManagedSseEnabled => {
                let enabled = boolean(attribute, value)?;
                self.keep(attribute, if enabled { "true" } else { "false" });
            }
            Attribute::QueueArn
            | Attribute::CreatedTimestamp
            | Attribute::LastModifiedTimestamp
            | Attribute::ApproximateNumberOfMessages
            | Attribute::ApproximateNumberOfMessagesNotVisible
            | Attribute::ApproximateNumberOfMessagesDelayed => {
                return Err(SqsError::unknown_attribute(attribute.name()));
            }
        }
        Ok(())
    }

    /// Keeps an attribute that the machine does not interpret; an empty value removes it.
    fn keep(&mut self, attribute: Attribute, value: &str) {
        if value.is_empty() {
            self.annotations.remove(attribute.name());
        } else {
            self.annotations
                .insert(attribute.name().to_owned(), value.to_owned());
        }
    }

    /// The two encryption labels exclude each other. A request with both is refused; of two
    /// requests, the later one wins.
    fn check_encryption(&mut self, given: &TextMap<'_>) -> Result<(), SqsError> {
        let asked = |attribute: Attribute, by: fn(&str) -> bool| {
            given.get(&attribute.name().into()).is_some_and(|v| by(v))
        };
        let kms = asked(Attribute::KmsMasterKeyId, |value| !value.is_empty());
        let sse = asked(Attribute::SqsManagedSseEnabled, |value| {
            value.eq_ignore_ascii_case("true")
        });
        match (kms, sse) {
            (true, true) => {
                return Err(SqsError::new(
                    ErrorCode::InvalidAttributeName,
                    "You can use one type of server-side encryption (SSE) at one time. You can \
                     either enable KMS SSE or SQS SSE.",
                ));
            }
            (true, false) => self.keep(Attribute::SqsManagedSseEnabled, "false"),
            (false, true) => {
                self.keep(Attribute::KmsMasterKeyId, "");
                self.keep(Attribute::KmsDataKeyReusePeriodSeconds, "");
            }
            (false, false) => {}
        }
        Ok(())
    }

    fn check_throughput(&self) -> Result<(), SqsError> {
        let per_group = self
            .annotations
            .get(Attribute::FifoThroughputLimit.name())
            .is_some_and(|limit| limit == "perMessageGroupId");
        if per_group && self.settings.dedup_scope != DedupScope::Key {
            return Err(SqsError::new(
                ErrorCode::InvalidAttributeValue,
                "Invalid value for the parameter FifoThroughputLimit. Reason: The \
                 FifoThroughputLimit value can be set to perMessageGroupId only when the \
                 DeduplicationScope value is messageGroup.",
            ));
        }
        Ok(())
    }

    /// AWS's text for an attribute that follows from the form; `None` if AWS returns nothing, and
    /// for the attributes that do not follow from it (ARN, times, counts).
    pub(crate) fn value(&self, attribute: Attribute, config: &Config) -> Option<Cow<'static, str>> {
        let seconds = |millis: Millis| Some((millis / 1000).to_string().into());
        let truth = |truth| Some(Cow::Borrowed(if truth { "true" } else { "false" }));
        let kept = || {
            let value = self.annotations.get(attribute.name())?;
            Some(Cow::Owned(value.clone()))
        };
        let fifo = self.kind == Kind::Fifo;
        match attribute {
            Attribute::VisibilityTimeout => seconds(self.settings.lease),
            Attribute::MessageRetentionPeriod => seconds(self.settings.retention),
            Attribute::DelaySeconds => seconds(self.settings.delay),
            Attribute::ReceiveMessageWaitTimeSeconds => seconds(self.settings.receive_wait),
            Attribute::MaximumMessageSize => {
                Some(self.settings.message_bytes_max.to_string().into())
            }
            Attribute::RedrivePolicy => match &self.settings.dead_letter {
                Some(queue) => {
                    let attempts_max = self.settings.attempts_max;
                    Some(redrive::policy_text(queue, attempts_max, config).into())
                }
                None => kept(),
            },
            Attribute::Policy | Attribute::RedriveAllowPolicy | Attribute::KmsMasterKeyId => kept(),
            Attribute::KmsDataKeyReusePeriodSeconds => kept().or_else(|| {
                let has_key = self
                    .annotations
                    .contains_key(Attribute::KmsMasterKeyId.name());
                has_key.then(|| KMS_REUSE_SECONDS_DEFAULT.to_string().into())
            }),
            Attribute::SqsManagedSseEnabled => Some(kept().unwrap_or(Cow::Borrowed("true"))),
            _ if !fifo => None,
            Attribute::FifoQueue => truth(true),
            Attribute::ContentBasedDeduplication => truth(self.settings.dedup_content),
            Attribute::DeduplicationScope => Some(Cow::Borrowed(match self.settings.dedup_scope {
                DedupScope::Queue => "queue",
                DedupScope::Key => "messageGroup",
            })),
            Attribute::FifoThroughputLimit => Some(kept().unwrap_or(Cow::Borrowed("perQueue"))),
            _ => None,
        }
    }

    /// The first of the `given` attributes that differs in another form. JSON is compared as JSON.
    pub(crate) fn first_difference(
        &self,
        other: &Self,
        given: &TextMap<'_>,
        config: &Config,
    ) -> Option<Attribute> {
        given
            .keys()
            .filter_map(|name| Attribute::from_name(name))
            .find(|&attribute| {
                let value = |form: &Self| {
                    let text = form.value(attribute, config)?;
                    match serde_json::from_str(&text) {
                        Ok(value) => Some(value),
                        Err(_) => Some(Value::String(text.into_owned())),
                    }
                };
                value(self) != value(other)
            })
    }
}

/// The value of an attribute that is a count.
pub(crate) fn count(attribute: Attribute, counts: &QueueCounts) -> Option<u64> {
    match attribute {
        Attribute::ApproximateNumberOfMessages => Some(counts.ready),
        Attribute::ApproximateNumberOfMessagesNotVisible => Some(counts.in_flight),
        Attribute::ApproximateNumberOfMessagesDelayed => Some(counts.delayed),
        _ => None,
    }
}

/// The attributes that a list of names selects.
pub(crate) fn wanted<'a>(
    names: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<Attribute>, SqsError> {
    let mut wanted = Vec::new();
    for name in names {
        if name == "All" {
            wanted.extend_from_slice(Attribute::ALL);
        } else {
            let known =
                Attribute::from_name(name).ok_or_else(|| SqsError::unknown_attribute(name))?;
            wanted.push(known);
        }
    }
    wanted.sort_unstable();
    wanted.dedup();
    Ok(wanted)
}

fn invalid(attribute: Attribute) -> SqsError {
    SqsError::invalid_attribute_value(attribute.name())
}

/// A KMS key id; its form is not checked.
fn key_id(value: &str) -> Result<&str, SqsError> {
    let fits = value.len() <= KMS_KEY_ID_LEN_MAX;
    fits.then_some(value)
        .ok_or_else(|| invalid(Attribute::KmsMasterKeyId))
}

fn number(attribute: Attribute, value: &str, min: u64, max: u64) -> Result<u64, SqsError> {
    value
        .parse()
        .ok()
        .filter(|number| (min..=max).contains(number) && value.starts_with(|c| c != '+'))
        .ok_or_else(|| invalid(attribute))
}

fn boolean(attribute: Attribute, value: &str) -> Result<bool, SqsError> {
    if value.eq_ignore_ascii_case("true") {
        Ok(true)
    } else if value.eq_ignore_ascii_case("false") {
        Ok(false)
    } else {
        Err(invalid(attribute))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Config {
        Config {
            account: "000000000000".into(),
            region: "us-east-1".into(),
            https: false,
        }
    }

    /// `dead` is a standard queue, `dead.fifo` a FIFO queue; `closed` and `picky` are standard
    /// queues that do not allow every source.
    struct Known;

    impl Targets for Known {
        fn target(&self, name: &QueueName) -> Option<(Kind, BTreeMap<String, String>)> {
            let policy = |policy: &str| {
                BTreeMap::from([("RedriveAllowPolicy".to_owned(), policy.to_owned())])
            };
            match name.as_str() {
                "dead" => Some((Kind::Standard, BTreeMap::new())),
                "dead.fifo" => Some((Kind::Fifo, BTreeMap::new())),
                "closed" => Some((Kind::Standard, policy(r#"{"redrivePermission":"denyAll"}"#))),
                "picky" => Some((
                    Kind::Standard,
                    policy(
                        r#"{"redrivePermission":"byQueue",
                            "sourceQueueArns":["arn:aws:sqs:us-east-1:000000000000:q"]}"#,
                    ),
                )),
                _ => None,
            }
        }
    }

    fn given<'a>(pairs: &[(&'a str, &'a str)]) -> TextMap<'a> {
        pairs
            .iter()
            .map(|&(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn applied(kind: Kind, name: &str, pairs: &[(&str, &str)]) -> Result<Form, SqsError> {
        let mut form = Form::new(kind);
        let name = QueueName::new(name).unwrap();
        form.apply(&given(pairs), &name, &config(), &Known)?;
        Ok(form)
    }

    fn standard(pairs: &[(&str, &str)]) -> Result<Form, SqsError> {
        applied(Kind::Standard, "q", pairs)
    }

    fn fifo(pairs: &[(&str, &str)]) -> Result<Form, SqsError> {
        applied(Kind::Fifo, "q.fifo", pairs)
    }

    #[test]
    fn a_new_queue_has_the_defaults_of_aws() {
        let values = |kind| {
            let form = Form::new(kind);
            Attribute::ALL
                .iter()
                .filter_map(|&a| Some(format!("{}={}", a.name(), form.value(a, &config())?)))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let common = "VisibilityTimeout=30 MaximumMessageSize=1048576 \
                      MessageRetentionPeriod=345600 DelaySeconds=0 \
                      ReceiveMessageWaitTimeSeconds=0 SqsManagedSseEnabled=true";
        assert_eq!(values(Kind::Standard), common);
        assert_eq!(
            values(Kind::Fifo),
            format!(
                "{common} FifoQueue=true ContentBasedDeduplication=false \
                 DeduplicationScope=queue FifoThroughputLimit=perQueue"
            )
        );
    }

    #[test]
    fn numbers_are_taken_at_the_ends_of_their_ranges_and_not_beyond() {
        for (attribute, good, bad) in [
            ("VisibilityTimeout", ["0", "43200"], ["-1", "43201"]),
            (
                "MaximumMessageSize",
                ["1024", "1048576"],
                ["1023", "1048577"],
            ),
            (
                "MessageRetentionPeriod",
                ["60", "1209600"],
                ["59", "1209601"],
            ),
            ("DelaySeconds", ["0", "900"], ["-1", "901"]),
            ("ReceiveMessageWaitTimeSeconds", ["0", "20"], ["-1", "21"]),
            (
                "KmsDataKeyReusePeriodSeconds",
                ["60", "86400"],
                ["59", "86401"],
            ),
        ] {
            for value in good {
                let form = standard(&[(attribute, value)]).unwrap();
                let known = Attribute::from_name(attribute).unwrap();
                assert_eq!(form.value(known, &config()).unwrap(), value, "{attribute}");
            }
            for value in bad.into_iter().chain(["", "x", "1.0", "+60", " 60", "1e3"]) {
                let error = standard(&[(attribute, value)]).expect_err(value);
                assert_eq!(error.code, ErrorCode::InvalidAttributeValue);
                assert_eq!(
                    error.message,
                    format!("Invalid value for the parameter {attribute}.")
                );
            }
        }
    }

    #[test]
    fn attributes_of_the_other_kind_and_unknown_ones_are_refused_by_name() {
        for (name, text) in [
            ("FifoQueue", "Unknown Attribute FifoQueue."),
            (
                "ContentBasedDeduplication",
                "Unknown Attribute ContentBasedDeduplication.",
            ),
            (
                "DeduplicationScope",
                "You can specify the DeduplicationScope only when FifoQueue is set to true.",
            ),
            (
                "FifoThroughputLimit",
                "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
            ),
            ("QueueArn", "Unknown Attribute QueueArn."),
            ("Nonsense", "Unknown Attribute Nonsense."),
            ("All", "Unknown Attribute All."),
            ("", "Unknown Attribute ."),
        ] {
            let error = standard(&[(name, "true")]).expect_err(name);
            assert_eq!(error.code, ErrorCode::InvalidAttributeName, "{name}");
            assert_eq!(error.message, text);
        }
    }

    #[test]
    fn fifo_attributes() {
        let form = fifo(&[
            ("FifoQueue", "true"),
            ("ContentBasedDeduplication", "True"),
            ("DeduplicationScope", "messageGroup"),
            ("FifoThroughputLimit", "perMessageGroupId"),
        ])
        .unwrap();
        assert!(form.settings.keyed && form.settings.dedup_content);
        assert_eq!(form.settings.key_profile, lockgate_machine::KeyProfile::Sqs);
        assert_eq!(form.settings.dedup_scope, DedupScope::Key);
        for bad in [
            ("FifoQueue", "false"),
            ("FifoQueue", "maybe"),
            ("ContentBasedDeduplication", "yes"),
            ("DeduplicationScope", "group"),
            ("FifoThroughputLimit", "perGroup"),
            ("FifoThroughputLimit", "perMessageGroupId"),
        ] {
            let error = fifo(&[bad]).expect_err(bad.1);
            assert_eq!(error.code, ErrorCode::InvalidAttributeValue, "{bad:?}");
        }
    }

    #[test]
    fn a_redrive_policy_names_a_target_that_is_there_and_of_the_same_kind() {
        let dead = "arn:aws:sqs:us-east-1:000000000000:dead";
        for count in ["5", "\"5\""] {
            let policy = format!(r#"{{"maxReceiveCount":{count},"deadLetterTargetArn":"{dead}"}}"#);
            let form = standard(&[("RedrivePolicy", &policy)]).unwrap();
            assert_eq!(
                (
                    form.settings.dead_letter.clone(),
                    form.settings.attempts_max
                ),
                (Some(QueueName::new("dead").unwrap()), 5)
            );
            assert_eq!(
                form.value(Attribute::RedrivePolicy, &config()).unwrap(),
                format!(r#"{{"deadLetterTargetArn":"{dead}","maxReceiveCount":5}}"#)
            );
        }
        let count_text = "Invalid value for maxReceiveCount: 1001, valid values are from 1 to \
                          1000 both inclusive.";
        for (policy, reason) in [
            (
                format!(r#"{{"deadLetterTargetArn":"{dead}"}}"#),
                "Redrive policy does not contain mandatory attribute: maxReceiveCount.",
            ),
            (
                r#"{"maxReceiveCount":1}"#.to_owned(),
                "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.",
            ),
            (
                format!(r#"{{"deadLetterTargetArn":"{dead}","maxReceiveCount":1001}}"#),
                count_text,
            ),
            (
                format!(r#"{{"deadLetterTargetArn":"{dead}","maxReceiveCount":"1001"}}"#),
                count_text,
            ),
            (
                format!(r#"{{"deadLetterTargetArn":"{dead}","maxReceiveCount":0}}"#),
                "Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both \
                 inclusive.",
            ),
            (
                format!(r#"{{"deadLetterTargetArn":"{dead}x","maxReceiveCount":1}}"#),
                "Dead letter target does not exist.",
            ),
            (
                r#"{"deadLetterTargetArn":"dummy","maxReceiveCount":1}"#.to_owned(),
                "Dead-letter target ARN should be fully qualified ARN.",
            ),
            (
                r#"{"deadLetterTargetArn":7,"maxReceiveCount":1}"#.to_owned(),
                "Invalid value for deadLetterTargetArn.",
            ),
            (
                format!(r#"{{"deadLetterTargetArn":"{dead}.fifo","maxReceiveCount":1}}"#),
                "Dead-letter queue must be same type of queue as the source.",
            ),
            (
                format!(r#"{{"deadLetterTargetArn":"{dead}","maxReceiveCount":1,"x":1}}"#),
                "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount].",
            ),
        ] {
            let error = standard(&[("RedrivePolicy", &policy)]).expect_err(&policy);
            assert_eq!(error.code, ErrorCode::InvalidParameterValue, "{policy}");
            assert_eq!(
                error.message,
                format!("Value {policy} for parameter RedrivePolicy is invalid. Reason: {reason}")
            );
        }
        assert!(
            standard(&[("RedrivePolicy", "")])
                .unwrap()
                .settings
                .dead_letter
                .is_none()
        );
    }

    #[test]
    fn a_redrive_allow_policy_is_checked_and_obeyed() {
        for (policy, good) in [
            (r#"{"redrivePermission":"allowAll"}"#.to_owned(), true),
            (r#"{"redrivePermission":"denyAll"}"#.to_owned(), true),
            (
                r#"{"redrivePermission":"byQueue","sourceQueueArns":["a"]}"#.to_owned(),
                true,
            ),
            (String::new(), true),
            (r#"{"redrivePermission":"byQueue"}"#.to_owned(), false),
            (
                r#"{"redrivePermission":"byQueue","sourceQueueArns":[]}"#.to_owned(),
                false,
            ),
            (
                r#"{"redrivePermission":"byQueue","sourceQueueArns":[1]}"#.to_owned(),
                false,
            ),
            (
                r#"{"redrivePermission":"allowAll","sourceQueueArns":["a"]}"#.to_owned(),
                false,
            ),
            (r#"{"redrivePermission":"x"}"#.to_owned(), false),
            (r#"{"x":1}"#.to_owned(), false),
            ("x".to_owned(), false),
            (
                json!({"redrivePermission": "byQueue", "sourceQueueArns": vec!["a"; 11]})
                    .to_string(),
                false,
            ),
        ] {
            let result = standard(&[("RedriveAllowPolicy", &policy)]);
            assert_eq!(result.is_ok(), good, "{policy}: {result:?}");
        }
        let policy = |target: &str| {
            format!(
                r#"{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:{target}",
                    "maxReceiveCount":1}}"#
            )
        };
        let allowed = |name: &str, target: &str| {
            applied(Kind::Standard, name, &[("RedrivePolicy", &policy(target))]).is_ok()
        };
        assert!(allowed("q", "picky"));
        assert!(!allowed("r", "picky"));
        assert!(!allowed("q", "closed"));
    }

    #[test]
    fn encryption_labels_exclude_each_other() {
        let mut form = standard(&[
            ("KmsMasterKeyId", "k"),
            ("KmsDataKeyReusePeriodSeconds", "60"),
        ])
        .unwrap();
        let value = |form: &Form, a| form.value(a, &config()).map(Cow::into_owned);
        assert_eq!(
            value(&form, Attribute::SqsManagedSseEnabled).as_deref(),
            Some("false")
        );
        let name = QueueName::new("q").unwrap();
        let sse = given(&[("SqsManagedSseEnabled", "true")]);
        form.apply(&sse, &name, &config(), &Known).unwrap();
        assert_eq!(value(&form, Attribute::KmsMasterKeyId), None);
        let both = standard(&[("KmsMasterKeyId", "k"), ("SqsManagedSseEnabled", "true")]);
        assert_eq!(both.unwrap_err().code, ErrorCode::InvalidAttributeName);
    }

    #[test]
    fn a_difference_is_found_by_meaning_and_among_the_given_only() {
        let existing = standard(&[
            ("DelaySeconds", "5"),
            ("Policy", r#"{"a":1,"b":2}"#),
            ("VisibilityTimeout", "77"),
        ])
        .unwrap();
        let difference = |pairs: &[(&str, &str)]| {
            standard(pairs)
                .unwrap()
                .first_difference(&existing, &given(pairs), &config())
        };
        assert_eq!(difference(&[]), None);
        assert_eq!(difference(&[("DelaySeconds", "5")]), None);
        assert_eq!(difference(&[("Policy", r#"{ "b":2, "a":1 }"#)]), None);
        assert_eq!(
            difference(&[("DelaySeconds", "5"), ("VisibilityTimeout", "78")]),
            Some(Attribute::VisibilityTimeout)
        );
    }

    #[test]
    fn wanted_attributes_are_listed_once_and_unknown_ones_refused() {
        assert_eq!(wanted(["All"]).unwrap().len(), Attribute::ALL.len());
        assert_eq!(
            wanted(["All", "QueueArn"]).unwrap().len(),
            Attribute::ALL.len()
        );
        assert_eq!(wanted([]).unwrap(), []);
        for unknown in ["", "not-existing", "lockgate.x"] {
            let error = wanted(["QueueArn", unknown]).unwrap_err();
            assert_eq!(error.message, format!("Unknown Attribute {unknown}."));
        }
    }
}
