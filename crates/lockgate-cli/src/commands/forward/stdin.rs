//! Messages from standard input.

use std::{collections::VecDeque, path::Path};

use lockgate_core::{MessageId, with_sources};
use lockgate_producer::{Answer, SendError, Ticket};
use tracing::warn;

use super::{Forwarding, Stop, message};
use crate::{
    client::Message,
    commands::{
        Signals,
        send::lines::{Form, Outgoing, Pump},
    },
    exit::Failure,
};

/// Messages whose level is waited for at the same time.
const WAITING_MAX: usize = 1 << 16;

type Waiting = VecDeque<(String, Ticket<MessageId>)>;

/// Takes lines until the input ends, one of them is wrong, or there is a signal.
pub(super) async fn run(
    forwarding: &Forwarding<'_>,
    signals: &mut Signals,
) -> Result<Stop, Failure> {
    let args = forwarding.args;
    let defaults = Message {
        key: args.key.clone(),
        group: args.group.clone(),
        ..Message::default()
    };
    let form = match args.raw {
        true => Form::Raw,
        false => Form::Messages,
    };
    let mut pump = Pump::start(Path::new("-"), defaults, form)?;
    let mut waiting = Waiting::new();
    let mut lines = 0_u64;
    let mut wrong = None;
    let mut ended = false;
    while !(ended && waiting.is_empty()) {
        tokio::select! {
            biased;
            exit = signals.next() => {
                return Ok(Stop::signal(args, exit, (!ended).then_some(lines)));
            }
            (place, result) = next(&mut waiting) => told(&place, result),
            line = pump.next(), if !ended && waiting.len() < WAITING_MAX => {
                let taken = match line {
                    None => {
                        ended = true;
                        continue;
                    }
                    Some(Err(failure)) => Err(failure),
                    Some(Ok(line)) => {
                        tokio::select! {
                            biased;
                            exit = signals.next() => {
                                return Ok(Stop::signal(args, exit, Some(lines)));
                            }
                            taken = take(forwarding, line) => taken,
                        }
                    }
                };
                match taken {
                    Ok(ticket) => {
                        lines += 1;
                        waiting.push_back(ticket);
                    }
                    Err(failure) => {
                        let hint = format!("{lines} messages were taken, nothing after them");
                        wrong = Some(failure.and_hint(hint));
                        ended = true;
                    }
                }
            }
        }
    }
    match wrong {
        Some(failure) => Err(failure),
        None => Ok(Stop::End),
    }
}

/// Waits until there is room for a line.
async fn take(
    forwarding: &Forwarding<'_>,
    line: Outgoing,
) -> Result<(String, Ticket<MessageId>), Failure> {
    let place = line.place.unwrap_or_default();
    let message = message::of_line(line.message, message::now())
        .map_err(|why| Failure::failed(why).context(place.clone()))?;
    let ticket = forwarding.producer.send(message).start().await;
    let ticket = ticket
        .map_err(|refused| Failure::failed(with_sources(&refused.why)).context(place.clone()))?;
    Ok((place, ticket))
}

/// Waits for the level of the first message; for ever if there is none. Cancel safe.
async fn next(waiting: &mut Waiting) -> (String, Result<Answer<MessageId>, SendError>) {
    let Some((_, ticket)) = waiting.front_mut() else {
        return std::future::pending().await;
    };
    let result = ticket.await;
    let place = waiting.pop_front().map(|(place, _)| place);
    (place.unwrap_or_default(), result)
}

/// What was dropped is counted by the producer; here is said which it was.
fn told(place: &str, result: Result<Answer<MessageId>, SendError>) {
    if let Err(error) = result {
        warn!(place, error = with_sources(&error), "a message was dropped");
    }
}
