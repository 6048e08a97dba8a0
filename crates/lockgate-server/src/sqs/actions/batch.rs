//! What all batch actions share.

use std::collections::HashSet;

use serde::Deserialize;

use crate::{
    few::Few,
    sqs::{
        dispatch::read_entry,
        error::{Blame, ErrorCode, SqsError},
        names,
        shapes::{BatchOutput, FailedEntry},
        text::{Object, Text},
    },
};

/// The most entries of a batch on AWS.
const FEW: usize = 10;

/// An entry of a batch.
pub(super) trait Entry {
    /// AWS's name of such an entry.
    const NAME: &'static str;

    /// Its id, as sent.
    fn id(&self) -> Option<&Text<'_>>;
}

/// Checks the rules for a batch as a whole, of at most `max` entries, and returns each entry with
/// its id.
pub(super) fn check<'a, T: Deserialize<'a>, E: Entry>(
    entries: Option<Few<'a, Object<T>>>,
    max: usize,
    entry: impl Fn(T) -> E,
) -> Result<Vec<(String, E)>, SqsError> {
    let entries = entries.unwrap_or_default();
    if entries.len() == 0 {
        return Err(SqsError::new(
            ErrorCode::EmptyBatchRequest,
            format!("There should be at least one {} in the request.", E::NAME),
        ));
    }
    if entries.len() > max {
        return Err(SqsError::new(
            ErrorCode::TooManyEntriesInBatchRequest,
            format!(
                "Maximum number of entries per request are {max}. You have sent {}.",
                entries.len()
            ),
        ));
    }
    let read = |raw| read_entry(raw).map(Object);
    entries.check(read).map_err(|(_, error)| error)?;
    let mut seen = HashSet::new();
    // No capacity for all entries: where a tag allows many, most of them may be wrong.
    let mut checked: Vec<(String, E)> = Vec::with_capacity(entries.len().min(FEW));
    for (number, given) in (1..).zip(entries.into_entries(read)) {
        let entry = entry(given?.0);
        let id = entry.id().ok_or_else(|| missing::<E>(number, "Id"))?;
        names::entry_id(id)?;
        // For ten entries, a linear search is the cheapest way.
        let repeated = if max <= FEW {
            checked.iter().any(|(earlier, _)| **earlier == **id)
        } else {
            !seen.insert(id.to_string())
        };
        if repeated {
            return Err(SqsError::new(
                ErrorCode::BatchEntryIdsNotDistinct,
                format!("Id {id} repeated."),
            ));
        }
        checked.push((id.to_string(), entry));
    }
    Ok(checked)
}

/// The error for an entry (counted from 1) that lacks a member. In both protocols AWS names the
/// member as the Query protocol does.
pub(super) fn missing<E: Entry>(number: usize, member: &str) -> SqsError {
    SqsError::missing(&format!("{}.{number}.{member}", E::NAME))
}

/// An empty outcome with room for so many entries.
pub(super) fn output<T>(entries: usize) -> BatchOutput<T> {
    BatchOutput {
        successful: Vec::with_capacity(entries),
        failed: Vec::new(),
    }
}

/// A refused entry, as the answer has it.
pub(super) fn failed(id: String, error: SqsError) -> FailedEntry {
    let (code, message) = error.into_entry();
    let row = code.row();
    FailedEntry {
        id,
        code: row.legacy,
        message,
        sender_fault: row.blame == Blame::Sender,
    }
}
