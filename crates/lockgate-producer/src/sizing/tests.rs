mod random;

use proptest::prelude::*;

use super::*;

/// Calls of a worker in a second, and workers.
fn stage(name: &str, rate: f64, workers: u32) -> Stage {
    Stage::new(name, Service::PerSecond(rate), workers)
}

fn batches(name: &str, seconds: f64, workers: u32, batch: u32) -> Stage {
    Stage {
        batch,
        ..Stage::new(name, Service::Seconds(seconds), workers)
    }
}

fn outage(model: Model, of: &str, seconds: f64) -> Model {
    let stage = Some(of.to_owned());
    Model {
        outage: Some(Outage { stage, seconds }),
        ..model
    }
}

fn burst(model: Model, times: f64, seconds: f64) -> Model {
    Model {
        burst: Some(Burst { times, seconds }),
        ..model
    }
}

fn queue(report: &StageReport) -> f64 {
    match report.steady {
        Steady::Stable { queue, .. } => queue,
        Steady::Overloaded { .. } => panic!("{} is overloaded", report.name),
    }
}

/// The prediction is within a tenth of the outcome, or within what is allowed, which is next to nothing where it counts.
#[track_caller]
fn close(case: &str, what: &str, predicted: f64, outcome: f64, allowed: f64) {
    let difference = (predicted - outcome).abs();
    // For the table in docs/sizing.md.
    println!("{case}: {what}: predicted {predicted:.3}, simulated {outcome:.3}");
    assert!(
        difference <= outcome.abs() * 0.1 || difference <= allowed,
        "{case}: {what}: predicted {predicted}, simulated {outcome}"
    );
}

#[test]
fn the_long_run_is_as_simulated() {
    let with = |stage: Stage, variability| Stage {
        variability,
        ..stage
    };
    let irregular = |rate, variability, stage| Model {
        arrivals_variability: variability,
        ..Model::new(rate, [stage])
    };
    let cases = [
        (
            "one worker at 50 %",
            Model::new(50.0, [stage("a", 100.0, 1)]),
        ),
        (
            "one worker at 80 %",
            Model::new(80.0, [stage("a", 100.0, 1)]),
        ),
        (
            "one worker at 90 %",
            Model::new(90.0, [stage("a", 100.0, 1)]),
        ),
        (
            "eight workers at 90 %",
            Model::new(720.0, [stage("a", 100.0, 8)]),
        ),
        (
            "calls that take all the same",
            Model::new(80.0, [with(stage("a", 100.0, 1), 0.0)]),
        ),
        (
            "calls that differ little",
            Model::new(80.0, [with(stage("a", 100.0, 4), 0.3)]),
        ),
        (
            "calls that differ much",
            Model::new(340.0, [with(stage("a", 100.0, 4), 4.0)]),
        ),
        (
            "arrivals that come in waves",
            irregular(90.0, 3.0, stage("a", 100.0, 1)),
        ),
        (
            "batches at 20 %",
            Model::new(200.0, [batches("a", 0.02, 2, 10)]),
        ),
        (
            "batches at 85 %",
            Model::new(850.0, [batches("a", 0.02, 2, 10)]),
        ),
        (
            "batches that take all the same",
            Model::new(700.0, [with(batches("a", 0.1, 1, 100), 0.0)]),
        ),
        (
            "three stages",
            Model::new(
                90.0,
                [
                    stage("a", 100.0, 1),
                    stage("b", 60.0, 2),
                    stage("c", 12.0, 10),
                ],
            ),
        ),
        (
            "regular calls before a stage",
            Model::new(90.0, [with(stage("a", 100.0, 1), 0.2), stage("b", 75.0, 2)]),
        ),
    ];
    for (case, model) in cases {
        let report = model.report().unwrap();
        let options = Simulation {
            records: 500_000,
            ..Simulation::seeded(7)
        };
        let simulated = simulate(&model, options).unwrap();
        for (stage, simulated) in report.stages.iter().zip(&simulated) {
            let Steady::Stable {
                queue,
                wait_seconds,
            } = stage.steady
            else {
                panic!("{case}: {} is overloaded", stage.name);
            };
            close(
                case,
                &format!("queue of {}", stage.name),
                queue,
                simulated.queue.unwrap(),
                0.25,
            );
            let allowed = 0.25 / stage.inflow_per_second;
            close(
                case,
                &format!("wait at {}", stage.name),
                wait_seconds,
                simulated.wait_seconds.unwrap(),
                allowed,
            );
        }
    }
}

#[test]
fn burst_and_outage_are_as_simulated() {
    let one = || Model::new(80.0, [stage("a", 100.0, 1)]);
    let row = || {
        Model::new(
            200.0,
            [
                stage("parse", 150.0, 4),
                Stage {
                    buffer: Some(2000),
                    ..batches("sink", 0.1, 1, 40)
                },
            ],
        )
    };
    // With the number of runs: what chance alone piles up differs much between them.
    let cases = [
        ("an outage", outage(one(), "a", 60.0), 40),
        ("a burst above capacity", burst(one(), 3.0, 60.0), 40),
        ("a burst at capacity", burst(one(), 1.25, 100.0), 600),
        ("a burst below capacity", burst(one(), 1.15, 600.0), 200),
        (
            "a short burst next to capacity",
            burst(one(), 1.24, 20.0),
            600,
        ),
        ("an outage of the sink", outage(row(), "sink", 30.0), 40),
        // The sink is flooded when parse comes back.
        (
            "an outage before the sink",
            outage(Model::new(250.0, row().stages), "parse", 60.0),
            40,
        ),
        ("a burst through two stages", burst(row(), 4.0, 20.0), 40),
        (
            "an outage in a burst",
            burst(outage(row(), "sink", 30.0), 1.5, 15.0),
            40,
        ),
    ];
    for (case, model, runs) in cases {
        let report = model.report().unwrap();
        let options = Simulation {
            records: 50_000,
            runs,
            ..Simulation::seeded(11)
        };
        let simulated = simulate(&model, options).unwrap();
        for (stage, simulated) in report.stages.iter().zip(&simulated) {
            let of = |what: &str| format!("{what} of {}", stage.name);
            let end = report.events_end_seconds;
            close(
                case,
                &of("depth at the end"),
                stage.depth_at_end,
                simulated.depth_at_end.unwrap(),
                1.5,
            );
            // Where flows decide, and not chance.
            if stage.peak.records > 1000.0 {
                close(
                    case,
                    &of("peak"),
                    stage.peak.records,
                    simulated.peak.unwrap(),
                    0.0,
                );
                let Drain::AfterSeconds(drains) = stage.drains else {
                    panic!("{case}: {} never drains", stage.name);
                };
                let drained = simulated.drains_after_seconds.unwrap();
                close(case, &of("drain"), end + drains, end + drained, 0.0);
            }
            match stage.overflows {
                Some(Overflow::AfterSeconds(seconds)) => {
                    let after = simulated.overflows_after_seconds.unwrap();
                    close(case, &of("overflow"), seconds, after, 0.0);
                    assert!(simulated.overflows.unwrap() > 0.9, "{case}: {simulated:?}");
                }
                Some(Overflow::Never) => assert_eq!(simulated.overflows, Some(0.0), "{case}"),
                _ => {}
            }
        }
    }
}

/// What docs/sizing.md says of the approximation where it is weakest: irregularity that goes through stages of the same load.
#[test]
fn stages_of_the_same_load_behind_regular_calls_are_within_a_fifth() {
    let regular = Stage {
        variability: 0.2,
        ..stage("a", 100.0, 1)
    };
    let model = Model::new(90.0, [regular, stage("b", 100.0, 1)]);
    let predicted = queue(&model.report().unwrap().stages[1]);
    let outcome = simulate(&model, Simulation::seeded(7)).unwrap()[1]
        .queue
        .unwrap();
    println!("predicted {predicted:.2}, simulated {outcome:.2}");
    assert!((predicted - outcome).abs() < outcome / 5.0);
}

/// A buffer of what is needed does not overflow, and one that is a tenth smaller does.
#[test]
fn what_a_buffer_needs_is_enough_and_not_much_more() {
    let cases = [
        (
            "an outage",
            outage(Model::new(80.0, [stage("a", 100.0, 1)]), "a", 60.0),
        ),
        (
            "a burst",
            burst(Model::new(80.0, [stage("a", 100.0, 2)]), 5.0, 60.0),
        ),
    ];
    for (case, model) in cases {
        let Need::Records(needs) = model.report().unwrap().stages[0].needs else {
            panic!("{case}");
        };
        let overflows = |buffer| {
            let mut model = model.clone();
            model.stages[0].buffer = Some(buffer);
            let options = Simulation {
                records: 20_000,
                runs: 200,
                ..Simulation::seeded(3)
            };
            simulate(&model, options).unwrap()[0].overflows.unwrap()
        };
        assert!(overflows(needs) < 0.01, "{case}: {needs}");
        assert!(overflows(needs * 9 / 10) > 0.05, "{case}: {needs}");
    }
}

/// Figures from textbooks and by hand.
#[test]
fn queues_have_their_known_lengths() {
    for (rate, stage, mean) in [
        // ρ² / (1 - ρ)
        (50.0, stage("a", 100.0, 1), 0.5),
        (90.0, stage("a", 100.0, 1), 8.1),
        // Erlang's C(2, 1.5) is 9/14, times ρ / (1 - ρ).
        (1.5, stage("a", 1.0, 2), 27.0 / 14.0),
        // Pollaczek and Khinchine: half of it if all calls take the same.
        (
            90.0,
            Stage {
                variability: 0.0,
                ..stage("a", 100.0, 1)
            },
            4.05,
        ),
        // Pairs: r + r² = 3/4, so r = 1/2; all are busy for 3/5 of the time.
        (
            0.75,
            Stage {
                batch: 2,
                ..stage("a", 1.0, 1)
            },
            0.6,
        ),
    ] {
        let report = Model::new(rate, [stage]).report().unwrap();
        let found = queue(&report.stages[0]);
        assert!((found - mean).abs() < 1e-9, "{found} instead of {mean}");
    }
}

#[test]
fn the_verdict_is_in_words() {
    let sink = |buffer| Stage {
        buffer: Some(buffer),
        ..stage("sink", 500.0, 4)
    };
    let parse = || Stage {
        buffer: Some(1000),
        ..stage("parse", 600.0, 4)
    };
    let sized = |rate, buffer| {
        let mut model = Model::new(rate, [parse(), sink(buffer)]);
        model.record_bytes = Some(1024);
        model
    };
    for (model, expected) in [
        (
            sized(800.0, 50_000),
            vec![
                "the bottleneck is sink: it takes 2000 records/s",
                "no buffer overflows",
            ],
        ),
        (
            outage(sized(800.0, 10_000), "sink", 60.0),
            vec![
                "the bottleneck is sink: it takes 2000 records/s",
                "sink overflows after 12.5 s; it needs 48678 records (47.5 MiB); it drains in 40.0 s",
            ],
        ),
        (
            outage(sized(800.0, 48_100), "sink", 60.0),
            vec![
                "the bottleneck is sink: it takes 2000 records/s",
                "sink overflows sometimes; it needs 48678 records (47.5 MiB); it drains in 40.0 s",
            ],
        ),
        (
            sized(2200.0, 10_000),
            vec![
                "the bottleneck is sink: it takes 2000 records/s",
                "sink overflows after 50.0 s; no buffer is large enough; it never drains",
            ],
        ),
        (
            Model::new(3000.0, [stage("parse", 600.0, 4), stage("sink", 500.0, 5)]),
            vec![
                "the bottleneck is parse: it takes 2400 records/s",
                "parse gets behind; no buffer is large enough; it never drains",
                "sink needs a buffer: it needs 166 records",
            ],
        ),
    ] {
        assert_eq!(model.report().unwrap().verdict, expected);
    }
}

#[test]
fn a_stage_behind_a_slower_one_is_shielded() {
    let stages = [
        stage("a", 100.0, 2),
        stage("b", 100.0, 1),
        stage("c", 100.0, 3),
    ];
    let report = Model::new(500.0, stages).report().unwrap();
    let from: Vec<_> = report
        .stages
        .iter()
        .map(|stage| stage.overflows_from_per_second)
        .collect();
    assert_eq!(from, [Some(200.0), Some(100.0), None]);
    let comes: Vec<_> = report
        .stages
        .iter()
        .map(|stage| stage.inflow_per_second)
        .collect();
    assert_eq!(comes, [500.0, 200.0, 100.0]);
    assert_eq!(report.bottleneck, "b");
}

#[test]
fn values_that_cannot_be_are_named() {
    let good = || {
        outage(
            burst(Model::new(80.0, [stage("a", 100.0, 1)]), 2.0, 1.0),
            "a",
            1.0,
        )
    };
    type Change = fn(&mut Model);
    let cases: [(&str, Change, &str); 18] = [
        (
            "rate",
            |it| it.arrivals_per_second = 0.0,
            "arrivals_per_second is 0: it must be more than 0, up to 1e9",
        ),
        (
            "no number",
            |it| it.arrivals_per_second = f64::NAN,
            "arrivals_per_second is NaN",
        ),
        (
            "infinite",
            |it| it.arrivals_per_second = f64::INFINITY,
            "arrivals_per_second is inf",
        ),
        (
            "arrivals",
            |it| it.arrivals_variability = -1.0,
            "arrivals_variability is -1",
        ),
        ("none", |it| it.stages.clear(), "there are 0 stages"),
        (
            "many",
            |it| it.stages = vec![stage("a", 1.0, 1); 101],
            "there are 101 stages",
        ),
        (
            "twice",
            |it| it.stages.push(stage("a", 1.0, 1)),
            "two stages have the name \"a\"",
        ),
        (
            "name",
            |it| it.stages[0].name.clear(),
            "\"\" is no name of a stage",
        ),
        (
            "per second",
            |it| it.stages[0].service = Service::PerSecond(0.0),
            "per_second of a is 0",
        ),
        (
            "seconds",
            |it| it.stages[0].service = Service::Seconds(f64::NAN),
            "seconds of a is NaN",
        ),
        (
            "workers",
            |it| it.stages[0].workers = 0,
            "workers of a is 0: it must be 1 to 10000",
        ),
        (
            "batch",
            |it| it.stages[0].batch = 100_001,
            "batch of a is 100001",
        ),
        (
            "buffer",
            |it| it.stages[0].buffer = Some(u64::MAX),
            "buffer of a is 18446744073709552000",
        ),
        (
            "calls",
            |it| it.stages[0].variability = 0.001,
            "variability of a is 0.001",
        ),
        (
            "outage",
            |it| it.outage.as_mut().unwrap().seconds = 0.0,
            "the outage's seconds is 0",
        ),
        (
            "unknown",
            |it| it.outage.as_mut().unwrap().stage = Some("b".into()),
            "the outage is of \"b\"",
        ),
        (
            "burst",
            |it| it.burst.as_mut().unwrap().times = 1.0,
            "the burst's times is 1",
        ),
        ("bytes", |it| it.record_bytes = Some(0), "record_bytes is 0"),
    ];
    good().report().unwrap();
    for (case, spoil, says) in cases {
        let mut model = good();
        spoil(&mut model);
        let said = model.report().unwrap_err().to_string();
        assert!(said.starts_with(says), "{case}: {said}");
    }
    let mut large = outage(Model::new(1e9, [stage("a", 1e9, 2)]), "a", 2_592_000.0);
    large.record_bytes = Some(1 << 30);
    assert_eq!(
        large.report().unwrap_err(),
        SizingError::TooManyBytes("a".into())
    );
}

#[test]
fn a_simulation_is_bounded() {
    let busy = burst(Model::new(1e6, [stage("a", 1e9, 1)]), 10.0, 2_592_000.0);
    let options = Simulation {
        records: 10,
        runs: 1,
        ..Simulation::default()
    };
    assert!(matches!(
        simulate(&busy, options),
        Err(SizingError::TooManySteps(_))
    ));
}

#[test]
fn models_are_read_from_json() {
    let text = r#"{"arrivals_per_second": 80, "stages": [{"name": "a", "service": {"seconds": 0.01}}],
        "outage": {"seconds": 5}}"#;
    let model: Model = serde_json::from_str(text).unwrap();
    let mut expected = Model::new(80.0, [Stage::new("a", Service::Seconds(0.01), 1)]);
    expected.outage = Some(Outage {
        stage: None,
        seconds: 5.0,
    });
    assert_eq!(model, expected);
    let written = serde_json::to_string(&model).unwrap();
    assert_eq!(serde_json::from_str::<Model>(&written).unwrap(), model);
}

/// Figures of a producer as it writes them.
fn figures(accepted: u64, sent: u64, batches: u64, in_flight: u64) -> String {
    let mut figures = crate::Figures::default();
    (figures.accepted, figures.refused) = (accepted, 10);
    (figures.sent, figures.batches, figures.in_flight) = (sent, batches, in_flight);
    (figures.memory_count, figures.memory_bytes) = (10, 5000);
    figures.prometheus("bil\"ling")
}

#[test]
fn a_model_is_made_of_what_a_producer_has_counted() {
    let mut readings = Readings::default();
    for (seconds, text) in [
        (100.0, figures(0, 0, 0, 20)),
        (110.0, figures(8000, 4000, 400, 40)),
    ] {
        let reading = Reading::parse(&text, Some("bil\"ling")).unwrap();
        assert_eq!(Reading::parse(&text, None), Ok(reading));
        readings.add(seconds, reading).unwrap();
    }
    let model = readings.model(Some(4)).unwrap();
    // 400 records are sent in a second and 30 are on their way.
    let mut expected = Model::new(800.0, [batches("sink", 0.075, 4, 10)]);
    expected.record_bytes = Some(500);
    assert_eq!(model, expected);
}

#[test]
fn figures_that_say_nothing_are_refused() {
    let parse = |text: &str| Reading::parse(text, None).unwrap_err().to_string();
    assert_eq!(parse("up 1\n"), "there are no figures of a producer");
    assert_eq!(
        parse("# x\nlockgate_producer_a{producer=\"x} 1\n"),
        "line 2 is no metric in the text format of Prometheus"
    );
    assert_eq!(
        parse(
            "lockgate_producer_a{producer=\"x\"} 1\nlockgate_producer_a{job=\"j\",producer=\"y\"} 1 99\n"
        ),
        "there are figures of several producers, x, y: name one"
    );
    assert_eq!(
        parse("lockgate_producer_a{producer=\"x\"} 1\n"),
        "lockgate_producer_accepted_total is missing"
    );
    assert_eq!(
        parse("lockgate_producer_a{producer=\"x\"} NaN\n"),
        "line 1 is no metric in the text format of Prometheus"
    );

    let model = |texts: &[String]| {
        let mut readings = Readings::default();
        for (seconds, text) in (0..).zip(texts) {
            readings.add(f64::from(seconds), Reading::parse(text, None)?)?;
        }
        readings.model(Some(1))
    };
    let first = figures(5, 5, 5, 0);
    for (texts, error) in [
        (vec![], ReadingError::TooFew),
        (vec![first.clone()], ReadingError::TooFew),
        (
            vec![first.clone(), figures(4, 5, 5, 1)],
            ReadingError::Backwards,
        ),
        (
            vec![first.clone(), figures(5, 6, 6, 1)],
            ReadingError::Idle("accepted"),
        ),
        (
            vec![first.clone(), figures(6, 5, 5, 1)],
            ReadingError::Idle("sent"),
        ),
        (
            vec![first.clone(), figures(6, 6, 6, 0)],
            ReadingError::NothingInFlight,
        ),
    ] {
        assert_eq!(model(&texts).unwrap_err(), error);
    }
}

/// Any number that may be given, small ones and large ones alike.
fn between(low: f64, high: f64) -> impl Strategy<Value = f64> {
    (low.ln()..=high.ln()).prop_map(move |power| power.exp().clamp(low, high))
}

fn any_stage() -> impl Strategy<Value = Stage> {
    let service = prop_oneof![
        between(1e-6, 1e9).prop_map(Service::PerSecond),
        between(1e-9, 1e6).prop_map(Service::Seconds),
    ];
    let variability = prop_oneof![Just(0.0), between(0.01, 100.0)];
    let buffer = prop::option::of(0..=1_000_000_000_000_000_u64);
    (service, 1..=10_000_u32, 1..=1000_u32, buffer, variability).prop_map(
        |(service, workers, batch, buffer, variability)| Stage {
            name: String::new(),
            service,
            workers,
            batch,
            buffer,
            variability,
        },
    )
}

fn any_model() -> impl Strategy<Value = Model> {
    let outage = prop::option::of(between(1e-3, 2_592_000.0));
    let burst = prop::option::of((between(1.1, 1000.0), between(1e-3, 2_592_000.0)));
    let stages = prop::collection::vec(any_stage(), 1..6);
    (
        between(1e-3, 1e6),
        stages,
        outage,
        burst,
        any::<prop::sample::Index>(),
    )
        .prop_map(|(rate, mut stages, outage, burst, of)| {
            for (number, stage) in stages.iter_mut().enumerate() {
                stage.name = number.to_string();
            }
            let stage = Some(of.index(stages.len()).to_string());
            let mut model = Model::new(rate, stages);
            model.outage = outage.map(|seconds| Outage { stage, seconds });
            model.burst = burst.map(|(times, seconds)| Burst { times, seconds });
            model
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// JSON has no infinity and no NaN: serde_json writes null.
    #[test]
    fn every_number_of_a_report_is_finite(model in any_model()) {
        let report = model.report().unwrap();
        let written = serde_json::to_value(&report).unwrap();
        let mut values = vec![&written];
        let mut numbers = 0;
        while let Some(value) = values.pop() {
            match value {
                serde_json::Value::Array(inner) => values.extend(inner),
                serde_json::Value::Object(inner) => values.extend(
                    inner.iter().filter(|(name, value)| !(value.is_null() && MAY_BE_UNKNOWN.contains(&name.as_str()))).map(|(_, value)| value)
                ),
                serde_json::Value::Number(number) => {
                    numbers += 1;
                    prop_assert!(number.as_f64().unwrap() >= 0.0, "{number} in {written}");
                }
                serde_json::Value::Null => prop_assert!(false, "null in {written}"),
                _ => {}
            }
        }
        prop_assert!(numbers > 0);
    }

    /// A stage that keeps up in the long run drains, and has records left at no time after.
    #[test]
    fn what_keeps_up_drains(model in any_model()) {
        let report = model.report().unwrap();
        for stage in &report.stages {
            prop_assert_eq!(stage.drains == Drain::Never, stage.needs == Need::Unbounded, "{:?}", stage);
            let mut before = -1.0;
            for point in &stage.depths {
                prop_assert!(point.seconds >= before, "{:?}", stage);
                before = point.seconds;
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(lockgate_producer_[a-z_]{1,9}\\{producer=\"[a-z\\\\\"]{0,3}\"?[,}] ?[0-9.]{0,3}\n|.{0,9}\n){0,5}") {
        let _ = Reading::parse(&text, None);
    }
}

const MAY_BE_UNKNOWN: [&str; 4] = [
    "overflows_from_per_second",
    "buffer",
    "needs_bytes",
    "overflows",
];
