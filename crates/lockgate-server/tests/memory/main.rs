//! What requests and answers cost in memory, counted by the allocator of the whole process: so there is
//! one test, and nothing beside it.

#![allow(clippy::unwrap_used, reason = "in tests a panic is the report")]

#[path = "../it/support.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod support;

use std::fmt::Write as _;

use peak_alloc::PeakAlloc;
use serde_json::{Value, json};

use support::{Answer, Raw, TestServer};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// What a request may cost: four times its bytes and this.
const FIXED: usize = 64 << 10;
/// What an answer with messages may cost: the messages as they are stored, the parts of them that go out,
/// and what is written, in a buffer that has grown to twice its length.
const ANSWER: usize = 80 << 20;

/// The largest body that a server takes, and one of which the fixed part is the larger one.
const LENS: [usize; 2] = [4 << 20, 8 << 10];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_requests_nor_answers_cost_more_memory_than_they_may() {
    let server = TestServer::start().await;
    server.sqs("CreateQueue", &json!({"QueueName": "q"})).await;
    let tagged = json!({"QueueName": "wide", "tags": {"lockgate:batch-max": "1000"}});
    server.sqs("CreateQueue", &tagged).await;
    let mut wrong = Vec::new();
    for len in LENS {
        for (name, request) in requests(len) {
            let (answer, cost) = cost(&server, &request).await;
            let most = 4 * request.len() + FIXED;
            let refused = (400..500).contains(&answer.status);
            if cost > most || !refused || answer.body.len() > 16 << 10 {
                let (of, status) = (request.len(), answer.status);
                wrong.push(format!(
                    "{name} of {of}: {cost} bytes, {most} allowed; {status}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    answers(&server).await;
    server.stop().await;
}

/// Asks on a connection that has answered before, and counts what is allocated at once meanwhile.
async fn cost(server: &TestServer, request: &[u8]) -> (Answer, usize) {
    let mut raw = server.connect().await;
    raw.send("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await;
    assert_eq!(raw.answer().await.status, 200);
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let answer = ask(&mut raw, request).await;
    // The client's own part is the answer.
    let peak = MEMORY.peak_usage().saturating_sub(answer.body.len());
    (answer, peak.saturating_sub(before))
}

async fn ask(raw: &mut Raw, request: &[u8]) -> Answer {
    raw.send(request).await;
    raw.answer().await
}

fn posted(path: &str, headers: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len}\r\n{headers}\r\n{body}"
    )
    .into()
}

/// `start`, then `part` again and again as long as it fits, then `end`. In `part` a `#` is how often it has
/// come, and an `@` the same, from 0 again after 999.
fn filled(len: usize, start: &str, part: &str, end: &str) -> String {
    let mut text = start.to_owned();
    if !part.contains(['#', '@']) {
        let room = len.saturating_sub(start.len() + end.len());
        return text + &part.repeat(room / part.len()) + end;
    }
    for number in 1.. {
        let part = part
            .replace('#', &number.to_string())
            .replace('@', &(number % 1000).to_string());
        if text.len() + part.len() + end.len() > len {
            break;
        }
        text += &part;
    }
    text + end
}

/// Requests that are all refused, of about `len` bytes.
fn requests(len: usize) -> Vec<(String, Vec<u8>)> {
    let mut requests = Vec::new();

    let form = |name: &str, text: &str| {
        let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
        (format!("form, {name}"), posted("/", kind, text))
    };
    let batch = "Action=SendMessageBatch&QueueUrl=q&";
    let wide = "Action=SendMessageBatch&QueueUrl=wide&";
    for (name, start, part, end) in [
        ("bare names", "", "a&", ""),
        ("escaped names", "", "%61=%41&", ""),
        (
            "a deep name",
            "Action=Nothing&",
            "SendMessageBatchRequestEntry.1.",
            "Id=a",
        ),
        (
            "a deep name of a batch",
            batch,
            "SendMessageBatchRequestEntry.1.",
            "Id=a",
        ),
        (
            "entries",
            batch,
            "SendMessageBatchRequestEntry.#.Id=i#&",
            "",
        ),
        (
            "entries where many are allowed",
            wide,
            "SendMessageBatchRequestEntry.#.Id=i&",
            "",
        ),
        (
            "entries of nothing where many are allowed",
            wide,
            "SendMessageBatchRequestEntry.@&",
            "",
        ),
        (
            "one entry again and again",
            batch,
            "DeleteMessageBatchRequestEntry.1.Id=&",
            "",
        ),
        (
            "attributes of an entry",
            batch,
            "SendMessageBatchRequestEntry.1.MessageAttribute.#.Name=a&",
            "",
        ),
        (
            "message attributes",
            "Action=SendMessage&QueueUrl=q&MessageBody=a&",
            "MessageAttribute.#.Name=a&",
            "",
        ),
        (
            "bare message attributes",
            "Action=SendMessage&QueueUrl=q&MessageBody=a&",
            "MessageAttribute.#&",
            "",
        ),
        (
            "queue attributes",
            "Action=SetQueueAttributes&QueueUrl=q&",
            "Attribute.#.Name=a#&",
            "",
        ),
        (
            "names of attributes",
            "Action=GetQueueAttributes&QueueUrl=q&",
            "AttributeName.#=%41&",
            "",
        ),
        (
            "keys of tags",
            "Action=UntagQueue&QueueUrl=q&TagKey.999999=&",
            "TagKey.#=&",
            "",
        ),
        (
            "a body of escapes",
            "Action=SendMessage&QueueUrl=q&DelaySeconds=x&MessageBody=",
            "%01",
            "",
        ),
        (
            "a number that is a long text",
            "Action=ReceiveMessage&QueueUrl=q&WaitTimeSeconds=",
            "%7f",
            "",
        ),
        (
            "a last byte that is no text",
            "Action=SendMessage&QueueUrl=q&MessageBody=",
            "x",
            "%ff",
        ),
    ] {
        let text = filled(len, start, part, end);
        requests.push(form(name, &text));
    }

    let aws = |name: &str, action: &str, text: &str| {
        let headers = format!(
            "X-Amz-Target: AmazonSQS.{action}\r\nContent-Type: application/x-amz-json-1.0\r\n"
        );
        (format!("AWS JSON, {name}"), posted("/", &headers, text))
    };
    let (send, many) = ("SendMessage", "SendMessageBatch");
    for (name, action, start, part, end) in [
        (
            "empty entries",
            many,
            "{\"QueueUrl\":\"q\",\"Entries\":[",
            "{},",
            "{}]}",
        ),
        (
            "entries to be deleted",
            "DeleteMessageBatch",
            "{\"QueueUrl\":\"q\",\"Entries\":[",
            "{\"Id\":\"#\"},",
            "{}]}",
        ),
        (
            "entries of attributes",
            many,
            "{\"QueueUrl\":\"q\",\"Entries\":[",
            "{\"MessageAttributes\":{\"a\":{\"StringListValues\":[\"\",\"\"]}}},",
            "{}]}",
        ),
        ("lists in lists", send, "", "[", ""),
        (
            "lists in a list that is not known",
            send,
            "{\"x\":",
            "[",
            "",
        ),
        ("objects in objects", send, "", "{\"a\":", ""),
        (
            "objects in objects that are not known",
            send,
            "{\"x\":",
            "{\"a\":",
            "",
        ),
        ("a list that is not known", send, "{\"x\":[", "0,", "0]}"),
        (
            "members that are not known",
            send,
            "{",
            "\"\\u0061#\":0,",
            "\"b\":0}",
        ),
        (
            "names of attributes",
            "ReceiveMessage",
            "{\"QueueUrl\":\"q\",\"MessageAttributeNames\":[",
            "\"\",",
            "0]}",
        ),
        (
            "names of attributes with escapes",
            "GetQueueAttributes",
            "{\"QueueUrl\":\"q\",\"AttributeNames\":[",
            "\"\\n\",",
            "\"\"]}",
        ),
        (
            "tags",
            "TagQueue",
            "{\"QueueUrl\":\"q\",\"Tags\":{",
            "\"#\":\"\",",
            "\"\":\"\"}}",
        ),
        (
            "message attributes",
            send,
            "{\"QueueUrl\":\"q\",\"MessageBody\":\"a\",\"MessageAttributes\":{",
            "\"#\":{},",
            "\"\":{}}}",
        ),
        (
            "values of an attribute",
            send,
            "{\"QueueUrl\":\"q\",\"MessageBody\":\"a\",\"MessageAttributes\":{\"a\":\
                 {\"StringListValues\":[",
            "\"\",",
            "\"\"]}}}",
        ),
        (
            "a body of escapes",
            send,
            "{\"QueueUrl\":\"q\",\"MessageBody\":\"",
            "\\n",
            "\\u0001\"}",
        ),
        (
            "a number of many digits",
            send,
            "{\"QueueUrl\":\"q\",\"DelaySeconds\":",
            "1",
            "}",
        ),
        (
            "a text where a number is wanted",
            send,
            "{\"QueueUrl\":\"q\",\"DelaySeconds\":\"",
            "\u{7f}",
            "\"}",
        ),
        (
            "a text where entries are wanted",
            many,
            "{\"QueueUrl\":\"q\",\"Entries\":\"",
            "\u{202e}",
            "\"}",
        ),
        ("a text", many, "\"", "\u{85}", "\""),
        (
            "a last byte that is none",
            send,
            "{\"QueueUrl\":\"q\",\"MessageBody\":\"",
            "x",
            "\"]",
        ),
        (
            "a policy of lists",
            "SetQueueAttributes",
            "{\"QueueUrl\":\"q\",\"Attributes\":{\"Policy\":\"{\\\"Statement\\\":[",
            "0,",
            "0]}\"}}",
        ),
        (
            "a redrive policy of objects",
            "SetQueueAttributes",
            "{\"QueueUrl\":\"q\",\"Attributes\":{\"RedrivePolicy\":\"{\\\"a\\\":[",
            "{},",
            "{}]}\"}}",
        ),
    ] {
        let text = filled(len, start, part, end);
        requests.push(aws(name, action, &text));
    }
    // As many as are allowed.
    let text = filled(
        len.min(3 * 1000),
        "{\"QueueUrl\":\"wide\",\"Entries\":[",
        "{},",
        "{}]}",
    );
    requests.push(aws("empty entries where many are allowed", many, &text));
    let text = filled(
        len.min(11 * 1000),
        "{\"QueueUrl\":\"wide\",\"Entries\":[",
        "{\"Id\":\"1\"},",
        "{}]}",
    );
    requests.push(aws(
        "entries with the same id where many are allowed",
        many,
        &text,
    ));

    let api = |name: &str, path: &str, text: &str| {
        let path = format!("/api/v1/{path}");
        let kind = "Content-Type: application/json\r\n";
        (format!("admin API, {name}"), posted(&path, kind, text))
    };
    let (messages, settles) = ("queues/q/messages", "queues/q/settle");
    for (name, path, start, part, end) in [
        (
            "messages",
            messages,
            "{\"messages\":[",
            "{\"body\":\"\"},",
            "0]}",
        ),
        ("empty messages", messages, "{\"messages\":[", "{},", "{}]}"),
        (
            "headers",
            messages,
            "{\"messages\":[{\"body\":\"\",\"headers\":{",
            "\"#\":{\"value\":\"\"},",
            "\"\":0}}],\"x\":0}",
        ),
        (
            "leases",
            settles,
            "{\"settles\":[",
            "{\"receipt\":\"\",\"action\":\"ack\"},",
            "0]}",
        ),
        (
            "sends of a transaction",
            "transactions",
            "{\"sends\":[",
            "{\"queue\":\"\",\"message\":{\"body\":\"\"}},",
            "0]}",
        ),
        (
            "tags",
            "queues",
            "{\"name\":\"a b\",\"tags\":{",
            "\"#\":\"\",",
            "\"\":\"\"}}",
        ),
        ("a field that is not known", "queues", "{\"", "\\n", "\":0}"),
        ("a name", "queues", "{\"name\":\"", "\u{7f}", "\"}"),
        (
            "a text where a word is wanted",
            "queues",
            "{\"name\":\"a\",\"settings\":{\"level\":\"",
            "\u{7f}",
            "\"}}",
        ),
        (
            "a body of escapes",
            messages,
            "{\"messages\":[{\"body\":\"",
            "\\n",
            "\"}],\"x\":0}",
        ),
        ("lists in lists", messages, "{\"messages\":", "[", ""),
        ("objects in objects", "queues", "", "{\"settings\":", ""),
        (
            "a last byte that is none",
            messages,
            "{\"messages\":[{\"body\":\"",
            "x",
            "\"}]]",
        ),
    ] {
        let text = filled(len, start, part, end);
        requests.push(api(name, path, &text));
    }
    requests
}

/// How many messages of which each byte is six in JSON there are.
const MESSAGES: usize = 20;

async fn answers(server: &TestServer) {
    server
        .sqs("CreateQueue", &json!({"QueueName": "large"}))
        .await;
    // A mebibyte of bytes 1, in base64.
    let body = "AQEB".repeat((1 << 20) / 3);
    for _ in 0..MESSAGES {
        let message = json!({"messages": [{"body": body, "body_encoding": "base64"}]});
        let sent = admin(server, "messages", &message).await.0;
        assert_eq!(sent["results"][0]["outcome"], "sent", "{sent}");
    }
    drop(body);

    // Pages of a look end where they are full, and say so.
    let mut seen = Vec::new();
    let mut page = String::new();
    loop {
        let address = format!("/api/v1/queues/large/messages?limit=100{page}");
        let request = format!("GET {address} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let (answer, cost) = cost(server, request.as_bytes()).await;
        assert_eq!(answer.status, 200, "{:.200}", answer.body);
        assert!(answer.body.len() <= 17 << 20, "{} bytes", answer.body.len());
        assert!(cost <= ANSWER, "a look cost {cost} bytes");
        let found: Value = serde_json::from_str(&answer.body).unwrap();
        let messages = found["messages"].as_array().unwrap();
        assert!(!messages.is_empty());
        seen.extend(
            messages
                .iter()
                .map(|message| message["sequence"].as_u64().unwrap()),
        );
        match found["next_page"].as_str() {
            Some(next) => {
                page.clear();
                write!(page, "&page={next}").unwrap();
            }
            None => break,
        }
    }
    assert_eq!(seen.len(), MESSAGES);
    assert!(seen.is_sorted_by(|one, next| one < next), "{seen:?}");

    // Receives take fewer messages. What they had no room for is as if it had never been taken.
    let mut taken = 0;
    while taken < MESSAGES / 2 {
        let (received, cost) = admin(server, "receive", &json!({"max": 100})).await;
        assert!(cost <= ANSWER, "a receive cost {cost} bytes");
        let messages = received["messages"].as_array().unwrap();
        assert!((1..=3).contains(&messages.len()), "{}", messages.len());
        for message in messages {
            assert_eq!(message["attempt"], 1);
        }
        taken += messages.len();
    }
    for (json, most) in [(true, 3), (false, 6)] {
        let request = if json {
            let asked = json!({"QueueUrl": "large", "MaxNumberOfMessages": 10,
                "AttributeNames": ["ApproximateReceiveCount"]});
            TestServer::sqs_request("ReceiveMessage", &asked).into_bytes()
        } else {
            let asked = "Action=ReceiveMessage&QueueUrl=large&MaxNumberOfMessages=10\
                &AttributeName=ApproximateReceiveCount";
            posted(
                "/",
                "Content-Type: application/x-www-form-urlencoded\r\n",
                asked,
            )
        };
        let (answer, cost) = cost(server, &request).await;
        assert_eq!(answer.status, 200, "{:.200}", answer.body);
        assert!(cost <= ANSWER, "a receive cost {cost} bytes");
        let name = if json {
            "\"ReceiptHandle\""
        } else {
            "<ReceiptHandle>"
        };
        let messages = answer.body.matches(name).count();
        assert!((1..=most).contains(&messages), "{messages}");
        let count = if json {
            answer
                .body
                .matches("\"ApproximateReceiveCount\":\"1\"")
                .count()
        } else {
            answer.body.matches("<Value>1</Value>").count()
        };
        assert_eq!(count, messages, "an attempt was counted that nobody had");
        taken += messages;
    }
    let asked = json!({"QueueUrl": "large", "AttributeNames": ["All"]});
    let attributes = server.sqs("GetQueueAttributes", &asked).await;
    let in_flight = &attributes["Attributes"]["ApproximateNumberOfMessagesNotVisible"];
    assert_eq!(*in_flight, taken.to_string());
}

/// Posts to the queue `large` over the admin API.
async fn admin(server: &TestServer, what: &str, body: &Value) -> (Value, usize) {
    let path = format!("/api/v1/queues/large/{what}");
    let request = posted(
        &path,
        "Content-Type: application/json\r\n",
        &body.to_string(),
    );
    let (answer, cost) = cost(server, &request).await;
    assert_eq!(answer.status, 200, "{:.300}", answer.body);
    (serde_json::from_str(&answer.body).unwrap(), cost)
}
