//! A queue of SQS as a sink and a source.

use std::time::Duration;

use aws_sdk_sqs::{Client, types::QueueAttributeName};
use lockgate_conformance::transport::{self, Fixture};
use lockgate_core::ManualClock;
use lockgate_sqs::SqsQueue;

use crate::support::{TestServer, create};

struct Sqs {
    server: TestServer,
    clock: ManualClock,
    client: Client,
    made: usize,
    /// Queues without keys are FIFO queues as well.
    always_fifo: bool,
}

impl Fixture for Sqs {
    type Queue = SqsQueue;

    async fn queue(&mut self, keyed: bool) -> SqsQueue {
        self.made += 1;
        let suffix = if keyed || self.always_fifo {
            ".fifo"
        } else {
            ""
        };
        let name = format!("queue-{}{suffix}", self.made);
        // So that one message more than allowed fits into a batch.
        let small = [(QueueAttributeName::MaximumMessageSize, "65536")];
        create(&self.client, &name, &small).await
    }

    async fn delete(&mut self, queue: &SqsQueue) -> bool {
        let call = self.client.delete_queue().queue_url(queue.url());
        call.send().await.unwrap();
        true
    }

    fn pass(&mut self, span: Duration) -> bool {
        if !self.always_fifo {
            // A standard queue says that it has deleted what somebody else has leased since.
            return false;
        }
        self.clock.advance(span.as_millis().try_into().unwrap());
        self.server.engine.clock_changed();
        true
    }
}

async fn run(always_fifo: bool, not_run: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let (server, clock) = TestServer::manual(folder.path()).await;
    let mut sqs = Sqs {
        client: server.client(),
        server,
        clock,
        made: 0,
        always_fifo,
    };
    assert_eq!(transport::run(&mut sqs).await, not_run);
    sqs.server.stop().await;
}

#[tokio::test]
async fn standard_and_fifo_queues_conform() {
    let not_run = [
        "a_unique_id_is_accepted_once",
        "a_record_of_a_producer_is_accepted_once",
        "two_copies_of_a_spool_lose_nothing_and_double_nothing",
        "whoever_was_deposed_sends_nothing",
        "a_lease_that_ends_brings_the_message_again",
        "an_extended_lease_lasts",
        "a_receive_takes_as_many_of_a_key_as_it_says",
    ];
    run(false, &not_run).await;
}

#[tokio::test]
async fn fifo_queues_conform() {
    let not_run = [
        "a_record_of_a_producer_is_accepted_once",
        "two_copies_of_a_spool_lose_nothing_and_double_nothing",
        "whoever_was_deposed_sends_nothing",
        "a_message_comes_no_earlier_than_it_is_due",
        "a_receive_takes_as_many_of_a_key_as_it_says",
    ];
    run(true, &not_run).await;
}
