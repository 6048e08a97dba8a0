//! Publishes messages: one command and one record, so all queues get their copy or none.

use lockgate_core::{ExchangeId, Key, Level, Message, NameError, Now, QueueName};

use super::{ExchangeError, Route, Target};
use crate::{
    Copied, Effect, Effects, ExchangeCounts, Payload, Publication, Publish, Published, Rejection,
    Reply,
    machine::{
        Machine,
        draft::Draft,
        send::{Outgoing, check_range},
    },
};

/// The most bytes that a record has for the copies of a message besides their payload: their keys and unique ids, and
/// [`COPY_BYTES`] for the rest of each.
const BYTES_MAX: usize = 8 << 20;

/// At most so many bytes of a copy are not its payload, key or unique id.
const COPY_BYTES: usize = 96;

/// What a queue gets of a published message besides the message.
pub(in crate::machine) struct ToQueue<'a> {
    queue: &'a QueueName,
    keyed: bool,
    key: Option<Key>,
}

impl ToQueue<'_> {
    pub(in crate::machine) fn of<'a>(
        &'a self,
        publish: &'a Publish,
        payload: Payload,
    ) -> Outgoing<'a> {
        let (key, group) = match self.keyed {
            true => (self.key.as_ref(), None),
            false => (None, self.key.as_ref()),
        };
        Outgoing {
            queue: self.queue,
            message: &publish.message,
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

/// The first effect of a record with a payload that others share.
#[derive(Default)]
struct SharedBy {
    first: Option<(u16, u32)>,
}

impl SharedBy {
    /// Where the next message finds the payload.
    fn payload(&self) -> Payload {
        match self.first {
            None => Payload::Own,
            Some((part, size)) => Payload::Of { part, size },
        }
    }

    /// The last effect accepts a message with [that payload](Self::payload).
    fn note(&mut self, effects: &mut Effects) -> Result<(), Rejection> {
        let last = effects.len() - 1;
        let first = match self.first {
            Some((part, _)) => usize::from(part),
            None => last,
        };
        if let Effect::Accepted(stored) = &mut effects[first] {
            match self.first {
                Some(_) => stored.payload = Payload::Shared,
                None => self.first = Some((part(last)?, stored.size())),
            }
        }
        Ok(())
    }
}

/// A message is found by its index among the effects of its record.
fn part(index: usize) -> Result<u16, Rejection> {
    let max = u64::from(u16::MAX);
    check_range("number of effects of a publish", index as u64, 0, max)?;
    Ok(u16::try_from(index).unwrap_or(u16::MAX))
}

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

    /// What a queue gets of a message that is published, besides the message: the key that the binding says.
    pub(in crate::machine) fn copy_for(
        &self,
        publish: &Publish,
        target: &Target<'_>,
    ) -> Option<Result<ToQueue<'_>, NameError>> {
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
        Some(Ok(ToQueue {
            queue: &queue.name,
            keyed: queue.settings.keyed,
            key: key.or_else(|| message.key.clone().or_else(|| message.group.clone())),
        }))
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
        let (mut shared, mut bytes) = (SharedBy::default(), 0);
        for target in &route.targets {
            // A binding leads to a queue that is there.
            let Some(copy) = self.copy_for(publish, target) else {
                continue;
            };
            let copy = copy.map_err(|source| ExchangeError::Key {
                exchange: publish.exchange.clone(),
                source,
            })?;
            bytes += copy.bytes(&publish.message);
            if bytes > BYTES_MAX {
                let queues = route.targets.len();
                return Err(ExchangeError::TooLarge {
                    queues,
                    max: BYTES_MAX,
                }
                .into());
            }
            match self.decide_send(draft, copy.of(publish, shared.payload()), now) {
                Ok(sent) => {
                    if !sent.duplicate {
                        counts.copies += 1;
                        shared.note(&mut draft.effects)?;
                    }
                    let queue = copy.queue.clone();
                    copies.push(Copied { queue, sent });
                }
                Err(source) if target.options.skip_when_full && is_full(&source) => {
                    counts.skipped += 1;
                }
                Err(source) => return Err(refused(copy.queue.clone(), source)),
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
        Ok(Reply::Published(Box::new(Publication {
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

    /// The copies that a publish is made of, as they would be decided now.
    pub(in crate::machine) fn copies_of(&self, publish: &Publish) -> Vec<ToQueue<'_>> {
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
