//! Replays requests through consumers that share a coalescer. Pure: time comes in with the requests.
//!
//! The coalescer has at most one run and one waiting request of each key. A request of a key that is idle runs. One
//! of a key that runs waits, and takes no consumer meanwhile. One of a key that runs and waits is *covered*: the
//! waiting one, whose run is still to begin, does its work too. When a run ends, the waiting request of its key
//! runs next, on the same consumer.
//!
//! Consumers take requests in their order, and none before its time. While all of them are busy, no request is
//! taken. Where several runs end at one instant, a consumer takes its next request before the next run ends, as
//! consumers that are not in step with each other do.

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroU64,
};

/// An instant or a time. So wide that no sum of many works overflows.
pub(super) type Ticks = u128;

/// Consumers, and what they are doing.
#[derive(Debug)]
pub(super) struct Replay {
    consumers: usize,
    /// How long each run takes.
    work: Ticks,
    now: Ticks,
    /// When each run ends, and its key. Equal work makes them end in the order in which they begin.
    running: VecDeque<(Ticks, u32)>,
    /// The keys that run, and whether a request of them waits.
    waiting: HashMap<u32, bool>,
    covered: u64,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Runs,
    Waits,
    Covered,
}

impl Replay {
    pub(super) fn new(consumers: NonZeroU64, work: Ticks) -> Self {
        Self {
            // More than there can be in memory are as many as there are requests.
            consumers: usize::try_from(consumers.get()).unwrap_or(usize::MAX),
            work,
            now: 0,
            running: VecDeque::new(),
            waiting: HashMap::new(),
            covered: 0,
        }
    }

    /// The next request, which came at that time.
    pub(super) fn request(&mut self, key: u32, at: Ticks) -> Verdict {
        self.now = self.now.max(at);
        // Not what ends at `now` itself, if that is later: see above.
        while self.running.front().is_some_and(|(end, _)| *end <= at) {
            self.end_run();
        }
        while self.running.len() >= self.consumers {
            self.end_run();
        }
        match self.waiting.get_mut(&key) {
            None => {
                self.waiting.insert(key, false);
                self.running.push_back((self.now + self.work, key));
                Verdict::Runs
            }
            Some(waits @ false) => {
                *waits = true;
                Verdict::Waits
            }
            Some(true) => {
                self.covered += 1;
                Verdict::Covered
            }
        }
    }

    /// Requests that cost no work so far.
    pub(super) fn covered(&self) -> u64 {
        self.covered
    }

    /// Ends the run that began first.
    fn end_run(&mut self) {
        let Some((end, key)) = self.running.pop_front() else {
            return;
        };
        self.now = self.now.max(end);
        match self.waiting.get_mut(&key) {
            Some(waits @ true) => {
                *waits = false;
                self.running.push_back((end + self.work, key));
            }
            _ => _ = self.waiting.remove(&key),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WORK: Ticks = 10;

    /// The verdicts on letters, each a key: `r` runs, `w` waits, `c` is covered. Digits are tens of ticks that pass
    /// before the next letter.
    fn verdicts(consumers: u64, letters: &str) -> String {
        let mut replay = Replay::new(NonZeroU64::new(consumers).unwrap(), WORK);
        let mut at = 0;
        let mut told = String::new();
        for letter in letters.chars() {
            if let Some(tens) = letter.to_digit(10) {
                at += Ticks::from(tens) * 10;
                continue;
            }
            told.push(match replay.request(letter.into(), at) {
                Verdict::Runs => 'r',
                Verdict::Waits => 'w',
                Verdict::Covered => 'c',
            });
        }
        told
    }

    #[test]
    fn one_runs_one_waits_and_the_rest_is_covered() {
        for (consumers, letters, told) in [
            // A lone consumer ends each run before it takes the next request.
            (1, "aaa", "rrr"),
            (2, "aaaa", "rwcc"),
            (3, "aabaab", "rwrccw"),
            // What waits keeps no consumer: the second one goes on.
            (2, "aab", "rwr"),
            // All are busy, so the oldest run ends before the third request is taken.
            (2, "aba", "rrr"),
            (3, "aba", "rrw"),
            (2, "abca", "rrrr"),
            // The waiting request runs on when the run ends, so the key is not idle yet.
            (2, "aabc", "rwrr"),
            (3, "aa1a", "rww"),
            (3, "aa1aa", "rwwc"),
            (3, "aa2a", "rwr"),
            (3, "a1a", "rr"),
        ] {
            assert_eq!(verdicts(consumers, letters), told, "{consumers} {letters}");
        }
    }

    /// A run, or a request that waits to become one.
    #[derive(Clone, Debug)]
    struct Run {
        key: u32,
        /// When it begins, and how many began before it; `None` while it waits.
        begins: Option<(Ticks, usize)>,
        ended: bool,
    }

    /// The same without any order of ends: it looks at every run there was, each time. Returns all runs, and of each
    /// request when it was taken and the run that does its work.
    fn naive(
        consumers: usize,
        requests: &[(u32, Ticks)],
    ) -> (Vec<Run>, Vec<(Ticks, usize, Verdict)>) {
        let mut runs: Vec<Run> = Vec::new();
        let mut taken = Vec::new();
        let mut now = 0;
        let mut begun = 0..;
        for &(key, at) in requests {
            now = now.max(at);
            loop {
                let busy = (0..runs.len()).filter(|&run| !runs[run].ended);
                let busy: Vec<_> = busy.filter(|&run| runs[run].begins.is_some()).collect();
                // Of those that end at one instant, the one that began first.
                let Some(&first) = busy.iter().min_by_key(|run| runs[**run].begins) else {
                    break;
                };
                let end = runs[first].begins.unwrap().0 + WORK;
                if end > at && busy.len() < consumers {
                    break;
                }
                now = now.max(end);
                runs[first].ended = true;
                let key = runs[first].key;
                let waiting = runs
                    .iter_mut()
                    .find(|run| run.key == key && run.begins.is_none());
                if let Some(run) = waiting {
                    run.begins = begun.next().map(|before| (end, before));
                }
            }
            let open = (0..runs.len()).filter(|&run| runs[run].key == key && !runs[run].ended);
            let open: Vec<usize> = open.collect();
            let (verdict, begins) = match open[..] {
                [] => (Verdict::Runs, begun.next().map(|before| (now, before))),
                [_] => (Verdict::Waits, None),
                _ => {
                    taken.push((now, open[1], Verdict::Covered));
                    continue;
                }
            };
            taken.push((now, runs.len(), verdict));
            runs.push(Run {
                key,
                begins,
                ended: false,
            });
        }
        (runs, taken)
    }

    proptest! {
        #[test]
        fn it_agrees_with_looking_at_every_run(
            consumers in 1_usize..6,
            drawn in prop::collection::vec((0_u32..6, 0_u8..12), 0..150),
        ) {
            let mut at = 0;
            // Often at the same instant, sometimes after all have ended.
            let requests: Vec<(u32, Ticks)> = drawn.iter().map(|&(key, pause)| {
                at += Ticks::from(pause.saturating_sub(6)) * 4;
                (key, at)
            }).collect();
            let mut replay = Replay::new(NonZeroU64::new(consumers as u64).unwrap(), WORK);
            let verdicts: Vec<_> = requests.iter().map(|&(key, at)| replay.request(key, at)).collect();

            let (runs, taken) = naive(consumers, &requests);
            let expected: Vec<_> = taken.iter().map(|(_, _, verdict)| *verdict).collect();
            prop_assert_eq!(verdicts, expected);
            prop_assert_eq!(replay.covered(), (requests.len() - runs.len()) as u64);

            // What a coalescer promises: the run of each request begins after it was taken, and the runs of a key
            // do not overlap.
            for (&(now, run, _), (key, _)) in taken.iter().zip(&requests) {
                prop_assert_eq!(runs[run].key, *key);
                prop_assert!(runs[run].begins.is_none_or(|begins| begins.0 >= now));
            }
            for (index, run) in runs.iter().enumerate() {
                let later = runs[index + 1..].iter().find(|later| later.key == run.key);
                let later = later.and_then(|later| later.begins);
                prop_assert!(later.is_none_or(|later| later.0 >= run.begins.unwrap().0 + WORK));
            }
        }
    }
}
