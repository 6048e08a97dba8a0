//! Bodies of messages, as people read them.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use maud::{Markup, html};
use serde::de::IgnoredAny;

use crate::value::grouped;

/// Characters of a body that are shown.
const SHOWN_MAX: usize = 8192;
/// Bytes of a body that are shown in hex.
const HEX_MAX: usize = 512;
/// Characters of a text in a line.
const LINE_MAX: usize = 300;

pub(crate) fn show(body: &str, is_base64: bool) -> Markup {
    if is_base64 {
        let bytes = BASE64_STANDARD.decode(body).unwrap_or_default();
        return html! { p { "No text:" } (hex(&bytes)) };
    }
    let json = (body.len() <= SHOWN_MAX && serde_json::from_str::<IgnoredAny>(body).is_ok())
        .then(|| indented(body));
    let shown: String = body.chars().take(SHOWN_MAX).collect();
    html! {
        pre { (json.as_deref().unwrap_or(&shown)) }
        @if shown.len() < body.len() { p { "Only the beginning of " (grouped(body.len() as u64)) " bytes is shown." } }
        details { summary { "As bytes" } (hex(body.as_bytes())) }
    }
}

/// A text for a line: a long one is cut, and shows it.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(LINE_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn hex(bytes: &[u8]) -> Markup {
    let shown = &bytes[..bytes.len().min(HEX_MAX)];
    let line = |line: &[u8]| {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let is_shown = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        let text = line.iter().map(|&byte| {
            if is_shown(byte) {
                char::from(byte)
            } else {
                '.'
            }
        });
        format!("{:<47}  {}\n", hex.join(" "), text.collect::<String>())
    };
    html! {
        pre { @for part in shown.chunks(16) { (line(part)) } }
        @if shown.len() < bytes.len() { p { "Only the first " (HEX_MAX) " of " (grouped(bytes.len() as u64)) " bytes." } }
    }
}

/// JSON in lines. Numbers, names and their order stay as they were sent, which a parsed value would not keep.
fn indented(json: &str) -> String {
    let mut lines = String::new();
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    let mut chars = json.chars().peekable();
    while let Some(char) = chars.next() {
        if in_text {
            lines.push(char);
            in_text = escaped || char != '"';
            escaped = !escaped && char == '\\';
            continue;
        }
        let line = |lines: &mut String, depth: usize| {
            lines.push('\n');
            lines.extend(std::iter::repeat_n("  ", depth));
        };
        match char {
            '{' | '[' => {
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                lines.push(char);
                if let Some(end) = chars.next_if(|next| matches!(next, '}' | ']')) {
                    lines.push(end);
                    continue;
                }
                depth += 1;
                line(&mut lines, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut lines, depth);
                lines.push(char);
            }
            ',' => {
                lines.push(char);
                line(&mut lines, depth);
            }
            ':' => lines.push_str(": "),
            _ if char.is_ascii_whitespace() => {}
            _ => {
                in_text = char == '"';
                lines.push(char);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_shown_in_lines_and_nothing_of_it_changes() {
        let json = r#"{"b":[1, 12345678901234567890123,{}],"a":"x\",{\\"}"#;
        let lines = "{\n  \"b\": [\n    1,\n    12345678901234567890123,\n    {}\n  ],\n  \"a\": \"x\\\",{\\\\\"\n}";
        assert_eq!(indented(json), lines);
    }

    #[test]
    fn a_body_is_escaped_and_a_long_one_is_cut_and_says_so() {
        let page = show("<script>alert(1)</script>", false).into_string();
        assert!(
            page.contains("&lt;script&gt;") && !page.contains("<script"),
            "{page}"
        );
        let page = show(&"é".repeat(100_000), false).into_string();
        assert!(page.len() < 40_000, "{}", page.len());
        assert!(page.contains("Only the beginning of 200,000 bytes"));
        let page = show("AAEC/w==", true).into_string();
        assert!(page.contains("00 01 02 ff"), "{page}");
    }
}
