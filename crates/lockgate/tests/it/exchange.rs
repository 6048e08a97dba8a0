//! The exchanges of an embedded shard.

use lockgate::{
    Error, ErrorKind, ExchangeName, Key, Lockgate, Message, Rejection, RoutingKey,
    exchange::{
        BindTo, BindingOptions, Exchange, ExchangeError, ExchangeKind, KeyFrom, ListExchanges,
        Pattern, TopicPattern, Unroutable,
    },
};

use super::{bodies, open, take};

fn exchange(lockgate: &Lockgate, name: &str) -> Exchange {
    lockgate.exchange(ExchangeName::new(name).unwrap())
}

fn topic(text: &str) -> Pattern {
    Pattern::Topic(TopicPattern::new(text).unwrap())
}

fn routing_key(text: &str) -> RoutingKey {
    RoutingKey::new(text).unwrap()
}

fn why(error: Error) -> (ErrorKind, Rejection) {
    let kind = error.kind();
    match error {
        Error::Engine(lockgate::EngineError::Rejected(rejection)) => (kind, rejection),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn all_queues_get_a_message_or_none_also_after_a_restart() {
    let (folder, lockgate) = open().await;
    let keyed = lockgate.queue("keyed").keyed().create().await.unwrap();
    let plain = lockgate.queue("plain").quota_messages(2);
    let plain = plain.create().await.unwrap();
    let events = exchange(&lockgate, "events");
    let created = events.create(ExchangeKind::Topic, Unroutable::Reject);
    assert!(!created.await.unwrap().existed);
    let options = BindingOptions {
        key_from: Some(KeyFrom::RoutingKey),
        ..BindingOptions::default()
    };
    for queue in [&keyed, &plain] {
        let to = BindTo::Queue(queue.name().clone());
        let bound = events.bind(to, topic("orders.#"), options.clone()).await;
        assert!(bound.unwrap().changed);
    }
    let message = || Message::new("x").with_key(Key::new("k").unwrap());
    let published = events.publish(routing_key("orders.eu"), message()).await;
    assert_eq!(published.unwrap().copies.len(), 2);
    lockgate.shutdown().await;
    drop((keyed, plain, events, lockgate));

    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let [keyed, plain] = ["keyed", "plain"].map(|name| lockgate.queue(name).open().unwrap());
    let events = exchange(&lockgate, "events");
    let results = events
        .publish_all([
            (routing_key("orders.us"), message()),
            (routing_key("users"), message()),
            (routing_key("orders.us"), message()),
        ])
        .await
        .unwrap();
    assert_eq!(results[0].as_ref().unwrap().copies.len(), 2);
    let unroutable = results[1].as_ref().unwrap_err();
    assert!(matches!(
        unroutable,
        Rejection::Exchange(ExchangeError::Unroutable { .. })
    ));
    // The second queue is full, and so the first one has no third message.
    assert!(matches!(results[2], Err(Rejection::PublishRefused { .. })));
    let full = events.publish(routing_key("orders"), message()).await;
    let (kind, _) = why(full.unwrap_err());
    assert_eq!(kind, ErrorKind::Retry, "there may be room later");
    let deliveries = take(&keyed, 10).await;
    assert_eq!(bodies(&deliveries), ["x", "x"]);
    let keys: Vec<_> = deliveries
        .iter()
        .map(|it| it.key().unwrap().as_str())
        .collect();
    assert_eq!(keys, ["orders.eu", "orders.us"], "the binding says which");
    assert_eq!(take(&plain, 10).await.len(), 2);
    let described = events.describe().await.unwrap();
    assert_eq!((described.bindings, described.counts.copies), (2, 4));
    let route = events.explain(routing_key("orders"), &message(), 1).await;
    let route = route.unwrap();
    assert_eq!((route.bindings.len(), route.more, route.queues), (1, 1, 2));
    lockgate.shutdown().await;
}

#[tokio::test]
async fn what_exchanges_refuse_is_told() {
    let (_folder, lockgate) = open().await;
    let [one, other] = ["one", "other"].map(|name| exchange(&lockgate, name));
    let is_missing = |error| {
        let (kind, rejection) = why(error);
        assert_eq!(kind, ErrorKind::Input);
        matches!(
            rejection,
            Rejection::Exchange(ExchangeError::NotFound { .. })
        )
    };
    assert!(is_missing(one.describe().await.unwrap_err()));
    for exchange in [&one, &other] {
        let made = exchange.create(ExchangeKind::Fanout, Unroutable::Drop);
        made.await.unwrap();
    }
    let to = |exchange: &Exchange| BindTo::Exchange(exchange.name().clone());
    let bind = |from: &Exchange, target: &Exchange| {
        let (from, to) = (from.clone(), to(target));
        async move {
            from.bind(to, Pattern::Everything, BindingOptions::default())
                .await
        }
    };
    bind(&one, &other).await.unwrap();
    let (_, cycle) = why(bind(&other, &one).await.unwrap_err());
    assert!(matches!(
        cycle,
        Rejection::Exchange(ExchangeError::Cycle { .. })
    ));
    let published = one.publish(RoutingKey::default(), Message::new("")).await;
    assert!(published.unwrap().dropped);
    let (_, used) = why(other.delete(false).await.unwrap_err());
    assert!(matches!(
        used,
        Rejection::Exchange(ExchangeError::Used { .. })
    ));
    assert_eq!(one.bindings(None, 10).await.unwrap().bindings.len(), 1);
    assert!(one.unbind(to(&other), Pattern::Everything).await.unwrap());
    one.set_unroutable(Unroutable::Alternate(other.name().clone()))
        .await
        .unwrap();
    other.delete(true).await.unwrap();
    assert!(is_missing(other.delete(true).await.unwrap_err()));
    assert_eq!(one.describe().await.unwrap().unroutable, Unroutable::Reject);
    let list = ListExchanges {
        prefix: String::new(),
        after: None,
        limit: 10,
    };
    let page = lockgate.list_exchanges(list).await.unwrap();
    assert_eq!((page.exchanges.len(), page.next), (1, None));
    lockgate.shutdown().await;
}

/// What is acknowledged leaves exactly if what is published is accepted.
#[tokio::test]
async fn a_transaction_acknowledges_and_publishes() {
    let (_folder, lockgate) = open().await;
    let work = lockgate.queue("work").create().await.unwrap();
    let small = lockgate.queue("small").quota_messages(1);
    let small = small.create().await.unwrap();
    let events = exchange(&lockgate, "events");
    let created = events.create(ExchangeKind::Topic, Unroutable::Reject);
    created.await.unwrap();
    let to = BindTo::Queue(small.name().clone());
    let bound = events.bind(to, topic("#"), BindingOptions::default());
    bound.await.unwrap();
    work.send(Message::new("1")).await.unwrap();
    let [delivery] = <[_; 1]>::try_from(take(&work, 1).await).unwrap();
    let transaction = |delivery, times| {
        let mut transaction = lockgate.transact().ack(delivery);
        for _ in 0..times {
            transaction = transaction.publish(&events, routing_key("a.b"), Message::new("2"));
        }
        transaction.send(&work, Message::new("3"))
    };
    let refused = transaction(delivery, 2).commit().await.unwrap_err();
    // The queue may have room later.
    assert_eq!(refused.kind(), ErrorKind::Retry);
    assert_eq!(small.describe().await.unwrap().counts.ready, 0);
    let [delivery] = <[_; 1]>::try_from(refused.deliveries).unwrap();
    let done = transaction(delivery, 1).commit().await.unwrap();
    assert_eq!((done.sent.len(), done.published.len()), (1, 1));
    assert_eq!(done.published[0].copies[0].queue, *small.name());
    assert_eq!(bodies(&take(&small, 1).await), ["2"]);
    assert_eq!(bodies(&take(&work, 2).await), ["3"]);
    lockgate.shutdown().await;
}
