//! `lockgate config show` and `check`.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::json;

use super::{environment, serve::declared_queues};
use crate::{
    args::Config,
    exit::{Exit, Failure},
    output::{Output, Table, complain, note},
    settings::{
        Form, Source, resolve, resolve_with_problems,
        table::{self, SETTINGS},
    },
};

pub(crate) fn run(args: &Config) -> Result<(), Failure> {
    match args {
        Config::Show(args) => show(args.json, &args.settings.0),
        Config::Check(args) => check(args.json, &args.settings.0),
    }
}

/// What stands for a value that may hold a password.
const HIDDEN: &str = "(hidden)";

/// One setting as `--json` prints it.
#[derive(Serialize)]
struct Shown<'a> {
    setting: &'static str,
    value: serde_json::Value,
    /// `flag`, `env`, `file` or `default`.
    source: &'static str,
    /// The variable, or file and line.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<&'a str>,
}

fn show(json: bool, flags: &crate::settings::Flags) -> Result<(), Failure> {
    let resolved = resolve(flags, &environment)?;
    let mut output = Output::new();
    let mut table = Table::new(["SETTING", "VALUE", "SOURCE"]);
    for (setting, texts, source) in resolved.all() {
        let about = setting.about();
        let place = source.to_string();
        if !json {
            let value = match (about.form, texts) {
                (Form::Secret, [_, ..]) => HIDDEN.to_owned(),
                (_, texts) => texts.join(","),
            };
            table.row([about.name.to_owned(), value, place]);
            continue;
        }
        let (source, place) = match source {
            Source::Flag => ("flag", None),
            Source::Environment(name) => ("env", Some(name.as_str())),
            Source::File(..) => ("file", Some(place.as_str())),
            Source::Default => ("default", None),
        };
        output.json(&Shown {
            setting: about.name,
            value: match about.form {
                Form::Many => json!(texts),
                Form::Switch => json!(texts == ["true"]),
                Form::Number => json!(texts.first().and_then(|text| text.parse::<u64>().ok())),
                Form::One => json!(texts.first()),
                Form::Secret => json!(texts.first().map(|_| HIDDEN)),
            },
            source,
            place,
        })?;
    }
    if !json {
        output.table(&table)?;
    }
    output.flush()
}

/// What is wrong with the configuration, all of it.
#[derive(Default, Serialize)]
struct Checked {
    /// The configuration file that was read.
    file: Option<String>,
    /// The file of queues that was read.
    queues: Option<PathBuf>,
    warnings: Vec<String>,
    problems: Vec<String>,
}

fn check(json: bool, flags: &crate::settings::Flags) -> Result<(), Failure> {
    let (resolved, problems) = resolve_with_problems(flags, &environment)?;
    let unknown = unknown_variables(std::env::vars_os()).into_iter();
    let unknown =
        unknown.map(|name| format!("the variable {name} is not one of Lockgate's settings"));
    let mut found = Checked {
        warnings: unknown.collect(),
        problems,
        ..Checked::default()
    };
    let mut queues = None;
    if found.problems.is_empty() {
        found.queues = resolved.get(&table::QUEUES);
        match declared_queues(&resolved) {
            Ok(Some(file)) => {
                found.warnings.extend(file.warnings.iter().cloned());
                queues = Some(file);
            }
            Ok(None) => {}
            Err(failure) if failure.exit() == Exit::Usage => found.problems.extend(
                failure
                    .to_string()
                    .lines()
                    .map(|line| line.trim_start().to_owned()),
            ),
            Err(failure) => return Err(failure),
        }
    }
    found.file = resolved.file;
    if json {
        let mut output = Output::new();
        output.json(&found)?;
        output.flush()?;
        return match found.problems.is_empty() {
            true => Ok(()),
            false => Err(Failure::usage("").told()),
        };
    }
    for warning in &found.warnings {
        complain("warning", warning);
    }
    if !found.problems.is_empty() {
        return Err(Failure::problems(&found.problems));
    }
    match &found.file {
        Some(path) => note(&format!("{path}: no problems")),
        None => note("no configuration file; the variables have no problems"),
    }
    if let Some(queues) = queues {
        note(&format!("{queues}: no problems"));
    }
    Ok(())
}

/// Variables that look like settings and are none. Only worth a warning: an orchestrator that runs
/// a service called lockgate sets some of its own (LOCKGATE_PORT, LOCKGATE_SERVICE_HOST).
fn unknown_variables(
    variables: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
) -> Vec<String> {
    let mut unknown: Vec<_> = variables
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.starts_with("LOCKGATE_") && name != "LOCKGATE_CONFIG")
        .filter(|name| {
            SETTINGS
                .iter()
                .all(|setting| setting.about().variable() != *name)
        })
        .collect();
    unknown.sort();
    unknown
}
