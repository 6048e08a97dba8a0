//! Messages from another queue, perhaps put through a command.

use std::{io, process::Stdio, sync::Arc, time::Duration};

use lockgate_client::RemoteQueue;
use lockgate_consumer::{Failure as Unhandled, Job, Worker};
use lockgate_core::{Message, QueueName, Sink as _, with_sources};
use lockgate_producer::Pipeline;
use tokio::{
    io::AsyncReadExt as _,
    time::{sleep, timeout},
};
use tracing::{info, warn};

use super::{
    Forwarding, Stop, Target,
    figures::Figuring,
    kept::{Ending, Kept},
};
use crate::{
    client::{CallError, Client},
    commands::{
        Counts, Signals,
        receive::command::{self, End, Leased},
    },
    exit::{Exit, Failure},
    output::count,
    units::show_duration,
};

/// How often a queue is looked at whose end is waited for, and a server that is away.
const EVERY: Duration = Duration::from_millis(500);

/// Takes messages from a queue until there is a signal, or until it is empty if that is asked for.
pub(super) async fn run(
    forwarding: &Forwarding<'_>,
    from: &str,
    figures: &Figuring,
    signals: &mut Signals,
) -> Result<Stop, Failure> {
    let args = forwarding.args;
    let name = QueueName::new(from).map_err(Failure::usage)?;
    let source = tokio::select! {
        source = open(&forwarding.client, &name) => source?,
        exit = signals.next() => return Ok(Stop::signal(args, exit, None)),
    };
    let usual = if args.exec.is_some() { 1 } else { 100 };
    let concurrency = usize::from(args.concurrency.unwrap_or(usual));
    let ending = Arc::new(Ending::new());
    let work = Arc::new(Work {
        keyed: args.to.ends_with(".fifo"),
        body_bytes_max: forwarding.target.sink_capabilities().message_bytes_max,
        exec: args.exec.clone(),
        exec_timeout: args.exec_timeout,
        retry_delay: args.retry_delay,
        queue: from.to_owned(),
        endpoint: forwarding.client.endpoint().to_string(),
        ending: ending.clone(),
    });
    let source = Kept {
        queue: source,
        to: args.to.clone(),
        delay: args.retry_delay,
        ending: ending.clone(),
    };
    let worker = Worker::over(source).concurrency(concurrency);
    let producer = forwarding.producer.clone();
    let to_work = work.clone();
    let pipeline = Pipeline::start(worker, producer, move |job| {
        let work = to_work.clone();
        async move { work.of(job).await }
    })
    .map_err(|error| Failure::from_error(Exit::Failed, error))?;
    figures.watch(pipeline.watch());
    let stop = tokio::select! {
        biased;
        exit = signals.next() => Ok(Some(Stop::signal(args, exit, None))),
        why = ending.reason() => Err(Failure::failed(why)),
        () = empty(&pipeline, &forwarding.client, from), if args.until_empty => Ok(Some(Stop::End)),
        () = closed(&pipeline) => Ok(None),
    };
    // A record that waits for its level may get there yet.
    let ended = super::or_second_signal(signals, pipeline.drain(args.drain)).await;
    let counts = &ended.counts;
    info!(
        received = counts.arrived,
        acknowledged = counts.acknowledged,
        rejected = counts.rejected,
        left = ended.left,
        "the source is left"
    );
    let Some(stop) = stop? else {
        let why = ended.error.map(|error| with_sources(&error));
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        return Err(Failure::failed(format!(
            "the queue gives no messages any more{why}"
        )));
    };
    match counts.rejected {
        0 => Ok(stop),
        rejected => Err(Failure::failed(format!(
            "{} rejected, because {} can never take what was made of them",
            count(rejected, "message"),
            args.to
        ))
        .hint(format!(
            "they are in the dead-letter queue of {from}, if it has one"
        ))),
    }
}

/// Opens the source when it can be reached.
async fn open(client: &Client, name: &QueueName) -> Result<RemoteQueue, Failure> {
    let mut told = false;
    loop {
        match client.inner().queue(name).await {
            Ok(queue) => return Ok(queue),
            Err(error) if error.may_pass() => {
                if !told {
                    warn!(queue = %name, error = with_sources(&error), "the queue to take messages from cannot be reached; tried again");
                    told = true;
                }
                sleep(EVERY).await;
            }
            Err(error) => return Err(CallError::from(error).into()),
        }
    }
}

/// Waits until a queue has nothing to give, and nothing of it is under way here, at two looks in a row: between them an
/// answer that was on its way has come.
async fn empty(pipeline: &Pipeline<Target>, client: &Client, queue: &str) {
    let mut looks = 0;
    while looks < 2 {
        sleep(EVERY).await;
        let worker = pipeline.figures().await.worker;
        let is_idle = worker.is_none_or(|worker| worker.held == 0);
        let counts = Counts::of(client, queue).await;
        match is_idle && counts.is_ok_and(|counts| counts.ready == 0) {
            true => looks += 1,
            false => looks = 0,
        }
    }
}

/// Waits until the worker has ended by itself.
async fn closed(pipeline: &Pipeline<Target>) {
    while pipeline.figures().await.worker.is_some() {
        sleep(EVERY).await;
    }
}

/// What becomes of a message.
struct Work {
    /// Whether the queue that messages go to is keyed.
    keyed: bool,
    body_bytes_max: u64,
    exec: Option<String>,
    exec_timeout: Duration,
    retry_delay: Duration,
    queue: String,
    endpoint: String,
    ending: Arc<Ending>,
}

impl Work {
    async fn of(&self, job: Job) -> Result<Vec<Message>, Unhandled> {
        let mut message = Message {
            // It was due when it came.
            due: None,
            producer: None,
            ..job.message().clone()
        };
        match self.keyed {
            true => message.key = message.key.or_else(|| message.group.take()),
            false => message.group = message.group.or_else(|| message.key.take()),
        }
        if let Some(command) = &self.exec {
            message.body = self.execute(command, &job).await?.into();
        }
        Ok(vec![message])
    }

    /// No command can be started.
    fn give_up(&self, command: &str, why: &str) -> Unhandled {
        self.ending
            .end(format!("the command {command:?} stopped the run: {why}"));
        Unhandled::defer(Duration::ZERO)
    }

    /// What the command makes of a message.
    async fn execute(&self, command: &str, job: &Job) -> Result<Vec<u8>, Unhandled> {
        let told = Leased::of(job);
        let retry = |why: String| {
            warn!(
                id = told.id,
                why, "a command has failed, and its message comes again"
            );
            Unhandled::retry(why, Some(self.retry_delay))
        };
        let started = command::start(command, &self.queue, &self.endpoint, &told, Stdio::piped());
        let (mut child, group) = match started.map(|child| (child.id(), child)) {
            Ok((Some(id), child)) => (child, Group(id)),
            Ok((None, _)) => return Err(self.give_up(command, "it has no process id")),
            // It is this message that no command can be started with.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ArgumentListTooLong | io::ErrorKind::InvalidInput
                ) =>
            {
                return Err(retry(format!("no command can be started with it: {error}")));
            }
            Err(error) => {
                return Err(self.give_up(command, &format!("it cannot be started: {error}")));
            }
        };
        let stdin = child.stdin.take();
        let feeding = stdin.map(|stdin| tokio::spawn(command::feed(stdin, job.body().to_vec())));
        let mut body = Vec::new();
        let stdout = child.stdout.take();
        let working = async {
            let read = match stdout {
                Some(stdout) => {
                    // One byte more tells that it is too long.
                    let mut stdout = stdout.take(self.body_bytes_max + 1);
                    stdout.read_to_end(&mut body).await.map(drop)
                }
                None => Ok(()),
            };
            // One that prints too much is killed below.
            let is_too_long = body.len() as u64 > self.body_bytes_max;
            let status = if is_too_long {
                None
            } else {
                Some(child.wait().await)
            };
            (read, status)
        };
        let Ok((read, status)) = timeout(self.exec_timeout, working).await else {
            drop(group);
            let time = show_duration(self.exec_timeout);
            return Err(retry(format!("the command has not ended within {time}")));
        };
        let Some(status) = status else {
            drop(group);
            let max = self.body_bytes_max;
            let why = format!(
                "the command has printed more than {max} bytes, the most that a message has"
            );
            warn!(id = told.id, why, "a message is rejected");
            return Err(Unhandled::reject(why));
        };
        group.has_ended();
        if let Some(feeding) = feeding {
            // Nobody reads any more.
            feeding.abort();
        }
        let end = status.map(command::judge);
        match (read, end) {
            (Err(error), _) | (_, Err(error)) => Err(retry(format!("reading its output: {error}"))),
            (_, Ok(End::Success)) => Ok(body),
            (_, Ok(End::Failure(why))) => Err(retry(why)),
            (_, Ok(End::NotStarted(why) | End::Hopeless(why))) => Err(self.give_up(command, &why)),
        }
    }
}

/// The processes of a command, which are killed when nobody wants to know any more what it makes of its message.
struct Group(u32);

impl Group {
    /// Its first process has ended; those that it has left behind may go on.
    fn has_ended(self) {
        std::mem::forget(self);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        command::kill(self.0);
    }
}
