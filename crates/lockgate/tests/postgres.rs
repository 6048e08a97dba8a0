//! The facade over a PostgreSQL database: `./scripts/test --only postgres`.

use lockgate::{Key, Lockgate, Message, OpenError, Status};

fn url() -> String {
    std::env::var("LOCKGATE_TEST_POSTGRES").expect("scripts/services run sets it")
}

#[tokio::test]
async fn queues_live_in_a_database_and_go_to_who_opens_them_last() {
    let shard = format!("facade-{}", std::process::id());
    let first = Lockgate::postgres(&url(), &shard).open().await.unwrap();
    let orders = first.queue("orders").keyed().create().await.unwrap();
    for body in ["post", "delete"] {
        let message = Message::new(body).with_key(Key::new("user-42").unwrap());
        orders.send(message).await.unwrap();
    }

    // Not shut down: it is deposed.
    let second = Lockgate::postgres(&url(), &shard).open().await.unwrap();
    assert_eq!(second.start_report().messages, 2);
    let refused = orders.send(Message::new("late").with_key(Key::new("user-42").unwrap()));
    refused.await.unwrap_err();
    first.engine().stopped().await;
    assert!(matches!(first.status(), Status::Stopped { .. }));
    let orders = second.queue("orders").keyed().create().await.unwrap();
    let deliveries = orders.receive().max(10).await.unwrap();
    let bodies: Vec<_> = deliveries
        .iter()
        .map(|delivery| &delivery.body()[..])
        .collect();
    assert_eq!(bodies, [b"post".as_slice(), b"delete"]);
    for delivery in deliveries {
        delivery.ack().await.unwrap();
    }
    second.shutdown().await;
}

#[tokio::test]
async fn what_is_wrong_is_told_without_the_password() {
    let open = async |url: String| {
        let builder = Lockgate::postgres(&url, "shard");
        assert!(!format!("{builder:?}").contains("hidden"), "{builder:?}");
        let error = builder.open().await.unwrap_err();
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text += &format!(": {cause}");
            source = cause.source();
        }
        assert!(!text.contains("hidden"), "{text}");
        (error, text)
    };
    let (error, text) = open("postgres://u:hidden@127.0.0.1/d?sslmode=never".to_owned()).await;
    assert!(matches!(error, OpenError::Database { .. }));
    assert!(text.contains("sslmode=never is none of"), "{text}");
    open("postgres://u:hidden@127.0.0.1:1/d".to_owned()).await;
    open("postgres://u:hidden@[".to_owned()).await;
}
