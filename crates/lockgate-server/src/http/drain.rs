//! The signal that the server is shutting down.

use tokio::sync::watch;

/// Tells every part of the server, once, to stop. Shared by all of them.
#[derive(Clone, Debug)]
pub(crate) struct Drain(watch::Receiver<bool>);

/// The sending side of [`Drain`].
#[derive(Debug)]
pub(crate) struct DrainTrigger(watch::Sender<bool>);

/// A new signal that has not been given yet.
pub(crate) fn drain() -> (DrainTrigger, Drain) {
    let (sender, receiver) = watch::channel(false);
    (DrainTrigger(sender), Drain(receiver))
}

impl Drain {
    /// Whether the server has been told to stop.
    pub(crate) fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the server is told to stop; returns at once if it already was. A dropped trigger
    /// counts as pulled. Cancel safe.
    pub(crate) async fn begun(&self) {
        let _ = self.0.clone().wait_for(|&begun| begun).await;
    }
}

impl DrainTrigger {
    /// Tells the server to stop. A second call does nothing.
    pub(crate) fn pull(&self) {
        self.0.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everybody_hears_of_the_drain_also_those_who_ask_later() {
        let (trigger, drain) = drain();
        assert!(!drain.has_begun());
        let early = tokio::spawn({
            let drain = drain.clone();
            async move { drain.begun().await }
        });
        trigger.pull();
        trigger.pull();
        early.await.unwrap();
        drain.begun().await;
        assert!(drain.has_begun());
    }
}
