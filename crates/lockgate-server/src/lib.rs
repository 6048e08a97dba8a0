//! The Amazon SQS HTTP API, health and metrics over a Lockgate engine.
//!
//! [`Server::bind`] listens, and [`Server::run`] serves until it is told to stop. [`Limits`] and
//! [`Deadlines`] bound the size, number and time of what a client may send. By default only this
//! machine can reach the server ([`ServerOptions`]). Clients may have to sign requests with access
//! keys, which say who may do what, and connections may be HTTPS.
//!
//! | path | what it is |
//! |---|---|
//! | `POST`, `GET` of `/` and `/{account}/{queue}` | the Amazon SQS API, AWS JSON 1.0 and Query |
//! | `GET /healthz` | 200 as long as the process serves |
//! | `GET /readyz` | 200 as long as queues are served, else 503 with the reason |
//! | `/api/v1/...` | the JSON admin API, described at `/api/v1/openapi.json` |
//! | `GET /api/v1/backup` | a backup of everything, streamed while it is taken |
//! | `/console/...` | pages for browsers, which are sent there from `/` |
//! | `GET /metrics` | Prometheus text format; the names are in `docs/metrics.md` |
//!
//! A program may put a [`Handler`] of its own behind the listener, in the place of queues
//! ([`Server::bind_handler`]).
//!
//! This crate stores nothing and decides nothing about messages (`lockgate-engine` does), and it
//! reads no configuration and catches no signals (`lockgate-cli` does).
//!
//! ```
//! use std::sync::Arc;
//! use lockgate_engine::{Engine, EngineOptions};
//! use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions, SystemClock};
//! use lockgate_server::{Server, ServerOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let disk = FolderDisk::open(folder)?;
//! let log = LocalLog::open(Arc::new(disk), LocalLogOptions::default())?;
//! let clock = Arc::new(SystemClock::new());
//! let (engine, _report) = Engine::start(log, clock, EngineOptions::default())?;
//!
//! let runtime = tokio::runtime::Runtime::new()?;
//! runtime.block_on(async {
//!     let mut options = ServerOptions::default();
//!     options.listen.set_port(0); // any free port
//!     let server = Server::bind(options, engine).await?;
//!     println!("http://{}", server.local_addr());
//!     let shutdown = async {}; // a signal, in a real program
//!     let report = server.run(shutdown).await;
//!     assert!(report.engine_stopped);
//!     Ok(())
//! })
//! # }
//! ```

mod answer;
mod api;
mod auth;
mod declare;
mod fault;
mod few;
mod handler;
mod http;
mod queue;
mod raw_json;
mod receipt;
mod server;
#[cfg(test)]
mod small_stack;
mod sns;
mod sqs;
mod waiting;
mod watched;

/// The entry points of the fuzz targets, for no other use. Each function returns whether it took
/// the bytes, and if not why, and panics where a promise is broken.
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::{
        api::fuzzing::{page, request as api},
        auth::fuzzing::signature,
        http::fuzzing::heads,
        sns::fuzzing::sns,
        sqs::fuzzing::{aws_json, query, receipt},
    };
}

pub use auth::{AccessKey, AccessKeys, Authentication, Grant, KeyError, Names, Secret, Verb};
pub use declare::{
    DeclareError, DeclareProblem, Declared, DeclaredBinding, DeclaredExchange, DeclaredPart,
    DeclaredQueue, ExchangePart, ExchangeProblem, ExchangeReference, check_exchanges, check_queues,
    check_references, declare_exchanges, declare_queues, exchange_references, other_kind,
};
pub use handler::{Handler, HandlerAnswer, HandlerRequest, check_message};
pub use http::tls::{Certificate, TlsError, TlsFiles};
pub use server::{BindError, Deadlines, Limits, Reserved, RunReport, Server, ServerOptions};
pub use watched::{FileBytes, FileKinds, WatchedFiles};
