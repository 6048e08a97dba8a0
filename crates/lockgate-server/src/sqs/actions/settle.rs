//! Deletes messages and changes their visibility.

use lockgate_core::LeaseToken;
use lockgate_engine::{Batch, QueueEntry};
use lockgate_machine::{Rejection, Settle, SettleAction, Settled, StaleReason};

use super::{
    Call, Service, batch, filled, in_range,
    refusals::{not_available, receipt_expired},
    required,
};
use crate::{
    auth::Verb,
    queue::{
        extension,
        kind::{Kind, kind_of},
    },
    sqs::{
        error::{ErrorCode, SqsError},
        queue_attributes::VISIBILITY_SECONDS_MAX,
        shapes::{
            BatchOutput, ChangeMessageVisibilityInput, DeleteMessageInput, Nothing,
            SettleBatchInput, SettleEntry, SettledEntry,
        },
        text::Text,
    },
};

/// What to do with a lease.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Delete,
    ChangeVisibility { seconds: u64 },
}

impl Service {
    /// Deletes a message.
    pub(crate) async fn delete_message(
        &self,
        call: &Call<'_>,
        input: DeleteMessageInput<'_>,
    ) -> Result<Nothing, SqsError> {
        let queue = self.queue(call, Verb::Receive, input.queue_url.as_ref())?;
        let handle = required(filled(input.receipt_handle), "ReceiptHandle")?;
        self.settle(&queue, &handle, Wanted::Delete).await
    }

    /// Changes how long a message stays invisible, counted from now.
    pub(crate) async fn change_message_visibility(
        &self,
        call: &Call<'_>,
        input: ChangeMessageVisibilityInput<'_>,
    ) -> Result<Nothing, SqsError> {
        let queue = self.queue(call, Verb::Receive, input.queue_url.as_ref())?;
        let handle = required(filled(input.receipt_handle), "ReceiptHandle")?;
        let wanted = required(visibility(input.visibility_timeout)?, "VisibilityTimeout")?;
        self.settle(&queue, &handle, wanted).await
    }

    /// Deletes several messages, each independently.
    pub(crate) async fn delete_message_batch(
        &self,
        call: &Call<'_>,
        input: SettleBatchInput<'_>,
    ) -> Result<BatchOutput<SettledEntry>, SqsError> {
        let queue = self.queue(call, Verb::Receive, input.queue_url.as_ref())?;
        let max = extension::batch_max(&queue.tags);
        let entries = batch::check(input.entries, max, DeleteEntry)?;
        self.settle_all(&queue, entries, |_, _| Ok(Wanted::Delete))
            .await
    }

    /// Changes how long several messages stay invisible, each independently.
    pub(crate) async fn change_message_visibility_batch(
        &self,
        call: &Call<'_>,
        input: SettleBatchInput<'_>,
    ) -> Result<BatchOutput<SettledEntry>, SqsError> {
        let queue = self.queue(call, Verb::Receive, input.queue_url.as_ref())?;
        let max = extension::batch_max(&queue.tags);
        let entries = batch::check(input.entries, max, VisibilityEntry)?;
        self.settle_all(&queue, entries, |number, entry| {
            visibility(entry.visibility_timeout)?
                .ok_or_else(|| batch::missing::<VisibilityEntry<'_>>(number, "VisibilityTimeout"))
        })
        .await
    }

    async fn settle(
        &self,
        queue: &QueueEntry,
        handle: &str,
        wanted: Wanted,
    ) -> Result<Nothing, SqsError> {
        let token = self.lease(queue, handle)?;
        self.attempts.settled(token);
        let command = wanted.command(queue, token);
        let result = match self.engine.submit(command).await {
            Ok(reply) => Ok(reply),
            Err(lockgate_engine::EngineError::Rejected(rejection)) => Err(rejection),
            Err(error) => return Err(error.into()),
        };
        wanted.outcome(kind_of(&queue.settings), handle, result)?;
        Ok(Nothing {})
    }

    async fn settle_all<'a, E: batch::Entry + AsRef<SettleEntry<'a>>>(
        &self,
        queue: &QueueEntry,
        entries: Vec<(String, E)>,
        wanted: impl Fn(usize, &SettleEntry<'a>) -> Result<Wanted, SqsError>,
    ) -> Result<BatchOutput<SettledEntry>, SqsError> {
        let mut output = batch::output(entries.len());
        let mut waiting = Vec::with_capacity(entries.len());
        let mut commands = Batch::with_capacity(entries.len());
        for (number, (id, entry)) in (1..).zip(&entries) {
            let entry = entry.as_ref();
            let handle = entry
                .receipt_handle
                .as_deref()
                .filter(|handle| !handle.is_empty());
            let checked = handle
                .ok_or_else(|| batch::missing::<E>(number, "ReceiptHandle"))
                .and_then(|handle| {
                    let wanted = wanted(number, entry)?;
                    Ok((handle, self.lease(queue, handle)?, wanted))
                });
            match checked {
                Ok((handle, token, wanted)) => {
                    self.attempts.settled(token);
                    commands.push(wanted.command(queue, token));
                    waiting.push((id, handle, wanted));
                }
                Err(error) => output.failed.push(batch::failed(id.clone(), error)),
            }
        }
        if commands.is_empty() {
            return Ok(output);
        }
        let kind = kind_of(&queue.settings);
        let results = self.engine.submit_all(commands).await?;
        for ((id, handle, wanted), result) in waiting.into_iter().zip(results) {
            match wanted.outcome(kind, handle, result) {
                Ok(()) => output.successful.push(SettledEntry { id: id.clone() }),
                Err(error) => output.failed.push(batch::failed(id.clone(), error)),
            }
        }
        Ok(output)
    }

    /// The lease that a receipt handle names, if it is a lease of this queue.
    fn lease(&self, queue: &QueueEntry, handle: &str) -> Result<LeaseToken, SqsError> {
        let token = self
            .receipts
            .open(handle)
            .map_err(|error| SqsError::receipt_handle_does_not_open(handle, error))?;
        if token.queue == queue.id {
            Ok(token)
        } else {
            Err(SqsError::receipt_handle_of_another_queue(handle))
        }
    }
}

impl Wanted {
    fn command(self, queue: &QueueEntry, token: LeaseToken) -> Settle {
        let action = match self {
            Self::Delete => SettleAction::Ack,
            Self::ChangeVisibility { seconds: 0 }
                if extension::zero_visibility_defers(&queue.tags) =>
            {
                SettleAction::Defer { delay: 0 }
            }
            Self::ChangeVisibility { seconds } => SettleAction::ChangeVisibility {
                hidden: seconds * 1000,
            },
        };
        Settle { token, action }
    }

    /// Turns the machine's result into AWS's answer.
    fn outcome(
        self,
        kind: Kind,
        handle: &str,
        result: Result<Settled, Rejection>,
    ) -> Result<(), SqsError> {
        let stale = match result {
            Ok(Settled::Stale(reason)) => reason,
            Ok(_) => return Ok(()),
            Err(Rejection::OutOfRange { .. }) => {
                return Err(match self {
                    Self::Delete => SqsError::receipt_handle_is_invalid(handle),
                    Self::ChangeVisibility { seconds } => SqsError::invalid_value(
                        seconds,
                        "VisibilityTimeout",
                        format_args!(
                            "Total VisibilityTimeout for the message is beyond the limit \
                             [{VISIBILITY_SECONDS_MAX} seconds]"
                        ),
                    ),
                });
            }
            Err(rejection) => return Err(rejection.into()),
        };
        match (self, kind, stale) {
            // Deleting a deleted message is no error on any queue. On a standard queue AWS also
            // accepts an older handle, and leaves the message to the consumer that received it
            // since.
            (Self::Delete, _, StaleReason::Gone) => Ok(()),
            (Self::Delete, Kind::Standard, _) => Ok(()),
            (Self::ChangeVisibility { .. }, _, StaleReason::Gone) => Err(not_available(handle)),
            (_, Kind::Fifo, StaleReason::Ended | StaleReason::Superseded) => {
                Err(receipt_expired(handle))
            }
            (_, Kind::Fifo, _) => Err(SqsError::stale_receipt_handle(
                handle,
                "An earlier message of the same group must be deleted first.",
            )),
            (Self::ChangeVisibility { .. }, Kind::Standard, StaleReason::Ended) => {
                Err(SqsError::new(
                    ErrorCode::MessageNotInflight,
                    "The specified message isn't in flight.",
                ))
            }
            (Self::ChangeVisibility { .. }, Kind::Standard, _) => Err(not_available(handle)),
        }
    }
}

fn visibility(seconds: Option<i64>) -> Result<Option<Wanted>, SqsError> {
    let seconds = in_range(
        seconds,
        0,
        VISIBILITY_SECONDS_MAX,
        "VisibilityTimeout",
        "VisibilityTimeout must be an integer between 0 and 43200.",
    )?;
    Ok(seconds.map(|seconds| Wanted::ChangeVisibility { seconds }))
}

/// A settle entry under another of AWS's two names for it.
struct DeleteEntry<'a>(SettleEntry<'a>);
struct VisibilityEntry<'a>(SettleEntry<'a>);

impl batch::Entry for DeleteEntry<'_> {
    const NAME: &'static str = "DeleteMessageBatchRequestEntry";

    fn id(&self) -> Option<&Text<'_>> {
        self.0.id.as_ref()
    }
}

impl batch::Entry for VisibilityEntry<'_> {
    const NAME: &'static str = "ChangeMessageVisibilityBatchRequestEntry";

    fn id(&self) -> Option<&Text<'_>> {
        self.0.id.as_ref()
    }
}

impl<'a> AsRef<SettleEntry<'a>> for DeleteEntry<'a> {
    fn as_ref(&self) -> &SettleEntry<'a> {
        &self.0
    }
}

impl<'a> AsRef<SettleEntry<'a>> for VisibilityEntry<'a> {
    fn as_ref(&self) -> &SettleEntry<'a> {
        &self.0
    }
}
