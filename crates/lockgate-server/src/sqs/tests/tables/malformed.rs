//! Requests that name no action, or that cannot be read.

use super::{
    super::protocols,
    Shop,
    codes::{Code, INVALID, INVALID_ACTION, MISSING, SERIALIZATION},
    text, url,
};

/// What a request in AWS JSON is refused with: name, target, body, code, text.
struct Json(
    &'static str,
    Option<&'static str>,
    &'static [u8],
    &'static Code,
    &'static str,
);

const SEND: Option<&str> = Some("AmazonSQS.SendMessage");

#[rustfmt::skip]
const IN_JSON: &[Json] = &[
    Json("no target", None, b"{}", &INVALID_ACTION, "The request names no action: set X-Amz-Target to AmazonSQS.<Action>."),
    Json("an action that is none", Some("AmazonSQS.Nonsense"), b"{}", &INVALID_ACTION, "The action AmazonSQS.Nonsense is not valid for this endpoint."),
    Json("an action in small letters", Some("AmazonSQS.sendmessage"), b"{}", &INVALID_ACTION, "The action AmazonSQS.sendmessage is not valid for this endpoint."),
    Json("an action without its service", Some("SendMessage"), b"{}", &INVALID_ACTION, "The action SendMessage is not valid for this endpoint."),
    Json("another service's action", Some("DynamoDB_20120810.ListTables"), b"{}", &INVALID_ACTION, "The action DynamoDB_20120810.ListTables is not valid for this endpoint."),
    Json("an empty target", Some(""), b"{}", &INVALID_ACTION, "The action  is not valid for this endpoint."),
    Json("an empty body", SEND, b"", &MISSING, "The request must contain the parameter QueueUrl."),
    Json("an empty object", SEND, b"{}", &MISSING, "The request must contain the parameter QueueUrl."),
    Json("an object that does not end", SEND, b"{", &SERIALIZATION, "EOF while parsing an object at line 1 column 1"),
    Json("a list", SEND, b"[]", &SERIALIZATION, "invalid type: sequence, expected an object at line 1 column 2"),
    Json("null", SEND, b"null", &SERIALIZATION, "invalid type: null, expected an object at line 1 column 4"),
    Json("a number", SEND, b"7", &SERIALIZATION, "invalid type: integer `7`, expected an object at line 1 column 1"),
    Json("something behind the object", SEND, b"{} {}", &SERIALIZATION, "trailing characters at line 1 column 4"),
    Json("single quotes", SEND, b"{'QueueUrl':'x'}", &SERIALIZATION, "key must be a string at line 1 column 2"),
    Json("a comma too many", SEND, b"{\"QueueUrl\":\"x\",}", &SERIALIZATION, "trailing comma at line 1 column 17"),
    Json("a member twice", SEND, b"{\"QueueUrl\":\"a\",\"QueueUrl\":\"b\"}", &SERIALIZATION, "duplicate field `QueueUrl` at line 1 column 26"),
    Json("a message attribute twice", SEND, b"{\"MessageAttributes\":{\"a\":{},\"a\":{}}}", &SERIALIZATION, "duplicate field `a` at line 1 column 32"),
    Json("a queue attribute twice", Some("AmazonSQS.SetQueueAttributes"), b"{\"Attributes\":{\"A\":\"1\",\"A\":\"2\"}}", &SERIALIZATION, "duplicate field `A` at line 1 column 26"),
    Json("a tag twice", Some("AmazonSQS.TagQueue"), b"{\"Tags\":{\"k\":\"1\",\"k\":\"1\"}}", &SERIALIZATION, "duplicate field `k` at line 1 column 20"),
    Json("half a surrogate pair", SEND, b"{\"MessageBody\":\"\\ud800\"}", &SERIALIZATION, "unexpected end of hex escape at line 1 column 23"),
    Json("bytes that are no text", SEND, b"{\"MessageBody\":\"\xff\"}", &SERIALIZATION, "invalid unicode code point at line 1 column 17"),
    Json("a control character as it is", SEND, b"{\"MessageBody\":\"\n\"}", &SERIALIZATION, "control character (\\u0000-\\u001F) found while parsing a string at line 2 column 0"),
    Json("a number larger than any", SEND, b"{\"DelaySeconds\":99999999999999999999}", &SERIALIZATION, "invalid type: floating point `1e+20`, expected i64 at line 1 column 36"),
    Json("a form", SEND, b"Action=SendMessage&MessageBody=x", &SERIALIZATION, "expected value at line 1 column 1"),
];

/// The codes that these requests are refused with.
pub(super) fn codes() -> impl Iterator<Item = &'static Code> {
    let in_json = IN_JSON.iter().map(|json| json.3);
    in_json.chain(IN_QUERY.iter().map(|form| form.3))
}

#[tokio::test]
async fn what_cannot_be_read_as_json_is_refused_with_what_was_expected() {
    let shop = Shop::open();
    let mut wrong = Vec::new();
    for Json(name, target, body, code, message) in IN_JSON {
        let answer = shop.raw(*target, *body).await;
        let found = (
            answer.status,
            text(&answer.body["__type"]),
            answer.query_error.clone().unwrap_or_default(),
            text(&answer.body["message"]),
        );
        let header = format!("{};{}", code.legacy, code.fault());
        let expected = (
            code.status,
            code.kind.to_owned(),
            header,
            (*message).to_owned(),
        );
        if found != expected {
            wrong.push(format!(
                "{name}: expected {expected:?}\n    found    {found:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What a form is refused with: name, whether it is asked at a queue, form, code, text.
struct Form(
    &'static str,
    bool,
    &'static str,
    &'static Code,
    &'static str,
);

#[rustfmt::skip]
const IN_QUERY: &[Form] = &[
    Form("an action that is none", false, "Action=Nonsense", &INVALID_ACTION, "The action Nonsense is not valid for this endpoint."),
    Form("an action in small letters", false, "Action=sendmessage", &INVALID_ACTION, "The action sendmessage is not valid for this endpoint."),
    Form("an empty action", false, "Action=", &INVALID_ACTION, "The action  is not valid for this endpoint."),
    Form("a queue is to make a queue", true, "Action=CreateQueue&QueueName=p", &INVALID_ACTION, "The action CreateQueue is not valid for this endpoint."),
    Form("a queue is to list queues", true, "Action=ListQueues", &INVALID_ACTION, "The action ListQueues is not valid for this endpoint."),
    Form("no parameters", false, "Action=SendMessage", &MISSING, "The request must contain the parameter QueueUrl."),
    Form("no parameters but the queue", true, "Action=SendMessage", &MISSING, "The request must contain the parameter MessageBody."),
    Form("an empty parameter", true, "Action=SendMessage&MessageBody=", &MISSING, "The request must contain the parameter MessageBody."),
    Form("a parameter without a value", true, "Action=SendMessage&MessageBody", &MISSING, "The request must contain the parameter MessageBody."),
    Form("a value that is no text", true, "Action=SendMessage&MessageBody=%ff", &INVALID, "The parameter MessageBody is not UTF-8."),
    Form("a name that is no text", true, "Action=SendMessage&%ff=x", &INVALID, "The parameter %ff is not UTF-8."),
    Form("an empty number", true, "Action=ReceiveMessage&WaitTimeSeconds=", &INVALID, "Value  for parameter WaitTimeSeconds is invalid. Reason: Must be an integer."),
    Form("a message attribute twice", true, "Action=SendMessage&MessageAttribute.1.Name=a&MessageAttribute.2.Name=a", &SERIALIZATION, "duplicate field `a`"),
    Form("a tag twice", true, "Action=TagQueue&Tag.1.Key=k&Tag.1.Value=1&Tag.2.Key=k&Tag.2.Value=1", &SERIALIZATION, "duplicate field `k`"),
    Form("a number with a sign behind it", true, "Action=ReceiveMessage&WaitTimeSeconds=1-", &INVALID, "Value 1- for parameter WaitTimeSeconds is invalid. Reason: Must be an integer."),
    Form("a number larger than any", true, "Action=ReceiveMessage&WaitTimeSeconds=99999999999999999999", &INVALID, "Value 99999999999999999999 for parameter WaitTimeSeconds is invalid. Reason: Must be an integer."),
    Form("JSON", true, "{\"Action\":\"SendMessage\"}&Action=SendMessage", &MISSING, "The request must contain the parameter MessageBody."),
];

#[tokio::test]
async fn what_cannot_be_read_as_a_form_is_refused_in_the_same_words_by_post_and_get() {
    let shop = Shop::open();
    let queue = shop.queue("q", serde_json::json!({})).await;
    assert_eq!(queue, url("q"));
    let mut wrong = Vec::new();
    for Form(name, at_queue, form, code, message) in IN_QUERY {
        let path = if *at_queue { "/000000000000/q" } else { "/" };
        for answer in [shop.form(path, form).await, shop.get(path, form).await] {
            let found = (answer.status, protocols::error_as_written(&answer.body));
            let texts = [code.legacy, code.fault(), message].map(str::to_owned);
            let [legacy, fault, message] = texts;
            let expected = (code.status, (legacy, fault, message));
            if found != expected {
                wrong.push(format!(
                    "{name}: expected {expected:?}\n    found    {found:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Without any action it is AWS's own answer, which is not of the form of its errors.
    for answer in [
        shop.form("/", "MessageBody=x").await,
        shop.get("/000000000000/q", "MessageBody=x").await,
        shop.get("/", "").await,
    ] {
        assert_eq!(answer.status, 404);
        assert_eq!(answer.body, "<UnknownOperationException/>\n");
    }
}

#[tokio::test]
async fn what_no_action_knows_is_passed_over() {
    let shop = Shop::open();
    let queue = shop.queue("q", serde_json::json!({})).await;
    let body =
        serde_json::json!({"QueueUrl": queue, "MessageBody": "x", "Nonsense": [1, {"a": 2}]});
    assert_eq!(shop.raw(SEND, body.to_string()).await.status, 200);
    let form =
        "Action=SendMessage&MessageBody=x&Version=2012-11-05&Expires=2030-01-01&Nonsense.1=y";
    assert_eq!(shop.form("/000000000000/q", form).await.status, 200);
    assert_eq!(shop.counts(&queue).await, [2, 0, 0]);
}
