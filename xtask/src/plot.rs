//! Draws `docs/delays.svg` from what `lockgate-bench delay --json` prints, and `docs/curator.svg` from `lockgate-bench curator --json`.

mod curator;

use std::{collections::BTreeMap, fmt::Write as _, fs, io};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::workspace::Workspace;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 44.0;

/// The figures that are drawn, with the name and colour of the line.
const LINES: [(&str, &str, &str); 3] = [
    ("delay.late_p50", "half", "#0072b2"),
    ("delay.late_p99", "99 of 100", "#e69f00"),
    ("delay.late_max", "the latest", "#d55e00"),
];

/// Reads lines of JSON from standard input, and writes the drawings of what is in them.
pub(crate) fn run() -> Result<()> {
    let text = io::read_to_string(io::stdin()).context("reading standard input")?;
    let mut lines: BTreeMap<&str, BTreeMap<u64, f64>> = BTreeMap::new();
    let mut curator = curator::Curator::default();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let line: Value = serde_json::from_str(line).context("a line is no JSON")?;
        curator.add(&line);
        let figure = LINES.iter().find(|(figure, ..)| line["bench"] == *figure);
        let pending = line["params"]["pending"].as_u64();
        if let (Some((figure, ..)), Some(pending), Some(late)) =
            (figure, pending, line["value"].as_f64())
        {
            lines.entry(figure).or_default().insert(pending, late);
        }
    }
    ensure!(
        !lines.is_empty() || !curator.is_empty(),
        "no line has a lateness: give it what `lockgate-bench delay --json` or `lockgate-bench curator --json` prints"
    );
    let write = |file: &str, drawing: String| {
        let file = Workspace::root().join(file);
        fs::write(&file, drawing).with_context(|| format!("writing {}", file.display()))
    };
    if !curator.is_empty() {
        write("docs/curator.svg", curator.draw())?;
        print!("{}", curator.table());
    }
    if !lines.is_empty() {
        write("docs/delays.svg", draw(&lines))?;
    }
    Ok(())
}

fn draw(lines: &BTreeMap<&str, BTreeMap<u64, f64>>) -> String {
    let pending = lines.values().flat_map(BTreeMap::keys);
    let (first, last) = (pending.clone().min(), pending.max());
    let decade = |number: u64| (number.max(1) as f64).log10();
    let (first, last) = (
        first.map_or(0.0, |it| decade(*it)),
        last.map_or(1.0, |it| decade(*it)),
    );
    let top = lines
        .values()
        .flat_map(BTreeMap::values)
        .fold(1.0_f64, |a, b| a.max(*b));
    let top = (top / 5.0).ceil() * 5.0;
    let x = |number: u64| {
        LEFT + (decade(number) - first) / (last - first).max(1e-9) * (WIDTH - LEFT - RIGHT)
    };
    let y = |late: f64| HEIGHT - BOTTOM - late / top * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>How late delayed messages are received, by how many wait</title>\n\
         <style>text {{ fill: #444 }} line {{ stroke: #bbb }} \
         @media (prefers-color-scheme: dark) {{ text {{ fill: #ccc }} line {{ stroke: #666 }} }}</style>\n\
         <text x=\"{LEFT}\" y=\"18\">milliseconds from the due time to the receive</text>\n"
    );
    // Writing to a string cannot fail.
    let mut put = |text: std::fmt::Arguments<'_>| _ = svg.write_fmt(text);
    for step in 0..=5 {
        let late = top * f64::from(step) / 5.0;
        let at = y(late);
        put(format_args!(
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{late}</text>\n",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0
        ));
    }
    for (figure, name, colour) in LINES {
        let Some(points) = lines.get(figure) else {
            continue;
        };
        let places: Vec<String> = points
            .iter()
            .map(|(pending, late)| format!("{:.1},{:.1}", x(*pending), y(*late)))
            .collect();
        put(format_args!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>\n",
            places.join(" ")
        ));
        for (pending, late) in points {
            let (at, height) = (x(*pending), y(*late));
            put(format_args!(
                "<circle cx=\"{at:.1}\" cy=\"{height:.1}\" r=\"3\" fill=\"{colour}\"/>\n"
            ));
        }
        if let Some((_, late)) = points.last_key_value() {
            put(format_args!(
                "<text x=\"{}\" y=\"{:.1}\">{name}</text>\n",
                WIDTH - RIGHT + 10.0,
                y(*late) + 4.0
            ));
        }
    }
    let all: std::collections::BTreeSet<u64> =
        lines.values().flat_map(BTreeMap::keys).copied().collect();
    for pending in all {
        put(format_args!(
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{pending}</text>\n",
            x(pending),
            HEIGHT - BOTTOM + 18.0
        ));
    }
    put(format_args!(
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">messages that wait, over a year</text>\n</svg>\n",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0
    ));
    svg
}
