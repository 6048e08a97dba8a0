//! A candidate over records: asks the store what its machine says.

use std::{sync::Arc, time::Duration};

use lockgate_core::{
    Epoch, HolderName, LeaseRecord, Millis, PutRecord, Record, RecordName, RecordVersion, Records,
    RecordsError, ReleaseRecord, Revision, WatchRecord,
    coordination::{Campaign, CoordinationError, Term},
};
use tokio::{runtime::Handle, time::timeout};

use super::{
    Inner, RecordsTenure, WATCH, decode, error,
    names::{Kind, Names},
    tenure::Book,
};
use crate::{
    chronicle::Chronicle,
    protocol::{Ahead, Answer, Candidate, CandidateAsk, Elected, Timing, Watched},
    silence::Silence,
    time::millis,
};

/// A candidate. If it is dropped before it leads, its place and its lease are given back.
pub(super) struct Standing<S: Records + 'static> {
    inner: Arc<Inner<S>>,
    names: Names,
    campaign: Campaign,
    timing: Timing,
    holder: HolderName,
    place: RecordName,
    candidate: Candidate,
    /// The record of the place ahead.
    ahead: Option<RecordName>,
    /// The term's record, as it was claimed or opened.
    book: Option<Book>,
    /// A lease that was asked for and may have been granted.
    asked: Option<LeaseRecord>,
    is_elected: bool,
}

impl<S: Records + 'static> Standing<S> {
    pub(super) fn new(
        inner: Arc<Inner<S>>,
        kind: Kind,
        campaign: Campaign,
    ) -> Result<Self, CoordinationError> {
        let timing = Timing::of(&campaign)?;
        let names = inner.names(kind, &campaign.election)?;
        let holder = inner.next_holder(&campaign.candidate)?;
        let now = inner.time.now();
        let give_up_at = campaign.wait.map(|wait| now.saturating_add(millis(wait)));
        Ok(Self {
            place: names.place(&holder)?,
            candidate: Candidate::new(timing, give_up_at),
            inner,
            names,
            campaign,
            timing,
            holder,
            ahead: None,
            book: None,
            asked: None,
            is_elected: false,
        })
    }

    /// Stands until it leads.
    pub(super) async fn run(mut self) -> Result<RecordsTenure<S>, CoordinationError> {
        let mut silence = Silence::new(&self.campaign, self.inner.time.now());
        loop {
            let mut sent = self.inner.time.now();
            let answer = match self.candidate.next(sent) {
                CandidateAsk::Over(Some(elected)) => return self.lead(elected),
                CandidateAsk::Over(None) => {
                    return Err(CoordinationError::NotElected {
                        election: self.campaign.election.clone(),
                        wait: self.campaign.wait.unwrap_or_default(),
                    });
                }
                CandidateAsk::Watch { what, until } => {
                    let watched = self.watch(what, until).await;
                    // One that fails is silent from then on.
                    sent = self.inner.time.now();
                    watched
                }
                ask => self.ask(ask, silence.left(sent)).await,
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
                    let now = self.inner.time.now();
                    silence.wait(sent, now, silent).await?;
                    Answer::Lost
                }
                Err(other) => return Err(other),
            };
            self.candidate.answer(self.inner.time.now(), answer);
        }
    }

    fn lead(mut self, elected: Elected) -> Result<RecordsTenure<S>, CoordinationError> {
        let Some(book) = self.book.take() else {
            let why = "the record of the term was not read".to_owned();
            return Err(CoordinationError::Unavailable { why });
        };
        self.is_elected = true;
        self.leave();
        let (election, leader) = (self.names.election.clone(), self.campaign.candidate.clone());
        let term = match self.names.kind {
            Kind::Election => book.chronicle.opened(election, elected.epoch, leader),
            Kind::Lock => Term {
                election,
                epoch: elected.epoch,
                leader,
                predecessor: None,
                last_checkpoint: None,
            },
        };
        let (inner, names) = (self.inner.clone(), self.names.clone());
        Ok(RecordsTenure::start(
            inner,
            names,
            self.timing,
            elected,
            term,
            book,
        ))
    }

    /// Asks, and waits so long for the answer, or as long as it waits for one answer.
    async fn ask(
        &mut self,
        ask: CandidateAsk,
        left: Duration,
    ) -> Result<Answer, CoordinationError> {
        let patience = left.min(Duration::from_millis(self.timing.renew_every()));
        let answered = timeout(patience, self.ask_at_once(ask)).await;
        answered.unwrap_or_else(|_| {
            Err(CoordinationError::Unknown {
                why: format!("no answer came within {} ms", patience.as_millis()),
            })
        })
    }

    async fn ask_at_once(&mut self, ask: CandidateAsk) -> Result<Answer, CoordinationError> {
        match ask {
            CandidateAsk::Stand => {
                let (place, epoch) = (self.place.clone(), None::<Epoch>);
                let stood = self.lease(place, true).await.map_err(error)?;
                let epoch = stood.lease.map(|lease| lease.epoch).or(epoch);
                Ok(epoch.map_or(Answer::Lost, Answer::Standing))
            }
            CandidateAsk::Look => self.look().await,
            CandidateAsk::Claim => {
                let ends_too = self.names.kind == Kind::Lock;
                let term = match self.lease(self.names.term.clone(), ends_too).await {
                    Ok(term) => term,
                    Err(RecordsError::Held { .. }) => return Ok(Answer::Held),
                    Err(other) => return Err(error(other)),
                };
                let Some(lease) = &term.lease else {
                    return Ok(Answer::Lost);
                };
                let (epoch, version) = (lease.epoch, term.version);
                let chronicle = match self.names.kind {
                    Kind::Election => decode(&self.names, &term.value),
                    Kind::Lock => Ok(Chronicle::default()),
                };
                let chronicle = chronicle.inspect_err(|_| {
                    // Who cannot read the term does not keep it from those who can.
                    self.give_back(Some((self.names.term.clone(), epoch)));
                })?;
                let is_open = self.names.kind == Kind::Lock || chronicle.is_open(epoch);
                self.book = Some(Book {
                    chronicle,
                    version,
                    revision: term.revision,
                });
                Ok(Answer::Claimed {
                    epoch,
                    version,
                    is_open,
                })
            }
            CandidateAsk::Open { epoch, replaces } => self.open(epoch, replaces).await,
            CandidateAsk::Watch { .. } | CandidateAsk::Over(_) => Ok(Answer::Lost),
        }
    }

    async fn lease(
        &mut self,
        name: RecordName,
        delete_at_end: bool,
    ) -> Result<Record, RecordsError> {
        let lease = LeaseRecord {
            name,
            holder: self.holder.clone(),
            lease: self.timing.lease,
            delete_at_end,
        };
        self.asked = Some(lease.clone());
        let answer = self.inner.records.lease(lease).await;
        if !matches!(answer, Err(RecordsError::Unknown { .. })) {
            self.asked = None;
        }
        answer
    }

    async fn look(&mut self) -> Result<Answer, CoordinationError> {
        let term = self.inner.read(&self.names).await?;
        let places = self.inner.places(&self.names).await.map_err(error)?;
        let leader = term.as_ref().and_then(|term| term.lease.as_ref());
        let own = places.iter().position(|place| place.holder == self.holder);
        // The leader may not have left the line yet.
        let ahead = places[..own.unwrap_or(0)]
            .iter()
            .rfind(|place| Some(&place.holder) != leader.map(|lease| &lease.holder));
        self.ahead = ahead.map(|place| place.record.name.clone());
        Ok(Answer::Seen {
            place: own.map(|own| places[own].epoch),
            ahead: ahead.map(|place| Ahead {
                place: place.epoch,
                revision: place.record.revision,
            }),
            is_led: leader.is_some(),
            term: term.map(|term| term.revision),
        })
    }

    async fn watch(&self, what: Watched, until: Millis) -> Result<Answer, CoordinationError> {
        let (name, seen): (_, Option<Revision>) = match (what, &self.ahead) {
            (Watched::Term(seen), _) => (&self.names.term, seen),
            (Watched::Ahead(ahead), Some(name)) => (name, Some(ahead.revision)),
            (Watched::Ahead(_), None) => return Ok(Answer::Changed),
        };
        let watch = WatchRecord {
            name: name.clone(),
            seen,
            wait: WATCH,
        };
        tokio::select! {
            changed = self.inner.records.watch(watch) => {
                changed.map_err(error)?;
                Ok(Answer::Changed)
            }
            () = self.inner.time.sleep_until(until) => Ok(Answer::Elapsed),
        }
    }

    async fn open(
        &mut self,
        epoch: Epoch,
        replaces: RecordVersion,
    ) -> Result<Answer, CoordinationError> {
        let Some(book) = &mut self.book else {
            return Ok(Answer::Refused);
        };
        let leader = self.campaign.candidate.clone();
        let mut chronicle = book.chronicle.clone();
        chronicle.open(epoch, leader, self.inner.time.wall());
        let put = PutRecord {
            name: self.names.term.clone(),
            value: chronicle.encode(),
            replaces: Some(replaces),
            epoch: Some(epoch),
        };
        match self.inner.records.put(put).await {
            Ok(written) => {
                *book = Book {
                    chronicle,
                    version: written.version,
                    revision: written.revision,
                };
                Ok(Answer::Done)
            }
            Err(RecordsError::Conflict { .. } | RecordsError::LeaseLost { .. }) => {
                Ok(Answer::Refused)
            }
            Err(other) => Err(error(other)),
        }
    }

    /// Gives the place back, behind the caller's back.
    fn leave(&mut self) {
        let place = self.candidate.place();
        self.give_back(place.map(|epoch| (self.place.clone(), epoch)));
    }

    /// Gives back what was asked for, if it was granted: its holder is given it again, and learns its epoch.
    fn take_back(&mut self) {
        if let (Some(asked), Ok(runtime)) = (self.asked.take(), Handle::try_current()) {
            let leaving = Leaving::begin(self.inner.clone());
            let patience = Duration::from_millis(self.timing.renew_every());
            runtime.spawn(async move {
                let (records, name) = (&leaving.0.records, asked.name.clone());
                let back = async {
                    let granted = records.lease(asked).await.ok();
                    if let Some(lease) = granted.and_then(|record| record.lease) {
                        let epoch = lease.epoch;
                        // If the store refuses, the lease ends by itself.
                        let _ = records.release(ReleaseRecord { name, epoch }).await;
                    }
                };
                // The same if it does not answer.
                let _ = timeout(patience, back).await;
            });
        }
    }

    fn give_back(&self, lease: Option<(RecordName, Epoch)>) {
        if let (Some((name, epoch)), Ok(runtime)) = (lease, Handle::try_current()) {
            let leaving = Leaving::begin(self.inner.clone());
            let patience = Duration::from_millis(self.timing.renew_every());
            runtime.spawn(async move {
                let release = ReleaseRecord { name, epoch };
                // If the store refuses or does not answer, the lease ends by itself.
                let _ = timeout(patience, leaving.0.records.release(release)).await;
            });
        }
    }
}

/// A lease on its way back, counted until it is there.
struct Leaving<S>(Arc<Inner<S>>);

impl<S> Leaving<S> {
    fn begin(inner: Arc<Inner<S>>) -> Self {
        inner.leaving.send_modify(|leaving| *leaving += 1);
        Self(inner)
    }
}

impl<S> Drop for Leaving<S> {
    fn drop(&mut self) {
        self.0.leaving.send_modify(|leaving| *leaving -= 1);
    }
}

impl<S: Records + 'static> Drop for Standing<S> {
    fn drop(&mut self) {
        if !self.is_elected {
            let claimed = self.candidate.claimed();
            self.give_back(claimed.map(|epoch| (self.names.term.clone(), epoch)));
            self.leave();
            self.take_back();
        }
    }
}
