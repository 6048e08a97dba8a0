//! Adds and removes statements of a queue's policy.
//!
//! The statements are written in AWS's form. Like the rest of a policy, they are kept and returned
//! without effect: the server has one account, and a caller's access key says what the caller may
//! do.

use std::collections::BTreeMap;

use lockgate_core::QueueName;
use lockgate_machine::ChangeQueue;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Call, Service, filled, required};
use crate::{
    auth::Verb,
    sqs::{
        error::{ErrorCode, SqsError},
        names,
        policy::{self, ACTIONS_MAX, PRINCIPALS_MAX, STATEMENTS_MAX},
        queue_attributes::Attribute,
        shapes::{AddPermissionInput, Nothing, RemovePermissionInput},
        text::Text,
    },
};

const LABEL_LEN_MAX: usize = 80;
const ACCOUNT_DIGITS: usize = 12;

/// The actions that another account may be allowed.
const SHARED: [&str; 8] = [
    "*",
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "GetQueueUrl",
    "PurgeQueue",
    "ReceiveMessage",
    "SendMessage",
];

/// The actions that only the queue's own account may do.
const OWNERS: [&str; 13] = [
    "AddPermission",
    "CancelMessageMoveTask",
    "CreateQueue",
    "DeleteQueue",
    "ListDeadLetterSourceQueues",
    "ListMessageMoveTasks",
    "ListQueueTags",
    "ListQueues",
    "RemovePermission",
    "SetQueueAttributes",
    "StartMessageMoveTask",
    "TagQueue",
    "UntagQueue",
];

/// A policy; only its statements matter here.
#[derive(Debug, Serialize, Deserialize)]
struct Policy {
    #[serde(rename = "Version", default = "version")]
    version: String,
    #[serde(rename = "Id", default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "Statement", default, deserialize_with = "one_or_more")]
    statements: Vec<Value>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Statement<'a> {
    sid: &'a str,
    effect: &'static str,
    principal: Principal,
    action: OneOrMore,
    resource: String,
}

#[derive(Serialize)]
struct Principal {
    #[serde(rename = "AWS")]
    aws: OneOrMore,
}

#[derive(Serialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Service {
    /// Adds a statement that allows accounts some actions on a queue.
    pub(crate) async fn add_permission(
        &self,
        call: &Call<'_>,
        input: AddPermissionInput<'_>,
    ) -> Result<Nothing, SqsError> {
        let name = self.managed(call, input.queue_url.as_ref())?;
        let label = label(input.label)?;
        let actions = actions(input.actions)?;
        let accounts = accounts(input.accounts)?;
        self.change_policy(name, |name, policy| {
            if policy
                .statements
                .iter()
                .any(|other| has_label(other, &label))
            {
                return Err(SqsError::invalid_value(&*label, "Label", "Already exists."));
            }
            if policy.statements.len() >= STATEMENTS_MAX {
                return Err(SqsError::new(
                    ErrorCode::OverLimit,
                    format!(
                        "{} Statements were found, maximum allowed is {STATEMENTS_MAX}.",
                        policy.statements.len() + 1
                    ),
                ));
            }
            let resource = names::queue_arn(&self.config, name);
            policy
                .id
                .get_or_insert_with(|| format!("{resource}/SQSDefaultPolicy"));
            let statement = Statement {
                sid: &label,
                effect: "Allow",
                principal: Principal { aws: accounts },
                action: actions,
                resource,
            };
            policy
                .statements
                .push(serde_json::to_value(statement).expect("texts and lists of texts are JSON"));
            Ok(())
        })
        .await
    }

    /// Removes the statement with that label. Removing the last one removes the policy.
    pub(crate) async fn remove_permission(
        &self,
        call: &Call<'_>,
        input: RemovePermissionInput<'_>,
    ) -> Result<Nothing, SqsError> {
        let name = self.managed(call, input.queue_url.as_ref())?;
        let label = required(filled(input.label), "Label")?;
        self.change_policy(name, |_, policy| {
            let before = policy.statements.len();
            policy.statements.retain(|other| !has_label(other, &label));
            if policy.statements.len() == before {
                return Err(SqsError::invalid_value(
                    &*label,
                    "Label",
                    "can't find label.",
                ));
            }
            Ok(())
        })
        .await
    }

    fn managed(&self, call: &Call<'_>, url: Option<&Text<'_>>) -> Result<QueueName, SqsError> {
        let queue = self.queue(call, Verb::Manage, url)?;
        Ok(queue.name.clone())
    }

    async fn change_policy(
        &self,
        name: QueueName,
        change: impl FnOnce(&QueueName, &mut Policy) -> Result<(), SqsError>,
    ) -> Result<Nothing, SqsError> {
        let _alone = self.changes.lock().await;
        let queue = self.queue_named(Some(&name))?;
        let mut annotations = queue.annotations.clone();
        let attribute = Attribute::Policy.name();
        let mut policy = match annotations.get(attribute) {
            // The attribute holds an object that may still not have the form of a policy.
            Some(text) => serde_json::from_str(text).map_err(|error| {
                let what = if error.is_data() {
                    "has no list of statements".to_owned()
                } else {
                    format!("cannot be read ({error})")
                };
                SqsError::invalid_parameter(format!(
                    "The queue's Policy attribute {what}: set it anew first."
                ))
            })?,
            None => Policy {
                version: version(),
                id: None,
                statements: Vec::new(),
                rest: BTreeMap::new(),
            },
        };
        change(&name, &mut policy)?;
        if policy.statements.is_empty() {
            annotations.remove(attribute);
        } else {
            let text = serde_json::to_string(&policy).expect("it was made of JSON");
            // A policy that was too long before may become shorter.
            if text.len() > annotations.get(attribute).map_or(0, String::len) {
                policy::check_size(&text)?;
            }
            annotations.insert(attribute.to_owned(), text);
        }
        let change = ChangeQueue {
            queue: name,
            settings: None,
            annotations: Some(annotations),
            tags: None,
        };
        self.engine.submit(change).await?;
        Ok(Nothing {})
    }
}

fn label(label: Option<Text<'_>>) -> Result<String, SqsError> {
    let label = required(filled(label), "Label")?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if (1..=LABEL_LEN_MAX).contains(&label.len()) && label.chars().all(allowed) {
        Ok(label.to_string())
    } else {
        Err(SqsError::invalid_value(
            &*label,
            "Label",
            format_args!(
                "Can only include alphanumeric characters, hyphens, or underscores. \
                 1 to {LABEL_LEN_MAX} in length"
            ),
        ))
    }
}

fn actions(actions: Option<Vec<Text<'_>>>) -> Result<OneOrMore, SqsError> {
    let actions = required(actions.filter(|actions| !actions.is_empty()), "Actions")?;
    if actions.len() > ACTIONS_MAX {
        return Err(SqsError::new(
            ErrorCode::OverLimit,
            format!(
                "{} Actions were found, maximum allowed is {ACTIONS_MAX}.",
                actions.len()
            ),
        ));
    }
    let named = actions.iter().map(|action| {
        let name = format!("SQS:{}", &**action);
        let among = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(action));
        let reason = if among(&SHARED) {
            return Ok(name);
        } else if among(&OWNERS) {
            "Only the queue owner is allowed to invoke this action."
        } else {
            "Please refer to the appropriate WSDL for a list of valid actions."
        };
        Err(SqsError::invalid_value(name, "ActionName", reason))
    });
    Ok(named.collect::<Result<Vec<_>, _>>()?.into())
}

fn accounts(accounts: Option<Vec<Text<'_>>>) -> Result<OneOrMore, SqsError> {
    let accounts = accounts.unwrap_or_default();
    let is_account =
        |id: &Text<'_>| id.len() == ACCOUNT_DIGITS && id.bytes().all(|c| c.is_ascii_digit());
    if accounts.len() > PRINCIPALS_MAX {
        return Err(SqsError::new(
            ErrorCode::OverLimit,
            format!(
                "{} Principals were found, maximum allowed is {PRINCIPALS_MAX}.",
                accounts.len()
            ),
        ));
    }
    if accounts.is_empty() || !accounts.iter().all(is_account) {
        let given: Vec<&str> = accounts.iter().map(|id| &**id).collect();
        return Err(SqsError::invalid_value(
            format_args!("[{}]", given.join(", ")),
            "PrincipalId",
            "Unable to verify.",
        ));
    }
    let arns = accounts
        .iter()
        .map(|id| format!("arn:aws:iam::{}:root", &**id));
    Ok(arns.collect::<Vec<_>>().into())
}

fn has_label(statement: &Value, label: &str) -> bool {
    statement["Sid"] == label
}

fn version() -> String {
    "2008-10-17".to_owned()
}

/// AWS also accepts a list of one as its only value.
fn one_or_more<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Value>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Array(statements) => Ok(statements),
        statement @ Value::Object(_) => Ok(vec![statement]),
        _ => Err(serde::de::Error::custom("statements are a list of objects")),
    }
}

impl From<Vec<String>> for OneOrMore {
    fn from(mut texts: Vec<String>) -> Self {
        match texts.len() {
            1 => Self::One(texts.swap_remove(0)),
            _ => Self::More(texts),
        }
    }
}
