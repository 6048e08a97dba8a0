use bytes::Bytes;
use lockgate_core::RoutingKey;
use proptest::prelude::*;

use super::*;

fn header(name: &str, kind: &str, value: &str) -> Header {
    Header {
        name: name.into(),
        kind: kind.into(),
        value: Bytes::copy_from_slice(value.as_bytes()),
    }
}

fn error(scope: FilterScope, policy: &str) -> String {
    Filter::new(scope, policy).unwrap_err().to_string()
}

/// Whether a policy matches attributes, each given as name, kind and value.
fn matches_headers(policy: &str, headers: &[(&str, &str, &str)]) -> bool {
    let filter = Filter::new(FilterScope::Headers, policy).unwrap();
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, kind, value)| header(name, kind, value))
        .collect();
    filter.matches(&Published::new(&RoutingKey::default(), &headers, None))
}

fn matches_body(policy: &str, body: &str) -> bool {
    let filter = Filter::new(FilterScope::Body, policy).unwrap();
    let body = Bytes::copy_from_slice(body.as_bytes());
    filter.matches(&Published::new(&RoutingKey::default(), &[], Some(&body)))
}

/// The examples of Amazon's documentation: a policy, attributes, and whether they match.
#[test]
fn filters_on_headers_match_as_amazon_documents() {
    let interests = |array| [("customer_interests", "String.Array", array)];
    let interest = |value| [("customer_interests", "String", value)];
    let price = |value| [("price_usd", "Number", value)];
    let key = |name, value| [(name, "String", value)];
    type Attribute = (&'static str, &'static str, &'static str);
    let table: &[(&str, &[Attribute], bool)] = &[
        // Exact texts.
        (
            r#"{"customer_interests": ["rugby", "tennis"]}"#,
            &interest("rugby"),
            true,
        ),
        (
            r#"{"customer_interests": ["rugby", "tennis"]}"#,
            &interests(r#"["rugby", "baseball"]"#),
            true,
        ),
        (
            r#"{"customer_interests": ["rugby", "tennis"]}"#,
            &interest("baseball"),
            false,
        ),
        (
            r#"{"customer_interests": ["rugby"]}"#,
            &interest("Rugby"),
            false,
        ),
        (r#"{"customer_interests": ["rugby"]}"#, &[], false),
        // Anything but.
        (
            r#"{"customer_interests": [{"anything-but": ["rugby", "tennis"]}]}"#,
            &interest("baseball"),
            true,
        ),
        (
            r#"{"customer_interests": [{"anything-but": ["rugby", "tennis"]}]}"#,
            &interests(r#"["rugby", "baseball"]"#),
            true,
        ),
        (
            r#"{"customer_interests": [{"anything-but": ["rugby", "tennis"]}]}"#,
            &interest("rugby"),
            false,
        ),
        (
            r#"{"customer_interests": [{"anything-but": ["rugby", "tennis"]}]}"#,
            &interests(r#"["rugby"]"#),
            false,
        ),
        (
            r#"{"customer_interests": [{"anything-but": "rugby"}]}"#,
            &[],
            false,
        ),
        (
            r#"{"event": [{"anything-but": {"prefix": "order-"}}]}"#,
            &key("event", "data-entry"),
            true,
        ),
        (
            r#"{"event": [{"anything-but": {"prefix": "order-"}}]}"#,
            &key("event", "order-received"),
            false,
        ),
        (
            r#"{"event": [{"anything-but": {"suffix": "ball"}}]}"#,
            &key("event", "football"),
            false,
        ),
        (
            r#"{"event": [{"anything-but": {"wildcard": "*ball"}}]}"#,
            &key("event", "rugby"),
            true,
        ),
        (
            r#"{"event": [{"anything-but": {"wildcard": "*ball"}}]}"#,
            &key("event", "baseball"),
            false,
        ),
        (
            r#"{"price_usd": [{"anything-but": [100, 500]}]}"#,
            &price("101"),
            true,
        ),
        (
            r#"{"price_usd": [{"anything-but": [100, 500]}]}"#,
            &price("100"),
            false,
        ),
        // Without case, prefix, suffix, wildcard.
        (
            r#"{"customer_interests": [{"equals-ignore-case": "tennis"}]}"#,
            &interest("TENNIS"),
            true,
        ),
        (
            r#"{"customer_interests": [{"equals-ignore-case": "tennis"}]}"#,
            &interest("tennis2"),
            false,
        ),
        (
            r#"{"customer_interests": [{"prefix": "bas"}]}"#,
            &interest("baseball"),
            true,
        ),
        (
            r#"{"customer_interests": [{"prefix": "bas"}]}"#,
            &interest("rugby"),
            false,
        ),
        (
            r#"{"customer_interests": [{"suffix": "ball"}]}"#,
            &interest("football"),
            true,
        ),
        (
            r#"{"customer_interests": [{"suffix": "ball"}]}"#,
            &interest("ballet"),
            false,
        ),
        (
            r#"{"customer_interests": [{"wildcard": "*ball"}]}"#,
            &interest("baseball"),
            true,
        ),
        (
            r#"{"customer_interests": [{"wildcard": "b*s*l"}]}"#,
            &interest("baseball"),
            true,
        ),
        (
            r#"{"customer_interests": [{"wildcard": "b*s*l"}]}"#,
            &interest("football"),
            false,
        ),
        // Networks.
        (
            r#"{"source_ip": [{"cidr": "10.0.0.0/24"}]}"#,
            &key("source_ip", "10.0.0.255"),
            true,
        ),
        (
            r#"{"source_ip": [{"cidr": "10.0.0.0/24"}]}"#,
            &key("source_ip", "10.1.1.0"),
            false,
        ),
        (
            r#"{"source_ip": [{"cidr": "10.0.0.0/24"}]}"#,
            &key("source_ip", "10.0.1.0"),
            false,
        ),
        (
            r#"{"source_ip": [{"cidr": "2001:db8::/32"}]}"#,
            &key("source_ip", "2001:db9::"),
            false,
        ),
        (
            r#"{"source_ip": [{"cidr": "2001:db8::/32"}]}"#,
            &key("source_ip", "2001:db8::1"),
            true,
        ),
        (
            r#"{"source_ip": [{"cidr": "0.0.0.0/0"}]}"#,
            &key("source_ip", "2001:db8::1"),
            false,
        ),
        (
            r#"{"source_ip": [{"cidr": "0.0.0.0/0"}]}"#,
            &key("source_ip", "255.1.2.3"),
            true,
        ),
        (
            r#"{"source_ip": [{"cidr": "10.0.0.1/32"}]}"#,
            &key("source_ip", "10.0.0.2"),
            false,
        ),
        // Numbers.
        (
            r#"{"price_usd": [{"numeric": ["=", 301.5]}]}"#,
            &price("301.5"),
            true,
        ),
        (
            r#"{"price_usd": [{"numeric": ["=", 301.5]}]}"#,
            &price("3.015e2"),
            true,
        ),
        (
            r#"{"price_usd": [{"numeric": ["=", 301.5]}]}"#,
            &key("price_usd", "301.5"),
            false,
        ),
        (
            r#"{"price_usd": [{"numeric": [">", 0, "<=", 150]}]}"#,
            &price("150"),
            true,
        ),
        (
            r#"{"price_usd": [{"numeric": [">", 0, "<=", 150]}]}"#,
            &price("0"),
            false,
        ),
        (
            r#"{"price_usd": [{"numeric": ["<", -5]}]}"#,
            &price("-1e30"),
            true,
        ),
        (r#"{"price_usd": [100]}"#, &price("100.0"), true),
        (r#"{"price_usd": [100]}"#, &key("price_usd", "100"), false),
        (r#"{"price_usd": [100]}"#, &price("inf"), false),
        // Whether there is one.
        (
            r#"{"store": [{"exists": true}]}"#,
            &key("store", "fans"),
            true,
        ),
        (
            r#"{"store": [{"exists": true}]}"#,
            &key("encrypted", "false"),
            false,
        ),
        (
            r#"{"store": [{"exists": false}]}"#,
            &key("encrypted", "false"),
            true,
        ),
        (
            r#"{"store": [{"exists": false}]}"#,
            &key("store", "fans"),
            false,
        ),
        (
            r#"{"store": ["a", {"exists": false}]}"#,
            &key("store", "a"),
            true,
        ),
        // Attributes of the type Binary are ignored, and a String.Array that is none has no value.
        (
            r#"{"store": [{"exists": true}]}"#,
            &[("store", "Binary", "x")],
            false,
        ),
        (
            r#"{"store": [{"exists": true}]}"#,
            &[("store", "String.Array", "x")],
            false,
        ),
        // Truth values and null, in arrays.
        (
            r#"{"flags": [true, null]}"#,
            &[("flags", "String.Array", "[false, null]")],
            true,
        ),
        (
            r#"{"flags": [true]}"#,
            &[("flags", "String", "true")],
            false,
        ),
        // And, or.
        (
            r#"{"store": ["a"], "event": ["b"]}"#,
            &[("store", "String", "a"), ("event", "String", "b")],
            true,
        ),
        (
            r#"{"store": ["a"], "event": ["b"]}"#,
            &[("store", "String", "a"), ("event", "String", "c")],
            false,
        ),
        (
            r#"{"source": ["aws.cloudwatch"], "$or": [{"metricName": ["CPUUtilization"]}, {"namespace": ["AWS/EC2", "AWS/ES"]}]}"#,
            &[
                ("source", "String", "aws.cloudwatch"),
                ("namespace", "String", "AWS/ES"),
            ],
            true,
        ),
        (
            r#"{"source": ["aws.cloudwatch"], "$or": [{"metricName": ["CPUUtilization"]}, {"namespace": ["AWS/EC2", "AWS/ES"]}]}"#,
            &[
                ("source", "String", "aws.cloudwatch"),
                ("namespace", "String", "AWS/S3"),
            ],
            false,
        ),
        (
            r#"{"source": ["aws.cloudwatch"], "$or": [{"metricName": ["CPUUtilization"]}, {"namespace": ["AWS/EC2", "AWS/ES"]}]}"#,
            &[("namespace", "String", "AWS/ES")],
            false,
        ),
        // As a key of its own, because an object has the name of a condition.
        (
            r#"{"$or": [{"prefix": "a"}, {"prefix": "b"}]}"#,
            &key("$or", "bc"),
            true,
        ),
    ];
    for (policy, headers, expected) in table {
        assert_eq!(
            matches_headers(policy, headers),
            *expected,
            "{policy} on {headers:?}"
        );
    }
}

#[test]
fn filters_on_bodies_match_as_amazon_documents() {
    let person = r#"{"person": {"name": ["Jeff"], "address": {"state": [{"prefix": "W"}]}}}"#;
    let table = [
        (
            person,
            r#"{"person": {"name": "Jeff", "address": {"state": "WA"}}}"#,
            true,
        ),
        (
            person,
            r#"{"person": {"name": "Jeff", "address": {"state": "CA"}}}"#,
            false,
        ),
        (person, r#"{"person": {"name": "Jeff"}}"#, false),
        (
            person,
            r#"{"person": [{"name": "Jeff", "address": [{"state": "CA"}, {"state": "WA"}]}]}"#,
            true,
        ),
        (r#"{"a": [1, true, null]}"#, r#"{"a": true}"#, true),
        (r#"{"a": [1, true, null]}"#, r#"{"a": null}"#, true),
        (r#"{"a": [1, true, null]}"#, r#"{"a": 1.000001}"#, true),
        (r#"{"a": [1, true, null]}"#, r#"{"a": 1.00001}"#, false),
        (r#"{"a": [1]}"#, r#"{"a": "1"}"#, false),
        (r#"{"a": [{"exists": true}]}"#, r#"{"a": {"b": 1}}"#, false),
        (r#"{"a": [{"exists": true}]}"#, r#"{"a": []}"#, false),
        (r#"{"a": [{"exists": false}]}"#, r#"{"a": []}"#, true),
        (r#"{"a": ["x"]}"#, r#"{"a": "y", "a": "x"}"#, true),
        (r#"{"a": ["\u00e9\n"]}"#, r#"{"a": "é\u000a"}"#, true),
        (
            r#"{"$or": [{"a": ["x"], "$or": [{"b": [1]}, {"c": {"d": [2]}}]}, {"e": [3]}]}"#,
            r#"{"a": "x", "c": {"d": 2}}"#,
            true,
        ),
        (
            r#"{"$or": [{"a": ["x"], "$or": [{"b": [1]}, {"c": {"d": [2]}}]}, {"e": [3]}]}"#,
            r#"{"a": "y", "c": {"d": 2}}"#,
            false,
        ),
        (
            r#"{"$or": [{"a": ["x"], "$or": [{"b": [1]}, {"c": {"d": [2]}}]}, {"e": [3]}]}"#,
            r#"{"a": "y", "e": 3}"#,
            true,
        ),
    ];
    for (policy, body, expected) in table {
        assert_eq!(matches_body(policy, body), expected, "{policy} on {body}");
    }
    // A body that is no JSON object matches nothing, not even what asks for an absence.
    for body in [
        "",
        "[]",
        "1",
        "{",
        "{\"a\":1}x",
        &("[".repeat(65) + &"]".repeat(65)),
    ] {
        assert!(
            !matches_body(r#"{"a": [{"exists": false}]}"#, body),
            "{body}"
        );
    }
}

#[test]
fn a_wrong_filter_says_what_is_wrong_and_where() {
    let of = |policy| error(FilterScope::Body, policy);
    let table = [
        ("[]", "`$`: it must be a JSON object"),
        ("{", "`$`: it is no JSON: EOF"),
        ("{}", "`$`: an object must have a key"),
        (r#"{"a": "x"}"#, "`a`: the value of a key must be an array"),
        (r#"{"a": []}"#, "`a`: the array must have a value"),
        (r#"{"a": {"b": {}}}"#, "`a.b`: an object must have a key"),
        (r#"{"a": ["x"], "a": ["y"]}"#, "`a`: the key is there twice"),
        (r#"{"a": [["x"]]}"#, "`a.[0]`: an array cannot be within"),
        (
            r#"{"a": ["x", {"prefix": 1}]}"#,
            "`a.[1].prefix`: it must be a text",
        ),
        (
            r#"{"a": [{"prefix": ""}]}"#,
            "`a.[0].prefix`: the text must not be empty",
        ),
        (
            r#"{"a": [{"begins": "x"}]}"#,
            "`a.[0].begins`: there is no condition \"begins\"; there are prefix,",
        ),
        (
            r#"{"a": [{"begins": 1}]}"#,
            "there is no condition \"begins\"",
        ),
        (
            r#"{"a": [{"prefix": "x", "suffix": "y"}]}"#,
            "a condition is an object with one key",
        ),
        (
            r#"{"a": [{"exists": "true"}]}"#,
            "`a.[0].exists`: it must be true or false",
        ),
        (
            r#"{"a": [{"numeric": "x"}]}"#,
            "`a.[0].numeric`: it must be an array",
        ),
        (r#"{"a": [{"numeric": []}]}"#, "it must have a comparison"),
        (r#"{"a": [{"numeric": ["<"]}]}"#, "a comparison is a text"),
        (
            r#"{"a": [{"numeric": ["~", 1]}]}"#,
            "there is no comparison \"~\"",
        ),
        (
            r#"{"a": [{"numeric": [">", 5, "<", 5]}]}"#,
            "the lower bound must be below the upper one",
        ),
        (
            r#"{"a": [{"numeric": ["<", 5, ">", 1]}]}"#,
            "a range has a lower bound",
        ),
        (
            r#"{"a": [{"numeric": ["=", 5, "<", 1]}]}"#,
            "a range has a lower bound",
        ),
        (
            r#"{"a": [{"numeric": [">", 1, "<", 5, "<", 6]}]}"#,
            "a range has a lower bound",
        ),
        (r#"{"a": [1000000001]}"#, "a number must be -10^9 to 10^9"),
        (r#"{"a": [0.000001]}"#, "at most five digits"),
        (
            r#"{"a": [{"cidr": "10.0.0.0"}]}"#,
            "it must be an IP address",
        ),
        (
            r#"{"a": [{"cidr": "10.0.0.0/33"}]}"#,
            "it must be an IP address",
        ),
        (
            r#"{"a": [{"cidr": "10.0.0.0/+8"}]}"#,
            "it must be an IP address",
        ),
        (
            r#"{"a": [{"wildcard": "a**"}]}"#,
            "two stars must not stand together",
        ),
        (
            r#"{"a": [{"wildcard": "a\\b"}]}"#,
            "a backslash stands before",
        ),
        (
            r#"{"a": [{"anything-but": []}]}"#,
            "the array must have a value",
        ),
        (
            r#"{"a": [{"anything-but": true}]}"#,
            "it must be a text, a number",
        ),
        (
            r#"{"a": [{"anything-but": {"cidr": "10.0.0.0/8"}}]}"#,
            "there is no condition \"cidr\"",
        ),
        (
            r#"{"$or": [{"a": ["x"]}]}"#,
            "`$or` takes two objects or more",
        ),
    ];
    for (policy, expected) in table {
        let error = of(policy);
        assert!(error.contains(expected), "{policy}: {error}");
    }
    let nested = error(FilterScope::Headers, r#"{"a": {"b": ["x"]}}"#);
    assert!(
        nested.contains("`a`: keys of headers cannot be nested"),
        "{nested}"
    );
}

/// A condition that AWS has in `anything-but` is taken there, and no other.
#[test]
fn anything_but_takes_lists_of_texts() {
    let policy = r#"{"a": [{"anything-but": {"prefix": ["x", "y"]}}]}"#;
    assert!(matches_headers(policy, &[("a", "String", "z1")]));
    assert!(!matches_headers(policy, &[("a", "String", "y1")]));
    let policy = r#"{"a": [{"anything-but": {"equals-ignore-case": ["x", "y"]}}]}"#;
    assert!(!matches_headers(policy, &[("a", "String", "Y")]));
}

#[test]
fn filters_are_bounded_as_amazon_bounds_them() {
    let keys = |count: usize| {
        let keys: Vec<_> = (0..count)
            .map(|key| format!(r#""k{key}": ["x"]"#))
            .collect();
        format!("{{{}}}", keys.join(","))
    };
    assert!(Filter::new(FilterScope::Headers, &keys(5)).is_ok());
    let six = error(FilterScope::Headers, &keys(6));
    assert!(six.contains("it has 6 keys, the most are 5"), "{six}");
    // Of nested keys the innermost count, and one that comes again counts once.
    let nested = r#"{"a": {"b": {"c": ["x"]}, "d": ["x"]}, "$or": [{"e": [1]}, {"e": [2], "f": [1]}, {"g": [1]}]}"#;
    assert!(Filter::new(FilterScope::Body, nested).is_ok());

    let values = |count: usize| vec!["\"x\""; count].join(",");
    let policy = |a, b| format!(r#"{{"a": [{}], "b": [{}]}}"#, values(a), values(b));
    assert!(Filter::new(FilterScope::Headers, &policy(15, 10)).is_ok());
    let more = error(FilterScope::Headers, &policy(151, 1));
    assert!(
        more.contains("it has 151 combinations of values, the most are 150"),
        "{more}"
    );
    // The example of the documentation: (4 values x 3 levels) x (3 values x 2 levels) = 72, so twice that is not too much, and
    // three times is.
    let documented = |more: usize| {
        let (four, three) = (values(4), values(3));
        format!(
            r#"{{"a": {{"b": {{"c": [{four}]}}}}, "d": {{"e": [{three}]}}, "f": [{}]}}"#,
            values(more)
        )
    };
    assert!(Filter::new(FilterScope::Body, &documented(2)).is_ok());
    let more = error(FilterScope::Body, &documented(3));
    assert!(more.contains("216 combinations"), "{more}");
    // A `$or` adds: 1 x (100 + 50).
    let or = |b| {
        format!(
            r#"{{"$or": [{{"a": [{}]}}, {{"b": [{}]}}]}}"#,
            values(100),
            values(b)
        )
    };
    assert!(Filter::new(FilterScope::Headers, &or(50)).is_ok());
    assert!(error(FilterScope::Headers, &or(51)).contains("151 combinations"));

    let long = format!(r#"{{"a": ["{}"]}}"#, "x".repeat(Filter::BYTES_MAX));
    assert!(error(FilterScope::Headers, &long).contains("the most are 262144"));
    let deep = |depth: usize| format!("{}[1]{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    assert!(Filter::new(FilterScope::Body, &deep(16)).is_ok());
    assert!(error(FilterScope::Body, &deep(17)).contains("keys are nested up to 16 deep"));
    assert!(error(FilterScope::Body, &deep(70)).contains("nested deeper than 64"));
    let or = |depth: usize| {
        let begin = r#"{"b": [1], "$or": [{"a": [1]},"#.repeat(depth);
        format!(r#"{begin}{{"a": [1]}}{}"#, "]}".repeat(depth))
    };
    assert!(Filter::new(FilterScope::Body, &or(10)).is_ok());
    assert!(error(FilterScope::Body, &or(20)).contains("keys are nested up to 16 deep"));
}

#[test]
fn a_miss_says_which_key_it_was() {
    let explain = |scope, policy: &str, headers: &[Header], body: Option<&Bytes>| {
        let filter = Filter::new(scope, policy).unwrap();
        let key = RoutingKey::default();
        let message = Published::new(&key, headers, body);
        let miss = filter
            .check(&message, &mut Steps::new(1_000))
            .unwrap()
            .unwrap_err();
        filter.explain(&miss, &message, &mut Steps::new(100))
    };
    let policy = r#"{"store": ["a"], "event": {"kind": ["b"]}}"#;
    let body = Bytes::from_static(br#"{"store": "a", "event": {"kind": "c"}}"#);
    assert_eq!(
        explain(FilterScope::Body, policy, &[], Some(&body)),
        "the filter misses the key `event.kind` of the body: its value meets no condition"
    );
    let body = Bytes::from_static(br#"{"event": {"kind": "b"}}"#);
    assert_eq!(
        explain(FilterScope::Body, policy, &[], Some(&body)),
        "the filter misses the key `store` of the body, which is not there"
    );
    assert_eq!(
        explain(FilterScope::Body, policy, &[], None),
        "the filter reads the body: it is not known"
    );
    assert_eq!(
        explain(
            FilterScope::Headers,
            r#"{"a": ["x"]}"#,
            &[header("a", "String", "y")],
            None
        ),
        "the filter misses the key `a` of the headers: its value meets no condition"
    );
}

#[test]
fn the_body_is_read_once_and_only_if_a_filter_needs_it() {
    let key = RoutingKey::default();
    let body = Bytes::from_static(b"{}");
    let message = Published::new(&key, &[], Some(&body));
    let mut steps = Steps::new(1_000);
    let headers = Filter::new(FilterScope::Headers, r#"{"a": [1]}"#).unwrap();
    let _ = headers.check(&message, &mut steps);
    assert!(message.parsed.get().is_none());
    let on_body = Filter::new(FilterScope::Body, r#"{"a": [1]}"#).unwrap();
    let _ = on_body.check(&message, &mut steps);
    let first: *const Body<'_> = message.parsed.get().unwrap();
    let _ = on_body.check(&message, &mut steps);
    assert!(std::ptr::eq(first, message.parsed.get().unwrap()));
}

#[test]
fn a_filter_ends_when_its_steps_are_used_up() {
    let key = RoutingKey::default();
    let filter = Filter::new(FilterScope::Body, r#"{"a": [{"wildcard": "*a*b*"}]}"#).unwrap();
    let body = Bytes::from(format!(r#"{{"a": "{}"}}"#, "a".repeat(64_000)));
    let message = Published::new(&key, &[], Some(&body));
    assert_eq!(
        filter.check(&message, &mut Steps::new(500)),
        Err(TooManySteps)
    );
    assert!(filter.check(&message, &mut Steps::new(1_100)).is_ok());
    let body = Bytes::from(format!(r#"{{"a": [{}1]}}"#, "1,".repeat(1_000)));
    let message = Published::new(&key, &[], Some(&body));
    assert_eq!(
        filter.check(&message, &mut Steps::new(1_000)),
        Err(TooManySteps)
    );
}

/// What a condition compares is counted, also where it has many parts or is long itself.
#[test]
fn steps_are_as_many_as_what_is_compared() {
    let key = RoutingKey::default();
    let steps = |policy: &str, text: &str| {
        let filter = Filter::new(FilterScope::Headers, policy).unwrap();
        let headers = [header("a", "String", text)];
        let message = Published::new(&key, &headers, None);
        let mut steps = Steps::new(1_000_000);
        let _ = filter.check(&message, &mut steps).unwrap();
        1_000_000 - steps.0
    };
    let long = "x".repeat(64_000);
    let few = steps(r#"{"a": ["y"]}"#, &long);
    for (policy, least) in [
        (format!(r#"{{"a": ["{long}"]}}"#), 1_000),
        (format!(r#"{{"a": [{{"prefix": "{long}"}}]}}"#), 1_000),
        (format!(r#"{{"a": [{{"suffix": "{long}"}}]}}"#), 1_000),
        (format!(r#"{{"a": [{{"anything-but": "{long}"}}]}}"#), 1_000),
        (
            format!(r#"{{"a": [{{"wildcard": "{}"}}]}}"#, "*x".repeat(5_000)),
            6_000,
        ),
        (format!(r#"{{"a": [{{"wildcard": "*{long}"}}]}}"#), 2_000),
    ] {
        let taken = steps(&policy, &long);
        let start: String = policy.chars().take(40).collect();
        assert!((least..least + 50).contains(&taken), "{start}: {taken}");
    }
    // What differs in length is not looked at.
    assert!(few < 10, "{few}");
}

#[test]
fn a_filter_takes_a_bounded_amount_of_memory() {
    let of = |values: usize| {
        let policy = format!(
            r#"{{"a": [{{"anything-but": [{}"b"]}}]}}"#,
            r#""a","#.repeat(values)
        );
        Filter::new(FilterScope::Headers, &policy)
    };
    let filter = of(5_000).unwrap();
    assert!(
        filter.bytes() > 15 * filter.text().len() as u64,
        "{}",
        filter.bytes()
    );
    let refused = of(20_000).unwrap_err().to_string();
    assert!(
        refused.contains("bytes of memory, the most are 1048576"),
        "{refused}"
    );
}

/// A wildcard by trying everything.
fn naive_wildcard(pattern: &[char], text: &[char]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some(('*', rest)) => (0..=text.len()).any(|taken| naive_wildcard(rest, &text[taken..])),
        Some((first, rest)) => text.first() == Some(first) && naive_wildcard(rest, &text[1..]),
    }
}

proptest! {
    #[test]
    fn wildcards_match_as_by_trying_everything(pattern in "[ab*]{1,8}", text in "[ab]{0,10}") {
        prop_assume!(!pattern.contains("**"));
        let filter = Filter::new(
            FilterScope::Headers,
            &format!(r#"{{"a": [{{"wildcard": "{pattern}"}}]}}"#),
        ).unwrap();
        let headers = [header("a", "String", &text)];
        let matches = filter.matches(&Published::new(&RoutingKey::default(), &headers, None));
        let (pattern, text): (Vec<_>, Vec<_>) = (pattern.chars().collect(), text.chars().collect());
        prop_assert_eq!(matches, naive_wildcard(&pattern, &text));
    }

    #[test]
    fn any_text_is_a_filter_or_an_error(text in ".{0,60}") {
        let _ = Filter::new(FilterScope::Body, &text);
        let _ = Filter::new(FilterScope::Headers, &format!(r#"{{"a": [{text}]}}"#));
    }
}
