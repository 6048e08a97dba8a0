//! Writes the Prometheus text format, version 0.0.4.

use std::fmt::{Display, Write};

/// The media type of the format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of metrics under construction.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    text: String,
}

/// A metric under construction.
#[derive(Debug)]
pub(crate) struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Exposition {
    /// A value that only grows; its name ends in `_total`.
    pub(crate) fn counter<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        debug_assert!(name.ends_with("_total"), "{name}");
        self.family(name, "counter", help)
    }

    /// A value that goes up and down.
    pub(crate) fn gauge<'a>(&'a mut self, name: &'a str, help: &str) -> Family<'a> {
        debug_assert!(!name.ends_with("_total"), "{name}");
        self.family(name, "gauge", help)
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn family<'a>(&'a mut self, name: &'a str, kind: &str, help: &str) -> Family<'a> {
        let text = &mut self.text;
        // These are constants that need no escaping. Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text, name }
    }
}

impl Family<'_> {
    pub(crate) fn value(mut self, value: impl Display) {
        self.sample(&[], value);
    }

    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.text.push_str(self.name);
        for (at, (name, value)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_as_prometheus_reads_it() {
        let mut page = Exposition::default();
        page.gauge("a_bytes", "Bytes.").value(1.5);
        page.counter("b_total", "Things.")
            .sample(&[("x", "1"), ("y", "a\"b\\c\nd")], 2)
            .sample(&[("x", "2")], 3);
        assert_eq!(
            page.finish(),
            "# HELP a_bytes Bytes.\n\
             # TYPE a_bytes gauge\n\
             a_bytes 1.5\n\
             # HELP b_total Things.\n\
             # TYPE b_total counter\n\
             b_total{x=\"1\",y=\"a\\\"b\\\\c\\nd\"} 2\n\
             b_total{x=\"2\"} 3\n"
        );
    }
}
