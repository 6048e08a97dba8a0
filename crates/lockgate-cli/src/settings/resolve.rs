//! Which value a setting has, and where it came from.

use std::{collections::BTreeMap, fmt};

use super::{AnySetting, ConfigFile, Flags, Form, Setting, locate, table::SETTINGS};
use crate::exit::Failure;

/// Reads an environment variable; one that is empty counts as not set.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The command line.
    Flag,
    /// This variable.
    Environment(String),
    /// This file, and the line in it.
    File(String, usize),
    /// Nobody said anything.
    Default,
}

/// Every setting with its value and where that came from.
#[derive(Debug)]
pub(crate) struct Resolved {
    values: BTreeMap<&'static str, (Vec<String>, Source)>,
    /// The configuration file that was read.
    pub(crate) file: Option<String>,
}

/// Puts flags, variables, file and defaults together, and checks every value that was given, also
/// those that are overruled.
///
/// # Errors
/// If anything given is wrong; all problems are in the message, one a line.
pub(crate) fn resolve(flags: &Flags, environment: Environment<'_>) -> Result<Resolved, Failure> {
    let (resolved, problems) = resolve_with_problems(flags, environment)?;
    if !problems.is_empty() {
        return Err(Failure::problems(&problems));
    }
    Ok(resolved)
}

/// The same, with a list of all that is wrong. Values may be read only if it is empty.
///
/// # Errors
/// If the configuration file cannot be read.
pub(crate) fn resolve_with_problems(
    flags: &Flags,
    environment: Environment<'_>,
) -> Result<(Resolved, Vec<String>), Failure> {
    let file = locate(flags.config.as_deref(), environment)
        .map(|path| ConfigFile::read(&path))
        .transpose()?;
    let mut problems = file
        .as_ref()
        .map(|file| file.problems.clone())
        .unwrap_or_default();
    let values = SETTINGS
        .iter()
        .map(|setting| {
            let name = setting.about().name;
            let value = value(*setting, flags, environment, file.as_ref(), &mut problems);
            (name, value)
        })
        .collect();
    let resolved = Resolved {
        values,
        file: file.map(|file| file.path.display().to_string()),
    };
    Ok((resolved, problems))
}

fn value(
    setting: &dyn AnySetting,
    flags: &Flags,
    environment: Environment<'_>,
    file: Option<&ConfigFile>,
    problems: &mut Vec<String>,
) -> (Vec<String>, Source) {
    let about = setting.about();
    let mut check = |texts: &[String], place: &str| {
        if let Err(problem) = setting.check(texts) {
            problems.push(format!("{place}: {problem}"));
        }
    };
    let variable = about.variable();
    let from_variable = environment(&variable).map(|text| match about.form {
        Form::Many => text.split(',').map(|part| part.trim().to_owned()).collect(),
        Form::One | Form::Secret | Form::Number | Form::Switch => vec![text],
    });
    let from_flag = flags.given.get(about.name);

    if let Some(texts) = &from_variable {
        check(texts, &variable);
    }
    if let Some(texts) = from_flag {
        check(texts, &format!("--{}", about.name));
        return (texts.clone(), Source::Flag);
    }
    if let Some(texts) = from_variable {
        return (texts, Source::Environment(variable));
    }
    if let Some((file, (texts, line))) =
        file.and_then(|file| Some((file, file.values.get(about.name)?)))
    {
        return (
            texts.clone(),
            Source::File(file.path.display().to_string(), *line),
        );
    }
    let default = about
        .default
        .iter()
        .map(|text| (*text).to_owned())
        .collect();
    (default, Source::Default)
}

impl Resolved {
    /// The setting's value.
    pub(crate) fn get<T>(&self, setting: &'static Setting<T>) -> T {
        let (texts, _) = &self.values[setting.about.name];
        (setting.read)(texts).expect("all values were checked when they were resolved")
    }

    /// Whether somebody gave the setting a value.
    pub(crate) fn is_given<T>(&self, setting: &'static Setting<T>) -> bool {
        self.values[setting.about.name].1 != Source::Default
    }

    /// Every setting in the table's order: its texts, and where they came from.
    pub(crate) fn all(
        &self,
    ) -> impl Iterator<Item = (&'static dyn AnySetting, &[String], &Source)> {
        SETTINGS.iter().map(|setting| {
            let (texts, source) = &self.values[setting.about().name];
            (*setting, texts.as_slice(), source)
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment(name) => write!(f, "env {name}"),
            Self::File(path, line) => write!(f, "{path}:{line}"),
            Self::Default => f.write_str("default"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::table;

    #[test]
    fn the_defaults_of_the_table_are_values() {
        let mut names = std::collections::BTreeSet::new();
        for setting in SETTINGS {
            let about = setting.about();
            let texts: Vec<_> = about
                .default
                .iter()
                .map(|text| (*text).to_owned())
                .collect();
            assert_eq!(setting.check(&texts), Ok(()), "{}", about.name);
            assert!(names.insert(about.name), "{} is there twice", about.name);
            assert!(!about.help.ends_with('.'), "{}", about.name);
        }
    }

    /// Every combination of flag, variable and file: the first of them that is there wins.
    #[test]
    fn precedence_is_flag_then_variable_then_file_then_default() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("c.toml");
        for combination in 0..8 {
            let [flag, variable, file] = [1, 2, 4].map(|bit| combination & bit != 0);
            std::fs::write(&path, if file { "\nregion = \"file\"\n" } else { "" }).unwrap();
            let mut flags = Flags {
                config: Some(path.display().to_string()),
                ..Flags::default()
            };
            if flag {
                flags.given.insert("region", vec!["flag".to_owned()]);
            }
            let environment =
                |name: &str| (variable && name == "LOCKGATE_REGION").then(|| "env".to_owned());
            let resolved = resolve(&flags, &environment).unwrap();
            let expected = match (flag, variable, file) {
                (true, _, _) => ("flag", Source::Flag),
                (_, true, _) => ("env", Source::Environment("LOCKGATE_REGION".to_owned())),
                (_, _, true) => ("file", Source::File(path.display().to_string(), 2)),
                _ => ("us-east-1", Source::Default),
            };
            assert_eq!(resolved.get(&table::REGION), expected.0);
            let (_, _, source) = resolved
                .all()
                .find(|(setting, ..)| setting.about().name == "region")
                .unwrap();
            assert_eq!(*source, expected.1);
        }
    }

    #[test]
    fn a_wrong_value_is_found_wherever_it_stands_and_even_when_overruled() {
        let mut flags = Flags::default();
        flags.given.insert("listen", vec!["127.0.0.1:1".to_owned()]);
        let environment = |name: &str| match name {
            "LOCKGATE_LISTEN" => Some("nowhere".to_owned()),
            "LOCKGATE_ACCOUNT" => Some("12".to_owned()),
            _ => None,
        };
        let failure = resolve(&flags, &environment).unwrap_err().to_string();
        assert!(failure.contains("LOCKGATE_LISTEN: "), "{failure}");
        assert!(failure.contains("LOCKGATE_ACCOUNT: "), "{failure}");
    }
}
