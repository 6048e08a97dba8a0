//! Calendars and plans, beside a slow search and beside every policy.

mod calendar;
mod plan;
