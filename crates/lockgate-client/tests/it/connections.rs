//! Connections: reused, lost, dropped, many.

use std::{
    collections::BTreeSet,
    io::{BufReader, Write as _},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use lockgate_client::Method;
use lockgate_core::{Fate, Message, Settlement, Sink as _, Source as _};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, UnboundedReceiver},
    task::JoinSet,
    time::timeout,
};

use crate::{
    canned::{self, answer},
    support::{TestServer, client_of, create, request, send, take},
};

/// Nothing in these tests takes this long; a test that waits for it has failed. A client gives up later.
const FAR: Duration = Duration::from_secs(30);

/// What a proxy has seen.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// Bytes of a request, which the server has now.
    Asked,
    /// The end of a client's side, or of both where the answer was cut off.
    Ended,
}

/// Stands between clients and a server. `cut`: it closes where the server begins to answer a POST.
async fn proxy(server: SocketAddr, cut: bool) -> (SocketAddr, UnboundedReceiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (seen, sees) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(server).await.unwrap();
            let seen = seen.clone();
            tokio::spawn(async move {
                let _over = pass_on(client, server, cut, &seen).await;
                let _nobody_asks = seen.send(Seen::Ended);
            });
        }
    });
    (address, sees)
}

async fn pass_on(
    mut client: TcpStream,
    mut server: TcpStream,
    cut: bool,
    seen: &mpsc::UnboundedSender<Seen>,
) -> std::io::Result<()> {
    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
    let mut is_post = false;
    loop {
        tokio::select! {
            read = client.read(&mut asked) => match read? {
                0 => return Ok(()),
                read => {
                    is_post = asked.starts_with(b"POST ");
                    server.write_all(&asked[..read]).await?;
                    let _nobody_asks = seen.send(Seen::Asked);
                }
            },
            read = server.read(&mut answered) => match read? {
                0 => return Ok(()),
                _ if cut && is_post => return Ok(()),
                read => client.write_all(&answered[..read]).await?,
            },
        }
    }
}

#[tokio::test]
async fn a_restart_between_calls_is_not_noticed() {
    let (server, folder) = TestServer::plain().await;
    let address = server.address;
    let queue = create(&server.client(), "q").await;
    send(&queue, "a").await;
    let leased = take(&queue, 1, Duration::ZERO).await.remove(0);
    server.stop().await;
    let server = TestServer::start(folder.path(), |options| options.listen = address).await;
    let ack = vec![(leased.receipt, Settlement::Ack)];
    queue.settle_batch(ack).await.remove(0).unwrap();
    send(&queue, "b").await;
    assert_eq!(take(&queue, 2, Duration::ZERO).await[0].message.body, "b");
    server.stop().await;
}

/// The runtime has one thread, which does not come to look at the connection before it is used again.
#[test]
fn what_was_not_sent_on_a_closed_connection_goes_out_on_a_new_one() {
    const CALLS: usize = 3;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client_of(listener.local_addr().unwrap());
    let (close, to_close) = std::sync::mpsc::channel();
    let (closed, is_closed) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        for _ in 0..CALLS {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let (line, _) = canned::request(&mut reader).unwrap();
            assert!(line.starts_with("POST "), "{line}");
            let answered = reader.get_mut().write_all(answer(200, "{}").as_bytes());
            answered.unwrap();
            to_close.recv().unwrap();
            drop(reader);
            closed.send(()).unwrap();
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for _ in 0..CALLS {
        runtime.block_on(async {
            let call = client.call::<Value>(Method::POST, "/queues", None::<&()>);
            call.await.unwrap();
        });
        close.send(()).unwrap();
        is_closed.recv().unwrap();
    }
    server.join().unwrap();
}

#[tokio::test]
async fn a_lost_answer_leaves_the_outcome_unknown() {
    let (server, _folder) = TestServer::plain().await;
    let direct = create(&server.client(), "q").await;
    let (address, _sees) = proxy(server.address, true).await;
    let queue = client_of(address).queue(direct.name()).await.unwrap();
    let sent = queue.send_batch(vec![Message::new("a")]).await.remove(0);
    assert_eq!(sent.unwrap_err().fate, Fate::Unknown);
    // This time it was carried out.
    let leased = take(&direct, 1, Duration::ZERO).await.remove(0);
    assert_eq!(leased.message.body, "a");
    let ack = vec![(leased.receipt.clone(), Settlement::Ack)];
    let settled = queue.settle_batch(ack.clone()).await.remove(0);
    assert_eq!(settled.unwrap_err().fate, Fate::Unknown);
    let settled = direct.settle_batch(ack).await.remove(0);
    assert_eq!(settled.unwrap_err().fate, Fate::Stale);
    server.stop().await;
}

#[tokio::test]
async fn a_dropped_receive_gives_its_leases_back() {
    let (server, _folder) = TestServer::plain().await;
    let direct = create(&server.client(), "q").await;
    let (address, mut sees) = proxy(server.address, false).await;
    let queue = client_of(address).queue(direct.name()).await.unwrap();
    while sees.try_recv().is_ok() {}
    let wait = queue.source_capabilities().wait_max;
    {
        let mut receive = Box::pin(queue.receive_batch(request(1, wait)));
        tokio::select! {
            received = &mut receive => panic!("there is nothing: {received:?}"),
            seen = sees.recv() => assert_eq!(seen, Some(Seen::Asked)),
        }
    }
    // The connection ends with the future, and with it the wait at the server.
    let ended = timeout(FAR, sees.recv()).await;
    assert_eq!(ended.unwrap(), Some(Seen::Ended));
    send(&direct, "a").await;
    let leased = take(&direct, 1, wait).await;
    assert_eq!((leased.len(), leased[0].attempt), (1, 1));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_receive_and_settle_at_the_same_time() {
    const MESSAGES: usize = 600;
    let (server, _folder) = TestServer::plain().await;
    let queue = create(&server.client(), "q").await;
    let left = Arc::new(AtomicUsize::new(MESSAGES));
    let mut work = JoinSet::new();
    for sender in 0..6 {
        let queue = queue.clone();
        work.spawn(async move {
            let messages = (0..MESSAGES / 6).map(|at| Message::new(format!("{sender}-{at}")));
            for sent in queue.send_batch(messages.collect()).await {
                sent.unwrap();
            }
            Vec::new()
        });
    }
    // More than idle connections are kept.
    for _ in 0..40 {
        let (queue, left) = (queue.clone(), left.clone());
        work.spawn(async move {
            let mut bodies = Vec::new();
            while left.load(SeqCst) > 0 {
                let leased = take(&queue, 7, Duration::ZERO).await;
                let settles = |part: &[lockgate_core::Leased<_>]| {
                    let ack = |leased: &lockgate_core::Leased<lockgate_client::Receipt>| {
                        (leased.receipt.clone(), Settlement::Ack)
                    };
                    part.iter().map(ack).collect::<Vec<_>>()
                };
                let (one, other) = leased.split_at(leased.len() / 2);
                for part in [one, other].into_iter().filter(|part| !part.is_empty()) {
                    for settled in queue.settle_batch(settles(part)).await {
                        settled.unwrap();
                    }
                }
                left.fetch_sub(leased.len(), SeqCst);
                bodies.extend(leased.into_iter().map(|leased| leased.message.body));
            }
            bodies
        });
    }
    let bodies: Vec<_> = work.join_all().await.into_iter().flatten().collect();
    assert_eq!(bodies.len(), MESSAGES);
    assert_eq!(bodies.iter().collect::<BTreeSet<_>>().len(), MESSAGES);
    let client = server.client();
    let asked = client.call::<Value>(Method::GET, "/queues/q", None::<&()>);
    let counts = asked.await.unwrap()["counts"].clone();
    assert_eq!(
        (&counts["ready"], &counts["in_flight"]),
        (&0.into(), &0.into())
    );
    server.stop().await;
}
