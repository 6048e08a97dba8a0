//! Reads a policy and makes a program of it.
//!
//! Policies are nested at most [`Filter::DEPTH_MAX`] deep, which bounds the recursion here.

use std::{borrow::Cow, collections::BTreeSet, net::IpAddr};

use super::{
    Filter, FilterError, FilterScope, Next, Program, Rule,
    conditions::{Bound, Cidr, Condition, Decimal, Scalar, Wildcard},
};
use crate::exchanges::json::Json;

/// The names of conditions.
const CONDITIONS: [&str; 8] = [
    "prefix",
    "suffix",
    "equals-ignore-case",
    "wildcard",
    "anything-but",
    "numeric",
    "exists",
    "cidr",
];

const OR: &str = "$or";

pub(super) fn parse(scope: FilterScope, policy: &str) -> Result<Program, FilterError> {
    let mut parser = Parser {
        scope,
        at: Vec::new(),
        keys: BTreeSet::new(),
    };
    if policy.len() > Filter::BYTES_MAX {
        let why = format!(
            "it has {} bytes, the most are {}",
            policy.len(),
            Filter::BYTES_MAX
        );
        return parser.fail(why);
    }
    let json = match Json::read(policy.as_bytes()) {
        Ok(json) => json,
        Err(why) => return parser.fail(format!("it is no JSON: {why}")),
    };
    let Json::Object(members) = &json else {
        return parser.fail("it must be a JSON object");
    };
    let (part, combinations) = parser.object(members, &mut Vec::new())?;
    let (keys, keys_max) = (parser.keys.len(), Filter::KEYS_MAX);
    if keys > keys_max {
        return parser.fail(format!("it has {keys} keys, the most are {keys_max}"));
    }
    let combinations_max = Filter::COMBINATIONS_MAX;
    if combinations > combinations_max {
        return parser.fail(format!(
            "it has {combinations} combinations of values, the most are {combinations_max}"
        ));
    }
    let mut program = Program::default();
    program.first = program.add(part, Next::Match, Next::NoMatch);
    program.rules.shrink_to_fit();
    Ok(program)
}

/// A part of a policy.
enum Part {
    Key {
        path: Box<[Box<str>]>,
        conditions: Box<[Condition]>,
    },
    All(Vec<Self>),
    Any(Vec<Self>),
}

impl Program {
    /// Adds the rules of a part, the last one first, and returns where to begin with it.
    fn add(&mut self, part: Part, met: Next, missed: Next) -> Next {
        match part {
            Part::Key { path, conditions } => {
                let next = u32::try_from(self.rules.len()).expect("a policy has few keys");
                self.rules.push(Rule {
                    path,
                    conditions,
                    met,
                    missed,
                });
                Next::Rule(next)
            }
            Part::All(parts) => {
                let parts = parts.into_iter().rev();
                parts.fold(met, |met, part| self.add(part, met, missed))
            }
            Part::Any(parts) => {
                let parts = parts.into_iter().rev();
                parts.fold(missed, |missed, part| self.add(part, met, missed))
            }
        }
    }
}

type Members<'a> = [(Cow<'a, str>, Json<'a>)];

struct Parser {
    scope: FilterScope,
    /// Where it is, for errors.
    at: Vec<String>,
    /// The keys so far.
    keys: BTreeSet<Vec<Box<str>>>,
}

impl Parser {
    fn fail<T>(&self, why: impl Into<String>) -> Result<T, FilterError> {
        let at = match self.at.is_empty() {
            true => "$".to_owned(),
            false => self.at.join("."),
        };
        Err(FilterError {
            at,
            why: why.into(),
        })
    }

    fn within<T>(
        &mut self,
        name: impl Into<String>,
        read: impl FnOnce(&mut Self) -> Result<T, FilterError>,
    ) -> Result<T, FilterError> {
        self.at.push(name.into());
        let read = read(self)?;
        self.at.pop();
        Ok(read)
    }

    /// All members of an object, and how many combinations of values they have.
    fn object(
        &mut self,
        members: &Members<'_>,
        path: &mut Vec<Box<str>>,
    ) -> Result<(Part, u64), FilterError> {
        if members.is_empty() {
            return self.fail("an object must have a key");
        }
        if self.at.len() >= 2 * Filter::DEPTH_MAX || path.len() >= Filter::DEPTH_MAX {
            return self.fail(format!("keys are nested up to {} deep", Filter::DEPTH_MAX));
        }
        let mut parts = Vec::new();
        let mut combinations = 1_u64;
        for (index, (name, value)) in members.iter().enumerate() {
            let (part, more) = self.within(&**name, |parser| {
                if index > 0 && members[index - 1].0 == *name {
                    return parser.fail("the key is there twice");
                }
                parser.member(name, value, path)
            })?;
            parts.push(part);
            combinations = combinations.saturating_mul(more);
        }
        Ok((Part::All(parts), combinations))
    }

    fn member(
        &mut self,
        name: &str,
        value: &Json<'_>,
        path: &mut Vec<Box<str>>,
    ) -> Result<(Part, u64), FilterError> {
        match value {
            Json::Array(values) if name == OR && is_or(values) => {
                let mut parts = Vec::new();
                let mut combinations = 0_u64;
                for (index, value) in values.iter().enumerate() {
                    let Json::Object(members) = value else {
                        continue;
                    };
                    let (part, more) =
                        self.within(format!("[{index}]"), |parser| parser.object(members, path))?;
                    parts.push(part);
                    combinations = combinations.saturating_add(more);
                }
                Ok((Part::Any(parts), combinations))
            }
            Json::Array(values) => {
                path.push(name.into());
                if values.is_empty() {
                    return self.fail("the array must have a value");
                }
                let mut conditions = Vec::new();
                for (index, value) in values.iter().enumerate() {
                    let condition =
                        self.within(format!("[{index}]"), |parser| parser.condition(value))?;
                    conditions.push(condition);
                }
                let combinations = match self.scope {
                    FilterScope::Headers => values.len(),
                    FilterScope::Body => values.len().saturating_mul(path.len()),
                };
                self.keys.insert(path.clone());
                let part = Part::Key {
                    path: path.clone().into(),
                    conditions: conditions.into(),
                };
                path.pop();
                Ok((part, combinations as u64))
            }
            Json::Object(members) => {
                if self.scope == FilterScope::Headers {
                    return self.fail("keys of headers cannot be nested: give an array of values");
                }
                path.push(name.into());
                let nested = self.object(members, path)?;
                path.pop();
                Ok(nested)
            }
            _ => self.fail("the value of a key must be an array, or an object with further keys"),
        }
    }

    fn condition(&mut self, value: &Json<'_>) -> Result<Condition, FilterError> {
        let members = match value {
            Json::Object(members) => members,
            Json::Array(_) => return self.fail("an array cannot be within the array of a key"),
            scalar => return self.scalar(scalar).map(Condition::Equals),
        };
        let [(name, operand)] = &members[..] else {
            return self.fail("a condition is an object with one key, such as {\"prefix\": \"a\"}");
        };
        self.within(&**name, |parser| parser.operator(name, operand))
    }

    fn operator(&mut self, name: &str, operand: &Json<'_>) -> Result<Condition, FilterError> {
        match name {
            "anything-but" => self.anything_but(operand),
            "numeric" => self.numeric(operand),
            "exists" => match operand {
                Json::Flag(exists) => Ok(Condition::Exists(*exists)),
                _ => self.fail("it must be true or false"),
            },
            "cidr" => self.cidr(operand),
            _ => match operand {
                Json::Text(text) => self.of_text(name, text),
                _ if CONDITIONS.contains(&name) => self.fail("it must be a text"),
                _ => self.unknown(name),
            },
        }
    }

    fn unknown<T>(&self, name: &str) -> Result<T, FilterError> {
        let known = CONDITIONS.join(", ");
        let of_or = match self.at.first().is_some_and(|first| first == OR) {
            true => ". `$or` takes two objects or more, whose keys are not the names of conditions",
            false => "",
        };
        self.fail(format!(
            "there is no condition {name:?}; there are {known}{of_or}"
        ))
    }

    /// A condition on a text, which is not empty: an empty one would be met by all or by none.
    fn of_text(&self, name: &str, text: &str) -> Result<Condition, FilterError> {
        let condition = match name {
            "prefix" => Condition::Prefix(text.into()),
            "suffix" => Condition::Suffix(text.into()),
            "equals-ignore-case" => Condition::EqualsIgnoreCase(text.into()),
            "wildcard" => return self.wildcard(text).map(Condition::Wildcard),
            _ => return self.unknown(name),
        };
        match text.is_empty() {
            false => Ok(condition),
            true => self.fail("the text must not be empty"),
        }
    }

    fn anything_but(&mut self, operand: &Json<'_>) -> Result<Condition, FilterError> {
        let others = match operand {
            Json::Object(members) => {
                let [(name, texts)] = &members[..] else {
                    return self.fail("it has one condition, such as {\"prefix\": \"a\"}");
                };
                self.within(&**name, |parser| {
                    let texts = match texts {
                        Json::Array(texts) if !texts.is_empty() => &texts[..],
                        text => std::slice::from_ref(text),
                    };
                    let conditions = texts.iter().map(|text| match text {
                        Json::Text(text) => parser.of_text(name, text),
                        _ => parser.fail("it must be a text, or an array of texts"),
                    });
                    conditions.collect::<Result<Vec<_>, _>>()
                })?
            }
            Json::Array(values) if values.is_empty() => {
                return self.fail("the array must have a value");
            }
            Json::Array(values) => {
                let values = values.iter();
                let equals = values
                    .map(|value| self.but(value))
                    .collect::<Result<_, _>>();
                equals?
            }
            value => vec![self.but(value)?],
        };
        Ok(Condition::AnythingBut(others.into()))
    }

    fn but(&self, value: &Json<'_>) -> Result<Condition, FilterError> {
        match value {
            Json::Text(_) | Json::Number(_) => self.scalar(value).map(Condition::Equals),
            _ => self.fail(
                "it must be a text, a number, an array of these, or one of the conditions prefix, suffix, \
                 equals-ignore-case and wildcard",
            ),
        }
    }

    fn scalar(&self, value: &Json<'_>) -> Result<Scalar, FilterError> {
        match value {
            Json::Null => Ok(Scalar::Null),
            Json::Flag(flag) => Ok(Scalar::Flag(*flag)),
            Json::Number(number) => self.decimal(*number).map(Scalar::Number),
            Json::Text(text) => Ok(Scalar::Text((&**text).into())),
            Json::Array(_) | Json::Object(_) => self.fail("it must be a single value"),
        }
    }

    fn decimal(&self, number: f64) -> Result<Decimal, FilterError> {
        let decimal = Decimal::exact(number);
        decimal.map_or_else(
            || {
                self.fail(
                    "a number must be -10^9 to 10^9, with at most five digits behind the point",
                )
            },
            Ok,
        )
    }

    fn numeric(&self, operand: &Json<'_>) -> Result<Condition, FilterError> {
        let Json::Array(values) = operand else {
            return self.fail("it must be an array, such as [\">=\", 1, \"<\", 5]");
        };
        let (mut low, mut high) = (None, None);
        for (index, pair) in values.chunks(2).enumerate() {
            let [Json::Text(comparison), Json::Number(number)] = pair else {
                return self
                    .fail("a comparison is a text (=, <, <=, >, >=) and a number behind it");
            };
            let number = self.decimal(*number)?;
            let bound = |is_within| Some(Bound { number, is_within });
            match (&**comparison, index) {
                ("=", 0) => (low, high) = (bound(true), bound(true)),
                (">", 0) => low = bound(false),
                (">=", 0) => low = bound(true),
                ("<", _) if high.is_none() => high = bound(false),
                ("<=", _) if high.is_none() => high = bound(true),
                ("=" | "<" | "<=" | ">" | ">=", _) => {
                    return self.fail(
                        "a range has a lower bound (>, >=) and behind it an upper one (<, <=), and no more",
                    );
                }
                _ => return self.fail(format!("there is no comparison {comparison:?}")),
            }
        }
        match (&low, &high) {
            (None, None) => self.fail("it must have a comparison"),
            (Some(low), Some(high))
                if low.number > high.number
                    || low.number == high.number && !(low.is_within && high.is_within) =>
            {
                self.fail("the lower bound must be below the upper one")
            }
            _ => Ok(Condition::Numeric { low, high }),
        }
    }

    fn cidr(&self, operand: &Json<'_>) -> Result<Condition, FilterError> {
        let Json::Text(text) = operand else {
            return self.fail("it must be a text, such as \"10.0.0.0/24\"");
        };
        let parsed = text.split_once('/').and_then(|(address, bits)| {
            let network: IpAddr = address.parse().ok()?;
            let bits_max = if network.is_ipv4() { 32 } else { 128 };
            let is_number = bits.bytes().all(|byte| byte.is_ascii_digit());
            let bits: u8 = is_number.then(|| bits.parse().ok())??;
            (bits <= bits_max).then_some(Cidr { network, bits })
        });
        match parsed {
            Some(cidr) => Ok(Condition::Cidr(cidr)),
            None => self.fail(
                "it must be an IP address, `/`, and its number of bits, such as \"10.0.0.0/24\"",
            ),
        }
    }

    fn wildcard(&self, text: &str) -> Result<Wildcard, FilterError> {
        let mut parts = vec![String::new()];
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            let literal = match character {
                '*' if characters.peek() == Some(&'*') => {
                    return self
                        .fail("two stars must not stand together: one stands for any characters");
                }
                '*' => {
                    parts.push(String::new());
                    continue;
                }
                '\\' => match characters.next() {
                    Some(escaped @ ('*' | '\\')) => escaped,
                    _ => return self.fail("a backslash stands before a star or a backslash"),
                },
                other => other,
            };
            parts.last_mut().expect("there is always one").push(literal);
        }
        match text.is_empty() {
            true => self.fail("the text must not be empty"),
            false => Ok(Wildcard(parts.into_iter().map(Into::into).collect())),
        }
    }
}

/// Whether the array of `$or` makes it an *or*, and not an ordinary key.
fn is_or(values: &[Json<'_>]) -> bool {
    let is_policy = |value: &Json<'_>| match value {
        Json::Object(members) => {
            let is_condition = |(name, _): &(Cow<'_, str>, _)| CONDITIONS.contains(&&**name);
            !members.iter().any(is_condition)
        }
        _ => false,
    };
    values.len() > 1 && values.iter().all(is_policy)
}
