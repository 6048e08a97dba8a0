//! `lockgate receive`.

mod away;
pub(super) mod command;
mod exec;
mod form;
mod printer;
mod source;
mod why;

use std::{
    collections::HashSet,
    io::{self, IsTerminal as _},
    pin::pin,
    time::Duration,
};

use hyper::Method;
use rustix::fs::{FileType, fdatasync, fstat};

use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::time::{Instant, timeout, timeout_at};

use self::{away::Away, form::Form, printer::Printer};
use super::{
    Retry, Signals, client, millis, part, runtime,
    settle::{self as settling, Outcome, Results},
};
use crate::{
    args::Receive,
    client::Client,
    exit::{Exit, Failure, output_error},
    output::{count, note},
};

/// Messages of one call: what somebody who does not say how many wants to see. The server gives up to 100.
const CALL_MESSAGES_MAX: u64 = 10;
/// The longest wait that one call can ask for.
const CALL_WAIT_MAX: Duration = Duration::from_secs(20);

/// How long after a signal an answer is waited for that may be on its way, and a reader of what is printed.
const ANSWER_GRACE: Duration = Duration::from_millis(200);

/// Bytes of messages that are held together to be given back.
const LOOK_BYTES_MAX: usize = 64 << 20;

pub(crate) fn run(args: &Receive) -> Result<(), Failure> {
    let sink = Sink::of_stdout()?;
    if args.ack && sink == Sink::Other {
        return Err(cannot_ack(&args.queue));
    }
    let client = client(&args.settings)?;
    runtime()?.block_on(async {
        let mut signals = Signals::new()?;
        if let Some(command) = &args.exec {
            return exec::run(args, command, &mut signals).await;
        }
        let mut receiver = Receiver {
            client,
            args,
            printer: Printer::start()?,
            form: Form::of(args, sink),
            away: Away::default(),
            sink,
        };
        if args.nack {
            receiver.look(&mut signals).await
        } else {
            receiver.run(&mut signals).await
        }
    })
}

/// Where standard output goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sink {
    Terminal,
    File,
    /// A pipe, a socket, /dev/null, nothing at all: what is written there is not certain to be anywhere.
    Other,
}

impl Sink {
    fn of_stdout() -> Result<Self, Failure> {
        let stdout = io::stdout();
        if stdout.is_terminal() {
            return Ok(Self::Terminal);
        }
        let what = fstat(&stdout).map_err(|error| {
            Failure::from_error(Exit::Failed, error).context("looking at standard output")
        })?;
        Ok(match FileType::from_raw_mode(what.st_mode) {
            FileType::RegularFile => Self::File,
            _ => Self::Other,
        })
    }
}

fn cannot_ack(queue: &str) -> Failure {
    Failure::usage(
        "--ack needs a terminal or a file as standard output: what the reader of a pipe has not \
         taken when it ends would be lost",
    )
    .hint(format!(
        "let a command do the work, and delete each message when it has succeeded: \
         lockgate receive {queue} --exec COMMAND"
    ))
}

struct Receiver<'a> {
    client: Client,
    args: &'a Receive,
    printer: Printer,
    form: Form,
    away: Away,
    sink: Sink,
}

impl Receiver<'_> {
    async fn run(&mut self, signals: &mut Signals) -> Result<(), Failure> {
        let mut left = match (self.args.max, self.args.follow) {
            (Some(max), _) => max,
            (None, true) => u64::MAX,
            (None, false) => CALL_MESSAGES_MAX,
        };
        let first_by = Instant::now() + self.args.wait;
        let mut received = false;
        let mut waiting = why::Waiting::default();
        while left > 0 {
            let wait = match (self.args.follow, received) {
                (true, _) => waiting.wait(),
                (false, true) => Duration::ZERO,
                (false, false) => first_by.saturating_duration_since(Instant::now()),
            };
            // A signal interrupts waiting, not the work on what has been received: that is printed, as far as
            // somebody reads it, and settled.
            let (messages, signal) = self
                .receive_or_signal(left.min(CALL_MESSAGES_MAX), wait, signals)
                .await?;
            if let Some(exit) = signal {
                let receipts: Vec<_> = messages.into_iter().map(|m| m.receipt).collect();
                self.give_back(&receipts).await?;
                return Err(Failure::signal(exit));
            }
            if messages.is_empty() {
                let waited = received || Instant::now() >= first_by;
                if self.args.follow {
                    waiting.tell(&self.client, &self.args.queue).await;
                } else if waited {
                    break;
                }
                continue;
            }
            waiting.over(&self.args.queue);
            received = true;
            left -= messages.len() as u64;
            self.hand_over(messages, signals).await?;
        }
        if !received {
            why::tell(&self.client, &self.args.queue).await;
        }
        Ok(())
    }

    /// Takes messages, gives all of them back at once, and only then prints them: however slow the
    /// reader is, none is given back too late, and none comes twice.
    async fn look(&mut self, signals: &mut Signals) -> Result<(), Failure> {
        let mut held = Vec::new();
        let taken = self.take(&mut held, signals).await;
        let receipts: Vec<String> = held.iter().map(|m| m.receipt.clone()).collect();
        let given_back = self.give_back(&receipts).await;
        taken?;
        if held.is_empty() {
            why::tell(&self.client, &self.args.queue).await;
        }
        let mut until = None;
        for message in held {
            self.print(message, &mut until, signals).await?;
        }
        given_back?;
        ended(until)
    }

    async fn take(
        &mut self,
        held: &mut Vec<Message>,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let max = self.args.max.unwrap_or(CALL_MESSAGES_MAX);
        let first_by = Instant::now() + self.args.wait;
        let mut seen = HashSet::new();
        let mut bytes = 0;
        while (held.len() as u64) < max {
            let left = max - held.len() as u64;
            let wait = match held.len() {
                0 => first_by.saturating_duration_since(Instant::now()),
                _ => Duration::ZERO,
            };
            let (messages, signal) = self
                .receive_or_signal(left.min(CALL_MESSAGES_MAX), wait, signals)
                .await?;
            let none = messages.is_empty();
            // One that comes again: the first leases are over, and so is the looking.
            let over = messages.iter().any(|m| !seen.insert(m.id.clone()));
            bytes += messages.iter().map(|m| m.json.get().len()).sum::<usize>();
            held.extend(messages);
            if let Some(exit) = signal {
                return Err(Failure::signal(exit));
            }
            if over {
                held.reverse();
                held.retain(|m| seen.remove(&m.id));
                held.reverse();
                note("a lease has ended while others were received: looked no further");
                break;
            }
            if bytes > LOOK_BYTES_MAX {
                note("looked no further: what was received has more than 64MiB");
                break;
            }
            if none && (!held.is_empty() || Instant::now() >= first_by) {
                break;
            }
        }
        Ok(())
    }

    /// Gives leases back, at no attempt's cost. One that is not current any more is given back already.
    async fn give_back(&mut self, receipts: &[String]) -> Result<(), Failure> {
        let queue = &self.args.queue;
        let (client, away) = (&self.client, &self.away);
        // The last one first: in the strict profile those behind it go back with a message.
        let receipts: Vec<String> = receipts.iter().rev().cloned().collect();
        let late = settle(client, away, queue, &receipts, Settling::GiveBack).await?;
        if late.leases > 0 {
            note(&format!(
                "the lease of {} had ended before it was given back: that attempt counts",
                count(late.leases, "message")
            ));
        }
        Ok(())
    }

    /// One receive, unless there is a signal; with it, the messages of an answer that was on its way.
    async fn receive_or_signal(
        &mut self,
        max: u64,
        wait: Duration,
        signals: &mut Signals,
    ) -> Result<(Vec<Message>, Option<Exit>), Failure> {
        // One that came while others were settled must not begin another receive.
        tokio::select! {
            biased;
            exit = signals.next() => return Ok((Vec::new(), Some(exit))),
            () = std::future::ready(()) => {}
        }
        let mut receive = pin!(self.receive(max, wait));
        let exit = tokio::select! {
            biased;
            messages = &mut receive => return Ok((messages?, None)),
            exit = signals.next() => exit,
        };
        // Nobody would know of leases in an answer that the server has already written. What it
        // cannot write any more it gives back itself.
        let answer = timeout(ANSWER_GRACE, receive).await;
        let messages = answer.ok().and_then(Result::ok).unwrap_or_default();
        Ok((messages, Some(exit)))
    }

    /// One receive; while following, a server that is away for a moment is waited for.
    async fn receive(&mut self, max: u64, wait: Duration) -> Result<Vec<Message>, Failure> {
        let target = format!("/queues/{}/receive", part(&self.args.queue));
        let wait = wait.min(CALL_WAIT_MAX);
        let body = json!({
            "max": max, "wait_ms": millis(wait), "lease_ms": self.args.lease.map(millis),
        });
        let mut retry = Retry::new(self.client.timeout());
        loop {
            let call =
                self.client
                    .call_within::<Received>(Method::POST, &target, Some(&body), wait);
            let answer = match self.args.follow {
                true => self.away.watch(wait, call).await,
                false => call.await,
            };
            match answer {
                Ok(Received { messages }) => {
                    return messages.into_iter().map(Message::new).collect();
                }
                Err(error) if self.args.follow && error.may_pass() && retry.again().await => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Prints messages and settles them as asked. What could not be printed goes back to the queue.
    async fn hand_over(
        &mut self,
        messages: Vec<Message>,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let mut printed = Vec::with_capacity(messages.len());
        let mut unprinted = Vec::new();
        let mut failure = None;
        let mut until = None;
        for message in messages {
            let receipt = message.receipt.clone();
            let result = match failure {
                None => self.print(message, &mut until, signals).await,
                Some(_) => Ok(()),
            };
            if let Err(error) = result {
                failure = Some(error);
            }
            if failure.is_none() {
                printed.push(receipt);
            } else {
                unprinted.push(receipt);
            }
        }
        if self.args.ack {
            // What is only in the system's memory a power cut would take, and the queue has it no more.
            if self.sink == Sink::File
                && let Err(error) = fdatasync(io::stdout())
            {
                unprinted.splice(0..0, printed.drain(..));
                failure.get_or_insert(output_error(error.into()));
            }
            // Deliberately one after the other: what was printed is settled first.
            let deleted = delete(&self.client, &self.away, &self.args.queue, &printed).await;
            if let Err(error) = deleted {
                // What was not printed goes back all the same.
                failure.get_or_insert(error);
            }
        }
        self.give_back(&unprinted).await?;
        failure.map_or_else(|| ended(until), Err)
    }

    /// Returns only when the operating system has the message. After a signal, which is put into `until`, what
    /// a reader takes at once is still printed.
    async fn print(
        &mut self,
        message: Message,
        until: &mut Option<(Exit, Instant)>,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let text = self.form.write(&message.json)?;
        let mut printing = pin!(self.printer.print(text));
        let (exit, end) = match until {
            Some(until) => *until,
            None => tokio::select! {
                biased;
                result = &mut printing => return result,
                exit = signals.next() => *until.insert((exit, Instant::now() + ANSWER_GRACE)),
            },
        };
        timeout_at(end, printing)
            .await
            .unwrap_or_else(|_| Err(Failure::signal(exit)))
    }
}

/// The end, if there was a signal.
fn ended(until: Option<(Exit, Instant)>) -> Result<(), Failure> {
    until.map_or(Ok(()), |(exit, _)| Err(Failure::signal(exit)))
}

/// What is needed of a message that is printed.
struct Message {
    id: String,
    receipt: String,
    /// All of it, as the server wrote it: nothing that it says is lost on the way.
    json: Box<RawValue>,
}

#[derive(Deserialize)]
struct Received {
    messages: Vec<Box<RawValue>>,
}

impl Message {
    fn new(json: Box<RawValue>) -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Names {
            id: String,
            receipt: String,
        }
        let Names { id, receipt } = serde_json::from_str(json.get()).map_err(|error| {
            Failure::from_error(Exit::Failed, error).context("reading a message")
        })?;
        Ok(Self { id, receipt, json })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Settling {
    Ack,
    /// Nobody has seen the message: the attempt does not count.
    GiveBack,
}

/// Leases that were not current any more when they were settled.
#[derive(Default)]
struct Late {
    leases: u64,
    /// What became of the first, in words.
    first: String,
}

/// Settles leases. All are tried. What is gone was settled before, perhaps by an attempt whose answer was
/// lost.
async fn settle(
    client: &Client,
    away: &Away,
    queue: &str,
    receipts: &[String],
    how: Settling,
) -> Result<Late, Failure> {
    let target = format!("/queues/{}/settle", part(queue));
    let action = match how {
        Settling::Ack => "ack",
        Settling::GiveBack => "defer",
    };
    let mut late = Late::default();
    for chunk in receipts.chunks(settling::CALL_MAX) {
        let settle = |receipt: &String| json!({"receipt": receipt, "action": action});
        let body = json!({"settles": chunk.iter().map(settle).collect::<Vec<_>>()});
        let mut retry = Retry::new(client.timeout());
        let mut perhaps_done = false;
        let answer: Results = loop {
            let call = client.call(Method::POST, &target, Some(&body));
            match away.watch(Duration::ZERO, call).await {
                Ok(answer) => break answer,
                Err(error) => {
                    perhaps_done |= !error.nothing_done();
                    if !(error.may_pass() && retry.again().await) {
                        return Err(Failure::from(error).or_hint(
                            "messages that are not settled come again when their leases end",
                        ));
                    }
                }
            }
        };
        for outcome in answer.results {
            let why = match outcome {
                Outcome::Done { .. } => continue,
                Outcome::Stale { reason } if reason == "gone" && how == Settling::Ack => continue,
                Outcome::Stale { .. } if perhaps_done && how == Settling::GiveBack => continue,
                Outcome::Stale { reason } => settling::words(&reason).to_owned(),
                Outcome::Refused { problem } => problem.words(),
            };
            late.leases += 1;
            if late.first.is_empty() {
                late.first = why;
            }
        }
    }
    Ok(late)
}

/// Deletes messages; those whose lease is not current any more are a failure.
async fn delete(
    client: &Client,
    away: &Away,
    queue: &str,
    receipts: &[String],
) -> Result<(), Failure> {
    let late = settle(client, away, queue, receipts, Settling::Ack).await?;
    if late.leases == 0 {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Conflict,
        match receipts.len() {
            1 => format!("the message could not be acknowledged: {}", late.first),
            all => format!(
                "{} of {all} messages could not be acknowledged; the first: {}",
                late.leases, late.first
            ),
        },
    ))
}
