//! `http.send` and `http.receive`: the same over the SQS API, with client and server in this process.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, ensure};
use hyper::StatusCode;
use lockgate_core::{Key, QueueName};
use lockgate_engine::Engine;
use lockgate_machine::{ChangeQueue, Command, QueueSettings};
use lockgate_server::{RunReport, Server, ServerOptions};
use serde::Serialize;
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    Course, Courses, Level, Setup,
    client::{
        BatchAnswer, Client, CreateQueue, DeleteEntry, DeleteMessageBatch, Messages, QueueUrl,
        ReceiveMessage, SendEntry, SendMessageBatch,
    },
    load::{Caller, Moved, Stop, as_f64, between, drive, keys, purge, start_engine, submit},
    payload::Payloads,
    queue::params,
    report::{Params, Report, Round},
};

/// Batch and callers that are measured by default.
const USUAL: [(u16, u16); 3] = [(1, 1), (1, 16), (10, 16)];

/// The most messages of one call of the protocol.
const BATCH_MAX: u16 = 10;

const FLOOR: &str = "the same requests with the name of no action: read whole and refused";

/// A name of no action.
const NO_ACTION: &str = "Nothing";

struct HttpCourse {
    queue: QueueName,
    params: Params,
    senders: Vec<HttpSender>,
    receivers: Vec<HttpReceiver>,
    floor_senders: Vec<HttpSender>,
    floor_receivers: Vec<HttpReceiver>,
    engine: Engine,
    server: Running,
}

pub(crate) fn open(setup: &Setup) -> anyhow::Result<Courses> {
    setup
        .shapes_or(&USUAL)
        .into_iter()
        .map(|(batch, callers)| {
            ensure!(
                batch <= BATCH_MAX,
                "the SQS API takes up to {BATCH_MAX} messages in a call, not {batch}: name the \
                 figures of the engine to measure larger batches in process"
            );
            let course = setup.runtime.block_on(open_course(setup, batch, callers))?;
            Ok(Box::new(course) as Box<dyn Course>)
        })
        .collect()
}

async fn open_course(setup: &Setup, batch: u16, callers: u16) -> anyhow::Result<HttpCourse> {
    let folder = setup.folder(&format!("http-{batch}-{callers}"));
    let engine = start_engine(&folder)?;
    let server = Running::start(Server::bind(options(), engine.clone()).await)?;
    let (name, url) = make_queue(setup, &engine, server.address, setup.level()).await?;
    let keys = keys("user", setup.keys());
    let address = server.address;
    let senders = |served| {
        HttpSender::several(
            callers,
            address,
            &url,
            &keys,
            batch,
            &setup.payloads,
            served,
        )
    };
    let receivers = |served| HttpReceiver::several(callers, address, &url, batch, served);
    Ok(HttpCourse {
        senders: senders(true),
        receivers: receivers(true),
        floor_senders: senders(false),
        floor_receivers: receivers(false),
        queue: name,
        params: params(setup, batch, callers),
        engine,
        server,
    })
}

/// Creates the queue as a client would, then sets the level to measure.
pub(super) async fn make_queue(
    setup: &Setup,
    engine: &Engine,
    server: SocketAddr,
    level: Level,
) -> anyhow::Result<(QueueName, String)> {
    let keyed = setup.keys() > 0;
    let name = if keyed { "bench.fifo" } else { "bench" };
    let fifo = keyed.then_some(("FifoQueue", "true"));
    let request = CreateQueue {
        queue_name: name,
        attributes: fifo.into_iter().collect(),
    };
    let answer: QueueUrl = Client::new(server).call("CreateQueue", &request).await?;
    let name = QueueName::new(name)?;
    let entry = engine
        .directory()
        .get(&name)
        .context("the queue that was just made is not there")?;
    let settings = QueueSettings {
        level: level.into(),
        ..entry.settings.clone()
    };
    let change = Command::ChangeQueue(ChangeQueue {
        queue: name.clone(),
        settings: Some(Box::new(settings)),
        annotations: None,
        tags: None,
    });
    submit(engine, change).await?;
    Ok((name, answer.queue_url))
}

pub(super) fn options() -> ServerOptions {
    let mut options = ServerOptions::default();
    options.listen.set_port(0);
    options
}

/// A server that runs in this process.
pub(super) struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<RunReport>,
}

impl Running {
    pub(super) fn start(bound: Result<Server, lockgate_server::BindError>) -> anyhow::Result<Self> {
        let server = bound?;
        let address = server.local_addr();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Ok(Self {
            address,
            stop,
            task,
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

impl Course for HttpCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        setup.runtime.block_on(self.run(time, report))
    }

    fn close(self: Box<Self>, setup: &Setup) {
        let course = *self;
        // The clients' connections first, so that the server does not wait for them.
        drop((course.senders, course.receivers));
        drop((course.floor_senders, course.floor_receivers));
        setup.runtime.block_on(async {
            course.server.stop().await;
        });
    }
}

impl HttpCourse {
    async fn run(&mut self, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let before = self.engine.metrics();
        let senders = std::mem::take(&mut self.senders);
        let sent = drive(senders, Stop::after(time.mul_f64(0.3))).await?;
        let between_phases = self.engine.metrics();
        let receivers = std::mem::take(&mut self.receivers);
        let stop = Stop {
            after: time.mul_f64(0.45),
            messages: sent.messages,
        };
        let received = drive(receivers, stop).await?;
        let after = self.engine.metrics();
        purge(&self.engine, &self.queue).await?;

        let floor_time = Stop::after(time.mul_f64(0.12));
        let floor_senders = std::mem::take(&mut self.floor_senders);
        let floor_sent = drive(floor_senders, floor_time).await?;
        let floor_receivers = std::mem::take(&mut self.floor_receivers);
        let floor_received = drive(floor_receivers, floor_time).await?;

        let phases = [
            (
                "http.send",
                sent.rate(),
                sent.messages,
                &sent.latency,
                floor_sent.rate(),
                (&before, &between_phases),
            ),
            (
                "http.receive",
                received.rate(),
                received.messages,
                &received.latency,
                floor_received.rate(),
                (&between_phases, &after),
            ),
        ];
        for (figure, rate, messages, latency, floor, (first, last)) in phases {
            let (syncs, _) = between(first, last);
            let round = Round {
                rate: Some(rate),
                floor: Some(floor),
                syncs_per_message: Some(as_f64(syncs) / as_f64(messages.max(1))),
            };
            report.add(figure, &self.params, Some(FLOOR), round, latency);
        }
        self.senders = sent.callers;
        self.receivers = received.callers;
        self.floor_senders = floor_sent.callers;
        self.floor_receivers = floor_received.callers;
        Ok(())
    }
}

/// Sends a batch in each call.
pub(super) struct HttpSender {
    client: Client,
    url: String,
    keys: Arc<[Key]>,
    next: usize,
    batch: u16,
    payloads: Payloads,
    /// Unique among the run's messages, together with the caller's number.
    sent: u64,
    caller: u16,
    /// Whether the server should do the request; for the floor it should refuse.
    served: bool,
}

impl HttpSender {
    pub(super) fn several(
        count: u16,
        server: SocketAddr,
        url: &str,
        keys: &Arc<[Key]>,
        batch: u16,
        payloads: &Payloads,
        served: bool,
    ) -> Vec<Self> {
        (0..count)
            .map(|caller| Self {
                client: Client::new(server),
                url: url.to_owned(),
                keys: Arc::clone(keys),
                next: usize::from(caller) * keys.len() / usize::from(count.max(1)),
                batch,
                payloads: payloads.for_caller(u64::from(caller)),
                sent: 0,
                caller,
                served,
            })
            .collect()
    }

    fn entry(&mut self, index: u16) -> SendEntry {
        let body = self.payloads.next();
        let mut entry = SendEntry {
            id: index.to_string(),
            message_body: str::from_utf8(&body)
                .expect("payloads are letters")
                .to_owned(),
            message_deduplication_id: None,
            message_group_id: None,
        };
        if !self.keys.is_empty() {
            self.next = (self.next + 1) % self.keys.len();
            self.sent += 1;
            entry.message_group_id = Some(self.keys[self.next].to_string());
            entry.message_deduplication_id = Some(format!("{}-{}", self.caller, self.sent));
        }
        entry
    }
}

impl Caller for HttpSender {
    async fn call(&mut self) -> anyhow::Result<Moved> {
        let entries: Vec<_> = (0..self.batch).map(|index| self.entry(index)).collect();
        let request = SendMessageBatch {
            queue_url: &self.url,
            entries,
        };
        const ACTION: &str = "SendMessageBatch";
        if self.served {
            let answer: BatchAnswer = self.client.call(ACTION, &request).await?;
            answer.check()?;
        } else {
            refuse(&mut self.client, &request).await?;
        }
        Ok(Moved::all(self.batch.into()))
    }
}

/// Receives a batch and deletes it, with one call each.
pub(super) struct HttpReceiver {
    client: Client,
    url: String,
    batch: u16,
    served: bool,
}

impl HttpReceiver {
    pub(super) fn several(
        count: u16,
        server: SocketAddr,
        url: &str,
        batch: u16,
        served: bool,
    ) -> Vec<Self> {
        (0..count)
            .map(|_| Self {
                client: Client::new(server),
                url: url.to_owned(),
                batch,
                served,
            })
            .collect()
    }
}

impl Caller for HttpReceiver {
    async fn call(&mut self) -> anyhow::Result<Moved> {
        const RECEIVE: &str = "ReceiveMessage";
        const DELETE: &str = "DeleteMessageBatch";
        let request = ReceiveMessage {
            queue_url: &self.url,
            max_number_of_messages: self.batch,
        };
        if !self.served {
            refuse(&mut self.client, &request).await?;
            // As long as a real receipt.
            let receipts = (0..self.batch).map(|_| "r".repeat(100));
            let request = delete(&self.url, receipts);
            refuse(&mut self.client, &request).await?;
            return Ok(Moved::all(self.batch.into()));
        }
        let answer: Messages = self.client.call(RECEIVE, &request).await?;
        let count = answer.messages.len();
        if count == 0 {
            // Other callers hold the remaining messages and will settle them soon.
            tokio::task::yield_now().await;
            return Ok(Moved::default());
        }
        let receipts = answer
            .messages
            .into_iter()
            .map(|message| message.receipt_handle);
        let request = delete(&self.url, receipts);
        let answer: BatchAnswer = self.client.call(DELETE, &request).await?;
        answer.check()?;
        Ok(Moved::all(count))
    }
}

fn delete(url: &str, receipts: impl Iterator<Item = String>) -> DeleteMessageBatch<'_> {
    DeleteMessageBatch {
        queue_url: url,
        entries: receipts
            .enumerate()
            .map(|(index, receipt_handle)| DeleteEntry {
                id: index.to_string(),
                receipt_handle,
            })
            .collect(),
    }
}

/// The same request for an unknown action: the server reads it like any request and then refuses it.
async fn refuse(client: &mut Client, request: &impl Serialize) -> anyhow::Result<()> {
    let (status, _) = client.post(NO_ACTION, request).await?;
    ensure!(
        status == StatusCode::BAD_REQUEST,
        "the server answered {status} where it should refuse"
    );
    Ok(())
}
