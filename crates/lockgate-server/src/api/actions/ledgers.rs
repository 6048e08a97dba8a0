//! Operations on ledgers: make them, append to them, read them, and keep how far readers are.

use std::{fmt::Display, time::Duration};

use lockgate_core::{
    Epoch, InputId, LedgerName, ReaderName, UniqueId,
    ledger::{
        self as core, Append, Event, Ledger as _, LedgerError, LedgerHead, LedgerOptions,
        LedgerPage, NewEvent, ReadLedger, SequenceId,
    },
};
use lockgate_machine::{
    self as machine, DeleteLedger, DescribeLedger, FindEvent, LedgerDescription, LedgersPage, Query,
};

use super::{invalid_page, leases::check_entries, page_after, page_limit, page_start};
use crate::{
    answer::{self, MESSAGES_BYTES_MAX},
    api::{
        Code, Problem, Request, Service,
        input::entry,
        shapes::{
            AppendEvents, Appended, AppendedEvent, CreateLedger, Encoding, EventFound, EventPage,
            EventView, Instant, LedgerFault, LedgerHeadView, LedgerReader, LedgerReaders,
            LedgerView, Ledgers, ListLedgers, MoveReader, NewEventInput, ReadEvents, ReaderMoved,
            SealLedger, TrimLedger, Within,
        },
    },
    auth::Verb,
    few::ENTRIES_MAX,
};

/// Events of a page, unless the request says otherwise.
const PAGE_EVENTS: usize = 100;

impl Service {
    pub(in crate::api) async fn list_ledgers(
        &self,
        request: &Request<'_>,
        input: ListLedgers,
    ) -> Result<Ledgers, Problem> {
        let after = match &input.page {
            None => None,
            Some(page) => Some(LedgerName::new(&page_start(page)?).map_err(|_| invalid_page())?),
        };
        let mut list = machine::ListLedgers {
            prefix: input.prefix.unwrap_or_default(),
            after,
            limit: page_limit(input.limit),
        };
        let limit = list.limit;
        loop {
            let LedgersPage { mut ledgers, next } = self.engine.query(list.clone()).await?;
            ledgers.retain(|ledger| request.may_with_ledger(Verb::Read, &ledger.name));
            let is_cut = ledgers.len() > limit;
            ledgers.truncate(limit);
            // A page that goes on ends with a ledger that the caller may read: its token tells the name.
            let last = ledgers.last().map(|ledger| ledger.name.clone());
            match next {
                // Those that the caller may not read are passed over by many at a time.
                Some(next) if last.is_none() => {
                    (list.after, list.limit) = (Some(next), Query::LIMIT_MAX);
                }
                next => {
                    let next = last.filter(|_| is_cut || next.is_some());
                    return Ok(Ledgers {
                        ledgers: ledgers.into_iter().map(view).collect(),
                        next_page: next.map(|last| page_after(last.as_str())),
                    });
                }
            }
        }
    }

    /// The ledger, and whether it was there.
    pub(in crate::api) async fn create_ledger(
        &self,
        request: &Request<'_>,
        input: CreateLedger,
    ) -> Result<(LedgerView, bool), Problem> {
        let name = ledger_of(request, Verb::Manage, &input.name)?;
        let create = machine::CreateLedger {
            name,
            options: LedgerOptions {
                hashed: input.hashed,
                retention: input.retention_ms,
            },
        };
        match self.engine.submit(create).await {
            Ok(created) => Ok((view(created.description), created.existed)),
            Err(error) => {
                let problem = Problem::from(error);
                // Its options are the only thing about it that can be wrong.
                Err(match problem.code {
                    Code::InvalidValue => Problem::new(Code::LedgerExists, problem.detail),
                    _ => problem,
                })
            }
        }
    }

    pub(in crate::api) async fn get_ledger(
        &self,
        request: &Request<'_>,
        ledger: &str,
    ) -> Result<LedgerView, Problem> {
        let ledger = ledger_of(request, Verb::Read, ledger)?;
        Ok(view(self.engine.query(DescribeLedger { ledger }).await?))
    }

    pub(in crate::api) async fn delete_ledger(
        &self,
        request: &Request<'_>,
        ledger: &str,
    ) -> Result<(), Problem> {
        let ledger = ledger_of(request, Verb::Purge, ledger)?;
        Ok(self.engine.submit(DeleteLedger { ledger }).await?)
    }

    pub(in crate::api) async fn append_events(
        &self,
        request: &Request<'_>,
        ledger: &str,
        input: AppendEvents<'_>,
    ) -> Result<Appended, Problem> {
        let ledger = ledger_of(request, Verb::Send, ledger)?;
        if input.settles.len() > ENTRIES_MAX {
            let found = input.settles.len();
            let what = format_args!("there may be up to {ENTRIES_MAX}, not {found}");
            return Err(Problem::invalid("settles", what));
        }
        check_entries("settles", &input.settles)?;
        let mut settles = Vec::with_capacity(input.settles.len());
        for (at, settle) in input.settles.into_entries(entry).enumerate() {
            let within = |problem: Problem| problem.within(&format!("settles[{at}]"));
            let (settle, state) = settle
                .and_then(|settle| self.settle(settle))
                .map_err(within)?;
            if state.is_some() {
                let what = "a transaction writes states, and an append does not";
                return Err(within(Problem::invalid("state", what)));
            }
            // If the queue was deleted, its leases are gone, and the machine reports that.
            if let Some(entry) = self.engine.directory().by_id(settle.token.queue) {
                self.queue(request, Verb::Receive, entry.name.as_str())
                    .map_err(within)?;
            }
            settles.push(settle);
        }
        let events = input.events.0.into_iter().enumerate();
        let events = events.map(|(at, event)| {
            new_event(event).map_err(|problem| problem.within(&format!("events[{at}]")))
        });
        let settled = input.settled.0.iter().enumerate();
        let settled = settled.map(|(at, id)| named(&format!("settled[{at}]"), InputId::new(id)));
        let append = Append {
            epoch: Epoch(input.epoch),
            head: input.head.map(SequenceId),
            events: events.collect::<Result<_, _>>()?,
            settled: settled.collect::<Result<_, _>>()?,
        };
        let append = machine::AppendEvents {
            ledger,
            append,
            settles,
        };
        let core::Appended { events, head } = self.engine.submit(append).await?;
        let events = events.into_iter().map(|event| AppendedEvent {
            sequence_id: event.sequence_id.0,
            duplicate: event.is_duplicate,
        });
        Ok(Appended {
            events: events.collect(),
            head: head_view(&head),
        })
    }

    pub(in crate::api) async fn read_events(
        &self,
        request: &Request<'_>,
        ledger: &str,
        input: &ReadEvents,
    ) -> Result<EventPage, Problem> {
        let ledger = self.engine.ledger(ledger_of(request, Verb::Read, ledger)?);
        let wait = Duration::from_millis(input.wait_ms.map_or(0, Within::get));
        let read = |wait| ReadLedger {
            after: SequenceId(input.after.unwrap_or(0)),
            limit: input.limit.map_or(PAGE_EVENTS, |limit| {
                usize::try_from(limit.get()).unwrap_or(usize::MAX)
            }),
            wait,
        };
        let at_once = || ledger.read(read(Duration::ZERO));
        let page = if wait.is_zero() || self.drain.has_begun() {
            at_once().await?
        } else {
            tokio::select! {
                biased;
                page = ledger.read(read(wait)) => page?,
                // Nobody waits for the answer any more, or nobody may.
                () = request.hangup.come() => at_once().await?,
                () = self.drain.begun() => at_once().await?,
            }
        };
        let LedgerPage { mut events, head } = page;
        events.truncate(fitting(&events));
        Ok(EventPage {
            events: events.iter().map(event_view).collect(),
            head: head_view(&head),
        })
    }

    pub(in crate::api) async fn find_event(
        &self,
        request: &Request<'_>,
        ledger: &str,
        unique_id: &str,
    ) -> Result<EventFound, Problem> {
        let find = FindEvent {
            ledger: ledger_of(request, Verb::Read, ledger)?,
            unique_id: named("unique_id", UniqueId::new(unique_id))?,
        };
        let found = self.engine.query(find).await?;
        let found = found.ok_or_else(|| {
            let detail = format!("no event of the ledger {ledger} has the unique id {unique_id}");
            Problem::new(Code::EventNotFound, detail)
        })?;
        Ok(EventFound {
            sequence_id: found.0,
        })
    }

    pub(in crate::api) async fn list_readers(
        &self,
        request: &Request<'_>,
        ledger: &str,
    ) -> Result<LedgerReaders, Problem> {
        let ledger = ledger_of(request, Verb::Read, ledger)?;
        let LedgerDescription { readers, .. } =
            self.engine.query(DescribeLedger { ledger }).await?;
        let readers = readers.into_iter().map(|position| LedgerReader {
            reader: position.reader.to_string(),
            sequence_id: position.sequence_id.0,
        });
        Ok(LedgerReaders {
            readers: readers.collect(),
        })
    }

    /// Keeps how far a reader is; without an input, forgets it.
    pub(in crate::api) async fn move_reader(
        &self,
        request: &Request<'_>,
        ledger: &str,
        reader: &str,
        input: Option<MoveReader>,
    ) -> Result<ReaderMoved, Problem> {
        let moved = machine::MoveReader {
            ledger: ledger_of(request, Verb::Receive, ledger)?,
            reader: named("reader", ReaderName::new(reader))?,
            to: input.as_ref().map(|input| SequenceId(input.sequence_id)),
            from: input.and_then(|input| input.from).map(SequenceId),
        };
        let existed = self.engine.submit(moved).await?;
        Ok(ReaderMoved { existed })
    }

    pub(in crate::api) async fn seal_ledger(
        &self,
        request: &Request<'_>,
        ledger: &str,
        input: &SealLedger,
    ) -> Result<LedgerHeadView, Problem> {
        let seal = machine::SealLedger {
            ledger: ledger_of(request, Verb::Manage, ledger)?,
            epoch: Epoch(input.epoch),
        };
        Ok(head_view(&self.engine.submit(seal).await?))
    }

    pub(in crate::api) async fn trim_ledger(
        &self,
        request: &Request<'_>,
        ledger: &str,
        input: &TrimLedger,
    ) -> Result<LedgerHeadView, Problem> {
        let trim = machine::TrimLedger {
            ledger: ledger_of(request, Verb::Purge, ledger)?,
            first: SequenceId(input.first_id),
        };
        Ok(head_view(&self.engine.submit(trim).await?))
    }
}

/// The ledger of that name, if the caller may do `verb` with it, whether or not it is there.
pub(in crate::api) fn ledger_of(
    request: &Request<'_>,
    verb: Verb,
    name: &str,
) -> Result<LedgerName, Problem> {
    let name = named("ledger", LedgerName::new(name))?;
    if request.may_with_ledger(verb, &name) {
        return Ok(name);
    }
    Err(request.denied(verb, format_args!("ledger {name}")))
}

fn named<T>(field: &str, name: Result<T, impl Display>) -> Result<T, Problem> {
    name.map_err(|error| Problem::invalid(field, error))
}

fn new_event(event: NewEventInput) -> Result<NewEvent, Problem> {
    let unique_id = event.unique_id.as_deref().map(UniqueId::new).transpose();
    let input = event.input.as_deref().map(InputId::new).transpose();
    Ok(NewEvent {
        unique_id: named("unique_id", unique_id)?,
        input: named("input", input)?,
        payload: event.payload_encoding.decode("payload", event.payload)?,
    })
}

fn view(ledger: LedgerDescription) -> LedgerView {
    LedgerView {
        name: ledger.name.to_string(),
        hashed: ledger.options.hashed,
        retention_ms: ledger.options.retention,
        created_at: Instant(ledger.created),
        head: head_view(&ledger.head),
        readers: ledger.readers.len() as u64,
        unique_ids: ledger.unique_ids,
        inputs: ledger.inputs,
        appends: ledger.appends,
        bytes: ledger.bytes,
    }
}

pub(in crate::api) fn head_view(head: &LedgerHead) -> LedgerHeadView {
    let has_events = head.sequence_id > SequenceId::START;
    LedgerHeadView {
        sequence_id: head.sequence_id.0,
        first_id: head.first_id.0,
        epoch: head.epoch.0,
        time: has_events.then_some(Instant(head.time)),
        hash: head.hash.map(|hash| hash.to_string()),
        sealed: head.is_sealed,
    }
}

pub(in crate::api) fn event_view(event: &Event) -> EventView {
    let (payload, payload_encoding) = Encoding::encode_short(&event.payload);
    EventView {
        sequence_id: event.sequence_id.0,
        previous_id: event.previous_id.0,
        unique_id: event.unique_id.as_ref().map(ToString::to_string),
        time: Instant(event.time),
        epoch: event.epoch.0,
        hash: event.hash.map(|hash| hash.to_string()),
        payload,
        payload_encoding,
    }
}

impl From<LedgerError> for Problem {
    fn from(error: LedgerError) -> Self {
        let (code, hint, fault) = match &error {
            LedgerError::Moved { head } => (
                Code::LedgerMoved,
                "read it from there, and decide again",
                LedgerFault {
                    head: Some(head.0),
                    ..LedgerFault::default()
                },
            ),
            LedgerError::Deposed { epoch, newest } => (
                Code::LedgerDeposed,
                "only a writer of that epoch, or a later one, may write",
                LedgerFault {
                    epoch: Some(epoch.0),
                    newest_epoch: Some(newest.0),
                    ..LedgerFault::default()
                },
            ),
            LedgerError::Sealed { head } => (
                Code::LedgerSealed,
                "append to another ledger",
                LedgerFault {
                    head: Some(head.0),
                    ..LedgerFault::default()
                },
            ),
            LedgerError::Trimmed { after, first } => (
                Code::LedgerTrimmed,
                "begin with a snapshot, or with what is kept",
                LedgerFault {
                    sequence_id: Some(after.0),
                    first_id: Some(first.0),
                    ..LedgerFault::default()
                },
            ),
            LedgerError::ReaderMoved { sequence_id } => (
                Code::ReaderMoved,
                "who else moves it? Read from there",
                LedgerFault {
                    sequence_id: Some(sequence_id.0),
                    ..LedgerFault::default()
                },
            ),
            LedgerError::Beyond { sequence_id, head } => (
                Code::LedgerBeyond,
                "is this the ledger that it was read from?",
                LedgerFault {
                    sequence_id: Some(sequence_id.0),
                    head: Some(head.0),
                    ..LedgerFault::default()
                },
            ),
            // What these say is enough.
            other => return Self::new(code(other), other.to_string()),
        };
        Self::new(code, format!("{error}: {hint}")).of_ledger(fault)
    }
}

fn code(error: &LedgerError) -> Code {
    match error {
        LedgerError::NotFound { .. } => Code::LedgerNotFound,
        LedgerError::Full { .. } => Code::LedgerFull,
        LedgerError::Damaged { .. } => Code::LedgerDamaged,
        LedgerError::Unknown { .. } => Code::UnknownOutcome,
        LedgerError::Unavailable { .. } => Code::Unavailable,
        _ => Code::InvalidValue,
    }
}

/// How many of the first events an answer has room for, one at least. The head tells that there are more.
fn fitting(events: &[Event]) -> usize {
    let mut bytes = 0;
    let fits = events.iter().take_while(|event| {
        let id = event.unique_id.as_ref();
        let id = id.map_or(0, |id| answer::json_len(id.as_str().as_bytes()));
        // Beside them are numbers and names. `encode_short` at most doubles a payload.
        bytes += 256 + id + 2 * event.payload.len();
        bytes <= MESSAGES_BYTES_MAX
    });
    fits.count().max(1).min(events.len())
}
