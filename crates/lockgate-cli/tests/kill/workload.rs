//! Producers and consumers that keep a server busy and never guess: what was not answered is asked
//! again until it is.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};

use crate::{
    client::{CallError, Client},
    history::{Accepted, Action, Delivery, History, Outcome, Send, Settle},
    random::Random,
};

const PRODUCERS: usize = 4;
/// More than producers, so that a kill finds many leases held.
const CONSUMERS: usize = 8;
const KEYS_PER_PRODUCER: u64 = 16;
/// Messages between send and ack, over all producers: enough to keep consumers busy, few enough to
/// drain soon.
const PENDING_MAX: usize = 2000;
const BATCH_MAX: u64 = 10;
/// Short, so that the leases of an answer cut off by a kill end soon.
const LEASE: Duration = Duration::from_secs(5);
/// Between attempts while the server is away.
const PAUSE: Duration = Duration::from_millis(10);
/// Ids older than this are not probed: the queue remembers them for 5 minutes.
const PROBE_AGE_MAX: Duration = Duration::from_secs(240);
const PROBES: u64 = 20;

/// Producers and consumers on one queue.
pub(crate) struct Workload {
    shared: Arc<Shared>,
    client: Client,
    acked: watch::Receiver<u64>,
    producers: JoinSet<Result<()>>,
    consumers: JoinSet<Result<()>>,
}

struct Shared {
    history: History,
    queue_url: String,
    /// A permit is room for one more message; closed when producers are to end.
    room: Semaphore,
    acked: watch::Sender<u64>,
    stopped: AtomicBool,
}

/// What a producer sends. Everything in the body follows from the other fields.
struct Message {
    id: String,
    key: String,
    number: u64,
}

impl Message {
    fn body(&self) -> String {
        let Self { id, key, number } = self;
        let filling = "lock ".repeat(usize::try_from(number * 37 % 101).unwrap_or_default());
        json!({ "id": id, "key": key, "number": number, "filling": filling }).to_string()
    }
}

impl Workload {
    /// Makes the queue and starts everybody.
    pub(crate) async fn start(
        address: SocketAddr,
        history: &History,
        random: &mut Random,
    ) -> Result<Self> {
        let mut client = Client::new(address);
        let attributes =
            json!({ "FifoQueue": "true", "VisibilityTimeout": LEASE.as_secs().to_string() });
        let create = json!({ "QueueName": "kill.fifo", "Attributes": attributes });
        let created = answered(&mut client, "CreateQueue", &create).await?;
        let (acked, seen) = watch::channel(0);
        let shared = Arc::new(Shared {
            history: history.clone(),
            queue_url: text(&created["QueueUrl"])?.to_owned(),
            room: Semaphore::new(PENDING_MAX),
            acked,
            stopped: AtomicBool::new(false),
        });
        let (mut producers, mut consumers) = (JoinSet::new(), JoinSet::new());
        for number in 1..=PRODUCERS {
            producers.spawn(produce(
                number,
                Client::new(address),
                shared.clone(),
                random.split(),
            ));
        }
        for number in 1..=CONSUMERS {
            consumers.spawn(consume(
                number,
                Client::new(address),
                shared.clone(),
                random.split(),
            ));
        }
        Ok(Self {
            shared,
            client,
            acked: seen,
            producers,
            consumers,
        })
    }

    /// Waits until `messages` more have been acknowledged.
    pub(crate) async fn progress(&mut self, messages: u64) -> Result<()> {
        let target = *self.acked.borrow() + messages;
        tokio::select! {
            result = self.acked.wait_for(|acked| *acked >= target) => {
                result.context("nobody acknowledges any more")?;
                Ok(())
            }
            result = ended(&mut self.producers) => result,
            result = ended(&mut self.consumers) => result,
        }
    }

    /// Sends some acknowledged messages again. The checker sees whether the answers are the first
    /// ones, and whether anything was added.
    pub(crate) async fn probe_unique_ids(&mut self, random: &mut Random) -> Result<()> {
        let history = &self.shared.history;
        let oldest = history.now().saturating_sub(PROBE_AGE_MAX);
        let known: Vec<Message> = history.with(|records| {
            let sends = records.sends.iter();
            sends
                .filter(|send| send.accepted.is_some() && send.call > oldest)
                .map(
                    |Send {
                         id, key, number, ..
                     }| Message {
                        id: id.clone(),
                        key: key.clone(),
                        number: *number,
                    },
                )
                .collect()
        });
        ensure!(
            !known.is_empty(),
            "nothing was acknowledged before the kill"
        );
        for _ in 0..PROBES {
            let index = random.below(known.len() as u64);
            let message = &known[usize::try_from(index)?];
            send(
                &mut self.client,
                &self.shared,
                std::slice::from_ref(message),
            )
            .await?;
        }
        Ok(())
    }

    /// Ends the producers, waits until the queue is empty, and ends the consumers.
    pub(crate) async fn drain(&mut self) -> Result<()> {
        self.shared.room.close();
        while let Some(result) = self.producers.join_next().await {
            result??;
        }
        while counts(&mut self.client, &self.shared.queue_url).await? != [0, 0, 0] {
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                result = ended(&mut self.consumers) => result?,
            }
        }
        self.shared.stopped.store(true, Ordering::Relaxed);
        while let Some(result) = self.consumers.join_next().await {
            result??;
        }
        Ok(())
    }

    /// Fails if there is a message left.
    pub(crate) async fn expect_empty(&mut self) -> Result<()> {
        let counts = counts(&mut self.client, &self.shared.queue_url).await?;
        ensure!(
            counts == [0, 0, 0],
            "waiting, in flight and delayed messages came back: {counts:?}"
        );
        Ok(())
    }
}

async fn produce(
    producer: usize,
    mut client: Client,
    shared: Arc<Shared>,
    mut random: Random,
) -> Result<()> {
    let mut numbers = vec![0; usize::try_from(KEYS_PER_PRODUCER)?];
    loop {
        let mut batch = Vec::new();
        for _ in 0..=random.below(BATCH_MAX) {
            let key = usize::try_from(random.below(KEYS_PER_PRODUCER))?;
            numbers[key] += 1;
            let (key, number) = (format!("p{producer}-k{key}"), numbers[key]);
            batch.push(Message {
                id: format!("{key}-{number}"),
                key,
                number,
            });
        }
        match shared.room.acquire_many(u32::try_from(batch.len())?).await {
            Ok(room) => room.forget(),
            Err(_) => return Ok(()),
        }
        send(&mut client, &shared, &batch).await?;
    }
}

/// Sends a batch until it is answered. Nothing later of these keys may be sent before.
async fn send(client: &mut Client, shared: &Shared, batch: &[Message]) -> Result<()> {
    let entries = batch.iter().enumerate().map(|(place, message)| {
        json!({
            "Id": place.to_string(),
            "MessageBody": message.body(),
            "MessageGroupId": message.key,
            "MessageDeduplicationId": message.id,
        })
    });
    let entries: Vec<Value> = entries.collect();
    let input = json!({ "QueueUrl": shared.queue_url, "Entries": entries });
    loop {
        let call = shared.history.now();
        let answer = match client.call("SendMessageBatch", &input).await {
            Ok(answer) => Some(answer),
            Err(CallError::Unknown) => None,
            Err(refused) => bail!("SendMessageBatch: {refused}"),
        };
        let returned = shared.history.now();
        let mut sends = Vec::new();
        for (place, Message { id, key, number }) in batch.iter().enumerate() {
            let accepted = match &answer {
                Some(answer) => {
                    let entry = entry(&answer["Successful"], place);
                    let entry =
                        entry.with_context(|| format!("{id} was not accepted: {answer}"))?;
                    Some(Accepted {
                        message: text(&entry["MessageId"])?.to_owned(),
                        sequence: text(&entry["SequenceNumber"])?.to_owned(),
                    })
                }
                None => None,
            };
            let (id, key, number) = (id.clone(), key.clone(), *number);
            sends.push(Send {
                id,
                key,
                number,
                call,
                returned,
                accepted,
            });
        }
        shared
            .history
            .with(|records| records.sends.append(&mut sends));
        if answer.is_some() {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn consume(
    consumer: usize,
    mut client: Client,
    shared: Arc<Shared>,
    mut random: Random,
) -> Result<()> {
    while !shared.stopped.load(Ordering::Relaxed) {
        let mut held = receive(consumer, &mut client, &shared, 1 + random.below(BATCH_MAX)).await?;
        // Some work takes its time, so that kills also come while leases are held.
        if random.once_in(4) {
            tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        }
        let failed = if random.once_in(16) { held.pop() } else { None };
        settle(&mut client, &shared, Action::Ack, held).await?;
        settle(
            &mut client,
            &shared,
            Action::Nack,
            failed.into_iter().collect(),
        )
        .await?;
    }
    Ok(())
}

/// A delivery's index in the history, and the receipt that settles it.
type Held = (usize, String);

async fn receive(
    consumer: usize,
    client: &mut Client,
    shared: &Shared,
    max: u64,
) -> Result<Vec<Held>> {
    let input = json!({
        "QueueUrl": shared.queue_url,
        "MaxNumberOfMessages": max,
        "WaitTimeSeconds": 1,
        "MessageSystemAttributeNames": ["All"],
    });
    let call = shared.history.now();
    let answer = match client.call("ReceiveMessage", &input).await {
        Ok(answer) => answer,
        Err(CallError::Unknown) => {
            tokio::time::sleep(PAUSE).await;
            return Ok(Vec::new());
        }
        Err(refused) => bail!("ReceiveMessage: {refused}"),
    };
    let returned = shared.history.now();
    let mut held = Vec::new();
    for (place, message) in answer["Messages"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
    {
        let body: Value = serde_json::from_str(text(&message["Body"])?)?;
        let (id, key) = (
            text(&body["id"])?.to_owned(),
            text(&body["key"])?.to_owned(),
        );
        let sent = Message {
            id,
            key,
            number: body["number"].as_u64().context("number")?,
        };
        ensure!(
            message["Body"] == sent.body(),
            "the body of {} was altered: {message}",
            sent.id
        );
        let attributes = &message["Attributes"];
        let delivery = Delivery {
            id: sent.id,
            key: sent.key,
            as_accepted: Accepted {
                message: text(&message["MessageId"])?.to_owned(),
                sequence: text(&attributes["SequenceNumber"])?.to_owned(),
            },
            consumer,
            attempt: text(&attributes["ApproximateReceiveCount"])?.parse()?,
            place,
            call,
            returned,
            lease: LEASE,
        };
        let index = shared.history.with(|records| {
            records.deliveries.push(delivery);
            records.deliveries.len() - 1
        });
        held.push((index, text(&message["ReceiptHandle"])?.to_owned()));
    }
    Ok(held)
}

/// Settles until answered. A receipt stays good over a restart, for as long as its lease.
async fn settle(
    client: &mut Client,
    shared: &Shared,
    action: Action,
    mut held: Vec<Held>,
) -> Result<()> {
    let call_name = match action {
        Action::Ack => "DeleteMessageBatch",
        Action::Nack => "ChangeMessageVisibilityBatch",
    };
    while !held.is_empty() {
        let entries: Vec<Value> = (0..)
            .zip(&held)
            .map(|(place, (_, receipt))| match action {
                Action::Ack => json!({ "Id": place.to_string(), "ReceiptHandle": receipt }),
                Action::Nack => {
                    json!({ "Id": place.to_string(), "ReceiptHandle": receipt, "VisibilityTimeout": 0 })
                }
            })
            .collect();
        let input = json!({ "QueueUrl": shared.queue_url, "Entries": entries });
        let call = shared.history.now();
        let answer = match client.call(call_name, &input).await {
            Ok(answer) => answer,
            Err(CallError::Unknown) => Value::Null,
            Err(refused) => bail!("{call_name}: {refused}"),
        };
        let returned = shared.history.now();
        let (mut settles, mut unanswered) = (Vec::new(), Vec::new());
        for (place, (delivery, receipt)) in held.into_iter().enumerate() {
            let outcome = if entry(&answer["Successful"], place).is_some() {
                Outcome::Done
            } else if let Some(failed) = entry(&answer["Failed"], place) {
                ensure!(is_stale(failed), "{call_name}: {failed}");
                Outcome::Stale
            } else {
                unanswered.push((delivery, receipt));
                Outcome::Unknown
            };
            settles.push(Settle {
                delivery,
                action,
                call,
                returned,
                outcome,
            });
        }
        let settled = settles
            .iter()
            .filter(|settle| settle.outcome != Outcome::Unknown)
            .count();
        shared
            .history
            .with(|records| records.settles.append(&mut settles));
        if action == Action::Ack {
            // A stale ack may have been done by an earlier, unanswered attempt: room either way.
            shared.room.add_permits(settled);
            shared.acked.send_modify(|acked| *acked += settled as u64);
        }
        held = unanswered;
        if !held.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// Waiting, in flight and delayed messages.
async fn counts(client: &mut Client, queue_url: &str) -> Result<[u64; 3]> {
    let names = [
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    ];
    let input = json!({ "QueueUrl": queue_url, "AttributeNames": names });
    let answer = answered(client, "GetQueueAttributes", &input).await?;
    let mut counts = [0; 3];
    for (count, name) in counts.iter_mut().zip(names) {
        *count = text(&answer["Attributes"][name])?.parse()?;
    }
    Ok(counts)
}

/// Asks what may be asked twice until it is answered.
async fn answered(client: &mut Client, action: &str, input: &Value) -> Result<Value> {
    loop {
        match client.call(action, input).await {
            Ok(answer) => return Ok(answer),
            Err(CallError::Unknown) => tokio::time::sleep(PAUSE).await,
            Err(refused) => bail!("{action}: {refused}"),
        }
    }
}

/// The failure of a task that should have gone on; pending while all go on.
async fn ended(tasks: &mut JoinSet<Result<()>>) -> Result<()> {
    match tasks.join_next().await {
        Some(result) => result?.and_then(|()| bail!("a task ended too early")),
        None => std::future::pending().await,
    }
}

fn is_stale(failed: &Value) -> bool {
    let code = failed["Code"].as_str().unwrap_or_default();
    matches!(
        code,
        "InvalidParameterValue" | "ReceiptHandleIsInvalid" | "MessageNotInflight"
    )
}

/// The entry of a batch's answer that belongs to a place in the batch.
fn entry(entries: &Value, place: usize) -> Option<&Value> {
    let place = place.to_string();
    entries
        .as_array()?
        .iter()
        .find(|entry| entry["Id"] == place.as_str())
}

fn text(value: &Value) -> Result<&str> {
    value
        .as_str()
        .with_context(|| format!("a text is missing: {value}"))
}
