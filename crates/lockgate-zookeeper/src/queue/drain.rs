//! The way out of a queue: its nodes, due or not, are held, copied elsewhere, and deleted.
//!
//! - A node is marked before it is given out: its bytes are written once more, which leaves them as they are and gives the
//!   node a version above 0. The time of that write stays, so whoever comes later knows since when a copy may be elsewhere.
//! - With a lock path, a node is held by the same lock as that of a consumer, so no Java consumer works on it meanwhile, and
//!   what one works on is left alone. Without, nobody else may consume.
//! - A node is deleted only at the version at which it was read.

use std::{sync::Arc, time::Duration};

use lockgate_core::coordination::CoordinationError;
use zookeeper_client::{CheckWriteError, CreateMode, Error, Stat};

use super::{
    names,
    payload::{self, Damaged},
    shell::{CuratorQueueError, changed, read},
};
use crate::{
    options::{ZookeeperOptions, check_path},
    session::{Session, Sessions, Watching},
};

type Outcome<T> = Result<T, CuratorQueueError>;

/// Which queue is emptied, and how.
#[derive(Clone, Debug)]
pub struct DrainOptions {
    /// Its node.
    pub path: String,
    /// The lock path of those who consume meanwhile. `None`: nobody does.
    pub lock_path: Option<String>,
    /// After which time ZooKeeper gives up whoever says nothing.
    pub session_timeout: Duration,
}

/// A queue that is emptied.
#[derive(Debug)]
pub struct Drain {
    sessions: Sessions,
    options: DrainOptions,
}

/// The items of a queue at one time.
#[derive(Debug)]
pub struct Listing {
    /// The nodes that are items, in no order.
    pub names: Vec<String>,
    /// How many other children there are. They are left alone.
    pub foreign: usize,
    changes: Watching,
}

impl Listing {
    /// Waits until there are other nodes, or the session ends.
    pub async fn changed(&mut self) {
        self.changes.changed().await;
    }
}

/// A node in hand. Unless it is [done](Drain::done), give it [back](Drain::release).
#[derive(Debug)]
pub struct Held {
    /// Its name.
    pub name: String,
    /// What is in it, byte by byte.
    pub items: Vec<Vec<u8>>,
    /// The transaction that made it: no other node of that name ever has the same.
    pub created: i64,
    /// Since when copies of its items may be elsewhere, in milliseconds since 1970 by the clock of ZooKeeper. `None`: nobody
    /// has held it before.
    pub marked: Option<i64>,
    session: Arc<Session>,
    version: i32,
    /// The version of its lock.
    lock: Option<i32>,
}

/// What became of a node that should be held.
#[derive(Debug)]
pub enum Hold {
    /// It is in hand.
    Held(Held),
    /// Somebody else holds it, or it has changed meanwhile.
    Busy,
    /// It is not there any more.
    Gone,
    /// It cannot be read, and stays.
    Damaged(Damaged),
}

impl Drain {
    /// Prepares for it. Nothing is asked yet.
    ///
    /// # Errors
    /// [`Invalid`](CuratorQueueError::Invalid) if a path is none.
    pub fn new(server: &ZookeeperOptions, options: DrainOptions) -> Outcome<Self> {
        for path in [Some(&options.path), options.lock_path.as_ref()]
            .into_iter()
            .flatten()
        {
            check_path(path).map_err(|error| CuratorQueueError::Invalid(error.to_string()))?;
        }
        if options.lock_path.as_ref() == Some(&options.path) {
            let why = "the lock path is not the path of the queue";
            return Err(CuratorQueueError::Invalid(why.to_owned()));
        }
        Ok(Self {
            sessions: Sessions::new(server.clone()),
            options,
        })
    }

    /// The path of the queue.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.options.path
    }

    async fn session(&self) -> Outcome<Arc<Session>> {
        let session = self.sessions.with(self.options.session_timeout).await;
        session.map_err(|error| match error {
            CoordinationError::Invalid { why } => CuratorQueueError::Invalid(why),
            other => CuratorQueueError::Unavailable(other.to_string()),
        })
    }

    fn item(&self, name: &str) -> String {
        format!("{}/{name}", self.options.path)
    }

    fn lock(&self, name: &str) -> Option<String> {
        let path = self.options.lock_path.as_ref()?;
        Some(format!("{path}/{name}"))
    }

    /// The nodes of the queue as of some time after this was called. `None`: it is not there.
    ///
    /// # Errors
    /// If ZooKeeper does not answer.
    pub async fn list(&self) -> Outcome<Option<Listing>> {
        let session = self.session().await?;
        let path = &self.options.path;
        if session.look(path).await.map_err(read)?.is_none() {
            return Ok(None);
        }
        let (mut names, changes) = session.watch_children(path).await.map_err(read)?;
        let all = names.len();
        names.retain(|name| names::is_item(name));
        Ok(Some(Listing {
            foreign: all - names.len(),
            names,
            changes,
        }))
    }

    /// Holds nodes, in one go. The answers are in the order of the names.
    ///
    /// # Errors
    /// If ZooKeeper does not answer. Some may be held then, and are again when they are asked for again.
    pub async fn hold(&self, names: &[String]) -> Outcome<Vec<Hold>> {
        let session = self.session().await?;
        if let Some(path) = &self.options.lock_path {
            session.make_parents(path).await.map_err(read)?;
            let mode = CreateMode::Persistent.with_acls(session.acls());
            match session.client().create(path, b"", &mode).await {
                Ok(_) | Err(Error::NodeExists) => {}
                Err(error) => return Err(read(session.failed(error))),
            }
        }
        // Requests are sent when they are made, and answered in that order.
        let locks: Vec<_> = names
            .iter()
            .map(|name| self.sends_lock(&session, name))
            .collect::<Outcome<_>>()?;
        let mut locked = Vec::with_capacity(names.len());
        for (name, lock) in names.iter().zip(locks) {
            locked.push(match lock {
                None => Ok(None),
                Some(lock) => self.locked(&session, name, lock.await).await?,
            });
        }
        let client = session.client();
        let reads: Vec<_> = names
            .iter()
            .zip(&locked)
            .map(|(name, locked)| locked.is_ok().then(|| client.get_data(&self.item(name))))
            .collect();
        let mut nodes = Vec::with_capacity(names.len());
        for asked in reads {
            nodes.push(match asked {
                None => None,
                Some(answer) => match answer.await {
                    Ok(node) => Some(node),
                    Err(Error::NoNode) => None,
                    Err(error) => return Err(read(session.failed(error))),
                },
            });
        }
        let marks: Vec<_> = names
            .iter()
            .zip(&nodes)
            .map(|(name, node)| {
                let (bytes, stat) = node.as_ref()?;
                let is_new = stat.version == 0 && payload::decode(bytes).is_ok();
                is_new.then(|| client.set_data(&self.item(name), bytes, Some(0)))
            })
            .collect();
        let mut holds = Vec::with_capacity(names.len());
        for (((name, locked), node), mark) in names.iter().zip(locked).zip(nodes).zip(marks) {
            let marked = match mark {
                None => Ok(None),
                Some(mark) => match mark.await {
                    Ok(stat) => Ok(Some(stat)),
                    Err(Error::BadVersion) => Err(Hold::Busy),
                    Err(Error::NoNode) => Err(Hold::Gone),
                    Err(error) => return Err(changed(session.failed(error))),
                },
            };
            let lock = locked.as_ref().ok().copied().flatten();
            let hold = match (locked, node, marked) {
                (Err(hold), ..) | (.., Err(hold)) => hold,
                (Ok(_), None, _) => Hold::Gone,
                (Ok(lock), Some((bytes, stat)), Ok(marked)) => {
                    hold(&session, name, lock, &bytes, &stat, marked)
                }
            };
            if !matches!(hold, Hold::Held(_)) {
                self.unlock(&session, name, lock).await?;
            }
            holds.push(hold);
        }
        Ok(holds)
    }

    /// Makes the lock of a node that is there. It has another version then than the one of a Java program, which is never
    /// written.
    fn sends_lock<'s>(
        &self,
        session: &'s Session,
        name: &str,
    ) -> Outcome<Option<impl Future<Output = Result<(), CheckWriteError>> + use<'s>>> {
        let Some(lock) = self.lock(name) else {
            return Ok(None);
        };
        let failed = |error| changed(session.failed(error));
        let mode = CreateMode::Ephemeral.with_acls(session.acls());
        let writer = session.client().new_check_writer(&self.item(name), None);
        let mut writer = writer.map_err(failed)?;
        let added = writer.add_create(&lock, b"", &mode);
        let added = added.and_then(|()| writer.add_set_data(&lock, b"", Some(0)));
        added.map_err(failed)?;
        let commit = writer.commit();
        Ok(Some(async move { commit.await.map(drop) }))
    }

    /// The version of the lock.
    async fn locked(
        &self,
        session: &Session,
        name: &str,
        answer: Result<(), CheckWriteError>,
    ) -> Outcome<Result<Option<i32>, Hold>> {
        match answer {
            Ok(()) => Ok(Ok(Some(1))),
            Err(CheckWriteError::CheckFailed { .. }) => Ok(Err(Hold::Gone)),
            Err(CheckWriteError::OperationFailed {
                source: Error::NodeExists,
                ..
            }) => {
                // An earlier request has made it, whose answer was lost.
                let lock = self.lock(name).unwrap_or_default();
                let stat = session.client().check_stat(&lock).await;
                let stat = stat.map_err(|error| read(session.failed(error)))?;
                Ok(match stat {
                    Some(stat) if stat.ephemeral_owner == session.id() => Ok(Some(stat.version)),
                    _ => Err(Hold::Busy),
                })
            }
            Err(error) => Err(changed(session.failed(error.into()))),
        }
    }

    /// Whether what is in hand still is, as far as is known here.
    #[must_use]
    pub fn has(&self, held: &Held) -> bool {
        held.session.lives()
    }

    /// Deletes nodes whose items are elsewhere, each with its lock. False: somebody else may have taken the node meanwhile.
    ///
    /// # Errors
    /// If ZooKeeper does not answer. Some may be deleted then.
    pub async fn done(&self, held: &[Held]) -> Outcome<Vec<bool>> {
        let mut answers = Vec::with_capacity(held.len());
        for held in held {
            let mut writer = held.session.client().new_multi_writer();
            let mut added = writer.add_delete(&self.item(&held.name), Some(held.version));
            if let (Ok(()), Some(version), Some(lock)) = (&added, held.lock, self.lock(&held.name))
            {
                added = writer.add_delete(&lock, Some(version));
            }
            added.map_err(|error| changed(held.session.failed(error)))?;
            answers.push(writer.commit());
        }
        let mut done = Vec::with_capacity(held.len());
        for (held, answer) in held.iter().zip(answers) {
            done.push(match answer.await.map_err(Error::from) {
                Ok(_) => true,
                Err(Error::NoNode | Error::BadVersion) => false,
                Err(error) => return Err(changed(held.session.failed(error))),
            });
        }
        Ok(done)
    }

    /// Gives nodes back, which stay.
    ///
    /// # Errors
    /// If ZooKeeper does not answer. Locks that are left go with the session.
    pub async fn release(&self, held: &[Held]) -> Outcome<()> {
        for held in held.iter().filter(|held| held.session.lives()) {
            self.unlock(&held.session, &held.name, held.lock).await?;
        }
        Ok(())
    }

    async fn unlock(&self, session: &Session, name: &str, version: Option<i32>) -> Outcome<()> {
        let (Some(lock), Some(version)) = (self.lock(name), version) else {
            return Ok(());
        };
        match session.client().delete(&lock, Some(version)).await {
            Ok(()) | Err(Error::NoNode | Error::BadVersion) => Ok(()),
            Err(error) => Err(changed(session.failed(error))),
        }
    }
}

fn hold(
    session: &Arc<Session>,
    name: &str,
    lock: Option<i32>,
    bytes: &[u8],
    stat: &Stat,
    marked: Option<Stat>,
) -> Hold {
    match payload::decode(bytes) {
        Err(damaged) => Hold::Damaged(damaged),
        Ok(items) => Hold::Held(Held {
            name: name.to_owned(),
            items: items.into_iter().map(<[u8]>::to_vec).collect(),
            created: stat.czxid,
            marked: (stat.version > 0).then_some(stat.mtime),
            session: session.clone(),
            version: marked.map_or(stat.version, |stat| stat.version),
            lock,
        }),
    }
}
