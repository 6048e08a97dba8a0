//! Reads members and lists of JSON as text, so that neither the depth nor the length of the JSON
//! costs stack or memory.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, Visitor},
};
use serde_json::value::RawValue;

/// Borrows from the input where the text has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Members of a JSON object.
pub(crate) struct Members<'a, const N: usize> {
    /// The values of the names that the caller asked for, as they were written. If a name occurs
    /// twice, the last value.
    pub(crate) known: [Option<&'a RawValue>; N],
    /// Whether the object has other members.
    pub(crate) others: bool,
}

/// The members of the JSON object in a text; `None` if the text is no JSON object.
pub(crate) fn members<'a, const N: usize>(
    text: &'a str,
    names: [&str; N],
) -> Option<Members<'a, N>> {
    struct MembersVisitor<'n, const N: usize>([&'n str; N]);

    impl<'de, const N: usize> Visitor<'de> for MembersVisitor<'_, N> {
        type Value = Members<'de, N>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Members {
                known: [None; N],
                others: false,
            };
            while let Some(name) = map.next_key::<Text<'de>>()? {
                match self.0.iter().position(|known| **known == *name.0) {
                    Some(at) => members.known[at] = Some(map.next_value()?),
                    None => {
                        members.others = true;
                        map.next_value::<IgnoredAny>()?;
                    }
                }
            }
            Ok(members)
        }
    }

    let mut json = serde_json::Deserializer::from_str(text);
    let members = json.deserialize_map(MembersVisitor(names)).ok()?;
    json.end().ok()?;
    Some(members)
}

/// Calls `look` with every value of a list. A value that is no list counts as a list of one.
pub(crate) fn each<'a>(value: Option<&'a RawValue>, mut look: impl FnMut(&'a RawValue)) {
    struct ListVisitor<F>(F);

    impl<'de, F: FnMut(&'de RawValue)> Visitor<'de> for ListVisitor<F> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: de::SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
            while let Some(value) = list.next_element()? {
                (self.0)(value);
            }
            Ok(())
        }
    }

    match value {
        Some(list) if is_list(list) => {
            let mut json = serde_json::Deserializer::from_str(list.get());
            // Cannot fail: this text was parsed as JSON before.
            let _ = json.deserialize_seq(ListVisitor(look));
        }
        Some(one) => look(one),
        None => {}
    }
}

/// The number of values in a list. A value that is no list counts as a list of one.
pub(crate) fn count(value: Option<&RawValue>) -> usize {
    let mut count = 0;
    each(value, |_| count += 1);
    count
}

/// Whether a value is a list.
pub(crate) fn is_list(value: &RawValue) -> bool {
    value.get().starts_with('[')
}

/// The string that a value holds; `None` if it is no string.
pub(crate) fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    let text: Text<'_> = serde_json::from_str(value.get()).ok()?;
    Some(text.0)
}
