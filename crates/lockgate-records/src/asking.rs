//! Commands that nobody waits for any more.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep};

/// Whoever gives a command up after that long without an answer takes its connection for dead.
const SILENCE: Duration = Duration::from_secs(1);

/// A command on its way over a connection. If it is dropped after a second without an answer, the connection is marked as
/// silent, so that the next command goes over another one: a caller may wait for less time than the store does, and would
/// otherwise ask over a dead connection again and again.
#[derive(Debug)]
pub struct Asking<'c> {
    is_silent: &'c AtomicBool,
    since: Instant,
    is_answered: bool,
}

impl<'c> Asking<'c> {
    /// A command that is sent now.
    #[must_use]
    pub fn over(is_silent: &'c AtomicBool) -> Self {
        Self {
            is_silent,
            since: Instant::now(),
            is_answered: false,
        }
    }

    /// Its answer has come, or its connection has ended.
    pub fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_answered && self.since.elapsed() >= SILENCE {
            self.is_silent.store(true, Ordering::Release);
        }
    }
}

/// Waits before a read is asked again that has shown a lease whose time is over: somebody has locked it, and may keep it so for
/// long. From 1 ms, doubled with each round up to 128 ms.
pub async fn wait_for_end(round: u32) {
    sleep(Duration::from_millis(1 << round.min(7))).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_command_that_is_given_up_late_tells_of_silence() {
        let is_silent = AtomicBool::new(false);
        drop(Asking::over(&is_silent));
        let answered = Asking::over(&is_silent);
        sleep(SILENCE).await;
        answered.answered();
        assert!(!is_silent.load(Ordering::Acquire));
        let given_up = Asking::over(&is_silent);
        sleep(SILENCE).await;
        drop(given_up);
        assert!(is_silent.load(Ordering::Acquire));
    }
}
