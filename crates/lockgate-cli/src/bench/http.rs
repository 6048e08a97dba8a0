//! `http.send` and `http.receive`: the same over the SQS API, from this process to itself.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use lockgate_core::{Key, QueueName};
use lockgate_engine::Engine;
use lockgate_machine::{Command, QueueSettings};
use lockgate_server::{RunReport, Server, ServerOptions};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{
    Course, Courses, Level, Setup,
    load::{Caller, Moved, Stop, as_f64, between, drive, keys, purge, start_engine, submit},
    payload::Payloads,
    queue::params,
    report::{Params, Report, Round},
};
use crate::{
    client::{
        Call, Client, CreateQueue, DeleteMessageBatch, Endpoint, ReceiptBatch, ReceiptEntry,
        ReceiveMessage, SendEntry, SendMessageBatch,
    },
    exit::{Exit, Failure},
};

/// Batch and callers that are measured unless others are asked for.
const USUAL: [(u16, u16); 3] = [(1, 1), (1, 16), (10, 16)];

/// The most messages one call of the protocol takes.
const BATCH_MAX: u16 = 10;

const FLOOR: &str = "the same requests to a handler that does nothing in the same server";

/// Longer than any stall that is worth a figure.
const TIMEOUT: Duration = Duration::from_secs(60);

struct HttpCourse {
    queue: QueueName,
    params: Params,
    senders: Vec<HttpSender>,
    receivers: Vec<HttpReceiver>,
    floor_senders: Vec<HttpSender>,
    floor_receivers: Vec<HttpReceiver>,
    engine: Engine,
    server: Running,
    floor: Running,
}

pub(crate) fn open(setup: &Setup) -> Result<Courses, Failure> {
    setup
        .shapes_or(&USUAL)
        .into_iter()
        .map(|(batch, callers)| {
            if batch > BATCH_MAX {
                return Err(Failure::usage(format!(
                    "the SQS API takes up to {BATCH_MAX} messages in a call, not {batch}"
                ))
                .hint("say --only engine to measure larger batches in process"));
            }
            let course = setup.runtime.block_on(open_course(setup, batch, callers))?;
            Ok(Box::new(course) as Box<dyn Course>)
        })
        .collect()
}

async fn open_course(setup: &Setup, batch: u16, callers: u16) -> Result<HttpCourse, Failure> {
    let folder = setup.folder(&format!("http-{batch}-{callers}"));
    let engine = start_engine(&folder)?;
    let server = Running::start(Server::bind(options(), engine.clone()).await)?;
    let floor = Running::start(Server::bind_floor(options()).await)?;
    let (name, url) = make_queue(setup, &engine, &server.endpoint, setup.level()).await?;
    let keys = keys("user", setup.keys());
    let senders = |endpoint: &Endpoint, decode| {
        HttpSender::several(
            callers,
            endpoint,
            &url,
            &keys,
            batch,
            &setup.payloads,
            decode,
        )
    };
    let receivers =
        |endpoint: &Endpoint, decode| HttpReceiver::several(callers, endpoint, &url, batch, decode);
    Ok(HttpCourse {
        senders: senders(&server.endpoint, true),
        receivers: receivers(&server.endpoint, true),
        floor_senders: senders(&floor.endpoint, false),
        floor_receivers: receivers(&floor.endpoint, false),
        queue: name,
        params: params(setup, batch, callers),
        engine,
        server,
        floor,
    })
}

/// Makes the queue as a client would, then gives it the level that is measured.
pub(super) async fn make_queue(
    setup: &Setup,
    engine: &Engine,
    endpoint: &Endpoint,
    level: Level,
) -> Result<(QueueName, String), Failure> {
    let keyed = setup.keys() > 0;
    let name = if keyed { "bench.fifo" } else { "bench" };
    let fifo = keyed.then(|| ("FifoQueue".to_owned(), "true".to_owned()));
    let answer = Client::new(endpoint.clone(), TIMEOUT)
        .call(&CreateQueue {
            queue_name: name.to_owned(),
            attributes: fifo.into_iter().collect(),
            tags: BTreeMap::new(),
        })
        .await?;
    let name = QueueName::new(name).map_err(|error| Failure::from_error(Exit::Failed, error))?;
    let entry = engine
        .directory()
        .get(&name)
        .ok_or_else(|| Failure::failed("the queue that was just made is not there"))?;
    let settings = QueueSettings {
        level: level.into(),
        ..entry.settings.clone()
    };
    let change = Command::ChangeQueue {
        queue: name.clone(),
        settings: Some(Box::new(settings)),
        annotations: None,
        tags: None,
    };
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
    endpoint: Endpoint,
    stop: oneshot::Sender<()>,
    task: JoinHandle<RunReport>,
}

impl Running {
    pub(super) fn start(
        bound: Result<Server, lockgate_server::BindError>,
    ) -> Result<Self, Failure> {
        let server = bound.map_err(|error| Failure::from_error(Exit::Failed, error))?;
        let endpoint = format!("http://{}", server.local_addr())
            .parse()
            .map_err(Failure::failed)?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Ok(Self {
            endpoint,
            stop,
            task,
        })
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(super) async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

impl Course for HttpCourse {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> Result<(), Failure> {
        setup.runtime.block_on(self.run(time, report))
    }

    fn close(self: Box<Self>, setup: &Setup) {
        let course = *self;
        // The clients' connections first, so that nobody waits for them.
        drop((course.senders, course.receivers));
        drop((course.floor_senders, course.floor_receivers));
        setup.runtime.block_on(async {
            course.server.stop().await;
            course.floor.stop().await;
        });
    }
}

impl HttpCourse {
    async fn run(&mut self, time: Duration, report: &mut Report) -> Result<(), Failure> {
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
    /// Whether the answer is one of the protocol; the floor's is not.
    decode: bool,
}

impl HttpSender {
    pub(super) fn several(
        count: u16,
        endpoint: &Endpoint,
        url: &str,
        keys: &Arc<[Key]>,
        batch: u16,
        payloads: &Payloads,
        decode: bool,
    ) -> Vec<Self> {
        (0..count)
            .map(|caller| Self {
                client: Client::new(endpoint.clone(), TIMEOUT),
                url: url.to_owned(),
                keys: Arc::clone(keys),
                next: usize::from(caller) * keys.len() / usize::from(count.max(1)),
                batch,
                payloads: payloads.for_caller(u64::from(caller)),
                sent: 0,
                caller,
                decode,
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
            delay_seconds: None,
            message_attributes: BTreeMap::new(),
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
    async fn call(&mut self) -> Result<Moved, Failure> {
        let call = SendMessageBatch {
            queue_url: self.url.clone(),
            entries: (0..self.batch).map(|index| self.entry(index)).collect(),
        };
        if !self.decode {
            post(&mut self.client, &call).await?;
            return Ok(Moved::all(self.batch.into()));
        }
        let answer = self.client.call(&call).await?;
        match answer.failed.first() {
            None => Ok(Moved::all(answer.successful.len())),
            Some(failed) => Err(Failure::failed(format!(
                "the server refused a message of the bench: {} ({})",
                failed.message, failed.code
            ))),
        }
    }
}

/// Receives a batch and deletes it, with one call each.
pub(super) struct HttpReceiver {
    client: Client,
    url: String,
    batch: u16,
    decode: bool,
}

impl HttpReceiver {
    pub(super) fn several(
        count: u16,
        endpoint: &Endpoint,
        url: &str,
        batch: u16,
        decode: bool,
    ) -> Vec<Self> {
        (0..count)
            .map(|_| Self {
                client: Client::new(endpoint.clone(), TIMEOUT),
                url: url.to_owned(),
                batch,
                decode,
            })
            .collect()
    }

    fn delete(&self, receipts: impl Iterator<Item = String>) -> ReceiptBatch {
        ReceiptBatch {
            queue_url: self.url.clone(),
            entries: receipts
                .enumerate()
                .map(|(index, receipt_handle)| ReceiptEntry {
                    id: index.to_string(),
                    receipt_handle,
                    visibility_timeout: None,
                })
                .collect(),
        }
    }
}

impl Caller for HttpReceiver {
    async fn call(&mut self) -> Result<Moved, Failure> {
        let call = ReceiveMessage {
            queue_url: self.url.clone(),
            max_number_of_messages: self.batch.into(),
            wait_time_seconds: 0,
            visibility_timeout: None,
            message_system_attribute_names: &[],
            message_attribute_names: &[],
        };
        if !self.decode {
            post(&mut self.client, &call).await?;
            // As long as a receipt is.
            let receipts = (0..self.batch).map(|_| "r".repeat(100));
            let delete = self.delete(receipts);
            post(&mut self.client, &DeleteMessageBatch(&delete)).await?;
            return Ok(Moved::all(self.batch.into()));
        }
        let messages = self.client.call(&call).await?.messages;
        if messages.is_empty() {
            // What is left is in the hands of others, who are about to settle it.
            tokio::task::yield_now().await;
            return Ok(Moved::default());
        }
        let count = messages.len();
        let delete = self.delete(messages.into_iter().map(|message| message.receipt_handle));
        let answer = self.client.call(&DeleteMessageBatch(&delete)).await?;
        match answer.failed.first() {
            None => Ok(Moved::all(count)),
            Some(failed) => Err(Failure::failed(format!(
                "the server refused a receipt of the bench: {} ({})",
                failed.message, failed.code
            ))),
        }
    }
}

/// The same request, whose answer is read and not understood.
async fn post<C: Call>(client: &mut Client, call: &C) -> Result<(), Failure> {
    let body =
        serde_json::to_vec(call).map_err(|error| Failure::from_error(Exit::Failed, error))?;
    let (status, ..) = client
        .post(C::TARGET, Bytes::from(body), Duration::ZERO)
        .await?;
    if status.is_success() {
        Ok(())
    } else {
        Err(Failure::failed(format!(
            "the floor's server answered {status}"
        )))
    }
}
