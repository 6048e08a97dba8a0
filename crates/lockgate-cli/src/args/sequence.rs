//! `lockgate sequence`.

use std::{net::SocketAddr, time::Duration};

use clap::Args;
use lockgate_core::{ElectionName, HolderName};

use super::{
    forward::address,
    lead::{election, holder},
};
use crate::{
    settings::SequenceFlags,
    units::{duration, queue_name},
};

/// Give the messages of a queue one total order, in a ledger
///
/// Takes messages from the queue of --from at the server of --endpoint, and appends each as an event to the ledger that
/// --ledger names: events have the numbers 1, 2, 3 without a gap, and each message is there once, whatever is killed or
/// lost on the way. Run it in two or more processes: one is active, the others stand by and go on when it is gone. The
/// server's records elect the active one, or the store that --via names does. Whoever was active before appends nothing
/// any more: the ledger refuses the epoch of its term.
///
/// The body of a message is the payload of its event, up to 1MiB. The unique id of the event is the header `unique_id`, or
/// else the unique id of the message; the ledger remembers it for ever, and a second event with it is a duplicate. A
/// message without one is one event all the same, also if it comes again after a crash.
///
/// A message that can never be an event (too large for an event or for a queue of --to, a header `unique_id` that is no
/// unique id, a pack) is rejected with the reason: it goes to the dead-letter queue of --from. If there is none, it stays
/// where it is, away for a minute at a time, with a warning each time; others go on, but those of its key wait behind it.
///
/// Each --to is a queue that gets all events in order, for engines that hear of them that way, or for others. It must be
/// keyed (.fifo): all events have one key. The payload is the body; the headers sequence_id, previous_id, time, epoch,
/// unique_id and hash have the rest. The ledger keeps up to where each queue has everything, under the reader
/// `queue/NAME`, and the next active process goes on from there. What it sends again the queue knows, for as long as its
/// `dedup_window` lasts. A new queue gets all events from the first on.
///
/// With --create the ledger is made if it is not there; --hashed and --retention are for that.
///
/// With --metrics ADDRESS:PORT it serves /metrics, /healthz and /readyz: the figures of this process, the head of the
/// ledger, and how far each queue of --to is behind it.
///
/// It says on standard error when it stands by, when it is active and when it is no longer. SIGINT or SIGTERM: it ends what
/// it is at, and the next one is active at once. `lockgate leaders resign` does the same, and then it stands by again, as
/// it does after its lease was lost, after it could not reach server or ledger, and on any doubt. A second signal ends it at
/// once.
///
/// Exit codes: 0 after a signal, and with --until-empty if no message was rejected; 122 if server, ledger or the store of --via
/// do not answer at the start for as long as a lease; 3 if there is no such queue or ledger; 7 if the server refuses
/// access; 4 if the ledger has seen a later term than the store of the election knows of, or is sealed; 9 if it is damaged
/// or of a newer version; 1 for all else.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate sequence --from orders.fifo --ledger postgres://exchange@db/exchange?ledger=orders --create --hashed
  lockgate sequence --from orders.fifo --to trades-1.fifo --to trades-2.fifo --metrics 127.0.0.1:9400
  lockgate sequence --from orders.fifo --until-empty --json | jq .appended
  lockgate leaders list sequence/orders.fifo")]
pub(crate) struct Sequence {
    /// Queue whose messages are put in order
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) from: String,

    /// Queue that gets all events; repeatable
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) to: Vec<String>,

    /// Make the ledger if it is not there
    #[arg(long)]
    pub(crate) create: bool,

    /// Give each event of a new ledger a running hash, by which readers see that theirs is the same ledger
    #[arg(long, requires = "create")]
    pub(crate) hashed: bool,

    /// How long a new ledger keeps events at least [default: for ever]
    #[arg(long, value_name = "TIME", requires = "create", value_parser = retention)]
    pub(crate) retention: Option<Duration>,

    /// The most messages of one append
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) batch: u16,

    /// How long one receive waits for a first message; a switch waits up to so long
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = wait)]
    pub(crate) wait: Duration,

    /// End when the queue has no message left but delayed ones, and the queues of --to have all events
    #[arg(long)]
    pub(crate) until_empty: bool,

    /// Election of the active process [default: sequence/ and the name of the queue]
    #[arg(long, value_name = "NAME", value_parser = election)]
    pub(crate) election: Option<ElectionName>,

    /// Name as a candidate, for people who look [default: the host's name and the process id]
    #[arg(long, value_name = "NAME", value_parser = holder)]
    pub(crate) name: Option<HolderName>,

    /// How long it is active without a renewal, and has the messages that it has taken: so long the next one waits after a
    /// crash
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) lease: Duration,

    /// Serve /metrics, /healthz and /readyz at this address
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,

    /// Print the figures as a JSON object at the end: appended, duplicates, rejected, unsettled
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: SequenceFlags,
}

fn retention(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => {
            Err("an event that is kept for no time is not there: write 1ms or more".to_owned())
        }
        time => Ok(time),
    }
}

/// The longest wait: a switch would wait as long.
const WAIT_MAX: Duration = Duration::from_secs(20);

fn wait(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => {
            Err("without a wait the server is asked all the time: write 1ms or more".to_owned())
        }
        wait if wait > WAIT_MAX => Err(format!("{text:?} is more than 20s")),
        wait => Ok(wait),
    }
}
