//! The configuration file: found, read, every key known.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use toml::de::{DeTable, DeValue};

use super::{AnySetting, Environment, Form, table::SETTINGS};
use crate::exit::{Exit, Failure};

/// What a configuration file says.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    /// By setting name: the texts, and the line they stand on.
    pub(crate) values: BTreeMap<&'static str, (Vec<String>, usize)>,
    /// What is wrong with it, each with file and line.
    pub(crate) problems: Vec<String>,
}

/// The file to read, and whether it has to be there: named by flag, else by `LOCKGATE_CONFIG`, else
/// `lockgate.toml` in the working directory, else `lockgate/config.toml` in the user's configuration
/// folder.
pub(crate) fn locate(flag: Option<&str>, environment: Environment<'_>) -> Option<PathBuf> {
    if let Some(path) = flag {
        return Some(PathBuf::from(path));
    }
    if let Some(path) = environment("LOCKGATE_CONFIG") {
        return Some(PathBuf::from(path));
    }
    let here = PathBuf::from("lockgate.toml");
    if here.exists() {
        return Some(here);
    }
    let folder = match environment("XDG_CONFIG_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(environment("HOME")?).join(".config"),
    };
    Some(folder.join("lockgate/config.toml")).filter(|path| path.exists())
}

impl ConfigFile {
    /// Reads a file. What is wrong *in* it is collected in `problems`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let exit = match error.kind() {
                io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::Failed,
            };
            Failure::from_error(exit, error)
                .context(format!("reading the configuration file {}", path.display()))
        })?;
        Ok(Self::parse(path, &text))
    }

    pub(crate) fn parse(path: &Path, text: &str) -> Self {
        let mut file = Self {
            path: path.to_owned(),
            ..Self::default()
        };
        let line = |at: usize| {
            1 + text.as_bytes()[..at.min(text.len())]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count()
        };
        let place = |at: usize| format!("{}:{}", path.display(), line(at));

        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let at = error.span().map_or(0, |span| span.start);
            file.problems
                .push(format!("{}: {}", place(at), error.message()));
        }
        if !file.problems.is_empty() {
            return file;
        }
        for (key, value) in table.get_ref() {
            let at = key.span().start;
            let name = key.get_ref().as_ref();
            let Some(setting) = SETTINGS
                .iter()
                .find(|setting| setting.about().key() == name)
            else {
                file.problems.push(format!(
                    "{}: unknown key {name:?}{}",
                    place(at),
                    did_you_mean(name)
                ));
                continue;
            };
            match texts(*setting, value.get_ref())
                .and_then(|texts| setting.check(&texts).map(|()| texts))
            {
                Ok(texts) => {
                    file.values.insert(setting.about().name, (texts, line(at)));
                }
                Err(problem) => {
                    let quotes = match value.get_ref() {
                        DeValue::Integer(_) if problem.contains(": write ") => " (in quotes)",
                        _ => "",
                    };
                    file.problems
                        .push(format!("{}: {name}: {problem}{quotes}", place(at)));
                }
            }
        }
        file
    }
}

/// A TOML value as the texts it would be as flags.
fn texts(setting: &dyn AnySetting, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match (setting.about().form, value) {
        (Form::Many, DeValue::Array(items)) => {
            items.iter().map(|item| text(item.get_ref())).collect()
        }
        (Form::Many, _) => Err("expected an array, such as [\"a\", \"b\"]".to_owned()),
        (_, value) => Ok(vec![text(value)?]),
    }
}

fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().replace('_', "")),
        DeValue::Boolean(switch) => Ok(switch.to_string()),
        other => Err(format!(
            "a value of type {} does not fit here",
            other.type_str()
        )),
    }
}

/// The known key that is nearest to a mistyped one, as a question.
fn did_you_mean(given: &str) -> String {
    let squash = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
    let distance = |known: &str| edit_distance(&squash(given), &squash(known));
    SETTINGS
        .iter()
        .map(|setting| setting.about().key())
        .min_by_key(|known| distance(known))
        .filter(|known| distance(known) <= 2)
        .map(|known| format!(", did you mean {known:?}?"))
        .unwrap_or_default()
}

/// Levenshtein's distance, one row at a time.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        ConfigFile::parse(Path::new("c.toml"), text).problems
    }

    #[test]
    fn every_problem_names_its_line() {
        assert_eq!(
            problems(
                "listen = \"127.0.0.1:1\"\n\nlisten_adress = 3\nalowed_host = []\nregion = 1.5\n"
            ),
            [
                "c.toml:4: unknown key \"alowed_host\", did you mean \"allowed_host\"?",
                "c.toml:3: unknown key \"listen_adress\"",
                "c.toml:5: region: a value of type float does not fit here",
            ]
        );
        assert_eq!(
            problems("body_max = 1000\nidle_timeout = 10\n"),
            [
                "c.toml:1: body_max: \"1000\" is no size: write 1000B, or another unit, as in 64KiB or 10MiB \
                 (in quotes)",
                "c.toml:2: idle_timeout: \"10\" is no duration: write 10s, or another unit, as in 500ms, 5m or 2h \
                 (in quotes)",
            ]
        );
        assert_eq!(problems("free_min = 0\nidle_timeout = \"10s\"\n"), [""; 0]);
        assert!(problems("listen = \n")[0].starts_with("c.toml:1: "));
        assert_eq!(
            problems("allowed_host = \"a\""),
            ["c.toml:1: allowed_host: expected an array, such as [\"a\", \"b\"]"]
        );
        assert!(problems("listen = \"nowhere\"")[0].starts_with("c.toml:1: listen: "));
        assert_eq!(
            problems("[server]\nlisten = \"127.0.0.1:1\""),
            ["c.toml:1: unknown key \"server\""]
        );
    }

    #[test]
    fn the_files_order_of_precedence() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("lockgate/config.toml");
        std::fs::create_dir(config.parent().unwrap()).unwrap();
        std::fs::write(&config, "").unwrap();
        let xdg = folder.path().to_str().unwrap().to_owned();
        let environment = |name: &str| (name == "XDG_CONFIG_HOME").then(|| xdg.clone());
        assert_eq!(locate(None, &environment), Some(config));
        let named = |name: &str| match name {
            "LOCKGATE_CONFIG" => Some("named.toml".to_owned()),
            _ => environment(name),
        };
        assert_eq!(locate(None, &named), Some(PathBuf::from("named.toml")));
        assert_eq!(
            locate(Some("flag.toml"), &named),
            Some(PathBuf::from("flag.toml"))
        );
        assert_eq!(locate(None, &|_| None), None);
    }
}
