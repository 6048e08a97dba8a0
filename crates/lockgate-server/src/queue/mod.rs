//! What a queue is to those who come over HTTP, by whichever API: names, tags and what they switch on,
//! headers of messages, and who may send dead letters where.

pub(crate) mod allow_policy;
pub(crate) mod extension;
pub(crate) mod headers;
pub(crate) mod kind;
pub(crate) mod tags;

use std::borrow::Cow;

use crate::fault::shortened;

/// Why a name, a tag or a header is not taken, in AWS's words where it has some: its clients match them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Invalid {
    pub(crate) message: Cow<'static, str>,
    /// Where in the message the bare reason begins, behind value and parameter.
    pub(crate) reason: Option<usize>,
}

impl Invalid {
    /// A parameter's value is not allowed, in the words AWS uses for most of them.
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

    /// In words of its own.
    pub(crate) fn other(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            message: message.into(),
            reason: None,
        }
    }
}
