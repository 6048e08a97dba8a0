//! What a server's program answers.

use std::time::Duration;

use bytes::Bytes;
use lockgate_core::{
    Epoch, HolderName, Record, RecordLease, RecordName, RecordVersion, RecordWritten, RecordsError,
    Revision, WallTime,
    coordination::{Fence, FenceError},
};

/// A record as a server tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its value.
    pub value: Bytes,
    /// The number of the value.
    pub version: i64,
    /// The number of its last change.
    pub revision: i64,
    /// When the value was written, in milliseconds since 1970.
    pub written: i64,
    /// Who holds its lease.
    pub holder: Option<String>,
    /// The lease's epoch.
    pub epoch: Option<i64>,
    /// How much longer the lease lasts, in microseconds.
    pub remaining: Option<i64>,
    /// Whether the record is deleted when the lease ends.
    pub delete_at_end: bool,
}

/// What a server's program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What it was asked for.
    Done,
    /// Nothing: the record has the row's version; none, if that is 0.
    Conflict,
    /// Nothing: the row's holder has the lease.
    Held,
    /// Nothing: the lease that was named has ended.
    Lost,
    /// Nothing: the guard of the fence has seen that later term.
    Fenced(Epoch),
}

/// What a server's program answers that is none of ours.
#[must_use]
pub fn unreadable(what: &str) -> RecordsError {
    let why = format!("the server's answer cannot be read: {what}");
    RecordsError::Unavailable { why }
}

fn unsigned(what: &str, given: i64) -> Result<u64, RecordsError> {
    u64::try_from(given).map_err(|_| unreadable(&format!("{what} is {given}")))
}

impl Row {
    /// Whether it shows a lease that has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.remaining.is_some_and(|remaining| remaining <= 0)
    }

    /// As a record of that name.
    ///
    /// # Errors
    /// [`RecordsError::Unavailable`] if no store has written it.
    pub fn into_record(self, name: RecordName) -> Result<Record, RecordsError> {
        let lease = match (&self.holder, self.epoch) {
            (Some(holder), Some(epoch)) => Some(RecordLease {
                holder: holder_name(holder)?,
                epoch: Epoch(unsigned("epoch", epoch)?),
                remaining: self.left(),
                delete_at_end: self.delete_at_end,
            }),
            _ => None,
        };
        let written = self.written()?;
        Ok(Record {
            name,
            version: written.version,
            revision: written.revision,
            written: WallTime(unsigned("written", self.written)?),
            value: self.value,
            lease,
        })
    }

    /// What a write did.
    ///
    /// # Errors
    /// As [`into_record`](Self::into_record).
    pub fn written(&self) -> Result<RecordWritten, RecordsError> {
        Ok(RecordWritten {
            version: RecordVersion(unsigned("version", self.version)?),
            revision: Revision(unsigned("revision", self.revision)?),
        })
    }

    fn left(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.remaining.unwrap_or(0)).unwrap_or(0))
    }
}

fn holder_name(text: &str) -> Result<HolderName, RecordsError> {
    HolderName::new(text).map_err(|error| unreadable(&error.to_string()))
}

impl Outcome {
    /// By the word for it: `done`, `conflict`, `held`, `lost`, or `fenced` and behind a space the highest epoch that was seen.
    ///
    /// # Errors
    /// [`RecordsError::Unavailable`] for another one.
    pub fn of(word: &str) -> Result<Self, RecordsError> {
        match word {
            "done" => Ok(Self::Done),
            "conflict" => Ok(Self::Conflict),
            "held" => Ok(Self::Held),
            "lost" => Ok(Self::Lost),
            other => {
                let newest = other.strip_prefix("fenced ").map(str::parse);
                match newest {
                    Some(Ok(newest)) => Ok(Self::Fenced(Epoch(newest))),
                    _ => Err(unreadable(&format!("outcome {other:?}"))),
                }
            }
        }
    }

    /// The row, if it was done; else what the command for that record, of that lease, and under that fence is told.
    ///
    /// # Errors
    /// `Conflict`, `Held`, `LeaseLost` or `Fenced`.
    pub fn done(
        self,
        row: Row,
        name: &RecordName,
        epoch: Option<Epoch>,
        fence: Option<&Fence>,
    ) -> Result<Row, RecordsError> {
        let name = name.clone();
        Err(match self {
            Self::Done => return Ok(row),
            Self::Conflict => {
                let version = unsigned("version", row.version)?;
                let version = (version > 0).then_some(RecordVersion(version));
                RecordsError::Conflict { name, version }
            }
            Self::Held => RecordsError::Held {
                name,
                holder: holder_name(row.holder.as_deref().unwrap_or_default())?,
                remaining: row.left(),
            },
            Self::Lost => {
                let epoch = epoch.unwrap_or_default();
                RecordsError::LeaseLost { name, epoch }
            }
            Self::Fenced(newest) => match fence {
                Some(fence) => {
                    let (election, epoch) = (fence.election().clone(), fence.epoch());
                    RecordsError::Fenced(FenceError::Deposed {
                        election,
                        epoch,
                        newest,
                    })
                }
                None => unreadable("it refuses a fence that was not given"),
            },
        })
    }
}
