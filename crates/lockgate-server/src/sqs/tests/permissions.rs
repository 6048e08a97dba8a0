//! Permissions: statements of a queue's policy.

use lockgate_core::QueueName;
use lockgate_machine::{ChangeQueue, Command};
use serde_json::{Value, json};

use super::{Shop, protocols::in_both_protocols, text};

in_both_protocols![
    permissions_are_statements_of_the_policy,
    a_policy_that_was_set_whole_keeps_its_own_statements,
    statements_have_a_limit,
    a_policy_beyond_what_may_be_set_is_told_as_what_it_is,
];

impl Shop {
    async fn permit(&self, url: &str, label: &str, accounts: &[&str], actions: &[&str]) -> Value {
        let input = json!({"QueueUrl": url, "Label": label, "AWSAccountIds": accounts,
            "Actions": actions});
        self.ok("AddPermission", input).await
    }

    async fn forbid(&self, url: &str, label: &str) -> Value {
        let input = json!({"QueueUrl": url, "Label": label});
        self.ok("RemovePermission", input).await
    }

    async fn policy(&self, url: &str) -> Value {
        match self.attribute(url, "Policy").await {
            Value::Null => Value::Null,
            policy => serde_json::from_str(&text(&policy)).unwrap(),
        }
    }
}

async fn permissions_are_statements_of_the_policy(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    let done = shop
        .permit(&url, "a", &["111111111111"], &["ReceiveMessage"])
        .await;
    assert_eq!(done, json!({}));
    shop.permit(
        &url,
        "b",
        &["111111111111", "222222222222"],
        &["*", "SendMessage"],
    )
    .await;
    let arn = "arn:aws:sqs:us-east-1:000000000000:q";
    let statement = |label: &str, accounts: Value, actions: Value| {
        json!({"Sid": label, "Effect": "Allow", "Principal": {"AWS": accounts},
            "Action": actions, "Resource": arn})
    };
    let of_a = statement(
        "a",
        json!("arn:aws:iam::111111111111:root"),
        json!("SQS:ReceiveMessage"),
    );
    let of_b = statement(
        "b",
        json!([
            "arn:aws:iam::111111111111:root",
            "arn:aws:iam::222222222222:root"
        ]),
        json!(["SQS:*", "SQS:SendMessage"]),
    );
    let policy = |statements: Value| {
        json!({"Version": "2008-10-17", "Id": format!("{arn}/SQSDefaultPolicy"),
            "Statement": statements})
    };
    assert_eq!(shop.policy(&url).await, policy(json!([of_a, of_b])));
    let again = json!({"QueueUrl": url, "Label": "a", "AWSAccountIds": ["333333333333"],
        "Actions": ["SendMessage"]});
    let (code, message) = shop.refused("AddPermission", again).await;
    assert_eq!(code, "InvalidParameterValue");
    assert_eq!(
        message,
        "Value a for parameter Label is invalid. Reason: Already exists."
    );
    assert_eq!(shop.forbid(&url, "a").await, json!({}));
    assert_eq!(shop.policy(&url).await, policy(json!([of_b])));
    shop.forbid(&url, "b").await;
    assert_eq!(shop.policy(&url).await, Value::Null);
}

async fn a_policy_that_was_set_whole_keeps_its_own_statements(shop: Shop) {
    let own = json!({"Version": "2012-10-17", "Statement": {"Effect": "Deny", "Principal": "*",
        "Action": "sqs:*"}});
    let url = shop.queue("q", json!({"Policy": own.to_string()})).await;
    shop.permit(&url, "a", &["111111111111"], &["SendMessage"])
        .await;
    let policy = shop.policy(&url).await;
    assert_eq!(policy["Version"], "2012-10-17");
    assert_eq!(policy["Statement"][0], own["Statement"]);
    assert_eq!(policy["Statement"][1]["Sid"], "a");
    shop.forbid(&url, "a").await;
    assert_eq!(
        shop.policy(&url).await["Statement"],
        json!([own["Statement"]])
    );
}

async fn statements_have_a_limit(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    for number in 0..20 {
        let label = format!("l{number}");
        shop.permit(&url, &label, &["111111111111"], &["SendMessage"])
            .await;
    }
    let input = json!({"QueueUrl": url, "Label": "more", "AWSAccountIds": ["111111111111"],
        "Actions": ["SendMessage"]});
    let (code, message) = shop.refused("AddPermission", input).await;
    assert_eq!(code, "OverLimit");
    assert_eq!(message, "21 Statements were found, maximum allowed is 20.");
}

/// A data folder may hold a policy beyond the limits, because nothing checks it there.
async fn a_policy_beyond_what_may_be_set_is_told_as_what_it_is(shop: Shop) {
    let url = shop.queue("q", json!({})).await;
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let long = json!({"Statement": vec![json!({}); 30]}).to_string();
    for (policy, expected) in [
        (
            deep,
            [
                "InvalidParameterValue",
                "The queue's Policy attribute cannot be read (recursion limit exceeded at line 1 column \
                 132): set it anew first.",
            ],
        ),
        (
            json!({"Statement": 7}).to_string(),
            [
                "InvalidParameterValue",
                "The queue's Policy attribute has no list of statements: set it anew first.",
            ],
        ),
        (
            long,
            [
                "OverLimit",
                "31 Statements were found, maximum allowed is 20.",
            ],
        ),
    ] {
        let change = Command::ChangeQueue(ChangeQueue {
            queue: QueueName::new("q").unwrap(),
            settings: None,
            annotations: Some([("Policy".to_owned(), policy)].into()),
            tags: None,
        });
        shop.engine.submit(change).await.unwrap();
        let input = json!({"QueueUrl": url, "Label": "more", "AWSAccountIds": ["111111111111"],
            "Actions": ["SendMessage"]});
        let (code, message) = shop.refused("AddPermission", input).await;
        assert_eq!([&*code, &*message], expected);
    }
}
