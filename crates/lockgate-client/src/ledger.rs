//! The ledgers of a server.

use std::{fmt, time::Duration};

use hyper::Method;
use lockgate_core::{
    Epoch, Fate, LedgerName, Millis, ReaderName, UniqueId,
    coordination::FenceError,
    ledger::{
        Append, Appended, AppendedEvent, Ledger, LedgerError, LedgerHead, LedgerOptions,
        LedgerPage, ReadLedger, ReaderPosition, SequenceId,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use crate::{
    CallError, Client,
    api::Encoding,
    error::LedgerFault,
    ledger_page::{ShownHead, ShownPage},
    queue::millis,
    records::{NO_BODY, Nothing, WAIT_MAX, part},
};

/// A ledger of a server. It lasts as the server's log does; an answer waits for the disk, or for the database.
///
/// An access key needs grants on the ledger: `read` to read it, `send` to append, `receive` to move readers, `manage` to
/// create and seal it, `purge` to trim and delete it.
///
/// # Errors
/// [`Unknown`](LedgerError::Unknown) is an answer that was lost, or did not come within [`timeout`](Client::timeout).
/// [`Unavailable`](LedgerError::Unavailable) is a server that cannot be reached, is busy, or stops; also a right that is
/// missing. A client that is [fenced](Client::fenced) gets [`Deposed`](LedgerError::Deposed) when that term is over.
#[derive(Clone, Debug)]
pub struct ServerLedger {
    client: Client,
    name: LedgerName,
}

#[derive(Serialize)]
struct Create<'a> {
    name: &'a str,
    hashed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    retention_ms: Option<Millis>,
}

#[derive(Deserialize)]
struct Shown {
    head: ShownHead,
}

#[derive(Serialize)]
struct Appending<'a> {
    epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<u64>,
    events: Vec<NewEvent<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    settled: Vec<&'a str>,
}

#[derive(Serialize)]
struct NewEvent<'a> {
    payload: String,
    payload_encoding: Encoding,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a str>,
}

#[derive(Deserialize)]
struct ShownAppended {
    events: Vec<ShownPlace>,
    head: ShownHead,
}

#[derive(Deserialize)]
struct ShownPlace {
    sequence_id: u64,
    duplicate: bool,
}

#[derive(Deserialize)]
struct Found {
    sequence_id: u64,
}

#[derive(Deserialize)]
struct ShownReaders {
    readers: Vec<ShownReader>,
}

#[derive(Deserialize)]
struct ShownReader {
    reader: String,
    sequence_id: u64,
}

#[derive(Serialize)]
struct Place {
    sequence_id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<u64>,
}

#[derive(Deserialize)]
struct Moved {
    existed: bool,
}

#[derive(Serialize)]
struct Seal {
    epoch: u64,
}

#[derive(Serialize)]
struct Trim {
    first_id: u64,
}

impl Client {
    /// The ledger of that name, whether or not it is there.
    #[must_use]
    pub fn ledger(&self, name: LedgerName) -> ServerLedger {
        ServerLedger {
            client: self.clone(),
            name,
        }
    }
}

impl ServerLedger {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &LedgerName {
        &self.name
    }

    /// Makes it, unless there is one with these options.
    ///
    /// # Errors
    /// `Invalid` if there is one with others; `Full`, `Unknown` and `Unavailable`.
    pub async fn create(&self, options: LedgerOptions) -> Result<LedgerHead, LedgerError> {
        let body = Create {
            name: self.name.as_str(),
            hashed: options.hashed,
            retention_ms: options.retention,
        };
        let made = self.client.call(Method::POST, "/ledgers", Some(&body));
        let Shown { head } = made.await.map_err(|error| self.refusal(error))?;
        self.head_of(head)
    }

    /// Deletes it, with all its events, unique ids and readers.
    ///
    /// # Errors
    /// `NotFound`, `Unknown` and `Unavailable`.
    pub async fn delete(&self) -> Result<(), LedgerError> {
        let Nothing {} = self.change(Method::DELETE, "", NO_BODY).await?;
        Ok(())
    }

    fn target(&self, rest: &str) -> String {
        format!("/ledgers/{}{rest}", part(self.name.as_str()))
    }

    /// Makes a call that changes nothing, so its outcome is not in question. `longer`: how long the request itself waits.
    async fn ask<T: DeserializeOwned>(
        &self,
        rest: &str,
        longer: Duration,
    ) -> Result<T, LedgerError> {
        let target = self.target(rest);
        let call = self
            .client
            .call_within(Method::GET, &target, NO_BODY, longer);
        call.await.map_err(|error| match self.refusal(error) {
            LedgerError::Unknown { why } => LedgerError::Unavailable { why },
            other => other,
        })
    }

    async fn change<T: DeserializeOwned>(
        &self,
        method: Method,
        rest: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, LedgerError> {
        let target = self.target(rest);
        let call = self.client.call(method, &target, body);
        call.await.map_err(|error| self.refusal(error))
    }

    fn refusal(&self, error: CallError) -> LedgerError {
        match &error {
            CallError::Ledger { code, fault, .. } => {
                if let Some(refused) = in_core_words(code, fault) {
                    return refused;
                }
            }
            CallError::Refused { code, message, .. } => {
                // The message is the error of the server as a whole.
                let why = |before: &str| message.strip_prefix(before).unwrap_or(message).to_owned();
                match &**code {
                    "ledger_not_found" => {
                        let ledger = self.name.clone();
                        return LedgerError::NotFound { ledger };
                    }
                    "ledger_damaged" => {
                        let why = why("the ledger is damaged: ");
                        return LedgerError::Damaged { why };
                    }
                    "ledger_full" | "disk_full" => {
                        let why = why("the ledger's store is full: ");
                        return LedgerError::Full { why };
                    }
                    _ => {}
                }
            }
            &CallError::Fenced(FenceError::Deposed { epoch, newest, .. }) => {
                return LedgerError::Deposed { epoch, newest };
            }
            _ => {}
        }
        let why = lockgate_core::with_sources(&error).to_string();
        match error.fate() {
            Fate::Closed => LedgerError::Denied { why },
            Fate::Retry | Fate::Stale => LedgerError::Unavailable { why },
            Fate::Unknown => LedgerError::Unknown { why },
            _ => LedgerError::Invalid { why },
        }
    }

    /// The server says what no Lockgate says.
    fn wrong(&self, what: &dyn fmt::Display) -> LedgerError {
        self.refusal(self.client.no_lockgate(what))
    }

    fn head_of(&self, shown: ShownHead) -> Result<LedgerHead, LedgerError> {
        shown.read().map_err(|why| self.wrong(&why))
    }
}

impl Ledger for ServerLedger {
    async fn append(&self, append: Append) -> Result<Appended, LedgerError> {
        append.check()?;
        let events = append.events.iter().map(|event| {
            let (payload, payload_encoding) = Encoding::of(&event.payload);
            NewEvent {
                payload,
                payload_encoding,
                unique_id: event.unique_id.as_ref().map(UniqueId::as_str),
                input: event.input.as_ref().map(|input| input.as_str()),
            }
        });
        let body = Appending {
            epoch: append.epoch.0,
            head: append.head.map(|head| head.0),
            events: events.collect(),
            settled: append.settled.iter().map(|input| input.as_str()).collect(),
        };
        let appended = self.change(Method::POST, "/events", Some(&body));
        let ShownAppended { events, head } = appended.await?;
        if events.len() != append.events.len() {
            return Err(self.wrong(&"it says nothing of some events"));
        }
        let events = events.into_iter().map(|event| AppendedEvent {
            sequence_id: SequenceId(event.sequence_id),
            is_duplicate: event.duplicate,
        });
        Ok(Appended {
            events: events.collect(),
            head: self.head_of(head)?,
        })
    }

    async fn head(&self) -> Result<LedgerHead, LedgerError> {
        let Shown { head } = self.ask("", Duration::ZERO).await?;
        self.head_of(head)
    }

    async fn read(&self, read: ReadLedger) -> Result<LedgerPage, LedgerError> {
        read.check()?;
        let ReadLedger { after, limit, wait } = read;
        let begun = Instant::now();
        loop {
            let asked = Instant::now();
            let wait = wait.saturating_sub(begun.elapsed()).min(WAIT_MAX);
            let rest = format!(
                "/events?after={after}&limit={limit}&wait_ms={}",
                millis(wait)
            );
            let page: ShownPage = self.ask(&rest, wait).await?;
            let page = page.read().map_err(|why| self.wrong(&why))?;
            if !page.events.is_empty() || page.head.is_sealed || wait.is_zero() {
                return Ok(page);
            }
            // A server that stops ends all waits. One counts whole milliseconds, which tells nothing of a short wait.
            if wait >= Duration::from_secs(1) && asked.elapsed() < wait / 2 {
                let why = "the server has ended the wait before its time".to_owned();
                return Err(LedgerError::Unavailable { why });
            }
        }
    }

    async fn find(&self, unique_id: UniqueId) -> Result<Option<SequenceId>, LedgerError> {
        let target = format!("/unique-ids/{}", part(unique_id.as_str()));
        let target = self.target(&target);
        let found = self.client.call(Method::GET, &target, NO_BODY).await;
        match found {
            Ok(Found { sequence_id }) => Ok(Some(SequenceId(sequence_id))),
            Err(CallError::Refused { code, .. }) if code == "event_not_found" => Ok(None),
            Err(error) => Err(match self.refusal(error) {
                LedgerError::Unknown { why } => LedgerError::Unavailable { why },
                other => other,
            }),
        }
    }

    async fn move_reader(
        &self,
        position: ReaderPosition,
        from: Option<SequenceId>,
    ) -> Result<(), LedgerError> {
        let target = format!("/readers/{}", part(position.reader.as_str()));
        let sequence_id = position.sequence_id.0;
        let from = from.map(|from| from.0);
        let body = Place { sequence_id, from };
        let moved = self.change(Method::PUT, &target, Some(&body));
        let Moved { existed: _ } = moved.await?;
        Ok(())
    }

    async fn forget_reader(&self, reader: ReaderName) -> Result<bool, LedgerError> {
        let target = format!("/readers/{}", part(reader.as_str()));
        let moved = self.change(Method::DELETE, &target, NO_BODY);
        let Moved { existed } = moved.await?;
        Ok(existed)
    }

    async fn readers(&self) -> Result<Vec<ReaderPosition>, LedgerError> {
        let ShownReaders { readers } = self.ask("/readers", Duration::ZERO).await?;
        let readers = readers.into_iter().map(|shown| {
            let reader = ReaderName::new(&shown.reader);
            Ok(ReaderPosition {
                reader: reader.map_err(|error| self.wrong(&error))?,
                sequence_id: SequenceId(shown.sequence_id),
            })
        });
        readers.collect()
    }

    async fn seal(&self, epoch: Epoch) -> Result<LedgerHead, LedgerError> {
        let body = Seal { epoch: epoch.0 };
        let head = self.change(Method::POST, "/seal", Some(&body)).await?;
        self.head_of(head)
    }

    async fn trim(&self, first: SequenceId) -> Result<LedgerHead, LedgerError> {
        let body = Trim { first_id: first.0 };
        let head = self.change(Method::POST, "/trim", Some(&body)).await?;
        self.head_of(head)
    }
}

/// `None`: the server says something else than this API.
fn in_core_words(code: &str, fault: &LedgerFault) -> Option<LedgerError> {
    let place = |place: Option<u64>| place.map(SequenceId);
    match code {
        "ledger_moved" => Some(LedgerError::Moved {
            head: place(fault.head)?,
        }),
        "ledger_deposed" => Some(LedgerError::Deposed {
            epoch: Epoch(fault.epoch?),
            newest: Epoch(fault.newest_epoch?),
        }),
        "ledger_sealed" => Some(LedgerError::Sealed {
            head: place(fault.head)?,
        }),
        "ledger_trimmed" => Some(LedgerError::Trimmed {
            after: place(fault.sequence_id)?,
            first: place(fault.first_id)?,
        }),
        "reader_moved" => Some(LedgerError::ReaderMoved {
            sequence_id: place(fault.sequence_id)?,
        }),
        "ledger_beyond" => Some(LedgerError::Beyond {
            sequence_id: place(fault.sequence_id)?,
            head: place(fault.head)?,
        }),
        _ => None,
    }
}
