//! A server of its own for each test, in this process, and the SDK's client of it.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use aws_sdk_sqs::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region},
    types::QueueAttributeName,
};
use lockgate_core::{
    Clock, HolderName, Leased, Level, ManualClock, Message, ReceiveRequest, Sink as _, Source as _,
};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
use lockgate_server::{RunReport, Server, ServerOptions};
use lockgate_sqs::{Receipt, SqsOptions, SqsQueue};
use tokio::{sync::oneshot, task::JoinHandle};

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    shutdown: oneshot::Sender<()>,
    run: JoinHandle<RunReport>,
}

impl TestServer {
    /// Over the data in `folder`.
    pub(crate) async fn start(folder: &Path, listen: &str, clock: Arc<dyn Clock>) -> Self {
        let path = folder.join("data");
        let engine = tokio::task::spawn_blocking(move || {
            let disk = FolderDisk::open(path).unwrap();
            // How full the disk of whoever tests is, is none of a test's business.
            let options = LocalLogOptions {
                low_bytes: Some(1),
                free_bytes_min: 1,
                ..LocalLogOptions::default()
            };
            let log = LocalLog::open(Arc::new(disk), options).unwrap();
            let options = EngineOptions::default();
            Engine::start(log, clock, options).unwrap().0
        });
        let engine = engine.await.unwrap();
        let options = ServerOptions {
            listen: listen.parse().unwrap(),
            ..ServerOptions::default()
        };
        let server = Server::bind(options, engine.clone()).await.unwrap();
        let address = server.local_addr();
        let (shutdown, called) = oneshot::channel();
        let run = tokio::spawn(server.run(async {
            let _ = called.await;
        }));
        Self {
            address,
            engine,
            shutdown,
            run,
        }
    }

    /// One whose time passes only when it is told.
    pub(crate) async fn manual(folder: &Path) -> (Self, ManualClock) {
        let clock = ManualClock::default();
        let server = Self::start(folder, "127.0.0.1:0", Arc::new(clock.clone())).await;
        (server, clock)
    }

    pub(crate) fn client(&self) -> Client {
        client_of(self.address)
    }

    pub(crate) async fn stop(self) {
        let _ = self.shutdown.send(());
        assert!(self.run.await.unwrap().engine_stopped);
    }
}

/// As a user makes it, without TLS.
pub(crate) fn client_of(address: SocketAddr) -> Client {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(format!("http://{address}"))
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("any", "any", None, None, "test"))
        .http_client(aws_smithy_http_client::Builder::new().build_http());
    Client::from_conf(config.build())
}

/// Makes a queue and opens it.
pub(crate) async fn create(
    client: &Client,
    name: &str,
    attributes: &[(QueueAttributeName, &str)],
) -> SqsQueue {
    let mut call = client.create_queue().queue_name(name);
    if name.ends_with(".fifo") {
        call = call.attributes(QueueAttributeName::FifoQueue, "true");
    }
    for (name, value) in attributes {
        call = call.attributes(name.clone(), *value);
    }
    let url = call.send().await.unwrap().queue_url.unwrap();
    let options = SqsOptions {
        level_max: Level::Disk,
        ..SqsOptions::default()
    };
    let queue = SqsQueue::open_with(client.clone(), url, options).await;
    queue.unwrap()
}

pub(crate) fn request(max: usize) -> ReceiveRequest {
    ReceiveRequest {
        max,
        key_max: None,
        wait: Duration::ZERO,
        lease: None,
        holder: HolderName::new("test").unwrap(),
    }
}

pub(crate) async fn send(queue: &SqsQueue, message: Message) {
    queue.send_batch(vec![message]).await.remove(0).unwrap();
}

pub(crate) async fn take_one(queue: &SqsQueue) -> Leased<Receipt> {
    let mut received = queue.receive_batch(request(1)).await.unwrap();
    assert_eq!(received.len(), 1);
    received.remove(0)
}
