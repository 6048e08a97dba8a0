//! The depths of the buffers over time, one below the other.

use std::fmt::Write as _;

use lockgate_producer::sizing::{Report, StageReport, show_seconds};

use super::number;
use crate::svg::{begin, text};

const WIDTH: u64 = 760;
const LEFT: u64 = 60;
/// Where time begins to run, and where it ends.
const RIGHT: u64 = WIDTH - 60;
const TOP: u64 = 60;
const PANEL: u64 = 100;
/// With the words above it.
const SLOT: u64 = PANEL + 50;

/// It reads well on light and on dark pages.
const STYLE: &str = "<style>
  text { fill: #24292f } .depth { fill: #4078c0; fill-opacity: 0.35; stroke: #4078c0 }
  .axis { stroke: #8c959f } .buffer, .end { stroke: #c0392b; stroke-width: 1.5; stroke-dasharray: 4 3 }
  .end { stroke: #8c959f }
  @media (prefers-color-scheme: dark) {
    text { fill: #d0d7de } .depth { fill: #6ca4f8; stroke: #6ca4f8 } .buffer { stroke: #ff7b72 }
  }
</style>
";

pub(super) fn svg(report: &Report) -> String {
    let stages = report.stages.len() as u64;
    let mut svg = begin(WIDTH, TOP + stages * SLOT + 10, STYLE);
    text(&mut svg, LEFT, 24, " font-size=\"16\"", "Records that wait");
    let words = report.verdict.first().map_or("", String::as_str);
    text(&mut svg, LEFT, 44, "", words);
    let points = report.stages.iter().flat_map(|stage| &stage.depths);
    let longest = points.map(|point| point.seconds).fold(0.0, f64::max);
    for (place, stage) in (0..).zip(&report.stages) {
        panel(
            &mut svg,
            TOP + place * SLOT,
            stage,
            longest,
            report.events_end_seconds,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, top: u64, stage: &StageReport, longest: f64, end: f64) {
    let depths = stage.depths.iter().map(|point| point.records);
    let most = depths.fold(0.0, f64::max);
    // A buffer that is much larger would leave nothing to see.
    let buffer = stage.buffer.map(|buffer| buffer as f64);
    let buffer = buffer.filter(|buffer| *buffer <= most * 3.0);
    let scale = most.max(buffer.unwrap_or_default()).max(1.0);
    let bottom = top + 20 + PANEL;
    let x = |seconds: f64| at(LEFT, RIGHT, share(seconds, longest));
    let y = |records: f64| at(bottom, bottom - PANEL, share(records, scale));
    let mut words = format!("{}: at most {} on average", stage.name, number(most));
    if let Some(buffer) = stage.buffer {
        let _ = write!(words, ", room for {buffer} (dashed)");
    }
    text(svg, LEFT, top + 12, "", &words);
    let mut shape = format!("{LEFT},{bottom}");
    for point in &stage.depths {
        let _ = write!(shape, " {:.1},{:.1}", x(point.seconds), y(point.records));
    }
    let _ = writeln!(
        svg,
        "<polygon class=\"depth\" points=\"{shape} {:.1},{bottom}\"/>",
        x(longest)
    );
    line(
        svg,
        "axis",
        [LEFT as f64, bottom as f64, RIGHT as f64, bottom as f64],
    );
    if let Some(buffer) = buffer {
        line(
            svg,
            "buffer",
            [LEFT as f64, y(buffer), RIGHT as f64, y(buffer)],
        );
    }
    if end > 0.0 {
        line(svg, "end", [x(end), y(scale), x(end), bottom as f64]);
    }
    text(svg, LEFT, bottom + 14, "", "0");
    if end > 0.0 {
        let more = format!(" dx=\"{:.1}\" text-anchor=\"middle\"", x(end) - LEFT as f64);
        text(svg, LEFT, bottom + 14, &more, &show_seconds(end));
    }
    text(
        svg,
        RIGHT,
        bottom + 14,
        " text-anchor=\"end\"",
        &show_seconds(longest),
    );
}

fn line(svg: &mut String, class: &str, [x1, y1, x2, y2]: [f64; 4]) {
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn at(from: u64, to: u64, share: f64) -> f64 {
    let (from, to) = (from as f64, to as f64);
    from + (to - from) * share
}
