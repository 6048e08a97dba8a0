//! Sends, and what they are answered.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use lockgate_core::{Accepted, Message, Sink, TransportError, Unsupported};
use tokio::{sync::oneshot, time::Instant};

use crate::{
    AnswerLevel, DropReason, Producer,
    buffer::{Offered, Told},
    clock::millis,
};

/// What has no room for a send, or why nothing is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Full {
    /// The buffer.
    #[error(
        "the producer's buffer is full (buffer_count, buffer_bytes): the sink does not keep up"
    )]
    Buffer,
    /// The part of the message's tenant.
    #[error("the tenant has filled its part of the producer's buffer (quota)")]
    Tenant,
    /// The spool, or its disk.
    #[error(
        "the producer's spool is full (spool.bytes_max), or its disk is, or it cannot open a file"
    )]
    Spool,
    /// The spool has failed, and takes nothing until the producer is opened again.
    #[error("the producer's spool has failed: open the producer again")]
    SpoolFailed,
    /// Another has taken over: see [`Producer::fenced`](crate::Producer::fenced).
    #[error(
        "another has taken over: a producer with this one's name or a copy of its spool, or a later leader"
    )]
    Fenced,
    /// The producer is closed.
    #[error("the producer is closed")]
    Closed,
}

/// Why a message was not accepted.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no room, or nothing is accepted any more.
    #[error(transparent)]
    Full(#[from] Full),
    /// The sink does not take messages such as this one.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The message is larger than the sink or the spool takes.
    #[error("the message has {size} bytes, and {what} takes {max}")]
    TooLarge {
        /// Its bytes.
        size: u64,
        /// What has the limit.
        what: &'static str,
        /// How many bytes it takes.
        max: u64,
    },
    /// The level needs a spool.
    #[error("level Durable needs a spool: set `spool`")]
    NoSpool,
}

/// A message that was not accepted, and why.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct Refused {
    /// Why.
    #[source]
    pub why: Refusal,
    /// The message.
    pub message: Box<Message>,
}

/// What a send has come to: the level that was asked for, or a higher one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<Id> {
    /// The record is in memory.
    Accepted,
    /// The record is on disk.
    Durable,
    /// The sink has it: what it is called there, its number, and whether it was known.
    Delivered(Accepted<Id>),
}

/// Why a send does not come to its level.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message was not accepted.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It was accepted, and given up.
    #[error("the record is given up: {reason}")]
    Dropped {
        /// Why.
        reason: DropReason,
        /// Whether the sink may have the record all the same, or will have it from the spool.
        may_be_delivered: bool,
        /// What the sink said, if it was that.
        #[source]
        source: Option<TransportError>,
    },
}

/// A record that was accepted: a future of its [`Answer`].
///
/// # Cancellation
/// Dropping it leaves the record where it is.
#[must_use = "the record is accepted, and nobody learns what becomes of it"]
pub struct Ticket<Id>(Waits<Id>);

enum Waits<Id> {
    Accepted,
    /// At once, where nobody else tells it.
    Dropped(DropReason),
    Told(oneshot::Receiver<Told<Id>>),
}

impl<Id> Ticket<Id> {
    fn or_dropped(self, dropped: Option<DropReason>) -> Self {
        match (self.0, dropped) {
            (Waits::Accepted, Some(reason)) => Self(Waits::Dropped(reason)),
            (waits, _) => Self(waits),
        }
    }
}

impl<Id> fmt::Debug for Ticket<Id> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").finish_non_exhaustive()
    }
}

impl<Id> Future for Ticket<Id> {
    type Output = Result<Answer<Id>, SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let told = match &mut self.0 {
            Waits::Accepted => return Poll::Ready(Ok(Answer::Accepted)),
            Waits::Dropped(reason) => Told::dropped(*reason, false),
            // A producer whose runtime has gone tells nobody.
            Waits::Told(told) => std::task::ready!(Pin::new(told).poll(cx))
                .unwrap_or_else(|_| Told::dropped(DropReason::Closed, false)),
        };
        Poll::Ready(match told {
            Told::Durable => Ok(Answer::Durable),
            Told::Delivered(accepted) => Ok(Answer::Delivered(accepted)),
            Told::Dropped(it) => Err(SendError::Dropped {
                reason: it.reason,
                may_be_delivered: it.may_be_there,
                source: it.error,
            }),
        })
    }
}

/// A send, to be awaited: see [`Producer::send`].
#[must_use = "nothing is sent before it is awaited"]
pub struct Send<'a, S: Sink + 'static> {
    pub(crate) producer: &'a Producer<S>,
    pub(crate) message: Message,
    pub(crate) level: AnswerLevel,
    pub(crate) within: Option<Duration>,
    pub(crate) patience: Option<Duration>,
}

impl<S: Sink + 'static> fmt::Debug for Send<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Send");
        it.field("level", &self.level).finish_non_exhaustive()
    }
}

impl<S: Sink + 'static> Send<'_, S> {
    /// When it is answered.
    pub fn level(mut self, level: AnswerLevel) -> Self {
        self.level = level;
        self
    }

    /// How long the record may wait for the sink once it is accepted, in place of
    /// [`deliver_within`](crate::ProducerOptions::deliver_within).
    pub fn within(mut self, within: Duration) -> Self {
        self.within = Some(within);
        self
    }

    /// How long the send waits for room, where the policy lets it wait. Default: as long as it takes.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Accepts the message if there is room now.
    ///
    /// # Errors
    /// If it is not accepted.
    pub fn try_start(self) -> Result<Ticket<S::Id>, Refused> {
        let producer = self.producer;
        let (mut offered, ticket) = self.offered()?;
        match producer.offer(&mut offered) {
            Ok(dropped) => Ok(ticket.or_dropped(dropped)),
            Err(no_room) => Err(refused(offered, no_room.full)),
        }
    }

    /// Waits until the message is accepted. The ticket that comes of it waits for the level.
    ///
    /// # Cancellation
    /// A message is accepted as a whole or not at all; a call that is dropped has not accepted it.
    ///
    /// # Errors
    /// If it is not accepted.
    pub async fn start(self) -> Result<Ticket<S::Id>, Refused> {
        let producer = self.producer;
        // A time that cannot be told is never.
        let until = self.patience.and_then(|it| Instant::now().checked_add(it));
        let (mut offered, ticket) = self.offered()?;
        loop {
            let mut room = std::pin::pin!(producer.room());
            // From here on no room that comes is missed.
            room.as_mut().enable();
            match producer.offer(&mut offered) {
                Ok(dropped) => return Ok(ticket.or_dropped(dropped)),
                Err(no_room) if !no_room.waits => return Err(refused(offered, no_room.full)),
                Err(no_room) => match until {
                    None => room.await,
                    Some(until) => {
                        if tokio::time::timeout_at(until, room).await.is_err() {
                            return Err(refused(offered, no_room.full));
                        }
                    }
                },
            }
        }
    }

    #[expect(clippy::type_complexity, reason = "both halves of one send")]
    fn offered(
        self,
    ) -> Result<(Option<Offered<oneshot::Sender<Told<S::Id>>>>, Ticket<S::Id>), Refused> {
        if let Err(why) = self.producer.check(&self.message, self.level) {
            return Err(Refused {
                why,
                message: Box::new(self.message),
            });
        }
        let (tell, ticket) = match self.level {
            AnswerLevel::Accepted => (None, Ticket(Waits::Accepted)),
            _ => {
                let (tell, told) = oneshot::channel();
                (Some(tell), Ticket(Waits::Told(told)))
            }
        };
        let offered = Offered {
            within: self.within.map(millis),
            expires: None,
            message: self.message,
            level: self.level,
            tell,
        };
        Ok((Some(offered), ticket))
    }
}

fn refused<T>(offered: Option<Offered<T>>, full: Full) -> Refused {
    let message = offered.map(|it| it.message).unwrap_or_default();
    Refused {
        why: full.into(),
        message: Box::new(message),
    }
}

impl<'a, S: Sink + 'static> IntoFuture for Send<'a, S> {
    type Output = Result<Answer<S::Id>, SendError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + std::marker::Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.start().await?.await })
    }
}
