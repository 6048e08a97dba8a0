//! CSV with names in its first record.

use std::io::{self, BufRead, Read};

use csv::{ByteRecord, ReaderBuilder, Trim};

use super::{InputError, LeftOut, Line, NAMES_MAX, Wanted, at_line};

pub(super) struct Table {
    reader: csv::Reader<Rationed>,
    record: ByteRecord,
    key: usize,
    time: Option<usize>,
    /// Where the record before began, if it has more than one line.
    long: Option<u64>,
    max: usize,
}

/// A source that gives so many bytes for a record. A quote without its end would take in the whole file.
struct Rationed {
    source: Box<dyn BufRead + Send>,
    left: usize,
    /// The last byte that ends no line.
    last: u8,
}

/// The most lines of a record. A field of more is rather one whose quote has no end: what follows would be lost in it.
const RECORD_LINES_MAX: u64 = 100;

impl Read for Rationed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let most = buffer.len().min(self.left);
        let read = self.source.read(&mut buffer[..most])?;
        self.left -= read;
        let ends_no_line = |byte: &&u8| !matches!(**byte, b'\r' | b'\n');
        if let Some(last) = buffer[..read].iter().rfind(ends_no_line) {
            self.last = *last;
        }
        Ok(read)
    }
}

impl Table {
    /// Reads the first record, which has the columns' names.
    pub(super) fn new(
        source: Box<dyn BufRead + Send>,
        wanted: &Wanted,
    ) -> Result<Self, InputError> {
        let max = wanted.line_bytes_max;
        let source = Rationed {
            source,
            left: max,
            last: 0,
        };
        let mut reader = reading().from_reader(source);
        let header = reader
            .byte_headers()
            .map_err(|error| stopped(error, 1, max))?;
        let column = |name: &str| {
            let mut places = header
                .iter()
                .enumerate()
                .filter(|(_, n)| *n == name.as_bytes());
            match (places.next(), places.next()) {
                (Some((place, _)), None) => Ok(place),
                (None, _) => Err(InputError::NoColumn {
                    column: name.to_owned(),
                    names: header.iter().take(NAMES_MAX).map(text).collect(),
                }),
                (Some(_), Some(_)) => Err(InputError::AmbiguousColumn {
                    column: name.to_owned(),
                }),
            }
        };
        let key = column(&wanted.key)?;
        let time = wanted.time.as_ref().map(|(name, _)| column(name));
        Ok(Self {
            key,
            time: time.transpose()?,
            reader,
            record: ByteRecord::new(),
            long: None,
            max,
        })
    }

    pub(super) fn next(
        &mut self,
        wanted: &Wanted,
        key: &mut Vec<u8>,
    ) -> Result<Option<Line>, InputError> {
        self.reader.get_mut().left = self.max;
        let before = self.reader.position().line();
        let number = |record: &ByteRecord| record.position().map_or(before, csv::Position::line);
        match self.reader.read_byte_record(&mut self.record) {
            // A field that ends with the file ends with its quote, or has none.
            Ok(false) => {
                let is_open = self.reader.get_ref().last != b'"';
                return match self.long.filter(|_| is_open) {
                    Some(line) => Err(InputError::OpenQuote { line }),
                    None => Ok(None),
                };
            }
            Ok(true) => {}
            Err(error) => {
                if let csv::ErrorKind::UnequalLengths {
                    pos,
                    expected_len,
                    len,
                } = error.kind()
                {
                    let (found, expected) = (*len, *expected_len);
                    return Ok(Some(Line {
                        number: pos.as_ref().map_or(before, csv::Position::line),
                        request: Err(LeftOut::Fields { found, expected }),
                    }));
                }
                return Err(stopped(error, before, self.max));
            }
        }
        let begins = number(&self.record);
        let lines = self.reader.position().line() - begins;
        self.long = (lines > 1).then_some(begins);
        if lines > RECORD_LINES_MAX {
            return Ok(Some(Line {
                number: begins,
                request: Err(LeftOut::Lines { lines }),
            }));
        }
        // An empty field is how CSV has none.
        let field = |place: usize, name: &str| {
            let value = self.record.get(place).filter(|value| !value.is_empty());
            value.ok_or_else(|| LeftOut::Lacks {
                field: name.to_owned(),
            })
        };
        let request = field(self.key, &wanted.key).and_then(|value| {
            key.extend_from_slice(value);
            wanted.time(|name| field(self.time.unwrap_or_default(), name))
        });
        Ok(Some(Line {
            number: begins,
            request,
        }))
    }
}

/// Spaces around names are none of them.
fn reading() -> ReaderBuilder {
    let mut builder = ReaderBuilder::new();
    builder.trim(Trim::Headers);
    builder
}

/// Whether the names in this line have that one.
pub(super) fn has_column(line: &[u8], name: &str) -> bool {
    let mut reader = reading().from_reader(line);
    let header = reader.byte_headers();
    header.is_ok_and(|header| header.iter().any(|column| column == name.as_bytes()))
}

fn stopped(error: csv::Error, line: u64, max: usize) -> InputError {
    match error.into_kind() {
        csv::ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            InputError::RecordTooLong { line, max }
        }
        csv::ErrorKind::Io(error) => at_line(line)(error),
        kind => at_line(line)(io::Error::other(format!("{kind:?}"))),
    }
}

fn text(name: &[u8]) -> String {
    // It may be as long as the record.
    String::from_utf8_lossy(name).chars().take(100).collect()
}
