//! The table of all settings.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use lockgate_core::{Level, ShardId, ShardIdError};
use lockgate_log::LocalLogOptions;

use super::{About, AnySetting, Form, Scope, Setting};
use crate::{client::Endpoint, queue_file::Format, telemetry::LogFormat, units};

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
];

pub(crate) static LISTEN: Setting<SocketAddr> = Setting {
    about: About {
        name: "listen",
        value_name: "ADDRESS",
        default: &["127.0.0.1:9324"],
        form: Form::One,
        scope: Scope::Serve,
        help: "Address and port to listen on",
        detail: "Port 0 takes a free one; the ready line says which. An address that is not of this \
                 machine alone needs --allow-remote.",
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
        detail: "Made if it is missing, readable by this user only (mode 0700). One that is there must be \
                 empty or hold Lockgate's data: between the files of others nothing is begun. One server \
                 at a time can have it. A relative path counts from the working directory.",
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
        detail: "The first start on a new folder or database shard writes it down; a start under another \
                 number is refused. Servers whose message ids meet each other get different numbers.",
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
        detail: "postgres://USER:PASSWORD@HOST:PORT/DATABASE, with ?sslmode=require for TLS. Whoever starts last on a shard owns it, and \
                 the server before ends. Better in LOCKGATE_POSTGRES or the configuration file, since \
                 command lines can be read by everybody on the machine. What it needs and what the \
                 levels mean there: docs/logs.md.",
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
        detail: "replicated needs synchronous_standby_names there, and ends the server when a sync was \
                 not waited for by a standby. With disk, queues and sends at level replicated are refused.",
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
        help: "File of queues that are there when the server is: made, or changed to be so",
        detail: "TOML with a [[queue]] for each: name, tags = { ... }, and any setting of a queue by its name \
                 (docs/settings.md); or a configuration file of ElasticMQ, of which queues { ... } is read. \
                 What the file does not name is left alone, queues too. Where anything in it is \
                 wrong, nothing is done and the server does not start.",
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
        scope: Scope::Serve,
        help: "Name under which clients may reach the server, besides localhost; repeatable",
        detail: "Without authentication only local values of the Host header are served, so that a \
                 web page cannot reach the queues. In a container network, name the service here.",
    },
    read: |texts| texts.iter().map(|text| not_empty(text)).collect(),
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
        scope: Scope::Serve,
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
                    "{text:?} is no region: lower-case letters, digits and '-' are allowed"
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
        scope: Scope::Serve,
        help: "How clients say who they are: none, or sigv4",
        detail: "With sigv4 every request must be signed with one of the --access-keys, as every AWS \
                 SDK does. Without, whoever reaches the server may do everything.",
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
        scope: Scope::Serve,
        help: "File of access keys and what each may do, for --auth sigv4",
        detail: "TOML with a [[key]] for each: id, secret (or secret_env, or secret_file), and grants: \
                 { queues = \"orders-*\", verbs = [\"send\", \"receive\", \"read\", \"manage\", \
                 \"purge\"] }. Only its owner may be able to read it. It is read again when it \
                 changes, and its keys hold for new requests.",
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
        scope: Scope::Serve,
        help: "Listen on an address that other machines can reach without authentication",
        detail: "Everybody who can reach the port can then read and delete every message. Without \
                 this flag such an address is refused.",
    },
    read: |texts| one(texts, switch),
};

pub(crate) static TLS_CERT: Setting<Option<PathBuf>> = Setting {
    about: About {
        name: "tls-cert",
        value_name: "FILE",
        default: &[],
        form: Form::One,
        scope: Scope::Serve,
        help: "Serve HTTPS with the certificate in this file, and those up to its authority (PEM)",
        detail: "Needs --tls-key. TLS 1.2 and 1.3. The files are read again when they change; new \
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
        scope: Scope::Serve,
        help: "File of the private key of --tls-cert (PEM)",
        detail: "Only its owner may be able to read it.",
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
        scope: Scope::Serve,
        help: "Open connections; further ones are answered 503",
        detail: "Each needs a file descriptor, and 256 are kept for the log and the rest of the server. \
                 The server raises its limit of open files as far as it may; where that leaves fewer \
                 connections than the default, it says how many, and where it leaves fewer than were \
                 asked for, it does not start (ulimit -n, LimitNOFILE=).",
    },
    read: |texts| one(texts, count),
};

pub(crate) static CONNECTIONS_PER_ADDRESS_MAX: Setting<usize> = Setting {
    about: About {
        name: "connections-per-address-max",
        value_name: "N",
        default: &["12288"],
        form: Form::Number,
        scope: Scope::Serve,
        help: "Open connections of one client address",
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
        scope: Scope::Serve,
        help: "Largest request body; a larger one is answered 413 before it is read",
        detail: "Amazon SQS takes 1 MiB of messages in a call; JSON can make threefold of it.",
    },
    read: |texts| one(texts, size),
};

pub(crate) static BODIES_MAX: Setting<usize> = Setting {
    about: About {
        name: "bodies-max",
        value_name: "SIZE",
        default: &["256MiB"],
        form: Form::One,
        scope: Scope::Serve,
        help: "Memory for request bodies, all together; beyond it requests are answered 503",
        detail: "Answers on their way to clients may take as much again. One address has three quarters \
                 of it; with --auth sigv4, bodies whose sender is not known yet have half.",
    },
    read: |texts| one(texts, size),
};

pub(crate) static HEADER_TIMEOUT: Setting<Duration> = Setting {
    about: About {
        name: "header-timeout",
        value_name: "TIME",
        default: &["10s"],
        form: Form::One,
        scope: Scope::Serve,
        help: "Time for a request's head, from its first byte on",
        detail: "",
    },
    read: |texts| one(texts, units::duration),
};

pub(crate) static IDLE_TIMEOUT: Setting<Duration> = Setting {
    about: About {
        name: "idle-timeout",
        value_name: "TIME",
        default: &["75s"],
        form: Form::One,
        scope: Scope::Serve,
        help: "How long a connection may stay open without a request",
        detail: "",
    },
    read: |texts| one(texts, units::duration),
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
        help: "How long the disk may finish nothing while somebody waits before /readyz fails",
        detail: "",
    },
    read: |texts| one(texts, units::duration),
};

pub(crate) static SYNC_WINDOW: Setting<Duration> = Setting {
    about: About {
        name: "sync-window",
        value_name: "TIME",
        default: &["100ms"],
        form: Form::One,
        scope: Scope::Serve,
        help: "What a power cut may take of messages at level process: those of the last so long",
        detail: "Messages at level disk, the default of a queue, are synced before they are answered, \
                 whatever this says. A queue may have a window of its own, shorter or longer.",
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
        help: "Largest size of the files the log is made of, in which space is taken and comes back",
        detail: "From 4MiB to 1GiB. The files of a small log have 8 to 16 MiB and become larger with it, up to \
                 this. A log of many small ones costs more syncs; small ones suit a small disk, as a few are kept \
                 in reserve. May change from start to start.",
    },
    read: |texts| {
        one(texts, |text| {
            let bytes = units::size(text)?;
            let fits = u32::try_from(bytes).ok();
            fits.filter(|bytes| LocalLogOptions::SEGMENT_BYTES.contains(bytes))
                .ok_or_else(|| {
                    format!("{text:?} is no size from 4MiB to 1GiB (a number alone is bytes)")
                })
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
        help: "Free space on the disk below which the server warns; else 2 GiB or 5 %, what is more",
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
        help: "Free space on the disk that sends leave; they are refused before they take it",
        detail: "Receiving, acknowledging and purging go on. Sends are taken again as soon as there is \
                 room. Snapshots are written there: give it the room of two.",
    },
    read: |texts| one(texts, units::size),
};

pub(crate) static LOG_FORMAT: Setting<LogFormat> = Setting {
    about: About {
        name: "log-format",
        value_name: "FORMAT",
        default: &["auto"],
        form: Form::One,
        scope: Scope::Serve,
        help: "How log lines look: text, json, or auto",
        detail: "auto is text on a terminal and JSON otherwise. The log goes to standard error, one \
                 event a line. The server does not wait for its reader: lines that nobody takes are \
                 dropped and counted.",
    },
    read: |texts| one(texts, str::parse),
};

pub(crate) static LOG_LEVEL: Setting<String> = Setting {
    about: About {
        name: "log-level",
        value_name: "LEVEL",
        default: &["info"],
        form: Form::One,
        scope: Scope::Serve,
        help: "What is logged: error, warn, info, debug or trace",
        detail: "Parts can be told apart: info,lockgate_engine=debug.",
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
    read: |texts| one(texts, str::parse),
};

pub(crate) static CA: Setting<Option<PathBuf>> = Setting {
    about: About {
        name: "ca",
        value_name: "FILE",
        default: &[],
        form: Form::One,
        scope: Scope::Client,
        help: "For https://: trust the authorities in this file (PEM), not those of the system",
        detail: "For a server whose certificate is of a private authority. Without it: what \
                 SSL_CERT_FILE and SSL_CERT_DIR name, else the system's.",
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
        detail: "A receive's own --wait comes on top.",
    },
    read: |texts| one(texts, units::duration),
};

pub(crate) static CONSUMER: Setting<Option<String>> = Setting {
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
            .map(|text| match lockgate_core::HolderName::new(text) {
                Ok(_) if text.is_ascii() => Ok(text.clone()),
                Ok(_) => Err(format!("{text:?} has characters beyond ASCII")),
                Err(error) => Err(error.to_string()),
            })
            .transpose()
    },
};

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
        .ok_or_else(|| format!("{text:?} is no number from 1 on"))
}

fn size(text: &str) -> Result<usize, String> {
    let bytes = units::size(text)?;
    usize::try_from(bytes).map_err(|_| format!("{text:?} is more than this machine can address"))
}

fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("the value is empty".to_owned())
    } else {
        Ok(text.to_owned())
    }
}
