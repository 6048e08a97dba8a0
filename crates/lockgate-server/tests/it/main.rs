//! The server as clients see it: through real sockets, with a real engine over a log in a folder of
//! its own.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod api;
mod backup;
mod bad_input;
mod connections;
mod console;
mod deadlines;
mod errors;
mod exchanges;
mod follow;
mod handler;
mod hosts;
mod identity;
mod logs;
mod metrics;
mod never_early;
mod pages;
mod polling;
mod senders;
mod shutdown;
mod space;
mod support;
