//! The records of a server.

use std::{fmt, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hyper::Method;
use lockgate_core::coordination::{Fence, FenceError};
use lockgate_core::{
    DeleteRecord, Epoch, ExtendRecord, Fate, HolderName, LeaseRecord, ListRecords, Millis,
    PutRecord, Record, RecordLease, RecordName, RecordPage, RecordVersion, RecordWritten, Records,
    RecordsError, ReleaseRecord, Revision, WatchRecord,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::{
    CallError, Client,
    api::Encoding,
    error::RecordFault,
    queue::{millis, wall_time},
};

/// The longest wait of one request, as the API has it.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(20);

#[derive(Deserialize)]
struct Listed {
    records: Vec<Shown>,
    next_page: Option<String>,
}

/// A record in the words of the API.
#[derive(Deserialize)]
struct Shown {
    name: String,
    value: String,
    value_encoding: Encoding,
    version: u64,
    revision: u64,
    written_at: String,
    lease: Option<ShownLease>,
}

#[derive(Deserialize)]
struct ShownLease {
    holder: String,
    epoch: u64,
    remaining_ms: Millis,
    delete_at_end: bool,
}

#[derive(Serialize)]
struct Put<'a> {
    value: &'a str,
    value_encoding: Encoding,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaces: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
}

#[derive(Deserialize)]
struct Written {
    version: u64,
    revision: u64,
}

#[derive(Serialize)]
struct Lease<'a> {
    holder: &'a str,
    lease_ms: Millis,
    delete_at_end: bool,
}

#[derive(Serialize)]
struct Extend {
    epoch: u64,
    lease_ms: Millis,
}

#[derive(Serialize)]
struct Release {
    epoch: u64,
}

/// The answer to what has nothing to tell.
#[derive(Deserialize)]
pub(crate) struct Nothing {}

pub(crate) const NO_BODY: Option<&()> = None;

/// The records of the server's first shard. They survive what the server's log survives; an answer waits for the
/// disk, or for the database.
///
/// An access key needs a grant of `read` or `manage` on records.
///
/// # Time
/// How long a lease lasts is told by the server as of its answer. A holder counts it from *before* it has sent its
/// request, on its own clock: so it is never later than the server.
///
/// # Errors
/// [`Unknown`](RecordsError::Unknown) is an answer that was lost, or did not come within
/// [`timeout`](Client::timeout). [`Unavailable`](RecordsError::Unavailable) is a server that cannot be reached, is
/// busy, or stops.
impl Records for Client {
    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        Ok(Self::fenced(self, fence))
    }

    async fn get(&self, name: RecordName) -> Result<Option<Record>, RecordsError> {
        self.read(&target(&name), Duration::ZERO).await
    }

    async fn list(&self, list: ListRecords) -> Result<RecordPage, RecordsError> {
        let mut target = format!(
            "/records?limit={}&prefix={}",
            list.limit,
            part(&list.prefix)
        );
        if let Some(after) = &list.after {
            // A page's token is the name that it begins after.
            let page = URL_SAFE_NO_PAD.encode(after.as_str());
            target.push_str(&format!("&page={page}"));
        }
        let listed = self.call::<Listed>(Method::GET, &target, NO_BODY).await;
        let Listed { records, next_page } = listed.map_err(|error| refusal(error, None))?;
        let records = records.into_iter().map(|shown| self.record(shown));
        // A page may be empty and not the last: of records that this caller may not read.
        let next = next_page.map(|page| {
            let name = URL_SAFE_NO_PAD.decode(page).ok();
            let name = name.and_then(|name| RecordName::new(&String::from_utf8(name).ok()?).ok());
            name.ok_or_else(|| refusal(self.no_lockgate("its page has no token of a page"), None))
        });
        Ok(RecordPage {
            records: records.collect::<Result<_, _>>()?,
            next: next.transpose()?,
        })
    }

    async fn watch(&self, watch: WatchRecord) -> Result<Option<Record>, RecordsError> {
        let WatchRecord { name, seen, wait } = watch;
        let begun = Instant::now();
        loop {
            let asked = Instant::now();
            let wait = wait.saturating_sub(begun.elapsed()).min(WAIT_MAX);
            let mut target = format!("{}?wait_ms={}", target(&name), millis(wait));
            if let Some(Revision(seen)) = seen {
                target.push_str(&format!("&seen={seen}"));
            }
            let record = self.read(&target, wait).await?;
            if record.as_ref().map(|record| record.revision) != seen || wait.is_zero() {
                return Ok(record);
            }
            // A server that stops ends all waits. One counts whole milliseconds, which tells nothing of a short wait.
            if wait >= Duration::from_secs(1) && asked.elapsed() < wait / 2 {
                let why = "the server has ended the wait before its time".to_owned();
                return Err(RecordsError::Unavailable { why });
            }
        }
    }

    async fn put(&self, put: PutRecord) -> Result<RecordWritten, RecordsError> {
        let (value, value_encoding) = Encoding::of(&put.value);
        let body = Put {
            value: &value,
            value_encoding,
            replaces: put.replaces.map(|version| version.0),
            epoch: put.epoch.map(|epoch| epoch.0),
        };
        let target = target(&put.name);
        let written = self.change(Method::PUT, &target, Some(&body), put.epoch);
        let Written { version, revision } = written.await?;
        Ok(RecordWritten {
            version: RecordVersion(version),
            revision: Revision(revision),
        })
    }

    async fn delete(&self, delete: DeleteRecord) -> Result<(), RecordsError> {
        let mut target = format!("{}?replaces={}", target(&delete.name), delete.replaces);
        if let Some(Epoch(epoch)) = delete.epoch {
            target.push_str(&format!("&epoch={epoch}"));
        }
        let deleted = self.change(Method::DELETE, &target, NO_BODY, delete.epoch);
        let Nothing {} = deleted.await?;
        Ok(())
    }

    async fn lease(&self, lease: LeaseRecord) -> Result<Record, RecordsError> {
        let target = format!("{}/lease", target(&lease.name));
        let body = Lease {
            holder: lease.holder.as_str(),
            lease_ms: lease.lease,
            delete_at_end: lease.delete_at_end,
        };
        let leased = self.change(Method::POST, &target, Some(&body), None);
        self.record(leased.await?)
    }

    async fn extend(&self, extend: ExtendRecord) -> Result<(), RecordsError> {
        let target = format!("{}/extend", target(&extend.name));
        let body = Extend {
            epoch: extend.epoch.0,
            lease_ms: extend.lease,
        };
        let extended = self.change(Method::POST, &target, Some(&body), Some(extend.epoch));
        let Nothing {} = extended.await?;
        Ok(())
    }

    async fn release(&self, release: ReleaseRecord) -> Result<(), RecordsError> {
        let target = format!("{}/release", target(&release.name));
        let epoch = release.epoch.0;
        let body = Release { epoch };
        let released = self.change(Method::POST, &target, Some(&body), Some(release.epoch));
        let Nothing {} = released.await?;
        Ok(())
    }
}

impl Client {
    /// Reads a record. `longer`: how long the request itself waits.
    async fn read(&self, target: &str, longer: Duration) -> Result<Option<Record>, RecordsError> {
        let shown = self.call_within(Method::GET, target, NO_BODY, longer).await;
        match shown {
            Ok(shown) => self.record(shown).map(Some),
            Err(CallError::Record { code, .. }) if code == "record_not_found" => Ok(None),
            Err(error) => Err(match refusal(error, None) {
                // A read changes nothing, so its outcome is not in question.
                RecordsError::Unknown { why } => RecordsError::Unavailable { why },
                other => other,
            }),
        }
    }

    /// Makes a call for a change. `epoch`: of the lease that the request names.
    async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Option<&impl Serialize>,
        epoch: Option<Epoch>,
    ) -> Result<T, RecordsError> {
        let answer = self.call(method, target, body).await;
        answer.map_err(|error| refusal(error, epoch))
    }

    fn record(&self, shown: Shown) -> Result<Record, RecordsError> {
        let wrong = |what: &dyn fmt::Display| refusal(self.no_lockgate(what), None);
        let value = shown.value_encoding.decode(&shown.value);
        let lease = shown.lease.map(|lease| {
            Ok::<_, RecordsError>(RecordLease {
                holder: HolderName::new(&lease.holder).map_err(|error| wrong(&error))?,
                epoch: Epoch(lease.epoch),
                remaining: Duration::from_millis(lease.remaining_ms),
                delete_at_end: lease.delete_at_end,
            })
        });
        Ok(Record {
            name: RecordName::new(&shown.name).map_err(|error| wrong(&error))?,
            value: value.map_err(|error| wrong(&error))?.into(),
            version: RecordVersion(shown.version),
            revision: Revision(shown.revision),
            written: wall_time(&shown.written_at).ok_or_else(|| wrong(&shown.written_at))?,
            lease: lease.transpose()?,
        })
    }
}

pub(crate) fn part(text: &str) -> impl fmt::Display {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

/// A record in the API.
fn target(name: &RecordName) -> String {
    format!("/records/{}", part(name.as_str()))
}

fn refusal(error: CallError, epoch: Option<Epoch>) -> RecordsError {
    if let CallError::Record { code, fault, .. } = &error
        && let Some(refused) = in_core_words(code, fault, epoch)
    {
        return refused;
    }
    if let CallError::Fenced(refused) = error {
        return refused.into();
    }
    let (fate, why) = (
        error.fate(),
        lockgate_core::with_sources(&error).to_string(),
    );
    match fate {
        Fate::Retry | Fate::Closed => RecordsError::Unavailable { why },
        Fate::Unknown => RecordsError::Unknown { why },
        _ => RecordsError::Invalid { why },
    }
}

/// `None`: the server says something else than this API.
fn in_core_words(code: &str, fault: &RecordFault, epoch: Option<Epoch>) -> Option<RecordsError> {
    let name = || RecordName::new(fault.name.as_deref()?).ok();
    match code {
        "record_conflict" => Some(RecordsError::Conflict {
            name: name()?,
            version: fault.version.map(RecordVersion),
        }),
        "record_held" => Some(RecordsError::Held {
            name: name()?,
            holder: HolderName::new(fault.holder.as_deref()?).ok()?,
            remaining: Duration::from_millis(fault.remaining_ms?),
        }),
        "lease_stale" => Some(RecordsError::LeaseLost {
            name: name()?,
            epoch: epoch?,
        }),
        "records_full" => Some(RecordsError::Full {
            max: fault.bytes_max?,
        }),
        _ => None,
    }
}
