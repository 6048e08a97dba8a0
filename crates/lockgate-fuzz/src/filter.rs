//! Filters of bindings.

use bytes::Bytes;
use lockgate_core::{Header, RoutingKey};
use lockgate_machine::{Filter, FilterScope, Published};

/// A policy, a line break, and what it is to match: a body, and the value of headers of every kind.
pub(crate) fn read(bytes: &[u8]) -> Result<(), String> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (policy, body) = match end {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[][..]),
    };
    let policy = str::from_utf8(policy).map_err(|error| error.to_string())?;
    let body = Bytes::copy_from_slice(body);
    let header = |(name, kind): (&str, &str)| Header {
        name: name.into(),
        kind: kind.into(),
        value: body.clone(),
    };
    let headers = [
        ("a", "String"),
        ("b", "Number"),
        ("c", "String.Array"),
        ("d", "Binary"),
    ];
    let headers = headers.map(header);
    let routing_key = RoutingKey::default();
    let message = Published::new(&routing_key, &headers, Some(&body));
    // What is taken of headers is taken of a body, but not the other way round.
    let on_headers = Filter::new(FilterScope::Headers, policy);
    let on_body = Filter::new(FilterScope::Body, policy).map_err(|error| error.to_string());
    if let Ok(filter) = on_headers {
        assert!(on_body.is_ok(), "{policy}");
        assert_eq!(filter.matches(&message), filter.matches(&message));
    }
    let filter = on_body?;
    assert_eq!(filter.text(), policy);
    assert_eq!(
        Filter::new(FilterScope::Body, filter.text()),
        Ok(filter.clone())
    );
    let unknown = Published::new(&routing_key, &headers, None);
    assert!(
        !filter.matches(&unknown),
        "a body that is not known matches nothing"
    );
    let _ = filter.matches(&message);
    Ok(())
}
