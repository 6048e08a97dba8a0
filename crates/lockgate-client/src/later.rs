//! A queue of a server that is opened when it is first reached.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hyper::StatusCode;
use lockgate_core::coordination::{Fence, FenceError};
use lockgate_core::{
    Accepted, Fate, Level, Message, MessageId, ProducerIncarnation, ProducerName, QueueName, Sink,
    SinkCapabilities, TransportError,
};

use crate::{CallError, Client, RemoteQueue};

/// Messages and bytes of a batch, and the bytes of a message, as a queue and a server have them that nobody has changed.
const BATCH_MAX: usize = 1000;
const BATCH_BYTES_MAX: u64 = 4 << 20;
const MESSAGE_BYTES_MAX: u64 = 1 << 20;

/// How long unique ids count in such a queue.
const UNIQUE_ID_WINDOW: Duration = Duration::from_secs(5 * 60);

/// A queue of a server that need not be reachable yet, nor exist: a [`Sink`], for a producer that starts while its server is
/// away. Made by [`Client::queue_later`]. Clones are the same queue.
///
/// # Capabilities
/// Nobody is asked for them: they are those of a queue and a server with the default settings. The queue is keyed if its
/// name ends in `.fifo`; a message has up to 1 MiB; unique ids count for five minutes; levels go up to `replicated`. When a
/// send reaches the queue, its own settings decide: a message that they do not allow is
/// [`Refused`](Fate::Refused) or [`Unsupported`](Fate::Unsupported) then. Batches that are too large for it go in parts. If the
/// queue remembers no unique ids (its `dedup_window` is 0), a [record of a producer](Message::producer) goes without its own.
///
/// # Fates
/// As [`RemoteQueue`] has them, with these differences, since the messages are not at fault:
///
/// | what happened | fate |
/// |---|---|
/// | the queue cannot be opened, whatever the reason | [`Retry`](Fate::Retry) |
/// | there is no such queue, or none any more | [`Closed`](Fate::Closed) |
/// | the access key is not known, or may not send | [`Retry`](Fate::Retry) |
///
/// Send again: the queue is looked for at each send until it is there.
///
/// # Cancellation
/// As [`Client`] has it.
#[derive(Clone, Debug)]
pub struct LaterQueue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    name: QueueName,
    can: SinkCapabilities,
    opened: Mutex<Option<RemoteQueue>>,
    /// One opening at a time.
    opening: tokio::sync::Mutex<()>,
}

impl Client {
    /// Names a queue that is opened when it is first reached: the server may be away, and the queue may be made later.
    /// It asks nobody anything.
    #[must_use]
    pub fn queue_later(&self, name: &QueueName) -> LaterQueue {
        let keyed = name.as_str().ends_with(".fifo");
        let mut can = SinkCapabilities::bodies_only(Level::Replicated);
        can.batch_max = BATCH_MAX;
        can.batch_bytes_max = BATCH_BYTES_MAX;
        can.message_bytes_max = MESSAGE_BYTES_MAX;
        can.keys = keyed;
        can.keys_only = keyed;
        can.groups = !keyed;
        can.unique_ids = true;
        can.unique_id_window = Some(UNIQUE_ID_WINDOW);
        can.tells_duplicates = true;
        can.due = true;
        can.time_to_live = true;
        can.headers = true;
        can.priority = true;
        can.producers = true;
        LaterQueue {
            inner: Arc::new(Inner {
                client: self.clone(),
                name: name.clone(),
                can,
                opened: Mutex::new(None),
                opening: tokio::sync::Mutex::new(()),
            }),
        }
    }
}

impl LaterQueue {
    /// Returns the name of the queue.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.inner.name
    }

    /// Returns the queue, opened. Opens it if it is not.
    ///
    /// # Errors
    /// As [`Client::queue`].
    pub async fn open(&self) -> Result<RemoteQueue, CallError> {
        if let Some(queue) = &*self.opened() {
            return Ok(queue.clone());
        }
        let _one = self.inner.opening.lock().await;
        // Somebody may have opened it meanwhile.
        if let Some(queue) = &*self.opened() {
            return Ok(queue.clone());
        }
        let queue = self.inner.client.queue(&self.inner.name).await?;
        *self.opened() = Some(queue.clone());
        Ok(queue)
    }

    fn opened(&self) -> MutexGuard<'_, Option<RemoteQueue>> {
        (self.inner.opened.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, where what prevents it is no fault of a message.
    async fn reach(&self) -> Result<RemoteQueue, TransportError> {
        self.open().await.map_err(|error| {
            let fate = match error {
                CallError::NoQueue { .. } => Fate::Closed,
                // Nothing was sent, whatever became of the question.
                _ => Fate::Retry,
            };
            TransportError::new(fate, error)
        })
    }

    /// The error of a send. After some the queue is opened anew.
    fn judge(&self, error: TransportError) -> TransportError {
        let is_denied = matches!(
            error.source.downcast_ref(),
            Some(CallError::Refused { status, .. })
                if matches!(*status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        );
        if is_denied {
            // The queue is as it was; who asks is at fault.
            return TransportError {
                fate: Fate::Retry,
                ..error
            };
        }
        if error.fate == Fate::Closed {
            *self.opened() = None;
        }
        error
    }
}

impl Sink for LaterQueue {
    type Id = MessageId;

    fn sink_capabilities(&self) -> SinkCapabilities {
        self.inner.can.clone()
    }

    fn fenced(&self, fence: &Fence) -> Result<Self, FenceError> {
        let client = self.inner.client.fenced(fence);
        Ok(client.queue_later(&self.inner.name))
    }

    async fn send_batch(
        &self,
        mut messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let queue = match self.reach().await {
            Ok(queue) => queue,
            Err(error) => return messages.iter().map(|_| Err(error.clone())).collect(),
        };
        let can = queue.sink_capabilities();
        if !can.unique_ids {
            // Nobody could know of that when they were given, and by its mark it is there once all the same.
            let marked = messages.iter_mut().filter(|it| it.producer.is_some());
            marked.for_each(|message| message.unique_id = None);
        }
        let mut results = Vec::with_capacity(messages.len());
        let mut parts = parts(messages, &can).into_iter();
        while let Some(part) = parts.next() {
            let sent = queue.send_batch(part).await;
            let errors = sent.iter().filter_map(|result| result.as_ref().err());
            let is_lost = |error: &&TransportError| {
                matches!(error.fate, Fate::Unknown | Fate::Retry | Fate::Closed)
            };
            let lost = { errors }.find(is_lost).cloned();
            results.extend(sent);
            if let Some(error) = lost {
                // What is behind it keeps its place.
                let behind = TransportError::new(Fate::Retry, error);
                results.extend(parts.by_ref().flatten().map(|_| Err(behind.clone())));
            }
        }
        let judged = |result: Result<_, _>| result.map_err(|error| self.judge(error));
        results.into_iter().map(judged).collect()
    }

    async fn send_in_order(
        &self,
        messages: Vec<Message>,
    ) -> Vec<Result<Accepted<MessageId>, TransportError>> {
        let queue = match self.reach().await {
            Ok(queue) => queue,
            Err(error) => return vec![Err(error)],
        };
        let can = queue.sink_capabilities();
        let mut results = Vec::with_capacity(messages.len());
        for part in parts(messages, &can) {
            let sent = queue.send_in_order(part).await;
            results.extend(
                sent.into_iter()
                    .map(|it| it.map_err(|error| self.judge(error))),
            );
            if results.last().is_some_and(Result::is_err) {
                break;
            }
        }
        results
    }

    fn can_carry(&self, message: &Message) -> Result<(), TransportError> {
        match &*self.opened() {
            Some(queue) => queue.can_carry(message),
            None => self.inner.can.carries(message),
        }
    }

    async fn open_producer(
        &self,
        producer: ProducerName,
    ) -> Result<ProducerIncarnation, TransportError> {
        let queue = self.reach().await?;
        let opened = queue.open_producer(producer).await;
        opened.map_err(|error| self.judge(error))
    }
}

/// Messages in batches that a sink takes, in their order. One that is too large for any goes alone, and is refused there.
fn parts(messages: Vec<Message>, can: &SinkCapabilities) -> Vec<Vec<Message>> {
    let mut parts: Vec<Vec<Message>> = Vec::with_capacity(1);
    let mut bytes = 0;
    for message in messages {
        let size = message.size() as u64;
        match parts.last_mut() {
            Some(part) if part.len() < can.batch_max && bytes + size <= can.batch_bytes_max => {
                bytes += size;
                part.push(message);
            }
            _ => {
                bytes = size;
                parts.push(vec![message]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_go_in_parts_that_the_queue_takes() {
        let mut can = SinkCapabilities::bodies_only(Level::Disk);
        (can.batch_max, can.batch_bytes_max) = (3, 10);
        for (sizes, expected) in [
            (&[][..], &[][..]),
            (&[1, 1, 1, 1], &[3, 1]),
            (&[5, 5, 1], &[2, 1]),
            (&[5, 6, 4], &[1, 2]),
            (&[11, 1, 11], &[1, 1, 1]),
        ] {
            let messages = sizes.iter().map(|&size| Message::new(vec![0; size]));
            let parts = parts(messages.collect(), &can);
            let lens: Vec<usize> = parts.iter().map(Vec::len).collect();
            assert_eq!(lens, expected, "{sizes:?}");
        }
    }
}
