//! The commands about ledgers.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use crate::{settings::ClientFlags, units::duration};

/// Keep event logs with one total order, without a gap and without a duplicate
///
/// Events have the sequence ids 1, 2, 3. Whatever fails uses up none. A unique id is remembered for ever, so an event
/// that comes twice is there once. LEDGER is the name of a ledger of the server. All commands but list, create and
/// delete also take the URL of a ledger in a database, such as postgres://USER:PASSWORD@HOST/DATABASE?ledger=NAME.
#[derive(Debug, Subcommand)]
pub(crate) enum Ledger {
    Create(LedgerCreate),
    List(LedgerList),
    Describe(LedgerDescribe),
    Append(LedgerAppend),
    Read(LedgerRead),
    Follow(LedgerFollow),
    Find(LedgerFind),
    Verify(LedgerVerify),
    Export(LedgerExport),
    Readers(LedgerReaders),
    Seal(LedgerSeal),
    Trim(LedgerTrim),
    Delete(LedgerDelete),
}

impl Ledger {
    pub(crate) fn settings(&self) -> &ClientFlags {
        match self {
            Self::Create(args) => &args.settings,
            Self::List(args) => &args.settings,
            Self::Describe(args) => &args.ledger.settings,
            Self::Append(args) => &args.ledger.settings,
            Self::Read(args) => &args.ledger.settings,
            Self::Follow(args) => &args.ledger.settings,
            Self::Find(args) => &args.ledger.settings,
            Self::Verify(args) => &args.ledger.settings,
            Self::Export(args) => &args.ledger.settings,
            Self::Readers(args) => &args.ledger.settings,
            Self::Seal(args) => &args.ledger.settings,
            Self::Trim(args) => &args.ledger.settings,
            Self::Delete(args) => &args.settings,
        }
    }
}

/// Which ledger.
#[derive(Debug, Args)]
pub(crate) struct OneLedger {
    /// The ledger: its name, or the URL of one in a database
    #[arg(value_name = "LEDGER", value_parser = ledger)]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Make a ledger
///
/// If there is one of that name with the same options, nothing changes. If its options are others, the command exits
/// with 4.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger create trades
  lockgate ledger create trades --hashed --retention 3650d")]
pub(crate) struct LedgerCreate {
    /// The ledger's name
    #[arg(value_name = "NAME", value_parser = ledger_name)]
    pub(crate) name: String,

    /// Give each event a running hash over the hash before it and its payload (BLAKE3)
    #[arg(long)]
    pub(crate) hashed: bool,

    /// Keep events at least this long [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) retention: Option<Duration>,

    /// Print a JSON object: the ledger
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// List ledgers
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger list
  lockgate ledger list trades- --json | jq -r .name")]
pub(crate) struct LedgerList {
    /// Only names that start with this
    #[arg(value_name = "PREFIX", value_parser = ledger_prefix)]
    pub(crate) prefix: Option<String>,

    /// Stop after this many ledgers
    #[arg(long, short, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: u64,

    /// Print one JSON object for each ledger
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Show the head of a ledger
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger describe trades
  lockgate ledger describe trades --json | jq .head.sequence_id")]
pub(crate) struct LedgerDescribe {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ledger: OneLedger,
}

/// Append events
///
/// Appends one event: PAYLOAD. Without it the command reads events from standard input or --lines, one JSON object a
/// line: {"payload": ..., "unique_id": ...}. A payload may be any JSON value: a string stands for its text, anything
/// else for its compact JSON. For bytes that are not text, write them in base64 and add "payload_encoding": "base64".
/// With --text each line is the payload of one event, as it is. Lines that `lockgate ledger export` has printed are
/// taken too: their events get new sequence ids, times, epochs and hashes.
///
/// The command prints the sequence id of each event on a line of its own, in order; of a duplicate, that of the first
/// event. It appends up to 1000 lines at a time, all of them or none. At the first line that is wrong it appends the
/// lines before it and nothing after it, names file and line, and exits with 1.
///
/// With --expect nothing is appended unless the ledger ends at that event, and then nobody else appends in between: at
/// the first event of somebody else the command exits with 4. If an answer is lost, the command appends again where
/// that is harmless: with --expect, or if each event has a unique id. Otherwise, and if it cannot find out, it says
/// which lines are in doubt, and exits with 5.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger append trades 'buy 7' --unique-id order-17
  lockgate ledger append trades --create < trades.jsonl
  jq -c '{payload: ., unique_id: .id}' trades.json | lockgate ledger append trades --expect 0
  tail -f trades.log | lockgate ledger append trades --text")]
pub(crate) struct LedgerAppend {
    /// Unique id of the event, by which the ledger knows it if it comes again
    #[arg(long, value_name = "ID", requires = "payload")]
    pub(crate) unique_id: Option<String>,

    /// File with one JSON object a line; - is standard input
    #[arg(long, short, value_name = "FILE", conflicts_with = "payload")]
    pub(crate) lines: Option<PathBuf>,

    /// Each line is a payload, as it is
    #[arg(long, conflicts_with = "payload")]
    pub(crate) text: bool,

    /// Term of the writer: the ledger refuses those below the highest it has seen
    #[arg(long, value_name = "EPOCH", default_value_t = 0)]
    pub(crate) epoch: u64,

    /// Sequence id of the last event that must be there; 0: there must be none
    #[arg(long, value_name = "HEAD")]
    pub(crate) expect: Option<u64>,

    /// Make the ledger if it does not exist
    #[arg(long)]
    pub(crate) create: bool,

    /// Print one JSON object for each event: sequence_id, duplicate
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ledger: OneLedger,

    /// The payload of the one event
    #[arg(value_name = "PAYLOAD")]
    pub(crate) payload: Option<String>,
}

/// Read events
///
/// Prints each event on a line: on a terminal as text, into a pipe or a file, or with --json, as a JSON object. If a
/// payload is not text, its JSON has it in base64 and says "payload_encoding": "base64". The command ends with the last
/// event that is there. If the first ones that it should print are trimmed, it prints nothing and exits with 4.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger read trades --max 10
  lockgate ledger read trades --after 4711 --wait 20s | jq -r .payload")]
pub(crate) struct LedgerRead {
    /// Only events behind this one [default: behind the trimmed ones]
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<u64>,

    /// Stop after this many events
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: Option<u64>,

    /// Wait this long for a first event, up to 60s
    #[arg(long, short, value_name = "TIME", value_parser = duration, default_value = "0s", hide_default_value = true)]
    pub(crate) wait: Duration,

    /// Print one JSON object for each event, also on a terminal
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ledger: OneLedger,
}

/// Print events as they come
///
/// Prints as `lockgate ledger read` does, and goes on until it is interrupted, or at the end of a sealed ledger. It
/// checks that each event follows the one before it, and exits with 1 at the first that does not. It asks a server that
/// does not answer again for as long as --timeout says.
///
/// With --reader the ledger keeps how far the command is, under that name: it begins behind what was printed last, and
/// moves the reader when standard output has taken what it has printed. So after a crash the last events may be printed
/// again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger follow trades | jq -r .payload
  lockgate ledger follow trades --reader audit >> audit.jsonl")]
pub(crate) struct LedgerFollow {
    /// Only events behind this one [default: behind the trimmed ones]
    #[arg(long, value_name = "ID", conflicts_with = "reader")]
    pub(crate) after: Option<u64>,

    /// Begin where this reader is, and move it
    #[arg(long, value_name = "NAME")]
    pub(crate) reader: Option<String>,

    /// Print one JSON object for each event, also on a terminal
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ledger: OneLedger,
}

/// Find the event with a unique id
///
/// Prints its sequence id. If no event has had the unique id, the command exits with 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger find trades order-17")]
pub(crate) struct LedgerFind {
    /// Print a JSON object: sequence_id
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ledger: OneLedger,

    /// The unique id
    #[arg(value_name = "ID")]
    pub(crate) unique_id: String,
}

/// Check that events follow one another
///
/// Reads the events and checks of each that its sequence id is one more than that before it, that time and epoch do
/// not go back, and, where the ledger is hashed, that its hash is right. The last event must agree with the head. At
/// the first thing that does not hold, or the first event that is damaged, the command prints it as evidence and
/// exits with 1. It exits with 4 if not all of the range is there; from behind the last event on there is nothing to
/// check, and that is no error.
///
/// To compare two ledgers, compare the hash that both have at one event.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger verify trades
  lockgate ledger verify trades --from 1000 --to 2000 --json | jq -r .hash")]
pub(crate) struct LedgerVerify {
    #[command(flatten)]
    pub(crate) range: Range,

    /// Print a JSON object: from, to, events, hash; or evidence
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ledger: OneLedger,
}

/// Which events.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Range {
    /// First event [default: the first that is kept]
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) from: Option<u64>,

    /// Last event [default: the last that is there when the command begins]
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) to: Option<u64>,
}

/// Print a range of events, for other programs
///
/// JSON lines have sequence_id, previous_id, unique_id, time, epoch, hash, payload and, where the payload is not
/// text, "payload_encoding": "base64". CSV has the same columns behind a header line; what needs quotation marks has
/// them, and lines end with CR and LF, as RFC 4180 says. For a spreadsheet add --csv-guard: others may have chosen
/// unique ids and payloads, and a spreadsheet runs what looks like a formula. The command checks that each event
/// follows the one before it, as `lockgate ledger verify` does, and exits with 1 at the first that does not. It exits
/// with 4 if not all of the range is there; from behind the last event on there is nothing to print, and that is no
/// error.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger export trades > trades.jsonl
  lockgate ledger export trades --format csv --from 1 --to 100000 > trades.csv
  lockgate ledger export trades --format csv --csv-guard > for-a-spreadsheet.csv
  lockgate ledger export trades | lockgate ledger append trades-2 --create")]
pub(crate) struct LedgerExport {
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ExportFormat::Jsonl, hide_possible_values = true, help = "Form of the output: jsonl or csv")]
    pub(crate) format: ExportFormat,

    /// In CSV, put an apostrophe before each cell that begins with =, +, -, @ or a control character of a line
    ///
    /// A spreadsheet takes such a cell for a formula. With the apostrophe it is text, and not what the event has, so
    /// leave the option out for other programs.
    #[arg(long)]
    pub(crate) csv_guard: bool,

    #[command(flatten)]
    pub(crate) range: Range,

    #[command(flatten)]
    pub(crate) ledger: OneLedger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    Jsonl,
    Csv,
}

/// Show how far readers are, move them, and forget them
///
/// Prints each reader with the last event that it is done with, and how many are behind that. A reader is made when it
/// is moved for the first time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger readers trades
  lockgate ledger readers trades --move audit --to 4711
  lockgate ledger readers trades --forget audit")]
pub(crate) struct LedgerReaders {
    /// Move this reader to --to
    #[arg(long = "move", value_name = "NAME", requires = "to")]
    pub(crate) moved: Option<String>,

    /// The last event that the reader is done with
    #[arg(long, value_name = "ID", requires = "moved")]
    pub(crate) to: Option<u64>,

    /// Forget this reader; if there is none, the command exits with 3
    #[arg(long, value_name = "NAME", conflicts_with = "moved")]
    pub(crate) forget: Option<String>,

    /// Print one JSON object for each reader: reader, sequence_id, behind
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ledger: OneLedger,
}

/// End a ledger: nothing is appended any more
///
/// What is there can still be read, trimmed and deleted. Nothing takes a seal off.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger seal trades-2025 --yes")]
pub(crate) struct LedgerSeal {
    /// Term of the writer
    #[arg(long, value_name = "EPOCH", default_value_t = 0)]
    pub(crate) epoch: u64,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// Print a JSON object: the head
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ledger: OneLedger,
}

/// Let go of the events before one
///
/// Unique ids stay remembered, and all other events keep their places.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger trim trades --before 4711 --yes")]
pub(crate) struct LedgerTrim {
    /// The first event that stays; one more than the last event lets go of all
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) before: u64,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// Print a JSON object: the head
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) ledger: OneLedger,
}

/// Delete a ledger with all its events
///
/// Its unique ids and readers are forgotten too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ledger delete trades-2025 --yes")]
pub(crate) struct LedgerDelete {
    /// The ledger's name
    #[arg(value_name = "NAME", value_parser = ledger_name)]
    pub(crate) name: String,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

fn ledger(text: &str) -> Result<String, String> {
    crate::ledger::check(text)?;
    Ok(text.to_owned())
}

fn ledger_prefix(text: &str) -> Result<String, String> {
    match text.contains("://") {
        true => Err(
            "this lists ledgers of the server: each ledger in a database has a URL of its own"
                .to_owned(),
        ),
        false => Ok(text.to_owned()),
    }
}

fn ledger_name(text: &str) -> Result<String, String> {
    match text.contains("://") {
        true => Err("this takes the name of a ledger of the server".to_owned()),
        false => ledger(text),
    }
}
