//! Operations on keys: explain why they wait, park, resume and drop them.

use lockgate_core::{Key, Millis, limits::Limit};
use lockgate_engine::{EngineError, QueueEntry};
use lockgate_machine::{
    self as machine, ChangeKey, ExplainKey, HoldTarget, KeyAction, KeyHeld, KeyPage, KeyStatus,
    KeyWait, Rejection,
};

use super::{invalid_page, page_after, page_limit, page_start};
use crate::{
    api::{
        Code, Problem, Request, Service,
        shapes::{
            Held, Hold, Instant, KeyExplanation, Keys, LimitWord, ListKeys, MessagesDropped,
            WaitWord,
        },
    },
    auth::Verb,
};

impl Service {
    pub(in crate::api) async fn list_keys(
        &self,
        request: &Request<'_>,
        queue: &str,
        input: ListKeys,
    ) -> Result<Keys, Problem> {
        let queue = self.queue(request, Verb::Read, queue)?;
        check_keyed(&queue)?;
        let limit = page_limit(input.limit);
        let after = match &input.page {
            None => None,
            Some(page) => Some(page_start(page)?.parse().map_err(|_| invalid_page())?),
        };
        let query = machine::ListKeys {
            queue: queue.name.clone(),
            parked: input.parked,
            after,
            limit,
        };
        let KeyPage { keys, next } = self.engine.query(query).await?;
        let keys = keys.into_iter().map(|key| self.in_words(&queue, key));
        Ok(Keys {
            keys: keys.collect(),
            next_page: next.map(|next| page_after(&next.to_string())),
        })
    }

    pub(in crate::api) async fn explain_key(
        &self,
        request: &Request<'_>,
        queue: &str,
        key: Option<Key>,
    ) -> Result<KeyExplanation, Problem> {
        let queue = self.queue(request, Verb::Read, queue)?;
        self.explain(&queue, key).await
    }

    /// Parks a key, or resumes it.
    pub(in crate::api) async fn park_key(
        &self,
        request: &Request<'_>,
        queue: &str,
        key: &str,
        park: bool,
    ) -> Result<KeyExplanation, Problem> {
        let queue = self.queue(request, Verb::Manage, queue)?;
        let key = key_of(&queue, key)?;
        let action = if park {
            KeyAction::Park
        } else {
            KeyAction::Resume
        };
        self.engine
            .submit(ChangeKey {
                queue: queue.name.clone(),
                key: key.clone(),
                action,
            })
            .await?;
        self.explain(&queue, Some(key)).await
    }

    /// Holds a queue, or a key or group of it.
    pub(in crate::api) async fn hold(
        &self,
        request: &Request<'_>,
        queue: &str,
        what: HoldTarget,
        input: &Hold,
    ) -> Result<Held, Problem> {
        let queue = self.queue(request, Verb::Manage, queue)?;
        let hold = machine::Hold {
            queue: queue.name.clone(),
            what,
            time: input.time_ms.get(),
        };
        let remaining_ms = self.engine.submit(hold).await?;
        let now = self.engine.now().wall;
        Ok(Held {
            remaining_ms,
            until: remaining_ms.map(|remaining| Instant(now.plus(remaining))),
        })
    }

    pub(in crate::api) async fn drop_key(
        &self,
        request: &Request<'_>,
        queue: &str,
        key: &str,
    ) -> Result<MessagesDropped, Problem> {
        let queue = self.queue(request, Verb::Purge, queue)?;
        let key = Key::new(key).map_err(|error| Problem::invalid("key", error))?;
        let mut dropped = 0;
        loop {
            let command = ChangeKey {
                queue: queue.name.clone(),
                key: key.clone(),
                action: KeyAction::Drop,
            };
            let messages = match self.engine.submit(command).await {
                Ok(messages) => messages,
                // The key was gone when a later step began.
                Err(EngineError::Rejected(Rejection::KeyNotFound { .. })) if dropped > 0 => 0,
                Err(error) => return Err(error.into()),
            };
            dropped += messages;
            if messages < KeyAction::DROPS_MAX as u64 {
                return Ok(MessagesDropped { messages: dropped });
            }
        }
    }

    async fn explain(
        &self,
        queue: &QueueEntry,
        key: Option<Key>,
    ) -> Result<KeyExplanation, Problem> {
        let query = ExplainKey {
            queue: queue.name.clone(),
            key: key.clone(),
        };
        let status = match self.engine.query(query).await {
            Ok(status) => status,
            // A key without messages does not exist.
            Err(lockgate_engine::EngineError::Rejected(
                lockgate_machine::Rejection::KeyNotFound { .. },
            )) => {
                let held = self.describe(&queue.name).await?.held;
                KeyStatus {
                    key,
                    messages: 0,
                    delayed: 0,
                    waits_for: KeyWait::NoMessage,
                    held: held.map(|remaining| KeyHeld {
                        of_key: false,
                        remaining,
                    }),
                    state: None,
                }
            }
            Err(error) => return Err(error.into()),
        };
        Ok(self.in_words(queue, status))
    }

    fn in_words(&self, queue: &QueueEntry, status: KeyStatus) -> KeyExplanation {
        let name = &queue.name;
        let word = match &status.key {
            None => "group of messages without a key",
            Some(_) if queue.settings.keyed => "key",
            Some(_) => "group",
        };
        let now = self.engine.now().wall;
        let mut explanation = KeyExplanation {
            queue: name.to_string(),
            key: status.key.map(|key| key.to_string()),
            messages: status.messages,
            delayed: status.delayed,
            waits_for: WaitWord::Nothing,
            explanation: String::new(),
            held_until: status.held.map(|held| Instant(now.plus(held.remaining))),
            state: status.state.map(Into::into),
            sequence: None,
            holder: None,
            limit: None,
            attempt: None,
            remaining_ms: None,
            until: None,
        };
        let mut lasts = |remaining: Millis| {
            explanation.remaining_ms = Some(remaining);
            explanation.until = Some(Instant(now.plus(remaining)));
        };
        let (waits_for, mut text) = match status.waits_for {
            KeyWait::Due { sequence, at } => {
                let remaining = at.since(now);
                lasts(remaining);
                explanation.sequence = Some(sequence.0);
                let text = match status.delayed {
                    1 => format!("Its message {sequence} is due in {}.", span(remaining)),
                    delayed => format!(
                        "None of its {delayed} messages is due yet; the first is message {sequence}, \
                         in {}.",
                        span(remaining)
                    ),
                };
                (WaitWord::Due, text)
            }
            KeyWait::InFlightFull { max } => (
                WaitWord::InFlightFull,
                format!(
                    "Queue {name} has as many messages in flight as it may, {max}. The {word}'s turn comes \
                     when some of them are settled or their leases end; the limit is its setting \
                     in_flight_max."
                ),
            ),
            KeyWait::NoMessage => (
                WaitWord::NoMessage,
                format!("Queue {name} holds no message of this {word}."),
            ),
            KeyWait::InFlight => (
                WaitWord::InFlight,
                "All its messages that are due are in flight or wait for their next attempt.".to_owned(),
            ),
            KeyWait::Lease {
                sequence,
                holder,
                remaining,
                attempt,
            } => {
                lasts(remaining);
                let text = format!(
                    "{holder} holds message {sequence} (attempt {attempt}), for up to {} more. The \
                     next one follows when it is settled, or when the lease ends.",
                    span(remaining)
                );
                explanation.sequence = Some(sequence.0);
                explanation.holder = Some(holder.to_string());
                explanation.attempt = Some(attempt);
                (WaitWord::Lease, text)
            }
            KeyWait::Backoff {
                sequence,
                remaining,
            } => {
                lasts(remaining);
                explanation.sequence = Some(sequence.0);
                let text = format!(
                    "Message {sequence} failed and waits {} for its next attempt.",
                    span(remaining)
                );
                (WaitWord::Backoff, text)
            }
            KeyWait::Parked => (
                WaitWord::Parked,
                "The key is parked, by somebody or by the key policy park. It moves again when it is \
                 resumed; dropping it removes its messages."
                    .to_owned(),
            ),
            KeyWait::Paused => (
                WaitWord::Paused,
                format!("Queue {name} is paused. It gives leases again when it is resumed."),
            ),
            KeyWait::Durability => (
                WaitWord::Durability,
                "Its next message is not synced to the disk yet.".to_owned(),
            ),
            KeyWait::LeaseBound { remaining } => {
                lasts(remaining);
                let text = format!(
                    "A power cut may have taken leases of this queue with it that are still held; \
                     they are over in {} at the latest.",
                    span(remaining)
                );
                (WaitWord::LeaseBound, text)
            }
            KeyWait::Limit {
                limit: Limit::OwingKeys,
                ..
            } => {
                explanation.limit = Some(LimitWord::OwingKeys);
                let text = format!(
                    "As many keys as may owe something under a rate or a gap of each key, in all queues together \
                     (owing_keys in their counts). While it is the turn of a key that owes nothing, queue {name} gives \
                     nothing until one of them has paid."
                );
                (WaitWord::Limit, text)
            }
            KeyWait::Limit {
                limit,
                of_key,
                remaining,
            } => {
                let limits = &queue.settings;
                let (setting, value) = match limit {
                    Limit::Held => ("", String::new()),
                    Limit::Concurrency => {
                        ("limit_concurrency", limits.limit_concurrency.to_string())
                    }
                    Limit::Gap => ("limit_gap", limits.limit_gap.to_string()),
                    _ => ("limit_rate", limits.limit_rate.to_string()),
                };
                let of = if of_key { word } else { "queue" };
                let until = match remaining {
                    Some(remaining) => {
                        lasts(remaining);
                        format!("in {}", span(remaining))
                    }
                    None => "when one of its leases ends".to_owned(),
                };
                explanation.limit = Some(limit.into());
                let why = match limit {
                    Limit::Held => "is held by somebody".to_owned(),
                    _ => format!("has reached its limit: {setting} is {value}"),
                };
                let text = format!("The {of} {why}. Its next message may be leased {until}.");
                (WaitWord::Limit, text)
            }
            KeyWait::LimitsChange => (
                WaitWord::LimitsChange,
                format!(
                    "The limits of queue {name} have changed, and the server looks at each key again, \
                     which takes about 0.3 s for each million."
                ),
            ),
            _ => (
                WaitWord::Nothing,
                "Nothing holds it up: the next receive may have its message.".to_owned(),
            ),
        };
        // Where it is the hold that the next message waits for, the text says so already.
        if let Some(KeyHeld { of_key, remaining }) = status.held
            && explanation.limit != Some(LimitWord::Held)
        {
            let what = if of_key { word } else { "queue" };
            let span = span(remaining);
            text.push_str(&format!(
                " The {what} is held by somebody for another {span}."
            ));
        }
        explanation.waits_for = waits_for;
        explanation.explanation = text;
        explanation
    }
}

/// Parses a key of a keyed queue.
pub(super) fn key_of(queue: &QueueEntry, key: &str) -> Result<Key, Problem> {
    check_keyed(queue)?;
    Key::new(key).map_err(|error| Problem::invalid("key", error))
}

pub(super) fn check_keyed(queue: &QueueEntry) -> Result<(), Problem> {
    if queue.settings.keyed {
        return Ok(());
    }
    Err(Problem::new(
        Code::QueueNotKeyed,
        format!(
            "queue {} is not keyed, so it has no keys: its groups take turns, and no message waits for another",
            queue.name
        ),
    ))
}

/// A duration for people: in milliseconds below ten seconds, else in seconds.
fn span(millis: Millis) -> String {
    if millis < 10_000 {
        format!("{millis} ms")
    } else {
        format!("{} s", millis.div_ceil(1000))
    }
}
