//! The commands about the producers of a queue.

use clap::{Args, Subcommand};
use lockgate_core::ProducerName;

use crate::{settings::ClientFlags, units::queue_name};

/// See which producers a queue knows, and forget them
///
/// A producer numbers what it sends, and opens a queue before it sends. The queue keeps which numbers it has accepted,
/// so what is sent again after any outage is added once.
#[derive(Debug, Subcommand)]
pub(crate) enum Producer {
    List(ProducerList),
    Forget(ProducerForget),
}

impl Producer {
    pub(crate) fn settings(&self) -> &ClientFlags {
        match self {
            Self::List(args) => &args.settings,
            Self::Forget(args) => &args.settings,
        }
    }
}

/// List the producers of a queue
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate producer list clicks
  lockgate producer list clicks --json | jq -r .used_at")]
pub(crate) struct ProducerList {
    /// Stop after this many producers
    #[arg(long, short, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: u64,

    /// Print one JSON object for each producer: name, incarnation, openings, used_at
    #[arg(long)]
    pub(crate) json: bool,

    /// Queue of the producers
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Forget a producer, and what the queue has accepted of it
///
/// For producers that are gone for good, to make room. If one is not, its next send is refused until it has opened the
/// queue again, and what it then sends again is added again. A queue forgets by itself what was not used for its
/// producer-age.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate producer forget clicks collector-7")]
pub(crate) struct ProducerForget {
    /// Print a JSON object: queue, name
    #[arg(long)]
    pub(crate) json: bool,

    /// Queue of the producer
    #[arg(value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: String,

    /// The producer's name
    #[arg(value_name = "PRODUCER", value_parser = producer_name)]
    pub(crate) producer: String,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

fn producer_name(text: &str) -> Result<String, String> {
    match ProducerName::check(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
