//! Looks into a queue without leasing anything.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
};

use lockgate_core::{Key, Message, MessageId, QueueName, Sequence, WallTime};
use lockgate_engine::{Engine, Peeked};
use lockgate_machine::{KeyPage, ListKeys, MessageStatus};

use crate::Error;

/// Builds a look at messages, which leases none. Await it to get a [`PeekedPage`].
/// [`Queue::peek`](crate::Queue::peek) makes one.
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
    /// The messages of this page.
    pub messages: Vec<PeekedMessage>,
    /// The value for [`PeekBuilder::after`] that gets the next page; `None`: there is no more.
    pub next: Option<Sequence>,
}

/// A message that a peek shows.
#[derive(Clone, Debug, PartialEq)]
pub struct PeekedMessage {
    /// The state of the message: its number, how many attempts it had, what it waits for.
    pub status: MessageStatus,
    /// The message as it was sent. `None`: its payload is damaged; a receive would find that and
    /// drop the message.
    pub message: Option<Message>,
    /// When the first queue accepted the message; `None` as for `message`.
    pub accepted: Option<WallTime>,
}

/// Builds a list of the keys of a queue. Await it to get a [`KeyPage`].
/// [`Queue::keys`](crate::Queue::keys) makes one.
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

    /// Shows only messages of this key, or of this group in an unkeyed queue. Default: all.
    pub fn key(mut self, key: Key) -> Self {
        self.key = Some(key);
        self
    }

    /// Shows only messages behind this one: pass [`PeekedPage::next`] of the page before. Default:
    /// from the front.
    pub fn after(mut self, last: Sequence) -> Self {
        self.after = Some(last);
        self
    }

    /// Sets how many messages the page has at most, from 1 to 1,000. Default: 100. A page ends
    /// early at the message with which it has 16 MiB, and if many other messages stand between
    /// those of a key.
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

    /// Lists only parked keys. Default: all.
    pub fn parked(mut self) -> Self {
        self.list.parked = true;
        self
    }

    /// Lists only keys behind this one: pass [`KeyPage::next`] of the page before. Default: from
    /// the front.
    pub fn after(mut self, last: u32) -> Self {
        self.list.after = Some(last);
        self
    }

    /// Sets how many keys the page has at most, from 1 to 1,000. Default: 100.
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
