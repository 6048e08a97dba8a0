//! Every command and flag, defined once: parsing, help, completions and `docs/cli.md` come from here.

mod admin;
mod queue;
mod setting_flags;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use lockgate_core::ShardId;

pub(crate) use admin::*;
pub(crate) use queue::*;
pub(crate) use setting_flags::{Given, SettingFlags};

use crate::{
    exit::Exit,
    output::Color,
    settings::{AllFlags, ClientFlags, ServeFlags},
    units::{duration, queue_name, receive_lease, size},
};

/// A durable keyed queue: messages of one key in order, one holder at a time; every other key flows.
#[derive(Debug, Parser)]
#[command(
    name = "lockgate",
    bin_name = "lockgate",
    version,
    after_help = "Start with `lockgate serve` in one terminal and `lockgate send --help` in another.",
    after_long_help = after_long_help(),
)]
pub(crate) struct Cli {
    /// When to use colour
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Color::Auto, hide_possible_values = true, help = "When to use colour: auto, always or never")]
    pub(crate) color: Color,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Serve(Serve),
    Send(Send),
    Receive(Receive),
    Ack(Ack),
    Peek(Peek),
    Nack(Nack),
    Defer(Defer),
    Extend(Extend),
    Reject(Reject),
    Transact(Transact),
    Cancel(Cancel),
    Reschedule(Reschedule),
    #[command(subcommand)]
    Queue(Queue),
    #[command(subcommand)]
    Key(Key),
    #[command(subcommand)]
    Dlq(Dlq),
    Status(Status),
    Backup(Backup),
    Restore(Restore),
    Check(Check),
    Dump(Dump),
    Bench(Bench),
    #[command(subcommand)]
    Config(Config),
    Completions(Completions),
}

/// Run the queue server
///
/// Opens the data folder, recovers what is in it, and serves the Amazon SQS API over HTTP, with
/// /healthz, /readyz and /metrics beside it. SIGTERM, SIGINT or SIGQUIT ends it gracefully: requests
/// under way are answered, waiting receives end, everything is synced; a second one ends it at once, as
/// does the first one before it is ready. Nothing is lost by either. SIGHUP has access keys and
/// certificate read again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate serve
  lockgate serve --listen 127.0.0.1:9400 --data /var/lib/lockgate
  LOCKGATE_LOG_LEVEL=debug lockgate serve --config lockgate.toml")]
pub(crate) struct Serve {
    /// Start although parts of the log that are needed are not there, and drop their messages for good
    ///
    /// Without it such a start changes nothing, names each file (or the rows, in a database), says how many
    /// messages of which queues the last snapshot knows in it, and ends with exit code 9: put the files back and
    /// start again, or restore a backup. With it those messages are counted as dropped by damage. What was done
    /// in a file that no snapshot covers is lost: the start's log says how many records that are. If queues were
    /// created in it, messages to them in other files are lost with it; the refusal, `lockgate check` and the
    /// start's log say how many. Putting the file back later brings nothing back. It holds for one start, so
    /// there is neither a variable nor a key in the configuration file for it; where nothing is missing it does
    /// nothing. Damaged bytes need no such flag: a start sets them aside and counts them.
    #[arg(long)]
    pub(crate) accept_loss: bool,

    #[command(flatten)]
    pub(crate) settings: ServeFlags,
}

/// Send messages
///
/// One message, whose body is BODY, or the bytes of --file, or with --raw those of standard input. Without any
/// of these many messages are read from standard input or --lines: one JSON object a line, {"body": ...,
/// "key": ..., "group": ..., "unique_id": ..., "delay_ms": ..., "headers": {...}}. Only "body" is needed, and
/// "key" where the queue is keyed. A body may be any JSON value: a string is sent as its text, anything else as
/// compact JSON; for bytes that are no text there is "body_encoding": "base64". A header is a string, a number,
/// or {"type": ..., "value": ...} (for binary {"type": "Binary", "value": ..., "encoding": "base64"}). A line
/// also takes "due_at", "time_to_live_ms", "content_type", "trace_context" and "level".
///
/// Lines are sent in order, up to 100 in a call. At the first line that is wrong or refused the command
/// stops, names file and line, says how many were sent before, and exits with 1.
///
/// A message for a keyed queue without a unique id gets a random one, so that a repetition after a
/// lost connection is recognised as such. Messages for an unkeyed queue are not sent again when it is
/// unknown whether they arrived: the command says which, and exits with 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate send orders.fifo --key user-42 'post'
  lockgate send mail --delay 5m --header to=eve 'see you'
  lockgate send photos --file cat.jpg
  gzip -c notes.txt | lockgate send notes --raw
  lockgate send orders.fifo --create --lines orders.jsonl
  jq -c '{body: ., key: .user}' events.json | lockgate send orders.fifo")]
pub(crate) struct Send {
    /// Queue to send to
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    /// The message's body; without it, --file and --raw messages are read from standard input
    #[arg(value_name = "BODY")]
    pub(crate) body: Option<String>,

    /// File whose bytes are the body of one message
    #[arg(long, short, value_name = "FILE", conflicts_with = "body")]
    pub(crate) file: Option<PathBuf>,

    /// All of standard input, whatever its bytes are, is the body of one message
    #[arg(long, short, conflicts_with_all = ["body", "file"])]
    pub(crate) raw: bool,

    /// The body of the one message is given in base64
    #[arg(long, conflicts_with = "lines")]
    pub(crate) base64: bool,

    /// File with one JSON object a line; - is standard input
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["body", "file", "raw"])]
    pub(crate) lines: Option<PathBuf>,

    /// Ordering key, for a keyed queue; messages that bring none get this one
    #[arg(long, short, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Group that takes turns with others, without order, for an unkeyed queue; messages that bring none get this one
    #[arg(long, short, value_name = "GROUP", conflicts_with = "key")]
    pub(crate) group: Option<String>,

    /// Unique id for deduplication; for one message only
    #[arg(long, value_name = "ID", conflicts_with = "lines")]
    pub(crate) unique_id: Option<String>,

    /// Deliver no earlier than after this time; for messages that say nothing else
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) delay: Option<Duration>,

    /// Header of the message, NAME=VALUE or NAME:TYPE=VALUE; repeatable
    #[arg(long, short = 'H', value_name = "NAME=VALUE", value_parser = typed_pair)]
    pub(crate) header: Vec<(String, String, String)>,

    /// Create the queue if it does not exist
    #[arg(long)]
    pub(crate) create: bool,

    /// Print one JSON object for each message: id, sequence, duplicate
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

impl Send {
    /// Whether it is not one message whose body is named.
    pub(crate) fn reads_lines(&self) -> bool {
        self.body.is_none() && self.file.is_none() && !self.raw && !self.base64
    }
}

/// Receive messages
///
/// Prints one JSON object a line, as the server gives it: id, key (of an unkeyed queue: group), body, attempt,
/// sequence, sent_at, headers, receipt and others. A body that is no text is there in base64, with
/// "body_encoding": "base64". Each message is leased: nobody else gets it, and nothing after it of its key, until
/// it is settled or the lease has ended. Settle it here, or later with `lockgate ack`. If nothing came,
/// standard error says why: the queue is empty or paused, all is delayed, or all keys are held.
///
/// With --ack a message is deleted after its line has been written: to a terminal, or to a file and from
/// there to the disk. Into a pipe --ack is refused, because nobody can know what the reader of a pipe has
/// taken; what it has not would be lost. For that there is --exec.
///
/// With --nack all messages go back at once when the last one was received, before they are printed. Looking
/// costs no attempt and keeps no lease.
///
/// With --exec a command runs for each message, by `sh -c`. The body is its standard input, byte for byte.
/// If it exits with 0 the message is deleted; if it does not, or dies of a signal, the message comes again
/// after --retry-delay, and the attempt counts. The lease is extended for as long as the command runs, up
/// to 12h. With --concurrency as many run side by side, but messages of one key one after the other, in
/// order. No message is leased that has to wait for its command. Without --follow the run ends when the
/// queue is empty or only messages come whose command has failed. Those are not tried again in the same run:
/// one that comes again before its end is put back for another 1s, which counts no attempt.
///
/// The command finds in its environment: LOCKGATE_QUEUE, LOCKGATE_MESSAGE_ID, LOCKGATE_KEY or
/// LOCKGATE_GROUP, LOCKGATE_UNIQUE_ID, LOCKGATE_SEQUENCE, LOCKGATE_ATTEMPT, LOCKGATE_SENT_AT,
/// LOCKGATE_RECEIPT, LOCKGATE_CONTENT_TYPE, LOCKGATE_TRACE_CONTEXT, LOCKGATE_ENDPOINT, and the value of
/// each header as LOCKGATE_MESSAGE_HEADER_NAME, where every character of the name but ASCII letters and digits
/// is `_`. What the message does not have is not set. Nor is a header's value with a NUL byte, of more
/// than 64KiB, or beyond 256KiB of them together, nor are two whose names become the same: LOCKGATE_OMITTED
/// has their names, and `lockgate peek --id` their values.
///
/// SIGINT or SIGTERM ends a run of commands when those that run have ended; a second one kills them, with
/// the processes they have started, and their messages come again. A command that cannot be started (exit code 126 or
/// 127), or that dies because nobody reads standard output any more, ends the run too: its message comes
/// again, and no other is tried. Exit codes with --exec: 0 if all messages were deleted; 1 if a command
/// failed, or a lease was lost before its command ended. A message that is gone when its command ends (the
/// command settled it itself, somebody purged the queue) is counted apart and is no failure.
///
/// Without --exec, SIGINT or SIGTERM ends the command once the messages that were received are printed; those
/// that nobody reads are put back, at no attempt's cost.
///
/// With --follow a server that does not answer is asked again for as long as --timeout says; that it is away,
/// and that it is back, is said on standard error, as is why nothing comes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate receive orders.fifo --wait 5s --ack
  lockgate receive orders.fifo --follow --exec './ship-order \"$LOCKGATE_KEY\"'
  lockgate receive mail --follow --concurrency 8 --retry-delay 1m --exec 'curl -fsS --data-binary @- $HOOK'
  lockgate receive mail --max 1 --nack | jq .body")]
pub(crate) struct Receive {
    /// Queue to receive from
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    /// Stop after this many messages [default: 10, with --follow or --exec no limit]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: Option<u64>,

    /// Wait this long for a first message
    #[arg(long, short, value_name = "TIME", value_parser = duration, default_value = "0s", hide_default_value = true)]
    pub(crate) wait: Duration,

    /// Delete each message after it was printed, to a terminal or a file; refused into a pipe
    #[arg(long, conflicts_with_all = ["nack", "exec"])]
    pub(crate) ack: bool,

    /// Put all messages back at the end, at once; the attempt does not count
    #[arg(long, conflicts_with_all = ["follow", "exec"])]
    pub(crate) nack: bool,

    /// Run this command for each message, with the body on its standard input: exit code 0 deletes it
    #[arg(long, short = 'x', value_name = "COMMAND")]
    pub(crate) exec: Option<String>,

    /// Commands that run at the same time, of different keys
    #[arg(long, value_name = "N", requires = "exec", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) concurrency: u16,

    /// How long a message whose command failed stays away
    #[arg(long, value_name = "TIME", requires = "exec", default_value = "10s", value_parser = duration)]
    pub(crate) retry_delay: Duration,

    /// How long the leases last, 1ms to 12h [default: as the queue says]
    #[arg(long, short, value_name = "TIME", value_parser = receive_lease)]
    pub(crate) lease: Option<Duration>,

    /// Go on until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Take a backup of a running server
///
/// Everything the server holds as of one instant: all queues with their messages, counts, remembered
/// ids and leases. The server goes on meanwhile; everything it answered before is in the backup. The
/// file appears under its name when it is whole and was read back, never before.
///
/// Where clients need access keys, it takes one with all verbs on all queues (AWS_ACCESS_KEY_ID and
/// AWS_SECRET_ACCESS_KEY).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate backup monday.backup
  lockgate backup --endpoint http://127.0.0.1:9400 /mnt/backups/$(date +%F).backup
  lockgate backup - | zstd > monday.backup.zst")]
pub(crate) struct Backup {
    /// File to write, which must not be there yet; - is standard output
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Make a data folder of a backup
///
/// The folder must be missing or empty. It appears under its name when all of it is on the disk; a
/// backup that is damaged, cut or of a newer version leaves nothing behind and exits with 9. Nor does
/// a signal leave anything; what kill -9 leaves the next restore into the folder removes.
///
/// Leases of the backup are kept and end as they would have ended; who has their receipts can still
/// settle. What was acknowledged after the backup was taken comes again. Nothing that is given out
/// later has an id or a receipt that was ever given out, so the server that the backup was taken
/// from may go on. The shard keeps its number, which is told; the server must be started with it
/// (serve --shard).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate restore monday.backup --data ./lockgate-data
  zstd -d < monday.backup.zst | lockgate restore - --data /var/lib/lockgate
  lockgate restore monday.backup --data /tmp/look && lockgate check /tmp/look
  LOCKGATE_POSTGRES=postgres://u:secret@db/queues lockgate restore monday.backup --postgres-shard orders")]
pub(crate) struct Restore {
    /// The backup; - is standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Folder to make
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "postgres_shard",
        conflicts_with = "postgres_shard"
    )]
    pub(crate) data: Option<PathBuf>,

    /// Shard to make in a PostgreSQL database, instead of a folder
    #[arg(long, value_name = "NAME")]
    pub(crate) postgres_shard: Option<String>,

    /// The database; better in LOCKGATE_POSTGRES or the configuration file
    #[arg(long, value_name = "URL", requires = "postgres_shard")]
    pub(crate) postgres: Option<String>,

    /// Another number for the shard, 0 to 1023; otherwise it keeps the one in the backup
    ///
    /// For a copy that is to serve beside the shard it was taken from. Messages keep their ids, with the old
    /// number in them. Leases of the backup end as they would have ended, but their receipts are those of
    /// the old number and cannot settle them any more.
    #[arg(long, value_name = "N")]
    pub(crate) shard: Option<ShardId>,
}

/// Check a data folder: what is in it, what is damaged, what a start would do
///
/// Reads every record and every snapshot, makes the state from them as a start would, and looks for the
/// payload of every message. Changes nothing, not even the lock: no write permission is needed. A
/// server must not be running on the folder. With --postgres-shard it is a shard in PostgreSQL, as it is
/// at one instant; its server goes on.
///
/// Exit codes: 0 if all that was promised is there (a torn tail that a start would cut was never
/// promised); 8 if a start would serve without something that is damaged; 9 if a start would refuse
/// the folder; 4 if a running server has it; 3 if there is nothing of Lockgate's; 1 if something cannot be
/// read, which may succeed the next time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate check ./lockgate-data
  lockgate check --json /var/lib/lockgate | jq .verdict
  LOCKGATE_POSTGRES=postgres://u:secret@db/queues lockgate check --postgres-shard orders")]
pub(crate) struct Check {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) source: Source,
}

/// What is looked at.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// The data folder
    #[arg(
        value_name = "DIR",
        required_unless_present = "postgres_shard",
        conflicts_with = "postgres_shard"
    )]
    pub(crate) folder: Option<PathBuf>,

    /// A shard in a PostgreSQL database, instead of a folder; its server may go on
    #[arg(long, value_name = "NAME")]
    pub(crate) postgres_shard: Option<String>,

    /// The database; better in LOCKGATE_POSTGRES or the configuration file
    #[arg(long, value_name = "URL", requires = "postgres_shard")]
    pub(crate) postgres: Option<String>,
}

/// Print the records of a data folder as JSON, one a line
///
/// Each has its position, its number (they rise by one; missing ones belong to a segment that was given
/// back, or are lost), the epoch it was written under, and its effects in the words of
/// docs/internals/format.md.
/// Bodies, values of headers and words of rejections are left out unless --bodies asks for them;
/// keys and unique ids are shown. A stretch that cannot be read becomes a line of its own, and the
/// command exits with 8.
///
/// Changes nothing. A server must not be running on the folder; that of a shard in PostgreSQL may go on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate dump ./lockgate-data | jq -c .effects[].effect | sort | uniq -c
  lockgate dump ./lockgate-data --queue orders.fifo --bodies
  lockgate dump ./lockgate-data --snapshot")]
pub(crate) struct Dump {
    /// Only records that start here or behind it, such as 0x100001000
    #[arg(long, value_name = "POSITION", value_parser = position)]
    pub(crate) from: Option<u64>,

    /// Only records that start before this
    #[arg(long, value_name = "POSITION", value_parser = position)]
    pub(crate) to: Option<u64>,

    /// Only effects on this queue, by name or number
    #[arg(long, short, value_name = "QUEUE")]
    pub(crate) queue: Option<String>,

    /// Show what users wrote: bodies, values of headers, words of rejections
    #[arg(long)]
    pub(crate) bodies: bool,

    /// A line for each snapshot instead of the records
    #[arg(long, conflicts_with_all = ["from", "to", "queue", "bodies"])]
    pub(crate) snapshot: bool,

    #[command(flatten)]
    pub(crate) source: Source,
}

/// Measure a running server: sends, receives and acks per second, and how long the calls take
///
/// From outside, as any client: callers on connections of their own make one call after the other. For half
/// of the time they send, for the other half they receive and ack, or until all is acked. A latency is that
/// of a whole call; a receive waits up to 1s while other callers hold all keys, and one that finds nothing
/// does not count. If a call fails, the command fails.
///
/// It makes a queue of its own, bench- and 16 random digits, and deletes it at the end, also after SIGINT,
/// SIGTERM or a failure; if it cannot, it says which queue is left. No other queue is touched, but the
/// server's other clients feel the load, and what was sent takes space until it is acked or the queue is
/// deleted: --size times the messages of half the time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate bench
  lockgate bench --endpoint https://queue.example.com --callers 64 --seconds 60
  lockgate bench --keys 0 --batch 1 --size 100B
  lockgate bench --json | jq '{call, messages_per_second, p99_ms}'")]
pub(crate) struct Bench {
    /// Print one JSON object for each of send, receive and ack
    #[arg(long)]
    pub(crate) json: bool,

    /// Callers at the same time, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) callers: u16,

    /// Messages in a call; together they may have 1MiB
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=10))]
    pub(crate) batch: u16,

    /// Bytes of a message's body, 1B to 1MiB
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = body_size)]
    pub(crate) size: usize,

    /// Keys the messages are spread over; 0 is an unkeyed queue
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) keys: u32,

    /// Time for all calls together
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Show and check the configuration
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    Show(ConfigShow),
    Check(ConfigCheck),
}

/// Show the value of every setting and where it came from
///
/// Takes the flags of all other commands, so that one can see what they would do.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate config show
  LOCKGATE_LISTEN=127.0.0.1:9400 lockgate config show --json | jq 'select(.source != \"default\")'")]
pub(crate) struct ConfigShow {
    /// Print one JSON object for each setting
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: AllFlags,
}

/// Check the configuration file and the LOCKGATE_* variables
///
/// Every problem is reported with its line; the exit code is 2 if there is one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate config check --config lockgate.toml")]
pub(crate) struct ConfigCheck {
    #[command(flatten)]
    pub(crate) settings: AllFlags,
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate completions bash > ~/.local/share/bash-completion/completions/lockgate
  lockgate completions zsh > ~/.zfunc/_lockgate
  lockgate completions fish > ~/.config/fish/completions/lockgate.fish")]
pub(crate) struct Completions {
    #[arg(
        value_enum,
        value_name = "SHELL",
        help = "bash, zsh, fish, powershell or elvish",
        hide_possible_values = true
    )]
    pub(crate) shell: clap_complete::Shell,
}

/// Where settings come from, and what exit codes mean: the end of `lockgate --help`.
fn after_long_help() -> String {
    let mut text = "\
Settings:
  Each has a flag (--allowed-host), a variable (LOCKGATE_ALLOWED_HOST) and a key in the
  configuration file (allowed_host). The first of these that is there wins: flag, variable, file,
  default. `lockgate config show` prints every value with where it came from.

  The file is TOML: the one --config names, else the one LOCKGATE_CONFIG names, else
  ./lockgate.toml, else $XDG_CONFIG_HOME/lockgate/config.toml. Unknown keys are errors.

Values:
  Durations are whole numbers with a unit: 500ms, 5s, 5m, 2h, 4d. Sizes too: 512B, 10MiB.

Output:
  Data goes to standard output, everything else to standard error. Tables are for terminals; in
  a pipe they are tab-separated lines without a header. NO_COLOR is respected.

Exit codes:
"
    .to_owned();
    for (exit, meaning) in Exit::ALL {
        text.push_str(&format!("  {:>3}  {meaning}\n", exit as u8));
    }
    text.push_str(
        "\nStart with `lockgate serve` in one terminal and `lockgate send --help` in another.",
    );
    text
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Name, type and value of a header.
fn typed_pair(text: &str) -> Result<(String, String, String), String> {
    let (name, value) =
        pair(text).map_err(|_| "expected NAME=VALUE or NAME:TYPE=VALUE".to_owned())?;
    let (name, kind) = match name.split_once(':') {
        Some((name, kind)) => (name.to_owned(), kind.to_owned()),
        None => (name, "String".to_owned()),
    };
    Ok((name, kind, value))
}

/// A position in the log, as it is printed.
fn position(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is no position, such as 0x100001000"))
}

fn body_size(text: &str) -> Result<usize, String> {
    if text.parse::<u64>().is_ok() {
        return Err(format!("{text:?} is no size: write {text}B"));
    }
    let bytes = size(text)?;
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| (1..=1 << 20).contains(bytes))
        .ok_or_else(|| format!("{text:?} is outside 1B to 1MiB, the sizes a message can have"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_header_may_name_its_type() {
        let header = |text| typed_pair(text).map(|(a, b, c)| [a, b, c].join("|"));
        assert_eq!(header("a=b=c").unwrap(), "a|String|b=c");
        assert_eq!(header("n:Number.int=3").unwrap(), "n|Number.int|3");
        assert!(header("a").is_err() && header("=b").is_err());
    }
}
