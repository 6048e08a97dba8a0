//! The thread that does the chores of an engine.

use std::{sync::Arc, time::Duration};

use lockgate_core::{LogError, LogUpkeep, Now, Position, SnapshotStore, with_sources};

use super::{Chore, ChoreStep, trouble::Trouble};
use crate::{
    Driver,
    desk::Desk,
    inbox::{Inbox, Ticket},
    sync::{Instant, mpsc, thread},
};

/// How long the keeper sleeps when there is nothing to do.
const IDLE: Duration = Duration::from_millis(100);

/// How often it asks although nothing was appended: pins end without a sound.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// How often it looks whether the log's storage is still there.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// How long it lets a log alone which failed.
const RETRY: Duration = Duration::from_secs(1);

/// Between the keeper's thread and the engine around it.
pub(crate) struct Keeper<'a> {
    pub(crate) inbox: &'a Inbox,
    pub(crate) desk: &'a Desk,
    pub(crate) upkeep: Option<Arc<dyn LogUpkeep>>,
    pub(crate) snapshots: Arc<dyn SnapshotStore>,
}

/// What may fail for long, each for itself.
#[derive(Default)]
struct Troubles {
    upkeep: Trouble,
    chores: Trouble,
    removal: Trouble,
}

/// The engine takes no more work.
struct Ended;

impl Keeper<'_> {
    /// Until the engine stops.
    pub(crate) fn run(&self) {
        let mut seen_groups = u64::MAX;
        let mut asked = Instant::now();
        let (mut upkeep_after, mut chores_after) = (asked, asked);
        let mut check_after = asked + CHECK_EVERY;
        let mut troubles = Troubles::default();
        while !self.inbox.is_closed() {
            let mut busy = false;
            if let Some(upkeep) = &self.upkeep
                && Instant::now() >= check_after
            {
                check_after = Instant::now() + CHECK_EVERY;
                if let Err(error) = upkeep.check_storage() {
                    let _ended = self.ask(move |driver, _| driver.fail(&error));
                    return;
                }
            }
            if let Some(upkeep) = &self.upkeep
                && Instant::now() >= upkeep_after
            {
                match upkeep.step() {
                    Ok(more) => {
                        busy |= more;
                        works_again(&mut troubles.upkeep, "the log prepares room ahead again");
                    }
                    Err(error @ (LogError::Stopped { .. } | LogError::Deposed { .. })) => {
                        // Nobody has to wait for the next append to be told.
                        let _ended = self.ask(move |driver, _| driver.fail(&error));
                        return;
                    }
                    Err(error) => {
                        upkeep_after = Instant::now() + RETRY;
                        let what = "the log could not prepare room ahead; tried again every second";
                        complain(&mut troubles.upkeep, &error, what);
                    }
                }
            }
            let groups = self.desk.counts().driver.groups;
            if (groups != seen_groups || asked.elapsed() >= ASK_EVERY)
                && Instant::now() >= chores_after
            {
                seen_groups = groups;
                asked = Instant::now();
                let Ok(chore) = self.ask(|driver, now| driver.next_chore(now)) else {
                    return;
                };
                match chore {
                    Ok(chore) => {
                        works_again(&mut troubles.chores, "the log can be made smaller again");
                        if let Some(chore) = chore {
                            busy = true;
                            // What it brought may be worth the next one.
                            seen_groups = u64::MAX;
                            if self.see_to(chore, &mut troubles.removal).is_err() {
                                return;
                            }
                        }
                    }
                    Err(error) => {
                        chores_after = Instant::now() + RETRY;
                        let what = "the log could not be made smaller; tried again every second";
                        complain(&mut troubles.chores, &error, what);
                    }
                }
            }
            if !busy {
                thread::park_timeout(IDLE);
            }
        }
    }

    fn see_to(&self, mut chore: Chore, trouble: &mut Trouble) -> Result<(), Ended> {
        let mut durable = Position::default();
        let outcome = loop {
            if self.inbox.is_closed() {
                // Dropped, it leaves nothing behind.
                return Err(Ended);
            }
            match chore.step(durable) {
                Ok(ChoreStep::More) => self.upkeep_between(),
                Ok(ChoreStep::WaitDurable(position)) => {
                    self.desk.wait_durable(position).map_err(|_| Ended)?;
                    durable = position;
                }
                Ok(ChoreStep::Commands(commands)) => {
                    self.inbox.notice(commands.into_iter());
                    // Notices come first, so when this is answered they are decided.
                    self.ask(|_, _| ())?;
                    self.upkeep_between();
                }
                Ok(ChoreStep::Done) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let rest = self.ask(move |driver, now| driver.finish_chore(chore, outcome, now))?;
        let removed = rest.and_then(|rest| {
            rest.snapshots
                .into_iter()
                .try_for_each(|position| self.snapshots.remove(position))
        });
        match removed {
            Ok(()) => works_again(trouble, "old snapshots and parts of the log go again"),
            Err(error) => complain(
                trouble,
                &error,
                "old snapshots or parts of the log could not be given up; tried again with the next snapshot",
            ),
        }
        Ok(())
    }

    /// A long chore must not keep the log from preparing what the next appends need.
    fn upkeep_between(&self) {
        if let Some(upkeep) = &self.upkeep {
            // An error is met again, and told, when it has the thread for itself.
            let _more = upkeep.step();
        }
    }

    /// Has the owner thread do something between two groups, and waits for what comes of it.
    fn ask<R: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Driver<Ticket>, Now) -> R + Send + 'static,
    ) -> Result<R, Ended> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.inbox.task(Box::new(move |driver, now| {
            drop(sender.send(what(driver, now)));
        }));
        receiver.recv().map_err(|_gone| Ended)
    }
}

/// Says that something fails, unless that was said not long ago.
fn complain(trouble: &mut Trouble, error: &LogError, what: &'static str) {
    if let Some(pause) = trouble.failed(Instant::now()) {
        tracing::warn!(
            error = with_sources(error),
            silent_s = pause.as_secs(),
            "{what}"
        );
    }
}

/// Says that something works again, if it was said that it fails.
fn works_again(trouble: &mut Trouble, what: &'static str) {
    if let Some(time) = trouble.worked(Instant::now()) {
        tracing::info!(failed_for_s = time.as_secs(), "{what}");
    }
}
