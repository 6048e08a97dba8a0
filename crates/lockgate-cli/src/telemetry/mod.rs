//! The log: events on standard error, one line each, for people on a terminal and as JSON otherwise.
//!
//! Text that users gave (queue names, header values) goes into fields only, and whatever is in a
//! field or message comes out with its control characters escaped: nobody can forge a second line or
//! colour the operator's terminal.

mod pipe;

use std::{
    fmt,
    io::{self, IsTerminal as _, Write as _},
    panic::{self, PanicHookInfo},
    str::FromStr,
    sync::{Arc, OnceLock, atomic::AtomicU64},
    thread,
    time::Duration,
};

use lockgate_core::with_sources;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    filter::LevelFilter,
    fmt::{
        FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::Writer,
        time::{FormatTime as _, SystemTime},
    },
    registry::LookupSpan,
};

use self::pipe::{Pipe, Stderr};

/// The target of events that are logged whatever the level: the ready line. Not the start of any
/// crate's name, because a filter takes targets by their start.
pub(crate) const ALWAYS: &str = "startup";

/// Where everything for standard error goes once the log has started.
static PIPE: OnceLock<Pipe> = OnceLock::new();

/// How long the end of the process waits for what is left to be written: whoever reads it may stand
/// still.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Auto,
    Text,
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("{text:?} is no log format: use text, json or auto")),
        }
    }
}

/// Whether a text says what to log: levels, alone or for a part (`target=level`). Stricter than the
/// filter, which takes a mistyped level for the name of a part and then logs nothing at all.
pub(crate) fn check_level(text: &str) -> Result<String, String> {
    for part in text.split(',') {
        let level = match part.split_once('=') {
            Some(("", _)) => "",
            Some((_, level)) => level,
            None => part,
        };
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "{text:?} is no log level: use error, warn, info, debug or trace, or part=level"
            ));
        }
    }
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{text:?} is no log level: {error}")),
    }
}

/// Whether log lines are for people rather than programs.
pub(crate) fn is_text(format: LogFormat) -> bool {
    match format {
        LogFormat::Auto => io::stderr().is_terminal(),
        LogFormat::Text => true,
        LogFormat::Json => false,
    }
}

/// Whether lines on standard error should be coloured.
pub(crate) fn stderr_has_color() -> bool {
    anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

/// Starts the log of this process, and returns how many of its lines were dropped so far because nobody
/// read them. From now on nothing waits for standard error but [`finish`] and [`exit`], for a second.
///
/// # Errors
/// If the thread that writes cannot be started.
pub(crate) fn start(format: LogFormat, level: &str) -> io::Result<Arc<AtomicU64>> {
    let pipe = match PIPE.get() {
        Some(pipe) => pipe,
        None => {
            let pipe = Pipe::start(Stderr, tell_dropped)?;
            PIPE.get_or_init(|| pipe)
        }
    };
    panic::set_hook(Box::new(tell_panic));
    let filter = EnvFilter::try_new(format!("{level},{ALWAYS}=info"))
        .expect("the level was checked with the settings");
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // It would go to standard error, which may be stuck or closed.
        .log_internal_errors(false)
        .with_writer(Lined(pipe));
    // A log that is already there (a second start in one process) is kept.
    let _ = if is_text(format) {
        let lines = Lines {
            color: stderr_has_color(),
        };
        tracing::subscriber::set_global_default(builder.event_format(lines).finish())
    } else {
        tracing::subscriber::set_global_default(builder.json().flatten_event(true).finish())
    };
    Ok(pipe.dropped())
}

fn tell_dropped(lines: u64) {
    tracing::warn!(
        target: ALWAYS,
        lines,
        "lines of this log were dropped: nobody read them in time"
    );
}

/// A panic as an event of the log. The standard library's own message would wait for standard error, and
/// the thread that panicked with it.
fn tell_panic(panic: &PanicHookInfo<'_>) {
    let thread = thread::current();
    tracing::error!(
        target: ALWAYS,
        thread = thread.name(),
        location = panic.location().map(tracing::field::display),
        "panicked: {}",
        panic.payload_as_str().unwrap_or("(no text)")
    );
    // It may be the last word.
    finish();
}

/// Writes to standard error what is no event of the log. Where the log has started, it comes behind
/// that, and nobody waits.
pub(crate) fn say(text: &str) {
    match PIPE.get() {
        Some(pipe) => pipe.push(text.as_bytes(), true),
        // A closed standard error is not worth failing for.
        None => drop(io::stderr().lock().write_all(text.as_bytes())),
    }
}

/// Waits for what was logged to be written, a second at most.
pub(crate) fn finish() {
    if let Some(pipe) = PIPE.get() {
        pipe.flush(FLUSH_WITHIN);
    }
}

/// Ends the process, with everything that was logged written within a second.
pub(crate) fn exit(code: i32) -> ! {
    finish();
    std::process::exit(code)
}

/// Makes lines for the pipe.
struct Lined(&'static Pipe);

/// Takes one event.
struct LineOf {
    pipe: &'static Pipe,
    is_urgent: bool,
}

impl<'a> MakeWriter<'a> for Lined {
    type Writer = LineOf;

    fn make_writer(&'a self) -> LineOf {
        LineOf {
            pipe: self.0,
            is_urgent: false,
        }
    }

    fn make_writer_for(&'a self, event: &tracing::Metadata<'_>) -> LineOf {
        LineOf {
            is_urgent: *event.level() == Level::ERROR,
            ..self.make_writer()
        }
    }
}

impl io::Write for LineOf {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.pipe.push(line, self.is_urgent);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One line an event: time, level, sentence, fields.
struct Lines {
    color: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Line::default();
        event.record(&mut line);
        SystemTime.format_time(&mut writer)?;
        let (color, level) = match *event.metadata().level() {
            Level::ERROR => ("\x1b[31m", "ERROR"),
            Level::WARN => ("\x1b[33m", " WARN"),
            Level::INFO => ("\x1b[32m", " INFO"),
            Level::DEBUG => ("\x1b[34m", "DEBUG"),
            Level::TRACE => ("\x1b[35m", "TRACE"),
        };
        if self.color {
            write!(writer, " {color}{level}\x1b[0m")?;
        } else {
            write!(writer, " {level}")?;
        }
        writeln!(writer, " {}{}", line.message, line.fields)
    }
}

/// The sentence and the fields of one event, escaped.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn add(&mut self, field: &Field, value: &dyn fmt::Display) {
        let text = value.to_string();
        if field.name() == "message" {
            escape_into(&mut self.message, &text);
            return;
        }
        self.fields.push(' ');
        self.fields.push_str(field.name());
        self.fields.push('=');
        if text.is_empty() || text.contains([' ', '"', '=']) {
            self.fields.push('"');
            escape_into(
                &mut self.fields,
                &text.replace('\\', "\\\\").replace('"', "\\\""),
            );
            self.fields.push('"');
        } else {
            escape_into(&mut self.fields, &text);
        }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, &value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, &with_sources(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, &format_args!("{value:?}"));
    }
}

fn escape_into(line: &mut String, text: &str) {
    for c in text.chars() {
        // Beyond C0 and C1: the separators that some viewers take for the end of a line.
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn a_mistyped_level_is_refused() {
        for text in ["info", "off", "warn,lockgate_engine=debug"] {
            assert_eq!(check_level(text).as_deref(), Ok(text));
        }
        for text in [
            "",
            "inf",
            "info,",
            "=info",
            "lockgate_engine=",
            "lockgate_engine=loud",
        ] {
            assert!(check_level(text).is_err(), "{text:?} was taken");
        }
    }

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The text format of tracing-subscriber lets line feeds pass in messages and `%` fields: a
    /// queue name could then forge a log line.
    #[test]
    fn one_event_is_one_line_whatever_users_put_in_it() {
        let sink = Sink::default();
        let writer = sink.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .event_format(Lines { color: false })
            .finish();
        let evil = "a\n{\"level\":\"INFO\"}\r\x1b[31m\u{2028}\u{85}";
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(queue = evil, shown = %evil, debug = ?evil, "refused {evil}");
        });
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text:?}");
        assert!(text.ends_with('\n'));
        let line = text.trim_end_matches('\n');
        assert!(
            !line.contains(|c: char| c.is_control() || c == '\u{2028}'),
            "{text:?}"
        );
        assert!(line.contains("queue=\"a\\n{\\\"level"), "{text:?}");
    }
}
