//! Errors as they go over the wire: one row for each HTTP status that a client can cause, in both
//! protocols and in every way to ask. What each code is given for, the tables of the service itself
//! say.

use serde_json::{Value, json};

use crate::support::{Answer, TestServer, post};

struct Row {
    action: &'static str,
    /// Beside the queue's URL.
    input: Value,
    status: u16,
    kind: &'static str,
    legacy: &'static str,
    message: &'static str,
}

fn rows() -> Vec<Row> {
    vec![
        Row {
            action: "ReceiveMessage",
            input: json!({"MaxNumberOfMessages": 11}),
            status: 400,
            kind: "com.amazon.coral.service#InvalidParameterValueException",
            legacy: "InvalidParameterValue",
            message: "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be \
                      between 1 and 10, if provided.",
        },
        Row {
            action: "PurgeQueue",
            input: json!({}),
            status: 403,
            kind: "com.amazonaws.sqs#PurgeQueueInProgress",
            legacy: "AWS.SimpleQueueService.PurgeQueueInProgress",
            message: "Only one PurgeQueue operation on q is allowed every 60 seconds.",
        },
        Row {
            action: "DeleteMessage",
            input: json!({"ReceiptHandle": "a b"}),
            status: 404,
            kind: "com.amazonaws.sqs#ReceiptHandleIsInvalid",
            legacy: "ReceiptHandleIsInvalid",
            message: "The input receipt handle \"a b\" is not a valid receipt handle.",
        },
    ]
}

/// The same as a form, whose values are plain here.
fn form(row: &Row) -> String {
    let members = row.input.as_object().unwrap().iter().map(|(name, value)| {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        format!("&{name}={}", value.replace(' ', "+"))
    });
    format!("Action={}{}", row.action, members.collect::<String>())
}

fn judge_xml(row: &Row, answer: &Answer) {
    assert_eq!(answer.status, row.status, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("text/xml"));
    let id = answer.header("x-amzn-requestid").unwrap();
    let message = row.message.replace('"', "&quot;");
    assert_eq!(
        answer.body,
        format!(
            "<?xml version=\"1.0\"?>\n<ErrorResponse \
             xmlns=\"http://queue.amazonaws.com/doc/2012-11-05/\"><Error><Type>Sender</Type>\
             <Code>{}</Code><Message>{message}</Message><Detail/></Error>\
             <RequestId>{id}</RequestId></ErrorResponse>",
            row.legacy
        )
    );
}

#[tokio::test]
async fn an_error_has_its_status_code_fault_and_text_in_every_way_to_ask() {
    let server = TestServer::start().await;
    server.sqs("CreateQueue", &json!({"QueueName": "q"})).await;
    let url = server.queue_url("q");
    server.sqs("PurgeQueue", &json!({"QueueUrl": url})).await;
    for row in rows() {
        let mut input = row.input.clone();
        input["QueueUrl"] = json!(url);
        let answer = server
            .ask(TestServer::sqs_request(row.action, &input))
            .await;
        assert_eq!(answer.status, row.status, "{answer:?}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/x-amz-json-1.0")
        );
        let header = format!("{};Sender", row.legacy);
        assert_eq!(answer.header("x-amzn-query-error"), Some(header.as_str()));
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(body, json!({"__type": row.kind, "message": row.message}));

        let form = form(&row);
        let at_queue = "/000000000000/q";
        for (path, form) in [
            ("/", format!("{form}&QueueUrl={url}")),
            (at_queue, form.clone()),
        ] {
            let headers = format!(
                "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n",
                form.len()
            );
            let posted = post(&headers, &form).replacen("POST /", &format!("POST {path}"), 1);
            judge_xml(&row, &server.ask(posted).await);
            let signed = format!(
                "GET {path}?{form} HTTP/1.1\r\nHost: localhost\r\nAuthorization: AWS4-HMAC-SHA256 x\r\n\r\n"
            );
            judge_xml(&row, &server.ask(signed).await);
        }
    }
}
