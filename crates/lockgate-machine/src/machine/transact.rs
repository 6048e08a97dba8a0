//! Several settles and sends as one command: all or nothing.

use lockgate_core::Now;

use super::{Machine, draft::Draft, send::check_range};
use crate::{Rejection, Reply, SendMessage, Settle};

/// The most settles and sends of a transaction together.
const TRANSACTION_PARTS_MAX: u64 = 1000;

impl Machine {
    pub(super) fn decide_transact(
        &self,
        draft: &mut Draft,
        settles: &[Settle],
        sends: &[SendMessage],
        now: Now,
    ) -> Result<Reply, Rejection> {
        check_range(
            "number of settles and sends",
            (settles.len() + sends.len()) as u64,
            1,
            TRANSACTION_PARTS_MAX,
        )?;
        draft.in_transaction = true;
        // Settles first, so that the sends' quota counts what they free.
        for (index, settle) in settles.iter().enumerate() {
            self.decide_settle(draft, settle, now)?
                .map_err(|reason| Rejection::TransactionStale { index, reason })?;
        }
        let mut sent = Vec::with_capacity(sends.len());
        for (index, send) in sends.iter().enumerate() {
            let answer = self.decide_send(draft, send, now).map_err(|source| {
                Rejection::TransactionRefused {
                    index,
                    source: Box::new(source),
                }
            })?;
            sent.push(answer);
        }
        // A settle of a strict batch has one effect for each of its messages, and the record finds
        // a message by its index among the effects.
        check_range(
            "number of messages that the transaction touches",
            draft.effects.len() as u64,
            0,
            u64::from(u16::MAX),
        )?;
        Ok(Reply::Transacted(sent))
    }
}
