//! Sessions with ZooKeeper: one for all campaigns of a coordinator that ask for the same timeout.
//!
//! A session is shared because each has a connection, of which a server allows 60 from one address unless it is told
//! otherwise, and because its begin and its end are changes of the whole ensemble. It is *detached*: a coordinator that
//! is dropped does not end it, as something of a leader may still be under way; the server ends it when it hears nothing
//! for its timeout.
//!
//! A session runs in the runtime in which it began, and so does what is done for one who has gone.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockgate_coordination::shell::Pauses;
use lockgate_core::coordination::CoordinationError;
use tokio::{
    runtime::Handle,
    sync::{Mutex, watch},
    task::JoinHandle,
    time::timeout,
};
use zookeeper_client::{
    Acls, AddWatchMode, CheckWriteError, Client, CreateMode, Error, EventType, MultiWriteResult,
    OneshotWatcher, PersistentWatcher, Stat, StateWatcher,
};

use crate::options::ZookeeperOptions;

/// The sessions of a coordinator.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) options: ZookeeperOptions,
    open: Mutex<Vec<Arc<Session>>>,
    /// How many nodes are being deleted behind the caller's back.
    leaving: watch::Sender<usize>,
}

#[derive(Debug)]
pub(crate) struct Session {
    client: Client,
    acls: Acls<'static>,
    pub(crate) runtime: Handle,
    /// What was asked for.
    asked: Duration,
    /// What the server grants.
    pub(crate) timeout: Duration,
    has_ended: AtomicBool,
    leaving: watch::Sender<usize>,
}

/// Why ZooKeeper did nothing, or may have done it.
#[derive(Debug)]
pub(crate) enum Failed {
    /// What ZooKeeper has said; nothing was done.
    Refused(Error),
    /// No answer came: it may have been done.
    Lost(String),
}

type Answer<T> = Result<T, Failed>;

impl Sessions {
    pub(crate) fn new(options: ZookeeperOptions) -> Self {
        Self {
            options,
            open: Mutex::default(),
            leaving: watch::Sender::new(0),
        }
    }

    /// A session with that timeout: the one that is there, or a new one.
    ///
    /// # Errors
    /// `Unavailable` if no server answers for as long as the timeout, and `Invalid` if the server grants less.
    pub(crate) async fn with(&self, timeout: Duration) -> Result<Arc<Session>, CoordinationError> {
        let mut open = self.open.lock().await;
        open.retain(|session| session.lives());
        if let Some(session) = open.iter().find(|session| session.asked == timeout) {
            return Ok(session.clone());
        }
        let session = Session::begin(&self.options, timeout, self.leaving.clone());
        let session = Arc::new(session.await?);
        open.push(session.clone());
        Ok(session)
    }

    /// Waits until no node is being deleted behind the caller's back, or ZooKeeper does not answer.
    pub(crate) async fn left(&self) {
        let mut leaving = self.leaving.subscribe();
        // The sender lives as long as this.
        let _ = leaving.wait_for(|leaving| *leaving == 0).await;
    }

    /// Any session; a new one has that timeout.
    pub(crate) async fn any(&self, timeout: Duration) -> Result<Arc<Session>, CoordinationError> {
        let open = self.open.lock().await;
        let any = open.iter().find(|session| session.lives()).cloned();
        drop(open);
        match any {
            Some(session) => Ok(session),
            None => self.with(timeout).await,
        }
    }
}

impl Session {
    async fn begin(
        options: &ZookeeperOptions,
        timeout: Duration,
        leaving: watch::Sender<usize>,
    ) -> Result<Self, CoordinationError> {
        let mut connector = Client::connector()
            .with_session_timeout(timeout)
            .with_detached();
        let mut acls = Acls::anyone_all();
        if let Some(login) = &options.login {
            let login = format!("{}:{}", login.user, login.password);
            connector = connector.with_auth("digest", login.as_bytes());
            acls = Acls::creator_all();
        }
        let client = connector.connect(&options.hosts).await.map_err(|error| {
            let why = format!("no session with ZooKeeper at {}: {error}", options.hosts);
            match error {
                Error::AuthFailed | Error::BadArguments(_) => CoordinationError::Invalid { why },
                _ => CoordinationError::Unavailable { why },
            }
        })?;
        Ok(Self {
            timeout: client.session_timeout(),
            client,
            acls,
            runtime: Handle::current(),
            asked: timeout,
            has_ended: AtomicBool::new(false),
            leaving,
        })
    }

    /// Whether it may still be used. If not, its nodes are gone, or will be.
    pub(crate) fn lives(&self) -> bool {
        !self.has_ended.load(Ordering::Acquire) && !self.client.state().is_terminated()
    }

    /// Whose nodes are those of this session.
    pub(crate) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn acls(&self) -> Acls<'static> {
        self.acls
    }

    pub(crate) fn failed(&self, error: Error) -> Failed {
        match error {
            Error::NoNode
            | Error::NodeExists
            | Error::BadVersion
            | Error::NotEmpty
            | Error::NoAuth
            | Error::NoChildrenForEphemerals
            | Error::InvalidAcl
            | Error::QuotaExceeded
            | Error::NotReadOnly
            | Error::BadArguments(_)
            | Error::MarshallingError
            | Error::Unimplemented
            | Error::RuntimeInconsistent => Failed::Refused(error),
            // Its task has ended, mostly with its runtime.
            Error::SessionExpired
            | Error::SessionMoved
            | Error::AuthFailed
            | Error::ClientClosed
            | Error::UnexpectedError(_) => {
                self.has_ended.store(true, Ordering::Release);
                Failed::Lost(error.to_string())
            }
            _ => Failed::Lost(error.to_string()),
        }
    }

    fn answer<T>(&self, answer: Result<T, Error>) -> Answer<T> {
        answer.map_err(|error| self.failed(error))
    }

    /// Whether the node is there, at some time after this was called, as a majority of the ensemble confirms: by a
    /// transaction that only checks it. A server that is cut off from the others answers pings and reads of its own, and
    /// would let a session seem alive that has ended.
    pub(crate) async fn confirm(&self, path: &str) -> Answer<bool> {
        let checks = self.answer(self.client.new_check_writer(path, None))?;
        match checks.commit().await {
            Ok(_) => Ok(true),
            Err(CheckWriteError::CheckFailed {
                source: Error::NoNode,
            }) => Ok(false),
            Err(error) => Err(self.failed(error.into())),
        }
    }

    /// The node as the leader of the ensemble has it, at some time after this was called.
    pub(crate) async fn look(&self, path: &str) -> Answer<Option<Stat>> {
        let (synced, stat) = (self.client.sync(path), self.client.check_stat(path));
        self.answer(synced.await)?;
        self.answer(stat.await)
    }

    /// What a node has, and its stat. Behind a [`look`](Self::look) it is as new as that.
    pub(crate) async fn read(&self, path: &str) -> Answer<Option<(Vec<u8>, Stat)>> {
        self.if_there(self.client.get_data(path).await)
    }

    /// What several nodes have. One that is gone meanwhile is left out.
    pub(crate) async fn read_all(
        &self,
        paths: impl Iterator<Item = String>,
    ) -> Answer<Vec<Option<(Vec<u8>, Stat)>>> {
        // Each is sent when it is made.
        let reads: Vec<_> = paths.map(|path| self.client.get_data(&path)).collect();
        let mut all = Vec::with_capacity(reads.len());
        for read in reads {
            all.push(self.if_there(read.await)?);
        }
        Ok(all)
    }

    /// The children of a node, as of some time after this was called. A node that is not there has none.
    pub(crate) async fn children(&self, path: &str) -> Answer<Vec<String>> {
        let (synced, children) = (self.client.sync(path), self.client.list_children(path));
        self.answer(synced.await)?;
        Ok(self.if_there(children.await)?.unwrap_or_default())
    }

    fn if_there<T>(&self, answer: Result<T, Error>) -> Answer<Option<T>> {
        match answer {
            Err(Error::NoNode) => Ok(None),
            other => self.answer(other).map(Some),
        }
    }

    /// Makes a node whose name ends with a number, which is told; with the nodes above it.
    pub(crate) async fn create_numbered(&self, prefix: &str, data: &[u8]) -> Answer<i64> {
        let options = CreateMode::EphemeralSequential.with_acls(self.acls);
        loop {
            let made = self.client.create(prefix, data, &options).await;
            match made {
                Err(Error::NoNode) => self.make_parents(prefix).await?,
                other => return self.answer(other).map(|(_, number)| number.into_i64()),
            }
        }
    }

    /// Writes a node in the same step as it looks whether `held` is there; makes it if `replaces` is `None`. `None`: it is
    /// not.
    pub(crate) async fn write_while(
        &self,
        held: &str,
        path: &str,
        data: &[u8],
        replaces: Option<i32>,
    ) -> Answer<Option<i32>> {
        let options = CreateMode::Persistent.with_acls(self.acls);
        loop {
            let mut writer = self.answer(self.client.new_check_writer(held, None))?;
            let added = match replaces {
                Some(version) => writer.add_set_data(path, data, Some(version)),
                None => writer.add_create(path, data, &options),
            };
            self.answer(added)?;
            return match writer.commit().await {
                Ok(results) => Ok(Some(match results.first() {
                    Some(MultiWriteResult::SetData { stat }) => stat.version,
                    // A new node.
                    _ => 0,
                })),
                Err(CheckWriteError::CheckFailed { .. }) => Ok(None),
                Err(CheckWriteError::OperationFailed { source, .. }) => match source {
                    Error::NoNode if replaces.is_none() => {
                        self.make_parents(path).await?;
                        continue;
                    }
                    other => Err(self.failed(other)),
                },
                Err(CheckWriteError::RequestFailed { source }) => Err(self.failed(source)),
            };
        }
    }

    /// Writes a node, whatever it has; makes it if it is not there.
    pub(crate) async fn write(&self, path: &str, data: &[u8]) -> Answer<()> {
        let options = CreateMode::Persistent.with_acls(self.acls);
        loop {
            match self.client.set_data(path, data, None).await {
                Err(Error::NoNode) => {}
                other => return self.answer(other).map(drop),
            }
            match self.client.create(path, data, &options).await {
                Err(Error::NoNode) => self.make_parents(path).await?,
                Err(Error::NodeExists) => {}
                other => return self.answer(other).map(drop),
            }
        }
    }

    /// The nodes above go when they are empty, as those that Curator makes.
    pub(crate) async fn make_parents(&self, path: &str) -> Answer<()> {
        let options = CreateMode::Container.with_acls(self.acls);
        match path.rsplit_once('/') {
            Some(("", _)) | None => Ok(()),
            Some((above, _)) => self.answer(self.client.mkdir(above, &options).await),
        }
    }

    /// Deletes a node. False: it was not there.
    pub(crate) async fn delete(&self, path: &str) -> Answer<bool> {
        let deleted = self.client.delete(path, None).await;
        Ok(self.if_there(deleted)?.is_some())
    }

    /// Reads a node, and watches it: it is changed or deleted, or the session ends. `None`: it is not there.
    pub(crate) async fn watch(&self, path: &str) -> Answer<Option<(Vec<u8>, Stat, Watching)>> {
        let watched = self.if_there(self.client.get_and_watch_data(path).await)?;
        Ok(watched.map(|(data, stat, watcher)| (data, stat, self.watching(watcher))))
    }

    /// Watches whether a node is there.
    pub(crate) async fn watch_whether(&self, path: &str) -> Answer<(Option<Stat>, Watching)> {
        let (stat, watcher) = self.answer(self.client.check_and_watch_stat(path).await)?;
        Ok((stat, self.watching(watcher)))
    }

    /// Watches who stands below a node, also if it is not there yet.
    pub(crate) async fn watch_children(&self, path: &str) -> Answer<(Vec<String>, Watching)> {
        loop {
            let watched = self.client.list_and_watch_children(path).await;
            if let Some((children, watcher)) = self.if_there(watched)? {
                return Ok((children, self.watching(watcher)));
            }
            let (stat, watching) = self.watch_whether(path).await?;
            if stat.is_none() {
                return Ok((Vec::new(), watching));
            }
        }
    }

    /// Follows what appears and vanishes below a node from now on. When that is over, the node must be listed again, as
    /// something may have been missed.
    ///
    /// # Errors
    /// `Unimplemented` of a server older than 3.6.
    pub(crate) async fn follow(&self, path: &str) -> Answer<Following> {
        let states = self.client.state_watcher();
        let watched = self.client.watch(path, AddWatchMode::PersistentRecursive);
        let watcher = self.answer(watched.await)?;
        let path = format!("{path}/");
        Ok(Following {
            path,
            watcher,
            states,
            runtime: self.runtime.clone(),
        })
    }

    /// Follows how the connection is.
    pub(crate) fn states(&self) -> StateWatcher {
        self.client.state_watcher()
    }

    fn watching(&self, watcher: OneshotWatcher) -> Watching {
        // The library panics if its own task goes first, which ends with the runtime; so it waits there.
        Watching(self.runtime.spawn(async move {
            watcher.changed().await;
        }))
    }

    /// Deletes a candidate's node behind the caller's back, however often no answer comes. If it knows no path it looks for
    /// the node: its creation may have been answered late or never. When the session ends, the node goes by itself.
    pub(crate) fn give_back(self: &Arc<Self>, own: Own) {
        let (session, leaving) = (self.clone(), Leaving::begin(self.leaving.clone()));
        self.runtime.spawn(async move {
            let mut removed = pin!(session.remove(own));
            // Nobody waits longer for a server that does not answer.
            let is_late = timeout(session.timeout / 3, &mut removed).await.is_err();
            drop(leaving);
            if is_late {
                removed.await;
            }
        });
    }

    pub(crate) async fn remove(&self, mut own: Own) {
        let mut pauses = Pauses::default();
        while self.lives() {
            let removed = match &own.path {
                Some(path) => self.delete(path).await.map(drop),
                None => match self.find(&own).await {
                    Ok(Some(name)) => {
                        own.path = Some(format!("{}/{name}", own.line));
                        continue;
                    }
                    Ok(None) => Ok(()),
                    Err(failed) => Err(failed),
                },
            };
            match removed {
                Ok(()) | Err(Failed::Refused(_)) => return,
                Err(Failed::Lost(_)) => pauses.wait().await,
            }
        }
    }

    /// Deletes an ephemeral node if it is this session's, however often no answer comes. Its creation may have been answered
    /// late or never: this asks behind it. When the session ends, the node goes by itself.
    pub(crate) async fn remove_own(&self, path: &str) {
        let mut pauses = Pauses::default();
        while self.lives() {
            let removed = match self.look(path).await {
                // Of another owner, it is none of ours.
                Ok(Some(stat)) if stat.ephemeral_owner == self.id() => {
                    self.answer(self.client.delete(path, Some(stat.version)).await)
                }
                Ok(_) => return,
                Err(failed) => Err(failed),
            };
            match removed {
                // It has changed meanwhile; perhaps it is another one's now.
                Err(Failed::Refused(Error::BadVersion)) => {}
                Ok(()) | Err(Failed::Refused(_)) => return,
                Err(Failed::Lost(_)) => pauses.wait().await,
            }
        }
    }

    /// The name of the node that a creation has made whose answer was lost. This is asked behind it, on the same
    /// connection or on a later one, so what is not there then is never made.
    pub(crate) async fn find(&self, own: &Own) -> Answer<Option<String>> {
        let children = self.children(&own.line).await?;
        Ok(children.into_iter().find(|name| name.starts_with(&own.id)))
    }
}

/// A node that is being deleted, counted until it is.
struct Leaving(watch::Sender<usize>);

impl Leaving {
    fn begin(leaving: watch::Sender<usize>) -> Self {
        leaving.send_modify(|leaving| *leaving += 1);
        Self(leaving)
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.send_modify(|leaving| *leaving -= 1);
    }
}

/// A candidate's node.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    /// Below which node it is.
    pub(crate) line: String,
    /// What its name begins with.
    pub(crate) id: String,
    /// Its path, as soon as it is known.
    pub(crate) path: Option<String>,
}

/// A node whose children are followed.
#[derive(Debug)]
pub(crate) struct Following {
    path: String,
    watcher: PersistentWatcher,
    states: StateWatcher,
    runtime: Handle,
}

/// What has become of a child.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Child<'a> {
    Appeared(&'a str),
    Vanished(&'a str),
}

impl Following {
    /// Tells of each child. It is over when something may have been missed, or when `tell` says that nobody listens.
    pub(crate) fn tells(
        self,
        mut tell: impl FnMut(Child<'_>) -> bool + Send + 'static,
    ) -> Watching {
        let Self {
            path,
            mut watcher,
            mut states,
            runtime,
        } = self;
        Watching(runtime.spawn(async move {
            loop {
                let event = tokio::select! {
                    // After a new connection, events may be missing.
                    _ = states.changed() => return,
                    event = watcher.changed() => event,
                };
                let child = event
                    .path
                    .strip_prefix(&path)
                    .filter(|name| !name.contains('/'));
                let goes_on = match (event.event_type, child) {
                    (EventType::Session, _) => false,
                    (EventType::NodeCreated, Some(name)) => tell(Child::Appeared(name)),
                    (EventType::NodeDeleted, Some(name)) => tell(Child::Vanished(name)),
                    // The node itself.
                    (EventType::NodeDeleted, None) => {
                        !path.starts_with(&format!("{}/", event.path))
                    }
                    _ => true,
                };
                if !goes_on {
                    return;
                }
            }
        }))
    }
}

/// Something that is watched. Whoever drops it watches no more.
#[derive(Debug)]
pub(crate) struct Watching(JoinHandle<()>);

impl Watching {
    /// Whether something has happened.
    pub(crate) fn has_changed(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits until something has happened. Behind that, at once.
    pub(crate) async fn changed(&mut self) {
        if !self.0.is_finished() {
            // A runtime that is gone has dropped the session.
            let _ = (&mut self.0).await;
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Failed {
    /// In the words of a coordinator, of a request that changes something.
    pub(crate) fn of_a_change(self) -> CoordinationError {
        match self {
            Self::Lost(why) => CoordinationError::Unknown { why },
            refused => refused.of_a_read(),
        }
    }

    /// Of one that does not.
    pub(crate) fn of_a_read(self) -> CoordinationError {
        match self {
            Self::Lost(why) => CoordinationError::Unavailable { why },
            Self::Refused(error) => {
                let why = format!("ZooKeeper refuses it: {error}");
                match error {
                    Error::NoAuth
                    | Error::InvalidAcl
                    | Error::BadArguments(_)
                    | Error::NoChildrenForEphemerals
                    | Error::Unimplemented => CoordinationError::Invalid { why },
                    _ => CoordinationError::Unavailable { why },
                }
            }
        }
    }
}
