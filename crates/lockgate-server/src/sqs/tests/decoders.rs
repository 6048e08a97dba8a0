//! The decoders of both protocols alone: no input costs much stack, and an input that is too long
//! is refused by its length.

use serde::Deserialize;

use crate::{
    few::ENTRIES_MAX,
    small_stack::{read_nested, with_a_small_stack},
    sqs::{
        aws_json,
        dispatch::{Action, read_entry},
        error::{ErrorCode, SqsError},
        query,
        shapes::{
            CreateQueueInput, GetQueueAttributesInput, ReceiveMessageInput, SendMessageBatchInput,
            SendMessageInput, SettleBatchInput, TagQueueInput,
        },
    },
};

fn form<'f, T: Deserialize<'f>>(action: Action, form: &'f str) -> Result<T, SqsError> {
    query::read(action, [form.as_bytes(), b""], None)
}

#[test]
fn a_name_as_deep_as_a_form_is_long_costs_no_stack() {
    with_a_small_stack(|| {
        for part in [
            "SendMessageBatchRequestEntry.1.",
            "DeleteMessageBatchRequestEntry.1.",
            "MessageAttribute.1.Value.",
            "Attribute.1.",
            "1.",
            ".",
            "SendMessageBatchRequestEntry%2E1%2e",
        ] {
            for end in ["Id=a", "Id", "=", "1=%41", ""] {
                let deep = part.repeat(100_000) + end;
                let twice = format!("SendMessageBatchRequestEntry.1.{deep}&{deep}");
                for text in [&deep, &twice] {
                    let batch: SendMessageBatchInput<'_> =
                        form(Action::SendMessageBatch, text).unwrap();
                    let entries = batch.entries.unwrap_or_default();
                    assert!(entries.len() <= 2, "{text:.100}");
                    for entry in entries.into_entries(read_entry) {
                        let _ = entry.unwrap();
                    }
                    let _: SendMessageInput<'_> = form(Action::ListQueues, text).unwrap();
                }
            }
        }
    });
}

#[test]
fn json_as_deep_as_a_body_is_long_costs_no_stack() {
    fn all(body: &str) {
        let body = body.as_bytes();
        let _ = aws_json::read::<CreateQueueInput<'_>>(body);
        let _ = aws_json::read::<GetQueueAttributesInput<'_>>(body);
        let _ = aws_json::read::<ReceiveMessageInput<'_>>(body);
        let _ = aws_json::read::<SendMessageInput<'_>>(body);
        let _ = aws_json::read::<SettleBatchInput<'_>>(body);
        if let Ok(batch) = aws_json::read::<SendMessageBatchInput<'_>>(body) {
            let entries = batch.entries.unwrap_or_default();
            entries.into_entries(read_entry).for_each(drop);
        }
    }
    read_nested(
        &[
            ("[", "]"),
            ("{\"a\":", "}"),
            ("[{\"Entries\":", "}]"),
            ("{\"MessageAttributes\":", "}"),
            ("{\"Entries\":[{\"MessageAttributes\":", "}]}"),
            ("{\"a\":{\"StringListValues\":[", "]}}"),
        ],
        &[
            "{\"unknown\":$}",
            "{\"QueueUrl\":$}",
            "{\"Entries\":$}",
            "{\"Entries\":[{\"Id\":$}]}",
            "{\"Entries\":[{},{},{},{},{},{},{},{},{},{},$]}",
            "{\"Entries\":[{\"MessageAttributes\":{\"a\":$}}]}",
            "{\"MessageAttributes\":{\"a\":{\"DataType\":$}}}",
            "{\"AttributeNames\":$}",
            "{\"Attributes\":$}",
            "{\"DelaySeconds\":$}",
        ],
        all,
    );
}

#[test]
fn a_batch_is_counted_in_both_protocols_and_kept_as_far_as_any_queue_takes_it() {
    for count in [1, 9, 10, 11, 99, ENTRIES_MAX, ENTRIES_MAX + 1, 20_000] {
        let entry = |number: usize| {
            format!(
                "SendMessageBatchRequestEntry.{number}.Id=i{number}\
                 &SendMessageBatchRequestEntry.{number}.MessageBody=%41+{number}\
                 &SendMessageBatchRequestEntry.{number}.MessageAttribute.1.Name=n\
                 &SendMessageBatchRequestEntry.{number}.MessageAttribute.1.Value.StringValue=v"
            )
        };
        // In reverse: the entries' numbers define their order.
        let text: Vec<String> = (1..=count).rev().map(entry).collect();
        let text = text.join("&");
        let in_form: SendMessageBatchInput<'_> = form(Action::SendMessageBatch, &text).unwrap();
        let entry = |number: usize| {
            format!(
                "{{\"Id\":\"i{number}\",\"MessageBody\":\"\\u0041 {number}\",\"MessageAttributes\":\
                 {{\"n\":{{\"StringValue\":\"v\"}}}}}}"
            )
        };
        let text: Vec<String> = (1..=count).map(entry).collect();
        let text = format!("{{\"Entries\":[{}]}}", text.join(","));
        let in_json: SendMessageBatchInput<'_> = aws_json::read(text.as_bytes()).unwrap();
        for batch in [in_form, in_json] {
            let entries = batch.entries.unwrap();
            assert_eq!(entries.len(), count);
            let mut number = 0;
            for entry in entries.into_entries(read_entry) {
                number += 1;
                let entry = entry.unwrap();
                assert_eq!(&**entry.0.id.as_ref().unwrap(), format!("i{number}"));
                assert_eq!(
                    &**entry.0.message_body.as_ref().unwrap(),
                    format!("A {number}")
                );
                assert_eq!(entry.0.message_attributes.unwrap().into_iter().count(), 1);
            }
            assert_eq!(number, count.min(ENTRIES_MAX));
        }
    }
}

#[test]
fn lists_and_maps_that_no_request_needs_are_refused_by_their_length() {
    let numbered = |name: &str, count: usize| -> String {
        (1..=count).map(|n| format!("&{name}.{n}=x{n}")).collect()
    };
    let names = |count| numbered("AttributeName", count);
    form::<GetQueueAttributesInput<'_>>(Action::GetQueueAttributes, &names(500)).unwrap();
    let refused = [
        form::<GetQueueAttributesInput<'_>>(Action::GetQueueAttributes, &names(501)).unwrap_err(),
        form::<TagQueueInput<'_>>(Action::TagQueue, &numbered("Tag", 501)).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.code, ErrorCode::InvalidParameterValue);
        assert!(
            error.message.ends_with("may have at most 500 entries."),
            "{error}"
        );
    }
    // The same number again is the same entry.
    let again = "AttributeName.1=x&".repeat(10_000);
    let input: GetQueueAttributesInput<'_> = form(Action::GetQueueAttributes, &again).unwrap();
    assert_eq!(input.attribute_names.unwrap().len(), 1);

    let list = |count: usize| {
        format!(
            "{{\"AttributeNames\":[{}\"x\"]}}",
            "\"x\",".repeat(count - 1)
        )
    };
    aws_json::read::<GetQueueAttributesInput<'_>>(list(500).as_bytes()).unwrap();
    let long = list(501);
    let error = aws_json::read::<GetQueueAttributesInput<'_>>(long.as_bytes()).unwrap_err();
    assert_eq!(error.code, ErrorCode::Serialization);
    assert!(
        error
            .message
            .contains("a list may have at most 500 entries"),
        "{error}"
    );
    let map: Vec<String> = (0..501).map(|n| format!("\"{n}\":\"\"")).collect();
    let map = format!("{{\"Tags\":{{{}}}}}", map.join(","));
    let error = aws_json::read::<TagQueueInput<'_>>(map.as_bytes()).unwrap_err();
    assert!(
        error.message.contains("a map may have at most 500 entries"),
        "{error}"
    );
}

#[test]
fn an_error_does_not_repeat_a_long_text_in_either_protocol() {
    for c in ["\u{7f}", "\u{202e}", "ä", "x"] {
        let long = c.repeat(100_000);
        for place in ["DelaySeconds", "MessageAttributes", "Nothing"] {
            let body = format!("{{\"{place}\":\"{long}\"}}");
            if let Err(error) = aws_json::read::<SendMessageInput<'_>>(body.as_bytes()) {
                assert!(error.message.len() < 10_000, "{}", error.message.len());
            }
        }
        for body in [
            format!("\"{long}\""),
            format!("{{\"Entries\":\"{long}\"}}"),
            format!("{{\"Entries\":[\"{long}\"]}}"),
        ] {
            let error = aws_json::read::<SendMessageBatchInput<'_>>(body.as_bytes()).unwrap_err();
            assert!(error.message.len() < 10_000, "{}", error.message.len());
        }
        let text = format!("DelaySeconds={long}");
        let error = form::<SendMessageInput<'_>>(Action::SendMessage, &text).unwrap_err();
        assert!(error.message.len() < 2_000, "{}", error.message.len());
    }
}
