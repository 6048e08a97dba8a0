//! Looking into a queue without leasing anything.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
};

use lockgate_core::{Key, Message, MessageId, QueueName, Sequence, WallTime};
use lockgate_engine::{Engine, Peeked};
use lockgate_machine::{KeyPage, ListKeys, MessageStatus};

use crate::Error;

/// Looks at messages without leasing them; await it. See [`Queue::peek`](crate::Queue::peek).
#[derive(Clone)]
#[must_use = "nothing is looked at before it is awaited"]
pub struct PeekBuilder {
    engine: Engine,
    queue: QueueName,
    key: Option<Key>,
    after: Option<Sequence>,
    max: usize,
}

/// A page of messages, in the order in which they arrived; those not yet due come last.
#[derive(Clone, Debug, PartialEq)]
pub struct PeekedPage {
    /// The messages.
    pub messages: Vec<PeekedMessage>,
    /// What to give to [`PeekBuilder::after`] for the next page; `None`: there is no more.
    pub next: Option<Sequence>,
}

/// A message that somebody looks at.
#[derive(Clone, Debug, PartialEq)]
pub struct PeekedMessage {
    /// How it stands: its number, how many attempts it had, what it waits for.
    pub status: MessageStatus,
    /// The message as it was sent; `None` if its payload is damaged, which a receive would find and
    /// drop.
    pub message: Option<Message>,
    /// When the queue that first had it accepted it; `None` as for `message`.
    pub accepted: Option<WallTime>,
}

/// Lists the keys of a queue; await it. See [`Queue::keys`](crate::Queue::keys).
#[derive(Clone)]
#[must_use = "nothing is listed before it is awaited"]
pub struct KeysBuilder {
    engine: Engine,
    list: ListKeys,
}

/// Messages or keys of a page that does not say how many.
const PAGE_DEFAULT: usize = 100;

impl PeekBuilder {
    pub(crate) fn new(engine: Engine, queue: QueueName) -> Self {
        Self {
            engine,
            queue,
            key: None,
            after: None,
            max: PAGE_DEFAULT,
        }
    }

    /// Only messages of this key, or of this group in an unkeyed queue. Default: all.
    pub fn key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// Only what comes behind this one, as [`PeekedPage::next`] of the page before says. Default: from
    /// the front.
    pub fn after(mut self, last: Sequence) -> Self {
        self.after = Some(last);
        self
    }

    /// At most so many messages; 1 to 1,000. Default: 100. A page ends early with the message with
    /// which it has 16 MiB, and where many others stand between those of a key.
    pub fn max(mut self, max: usize) -> Self {
        self.max = max;
        self
    }

    async fn run(self) -> Result<PeekedPage, Error> {
        let keyed = is_keyed(&self.engine, &self.queue);
        let found = self.engine.peek(self.queue, self.key, self.after, self.max);
        let found = found.await?;
        let messages = found.messages.into_iter();
        Ok(PeekedPage {
            messages: messages.map(|peeked| view(peeked, keyed)).collect(),
            next: found.next,
        })
    }
}

impl KeysBuilder {
    pub(crate) fn new(engine: Engine, queue: QueueName) -> Self {
        Self {
            engine,
            list: ListKeys {
                queue,
                parked: false,
                after: None,
                limit: PAGE_DEFAULT,
            },
        }
    }

    /// Only parked keys. Default: all.
    pub fn parked(mut self) -> Self {
        self.list.parked = true;
        self
    }

    /// Only what comes behind this one, as [`KeyPage::next`] of the page before says. Default: from the
    /// front.
    pub fn after(mut self, last: u32) -> Self {
        self.list.after = Some(last);
        self
    }

    /// At most so many keys; 1 to 1,000. Default: 100.
    pub fn max(mut self, max: usize) -> Self {
        self.list.limit = max;
        self
    }
}

pub(crate) async fn peek_message(
    engine: &Engine,
    queue: &QueueName,
    message: MessageId,
) -> Result<PeekedMessage, Error> {
    let keyed = is_keyed(engine, queue);
    Ok(view(engine.peek_one(queue.clone(), message).await?, keyed))
}

fn view(peeked: Peeked, keyed: bool) -> PeekedMessage {
    let accepted = peeked.stored.as_ref().map(|stored| stored.accepted);
    PeekedMessage {
        status: peeked.status,
        message: peeked.stored.map(|stored| as_sent(stored.message, keyed)),
        accepted,
    }
}

fn is_keyed(engine: &Engine, queue: &QueueName) -> bool {
    let entry = engine.directory().get(queue);
    entry.is_some_and(|entry| entry.settings.keyed)
}

/// A stored message has its group where others have their key.
pub(crate) fn as_sent(mut message: Message, keyed: bool) -> Message {
    if !keyed {
        message.group = message.key.take();
    }
    message
}

impl IntoFuture for PeekBuilder {
    type Output = Result<PeekedPage, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl IntoFuture for KeysBuilder {
    type Output = Result<KeyPage, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(self.engine.query(self.list).await?) })
    }
}
