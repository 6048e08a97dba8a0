//! Tracks the progress of one connection: what the client still owes and until when, and which
//! leases go out with the present answer.
//!
//! Three parts of one task share it: the wire, which sees bytes; the service, which sees requests;
//! and the connection, which watches the deadline. hyper is between them and knows nothing of it.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::response::KeepGuard;
use super::{
    body::AnswerShare,
    framing::{Framing, Part, Violation},
};
use crate::Deadlines;

#[derive(Debug)]
pub(crate) struct Progress {
    inner: Mutex<Inner>,
    hangup: Hangup,
}

/// Tells, once, that the client has ended its side of the connection. The client may be gone, or it
/// may only have no more requests and wait for its answer: TCP shows the difference only when the
/// answer is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hangup(Arc<Told>);

#[derive(Debug, Default)]
struct Told {
    is: AtomicBool,
    waiting: Notify,
}

/// What a client took too long for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Begin a request.
    Idle,
    /// Finish a head.
    Header,
    /// Send a body.
    Body,
    /// Take its answer.
    Answer,
    /// Go away after the answer to a request that was not read to its end.
    Linger,
}

#[derive(Debug)]
struct Inner {
    pace: Pace,
    framing: Framing,
    /// Requests that the service has begun to answer, including the current one.
    begun: u64,
    service: Service,
    /// The time in which the client must send what it sends now.
    reading: Span,
    /// The time in which the client must take what was written; `None` if it has taken all of it.
    writing: Option<Span>,
    /// Called at the first byte of the present answer. Dropping it, with the connection, gives the
    /// answer's leases back.
    keep: Option<KeepGuard>,
    /// The present answer's part of the budget of answers.
    share: Option<AnswerShare>,
    /// The task of a request that waits until the answer before it is out.
    next: Option<Waker>,
    /// The reading task, while the client's end is hidden from it.
    reader: Option<Waker>,
    ended: bool,
}

/// The time limits.
#[derive(Clone, Copy, Debug)]
struct Pace {
    header: Duration,
    idle: Duration,
    transfer_grace: Duration,
    transfer_rate_min: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Free,
    /// The service works on a request.
    Busy,
    /// hyper has the whole answer, and the socket not all of it yet.
    Answered,
    /// hyper gets the answer piece by piece.
    Streaming,
}

/// A running time limit.
#[derive(Clone, Copy, Debug)]
struct Span {
    what: Option<Overdue>,
    until: Instant,
}

impl Progress {
    pub(crate) fn new(deadlines: &Deadlines, now: Instant) -> Self {
        let pace = Pace {
            header: deadlines.header,
            idle: deadlines.idle,
            transfer_grace: deadlines.transfer_grace,
            transfer_rate_min: deadlines.transfer_rate_min.max(1),
        };
        Self {
            inner: Mutex::new(Inner {
                pace,
                framing: Framing::default(),
                begun: 0,
                service: Service::Free,
                reading: pace.span(Some(Overdue::Idle), now),
                writing: None,
                keep: None,
                share: None,
                next: None,
                reader: None,
                ended: false,
            }),
            hangup: Hangup::default(),
        }
    }

    /// The wire has read `bytes`; an empty slice means that the client has ended its side.
    pub(crate) fn read(&self, bytes: &[u8], now: Instant) {
        let mut inner = self.lock();
        if bytes.is_empty() {
            inner.ended = true;
            self.hangup.tell();
        }
        inner.framing.observe(bytes);
        let ahead = Some(inner.pace.transfer_grace);
        inner.reading = inner.pace.moved(inner.reading, bytes.len(), ahead, now);
        inner.update(now);
    }

    /// The signal that the client has ended its side.
    pub(crate) fn hangup(&self) -> &Hangup {
        &self.hangup
    }

    /// Whether the client has ended its side.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    /// Whether the client has ended its side and an answer must go out before hyper learns of it,
    /// because hyper would then end the connection. `cx` is woken when the answer is out.
    pub(crate) fn owes_answer(&self, cx: &Context<'_>) -> bool {
        let mut inner = self.lock();
        let asks = match inner.service {
            // A whole request has arrived, and the service has not been called yet.
            Service::Free => inner.framing.finished() > inner.begun,
            _ => inner.owed().is_none(),
        };
        let owes = inner.ended && asks;
        if owes {
            inner.reader = Some(cx.waker().clone());
        }
        owes
    }

    /// Whether the next byte written is the first of an answer with leases.
    pub(crate) fn holds_leases(&self) -> bool {
        self.lock().keep.is_some()
    }

    /// The wire has written `len` of hyper's bytes. If they include the first bytes of an answer
    /// with leases, returns the guard that keeps the leases; call it outside the lock.
    #[must_use]
    pub(crate) fn wrote(&self, len: usize, now: Instant) -> Option<KeepGuard> {
        let mut inner = self.lock();
        if let Some(writing) = inner.writing {
            // Without a bound: the kernel takes megabytes at once and reports room again only when
            // a third of them is out, which may take a slow client minutes.
            inner.writing = Some(inner.pace.moved(writing, len, None, now));
        }
        inner.keep.take()
    }

    /// The wire could not write, because the client does not take its data.
    pub(crate) fn write_blocked(&self, now: Instant) {
        let mut inner = self.lock();
        let span = inner.pace.span(Some(Overdue::Answer), now);
        inner.writing.get_or_insert(span);
    }

    /// hyper's buffer is empty. hyper gets an answer as one buffer, so the present answer is out as
    /// a whole.
    pub(crate) fn flushed(&self, now: Instant) {
        let mut inner = self.lock();
        inner.writing = None;
        if inner.service == Service::Answered {
            inner.service = Service::Free;
            inner.share = None;
            inner.update(now);
            for waker in [inner.next.take(), inner.reader.take()] {
                waker.into_iter().for_each(Waker::wake);
            }
        }
    }

    /// The service takes the next request. Waits until the previous answer is out, so that the next
    /// bytes written belong to this request, also when a client sends requests ahead.
    pub(crate) async fn begin(&self, now: Instant) -> u64 {
        poll_fn(|cx| self.poll_begin(cx, now)).await
    }

    fn poll_begin(&self, cx: &Context<'_>, now: Instant) -> Poll<u64> {
        let mut inner = self.lock();
        if inner.service != Service::Free {
            inner.next = Some(cx.waker().clone());
            return Poll::Pending;
        }
        inner.service = Service::Busy;
        let index = inner.begun;
        inner.begun += 1;
        inner.update(now);
        Poll::Ready(index)
    }

    /// The service gives its answer to hyper, with the guard that keeps the answer's leases and
    /// with its share of the budget of answers.
    pub(crate) fn answered(&self, keep: Option<KeepGuard>, share: Option<AnswerShare>) {
        let mut inner = self.lock();
        inner.service = Service::Answered;
        inner.keep = keep;
        inner.share = share;
    }

    /// The service gives the beginning of its answer to hyper. It calls `answered` at the answer's
    /// end.
    pub(crate) fn streaming(&self) {
        self.lock().service = Service::Streaming;
    }

    /// What is wrong with the framing of request `index`, as far as the request has arrived.
    pub(crate) fn violation(&self, index: u64) -> Option<Violation> {
        self.lock().framing.violation(index)
    }

    /// When to cut the connection, and why, unless the client makes progress.
    pub(crate) fn deadline(&self) -> Option<(Instant, Overdue)> {
        let inner = self.lock();
        let spans = [Some(inner.reading), inner.writing];
        spans
            .into_iter()
            .flatten()
            .filter_map(|span| Some((span.until, span.what?)))
            .min_by_key(|&(at, _)| at)
    }

    /// hyper is done with the connection. Returns whether the client may still be sending: closing
    /// now would make the client's kernel throw the answer away.
    pub(crate) fn linger(&self, now: Instant) -> bool {
        let mut inner = self.lock();
        let unread = !inner.ended && inner.framing.part() != Part::Between;
        if unread && inner.reading.what != Some(Overdue::Linger) {
            inner.reading = inner.pace.span(Some(Overdue::Linger), now);
        }
        unread
    }

    /// No code that holds the lock can panic between two changes that belong together.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Restarts the time limit if the client now owes something else.
    fn update(&mut self, now: Instant) {
        let what = self.owed();
        if self.reading.what != what && self.reading.what != Some(Overdue::Linger) {
            self.reading = self.pace.span(what, now);
        }
    }

    fn owed(&self) -> Option<Overdue> {
        // No time limit for what a client sends ahead: the server does not wait for it.
        if self.service != Service::Free {
            let whole = self.framing.finished() >= self.begun;
            return if whole { None } else { Some(Overdue::Body) };
        }
        Some(match self.framing.part() {
            Part::Between => Overdue::Idle,
            Part::Head | Part::Lost => Overdue::Header,
            Part::Body => Overdue::Body,
        })
    }
}

impl Pace {
    fn span(&self, what: Option<Overdue>, now: Instant) -> Span {
        let allowed = match what {
            None => Duration::ZERO,
            Some(Overdue::Idle) => self.idle,
            Some(Overdue::Header) => self.header,
            Some(Overdue::Body | Overdue::Answer | Overdue::Linger) => self.transfer_grace,
        };
        Span {
            what,
            until: now + allowed,
        }
    }

    /// The span after `len` more bytes. Bytes of a body or an answer earn time; a body earns up to
    /// `ahead` from now: otherwise the server would wait minutes for a client that has sent much
    /// and then stalls.
    fn moved(&self, span: Span, len: usize, ahead: Option<Duration>, now: Instant) -> Span {
        if !matches!(span.what, Some(Overdue::Body | Overdue::Answer)) {
            return span;
        }
        let nanos = len as u128 * 1_000_000_000 / u128::from(self.transfer_rate_min);
        let earned = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        // `until` has passed only if the process stood still, which is not the client's fault.
        let until = span.until.max(now) + earned;
        let until = ahead.map_or(until, |ahead| until.min(now + ahead));
        Span { until, ..span }
    }
}

impl Hangup {
    pub(crate) fn tell(&self) {
        if !self.0.is.swap(true, Ordering::AcqRel) {
            self.0.waiting.notify_waiters();
        }
    }

    /// Whether the client has ended its side.
    pub(crate) fn has_come(&self) -> bool {
        self.0.is.load(Ordering::Acquire)
    }

    /// Waits until the client has ended its side. Cancel safe.
    pub(crate) async fn come(&self) {
        let mut told = pin!(self.0.waiting.notified());
        told.as_mut().enable();
        if !self.has_come() {
            told.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::Wake,
    };

    use super::*;

    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn begin(progress: &Progress, now: Instant) -> u64 {
        match progress.poll_begin(&Context::from_waker(Waker::noop()), now) {
            Poll::Ready(index) => index,
            Poll::Pending => panic!("an answer is still on its way"),
        }
    }

    const HEAD: &[u8] = b"POST / HTTP/1.1\r\nContent-Length: 50000\r\n\r\n";

    #[test]
    fn each_step_of_a_request_has_its_deadline() {
        let start = Instant::now();
        let deadlines = Deadlines {
            header: seconds(10),
            idle: seconds(75),
            transfer_grace: seconds(5),
            transfer_rate_min: 1000,
            ..Deadlines::default()
        };
        let progress = Progress::new(&deadlines, start);
        let at = |after| start + seconds(after);
        let expect = |after, what| {
            assert_eq!(progress.deadline(), Some((at(after), what)));
        };
        expect(75, Overdue::Idle);
        progress.read(&HEAD[..5], at(20));
        expect(30, Overdue::Header);
        progress.read(&HEAD[5..9], at(25));
        expect(30, Overdue::Header); // more bytes earn no time
        progress.read(&HEAD[9..], at(26));
        assert_eq!(begin(&progress, at(26)), 0);
        expect(31, Overdue::Body);
        progress.read(&[b'x'; 500], at(30));
        assert_eq!(
            progress.deadline().unwrap().0,
            at(31) + Duration::from_millis(500),
            "500 bytes earn half a second"
        );
        progress.read(&[b'x'; 20_000], at(30));
        expect(35, Overdue::Body); // and 20,000 no more than the grace: it may fall silent now
        progress.read(&[b'x'; 29_500], at(28));
        assert_eq!(progress.deadline(), None); // now it is our turn, for as long as it takes
        progress.read(&HEAD[..5], at(29));
        assert_eq!(progress.deadline(), None); // sent ahead
        progress.answered(None, None);
        progress.write_blocked(at(40));
        expect(45, Overdue::Answer);
        assert!(progress.wrote(3_000, at(40)).is_none());
        expect(48, Overdue::Answer); // 3,000 bytes earn three seconds
        assert!(progress.wrote(3_000, at(42)).is_none());
        expect(51, Overdue::Answer); // without a bound: the kernel may hold them for long
        progress.flushed(at(47));
        expect(57, Overdue::Header); // the second request has begun before
    }

    #[test]
    fn a_slow_body_is_waited_for_and_a_trickle_after_a_burst_is_not() {
        let start = Instant::now();
        let deadlines = Deadlines {
            transfer_grace: seconds(10),
            transfer_rate_min: 16 << 10,
            ..Deadlines::default()
        };
        let body = |len: usize| format!("POST / HTTP/1.1\r\nContent-Length: {len}\r\n\r\n");
        let silent_for = |pieces: &[(u64, usize)]| {
            let progress = Progress::new(&deadlines, start);
            progress.read(body(4 << 20).as_bytes(), start);
            begin(&progress, start);
            for &(after, len) in pieces {
                let (until, what) = progress.deadline().unwrap();
                assert_eq!(what, Overdue::Body);
                let now = start + seconds(after);
                if until <= now {
                    return Some(after);
                }
                progress.read(&vec![b'x'; len], now);
            }
            None
        };
        // 1 MiB at the lowest rate, and in bursts with silence in between.
        let steady: Vec<_> = (1..=64).map(|at| (at, 16 << 10)).collect();
        assert_eq!(silent_for(&steady), None);
        let bursts: Vec<_> = (1..=8).map(|at| (at * 8, 128 << 10)).collect();
        assert_eq!(silent_for(&bursts), None);
        // 3 MiB at once earn no minutes for later bytes.
        assert_eq!(silent_for(&[(0, 3 << 20), (9, 1)]), None);
        assert_eq!(silent_for(&[(0, 3 << 20), (10, 1)]), Some(10));
        let trickle: Vec<_> = [(0, 3 << 20)]
            .into_iter()
            .chain((1..).map(|at| (at * 4, 1)).take(10))
            .collect();
        assert_eq!(silent_for(&trickle), Some(12));
    }

    #[tokio::test]
    async fn the_end_of_a_client_shows_and_is_kept_from_hyper_while_an_answer_is_owed() {
        let now = Instant::now();
        let cx = &Context::from_waker(Waker::noop());
        let progress = Progress::new(&Deadlines::default(), now);
        progress.read(b"GET / HTTP/1.1\r\n\r\n", now);
        begin(&progress, now);
        assert!(!progress.owes_answer(cx) && !progress.hangup().has_come());
        progress.read(b"", now);
        progress.hangup().come().await;
        assert!(progress.owes_answer(cx));
        progress.answered(None, None);
        assert!(progress.owes_answer(cx), "it is not out");
        progress.flushed(now);
        assert!(!progress.owes_answer(cx));

        let progress = Progress::new(&Deadlines::default(), now);
        progress.read(HEAD, now);
        begin(&progress, now);
        progress.read(b"", now);
        assert!(!progress.owes_answer(cx), "its body will never be whole");
    }

    #[test]
    fn an_end_that_comes_with_its_request_waits_for_the_service() {
        // hyper once learned of the end before the service was called, and the client got no
        // answer.
        let now = Instant::now();
        let cx = &Context::from_waker(Waker::noop());
        let progress = Progress::new(&Deadlines::default(), now);
        progress.read(b"GET / HTTP/1.1\r\n\r\n", now);
        progress.read(&[], now);
        assert!(progress.owes_answer(cx), "nobody has looked at it yet");
        begin(&progress, now);
        progress.answered(None, None);
        assert!(progress.owes_answer(cx), "it is not out");
        progress.flushed(now);
        assert!(!progress.owes_answer(cx));
    }

    #[test]
    fn the_first_byte_of_an_answer_keeps_its_leases_and_no_earlier_byte_does() {
        let now = Instant::now();
        let progress = Progress::new(&Deadlines::default(), now);
        progress.read(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", now);
        begin(&progress, now);
        progress.answered(None, None);
        // The second request was sent ahead, and hyper still has the first answer.
        let woken = Arc::new(Woken(AtomicU32::new(0)));
        let waker = Waker::from(woken.clone());
        assert!(
            progress
                .poll_begin(&Context::from_waker(&waker), now)
                .is_pending()
        );
        assert!(progress.wrote(10, now).is_none());
        progress.flushed(now);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(begin(&progress, now), 1);
        progress.answered(Some(KeepGuard::new(|| ())), None);
        assert!(progress.wrote(1, now).is_some());
        assert!(progress.wrote(1, now).is_none());
    }
}
