//! Rows as a fuzzer makes them. Whoever may write to the database may have written anything into its
//! columns; of what type they are is the database's to say.

use std::collections::BTreeMap;

use lockgate_core::{LogRecord, Position};

use super::{Head, Judge, Space};
use crate::{
    reader::Stored,
    shared::{Point, checksum, from_database},
};

/// Bytes of the shard's row, and of a record's before its payload: see [`rows`].
pub const LAYOUT: (usize, usize) = (64, 30);

/// What a recovery makes of rows: the columns of the shard (claim, epoch, tail, next number, trim,
/// durable point), a snapshot's number and a position to start from, 8 bytes each; then records of
/// position, number and epoch (8 bytes each), checksum (4), length (2) and payload.
pub fn rows(bytes: &[u8]) -> Result<(), String> {
    let Some((shard, mut rest)) = bytes.split_at_checked(LAYOUT.0) else {
        return Err("there is no shard".to_owned());
    };
    let number = |bytes: &[u8], at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[at..at + 8]);
        i64::from_le_bytes(number)
    };
    let columns = [0, 8, 16, 24, 32].map(|at| number(shard, at));
    let head = Head::of(columns, Some(number(shard, 40)));
    let from = Position(from_database(number(shard, 56))).max(head.trimmed);
    let claimed = head.claimed(from, Some(number(shard, 48)));
    // As the database has them: by position, which is theirs alone.
    let mut stored = BTreeMap::new();
    while let Some((row, after)) = rest.split_at_checked(LAYOUT.1) {
        let numbers = [0, 8, 16].map(|at| number(row, at));
        let sum = i32::from_le_bytes([row[24], row[25], row[26], row[27]]);
        let len = usize::from(u16::from_le_bytes([row[28], row[29]]));
        let (payload, after) = after.split_at(len.min(after.len()));
        let row = Stored::of(numbers, sum, payload);
        stored.insert(row.point.at, row);
        rest = after;
    }
    let mut space = Space::default();
    let mut judge = Judge::new(&claimed);
    let mut good = 0;
    for (at, row) in stored.range(from..) {
        space.found(at.0, claimed.tail.at, 26);
        let record = LogRecord {
            position: *at,
            payload: row.payload.clone(),
        };
        good += u64::from(judge.see(&record, row.point.number, row.verifies));
    }
    let report = judge.end(claimed.tail);
    assert_eq!(report.records, good, "records of the report");
    for range in &report.damaged {
        assert!(range.records > 0, "damage that cost nothing: {range:?}");
    }
    if report.damaged.is_empty() {
        Ok(())
    } else {
        Err(format!("{} stretches are damaged", report.damaged.len()))
    }
}

/// The checksum that a record's row should have, by its bytes; `None` if it is not whole.
pub fn checksum_of(row: &[u8]) -> Option<[u8; 4]> {
    let (head, rest) = row.split_at_checked(LAYOUT.1)?;
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&head[at..at + 8]);
        from_database(i64::from_le_bytes(number))
    };
    let len = usize::from(u16::from_le_bytes([head[28], head[29]]));
    let point = Point {
        at: Position(number(0)),
        number: number(8),
    };
    let payload = rest.get(..len)?;
    Some(checksum(point, lockgate_core::Epoch(number(16)), payload).to_le_bytes())
}
