use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{index::Index, pattern::*, *};
use crate::table::HashSeed;

fn key(text: &str) -> RoutingKey {
    RoutingKey::new(text).unwrap()
}

fn topic(text: &str) -> TopicPattern {
    TopicPattern::new(text).unwrap()
}

fn pair(name: &str, value: Option<&str>) -> HeaderPair {
    HeaderPair {
        name: name.into(),
        value: value.map(Into::into),
    }
}

fn header(name: &str, value: &str) -> Header {
    Header {
        name: name.into(),
        kind: "String".into(),
        value: Bytes::copy_from_slice(value.as_bytes()),
    }
}

/// The words against a pattern by trying everything.
fn naive_topic(pattern: &[&str], words: &[&str]) -> bool {
    match pattern.split_first() {
        None => words.is_empty(),
        Some((&"#", rest)) => (0..=words.len()).any(|taken| naive_topic(rest, &words[taken..])),
        Some((&"*", rest)) => !words.is_empty() && naive_topic(rest, &words[1..]),
        Some((first, rest)) => words.first() == Some(first) && naive_topic(rest, &words[1..]),
    }
}

fn found(index: &Index, message: &Published<'_>) -> Vec<u32> {
    let mut found = Vec::new();
    index
        .find(message, &mut Steps::new(1_000_000), &mut found)
        .unwrap();
    found.sort_unstable();
    found
}

#[test]
fn topics_match_by_words() {
    let matches = |pattern, routing| topic(pattern).matches(&key(routing));
    assert!(matches("orders.*.eu", "orders.new.eu"));
    assert!(!matches("orders.*.eu", "orders.eu"));
    assert!(!matches("orders.*.eu", "orders.new.old.eu"));
    assert!(matches("orders.#", "orders") && matches("orders.#", "orders.a.b"));
    assert!(matches("#", "") && matches("#.#", "") && matches("#", "a.b"));
    assert!(matches("#.eu", "eu") && matches("#.a.#.b", "x.a.a.y.b"));
    assert!(!matches("*", "") && matches("", "") && !matches("", "a"));
    assert!(matches("a.*", "a.") && !matches("a.*", "a"));
}

#[test]
fn a_wrong_pattern_says_which_word_it_is() {
    let error = |text| TopicPattern::new(text).unwrap_err().to_string();
    assert!(
        error("orders.n*.eu").contains("word 2 of a topic pattern"),
        "{}",
        error("orders.n*.eu")
    );
    assert!(error("##").contains("word 1"));
    let long = TopicPattern::new(&"x".repeat(256)).unwrap_err();
    assert!(long.to_string().contains("this one has 256"), "{long}");
    let error = |pairs| HeadersMatch::all(pairs).unwrap_err().to_string();
    assert!(error(vec![]).contains("1 to 32 headers, this one has 0"));
    assert!(error(vec![pair("a", None); 33]).contains("this one has 33"));
    assert!(error(vec![pair("a", None); 2]).contains("names the header \"a\" twice"));
    assert!(error(vec![pair("a", None), pair("", None)]).contains("name of header 2"));
    assert!(error(vec![pair("a", Some(&"x".repeat(1_025)))]).contains("value of header 1"));
    // A name with two values is not twice the same; all of both cannot be met by one header, but by two.
    assert!(HeadersMatch::all(vec![pair("a", Some("1")), pair("a", Some("2"))]).is_ok());
}

/// A pattern with many `#` and a routing key that nearly matches: what a search that tries again would not end with.
#[test]
fn many_hashes_do_not_multiply() {
    let pattern = "#.a.".repeat(60) + "#.b";
    let routing = ["a"; 127].join(".");
    let (pattern, routing) = (topic(&pattern), key(&routing));
    assert!(!pattern.matches(&routing));
    let mut index = Index::new(ExchangeKind::Topic, HashSeed::default());
    index.insert(&Pattern::Topic(pattern), 0);
    let mut rows = Vec::new();
    // 127 words, and at most 122 places of the trie at each.
    let mut steps = Steps::new(127 * 123 + 200);
    index
        .find(&Published::new(&routing, &[], None), &mut steps, &mut rows)
        .unwrap();
    assert!(rows.is_empty());
}

/// Of 100,000 bindings, what does not match costs nothing.
#[test]
fn finding_takes_steps_in_the_number_of_matches() {
    let check = |index: &Index, message: &Published<'_>| {
        let mut rows = Vec::new();
        let mut steps = Steps::new(1_000);
        index.find(message, &mut steps, &mut rows).unwrap();
        assert_eq!(rows, [77]);
        assert!(steps.0 > 950, "{steps:?}");
    };
    let routing = key("orders.77.eu");
    let headers = [header("shop", "77"), header("all", "x")];
    let message = Published::new(&routing, &headers, None);
    let patterns: [fn(u32) -> Pattern; 4] = [
        |n| Pattern::RoutingKey(key(&format!("orders.{n}.eu"))),
        |n| Pattern::Topic(topic(&format!("orders.{n}.#"))),
        |n| Pattern::Topic(topic(&format!("*.{n}.eu"))),
        // The first one is found by the header that all have; the others are not.
        |n| {
            let pairs = vec![pair("all", Some("x")), pair("shop", Some(&n.to_string()))];
            Pattern::Headers(Arc::new(HeadersMatch::all(pairs).unwrap()))
        },
    ];
    for pattern in patterns {
        let mut index = Index::new(pattern(0).kind(), HashSeed::default());
        for row in 0..100_000 {
            index.insert(&pattern(row), row);
        }
        check(&index, &message);
    }
}

#[test]
fn steps_end_a_search() {
    let mut index = Index::new(ExchangeKind::Fanout, HashSeed::default());
    for row in 0..100 {
        index.insert(&Pattern::Everything, row);
    }
    let routing = key("");
    let message = Published::new(&routing, &[], None);
    let mut rows = Vec::new();
    let found = index.find(&message, &mut Steps::new(100), &mut rows);
    assert_eq!((found, rows.len()), (Err(TooManySteps), 0));
}

fn topic_text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "", "*", "#"]), 0..6)
        .prop_map(|words| words.join("."))
}

fn routing_text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c", ""]), 0..6)
        .prop_map(|words| words.join("."))
}

fn pairs() -> impl Strategy<Value = Vec<HeaderPair>> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    let value = prop::option::of(prop::sample::select(vec!["", "1", "2"]));
    prop::collection::btree_set((name, value), 1..4).prop_map(|pairs| {
        let pairs = pairs.into_iter();
        pairs.map(|(name, value)| pair(name, value)).collect()
    })
}

fn pattern(kind: ExchangeKind) -> BoxedStrategy<Pattern> {
    match kind {
        ExchangeKind::Direct => routing_text()
            .prop_map(|text| Pattern::RoutingKey(key(&text)))
            .boxed(),
        ExchangeKind::Topic => topic_text()
            .prop_map(|text| Pattern::Topic(topic(&text)))
            .boxed(),
        ExchangeKind::Fanout => Just(Pattern::Everything).boxed(),
        ExchangeKind::Headers => (any::<bool>(), pairs())
            .prop_map(|(is_any, pairs)| {
                Pattern::Headers(Arc::new(HeadersMatch::checked(is_any, pairs).unwrap()))
            })
            .boxed(),
    }
}

fn headers() -> impl Strategy<Value = Vec<Header>> {
    let name = prop::sample::select(vec!["a", "b", "c", "d"]);
    let value = prop::sample::select(vec!["", "1", "2", "3"]);
    prop::collection::vec((name, value), 0..5).prop_map(|all| {
        all.into_iter()
            .map(|(name, value)| header(name, value))
            .collect()
    })
}

fn binds() -> impl Strategy<Value = (ExchangeKind, Vec<(bool, u32, Pattern)>)> {
    prop::sample::select(ExchangeKind::ALL.to_vec()).prop_flat_map(|kind| {
        let bind = (any::<bool>(), 0..12_u32, pattern(kind));
        (Just(kind), prop::collection::vec(bind, 0..40))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn topics_match_as_by_trying_everything(pattern in topic_text(), routing in routing_text()) {
        let words: Vec<_> = if routing.is_empty() { vec![] } else { routing.split('.').collect() };
        let parts: Vec<_> = if pattern.is_empty() { vec![] } else { pattern.split('.').collect() };
        prop_assert_eq!(topic(&pattern).matches(&key(&routing)), naive_topic(&parts, &words));
    }

    /// An index finds exactly what a look at each pattern finds, whatever was bound and unbound before, and keeps nothing of what
    /// was unbound.
    #[test]
    fn an_index_finds_what_a_scan_finds(
        (kind, binds) in binds(),
        messages in prop::collection::vec((routing_text(), headers()), 1..6),
    ) {
        let mut index = Index::new(kind, HashSeed::default());
        let mut bound: BTreeMap<u32, Pattern> = BTreeMap::new();
        for (is_bind, row, pattern) in binds {
            if let Some(before) = bound.remove(&row) {
                index.remove(&before, row);
            }
            if is_bind {
                index.insert(&pattern, row);
                bound.insert(row, pattern);
            }
            for (routing, headers) in &messages {
                let routing = key(routing);
                let message = Published::new(&routing, headers, None);
                let scan = bound.iter().filter(|(_, pattern)| pattern.matches(&message));
                let scan: Vec<_> = scan.map(|(row, _)| *row).collect();
                prop_assert_eq!(found(&index, &message), scan);
            }
        }
        for (row, pattern) in bound {
            index.remove(&pattern, row);
        }
        prop_assert_eq!(index.entries(), 0);
    }
}
