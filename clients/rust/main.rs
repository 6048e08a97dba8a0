//! The AWS SDK for Rust against a running server: `cargo run --package lockgate-sqs --example rust-sdk -- http://127.0.0.1:9324`.
//!
//! Ends with 0, or with a panic that names what was not as it should be.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

use std::{
    error::Error,
    time::{SystemTime, UNIX_EPOCH},
};

use aws_sdk_sqs::{
    Client,
    config::{BehaviorVersion, Credentials, Region},
    error::ProvideErrorMetadata,
    primitives::Blob,
    types::{
        ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, Message,
        MessageAttributeValue, MessageSystemAttributeName as System,
        MessageSystemAttributeNameForSends as SystemForSends, MessageSystemAttributeValue,
        QueueAttributeName as Queue, SendMessageBatchRequestEntry,
    },
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let endpoint = std::env::args().nth(1).ok_or("usage: rust-sdk ENDPOINT")?;
    let started = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let suite = Suite {
        sqs: client(&endpoint),
        prefix: format!("rust-{started}-"),
    };
    suite.queues().await?;
    suite.attributes().await?;
    suite.long_poll().await?;
    suite.batches().await?;
    suite.visibility().await?;
    suite.fifo().await?;
    suite.fifo_duplicates().await?;
    suite.dead_letters().await?;
    suite.deletion().await?;
    println!("rust-sdk: all went well");
    Ok(())
}

fn client(endpoint: &str) -> Client {
    let config = aws_sdk_sqs::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("any", "any", None, None, "static"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    Client::from_conf(config)
}

struct Suite {
    sqs: Client,
    /// In front of the name of every queue, so that two runs do not meet.
    prefix: String,
}

impl Suite {
    async fn queues(&self) -> Outcome {
        let name = format!("{}queues", self.prefix);
        let url = self
            .queue("queues", &[(Queue::VisibilityTimeout, "45")])
            .await?;

        let found = self.sqs.get_queue_url().queue_name(&name).send().await?;
        assert_eq!(found.queue_url(), Some(url.as_str()), "GetQueueUrl");
        let listed = self
            .sqs
            .list_queues()
            .queue_name_prefix(&name)
            .send()
            .await?;
        assert_eq!(listed.queue_urls(), [url.as_str()], "ListQueues");
        let timeout = self.attribute(&url, Queue::VisibilityTimeout).await?;
        assert_eq!(
            timeout.as_deref(),
            Some("45"),
            "the attribute given on creation"
        );

        self.sqs
            .set_queue_attributes()
            .queue_url(&url)
            .attributes(Queue::DelaySeconds, "0")
            .attributes(Queue::VisibilityTimeout, "60")
            .send()
            .await?;
        let timeout = self.attribute(&url, Queue::VisibilityTimeout).await?;
        assert_eq!(timeout.as_deref(), Some("60"), "the attribute that was set");

        self.sqs
            .tag_queue()
            .queue_url(&url)
            .tags("team", "billing")
            .send()
            .await?;
        let tags = self.sqs.list_queue_tags().queue_url(&url).send().await?;
        assert_eq!(tags.tags().unwrap()["team"], "billing", "ListQueueTags");

        self.remove(&url).await?;
        let missing = self
            .sqs
            .get_queue_url()
            .queue_name(&name)
            .send()
            .await
            .unwrap_err();
        assert!(
            missing
                .as_service_error()
                .is_some_and(|error| error.is_queue_does_not_exist()),
            "a missing queue is the SDK's own error: {missing:?}"
        );
        Ok(())
    }

    async fn attributes(&self) -> Outcome {
        let url = self.queue("attributes", &[]).await?;
        let text = |kind: &str, value: &str| {
            MessageAttributeValue::builder()
                .data_type(kind)
                .string_value(value)
                .build()
        };
        let bytes = |kind: &str, value: &[u8]| {
            MessageAttributeValue::builder()
                .data_type(kind)
                .binary_value(Blob::new(value))
                .build()
        };
        let given = [
            ("text", text("String", "grün & <b>")?),
            ("number", text("Number", "-12.50")?),
            ("bytes", bytes("Binary", &[0, 255, 128])?),
            ("text.kind", text("String.uuid", "1-2-3")?),
            ("number.kind", text("Number.int", "7")?),
            ("bytes.kind", bytes("Binary.png", b"\x89PNG")?),
        ];
        let trace = MessageSystemAttributeValue::builder()
            .data_type("String")
            .string_value("Root=1-5759e988-bd862e3fe1be46a994272793")
            .build()?;
        let mut send = self
            .sqs
            .send_message()
            .queue_url(&url)
            .message_body("héllo \u{1F980}\n")
            .message_system_attributes(SystemForSends::AwsTraceHeader, trace);
        for (name, value) in &given {
            send = send.message_attributes(*name, value.clone());
        }
        let sent = send.send().await?;

        let message = self.receive_one(&url, 5).await?;
        assert_eq!(message.message_id(), sent.message_id(), "MessageId");
        assert_eq!(
            message.body(),
            Some("héllo \u{1F980}\n"),
            "the body as it was sent"
        );
        assert_eq!(
            message.md5_of_body(),
            sent.md5_of_message_body(),
            "MD5 of the body"
        );
        assert_eq!(
            message.md5_of_message_attributes(),
            sent.md5_of_message_attributes(),
            "MD5 of the attributes"
        );
        let returned = message.message_attributes().expect("message attributes");
        assert_eq!(
            returned.len(),
            given.len(),
            "as many attributes as were sent"
        );
        for (name, value) in &given {
            assert_eq!(&returned[*name], value, "the attribute {name}");
        }
        let system = message.attributes().expect("system attributes");
        assert_eq!(
            system[&System::AwsTraceHeader],
            "Root=1-5759e988-bd862e3fe1be46a994272793"
        );
        assert_eq!(system[&System::ApproximateReceiveCount], "1");
        self.remove(&url).await
    }

    /// A receive waits for what is not there yet, and for no longer than it was told to.
    async fn long_poll(&self) -> Outcome {
        let url = self.queue("long-poll", &[]).await?;
        assert!(
            self.receive(&url, 10, 1).await?.is_empty(),
            "an empty queue stays empty"
        );
        let send = self
            .sqs
            .send_message()
            .queue_url(&url)
            .message_body("late")
            .delay_seconds(1);
        let (received, sent) = tokio::join!(self.receive(&url, 10, 20), send.send());
        sent?;
        assert_eq!(
            bodies(&received?),
            ["late"],
            "the message that ends the wait"
        );
        self.remove(&url).await
    }

    async fn batches(&self) -> Outcome {
        let url = self
            .queue("batches", &[(Queue::MaximumMessageSize, "1024")])
            .await?;
        let entry = |id: usize, body: String| {
            SendMessageBatchRequestEntry::builder()
                .id(format!("e{id}"))
                .message_body(body)
                .build()
        };
        let mut send = self.sqs.send_message_batch().queue_url(&url);
        for id in 0..9 {
            send = send.entries(entry(id, format!("message {id}"))?);
        }
        let sent = send.entries(entry(9, "x".repeat(1025))?).send().await?;
        assert_eq!(sent.successful().len(), 9, "the entries that fit");
        assert_eq!(
            sent.failed().len(),
            1,
            "the entry that is too large fails alone"
        );
        let failed = &sent.failed()[0];
        assert_eq!(
            (failed.id(), failed.code()),
            ("e9", "InvalidParameterValue")
        );
        assert!(failed.sender_fault(), "it is the sender's fault");

        let mut change = self.sqs.change_message_visibility_batch().queue_url(&url);
        for (id, message) in self.receive(&url, 10, 5).await?.iter().enumerate() {
            change = change.entries(
                ChangeMessageVisibilityBatchRequestEntry::builder()
                    .id(format!("e{id}"))
                    .receipt_handle(handle(message))
                    .visibility_timeout(0)
                    .build()?,
            );
        }
        assert_eq!(change.send().await?.successful().len(), 9, "all given back");

        let mut delete = self.sqs.delete_message_batch().queue_url(&url);
        for (id, message) in self.receive(&url, 10, 5).await?.iter().enumerate() {
            delete = delete.entries(
                DeleteMessageBatchRequestEntry::builder()
                    .id(format!("e{id}"))
                    .receipt_handle(handle(message))
                    .build()?,
            );
        }
        let forged = DeleteMessageBatchRequestEntry::builder()
            .id("forged")
            .receipt_handle("forged");
        let deleted = delete.entries(forged.build()?).send().await?;
        assert_eq!(deleted.successful().len(), 9, "all deleted");
        assert_eq!(
            deleted.failed()[0].code(),
            "ReceiptHandleIsInvalid",
            "but the forged one"
        );
        self.remove(&url).await
    }

    async fn visibility(&self) -> Outcome {
        let url = self
            .queue("visibility", &[(Queue::VisibilityTimeout, "1")])
            .await?;
        self.send(&url, "again").await?;
        let first = self.receive_one(&url, 5).await?;
        let second = self.receive_one(&url, 10).await?;
        assert_eq!(
            first.message_id(),
            second.message_id(),
            "it comes back when its time is over"
        );
        let attempts = &second.attributes().unwrap()[&System::ApproximateReceiveCount];
        assert_eq!(attempts, "2", "the count of receives");

        self.change(&url, &second, 600).await?;
        assert!(
            self.receive(&url, 1, 2).await?.is_empty(),
            "extended, it stays away"
        );
        self.change(&url, &second, 0).await?;
        let third = self.receive_one(&url, 5).await?;
        self.delete(&url, &third).await?;
        let gone = self.change(&url, &third, 0).await.unwrap_err();
        assert!(
            gone.to_string().contains("InvalidParameterValue"),
            "of a deleted message: {gone}"
        );
        self.remove(&url).await
    }

    /// A group keeps its order and is held by one receiver; other groups go on.
    async fn fifo(&self) -> Outcome {
        let url = self
            .queue("groups.fifo", &[(Queue::FifoQueue, "true")])
            .await?;
        let mut numbers = Vec::new();
        for (group, body) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
            numbers.push(self.send_to_group(&url, group, body, body).await?.1);
        }
        assert!(numbers.is_sorted(), "SequenceNumber rises: {numbers:?}");

        let first = self.receive(&url, 1, 5).await?;
        assert_eq!(bodies(&first), ["a1"], "the oldest message");
        let other = self.receive(&url, 10, 5).await?;
        assert_eq!(
            bodies(&other),
            ["b1"],
            "a group in flight is passed over, others are not"
        );
        let group = &other[0].attributes().unwrap()[&System::MessageGroupId];
        assert_eq!(group, "b", "MessageGroupId");
        self.delete(&url, &first[0]).await?;
        assert_eq!(
            bodies(&self.receive(&url, 10, 5).await?),
            ["a2"],
            "the next of the group"
        );
        self.remove(&url).await
    }

    async fn fifo_duplicates(&self) -> Outcome {
        let fifo = (Queue::FifoQueue, "true");
        let by_content = (Queue::ContentBasedDeduplication, "true");
        let url = self.queue("duplicates.fifo", &[fifo, by_content]).await?;
        let first = self.send_to_group(&url, "g", "pay", "pay-1").await?;
        let again = self.send_to_group(&url, "g", "pay, again", "pay-1").await?;
        assert_eq!(
            first, again,
            "a duplicate is answered with the original's ids"
        );
        for _ in 0..2 {
            let send = self
                .sqs
                .send_message()
                .queue_url(&url)
                .message_body("equal");
            send.message_group_id("g").send().await?;
        }
        assert_eq!(
            bodies(&self.receive(&url, 10, 5).await?),
            ["pay", "equal"],
            "each once"
        );
        self.remove(&url).await
    }

    async fn dead_letters(&self) -> Outcome {
        let dead = self.queue("dead", &[]).await?;
        let arn = self
            .attribute(&dead, Queue::QueueArn)
            .await?
            .expect("an ARN");
        let policy = format!(r#"{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 2}}"#);
        let url = self
            .queue("source", &[(Queue::RedrivePolicy, &policy)])
            .await?;
        let sources = self
            .sqs
            .list_dead_letter_source_queues()
            .queue_url(&dead)
            .send()
            .await?;
        assert_eq!(
            sources.queue_urls(),
            [url.as_str()],
            "ListDeadLetterSourceQueues"
        );

        self.send(&url, "poison").await?;
        for _ in 0..2 {
            let message = self.receive_one(&url, 5).await?;
            self.change(&url, &message, 0).await?;
        }
        assert!(
            self.receive(&url, 1, 0).await?.is_empty(),
            "received twice, it is moved"
        );
        let message = self.receive_one(&dead, 5).await?;
        assert_eq!(message.body(), Some("poison"), "the dead letter");
        let source = self.attribute(&url, Queue::QueueArn).await?;
        assert_eq!(
            message
                .attributes()
                .unwrap()
                .get(&System::DeadLetterQueueSourceArn),
            source.as_ref(),
            "DeadLetterQueueSourceArn"
        );

        self.change(&dead, &message, 0).await?;
        let start = self.sqs.start_message_move_task().source_arn(&arn);
        start.send().await?;
        let moved = self.receive_one(&url, 5).await?;
        assert_eq!(
            moved.body(),
            Some("poison"),
            "moved back to where it came from"
        );
        let list = self.sqs.list_message_move_tasks().source_arn(&arn);
        let tasks = list.send().await?;
        assert_eq!(
            tasks.results()[0].source_arn(),
            Some(arn.as_str()),
            "ListMessageMoveTasks"
        );
        self.remove(&url).await?;
        self.remove(&dead).await
    }

    async fn deletion(&self) -> Outcome {
        let url = self.queue("deletion", &[]).await?;
        self.send(&url, "one").await?;
        let message = self.receive_one(&url, 5).await?;
        self.delete(&url, &message).await?;
        self.delete(&url, &message).await?; // Again is no error.
        self.send(&url, "two").await?;
        self.sqs.purge_queue().queue_url(&url).send().await?;
        let left = self
            .attribute(&url, Queue::ApproximateNumberOfMessages)
            .await?;
        assert_eq!(left.as_deref(), Some("0"), "after a purge");

        self.remove(&url).await?;
        let error = self
            .sqs
            .send_message()
            .queue_url(&url)
            .message_body("x")
            .send()
            .await;
        let error = error
            .expect_err("a deleted queue takes nothing")
            .into_service_error();
        assert!(
            error.is_queue_does_not_exist(),
            "the SDK's own error: {error:?}"
        );
        assert_eq!(
            error.code(),
            Some("AWS.SimpleQueueService.NonExistentQueue"),
            "its code"
        );
        Ok(())
    }

    // --- what the above is written with ---

    async fn queue(&self, name: &str, attributes: &[(Queue, &str)]) -> Outcome<String> {
        let mut create = self
            .sqs
            .create_queue()
            .queue_name(format!("{}{name}", self.prefix));
        for (name, value) in attributes {
            create = create.attributes(name.clone(), *value);
        }
        Ok(create
            .send()
            .await?
            .queue_url
            .expect("a created queue has a URL"))
    }

    async fn remove(&self, url: &str) -> Outcome {
        self.sqs.delete_queue().queue_url(url).send().await?;
        Ok(())
    }

    async fn attribute(&self, url: &str, name: Queue) -> Outcome<Option<String>> {
        let get = self.sqs.get_queue_attributes().queue_url(url);
        let answer = get.attribute_names(name.clone()).send().await?;
        Ok(answer
            .attributes()
            .and_then(|attributes| attributes.get(&name))
            .cloned())
    }

    async fn send(&self, url: &str, body: &str) -> Outcome {
        self.sqs
            .send_message()
            .queue_url(url)
            .message_body(body)
            .send()
            .await?;
        Ok(())
    }

    /// The message's id and SequenceNumber.
    async fn send_to_group(
        &self,
        url: &str,
        group: &str,
        body: &str,
        unique: &str,
    ) -> Outcome<(Option<String>, Option<String>)> {
        let send = self.sqs.send_message().queue_url(url).message_body(body);
        let sent = send
            .message_group_id(group)
            .message_deduplication_id(unique)
            .send()
            .await?;
        Ok((sent.message_id, sent.sequence_number))
    }

    async fn receive(&self, url: &str, most: i32, wait: i32) -> Outcome<Vec<Message>> {
        let receive = self.sqs.receive_message().queue_url(url);
        let answer = receive
            .max_number_of_messages(most)
            .wait_time_seconds(wait)
            .message_attribute_names("All")
            .message_system_attribute_names(System::All)
            .send()
            .await?;
        Ok(answer.messages.unwrap_or_default())
    }

    async fn receive_one(&self, url: &str, wait: i32) -> Outcome<Message> {
        let message = self.receive(url, 1, wait).await?.pop();
        Ok(message.ok_or_else(|| format!("no message within {wait} s"))?)
    }

    async fn change(&self, url: &str, message: &Message, seconds: i32) -> Outcome {
        let change = self.sqs.change_message_visibility().queue_url(url);
        let change = change
            .receipt_handle(handle(message))
            .visibility_timeout(seconds);
        if let Err(error) = change.send().await {
            return Err(format!("{:?}: {:?}", error.code(), error.message()).into());
        }
        Ok(())
    }

    async fn delete(&self, url: &str, message: &Message) -> Outcome {
        let delete = self.sqs.delete_message().queue_url(url);
        delete.receipt_handle(handle(message)).send().await?;
        Ok(())
    }
}

fn handle(message: &Message) -> &str {
    message
        .receipt_handle()
        .expect("a received message has a handle")
}

fn bodies(messages: &[Message]) -> Vec<&str> {
    messages.iter().filter_map(Message::body).collect()
}
