//! Exchanges and bindings whose bytes follow no format.

use super::*;

/// The error of a record with one effect of that kind and body.
fn refused(kind: u8, body: &[u8]) -> String {
    let mut record = Vec::new();
    Writer::into(&mut record).tagged_bytes(kind, body);
    let record = Bytes::from(record);
    let error = decode_record(&record).unwrap_err();
    assert_eq!(batch::error_of(&record), Some(error.clone()));
    error.to_string()
}

#[test]
fn malformed_exchanges_and_bindings_are_named() {
    // Exchange 2, binding 1, to queue 7 or to exchange 3.
    let bound = |to: u8, rest: &[u8]| {
        let place = if to == 1 { 7 } else { 3 };
        refused(46, &[&[2, 1, to, place], rest].concat())
    };
    let table = [
        (refused(43, &[2, 1, b'/', 1, 0, 0]), "no exchange name"),
        (refused(43, &[2, 1, b'e', 9, 0, 0]), "kind of exchange 9"),
        (
            refused(43, &[2, 1, b'e', 1, 3, 0]),
            "rule for what cannot be routed 3",
        ),
        (
            refused(44, &[2, 2, 0xff, 0xff, 0xff, 0xff, 0x7f, 0]),
            "too large for its field",
        ),
        (bound(3, &[]), "place of a binding 3"),
        (bound(1, &[5]), "kind of exchange 5"),
        (bound(1, &[1, 1, b'\n']), "no routing key"),
        (bound(1, &[2, 2, b'a', b'#']), "no topic pattern"),
        (bound(1, &[4, 2]), "match of headers 2"),
        (bound(1, &[4, 0, 33]), "more headers than it can have"),
        (bound(1, &[4, 0, 0]), "no match of headers"),
        (
            bound(1, &[4, 0, 2, 1, b'b', 0, 1, b'a', 0]),
            "no match of headers",
        ),
        (
            bound(1, &[4, 0, 2, 1, b'a', 0, 1, b'a', 0]),
            "no match of headers",
        ),
        (bound(1, &[3, 1, 3, 3, b'{', b'}']), "scope of a filter 3"),
        (bound(1, &[3, 1, 3, 1, b'{', b'}']), "no filter"),
        (bound(1, &[3, 2, 1, 0xff]), "a text is not UTF-8"),
        (bound(1, &[3, 3, 1, 0]), "longer than its value"),
        (bound(1, &[3, 4, 0]), "no topic of an envelope"),
        (bound(1, &[3, 5, 1, b'/']), "no queue name"),
        (bound(2, &[3, 2, 0]), "has what only one to a queue has"),
        (bound(2, &[3, 3, 0]), "has what only one to a queue has"),
        (
            bound(2, &[3, 4, 1, b't']),
            "has what only one to a queue has",
        ),
        (
            bound(2, &[3, 5, 1, b'q']),
            "has what only one to a queue has",
        ),
        (refused(50, &[2, 1, 0]), "notes without any are left out"),
        (refused(50, &[2, 2, 2, 1, b'a']), "ends too early"),
    ];
    for (error, expected) in table {
        assert!(error.contains(expected), "{error}, and not {expected}");
    }
    let long = [&[3, 2, 0x81, 2][..], &[b'a'; 257]].concat();
    assert!(bound(1, &long).contains("too long a name"));
}

/// A binding of every kind survives its bytes in a record and in an image.
#[test]
fn bindings_without_options_have_no_fields() {
    let bound = |to, pattern| Effect::Bound {
        exchange: ExchangeId(2),
        number: 1,
        binding: Arc::new(Binding {
            to,
            pattern,
            options: BindingOptions::default(),
        }),
    };
    let to_queue = BindTo::Queue(QueueId(7));
    let pair = |value: Option<&str>| HeaderPair {
        name: "a".into(),
        value: value.map(Into::into),
    };
    let any = HeadersMatch::any(vec![pair(Some("x")), pair(None)]).unwrap();
    let table = [
        (bound(to_queue, Pattern::Everything), "2e050201010703"),
        (
            bound(BindTo::Exchange(ExchangeId(3)), Pattern::Everything),
            "2e050201020303",
        ),
        (
            bound(to_queue, Pattern::RoutingKey(RoutingKey::new("k").unwrap())),
            "2e070201010701016b",
        ),
        (
            bound(to_queue, Pattern::Headers(Arc::new(any))),
            "2e0f020101070401020161000161010178",
        ),
    ];
    for (effect, golden) in table {
        let bytes = encode(std::slice::from_ref(&effect));
        assert_eq!(hex(&bytes), golden, "{effect:?}");
        assert_eq!(decode_record(&bytes).unwrap()[..], [effect]);
    }
}
