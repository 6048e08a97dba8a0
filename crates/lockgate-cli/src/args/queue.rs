//! `lockgate queue ...`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::{SettingFlags, pair};
use crate::{
    queue_file::Format,
    settings::ClientFlags,
    units::{hold, queue_name},
};

/// List, create, show, change, pause, hold, purge and delete queues; apply and export files of them
#[derive(Debug, Subcommand)]
pub(crate) enum Queue {
    List(QueueList),
    Create(Box<QueueCreate>),
    Show(QueueShow),
    Set(Box<QueueSet>),
    Apply(QueueApply),
    Export(QueueExport),
    Pause(QueuePause),
    Resume(QueueResume),
    Hold(QueueHold),
    Purge(QueuePurge),
    Delete(QueueDelete),
}

/// List queues with what they hold
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue list
  lockgate queue list --prefix orders --json | jq -r .name")]
pub(crate) struct QueueList {
    /// Only queues whose name starts with this
    #[arg(long, short, value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,

    /// Print one JSON object for each queue
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Create a queue
///
/// A queue whose name ends in .fifo keeps the messages of a key in order, one holder at a time.
/// If the queue exists, the command changes nothing: it succeeds if the queue has the settings and tags that you
/// name, else it exits with 4.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue create mail --delay 5s --retention 14d
  lockgate queue create orders-dead.fifo
  lockgate queue create orders.fifo --dead-letter orders-dead.fifo --attempts-max 5 --lease 1m
  lockgate queue create clicks.fifo --dedup-content true --tag team=ads")]
pub(crate) struct QueueCreate {
    #[command(flatten)]
    pub(crate) of_queue: SettingFlags,

    /// Tag, NAME=VALUE; repeatable
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) tag: Vec<(String, String)>,

    /// Print the queue as a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,
}

/// Show a queue: what it holds, what came and went, its settings and tags
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue show orders.fifo
  lockgate queue show orders.fifo --json | jq .counts.ready
  lockgate queue show orders.fifo --json | jq .settings.lease_ms")]
pub(crate) struct QueueShow {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,
}

/// Remove all messages of a queue, in flight and delayed ones too
///
/// Says how many there are and asks. In a script, where nobody can answer, say --yes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue purge mail
  lockgate queue purge mail --yes")]
pub(crate) struct QueuePurge {
    /// Print a JSON object: how many messages were removed
    #[arg(long)]
    pub(crate) json: bool,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,
}

/// Delete a queue and all it holds
///
/// Says how many messages there are and asks. In a script, where nobody can answer, say --yes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue delete mail
  lockgate queue delete mail --yes --if-exists")]
pub(crate) struct QueueDelete {
    /// Print a JSON object: name and messages
    #[arg(long)]
    pub(crate) json: bool,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,

    /// Succeed if there is no such queue
    #[arg(long)]
    pub(crate) if_exists: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,
}

/// Make the queues, exchanges and schedules that a file declares, or change them to be so, on a running server
///
/// The file is that of `lockgate serve --queues`: TOML with a [[queue]] for each (its name, tags and any setting of
/// a queue), and an [[exchange]] for each with an [[exchange.bind]] for each binding; or a configuration file of
/// ElasticMQ. The command leaves alone what the file does not name, queues, exchanges and bindings too. Applied again, the same file changes nothing. `lockgate queue export` writes such a file.
///
/// The command checks everything before it makes the first queue, and names what is wrong by file and line. If the
/// server refuses something after all, the queues before it are done: correct the file and apply it again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue apply queues.toml --dry-run
  lockgate queue apply queues.toml
  lockgate queue apply elasticmq.conf --json | jq 'select(.outcome != \"unchanged\")'")]
pub(crate) struct QueueApply {
    /// Say what the command would do, and do nothing
    #[arg(long, short = 'n')]
    pub(crate) dry_run: bool,

    /// What the file is written in: toml, elasticmq, or auto
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "auto",
        help = "What the file is written in: toml, elasticmq, or auto, by its extension"
    )]
    pub(crate) format: Format,

    /// Print one JSON object for each queue and exchange: queue or exchange, outcome, changes
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// File that declares queues; - for standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Stop giving messages to consumers; sending and settling go on
///
/// A paused queue stays paused after a restart, until `lockgate queue resume`. Pausing it again changes nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue pause mail")]
pub(crate) struct QueuePause {
    /// Print a JSON object: the queue
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,
}

/// Give no messages to consumers for a while, as a partner that answers 429 asks for
///
/// What is in flight goes on, and so do sends and settles. The hold survives a restart. One that lasts longer already
/// stays; `none` ends it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue hold mail 30s
  lockgate queue hold mail none")]
pub(crate) struct QueueHold {
    /// Print a JSON object: until when it is held
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,

    /// For how long, up to 366d; `none` ends a hold
    #[arg(value_name = "TIME", value_parser = hold)]
    pub(crate) time: Duration,
}

/// Give messages to consumers again
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue resume mail")]
pub(crate) struct QueueResume {
    /// Print a JSON object: the queue
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,
}

/// Change settings and tags of a queue; what you do not name stays
///
/// The change takes effect at once, also for messages that are there already. The value `default` sets a setting
/// back; `none` removes the value of a setting that may have none.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue set orders.fifo --lease 2m --dead-letter orders-dead.fifo --attempts-max 5
  lockgate queue set orders.fifo --key-policy park --attempts-max 3
  lockgate queue set clicks --level process --quota-messages 1000000
  lockgate queue set mail --delay default --dead-letter none --tag team=ads --untag owner")]
pub(crate) struct QueueSet {
    #[command(flatten)]
    pub(crate) of_queue: SettingFlags,

    /// Tag, NAME=VALUE; repeatable
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = pair)]
    pub(crate) tag: Vec<(String, String)>,

    /// Tag to remove; repeatable
    #[arg(long, value_name = "NAME")]
    pub(crate) untag: Vec<String>,

    /// Print the queue as a JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,

    /// Name of the queue
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) name: String,
}

/// Write the queues, exchanges and schedules of a server as a file that `lockgate queue apply` and `lockgate serve --queues` read
///
/// The file has a [[queue]] in TOML for each queue: its tags, and every setting that is not the default. It has an
/// [[exchange]] for each exchange, with its bindings. Applied to a server without queues it makes the same ones. It has
/// no messages; `lockgate backup` has them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate queue export > queues.toml
  lockgate queue export --prefix orders --endpoint http://127.0.0.1:9400")]
pub(crate) struct QueueExport {
    /// Only queues whose name starts with this, and no exchanges
    #[arg(long, short, value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,

    /// Print one JSON object for each queue and exchange instead, with the names and values of the file
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}
