//! Queues that share their nodes with Curator's, when requests and answers are lost and sessions end.

use lockgate_zookeeper::queue::{CuratorQueue, CuratorQueueError, Kind, Place};

use crate::{
    faults,
    proxy::{CREATE, DELETE, Lose, MULTI, Proxy},
    queues::{children, locks, now, open_at, options},
    server,
};

/// A queue behind a proxy, with an item.
async fn behind_proxy(name: &str) -> (Proxy, CuratorQueue) {
    let proxy = Proxy::start(server::shared().strip_prefix("zk://").unwrap()).await;
    let queue = open_at(&proxy.url, options(name, Kind::Delay, locks(name)));
    let queue = queue.await.unwrap();
    queue.put(Place::At(1), &["x"]).await.unwrap();
    (proxy, queue)
}

async fn is_empty(name: &str) {
    let client = faults::client().await;
    assert!(
        children(&client, &format!("/queues/{name}"))
            .await
            .is_empty()
    );
    let locks = format!("/queues/{name}-locks");
    assert!(children(&client, &locks).await.is_empty());
}

/// A lock that stayed would keep the item from all for as long as the session lives, which is the one that takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_is_lost_is_let_go() {
    let name = "lost-claim";
    let (proxy, queue) = behind_proxy(name).await;
    for lose in [CREATE, MULTI]
        .into_iter()
        .flat_map(|of| [Lose::Answer(of), Lose::Request(of)])
    {
        proxy.lose(lose);
        let taken = queue.take().await.unwrap();
        assert!(proxy.has_lost());
        assert_eq!(taken.items, [b"x"]);
        taken.done().await.unwrap();
        is_empty(name).await;
        queue.put(Place::At(1), &["x"]).await.unwrap();
    }
}

/// Another process takes it while the session lives that let it go.
#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_is_dropped_is_let_go_though_the_request_is_lost() {
    let name = "lost-release";
    let (proxy, queue) = behind_proxy(name).await;
    let direct = server::shared();
    let other = open_at(&direct, options(name, Kind::Delay, locks(name)));
    let other = other.await.unwrap();
    for lose in [Lose::Request(DELETE), Lose::Answer(DELETE)] {
        let taken = queue.take().await.unwrap();
        proxy.lose(lose);
        drop(taken);
        let taken = other.take().await.unwrap();
        assert!(proxy.has_lost());
        assert_eq!(taken.items, [b"x"]);
    }
    for lose in [CREATE, MULTI].map(Lose::Answer) {
        proxy.lose(lose);
        tokio::select! {
            taken = queue.take() => panic!("{taken:?}"),
            () = async { while !proxy.has_lost() { tokio::task::yield_now().await } } => {}
        }
        assert_eq!(other.take().await.unwrap().items, [b"x"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_is_done_though_the_answer_is_lost() {
    let name = "lost-done";
    let (proxy, queue) = behind_proxy(name).await;
    for lose in [Lose::Request(MULTI), Lose::Answer(MULTI)] {
        let taken = queue.take().await.unwrap();
        proxy.lose(lose);
        taken.done().await.unwrap();
        assert!(proxy.has_lost());
        is_empty(name).await;
        queue.put(Place::At(1), &["x"]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_put_again_once_though_the_answer_is_lost() {
    let name = "lost-failed";
    let (proxy, queue) = behind_proxy(name).await;
    for lose in [Lose::Request(MULTI), Lose::Answer(MULTI)] {
        let taken = queue.take().await.unwrap();
        proxy.lose(lose);
        let failed = taken.failed().await;
        assert!(proxy.has_lost());
        match lose {
            Lose::Request(_) => failed.unwrap(),
            Lose::Answer(_) => assert!(matches!(failed, Err(CuratorQueueError::Unknown(_)))),
        }
    }
    let taken = queue.take().await.unwrap();
    assert_eq!(
        (taken.attempts, &taken.items[..]),
        (2, &[b"x".to_vec()][..])
    );
    taken.done().await.unwrap();
    is_empty(name).await;
}

/// The next take begins a new session, and what the ended one held comes again.
#[tokio::test(flavor = "multi_thread")]
async fn a_take_goes_on_in_a_new_session() {
    let name = "lost-session";
    let (proxy, queue) = behind_proxy(name).await;
    let held = queue.take().await.unwrap();
    let taking = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.take().await })
    };
    proxy.cut();
    let direct = server::shared();
    let other = open_at(&direct, options(name, Kind::Delay, locks(name)));
    let other = other.await.unwrap();
    let again = other.take().await.unwrap();
    assert_eq!(again.name, held.name);
    proxy.mend();
    let error = held.done().await.unwrap_err();
    assert!(matches!(error, CuratorQueueError::NotHeld), "{error}");
    again.done().await.unwrap();
    let put = now();
    other.put(Place::At(put), &["y"]).await.unwrap();
    let taken = match taking.await.unwrap() {
        Ok(taken) => taken,
        // No server answered for as long as a session has to begin.
        Err(CuratorQueueError::Unavailable(_)) => queue.take().await.unwrap(),
        Err(other) => panic!("{other}"),
    };
    assert_eq!(taken.items, [b"y"]);
    taken.done().await.unwrap();
    is_empty(name).await;
}
