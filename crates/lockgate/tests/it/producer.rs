//! Producers over embedded queues.

use std::time::Duration;

use lockgate::{
    Key, Lockgate, Message, Queue, UniqueId,
    consumer::{Failure, Job, Worker},
    producer::{Answer, AnswerLevel, Pipeline, Producer, ProducerOptions, SpoolOptions},
};

#[tokio::test]
async fn records_that_are_sent_again_over_restarts_of_both_are_there_once() {
    let folder = tempfile::tempdir().unwrap();
    let (data, spool) = (folder.path().join("data"), folder.path().join("spool"));
    let options = || ProducerOptions {
        spool: Some(SpoolOptions::new(&spool)),
        ..ProducerOptions::default()
    };
    let mut first = None;
    for run in 0..3 {
        let lockgate = Lockgate::open(&data).await.unwrap();
        let queue = lockgate.queue("clicks").keyed().create().await.unwrap();
        let producer = Producer::open(queue.clone(), options()).await.unwrap();
        let key = Key::new("k").unwrap();
        let message = Message::new(run.to_string()).with_key(key);
        let answer = producer.send(message).await.unwrap();
        let Answer::Delivered(accepted) = answer else {
            panic!("{answer:?}")
        };
        assert!(!accepted.duplicate && accepted.id.is_some());
        if first.is_none() {
            // As it stands before anything of it is noted as over: the next run sends all of it again.
            let copy = folder.path().join("copy");
            std::fs::create_dir(&copy).unwrap();
            for file in std::fs::read_dir(&spool).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
            }
            first = Some(copy);
        }
        producer.close(Duration::from_secs(10)).await;
        if run == 1 {
            let again = ProducerOptions {
                spool: first.clone().map(SpoolOptions::new),
                ..ProducerOptions::default()
            };
            let producer = Producer::open(queue.clone(), again).await.unwrap();
            producer.flush().await;
            let figures = producer.figures();
            assert_eq!(figures.recovered, figures.duplicates);
            producer.close(Duration::from_secs(10)).await;
        }
        lockgate.shutdown().await;
    }
    let lockgate = Lockgate::open(&data).await.unwrap();
    let queue = lockgate.queue("clicks").keyed().create().await.unwrap();
    let deliveries = queue.receive().max(10).await.unwrap();
    let bodies: Vec<_> = deliveries.iter().map(|it| it.body().to_vec()).collect();
    assert_eq!(bodies, [b"0", b"1", b"2"]);
    lockgate.shutdown().await;
}

async fn messages(queue: &Queue) -> u64 {
    let counts = queue.describe().await.unwrap().counts;
    counts.ready + counts.in_flight + counts.delayed
}

#[tokio::test]
async fn a_pipeline_forwards_each_message_once_though_it_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let lockgate = Lockgate::open(folder.path()).await.unwrap();
    let orders = lockgate.queue("orders").keyed().create().await.unwrap();
    let bills = lockgate.queue("bills").keyed().create().await.unwrap();
    for number in 0..20 {
        // Each has a key of its own: one that comes again holds back its key.
        let key = Key::new(&format!("k{number}")).unwrap();
        let message = Message::new(number.to_string()).with_key(key);
        orders.send(message).await.unwrap();
    }
    // Each message comes twice: the first time its records are sent and it is not acknowledged.
    for round in 0..2 {
        let options = ProducerOptions {
            level: AnswerLevel::Delivered,
            ..ProducerOptions::default()
        };
        let producer = Producer::open(bills.clone(), options).await.unwrap();
        let forwarder = producer.clone();
        let worker = Worker::over(orders.clone()).concurrency(4);
        let pipeline = Pipeline::start(worker, producer, move |job: Job| {
            let forwarder = forwarder.clone();
            async move {
                let mut message = Message::new(job.body().clone());
                message.key = job.key().cloned();
                if round == 0 {
                    // What a process that dies after its send leaves.
                    let name = job.name().unwrap();
                    let id = format!("{name}/0");
                    message.unique_id = UniqueId::new(&id).ok();
                    forwarder.send(message).await.unwrap();
                    return Err(Failure::defer(Duration::ZERO));
                }
                Ok(vec![message])
            }
        });
        let pipeline = pipeline.unwrap();
        loop {
            let is_done = match round {
                0 => messages(&bills).await == 20,
                _ => messages(&orders).await == 0,
            };
            if is_done {
                break;
            }
            tokio::task::yield_now().await;
        }
        pipeline.drain(Duration::from_secs(10)).await;
    }
    assert_eq!(messages(&bills).await, 20);
    lockgate.shutdown().await;
}
