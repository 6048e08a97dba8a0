//! The server as an embedding program sees it: options, binding, running, and the report at the
//! end.

use std::{
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use lockgate_engine::Engine;
use tokio::net::{TcpListener, TcpSocket};

use crate::{
    auth::{AccessKeys, Authentication, KeyError, check_keys},
    handler::Handler,
    http::{
        self, Answering, Core,
        tls::{Certificate, Tls, TlsError, TlsFiles},
    },
};

/// Options of a server. Every default is safe on a developer's machine.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on; port 0 takes a free one. Default: `127.0.0.1:9324`.
    pub listen: SocketAddr,
    /// Whether `listen` may be an address that other machines can reach although there is no
    /// [`authentication`](Self::authentication): whoever reaches the address can then read and delete
    /// every message. Default: false, and [`Server::bind`] refuses such an address.
    pub allow_remote: bool,
    /// Host names under which clients may address the server, without port, in any case, in
    /// addition to `localhost`, `127.0.0.1`, `[::1]` and the address that the client is connected
    /// to. A request whose `Host` or `Origin` names another host is refused: otherwise a web page
    /// could point its own host name at this server and read the queues. Default: none.
    pub allowed_hosts: Vec<String>,
    /// The host, or host and port, in the queue URLs of answers; also an allowed host. `None`, the
    /// default: the `Host` that the client sent.
    pub advertised_host: Option<String>,
    /// The account in queue URLs and ARNs: 12 digits. Default: `000000000000`.
    pub account: String,
    /// The region in ARNs: letters, digits and `-`. Default: `us-east-1`.
    pub region: String,
    /// The path that a proxy puts in front of `/console`, such as `/queues`: the console's links and cookies begin with
    /// it. Requests may come with it or without. Default: none.
    pub console_base_path: String,
    /// How clients authenticate. Default: not at all.
    pub authentication: Authentication,
    /// Encrypts connections with this certificate; `None`, the default, does not. The files are read
    /// again when they change, for new connections.
    pub tls: Option<TlsFiles>,
    /// Limits on sizes and counts.
    pub limits: Limits,
    /// Limits on times.
    pub deadlines: Deadlines,
}

/// How much a client may send, and how many clients there may be.
///
/// Memory of the server is about 20 KiB for each open connection, idle or waiting for a message, of
/// at most [`connections_max`](Self::connections_max); another
/// [`head_bytes_max`](Self::head_bytes_max) and 16 KiB for each that sends a request; and
/// twice [`bodies_bytes_max`](Self::bodies_bytes_max) in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest request body in bytes; a larger one is answered 413, from its declared length
    /// before it is read. Default 4 MiB: the 1 MiB of messages that Amazon SQS takes in one call
    /// grows up to threefold when a client writes JSON in ASCII, and a batch has an envelope.
    pub body_bytes_max: usize,
    /// Bytes of request bodies in memory at the same time; beyond it, requests are answered 503.
    /// The first 16 KiB of each body are not counted, so a request to settle is never refused for
    /// lack of memory. Answers above 16 KiB on their way to clients have a budget of the same size;
    /// beyond it, such an answer is replaced by a 503. One address (of IPv6, one network of 64
    /// bits) gets at most three quarters of each budget. With authentication, bodies whose sender
    /// is not known yet get at most half, and one address three quarters of that half. Default 256
    /// MiB.
    pub bodies_bytes_max: usize,
    /// Header lines of one request; more are answered 431. Default 100.
    pub headers_max: usize,
    /// Bytes of one request's head; more are answered 431. 8 KiB or more; default 16 KiB.
    pub head_bytes_max: usize,
    /// Open connections; further ones are answered 503 and closed. Default 16,384. Each connection
    /// needs a file descriptor, and so does the log, which refuses sends while it gets none. So
    /// this number, plus the files of the log (for a local log, `LocalLogOptions::files_max`), plus
    /// some more must stay below the process's limit (`ulimit -n`).
    pub connections_max: usize,
    /// Open connections of one address. Default 12,288, so that one address can hold 10,000 long
    /// polls and still cannot take all connections.
    pub connections_per_address_max: usize,
    /// Queues that `/metrics` shows by name, first in order of names; the other queues are only
    /// counted. Default 1,000.
    pub metrics_queues_max: usize,
}

/// How long a client may take, and a shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From the first byte of a request to the end of its head. Default 10 s.
    pub header: Duration,
    /// How long a connection may stay open with no request begun. Default 75 s.
    pub idle: Duration,
    /// How long a body, or an answer that the client is slow to take, may stall or be behind
    /// [`transfer_rate_min`](Self::transfer_rate_min). Faster bytes make up for lost time, but
    /// never earn more than this time ahead: a body that stalls is given up after this time,
    /// however much came before. In a backup, every byte counts. It is also how long a [`Handler`]
    /// may take for an answer once the client has ended its side. Default 10 s.
    pub transfer_grace: Duration,
    /// The lowest rate of a body or an answer, in bytes a second. 1 or more; default 16 KiB/s.
    pub transfer_rate_min: u64,
    /// How long the engine may finish no command while commands wait, before `/readyz` fails.
    /// Default 30 s.
    pub stall: Duration,
    /// The time from the request to shut down until connections that still have no answer are cut.
    /// The engine then has the same time again to sync its log. Default 20 s.
    pub shutdown: Duration,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local: SocketAddr,
    core: Core,
}

/// The address of a future server. Nothing listens there yet, so clients are refused.
#[derive(Debug)]
pub struct Reserved {
    socket: TcpSocket,
    options: ServerOptions,
    tls: Option<Tls>,
}

/// How a server's run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunReport {
    pub connections: u64,
    /// Requests answered, refused ones included.
    pub requests: u64,
    /// Connections that were cut because they had not ended by the shutdown deadline.
    pub cut: usize,
    /// Whether the engine stopped, with its log synced, by its deadline; true where there is none.
    pub engine_stopped: bool,
    /// How long the shutdown took.
    pub shutdown_time: Duration,
}

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// An address that other machines can reach, without the permission for it.
    #[error(
        "listening on {listen} would let everybody who reaches this machine read and delete \
         messages, as there is no authentication: listen on 127.0.0.1, or allow remote clients \
         explicitly, or configure access keys"
    )]
    Remote { listen: SocketAddr },
    /// An option is outside its range.
    #[error("{option} is {value:?}: {expected}")]
    Option {
        option: &'static str,
        value: String,
        expected: &'static str,
    },
    /// An access key cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The certificate cannot be used.
    #[error("the certificate for TLS")]
    Tls(#[source] TlsError),
    /// The operating system refused the address.
    #[error("listening on {listen}")]
    Listen {
        listen: SocketAddr,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
}

/// Connections that the kernel keeps until they are accepted, so that in a burst of thousands of
/// clients none has to retry after a second. The kernel's own limit may be lower.
const BACKLOG: u32 = 4096;

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9324)),
            allow_remote: false,
            allowed_hosts: Vec::new(),
            advertised_host: None,
            account: "000000000000".to_owned(),
            region: "us-east-1".to_owned(),
            console_base_path: String::new(),
            authentication: Authentication::None,
            tls: None,
            limits: Limits::default(),
            deadlines: Deadlines::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 4 << 20,
            bodies_bytes_max: 256 << 20,
            headers_max: 100,
            head_bytes_max: 16 << 10,
            connections_max: 16_384,
            connections_per_address_max: 12_288,
            metrics_queues_max: 1_000,
        }
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            transfer_grace: Duration::from_secs(10),
            transfer_rate_min: 16 << 10,
            stall: Duration::from_secs(30),
            shutdown: Duration::from_secs(20),
        }
    }
}

impl Server {
    /// Checks the options and listens. Clients can connect from now on; they are served by
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// If an option is out of its range, if other machines can reach the address without
    /// [`allow_remote`](ServerOptions::allow_remote) or authentication, or if the operating system
    /// refuses the address.
    pub async fn bind(options: ServerOptions, engine: Engine) -> Result<Self, BindError> {
        Self::reserve(options)?.listen(engine).await
    }

    /// Listens as [`bind`](Self::bind) does, by the same rules, where a [`Handler`] answers in the
    /// place of queues.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub async fn bind_handler(
        options: ServerOptions,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, BindError> {
        Self::reserve(options)?.listen_for(handler).await
    }

    /// Does the part of [`bind`](Self::bind) that needs no engine. A program that cannot listen
    /// then does not start an engine, which could depose another process's engine.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn reserve(options: ServerOptions) -> Result<Reserved, BindError> {
        options.check()?;
        let tls = options.tls.clone().map(Tls::open).transpose();
        let tls = tls.map_err(BindError::Tls)?;
        let listen = options.listen;
        let socket = bind_to(listen).map_err(|source| BindError::Listen { listen, source })?;
        Ok(Reserved {
            socket,
            options,
            tls,
        })
    }

    /// The address, with the port that the operating system chose if the options name none.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The access keys, which can be changed while the server runs; `None` without authentication.
    #[must_use]
    pub fn access_keys(&self) -> Option<AccessKeys> {
        self.core.access_keys()
    }

    /// The certificate, which can be read again while the server runs; `None` without TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<Certificate> {
        self.core.certificate()
    }

    /// Shows this count in `/metrics`: lines of the process's log that were dropped so that nothing
    /// had to wait for their reader. Without it, `/metrics` shows zero.
    #[must_use]
    pub fn with_lines_dropped(mut self, count: Arc<AtomicU64>) -> Self {
        self.core.lines_dropped = count;
        self
    }

    /// Serves until `shutdown` is ready, then ends in order: `/readyz` fails, new connections are
    /// refused, waiting receives return empty at once, requests that have arrived are answered, and
    /// idle connections are closed. Whatever is not done within [`Deadlines::shutdown`] is cut.
    /// Then the engine shuts down, which syncs its log.
    ///
    /// # Cancellation
    /// Dropping the future cuts all connections at once and leaves the engine running.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> RunReport {
        http::run(self.listener, self.core, shutdown).await
    }
}

impl Reserved {
    /// The address that the server will listen on.
    ///
    /// # Errors
    /// If the operating system does not report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Listens. Clients can connect from now on; they are served by [`Server::run`].
    ///
    /// # Errors
    /// [`BindError::Listen`], if another program has begun to listen there meanwhile.
    // Async so that the caller is within a runtime.
    pub async fn listen(self, engine: Engine) -> Result<Server, BindError> {
        self.begin(Answering::Engine(engine))
    }

    /// The same, where a [`Handler`] answers in the place of queues.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub async fn listen_for(self, handler: Arc<dyn Handler>) -> Result<Server, BindError> {
        self.begin(Answering::Handler(handler))
    }

    fn begin(self, answering: Answering) -> Result<Server, BindError> {
        let listen = self.options.listen;
        let error = |source| BindError::Listen { listen, source };
        let listener = self.socket.listen(BACKLOG).map_err(error)?;
        let local = listener.local_addr().map_err(error)?;
        let core = Core::new(self.options, self.tls, answering);
        Ok(Server {
            listener,
            local,
            core,
        })
    }
}

impl ServerOptions {
    /// Whether [`Server::bind`] would take these options. Opens nothing.
    ///
    /// # Errors
    /// [`BindError::Remote`] and [`BindError::Option`].
    pub fn check(&self) -> Result<(), BindError> {
        let open = matches!(self.authentication, Authentication::None);
        if open && !self.allow_remote && !self.listen.ip().is_loopback() {
            return Err(BindError::Remote {
                listen: self.listen,
            });
        }
        let option = |option, value: &str, expected, ok: bool| {
            let value = value.to_owned();
            if ok {
                Ok(())
            } else {
                Err(BindError::Option {
                    option,
                    value,
                    expected,
                })
            }
        };
        option(
            "account",
            &self.account,
            "expected 12 digits",
            self.account.len() == 12 && self.account.bytes().all(|byte| byte.is_ascii_digit()),
        )?;
        option(
            "region",
            &self.region,
            "expected letters, digits and '-'",
            !self.region.is_empty()
                && self
                    .region
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'),
        )?;
        option(
            "console base path",
            &self.console_base_path,
            "expected a path such as /queues, of letters, digits, '-', '_' and '.', without a slash at its end",
            http::is_base_path(&self.console_base_path),
        )?;
        if let Authentication::AccessKeys(keys) = &self.authentication {
            check_keys(keys)?;
        }
        for host in &self.allowed_hosts {
            option(
                "allowed host",
                host,
                "expected a host name or address without port",
                http::hosts::is_host(host),
            )?;
        }
        if let Some(host) = &self.advertised_host {
            option(
                "advertised host",
                host,
                "expected a host name or address, and a port if it is not 80",
                http::hosts::split(host).is_some(),
            )?;
        }
        let limits = &self.limits;
        for (name, value, min) in [
            ("body_bytes_max", limits.body_bytes_max, 1),
            ("headers_max", limits.headers_max, 1),
            ("head_bytes_max", limits.head_bytes_max, 8 << 10),
            ("connections_max", limits.connections_max, 1),
            (
                "connections_per_address_max",
                limits.connections_per_address_max,
                1,
            ),
        ] {
            let expected = match min {
                1 => "expected 1 or more",
                _ => "expected 8,192 or more",
            };
            option(name, &value.to_string(), expected, value >= min)?;
        }
        option(
            "transfer_rate_min",
            &self.deadlines.transfer_rate_min.to_string(),
            "expected 1 byte a second or more",
            self.deadlines.transfer_rate_min > 0,
        )
    }
}

fn bind_to(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Without this, a restart waits until the kernel forgets the last run's connections.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
