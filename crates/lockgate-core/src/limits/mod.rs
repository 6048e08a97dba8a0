//! Limits on how often work starts, how much of it goes on at the same time, and how far apart starts are.
//!
//! A limit postpones and never drops: it says until when a start has to wait. Machine and worker share this
//! module; it reads no clock and knows no queue. A [`Limiter`] has the limits of a scope, such as those of
//! each key of a queue; a [`LimitState`] has what one member of the scope, such as one key, has used.
//!
//! ```
//! use lockgate_core::limits::{Limiter, Limits, LimitState, Rate, Wait, start};
//!
//! let each_key = Limits { rate: Some(Rate::new(10, 1_000)?), ..Limits::default() };
//! let limiter = Limiter::new(each_key, 0)?;
//! let mut key = LimitState::default();
//! // A burst is one second's worth, and each later start waits for its part of a second.
//! for _ in 0..10 {
//!     start([(&limiter, &mut key)], 1, 0).unwrap();
//! }
//! let held = start([(&limiter, &mut key)], 1, 0).unwrap_err();
//! assert_eq!(held.wait, Wait::Until(100));
//! # Ok::<(), lockgate_core::limits::LimitsError>(())
//! ```

mod scoped;
mod supply;
#[cfg(test)]
mod tests;
mod window;

use thiserror::Error;

pub use self::scoped::{Gap, LimitTextError, Scoped};
use self::{supply::Supply, window::Starts};
use crate::Millis;

/// The longest period of a rate or a window, and the longest gap: 366 days, in milliseconds.
pub const PERIOD_MAX: Millis = 366 * 86_400_000;

/// The most units of a period, of a burst, and of a cost.
pub const UNITS_MAX: u64 = 1_000_000_000;

/// The limits of one scope. All of them apply; without any, nothing waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// How many starts may go on at the same time, whatever each costs; 1 or more. A start counts until it is
    /// [finished](LimitState::finish). If it is lowered, what goes on ends in its own time, and nothing
    /// starts before there is room.
    pub concurrency: Option<u32>,
    /// The least time from one start to the next, in milliseconds; 1 to [`PERIOD_MAX`].
    pub gap: Option<Millis>,
    /// The units of starts over time.
    pub rate: Option<Rate>,
    /// The units of starts in any period.
    pub window: Option<Window>,
}

/// So many units in a period on average, and a burst at once when they were not used before: the generic cell
/// rate algorithm (GCRA; ITU-T I.371, 1993). In any time `t`, at most `burst + units * t / period` units
/// start, for costs up to the burst.
///
/// A start that costs more than the burst waits until nothing is owed, and what follows waits for all of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    units: u64,
    period: Millis,
    burst: u64,
}

/// At most so many units in any period, however it is placed.
///
/// Up to 64 units it is exact. Above, starts are remembered in 64 parts of a period, so a unit may wait up to
/// a 64th of the period longer than it must, and a member needs no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    units: u64,
    period: Millis,
}

/// Limits of a scope, with what time has supplied since they began. A change keeps what members owe: it is kept
/// in units, and the new rate pays it off. The default has no limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limiter {
    limits: Limits,
    supply: Supply,
    /// The last gap there was: one that was removed may come back before it is over.
    last_gap: Option<Millis>,
    /// Earlier starts are behind every gap there was.
    gap_from: Millis,
}

/// What a member of a scope has used. The default is a member that was never seen, and one whose state
/// [is idle](Self::is_idle) may be forgotten: it would be held by nothing that a new one is not held by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitState {
    debt: Debt,
    running: u32,
    starts: Starts,
}

/// What a member owes, apart from a [`Window`] and what goes on: small, for whoever keeps millions of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// What the scope's supply must have come to before nothing is owed, in two halves for a small alignment.
    owed: [u64; 2],
    /// Before that nothing starts, because somebody said so.
    held_until: Millis,
    /// When something last started, and one more; 0: never.
    last_start: Millis,
}

/// What a message holds when it is settled so that more than itself waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldScope {
    /// Its key, or its group in a queue without keys; the queue if it has neither.
    Key,
    /// Its queue.
    Queue,
}

/// Which limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// Somebody said [until when](LimitState::hold_until).
    Held,
    /// [`Limits::concurrency`].
    Concurrency,
    /// [`Limits::gap`].
    Gap,
    /// [`Limits::rate`].
    Rate,
    /// [`Limits::window`].
    Window,
    /// As many members owe something as may, and it is the turn of one that owes nothing: it waits until another one has
    /// paid, and all behind it wait with it. No [`Limiter`] says so: whoever keeps what they owe does.
    OwingKeys,
}

impl Limit {
    /// Its name in answers and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Concurrency => "concurrency",
            Self::Gap => "gap",
            Self::Rate => "rate",
            Self::Window => "window",
            Self::OwingKeys => "owing_keys",
        }
    }
}

/// How long a start waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wait {
    /// Until this time, in milliseconds; nothing but another start can make it later.
    Until(Millis),
    /// Until something that goes on is finished.
    Finish,
    /// For ever: it costs more than a [window](Limits::window) ever admits.
    Never,
}

/// Why nothing starts now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holds {
    /// The number of the scope, in the order that was given, from 0.
    pub scope: usize,
    /// The limit that lets go last.
    pub limit: Limit,
    /// When that is.
    pub wait: Wait,
}

/// A limit that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the {what} is {given}, and may be {min} to {max}")]
pub struct LimitsError {
    /// Which part of which limit.
    pub what: &'static str,
    /// What was given.
    pub given: u64,
    /// The lowest allowed value.
    pub min: u64,
    /// The highest allowed value.
    pub max: u64,
}

impl LimitsError {
    fn check(what: &'static str, given: u64, max: u64) -> Result<(), Self> {
        let min = 1;
        if (min..=max).contains(&given) {
            return Ok(());
        }
        Err(Self {
            what,
            given,
            min,
            max,
        })
    }
}

impl Rate {
    /// So many units each `period` milliseconds, with a burst of what one second brings, or of one unit if
    /// that is more.
    ///
    /// # Errors
    /// If there are none, or more than [`UNITS_MAX`], or the period is 0 or longer than [`PERIOD_MAX`].
    pub fn new(units: u64, period: Millis) -> Result<Self, LimitsError> {
        LimitsError::check("number of units of a rate", units, UNITS_MAX)?;
        LimitsError::check("period of a rate in ms", period, PERIOD_MAX)?;
        let burst = (units * 1_000 / period).clamp(1, UNITS_MAX);
        Ok(Self {
            units,
            period,
            burst,
        })
    }

    /// With another burst.
    ///
    /// # Errors
    /// If it is 0 or more than [`UNITS_MAX`].
    pub fn with_burst(self, burst: u64) -> Result<Self, LimitsError> {
        LimitsError::check("burst of a rate", burst, UNITS_MAX)?;
        Ok(Self { burst, ..self })
    }

    /// The units of a period.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The period, in milliseconds.
    #[must_use]
    pub fn period(&self) -> Millis {
        self.period
    }

    /// The units that may start at once.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.burst
    }
}

impl Window {
    /// At most so many units in any `period` milliseconds.
    ///
    /// # Errors
    /// If there are none, or more than [`UNITS_MAX`], or the period is 0 or longer than [`PERIOD_MAX`].
    pub fn new(units: u64, period: Millis) -> Result<Self, LimitsError> {
        LimitsError::check("number of units of a window", units, UNITS_MAX)?;
        LimitsError::check("period of a window in ms", period, PERIOD_MAX)?;
        Ok(Self { units, period })
    }

    /// The units of a period.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The period, in milliseconds.
    #[must_use]
    pub fn period(&self) -> Millis {
        self.period
    }
}

impl Limiter {
    /// Limits that begin now.
    ///
    /// # Errors
    /// If one of them is out of range.
    pub fn new(limits: Limits, now: Millis) -> Result<Self, LimitsError> {
        check(&limits)?;
        let supply = Supply::new(limits.rate, now);
        Ok(Self {
            last_gap: limits.gap,
            limits,
            supply,
            gap_from: 0,
        })
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Other limits from now on. What members owe, what goes on and what a gap still holds stays; of a window, what
    /// the shorter one of both periods knows. Nobody owes more than the burst of the new rate: at a low rate, what a high
    /// one has lent would take hours. Where a rate or a gap is removed, nothing is held and starts cost nothing, but what
    /// is owed runs off as if it were still there, and holds again if it comes back before.
    ///
    /// # Errors
    /// If one of them is out of range: then nothing has changed.
    pub fn change(&mut self, limits: Limits, now: Millis) -> Result<(), LimitsError> {
        check(&limits)?;
        self.supply.change(self.limits.rate, limits.rate, now);
        match (self.last_gap, limits.gap) {
            (None, Some(_)) => self.gap_from = now,
            // What is over is forgotten, so a longer gap must not bring it back.
            (Some(before), Some(gap)) if gap > before => {
                let over = now.saturating_add(1).saturating_sub(before);
                self.gap_from = self.gap_from.max(over);
            }
            _ => {}
        }
        self.last_gap = limits.gap.or(self.last_gap);
        self.limits = limits;
        Ok(())
    }

    /// The limit of a member that lets go last, and when, if one holds a start of that cost.
    #[must_use]
    pub fn holds(&self, state: &LimitState, cost: u64, now: Millis) -> Option<(Wait, Limit)> {
        let Limits {
            concurrency,
            gap,
            rate,
            window,
        } = self.limits;
        let gap = self.gap_over(gap, state.debt);
        let waits = [
            (Limit::Held, Some(Wait::Until(state.debt.held_until))),
            (
                Limit::Concurrency,
                concurrency
                    .filter(|most| state.running >= *most)
                    .map(|_| Wait::Finish),
            ),
            (Limit::Gap, gap.map(Wait::Until)),
            (
                Limit::Rate,
                rate.map(|rate| {
                    let owed = self.owed(state.debt);
                    Wait::Until(self.supply.admits(owed, cost, rate.burst))
                }),
            ),
            (
                Limit::Window,
                window.map(|window| state.starts.admits(window, cost, now)),
            ),
        ];
        let waits = waits
            .into_iter()
            .filter_map(|(limit, wait)| Some((wait?, limit)));
        // Of two that let go together, the first in the order of their names is told.
        waits
            .filter(|(wait, _)| *wait > Wait::Until(now))
            .max_by_key(|(wait, limit)| (*wait, std::cmp::Reverse(*limit)))
    }

    /// What a member owes under the rate of today.
    fn owed(&self, debt: Debt) -> u128 {
        let owed = debt.owed();
        // A start of the very time of the change that came behind it owes a burst at most, as its cost is no more.
        match debt.last_start() {
            Some(last) if last > self.supply.since() => owed,
            _ => owed.min(self.supply.most_at_change()),
        }
    }

    /// When the gap behind the last start is over.
    fn gap_over(&self, gap: Option<Millis>, debt: Debt) -> Option<Millis> {
        let last = debt.last_start().filter(|last| *last >= self.gap_from)?;
        Some(last.saturating_add(gap?))
    }

    /// Charges a start, whether or not a limit holds it: for whoever is told that it has happened.
    pub fn charge(&self, state: &mut LimitState, cost: u64, now: Millis) {
        state.running = state.running.saturating_add(1);
        if self.limits.rate.is_some() {
            let owed = self.supply.charge(self.owed(state.debt), cost, now);
            state.debt.set_owed(owed);
        }
        state.debt.last_start = now.saturating_add(1);
        if let Some(window) = self.limits.window {
            state.starts.charge(window, cost, now);
        }
    }

    /// What is not in the limits, for whoever keeps it; [`restored`](Self::restored) takes it. The last rate and the last
    /// gap are among it: 0 if there never was one.
    #[must_use]
    pub fn saved(&self) -> [u64; 8] {
        let [since, low, high] = self.supply.saved();
        let rate = self.supply.rate();
        let [units, period, burst] =
            rate.map_or([0; 3], |rate| [rate.units, rate.period, rate.burst]);
        let gap = self.last_gap.unwrap_or(0);
        [since, low, high, self.gap_from, units, period, burst, gap]
    }

    /// Limits that go on from what was [saved](Self::saved).
    ///
    /// # Errors
    /// If one of them is out of range.
    pub fn restored(
        limits: Limits,
        [since, low, high, gap_from, units, period, burst, gap]: [u64; 8],
    ) -> Result<Self, LimitsError> {
        check(&limits)?;
        let last_rate = match units {
            0 => None,
            _ => Some(Rate::new(units, period)?.with_burst(burst)?),
        };
        let rate = limits.rate.or(last_rate);
        let supply = Supply::restored(rate, [since, low, high]);
        Ok(Self {
            last_gap: limits.gap.or((gap > 0).then_some(gap)),
            limits,
            supply,
            gap_from,
        })
    }
}

impl Debt {
    /// The same as numbers, for whoever keeps it; [`from_numbers`](Self::from_numbers) takes them.
    #[must_use]
    pub fn to_numbers(self) -> [u64; 4] {
        let [low, high] = self.owed;
        [low, high, self.held_until, self.last_start]
    }

    /// The debt with these [numbers](Self::to_numbers).
    #[must_use]
    pub fn from_numbers([low, high, held_until, last_start]: [u64; 4]) -> Self {
        Self {
            owed: [low, high],
            held_until,
            last_start,
        }
    }

    /// Until when somebody [holds](LimitState::hold_until) it; in the past: nobody does.
    #[must_use]
    pub fn held_until(&self) -> Millis {
        self.held_until
    }

    fn owed(&self) -> u128 {
        let [low, high] = self.owed.map(u128::from);
        high << 64 | low
    }

    #[expect(clippy::cast_possible_truncation, reason = "split into its halves")]
    fn set_owed(&mut self, owed: u128) {
        self.owed = [owed as u64, (owed >> 64) as u64];
    }

    fn last_start(&self) -> Option<Millis> {
        self.last_start.checked_sub(1)
    }
}

impl LimitState {
    /// A member that owes this, and of which so many starts go on.
    #[must_use]
    pub fn new(debt: Debt, running: u32) -> Self {
        Self {
            debt,
            running,
            starts: Starts::default(),
        }
    }

    /// What it owes, apart from a [`Window`] and what goes on.
    #[must_use]
    pub fn debt(&self) -> Debt {
        self.debt
    }

    /// Something that started is over.
    pub fn finish(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// How many starts go on.
    #[must_use]
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Lets nothing start before this time, such as that which the answer of an overloaded callee names. An
    /// earlier time than before changes nothing.
    pub fn hold_until(&mut self, at: Millis) {
        self.debt.held_until = self.debt.held_until.max(at);
    }

    /// Ends a [hold](Self::hold_until).
    pub fn let_go(&mut self) {
        self.debt.held_until = 0;
    }

    /// What started at `at` has not happened: its place and its units are there again, as far as they were
    /// certainly not paid off meanwhile. The gap stays, because nobody knows what was the last start before it.
    pub fn refund(&mut self, limiter: &Limiter, cost: u64, at: Millis, now: Millis) {
        self.finish();
        let supply = &limiter.supply;
        let owed = limiter.owed(self.debt);
        let unpaid = if limiter.limits.rate.is_none() || at < supply.since() {
            // Nobody knows whether it was charged, and by which rate.
            0
        } else if self.debt.last_start() == Some(at) {
            // It is paid last.
            owed.saturating_sub(supply.at(now))
        } else {
            // If nothing was owed before it, it is paid first.
            supply.owed_first(cost, at, now)
        };
        self.debt
            .set_owed(owed - unpaid.min(supply::parts(cost)).min(owed));
        if let Some(window) = limiter.limits.window {
            self.starts.refund(window, cost, at);
        }
    }

    /// Whether it may be forgotten. What a [`Window`] remembers may go when its period is over, what a rate is owed
    /// when that is paid.
    #[must_use]
    pub fn is_idle(&self, limiter: &Limiter, now: Millis) -> bool {
        self.idle_at(limiter).is_some_and(|at| at <= now)
    }

    /// When it may be forgotten, if nothing starts until then; `None` while something goes on.
    #[must_use]
    pub fn idle_at(&self, limiter: &Limiter) -> Option<Millis> {
        if self.running > 0 {
            return None;
        }
        // A rate or a gap that was removed may come back.
        let (supply, window) = (&limiter.supply, limiter.limits.window);
        let times = [
            Some(self.debt.held_until),
            limiter.gap_over(limiter.last_gap, self.debt),
            supply
                .rate()
                .map(|_| supply.reaches(limiter.owed(self.debt))),
            window.and_then(|window| self.starts.over_at(window)),
        ];
        times.into_iter().flatten().max()
    }
}

fn check(limits: &Limits) -> Result<(), LimitsError> {
    if let Some(most) = limits.concurrency {
        LimitsError::check("concurrency", most.into(), u32::MAX.into())?;
    }
    match limits.gap {
        Some(gap) => LimitsError::check("gap in ms", gap, PERIOD_MAX),
        None => Ok(()),
    }
}

/// Starts something that costs `cost` units, 1 to [`UNITS_MAX`], in all these scopes or in none of them. Times
/// must not go back.
///
/// All limits of all scopes are looked at before any is charged; which one is looked at first does not matter.
///
/// # Errors
/// The limit that lets go last. Nothing was charged then.
///
/// # Panics
/// If the cost is out of range.
pub fn start<const SCOPES: usize>(
    mut scopes: [(&Limiter, &mut LimitState); SCOPES],
    cost: u64,
    now: Millis,
) -> Result<(), Holds> {
    assert!((1..=UNITS_MAX).contains(&cost), "a cost of {cost} units");
    let holds = scopes.iter().enumerate();
    let holds = holds.filter_map(|(scope, (limiter, state))| {
        let (wait, limit) = limiter.holds(state, cost, now)?;
        Some(Holds { scope, limit, wait })
    });
    match holds.max_by_key(|holds| (holds.wait, std::cmp::Reverse(holds.scope))) {
        Some(last) => Err(last),
        None => {
            for (limiter, state) in &mut scopes {
                limiter.charge(state, cost, now);
            }
            Ok(())
        }
    }
}
