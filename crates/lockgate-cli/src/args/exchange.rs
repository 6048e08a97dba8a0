//! The commands about exchanges.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use lockgate_core::ExchangeName;

use super::typed_pair;
use crate::settings::ClientFlags;

/// Route messages to queues: each one that is bound to match a message gets a copy, or none does
///
/// An exchange is of one kind: direct matches by the routing key, topic by a pattern of its words, headers by headers,
/// and fanout matches everything. Its bindings lead to queues and to other exchanges.
#[derive(Debug, Subcommand)]
pub(crate) enum Exchange {
    Create(ExchangeCreate),
    List(ExchangeList),
    Show(ExchangeShow),
    Bind(ExchangeBind),
    Unbind(ExchangeUnbind),
    Publish(ExchangePublish),
    Explain(ExchangeExplain),
    Delete(ExchangeDelete),
}

impl Exchange {
    pub(crate) fn settings(&self) -> &ClientFlags {
        match self {
            Self::Create(args) => &args.exchange.settings,
            Self::List(args) => &args.settings,
            Self::Show(args) => &args.exchange.settings,
            Self::Bind(args) => &args.exchange.settings,
            Self::Unbind(args) => &args.exchange.settings,
            Self::Publish(args) => &args.exchange.settings,
            Self::Explain(args) => &args.exchange.settings,
            Self::Delete(args) => &args.exchange.settings,
        }
    }
}

/// Which exchange.
#[derive(Debug, Args)]
pub(crate) struct OneExchange {
    /// The exchange's name
    #[arg(value_name = "EXCHANGE", value_parser = exchange_name)]
    pub(crate) name: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum KindFlag {
    Direct,
    Topic,
    Fanout,
    Headers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnroutableFlag {
    Reject,
    Drop,
}

/// Make an exchange, or change what it does with messages that it cannot route
///
/// If there is one of that name with the same kind and rule, nothing changes. If they are others, the command exits
/// with 4; with --change it changes the rule.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate exchange create events --kind topic
  lockgate exchange create orders --kind direct --alternate unknown-orders
  lockgate exchange create events --kind topic --unroutable drop --change")]
pub(crate) struct ExchangeCreate {
    #[command(flatten)]
    pub(crate) exchange: OneExchange,

    /// How it chooses bindings: direct, topic, fanout or headers
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub(crate) kind: KindFlag,

    /// What becomes of a message for which there is no queue: reject or drop
    #[arg(long, value_enum, value_name = "RULE", default_value_t = UnroutableFlag::Reject, hide_possible_values = true)]
    pub(crate) unroutable: UnroutableFlag,

    /// Exchange that gets messages for which there is no queue
    #[arg(long, value_name = "EXCHANGE", value_parser = exchange_name, conflicts_with = "unroutable")]
    pub(crate) alternate: Option<String>,

    /// If there is one with another rule, change the rule
    #[arg(long)]
    pub(crate) change: bool,
}

/// List exchanges
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate exchange list
  lockgate exchange list orders- --json | jq -r .name")]
pub(crate) struct ExchangeList {
    /// Only names that start with this
    #[arg(value_name = "PREFIX")]
    pub(crate) prefix: Option<String>,

    /// Stop after this many exchanges
    #[arg(long, short, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: u64,

    /// Print one JSON object for each exchange
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Show an exchange with its bindings and counts
///
/// With --json it prints an object: exchange, bindings.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate exchange show events
  lockgate exchange show events --json | jq '.bindings[].to'")]
pub(crate) struct ExchangeShow {
    #[command(flatten)]
    pub(crate) exchange: OneExchange,

    /// Stop after this many bindings
    #[arg(long, short, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: u64,
}

/// Where a binding leads.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct BindingTo {
    /// Queue that gets a copy of each message that matches
    #[arg(long, value_name = "QUEUE")]
    pub(crate) queue: Option<String>,

    /// Exchange that routes each message that matches on
    #[arg(long, value_name = "EXCHANGE", value_parser = exchange_name)]
    pub(crate) to_exchange: Option<String>,
}

/// What a binding matches by.
#[derive(Debug, Args)]
pub(crate) struct BindingPattern {
    /// Routing key that it matches, of a direct exchange
    #[arg(long, short, value_name = "KEY", conflicts_with_all = ["topic", "header"])]
    pub(crate) routing_key: Option<String>,

    /// Words that it matches, of a topic exchange: * is one word, # any number of them
    #[arg(long, short, value_name = "TOPIC", conflicts_with = "header")]
    pub(crate) topic: Option<String>,

    /// Header that it matches, of a headers exchange: NAME=VALUE, or NAME for any value; repeatable
    #[arg(long, short = 'H', value_name = "NAME[=VALUE]")]
    pub(crate) header: Vec<String>,

    /// One of the headers is enough
    #[arg(long, requires = "header")]
    pub(crate) any: bool,
}

/// Bind an exchange to a queue, or to another exchange
///
/// If there is a binding that matches by the same to the same place, its options are replaced. A filter is a filter
/// policy of Amazon SNS, in JSON.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate exchange bind events --queue orders.fifo --topic 'orders.*.eu' --key-from-header customer
  lockgate exchange bind events --queue audit --topic '#' --skip-when-full
  lockgate exchange bind all --to-exchange events --filter '{\"store\": [{\"prefix\": \"eu-\"}]}'
  lockgate exchange bind jobs --queue images --header type=image --header urgent --any")]
pub(crate) struct ExchangeBind {
    #[command(flatten)]
    pub(crate) exchange: OneExchange,

    #[command(flatten)]
    pub(crate) to: BindingTo,

    #[command(flatten)]
    pub(crate) pattern: BindingPattern,

    /// Only messages that this filter policy matches, by their headers
    #[arg(long, value_name = "JSON")]
    pub(crate) filter: Option<String>,

    /// The filter looks at the body, which is JSON
    #[arg(long, requires = "filter")]
    pub(crate) filter_body: bool,

    /// Header whose value becomes the key of the queue's copy, or its group where the queue is not keyed
    #[arg(long, value_name = "NAME", conflicts_with = "key_from_routing_key")]
    pub(crate) key_from_header: Option<String>,

    /// The routing key becomes the key of the queue's copy, or its group
    #[arg(long)]
    pub(crate) key_from_routing_key: bool,

    /// Leave the queue out where it is full; otherwise the publish is refused
    #[arg(long)]
    pub(crate) skip_when_full: bool,

    /// Topic in whose name copies are wrapped, as Amazon SNS wraps a message for a queue
    #[arg(long, value_name = "TOPIC")]
    pub(crate) envelope: Option<String>,

    /// Queue that gets what the queue does not take, because it is full or the copy is too large for it
    #[arg(long, value_name = "QUEUE")]
    pub(crate) overflow: Option<String>,
}

/// Remove a binding
///
/// Names it by where it leads and what it matches by. If there is none, the command exits with 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate exchange unbind events --queue orders.fifo --topic 'orders.*.eu'
  lockgate exchange unbind all --to-exchange events")]
pub(crate) struct ExchangeUnbind {
    #[command(flatten)]
    pub(crate) exchange: OneExchange,

    #[command(flatten)]
    pub(crate) to: BindingTo,

    #[command(flatten)]
    pub(crate) pattern: BindingPattern,
}

/// Publish messages to an exchange
///
/// Each queue that the exchange finds for a message gets a copy, or none does. If there is no queue, and the exchange
/// rejects such messages, the command exits with 4.
///
/// With --lines it publishes many messages, one JSON object a line, as `lockgate send` reads them, with a routing_key:
/// {"routing_key": "orders.new.eu", "body": "17"}. It stops at the first that is refused. If an answer is lost, it publishes
/// messages again that have unique ids: queues that remember ids (dedup_window) get each of them once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate exchange publish events --routing-key orders.new.eu '{\"order\": 17}' --header customer=42
  lockgate exchange publish all --file report.pdf --unique-id report-7
  lockgate exchange publish events --lines events.jsonl --unique-ids")]
pub(crate) struct ExchangePublish {
    #[command(flatten)]
    pub(crate) exchange: OneExchange,

    /// The message's body
    #[arg(value_name = "BODY", required_unless_present_any = ["file", "lines"])]
    pub(crate) body: Option<String>,

    /// File whose bytes are the body; - is standard input
    #[arg(long, short, value_name = "FILE", conflicts_with = "body")]
    pub(crate) file: Option<PathBuf>,

    /// File with one JSON object a line; - is standard input
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["body", "file", "unique_id"])]
    pub(crate) lines: Option<PathBuf>,

    /// Give each line that has no unique id one of its own
    #[arg(long, conflicts_with_all = ["body", "file"])]
    pub(crate) unique_ids: bool,

    /// What direct and topic exchanges route by; a line of JSON may have its own [default: nothing]
    #[arg(
        long,
        short,
        value_name = "KEY",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) routing_key: String,

    /// Key of the copies in keyed queues, and group of the others, unless a binding says otherwise
    #[arg(long, short, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Unique id for deduplication, in each queue; for one message only
    #[arg(long, value_name = "ID")]
    pub(crate) unique_id: Option<String>,

    /// Header of the message, NAME=VALUE or NAME:TYPE=VALUE; repeatable
    #[arg(long, short = 'H', value_name = "NAME=VALUE", value_parser = typed_pair)]
    pub(crate) header: Vec<(String, String, String)>,
}

/// Show which bindings a message matches, and where it would go
///
/// Publishes nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate exchange explain events orders.new.eu
  lockgate exchange explain events orders.new.eu --header store=eu-1 --body '{\"order\": 17}' --json")]
pub(crate) struct ExchangeExplain {
    #[command(flatten)]
    pub(crate) exchange: OneExchange,

    /// The routing key
    #[arg(
        value_name = "ROUTING_KEY",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) routing_key: String,

    /// Header of the message, NAME=VALUE or NAME:TYPE=VALUE; repeatable
    #[arg(long, short = 'H', value_name = "NAME=VALUE", value_parser = typed_pair)]
    pub(crate) header: Vec<(String, String, String)>,

    /// Body of the message, for filters that look at it
    #[arg(long, value_name = "BODY")]
    pub(crate) body: Option<String>,
}

/// Delete an exchange with its bindings
///
/// If another exchange leads to it, it stays and the command exits with 4. With --force, bindings to it go too, and
/// exchanges whose alternate it is reject what they cannot route.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate exchange delete events --yes
  lockgate exchange delete events --force --yes")]
pub(crate) struct ExchangeDelete {
    #[command(flatten)]
    pub(crate) exchange: OneExchange,

    /// Also if other exchanges lead to it
    #[arg(long)]
    pub(crate) force: bool,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

fn exchange_name(text: &str) -> Result<String, String> {
    let name = ExchangeName::new(text);
    name.map_or_else(|error| Err(error.to_string()), |name| Ok(name.to_string()))
}
