//! `GET /api/v1/ledgers/{ledger}/follow`: events as they come, one JSON line each, until the client ends it.
//!
//! One page is in memory at a time, and the next one is read when the client has taken it: a client that does not read
//! holds nothing up but itself.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use lockgate_core::{
    LedgerName,
    ledger::{Ledger as _, LedgerPage, ReadLedger, SequenceId},
};
use lockgate_engine::EngineLedger;
use serde::Serialize;

use super::{
    Code, Problem, Request, Service,
    actions::{event_view, head_view, ledger_of},
    input::query,
    route::{self, PREFIX},
    shapes::{FollowEvents, LedgerHeadView, Within},
};
use crate::{
    auth::{AccessKey, AccessKeys, Verb},
    http::{drain::Drain, progress::Hangup},
};

/// Events of a page, at most.
const PAGE_EVENTS: usize = 1_000;

/// Events of the first page, at most. Each page is as large as the one before it has shown to fit.
const FIRST_EVENTS: usize = 64;

/// A page ends with the event that takes its lines to this many bytes.
const PAGE_BYTES: usize = 256 << 10;

/// How long to wait for an event before the head is sent, unless the request says otherwise.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A client that follows a ledger.
pub(crate) struct Follow {
    ledger: EngineLedger,
    caller: Option<Caller>,
    after: SequenceId,
    /// Events to ask for: they may have many bytes or few.
    limit: usize,
    heartbeat: Duration,
    drain: Drain,
    hangup: Hangup,
    /// What was read before the answer was begun.
    first: Option<LedgerPage>,
    is_over: bool,
}

/// Who follows, where callers are known.
struct Caller {
    ledger: LedgerName,
    key: Arc<AccessKey>,
    keys: AccessKeys,
}

impl Caller {
    /// Whether the key that signed the request may still read the ledger.
    fn may_still_read(&self) -> bool {
        let key = self.keys.get(&self.key.id);
        key.is_some_and(|key| {
            key.secret == self.key.secret && key.may_with_ledger(Verb::Read, &self.ledger)
        })
    }
}

/// The line in the place of an event that does not come.
#[derive(Serialize)]
struct Heartbeat {
    head: LedgerHeadView,
}

/// The last line, if what follows cannot be read.
#[derive(Serialize)]
struct Failed<'a> {
    problem: &'a Problem,
}

/// Whether the path is that of a ledger to follow.
pub(crate) fn is_follow(path: &str) -> bool {
    ledger_in(path).is_some()
}

pub(super) fn ledger_in(path: &str) -> Option<&str> {
    let rest = path.strip_prefix(PREFIX)?.strip_prefix("/ledgers/")?;
    let ledger = rest.strip_suffix("/follow")?;
    (!ledger.is_empty() && !ledger.contains('/')).then_some(ledger)
}

impl Service {
    /// Begins to follow, with what there is now.
    pub(crate) async fn follow(&self, request: &Request<'_>) -> Result<Follow, Problem> {
        let ledger = route::decode(ledger_in(request.path).unwrap_or_default())?;
        let ledger = ledger_of(request, Verb::Read, &ledger)?;
        let input: FollowEvents = query(request.query)?;
        let caller = request.identity.as_ref().zip(self.keys.as_ref());
        let caller = caller.map(|(key, keys)| Caller {
            ledger: ledger.clone(),
            key: key.clone(),
            keys: keys.clone(),
        });
        let mut follow = Follow {
            ledger: self.engine.ledger(ledger),
            caller,
            after: SequenceId(input.after.unwrap_or(0)),
            limit: FIRST_EVENTS,
            heartbeat: input
                .heartbeat_ms
                .map_or(HEARTBEAT, |given| Duration::from_millis(Within::get(given))),
            drain: self.drain.clone(),
            hangup: request.hangup.clone(),
            first: None,
            is_over: false,
        };
        // Also tells whether there is such a ledger, while there is a status to say so.
        let first = follow.ledger.read(follow.read(Duration::ZERO)).await?;
        follow.first = Some(first);
        Ok(follow)
    }
}

impl Follow {
    fn read(&self, wait: Duration) -> ReadLedger {
        ReadLedger {
            after: self.after,
            limit: self.limit,
            wait,
        }
    }

    /// The next lines. `None`: there are no more, because the client or the server has ended it, or the ledger is sealed.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let page = match self.first.take() {
            Some(page) => Ok(page),
            None => tokio::select! {
                biased;
                () = self.hangup.come() => return None,
                () = self.drain.begun() => return None,
                page = self.ledger.read(self.read(self.heartbeat)) => page,
            },
        };
        Some(match page {
            // After the wait, in which a grant may have been taken away.
            Ok(_) if !self.may_still_read() => self.end(&Problem::new(
                Code::AccessDenied,
                "the access key that follows may not read the ledger any more".to_owned(),
            )),
            Ok(page) => self.lines(&page),
            Err(error) => self.end(&error.into()),
        })
    }

    fn may_still_read(&self) -> bool {
        self.caller.as_ref().is_none_or(Caller::may_still_read)
    }

    fn lines(&mut self, page: &LedgerPage) -> Bytes {
        let mut lines = Vec::new();
        let mut fitting = 0;
        for event in &page.events {
            line(&mut lines, &event_view(event));
            self.after = event.sequence_id;
            fitting += 1;
            if lines.len() >= PAGE_BYTES {
                break;
            }
        }
        // What did not fit is read again: it is not kept for a client that may be slow.
        self.limit = match fitting < self.limit {
            true if lines.len() >= PAGE_BYTES => fitting,
            true => self.limit,
            false => (2 * self.limit).min(PAGE_EVENTS),
        };
        self.is_over = page.head.is_sealed && page.head.sequence_id == self.after;
        if page.events.is_empty() || self.is_over {
            let head = head_view(&page.head);
            line(&mut lines, &Heartbeat { head });
        }
        // Without the room that it has grown by.
        lines.into_boxed_slice().into()
    }

    /// The last line.
    pub(crate) fn end(&mut self, problem: &Problem) -> Bytes {
        self.is_over = true;
        let mut lines = Vec::new();
        line(&mut lines, &Failed { problem });
        lines.into()
    }
}

fn line(lines: &mut Vec<u8>, value: &impl Serialize) {
    // To memory, and nothing in it fails.
    if serde_json::to_writer(&mut *lines, value).is_ok() {
        lines.push(b'\n');
    }
}
