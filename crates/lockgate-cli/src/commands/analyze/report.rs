//! What was found, for people and for programs.

use std::num::NonZeroU64;

use serde::Serialize;

use super::{
    Load, chart,
    input::LeftOut,
    repetition::{Bucket, Counted, Summary},
};
use crate::{
    exit::Failure,
    output::{Output, Table, count},
};

/// The longest bar of the histogram on a terminal.
const BAR_MAX: u64 = 40;

/// Names in it are part of the interface.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    requests: u64,
    keys: u64,
    consumers: u64,
    classes: Classes,
    distances: Vec<Distances>,
    predicted: Saved,
    replayed: Replayed,
    left_out: LeftOutLines,
}

#[derive(Debug, Serialize)]
struct Classes {
    none: Class,
    sparse: Class,
    high: Class,
}

#[derive(Debug, Serialize)]
struct Class {
    keys: u64,
    /// Of all keys.
    key_share: f64,
    requests: u64,
    /// Of all requests.
    request_share: f64,
}

#[derive(Debug, Serialize)]
struct Distances {
    from: u64,
    to: u64,
    keys: u64,
    repeats: u64,
}

/// Requests that cost no work, and their share of all.
#[derive(Debug, Serialize)]
struct Saved {
    saved: u64,
    share: f64,
}

#[derive(Debug, Serialize)]
struct Replayed {
    stream: Checked,
    backlog: Checked,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<Recorded>,
}

#[derive(Debug, Serialize)]
struct Checked {
    saved: u64,
    share: f64,
    /// This share less the predicted one.
    difference: f64,
}

#[derive(Debug, Serialize)]
struct Recorded {
    #[serde(flatten)]
    checked: Checked,
    /// Requests whose time was before that of a line above.
    late: u64,
}

#[derive(Debug, Serialize)]
struct LeftOutLines {
    lines: u64,
    /// The first of them.
    first: Vec<LeftOutLine>,
}

#[derive(Debug, Serialize)]
struct LeftOutLine {
    line: u64,
    reason: String,
}

impl Report {
    pub(super) fn new(
        consumers: NonZeroU64,
        summary: &Summary,
        replays: impl Iterator<Item = (Load, u64)>,
        late: Option<u64>,
        (left_out, told): (u64, &[(u64, LeftOut)]),
    ) -> Self {
        let all = summary.all;
        let class = |counted: Counted| Class {
            keys: counted.keys,
            key_share: share(counted.keys, all.keys),
            requests: counted.requests,
            request_share: share(counted.requests, all.requests),
        };
        let predicted = share(summary.saved, all.requests);
        let checked = |saved: u64| {
            let share = share(saved, all.requests);
            Checked {
                saved,
                share,
                difference: share - predicted,
            }
        };
        let (mut stream, mut backlog, mut recorded) = (checked(0), checked(0), None);
        for (load, saved) in replays {
            match load {
                Load::Stream => stream = checked(saved),
                Load::Backlog => backlog = checked(saved),
                Load::Recorded => {
                    recorded = Some(Recorded {
                        checked: checked(saved),
                        late: late.unwrap_or_default(),
                    });
                }
            }
        }
        let distances = summary.distances.iter();
        let told = told.iter().map(|(line, why)| LeftOutLine {
            line: *line,
            reason: why.to_string(),
        });
        Self {
            requests: all.requests,
            keys: all.keys,
            consumers: consumers.get(),
            classes: Classes {
                none: class(summary.none),
                sparse: class(summary.sparse),
                high: class(summary.high),
            },
            distances: distances
                .map(
                    |&Bucket {
                         from,
                         to,
                         keys,
                         repeats,
                     }| Distances {
                        from,
                        to,
                        keys,
                        repeats,
                    },
                )
                .collect(),
            predicted: Saved {
                saved: summary.saved,
                share: predicted,
            },
            replayed: Replayed {
                stream,
                backlog,
                recorded,
            },
            left_out: LeftOutLines {
                lines: left_out,
                first: told.collect(),
            },
        }
    }

    /// Tables.
    pub(super) fn print(&self, output: &mut Output) -> Result<(), Failure> {
        output.line(&format!(
            "{} of {}, for {}",
            count(self.requests, "request"),
            count(self.keys, "key"),
            count(self.consumers, "consumer")
        ))?;
        output.line("")?;
        let mut table = Table::new([
            "CLASS",
            "KEYS",
            "OF ALL KEYS",
            "REQUESTS",
            "OF ALL REQUESTS",
        ]);
        let Classes { none, sparse, high } = &self.classes;
        for (name, class) in [("none", none), ("sparse", sparse), ("high", high)] {
            table.row([
                name.to_owned(),
                class.keys.to_string(),
                percent(class.key_share),
                class.requests.to_string(),
                percent(class.request_share),
            ]);
        }
        output.table(&table)?;
        output.line("")?;
        if !self.distances.is_empty() {
            let most = self
                .distances
                .iter()
                .map(|bucket| bucket.keys)
                .max()
                .unwrap_or_default();
            let mut table = Table::new(["DISTANCE", "REPEATS", "KEYS", "BY LEAST DISTANCE"]);
            for bucket in &self.distances {
                table.row([
                    bucket.name(),
                    bucket.repeats.to_string(),
                    bucket.keys.to_string(),
                    bar(bucket.keys, most),
                ]);
            }
            output.table(&table)?;
            output.line("")?;
        }
        let mut table = Table::new(["A COALESCER", "SAVES", "OF THE WORK", "DIFFERENCE"]);
        let Saved { saved, share } = self.predicted;
        table.row([
            "predicted".to_owned(),
            saved.to_string(),
            percent(share),
            String::new(),
        ]);
        let Replayed {
            stream,
            backlog,
            recorded,
        } = &self.replayed;
        let replays = [
            ("replayed as a stream", Some(stream)),
            ("replayed as a backlog", Some(backlog)),
            (
                "replayed at its times",
                recorded.as_ref().map(|recorded| &recorded.checked),
            ),
        ];
        for (name, checked) in replays {
            let Some(Checked {
                saved,
                share,
                difference,
            }) = checked
            else {
                continue;
            };
            let difference = format!("{:+.2}", difference * 100.0);
            table.row([
                name.to_owned(),
                saved.to_string(),
                percent(*share),
                difference,
            ]);
        }
        output.table(&table)
    }

    /// The least distances of keys, as a drawing.
    pub(super) fn svg(&self, key: &str) -> String {
        let bars = self
            .distances
            .iter()
            .map(|bucket| (bucket.name(), bucket.keys));
        chart::svg(&chart::Chart {
            title: format!("Least repeat distance of {key}"),
            about: format!(
                "{} of {}; {} come once",
                count(self.requests, "request"),
                count(self.keys, "key"),
                self.classes.none.keys
            ),
            bars: bars.collect(),
            border: self.consumers,
            border_name: format!("high | sparse, for {}", count(self.consumers, "consumer")),
        })
    }
}

impl Distances {
    fn name(&self) -> String {
        if self.from == self.to {
            self.from.to_string()
        } else {
            format!("{}-{}", self.from, self.to)
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// What is there at all has a bar.
fn bar(value: u64, most: u64) -> String {
    let cells = (u128::from(value) * u128::from(BAR_MAX)).div_ceil(u128::from(most.max(1)));
    "█".repeat(usize::try_from(cells).unwrap_or_default())
}
