//! Plots, as SVG.

use std::fmt::Write as _;

use maud::{Markup, html};

use crate::{
    Fields,
    history::{Point, Span},
};

/// Width and height of a plot, in its own units.
const WIDTH: f32 = 600.0;
const HEIGHT: f32 = 120.0;

/// Lines of a plot: their names, and which figures of a point they are.
type Lines = &'static [(&'static str, usize)];

const OF_QUEUES: [(&str, &str, Lines); 3] = [
    (
        "Messages a second",
        "",
        &[("sent", 0), ("delivered", 1), ("settled", 2)],
    ),
    ("Messages", "", &[("all", 3), ("in flight", 4)]),
    ("Age of the oldest message", "s", &[("age", 5)]),
];

const OF_SERVER: [(&str, &str, Lines); 2] = [
    ("Time of a sync", "ms", &[("mean", 0)]),
    ("Bytes on the disk", "", &[("used", 3)]),
];

const SPANS: [(&str, &str, Span); 3] = [
    ("10m", "10 minutes", Span::Minutes),
    ("3h", "3 hours", Span::Hours),
    ("2d", "2 days", Span::Days),
];

/// The span that a page asks for.
pub(crate) fn span(fields: &Fields) -> Span {
    let mut spans = SPANS.iter();
    let asked = spans.find(|(word, ..)| *word == fields.get("span"));
    asked.map_or(Span::default(), |(.., span)| *span)
}

/// The plots of a queue, or of all; with those of the server, if there are some. `here`: the page.
pub(crate) fn section(
    here: &str,
    span: Span,
    queues: Option<&[Point]>,
    server: &[Point],
) -> Markup {
    html! {
        section {
            h2 { "History" }
            nav aria-label="Span" { @for (word, label, of) in SPANS {
                a href={ (here) "?span=" (word) } aria-current=[(of == span).then_some("true")] { (label) }
            } }
            @match queues {
                None => p { "There is no history of this queue: it is not among the 50 busiest ones." },
                Some(points) => div.plots {
                    @for (title, unit, lines) in OF_QUEUES { (plot(title, unit, lines, points, span)) }
                    @if !server.is_empty() {
                        @for (title, unit, lines) in OF_SERVER { (plot(title, unit, lines, server, span)) }
                    }
                },
            }
            p.note { "It is kept in memory since the server started. Rates are means, other figures the highest of each point." }
        }
    }
}

fn plot(title: &str, unit: &str, lines: Lines, points: &[Point], span: Span) -> Markup {
    let values = |at: usize| points.iter().map(move |point| point[at]);
    let known = lines.iter().flat_map(|&(_, at)| values(at));
    // NaN is never the highest.
    let highest = known.fold(0.0, f32::max);
    let latest = |at: usize| points.last().map_or(f32::NAN, |point| point[at]);
    let mut told = format!("{title}: at most {}", short(highest, unit));
    for &(name, at) in lines {
        let _ = write!(told, "; {name} now {}", short(latest(at), unit));
    }
    html! { figure {
        figcaption {
            b { (title) } " · at most " (short(highest, unit))
            @for (number, &(name, at)) in lines.iter().enumerate() {
                " · " span class={ "key line" (number) } { (name) } " " (short(latest(at), unit))
            }
        }
        svg role="img" aria-label=(told) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" {
            @for (number, &(_, at)) in lines.iter().enumerate() {
                path class={ "line" (number) } d=(path(values(at), points.len(), highest, span)) {}
            }
        }
    } }
}

/// The line through the values, with a hole where one is not known. The latest one is at the right.
fn path(values: impl Iterator<Item = f32>, len: usize, highest: f32, span: Span) -> String {
    let mut path = String::new();
    let mut is_open = false;
    let step = WIDTH / float(span.len_max().max(2) - 1);
    for (at, value) in values.enumerate() {
        if value.is_nan() {
            is_open = false;
            continue;
        }
        let x = WIDTH - float(len - 1 - at) * step;
        let part = if highest > 0.0 { value / highest } else { 0.0 };
        let y = (HEIGHT - 4.0) * (1.0 - part) + 2.0;
        let command = if is_open { 'L' } else { 'M' };
        let _ = write!(path, "{command}{x:.1} {y:.1}");
        if !is_open {
            // A point by itself is a line to itself, and would not be seen otherwise.
            path.push_str("h0.1");
        }
        is_open = true;
    }
    path
}

/// For people.
fn short(value: f32, unit: &str) -> String {
    if value.is_nan() {
        return "unknown".to_owned();
    }
    let (value, prefix) = match value {
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let digits = usize::from(value < 100.0 && value.fract() != 0.0);
    let space = if unit.is_empty() && prefix.is_empty() {
        ""
    } else {
        "\u{a0}"
    };
    format!("{value:.digits$}{space}{prefix}{unit}")
}

/// For a place in a plot.
#[expect(clippy::cast_precision_loss)]
fn float(number: usize) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_at_the_right_and_has_holes() {
        let values = [0.0, f32::NAN, 10.0, 5.0];
        let path = path(values.into_iter(), 4, 10.0, Span::Minutes);
        assert_eq!(path, "M597.0 118.0h0.1M599.0 2.0h0.1L600.0 60.0");
    }

    #[test]
    fn figures_are_short() {
        let told = [0.0, 0.25, 12.0, 12_345.0, 2.5e6, 3e9, f32::NAN].map(|it| short(it, "s"));
        let expected = [
            "0\u{a0}s",
            "0.2\u{a0}s",
            "12\u{a0}s",
            "12.3\u{a0}ks",
            "2.5\u{a0}Ms",
            "3\u{a0}Gs",
            "unknown",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_plot_of_nothing_is_empty() {
        let page = section("/x", Span::Days, Some(&[]), &[]).into_string();
        assert!(!page.contains("NaN") && page.contains("unknown"), "{page}");
    }
}
