//! The conditions of a filter.

use std::net::IpAddr;

use super::ALLOCATION;
use crate::exchanges::{Steps, TooManySteps, json::Json};

/// A condition on one value.
#[derive(Debug)]
pub(super) enum Condition {
    Equals(Scalar),
    Prefix(Box<str>),
    Suffix(Box<str>),
    EqualsIgnoreCase(Box<str>),
    Wildcard(Wildcard),
    Cidr(Cidr),
    /// Within these bounds, of which there is one at least.
    Numeric {
        low: Option<Bound>,
        high: Option<Bound>,
    },
    /// None of these.
    AnythingBut(Box<[Self]>),
    /// About a key, not a value: the rule looks at it.
    Exists(bool),
}

/// What a value can be equal to.
#[derive(Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Flag(bool),
    Number(Decimal),
    Text(Box<str>),
}

/// A number with five digits behind the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Decimal(i64);

/// A bound, and whether the number itself is within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) number: Decimal,
    pub(super) is_within: bool,
}

/// The texts between the stars; there is one more than stars.
#[derive(Debug)]
pub(super) struct Wildcard(pub(super) Box<[Box<str>]>);

#[derive(Debug)]
pub(super) struct Cidr {
    pub(super) network: IpAddr,
    pub(super) bits: u8,
}

impl Condition {
    /// What it takes of memory.
    pub(super) fn bytes(&self) -> usize {
        let of_text = |text: &str| ALLOCATION + text.len();
        let behind = match self {
            Self::Equals(Scalar::Text(text))
            | Self::Prefix(text)
            | Self::Suffix(text)
            | Self::EqualsIgnoreCase(text) => of_text(text),
            Self::Wildcard(Wildcard(parts)) => {
                let parts = parts
                    .iter()
                    .map(|part| size_of::<Box<str>>() + of_text(part));
                ALLOCATION + parts.sum::<usize>()
            }
            // Only conditions on texts and numbers are in it, so this goes one level deep.
            Self::AnythingBut(others) => ALLOCATION + others.iter().map(Self::bytes).sum::<usize>(),
            Self::Equals(_) | Self::Cidr(_) | Self::Numeric { .. } | Self::Exists(_) => 0,
        };
        size_of::<Self>() + behind
    }

    /// Whether it holds for a value that is no array and no object.
    pub(super) fn holds(&self, value: &Json<'_>, steps: &mut Steps) -> Result<bool, TooManySteps> {
        steps.spend(1)?;
        let text = match value {
            Json::Text(text) => Some(&**text),
            _ => None,
        };
        let of_text = |steps: &mut Steps, holds: &dyn Fn(&str) -> bool| match text {
            None => Ok(false),
            Some(text) => steps.spend_text(text).map(|()| holds(text)),
        };
        // Two texts are compared as far as the shorter one goes.
        let compared = |steps: &mut Steps, other: &str, holds: &dyn Fn(&str) -> bool| match text {
            Some(text) if text.len() >= other.len() => {
                steps.spend_text(other).map(|()| holds(text))
            }
            _ => Ok(false),
        };
        match self {
            Self::Equals(Scalar::Text(other)) => {
                let has_length = text.is_some_and(|text| text.len() == other.len());
                match has_length {
                    true => compared(steps, other, &|text| *text == **other),
                    false => Ok(false),
                }
            }
            Self::Equals(scalar) => Ok(scalar.is(value)),
            Self::Prefix(prefix) => compared(steps, prefix, &|text| text.starts_with(&**prefix)),
            Self::Suffix(suffix) => compared(steps, suffix, &|text| text.ends_with(&**suffix)),
            Self::EqualsIgnoreCase(other) => of_text(steps, &|text| {
                let (one, other) = (text.chars(), other.chars());
                let lower = char::to_lowercase;
                one.flat_map(lower).eq(other.flat_map(lower))
            }),
            Self::Wildcard(wildcard) => {
                // Each part is looked for, from where the one before it ends.
                for part in &wildcard.0 {
                    steps.spend_text(part)?;
                }
                of_text(steps, &|text| wildcard.matches(text))
            }
            Self::Cidr(cidr) => Ok(text.is_some_and(|text| cidr.has(text))),
            Self::Numeric { low, high } => {
                let Json::Number(number) = value else {
                    return Ok(false);
                };
                let number = Decimal::rounded(*number);
                let is_above =
                    |low: &Bound| number > low.number || low.is_within && number == low.number;
                let is_below =
                    |high: &Bound| number < high.number || high.is_within && number == high.number;
                Ok(low.as_ref().is_none_or(is_above) && high.as_ref().is_none_or(is_below))
            }
            Self::AnythingBut(others) => {
                for other in others {
                    // Only conditions on texts and numbers are in it, so this goes one level deep.
                    if other.holds(value, steps)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Exists(_) => Ok(false),
        }
    }
}

impl Scalar {
    fn is(&self, value: &Json<'_>) -> bool {
        match (self, value) {
            (Self::Null, Json::Null) => true,
            (Self::Flag(flag), Json::Flag(other)) => flag == other,
            (Self::Number(number), Json::Number(other)) => *number == Decimal::rounded(*other),
            (Self::Text(text), Json::Text(other)) => **text == **other,
            _ => false,
        }
    }
}

impl Decimal {
    const SCALE: f64 = 100_000.0;

    /// The nearest one. Those beyond any that a filter can have stay beyond them.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a cast to an integer ends at its bounds, which are beyond all bounds of filters"
    )]
    pub(super) fn rounded(number: f64) -> Self {
        Self((number * Self::SCALE).round() as i64)
    }

    /// The number itself, if it is within -10^9 to 10^9 and has no further digits.
    pub(super) fn exact(number: f64) -> Option<Self> {
        let is_exact = ((number * Self::SCALE).round() / Self::SCALE).to_bits() == number.to_bits();
        let is_zero = number == 0.0;
        (number.abs() <= 1e9 && (is_exact || is_zero)).then(|| Self::rounded(number))
    }
}

impl Wildcard {
    /// Each text between stars is taken where it comes first, so nothing is tried twice.
    fn matches(&self, text: &str) -> bool {
        let (first, others) = match &*self.0 {
            [] => return false,
            [whole] => return **whole == *text,
            [first, others @ ..] => (first, others),
        };
        let Some(mut rest) = text.strip_prefix(&**first) else {
            return false;
        };
        let Some((last, between)) = others.split_last() else {
            return false;
        };
        for part in between {
            match rest.find(&**part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(&**last)
    }
}

impl Cidr {
    fn has(&self, text: &str) -> bool {
        let Ok(address) = text.parse::<IpAddr>() else {
            return false;
        };
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differ = u32::from(network) ^ u32::from(address);
                differ.checked_shr(32 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differ = u128::from(network) ^ u128::from(address);
                differ.checked_shr(128 - u32::from(self.bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}
