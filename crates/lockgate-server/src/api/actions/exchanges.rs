//! Operations on exchanges: make them, bind them to queues, publish to them, and explain where messages go.

use std::{collections::BTreeMap, fmt::Display, sync::Arc};

use lockgate_core::{ExchangeName, QueueName, RoutingKey};
use lockgate_engine::{Batch, EngineError};
use lockgate_machine::{
    self as machine, BindTo, BindingDescription, BindingOptions, BindingsPage, DescribeExchange,
    ExchangeDescription, ExchangeError, ExchangeKind, ExchangeNotes, ExchangesPage, Filter,
    FilterScope, HeaderPair, HeadersMatch, KeyFrom, Pattern, Publication, Publish, Query,
    Rejection, StepOutcome, TopicPattern, UpdateExchange,
};
use serde_json::value::RawValue;

use super::{
    check_len, invalid_page, leases::check_entries, messages::BATCH_MAX, messages::headers,
    page_after, page_limit, page_start, unanswered,
};
use crate::{
    api::{
        Code, Problem, Request, Service,
        input::entry,
        shapes::{
            Bind, BindToWord, BindingView, Bindings, Bound, ChangeExchange, CreateExchange,
            DeleteExchange, ExchangeCounts, ExchangeKindWord, ExchangeView, Exchanges,
            ExplainRoute, FilterScopeWord, HeadersMatchInput, HeadersMatched, Instant, KeyFromWord,
            ListBindings, ListExchanges, MatchWord, OutgoingMessage, Policy, PolicyText,
            PublishMessages, PublishResult, PublishResults, PublishedMessage, QueueCopy,
            RouteExplanation, RouteStep, StepWord, Unbind, Unbound, UnroutableWord, WantedValues,
        },
    },
    auth::Verb,
    few::Raw,
};

/// Copies that the result for a message names: a message may have 10,000, and a request 1000 messages.
const COPIES_SHOWN: usize = 10;

/// The texts of bindings in one answer, in bytes: a filter may have 256 KiB.
const BINDINGS_BYTES_MAX: usize = 4 << 20;

impl Service {
    pub(in crate::api) async fn list_exchanges(
        &self,
        request: &Request<'_>,
        input: ListExchanges,
    ) -> Result<Exchanges, Problem> {
        let after = match &input.page {
            None => None,
            Some(page) => Some(ExchangeName::new(&page_start(page)?).map_err(|_| invalid_page())?),
        };
        let mut list = machine::ListExchanges {
            prefix: input.prefix.unwrap_or_default(),
            after,
            limit: page_limit(input.limit),
        };
        let limit = list.limit;
        loop {
            let ExchangesPage {
                mut exchanges,
                next,
            } = self.engine.query(list.clone()).await?;
            exchanges.retain(|exchange| request.may_with_exchange(Verb::Read, &exchange.name));
            let is_cut = exchanges.len() > limit;
            exchanges.truncate(limit);
            // A page that goes on ends with an exchange that the caller may read: its token tells the name.
            let last = exchanges.last().map(|exchange| exchange.name.clone());
            match next {
                // Those that the caller may not read are passed over by many at a time.
                Some(next) if last.is_none() => {
                    (list.after, list.limit) = (Some(next), Query::LIMIT_MAX);
                }
                next => {
                    let next = last.filter(|_| is_cut || next.is_some());
                    return Ok(Exchanges {
                        exchanges: exchanges.into_iter().map(view).collect(),
                        next_page: next.map(|last| page_after(last.as_str())),
                    });
                }
            }
        }
    }

    /// The exchange, and whether it was there.
    pub(in crate::api) async fn create_exchange(
        &self,
        request: &Request<'_>,
        input: CreateExchange,
    ) -> Result<(ExchangeView, bool), Problem> {
        let create = machine::CreateExchange {
            name: exchange_of(request, Verb::Manage, "name", &input.name)?,
            kind: input.kind.into(),
            unroutable: unroutable_of(request, input.unroutable)?,
            notes: ExchangeNotes::default(),
        };
        let created = self.engine.submit(create).await?;
        Ok((view(created.description), created.existed))
    }

    pub(in crate::api) async fn get_exchange(
        &self,
        request: &Request<'_>,
        exchange: &str,
    ) -> Result<ExchangeView, Problem> {
        let exchange = exchange_of(request, Verb::Read, "exchange", exchange)?;
        Ok(view(
            self.engine.query(DescribeExchange { exchange }).await?,
        ))
    }

    pub(in crate::api) async fn change_exchange(
        &self,
        request: &Request<'_>,
        exchange: &str,
        input: ChangeExchange,
    ) -> Result<ExchangeView, Problem> {
        let exchange = exchange_of(request, Verb::Manage, "exchange", exchange)?;
        let update = UpdateExchange {
            exchange: exchange.clone(),
            unroutable: Some(unroutable_of(request, input.unroutable)?),
            notes: None,
        };
        self.engine.submit(update).await?;
        Ok(view(
            self.engine.query(DescribeExchange { exchange }).await?,
        ))
    }

    pub(in crate::api) async fn delete_exchange(
        &self,
        request: &Request<'_>,
        exchange: &str,
        input: &DeleteExchange,
    ) -> Result<(), Problem> {
        let delete = machine::DeleteExchange {
            exchange: exchange_of(request, Verb::Purge, "exchange", exchange)?,
            force: input.force,
        };
        Ok(self.engine.submit(delete).await?)
    }

    pub(in crate::api) async fn list_bindings(
        &self,
        request: &Request<'_>,
        exchange: &str,
        input: ListBindings,
    ) -> Result<Bindings, Problem> {
        let exchange = exchange_of(request, Verb::Read, "exchange", exchange)?;
        let after = match &input.page {
            None => None,
            Some(page) => Some(page_start(page)?.parse().map_err(|_| invalid_page())?),
        };
        let list = machine::ListBindings {
            exchange,
            after,
            limit: page_limit(input.limit),
        };
        let BindingsPage { mut bindings, next } = self.engine.query(list).await?;
        let fits = fitting(&bindings);
        let next = match bindings.len() > fits {
            true => bindings[..fits].last().map(|binding| binding.number),
            false => next,
        };
        bindings.truncate(fits);
        Ok(Bindings {
            bindings: bindings.into_iter().map(binding_view).collect(),
            next_page: next.map(|last| page_after(&last.to_string())),
        })
    }

    pub(in crate::api) async fn bind(
        &self,
        request: &Request<'_>,
        exchange: &str,
        input: Bind<'_>,
    ) -> Result<Bound, Problem> {
        let exchange = exchange_of(request, Verb::Manage, "exchange", exchange)?;
        let to = match &input.to {
            BindToWord::Queue(queue) => {
                let queue = self.queue(request, Verb::Send, queue);
                BindTo::Queue(
                    queue
                        .map_err(|problem| problem.at("to.queue"))?
                        .name
                        .clone(),
                )
            }
            BindToWord::Exchange(to) => {
                BindTo::Exchange(exchange_of(request, Verb::Send, "to.exchange", to)?)
            }
        };
        let overflow = match &input.overflow {
            None => None,
            Some(queue) => {
                let queue = self.queue(request, Verb::Send, queue);
                let queue = queue.map_err(|problem| problem.at("overflow"))?;
                Some(queue.name.clone())
            }
        };
        let filter = match (input.filter, input.filter_scope) {
            (Some(policy), scope) => Some(filter_of(policy, scope.unwrap_or_default())?),
            (None, None) => None,
            (None, Some(_)) => {
                let what = "it says what a filter looks at, and there is no filter";
                return Err(Problem::invalid("filter_scope", what));
            }
        };
        let bind = machine::Bind {
            exchange,
            to,
            pattern: pattern_of(input.routing_key, input.topic, input.headers)?,
            options: BindingOptions {
                filter,
                key_from: input.key_from.map(|from| match from {
                    KeyFromWord::RoutingKey => KeyFrom::RoutingKey,
                    KeyFromWord::Header(name) => KeyFrom::Header(name.into()),
                }),
                skip_when_full: input.skip_when_full,
                envelope: input.envelope.map(Into::into),
                overflow,
            },
            keep: false,
        };
        let machine::Bound {
            binding,
            existed,
            changed,
        } = self.engine.submit(bind).await?;
        Ok(Bound {
            number: binding,
            existed,
            changed,
        })
    }

    pub(in crate::api) async fn unbind(
        &self,
        request: &Request<'_>,
        exchange: &str,
        input: Unbind,
    ) -> Result<Unbound, Problem> {
        let exchange = exchange_of(request, Verb::Manage, "exchange", exchange)?;
        let unbind = machine::Unbind {
            exchange: exchange.clone(),
            to: match &input.to {
                BindToWord::Queue(name) => BindTo::Queue(named("to.queue", QueueName::new(name))?),
                BindToWord::Exchange(name) => {
                    BindTo::Exchange(named("to.exchange", ExchangeName::new(name))?)
                }
            },
            pattern: pattern_of(input.routing_key, input.topic, input.headers)?,
        };
        match self.engine.submit(unbind).await {
            Ok(existed) => Ok(Unbound { existed }),
            // Whoever manages the exchange need not be able to read where its bindings lead, and must not learn here what
            // is there: nothing is bound to what is not.
            Err(EngineError::Rejected(Rejection::QueueNotFound { .. })) => {
                Ok(Unbound { existed: false })
            }
            Err(EngineError::Rejected(Rejection::Exchange(ExchangeError::NotFound {
                exchange: missing,
            }))) if missing != exchange => Ok(Unbound { existed: false }),
            Err(error) => Err(error.into()),
        }
    }

    pub(in crate::api) async fn publish_messages(
        &self,
        request: &Request<'_>,
        exchange: &str,
        input: PublishMessages<'_>,
    ) -> Result<PublishResults, Problem> {
        let exchange = exchange_of(request, Verb::Send, "exchange", exchange)?;
        check_len("messages", input.messages.len(), BATCH_MAX)?;
        check_entries("messages", &input.messages)?;
        let mut results = Vec::with_capacity(input.messages.len());
        let mut commands = Batch::with_capacity(input.messages.len());
        for (at, publish) in input.messages.into_entries(entry).enumerate() {
            let within = |problem: Problem| problem.within(&format!("messages[{at}]"));
            let publish = publish.map_err(within)?;
            match self.to_publish(&exchange, &publish.routing_key, publish.message) {
                Ok(command) => {
                    commands.push(command);
                    results.push(None);
                }
                Err(problem) => results.push(Some(within(problem))),
            }
        }
        let mut replies = if commands.is_empty() {
            Vec::new()
        } else {
            self.engine.submit_all(commands).await?
        }
        .into_iter();
        let mut result = |(at, refused): (usize, Option<Problem>)| {
            let reply = match refused {
                Some(problem) => Err(problem),
                None => match replies.next() {
                    Some(Ok(publication)) => Ok(published(request, publication)),
                    Some(Err(rejection)) => {
                        let problem = self.publish_refused(request, rejection);
                        Err(problem.within(&format!("messages[{at}]")))
                    }
                    None => Err(unanswered()),
                },
            };
            match reply {
                Ok(published) => PublishResult::Published(published),
                Err(problem) => PublishResult::Refused {
                    problem: Box::new(problem),
                },
            }
        };
        Ok(PublishResults {
            results: results.into_iter().enumerate().map(&mut result).collect(),
        })
    }

    pub(in crate::api) async fn explain_route(
        &self,
        request: &Request<'_>,
        exchange: &str,
        input: ExplainRoute,
    ) -> Result<RouteExplanation, Problem> {
        let given = input.headers.all();
        let explain = machine::ExplainRoute {
            exchange: exchange_of(request, Verb::Read, "exchange", exchange)?,
            routing_key: named("routing_key", RoutingKey::new(&input.routing_key))?,
            headers: headers(given.map_err(|error| Problem::invalid("headers", error))?)?,
            body: match input.body {
                Some(body) => Some(input.body_encoding.decode("body", body)?),
                None => None,
            },
            limit: page_limit(input.limit),
        };
        let machine::RouteExplanation {
            bindings: mut steps,
            more,
            queues,
            alternates,
            unroutable,
        } = self.engine.query(explain).await?;
        let all = steps.len();
        steps.truncate(fitting(steps.iter().map(|step| &step.binding)));
        Ok(RouteExplanation {
            more: more + (all - steps.len()) as u64,
            bindings: steps.into_iter().map(step_view).collect(),
            queues,
            alternates: alternates.iter().map(ToString::to_string).collect(),
            unroutable: unroutable.map(Into::into),
        })
    }

    pub(super) fn to_publish(
        &self,
        exchange: &ExchangeName,
        routing_key: &str,
        message: OutgoingMessage,
    ) -> Result<Publish, Problem> {
        let routing_key = named("routing_key", RoutingKey::new(routing_key))?;
        let message = self.message_of(message, false);
        Ok(Publish {
            exchange: exchange.clone(),
            routing_key,
            message: message.map_err(|problem| problem.within("message"))?,
            subject: None,
        })
    }

    /// The refusal of a publish, without what it says of a queue that the caller may not read.
    pub(super) fn publish_refused(&self, request: &Request<'_>, rejection: Rejection) -> Problem {
        match rejection {
            Rejection::PublishRefused { queue, source, .. }
                if !request.may(Verb::Read, &queue) && !request.may(Verb::Send, &queue) =>
            {
                let code = Problem::from(*source).code;
                Problem::new(
                    code,
                    "a queue that the exchange leads to refused its copy, so no queue has the message",
                )
            }
            rejection => rejection.into(),
        }
    }
}

/// The exchange of that name, if the caller may do `verb` with it, whether or not it is there.
pub(super) fn exchange_of(
    request: &Request<'_>,
    verb: Verb,
    field: &str,
    name: &str,
) -> Result<ExchangeName, Problem> {
    let name = named(field, ExchangeName::new(name))?;
    if request.may_with_exchange(verb, &name) {
        return Ok(name);
    }
    Err(request.denied(verb, format_args!("exchange {name}")))
}

fn named<T>(field: &str, name: Result<T, impl Display>) -> Result<T, Problem> {
    name.map_err(|error| Problem::invalid(field, error))
}

/// Messages go to an alternate, so it takes the same right as to publish there.
fn unroutable_of(
    request: &Request<'_>,
    word: UnroutableWord,
) -> Result<machine::Unroutable, Problem> {
    Ok(match word {
        UnroutableWord::Reject => machine::Unroutable::Reject,
        UnroutableWord::Drop => machine::Unroutable::Drop,
        UnroutableWord::Alternate(name) => machine::Unroutable::Alternate(exchange_of(
            request,
            Verb::Send,
            "unroutable.alternate",
            &name,
        )?),
    })
}

/// The pattern of a binding: at most one of the three is there; none of them is the pattern of a fanout.
pub(in crate::api) fn pattern_of(
    routing_key: Option<String>,
    topic: Option<String>,
    headers: Option<HeadersMatchInput>,
) -> Result<Pattern, Problem> {
    Ok(match (routing_key, topic, headers) {
        (None, None, None) => Pattern::Everything,
        (Some(key), None, None) => {
            Pattern::RoutingKey(named("routing_key", RoutingKey::new(&key))?)
        }
        (None, Some(topic), None) => Pattern::Topic(named("topic", TopicPattern::new(&topic))?),
        (None, None, Some(headers)) => headers_of(headers)?,
        (routing_key, ..) => {
            let field = if routing_key.is_some() {
                "routing_key"
            } else {
                "topic"
            };
            let what =
                "a binding has one of routing_key, topic and headers, as its exchange's kind says";
            return Err(Problem::invalid(field, what));
        }
    })
}

fn headers_of(input: HeadersMatchInput) -> Result<Pattern, Problem> {
    let given = named("headers.pairs", input.pairs.all())?;
    let pairs = given.into_iter().flat_map(|(name, values)| {
        let name: Arc<str> = name.into();
        let values = values.0.into_iter();
        values.map(move |value| HeaderPair {
            name: name.clone(),
            value: value.map(Into::into),
        })
    });
    let pairs = pairs.collect();
    let matched = match input.how {
        MatchWord::All => HeadersMatch::all(pairs),
        MatchWord::Any => HeadersMatch::any(pairs),
    };
    Ok(Pattern::Headers(Arc::new(named("headers.pairs", matched)?)))
}

pub(in crate::api) fn filter_of(
    policy: Policy<'_>,
    scope: FilterScopeWord,
) -> Result<Filter, Problem> {
    let Raw::Json(text) = policy.0 else {
        return Err(Problem::new(Code::MalformedRequest, "the body is no JSON"));
    };
    let scope = match scope {
        FilterScopeWord::Headers => FilterScope::Headers,
        FilterScopeWord::Body => FilterScope::Body,
    };
    named("filter", Filter::new(scope, text))
}

/// How many of the first bindings an answer has room for, one at least.
fn fitting<'a>(bindings: impl IntoIterator<Item = &'a BindingDescription>) -> usize {
    let mut bytes = 0;
    let fits = bindings
        .into_iter()
        .enumerate()
        .take_while(|(at, binding)| {
            let filter = binding.options.filter.as_ref();
            let pattern = match &binding.pattern {
                Pattern::Headers(matched) => {
                    let pairs = matched.pairs().iter();
                    let bytes = pairs.map(|pair| {
                        pair.name.len() + pair.value.as_ref().map_or(0, |value| value.len())
                    });
                    bytes.sum::<usize>()
                }
                // A routing key.
                _ => RoutingKey::MAX_LEN,
            };
            bytes += filter.map_or(0, |filter| filter.text().len()) + pattern;
            *at == 0 || bytes <= BINDINGS_BYTES_MAX
        });
    fits.count()
}

pub(super) fn published(request: &Request<'_>, publication: Publication) -> PublishedMessage {
    let Publication {
        copies,
        skipped,
        dropped,
        ..
    } = publication;
    let readable = copies.iter().take(COPIES_SHOWN);
    let readable = readable.filter(|copy| request.may(Verb::Read, &copy.queue));
    PublishedMessage {
        copies: copies.len() as u64,
        duplicates: copies.iter().filter(|copy| copy.sent.duplicate).count() as u64,
        skipped,
        dropped,
        queues: readable
            .map(|copy| QueueCopy {
                queue: copy.queue.to_string(),
                id: copy.sent.id.to_string(),
                sequence: copy.sent.sequence.0,
                duplicate: copy.sent.duplicate,
            })
            .collect(),
    }
}

fn view(exchange: ExchangeDescription) -> ExchangeView {
    let counts = exchange.counts;
    ExchangeView {
        name: exchange.name.to_string(),
        kind: exchange.kind.into(),
        unroutable: exchange.unroutable.into(),
        created_at: Instant(exchange.created),
        changed_at: Instant(exchange.changed),
        bindings: exchange.bindings,
        counts: ExchangeCounts {
            published: counts.published,
            copies: counts.copies,
            unroutable: counts.unroutable,
            dropped: counts.dropped,
            skipped: counts.skipped,
            refused: counts.refused,
        },
    }
}

fn binding_view(binding: BindingDescription) -> BindingView {
    let BindingOptions {
        filter,
        key_from,
        skip_when_full,
        envelope,
        overflow,
    } = binding.options;
    let mut view = BindingView {
        number: binding.number,
        to: match binding.to {
            BindTo::Queue(queue) => BindToWord::Queue(queue.to_string()),
            BindTo::Exchange(exchange) => BindToWord::Exchange(exchange.to_string()),
        },
        routing_key: None,
        topic: None,
        headers: None,
        filter_scope: filter.as_ref().map(|filter| match filter.scope() {
            FilterScope::Body => FilterScopeWord::Body,
            _ => FilterScopeWord::Headers,
        }),
        // A filter is JSON.
        filter: filter
            .and_then(|filter| RawValue::from_string(filter.text().to_owned()).ok())
            .map(PolicyText),
        key_from: key_from.map(|from| match from {
            KeyFrom::RoutingKey => KeyFromWord::RoutingKey,
            KeyFrom::Header(name) => KeyFromWord::Header(name.to_string()),
        }),
        skip_when_full,
        envelope: envelope.map(|topic| topic.to_string()),
        overflow: overflow.map(|queue| queue.to_string()),
    };
    match &binding.pattern {
        Pattern::RoutingKey(key) => view.routing_key = Some(key.to_string()),
        Pattern::Topic(topic) => view.topic = Some(topic.to_string()),
        Pattern::Headers(matched) => view.headers = Some(headers_view(matched)),
        _ => {}
    }
    view
}

fn headers_view(matched: &HeadersMatch) -> HeadersMatched {
    let mut pairs: BTreeMap<String, WantedValues> = BTreeMap::new();
    for HeaderPair { name, value } in matched.pairs() {
        let values = pairs.entry(name.to_string()).or_default();
        values.0.push(value.as_ref().map(ToString::to_string));
    }
    HeadersMatched {
        how: match matched.is_any() {
            true => MatchWord::Any,
            false => MatchWord::All,
        },
        pairs,
    }
}

fn step_view(step: machine::RouteStep) -> RouteStep {
    let (outcome, why) = match step.outcome {
        StepOutcome::Again => (StepWord::Again, None),
        StepOutcome::Filtered(why) => (StepWord::Filtered, Some(why)),
        _ => (StepWord::Routes, None),
    };
    RouteStep {
        exchange: step.exchange.map(|exchange| exchange.to_string()),
        binding: binding_view(step.binding),
        outcome,
        why,
    }
}

impl From<ExchangeKindWord> for ExchangeKind {
    fn from(word: ExchangeKindWord) -> Self {
        match word {
            ExchangeKindWord::Direct => Self::Direct,
            ExchangeKindWord::Topic => Self::Topic,
            ExchangeKindWord::Fanout => Self::Fanout,
            ExchangeKindWord::Headers => Self::Headers,
        }
    }
}

impl From<ExchangeKind> for ExchangeKindWord {
    fn from(kind: ExchangeKind) -> Self {
        match kind {
            ExchangeKind::Topic => Self::Topic,
            ExchangeKind::Fanout => Self::Fanout,
            ExchangeKind::Headers => Self::Headers,
            _ => Self::Direct,
        }
    }
}

impl From<machine::Unroutable> for UnroutableWord {
    fn from(unroutable: machine::Unroutable) -> Self {
        match unroutable {
            machine::Unroutable::Reject => Self::Reject,
            machine::Unroutable::Drop => Self::Drop,
            machine::Unroutable::Alternate(name) => Self::Alternate(name.to_string()),
        }
    }
}

impl From<ExchangeError> for Problem {
    fn from(error: ExchangeError) -> Self {
        let detail = error.to_string();
        let invalid = |field: &str| Self::new(Code::InvalidValue, detail.clone()).at(field);
        match error {
            ExchangeError::NotFound { .. } => Self::new(Code::ExchangeNotFound, detail),
            ExchangeError::Conflict { .. } => Self::new(Code::ExchangeExists, detail),
            ExchangeError::Cycle { .. } => Self::new(Code::ExchangeCycle, detail),
            ExchangeError::Used { .. } => Self::new(Code::ExchangeUsed, detail),
            ExchangeError::Pattern { .. } => Self::new(Code::PatternNotTaken, detail),
            ExchangeError::OnlyToQueue { what } => match what {
                "skip_when_full" | "envelope" | "overflow" => invalid(what),
                _ => invalid("key_from"),
            },
            ExchangeError::KeyHeader { .. } => invalid("key_from.header"),
            ExchangeError::EnvelopeTopic { .. } => invalid("envelope"),
            ExchangeError::EnvelopeText { .. } => invalid("message.body"),
            ExchangeError::Unroutable { .. } => Self::new(Code::Unroutable, detail),
            ExchangeError::Key { .. } => Self::new(Code::InvalidCopyKey, detail),
            ExchangeError::Producer => invalid("message.producer"),
            ExchangeError::TooMuch { .. } | ExchangeError::TooLarge { .. } => {
                Self::new(Code::RouteTooLarge, detail)
            }
            _ => Self::new(Code::InvalidValue, detail),
        }
    }
}
