//! Adds and removes statements of a topic's policy. They are kept and shown, and have no effect: a caller's access key says
//! what the caller may do.

use serde_json::{Value, json};

use super::{Call, Service, arns, error::SnsError, form::Form, topic_attributes};

impl Service {
    pub(super) async fn add_permission(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<(), SnsError> {
        let label = form.required("Label")?;
        let accounts = form.texts("AWSAccountId.member");
        let actions = form.texts("ActionName.member");
        for (what, list) in [("AWSAccountId", &accounts), ("ActionName", &actions)] {
            if list.is_empty() {
                return Err(SnsError::missing(what));
            }
        }
        let name = self.topic_named(form, "TopicArn")?;
        let statement = json!({
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": accounts
                .iter()
                .map(|account| format!("arn:aws:iam::{account}:root"))
                .collect::<Vec<_>>()},
            "Action": actions
                .iter()
                .map(|action| format!("SNS:{action}"))
                .collect::<Vec<_>>(),
            "Resource": arns::topic_arn(&self.config, &name),
        });
        self.change_statements(call, form, |statements| {
            if statements.iter().any(|statement| statement["Sid"] == label) {
                return Err(SnsError::parameter(
                    "Invalid parameter: Statement already exists",
                ));
            }
            statements.push(statement);
            Ok(())
        })
        .await
    }

    pub(super) async fn remove_permission(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
    ) -> Result<(), SnsError> {
        let label = form.required("Label")?;
        self.change_statements(call, form, |statements| {
            statements.retain(|statement| statement["Sid"] != label);
            Ok(())
        })
        .await
    }

    async fn change_statements(
        &self,
        call: &Call<'_>,
        form: &Form<'_>,
        change: impl FnOnce(&mut Vec<Value>) -> Result<(), SnsError>,
    ) -> Result<(), SnsError> {
        let name = self.topic_named(form, "TopicArn")?;
        let arn = arns::topic_arn(&self.config, &name);
        let account = &self.config.account;
        self.change_notes(call, &name, |notes| {
            let before = topic_attributes::value(&notes.annotations, topic_attributes::POLICY);
            let default = || topic_attributes::default_policy(&arn, account);
            let text = before.map_or_else(default, ToOwned::to_owned);
            // It was checked when it was set.
            let mut policy: Value = serde_json::from_str(&text)
                .map_err(|error| SnsError::invalid("Policy", Some(format_args!("{error}"))))?;
            let Some(policy_members) = policy.as_object_mut() else {
                return Err(SnsError::invalid("Policy", None));
            };
            let statements = policy_members.entry("Statement").or_insert(Value::Null);
            if !statements.is_array() {
                *statements = match statements.take() {
                    Value::Null => json!([]),
                    one => json!([one]),
                };
            }
            if let Value::Array(statements) = statements {
                change(statements)?;
            }
            let text = policy.to_string();
            topic_attributes::check_policy(&text)?;
            let name = topic_attributes::POLICY.to_owned();
            notes.annotations.insert(name, text);
            Ok(())
        })
        .await
    }
}
