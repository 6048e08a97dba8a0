//! The Amazon SQS HTTP API, health and metrics over a Lockgate engine.

mod http;
mod server;
mod sqs;

pub use server::ServerOptions;
