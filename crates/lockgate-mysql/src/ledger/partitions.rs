//! Partitions of the table of events, by ranges of the sequence id.
//!
//! The partition `p7` of a ledger with partitions of 100 has the events 701 to 800. Behind the last one of them is `rest`, which
//! takes what has no other: so no append fails for want of a partition. It is empty where the next one is made ahead, and then
//! taking one from it copies nothing.
//!
//! These servers end a transaction that changes a table's form. Therefore partitions are made and dropped behind the commit of
//! a change of the head, on the same connection.

use lockgate_core::ledger::LedgerHead;
use mysql_async::{Conn, Error, prelude::Queryable as _};

/// How long a change of partitions waits for transactions that use the table, in seconds. Whoever comes behind it waits too.
const WAIT: u64 = 1;

/// What is known of the partitions.
#[derive(Default)]
pub(super) struct Partitions {
    /// The last events of the first one and of the last one.
    ends: Option<(u64, u64)>,
    /// From which head on to try again what has failed.
    again: u64,
}

impl Partitions {
    /// Whether there is something to do: a partition is to be made ahead, or has no event that is kept.
    pub(super) fn is_due(&self, of: u64, head: &LedgerHead) -> bool {
        let sequence_id = head.sequence_id.0;
        let is_needed = self.ends.is_none_or(|(first, last)| {
            first < head.first_id.0 || last < sequence_id.saturating_add(of / 2)
        });
        is_needed && sequence_id >= self.again
    }

    /// Makes the partitions up to one partition's events behind the head, and drops those without an event that is kept. If
    /// that fails, it is tried again some events later: till then `rest` takes what there is.
    pub(super) async fn maintain(
        &mut self,
        on: &mut Conn,
        ledger: &str,
        of: u64,
        head: &LedgerHead,
        lock_wait: u64,
    ) {
        self.ends = None;
        self.again = head.sequence_id.0.saturating_add(of.div_ceil(64));
        if let Ok(ends) = maintain(on, ledger, of, head, lock_wait).await {
            (self.ends, self.again) = (Some(ends), 0);
        }
    }
}

/// The part of the statement that makes the table.
pub(super) fn made_with(of: Option<i64>) -> String {
    let Some(of) = of else {
        return String::new();
    };
    let parts = [part(0, of.unsigned_abs()), REST.to_owned()].join(", ");
    format!("PARTITION BY RANGE (sequence_id) ({parts})")
}

const REST: &str = "PARTITION rest VALUES LESS THAN MAXVALUE";

/// A partition of so many events; the first one has the number 0.
fn part(number: u64, of: u64) -> String {
    let end = number.saturating_add(1).saturating_mul(of);
    format!("PARTITION p{number} VALUES LESS THAN ({})", end + 1)
}

async fn maintain(
    on: &mut Conn,
    ledger: &str,
    of: u64,
    head: &LedgerHead,
    lock_wait: u64,
) -> Result<(u64, u64), Error> {
    let sql = format!(
        "SELECT partition_name, partition_description FROM information_schema.partitions
         WHERE table_schema = DATABASE() AND table_name = '{ledger}_events' AND partition_name <> 'rest'
         ORDER BY partition_ordinal_position"
    );
    let found: Vec<(String, String)> = on.query(sql).await?;
    let mut parts = Vec::new();
    for (name, below) in found {
        let below: u64 = below.parse().map_err(|_| {
            let why = format!("partition {name} has events below {below:?}");
            Error::Other(why.into())
        })?;
        parts.push((name, below.saturating_sub(1)));
    }
    let (sequence_id, first_id) = (head.sequence_id.0, head.first_id.0);
    let gone: Vec<_> = parts.extract_if(.., |(_, end)| *end < first_id).collect();
    let before = first_id.saturating_sub(1) / of * of;
    let mut last = parts.last().map_or(before, |(_, end)| *end);
    let mut first = parts.first().map(|(_, end)| *end);
    let mut new = Vec::new();
    if last < sequence_id.saturating_add(of / 2) {
        while last < sequence_id.saturating_add(of) {
            new.push(part(last / of, of));
            last = (last / of + 1) * of;
            first.get_or_insert(last);
        }
    }
    let mut changes = Vec::new();
    if !new.is_empty() {
        new.push(REST.to_owned());
        changes.push(format!(
            "REORGANIZE PARTITION rest INTO ({})",
            new.join(", ")
        ));
    }
    if !gone.is_empty() {
        let gone: Vec<_> = gone.into_iter().map(|(name, _)| name).collect();
        changes.push(format!("DROP PARTITION {}", gone.join(", ")));
    }
    for change in &changes {
        let sql =
            format!("SET SESSION lock_wait_timeout = {WAIT}; ALTER TABLE {ledger}_events {change}");
        let changed = on.query_drop(sql).await;
        let reset = format!("SET SESSION lock_wait_timeout = {lock_wait}");
        on.query_drop(reset).await?;
        changed?;
    }
    Ok((first.unwrap_or(last), last))
}

#[cfg(test)]
mod tests {
    use lockgate_core::ledger::SequenceId;

    use super::*;

    #[test]
    fn partitions_are_due_before_the_head_is_there_and_when_all_of_one_is_gone() {
        let head = |first_id, sequence_id| LedgerHead {
            first_id: SequenceId(first_id),
            sequence_id: SequenceId(sequence_id),
            ..LedgerHead::start(false)
        };
        let mut partitions = Partitions::default();
        assert!(partitions.is_due(100, &head(1, 0)));
        partitions.ends = Some((100, 300));
        assert!(!partitions.is_due(100, &head(1, 250)));
        assert!(partitions.is_due(100, &head(1, 251)));
        assert!(!partitions.is_due(100, &head(100, 200)));
        assert!(partitions.is_due(100, &head(101, 200)));
        partitions.again = 260;
        assert!(!partitions.is_due(100, &head(101, 259)));
        assert!(partitions.is_due(100, &head(1, 260)));
        assert_eq!(part(2, 100), "PARTITION p2 VALUES LESS THAN (301)");
    }
}
