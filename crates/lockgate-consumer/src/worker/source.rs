//! Sources of any type behind one.

use std::{
    any::Any,
    collections::HashMap,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockgate_core::{
    Fate, KeyStateWrite, Leased, Message, MessageName, Millis, ReceiveRequest, RecordVersion,
    Sequence, Settlement, Source, SourceCapabilities, TransportError, WallTime, pack,
};

use super::{
    packs::{Member, Remembered},
    states::{LeaseState, states_of},
};

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
    /// Why it cannot be handled, though the source gave it.
    pub(super) unreadable: Option<Arc<str>>,
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
    /// Its place in its pack, if it came in one.
    member: Option<Member>,
}

impl<Receipt: Send + Sync + 'static> Held for HeldBy<Receipt> {
    fn lease(&self) -> &Lease {
        &self.lease
    }
}

pub(super) type HeldMessage = Arc<dyn Held>;
pub(super) type Call<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a worker wants of what it receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wants {
    /// The states of keys.
    pub(super) states: bool,
    /// Why it cannot take packs apart, if so.
    pub(super) no_packs: Option<&'static str>,
}

/// A source, and what is remembered of its packs.
pub(super) struct Opened<S> {
    source: S,
    remembered: Mutex<Remembered>,
}

impl<S> Opened<S> {
    pub(super) fn new(source: S) -> Self {
        Self {
            source,
            remembered: Mutex::default(),
        }
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`Source`] whose receipts have no type, and whose packs are taken apart.
pub(super) trait AnySource: Send + Sync {
    fn capabilities(&self) -> SourceCapabilities;

    fn receive(
        self: Arc<Self>,
        number: usize,
        request: ReceiveRequest,
        wants: Wants,
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

impl<S: Source + 'static> AnySource for Opened<S> {
    fn capabilities(&self) -> SourceCapabilities {
        self.source.source_capabilities()
    }

    fn receive(
        self: Arc<Self>,
        number: usize,
        request: ReceiveRequest,
        wants: Wants,
    ) -> Call<Result<Vec<HeldMessage>, TransportError>> {
        Box::pin(async move {
            let mut received = self.source.receive_batch(request).await?;
            let states = match wants.states {
                true => states_of(&mut received),
                false => Vec::new(),
            };
            let states = states.into_iter().chain(std::iter::repeat_with(|| None));
            let mut all = Vec::with_capacity(received.len());
            for (leased, state) in received.into_iter().zip(states) {
                if !pack::is_pack(&leased.message) {
                    all.push(held(number, leased, state, None, None));
                    continue;
                }
                if let Some(why) = wants.no_packs {
                    all.push(held(number, leased, state, None, Some(why.into())));
                    continue;
                }
                let opened = self.remembered().open(&leased);
                match opened {
                    Ok(members) => all.extend(
                        members
                            .into_iter()
                            .map(|(leased, member)| held(number, leased, None, Some(member), None)),
                    ),
                    Err(error) => {
                        let why = error.to_string().into();
                        all.push(held(number, leased, None, None, Some(why)));
                    }
                }
            }
            Ok(all)
        })
    }

    fn settle(
        self: Arc<Self>,
        settles: Vec<(HeldMessage, Settlement)>,
    ) -> Call<Vec<Result<(), TransportError>>> {
        Box::pin(async move {
            let mut results = Vec::with_capacity(settles.len());
            let (mut places, mut calls) = (Vec::new(), Vec::new());
            for (place, (held, how)) in settles.iter().enumerate() {
                results.push(Ok(()));
                let it = of::<S>(&**held);
                let how = match &it.member {
                    None => Some(how.clone()),
                    Some(member) => member.end(how.clone()),
                };
                if let Some(how) = how {
                    let comes_again = !matches!(how, Settlement::Ack | Settlement::Reject { .. });
                    places.push((place, it, comes_again));
                    calls.push((it.receipt.clone(), how));
                }
            }
            if calls.is_empty() {
                return results;
            }
            let answers = all_of(calls.len(), self.source.settle_batch(calls).await);
            for ((place, it, comes_again), answer) in places.into_iter().zip(answers) {
                if let Some(member) = it.member.as_ref().filter(|_| comes_again && answer.is_ok()) {
                    self.remembered().keep(&member.pack);
                }
                results[place] = answer;
            }
            results
        })
    }

    fn settle_with_state(
        self: Arc<Self>,
        settles: Vec<(HeldMessage, Settlement)>,
        write: KeyStateWrite,
    ) -> Call<Result<Option<RecordVersion>, TransportError>> {
        Box::pin(async move {
            let settles = settles.into_iter();
            let settles = settles.map(|(held, how)| (of::<S>(&*held).receipt.clone(), how));
            (self.source)
                .settle_with_state(settles.collect(), write)
                .await
        })
    }

    fn extend(
        self: Arc<Self>,
        held: Vec<HeldMessage>,
        lease: Duration,
    ) -> Call<Vec<Result<Duration, TransportError>>> {
        Box::pin(async move {
            // Those of a pack have one lease.
            let (mut receipts, mut places) = (Vec::new(), Vec::with_capacity(held.len()));
            let mut packs: HashMap<usize, usize> = HashMap::new();
            for held in &held {
                let it = of::<S>(&**held);
                let next = receipts.len();
                let place = match &it.member {
                    Some(member) => *packs
                        .entry(Arc::as_ptr(&member.pack).addr())
                        .or_insert(next),
                    None => next,
                };
                if place == next {
                    receipts.push(it.receipt.clone());
                }
                places.push(place);
            }
            let count = receipts.len();
            let answers = all_of(count, self.source.extend_batch(receipts, lease).await);
            places
                .into_iter()
                .map(|place| answers[place].clone())
                .collect()
        })
    }
}

fn held<Receipt: Send + Sync + 'static>(
    source: usize,
    leased: Leased<Receipt>,
    state: Option<LeaseState>,
    member: Option<Member>,
    unreadable: Option<Arc<str>>,
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
            unreadable,
        },
        member,
    })
}

fn of<S: Source + 'static>(held: &dyn Held) -> &HeldBy<S::Receipt> {
    let held: &dyn Any = held;
    let held = held.downcast_ref::<HeldBy<S::Receipt>>();
    held.expect("a source settles what it gave")
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
