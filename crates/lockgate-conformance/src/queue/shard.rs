//! A shard as a caller sees it, one call at a time.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use lockgate_core::{HolderName, Key, Level, Message, QueueName, Storage};
use lockgate_engine::{Engine, EngineError, EngineOptions, Received, StartReport};
use lockgate_machine::{
    Command, CreateQueue, DescribeQueue, Query, QueryReply, QueueDescription, QueueSettings,
    Receive, Reply, SendMessage, Sent, Settle, SettleAction, Settled,
};
use lockgate_sim::ManualClock;
use tokio::runtime::Runtime;

/// The one queue of most cases.
pub(super) const QUEUE: &str = "orders";

/// An engine over a log, with a clock set by hand.
pub(super) struct Shard {
    pub(super) engine: Engine,
    pub(super) clock: ManualClock,
    pub(super) report: StartReport,
    runtime: Runtime,
}

impl Shard {
    pub(super) fn start(log: Storage, clock: ManualClock) -> Self {
        let options = EngineOptions::default();
        let (engine, report) =
            Engine::start(log, Arc::new(clock.clone()), options).expect("the engine starts");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        Self {
            engine,
            clock,
            report,
            runtime,
        }
    }

    /// With a queue of these settings.
    pub(super) fn with_queue(log: Storage, settings: QueueSettings) -> Self {
        let shard = Self::start(log, ManualClock::default());
        shard.create(QUEUE, settings);
        shard
    }

    /// Stops it, and leaves its clock for the next life.
    pub(super) fn stop(self) -> ManualClock {
        self.wait(self.engine.shutdown());
        self.clock
    }

    pub(super) fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(super) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(future)
    }

    pub(super) fn submit(&self, command: Command) -> Result<Reply, EngineError> {
        self.wait(self.engine.submit(command))
    }

    pub(super) fn create(&self, queue: &str, settings: QueueSettings) {
        let create = Command::CreateQueue(Box::new(CreateQueue {
            name: name(queue),
            settings,
            annotations: BTreeMap::new(),
            tags: BTreeMap::new(),
        }));
        self.submit(create).expect("the queue is made");
    }

    pub(super) fn send(&self, message: Message) -> Sent {
        match self.submit(send(QUEUE, message)) {
            Ok(Reply::Sent(sent)) => sent,
            other => panic!("{other:?}"),
        }
    }

    /// Sends messages as one batch.
    pub(super) fn send_all(&self, messages: impl IntoIterator<Item = Message>) {
        let sends = messages
            .into_iter()
            .map(|message| send(QUEUE, message))
            .collect();
        let answers = self.wait(self.engine.submit_all(sends));
        for answer in answers.expect("the batch is answered") {
            answer.expect("the message is accepted");
        }
    }

    /// Receives at most `max` messages, without waiting, and keeps their leases.
    pub(super) fn take(&self, max: u16) -> Vec<Received> {
        self.take_from(QUEUE, max)
    }

    pub(super) fn take_from(&self, queue: &str, max: u16) -> Vec<Received> {
        let batch = self.engine.receive(receive(queue, max), Duration::ZERO);
        self.wait(batch).expect("the receive is answered").keep()
    }

    /// Settles a lease. `None`: it is not valid any more.
    pub(super) fn settle(&self, received: &Received, action: SettleAction) -> Option<()> {
        match self.submit(settle(received, action)) {
            Ok(Reply::Settled(Settled::Done)) => Some(()),
            Ok(Reply::Settled(Settled::Stale(_))) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Takes and acknowledges everything there is, a few at a time.
    pub(super) fn drain(&self) -> Vec<String> {
        let mut bodies = Vec::new();
        loop {
            let batch = self.take(7);
            if batch.is_empty() {
                return bodies;
            }
            for received in batch {
                bodies.push(body(&received));
                self.settle(&received, SettleAction::Ack)
                    .expect("the lease is valid");
            }
        }
    }

    pub(super) fn describe(&self, queue: &str) -> QueueDescription {
        let queue = name(queue);
        match self.wait(
            self.engine
                .query(Query::DescribeQueue(DescribeQueue { queue })),
        ) {
            Ok(QueryReply::Queue(description)) => *description,
            other => panic!("{other:?}"),
        }
    }

    /// Lets time pass.
    pub(super) fn pass(&self, span: u64) {
        self.clock.advance(span);
        self.engine.clock_changed();
    }
}

pub(super) fn name(text: &str) -> QueueName {
    QueueName::new(text).expect("a good name")
}

pub(super) fn keyed_queue() -> QueueSettings {
    QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    }
}

pub(super) fn at_level(level: Level) -> QueueSettings {
    QueueSettings {
        level,
        ..QueueSettings::default()
    }
}

pub(super) fn send(queue: &str, message: Message) -> Command {
    Command::Send(Box::new(SendMessage {
        queue: name(queue),
        message,
    }))
}

pub(super) fn receive(queue: &str, max: u16) -> Receive {
    Receive {
        queue: name(queue),
        max,
        key_max: None,
        lease: None,
        holder: HolderName::new("worker").expect("a good name"),
    }
}

pub(super) fn settle(received: &Received, action: SettleAction) -> Command {
    let token = received.delivery.token;
    Command::Settle(Settle { token, action })
}

pub(super) fn text(body: impl Into<String>) -> Message {
    Message::new(body.into())
}

pub(super) fn keyed(body: impl Into<String>, key: &str) -> Message {
    text(body).with_key(Key::new(key).expect("a good key"))
}

pub(super) fn body(received: &Received) -> String {
    String::from_utf8(received.stored.message.body.to_vec()).expect("bodies here are text")
}

pub(super) fn bodies(received: &[Received]) -> Vec<String> {
    received.iter().map(body).collect()
}
