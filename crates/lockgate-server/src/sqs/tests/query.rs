//! The Query protocol, as old SDKs and `curl` speak it.

use super::*;
use crate::{http::response::Response, sqs::dispatch::Action};

pub(super) struct Xml {
    pub(super) status: u16,
    pub(super) body: String,
    pub(super) retry_after: Option<String>,
    pub(super) guard: Option<KeepGuard>,
}

impl Xml {
    /// The text of the first element of that name.
    fn text(&self, element: &str) -> &str {
        let (_, rest) = self
            .body
            .split_once(&format!("<{element}>"))
            .unwrap_or_else(|| panic!("no {element} in {}", self.body));
        rest.split_once(&format!("</{element}>")).unwrap().0
    }
}

impl Shop {
    /// Posts a form.
    pub(super) async fn form(&self, path: &str, form: &str) -> Xml {
        kept(self.posted(path, form).await)
    }

    /// The same, without keeping the leases of the answer yet.
    pub(super) async fn posted(&self, path: &str, form: &str) -> Xml {
        let kind = Some("application/x-www-form-urlencoded; charset=utf-8".into());
        self.query_request(path, None, kind, form).await
    }

    /// Gets an address.
    pub(super) async fn get(&self, path: &str, query: &str) -> Xml {
        let query = (!query.is_empty()).then(|| query.to_owned());
        kept(self.query_request(path, query, None, "").await)
    }

    async fn query_request(
        &self,
        path: &str,
        query: Option<String>,
        content_type: Option<String>,
        body: &str,
    ) -> Xml {
        let response = self
            .query_response(path, query, content_type, None, body)
            .await;
        assert_eq!(response.headers["content-type"], "text/xml");
        let retry_after = response.headers.get("retry-after");
        Xml {
            status: response.status.as_u16(),
            body: String::from_utf8(response.body.to_vec()).unwrap(),
            retry_after: retry_after.map(|value| value.to_str().unwrap().to_owned()),
            guard: response.on_sent,
        }
    }

    async fn query_response(
        &self,
        path: &str,
        query: Option<String>,
        content_type: Option<String>,
        accept: Option<&str>,
        body: &str,
    ) -> Response {
        let request = Request {
            target: None,
            content_type,
            accept: accept.map(str::to_owned),
            path: path.into(),
            query,
            trace_id: None,
            query_mode: false,
            body: body.to_owned().into(),
            by_link: false,
            hangup: Hangup::default(),
            holder: HolderName::new("tester").unwrap(),
            identity: None,
            host: HOST.into(),
        };
        tokio::time::timeout(HANGS_AFTER, self.service.handle(request))
            .await
            .expect("an answer")
    }
}

/// A form uses this protocol at every address of the service, whatever its other headers say.
#[tokio::test]
async fn a_form_is_taken_at_every_address_and_with_a_target() {
    let shop = Shop::open();
    let list = "Action=ListQueues";
    for path in ["/000000000000", "/000000000000/"] {
        let form = format!("Action=CreateQueue&QueueName=q{}", path.len());
        assert_eq!(shop.form(path, &form).await.status, 200, "{path}");
        assert_eq!(shop.form(path, list).await.status, 200, "{path}");
    }
    for path in [
        "/000000000000/q13",
        "/000000000000/q13/",
        "/queue/q13",
        "/queue/q13/",
    ] {
        let sent = shop.form(path, "Action=SendMessage&MessageBody=x").await;
        assert_eq!(sent.status, 200, "{path}: {}", sent.body);
        assert_eq!(shop.form(path, list).await.status, 400, "{path}");
    }
    let request = Request {
        target: Some("AmazonSQS.ListQueues".into()),
        content_type: Some("application/x-www-form-urlencoded".into()),
        accept: None,
        path: "/".into(),
        query: None,
        trace_id: None,
        query_mode: false,
        body: list.into(),
        holder: HolderName::new("tester").unwrap(),
        identity: None,
        host: HOST.into(),
        by_link: false,
        hangup: Hangup::default(),
    };
    let response = shop.service.handle(request).await;
    assert_eq!(response.status, 200);
    assert_eq!(response.headers["content-type"], "text/xml");
}

fn kept(mut answer: Xml) -> Xml {
    if let Some(guard) = answer.guard.take() {
        guard.keep();
    }
    answer
}

#[tokio::test]
async fn a_message_goes_through_a_queue_by_forms_alone() {
    let shop = Shop::open();
    let made = shop
        .form("/", "Action=CreateQueue&Version=2012-11-05&QueueName=jobs&Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=60&Tag.1.Key=team&Tag.1.Value=a+b")
        .await;
    assert_eq!(made.status, 200, "{}", made.body);
    assert!(made.text("QueueUrl").ends_with("/000000000000/jobs"));
    let path = "/000000000000/jobs";
    // The queue is named by the address, as SDKs of 2022 and before do, or by a parameter.
    let sent = shop
        .form(path, "Action=SendMessage&MessageBody=%3Ca%3E%26%0D%0A&MessageAttribute.1.Name=n&MessageAttribute.1.Value.DataType=Number&MessageAttribute.1.Value.StringValue=7")
        .await;
    assert_eq!(sent.status, 200, "{}", sent.body);
    assert_eq!(sent.text("MD5OfMessageBody").len(), 32);
    let received = shop
        .get(
            path,
            "Action=ReceiveMessage&MessageAttributeName.1=All&AttributeName.1=All",
        )
        .await;
    assert_eq!(received.text("Body"), "&lt;a&gt;&amp;&#xD;\n");
    assert_eq!(received.text("MessageId"), sent.text("MessageId"));
    assert_eq!(
        received.text("MD5OfMessageAttributes"),
        sent.text("MD5OfMessageAttributes")
    );
    let handle = received.text("ReceiptHandle");
    let deleted = shop
        .form(
            "/",
            &format!("Action=DeleteMessage&QueueUrl=http://elsewhere{path}&ReceiptHandle={handle}"),
        )
        .await;
    assert_eq!(deleted.status, 200, "{}", deleted.body);
    assert!(!deleted.body.contains("DeleteMessageResult"));
    let tags = shop.get(path, "Action=ListQueueTags").await;
    assert_eq!(tags.text("Value"), "a b");
    let attributes = shop
        .get(
            path,
            "Action=GetQueueAttributes&AttributeName.1=VisibilityTimeout",
        )
        .await;
    assert!(
        attributes
            .body
            .contains("<Attribute><Name>VisibilityTimeout</Name><Value>60</Value></Attribute>")
    );
}

#[tokio::test]
async fn a_batch_answers_entry_by_entry() {
    let shop = Shop::open();
    shop.queue("q", json!({})).await;
    let entry = "SendMessageBatchRequestEntry";
    let answer = shop
        .form(
            "/000000000000/q",
            &format!(
                "Action=SendMessageBatch&{entry}.1.Id=a&{entry}.1.MessageBody=x&{entry}.2.Id=b\
                 &{entry}.2.MessageBody=y&{entry}.2.DelaySeconds=901"
            ),
        )
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let sent = answer.text("SendMessageBatchResultEntry");
    assert!(sent.contains("<Id>a</Id>"), "{sent}");
    let failed = answer.text("BatchResultErrorEntry");
    for part in [
        "<Id>b</Id>",
        "<Code>InvalidParameterValue</Code>",
        "<SenderFault>true<",
    ] {
        assert!(failed.contains(part), "{failed}");
    }
}

#[tokio::test]
async fn refusals_have_the_codes_and_words_of_this_protocol() {
    let shop = Shop::open();
    shop.queue("q", json!({})).await;
    let q = "/000000000000/q";
    for (path, form, status, code, message) in [
        (
            q,
            "Action=SendMessage",
            400,
            "MissingParameter",
            "The request must contain the parameter MessageBody.",
        ),
        (
            q,
            "Action=FooBar",
            400,
            "InvalidAction",
            "The action FooBar is not valid for this endpoint.",
        ),
        (
            q,
            "Action=CreateQueue&QueueName=x",
            400,
            "InvalidAction",
            "The action CreateQueue is not valid for this endpoint.",
        ),
        (
            q,
            "Action=ReceiveMessage&MaxNumberOfMessages=x",
            400,
            "InvalidParameterValue",
            "Value x for parameter MaxNumberOfMessages is invalid. Reason: Must be an integer.",
        ),
        (
            "/000000000000/none",
            "Action=PurgeQueue",
            400,
            "AWS.SimpleQueueService.NonExistentQueue",
            "The specified queue does not exist for this wsdl version.",
        ),
        (
            q,
            "Action=DeleteMessage&ReceiptHandle=%3Cx%3E",
            404,
            "ReceiptHandleIsInvalid",
            "The input receipt handle &quot;&lt;x&gt;&quot; is not a valid receipt handle.",
        ),
        (
            q,
            "Action=SendMessage&MessageBody=%ff",
            400,
            "InvalidParameterValue",
            "The parameter MessageBody is not UTF-8.",
        ),
    ] {
        let answer = shop.form(path, form).await;
        assert_eq!(answer.status, status, "{form}: {}", answer.body);
        assert_eq!(answer.text("Code"), code, "{form}");
        assert_eq!(answer.text("Message"), message, "{form}");
        assert_eq!(answer.text("Type"), "Sender");
    }
    let nothing = shop.get(q, "").await;
    assert_eq!(nothing.status, 404);
    assert_eq!(nothing.body, "<UnknownOperationException/>\n");
}

#[tokio::test]
async fn an_xml_body_is_never_parsed() {
    let shop = Shop::open();
    let xml = "<!DOCTYPE a [<!ENTITY x SYSTEM \"file:///etc/passwd\">]><a>&x;</a>";
    let answer = shop
        .query_request("/", None, Some("text/xml".into()), xml)
        .await;
    assert_eq!(answer.status, 404);
    assert_eq!(answer.body, "<UnknownOperationException/>\n");
}

#[tokio::test]
async fn who_accepts_json_is_answered_in_it() {
    let shop = Shop::open();
    shop.queue("q", json!({})).await;
    let q = "/000000000000/q";
    let asked = async |accept: &str, path: &str, query: &str| {
        let query = (!query.is_empty()).then(|| query.to_owned());
        let mut response = shop
            .query_response(path, query, None, Some(accept), "")
            .await;
        if let Some(guard) = response.on_sent.take() {
            guard.keep();
        }
        let kind = response.headers["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        let body = String::from_utf8(response.body.to_vec()).unwrap();
        (response.status.as_u16(), kind, body)
    };
    let json = async |path: &str, query: &str| -> (u16, Value) {
        let (status, kind, body) = asked("application/json", path, query).await;
        assert_eq!(kind, "application/json", "{body}");
        (status, serde_json::from_str(&body).unwrap())
    };
    let (_, queues) = json("/", "Action=ListQueues").await;
    let url = "http://localhost:9324/000000000000/q";
    let listed = &queues["ListQueuesResponse"]["ListQueuesResult"];
    assert_eq!(*listed, json!({"queueUrls": [url]}));
    let (status, refused) = json(q, "Action=ListQueues").await;
    assert_eq!(status, 400);
    let id = &refused["RequestId"];
    assert_eq!(
        refused,
        json!({"Error": {"Code": "InvalidAction", "Type": "Sender",
            "Message": "The action ListQueues is not valid for this endpoint."}, "RequestId": id})
    );
    let (_, sent) = json(q, "Action=SendMessage&MessageBody=%22x%22").await;
    let (_, received) = json(q, "Action=ReceiveMessage&AttributeName=SenderId").await;
    let message = &received["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"][0];
    assert_eq!(message["Body"], "\"x\"");
    assert_eq!(
        message["Attributes"],
        json!([{"Name": "SenderId", "Value": ACCOUNT}])
    );
    let sent = &sent["SendMessageResponse"]["SendMessageResult"];
    assert_eq!(message["MessageId"], sent["MessageId"]);

    // The format named first is used, and XML if none is named.
    for (accept, expected) in [
        ("application/json, text/plain, */*", "application/json"),
        ("text/html, Application/JSON;q=0.9", "application/json"),
        (
            "text/html,application/xml;q=0.9,application/json",
            "text/xml",
        ),
        ("text/xml, application/json", "text/xml"),
        ("*/*", "text/xml"),
        ("", "text/xml"),
    ] {
        let (_, kind, _) = asked(accept, q, "Action=ListQueueTags").await;
        assert_eq!(kind, expected, "{accept}");
    }
    let (status, kind, body) = asked("application/json", q, "").await;
    assert_eq!((status, kind.as_str()), (404, "text/xml"));
    assert_eq!(body, "<UnknownOperationException/>\n");
}

/// `dispatch` has a row for each action: whether it reads or changes.
#[tokio::test]
async fn a_link_of_a_web_page_reads_and_changes_nothing() {
    let reads = [
        "GetQueueAttributes",
        "GetQueueUrl",
        "ListDeadLetterSourceQueues",
        "ListMessageMoveTasks",
        "ListQueueTags",
        "ListQueues",
    ];
    let shop = Shop::open();
    shop.queue("q", json!({})).await;
    for action in Action::ALL {
        let name = action.name();
        let request = |target: Option<String>, query: Option<String>| Request {
            target,
            content_type: None,
            accept: None,
            path: "/".into(),
            query,
            trace_id: None,
            query_mode: false,
            body: Bytes::new(),
            by_link: true,
            hangup: Hangup::default(),
            holder: HolderName::new("tester").unwrap(),
            identity: None,
            host: HOST.into(),
        };
        let queue = format!("Action={name}&QueueUrl=q&QueueName=q");
        for request in [
            request(None, Some(queue)),
            request(Some(format!("AmazonSQS.{name}")), None),
        ] {
            let response = shop.service.handle(request).await;
            let body = String::from_utf8(response.body.to_vec()).unwrap();
            let refused = body.contains("a GET does only with an Authorization header");
            assert_eq!(refused, !reads.contains(&name), "{name}: {body}");
            assert_eq!(refused, response.status == 403, "{name}: {body}");
        }
    }
}
