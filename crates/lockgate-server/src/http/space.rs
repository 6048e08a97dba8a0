//! Logs once when space on the disk becomes scarce, when there is none, and when there is enough
//! again.

use std::time::Duration;

use lockgate_core::{LogSpace, SpaceState};
use lockgate_engine::Engine;
use tokio::time::sleep;

/// How often the state is checked. A check costs a lock.
const EVERY: Duration = Duration::from_millis(500);

/// Watches for as long as it is polled; never ends.
pub(crate) async fn watch(engine: &Engine) {
    let mut last = SpaceState::Normal;
    loop {
        let space = engine.metrics().maintenance.space;
        if space.state != last {
            tell(space);
            last = space.state;
        }
        sleep(EVERY).await;
    }
}

fn tell(space: LogSpace) {
    let LogSpace {
        used_bytes,
        free_bytes,
        ..
    } = space;
    match space.state {
        SpaceState::Normal => {
            tracing::info!(
                used_bytes,
                free_bytes,
                "there is enough room on the disk again"
            );
        }
        SpaceState::Low => tracing::warn!(
            used_bytes,
            free_bytes,
            "room on the disk is low; when it is out, sends are refused"
        ),
        SpaceState::Full => tracing::error!(
            used_bytes,
            free_bytes,
            "the disk is full: sends are refused until messages are deleted or room is made"
        ),
    }
}
