//! What each tag allows, and that without tags nothing more is allowed.

use lockgate_core::{Level, QueueName};
use serde_json::{Value, json};

use super::{Shop, protocols::in_both_protocols, text};

in_both_protocols![
    delays_are_as_long_as_a_tag_allows,
    a_tag_gives_messages_of_fifo_queues_delays_of_their_own,
    a_deduplication_window_of_its_own_outlasts_a_purge,
    the_memory_for_unique_ids_is_bounded_by_a_tag,
    batches_are_as_large_as_a_tag_allows,
    a_key_policy_parks_what_fails,
    skip_needs_somewhere_to_skip_to,
    a_tag_makes_zero_visibility_cost_no_attempt,
    quotas_and_the_limit_in_flight_are_set_by_tags,
    durability_is_set_by_a_tag,
    what_a_power_cut_may_take_is_set_by_tags,
    one_bad_tag_refuses_the_whole_call,
    the_previous_sequence_number_is_told_by_name_only,
    messages_are_numbered_group_by_group_where_a_tag_says_so,
    numbers_in_a_group_are_told_by_name_only,
    a_dead_letter_keeps_its_number_in_the_group,
];

const INVALID: &str = "InvalidParameterValue";

impl Shop {
    async fn tagged_queue(&self, name: &str, attributes: Value, tags: Value) -> String {
        let mut attributes = attributes;
        if name.ends_with(".fifo") {
            attributes["FifoQueue"] = json!("true");
        }
        let input = json!({"QueueName": name, "Attributes": attributes, "tags": tags});
        text(&self.ok("CreateQueue", input).await["QueueUrl"])
    }

    async fn tag(&self, url: &str, tag: &str, value: &str) {
        let input = json!({"QueueUrl": url, "Tags": {tag: value}});
        self.ok("TagQueue", input).await;
    }

    async fn untag(&self, url: &str, tag: &str) {
        let input = json!({"QueueUrl": url, "TagKeys": [tag]});
        self.ok("UntagQueue", input).await;
    }

    async fn tags(&self, url: &str) -> Value {
        let output = self.ok("ListQueueTags", json!({"QueueUrl": url})).await;
        output["Tags"].clone()
    }

    /// The result of receiving one message with a lease of `seconds`.
    async fn one(&self, url: &str, seconds: u64) -> Value {
        let input = json!({"QueueUrl": url, "VisibilityTimeout": seconds,
            "MessageSystemAttributeNames": ["All"]});
        self.ok("ReceiveMessage", input).await["Messages"][0].clone()
    }

    fn settings(&self, name: &str) -> lockgate_machine::QueueSettings {
        let name = QueueName::new(name).unwrap();
        let entry = self.engine.directory().get(&name).expect("the queue");
        entry.settings.clone()
    }
}

fn fifo_message(url: &str, group: &str, id: &str) -> Value {
    json!({"QueueUrl": url, "MessageBody": id, "MessageGroupId": group,
        "MessageDeduplicationId": id})
}

async fn delays_are_as_long_as_a_tag_allows(shop: Shop) {
    const TAG: &str = "lockgate:delay-max";
    let url = shop.queue("q", json!({})).await;
    let delayed =
        |seconds: u64| json!({"QueueUrl": url, "MessageBody": "x", "DelaySeconds": seconds});
    let attribute =
        |seconds: &str| json!({"QueueUrl": url, "Attributes": {"DelaySeconds": seconds}});
    let aws = "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 \
               and <= 900.";
    let refused = shop.refused("SendMessage", delayed(901)).await;
    assert_eq!(refused, (INVALID.into(), aws.into()));

    shop.tag(&url, TAG, "30d").await;
    shop.ok("SendMessage", delayed(30 * 86_400)).await;
    let (_, message) = shop.refused("SendMessage", delayed(30 * 86_400 + 1)).await;
    assert!(message.ends_with("<= 2592000."), "{message}");
    shop.pass(30 * 86_400_000 - 1);
    assert_eq!(shop.counts(&url).await, [0, 0, 1]);
    shop.pass(1);
    assert_eq!(shop.bodies(&url).await, ["x"]);

    // The queue's own delay may be long too, and then the tag cannot be removed.
    shop.ok("SetQueueAttributes", attribute("3600")).await;
    let untag = json!({"QueueUrl": url, "TagKeys": [TAG]});
    let (code, message) = shop.refused("UntagQueue", untag.clone()).await;
    assert_eq!(code, INVALID);
    assert!(
        message.starts_with("The queue's DelaySeconds is 3600"),
        "{message}"
    );
    shop.ok("SetQueueAttributes", attribute("0")).await;
    shop.ok("UntagQueue", untag).await;
    let refused = shop.refused("SendMessage", delayed(901)).await;
    assert_eq!(refused, (INVALID.into(), aws.into()));
    let (code, _) = shop.refused("SetQueueAttributes", attribute("901")).await;
    assert_eq!(code, "InvalidAttributeValue");

    let made = shop.tagged_queue(
        "r",
        json!({"DelaySeconds": "901"}),
        json!({TAG: "unlimited"}),
    );
    made.await;
    assert_eq!(shop.settings("r").delay, 901_000);
}

async fn a_tag_gives_messages_of_fifo_queues_delays_of_their_own(shop: Shop) {
    let tags = json!({"lockgate:fifo-delay": "true"});
    let url = shop.tagged_queue("q.fifo", json!({}), tags).await;
    let mut late = fifo_message(&url, "g", "late");
    late["DelaySeconds"] = json!(5);
    shop.ok("SendMessage", late.clone()).await;
    shop.send_fifo(&url, "g", "now").await;
    assert_eq!(
        shop.bodies(&url).await,
        ["now"],
        "a message not yet due locks nothing"
    );
    shop.ok("PurgeQueue", json!({"QueueUrl": url})).await;
    shop.ok("SendMessage", late.clone()).await;
    shop.pass(5_000);
    assert_eq!(shop.bodies(&url).await, ["late"]);
    shop.tag(&url, "lockgate:fifo-delay", "false").await;
    let (_, message) = shop.refused("SendMessage", late).await;
    assert!(
        message.contains("not valid for this queue type"),
        "{message}"
    );
}

async fn a_deduplication_window_of_its_own_outlasts_a_purge(shop: Shop) {
    let tags = json!({"lockgate:dedup-window": "1h"});
    let url = shop.tagged_queue("q.fifo", json!({}), tags).await;
    let first = shop.send_fifo(&url, "g", "a").await;
    shop.ok("PurgeQueue", json!({"QueueUrl": url})).await;
    shop.pass(3_599_999);
    let again = shop.send_fifo(&url, "g", "a").await;
    assert_eq!(again["MessageId"], first["MessageId"]);
    shop.pass(1);
    let later = shop.send_fifo(&url, "g", "a").await;
    assert_ne!(later["MessageId"], first["MessageId"]);

    let forever = json!({"QueueUrl": url, "Tags": {"lockgate:dedup-window": "forever"}});
    let (code, message) = shop.refused("TagQueue", forever).await;
    assert_eq!(code, "InvalidAttributeValue");
    assert!(
        message.contains("from its creation on or never"),
        "{message}"
    );
    let ever = json!({"QueueUrl": url, "Tags": {"lockgate:dedup-window": "ever"}});
    let (_, message) = shop.refused("TagQueue", ever).await;
    assert!(
        message.contains("a time from 0s to 3653d, or forever"),
        "{message}"
    );
    shop.untag(&url, "lockgate:dedup-window").await;
    assert_eq!(shop.settings("q.fifo").dedup_window, 300_000);
}

async fn the_memory_for_unique_ids_is_bounded_by_a_tag(shop: Shop) {
    let tags = json!({"lockgate:dedup-bytes-max": "64B"});
    let url = shop.tagged_queue("q.fifo", json!({}), tags).await;
    shop.send_fifo(&url, "g", "a").await;
    let (code, message) = shop
        .refused("SendMessage", fifo_message(&url, "g", "b"))
        .await;
    assert_eq!(code, "ServiceUnavailable");
    assert!(message.contains("unique ids"), "{message}");
}

async fn batches_are_as_large_as_a_tag_allows(shop: Shop) {
    let tags = json!({"lockgate:batch-max": "100"});
    let url = shop.tagged_queue("q", json!({}), tags).await;
    let batch = |count: u64, entry: &dyn Fn(u64) -> Value| {
        let entries: Vec<_> = (0..count).map(entry).collect();
        json!({"QueueUrl": url, "Entries": entries})
    };
    let send = |n: u64| json!({"Id": n.to_string(), "MessageBody": n.to_string()});
    let sent = shop.ok("SendMessageBatch", batch(100, &send)).await;
    assert_eq!(sent["Successful"].as_array().map(Vec::len), Some(100));
    let (code, message) = shop.refused("SendMessageBatch", batch(101, &send)).await;
    assert_eq!(code, "AWS.SimpleQueueService.TooManyEntriesInBatchRequest");
    assert_eq!(
        message,
        "Maximum number of entries per request are 100. You have sent 101."
    );
    let twice = |n: u64| json!({"Id": (n % 50).to_string(), "MessageBody": "x"});
    let (_, message) = shop.refused("SendMessageBatch", batch(100, &twice)).await;
    assert_eq!(message, "Id 0 repeated.");

    let receive = |max: u64| json!({"QueueUrl": url, "MaxNumberOfMessages": max});
    let (_, message) = shop.refused("ReceiveMessage", receive(101)).await;
    assert!(
        message.ends_with("Must be between 1 and 100, if provided."),
        "{message}"
    );
    let received = shop.ok("ReceiveMessage", receive(100)).await;
    let messages = received["Messages"].as_array().unwrap();
    assert_eq!(messages.len(), 100);
    let handle = |n: u64| messages[usize::try_from(n).unwrap()]["ReceiptHandle"].clone();
    let hide =
        |n: u64| json!({"Id": n.to_string(), "ReceiptHandle": handle(n), "VisibilityTimeout": 60});
    shop.ok("ChangeMessageVisibilityBatch", batch(100, &hide))
        .await;
    let delete = |n: u64| json!({"Id": n.to_string(), "ReceiptHandle": handle(n)});
    shop.ok("DeleteMessageBatch", batch(100, &delete)).await;
    assert_eq!(shop.counts(&url).await, [0, 0, 0]);

    shop.untag(&url, "lockgate:batch-max").await;
    let (_, message) = shop.refused("ReceiveMessage", receive(11)).await;
    assert!(
        message.ends_with("Must be between 1 and 10, if provided."),
        "{message}"
    );
}

async fn a_key_policy_parks_what_fails(shop: Shop) {
    let tags = json!({"lockgate:key-policy": "park", "lockgate:attempts-max": "2"});
    let url = shop.tagged_queue("q.fifo", json!({}), tags).await;
    for (group, id) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
        shop.send_fifo(&url, group, id).await;
    }
    let mut seen = vec![];
    for _ in 0..5 {
        seen.push(shop.one(&url, 1).await["Body"].clone());
        shop.pass(1_000);
    }
    let times = |body: &str| seen.iter().filter(|seen| **seen == body).count();
    assert_eq!(
        [times("a1"), times("a2"), times("b1")],
        [2, 0, 2],
        "{seen:?}"
    );
    // As without the tag: the first message comes again and again.
    shop.untag(&url, "lockgate:key-policy").await;
    assert_eq!(shop.settings("q.fifo").key_policy, None);
}

async fn skip_needs_somewhere_to_skip_to(shop: Shop) {
    let skip = json!({"lockgate:key-policy": "skip"});
    let create = json!({"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}, "tags": skip});
    let (code, message) = shop.refused("CreateQueue", create).await;
    assert_eq!(code, INVALID);
    assert!(message.contains("set a RedrivePolicy"), "{message}");
    shop.queue("dead.fifo", json!({})).await;
    let policy = r#"{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead.fifo","maxReceiveCount":1}"#;
    let attributes = json!({"RedrivePolicy": policy});
    let url = shop.tagged_queue("q.fifo", attributes, skip.clone()).await;
    shop.untag(&url, "lockgate:key-policy").await;
    shop.ok("TagQueue", json!({"QueueUrl": url, "Tags": skip}))
        .await;
}

async fn a_tag_makes_zero_visibility_cost_no_attempt(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    shop.send(&url, "x").await;
    let attempts = |message: &Value| text(&message["Attributes"]["ApproximateReceiveCount"]);
    let give_back = |message: &Value| json!({"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0});
    let first = shop.one(&url, 30).await;
    shop.ok("ChangeMessageVisibility", give_back(&first)).await;
    let second = shop.one(&url, 30).await;
    assert_eq!(attempts(&second), "2");
    shop.tag(&url, "lockgate:zero-visibility", "defer").await;
    shop.ok("ChangeMessageVisibility", give_back(&second)).await;
    let third = shop.one(&url, 30).await;
    assert_eq!(attempts(&third), "2", "the second attempt did not count");
}

async fn quotas_and_the_limit_in_flight_are_set_by_tags(shop: Shop) {
    let tags = json!({"lockgate:quota-messages": "2", "lockgate:in-flight-max": "1",
        "lockgate:quota-bytes": "1KiB"});
    let url = shop.tagged_queue("q", json!({}), tags).await;
    shop.send(&url, "a").await;
    shop.send(&url, "b").await;
    let send = |body: &str| json!({"QueueUrl": url, "MessageBody": body});
    let (code, message) = shop.refused("SendMessage", send("c")).await;
    assert_eq!(code, "ServiceUnavailable");
    assert!(message.contains("its quota_messages is 2"), "{message}");
    shop.untag(&url, "lockgate:quota-messages").await;
    let (_, message) = shop.refused("SendMessage", send(&"c".repeat(1_024))).await;
    assert!(message.contains("its quota_bytes is 1024"), "{message}");
    assert_eq!(shop.bodies(&url).await, ["a"]);
    let (code, _) = shop
        .refused("ReceiveMessage", json!({"QueueUrl": url}))
        .await;
    assert_eq!(code, "OverLimit");
}

async fn durability_is_set_by_a_tag(shop: Shop) {
    let tags = json!({"lockgate:level": "memory"});
    let url = shop.tagged_queue("q", json!({}), tags).await;
    assert_eq!(shop.settings("q").level, Level::Memory);
    shop.untag(&url, "lockgate:level").await;
    assert_eq!(shop.settings("q").level, Level::Disk);
    let replicated = json!({"QueueUrl": url, "Tags": {"lockgate:level": "replicated"}});
    let (code, message) = shop.refused("TagQueue", replicated).await;
    assert_eq!(code, INVALID);
    assert!(message.contains("the log reaches disk"), "{message}");
}

async fn what_a_power_cut_may_take_is_set_by_tags(shop: Shop) {
    let tags = json!({"lockgate:level": "process", "lockgate:sync-window": "50ms",
        "lockgate:sync-records": "1000"});
    let url = shop.tagged_queue("q", json!({}), tags).await;
    let window = |queue| {
        (
            shop.settings(queue).sync_window,
            shop.settings(queue).sync_records,
        )
    };
    assert_eq!(window("q"), (Some(50), Some(1000)));
    shop.untag(&url, "lockgate:sync-window").await;
    assert_eq!(window("q"), (None, Some(1000)));
    let bare = json!({"QueueUrl": url, "Tags": {"lockgate:sync-window": "50"}});
    let (code, message) = shop.refused("TagQueue", bare).await;
    assert_eq!(code, INVALID);
    assert!(message.contains("from 1ms to 1h"), "{message}");
}

async fn one_bad_tag_refuses_the_whole_call(shop: Shop) {
    for (tags, part) in [
        (
            json!({"a": "1", "lockgate:nope": "1"}),
            "these are known: lockgate:attempts-max, lockgate:batch-max",
        ),
        (
            json!({"a": "1", "lockgate:batch-max": "9"}),
            "Value 9 for parameter lockgate:batch-max is invalid. Reason: It must be a number from \
             10 to 1000.",
        ),
        (
            json!({"a": "1", "lockgate:fifo-delay": "true"}),
            "Only FIFO queues take this tag.",
        ),
    ] {
        let create = json!({"QueueName": "none", "tags": tags});
        let (code, message) = shop.refused("CreateQueue", create).await;
        assert_eq!(code, INVALID);
        assert!(message.contains(part), "{message}");
        let (code, _) = shop
            .refused("GetQueueUrl", json!({"QueueName": "none"}))
            .await;
        assert_eq!(code, "AWS.SimpleQueueService.NonExistentQueue");

        let url = shop.tagged_queue("q", json!({}), json!({"b": "2"})).await;
        let (_, message) = shop
            .refused("TagQueue", json!({"QueueUrl": url, "Tags": tags}))
            .await;
        assert!(message.contains(part), "{message}");
        assert_eq!(shop.tags(&url).await, json!({"b": "2"}));
    }
}

async fn the_previous_sequence_number_is_told_by_name_only(shop: Shop) {
    const NAME: &str = "lockgate.PrevSequenceNumber";
    let url = shop.queue("q.fifo", json!({})).await;
    shop.send_fifo(&url, "a", "1").await;
    shop.send_fifo(&url, "b", "2").await;
    let named = json!({"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0,
        "MessageSystemAttributeNames": ["SequenceNumber", NAME]});
    let output = shop.ok("ReceiveMessage", named).await;
    let numbers =
        |message: usize, name: &str| text(&output["Messages"][message]["Attributes"][name]);
    assert_eq!(
        numbers(0, NAME),
        "10000000000000000000",
        "there was none before"
    );
    assert_eq!(numbers(1, NAME), numbers(0, "SequenceNumber"));
    for message in shop.receive(&url).await {
        assert_eq!(
            message["Attributes"][NAME],
            Value::Null,
            "All does not ask for it"
        );
    }
}

/// What a receive that names both numbers in groups returns of each message.
async fn numbers_in_groups(shop: &Shop, url: &str) -> Vec<Value> {
    let input = json!({"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0,
        "MessageSystemAttributeNames": ["lockgate.KeySequence", "lockgate.PrevKeySequence"]});
    let output = shop.ok("ReceiveMessage", input).await;
    let messages = output["Messages"].as_array().unwrap().iter();
    messages
        .map(|message| message["Attributes"].clone())
        .collect()
}

async fn messages_are_numbered_group_by_group_where_a_tag_says_so(shop: Shop) {
    let number = |number: &str, before: &str| json!({"lockgate.KeySequence": number, "lockgate.PrevKeySequence": before});
    let tags = json!({"lockgate:key-sequences-max": "1000"});
    let url = shop.tagged_queue("q.fifo", json!({}), tags).await;
    for (group, id) in [("a", "1"), ("b", "2"), ("a", "3"), ("a", "3")] {
        shop.send_fifo(&url, group, id).await;
    }
    let [first, second] = [number("1", "0"), number("2", "1")];
    assert_eq!(
        numbers_in_groups(&shop, &url).await,
        [first.clone(), second, first.clone()],
        "a, a, b: a group's messages come together, and a duplicate took no number"
    );

    shop.ok("PurgeQueue", json!({"QueueUrl": url})).await;
    shop.send_fifo(&url, "b", "4").await;
    assert_eq!(numbers_in_groups(&shop, &url).await, [number("2", "1")]);

    shop.untag(&url, "lockgate:key-sequences-max").await;
    assert_eq!(shop.settings("q.fifo").key_sequences_max, 0);
    shop.send_fifo(&url, "b", "5").await;
    assert_eq!(
        numbers_in_groups(&shop, &url).await,
        [number("2", "1"), Value::Null],
        "those that have one keep it"
    );
    for value in ["-1", "100000001", "many"] {
        let tags = json!({"lockgate:key-sequences-max": value});
        let input = json!({"QueueUrl": url, "Tags": tags});
        assert_eq!(shop.refused("TagQueue", input).await.0, INVALID);
    }
}

async fn numbers_in_a_group_are_told_by_name_only(shop: Shop) {
    let tags = json!({"lockgate:key-sequences-max": "1000"});
    let url = shop.tagged_queue("q.fifo", json!({}), tags).await;
    shop.send_fifo(&url, "a", "1").await;
    let one = shop.one(&url, 0).await;
    assert_eq!(one["Attributes"]["MessageGroupId"], "a");
    for name in ["lockgate.KeySequence", "lockgate.PrevKeySequence"] {
        assert_eq!(one["Attributes"][name], Value::Null);
        let input = json!({"QueueUrl": url, "VisibilityTimeout": 0,
            "MessageSystemAttributeNames": [name]});
        let output = shop.ok("ReceiveMessage", input).await;
        let told = output["Messages"][0]["Attributes"].as_object().unwrap();
        assert_eq!(told.keys().collect::<Vec<_>>(), [name]);
    }
}

async fn a_dead_letter_keeps_its_number_in_the_group(shop: Shop) {
    let dead = shop.tagged_queue("dead.fifo", json!({}), json!({})).await;
    let arn = "arn:aws:sqs:us-east-1:000000000000:dead.fifo";
    let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
    let tags = json!({"lockgate:key-sequences-max": "1000"});
    let url = shop
        .tagged_queue("q.fifo", json!({"RedrivePolicy": policy}), tags)
        .await;
    shop.send_fifo(&url, "a", "1").await;
    shop.send_fifo(&url, "a", "2").await;
    assert_eq!(numbers_in_groups(&shop, &url).await.len(), 2);
    assert!(shop.one(&url, 0).await.is_null(), "both had their attempt");
    let there = numbers_in_groups(&shop, &dead).await;
    let numbers = there
        .iter()
        .map(|there| text(&there["lockgate.KeySequence"]));
    assert_eq!(numbers.collect::<Vec<_>>(), ["1", "2"]);
}
