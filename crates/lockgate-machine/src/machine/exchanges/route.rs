//! The way of a message from the exchange it is published to.
//!
//! [`Machine::route`] is what a publish calls. An exchange looks for its bindings that the message matches; each leads to a queue,
//! or to an exchange that looks in turn. If such an exchange has none, and an alternate, that one looks. All of them look once.
//! If no queue was found then, the alternate of the exchange that was published to looks, whether that exchange had a binding
//! that the message matches or not; and so on along the alternates. The last of them says what becomes of the message.

use std::collections::{BTreeSet, VecDeque};

use lockgate_core::{ExchangeId, ExchangeName, QueueId};

use super::{
    ExchangeError,
    state::{BindingEntry, ExchangeState},
};
use crate::{
    BindTo, BindingOptions, Published, Unroutable,
    exchanges::{Steps, TooManySteps, filter::Miss},
    machine::Machine,
};

/// The most queues that one publish goes to.
pub(super) const TARGETS_MAX: usize = 10_000;

/// The most steps that finding them may take, of all publishes of a command together: some 10 ms.
pub(in crate::machine) const STEPS_MAX: u64 = 1_000_000;

/// Where a message goes that is published.
#[derive(Clone, Debug)]
pub struct Route<'m> {
    /// The exchange that it is published to.
    pub exchange: ExchangeId,
    /// Each queue once, with the binding that led there first: those of the exchange that was published to come first, those of
    /// one exchange in the order in which they were made. None: the message is dropped, and counted.
    pub targets: Vec<Target<'m>>,
    /// Behind the exchange that was published to, its alternates that had to look because no queue was found, in order.
    pub alternates: Vec<ExchangeId>,
}

/// A queue that gets a copy.
#[derive(Clone, Copy, Debug)]
pub struct Target<'m> {
    pub queue: QueueId,
    /// The exchange whose binding it is.
    pub exchange: ExchangeId,
    /// The binding's number there.
    pub binding: u32,
    /// What the binding says of the key, and of a queue that is full.
    pub options: &'m BindingOptions,
}

/// What [`Machine::walk_exchanges`] sees of a binding whose pattern the message matches.
pub(super) enum Seen<'m> {
    /// It leads to a queue, and is the first one that does.
    ToQueue(Target<'m>),
    /// An earlier one leads to the same queue, or the exchange that it leads to has looked already.
    Again,
    /// It leads to an exchange.
    ToExchange,
    /// Its filter does not match.
    Filtered(Miss),
}

/// How a walk through exchanges ended.
pub(super) struct Walked {
    pub(super) queues: usize,
    /// The alternates of the first exchange that had to look.
    pub(super) alternates: Vec<ExchangeId>,
    /// What the last of them, or the exchange itself, says where no queue was found.
    pub(super) last: Unroutable<ExchangeId>,
}

/// What a walk has still to look at.
#[derive(Default)]
struct Open {
    exchanges: VecDeque<u32>,
    seen: BTreeSet<u32>,
    queues: BTreeSet<u32>,
}

impl Machine {
    /// Which queues a message gets to that is published to that exchange. Depends on nothing but the exchanges, their bindings
    /// and the message, and changes nothing.
    ///
    /// # Errors
    /// If there is no such exchange, no queue and the exchange refuses that, or if it takes more than it may.
    pub fn route(
        &self,
        exchange: &ExchangeName,
        message: &Published<'_>,
    ) -> Result<Route<'_>, ExchangeError> {
        self.route_within(exchange, message, &mut Steps::new(STEPS_MAX))
    }

    pub(super) fn route_within(
        &self,
        exchange: &ExchangeName,
        message: &Published<'_>,
        steps: &mut Steps,
    ) -> Result<Route<'_>, ExchangeError> {
        let (id, _) = self.exchange_named(exchange)?;
        let mut targets = Vec::new();
        let walked = self.walk_exchanges(id, message, steps, |_, seen| {
            if let Seen::ToQueue(target) = seen {
                targets.push(target);
            }
        });
        let walked = walked.map_err(|TooManySteps| ExchangeError::TooMuch {
            exchange: exchange.clone(),
            queues: TARGETS_MAX,
        })?;
        match walked.last {
            Unroutable::Reject if targets.is_empty() => Err(ExchangeError::Unroutable {
                exchange: exchange.clone(),
                alternates: self.names_of(&walked.alternates),
            }),
            _ => Ok(Route {
                exchange: ExchangeId(id),
                targets,
                alternates: walked.alternates,
            }),
        }
    }

    /// Goes from an exchange to all that it leads to, and shows each binding whose pattern the message matches. Ends with an
    /// error when steps are used up, or there are too many queues.
    pub(super) fn walk_exchanges<'m>(
        &'m self,
        first: u32,
        message: &Published<'_>,
        steps: &mut Steps,
        mut show: impl FnMut(&'m BindingEntry, Seen<'m>),
    ) -> Result<Walked, TooManySteps> {
        let mut open = Open::default();
        let mut alternates = Vec::new();
        let mut at = first;
        loop {
            steps.spend(1)?;
            open.add(at);
            while let Some(id) = open.exchanges.pop_front() {
                if let Some(state) = self.exchanges.by_id.get(&id) {
                    let is_matched = self.look(state, message, &mut open, steps, &mut show)?;
                    // That of `at` is below.
                    if !is_matched
                        && id != at
                        && let Some(alternate) = state.alternate()
                    {
                        open.add(alternate);
                    }
                }
            }
            let state = self.exchanges.by_id.get(&at);
            let last = state.map_or(Unroutable::Reject, |state| state.unroutable);
            match state.and_then(ExchangeState::alternate) {
                Some(alternate) if open.queues.is_empty() => {
                    alternates.push(ExchangeId(alternate));
                    at = alternate;
                }
                _ => {
                    return Ok(Walked {
                        queues: open.queues.len(),
                        alternates,
                        last,
                    });
                }
            }
        }
    }

    /// One exchange looks for its bindings. Returns whether the message matches one.
    fn look<'m>(
        &'m self,
        state: &'m ExchangeState,
        message: &Published<'_>,
        open: &mut Open,
        steps: &mut Steps,
        show: &mut impl FnMut(&'m BindingEntry, Seen<'m>),
    ) -> Result<bool, TooManySteps> {
        let mut rows = Vec::new();
        state.index.find(message, steps, &mut rows)?;
        steps.spend(rows.len())?;
        let bindings = &self.exchanges.bindings;
        rows.sort_unstable_by_key(|&row| bindings[row].number);
        let mut is_matched = false;
        for row in rows {
            let entry = &bindings[row];
            if self.exchanges.is_dead(entry) {
                continue;
            }
            let options = &entry.binding.options;
            if let Some(filter) = &options.filter
                && let Err(miss) = filter.check(message, steps)?
            {
                show(entry, Seen::Filtered(miss));
                continue;
            }
            is_matched = true;
            let seen = match entry.binding.to {
                BindTo::Exchange(ExchangeId(target)) => match open.add(target) {
                    true => Seen::ToExchange,
                    false => Seen::Again,
                },
                BindTo::Queue(queue) => match self.queue_index(queue) {
                    None => continue,
                    Some(index) if !open.queues.insert(index) => Seen::Again,
                    Some(_) if open.queues.len() > TARGETS_MAX => return Err(TooManySteps),
                    Some(_) => Seen::ToQueue(Target {
                        queue,
                        exchange: ExchangeId(entry.exchange),
                        binding: entry.number,
                        options,
                    }),
                },
            };
            show(entry, seen);
        }
        Ok(is_matched)
    }
}

impl Open {
    /// Returns whether it is new.
    fn add(&mut self, exchange: u32) -> bool {
        let is_new = self.seen.insert(exchange);
        if is_new {
            self.exchanges.push_back(exchange);
        }
        is_new
    }
}
