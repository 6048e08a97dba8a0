//! Messages of one record that have the same payload: they are written with it once, and move to another record together.

use std::{collections::BTreeMap, mem};

use lockgate_core::{Message, QueueId, Sequence};

use crate::{Effect, Effects, Payload, StoredMessage};

/// A message of a record, or all messages of a record that have the same payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Copies {
    /// The messages, and which effects of the record they are. The first one has the payload.
    messages: Vec<(u16, Box<StoredMessage>)>,
}

impl Copies {
    /// One message, which effect number `part` of a record holds with its payload.
    #[must_use]
    pub fn of_one(part: u16, message: Box<StoredMessage>) -> Self {
        Self {
            messages: vec![(part, message)],
        }
    }

    /// The messages of a record with these effects, in the order of their payloads, and its other effects. A message whose
    /// payload is not in the record is left out: nobody can read it.
    #[must_use]
    pub fn of_record(effects: impl IntoIterator<Item = Effect>) -> (Vec<Self>, Vec<Effect>) {
        let (mut found, mut others): (Vec<Self>, _) = (Vec::new(), Vec::new());
        let mut by_part: BTreeMap<u16, usize> = BTreeMap::new();
        let mut later = Vec::new();
        // No command makes a record with more effects.
        for (part, effect) in (0..=u16::MAX).zip(effects) {
            let message = match effect {
                Effect::Accepted(message) | Effect::Compacted(message) => message,
                other => {
                    others.push(other);
                    continue;
                }
            };
            match message.payload {
                Payload::Of { part: of, size } => later.push((of, size, part, message)),
                Payload::Own | Payload::Shared => {
                    if message.payload == Payload::Shared {
                        by_part.insert(part, found.len());
                    }
                    found.push(Self::of_one(part, message));
                }
            }
        }
        for (of, size, part, message) in later {
            let original = by_part.get(&of).map(|&at| &mut found[at].messages);
            if let Some(messages) = original.filter(|messages| messages[0].1.size() == size) {
                messages.push((part, message));
            }
        }
        (found, others)
    }

    /// The messages, and which effects of their record they are.
    pub fn messages(&self) -> impl ExactSizeIterator<Item = (u16, &StoredMessage)> {
        self.messages
            .iter()
            .map(|(part, message)| (*part, &**message))
    }

    /// The message that has the payload.
    #[must_use]
    pub fn payload(&self) -> &Message {
        &self.messages[0].1.message
    }

    /// The effects of another record with those messages that are alive, and their payload once. `place` gives the present
    /// queue and number of a message that is; the record has `before` effects before these.
    #[must_use]
    pub fn compacted(
        &self,
        before: usize,
        mut place: impl FnMut(u16, &StoredMessage) -> Option<(QueueId, Sequence)>,
    ) -> Effects {
        let original = &self.messages[0].1;
        let alive = self.messages.iter().filter_map(|(part, message)| {
            let (queue, sequence) = place(*part, message)?;
            let mut message = message.clone();
            (message.queue, message.sequence) = (queue, sequence);
            Some(message)
        });
        let mut alive: Vec<_> = alive.collect();
        let is_shared = alive.len() > 1;
        // A record has no more effects than parts can number.
        let payload_at = u16::try_from(before).unwrap_or(u16::MAX);
        for (index, message) in alive.iter_mut().enumerate() {
            if index > 0 {
                share(message, payload_at);
                continue;
            }
            if let Payload::Of { .. } = message.payload {
                take_payload(&mut message.message, original.message.clone());
            }
            message.payload = match is_shared {
                true => Payload::Shared,
                false => Payload::Own,
            };
        }
        alive.into_iter().map(Effect::Compacted).collect()
    }
}

/// Leaves the payload of a message to the one that is effect number `part` of the record, and has the same.
pub(crate) fn share(message: &mut StoredMessage, part: u16) {
    let size = message.size();
    message.payload = Payload::Of { part, size };
    let message = &mut message.message;
    drop(mem::take(&mut message.body));
    message.headers = Vec::new();
    (message.content_type, message.trace_context) = (None, None);
}

/// Gives a message the payload of another one.
pub(crate) fn take_payload(message: &mut Message, from: Message) {
    message.body = from.body;
    message.headers = from.headers;
    message.content_type = from.content_type;
    message.trace_context = from.trace_context;
}
