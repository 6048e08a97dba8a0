//! Policies: JSON in the text of an attribute, and its limits. A queue's policy is kept and has no
//! effect.
//!
//! Policies are read as text, so that neither their depth nor their length costs stack or memory. A
//! queue's own policy, which is short, may have the depth at which other JSON is read: 127 levels.

use std::fmt;

use serde::{
    Deserializer,
    de::{self, IgnoredAny, Visitor},
};
use serde_json::value::RawValue;

use super::error::{ErrorCode, SqsError};
use crate::raw_json::{Members, count, each, members};

/// How many statements a policy may have.
pub(super) const STATEMENTS_MAX: usize = 20;
/// How many actions a statement may name.
pub(super) const ACTIONS_MAX: usize = 7;
/// How many principals a statement may name.
pub(super) const PRINCIPALS_MAX: usize = 50;
/// The longest policy, in bytes.
const BYTES_MAX: usize = 8_192;

/// JSON that serde can parse as a whole, which bounds its depth. Keeps nothing.
struct Readable;

impl<'de> de::Deserialize<'de> for Readable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Readable {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut elements: A) -> Result<Self, A::Error> {
        while elements.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut members: A) -> Result<Self, A::Error> {
        while members.next_entry::<IgnoredAny, Self>()?.is_some() {}
        Ok(self)
    }
}

/// Checks a policy that is set as an attribute.
pub(super) fn check(text: &str) -> Result<(), SqsError> {
    let Some(Members {
        known: [statements],
        ..
    }) = members(text, ["Statement"])
    else {
        return Err(SqsError::invalid_attribute_value("Policy"));
    };
    check_size(text)?;
    // AddPermission and RemovePermission parse the whole policy, so it must be readable as a whole.
    if let Err(error) = readable(text) {
        return Err(SqsError::new(
            ErrorCode::InvalidAttributeValue,
            format!("Invalid value for the parameter Policy. Reason: {error}."),
        ));
    }
    let over = |message: String| Err(SqsError::new(ErrorCode::OverLimit, message));
    let found = count(statements);
    if found > STATEMENTS_MAX {
        return over(format!(
            "{found} statements were found in the submitted policy, max allowed is {STATEMENTS_MAX}"
        ));
    }
    let (mut actions_most, mut principals_most) = (0, 0);
    each(statements, |statement| {
        if let Some(Members {
            known: [actions, principal],
            ..
        }) = members(statement.get(), ["Action", "Principal"])
        {
            actions_most = actions_most.max(count(actions));
            principals_most = principals_most.max(principals(principal));
        }
    });
    if actions_most > ACTIONS_MAX {
        return over(format!(
            "{actions_most} actions were found in a statement from the submitted policy, max allowed \
             is {ACTIONS_MAX}"
        ));
    }
    if principals_most > PRINCIPALS_MAX {
        return over(format!(
            "{principals_most} principals were found in a statement from the submitted policy, max \
             allowed is {PRINCIPALS_MAX}"
        ));
    }
    Ok(())
}

/// Whether serde can parse JSON as a whole, which bounds its depth.
pub(crate) fn readable(text: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<Readable>(text).map(drop)
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

/// How many principals, of all kinds, a statement names.
fn principals(principal: Option<&RawValue>) -> usize {
    struct Kinds(usize);

    impl<'de> Visitor<'de> for Kinds {
        type Value = usize;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: de::MapAccess<'de>>(mut self, mut map: A) -> Result<usize, A::Error> {
            while let Some((_, ids)) = map.next_entry::<IgnoredAny, &RawValue>()? {
                self.0 += count(Some(ids));
            }
            Ok(self.0)
        }
    }

    match principal {
        Some(kinds) if kinds.get().starts_with('{') => {
            let mut json = serde_json::Deserializer::from_str(kinds.get());
            // Cannot fail: it was parsed as JSON before.
            json.deserialize_map(Kinds(0)).unwrap_or_default()
        }
        principal => count(principal),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small_stack::with_a_small_stack;

    #[test]
    fn a_policy_costs_no_stack() {
        with_a_small_stack(|| {
            let deep = |open: &str, close: &str| {
                let (open, close) = (open.repeat(500_000), close.repeat(500_000));
                [
                    format!("{{\"Statement\":{open}1{close}}}"),
                    format!("{{\"Statement\":[{{\"Action\":{open}1{close}}}]}}"),
                    format!("{{\"x\":{open}1{close}}}"),
                    format!("{{\"Statement\":{open}"),
                ]
            };
            for text in [deep("[", "]"), deep("{\"a\":", "}")].as_flattened() {
                check(text).unwrap_err();
            }
            for (depth, fits) in [(126, true), (127, false), (900, false)] {
                let (open, close) = ("[".repeat(depth), "]".repeat(depth));
                let nested = format!("{{\"Statement\":{open}1{close}}}");
                assert_eq!(check(&nested).is_ok(), fits, "{depth}");
            }
        });
    }
}
