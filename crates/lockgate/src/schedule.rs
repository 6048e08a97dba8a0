//! Schedules: messages that are sent once at a time, at a fixed rate, or as a cron expression says.
//!
//! The shard fires them by itself, never early, also after a restart. A firing is one message with an id of its own and the
//! headers [`HEADER_NAME`](ScheduleSpec::HEADER_NAME) and [`HEADER_TIME`](ScheduleSpec::HEADER_TIME).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let lockgate = lockgate::Lockgate::open(folder.path()).await?;
//! use lockgate::{
//!     Message,
//!     schedule::{Overlap, ScheduleName, ScheduleSpec, ScheduleTo, Timing},
//! };
//!
//! let mail = lockgate.queue("mail").create().await?;
//! let report = lockgate.schedule(ScheduleName::new("report")?);
//! let timing = Timing::Cron { expression: "0 9 * * mon-fri".into(), zone: "Europe/Berlin".into() };
//! let to = ScheduleTo::Queue(mail.name().clone());
//! let spec = ScheduleSpec { overlap: Overlap::Skip, ..ScheduleSpec::new(timing, to, Message::new("weekly report")) };
//! assert!(report.put(spec.clone()).await?.created);
//! // The same again changes nothing.
//! assert!(!report.put(spec).await?.changed);
//!
//! report.run().await?;
//! assert_eq!(report.describe().await?.counts.by_hand, 1);
//! # lockgate.shutdown().await;
//! # Ok(())
//! # }
//! ```

pub use lockgate_core::{CatchUp, Overlap, ScheduleName, Timing};
use lockgate_core::{MessageId, WallTime, coordination::Fence};
use lockgate_engine::Engine;
pub use lockgate_engine::next_times;
use lockgate_machine::{
    ChangeSchedule, DeleteSchedule, DescribeSchedule, RunSchedule, ScheduleChange,
};
pub use lockgate_machine::{
    Firing, ListSchedules, ScheduleCounts, ScheduleDescription, ScheduleError, SchedulePut,
    ScheduleSpec, ScheduleTo, SchedulesPage,
};

use crate::{Error, Lockgate};

/// A schedule. Clones are cheap.
///
/// What cannot be done as the schedule is is an [`Error::Engine`] with
/// [`Rejection::Schedule`](lockgate_machine::Rejection::Schedule); see [`ScheduleError`]. If the future of a method is dropped
/// after the request got to the engine, the request may have happened or not.
#[derive(Clone)]
pub struct Schedule {
    engine: Engine,
    name: ScheduleName,
    generation: Option<u64>,
}

impl Lockgate {
    /// The schedule of that name. Whether there is one shows its first operation.
    #[must_use]
    pub fn schedule(&self, name: ScheduleName) -> Schedule {
        Schedule {
            engine: self.engine().clone(),
            name,
            generation: None,
        }
    }

    /// A page of the schedules, in the order of their names.
    ///
    /// # Errors
    /// [`Rejection::OutOfRange`](lockgate_machine::Rejection::OutOfRange) for a limit out of its range; otherwise an error about
    /// the engine's state.
    pub async fn list_schedules(&self, list: ListSchedules) -> Result<SchedulesPage, Error> {
        Ok(self.engine().query(list).await?)
    }
}

impl Schedule {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ScheduleName {
        &self.name
    }

    /// The same schedule, whose changes happen only while it has that generation; 0: while there is none of its name. Otherwise
    /// they are refused with [`ScheduleError::Generation`].
    #[must_use]
    pub fn of_generation(&self, generation: u64) -> Self {
        Self {
            generation: Some(generation),
            ..self.clone()
        }
    }

    /// The same schedule for the leader of a term, as [`Queue::fenced`](crate::Queue::fenced) has it.
    #[must_use]
    pub fn fenced(&self, fence: &Fence) -> Self {
        Self {
            engine: self.engine.fenced(fence),
            ..self.clone()
        }
    }

    /// Makes the schedule, or changes it. If it is as asked, nothing changes; otherwise its next time stays unless its timing
    /// changes.
    ///
    /// # Errors
    /// [`ScheduleError::Timing`] and [`ScheduleError::Spec`] for what no schedule can be; [`ScheduleError::Target`] if its queue
    /// or exchange would refuse its messages; [`Rejection::ShardFull`](lockgate_machine::Rejection::ShardFull) if there is no
    /// room for it.
    pub async fn put(&self, spec: ScheduleSpec) -> Result<SchedulePut, Error> {
        let put = self
            .engine
            .put_schedule(self.name.clone(), spec, self.generation);
        Ok(put.await?)
    }

    /// The schedule as it is.
    ///
    /// # Errors
    /// [`ScheduleError::NotFound`] if there is none.
    pub async fn describe(&self) -> Result<ScheduleDescription, Error> {
        let schedule = self.name.clone();
        Ok(self.engine.query(DescribeSchedule { schedule }).await?)
    }

    /// Fires it now, beside its times. Returns the id of the message; of an exchange, of what was published.
    ///
    /// # Errors
    /// [`ScheduleError::NotFound`]; [`ScheduleError::Unsettled`] while its last message is there, if it skips or waits then; and
    /// what a send or publish is refused with.
    pub async fn run(&self) -> Result<MessageId, Error> {
        let run = RunSchedule {
            name: self.name.clone(),
            generation: self.generation,
        };
        Ok(self.engine.submit(run).await?)
    }

    /// Lets it not fire until it is resumed. Times that pass meanwhile are not missed.
    ///
    /// # Errors
    /// [`ScheduleError::NotFound`] if there is none.
    pub async fn pause(&self) -> Result<ScheduleDescription, Error> {
        self.change(ScheduleChange::Pause).await
    }

    /// Lets it fire again, from its first time after now on.
    ///
    /// # Errors
    /// [`ScheduleError::NotFound`] if there is none.
    pub async fn resume(&self) -> Result<ScheduleDescription, Error> {
        let resumed = self
            .engine
            .resume_schedule(self.name.clone(), self.generation);
        Ok(resumed.await?)
    }

    /// Lets it fire at that time instead of at its next one. Its series goes on behind both.
    ///
    /// # Errors
    /// [`ScheduleError::NotFound`] if there is none.
    pub async fn move_to(&self, at: WallTime) -> Result<ScheduleDescription, Error> {
        self.change(ScheduleChange::Move(at)).await
    }

    async fn change(&self, change: ScheduleChange) -> Result<ScheduleDescription, Error> {
        let change = ChangeSchedule {
            name: self.name.clone(),
            change,
            generation: self.generation,
        };
        Ok(self.engine.submit(change).await?)
    }

    /// Deletes it. Messages that it has sent stay.
    ///
    /// # Errors
    /// [`ScheduleError::NotFound`] if there is none.
    pub async fn delete(&self) -> Result<(), Error> {
        let delete = DeleteSchedule {
            name: self.name.clone(),
            generation: self.generation,
        };
        Ok(self.engine.submit(delete).await?)
    }
}
