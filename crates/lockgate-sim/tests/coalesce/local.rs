//! The coalescer of one process: the library's own code. A state is the calls that led to it, made again; states in
//! which the same callers wait, run and are over, in the same order, are one.

use std::task::{Context, Poll, Waker};

use lockgate_consumer::coalesce::{
    CoalesceOptions, Coalescer, Entered, Merge, Run, Token, Triggered, Verdict,
};
use lockgate_sim::explore::{Explored, Model, Problem, explore};

type Payload = u32;
type Entering = Box<dyn Future<Output = Entered<u8, Payload, u32>>>;

/// A mistake that a user of the coalescer could make, or the published design makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A covered trigger is acknowledged before a run has covered it.
    AcksTheDeclined,
    /// A caller whose run was expired takes it for a success.
    TrustsAZombie,
    /// A run that is over is kept, and nobody is told.
    KeepsItsGuard,
}

struct Local {
    callers: usize,
    planted: Planted,
}

/// Who does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Triggers(usize),
    Looks(usize),
    GivesUp(usize),
    Succeeds(usize),
    Fails(usize),
    IsExpired(usize),
}

enum Caller {
    New,
    Waits(std::pin::Pin<Entering>),
    Runs(Run<u8, Payload, u32>),
    /// Whether it was told that its trigger is covered.
    Over(bool),
}

/// What the calls have led to.
struct World {
    coalescer: Coalescer<u8, Payload, u32>,
    callers: Vec<Caller>,
    kept: Vec<Run<u8, Payload, u32>>,
    /// Callers in the order in which they came.
    order: Vec<usize>,
    expired: Vec<usize>,
    /// Triggers that a run which started after them has covered.
    covered: u32,
    highest: Token,
    problem: Option<&'static str>,
}

/// What tells states apart: of each caller what it does, what its run has, and its turn.
type Form = (
    Vec<(u8, u32, Option<usize>)>,
    u32,
    bool,
    Option<&'static str>,
);

impl World {
    fn new(callers: usize) -> Self {
        let options = CoalesceOptions {
            merge: Merge::with(|a, b| a | b),
            ..CoalesceOptions::default()
        };
        Self {
            coalescer: Coalescer::new(options).unwrap(),
            callers: std::iter::repeat_with(|| Caller::New)
                .take(callers)
                .collect(),
            kept: Vec::new(),
            order: Vec::new(),
            expired: Vec::new(),
            covered: 0,
            highest: Token(0),
            problem: None,
        }
    }

    fn runs(&mut self, caller: usize, run: Run<u8, Payload, u32>) {
        let others = self.callers.iter().filter(|other| match other {
            Caller::Runs(other) => other.is_current(),
            _ => false,
        });
        if others.count() > 0 && run.is_current() {
            self.problem = Some("two run");
        }
        if run.is_current() && run.token() <= self.highest {
            self.problem = Some("a token does not rise");
        }
        self.highest = self.highest.max(run.token());
        if run
            .payload()
            .is_none_or(|payload| payload & (1 << caller) == 0)
        {
            self.problem = Some("a run does not have its caller's trigger");
        }
        self.callers[caller] = Caller::Runs(run);
    }

    fn is_covered(&mut self, caller: usize) {
        if self.covered & (1 << caller) == 0 {
            self.problem = Some("a trigger is said to be covered, and no later run covers it");
        }
        self.callers[caller] = Caller::Over(true);
    }

    fn take(&mut self, step: Step, planted: Planted) {
        match step {
            Step::Triggers(caller) => {
                self.order.push(caller);
                match self.coalescer.trigger(0, 1 << caller).unwrap() {
                    Triggered::Run(run) => self.runs(caller, run),
                    waits
                        if planted == Planted::AcksTheDeclined
                            && waits.verdict() == Verdict::Covered =>
                    {
                        self.is_covered(caller);
                    }
                    waits => {
                        let entered = async { waits.entered().await.unwrap() };
                        self.callers[caller] = Caller::Waits(Box::pin(entered));
                    }
                }
            }
            Step::Looks(caller) => {
                let Caller::Waits(waits) = &mut self.callers[caller] else {
                    return;
                };
                match waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Pending => {}
                    Poll::Ready(Entered::Run(run)) => self.runs(caller, run),
                    Poll::Ready(Entered::Covered(_)) => self.is_covered(caller),
                }
            }
            Step::GivesUp(caller) => self.callers[caller] = Caller::Over(false),
            Step::Succeeds(caller) | Step::Fails(caller) => {
                let before = std::mem::replace(&mut self.callers[caller], Caller::Over(false));
                let Caller::Runs(run) = before else {
                    return;
                };
                if planted == Planted::KeepsItsGuard {
                    return self.kept.push(run);
                }
                if let Step::Fails(_) = step {
                    return drop(run);
                }
                let has = run.payload().copied().unwrap_or_default();
                // It must be known before those who are covered look.
                let is_current = run.is_current();
                if is_current {
                    self.covered |= has;
                }
                let ended = run.succeed(0);
                if ended.is_ok() != is_current {
                    self.problem = Some("an end is taken from a run that is not the present one");
                }
                if ended.is_ok() || planted == Planted::TrustsAZombie {
                    self.is_covered(caller);
                }
            }
            Step::IsExpired(caller) => {
                if let Caller::Runs(run) = &self.callers[caller] {
                    self.expired.push(caller);
                    self.coalescer.expire(&0, run.token()).unwrap();
                }
            }
        }
    }

    fn form(&self) -> Form {
        let callers = self.callers.iter().enumerate().map(|(caller, it)| {
            let turn = self.order.iter().position(|of| *of == caller);
            match it {
                Caller::New => (0, 0, None),
                Caller::Waits(_) => (1, 0, turn),
                Caller::Runs(run) => {
                    let has = run.payload().copied().unwrap_or_default();
                    (2 + u8::from(run.is_current()), has, turn)
                }
                Caller::Over(told) => (4 + u8::from(*told), 0, None),
            }
        });
        let running = self.coalescer.running(&0).is_some();
        (callers.collect(), self.covered, running, self.problem)
    }
}

impl Local {
    fn world(&self, steps: &[Step]) -> World {
        let mut world = World::new(self.callers);
        for step in steps {
            world.take(*step, self.planted);
        }
        world
    }
}

impl Model for Local {
    type State = Vec<Step>;
    type Canonical = Form;
    type Step = Step;

    fn start(&self) -> Vec<Step> {
        Vec::new()
    }

    fn steps(&self, state: &Vec<Step>) -> Vec<(Step, Vec<Step>)> {
        let world = self.world(state);
        let mut steps = Vec::new();
        for (caller, it) in world.callers.iter().enumerate() {
            match it {
                Caller::New => steps.push(Step::Triggers(caller)),
                Caller::Waits(_) => steps.push(Step::GivesUp(caller)),
                Caller::Runs(run) => {
                    steps.extend([Step::Succeeds(caller), Step::Fails(caller)]);
                    if run.is_current() {
                        steps.push(Step::IsExpired(caller));
                    }
                }
                Caller::Over(_) => {}
            }
            // A look that finds nothing is no step: somebody must be woken to look again.
            let mut looked = self.world(state);
            looked.take(Step::Looks(caller), Planted::Nothing);
            if !matches!(looked.callers[caller], Caller::Waits(_)) && matches!(it, Caller::Waits(_))
            {
                steps.push(Step::Looks(caller));
            }
        }
        let next = |step| {
            let mut state = state.clone();
            state.push(step);
            (step, state)
        };
        // Giving up is no way out: who waits must get on without it.
        let goes_on = steps.iter().any(|step| !matches!(step, Step::GivesUp(_)));
        if !goes_on {
            steps.clear();
        }
        steps.into_iter().map(next).collect()
    }

    fn canonical(&self, state: &Vec<Step>) -> Form {
        self.world(state).form()
    }

    fn problem(&self, state: &Vec<Step>) -> Option<String> {
        let world = self.world(state);
        let all_over = world.callers.iter().all(|it| matches!(it, Caller::Over(_)));
        let is_left = world.coalescer.keys() > 0 || world.coalescer.held() != (0, 0);
        if all_over && is_left && world.kept.is_empty() {
            return Some("something is kept of an idle key".to_owned());
        }
        world.problem.map(str::to_owned)
    }

    fn is_end(&self, state: &Vec<Step>) -> bool {
        let world = self.world(state);
        world.callers.iter().all(|it| matches!(it, Caller::Over(_)))
    }
}

fn search(callers: usize, planted: Planted) -> Result<Explored, Box<Problem>> {
    explore(&Local { callers, planted }, 100_000)
}

#[test]
fn every_rule_holds_in_every_state() {
    match search(4, Planted::Nothing) {
        Ok(explored) => println!("{explored:?}"),
        Err(problem) => panic!("{problem}"),
    }
}

/// Each mistake breaks a rule that the search looks at.
#[test]
fn planted_mistakes_are_found() {
    let covered = "a trigger is said to be covered, and no later run covers it";
    for (planted, what) in [
        (Planted::AcksTheDeclined, covered),
        (Planted::TrustsAZombie, covered),
        (
            Planted::KeepsItsGuard,
            "somebody waits, and nothing will happen",
        ),
    ] {
        match search(3, planted) {
            Err(problem) => assert_eq!(problem.what, what, "{planted:?}: {problem}"),
            Ok(explored) => panic!("{planted:?} is not found: {explored:?}"),
        }
    }
}
