//! Operations on dead letters: listing them and moving them back.

use lockgate_core::QueueName;
use lockgate_engine::EngineError;
use lockgate_machine::{Move, MoveTo, Moved, Rejection, SettingsError, StuckReason};

use super::{page_after, page_limit, page_start_move, page_start_queue};
use crate::{
    api::{
        Code, Problem, Request, Service,
        shapes::{
            DeadLetterSources, ListDeadLetterSources, Redrive, Redriven, StuckReasonWord,
            StuckView, Within,
        },
    },
    auth::Verb,
};

/// The most messages that one request moves.
const REDRIVE_MAX: u64 = 10_000;

/// Why a queue cannot be the one that dead letters of `from` go to.
fn not_moved(error: EngineError, from: &QueueName) -> Problem {
    let EngineError::Rejected(Rejection::Settings { source, .. }) = &error else {
        return error.into();
    };
    match source {
        SettingsError::OwnDeadLetter => {
            Problem::invalid("to", format_args!("the messages are in {from} already"))
        }
        SettingsError::DeadLetterKind { queue } => Problem::invalid(
            "to",
            format_args!(
                "of {from} and {queue} one is keyed (its name ends in .fifo) and one is not"
            ),
        ),
        _ => error.into(),
    }
}

impl Service {
    pub(in crate::api) fn list_dead_letter_sources(
        &self,
        request: &Request<'_>,
        name: &str,
        input: ListDeadLetterSources,
    ) -> Result<DeadLetterSources, Problem> {
        let target = self.queue(request, Verb::Read, name)?;
        let limit = page_limit(input.limit);
        let after = input.page.as_deref().map(page_start_queue).transpose()?;
        let sources = self.engine.directory().dead_letter_sources(&target.name);
        let mut known = sources
            .iter()
            .map(|entry| &entry.name)
            .filter(|name| after.as_ref().is_none_or(|after| *name > after))
            .filter(|name| request.may(Verb::Read, name));
        let page = known.by_ref().take(limit);
        let queues: Vec<String> = page.map(ToString::to_string).collect();
        let more = known.next().is_some();
        let next_page = queues.last().filter(|_| more).map(|last| page_after(last));
        Ok(DeadLetterSources { queues, next_page })
    }

    /// Moves dead letters in steps, so that other commands do not wait for all of it.
    pub(in crate::api) async fn redrive_dead_letters(
        &self,
        request: &Request<'_>,
        name: &str,
        input: Redrive,
    ) -> Result<Redriven, Problem> {
        let from = self.queue(request, Verb::Receive, name)?.name.clone();
        let max = input.max.map_or(REDRIVE_MAX, Within::get);
        let to = match &input.to {
            Some(to) => {
                let queue = self
                    .queue(request, Verb::Send, to)
                    .map_err(|problem| problem.at("to"))?;
                Some(queue.name.clone())
            }
            None => None,
        };
        let source = match &input.source {
            Some(source) => {
                // Without `to`, messages go to that queue.
                let verb = if to.is_some() { Verb::Read } else { Verb::Send };
                let queue = self
                    .queue(request, verb, source)
                    .map_err(|problem| problem.at("source"))?;
                Some(queue.name.clone())
            }
            None => None,
        };
        if to.is_none() && source.is_none() {
            self.check_sources(request, &from)?;
        }
        let mut done = Redriven {
            moved: 0,
            left: 0,
            stuck: None,
            problem: None,
            next_page: None,
        };
        let mut cursor = input.page.as_deref().map(page_start_move).transpose()?;
        loop {
            let rest = max - done.moved;
            let step = rest.min(u64::from(Move::MESSAGES_MAX));
            let command = Move {
                from: from.clone(),
                to: match (&source, &to, &request.identity) {
                    (Some(source), to, _) => MoveTo::Of {
                        source: source.clone(),
                        to: to.clone(),
                    },
                    (None, Some(to), _) => MoveTo::Queue(to.clone()),
                    (None, None, Some(key)) => key.origins(self.engine.directory()),
                    (None, None, None) => MoveTo::Origins,
                },
                max: u16::try_from(step).unwrap_or(Move::MESSAGES_MAX),
                cursor,
            };
            let Moved {
                moved,
                left,
                stuck,
                next,
            } = match self.engine.submit(command).await {
                Ok(moved) => moved,
                Err(error) => {
                    let problem = not_moved(error, &from);
                    if done.moved == 0 {
                        return Err(problem);
                    }
                    done.problem = Some(Box::new(problem));
                    return Ok(done);
                }
            };
            done.moved += moved;
            done.left = left;
            done.next_page = next.map(|next| page_after(&format!("{}-{}", next.after, next.below)));
            cursor = next;
            done.stuck = stuck.map(|stuck| StuckView {
                id: stuck.message.to_string(),
                reason: match stuck.reason {
                    StuckReason::NoOrigin => StuckReasonWord::NoOrigin,
                    StuckReason::OriginNotAllowed => StuckReasonWord::OriginNotAllowed,
                    _ => StuckReasonWord::OriginGone,
                },
            });
            // A step that moved less without an end has passed over as many as it may.
            if moved < step || cursor.is_none() || done.moved == max {
                return Ok(done);
            }
        }
    }

    /// Moving dead letters back sends messages to the queues they came from. Those queues are known
    /// only when the messages move, and are checked then. This refuses early what would stop in the
    /// middle.
    fn check_sources(&self, request: &Request<'_>, target: &QueueName) -> Result<(), Problem> {
        let sources = self.engine.directory().dead_letter_sources(target);
        if sources
            .iter()
            .all(|source| request.may(Verb::Send, &source.name))
        {
            return Ok(());
        }
        // The caller may not be allowed to know which queues.
        Err(Problem::new(
            Code::AccessDenied,
            format!("it needs a grant of send on every queue whose dead letters come to {target}"),
        ))
    }
}
