//! What asks ZooKeeper: puts, claims, and finishes items.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockgate_coordination::shell::Pauses;
use lockgate_core::coordination::CoordinationError;
use tokio::{
    sync::{Mutex as Turn, Notify, watch},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use zookeeper_client::{CreateMode, Error, MultiWriteResult, SessionState};

use super::{
    names::{self, Kind, Place},
    payload::{self, Damaged},
    schedule::{Next, Schedule},
};
use crate::{
    options::ZookeeperOptions,
    session::{Child, Failed, Session, Sessions, Watching},
};

/// The longest answer that a Java client reads, unless it is told otherwise (`jute.maxbuffer`).
const LONGEST_LIST: usize = 1_048_575;

/// What such an answer has beside the names, and beside each name: its length.
const BESIDE_LIST: usize = 88;
const BESIDE_NAME: usize = 4;

/// How many digits ZooKeeper puts behind a name.
const DIGITS: usize = 10;

/// So few names need no look at their lengths.
const FEW: usize = 32;

/// After which time an item is tried again that others hold, or that cannot be read and has nowhere to go.
const RETRY: i64 = 500;
const RETRY_DAMAGED: i64 = 60_000;

/// After which time the items are listed again though all changes should have been told.
const LIST_AGAIN: Duration = Duration::from_secs(60);

/// How items are taken. All programs of one queue must do it in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taking {
    /// With a lock node below this path, the same as that of the Java programs (`lockPath`). No item is lost; one comes
    /// again if its holder dies.
    LockSafe(String),
    /// An item is deleted before it is handed out, as Curator does without `lockPath`: it is lost if its holder dies.
    AtMostOnce,
}

/// What becomes of an item that has failed, as Curator's `ErrorMode` says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorMode {
    /// It is put again, and comes again after a while.
    #[default]
    Requeue,
    /// It is deleted, or goes to the dead letters if there are any.
    Delete,
}

/// What a queue is.
#[derive(Clone, Debug)]
pub struct CuratorQueueOptions {
    /// Its node.
    pub path: String,
    /// Whose names its items have.
    pub kind: Kind,
    /// How items are taken; it has to be said.
    pub taking: Option<Taking>,
    /// A put is refused if that many items are there.
    pub max_items: Option<u32>,
    /// What becomes of an item that has failed.
    pub error_mode: ErrorMode,
    /// After that many failures an item goes to the dead letters, if there are any.
    pub max_attempts: u32,
    /// The node below which items go that have failed too often or cannot be read.
    pub dead_letters: Option<String>,
    /// How long an item rests after its first failure. It is twice as long after each next one, up to an hour.
    pub backoff: Duration,
    /// After which time ZooKeeper gives up whoever says nothing.
    pub session_timeout: Duration,
}

impl CuratorQueueOptions {
    /// With three attempts and no bound. How items are taken is still to be said.
    #[must_use]
    pub fn new(path: &str, kind: Kind) -> Self {
        Self {
            path: path.to_owned(),
            kind,
            taking: None,
            max_items: None,
            error_mode: ErrorMode::Requeue,
            max_attempts: 3,
            dead_letters: None,
            backoff: Duration::from_secs(1),
            session_timeout: Duration::from_secs(10),
        }
    }
}

/// Why a queue did not do what it was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum CuratorQueueError {
    /// Nobody said how items are taken.
    NotChosen,
    /// A setting or an item is wrong; the text says how.
    Invalid(String),
    /// The queue has as many items as it may have: that many.
    Full(u32),
    /// With one more item, a Java client could not list that many any more.
    ListTooLong(u32),
    /// ZooKeeper did nothing, and says why.
    Refused(String),
    /// ZooKeeper does not answer, and did nothing.
    Unavailable(String),
    /// It may have been done: no answer came.
    Unknown(String),
    /// The item is not this holder's any more: its session is over, or another one has its lock.
    NotHeld,
}

impl fmt::Display for CuratorQueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotChosen => f.write_str(
                "say how items are taken: lock-safe, with the lock path of the Java programs, by which none is lost and \
                 some may come again; or at most once, as Java programs without a lock path do, by which an item is lost \
                 if its holder dies. Both in one queue take what others hold",
            ),
            Self::Invalid(why) | Self::Refused(why) | Self::Unavailable(why) => f.write_str(why),
            Self::Full(items) => write!(f, "the queue is full: it has {items} items"),
            Self::ListTooLong(items) => write!(
                f,
                "the queue has {items} items: with more, Java clients cannot list it (jute.maxbuffer)"
            ),
            Self::Unknown(why) => write!(f, "it may have been done: {why}"),
            Self::NotHeld => f.write_str("the item is not held any more"),
        }
    }
}

impl std::error::Error for CuratorQueueError {}

type Outcome<T> = Result<T, CuratorQueueError>;

pub(super) fn changed(failed: Failed) -> CuratorQueueError {
    match failed {
        Failed::Lost(why) => CuratorQueueError::Unknown(why),
        Failed::Refused(error) => {
            CuratorQueueError::Refused(format!("ZooKeeper refuses it: {error}"))
        }
    }
}

pub(super) fn read(failed: Failed) -> CuratorQueueError {
    match failed {
        Failed::Lost(why) => CuratorQueueError::Unavailable(why),
        refused => changed(refused),
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}

/// A queue that Java programs may have open with Curator.
#[derive(Clone, Debug)]
pub struct CuratorQueue(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: CuratorQueueOptions,
    taking: Taking,
    sessions: Sessions,
    schedule: Mutex<Schedule>,
    /// An item was let go, of which ZooKeeper tells nothing.
    let_go: Notify,
    /// Whoever takes looks at the queue alone, by what was listed and what tells of changes.
    view: Turn<Option<View>>,
    /// How many puts are under way.
    puts: watch::Sender<usize>,
    /// How many nodes were listed last for a put, and how many bytes their names are.
    lengths: Mutex<Option<(usize, usize)>>,
    listeners: Mutex<Listeners>,
    connection: watch::Sender<Connection>,
    /// Whose connection is followed.
    followed: Mutex<Option<(Arc<Session>, JoinHandle<()>)>>,
}

/// What was listed, and is followed since.
#[derive(Debug)]
struct View {
    session: Arc<Session>,
    changes: Watching,
    listed: Instant,
}

type Listener = Arc<dyn Fn(&str, &[&[u8]]) + Send + Sync>;

#[derive(Clone, Default)]
struct Listeners(Vec<Listener>);

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} listeners", self.0.len())
    }
}

/// How the connection with ZooKeeper is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connection {
    /// A server answers.
    Connected,
    /// None does: Curator's `SUSPENDED`. What is in hand is held as long as the session lives.
    Suspended,
    /// The session is over: Curator's `LOST`. What was in hand comes again.
    Lost,
}

/// What a queue has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauges {
    /// Nodes that ZooKeeper has: items, and foreign ones.
    pub nodes: u32,
    /// Items that are known here.
    pub items: usize,
    /// Those of them that could be taken now.
    pub due: usize,
    /// Items in hand here.
    pub in_hand: usize,
    /// Puts under way here.
    pub puts: usize,
}

/// An item that is being put again. What appears meanwhile is given out behind it, as it may be this item.
struct Requeue(Arc<Inner>);

impl Requeue {
    fn begin(queue: &Arc<Inner>) -> Self {
        queue.schedule().requeue_begins();
        Self(queue.clone())
    }
}

impl Drop for Requeue {
    fn drop(&mut self) {
        self.0.schedule().requeue_ends();
        self.0.let_go.notify_one();
    }
}

/// A put under way.
struct Putting<'a>(&'a watch::Sender<usize>);

impl<'a> Putting<'a> {
    fn begin(puts: &'a watch::Sender<usize>) -> Self {
        puts.send_modify(|puts| *puts += 1);
        Self(puts)
    }
}

impl Drop for Putting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|puts| *puts -= 1);
    }
}

/// A node's items, in hand.
#[derive(Debug)]
pub struct Taken {
    /// In the order in which they were put.
    pub items: Vec<Vec<u8>>,
    /// The node's name.
    pub name: String,
    /// How often it has failed before.
    pub attempts: u32,
    bytes: Vec<u8>,
    hold: Hold,
}

/// An item in hand. Dropped, it is let go, and its lock is deleted.
#[derive(Debug)]
struct Hold {
    queue: Arc<Inner>,
    session: Arc<Session>,
    name: String,
    /// The versions of item and lock which are the claim.
    claim: Option<(i32, i32)>,
    is_over: bool,
}

impl CuratorQueue {
    /// Opens a queue at a ZooKeeper, and makes its nodes if they are not there.
    ///
    /// # Errors
    /// [`NotChosen`](CuratorQueueError::NotChosen) if it is not said how items are taken.
    pub async fn open(options: &ZookeeperOptions, queue: CuratorQueueOptions) -> Outcome<Self> {
        let taking = queue.taking.clone().ok_or(CuratorQueueError::NotChosen)?;
        let inner = Inner {
            taking,
            sessions: Sessions::new(options.clone()),
            schedule: Mutex::new(Schedule::new(queue.kind)),
            let_go: Notify::new(),
            view: Turn::new(None),
            puts: watch::Sender::new(0),
            lengths: Mutex::default(),
            listeners: Mutex::default(),
            connection: watch::Sender::new(Connection::Connected),
            followed: Mutex::default(),
            options: queue,
        };
        let session = inner.session().await?;
        inner.make(&session, &inner.options.path).await?;
        if let Taking::LockSafe(path) = &inner.taking {
            inner.make(&session, path).await?;
        }
        if let Some(path) = &inner.options.dead_letters {
            inner.make(&session, path).await?;
        }
        Ok(Self(Arc::new(inner)))
    }

    /// Puts items into one node, and returns its name when ZooKeeper has it.
    ///
    /// # Errors
    /// [`Unknown`](CuratorQueueError::Unknown) if no answer came: the items may be there, and it is not tried again.
    pub async fn put<T: AsRef<[u8]>>(&self, place: Place<'_>, items: &[T]) -> Outcome<String> {
        let (inner, options) = (&self.0, &self.0.options);
        let _putting = Putting::begin(&inner.puts);
        let invalid = |why: &str| CuratorQueueError::Invalid(why.to_owned());
        if place.kind() != options.kind {
            return Err(invalid("the queue is of another kind"));
        }
        let name = place
            .name()
            .ok_or_else(|| invalid("an item is due behind 1970, and no id is empty"))?;
        let bytes = payload::encode(items)
            .ok_or_else(|| invalid("ZooKeeper takes no more than 1 MB at a time"))?;
        let session = inner.session().await?;
        let there = inner.nodes(&session).await?;
        if options.max_items.is_some_and(|most| there >= most) {
            return Err(CuratorQueueError::Full(there));
        }
        if !inner
            .is_listable(&session, there, name.len() + DIGITS)
            .await?
        {
            return Err(CuratorQueueError::ListTooLong(there));
        }
        let path = format!("{}/{name}", options.path);
        let mode = CreateMode::PersistentSequential.with_acls(session.acls());
        let made = session.client().create(&path, &bytes, &mode).await;
        let (_, number) = made.map_err(|error| changed(session.failed(error)))?;
        let name = format!("{name}{number}");
        let listeners = inner
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if !listeners.0.is_empty() {
            let items: Vec<&[u8]> = items.iter().map(AsRef::as_ref).collect();
            for listener in listeners.0 {
                listener(&name, &items);
            }
        }
        Ok(name)
    }

    /// Puts items into one node, and waits for room for so long if the queue is full.
    ///
    /// # Errors
    /// As of [`put`](Self::put); [`Full`](CuratorQueueError::Full) if there was no room in time.
    pub async fn put_within<T: AsRef<[u8]>>(
        &self,
        place: Place<'_>,
        items: &[T],
        within: Duration,
    ) -> Outcome<String> {
        let (_putting, until) = (Putting::begin(&self.0.puts), Instant::now() + within);
        let mut pauses = Pauses::default();
        loop {
            match self.put(place, items).await {
                Err(CuratorQueueError::Full(items)) => {
                    // No longer than that: a wait that is dropped has put nothing.
                    if timeout_at(until, pauses.wait()).await.is_err() {
                        return Err(CuratorQueueError::Full(items));
                    }
                }
                other => return other,
            }
        }
    }

    /// Waits until no put of this queue is under way, of its clones neither, but no longer than that. False: some are.
    pub async fn flush(&self, within: Duration) -> bool {
        let mut puts = self.0.puts.subscribe();
        // The sender lives as long as this.
        timeout(within, puts.wait_for(|puts| *puts == 0))
            .await
            .is_ok()
    }

    /// Calls this after each put that ZooKeeper has confirmed, with the node's name and the items.
    pub fn on_put(&self, listener: impl Fn(&str, &[&[u8]]) + Send + Sync + 'static) {
        let mut listeners = self
            .0
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        listeners.0.push(Arc::new(listener));
    }

    /// How the connection is, and what becomes of it.
    #[must_use]
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.0.connection.subscribe()
    }

    /// Deletes the items with that id, of an id queue, and returns how many nodes they were. What somebody holds stays.
    ///
    /// # Errors
    /// [`Invalid`](CuratorQueueError::Invalid) of a queue of another kind.
    pub async fn remove(&self, id: &str) -> Outcome<usize> {
        let inner = &self.0;
        if inner.options.kind != Kind::Id {
            let why = "only items of an id queue have ids";
            return Err(CuratorQueueError::Invalid(why.to_owned()));
        }
        let session = inner.session().await?;
        let children = session.children(&inner.options.path).await.map_err(read)?;
        let (id, mut removed) = (names::clean(id), 0);
        for name in children {
            let is_it = names::is_item(&name) && names::id(&name) == Some(&id);
            if is_it
                && inner.schedule().claims(&name)
                && let Some(taken) = Hold::begin(inner, &session, name).claim().await?
            {
                match taken.done().await {
                    Ok(()) => removed += 1,
                    Err(CuratorQueueError::NotHeld) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(removed)
    }

    /// What the queue has.
    ///
    /// # Errors
    /// If ZooKeeper does not answer.
    pub async fn gauges(&self) -> Outcome<Gauges> {
        let session = self.0.session().await?;
        let nodes = self.0.nodes(&session).await?;
        let schedule = self.0.schedule();
        Ok(Gauges {
            nodes,
            items: schedule.len(),
            due: schedule.due(now()),
            in_hand: schedule.in_hand(),
            puts: *self.0.puts.borrow(),
        })
    }

    /// Waits for an item that is due, and takes it. It goes on when an answer is lost, and in a new session when one has
    /// ended. If this is dropped, nothing is in hand; of a queue that is taken at most once, an item may be lost.
    ///
    /// # Errors
    /// [`Unavailable`](CuratorQueueError::Unavailable) if no server begins a session for as long as its timeout. Of a queue
    /// that is taken at most once, [`Unknown`](CuratorQueueError::Unknown) if no answer says who has deleted an item.
    pub async fn take(&self) -> Outcome<Taken> {
        let inner = &self.0;
        let mut view = inner.view.lock().await;
        let mut pauses = Pauses::default();
        loop {
            let is_fresh = view.as_ref().is_some_and(View::is_fresh);
            if !is_fresh {
                *view = None;
                let session = inner.session().await?;
                match Inner::view(inner, session).await {
                    Ok(new) => *view = Some(new),
                    Err(Failed::Lost(_)) => {
                        pauses.wait().await;
                        continue;
                    }
                    Err(refused) => return Err(read(refused)),
                }
            }
            let Some(View {
                session,
                changes,
                listed,
            }) = &mut *view
            else {
                continue;
            };
            let list_again = *listed + LIST_AGAIN;
            let next = inner.schedule().next(now());
            match next {
                Next::Claim(name) => {
                    let hold = Hold::begin(inner, session, name);
                    match hold.claim().await {
                        Ok(Some(taken)) => return Ok(taken),
                        Ok(None) => pauses.over(),
                        // It is let go, and comes again.
                        Err(CuratorQueueError::Unknown(_) | CuratorQueueError::Unavailable(_))
                            if inner.taking != Taking::AtMostOnce =>
                        {
                            pauses.wait().await;
                        }
                        Err(error) => return Err(error),
                    }
                }
                Next::WaitUntil(time) => {
                    let wait = u64::try_from(time.saturating_sub(now())).unwrap_or(0);
                    tokio::select! {
                        () = sleep(Duration::from_millis(wait)) => {}
                        () = sleep_until(list_again) => {}
                        () = inner.let_go.notified() => {}
                        () = changes.changed() => {}
                    }
                }
                Next::Wait => tokio::select! {
                    () = sleep_until(list_again) => {}
                    () = inner.let_go.notified() => {}
                    () = changes.changed() => {}
                },
            }
        }
    }

    /// How many items were listed last, and how many of them are in hand here.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let schedule = self.0.schedule();
        (schedule.len(), schedule.in_hand())
    }
}

impl View {
    fn is_fresh(&self) -> bool {
        self.session.lives() && !self.changes.has_changed() && self.listed.elapsed() < LIST_AGAIN
    }
}

impl Inner {
    async fn session(&self) -> Outcome<Arc<Session>> {
        let session = self.sessions.with(self.options.session_timeout).await;
        let session = session.map_err(|error| match error {
            CoordinationError::Invalid { why } => CuratorQueueError::Invalid(why),
            other => CuratorQueueError::Unavailable(other.to_string()),
        })?;
        self.follow_connection(&session);
        Ok(session)
    }

    /// Lists the items, and follows them since. A server older than 3.6 tells only that something has changed.
    async fn view(inner: &Arc<Self>, session: Arc<Session>) -> Result<View, Failed> {
        let (path, listed) = (&inner.options.path, Instant::now());
        let changes = match session.follow(path).await {
            Ok(following) => {
                // It is there while its watch is.
                let children = session.children(path).await?;
                inner.schedule().listed(children);
                let inner = Arc::downgrade(inner);
                following.tells(move |child| {
                    let Some(inner) = inner.upgrade() else {
                        return false;
                    };
                    match child {
                        Child::Appeared(name) => inner.schedule().appeared(name),
                        Child::Vanished(name) => inner.schedule().vanished(name),
                    }
                    inner.let_go.notify_one();
                    true
                })
            }
            Err(Failed::Refused(Error::Unimplemented)) => {
                let (children, changes) = session.watch_children(path).await?;
                inner.schedule().listed(children);
                changes
            }
            Err(failed) => return Err(failed),
        };
        Ok(View {
            session,
            changes,
            listed,
        })
    }

    /// How many nodes are below the queue's.
    async fn nodes(&self, session: &Session) -> Outcome<u32> {
        let stat = session.client().check_stat(&self.options.path).await;
        let stat = stat.map_err(|error| read(session.failed(error)))?;
        Ok(stat.map_or(0, |stat| u32::try_from(stat.num_children).unwrap_or(0)))
    }

    /// Whether Java clients can list the queue with one more name of that length. Names differ in length, so a queue of some
    /// size is listed for it: again when it has grown or shrunk by an eighth, and before a put is refused.
    async fn is_listable(&self, session: &Session, there: u32, name: usize) -> Outcome<bool> {
        let (there, new) = (there as usize, BESIDE_NAME + name);
        let room = LONGEST_LIST - BESIDE_LIST;
        if there <= FEW {
            return Ok((there + 1) * new <= room);
        }
        let known = *self.lengths();
        if let Some((nodes, bytes)) = known
            && there.abs_diff(nodes) <= FEW + there / 8
        {
            let average = bytes.div_ceil(nodes.max(1));
            let grown = there.saturating_sub(nodes) * average.max(new);
            if bytes + grown + new <= room {
                return Ok(true);
            }
        }
        let children = session.children(&self.options.path).await.map_err(read)?;
        let bytes = children.iter().map(|name| BESIDE_NAME + name.len()).sum();
        *self.lengths() = Some((children.len(), bytes));
        Ok(bytes + new <= room)
    }

    fn lengths(&self) -> std::sync::MutexGuard<'_, Option<(usize, usize)>> {
        self.lengths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of the connection of a new session until it is over.
    fn follow_connection(&self, session: &Arc<Session>) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((last, task)) = &*followed {
            if Arc::ptr_eq(last, session) {
                return;
            }
            // What it would tell is of a session that is over.
            task.abort();
            self.connection.send_replace(Connection::Lost);
        }
        let (connection, mut states) = (self.connection.clone(), session.states());
        let task = session.runtime.spawn(async move {
            let mut state = states.state();
            loop {
                let told = match state {
                    SessionState::Disconnected => Connection::Suspended,
                    state if state.is_terminated() => Connection::Lost,
                    _ => Connection::Connected,
                };
                connection.send_if_modified(|last| std::mem::replace(last, told) != told);
                if told == Connection::Lost {
                    return;
                }
                state = states.changed().await;
            }
        });
        *followed = Some((session.clone(), task));
    }

    fn schedule(&self) -> std::sync::MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node that stays, and those above it, which go when they are empty.
    async fn make(&self, session: &Session, path: &str) -> Outcome<()> {
        session.make_parents(path).await.map_err(read)?;
        let mode = CreateMode::Persistent.with_acls(session.acls());
        match session.client().create(path, b"", &mode).await {
            Ok(_) | Err(Error::NodeExists) => Ok(()),
            Err(error) => Err(read(session.failed(error))),
        }
    }
}

impl Hold {
    /// Of an item that the schedule has in hand.
    fn begin(queue: &Arc<Inner>, session: &Arc<Session>, name: String) -> Self {
        Self {
            queue: queue.clone(),
            session: session.clone(),
            name,
            claim: None,
            is_over: false,
        }
    }

    fn item(&self) -> String {
        format!("{}/{}", self.queue.options.path, self.name)
    }

    fn lock(&self) -> Option<String> {
        match &self.queue.taking {
            Taking::LockSafe(path) => Some(format!("{path}/{}", self.name)),
            Taking::AtMostOnce => None,
        }
    }

    fn failed(&self, error: Error) -> CuratorQueueError {
        changed(self.session.failed(error))
    }

    /// `None`: somebody else has or had it, or it cannot be read.
    async fn claim(mut self) -> Outcome<Option<Taken>> {
        let (item, session) = (self.item(), self.session.clone());
        let client = session.client();
        if let Some(lock) = self.lock() {
            let mode = CreateMode::Ephemeral.with_acls(session.acls());
            match client.create(&lock, b"", &mode).await {
                Ok(_) => {}
                Err(Error::NodeExists) => return Ok(None),
                Err(error) => return Err(self.failed(error)),
            }
        }
        let (bytes, stat) = match client.get_data(&item).await {
            Ok(found) => found,
            Err(Error::NoNode) => {
                // The lock goes when this is dropped.
                self.queue.schedule().gone(&self.name);
                return Ok(None);
            }
            Err(error) => return Err(read(session.failed(error))),
        };
        let items =
            payload::decode(&bytes).map(|items| items.into_iter().map(<[u8]>::to_vec).collect());
        let is_damaged = items.is_err();
        let attempts = self.queue.schedule().attempts(&self.name);
        if let Some(lock) = self.lock() {
            let mut writer = client.new_multi_writer();
            let added = writer.add_set_data(&lock, b"", Some(0));
            let added = added.and_then(|()| writer.add_set_data(&item, &bytes, Some(stat.version)));
            added.map_err(|error| self.failed(error))?;
            match writer.commit().await.map_err(Error::from) {
                Ok(_) => self.claim = Some((stat.version + 1, 1)),
                Err(Error::NoNode | Error::BadVersion) => return Ok(None),
                Err(error) => return Err(self.failed(error)),
            }
        } else if !is_damaged {
            match client.delete(&item, Some(stat.version)).await {
                Ok(()) => self.ends(),
                Err(Error::NoNode | Error::BadVersion) => return Ok(None),
                Err(error) => return Err(self.failed(error)),
            }
        }
        match items {
            Ok(items) => Ok(Some(Taken {
                items,
                attempts,
                name: self.name.clone(),
                bytes,
                hold: self,
            })),
            Err(damaged) => self
                .is_damaged(damaged, &bytes, stat.version)
                .await
                .map(|()| None),
        }
    }

    /// Moves what cannot be read to the dead letters. Without any, it stays where it is.
    async fn is_damaged(&mut self, damaged: Damaged, bytes: &[u8], version: i32) -> Outcome<()> {
        tracing::warn!(node = self.item(), %damaged, "an item of a queue in ZooKeeper cannot be read");
        let queue = self.queue.clone();
        if let Some(dead) = &queue.options.dead_letters {
            let claim = self.claim.unwrap_or((version, 0));
            return self
                .finish(claim, Some((format!("{dead}/{}-", self.name), bytes)))
                .await
                .map(drop);
        }
        queue.schedule().rests(&self.name, now() + RETRY_DAMAGED);
        Ok(())
    }

    /// Deletes item and lock, and puts what takes the item's place, in one step. Returns the path of the latter. It is tried
    /// again for as long as the session lives: the versions of the claim let it be done once.
    async fn finish(
        &mut self,
        claim: (i32, i32),
        put: Option<(String, &[u8])>,
    ) -> Outcome<Option<String>> {
        let (mut pauses, mut is_again) = (Pauses::default(), false);
        loop {
            let error = match self.try_to_finish(claim, put.as_ref()).await {
                Ok(results) => {
                    self.ends();
                    return Ok(results.into_iter().find_map(|result| match result {
                        MultiWriteResult::Create { path, .. } => Some(path),
                        _ => None,
                    }));
                }
                Err(error) => error,
            };
            match error {
                Error::NoNode if is_again => {
                    return self.was_finished(put.is_some()).await.map(|()| None);
                }
                Error::NoNode | Error::BadVersion => return Err(CuratorQueueError::NotHeld),
                Error::SessionExpired if !is_again => return Err(CuratorQueueError::NotHeld),
                _ => {}
            }
            match self.session.failed(error) {
                Failed::Lost(_) if self.session.lives() => {
                    is_again = true;
                    pauses.wait().await;
                }
                failed => return Err(changed(failed)),
            }
        }
    }

    async fn try_to_finish(
        &self,
        (item, lock): (i32, i32),
        put: Option<&(String, &[u8])>,
    ) -> Result<Vec<MultiWriteResult>, Error> {
        let mut writer = self.session.client().new_multi_writer();
        writer.add_delete(&self.item(), Some(item))?;
        if let Some(path) = self.lock() {
            writer.add_delete(&path, Some(lock))?;
        }
        if let Some((path, bytes)) = put {
            let mode = CreateMode::PersistentSequential.with_acls(self.session.acls());
            writer.add_create(path, bytes, &mode)?;
        }
        writer.commit().await.map_err(Error::from)
    }

    /// A request whose answer was lost, or somebody else, has deleted a node. An item that is gone does not come again
    /// whoever deleted it; but whether one was put in its place nobody says.
    async fn was_finished(&mut self, has_put: bool) -> Outcome<()> {
        if self
            .session
            .look(&self.item())
            .await
            .map_err(changed)?
            .is_some()
        {
            return Err(CuratorQueueError::NotHeld);
        }
        self.ends();
        if has_put {
            let why = "the item is gone, and the answer that it was put again was lost";
            return Err(CuratorQueueError::Unknown(why.to_owned()));
        }
        Ok(())
    }

    fn ends(&mut self) {
        self.queue.schedule().gone(&self.name);
        self.is_over = true;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let (queue, session, name) = (self.queue.clone(), self.session.clone(), self.name.clone());
        let rests = move || {
            let mut schedule = queue.schedule();
            // What cannot be read rests for longer already.
            if schedule.holds(&name) {
                schedule.rests(&name, now() + RETRY);
                queue.let_go.notify_one();
            }
        };
        let Some(lock) = self.lock() else {
            return rests();
        };
        self.session.runtime.spawn(async move {
            session.remove_own(&lock).await;
            // Not before: a claim that this process begins anew has a lock of the same name and owner.
            rests();
        });
    }
}

impl Taken {
    /// It is done: it does not come again.
    ///
    /// # Errors
    /// [`NotHeld`](CuratorQueueError::NotHeld) if somebody else may have it, or had it, meanwhile.
    pub async fn done(mut self) -> Outcome<()> {
        match self.hold.claim {
            Some(claim) => self.hold.finish(claim, None).await.map(drop),
            None => Ok(()),
        }
    }

    /// It has failed: it comes again after a while, or goes to the dead letters if it has failed too often. Of a queue that
    /// is taken at most once, it is gone.
    ///
    /// # Errors
    /// As of [`done`](Self::done).
    pub async fn failed(mut self) -> Outcome<()> {
        let Some(claim) = self.hold.claim else {
            return Ok(());
        };
        let queue = self.hold.queue.clone();
        let (options, attempts) = (&queue.options, self.attempts.saturating_add(1));
        let is_deleted = options.error_mode == ErrorMode::Delete;
        if (is_deleted || attempts >= options.max_attempts)
            && let Some(dead) = &options.dead_letters
        {
            let put = (format!("{dead}/{}-", self.name), self.bytes.as_slice());
            return self.hold.finish(claim, Some(put)).await.map(drop);
        }
        if is_deleted {
            return self.hold.finish(claim, None).await.map(drop);
        }
        let backoff = options.backoff.saturating_mul(1 << self.attempts.min(12));
        let backoff = i64::try_from(backoff.as_millis())
            .unwrap_or(i64::MAX)
            .min(3_600_000);
        let until = now() + backoff;
        let again = names::again(options.kind, &self.name, attempts, until);
        let put = (format!("{}/{again}", options.path), self.bytes.as_slice());
        let _requeue = Requeue::begin(&queue);
        if let Some(path) = self.hold.finish(claim, Some(put)).await?
            && let Some((_, new)) = path.rsplit_once('/')
        {
            queue
                .schedule()
                .again(&self.name, new.to_owned(), attempts, until);
        }
        Ok(())
    }
}
