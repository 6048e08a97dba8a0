//! Draws `docs/curator.svg` from what `lockgate-bench curator --json` prints, and writes the rows of the table beside it.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::Value;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 40.0;
const GAP: f64 = 30.0;

/// The queues in the order of the bars: their name in the figures, what the drawing calls them, and their colour.
const QUEUES: [(&str, &str, &str); 3] = [
    ("lockgate", "Lockgate", "#0072b2"),
    ("adapter", "lockgate-zookeeper", "#e69f00"),
    ("java", "Curator in Java", "#d55e00"),
];

/// The figures of a queue, and what the table and the drawing call them. The last one is only in the table.
const FIGURES: [(&str, &str); 4] = [
    ("put", "puts a second"),
    ("take", "takes a second"),
    ("late_p50", "half are late by, ms"),
    ("late_max", "the latest by, ms"),
];

/// Values by figure, number of others that wait, and queue.
#[derive(Default)]
pub(super) struct Curator(BTreeMap<(String, u64, String), f64>);

impl Curator {
    /// Takes a line of the benchmark; one of another bench is nothing to it.
    pub(super) fn add(&mut self, line: &Value) {
        let mut words = line["bench"].as_str().unwrap_or_default().split('.');
        if let (Some("curator"), Some(queue), Some(figure)) =
            (words.next(), words.next(), words.next())
            && let (Some(pending), Some(value)) =
                (line["params"]["pending"].as_u64(), line["value"].as_f64())
        {
            self.0
                .insert((figure.to_owned(), pending, queue.to_owned()), value);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn value(&self, figure: &str, pending: u64, queue: &str) -> Option<f64> {
        let key = (figure.to_owned(), pending, queue.to_owned());
        self.0.get(&key).copied()
    }

    fn pending(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.0.keys().map(|(_, pending, _)| *pending).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The table, for a document.
    pub(super) fn table(&self) -> String {
        let mut rows = String::from("| queue | others that wait |");
        for (_, name) in FIGURES {
            _ = write!(rows, " {name} |");
        }
        _ = writeln!(rows, "\n|---|{}", "---:|".repeat(1 + FIGURES.len()));
        for (queue, name, _) in QUEUES {
            for number in self.pending() {
                _ = write!(rows, "| {name} | {} |", thousands(number as f64));
                for (figure, _) in FIGURES {
                    let value = self.value(figure, number, queue);
                    _ = write!(rows, " {} |", value.map(thousands).unwrap_or_default());
                }
                rows.push('\n');
            }
        }
        rows
    }

    /// A panel for each figure, in which each number of others that wait has a bar for each queue.
    pub(super) fn draw(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>Puts and takes a second and lateness of three queues, by how many others wait</title>\n\
             <style>text {{ fill: #444 }} line {{ stroke: #bbb }} \
             @media (prefers-color-scheme: dark) {{ text {{ fill: #ccc }} line {{ stroke: #666 }} }}</style>\n"
        );
        // Writing to a string cannot fail.
        let mut put = |text: std::fmt::Arguments<'_>| _ = svg.write_fmt(text);
        for ((_, name, colour), x) in QUEUES.into_iter().zip([GAP, GAP + 100.0, GAP + 260.0]) {
            put(format_args!(
                "<rect x=\"{x}\" y=\"10\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\n\
                 <text x=\"{}\" y=\"20\">{name}</text>\n",
                x + 18.0
            ));
        }
        let pending = self.pending();
        let drawn = &FIGURES[..3];
        let panel = (WIDTH - GAP) / drawn.len() as f64;
        let floor = HEIGHT - BOTTOM;
        for (at, (figure, title)) in drawn.iter().enumerate() {
            let left = GAP + panel * at as f64;
            let right = left + panel - GAP;
            let values = self
                .0
                .iter()
                .filter(|((of, ..), _)| of == figure)
                .map(|(_, value)| *value);
            let most = values.fold(1.0_f64, f64::max);
            put(format_args!(
                "<text x=\"{left:.1}\" y=\"{}\">{title}</text>\n\
                 <line x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{floor}\" y2=\"{floor}\"/>\n",
                TOP - 24.0
            ));
            let group = (right - left) / pending.len().max(1) as f64;
            let bar = (group - 10.0) / QUEUES.len() as f64;
            for (place, number) in pending.iter().enumerate() {
                let start = left + group * place as f64 + 5.0;
                for (queue, (name, _, colour)) in QUEUES.into_iter().enumerate() {
                    let Some(value) = self.value(figure, *number, name) else {
                        continue;
                    };
                    let height = value / most * (floor - TOP);
                    let x = start + bar * queue as f64;
                    put(format_args!(
                        "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>\n\
                         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">{}</text>\n",
                        floor - height,
                        bar - 2.0,
                        x + bar / 2.0 - 1.0,
                        floor - height - 4.0,
                        thousands(value)
                    ));
                }
                put(format_args!(
                    "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                    start + (group - 10.0) / 2.0,
                    floor + 16.0,
                    thousands(*number as f64)
                ));
            }
        }
        put(format_args!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">others that wait in the queue</text>\n</svg>\n",
            WIDTH / 2.0,
            HEIGHT - 6.0
        ));
        svg
    }
}

/// Rounded to three digits from 1,000 on, with commas.
fn thousands(value: f64) -> String {
    let step = 10_f64.powf((value.max(1.0).log10().floor() - 2.0).max(0.0));
    let digits = format!("{:.0}", (value / step).round() * step);
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
