//! `lockgate import curator`.

mod messages;

use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockgate_client::RemoteQueue;
use lockgate_core::{Fate, Level, Message, QueueName, Sink as _, TransportError, with_sources};
use lockgate_zookeeper::{
    ZookeeperOptions,
    queue::{
        CuratorQueueError, Kind,
        drain::{Drain, DrainOptions, Held, Hold, Listing},
        names,
    },
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{NOTHING, Retry, Signals, client, forward::or_second_signal, part};
use crate::{
    args::{CuratorKind, Import, ImportCurator},
    client::Client,
    exit::{Exit, Failure},
    output::{complain, count, note, tell},
    units::show_duration,
};

/// How many nodes are in hand at a time: each may have 1 MB.
const NODES: usize = 64;

/// What goes into one call, as `lockgate send` does it.
const CALL_MESSAGES_MAX: usize = 100;
const CALL_BYTES_MAX: usize = 1 << 20;

/// How long the queue must remember unique ids at least.
const WINDOW_MIN: Duration = Duration::from_secs(24 * 60 * 60);

/// How long it is until what others hold is looked at again, and what could not be moved.
const BUSY: Duration = Duration::from_millis(500);
const LEFT: Duration = Duration::from_secs(60);

const PROGRESS: Duration = Duration::from_secs(5);

const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Import) -> Result<(), Failure> {
    let Import::Curator(args) = args;
    let url = ZookeeperOptions::parse(&args.url).map_err(Failure::usage)?;
    if url.path().is_empty() {
        return Err(Failure::usage("the URL has no path: which queue is meant?")
            .hint("put the path of the queue's node behind the hosts: zk://HOST:PORT/PATH"));
    }
    let drain = DrainOptions {
        path: url.path().to_owned(),
        lock_path: args.lock_path.clone(),
        session_timeout: SESSION_TIMEOUT,
    };
    let drain = Drain::new(&url, drain).map_err(Failure::usage)?;
    let client = client(&args.settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("lockgate-import")
        .build()
        .map_err(|error| {
            Failure::from_error(Exit::Failed, error).context("starting the runtime")
        })?;
    let result = runtime.block_on(async {
        let mut signals = Signals::new()?;
        if args.dry_run {
            return tokio::select! {
                biased;
                exit = signals.next() => Err(Failure::signal(exit)),
                done = dry_run(args, &drain) => done,
            };
        }
        let (stop, stopped) = watch::channel(false);
        let opened = tokio::select! {
            biased;
            exit = signals.next() => return Err(Failure::signal(exit)),
            opened = open(args, &client) => opened?,
        };
        if args.lock_path.is_none() {
            note(
                "without --lock-path it is assumed that nobody else consumes: consumers in Java would work on what is moved",
            );
        }
        let mut import = Moving {
            args,
            drain,
            kind: kind(args.kind),
            queue: opened,
            counts: Counts::default(),
            left: BTreeMap::new(),
            told: Instant::now(),
            stopped,
        };
        let (moved, exit) = {
            let mut work = std::pin::pin!(import.moves());
            tokio::select! {
                biased;
                exit = signals.next() => {
                    stop.send_replace(true);
                    (or_second_signal(&mut signals, &mut work).await, Some(exit))
                }
                moved = &mut work => (moved, None),
            }
        };
        import.ends(moved, exit)
    });
    runtime.shutdown_background();
    result
}

fn kind(kind: CuratorKind) -> Kind {
    match kind {
        CuratorKind::Delay => Kind::Delay,
        CuratorKind::Plain => Kind::Plain,
        CuratorKind::Priority => Kind::Priority,
        CuratorKind::Id => Kind::Id,
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}

/// The queue that gets the messages.
struct Target {
    queue: RemoteQueue,
    is_keyed: bool,
    /// A level above the queue's own: nodes are deleted only when no crash takes back their messages.
    level: Option<Level>,
    /// How long it surely remembers a unique id.
    window: Duration,
}

async fn open(args: &ImportCurator, client: &Client) -> Result<Target, Failure> {
    let name = QueueName::new(&args.queue).map_err(Failure::usage)?;
    let queue = client.inner().queue(&name).await?;
    let target = format!("/queues/{}", part(&args.queue));
    let described: Value = client.call(hyper::Method::GET, &target, NOTHING).await?;
    let can = queue.sink_capabilities();
    let window = can.unique_id_window.unwrap_or_default();
    if window < WINDOW_MIN {
        let what = match window {
            Duration::ZERO => format!("{name} does not remember unique ids"),
            window => format!(
                "{name} remembers unique ids for {} only",
                show_duration(window)
            ),
        };
        let why = ": what was sent when a run is killed would be there twice after the next one";
        return Err(Failure::usage(what + why).hint(format!(
            "let it remember for longer than you may take to run this again: \
             lockgate queue set {name} --dedup-window 7d"
        )));
    }
    let kind = kind(args.kind);
    if can.keys_only && !matches!(kind, Kind::Plain | Kind::Id) {
        return Err(Failure::usage(format!(
            "{name} is keyed: one key would hold back what is due behind what is not, or is more urgent"
        ))
        .hint("take a queue whose name does not end in .fifo"));
    }
    let level = described["settings"]["level"].as_str().unwrap_or_default();
    Ok(Target {
        is_keyed: can.keys_only,
        level: matches!(level, "memory" | "process").then_some(Level::Disk),
        // The clocks of ZooKeeper and of this machine may differ.
        window: window / 10 * 9,
        queue,
    })
}

async fn dry_run(args: &ImportCurator, drain: &Drain) -> Result<(), Failure> {
    let listing = drain.list().await.map_err(failure)?;
    let listing = listing.ok_or_else(|| missing(args))?;
    let kind = kind(args.kind);
    let fit = listing.names.iter().filter(|name| names::is_of(kind, name));
    let nodes = fit.clone().count();
    let now = now();
    let later = fit.filter(|name| kind == Kind::Delay && names::due(name) > now);
    let later = later.count();
    let others = listing.names.len() - nodes;
    let figures = json!({"nodes": nodes, "later": later, "of_another_kind": others, "foreign": listing.foreign});
    let mut told = format!(
        "{} to move, {later} of them due later",
        count(nodes as u64, "node")
    );
    for (number, what) in [
        (others, "names of another kind"),
        (listing.foreign, "foreign"),
    ] {
        if number > 0 {
            told.push_str(&format!("; {number} {what}"));
        }
    }
    tell(args.json, &figures, &told)
}

fn missing(args: &ImportCurator) -> Failure {
    // The URL may have a password.
    let place = args
        .url
        .rsplit_once('@')
        .map_or(&*args.url, |(_, place)| place);
    let place = place.strip_prefix("zk://").unwrap_or(place);
    Failure::new(Exit::NotFound, format!("ZooKeeper has no queue at {place}"))
}

fn failure(error: CuratorQueueError) -> Failure {
    let exit = match error {
        CuratorQueueError::Invalid(_) => Exit::Usage,
        CuratorQueueError::Unavailable(_) | CuratorQueueError::Unknown(_) => Exit::StoreUnreachable,
        _ => Exit::Failed,
    };
    Failure::from_error(exit, error)
}

#[derive(Default)]
struct Counts {
    nodes: u64,
    items: u64,
    duplicates: u64,
    /// Nodes that somebody else has deleted while they were moved.
    taken_by_others: u64,
}

/// Why a node stays, for now.
struct Left {
    why: String,
    until: Instant,
    /// It is in the hands of others, or has changed.
    is_busy: bool,
}

/// Why the work does not go on.
enum Broken {
    /// It may later.
    Zookeeper(CuratorQueueError),
    Server(TransportError),
    /// It cannot.
    Failed(Failure),
}

impl From<CuratorQueueError> for Broken {
    fn from(error: CuratorQueueError) -> Self {
        match error {
            CuratorQueueError::Unavailable(_) | CuratorQueueError::Unknown(_) => {
                Self::Zookeeper(error)
            }
            error => Self::Failed(failure(error)),
        }
    }
}

impl Broken {
    fn failure(self) -> Failure {
        match self {
            Self::Zookeeper(error) => failure(error),
            Self::Server(error) => {
                let exit = match error.fate {
                    Fate::Unknown => Exit::Timeout,
                    _ => Exit::Unreachable,
                };
                Failure::from_error(exit, error).context("the queue takes no messages")
            }
            Self::Failed(failure) => failure,
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Zookeeper(error) => format!("ZooKeeper does not answer: {error}"),
            Self::Server(error) => format!("the queue takes no messages: {}", with_sources(error)),
            Self::Failed(failure) => failure.to_string(),
        }
    }
}

struct Moving<'a> {
    args: &'a ImportCurator,
    drain: Drain,
    kind: Kind,
    queue: Target,
    counts: Counts,
    left: BTreeMap<String, Left>,
    /// When progress was told last.
    told: Instant,
    stopped: watch::Receiver<bool>,
}

impl Moving<'_> {
    /// Moves what there is; as a mirror, until it is stopped.
    async fn moves(&mut self) -> Result<(), Failure> {
        let mut retry = Retry::new(self.args.patience);
        let (mut has_begun, mut is_told) = (false, false);
        loop {
            let before = self.counts.nodes;
            let broken = match self.pass().await {
                Ok(None) if !has_begun || !self.args.mirror => return Err(missing(self.args)),
                // Those who put make it again.
                Ok(None) => {
                    sleep_until(Instant::now() + BUSY).await;
                    None
                }
                Ok(Some(listing)) => {
                    (has_begun, is_told, retry) = (true, false, Retry::new(self.args.patience));
                    if *self.stopped.borrow() || !self.args.mirror {
                        return Ok(());
                    }
                    self.waits(listing).await;
                    None
                }
                Err(Broken::Failed(failure)) => return Err(failure),
                Err(broken) => Some(broken),
            };
            if self.counts.nodes > before {
                retry = Retry::new(self.args.patience);
                is_told = false;
            }
            if let Some(broken) = &broken
                && !is_told
            {
                is_told = true;
                complain("warning", &format!("{}; tried again", broken.words()));
            }
            if *self.stopped.borrow() {
                return broken.map_or(Ok(()), |broken| Err(broken.failure()));
            }
            if broken.is_none() && has_begun {
                continue;
            }
            if !retry.again().await {
                if !(self.args.mirror && has_begun) {
                    return Err(broken.map_or_else(|| missing(self.args), Broken::failure));
                }
                retry = Retry::new(self.args.patience);
            }
        }
    }

    /// Waits for other nodes, or until some that stay are to be looked at again.
    async fn waits(&mut self, mut listing: Listing) {
        let next = self.left.values().map(|left| left.until).min();
        let mut stopped = self.stopped.clone();
        tokio::select! {
            () = listing.changed() => {}
            () = async { match next {
                Some(next) => sleep_until(next).await,
                None => std::future::pending().await,
            } } => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
    }

    /// Moves the nodes that are there, and those that come meanwhile. `None`: there is no such queue.
    async fn pass(&mut self) -> Result<Option<Listing>, Broken> {
        loop {
            let Some(listing) = self.drain.list().await? else {
                return Ok(None);
            };
            let now = Instant::now();
            let mut names = listing.names.clone();
            let there: HashSet<&String> = listing.names.iter().collect();
            self.left.retain(|name, _| there.contains(name));
            // Only a mirror looks at one again.
            let is_mirror = self.args.mirror;
            let rests = |left: &Left| !is_mirror || left.until > now;
            names.retain(|name| !self.left.get(name).is_some_and(rests));
            names.sort_unstable_by(|one, other| names::order(self.kind, one, other));
            if names.is_empty() {
                return Ok(Some(listing));
            }
            for names in names.chunks(NODES) {
                if *self.stopped.borrow() {
                    return Ok(Some(listing));
                }
                self.some(names).await?;
                self.progress();
            }
        }
    }

    fn progress(&mut self) {
        if self.told.elapsed() >= PROGRESS {
            self.told = Instant::now();
            note(&format!("{} so far", self.words()));
        }
    }

    fn words(&self) -> String {
        let Counts {
            nodes,
            items,
            duplicates,
            ..
        } = self.counts;
        let mut words = format!("moved {} of {}", count(items, "item"), count(nodes, "node"));
        if duplicates > 0 {
            words.push_str(&format!(", of which the queue had {duplicates} already"));
        }
        words
    }

    /// Moves some nodes.
    async fn some(&mut self, names: &[String]) -> Result<(), Broken> {
        let (fit, other): (Vec<_>, Vec<_>) = names
            .iter()
            .cloned()
            .partition(|name| names::is_of(self.kind, name));
        for name in other {
            self.stays(
                &name,
                "the name is of another kind of queue; see --kind".to_owned(),
            );
        }
        let holds = self.drain.hold(&fit).await?;
        let (mut held, mut uncertain) = (Vec::new(), Vec::new());
        for (name, hold) in fit.iter().zip(holds) {
            match hold {
                Hold::Held(node) if self.is_uncertain(&node) => {
                    let why = "an earlier run may have sent it, which the queue may have forgotten; --again sends it again";
                    self.stays(name, why.to_owned());
                    uncertain.push(node);
                }
                Hold::Held(node) => held.push(node),
                Hold::Gone => drop(self.left.remove(name)),
                Hold::Busy => self.is_busy(name),
                Hold::Damaged(damaged) => self.stays(name, damaged.to_string()),
            }
        }
        self.drain.release(&uncertain).await?;
        let sent = self.send(&held).await;
        let sent = match sent {
            Ok(sent) => sent,
            Err(broken) => {
                // What cannot be given back now goes with the session.
                let _ = self.drain.release(&held).await;
                return Err(broken);
            }
        };
        let (mut done, mut refused) = (Vec::new(), Vec::new());
        for (node, sent) in held.into_iter().zip(sent) {
            match sent {
                Ok(duplicates) => done.push((node, duplicates)),
                Err(why) => {
                    self.stays(&node.name, why);
                    refused.push(node);
                }
            }
        }
        let (done, duplicates): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        let deleted = self.drain.done(&done).await?;
        for ((node, duplicates), deleted) in done.iter().zip(duplicates).zip(deleted) {
            self.left.remove(&node.name);
            self.counts.nodes += 1;
            self.counts.items += node.items.len() as u64;
            self.counts.duplicates += duplicates;
            if !deleted {
                self.counts.taken_by_others += 1;
                let name = &node.name;
                complain(
                    "warning",
                    &format!("{name}: it is in the queue, and somebody else may have taken it too"),
                );
            }
        }
        self.drain.release(&refused).await?;
        Ok(())
    }

    /// Whether its items may be in the queue already, which may have forgotten that.
    fn is_uncertain(&self, node: &Held) -> bool {
        let may_be_forgotten = |marked| may_be_forgotten(marked, now(), self.queue.window);
        !self.args.again && node.marked.is_some_and(may_be_forgotten)
    }

    fn is_busy(&mut self, name: &str) {
        let left = Left {
            why: "somebody else holds it".to_owned(),
            until: Instant::now() + BUSY,
            is_busy: true,
        };
        self.left.insert(name.to_owned(), left);
    }

    /// The node stays where it is. It is told once.
    fn stays(&mut self, name: &str, why: String) {
        let is_known = self.left.get(name).is_some_and(|left| left.why == why);
        if !is_known {
            complain("warning", &format!("{name} stays: {why}"));
        }
        let left = Left {
            why,
            until: Instant::now() + LEFT,
            is_busy: false,
        };
        self.left.insert(name.to_owned(), left);
    }

    /// Sends the items of nodes. Of each node: how many of its items the queue had already, or why it does not take one.
    async fn send(&mut self, held: &[Held]) -> Result<Vec<Result<u64, String>>, Broken> {
        let mut nodes: Vec<Result<u64, String>> = Vec::with_capacity(held.len());
        nodes.resize_with(held.len(), || Ok(0));
        let path = self.drain.path();
        let (mut calls, mut bytes) = (vec![Vec::new()], 0);
        for (at, node) in held.iter().enumerate() {
            for (place, item) in node.items.iter().enumerate() {
                let message = match self.message(path, node, place, item) {
                    Ok(message) => message,
                    Err(why) => {
                        nodes[at] = Err(why);
                        break;
                    }
                };
                let last = calls.last().map_or(0, Vec::len);
                if last >= CALL_MESSAGES_MAX || last > 0 && bytes + item.len() > CALL_BYTES_MAX {
                    calls.push(Vec::new());
                    bytes = 0;
                }
                bytes += item.len();
                if let Some(call) = calls.last_mut() {
                    call.push((at, message));
                }
            }
        }
        for call in calls.into_iter().filter(|call| !call.is_empty()) {
            if let Some(lost) = held.iter().find(|node| !self.drain.has(node)) {
                let why = format!("the session was lost in which {} was held", lost.name);
                return Err(Broken::Zookeeper(CuratorQueueError::Unavailable(why)));
            }
            let (of, messages): (Vec<usize>, Vec<Message>) = call.into_iter().unzip();
            let queue = &self.queue.queue;
            let results = match self.queue.is_keyed {
                true => queue.send_in_order(messages).await,
                false => queue.send_batch(messages).await,
            };
            for (at, result) in of.into_iter().zip(results) {
                match (result, &mut nodes[at]) {
                    (Ok(accepted), Ok(duplicates)) => *duplicates += u64::from(accepted.duplicate),
                    (Ok(_), Err(_)) => {}
                    (Err(error), node) => match error.fate {
                        Fate::Refused | Fate::Unsupported => *node = Err(with_sources(&error)),
                        Fate::Stale => {
                            return Err(Broken::Failed(Failure::from_error(Exit::Conflict, error)));
                        }
                        // They are sent again with the same unique ids, if it is not too late then.
                        _ => {
                            return Err(Broken::Server(error));
                        }
                    },
                }
            }
        }
        Ok(nodes)
    }

    fn message(
        &self,
        path: &str,
        node: &Held,
        place: usize,
        item: &[u8],
    ) -> Result<Message, String> {
        let mut message =
            messages::message(self.kind, path, node, place, item, self.queue.is_keyed)?;
        message.level = self.queue.level;
        Ok(message)
    }

    /// Tells what was done.
    fn ends(&self, moved: Result<(), Failure>, exit: Option<Exit>) -> Result<(), Failure> {
        let left = self
            .left
            .iter()
            .map(|(name, left)| json!({"node": name, "why": left.why}));
        let left: Vec<Value> = left.collect();
        let figures = json!({
            "nodes": self.counts.nodes,
            "items": self.counts.items,
            "duplicates": self.counts.duplicates,
            "taken_by_others": self.counts.taken_by_others,
            "left": left,
        });
        let mut words = self.words();
        if !left.is_empty() {
            words.push_str(&format!("; {} left", count(left.len() as u64, "node")));
        }
        for (name, left) in self.left.iter().filter(|(_, left)| left.is_busy) {
            complain("warning", &format!("{name} stays: {}", left.why));
        }
        tell(self.args.json, &figures, &words)?;
        moved?;
        match exit {
            Some(exit) if !self.args.mirror => Err(Failure::signal(exit)),
            _ if !self.args.mirror && !self.left.is_empty() => Err(Failure::failed(format!(
                "{} not moved",
                count(self.left.len() as u64, "node is")
            ))),
            _ => Ok(()),
        }
    }
}

/// Whether a queue that remembers unique ids for so long may have forgotten what was sent after that time.
fn may_be_forgotten(marked: i64, now: i64, window: Duration) -> bool {
    let window = i64::try_from(window.as_millis()).unwrap_or(i64::MAX);
    now.saturating_sub(marked) >= window
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_marked_a_window_ago_may_be_forgotten() {
        let window = Duration::from_secs(10);
        for (marked, now, is_so) in [
            (5_000, 14_999, false),
            (5_000, 15_000, true),
            // The clock of ZooKeeper is ahead.
            (15_001, 5_000, false),
            (i64::MIN, i64::MAX, true),
        ] {
            assert_eq!(may_be_forgotten(marked, now, window), is_so);
        }
        assert!(!may_be_forgotten(0, i64::MAX - 1, Duration::MAX));
    }
}
