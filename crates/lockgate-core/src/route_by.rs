//! By what messages are routed that a sink gets for an exchange.

use std::sync::Arc;

use crate::{Fate, Message, NameError, RoutingKey, TransportError};

/// Where a sink that is an exchange takes the routing key of a message from. Exchanges that look at headers, or at nothing, do not
/// use it: for them [`Fixed`](Self::Fixed) is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouteBy {
    /// All messages have this one.
    Fixed(RoutingKey),
    /// It is the value of the header of this name, which the message keeps. A message without one is refused.
    Header(Arc<str>),
}

/// A message says no routing key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RouteByError {
    /// It has no header of that name.
    #[error("the message has no header {name:?}, and its value is the routing key")]
    NoHeader {
        /// The name.
        name: Arc<str>,
    },
    /// The value of the header is no UTF-8.
    #[error("the value of header {name:?} is the routing key, and is no UTF-8")]
    NoText {
        /// The name.
        name: Arc<str>,
    },
    /// The value of the header cannot be a routing key.
    #[error("the value of header {name:?} cannot be the routing key: {source}")]
    Key {
        /// The name.
        name: Arc<str>,
        /// What is wrong.
        source: NameError,
    },
}

impl RouteBy {
    /// By the value of the header of this name.
    #[must_use]
    pub fn header(name: &str) -> Self {
        Self::Header(name.into())
    }

    /// The routing key of a message.
    ///
    /// # Errors
    /// If it says none.
    pub fn routing_key(&self, message: &Message) -> Result<RoutingKey, RouteByError> {
        let name = match self {
            Self::Fixed(key) => return Ok(key.clone()),
            Self::Header(name) => name,
        };
        let header = message.headers.iter().find(|header| header.name == *name);
        let Some(header) = header else {
            return Err(RouteByError::NoHeader { name: name.clone() });
        };
        let text = str::from_utf8(&header.value)
            .map_err(|_| RouteByError::NoText { name: name.clone() })?;
        RoutingKey::new(text).map_err(|source| RouteByError::Key {
            name: name.clone(),
            source,
        })
    }
}

impl From<RouteByError> for TransportError {
    fn from(error: RouteByError) -> Self {
        Self::new(Fate::Refused, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Header;

    #[test]
    fn a_routing_key_is_fixed_or_the_value_of_a_header() {
        let with = |value: &[u8]| {
            let mut message = Message::new("x");
            for (name, value) in [("other", b"no".as_slice()), ("to", value), ("to", b"2")] {
                message.headers.push(Header {
                    name: name.into(),
                    kind: "String".into(),
                    value: value.to_vec().into(),
                });
            }
            message
        };
        let key = RoutingKey::new("orders.eu").unwrap();
        let fixed = RouteBy::Fixed(key.clone());
        assert_eq!(fixed.routing_key(&Message::new("x")), Ok(key.clone()));
        let by = RouteBy::header("to");
        assert_eq!(by.routing_key(&with(b"orders.eu")), Ok(key));
        assert_eq!(by.routing_key(&with(b"")), Ok(RoutingKey::default()));
        for (message, what) in [
            (Message::new("x"), "no header"),
            (with(b"\xff"), "no UTF-8"),
            (with(b"a\nb"), "routing key: "),
            (with(&[b'x'; 256]), "routing key: "),
        ] {
            let refused = by.routing_key(&message).unwrap_err();
            assert!(refused.to_string().contains(what), "{refused}");
            assert_eq!(TransportError::from(refused).fate, Fate::Refused);
        }
    }
}
