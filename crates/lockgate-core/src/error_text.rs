//! Errors for many: as one line of text, and shared.

use std::{error::Error, fmt, ops::Deref, sync::Arc};

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

/// A failure of storage, for everybody whom it concerns. Displays the error with its sources, and
/// derefs to it.
#[derive(Clone)]
pub struct StorageFailure(Arc<dyn Error + Send + Sync>);

impl StorageFailure {
    /// Shares an error, such as a [`LogError`](crate::LogError).
    pub fn new(error: impl Error + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }
}

impl Deref for StorageFailure {
    type Target = dyn Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for StorageFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_sources(&*self.0))
    }
}

impl fmt::Debug for StorageFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// By what they tell.
impl PartialEq for StorageFailure {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for StorageFailure {}

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
