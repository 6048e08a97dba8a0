//! Where words go: data on standard output, everything else on standard error.

use std::{
    io::{self, BufWriter, IsTerminal as _, Stdout, Write as _},
    process::ExitCode,
};

use anstream::ColorChoice;
use serde::Serialize;

use crate::{
    exit::{Failure, output_error},
    telemetry::stderr_has_color,
};

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR, CLICOLOR or TERM=dumb say otherwise.
    #[default]
    Auto,
    /// Also into a pipe or file.
    Always,
    /// Not at all.
    Never,
}

/// Data on its way to standard output, buffered until [`Output::flush`] or the end.
pub(crate) struct Output {
    stdout: BufWriter<Stdout>,
    terminal: bool,
}

/// Rows with a header: aligned on a terminal, tab-separated elsewhere.
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

/// Applies `--color` to everything printed after.
pub(crate) fn set_color(color: Color) {
    match color {
        Color::Auto => ColorChoice::Auto,
        Color::Always => ColorChoice::Always,
        Color::Never => ColorChoice::Never,
    }
    .write_global();
}

/// A line for people on standard error. A closed standard error is not worth failing for.
pub(crate) fn note(text: &str) {
    crate::telemetry::say(&format!("{}\n", printable(text)));
}

/// Prints a failure on standard error; its exit code.
pub(crate) fn report(failure: &Failure) -> ExitCode {
    if !failure.is_silent() {
        complain("error", &failure.to_string());
        if let Some(hint) = failure.advice() {
            complain("hint", hint);
        }
    }
    ExitCode::from(failure.code())
}

/// `error: …` or `hint: …` on standard error.
pub(crate) fn complain(kind: &str, text: &str) {
    let style = match kind {
        "error" => "\x1b[1;31m",
        "warning" => "\x1b[1;33m",
        _ => "\x1b[1;36m",
    };
    let (style, end) = if stderr_has_color() {
        (style, "\x1b[0m")
    } else {
        ("", "")
    };
    crate::telemetry::say(&format!("{style}{kind}:{end} {}\n", printable(text)));
}

/// Text that came from elsewhere, made safe for a terminal: control characters but the line feed, and what turns the
/// direction of writing around, are written as escapes.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        );
        if c.is_control() && c != '\n' || turns {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Says what was done: a JSON object as data, or a line for people.
pub(crate) fn tell(json: bool, value: &impl Serialize, done: &str) -> Result<(), Failure> {
    if !json {
        note(done);
        return Ok(());
    }
    let mut output = Output::new();
    output.json(value)?;
    output.flush()
}

/// So many of something.
pub(crate) fn count(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// Asks a yes-or-no question on standard error. Only an explicit yes is one.
///
/// # Errors
/// If standard input is no terminal: a script has to say `--yes`.
pub(crate) fn confirm(question: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(format!(
            "{question} Nobody can answer here: standard input is no terminal"
        ))
        .hint("say --yes to go ahead without being asked"));
    }
    let _ = write!(anstream::stderr().lock(), "{} [y/N] ", printable(question));
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::failed(error).context("reading the answer"))?;
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}

impl Output {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        let terminal = stdout.is_terminal();
        Self {
            stdout: BufWriter::with_capacity(64 << 10, stdout),
            terminal,
        }
    }

    /// Whether a person reads it.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// One line of text.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        if self.terminal {
            writeln!(self.stdout, "{}", printable(text)).map_err(output_error)
        } else {
            writeln!(self.stdout, "{text}").map_err(output_error)
        }
    }

    /// Text as it is, such as a completion script.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.stdout.write_all(bytes).map_err(output_error)
    }

    /// One JSON value on one line.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_vec(value)
            .map_err(|error| Failure::failed(error).context("writing JSON"))?;
        self.raw(&line)?;
        self.raw(b"\n")
    }

    /// Aligned columns on a terminal, tab-separated ones elsewhere. Both begin with the header: who pages,
    /// searches or watches the output reads it too.
    pub(crate) fn table(&mut self, table: &Table) -> Result<(), Failure> {
        let text = table.render(self.terminal);
        self.raw(text.as_bytes())
    }

    /// Hands everything to the reader. Returns only when the operating system has it.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(output_error)
    }
}

impl Table {
    pub(crate) fn new(header: impl IntoIterator<Item = &'static str>) -> Self {
        Self {
            header: header.into_iter().collect(),
            rows: Vec::new(),
        }
    }

    /// A table without a header, for names and values.
    pub(crate) fn plain(columns: usize) -> Self {
        Self::new(std::iter::repeat_n("", columns))
    }

    pub(crate) fn row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells: Vec<_> = cells.into_iter().map(|cell| cell.to_string()).collect();
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells);
    }

    /// The text, with a line feed at its end unless it is empty.
    pub(crate) fn render(&self, terminal: bool) -> String {
        let has_header = self.header.iter().any(|name| !name.is_empty());
        if !terminal {
            let header = has_header.then(|| self.header.join("\t") + "\n");
            let rows = self.rows.iter().map(|row| {
                let cells: Vec<_> = row.iter().map(|cell| one_cell(cell)).collect();
                cells.join("\t") + "\n"
            });
            return header.into_iter().chain(rows).collect();
        }
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::TableStyle::new());
        if has_header {
            table.set_header(self.header.iter().copied());
        }
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| one_cell(cell)));
        }
        // Numbers are read from their last digit on.
        for (index, column) in table.column_iter_mut().enumerate() {
            let number = |row: &Vec<String>| {
                row[index].is_empty() || row[index].starts_with(|c: char| c.is_ascii_digit())
            };
            if index > 0 && !self.rows.is_empty() && self.rows.iter().all(number) {
                column.set_cell_alignment(comfy_table::CellAlignment::Right);
            }
        }
        let mut text: String = table
            .lines()
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect();
        if text.is_empty() {
            text.push('\n');
        }
        text
    }
}

/// A cell must not break its row: tabs and line feeds are written as escapes too.
fn one_cell(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_for_people_and_tab_separated_in_a_pipe() {
        let mut table = Table::new(["NAME", "READY"]);
        table.row(["orders", "7"]);
        table.row(["a\tb\x1b[31m\u{202e}", "1200"]);
        assert_eq!(
            table.render(false),
            "NAME\tREADY\norders\t7\na\\tb\\u{1b}[31m\\u{202e}\t1200\n"
        );
        assert_eq!(
            table.render(true),
            " NAME                    READY\n orders                      7\n a\\tb\\u{1b}[31m\\u{202e}   1200\n"
        );
    }
}
