//! Queues: making, finding, describing, tagging, emptying, removing.

use serde_json::{Value, json};

use super::{Shop, protocols::in_both_protocols, text};

in_both_protocols![
    a_queue_is_made_once_and_found_by_name,
    two_callers_who_make_the_same_queue_at_once_both_get_it,
    queues_are_listed_by_prefix_and_in_pages,
    attributes_are_returned_as_asked_for,
    changed_attributes_stay_over_a_restart,
    of_changes_at_once_none_is_lost,
    tags_are_added_replaced_and_removed,
    a_purge_empties_and_is_not_repeated_within_a_minute,
    a_deleted_queue_is_gone_and_its_name_free,
    sources_of_a_dead_letter_queue_are_listed,
    a_queue_that_names_itself_for_its_dead_letters_keeps_them,
];

async fn a_queue_is_made_once_and_found_by_name(shop: Shop) {
    let url = shop.queue("orders", json!({"DelaySeconds": "5"})).await;
    assert_eq!(url, "http://localhost:9324/000000000000/orders");
    let found = shop.ok("GetQueueUrl", json!({"QueueName": "orders"})).await;
    assert_eq!(found, json!({"QueueUrl": url}));
    let owned = json!({"QueueName": "orders", "QueueOwnerAWSAccountId": "000000000000"});
    assert_eq!(shop.ok("GetQueueUrl", owned).await, found);
    // Again: with the same attributes, with a part of them, with none.
    for attributes in [
        json!({"DelaySeconds": "5"}),
        json!({"VisibilityTimeout": "30"}),
        json!({}),
    ] {
        assert_eq!(shop.queue("orders", attributes).await, url);
    }
    let other = json!({"QueueName": "orders",
        "Attributes": {"DelaySeconds": "6", "VisibilityTimeout": "30"}});
    let answer = shop.ask("CreateQueue", other).await;
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.error(),
        (
            "QueueAlreadyExists".into(),
            "A queue already exists with the same name and a different value for attribute \
             DelaySeconds"
                .into()
        )
    );
}

async fn two_callers_who_make_the_same_queue_at_once_both_get_it(shop: Shop) {
    let create = |delay: &str| {
        let input = json!({"QueueName": "q", "Attributes": {"DelaySeconds": delay}});
        shop.ask("CreateQueue", input)
    };
    let (a, b, c) = tokio::join!(create("1"), create("1"), create("2"));
    assert_eq!((a.status, b.status, c.status), (200, 200, 400));
    assert_eq!(c.error().0, "QueueAlreadyExists");
}

async fn queues_are_listed_by_prefix_and_in_pages(shop: Shop) {
    assert_eq!(shop.ok("ListQueues", json!({})).await, json!({}));
    for name in ["b2", "a", "b1", "b3"] {
        shop.queue(name, json!({})).await;
    }
    let names = |output: &Value| {
        let urls = output["QueueUrls"].as_array().cloned().unwrap_or_default();
        let name = |url: &Value| text(url).rsplit('/').next().unwrap().to_owned();
        urls.iter().map(name).collect::<Vec<_>>().join(" ")
    };
    let all = shop.ok("ListQueues", json!({})).await;
    assert_eq!(names(&all), "a b1 b2 b3");
    assert_eq!(all.get("NextToken"), None);
    let first = shop
        .ok(
            "ListQueues",
            json!({"QueueNamePrefix": "b", "MaxResults": 2}),
        )
        .await;
    assert_eq!(names(&first), "b1 b2");
    let next = json!({"QueueNamePrefix": "b", "MaxResults": 2, "NextToken": first["NextToken"]});
    let second = shop.ok("ListQueues", next).await;
    assert_eq!(names(&second), "b3");
    assert_eq!(second.get("NextToken"), None);
    let none = shop.ok("ListQueues", json!({"QueueNamePrefix": "x"})).await;
    assert_eq!(none, json!({}));
}

async fn attributes_are_returned_as_asked_for(shop: Shop) {
    let url = shop.queue("q", json!({"VisibilityTimeout": "77"})).await;
    let ask = async |names: Value| {
        let input = json!({"QueueUrl": url, "AttributeNames": names});
        shop.ok("GetQueueAttributes", input).await
    };
    let created = (shop.engine.now().wall.0 / 1000).to_string();
    assert_eq!(
        ask(json!(["All"])).await,
        json!({"Attributes": {
            "ApproximateNumberOfMessages": "0",
            "ApproximateNumberOfMessagesDelayed": "0",
            "ApproximateNumberOfMessagesNotVisible": "0",
            "CreatedTimestamp": created,
            "DelaySeconds": "0",
            "LastModifiedTimestamp": created,
            "MaximumMessageSize": "1048576",
            "MessageRetentionPeriod": "345600",
            "QueueArn": "arn:aws:sqs:us-east-1:000000000000:q",
            "ReceiveMessageWaitTimeSeconds": "0",
            "SqsManagedSseEnabled": "true",
            "VisibilityTimeout": "77",
        }})
    );
    assert_eq!(ask(json!([])).await, json!({}));
    assert_eq!(
        ask(json!(["VisibilityTimeout", "Policy"])).await,
        json!({"Attributes": {"VisibilityTimeout": "77"}})
    );
}

async fn changed_attributes_stay_over_a_restart(shop: Shop) {
    let url = shop.queue("q.fifo", json!({})).await;
    let dead = shop.queue("dead.fifo", json!({})).await;
    shop.pass(5_000);
    let policy = json!({
        "deadLetterTargetArn": shop.attribute(&dead, "QueueArn").await,
        "maxReceiveCount": "3",
    });
    let attributes = json!({
        "VisibilityTimeout": "1",
        "DeduplicationScope": "messageGroup",
        "FifoThroughputLimit": "perMessageGroupId",
        "ContentBasedDeduplication": "true",
        "Policy": "{\"Version\":\"2012-10-17\"}",
        "KmsMasterKeyId": "key",
        "RedrivePolicy": policy.to_string(),
    });
    let change = json!({"QueueUrl": url, "Attributes": attributes});
    assert_eq!(shop.ok("SetQueueAttributes", change).await, json!({}));
    let all = json!({"QueueUrl": url, "AttributeNames": ["All"]});
    let before = shop.ok("GetQueueAttributes", all.clone()).await;
    let seen = &before["Attributes"];
    for (name, value) in attributes.as_object().unwrap() {
        if name != "RedrivePolicy" {
            assert_eq!(&seen[name], value, "{name}");
        }
    }
    assert_eq!(
        seen["RedrivePolicy"],
        "{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:000000000000:dead.fifo\",\
         \"maxReceiveCount\":3}"
    );
    assert_eq!(seen["SqsManagedSseEnabled"], "false");
    let seconds = |name: &str| text(&seen[name]).parse::<u64>().unwrap();
    assert_eq!(
        seconds("LastModifiedTimestamp") - seconds("CreatedTimestamp"),
        5
    );
    let shop = shop.reopened().await;
    assert_eq!(shop.ok("GetQueueAttributes", all).await, before);
    // An empty policy removes it.
    let clear = json!({"QueueUrl": url, "Attributes": {"RedrivePolicy": "", "Policy": ""}});
    shop.ok("SetQueueAttributes", clear).await;
    assert_eq!(shop.attribute(&url, "RedrivePolicy").await, Value::Null);
    assert_eq!(shop.attribute(&url, "Policy").await, Value::Null);
}

async fn of_changes_at_once_none_is_lost(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    let set = |name: &str, value: &str| {
        let input = json!({"QueueUrl": url, "Attributes": {name: value}});
        shop.ask("SetQueueAttributes", input)
    };
    let tag = |key: &str| shop.ask("TagQueue", json!({"QueueUrl": url, "Tags": {key: "x"}}));
    let done = tokio::join!(
        set("DelaySeconds", "1"),
        set("VisibilityTimeout", "2"),
        set("ReceiveMessageWaitTimeSeconds", "3"),
        tag("a"),
        tag("b"),
    );
    assert_eq!(done.0.status, 200);
    assert_eq!(shop.attribute(&url, "DelaySeconds").await, "1");
    assert_eq!(shop.attribute(&url, "VisibilityTimeout").await, "2");
    assert_eq!(
        shop.attribute(&url, "ReceiveMessageWaitTimeSeconds").await,
        "3"
    );
    let tags = shop.ok("ListQueueTags", json!({"QueueUrl": url})).await;
    assert_eq!(tags, json!({"Tags": {"a": "x", "b": "x"}}));
}

async fn tags_are_added_replaced_and_removed(shop: Shop) {
    let create = json!({"QueueName": "q", "tags": {"one": "1"}});
    let url = text(&shop.ok("CreateQueue", create).await["QueueUrl"]);
    let list = async || shop.ok("ListQueueTags", json!({"QueueUrl": url})).await;
    assert_eq!(list().await, json!({"Tags": {"one": "1"}}));
    let add = json!({"QueueUrl": url, "Tags": {"one": "uno", "empty": "", "ü": "€"}});
    shop.ok("TagQueue", add).await;
    assert_eq!(
        list().await,
        json!({"Tags": {"one": "uno", "empty": "", "ü": "€"}})
    );
    let remove = json!({"QueueUrl": url, "TagKeys": ["one", "empty", "ü", "absent"]});
    shop.ok("UntagQueue", remove).await;
    assert_eq!(list().await, json!({}));
    // Fifty are allowed, one more is not and changes nothing.
    let many = |from: u32, to: u32| {
        let tags: serde_json::Map<_, _> =
            (from..to).map(|n| (format!("k{n}"), json!("v"))).collect();
        json!({"QueueUrl": url, "Tags": tags})
    };
    shop.ok("TagQueue", many(0, 50)).await;
    let (code, message) = shop.refused("TagQueue", many(50, 51)).await;
    assert_eq!(code, "InvalidParameterValue");
    assert_eq!(message, "Too many tags added for queue q.");
    assert_eq!(list().await["Tags"].as_object().unwrap().len(), 50);
}

async fn a_purge_empties_and_is_not_repeated_within_a_minute(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    let input = json!({"QueueUrl": url});
    for _ in 0..3 {
        shop.send(&url, "x").await;
    }
    let held = json!({"QueueUrl": url, "MaxNumberOfMessages": 1});
    shop.ok("ReceiveMessage", held).await;
    let delayed = json!({"QueueUrl": url, "MessageBody": "x", "DelaySeconds": 9});
    shop.ok("SendMessage", delayed).await;
    assert_eq!(shop.counts(&url).await, [2, 1, 1]);
    shop.ok("PurgeQueue", input.clone()).await;
    assert_eq!(shop.counts(&url).await, [0, 0, 0]);
    let answer = shop.ask("PurgeQueue", input.clone()).await;
    assert_eq!(answer.status, 403);
    assert_eq!(
        answer.error(),
        (
            "AWS.SimpleQueueService.PurgeQueueInProgress".into(),
            "Only one PurgeQueue operation on q is allowed every 60 seconds.".into()
        )
    );
    shop.pass(60_000);
    shop.ok("PurgeQueue", input).await;
}

async fn a_deleted_queue_is_gone_and_its_name_free(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    shop.send(&url, "x").await;
    let input = json!({"QueueUrl": url});
    assert_eq!(shop.ok("DeleteQueue", input.clone()).await, json!({}));
    for (action, input) in [
        ("DeleteQueue", input.clone()),
        ("SendMessage", json!({"QueueUrl": url, "MessageBody": "x"})),
        ("ReceiveMessage", input),
        ("GetQueueUrl", json!({"QueueName": "q"})),
    ] {
        let (code, message) = shop.refused(action, input).await;
        assert_eq!(code, "AWS.SimpleQueueService.NonExistentQueue", "{action}");
        assert_eq!(message, "The specified queue does not exist.");
    }
    shop.queue("q", json!({"DelaySeconds": "1"})).await;
    assert_eq!(shop.counts(&url).await, [0, 0, 0]);
}

async fn sources_of_a_dead_letter_queue_are_listed(shop: Shop) {
    let dead = shop.queue("dead", json!({})).await;
    let arn = shop.attribute(&dead, "QueueArn").await;
    let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
    shop.queue("other", json!({})).await;
    let mut expected = vec![];
    for name in ["s1", "s2"] {
        expected.push(shop.queue(name, json!({"RedrivePolicy": policy})).await);
    }
    let list = json!({"QueueUrl": dead});
    let output = shop.ok("ListDeadLetterSourceQueues", list).await;
    assert_eq!(output, json!({"queueUrls": expected}));
    let none = json!({"QueueUrl": expected[0]});
    let output = shop.ok("ListDeadLetterSourceQueues", none).await;
    assert_eq!(output, json!({"queueUrls": []}));
}

async fn a_queue_that_names_itself_for_its_dead_letters_keeps_them(shop: Shop) {
    let url = shop.queue("q", json!({"VisibilityTimeout": "0"})).await;
    let arn = shop.attribute(&url, "QueueArn").await;
    let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 1}).to_string();
    let set = async |policy: &str| {
        let input = json!({"QueueUrl": url, "Attributes": {"RedrivePolicy": policy}});
        shop.ok("SetQueueAttributes", input).await;
    };
    set(&policy).await;
    assert_eq!(shop.attribute(&url, "RedrivePolicy").await, policy);
    shop.send(&url, "a").await;
    for _ in 0..3 {
        assert_eq!(shop.bodies(&url).await, ["a"]);
    }
    set("").await;
    assert_eq!(shop.attribute(&url, "RedrivePolicy").await, json!(null));
}
