//! How long messages wait and are held, for whoever counts that.

use lockgate_core::{Millis, Now};

use super::{Machine, state::State};
use crate::Effect;

/// A span of time that has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Of a message that is leased: since it was accepted or, if that was later, due.
    Age(Millis),
    /// Of a lease that its holder or an operator ends.
    Lease(Millis),
}

impl Machine {
    /// The span that an effect ends, which is decided and not folded yet. A lease that runs out ends none.
    #[must_use]
    pub fn span_ended_by(&self, effect: &Effect, now: Now) -> Option<Span> {
        let (queue, sequence) = match effect {
            Effect::Leased {
                queue, sequence, ..
            }
            | Effect::Acked { queue, sequence }
            | Effect::Nacked {
                queue, sequence, ..
            }
            | Effect::Dropped {
                queue, sequence, ..
            }
            | Effect::Moved {
                from: queue,
                sequence,
                ..
            } => (*queue, *sequence),
            _ => return None,
        };
        let index = self.message_of(self.queue_index(queue)?, sequence)?;
        let message = &self.messages[index];
        if matches!(effect, Effect::Leased { .. }) {
            return Some(Span::Age(now.wall.since(message.since())));
        }
        let given = self.given(index)?;
        (message.state == State::Leased).then(|| Span::Lease(now.machine.since(given)))
    }
}
