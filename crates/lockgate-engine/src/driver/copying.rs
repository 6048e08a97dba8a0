//! Publishes give way to other requests.
//!
//! A publish to 10,000 queues takes as long as so many sends, and a request may have a thousand of them. After
//! [`COPIES_PER_GROUP`] copies the publishes of a group wait for the next one, in their order. All other requests go on, and
//! so does the rest of a request of which some publishes are decided: its answer comes when all are.

use std::collections::VecDeque;

use lockgate_core::{Now, Position};
use lockgate_machine::{Command, Rejection, Reply};
use smallvec::SmallVec;

use super::{Driver, Output, Ticket, Wait};
use crate::{
    EngineError, StopReason,
    error::UnknownCause,
    request::{Answer, Work},
    unique_ids,
};

/// After so many copies, no more publishes of a group are decided: some 10 ms.
pub(super) const COPIES_PER_GROUP: u64 = 10_000;

/// How many requests may wait, and how many bytes of them. Beyond that, requests that have not begun are refused.
const WAITING_MAX: usize = 1_024;
const WAITING_BYTES_MAX: usize = 32 << 20;

/// A request of which some commands may be decided.
pub(super) struct Begun<T> {
    commands: SmallVec<[Command; 1]>,
    results: SmallVec<[Result<Reply, Rejection>; 1]>,
    wait: Wait,
    ticket: T,
}

/// The publishes that wait for the next group.
pub(super) struct Copying<T> {
    /// What publishes took in this group, in copies.
    pub(super) copies: u64,
    waiting: VecDeque<Begun<T>>,
    bytes: usize,
}

impl<T> Default for Copying<T> {
    fn default() -> Self {
        Self {
            copies: 0,
            waiting: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<T> Copying<T> {
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl<T> Begun<T> {
    pub(super) fn new(commands: SmallVec<[Command; 1]>, ticket: T) -> Self {
        Self {
            results: SmallVec::with_capacity(commands.len()),
            commands,
            wait: Wait::Nothing,
            ticket,
        }
    }

    fn bytes(&self) -> usize {
        self.commands
            .iter()
            .map(crate::request::command_bytes)
            .sum()
    }
}

impl<T: Ticket> Driver<T> {
    /// Whether publishes wait for the next group.
    pub(crate) fn is_copying(&self) -> bool {
        self.copying.is_waiting() && self.stopped.is_none()
    }

    /// Goes on with the publishes that waited, as far as this group may.
    pub(super) fn resume_copying(&mut self, now: Now, out: &mut impl FnMut(Output<T>)) {
        while self.copying.copies < COPIES_PER_GROUP
            && let Some(begun) = self.copying.waiting.pop_front()
        {
            self.copying.bytes -= begun.bytes();
            let left = match begun.results.is_empty() {
                true => self.look_up_or_run(begun, now, out),
                false => self.run_commands(begun, now, out),
            };
            // It was the first one.
            if let Some(left) = left {
                self.copying.bytes += left.bytes();
                self.copying.waiting.push_front(left);
            }
        }
    }

    /// Decides the commands of a request, unless unique ids have to be looked up before, or its publishes have to wait.
    pub(super) fn begin_commands(
        &mut self,
        commands: SmallVec<[Command; 1]>,
        ticket: T,
        now: Now,
        out: &mut impl FnMut(Output<T>),
    ) {
        let begun = Begun::new(commands, ticket);
        let waits = self.gives_way() && begun.commands.first().is_some_and(copies);
        let left = match waits {
            true => Some(begun),
            false => self.look_up_or_run(begun, now, out),
        };
        if let Some(left) = left {
            self.let_copying_wait(left);
        }
    }

    fn gives_way(&self) -> bool {
        self.copying.copies >= COPIES_PER_GROUP
    }

    /// Returns the request if it has to wait.
    fn look_up_or_run(
        &mut self,
        begun: Begun<T>,
        now: Now,
        out: &mut impl FnMut(Output<T>),
    ) -> Option<Begun<T>> {
        let ids = unique_ids::to_look_up(&self.machine, &begun.commands, now);
        if ids.is_empty() {
            return self.run_commands(begun, now, out);
        }
        self.copying.copies += ids.len() as u64;
        let look_up = Answer::look_up(Work::Commands(begun.commands), ids);
        self.answer(begun.ticket, Ok(look_up), Wait::Nothing);
        None
    }

    /// Returns the request if the rest of it has to wait.
    fn run_commands(
        &mut self,
        mut begun: Begun<T>,
        now: Now,
        out: &mut impl FnMut(Output<T>),
    ) -> Option<Begun<T>> {
        // What was looked up for it may not hold in a later group.
        let is_whole = self.machine.has_indexed_ids();
        while let Some(command) = begun.commands.get(begun.results.len()) {
            if self.gives_way() && copies(command) && !is_whole {
                return Some(begun);
            }
            let (result, wait) = self.run_command(command, now);
            begun.wait = begun.wait.max(wait);
            begun.results.push(result);
        }
        self.answer_commands(begun.results, begun.wait, begun.ticket, out);
        None
    }

    fn let_copying_wait(&mut self, begun: Begun<T>) {
        let (bytes, waiting) = (begun.bytes(), &mut self.copying);
        let is_full = waiting.waiting.len() >= WAITING_MAX
            || waiting.bytes.saturating_add(bytes) > WAITING_BYTES_MAX;
        // One that has begun goes on.
        if is_full && waiting.is_waiting() && begun.results.is_empty() {
            self.counts.overloaded += 1;
            return self.answer(begun.ticket, Err(EngineError::Overloaded), Wait::Nothing);
        }
        waiting.bytes += bytes;
        waiting.waiting.push_back(begun);
    }

    /// Answers the publishes that wait, because the driver has stopped.
    pub(super) fn end_copying(&mut self, reason: &StopReason, out: &mut impl FnMut(Output<T>)) {
        self.copying.bytes = 0;
        for begun in self.copying.waiting.drain(..) {
            let reason = reason.clone();
            let error = match begun.results.is_empty() {
                true => EngineError::Stopped { reason },
                false => EngineError::UnknownOutcome {
                    cause: UnknownCause::Stopped(reason),
                },
            };
            out(Output {
                written: Position::default(),
                durable: Position::default(),
                kind: super::OutputKind::Answer {
                    ticket: begun.ticket,
                    result: Err(error),
                },
            });
        }
    }
}

/// Whether a command makes copies of messages.
fn copies(command: &Command) -> bool {
    match command.plain() {
        Command::Publish(_) | Command::RunSchedule(_) => true,
        Command::Transact(transact) => !transact.publishes.is_empty(),
        _ => false,
    }
}
