//! `lockgate bench`: what a running server does, measured from outside.
//!
//! Callers on connections of their own make one call after the other, for half of the time sends, then
//! receives and acks. They do it over a queue that nobody else knows, which goes when they are done.

mod times;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use hyper::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use self::times::Times;
use super::{
    NOTHING, Signals, client, millis, part,
    send::{self, random_id},
    settle,
};
use crate::{
    args::Bench,
    client::{Body, CallError, Client, Message},
    exit::{Exit, Failure},
    output::{Output, Table, complain, note},
    units::{show_duration, show_size},
};

/// What the bodies of one call may have together.
const CALL_BYTES_MAX: usize = 1 << 20;

/// How long a receive waits at the server while other callers hold all keys.
const RECEIVE_WAIT: Duration = Duration::from_secs(1);

/// Bodies begin at so many places of the same text.
const PLACES: usize = 4096;

pub(crate) fn run(args: &Bench) -> Result<(), Failure> {
    let (batch, size) = (usize::from(args.batch), args.size);
    if batch * size > CALL_BYTES_MAX {
        return Err(Failure::usage(format!(
            "{batch} messages of {} are more than the {} that one call takes",
            show_size(size as u64),
            show_size(CALL_BYTES_MAX as u64)
        ))
        .hint("lower --batch or --size"));
    }
    let client = client(&args.settings)?;
    // With threads, so that the callers are not bounded by what one processor can encode.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::from_error(Exit::Failed, error).context("starting the runtime")
        })?;
    let tallies = runtime.block_on(async {
        let mut stop = Stop::new()?;
        measure_own_queue(&client, args, &mut stop).await
    })?;
    print(args, &client, &tallies)
}

/// Signals: the first one ends the measuring, a second one ends what is left to do.
struct Stop {
    signals: Signals,
    asked: Option<Exit>,
}

impl Stop {
    fn new() -> Result<Self, Failure> {
        let mut signals = Signals::new()?;
        signals.hear_hangup()?;
        Ok(Self {
            signals,
            asked: None,
        })
    }

    /// Does work that the first signal interrupts.
    async fn unless_asked<T>(
        &mut self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            exit = self.signals.next() => {
                self.asked = Some(exit);
                Err(Failure::signal(exit))
            }
            done = work => done,
        }
    }

    /// Finishes work although a signal comes, unless it is the second one.
    async fn unless_asked_twice<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                exit = self.signals.next() => {
                    if self.asked.replace(exit).is_some() {
                        return Err(Failure::signal(exit));
                    }
                }
            }
        }
    }
}

/// Makes a queue, measures, and deletes it whatever happened.
async fn measure_own_queue(
    client: &Client,
    args: &Bench,
    stop: &mut Stop,
) -> Result<[Tally; 3], Failure> {
    let kind = if args.keys == 0 { "" } else { ".fifo" };
    let name = format!("bench-{}{kind}", &random_id()?[..16]);
    let left = format!("delete it with `lockgate queue delete {name}`");
    // A signal while the queue is made waits: nobody would know whether there is something to delete.
    match stop.unless_asked_twice(create(client, &name)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let unknown = !error.nothing_done();
            let failure = Failure::from(error).context(format!("making the queue {name}"));
            return Err(if unknown {
                failure.or_hint(format!("if the queue is there all the same, {left}"))
            } else {
                failure
            });
        }
        Err(signal) => {
            complain("warning", &format!("the queue {name} may be there: {left}"));
            return Err(signal);
        }
    }
    let tallies = match stop.asked {
        Some(exit) => Err(Failure::signal(exit)),
        None => {
            let time = show_duration(args.time);
            let endpoint = client.endpoint();
            note(&format!(
                "measuring {endpoint} with the queue {name} for {time}"
            ));
            stop.unless_asked(measure(client, args, &name)).await
        }
    };
    let target = format!("/queues/{}", part(&name));
    let call = client.call::<Value>(Method::DELETE, &target, NOTHING);
    let deleted = match stop.unless_asked_twice(call).await {
        Ok(Err(error)) if error.is_queue_missing() => Ok(()),
        Ok(answer) => answer.map(drop).map_err(Failure::from),
        Err(signal) => Err(signal),
    };
    if deleted.is_err() {
        let what = format!("the queue {name} may still be there: {left}");
        complain("warning", &what);
    }
    let tallies = tallies?;
    deleted?;
    Ok(tallies)
}

/// What the calls of one kind did.
#[derive(Default)]
struct Tally {
    calls: u64,
    messages: u64,
    /// From the beginning of its half until the last answer.
    elapsed: Duration,
    times: Times,
}

impl Tally {
    fn add(&mut self, messages: usize, called: Instant, began: Instant) {
        self.calls += 1;
        self.messages += messages as u64;
        self.elapsed = began.elapsed();
        self.times.add(called.elapsed());
    }

    fn merge(&mut self, other: &Self) {
        self.calls += other.calls;
        self.messages += other.messages;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.times.merge(&other.times);
    }

    /// Messages a second.
    fn rate(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 {
            self.messages as f64 / seconds
        } else {
            0.0
        }
    }
}

/// Sends, then receives and acks; what came of each.
async fn measure(client: &Client, args: &Bench, name: &str) -> Result<[Tally; 3], Failure> {
    let half = args.time / 2;
    let shared = Arc::new(Shared {
        target: format!("/queues/{}", part(name)),
        text: random_text(args.size + PLACES)?,
        size: args.size,
        batch: args.batch,
        keys: args.keys,
        sent: AtomicU64::new(0),
        received: AtomicU64::new(0),
    });
    let callers = (0..args.callers).map(|number| Caller {
        client: client.another(),
        shared: Arc::clone(&shared),
        number,
        next: 0,
        sends: Tally::default(),
        receives: Tally::default(),
        acks: Tally::default(),
    });
    let callers = side_by_side(callers.map(Caller::connect)).await?;
    let began = Instant::now();
    let callers = side_by_side(callers.into_iter().map(|one| one.send(began, half))).await?;
    let began = Instant::now();
    let callers = side_by_side(callers.into_iter().map(|one| one.receive(began, half))).await?;
    let mut tallies = <[Tally; 3]>::default();
    for caller in &callers {
        let parts = [&caller.sends, &caller.receives, &caller.acks];
        for (all, part) in tallies.iter_mut().zip(parts) {
            all.merge(part);
        }
    }
    Ok(tallies)
}

/// Lets all callers work at the same time. The first failure ends them all.
async fn side_by_side<W>(work: impl Iterator<Item = W>) -> Result<Vec<Caller>, Failure>
where
    W: Future<Output = Result<Caller, Failure>> + Send + 'static,
{
    let mut tasks: JoinSet<_> = work.collect();
    let mut callers = Vec::with_capacity(tasks.len());
    while let Some(done) = tasks.join_next().await {
        callers.push(done.map_err(|error| Failure::from_error(Exit::Failed, error))??);
    }
    Ok(callers)
}

/// What all callers know.
struct Shared {
    /// The queue in the API.
    target: String,
    /// Bodies are cut from it.
    text: String,
    size: usize,
    batch: u16,
    keys: u32,
    sent: AtomicU64,
    received: AtomicU64,
}

/// One who makes one call after the other.
struct Caller {
    client: Client,
    shared: Arc<Shared>,
    number: u16,
    /// The number of its next message.
    next: u64,
    sends: Tally,
    receives: Tally,
    acks: Tally,
}

impl Caller {
    /// Connects, so that no call that is measured has to.
    async fn connect(self) -> Result<Self, Failure> {
        let target = &self.shared.target;
        let _queue: Value = self.client.call(Method::GET, target, NOTHING).await?;
        Ok(self)
    }

    async fn send(mut self, began: Instant, time: Duration) -> Result<Self, Failure> {
        while self.sends.calls == 0 || began.elapsed() < time {
            let messages: Vec<Message> = (0..self.shared.batch).map(|_| self.message()).collect();
            let body = json!({ "messages": messages });
            let target = format!("{}/messages", self.shared.target);
            let called = Instant::now();
            let answer: send::Results =
                self.client.call(Method::POST, &target, Some(&body)).await?;
            for (at, result) in answer.results.iter().enumerate() {
                if let send::Outcome::Refused { problem } = result {
                    return Err(problem.failure(&format!("messages[{at}]")));
                }
            }
            self.sends.add(messages.len(), called, began);
        }
        let sent = self.sends.messages;
        self.shared.sent.fetch_add(sent, Ordering::Relaxed);
        Ok(self)
    }

    fn message(&mut self) -> Message {
        let Shared {
            text, size, keys, ..
        } = &*self.shared;
        let message = self.next;
        self.next += 1;
        // Callers begin at keys of their own, so that few messages of one key are on their way.
        let spread = message + u64::from(self.number) * 1_000_003;
        let place = usize::try_from(spread % PLACES as u64).unwrap_or(0);
        let keyed = *keys > 0;
        Message {
            body: Body::text(&text[place..place + size]),
            unique_id: keyed.then(|| format!("{}-{message}", self.number)),
            key: keyed.then(|| format!("key-{}", spread % u64::from(*keys))),
            ..Message::default()
        }
    }

    /// Receives and acks for so long, or until all that was sent is acked.
    async fn receive(mut self, began: Instant, time: Duration) -> Result<Self, Failure> {
        let receive = json!({"max": self.shared.batch, "wait_ms": millis(RECEIVE_WAIT)});
        let target = format!("{}/receive", self.shared.target);
        let settle = format!("{}/settle", self.shared.target);
        loop {
            let called = Instant::now();
            let call = self
                .client
                .call_within(Method::POST, &target, Some(&receive), RECEIVE_WAIT);
            let Received { messages } = call.await?;
            if !messages.is_empty() {
                self.receives.add(messages.len(), called, began);
                let acks = messages.iter();
                let acks = acks.map(|message| json!({"receipt": message.receipt, "action": "ack"}));
                let acks = json!({"settles": acks.collect::<Vec<_>>()});
                let called = Instant::now();
                let answer: settle::Results =
                    self.client.call(Method::POST, &settle, Some(&acks)).await?;
                for outcome in answer.results {
                    outcome.done("acknowledged")?;
                }
                self.acks.add(messages.len(), called, began);
                let count = messages.len() as u64;
                self.shared.received.fetch_add(count, Ordering::Relaxed);
            }
            let Shared { sent, received, .. } = &*self.shared;
            let all = received.load(Ordering::Relaxed) >= sent.load(Ordering::Relaxed);
            if all || began.elapsed() >= time {
                return Ok(self);
            }
        }
    }
}

#[derive(Deserialize)]
struct Received {
    messages: Vec<Leased>,
}

#[derive(Deserialize)]
struct Leased {
    receipt: String,
}

/// Makes the queue, which is keyed if its name says so.
async fn create(client: &Client, name: &str) -> Result<(), CallError> {
    let queue = json!({ "name": name });
    let _queue: Value = client.call(Method::POST, "/queues", Some(&queue)).await?;
    Ok(())
}

/// So many letters, digits, `-` and `_` at random, which nothing on the way can make smaller.
fn random_text(len: usize) -> Result<String, Failure> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut bytes = vec![0; len];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::failed(format!("drawing random bytes: {error}")))?;
    let letters = bytes
        .into_iter()
        .map(|byte| LETTERS[usize::from(byte % 64)]);
    Ok(letters.map(char::from).collect())
}

/// A line of `--json`.
#[derive(Serialize)]
struct Line<'a> {
    call: &'a str,
    messages: u64,
    calls: u64,
    seconds: f64,
    messages_per_second: f64,
    p50_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    callers: u16,
    batch: u16,
    size: usize,
    keys: u32,
    endpoint: &'a str,
}

fn print(args: &Bench, client: &Client, tallies: &[Tally; 3]) -> Result<(), Failure> {
    let mut output = Output::new();
    let mut table = Table::new([
        "CALL", "MESSAGES", "MSG/S", "P50 MS", "P90 MS", "P99 MS", "MAX MS",
    ]);
    let endpoint = client.endpoint().to_string();
    for (call, tally) in ["send", "receive", "ack"].into_iter().zip(tallies) {
        let [p50_ms, p90_ms, p99_ms, max_ms] = [500, 900, 990, 1000]
            .map(|permille| tally.times.quantile(permille).as_secs_f64() * 1e3);
        if args.json {
            output.json(&Line {
                call,
                messages: tally.messages,
                calls: tally.calls,
                seconds: tally.elapsed.as_secs_f64(),
                messages_per_second: tally.rate(),
                p50_ms,
                p90_ms,
                p99_ms,
                max_ms,
                callers: args.callers,
                batch: args.batch,
                size: args.size,
                keys: args.keys,
                endpoint: &endpoint,
            })?;
        } else {
            let [rate, times @ ..] = [
                format!("{:.0}", tally.rate()),
                format!("{p50_ms:.2}"),
                format!("{p90_ms:.2}"),
                format!("{p99_ms:.2}"),
                format!("{max_ms:.2}"),
            ];
            let cells = [call.to_owned(), tally.messages.to_string(), rate];
            table.row(cells.into_iter().chain(times));
        }
    }
    if !args.json {
        output.table(&table)?;
    }
    output.flush()
}
