//! Makes text from outside fit for a log line or an error message.

use std::fmt::{self, Write};

/// Shows text from outside on one line: escapes control characters and line separators, and cuts a
/// long text off. All such text in events and messages goes through this.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printable<'a>(pub(crate) &'a str);

/// How many characters are shown before the text is cut off.
const SHOWN_MAX: usize = 200;

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shown, c) in self.0.chars().enumerate() {
            if shown == SHOWN_MAX {
                return f.write_char('…');
            }
            if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
                write!(f, "{}", c.escape_unicode())?;
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_on_its_line_and_short() {
        let line = Printable("a\n{\"level\":\"INFO\"}\x1b[31m\u{2028}ü").to_string();
        assert_eq!(line, "a\\u{a}{\"level\":\"INFO\"}\\u{1b}[31m\\u{2028}ü");
        let long = "x".repeat(10_000);
        assert_eq!(Printable(&long).to_string().chars().count(), 201);
    }
}
