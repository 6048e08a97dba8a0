//! One queue: making it, sending to it, looking at it.

use std::{collections::BTreeMap, fmt, time::Duration};

use lockgate_core::{Key, Level, Message, MessageId, Millis, QueueName, WallTime};
use lockgate_engine::{Engine, EngineError};
use lockgate_machine::{
    Cancel, ChangeKey, ChangeQueue, CreateQueue, DedupScope, DeleteQueue, DescribeQueue,
    ExplainKey, KeyAction, KeyPolicy, KeyProfile, KeyStatus, Pause, Purge, QueueDescription,
    QueueSettings, Rejection, Reschedule, SendMessage, Sent,
};

use crate::{Error, ReceiveBuilder};

/// A queue. Cheap to clone.
#[derive(Clone)]
pub struct Queue {
    engine: Engine,
    name: QueueName,
}

/// Makes a queue, or opens one that is there. What is not set has the default of
/// [`QueueSettings`].
#[derive(Clone)]
#[must_use]
pub struct QueueBuilder {
    engine: Engine,
    name: String,
    dead_letter: Option<String>,
    settings: QueueSettings,
    tags: BTreeMap<String, String>,
}

impl QueueBuilder {
    pub(crate) fn new(engine: Engine, name: &str) -> Self {
        Self {
            engine,
            name: name.to_owned(),
            dead_letter: None,
            settings: QueueSettings::default(),
            tags: BTreeMap::new(),
        }
    }

    /// Messages of one key are kept in order, with one holder at a time; every message needs a key.
    /// Fixed once the queue is made. Default: not keyed: a message with a key is refused, one with a
    /// group ([`Message::with_group`]) takes turns with other groups.
    pub fn keyed(mut self) -> Self {
        self.settings.keyed = true;
        self
    }

    /// What an answered send or settle survives. Default: [`Level::Disk`].
    pub fn level(mut self, level: Level) -> Self {
        self.settings.level = level;
        self
    }

    /// How long a lease lasts when the receive does not say; up to 12 h. Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = millis(lease);
        self
    }

    /// How long every message waits before its first delivery when it does not say itself. Default:
    /// not at all.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.settings.delay = millis(delay);
        self
    }

    /// How long a message is kept; at least 1 s. Default: 4 days.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = millis(retention);
        self
    }

    /// Messages that are rejected, or had [`attempts_max`](Self::attempts_max) leases, go to the queue of that
    /// name, which must be there, and be keyed exactly if this one is. Default: none, they are tried for ever.
    pub fn dead_letter(mut self, queue: &str) -> Self {
        self.dead_letter = Some(queue.to_owned());
        self
    }

    /// What a failing message does to its key. Default: `skip` with a dead-letter queue, else
    /// `block`.
    pub fn key_policy(mut self, policy: KeyPolicy) -> Self {
        self.settings.key_policy = Some(policy);
        self
    }

    /// How many attempts a message has before it goes to the dead-letter queue, or before
    /// [`KeyPolicy::Park`] freezes its key; 1 to 1,000. Default: 5.
    pub fn attempts_max(mut self, attempts: u16) -> Self {
        self.settings.attempts_max = attempts;
        self
    }

    /// Which rules a batch of one key follows. Default: [`KeyProfile::Strict`].
    pub fn key_profile(mut self, profile: KeyProfile) -> Self {
        self.settings.key_profile = profile;
        self
    }

    /// How long a unique id is remembered; zero: not at all. Default: 5 min.
    pub fn dedup_window(mut self, window: Duration) -> Self {
        self.settings.dedup_window = millis(window);
        self
    }

    /// Within what a unique id is unique. Default: the queue.
    pub fn dedup_scope(mut self, scope: DedupScope) -> Self {
        self.settings.dedup_scope = scope;
        self
    }

    /// The largest message in bytes, body and headers; 1 to 16 MiB. Default: 1 MiB.
    pub fn message_bytes_max(mut self, bytes: u32) -> Self {
        self.settings.message_bytes_max = bytes;
        self
    }

    /// How many messages the queue may hold; sends beyond it are refused. 1 or more; default: no limit.
    pub fn quota_messages(mut self, max: u64) -> Self {
        self.settings.quota_messages = Some(max);
        self
    }

    /// How many bytes of bodies and headers the queue may hold; sends beyond it are refused. 1 or more;
    /// default: no limit.
    pub fn quota_bytes(mut self, max: u64) -> Self {
        self.settings.quota_bytes = Some(max);
        self
    }

    /// A tag, for whoever operates the queue.
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(name.into(), value.into());
        self
    }

    /// All settings at once, for those without a method here.
    pub fn settings(mut self, settings: QueueSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Makes the queue. If it is there with the same settings it is opened; its tags stay as they
    /// are then.
    ///
    /// # Errors
    /// [`Error::QueueDiffers`] if it is there with other settings; a rejection if the settings do
    /// not fit together.
    pub async fn create(self) -> Result<Queue, Error> {
        let settings = self.checked_settings()?;
        let name = QueueName::new(&self.name)?;
        let create = CreateQueue {
            name: name.clone(),
            settings: settings.clone(),
            annotations: BTreeMap::new(),
            tags: self.tags,
        };
        let created = self.engine.submit(create).await?;
        if created.description.settings.is_what_asks(&settings) {
            Ok(Queue::new(self.engine, name))
        } else {
            Err(Error::QueueDiffers { queue: name })
        }
    }

    /// Opens the queue if it is there, whatever its settings are.
    ///
    /// # Errors
    /// [`Rejection::QueueNotFound`] if it is not.
    pub fn open(self) -> Result<Queue, Error> {
        let queue = QueueName::new(&self.name)?;
        match self.engine.directory().get(&queue) {
            Some(_) => Ok(Queue::new(self.engine, queue)),
            None => Err(Rejection::QueueNotFound { queue }.into()),
        }
    }

    /// Gives the queue that is there these settings. Its tags stay as they are if none are set
    /// here.
    ///
    /// # Errors
    /// A rejection if it is not there, or if the settings do not fit together.
    pub async fn configure(self) -> Result<Queue, Error> {
        let settings = self.checked_settings()?;
        let queue = QueueName::new(&self.name)?;
        let change = ChangeQueue {
            queue: queue.clone(),
            settings: Some(Box::new(settings)),
            annotations: None,
            tags: (!self.tags.is_empty()).then_some(self.tags),
        };
        self.engine.submit(change).await?;
        Ok(Queue::new(self.engine, queue))
    }

    fn checked_settings(&self) -> Result<QueueSettings, Error> {
        let mut settings = self.settings.clone();
        if let Some(queue) = &self.dead_letter {
            settings.dead_letter = Some(QueueName::new(queue)?);
        }
        Ok(settings)
    }
}

impl Queue {
    pub(crate) fn new(engine: Engine, name: QueueName) -> Self {
        Self { engine, name }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// Sends a message; answers when it has reached its level. A message with a unique id that the
    /// queue remembers is not added again: the answer is that of the first one, marked as
    /// [`duplicate`](Sent::duplicate).
    ///
    /// Cancelled after it got to the engine, it may have been accepted.
    ///
    /// # Errors
    /// A rejection by the queue's rules and limits ([`Rejection::KeyRequired`] and
    /// [`Rejection::GroupNotTaken`] by a keyed queue, [`Rejection::KeyNotTaken`] by another), or the
    /// engine's state; see [`Error::kind`].
    pub async fn send(&self, message: Message) -> Result<Sent, Error> {
        Ok(self.engine.submit(self.to_send(message)).await?)
    }

    /// Sends messages in order, each on its own: one may be refused and the others accepted. Much
    /// cheaper than one by one: they are written and synced together.
    ///
    /// # Errors
    /// As [`send`](Self::send), for all of them; what concerns one stands in its result.
    pub async fn send_all(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<Result<Sent, Rejection>>, Error> {
        let messages = messages.into_iter();
        let sends = messages.map(|message| self.to_send(message)).collect();
        Ok(self.engine.submit_all(sends).await?)
    }

    /// Starts a receive, which is an awaitable builder.
    pub fn receive(&self) -> ReceiveBuilder {
        ReceiveBuilder::new(self.engine.clone(), self.name.clone())
    }

    /// All about the queue: settings, what it holds, what came and went.
    ///
    /// # Errors
    /// A rejection if it is not there any more.
    pub async fn describe(&self) -> Result<QueueDescription, Error> {
        let queue = self.name.clone();
        Ok(self.engine.query(DescribeQueue { queue }).await?)
    }

    /// Removes all messages, also those in flight and delayed. Answers with how many there were.
    ///
    /// # Errors
    /// A rejection if it is not there any more.
    pub async fn purge(&self) -> Result<u64, Error> {
        let queue = self.name.clone();
        Ok(self.engine.submit(Purge { queue }).await?)
    }

    /// Removes the queue and all it holds.
    ///
    /// # Errors
    /// A rejection if it is not there any more.
    pub async fn delete(&self) -> Result<(), Error> {
        let queue = self.name.clone();
        self.engine.submit(DeleteQueue { queue }).await?;
        Ok(())
    }

    /// Gives no more leases until [`resume`](Self::resume); sends and settles go on. Survives a
    /// restart.
    ///
    /// # Errors
    /// A rejection if it is not there any more.
    pub async fn pause(&self) -> Result<(), Error> {
        self.set_paused(true).await
    }

    /// Gives leases again.
    ///
    /// # Errors
    /// A rejection if it is not there any more.
    pub async fn resume(&self) -> Result<(), Error> {
        self.set_paused(false).await
    }

    /// Removes a message that is not in flight.
    ///
    /// # Errors
    /// [`Rejection::MessageInFlight`], or [`Rejection::MessageNotFound`].
    pub async fn cancel(&self, message: MessageId) -> Result<(), Error> {
        let queue = self.name.clone();
        let cancel = Cancel { queue, message };
        self.engine.submit(cancel).await?;
        Ok(())
    }

    /// Gives a message that is not in flight another due time; it counts as accepted when it is due.
    ///
    /// # Errors
    /// [`Rejection::MessageInFlight`], or [`Rejection::MessageNotFound`].
    pub async fn reschedule(&self, message: MessageId, due: WallTime) -> Result<(), Error> {
        let queue = self.name.clone();
        let reschedule = Reschedule {
            queue,
            message,
            due,
        };
        self.engine.submit(reschedule).await?;
        Ok(())
    }

    /// Why a key does, or does not, move: who holds it, and for how much longer.
    ///
    /// # Errors
    /// [`Rejection::KeyNotFound`] if the queue has nothing under that key.
    pub async fn explain(&self, key: Key) -> Result<KeyStatus, Error> {
        let queue = self.name.clone();
        Ok(self.engine.query(ExplainKey { queue, key }).await?)
    }

    /// Freezes a key, durably: no more leases until [`resume_key`](Self::resume_key). The key need
    /// not have messages yet.
    ///
    /// # Errors
    /// [`Rejection::KeyNotFound`] if the queue is not keyed.
    pub async fn park_key(&self, key: Key) -> Result<(), Error> {
        self.key(key, KeyAction::Park).await.map(drop)
    }

    /// Unfreezes a key; attempts of its first message count from zero.
    ///
    /// # Errors
    /// [`Rejection::KeyNotFound`] if the queue has nothing under that key.
    pub async fn resume_key(&self, key: Key) -> Result<(), Error> {
        self.key(key, KeyAction::Resume).await.map(drop)
    }

    /// Drops the waiting messages of a key; what is in flight may settle. Answers with how many.
    ///
    /// They go in steps of 10,000: cancelled or failed half-way, some are gone and the others are
    /// there.
    ///
    /// # Errors
    /// [`Rejection::KeyNotFound`] if the queue has nothing under that key.
    pub async fn drop_key(&self, key: Key) -> Result<u64, Error> {
        let mut dropped = 0;
        loop {
            let step =
                match self.key(key.clone(), KeyAction::Drop).await {
                    Ok(step) => step,
                    // The step before took the last one.
                    Err(Error::Engine(EngineError::Rejected(Rejection::KeyNotFound {
                        ..
                    }))) if dropped > 0 => 0,
                    Err(error) => return Err(error),
                };
            dropped += step;
            if step < KeyAction::DROPS_MAX as u64 {
                return Ok(dropped);
            }
        }
    }

    pub(crate) fn to_send(&self, message: Message) -> SendMessage {
        SendMessage {
            queue: self.name.clone(),
            message,
        }
    }

    async fn set_paused(&self, paused: bool) -> Result<(), Error> {
        let queue = self.name.clone();
        self.engine.submit(Pause { queue, paused }).await?;
        Ok(())
    }

    async fn key(&self, key: Key, action: KeyAction) -> Result<u64, Error> {
        let queue = self.name.clone();
        Ok(self.engine.submit(ChangeKey { queue, key, action }).await?)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.name).finish()
    }
}

/// Whole milliseconds, rounded up, so that nothing is ever shorter than asked.
pub(crate) fn millis(span: Duration) -> Millis {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
