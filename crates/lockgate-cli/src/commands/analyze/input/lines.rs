//! Lines of a bounded length.

use std::io::{BufRead, Read as _};

use super::{InputError, at_line};

pub(super) struct Lines {
    source: Box<dyn BufRead + Send>,
    max: usize,
    number: u64,
    line: Vec<u8>,
}

impl Lines {
    pub(super) fn new(source: Box<dyn BufRead + Send>, max: usize) -> Self {
        Self {
            source,
            max,
            number: 0,
            line: Vec::new(),
        }
    }

    /// The next line that is not blank, without what ends it, and its number.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &[u8])>, InputError> {
        loop {
            self.line.clear();
            self.number += 1;
            let line = self.number;
            // One byte more, for its end.
            let limit = self.max as u64 + 1;
            let mut source = self.source.by_ref().take(limit);
            let read = source.read_until(b'\n', &mut self.line);
            if read.map_err(at_line(line))? == 0 {
                return Ok(None);
            }
            if self.line.len() > self.max && !self.line.ends_with(b"\n") {
                let max = self.max;
                return Err(InputError::LineTooLong { line, max });
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(Some((line, self.line.trim_ascii())));
            }
        }
    }
}
