//! The commands that speak the admin API.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use crate::{
    settings::ClientFlags,
    units::{delay, duration, hold, lease, queue_name, retry_delay},
};

/// Delete received messages by their receipts
///
/// `lockgate receive` prints the receipt of each message. If a lease has ended, somebody else may have the message
/// by now: the command leaves it alone and exits with 4. A message that is gone counts as deleted.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate ack orders.fifo \"$receipt\"
  lockgate receive mail | jq -r .receipt | xargs lockgate ack mail")]
pub(crate) struct Ack {
    #[command(flatten)]
    pub(crate) receipts: Receipts,
}

/// Put received messages back by their receipts; the attempt counts
///
/// A message returns to its place. After --delay it is received again, before everything else of its key. If a
/// lease has ended, the command leaves the message alone and exits with 4.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate nack orders.fifo \"$receipt\"
  lockgate nack mail --delay 90s --reason 'the relay is down' \"$receipt\"")]
pub(crate) struct Nack {
    /// Time before somebody can receive them again, up to 366d [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = retry_delay)]
    pub(crate) delay: Option<Duration>,

    /// Why, for whoever looks at the messages, also as dead letters; up to 1024 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,

    #[command(flatten)]
    pub(crate) receipts: Receipts,
}

/// Put received messages back for later by their receipts; the attempt does not count
///
/// For messages that are not wrong, only early. Everything behind the message of the same key waits with it. If a
/// lease has ended, the command leaves the message alone and exits with 4.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate defer orders.fifo --delay 10m \"$receipt\"
  lockgate defer calls.fifo --delay 30s --hold queue \"$receipt\"")]
pub(crate) struct Defer {
    /// Time before somebody can receive them again, up to 366d
    #[arg(long, value_name = "TIME", value_parser = retry_delay)]
    pub(crate) delay: Duration,

    /// What else nobody receives before, as for a partner that answers 429: the rest of their keys (or groups), or of
    /// the queue
    #[arg(long, value_name = "SCOPE", value_parser = ["key", "queue"])]
    pub(crate) hold: Option<String>,

    #[command(flatten)]
    pub(crate) receipts: Receipts,
}

/// Hold received messages for longer by their receipts
///
/// The lease lasts for --lease from now on, but no longer than 12h after it was given. If it has ended already, the
/// command exits with 4: somebody else may have the message.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate extend orders.fifo --lease 10m \"$receipt\"")]
pub(crate) struct Extend {
    /// How long the leases last from now on, 1ms to 12h
    #[arg(long, short, value_name = "TIME", value_parser = lease)]
    pub(crate) lease: Duration,

    #[command(flatten)]
    pub(crate) receipts: Receipts,
}

/// Send received messages to the dead-letter queue by their receipts
///
/// For messages that can never succeed: they go at once, whatever attempts they have left, with --reason. If the
/// queue has no dead-letter queue, the server drops them. If a lease has ended, the command leaves the message
/// alone and exits with 4.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate reject orders.fifo --reason 'no such product' \"$receipt\"")]
pub(crate) struct Reject {
    /// Why, for whoever reads the dead letters; up to 1024 bytes
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,

    #[command(flatten)]
    pub(crate) receipts: Receipts,
}

/// Which leases to settle.
#[derive(Debug, Args)]
pub(crate) struct Receipts {
    /// Print one JSON object for each receipt: receipt, outcome, and why it could not be done
    #[arg(long)]
    pub(crate) json: bool,

    /// Queue the messages were received from
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Receipts of the messages
    #[arg(value_name = "RECEIPT", required = true)]
    pub(crate) receipts: Vec<String>,
}

/// Cancel messages by their ids: remove them before anybody receives them
///
/// If a message is in flight the command exits with 4, if there is none of an id with 3. It cancels the others all
/// the same. `lockgate send --json` and `lockgate peek` show ids.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate cancel mail 00000001-0000-8000-8000-00000000a001
  lockgate peek mail --state delayed --json | jq -r .id | xargs lockgate cancel mail")]
pub(crate) struct Cancel {
    /// Print a JSON object: how many messages were cancelled
    #[arg(long)]
    pub(crate) json: bool,

    /// Queue of the messages
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Ids of messages
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
}

/// Give a message another due time
///
/// The message must not be in flight. When it is due, it goes behind what its key has by then. If the message is in
/// flight the command exits with 4, if there is none of that id with 3.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("when").required(true).args(["delay", "at"])))]
#[command(after_help = "\
Examples:
  lockgate reschedule mail --delay 2h 00000001-0000-8000-8000-00000000a001
  lockgate reschedule mail --delay 0s 00000001-0000-8000-8000-00000000a001
  lockgate reschedule mail --at 2027-01-01T00:00:00Z 00000001-0000-8000-8000-00000000a001")]
pub(crate) struct Reschedule {
    /// Time until it is due; 0s for now
    #[arg(long, value_name = "TIME", value_parser = delay)]
    pub(crate) delay: Option<Duration>,

    /// Due at this instant
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    pub(crate) at: Option<jiff::Timestamp>,

    /// Print a JSON object: id, due_at
    #[arg(long)]
    pub(crate) json: bool,

    /// Queue of the message
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Id of the message
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}

/// Settle received messages, and send or publish new ones, all or nothing
///
/// The server does everything or nothing. If one lease has ended, or one message is refused, the command says why
/// and exits with 4 or 1. If the answer is lost, repeat the command: if it says that the leases are gone, the first
/// time has succeeded.
///
/// QUEUE and BODY are one new message. Write more of them, and settles of other kinds, into a --file in the words
/// of the admin API: {"settles": [{"receipt": ..., "action": "ack"}], "sends": [{"queue": ..., "message": {"body":
/// ...}}], "publishes": [{"exchange": ..., "routing_key": ..., "message": {"body": ...}}]}.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["ack", "file"])))]
#[command(after_help = "\
Examples:
  lockgate transact mail --ack \"$receipt\" 'order 17 is on its way'
  lockgate transact shipping.fifo --ack \"$receipt\" --key user-42 'order 17'
  lockgate transact --file step.json")]
pub(crate) struct Transact {
    /// Receipt of a message that is done; repeatable
    #[arg(long, value_name = "RECEIPT")]
    pub(crate) ack: Vec<String>,

    /// Queue that the new message goes to
    #[arg(value_name = "QUEUE", requires = "body", value_parser = queue_name)]
    pub(crate) queue: Option<String>,

    /// Ordering key of the new message, for a keyed queue
    #[arg(long, short, value_name = "KEY", requires = "body")]
    pub(crate) key: Option<String>,

    /// Group of the new message, for an unkeyed queue
    #[arg(
        long,
        short,
        value_name = "GROUP",
        requires = "body",
        conflicts_with = "key"
    )]
    pub(crate) group: Option<String>,

    /// Unique id of the new message, for deduplication
    #[arg(long, value_name = "ID", requires = "body")]
    pub(crate) unique_id: Option<String>,

    /// Deliver the new message no earlier than after this time
    #[arg(long, value_name = "TIME", value_parser = delay, requires = "body")]
    pub(crate) delay: Option<Duration>,

    /// File with all of it as one JSON object; - is standard input
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["queue", "key", "group", "unique_id", "delay", "body"])]
    pub(crate) file: Option<PathBuf>,

    /// Print one JSON object for each message sent (id, sequence, duplicate), and then for each one published (copies,
    /// duplicates, skipped, dropped)
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// The new message
    #[arg(value_name = "BODY", requires = "queue")]
    pub(crate) body: Option<String>,
}

/// List keys and explain why they do not move; park, resume, hold and drop them; read and write their states
#[derive(Debug, Subcommand)]
pub(crate) enum Key {
    List(KeyList),
    Explain(KeyExplain),
    Park(KeyPark),
    Resume(KeyResume),
    Hold(KeyHold),
    Drop(KeyDrop),
    #[command(subcommand)]
    State(KeyState),
}

/// List the states of keys; read, write and drop one
///
/// The state comes with the leases of the key's messages, and their holder writes it together with the acknowledgement.
/// It outlives the messages and a purge; deleting the queue deletes it.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyState {
    List(KeyStateList),
    Get(KeyStateGet),
    Set(KeyStateSet),
    Drop(KeyStateDrop),
}

/// List the states of keys: version, size, and when they were written
///
/// In the order of the keys. Shows also those of keys without messages, which `lockgate key list` leaves out.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate key state list orders.fifo
  lockgate key state list orders.fifo --prefix user- --json | jq -r .key")]
pub(crate) struct KeyStateList {
    /// Queue of the keys
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    /// Only keys that start with this
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,

    /// Stop after this many states
    #[arg(long, short, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: u64,

    /// Print one JSON object for each state
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Print the state of a key, byte for byte
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate key state get orders.fifo user-42
  lockgate key state get orders.fifo user-42 --json | jq .version")]
pub(crate) struct KeyStateGet {
    /// Print a JSON object: value, version, and when it was written
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) key: OfQueue,
}

/// Write the state of a key
///
/// The command raises the state's version. A holder that has read an earlier one is refused when it writes its own, and
/// handles the message again with what you wrote. If the state has another version than the command names, nothing is
/// written and the command exits with 4; if the key has none, with 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate key state set orders.fifo user-42 '{\"orders\":3}' --replaces 7
  lockgate key state set orders.fifo user-42 '{\"orders\":0}' --new
  lockgate key state set orders.fifo user-42 --any < state.json")]
pub(crate) struct KeyStateSet {
    /// Print a JSON object: the new version
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) key: OfQueue,

    /// The value, up to 256 KiB; without it, the command reads it from standard input
    #[arg(value_name = "VALUE")]
    pub(crate) value: Option<String>,

    #[command(flatten)]
    pub(crate) replaces: ReplacesOrNew,
}

/// Drop the state of a key
///
/// The key's messages stay. If the state has another version than the command names, nothing is dropped and the command
/// exits with 4; if the key has none, with 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate key state drop orders.fifo user-42 --replaces 7
  lockgate key state drop orders.fifo user-42 --any")]
pub(crate) struct KeyStateDrop {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) key: OfQueue,

    /// Version that it must have
    #[arg(long, value_name = "VERSION", required_unless_present = "any")]
    pub(crate) replaces: Option<u64>,

    /// Whichever version it has
    #[arg(long, conflicts_with = "replaces")]
    pub(crate) any: bool,
}

/// What a new state replaces.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ReplacesOrNew {
    /// Version that it replaces
    #[arg(long, value_name = "VERSION")]
    pub(crate) replaces: Option<u64>,

    /// The key must have no state
    #[arg(long)]
    pub(crate) new: bool,

    /// Whatever is there: what somebody else has written meanwhile is lost
    #[arg(long)]
    pub(crate) any: bool,
}

/// Explain why a key does, or does not, move
///
/// Says what the next message of the key waits for: who holds the message in front and for how long, how long the
/// pause before the next attempt lasts, when it is due, that the key is parked, that the queue is paused, that
/// it has as many messages in flight as it may, or which limit holds it. Says until when somebody holds the key or the
/// queue, also where the key has no message. In an unkeyed queue it explains a group; --no-key explains its messages
/// without a group, which are one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate key explain orders.fifo user-42
  lockgate key explain mail --no-key
  lockgate key explain orders.fifo user-42 --json | jq -r .waits_for")]
pub(crate) struct KeyExplain {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) key: KeyOrNone,
}

/// Freeze a key: nobody receives its messages
///
/// The key stays parked after a restart, until `lockgate key resume`. It goes on taking messages, and holders may
/// settle what is in flight.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate key park orders.fifo user-42")]
pub(crate) struct KeyPark {
    /// Print a JSON object: the key as it is then
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) key: OfQueue,
}

/// Let a parked key move again
///
/// The attempts of its first message count from zero again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate key resume orders.fifo user-42")]
pub(crate) struct KeyResume {
    /// Print a JSON object: the key as it is then
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) key: OfQueue,
}

/// Give no messages of a key to consumers for a while, as a partner that answers 429 asks for
///
/// Other keys go on, and so does what is in flight. Of a queue without keys it holds a group, or with --no-key its
/// messages without one. The hold survives a restart. One that lasts longer already stays; `none` ends it.
#[derive(Debug, Args)]
#[command(allow_missing_positional = true)]
#[command(after_help = "\
Examples:
  lockgate key hold orders.fifo user-42 30s
  lockgate key hold mail --no-key 30s
  lockgate key hold orders.fifo user-42 none")]
pub(crate) struct KeyHold {
    /// Print a JSON object: until when it is held
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) key: KeyOrNone,

    /// For how long, up to 366d; `none` ends a hold
    #[arg(value_name = "TIME", value_parser = hold)]
    pub(crate) time: Duration,
}

/// Drop the messages of a key, also those not yet due
///
/// Messages in flight stay, and their holders may settle them. The command says how many messages there are and
/// asks. In a script, where nobody can answer, say --yes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate key drop orders.fifo user-42
  lockgate key drop orders.fifo user-42 --yes")]
pub(crate) struct KeyDrop {
    /// Print a JSON object: how many messages were dropped
    #[arg(long)]
    pub(crate) json: bool,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) key: OfQueue,
}

/// Which key.
#[derive(Debug, Args)]
pub(crate) struct OfQueue {
    /// Queue of the key
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// The key
    #[arg(value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) key: String,
}

/// Which key, or which messages without one.
#[derive(Debug, Args)]
pub(crate) struct KeyOrNone {
    /// Queue of the key
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// The key
    #[arg(value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    #[arg(required_unless_present = "no_key")]
    pub(crate) key: Option<String>,

    /// The messages without a key or group of an unkeyed queue, which are one group
    #[arg(long, conflicts_with = "key")]
    pub(crate) no_key: bool,
}

/// Show what a server is and does: version, uptime, disk, log, queues, rates
///
/// The command looks twice, and rates are of the time between: a second, or what --over says. It counts the queues
/// that the access key may read.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate status
  lockgate status --over 10s
  lockgate status --json | jq .space.free_bytes")]
pub(crate) struct Status {
    /// Measure rates over this time; 0s for none
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub(crate) over: Duration,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// List, move back and drop dead letters
#[derive(Debug, Subcommand)]
pub(crate) enum Dlq {
    List(DlqList),
    Redrive(DlqRedrive),
    Drop(DlqDrop),
}

/// Move dead letters back to where they came from, or to a queue
///
/// Moves them in the order in which a receive would give them, and counts no attempts. Those in flight stay, those
/// of a parked key, and those that come while it runs. It ends at the first message that has nowhere to go back to,
/// says which, and exits with 4. With --dry-run it says how many would go where, and moves none.
///
/// However it ends, it says how many messages it has moved. SIGINT or SIGTERM ends it after the step under way.
/// What it has not moved stays in the dead-letter queue: run the same command again to go on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate dlq redrive orders-dead.fifo
  lockgate dlq redrive orders-dead.fifo --dry-run
  lockgate dlq redrive orders-dead.fifo --max 1
  lockgate dlq redrive dead --source mail --rate 50
  lockgate dlq redrive orders-dead.fifo --to orders-retry.fifo")]
pub(crate) struct DlqRedrive {
    /// Only messages that came from this queue
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) source: Option<String>,

    /// Queue to move them to [default: each to the one it came from]
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) to: Option<String>,

    /// Stop after this many messages [default: no limit]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: Option<u64>,

    /// Move at most so many messages a second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rate: Option<u32>,

    /// Say how many messages would go where, and move none
    #[arg(long, short = 'n', conflicts_with = "rate")]
    pub(crate) dry_run: bool,

    /// Print a JSON object: moved, left, and stuck if it ended at a message that has nowhere to go
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the dead-letter queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,
}

/// Drop dead letters by their ids, or all of them
///
/// With --all the command says how many there are and asks. In a script, where nobody can answer, say --yes. It
/// does not drop a message in flight by its id.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate dlq drop orders-dead.fifo 00000001-0000-8000-8000-00000000a001
  lockgate dlq drop orders-dead.fifo --all --yes")]
pub(crate) struct DlqDrop {
    /// Print a JSON object: how many messages were dropped
    #[arg(long)]
    pub(crate) json: bool,

    /// Drop all messages of the queue, in flight and delayed ones too
    #[arg(long, conflicts_with = "ids")]
    pub(crate) all: bool,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the dead-letter queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,

    /// Ids of messages, unless --all is given
    #[arg(value_name = "ID|--all", required_unless_present = "all")]
    pub(crate) ids: Vec<String>,
}

/// Look at messages without receiving them
///
/// Leases nothing and changes nothing. Shows messages in the order in which they arrived, also those in flight;
/// those not yet due come last.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate peek orders.fifo
  lockgate peek orders.fifo --key user-42 --max 100
  lockgate peek mail --state in_flight --json | jq -r .holder
  lockgate peek mail --id 00000001-0000-8000-8000-00000000a001 --json | jq -r .body")]
pub(crate) struct Peek {
    /// Queue to look into
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    /// Only messages of this key, of a keyed queue
    #[arg(long, short, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Only messages of this group, of an unkeyed queue
    #[arg(long, short, value_name = "GROUP", conflicts_with = "key")]
    pub(crate) group: Option<String>,

    /// Only messages that are ready, in_flight, backoff or delayed
    #[arg(long, value_name = "STATE", value_parser = ["ready", "in_flight", "backoff", "delayed"], hide_possible_values = true)]
    pub(crate) state: Option<String>,

    /// Only the message with this id
    #[arg(long, value_name = "ID", conflicts_with_all = ["key", "group", "state", "max"])]
    pub(crate) id: Option<String>,

    /// Stop after this many messages
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), default_value = "10")]
    pub(crate) max: u64,

    /// Print one JSON object for each message
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// List keys, each with why it does or does not move
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate key list orders.fifo --parked
  lockgate key list orders.fifo --json | jq -r 'select(.waits_for == \"lease\") | .holder'")]
pub(crate) struct KeyList {
    /// Queue of the keys
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    /// Only parked keys
    #[arg(long)]
    pub(crate) parked: bool,

    /// Print one JSON object for each key
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// List dead letters: where they come from and why
///
/// --json shows the reason of each failed attempt that had one, in "failures".
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate dlq list orders-dead.fifo
  lockgate dlq list orders-dead.fifo --source orders.fifo --json | jq -r .origin.detail
  lockgate dlq list orders-dead.fifo --json | jq '.failures[]'")]
pub(crate) struct DlqList {
    /// Only messages that came from this queue
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) source: Option<String>,

    /// Stop after this many messages
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), default_value = "100")]
    pub(crate) max: u64,

    /// Print one JSON object for each message
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the dead-letter queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,
}

/// Reads an instant.
pub(crate) fn instant(text: &str) -> Result<jiff::Timestamp, String> {
    // The library would take the second before, which is too early.
    if text
        .split(':')
        .nth(2)
        .is_some_and(|part| part.starts_with("60"))
    {
        return Err(format!(
            "{text:?} is a leap second, which no clock here shows: take the second before or after it"
        ));
    }
    text.parse().map_err(|_| {
        format!("{text:?} is no instant up to 9999-12-30T22:00:00Z, such as 2027-01-01T00:00:00Z")
    })
}
