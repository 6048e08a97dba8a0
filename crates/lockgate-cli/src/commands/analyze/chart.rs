//! A histogram over powers of two, as SVG.

use std::fmt::Write as _;

use crate::svg::{begin, text};

const WIDTH: u64 = 760;
const LEFT: u64 = 60;
const TOP: u64 = 70;
const BARS_HEIGHT: u64 = 240;
const BOTTOM: u64 = TOP + BARS_HEIGHT;
const HEIGHT: u64 = BOTTOM + 70;
/// The most that a bar takes with the gap beside it, and that gap.
const SLOT_MAX: u64 = 60;
const GAP: u64 = 6;

/// It reads well on light and on dark pages.
const STYLE: &str = "<style>
  text { fill: #24292f } .bar { fill: #4078c0 }
  .border { stroke: #c0392b; stroke-width: 1.5; stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #d0d7de } .bar { fill: #6ca4f8 } .border { stroke: #ff7b72 }
  }
</style>
";

pub(super) struct Chart {
    pub(super) title: String,
    pub(super) about: String,
    /// Names and values. The first is for 1, and each next one from the next power of two on.
    pub(super) bars: Vec<(String, u64)>,
    /// A line is drawn behind this number.
    pub(super) border: u64,
    pub(super) border_name: String,
}

pub(super) fn svg(chart: &Chart) -> String {
    let most = chart.bars.iter().map(|(_, value)| *value).max();
    let most = u128::from(most.unwrap_or_default().max(1));
    let slot = ((WIDTH - LEFT) / (chart.bars.len() as u64).max(1)).min(SLOT_MAX);
    let mut svg = begin(WIDTH, HEIGHT, STYLE);
    text(&mut svg, LEFT, 24, " font-size=\"16\"", &chart.title);
    text(&mut svg, LEFT, 44, "", &chart.about);
    for (place, (name, value)) in (0..).zip(&chart.bars) {
        let left = LEFT + place * slot;
        let tall = u128::from(*value) * u128::from(BARS_HEIGHT) / most;
        let tall = u64::try_from(tall).unwrap_or(BARS_HEIGHT);
        let _ = writeln!(
            svg,
            "<rect class=\"bar\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{tall}\"/>",
            left + GAP / 2,
            BOTTOM - tall,
            slot.saturating_sub(GAP)
        );
        let (x, y) = (left + slot / 2, BOTTOM + 14);
        text(
            &mut svg,
            x,
            BOTTOM - tall - 5,
            " text-anchor=\"middle\"",
            &value.to_string(),
        );
        // Long names have no room side by side.
        let turned =
            format!(" text-anchor=\"end\" font-size=\"10\" transform=\"rotate(-35 {x} {y})\"");
        text(&mut svg, x, y, &turned, name);
    }
    let power = u64::from(chart.border.max(1).ilog2());
    if power < chart.bars.len() as u64 {
        let beyond = u128::from(chart.border + 1 - (1 << power));
        let inside = u64::try_from((u128::from(slot) * beyond) >> power).unwrap_or(slot);
        let x = LEFT + power * slot + inside;
        let _ = writeln!(
            svg,
            "<line class=\"border\" x1=\"{x}\" y1=\"{TOP}\" x2=\"{x}\" y2=\"{BOTTOM}\"/>"
        );
        text(&mut svg, x + 4, TOP - 6, "", &chart.border_name);
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(title: &str, values: &[u64], border: u64) -> String {
        svg(&Chart {
            title: title.to_owned(),
            about: String::new(),
            bars: values
                .iter()
                .map(|value| (value.to_string(), *value))
                .collect(),
            border,
            border_name: "border".to_owned(),
        })
    }

    #[test]
    fn bars_are_as_tall_as_their_values() {
        let svg = drawn("t", &[50, 100, 0], 2);
        for height in [120, 240, 0] {
            assert!(svg.contains(&format!("height=\"{height}\"/>")), "{svg}");
        }
        // The bar of 2 and 3 begins at 120: behind 2 is its middle.
        assert!(svg.contains("x1=\"150\""), "{svg}");
    }

    #[test]
    fn any_values_can_be_drawn() {
        assert!(!drawn("t", &[], 10).contains("rect"));
        assert!(!drawn("t", &[0, 1], 10).contains("border\" x1"));
        let many: Vec<u64> = (0..64).map(|power| u64::MAX >> power).collect();
        assert!(drawn("t", &many, u64::MAX - 1).contains("border\" x1"));
    }

    #[test]
    fn text_from_elsewhere_is_no_markup() {
        let svg = drawn("</text><script>&\u{1b}", &[1], 1);
        assert!(
            svg.contains(">&lt;/text&gt;&lt;script&gt;&amp;\\u{1b}</text>"),
            "{svg}"
        );
    }
}
