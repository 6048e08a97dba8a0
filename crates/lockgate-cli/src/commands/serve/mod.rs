//! `lockgate serve`.

pub(super) mod files;
pub(super) mod signals;

use std::{
    convert::Infallible,
    error::Error as _,
    io,
    path::Path,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use lockgate_core::{AppendError, LockError, Storage};
use lockgate_engine::{
    Engine, EngineError, EngineOptions, FolderIndex, IndexError, IndexOptions, StartError,
    StartReport, Status, StopReason,
};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, OpenError, SystemClock};
use lockgate_producer::SPOOL_MARK;
use lockgate_server::{
    AccessKey, Authentication, BindError, Deadlines, DeclareError, Declared, Limits, RunReport,
    Server, ServerOptions, TlsFiles, check_references, declare_exchanges, declare_queues,
};
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use self::signals::{Harmless, Renewable};
use super::{Signals, database, serve_settings};
use crate::{
    args::Serve,
    exit::{Exit, Failure},
    queue_file::QueueFile,
    settings::{
        Resolved,
        access_keys::KeyFile,
        table::{self, Auth},
    },
    telemetry,
};

pub(crate) fn run(args: &Serve) -> Result<(), Failure> {
    let settings = serve_settings(&args.settings)?;
    let format = settings.get(&table::LOG_FORMAT);
    let lines_dropped =
        telemetry::start(format, &settings.get(&table::LOG_LEVEL)).map_err(|error| {
            Failure::from_error(Exit::Failed, error).context("starting the log's thread")
        })?;
    let result = serve(&settings, args.accept_loss, lines_dropped);
    told_in_log(format, result)
}

/// Tells a failure in the log, if that is for programs: whoever reads it must find the end in it too.
pub(super) fn told_in_log(
    format: telemetry::LogFormat,
    result: Result<(), Failure>,
) -> Result<(), Failure> {
    match result {
        Err(failure) if !telemetry::is_text(format) && !failure.is_silent() => {
            error!(
                error = failure.to_string(),
                hint = failure.advice(),
                exit_code = failure.exit() as u8,
                "ended"
            );
            Err(failure.told())
        }
        result => result,
    }
}

fn serve(
    settings: &Resolved,
    accept_loss: bool,
    lines_dropped: Arc<AtomicU64>,
) -> Result<(), Failure> {
    let mut options = server_options(settings);
    let key_file = match key_file(settings)? {
        Some((file, keys)) => {
            options.authentication = Authentication::AccessKeys(keys);
            Some(file)
        }
        None => None,
    };
    options.tls = tls_files(settings)?;
    // Nothing is opened, and no folder made, for a server that could not listen.
    options.check().map_err(bind_failure)?;
    let queues = declared_queues(settings)?;
    let connections = files::connections(settings)?;
    options.limits.connections_max = connections.max;
    options.limits.connections_per_address_max = connections.per_address_max;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("lockgate-http")
        .build()
        .map_err(|error| {
            Failure::from_error(Exit::Failed, error).context("starting the runtime")
        })?;
    let harmless = {
        let _context = runtime.enter();
        Harmless::new()?
    };
    let signals = end_at_once(&runtime)?;
    let scheme = if options.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let storage = open_storage(settings)?;
    // Starting the engine deposes who serves the shard now, so all else that can fail comes before it.
    let reserved = Server::reserve(options.clone()).map_err(bind_failure)?;
    let engine = start_engine(storage, settings, accept_loss)?;
    let served = runtime.block_on(async {
        if let Some(queues) = &queues
            && let Err(failure) = declare(&engine, queues).await
        {
            if !serves_all_the_same(settings, &engine) {
                engine.shutdown().await;
                return Err(failure);
            }
            error!(
                error = failure.to_string(),
                "the declared queues could not be made as the file says; those that are there are served as they are"
            );
        }
        let server = match reserved.listen(engine.clone()).await {
            Ok(server) => server.with_lines_dropped(lines_dropped),
            Err(error) => {
                engine.shutdown().await;
                return Err(bind_failure(error));
            }
        };
        // Before the ready line: a signal that comes right after it ends gracefully.
        let signals = signals.await;
        info!(
            target: telemetry::ALWAYS,
            url = format!("{scheme}://{}", server.local_addr()),
            data = place_of(settings),
            version = env!("CARGO_PKG_VERSION"),
            connections_max = connections.max,
            space = engine.metrics().maintenance.space.state.name(),
            "ready"
        );
        let renewable = Renewable {
            keys: key_file.zip(server.access_keys()),
            certificate: server.certificate(),
        };
        let report = tokio::select! {
            report = server.run(end(signals, engine.clone())) => report,
            never = signals::attend(harmless, renewable) => match never {},
        };
        ended(&report, &engine.status())
    });
    // A file of keys or a certificate on a file system that hangs is no reason to stay.
    runtime.shutdown_background();
    served
}

/// Ends the process at the first signal, as the second one does later: what is recovered, declared and
/// bound before a server is ready may take long, and is as good as new for the next start. Returns
/// what waits for the signals from then on; only once somebody does are they heard otherwise.
fn end_at_once(
    runtime: &tokio::runtime::Runtime,
) -> Result<impl Future<Output = Signals>, Failure> {
    let mut signals = {
        let _context = runtime.enter();
        Signals::new()?
    };
    let (ready, is_ready) = oneshot::channel::<Infallible>();
    let task = runtime.spawn(async move {
        tokio::select! {
            exit = signals.next() => {
                warn!(signal = signal_name(exit), "ended before it was ready; what is there stays as it is");
                telemetry::exit(exit as i32);
            }
            _ready = is_ready => signals,
        }
    });
    Ok(async move {
        drop(ready);
        task.await.expect("it neither panics nor is aborted")
    })
}

/// The queues that are to be there, checked as far as it goes without the data.
pub(super) fn declared_queues(settings: &Resolved) -> Result<Option<QueueFile>, Failure> {
    let Some(path) = settings.get(&table::QUEUES) else {
        return Ok(None);
    };
    let format = settings.get(&table::QUEUES_FORMAT);
    QueueFile::read(&path, format).map(Some)
}

/// Whether a server goes on whose queues could not be declared. The one that had the shard in a database before
/// has ended by now, or is about to, and nobody would serve; a folder nobody else could have served.
fn serves_all_the_same(settings: &Resolved, engine: &Engine) -> bool {
    settings.get(&table::POSTGRES).is_some() && engine.status() == Status::Serving
}

async fn declare(engine: &Engine, file: &QueueFile) -> Result<(), Failure> {
    for warning in &file.warnings {
        warn!("{warning}");
    }
    let queues = file.declared();
    let exchanges = file.exchanges();
    let refused = |error| match error {
        DeclareError::Refused(problems) => file.refused(&problems),
        DeclareError::Exchanges(problems) => file.refused_exchanges(&problems),
        error => Failure::from_error(Exit::Failed, error).context("declaring what the file says"),
    };
    let checked = check_references(engine, &queues, &exchanges).await;
    checked.map_err(refused)?;
    let outcomes = declare_queues(engine, &queues).await.map_err(refused)?;
    for (queue, outcome) in queues.iter().zip(&outcomes) {
        match outcome {
            Declared::Created => info!(queue = queue.name, "queue made, as declared"),
            Declared::Changed => info!(queue = queue.name, "queue changed, as declared"),
            Declared::Unchanged => {}
        }
    }
    let outcomes = declare_exchanges(engine, &exchanges).await;
    for (exchange, outcome) in exchanges.iter().zip(outcomes.map_err(refused)?) {
        let name = exchange.name.as_str();
        match outcome {
            Declared::Created => info!(exchange = name, "exchange made, as declared"),
            Declared::Changed => info!(exchange = name, "exchange changed, as declared"),
            Declared::Unchanged => {}
        }
    }
    for schedule in file.schedules() {
        let put = engine.put_schedule(schedule.name.clone(), schedule.spec.clone(), None);
        let put = put.await.map_err(|error| match error {
            EngineError::Rejected(rejection) => {
                Failure::problems(&[file.place(schedule, &rejection.to_string())])
            }
            error => {
                Failure::from_error(Exit::Failed, error).context("declaring what the file says")
            }
        })?;
        let name = schedule.name.as_str();
        match (put.created, put.changed) {
            (true, _) => info!(schedule = name, "schedule made, as declared"),
            (false, true) => info!(schedule = name, "schedule changed, as declared"),
            (false, false) => {}
        }
    }
    Ok(())
}

/// Where the queues are kept, for people.
fn place_of(settings: &Resolved) -> String {
    match settings.get(&table::POSTGRES) {
        Some(_) => format!(
            "the shard {:?} in PostgreSQL",
            settings.get(&table::POSTGRES_SHARD)
        ),
        None => settings.get(&table::DATA).display().to_string(),
    }
}

/// Opens what the queues are kept in. Deposes nobody.
fn open_storage(settings: &Resolved) -> Result<Storage, Failure> {
    if settings.is_given(&table::POSTGRES) && settings.is_given(&table::DATA) {
        return Err(Failure::usage(
            "--postgres and --data are both given, and the queues are kept in one place: leave one out",
        ));
    }
    match settings.get(&table::POSTGRES) {
        Some(url) => open_database(&url, settings),
        None => open_folder(&settings.get(&table::DATA), log_options(settings)),
    }
}

/// Recovers what is there and starts serving it.
fn start_engine(
    storage: Storage,
    settings: &Resolved,
    accept_loss: bool,
) -> Result<Engine, Failure> {
    let mut options = EngineOptions {
        shard: settings.get(&table::SHARD),
        accept_loss,
        ..EngineOptions::default()
    };
    if settings.get(&table::POSTGRES).is_none() {
        let index = settings.get(&table::DATA).join("index");
        options.index = Some(Arc::new(FolderIndex::new(index, IndexOptions::default())));
    }
    let sync_window: Duration = settings.get(&table::SYNC_WINDOW);
    options.sync_window.after = sync_window.as_millis().try_into().ok();
    let (engine, report) = Engine::start(storage, Arc::new(SystemClock::new()), options)
        .map_err(|error| start_failure(error, settings))?;
    log_start(&report);
    Ok(engine)
}

fn open_folder(data: &Path, options: LocalLogOptions) -> Result<Storage, Failure> {
    let hint = "the folder and all that is in it must belong to the user who serves";
    if data.join(SPOOL_MARK).exists() {
        // A server makes nothing of its records, and its own would make the spool useless.
        let what = format!("{} is the spool of a producer", data.display());
        return Err(Failure::new(Exit::Conflict, what).hint("name another folder with --data"));
    }
    let disk = FolderDisk::open(data).map_err(|error| {
        let is_denied = error.is_denied();
        if error.source.kind() == io::ErrorKind::DirectoryNotEmpty {
            return Failure::from_error(Exit::Conflict, error)
                .context("the data folder is not empty")
                .hint("name an empty folder, or one that is not there yet, with --data");
        }
        let failure = Failure::from_error(Exit::Failed, error).context("opening the data folder");
        if is_denied {
            failure.hint(hint)
        } else {
            failure
        }
    })?;
    let log = LocalLog::open(Arc::new(disk), options).map_err(|error| match error {
        OpenError::Lock(LockError::Held { .. }) => Failure::from_error(Exit::Conflict, error),
        OpenError::Lock(LockError::Disk(error)) if error.is_denied() => {
            Failure::from_error(Exit::Failed, error).hint(hint)
        }
        _ => Failure::from_error(Exit::Failed, error),
    })?;
    Ok(log.into())
}

#[cfg(feature = "postgres")]
fn open_database(url: &str, settings: &Resolved) -> Result<Storage, Failure> {
    use lockgate_postgres::{PostgresLog, PostgresLogOptions};

    let shard = &settings.get(&table::POSTGRES_SHARD);
    let options = PostgresLogOptions {
        sync_level: settings.get(&table::POSTGRES_LEVEL),
        ..PostgresLogOptions::default()
    };
    let log = PostgresLog::open(url, shard, options).map_err(|error| {
        let what = format!("opening the shard {shard:?} in PostgreSQL");
        Failure::from_error(database::exit_of(&error), error).context(what)
    })?;
    Ok(log.into())
}

#[cfg(not(feature = "postgres"))]
fn open_database(_url: &str, _settings: &Resolved) -> Result<Storage, Failure> {
    Err(database::missing())
}

/// Why the data could not be served, and whether it is the data's fault.
fn start_failure(error: StartError, settings: &Resolved) -> Failure {
    let refused = match &error {
        StartError::NewerFormat { .. }
        | StartError::NoSnapshot { .. }
        | StartError::Missing { .. }
        | StartError::MissingIds { .. }
        | StartError::StrayIds { .. }
        | StartError::OtherIndex { .. }
        | StartError::Index(IndexError::Damaged { .. })
        | StartError::OtherShard { .. }
        | StartError::UnfinishedRestore => true,
        StartError::Recover(error) => Exit::of_log(error) == Exit::Refused,
        _ => false,
    };
    let is_missing = matches!(error, StartError::Missing { .. });
    let ids_are_missing = matches!(
        error,
        StartError::MissingIds { .. }
            | StartError::StrayIds { .. }
            | StartError::OtherIndex { .. }
            | StartError::Index(IndexError::Damaged { .. })
    );
    let exit = match &error {
        // Another one claimed it meanwhile.
        StartError::BeginTerm(AppendError::Fenced { .. }) => Exit::Conflict,
        _ if refused => Exit::Refused,
        _ => Exit::Failed,
    };
    let held = match &error {
        StartError::OtherShard { held, .. } => Some(*held),
        _ => None,
    };
    let place = place_of(settings);
    let failure = Failure::from_error(exit, error).context(format!("starting on {place}"));
    if let Some(held) = held {
        return failure.hint(format!(
            "start it with --shard {held}, or name the data of another shard"
        ));
    }
    match settings.get(&table::POSTGRES) {
        _ if is_missing => failure.hint(
            "to start without them and drop their messages for good, say --accept-loss this once",
        ),
        _ if ids_are_missing => failure.hint(
            "to start without them and take messages with these ids again, say --accept-loss this once",
        ),
        Some(_) => failure,
        None => failure.hint(format!("see what is there with `lockgate check {place}`")),
    }
}

fn log_start(report: &StartReport) {
    info!(
        shard = report.term.shard.get(),
        epoch = report.term.epoch.0,
        records = report.records,
        bytes = report.bytes,
        queues = report.queues,
        messages = report.messages,
        after_crash = report.crashed,
        duration_ms = millis(report.duration),
        "recovered"
    );
    if report.tail_bytes_cut > 0 {
        // Nobody was told that these are durable: the usual trace of a power cut.
        info!(bytes = report.tail_bytes_cut, "cut a torn tail");
    }
    for range in &report.damaged {
        warn!(
            from = %range.from,
            to = %range.to,
            records = range.records,
            kept_as = range.kept_as.as_deref(),
            "{}",
            match range.kept_as {
                Some(_) => "a part of the log is damaged; it was set aside and what it held is lost",
                None => "records of the log are not there; what they held is lost",
            }
        );
    }
    for part in &report.missing {
        let (name, messages) = (&part.name, part.messages);
        if part.may_be_given_back {
            warn!(
                name,
                messages,
                "a part of the log is not there; what is damaged may have settled its messages, so that it was \
                 given back: they were dropped"
            );
        } else {
            error!(
                name,
                messages,
                records = part.holds_records,
                "a part of the log is not there; as that loss was accepted, its messages were dropped"
            );
        }
    }
    for part in &report.cut_short {
        error!(
            name = part.name,
            messages = part.messages,
            "a part of the log is cut short; messages whose bytes are missing are dropped as they come up \
             for delivery: if you have all of it, stop at once and put it back"
        );
    }
    if !report.without_queue.is_empty() {
        error!(
            messages = report.without_queue.messages,
            queues = report.without_queue.queues,
            events = report.without_queue.events,
            ledgers = report.without_queue.ledgers,
            "messages and events that are in the log are lost: the creation of their queues and ledgers is in what is \
             damaged or not there"
        );
    }
    if report.possibly_lost > 0 {
        warn!(
            messages = report.possibly_lost,
            "at most so many messages answered at level memory were lost to crashes so far"
        );
    }
    if report.undecodable > 0 {
        warn!(
            records = report.undecodable,
            "records that are whole but make no sense were skipped"
        );
    }
}

fn log_options(settings: &Resolved) -> LocalLogOptions {
    let segment_bytes = settings.get(&table::SEGMENT_SIZE);
    let usual = LocalLogOptions::default();
    LocalLogOptions {
        segment_bytes,
        // A record must fit, and its segment's header with it.
        record_bytes_max: usual.record_bytes_max.min(segment_bytes as usize / 2),
        low_bytes: settings.get(&table::FREE_LOW),
        free_bytes_min: settings.get(&table::FREE_MIN),
        ..usual
    }
}

pub(super) fn server_options(settings: &Resolved) -> ServerOptions {
    ServerOptions {
        listen: settings.get(&table::LISTEN),
        allow_remote: settings.get(&table::ALLOW_REMOTE),
        allowed_hosts: settings.get(&table::ALLOWED_HOST),
        advertised_host: settings.get(&table::ADVERTISE),
        console_base_path: settings.get(&table::CONSOLE_BASE_PATH),
        account: settings.get(&table::ACCOUNT),
        region: settings.get(&table::REGION),
        limits: Limits {
            connections_max: settings.get(&table::CONNECTIONS_MAX),
            connections_per_address_max: settings.get(&table::CONNECTIONS_PER_ADDRESS_MAX),
            body_bytes_max: settings.get(&table::BODY_MAX),
            bodies_bytes_max: settings.get(&table::BODIES_MAX),
            ..Limits::default()
        },
        deadlines: Deadlines {
            header: settings.get(&table::HEADER_TIMEOUT),
            idle: settings.get(&table::IDLE_TIMEOUT),
            stall: settings.get(&table::STALL_TIMEOUT),
            shutdown: settings.get(&table::SHUTDOWN_TIMEOUT),
            ..Deadlines::default()
        },
        ..ServerOptions::default()
    }
}

/// The access keys, and where they are read again; `None` if nobody has to say who they are.
pub(super) fn key_file(settings: &Resolved) -> Result<Option<(KeyFile, Vec<AccessKey>)>, Failure> {
    match (
        settings.get(&table::AUTH),
        settings.get(&table::ACCESS_KEYS),
    ) {
        (Auth::None, None) => Ok(None),
        (Auth::Sigv4, Some(path)) => KeyFile::open(path).map(Some),
        (Auth::Sigv4, None) => Err(Failure::new(
            Exit::Usage,
            "--auth sigv4 needs the file of keys: --access-keys FILE",
        )),
        (Auth::None, Some(_)) => Err(Failure::new(
            Exit::Usage,
            "--access-keys has no effect with --auth none: say --auth sigv4",
        )),
    }
}

pub(super) fn tls_files(settings: &Resolved) -> Result<Option<TlsFiles>, Failure> {
    match (
        settings.get(&table::TLS_CERT),
        settings.get(&table::TLS_KEY),
    ) {
        (None, None) => Ok(None),
        (Some(certificates), Some(key)) => Ok(Some(TlsFiles { certificates, key })),
        (Some(_), None) => Err(Failure::usage(
            "--tls-cert needs the certificate's private key: --tls-key FILE",
        )),
        (None, Some(_)) => Err(Failure::usage(
            "--tls-key needs the key's certificate: --tls-cert FILE",
        )),
    }
}

pub(super) fn bind_failure(error: BindError) -> Failure {
    let taken = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>())
        .is_some_and(|source| source.kind() == io::ErrorKind::AddrInUse);
    let remote = matches!(error, BindError::Remote { .. });
    let exit = match error {
        BindError::Remote { .. } | BindError::Option { .. } | BindError::Keys(_) => Exit::Usage,
        // Not a conflict, which says that somebody else serves the data: whoever has the port may leave it.
        _ => Exit::Failed,
    };
    let failure = Failure::from_error(exit, error);
    if taken {
        failure.hint("another program listens there; choose another port with --listen")
    } else if remote {
        failure.hint("to allow them, say --allow-remote")
    } else {
        failure
    }
}

/// Waits for what ends a server: a signal, or the failure of its engine. From then on another
/// signal ends the process at once.
async fn end(mut signals: Signals, engine: Engine) {
    tokio::select! {
        exit = signals.next() => {
            info!(signal = signal_name(exit), "stopping; another signal ends it at once");
        }
        reason = engine.stopped() => {
            error!(reason = reason.to_string(), "the engine has stopped");
        }
    }
    tokio::spawn(async move {
        let exit = signals.next().await;
        warn!("ended by a second signal; what was answered is kept");
        telemetry::exit(exit as i32);
    });
}

pub(super) fn signal_name(exit: Exit) -> &'static str {
    match exit {
        Exit::Interrupted => "SIGINT",
        Exit::Quit => "SIGQUIT",
        _ => "SIGTERM",
    }
}

fn ended(report: &RunReport, status: &Status) -> Result<(), Failure> {
    info!(
        connections = report.connections,
        requests = report.requests,
        cut = report.cut,
        duration_ms = millis(report.shutdown_time),
        "stopped"
    );
    match status {
        Status::Stopped {
            reason: reason @ StopReason::Deposed { .. },
        } => Err(Failure::new(
            Exit::Conflict,
            format!("the engine has stopped: {reason}"),
        )
        .hint(
            "another server serves this data now; starting this one again takes it back from there",
        )),
        Status::Stopped { reason } if reason.is_failure() => Err(Failure::failed(format!(
            "the engine has stopped: {reason}"
        ))
        .hint(
            "what was answered before is in the files of the log, as far as they are there; start \
                     again when the cause is gone",
        )),
        _ if !report.engine_stopped => Err(Failure::new(
            Exit::Timeout,
            "the log was not synced by the deadline; what was answered is kept",
        )),
        _ => Ok(()),
    }
}

/// A number in the log, not a text, as 128 bits would become.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Flags, resolve};

    /// The table says what happens when nothing is said; the server's own defaults must agree.
    #[test]
    fn the_tables_defaults_are_the_servers() {
        let flags = Flags {
            config: Some("/dev/null".to_owned()),
            ..Flags::default()
        };
        let settings = resolve(&flags, &|_| None).unwrap();
        let (table, server) = (server_options(&settings), ServerOptions::default());
        assert_eq!(format!("{table:?}"), format!("{server:?}"));
        let (table, log) = (log_options(&settings), LocalLogOptions::default());
        assert_eq!(format!("{table:?}"), format!("{log:?}"));
        let engine = EngineOptions::default();
        let sync_window = settings.get(&table::SYNC_WINDOW).as_millis();
        assert_eq!(Some(sync_window), engine.sync_window.after.map(u128::from));
        assert_eq!(settings.get(&table::SHARD), engine.shard);
    }
}
