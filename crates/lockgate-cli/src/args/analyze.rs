//! `lockgate analyze`.

use std::{num::NonZeroU64, path::PathBuf, time::Duration};

use clap::Args;

use crate::{
    commands::analyze::{Format, TimeUnit},
    units::duration,
};

/// Predict how much work a coalescer saves on requests that were recorded
///
/// Reads one request a line and tells how far apart equal keys come. The distance of a repeat is the number of
/// requests from the one before of the same key: equal keys at positions 3 and 10 have distance 7. A key that comes
/// once is of class none, one whose least distance is above the number of consumers is sparse, all others are high.
/// From the distances it predicts what share of the work a coalescer saves, and it replays the requests to check
/// that. docs/analyze.md says how to read the figures.
///
/// FILE has JSON lines, CSV with names in its first line, or an access log in the common or combined form, plain or
/// in gzip. Its name tells (.jsonl, .ndjson, .json, .csv, also before .gz), or else its first line does; --format
/// decides. A line that is no request, or has no key, is left out. Standard error says how many those are and what
/// is wrong with the first of them. Blank lines do not count. A line longer than 8MiB ends the command.
///
/// The memory it needs depends on the number of different keys only, whatever their length: about 100 bytes each.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate analyze orders.jsonl --key user.id
  lockgate analyze clicks.csv.gz --key campaign --consumers 50 --svg clicks.svg
  zcat access.log.*.gz | lockgate analyze - --key path --time time --work 200ms
  lockgate analyze orders.jsonl --key user.id --json | jq .classes.high.request_share")]
pub(crate) struct Analyze {
    /// What to read; - is standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Field with the key
    ///
    /// In JSON a path: names of members, and indexes of arrays from 0 on, with dots between them, such as user.id or
    /// items.0.sku. The value is a string, a number or a boolean; numbers are compared as they are written. In CSV a
    /// column. In an access log host, ident, user, request, method, target (with its query), path (without), query,
    /// protocol, status, bytes, referer, agent or time.
    #[arg(long, short, value_name = "FIELD")]
    pub(crate) key: String,

    /// Consumers that work at the same time, 1 to 1000000
    #[arg(long, short, value_name = "N", default_value = "10", value_parser = consumers)]
    pub(crate) consumers: NonZeroU64,

    /// What the lines are: jsonl, csv or access
    #[arg(long, value_enum, value_name = "FORMAT", hide_possible_values = true)]
    pub(crate) format: Option<Format>,

    /// Field with the time of a request: replay at these times too
    ///
    /// A number since 1970 in --time-unit, a time of RFC 3339, or one of an access log. If a request's time is before
    /// that of a line above it, the replay has it come at that line's time. The command says how many those are.
    #[arg(long, value_name = "FIELD", requires = "work")]
    pub(crate) time: Option<String>,

    /// What a number in the field of --time counts: s, ms, us or ns
    #[arg(
        long,
        value_enum,
        value_name = "UNIT",
        default_value = "s",
        hide_possible_values = true,
        requires = "time"
    )]
    pub(crate) time_unit: TimeUnit,

    /// How long the work of a request takes in the replay at recorded times, 1ms to 1d
    #[arg(long, value_name = "TIME", requires = "time", value_parser = work)]
    pub(crate) work: Option<Duration>,

    /// Different keys to keep, 1 to 1000000000; the command fails at one more
    #[arg(long, value_name = "N", default_value_t = 10_000_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub(crate) keys_max: u32,

    /// End at the first line that is no request, or whose time goes back
    #[arg(long)]
    pub(crate) strict: bool,

    /// Draw the least distances of keys into this file, which must not exist
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print a JSON object: requests, keys, consumers, classes, distances, predicted, replayed, left_out
    #[arg(long)]
    pub(crate) json: bool,
}

fn consumers(text: &str) -> Result<NonZeroU64, String> {
    let number = text.parse().ok();
    let number = number.filter(|number: &NonZeroU64| number.get() <= 1_000_000);
    number.ok_or_else(|| format!("{text:?} is no number from 1 to 1000000"))
}

fn work(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if (Duration::from_millis(1)..=Duration::from_secs(86400)).contains(&time) {
        return Ok(time);
    }
    Err(format!("{text:?} is not from 1ms to 1d"))
}
