//! Calendars and plans, beside a slow search and beside every policy.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

mod calendar;
mod plan;
