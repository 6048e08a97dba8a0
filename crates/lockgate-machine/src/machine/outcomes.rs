//! Counts what commands came to that is no effect.

use lockgate_core::{ProducerRefused, QueueId, QueueName, RecordsError};

use super::{ExchangeError, Machine};
use crate::{AnyCommand, Command, Publication, Publish, Rejection, Reply, Settled, Transact};

impl Machine {
    /// Counts the parts of a decision that are no effects: duplicates and stale tokens. An engine
    /// calls this with every decided command and its outcome; the counters start from zero with it.
    pub fn note_outcome<'a>(
        &mut self,
        command: impl Into<AnyCommand<'a>>,
        outcome: &Result<Reply, Rejection>,
    ) {
        let AnyCommand::Caller(command) = command.into() else {
            return;
        };
        match (command.plain(), outcome) {
            (Command::Send(send), Ok(Reply::Sent(sent))) if sent.duplicate => {
                self.count_duplicate(&send.queue);
            }
            (Command::Send(send), Err(rejection)) => self.count_refused(&send.queue, rejection),
            (
                Command::Transact(Transact { sends, .. }),
                Err(Rejection::TransactionRefused { index, source }),
            ) => {
                if let Some(send) = sends.get(*index) {
                    self.count_refused(&send.queue, source);
                }
            }
            (Command::Publish(_), Ok(Reply::Published(done))) => self.count_duplicates_of(done),
            (Command::Publish(publish), Err(rejection)) => {
                self.count_publish_refused(publish, rejection);
            }
            (
                Command::Transact(Transact { publishes, .. }),
                Err(Rejection::TransactionPublishRefused { index, source }),
            ) => {
                if let Some(publish) = publishes.get(*index) {
                    self.count_publish_refused(publish, source);
                }
            }
            (Command::Transact(Transact { sends, .. }), Ok(Reply::Transacted(done))) => {
                for (send, _) in sends
                    .iter()
                    .zip(&done.sent)
                    .filter(|(_, sent)| sent.duplicate)
                {
                    self.count_duplicate(&send.queue);
                }
                for published in &done.published {
                    self.count_duplicates_of(published);
                }
            }
            // If the first message of a strict batch is given back, the whole batch is; its other
            // settles then find their leases ended, which is no mistake.
            (Command::Settle(settle), Ok(Reply::Settled(Settled::Stale(_))))
                if settle.action != crate::SettleAction::GiveBack =>
            {
                self.count_stale(settle.token.queue);
            }
            (
                Command::Transact(Transact { settles, .. }),
                Err(Rejection::TransactionStale { index, .. }),
            ) => {
                if let Some(settle) = settles.get(*index) {
                    self.count_stale(settle.token.queue);
                }
            }
            (Command::AppendEvents(append), Err(Rejection::TransactionStale { index, .. })) => {
                if let Some(settle) = append.settles.get(*index) {
                    self.count_stale(settle.token.queue);
                }
            }
            (
                Command::Transact(Transact { states, .. }),
                Err(Rejection::KeyStateStale { index, .. }),
            ) => {
                if let Some(state) = states.get(*index) {
                    self.count_stale(state.token.queue);
                }
            }
            (_, Err(Rejection::Record(RecordsError::LeaseLost { .. }))) => {
                self.records.stale += 1;
            }
            _ => {}
        }
    }

    fn count_duplicate(&mut self, queue: &QueueName) {
        if let Some(&queue) = self.queue_names.get(queue) {
            self.queues[queue].totals.duplicates += 1;
        }
    }

    fn count_duplicates_of(&mut self, published: &Publication) {
        let copies = published.copies.iter();
        for copied in copies.filter(|copied| copied.sent.duplicate) {
            self.count_duplicate(&copied.queue);
        }
    }

    fn count_publish_refused(&mut self, publish: &Publish, rejection: &Rejection) {
        match rejection {
            Rejection::PublishRefused { queue, source, .. } => self.count_refused(queue, source),
            Rejection::Exchange(ExchangeError::Unroutable { .. }) => {
                self.count_refused_publish(&publish.exchange);
            }
            _ => {}
        }
    }

    /// Counts a send that a producer's record was refused for.
    fn count_refused(&mut self, queue: &QueueName, rejection: &Rejection) {
        let Some(&queue) = self.queue_names.get(queue) else {
            return;
        };
        let totals = &mut self.queues[queue].totals;
        match rejection {
            Rejection::SentBefore { .. } => totals.sent_before += 1,
            Rejection::Producer {
                refused: ProducerRefused::Fenced { .. },
                ..
            } => totals.fenced += 1,
            _ => {}
        }
    }

    fn count_stale(&mut self, queue: QueueId) {
        match self.queue_index(queue) {
            Some(queue) => self.queues[queue].totals.stale_settles += 1,
            None => self.deleted_totals.stale_settles += 1,
        }
    }
}
