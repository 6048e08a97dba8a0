//! The server as its user sees it: options, binding, running, the report at the end.

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
    auth::{AccessKeys, Authentication, check_keys},
    http::{
        self, Core,
        tls::{Certificate, Tls, TlsError, TlsFiles},
    },
};

/// What a server may be told. Every field has a default that is safe on a developer's machine.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen; port 0 takes a free one. Default: `127.0.0.1:9324`.
    pub listen: SocketAddr,
    /// Whether `listen` may be an address that other machines can reach although there is no
    /// [`authentication`](Self::authentication): whoever reaches the address can then read and delete
    /// every message. Default: false, and [`Server::bind`] refuses such an address.
    pub allow_remote: bool,
    /// Names under which clients may address the server, beside `localhost`, `127.0.0.1`, `[::1]`
    /// and the address they are connected to: host names without port, in any case. A request whose
    /// `Host` or `Origin` names anything else is refused, so that a web page that makes its own
    /// name point here cannot reach the queues. Default: none.
    pub allowed_hosts: Vec<String>,
    /// Host, or host and port, that queue URLs in answers name; also an allowed host. `None`, the
    /// default: whatever the client sent as `Host`.
    pub advertised_host: Option<String>,
    /// The account that queue URLs and ARNs name: 12 digits. Default: `000000000000`.
    pub account: String,
    /// The region that ARNs name: letters, digits and `-`. Default: `us-east-1`.
    pub region: String,
    /// How clients say who they are. Default: not at all.
    pub authentication: Authentication,
    /// Encrypts connections with this certificate; `None`, the default, does not. The files are read
    /// again when they change, for new connections.
    pub tls: Option<TlsFiles>,
    /// How much of everything.
    pub limits: Limits,
    /// How long everything may take.
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
    /// Request bodies that are in memory at the same time, in bytes. The first 16 KiB of each body
    /// are not counted, so that settling, which needs less, is never refused for it. Beyond it
    /// requests are answered 503. As much again may be taken by answers above 16 KiB on their way to
    /// clients, and beyond that such an answer is replaced by a 503. Of both, one address (of IPv6 a
    /// network of 64 bits) has three quarters. With authentication, bodies whose sender is not known
    /// yet have half, of which one address has three quarters. Default 256 MiB.
    pub bodies_bytes_max: usize,
    /// Header lines of one request; more are answered 431. Default 100.
    pub headers_max: usize,
    /// Bytes of one request's head; more are answered 431. 8 KiB or more; default 16 KiB.
    pub head_bytes_max: usize,
    /// Open connections; further ones are answered 503 and closed. Default 16,384. Each needs a
    /// file descriptor, and so does the log behind the engine, which refuses sends while it gets none:
    /// keep this below the process's limit (`ulimit -n`) by as many as that has open, which for a
    /// local log is `LocalLogOptions::files_max`, and some more.
    pub connections_max: usize,
    /// Open connections of one address. Default 12,288, so that one address can hold 10,000 long
    /// polls and still cannot take all connections.
    pub connections_per_address_max: usize,
    /// Queues that appear in `/metrics` by name, first in order of names; of the rest only the
    /// number is told. Default 1,000.
    pub metrics_queues_max: usize,
}

/// How long a client may take, and a shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From the first byte of a request to the end of its head. Default 10 s.
    pub header: Duration,
    /// How long a connection may stay open with no request begun. Default 75 s.
    pub idle: Duration,
    /// How long a body, or an answer that the client does not take at once, may stand still or be
    /// behind [`transfer_rate_min`](Self::transfer_rate_min). Bytes that come faster make up for what
    /// was lost, and never earn more than this time ahead: a body that falls silent is given up after
    /// it, however much came before. Of a backup every byte counts. Default 10 s.
    pub transfer_grace: Duration,
    /// The lowest rate of a body or an answer, in bytes a second. 1 or more; default 16 KiB/s.
    pub transfer_rate_min: u64,
    /// How long the engine may finish nothing while somebody waits, before `/readyz` fails. Default
    /// 30 s.
    pub stall: Duration,
    /// From the call for shutdown until connections that still have no answer are cut. The engine
    /// has the same time again to sync its log. Default 20 s.
    pub shutdown: Duration,
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    local: SocketAddr,
    core: Core,
}

/// The address of a server that is not there yet. Nobody listens there: clients are refused.
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
    /// Whether the engine stopped, with its log synced, by its deadline.
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
        /// What was given.
        value: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// The certificate cannot be used.
    #[error("the certificate for TLS")]
    Tls(#[source] TlsError),
    /// The operating system refused the address.
    #[error("listening on {listen}")]
    Listen {
        listen: SocketAddr,
        /// In the operating system's words.
        #[source]
        source: io::Error,
    },
}

/// Connections the kernel keeps until they are accepted: a burst of thousands of clients is no
/// reason to make one of them retry after a second. The kernel's own limit may be lower.
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
    /// If an option is out of its range, the address can be reached by others and that was not
    /// allowed, or the operating system refuses it.
    pub async fn bind(options: ServerOptions, engine: Engine) -> Result<Self, BindError> {
        Self::reserve(options)?.listen(engine).await
    }

    /// Does all of [`bind`](Self::bind) that does not need an engine, so that whoever cannot listen need not start
    /// one, which may depose another.
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

    /// Where it listens, with the port the operating system chose if none was given.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The access keys, to be changed while it serves; `None` if nobody has to say who they are.
    #[must_use]
    pub fn access_keys(&self) -> Option<AccessKeys> {
        self.core.access_keys()
    }

    /// The certificate, to be read again while it serves; `None` without TLS.
    #[must_use]
    pub fn certificate(&self) -> Option<Certificate> {
        self.core.certificate()
    }

    /// Tells this count in `/metrics`: lines of the log of this process that were dropped, for whoever
    /// writes it so that nobody has to wait. Without it, zero.
    #[must_use]
    pub fn with_lines_dropped(mut self, count: Arc<AtomicU64>) -> Self {
        self.core.lines_dropped = count;
        self
    }

    /// Serves until `shutdown` is ready, then comes to an orderly end: `/readyz` fails, no
    /// connection is accepted, waiting receives end empty at once, requests that have arrived are
    /// answered, idle connections are closed, and what is not done within
    /// [`Deadlines::shutdown`] is cut. Then the engine is shut down, which syncs its log.
    ///
    /// # Cancellation
    /// Dropping the future cuts all connections at once and leaves the engine running.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> RunReport {
        http::run(self.listener, self.core, shutdown).await
    }
}

impl Reserved {
    /// Where it will listen.
    ///
    /// # Errors
    /// If the operating system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Listens. Clients can connect from now on; they are served by [`Server::run`].
    ///
    /// # Errors
    /// [`BindError::Listen`], if another program has begun to listen there meanwhile.
    // Async so that it is called in a runtime.
    pub async fn listen(self, engine: Engine) -> Result<Server, BindError> {
        let listen = self.options.listen;
        let error = |source| BindError::Listen { listen, source };
        let listener = self.socket.listen(BACKLOG).map_err(error)?;
        let local = listener.local_addr().map_err(error)?;
        let core = Core::new(self.options, self.tls, engine);
        Ok(Server {
            listener,
            local,
            core,
        })
    }
}

impl ServerOptions {
    /// Whether [`Server::bind`] would take these options, before anything is opened.
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
        if let Authentication::AccessKeys(keys) = &self.authentication {
            check_keys(keys).map_err(|error| BindError::Option {
                option: error.what,
                value: error.id,
                expected: error.expected,
            })?;
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
    // A restart must not wait for the last run's connections to be forgotten by the kernel.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
