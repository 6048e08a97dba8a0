//! The server as clients see it: through real sockets, with a real engine over a log in a folder of
//! its own.

mod bad_input;
mod connections;
mod deadlines;
mod hosts;
mod metrics;
mod pages;
mod shutdown;
mod support;
