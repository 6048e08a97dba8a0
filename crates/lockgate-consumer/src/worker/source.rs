//! Sources of any type behind one.

use std::{
    any::Any,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockgate_core::{
    Fate, KeyStateWrite, Leased, Message, MessageName, Millis, ReceiveRequest, RecordVersion,
    Sequence, Settlement, Source, SourceCapabilities, TransportError, WallTime,
};

use super::states::{LeaseState, states_of};

/// A message under a lease, whatever its source calls the lease.
pub(crate) trait Held: Any + Send + Sync {
    fn lease(&self) -> &Lease;
}

impl fmt::Debug for dyn Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lease().message.fmt(f)
    }
}

/// What a worker knows of a message and its lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) message: Message,
    pub(crate) name: Option<MessageName>,
    pub(crate) sequence: Option<Sequence>,
    pub(crate) accepted: Option<WallTime>,
    pub(crate) source: usize,
    /// The attempt that the source counted.
    pub(super) attempt: u32,
    pub(super) remaining: Duration,
    /// When it ends, by the worker's clock; [`Millis::MAX`]: never.
    ends: AtomicU64,
    /// What belongs to the state of its key, if the worker is to have states.
    pub(crate) state: Option<LeaseState>,
}

impl Lease {
    pub(super) fn set_end(&self, at: Millis) {
        self.ends.store(at, Ordering::Relaxed);
    }

    /// When the lease ends, as far as is known.
    pub(crate) fn end(&self) -> Millis {
        self.ends.load(Ordering::Relaxed)
    }
}

struct HeldBy<Receipt> {
    receipt: Receipt,
    lease: Lease,
}

impl<Receipt: Send + Sync + 'static> Held for HeldBy<Receipt> {
    fn lease(&self) -> &Lease {
        &self.lease
    }
}

pub(super) type HeldMessage = Arc<dyn Held>;
pub(super) type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A [`Source`] whose receipts have no type.
pub(super) trait AnySource: Send + Sync {
    fn capabilities(&self) -> SourceCapabilities;

    /// `with_states`: whether the worker is to have the states of keys.
    fn receive(
        self: Arc<Self>,
        number: usize,
        request: ReceiveRequest,
        with_states: bool,
    ) -> Call<Result<Vec<HeldMessage>, TransportError>>;

    fn settle(
        self: Arc<Self>,
        settles: Vec<(HeldMessage, Settlement)>,
    ) -> Call<Vec<Result<(), TransportError>>>;

    fn settle_with_state(
        self: Arc<Self>,
        settles: Vec<(HeldMessage, Settlement)>,
        write: KeyStateWrite,
    ) -> Call<Result<Option<RecordVersion>, TransportError>>;

    fn extend(
        self: Arc<Self>,
        held: Vec<HeldMessage>,
        lease: Duration,
    ) -> Call<Vec<Result<Duration, TransportError>>>;
}

impl<S: Source + 'static> AnySource for S {
    fn capabilities(&self) -> SourceCapabilities {
        self.source_capabilities()
    }

    fn receive(
        self: Arc<Self>,
        number: usize,
        request: ReceiveRequest,
        with_states: bool,
    ) -> Call<Result<Vec<HeldMessage>, TransportError>> {
        Box::pin(async move {
            let mut received = self.receive_batch(request).await?;
            let states = match with_states {
                true => states_of(&mut received),
                false => Vec::new(),
            };
            let states = states.into_iter().chain(std::iter::repeat_with(|| None));
            let received = received.into_iter().zip(states);
            Ok(received
                .map(|(leased, state)| held(number, leased, state))
                .collect())
        })
    }

    fn settle(
        self: Arc<Self>,
        settles: Vec<(HeldMessage, Settlement)>,
    ) -> Call<Vec<Result<(), TransportError>>> {
        Box::pin(async move {
            let count = settles.len();
            let settles = settles.into_iter();
            let settles = settles.map(|(held, how)| (receipt::<S>(&*held).clone(), how));
            all_of(count, self.settle_batch(settles.collect()).await)
        })
    }

    fn settle_with_state(
        self: Arc<Self>,
        settles: Vec<(HeldMessage, Settlement)>,
        write: KeyStateWrite,
    ) -> Call<Result<Option<RecordVersion>, TransportError>> {
        Box::pin(async move {
            let settles = settles.into_iter();
            let settles = settles.map(|(held, how)| (receipt::<S>(&*held).clone(), how));
            Source::settle_with_state(&*self, settles.collect(), write).await
        })
    }

    fn extend(
        self: Arc<Self>,
        held: Vec<HeldMessage>,
        lease: Duration,
    ) -> Call<Vec<Result<Duration, TransportError>>> {
        Box::pin(async move {
            let receipts = held.iter().map(|held| receipt::<S>(&**held).clone());
            all_of(
                held.len(),
                self.extend_batch(receipts.collect(), lease).await,
            )
        })
    }
}

fn held<Receipt: Send + Sync + 'static>(
    source: usize,
    leased: Leased<Receipt>,
    state: Option<LeaseState>,
) -> HeldMessage {
    Arc::new(HeldBy {
        receipt: leased.receipt,
        lease: Lease {
            message: leased.message,
            name: leased.name,
            sequence: leased.sequence,
            accepted: leased.accepted,
            source,
            attempt: leased.attempt,
            remaining: leased.remaining,
            ends: AtomicU64::new(0),
            state,
        },
    })
}

fn receipt<S: Source + 'static>(held: &dyn Held) -> &S::Receipt {
    let held: &dyn Any = held;
    let held = held.downcast_ref::<HeldBy<S::Receipt>>();
    &held.expect("a source settles what it gave").receipt
}

/// A source that answers with fewer results than it was asked for leaves the others unknown.
fn all_of<T>(
    count: usize,
    mut results: Vec<Result<T, TransportError>>,
) -> Vec<Result<T, TransportError>> {
    results.truncate(count);
    results.resize_with(count, || {
        let error = "the source has answered for fewer than it was asked for";
        Err(TransportError::new(Fate::Unknown, error))
    });
    results
}
