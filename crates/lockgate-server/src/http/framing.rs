//! A second, strict parser for the framing of requests.
//!
//! hyper accepts framing that two parsers in a row may read differently: it drops `Content-Length`
//! beside `Transfer-Encoding`, merges repeated lengths before any other code can see them, and
//! takes a bare line feed for the end of a line. Such a request may hide another one from a proxy
//! in front of the server, so the server must refuse it, and only the raw bytes still show it.
//! [`Framing`] reads the bytes as they pass, finds where each head and body ends, and remembers the
//! first violation. It changes nothing.

use std::mem;

/// Why a request's framing is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// A line of the head, or of the chunked body, ends in a line feed alone.
    BareLineFeed,
    /// Both `Content-Length` and `Transfer-Encoding`.
    BothLengths,
    /// `Content-Length` more than once, or no plain number.
    Length,
    /// `Transfer-Encoding` more than once, or anything but `chunked`.
    TransferEncoding,
    /// A chunk's size or end is malformed.
    Chunk,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Nothing yet: the next byte starts a request.
    Between,
    /// A request's head has begun.
    Head,
    /// The head is whole, the body is not.
    Body,
    /// Unknown: the framing was violated.
    Lost,
}

/// Follows one connection's incoming bytes.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    state: State,
    /// The beginning of a line that did not arrive in one piece.
    partial: Vec<u8>,
    head: Head,
    /// Requests whose last byte has passed.
    finished: u64,
    violation: Option<(u64, Violation)>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Between,
    Header,
    /// The number of missing bytes of a body of known length.
    Sized(u64),
    ChunkSize,
    /// The number of missing bytes of a chunk.
    ChunkData(u64),
    /// The empty line after a chunk's data.
    ChunkEnd,
    Trailer,
    Lost,
}

/// What the head has said about its body so far.
#[derive(Debug, Default)]
struct Head {
    length: Option<u64>,
    chunked: bool,
}

/// A longer line is cut. The server's limit on the whole head is lower, so the request is refused
/// anyway, and no later request is served.
const LINE_LEN_MAX: usize = 64 * 1024;

impl Framing {
    /// Takes the next bytes of the connection.
    pub(crate) fn observe(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.state {
                State::Lost => return,
                State::Sized(missing) => {
                    let (taken, missing) = take(missing, bytes);
                    bytes = &bytes[taken..];
                    self.state = State::Sized(missing);
                    if missing == 0 {
                        self.finish();
                    }
                }
                State::ChunkData(missing) => {
                    let (taken, missing) = take(missing, bytes);
                    bytes = &bytes[taken..];
                    self.state = match missing {
                        0 => State::ChunkEnd,
                        _ => State::ChunkData(missing),
                    };
                }
                _ => bytes = self.lines(bytes),
            }
        }
    }

    /// What the next byte belongs to.
    pub(crate) fn part(&self) -> Part {
        match self.state {
            State::Between if self.partial.is_empty() => Part::Between,
            State::Between | State::Header => Part::Head,
            State::Lost => Part::Lost,
            _ => Part::Body,
        }
    }

    /// How many whole requests have passed.
    pub(crate) fn finished(&self) -> u64 {
        self.finished
    }

    /// What is wrong with request `index` (counted from 0 on this connection), as far as it is
    /// known. A violation must end the connection, so nothing is known of later requests.
    pub(crate) fn violation(&self, index: u64) -> Option<Violation> {
        self.violation
            .filter(|&(at, _)| at <= index)
            .map(|(_, violation)| violation)
    }

    /// Takes one line, or the part of it that there is; returns the rest.
    fn lines<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            self.partial.extend_from_slice(bytes);
            if self.partial.len() > LINE_LEN_MAX {
                self.partial = Vec::new();
                self.state = State::Lost;
            }
            return &[];
        };
        let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
        // A head nearly always arrives in one piece and then is not copied.
        let outcome = if self.partial.is_empty() {
            self.line(line)
        } else {
            let mut whole = mem::take(&mut self.partial);
            whole.extend_from_slice(line);
            let outcome = self.line(&whole);
            whole.clear();
            self.partial = whole;
            outcome
        };
        if let Err(violation) = outcome {
            self.violation = Some((self.finished, violation));
            self.partial = Vec::new();
            self.state = State::Lost;
        }
        rest
    }

    /// Takes one whole line, without its line feed.
    fn line(&mut self, line: &[u8]) -> Result<(), Violation> {
        let Some((b'\r', line)) = line.split_last() else {
            return Err(Violation::BareLineFeed);
        };
        self.state = match self.state {
            // Empty lines in front of a request are ignored (RFC 9112, section 2.2).
            State::Between if line.is_empty() => State::Between,
            State::Between => State::Header,
            State::Header if line.is_empty() => return self.end_of_head(),
            State::Header => {
                self.head.header(line)?;
                State::Header
            }
            State::ChunkSize => match chunk_size(line)? {
                0 => State::Trailer,
                size => State::ChunkData(size),
            },
            State::ChunkEnd if line.is_empty() => State::ChunkSize,
            State::ChunkEnd => return Err(Violation::Chunk),
            State::Trailer if line.is_empty() => {
                self.finish();
                return Ok(());
            }
            State::Trailer => State::Trailer,
            state @ (State::Sized(_) | State::ChunkData(_) | State::Lost) => state,
        };
        Ok(())
    }

    fn end_of_head(&mut self) -> Result<(), Violation> {
        match mem::take(&mut self.head) {
            Head {
                length: Some(_),
                chunked: true,
            } => return Err(Violation::BothLengths),
            Head { chunked: true, .. } => self.state = State::ChunkSize,
            Head {
                length: Some(length @ 1..),
                ..
            } => self.state = State::Sized(length),
            Head { .. } => self.finish(),
        }
        Ok(())
    }

    fn finish(&mut self) {
        self.finished += 1;
        self.state = State::Between;
    }
}

impl Head {
    fn header(&mut self, line: &[u8]) -> Result<(), Violation> {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            return Ok(()); // not a header: hyper refuses it
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = number(value, 10).ok_or(Violation::Length)?;
            if self.length.replace(length).is_some() {
                return Err(Violation::Length);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Violation::TransferEncoding);
            }
            self.chunked = true;
        }
        Ok(())
    }
}

fn take(missing: u64, bytes: &[u8]) -> (usize, u64) {
    let taken = usize::try_from(missing).map_or(bytes.len(), |missing| missing.min(bytes.len()));
    (taken, missing - taken as u64)
}

fn chunk_size(line: &[u8]) -> Result<u64, Violation> {
    let size = line.split(|&byte| byte == b';').next().unwrap_or_default();
    number(size.trim_ascii_end(), 16).ok_or(Violation::Chunk)
}

/// Digits only: no sign, blank or `0x`, which two parsers may read differently.
fn number(text: &[u8], radix: u32) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, &byte| {
        let digit = char::from(byte).to_digit(radix)?;
        number
            .checked_mul(radix.into())?
            .checked_add(u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `bytes` at once, then byte by byte, and expects the same result.
    fn follow(bytes: &[u8]) -> (u64, Part, Option<Violation>) {
        let mut whole = Framing::default();
        whole.observe(bytes);
        let mut dripped = Framing::default();
        for byte in bytes {
            dripped.observe(&[*byte]);
        }
        let state = |framing: &Framing| {
            (
                framing.finished(),
                framing.part(),
                framing.violation(framing.finished()),
            )
        };
        assert_eq!(
            state(&whole),
            state(&dripped),
            "in {:?}",
            String::from_utf8_lossy(bytes)
        );
        state(&whole)
    }

    #[test]
    fn requests_end_where_their_framing_says() {
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let sized = "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nGET /";
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
                       5;x=y\r\nGET /\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n";
        let many = [get, sized, chunked, "\r\n", get, chunked, sized].concat();
        for (bytes, expected) in [
            ("", (0, Part::Between, None)),
            ("G", (0, Part::Head, None)),
            (get, (1, Part::Between, None)),
            (&get[..get.len() - 1], (0, Part::Head, None)),
            (sized, (1, Part::Between, None)),
            (&sized[..sized.len() - 1], (0, Part::Body, None)),
            (chunked, (1, Part::Between, None)),
            (&chunked[..chunked.len() - 2], (0, Part::Body, None)),
            (&many, (6, Part::Between, None)),
        ] {
            assert_eq!(follow(bytes.as_bytes()), expected, "of {bytes:?}");
        }
    }

    #[test]
    fn what_two_readers_may_frame_differently_is_refused() {
        let with = |headers: &str| format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n");
        for (bytes, violation) in [
            (
                with("Content-Length: 5\r\nTransfer-Encoding: chunked"),
                Violation::BothLengths,
            ),
            (
                with("transfer-encoding: chunked\r\ncontent-length: 5"),
                Violation::BothLengths,
            ),
            (
                with("Content-Length: 5\r\nContent-Length: 5"),
                Violation::Length,
            ),
            (
                with("Content-Length: 5\r\nContent-Length: 6"),
                Violation::Length,
            ),
            (with("Content-Length: 5, 5"), Violation::Length),
            (with("Content-Length: +5"), Violation::Length),
            (with("Content-Length:"), Violation::Length),
            (
                with("Content-Length: 99999999999999999999"),
                Violation::Length,
            ),
            (
                with("Transfer-Encoding: gzip, chunked"),
                Violation::TransferEncoding,
            ),
            (
                with("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
                Violation::TransferEncoding,
            ),
            (with("Host: a\nX: y"), Violation::BareLineFeed),
            (
                "POST / HTTP/1.1\nHost: a\r\n\r\n".to_owned(),
                Violation::BareLineFeed,
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\n\n".to_owned(),
                Violation::BareLineFeed,
            ),
            (
                with("Transfer-Encoding: chunked") + "5\nabcde\r\n",
                Violation::BareLineFeed,
            ),
            (
                with("Transfer-Encoding: chunked") + "5\r\nabcdef\r\n",
                Violation::Chunk,
            ),
            (
                with("Transfer-Encoding: chunked") + "0x5\r\nabcde\r\n",
                Violation::Chunk,
            ),
        ] {
            assert_eq!(
                follow(bytes.as_bytes()),
                (0, Part::Lost, Some(violation)),
                "of {bytes:?}"
            );
        }
    }

    #[test]
    fn a_violation_belongs_to_its_request_and_to_all_after_it() {
        let mut framing = Framing::default();
        framing.observe(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\n\r\n");
        assert_eq!(framing.violation(0), None);
        assert_eq!(framing.violation(1), Some(Violation::BareLineFeed));
        assert_eq!(framing.violation(2), Some(Violation::BareLineFeed));
    }

    #[test]
    fn an_endless_line_is_not_remembered() {
        let mut framing = Framing::default();
        for _ in 0..200 {
            framing.observe(&[b'x'; 1024]);
        }
        assert_eq!(framing.part(), Part::Lost);
        assert_eq!(framing.partial.capacity(), 0);
    }
}
