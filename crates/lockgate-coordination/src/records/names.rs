//! What the records of an election are called.
//!
//! ```text
//! PREFIX election/term/NAME           who leads, the history, the last checkpoint; leased by the leader
//! PREFIX election/ask/NAME            the last request to resign
//! PREFIX election/line/NAME/HOLDER    a candidate's place; leased by it, and gone when it has gone
//! PREFIX lock/term/NAME, PREFIX lock/line/NAME/HOLDER    the same of a lock; gone when nobody holds it
//! ```

use lockgate_core::{ElectionName, HolderName, NameError, Record, RecordName};

/// Whether something is kept of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Election,
    Lock,
}

#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) election: ElectionName,
    pub(crate) kind: Kind,
    pub(crate) term: RecordName,
    pub(crate) ask: RecordName,
    /// What the names of all places begin with.
    pub(crate) line: String,
}

impl Names {
    pub(crate) fn new(
        prefix: &str,
        kind: Kind,
        election: &ElectionName,
    ) -> Result<Self, NameError> {
        let kind_name = match kind {
            Kind::Election => "election",
            Kind::Lock => "lock",
        };
        let name = |part: &str| RecordName::new(&format!("{prefix}{kind_name}/{part}/{election}"));
        Ok(Self {
            election: election.clone(),
            kind,
            term: name("term")?,
            ask: name("ask")?,
            line: format!("{}/", name("line")?),
        })
    }

    pub(crate) fn place(&self, holder: &HolderName) -> Result<RecordName, NameError> {
        RecordName::new(&format!("{}{holder}", self.line))
    }

    /// Whether the record is a place in this line. The name of another election may begin with the name of this one.
    pub(crate) fn is_place(&self, record: &Record) -> bool {
        let holder = record.lease.as_ref().map(|lease| lease.holder.as_str());
        holder.is_some() && record.name.as_str().strip_prefix(&self.line) == holder
    }
}

/// What the names of the terms of all elections begin with.
pub(crate) fn terms(prefix: &str) -> String {
    format!("{prefix}election/term/")
}

/// What tells a candidacy from all others, behind the name that its candidate has given.
pub(crate) fn holder(
    candidate: &HolderName,
    writer: u64,
    call: u64,
) -> Result<HolderName, NameError> {
    HolderName::new(&format!("{candidate}#{writer:016x}.{call}"))
}

/// The name that the candidate has given.
pub(crate) fn candidate(holder: &HolderName) -> HolderName {
    let name = holder.as_str().rsplit_once('#').map(|(name, _)| name);
    name.and_then(|name| HolderName::new(name).ok())
        .unwrap_or_else(|| holder.clone())
}
