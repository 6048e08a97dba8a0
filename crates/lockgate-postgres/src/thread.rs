//! The thread that moves bytes between connections and servers.

use std::{fmt, io, sync::Arc};

use tokio::runtime::{self, Runtime};

/// A thread that moves bytes between the connections of logs and their servers. Logs share it if
/// each is given a clone in [`PostgresLogOptions::thread`](crate::PostgresLogOptions::thread). It
/// ends with the last clone and the last of these logs.
///
/// It only moves bytes: a server that does not answer holds up no other log's connections.
#[derive(Clone)]
pub struct ConnectionThread(Arc<Running>);

/// Taken when it is dropped.
struct Running(Option<Runtime>);

impl ConnectionThread {
    /// Starts a thread.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn start() -> io::Result<Self> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("lockgate-postgres")
            .enable_all()
            .build()?;
        Ok(Self(Arc::new(Running(Some(runtime)))))
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        self.0.0.as_ref().expect("it is taken by drop only")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // The last handle may be dropped in an async task, which must not wait for a thread.
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for ConnectionThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectionThread").finish()
    }
}
