//! Threads around the driver.

use std::sync::Arc;

use lockgate_core::{Clock, Log, LogError, Now, Term};
use tokio::sync::watch;

use crate::{
    Batch, Directory, EngineError, EngineMetrics, EngineOptions, StartError, StartReport, Status,
    StopReason, batch::Leases, inbox::Inbox,
};

pub(crate) struct Shared {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) directory: Directory,
    pub(crate) status: watch::Sender<Status>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) term: Term,
    pub(crate) secret: [u8; 32],
}

pub(crate) fn start(
    _log: Box<dyn Log>,
    clock: Arc<dyn Clock>,
    options: EngineOptions,
) -> Result<(Arc<Shared>, StartReport), StartError> {
    let _shared = Arc::new(Shared {
        inbox: Arc::new(Inbox::new(&options)),
        directory: Directory::default(),
        status: watch::Sender::new(Status::Serving),
        clock,
        term: Term::default(),
        secret: [0; 32],
    });
    Err(StartError::Recover(LogError::Unsupported {
        what: "start before the machine has landed",
    }))
}

impl Shared {
    pub(crate) fn now(&self) -> Now {
        Now::default()
    }

    pub(crate) fn read(&self, leases: Leases) -> Result<Batch, EngineError> {
        Ok(Batch::new(Vec::new(), leases))
    }

    pub(crate) fn metrics(&self) -> EngineMetrics {
        EngineMetrics::default()
    }

    pub(crate) fn count_refused(&self, _error: &EngineError) {}

    pub(crate) fn stop(&self) {
        self.inbox.close(StopReason::ShutDown);
    }

    pub(crate) fn join(&self) {}
}
