//! RedrivePolicy and RedriveAllowPolicy, and ListDeadLetterSourceQueues.

use serde_json::{Value, json};

use super::{
    Row, arn,
    attributes::Sets,
    codes::{INVALID, MISSING, NO_QUEUE, NO_QUEUE_TEXT},
    row, url,
};

fn policy(queue: &str, count: Value) -> String {
    json!({"deadLetterTargetArn": arn(queue), "maxReceiveCount": count}).to_string()
}

/// Rows about a standard queue's two redrive policies, for each action that sets them.
pub(super) fn policies(sets: &Sets<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (what, count, kept) in [
        ("a number", json!(1), 1),
        ("a text", json!("5"), 5),
        ("the largest", json!(1000), 1000),
    ] {
        rows.push(
            sets(
                row(format!("RedrivePolicy whose count is {what}")).queue("dead"),
                &[("RedrivePolicy", &policy("dead", count))],
            )
            .works()
            .then_attribute("q", "RedrivePolicy", json!(policy("dead", json!(kept)))),
        );
    }
    let count_text = |count: &str| {
        format!(
            "Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both \
             inclusive."
        )
    };
    let missing =
        |member: &str| format!("Redrive policy does not contain mandatory attribute: {member}.");
    let target = arn("dead");
    let other_account = "arn:aws:sqs:us-east-1:111111111111:dead";
    let other_region = "arn:aws:sqs:eu-west-1:000000000000:dead";
    for (what, value, reason) in [
        ("empty", "{}".to_owned(), missing("maxReceiveCount")),
        (
            "whose target has another name",
            json!({"deadLetterQueueARN": target, "maxReceiveCount": 5}).to_string(),
            missing("deadLetterTargetArn"),
        ),
        (
            "without a count",
            json!({"deadLetterTargetArn": target}).to_string(),
            missing("maxReceiveCount"),
        ),
        (
            "without a target",
            json!({"maxReceiveCount": 1}).to_string(),
            missing("deadLetterTargetArn"),
        ),
        (
            "with a count of 0",
            policy("dead", json!(0)),
            count_text("0"),
        ),
        (
            "with a count of 1001",
            policy("dead", json!(1001)),
            count_text("1001"),
        ),
        (
            "with a count of -1",
            policy("dead", json!(-1)),
            count_text("-1"),
        ),
        (
            "with a count that is a word",
            policy("dead", json!("many")),
            count_text("many"),
        ),
        (
            "with a count of 1001 as a text",
            policy("dead", json!("1001")),
            count_text("1001"),
        ),
        (
            "with a count that is true",
            policy("dead", json!(true)),
            count_text("true"),
        ),
        (
            "with a target that is not there",
            policy("none", json!(1)),
            "Dead letter target does not exist.".to_owned(),
        ),
        (
            "with a target that is no ARN",
            json!({"deadLetterTargetArn": "dead", "maxReceiveCount": 1}).to_string(),
            "Dead-letter target ARN should be fully qualified ARN.".to_owned(),
        ),
        (
            "with a target of another service",
            json!({"deadLetterTargetArn": "arn:aws:sns:us-east-1:000000000000:dead",
                "maxReceiveCount": 1})
            .to_string(),
            "Only SQS queues are valid resources for deadLetterTargetArn.".to_owned(),
        ),
        (
            "with a target that is a number",
            json!({"deadLetterTargetArn": 7, "maxReceiveCount": 1}).to_string(),
            "Invalid value for deadLetterTargetArn.".to_owned(),
        ),
        (
            "with another account's target",
            json!({"deadLetterTargetArn": other_account, "maxReceiveCount": 1}).to_string(),
            "Dead-letter target owner should be same as the source.".to_owned(),
        ),
        (
            "with another region's target",
            json!({"deadLetterTargetArn": other_region, "maxReceiveCount": 1}).to_string(),
            "Dead-letter target must be in same region as the source.".to_owned(),
        ),
        (
            "with a target of the other kind",
            policy("dead.fifo", json!(1)),
            "Dead-letter queue must be same type of queue as the source.".to_owned(),
        ),
        (
            "with a member that is unknown",
            json!({"deadLetterTargetArn": target, "maxReceiveCount": 1, "x": 1}).to_string(),
            "Only following attributes are supported: [deadLetterTargetArn, maxReceiveCount]."
                .to_owned(),
        ),
    ] {
        rows.push(
            sets(
                row(format!("RedrivePolicy {what}"))
                    .queue("dead")
                    .queue("dead.fifo"),
                &[("RedrivePolicy", &value)],
            )
            .refused(
                &INVALID,
                format!("Value {value} for parameter RedrivePolicy is invalid. Reason: {reason}"),
            ),
        );
    }
    for (what, value) in [("no JSON", "x"), ("a list", "[]"), ("a text", "\"x\"")] {
        rows.push(
            sets(
                row(format!("RedrivePolicy {what}")),
                &[("RedrivePolicy", value)],
            )
            .refused(
                &INVALID,
                "Invalid value for the parameter RedrivePolicy. Reason: Redrive policy is not a \
                 valid JSON map.",
            ),
        );
    }
    rows.extend(allowing(sets));
    let allow = |permission: Value| json!({"RedriveAllowPolicy": permission.to_string()});
    for (what, allows) in [
        ("that lets all in", json!({"redrivePermission": "allowAll"})),
        (
            "that lets it in by name",
            json!({"redrivePermission": "byQueue", "sourceQueueArns": [arn("p"), arn("q")]}),
        ),
    ] {
        rows.push(
            sets(
                row(format!("RedrivePolicy with a target {what}"))
                    .queue_with("dead", allow(allows)),
                &[("RedrivePolicy", &policy("dead", json!(1)))],
            )
            .works(),
        );
    }
    for (what, allows) in [
        ("that lets none in", json!({"redrivePermission": "denyAll"})),
        (
            "that lets others in",
            json!({"redrivePermission": "byQueue", "sourceQueueArns": [arn("p")]}),
        ),
    ] {
        let value = policy("dead", json!(1));
        rows.push(
            sets(
                row(format!("RedrivePolicy with a target {what}"))
                    .queue_with("dead", allow(allows)),
                &[("RedrivePolicy", &value)],
            )
            .refused(
                &INVALID,
                format!(
                    "Value {value} for parameter RedrivePolicy is invalid. Reason: The redrive \
                     allow policy of the dead-letter queue does not include this queue."
                ),
            ),
        );
    }
    rows
}

fn allowing(sets: &Sets<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    let ten: Vec<String> = (0..10).map(|number| arn(&format!("q{number}"))).collect();
    let mut eleven = ten.clone();
    eleven.push(arn("more"));
    for (what, allows) in [
        ("of all", json!({"redrivePermission": "allowAll"})),
        ("of none", json!({"redrivePermission": "denyAll"})),
        (
            "of ten",
            json!({"redrivePermission": "byQueue", "sourceQueueArns": ten}),
        ),
    ] {
        let value = allows.to_string();
        rows.push(
            sets(
                row(format!("RedriveAllowPolicy {what}")),
                &[("RedriveAllowPolicy", &value)],
            )
            .works()
            .then_attribute("q", "RedriveAllowPolicy", json!(value)),
        );
    }
    for (what, value) in [
        ("that is no JSON", "x".to_owned()),
        ("that is a list", "[]".to_owned()),
        ("that is empty", "{}".to_owned()),
        (
            "of a word",
            json!({"redrivePermission": "some"}).to_string(),
        ),
        (
            "by names that are numbers",
            json!({"redrivePermission": "byQueue", "sourceQueueArns": [1]}).to_string(),
        ),
        (
            "with a member that is unknown",
            json!({"redrivePermission": "allowAll", "x": 1}).to_string(),
        ),
    ] {
        rows.push(
            sets(
                row(format!("RedriveAllowPolicy {what}")),
                &[("RedriveAllowPolicy", &value)],
            )
            .refused(
                &INVALID,
                "Invalid value for the parameter RedriveAllowPolicy. Reason: Amazon SQS can't \
                 create the redrive allow policy, as it\u{2019}s in an unsupported format.",
            ),
        );
    }
    let no_names = "When you specify the byQueue permission type, you must also specify one or more \
        sourceQueueArns values.";
    for (what, value, reason) in [
        (
            "by names without names",
            json!({"redrivePermission": "byQueue"}).to_string(),
            no_names,
        ),
        (
            "by an empty list of names",
            json!({"redrivePermission": "byQueue", "sourceQueueArns": []}).to_string(),
            no_names,
        ),
        (
            "of all, with names",
            json!({"redrivePermission": "allowAll", "sourceQueueArns": [arn("p")]}).to_string(),
            "To specify one or more source queue ARNs, you must set redrivePermission to byQueue.",
        ),
        (
            "of eleven",
            json!({"redrivePermission": "byQueue", "sourceQueueArns": eleven}).to_string(),
            "The maximum number of source queue ARNs you can specify is 10.",
        ),
    ] {
        rows.push(
            sets(
                row(format!("RedriveAllowPolicy {what}")),
                &[("RedriveAllowPolicy", &value)],
            )
            .refused(
                &INVALID,
                format!(
                    "Value {value:.1024} for parameter RedriveAllowPolicy is invalid. Reason: Amazon \
                     SQS can't create the redrive allow policy. {reason}"
                ),
            ),
        );
    }
    rows
}

pub(super) fn list_dead_letter_source_queues() -> Vec<Row> {
    let three = |name: &str| {
        let dying = json!({"RedrivePolicy": policy("dead", json!(1))});
        row(name)
            .queue("dead")
            .queue("other")
            .queue_with("s2", dying.clone())
            .queue_with("s1", dying.clone())
            .queue_with("s3", dying)
    };
    let urls = |names: &[&str]| names.iter().map(|name| url(name)).collect::<Vec<_>>();
    let list = |queue: &str| json!({"QueueUrl": url(queue)});
    let page = |max: i64| json!({"QueueUrl": url("dead"), "MaxResults": max});
    let mut rows = vec![
        three("in order of their names")
            .asks(list("dead"))
            .answers(json!({"queueUrls": urls(&["s1", "s2", "s3"]), "NextToken": null})),
        three("of a queue that is none")
            .asks(list("other"))
            .answers(json!({"queueUrls": [], "NextToken": null})),
        three("page by page")
            .asks(page(2))
            .answers(json!({"queueUrls": urls(&["s1", "s2"]), "NextToken": "*"}))
            .then(
                "ListDeadLetterSourceQueues",
                json!({"QueueUrl": url("dead"), "MaxResults": 2, "NextToken": "{6/NextToken}"}),
                json!({"queueUrls": urls(&["s3"]), "NextToken": null}),
            ),
        three("a page that holds just all")
            .asks(page(3))
            .answers(json!({"queueUrls": urls(&["s1", "s2", "s3"]), "NextToken": null})),
        three("without one whose policy was taken away")
            .given(
                "SetQueueAttributes",
                json!({"QueueUrl": url("s2"), "Attributes": {"RedrivePolicy": ""}}),
            )
            .asks(list("dead"))
            .answers(json!({"queueUrls": urls(&["s1", "s3"])})),
        row("no queue is named")
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(list("none"))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
        row("a token that was made up")
            .queue("dead")
            .asks(json!({"QueueUrl": url("dead"), "MaxResults": 1, "NextToken": "?"}))
            .refused(&INVALID, "Invalid or expired next token."),
    ];
    for max in [0, -1, 1001] {
        rows.push(row(format!("a page of {max}")).queue("dead").asks(page(max)).refused(
            &INVALID,
            "Value for parameter MaxResults is invalid. Reason: MaxResults must be an integer \
             between 1 and 1000.",
        ));
    }
    rows
}
