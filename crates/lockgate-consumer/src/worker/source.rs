//! Sources of any type behind one.

use std::{
    any::Any,
    fmt,
    future::Future,
    iter::repeat_n,
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
    packs::{Member, Pack, Remembered, name_of, of_all},
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
    /// When it ends, by the worker's clock; [`Millis::MAX`]: never. Messages of a pack share it.
    ends: Arc<AtomicU64>,
    /// What it takes in memory, without the state.
    pub(super) bytes: u64,
    /// Tells packs apart that come next to each other, if it came in one.
    pub(super) pack: Option<u64>,
    /// It does not run, and is settled so.
    pub(super) at_once: Option<Settlement>,
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

impl<Receipt: Send + Sync + 'static> HeldBy<Receipt> {
    /// A message that has come, and is to be handled.
    fn new(leased: Leased<Receipt>) -> Self {
        let lease = Lease {
            bytes: leased.message.size() as u64,
            message: leased.message,
            name: leased.name,
            sequence: leased.sequence,
            accepted: leased.accepted,
            source: 0,
            attempt: leased.attempt,
            remaining: leased.remaining,
            ends: Arc::default(),
            pack: None,
            at_once: None,
            state: None,
            unreadable: None,
        };
        Self {
            receipt: leased.receipt,
            lease,
            member: None,
        }
    }

    fn of(mut self, source: usize) -> HeldMessage {
        self.lease.source = source;
        Arc::new(self)
    }
}

impl<Receipt: Send + Sync + 'static> Held for HeldBy<Receipt> {
    fn lease(&self) -> &Lease {
        &self.lease
    }
}

/// What a message takes in memory beside its bytes, about, and each of its headers. It counts for messages of packs, of
/// which one can have thousands that are empty.
const MEMBER_BYTES: u64 = 512;
const HEADER_BYTES: u64 = 128;

pub(super) type HeldMessage = Arc<dyn Held>;

/// What a receive brought.
pub(super) enum Received {
    Messages(Vec<HeldMessage>),
    /// Packs are among it. This takes them apart, until they have so many bytes; it takes a while, and then what is
    /// behind goes back.
    Packs(Box<dyn FnOnce(u64) -> Vec<HeldMessage> + Send>),
}
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
    ) -> Call<Result<Received, TransportError>>;

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
    ) -> Call<Result<Received, TransportError>> {
        Box::pin(async move {
            let mut received = self.source.receive_batch(request).await?;
            let is_pack = |leased: &Leased<_>| pack::is_pack(&leased.message);
            if wants.no_packs.is_none() && received.iter().any(is_pack) {
                let open = move |bytes_max| self.open(number, received, bytes_max);
                return Ok(Received::Packs(Box::new(open)));
            }
            let states = match wants.states {
                true => states_of(&mut received),
                false => Vec::new(),
            };
            let states = states.into_iter().chain(std::iter::repeat_with(|| None));
            let all = received.into_iter().zip(states).map(|(leased, state)| {
                let why = wants.no_packs.filter(|_| is_pack(&leased));
                let mut held = HeldBy::new(leased);
                held.lease.state = state;
                held.lease.unreadable = why.map(Arc::from);
                held.of(number)
            });
            Ok(Received::Messages(all.collect()))
        })
    }

    fn settle(
        self: Arc<Self>,
        settles: Vec<(HeldMessage, Settlement)>,
    ) -> Call<Vec<Result<(), TransportError>>> {
        Box::pin(async move {
            let (mut calls, mut packs) = (Vec::new(), Vec::new());
            // Of each message, the place of its call.
            let mut places: Vec<Option<usize>> = Vec::with_capacity(settles.len());
            for together in
                settles.chunk_by(|(one, _), (other, _)| are_of_one_pack::<S>(one, other))
            {
                let (first, how) = &together[0];
                let it = of::<S>(&**first);
                let how = match &it.member {
                    None => Some(how.clone()),
                    Some(member) => self.end_of(&member.pack, together),
                };
                let place = how.map(|how| {
                    let is_over = matches!(how, Settlement::Ack | Settlement::Reject { .. });
                    let pack = it.member.as_ref().filter(|_| is_over);
                    packs.extend(pack.map(|member| (calls.len(), &member.pack)));
                    calls.push((it.receipt.clone(), how));
                    calls.len() - 1
                });
                places.extend(repeat_n(place, together.len()));
            }
            let mut answers = Vec::new();
            if !calls.is_empty() {
                answers = all_of(calls.len(), self.source.settle_batch(calls).await);
            }
            for (place, pack) in packs {
                if let Some(name) = pack.name.as_ref().filter(|_| answers[place].is_ok()) {
                    self.remembered().take(name);
                }
            }
            let lost = || {
                let error = "the lease of its pack was lost before all of the pack had ended";
                Err(TransportError::new(Fate::Stale, error))
            };
            let answer = |place: Option<usize>| place.map_or_else(lost, |at| answers[at].clone());
            places.into_iter().map(answer).collect()
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
            let receipts = held.iter().map(|held| of::<S>(&**held).receipt.clone());
            let receipts: Vec<_> = receipts.collect();
            all_of(held.len(), self.source.extend_batch(receipts, lease).await)
        })
    }
}

impl<S: Source + 'static> Opened<S> {
    /// What came in a receive with packs in it, of which the messages of packs have `bytes_max` bytes, and one pack
    /// more: a body of a few KiB can become 16 MiB. What is behind goes back, so that its order stays.
    fn open(
        &self,
        number: usize,
        received: Vec<Leased<S::Receipt>>,
        bytes_max: u64,
    ) -> Vec<HeldMessage> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        for leased in received {
            let has_room = bytes < bytes_max;
            if !has_room || !pack::is_pack(&leased.message) {
                let mut held = HeldBy::new(leased);
                held.lease.at_once = (!has_room).then_some(Settlement::GiveBack);
                all.push(held.of(number));
                continue;
            }
            match pack::unpack(&leased.message) {
                Ok(messages) => {
                    let members = self.members(number, &leased, messages);
                    bytes += members.iter().map(|held| held.lease().bytes).sum::<u64>();
                    all.extend(members);
                }
                Err(error) => {
                    let mut held = HeldBy::new(leased);
                    held.lease.unreadable = Some(error.to_string().into());
                    all.push(held.of(number));
                }
            }
        }
        all
    }

    /// The messages of a pack that are to be handled, in their order. If all were done, and the pack came again all the
    /// same, one of them, which settles the pack.
    fn members(
        &self,
        number: usize,
        leased: &Leased<S::Receipt>,
        messages: Vec<Message>,
    ) -> Vec<HeldMessage> {
        let name = name_of(leased);
        let done = name
            .as_ref()
            .and_then(|name| self.remembered().done(name).cloned());
        let done = done.filter(|done| done.len() == messages.len());
        let done = done.unwrap_or_else(|| vec![None; messages.len()]);
        let bytes_of = |message: &Message| {
            let headers = message.headers.len() as u64 * HEADER_BYTES;
            message.size() as u64 + MEMBER_BYTES + headers
        };
        let all_done = messages.iter().zip(&done).filter(|(_, how)| how.is_some());
        let mut of_done: u64 = all_done.map(|(message, _)| bytes_of(message)).sum();
        let is_done = done.iter().all(Option::is_some);
        let pack = Arc::new(Pack { name, done });
        let ends = Arc::new(AtomicU64::new(0));
        let mut members = Vec::new();
        for (index, message) in messages.into_iter().enumerate() {
            if pack.done[index].is_some() && !(is_done && index == 0) {
                continue;
            }
            let name = leased.name.as_ref();
            let name = name.map(|name| MessageName::Text(format!("{name}#{index}").into()));
            let mut held = HeldBy::new(Leased {
                name,
                message,
                ..leased.clone()
            });
            let lease = &mut held.lease;
            lease.at_once.clone_from(&pack.done[index]);
            // All that is unpacked stays as long as a part of it, so what was done counts with the first.
            lease.bytes = bytes_of(&lease.message) + std::mem::take(&mut of_done);
            lease.pack = Some(Arc::as_ptr(&pack).addr() as u64);
            lease.ends = ends.clone();
            let pack = pack.clone();
            held.member = Some(Member { pack, index });
            members.push(held.of(number));
        }
        members
    }

    /// How a pack ends whose messages that were here have ended so. `None`: some of it were lost. What was done is kept
    /// before the source is asked, whatever comes of that.
    fn end_of(&self, pack: &Pack, members: &[(HeldMessage, Settlement)]) -> Option<Settlement> {
        let mut ends = pack.done.clone();
        for (held, how) in members {
            if let Some(member) = &of::<S>(&**held).member {
                ends[member.index] = Some(how.clone());
            }
        }
        if let Some(name) = &pack.name {
            self.remembered().keep(name, &ends);
        }
        of_all(&ends)
    }
}

fn are_of_one_pack<S: Source + 'static>(one: &HeldMessage, other: &HeldMessage) -> bool {
    let pack = |held: &HeldMessage| Some(Arc::as_ptr(&of::<S>(&**held).member.as_ref()?.pack));
    pack(one).is_some() && pack(one) == pack(other)
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
