//! Commands for records, and what they leave.

use bytes::Bytes;
use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, HolderName, LeaseRecord, ListRecords, PutRecord, RecordName,
    RecordPage, RecordVersion, ReleaseRecord,
};
use lockgate_machine::*;

use super::World;
use crate::model::{exchanges, records};

/// So little for records and states, and so few exchanges, that some are refused.
pub(crate) fn limits() -> MachineLimits {
    MachineLimits {
        record_bytes_max: records::RECORD_BYTES,
        state_bytes_max: records::STATE_BYTES,
        exchanges_max: exchanges::EXCHANGES_MAX,
        ..MachineLimits::default()
    }
}

impl World {
    /// Mostly one that the record is ready for.
    pub(super) fn record_command(&mut self) -> Command {
        self.record_turns += 1;
        let turn = self.record_turns.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24;
        let name = RecordName::new(["a", "a/b", "c"][turn as usize % 3]).unwrap();
        let holder = HolderName::new(["ann", "bob"][turn as usize / 3 % 2]).unwrap();
        let (version, epoch) = self.model.record(&name);
        let is_wrong = (turn / 6).is_multiple_of(5);
        let wrong_version = RecordVersion(version.map_or(7, |version| version.0 - 1));
        let wrong_epoch = Epoch(epoch.map_or(7, |epoch| epoch.0 - 1));
        let (version, epoch) = match is_wrong {
            true if turn.is_multiple_of(2) => (Some(wrong_version), epoch),
            true => (version, Some(wrong_epoch)),
            false => (version, epoch),
        };
        let lease = [20, 200, 40_000][turn as usize / 30 % 3];
        match turn / 90 % 9 {
            0..3 => Command::PutRecord(Box::new(PutRecord {
                name,
                value: Bytes::from(vec![b'r'; turn as usize / 810 % 300]),
                replaces: version,
                epoch,
            })),
            3 => Command::DeleteRecord(DeleteRecord {
                name,
                replaces: version.unwrap_or(wrong_version),
                epoch,
            }),
            4..7 => Command::LeaseRecord(LeaseRecord {
                name,
                holder,
                lease,
                delete_at_end: (turn / 810).is_multiple_of(3),
            }),
            7 => Command::ExtendRecord(ExtendRecord {
                name,
                epoch: epoch.unwrap_or(wrong_epoch),
                lease,
            }),
            _ => Command::ReleaseRecord(ReleaseRecord {
                name,
                epoch: epoch.unwrap_or(wrong_epoch),
            }),
        }
    }

    /// Page by page, all records are shown once, in order.
    pub(super) fn compare_records(&self) {
        let (mut shown, mut after) = (Vec::new(), None);
        loop {
            let query = Query::ListRecords(ListRecords {
                prefix: String::new(),
                after: after.take(),
                limit: 2,
            });
            match self.machine.query(&query, self.now) {
                Ok(QueryReply::Records(RecordPage { records, next })) => {
                    shown.extend(records);
                    after = next;
                }
                other => panic!("a query for records was answered {other:?}"),
            }
            if after.is_none() {
                break;
            }
        }
        assert_eq!(self.model.all_records(), shown);
        let RecordCounts {
            bytes, state_bytes, ..
        } = self.machine.record_counts();
        assert_eq!(self.model.record_bytes(), (bytes, state_bytes));
    }
}
