//! The turns of an engine's maintenance.

use std::{
    collections::BTreeSet,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use lockgate_core::{
    LogError, LogMaintenance, Now, Position, SnapshotStore, StepOutcome, with_sources,
};

use super::{
    MaintenanceTask, TaskStep,
    threads::{Turn, Turns},
    trouble::Trouble,
};
use crate::{
    Driver, IndexPace,
    inbox::AnswerSender,
    inbox::Notice,
    runtime::Shared,
    sync::{Instant, mpsc},
    unique_ids,
};

/// How often it checks the log's storage and space.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// How soon it asks again while it waits for something without a notification: the end of a read, or a sync.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How often it releases ranges while a task runs.
const GIVE_BACK_EVERY: Duration = Duration::from_millis(250);

/// The pause between two such moves where there are many.
const INDEX_AGAIN: Duration = Duration::from_millis(10);

/// How long it waits after the log has failed.
const RETRY: Duration = Duration::from_secs(1);

/// Runs the maintenance tasks of an engine.
pub(crate) struct Maintenance {
    shared: Arc<Shared>,
    log_maintenance: Option<Arc<dyn LogMaintenance>>,
    snapshots: Arc<dyn SnapshotStore>,
    /// When to ask the owner for work; `None`: at the next notification.
    ask_at: Option<Instant>,
    maintenance_after: Instant,
    tasks_after: Instant,
    check_at: Instant,
    give_back_at: Instant,
    /// The running task, and how far the log was durable at the last check.
    task: Option<(MaintenanceTask, Position)>,
    /// Whether there may be unique ids for the index, or in it for no queue; and not before when it looks.
    index_wanted: bool,
    index_after: Instant,
    /// Spaces of the index for no queue, and what must be durable before they are removed.
    gone: Option<(Vec<u64>, Position)>,
    /// Unneeded snapshots that could not be removed yet.
    unremoved: Vec<Position>,
    troubles: Troubles,
}

/// Each kind of work that may fail for long.
#[derive(Default)]
struct Troubles {
    log_maintenance: Trouble,
    tasks: Trouble,
    removal: Trouble,
    index: Trouble,
}

/// The engine accepts no more work.
struct Ended;

impl Turns for Maintenance {
    fn turn(&mut self, notified: bool) -> Turn {
        // A panic is a bug of ours. Nothing may wait for ever because of it.
        match panic::catch_unwind(AssertUnwindSafe(|| self.work(notified))) {
            Ok(Ok(turn)) => turn,
            Ok(Err(Ended)) => Turn::Ended,
            Err(_panic) => {
                self.shared.panicked();
                Turn::Ended
            }
        }
    }
}

impl Maintenance {
    pub(crate) fn new(
        shared: Arc<Shared>,
        log_maintenance: Option<Arc<dyn LogMaintenance>>,
        snapshots: Arc<dyn SnapshotStore>,
    ) -> Self {
        let now = Instant::now();
        Self {
            shared,
            log_maintenance,
            snapshots,
            ask_at: Some(now),
            maintenance_after: now,
            tasks_after: now,
            check_at: now + CHECK_EVERY,
            give_back_at: now,
            task: None,
            index_wanted: true,
            index_after: now,
            gone: None,
            unremoved: Vec::new(),
            troubles: Troubles::default(),
        }
    }

    /// Does a piece of each kind of work.
    fn work(&mut self, notified: bool) -> Result<Turn, Ended> {
        if self.shared.inbox.is_closed() {
            // A dropped task leaves nothing behind.
            return Err(Ended);
        }
        let now = Instant::now();
        if notified {
            self.ask_at = Some(now);
            self.index_wanted = true;
        }
        if now >= self.check_at {
            self.check_at = now + CHECK_EVERY;
            // Other programs may have taken or freed disk space.
            self.ask_at = Some(now);
            if let Some(log_maintenance) = &self.log_maintenance
                && let Err(error) = log_maintenance.check_storage()
            {
                return Err(self.log_has_failed(error));
            }
            self.remove_snapshots();
        }
        let tasks = self.tasks(now)?;
        // Behind the maintenance tasks, which release and trim. A long one must not keep the log from preparing what
        // the next appends need.
        let log_maintenance = self.log_maintenance(now)?;
        let index = self.index_ids(now)?;
        if [tasks, log_maintenance, index].contains(&StepOutcome::More) {
            return Ok(Turn::Again);
        }
        let asks = self.ask_at.map(|at| at.max(self.tasks_after));
        let log_maintenance = self.log_maintenance.as_ref().map(|log_maintenance| {
            let wanted = Instant::now() + log_maintenance.pause();
            wanted.max(self.maintenance_after)
        });
        let index = self.shared.index.as_ref().filter(|_| self.index_wanted);
        let index = index.map(|_| self.index_after);
        let next = [Some(self.check_at), asks, log_maintenance, index]
            .into_iter()
            .flatten();
        let next = next.min().unwrap_or(self.check_at);
        Ok(Turn::After(next.saturating_duration_since(Instant::now())))
    }

    /// Fails all requests at once, so that none waits until the next append fails.
    fn log_has_failed(&self, error: LogError) -> Ended {
        let _ended = self.ask(move |driver, _| driver.fail(error));
        Ended
    }

    fn log_maintenance(&mut self, now: Instant) -> Result<StepOutcome, Ended> {
        let Some(log_maintenance) = self
            .log_maintenance
            .as_ref()
            .filter(|_| now >= self.maintenance_after)
        else {
            return Ok(StepOutcome::Done);
        };
        match log_maintenance.step() {
            Ok(outcome) => {
                let again = "the log prepares room ahead again";
                works_again(&mut self.troubles.log_maintenance, again);
                Ok(outcome)
            }
            Err(error @ (LogError::Stopped { .. } | LogError::Deposed { .. })) => {
                Err(self.log_has_failed(error))
            }
            Err(error) => {
                self.maintenance_after = Instant::now() + RETRY;
                let what = "the log could not prepare room ahead; tried again every second";
                complain(&mut self.troubles.log_maintenance, &error, what);
                Ok(StepOutcome::Done)
            }
        }
    }

    /// Moves unique ids that are remembered for ever from memory to the index, and removes those of deleted queues and
    /// ledgers.
    fn index_ids(&mut self, now: Instant) -> Result<StepOutcome, Ended> {
        let Some(place) = self.shared.index.clone() else {
            return Ok(StepOutcome::Done);
        };
        if !self.index_wanted || now < self.index_after {
            return Ok(StepOutcome::Done);
        }
        self.index_wanted = false;
        let shared = self.shared.clone();
        let _moving = shared.index_moves();
        let index = place.get();
        let mut spaces = index.map(|index| index.all_spaces()).unwrap_or_default();
        let IndexPace { more_than, every } = self.shared.index_pace;
        self.index_after = now + every;
        let (to_index, spaces, tail, durable) = self.ask(move |driver, _| {
            let machine = driver.machine();
            if !spaces.is_empty() {
                let kept = machine.id_spaces().map(|(space, ..)| space.number());
                let kept: BTreeSet<_> = kept.collect();
                spaces.retain(|space| !kept.contains(space));
            }
            let to_index = machine.ids_to_index(more_than, unique_ids::MOST);
            (to_index, spaces, driver.tail(), driver.durable)
        })?;
        let moved: usize = to_index.iter().map(|of| of.ids.len()).sum();
        let mut again = moved >= unique_ids::MOST;
        let mut is_change = !to_index.is_empty();
        // A deletion that a power cut takes back must leave the queue its ids.
        let gone = match self.gone.take() {
            Some((spaces, at)) if durable >= at => {
                is_change = true;
                unique_ids::remove(&place, &spaces)
            }
            Some(gone) => {
                self.gone = Some(gone);
                Ok(Vec::new())
            }
            None if spaces.is_empty() => Ok(Vec::new()),
            None => {
                self.gone = Some((spaces, tail));
                Ok(Vec::new())
            }
        };
        let removed = gone.map(|left| {
            if !left.is_empty() {
                self.gone = Some((left, Position::default()));
                again = true;
            }
        });
        let (commands, added) = match to_index.is_empty() {
            true => (Vec::new(), Ok(())),
            false => unique_ids::add(&place, unique_ids::owner(&self.shared.secret), &to_index),
        };
        let done = removed.and(added);
        if is_change {
            self.shared.index_works.store(done.is_ok(), Relaxed);
        }
        let notices = commands.into_iter().map(Notice::Engine);
        self.shared.inbox.notice(notices);
        match done {
            Ok(()) => {
                if is_change {
                    works_again(
                        &mut self.troubles.index,
                        "unique ids get into their index again",
                    );
                }
                self.index_wanted = again || self.gone.is_some();
                if again {
                    // Not at once, for what could not be noted comes again.
                    self.index_after = now + INDEX_AGAIN;
                    // The owner takes notices first, so after its answer the commands are decided.
                    self.ask(|_, _| ())?;
                    return Ok(StepOutcome::More);
                }
            }
            Err(error) => {
                self.index_wanted = true;
                let what = "unique ids could not be moved to their index; tried again every second";
                complain(&mut self.troubles.index, &error, what);
            }
        }
        Ok(StepOutcome::Done)
    }

    /// Does a step of the maintenance task there is, or looks for one.
    fn tasks(&mut self, now: Instant) -> Result<StepOutcome, Ended> {
        if let Some((task, durable)) = self.task.take() {
            if now >= self.give_back_at {
                self.give_back_at = now + GIVE_BACK_EVERY;
                if let Err(error) = self.ask(|driver, now| driver.give_back(now))? {
                    let what = "the log could not be made smaller; tried again soon";
                    complain(&mut self.troubles.tasks, &error, what);
                }
            }
            self.see_to(task, durable)?;
            return Ok(StepOutcome::More);
        }
        if self.ask_at.is_none_or(|at| now < at) || now < self.tasks_after {
            return Ok(StepOutcome::Done);
        }
        let (task, waits) = self.ask(|driver, now| (driver.next_task(now), driver.tasks_wait()))?;
        self.ask_at = waits.then(|| Instant::now() + ASK_AGAIN);
        match task {
            Ok(task) => {
                let again = "the log can be made smaller again";
                works_again(&mut self.troubles.tasks, again);
                self.task = task.map(|task| (task, Position::default()));
                Ok(match self.task {
                    Some(_) => StepOutcome::More,
                    None => StepOutcome::Done,
                })
            }
            Err(error) => {
                self.ask_at = Some(now);
                self.tasks_after = Instant::now() + RETRY;
                let what = "the log could not be made smaller; tried again every second";
                complain(&mut self.troubles.tasks, &error, what);
                Ok(StepOutcome::Done)
            }
        }
    }

    fn see_to(&mut self, mut task: MaintenanceTask, mut durable: Position) -> Result<(), Ended> {
        let outcome = match task.step(durable) {
            Ok(TaskStep::Done) => Ok(()),
            Ok(step) => {
                match step {
                    TaskStep::WaitDurable(position) => {
                        let pending = &self.shared.pending;
                        pending.wait_durable(position).map_err(|_| Ended)?;
                        durable = position;
                    }
                    TaskStep::Commands(commands) => {
                        let notices = commands.into_iter().map(Notice::Engine);
                        self.shared.inbox.notice(notices);
                        // The owner takes notices first, so after its answer the commands are decided.
                        self.ask(|_, _| ())?;
                    }
                    TaskStep::More | TaskStep::Done => {}
                }
                self.task = Some((task, durable));
                return Ok(());
            }
            Err(error) => Err(error),
        };
        let rest = self.ask(move |driver, now| driver.finish_task(task, outcome, now))?;
        // The result may make another task worthwhile.
        self.ask_at = Some(Instant::now());
        self.unremoved.extend(rest.snapshots);
        self.remove_snapshots();
        Ok(())
    }

    /// Removes unneeded snapshots, as far as possible.
    fn remove_snapshots(&mut self) {
        let mut failed = None;
        self.unremoved
            .retain(|&position| match self.snapshots.remove(position) {
                Ok(()) => false,
                Err(error) => {
                    failed.get_or_insert(error);
                    true
                }
            });
        let trouble = &mut self.troubles.removal;
        match failed {
            None => works_again(trouble, "old snapshots can be removed again"),
            Some(error) => complain(
                trouble,
                &error,
                "old snapshots could not be removed; tried again every ten seconds",
            ),
        }
    }

    /// Runs a function on the owner thread between two groups, and waits for its result.
    fn ask<R: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Driver<AnswerSender>, Now) -> R + Send + 'static,
    ) -> Result<R, Ended> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.shared.inbox.task(Box::new(move |driver, now| {
            drop(sender.send(what(driver, now)));
        }));
        receiver.recv().map_err(|_gone| Ended)
    }
}

/// Logs that work fails, unless that was logged recently.
fn complain(trouble: &mut Trouble, error: &LogError, what: &'static str) {
    if let Some(pause) = trouble.failed(Instant::now()) {
        tracing::warn!(
            error = with_sources(error),
            silent_s = pause.as_secs(),
            "{what}"
        );
    }
}

/// Logs that work succeeds again, if its failure was logged.
fn works_again(trouble: &mut Trouble, what: &'static str) {
    if let Some(time) = trouble.worked(Instant::now()) {
        tracing::info!(failed_for_s = time.as_secs(), "{what}");
    }
}
