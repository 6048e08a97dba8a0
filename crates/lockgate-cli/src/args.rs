//! Every command and flag, defined once: parsing, help, completions and `docs/cli.md` come from here.

mod admin;
mod analyze;
mod exchange;
mod forward;
#[cfg(feature = "zookeeper")]
mod import;
mod lead;
mod ledger;
mod producer;
mod queue;
mod record;
mod schedule;
mod sequence;
mod setting_flags;
mod size;

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use lockgate_core::{PRIORITY_MAX, ShardId};

pub(crate) use admin::*;
pub(crate) use analyze::Analyze;
pub(crate) use exchange::*;
pub(crate) use forward::{Forward, From as ForwardFrom};
#[cfg(feature = "zookeeper")]
pub(crate) use import::{CuratorKind, Import, ImportCurator};
pub(crate) use lead::*;
pub(crate) use ledger::*;
pub(crate) use producer::*;
pub(crate) use queue::*;
pub(crate) use record::*;
pub(crate) use schedule::*;
pub(crate) use sequence::Sequence;
pub(crate) use setting_flags::{Given, SettingFlags};
pub(crate) use size::Size;

use crate::{
    exit::Exit,
    output::Color,
    settings::{AllFlags, ClientFlags, ServeFlags},
    units::{delay, duration, lease, queue_name, retry_delay, size},
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
    Forward(Box<Forward>),
    #[cfg(feature = "zookeeper")]
    #[command(subcommand)]
    Import(Import),
    Sequence(Box<Sequence>),
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
    #[command(subcommand)]
    Producer(Producer),
    #[command(subcommand)]
    Record(Record),
    #[command(subcommand)]
    Exchange(Exchange),
    #[command(subcommand)]
    Schedule(Schedule),
    #[command(subcommand)]
    Ledger(Ledger),
    Lead(Box<Lead>),
    #[command(subcommand)]
    Leaders(Leaders),
    #[command(hide = true)]
    LeadCommand(LeadCommand),
    #[command(hide = true)]
    LeadWatchdog(LeadWatchdog),
    Status(Status),
    Backup(Backup),
    Restore(Restore),
    Check(Check),
    Dump(Dump),
    Bench(Bench),
    Analyze(Analyze),
    Size(Size),
    #[command(subcommand)]
    Config(Config),
    Completions(Completions),
}

/// Run the queue server
///
/// Opens the data folder, recovers what is in it, and serves the Amazon SQS API over HTTP, with /healthz, /readyz
/// and /metrics beside it. SIGTERM, SIGINT or SIGQUIT ends the server gracefully: it answers requests under way,
/// ends waiting receives and syncs everything. A second signal ends it at once, and so does the first one before
/// the server is ready. Neither loses anything. At SIGHUP it reads access keys and certificate again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate serve
  lockgate serve --listen 127.0.0.1:9400 --data /var/lib/lockgate
  LOCKGATE_LOG_LEVEL=debug lockgate serve --config lockgate.toml")]
pub(crate) struct Serve {
    /// Start although parts of the log that are needed are missing, and drop their messages for good
    ///
    /// Without this flag such a start changes nothing. It names each missing file (in a database, the rows), says
    /// how many messages of which queues the last snapshot knows in it, and ends with exit code 9. Then put the
    /// files back and start again, or restore a backup.
    ///
    /// With this flag the server counts those messages as dropped by damage. It also loses what was done in a file
    /// that no snapshot covers: the log of the start says how many records that are. If queues were created in such
    /// a file, the messages to them in other files are lost too; the refusal, `lockgate check` and the log of the
    /// start say how many. If you put the file back later, nothing comes back.
    ///
    /// The flag holds for one start, so it has neither a variable nor a key in the configuration file. If nothing
    /// is missing, it does nothing. Damaged bytes need no flag: a start sets them aside and counts them.
    #[arg(long)]
    pub(crate) accept_loss: bool,

    #[command(flatten)]
    pub(crate) settings: ServeFlags,
}

/// Send messages
///
/// Sends one message: BODY, the bytes of --file, or with --raw all of standard input. Without any of these the
/// command reads many messages from standard input or --lines, one JSON object a line: {"body": ..., "key": ...,
/// "group": ..., "unique_id": ..., "delay_ms": ..., "headers": {...}}. A line needs "body", and "key" if the queue
/// is keyed. A body may be any JSON value: the command sends a string as its text, anything else as compact JSON.
/// For bytes that are not text, write them in base64 and add "body_encoding": "base64". A header is a string, a
/// number, or {"type": ..., "value": ...} (for bytes {"type": "Binary", "value": ..., "encoding": "base64"}). A
/// line also takes "priority", "due_at", "time_to_live_ms", "content_type", "trace_context" and "level".
///
/// The command sends lines in order, up to 100 in a call, and the server takes all lines of a call or none. At the
/// first line that is wrong or refused it sends the lines before it and nothing after it, names file and line, says
/// how many messages it has sent, and exits with 1. It says so too when a signal ends it, or when nobody reads what
/// --json prints.
///
/// If a message for a keyed queue has no unique id, the command gives it a random one, so that the server
/// recognises a repetition after a lost connection. If the command does not know whether messages for an unkeyed
/// queue arrived, it does not send them again: it says which they are, and exits with 1.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate send orders.fifo --key user-42 'post'
  lockgate send mail --in 5m --header to=eve 'see you'
  lockgate send mail --at 2027-01-01T09:00:00Z 'a happy new year'
  lockgate send photos --file cat.jpg
  gzip -c notes.txt | lockgate send notes --raw
  lockgate send orders.fifo --create --lines orders.jsonl
  jq -c '{body: ., key: .user}' events.json | lockgate send orders.fifo")]
pub(crate) struct Send {
    /// Queue to send to
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    /// The message's body; without it, --file, --raw and --base64 the command reads lines of JSON from standard input
    #[arg(value_name = "BODY")]
    pub(crate) body: Option<String>,

    /// File whose bytes are the body of one message
    #[arg(long, short, value_name = "FILE", conflicts_with = "body")]
    pub(crate) file: Option<PathBuf>,

    /// Send all of standard input, whatever its bytes are, as the body of one message
    #[arg(long, short, conflicts_with_all = ["body", "file"])]
    pub(crate) raw: bool,

    /// Decode the body of the one message from base64
    #[arg(long, conflicts_with = "lines")]
    pub(crate) base64: bool,

    /// File with one JSON object a line; - is standard input
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["body", "file", "raw"])]
    pub(crate) lines: Option<PathBuf>,

    /// Ordering key, for a keyed queue; a line of JSON may have its own
    #[arg(long, short, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Group that takes turns with others, without order, for an unkeyed queue; a line of JSON may have its own
    #[arg(long, short, value_name = "GROUP", conflicts_with = "key")]
    pub(crate) group: Option<String>,

    /// Unique id for deduplication; for one message only
    #[arg(long, value_name = "ID", conflicts_with = "lines")]
    pub(crate) unique_id: Option<String>,

    /// Deliver no earlier than after this time; a line of JSON may have its own
    #[arg(long, visible_alias = "in", value_name = "TIME", value_parser = delay)]
    pub(crate) delay: Option<Duration>,

    /// Deliver no earlier than at this instant; a line of JSON may have its own
    #[arg(long, value_name = "INSTANT", value_parser = admin::instant, conflicts_with = "delay")]
    pub(crate) at: Option<jiff::Timestamp>,

    /// How urgent it is to a worker, 0 to 9, the highest first; a line of JSON may have its own [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=i64::from(PRIORITY_MAX)))]
    pub(crate) priority: Option<u8>,

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
/// On a terminal it prints each message as text. Into a pipe or a file, or with --json, it prints one JSON object a
/// line, as the server gives it: id, key (of an unkeyed queue: group), body, attempt, sequence, sent_at, headers,
/// receipt and others. If a body is not text, its JSON has it in base64 and says "body_encoding": "base64". Each
/// message is leased: nobody else gets it, and nothing after it of its key, until somebody settles it or the lease
/// ends. Settle it here, or later with `lockgate ack`. If nothing came, standard error says why: the queue is empty
/// or paused, all messages are delayed, or all keys are held.
///
/// With --ack the command deletes a message after it has printed it: to a terminal, or to a file and from there to
/// the disk. It refuses --ack into a pipe, because nobody knows what the reader of a pipe has taken, and the rest
/// would be lost. Use --exec for that.
///
/// With --nack the command puts all messages back as soon as it has received the last one, and prints them after
/// that. Looking costs no attempt and keeps no lease.
///
/// With --exec the command runs COMMAND for each message, by `sh -c`, with the body on its standard input, byte for
/// byte. If COMMAND exits with 0, the message is deleted. If it fails or dies of a signal, the message comes again
/// after --retry-delay, and the attempt counts. The lease is extended for as long as COMMAND runs, up to 12h. With
/// --concurrency as many run side by side, but messages of one key one after the other, in order. No message is
/// leased that has to wait for its COMMAND. Without --follow the run ends when the queue is empty or when only
/// messages come whose COMMAND has failed in this run. It does not try those again: if one comes again before the
/// run ends, it goes back for another 1s, which counts no attempt.
///
/// A pack (many messages that a producer has put into one, as `lockgate forward --pack` does) is printed as the one
/// message that it is: its content type is application/vnd.lockgate.pack, and its body is no text. --exec takes it apart
/// and runs COMMAND for each of its messages; the pack is deleted when all have succeeded. If COMMAND fails for one, the
/// pack comes again, and a later run does all of it again. For --max and in counts a pack is one message.
///
/// COMMAND finds in its environment: LOCKGATE_QUEUE, LOCKGATE_MESSAGE_ID, LOCKGATE_KEY or LOCKGATE_GROUP,
/// LOCKGATE_UNIQUE_ID, LOCKGATE_SEQUENCE, LOCKGATE_ATTEMPT, LOCKGATE_PRIORITY, LOCKGATE_SENT_AT, LOCKGATE_RECEIPT,
/// LOCKGATE_CONTENT_TYPE, LOCKGATE_TRACE_CONTEXT, LOCKGATE_ENDPOINT, and the value of each header as
/// LOCKGATE_MESSAGE_HEADER_NAME, where every character of the name but ASCII letters and digits is `_`. A variable
/// is not set if the message does not have the value; messages of a pack have no receipt. A header has no variable if its value has a NUL byte or more
/// than 64KiB, if it does not fit into 256KiB with the others, or if another header's name becomes the same:
/// LOCKGATE_OMITTED names such headers, and `lockgate peek --id` shows their values.
///
/// SIGINT or SIGTERM ends a run when the commands that are running have ended. A second signal kills them with the
/// processes they have started, and their messages come again. The run also ends if COMMAND cannot be started (exit
/// code 126 or 127; its message goes back, and the attempt does not count), or dies because nobody reads standard
/// output any more: its message comes again, and no other is tried. Exit codes with --exec: 0 if all messages were
/// deleted; 1 if a COMMAND failed, or a lease was lost before its COMMAND ended. A message that is gone when its
/// COMMAND ends (COMMAND settled it itself, or somebody purged the queue) counts apart and is no failure.
///
/// Without --exec, SIGINT or SIGTERM ends the command when it has printed what it has received. It puts back what
/// nobody reads, which costs no attempt.
///
/// With --follow the command asks a server that does not answer again for as long as --timeout says. It tells on
/// standard error when the server is away, when it is back, and why nothing comes.
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

    /// Delete each message after printing it, to a terminal or a file; refused into a pipe
    #[arg(long, conflicts_with_all = ["nack", "exec"])]
    pub(crate) ack: bool,

    /// Put all messages back before printing them; the attempt does not count
    #[arg(long, conflicts_with_all = ["follow", "exec"])]
    pub(crate) nack: bool,

    /// Run this command for each message, with the body on its standard input; if it exits with 0, the message is deleted
    #[arg(long, short = 'x', value_name = "COMMAND")]
    pub(crate) exec: Option<String>,

    /// Run up to so many commands at the same time, of different keys
    #[arg(long, value_name = "N", requires = "exec", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) concurrency: u16,

    /// How long a message whose command failed stays away
    #[arg(long, value_name = "TIME", requires = "exec", default_value = "10s", value_parser = retry_delay)]
    pub(crate) retry_delay: Duration,

    /// How long the leases last, 1ms to 12h [default: as the queue says]
    #[arg(long, short, value_name = "TIME", value_parser = lease)]
    pub(crate) lease: Option<Duration>,

    /// Go on until interrupted
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Print one JSON object for each message, also on a terminal
    #[arg(long, conflicts_with = "exec")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Take a backup of a running server
///
/// The backup has everything that the server holds at one instant: all queues with their messages, counts,
/// remembered ids and leases, and everything that the server answered before. The server goes on meanwhile. The
/// file gets its name when it is whole and was read back, not before.
///
/// If clients need access keys, the backup takes one with all verbs on all queues and `read` on all records,
/// ledgers and exchanges (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY).
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

    /// Print a JSON object: file, created_at, messages, bytes, unreadable
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Make a data folder from a backup
///
/// The folder must be missing or empty. It gets its name when all of it is on the disk. If the backup is damaged,
/// cut or of a newer version, the command leaves nothing behind and exits with 9. A signal leaves nothing behind
/// either. A killed restore (kill -9) leaves partial files; the next restore into the same folder removes them.
///
/// The restore keeps the leases of the backup: they end when they would have ended, and who has their receipts can
/// still settle. What was acknowledged after the backup comes again. The server that the backup came from may go
/// on, because no id and no receipt is ever given out twice. The shard keeps its number, which the command prints;
/// start the server with it (serve --shard).
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("place").required(true).args(["data", "postgres_shard"])))]
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
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Shard to make in a PostgreSQL database, instead of a folder
    #[arg(long, value_name = "NAME")]
    pub(crate) postgres_shard: Option<String>,

    /// The database; better in LOCKGATE_POSTGRES or the configuration file
    #[arg(long, value_name = "URL", requires = "postgres_shard")]
    pub(crate) postgres: Option<String>,

    /// Another number for the shard, 0 to 1023; otherwise it keeps the one in the backup
    ///
    /// For a copy that is to serve beside the shard of the backup. Messages keep their ids, with the old number in
    /// them. Leases of the backup end when they would have ended, but nobody can settle them: their receipts name
    /// the old number.
    #[arg(long, value_name = "N")]
    pub(crate) shard: Option<ShardId>,

    /// Print a JSON object: data or postgres_shard, shard, created_at, queues, messages, dropped
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check a data folder: what is in it, what is damaged, what a start would do
///
/// Reads every record and every snapshot, makes the state from them as a start would, looks for the payload of every
/// message, and reads the index of unique ids. Changes nothing, not even the lock, so it needs no permission to write
/// there; for the index it makes a folder of links in the folder for temporary files. No server may be running on the
/// folder. With --postgres-shard it checks a shard in PostgreSQL as it is at one instant; its server may go
/// on.
///
/// Exit codes: 0 if all that was promised is there (a torn tail that a start would cut was never promised); 8 if a
/// start would serve without something that is damaged; 9 if a start would refuse the folder; 4 if a running server
/// has it; 3 if there is nothing of Lockgate's; 1 if something cannot be read, which may succeed the next time.
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
/// Each line has the record's position, its number (numbers rise by one; missing ones belong to a segment that was
/// given back, or are lost), the epoch it was written under, and its effects in the words of
/// docs/internals/format.md. Lines show keys and unique ids. They show bodies, values of headers and reasons of
/// rejections only with --bodies. If a stretch cannot be read, it has a line of its own, and the command exits with
/// 8.
///
/// Changes nothing. No server may be running on the folder; the server of a shard in PostgreSQL may go on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate dump ./lockgate-data | jq -c .effects[].effect | sort | uniq -c
  lockgate dump ./lockgate-data --queue orders.fifo --bodies
  lockgate dump ./lockgate-data --snapshot")]
pub(crate) struct Dump {
    /// Only records that start at this position or behind it, such as 0x100001000
    #[arg(long, value_name = "POSITION", value_parser = position)]
    pub(crate) from: Option<u64>,

    /// Only records that start before this position
    #[arg(long, value_name = "POSITION", value_parser = position)]
    pub(crate) to: Option<u64>,

    /// Only effects on this queue, by name or number
    #[arg(long, short, value_name = "QUEUE")]
    pub(crate) queue: Option<String>,

    /// Show what users wrote: bodies, values of headers, reasons of rejections
    #[arg(long)]
    pub(crate) bodies: bool,

    /// Print a line for each snapshot instead of the records
    #[arg(long, conflicts_with_all = ["from", "to", "queue", "bodies"])]
    pub(crate) snapshot: bool,

    /// Print JSON, which this command always does
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) source: Source,
}

/// Measure a running server: sends, receives and acks per second, and how long the calls take
///
/// Measures from outside, as any client: callers on connections of their own make one call after the other. For
/// half of the time they send. For the other half they receive and ack, or until they have acked all. A latency is
/// that of a whole call. A receive waits up to 1s while other callers hold all keys; one that finds nothing does
/// not count. If a call fails, the command fails.
///
/// The command makes a queue of its own, bench- and 16 random digits, and deletes it at the end, also after SIGINT,
/// SIGTERM or a failure. If it cannot, it says which queue is left. It touches no other queue, but other clients of
/// the server feel the load. What it sends takes space until it is acked or the queue is deleted: --size times the
/// messages of half the time.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate bench
  lockgate bench --endpoint https://queue.example.com --callers 64 --time 1m
  lockgate bench --keys 0 --batch 1 --size 100B
  lockgate bench --json | jq '{call, messages_per_second, p99_ms}'")]
pub(crate) struct Bench {
    /// Print one JSON object for each of send, receive and ack
    #[arg(long)]
    pub(crate) json: bool,

    /// Callers at the same time, each with a connection of its own
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) callers: u16,

    /// Messages in a call; together they have at most 1MiB
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=10))]
    pub(crate) batch: u16,

    /// Bytes of a message's body, 1B to 1MiB
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = body_size)]
    pub(crate) size: usize,

    /// Keys that the messages are spread over; 0 for an unkeyed queue
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) keys: u32,

    /// Time for all calls together, 1s to 1h
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = bench_time)]
    pub(crate) time: Duration,

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
/// Takes the flags of all other commands, so that you can see what they would do.
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
/// Reports every problem with its line, and exits with 2 if there is one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate config check --config lockgate.toml")]
pub(crate) struct ConfigCheck {
    /// Print a JSON object: file, queues, warnings, problems
    #[arg(long)]
    pub(crate) json: bool,

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
  Durations and sizes are whole numbers with a unit: 500ms, 5s, 5m, 1h30m, 4d; 512B, 64KiB, 10MiB.
  Only 0 needs none.

Output:
  Data goes to standard output, everything else to standard error. A table has aligned columns
  on a terminal and tab-separated ones in a pipe or file, both below a header. Scripts use --json,
  which every command but serve, lead and completions has: it prints JSON, one value a line.
  Columns of tables may change; names in JSON stay. NO_COLOR is respected.

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
        _ => Err(format!("{text:?} has no name and value: write NAME=VALUE")),
    }
}

/// Name, type and value of a header.
fn typed_pair(text: &str) -> Result<(String, String, String), String> {
    let (name, value) = pair(text).map_err(|what| what + " or NAME:TYPE=VALUE")?;
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
    parsed.map_err(|_| format!("{text:?} is no position from 0 to 2^64-1, such as 0x100001000"))
}

fn body_size(text: &str) -> Result<usize, String> {
    let bytes = size(text)?;
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| (1..=1 << 20).contains(bytes))
        .ok_or_else(|| format!("{text:?} is not from 1B to 1MiB"))
}

fn bench_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    let bounds = Duration::from_secs(1)..=Duration::from_secs(3600);
    if bounds.contains(&time) {
        return Ok(time);
    }
    Err(format!("{text:?} is not from 1s to 1h"))
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
