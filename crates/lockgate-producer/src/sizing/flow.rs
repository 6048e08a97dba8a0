//! Burst and outage as flows: each depth grows by what comes in less what goes out.

use super::{Model, report::Point};

/// How the depth of one stage goes, above what waits there in the long run.
#[derive(Clone, Debug)]
pub(super) struct Course {
    /// Where something changes; the depth goes straight from each to the next. The first is the begin.
    pub(super) moments: Vec<Moment>,
    /// By how many records a second it grows for ever.
    pub(super) grows: f64,
}

/// Where a stage is at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    pub(super) seconds: f64,
    pub(super) depth: f64,
    /// Records that came in a second until then.
    pub(super) rate: f64,
    /// Records that came, and those that the workers could take, whether they were there or not: for as long as the stage
    /// has had more to do than in the long run.
    pub(super) came: f64,
    pub(super) taken: f64,
}

/// The course of each stage, until all that drains is drained.
pub(super) fn courses(model: &Model) -> Vec<Course> {
    let begin = Course {
        moments: vec![Moment::default()],
        grows: 0.0,
    };
    let mut courses = vec![begin; model.stages.len()];
    let usual = rates(model, &courses, f64::INFINITY);
    let outage = model.standstill().map_or(0.0, |(_, seconds)| seconds);
    let burst = model.burst.map_or(0.0, |burst| burst.seconds);
    let mut now = 0.0;
    // After a change from outside flows only fall, so each stage empties at most once until the next one.
    for _ in 0..3 * (model.stages.len() + 1) {
        let rates = rates(model, &courses, now);
        let changes = [outage, burst].into_iter().filter(|at| *at > now);
        let empty = courses.iter().zip(&rates);
        let empty = empty.filter(|(course, (came, taken))| course.depth() > 0.0 && taken > came);
        let empty = empty.map(|(course, (came, taken))| now + course.depth() / (taken - came));
        let Some(next) = changes.chain(empty).min_by(f64::total_cmp) else {
            break;
        };
        for ((course, &rates), &usual) in courses.iter_mut().zip(&rates).zip(&usual) {
            course.advance(next, rates, usual);
        }
        now = next;
    }
    let rates = rates(model, &courses, now);
    for (course, (came, taken)) in courses.iter_mut().zip(rates) {
        course.grows = (came - taken).max(0.0);
    }
    courses
}

/// What comes to each stage in a second, and what it can take.
fn rates(model: &Model, courses: &[Course], now: f64) -> Vec<(f64, f64)> {
    let mut comes = model.arrivals_at(now);
    let standstill = model.standstill();
    let stages = model.stages.iter().zip(courses).enumerate();
    let rates = stages.map(|(at, (stage, course))| {
        let stands = standstill.is_some_and(|(still, seconds)| still == at && now < seconds);
        let takes = if stands { 0.0 } else { stage.capacity() };
        let came = comes;
        if course.depth() > 0.0 || came > takes {
            comes = takes;
        }
        (came, takes)
    });
    rates.collect()
}

impl Course {
    fn last(&self) -> Moment {
        self.moments.last().copied().unwrap_or_default()
    }

    fn depth(&self) -> f64 {
        self.last().depth
    }

    fn advance(&mut self, next: f64, (came, taken): (f64, f64), usual: (f64, f64)) {
        let last = self.last();
        let seconds = next - last.seconds;
        // As the end of the step was computed, so that nothing of it is left over.
        let depth = if taken > came && last.seconds + last.depth / (taken - came) <= next {
            0.0
        } else {
            (last.depth + (came - taken) * seconds).max(0.0)
        };
        let mut moment = Moment {
            seconds: next,
            depth,
            rate: came,
            came: 0.0,
            taken: 0.0,
        };
        let strained = came * usual.1 > usual.0 * taken;
        if depth > 0.0 || strained {
            moment.came = last.came + came * seconds;
            moment.taken = last.taken + taken * seconds;
        }
        self.moments.push(moment);
    }

    /// The depth then: between two moments, or behind the last.
    pub(super) fn depth_at(&self, seconds: f64) -> f64 {
        let last = self.last();
        if seconds >= last.seconds {
            return last.depth + self.grows * (seconds - last.seconds);
        }
        let pairs = self.moments.windows(2).find_map(|pair| match pair {
            [from, to] if to.seconds >= seconds => Some((from, to)),
            _ => None,
        });
        pairs.map_or(0.0, |(from, to)| {
            let share = (seconds - from.seconds) / (to.seconds - from.seconds);
            from.depth + share * (to.depth - from.depth)
        })
    }

    /// When the depth rises above so many records, if it does.
    pub(super) fn above(&self, records: f64) -> Option<f64> {
        let rises = self.moments.windows(2).find_map(|pair| {
            let [from, to] = pair else { return None };
            if to.depth <= records {
                return None;
            }
            let share = (records - from.depth).max(0.0) / (to.depth - from.depth);
            Some(from.seconds + share * (to.seconds - from.seconds))
        });
        let last = self.last();
        let later = || last.seconds + (records - last.depth).max(0.0) / self.grows;
        rises.or_else(|| (self.grows > 0.0).then(later))
    }

    /// When it is drained for good, if it is.
    pub(super) fn drained(&self) -> Option<f64> {
        if self.grows > 0.0 || self.depth() > 0.0 {
            return None;
        }
        let filled = self.moments.iter().rposition(|moment| moment.depth > 0.0);
        let empty = filled.map_or(0, |filled| filled + 1);
        self.moments.get(empty).map(|moment| moment.seconds)
    }

    /// The depths over time, until then if it grows for ever.
    pub(super) fn points(&self, until: f64) -> Vec<Point> {
        let point = |moment: &Moment| Point {
            seconds: moment.seconds,
            records: moment.depth,
        };
        let mut points: Vec<_> = self.moments.iter().map(point).collect();
        let last = self.last();
        if last.seconds < until {
            points.push(Point {
                seconds: until,
                records: last.depth + self.grows * (until - last.seconds),
            });
        }
        points
    }
}
