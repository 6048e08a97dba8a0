//! Queues of a real server that speaks SQS, and of one that breaks its word.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod canned;
mod fates;
mod messages;
mod producer;
mod support;
mod transport;
mod worker;
