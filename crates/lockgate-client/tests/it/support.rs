//! A server of its own for each test, in this process.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use lockgate_client::{Client, Credentials, Method, RemoteQueue, Secret};
use lockgate_core::{
    Clock, HolderName, Leased, ManualClock, Message, QueueName, ReceiveRequest, Sink, Source,
};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
use lockgate_server::{
    AccessKey, AccessKeys, Authentication, Grant, Names, RunReport, Server, ServerOptions, Verb,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{sync::oneshot, task::JoinHandle};

const KEY_ID: &str = "CLIENT";
const SECRET: &str = "secret of the client";

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) engine: Engine,
    pub(crate) clock: ManualClock,
    access_keys: Option<AccessKeys>,
    shutdown: oneshot::Sender<()>,
    run: JoinHandle<RunReport>,
}

impl TestServer {
    /// Over the data in `folder`; at a free port unless `change` says otherwise.
    pub(crate) async fn start(folder: &Path, change: impl FnOnce(&mut ServerOptions)) -> Self {
        Self::start_at(folder, ManualClock::default(), change).await
    }

    /// The same, by that clock: a restart goes on in its time.
    pub(crate) async fn start_at(
        folder: &Path,
        clock: ManualClock,
        change: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        Self {
            clock: clock.clone(),
            ..Self::start_by(folder, Arc::new(clock), change).await
        }
    }

    /// The same, by a clock that is none of the server's own.
    pub(crate) async fn start_by(
        folder: &Path,
        time: Arc<dyn Clock>,
        change: impl FnOnce(&mut ServerOptions),
    ) -> Self {
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
            Engine::start(log, time, EngineOptions::default())
                .unwrap()
                .0
        });
        let engine = engine.await.unwrap();
        let mut options = ServerOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            ..ServerOptions::default()
        };
        change(&mut options);
        let server = Server::bind(options, engine.clone()).await.unwrap();
        let address = server.local_addr();
        let access_keys = server.access_keys();
        let (shutdown, called) = oneshot::channel();
        let run = tokio::spawn(server.run(async {
            let _ = called.await;
        }));
        Self {
            address,
            engine,
            clock: ManualClock::default(),
            access_keys,
            shutdown,
            run,
        }
    }

    /// One with plain options, and its folder.
    pub(crate) async fn plain() -> (Self, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        (Self::start(folder.path(), |_| ()).await, folder)
    }

    pub(crate) fn access_keys(&self) -> &AccessKeys {
        self.access_keys.as_ref().unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        client_of(self.address)
    }

    /// One that signs, for a server that was started with [`with_access_key`].
    pub(crate) async fn signing_client(&self) -> Client {
        let credentials = Credentials::new(KEY_ID, Secret::new(SECRET));
        let builder = Client::builder(format!("http://{}", self.address).parse().unwrap());
        builder.credentials(credentials).build().await.unwrap()
    }

    pub(crate) async fn stop(self) {
        let _ = self.shutdown.send(());
        assert!(self.run.await.unwrap().engine_stopped);
    }
}

/// Lets nobody in but the signing client.
pub(crate) fn with_access_key(options: &mut ServerOptions) {
    options.authentication = Authentication::AccessKeys(vec![AccessKey {
        id: KEY_ID.to_owned(),
        secret: Secret::new(SECRET),
        grants: vec![
            Grant {
                on: Names::Queues("*".to_owned()),
                verbs: Verb::ALL.to_vec(),
            },
            Grant {
                on: Names::Records("*".to_owned()),
                verbs: vec![Verb::Read, Verb::Manage],
            },
            Grant {
                on: Names::Ledgers("*".to_owned()),
                verbs: Verb::ALL.to_vec(),
            },
            Grant {
                on: Names::Exchanges("*".to_owned()),
                verbs: vec![Verb::Read, Verb::Send, Verb::Manage, Verb::Purge],
            },
        ],
    }]);
}

pub(crate) fn client_of(address: SocketAddr) -> Client {
    let endpoint = format!("http://{address}").parse().unwrap();
    Client::builder(endpoint).build_blocking().unwrap()
}

/// Makes a queue, in which unique ids count, and opens it.
pub(crate) async fn create(client: &Client, name: &str) -> RemoteQueue {
    let queue = json!({"name": name, "settings": {"dedup_window_ms": 300_000}});
    let _made: Value = client
        .call(Method::POST, "/queues", Some(&queue))
        .await
        .unwrap();
    client.queue(&QueueName::new(name).unwrap()).await.unwrap()
}

pub(crate) fn request(max: usize, wait: Duration) -> ReceiveRequest {
    ReceiveRequest {
        max,
        key_max: None,
        wait,
        lease: None,
        holder: HolderName::new("test").unwrap(),
    }
}

pub(crate) async fn send(queue: &RemoteQueue, body: &str) {
    let sent = queue.send_batch(vec![Message::new(body.to_owned())]).await;
    sent.into_iter().next().unwrap().unwrap();
}

pub(crate) async fn take(
    queue: &RemoteQueue,
    max: usize,
    wait: Duration,
) -> Vec<Leased<<RemoteQueue as Source>::Receipt>> {
    queue.receive_batch(request(max, wait)).await.unwrap()
}
