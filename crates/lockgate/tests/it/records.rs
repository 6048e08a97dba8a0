//! The records of an embedded shard.

use std::{sync::Arc, time::Duration};

use lockgate::{Lockgate, ManualClock};
use lockgate_conformance::records::{self, Fixture};
use tempfile::TempDir;

struct Embedded {
    folder: TempDir,
    lockgate: Lockgate,
    clock: ManualClock,
}

async fn open(folder: &TempDir, clock: &ManualClock) -> Lockgate {
    let builder = Lockgate::builder(folder.path()).clock(Arc::new(clock.clone()));
    builder.open().await.unwrap()
}

impl Fixture for Embedded {
    type Records = Lockgate;

    fn records(&self) -> &Lockgate {
        &self.lockgate
    }

    fn pass(&mut self, span: Duration) -> bool {
        self.clock.advance(span.as_millis().try_into().unwrap());
        self.lockgate.clock_changed();
        true
    }

    async fn restart(&mut self) -> bool {
        self.lockgate.shutdown().await;
        self.lockgate = open(&self.folder, &self.clock).await;
        true
    }
}

#[tokio::test]
async fn embedded_records_conform() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let lockgate = open(&folder, &clock).await;
    let mut embedded = Embedded {
        folder,
        lockgate,
        clock,
    };
    let not_run = records::run(&mut embedded).await;
    assert_eq!(not_run, <[&str; 0]>::default());
    embedded.lockgate.shutdown().await;
}
