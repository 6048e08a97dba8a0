//! The commands about records.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use lockgate_core::RecordName;

use crate::{
    settings::ClientFlags,
    units::{duration, record_lease},
};

/// Keep small versioned values that may be leased: who leads, where a job stands
///
/// Each write names the version that it replaces, so of two writers one is told. While a record is leased only the
/// holder of the lease can write it. The epoch of a lease is higher than that of every earlier one: a fencing token.
#[derive(Debug, Subcommand)]
pub(crate) enum Record {
    List(RecordList),
    Get(RecordGet),
    Put(RecordPut),
    Delete(RecordDelete),
    Lease(RecordLease),
    Extend(RecordExtend),
    Release(RecordRelease),
    Watch(RecordWatch),
}

impl Record {
    pub(crate) fn settings(&self) -> &ClientFlags {
        match self {
            Self::List(args) => &args.settings,
            Self::Get(args) => &args.record.settings,
            Self::Put(args) => &args.record.settings,
            Self::Delete(args) => &args.record.settings,
            Self::Lease(args) => &args.record.settings,
            Self::Extend(args) => &args.record.settings,
            Self::Release(args) => &args.record.settings,
            Self::Watch(args) => &args.record.settings,
        }
    }
}

/// Which record.
#[derive(Debug, Args)]
pub(crate) struct OneRecord {
    /// The record's name: 1 to 512 bytes of any text
    #[arg(value_name = "NAME", value_parser = record_name)]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// List records
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate record list
  lockgate record list reports/ --json | jq -r .name")]
pub(crate) struct RecordList {
    /// Only names that start with this
    #[arg(value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,

    /// Stop after this many records
    #[arg(long, short, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: u64,

    /// Print one JSON object for each record
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Print the value of a record
///
/// Prints the bytes of the value and nothing else. With --json the command prints the record: value, version,
/// revision, when it was written, and the lease. If there is no such record the command exits with 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate record get reports/checkpoint
  lockgate record get reports/checkpoint --json | jq .version")]
pub(crate) struct RecordGet {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) record: OneRecord,
}

/// Write a record
///
/// Without --replaces or --any the record must not exist. If it has another version than the command names, or
/// somebody else holds its lease, nothing is written and the command exits with 4. Prints the new version.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate record put reports/checkpoint 'page 7'
  lockgate record put reports/checkpoint 'page 8' --replaces 1
  lockgate record put reports/checkpoint 'page 9' --any
  lockgate record put reports/checkpoint --file state.bin --replaces 3 --epoch \"$epoch\"")]
pub(crate) struct RecordPut {
    /// The version that the value replaces
    #[arg(long, value_name = "VERSION", conflicts_with = "any")]
    pub(crate) replaces: Option<u64>,

    /// Replace whatever version there is, or none
    #[arg(long)]
    pub(crate) any: bool,

    /// Epoch of the lease, if the record is leased
    #[arg(long, value_name = "EPOCH")]
    pub(crate) epoch: Option<u64>,

    /// File whose bytes are the value; - is standard input
    #[arg(long, short, value_name = "FILE", conflicts_with = "value")]
    pub(crate) file: Option<PathBuf>,

    /// Print a JSON object: version, revision
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) record: OneRecord,

    /// The value, up to 256KiB
    #[arg(value_name = "VALUE", required_unless_present = "file")]
    pub(crate) value: Option<String>,
}

/// Delete a record, and its lease with it
///
/// If the record has another version than the command names, or somebody else holds its lease, nothing is deleted
/// and the command exits with 4. If there is no such record, it exits with 3.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["replaces", "any"])))]
#[command(after_help = "\
Examples:
  lockgate record delete reports/checkpoint --replaces 3
  lockgate record delete reports/checkpoint --any")]
pub(crate) struct RecordDelete {
    /// The version that the record must have
    #[arg(long, value_name = "VERSION")]
    pub(crate) replaces: Option<u64>,

    /// Delete whatever version there is
    #[arg(long)]
    pub(crate) any: bool,

    /// Epoch of the lease, if the record is leased
    #[arg(long, value_name = "EPOCH")]
    pub(crate) epoch: Option<u64>,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) record: OneRecord,
}

/// Lease a record
///
/// A record that does not exist is made, with an empty value. Prints the epoch of the lease. The holder of a lease
/// is given it again, with a new end, so --holder must be a name that nobody else uses. If somebody else holds the
/// lease the command waits for as long as --wait says, then exits with 4.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate record lease reports/leader --holder \"$HOSTNAME-$$\" --lease 1m
  epoch=$(lockgate record lease nightly --holder \"$HOSTNAME-$$\" --lease 1h --wait 10m)")]
pub(crate) struct RecordLease {
    /// For whom: a name that only this holder uses
    #[arg(long, value_name = "NAME")]
    pub(crate) holder: String,

    /// How long the lease lasts, 1ms to 12h
    #[arg(long, short, value_name = "TIME", value_parser = record_lease)]
    pub(crate) lease: Duration,

    /// Wait this long for the end of somebody else's lease
    #[arg(long, short, value_name = "TIME", value_parser = duration, default_value = "0s", hide_default_value = true)]
    pub(crate) wait: Duration,

    /// Delete the record when the lease ends, whichever way
    #[arg(long)]
    pub(crate) delete_at_end: bool,

    /// Print a JSON object: the record with its lease
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) record: OneRecord,
}

/// Let the lease of a record last longer, or end earlier
///
/// If the lease has ended the command exits with 4: somebody else may hold the record.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate record extend reports/leader --epoch \"$epoch\" --lease 1m")]
pub(crate) struct RecordExtend {
    /// Epoch of the lease
    #[arg(long, value_name = "EPOCH")]
    pub(crate) epoch: u64,

    /// How long the lease lasts from now on, 1ms to 12h
    #[arg(long, short, value_name = "TIME", value_parser = record_lease)]
    pub(crate) lease: Duration,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) record: OneRecord,
}

/// End the lease of a record
///
/// Anybody who knows the epoch may do it. If the lease has ended already the command exits with 4.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate record release reports/leader --epoch \"$epoch\"")]
pub(crate) struct RecordRelease {
    /// Epoch of the lease
    #[arg(long, value_name = "EPOCH")]
    pub(crate) epoch: u64,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) record: OneRecord,
}

/// Wait until a record changes, and print it
///
/// Prints the record as soon as it is another than --seen says, or that there is none any more: on a terminal as
/// text, into a pipe or a file, or with --json, as a JSON object ({"name": ..., "deleted": true} where it is gone). A
/// change is a write, a deletion, or a lease that begins or ends. Of changes that follow one another quickly, the
/// last is printed. Without --seen the command prints the record as it is, if it exists.
///
/// With --follow the command goes on until it is interrupted, and asks a server that does not answer again for as
/// long as --timeout says. Without it, the command ends with the first change, or after --wait with exit code 6.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate record watch reports/leader --follow | jq -r .lease.holder
  lockgate record watch reports/checkpoint --seen \"$revision\" --wait 1h")]
pub(crate) struct RecordWatch {
    /// Revision that was seen
    #[arg(long, value_name = "REVISION")]
    pub(crate) seen: Option<u64>,

    /// Wait this long for a change
    #[arg(long, short, value_name = "TIME", value_parser = duration, default_value = "20s", conflicts_with = "follow")]
    pub(crate) wait: Duration,

    /// Print each change until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Print a JSON object for each change, also on a terminal
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) record: OneRecord,
}

fn record_name(text: &str) -> Result<String, String> {
    let name = RecordName::new(text).map_err(|error| error.to_string())?;
    Ok(name.to_string())
}
