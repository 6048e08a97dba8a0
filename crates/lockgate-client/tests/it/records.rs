//! The records of a server.

use std::time::Duration;

use lockgate_client::Client;
use lockgate_conformance::records::{self, Fixture};
use lockgate_core::{RecordName, Records, RecordsError, WatchRecord};
use tempfile::TempDir;

use crate::support::{TestServer, with_access_key};

struct Remote {
    folder: TempDir,
    /// `None` while it is restarted.
    server: Option<TestServer>,
    client: Client,
}

impl Remote {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = TestServer::start(folder.path(), with_access_key).await;
        let client = server.signing_client().await;
        Self {
            folder,
            server: Some(server),
            client,
        }
    }
}

impl Fixture for Remote {
    type Records = Client;

    fn records(&self) -> &Client {
        &self.client
    }

    fn pass(&mut self, span: Duration) -> bool {
        let server = self.server.as_ref().unwrap();
        server.clock.advance(span.as_millis().try_into().unwrap());
        server.engine.clock_changed();
        true
    }

    async fn restart(&mut self) -> bool {
        let before = self.server.take().unwrap();
        let clock = before.clock.clone();
        before.stop().await;
        let server = TestServer::start_at(self.folder.path(), clock, with_access_key).await;
        self.client = server.signing_client().await;
        self.server = Some(server);
        true
    }
}

#[tokio::test]
async fn the_records_of_a_server_conform() {
    let mut remote = Remote::start().await;
    let not_run = records::run(&mut remote).await;
    assert_eq!(not_run, <[&str; 0]>::default());
    remote.server.unwrap().stop().await;
}

/// The server ends all waits when it stops: the caller learns that the record was not looked at to the end.
#[tokio::test]
async fn a_watch_of_a_server_that_stops_ends() {
    let Remote { server, client, .. } = Remote::start().await;
    let watch = WatchRecord {
        name: RecordName::new("a").unwrap(),
        seen: None,
        wait: Duration::from_secs(3600),
    };
    let name = watch.name.clone();
    let watched = tokio::spawn({
        let client = client.clone();
        async move { client.watch(watch).await }
    });
    // Requests on one connection each: the watch is there once the server counts one that waits.
    let server = server.unwrap();
    while server.engine.metrics().waiters == 0 {
        assert_eq!(client.get(name.clone()).await.unwrap(), None);
    }
    server.stop().await;
    let watched = watched.await.unwrap();
    let ended = matches!(watched, Err(RecordsError::Unavailable { .. }));
    assert!(ended, "{watched:?}");
}
