//! `lockgate forward`.

mod figures;
mod http;
mod kept;
mod message;
mod queue;
mod stdin;

use std::{
    io::{self, IsTerminal as _},
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use lockgate_client::LaterQueue;
use lockgate_core::{Backoff, LockError, QueueName, with_sources};
use lockgate_log::OpenError as LogOpenError;
use lockgate_producer::{
    AnswerLevel, Breaker, Closed, DropReason, Figures, OpenError, PackOptions, Producer,
    ProducerOptions, SpoolError, SpoolOptions, WhenFull, WhenSpoolFull,
};
use lockgate_server::{
    Authentication, Deadlines, Handler, Limits, Reserved, Server, ServerOptions,
};
use serde_json::{Value, json};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, interval},
};
use tracing::{error, info, warn};

pub(super) use self::figures::no_messages;
use self::{figures::Figuring, http::Collector};
use super::{
    Signals, client_of, environment,
    serve::{
        self,
        signals::{Harmless, Renewable, attend},
    },
};
use crate::{
    args::{Forward, ForwardFrom},
    client::Client,
    exit::{Exit, Failure},
    output::{Output, count},
    settings::{OF_METRICS, Resolved, access_keys::KeyFile, resolve, table},
    telemetry,
};

/// Where messages go.
type Target = LaterQueue;

/// The longest time that a queue which is away is left alone.
const AWAY_MAX: u64 = 5_000;

/// How often it is told how the forwarding does, on a terminal.
const PROGRESS: Duration = Duration::from_secs(5);

/// How often it is looked whether the queue can be reached.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) fn run(args: &Forward) -> Result<(), Failure> {
    let settings = resolve(&args.settings.0, &environment)?;
    check(args)?;
    let format = settings.get(&table::LOG_FORMAT);
    telemetry::start(format, &settings.get(&table::LOG_LEVEL)).map_err(|error| {
        Failure::from_error(Exit::Failed, error).context("starting the log's thread")
    })?;
    serve::told_in_log(format, forward(args, &settings))
}

/// Refuses flags that say nothing where messages come from.
fn check(args: &Forward) -> Result<(), Failure> {
    let is_queue = matches!(args.from, ForwardFrom::Queue(_));
    let is_stdin = args.from == ForwardFrom::Stdin;
    let wrong = [
        (args.exec.is_some() && !is_queue, "--exec", "a queue"),
        (
            args.concurrency.is_some() && !is_queue,
            "--concurrency",
            "a queue",
        ),
        (args.until_empty && !is_queue, "--until-empty", "a queue"),
        (args.raw && !is_stdin, "--raw", "stdin"),
        (args.key.is_some() && !is_stdin, "--key", "stdin"),
        (args.group.is_some() && !is_stdin, "--group", "stdin"),
    ];
    if let Some((_, flag, of)) = wrong.into_iter().find(|(is_wrong, ..)| *is_wrong) {
        return Err(Failure::usage(format!("{flag} is for messages from {of}")));
    }
    let is_http = matches!(args.from, ForwardFrom::Http { .. });
    if is_http && args.metrics.is_some() {
        let what =
            "--metrics is for messages from stdin or a queue: an address of --from has /metrics";
        return Err(Failure::usage(what));
    }
    let useless = args.settings.0.of_listener();
    let mut useless =
        useless.filter(|flag| !(is_http || args.metrics.is_some() && OF_METRICS.contains(flag)));
    if let Some(flag) = useless.next() {
        let and = if OF_METRICS.contains(&flag) {
            ", or for --metrics"
        } else {
            ""
        };
        let what = format!("--{flag} is for messages that come over HTTP{and}");
        return Err(Failure::usage(what));
    }
    if let Some(command) = &args.exec
        && command.trim().is_empty()
    {
        // A shell takes that for a success, with an empty body for every message.
        return Err(Failure::usage("the command of --exec is empty"));
    }
    match &args.from {
        ForwardFrom::Queue(from) if *from == args.to => Err(Failure::usage(format!(
            "--from and --to are both {from}: messages would go round for ever"
        ))),
        _ => Ok(()),
    }
}

fn options(args: &Forward) -> ProducerOptions {
    let is_http = matches!(args.from, ForwardFrom::Http { .. });
    let usual = match (&args.spool, is_http) {
        (Some(_), _) => WhenFull::Spool,
        (None, true) => WhenFull::Reject,
        (None, false) => WhenFull::Block,
    };
    let when_full = args.when_full.unwrap_or(usual);
    let spool = args.spool.as_ref().map(|folder| SpoolOptions {
        persist: args.persist,
        bytes_max: args.spool_max,
        replay_rate: args.replay_rate,
        free_bytes_min: args.spool_free_min,
        when_full: match when_full {
            WhenFull::DropNewest => WhenSpoolFull::DropNewest,
            // Whoever has sent it would wait without a word.
            _ if is_http => WhenSpoolFull::Reject,
            WhenFull::Reject => WhenSpoolFull::Reject,
            _ => WhenSpoolFull::Block,
        },
        // A small spool has small files, because space comes back file by file.
        file_bytes: u32::try_from(args.spool_max / 2)
            .unwrap_or(u32::MAX)
            .clamp(64 << 10, 8 << 20),
        ..SpoolOptions::new(folder)
    });
    let level = match args.spool {
        Some(_) => AnswerLevel::Durable,
        None => AnswerLevel::Delivered,
    };
    ProducerOptions {
        name: args.producer.clone(),
        level: args.level.unwrap_or(level),
        buffer_count: usize::try_from(args.buffer_count).unwrap_or(usize::MAX),
        buffer_bytes: args.buffer_bytes,
        when_full,
        pack: args.pack.then(PackOptions::default),
        deliver_within: args.deliver_within,
        send_timeout: args.send_timeout,
        breaker: Breaker {
            open: Backoff {
                first: 250,
                max: AWAY_MAX,
            },
            ..Breaker::default()
        },
        spool,
        ..ProducerOptions::default()
    }
}

/// Why no more messages are taken.
enum Stop {
    /// There are no more.
    End,
    /// What there is may be sent until then. `unread`: so many lines were taken of an input that goes on.
    Signal {
        exit: Exit,
        until: Instant,
        unread: Option<u64>,
    },
}

impl Stop {
    fn signal(args: &Forward, exit: Exit, unread: Option<u64>) -> Self {
        Self::Signal {
            exit,
            until: Instant::now() + args.drain,
            unread,
        }
    }
}

/// What the ways in which messages come have in common.
struct Forwarding<'a> {
    args: &'a Forward,
    client: Client,
    target: Target,
    producer: Producer<Target>,
}

fn forward(args: &Forward, settings: &Resolved) -> Result<(), Failure> {
    let client = client_of(settings)?;
    let queue = QueueName::new(&args.to).map_err(Failure::usage)?;
    let target = client.inner().queue_later(&queue);
    // Nothing is opened for a listener that could not listen.
    let listener = match (&args.from, args.metrics) {
        (ForwardFrom::Http { listen, https }, _) => Some(Listener::reserve(
            args.drain,
            *listen,
            Some(*https),
            settings,
        )?),
        (_, Some(listen)) => Some(Listener::reserve(args.drain, listen, None, settings)?),
        _ => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("lockgate-forward")
        .build()
        .map_err(|error| {
            Failure::from_error(Exit::Failed, error).context("starting the runtime")
        })?;
    let result = runtime.block_on(async {
        let mut signals = Signals::new()?;
        if !matches!(args.from, ForwardFrom::Http { .. }) {
            signals.hear_hangup()?;
        }
        let producer = Producer::open(target.clone(), options(args)).await;
        let producer = producer.map_err(not_opened)?;
        tell_spool(args, &producer);
        let forwarding = Forwarding {
            args,
            client,
            target,
            producer,
        };
        let told = tokio::spawn(tell(
            forwarding.client.clone(),
            forwarding.producer.clone(),
            queue.clone(),
        ));
        let _told = Aborted(told);
        let (stop, served) = match (&args.from, listener) {
            (ForwardFrom::Http { .. }, Some(listener)) => {
                let stop = listener.run(&forwarding, queue, &mut signals).await;
                (stop, None)
            }
            (from, listener) => {
                let figures = Figuring::new(&forwarding.producer);
                let served = match listener {
                    Some(listener) => Some(listener.serve_figures(figures.clone()).await?),
                    None => None,
                };
                let stop = match from {
                    ForwardFrom::Queue(from) => {
                        queue::run(&forwarding, from, &figures, &mut signals).await
                    }
                    _ => stdin::run(&forwarding, &mut signals).await,
                };
                (stop, served)
            }
        };
        let drain = match &stop {
            Ok(Stop::Signal { until, .. }) => until.saturating_duration_since(Instant::now()),
            _ => args.drain,
        };
        let closed = or_second_signal(&mut signals, forwarding.producer.close(drain)).await;
        // The figures are served also while the rest is sent.
        drop(served);
        finish(args, stop, &closed)
    });
    // A terminal that is read, or a disk that hangs, is no reason to stay.
    runtime.shutdown_background();
    result
}

/// Does what ends the work. A signal meanwhile ends the process at once; what is on disk, or in another store, stays there.
pub(super) async fn or_second_signal<T>(signals: &mut Signals, work: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = work => done,
        exit = signals.next() => {
            warn!("ended by a second signal");
            telemetry::exit(exit as i32);
        }
    }
}

/// A task that ends with whoever started it.
pub(super) struct Aborted(JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why a producer cannot be opened.
fn not_opened(error: OpenError) -> Failure {
    let exit = match &error {
        OpenError::Options(_) | OpenError::Spool(SpoolError::Name { .. }) => Exit::Usage,
        OpenError::Spool(SpoolError::Open {
            source: LogOpenError::Lock(LockError::Held { .. }),
            ..
        }) => Exit::Conflict,
        _ => Exit::Failed,
    };
    let needs_spool = match &error {
        OpenError::Options(error) => error.to_string().contains("needs a spool"),
        _ => false,
    };
    let failure = Failure::from_error(exit, error);
    match needs_spool {
        true => failure.hint("name a folder for it with --spool DIR"),
        false => failure,
    }
}

fn tell_spool(args: &Forward, producer: &Producer<Target>) {
    let (Some(spool), Some(report)) = (&args.spool, producer.spool_report()) else {
        return;
    };
    let spool = spool.display().to_string();
    if report.records > 0 {
        let (records, bytes) = (report.records, report.bytes);
        info!(
            spool,
            records,
            bytes,
            "an earlier run has left messages in the spool; they are sent from now on"
        );
    }
    if report.cut_bytes > 0 {
        let bytes = report.cut_bytes;
        info!(
            spool,
            bytes,
            "bytes at the end of the spool are not whole and were cut; a crash leaves what it was writing like that"
        );
    }
    if report.damaged_stretches > 0 {
        let (records, stretches) = (report.damaged_records, report.damaged_stretches);
        warn!(
            spool,
            records,
            stretches,
            "stretches of the spool cannot be read, with at least so many records; their bytes are kept in files that end in \
             .damaged"
        );
    }
}

/// Tells when the queue cannot be reached, and when it can again; on a terminal, how the forwarding does.
async fn tell(client: Client, producer: Producer<Target>, queue: QueueName) {
    let mut look = interval(LOOK);
    let (mut is_away, mut is_fenced) = (false, false);
    let mut next = Instant::now() + PROGRESS;
    let is_terminal = io::stderr().is_terminal();
    let mut last = (0, 0, 0);
    loop {
        look.tick().await;
        let figures = producer.figures();
        if figures.fenced && !is_fenced {
            is_fenced = true;
            error!(
                "nothing is sent any more, because another has taken over: a producer with this one's name or a copy of its spool, or a later leader"
            );
        }
        if figures.breaker_open != is_away {
            is_away = figures.breaker_open;
            match is_away {
                false => info!(%queue, "the queue can be reached again"),
                true => match client.inner().queue(&queue).await {
                    Err(error) => {
                        let error = with_sources(&error);
                        warn!(%queue, error, "the queue cannot be reached; messages wait");
                    }
                    // The producer says what it is told there.
                    Ok(_) => warn!(%queue, "the queue takes no messages now; they wait"),
                },
            }
        }
        if is_terminal && Instant::now() >= next {
            next += PROGRESS;
            let Figures {
                accepted,
                delivered,
                pending,
                ..
            } = figures;
            if (accepted, delivered, pending) != last {
                info!(accepted, delivered, pending, "forwarding");
            }
            last = (accepted, delivered, pending);
        }
    }
}

/// An address to listen on, and what is read again there.
pub(super) struct Listener {
    reserved: Reserved,
    keys: Option<KeyFile>,
    scheme: &'static str,
}

impl Listener {
    /// `https`: whether the address says so; `None` for one that has figures only, which need no keys.
    pub(super) fn reserve(
        drain: Duration,
        listen: SocketAddr,
        https: Option<bool>,
        settings: &Resolved,
    ) -> Result<Self, Failure> {
        let (key_file, tls) = match https {
            Some(_) => (serve::key_file(settings)?, serve::tls_files(settings)?),
            None => (None, None),
        };
        let (keys, authentication) = match key_file {
            Some((file, keys)) => (Some(file), Authentication::AccessKeys(keys)),
            None => (None, Authentication::None),
        };
        let https = https.unwrap_or_default();
        if tls.is_some() != https {
            let what = match https {
                true => "https:// needs a certificate: --tls-cert FILE --tls-key FILE",
                false => "with --tls-cert the address begins with https://",
            };
            return Err(Failure::usage(what));
        }
        let connections = serve::files::connections(settings)?;
        let options = ServerOptions {
            listen,
            allow_remote: settings.get(&table::ALLOW_REMOTE),
            allowed_hosts: settings.get(&table::ALLOWED_HOST),
            region: settings.get(&table::REGION),
            authentication,
            tls,
            limits: Limits {
                connections_max: connections.max,
                connections_per_address_max: connections.per_address_max,
                body_bytes_max: settings.get(&table::BODY_MAX),
                bodies_bytes_max: settings.get(&table::BODIES_MAX),
                ..Limits::default()
            },
            deadlines: Deadlines {
                header: settings.get(&table::HEADER_TIMEOUT),
                idle: settings.get(&table::IDLE_TIMEOUT),
                // The producer answers by the end of the drain, and its answers need a moment.
                shutdown: drain + Duration::from_secs(1),
                ..Deadlines::default()
            },
            ..ServerOptions::default()
        };
        Ok(Self {
            reserved: Server::reserve(options).map_err(serve::bind_failure)?,
            keys,
            scheme: if https { "https" } else { "http" },
        })
    }

    /// Serves figures for as long as the answer lives.
    pub(super) async fn serve_figures(self, figures: impl Handler) -> Result<Aborted, Failure> {
        let server = self.reserved.listen_for(Arc::new(figures)).await;
        let server = server.map_err(serve::bind_failure)?;
        info!(
            target: telemetry::ALWAYS,
            url = format!("http://{}/metrics", server.local_addr()),
            "figures"
        );
        Ok(Aborted(tokio::spawn(async {
            server.run(std::future::pending()).await;
        })))
    }

    /// Takes requests until there is a signal.
    async fn run(
        self,
        forwarding: &Forwarding<'_>,
        queue: QueueName,
        signals: &mut Signals,
    ) -> Result<Stop, Failure> {
        let harmless = Harmless::new()?;
        let Forwarding { args, producer, .. } = forwarding;
        let collector = Collector {
            producer: producer.clone(),
            queue,
        };
        let server = self.reserved.listen_for(Arc::new(collector)).await;
        let server = server.map_err(serve::bind_failure)?;
        info!(
            target: telemetry::ALWAYS,
            url = format!("{}://{}", self.scheme, server.local_addr()),
            to = args.to,
            producer = %producer.name(),
            version = env!("CARGO_PKG_VERSION"),
            "ready"
        );
        let renewable = Renewable {
            keys: self.keys.zip(server.access_keys()),
            certificate: server.certificate(),
        };
        let _renewed = Aborted(tokio::spawn(async {
            match attend(harmless, renewable).await {}
        }));
        let (stop, stopping) = oneshot::channel::<()>();
        let mut serving = pin!(server.run(async {
            let _ = stopping.await;
        }));
        let exit = tokio::select! {
            exit = signals.next() => exit,
            _ = &mut serving => return Err(Failure::failed("the listener has ended")),
        };
        info!(
            signal = serve::signal_name(exit),
            "stopping; another signal ends it at once"
        );
        let until = Instant::now() + args.drain;
        drop(stop);
        // Requests that wait for their level are answered when it is reached, or when the producer gives up.
        let closing = async { tokio::join!(serving, producer.close(args.drain)) };
        let (report, _) = or_second_signal(signals, closing).await;
        info!(
            connections = report.connections,
            requests = report.requests,
            cut = report.cut,
            "the listener is closed"
        );
        Ok(Stop::Signal {
            exit,
            until,
            unread: None,
        })
    }
}

/// The end: what became of the messages.
fn finish(args: &Forward, stop: Result<Stop, Failure>, closed: &Closed) -> Result<(), Failure> {
    let Closed { figures, left, .. } = closed;
    let dropped = figures.dropped_all();
    info!(
        target: telemetry::ALWAYS,
        accepted = figures.accepted,
        recovered = figures.recovered,
        delivered = figures.delivered,
        duplicates = figures.duplicates,
        dropped,
        left,
        "ended"
    );
    let told = match args.json {
        true => {
            let mut output = Output::new();
            let told = output.json(&json(figures, *left));
            told.and_then(|()| output.flush())
        }
        false => Ok(()),
    };
    // What became of the messages counts more than whether somebody reads it.
    judge(args, stop, closed).and(told)
}

/// How the command ends.
fn judge(args: &Forward, stop: Result<Stop, Failure>, closed: &Closed) -> Result<(), Failure> {
    let Closed { figures, left, .. } = closed;
    let dropped = figures.dropped_all();
    let stop = stop?;
    if figures.fenced {
        let what = "another has taken over: a producer with this one's name or a copy of its spool, or a later leader";
        return Err(Failure::new(Exit::Conflict, what));
    }
    // A queue that messages come from has them until they are delivered.
    let is_kept =
        matches!(args.from, ForwardFrom::Queue(_)) && options(args).level == AnswerLevel::Delivered;
    if dropped > 0 && !is_kept {
        let reasons = DropReason::ALL.into_iter();
        let reasons = reasons.map(|reason| (reason, figures.dropped(reason)));
        let reasons = reasons.filter(|(_, count)| *count > 0);
        let reasons: Vec<String> = reasons
            .map(|(reason, count)| format!("{count} because {reason}"))
            .collect();
        let what = count(dropped, "message");
        let failure = Failure::failed(format!("{what} dropped: {}", reasons.join("; ")));
        return Err(match args.spool {
            Some(_) => failure,
            None => failure.hint("with --spool DIR messages wait on disk for the next start"),
        });
    }
    if let (Some(spool), 1..) = (&args.spool, *left) {
        info!(
            target: telemetry::ALWAYS,
            left,
            spool = %spool.display(),
            "messages stay in the spool; start again with the same folder to send them"
        );
    }
    match stop {
        Stop::Signal {
            exit,
            unread: Some(lines),
            ..
        } => {
            info!(target: telemetry::ALWAYS, lines, "the input was not read to its end");
            Err(Failure::signal(exit))
        }
        _ => Ok(()),
    }
}

fn json(figures: &Figures, left: u64) -> Value {
    let reasons = DropReason::ALL.into_iter();
    let reasons = reasons.map(|reason| (reason.name().to_owned(), figures.dropped(reason).into()));
    json!({
        "accepted": figures.accepted,
        "recovered": figures.recovered,
        "delivered": figures.delivered,
        "duplicates": figures.duplicates,
        "dropped": figures.dropped_all(),
        "dropped_by_reason": reasons.collect::<serde_json::Map<String, Value>>(),
        "dropped_uncertain": figures.dropped_uncertain,
        "left": left,
        "refused": figures.refused,
        "batches": figures.batches,
        "packs": figures.packs,
        "retries": figures.retries,
    })
}
