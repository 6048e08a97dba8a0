//! Producers and consumers that keep a server busy and never guess: what was not answered is asked
//! again until it is, or stays open.
//!
//! One queue has keys and unique ids, the other has neither. Both are at level `disk`, the default. [Keepers](Keeper) have
//! queues of their own, and so has a [publisher](Publisher).

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    slice,
    sync::{
        Arc, Mutex, PoisonError,
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
    history::{Accepted, Action, Answer, Delivery, History, Outcome, Send, Settle, Time},
    keeper::Keeper,
    publisher::{COPIED, Publisher},
    random::Random,
};

const KEYED_PRODUCERS: usize = 4;
const PLAIN_PRODUCERS: usize = 2;
/// More than producers, so that a fault finds many leases held.
const KEYED_CONSUMERS: usize = 8;
const PLAIN_CONSUMERS: usize = 4;
const KEYS_PER_PRODUCER: u64 = 16;
const KEEPERS: usize = 2;
const BATCH_MAX: u64 = 10;
/// Short, so that the leases of an answer cut off by a fault end soon.
const LEASE: Duration = Duration::from_secs(5);
/// Between attempts while the server is away.
const PAUSE: Duration = Duration::from_millis(10);
/// Between attempts while the server refuses.
const PAUSE_REFUSED: Duration = Duration::from_millis(50);
/// Ids older than this are not probed: the queue remembers them for 5 minutes.
const PROBE_AGE_MAX: Duration = Duration::from_secs(240);
const PROBES: u64 = 20;

/// How much is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Messages between send and ack, over all producers.
    pub(crate) pending_max: usize,
    /// Bodies have up to 500 times so many bytes.
    pub(crate) body_scale: usize,
}

impl Size {
    /// Enough to keep consumers busy, few enough to drain soon.
    pub(crate) const SMALL: Self = Self {
        pending_max: 2000,
        body_scale: 1,
    };
}

/// How far a workload has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    /// Deliveries settled for good.
    pub(crate) acked: u64,
    /// Those of them that have a key.
    pub(crate) acked_keyed: u64,
}

/// Producers and consumers on two queues.
pub(crate) struct Workload {
    shared: Arc<Shared>,
    client: Client,
    address: SocketAddr,
    progress: watch::Receiver<Progress>,
    producers: JoinSet<Result<()>>,
    consumers: JoinSet<Result<()>>,
    keepers: JoinSet<Result<()>>,
    keeping: watch::Sender<bool>,
    takers: JoinSet<Result<()>>,
    taking: watch::Sender<bool>,
    /// Single sends under way.
    extra: JoinSet<()>,
}

struct Shared {
    history: History,
    keyed_url: String,
    plain_url: String,
    /// Of keepers: the name and the address of each one's queue.
    kept: Vec<(Arc<str>, String)>,
    /// The addresses of the queues that a publisher's exchange is bound to.
    copied_urls: Vec<String>,
    size: Size,
    /// A permit is room for one more message; closed when producers are to end.
    room: Semaphore,
    progress: watch::Sender<Progress>,
    producing: watch::Sender<bool>,
    consuming: watch::Sender<bool>,
    /// What refusals said, and how often.
    reasons: Mutex<BTreeMap<String, u64>>,
    stopped: AtomicBool,
}

impl Shared {
    fn url(&self, keyed: bool) -> &str {
        if keyed {
            &self.keyed_url
        } else {
            &self.plain_url
        }
    }

    fn keeper(&self, queue: &Arc<str>, address: SocketAddr, random: Random) -> Keeper {
        Keeper {
            queue: queue.clone(),
            client: Client::new(address),
            history: self.history.clone(),
            random,
        }
    }

    fn publisher(&self, address: SocketAddr, random: Random) -> Publisher {
        Publisher {
            client: Client::new(address),
            history: self.history.clone(),
            random,
        }
    }

    fn refused(&self, reason: &str) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        *reasons.entry(reason.to_owned()).or_default() += 1;
    }
}

/// What a producer sends. Everything in the body follows from the other fields.
#[derive(Clone)]
struct Message {
    id: String,
    key: Option<String>,
    number: u64,
}

impl Message {
    fn body(&self, size: Size) -> String {
        let Self { id, key, number } = self;
        let length = usize::try_from(number * 37 % 101).unwrap_or_default();
        let filling = "lock ".repeat(length * size.body_scale);
        json!({ "id": id, "key": key, "number": number, "filling": filling }).to_string()
    }
}

impl Workload {
    /// Makes the queues and starts everybody.
    pub(crate) async fn start(
        address: SocketAddr,
        history: &History,
        random: &mut Random,
        size: Size,
    ) -> Result<Self> {
        let mut client = Client::new(address);
        let lease = LEASE.as_secs().to_string();
        let keyed = json!({ "FifoQueue": "true", "VisibilityTimeout": lease });
        let plain = json!({ "VisibilityTimeout": lease });
        let mut kept = Vec::new();
        for number in 1..=KEEPERS {
            let name: Arc<str> = format!("kept-{number}.fifo").into();
            let url = create_queue(&mut client, &name, &keyed).await?;
            kept.push((name, url));
        }
        let mut copied_urls = Vec::new();
        for name in COPIED {
            let attributes = if name.ends_with(".fifo") {
                &keyed
            } else {
                &plain
            };
            copied_urls.push(create_queue(&mut client, name, attributes).await?);
        }
        let (progress, seen) = watch::channel(Progress::default());
        let shared = Arc::new(Shared {
            history: history.clone(),
            keyed_url: create_queue(&mut client, "keyed.fifo", &keyed).await?,
            plain_url: create_queue(&mut client, "plain", &plain).await?,
            kept,
            copied_urls,
            size,
            room: Semaphore::new(size.pending_max),
            progress,
            producing: watch::Sender::new(true),
            consuming: watch::Sender::new(true),
            reasons: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let (mut producers, mut consumers) = (JoinSet::new(), JoinSet::new());
        for number in 1..=KEYED_PRODUCERS + PLAIN_PRODUCERS {
            let keyed = number <= KEYED_PRODUCERS;
            let (shared, random) = (shared.clone(), random.split());
            producers.spawn(produce(number, keyed, Client::new(address), shared, random));
        }
        for number in 1..=KEYED_CONSUMERS + PLAIN_CONSUMERS {
            let keyed = number <= KEYED_CONSUMERS;
            let (shared, random) = (shared.clone(), random.split());
            consumers.spawn(consume(number, keyed, Client::new(address), shared, random));
        }
        let (keeping, going) = watch::channel(true);
        let mut keepers = JoinSet::new();
        for (queue, _) in &shared.kept {
            let keeper = shared.keeper(queue, address, random.split());
            keepers.spawn(keeper.run(going.clone()));
        }
        // It ends when keepers do.
        let mut publisher = shared.publisher(address, random.split());
        publisher.make().await?;
        keepers.spawn(publisher.run(going));
        let (taking, going) = watch::channel(true);
        let mut takers = JoinSet::new();
        for queue in 0..COPIED.len() {
            let taker = shared.publisher(address, random.split());
            takers.spawn(taker.take(queue, going.clone()));
        }
        Ok(Self {
            shared,
            client,
            address,
            progress: seen,
            producers,
            consumers,
            keepers,
            keeping,
            takers,
            taking,
            extra: JoinSet::new(),
        })
    }

    /// How far it has come.
    pub(crate) fn so_far(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Waits until `messages` more have been acknowledged.
    pub(crate) async fn progress(&mut self, messages: u64) -> Result<()> {
        let target = self.so_far().acked + messages;
        self.reach(|progress| progress.acked >= target).await
    }

    /// Waits until `reached` is true.
    pub(crate) async fn reach(&mut self, reached: impl Fn(&Progress) -> bool) -> Result<()> {
        tokio::select! {
            result = self.progress.wait_for(|progress| reached(progress)) => {
                result.context("nobody gets on any more")?;
                Ok(())
            }
            result = ended(&mut self.producers) => result,
            result = ended(&mut self.consumers) => result,
            result = ended(&mut self.keepers) => result,
            result = ended(&mut self.takers) => result,
        }
    }

    /// Lets producers send, or makes them wait before their next request.
    pub(crate) fn produce(&self, on: bool) {
        self.shared.producing.send_replace(on);
    }

    /// Lets consumers receive, or makes them wait before their next receive.
    pub(crate) fn consume(&self, on: bool) {
        self.shared.consuming.send_replace(on);
    }

    /// What refusals have said so far, and how often.
    pub(crate) fn reasons(&self) -> BTreeMap<String, u64> {
        let reasons = self.shared.reasons.lock();
        reasons.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends one message without a key over a connection of its own, and never again.
    pub(crate) fn send_once(&mut self, address: SocketAddr, id: String) {
        let shared = self.shared.clone();
        let message = Message {
            id,
            key: None,
            number: 1,
        };
        self.extra.spawn(async move {
            // A failure of the server shows in the history.
            let _ = attempt(
                &mut Client::new(address),
                &shared,
                slice::from_ref(&message),
            )
            .await;
        });
    }

    /// Sends some acknowledged messages again. The checker sees whether the answers are the first
    /// ones, and whether anything was added.
    pub(crate) async fn probe_unique_ids(&mut self, random: &mut Random) -> Result<()> {
        let history = &self.shared.history;
        let oldest = history.now().saturating_sub(PROBE_AGE_MAX);
        let known: Vec<Message> = history.with(|records| {
            let sends = records.sends.iter().filter(|send| {
                send.key.is_some() && send.answer.accepted().is_some() && send.call > oldest
            });
            sends
                .map(|send| Message {
                    id: send.id.clone(),
                    key: send.key.clone(),
                    number: send.number,
                })
                .collect()
        });
        ensure!(
            !known.is_empty(),
            "nothing was acknowledged before the fault"
        );
        for _ in 0..PROBES {
            let index = random.below(known.len() as u64);
            let message = known[usize::try_from(index)?].clone();
            send(&mut self.client, &self.shared, vec![message], random).await?;
        }
        Ok(())
    }

    /// Ends the producers, waits until the queues are empty, and ends the consumers.
    pub(crate) async fn drain(&mut self) -> Result<()> {
        self.produce(true);
        self.consume(true);
        self.shared.room.close();
        while let Some(result) = self.producers.join_next().await {
            result??;
        }
        self.keeping.send_replace(false);
        while let Some(result) = self.keepers.join_next().await {
            result??;
        }
        while self.extra.join_next().await.is_some() {}
        while self.counts().await? != [0, 0, 0] {
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                result = ended(&mut self.consumers) => result?,
                result = ended(&mut self.takers) => result?,
            }
        }
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.taking.send_replace(false);
        while let Some(result) = self.takers.join_next().await {
            result??;
        }
        while let Some(result) = self.consumers.join_next().await {
            result??;
        }
        Ok(())
    }

    /// Fails if there is a message left, and reads the states of keepers once more.
    pub(crate) async fn expect_empty(&mut self) -> Result<()> {
        for (queue, _) in &self.shared.kept {
            let random = Random::new(0);
            let mut keeper = self.shared.keeper(queue, self.address, random);
            while keeper.shown().await?.is_none() {}
        }
        let counts = self.counts().await?;
        ensure!(
            counts == [0, 0, 0],
            "waiting, in flight and delayed messages came back: {counts:?}"
        );
        Ok(())
    }

    /// Waiting, in flight and delayed messages of all queues.
    async fn counts(&mut self) -> Result<[u64; 3]> {
        let names = [
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
            "ApproximateNumberOfMessagesDelayed",
        ];
        let mut counts = [0; 3];
        let kept = self.shared.kept.iter().map(|(_, url)| url);
        for url in [&self.shared.keyed_url, &self.shared.plain_url]
            .into_iter()
            .chain(kept)
            .chain(&self.shared.copied_urls)
        {
            let input = json!({ "QueueUrl": url, "AttributeNames": names });
            let answer = answered(&mut self.client, "GetQueueAttributes", &input).await?;
            for (count, name) in counts.iter_mut().zip(names) {
                let part: u64 = text(&answer["Attributes"][name])?.parse()?;
                *count += part;
            }
        }
        Ok(counts)
    }
}

/// Makes a queue, or finds it made with the same attributes; returns its URL.
pub(crate) async fn create_queue(
    client: &mut Client,
    name: &str,
    attributes: &Value,
) -> Result<String> {
    let create = json!({ "QueueName": name, "Attributes": attributes });
    let created = answered(client, "CreateQueue", &create).await?;
    Ok(text(&created["QueueUrl"])?.to_owned())
}

/// Asks what may be asked twice until it is done.
pub(crate) async fn answered(client: &mut Client, action: &str, input: &Value) -> Result<Value> {
    loop {
        match client.call(action, input).await {
            Ok(answer) => return Ok(answer),
            Err(CallError::Away | CallError::Unknown | CallError::Refused { .. }) => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(wrong) => bail!("{action}: {wrong}"),
        }
    }
}

async fn produce(
    producer: usize,
    keyed: bool,
    mut client: Client,
    shared: Arc<Shared>,
    mut random: Random,
) -> Result<()> {
    let mut numbers = vec![0; usize::try_from(KEYS_PER_PRODUCER)?];
    loop {
        let mut batch = Vec::new();
        for _ in 0..=random.below(BATCH_MAX) {
            let key = if keyed {
                usize::try_from(random.below(KEYS_PER_PRODUCER))?
            } else {
                0
            };
            numbers[key] += 1;
            let (name, number) = (format!("p{producer}-k{key}"), numbers[key]);
            batch.push(Message {
                id: format!("{name}-{number}"),
                key: keyed.then_some(name),
                number,
            });
        }
        match shared.room.acquire_many(u32::try_from(batch.len())?).await {
            Ok(room) => room.forget(),
            Err(_) => return Ok(()),
        }
        send(&mut client, &shared, batch, &mut random).await?;
    }
}

/// Sends a batch until each message is accepted or given up. Nothing later of these keys may be sent
/// before.
async fn send(
    client: &mut Client,
    shared: &Shared,
    mut batch: Vec<Message>,
    random: &mut Random,
) -> Result<()> {
    while !batch.is_empty() {
        let _ = shared.producing.subscribe().wait_for(|on| *on).await;
        let answers = attempt(client, shared, &batch).await?;
        let mut again = Vec::new();
        for (place, message) in batch.iter().enumerate() {
            let overtaken = || {
                let later = batch.iter().zip(&answers).skip(place + 1);
                let mut of_key = later.filter(|(later, _)| later.key == message.key);
                of_key.any(|(_, answer)| answer.accepted().is_some())
            };
            let give_up = match &answers[place] {
                Answer::Accepted(_) => continue,
                // The id says that it is the same message; without one it would be another.
                Answer::Unknown => message.key.is_none(),
                // Some that were refused are never sent again: they must never appear.
                Answer::Refused => overtaken() || random.once_in(4),
            };
            if give_up {
                shared.room.add_permits(1);
            } else {
                again.push(message.clone());
            }
        }
        if !again.is_empty() {
            let refused = answers.contains(&Answer::Refused);
            tokio::time::sleep(if refused { PAUSE_REFUSED } else { PAUSE }).await;
        }
        batch = again;
    }
    Ok(())
}

/// Sends a batch once, and writes down what came of it.
async fn attempt(client: &mut Client, shared: &Shared, batch: &[Message]) -> Result<Vec<Answer>> {
    let entries = batch.iter().enumerate().map(|(place, message)| {
        let body = message.body(shared.size);
        let mut entry = json!({ "Id": place.to_string(), "MessageBody": body });
        if let Some(key) = &message.key {
            entry["MessageGroupId"] = json!(key);
            entry["MessageDeduplicationId"] = json!(message.id);
        }
        entry
    });
    let entries: Vec<Value> = entries.collect();
    let keyed = batch.iter().any(|message| message.key.is_some());
    let input = json!({ "QueueUrl": shared.url(keyed), "Entries": entries });
    let (call, answer) = ask(client, shared, "SendMessageBatch", &input).await;
    let returned = shared.history.now();
    let mut answers = Vec::new();
    for place in 0..batch.len() {
        answers.push(match &answer {
            Err(CallError::Away | CallError::Unknown) => Answer::Unknown,
            Err(CallError::Refused { reason }) => {
                shared.refused(reason);
                Answer::Refused
            }
            Err(wrong) => bail!("SendMessageBatch: {wrong}"),
            Ok(answer) => match entry(&answer["Successful"], place) {
                Some(entry) => Answer::Accepted(Accepted {
                    message: text(&entry["MessageId"])?.to_owned(),
                    sequence: entry["SequenceNumber"].as_str().map(str::to_owned),
                }),
                None => {
                    let failed = entry(&answer["Failed"], place);
                    let failed = failed.with_context(|| format!("no answer: {answer}"))?;
                    match verdict(failed) {
                        Some(Outcome::Refused) => {
                            shared.refused(failed["Message"].as_str().unwrap_or_default());
                            Answer::Refused
                        }
                        Some(Outcome::Unknown) => Answer::Unknown,
                        _ => bail!("SendMessageBatch: {failed}"),
                    }
                }
            },
        });
    }
    let sends = batch.iter().zip(&answers).map(|(message, answer)| Send {
        id: message.id.clone(),
        key: message.key.clone(),
        number: message.number,
        call,
        returned,
        answer: answer.clone(),
    });
    let sends: Vec<Send> = sends.collect();
    shared
        .history
        .with(|records| records.sends.extend_from_slice(&sends));
    let count = |kind: &dyn Fn(&Answer) -> bool| {
        answers.iter().filter(|answer| kind(answer)).count() as u64
    };
    let accepted = count(&|answer| answer.accepted().is_some());
    let refused = count(&|answer| *answer == Answer::Refused);
    shared.progress.send_modify(|progress| {
        progress.accepted += accepted;
        progress.refused += refused;
    });
    Ok(answers)
}

/// Calls an action, once somebody listens; says when.
async fn ask(
    client: &mut Client,
    shared: &Shared,
    action: &str,
    input: &Value,
) -> (Time, Result<Value, CallError>) {
    loop {
        let call = shared.history.now();
        match client.call(action, input).await {
            Err(CallError::Away) => tokio::time::sleep(PAUSE).await,
            answer => return (call, answer),
        }
    }
}

async fn consume(
    consumer: usize,
    keyed: bool,
    mut client: Client,
    shared: Arc<Shared>,
    mut random: Random,
) -> Result<()> {
    while !shared.stopped.load(Ordering::Relaxed) {
        let _ = shared.consuming.subscribe().wait_for(|on| *on).await;
        let max = 1 + random.below(BATCH_MAX);
        let mut held = receive(consumer, keyed, &mut client, &shared, max).await?;
        // Some work takes its time, so that faults also come while leases are held.
        if random.once_in(16) {
            tokio::time::sleep(Duration::from_millis(random.below(400))).await;
        }
        let failed = if random.once_in(16) { held.pop() } else { None };
        let failed = failed.into_iter().collect();
        settle(&mut client, keyed, &shared, Action::Ack, held).await?;
        settle(&mut client, keyed, &shared, Action::Nack, failed).await?;
    }
    Ok(())
}

/// A delivery's index in the history, and the receipt that settles it.
type Held = (usize, String);

async fn receive(
    consumer: usize,
    keyed: bool,
    client: &mut Client,
    shared: &Shared,
    max: u64,
) -> Result<Vec<Held>> {
    let input = json!({
        "QueueUrl": shared.url(keyed),
        "MaxNumberOfMessages": max,
        "WaitTimeSeconds": 1,
        "MessageSystemAttributeNames": ["All"],
    });
    let call = shared.history.now();
    let answer = match client.call("ReceiveMessage", &input).await {
        Ok(answer) => answer,
        Err(CallError::Away | CallError::Unknown) => {
            tokio::time::sleep(PAUSE).await;
            return Ok(Vec::new());
        }
        Err(CallError::Refused { reason }) => {
            shared.refused(&format!("receive: {reason}"));
            tokio::time::sleep(PAUSE_REFUSED).await;
            return Ok(Vec::new());
        }
        Err(wrong) => bail!("ReceiveMessage: {wrong}"),
    };
    let returned = shared.history.now();
    let messages = answer["Messages"].as_array();
    let mut held = Vec::new();
    for (place, message) in messages.into_iter().flatten().enumerate() {
        let body: Value = serde_json::from_str(text(&message["Body"])?)?;
        let sent = Message {
            id: text(&body["id"])?.to_owned(),
            key: body["key"].as_str().map(str::to_owned),
            number: body["number"].as_u64().context("number")?,
        };
        ensure!(
            message["Body"] == sent.body(shared.size),
            "the body of {} was altered: {message}",
            sent.id
        );
        let attributes = &message["Attributes"];
        let delivery = Delivery {
            id: sent.id,
            key: sent.key,
            as_accepted: Accepted {
                message: text(&message["MessageId"])?.to_owned(),
                sequence: attributes["SequenceNumber"].as_str().map(str::to_owned),
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
    keyed: bool,
    shared: &Shared,
    action: Action,
    mut held: Vec<Held>,
) -> Result<()> {
    let call_name = match action {
        Action::Ack => "DeleteMessageBatch",
        Action::Nack => "ChangeMessageVisibilityBatch",
    };
    while !held.is_empty() {
        let entries = held.iter().enumerate().map(|(place, (_, receipt))| {
            let mut entry = json!({ "Id": place.to_string(), "ReceiptHandle": receipt });
            if action == Action::Nack {
                entry["VisibilityTimeout"] = json!(0);
            }
            entry
        });
        let entries: Vec<Value> = entries.collect();
        let input = json!({ "QueueUrl": shared.url(keyed), "Entries": entries });
        let (call, answer) = ask(client, shared, call_name, &input).await;
        let returned = shared.history.now();
        let (mut settles, mut open) = (Vec::new(), Vec::new());
        for (place, (delivery, receipt)) in held.into_iter().enumerate() {
            let outcome = match &answer {
                Err(CallError::Away | CallError::Unknown) => Outcome::Unknown,
                Err(CallError::Refused { reason }) => {
                    shared.refused(&format!("settle: {reason}"));
                    Outcome::Refused
                }
                Err(wrong) => bail!("{call_name}: {wrong}"),
                Ok(answer) if entry(&answer["Successful"], place).is_some() => Outcome::Done,
                Ok(answer) => {
                    let failed = entry(&answer["Failed"], place);
                    let failed = failed.with_context(|| format!("no answer: {answer}"))?;
                    let outcome = verdict(failed);
                    if outcome == Some(Outcome::Refused) {
                        shared.refused(&format!("settle: {}", failed["Message"]));
                    }
                    outcome.with_context(|| format!("{call_name}: {failed}"))?
                }
            };
            if matches!(outcome, Outcome::Refused | Outcome::Unknown) {
                open.push((delivery, receipt));
            }
            settles.push(Settle {
                delivery,
                action,
                call,
                returned,
                outcome,
            });
        }
        let settled = settles.len() - open.len();
        shared
            .history
            .with(|records| records.settles.append(&mut settles));
        if action == Action::Ack {
            // A stale ack may have been done by an earlier, unanswered attempt: room either way.
            shared.room.add_permits(settled);
            shared.progress.send_modify(|progress| {
                progress.acked += settled as u64;
                progress.acked_keyed += if keyed { settled as u64 } else { 0 };
            });
        }
        held = open;
        if !held.is_empty() {
            tokio::time::sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// The failure of a task that should have gone on; pending while all go on.
async fn ended(tasks: &mut JoinSet<Result<()>>) -> Result<()> {
    match tasks.join_next().await {
        Some(result) => result?.and_then(|()| bail!("a task ended too early")),
        None => std::future::pending().await,
    }
}

/// What a failed entry of a batch says; `None`: nothing that a correct client hears.
fn verdict(failed: &Value) -> Option<Outcome> {
    // Some codes carry the name of their service in front.
    match failed["Code"].as_str()?.rsplit('.').next()? {
        "InvalidParameterValue" | "ReceiptHandleIsInvalid" | "MessageNotInflight" => {
            Some(Outcome::Stale)
        }
        "InternalFailure" => Some(Outcome::Unknown),
        code if code.starts_with("ServiceUnavailable") => Some(Outcome::Refused),
        _ => None,
    }
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
