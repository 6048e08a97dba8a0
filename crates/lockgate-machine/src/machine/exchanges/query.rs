//! Answers queries about exchanges.

use std::ops::Bound;

use lockgate_core::{ExchangeId, with_prefix};

use super::{
    route::Seen,
    state::{BindingEntry, ExchangeState},
};
use crate::{
    BindTo, BindingDescription, BindingsPage, ExchangeDescription, ExchangesPage, ExplainRoute,
    ListBindings, ListExchanges, Published, Query, Rejection, RouteExplanation, RouteStep,
    StepOutcome, Unroutable,
    exchanges::{Steps, TooManySteps},
    machine::{Machine, send::check_range},
};

/// Steps of an explanation; it may take as long as a publish.
const EXPLAIN_STEPS_MAX: u64 = 1_000_000;

/// Steps of all its reasons.
const REASON_STEPS_MAX: u64 = 100_000;

impl Machine {
    pub(super) fn describe_exchange(&self, id: u32, state: &ExchangeState) -> ExchangeDescription {
        ExchangeDescription {
            id: ExchangeId(id),
            name: state.name.clone(),
            kind: state.kind,
            unroutable: self.named_unroutable(state.unroutable),
            created: state.created,
            changed: state.changed,
            bindings: state.bindings(),
            counts: state.counts,
            notes: state.notes.clone(),
        }
    }

    fn named_unroutable(&self, unroutable: Unroutable<ExchangeId>) -> Unroutable {
        match unroutable {
            Unroutable::Reject => Unroutable::Reject,
            Unroutable::Drop => Unroutable::Drop,
            Unroutable::Alternate(id) => {
                let name = self.names_of(&[id]).pop();
                name.map_or(Unroutable::Reject, Unroutable::Alternate)
            }
        }
    }

    /// `None`: what it leads to was deleted.
    fn describe_binding(&self, entry: &BindingEntry) -> Option<BindingDescription> {
        if self.exchanges.is_dead(entry) {
            return None;
        }
        let to = match entry.binding.to {
            BindTo::Queue(queue) => BindTo::Queue(self.queue_name_of(queue)?),
            BindTo::Exchange(id) => BindTo::Exchange(self.names_of(&[id]).pop()?),
        };
        Some(BindingDescription {
            number: entry.number,
            to,
            pattern: entry.binding.pattern.clone(),
            options: entry.binding.options.clone(),
        })
    }

    pub(in crate::machine) fn query_exchange(
        &self,
        name: &lockgate_core::ExchangeName,
    ) -> Result<ExchangeDescription, Rejection> {
        let (id, state) = self.exchange_named(name)?;
        Ok(self.describe_exchange(id, state))
    }

    pub(in crate::machine) fn query_exchanges(
        &self,
        list: &ListExchanges,
    ) -> Result<ExchangesPage, Rejection> {
        check_range("limit", list.limit as u64, 1, Query::LIMIT_MAX as u64)?;
        let by_name = &self.exchanges.by_name;
        let mut matching = with_prefix(by_name, &list.prefix, list.after.as_ref());
        let page = matching.by_ref().take(list.limit);
        let exchanges: Vec<_> = page
            .filter_map(|(_, id)| {
                let state = self.exchanges.by_id.get(id)?;
                Some(self.describe_exchange(*id, state))
            })
            .collect();
        let last = exchanges.last().filter(|_| matching.next().is_some());
        let next = last.map(|exchange| exchange.name.clone());
        Ok(ExchangesPage { exchanges, next })
    }

    pub(in crate::machine) fn query_bindings(
        &self,
        list: &ListBindings,
    ) -> Result<BindingsPage, Rejection> {
        check_range("limit", list.limit as u64, 1, Query::LIMIT_MAX as u64)?;
        let (_, state) = self.exchange_named(&list.exchange)?;
        let after = list.after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = state.own.range((after, Bound::Unbounded)).peekable();
        let mut bindings = Vec::new();
        let mut last = None;
        // Dead bindings are looked at too, and a page ends with a bounded number of them.
        for (&number, &row) in behind.by_ref().take(10 * Query::LIMIT_MAX) {
            last = Some(number);
            bindings.extend(self.describe_binding(&self.exchanges.bindings[row]));
            if bindings.len() == list.limit {
                break;
            }
        }
        let next = last.filter(|_| behind.peek().is_some());
        Ok(BindingsPage { bindings, next })
    }

    pub(in crate::machine) fn query_route(
        &self,
        explain: &ExplainRoute,
    ) -> Result<RouteExplanation, Rejection> {
        check_range("limit", explain.limit as u64, 1, Query::LIMIT_MAX as u64)?;
        let (id, _) = self.exchange_named(&explain.exchange)?;
        let message = Published::new(
            &explain.routing_key,
            &explain.headers,
            explain.body.as_ref(),
        );
        let (mut bindings, mut all) = (Vec::new(), 0);
        let mut steps = Steps::new(EXPLAIN_STEPS_MAX);
        let mut reason_steps = Steps::new(REASON_STEPS_MAX);
        let walked = self.walk_exchanges(id, &message, &mut steps, |entry, seen| {
            all += 1;
            if bindings.len() < explain.limit
                && let Some(binding) = self.describe_binding(entry)
            {
                bindings.push(RouteStep {
                    exchange: self.names_of(&[ExchangeId(entry.exchange)]).pop(),
                    outcome: match seen {
                        Seen::ToQueue(_) | Seen::ToExchange => StepOutcome::Routes,
                        Seen::Again => StepOutcome::Again,
                        Seen::Filtered(miss) => {
                            let filter = &binding.options.filter;
                            let why = filter.as_ref();
                            let why = why.map(|it| it.explain(&miss, &message, &mut reason_steps));
                            StepOutcome::Filtered(why.unwrap_or_default())
                        }
                    },
                    binding,
                });
            }
        });
        let walked = walked.map_err(|TooManySteps| super::ExchangeError::TooMuch {
            exchange: explain.exchange.clone(),
            queues: super::route::TARGETS_MAX,
        })?;
        Ok(RouteExplanation {
            more: all - bindings.len() as u64,
            bindings,
            queues: walked.queues as u64,
            alternates: self.names_of(&walked.alternates),
            unroutable: (walked.queues == 0).then(|| self.named_unroutable(walked.last)),
        })
    }
}
