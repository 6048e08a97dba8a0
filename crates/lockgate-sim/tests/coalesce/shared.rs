//! The protocol over records: the machine that the library runs, in a world where every step can be the last, any
//! answer can be lost and its request come late, and any lease can end.

use bytes::Bytes;
use lockgate_consumer::coalesce::{
    Merge, Token,
    protocol::{Answer, Ask, End, Ended, Enter, Op, Outcome, Seen, SharedState, Step as Next},
};
use lockgate_core::{Epoch, RecordVersion, Revision};
use lockgate_sim::explore::{Explored, Model, Problem, explore};

/// More than there are callers.
const ROOM: usize = 9;

/// How much of each evil there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Evils {
    crashes: u8,
    /// Answers that are lost.
    lost: u8,
    /// Leases that end while their holders live: they are frozen, or their clocks are slow.
    frozen: u8,
    /// Runs that fail.
    failures: u8,
}

/// A mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// The end of a run is that of whichever run is there.
    EndsWhoeverRuns,
    /// A run that succeeds covers what came after it had started.
    CoversTheFuture,
    /// A trigger counts as covered as soon as another one waits or runs.
    AcksTheDeclined,
    /// A run that succeeds takes the state with it, whatever waits.
    ForgetsWhoWaits,
    /// Those who wait do not hear that the run's lease has ended.
    HearsOfNoEnd,
    /// Whoever ends a run does not look whether its lease lasts.
    EndsWithoutALook,
    /// Whoever has started a run does not look whether its lease has lasted until then.
    StartsWithoutALook,
}

struct Shared {
    callers: u8,
    /// How many payloads may wait.
    room: usize,
    evils: Evils,
    planted: Planted,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    room: usize,
    state: Option<Seen>,
    /// The highest version of a state that was deleted.
    deleted: u64,
    /// The run's lease: its epoch, and the caller that asked for it.
    run: Option<(u64, u8)>,
    /// The last lease's epoch.
    epoch: u64,
    callers: Vec<Caller>,
    /// Requests whose callers wait for them no more.
    late: Vec<(u8, Ask)>,
    evils: Evils,
    // What really happened.
    /// The highest token of a caller that ran.
    highest: u64,
    /// The token of each caller that ran.
    tokens: Vec<Option<Token>>,
    /// The triggers of each run that was written.
    runs: Vec<(Token, u32)>,
    /// The triggers that a run which started after them has covered.
    covered: u32,
    problem: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Caller {
    Enters(Enter, Ask),
    Runs(Epoch),
    /// Whether it has succeeded, and whether its lease lasted then.
    Ends(End, Ask, bool, bool),
    /// Whether it was told that its trigger is covered.
    Over(bool),
}

#[derive(Debug)]
enum Step {
    Asks(
        #[expect(dead_code, reason = "shown")] u8,
        #[expect(dead_code, reason = "shown")] String,
    ),
    LosesAnswer(
        #[expect(dead_code, reason = "shown")] u8,
        #[expect(dead_code, reason = "shown")] String,
    ),
    ComesLate(
        #[expect(dead_code, reason = "shown")] u8,
        #[expect(dead_code, reason = "shown")] String,
    ),
    Succeeds(#[expect(dead_code, reason = "shown")] u8),
    Fails(#[expect(dead_code, reason = "shown")] u8),
    Dies(#[expect(dead_code, reason = "shown")] u8),
    LeaseEnds(#[expect(dead_code, reason = "shown")] u64),
}

fn ids(payloads: &[Bytes]) -> u32 {
    payloads
        .iter()
        .map(|payload| 1 << payload[0])
        .fold(0, |all, one| all | one)
}

/// What it is, without what it has in it.
fn name(ask: &Ask) -> String {
    let text = format!("{ask:?}");
    text.split([' ', '(']).next().unwrap_or_default().to_owned()
}

impl World {
    fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// Whether that run's caller lives and has not ended it.
    fn is_alive(&self, (epoch, caller): (u64, u8)) -> bool {
        match &self.callers[usize::from(caller)] {
            Caller::Enters(enter, _) => enter.leased() == Some(Epoch(epoch)),
            Caller::Runs(token) => token.0 == epoch,
            Caller::Ends(..) => true,
            Caller::Over(_) => false,
        }
    }

    /// What the store does with a request.
    fn answer(&mut self, caller: u8, ask: &Ask, planted: Planted) -> Option<Answer> {
        Some(match ask {
            Ask::Lease => match self.run {
                Some((epoch, holder)) if holder == caller => Answer::Leased(Epoch(epoch)),
                Some(_) => Answer::Held,
                None => {
                    let epoch = self.next_epoch();
                    self.run = Some((epoch, caller));
                    Answer::Leased(Epoch(epoch))
                }
            },
            Ask::ReadRun => Answer::Run(
                self.run
                    .map(|(epoch, _)| (Revision(epoch), Some(Epoch(epoch)))),
            ),
            Ask::ReadState => Answer::State(self.state.clone()),
            Ask::Write { state, replaces } => {
                if self.state.as_ref().map(|seen| seen.version) != *replaces {
                    return Some(Answer::Not);
                }
                self.notice(caller, Some(state));
                let last = replaces.map_or(self.deleted, |version| version.0);
                self.state = Some(Seen {
                    version: RecordVersion(last + 1),
                    state: state.clone(),
                });
                Answer::Done
            }
            Ask::Delete { replaces } => {
                if self.state.as_ref().map(|seen| seen.version) != Some(*replaces) {
                    return Some(Answer::Not);
                }
                let succeeds = match &self.callers[usize::from(caller)] {
                    Caller::Ends(_, _, succeeds, _) => *succeeds,
                    // A request that comes late. Only a success forgets more than one trigger.
                    _ => true,
                };
                if succeeds {
                    self.cover(caller);
                }
                self.deleted = replaces.0;
                self.state = None;
                Answer::Done
            }
            Ask::Release(epoch) => match self.run {
                Some((held, _)) if held == epoch.0 => {
                    self.run = None;
                    Answer::Done
                }
                _ => Answer::Not,
            },
            Ask::Watch(seen) => {
                let of_run = self.run.map(|(epoch, _)| Revision(epoch));
                if of_run == *seen || planted == Planted::HearsOfNoEnd {
                    return None;
                }
                Answer::Done
            }
        })
    }

    /// The caller has ended the state's run: its triggers are covered.
    fn cover(&mut self, caller: u8) {
        let running = self
            .state
            .as_ref()
            .and_then(|seen| seen.state.key().running());
        if running != self.tokens[usize::from(caller)] {
            self.problem = Some("a run is ended by another caller");
        }
        let of_it = self.runs.iter().find(|(token, _)| Some(*token) == running);
        self.covered |= of_it.map_or(0, |(_, ids)| *ids);
    }

    /// Looks what a write of the state does.
    fn notice(&mut self, caller: u8, after: Option<&SharedState>) {
        let before = self.state.as_ref().map(|seen| &seen.state);
        let running = before.and_then(|state| state.key().running());
        let starts = after.and_then(|state| state.key().running());
        if let (Some(token), Some(state)) = (starts, after)
            && running != starts
        {
            let held = self.run.map(|(epoch, _)| Token(epoch));
            if running.is_some() && running == held {
                self.problem = Some("a run starts while another one has its lease");
            }
            let batch = state.key().running_batch();
            self.runs
                .push((token, batch.map_or(0, |batch| ids(batch.payloads()))));
        }
        let covered = |state: Option<&SharedState>| state.map_or(0, |state| state.key().covered());
        if after.is_some() && covered(after) > covered(before) {
            self.cover(caller);
        }
    }

    fn is_covered(&mut self, caller: u8) {
        if self.covered & (1 << caller) == 0 {
            self.problem = Some("a trigger is said to be covered, and no later run covers it");
        }
        self.callers[usize::from(caller)] = Caller::Over(true);
    }

    /// A caller goes on with an answer.
    fn hears(&mut self, caller: u8, mut answer: Answer, planted: Planted) {
        let is_ack = planted == Planted::AcksTheDeclined && answer == Answer::Done;
        let place = usize::from(caller);
        match self.callers[place].clone() {
            Caller::Enters(mut enter, ask) => {
                if let (true, None, Ask::Write { .. }) = (is_ack, enter.leased(), &ask) {
                    return self.is_covered(caller);
                }
                if let (Planted::StartsWithoutALook, Answer::Run(run), Some(leased)) =
                    (planted, &mut answer, enter.leased())
                {
                    *run = Some((Revision(leased.0), Some(leased)));
                }
                match enter.next(&merge(self.room), answer) {
                    Next::Ask(ask) => self.callers[place] = Caller::Enters(enter, ask),
                    Next::Over(Outcome::Run { token, batch, .. }) => {
                        // It has its own payload in its hands, if the state had no room for it.
                        let own = Token(token.0);
                        for (_, has) in self.runs.iter_mut().filter(|(token, _)| *token == own) {
                            *has |= ids(batch.payloads());
                        }
                        if token.0 <= self.highest {
                            self.problem = Some("a token does not rise");
                        }
                        self.highest = token.0;
                        self.tokens[place] = Some(Token(token.0));
                        self.callers[place] = Caller::Runs(token);
                    }
                    Next::Over(Outcome::Covered(_)) => self.is_covered(caller),
                    Next::Over(Outcome::Rejected(_)) => {
                        if self.room == ROOM {
                            self.problem = Some("a trigger is rejected, and there is room");
                        }
                        self.callers[place] = Caller::Over(false);
                    }
                }
            }
            Caller::Ends(mut end, ask, succeeds, lasted) => {
                if let (Planted::EndsWithoutALook, Answer::Run(run)) = (planted, &mut answer) {
                    let token = self.tokens[place].unwrap_or_default().0;
                    *run = Some((Revision(token), Some(Epoch(token))));
                }
                if answer == Answer::Done
                    && !lasted
                    && matches!(ask, Ask::Write { .. } | Ask::Delete { .. })
                {
                    self.problem = Some("a run ends whose lease had ended before");
                }
                if let (Planted::EndsWhoeverRuns, Answer::State(Some(seen))) = (planted, &answer)
                    && let Some(running) = seen.state.key().running()
                {
                    end = End::new(op(caller, 1), Epoch(running.0), succeeds);
                }
                match end.next(answer) {
                    Next::Ask(mut ask) => {
                        plant(&mut ask, planted);
                        self.callers[place] = Caller::Ends(end, ask, succeeds, lasted);
                    }
                    Next::Over(Ended::Done) if succeeds => self.is_covered(caller),
                    Next::Over(_) => self.callers[place] = Caller::Over(false),
                }
            }
            Caller::Runs(_) | Caller::Over(_) => {}
        }
    }
}

fn plant(ask: &mut Ask, planted: Planted) {
    match (planted, &mut *ask) {
        (Planted::CoversTheFuture, Ask::Write { state, .. }) => {
            let key = state.key_mut();
            let token = Token(key.covered_by().0 + 100);
            let _ = key.start(&merge(ROOM), token, None);
            let _ = key.succeed(token);
        }
        (Planted::ForgetsWhoWaits, Ask::Write { replaces, .. }) => {
            let replaces = replaces.unwrap_or_default();
            *ask = Ask::Delete { replaces };
        }
        _ => {}
    }
}

fn merge(room: usize) -> Merge<Bytes> {
    Merge::Append { max: room }
}

fn op(caller: u8, call: u64) -> Op {
    Op {
        writer: caller.into(),
        call,
    }
}

impl Model for Shared {
    type State = World;
    type Canonical = World;
    type Step = Step;

    fn start(&self) -> World {
        let enter = |caller| {
            let payload = Bytes::copy_from_slice(&[caller]);
            Caller::Enters(Enter::new(op(caller, 0), payload), Ask::Lease)
        };
        World {
            room: self.room,
            state: None,
            deleted: 0,
            run: None,
            epoch: 0,
            callers: (0..self.callers).map(enter).collect(),
            late: Vec::new(),
            evils: self.evils,
            highest: 0,
            tokens: vec![None; self.callers.into()],
            runs: Vec::new(),
            covered: 0,
            problem: None,
        }
    }

    fn steps(&self, world: &World) -> Vec<(Step, World)> {
        let mut steps = Vec::new();
        for (caller, place) in (0..).zip(&world.callers) {
            let ask = match place {
                Caller::Over(_) => continue,
                Caller::Runs(token) => {
                    for succeeds in [true, false] {
                        let mut next = world.clone();
                        if !succeeds {
                            if next.evils.failures == 0 {
                                continue;
                            }
                            next.evils.failures -= 1;
                        }
                        let end = End::new(op(caller, 1), *token, succeeds);
                        let lasts = world.run == Some((token.0, caller));
                        next.callers[usize::from(caller)] =
                            Caller::Ends(end, Ask::ReadRun, succeeds, lasts);
                        let step = match succeeds {
                            true => Step::Succeeds(caller),
                            false => Step::Fails(caller),
                        };
                        steps.push((step, next));
                    }
                    None
                }
                Caller::Enters(_, ask) | Caller::Ends(_, ask, ..) => Some(ask),
            };
            if let Some(ask) = ask {
                let mut next = world.clone();
                if let Some(answer) = next.answer(caller, ask, self.planted) {
                    next.hears(caller, answer, self.planted);
                    steps.push((Step::Asks(caller, name(ask)), next));
                }
                // A read whose answer is lost is asked again.
                if !ask.is_read() && world.evils.lost > 0 {
                    let mut next = world.clone();
                    next.evils.lost -= 1;
                    next.late.push((caller, ask.clone()));
                    next.hears(caller, Answer::Lost, self.planted);
                    steps.push((Step::LosesAnswer(caller, name(ask)), next));
                }
            }
            if world.evils.crashes > 0 {
                let mut next = world.clone();
                next.evils.crashes -= 1;
                next.callers[usize::from(caller)] = Caller::Over(false);
                steps.push((Step::Dies(caller), next));
            }
        }
        for (place, (caller, ask)) in world.late.iter().enumerate() {
            let mut next = world.clone();
            next.late.remove(place);
            next.answer(*caller, ask, self.planted);
            steps.push((Step::ComesLate(*caller, name(ask)), next));
        }
        if let Some(run) = world.run {
            let mut next = world.clone();
            next.run = None;
            let is_alive = world.is_alive(run);
            if is_alive && next.evils.frozen > 0 {
                next.evils.frozen -= 1;
                steps.push((Step::LeaseEnds(run.0), next));
            } else if !is_alive {
                steps.push((Step::LeaseEnds(run.0), next));
            }
        }
        steps
    }

    /// Of what happened, only what can still matter.
    fn canonical(&self, world: &World) -> World {
        let mut world = world.clone();
        if self.is_end(&world) {
            world.late.clear();
        }
        world.late.sort_by_key(|(caller, ask)| (*caller, name(ask)));
        let running = world
            .state
            .as_ref()
            .and_then(|seen| seen.state.key().running());
        world.runs.retain(|(token, _)| Some(*token) == running);
        world
    }

    fn problem(&self, world: &World) -> Option<String> {
        world.problem.map(str::to_owned)
    }

    fn is_end(&self, world: &World) -> bool {
        world
            .callers
            .iter()
            .all(|caller| matches!(caller, Caller::Over(_)))
    }
}

fn search(
    callers: u8,
    room: usize,
    evils: Evils,
    planted: Planted,
) -> Result<Explored, Box<Problem>> {
    let model = Shared {
        callers,
        room,
        evils,
        planted,
    };
    explore(&model, 2_000_000)
}

const NO_EVIL: Evils = Evils {
    crashes: 0,
    lost: 0,
    frozen: 0,
    failures: 0,
};

/// Each mistake breaks a rule that the search looks at.
#[test]
fn planted_mistakes_are_found() {
    let failures = Evils {
        failures: 1,
        ..NO_EVIL
    };
    let frozen = Evils {
        frozen: 1,
        ..NO_EVIL
    };
    let covered = "a trigger is said to be covered, and no later run covers it";
    for (planted, evils, what) in [
        (
            Planted::EndsWhoeverRuns,
            frozen,
            "a run is ended by another caller",
        ),
        (Planted::CoversTheFuture, NO_EVIL, covered),
        (Planted::AcksTheDeclined, NO_EVIL, covered),
        (Planted::ForgetsWhoWaits, NO_EVIL, covered),
        (
            Planted::HearsOfNoEnd,
            failures,
            "somebody waits, and nothing will happen",
        ),
        (Planted::StartsWithoutALook, frozen, "a token does not rise"),
        (
            Planted::EndsWithoutALook,
            frozen,
            "a run ends whose lease had ended before",
        ),
    ] {
        match search(3, ROOM, evils, planted) {
            Err(problem) => assert_eq!(problem.what, what, "{planted:?}: {problem}"),
            Ok(explored) => panic!("{planted:?} is not found: {explored:?}"),
        }
    }
}

/// With `LOCKGATE_EXPLORE_LONG`, larger worlds too, which take minutes.
#[test]
fn every_rule_holds_in_every_state() {
    let long = [
        (
            3,
            Evils {
                frozen: 1,
                ..NO_EVIL
            },
        ),
        (3, Evils { lost: 1, ..NO_EVIL }),
        (
            2,
            Evils {
                crashes: 1,
                lost: 2,
                frozen: 1,
                failures: 1,
            },
        ),
    ];
    let long = long
        .into_iter()
        .filter(|_| std::env::var_os("LOCKGATE_EXPLORE_LONG").is_some());
    let short = [
        (3, NO_EVIL),
        (
            3,
            Evils {
                failures: 1,
                ..NO_EVIL
            },
        ),
        (
            3,
            Evils {
                crashes: 1,
                ..NO_EVIL
            },
        ),
        (
            2,
            Evils {
                frozen: 2,
                ..NO_EVIL
            },
        ),
        (2, Evils { lost: 1, ..NO_EVIL }),
        (2, Evils { lost: 2, ..NO_EVIL }),
        (
            2,
            Evils {
                lost: 1,
                frozen: 1,
                ..NO_EVIL
            },
        ),
        (
            2,
            Evils {
                crashes: 1,
                lost: 1,
                frozen: 1,
                ..NO_EVIL
            },
        ),
    ];
    let all = short.into_iter().chain(long);
    // Callers who find no room run with a payload that nobody else has.
    let crowded = [
        Evils {
            failures: 1,
            ..NO_EVIL
        },
        Evils {
            frozen: 1,
            ..NO_EVIL
        },
    ];
    let all = all.map(|(callers, evils)| (callers, ROOM, evils));
    for (callers, room, evils) in all.chain(crowded.map(|evils| (3, 1, evils))) {
        let began = std::time::Instant::now();
        match search(callers, room, evils, Planted::Nothing) {
            Ok(explored) => {
                println!(
                    "{callers} {room} {evils:?}: {explored:?} {:?}",
                    began.elapsed()
                );
            }
            Err(problem) => panic!("{callers} {room} {evils:?}: {problem}"),
        }
    }
}
