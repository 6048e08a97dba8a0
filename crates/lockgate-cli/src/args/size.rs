//! `lockgate size`.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use lockgate_producer::sizing::{Service, Stage};

use crate::units::{duration, per_second, size};

/// Tell which stage of a pipeline overflows, and how large its buffer must be
///
/// A pipeline is a row of tanks: records flow into the buffer of a stage, its workers take them out and hand them to
/// the next one. From rates, workers and buffers the command computes how full each buffer is in the long run, how it
/// fills in a burst or while a stage stands still, when it overflows, and how soon it drains. A buffer is large enough
/// if it overflows once in a thousand times. docs/sizing.md has the formulas.
///
/// The stages come from --stage, from a JSON file of a model or of what --json printed, or from the figures of a running
/// producer: --from then names an address that serves them, such as the /metrics of `lockgate forward`, which is read a
/// hundred times while --over lasts, or files of them in their order, evenly spaced over --over. The model has one stage
/// then, `sink`, and before it `work` if the figures are those of a pipeline, as of `lockgate forward --from QUEUE`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("pipeline").required(true).args(["stages", "from"])))]
#[command(after_help = "\
Examples:
  lockgate size --arrivals 800 --stage parse=500x4 --stage sink=40msx2x100:10000 --outage 60s
  lockgate size --arrivals 800 --stage sink=500x2:50000 --burst 5x30s --record-bytes 1KiB --svg depths.svg
  lockgate size --from model.json --simulate
  lockgate size --from http://127.0.0.1:9400/metrics --over 1m --outage 10m --json | jq .stages[0].needs")]
pub(crate) struct Size {
    /// Records that arrive in a second, or as 100/s or 6000/m, in place of those of --from
    #[arg(long, short, value_name = "RATE", value_parser = rate, required_unless_present = "from")]
    pub(crate) arrivals: Option<f64>,

    /// A stage; several in the order in which records pass them
    ///
    /// NAME=RATExWORKERS[xBATCH][:BUFFER]. RATE is the number of calls that a worker makes in a second, also as 100/s or
    /// 6000/m, or how long one takes (2ms, 1.5ms, 80us). A call takes one record, or up to BATCH. BUFFER is the number of records that may
    /// wait; without it the command says what it should be.
    #[arg(long = "stage", short, value_name = "STAGE", value_parser = stage)]
    pub(crate) stages: Vec<Stage>,

    /// Read the model from a JSON file, or make it of the figures of a producer: a file or an http:// address
    #[arg(long, short, value_name = "FILE|URL", conflicts_with = "stages")]
    pub(crate) from: Vec<String>,

    /// Producer whose figures to take, if there are several
    #[arg(
        long,
        value_name = "NAME",
        requires = "from",
        conflicts_with = "stages"
    )]
    pub(crate) producer: Option<String>,

    /// Batches that the producer may send at the same time [default: as its figures say, or else 4]
    #[arg(long, value_name = "N", requires = "from", conflicts_with = "stages")]
    pub(crate) workers: Option<u32>,

    /// Time over which figures are read, or between the first and the last file, 1s to 1d
    #[arg(long, value_name = "TIME", requires = "from", conflicts_with = "stages", default_value = "10s", value_parser = over)]
    pub(crate) over: Duration,

    /// Have a stage stand still for so long, up to 30d: the last one, or the one named as in parse:60s
    #[arg(long, value_name = "[NAME:]TIME", value_parser = outage)]
    pub(crate) outage: Option<(Option<String>, Duration)>,

    /// Have so many times the arrivals for so long, up to 30d, as in 5x30s
    #[arg(long, value_name = "NxTIME", value_parser = burst)]
    pub(crate) burst: Option<(f64, Duration)>,

    /// Bytes of a record, to tell sizes in bytes too
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) record_bytes: Option<u64>,

    /// Simulate the pipeline record by record too, with random numbers from this seed
    #[arg(long, value_name = "SEED", num_args = 0..=1, default_missing_value = "1")]
    pub(crate) simulate: Option<u64>,

    /// Draw the depths of the buffers over time into this file, which must not exist
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print a JSON object: the report, with model, and simulated if it was
    #[arg(long)]
    pub(crate) json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    per_second(text).ok_or_else(|| {
        format!("{text:?} is no rate of records: write how many a second, or 100/s, 6000/m")
    })
}

/// Reads `NAME=RATExWORKERS[xBATCH][:BUFFER]`. Ranges are checked with the whole model.
fn stage(text: &str) -> Result<Stage, String> {
    let bad = || {
        format!(
            "{text:?} is no stage: write NAME=RATExWORKERS[xBATCH][:BUFFER], such as sink=40msx2x100:10000"
        )
    };
    let (name, rest) = text.split_once('=').ok_or_else(bad)?;
    let (speed, buffer) = match rest.split_once(':') {
        Some((speed, buffer)) => (speed, Some(buffer.parse().map_err(|_| bad())?)),
        None => (rest, None),
    };
    let mut parts = speed.split('x');
    let service = parts.next().and_then(service).ok_or_else(bad)?;
    let workers = parts.next().ok_or_else(bad)?.parse().map_err(|_| bad())?;
    let batch = match parts.next() {
        Some(batch) => batch.parse().map_err(|_| bad())?,
        None => 1,
    };
    if parts.next().is_some() {
        return Err(bad());
    }
    Ok(Stage {
        batch,
        buffer,
        ..Stage::new(name, service, workers)
    })
}

/// A number of calls in a second, or the time of one.
fn service(text: &str) -> Option<Service> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let timed = units
        .into_iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    // `100/s` ends in a unit too, and is no number before it.
    match timed.and_then(|(number, seconds)| Some(number.parse::<f64>().ok()? * seconds)) {
        Some(seconds) => Some(Service::Seconds(seconds)),
        None => per_second(text).map(Service::PerSecond),
    }
}

fn over(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if (Duration::from_secs(1)..=Duration::from_secs(86400)).contains(&time) {
        return Ok(time);
    }
    Err(format!("{text:?} is not from 1s to 1d"))
}

fn outage(text: &str) -> Result<(Option<String>, Duration), String> {
    match text.rsplit_once(':') {
        Some((name, time)) => Ok((Some(name.to_owned()), duration(time)?)),
        None => Ok((None, duration(text)?)),
    }
}

fn burst(text: &str) -> Result<(f64, Duration), String> {
    let bad = || format!("{text:?} is no burst: write NxTIME, such as 5x30s");
    let (times, time) = text.split_once('x').ok_or_else(bad)?;
    Ok((times.parse().map_err(|_| bad())?, duration(time)?))
}
