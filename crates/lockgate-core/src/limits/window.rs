//! The starts of a period.

use std::collections::VecDeque;

use super::{Wait, Window};
use crate::Millis;

/// Up to so many units, each start is remembered; above, those of a part of the period together.
const EXACT_MAX: u64 = 64;

/// When something started, and how many units: in order. A part of a period stands at its end, so that a
/// start counts for at least as long as it must.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Starts(VecDeque<(Millis, u64)>);

impl Starts {
    fn iter(&self) -> impl Iterator<Item = (Millis, u64)> {
        self.0.iter().copied()
    }

    /// When a start of that cost may be.
    pub(super) fn admits(&self, window: Window, cost: u64, now: Millis) -> Wait {
        let Some(room) = window.units.checked_sub(cost) else {
            return Wait::Never;
        };
        let ends = |at: Millis| at.saturating_add(window.period);
        let mut used: u64 = self
            .iter()
            .filter(|(at, _)| ends(*at) > now)
            .map(|(_, units)| units)
            .sum();
        let mut until = now;
        for (at, units) in self.iter().filter(|(at, _)| ends(*at) > now) {
            if used <= room {
                break;
            }
            used -= units;
            until = ends(at);
        }
        Wait::Until(until)
    }

    /// Remembers a start.
    pub(super) fn charge(&mut self, window: Window, cost: u64, now: Millis) {
        let at = end_of_part(window, now);
        let starts = &mut self.0;
        while starts
            .front()
            .is_some_and(|(at, _)| at.saturating_add(window.period) <= now)
        {
            starts.pop_front();
        }
        match starts.back_mut() {
            // After a change to a shorter period the last part may end later than this one.
            Some((last, units)) if *last >= at => *units += cost,
            _ => starts.push_back((at, cost)),
        }
    }

    /// Takes back a start, if it is remembered under this window.
    pub(super) fn refund(&mut self, window: Window, cost: u64, at: Millis) {
        let starts = &mut self.0;
        let end = end_of_part(window, at);
        if let Some((_, units)) = starts.iter_mut().find(|(at, _)| *at == end) {
            *units = units.saturating_sub(cost);
        }
        starts.retain(|(_, units)| *units > 0);
    }

    /// When none of them counts any more.
    pub(super) fn over_at(&self, window: Window) -> Option<Millis> {
        let (last, _) = *self.0.back()?;
        Some(last.saturating_add(window.period))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The end of the part of the period in which that is.
fn end_of_part(window: Window, at: Millis) -> Millis {
    let part = if window.units > EXACT_MAX {
        window.period.div_ceil(EXACT_MAX)
    } else {
        1
    };
    at.div_ceil(part).saturating_mul(part)
}
