//! Filters: the filter policies of Amazon SNS, for bindings of any exchange.
//!
//! A policy is a JSON object. Each of its keys must be met (*and*), by any of the conditions in its array (*or*):
//!
//! ```json
//! {"store": ["example_corp"], "price": [{"numeric": [">=", 100]}], "event": [{"anything-but": "order_cancelled"}]}
//! ```
//!
//! # Conditions
//! - A text, a number, `true`, `false` or `null`: equal to it. Texts differ by case.
//! - `{"prefix": "a"}`, `{"suffix": "a"}`, `{"equals-ignore-case": "a"}`
//! - `{"wildcard": "a*c"}`: `*` stands for any characters, `\*` for a star and `\\` for a backslash.
//! - `{"anything-but": x}` with a text, a number, a list of these, or one of the four above, whose text may be a list: any
//!   value that is none of them.
//! - `{"numeric": [">=", 1, "<", 5]}`, with one comparison (`=`, `<`, `<=`, `>`, `>=`) or a lower and an upper bound
//! - `{"exists": true}`, `{"exists": false}`
//! - `{"cidr": "10.0.0.0/24"}`: an IP address of that network, of version 4 or 6
//!
//! A key that has several values, because it is an array, meets a condition by any of them. An empty array has none, so it
//! counts as absent. Of `anything-but`, AWS's page says since 2025 that none of the values may be listed, and has in its examples,
//! as ever, that `["rugby", "baseball"]` meets `{"anything-but": ["rugby", "tennis"]}`: the examples are what is done here.
//!
//! `{"$or": [{...}, {...}]}` is met by any of its two or more objects. It is an ordinary key if one of these objects has a key
//! that is the name of a condition, as in Amazon SNS.
//!
//! # Scopes
//! - [`Headers`](FilterScope::Headers) (`MessageAttributes`): keys are names of headers. A header whose kind begins with
//!   `Number` is a number; one of the kind `String.Array` is a JSON array, and has no value if it is none; one whose kind
//!   begins with `Binary`, or which is no text, is absent. All others are texts. Keys cannot be nested.
//! - [`Body`](FilterScope::Body) (`MessageBody`): the body is a JSON object; a body that is none matches no filter. Keys may be
//!   nested. Values within arrays on the way count, each for itself.
//!
//! # Bounds, which are those of Amazon SNS
//! A policy has at most 256 KiB, 5 keys (of nested ones only the innermost count; a key that comes again under `$or` counts
//! once), and 150 combinations: the product of the number of conditions of each key, multiplied by the depth of the key where
//! keys are nested, with a sum over the objects of a `$or`. Numbers are -10^9 to 10^9 with five digits behind the point;
//! numbers of messages are rounded to that. Keys are nested up to 16 deep. A bound of our own: keys and values take at most 1 MiB
//! of memory.

mod conditions;
mod parse;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt, sync::Arc};

use lockgate_core::Header;

use self::conditions::Condition;
use super::{Published, Steps, TooManySteps, json::Json};

/// What a filter looks at. The numbers are stored and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum FilterScope {
    /// The headers of a message, which are SNS's message attributes.
    Headers = 1,
    /// The body of a message, as JSON.
    Body = 2,
}

impl FilterScope {
    /// Its name wherever people read or write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Body => "body",
        }
    }

    /// The scope with that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Headers, Self::Body];
        all.into_iter().find(|scope| scope.name() == name)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let all = [Self::Headers, Self::Body];
        all.into_iter().find(|scope| *scope as u8 == number)
    }
}

/// A filter of a binding: a policy, and the same in a compact form. Clones share both.
#[derive(Clone)]
pub struct Filter {
    scope: FilterScope,
    /// What text and program take of memory.
    bytes: usize,
    text: Arc<str>,
    program: Arc<Program>,
}

/// Why a text is no filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the filter is wrong at `{at}`: {why}")]
pub struct FilterError {
    /// Where: the keys that lead there, with dots between them, and the place in an array, from 0. `$`: as a whole.
    pub at: String,
    /// What is wrong, and what is allowed.
    pub why: String,
}

/// The rules of a policy. Each names the rule that is next if it is met, and the one if it is not: always one that is further to
/// the front, so that an evaluation looks at each rule once at most.
#[derive(Debug, Default)]
struct Program {
    rules: Vec<Rule>,
    first: Next,
}

/// What an allocator takes beside each piece of memory, at most, and what rounding costs.
const ALLOCATION: usize = 32;

impl Program {
    fn bytes(&self) -> usize {
        let rules = self.rules.iter().map(Rule::bytes);
        ALLOCATION + size_of::<Self>() + rules.sum::<usize>()
    }
}

/// A key with its conditions.
#[derive(Debug)]
struct Rule {
    path: Box<[Box<str>]>,
    /// One of them must be met.
    conditions: Box<[Condition]>,
    met: Next,
    missed: Next,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Match,
    NoMatch,
    Rule(u32),
}

/// Why a filter does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The body is not known, or it is no JSON object, for this reason.
    Body(String),
    /// The last rule that was not met.
    Rule(u32),
}

impl Filter {
    /// The longest policy, in bytes.
    pub const BYTES_MAX: usize = 256 << 10;

    /// The most keys of a policy.
    pub const KEYS_MAX: usize = 5;

    /// The most combinations of a policy.
    pub const COMBINATIONS_MAX: u64 = 150;

    /// The deepest nesting of keys.
    pub const DEPTH_MAX: usize = 16;

    /// The most bytes of memory that the compact form of a policy takes. A list of many short values takes some twenty times
    /// its text.
    pub const MEMORY_MAX: usize = 1 << 20;

    /// Reads a policy.
    ///
    /// # Errors
    /// If it is no policy, or goes beyond a bound. The error says what is wrong and where.
    pub fn new(scope: FilterScope, policy: &str) -> Result<Self, FilterError> {
        let program = parse::parse(scope, policy)?;
        let (bytes, max) = (program.bytes(), Self::MEMORY_MAX);
        if bytes > max {
            return Err(FilterError {
                at: "$".to_owned(),
                why: format!(
                    "its keys and values take {bytes} bytes of memory, the most are {max}: give fewer or longer values"
                ),
            });
        }
        Ok(Self {
            scope,
            bytes: bytes + policy.len() + 2 * ALLOCATION,
            text: policy.into(),
            program: Arc::new(program),
        })
    }

    /// What it takes of memory, no less than what is allocated for it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// What it looks at.
    #[must_use]
    pub fn scope(&self) -> FilterScope {
        self.scope
    }

    /// The policy, as it was given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the message matches, for who has one message and no exchange.
    ///
    /// ```
    /// # use lockgate_core::RoutingKey;
    /// # use lockgate_machine::{Filter, FilterScope, Published};
    /// let filter = Filter::new(FilterScope::Body, r#"{"order": {"total": [{"numeric": [">", 100]}]}}"#)?;
    /// let (key, body) = (RoutingKey::default(), br#"{"order": {"total": 120.5}}"#[..].into());
    /// assert!(filter.matches(&Published::new(&key, &[], Some(&body))));
    /// # Ok::<(), lockgate_machine::FilterError>(())
    /// ```
    #[must_use]
    pub fn matches(&self, message: &Published<'_>) -> bool {
        let mut steps = Steps::new(u64::MAX);
        matches!(self.check(message, &mut steps), Ok(Ok(())))
    }

    /// Whether the message matches, and why not.
    pub(crate) fn check(
        &self,
        message: &Published<'_>,
        steps: &mut Steps,
    ) -> Result<Result<(), Miss>, TooManySteps> {
        let root = match self.scope {
            FilterScope::Headers => &message.attributes().0,
            FilterScope::Body => match &message.parsed().0 {
                Ok(json) => json,
                Err(why) => return Ok(Err(Miss::Body(why.clone()))),
            },
        };
        let mut next = self.program.first;
        let mut missed = 0;
        while let Next::Rule(index) = next {
            let rule = &self.program.rules[index as usize];
            next = match rule.is_met(root, steps)? {
                true => rule.met,
                false => {
                    missed = index;
                    rule.missed
                }
            };
        }
        Ok(match next {
            Next::NoMatch => Err(Miss::Rule(missed)),
            _ => Ok(()),
        })
    }

    /// A sentence on a miss, without a dot at its end. Where steps are used up, it says so instead of looking.
    pub(crate) fn explain(
        &self,
        miss: &Miss,
        message: &Published<'_>,
        steps: &mut Steps,
    ) -> String {
        let rule = match miss {
            Miss::Body(why) => return format!("the filter reads the body: {why}"),
            Miss::Rule(index) => self.program.rules.get(*index as usize),
        };
        let root = match self.scope {
            FilterScope::Headers => &message.attributes().0,
            FilterScope::Body => message.parsed().0.as_ref().unwrap_or(&Json::Null),
        };
        let (Some(rule), scope) = (rule, self.scope.name()) else {
            return "the filter does not match".to_owned();
        };
        let path = rule.path.join(".");
        match rule.values(root, steps).map(|values| values.is_empty()) {
            Ok(true) => {
                format!("the filter misses the key `{path}` of the {scope}, which is not there")
            }
            Ok(false) => format!(
                "the filter misses the key `{path}` of the {scope}: its value meets no condition"
            ),
            Err(TooManySteps) => format!(
                "the filter misses the key `{path}` of the {scope}; whether it is there is not said, because this explanation \
                 takes too long: ask for fewer bindings"
            ),
        }
    }
}

impl Rule {
    fn bytes(&self) -> usize {
        let path = self
            .path
            .iter()
            .map(|name| size_of::<Box<str>>() + ALLOCATION + name.len());
        let conditions = self.conditions.iter().map(Condition::bytes);
        size_of::<Self>() + 2 * ALLOCATION + path.sum::<usize>() + conditions.sum::<usize>()
    }

    fn is_met(&self, root: &Json<'_>, steps: &mut Steps) -> Result<bool, TooManySteps> {
        let values = self.values(root, steps)?;
        for condition in &self.conditions {
            if let Condition::Exists(exists) = condition {
                // Something that is null or empty does not exist; and nothing is missing where there is nothing at all.
                let is_there = values.iter().any(|value| !value.is_nothing());
                let has_any = !matches!(root, Json::Object(members) if members.is_empty());
                if is_there == *exists && has_any {
                    return Ok(true);
                }
                continue;
            }
            for value in &values {
                if condition.holds(value, steps)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// What is at the end of its path: no array and no object.
    fn values<'j, 'm>(
        &self,
        root: &'j Json<'m>,
        steps: &mut Steps,
    ) -> Result<Vec<&'j Json<'m>>, TooManySteps> {
        let mut found = Vec::new();
        let mut open = vec![(root, 0)];
        while let Some((json, depth)) = open.pop() {
            steps.spend(1)?;
            match (json, self.path.get(depth)) {
                (Json::Array(values), _) => {
                    steps.spend(values.len())?;
                    open.extend(values.iter().map(|value| (value, depth)));
                }
                (Json::Object(_), Some(name)) => {
                    let named = json.named(name).iter();
                    open.extend(named.map(|(_, value)| (value, depth + 1)));
                }
                (Json::Object(_), None) | (_, Some(_)) => {}
                (value, None) => found.push(value),
            }
        }
        Ok(found)
    }
}

/// The longest body that a filter looks into, as in SNS: reading it takes the time of everybody.
const BODY_BYTES_MAX: usize = 256 << 10;

/// The headers of a message as filters see them.
#[derive(Debug)]
pub(super) struct Attributes<'a>(Json<'a>);

impl<'a> Attributes<'a> {
    pub(super) fn of(headers: &'a [Header]) -> Self {
        let members = headers.iter().filter_map(|header| {
            let text = str::from_utf8(&header.value).ok()?;
            let value = match &*header.kind {
                "String.Array" => {
                    let array = Json::read(text.as_bytes());
                    array.ok().filter(|array| matches!(array, Json::Array(_)))?
                }
                kind if kind.starts_with("Number") => Json::Number(number(text)?),
                kind if kind.starts_with("Binary") => return None,
                _ => Json::Text(text.into()),
            };
            Some((Cow::Borrowed(&*header.name), value))
        });
        let mut members: Vec<_> = members.collect();
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        Self(Json::Object(members))
    }
}

/// A number as attributes have it.
fn number(text: &str) -> Option<f64> {
    let is_digit =
        |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
    let number: f64 = text.bytes().all(is_digit).then(|| text.parse().ok())??;
    number.is_finite().then_some(number)
}

/// The body of a message as filters see it.
#[derive(Debug)]
pub(super) struct Body<'a>(Result<Json<'a>, String>);

impl<'a> Body<'a> {
    pub(super) fn of(body: Option<&'a [u8]>) -> Self {
        let is_long = body.is_some_and(|body| body.len() > BODY_BYTES_MAX);
        let json = match body.filter(|_| !is_long).map(Json::read) {
            None if is_long => Err(format!("it has more than {BODY_BYTES_MAX} bytes")),
            None => Err("it is not known".to_owned()),
            Some(Err(why)) => Err(format!("it is no JSON that can be read ({why})")),
            Some(Ok(json @ Json::Object(_))) => Ok(json),
            Some(Ok(_)) => Err("it is no JSON object".to_owned()),
        };
        Self(json)
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.scope == other.scope && self.text == other.text
    }
}

impl Eq for Filter {}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({}: {})", self.scope.name(), self.text)
    }
}
