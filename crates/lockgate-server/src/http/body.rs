//! Reads request bodies, and bounds the memory of bodies and answers.

use std::{
    collections::HashMap,
    mem,
    net::{IpAddr, Ipv6Addr},
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};

use super::{connection::Client, refusal::Refusal};

/// Bytes of each body that the budget does not count: enough for any request to settle. Also the
/// most memory that is set aside before a client has sent anything: a client that declares a long
/// body and sends little cannot use the budget up.
const FREE_BYTES: usize = 16 << 10;

/// The memory of all request bodies of a server, or of all its answers.
///
/// One address gets at most three quarters. Bodies whose sender is not known yet get at most half,
/// and one address three quarters of that half. The only body of an address, or of the unknown
/// senders, may take all that is left, so that a small budget still has room for one.
#[derive(Debug)]
pub(crate) struct BodyBudget {
    max: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    total: Held,
    by_address: HashMap<IpAddr, Held>,
}

/// Bytes in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    all: usize,
    /// Bytes of senders that are not known yet; part of `all`.
    unknown: usize,
}

/// Which part of the budget is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    All,
    /// The part of one address.
    Address,
    /// The part of senders that are not known yet.
    Unknown,
}

/// The part of the [`BodyBudget`] that one body has. Dropping it gives the part back.
#[derive(Debug)]
pub(crate) struct BodyShare<B: Deref<Target = BodyBudget>> {
    budget: B,
    address: IpAddr,
    bytes: usize,
    /// Whether its sender is not known yet.
    unknown: bool,
}

/// The part of the answers' budget that one answer has until the client has taken it: clients that
/// do not read must not make the server keep ten megabytes for each of their connections.
pub(crate) type AnswerShare = BodyShare<Arc<BodyBudget>>;

/// The memory of what is on its way to clients that follow ledgers: half of that of all answers. They stay for days,
/// and many that do not read must leave room for the answers to requests.
#[derive(Debug)]
pub(crate) struct Followers {
    half: Arc<BodyBudget>,
    answers: Arc<BodyBudget>,
}

/// The parts of one client's lines.
#[derive(Debug)]
pub(crate) struct FollowerShare {
    _of_half: Option<AnswerShare>,
    _of_answers: Option<AnswerShare>,
}

impl Followers {
    /// `max`: that of all answers.
    pub(crate) fn new(answers: &Arc<BodyBudget>, max: usize) -> Self {
        Self {
            half: Arc::new(BodyBudget::new(max / 2)),
            answers: answers.clone(),
        }
    }

    /// The share of lines of `len` bytes.
    pub(crate) fn hold(&self, address: IpAddr, len: usize) -> Result<FollowerShare, Full> {
        Ok(FollowerShare {
            _of_half: self.half.hold(address, len, true)?,
            _of_answers: self.answers.hold(address, len, true)?,
        })
    }
}

impl BodyBudget {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            used: Mutex::default(),
        }
    }

    /// Bytes in memory now, without the free bytes of each body.
    pub(crate) fn used(&self) -> usize {
        self.lock().total.all
    }

    fn share(&self, address: IpAddr, unknown: bool) -> BodyShare<&Self> {
        BodyShare {
            budget: self,
            address: network(address),
            bytes: 0,
            unknown,
        }
    }

    /// The share of an answer of `len` bytes; `None` if all its bytes are free. An answer that
    /// reports changes may not be refused: it is sent even if the budget is full.
    pub(crate) fn hold(
        self: &Arc<Self>,
        address: IpAddr,
        len: usize,
        may_be_refused: bool,
    ) -> Result<Option<AnswerShare>, Full> {
        if len <= FREE_BYTES {
            return Ok(None);
        }
        let mut share = BodyShare {
            budget: self.clone(),
            address: network(address),
            bytes: 0,
            unknown: false,
        };
        let mut used = self.lock();
        let more = share.missing(len);
        // The only answer is sent whatever its length: otherwise a message that is larger than the
        // budget could never be received.
        if may_be_refused && used.total.all > 0 {
            share.room(&used, more)?;
        }
        used.add(share.address, more, 0);
        drop(used);
        share.bytes = more;
        Ok(Some(share))
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What counts as one address: for IPv6 a network of 64 bits, because a single client may have all
/// of it.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

impl<B: Deref<Target = BodyBudget>> BodyShare<B> {
    /// Whether a body of `len` bytes would have room now. Refusing the body later costs more.
    fn admit(&self, len: usize) -> Result<(), Full> {
        let more = self.missing(len);
        if more == 0 {
            return Ok(());
        }
        self.room(&self.budget.lock(), more)
    }

    /// Raises the share to cover a buffer of `len` bytes.
    fn cover(&mut self, len: usize) -> Result<(), Full> {
        let more = self.missing(len);
        if more == 0 {
            return Ok(());
        }
        let mut used = self.budget.lock();
        self.room(&used, more)?;
        used.add(self.address, more, if self.unknown { more } else { 0 });
        drop(used);
        self.bytes += more;
        Ok(())
    }

    /// Moves the share from the unknown senders to the known ones.
    fn sender_is_known(&mut self) {
        if mem::take(&mut self.unknown) && self.bytes > 0 {
            let bytes = self.bytes;
            let mut used = self.budget.lock();
            used.change(self.address, |held| held.unknown -= bytes);
        }
    }

    /// How many of `len` bytes the share does not cover.
    fn missing(&self, len: usize) -> usize {
        len.saturating_sub(FREE_BYTES).saturating_sub(self.bytes)
    }

    fn room(&self, used: &Used, more: usize) -> Result<(), Full> {
        let max = self.budget.max;
        let of_address = used.by_address.get(&self.address);
        let of_address = of_address.copied().unwrap_or_default();
        // One of several bodies is bounded by `max`; the only one may take what is left.
        let fits = |held: usize, max: usize| held == self.bytes || held + more <= max;
        let (unknown_max, part) = (max / 2, |of: usize| of - of / 4);
        if used.total.all + more > max {
            Err(Full::All)
        } else if !fits(of_address.all, part(max)) {
            Err(Full::Address)
        } else if self.unknown && !fits(used.total.unknown, unknown_max) {
            Err(Full::Unknown)
        } else if self.unknown && !fits(of_address.unknown, part(unknown_max)) {
            Err(Full::Address)
        } else {
            Ok(())
        }
    }
}

impl Used {
    fn add(&mut self, address: IpAddr, all: usize, unknown: usize) {
        self.change(address, |held| {
            held.all += all;
            held.unknown += unknown;
        });
    }

    fn change(&mut self, address: IpAddr, change: impl Fn(&mut Held)) {
        change(&mut self.total);
        let of_address = self.by_address.entry(address).or_default();
        change(of_address);
        if *of_address == Held::default() {
            self.by_address.remove(&address);
        }
    }
}

impl<B: Deref<Target = BodyBudget>> Drop for BodyShare<B> {
    fn drop(&mut self) {
        self.sender_is_known();
        if self.bytes > 0 {
            let bytes = mem::take(&mut self.bytes);
            let mut used = self.budget.lock();
            used.change(self.address, |held| held.all -= bytes);
        }
    }
}

/// A body that has arrived, with its part of the budget. If its sender was not known before, the
/// body counts as an unknown sender's until [`sender_is_known`](Whole::sender_is_known).
#[derive(Debug)]
pub(crate) struct Whole<'b> {
    pub(crate) bytes: Bytes,
    share: BodyShare<&'b BodyBudget>,
}

impl Whole<'_> {
    pub(crate) fn sender_is_known(&mut self) {
        self.share.sender_is_known();
    }
}

/// Reads the body of request `index` of `client`, of up to `max` bytes. `unknown`: the sender can be
/// verified only once the body is there.
///
/// A small body that arrives in one piece with its head is not copied.
pub(crate) async fn read(
    client: &Client,
    index: u64,
    max: usize,
    mut body: Incoming,
    unknown: bool,
) -> Result<Whole<'_>, Refusal> {
    let mut share = client.core.bodies.share(client.peer.ip(), unknown);
    let declared = body.size_hint().exact();
    let declared = match declared.map(usize::try_from) {
        None => None,
        Some(Ok(len)) if len <= max => Some(len),
        Some(_) => return Err(Refusal::BodyTooLarge { max }),
    };
    share
        .admit(declared.unwrap_or(0))
        .map_err(Refusal::BodiesFull)?;
    let mut whole = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::BodyBroken)?;
        let Ok(data) = frame.into_data() else {
            continue; // trailers mean nothing here
        };
        if declared == Some(data.len()) {
            check_framing(client, index)?;
            return Ok(Whole { bytes: data, share });
        }
        let len = whole.len() + data.len();
        if len > max {
            return Err(Refusal::BodyTooLarge { max });
        }
        if whole.capacity() < len {
            let doubled = (2 * whole.capacity()).max(FREE_BYTES).min(max);
            let wanted = declared.unwrap_or(max).min(doubled).max(len);
            share.cover(wanted).map_err(Refusal::BodiesFull)?;
            whole.reserve_exact(wanted - whole.len());
        }
        whole.extend_from_slice(&data);
    }
    check_framing(client, index)?;
    Ok(Whole {
        bytes: whole.into(),
        share,
    })
}

/// Needed because hyper accepts some malformed chunks.
fn check_framing(client: &Client, index: u64) -> Result<(), Refusal> {
    match client.progress.violation(index) {
        Some(violation) => Err(Refusal::Framing(violation)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn the_budget_counts_what_is_beyond_the_free_part_and_takes_it_back() {
        let budget = BodyBudget::new(100_000);
        let mut small = budget.share(address(1), false);
        small.cover(FREE_BYTES).unwrap();
        assert_eq!(budget.used(), 0);
        let mut large = budget.share(address(1), false);
        large.cover(FREE_BYTES + 60_000).unwrap();
        large.cover(FREE_BYTES + 80_000).unwrap();
        large.cover(10).unwrap();
        assert_eq!(budget.used(), 80_000);
        let mut other = budget.share(address(2), true);
        other.admit(FREE_BYTES + 20_000).unwrap();
        assert_eq!(other.admit(FREE_BYTES + 20_001), Err(Full::All));
        assert_eq!(other.cover(FREE_BYTES + 20_001), Err(Full::All));
        drop(other);
        small.cover(FREE_BYTES).unwrap();
        drop(large);
        assert_eq!(budget.used(), 0);
        assert!(budget.lock().by_address.is_empty(), "nothing is left");
    }

    #[test]
    fn an_address_has_three_quarters_and_its_only_body_what_is_left() {
        let budget = BodyBudget::new(100_000);
        let mut first = budget.share(address(1), false);
        first.cover(FREE_BYTES + 70_000).unwrap();
        let mut second = budget.share(address(1), false);
        second.cover(FREE_BYTES + 5_000).unwrap();
        assert_eq!(second.cover(FREE_BYTES + 5_001), Err(Full::Address));
        let mut other = budget.share(address(2), false);
        other.cover(FREE_BYTES + 25_000).unwrap();
        drop((second, other));
        first.cover(FREE_BYTES + 100_000).unwrap();
    }

    #[test]
    fn senders_that_are_not_known_yet_have_half_until_they_are() {
        let budget = BodyBudget::new(100_000);
        let mut shares: Vec<_> = (1..=2).map(|at| budget.share(address(at), true)).collect();
        for share in &mut shares {
            share.cover(FREE_BYTES + 25_000).unwrap();
        }
        let mut unknown = budget.share(address(3), true);
        assert_eq!(unknown.admit(FREE_BYTES + 1), Err(Full::Unknown));
        let mut known = budget.share(address(3), false);
        known.cover(FREE_BYTES + 50_000).unwrap();
        drop(known);
        shares[0].sender_is_known();
        unknown.cover(FREE_BYTES + 25_000).unwrap();
        drop(shares);
        drop(unknown);
        assert_eq!(budget.lock().total, Held::default());
        // One address does not get all of the unknown senders' half either.
        let mut first = budget.share(address(1), true);
        first.cover(FREE_BYTES + 30_000).unwrap();
        let second = budget.share(address(1), true);
        second.admit(FREE_BYTES + 7_500).unwrap();
        assert_eq!(second.admit(FREE_BYTES + 7_501), Err(Full::Address));
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let network = |text: &str| network(text.parse().unwrap());
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), network("2001:db8:1:2::"));
        assert_ne!(network("2001:db8:1:2::1"), network("2001:db8:1:3::1"));
        assert_eq!(network("::ffff:10.0.0.1"), address(1));
        assert_ne!(network("::ffff:10.0.0.1"), network("::ffff:10.0.0.2"));
    }

    #[test]
    fn an_answer_holds_its_share_until_it_is_out() {
        let budget = Arc::new(BodyBudget::new(100_000));
        let hold = |at, bytes| budget.hold(address(at), FREE_BYTES + bytes, true);
        assert!(hold(1, 0).unwrap().is_none());
        let share = hold(1, 60_000).unwrap();
        assert_eq!(hold(2, 40_001).unwrap_err(), Full::All);
        assert_eq!(hold(1, 15_001).unwrap_err(), Full::Address);
        assert_eq!(budget.used(), 60_000);
        drop(share);
        assert_eq!(budget.used(), 0);
        let alone = hold(1, 100_001).unwrap();
        assert!(hold(1, 1).is_err());
        let anyway = budget.hold(address(1), FREE_BYTES + 7, false).unwrap();
        assert_eq!(budget.used(), 100_008);
        drop((alone, anyway));
        assert_eq!(budget.used(), 0);
    }

    /// However many follow, the other half is left for requests.
    #[test]
    fn all_followers_together_have_half_of_what_answers_have() {
        let answers = Arc::new(BodyBudget::new(100_000));
        let followers = Followers::new(&answers, 100_000);
        let held: Vec<_> = (1..100)
            .map_while(|at| followers.hold(address(at), FREE_BYTES + 10_000).ok())
            .collect();
        assert_eq!(held.len(), 5);
        assert_eq!(answers.used(), 50_000);
        let answer = answers.hold(address(200), FREE_BYTES + 50_000, true);
        assert!(answer.is_ok());
        drop(held);
        assert_eq!((followers.half.used(), answers.used()), (0, 50_000));
    }
}
