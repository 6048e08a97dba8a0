//! The table of all settings.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use lockgate_client::{Endpoint, EndpointError};
use lockgate_core::{
    HolderName, Level, ShardId, ShardIdError,
    coordination::{FenceMark, FenceMarkError},
};
use lockgate_log::LocalLogOptions;

use super::{About, AnySetting, Form, Scope, Setting};
use crate::{queue_file::Format, telemetry::LogFormat, units};

/// Every setting, in the order of help and of `lockgate config show`.
pub(crate) static SETTINGS: &[&dyn AnySetting] = &[
    &LISTEN,
    &DATA,
    &SHARD,
    &POSTGRES,
    &POSTGRES_SHARD,
    &POSTGRES_LEVEL,
    &QUEUES,
    &QUEUES_FORMAT,
    &ALLOWED_HOST,
    &ADVERTISE,
    &CONSOLE_BASE_PATH,
    &ACCOUNT,
    &REGION,
    &ALLOW_REMOTE,
    &AUTH,
    &ACCESS_KEYS,
    &TLS_CERT,
    &TLS_KEY,
    &CONNECTIONS_MAX,
    &CONNECTIONS_PER_ADDRESS_MAX,
    &BODY_MAX,
    &BODIES_MAX,
    &HEADER_TIMEOUT,
    &IDLE_TIMEOUT,
    &SHUTDOWN_TIMEOUT,
    &STALL_TIMEOUT,
    &SYNC_WINDOW,
    &SEGMENT_SIZE,
    &FREE_LOW,
    &FREE_MIN,
    &LOG_FORMAT,
    &LOG_LEVEL,
    &ENDPOINT,
    &CA,
    &TIMEOUT,
    &CONSUMER,
    &FENCE,
    &VIA,
    &LEDGER,
];

pub(crate) static LISTEN: Setting<SocketAddr> = Setting {
    about: About {
        name: "listen",
        value_name: "ADDRESS",
        default: &["127.0.0.1:9324"],
        form: Form::One,
        scope: Scope::Serve,
        help: "Address and port to listen on",
        detail: "Port 0 takes a free port; the ready line says which. An address that other machines can \
                 reach needs --allow-remote.",
    },
    read: |texts| {
        one(texts, |text| {
            text.parse()
                .map_err(|_| format!("{text:?} is no address with a port, such as 127.0.0.1:9324"))
        })
    },
};

pub(crate) static DATA: Setting<PathBuf> = Setting {
    about: About {
        name: "data",
        value_name: "DIR",
        default: &["./lockgate-data"],
        form: Form::One,
        scope: Scope::Serve,
        help: "Folder the queues are kept in",
        detail: "The server makes the folder if it is missing, readable by this user only (mode 0700). A \
                 folder that exists must be empty or hold Lockgate's data. One server at a time can have it. \
                 A relative path counts from the working directory.",
    },
    read: |texts| one(texts, |text| not_empty(text).map(PathBuf::from)),
};

pub(crate) static SHARD: Setting<ShardId> = Setting {
    about: About {
        name: "shard",
        value_name: "N",
        default: &["0"],
        form: Form::Number,
        scope: Scope::Serve,
        help: "Number of the shard that the queues are, 0 to 1023; part of every message id",
        detail: "The first start on a new folder or database shard writes the number down. The server refuses \
                 to start under another one. Give servers different numbers if their message ids can meet.",
    },
    read: |texts| {
        one(texts, |text| {
            text.parse()
                .map_err(|error: ShardIdError| error.to_string())
        })
    },
};

pub(crate) static POSTGRES: Setting<Option<String>> = Setting {
    about: About {
        name: "postgres",
        value_name: "URL",
        default: &[],
        form: Form::Secret,
        scope: Scope::Serve,
        help: "PostgreSQL database the queues are kept in, instead of the folder",
        detail: "postgres://USER:PASSWORD@HOST:PORT/DATABASE, with ?sslmode=require for TLS. The server that \
                 starts last on a shard owns it, and the one before ends. Put the URL into LOCKGATE_POSTGRES \
                 or the configuration file, because everybody on the machine can read command lines. \
                 docs/logs.md says what the server needs of the database, and what the levels mean there.",
    },
    read: |texts| {
        let Some(text) = texts.first() else {
            return Ok(None);
        };
        // It is not told what was given: there may be a password in it.
        let is_url = ["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| text.starts_with(scheme));
        is_url
            .then(|| Some(text.clone()))
            .ok_or_else(|| "the value does not begin with postgres://".to_owned())
    },
};

pub(crate) static POSTGRES_SHARD: Setting<String> = Setting {
    about: About {
        name: "postgres-shard",
        value_name: "NAME",
        default: &["lockgate"],
        form: Form::One,
        scope: Scope::Serve,
        help: "Name of the queues' shard in the database; each server needs its own",
        detail: "",
    },
    read: |texts| one(texts, not_empty),
};

pub(crate) static POSTGRES_LEVEL: Setting<Level> = Setting {
    about: About {
        name: "postgres-level",
        value_name: "LEVEL",
        default: &["disk"],
        form: Form::One,
        scope: Scope::Serve,
        help: "The highest level of a queue in the database: disk or replicated",
        detail: "replicated needs synchronous_standby_names in the database; the server ends if a sync did \
                 not wait for a standby. With disk, the server refuses queues and sends at level replicated.",
    },
    read: |texts| {
        one(texts, |text| match text.parse() {
            Ok(level @ (Level::Disk | Level::Replicated)) => Ok(level),
            _ => Err(format!("{text:?} is neither disk nor replicated")),
        })
    },
};

pub(crate) static QUEUES: Setting<Option<PathBuf>> = Setting {
    about: About {
        name: "queues",
        value_name: "FILE",
        default: &[],
        form: Form::One,
        scope: Scope::Serve,
        help: "File of queues that the server makes, or changes to be so, when it starts",
        detail: "TOML with a [[queue]] for each: name, tags = { ... }, and any setting of a queue by its name \
                 (docs/settings.md); and with exchanges (docs/operations.md). Or a configuration file of ElasticMQ, of which the server reads queues { \
                 ... }. It leaves alone what the file does not name, queues too. If anything in the file is \
                 wrong, the server does nothing and does not start.",
    },
    read: |texts| {
        texts
            .first()
            .map(|text| not_empty(text).map(PathBuf::from))
            .transpose()
    },
};

pub(crate) static QUEUES_FORMAT: Setting<Format> = Setting {
    about: About {
        name: "queues-format",
        value_name: "FORMAT",
        default: &["auto"],
        form: Form::One,
        scope: Scope::Serve,
        help: "What the file of queues is written in: toml, elasticmq, or auto",
        detail: "auto takes a file that ends in .conf for ElasticMQ's and any other for TOML.",
    },
    read: |texts| one(texts, str::parse),
};

pub(crate) static ALLOWED_HOST: Setting<Vec<String>> = Setting {
    about: About {
        name: "allowed-host",
        value_name: "HOST",
        default: &[],
        form: Form::Many,
        scope: Scope::Listener,
        help: "Name under which clients may reach the server, besides localhost; repeatable",
        detail: "Without authentication the server answers only requests whose Host header names this \
                 machine, so that a web page cannot reach the queues. In a container network, name the \
                 service here.",
    },
    read: |texts| texts.iter().map(|text| not_empty(text)).collect(),
};

pub(crate) static CONSOLE_BASE_PATH: Setting<String> = Setting {
    about: About {
        name: "console-base-path",
        value_name: "PATH",
        default: &[],
        form: Form::One,
        scope: Scope::Serve,
        help: "Path that a proxy puts in front of /console, such as /queues",
        detail: "",
    },
    read: |texts| {
        texts
            .first()
            .map_or(Ok(String::new()), |text| not_empty(text))
    },
};

pub(crate) static ADVERTISE: Setting<Option<String>> = Setting {
    about: About {
        name: "advertise",
        value_name: "HOST[:PORT]",
        default: &[],
        form: Form::One,
        scope: Scope::Serve,
        help: "Host and port that queue URLs name; otherwise what the client asked for",
        detail: "",
    },
    read: |texts| texts.first().map(|text| not_empty(text)).transpose(),
};

pub(crate) static ACCOUNT: Setting<String> = Setting {
    about: About {
        name: "account",
        value_name: "ID",
        default: &["000000000000"],
        form: Form::One,
        scope: Scope::Serve,
        help: "Account in queue URLs and ARNs: 12 digits",
        detail: "",
    },
    read: |texts| {
        one(texts, |text| {
            if text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit()) {
                Ok(text.to_owned())
            } else {
                Err(format!("{text:?} is no account: 12 digits are needed"))
            }
        })
    },
};

pub(crate) static REGION: Setting<String> = Setting {
    about: About {
        name: "region",
        value_name: "NAME",
        default: &["us-east-1"],
        form: Form::One,
        scope: Scope::Listener,
        help: "Region in ARNs",
        detail: "",
    },
    read: |texts| {
        one(texts, |text| {
            let fits =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            if !text.is_empty() && text.len() <= 32 && text.bytes().all(fits) {
                Ok(text.to_owned())
            } else {
                Err(format!(
                    "{text:?} is no region: write 1 to 32 lower-case letters, digits and '-'"
                ))
            }
        })
    },
};

/// How clients say who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Auth {
    None,
    Sigv4,
}

pub(crate) static AUTH: Setting<Auth> = Setting {
    about: About {
        name: "auth",
        value_name: "WAY",
        default: &["none"],
        form: Form::One,
        scope: Scope::Listener,
        help: "How clients say who they are: none, or sigv4",
        detail: "With sigv4 clients sign every request with one of the --access-keys, as every AWS SDK does. \
                 With none, whoever reaches the server may do everything.",
    },
    read: |texts| {
        one(texts, |text| match text {
            "none" => Ok(Auth::None),
            "sigv4" => Ok(Auth::Sigv4),
            _ => Err(format!("{text:?} is neither none nor sigv4")),
        })
    },
};

pub(crate) static ACCESS_KEYS: Setting<Option<PathBuf>> = Setting {
    about: About {
        name: "access-keys",
        value_name: "FILE",
        default: &[],
        form: Form::One,
        scope: Scope::Listener,
        help: "File of access keys and what each may do, for --auth sigv4",
        detail: "TOML with a [[key]] for each: id, secret (or secret_env, or secret_file), and grants: { \
                 queues = \"orders-*\", verbs = [\"send\", \"receive\", \"read\", \"manage\", \"purge\"] }. Nobody but \
                 its owner may be able to read it. The server reads it again when it changes, and its keys \
                 hold for new requests.",
    },
    read: |texts| {
        texts
            .first()
            .map(|text| not_empty(text).map(PathBuf::from))
            .transpose()
    },
};

pub(crate) static ALLOW_REMOTE: Setting<bool> = Setting {
    about: About {
        name: "allow-remote",
        value_name: "BOOL",
        default: &["false"],
        form: Form::Switch,
        scope: Scope::Listener,
        help: "Listen on an address that other machines can reach without authentication",
        detail: "Everybody who can reach the port can then read and delete every message. Without this flag \
                 the server refuses such an address.",
    },
    read: |texts| one(texts, switch),
};

pub(crate) static TLS_CERT: Setting<Option<PathBuf>> = Setting {
    about: About {
        name: "tls-cert",
        value_name: "FILE",
        default: &[],
        form: Form::One,
        scope: Scope::Listener,
        help: "Serve HTTPS with the certificate in this file, and those up to its authority (PEM)",
        detail: "Needs --tls-key. TLS 1.2 and 1.3. The server reads the files again when they change; new \
                 connections get the new certificate.",
    },
    read: |texts| {
        texts
            .first()
            .map(|text| not_empty(text).map(PathBuf::from))
            .transpose()
    },
};

pub(crate) static TLS_KEY: Setting<Option<PathBuf>> = Setting {
    about: About {
        name: "tls-key",
        value_name: "FILE",
        default: &[],
        form: Form::One,
        scope: Scope::Listener,
        help: "File of the private key of --tls-cert (PEM)",
        detail: "Nobody but its owner may be able to read it.",
    },
    read: |texts| {
        texts
            .first()
            .map(|text| not_empty(text).map(PathBuf::from))
            .transpose()
    },
};

pub(crate) static CONNECTIONS_MAX: Setting<usize> = Setting {
    about: About {
        name: "connections-max",
        value_name: "N",
        default: &["16384"],
        form: Form::Number,
        scope: Scope::Listener,
        help: "How many connections may be open; the server answers further ones with 503",
        detail: "Each needs a file descriptor, and the server keeps 256 for the log and the rest. It raises \
                 its limit of open files as far as it may. If that leaves fewer connections than the default, \
                 it says how many. If that leaves fewer than you asked for, it does not start (ulimit -n, \
                 LimitNOFILE=).",
    },
    read: |texts| one(texts, count),
};

pub(crate) static CONNECTIONS_PER_ADDRESS_MAX: Setting<usize> = Setting {
    about: About {
        name: "connections-per-address-max",
        value_name: "N",
        default: &["12288"],
        form: Form::Number,
        scope: Scope::Listener,
        help: "How many connections of one client address may be open",
        detail: "The default is at most three quarters of all connections.",
    },
    read: |texts| one(texts, count),
};

pub(crate) static BODY_MAX: Setting<usize> = Setting {
    about: About {
        name: "body-max",
        value_name: "SIZE",
        default: &["4MiB"],
        form: Form::One,
        scope: Scope::Listener,
        help: "Largest request body; the server answers a larger one with 413 before reading it",
        detail: "Amazon SQS takes 1 MiB of messages in a call; as JSON they can be three times as large.",
    },
    read: |texts| {
        one(texts, |text| match size(text)? {
            ..1024 => Err(format!(
                "{text:?} is less than 1KiB, and no request would be taken"
            )),
            bytes => Ok(bytes),
        })
    },
};

pub(crate) static BODIES_MAX: Setting<usize> = Setting {
    about: About {
        name: "bodies-max",
        value_name: "SIZE",
        default: &["256MiB"],
        form: Form::One,
        scope: Scope::Listener,
        help: "Memory for all request bodies together; beyond it the server answers with 503",
        detail: "Answers on their way to clients may take as much again. One address gets at most three \
                 quarters of it. With --auth sigv4, bodies whose sender is not known yet get half.",
    },
    read: |texts| one(texts, size),
};

pub(crate) static HEADER_TIMEOUT: Setting<Duration> = Setting {
    about: About {
        name: "header-timeout",
        value_name: "TIME",
        default: &["10s"],
        form: Form::One,
        scope: Scope::Listener,
        help: "Time for a request's head, from its first byte on",
        detail: "",
    },
    read: |texts| one(texts, some_time),
};

pub(crate) static IDLE_TIMEOUT: Setting<Duration> = Setting {
    about: About {
        name: "idle-timeout",
        value_name: "TIME",
        default: &["75s"],
        form: Form::One,
        scope: Scope::Listener,
        help: "How long a connection may stay open without a request",
        detail: "",
    },
    read: |texts| one(texts, some_time),
};

pub(crate) static SHUTDOWN_TIMEOUT: Setting<Duration> = Setting {
    about: About {
        name: "shutdown-timeout",
        value_name: "TIME",
        default: &["20s"],
        form: Form::One,
        scope: Scope::Serve,
        help: "How long a graceful end may wait for requests under way",
        detail: "",
    },
    read: |texts| one(texts, units::duration),
};

pub(crate) static STALL_TIMEOUT: Setting<Duration> = Setting {
    about: About {
        name: "stall-timeout",
        value_name: "TIME",
        default: &["30s"],
        form: Form::One,
        scope: Scope::Serve,
        help: "How long the disk may finish nothing while somebody waits; then /readyz fails",
        detail: "",
    },
    read: |texts| one(texts, some_time),
};

pub(crate) static SYNC_WINDOW: Setting<Duration> = Setting {
    about: About {
        name: "sync-window",
        value_name: "TIME",
        default: &["100ms"],
        form: Form::One,
        scope: Scope::Serve,
        help: "How much of the last time a power cut may take of messages at level process",
        detail: "The server syncs messages at level disk, the default of a queue, before it answers, whatever \
                 this says. A queue may have a window of its own, shorter or longer.",
    },
    read: |texts| one(texts, units::duration),
};

/// What [`SEGMENT_SIZE`] may be.
pub(crate) static SEGMENT_SIZE: Setting<u32> = Setting {
    about: About {
        name: "segment-size",
        value_name: "SIZE",
        default: &["64MiB"],
        form: Form::One,
        scope: Scope::Serve,
        help: "Largest size of the files that the log is made of",
        detail: "From 4MiB to 1GiB. The files of a small log have 8 to 16 MiB and grow with it, up to this. \
                 Small files cost a large log more syncs. On a small disk they save space, because the server \
                 keeps a few in reserve. An append to a ledger needs a record, which has half of a file at most: below \
                 32MiB, the server refuses appends of 8 MiB. You may change it at every start.",
    },
    read: |texts| {
        one(texts, |text| {
            let bytes = units::size(text)?;
            let fits = u32::try_from(bytes).ok();
            fits.filter(|bytes| LocalLogOptions::SEGMENT_BYTES.contains(bytes))
                .ok_or_else(|| format!("{text:?} is not from 4MiB to 1GiB"))
        })
    },
};

pub(crate) static FREE_LOW: Setting<Option<u64>> = Setting {
    about: About {
        name: "free-low",
        value_name: "SIZE",
        default: &[],
        form: Form::One,
        scope: Scope::Serve,
        help: "Free space on the disk below which the server warns; otherwise 2 GiB or 5 %, whichever is more",
        detail: "",
    },
    read: |texts| texts.first().map(|text| units::size(text)).transpose(),
};

pub(crate) static FREE_MIN: Setting<u64> = Setting {
    about: About {
        name: "free-min",
        value_name: "SIZE",
        default: &["256MiB"],
        form: Form::One,
        scope: Scope::Serve,
        help: "Free space on the disk that sends must leave; the server refuses those that would take it",
        detail: "Receiving, acknowledging and purging go on. The server takes sends again as soon as there is \
                 room. It writes snapshots there: leave room for two.",
    },
    read: |texts| one(texts, units::size),
};

pub(crate) static LOG_FORMAT: Setting<LogFormat> = Setting {
    about: About {
        name: "log-format",
        value_name: "FORMAT",
        default: &["auto"],
        form: Form::One,
        scope: Scope::Listener,
        help: "How log lines look: text, json, or auto",
        detail: "auto is text on a terminal and JSON otherwise. The log goes to standard error, one event a \
                 line. The server does not wait for its reader: it drops and counts lines that nobody takes.",
    },
    read: |texts| one(texts, str::parse),
};

pub(crate) static LOG_LEVEL: Setting<String> = Setting {
    about: About {
        name: "log-level",
        value_name: "LEVEL",
        default: &["info"],
        form: Form::One,
        scope: Scope::Listener,
        help: "What is logged: error, warn, info, debug or trace",
        detail: "Parts can have levels of their own: info,lockgate_engine=debug.",
    },
    read: |texts| one(texts, crate::telemetry::check_level),
};

pub(crate) static ENDPOINT: Setting<Endpoint> = Setting {
    about: About {
        name: "endpoint",
        value_name: "URL",
        default: &["http://127.0.0.1:9324"],
        form: Form::One,
        scope: Scope::Client,
        help: "The server to talk to",
        detail: "http://, or https:// for a server with a certificate.",
    },
    read: |texts| {
        one(texts, |text| {
            text.parse()
                .map_err(|error: EndpointError| error.to_string())
        })
    },
};

pub(crate) static FENCE: Setting<Option<FenceMark>> = Setting {
    about: About {
        name: "fence",
        value_name: "ELECTION:EPOCH",
        default: &[],
        form: Form::One,
        scope: Scope::Client,
        help: "Change nothing if the server has seen a later leader of that election",
        detail: "`lockgate lead` sets LOCKGATE_FENCE for its command, so all that this program changes there is \
                 refused once another one has led, and changed something under its fence.",
    },
    read: |texts| {
        let text = texts.first().map(|text| {
            text.parse()
                .map_err(|error: FenceMarkError| error.to_string())
        });
        text.transpose()
    },
};

pub(crate) static VIA: Setting<Option<String>> = Setting {
    about: About {
        name: "via",
        value_name: "URL",
        default: &[],
        form: Form::Secret,
        scope: Scope::Coordination,
        help: "The store that elects, instead of the server",
        detail: "http://HOST:PORT or https://HOST:PORT: a Lockgate server. file:///FOLDER: a folder of this \
                 machine, for its own processes. zk://HOST:PORT,HOST:PORT/PATH?style=latch: ZooKeeper, together \
                 with candidates of Curator. postgres://, mysql:// and redis://USER:PASSWORD@HOST:PORT/DATABASE: \
                 a database. Put a URL with a password into LOCKGATE_VIA or the \
                 configuration file, because everybody on the machine can read command lines. \
                 docs/coordination.md says what each store promises.",
    },
    read: |texts| {
        let Some(text) = texts.first() else {
            return Ok(None);
        };
        crate::via::check(text)?;
        Ok(Some(text.clone()))
    },
};

pub(crate) static LEDGER: Setting<Option<String>> = Setting {
    about: About {
        name: "ledger",
        value_name: "LEDGER",
        default: &[],
        form: Form::Secret,
        scope: Scope::Ledger,
        help: "The ledger that gets the events",
        detail: "NAME: of the server. postgres://USER:PASSWORD@HOST:PORT/DATABASE?ledger=NAME: in the schema NAME of \
                 a PostgreSQL database; mysql://...?ledger=NAME: in tables of a MariaDB or MySQL database. Put a URL with a password into LOCKGATE_LEDGER or the configuration file, because \
                 everybody on the machine can read command lines.",
    },
    read: |texts| {
        let Some(text) = texts.first() else {
            return Ok(None);
        };
        crate::ledger::check(text)?;
        Ok(Some(text.clone()))
    },
};

pub(crate) static CA: Setting<Option<PathBuf>> = Setting {
    about: About {
        name: "ca",
        value_name: "FILE",
        default: &[],
        form: Form::One,
        scope: Scope::Client,
        help: "For https://: trust the authorities in this file (PEM), not those of the system",
        detail: "For a server whose certificate comes from a private authority. Without it the command trusts \
                 what SSL_CERT_FILE and SSL_CERT_DIR name, else the authorities of the system.",
    },
    read: |texts| {
        texts
            .first()
            .map(|text| not_empty(text).map(PathBuf::from))
            .transpose()
    },
};

pub(crate) static TIMEOUT: Setting<Duration> = Setting {
    about: About {
        name: "timeout",
        value_name: "TIME",
        default: &["30s"],
        form: Form::One,
        scope: Scope::Client,
        help: "How long to wait for an answer, and to try again where that is safe",
        detail: "A receive waits for its --wait on top of that.",
    },
    read: |texts| one(texts, units::duration),
};

pub(crate) static CONSUMER: Setting<Option<HolderName>> = Setting {
    about: About {
        name: "consumer",
        value_name: "NAME",
        default: &[],
        form: Form::One,
        scope: Scope::Client,
        help: "Name under which leases are held; otherwise the client's address",
        detail: "",
    },
    read: |texts| {
        texts
            .first()
            .map(|text| match HolderName::new(text) {
                Ok(name) if text.is_ascii() => Ok(name),
                Ok(_) => Err(format!(
                    "{text:?} has characters beyond ASCII, which the header that carries it cannot have"
                )),
                Err(error) => Err(error.to_string()),
            })
            .transpose()
    },
};

/// A time of a second or more: with less, no request would get through.
fn some_time(text: &str) -> Result<Duration, String> {
    let time = units::duration(text)?;
    match time < Duration::from_secs(1) {
        true => Err(format!("{text:?} is less than 1s")),
        false => Ok(time),
    }
}

/// Exactly one text.
fn one<T>(texts: &[String], read: impl FnOnce(&str) -> Result<T, String>) -> Result<T, String> {
    match texts {
        [text] => read(text),
        _ => Err(format!("one value is needed, there are {}", texts.len())),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

/// A number from 1 on.
fn count(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| format!("{text:?} is no whole number from 1 to {}", usize::MAX))
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    usize::try_from(bytes).map_err(|_| {
        let max = units::show_size(usize::MAX as u64);
        format!("{text:?} is more than the {max} that this machine can address")
    })
}

fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("the value is empty".to_owned())
    } else {
        Ok(text.to_owned())
    }
}
