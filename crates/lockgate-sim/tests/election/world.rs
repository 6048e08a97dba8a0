//! The machines that the library runs, in a world where time passes between any two steps, any answer can be lost and its
//! request come late, and every process can die.
//!
//! Time is counted in ticks. It stands still at [`NOW`]; instead all that is in the past or in the future moves, so that
//! states which differ only in the hour are one.

use lockgate_coordination::protocol::{
    Ahead, Answer, Candidate, CandidateAsk, Holder, HolderAsk, Timing, Watched,
};
use lockgate_core::{Epoch, Millis, RecordVersion, Revision};
use lockgate_sim::explore::Model;

const NOW: Millis = 8;

/// A lease is 4 ticks, of which a holder works 3.
const TIMING: Timing = Timing {
    lease: 4,
    margin: 1,
    notice: 1,
};

/// How much of each evil there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Evils {
    pub(crate) crashes: u8,
    /// Answers that are lost.
    pub(crate) lost: u8,
    /// Leases and places that end while their owners live: they are frozen, or the store is far away.
    pub(crate) lapses: u8,
    /// Ticks that pass for the store, and not for one of the processes.
    pub(crate) slow: u8,
    /// Writes to the sink.
    pub(crate) writes: u8,
}

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planted {
    Nothing,
    /// A holder counts its lease from the answer on.
    CountsFromTheAnswer,
    /// A holder works until it is told that it does not lead.
    IgnoresItsClock,
    /// A holder gives its lease back while its last write is under way.
    ReleasesBeforeItIsDone,
    /// A release ends whichever lease there is.
    ReleasesWhateverThereIs,
    /// Whoever waits for the term does not hear that its lease has ended.
    HearsOfValuesOnly,
    /// Candidates watch the place ahead, and do not hear that it is gone.
    HearsOfNoPlace,
    /// The store counts epochs anew when nothing is leased.
    EpochsBeginAnew,
    /// The sink takes every write.
    SinkTakesAll,
}

pub(crate) struct Election {
    pub(crate) members: u8,
    pub(crate) evils: Evils,
    pub(crate) planted: Planted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Lease {
    member: u8,
    epoch: u64,
    left: Millis,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// The term's lease.
    lease: Option<Lease>,
    version: u64,
    revision: u64,
    /// The epoch of the last term that was opened, and whether it is closed.
    opened: (u64, bool),
    line: Vec<Lease>,
    epoch: u64,
    members: Vec<Member>,
    /// Requests whose answers were lost before they happened.
    late: Vec<(u8, Request)>,
    evils: Evils,
    /// The highest epoch that the sink has taken.
    newest: u64,
    /// The highest epoch of a term that has begun.
    highest: u64,
    problem: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Member {
    Stands {
        machine: Candidate,
        ask: CandidateAsk,
        /// What the store has said, on its way.
        answer: Option<Answer>,
    },
    Leads {
        machine: Holder,
        ask: HolderAsk,
        answer: Option<Answer>,
        /// Whether a write has left that has not come to the sink.
        writes: bool,
    },
    Over,
}

/// What changes the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Request {
    Stand,
    Claim,
    Open { epoch: u64, replaces: u64 },
    Renew { epoch: u64 },
    Close { epoch: u64, replaces: u64 },
    Release { epoch: u64 },
}

#[derive(Debug)]
#[expect(dead_code, reason = "shown")]
pub(crate) enum Step {
    Tick,
    /// A tick that this process does not see.
    TickWithout(u8),
    StoreDoes(u8, String),
    Hears(u8, String),
    WaitsLongEnough(u8),
    LosesAnswer(u8, Request),
    ComesLate(u8, Request),
    /// Looks at its fence, and sends a write.
    Writes(u8),
    WriteComes(u8),
    Resigns(u8),
    Dies(u8),
}

impl World {
    fn next_epoch(&mut self, planted: Planted) -> u64 {
        if planted == Planted::EpochsBeginAnew && self.lease.is_none() && self.line.is_empty() {
            self.epoch = 0;
        }
        self.epoch += 1;
        self.epoch
    }

    fn changed(&mut self) {
        self.revision += 1;
    }

    fn holds(&self, epoch: u64) -> bool {
        self.lease.is_some_and(|lease| lease.epoch == epoch)
    }

    /// What the store does with a request that changes it.
    fn change(&mut self, member: u8, request: Request, planted: Planted) -> Answer {
        match request {
            Request::Stand => {
                if let Some(place) = self.line.iter_mut().find(|place| place.member == member) {
                    place.left = TIMING.lease;
                    return Answer::Standing(Epoch(place.epoch));
                }
                let epoch = self.next_epoch(planted);
                self.line.push(Lease {
                    member,
                    epoch,
                    left: TIMING.lease,
                });
                Answer::Standing(Epoch(epoch))
            }
            Request::Claim => {
                if self.lease.is_none() {
                    let epoch = self.next_epoch(planted);
                    self.changed();
                    self.lease = Some(Lease {
                        member,
                        epoch,
                        left: TIMING.lease,
                    });
                }
                match &mut self.lease {
                    Some(lease) if lease.member == member => {
                        lease.left = TIMING.lease;
                        Answer::Claimed {
                            epoch: Epoch(lease.epoch),
                            version: RecordVersion(self.version),
                            is_open: self.opened.0 == lease.epoch,
                        }
                    }
                    _ => Answer::Held,
                }
            }
            Request::Open { epoch, replaces } | Request::Close { epoch, replaces } => {
                if !self.holds(epoch) || self.version != replaces {
                    return Answer::Refused;
                }
                self.version += 1;
                self.changed();
                self.opened = (epoch, matches!(request, Request::Close { .. }));
                Answer::Done
            }
            Request::Renew { epoch } => match &mut self.lease {
                Some(lease) if lease.epoch == epoch => {
                    lease.left = TIMING.lease;
                    Answer::Done
                }
                _ => Answer::Refused,
            },
            Request::Release { epoch } => {
                let whatever = planted == Planted::ReleasesWhateverThereIs && self.lease.is_some();
                if !self.holds(epoch) && !whatever {
                    return Answer::Refused;
                }
                let ended = self.lease.take().map(|lease| lease.epoch);
                self.changed();
                let works = |it: &Member| match it {
                    Member::Leads {
                        machine, writes, ..
                    } if Some(machine.epoch().0) == ended => *writes || machine.stop_at() > NOW,
                    _ => false,
                };
                if self.members.iter().any(works) {
                    self.problem = Some("a lease is given back while its holder works");
                }
                Answer::Done
            }
        }
    }

    /// What a look at the line and the term shows.
    fn look(&self, member: u8) -> Answer {
        let own = self.line.iter().position(|place| place.member == member);
        let leader = self.lease.map(|lease| lease.member);
        let ahead = self.line[..own.unwrap_or(0)].iter();
        Answer::Seen {
            place: own.map(|own| Epoch(self.line[own].epoch)),
            ahead: ahead
                .rev()
                .find(|place| Some(place.member) != leader)
                .map(|place| Ahead {
                    place: Epoch(place.epoch),
                    revision: Revision(place.epoch),
                }),
            term: (self.revision > 0).then_some(Revision(self.revision)),
            is_led: self.lease.is_some(),
        }
    }

    /// What the store says to who stands; `None`: nothing yet.
    fn says(&mut self, member: u8, ask: CandidateAsk, planted: Planted) -> Option<Answer> {
        Some(match ask {
            CandidateAsk::Stand => self.change(member, Request::Stand, planted),
            CandidateAsk::Look => self.look(member),
            CandidateAsk::Claim => self.change(member, Request::Claim, planted),
            CandidateAsk::Open { epoch, replaces } => {
                let (epoch, replaces) = (epoch.0, replaces.0);
                self.change(member, Request::Open { epoch, replaces }, planted)
            }
            CandidateAsk::Watch { what, .. } => {
                let is_changed = match what {
                    Watched::Term(seen) => {
                        let seen = seen.map_or(0, |revision| revision.0);
                        self.revision != seen
                            && (planted != Planted::HearsOfValuesOnly || self.lease.is_some())
                    }
                    Watched::Ahead(ahead) => {
                        let is_there = |place: &Lease| place.epoch == ahead.place.0;
                        planted != Planted::HearsOfNoPlace && !self.line.iter().any(is_there)
                    }
                };
                if !is_changed {
                    return None;
                }
                Answer::Changed
            }
            CandidateAsk::Over(_) => return None,
        })
    }

    /// What the store says to who leads.
    fn says_to_holder(
        &mut self,
        member: u8,
        epoch: u64,
        ask: HolderAsk,
        planted: Planted,
    ) -> Option<Answer> {
        Some(match ask {
            HolderAsk::Renew => self.change(member, Request::Renew { epoch }, planted),
            HolderAsk::Close { replaces } => {
                let replaces = replaces.0;
                self.change(member, Request::Close { epoch, replaces }, planted)
            }
            HolderAsk::Read => Answer::Term {
                is_own: self.holds(epoch),
                is_closed: self.opened == (epoch, true),
                version: RecordVersion(self.version),
            },
            HolderAsk::Release => self.change(member, Request::Release { epoch }, planted),
            HolderAsk::Wait(_) | HolderAsk::Lost | HolderAsk::Over(_) => return None,
        })
    }

    /// A member goes on with an answer.
    fn hears(&mut self, member: u8, answer: Answer, planted: Planted) {
        let place = &mut self.members[usize::from(member)];
        match place {
            Member::Stands {
                machine,
                ask,
                answer: on_its_way,
            } => {
                *on_its_way = None;
                machine.answer(NOW, answer);
                *ask = machine.next(NOW);
                if let CandidateAsk::Over(Some(mut elected)) = *ask {
                    if elected.epoch.0 <= self.highest {
                        self.problem = Some("an epoch does not rise");
                    }
                    self.highest = elected.epoch.0;
                    if planted == Planted::CountsFromTheAnswer {
                        elected.counted_from = NOW;
                    }
                    let mut machine = Holder::new(TIMING, elected);
                    *place = Member::Leads {
                        ask: machine.next(NOW),
                        machine,
                        answer: None,
                        writes: false,
                    };
                    // It leaves the line.
                    self.line.retain(|place| place.member != member);
                }
            }
            Member::Leads {
                machine,
                ask,
                answer: on_its_way,
                ..
            } => {
                *on_its_way = None;
                let renewed = (*ask, &answer) == (HolderAsk::Renew, &Answer::Done);
                if planted == Planted::CountsFromTheAnswer && renewed {
                    let elected = lockgate_coordination::protocol::Elected {
                        epoch: machine.epoch(),
                        counted_from: NOW,
                    };
                    *machine = Holder::new(TIMING, elected);
                } else {
                    machine.answer(NOW, answer);
                }
                *ask = machine.next(NOW);
                if let HolderAsk::Over(_) = *ask {
                    *place = Member::Over;
                }
            }
            Member::Over => {}
        }
    }

    fn is_alive(&self, lease: &Lease) -> bool {
        match &self.members[usize::from(lease.member)] {
            Member::Stands { .. } => true,
            Member::Leads { machine, .. } => machine.epoch().0 == lease.epoch,
            Member::Over => false,
        }
    }

    /// Time passes. `None`: a lease would end that may not.
    fn tick(&self, without: Option<u8>) -> Option<Self> {
        let mut next = self.clone();
        let mut ended = Vec::new();
        for lease in next.line.iter_mut().chain(&mut next.lease) {
            lease.left -= 1;
            if lease.left == 0 {
                ended.push(*lease);
            }
        }
        for lease in &ended {
            if self.is_alive(lease) {
                next.evils.lapses = next.evils.lapses.checked_sub(1)?;
            }
        }
        next.line.retain(|place| place.left > 0);
        if next.lease.is_some_and(|lease| lease.left == 0) {
            next.lease = None;
            next.changed();
        }
        for (member, place) in (0..).zip(&mut next.members) {
            if Some(member) == without {
                continue;
            }
            match place {
                Member::Stands { machine, ask, .. } => {
                    machine.shift(1, NOW);
                    if let CandidateAsk::Watch { until, .. } = ask {
                        *until = until.saturating_sub(1).max(NOW);
                    }
                }
                Member::Leads { machine, ask, .. } => {
                    machine.shift(1, NOW);
                    if let HolderAsk::Wait(until) = ask {
                        *until = until.saturating_sub(1).max(NOW);
                    }
                }
                Member::Over => {}
            }
        }
        Some(next)
    }

    /// Whether that member may work as far as it knows.
    fn works(member: &Member, planted: Planted) -> bool {
        match member {
            Member::Leads { machine, .. } => {
                machine.stop_at()
                    > if planted == Planted::IgnoresItsClock {
                        0
                    } else {
                        NOW
                    }
            }
            _ => false,
        }
    }

    fn steps_of(&self, member: u8, planted: Planted, steps: &mut Vec<(Step, Self)>) {
        let at = usize::from(member);
        let (request, says, on_its_way) = match &self.members[at] {
            Member::Over => return,
            Member::Stands { ask, answer, .. } => {
                let request = match ask {
                    CandidateAsk::Stand => Some(Request::Stand),
                    CandidateAsk::Claim => Some(Request::Claim),
                    CandidateAsk::Open { epoch, replaces } => Some(Request::Open {
                        epoch: epoch.0,
                        replaces: replaces.0,
                    }),
                    _ => None,
                };
                if let CandidateAsk::Watch { until, .. } = ask
                    && *until <= NOW
                {
                    let mut next = self.clone();
                    next.hears(member, Answer::Elapsed, planted);
                    steps.push((Step::WaitsLongEnough(member), next));
                }
                let mut next = self.clone();
                let says = next.says(member, *ask, planted);
                (request, says.map(|says| (says, next)), answer.clone())
            }
            Member::Leads {
                machine,
                ask,
                answer,
                writes,
            } => {
                let epoch = machine.epoch().0;
                let request = match ask {
                    HolderAsk::Renew => Some(Request::Renew { epoch }),
                    HolderAsk::Close { replaces } => Some(Request::Close {
                        epoch,
                        replaces: replaces.0,
                    }),
                    HolderAsk::Release => Some(Request::Release { epoch }),
                    _ => None,
                };
                if let HolderAsk::Wait(until) = ask
                    && *until <= NOW
                {
                    let mut next = self.clone();
                    next.hears(member, Answer::Elapsed, planted);
                    steps.push((Step::WaitsLongEnough(member), next));
                }
                self.works_on(member, *ask, *writes, planted, steps);
                let mut next = self.clone();
                let says = next.says_to_holder(member, epoch, *ask, planted);
                (request, says.map(|says| (says, next)), answer.clone())
            }
        };
        if let Some(answer) = on_its_way {
            let mut next = self.clone();
            let what = format!("{answer:?}");
            next.hears(member, answer, planted);
            steps.push((Step::Hears(member, what), next));
            return;
        }
        if let Some((said, mut next)) = says {
            let what = format!("{said:?}");
            // Of other answers it makes no difference whether time passes before or after the store has acted.
            let is_slow = matches!(
                request,
                Some(Request::Claim | Request::Open { .. } | Request::Renew { .. })
            );
            match &mut next.members[at] {
                Member::Stands { answer, .. } | Member::Leads { answer, .. } if is_slow => {
                    *answer = Some(said);
                }
                _ => next.hears(member, said, planted),
            }
            steps.push((Step::StoreDoes(member, what), next));
        }
        if let Some(request) = request
            && self.evils.lost > 0
        {
            // What has happened by then is what comes late at once.
            let mut next = self.clone();
            next.evils.lost -= 1;
            next.late.push((member, request));
            next.hears(member, Answer::Lost, planted);
            steps.push((Step::LosesAnswer(member, request), next));
        }
    }

    /// What the career of a leader does.
    fn works_on(
        &self,
        member: u8,
        ask: HolderAsk,
        writes: bool,
        planted: Planted,
        steps: &mut Vec<(Step, Self)>,
    ) {
        let at = usize::from(member);
        let set = |world: &mut Self, value: bool| {
            if let Member::Leads { writes, .. } = &mut world.members[at] {
                *writes = value;
            }
        };
        if writes {
            let mut next = self.clone();
            set(&mut next, false);
            if let Member::Leads { machine, .. } = &self.members[at] {
                let epoch = machine.epoch().0;
                if epoch >= self.newest {
                    next.newest = epoch;
                } else if planted == Planted::SinkTakesAll {
                    next.problem = Some("a sink takes a write after one of a later term");
                }
            }
            steps.push((Step::WriteComes(member), next));
        } else if Self::works(&self.members[at], planted) && self.evils.writes > 0 {
            let mut next = self.clone();
            next.evils.writes -= 1;
            set(&mut next, true);
            steps.push((Step::Writes(member), next));
        }
        let leads = matches!(ask, HolderAsk::Wait(_) | HolderAsk::Renew | HolderAsk::Lost);
        if leads && (!writes || planted == Planted::ReleasesBeforeItIsDone) {
            let mut next = self.clone();
            if let Member::Leads {
                machine,
                ask,
                answer,
                ..
            } = &mut next.members[at]
            {
                *answer = None;
                machine.resign(Some(RecordVersion(self.version)));
                *ask = machine.next(NOW);
            }
            steps.push((Step::Resigns(member), next));
        }
    }
}

impl Model for Election {
    type State = World;
    type Canonical = World;
    type Step = Step;

    fn start(&self) -> World {
        let stands = |_| {
            let mut machine = Candidate::new(TIMING, None);
            Member::Stands {
                ask: machine.next(NOW),
                machine,
                answer: None,
            }
        };
        World {
            lease: None,
            version: 0,
            revision: 0,
            opened: (0, false),
            line: Vec::new(),
            epoch: 0,
            members: (0..self.members).map(stands).collect(),
            late: Vec::new(),
            evils: self.evils,
            newest: 0,
            highest: 0,
            problem: None,
        }
    }

    fn steps(&self, world: &World) -> Vec<(Step, World)> {
        let mut steps = Vec::new();
        for member in 0..self.members {
            world.steps_of(member, self.planted, &mut steps);
            let is_over = matches!(world.members[usize::from(member)], Member::Over);
            if !is_over && world.evils.crashes > 0 {
                let mut next = world.clone();
                next.evils.crashes -= 1;
                next.members[usize::from(member)] = Member::Over;
                steps.push((Step::Dies(member), next));
            }
            if !is_over && world.evils.slow > 0 {
                let mut next = world.clone();
                next.evils.slow -= 1;
                let next = next.tick(Some(member));
                steps.extend(next.map(|next| (Step::TickWithout(member), next)));
            }
        }
        for (place, (member, request)) in world.late.iter().enumerate() {
            let mut next = world.clone();
            next.late.remove(place);
            next.change(*member, *request, self.planted);
            steps.push((Step::ComesLate(*member, *request), next));
        }
        if !self.is_end(world) {
            let next = world.tick(None);
            steps.extend(next.map(|next| (Step::Tick, next)));
        }
        steps
    }

    fn canonical(&self, world: &World) -> World {
        let mut world = world.clone();
        if self.is_end(&world) {
            world.late.clear();
        }
        world.late.sort_unstable();
        world
    }

    fn problem(&self, world: &World) -> Option<String> {
        let work = world.members.iter();
        let work = work.filter(|member| World::works(member, self.planted));
        match (world.problem, work.count()) {
            (Some(problem), _) => Some(problem.to_owned()),
            (None, 0 | 1) => None,
            _ => Some("two lead at one time".to_owned()),
        }
    }

    fn is_end(&self, world: &World) -> bool {
        (world.members.iter()).all(|member| matches!(member, Member::Over))
    }
}
