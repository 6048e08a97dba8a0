//! Whether a handler does the same with the same events.

use lockgate_core::ledger::{Chain, ChainBreak, EventHash, Ledger, LedgerError, SequenceId};

use crate::follower::{Apply, page_behind};

/// A handler whose state can be compared.
pub trait Replica: Apply {
    /// A hash of all its state, such as BLAKE3 over it in a fixed order. Replicas with one state have one hash.
    fn state_hash(&self) -> EventHash;
}

/// What a replay has shown: two replicas agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Behind the last event that was replayed.
    pub position: Chain,
    /// Of the state of both there.
    pub state_hash: EventHash,
}

/// Why a replay has not shown it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError<E> {
    /// The same events have led to two states: the handler depends on something else, such as a clock, a random number, the
    /// order of a hash map, or how many events it is given at a time.
    #[error(
        "the replicas agree up to event {agreed}, and differ at event {differ}: {first} and {second}"
    )]
    Diverged {
        /// The last place at which they agreed; they are compared once for each page.
        agreed: SequenceId,
        /// Where they differ.
        differ: SequenceId,
        /// The state of the first one.
        first: EventHash,
        /// That of the second one.
        second: EventHash,
    },
    /// The events do not follow one another.
    #[error(transparent)]
    Chain(#[from] ChainBreak),
    /// The ledger cannot be read, or does not have these events.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A replica has failed.
    #[error("event {first} was not applied: {error}")]
    Apply {
        /// The first of the events that it was given.
        first: SequenceId,
        /// What it said.
        error: E,
    },
}

/// Gives the events behind `from` up to `to` to two replicas, and compares their states after each page of up to 1,000 events.
/// The first one is given each page as a whole, the second one its events one at a time.
///
/// `from` is where both begin: [`Chain::START`], or the position of the snapshot that both were made of.
///
/// # Errors
/// [`ReplayError`]; with a `to` that the ledger has not reached, [`Beyond`](LedgerError::Beyond).
pub async fn replay<L: Ledger, R: Replica>(
    ledger: &L,
    from: Chain,
    to: SequenceId,
    replicas: &mut [R; 2],
) -> Result<Replayed, ReplayError<R::Error>> {
    let mut chain = from;
    let head = ledger.head().await?.sequence_id;
    if to > head {
        let sequence_id = to;
        return Err(LedgerError::Beyond { sequence_id, head }.into());
    }
    let [first, second] = replicas;
    compare(from.sequence_id, from.sequence_id, first, second)?;
    while chain.sequence_id < to {
        let agreed = chain.sequence_id;
        let left = usize::try_from(to.0 - agreed.0).unwrap_or(usize::MAX);
        let page = ledger.read(page_behind(agreed, left.min(1_000))).await?;
        if page.events.is_empty() {
            let why = format!("there is no event behind {agreed}, and its head is {head}");
            return Err(LedgerError::Damaged { why }.into());
        }
        for event in &page.events {
            chain.follow(event)?;
            let at = event.sequence_id;
            apply(second, vec![event.clone()], chain, at).await?;
        }
        apply(first, page.events, chain, agreed.next()).await?;
        compare(agreed, chain.sequence_id, first, second)?;
    }
    Ok(Replayed {
        position: chain,
        state_hash: first.state_hash(),
    })
}

async fn apply<R: Replica>(
    replica: &mut R,
    events: Vec<lockgate_core::ledger::Event>,
    position: Chain,
    first: SequenceId,
) -> Result<(), ReplayError<R::Error>> {
    let applied = replica.apply(events, position).await;
    applied.map_err(|error| ReplayError::Apply { first, error })
}

fn compare<R: Replica>(
    agreed: SequenceId,
    differ: SequenceId,
    first: &R,
    second: &R,
) -> Result<(), ReplayError<R::Error>> {
    let (first, second) = (first.state_hash(), second.state_hash());
    match first == second {
        true => Ok(()),
        false => Err(ReplayError::Diverged {
            agreed,
            differ,
            first,
            second,
        }),
    }
}
