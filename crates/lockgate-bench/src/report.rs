//! The figures of all rounds, and their output.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Value, json};

use crate::output::Table;
use crate::wanted;

/// All results so far.
#[derive(Default)]
pub(crate) struct Report {
    entries: Vec<Entry>,
    quantities: Vec<Quantity>,
}

/// A figure that is no rate, over its rounds.
struct Quantity {
    figure: &'static str,
    params: Params,
    values: Vec<f64>,
    unit: &'static str,
    at_most: Option<f64>,
}

/// One figure of one course, over its rounds.
struct Entry {
    figure: &'static str,
    params: Params,
    rounds: Vec<Round>,
    floor_is: Option<&'static str>,
    /// In nanoseconds, all rounds together.
    latency: Histogram<u64>,
}

/// The parameters of a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Params {
    pub(crate) size: usize,
    pub(crate) batch: u16,
    pub(crate) keys: u32,
    pub(crate) callers: u16,
    pub(crate) level: &'static str,
    /// Further parameters, such as the length of a backlog.
    #[serde(flatten)]
    pub(crate) more: BTreeMap<&'static str, Value>,
}

/// The results of one round.
pub(crate) struct Round {
    /// Messages a second; `None` where only latencies are measured.
    pub(crate) rate: Option<f64>,
    /// The floor in the same round, in the same unit.
    pub(crate) floor: Option<f64>,
    pub(crate) syncs_per_message: Option<f64>,
}

/// One line of `--json`.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    bench: String,
    params: Params,
    value: f64,
    unit: &'static str,
    #[serde(flatten)]
    floor: Option<Floor>,
    /// The figure's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most: Option<f64>,
    rounds: usize,
    version: &'static str,
}

/// The floor of the figure. The ratio is the median of the rounds' ratios.
#[derive(Debug, Serialize)]
struct Floor {
    floor: f64,
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
    floor_is: &'static str,
}

impl Report {
    /// Adds a round of a figure.
    pub(crate) fn add(
        &mut self,
        figure: &'static str,
        params: &Params,
        floor_is: Option<&'static str>,
        round: Round,
        latency: &Histogram<u64>,
    ) {
        let known = self
            .entries
            .iter()
            .position(|entry| entry.figure == figure && entry.params == *params);
        let index = known.unwrap_or_else(|| {
            self.entries.push(Entry {
                figure,
                params: params.clone(),
                rounds: Vec::new(),
                floor_is,
                latency: histogram(),
            });
            self.entries.len() - 1
        });
        let entry = &mut self.entries[index];
        entry.rounds.push(round);
        merge(&mut entry.latency, latency);
    }

    /// Adds a round of a figure that is no rate, with its limit.
    pub(crate) fn quantity(
        &mut self,
        figure: &'static str,
        params: &Params,
        value: f64,
        unit: &'static str,
        at_most: Option<f64>,
    ) {
        let known = self
            .quantities
            .iter_mut()
            .find(|known| known.figure == figure && known.params == *params);
        match known {
            Some(known) => known.values.push(value),
            None => self.quantities.push(Quantity {
                figure,
                params: params.clone(),
                values: vec![value],
                unit,
                at_most,
            }),
        }
    }

    /// The output of the requested figures; empties the report.
    pub(crate) fn take_lines(&mut self, names: &[String]) -> Vec<Line> {
        let entries = std::mem::take(&mut self.entries);
        let quantities = std::mem::take(&mut self.quantities);
        let entries = entries
            .iter()
            .filter(|entry| wanted(names, entry.figure))
            .flat_map(Entry::lines);
        let quantities = quantities
            .iter()
            .filter(|quantity| wanted(names, quantity.figure))
            .map(Quantity::line);
        entries.chain(quantities).collect()
    }

    /// The figures that are no rates; `None` if there are none.
    pub(crate) fn quantities(&self, names: &[String]) -> Option<Table> {
        let mut table = Table::new(["FIGURE", "VALUE", "UNIT", "AT MOST"]);
        let mut some = false;
        for quantity in &self.quantities {
            if wanted(names, quantity.figure) {
                some = true;
                table.row([
                    quantity.figure.to_owned(),
                    format!("{:.2}", quantity.value()),
                    quantity.unit.to_owned(),
                    quantity
                        .at_most
                        .map(|most| most.to_string())
                        .unwrap_or_default(),
                ]);
            }
        }
        some.then_some(table)
    }

    pub(crate) fn table(&self, names: &[String]) -> Table {
        let mut table = Table::new([
            "BENCH",
            "SIZE",
            "BATCH",
            "KEYS",
            "CALLERS",
            "LEVEL",
            "MSG/S",
            "FLOOR",
            "RATIO",
            "RANGE",
            "P50 MS",
            "P99 MS",
            "MAX MS",
            "SYNCS/MSG",
        ]);
        for entry in self
            .entries
            .iter()
            .filter(|entry| wanted(names, entry.figure))
        {
            let Params {
                size,
                batch,
                keys,
                callers,
                level,
                ..
            } = &entry.params;
            let floor = entry.floor();
            let of_floor =
                |show: fn(&Floor) -> String| floor.as_ref().map(show).unwrap_or_default();
            let [p50, p99, max] = entry.quantiles();
            table.row([
                entry.figure.to_owned(),
                crate::size::show(*size),
                batch.to_string(),
                keys.to_string(),
                callers.to_string(),
                (*level).to_owned(),
                entry.rate().map(whole).unwrap_or_default(),
                of_floor(|floor| whole(floor.floor)),
                of_floor(|floor| format!("{:.2}", floor.ratio)),
                of_floor(|floor| format!("{:.2}-{:.2}", floor.ratio_min, floor.ratio_max)),
                format!("{p50:.2}"),
                format!("{p99:.2}"),
                format!("{max:.2}"),
                entry
                    .syncs_per_message()
                    .map(|syncs| format!("{syncs:.4}"))
                    .unwrap_or_default(),
            ]);
        }
        table
    }
}

impl Quantity {
    fn value(&self) -> f64 {
        median(self.values.iter().copied()).unwrap_or(f64::NAN)
    }

    fn line(&self) -> Line {
        Line {
            bench: self.figure.to_owned(),
            params: self.params.clone(),
            value: self.value(),
            unit: self.unit,
            floor: None,
            at_most: self.at_most,
            rounds: self.values.len(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl Entry {
    fn lines(&self) -> Vec<Line> {
        let line = |part: &str, value, unit, floor| Line {
            bench: format!("{}{part}", self.figure),
            params: self.params.clone(),
            value,
            unit,
            floor,
            at_most: None,
            rounds: self.rounds.len(),
            version: env!("CARGO_PKG_VERSION"),
        };
        let mut lines = Vec::new();
        if let Some(rate) = self.rate() {
            lines.push(line("", rate, "messages/s", self.floor()));
        }
        let [p50, p99, max] = self.quantiles();
        lines.push(line(".p50", p50, "ms", None));
        lines.push(line(".p99", p99, "ms", None));
        lines.push(line(".max", max, "ms", None));
        if let Some(syncs) = self.syncs_per_message() {
            lines.push(line(".syncs", syncs, "syncs/message", None));
        }
        lines
    }

    fn rate(&self) -> Option<f64> {
        median(self.rounds.iter().filter_map(|round| round.rate))
    }

    fn syncs_per_message(&self) -> Option<f64> {
        median(
            self.rounds
                .iter()
                .filter_map(|round| round.syncs_per_message),
        )
    }

    fn floor(&self) -> Option<Floor> {
        let floors = || self.rounds.iter().filter_map(|round| round.floor);
        let ratios = || {
            self.rounds
                .iter()
                .filter_map(|round| Some(round.rate? / round.floor?))
        };
        Some(Floor {
            floor: median(floors())?,
            ratio: median(ratios())?,
            ratio_min: ratios().min_by(f64::total_cmp)?,
            ratio_max: ratios().max_by(f64::total_cmp)?,
            floor_is: self.floor_is?,
        })
    }

    /// Median, 99th percentile and maximum, in milliseconds.
    fn quantiles(&self) -> [f64; 3] {
        [0.5, 0.99, 1.0].map(|quantile| {
            let nanos = self.latency.value_at_quantile(quantile);
            json!(nanos).as_f64().unwrap_or(0.0) / 1e6
        })
    }
}

/// An empty histogram of nanoseconds with three digits, which grows as needed.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are within the histogram's range")
}

/// Adds what one histogram has to another.
pub(crate) fn merge(all: &mut Histogram<u64>, part: &Histogram<u64>) {
    all.add(part)
        .expect("all histograms are made alike and grow as needed");
}

fn whole(value: f64) -> String {
    format!("{value:.0}")
}

/// The middle value, or the mean of the two middle ones.
fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_ratios() {
        let params = Params {
            size: 1024,
            batch: 1,
            keys: 1,
            callers: 1,
            level: "disk",
            more: BTreeMap::new(),
        };
        let mut report = Report::default();
        // The second round was disturbed, figure and floor alike. Their ratio was not.
        for (rate, floor) in [(50.0, 100.0), (5.0, 10.0), (60.0, 100.0)] {
            let round = Round {
                rate: Some(rate),
                floor: Some(floor),
                syncs_per_message: None,
            };
            report.add("a", &params, Some("b"), round, &histogram());
        }
        let lines = report.take_lines(&[]);
        let line = serde_json::to_value(&lines[0]).unwrap();
        assert_eq!(line["bench"], "a");
        assert_eq!(line["value"], 50.0);
        assert_eq!(line["floor"], 100.0);
        assert_eq!(line["ratio"], 0.5);
        assert_eq!(line["ratio_max"], 0.6);
        assert_eq!(line["params"]["level"], "disk");
        assert_eq!(lines.len(), 4);
        assert!(report.take_lines(&[]).is_empty());
    }

    /// A histogram that does not grow reports 0.00 ms for everything.
    #[test]
    fn quantiles_are_in_milliseconds() {
        let params = Params {
            size: 1,
            batch: 1,
            keys: 0,
            callers: 1,
            level: "disk",
            more: BTreeMap::new(),
        };
        let mut latency = histogram();
        for millis in 1..=100 {
            crate::load::record(&mut latency, Duration::from_millis(millis));
        }
        let mut report = Report::default();
        let round = Round {
            rate: None,
            floor: None,
            syncs_per_message: None,
        };
        report.add("a", &params, None, round, &latency);
        let values: Vec<_> = report
            .take_lines(&[])
            .iter()
            .map(|line| line.value.round())
            .collect();
        assert_eq!(values, [50.0, 99.0, 100.0]);
    }

    #[test]
    fn the_median_of_an_even_number_is_between() {
        assert_eq!(median([3.0, 1.0].into_iter()), Some(2.0));
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median(std::iter::empty()), None);
    }
}
