//! Creates a queue, sends to it, receives from it and looks at it.

use std::{collections::BTreeMap, fmt, num::NonZeroU32, time::Duration};

use lockgate_core::coordination::Fence;
use lockgate_core::{
    Key, KeyState, KeyStateWrite, Level, Message, MessageId, Millis, ProducerName, QueueName,
    RecordVersion, WallTime,
    limits::{Gap, Rate, Scoped},
};
use lockgate_engine::{Engine, EngineError};
use lockgate_machine::{
    Cancel, ChangeKey, ChangeKeyState, ChangeQueue, CreateQueue, DedupScope, DeleteQueue,
    DescribeQueue, ExplainKey, ForgetProducer, GetKeyState, Hold, HoldTarget, KeyAction, KeyPolicy,
    KeyProfile, KeyStatePage, KeyStatus, ListKeyStates, ListProducers, Pause, ProducerPage, Purge,
    QueueDescription, QueueSettings, Rejection, Reschedule, SendMessage, Sent,
};

use crate::{
    Error, KeysBuilder, PeekBuilder, PeekedMessage, ReceiveBuilder, RedriveBuilder,
    browse::peek_message,
};

/// A queue. Clones are cheap.
///
/// If the future of a method is dropped after the request got to the engine, the request may have
/// happened or not. A query changes nothing in any case.
#[derive(Clone)]
pub struct Queue {
    engine: Engine,
    name: QueueName,
}

/// Creates a queue, opens one that exists, or changes its settings. A setting without a call here
/// has the default of [`QueueSettings`]. Times are rounded up to whole milliseconds. Values out of
/// range are refused by [`create`](Self::create) and [`configure`](Self::configure).
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

    /// Makes the queue keyed: messages of one key keep their order and have one holder at a time,
    /// and every message needs a key. This is fixed once the queue exists.
    ///
    /// Default: not keyed. Then a message with a key is refused, and messages with a group
    /// ([`Message::with_group`]) take turns with other groups.
    pub fn keyed(mut self) -> Self {
        self.settings.keyed = true;
        self
    }

    /// Sets what an answered send or settle survives. Default: [`Level::Disk`].
    pub fn level(mut self, level: Level) -> Self {
        self.settings.level = level;
        self
    }

    /// Sets how long a lease lasts if the receive does not say, up to 12 h. Default: 30 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = millis(lease);
        self
    }

    /// Sets how long a message waits before its first delivery if it does not say itself. Default:
    /// zero.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.settings.delay = millis(delay);
        self
    }

    /// Sets how long the queue keeps a message, counted from its due time; at least 1 s. Default: 4
    /// days.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = millis(retention);
        self
    }

    /// Limits how often messages are leased: of the queue, of each key (or group), or of both, as in
    /// `"100/s + 10/s per key".parse()`. What a limit holds waits and keeps its place. Default: no limit.
    pub fn limit_rate(mut self, limit: Scoped<Rate>) -> Self {
        self.settings.limit_rate = limit;
        self
    }

    /// Limits how many messages are under a lease at a time: of the queue, of each key (or group), or of both,
    /// as in `"3 per key".parse()`. Default: no limit.
    pub fn limit_concurrency(mut self, limit: Scoped<NonZeroU32>) -> Self {
        self.settings.limit_concurrency = limit;
        self
    }

    /// Sets the least time from one lease to the next: of the queue, of each key (or group), or of both, as in
    /// `"200ms per key".parse()`. Default: none.
    pub fn limit_gap(mut self, limit: Scoped<Gap>) -> Self {
        self.settings.limit_gap = limit;
        self
    }

    /// Sets the queue for messages that are rejected, or that had
    /// [`attempts_max`](Self::attempts_max) leases. It must exist, and be keyed exactly if this one
    /// is. Default: none; then messages are tried for ever, and rejected ones are dropped.
    pub fn dead_letter(mut self, queue: &str) -> Self {
        self.dead_letter = Some(queue.to_owned());
        self
    }

    /// Sets what a failing message does to its key. Default: [`KeyPolicy::Skip`] with a dead-letter
    /// queue, else [`KeyPolicy::Block`].
    pub fn key_policy(mut self, policy: KeyPolicy) -> Self {
        self.settings.key_policy = Some(policy);
        self
    }

    /// Sets how many attempts a message has, from 1 to 1,000. After that it goes to the dead-letter
    /// queue, or [`KeyPolicy::Park`] parks its key. Default: 5.
    pub fn attempts_max(mut self, attempts: u16) -> Self {
        self.settings.attempts_max = attempts;
        self
    }

    /// Sets the rules for several messages of one key in one receive. Default:
    /// [`KeyProfile::Strict`].
    pub fn key_profile(mut self, profile: KeyProfile) -> Self {
        self.settings.key_profile = profile;
        self
    }

    /// Sets how long the queue remembers a unique id, up to ten years; zero switches deduplication
    /// off. Default: 5 min.
    pub fn dedup_window(mut self, window: Duration) -> Self {
        self.settings.dedup_window = millis(window);
        self
    }

    /// The queue remembers unique ids for ever, on disk, from its creation on. A log in a folder can do that; others
    /// refuse such a queue.
    pub fn dedup_forever(mut self) -> Self {
        self.settings.dedup_window = QueueSettings::FOREVER;
        self
    }

    /// Sets whether a unique id is unique in the queue or in its key. Default: the queue.
    pub fn dedup_scope(mut self, scope: DedupScope) -> Self {
        self.settings.dedup_scope = scope;
        self
    }

    /// Sets the size of the largest message in bytes, body and headers, from 1 to 16 MiB. Default:
    /// 1 MiB.
    pub fn message_bytes_max(mut self, bytes: u32) -> Self {
        self.settings.message_bytes_max = bytes;
        self
    }

    /// Sets how many messages the queue may hold, in any state; 1 or more. Sends beyond that are
    /// refused. Default: no limit.
    pub fn quota_messages(mut self, max: u64) -> Self {
        self.settings.quota_messages = Some(max);
        self
    }

    /// Sets how many bytes of bodies and headers the queue may hold; 1 or more. Sends beyond that
    /// are refused. Default: no limit.
    pub fn quota_bytes(mut self, max: u64) -> Self {
        self.settings.quota_bytes = Some(max);
        self
    }

    /// Adds a tag: a name and a value for whoever operates the queue. Lockgate keeps it and does
    /// nothing else with it.
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(name.into(), value.into());
        self
    }

    /// Sets all settings at once, for those without a method here. It replaces what earlier calls
    /// set.
    pub fn settings(mut self, settings: QueueSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Creates the queue. If it exists with the same settings, this opens it and leaves its tags as
    /// they are.
    ///
    /// # Errors
    /// [`Error::QueueDiffers`] if the queue exists with other settings; [`Error::Name`] if a name
    /// is not allowed; a rejection if the settings do not fit together.
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

    /// Opens the queue if it exists, whatever its settings are. Asks the engine's list of queues,
    /// and waits for nothing.
    ///
    /// # Errors
    /// [`Rejection::QueueNotFound`] if it does not exist; [`Error::Name`] if the name is not
    /// allowed.
    pub fn open(self) -> Result<Queue, Error> {
        let queue = QueueName::new(&self.name)?;
        match self.engine.directory().get(&queue) {
            Some(_) => Ok(Queue::new(self.engine, queue)),
            None => Err(Rejection::QueueNotFound { queue }.into()),
        }
    }

    /// Gives the existing queue these settings. It keeps its tags if none are set here.
    ///
    /// # Errors
    /// A rejection if the queue does not exist, or if the settings do not fit together.
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

    /// The same queue for the leader of a term: each change is refused with [`Rejection::Fenced`] once the shard has seen a
    /// later term of that election, in this queue or elsewhere, or when the term is over by its own clock. So whoever was
    /// deposed cannot send any more. The highest epoch is kept in the record `fence/ELECTION`, and changed in the same step.
    /// Receives are as before.
    #[must_use]
    pub fn fenced(&self, fence: &Fence) -> Self {
        Self::new(self.engine.fenced(fence), self.name.clone())
    }

    /// Returns the name of the queue.
    #[must_use]
    pub fn name(&self) -> &QueueName {
        &self.name
    }

    /// Sends a message, and returns when it has reached its level. If the queue remembers the
    /// message's unique id, it adds nothing and returns the answer of the first send, marked as
    /// [`duplicate`](Sent::duplicate).
    ///
    /// If the future is dropped after the message got to the engine, the message may have been
    /// accepted or not.
    ///
    /// # Errors
    /// A rejection by the queue's rules and limits: [`Rejection::KeyRequired`] and
    /// [`Rejection::GroupNotTaken`] by a keyed queue, [`Rejection::KeyNotTaken`] by an unkeyed one.
    /// [`Rejection::SentBefore`] for a record of a producer that was accepted before: nothing is added, and which message
    /// it became is not known any more. [`Rejection::Producer`] if its producer may not send.
    /// Otherwise an error about the engine's state; see [`Error::kind`].
    pub async fn send(&self, message: Message) -> Result<Sent, Error> {
        Ok(self.engine.submit(self.to_send(message)).await?)
    }

    /// Sends messages in order, each on its own: one may be refused and the others accepted. It
    /// writes and syncs them together, so it is much cheaper than sending them one by one. Returns
    /// one result for each message, in order.
    ///
    /// # Errors
    /// As [`send`](Self::send), if the engine could do none of them. A refusal of one message is in
    /// its result.
    pub async fn send_all(
        &self,
        messages: impl IntoIterator<Item = Message>,
    ) -> Result<Vec<Result<Sent, Rejection>>, Error> {
        let messages = messages.into_iter();
        let sends = messages.map(|message| self.to_send(message)).collect();
        Ok(self.engine.submit_all(sends).await?)
    }

    /// Lists the producers of the queue by name, behind `after`, at most `limit` of them; 1 to 1,000. A queue is opened for
    /// one by [`Sink::open_producer`](lockgate_core::Sink::open_producer).
    ///
    /// Cancellation safe.
    ///
    /// # Errors
    /// [`Rejection::QueueNotFound`] or [`Rejection::OutOfRange`]; otherwise an error about the engine's state.
    pub async fn producers(
        &self,
        after: Option<ProducerName>,
        limit: usize,
    ) -> Result<ProducerPage, Error> {
        let list = ListProducers {
            queue: self.name.clone(),
            after,
            limit,
        };
        Ok(self.engine.query(list).await?)
    }

    /// Forgets a producer and which of its records were accepted: those that come again are accepted again, once the
    /// producer has opened the queue anew.
    ///
    /// # Errors
    /// [`Rejection::ProducerNotFound`] if the queue does not know it.
    pub async fn forget_producer(&self, producer: ProducerName) -> Result<(), Error> {
        let queue = self.name.clone();
        self.engine
            .submit(ForgetProducer { queue, producer })
            .await?;
        Ok(())
    }

    /// Starts a receive. Set what it asks for on the builder, then await that.
    pub fn receive(&self) -> ReceiveBuilder {
        ReceiveBuilder::new(self.engine.clone(), self.name.clone())
    }

    /// Returns everything about the queue: its settings, what it holds, and what came and went.
    ///
    /// # Errors
    /// A rejection if the queue does not exist any more.
    pub async fn describe(&self) -> Result<QueueDescription, Error> {
        let queue = self.name.clone();
        Ok(self.engine.query(DescribeQueue { queue }).await?)
    }

    /// Removes all messages, also those in flight and delayed. Returns how many there were.
    ///
    /// # Errors
    /// A rejection if the queue does not exist any more.
    pub async fn purge(&self) -> Result<u64, Error> {
        let queue = self.name.clone();
        Ok(self.engine.submit(Purge { queue }).await?)
    }

    /// Deletes the queue and all it holds. Its name is free at once.
    ///
    /// # Errors
    /// A rejection if the queue does not exist any more.
    pub async fn delete(&self) -> Result<(), Error> {
        let queue = self.name.clone();
        self.engine.submit(DeleteQueue { queue }).await?;
        Ok(())
    }

    /// Pauses the queue: it gives no more leases until [`resume`](Self::resume). Sends and settles
    /// go on. The pause survives a restart.
    ///
    /// # Errors
    /// A rejection if the queue does not exist any more.
    pub async fn pause(&self) -> Result<(), Error> {
        self.set_paused(true).await
    }

    /// Ends a pause: the queue gives leases again.
    ///
    /// # Errors
    /// A rejection if the queue does not exist any more.
    pub async fn resume(&self) -> Result<(), Error> {
        self.set_paused(false).await
    }

    /// Removes a message that is not in flight, by the id that its send returned.
    ///
    /// # Errors
    /// [`Rejection::MessageInFlight`] if somebody holds it; [`Rejection::MessageNotFound`] if it is
    /// gone.
    pub async fn cancel(&self, message: MessageId) -> Result<(), Error> {
        let queue = self.name.clone();
        let cancel = Cancel { queue, message };
        self.engine.submit(cancel).await?;
        Ok(())
    }

    /// Gives a message that is not in flight another due time. Its place in the order of its key,
    /// and its retention, then count from that time.
    ///
    /// # Errors
    /// [`Rejection::MessageInFlight`] if somebody holds it; [`Rejection::MessageNotFound`] if it is
    /// gone.
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

    /// Tells why a key moves, or does not: who holds it, and for how much longer. Of a queue without keys, a group;
    /// `None` is the group of messages without one.
    ///
    /// # Errors
    /// [`Rejection::KeyNotFound`] if the queue has nothing under that key; [`Rejection::NoneWithoutKey`] for `None` if it
    /// is keyed.
    pub async fn explain(&self, key: impl Into<Option<Key>>) -> Result<KeyStatus, Error> {
        let (queue, key) = (self.name.clone(), key.into());
        Ok(self.engine.query(ExplainKey { queue, key }).await?)
    }

    /// Starts to look at messages without leasing them, in the order in which they arrived, one
    /// page at a time. It may miss what comes or goes between two pages.
    ///
    /// Cancellation safe.
    ///
    /// # Errors
    /// [`Rejection::QueueNotFound`], [`Rejection::KeyNotFound`] or [`Rejection::OutOfRange`];
    /// otherwise an error about the engine's state.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let lockgate = lockgate::Lockgate::open(folder.path()).await?;
    /// let queue = lockgate.queue("mail").create().await?;
    /// queue.send(lockgate::Message::new("hello")).await?;
    /// let page = queue.peek().max(10).await?;
    /// assert_eq!(page.messages[0].message.as_ref().unwrap().body, "hello");
    /// assert_eq!(page.messages[0].status.attempts, 0);
    /// assert_eq!(page.next, None);
    /// # lockgate.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn peek(&self) -> PeekBuilder {
        PeekBuilder::new(self.engine.clone(), self.name.clone())
    }

    /// Looks at one message without leasing it, wherever it stands.
    ///
    /// Cancellation safe.
    ///
    /// # Errors
    /// [`Rejection::MessageNotFound`], or the engine's state.
    pub async fn peek_message(&self, message: MessageId) -> Result<PeekedMessage, Error> {
        peek_message(&self.engine, &self.name, message).await
    }

    /// Starts to list the keys of a keyed queue, in no order, each with how many messages it has
    /// and why it moves or does not. A page may have fewer keys than you asked for, or none,
    /// although more follow.
    ///
    /// Cancellation safe.
    ///
    /// # Errors
    /// A rejection if the queue is not keyed or does not exist any more, or
    /// [`Rejection::OutOfRange`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let lockgate = lockgate::Lockgate::open(folder.path()).await?;
    /// use lockgate::{Key, KeyWait};
    ///
    /// let orders = lockgate.queue("orders").keyed().create().await?;
    /// orders.park_key(Key::new("user-42")?).await?;
    /// let page = orders.keys().parked().await?;
    /// assert_eq!(page.keys[0].key, Some(Key::new("user-42")?));
    /// assert_eq!(page.keys[0].waits_for, KeyWait::Parked);
    /// # lockgate.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn keys(&self) -> KeysBuilder {
        KeysBuilder::new(self.engine.clone(), self.name.clone())
    }

    /// Starts to move the messages that a receive could get now to another queue: dead letters go
    /// back to where they came from, unless [`to`](RedriveBuilder::to) names a queue. Each arrives
    /// as a new message with the same id: at the end of its key's order, with no attempt counted,
    /// past deduplication and quota. The first message that cannot go there ends the move and
    /// stays; [`stuck`](crate::Moved::stuck) names it.
    ///
    /// It moves in steps of 1,000. If the future is dropped, some messages are moved and the others
    /// are still there.
    ///
    /// # Errors
    /// A rejection if a queue does not exist or is of the other kind; otherwise an error about the
    /// engine's state. [`Error::Redrive`] if messages were moved before, with their number.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let lockgate = lockgate::Lockgate::open(folder.path()).await?;
    /// let dead = lockgate.queue("dead").create().await?;
    /// let queue = lockgate.queue("mail").dead_letter("dead").create().await?;
    /// queue.send(lockgate::Message::new("hello")).await?;
    /// queue.receive().await?.remove(0).reject("no such user").await?;
    ///
    /// assert_eq!(dead.redrive().await?.moved, 1);
    /// assert_eq!(queue.receive().await?[0].body(), "hello");
    /// # lockgate.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn redrive(&self) -> RedriveBuilder {
        RedriveBuilder::new(self.engine.clone(), self.name.clone())
    }

    /// Holds the queue, durably: it gives no leases until `time` has passed, up to 366 days. What is in flight goes
    /// on. A hold that lasts longer already stays; zero ends one. Returns how much longer it is held, if it is.
    ///
    /// # Errors
    /// [`Rejection::OutOfRange`] for a longer time.
    pub async fn hold(&self, time: Duration) -> Result<Option<Duration>, Error> {
        self.held(HoldTarget::Queue, time).await
    }

    /// As [`hold`](Self::hold), of a key, or of a group of a queue without keys. It need not have messages yet. `None` is
    /// the group of messages without one.
    ///
    /// # Errors
    /// [`Rejection::OutOfRange`] for a longer time, [`Rejection::NoneWithoutKey`] for `None` if the queue is keyed, and
    /// [`Rejection::ShardFull`] while as many keys owe something or are held as may.
    pub async fn hold_key(
        &self,
        key: impl Into<Option<Key>>,
        time: Duration,
    ) -> Result<Option<Duration>, Error> {
        self.held(HoldTarget::Key(key.into()), time).await
    }

    async fn held(&self, what: HoldTarget, time: Duration) -> Result<Option<Duration>, Error> {
        let hold = Hold {
            queue: self.name.clone(),
            what,
            time: millis(time),
        };
        let remaining = self.engine.submit(hold).await?;
        Ok(remaining.map(Duration::from_millis))
    }

    /// Parks a key, durably: it gives no more leases until [`resume_key`](Self::resume_key). The
    /// key need not have messages yet.
    ///
    /// # Errors
    /// [`Rejection::KeyNotFound`] if the queue is not keyed.
    pub async fn park_key(&self, key: Key) -> Result<(), Error> {
        self.key(key, KeyAction::Park).await.map(drop)
    }

    /// Resumes a parked key. The attempts of its first message count from zero.
    ///
    /// # Errors
    /// [`Rejection::KeyNotFound`] if the queue has nothing under that key.
    pub async fn resume_key(&self, key: Key) -> Result<(), Error> {
        self.key(key, KeyAction::Resume).await.map(drop)
    }

    /// Drops the waiting messages of a key; those in flight may still settle. Returns how many it
    /// dropped.
    ///
    /// It drops in steps of 10,000. If the future is dropped or a step fails, some messages are
    /// gone and the others are still there.
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

    /// Returns the state of a key, if it has one; also of a key without messages.
    ///
    /// # Errors
    /// [`Rejection::KeyStateNotTaken`] if the queue is not keyed.
    ///
    /// ```
    /// use lockgate::{Key, KeyStateWrite, Lockgate, Message, Replaces};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let lockgate = Lockgate::open(folder.path()).await?;
    /// let accounts = lockgate.queue("accounts").keyed().create().await?;
    /// let user = Key::new("user-42")?;
    /// accounts.send(Message::new("+5").with_key(user.clone())).await?;
    ///
    /// // Both happen, or none: the message is done, and the balance is written.
    /// let delivery = accounts.receive().await?.remove(0);
    /// let write = KeyStateWrite {
    ///     replaces: Replaces::Version(delivery.state().map(|state| state.version)),
    ///     value: Some("5".into()),
    /// };
    /// lockgate.transact().ack_with_state(delivery, write).commit().await?;
    /// assert_eq!(accounts.key_state(user).await?.unwrap().value, "5");
    /// # lockgate.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn key_state(&self, key: Key) -> Result<Option<KeyState>, Error> {
        let queue = self.name.clone();
        Ok(self.engine.query(GetKeyState { queue, key }).await?)
    }

    /// Lists the states of keys whose names start with `prefix`, in the order of the keys and without the values: up to
    /// `max`, 1 to 1,000, of those behind the key `after`. Pass [`KeyStatePage::next`] of the page before. Has also
    /// those of keys without messages, which [`keys`](Self::keys) leaves out.
    ///
    /// # Errors
    /// [`Rejection::KeyStateNotTaken`] if the queue is not keyed; [`Rejection::OutOfRange`] if `max` is.
    pub async fn key_states(
        &self,
        prefix: &str,
        after: Option<Key>,
        max: usize,
    ) -> Result<KeyStatePage, Error> {
        let list = ListKeyStates {
            queue: self.name.clone(),
            prefix: prefix.to_owned(),
            after,
            limit: max,
        };
        Ok(self.engine.query(list).await?)
    }

    /// Writes or drops the state of a key, for an operator: whoever holds a message of the key is refused when it
    /// writes the state, because it names an earlier version. Returns the new version; `None` after a drop.
    ///
    /// # Errors
    /// [`Rejection::KeyStateConflict`] if the state has another version than the write replaces;
    /// [`Rejection::KeyStateNotTaken`] if the queue is not keyed.
    pub async fn set_key_state(
        &self,
        key: Key,
        write: KeyStateWrite,
    ) -> Result<Option<RecordVersion>, Error> {
        let queue = self.name.clone();
        let change = ChangeKeyState { queue, key, write };
        Ok(self.engine.submit(change).await?)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// As of the last durable change; the defaults if it is not there any more.
    pub(crate) fn settings(&self) -> QueueSettings {
        let entry = self.engine.directory().get(&self.name);
        entry.map_or_else(QueueSettings::default, |entry| entry.settings.clone())
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
