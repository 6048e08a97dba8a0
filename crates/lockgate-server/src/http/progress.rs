//! How far a connection has come: what its client still owes, until when, and which leases go out
//! with the answer on its way.
//!
//! Three parties of one task share it: the wire, which sees bytes; the service, which sees requests;
//! the connection, which watches the deadline. hyper stands between them and knows none of it.

use std::{
    future::poll_fn,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    body::AnswerShare,
    framing::{Framing, Part, Violation},
};
use crate::{Deadlines, sqs::KeepGuard};

/// See the module.
#[derive(Debug)]
pub(crate) struct Progress {
    header: Duration,
    idle: Duration,
    transfer_grace: Duration,
    transfer_rate_min: u64,
    inner: Mutex<Inner>,
}

/// What a client took too long for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overdue {
    /// Beginning a request.
    Idle,
    /// Finishing a head.
    Header,
    /// Sending a body.
    Body,
    /// Taking its answer.
    Answer,
    /// Going away after the answer to a request that was not read to its end.
    Linger,
}

#[derive(Debug)]
struct Inner {
    framing: Framing,
    /// Requests the service has begun to answer, the current one included.
    begun: u64,
    service: Service,
    /// Until when the client must have sent what it sends now.
    reading: Span,
    /// Since when it has not taken what was written, if it has not.
    writing: Option<Span>,
    /// Kept by the first byte of the answer on its way; gives its leases back if it is dropped
    /// here, with the connection.
    keep: Option<KeepGuard>,
    /// What the answer on its way takes of the memory for answers.
    share: Option<AnswerShare>,
    /// A request that waits for the answer before it to be out.
    next: Option<Waker>,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    /// No request.
    Free,
    /// It works on one.
    Busy,
    /// hyper has its answer, and the socket not yet all of it.
    Answered,
    /// hyper gets its answer piece by piece.
    Streaming,
}

/// Something that takes time.
#[derive(Clone, Copy, Debug)]
struct Span {
    what: Option<Overdue>,
    since: Instant,
    /// Bytes that came along since.
    moved: u64,
}

impl Progress {
    pub(crate) fn new(deadlines: &Deadlines, now: Instant) -> Self {
        Self {
            header: deadlines.header,
            idle: deadlines.idle,
            transfer_grace: deadlines.transfer_grace,
            transfer_rate_min: deadlines.transfer_rate_min.max(1),
            inner: Mutex::new(Inner {
                framing: Framing::default(),
                begun: 0,
                service: Service::Free,
                reading: Span::new(Some(Overdue::Idle), now),
                writing: None,
                keep: None,
                share: None,
                next: None,
                ended: false,
            }),
        }
    }

    /// The wire has read `bytes`; none: the client has ended its side.
    pub(crate) fn read(&self, bytes: &[u8], now: Instant) {
        let mut inner = self.lock();
        inner.ended |= bytes.is_empty();
        inner.framing.observe(bytes);
        inner.reading.moved += bytes.len() as u64;
        inner.update(now);
    }

    /// Whether the next byte written is the first of an answer with leases.
    pub(crate) fn holds_leases(&self) -> bool {
        self.lock().keep.is_some()
    }

    /// The wire has written `len` bytes of what hyper gave it. Returns what keeps the leases, if
    /// these are the first bytes of their answer; to be called outside.
    #[must_use]
    pub(crate) fn wrote(&self, len: usize) -> Option<KeepGuard> {
        let mut inner = self.lock();
        if let Some(writing) = &mut inner.writing {
            writing.moved += len as u64;
        }
        inner.keep.take()
    }

    /// The wire could not write: the client does not take what it gets.
    pub(crate) fn write_blocked(&self, now: Instant) {
        let mut inner = self.lock();
        inner
            .writing
            .get_or_insert_with(|| Span::new(Some(Overdue::Answer), now));
    }

    /// All that hyper had to write is written. An answer is one buffer for hyper, so if there is
    /// one, it is out as a whole.
    pub(crate) fn flushed(&self, now: Instant) {
        let mut inner = self.lock();
        inner.writing = None;
        if inner.service == Service::Answered {
            inner.service = Service::Free;
            inner.share = None;
            inner.update(now);
            if let Some(waker) = inner.next.take() {
                waker.wake();
            }
        }
    }

    /// The service takes the next request. Waits until the answer before it is out: only so do the
    /// next bytes written belong to this one, also when a client sends requests ahead.
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

    /// The service gives its answer to hyper, and with it what keeps the leases in it and what it
    /// takes of the memory for answers.
    pub(crate) fn answered(&self, keep: Option<KeepGuard>, share: Option<AnswerShare>) {
        let mut inner = self.lock();
        inner.service = Service::Answered;
        inner.keep = keep;
        inner.share = share;
    }

    /// The service gives the beginning of its answer to hyper; `answered` tells when that has its end.
    pub(crate) fn streaming(&self) {
        self.lock().service = Service::Streaming;
    }

    /// What is wrong with the framing of request `index`, as far as it has arrived.
    pub(crate) fn violation(&self, index: u64) -> Option<Violation> {
        self.lock().framing.violation(index)
    }

    /// When the connection is to be cut, and why, unless it comes along.
    pub(crate) fn deadline(&self) -> Option<(Instant, Overdue)> {
        let inner = self.lock();
        let spans = [Some(inner.reading), inner.writing];
        spans
            .into_iter()
            .flatten()
            .filter_map(|span| {
                let what = span.what?;
                Some((span.since + self.allowed(what, span.moved), what))
            })
            .min_by_key(|&(at, _)| at)
    }

    /// hyper is done with the connection. Whether the client may still be sending: closing now would
    /// make its kernel throw the answer away.
    pub(crate) fn linger(&self, now: Instant) -> bool {
        let mut inner = self.lock();
        let unread = !inner.ended && inner.framing.part() != Part::Between;
        if unread && inner.reading.what != Some(Overdue::Linger) {
            inner.reading = Span::new(Some(Overdue::Linger), now);
        }
        unread
    }

    fn allowed(&self, what: Overdue, moved: u64) -> Duration {
        match what {
            Overdue::Idle => self.idle,
            Overdue::Header => self.header,
            Overdue::Linger => self.transfer_grace,
            Overdue::Body | Overdue::Answer => {
                let earned_ms = moved.saturating_mul(1000) / self.transfer_rate_min;
                self.transfer_grace + Duration::from_millis(earned_ms)
            }
        }
    }

    /// Nothing that holds the lock can panic between two changes that belong together.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Starts the clock anew if the client now owes something else.
    fn update(&mut self, now: Instant) {
        let what = self.owed();
        if self.reading.what != what && self.reading.what != Some(Overdue::Linger) {
            self.reading = Span::new(what, now);
        }
    }

    fn owed(&self) -> Option<Overdue> {
        // What a client sends ahead may take its time: it is not waited for.
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

impl Span {
    fn new(what: Option<Overdue>, now: Instant) -> Self {
        Self {
            what,
            since: now,
            moved: 0,
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
        progress.read(&[b'x'; 20_000], at(27));
        expect(51, Overdue::Body); // 20 s earned by 20,000 bytes
        progress.read(&[b'x'; 30_000], at(28));
        assert_eq!(progress.deadline(), None); // now it is our turn, for as long as it takes
        progress.read(&HEAD[..5], at(29));
        assert_eq!(progress.deadline(), None); // sent ahead
        progress.answered(None, None);
        progress.write_blocked(at(40));
        expect(45, Overdue::Answer);
        assert!(progress.wrote(3_000).is_none());
        expect(48, Overdue::Answer);
        progress.flushed(at(47));
        expect(57, Overdue::Header); // the second request has begun before
    }

    #[test]
    fn the_first_byte_of_an_answer_keeps_its_leases_and_no_earlier_byte_does() {
        let now = Instant::now();
        let progress = Progress::new(&Deadlines::default(), now);
        progress.read(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", now);
        begin(&progress, now);
        progress.answered(None, None);
        // The second request was sent ahead, and the first answer is still in hyper's hands.
        let woken = Arc::new(Woken(AtomicU32::new(0)));
        let waker = Waker::from(woken.clone());
        assert!(
            progress
                .poll_begin(&Context::from_waker(&waker), now)
                .is_pending()
        );
        assert!(progress.wrote(10).is_none());
        progress.flushed(now);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(begin(&progress, now), 1);
        progress.answered(Some(KeepGuard::new(|| ())), None);
        assert!(progress.wrote(1).is_some());
        assert!(progress.wrote(1).is_none());
    }
}
