//! Callers of one key in many processes, over an embedded shard.

use std::{sync::Arc, time::Duration};

use lockgate::{Lockgate, ManualClock};
use lockgate_conformance::coalesce;

#[tokio::test]
async fn processes_conform_over_an_embedded_shard() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::default());
    let builder = Lockgate::builder(folder.path()).clock(Arc::new(clock.clone()));
    let lockgate = builder.open().await.unwrap();
    let all = [lockgate.clone(), lockgate.clone(), lockgate.clone()];
    let pass = |span: Duration| {
        clock.advance(span.as_millis().try_into().unwrap());
        lockgate.clock_changed();
    };
    coalesce::across_processes(all, pass).await;
    lockgate.shutdown().await;
}
