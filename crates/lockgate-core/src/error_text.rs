//! Errors as one line of text.

use std::error::Error;

/// An error's text with those of its sources, each behind a colon: for where only the text can be
/// kept, as when one failure is told to many.
///
/// ```
/// let source = "x".parse::<u8>().unwrap_err();
/// let error = std::io::Error::other(source);
/// assert_eq!(lockgate_core::with_sources(&error), "invalid digit found in string");
/// ```
#[must_use]
pub fn with_sources(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::{DiskError, DiskOperation, LogError};

    #[test]
    fn every_source_is_told_once() {
        let error = LogError::Disk(DiskError {
            operation: DiskOperation::Open,
            name: "here".to_owned(),
            source: std::io::Error::other("no luck"),
        });
        let text = super::with_sources(&error);
        assert!(text.ends_with("here: no luck"), "{text}");
        assert_eq!(text.matches("no luck").count(), 1, "{text}");
    }
}
