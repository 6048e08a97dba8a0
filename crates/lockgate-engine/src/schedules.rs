//! Commands for schedules with the times that the calendar says.

use std::sync::Arc;

use lockgate_core::{ScheduleName, WallTime};
use lockgate_machine::{
    ChangeSchedule, DescribeSchedule, PutSchedule, Rejection, ScheduleChange, ScheduleDescription,
    ScheduleError, SchedulePut, ScheduleSpec, TimingPart,
};
use lockgate_schedule::{Calendar, TimingError};
use tokio::runtime::Handle;

use crate::{Engine, EngineError, StopReason};

/// How often a resume is decided anew because the schedule was changed meanwhile.
const TRIES: usize = 8;

fn no_timing(error: &TimingError) -> EngineError {
    let part = match error {
        TimingError::Period { .. } => Some(TimingPart::Period),
        TimingError::Zone { .. } => Some(TimingPart::Zone),
        TimingError::Cron { .. } | TimingError::Never { .. } => Some(TimingPart::Cron),
        _ => None,
    };
    let what = error.to_string();
    EngineError::Rejected(Rejection::Schedule(ScheduleError::Timing { part, what }))
}

/// Computes times on a thread that may block, if the runtime has one: a rare time costs milliseconds.
async fn computed(
    times: impl FnOnce() -> Result<Option<WallTime>, TimingError> + Send + 'static,
) -> Result<Option<WallTime>, EngineError> {
    let next = match Handle::try_current() {
        Err(_) => times(),
        Ok(runtime) => match runtime.spawn_blocking(times).await {
            Ok(next) => next,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime shuts down.
                Err(_) => {
                    let reason = StopReason::ShutDown;
                    return Err(EngineError::Stopped { reason });
                }
            },
        },
    };
    next.map_err(|error| no_timing(&error))
}

impl Engine {
    /// Makes a schedule, or changes the one of that name, see [`PutSchedule`]. The first time comes from the calendar and the
    /// engine's clock: of [`Timing::At`](lockgate_core::Timing::At) the time itself, at a fixed rate without a time of its own one
    /// period from now, else the first time after now.
    ///
    /// # Errors
    /// As [`submit`](Self::submit); [`ScheduleError::Timing`] for a timing that is none.
    ///
    /// # Cancel safety
    /// As [`submit`](Self::submit): if the future is dropped, the schedule may have been changed or not.
    pub async fn put_schedule(
        &self,
        name: ScheduleName,
        spec: ScheduleSpec,
        generation: Option<u64>,
    ) -> Result<SchedulePut, EngineError> {
        let (timing, now) = (spec.timing.clone(), self.now().wall);
        let first = computed(move || Calendar::first(&timing, now)).await?;
        let put = PutSchedule {
            name,
            next: first,
            spec: Arc::new(spec),
            generation,
        };
        self.submit(put).await
    }

    /// Lets a paused schedule fire again, from its first time after now on.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    ///
    /// # Cancel safety
    /// As [`submit`](Self::submit): if the future is dropped, the schedule may have been resumed or not.
    pub async fn resume_schedule(
        &self,
        name: ScheduleName,
        generation: Option<u64>,
    ) -> Result<ScheduleDescription, EngineError> {
        let mut tries = TRIES;
        loop {
            let schedule = name.clone();
            let present = self.query(DescribeSchedule { schedule }).await?;
            let (spec, anchor, now) = (present.spec.clone(), present.anchor, self.now().wall);
            let next = move || {
                let calendar = Calendar::new(&spec.timing, anchor)?;
                Ok(calendar.next_after(now))
            };
            let next = computed(next).await?;
            let change = ChangeSchedule {
                name: name.clone(),
                change: ScheduleChange::Resume { next },
                // The next time is that of this generation.
                generation: Some(generation.unwrap_or(present.generation)),
            };
            tries -= 1;
            match self.submit(change).await {
                Err(EngineError::Rejected(Rejection::Schedule(ScheduleError::Generation {
                    ..
                }))) if generation.is_none() && tries > 0 => {}
                done => return done,
            }
        }
    }
}

/// The next times of a schedule, up to `max`; none of a paused one.
#[must_use]
pub fn next_times(schedule: &ScheduleDescription, max: usize) -> Vec<WallTime> {
    let Some(next) = schedule.next.filter(|_| !schedule.paused) else {
        return Vec::new();
    };
    if max <= 1 {
        return vec![next];
    }
    let Ok(calendar) = Calendar::new(&schedule.spec.timing, schedule.anchor) else {
        return vec![next];
    };
    let behind = schedule.planned.map_or(next, |planned| planned.max(next));
    let later = calendar.after(behind);
    std::iter::once(next).chain(later).take(max).collect()
}
