//! What outboxes have in common, over any database.

/// Names a row of an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId(pub i64);

/// Rows of an outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxCounts {
    /// Rows that wait to be sent.
    pub to_send: u64,
    /// Rows that wait for an operator.
    pub parked: u64,
    /// Rows that wait behind a parked one of their key.
    pub behind: u64,
}

/// A row that waits for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParkedRow {
    /// Its id.
    pub id: RowId,
    /// The key of its message.
    pub key: Option<String>,
    /// The unique id of its message.
    pub unique_id: String,
    /// Why it is parked.
    pub reason: String,
    /// Whether the sink may have its message: a send of it was never answered.
    pub in_doubt: bool,
}
