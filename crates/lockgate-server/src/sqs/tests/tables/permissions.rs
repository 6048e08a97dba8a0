//! AddPermission and RemovePermission.

use serde_json::{Value, json};

use super::{
    Row, arn,
    codes::{INVALID, MISSING, NO_QUEUE, NO_QUEUE_TEXT, OVER_LIMIT},
    row, url,
};

const LABEL: &str =
    "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length";

fn add(label: &str) -> Value {
    json!({"QueueUrl": url("q"), "Label": label, "AWSAccountIds": ["111111111111"],
        "Actions": ["SendMessage"]})
}

/// The request with one member changed, or taken out by `null`.
fn changed(member: &str, value: Value) -> Value {
    let mut input = add("l");
    match value {
        Value::Null => {
            input.as_object_mut().expect("an object").remove(member);
        }
        value => input[member] = value,
    }
    input
}

fn accounts(count: usize) -> Value {
    (0..count)
        .map(|number| format!("{number:012}"))
        .collect::<Vec<_>>()
        .into()
}

/// A queue that has so many statements, with labels from `l0` on.
fn with_statements(name: &str, count: usize) -> Row {
    (0..count).fold(row(name).queue("q"), |row, number| {
        row.given("AddPermission", add(&format!("l{number}")))
    })
}

pub(super) fn add_permission() -> Vec<Row> {
    let invalid = |value: &str, parameter: &str, reason: &str| {
        format!("Value {value} for parameter {parameter} is invalid. Reason: {reason}")
    };
    let policy = |label: &str| {
        json!({"Version": "2008-10-17", "Id": format!("{}/SQSDefaultPolicy", arn("q")),
            "Statement": [{"Sid": label, "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
                "Action": "SQS:SendMessage", "Resource": arn("q")}]})
    };
    let mut rows = vec![
        row("all that is shared")
            .queue("q")
            .asks(changed(
                "Actions",
                json!([
                    "*",
                    "SendMessage",
                    "ReceiveMessage",
                    "DeleteMessage",
                    "ChangeMessageVisibility",
                    "GetQueueAttributes",
                    "GetQueueUrl"
                ]),
            ))
            .answers(json!({}))
            .then_attribute("q", "Policy", json!("*")),
        row("several accounts")
            .queue("q")
            .asks(changed(
                "AWSAccountIds",
                json!(["111111111111", "222222222222"]),
            ))
            .answers(json!({})),
        row("fifty accounts")
            .queue("q")
            .asks(changed("AWSAccountIds", accounts(50)))
            .answers(json!({})),
        row("fifty-one accounts")
            .queue("q")
            .asks(changed("AWSAccountIds", accounts(51)))
            .refused(
                &OVER_LIMIT,
                "51 Principals were found, maximum allowed is 50.",
            ),
        (0..4)
            .fold(
                row("a policy of more than 8,192 bytes").queue("q"),
                |row, n| {
                    let mut input = changed("AWSAccountIds", accounts(50));
                    input["Label"] = json!(format!("l{n}"));
                    row.given("AddPermission", input)
                },
            )
            .asks(changed("AWSAccountIds", accounts(50)))
            .refused(&OVER_LIMIT, "Submitted policy is over max allowed size."),
        row("the twentieth")
            .with_19()
            .asks(add("more"))
            .answers(json!({})),
        with_statements("the twenty-first", 20)
            .asks(add("more"))
            .refused(
                &OVER_LIMIT,
                "21 Statements were found, maximum allowed is 20.",
            ),
        with_statements("a label that is there", 1)
            .asks(add("l0"))
            .refused(&INVALID, invalid("l0", "Label", "Already exists.")),
        row("eight actions")
            .queue("q")
            .asks(changed(
                "Actions",
                json!(["*", "*", "*", "*", "*", "*", "*", "*"]),
            ))
            .refused(&OVER_LIMIT, "8 Actions were found, maximum allowed is 7."),
        row("an action that is none")
            .queue("q")
            .asks(changed("Actions", json!(["SendMessage", "Nonsense"])))
            .refused(
                &INVALID,
                invalid(
                    "SQS:Nonsense",
                    "ActionName",
                    "Please refer to the appropriate WSDL for a list of valid actions.",
                ),
            ),
        row("an action for the owner only")
            .queue("q")
            .asks(changed("Actions", json!(["DeleteQueue"])))
            .refused(
                &INVALID,
                invalid(
                    "SQS:DeleteQueue",
                    "ActionName",
                    "Only the queue owner is allowed to invoke this action.",
                ),
            ),
        row("a queue that is not there")
            .asks(changed("QueueUrl", json!(url("none"))))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
        row("no accounts")
            .queue("q")
            .asks(changed("AWSAccountIds", Value::Null))
            .refused(&INVALID, invalid("[]", "PrincipalId", "Unable to verify.")),
        row("an account that is none")
            .queue("q")
            .asks(changed("AWSAccountIds", json!(["111111111111", "x"])))
            .refused(
                &INVALID,
                invalid("[111111111111, x]", "PrincipalId", "Unable to verify."),
            ),
        row("an account of 11 digits")
            .queue("q")
            .asks(changed("AWSAccountIds", json!(["11111111111"])))
            .refused(
                &INVALID,
                invalid("[11111111111]", "PrincipalId", "Unable to verify."),
            ),
    ];
    for member in ["QueueUrl", "Label", "Actions"] {
        rows.push(
            row(format!("without {member}"))
                .queue("q")
                .asks(changed(member, Value::Null))
                .refused(
                    &MISSING,
                    format!("The request must contain the parameter {member}."),
                ),
        );
    }
    rows.push(
        row("an empty label")
            .queue("q")
            .asks(add(""))
            .refused(&MISSING, "The request must contain the parameter Label."),
    );
    let longest = "x".repeat(80);
    let too_long = "x".repeat(81);
    for label in ["a", "-_09azAZ", &longest] {
        rows.push(
            row(format!("the label {label}"))
                .queue("q")
                .asks(add(label))
                .answers(json!({}))
                .then_attribute("q", "Policy", json!(ordered(&policy(label)))),
        );
    }
    for label in ["a b", "a.b", "ä", &too_long] {
        rows.push(
            row(format!("the label {label:?}"))
                .queue("q")
                .asks(add(label))
                .refused(&INVALID, invalid(label, "Label", LABEL)),
        );
    }
    rows
}

/// The text of a policy, its members in the order in which AWS writes them.
fn ordered(policy: &Value) -> String {
    let statement = &policy["Statement"][0];
    format!(
        "{{\"Version\":{},\"Id\":{},\"Statement\":[{}]}}",
        policy["Version"], policy["Id"], statement
    )
}

impl Row {
    fn with_19(mut self) -> Self {
        self.given = with_statements("", 19).given;
        self
    }
}

pub(super) fn remove_permission() -> Vec<Row> {
    let remove = |label: &str| json!({"QueueUrl": url("q"), "Label": label});
    let missing = |label: &str| {
        format!("Value {label} for parameter Label is invalid. Reason: can't find label.")
    };
    vec![
        with_statements("the only one", 1)
            .asks(remove("l0"))
            .answers(json!({}))
            .then(
                "GetQueueAttributes",
                json!({"QueueUrl": url("q"), "AttributeNames": ["Policy"]}),
                json!({}),
            ),
        with_statements("one of two", 2)
            .asks(remove("l0"))
            .answers(json!({}))
            .then_attribute("q", "Policy", json!("*"))
            .then_refused("RemovePermission", remove("l0"), &INVALID, &missing("l0"))
            .then("RemovePermission", remove("l1"), json!({})),
        with_statements("one that is not there", 1)
            .asks(remove("more"))
            .refused(&INVALID, missing("more")),
        with_statements("one of another case", 1)
            .asks(remove("L0"))
            .refused(&INVALID, missing("L0")),
        row("of a queue without a policy")
            .queue("q")
            .asks(remove("l"))
            .refused(&INVALID, missing("l")),
        with_statements("an empty label", 1)
            .asks(remove(""))
            .refused(&MISSING, "The request must contain the parameter Label."),
        row("no label")
            .queue("q")
            .asks(json!({"QueueUrl": url("q")}))
            .refused(&MISSING, "The request must contain the parameter Label."),
        row("no queue is named")
            .asks(json!({"Label": "l"}))
            .refused(&MISSING, "The request must contain the parameter QueueUrl."),
        row("a queue that is not there")
            .asks(json!({"QueueUrl": url("none"), "Label": "l"}))
            .refused(&NO_QUEUE, NO_QUEUE_TEXT),
    ]
}
