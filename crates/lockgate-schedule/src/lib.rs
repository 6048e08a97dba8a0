//! When schedules fire: cron expressions in time zones, fixed rates, and what becomes of times that were missed.
//!
//! Lockgate's machine holds schedules and knows no calendar. This crate computes their times for it, and reads no clock itself:
//! [`Calendar`] says which time of a [`Timing`](lockgate_core::Timing) comes next, and [`plan`] what a schedule does whose time has come.
//!
//! ```
//! use lockgate_core::{Timing, WallTime};
//! use lockgate_schedule::Calendar;
//!
//! let weekdays = Timing::Cron {
//!     expression: "0 9 * * mon-fri".into(),
//!     zone: "Europe/Berlin".into(),
//! };
//! let calendar = Calendar::new(&weekdays, WallTime(0))?;
//! // Friday, 2026-11-27T09:00 in Berlin. The next one is on Monday, at 08:00 UTC.
//! let friday = WallTime(1_795_766_400_000);
//! assert_eq!(calendar.next_after(friday), Some(WallTime(1_796_025_600_000)));
//! # Ok::<(), lockgate_schedule::TimingError>(())
//! ```
//!
//! # Cron expressions
//!
//! Five fields (minute, hour, day of month, month, day of week), six with seconds first, or seven with seconds first and the year
//! last, as the crate `croner` reads them: `*`,
//! lists, ranges, steps, names of months and days, `L` (last), `#` (the n-th such day of the month), `W` (the nearest weekday),
//! and `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly`. If both days are given, either is enough, as in Vixie's cron.
//!
//! An expression whose seconds, minutes and hours have no `*`, `?` or step names *fixed times*, one or a list of them. Where a
//! zone's clock is set forward over some of these, it fires once at the first moment behind the gap; where the clock is set back,
//! each fires once, the first time. An expression with a `*`, `?` or step there keeps its rate: it leaves out the times that do
//! not exist, and fires in both hours where the clock shows one twice.
//!
//! The rules of time zones are those of the machine's own database (`/usr/share/zoneinfo`) if it has one, else those that came
//! with the program. New rules count from the next time that is computed.

// Users read these docs.
#![warn(missing_docs)]

mod calendar;
mod plan;

pub use calendar::{Calendar, TimingError};
pub use plan::{Due, Planned, plan};
