//! Where what is rejected goes.

use lockgate_client::{CallError, Method, RemoteQueue};
use serde::Deserialize;

/// Whether what is rejected goes from that queue to another one: else it is dropped.
pub(super) async fn has_dead_letters(queue: &RemoteQueue) -> Result<bool, CallError> {
    #[derive(Deserialize)]
    struct Queue {
        settings: Settings,
        #[serde(default)]
        dead_letter_missing: bool,
    }
    #[derive(Deserialize)]
    struct Settings {
        dead_letter: Option<String>,
    }
    let target = format!("/queues/{}", queue.name());
    let asked = queue.client().call(Method::GET, &target, None::<&()>);
    let queue: Queue = asked.await?;
    Ok(queue.settings.dead_letter.is_some() && !queue.dead_letter_missing)
}
