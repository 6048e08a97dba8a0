//! Requests from a file or standard input: JSON lines, CSV, or an access log, plain or in gzip.
//!
//! Reads as a stream: it holds one line at a time, of at most [`Wanted::line_bytes_max`].

mod access;
mod json;
mod lines;
mod table;
mod time;

use std::{
    io::{self, BufRead, BufReader, Cursor, Read as _},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;
use thiserror::Error;

pub(crate) use self::time::{Micros, TimeUnit};
use self::{lines::Lines, table::Table};

/// What editors on Windows put in front of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

const GZIP: &[u8] = b"\x1f\x8b";

/// So much of the first line tells what format it is.
const SNIFFED_BYTES: u64 = 64 << 10;

/// Names of fields that are remembered, to say which there are.
const NAMES_MAX: usize = 50;

/// What the lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    Jsonl,
    Csv,
    Access,
}

/// What is looked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) key: String,
    /// The field with a request's time.
    pub(super) time: Option<(String, TimeUnit)>,
    /// `None`: by the name of the file, or what is in it.
    pub(super) format: Option<Format>,
    pub(super) line_bytes_max: usize,
}

/// Requests, one after the other.
pub(super) struct Requests {
    wanted: Wanted,
    records: Records,
    /// Fields that were there in lines that lack the key.
    names: Vec<String>,
}

enum Records {
    Json(Lines),
    Access(Lines),
    Table(Table),
}

/// What a line is.
#[derive(Debug)]
pub(super) struct Line {
    /// Its number, from 1 on.
    pub(super) number: u64,
    /// The request's time if one is wanted; or why there is no request.
    pub(super) request: Result<Option<Micros>, LeftOut>,
}

/// Why a line is no request.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(super) enum LeftOut {
    #[error("has no {field}")]
    Lacks { field: String },
    #[error("{field} is an {kind}; name a value in it, such as {field}.{inside}")]
    NoScalar {
        field: String,
        kind: &'static str,
        inside: &'static str,
    },
    #[error("is no JSON: {0}")]
    Json(String),
    #[error("is no UTF-8 at byte {byte}, which JSON has to be")]
    Utf8 { byte: usize },
    #[error("is no line of an access log: {0}")]
    Access(&'static str),
    #[error("has {found} fields, and the first line has {expected}")]
    Fields { found: u64, expected: u64 },
    #[error("{field} is no time: {text:?}")]
    Time { field: String, text: String },
    #[error("begins a record of {lines} lines: a quote in it may have no end")]
    Lines { lines: u64 },
}

/// Why reading cannot go on.
#[derive(Debug, Error)]
pub(super) enum InputError {
    #[error("line {line}")]
    Read { line: u64, source: io::Error },
    #[error("line {line} is longer than {}", crate::units::show_size(*max as u64))]
    LineTooLong { line: u64, max: usize },
    #[error("line {line}: a quoted field that begins here or later has no end within {}", crate::units::show_size(*max as u64))]
    RecordTooLong { line: u64, max: usize },
    #[error("line {line}: a quoted field that begins here or later has no end")]
    OpenQuote { line: u64 },
    #[error("it is not plain what the lines are")]
    UnknownFormat,
    #[error("the first line has no column {column}")]
    NoColumn { column: String, names: Vec<String> },
    #[error("the first line has {column} more than once")]
    AmbiguousColumn { column: String },
    #[error("an access log has no {field}")]
    NoField { field: String },
}

impl Requests {
    /// Begins to read. `path` is looked at for its ending.
    pub(super) fn new(
        source: Box<dyn BufRead + Send>,
        path: &Path,
        wanted: Wanted,
    ) -> Result<Self, InputError> {
        let source = unpacked(source).map_err(at_line(1))?;
        let (head, source) = peek(source, BYTE_ORDER_MARK.len() as u64).map_err(at_line(1))?;
        let kept = if head == BYTE_ORDER_MARK {
            Vec::new()
        } else {
            head
        };
        let source = Box::new(Cursor::new(kept).chain(source));
        let (format, source) = match wanted.format.or_else(|| by_name(path)) {
            Some(format) => (format, source as Box<dyn BufRead + Send>),
            None => by_content(source, &wanted.key)?,
        };
        let max = wanted.line_bytes_max;
        let records = match format {
            Format::Jsonl => Records::Json(Lines::new(source, max)),
            Format::Access => {
                for field in wanted.fields() {
                    if !access::FIELDS.contains(&field) {
                        let field = field.to_owned();
                        return Err(InputError::NoField { field });
                    }
                }
                Records::Access(Lines::new(source, max))
            }
            Format::Csv => Records::Table(Table::new(source, &wanted)?),
        };
        Ok(Self {
            wanted,
            records,
            names: Vec::new(),
        })
    }

    /// Reads the next line that is not blank, and its key into `key`. `None` at the end.
    pub(super) fn next(&mut self, key: &mut Vec<u8>) -> Result<Option<Line>, InputError> {
        key.clear();
        let wanted = &self.wanted;
        Ok(match &mut self.records {
            Records::Json(lines) => lines.next()?.map(|(number, line)| {
                let request = of_json(line, wanted, key);
                if matches!(
                    request,
                    Err(LeftOut::Lacks { .. } | LeftOut::NoScalar { .. })
                ) {
                    json::names(line, &mut self.names);
                }
                Line { number, request }
            }),
            Records::Access(lines) => lines.next()?.map(|(number, line)| Line {
                number,
                request: of_access(line, wanted, key),
            }),
            Records::Table(table) => table.next(wanted, key)?,
        })
    }

    /// The fields that lines have which lack the key.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }
}

impl Wanted {
    fn fields(&self) -> impl Iterator<Item = &str> {
        let time = self.time.as_ref().map(|(field, _)| field.as_str());
        std::iter::once(self.key.as_str()).chain(time)
    }

    /// The request's time, by what `field` finds in its line.
    fn time<'a, T: AsRef<[u8]> + 'a>(
        &self,
        field: impl FnOnce(&str) -> Result<T, LeftOut>,
    ) -> Result<Option<Micros>, LeftOut> {
        let Some((name, unit)) = &self.time else {
            return Ok(None);
        };
        let found = field(name)?;
        let text = String::from_utf8_lossy(found.as_ref());
        match time::parse(&text, *unit) {
            Some(time) => Ok(Some(time)),
            None => Err(LeftOut::Time {
                field: name.clone(),
                // It may be as long as the line.
                text: text.chars().take(40).collect(),
            }),
        }
    }
}

/// The names of an access log's fields.
pub(super) fn access_fields() -> [&'static str; access::FIELDS.len()] {
    access::FIELDS
}

fn of_json(line: &[u8], wanted: &Wanted, key: &mut Vec<u8>) -> Result<Option<Micros>, LeftOut> {
    let line = json::Line::parse(line)?;
    key.extend_from_slice(line.scalar(&wanted.key)?.as_bytes());
    wanted.time(|field| Ok(line.scalar(field)?.into_owned()))
}

fn of_access(line: &[u8], wanted: &Wanted, key: &mut Vec<u8>) -> Result<Option<Micros>, LeftOut> {
    let entry = access::Entry::parse(line).map_err(LeftOut::Access)?;
    let field = |name: &str| {
        entry.field(name).ok_or_else(|| LeftOut::Lacks {
            field: name.to_owned(),
        })
    };
    key.extend_from_slice(field(&wanted.key)?);
    wanted.time(field)
}

fn at_line(line: u64) -> impl Fn(io::Error) -> InputError {
    move |source| InputError::Read { line, source }
}

/// Unpacks what is in gzip.
fn unpacked(source: Box<dyn BufRead + Send>) -> io::Result<Box<dyn BufRead + Send>> {
    let (head, source) = peek(source, GZIP.len() as u64)?;
    let is_packed = head == GZIP;
    let whole = Cursor::new(head).chain(source);
    Ok(if is_packed {
        // Of several members too: that is what appending to a packed log makes.
        Box::new(BufReader::new(MultiGzDecoder::new(whole)))
    } else {
        Box::new(whole)
    })
}

/// Takes the first bytes off.
fn peek(
    mut source: Box<dyn BufRead + Send>,
    bytes: u64,
) -> io::Result<(Vec<u8>, Box<dyn BufRead + Send>)> {
    let mut head = Vec::new();
    source.by_ref().take(bytes).read_to_end(&mut head)?;
    Ok((head, source))
}

fn by_name(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    match name.rsplit_once('.')?.1 {
        "jsonl" | "ndjson" | "json" => Some(Format::Jsonl),
        "csv" => Some(Format::Csv),
        _ => None,
    }
}

/// Finds the format by the first line that is not blank.
fn by_content(
    mut source: Box<dyn BufRead + Send>,
    key: &str,
) -> Result<(Format, Box<dyn BufRead + Send>), InputError> {
    let mut head = Vec::new();
    let mut first = 0;
    while (head.len() as u64) < SNIFFED_BYTES {
        first = head.len();
        let rest = SNIFFED_BYTES - head.len() as u64;
        let read = source.by_ref().take(rest).read_until(b'\n', &mut head);
        if read.map_err(at_line(1))? == 0 || !head[first..].trim_ascii().is_empty() {
            break;
        }
    }
    let line = head[first..].trim_ascii();
    let format = if line.is_empty() || line.starts_with(b"{") || line.starts_with(b"[") {
        Format::Jsonl
    } else if access::Entry::parse(line).is_ok() {
        Format::Access
    } else if table::has_column(line, key) {
        Format::Csv
    } else {
        return Err(InputError::UnknownFormat);
    };
    Ok((format, Box::new(Cursor::new(head).chain(source))))
}

/// For the fuzzer: the first line says format, key and the field of the time.
pub fn fuzz(bytes: &[u8]) -> Result<(), String> {
    let (head, rest) = bytes.split_at(bytes.iter().position(|&b| b == b'\n').unwrap_or(0));
    let head = String::from_utf8_lossy(head);
    let mut words = head.split(' ');
    let format = match words.next() {
        Some("jsonl") => Some(Format::Jsonl),
        Some("csv") => Some(Format::Csv),
        Some("access") => Some(Format::Access),
        _ => None,
    };
    let wanted = Wanted {
        key: words.next().unwrap_or_default().to_owned(),
        time: words.next().map(|field| (field.to_owned(), TimeUnit::Ms)),
        format,
        line_bytes_max: 1 << 10,
    };
    let rest = rest.strip_prefix(b"\n").unwrap_or(rest).to_vec();
    let told = |error: InputError| error.to_string();
    let mut requests =
        Requests::new(Box::new(Cursor::new(rest)), Path::new("-"), wanted).map_err(told)?;
    let mut key = Vec::new();
    let mut taken = Err("there is no request".to_owned());
    let mut last = 0;
    while let Some(line) = requests.next(&mut key).map_err(told)? {
        assert!(line.number >= last, "line {} after {last}", line.number);
        last = line.number;
        match line.request {
            Ok(time) => {
                assert_eq!(time.is_some(), requests.wanted.time.is_some(), "its time");
                taken = Ok(());
            }
            Err(why) => assert!(!why.to_string().is_empty(), "the reason"),
        }
        assert!(requests.names.len() <= NAMES_MAX, "names");
    }
    taken
}

#[cfg(test)]
mod tests;
