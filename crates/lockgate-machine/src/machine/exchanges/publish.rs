//! Publishes messages: one command and one record, so all queues get their copy or none.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use lockgate_core::{
    ExchangeId, Key, Level, Message, MessageId, Now, QueueId, QueueName, Sequence,
};

use super::{ExchangeError, Route, STEPS_MAX};
use crate::{
    BindingOptions, Copied, Effect, Effects, ExchangeCounts, Payload, Publication, Publish,
    Published, Rejection, Sent,
    exchanges::{
        Steps,
        envelope::{NoText, Notice},
    },
    machine::{
        Machine,
        draft::Draft,
        send::{Outgoing, check_range},
    },
};

/// The most copies of a message, or of all that a transaction publishes. They also count where a queue knows the message.
pub(in crate::machine) const COPIES_MAX: u16 = u16::MAX;

/// The most bytes that a record has for the copies of each message besides one payload: other forms of the payload, keys and unique
/// ids, and [`COPY_BYTES`] for the rest of each copy.
const BYTES_MAX: usize = 8 << 20;

/// At most so many bytes of a copy are not its payload, key or unique id.
const COPY_BYTES: usize = 96;

/// What a queue gets of a published message besides its payload.
pub(in crate::machine) struct ToQueue<'a> {
    queue: &'a QueueName,
    keyed: bool,
    key: Option<Key>,
}

impl ToQueue<'_> {
    pub(in crate::machine) fn of<'a>(
        &'a self,
        message: &'a Message,
        payload: Payload,
    ) -> Outgoing<'a> {
        let (key, group) = match self.keyed {
            true => (self.key.as_ref(), None),
            false => (None, self.key.as_ref()),
        };
        Outgoing {
            queue: self.queue,
            message,
            key,
            group,
            payload,
        }
    }

    /// At most so many bytes of its record are not payload.
    fn bytes(&self, message: &Message) -> usize {
        let key = self.key.as_ref().map_or(0, |key| key.as_str().len());
        let unique_id = message.unique_id.as_ref().map_or(0, |id| id.as_str().len());
        COPY_BYTES + key + unique_id
    }
}

/// A published message in each form that queues get: as it is, or in the envelope of a topic.
struct Forms<'a> {
    publish: &'a Publish,
    notice: Notice<'a>,
    made: BTreeMap<Option<Arc<str>>, Form>,
    /// At most so many bytes of the record are not the first payload.
    bytes: usize,
}

/// A form of a message. The first copy in the record has the payload, and the others share it.
struct Form {
    /// In its envelope.
    wrapped: Option<Message>,
    /// The effect with the payload, and its size.
    first: Option<(u16, u32)>,
}

impl Forms<'_> {
    /// The form in the envelope of that topic, or as the message is.
    fn of(&mut self, topic: Option<&Arc<str>>) -> Result<(&mut Form, &Publish), ExchangeError> {
        let message = &self.publish.message;
        let is_first = self.made.is_empty();
        let form = match self.made.entry(topic.cloned()) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(free) => {
                let wrap = |topic: &Arc<str>| {
                    let body = self.notice.text(topic).map_err(|NoText| {
                        let exchange = self.publish.exchange.clone();
                        ExchangeError::EnvelopeText { exchange }
                    })?;
                    Ok::<_, ExchangeError>(Message {
                        body: body.into(),
                        headers: Vec::new(),
                        // That of the message is not that of its envelope.
                        content_type: None,
                        ..message.clone()
                    })
                };
                let wrapped = topic.map(wrap).transpose()?;
                let size = wrapped.as_ref().unwrap_or(message).size();
                self.bytes += if is_first { 0 } else { size };
                free.insert(Form {
                    wrapped,
                    first: None,
                })
            }
        };
        Ok((form, self.publish))
    }
}

impl Form {
    /// The copy in this form.
    fn copy<'a>(&'a self, to: &'a ToQueue<'_>, publish: &'a Publish) -> Outgoing<'a> {
        let payload = match self.first {
            None => Payload::Own,
            Some((part, size)) => Payload::Of { part, size },
        };
        to.of(self.wrapped.as_ref().unwrap_or(&publish.message), payload)
    }

    /// The last effect accepts a [copy](Self::copy).
    fn note(&mut self, effects: &mut Effects) -> Result<(), Rejection> {
        let last = effects.len() - 1;
        // A message is found by its index among the effects of its record.
        let max = u64::from(u16::MAX);
        check_range("number of effects of a publish", last as u64, 0, max)?;
        let first = self.first.map_or(last, |(part, _)| usize::from(part));
        if let Effect::Accepted(stored) = &mut effects[first] {
            match self.first {
                Some(_) => stored.payload = Payload::Shared,
                None => self.first = Some((u16::try_from(last).unwrap_or(u16::MAX), stored.size())),
            }
        }
        Ok(())
    }
}

impl Machine {
    /// Where a message goes that is published.
    fn route_of(&self, publish: &Publish, steps: &mut Steps) -> Result<Route<'_>, ExchangeError> {
        let Publish {
            exchange,
            routing_key,
            message,
            subject: _,
        } = publish;
        let published = Published::new(routing_key, &message.headers, Some(&message.body));
        self.route_within(exchange, &published, steps)
    }

    /// What a queue gets of a message that is published, besides the message: the key that the binding says.
    fn copy_to(
        &self,
        queue: u32,
        publish: &Publish,
        options: &BindingOptions,
    ) -> Result<ToQueue<'_>, ExchangeError> {
        let queue = &self.queues[queue];
        let Publish {
            exchange,
            routing_key,
            message,
            subject: _,
        } = publish;
        let key = match &options.key_from {
            Some(from) => from.key(&Published::new(routing_key, &message.headers, None)),
            None => Ok(None),
        };
        let key = key.map_err(|source| ExchangeError::Key {
            exchange: exchange.clone(),
            source,
        })?;
        Ok(ToQueue {
            queue: &queue.name,
            keyed: queue.settings.keyed,
            key: key.or_else(|| message.key.clone().or_else(|| message.group.clone())),
        })
    }

    /// Sends a queue its copy. The name of the queue comes with what became of it.
    fn send_copy(
        &self,
        draft: &mut Draft,
        forms: &mut Forms<'_>,
        (queue, options): (u32, &BindingOptions),
        now: Now,
    ) -> Result<(QueueName, Result<Sent, Rejection>), Rejection> {
        let copy = self.copy_to(queue, forms.publish, options)?;
        forms.bytes += copy.bytes(&forms.publish.message);
        let (form, publish) = forms.of(options.envelope.as_ref())?;
        let outcome = self.decide_send(draft, form.copy(&copy, publish), now);
        if let Ok(Sent {
            duplicate: false, ..
        }) = outcome
        {
            form.note(&mut draft.effects)?;
        }
        Ok((copy.queue.clone(), outcome))
    }

    /// Sends the target its copy; the binding's queue for overflow if the target does not take it and that one does.
    fn send_or_overflow(
        &self,
        draft: &mut Draft,
        forms: &mut Forms<'_>,
        (queue, options): (u32, &BindingOptions),
        now: Now,
    ) -> Result<(QueueName, Result<Sent, Rejection>), Rejection> {
        let sent = self.send_copy(draft, forms, (queue, options), now)?;
        let overflow = options.overflow.as_ref();
        let overflow = overflow.and_then(|name| self.named_queue(name).ok());
        let (Err(source), Some(overflow)) = (&sent.1, overflow) else {
            return Ok(sent);
        };
        if !is_full(source) && !matches!(source, Rejection::MessageTooLarge { .. }) {
            return Ok(sent);
        }
        let other = self.send_copy(draft, forms, (overflow, options), now)?;
        match other.1 {
            // An id that has to be looked up first is no refusal.
            Ok(_) | Err(Rejection::LookUp { .. }) => Ok(other),
            Err(_) => Ok(sent),
        }
    }

    /// The id of what is published next to an exchange, and its number there. Numbers of a queue's messages rise from the
    /// other end, so that no message has the id.
    fn next_publication(&self, draft: &Draft, exchange: ExchangeId) -> (MessageId, u64) {
        let state = self.exchanges.by_id.get(&exchange.0);
        let earlier = draft.published.get(&exchange).copied().unwrap_or(0);
        let number = state.map_or(0, |state| state.counts.published) + earlier + 1;
        let from_end = Sequence(Sequence::MAX.0 - number.min(Sequence::MAX.0));
        let place = QueueId(exchange.0 & QueueId::MAX.0);
        (MessageId::new(place, from_end, self.term()), number)
    }

    pub(in crate::machine) fn decide_publish(
        &self,
        draft: &mut Draft,
        publish: &Publish,
        now: Now,
    ) -> Result<Publication, Rejection> {
        draft.rest_on(self.exchanges_rest_on());
        if publish.message.producer.is_some() {
            return Err(ExchangeError::Producer.into());
        }
        let route = self.route_of(publish, &mut draft.steps)?;
        draft.copies += route.targets.len() as u64;
        check_range("number of copies", draft.copies, 0, COPIES_MAX.into())?;
        draft.in_transaction = true;
        let mut counts = ExchangeCounts {
            published: 1,
            ..ExchangeCounts::default()
        };
        let (id, number) = self.next_publication(draft, route.exchange);
        let mut forms = Forms {
            publish,
            notice: Notice {
                id,
                number,
                subject: publish.subject.as_deref(),
                message: &publish.message,
                at: now.wall,
            },
            made: BTreeMap::new(),
            bytes: 0,
        };
        let mut copies = Vec::with_capacity(route.targets.len());
        for target in &route.targets {
            // A binding leads to a queue that is there.
            let Some(queue) = self.queue_index(target.queue) else {
                continue;
            };
            let to = (queue, target.options);
            let (queue, outcome) = self.send_or_overflow(draft, &mut forms, to, now)?;
            if draft.copied_bytes + forms.bytes > BYTES_MAX {
                let queues = route.targets.len();
                let max = BYTES_MAX;
                return Err(ExchangeError::TooLarge { queues, max }.into());
            }
            match outcome {
                Ok(sent) => {
                    counts.copies += u64::from(!sent.duplicate);
                    copies.push(Copied { queue, sent });
                }
                Err(source) if target.options.skip_when_full && is_full(&source) => {
                    counts.skipped += 1;
                }
                Err(source) => {
                    return Err(Rejection::PublishRefused {
                        exchange: publish.exchange.clone(),
                        queue,
                        source: Box::new(source),
                    });
                }
            }
        }
        let is_unroutable = route.targets.is_empty() || !route.alternates.is_empty();
        counts.unroutable = u64::from(is_unroutable);
        counts.dropped = u64::from(route.targets.is_empty());
        let published = Effect::Published {
            exchange: route.exchange,
            copies: counts.copies,
            skipped: counts.skipped,
            unroutable: is_unroutable,
            dropped: route.targets.is_empty(),
        };
        // It may be lost where nothing that it counts is promised.
        draft.add(published, Level::Memory);
        draft.copied_bytes += forms.bytes;
        *draft.published.entry(route.exchange).or_default() += 1;
        Ok(Publication {
            id,
            number,
            copies,
            skipped: counts.skipped,
            dropped: route.targets.is_empty(),
        })
    }

    pub(in crate::machine) fn fold_published(
        &mut self,
        exchange: ExchangeId,
        (copies, skipped): (u64, u64),
        (unroutable, dropped): (bool, bool),
    ) -> Option<()> {
        let counts = ExchangeCounts {
            published: 1,
            copies,
            skipped,
            unroutable: u64::from(unroutable),
            dropped: u64::from(dropped),
            refused: 0,
        };
        self.count_publish(exchange, &counts);
        Some(())
    }

    /// The copies that a publish may be made of, as they would be decided now: for each copy also the one for overflow.
    pub(in crate::machine) fn copies_of(&self, publish: &Publish) -> Vec<ToQueue<'_>> {
        let route = self.route_of(publish, &mut Steps::new(STEPS_MAX));
        let targets = route.into_iter().flat_map(|route| route.targets);
        let copies = targets.flat_map(|target| {
            let overflow = target.options.overflow.as_ref();
            let overflow = overflow.and_then(|name| self.named_queue(name).ok());
            let queues = self.queue_index(target.queue).into_iter().chain(overflow);
            queues.filter_map(move |queue| self.copy_to(queue, publish, target.options).ok())
        });
        copies.collect()
    }
}

/// Whether a queue has no room for the message now, and may have it later.
fn is_full(rejection: &Rejection) -> bool {
    matches!(
        rejection,
        Rejection::QuotaExceeded { .. } | Rejection::DedupFull { .. }
    )
}
