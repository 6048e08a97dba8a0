//! The inbox: requests wait here for the owner thread. The inbox is bounded, makes callers wait,
//! and refuses sends under load.
//!
//! # Order
//! There are two queues. Requests that reduce load (settles, receives, queries: everything but pure
//! sends) pass waiting sends. So a full inbox of sends delays an acknowledgement by one share of
//! them, not by 64 MiB. Sends keep their order among themselves, and so do the others. A caller
//! that awaits each answer therefore sees its requests happen in its order. A caller with several
//! requests on the way must not expect that a send happens before a different request that it
//! submitted later.

use std::{collections::VecDeque, mem, sync::PoisonError, time::Duration};

use lockgate_core::{LeaseToken, Millis, Now, Sequence};
use lockgate_machine::{EngineCommand, MessageStatus};

use crate::{
    EngineError, EngineOptions, StopReason,
    leases::Leases,
    ledger::GuardedEvents,
    maintenance::Pin,
    request::{Answer, Request},
    sync::{Condvar, Mutex, MutexGuard, Semaphore, TryAcquireError, oneshot},
};

/// Where the answer to a request goes.
#[derive(Debug)]
pub(crate) struct AnswerSender {
    sender: Option<oneshot::Sender<Result<GuardedAnswer, EngineError>>>,
    /// Keeps the ranges that the answer's leases point to until their payloads are read.
    pin: Option<Pin>,
}

/// An answer on its way to its caller. Its leases are guarded from the start.
#[derive(Debug)]
pub(crate) enum GuardedAnswer {
    Other(Answer),
    Leases(Leases),
    Messages(GuardedPage),
    Events(GuardedEvents),
}

/// A message to the owner without an answer.
#[derive(Debug)]
pub(crate) enum Notice {
    /// The lease never reached its caller.
    GiveBack(LeaseToken),
    Engine(EngineCommand),
}

/// Messages of a peek; keeps them readable.
#[derive(Debug)]
pub(crate) struct GuardedPage {
    pub(crate) messages: Vec<MessageStatus>,
    pub(crate) next: Option<Sequence>,
    pub(crate) pin: Option<Pin>,
}

impl AnswerSender {
    pub(crate) fn new() -> (Self, oneshot::Receiver<Result<GuardedAnswer, EngineError>>) {
        let (sender, receiver) = oneshot::channel();
        let ticket = Self {
            sender: Some(sender),
            pin: None,
        };
        (ticket, receiver)
    }

    /// For the engine's own commands.
    pub(crate) fn nobody() -> Self {
        Self {
            sender: None,
            pin: None,
        }
    }

    /// Keeps the ranges readable that the answer points to. Called by the owner thread, see
    /// [`Pins`](crate::maintenance::Pins).
    pub(crate) fn pin(&mut self, pin: Pin) {
        self.pin = Some(pin);
    }

    pub(crate) fn take_pin(&mut self) -> Option<Pin> {
        self.pin.take()
    }

    /// Sends the answer. If the caller is gone, the answer is dropped, and its leases go back.
    pub(crate) fn send(self, answer: Result<GuardedAnswer, EngineError>) {
        if let Some(sender) = self.sender {
            drop(sender.send(answer));
        }
    }
}

impl crate::Ticket for AnswerSender {
    fn is_gone(&self) -> bool {
        self.sender.as_ref().is_some_and(oneshot::Sender::is_closed)
    }
}

/// A task for the owner thread between two groups, when everything decided so far is appended. It
/// must be short: nothing is answered meanwhile.
pub(crate) type OwnerTask = Box<dyn FnOnce(&mut crate::Driver<AnswerSender>, Now) + Send>;

/// The unit of room in both inboxes (sends, and everything else), in bytes. A request takes units
/// for its payload, and at least its share of
/// [`inbox_requests_max`](EngineOptions::inbox_requests_max), so one count bounds both.
const UNIT_BYTES: u32 = 64;

/// How many bytes of other requests may pass waiting sends before sends get a share: 256 settles.
const OTHERS_SHARE_BYTES: u64 = 256 << 10;
/// How many bytes of sends are taken then, and at least one send. For each share of others before
/// it, a settle waits for at most that, or for one send that is larger.
const SENDS_SHARE_BYTES: u64 = 64 << 10;
/// The least that a request takes of its share: deciding it takes time even without a payload.
const SHARE_BYTES_MIN: u64 = 1 << 10;

pub(crate) struct Inbox {
    state: Mutex<State>,
    arrived: Condvar,
    /// Room for sends.
    room_for_sends: Semaphore,
    /// Room for everything else, so that settles never wait behind sends.
    room_for_others: Semaphore,
    units: u32,
    units_min: u32,
    shed_after: Millis,
}

#[derive(Default)]
struct State {
    sends: VecDeque<Entry>,
    others: VecDeque<Entry>,
    turn: Turn,
    bytes: u64,
    /// Notices for the owner. They have no bound of their own: there are never more than messages in flight.
    notices: Vec<Notice>,
    tasks: Vec<OwnerTask>,
    /// The owner must look at something other than a request.
    poked: bool,
    /// Whether the owner waits on `arrived`; if not, senders save the system call to wake it.
    owner_waits: bool,
    closed: Option<StopReason>,
    /// The owner has taken the last request.
    finished: bool,
}

struct Entry {
    request: Request<AnswerSender>,
    bytes: u64,
    units: u32,
    since: Millis,
}

/// Which queue is next while both have requests.
#[derive(Default)]
struct Turn {
    /// Bytes of other requests that have passed waiting sends since the last share of sends.
    passed: u64,
    /// The rest of the sends' share.
    sends_left: u64,
}

impl State {
    fn is_empty(&self) -> bool {
        self.sends.is_empty() && self.others.is_empty()
    }

    /// Whether the next request to take is a send.
    fn is_sends_turn(&mut self) -> bool {
        if self.sends.is_empty() || self.others.is_empty() {
            // With one kind only, nothing passes.
            self.turn = Turn::default();
            return self.others.is_empty();
        }
        if self.turn.passed >= OTHERS_SHARE_BYTES {
            self.turn = Turn {
                passed: 0,
                sends_left: SENDS_SHARE_BYTES,
            };
        }
        self.turn.sends_left > 0
    }

    /// Takes the next request; returns whether it is a send.
    fn pop(&mut self) -> Option<(Entry, bool)> {
        let is_send = self.is_sends_turn();
        if is_send {
            let entry = self.sends.pop_front()?;
            self.turn.sends_left = self.turn.sends_left.saturating_sub(entry.share());
            Some((entry, true))
        } else {
            let entry = self.others.pop_front()?;
            self.turn.passed += entry.share();
            Some((entry, false))
        }
    }

    /// When the oldest request arrived.
    fn oldest(&self) -> Option<Millis> {
        let first = |queue: &VecDeque<Entry>| queue.front().map(|entry| entry.since);
        first(&self.sends)
            .into_iter()
            .chain(first(&self.others))
            .min()
    }
}

impl Entry {
    fn share(&self) -> u64 {
        self.bytes.max(SHARE_BYTES_MIN)
    }
}

/// What the owner took out of the inbox.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) requests: Vec<Request<AnswerSender>>,
    pub(crate) notices: Vec<Notice>,
    pub(crate) tasks: Vec<OwnerTask>,
    /// This was the last of it, and nothing more will come.
    pub(crate) finished: bool,
}

impl Inbox {
    pub(crate) fn new(options: &EngineOptions) -> Self {
        let units = (options.inbox_bytes_max / UNIT_BYTES).max(1);
        Self {
            state: Mutex::default(),
            arrived: Condvar::new(),
            room_for_sends: Semaphore::new(units as usize),
            room_for_others: Semaphore::new(units as usize),
            units,
            units_min: (units / options.inbox_requests_max.max(1)).max(1),
            shed_after: millis(options.shed_after),
        }
    }

    /// Adds a request, waiting for room.
    ///
    /// Cancellation safe: if the future is dropped while it waits, the request is never added.
    pub(crate) async fn enter(
        &self,
        request: Request<AnswerSender>,
        clock: &dyn lockgate_core::Clock,
    ) -> Result<(), EngineError> {
        let bytes = request.work.bytes() as u64;
        let is_send = request.work.is_send();
        let units = u32::try_from(bytes / u64::from(UNIT_BYTES))
            .unwrap_or(u32::MAX)
            .clamp(self.units_min, self.units);
        let room = self.room(is_send);
        match room.try_acquire_many(units) {
            Ok(permit) => permit.forget(),
            Err(TryAcquireError::Closed) => return Err(self.stopped()),
            Err(TryAcquireError::NoPermits) => {
                if is_send {
                    self.shed(&self.lock(), clock.since_boot())?;
                }
                match room.acquire_many(units).await {
                    Ok(permit) => permit.forget(),
                    Err(_closed) => return Err(self.stopped()),
                }
            }
        }
        let since = clock.since_boot();
        let mut state = self.lock();
        let refused = match &state.closed {
            Some(reason) => Some(EngineError::Stopped {
                reason: reason.clone(),
            }),
            None if is_send => self.shed(&state, since).err(),
            None => None,
        };
        if let Some(error) = refused {
            drop(state);
            room.add_permits(units as usize);
            return Err(error);
        }
        state.bytes += bytes;
        let queue = if is_send {
            &mut state.sends
        } else {
            &mut state.others
        };
        queue.push_back(Entry {
            request,
            bytes,
            units,
            since,
        });
        self.wake(state);
        Ok(())
    }

    /// Adds notices; never blocks. After the end they are dropped.
    pub(crate) fn notice(&self, notices: impl Iterator<Item = Notice>) {
        let mut notices = notices.peekable();
        if notices.peek().is_none() {
            return;
        }
        let mut state = self.lock();
        if !state.finished {
            state.notices.extend(notices);
            self.wake(state);
        }
    }

    /// Adds a task; never blocks. After the end it is dropped.
    pub(crate) fn task(&self, task: OwnerTask) {
        let mut state = self.lock();
        if state.closed.is_none() {
            state.tasks.push(task);
            self.wake(state);
        }
    }

    /// Whether the inbox accepts nothing more.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed.is_some()
    }

    /// Makes the owner check the time and the synced position.
    pub(crate) fn poke(&self) {
        let mut state = self.lock();
        state.poked = true;
        self.wake(state);
    }

    /// Accepts nothing more; the owner still takes what is there.
    pub(crate) fn close(&self, reason: StopReason) {
        let mut state = self.lock();
        state.closed.get_or_insert(reason);
        state.poked = true;
        self.room_for_sends.close();
        self.room_for_others.close();
        self.wake(state);
    }

    /// For the owner: waits for something to do, at most `timeout` (`None`: for ever), and takes
    /// requests up to the limits. Takes at least one request if there is one, and by shares if both
    /// kinds wait. If `requests_max` is zero, it leaves the requests and waits for anything else.
    pub(crate) fn take(
        &self,
        timeout: Option<Duration>,
        requests_max: usize,
        bytes_max: usize,
        taken: &mut Taken,
    ) {
        let mut state = self.lock();
        let idle = |state: &State| {
            (state.is_empty() || requests_max == 0)
                && state.notices.is_empty()
                && state.tasks.is_empty()
                && !state.poked
                && state.closed.is_none()
        };
        if idle(&state) && timeout != Some(Duration::ZERO) {
            state.owner_waits = true;
            state = match timeout {
                // A spurious wake-up does no harm: the owner checks again.
                Some(timeout) => {
                    self.arrived
                        .wait_timeout(state, timeout)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                None => self
                    .arrived
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
            };
            state.owner_waits = false;
        }
        state.poked = false;
        mem::swap(&mut taken.notices, &mut state.notices);
        mem::swap(&mut taken.tasks, &mut state.tasks);
        let (mut bytes, mut units_of_sends, mut units_of_others) = (0, 0, 0);
        while taken.requests.len() < requests_max
            && (taken.requests.is_empty() || bytes < bytes_max as u64)
        {
            let Some((entry, is_send)) = state.pop() else {
                break;
            };
            bytes += entry.bytes;
            *(if is_send {
                &mut units_of_sends
            } else {
                &mut units_of_others
            }) += entry.units as usize;
            taken.requests.push(entry.request);
        }
        state.bytes -= bytes;
        state.finished = state.closed.is_some() && state.is_empty();
        taken.finished = state.finished;
        drop(state);
        if units_of_sends > 0 {
            self.room_for_sends.add_permits(units_of_sends);
        }
        if units_of_others > 0 {
            self.room_for_others.add_permits(units_of_others);
        }
    }

    /// Requests and bytes in the inbox, and how long the oldest request has waited.
    pub(crate) fn depth(&self, now: Millis) -> (u64, u64, Millis) {
        let state = self.lock();
        let age = state.oldest().map_or(0, |since| now.saturating_sub(since));
        let requests = state.sends.len() + state.others.len();
        (requests as u64, state.bytes, age)
    }

    /// Free units of room: for sends, and for everything else.
    #[cfg(all(test, feature = "shuttle"))]
    pub(crate) fn free_room(&self) -> (usize, usize) {
        let free = |room: &Semaphore| room.available_permits();
        (free(&self.room_for_sends), free(&self.room_for_others))
    }

    fn room(&self, is_send: bool) -> &Semaphore {
        if is_send {
            &self.room_for_sends
        } else {
            &self.room_for_others
        }
    }

    /// Refuses a send while the oldest request has waited too long. Age, not length, shows whether
    /// the engine keeps up: a long inbox that moves is no reason to refuse.
    fn shed(&self, state: &State, now: Millis) -> Result<(), EngineError> {
        match state.oldest() {
            Some(since) if now.saturating_sub(since) > self.shed_after => {
                Err(EngineError::Overloaded)
            }
            _ => Ok(()),
        }
    }

    fn stopped(&self) -> EngineError {
        let closed = self.lock().closed.clone();
        EngineError::Stopped {
            reason: closed.unwrap_or(StopReason::ShutDown),
        }
    }

    fn wake(&self, mut state: MutexGuard<'_, State>) {
        // The next sender, before the owner runs, need not wake it again.
        let owner_waits = mem::take(&mut state.owner_waits);
        drop(state);
        if owner_waits {
            self.arrived.notify_one();
        }
    }

    /// No code under the lock can panic, so a poisoned lock can still be used.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whole milliseconds, rounded up so that a wait is never shorter than asked.
pub(crate) fn millis(span: Duration) -> Millis {
    u64::try_from(span.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use lockgate_core::{Clock as _, Message, QueueName};
    use lockgate_machine::{Command, DescribeQueue, Query, SendMessage};
    use lockgate_sim::ManualClock;

    use super::*;
    use crate::Work;

    /// A send of so many bytes, or a query.
    #[derive(Clone, Copy)]
    enum Kind {
        Send(usize),
        Query,
    }

    async fn enter(inbox: &Inbox, clock: &ManualClock, kind: Kind, number: usize) {
        let queue = QueueName::new(&format!("q{number}")).unwrap();
        let work = match kind {
            Kind::Send(bytes) => {
                let message = Message::new("x".repeat(bytes));
                Work::from(Command::Send(Box::new(SendMessage { queue, message })))
            }
            Kind::Query => Work::Query(Query::DescribeQueue(DescribeQueue { queue })),
        };
        let ticket = AnswerSender::nobody();
        let request = Request { work, ticket };
        inbox.enter(request, clock).await.unwrap();
    }

    /// The requests that the owner takes at once, as "s" and "q" with their numbers.
    fn take(inbox: &Inbox, requests_max: usize, bytes_max: usize) -> Vec<String> {
        let mut taken = Taken::default();
        inbox.take(Some(Duration::ZERO), requests_max, bytes_max, &mut taken);
        let name = |request: Request<AnswerSender>| match request.work {
            Work::Commands(commands) => match &commands[0] {
                Command::Send(send) => send.queue.to_string().replace('q', "s"),
                other => panic!("{other:?}"),
            },
            Work::Query(Query::DescribeQueue(DescribeQueue { queue })) => queue.to_string(),
            other => panic!("{other:?}"),
        };
        taken.requests.into_iter().map(name).collect()
    }

    fn inbox() -> (Inbox, ManualClock) {
        (
            Inbox::new(&EngineOptions::default()),
            ManualClock::default(),
        )
    }

    #[tokio::test]
    async fn what_is_no_send_passes_the_sends_that_wait() {
        let (inbox, clock) = inbox();
        for number in 0..5 {
            enter(&inbox, &clock, Kind::Send(1 << 20), number).await;
        }
        for number in 0..3 {
            enter(&inbox, &clock, Kind::Query, number).await;
        }
        assert_eq!(take(&inbox, 2, usize::MAX), ["q0", "q1"]);
        assert_eq!(take(&inbox, 9, 1 << 20), ["q2", "s0"], "a group has bounds");
        enter(&inbox, &clock, Kind::Query, 3).await;
        assert_eq!(
            take(&inbox, 9, usize::MAX),
            ["q3", "s1", "s2", "s3", "s4"],
            "both in their order"
        );
        assert_eq!(inbox.depth(0), (0, 0, 0));
    }

    #[tokio::test]
    async fn neither_kind_starves_the_other() {
        let (inbox, clock) = inbox();
        // A hundred sends of a kilobyte, and more queries than may pass them at once.
        let sends = 100;
        for number in 0..sends {
            enter(&inbox, &clock, Kind::Send(1_000), number).await;
        }
        let passing = usize::try_from(OTHERS_SHARE_BYTES / SHARE_BYTES_MIN).unwrap();
        for number in 0..3 * passing {
            enter(&inbox, &clock, Kind::Query, number).await;
        }
        let mut order = String::new();
        loop {
            // With the smallest groups, of one request: shares continue from group to group.
            let one = take(&inbox, 1, 1);
            let Some(one) = one.first() else { break };
            order.push_str(&one[..1]);
        }
        let runs = |kind| order.split(kind).map(str::len).filter(|&len| len > 0);
        assert_eq!(
            runs('s').collect::<Vec<_>>(),
            [passing; 3],
            "queries at a time"
        );
        let shares: Vec<_> = runs('q').collect();
        assert_eq!(shares.iter().sum::<usize>(), sends);
        assert!(
            shares[0].abs_diff(52) < 3 && shares[1].abs_diff(48) < 3,
            "64 KiB of sends at a time: {shares:?}"
        );
    }

    #[tokio::test]
    async fn the_oldest_request_is_looked_for_in_both_queues() {
        let (inbox, clock) = inbox();
        enter(&inbox, &clock, Kind::Send(10), 0).await;
        clock.advance(5);
        enter(&inbox, &clock, Kind::Query, 0).await;
        clock.advance(7);
        let age = |inbox: &Inbox| inbox.depth(clock.since_boot()).2;
        assert_eq!((inbox.depth(0).0, age(&inbox)), (2, 12), "the send");
        assert_eq!(take(&inbox, 1, 1), ["q0"]);
        assert_eq!(take(&inbox, 1, 1), ["s0"]);
        enter(&inbox, &clock, Kind::Query, 1).await;
        clock.advance(3);
        enter(&inbox, &clock, Kind::Send(10), 1).await;
        assert_eq!(age(&inbox), 3, "the query");
        // The age of a query also refuses a send.
        clock.advance(998);
        assert!(inbox.shed(&inbox.lock(), clock.since_boot()).is_err());
        assert_eq!(take(&inbox, 1, 1), ["q1"]);
        assert!(inbox.shed(&inbox.lock(), clock.since_boot()).is_ok());
    }
}
