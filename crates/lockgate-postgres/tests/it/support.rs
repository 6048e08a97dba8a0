//! An owner of a log, for tests that look beside it.

use lockgate_core::{AppendError, Epoch, Log, LogRecord, LogSource, Position, RecordGroup};
use lockgate_postgres::{PostgresLog, PostgresLogOptions};

pub(crate) struct Owner {
    pub(crate) log: PostgresLog,
    pub(crate) epoch: Epoch,
    pub(crate) records: Vec<LogRecord>,
}

impl Owner {
    pub(crate) fn start(url: &str, shard: &str) -> Self {
        Self::with_options(url, shard, PostgresLogOptions::default())
    }

    pub(crate) fn with_options(url: &str, shard: &str, options: PostgresLogOptions) -> Self {
        let mut log = PostgresLog::open(url, shard, options).unwrap();
        let mut records = Vec::new();
        let report = log.recover(Position(0), Epoch(0), &mut |record, _| records.push(record));
        let report = report.unwrap();
        assert!(report.damaged.is_empty(), "{report:?}");
        let epoch = report.epoch.next();
        log.begin_epoch(epoch).unwrap();
        Self {
            log,
            epoch,
            records,
        }
    }

    pub(crate) fn append(&mut self, payload: &str) -> Result<(), AppendError> {
        let mut group = RecordGroup::new(self.log.capabilities().gap);
        group.push(|buffer| buffer.extend_from_slice(payload.as_bytes()));
        let position = self.log.tail();
        self.log.append(self.epoch, position, &mut group)?;
        let payload = payload.to_owned().into();
        self.records.push(LogRecord { position, payload });
        Ok(())
    }

    pub(crate) fn sync(&self) -> Position {
        self.log.progress().sync().unwrap()
    }
}
