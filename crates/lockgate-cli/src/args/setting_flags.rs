//! A flag for each setting of a queue, by the table of settings.

use std::sync::LazyLock;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use lockgate_machine::{SETTINGS, Setting, SettingKind, SettingValue};

/// The settings that are named, each once.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingFlags(pub(crate) Vec<(&'static Setting, Given)>);

/// A value that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// `default`: whatever that is for the queue.
    Default,
    /// This one.
    Value(SettingValue),
}

/// The names of the flags, in order of the table: clap wants them for as long as the program runs.
static NAMES: LazyLock<Vec<String>> =
    LazyLock::new(|| SETTINGS.iter().map(Setting::flag_name).collect());

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        let names: &'static [String] = &NAMES;
        command.args(
            SETTINGS
                .iter()
                .zip(names)
                .map(|(setting, name)| flag(setting, name)),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |setting: &'static Setting| {
            let given = matches.get_one::<Given>(setting.name)?;
            Some((setting, given.clone()))
        };
        Ok(Self(SETTINGS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn flag(setting: &'static Setting, name: &'static str) -> Arg {
    let value_name = match setting.kind {
        SettingKind::Flag => "BOOL",
        SettingKind::Word(_) => "WORD",
        SettingKind::Count { .. } => "N",
        SettingKind::Time { .. } => "TIME",
        SettingKind::Bytes { .. } => "SIZE",
        SettingKind::Queue => "QUEUE",
        SettingKind::Rate | SettingKind::Concurrency | SettingKind::Gap => "LIMIT",
    };
    let about = setting.about().trim_end_matches('.');
    Arg::new(setting.name)
        .long(name)
        .value_name(value_name)
        .help(format!("{about}: {}", setting.values()))
        .value_parser(move |text: &str| match text {
            "default" => Ok(Given::Default),
            text => (setting.parse(text).map(Given::Value)).map_err(|error| error.to_string()),
        })
}
