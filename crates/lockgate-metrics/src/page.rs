//! A page under construction, and its text.

use std::{borrow::Cow, fmt};

use lockgate_core::Distribution;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text},
    metrics::MetricType,
    registry::Registry,
};

/// The media type of the text.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

const COUNTER_SUFFIX: &str = "_total";

/// A page of metrics under construction.
#[derive(Debug, Default)]
pub struct Page {
    families: Vec<Family>,
}

/// A metric under construction: its values, by their labels.
#[derive(Debug)]
pub struct Family {
    name: Cow<'static, str>,
    help: Cow<'static, str>,
    kind: MetricType,
    samples: Vec<(Vec<(&'static str, String)>, Value)>,
}

/// A value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any other number.
    Real(f64),
    /// What a histogram shows, in seconds.
    Spans(Distribution),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Whole(value.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<&Distribution> for Value {
    fn from(value: &Distribution) -> Self {
        Self::Spans(*value)
    }
}

impl Page {
    /// A value that only grows; its name ends in `_total`.
    pub fn counter(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        help: impl Into<Cow<'static, str>>,
    ) -> &mut Family {
        let name = name.into();
        debug_assert!(name.ends_with(COUNTER_SUFFIX), "{name}");
        self.family(name, help.into(), MetricType::Counter)
    }

    /// A value that goes up and down.
    pub fn gauge(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        help: impl Into<Cow<'static, str>>,
    ) -> &mut Family {
        let name = name.into();
        debug_assert!(!name.ends_with(COUNTER_SUFFIX), "{name}");
        self.family(name, help.into(), MetricType::Gauge)
    }

    /// How long things took; its name ends in `_seconds`.
    pub fn histogram(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        help: impl Into<Cow<'static, str>>,
    ) -> &mut Family {
        let name = name.into();
        debug_assert!(name.ends_with("_seconds"), "{name}");
        self.family(name, help.into(), MetricType::Histogram)
    }

    fn family(
        &mut self,
        name: Cow<'static, str>,
        help: Cow<'static, str>,
        kind: MetricType,
    ) -> &mut Family {
        self.families.push(Family {
            name,
            help,
            kind,
            samples: Vec::new(),
        });
        self.families.last_mut().expect("one was added")
    }

    /// The text of the page.
    #[must_use]
    pub fn finish(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // To write to a string does not fail, and the values are what their families are.
        let written = prometheus_text::encode(&mut text, &registry);
        debug_assert!(written.is_ok());
        text
    }
}

impl Family {
    /// The only value, which has no labels.
    pub fn value(&mut self, value: impl Into<Value>) {
        self.sample(&[], value);
    }

    /// The value with these labels. A family has each set of labels once.
    pub fn sample(
        &mut self,
        labels: &[(&'static str, &str)],
        value: impl Into<Value>,
    ) -> &mut Self {
        let labels = labels.iter();
        let labels = labels.map(|(name, value)| (*name, (*value).to_owned()));
        self.samples.push((labels.collect(), value.into()));
        self
    }

    fn encode(&self, mut metric: MetricEncoder<'_>) -> fmt::Result {
        for (labels, value) in &self.samples {
            match labels.is_empty() {
                true => self.encode_value(&mut metric, value)?,
                false => self.encode_value(&mut metric.encode_family(labels)?, value)?,
            }
        }
        Ok(())
    }

    fn encode_value(&self, metric: &mut MetricEncoder<'_>, value: &Value) -> fmt::Result {
        match (self.kind, value) {
            (MetricType::Counter, Value::Whole(value)) => {
                metric.encode_counter::<NoLabelSet, _, u64>(value, None)
            }
            (MetricType::Counter, Value::Real(value)) => {
                metric.encode_counter::<NoLabelSet, _, f64>(value, None)
            }
            (MetricType::Gauge, Value::Whole(value)) => metric.encode_gauge(value),
            (MetricType::Gauge, Value::Real(value)) => metric.encode_gauge(value),
            (MetricType::Histogram, Value::Spans(spans)) => {
                let ranges = spans.ranges().map(|(bound, count)| match bound {
                    u64::MAX => (f64::INFINITY, count),
                    bound => (seconds(bound), count),
                });
                let ranges: Vec<_> = ranges.collect();
                let sum = seconds(spans.sum_micros());
                metric.encode_histogram::<NoLabelSet>(sum, spans.count(), &ranges, None)
            }
            _ => Err(fmt::Error),
        }
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.families {
            // The library adds the suffix of counters.
            let name = family.name.strip_suffix(COUNTER_SUFFIX);
            let name = name.unwrap_or(&family.name);
            let metric = encoder.encode_descriptor(name, &family.help, None, family.kind)?;
            family.encode(metric)?;
        }
        Ok(())
    }
}

/// Prometheus wants times in seconds.
fn seconds(micros: u64) -> f64 {
    // Exact up to 2^53 µs, which is 285 years.
    #[expect(clippy::cast_precision_loss)]
    let micros = micros as f64;
    micros / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_as_prometheus_reads_it() {
        let mut page = Page::default();
        page.gauge("a_bytes", "Bytes.").value(1.5);
        page.counter("b_total", "Things.")
            .sample(&[("x", "1"), ("y", "a\"b\\c\nd")], 2_u64)
            .sample(&[("x", "2")], 3_u64);
        let mut spans = Distribution::SHORT;
        for micros in [50, 100, 200, 11_000_000] {
            spans.record_micros(micros);
        }
        page.histogram("c_seconds", "Spans.")
            .sample(&[("x", "1")], &spans);
        page.gauge("d", "Nothing yet.");
        let text = page.finish();
        let (first, rest) = text.split_at(text.find("c_seconds_bucket").unwrap());
        assert_eq!(
            first,
            "# HELP a_bytes Bytes.\n\
             # TYPE a_bytes gauge\n\
             a_bytes 1.5\n\
             # HELP b_total Things.\n\
             # TYPE b_total counter\n\
             b_total{x=\"1\",y=\"a\\\"b\\\\c\\nd\"} 2\n\
             b_total{x=\"2\"} 3\n\
             # HELP c_seconds Spans.\n\
             # TYPE c_seconds histogram\n"
        );
        for line in [
            "c_seconds_bucket{x=\"1\",le=\"0.0001\"} 2\n",
            "c_seconds_bucket{x=\"1\",le=\"0.00025\"} 3\n",
            "c_seconds_bucket{x=\"1\",le=\"10\"} 3\n",
            "c_seconds_bucket{x=\"1\",le=\"+Inf\"} 4\n",
            "c_seconds_sum{x=\"1\"} 11.00035\n",
            "c_seconds_count{x=\"1\"} 4\n",
            "# HELP d Nothing yet.\n",
        ] {
            assert!(rest.contains(line), "{line} in {rest}");
        }
    }
}
