//! `lockgate forward`.

use std::{net::SocketAddr, num::NonZeroU32, path::PathBuf, time::Duration};

use clap::Args;
use lockgate_core::ProducerName;
use lockgate_producer::{AnswerLevel, Persist, WhenFull};

use crate::{
    settings::ForwardFlags,
    units::{duration, per_second, queue_name, retry_delay, size},
};

/// Collect messages and forward them to a queue, also while its server is away
///
/// Takes messages from standard input, from another queue, or over HTTP, into a bounded buffer, and sends them in
/// batches to the queue that --to names, at the server of --endpoint. The server need not be there, nor the queue: the
/// command starts, takes messages and tries again until they are. With --spool it keeps them on disk meanwhile, over
/// crashes and restarts: start it again with the same folder, and it sends what is left there. In a queue of
/// Lockgate each message is there once, whatever was killed or lost on the way.
///
/// A message is answered at its level. `accepted`: it is in memory. `durable`: the spool has it on disk. `delivered`:
/// the queue has it. Messages of one key stay in order.
///
/// --from stdin reads lines as `lockgate send` does, one JSON object a line, or with --raw each line as a body. The
/// command ends when all lines have reached the level. At a line that is wrong it stops reading, sends what came before,
/// and exits with 1.
///
/// --from QUEUE receives messages and forwards each as it is: body, key, headers, unique id and the rest. A key becomes a
/// group where --to is not keyed, and a group becomes a key where it is. A message is deleted where it came from when it
/// has reached the level, and comes again if that fails. With --exec COMMAND each goes through COMMAND, run by `sh -c`:
/// the body on its standard input, the environment as for `lockgate receive --exec`. What COMMAND prints is the new body.
/// If COMMAND fails, dies of a signal or takes longer than --exec-timeout, the message comes again after --retry-delay; if
/// it cannot be started (exit code 126 or 127), the run ends. A message that --to can never take is rejected, with the
/// reason: it goes to the dead-letter queue of --from. If there is none, it stays where it is, away for --retry-delay, and
/// the run ends with exit code 1. Packs are taken apart, and each of their messages is forwarded by itself.
///
/// --from http://ADDRESS:PORT listens, by the same rules as `lockgate serve`: other machines only with --allow-remote or
/// access keys (a key needs the grant `send` on the queue of --to), requests of web pages only from --allowed-host, and
/// https:// with --tls-cert and --tls-key. One POST to / is one message: the body is its body, and the headers
/// lockgate-key, lockgate-group, lockgate-id (unique id), content-type and traceparent are what they say. A POST of
/// content-type application/x-ndjson is up to 1000 messages, one a line as `lockgate send` reads them: all lines are
/// read first, then they are taken in their order up to the first that is refused, and the answer has a result for each.
/// Answers are 200 with the message's id when it is delivered, and 202 at a level below; 400 or 413 for what can never be taken; 503
/// with Retry-After where there is no room. /healthz, /readyz and /metrics are beside it.
///
/// With --metrics ADDRESS:PORT the command serves these three pages also where messages do not come over HTTP, by the same
/// rules. `lockgate size --from http://ADDRESS:PORT/metrics` reads there how fast it is, and says how large its buffers must
/// be.
///
/// --when-full says what happens when the buffer is full: `block` waits, `reject` refuses (HTTP: 503), `drop-newest` and
/// `drop-oldest` drop, `spool` keeps on disk only. Default: `spool` with a --spool, else `reject` for HTTP and `block`
/// for all others. What finds the spool full waits, or is refused over HTTP.
///
/// SIGINT or SIGTERM: the command takes nothing more, sends what it has for up to --drain, and says what is left. What is
/// in the spool stays there, and that is exit code 0. Messages that were dropped or rejected are exit code 1; a message
/// that another queue gets back is not dropped. A second signal ends the command at once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate forward --from http://127.0.0.1:8080 --to clicks --spool ./clicks-spool
  tail -F access.log | lockgate forward --from stdin --raw --to access --spool ./access-spool
  lockgate forward --from orders.fifo --to bills.fifo --exec 'jq -c .total' --concurrency 8 --metrics 127.0.0.1:9400
  lockgate forward --from stdin --to orders.fifo --json < orders.jsonl | jq .delivered")]
pub(crate) struct Forward {
    /// Where messages come from: stdin, a queue, or an address to listen on such as http://127.0.0.1:8080
    #[arg(long, value_name = "stdin|QUEUE|URL", value_parser = from)]
    pub(crate) from: From,

    /// Queue that they go to
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) to: String,

    /// When a message is answered: accepted, durable or delivered [default: durable with --spool, else delivered]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    pub(crate) level: Option<AnswerLevel>,

    /// Folder where messages wait on disk; made if it is missing, and used by one command at a time
    #[arg(long, value_name = "DIR")]
    pub(crate) spool: Option<PathBuf>,

    /// The most bytes of the spool's files
    #[arg(long, value_name = "SIZE", requires = "spool", default_value = "1GiB", value_parser = size)]
    pub(crate) spool_max: u64,

    /// So much of the spool's disk stays free
    #[arg(long, value_name = "SIZE", requires = "spool", default_value = "256MiB", value_parser = size)]
    pub(crate) spool_free_min: u64,

    /// When the spool writes to disk: each, every=TIME, count=N, or overflow: only what finds no room in memory
    #[arg(long, value_name = "WHEN", requires = "spool", default_value = "each", value_parser = persist)]
    pub(crate) persist: Persist,

    /// Send at most so many messages a second of those that an earlier run has left, such as 1000/s; new ones with other
    /// keys do not wait for them [default: no limit]
    #[arg(long, value_name = "RATE", requires = "spool", value_parser = replay_rate)]
    pub(crate) replay_rate: Option<NonZeroU32>,

    /// The most messages in memory
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub(crate) buffer_count: u64,

    /// The most bytes of messages in memory
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub(crate) buffer_bytes: u64,

    /// What happens when the buffer is full: block, reject, drop-newest, drop-oldest or spool
    #[arg(long, value_name = "WHAT", value_parser = when_full)]
    pub(crate) when_full: Option<WhenFull>,

    /// Put small messages together, many in one of the queue; `lockgate receive --exec`, `lockgate forward --from QUEUE`
    /// and workers take them apart
    #[arg(long)]
    pub(crate) pack: bool,

    /// Drop a message that has waited so long for the queue [default: it waits for ever]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) deliver_within: Option<Duration>,

    /// Send messages again whose batch was not answered within this time; at a queue of Lockgate none comes twice
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = send_timeout)]
    pub(crate) send_timeout: Duration,

    /// Name as a producer at the queue; never the same twice at the same time [default: a random one, kept in the spool]
    #[arg(long, value_name = "NAME", value_parser = producer)]
    pub(crate) producer: Option<ProducerName>,

    /// How long what there is may be sent after a signal
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) drain: Duration,

    /// From stdin: take each line as the body of a message, as it is
    #[arg(long)]
    pub(crate) raw: bool,

    /// From stdin: ordering key of messages whose line has none
    #[arg(long, short, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// From stdin: group of messages whose line has none
    #[arg(long, short, value_name = "GROUP", conflicts_with = "key")]
    pub(crate) group: Option<String>,

    /// From a queue: put each message through this command; what it prints is the new body
    #[arg(long, short = 'x', value_name = "COMMAND")]
    pub(crate) exec: Option<String>,

    /// From a queue: kill a command that has not ended within this time; its message comes again after --retry-delay
    #[arg(long, value_name = "TIME", requires = "exec", default_value = "5m", value_parser = exec_timeout)]
    pub(crate) exec_timeout: Duration,

    /// From a queue: work on so many messages at the same time, of different keys [default: 1 with --exec, else 100]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) concurrency: Option<u16>,

    /// From a queue: how long a message whose command failed stays away
    #[arg(long, value_name = "TIME", requires = "exec", default_value = "10s", value_parser = retry_delay)]
    pub(crate) retry_delay: Duration,

    /// From a queue: end when no message is left but those that are delayed, failed ones included
    #[arg(long)]
    pub(crate) until_empty: bool,

    /// From stdin or a queue: serve /metrics, /healthz and /readyz at this address
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,

    /// Print the figures as a JSON object at the end
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ForwardFlags,
}

/// Where messages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Stdin,
    Queue(String),
    Http { listen: SocketAddr, https: bool },
}

fn from(text: &str) -> Result<From, String> {
    let url = |rest: &str, https| {
        let listen = rest.strip_suffix('/').unwrap_or(rest).parse();
        listen
            .map(|listen| From::Http { listen, https })
            .map_err(|_| format!("{text:?} has no address and port, such as http://127.0.0.1:8080"))
    };
    match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
        (Some(rest), _) => url(rest, false),
        (_, Some(rest)) => url(rest, true),
        _ if text == "stdin" => Ok(From::Stdin),
        _ => queue_name(text).map(From::Queue).map_err(|error| {
            format!("it is neither stdin nor an address such as http://127.0.0.1:8080, and {error}")
        }),
    }
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |_| format!("{text:?} is no address and port, such as 127.0.0.1:9400");
    text.parse().map_err(wrong)
}

fn level(text: &str) -> Result<AnswerLevel, String> {
    match text {
        "accepted" => Ok(AnswerLevel::Accepted),
        "durable" => Ok(AnswerLevel::Durable),
        "delivered" => Ok(AnswerLevel::Delivered),
        _ => Err(format!(
            "{text:?} is no level: say accepted, durable or delivered"
        )),
    }
}

fn when_full(text: &str) -> Result<WhenFull, String> {
    match text {
        "block" => Ok(WhenFull::Block),
        "reject" => Ok(WhenFull::Reject),
        "drop-newest" => Ok(WhenFull::DropNewest),
        "drop-oldest" => Ok(WhenFull::DropOldest),
        "spool" => Ok(WhenFull::Spool),
        _ => Err(format!(
            "{text:?} is none of block, reject, drop-newest, drop-oldest and spool"
        )),
    }
}

fn persist(text: &str) -> Result<Persist, String> {
    match text.split_once('=') {
        None if text == "each" => Ok(Persist::Each),
        None if text == "overflow" => Ok(Persist::Overflow),
        Some(("every", time)) => match duration(time)? {
            Duration::ZERO => Err("every=0 is each: say so, or a longer time".to_owned()),
            time => Ok(Persist::Every(time)),
        },
        Some(("count", count)) => count
            .parse::<NonZeroU32>()
            .map(Persist::Count)
            .map_err(|_| format!("{count:?} is no whole number from 1 on")),
        _ => Err(format!(
            "{text:?} is none of each, every=TIME, count=N and overflow"
        )),
    }
}

fn replay_rate(text: &str) -> Result<NonZeroU32, String> {
    // A fraction would be a wait of seconds for each message.
    let rate = per_second(text).filter(|rate| rate.fract() == 0.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is checked to be a whole number of that range"
    )]
    let rate = rate
        .filter(|rate| (1.0..=f64::from(u32::MAX)).contains(rate))
        .map(|rate| rate as u32);
    rate.and_then(NonZeroU32::new).ok_or_else(|| {
        format!("{text:?} is no rate: write how many a second, or 1000/s, 60000/m; whole seconds have 1 or more")
    })
}

fn exec_timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a command needs some time: write 1ms or more".to_owned()),
        time => Ok(time),
    }
}

fn send_timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("an answer needs some time: write 1ms or more".to_owned()),
        time => Ok(time),
    }
}

fn producer(text: &str) -> Result<ProducerName, String> {
    ProducerName::new(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_standard_input_an_address_or_a_queue() {
        let http = |listen: &str, https| From::Http {
            listen: listen.parse().unwrap(),
            https,
        };
        for (text, source) in [
            ("stdin", From::Stdin),
            ("orders.fifo", From::Queue("orders.fifo".to_owned())),
            ("http://127.0.0.1:80", http("127.0.0.1:80", false)),
            ("https://[::1]:8443/", http("[::1]:8443", true)),
        ] {
            assert_eq!(from(text).unwrap(), source, "{text}");
        }
        for wrong in [
            "",
            "http://",
            "http://localhost:80",
            "http://127.0.0.1",
            "ftp://1",
            "a b",
        ] {
            assert!(from(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_replay_has_whole_messages_a_second() {
        for (text, rate) in [("1", 1), ("1000/s", 1_000), ("60000/m", 1_000)] {
            assert_eq!(replay_rate(text).unwrap().get(), rate);
        }
        for wrong in [
            "0",
            "0.5",
            "-1",
            "1/m",
            "90/m",
            "5000000000",
            "1/s burst 2",
            "x",
        ] {
            assert!(replay_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn when_to_persist_is_a_word_a_time_or_a_count() {
        for (text, expected) in [
            ("each", Persist::Each),
            ("overflow", Persist::Overflow),
            ("every=50ms", Persist::Every(Duration::from_millis(50))),
            ("count=100", Persist::Count(NonZeroU32::new(100).unwrap())),
        ] {
            assert_eq!(persist(text).unwrap(), expected);
        }
        for wrong in ["", "every", "every=0", "count=0", "count=-1", "each=1"] {
            assert!(persist(wrong).is_err(), "{wrong}");
        }
    }
}
