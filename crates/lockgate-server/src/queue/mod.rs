//! What the SQS API and the admin API share about a queue: names, tags and the settings they
//! change, headers of messages, and which queues a dead-letter queue takes messages from.

pub(crate) mod allow_policy;
pub(crate) mod extension;
pub(crate) mod headers;
pub(crate) mod kind;
pub(crate) mod tags;

use std::borrow::Cow;

use crate::fault::shortened;

/// Headers of a message.
pub(crate) const HEADERS_MAX: usize = 10;

/// Bytes of a content type or trace context.
pub(crate) const LABEL_BYTES_MAX: usize = 1024;

/// Whether a text can be a content type or trace context.
pub(crate) fn is_label(text: &str) -> bool {
    (1..=LABEL_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// Why a name, a tag or a header is refused. In AWS's words where it has some, because clients
/// match them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Invalid {
    pub(crate) message: Cow<'static, str>,
    /// The byte at which the bare reason begins in the message, behind the value and the parameter.
    pub(crate) reason: Option<usize>,
}

impl Invalid {
    /// The error for a parameter's value, in the form that AWS uses for most of them.
    pub(crate) fn value(
        value: impl std::fmt::Display,
        parameter: &str,
        reason: impl std::fmt::Display,
    ) -> Self {
        let value = shortened(format_args!("{value}"));
        let mut message = format!("Value {value} for parameter {parameter} is invalid. Reason: ");
        let at = message.len();
        message.push_str(&reason.to_string());
        Self {
            message: message.into(),
            reason: Some(at),
        }
    }

    /// An error with any text.
    pub(crate) fn other(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            message: message.into(),
            reason: None,
        }
    }
}
