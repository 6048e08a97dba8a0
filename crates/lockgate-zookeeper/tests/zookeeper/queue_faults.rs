//! Queues that share their nodes with Curator's, when requests and answers are lost and sessions end.

use std::{pin::pin, sync::mpsc, time::Duration};

use lockgate_zookeeper::queue::{
    Connection, CuratorQueue, CuratorQueueError, CuratorQueueOptions, ErrorMode, Kind, Place,
};

use crate::{
    faults,
    proxy::{CREATE, DELETE, FOLLOW, LIST, LIST_WITH_STAT, Lose, MULTI, Proxy},
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
    let mut connection = queue.connection();
    proxy.cut();
    connection
        .wait_for(|state| *state == Connection::Suspended)
        .await
        .unwrap();
    connection
        .wait_for(|state| *state == Connection::Lost)
        .await
        .unwrap();
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
    assert_eq!(*connection.borrow(), Connection::Connected);
    taken.done().await.unwrap();
    is_empty(name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_not_listed_for_each_change() {
    let name = "changes";
    let (proxy, queue) = behind_proxy(name).await;
    let direct = server::shared();
    let other = open_at(&direct, options(name, Kind::Delay, locks(name)));
    let other = other.await.unwrap();
    queue.take().await.unwrap().done().await.unwrap();
    let lists = proxy.count(LIST) + proxy.count(LIST_WITH_STAT);
    assert!(lists > 0);
    for number in 0..20 {
        other
            .put(Place::At(1), &[number.to_string()])
            .await
            .unwrap();
        let taken = queue.take().await.unwrap();
        assert_eq!(taken.items, [number.to_string().as_bytes()]);
        taken.done().await.unwrap();
    }
    assert_eq!(proxy.count(LIST) + proxy.count(LIST_WITH_STAT), lists);
    // After a new connection, something may have been missed.
    proxy.cut();
    other.put(Place::At(1), &["missed"]).await.unwrap();
    proxy.mend();
    assert_eq!(queue.take().await.unwrap().items, [b"missed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_older_than_3_6_has_queues_too() {
    let name = "old-server";
    let (proxy, queue) = behind_proxy(name).await;
    proxy.hides(FOLLOW);
    let direct = server::shared();
    let other = open_at(&direct, options(name, Kind::Delay, locks(name)));
    let other = other.await.unwrap();
    queue.take().await.unwrap().done().await.unwrap();
    assert!(proxy.count(FOLLOW) > 0);
    for number in 0..3 {
        let (text, due) = (number.to_string(), now() + 20);
        let items = [&text];
        let (put, taken) = tokio::join!(other.put(Place::At(due), &items), queue.take());
        put.unwrap();
        let taken = taken.unwrap();
        assert_eq!(taken.items, [text.as_bytes()]);
        taken.done().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_takes_items_when_there_is_room() {
    let name = "full";
    let bounded = CuratorQueueOptions {
        max_items: Some(1),
        ..options(name, Kind::Plain, locks(name))
    };
    let direct = server::shared();
    let queue = open_at(&direct, bounded).await.unwrap();
    queue.put(Place::End, &["a"]).await.unwrap();
    let full = queue.put_within(Place::End, &["b"], Duration::ZERO).await;
    assert!(matches!(full, Err(CuratorQueueError::Full(1))), "{full:?}");
    let taken = queue.take().await.unwrap();
    let gauges = queue.gauges().await.unwrap();
    assert_eq!(
        (gauges.nodes, gauges.items, gauges.due, gauges.in_hand),
        (1, 1, 0, 1)
    );
    let putting = {
        let queue = queue.clone();
        tokio::spawn(async move {
            queue
                .put_within(Place::End, &["b"], Duration::from_secs(60))
                .await
        })
    };
    taken.done().await.unwrap();
    putting.await.unwrap().unwrap();
    assert_eq!(queue.take().await.unwrap().items, [b"b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn puts_are_flushed_and_listeners_are_told() {
    let name = "flush";
    let (_proxy, queue) = behind_proxy(name).await;
    let (told, tells) = mpsc::channel();
    queue.on_put(move |name, items| {
        let items: Vec<_> = items.iter().map(|item| item.to_vec()).collect();
        told.send((name.to_owned(), items)).unwrap();
    });
    let items = ["y", "z"];
    let mut put = pin!(queue.put(Place::At(1), &items));
    tokio::select! {
        biased;
        put = &mut put => panic!("{put:?}"),
        flushed = queue.flush(Duration::ZERO) => assert!(!flushed),
    }
    let name = put.await.unwrap();
    assert!(queue.flush(Duration::ZERO).await);
    assert_eq!(
        tells.try_recv().unwrap(),
        (name, vec![b"y".to_vec(), b"z".to_vec()])
    );
    // One that fails is over too, and nobody is told.
    queue.put(Place::At(0), &["?"]).await.unwrap_err();
    assert!(queue.flush(Duration::ZERO).await && tells.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn items_are_removed_by_their_id_unless_somebody_has_them() {
    let name = "remove";
    let direct = server::shared();
    let queue = open_at(&direct, options(name, Kind::Id, locks(name)))
        .await
        .unwrap();
    for id in ["a/1", "a/1", "b", "a/1"] {
        queue.put(Place::Id(id), &[id]).await.unwrap();
    }
    let other = open_at(&direct, options(name, Kind::Id, locks(name)))
        .await
        .unwrap();
    let held = other.take().await.unwrap();
    let mine = queue.take().await.unwrap();
    assert_eq!(queue.remove("a/1").await.unwrap(), 1);
    assert_eq!(queue.remove("none").await.unwrap(), 0);
    for taken in [held, mine] {
        assert_eq!(taken.items, [b"a/1"]);
        taken.done().await.unwrap();
    }
    let taken = queue.take().await.unwrap();
    assert_eq!(taken.items, [b"b"]);
    taken.done().await.unwrap();
    is_empty(name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_fails_is_deleted_where_that_is_the_mode() {
    let name = "delete";
    let deleting = CuratorQueueOptions {
        error_mode: ErrorMode::Delete,
        dead_letters: None,
        ..options(name, Kind::Plain, locks(name))
    };
    let direct = server::shared();
    let queue = open_at(&direct, deleting).await.unwrap();
    queue.put(Place::End, &["x"]).await.unwrap();
    queue.take().await.unwrap().failed().await.unwrap();
    is_empty(name).await;
}

/// 31,000 nodes in each test would be slow; a list of long names is as long.
#[tokio::test(flavor = "multi_thread")]
async fn a_put_is_refused_before_java_clients_cannot_list_the_queue() {
    let name = "long";
    let direct = server::shared();
    let queue = open_at(&direct, options(name, Kind::Id, locks(name)))
        .await
        .unwrap();
    let id = "x".repeat(700_000);
    queue.put(Place::Id(&id), &["x"]).await.unwrap();
    let refused = queue.put(Place::Id(&id), &["x"]).await;
    assert!(
        matches!(refused, Err(CuratorQueueError::ListTooLong(1))),
        "{refused:?}"
    );

    // So many that their lengths are looked at, which differ.
    let name = "longer";
    let queue = open_at(&direct, options(name, Kind::Id, locks(name)))
        .await
        .unwrap();
    let id = "x".repeat(10_000);
    let puts = loop {
        match queue.put(Place::Id(&id), &["x"]).await {
            Ok(_) => queue.put(Place::Id("short"), &["x"]).await.unwrap(),
            Err(CuratorQueueError::ListTooLong(puts)) => break puts,
            Err(other) => panic!("{other}"),
        };
    };
    let children = children(&faults::client().await, "/queues/longer").await;
    assert_eq!(puts as usize, children.len());
    let bytes: usize = children.iter().map(|name| 4 + name.len()).sum();
    assert!((1_030_000..1_048_575 - 88).contains(&bytes), "{bytes}");
}
