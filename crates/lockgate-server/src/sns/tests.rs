//! The service over a real engine and a real log, on a disk in memory and with a manual clock. No test waits.
//!
//! These bugs, made on purpose, failed a test here:
//!
//! | broken | seen as |
//! |---|---|
//! | a subscription's ARN leaves the number of the exchange out | a topic that is made again has the old ARNs |
//! | a redrive policy names a queue that the key may not send to | it is taken |
//! | the right to publish is asked for to subscribe | a publisher subscribes |
//! | who may not read a topic is told that it may not | a topic is found by guessing |
//! | a request's version is not looked at | a request of SQS is answered by SNS |
//! | a refusal names the queue to everybody | a publisher learns of it |
//! | a page ends without a token | subscriptions are missing |

use std::sync::Arc;

use bytes::Bytes;
use lockgate_core::{HolderName, QueueName};
use lockgate_engine::{Engine, EngineOptions};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_machine::{CreateQueue, ListMessages, QueueSettings};
use lockgate_sim::{FaultyDisk, ManualClock};

use super::{Service, dispatch::Action, is_meant, only_reads};
use crate::{
    auth::{AccessKey, Grant, Names, Secret, Verb},
    http::{CountedAction, progress::Hangup},
    sqs::{Config, Request},
};

const TOPIC: &str = "arn:aws:sns:us-east-1:000000000000:t";

struct Shop {
    service: Service,
    engine: Engine,
    disk: FaultyDisk,
    clock: ManualClock,
}

/// Status and body.
type Answer = (u16, String);

impl Shop {
    fn open() -> Self {
        Self::on(FaultyDisk::new(), ManualClock::default())
    }

    fn on(disk: FaultyDisk, clock: ManualClock) -> Self {
        let options = LocalLogOptions {
            free_bytes_min: 0,
            ..LocalLogOptions::default()
        };
        let log = LocalLog::open(Arc::new(disk.clone()), options).unwrap();
        let clock_of_engine = Arc::new(clock.clone());
        let (engine, _) = Engine::start(log, clock_of_engine, EngineOptions::default()).unwrap();
        let config = Config {
            account: "000000000000".into(),
            region: "us-east-1".into(),
            https: false,
        };
        Self {
            service: Service::new(engine.clone(), config, Arc::default()),
            engine,
            disk,
            clock,
        }
    }

    async fn reopened(self) -> Self {
        self.engine.shutdown().await;
        drop((self.service, self.engine));
        Self::on(self.disk, self.clock)
    }

    async fn queue(&self, name: &str, settings: QueueSettings) {
        let create = CreateQueue {
            name: QueueName::new(name).unwrap(),
            settings,
            annotations: Default::default(),
            tags: Default::default(),
        };
        self.engine.submit(create).await.unwrap();
    }

    async fn ask_as(
        &self,
        key: Option<&AccessKey>,
        action: &str,
        parameters: &[(&str, &str)],
    ) -> Answer {
        let mut request = request(&form(action, parameters));
        request.identity = key.cloned().map(Arc::new);
        assert!(is_meant(&request), "{action}");
        let response = self.service.handle(&request, "id").await;
        let body = String::from_utf8(response.body.to_vec()).unwrap();
        (response.status.as_u16(), body)
    }

    async fn ok(&self, action: &str, parameters: &[(&str, &str)]) -> String {
        let (status, body) = self.ask_as(None, action, parameters).await;
        assert_eq!(status, 200, "{action} {parameters:?}: {body}");
        body
    }

    async fn refused(&self, action: &str, parameters: &[(&str, &str)]) -> (String, String) {
        let (status, body) = self.ask_as(None, action, parameters).await;
        assert_ne!(status, 200, "{action} {parameters:?}: {body}");
        (between(&body, "Code"), between(&body, "Message"))
    }

    async fn subscribe(&self, queue: &str, more: &[(&str, &str)]) -> String {
        let endpoint = queue_arn(queue);
        let mut parameters = vec![
            ("TopicArn", TOPIC),
            ("Protocol", "sqs"),
            ("Endpoint", &endpoint),
        ];
        parameters.extend(more);
        between(&self.ok("Subscribe", &parameters).await, "SubscriptionArn")
    }

    /// How many messages a queue has.
    async fn messages(&self, queue: &str) -> usize {
        let list = ListMessages {
            queue: QueueName::new(queue).unwrap(),
            key: None,
            after: None,
            limit: 100,
        };
        self.engine.query(list).await.unwrap().messages.len()
    }
}

fn form(action: &str, parameters: &[(&str, &str)]) -> String {
    let encode = |text: &str| {
        let bytes = text.bytes().map(|byte| format!("%{byte:02x}"));
        bytes.collect::<String>()
    };
    let mut form = format!("Action={action}&Version=2010-03-31");
    for (name, value) in parameters {
        form.push_str(&format!("&{name}={}", encode(value)));
    }
    form
}

fn request(body: &str) -> Request {
    Request {
        trace_id: None,
        target: None,
        content_type: Some("application/x-www-form-urlencoded; charset=utf-8".into()),
        accept: None,
        path: "/".into(),
        query: None,
        query_mode: false,
        body: Bytes::copy_from_slice(body.as_bytes()),
        by_link: false,
        hangup: Hangup::default(),
        holder: HolderName::new("tester").unwrap(),
        identity: None,
        host: "localhost:9324".into(),
    }
}

fn queue_arn(queue: &str) -> String {
    format!("arn:aws:sqs:us-east-1:000000000000:{queue}")
}

/// The text of the first element of that name.
fn between(xml: &str, element: &str) -> String {
    all_between(xml, element)
        .into_iter()
        .next()
        .unwrap_or_else(|| panic!("no {element} in {xml}"))
}

fn all_between(xml: &str, element: &str) -> Vec<String> {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let parts = xml.split(&open).skip(1);
    parts
        .map(|part| part.split(&close).next().unwrap().to_owned())
        .collect()
}

fn key(grants: &[(Names, &[Verb])]) -> AccessKey {
    let grants = grants.iter().map(|(on, verbs)| Grant {
        on: on.clone(),
        verbs: verbs.to_vec(),
    });
    AccessKey {
        id: "K".into(),
        secret: Secret::new("do not show"),
        grants: grants.collect(),
    }
}

#[tokio::test]
async fn a_topic_leads_to_queues_and_survives_a_restart() {
    let shop = Shop::open();
    shop.queue("a", QueueSettings::default()).await;
    shop.queue("b", QueueSettings::default()).await;
    let made = shop.ok(
        "CreateTopic",
        &[
            ("Name", "t"),
            ("Tags.member.1.Key", "k"),
            ("Tags.member.1.Value", "v"),
        ],
    );
    assert_eq!(between(&made.await, "TopicArn"), TOPIC);
    let a = shop.subscribe("a", &[]).await;
    assert_eq!(shop.subscribe("a", &[]).await, a);
    let b = shop.subscribe("b", &[]).await;
    let to_topic = [("TopicArn", TOPIC), ("Message", "hello")];
    let first = between(&shop.ok("Publish", &to_topic).await, "MessageId");
    assert_eq!((shop.messages("a").await, shop.messages("b").await), (1, 1));

    let shop = shop.reopened().await;
    let listed = shop
        .ok("ListSubscriptionsByTopic", &[("TopicArn", TOPIC)])
        .await;
    assert_eq!(
        all_between(&listed, "SubscriptionArn"),
        [a.clone(), b.clone()]
    );
    let tags = shop
        .ok("ListTagsForResource", &[("ResourceArn", TOPIC)])
        .await;
    assert_eq!(
        (between(&tags, "Key"), between(&tags, "Value")),
        ("k".into(), "v".into())
    );
    assert_ne!(
        between(&shop.ok("Publish", &to_topic).await, "MessageId"),
        first
    );

    // What is made again is another one.
    shop.ok("Unsubscribe", &[("SubscriptionArn", &a)]).await;
    shop.ok("Unsubscribe", &[("SubscriptionArn", &a)]).await;
    let again = shop.subscribe("a", &[]).await;
    assert!(again != a && again != b, "{again}");
    shop.ok("DeleteTopic", &[("TopicArn", TOPIC)]).await;
    shop.ok("CreateTopic", &[("Name", "t")]).await;
    let third = shop.subscribe("a", &[]).await;
    assert!(third != a && third != again, "{third}");
    let gone = shop
        .refused("GetSubscriptionAttributes", &[("SubscriptionArn", &again)])
        .await;
    assert_eq!(
        gone,
        ("NotFound".into(), "Subscription does not exist".into())
    );
}

#[tokio::test]
async fn rights_are_those_of_exchanges_and_queues() {
    let shop = Shop::open();
    for queue in ["a", "dead"] {
        shop.queue(queue, QueueSettings::default()).await;
    }
    shop.ok("CreateTopic", &[("Name", "t")]).await;
    let endpoint = queue_arn("a");
    let exchanges = Names::Exchanges("t".into());
    let to_a = Names::Queues("a".into());
    let subscribe = [
        ("TopicArn", TOPIC),
        ("Protocol", "sqs"),
        ("Endpoint", &endpoint),
    ];
    let redrive = format!(r#"{{"deadLetterTargetArn":"{}"}}"#, queue_arn("dead"));
    let with_redrive = [
        &subscribe[..],
        &[
            ("Attributes.entry.1.key", "RedrivePolicy"),
            ("Attributes.entry.1.value", &redrive),
        ],
    ]
    .concat();
    let publish = [("TopicArn", TOPIC), ("Message", "x")];
    let publisher = key(&[(exchanges.clone(), &[Verb::Send, Verb::Read])]);
    let manager = key(&[(exchanges.clone(), &[Verb::Manage])]);
    let both = key(&[(exchanges.clone(), &[Verb::Manage]), (to_a, &[Verb::Send])]);
    let stranger = key(&[]);
    for (key, action, parameters, expected) in [
        (&publisher, "Publish", &publish[..], "200"),
        (
            &publisher,
            "Subscribe",
            &subscribe[..],
            "AuthorizationError",
        ),
        (
            &publisher,
            "DeleteTopic",
            &publish[..],
            "AuthorizationError",
        ),
        (&manager, "Publish", &publish[..], "NotFound"),
        (&manager, "Subscribe", &subscribe[..], "InvalidParameter"),
        (&both, "Subscribe", &with_redrive[..], "InvalidParameter"),
        (&both, "Subscribe", &subscribe[..], "200"),
        (&stranger, "Publish", &publish[..], "NotFound"),
        (&stranger, "GetTopicAttributes", &publish[..], "NotFound"),
        (
            &stranger,
            "CreateTopic",
            &[("Name", "t")][..],
            "AuthorizationError",
        ),
    ] {
        let (status, body) = shop.ask_as(Some(key), action, parameters).await;
        let found = match status {
            200 => "200".to_owned(),
            _ => between(&body, "Code"),
        };
        assert_eq!(found, expected, "{action} {:?}: {body}", key.grants);
    }
    let (_, listed) = shop.ask_as(Some(&stranger), "ListTopics", &[]).await;
    assert!(!listed.contains(TOPIC), "{listed}");
    let (_, listed) = shop.ask_as(Some(&stranger), "ListSubscriptions", &[]).await;
    assert!(!listed.contains(TOPIC), "{listed}");
}

#[tokio::test]
async fn refusals_are_in_the_words_of_aws() {
    let shop = Shop::open();
    let keyed = QueueSettings {
        keyed: true,
        dedup_window: 300_000,
        ..QueueSettings::default()
    };
    shop.queue("q.fifo", keyed).await;
    shop.ok(
        "CreateTopic",
        &[
            ("Name", "t"),
            ("Attributes.entry.1.key", "DisplayName"),
            ("Attributes.entry.1.value", "d"),
        ],
    )
    .await;
    let fifo = queue_arn("q.fifo");
    let gone = format!("{TOPIC}2");
    let subscription = format!("{TOPIC}:00000001-0000-8000-8000-000000000001");
    for (action, parameters, code, text) in [
        (
            "CreateTopic",
            &[("Name", "a b")][..],
            "InvalidParameter",
            "Invalid parameter: Topic Name",
        ),
        (
            "CreateTopic",
            &[
                ("Name", "t"),
                ("Attributes.entry.1.key", "DisplayName"),
                ("Attributes.entry.1.value", "e"),
            ],
            "InvalidParameter",
            "Invalid parameter: Attributes Reason: Topic already exists with different attributes",
        ),
        (
            "CreateTopic",
            &[
                ("Name", "t"),
                ("Tags.member.1.Key", "k"),
                ("Tags.member.1.Value", "v"),
            ],
            "InvalidParameter",
            "Invalid parameter: Tags Reason: Topic already exists with different tags",
        ),
        (
            "CreateTopic",
            &[
                ("Name", "t2"),
                ("Attributes.entry.1.key", "ContentBasedDeduplication"),
                ("Attributes.entry.1.value", "true"),
            ],
            "InvalidParameter",
            "Invalid parameter: Attributes Reason: ContentBasedDeduplication",
        ),
        (
            "Publish",
            &[("TopicArn", &*gone), ("Message", "x")],
            "NotFound",
            "Topic does not exist",
        ),
        (
            "Publish",
            &[("TopicArn", TOPIC), ("Message", "")],
            "InvalidParameter",
            "Invalid parameter: Empty message",
        ),
        (
            "Publish",
            &[
                ("TopicArn", TOPIC),
                ("Message", "x"),
                ("MessageDeduplicationId", "d"),
            ],
            "InvalidParameter",
            "Invalid parameter: MessageDeduplicationId Reason: The request includes MessageDeduplicationId parameter that is \
             not valid for this topic type",
        ),
        (
            "Publish",
            &[("Message", "x")],
            "InvalidParameter",
            "Invalid parameter: TopicArn or TargetArn Reason: exactly one of them must have a value",
        ),
        (
            "Subscribe",
            &[
                ("TopicArn", TOPIC),
                ("Protocol", "carrier-pigeon"),
                ("Endpoint", "x"),
            ],
            "InvalidParameter",
            "Invalid parameter: Amazon SNS does not support this protocol string: carrier-pigeon",
        ),
        (
            "Subscribe",
            &[("TopicArn", TOPIC), ("Protocol", "sqs"), ("Endpoint", "x")],
            "InvalidParameter",
            "Invalid parameter: SQS endpoint ARN",
        ),
        (
            "Subscribe",
            &[
                ("TopicArn", TOPIC),
                ("Protocol", "sqs"),
                ("Endpoint", &fifo),
            ],
            "InvalidParameter",
            "Invalid parameter: Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed to standard SNS topics",
        ),
        (
            "GetSubscriptionAttributes",
            &[("SubscriptionArn", &subscription)],
            "NotFound",
            "Subscription does not exist",
        ),
        (
            "SetSubscriptionAttributes",
            &[("SubscriptionArn", TOPIC), ("AttributeName", "x")],
            "InvalidParameter",
            "Invalid parameter: SubscriptionId",
        ),
        (
            "PublishBatch",
            &[("TopicArn", TOPIC)],
            "EmptyBatchRequest",
            "The batch request doesn&quot;t",
        ),
        (
            "SetSMSAttributes",
            &[],
            "InvalidAction",
            "SetSMSAttributes is about phones and their messages, which Lockgate does not have: its topics lead to queues.",
        ),
    ] {
        let (found, message) = shop.refused(action, parameters).await;
        let is_said = message == text
            || (action == "PublishBatch" && message.starts_with("The batch request doesn"));
        assert!(
            found == code && is_said,
            "{action} {parameters:?}: {found} {message}"
        );
    }
}

#[tokio::test]
async fn pages_join_to_all_topics_and_subscriptions() {
    let shop = Shop::open();
    for number in 0..3 {
        shop.queue(&format!("q{number}"), QueueSettings::default())
            .await;
    }
    for number in 0..130 {
        let name = format!("t{number:03}");
        let made = shop.ok("CreateTopic", &[("Name", &name)]).await;
        let topic = between(&made, "TopicArn");
        for queue in 0..number % 4 {
            let endpoint = queue_arn(&format!("q{queue}"));
            shop.ok(
                "Subscribe",
                &[
                    ("TopicArn", &topic),
                    ("Protocol", "sqs"),
                    ("Endpoint", &endpoint),
                ],
            )
            .await;
        }
    }
    for (action, element, expected) in [
        ("ListTopics", "TopicArn", 130),
        ("ListSubscriptions", "SubscriptionArn", 193),
    ] {
        let (mut found, mut token) = (Vec::new(), None::<String>);
        loop {
            let parameters: Vec<_> = token.iter().map(|token| ("NextToken", &**token)).collect();
            let page = shop.ok(action, &parameters).await;
            let members = all_between(&page, element);
            assert!(members.len() <= 100, "{action}");
            found.extend(members);
            token = all_between(&page, "NextToken").pop();
            if token.is_none() {
                break;
            }
        }
        let all = found.len();
        found.sort();
        found.dedup();
        assert_eq!((found.len(), all), (expected, expected), "{action}");
    }
    let odd = shop.refused("ListTopics", &[("NextToken", "%")]).await;
    assert_eq!(odd.1, "Invalid parameter: NextToken");
}

#[tokio::test]
async fn a_full_queue_makes_the_publish_refuse_unless_there_is_a_redrive_policy() {
    let shop = Shop::open();
    let small = QueueSettings {
        quota_messages: Some(1),
        ..QueueSettings::default()
    };
    shop.queue("small", small).await;
    shop.queue("dead", QueueSettings::default()).await;
    shop.ok("CreateTopic", &[("Name", "t")]).await;
    let arn = shop.subscribe("small", &[]).await;
    let publish = [("TopicArn", TOPIC), ("Message", "x")];
    shop.ok("Publish", &publish).await;
    let (status, body) = shop.ask_as(None, "Publish", &publish).await;
    assert_eq!(
        (status, &*between(&body, "Code")),
        (503, "ServiceUnavailable")
    );
    assert_eq!(between(&body, "Type"), "Receiver");
    // A publisher learns of a queue what it may know of it.
    let publisher = key(&[(Names::Exchanges("t".into()), &[Verb::Send])]);
    let (_, body) = shop.ask_as(Some(&publisher), "Publish", &publish).await;
    assert_eq!(between(&body, "Code"), "ServiceUnavailable");
    assert!(!body.contains("small"), "{body}");
    let batch = [
        ("TopicArn", TOPIC),
        ("PublishBatchRequestEntries.member.1.Id", "one"),
        ("PublishBatchRequestEntries.member.1.Message", "x"),
    ];
    let done = shop.ok("PublishBatch", &batch).await;
    assert!(done.contains("<Successful></Successful>"), "{done}");
    assert_eq!(
        (between(&done, "Id"), between(&done, "SenderFault")),
        ("one".into(), "false".into())
    );
    let policy = format!(r#"{{"deadLetterTargetArn":"{}"}}"#, queue_arn("dead"));
    let set = [
        ("SubscriptionArn", &*arn),
        ("AttributeName", "RedrivePolicy"),
        ("AttributeValue", &policy),
    ];
    shop.ok("SetSubscriptionAttributes", &set).await;
    shop.ok("Publish", &publish).await;
    assert_eq!(
        (shop.messages("small").await, shop.messages("dead").await),
        (1, 1)
    );
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_is_told_as_what_it_is() {
    let shop = Shop::open();
    shop.ok("CreateTopic", &[("Name", "t")]).await;
    let permit = [
        ("TopicArn", TOPIC),
        ("Label", "l"),
        ("AWSAccountId.member.1", "111111111111"),
        ("ActionName.member.1", "Publish"),
    ];
    shop.ok("AddPermission", &permit).await;
    let again = shop.refused("AddPermission", &permit).await;
    assert_eq!(again.1, "Invalid parameter: Statement already exists");
    // A data folder may hold anything.
    for (policy, is_taken) in [
        ("7", false),
        ("{", false),
        (r#"{"Statement":{}}"#, true),
        ("{}", true),
    ] {
        let update = lockgate_machine::UpdateExchange {
            exchange: lockgate_core::ExchangeName::new("t").unwrap(),
            unroutable: None,
            notes: Some(lockgate_machine::ExchangeNotes {
                annotations: [("Policy".to_owned(), policy.to_owned())].into(),
                tags: Default::default(),
            }),
        };
        shop.engine.submit(update).await.unwrap();
        let (status, body) = shop.ask_as(None, "AddPermission", &permit).await;
        assert_eq!(status == 200, is_taken, "{policy}: {body}");
    }
}

#[test]
fn requests_are_told_apart_by_their_version() {
    for (body, meant) in [
        ("Action=ListTopics&Version=2010-03-31", true),
        ("Action=AddPermission&Version=2010-03-31", true),
        ("Action=AddPermission&Version=2012-11-05", false),
        ("Action=ListTopics&Version=2012-11-05", false),
        ("Action=ListTopics", true),
        ("Action=SetSMSAttributes", true),
        ("Action=AddPermission", false),
        ("Action=SendMessage&MessageBody=Version%3D2010-03-31", false),
        ("Action=Nothing", false),
        ("", false),
    ] {
        assert_eq!(is_meant(&request(body)), meant, "{body}");
    }
    let mut json = request("Action=ListTopics&Version=2010-03-31");
    json.content_type = Some("application/x-amz-json-1.0".into());
    json.target = Some("AmazonSQS.ListQueues".into());
    assert!(!is_meant(&json));
    let mut of_queue = request("Action=ListTopics&Version=2010-03-31");
    of_queue.path = "/000000000000/q".into();
    assert!(!is_meant(&of_queue));
}

#[test]
fn every_action_is_counted_and_changes_or_reads() {
    for action in Action::ALL {
        let name = action.name();
        let counted = CountedAction::of_aws(Some(name));
        assert_eq!(counted.label(), name);
        let reads = name.starts_with("Get") || name.starts_with("List");
        assert_eq!(only_reads(name), reads, "{name}");
    }
}

#[tokio::test]
async fn a_link_changes_nothing() {
    let shop = Shop::open();
    for (action, status) in [("CreateTopic", 403), ("ListTopics", 200)] {
        let mut request = request(&form(action, &[("Name", "t")]));
        request.by_link = true;
        let response = shop.service.handle(&request, "id").await;
        assert_eq!(response.status.as_u16(), status, "{action}");
    }
}
