//! The part of JSON Schema that the description of the API uses. Stricter in one point: a field
//! that a schema does not name is an error.

use std::collections::BTreeSet;

use serde_json::Value;

/// Everything about `value` that `schema` does not allow.
pub(super) fn problems(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    let known = check(document, schema, value, "", &mut problems);
    unknown_fields(value, &known, "", &mut problems);
    problems
}

/// The schema that a reference names.
pub(super) fn resolve<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match schema["$ref"].as_str() {
        Some(path) => document
            .pointer(path.trim_start_matches('#'))
            .unwrap_or_else(|| panic!("{path} is not in the document")),
        None => schema,
    }
}

/// Checks a value, and returns the names of the fields it may have; `None`: any.
fn check(
    document: &Value,
    schema: &Value,
    value: &Value,
    at: &str,
    problems: &mut Vec<String>,
) -> Option<BTreeSet<String>> {
    let mut known = BTreeSet::new();
    let mut open = false;
    let mut include = |more: Option<BTreeSet<String>>| match more {
        Some(more) => known.extend(more),
        None => open = true,
    };
    if schema.get("$ref").is_some() {
        include(check(
            document,
            resolve(document, schema),
            value,
            at,
            problems,
        ));
    }
    for alternatives in ["oneOf", "anyOf"] {
        let Some(alternatives) = schema[alternatives].as_array() else {
            continue;
        };
        let fitting = alternatives.iter().find_map(|alternative| {
            let mut wrong = Vec::new();
            let known = check(document, alternative, value, at, &mut wrong);
            wrong.is_empty().then_some(known)
        });
        match fitting {
            Some(known) => include(known),
            None => problems.push(format!("{at}: {value} fits no alternative")),
        }
    }
    check_type(schema, value, at, problems);
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        problems.push(format!("{at}: {value} is none of {allowed:?}"));
    }
    if let Some(constant) = schema.get("const")
        && constant != value
    {
        problems.push(format!("{at}: {value} is not {constant}"));
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        for (index, value) in values.iter().enumerate() {
            let at = format!("{at}[{index}]");
            let known = check(document, items, value, &at, problems);
            unknown_fields(value, &known, &at, problems);
        }
    }
    let Some(fields) = value.as_object() else {
        return Some(known);
    };
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, schema) in properties {
            known.insert(name.clone());
            if let Some(value) = fields.get(name) {
                let at = format!("{at}.{name}");
                let known = check(document, schema, value, &at, problems);
                unknown_fields(value, &known, &at, problems);
            }
        }
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(required.as_str().unwrap()) {
            problems.push(format!("{at}: {required} is missing"));
        }
    }
    if let Some(others) = schema.get("additionalProperties").filter(|s| s.is_object()) {
        open = true;
        for (name, value) in fields {
            if !known.contains(name) {
                check(document, others, value, &format!("{at}.{name}"), problems);
            }
        }
    }
    (!open).then_some(known)
}

fn check_type(schema: &Value, value: &Value, at: &str, problems: &mut Vec<String>) {
    let fits = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("{at}: unknown type {other}"),
    };
    let fits = match &schema["type"] {
        Value::String(kind) => fits(kind),
        Value::Array(kinds) => kinds.iter().any(|kind| fits(kind.as_str().unwrap())),
        _ => true,
    };
    if !fits {
        problems.push(format!("{at}: {value} is no {}", schema["type"]));
    }
}

fn unknown_fields(
    value: &Value,
    known: &Option<BTreeSet<String>>,
    at: &str,
    problems: &mut Vec<String>,
) {
    let (Some(fields), Some(known)) = (value.as_object(), known) else {
        return;
    };
    for name in fields.keys().filter(|name| !known.contains(*name)) {
        problems.push(format!("{at}: {name} is not in the schema"));
    }
}

#[test]
fn what_a_schema_does_not_allow_is_found() {
    let document = serde_json::json!({"schemas": {
        "Word": {"type": "string", "enum": ["a", "b"]},
        "Thing": {
            "type": "object",
            "properties": {"word": {"$ref": "#/schemas/Word"}, "n": {"type": ["integer", "null"]}},
            "required": ["word"],
        },
    }});
    let schema = serde_json::json!({"type": "array", "items": {"$ref": "#/schemas/Thing"}});
    for (value, problem) in [
        (serde_json::json!([{"word": "a", "n": null}]), None),
        (serde_json::json!([{"word": "c"}]), Some("[0].word")),
        (serde_json::json!([{"word": "a", "n": "x"}]), Some("[0].n")),
        (serde_json::json!([{}]), Some("\"word\" is missing")),
        (
            serde_json::json!([{"word": "a", "x": 1}]),
            Some("x is not in"),
        ),
        (serde_json::json!({}), Some("is no")),
    ] {
        let found = problems(&document, &schema, &value);
        assert_eq!(found.is_empty(), problem.is_none(), "{value}: {found:?}");
        if let Some(problem) = problem {
            assert!(found[0].contains(problem), "{found:?}");
        }
    }
}
