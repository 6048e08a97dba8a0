//! Elections over ZooKeeper.

use std::{fmt, sync::Arc, time::Duration};

use lockgate_coordination::shell::{Asked, HISTORY_MAX, Time};
use lockgate_core::{
    Clock, ElectionName, Epoch,
    coordination::{
        AskToResign, CHECKPOINT_BYTES_MAX, Campaign, CoordinationError, Coordinator,
        CoordinatorCapabilities, ElectionState, Leader, Observe,
    },
};
use tokio::time::{Instant, timeout};

pub use crate::tenure::ZookeeperTenure;
use crate::{
    book::Book,
    nodes::{Kind, Nodes, election, holder, terms},
    options::ZookeeperOptions,
    session::{Failed, Session, Sessions, Watching},
    standing::{Standing, epoch},
};

/// The timeout of the session over which a coordinator looks: that of a campaign with the defaults.
const SESSION: Duration = Duration::from_secs(11);

/// A [`Coordinator`] over ZooKeeper. Clones are the same coordinator.
///
/// Campaigns share a session if lease and margin together are the same. The session runs in the runtime in which it
/// began; if that ends, so does the session.
#[derive(Clone)]
pub struct ZookeeperCoordinator(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) sessions: Sessions,
    pub(crate) time: Time,
}

impl fmt::Debug for ZookeeperCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperCoordinator")
            .field("options", &self.0.sessions.options)
            .finish_non_exhaustive()
    }
}

impl ZookeeperCoordinator {
    /// Connects to the ZooKeeper of that URL: see [`ZookeeperOptions`].
    ///
    /// # Errors
    /// [`Invalid`](CoordinationError::Invalid) if the URL is not valid, and
    /// [`Unavailable`](CoordinationError::Unavailable) if no server answers within 11 s.
    ///
    /// # Cancellation
    /// A session that has begun ends by itself.
    pub async fn connect(url: &str) -> Result<Self, CoordinationError> {
        Self::with(ZookeeperOptions::parse(url)?).await
    }

    /// The same with options.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// # Cancellation
    /// As `connect`.
    pub async fn with(options: ZookeeperOptions) -> Result<Self, CoordinationError> {
        let inner = Inner {
            sessions: Sessions::new(options),
            time: Time::start(),
        };
        inner.sessions.any(SESSION).await?;
        Ok(Self(Arc::new(inner)))
    }

    /// One whose leaders count their leases by that clock, for tests. Call [`clock_changed`](Self::clock_changed) when
    /// somebody has set it.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            sessions: Sessions::new(self.0.sessions.options.clone()),
            time: Time::by(clock),
        }))
    }

    /// Looks at the clock anew: it has been set.
    pub fn clock_changed(&self) {
        self.0.time.clock_changed();
    }
}

impl Coordinator for ZookeeperCoordinator {
    type Tenure = ZookeeperTenure;

    fn capabilities(&self) -> CoordinatorCapabilities {
        let mut capabilities = CoordinatorCapabilities::NONE;
        // An ensemble that has lost all it had counts its changes anew.
        capabilities.epochs_last = false;
        capabilities.is_fair = true;
        capabilities.wakes = true;
        capabilities.can_ask = true;
        capabilities.history_max = HISTORY_MAX;
        capabilities.checkpoint_bytes_max = CHECKPOINT_BYTES_MAX;
        capabilities
    }

    async fn campaign(&self, campaign: Campaign) -> Result<ZookeeperTenure, CoordinationError> {
        Standing::new(self.0.clone(), Kind::Election, campaign)?
            .run()
            .await
    }

    async fn lock(&self, campaign: Campaign) -> Result<ZookeeperTenure, CoordinationError> {
        Standing::new(self.0.clone(), Kind::Lock, campaign)?
            .run()
            .await
    }

    async fn observe(&self, observe: Observe) -> Result<ElectionState, CoordinationError> {
        let nodes = Nodes::new(&self.0.sessions.options, Kind::Election, &observe.election)?;
        let until = Instant::now().checked_add(observe.wait);
        loop {
            let session = self.0.sessions.any(SESSION).await?;
            let left = match until {
                Some(until) => until.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if left.is_zero() {
                return state(&session, &nodes).await;
            }
            let (leads, mut watching) = watch_leader(&session, &nodes).await?;
            if leads != observe.seen {
                return state(&session, &nodes).await;
            }
            // Behind it, the election is looked at again.
            let _ = timeout(left, watching.changed()).await;
        }
    }

    /// Those of which a record is kept: none that had leaders in Java alone.
    async fn elections(&self) -> Result<Vec<ElectionName>, CoordinationError> {
        let session = self.0.sessions.any(SESSION).await?;
        let terms = session.children(&terms(&self.0.sessions.options)).await;
        let names = terms.map_err(Failed::of_a_read)?.into_iter();
        let mut names: Vec<_> = names
            .map(|name| election(&name))
            .collect::<Result<_, _>>()?;
        names.sort();
        Ok(names)
    }

    async fn left(&self) {
        self.0.sessions.left().await;
    }

    async fn ask_to_resign(&self, ask: AskToResign) -> Result<(), CoordinationError> {
        let nodes = Nodes::new(&self.0.sessions.options, Kind::Election, &ask.election)?;
        let session = self.0.sessions.any(SESSION).await?;
        let children = session.children(&nodes.line).await;
        let places = nodes.in_order(children.map_err(Failed::of_a_read)?)?;
        let leads = match places.first() {
            Some(first) => session.read(&nodes.child(&first.name)).await,
            None => Ok(None),
        };
        let leads = leads.map_err(Failed::of_a_read)?;
        if leads.is_none_or(|(_, stat)| epoch(stat.czxid) != ask.epoch) {
            return Err(CoordinationError::Over {
                election: ask.election,
                epoch: ask.epoch,
            });
        }
        if !ask.even_if_alone && places.len() == 1 {
            let election = ask.election;
            return Err(CoordinationError::NoSuccessor { election });
        }
        let asked = Asked {
            epoch: ask.epoch.0,
            by: ask.by.as_str().to_owned(),
        };
        let value = serde_json::to_vec(&asked).unwrap_or_default();
        let written = session.write(&nodes.ask, &value).await;
        written.map_err(Failed::of_a_change)
    }
}

/// Who is the first, and word of another one.
async fn watch_leader(
    session: &Session,
    nodes: &Nodes,
) -> Result<(Option<Epoch>, Watching), CoordinationError> {
    loop {
        let children = session.children(&nodes.line).await;
        let places = nodes.in_order(children.map_err(Failed::of_a_read)?)?;
        match places.first() {
            Some(first) => {
                let watched = session.watch(&nodes.child(&first.name)).await;
                if let Some((_, stat, watching)) = watched.map_err(Failed::of_a_read)? {
                    return Ok((Some(epoch(stat.czxid)), watching));
                }
            }
            None => {
                let watched = session.watch_children(&nodes.line).await;
                let (children, watching) = watched.map_err(Failed::of_a_read)?;
                if nodes.in_order(children)?.is_empty() {
                    return Ok((None, watching));
                }
            }
        }
    }
}

/// How often a state is read that contradicts itself, before it is taken for damaged.
const LOOKS_MAX: u32 = 100;

async fn state(session: &Session, nodes: &Nodes) -> Result<ElectionState, CoordinationError> {
    let mut looks = 0;
    loop {
        let children = session.children(&nodes.line).await;
        let places = nodes.in_order(children.map_err(Failed::of_a_read)?)?;
        let paths = places.iter().map(|place| nodes.child(&place.name));
        let read = session.read_all(paths).await.map_err(Failed::of_a_read)?;
        if let Some(None) = read.first() {
            // It has gone meanwhile, so another one leads.
            continue;
        }
        let chronicle = Book::read(session, nodes).await?.chronicle;
        let leads = read.first().and_then(|first| first.as_ref());
        let leads = leads.map(|(_, stat)| epoch(stat.czxid));
        let opened = chronicle.term.as_ref().map(|term| term.epoch);
        if leads.is_some() && opened > leads {
            // Another one has begun its term meanwhile: then the first node is about to go, or has gone.
            looks += 1;
            if looks == LOOKS_MAX {
                let why = "its last term is above the epoch of whoever leads".to_owned();
                return Err(nodes.damaged(why));
            }
            continue;
        }
        let stand = places.iter().zip(read);
        let mut stand = stand.filter_map(|(place, read)| Some((place, read?)));
        let leader = match stand.next() {
            Some((place, (data, stat))) => {
                let epoch = epoch(stat.czxid);
                let term = chronicle.term.as_ref();
                Some(Leader {
                    name: holder(&data, &place.name)?,
                    epoch,
                    began: term
                        .filter(|term| term.epoch == epoch)
                        .map(|term| term.began),
                    // ZooKeeper does not tell.
                    remaining: Duration::ZERO,
                })
            }
            None => None,
        };
        let candidates = stand.map(|(place, (data, _))| holder(&data, &place.name));
        return Ok(ElectionState {
            candidates: candidates.collect::<Result<_, _>>()?,
            last_checkpoint: chronicle.checkpoint.clone(),
            history: chronicle.history(leader.as_ref().map(|leader| leader.epoch)),
            leader,
        });
    }
}
