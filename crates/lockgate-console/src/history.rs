//! Figures of the last two days, in bounded memory.
//!
//! A series keeps one point a second for ten minutes, one of ten seconds for three hours, and one of a minute for two
//! days: 4560 points of 24 bytes, which are 109,440 bytes. There is a series of all queues together, one of the server,
//! and one for each of the [`SERIES_MAX`] busiest queues: 5.7 MB. The last counts of each queue that is looked at, by
//! which the busiest ones are found, take 48 bytes: 0.5 MB for 10,000 queues.

use std::collections::{HashMap, VecDeque};

/// Queues that have a series.
pub(crate) const SERIES_MAX: usize = 50;

/// Seconds after which the busiest queues are chosen anew, if all series are taken.
const RANKED_EVERY: u64 = 60;

/// What is left of a queue's activity a second later: half of it after about ten minutes.
const DECAY: f32 = 0.999;

/// Steps of points in seconds, and how many points there are.
const RINGS: [(u64, usize); 3] = [(1, 600), (10, 1080), (60, 2880)];

/// Rates a second (sent, delivered, settled), then figures of which the highest counts (messages, in flight, age of the
/// oldest one in seconds). Of the server: the time of a sync in milliseconds, and, among the figures, the bytes on its
/// disk. NaN: nobody looked.
pub type Point = [f32; 6];

const NOTHING: Point = [f32::NAN; 6];
const RATES: usize = 3;

/// How far a plot goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Span {
    /// Ten minutes.
    #[default]
    Minutes,
    /// Three hours.
    Hours,
    /// Two days.
    Days,
}

impl Span {
    /// The points that the whole span has.
    #[must_use]
    pub fn len_max(self) -> usize {
        RINGS[self as usize].1
    }
}

/// What is counted of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted<'q> {
    /// Its number, which no other queue gets.
    pub id: u64,
    /// Its name.
    pub name: &'q str,
    /// Totals: messages sent, leases given, and messages acknowledged.
    pub totals: [u64; RATES],
    /// Messages, those in flight, and the age of the oldest one in milliseconds.
    pub now: [u64; 3],
}

/// Figures of the last two days.
#[derive(Debug)]
pub struct History {
    last: Option<u64>,
    counts: HashMap<u64, Counts>,
    all: Series,
    server: Series,
    queues: HashMap<u64, (String, Series)>,
}

#[derive(Debug, Default)]
struct Counts {
    totals: [u64; RATES],
    activity: f32,
}

impl Default for History {
    fn default() -> Self {
        Self {
            last: None,
            counts: HashMap::new(),
            all: Series::new(),
            server: Series::new(),
            queues: HashMap::new(),
        }
    }
}

impl History {
    /// Takes what is counted in that second; a second that is not after the last one changes nothing. `server` is a
    /// [`Point`] of the server.
    pub fn record(&mut self, second: u64, queues: &[Counted<'_>], server: Point) {
        let passed = match self.last {
            Some(last) if second <= last => return,
            Some(last) => second - last,
            None => 0,
        };
        self.last = Some(second);
        let mut all = [0.0_f32; 6];
        let mut counts = HashMap::with_capacity(queues.len());
        for queue in queues {
            let (point, now) = self.point(queue, passed);
            for (at, (sum, value)) in all.iter_mut().zip(point).enumerate() {
                // The oldest message of all is that of one queue.
                *sum = if at == 5 {
                    sum.max(value)
                } else {
                    *sum + value
                };
            }
            let is_active = now.activity > 0.0;
            counts.insert(queue.id, now);
            if is_active && self.queues.len() < SERIES_MAX {
                let new = || (queue.name.to_owned(), Series::new());
                self.queues.entry(queue.id).or_insert_with(new);
            }
            if let Some((_, series)) = self.queues.get_mut(&queue.id) {
                series.add(second, point);
            }
        }
        self.queues.retain(|id, _| counts.contains_key(id));
        self.counts = counts;
        // The first time there is nothing to compare with.
        if passed > 0 {
            self.all.add(second, all);
            self.server.add(second, server);
        }
        if second.is_multiple_of(RANKED_EVERY) && self.queues.len() == SERIES_MAX {
            self.rank(queues);
        }
    }

    /// The point of a queue, and its counts for the next one.
    fn point(&self, queue: &Counted<'_>, passed: u64) -> (Point, Counts) {
        let before = self.counts.get(&queue.id);
        let mut point = NOTHING;
        let mut messages = 0.0;
        for (at, total) in queue.totals.into_iter().enumerate() {
            // A queue that is new was empty before.
            let then = match (before, passed) {
                (Some(before), _) => before.totals[at],
                (None, 0) => total,
                (None, _) => 0,
            };
            let more = float(total.saturating_sub(then));
            messages += more;
            point[at] = more / float(passed.max(1));
        }
        let [held, in_flight, age] = queue.now;
        point[RATES..].copy_from_slice(&[float(held), float(in_flight), float(age) / 1000.0]);
        let exponent = i32::try_from(passed).unwrap_or(i32::MAX);
        let activity = before.map_or(0.0, |before| before.activity * DECAY.powi(exponent));
        let counts = Counts {
            totals: queue.totals,
            activity: activity + messages,
        };
        (point, counts)
    }

    /// Ends the series of queues that are not among the busiest ones, and begins those of the queues that are.
    fn rank(&mut self, queues: &[Counted<'_>]) {
        let activity =
            |queue: &Counted<'_>| self.counts.get(&queue.id).map_or(0.0, |it| it.activity);
        let mut busiest: Vec<&Counted<'_>> = queues.iter().collect();
        busiest.sort_by(|one, other| activity(other).total_cmp(&activity(one)));
        busiest.truncate(SERIES_MAX);
        let busiest: HashMap<u64, &str> = busiest.iter().map(|it| (it.id, it.name)).collect();
        self.queues.retain(|id, _| busiest.contains_key(id));
        for (id, name) in busiest {
            let new = || (name.to_owned(), Series::new());
            self.queues.entry(id).or_insert_with(new);
        }
    }

    /// The points of all queues together, and of the server, the latest last. They may begin later than the span.
    #[must_use]
    pub fn all(&self, span: Span) -> (Vec<Point>, Vec<Point>) {
        (self.all.points(span), self.server.points(span))
    }

    /// The points of a queue. `None`: it is not among the busiest ones.
    #[must_use]
    pub fn queue(&self, name: &str, span: Span) -> Option<Vec<Point>> {
        let mut all = self.queues.values();
        let (_, series) = all.find(|(of, _)| of == name)?;
        Some(series.points(span))
    }
}

#[derive(Debug)]
struct Series([Ring; 3]);

impl Series {
    fn new() -> Self {
        Self(RINGS.map(|(step, len_max)| Ring::new(step, len_max)))
    }

    fn add(&mut self, second: u64, point: Point) {
        for ring in &mut self.0 {
            ring.add(second, point);
        }
    }

    fn points(&self, span: Span) -> Vec<Point> {
        self.0[span as usize].points.iter().copied().collect()
    }
}

/// Points of one step. The latest one is not complete yet, and not among them.
#[derive(Debug)]
struct Ring {
    step: u64,
    len_max: usize,
    points: VecDeque<Point>,
    /// The number of the latest point, its sum, and how many were added to it.
    number: u64,
    sum: Point,
    count: u32,
}

impl Ring {
    fn new(step: u64, len_max: usize) -> Self {
        Self {
            step,
            len_max,
            points: VecDeque::with_capacity(len_max),
            number: 0,
            sum: [0.0; 6],
            count: 0,
        }
    }

    fn add(&mut self, second: u64, point: Point) {
        let number = second / self.step;
        if self.count > 0 && number > self.number {
            let mut complete = self.sum;
            for rate in &mut complete[..RATES] {
                *rate /= float(u64::from(self.count));
            }
            self.push(complete);
            let missed = number - self.number - 1;
            for _ in 0..missed.min(self.len_max as u64) {
                self.push(NOTHING);
            }
            (self.sum, self.count) = ([0.0; 6], 0);
        }
        self.number = number;
        self.count += 1;
        for (at, (sum, value)) in self.sum.iter_mut().zip(point).enumerate() {
            *sum = if at < RATES {
                *sum + value
            } else {
                sum.max(value)
            };
        }
    }

    fn push(&mut self, point: Point) {
        if self.points.len() == self.len_max {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }
}

/// For a plot.
#[expect(clippy::cast_precision_loss)]
fn float(number: u64) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(id: u64, sent: u64) -> Counted<'static> {
        const NAMES: [&str; 4] = ["a", "b", "c", "d"];
        Counted {
            id,
            name: NAMES[usize::try_from(id % 4).unwrap()],
            totals: [sent, 0, 0],
            now: [sent, 0, 1500],
        }
    }

    #[test]
    fn points_are_rates_and_highest_figures_and_missed_ones_are_gaps() {
        let mut history = History::default();
        for (second, sent) in [
            (100, 1000),
            (101, 1010),
            (101, 5000),
            (103, 1030),
            (104, 1030),
        ] {
            history.record(second, &[counted(0, sent)], [2.0; 6]);
        }
        let (points, server) = history.all(Span::Minutes);
        let first = |point: &Point| (point[0], point[3], point[5]);
        assert_eq!(first(&points[0]), (10.0, 1010.0, 1.5));
        assert!(points[1].iter().all(|value| value.is_nan()));
        assert_eq!(first(&points[2]), (10.0, 1030.0, 1.5));
        assert_eq!((points.len(), server[0]), (3, [2.0; 6]));
        assert!(history.all(Span::Hours).0.is_empty());
        history.record(110, &[counted(0, 1090)], [2.0; 6]);
        let coarse = history.all(Span::Hours).0;
        assert_eq!(coarse.len(), 1);
        assert!((coarse[0][0] - 20.0 / 3.0).abs() < 0.01, "{coarse:?}");
    }

    #[test]
    fn memory_is_bounded_however_long_it_runs_and_however_long_a_gap_is() {
        let mut history = History::default();
        for second in (0..5_000).chain([1_000_000, 1_000_001, u64::MAX / 2, u64::MAX]) {
            history.record(second, &[counted(0, second)], [0.0; 6]);
        }
        for span in [Span::Minutes, Span::Hours, Span::Days] {
            assert_eq!(history.all(span).0.len(), span.len_max());
        }
        let bytes: usize = RINGS.iter().map(|(_, len)| len * size_of::<Point>()).sum();
        let kept = &history.all.0;
        let allocated = kept
            .iter()
            .map(|ring| ring.points.capacity() * size_of::<Point>());
        assert_eq!((bytes, allocated.sum::<usize>()), (109_440, 109_440));
        // With the place of a hash table, one of eight of which is empty.
        assert!(size_of::<(u64, Counts)>() <= 40);
    }

    #[test]
    fn the_busiest_queues_have_a_series_and_deleted_ones_have_none() {
        let mut history = History::default();
        let few: Vec<u64> = (0..SERIES_MAX as u64).collect();
        let at = |second: u64, ids: &[u64], late: u64| -> Vec<Counted<'static>> {
            let sent = |id: u64| if id < 50 { second } else { late };
            ids.iter().map(|&id| counted(id, sent(id))).collect()
        };
        for second in 1..10 {
            history.record(second, &at(second, &few, 0), [0.0; 6]);
        }
        assert_eq!(history.queues.len(), SERIES_MAX);
        let more: Vec<u64> = (0..60).collect();
        history.record(10, &at(10, &more, 1_000), [0.0; 6]);
        assert!(!history.queues.contains_key(&55));
        history.record(60, &at(60, &more, 2_000), [0.0; 6]);
        assert_eq!(history.queues.len(), SERIES_MAX);
        assert!((50..60).all(|id| history.queues.contains_key(&id)));
        history.record(61, &at(61, &[55], 3_000), [0.0; 6]);
        assert_eq!(history.queues.len(), 1);
        history.record(62, &at(62, &[55], 3_000), [0.0; 6]);
        assert!(
            history
                .queue("d", Span::Minutes)
                .is_some_and(|it| !it.is_empty())
        );
        assert!(history.queue("a", Span::Minutes).is_none());
    }

    #[test]
    fn quiet_queues_have_no_series() {
        let mut history = History::default();
        for second in 1..5 {
            history.record(second, &[counted(0, 7), counted(1, 7 * second)], [0.0; 6]);
        }
        assert_eq!(history.queues.len(), 1);
        assert!(history.queue("b", Span::Minutes).is_some());
    }
}
