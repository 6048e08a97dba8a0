//! A line of an access log in the common or combined form, as Apache and nginx write it:
//! `host ident user [time] "method target protocol" status bytes "referer" "agent"`. What comes behind is left
//! alone.

/// The fields, by their names.
pub(super) const FIELDS: [&str; 14] = [
    "host", "ident", "user", "time", "request", "method", "target", "path", "query", "protocol",
    "status", "bytes", "referer", "agent",
];

/// What `-` stands for, too, is `None`.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    host: &'a [u8],
    ident: &'a [u8],
    user: &'a [u8],
    time: &'a [u8],
    request: &'a [u8],
    status: &'a [u8],
    bytes: &'a [u8],
    referer: &'a [u8],
    agent: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Says what is missing if it is none.
    pub(super) fn parse(line: &'a [u8]) -> Result<Self, &'static str> {
        let (host, rest) = split(line, b' ').ok_or("it is one word")?;
        let (ident, rest) = split(rest, b' ').ok_or("it has two words")?;
        // The name of a user may have spaces.
        let (user, rest) = split(rest, b'[').ok_or("it has no time in brackets")?;
        let (time, rest) = split(rest, b']').ok_or("its time has no end")?;
        let (request, rest) = quoted(rest).ok_or("it has no request in quotes")?;
        let rest = rest.trim_ascii_start();
        let (status, rest) = split(rest, b' ').unwrap_or((rest, &[]));
        if status.len() != 3 || !status.iter().all(u8::is_ascii_digit) {
            return Err("it has no status of three digits");
        }
        let rest = rest.trim_ascii_start();
        let (bytes, rest) = split(rest, b' ').unwrap_or((rest, &[]));
        let (referer, rest) = quoted(rest).unwrap_or((&[], rest));
        let (agent, _) = quoted(rest).unwrap_or((&[], rest));
        Ok(Self {
            host,
            ident,
            user: user.trim_ascii(),
            time,
            request,
            status,
            bytes,
            referer,
            agent,
        })
    }

    /// The field of that name; `None` if the line has nothing there.
    pub(super) fn field(&self, name: &str) -> Option<&'a [u8]> {
        let value = match name {
            "host" => self.host,
            "ident" => self.ident,
            "user" => self.user,
            "time" => self.time,
            "request" => self.request,
            "method" => self.words()?[0],
            "target" => self.words()?[1],
            "path" => self.target()?.0,
            "query" => self.target()?.1,
            "protocol" => self.words()?[2],
            "status" => self.status,
            "bytes" => self.bytes,
            "referer" => self.referer,
            "agent" => self.agent,
            _ => return None,
        };
        (!value.is_empty() && value != b"-").then_some(value)
    }

    /// Method, target and protocol, if the request is one.
    fn words(&self) -> Option<[&'a [u8]; 3]> {
        let (method, rest) = split(self.request, b' ')?;
        let end = rest.iter().rposition(|&byte| byte == b' ')?;
        Some([method, &rest[..end], &rest[end + 1..]])
    }

    fn target(&self) -> Option<(&'a [u8], &'a [u8])> {
        let target = self.words()?[1];
        Some(split(target, b'?').unwrap_or((target, &[])))
    }
}

/// What is before and behind the first of these bytes.
fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|&byte| byte == at)?;
    Some((&text[..at], &text[at + 1..]))
}

/// What is between quotes, as it is written, and what is behind them. A backslash hides a quote.
fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = text.trim_ascii_start().strip_prefix(b"\"")?;
    let mut is_hidden = false;
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            _ if is_hidden => is_hidden = false,
            b'\\' => is_hidden = true,
            b'"' => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}
