//! `lockgate config show` and `check`.

use serde::Serialize;
use serde_json::json;

use super::{environment, serve::declared_queues};
use crate::{
    args::Config,
    exit::Failure,
    output::{Output, Table, complain, note},
    settings::{Form, Source, resolve, table::SETTINGS},
};

pub(crate) fn run(args: &Config) -> Result<(), Failure> {
    match args {
        Config::Show(args) => show(args.json, &args.settings.0),
        Config::Check(args) => check(&args.settings.0),
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

fn check(flags: &crate::settings::Flags) -> Result<(), Failure> {
    let resolved = resolve(flags, &environment)?;
    for name in unknown_variables(std::env::vars_os()) {
        complain(
            "warning",
            &format!("the variable {name} is not one of Lockgate's settings"),
        );
    }
    match &resolved.file {
        Some(path) => note(&format!("{path}: no problems")),
        None => note("no configuration file; the variables have no problems"),
    }
    if let Some(queues) = declared_queues(&resolved)? {
        for warning in &queues.warnings {
            complain("warning", warning);
        }
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
