//! The command of `receive --exec`: what it finds in its environment, and how it ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt as _, process::ExitStatusExt as _},
    process::{ExitStatus, Stdio},
};

use base64::DecodeError;
use lockgate_consumer::Job;
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, Signal},
    time::Timespec,
};
use serde::Deserialize;
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, ChildStdin, Command},
};

use crate::{
    client::{Body, Encoding, Header},
    commands::instant,
};

/// Variables of a message, other than those of its headers.
const VARIABLES: [&str; 13] = [
    "LOCKGATE_QUEUE",
    "LOCKGATE_MESSAGE_ID",
    "LOCKGATE_KEY",
    "LOCKGATE_GROUP",
    "LOCKGATE_UNIQUE_ID",
    "LOCKGATE_SEQUENCE",
    "LOCKGATE_ATTEMPT",
    "LOCKGATE_PRIORITY",
    "LOCKGATE_SENT_AT",
    "LOCKGATE_RECEIPT",
    "LOCKGATE_CONTENT_TYPE",
    "LOCKGATE_TRACE_CONTEXT",
    "LOCKGATE_OMITTED",
];
const HEADER: &str = "LOCKGATE_MESSAGE_HEADER_";

/// The longest value of a header in an environment, and the most of all of them. Linux takes 128 KiB
/// and, as it is mostly set up, 2 MiB, of which the program's own environment is a part.
const VALUE_BYTES_MAX: usize = 64 << 10;
const VALUES_BYTES_MAX: usize = 256 << 10;

/// A message, as the API gives it.
#[derive(Debug, Deserialize)]
pub(in crate::commands) struct Leased {
    pub(in crate::commands) id: String,
    pub(in crate::commands) receipt: String,
    pub(in crate::commands) remaining_ms: u64,
    attempt: u64,
    sequence: u64,
    #[serde(default)]
    priority: u8,
    sent_at: String,
    #[serde(default)]
    pub(in crate::commands) key: Option<String>,
    #[serde(default)]
    group: Option<String>,
    #[serde(default)]
    unique_id: Option<String>,
    #[serde(flatten)]
    body: Body,
    #[serde(default)]
    headers: BTreeMap<String, Header>,
    #[serde(default)]
    pub(in crate::commands) content_type: Option<String>,
    #[serde(default)]
    trace_context: Option<String>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) enum End {
    Success,
    /// In words.
    Failure(String),
    /// There is no such command, or it is none: no message was tried.
    NotStarted(String),
    /// It cannot go on with any message.
    Hopeless(String),
}

/// Starts the command in a process group of its own, so that a signal of the terminal's does not reach it.
pub(in crate::commands) fn start(
    command: &str,
    queue: &str,
    endpoint: &str,
    message: &Leased,
    stdout: Stdio,
) -> io::Result<Child> {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command);
    // Of a command that this one may be started by.
    for (name, _) in std::env::vars_os() {
        let bytes = name.as_bytes();
        if bytes.starts_with(HEADER.as_bytes()) || VARIABLES.iter().any(|one| name == **one) {
            shell.env_remove(&name);
        }
    }
    shell
        .env("LOCKGATE_ENDPOINT", endpoint)
        .envs(environment(queue, message))
        .stdin(Stdio::piped())
        .stdout(stdout)
        .process_group(0)
        .spawn()
}

/// Gives a command its message. One that does not want to read it is no failure.
pub(in crate::commands) async fn feed(mut stdin: ChildStdin, body: Vec<u8>) -> io::Result<()> {
    match stdin.write_all(&body).await {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Ends a command with everything it has started.
pub(in crate::commands) fn kill(group: u32) {
    let group = i32::try_from(group).ok().and_then(Pid::from_raw);
    if let Some(group) = group {
        // It may have ended by now.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

impl Leased {
    /// A message that a worker has. Its receipt is the worker's own.
    pub(in crate::commands) fn of(job: &Job) -> Self {
        let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(str::to_owned);
        let message = job.message();
        let headers = message.headers.iter().map(|header| {
            let (value, encoding) = Encoding::of(&header.value);
            let kind = header.kind.to_string();
            let described = Header {
                kind,
                value,
                encoding,
            };
            (header.name.to_string(), described)
        });
        Self {
            id: job.name().map(ToString::to_string).unwrap_or_default(),
            receipt: String::new(),
            remaining_ms: 0,
            attempt: job.attempt().into(),
            sequence: job.sequence().map_or(0, |sequence| sequence.0),
            priority: message.priority,
            sent_at: job.accepted().and_then(instant).unwrap_or_default(),
            key: message.key.as_ref().map(ToString::to_string),
            group: message.group.as_ref().map(ToString::to_string),
            unique_id: message.unique_id.as_ref().map(ToString::to_string),
            body: Body::default(),
            headers: headers.collect(),
            content_type: text(&message.content_type),
            trace_context: text(&message.trace_context),
        }
    }

    /// If this is a pack, the message of it that a job has. The receipt is that of the pack, so it has none.
    pub(in crate::commands) fn member(&self, job: &Job) -> Option<Self> {
        let of_job = Self::of(job);
        (of_job.id != self.id).then(|| Self {
            attempt: self.attempt,
            sequence: self.sequence,
            priority: self.priority,
            sent_at: self.sent_at.clone(),
            key: self.key.clone(),
            group: self.group.clone(),
            ..of_job
        })
    }

    /// The payload, byte for byte.
    pub(in crate::commands) fn body(&self) -> Result<Vec<u8>, DecodeError> {
        self.body.decode()
    }

    /// The message in words.
    pub(in crate::commands) fn name(&self) -> String {
        match (&self.key, &self.group) {
            (Some(key), _) => format!("message {} of key {key}", self.id),
            (None, Some(group)) => format!("message {} of group {group}", self.id),
            (None, None) => format!("message {}", self.id),
        }
    }
}

/// What a command is told of its message.
fn environment(queue: &str, message: &Leased) -> Vec<(String, OsString)> {
    let mut variables: Vec<(String, OsString)> = Vec::new();
    let mut set = |name: &str, value: &str| variables.push((name.to_owned(), value.into()));
    set("LOCKGATE_QUEUE", queue);
    set("LOCKGATE_MESSAGE_ID", &message.id);
    set("LOCKGATE_SEQUENCE", &message.sequence.to_string());
    set("LOCKGATE_ATTEMPT", &message.attempt.to_string());
    set("LOCKGATE_PRIORITY", &message.priority.to_string());
    set("LOCKGATE_SENT_AT", &message.sent_at);
    if !message.receipt.is_empty() {
        set("LOCKGATE_RECEIPT", &message.receipt);
    }
    for (name, value) in [
        ("LOCKGATE_KEY", &message.key),
        ("LOCKGATE_GROUP", &message.group),
        ("LOCKGATE_UNIQUE_ID", &message.unique_id),
        ("LOCKGATE_CONTENT_TYPE", &message.content_type),
        ("LOCKGATE_TRACE_CONTEXT", &message.trace_context),
    ] {
        if let Some(value) = value {
            set(name, value);
        }
    }
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    for name in message.headers.keys() {
        *names.entry(variable(name)).or_default() += 1;
    }
    let mut omitted = BTreeSet::new();
    let mut room = VALUES_BYTES_MAX;
    for (name, header) in &message.headers {
        let variable = variable(name);
        let value = header.encoding.decode(&header.value).unwrap_or_default();
        let bytes = variable.len() + value.len();
        if names[&variable] > 1
            || value.contains(&0)
            || value.len() > VALUE_BYTES_MAX
            || bytes > room
        {
            omitted.insert(&**name);
            continue;
        }
        room -= bytes;
        variables.push((variable, OsStr::from_bytes(&value).to_owned()));
    }
    if !omitted.is_empty() {
        let names: Vec<&str> = omitted.into_iter().collect();
        variables.push(("LOCKGATE_OMITTED".to_owned(), names.join(" ").into()));
    }
    variables
}

/// The variable of a header of that name: what a shell can name.
fn variable(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    HEADER.chars().chain(name.chars().map(safe)).collect()
}

/// What an end says of the message, and of those to come.
pub(in crate::commands) fn judge(status: ExitStatus) -> End {
    const PIPE: i32 = Signal::PIPE.as_raw();
    // A shell says 128 and the signal's number of a process that it has waited for.
    const PIPE_CODE: i32 = 128 + PIPE;
    match (status.code(), status.signal()) {
        (Some(0), _) => End::Success,
        (Some(PIPE_CODE), _) | (_, Some(PIPE)) if nobody_reads_stdout() => {
            End::Hopeless("nobody reads its output any more".to_owned())
        }
        (Some(126), _) => End::NotStarted("it cannot be run (exit code 126)".to_owned()),
        (Some(127), _) => End::NotStarted("there is no such command (exit code 127)".to_owned()),
        (Some(code), _) => End::Failure(format!("it exited with {code}")),
        (None, Some(signal)) => End::Failure(format!("it was killed by signal {signal}")),
        (None, None) => End::Failure(status.to_string()),
    }
}

/// Whether standard output is a pipe whose reader is gone.
fn nobody_reads_stdout() -> bool {
    let stdout = io::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut watched, Some(&Timespec::default()))
        .is_ok_and(|_| watched[0].revents().contains(PollFlags::ERR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(message: &serde_json::Value) -> BTreeMap<String, Vec<u8>> {
        let message = Leased::deserialize(message).unwrap();
        environment("q", &message)
            .into_iter()
            .map(|(name, value)| (name, value.as_bytes().to_vec()))
            .collect()
    }

    fn message(headers: serde_json::Value) -> serde_json::Value {
        serde_json::json!({"id": "i", "receipt": "r", "remaining_ms": 30_000, "attempt": 2, "sequence": 7, "sent_at": "t",
            "group": "g", "body": "AP8=", "body_encoding": "base64", "headers": headers})
    }

    #[test]
    fn a_command_is_told_what_its_message_has() {
        let header =
            |value: &str| serde_json::json!({"type": "String", "value": value, "encoding": "text"});
        let message = message(serde_json::json!({
            "user.id": header("a=b\n"), "raw": {"type": "Binary", "value": "/w==", "encoding": "base64"},
        }));
        let told = told(&message);
        let text = |name: &str| told.get(name).map(|value| &value[..]);
        assert_eq!(text("LOCKGATE_GROUP"), Some(&b"g"[..]));
        assert_eq!(text("LOCKGATE_KEY"), None);
        assert_eq!(text("LOCKGATE_ATTEMPT"), Some(&b"2"[..]));
        assert_eq!(text("LOCKGATE_PRIORITY"), Some(&b"0"[..]));
        assert_eq!(text("LOCKGATE_MESSAGE_HEADER_user_id"), Some(&b"a=b\n"[..]));
        assert_eq!(text("LOCKGATE_MESSAGE_HEADER_raw"), Some(&b"\xff"[..]));
        assert_eq!(text("LOCKGATE_OMITTED"), None);
        let leased = Leased::deserialize(&message).unwrap();
        assert_eq!(leased.body().unwrap(), [0, 255]);
    }

    #[test]
    fn what_no_environment_can_hold_is_named() {
        let header =
            |value: &str| serde_json::json!({"type": "String", "value": value, "encoding": "text"});
        let long = "x".repeat(VALUE_BYTES_MAX);
        let told = told(&message(serde_json::json!({
            "nul": header("a\0b"), "too-long": header(&format!("{long}x")),
            "a.b": header("1"), "a_b": header("2"), "ä": header("3"), "fits": header(&long),
            "m1": header(&long), "m2": header(&long), "m3": header(&long), "n": header("last"),
        })));
        let omitted = String::from_utf8(told["LOCKGATE_OMITTED"].clone()).unwrap();
        assert_eq!(omitted, "a.b a_b m3 nul too-long");
        assert_eq!(told["LOCKGATE_MESSAGE_HEADER_fits"].len(), VALUE_BYTES_MAX);
        assert_eq!(told["LOCKGATE_MESSAGE_HEADER__"], b"3");
        assert_eq!(told["LOCKGATE_MESSAGE_HEADER_n"], b"last");
        assert!(!told.contains_key("LOCKGATE_MESSAGE_HEADER_a_b"));
        for (name, value) in &told {
            assert!(!name.contains(['=', '\0']) && !value.contains(&0), "{name}");
        }
    }

    #[test]
    fn a_setting_is_not_mistaken_for_what_a_message_has() {
        for setting in crate::settings::table::SETTINGS {
            let variable = setting.about().variable();
            assert!(!VARIABLES.contains(&&*variable), "{variable}");
            assert!(!variable.starts_with(HEADER), "{variable}");
        }
    }

    #[test]
    fn ends_are_told_apart() {
        let code = |code: i32| judge(ExitStatus::from_raw(code << 8));
        assert_eq!(code(0), End::Success);
        assert_eq!(code(3), End::Failure("it exited with 3".to_owned()));
        assert!(matches!(code(126), End::NotStarted(_)));
        assert!(matches!(code(127), End::NotStarted(_)));
        // Somebody reads the output of this test.
        assert!(matches!(code(141), End::Failure(_)));
        let killed = End::Failure("it was killed by signal 9".to_owned());
        assert_eq!(judge(ExitStatus::from_raw(9)), killed);
    }
}
