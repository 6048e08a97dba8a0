//! Operations on records: read, watch, write and lease them.

use std::time::Duration;

use lockgate_core::{
    self as core, Epoch, HolderName, Record, RecordName, RecordPage, RecordVersion, RecordsError,
    Revision,
};
use lockgate_machine::GetRecord;

use super::{invalid_page, page_after, page_limit, page_start};
use crate::{
    api::{
        Code, Problem, Request, Service,
        shapes::{
            DeleteRecord, Encoding, ExtendRecord, Instant, LeaseRecord, ListRecords, PutRecord,
            RecordFault, RecordLeaseView, RecordView, RecordWritten, Records, ReleaseRecord,
            WatchRecord, Within,
        },
    },
    auth::Verb,
};

impl Service {
    pub(in crate::api) async fn list_records(
        &self,
        request: &Request<'_>,
        input: ListRecords,
    ) -> Result<Records, Problem> {
        let after = match &input.page {
            None => None,
            Some(page) => Some(RecordName::new(&page_start(page)?).map_err(|_| invalid_page())?),
        };
        let mut list = core::ListRecords {
            prefix: input.prefix.unwrap_or_default(),
            after,
            limit: page_limit(input.limit),
        };
        loop {
            let RecordPage { mut records, next } = self.engine.query(list.clone()).await?;
            records.retain(|record| request.may_with_record(Verb::Read, &record.name));
            // A page that goes on ends with a record that the caller may read: its token tells the name.
            let last = records.last().map(|record| record.name.clone());
            match next {
                Some(next) if last.is_none() => list.after = Some(next),
                next => {
                    let next = next.and(last);
                    return Ok(Records {
                        records: records.into_iter().map(view).collect(),
                        next_page: next.map(|last| page_after(last.as_str())),
                    });
                }
            }
        }
    }

    pub(in crate::api) async fn get_record(
        &self,
        request: &Request<'_>,
        record: &str,
        input: &WatchRecord,
    ) -> Result<RecordView, Problem> {
        let name = record_of(request, Verb::Read, record)?;
        let get = || {
            let name = name.clone();
            self.engine.query(GetRecord { name })
        };
        let wait = Duration::from_millis(input.wait_ms.map_or(0, Within::get));
        let found = if wait.is_zero() || self.drain.has_begun() {
            get().await?
        } else {
            let watch = core::WatchRecord {
                name: name.clone(),
                seen: input.seen.map(Revision),
                wait,
            };
            tokio::select! {
                biased;
                changed = self.engine.watch_record(watch) => changed?,
                // Nobody waits for the answer any more, or nobody may.
                () = request.hangup.come() => get().await?,
                () = self.drain.begun() => get().await?,
            }
        };
        found.map(view).ok_or_else(|| {
            let detail = format!("there is no record {name}");
            Problem::new(Code::RecordNotFound, detail).of_record(RecordFault {
                name: Some(name.to_string()),
                ..RecordFault::default()
            })
        })
    }

    pub(in crate::api) async fn put_record(
        &self,
        request: &Request<'_>,
        record: &str,
        input: PutRecord,
    ) -> Result<RecordWritten, Problem> {
        let put = core::PutRecord {
            name: record_of(request, Verb::Manage, record)?,
            value: input.value_encoding.decode("value", input.value)?,
            replaces: input.replaces.map(RecordVersion),
            epoch: input.epoch.map(Epoch),
        };
        let core::RecordWritten { version, revision } = self.engine.submit(put).await?;
        Ok(RecordWritten {
            version: version.0,
            revision: revision.0,
        })
    }

    pub(in crate::api) async fn delete_record(
        &self,
        request: &Request<'_>,
        record: &str,
        input: &DeleteRecord,
    ) -> Result<(), Problem> {
        let delete = core::DeleteRecord {
            name: record_of(request, Verb::Manage, record)?,
            replaces: RecordVersion(input.replaces),
            epoch: input.epoch.map(Epoch),
        };
        Ok(self.engine.submit(delete).await?)
    }

    pub(in crate::api) async fn lease_record(
        &self,
        request: &Request<'_>,
        record: &str,
        input: LeaseRecord,
    ) -> Result<RecordView, Problem> {
        let holder = HolderName::new(&input.holder);
        let lease = core::LeaseRecord {
            name: record_of(request, Verb::Manage, record)?,
            holder: holder.map_err(|error| Problem::invalid("holder", error))?,
            lease: input.lease_ms.get(),
            delete_at_end: input.delete_at_end,
        };
        Ok(view(self.engine.submit(lease).await?))
    }

    pub(in crate::api) async fn extend_record(
        &self,
        request: &Request<'_>,
        record: &str,
        input: &ExtendRecord,
    ) -> Result<(), Problem> {
        let extend = core::ExtendRecord {
            name: record_of(request, Verb::Manage, record)?,
            epoch: Epoch(input.epoch),
            lease: input.lease_ms.get(),
        };
        Ok(self.engine.submit(extend).await?)
    }

    pub(in crate::api) async fn release_record(
        &self,
        request: &Request<'_>,
        record: &str,
        input: &ReleaseRecord,
    ) -> Result<(), Problem> {
        let release = core::ReleaseRecord {
            name: record_of(request, Verb::Manage, record)?,
            epoch: Epoch(input.epoch),
        };
        Ok(self.engine.submit(release).await?)
    }
}

/// The record of that name, if the caller may do `verb` with it, whether or not it is there.
pub(in crate::api) fn record_of(
    request: &Request<'_>,
    verb: Verb,
    name: &str,
) -> Result<RecordName, Problem> {
    let name = RecordName::new(name).map_err(|error| Problem::invalid("record", error))?;
    if request.may_with_record(verb, &name) {
        return Ok(name);
    }
    Err(request.denied(verb, format_args!("record {name}")))
}

fn view(record: Record) -> RecordView {
    let (value, value_encoding) = Encoding::encode(&record.value);
    RecordView {
        name: record.name.to_string(),
        value,
        value_encoding,
        version: record.version.0,
        revision: record.revision.0,
        written_at: Instant(record.written),
        lease: record.lease.map(|lease| RecordLeaseView {
            holder: lease.holder.to_string(),
            epoch: lease.epoch.0,
            remaining_ms: millis(lease.remaining),
            delete_at_end: lease.delete_at_end,
        }),
    }
}

fn millis(span: Duration) -> core::Millis {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl From<RecordsError> for Problem {
    fn from(error: RecordsError) -> Self {
        let detail = error.to_string();
        let fault = |name: RecordName| RecordFault {
            name: Some(name.to_string()),
            ..RecordFault::default()
        };
        match error {
            RecordsError::Conflict { name, version } => Self::new(Code::RecordConflict, detail)
                .of_record(RecordFault {
                    version: version.map(|version| version.0),
                    ..fault(name)
                }),
            RecordsError::Held {
                name,
                holder,
                remaining,
            } => Self::new(Code::RecordHeld, detail).of_record(RecordFault {
                holder: Some(holder.to_string()),
                remaining_ms: Some(millis(remaining)),
                ..fault(name)
            }),
            RecordsError::LeaseLost { name, .. } => {
                Self::new(Code::LeaseStale, detail).of_record(fault(name))
            }
            RecordsError::Full { max } => {
                Self::new(Code::RecordsFull, detail).of_record(RecordFault {
                    bytes_max: Some(max),
                    ..RecordFault::default()
                })
            }
            RecordsError::Unknown { .. } => Self::new(Code::UnknownOutcome, detail),
            RecordsError::Unavailable { .. } => Self::new(Code::Unavailable, detail),
            _ => Self::new(Code::InvalidValue, detail),
        }
    }
}
