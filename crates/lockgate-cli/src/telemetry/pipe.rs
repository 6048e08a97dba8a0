//! Lines on their way to standard error, for a server that must not wait for whoever reads them.
//!
//! A pipe that nobody reads takes some 64 KiB, and then a write to it waits for ever. So a thread of its
//! own writes what others leave in a buffer, and what does not fit into that is dropped and counted.
//! `tracing-appender` does as much, but it bounds lines and not bytes, and at its end complains on the
//! very standard error that is stuck, which waits again.

use std::{
    io::{self, Write},
    mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

/// Bytes that wait to be written, at most. As many may be on their way.
const BYTES_MAX: usize = 1 << 20;

/// Errors, and the last words before an end, may take so many more.
const URGENT_BYTES_MAX: usize = BYTES_MAX + (64 << 10);

/// A buffer that was larger is made smaller again.
const BYTES_KEEP: usize = 64 << 10;

/// See the module. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Pipe(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
    written: Condvar,
    dropped: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    /// How many lines that are.
    lines: u64,
    /// Dropped, and not told yet.
    untold: u64,
    is_writing: bool,
}

impl Pipe {
    /// Starts the thread that writes into `to`. After lines were dropped, it calls `tell` with their
    /// number as soon as a write has succeeded again.
    ///
    /// # Errors
    /// If there can be no such thread.
    pub(super) fn start(
        to: impl Write + Send + 'static,
        tell: impl Fn(u64) + Send + 'static,
    ) -> io::Result<Self> {
        let pipe = Self::default();
        let shared = pipe.0.clone();
        let thread = thread::Builder::new().name("lockgate-stderr".to_owned());
        thread.spawn(move || shared.run(to, &tell))?;
        Ok(pipe)
    }

    /// Leaves a line to be written, or drops it if there is no room. Never waits.
    pub(super) fn push(&self, line: &[u8], is_urgent: bool) {
        let max = if is_urgent {
            URGENT_BYTES_MAX
        } else {
            BYTES_MAX
        };
        let mut state = self.0.state();
        // One that is larger than all of it still has its turn.
        if !state.waiting.is_empty() && state.waiting.len() + line.len() > max {
            self.0.lose(&mut state, 1);
            return;
        }
        state.waiting.extend_from_slice(line);
        state.lines += 1;
        drop(state);
        self.0.arrived.notify_one();
    }

    /// Waits until everything is written, but no longer than that.
    pub(super) fn flush(&self, within: Duration) {
        let until = Instant::now() + within;
        let mut state = self.0.state();
        while !state.waiting.is_empty() || state.is_writing {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.written.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How many lines were dropped.
    pub(super) fn dropped(&self) -> Arc<AtomicU64> {
        self.0.dropped.clone()
    }
}

impl Shared {
    /// No code that can panic runs under the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, state: &mut State, lines: u64) {
        state.untold += lines;
        self.dropped.fetch_add(lines, Relaxed);
    }

    fn run(&self, mut to: impl Write, tell: &impl Fn(u64)) {
        let mut batch = Vec::new();
        let mut flows = true;
        loop {
            let (lines, untold) = {
                let mut state = self.state();
                while state.waiting.is_empty() && !(flows && state.untold > 0) {
                    let waited = self.arrived.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                }
                mem::swap(&mut batch, &mut state.waiting);
                state.is_writing = true;
                let untold = if flows {
                    mem::take(&mut state.untold)
                } else {
                    0
                };
                (mem::take(&mut state.lines), untold)
            };
            if untold > 0 {
                // It comes back as a line, for which there is room just now.
                tell(untold);
            }
            if !batch.is_empty() {
                flows = to.write_all(&batch).and_then(|()| to.flush()).is_ok();
                batch.clear();
                batch.shrink_to(BYTES_KEEP);
            }
            let mut state = self.state();
            if !flows {
                // A terminal that was closed, a reader that is gone. There may be another one day.
                self.lose(&mut state, lines);
            }
            state.is_writing = false;
            drop(state);
            self.written.notify_all();
        }
    }
}

/// Standard error without the lock of the standard library: whoever panics while a write waits would
/// wait for that lock too.
pub(super) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stderr = io::stderr();
        loop {
            match rustix::io::write(&stderr, bytes) {
                // Somebody who has the same pipe or terminal wants it like this.
                Err(Errno::AGAIN) => {
                    let _ = poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None);
                }
                Err(Errno::INTR) => {}
                written => return Ok(written?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// A reader that takes a batch when it is told to, or refuses it.
    struct Slow {
        begun: mpsc::Sender<()>,
        turns: mpsc::Receiver<io::Result<()>>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.begun.send(()).unwrap();
            self.turns.recv().unwrap_or(Ok(()))?;
            self.taken.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Test {
        pipe: Pipe,
        begun: mpsc::Receiver<()>,
        turns: mpsc::Sender<io::Result<()>>,
        taken: Arc<Mutex<Vec<u8>>>,
        told: mpsc::Receiver<u64>,
    }

    impl Test {
        /// With one line in the hands of a reader that does not take it.
        fn stuck() -> Self {
            let (began, begun) = mpsc::channel();
            let (turns, turn) = mpsc::channel();
            let (tell, told) = mpsc::channel();
            let taken = Arc::<Mutex<Vec<u8>>>::default();
            let slow = Slow {
                begun: began,
                turns: turn,
                taken: taken.clone(),
            };
            let tell = move |lines| {
                // The test may be over.
                let _ = tell.send(lines);
            };
            let pipe = Pipe::start(slow, tell).unwrap();
            pipe.push(b"first\n", false);
            begun.recv().unwrap();
            Self {
                pipe,
                begun,
                turns,
                taken,
                told,
            }
        }

        fn dropped(&self) -> u64 {
            self.pipe.dropped().load(Relaxed)
        }
    }

    #[test]
    fn what_nobody_takes_is_dropped_and_told_when_somebody_does() {
        let test = Test::stuck();
        let line = [b'x'; 1 << 10];
        for _ in 0..BYTES_MAX / line.len() {
            test.pipe.push(&line, false);
        }
        assert_eq!(test.dropped(), 0);
        for _ in 0..5 {
            test.pipe.push(&line, false);
        }
        assert_eq!(test.dropped(), 5);
        test.pipe.push(b"an error", true);
        assert_eq!(test.dropped(), 5, "there is room left for that");
        // It does not wait for ever.
        test.pipe.flush(Duration::ZERO);
        for _ in 0..2 {
            test.turns.send(Ok(())).unwrap();
        }
        assert_eq!(test.told.recv().unwrap(), 5);
        test.pipe.flush(LONG);
        let taken = test.taken.lock().unwrap();
        assert_eq!(
            taken.len(),
            b"first\n".len() + BYTES_MAX + b"an error".len()
        );
        assert!(taken.ends_with(b"an error"));
        assert_eq!(test.dropped(), 5);
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_the_next_line_is_tried() {
        let test = Test::stuck();
        let refused = || Err(io::ErrorKind::BrokenPipe.into());
        test.turns.send(refused()).unwrap();
        test.pipe.push(b"second\n", false);
        test.begun.recv().unwrap();
        assert_eq!(test.dropped(), 1);
        test.turns.send(Ok(())).unwrap();
        assert_eq!(test.told.recv().unwrap(), 1);
        test.pipe.flush(LONG);
        assert_eq!(&test.taken.lock().unwrap()[..], b"second\n");
    }

    #[test]
    fn a_line_that_is_larger_than_the_buffer_is_written_alone() {
        let test = Test::stuck();
        test.pipe.push(&vec![b'x'; 2 * BYTES_MAX], false);
        test.pipe.push(b"dropped\n", false);
        assert_eq!(test.dropped(), 1);
        drop(test.turns);
        test.pipe.flush(LONG);
        assert_eq!(test.taken.lock().unwrap().len(), 6 + 2 * BYTES_MAX);
    }
}
