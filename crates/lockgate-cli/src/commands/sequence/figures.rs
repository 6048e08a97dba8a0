//! What a sequencing process serves of itself and its ledger.

use std::{
    fmt::{self, Write as _},
    future::Future,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use hyper::Method;
use lockgate_core::{
    QueueName, ReaderName,
    ledger::{Ledger as _, LedgerError, SequenceId},
};
use lockgate_server::{Handler, HandlerAnswer, HandlerRequest};
use tokio::time::timeout;

use super::career::State;
use crate::{commands::forward::no_messages, ledger::AnyLedger};

/// How long a page waits for the ledger.
const LEDGER_WITHIN: Duration = Duration::from_secs(3);

/// Serves the figures, and takes nothing.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) from: QueueName,
    /// The queues that get events, and what the ledger calls them.
    pub(super) to: Vec<(QueueName, ReaderName)>,
    pub(super) ledger: AnyLedger,
    pub(super) state: Arc<State>,
}

/// What the ledger says.
struct Seen {
    head: SequenceId,
    published: Vec<SequenceId>,
}

impl Figures {
    async fn seen(&self) -> Result<Seen, LedgerError> {
        // In this order none of them is ahead of the head.
        let readers = self.ledger.readers().await?;
        let head = self.ledger.head().await?.sequence_id;
        let place = |reader: &ReaderName| {
            let kept = readers.iter().find(|kept| kept.reader == *reader);
            kept.map_or(SequenceId::START, |kept| kept.sequence_id)
        };
        let published = self.to.iter().map(|(_, reader)| place(reader)).collect();
        Ok(Seen { head, published })
    }

    fn write(&self, seen: Option<&Seen>, text: &mut String) -> fmt::Result {
        let known = self.state.known();
        let counts = known.counts;
        let of_process = [
            (
                "active",
                "gauge",
                "1 while this process is the active one, else 0.",
                u64::from(known.active.is_some()),
            ),
            (
                "epoch",
                "gauge",
                "The epoch of its last term; 0 before the first.",
                known.epoch,
            ),
            (
                "appended_total",
                "counter",
                "Events that it has appended.",
                counts.appended,
            ),
            (
                "duplicates_total",
                "counter",
                "Messages whose event was there already.",
                counts.duplicates,
            ),
            (
                "rejected_total",
                "counter",
                "Messages that can never be events, each time they came.",
                counts.rejected,
            ),
            (
                "unsettled_total",
                "counter",
                "Messages in the ledger whose settlement is not known to have come through.",
                counts.unsettled,
            ),
            (
                "ledger_up",
                "gauge",
                "1 if the ledger has answered for this page, else 0.",
                u64::from(seen.is_some()),
            ),
        ];
        for (name, kind, help, value) in of_process {
            self.about(text, name, kind, help)?;
            self.sample(text, name, "", value)?;
        }
        let Some(seen) = seen else {
            return Ok(());
        };
        self.about(
            text,
            "ledger_head",
            "gauge",
            "The number of the last event in the ledger.",
        )?;
        self.sample(text, "ledger_head", "", seen.head.0)?;
        if self.to.is_empty() {
            return Ok(());
        }
        let sinks = || self.to.iter().zip(&seen.published);
        self.about(
            text,
            "published",
            "gauge",
            "The number of the event up to which a queue has everything.",
        )?;
        for ((queue, _), published) in sinks() {
            self.sample(text, "published", &format!(",to=\"{queue}\""), published.0)?;
        }
        self.about(
            text,
            "lag",
            "gauge",
            "Events that a queue does not have yet.",
        )?;
        for ((queue, _), published) in sinks() {
            let lag = seen.head.0.saturating_sub(published.0);
            self.sample(text, "lag", &format!(",to=\"{queue}\""), lag)?;
        }
        Ok(())
    }

    fn about(&self, text: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
        writeln!(text, "# HELP lockgate_sequencer_{name} {help}")?;
        writeln!(text, "# TYPE lockgate_sequencer_{name} {kind}")
    }

    fn sample(&self, text: &mut String, name: &str, labels: &str, value: u64) -> fmt::Result {
        let from = &self.from;
        writeln!(
            text,
            "lockgate_sequencer_{name}{{from=\"{from}\"{labels}}} {value}"
        )
    }
}

impl Handler for Figures {
    fn takes(&self, _: &Method, _: &str) -> Result<(), Box<HandlerAnswer>> {
        Err(Box::new(no_messages()))
    }

    fn answer(
        &self,
        _: HandlerRequest,
    ) -> Pin<Box<dyn Future<Output = HandlerAnswer> + Send + '_>> {
        Box::pin(async { no_messages() })
    }

    fn ready(&self) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + '_>> {
        Box::pin(async {
            let known = self.state.known();
            if known.active.is_none() && !known.is_warm {
                return Err("it is not active and cannot stand by yet".to_owned());
            }
            match timeout(LEDGER_WITHIN, self.ledger.head()).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!(
                    "the ledger has not answered for {} seconds",
                    LEDGER_WITHIN.as_secs()
                )),
            }
        })
    }

    fn metrics(&self) -> Pin<Box<dyn Future<Output = String> + Send + '_>> {
        Box::pin(async {
            let seen = timeout(LEDGER_WITHIN, self.seen()).await;
            let seen = seen.ok().and_then(Result::ok);
            let mut text = String::new();
            // Writing to a string cannot fail.
            let _ = self.write(seen.as_ref(), &mut text);
            text
        })
    }
}
