//! A server that does not answer for a while: told once, and once more when it answers again.

use std::{
    fmt::Display,
    pin::pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::time::timeout;

use crate::{client::CallError, output::note};

/// So long after an answer was due somebody is told that it has not come.
const SILENCE: Duration = Duration::from_secs(5);

const NO_ANSWER: &str = "the server does not answer, trying again for a while";

/// Whether it was said that the server does not answer.
#[derive(Default)]
pub(super) struct Away {
    said: AtomicBool,
}

impl Away {
    /// Waits for an answer that should come within `wait`. Says that the server does not answer, for a call
    /// that its caller tries again, and that it answers again.
    pub(super) async fn watch<T>(
        &self,
        wait: Duration,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let mut call = pin!(call);
        let answer = match timeout(wait + SILENCE, &mut call).await {
            Ok(answer) => answer,
            Err(_) => {
                self.say(NO_ANSWER, "no answer has come yet");
                call.await
            }
        };
        match &answer {
            Err(error) if error.is_refusal() && error.may_pass() => {
                self.say(
                    "the server refuses for now, trying again for a while",
                    error,
                );
            }
            Err(error) if error.may_pass() => self.say(NO_ANSWER, error),
            _ => {
                if self.said.swap(false, Ordering::Relaxed) {
                    note("the server answers again");
                }
            }
        }
        answer
    }

    fn say(&self, what: &str, why: impl Display) {
        if !self.said.swap(true, Ordering::Relaxed) {
            note(&format!("{what}: {why}"));
        }
    }
}
