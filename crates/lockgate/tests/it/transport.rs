//! An embedded queue as a sink and a source.

use std::{sync::Arc, time::Duration};

use lockgate::{Lockgate, ManualClock, Queue};
use lockgate_conformance::transport::{self, Fixture};
use tempfile::TempDir;

struct Embedded {
    _folder: TempDir,
    lockgate: Lockgate,
    clock: ManualClock,
    made: usize,
}

impl Fixture for Embedded {
    type Queue = Queue;

    async fn queue(&mut self, keyed: bool) -> Queue {
        self.made += 1;
        let mut queue = self.lockgate.queue(&format!("queue-{}", self.made));
        if keyed {
            queue = queue.keyed();
        }
        queue.create().await.unwrap()
    }

    async fn delete(&mut self, queue: &Queue) -> bool {
        queue.delete().await.unwrap();
        true
    }

    fn pass(&mut self, span: Duration) -> bool {
        self.clock.advance(span.as_millis().try_into().unwrap());
        self.lockgate.clock_changed();
        true
    }
}

#[tokio::test]
async fn an_embedded_queue_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let clock = ManualClock::default();
    let lockgate = Lockgate::builder(folder.path())
        .clock(Arc::new(clock.clone()))
        .open()
        .await
        .unwrap();
    let mut embedded = Embedded {
        _folder: folder,
        lockgate,
        clock,
        made: 0,
    };
    let not_run = transport::run(&mut embedded).await;
    assert_eq!(not_run, <[&str; 0]>::default());
    embedded.lockgate.shutdown().await;
}
