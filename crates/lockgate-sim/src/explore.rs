//! An exhaustive search of what a protocol can do.
//!
//! [`explore`] visits every state that steps can lead to, breadth first, and each only once: states with the same
//! [canonical form](Model::canonical) go on in the same way. It finds the shortest way to a state that breaks a rule,
//! one from which nothing goes on, or one from which no end can be reached any more.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    fmt::{self, Debug},
    hash::Hash,
};

/// A protocol: its states, and what can happen in each.
pub trait Model {
    /// A state.
    type State: Clone;
    /// What tells states apart: without names and numbers of which only the order or the equality matters.
    type Canonical: Hash + Eq;
    /// Something that can happen.
    type Step: Debug;

    /// The state in which it begins.
    fn start(&self) -> Self::State;

    /// Everything that can happen, and what it leads to.
    fn steps(&self, state: &Self::State) -> Vec<(Self::Step, Self::State)>;

    /// The canonical form of a state.
    fn canonical(&self, state: &Self::State) -> Self::Canonical;

    /// Which rule the state breaks.
    fn problem(&self, state: &Self::State) -> Option<String>;

    /// Whether everybody is done.
    fn is_end(&self, state: &Self::State) -> bool;
}

/// How much was explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explored {
    /// States.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// States in which everybody is done.
    pub ends: usize,
}

/// A state that must not be, and the shortest way to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// The steps that lead to it.
    pub path: Vec<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, after", self.what)?;
        self.path
            .iter()
            .try_for_each(|step| writeln!(f, "  {step}"))
    }
}

/// Visits every state.
///
/// # Errors
/// The problem that is found with the fewest steps.
///
/// # Panics
/// If there are more than `states_max` states: the model is larger than its author thought.
pub fn explore<M: Model>(model: &M, states_max: usize) -> Result<Explored, Box<Problem>> {
    let mut search = Search::<M> {
        places: HashMap::new(),
        // Where each state was come from, and by which step.
        from: Vec::new(),
        before: Vec::new(),
    };
    let mut explored = Explored {
        states: 0,
        steps: 0,
        ends: 0,
    };
    let mut ends = Vec::new();
    let start = model.start();
    search.place(model.canonical(&start), None);
    let mut open = VecDeque::from([(0, start)]);
    while let Some((place, state)) = open.pop_front() {
        if let Some(what) = model.problem(&state) {
            return Err(search.problem(what, place));
        }
        let steps = model.steps(&state);
        if model.is_end(&state) {
            ends.push(place);
        } else if steps.is_empty() {
            let what = "somebody waits, and nothing will happen".to_owned();
            return Err(search.problem(what, place));
        }
        for (step, next) in steps {
            explored.steps += 1;
            let (at, is_new) = search.place(model.canonical(&next), Some((place, step)));
            search.before[at].push(place);
            if is_new {
                assert!(at < states_max, "more than {states_max} states");
                open.push_back((at, next));
            }
        }
    }
    explored.states = search.from.len();
    explored.ends = ends.len();
    // Backwards from the ends: what is not met can go on for ever and never end.
    let mut ends_from = vec![false; explored.states];
    while let Some(place) = ends.pop() {
        if !std::mem::replace(&mut ends_from[place], true) {
            ends.extend(&search.before[place]);
        }
    }
    match ends_from.iter().position(|ends| !ends) {
        Some(place) => Err(search.problem("no end can be reached".to_owned(), place)),
        None => Ok(explored),
    }
}

struct Search<M: Model> {
    places: HashMap<M::Canonical, usize>,
    from: Vec<Option<(usize, M::Step)>>,
    before: Vec<Vec<usize>>,
}

impl<M: Model> Search<M> {
    /// The place of a state, and whether it is new.
    fn place(&mut self, form: M::Canonical, from: Option<(usize, M::Step)>) -> (usize, bool) {
        let next = self.from.len();
        match self.places.entry(form) {
            Entry::Occupied(place) => (*place.get(), false),
            Entry::Vacant(place) => {
                place.insert(next);
                self.from.push(from);
                self.before.push(Vec::new());
                (next, true)
            }
        }
    }

    fn problem(&self, what: String, mut place: usize) -> Box<Problem> {
        let mut path = Vec::new();
        while let Some((before, step)) = &self.from[place] {
            path.push(format!("{step:?}"));
            place = *before;
        }
        path.reverse();
        Box::new(Problem { what, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up to 9 by one or two. It may be stuck in a number, and hop between two for ever.
    struct Counts {
        stuck: Option<u8>,
        hops: Option<u8>,
        bad: Option<u8>,
    }

    impl Model for Counts {
        type State = u8;
        type Canonical = u8;
        type Step = u8;

        fn start(&self) -> u8 {
            0
        }

        fn steps(&self, state: &u8) -> Vec<(u8, u8)> {
            if self.stuck == Some(*state) || *state == 9 {
                return Vec::new();
            }
            if self.hops == Some(*state) || *state >= 100 {
                return vec![(0, *state ^ 100)];
            }
            [1, 2].map(|by| (by, (state + by).min(9))).into()
        }

        fn canonical(&self, state: &u8) -> u8 {
            *state
        }

        fn problem(&self, state: &u8) -> Option<String> {
            (self.bad == Some(*state)).then(|| "bad".to_owned())
        }

        fn is_end(&self, state: &u8) -> bool {
            *state == 9
        }
    }

    #[test]
    fn the_shortest_way_to_each_kind_of_problem_is_found() {
        let found = |stuck, hops, bad| {
            let found = explore(&Counts { stuck, hops, bad }, 100);
            found
                .map(|all| (all.states, all.ends))
                .map_err(|it| (it.what, it.path.len()))
        };
        assert_eq!(found(None, None, None), Ok((10, 1)));
        assert_eq!(found(None, None, Some(5)), Err(("bad".to_owned(), 3)));
        let (what, steps) = found(Some(4), None, None).unwrap_err();
        assert_eq!(
            (what.as_str(), steps),
            ("somebody waits, and nothing will happen", 2)
        );
        let (what, _) = found(None, Some(8), None).unwrap_err();
        assert_eq!(what, "no end can be reached");
    }
}
