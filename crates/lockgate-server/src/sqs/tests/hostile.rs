//! Requests that no client would send: every one must get an answer in SQS's form.

use lockgate_sim::SeededRandom;
use serde_json::{Value, json};

use super::Shop;

/// A well-formed request for every action. `$q` and `$f` are queues, `$r` a receipt handle.
fn requests() -> Vec<(&'static str, Value)> {
    let attributes = json!({"a": {"DataType": "String", "StringValue": "x"},
        "b": {"DataType": "Binary", "BinaryValue": "AAE="}});
    let entry = json!({"Id": "1", "MessageBody": "x", "DelaySeconds": 0,
        "MessageAttributes": attributes, "MessageGroupId": "g", "MessageDeduplicationId": "d"});
    let settle = json!([{"Id": "1", "ReceiptHandle": "$r", "VisibilityTimeout": 1}]);
    vec![
        (
            "CreateQueue",
            json!({"QueueName": "q", "Attributes": {"DelaySeconds": "0"},
            "tags": {"k": "v"}}),
        ),
        (
            "CreateQueue",
            json!({"QueueName": "n.fifo", "Attributes": {"FifoQueue": "true",
            "RedrivePolicy": "{\"deadLetterTargetArn\":\"arn:aws:sqs:us-east-1:000000000000:\
            f.fifo\",\"maxReceiveCount\":3}"}}),
        ),
        ("GetQueueUrl", json!({"QueueName": "q"})),
        (
            "ListQueues",
            json!({"QueueNamePrefix": "q", "MaxResults": 5, "NextToken": "cQ"}),
        ),
        (
            "ListDeadLetterSourceQueues",
            json!({"QueueUrl": "$q", "MaxResults": 5}),
        ),
        (
            "GetQueueAttributes",
            json!({"QueueUrl": "$q", "AttributeNames": ["All"]}),
        ),
        (
            "SetQueueAttributes",
            json!({"QueueUrl": "$q", "Attributes": {"VisibilityTimeout": "3",
            "Policy": "{}"}}),
        ),
        ("TagQueue", json!({"QueueUrl": "$q", "Tags": {"a": "b"}})),
        ("UntagQueue", json!({"QueueUrl": "$q", "TagKeys": ["a"]})),
        ("ListQueueTags", json!({"QueueUrl": "$q"})),
        ("PurgeQueue", json!({"QueueUrl": "$q"})),
        (
            "SendMessage",
            json!({"QueueUrl": "$q", "MessageBody": "x", "DelaySeconds": 0,
            "MessageAttributes": attributes, "MessageSystemAttributes": {"AWSTraceHeader":
            {"DataType": "String", "StringValue": "Root=1"}}}),
        ),
        (
            "SendMessage",
            json!({"QueueUrl": "$f", "MessageBody": "x", "MessageGroupId": "g",
            "MessageDeduplicationId": "d"}),
        ),
        (
            "SendMessageBatch",
            json!({"QueueUrl": "$f", "Entries": [entry]}),
        ),
        (
            "ReceiveMessage",
            json!({"QueueUrl": "$q", "MaxNumberOfMessages": 3,
            "VisibilityTimeout": 1, "AttributeNames": ["All"], "MessageAttributeNames": [".*"],
            "ReceiveRequestAttemptId": "x"}),
        ),
        (
            "DeleteMessage",
            json!({"QueueUrl": "$q", "ReceiptHandle": "$r"}),
        ),
        (
            "DeleteMessageBatch",
            json!({"QueueUrl": "$q", "Entries": settle}),
        ),
        (
            "ChangeMessageVisibility",
            json!({"QueueUrl": "$q", "ReceiptHandle": "$r",
            "VisibilityTimeout": 5}),
        ),
        (
            "ChangeMessageVisibilityBatch",
            json!({"QueueUrl": "$q", "Entries": settle}),
        ),
    ]
}

/// Values that break careless readers.
fn naughty(random: &mut SeededRandom) -> Value {
    let values = [
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!(" "),
        json!("\u{0}"),
        json!("\u{ffff}\u{fffe}"),
        json!("\u{202e}\u{1f4a9}"),
        json!("%s%n{}$(x)'\"\\;--"),
        json!("../../../etc/passwd"),
        json!("x".repeat(300)),
        json!("9".repeat(400)),
        json!("http://localhost:9324/000000000000/"),
        json!([]),
        json!({}),
        json!([[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]),
        json!({"a": {"a": {"a": {"a": {"a": {}}}}}}),
        json!(["All", "All", ".*", "", null]),
        json!({"": "", "a": null}),
    ];
    values[pick(random, values.len())].clone()
}

fn pick(random: &mut SeededRandom, below: usize) -> usize {
    usize::try_from(random.below(below as u64)).unwrap()
}

/// Replaces, removes or adds something at a random place.
fn mutate(value: &mut Value, random: &mut SeededRandom) {
    let deeper = random.below(3) != 0;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let at = pick(random, map.len());
            let key = map.keys().nth(at).unwrap().clone();
            match random.below(8) {
                0 => {
                    map.remove(&key);
                }
                1 => {
                    map.insert("\u{0}\u{202e}unknown".repeat(3), naughty(random));
                }
                _ => mutate(&mut map[&key], random),
            }
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let at = pick(random, list.len());
            match random.below(8) {
                0 => {
                    list.remove(at);
                }
                1 => {
                    let copy = list[at].clone();
                    list.resize(list.len() + pick(random, 12), copy);
                }
                _ => mutate(&mut list[at], random),
            }
        }
        _ => *value = naughty(random),
    }
}

#[tokio::test]
async fn no_request_brings_the_service_down() {
    let seed = 0x5109_c0de;
    println!("seed {seed:#x}");
    let mut random = SeededRandom::new(seed);
    let shop = Shop::open();
    let standard = shop.queue("q", json!({})).await;
    let fifo = shop.queue("f.fifo", json!({})).await;
    shop.send(&standard, "x").await;
    let message = shop.receive(&standard).await.remove(0);
    let handle = super::text(&message["ReceiptHandle"]);
    let requests = requests();
    for round in 0..4_000u32 {
        let (action, mut input) = requests[pick(&mut random, requests.len())].clone();
        for _ in 0..random.below(4) {
            mutate(&mut input, &mut random);
        }
        let input = input
            .to_string()
            .replace("$q", &standard)
            .replace("$f", &fifo)
            .replace("$r", &handle);
        let mut body = input.into_bytes();
        // Some are not even JSON.
        if random.below(4) == 0 && !body.is_empty() {
            match random.below(4) {
                0 => body.truncate(pick(&mut random, body.len())),
                1 => {
                    let at = pick(&mut random, body.len());
                    body[at] ^= 1 << random.below(8);
                }
                2 => {
                    let at = pick(&mut random, body.len());
                    body.insert(at, random.bytes(1)[0]);
                }
                _ => body.extend_from_slice(b"}{"),
            }
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        let answer = shop.raw(Some(&format!("AmazonSQS.{action}")), body).await;
        match answer.status {
            200 => {}
            400..=499 => {
                let (code, message) = answer.error();
                assert!(!code.is_empty() && message.len() < 3_000, "{action} {text}");
            }
            _ => panic!("round {round}: {action} {text}: {answer:?}"),
        }
    }
    // The service still works.
    let url = shop.queue("after", json!({})).await;
    shop.send(&url, "x").await;
    assert_eq!(shop.bodies(&url).await, ["x"]);
}

#[tokio::test]
async fn deep_nesting_and_odd_encodings_are_refused() {
    let shop = Shop::open();
    let deep = |open: &str, close: &str| {
        format!(
            "{{\"QueueUrl\":{}1{}}}",
            open.repeat(100_000),
            close.repeat(100_000)
        )
    };
    for body in [
        deep("[", "]").into_bytes(),
        deep("{\"a\":", "}").into_bytes(),
        format!(
            "{{\"unknown\":{}{}}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        )
        .into_bytes(),
        vec![0xff, 0xfe, b'{', 0, b'}', 0],
        b"\xef\xbb\xbf{}".to_vec(),
        vec![0; 1 << 20],
        b"{\"QueueUrl\":\"\xff\"}".to_vec(),
        "[".repeat(1 << 20).into_bytes(),
        b"{\"QueueUrl\":\"a\",\"QueueUrl\":\"b\"}".to_vec(),
    ] {
        let answer = shop.raw(Some("AmazonSQS.DeleteQueue"), body).await;
        assert_eq!(answer.status, 400, "{answer:?}");
    }
    for target in [
        "",
        "AmazonSQS.",
        "AmazonSQS",
        "\u{202e}",
        "SendMessage",
        &"x".repeat(70_000),
    ] {
        let answer = shop.raw(Some(target), "{}").await;
        assert_eq!(answer.error().0, "InvalidAction", "{target:.40}");
        assert!(answer.error().1.len() < 300);
    }
}

#[tokio::test]
async fn huge_maps_are_refused_without_being_kept() {
    let shop = Shop::open();
    let url = shop.queue("q", json!({})).await;
    let attributes: serde_json::Map<_, _> = (0..20_000)
        .map(|n| {
            let value = json!({"DataType": "String", "StringValue": "x"});
            (format!("a{n}"), value)
        })
        .collect();
    let send = json!({"QueueUrl": url, "MessageBody": "x", "MessageAttributes": attributes});
    let (code, message) = shop.refused("SendMessage", send).await;
    assert_eq!(code, "InvalidParameterValue");
    assert_eq!(
        message,
        "Number of message attributes [20000] exceeds the allowed maximum [10]."
    );
    let entries = vec![json!({"Id": "1", "MessageBody": "x"}); 20_000];
    let (code, _) = shop
        .refused(
            "SendMessageBatch",
            json!({"QueueUrl": url, "Entries": entries}),
        )
        .await;
    assert_eq!(code, "AWS.SimpleQueueService.TooManyEntriesInBatchRequest");
}
