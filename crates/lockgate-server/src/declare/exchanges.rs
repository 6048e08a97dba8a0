//! Creates and changes the exchanges that a file declares, and makes their bindings.
//!
//! Exchanges are made first, then their rules are set, which may name other exchanges, then their bindings are made. So the order in
//! the file does not matter, and after a crash in between the next start continues.

use std::collections::{BTreeMap, BTreeSet};

use lockgate_core::{ExchangeName, QueueName};
use lockgate_engine::{Engine, EngineError};
use lockgate_machine::{
    Bind, BindTo, BindingOptions, CreateExchange, DescribeExchange, ExchangeDescription,
    ExchangeError, ExchangeKind, Pattern, Rejection, TypedCommand, Unroutable, UpdateExchange,
};

use super::{DeclareError, Declared, DeclaredQueue};

/// An exchange that should exist, with at least these bindings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredExchange {
    pub name: ExchangeName,
    pub kind: ExchangeKind,
    /// What becomes of messages that it cannot route. `None`: it stays as it is, and a new exchange rejects them.
    pub unroutable: Option<Unroutable>,
    pub bindings: Vec<DeclaredBinding>,
}

/// A binding that should exist, with these options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredBinding {
    pub to: BindTo,
    pub pattern: Pattern,
    pub options: BindingOptions,
}

/// What is wrong with the declaration of an exchange.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct ExchangeProblem {
    /// The index of the exchange, from 0.
    pub exchange: usize,
    pub part: ExchangePart,
    /// What is wrong, and what to do.
    pub what: String,
}

/// A part of the declaration of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangePart {
    /// The name, or the exchange as a whole.
    Name,
    /// The rule for messages that it cannot route.
    Unroutable,
    /// The binding of this index, from 0.
    Binding(usize),
}

/// What a declaration names that is not declared itself: it must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeReference {
    /// The index of the exchange, from 0.
    pub exchange: usize,
    pub part: ExchangePart,
    pub to: BindTo,
}

impl ExchangeReference {
    /// The problem if it is not there.
    #[must_use]
    pub fn missing(self) -> ExchangeProblem {
        let Self { exchange, part, to } = self;
        let what = format!("{to} is neither declared nor there: declare it too");
        ExchangeProblem {
            exchange,
            part,
            what,
        }
    }
}

/// What is wrong with these declarations by themselves, whatever there is. What they name and do not declare may be there.
#[must_use]
pub fn check_exchanges(exchanges: &[DeclaredExchange]) -> Vec<ExchangeProblem> {
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for (at, exchange) in exchanges.iter().enumerate() {
        let mut problem = |part, what: String| {
            problems.push(ExchangeProblem {
                exchange: at,
                part,
                what,
            });
        };
        if !names.insert(&exchange.name) {
            let what = "it is declared twice; join the two".to_owned();
            problem(ExchangePart::Name, what);
        }
        let mut bindings = BTreeSet::new();
        for (number, binding) in exchange.bindings.iter().enumerate() {
            let part = ExchangePart::Binding(number);
            if binding.pattern.kind() != exchange.kind {
                let refused = ExchangeError::Pattern {
                    exchange: exchange.name.clone(),
                    kind: exchange.kind.name(),
                    pattern: binding.pattern.to_string(),
                };
                problem(part, refused.to_string());
            }
            if !bindings.insert((&binding.to, &binding.pattern)) {
                problem(
                    part,
                    "there is such a binding above; join the two".to_owned(),
                );
            }
            if let (BindTo::Exchange(_), Some(what)) =
                (&binding.to, binding.options.only_to_queue())
            {
                problem(part, ExchangeError::OnlyToQueue { what }.to_string());
            }
        }
    }
    if problems.is_empty() {
        problems = cycles(exchanges);
    }
    problems
}

/// To which others an exchange leads, each with the part that says so.
fn leads_to(exchange: &DeclaredExchange) -> impl Iterator<Item = (ExchangePart, &ExchangeName)> {
    let alternate = match &exchange.unroutable {
        Some(Unroutable::Alternate(to)) => Some((ExchangePart::Unroutable, to)),
        _ => None,
    };
    let bindings = exchange.bindings.iter().enumerate();
    let bindings = bindings.filter_map(|(number, binding)| match &binding.to {
        BindTo::Exchange(to) => Some((ExchangePart::Binding(number), to)),
        BindTo::Queue(_) => None,
    });
    alternate.into_iter().chain(bindings)
}

/// Where the declared exchanges lead back to themselves. Exchanges to which none leads are taken away until none is left, or
/// those are that lead in a circle or hang behind one.
fn cycles(exchanges: &[DeclaredExchange]) -> Vec<ExchangeProblem> {
    let places: BTreeMap<_, _> = exchanges.iter().map(|it| &it.name).zip(0..).collect();
    let mut led_to = vec![0_usize; exchanges.len()];
    for (_, to) in exchanges.iter().flat_map(leads_to) {
        if let Some(&place) = places.get(to) {
            led_to[place] += 1;
        }
    }
    let mut free: Vec<usize> = (0..exchanges.len()).filter(|&it| led_to[it] == 0).collect();
    while let Some(place) = free.pop() {
        for (_, to) in leads_to(&exchanges[place]) {
            if let Some(&to) = places.get(to) {
                led_to[to] -= 1;
                if led_to[to] == 0 {
                    free.push(to);
                }
            }
        }
    }
    let is_left = |place: usize| led_to[place] > 0;
    let left = exchanges.iter().enumerate().filter(|(at, _)| is_left(*at));
    let problems = left.flat_map(|(at, exchange)| {
        let back =
            leads_to(exchange).filter(|(_, to)| places.get(to).is_some_and(|&it| is_left(it)));
        back.map(move |(part, to)| ExchangeProblem {
            exchange: at,
            part,
            what: format!(
                "exchanges that are declared lead in a circle, by {to} too: leave one out"
            ),
        })
    });
    problems.collect()
}

/// What the declarations name and do not declare.
#[must_use]
pub fn exchange_references(
    queues: &[DeclaredQueue],
    exchanges: &[DeclaredExchange],
) -> Vec<ExchangeReference> {
    let declared: BTreeSet<_> = exchanges.iter().map(|it| &it.name).collect();
    let queues: BTreeSet<_> = queues.iter().map(|it| &*it.name).collect();
    let mut references = Vec::new();
    for (at, exchange) in exchanges.iter().enumerate() {
        let to_queues = exchange.bindings.iter().enumerate();
        let to_queues = to_queues.flat_map(|(number, binding)| {
            let target = match &binding.to {
                BindTo::Queue(queue) => Some(queue),
                BindTo::Exchange(_) => None,
            };
            let named = target.into_iter().chain(&binding.options.overflow);
            named.map(move |queue| (ExchangePart::Binding(number), queue))
        });
        let to_queues = to_queues.filter(|(_, queue)| !queues.contains(queue.as_str()));
        let to_queues = to_queues.map(|(part, queue)| (part, BindTo::Queue(queue.clone())));
        let to_exchanges = leads_to(exchange).filter(|(_, to)| !declared.contains(to));
        let to_exchanges = to_exchanges.map(|(part, to)| (part, BindTo::Exchange(to.clone())));
        references.extend(
            to_exchanges
                .chain(to_queues)
                .map(|(part, to)| ExchangeReference {
                    exchange: at,
                    part,
                    to,
                }),
        );
    }
    references
}

/// Whether the exchanges can be declared once these queues are there. Changes nothing.
///
/// # Errors
/// [`DeclareError::Exchanges`] if they name what is neither declared nor there, or an exchange is there with another kind.
pub async fn check_references(
    engine: &Engine,
    queues: &[DeclaredQueue],
    exchanges: &[DeclaredExchange],
) -> Result<(), DeclareError> {
    let mut problems = check_exchanges(exchanges);
    for reference in exchange_references(queues, exchanges) {
        let is_there = match &reference.to {
            BindTo::Queue(queue) => is_queue(engine, queue),
            BindTo::Exchange(name) => described(engine, name).await?.is_some(),
        };
        if !is_there {
            problems.push(reference.missing());
        }
    }
    for (at, exchange) in exchanges.iter().enumerate() {
        let is = described(engine, &exchange.name).await?;
        if let Some(is) = is.filter(|is| is.kind != exchange.kind) {
            problems.push(ExchangeProblem {
                exchange: at,
                part: ExchangePart::Name,
                what: other_kind(is.kind.name(), exchange.kind.name()),
            });
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(DeclareError::Exchanges(problems)),
    }
}

/// What to say of an exchange that is there with another kind.
#[must_use]
pub fn other_kind(is: &str, declared: &str) -> String {
    format!(
        "there is an exchange of this name of kind {is}, the file declares it {declared}, and that is fixed when an exchange is \
         made: choose another name, or delete the exchange first"
    )
}

fn is_queue(engine: &Engine, queue: &QueueName) -> bool {
    engine.directory().get(queue).is_some()
}

async fn described(
    engine: &Engine,
    name: &ExchangeName,
) -> Result<Option<ExchangeDescription>, DeclareError> {
    let exchange = name.clone();
    match engine.query(DescribeExchange { exchange }).await {
        Ok(description) => Ok(Some(description)),
        Err(EngineError::Rejected(Rejection::Exchange(ExchangeError::NotFound { .. }))) => Ok(None),
        Err(source) => Err(failed(name, source)),
    }
}

fn failed(name: &ExchangeName, source: EngineError) -> DeclareError {
    DeclareError::Exchange {
        exchange: name.to_string(),
        source,
    }
}

/// Creates the declared exchanges that are missing, changes the rules of those that are there, and makes or changes bindings.
/// What a declaration does not name stays as it is, other bindings and exchanges too. The queues must be there.
///
/// Call this before a server is bound.
///
/// # Errors
/// [`DeclareError::Exchanges`] if any declaration is wrong; then nothing is done, but for a circle through exchanges that are not
/// declared, and for bounds of the shard: what was done before these stays.
///
/// # Cancellation
/// Dropping the future may leave some of the work undone; declaring again completes it.
pub async fn declare_exchanges(
    engine: &Engine,
    exchanges: &[DeclaredExchange],
) -> Result<Vec<Declared>, DeclareError> {
    check_references(engine, &[], exchanges).await?;
    let mut outcomes = Vec::with_capacity(exchanges.len());
    let mut rules = Vec::with_capacity(exchanges.len());
    for (at, exchange) in exchanges.iter().enumerate() {
        let at = (at, ExchangePart::Name);
        let is = described(engine, &exchange.name).await?;
        outcomes.push(match &is {
            Some(_) => Declared::Unchanged,
            None => Declared::Created,
        });
        rules.push(is.as_ref().map(|is| is.unroutable.clone()));
        if is.is_none() {
            let create = CreateExchange {
                name: exchange.name.clone(),
                kind: exchange.kind,
                unroutable: Unroutable::Reject,
                notes: Default::default(),
            };
            submit(engine, exchange, at, create).await?;
        }
    }
    let mut changed = |at: usize| {
        if outcomes[at] == Declared::Unchanged {
            outcomes[at] = Declared::Changed;
        }
    };
    for (at, (exchange, before)) in exchanges.iter().zip(rules).enumerate() {
        let before = before.unwrap_or(Unroutable::Reject);
        if let Some(unroutable) = exchange.unroutable.clone().filter(|it| *it != before) {
            let update = UpdateExchange {
                exchange: exchange.name.clone(),
                unroutable: Some(unroutable),
                notes: None,
            };
            submit(engine, exchange, (at, ExchangePart::Unroutable), update).await?;
            changed(at);
        }
        for (number, binding) in exchange.bindings.iter().enumerate() {
            let bind = Bind {
                exchange: exchange.name.clone(),
                to: binding.to.clone(),
                pattern: binding.pattern.clone(),
                options: binding.options.clone(),
                keep: false,
            };
            let part = ExchangePart::Binding(number);
            if submit(engine, exchange, (at, part), bind).await?.changed {
                changed(at);
            }
        }
    }
    Ok(outcomes)
}

async fn submit<C: TypedCommand>(
    engine: &Engine,
    exchange: &DeclaredExchange,
    (at, part): (usize, ExchangePart),
    command: C,
) -> Result<C::Reply, DeclareError> {
    engine.submit(command).await.map_err(|error| match error {
        EngineError::Rejected(rejection) => DeclareError::Exchanges(vec![ExchangeProblem {
            exchange: at,
            part,
            what: rejection.to_string(),
        }]),
        error => failed(&exchange.name, error),
    })
}
