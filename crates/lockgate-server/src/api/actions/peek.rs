//! Peeks at messages without leasing them.

use lockgate_core::{Key, Sequence};
use lockgate_engine::{Peek, Peeked, QueueEntry};
use lockgate_machine::{self as machine, MessagePage, MessageStatus, MessageWait, Query};

use super::{
    leases,
    messages::{message_id, named},
    page_after, page_start_sequence,
};
use crate::{
    answer,
    api::{
        Problem, Request, Service,
        shapes::{
            Content, Instant, ListDeadLetters, ListMessages, PeekedMessage, PeekedMessages,
            StateWord, Within,
        },
    },
    auth::Verb,
};

/// Which part of a queue is wanted.
struct Page {
    after: Option<Sequence>,
    limit: usize,
    bodies: bool,
}

impl Service {
    pub(in crate::api) async fn peek_messages(
        &self,
        request: &Request<'_>,
        queue: &str,
        input: ListMessages,
    ) -> Result<PeekedMessages, Problem> {
        let queue = self.queue(request, Verb::Receive, queue)?;
        let page = Page::new(input.limit, input.page.as_deref(), input.bodies)?;
        let key = named("key", input.key)?;
        let group = named("group", input.group)?;
        let key = queue
            .settings
            .key_or_group(&queue.name, key.as_ref(), group.as_ref())?
            .cloned();
        let Some(state) = input.state else {
            let found = self
                .engine
                .peek(queue.name.clone(), key, page.after, page.limit)
                .await?;
            return Ok(self.page(&queue, found, page.bodies));
        };
        let wanted = |status: &MessageStatus| state_of(&status.waits_for) == state;
        self.filtered(&queue, key, page, wanted).await
    }

    pub(in crate::api) async fn peek_message(
        &self,
        request: &Request<'_>,
        queue: &str,
        id: &str,
    ) -> Result<PeekedMessage, Problem> {
        let queue = self.queue(request, Verb::Receive, queue)?;
        let id = message_id(id)?;
        let found = self.engine.peek_one(queue.name.clone(), id).await?;
        Ok(self.peeked(&queue, found, true))
    }

    pub(in crate::api) async fn list_dead_letters(
        &self,
        request: &Request<'_>,
        queue: &str,
        input: ListDeadLetters,
    ) -> Result<PeekedMessages, Problem> {
        let queue = self.queue(request, Verb::Receive, queue)?;
        let page = Page::new(input.limit, input.page.as_deref(), input.bodies)?;
        let source = input.source.as_deref();
        let wanted = |status: &MessageStatus| {
            status.origin.as_ref().is_some_and(|origin| {
                let name = origin.source.as_ref().map(|name| name.as_str());
                let is_dead = origin.reason.source(origin.queue).is_some();
                is_dead && (source.is_none() || name == source)
            })
        };
        self.filtered(&queue, None, page, wanted).await
    }

    /// Selects from a page of statuses, and reads only the payloads of the selected messages.
    async fn filtered(
        &self,
        queue: &QueueEntry,
        key: Option<Key>,
        page: Page,
        wanted: impl Fn(&MessageStatus) -> bool,
    ) -> Result<PeekedMessages, Problem> {
        let query = machine::ListMessages {
            queue: queue.name.clone(),
            key,
            after: page.after,
            limit: Query::LIMIT_MAX,
        };
        let MessagePage { messages, mut next } = self.engine.query(query).await?;
        let mut found = Vec::new();
        let mut bytes = 0;
        for status in messages.iter().filter(|&status| wanted(status)) {
            if found.len() == page.limit || bytes >= Peek::BYTES_MAX {
                next = found.last().map(|found: &Peeked| found.status.sequence);
                break;
            }
            match self.engine.peek_one(queue.name.clone(), status.id).await {
                // Its state may have changed since.
                Ok(peeked) if wanted(&peeked.status) => {
                    bytes += u64::from(peeked.status.size);
                    found.push(peeked);
                }
                Ok(_) => {}
                Err(lockgate_engine::EngineError::Rejected(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let found = Peek {
            messages: found,
            next,
        };
        Ok(self.page(queue, found, page.bodies))
    }

    fn page(&self, queue: &QueueEntry, mut found: Peek, bodies: bool) -> PeekedMessages {
        let stored = found
            .messages
            .iter()
            .map(|peeked| (peeked.stored.as_ref(), None));
        let fits = answer::fitting(stored, answer::json_len, bodies);
        if fits < found.messages.len() {
            found.messages.truncate(fits);
            found.next = found.messages.last().map(|last| last.status.sequence);
        }
        let messages = found.messages.into_iter();
        PeekedMessages {
            messages: messages
                .map(|peeked| self.peeked(queue, peeked, bodies))
                .collect(),
            next_page: found.next.map(|next| page_after(&next.to_string())),
        }
    }

    fn peeked(&self, queue: &QueueEntry, peeked: Peeked, with_body: bool) -> PeekedMessage {
        let Peeked { status, stored } = peeked;
        let history = leases::History {
            origin: status.origin.as_ref(),
            failures: status.failures.as_deref(),
        };
        let sequence = status.sequence.0;
        let mut message = PeekedMessage {
            id: status.id.to_string(),
            state: state_of(&status.waits_for),
            attempts: status.attempts,
            bytes: status.size,
            holder: None,
            remaining_ms: None,
            due_at: None,
            damaged: stored.is_none(),
            content: match &stored {
                Some(stored) => leases::content(queue, stored, sequence, history, with_body),
                None => Content {
                    key: leases::key(queue, status.key.as_ref()),
                    group: leases::group(queue, status.key.as_ref()),
                    failures: history.failures(),
                    failures_left_out: history.failures_left_out(),
                    ..Content::unknown(sequence, Instant(status.since))
                },
            },
        };
        match status.waits_for {
            MessageWait::Due { at } => message.due_at = Some(Instant(at)),
            MessageWait::Lease { holder, remaining } => {
                message.holder = Some(holder.to_string());
                message.remaining_ms = Some(remaining);
            }
            MessageWait::Backoff { remaining } => message.remaining_ms = Some(remaining),
            _ => {}
        }
        message
    }
}

impl Page {
    fn new(
        limit: Option<Within<1, 100>>,
        page: Option<&str>,
        bodies: Option<bool>,
    ) -> Result<Self, Problem> {
        let limit = limit.map_or(10, Within::get);
        let after = page.map(page_start_sequence).transpose()?;
        Ok(Self {
            after,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            bodies: bodies.unwrap_or(true),
        })
    }
}

fn state_of(wait: &MessageWait) -> StateWord {
    match wait {
        MessageWait::Due { .. } => StateWord::Delayed,
        MessageWait::Lease { .. } => StateWord::InFlight,
        MessageWait::Backoff { .. } => StateWord::Backoff,
        _ => StateWord::Ready,
    }
}
