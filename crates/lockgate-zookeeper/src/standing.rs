//! A candidate over ZooKeeper: asks what its machine says.
//!
//! Its place in the line is its node, and whoever is first there leads: what the protocol calls the lease of the term is
//! that node, as it is there for as long as the session, and the session lasts no shorter than the lease. So nobody
//! watches a term, and a claim only confirms that the node is still there.

use std::{sync::Arc, time::Duration};

use lockgate_coordination::{
    protocol::{Ahead, Answer, Candidate, CandidateAsk, Elected, Timing, Watched},
    shell::{Silence, millis},
};
use lockgate_core::{
    Epoch, Millis, Revision,
    coordination::{Campaign, CoordinationError, Term},
};
use tokio::time::timeout;

use crate::{
    book::{Book, Written},
    coordinator::{Inner, ZookeeperTenure},
    nodes::{Kind, Nodes, new_id},
    session::{Failed, Own, Session, Watching},
};

/// A candidate. If it is dropped before it leads, its node is deleted.
pub(crate) struct Standing {
    inner: Arc<Inner>,
    nodes: Nodes,
    campaign: Campaign,
    give_up_at: Option<Millis>,
    seat: Option<Seat>,
    /// The name of the node ahead.
    ahead: Option<String>,
    watching: Option<(String, Watching)>,
    /// The term's record, as it was claimed or opened.
    book: Option<Book>,
}

/// Its node, or the one that it may have.
struct Seat {
    session: Arc<Session>,
    own: Own,
}

/// Why it does not stand any more in this session.
enum Ended {
    /// The session has ended: it may stand in another one.
    Session,
    For(CoordinationError),
}

impl Standing {
    pub(crate) fn new(
        inner: Arc<Inner>,
        kind: Kind,
        campaign: Campaign,
    ) -> Result<Self, CoordinationError> {
        campaign.check()?;
        let now = inner.time.now();
        Ok(Self {
            nodes: Nodes::new(&inner.sessions.options, kind, &campaign.election)?,
            give_up_at: campaign.wait.map(|wait| now.saturating_add(millis(wait))),
            inner,
            campaign,
            seat: None,
            ahead: None,
            watching: None,
            book: None,
        })
    }

    /// Stands until it leads, in one session after the other.
    pub(crate) async fn run(mut self) -> Result<ZookeeperTenure, CoordinationError> {
        let mut silence = Silence::new(&self.campaign, self.inner.time.now());
        loop {
            let sent = self.inner.time.now();
            let left = silence.left(sent);
            let begun = timeout(left, self.session()).await;
            let begun = begun.unwrap_or_else(|_| Err(late(left)));
            let (session, timing) = match begun {
                Ok(begun) => begun,
                Err(
                    silent @ (CoordinationError::Unknown { .. }
                    | CoordinationError::Unavailable { .. }),
                ) => {
                    let now = self.inner.time.now();
                    silence.wait(sent, now, silent).await?;
                    continue;
                }
                Err(other) => return Err(other),
            };
            match self.stand(&session, timing, &mut silence).await {
                Ok(elected) => return self.lead(session, timing, elected),
                // Its node is gone, or goes with the session.
                Err(Ended::Session) => {
                    self.seat = None;
                    self.watching = None;
                }
                Err(Ended::For(error)) => return Err(error),
            }
        }
    }

    /// A session that lasts for the lease, and how its holder counts.
    async fn session(&self) -> Result<(Arc<Session>, Timing), CoordinationError> {
        let mut timing = Timing::of(&self.campaign)?;
        let asked = timing.lease.saturating_add(timing.margin);
        let session = self
            .inner
            .sessions
            .with(Duration::from_millis(asked))
            .await?;
        let granted = millis(session.timeout);
        if granted < asked {
            return Err(CoordinationError::Invalid {
                why: format!(
                    "a lease of {:?} with a margin of {:?} needs a session of {asked} ms, and ZooKeeper grants {granted} ms: make the lease shorter, or the server's maxSessionTimeout longer",
                    self.campaign.lease, self.campaign.margin
                ),
            });
        }
        // The holder works no longer than it was asked to, and its successor waits until the session has ended.
        timing.margin = timing.margin.saturating_add(granted - timing.lease);
        timing.lease = granted;
        Ok((session, timing))
    }

    async fn stand(
        &mut self,
        session: &Arc<Session>,
        timing: Timing,
        silence: &mut Silence,
    ) -> Result<Elected, Ended> {
        let mut candidate = Candidate::new(timing, self.give_up_at);
        loop {
            let mut sent = self.inner.time.now();
            let answer = match candidate.next(sent) {
                CandidateAsk::Over(Some(elected)) => return Ok(elected),
                CandidateAsk::Over(None) => {
                    return Err(Ended::For(CoordinationError::NotElected {
                        election: self.campaign.election.clone(),
                        wait: self.campaign.wait.unwrap_or_default(),
                    }));
                }
                CandidateAsk::Watch { what, until } => {
                    let watched = self.watch(session, what, until).await;
                    // One that fails is silent from then on.
                    sent = self.inner.time.now();
                    watched
                }
                ask => {
                    let patience = Duration::from_millis(timing.renew_every());
                    let patience = patience.min(silence.left(sent));
                    let answered = timeout(patience, self.ask(session, ask)).await;
                    answered.unwrap_or_else(|_| Err(late(patience)))
                }
            };
            let answer = match answer {
                // A claim is no progress before its term is open, however often the store grants it.
                Ok(claimed @ Answer::Claimed { is_open: false, .. }) => claimed,
                Ok(answer) => {
                    silence.over();
                    answer
                }
                Err(
                    silent @ (CoordinationError::Unknown { .. }
                    | CoordinationError::Unavailable { .. }),
                ) => {
                    if !session.lives() {
                        return Err(Ended::Session);
                    }
                    let now = self.inner.time.now();
                    silence.wait(sent, now, silent).await.map_err(Ended::For)?;
                    Answer::Lost
                }
                Err(other) => return Err(Ended::For(other)),
            };
            candidate.answer(self.inner.time.now(), answer);
        }
    }

    fn lead(
        mut self,
        session: Arc<Session>,
        timing: Timing,
        elected: Elected,
    ) -> Result<ZookeeperTenure, CoordinationError> {
        let missing = || CoordinationError::Unavailable {
            why: "the record of the term was not read".to_owned(),
        };
        let book = self.book.take().ok_or_else(missing)?;
        let seat = self.seat.take().ok_or_else(missing)?;
        let (election, leader) = (self.nodes.election.clone(), self.campaign.candidate.clone());
        let term = match self.nodes.kind {
            Kind::Election => book.chronicle.opened(election, elected.epoch, leader),
            Kind::Lock => Term {
                election,
                epoch: elected.epoch,
                leader,
                predecessor: None,
                last_checkpoint: None,
            },
        };
        let (inner, nodes) = (self.inner.clone(), self.nodes.clone());
        Ok(ZookeeperTenure::start(
            inner, session, nodes, seat.own, timing, elected, term, book,
        ))
    }

    async fn ask(
        &mut self,
        session: &Arc<Session>,
        ask: CandidateAsk,
    ) -> Result<Answer, CoordinationError> {
        match ask {
            CandidateAsk::Stand => self.take_place(session).await,
            CandidateAsk::Look => self.look(session).await,
            CandidateAsk::Claim => self.claim(session).await,
            CandidateAsk::Open { epoch, .. } => self.open(session, epoch).await,
            CandidateAsk::Watch { .. } | CandidateAsk::Over(_) => Ok(Answer::Lost),
        }
    }

    /// Makes its node, or looks whether it is there.
    async fn take_place(&mut self, session: &Arc<Session>) -> Result<Answer, CoordinationError> {
        let name = match &self.seat {
            Some(Seat { session, own }) => match &own.path {
                Some(path) => session.look(path).await.map(|stat| {
                    let name = path.rsplit('/').next().unwrap_or_default();
                    stat.map(|_| name.to_owned())
                }),
                // The answer to its creation was lost.
                None => session.find(own).await,
            }
            .map_err(Failed::of_a_read)?,
            None => None,
        };
        let name = match name {
            Some(name) => name,
            None => {
                // Whoever has another style is told before it has a node, which would be told to the others.
                let others = session.children(&self.nodes.line).await;
                self.nodes.in_order(others.map_err(Failed::of_a_read)?)?;
                let own = Own {
                    line: self.nodes.line.clone(),
                    id: new_id(),
                    path: None,
                };
                let prefix = self.nodes.place(&own.id);
                let session = session.clone();
                // From here on there may be a node.
                let seat = self.seat.insert(Seat { session, own });
                let leader = self.campaign.candidate.as_str();
                let made = seat
                    .session
                    .create_numbered(&prefix, leader.as_bytes())
                    .await;
                let number = made.map_err(Failed::of_a_change)?;
                let name = format!("{prefix}{number:010}");
                name.rsplit('/').next().unwrap_or_default().to_owned()
            }
        };
        let places = self.nodes.in_order(vec![name.clone()])?;
        let Some(seat) = &mut self.seat else {
            return Ok(Answer::Lost);
        };
        seat.own.path = Some(self.nodes.child(&name));
        Ok(places.first().map_or(Answer::Lost, |place| {
            Answer::Standing(Epoch(place.number.into()))
        }))
    }

    async fn look(&mut self, session: &Session) -> Result<Answer, CoordinationError> {
        let children = session.children(&self.nodes.line).await;
        let places = self.nodes.in_order(children.map_err(Failed::of_a_read)?)?;
        let id = self.seat.as_ref().map_or("", |seat| &seat.own.id);
        let own = places
            .iter()
            .position(|place| !id.is_empty() && place.name.starts_with(id));
        let ahead = own.and_then(|own| places[..own].last());
        self.ahead = ahead.map(|place| place.name.clone());
        Ok(Answer::Seen {
            place: own.map(|own| Epoch(places[own].number.into())),
            ahead: ahead.map(|place| Ahead {
                place: Epoch(place.number.into()),
                revision: Revision(0),
            }),
            term: None,
            is_led: false,
        })
    }

    async fn watch(
        &mut self,
        session: &Session,
        what: Watched,
        until: Millis,
    ) -> Result<Answer, CoordinationError> {
        let (Watched::Ahead(_), Some(ahead)) = (what, &self.ahead) else {
            return Ok(Answer::Changed);
        };
        // The watch goes on while the candidate looks whether its own node is there.
        if self.watching.as_ref().is_none_or(|(name, _)| name != ahead) {
            let node = self.nodes.child(ahead);
            let watched = tokio::select! {
                watched = session.watch(&node) => watched,
                () = self.inner.time.sleep_until(until) => return Ok(Answer::Elapsed),
            };
            match watched.map_err(Failed::of_a_read)? {
                Some((.., watching)) => self.watching = Some((ahead.clone(), watching)),
                None => return Ok(Answer::Changed),
            }
        }
        let Some((_, watching)) = &mut self.watching else {
            return Ok(Answer::Changed);
        };
        tokio::select! {
            () = watching.changed() => {
                self.watching = None;
                Ok(Answer::Changed)
            }
            () = self.inner.time.sleep_until(until) => Ok(Answer::Elapsed),
        }
    }

    /// It is the first, which it stays: confirms its node, from whose creation the term has its epoch.
    async fn claim(&mut self, session: &Session) -> Result<Answer, CoordinationError> {
        let path = self.seat.as_ref().and_then(|seat| seat.own.path.as_ref());
        let Some(path) = path else {
            return Ok(Answer::Held);
        };
        let stat = session.look(path).await.map_err(Failed::of_a_read)?;
        let Some(stat) = stat.filter(|stat| stat.ephemeral_owner == session.id()) else {
            return Ok(Answer::Held);
        };
        let epoch = epoch(stat.czxid);
        let book = Book::read(session, &self.nodes).await?;
        let last = book.chronicle.term.as_ref().map(|term| term.epoch);
        if let Some(last) = last.filter(|last| *last > epoch) {
            return Err(self.nodes.damaged(format!(
                "node {} has a term {}, and the new one would be {}: the ensemble was made anew, and its numbers began anew",
                self.nodes.term, last.0, epoch.0
            )));
        }
        let version = book.record_version();
        let is_open = self.nodes.kind == Kind::Lock || book.chronicle.is_open(epoch);
        // Otherwise it is confirmed when the term is opened.
        if is_open && !session.confirm(path).await.map_err(Failed::of_a_read)? {
            return Ok(Answer::Held);
        }
        self.book = Some(book);
        Ok(Answer::Claimed {
            epoch,
            version,
            is_open,
        })
    }

    async fn open(&mut self, session: &Session, epoch: Epoch) -> Result<Answer, CoordinationError> {
        let path = self.seat.as_ref().and_then(|seat| seat.own.path.as_ref());
        let (Some(path), Some(book)) = (path, &self.book) else {
            return Ok(Answer::Refused);
        };
        let leader = self.campaign.candidate.clone();
        let mut book = book.clone();
        book.chronicle.open(epoch, leader, self.inner.time.wall());
        let written = book.write(session, &self.nodes, path).await?;
        if written != Written::Done {
            return Ok(Answer::Refused);
        }
        self.book = Some(book);
        Ok(Answer::Done)
    }
}

fn late(patience: Duration) -> CoordinationError {
    CoordinationError::Unknown {
        why: format!(
            "ZooKeeper has not answered within {} ms",
            patience.as_millis()
        ),
    }
}

/// The number of the change that has made a node, which is higher than that of every change before it in the ensemble.
pub(crate) fn epoch(czxid: i64) -> Epoch {
    Epoch(czxid.unsigned_abs())
}

impl Drop for Standing {
    fn drop(&mut self) {
        if let Some(Seat { session, own }) = self.seat.take() {
            session.give_back(own);
        }
    }
}
