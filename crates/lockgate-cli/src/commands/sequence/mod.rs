//! `lockgate sequence`.
//!
//! A [`Sequencer`] as the career of a [`Singleton`]. What may pass ends a term, and the process stands by again; what lasts ends
//! the process ([`Career`]).

mod career;
mod figures;
mod source;

use std::{pin::pin, sync::Arc, time::Duration};

use lockgate_client::{Method, RemoteQueue};
use lockgate_coordination::{Ended, Singleton};
use lockgate_core::{
    Backoff, ElectionName, Level, QueueName, ReaderName, Sink as _,
    coordination::{Campaign, Coordinator as _, Observe},
    ledger::{Ledger as _, LedgerError, LedgerOptions},
};
use lockgate_sequencer::{Sequencer, SequencerOptions};
use serde::Deserialize;
use serde_json::json;
use tokio::{sync::oneshot, time::Instant};
use tracing::{info, warn};

use self::{
    career::{Career, Deposed, Ending, State},
    figures::Figures,
    source::Orders,
};
use super::{
    Signals, client_of, environment,
    forward::{Listener, or_second_signal},
    lead::{opened, own_name},
    once, serve,
};
use crate::{
    args::Sequence,
    client::{CallError, Client},
    exit::{Exit, Failure},
    ledger::{self, AnyLedger},
    output::{Output, count},
    settings::{OF_METRICS, Resolved, resolve, table},
    telemetry,
    units::millis,
    via::Via,
};

/// How long a process does not stand after its term has failed.
const BACKOFF: Backoff = Backoff {
    first: 250,
    max: 5_000,
};

/// How long answers to scrapes may take at the end.
const DRAIN: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &Sequence) -> Result<(), Failure> {
    let settings = resolve(&args.settings.0, &environment)?;
    check(args, &settings)?;
    let format = settings.get(&table::LOG_FORMAT);
    let mut level = settings.get(&table::LOG_LEVEL);
    if level == "info" {
        // What its terms tell is told here, with more.
        level.push_str(",lockgate_coordination=warn");
    }
    telemetry::start(format, &level).map_err(|error| {
        Failure::from_error(Exit::Failed, error).context("starting the log's thread")
    })?;
    serve::told_in_log(format, sequence(args, &settings))
}

fn check(args: &Sequence, settings: &Resolved) -> Result<(), Failure> {
    if settings.get(&table::LEDGER).is_none() {
        return Err(Failure::usage("which ledger gets the events is not said")
            .hint("name it with --ledger, or in LOCKGATE_LEDGER"));
    }
    once("queue of --to", args.to.iter())?;
    if args.to.contains(&args.from) {
        return Err(Failure::usage(format!(
            "--from and --to are both {}: events would go round for ever",
            args.from
        )));
    }
    let mut given = args.settings.0.of_listener();
    match given.find(|flag| args.metrics.is_none() && OF_METRICS.contains(flag)) {
        Some(flag) => Err(Failure::usage(format!("--{flag} is for --metrics"))),
        None => Ok(()),
    }
}

fn campaign(args: &Sequence) -> Result<Campaign, Failure> {
    let election = match &args.election {
        Some(election) => election.clone(),
        None => ElectionName::new(&format!("sequence/{}", args.from)).map_err(Failure::usage)?,
    };
    let candidate = match &args.name {
        Some(name) => name.clone(),
        None => own_name()?,
    };
    let campaign = Campaign {
        lease: args.lease,
        margin: args.lease / 10,
        notice: args.lease / 5,
        ..Campaign::new(election, candidate)
    };
    campaign.check()?;
    Ok(campaign)
}

fn sequence(args: &Sequence, settings: &Resolved) -> Result<(), Failure> {
    let client = client_of(settings)?;
    let campaign = campaign(args)?;
    // Nothing is opened for a listener that could not listen.
    let reserve = |listen| Listener::reserve(DRAIN, listen, None, settings);
    let listener = args.metrics.map(reserve).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("lockgate-sequence")
        .build()
        .map_err(|error| {
            Failure::from_error(Exit::Failed, error).context("starting the runtime")
        })?;
    let result = runtime.block_on(async {
        let mut signals = Signals::new()?;
        signals.hear_hangup()?;
        let parts = tokio::select! {
            biased;
            _ = signals.next() => return Ok(()),
            parts = Parts::open(args, settings, &client, &campaign.election) => parts?,
        };
        let state = Arc::new(State::default());
        let _served = match listener {
            Some(listener) => {
                let figures = Figures {
                    from: parts.from.clone(),
                    to: parts.readers(),
                    ledger: parts.ledger.clone(),
                    state: state.clone(),
                };
                Some(listener.serve_figures(figures).await?)
            }
            None => None,
        };
        parts.lead(args, campaign, state, &mut signals).await
    });
    runtime.shutdown_background();
    result
}

/// What a sequencer works with, as soon as it answers.
struct Parts {
    via: Via,
    ledger: AnyLedger,
    from: QueueName,
    source: Orders,
    to: Vec<(ReaderName, RemoteQueue)>,
}

impl Parts {
    async fn open(
        args: &Sequence,
        settings: &Resolved,
        client: &Client,
        election: &ElectionName,
    ) -> Result<Self, Failure> {
        let (began, patience) = (Instant::now(), args.lease);
        let from = QueueName::new(&args.from).map_err(Failure::usage)?;
        let source = queue(client, &from, began, patience).await?;
        let mut to = Vec::new();
        for name in &args.to {
            let name = QueueName::new(name).map_err(Failure::usage)?;
            let sink = queue(client, &name, began, patience).await?;
            if !sink.sink_capabilities().keys {
                let what = format!(
                    "{name} keeps no order: a queue of --to is keyed (its name ends in .fifo)"
                );
                return Err(Failure::usage(what));
            }
            let reader = ReaderName::new(&format!("queue/{name}")).map_err(Failure::usage)?;
            to.push((reader, sink));
        }
        let via = async || {
            let via = Via::open(&args.settings.0).await?;
            // A store of which nothing can be read, because it is away or refuses, elects nobody.
            let look = Observe {
                election: election.clone(),
                seen: None,
                wait: Duration::ZERO,
            };
            via.observe(look).await?;
            Ok(via)
        };
        let via = opened(began, patience, via).await?;
        let ledger = ledger(client, args, settings, began).await?;
        let is_elsewhere = settings
            .get(&table::LEDGER)
            .is_some_and(|name| name.contains("://"));
        if is_elsewhere && is_taken_back(&source).await {
            warn!(
                queue = %from,
                "messages without a unique id may be sequenced twice: a crash can take back an acknowledgement of this queue, \
                 whose level is below disk"
            );
        }
        Ok(Self {
            via,
            ledger,
            from,
            source: Orders::new(source, client.clone(), args.until_empty),
            to,
        })
    }

    fn readers(&self) -> Vec<(QueueName, ReaderName)> {
        let readers = self.to.iter();
        readers
            .map(|(reader, sink)| (sink.name().clone(), reader.clone()))
            .collect()
    }

    /// Stands by and leads, term after term.
    async fn lead(
        self,
        args: &Sequence,
        campaign: Campaign,
        state: Arc<State>,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let options = SequencerOptions {
            batch_max: usize::from(args.batch),
            wait: args.wait,
            // What a process has taken when it is killed comes again by the time that the next one is active. A lease that is
            // too short does no harm: a message that comes twice is one event.
            lease: Some(args.lease),
            holder: campaign.candidate.clone(),
            ..SequencerOptions::default()
        };
        let mut sequencer = Sequencer::new(self.from.clone(), self.source, self.ledger);
        for (reader, sink) in self.to {
            sequencer = sequencer.publish(reader, sink);
        }
        let ending = Arc::new(Ending::default());
        let mut career = Career {
            sequencer: sequencer.options(options),
            from: self.from,
            election: campaign.election.clone(),
            notice: campaign.notice,
            state: state.clone(),
            ending: ending.clone(),
            deposed: Deposed::default(),
        };
        let singleton = Singleton::new(self.via, campaign).backoff(BACKOFF);
        let (stop, stopped) = oneshot::channel::<()>();
        let mut leading = pin!(singleton.run_until(&mut career, async {
            // Told, or dropped.
            let _ = stopped.await;
        }));
        let ended = tokio::select! {
            biased;
            exit = signals.next() => {
                info!(signal = serve::signal_name(exit), "stopping; another signal ends it at once");
                drop(stop);
                or_second_signal(signals, leading).await
            }
            () = ending.told() => {
                drop(stop);
                or_second_signal(signals, leading).await
            }
            ended = &mut leading => ended,
        };
        let counts = state.known().counts;
        info!(
            target: telemetry::ALWAYS,
            appended = counts.appended,
            duplicates = counts.duplicates,
            rejected = counts.rejected,
            unsettled = counts.unsettled,
            "ended"
        );
        let told = match args.json {
            true => {
                let mut output = Output::new();
                let told = output.json(&json!({
                    "appended": counts.appended,
                    "duplicates": counts.duplicates,
                    "rejected": counts.rejected,
                    "unsettled": counts.unsettled,
                }));
                told.and_then(|()| output.flush())
            }
            false => Ok(()),
        };
        // What became of the messages counts more than whether somebody reads it.
        match ending.take() {
            Some(why) => Err(why),
            None => judge(&args.from, ended?, counts.rejected).and(told),
        }
    }
}

/// How the command ends that has ended by itself or by a signal.
fn judge(from: &str, ended: Ended, rejected: u64) -> Result<(), Failure> {
    match (ended, rejected) {
        (Ended::Done, 1..) => {
            let messages = count(rejected, "message");
            let what = format!("{messages} rejected, because they can never be events");
            Err(Failure::failed(what).hint(format!(
                "they are in the dead-letter queue of {from}, or still in {from} if it has none"
            )))
        }
        _ => Ok(()),
    }
}

/// Whether a crash may take back what that queue has answered.
async fn is_taken_back(queue: &RemoteQueue) -> bool {
    #[derive(Deserialize)]
    struct Queue {
        settings: Settings,
    }
    #[derive(Deserialize)]
    struct Settings {
        level: String,
    }
    let target = format!("/queues/{}", queue.name());
    let asked = queue.client().call(Method::GET, &target, None::<&()>);
    let asked: Result<Queue, _> = asked.await;
    let level = asked.ok().and_then(|it| it.settings.level.parse().ok());
    level.is_some_and(|level: Level| level < Level::Disk)
}

/// A queue, as soon as its server answers.
async fn queue(
    client: &Client,
    name: &QueueName,
    began: Instant,
    patience: Duration,
) -> Result<RemoteQueue, Failure> {
    let open = async || {
        let opened = client.inner().queue(name).await;
        opened.map_err(|error| {
            let may_pass = error.may_pass();
            let failure = Failure::from(CallError::from(error));
            match may_pass {
                true => failure.exits(Exit::Unreachable),
                false => failure,
            }
        })
    };
    opened(began, patience, open).await
}

/// The ledger, as soon as it answers.
async fn ledger(
    client: &Client,
    args: &Sequence,
    settings: &Resolved,
    began: Instant,
) -> Result<AnyLedger, Failure> {
    let name = settings.get(&table::LEDGER).unwrap_or_default();
    let create = args.create.then(|| LedgerOptions {
        hashed: args.hashed,
        retention: args.retention.map(millis),
    });
    let open = async || {
        let ledger = ledger::open(&name, client, create).await.map_err(|error| {
            let is_missing = matches!(error, LedgerError::NotFound { .. });
            let failure = Failure::from(error);
            match is_missing {
                true => failure.hint("to make it: --create"),
                false => failure,
            }
        })?;
        let head = ledger.head().await?;
        Ok((ledger, head))
    };
    let (ledger, head) = opened(began, args.lease, open).await?;
    if args.hashed && head.hash.is_none() {
        let what = "the ledger was made without hashes, and hashes cannot be added";
        return Err(Failure::new(Exit::Conflict, what));
    }
    Ok(ledger)
}
