//! The decoder alone: no body costs much stack, and an input that is too long is refused by its
//! length.

use crate::{
    api::{
        input::{body, entry},
        shapes::{ChangeQueue, CreateQueue, SendMessages, SettleMessages, Transaction},
    },
    few::ENTRIES_MAX,
    small_stack::read_nested,
};

#[test]
fn a_body_as_deep_as_it_is_long_costs_no_stack() {
    fn all(text: &str) {
        let text = text.as_bytes();
        let _ = body::<CreateQueue>(text);
        let _ = body::<ChangeQueue>(text);
        let _ = body::<SettleMessages<'_>>(text);
        if let Ok(input) = body::<SendMessages<'_>>(text) {
            input.messages.into_entries(entry).for_each(drop);
        }
        if let Ok(input) = body::<Transaction<'_>>(text) {
            input.sends.into_entries(entry).for_each(drop);
        }
    }
    read_nested(
        &[
            ("[", "]"),
            ("{\"a\":", "}"),
            ("{\"settings\":", "}"),
            ("{\"messages\":[", "]}"),
            ("{\"headers\":{\"a\":", "}}"),
        ],
        &[
            "{\"name\":$}",
            "{\"name\":\"a\",\"settings\":$}",
            "{\"name\":\"a\",\"settings\":{\"level\":$}}",
            "{\"name\":\"a\",\"settings\":{\"dedup_window_ms\":$}}",
            "{\"tags\":{\"a\":$}}",
            "{\"messages\":$}",
            "{\"messages\":[{\"body\":\"\",\"headers\":{\"a\":{\"value\":$}}}]}",
            "{\"messages\":[{\"body\":\"\",\"headers\":{\"a\":{\"value\":\"\",\"encoding\":$}}}]}",
            "{\"sends\":[{\"queue\":\"a\",\"message\":{\"body\":\"\",\"headers\":{\"a\":$}}}]}",
            "{\"settles\":[{\"action\":$}]}",
            "{\"settles\":[1,2,3,4,5,6,7,8,9,10,11,$]}",
        ],
        all,
    );
}

#[test]
fn entries_are_counted_and_what_is_wrong_in_one_is_told_by_its_place() {
    let messages = |count: usize, last: &str| {
        let before = "{\"body\":\"x\"},".repeat(count - 1);
        format!("{{\"messages\":[{before}{last}]}}")
    };
    for count in [1, 10, 11, ENTRIES_MAX, ENTRIES_MAX + 1, 10_000] {
        let text = messages(count, "{\"body\":\"last\"}");
        let input: SendMessages<'_> = body(text.as_bytes()).unwrap();
        assert_eq!(input.messages.len(), count);
        let kept = input.messages.into_entries(entry);
        assert_eq!(kept.count(), count.min(ENTRIES_MAX));
    }
    // Both for an entry that is parsed with its list and for one that waits as text.
    let text = messages(3, "{\"body\":7}");
    let problem = body::<SendMessages<'_>>(text.as_bytes()).unwrap_err();
    assert_eq!(
        problem.detail,
        "messages[2].body: invalid type: integer `7`, expected a string"
    );
    let text = messages(12, "{\"body\":7}");
    let input: SendMessages<'_> = body(text.as_bytes()).unwrap();
    let problem = input
        .messages
        .into_entries(entry)
        .nth(11)
        .unwrap()
        .unwrap_err();
    assert_eq!(
        problem.within("messages[11]").detail,
        "messages[11].body: invalid type: integer `7`, expected a string"
    );
}

#[test]
fn no_answer_repeats_a_long_text() {
    for c in ["\u{7f}", "\u{202e}", "ä", "x"] {
        let long = c.repeat(100_000);
        for text in [
            format!("{{\"{long}\":1}}"),
            format!("{{\"name\":\"a\",\"settings\":{{\"level\":\"{long}\"}}}}"),
            format!("{{\"name\":\"a\",\"settings\":{{\"lease_ms\":\"{long}\"}}}}"),
            format!("{{\"name\":\"a\",\"tags\":{{\"{long}\":1}}}}"),
            format!("\"{long}\""),
        ] {
            let problem = body::<CreateQueue>(text.as_bytes()).unwrap_err();
            let written = problem.response().body.len();
            assert!(written < 10_000, "{written} bytes");
        }
    }
}
