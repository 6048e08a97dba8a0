//! `lockgate size`.

mod chart;
mod source;

use lockgate_producer::sizing::{
    Burst, Drain, Model, Need, Outage, Overflow, Report, SimulatedStage, Simulation, SizingError,
    StageReport, Steady, simulate,
};
use serde::Serialize;

pub use self::source::fuzz;
use crate::{
    args::Size,
    exit::{Exit, Failure},
    output::{Output, Table, printable},
    svg,
};

pub(crate) fn run(args: &Size) -> Result<(), Failure> {
    if let Some(path) = &args.svg {
        svg::check_free(path)?;
    }
    let model = model(args)?;
    let report = model.report().map_err(wrong)?;
    let simulated = match args.simulate {
        Some(seed) => Some(simulate(&model, Simulation::seeded(seed)).map_err(wrong)?),
        None => None,
    };
    if let Some(path) = &args.svg {
        svg::create(path, &chart::svg(&report))?;
    }
    let mut output = Output::new();
    if args.json {
        output.json(&Json {
            model: &model,
            report: &report,
            simulated: simulated.as_deref(),
        })?;
    } else {
        print(&mut output, &model, &report, simulated.as_deref())?;
    }
    output.flush()
}

/// Names in it are part of the interface.
#[derive(Serialize)]
struct Json<'a> {
    model: &'a Model,
    #[serde(flatten)]
    report: &'a Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<&'a [SimulatedStage]>,
}

/// What was given, with what the flags change.
fn model(args: &Size) -> Result<Model, Failure> {
    let mut model = if args.from.is_empty() {
        Model::new(args.arrivals.unwrap_or_default(), args.stages.clone())
    } else {
        source::model(args)?
    };
    if let Some(arrivals) = args.arrivals {
        model.arrivals_per_second = arrivals;
    }
    if let Some((stage, time)) = &args.outage {
        model.outage = Some(Outage {
            stage: stage.clone(),
            seconds: time.as_secs_f64(),
        });
    }
    if let Some((times, time)) = args.burst {
        model.burst = Some(Burst {
            times,
            seconds: time.as_secs_f64(),
        });
    }
    model.record_bytes = args.record_bytes.or(model.record_bytes);
    Ok(model)
}

fn wrong(error: SizingError) -> Failure {
    let exit = match error {
        SizingError::TooManySteps(_) => Exit::Failed,
        _ => Exit::Usage,
    };
    Failure::from_error(exit, error)
}

fn print(
    output: &mut Output,
    model: &Model,
    report: &Report,
    simulated: Option<&[SimulatedStage]>,
) -> Result<(), Failure> {
    let what = format!(
        "{} records/s arrive{}",
        number(report.arrivals_per_second),
        events(model)
    );
    // Names of stages may come from a file.
    output.line(&printable(&what))?;
    output.line("")?;
    let mut table = Table::new([
        "STAGE", "TAKES/S", "USED", "WAITING", "WAIT", "AT END", "PEAK", "BUFFER", "NEEDS",
        "DRAINS",
    ]);
    for stage in &report.stages {
        table.row(row(stage));
    }
    output.table(&table)?;
    if let Some(simulated) = simulated {
        output.line("")?;
        let mut table = Table::new([
            "SIMULATED",
            "TAKES/S",
            "WAITING",
            "WAIT",
            "AT END",
            "PEAK",
            "OVERFLOWS",
            "DRAINS",
        ]);
        for stage in simulated {
            table.row([
                stage.name.clone(),
                number(stage.takes_per_second),
                known(stage.queue, number),
                known(stage.wait_seconds, time),
                known(stage.depth_at_end, number),
                known(stage.peak, number),
                overflow(stage),
                known(stage.drains_after_seconds, time),
            ]);
        }
        output.table(&table)?;
    }
    output.line("")?;
    for line in &report.verdict {
        output.line(&printable(line))?;
    }
    Ok(())
}

fn events(model: &Model) -> String {
    let mut text = String::new();
    if let Some(outage) = &model.outage {
        let last = model.stages.last().map_or("", |stage| &stage.name);
        let stage = outage.stage.as_deref().unwrap_or(last);
        text.push_str(&format!(
            "; {stage} stands still for {}",
            time(outage.seconds)
        ));
    }
    if let Some(burst) = model.burst {
        text.push_str(&format!(
            "; {} times as many for {}",
            number(burst.times),
            time(burst.seconds)
        ));
    }
    text
}

fn row(stage: &StageReport) -> [String; 10] {
    let (waiting, wait) = match stage.steady {
        Steady::Stable {
            queue,
            wait_seconds,
        } => (number(queue), time(wait_seconds)),
        Steady::Overloaded { grows_per_second } => (
            format!("+{}/s", number(grows_per_second)),
            "grows".to_owned(),
        ),
        _ => Default::default(),
    };
    let buffer = match (stage.buffer, stage.overflows) {
        (Some(buffer), Some(Overflow::Never) | None) => buffer.to_string(),
        (Some(buffer), _) => format!("{buffer} overflows"),
        (None, _) => "-".to_owned(),
    };
    [
        stage.name.clone(),
        number(stage.capacity_per_second),
        format!("{:.1}%", stage.utilisation * 100.0),
        waiting,
        wait,
        number(stage.depth_at_end),
        number(stage.peak.records),
        buffer,
        match stage.needs {
            Need::Records(records) => records.to_string(),
            _ => "no end".to_owned(),
        },
        match stage.drains {
            Drain::AfterSeconds(seconds) => time(seconds),
            _ => "never".to_owned(),
        },
    ]
}

fn overflow(stage: &SimulatedStage) -> String {
    match (stage.overflows, stage.overflows_after_seconds) {
        (Some(share), Some(seconds)) => format!("{:.0}% after {}", share * 100.0, time(seconds)),
        (Some(_), None) => "no".to_owned(),
        (None, _) => "-".to_owned(),
    }
}

/// What was simulated, or a dash.
fn known(value: Option<f64>, show: fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// Three digits or so.
fn number(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 0.01 => "<0.01".to_owned(),
        value if value < 100.0 => {
            let text = format!("{value:.2}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        value => format!("{value:.0}"),
    }
}

fn time(seconds: f64) -> String {
    lockgate_producer::sizing::show_seconds(seconds)
}
