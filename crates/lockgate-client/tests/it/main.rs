//! The client against real servers on loopback, and against servers that break their word.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod bounds;
mod canned;
mod coalescer;
mod connections;
mod coordination;
mod exchange;
mod fates;
mod later;
mod ledger;
mod records;
mod schedule;
mod support;
mod transport;
