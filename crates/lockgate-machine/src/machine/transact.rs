//! Several settles, states of keys, sends and publishes as one command: all or nothing.

use lockgate_core::Now;

use super::{Machine, draft::Draft, send::check_range};
use crate::{Rejection, Reply, Transact, Transacted};

/// The most settles, states, sends and publishes of a transaction together.
const TRANSACTION_PARTS_MAX: u64 = 1000;

impl Machine {
    pub(super) fn decide_transact(
        &self,
        draft: &mut Draft,
        transact: &Transact,
        now: Now,
    ) -> Result<Reply, Rejection> {
        let Transact {
            settles,
            states,
            sends,
            publishes,
        } = transact;
        check_range(
            "number of settles, states, sends and publishes",
            (settles.len() + states.len() + sends.len() + publishes.len()) as u64,
            1,
            TRANSACTION_PARTS_MAX,
        )?;
        draft.in_transaction = true;
        // Before the settles, which end the leases.
        let holders = states.iter();
        let holders = holders.map(|state| self.written_by(draft, state.token));
        let holders = holders.collect::<Result<Vec<_>, _>>()?;
        // Settles first, so that the sends' quota counts what they free.
        for (index, settle) in settles.iter().enumerate() {
            self.decide_settle(draft, settle, now)?
                .map_err(|reason| Rejection::TransactionStale { index, reason })?;
        }
        let states = self.draft_states(draft, states, holders, now)?;
        let mut sent = Vec::with_capacity(sends.len());
        for (index, send) in sends.iter().enumerate() {
            let answer = self
                .decide_send(draft, send.into(), now)
                .map_err(|source| Rejection::TransactionRefused {
                    index,
                    source: Box::new(source),
                })?;
            sent.push(answer);
        }
        let mut published = Vec::with_capacity(publishes.len());
        for (index, publish) in publishes.iter().enumerate() {
            let answer = self.decide_publish(draft, publish, now).map_err(|source| {
                Rejection::TransactionPublishRefused {
                    index,
                    source: Box::new(source),
                }
            })?;
            published.push(answer);
        }
        // A settle of a strict batch has one effect for each of its messages, and the record finds
        // a message by its index among the effects.
        check_range(
            "number of messages that the transaction touches",
            draft.effects.len() as u64,
            0,
            u64::from(u16::MAX),
        )?;
        Ok(Reply::Transacted(Transacted {
            sent,
            states,
            published,
        }))
    }
}
