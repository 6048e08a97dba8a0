//! A queue of a server as a sink and a source.

use std::time::Duration;

use lockgate_client::{Client, Method, RemoteQueue};
use lockgate_conformance::transport::{self, Fixture};
use serde_json::Value;

use crate::support::{TestServer, create, with_access_key};

struct Remote {
    server: TestServer,
    client: Client,
    made: usize,
}

impl Fixture for Remote {
    type Queue = RemoteQueue;

    async fn queue(&mut self, keyed: bool) -> RemoteQueue {
        self.made += 1;
        let suffix = if keyed { ".fifo" } else { "" };
        create(&self.client, &format!("queue-{}{suffix}", self.made)).await
    }

    async fn delete(&mut self, queue: &RemoteQueue) -> bool {
        let target = format!("/queues/{}", queue.name());
        let deleted = self
            .client
            .call::<Value>(Method::DELETE, &target, None::<&()>);
        deleted.await.unwrap();
        true
    }

    fn pass(&mut self, span: Duration) -> bool {
        let span = span.as_millis().try_into().unwrap();
        self.server.clock.advance(span);
        self.server.engine.clock_changed();
        true
    }
}

async fn run(server: TestServer, client: Client) {
    let mut remote = Remote {
        server,
        client,
        made: 0,
    };
    let not_run = transport::run(&mut remote).await;
    assert_eq!(not_run, <[&str; 0]>::default());
    remote.server.stop().await;
}

#[tokio::test]
async fn a_remote_queue_conforms() {
    let (server, _folder) = TestServer::plain().await;
    let client = server.client();
    run(server, client).await;
}

#[tokio::test]
async fn a_remote_queue_conforms_where_requests_are_signed() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), with_access_key).await;
    let client = server.signing_client().await;
    run(server, client).await;
}
