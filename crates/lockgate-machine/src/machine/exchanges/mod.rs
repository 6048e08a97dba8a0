//! Exchanges: a message that is published to one gets to all queues whose bindings it matches.
//!
//! - `state`: what the machine holds of them, and the same in an image. `fold`: how it changes.
//! - `route`: which queues a message gets to. `crate::exchanges` finds the bindings of one exchange.
//! - `publish`: what a publish adds to these queues. `query`: what queries show.
//!
//! # Invariants
//! - No message comes to an exchange again: a binding or an alternate that would lead back is refused, and folding ignores it.
//! - An exchange has one binding of each pattern to each place. Its number is never given out again.
//! - What was deleted is not shown or reached from the next command on; its memory is freed in steps.

mod fold;
mod publish;
mod query;
mod route;
mod state;

use std::sync::Arc;

use lockgate_core::{
    ExchangeId, ExchangeName, Level, NameError, Now, Position, QueueId, QueueName,
};

pub(super) use self::{
    publish::COPIES_MAX,
    route::STEPS_MAX,
    state::{ExchangeState, Exchanges},
};
pub use self::{
    route::{Route, Target},
    state::ExchangeView,
};
use super::{Machine, draft::Draft, send::check_range};
use crate::{
    Bind, BindTo, Binding, BindingOptions, Bound, CreateExchange, CreatedExchange, DeleteExchange,
    Effect, ExchangeCounts, ExchangeDescription, ExchangeNotes, Rejection, Reply, Unbind,
    Unroutable, UpdateExchange,
};

/// The most pairs of exchanges with bindings from one to the other, so that the search for a way back stays short.
const LINKS_MAX: u64 = 10_000;

/// Why a command for an exchange cannot be done as the exchanges are now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// There is no exchange of that name.
    #[error("exchange {exchange} does not exist")]
    NotFound { exchange: ExchangeName },
    /// There is one of that name with another kind or rule.
    #[error(
        "exchange {exchange} exists, and its {what} is another one: delete it, or change what it does with messages that it \
         cannot route"
    )]
    Conflict {
        exchange: ExchangeName,
        /// What differs: `kind`, or `rule for messages that it cannot route`.
        what: &'static str,
    },
    /// A binding or an alternate would lead back to the exchange.
    #[error(
        "exchange {exchange} cannot lead to exchange {to}, because that one leads to {exchange}"
    )]
    Cycle {
        exchange: ExchangeName,
        to: ExchangeName,
    },
    /// Other exchanges lead to it.
    #[error(
        "exchange {exchange} cannot be deleted, because exchange {by} leads to it: unbind it there, or delete with force"
    )]
    Used {
        exchange: ExchangeName,
        /// One that does, by a binding or because it is its alternate.
        by: ExchangeName,
    },
    /// The pattern is that of another kind of exchange.
    #[error("exchange {exchange} is of kind {kind}, which has no binding by {pattern}")]
    Pattern {
        exchange: ExchangeName,
        kind: &'static str,
        /// The pattern.
        pattern: String,
    },
    /// Something that only a binding to a queue can have.
    #[error(
        "a binding to an exchange cannot have {what}: the exchange's own bindings to queues can"
    )]
    OnlyToQueue {
        /// `a key`, or the name of an option.
        what: &'static str,
    },
    /// The name of a header from which a key comes is empty or too long.
    #[error("the name of the header for the key has 1 to {max} bytes, this one has {len}")]
    KeyHeader { len: usize, max: usize },
    /// The name of a topic for envelopes is empty or too long.
    #[error("the topic of an envelope has 1 to {max} bytes, this one has {len}")]
    EnvelopeTopic { len: usize, max: usize },
    /// The body of the message is no text, and a binding puts it into an envelope, which is text.
    #[error(
        "a binding of exchange {exchange} puts messages into envelopes, which are text, and the body of the message is not UTF-8"
    )]
    EnvelopeText { exchange: ExchangeName },
    /// No queue matches, and the exchange refuses such messages.
    #[error(
        "exchange {exchange} has no queue for the message{}",
        behind(alternates)
    )]
    Unroutable {
        exchange: ExchangeName,
        /// The alternates that had none either, in order.
        alternates: Vec<ExchangeName>,
    },
    /// What a binding takes as the key of a queue's copy cannot be a key.
    #[error("exchange {exchange} gives the message no key: {source}")]
    Key {
        exchange: ExchangeName,
        source: NameError,
    },
    /// A record of a producer, of which queues keep marks: each queue would need one of its own.
    #[error("a message that is published carries no mark of a producer")]
    Producer,
    /// The copies of a message are more than one record takes.
    #[error(
        "a message would go to {queues} queues, and the keys, unique ids and envelopes of its copies would have more than {max} \
         bytes: give it a shorter key or unique id, or have fewer bindings that match"
    )]
    TooLarge { queues: usize, max: usize },
    /// A publish would go to too many queues, or finding them takes too long.
    #[error(
        "a message published to exchange {exchange} would go to more than {queues} queues, or finding them takes too long: have \
         fewer bindings that match, or fewer of those with filters"
    )]
    TooMuch {
        exchange: ExchangeName,
        queues: usize,
    },
}

/// Refuses notes that are longer than they can be.
fn check_notes(notes: &ExchangeNotes) -> Result<(), Rejection> {
    let (bytes, max) = (notes.bytes(), ExchangeNotes::BYTES_MAX);
    check_range("number of bytes of an exchange's notes", bytes, 0, max)
}

/// The alternates for the error of a message that goes nowhere.
fn behind(alternates: &[ExchangeName]) -> String {
    let Some(last) = alternates.last() else {
        return String::new();
    };
    match alternates.len() {
        1 => format!(", nor has its alternate {last}"),
        more => format!(", nor have its {more} alternates up to {last}"),
    }
}

impl Machine {
    /// The record of the log that must be durable before anything is told of exchanges. `None`: all are.
    #[must_use]
    pub fn exchanges_rest_on(&self) -> Option<Position> {
        self.unless_durable(self.exchanges.changed_at)
    }

    /// How many exchanges and bindings there are, and what the bindings take of the memory for them.
    #[must_use]
    pub fn exchange_figures(&self) -> (u64, u64, u64) {
        let exchanges = &self.exchanges;
        (
            exchanges.by_id.len() as u64,
            exchanges.live,
            exchanges.bytes,
        )
    }

    pub(super) fn exchange_named(
        &self,
        name: &ExchangeName,
    ) -> Result<(u32, &ExchangeState), ExchangeError> {
        self.exchanges.named(name).ok_or_else(|| {
            let exchange = name.clone();
            ExchangeError::NotFound { exchange }
        })
    }

    /// The names of exchanges that are there.
    fn names_of(&self, exchanges: &[ExchangeId]) -> Vec<ExchangeName> {
        let exchanges = exchanges.iter();
        let states = exchanges.filter_map(|id| self.exchanges.by_id.get(&id.0));
        states.map(|state| state.name.clone()).collect()
    }

    /// The number of the alternate, if there is one and it may be the alternate of `exchange`, which is `None` while it is made.
    fn checked_unroutable(
        &self,
        name: &ExchangeName,
        exchange: Option<u32>,
        unroutable: &Unroutable,
    ) -> Result<Unroutable<ExchangeId>, ExchangeError> {
        let Unroutable::Alternate(alternate) = unroutable else {
            return Ok(match unroutable {
                Unroutable::Drop => Unroutable::Drop,
                _ => Unroutable::Reject,
            });
        };
        let cycle = || ExchangeError::Cycle {
            exchange: name.clone(),
            to: alternate.clone(),
        };
        if alternate == name {
            return Err(cycle());
        }
        let (id, _) = self.exchange_named(alternate)?;
        match exchange.is_some_and(|exchange| self.exchanges.would_lead_back(exchange, id)) {
            true => Err(cycle()),
            false => Ok(Unroutable::Alternate(ExchangeId(id))),
        }
    }

    pub(super) fn decide_create_exchange(
        &self,
        draft: &mut Draft,
        create: &CreateExchange,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.exchanges_rest_on());
        let CreateExchange {
            name,
            kind,
            unroutable,
            notes,
        } = create;
        check_notes(notes)?;
        if let Some((id, state)) = self.exchanges.named(name) {
            let conflict = |what| {
                let exchange = name.clone();
                Err(ExchangeError::Conflict { exchange, what }.into())
            };
            let description = self.describe_exchange(id, state);
            if state.kind != *kind {
                return conflict("kind");
            }
            if description.unroutable != *unroutable {
                return conflict("rule for messages that it cannot route");
            }
            draft.level = Level::Process;
            return Ok(Reply::Exchange(Box::new(CreatedExchange {
                existed: true,
                description,
            })));
        }
        let stored = self.checked_unroutable(name, None, unroutable)?;
        let full = |what, max: u32| {
            let max = u64::from(max);
            Err(Rejection::ShardFull { what, max })
        };
        if self.exchanges.by_id.len() >= self.limits.exchanges_max as usize {
            return full("exchanges", self.limits.exchanges_max);
        }
        self.check_binding_room(0, notes.bytes())?;
        let Some(id) = self.exchanges.made.checked_add(1) else {
            return full("exchanges ever made", u32::MAX);
        };
        let created = Effect::ExchangeCreated {
            exchange: ExchangeId(id),
            name: name.clone(),
            kind: *kind,
            unroutable: stored,
            at: now.wall,
        };
        draft.add(created, self.administration_level());
        let notes = Arc::new(notes.clone());
        if !notes.is_empty() {
            let noted = Effect::ExchangeNoted {
                exchange: ExchangeId(id),
                notes: notes.clone(),
            };
            draft.add(noted, self.administration_level());
        }
        Ok(Reply::Exchange(Box::new(CreatedExchange {
            existed: false,
            description: ExchangeDescription {
                id: ExchangeId(id),
                name: name.clone(),
                kind: *kind,
                unroutable: unroutable.clone(),
                created: now.wall,
                changed: now.wall,
                bindings: 0,
                counts: ExchangeCounts::default(),
                notes,
            },
        })))
    }

    pub(super) fn decide_update_exchange(
        &self,
        draft: &mut Draft,
        update: &UpdateExchange,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.exchanges_rest_on());
        let UpdateExchange {
            exchange: name,
            unroutable,
            notes,
        } = update;
        let (id, state) = self.exchange_named(name)?;
        let unroutable = match unroutable {
            Some(unroutable) => self.checked_unroutable(name, Some(id), unroutable)?,
            None => state.unroutable,
        };
        if unroutable != state.unroutable {
            let changed = Effect::ExchangeChanged {
                exchange: ExchangeId(id),
                unroutable,
                at: now.wall,
            };
            draft.add(changed, self.administration_level());
        }
        if let Some(notes) = notes
            && *notes != *state.notes
        {
            check_notes(notes)?;
            self.check_binding_room(state.notes.bytes(), notes.bytes())?;
            let noted = Effect::ExchangeNoted {
                exchange: ExchangeId(id),
                notes: Arc::new(notes.clone()),
            };
            draft.add(noted, self.administration_level());
        }
        Ok(Reply::Done)
    }

    pub(super) fn decide_delete_exchange(
        &self,
        draft: &mut Draft,
        delete: &DeleteExchange,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.exchanges_rest_on());
        let DeleteExchange {
            exchange: name,
            force,
        } = delete;
        let (id, state) = self.exchange_named(name)?;
        let mut users = state.from.keys().chain(&state.alternate_of);
        if !force && let Some(user) = users.next() {
            return Err(ExchangeError::Used {
                exchange: name.clone(),
                by: self
                    .names_of(&[ExchangeId(*user)])
                    .pop()
                    .unwrap_or(name.clone()),
            }
            .into());
        }
        let exchange = ExchangeId(id);
        draft.add(
            Effect::ExchangeDeleted { exchange },
            self.administration_level(),
        );
        Ok(Reply::Done)
    }

    pub(super) fn decide_bind(&self, draft: &mut Draft, bind: &Bind) -> Result<Reply, Rejection> {
        draft.rest_on(self.exchanges_rest_on());
        let Bind {
            exchange: name,
            to,
            pattern,
            options,
            keep,
        } = bind;
        let (id, state) = self.exchange_named(name)?;
        if pattern.kind() != state.kind {
            return Err(ExchangeError::Pattern {
                exchange: name.clone(),
                kind: state.kind.name(),
                pattern: pattern.to_string(),
            }
            .into());
        }
        if let Some(crate::KeyFrom::Header(header)) = &options.key_from {
            let (len, max) = (header.len(), crate::KeyFrom::HEADER_BYTES_MAX);
            if !(1..=max).contains(&len) {
                return Err(ExchangeError::KeyHeader { len, max }.into());
            }
        }
        if let Some(topic) = &options.envelope {
            let (len, max) = (topic.len(), BindingOptions::ENVELOPE_BYTES_MAX);
            if !(1..=max).contains(&len) {
                return Err(ExchangeError::EnvelopeTopic { len, max }.into());
            }
        }
        let stored_to = self.target_of(to)?;
        if let (BindTo::Exchange(_), Some(what)) = (to, options.only_to_queue()) {
            return Err(ExchangeError::OnlyToQueue { what }.into());
        }
        let before = state.by_identity.get(&(stored_to, pattern.clone()));
        let before = before.map(|&row| &self.exchanges.bindings[row]);
        if let Some(before) = before
            && (*keep || before.binding.options == *options)
        {
            draft.level = Level::Process;
            return Ok(Reply::Bound(Bound {
                binding: before.number,
                existed: true,
                changed: false,
            }));
        }
        let binding = Binding {
            to: stored_to,
            pattern: pattern.clone(),
            options: options.clone(),
        };
        let bytes_before = before.map_or(0, |before| before.binding.bytes());
        self.check_binding_room(bytes_before, binding.bytes())?;
        let number = match before {
            Some(before) => before.number,
            None => self.next_binding(name, id, state, to, stored_to)?,
        };
        let bound = Effect::Bound {
            exchange: ExchangeId(id),
            number,
            binding: Arc::new(binding),
        };
        draft.add(bound, self.administration_level());
        Ok(Reply::Bound(Bound {
            binding: number,
            existed: before.is_some(),
            changed: true,
        }))
    }

    /// The number of a new binding, if there may be one more.
    fn next_binding(
        &self,
        name: &ExchangeName,
        id: u32,
        state: &ExchangeState,
        to: &BindTo,
        stored_to: BindTo<QueueId, ExchangeId>,
    ) -> Result<u32, Rejection> {
        let exchanges = &self.exchanges;
        let full = |what, max: u64| Err(Rejection::ShardFull { what, max });
        let max = u64::from(self.limits.bindings_max);
        if exchanges.bindings.len() as u64 >= max {
            return full("bindings", max);
        }
        if let (BindTo::Exchange(target), BindTo::Exchange(ExchangeId(target_id))) = (to, stored_to)
        {
            if exchanges.would_lead_back(id, target_id) {
                return Err(ExchangeError::Cycle {
                    exchange: name.clone(),
                    to: target.clone(),
                }
                .into());
            }
            if !state.exits.contains_key(&target_id) && exchanges.links >= LINKS_MAX {
                return full("exchanges that lead to others", LINKS_MAX);
            }
        }
        match state.made.checked_add(1) {
            Some(number) => Ok(number),
            None => full("bindings ever made of an exchange", u64::from(u32::MAX)),
        }
    }

    fn check_binding_room(&self, before: u64, after: u64) -> Result<(), Rejection> {
        let max = self.limits.binding_bytes_max;
        let bytes = self.exchanges.bytes + self.exchanges.note_bytes - before + after;
        match after > before && bytes > max {
            true => Err(Rejection::ShardFull {
                what: "bytes of bindings",
                max,
            }),
            false => Ok(()),
        }
    }

    pub(super) fn decide_unbind(
        &self,
        draft: &mut Draft,
        unbind: &Unbind,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.exchanges_rest_on());
        let Unbind {
            exchange: name,
            to,
            pattern,
        } = unbind;
        let (id, state) = self.exchange_named(name)?;
        let to = self.target_of(to)?;
        let found = state.by_identity.get(&(to, pattern.clone()));
        if let Some(&row) = found {
            let unbound = Effect::Unbound {
                exchange: ExchangeId(id),
                number: self.exchanges.bindings[row].number,
            };
            draft.add(unbound, self.administration_level());
        } else {
            draft.level = Level::Process;
        }
        Ok(Reply::Unbound(found.is_some()))
    }

    /// A place by its number, if it is there.
    fn target_of(&self, to: &BindTo) -> Result<BindTo<QueueId, ExchangeId>, Rejection> {
        Ok(match to {
            BindTo::Queue(queue) => BindTo::Queue(self.queues[self.named_queue(queue)?].id),
            BindTo::Exchange(exchange) => {
                let (id, _) = self.exchange_named(exchange)?;
                BindTo::Exchange(ExchangeId(id))
            }
        })
    }

    /// The queue that a binding leads to by number.
    fn queue_name_of(&self, queue: QueueId) -> Option<QueueName> {
        let index = self.queue_index(queue)?;
        Some(self.queues[index].name.clone())
    }
}
