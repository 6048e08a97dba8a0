//! A value in a line of JSON, by its path.
//!
//! Nothing is built from a line: parts that are not asked for are passed over, which takes neither memory nor, at
//! any depth, recursion.

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{LeftOut, NAMES_MAX};

/// Names of fields go so many levels down.
const NAMES_DEPTH: usize = 3;

/// A field with a longer name is not told.
const NAME_BYTES_MAX: usize = 100;

/// A line that is JSON as a whole.
pub(super) struct Line<'a>(&'a RawValue);

impl<'a> Line<'a> {
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, LeftOut> {
        let text = str::from_utf8(line).map_err(|error| LeftOut::Utf8 {
            byte: error.valid_up_to() + 1,
        })?;
        serde_json::from_str(text).map(Self).map_err(no_json)
    }

    /// The string's text, or the number or boolean as it is written, that the path leads to. A path has the names of
    /// members, and indexes of arrays from 0 on, with dots between them. A member whose name has the dots itself
    /// goes first.
    pub(super) fn scalar(&self, path: &str) -> Result<Cow<'a, str>, LeftOut> {
        let lacks = || LeftOut::Lacks {
            field: path.to_owned(),
        };
        let mut json = self.0.get();
        let mut rest = Some(path);
        while let Some(path) = rest {
            let (name, below) = match path.split_once('.') {
                Some((name, below)) => (name, Some(below)),
                None => (path, None),
            };
            let step = match json.as_bytes().first() {
                Some(b'{') => walk(json, Member { path, name })?,
                Some(b'[') => match name.parse() {
                    Ok(index) => walk(json, Element { index })?.map(|found| (found, false)),
                    Err(_) => None,
                },
                _ => None,
            };
            let (found, is_whole) = step.ok_or_else(lacks)?;
            json = found.get();
            rest = if is_whole { None } else { below };
        }
        let no_scalar = |kind, inside| LeftOut::NoScalar {
            field: path.to_owned(),
            kind,
            inside,
        };
        match json.as_bytes().first() {
            Some(b'"') => serde_json::from_str(json).map(Cow::Owned).map_err(no_json),
            Some(b'{') => Err(no_scalar("object", "id")),
            Some(b'[') => Err(no_scalar("array", "0")),
            Some(b'n') => Err(lacks()),
            _ => Ok(Cow::Borrowed(json)),
        }
    }
}

/// Remembers the fields of a line that are values, as paths.
pub(super) fn names(line: &[u8], names: &mut Vec<String>) {
    if let Ok(line) = Line::parse(line) {
        collect(line.0.get(), "", 1, names);
    }
}

/// Goes [`NAMES_DEPTH`] levels down and no deeper.
fn collect(json: &str, above: &str, level: usize, names: &mut Vec<String>) {
    // No more than there is room for: what comes behind them does not change the answer.
    let members = if json.starts_with('{') {
        walk(json, Members).unwrap_or_default()
    } else {
        Vec::new()
    };
    for (name, value) in members {
        let path = format!("{above}{name}");
        if value.get().starts_with('{') {
            if level < NAMES_DEPTH {
                collect(value.get(), &format!("{path}."), level + 1, names);
            }
        } else if names.len() < NAMES_MAX && !names.contains(&path) {
            names.push(path);
        }
    }
}

fn no_json(error: serde_json::Error) -> LeftOut {
    // The parser's line number is always 1 here.
    let told = error
        .to_string()
        .replace(" at line 1 column ", " at column ");
    LeftOut::Json(told)
}

fn walk<'a, V: Visitor<'a>>(json: &'a str, visitor: V) -> Result<V::Value, LeftOut> {
    let mut parser = serde_json::Deserializer::from_str(json);
    parser.deserialize_any(visitor).map_err(no_json)
}

/// The member of an object with the name that the whole path is, or else the one of its first part. Of several with
/// one name the last counts, as with most parsers.
struct Member<'p> {
    path: &'p str,
    name: &'p str,
}

impl<'a> Visitor<'a> for Member<'_> {
    /// What it found, and whether the whole path led there.
    type Value = Option<(&'a RawValue, bool)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut whole, mut first) = (None, None);
        while let Some(found) = map.next_key_seed(Names([self.path, self.name]))? {
            match found {
                Some(0) => whole = Some((map.next_value()?, true)),
                Some(_) => first = Some((map.next_value()?, false)),
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(whole.or(first))
    }
}

/// Which of the names it is, if it is one.
struct Names<'p>([&'p str; 2]);

impl<'a> DeserializeSeed<'a> for Names<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'a>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Names<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|wanted| *wanted == name))
    }
}

/// An element of an array.
struct Element {
    index: usize,
}

impl<'a> Visitor<'a> for Element {
    type Value = Option<&'a RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        for _ in 0..self.index {
            if elements.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = elements.next_element()?;
        while elements.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}

/// The first members of an object.
struct Members;

impl<'a> Visitor<'a> for Members {
    type Value = Vec<(String, &'a RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value: &RawValue = map.next_value()?;
            if name.len() <= NAME_BYTES_MAX && members.len() < NAMES_MAX {
                members.push((name, value));
            }
        }
        Ok(members)
    }
}
