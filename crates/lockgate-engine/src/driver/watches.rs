//! Watches of records.

use lockgate_core::{MachineTime, Now, Position, RecordName, Revision};
use lockgate_machine::QueryReply;

use super::{Driver, Ticket, Wait};
use crate::{
    Answer, EngineError,
    waiters::{Waiter, Waiters},
};

/// Watches by their record, each with the revision that its caller has seen.
pub(super) type Watches<T> = Waiters<RecordName, Option<Revision>, T>;

impl<T: Ticket> Driver<T> {
    /// Answers with the record if it is another than the caller has seen, or lets the caller wait for that.
    pub(super) fn run_watch(
        &mut self,
        name: RecordName,
        seen: Option<Revision>,
        until: MachineTime,
        ticket: T,
        now: Now,
    ) {
        self.counts.queries += 1;
        if until <= now.machine || self.machine.record_revision(&name) != seen {
            return self.answer_watch(&name, ticket, now);
        }
        if self.may_wait(now) {
            let waiter = Waiter {
                request: seen,
                until,
                ticket,
            };
            self.watches.push(name, waiter);
        } else {
            self.counts.overloaded += 1;
            self.answer(ticket, Err(EngineError::Overloaded), Wait::Nothing);
        }
    }

    /// Answers the watches of records that have changed, and those whose time has run out.
    pub(super) fn serve_watches(&mut self, now: Now) {
        for name in self.machine.take_changed_records() {
            let revision = self.machine.record_revision(&name);
            for waiter in self.watches.take(&name, |seen| *seen != revision) {
                self.answer_watch(&name, waiter.ticket, now);
            }
        }
        self.end_watches(now.machine, now);
    }

    /// Answers the watches whose time runs out by `until`.
    pub(super) fn end_watches(&mut self, until: MachineTime, now: Now) {
        while let Some((name, waiter)) = self.watches.pop_ended(until) {
            self.answer_watch(&name, waiter.ticket, now);
        }
    }

    /// A power cut must not take back what the answer shows.
    fn answer_watch(&mut self, name: &RecordName, ticket: T, now: Now) {
        let record = self.machine.record(name, now).map(Box::new);
        let answer = Answer::Query(Ok(QueryReply::Record(record)));
        let seen = self.seen_of_records();
        self.answer(ticket, Ok(answer), Wait::Sync(seen));
    }

    /// What must be durable before something of the records is shown.
    pub(super) fn seen_of_records(&self) -> Position {
        self.seen_of(self.machine.records_rest_on())
    }

    /// What must be durable before something is shown that rests on that record.
    pub(super) fn seen_of(&self, rests_on: Option<Position>) -> Position {
        let seen = rests_on.map(|at| Position(at.0 + 1));
        seen.map_or(self.promised, |at| at.max(self.promised))
    }
}
