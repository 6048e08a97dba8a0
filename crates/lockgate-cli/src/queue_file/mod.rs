//! The file that declares queues and exchanges: read in one of two forms into one.
//!
//! What the settings mean is the server's business ([`lockgate_server::check_queues`]); here each
//! is found with the line it stands on, so that whatever is wrong with it can be told by place.

mod elasticmq;
mod exchanges;
mod hocon;
mod own;
mod schedules;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use lockgate_core::ScheduleName;
use lockgate_machine::{ScheduleSpec, Setting, SettingValue};
use lockgate_server::{
    DeclareProblem, DeclaredExchange, DeclaredPart, DeclaredQueue, ExchangePart, ExchangeProblem,
    check_exchanges, check_queues,
};

use crate::{
    exit::{Exit, Failure},
    output::count,
};

/// How a file declares queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// By the file's extension: `.conf` is ElasticMQ's.
    Auto,
    /// `[[queue]]` and `[[exchange]]` tables in TOML.
    Toml,
    /// ElasticMQ's `queues { ... }`.
    ElasticMq,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "toml" => Ok(Self::Toml),
            "elasticmq" => Ok(Self::ElasticMq),
            _ => Err(format!("{text:?} is none of auto, toml and elasticmq")),
        }
    }
}

/// What a file declares.
#[derive(Debug)]
pub(crate) struct QueueFile {
    path: PathBuf,
    queues: Vec<Entry>,
    exchanges: Vec<ExchangeEntry>,
    schedules: Vec<ScheduleEntry>,
    /// What was read over, each with its place.
    pub(crate) warnings: Vec<String>,
}

/// A queue, and the lines its parts stand on.
#[derive(Debug, Default, PartialEq)]
struct Entry {
    queue: DeclaredQueue,
    line: usize,
    /// By the names of settings.
    setting_lines: BTreeMap<&'static str, usize>,
    tags_line: usize,
}

impl Entry {
    /// Takes over a setting, which its form has once.
    fn set(&mut self, line: usize, setting: &'static Setting, value: SettingValue) {
        self.setting_lines.insert(setting.name, line);
        self.queue.settings.push((setting, value));
        // The order of the file means nothing.
        self.queue.settings.sort_by_key(|(setting, _)| setting.name);
    }
}

/// An exchange, and the lines its parts stand on.
#[derive(Debug, PartialEq)]
struct ExchangeEntry {
    exchange: DeclaredExchange,
    line: usize,
    /// That of its rule for messages that it cannot route.
    rule_line: usize,
    binding_lines: Vec<usize>,
}

/// A schedule, and the line it stands on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScheduleEntry {
    pub(crate) name: ScheduleName,
    pub(crate) spec: ScheduleSpec,
    line: usize,
}

/// What is in a text.
#[derive(Debug, Default)]
struct Found {
    queues: Vec<Entry>,
    exchanges: Vec<ExchangeEntry>,
    schedules: Vec<ScheduleEntry>,
}

/// What a form makes of a text: what is in it and warnings, or problems; each of those with its line.
type Parsed = Result<(Found, Vec<Remark>), Vec<Remark>>;

/// Something to say about a line.
#[derive(Debug, PartialEq, Eq)]
struct Remark {
    line: usize,
    text: String,
}

impl Remark {
    fn new(line: usize, text: impl Into<String>) -> Self {
        Self {
            line,
            text: text.into(),
        }
    }
}

impl QueueFile {
    /// Reads a file and checks all it says.
    ///
    /// # Errors
    /// If it cannot be read, or anything in it is wrong; all problems are in the message, one a line.
    pub(crate) fn read(path: &Path, format: Format) -> Result<Self, Failure> {
        let text = match path == Path::new("-") {
            true => io::read_to_string(io::stdin()),
            false => std::fs::read_to_string(path),
        };
        let text = text.map_err(|error| {
            let exit = match error.kind() {
                io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::Failed,
            };
            Failure::from_error(exit, error)
                .context(format!("reading the queues in {}", path.display()))
        })?;
        Self::parse(path, &text, format)
    }

    pub(crate) fn parse(path: &Path, text: &str, format: Format) -> Result<Self, Failure> {
        let is_elasticmq = match format {
            Format::Auto => path
                .extension()
                .is_some_and(|extension| extension == "conf"),
            Format::Toml => false,
            Format::ElasticMq => true,
        };
        let parsed = if is_elasticmq {
            elasticmq::parse(text)
        } else {
            own::parse(text)
        };
        let tell = |remarks: Vec<Remark>| -> Vec<String> {
            let place =
                |remark: Remark| format!("{}:{}: {}", path.display(), remark.line, remark.text);
            remarks.into_iter().map(place).collect()
        };
        let (found, warnings) = parsed.map_err(|problems| Failure::problems(&tell(problems)))?;
        let file = Self {
            path: path.to_owned(),
            queues: found.queues,
            exchanges: found.exchanges,
            schedules: found.schedules,
            warnings: tell(warnings),
        };
        let problems = check_queues(&file.declared());
        if !problems.is_empty() {
            return Err(file.refused(&problems));
        }
        match &check_exchanges(&file.exchanges())[..] {
            [] => {}
            problems => return Err(file.refused_exchanges(problems)),
        }
        let mut names = BTreeSet::new();
        let twice = file
            .schedules
            .iter()
            .filter(|entry| !names.insert(&entry.name));
        let twice: Vec<String> = twice
            .map(|entry| file.place(entry, "it is declared twice; leave one out"))
            .collect();
        match &twice[..] {
            [] => Ok(file),
            problems => Err(Failure::problems(problems)),
        }
    }

    /// What it declares.
    pub(crate) fn declared(&self) -> Vec<DeclaredQueue> {
        self.queues
            .iter()
            .map(|entry| entry.queue.clone())
            .collect()
    }

    /// The exchanges that it declares.
    pub(crate) fn exchanges(&self) -> Vec<DeclaredExchange> {
        let entries = self.exchanges.iter();
        entries.map(|entry| entry.exchange.clone()).collect()
    }

    /// The schedules that it declares.
    pub(crate) fn schedules(&self) -> &[ScheduleEntry] {
        &self.schedules
    }

    /// What is wrong with a schedule, with its place.
    pub(crate) fn place(&self, entry: &ScheduleEntry, what: &str) -> String {
        let place = format!("{}:{}", self.path.display(), entry.line);
        format!("{place}: schedule {}: {what}", entry.name)
    }

    /// The problems of exchanges that a server found, each with its place.
    pub(crate) fn refused_exchanges(&self, problems: &[ExchangeProblem]) -> Failure {
        let problems = problems.iter().map(|problem| {
            let entry = &self.exchanges[problem.exchange];
            let line = match problem.part {
                ExchangePart::Name => entry.line,
                ExchangePart::Unroutable => entry.rule_line,
                ExchangePart::Binding(at) => {
                    entry.binding_lines.get(at).copied().unwrap_or(entry.line)
                }
            };
            let place = format!("{}:{line}", self.path.display());
            format!("{place}: exchange {}: {problem}", entry.exchange.name)
        });
        Failure::problems(&problems.collect::<Vec<_>>())
    }

    /// The problems that a server found, each with its place.
    pub(crate) fn refused(&self, problems: &[DeclareProblem]) -> Failure {
        let tell = |problem: &DeclareProblem| {
            let entry = &self.queues[problem.queue];
            let line = match problem.part {
                DeclaredPart::Name => entry.line,
                DeclaredPart::Setting(name) => {
                    *entry.setting_lines.get(name).unwrap_or(&entry.line)
                }
                DeclaredPart::Tags => entry.tags_line,
            };
            let place = format!("{}:{line}", self.path.display());
            format!("{place}: queue {:?}: {problem}", entry.queue.name)
        };
        let problems: Vec<String> = problems.iter().map(tell).collect();
        Failure::problems(&problems)
    }
}

impl fmt::Display for QueueFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues = count(self.queues.len() as u64, "queue");
        write!(f, "{}: {queues}", self.path.display())?;
        match self.exchanges.len() as u64 {
            0 => Ok(()),
            exchanges => write!(f, ", {}", count(exchanges, "exchange")),
        }?;
        match self.schedules.len() as u64 {
            0 => Ok(()),
            schedules => write!(f, ", {}", count(schedules, "schedule")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<QueueFile, String> {
        QueueFile::parse(Path::new(name), text, Format::Auto).map_err(|failure| failure.to_string())
    }

    fn queue(name: &str, settings: &[(&str, &str)]) -> DeclaredQueue {
        let read = |&(name, value): &(&str, &str)| {
            let setting = Setting::named(name).unwrap();
            (setting, setting.parse(value).unwrap())
        };
        DeclaredQueue {
            name: name.to_owned(),
            settings: settings.iter().map(read).collect(),
            ..DeclaredQueue::default()
        }
    }

    /// The same queues in both forms are the same.
    #[test]
    fn both_forms_say_the_same() {
        let own = r#"
            [[queue]]
            name = "orders.fifo"
            lease = "45s"
            dedup_content = true
            receive_wait = "10s"
            dead_letter = "orders-dead.fifo"
            attempts_max = 3
            tags = { team = "shop", tier = "1" }

            [[queue]]
            name = "orders-dead.fifo"

            [[queue]]
            name = "mail"
            delay = "1m30s"
        "#;
        let elasticmq = r#"
            include classpath("application.conf")
            node-address { protocol = http, host = localhost, port = 9324, context-path = "" }
            queues {
              # the order does not matter
              orders {
                fifo = true
                defaultVisibilityTimeout = 45 seconds
                receiveMessageWait = 10 seconds
                contentBasedDeduplication = true
                deadLettersQueue { name = "orders-dead", maxReceiveCount = 3 }
                tags { team = shop, tier : "1" }
              }
              "orders-dead.fifo" { fifo = true }
              mail { delay = 90s }
            }
        "#;
        let mut orders = queue(
            "orders.fifo",
            &[
                ("attempts_max", "3"),
                ("dead_letter", "orders-dead.fifo"),
                ("dedup_content", "true"),
                ("lease", "45s"),
                ("receive_wait", "10s"),
            ],
        );
        orders.tags = [("team", "shop"), ("tier", "1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let mail = queue("mail", &[("delay", "90s")]);
        let expected = [orders, queue("orders-dead.fifo", &[]), mail];
        let own = read("queues.toml", own).unwrap();
        assert_eq!(own.declared(), expected);
        assert_eq!(own.warnings, [""; 0]);
        let imported = read("custom.conf", elasticmq).unwrap();
        assert_eq!(imported.declared(), expected);
        let warnings = imported.warnings.join("\n");
        assert!(warnings.contains("custom.conf:2: include"), "{warnings}");
        assert!(
            warnings.contains("custom.conf:3: node-address"),
            "{warnings}"
        );
    }

    #[test]
    fn what_is_wrong_is_told_by_line_and_queue() {
        for (name, text, expected) in [
            (
                "q.toml",
                "[[queue]]\nname = \"a b\"\n",
                "q.toml:2: queue \"a b\": Can only include",
            ),
            (
                "q.toml",
                "[[queue]]\nname = \"a\"\ndelay = \"3s\"\nlease = \"13h\"\n",
                "q.toml:4: lease must be a time from 0s to 12h, not 13h",
            ),
            (
                "q.toml",
                "[[queue]]\nname = \"a\"\nlaese = \"3s\"\n",
                "q.toml:3: unknown key \"laese\"",
            ),
            (
                "q.toml",
                "[[queue]]\nname = \"a\"\nlease = 3\n",
                "q.toml:3: lease must be a time from 0s to 12h, not 3: write lease = \"3s\"",
            ),
            (
                "q.toml",
                "[[queue]]\nname = \"a\"\ndelay = [1]\n",
                "q.toml:3: delay: a value of type array does not fit here",
            ),
            (
                "q.toml",
                "[[queue]]\ndelay = \"15s\"\n",
                "q.toml:1: a queue needs a name",
            ),
            ("q.toml", "[queue]\n", "q.toml:1: queue: expected [[queue]]"),
            ("q.toml", "a = \n", "q.toml:1: "),
            (
                "q.toml",
                "[[queue]]\nname = \"a\"\nkey_policy = \"skip\"\n",
                "q.toml:3: queue \"a\": key_policy skip needs a dead-letter queue",
            ),
            (
                "q.toml",
                "[[queue]]\nname = \"a\"\n[[queue]]\nname = \"a\"\n",
                "q.toml:4: queue \"a\": it is declared twice",
            ),
            (
                "q.toml",
                "[[queue]]\nname = \"a\"\n\ndead_letter = \"a.fifo\"\n[[queue]]\nname = \"a.fifo\"",
                "q.toml:4: queue \"a\": ",
            ),
            (
                "q.toml",
                "[[queue]]\nname = \"a\"\nattempts_max = 0\n",
                "q.toml:3: attempts_max must be a number from 1 to 1000, not 0",
            ),
            (
                "q.conf",
                "queues {\n a {\n  copyTo = b\n }\n}",
                "q.conf:3: queue \"a\": copyTo is not supported",
            ),
            (
                "q.conf",
                "queues {\n a {\n  moveTo = b\n }\n}",
                "q.conf:3: queue \"a\": moveTo is not supported",
            ),
            (
                "q.conf",
                "queues {\n a {\n  delay = 5\n }\n}",
                "q.conf:3: queue \"a\": delay: ",
            ),
            (
                "q.conf",
                "queues {\n a {\n  dely = 5 s\n }\n}",
                "q.conf:3: queue \"a\": unknown key \"dely\"",
            ),
            (
                "q.conf",
                "queues {\n a {\n  delay = ${D}\n }\n}",
                "q.conf:3: queue \"a\": delay: ",
            ),
            (
                "q.conf",
                "queues {\n a { fifo = perhaps }\n}",
                "q.conf:2: queue \"a\": fifo: ",
            ),
            (
                "q.conf",
                "queues {\n a.b { }\n}",
                "q.conf:2: queue \"a\": unknown key \"b\"",
            ),
            ("q.conf", "queues {\n a {\n", "q.conf:3: "),
            ("q.conf", "queues {\n a { delay = \"5 s }\n}", "q.conf:2: "),
            ("q.conf", "x = 1", "q.conf:1: there is no `queues { ... }`"),
        ] {
            let error = read(name, text).unwrap_err();
            assert!(error.contains(expected), "{text:?}\n{error}\n{expected}");
        }
    }
}
