//! The forms that SDKs of the Query protocol write, recorded from the SDKs themselves: JavaScript v2
//! (2.1400.0), Go v1 (1.44.300), Java v1 (1.12.400), botocore (1.29.165) and boto (2.49.0). PHP v3 and
//! Ruby v3 write an empty list as JavaScript and botocore do, under the name of a member or of the
//! list; .NET v3 leaves it out, as Java does.
//!
//! A form must be answered as the same input in AWS JSON is.

use serde_json::{Value, json};

use super::{super::Shop, Speaks, protocols, text, url};

/// A request, and its form as each SDK writes it. `U` stands for the queue's URL and `H` for the
/// handle of a received message.
struct Recorded {
    action: &'static str,
    input: Value,
    forms: &'static [(&'static str, &'static str)],
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn recorded() -> Vec<Recorded> {
    let row = |action, input, forms| Recorded {
        action,
        input,
        forms,
    };
    vec![
        row(
            "ReceiveMessage",
            json!({"QueueUrl": "U", "AttributeNames": [], "MessageAttributeNames": []}),
            &[
                (
                    "JavaScript, Go, PHP",
                    "AttributeName=&MessageAttributeName=&QueueUrl=U&Version=2012-11-05",
                ),
                (
                    "botocore, Ruby",
                    "Version=2012-11-05&QueueUrl=U&AttributeNames=&MessageAttributeNames=",
                ),
                ("Java, .NET, boto", "QueueUrl=U&Version=2012-11-05"),
            ],
        ),
        row(
            "ReceiveMessage",
            json!({"QueueUrl": "U", "MessageSystemAttributeNames": []}),
            &[
                (
                    "JavaScript, Go, PHP",
                    "MessageSystemAttributeName=&QueueUrl=U",
                ),
                ("botocore, Ruby", "MessageSystemAttributeNames=&QueueUrl=U"),
            ],
        ),
        row(
            "ReceiveMessage",
            json!({"QueueUrl": "U", "AttributeNames": ["SenderId", "SentTimestamp"],
                "MessageAttributeNames": ["a", "b.*"], "WaitTimeSeconds": 0}),
            &[(
                "all",
                "AttributeName.1=SenderId&AttributeName.2=SentTimestamp&MessageAttributeName.1=a&MessageAttributeName.2=b.%2A&QueueUrl=U&Version=2012-11-05&WaitTimeSeconds=0",
            )],
        ),
        row(
            "GetQueueAttributes",
            json!({"QueueUrl": "U", "AttributeNames": []}),
            &[
                (
                    "JavaScript, Go, PHP",
                    "AttributeName=&QueueUrl=U&Version=2012-11-05",
                ),
                (
                    "botocore, Ruby",
                    "Version=2012-11-05&QueueUrl=U&AttributeNames=",
                ),
                ("Java, .NET", "QueueUrl=U&Version=2012-11-05"),
            ],
        ),
        row(
            "GetQueueAttributes",
            json!({"QueueUrl": "U", "AttributeNames": ["QueueArn", "DelaySeconds"]}),
            &[(
                "all",
                "AttributeName.1=QueueArn&AttributeName.2=DelaySeconds&QueueUrl=U",
            )],
        ),
        row(
            "GetQueueAttributes",
            json!({"QueueUrl": "U", "AttributeNames": ["VisibilityTimeout"]}),
            &[(
                "boto",
                "AttributeName=VisibilityTimeout&QueueUrl=U&Version=2012-11-05",
            )],
        ),
        row(
            "CreateQueue",
            json!({"QueueName": "new", "Attributes": {}, "tags": {}}),
            &[
                ("Go", "Attribute=&QueueName=new&Tag=&Version=2012-11-05"),
                (
                    "JavaScript, botocore, Java",
                    "QueueName=new&Version=2012-11-05",
                ),
            ],
        ),
        row(
            "CreateQueue",
            json!({"QueueName": "new", "Attributes": {"DelaySeconds": "5", "VisibilityTimeout": "7"},
                "tags": {"k": "v", "l": ""}}),
            &[(
                "all",
                "Attribute.1.Name=DelaySeconds&Attribute.1.Value=5&Attribute.2.Name=VisibilityTimeout&Attribute.2.Value=7&QueueName=new&Tag.1.Key=k&Tag.1.Value=v&Tag.2.Key=l&Tag.2.Value=&Version=2012-11-05",
            )],
        ),
        row(
            "SetQueueAttributes",
            json!({"QueueUrl": "U", "Attributes": {}}),
            &[
                ("Go", "Attribute=&QueueUrl=U&Version=2012-11-05"),
                (
                    "JavaScript, botocore, Java",
                    "QueueUrl=U&Version=2012-11-05",
                ),
            ],
        ),
        row(
            "SetQueueAttributes",
            json!({"QueueUrl": "U", "Attributes": {"DelaySeconds": "5"}}),
            &[
                (
                    "all",
                    "Attribute.1.Name=DelaySeconds&Attribute.1.Value=5&QueueUrl=U",
                ),
                (
                    "boto",
                    "Attribute.Name=DelaySeconds&Attribute.Value=5&QueueUrl=U",
                ),
            ],
        ),
        row(
            "TagQueue",
            json!({"QueueUrl": "U", "Tags": {}}),
            &[
                ("Go", "QueueUrl=U&Tag="),
                ("JavaScript, botocore", "QueueUrl=U"),
            ],
        ),
        row(
            "TagQueue",
            json!({"QueueUrl": "U", "Tags": {"k": "v", "l": ""}}),
            &[(
                "all",
                "QueueUrl=U&Tag.1.Key=k&Tag.1.Value=v&Tag.2.Key=l&Tag.2.Value=",
            )],
        ),
        row(
            "UntagQueue",
            json!({"QueueUrl": "U", "TagKeys": []}),
            &[("JavaScript, Go, PHP", "QueueUrl=U&TagKey=")],
        ),
        row(
            "UntagQueue",
            json!({"QueueUrl": "U", "TagKeys": ["k"]}),
            &[("all", "QueueUrl=U&TagKey.1=k")],
        ),
        row(
            "AddPermission",
            json!({"QueueUrl": "U", "Label": "l", "AWSAccountIds": [], "Actions": []}),
            &[
                (
                    "JavaScript, Go, PHP",
                    "AWSAccountId=&ActionName=&Label=l&QueueUrl=U",
                ),
                (
                    "botocore, Ruby",
                    "QueueUrl=U&Label=l&AWSAccountIds=&Actions=",
                ),
                ("Java", "Label=l&QueueUrl=U"),
            ],
        ),
        row(
            "AddPermission",
            json!({"QueueUrl": "U", "Label": "l", "AWSAccountIds": [], "Actions": ["SendMessage"]}),
            &[(
                "JavaScript, Go, PHP",
                "AWSAccountId=&ActionName.1=SendMessage&Label=l&QueueUrl=U",
            )],
        ),
        row(
            "AddPermission",
            json!({"QueueUrl": "U", "Label": "l", "AWSAccountIds": ["111122223333"],
                "Actions": ["SendMessage"]}),
            &[
                (
                    "all",
                    "AWSAccountId.1=111122223333&ActionName.1=SendMessage&Label=l&QueueUrl=U",
                ),
                (
                    "boto",
                    "AWSAccountId=111122223333&ActionName=SendMessage&Label=l&QueueUrl=U",
                ),
            ],
        ),
        row(
            "SendMessage",
            json!({"QueueUrl": "U", "MessageBody": "b", "MessageAttributes": {},
                "MessageSystemAttributes": {}}),
            &[
                (
                    "Go",
                    "MessageAttribute=&MessageBody=b&MessageSystemAttribute=&QueueUrl=U",
                ),
                ("JavaScript, botocore, Java", "MessageBody=b&QueueUrl=U"),
            ],
        ),
        row(
            "SendMessage",
            json!({"QueueUrl": "U", "MessageBody": "b", "DelaySeconds": 0,
                "MessageAttributes": {
                    "a": {"DataType": "String", "StringValue": "x", "StringListValues": [],
                        "BinaryListValues": []},
                    "b": {"DataType": "Binary", "BinaryValue": "AQ=="}},
                "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String",
                    "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}}),
            &[(
                "JavaScript, Go, PHP, Ruby, botocore",
                "DelaySeconds=0&MessageAttribute.1.Name=a&MessageAttribute.1.Value.BinaryListValue=&MessageAttribute.1.Value.DataType=String&MessageAttribute.1.Value.StringListValue=&MessageAttribute.1.Value.StringValue=x&MessageAttribute.2.Name=b&MessageAttribute.2.Value.BinaryValue=AQ%3D%3D&MessageAttribute.2.Value.DataType=Binary&MessageBody=b&MessageSystemAttribute.1.Name=AWSTraceHeader&MessageSystemAttribute.1.Value.DataType=String&MessageSystemAttribute.1.Value.StringValue=Root%3D1-5759e988-bd862e3fe1be46a994272793&QueueUrl=U&Version=2012-11-05",
            )],
        ),
        row(
            "SendMessage",
            json!({"QueueUrl": "U", "MessageBody": "b", "MessageAttributes": {
                "a": {"DataType": "String", "StringListValues": ["x", "y"]}}}),
            &[(
                "all",
                "MessageAttribute.1.Name=a&MessageAttribute.1.Value.DataType=String&MessageAttribute.1.Value.StringListValue.1=x&MessageAttribute.1.Value.StringListValue.2=y&MessageBody=b&QueueUrl=U",
            )],
        ),
        row(
            "SendMessageBatch",
            json!({"QueueUrl": "U", "Entries": []}),
            &[
                (
                    "JavaScript, Go, PHP",
                    "QueueUrl=U&SendMessageBatchRequestEntry=",
                ),
                ("botocore, Ruby", "QueueUrl=U&Entries="),
                ("Java", "QueueUrl=U"),
            ],
        ),
        row(
            "SendMessageBatch",
            json!({"QueueUrl": "U", "Entries": [
                {"Id": "1", "MessageBody": "b", "MessageAttributes": {},
                    "MessageSystemAttributes": {}},
                {"Id": "2", "MessageBody": "c", "DelaySeconds": 1, "MessageAttributes": {
                    "a": {"DataType": "String", "StringValue": "x", "StringListValues": []}}}]}),
            &[
                (
                    "Go",
                    "QueueUrl=U&SendMessageBatchRequestEntry.1.Id=1&SendMessageBatchRequestEntry.1.MessageAttribute=&SendMessageBatchRequestEntry.1.MessageBody=b&SendMessageBatchRequestEntry.1.MessageSystemAttribute=&SendMessageBatchRequestEntry.2.DelaySeconds=1&SendMessageBatchRequestEntry.2.Id=2&SendMessageBatchRequestEntry.2.MessageAttribute.1.Name=a&SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.DataType=String&SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.StringListValue=&SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.StringValue=x&SendMessageBatchRequestEntry.2.MessageBody=c",
                ),
                (
                    "JavaScript, botocore",
                    "QueueUrl=U&SendMessageBatchRequestEntry.1.Id=1&SendMessageBatchRequestEntry.1.MessageBody=b&SendMessageBatchRequestEntry.2.DelaySeconds=1&SendMessageBatchRequestEntry.2.Id=2&SendMessageBatchRequestEntry.2.MessageAttribute.1.Name=a&SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.DataType=String&SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.StringListValue=&SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.StringValue=x&SendMessageBatchRequestEntry.2.MessageBody=c",
                ),
            ],
        ),
        row(
            "DeleteMessageBatch",
            json!({"QueueUrl": "U", "Entries": []}),
            &[
                (
                    "JavaScript, Go, PHP",
                    "DeleteMessageBatchRequestEntry=&QueueUrl=U",
                ),
                ("botocore, Ruby", "QueueUrl=U&Entries="),
            ],
        ),
        row(
            "DeleteMessageBatch",
            json!({"QueueUrl": "U", "Entries": [{"Id": "1", "ReceiptHandle": "H"}]}),
            &[(
                "all",
                "DeleteMessageBatchRequestEntry.1.Id=1&DeleteMessageBatchRequestEntry.1.ReceiptHandle=H&QueueUrl=U",
            )],
        ),
        row(
            "ChangeMessageVisibilityBatch",
            json!({"QueueUrl": "U", "Entries": []}),
            &[(
                "JavaScript, Go, PHP",
                "ChangeMessageVisibilityBatchRequestEntry=&QueueUrl=U",
            )],
        ),
        row(
            "ChangeMessageVisibilityBatch",
            json!({"QueueUrl": "U",
                "Entries": [{"Id": "1", "ReceiptHandle": "H", "VisibilityTimeout": 0}]}),
            &[(
                "all",
                "ChangeMessageVisibilityBatchRequestEntry.1.Id=1&ChangeMessageVisibilityBatchRequestEntry.1.ReceiptHandle=H&ChangeMessageVisibilityBatchRequestEntry.1.VisibilityTimeout=0&QueueUrl=U",
            )],
        ),
        row(
            "ListQueues",
            json!({"QueueNamePrefix": ""}),
            &[("all", "QueueNamePrefix=&Version=2012-11-05")],
        ),
        row(
            "ListDeadLetterSourceQueues",
            json!({"QueueUrl": "U"}),
            &[("all", "QueueUrl=U&Version=2012-11-05")],
        ),
    ]
}

/// A shop with a queue that has a tag, a message in flight and one that waits; and the handle.
async fn shop() -> (Shop, String) {
    let shop = Shop::speaking(Speaks::Json);
    shop.queue("q", json!({"DelaySeconds": "0"})).await;
    shop.ok(
        "TagQueue",
        json!({"QueueUrl": url("q"), "Tags": {"k": "v"}}),
    )
    .await;
    for body in ["taken", "waits"] {
        let attributes = json!({"a": {"DataType": "String", "StringValue": "x"}});
        let input = json!({"QueueUrl": url("q"), "MessageBody": body,
            "MessageAttributes": attributes});
        shop.ok("SendMessage", input).await;
    }
    let taken = shop
        .ok("ReceiveMessage", json!({"QueueUrl": url("q")}))
        .await;
    let handle = text(&taken["Messages"][0]["ReceiptHandle"]);
    (shop, handle)
}

/// What an answer says that does not differ from shop to shop.
fn comparable(value: &Value) -> Value {
    match value {
        Value::Array(values) => values.iter().map(comparable).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| match name.as_str() {
                "MessageId" | "ReceiptHandle" => (name.clone(), json!("*")),
                _ => (name.clone(), comparable(value)),
            })
            .collect::<serde_json::Map<_, _>>()
            .into(),
        value => value.clone(),
    }
}

#[tokio::test]
async fn the_forms_of_every_sdk_are_answered_as_the_same_input_in_json() {
    let mut wrong = Vec::new();
    for Recorded {
        action,
        input,
        forms,
    } in recorded()
    {
        let (json_shop, handle) = shop().await;
        let filled = input
            .to_string()
            .replace("\"U\"", &format!("\"{}\"", url("q")))
            .replace("\"H\"", &format!("\"{handle}\""));
        let target = format!("AmazonSQS.{action}");
        let mut answer = json_shop.raw(Some(&target), filled).await;
        if let Some(guard) = answer.guard.take() {
            guard.keep();
        }
        let expected = match &answer.query_error {
            None => Ok(comparable(&answer.body)),
            Some(error) => Err((error.clone(), text(&answer.body["message"]))),
        };
        let expected = (expected, json_shop.everything().await);
        for (sdk, form) in forms {
            let (shop, handle) = shop().await;
            let form = format!("Action={action}&{form}")
                .replace("QueueUrl=U", &format!("QueueUrl={}", url("q")))
                .replace("Handle=H", &format!("Handle={handle}"));
            let answer = shop.form("/", &form).await;
            let found = if answer.status == 200 {
                Ok(comparable(&protocols::output(action, &answer.body)))
            } else {
                let (code, fault, message) = protocols::error_as_written(&answer.body);
                Err((format!("{code};{fault}"), message))
            };
            let found = (found, shop.everything().await);
            if found != expected {
                wrong.push(format!(
                    "{action} by {sdk}: {form}\n    expected {expected:?}\n    found    {found:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
