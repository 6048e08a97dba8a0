//! `lockgate import`.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::{
    settings::ClientFlags,
    units::{duration, queue_name},
};

/// Move the messages of other systems into a queue
#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    Curator(Box<ImportCurator>),
}

/// Move a queue of Curator, which is in ZooKeeper, into a queue
///
/// Takes the nodes of the queue at URL, due or not, sends their items to the queue of --queue, and then deletes the nodes.
/// Each item is a message of its own, also one of a node that `putMulti` has written; its bytes are the body. An item of a
/// delay queue is not delivered before its due time. The header `curator_id` has the id of an item of an id queue, and
/// `curator_priority` the priority of one of a priority queue, whose lowest number comes first: 0 and below are priority 9
/// of the message, 1 is 8, and 9 and above are 0.
///
/// Kill it whenever you like and run it again: each item is there once. Its unique id is made of the path, the name of its
/// node, the transaction that made the node, and its place in the node. The queue must remember unique ids for a day at
/// least (`lockgate queue set QUEUE --dedup-window 7d`). If a run ends between send and delete, the next one sends again what
/// the queue still remembers; what it may have forgotten stays in ZooKeeper and is named, unless --again is given.
///
/// Without --lock-path it assumes that nobody else consumes: stop the consumers first. With it, it holds each node by the
/// same lock as consumers in Java that are built with this `lockPath`, and leaves alone what they hold. It is killed or loses
/// its session while it holds nodes: then a consumer in Java may work on those too.
///
/// With --mirror it goes on with what programs in Java still put, until SIGINT or SIGTERM. Both end it when what it has in
/// hand is moved; a second signal ends it at once.
///
/// What the queue refuses (because it is too large, for example), what cannot be read, and names of another kind stay in
/// ZooKeeper. Each is named on standard error, with the reason.
///
/// Exit codes: 0 if everything is moved, and with --mirror after a signal; 1 if something stays; 2 if the queue does not
/// remember for long enough; 3 if there is no such queue or node; 122 if ZooKeeper does not answer, and 5 or 6 if the server
/// does not, for as long as --patience.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate import curator zk://zoo1:2181,zoo2:2181/orders --queue orders --dry-run
  lockgate import curator zk://zoo1:2181,zoo2:2181/orders --queue orders
  lockgate import curator zk://zoo1:2181/orders --queue orders --lock-path /locks/orders --mirror
  lockgate import curator zk://zoo1:2181/jobs --queue jobs --kind priority --json | jq .left")]
pub(crate) struct ImportCurator {
    /// The queue in ZooKeeper: zk://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]].../PATH
    #[arg(value_name = "URL")]
    pub(crate) url: String,

    /// Queue that gets the messages
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    /// Which queue of Curator it is: delay, plain (DistributedQueue), priority or id
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        default_value = "delay",
        hide_possible_values = true
    )]
    pub(crate) kind: CuratorKind,

    /// Hold each node by a lock below this path: the `lockPath` of the consumers in Java
    #[arg(long, value_name = "PATH")]
    pub(crate) lock_path: Option<String>,

    /// Go on with what is still put, until a signal
    #[arg(long)]
    pub(crate) mirror: bool,

    /// Also send what the queue may have got from an earlier run and have forgotten
    #[arg(long)]
    pub(crate) again: bool,

    /// Count the nodes, and change nothing
    #[arg(long, conflicts_with = "mirror")]
    pub(crate) dry_run: bool,

    /// How long ZooKeeper or the server may be away; with --mirror any time after the start
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub(crate) patience: Duration,

    /// Print the figures as a JSON object at the end: nodes, items, duplicates, taken_by_others, left
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CuratorKind {
    Delay,
    Plain,
    Priority,
    Id,
}
