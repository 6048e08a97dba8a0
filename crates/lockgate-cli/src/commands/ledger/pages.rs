//! Events of a ledger, page after page, each checked against the one before it.

use std::time::Duration;

use lockgate_core::ledger::{Chain, Ledger as _, LedgerHead, LedgerPage, ReadLedger, SequenceId};

use crate::{args::Range, exit::Failure, ledger::AnyLedger};

/// Events of a page, at most.
const PAGE_EVENTS: u64 = 1_000;

pub(super) struct Pages {
    ledger: AnyLedger,
    chain: Chain,
}

impl Pages {
    /// Events behind that one.
    pub(super) fn new(ledger: AnyLedger, chain: Chain) -> Self {
        Self { ledger, chain }
    }

    /// The last event that came.
    pub(super) fn last(&self) -> SequenceId {
        self.chain.sequence_id
    }

    pub(super) fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The next page, of up to `max` events; empty if none came within the wait.
    ///
    /// # Errors
    /// Also an event that does not follow: exit code 1, and what does not hold.
    pub(super) async fn next(&mut self, max: u64, wait: Duration) -> Result<LedgerPage, Failure> {
        let read = ReadLedger {
            after: self.last(),
            limit: usize::try_from(max.min(PAGE_EVENTS)).unwrap_or(1),
            wait,
        };
        let page = self.ledger.read(read).await?;
        for event in &page.events {
            self.chain.follow(event).map_err(Failure::failed)?;
        }
        Ok(page)
    }

    /// The next page of events that must be there, up to that one.
    ///
    /// # Errors
    /// As [`next`](Self::next), and exit code 1 if none comes.
    pub(super) async fn next_up_to(&mut self, to: SequenceId) -> Result<LedgerPage, Failure> {
        let left = to.0 - self.last().0;
        let page = self.next(left, Duration::ZERO).await?;
        match page.events.is_empty() {
            true => Err(does_not_come(self.last().next())),
            false => Ok(page),
        }
    }
}

fn does_not_come(event: SequenceId) -> Failure {
    Failure::failed(format!("event {event} does not come"))
}

/// The first and the last event of a range, which must be there; the last one is before the first where there is none.
pub(super) fn range(range: Range, head: &LedgerHead) -> Result<(SequenceId, SequenceId), Failure> {
    let from = range.from.map_or(head.first_id, SequenceId);
    let to = range.to.map_or(head.sequence_id, SequenceId);
    if range.from.is_some() && range.to.is_some() && from > to {
        return Err(Failure::usage(format!(
            "the range begins with event {from} and ends with event {to}"
        )));
    }
    head.reaches(to)?;
    // The one behind the last is the next to come: so far the range is empty.
    if from > head.sequence_id.next() {
        head.reaches(from)?;
    }
    let first_asked = range.to.map_or(from, |to| from.min(SequenceId(to)));
    head.keeps_behind(first_asked.previous())?;
    Ok((from, to))
}

/// What is known of the event before that one: all, if the ledger keeps it.
pub(super) async fn first_of(
    ledger: &AnyLedger,
    head: &LedgerHead,
    from: SequenceId,
) -> Result<Chain, Failure> {
    let before = from.previous();
    if before == SequenceId::START || before < head.first_id {
        return Ok(Chain::behind(before));
    }
    let mut pages = Pages::new(ledger.clone(), Chain::behind(before.previous()));
    pages.next(1, Duration::ZERO).await?;
    match pages.last() == before {
        true => Ok(*pages.chain()),
        false => Err(does_not_come(before)),
    }
}

#[cfg(test)]
mod tests {
    use lockgate_core::{Epoch, WallTime};

    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_range_is_there_or_empty_or_refused() {
        let head = |first, last| LedgerHead {
            sequence_id: SequenceId(last),
            first_id: SequenceId(first),
            epoch: Epoch(0),
            time: WallTime(0),
            hash: None,
            is_sealed: false,
        };
        let ask = |from, to, (first, last)| {
            let found = range(Range { from, to }, &head(first, last));
            found
                .map(|(from, to)| (from.0, to.0))
                .map_err(|failure| failure.exit())
        };
        let kept = (3, 9);
        for (from, to, found) in [
            (None, None, Ok((3, 9))),
            (Some(4), Some(4), Ok((4, 4))),
            (Some(10), None, Ok((10, 9))),
            (Some(11), None, Err(Exit::Conflict)),
            (Some(u64::MAX), None, Err(Exit::Conflict)),
            (None, Some(10), Err(Exit::Conflict)),
            (Some(9), Some(u64::MAX), Err(Exit::Conflict)),
            (Some(2), None, Err(Exit::Conflict)),
            (Some(1), Some(2), Err(Exit::Conflict)),
            (None, Some(2), Err(Exit::Conflict)),
            (Some(5), Some(4), Err(Exit::Usage)),
            (Some(10), Some(9), Err(Exit::Usage)),
        ] {
            assert_eq!(ask(from, to, kept), found, "{from:?} to {to:?}");
        }
        let all_is_trimmed = (10, 9);
        for (from, to, found) in [
            (None, None, Ok((10, 9))),
            (Some(10), None, Ok((10, 9))),
            (Some(9), None, Err(Exit::Conflict)),
            (None, Some(9), Err(Exit::Conflict)),
        ] {
            assert_eq!(ask(from, to, all_is_trimmed), found, "{from:?} to {to:?}");
        }
        assert_eq!(ask(None, None, (1, 0)), Ok((1, 0)));
        assert_eq!(ask(Some(1), None, (1, 0)), Ok((1, 0)));
        assert_eq!(ask(Some(2), None, (1, 0)), Err(Exit::Conflict));
    }
}
