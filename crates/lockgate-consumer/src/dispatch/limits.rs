//! Limits on how often messages start here, and on how many go on.
//!
//! A lane whose key is held waits for the time at which that ends, or for a run of the key, and takes no turn; a
//! lane whose turn it is while the worker as a whole is held keeps it. Where the source can wait itself, what a key
//! holds for long goes back to it, so that held keys do not fill the room of the others.

use std::collections::HashMap;

use lockgate_core::{
    Key, Millis,
    limits::{Holds, LimitState, Limiter, Limits, LimitsError, Scoped, UNITS_MAX, Wait, start},
};
use slab::Slab;
use smallvec::SmallVec;

use super::{
    lane::{Charge, Item},
    list::List,
};

/// Held for at least so long, a message goes back to a source that waits itself, in milliseconds. A shorter wait is
/// not worth the calls.
pub(super) const HOLD_HERE_MAX: Millis = 1_000;

/// So many keys are remembered before it is worth a look which may be forgotten.
const KEYS_MIN: usize = 1_024;

/// The limits of a worker, and what it and its keys have used.
#[derive(Debug)]
pub(super) struct WorkerLimits {
    all: Limiter,
    used: LimitState,
    each: Option<Limiter>,
    keys: HashMap<Option<Key>, KeyLimit>,
    /// With so many keys, it is looked which may be forgotten.
    forget_at: usize,
    /// The lane whose turn it is, while the worker as a whole is held.
    pub(super) next: Option<u32>,
    /// Why, when that was last looked at.
    pub(super) held: Option<Holds>,
}

#[derive(Debug, Default)]
struct KeyLimit {
    used: LimitState,
    /// Lanes that wait until something of the key ends.
    waiting: Vec<u32>,
}

/// `None`: until something ends.
pub(super) fn until_of(wait: Wait) -> Option<Millis> {
    match wait {
        Wait::Until(at) => Some(at),
        Wait::Finish | Wait::Never => None,
    }
}

impl WorkerLimits {
    /// `None`: there are no limits.
    pub(super) fn new(
        limits: &Scoped<Limits>,
        now: Millis,
    ) -> Result<Option<Box<Self>>, LimitsError> {
        if limits.is_none() {
            return Ok(None);
        }
        let all = Limiter::new(limits.queue.clone().unwrap_or_default(), now)?;
        let each = limits.key.clone().map(|each| Limiter::new(each, now));
        Ok(Some(Box::new(Self::of(all, each.transpose()?))))
    }

    /// No limits, for a worker that is only held.
    pub(super) fn none() -> Box<Self> {
        Box::new(Self::of(Limiter::default(), None))
    }

    fn of(all: Limiter, each: Option<Limiter>) -> Self {
        Self {
            all,
            used: LimitState::default(),
            each,
            keys: HashMap::new(),
            forget_at: KEYS_MIN,
            next: None,
            held: None,
        }
    }

    /// What is kept with an item.
    pub(super) fn charge_of(&self, key: Option<&Key>, cost: u32) -> Box<Charge> {
        let key = key.filter(|_| self.each.is_some()).cloned();
        let cost = cost.into();
        Box::new(Charge { key, cost, at: 0 })
    }

    /// Why an item can never start, if so.
    pub(super) fn never<M>(&self, item: &Item<M>) -> Option<String> {
        let cost = item.charge.as_ref()?.cost;
        let limiters = [Some(&self.all), self.each.as_ref()].into_iter().flatten();
        let windows = limiters.filter_map(|limiter| limiter.limits().window);
        let most = windows
            .map(|window| window.units())
            .min()
            .unwrap_or(UNITS_MAX);
        let fits = (1..=most).contains(&cost);
        (!fits).then(|| format!("it costs {cost} units, and the worker's limits admit 1 to {most}"))
    }

    /// Starts as many of these messages as may be. Returns how many. The first can start [some
    /// time](Self::never).
    pub(super) fn admit<M>(
        &mut self,
        items: &mut Slab<Item<M>>,
        queue: &List,
        most: usize,
        now: Millis,
    ) -> Result<usize, Holds> {
        let places: SmallVec<[u32; 8]> = queue.iter(items).take(most).collect();
        for (count, place) in places.iter().enumerate() {
            if count > 0 && self.never(&items[*place as usize]).is_some() {
                return Ok(count);
            }
            // Without one it came before the worker was first held, and no other limits are.
            let charge = items[*place as usize].charge.as_mut();
            let cost = charge.as_ref().map_or(1, |charge| charge.cost);
            let result = match (&self.each, &charge) {
                (Some(each), Some(charge)) => {
                    let key = self.keys.entry(charge.key.clone()).or_default();
                    start(
                        [(&self.all, &mut self.used), (each, &mut key.used)],
                        cost,
                        now,
                    )
                }
                _ => start([(&self.all, &mut self.used)], cost, now),
            };
            match result {
                Ok(()) => {
                    if let Some(charge) = charge {
                        charge.at = now;
                    }
                }
                Err(holds) if count == 0 => return Err(holds),
                Err(_) => return Ok(count),
            }
        }
        Ok(places.len())
    }

    /// Lets a lane wait until something of its key ends.
    pub(super) fn wait_for_key<M>(&mut self, item: &Item<M>, lane: u32) {
        if let Some(charge) = &item.charge {
            let key = self.keys.entry(charge.key.clone()).or_default();
            key.waiting.push(lane);
        }
    }

    /// A message that was [admitted](Self::admit) is over, or has not begun. Returns the lanes that waited for it.
    pub(super) fn over<M>(&mut self, item: &Item<M>, has_begun: bool, now: Millis) -> Vec<u32> {
        let over = |limiter: &Limiter, used: &mut LimitState, charge: Option<&Charge>| match charge
        {
            Some(charge) if !has_begun => used.refund(limiter, charge.cost, charge.at, now),
            _ => used.finish(),
        };
        let charge = item.charge.as_deref();
        over(&self.all, &mut self.used, charge);
        let (Some(each), Some(charge)) = (&self.each, charge) else {
            return Vec::new();
        };
        let Some(key) = self.keys.get_mut(&charge.key) else {
            return Vec::new();
        };
        over(each, &mut key.used, Some(charge));
        let waiting = std::mem::take(&mut key.waiting);
        if self.keys.len() >= self.forget_at {
            let is_used = |key: &KeyLimit| !key.waiting.is_empty() || !key.used.is_idle(each, now);
            self.keys.retain(|_, key| is_used(key));
            self.forget_at = (2 * self.keys.len()).max(KEYS_MIN);
        }
        waiting
    }

    /// Lets nothing start before this time.
    pub(super) fn hold_until(&mut self, at: Millis) {
        self.used.hold_until(at);
    }

    /// Whether nothing of the worker may start.
    pub(super) fn is_held(&mut self, now: Millis) -> bool {
        // A message that costs more than one unit may be held longer, which its turn tells.
        let held = self.all.holds(&self.used, 1, now);
        self.held = held.map(|(wait, limit)| Holds {
            scope: 0,
            limit,
            wait,
        });
        self.held.is_some()
    }

    /// When the worker as a whole may go on, if it is held until a time.
    pub(super) fn held_until(&self) -> Option<Millis> {
        until_of(self.held?.wait)
    }

    /// How many keys are remembered.
    #[cfg(test)]
    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }
}
