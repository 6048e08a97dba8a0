//! Reads of ledgers, which may wait for an event.

use lockgate_core::{LedgerName, MachineTime, Now, Position};
use lockgate_machine::{DescribeLedger, FindEvent, FindLookedUp, LocateEvents, Query};

use super::{Driver, Ticket, Wait};
use crate::{
    Answer, EngineError,
    waiters::{Waiter, Waiters},
};

/// Reads by their ledger.
pub(super) type Reads<T> = Waiters<LedgerName, LocateEvents, T>;

impl<T: Ticket> Driver<T> {
    /// Answers with the places of events if there is something to tell, or lets the caller wait for that.
    pub(super) fn run_read(
        &mut self,
        locate: LocateEvents,
        until: MachineTime,
        ticket: T,
        now: Now,
    ) {
        self.counts.queries += 1;
        let (ledger, after) = (&locate.ledger, locate.after);
        if until <= now.machine || self.machine.has_events_behind(ledger, after) {
            return self.answer_read(locate, ticket, now);
        }
        if self.may_wait(now) {
            let of = locate.ledger.clone();
            let waiter = Waiter {
                request: locate,
                until,
                ticket,
            };
            self.reads.push(of, waiter);
        } else {
            self.counts.overloaded += 1;
            self.answer(ticket, Err(EngineError::Overloaded), Wait::Nothing);
        }
    }

    /// Answers the reads of ledgers that have changed, and those whose time has run out.
    pub(super) fn serve_reads(&mut self, now: Now) {
        for ledger in self.machine.take_changed_ledgers() {
            let machine = &self.machine;
            let has_some = |locate: &LocateEvents| machine.has_events_behind(&ledger, locate.after);
            for waiter in self.reads.take(&ledger, has_some) {
                self.answer_read(waiter.request, waiter.ticket, now);
            }
        }
        self.end_reads(now.machine, now);
    }

    /// Answers the reads whose time runs out by `until`.
    pub(super) fn end_reads(&mut self, until: MachineTime, now: Now) {
        while let Some((_, waiter)) = self.reads.pop_ended(until) {
            self.answer_read(waiter.request, waiter.ticket, now);
        }
    }

    /// A power cut must not take back what the answer shows.
    fn answer_read(&mut self, locate: LocateEvents, ticket: T, now: Now) {
        let seen = self.seen_of_ledger(&locate.ledger);
        let places = self.machine.query(&Query::LocateEvents(locate), now);
        self.answer(ticket, Ok(Answer::Query(places)), Wait::Sync(seen));
    }

    /// What must be durable before the answer to a query is shown.
    pub(super) fn seen_of_query(&self, query: &Query) -> Position {
        match query {
            Query::GetRecord(_) | Query::ListRecords(_) => self.seen_of_records(),
            Query::DescribeLedger(DescribeLedger { ledger })
            | Query::LocateEvents(LocateEvents { ledger, .. })
            | Query::FindEvent(FindEvent { ledger, .. })
            | Query::FindLookedUp(FindLookedUp {
                find: FindEvent { ledger, .. },
                ..
            }) => self.seen_of_ledger(ledger),
            Query::ListLedgers(_) => self.seen_of(self.machine.ledgers_rest_on()),
            Query::DescribeExchange(_)
            | Query::ListExchanges(_)
            | Query::ListBindings(_)
            | Query::ExplainRoute(_) => self.seen_of(self.machine.exchanges_rest_on()),
            _ => self.promised,
        }
    }

    /// What must be durable before something of the ledger is shown.
    pub(super) fn seen_of_ledger(&self, ledger: &LedgerName) -> Position {
        self.seen_of(self.machine.ledger_rests_on(ledger))
    }
}
