//! What asks ZooKeeper: puts, claims, and finishes items.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockgate_core::coordination::CoordinationError;
use tokio::{
    sync::{Mutex as Turn, Notify},
    time::sleep,
};
use zookeeper_client::{CreateMode, Error, MultiWriteResult};

use super::{
    names::{self, Kind, Place},
    payload::{self, Damaged},
    schedule::{Next, Schedule},
};
use crate::{
    options::ZookeeperOptions,
    session::{Failed, Session, Sessions, Watching},
};

/// The longest answer that a Java client reads, unless it is told otherwise (`jute.maxbuffer`).
const LONGEST_LIST: usize = 1_048_575;

/// After which time an item is tried again that others hold, or that cannot be read and has nowhere to go.
const RETRY: i64 = 500;
const RETRY_DAMAGED: i64 = 60_000;

/// How items are taken. All programs of one queue must do it in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taking {
    /// With a lock node below this path, the same as that of the Java programs (`lockPath`). No item is lost; one comes
    /// again if its holder dies.
    LockSafe(String),
    /// An item is deleted before it is handed out, as Curator does without `lockPath`: it is lost if its holder dies.
    AtMostOnce,
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
    /// ZooKeeper did nothing.
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
            Self::Invalid(why) | Self::Unavailable(why) => f.write_str(why),
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
            CuratorQueueError::Unavailable(format!("ZooKeeper refuses it: {error}"))
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
    view: Turn<Option<(Arc<Session>, Watching)>>,
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
        let stat = session.client().check_stat(&options.path).await;
        let stat = stat.map_err(|error| read(session.failed(error)))?;
        let there = stat.map_or(0, |stat| u32::try_from(stat.num_children).unwrap_or(0));
        if options.max_items.is_some_and(|most| there >= most) {
            return Err(CuratorQueueError::Full(there));
        }
        // Each name has its length in front, and its number behind.
        if 88 + (there as usize + 1) * (4 + name.len() + 10) > LONGEST_LIST {
            return Err(CuratorQueueError::ListTooLong(there));
        }
        let path = format!("{}/{name}", options.path);
        let mode = CreateMode::PersistentSequential.with_acls(session.acls());
        let made = session.client().create(&path, &bytes, &mode).await;
        let (_, number) = made.map_err(|error| changed(session.failed(error)))?;
        Ok(format!("{name}{number}"))
    }

    /// Waits for an item that is due, and takes it. If this is dropped, nothing is in hand; of a queue that is taken at most
    /// once, an item may be lost.
    ///
    /// # Errors
    /// If ZooKeeper does not answer for as long as the session's timeout. Asked again, it begins a new session.
    pub async fn take(&self) -> Outcome<Taken> {
        let inner = &self.0;
        let mut view = inner.view.lock().await;
        loop {
            let is_fresh = matches!(&*view, Some((session, changes)) if session.lives() && !changes.has_changed());
            if !is_fresh {
                *view = None;
                let session = inner.session().await?;
                let (children, changes) = session
                    .watch_children(&inner.options.path)
                    .await
                    .map_err(read)?;
                inner.schedule().listed(children);
                *view = Some((session, changes));
            }
            let Some((session, changes)) = &mut *view else {
                continue;
            };
            let next = inner.schedule().next(now());
            match next {
                Next::Claim(name) => {
                    let hold = Hold {
                        queue: inner.clone(),
                        session: session.clone(),
                        name,
                        claim: None,
                        is_over: false,
                    };
                    if let Some(taken) = hold.claim().await? {
                        return Ok(taken);
                    }
                }
                Next::WaitUntil(time) => {
                    let wait = u64::try_from(time.saturating_sub(now())).unwrap_or(0);
                    tokio::select! {
                        () = sleep(Duration::from_millis(wait)) => {}
                        () = inner.let_go.notified() => {}
                        () = changes.changed() => {}
                    }
                }
                Next::Wait => tokio::select! {
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

impl Inner {
    async fn session(&self) -> Outcome<Arc<Session>> {
        let session = self.sessions.with(self.options.session_timeout).await;
        session.map_err(|error| match error {
            CoordinationError::Invalid { why } => CuratorQueueError::Invalid(why),
            other => CuratorQueueError::Unavailable(other.to_string()),
        })
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

    /// Deletes item and lock, and puts what takes the item's place, in one step. Returns the path of the latter.
    async fn finish(
        &mut self,
        (item, lock): (i32, i32),
        put: Option<(String, &[u8])>,
    ) -> Outcome<Option<String>> {
        let session = self.session.clone();
        let mut writer = session.client().new_multi_writer();
        let mut added = writer.add_delete(&self.item(), Some(item));
        if let (Ok(()), Some(path)) = (&added, self.lock()) {
            added = writer.add_delete(&path, Some(lock));
        }
        if let (Ok(()), Some((path, bytes))) = (&added, &put) {
            let mode = CreateMode::PersistentSequential.with_acls(session.acls());
            added = writer.add_create(path, bytes, &mode);
        }
        added.map_err(|error| self.failed(error))?;
        match writer.commit().await.map_err(Error::from) {
            Ok(results) => {
                self.ends();
                Ok(results.into_iter().find_map(|result| match result {
                    MultiWriteResult::Create { path, .. } => Some(path),
                    _ => None,
                }))
            }
            Err(Error::NoNode | Error::BadVersion | Error::SessionExpired) => {
                Err(CuratorQueueError::NotHeld)
            }
            Err(error) => Err(self.failed(error)),
        }
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
            // Of another owner, it is none of ours. A session that is over has none.
            if let Ok(Some(stat)) = session.look(&lock).await
                && stat.ephemeral_owner == session.id()
            {
                let _ = session.client().delete(&lock, Some(stat.version)).await;
            }
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
        if attempts >= options.max_attempts
            && let Some(dead) = &options.dead_letters
        {
            let put = (format!("{dead}/{}-", self.name), self.bytes.as_slice());
            return self.hold.finish(claim, Some(put)).await.map(drop);
        }
        let backoff = options.backoff.saturating_mul(1 << self.attempts.min(12));
        let backoff = i64::try_from(backoff.as_millis())
            .unwrap_or(i64::MAX)
            .min(3_600_000);
        let until = now() + backoff;
        let again = names::again(options.kind, &self.name, attempts, until);
        let put = (format!("{}/{again}", options.path), self.bytes.as_slice());
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
