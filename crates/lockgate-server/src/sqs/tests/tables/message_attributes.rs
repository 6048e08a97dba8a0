//! Which attributes a message may have.

use serde_json::{Map, Value, json};

use super::{
    Row,
    codes::{INVALID, SERIALIZATION, UNSUPPORTED},
    row, url,
};

/// The text for a character outside the allowed set.
pub(super) fn forbidden(character: &str, place: &str) -> String {
    format!(
        "Invalid binary character '#x{character}' was found in the {place}, the set of allowed \
         characters is #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
    )
}

fn text(value: &str) -> Value {
    json!({"DataType": "String", "StringValue": value})
}

/// Rows about the attributes of a message for `q`, for each action that sends it.
pub(super) fn rows(sends: &dyn Fn(Row, Value) -> Row) -> Vec<Row> {
    let mut rows = right(sends);
    rows.extend(wrong_names(sends));
    rows.extend(wrong_types_and_values(sends));
    rows
}

fn right(sends: &dyn Fn(Row, Value) -> Row) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut comes_back = |what: &str, attributes: Value, digest: Option<&str>| {
        let digest = json!(digest.unwrap_or("*"));
        let input = json!({"QueueUrl": url("q"), "MessageAttributeNames": ["All"]});
        rows.push(
            sends(row(what), attributes.clone())
                .answers(json!({"MD5OfMessageAttributes": digest}))
                .then(
                    "ReceiveMessage",
                    input,
                    json!({"Messages": [{"MessageAttributes": attributes,
                        "MD5OfMessageAttributes": digest}]}),
                ),
        );
    };
    // Digests by another implementation of AWS's definition.
    for (what, attribute, digest) in [
        ("a String", text("x"), "a512aac9938034acb0b3c3d965944bf1"),
        (
            "a Number",
            json!({"DataType": "Number", "StringValue": "1"}),
            "8e98c0849f1a47652424907534f26ca0",
        ),
        (
            "a Binary",
            json!({"DataType": "Binary", "BinaryValue": "AAH/"}),
            "30a31f9d651d461af91748f3f17e80fd",
        ),
        (
            "a String with a label",
            json!({"DataType": "String.uuid", "StringValue": "x"}),
            "b2206a272d13739f2c7f1ed556456464",
        ),
        (
            "a Number with a label",
            json!({"DataType": "Number.int", "StringValue": "42"}),
            "58463be07be8ca02f32733ac81c0e665",
        ),
        (
            "a Binary with a label",
            json!({"DataType": "Binary.png", "BinaryValue": "AAE="}),
            "bc1e8c1a55716b06e881276b6dce67c9",
        ),
    ] {
        comes_back(what, json!({"a": attribute}), Some(digest));
    }
    comes_back(
        "three, sorted by their names' bytes",
        json!({"b": {"DataType": "Number", "StringValue": "1"}, "a": text("größer"),
            "B": {"DataType": "Binary", "BinaryValue": "AA=="}}),
        Some("5b966d3b0f505dd2e8d8909f78c46031"),
    );
    let ten: Map<_, _> = (0..10).map(|n| (format!("a{n}"), text("x"))).collect();
    comes_back("ten attributes", Value::Object(ten), None);
    let longest = "n".repeat(256);
    for name in [
        "a",
        "-_.azAZ09".trim_matches('.'),
        "a.b",
        "Awsome",
        "amazon",
        &longest,
    ] {
        comes_back(&format!("the name {name}"), json!({name: text("x")}), None);
    }
    for number in [
        "0",
        "-1.5",
        "+7",
        "1e3",
        ".5",
        "123456789012345678901234567890",
    ] {
        let attribute = json!({"DataType": "Number", "StringValue": number});
        comes_back(
            &format!("the number {number}"),
            json!({"a": attribute}),
            None,
        );
    }
    let label = format!("String.{}", "x".repeat(249));
    for (what, attribute) in [
        ("a value of a space", text(" ")),
        ("a value of markup and breaks", text("<a>&\r\n\t\u{1f600}")),
        (
            "the longest label",
            json!({"DataType": label, "StringValue": "x"}),
        ),
        (
            "a label of several parts",
            json!({"DataType": "String.a.b-c_d", "StringValue": "x"}),
        ),
    ] {
        comes_back(what, json!({"a": attribute}), None);
    }
    rows
}

fn wrong_names(sends: &dyn Fn(Row, Value) -> Row) -> Vec<Row> {
    let mut rows = Vec::new();
    let too_long = "n".repeat(257);
    rows.extend([
        sends(row("an empty name"), json!({"": text("x")})).refused(
            &INVALID,
            "The request must contain non-empty message attribute name.",
        ),
        sends(
            row("a name of 257 characters"),
            json!({too_long: text("x")}),
        )
        .refused(
            &INVALID,
            "Message (user) attribute names must be between 1 and 256 bytes long.",
        ),
    ]);
    for name in ["a b", "a/b", "a!", "a\u{1f600}", "a\"", "$"] {
        rows.push(
            sends(row(format!("the name {name:?}")), json!({name: text("x")})).refused(
                &INVALID,
                format!(
                    "The message attribute name '{name}' is invalid. Attribute name can contain \
                     A-Z, a-z, 0-9, underscore (_), hyphen (-), and period (.) characters."
                ),
            ),
        );
    }
    for name in [
        "AWS.x", "aws.x", "Amazon.x", "aMaZoN.x", ".a", "a.", "a..b", ".",
    ] {
        rows.push(
            sends(row(format!("the name {name:?}")), json!({name: text("x")})).refused(
                &INVALID,
                "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These \
                 strings are reserved for internal use. Additionally, they cannot start or end \
                 with '.' or contain '..'.",
            ),
        );
    }
    let eleven: Map<_, _> = (0..11).map(|n| (format!("a{n}"), text("x"))).collect();
    rows.push(
        sends(row("eleven attributes"), Value::Object(eleven)).refused(
            &INVALID,
            "Number of message attributes [11] exceeds the allowed maximum [10].",
        ),
    );
    rows
}

fn wrong_types_and_values(sends: &dyn Fn(Row, Value) -> Row) -> Vec<Row> {
    let no_type = "The message attribute 'a' must contain non-empty message attribute type.";
    let prefix = "The message attribute 'a' has an invalid message attribute type, the set of \
        supported type prefixes is Binary, Number, and String.";
    let characters = "The type of message (user) attribute 'a' is invalid. You must use only the \
        following supported type prefixes: Binary, Number, String.";
    let lists = "Message attribute list values in SendMessage operation are not supported.";
    let length = "Message (user) attribute types must be between 1 and 256 bytes long.";
    let empty = |kind: &str| {
        format!("Message (user) attribute 'a' must contain a non-empty value of type '{kind}'.")
    };
    let number = "Can't cast the value of message (user) attribute 'a' to a number.".to_owned();
    let too_long = format!("String.{}", "x".repeat(250));
    let typed = |kind: &str| json!({"DataType": kind, "StringValue": "x"});
    let mut rows = Vec::new();
    for (what, attribute, message) in [
        ("no type", json!({"StringValue": "x"}), no_type.to_owned()),
        ("an empty type", typed(""), no_type.to_owned()),
        ("the type Str", typed("Str"), prefix.to_owned()),
        ("the type string", typed("string"), prefix.to_owned()),
        ("the type Strings", typed("Strings"), prefix.to_owned()),
        ("the type .String", typed(".String"), prefix.to_owned()),
        (
            "a label with a space",
            typed("String.a b"),
            characters.to_owned(),
        ),
        (
            "a label with an umlaut",
            typed("String.ä"),
            characters.to_owned(),
        ),
        (
            "a label that is too long",
            typed(&too_long),
            length.to_owned(),
        ),
        (
            "a String without a value",
            json!({"DataType": "String"}),
            empty("String"),
        ),
        (
            "a Number without a value",
            json!({"DataType": "Number"}),
            empty("Number"),
        ),
        (
            "a Binary without a value",
            json!({"DataType": "Binary"}),
            empty("Binary"),
        ),
        ("a String with an empty value", text(""), empty("String")),
        (
            "a Number with an empty value",
            json!({"DataType": "Number", "StringValue": ""}),
            empty("Number"),
        ),
        (
            "a Binary with an empty value",
            json!({"DataType": "Binary.png", "BinaryValue": ""}),
            empty("Binary"),
        ),
        (
            "a String of bytes",
            json!({"DataType": "String", "BinaryValue": "AAE="}),
            empty("String"),
        ),
        (
            "a Binary of text",
            json!({"DataType": "Binary", "StringValue": "x"}),
            empty("Binary"),
        ),
        (
            "a String with a forbidden character",
            text("a\u{8}"),
            forbidden("8", "message attribute value"),
        ),
        ("a word for a Number", typed("Number"), number.clone()),
        (
            "a number with a letter",
            json!({"DataType": "Number", "StringValue": "149314735990a"}),
            number.clone(),
        ),
        (
            "infinity for a Number",
            json!({"DataType": "Number", "StringValue": "inf"}),
            number.clone(),
        ),
        (
            "a Number with a space",
            json!({"DataType": "Number.int", "StringValue": "1 "}),
            number,
        ),
    ] {
        rows.push(sends(row(what), json!({"a": attribute})).refused(&INVALID, message));
    }
    rows.extend([
        sends(
            row("a Binary that is no base64"),
            json!({"a": {"DataType": "Binary", "BinaryValue": "%"}}),
        )
        .refused(
            &SERIALIZATION,
            "The binary value of attribute 'a' is no base64: Invalid symbol 37, offset 0.",
        ),
        sends(
            row("a list of texts"),
            json!({"a": {"DataType": "String", "StringListValues": ["x", "y"]}}),
        )
        .refused(&UNSUPPORTED, lists),
        sends(
            row("a list of bytes beside a value"),
            json!({"a": {"DataType": "Binary", "BinaryValue": "AA==", "BinaryListValues": ["AA=="]}}),
        )
        .refused(&UNSUPPORTED, lists),
        sends(row("an empty list of texts"), json!({"a": {"DataType": "String", "StringValue": "x",
            "StringListValues": []}}))
            .answers(json!({"MD5OfMessageAttributes": "a512aac9938034acb0b3c3d965944bf1"})),
        sends(row("nothing at all"), json!({"a": {}}))
            .refused(
                &INVALID,
                "The message attribute 'a' must contain non-empty message attribute value.",
            )
            .in_json_only(),
        sends(row("an attribute that is a text"), json!({"a": "x"}))
            .refused(
                &SERIALIZATION,
                "invalid type: string \"x\", expected an object at line 1 column 29",
            )
            .in_json_only(),
        sends(
            row("one that is wrong among others"),
            json!({"a": text(""), "b": text("x")}),
        )
        .refused(&INVALID, empty("String")),
    ]);
    rows
}
