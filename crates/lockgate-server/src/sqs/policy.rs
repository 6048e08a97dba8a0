//! How much a queue's policy may say. What it says is without effect here.

use serde_json::Value;

use super::error::{ErrorCode, SqsError};

/// How many statements a policy may have.
pub(super) const STATEMENTS_MAX: usize = 20;
/// How many actions a statement may name.
pub(super) const ACTIONS_MAX: usize = 7;
/// How many principals a statement may name.
pub(super) const PRINCIPALS_MAX: usize = 50;
/// The longest policy, in bytes.
const BYTES_MAX: usize = 8_192;

/// Checks a policy that is set as an attribute.
pub(super) fn check(text: &str) -> Result<(), SqsError> {
    let Ok(Value::Object(policy)) = serde_json::from_str(text) else {
        return Err(SqsError::invalid_attribute_value("Policy"));
    };
    let over = |message: String| Err(SqsError::new(ErrorCode::OverLimit, message));
    check_size(text)?;
    let statements = one_or_more(policy.get("Statement"));
    if statements.len() > STATEMENTS_MAX {
        return over(format!(
            "{} statements were found in the submitted policy, max allowed is {STATEMENTS_MAX}",
            statements.len()
        ));
    }
    for statement in statements {
        let actions = one_or_more(statement.get("Action")).len();
        if actions > ACTIONS_MAX {
            return over(format!(
                "{actions} actions were found in a statement from the submitted policy, max \
                 allowed is {ACTIONS_MAX}"
            ));
        }
        let principals = principals(statement);
        if principals > PRINCIPALS_MAX {
            return over(format!(
                "{principals} principals were found in a statement from the submitted policy, max \
                 allowed is {PRINCIPALS_MAX}"
            ));
        }
    }
    Ok(())
}

/// Checks how long a policy is.
pub(super) fn check_size(text: &str) -> Result<(), SqsError> {
    if text.len() <= BYTES_MAX {
        return Ok(());
    }
    Err(SqsError::new(
        ErrorCode::OverLimit,
        "Submitted policy is over max allowed size.",
    ))
}

/// How many principals a statement names, of all kinds.
fn principals(statement: &Value) -> usize {
    match statement.get("Principal") {
        Some(Value::Object(kinds)) => kinds.values().map(|ids| one_or_more(Some(ids)).len()).sum(),
        principal => one_or_more(principal).len(),
    }
}

/// A list, or the one value that stands for a list of one.
fn one_or_more(value: Option<&Value>) -> &[Value] {
    match value {
        None => &[],
        Some(Value::Array(values)) => values,
        Some(value) => std::slice::from_ref(value),
    }
}
