//! Several folders in one process, each with a number of its own.

use lockgate::{EngineError, Lockgate, Message, OpenError, Rejection, ShardId, StartError};

use crate::take;

#[tokio::test]
async fn folders_of_one_process_have_numbers_of_their_own() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let numbers = [ShardId::new(1).unwrap(), ShardId::new(2).unwrap()];
    let mut shards = Vec::new();
    for (folder, number) in folders.iter().zip(numbers) {
        let builder = Lockgate::builder(folder.path()).shard_number(number);
        let lockgate = builder.open().await.unwrap();
        assert_eq!(lockgate.start_report().term.shard, number);
        let queue = lockgate.queue("q").create().await.unwrap();
        let sent = queue.send(Message::new("a")).await.unwrap();
        assert_eq!(sent.id.shard(), number);
        shards.push((lockgate, queue));
    }
    // What one has given out, the other cannot settle.
    let delivery = take(&shards[0].1, 1).await.remove(0);
    let mixed = shards[1].0.transact().ack(delivery);
    let error = mixed.commit().await.unwrap_err();
    let [given, own] = numbers;
    let refused = EngineError::Rejected(Rejection::OtherShard { given, own });
    assert_eq!(error.source.to_string(), refused.to_string());
    for (lockgate, _) in shards {
        lockgate.shutdown().await;
    }

    let error = Lockgate::open(folders[0].path()).await.err().unwrap();
    let OpenError::Start {
        source: StartError::OtherShard { held, given },
        ..
    } = error
    else {
        panic!("{error:?}");
    };
    assert_eq!((held, given), (numbers[0], ShardId::default()));
}
