//! Printing on a thread of its own: a reader that does not read holds up the thread, not the signals.

use std::{sync::mpsc, thread};

use tokio::sync::oneshot;

use crate::{
    exit::{Exit, Failure},
    output::Output,
};

type Job = (Vec<u8>, oneshot::Sender<Result<(), Failure>>);

/// Standard output.
pub(super) struct Printer(mpsc::Sender<Job>);

impl Printer {
    pub(super) fn start() -> Result<Self, Failure> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let print = move || {
            let mut output = Output::new();
            for (text, done) in queue {
                // Nobody hears it if a signal came.
                let _ = done.send(output.raw(&text).and_then(|()| output.flush()));
            }
        };
        thread::Builder::new()
            .name("printer".to_owned())
            .spawn(print)
            .map_err(|error| {
                Failure::from_error(Exit::Failed, error).context("starting a thread")
            })?;
        Ok(Self(jobs))
    }

    /// Returns when the operating system has the text. Where the future is dropped before, the text may
    /// still be written, or a part of it.
    pub(super) async fn print(&self, text: Vec<u8>) -> Result<(), Failure> {
        let (done, printed) = oneshot::channel();
        let _ = self.0.send((text, done));
        printed
            .await
            .unwrap_or_else(|_| Err(Failure::failed("the thread that prints has panicked")))
    }
}
