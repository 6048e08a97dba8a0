//! What is refused, and what it says.

use lockgate::{
    EngineError, Error, ErrorKind, ExchangeName, LocalLogOptions, Lockgate, Message, OpenError,
    QueueId, QueueName, Rejection, RestoreError, ShardId, StartError, Status, StopReason,
};

use crate::{LONG, bodies, open, take};

#[tokio::test]
async fn a_folder_that_is_open_is_refused_with_its_name() {
    let (folder, lockgate) = open().await;
    let error = Lockgate::open(folder.path()).await.unwrap_err();
    assert!(matches!(error, OpenError::Log { .. }), "{error:?}");
    let text = format!("{:#}", anyhow::Error::from(error));
    assert!(text.contains("in use"), "{text}");
    assert!(text.contains(folder.path().to_str().unwrap()), "{text}");
    lockgate.shutdown().await;
    Lockgate::open(folder.path())
        .await
        .expect("free again")
        .shutdown()
        .await;
}

#[tokio::test]
async fn a_path_that_is_no_folder_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Lockgate::open(file.path()).await.unwrap_err();
    assert!(matches!(error, OpenError::Folder { .. }), "{error:?}");
    let wrong = LocalLogOptions {
        segment_bytes: 1,
        ..LocalLogOptions::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let refused = Lockgate::builder(folder.path())
        .log_options(wrong)
        .open()
        .await;
    assert!(matches!(refused, Err(OpenError::Log { .. })));
}

#[tokio::test]
async fn a_backup_is_restored_whole_or_the_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let shard = ShardId::new(7).unwrap();
    let source = Lockgate::builder(path("source")).shard_number(shard);
    let lockgate = source.clone().open().await.unwrap();
    let queue = lockgate.queue("q").create().await.unwrap();
    queue.send(Message::new("kept")).await.unwrap();
    let file = std::fs::File::create(path("backup")).unwrap();
    lockgate.backup(file).await.unwrap();
    lockgate.shutdown().await;
    let backup = std::fs::read(path("backup")).unwrap();

    let restore = |name: &str, bytes: &[u8]| {
        let bytes = std::io::Cursor::new(bytes.to_vec());
        Lockgate::builder(path(name)).restore(bytes)
    };
    let report = restore("whole", &backup).await.unwrap();
    assert_eq!((report.messages, report.shard), (1, shard));
    let copy = Lockgate::builder(path("whole")).shard_number(shard);
    let copy = copy.open().await.unwrap();
    let kept = take(&copy.queue("q").open().unwrap(), 1).await;
    assert_eq!(bodies(&kept), ["kept"]);
    copy.shutdown().await;

    let taken = restore("whole", &backup).await.unwrap_err();
    let OpenError::Restore { source, .. } = taken else {
        panic!("{taken:?}");
    };
    assert!(matches!(source, RestoreError::NotEmpty), "{source:?}");
    let cut = restore("cut", &backup[..backup.len() - 9])
        .await
        .unwrap_err();
    assert!(matches!(cut, OpenError::Restore { .. }), "{cut:?}");
    let refused = Lockgate::open(path("cut")).await.unwrap_err();
    assert!(matches!(refused, OpenError::Start { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_queue_that_is_there_otherwise_is_not_changed() {
    let (_folder, lockgate) = open().await;
    lockgate.queue("q").create().await.unwrap();
    lockgate.queue("q").create().await.expect("the same again");
    let differs = lockgate.queue("q").lease(LONG).create().await.unwrap_err();
    assert!(matches!(differs, Error::QueueDiffers { .. }), "{differs}");
    assert_eq!(differs.kind(), ErrorKind::Input);
    lockgate.queue("q").lease(LONG).configure().await.unwrap();
    lockgate
        .queue("q")
        .lease(LONG)
        .create()
        .await
        .expect("now it is");

    let missing = lockgate.queue("none").open().unwrap_err();
    assert!(matches!(
        missing,
        Error::Engine(EngineError::Rejected(Rejection::QueueNotFound { .. }))
    ));
    let bad = lockgate.queue("a/b").create().await.unwrap_err();
    assert!(matches!(bad, Error::Name(_)), "{bad}");
    lockgate.shutdown().await;
}

#[tokio::test]
async fn a_refused_message_says_why_and_the_others_go() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate
        .queue("q")
        .message_bytes_max(10)
        .create()
        .await
        .unwrap();
    let messages = ["short", "much too long", "short"].map(Message::new);
    let sent = queue.send_all(messages).await.unwrap();
    assert!(sent[0].is_ok() && sent[2].is_ok());
    assert!(matches!(sent[1], Err(Rejection::MessageTooLarge { .. })));
    assert_eq!(take(&queue, 10).await.len(), 2);
    let full = lockgate
        .queue("full")
        .quota_messages(1)
        .create()
        .await
        .unwrap();
    full.send(Message::new("a")).await.unwrap();
    let refused = full.send(Message::new("b")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Retry, "{refused}");
    lockgate.shutdown().await;
}

#[tokio::test]
async fn after_a_shutdown_everything_is_closed() {
    let (_folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    let waiting = queue.receive().wait(LONG);
    let waiting = tokio::spawn(async move { waiting.await });
    while lockgate.metrics().waiters == 0 {
        tokio::task::yield_now().await;
    }
    tokio::join!(lockgate.shutdown(), lockgate.shutdown());
    assert!(waiting.await.unwrap().unwrap().is_empty());
    let closed = queue.send(Message::new("a")).await.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
    let reason = StopReason::ShutDown;
    assert_eq!(lockgate.status(), Status::Stopped { reason });
}

#[tokio::test]
async fn a_missing_file_refuses_the_opening_until_the_loss_is_accepted() {
    let (folder, lockgate) = open().await;
    let queue = lockgate.queue("q").create().await.unwrap();
    queue.send(Message::new("a")).await.unwrap();
    lockgate.shutdown().await;
    let file = folder.path().join("00000001.log");
    let elsewhere = tempfile::tempdir().unwrap();
    let kept = elsewhere.path().join("kept");
    std::fs::copy(&file, &kept).unwrap();
    std::fs::remove_file(&file).unwrap();
    let refused = Lockgate::open(folder.path()).await;
    let Err(OpenError::Start { source, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(matches!(source, StartError::Missing { .. }), "{source:?}");
    assert!(source.to_string().contains("00000001.log"), "{source}");
    // Its own file, put back.
    std::fs::copy(&kept, &file).unwrap();
    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    assert_eq!(lockgate.start_report().messages, 1);
    lockgate.shutdown().await;

    std::fs::remove_file(&file).unwrap();
    let accepting = Lockgate::builder(folder.path()).accept_loss();
    let lockgate = accepting.open().await.unwrap();
    assert_eq!(lockgate.start_report().missing.len(), 1);
    lockgate.shutdown().await;
    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    assert!(lockgate.start_report().is_clean());
    lockgate.shutdown().await;
}

/// A publish behind a bind in one request may lead to a queue of which the index of unique ids was not asked.
#[test]
fn what_has_to_be_looked_up_may_be_given_again() {
    let queue = QueueName::new("q").unwrap();
    let space = lockgate::parts::machine::IdSpace::Queue(QueueId(1));
    let error = Error::from(Rejection::PublishRefused {
        exchange: ExchangeName::new("e").unwrap(),
        queue,
        source: Box::new(Rejection::LookUp { space }),
    });
    assert_eq!(error.kind(), ErrorKind::Retry);
}
