//! Messages: sent, received, settled.

use lockgate_core::ShardId;
use lockgate_sim::{FaultyDisk, ManualClock};
use serde_json::{Value, json};

use super::{Shop, protocols::in_both_protocols, text};

in_both_protocols![
    a_message_comes_back_with_all_it_had,
    a_receive_gives_what_is_asked_for_and_digests_just_that,
    a_message_is_hidden_while_in_flight_and_comes_again,
    on_a_standard_queue_an_expired_handle_deletes_until_somebody_else_has_the_message,
    on_a_fifo_queue_an_expired_handle_is_refused,
    visibility_is_extended_shortened_and_ended,
    delays_hold_a_message_back,
    the_delay_of_a_fifo_queue_is_the_queues,
    groups_are_kept_in_order_and_locked_while_in_flight,
    duplicates_get_the_original_answer_for_five_minutes,
    content_based_deduplication_takes_the_body_alone,
    deduplication_scoped_to_the_group,
    a_queue_that_becomes_one_of_high_throughput_deduplicates_as_recorded_from_aws,
    a_queue_that_ceases_to_be_one_of_high_throughput_deduplicates_as_recorded_from_aws,
    a_batch_answers_for_each_entry,
    batches_settle_each_entry_by_itself,
    no_changed_or_foreign_handle_does_anything,
    a_handle_of_another_shard_is_refused_with_both_numbers,
    a_waiting_receive_is_woken_by_the_send,
    a_waiting_receive_ends_empty_when_the_server_shuts_down,
    the_largest_message_passes_and_one_byte_more_does_not,
    what_was_acknowledged_stays_over_a_restart,
    an_engine_that_has_stopped_is_a_503_that_clients_retry,
];

async fn a_message_comes_back_with_all_it_had(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    let trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1";
    let attributes = json!({
        "Number": {"DataType": "Number.int", "StringValue": "42"},
        "Text": {"DataType": "String", "StringValue": "größer"},
        "Bytes": {"DataType": "Binary", "BinaryValue": "AAH/"},
    });
    let body = "line\n\"quoted\" \u{1f600}\\";
    let input = json!({
        "QueueUrl": url,
        "MessageBody": body,
        "MessageAttributes": attributes,
        "MessageSystemAttributes": {
            "AWSTraceHeader": {"DataType": "String", "StringValue": trace},
        },
        "MessageGroupId": "tenant",
    });
    let sent = shop.ok("SendMessage", input).await;
    let now = shop.engine.now().wall.0.to_string();
    assert_eq!(
        sent["MD5OfMessageSystemAttributes"],
        "5ae4d5d7636402d80f4eb6d213245a88"
    );
    assert_eq!(sent.get("SequenceNumber"), None);
    let received = shop.receive(&url).await;
    let [message] = &received[..] else {
        panic!("{received:?}")
    };
    assert_eq!(message["Body"], body);
    assert_eq!(message["MessageId"], sent["MessageId"]);
    assert_eq!(message["MD5OfBody"], sent["MD5OfMessageBody"]);
    assert_eq!(message["MessageAttributes"], attributes);
    assert_eq!(
        message["MD5OfMessageAttributes"],
        sent["MD5OfMessageAttributes"]
    );
    assert_eq!(
        message["Attributes"],
        json!({
            "AWSTraceHeader": trace,
            "ApproximateFirstReceiveTimestamp": now,
            "ApproximateReceiveCount": "1",
            "MessageGroupId": "tenant",
            "SenderId": "000000000000",
            "SentTimestamp": now,
        })
    );
}

#[tokio::test]
async fn the_trace_of_the_request_stands_in_for_one_of_the_message() {
    let shop = Shop::open();
    let url = shop.queue("q", json!({})).await;
    let plain = json!({"QueueUrl": url, "MessageBody": "x"});
    let mut own = plain.clone();
    own["MessageSystemAttributes"] =
        json!({"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=own"}});
    let too_long = "x".repeat(10_000);
    for (trace, input, kept) in [
        ("Root=request", &plain, json!("Root=request")),
        ("Root=request", &own, json!("Root=own")),
        ("", &plain, Value::Null),
        (too_long.as_str(), &plain, Value::Null),
    ] {
        let target = Some("AmazonSQS.SendMessage");
        let sent = shop.traced(Some(trace), target, input.to_string()).await;
        assert_eq!(sent.status, 200);
        let message = shop.receive(&url).await.remove(0);
        assert_eq!(message["Attributes"]["AWSTraceHeader"], kept, "{trace:.20}");
    }
}

async fn a_receive_gives_what_is_asked_for_and_digests_just_that(shop: Shop) {
    let url = shop.queue("q", json!({"VisibilityTimeout": "0"})).await;
    let attribute = |value: &str| json!({"DataType": "String", "StringValue": value});
    let input = json!({"QueueUrl": url, "MessageBody": "msg", "MessageAttributes": {
        "Help.Me": attribute("Me"),
        "Hello": attribute("There"),
        "General": attribute("Kenobi"),
    }});
    shop.ok("SendMessage", input).await;
    // Digests as AWS answers them.
    for (names, count, digest) in [
        (json!([]), 0, None),
        (json!(["All"]), 3, Some("4c360f3fdafd970e05fae2f149d997f5")),
        (json!([".*"]), 3, Some("4c360f3fdafd970e05fae2f149d997f5")),
        (json!(["Foo", "Help"]), 0, None),
        (
            json!(["Hello", "General"]),
            2,
            Some("fca026605781cb4126a1e9044df24232"),
        ),
        (
            json!(["Foo", "Hello"]),
            1,
            Some("a311262e065454b75da111d535b8dacd"),
        ),
        (
            json!(["Hel.*"]),
            2,
            Some("83fee93c1bcd8b9a5a923ffacdc636c7"),
        ),
    ] {
        let input = json!({"QueueUrl": url, "MessageAttributeNames": names});
        let message = &shop.ok("ReceiveMessage", input).await["Messages"][0];
        let attributes = message["MessageAttributes"].as_object();
        assert_eq!(attributes.map_or(0, |a| a.len()), count, "{names}");
        assert_eq!(
            message
                .get("MD5OfMessageAttributes")
                .and_then(Value::as_str),
            digest,
            "{names}"
        );
        assert_eq!(message.get("Attributes"), None);
    }
    // Both lists of system attributes count.
    let input = json!({"QueueUrl": url, "AttributeNames": ["SenderId"],
        "MessageSystemAttributeNames": ["ApproximateReceiveCount"]});
    let message = &shop.ok("ReceiveMessage", input).await["Messages"][0];
    assert_eq!(
        message["Attributes"],
        json!({"SenderId": "000000000000", "ApproximateReceiveCount": "8"})
    );
    for all in ["All", "ALL"] {
        let input = json!({"QueueUrl": url, "MessageSystemAttributeNames": [all]});
        let message = &shop.ok("ReceiveMessage", input).await["Messages"][0];
        assert_eq!(message["Attributes"].as_object().unwrap().len(), 4, "{all}");
    }
}

async fn a_message_is_hidden_while_in_flight_and_comes_again(shop: Shop) {
    let url = shop.queue("q", json!({"VisibilityTimeout": "5"})).await;
    shop.send(&url, "a").await;
    let first = shop.receive(&url).await.remove(0);
    assert_eq!(shop.counts(&url).await, [0, 1, 0]);
    assert!(shop.receive(&url).await.is_empty());
    shop.pass(4_999);
    assert!(shop.receive(&url).await.is_empty());
    shop.pass(1);
    let second = shop.receive(&url).await.remove(0);
    assert_eq!(second["Attributes"]["ApproximateReceiveCount"], "2");
    assert_eq!(
        second["Attributes"]["ApproximateFirstReceiveTimestamp"],
        first["Attributes"]["ApproximateFirstReceiveTimestamp"]
    );
    assert_ne!(second["ReceiptHandle"], first["ReceiptHandle"]);
    // The older handle deletes nothing and is no error; the newer one deletes; again, no error.
    shop.delete(&url, &first).await;
    assert_eq!(shop.counts(&url).await, [0, 1, 0]);
    shop.delete(&url, &second).await;
    assert_eq!(shop.counts(&url).await, [0, 0, 0]);
    shop.delete(&url, &second).await;
}

async fn on_a_standard_queue_an_expired_handle_deletes_until_somebody_else_has_the_message(
    shop: Shop,
) {
    let url = shop.queue("q", json!({"VisibilityTimeout": "1"})).await;
    shop.send(&url, "a").await;
    let message = shop.receive(&url).await.remove(0);
    shop.pass(2_000);
    shop.delete(&url, &message).await;
    assert_eq!(shop.counts(&url).await, [0, 0, 0]);
}

async fn on_a_fifo_queue_an_expired_handle_is_refused(shop: Shop) {
    let url = shop
        .queue("q.fifo", json!({"VisibilityTimeout": "1"}))
        .await;
    shop.send_fifo(&url, "g", "a").await;
    let message = shop.receive(&url).await.remove(0);
    let handle = text(&message["ReceiptHandle"]);
    shop.pass(2_000);
    let expected = (
        "InvalidParameterValue".to_owned(),
        format!(
            "Value {handle} for parameter ReceiptHandle is invalid. Reason: The receipt handle \
             has expired."
        ),
    );
    let delete = json!({"QueueUrl": url, "ReceiptHandle": handle});
    assert_eq!(
        shop.refused("DeleteMessage", delete.clone()).await,
        expected
    );
    let change = json!({"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 9});
    assert_eq!(
        shop.refused("ChangeMessageVisibility", change).await,
        expected
    );
    // The same after another consumer has received it.
    assert_eq!(shop.bodies(&url).await, ["a"]);
    assert_eq!(shop.refused("DeleteMessage", delete).await, expected);
}

async fn visibility_is_extended_shortened_and_ended(shop: Shop) {
    let url = shop.queue("q", json!({"VisibilityTimeout": "10"})).await;
    shop.send(&url, "a").await;
    let message = shop.receive(&url).await.remove(0);
    let change = |seconds: i64| {
        json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"],
            "VisibilityTimeout": seconds})
    };
    shop.pass(9_000);
    // Counted from the call.
    assert_eq!(
        shop.ok("ChangeMessageVisibility", change(10)).await,
        json!({})
    );
    shop.pass(9_999);
    assert!(shop.receive(&url).await.is_empty());
    // At most twelve hours from the receive.
    let (code, message_text) = shop
        .refused("ChangeMessageVisibility", change(43_200))
        .await;
    assert_eq!(code, "InvalidParameterValue");
    assert_eq!(
        message_text,
        "Value 43200 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout \
         for the message is beyond the limit [43200 seconds]"
    );
    assert!(shop.receive(&url).await.is_empty(), "nothing changed");
    // Zero makes it visible at once.
    shop.ok("ChangeMessageVisibility", change(0)).await;
    let again = shop.receive(&url).await.remove(0);
    assert_eq!(again["Attributes"]["ApproximateReceiveCount"], "2");
    // A standard queue's older handle still changes it, as on AWS, but deletes nothing.
    shop.ok("ChangeMessageVisibility", change(5)).await;
    shop.delete(&url, &message).await;
    shop.pass(4_999);
    assert_eq!(shop.counts(&url).await, [0, 1, 0]);
    shop.pass(1);
    assert_eq!(shop.counts(&url).await, [1, 0, 0]);
    // A message that is visible again can be hidden again, and shown again.
    shop.ok("ChangeMessageVisibility", change(5)).await;
    assert_eq!(shop.counts(&url).await, [0, 1, 0]);
    shop.pass(4_000);
    shop.ok("ChangeMessageVisibility", change(7)).await;
    shop.pass(6_999);
    assert!(shop.receive(&url).await.is_empty());
    shop.ok("ChangeMessageVisibility", change(0)).await;
    assert_eq!(shop.counts(&url).await, [1, 0, 0]);
    shop.ok("ChangeMessageVisibility", change(0)).await;
    shop.ok("ChangeMessageVisibility", change(9)).await;
    // Meanwhile its last handle deletes it.
    let change = json!({"QueueUrl": url, "ReceiptHandle": again["ReceiptHandle"],
        "VisibilityTimeout": 5});
    shop.delete(&url, &again).await;
    assert_eq!(shop.counts(&url).await, [0, 0, 0]);
    let (code, text) = shop.refused("ChangeMessageVisibility", change).await;
    assert_eq!(code, "InvalidParameterValue");
    assert!(
        text.contains("Message does not exist or is not available"),
        "{text}"
    );
}

async fn delays_hold_a_message_back(shop: Shop) {
    let url = shop.queue("q", json!({"DelaySeconds": "3"})).await;
    let send = async |body: &str, delay: Option<u32>| {
        let mut input = json!({"QueueUrl": url, "MessageBody": body});
        if let Some(delay) = delay {
            input["DelaySeconds"] = json!(delay);
        }
        shop.ok("SendMessage", input).await;
    };
    send("queue's", None).await;
    send("own", Some(5)).await;
    send("none", Some(0)).await;
    assert_eq!(shop.counts(&url).await, [1, 0, 2]);
    assert_eq!(shop.bodies(&url).await, ["none"]);
    shop.pass(2_999);
    assert!(shop.bodies(&url).await.is_empty());
    shop.pass(1);
    assert_eq!(shop.bodies(&url).await, ["queue's"]);
    shop.pass(2_000);
    assert_eq!(shop.bodies(&url).await, ["own"]);
}

async fn the_delay_of_a_fifo_queue_is_the_queues(shop: Shop) {
    let url = shop.queue("q.fifo", json!({"DelaySeconds": "3"})).await;
    let input = |delay: i64| {
        json!({"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g",
            "MessageDeduplicationId": delay.to_string(), "DelaySeconds": delay})
    };
    let (code, message) = shop.refused("SendMessage", input(2)).await;
    assert_eq!(code, "InvalidParameterValue");
    assert_eq!(
        message,
        "Value 2 for parameter DelaySeconds is invalid. Reason: The request include parameter \
         that is not valid for this queue type."
    );
    shop.ok("SendMessage", input(0)).await;
    assert_eq!(shop.counts(&url).await, [0, 0, 1]);
    shop.pass(3_000);
    assert_eq!(shop.bodies(&url).await, ["x"]);
}

async fn groups_are_kept_in_order_and_locked_while_in_flight(shop: Shop) {
    let url = shop.queue("q.fifo", json!({})).await;
    let mut numbers = vec![];
    for (group, id) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")] {
        let sent = shop.send_fifo(&url, group, id).await;
        numbers.push(text(&sent["SequenceNumber"]));
    }
    assert!(
        numbers.iter().all(|number| number.len() == 20),
        "{numbers:?}"
    );
    assert!(numbers.is_sorted());
    let take = json!({"QueueUrl": url, "MaxNumberOfMessages": 1,
        "MessageSystemAttributeNames": ["All"]});
    let first = shop.ok("ReceiveMessage", take).await["Messages"][0].clone();
    assert_eq!(first["Body"], "a1");
    let attributes = &first["Attributes"];
    assert_eq!(attributes["MessageGroupId"], "a");
    assert_eq!(attributes["MessageDeduplicationId"], "a1");
    assert_eq!(attributes["SequenceNumber"], *numbers[0]);
    // The rest of the group waits, other groups do not.
    assert_eq!(shop.bodies(&url).await, ["b1"]);
    assert!(shop.bodies(&url).await.is_empty());
    shop.delete(&url, &first).await;
    assert_eq!(shop.bodies(&url).await, ["a2", "a3"]);
}

async fn duplicates_get_the_original_answer_for_five_minutes(shop: Shop) {
    let url = shop.queue("q.fifo", json!({})).await;
    let first = shop.send_fifo(&url, "g", "id").await;
    let again = shop.send_fifo(&url, "other", "id").await;
    assert_eq!(again["MessageId"], first["MessageId"]);
    assert_eq!(again["SequenceNumber"], first["SequenceNumber"]);
    let message = shop.receive(&url).await.remove(0);
    shop.delete(&url, &message).await;
    shop.pass(299_999);
    shop.send_fifo(&url, "g", "id").await;
    assert_eq!(shop.counts(&url).await, [0, 0, 0]);
    shop.pass(1);
    let later = shop.send_fifo(&url, "g", "id").await;
    assert_ne!(later["MessageId"], first["MessageId"]);
    assert_eq!(shop.counts(&url).await, [1, 0, 0]);
}

async fn content_based_deduplication_takes_the_body_alone(shop: Shop) {
    let url = shop
        .queue("q.fifo", json!({"ContentBasedDeduplication": "true"}))
        .await;
    let send = async |body: &str, extra: Value| {
        let mut input = json!({"QueueUrl": url, "MessageBody": body, "MessageGroupId": "g"});
        input
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        shop.ok("SendMessage", input).await["MessageId"].clone()
    };
    let first = send("abc", json!({})).await;
    let attributes =
        json!({"MessageAttributes": {"a": {"DataType": "String", "StringValue": "b"}}});
    assert_eq!(send("abc", attributes).await, first);
    assert_ne!(send("abd", json!({})).await, first);
    // An explicit id wins.
    assert_ne!(
        send("abc", json!({"MessageDeduplicationId": "x"})).await,
        first
    );
    let messages = shop.receive(&url).await;
    assert_eq!(messages.len(), 3);
    assert_eq!(
        messages[0]["Attributes"]["MessageDeduplicationId"],
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

async fn deduplication_scoped_to_the_group(shop: Shop) {
    let url = shop
        .queue("q.fifo", json!({"DeduplicationScope": "messageGroup"}))
        .await;
    let first = shop.send_fifo(&url, "a", "id").await;
    assert_eq!(
        shop.send_fifo(&url, "a", "id").await["MessageId"],
        first["MessageId"]
    );
    assert_ne!(
        shop.send_fifo(&url, "b", "id").await["MessageId"],
        first["MessageId"]
    );
}

const HIGH_THROUGHPUT: [(&str, &str); 2] = [
    ("DeduplicationScope", "messageGroup"),
    ("FifoThroughputLimit", "perMessageGroupId"),
];
const REGULAR_THROUGHPUT: [(&str, &str); 2] = [
    ("DeduplicationScope", "queue"),
    ("FifoThroughputLimit", "perQueue"),
];

/// Sends messages one after the other, each with a group and an id, receives and deletes at once,
/// and returns which of them came.
async fn passed(shop: &Shop, url: &str, sends: &[(&str, &str)]) -> Vec<bool> {
    let mut passed = Vec::new();
    for (group, id) in sends {
        shop.send_fifo(url, group, id).await;
        let messages = shop.receive(url).await;
        passed.push(!messages.is_empty());
        for message in messages {
            let handle = text(&message["ReceiptHandle"]);
            let input = json!({"QueueUrl": url, "ReceiptHandle": handle});
            shop.ok("DeleteMessage", input).await;
        }
    }
    passed
}

async fn becomes(shop: &Shop, url: &str, attributes: [(&str, &str); 2]) {
    let attributes: serde_json::Map<_, _> = attributes
        .into_iter()
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    let input = json!({"QueueUrl": url, "Attributes": attributes});
    shop.ok("SetQueueAttributes", input).await;
}

/// As AWS answered in August 2025 within two seconds, in the test suite of LocalStack.
async fn a_queue_that_becomes_one_of_high_throughput_deduplicates_as_recorded_from_aws(shop: Shop) {
    let url = shop.queue("q.fifo", json!({})).await;
    let before = passed(&shop, &url, &[("group1", "same"), ("group2", "same")]).await;
    assert_eq!(before, [true, false]);
    becomes(&shop, &url, HIGH_THROUGHPUT).await;
    assert_eq!(
        shop.attribute(&url, "DeduplicationScope").await,
        "messageGroup"
    );
    let sends = [("group3", "same"), ("group4", "new"), ("group5", "new")];
    assert_eq!(passed(&shop, &url, &sends).await, [false, true, false]);
    // No later answers are recorded. After this time the new setting applies.
    shop.pass(60_000);
    let sends = [
        ("a", "later"),
        ("b", "later"),
        ("b", "later"),
        ("a", "same"),
    ];
    let later = passed(&shop, &url, &sends).await;
    assert_eq!(later, [true, true, false, false]);
}

/// From the same record.
async fn a_queue_that_ceases_to_be_one_of_high_throughput_deduplicates_as_recorded_from_aws(
    shop: Shop,
) {
    let attributes = json!({"DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId"});
    let url = shop.queue("q.fifo", attributes).await;
    let before = passed(&shop, &url, &[("group1", "same"), ("group2", "same")]).await;
    assert_eq!(before, [true, true]);
    becomes(&shop, &url, REGULAR_THROUGHPUT).await;
    assert_eq!(passed(&shop, &url, &[("group3", "same")]).await, [true]);
    shop.pass(60_000);
    let sends = [("a", "later"), ("b", "later"), ("group1", "same")];
    assert_eq!(passed(&shop, &url, &sends).await, [true, false, false]);
}

#[tokio::test]
async fn a_message_received_too_often_goes_to_the_dead_letter_queue() {
    for suffix in ["", ".fifo"] {
        let shop = Shop::open();
        let dead = shop.queue(&format!("dead{suffix}"), json!({})).await;
        let policy = json!({
            "deadLetterTargetArn": shop.attribute(&dead, "QueueArn").await,
            "maxReceiveCount": 2,
        });
        let attributes = json!({"RedrivePolicy": policy.to_string(), "VisibilityTimeout": "1"});
        let name = format!("q{suffix}");
        let url = shop.queue(&name, attributes).await;
        let sent = if suffix.is_empty() {
            shop.send(&url, "x").await
        } else {
            shop.send_fifo(&url, "g", "x").await
        };
        for _ in 0..2 {
            assert_eq!(shop.bodies(&url).await, ["x"], "{name}");
            shop.pass(1_000);
        }
        assert!(shop.bodies(&url).await.is_empty(), "{name}");
        let moved = shop.receive(&dead).await.remove(0);
        assert_eq!(moved["MessageId"], sent["MessageId"]);
        let attributes = &moved["Attributes"];
        assert_eq!(
            attributes["DeadLetterQueueSourceArn"],
            format!("arn:aws:sqs:us-east-1:000000000000:{name}")
        );
        // The count continues, as on AWS.
        assert_eq!(attributes["ApproximateReceiveCount"], "3");
    }
}

async fn a_batch_answers_for_each_entry(shop: Shop) {
    let url = shop.queue("q", json!({"MaximumMessageSize": "1024"})).await;
    let entries = json!([
        {"Id": "good", "MessageBody": "a"},
        {"Id": "large", "MessageBody": "x".repeat(1025)},
        {"Id": "bad", "MessageBody": "\u{0}"},
        {"Id": "none"},
        {"Id": "late", "MessageBody": "b", "DelaySeconds": 901},
        {"Id": "attributes", "MessageBody": "c",
            "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "1"}}},
    ]);
    let input = json!({"QueueUrl": url, "Entries": entries});
    let output = shop.ok("SendMessageBatch", input).await;
    let ids = |list: &str| {
        let list = output[list].as_array().unwrap();
        list.iter()
            .map(|entry| text(&entry["Id"]))
            .collect::<Vec<_>>()
    };
    assert_eq!(ids("Successful"), ["good", "attributes"]);
    let failed: Vec<_> = output["Failed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            assert_eq!(entry["SenderFault"], true);
            format!("{} {}", text(&entry["Id"]), text(&entry["Code"]))
        })
        .collect();
    assert_eq!(
        failed,
        [
            "large InvalidParameterValue",
            "bad InvalidMessageContents",
            "none MissingParameter",
            "late InvalidParameterValue",
        ]
    );
    assert_eq!(
        output["Failed"][0]["Message"],
        "One or more parameters cannot be validated. Reason: Message must be shorter than 1024 \
         bytes."
    );
    assert_eq!(
        output["Successful"][0]["MD5OfMessageBody"],
        "0cc175b9c0f1b6a831c399e269772661"
    );
    assert!(output["Successful"][1]["MD5OfMessageAttributes"].is_string());
    assert_eq!(shop.bodies(&url).await, ["a", "c"]);
}

async fn batches_settle_each_entry_by_itself(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    for body in ["a", "b", "c"] {
        shop.send(&url, body).await;
    }
    let messages = shop.receive(&url).await;
    let handle = |at: usize| &messages[at]["ReceiptHandle"];
    let input = json!({"QueueUrl": url, "Entries": [
        {"Id": "1", "ReceiptHandle": handle(0), "VisibilityTimeout": 0},
        {"Id": "2", "ReceiptHandle": "garbage", "VisibilityTimeout": 0},
        {"Id": "3", "ReceiptHandle": handle(1)},
        {"Id": "4", "ReceiptHandle": handle(1), "VisibilityTimeout": 43_201},
    ]});
    let output = shop.ok("ChangeMessageVisibilityBatch", input).await;
    assert_eq!(output["Successful"], json!([{"Id": "1"}]));
    let code = |at: usize| text(&output["Failed"][at]["Code"]);
    assert_eq!(
        [code(0), code(1), code(2)],
        [
            "ReceiptHandleIsInvalid",
            "MissingParameter",
            "InvalidParameterValue"
        ]
    );
    assert_eq!(shop.bodies(&url).await, ["a"]);
    let input = json!({"QueueUrl": url, "Entries": [
        {"Id": "1", "ReceiptHandle": handle(1)},
        {"Id": "2", "ReceiptHandle": "garbage"},
        {"Id": "3", "ReceiptHandle": handle(2)},
        {"Id": "4", "ReceiptHandle": handle(2)},
    ]});
    let output = shop.ok("DeleteMessageBatch", input).await;
    assert_eq!(
        output["Successful"],
        json!([{"Id": "1"}, {"Id": "3"}, {"Id": "4"}])
    );
    assert_eq!(
        output["Failed"],
        json!([{"Id": "2", "Code": "ReceiptHandleIsInvalid", "SenderFault": true,
            "Message": "The input receipt handle \"garbage\" is not a valid receipt handle."}])
    );
    assert_eq!(shop.counts(&url).await, [0, 1, 0]);
}

async fn no_changed_or_foreign_handle_does_anything(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    let other = shop.queue("other", json!({})).await;
    shop.send(&url, "a").await;
    let handle = text(&shop.receive(&url).await[0]["ReceiptHandle"]);
    let mut foreign = vec![(other.clone(), handle.clone())];
    for bit in 0..handle.len() * 8 {
        let mut changed = handle.clone().into_bytes();
        changed[bit / 8] ^= 1 << (bit % 8);
        if let Ok(changed) = String::from_utf8(changed) {
            foreign.push((url.clone(), changed));
        }
    }
    for (url, handle) in foreign {
        let delete = json!({"QueueUrl": url, "ReceiptHandle": handle});
        let answer = shop.ask("DeleteMessage", delete).await;
        assert_eq!(answer.status, 404, "{handle}");
        assert_eq!(answer.error().0, "ReceiptHandleIsInvalid");
        let change = json!({"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 0});
        let (code, _) = shop.refused("ChangeMessageVisibility", change).await;
        assert_eq!(code, "ReceiptHandleIsInvalid");
    }
    assert_eq!(shop.counts(&url).await, [0, 1, 0]);
    // The correct handle still works, also after a restart.
    let shop = shop.reopened().await;
    let delete = json!({"QueueUrl": url, "ReceiptHandle": handle});
    shop.ok("DeleteMessage", delete).await;
    assert_eq!(shop.counts(&url).await, [0, 0, 0]);
}

async fn a_handle_of_another_shard_is_refused_with_both_numbers(shop: Shop) {
    // A queue and a message with the same numbers on another shard.
    let (disk, clock) = (FaultyDisk::new(), ManualClock::default());
    let there = Shop::of_shard(ShardId::new(1).unwrap(), disk, clock, shop.speaks);
    let mut handles = Vec::new();
    for shop in [&shop, &there] {
        let url = shop.queue("q", json!({})).await;
        shop.send(&url, "a").await;
        handles.push(text(&shop.receive(&url).await[0]["ReceiptHandle"]));
    }
    let url = there.queue("q", json!({})).await;
    for (shop, handle, given, own) in [(&shop, &handles[1], 1, 0), (&there, &handles[0], 0, 1)] {
        let told = format!(
            "The receipt handle \"{handle}\" is not valid here: it is of shard {given}, and this is \
             shard {own}: take it to shard {given}."
        );
        let refused = ("ReceiptHandleIsInvalid".to_owned(), told);
        let delete = json!({"QueueUrl": url, "ReceiptHandle": handle});
        assert_eq!(shop.refused("DeleteMessage", delete).await, refused);
        let change = json!({"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 0});
        assert_eq!(
            shop.refused("ChangeMessageVisibility", change).await,
            refused
        );
        assert_eq!(shop.counts(&url).await, [0, 1, 0]);
    }
}

async fn a_waiting_receive_is_woken_by_the_send(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    let wait = json!({"QueueUrl": url, "WaitTimeSeconds": 20});
    // The clock stands still: only the send can end the wait.
    let (received, _) = tokio::join!(shop.ok("ReceiveMessage", wait), shop.send(&url, "x"));
    assert_eq!(received["Messages"][0]["Body"], "x");
    // The queue's own wait, when the request says nothing.
    let patient = shop
        .queue("patient", json!({"ReceiveMessageWaitTimeSeconds": "20"}))
        .await;
    let (received, _) = tokio::join!(shop.receive(&patient), shop.send(&patient, "y"));
    assert_eq!(received[0]["Body"], "y");
    let at_once = json!({"QueueUrl": patient, "WaitTimeSeconds": 0});
    assert_eq!(shop.ok("ReceiveMessage", at_once).await, json!({}));
}

async fn a_waiting_receive_ends_empty_when_the_server_shuts_down(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    let wait = json!({"QueueUrl": url, "WaitTimeSeconds": 20});
    let (received, ()) = tokio::join!(shop.ok("ReceiveMessage", wait.clone()), async {
        tokio::task::yield_now().await;
        shop.drain.pull();
    });
    assert_eq!(received, json!({}));
    assert_eq!(shop.ok("ReceiveMessage", wait).await, json!({}));
}

#[tokio::test]
async fn an_answer_that_was_never_sent_gives_its_messages_back() {
    let shop = Shop::open();
    let url = shop.queue("q", json!({})).await;
    shop.send(&url, "x").await;
    let input = json!({"QueueUrl": url}).to_string();
    let answer = shop.raw(Some("AmazonSQS.ReceiveMessage"), input).await;
    assert_eq!(answer.body["Messages"][0]["Body"], "x");
    drop(answer.guard);
    let message = shop.receive(&url).await.remove(0);
    assert_eq!(message["Attributes"]["ApproximateReceiveCount"], "1");
}

async fn the_largest_message_passes_and_one_byte_more_does_not(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    let body = "x".repeat(1_048_576);
    shop.send(&url, &body).await;
    assert_eq!(shop.receive(&url).await[0]["Body"], *body);
    let send = json!({"QueueUrl": url, "MessageBody": format!("{body}x")});
    let (code, message) = shop.refused("SendMessage", send).await;
    assert_eq!(code, "InvalidParameterValue");
    assert_eq!(
        message,
        "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes."
    );
    // The name, type and value of attributes count.
    let attribute = json!({"a": {"DataType": "Binary", "BinaryValue": "AAE="}});
    let send =
        |body: &str| json!({"QueueUrl": url, "MessageBody": body, "MessageAttributes": attribute});
    shop.ok("SendMessage", send(&body[9..])).await;
    shop.refused("SendMessage", send(&body[8..])).await;
    // So does the sum of a batch.
    let half = &body[..524_288];
    let batch = |extra: &str| {
        json!({"QueueUrl": url, "Entries": [
            {"Id": "1", "MessageBody": half},
            {"Id": "2", "MessageBody": format!("{half}{extra}")},
        ]})
    };
    shop.ok("SendMessageBatch", batch("")).await;
    let (code, message) = shop.refused("SendMessageBatch", batch("x")).await;
    assert_eq!(code, "AWS.SimpleQueueService.BatchRequestTooLong");
    assert_eq!(
        message,
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."
    );
}

async fn what_was_acknowledged_stays_over_a_restart(shop: Shop) {
    let url = shop.queue("q.fifo", json!({})).await;
    for id in ["1", "2", "3"] {
        shop.send_fifo(&url, "g", id).await;
    }
    let take = json!({"QueueUrl": url, "MaxNumberOfMessages": 1});
    let first = shop.ok("ReceiveMessage", take).await["Messages"][0].clone();
    shop.delete(&url, &first).await;
    let shop = shop.reopened().await;
    let again = shop.send_fifo(&url, "g", "1").await;
    assert_eq!(again["MessageId"], first["MessageId"], "still a duplicate");
    assert_eq!(shop.bodies(&url).await, ["2", "3"]);
}

async fn an_engine_that_has_stopped_is_a_503_that_clients_retry(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    shop.engine.shutdown().await;
    let send = json!({"QueueUrl": url, "MessageBody": "x"});
    let purge = json!({"QueueUrl": url});
    // A purge that failed does not count.
    for (action, input) in [
        ("SendMessage", send),
        ("PurgeQueue", purge.clone()),
        ("PurgeQueue", purge),
    ] {
        let answer = shop.ask(action, input).await;
        assert_eq!(answer.status, 503, "{action}");
        assert_eq!(answer.error().0, "ServiceUnavailable");
        assert_eq!(answer.retry_after.as_deref(), Some("1"));
    }
}
