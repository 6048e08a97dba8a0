//! Publishes messages: one command and one record, so all queues get their copy or none.

use lockgate_core::{ExchangeId, Level, Message, NameError, Now};

use super::{ExchangeError, Route, Target};
use crate::{
    Copied, Effect, ExchangeCounts, Publication, Publish, Published, Rejection, SendMessage,
    machine::{Machine, draft::Draft, send::check_range},
};

/// The most effects of a record: a message is found by its index among them.
const EFFECTS_MAX: u64 = u16::MAX as u64;

/// The most copies of a message, or of all that a transaction publishes. They also count where a queue knows the message.
pub(in crate::machine) const COPIES_MAX: u16 = u16::MAX;

/// The most bytes of the copies of a message, or of all that a transaction publishes: each has its own body.
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
        } = publish;
        let published = Published::new(routing_key, &message.headers, Some(&message.body));
        self.route(exchange, &published)
    }

    /// What a queue gets of a message that is published; its name, and the message with the key that the binding says.
    pub(in crate::machine) fn copy_for(
        &self,
        publish: &Publish,
        target: &Target<'_>,
    ) -> Option<Result<SendMessage, NameError>> {
        let queue = &self.queues[self.queue_index(target.queue)?];
        let Publish {
            routing_key,
            message,
            ..
        } = publish;
        let key = match &target.options.key_from {
            Some(from) => from.key(&Published::new(routing_key, &message.headers, None)),
            None => Ok(None),
        };
        let key = match key {
            Ok(key) => key,
            Err(error) => return Some(Err(error)),
        };
        let key = key.or_else(|| message.key.clone().or_else(|| message.group.clone()));
        let (key, group) = match queue.settings.keyed {
            true => (key, None),
            false => (None, key),
        };
        Some(Ok(SendMessage {
            queue: queue.name.clone(),
            message: Message {
                key,
                group,
                ..message.clone()
            },
        }))
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
        let route = self.route_of(publish)?;
        let (size, queues) = (publish.message.size() as u64, route.targets.len() as u64);
        draft.copies = draft.copies.saturating_add(queues);
        check_range("number of copies", draft.copies, 0, COPIES_MAX.into())?;
        let copied = size.saturating_mul(queues);
        let all_copied = draft.copied_bytes.saturating_add(copied);
        // One copy is no more than a send.
        if all_copied > BYTES_MAX && (queues > 1 || draft.copied_bytes > 0) {
            let max = BYTES_MAX;
            return Err(ExchangeError::TooLarge { size, queues, max }.into());
        }
        draft.copied_bytes = all_copied;
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
        let mut copies = Vec::with_capacity(route.targets.len());
        for target in &route.targets {
            // A binding leads to a queue that is there.
            let Some(copy) = self.copy_for(publish, target) else {
                continue;
            };
            let send = copy.map_err(|source| ExchangeError::Key {
                exchange: publish.exchange.clone(),
                source,
            })?;
            match self.decide_send(draft, &send, now) {
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
        Ok(Publication {
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

    /// The sends that a command is made of, as they would be decided now.
    pub(in crate::machine) fn copies_of(&self, publish: &Publish) -> Vec<SendMessage> {
        let route = self.route_of(publish);
        let targets = route.into_iter().flat_map(|route| route.targets);
        let copies = targets.filter_map(|target| self.copy_for(publish, &target)?.ok());
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
