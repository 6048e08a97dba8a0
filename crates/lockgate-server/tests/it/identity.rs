//! Who may do what, over the wire.

use hyper::{HeaderMap, header::HeaderValue};
use lockgate_server::{AccessKey, Authentication, Grant, Names, Secret, Verb};
use serde_json::{Value, json};

use crate::support::{Answer, TestServer, sign};

const HOST: &str = "queue.example:9324";

fn key(id: &str, grants: &[(&str, &[Verb])]) -> AccessKey {
    AccessKey {
        id: id.to_owned(),
        secret: Secret::new(format!("secret of {id}")),
        grants: grants
            .iter()
            .map(|(queues, verbs)| Grant {
                on: Names::Queues((*queues).to_owned()),
                verbs: verbs.to_vec(),
            })
            .collect(),
    }
}

const MOVES: &[Verb] = &[Verb::Receive, Verb::Read];

async fn start() -> TestServer {
    TestServer::start_with(|options| {
        options.authentication = Authentication::AccessKeys(vec![
            key("ADMIN", &[("*", &Verb::ALL)]),
            key("PRODUCER", &[("orders*", &[Verb::Send, Verb::Read])]),
            key("CONSUMER", &[("orders", &[Verb::Receive])]),
            key("OWNER", &[("mine", &Verb::ALL), ("orders", &[Verb::Send])]),
            key("NOBODY", &[]),
            key("MOVER", &[("dead", MOVES), ("orders", &[Verb::Send])]),
        ]);
    })
    .await
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// A signed call, changed on its way by `tamper`.
async fn call_with(
    server: &TestServer,
    id: &str,
    secret: &str,
    at: i64,
    action: &str,
    input: &Value,
    tamper: impl FnOnce(&mut HeaderMap, &mut String),
) -> Answer {
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_static(HOST));
    let target = format!("AmazonSQS.{action}");
    headers.insert("x-amz-target", HeaderValue::try_from(target).unwrap());
    let mut body = input.to_string();
    sign("POST /", &mut headers, &body, (id, secret), at);
    tamper(&mut headers, &mut body);
    let mut request = "POST / HTTP/1.1\r\n".to_owned();
    for (name, value) in &headers {
        request.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap()));
    }
    request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    server.ask(request).await
}

async fn call(server: &TestServer, id: &str, action: &str, input: Value) -> Answer {
    let secret = format!("secret of {id}");
    call_with(server, id, &secret, now(), action, &input, |_, _| ()).await
}

fn code(answer: &Answer) -> String {
    let header = answer.header("x-amzn-query-error").unwrap_or_default();
    header.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn only_whom_the_signature_names_is_served() {
    let server = start().await;
    let ok = call(&server, "ADMIN", "ListQueues", json!({})).await;
    assert_eq!(ok.status, 200, "{ok:?}");
    let refused = |answer: Answer, status, expected: &str| {
        assert_eq!(
            (answer.status, &*code(&answer)),
            (status, expected),
            "{answer:?}"
        );
        let id = answer.header("x-amzn-requestid");
        assert_eq!(id.map(str::len), Some(36), "{answer:?}");
    };
    let input = json!({});
    let (id, secret) = ("ADMIN", "secret of ADMIN");
    let with = async |id, secret, at, tamper: fn(&mut HeaderMap, &mut String)| {
        call_with(&server, id, secret, at, "ListQueues", &input, tamper).await
    };
    let insert = |headers: &mut HeaderMap, name: &'static str, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    let none = with(id, secret, now(), |headers, _| {
        headers.remove("authorization");
    });
    refused(none.await, 403, "MissingAuthenticationToken");
    refused(
        with("OTHER", secret, now(), |_, _| ()).await,
        403,
        "InvalidClientTokenId",
    );
    refused(
        with(id, "another secret", now(), |_, _| ()).await,
        403,
        "SignatureDoesNotMatch",
    );
    refused(
        with(id, secret, now() - 16 * 60, |_, _| ()).await,
        400,
        "RequestExpired",
    );
    refused(
        with(id, secret, now() + 16 * 60, |_, _| ()).await,
        400,
        "RequestExpired",
    );
    let body = with(id, secret, now(), |_, body| body.push(' '));
    refused(body.await, 403, "SignatureDoesNotMatch");
    let target = with(id, secret, now(), |headers, _| {
        headers.insert(
            "x-amz-target",
            HeaderValue::from_static("AmazonSQS.PurgeQueue"),
        );
    });
    refused(target.await, 403, "SignatureDoesNotMatch");
    let host = with(id, secret, now(), |headers, _| {
        headers.insert("host", HeaderValue::from_static("other.example"));
    });
    refused(host.await, 403, "SignatureDoesNotMatch");
    let added = with(id, secret, now(), |headers, _| {
        headers.insert("x-amz-security-token", HeaderValue::from_static("x"));
    });
    refused(added.await, 400, "IncompleteSignature");
    let mut elsewhere = HeaderMap::new();
    insert(&mut elsewhere, "host", HOST);
    let region = with(id, secret, now(), |headers, _| {
        let value = headers["authorization"].to_str().unwrap();
        let value = value.replace("us-east-1", "eu-north-1");
        headers.insert("authorization", HeaderValue::try_from(value).unwrap());
    });
    refused(region.await, 403, "SignatureDoesNotMatch");
}

#[tokio::test]
async fn a_key_does_what_it_was_granted_and_nothing_else() {
    let server = start().await;
    for queue in ["orders", "orders-eu", "secret"] {
        let made = call(&server, "ADMIN", "CreateQueue", json!({"QueueName": queue})).await;
        assert_eq!(made.status, 200, "{made:?}");
    }
    let url = |queue: &str| format!("http://{HOST}/000000000000/{queue}");
    let missing = "AWS.SimpleQueueService.NonExistentQueue";
    for (id, action, queue, outcome) in [
        ("PRODUCER", "SendMessage", "orders", ""),
        ("PRODUCER", "SendMessage", "orders-eu", ""),
        ("PRODUCER", "SendMessage", "secret", missing),
        ("PRODUCER", "ReceiveMessage", "orders", "AccessDenied"),
        ("PRODUCER", "GetQueueAttributes", "orders", ""),
        ("PRODUCER", "PurgeQueue", "orders", "AccessDenied"),
        ("PRODUCER", "DeleteQueue", "orders", "AccessDenied"),
        ("PRODUCER", "ListQueueTags", "secret", missing),
        ("CONSUMER", "ReceiveMessage", "orders", ""),
        ("CONSUMER", "SendMessage", "orders", missing),
        ("CONSUMER", "GetQueueAttributes", "orders", missing),
        ("NOBODY", "ReceiveMessage", "orders", missing),
        ("NOBODY", "PurgeQueue", "orders", missing),
        ("ADMIN", "PurgeQueue", "orders", ""),
    ] {
        let input = json!({"QueueUrl": url(queue), "MessageBody": "x"});
        let answer = call(&server, id, action, input).await;
        assert_eq!(code(&answer), outcome, "{id} {action} {queue}: {answer:?}");
    }
    for (id, queues) in [
        ("ADMIN", 3),
        ("PRODUCER", 2),
        ("CONSUMER", 0),
        ("NOBODY", 0),
    ] {
        let answer = call(&server, id, "ListQueues", json!({})).await;
        let listed: Value = serde_json::from_str(&answer.body).unwrap();
        let listed = listed["QueueUrls"].as_array().map_or(0, Vec::len);
        assert_eq!(listed, queues, "{id}");
    }
    let made = call(
        &server,
        "PRODUCER",
        "CreateQueue",
        json!({"QueueName": "orders-us"}),
    )
    .await;
    assert_eq!(code(&made), "AccessDenied");
    let redrive = |target: &str| {
        let arn = format!("arn:aws:sqs:us-east-1:000000000000:{target}");
        let policy = json!({"deadLetterTargetArn": arn, "maxReceiveCount": 3}).to_string();
        json!({"QueueUrl": url("mine"), "QueueName": "mine", "Attributes": {"RedrivePolicy": policy}})
    };
    let there = call(&server, "OWNER", "CreateQueue", redrive("secret")).await;
    let not_there = call(&server, "OWNER", "CreateQueue", redrive("none")).await;
    let unnamed = there.body.replace(":secret", ":none");
    assert_eq!(
        unnamed, not_there.body,
        "what may not be sent to is not there"
    );
    let made = call(&server, "OWNER", "CreateQueue", redrive("orders")).await;
    assert_eq!(made.status, 200, "{made:?}");
    let made = call(
        &server,
        "NOBODY",
        "CreateQueue",
        json!({"QueueName": "orders"}),
    )
    .await;
    assert_eq!(code(&made), "AccessDenied", "{made:?}");
}

/// A signed call that is granted.
async fn ok(server: &TestServer, id: &str, action: &str, input: Value) -> Value {
    let answer = call(server, id, action, input).await;
    assert_eq!(answer.status, 200, "{action}: {answer:?}");
    serde_json::from_str(&answer.body).unwrap_or_default()
}

fn arn(queue: &str) -> String {
    format!("arn:aws:sqs:us-east-1:000000000000:{queue}")
}

/// The queue `dead`, with dead letters of `sources` in that order.
async fn dead_letters_of(server: &TestServer, sources: &[&str]) {
    ok(server, "ADMIN", "CreateQueue", json!({"QueueName": "dead"})).await;
    let policy = json!({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 1}).to_string();
    for source in sources {
        let attributes = json!({"RedrivePolicy": policy, "VisibilityTimeout": "0"});
        let input = json!({"QueueName": source, "Attributes": attributes});
        let url = ok(server, "ADMIN", "CreateQueue", input).await["QueueUrl"].clone();
        let message = json!({"QueueUrl": url, "MessageBody": source});
        ok(server, "ADMIN", "SendMessage", message).await;
        for _ in 0..2 {
            ok(server, "ADMIN", "ReceiveMessage", json!({"QueueUrl": url})).await;
        }
    }
}

/// The newest move task of the queue `dead`, once it is over.
async fn ended(server: &TestServer) -> Value {
    loop {
        let tasks = json!({"SourceArn": arn("dead")});
        let mut tasks = ok(server, "ADMIN", "ListMessageMoveTasks", tasks).await;
        let task = tasks["Results"][0].take();
        if task["Status"] != "RUNNING" {
            return task;
        }
    }
}

#[tokio::test]
async fn a_move_task_sends_home_only_what_its_key_may_send_there() {
    let server = start().await;
    dead_letters_of(&server, &["orders", "secret"]).await;
    let task = json!({"SourceArn": arn("dead")});
    let refused = call(&server, "MOVER", "StartMessageMoveTask", task.clone()).await;
    let missing = "AWS.SimpleQueueService.NonExistentQueue";
    assert_eq!(code(&refused), missing, "{refused:?}");
    // Its dead letters go there no more, so that nothing tells beforehand where the task goes.
    let url = format!("http://{HOST}/000000000000/secret");
    let none = json!({"QueueUrl": url, "Attributes": {"RedrivePolicy": ""}});
    ok(&server, "ADMIN", "SetQueueAttributes", none).await;
    ok(&server, "MOVER", "StartMessageMoveTask", task.clone()).await;
    let ended_early = ended(&server).await;
    assert_eq!(ended_early["Status"], "FAILED", "{ended_early}");
    assert_eq!(ended_early["FailureReason"], "AccessDenied");
    assert_eq!(ended_early["ApproximateNumberOfMessagesMoved"], 1);
    ok(&server, "ADMIN", "StartMessageMoveTask", task).await;
    let done = ended(&server).await;
    assert_eq!(done["Status"], "COMPLETED", "{done}");
    assert_eq!(
        done["ApproximateNumberOfMessagesMoved"], 1,
        "what was left was there still"
    );
}

#[tokio::test]
async fn keys_change_while_it_serves() {
    let server = start().await;
    let keys = server.access_keys.clone().unwrap();
    let code_of = async |id: &str, secret: &str| {
        let (at, input) = (now(), json!({"QueueName": "mine"}));
        let answer = call_with(&server, id, secret, at, "CreateQueue", &input, |_, _| ());
        code(&answer.await)
    };
    assert_eq!(code_of("OWNER", "secret of OWNER").await, "");
    let mut owner = key("OWNER", &[("other", &Verb::ALL)]);
    let admin = key("ADMIN", &[("*", &Verb::ALL)]);
    let short = AccessKey {
        secret: Secret::new("short"),
        ..key("SHORT", &[])
    };
    for (wrong, why) in [
        (
            key("", &[]),
            "the access key \"\" has no valid id: give it 1 to 128 letters and digits",
        ),
        (
            key("no id", &[]),
            "the access key \"no id\" has no valid id: give it 1 to 128 letters and digits",
        ),
        (
            key("ADMIN", &[]),
            "there are two access keys \"ADMIN\": give each id once",
        ),
        (
            short,
            "the secret of the access key \"SHORT\" is too short or too long: give it 8 to 256 bytes",
        ),
    ] {
        let error = keys.replace(&[admin.clone(), wrong]).unwrap_err();
        assert_eq!(error.to_string(), why);
    }
    assert_eq!(code_of("OWNER", "secret of OWNER").await, "");
    keys.replace(&[owner.clone(), admin.clone()]).unwrap();
    assert_eq!(
        code_of("OWNER", "secret of OWNER").await,
        "AccessDenied",
        "it has other grants"
    );
    owner.secret = Secret::new("another secret");
    keys.replace(&[owner, admin]).unwrap();
    assert_eq!(
        code_of("OWNER", "secret of OWNER").await,
        "SignatureDoesNotMatch"
    );
    assert_eq!(code_of("OWNER", "another secret").await, "AccessDenied");
    assert_eq!(
        code_of("PRODUCER", "secret of PRODUCER").await,
        "InvalidClientTokenId"
    );
}

#[tokio::test]
async fn a_move_task_ends_with_the_key_that_started_it() {
    let server = start().await;
    dead_letters_of(&server, &["orders"]).await;
    let url = format!("http://{HOST}/000000000000/dead");
    for _ in 0..5 {
        let entries: Vec<_> = (0..10)
            .map(|id| json!({"Id": id.to_string(), "MessageBody": "x"}))
            .collect();
        let batch = json!({"QueueUrl": url, "Entries": entries});
        ok(&server, "ADMIN", "SendMessageBatch", batch).await;
    }
    // At this rate nearly all of it is still to be done when the key goes.
    let task = json!({"SourceArn": arn("dead"), "DestinationArn": arn("orders"),
        "MaxNumberOfMessagesPerSecond": 1});
    ok(&server, "MOVER", "StartMessageMoveTask", task).await;
    let keys = server.access_keys.clone().unwrap();
    keys.replace(&[key("ADMIN", &[("*", &Verb::ALL)])]).unwrap();
    let task = ended(&server).await;
    assert_eq!(task["Status"], "FAILED", "{task}");
    assert_eq!(task["FailureReason"], "AccessDenied");
}

#[tokio::test]
async fn an_address_signed_beforehand_is_refused_without_its_signature() {
    let server = start().await;
    let plain = server
        .ask(format!(
            "GET /?Action=ListQueues HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
        ))
        .await;
    assert_eq!(plain.status, 403);
    assert!(
        plain
            .body
            .contains("<Code>MissingAuthenticationToken</Code>"),
        "in the words of the Query protocol: {plain:?}"
    );
    assert!(!plain.body.contains("<RequestId></RequestId>"), "{plain:?}");
}
