//! Publishes messages: one command and one record, so all queues get their copy or none.

use lockgate_core::{ExchangeId, Level, Message, MessageId, Now, QueueId, Sequence};

use super::{ExchangeError, Route, Target};
use crate::{
    BindingOptions, Copied, Effect, ExchangeCounts, Publication, Publish, Published, Rejection,
    Reply, SendMessage, Sent,
    exchanges::envelope::{Envelopes, NoText, Notice},
    machine::{Machine, draft::Draft, send::check_range},
};

/// The most effects of a record: a message is found by its index among them.
const EFFECTS_MAX: u64 = u16::MAX as u64;

/// The most bytes of the copies of a message: each has its own body.
const BYTES_MAX: u64 = 8 << 20;

impl Machine {
    /// Where a message goes that is published.
    pub(in crate::machine) fn route_of(
        &self,
        publish: &Publish,
    ) -> Result<Route<'_>, ExchangeError> {
        let Publish {
            exchange,
            routing_key,
            message,
            subject: _,
        } = publish;
        let published = Published::new(routing_key, &message.headers, Some(&message.body));
        self.route(exchange, &published)
    }

    /// What a queue gets of a message that is published: its name, and the message with the key that the binding says.
    /// Without `envelopes`, the body is the one that was published.
    fn copy_to(
        &self,
        queue: u32,
        publish: &Publish,
        options: &BindingOptions,
        envelopes: Option<&mut Envelopes<'_>>,
    ) -> Result<SendMessage, ExchangeError> {
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
        let key = key.or_else(|| message.key.clone().or_else(|| message.group.clone()));
        let (key, group) = match queue.settings.keyed {
            true => (key, None),
            false => (None, key),
        };
        let mut message = Message {
            key,
            group,
            ..message.clone()
        };
        if let (Some(topic), Some(envelopes)) = (&options.envelope, envelopes) {
            let no_text = |NoText| ExchangeError::EnvelopeText {
                exchange: exchange.clone(),
            };
            message.body = envelopes.of(topic).map_err(no_text)?;
            message.headers = Vec::new();
        }
        Ok(SendMessage {
            queue: queue.name.clone(),
            message,
        })
    }

    /// Sends a queue its copy; to the binding's queue for overflow if the queue does not take it and that one does.
    fn send_copy(
        &self,
        draft: &mut Draft,
        (publish, target): (&Publish, &Target<'_>),
        send: SendMessage,
        envelopes: &mut Envelopes<'_>,
        now: Now,
    ) -> Result<(SendMessage, Result<Sent, Rejection>), ExchangeError> {
        let outcome = self.decide_send(draft, &send, now);
        let overflow = target.options.overflow.as_ref();
        let overflow = overflow.and_then(|name| self.named_queue(name).ok());
        let (Err(source), Some(overflow)) = (&outcome, overflow) else {
            return Ok((send, outcome));
        };
        if !is_full(source) && !matches!(source, Rejection::MessageTooLarge { .. }) {
            return Ok((send, outcome));
        }
        let other = self.copy_to(overflow, publish, target.options, Some(envelopes))?;
        match self.decide_send(draft, &other, now) {
            Ok(sent) => Ok((other, Ok(sent))),
            // An id that has to be looked up first is no refusal.
            Err(Rejection::LookUp { space }) => Ok((other, Err(Rejection::LookUp { space }))),
            Err(_) => Ok((send, outcome)),
        }
    }

    /// The id of what is published next to an exchange, and its number there. Numbers of a queue's messages rise from the
    /// other end, so that no message has the id.
    fn next_publication(&self, exchange: ExchangeId) -> (MessageId, u64) {
        let state = self.exchanges.by_id.get(&exchange.0);
        let number = state.map_or(0, |state| state.counts.published) + 1;
        let from_end = Sequence(Sequence::MAX.0 - number.min(Sequence::MAX.0));
        let place = QueueId(exchange.0 & QueueId::MAX.0);
        (MessageId::new(place, from_end, self.term()), number)
    }

    pub(in crate::machine) fn decide_publish(
        &self,
        draft: &mut Draft,
        publish: &Publish,
        now: Now,
    ) -> Result<Reply, Rejection> {
        draft.rest_on(self.exchanges_rest_on());
        if publish.message.producer.is_some() {
            return Err(ExchangeError::Producer.into());
        }
        let route = self.route_of(publish)?;
        let (size, queues) = (publish.message.size() as u64, route.targets.len() as u64);
        if queues > 1 && size.saturating_mul(queues) > BYTES_MAX {
            let max = BYTES_MAX;
            return Err(ExchangeError::TooLarge { size, queues, max }.into());
        }
        draft.in_transaction = true;
        let refused = |queue, source| Rejection::PublishRefused {
            exchange: publish.exchange.clone(),
            queue,
            source: Box::new(source),
        };
        let mut counts = ExchangeCounts {
            published: 1,
            ..ExchangeCounts::default()
        };
        let (id, number) = self.next_publication(route.exchange);
        let mut envelopes = Envelopes::new(Notice {
            id,
            number,
            subject: publish.subject.as_deref(),
            message: &publish.message,
            at: now.wall,
        });
        let mut bytes = 0;
        let mut copies = Vec::with_capacity(route.targets.len());
        for target in &route.targets {
            // A binding leads to a queue that is there.
            let Some(queue) = self.queue_index(target.queue) else {
                continue;
            };
            let send = self.copy_to(queue, publish, target.options, Some(&mut envelopes))?;
            bytes += send.message.size() as u64;
            check_bytes(bytes, &send, queues)?;
            let (send, outcome) =
                self.send_copy(draft, (publish, target), send, &mut envelopes, now)?;
            match outcome {
                Ok(sent) => {
                    counts.copies += u64::from(!sent.duplicate);
                    copies.push(Copied {
                        queue: send.queue,
                        sent,
                    });
                }
                Err(source) if target.options.skip_when_full && is_full(&source) => {
                    counts.skipped += 1;
                }
                Err(source) => return Err(refused(send.queue, source)),
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
        check_range(
            "number of effects of a publish",
            draft.effects.len() as u64,
            0,
            EFFECTS_MAX,
        )?;
        Ok(Reply::Published(Box::new(Publication {
            id,
            number,
            copies,
            skipped: counts.skipped,
            dropped: route.targets.is_empty(),
        })))
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

    /// The sends that a command may be made of, as they would be decided now: for each copy also the one for overflow. Their
    /// bodies are the one that was published.
    pub(in crate::machine) fn copies_of(&self, publish: &Publish) -> Vec<SendMessage> {
        let route = self.route_of(publish);
        let targets = route.into_iter().flat_map(|route| route.targets);
        let copies = targets.flat_map(|target| {
            let overflow = target.options.overflow.as_ref();
            let overflow = overflow.and_then(|name| self.named_queue(name).ok());
            let queues = self.queue_index(target.queue).into_iter().chain(overflow);
            queues.filter_map(move |queue| {
                let copy = self.copy_to(queue, publish, target.options, None);
                copy.ok()
            })
        });
        copies.collect()
    }
}

/// Refuses copies that are more than one record takes together.
fn check_bytes(bytes: u64, copy: &SendMessage, queues: u64) -> Result<(), ExchangeError> {
    let (size, max) = (copy.message.size() as u64, BYTES_MAX);
    match queues > 1 && bytes > max {
        true => Err(ExchangeError::TooLarge { size, queues, max }),
        false => Ok(()),
    }
}

/// Whether a queue has no room for the message now, and may have it later.
fn is_full(rejection: &Rejection) -> bool {
    matches!(
        rejection,
        Rejection::QuotaExceeded { .. } | Rejection::DedupFull { .. }
    )
}
