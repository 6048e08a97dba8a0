//! Messages from a file or standard input, one JSON object a line.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read as _},
    path::Path,
    thread,
};

use lockgate_core::PRIORITY_MAX;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::{
    client::{Body, Encoding, Header, Message},
    exit::{Exit, Failure},
    units::show_size,
};

/// The longest line read: a message of 1 MiB in which every byte is written as `\u00xx`, and room
/// for the rest. A file that is no JSON lines at all must not fill the memory.
const LINE_BYTES_MAX: usize = 8 << 20;

/// What editors on Windows put in front of a file.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What to do with a body that stands in no JSON.
const NOT_LINES: &str = "to send one message as it is: `lockgate send QUEUE TEXT`, `--file FILE`, or `--raw` for all of \
                         standard input";

/// Lines read ahead while a call is under way.
const READ_AHEAD: usize = 100;

/// A message to be sent.
#[derive(Clone, Debug, Default)]
pub(in crate::commands) struct Outgoing {
    /// File and line, if it came from there.
    pub(in crate::commands) place: Option<String>,
    pub(in crate::commands) message: Message,
    /// What an exchange routes it by; empty for a queue.
    pub(in crate::commands) routing_key: String,
}

/// What lines are.
#[derive(Clone, Debug)]
pub(in crate::commands) enum Form {
    /// Each is a message for a queue.
    Messages,
    /// Each is a message for an exchange; this is the routing key of one that says none.
    Routed(String),
    /// Each is a body, as it is.
    Raw,
}

impl Outgoing {
    /// About as many bytes as it takes in a request.
    pub(super) fn size(&self) -> usize {
        let headers: usize = (self.message.headers.iter())
            .map(|(name, header)| name.len() + header.kind.len() + header.value.len())
            .sum();
        self.message.body.text.len() + headers + self.routing_key.len()
    }
}

/// Reads lines on a thread of its own, because a terminal or pipe can make it wait for ever.
pub(in crate::commands) struct Pump {
    lines: mpsc::Receiver<Result<Outgoing, Failure>>,
}

impl Pump {
    /// Starts reading. What a line does not say is taken from `defaults`.
    pub(in crate::commands) fn start(
        path: &Path,
        defaults: Message,
        form: Form,
    ) -> Result<Self, Failure> {
        let (name, source): (_, Box<dyn BufRead + Send>) = if path == Path::new("-") {
            (
                "standard input".to_owned(),
                Box::new(BufReader::new(io::stdin())),
            )
        } else {
            let file = File::open(path).map_err(|error| {
                let exit = match error.kind() {
                    io::ErrorKind::NotFound => Exit::NotFound,
                    _ => Exit::Failed,
                };
                Failure::from_error(exit, error).context(format!("opening {}", path.display()))
            })?;
            (path.display().to_string(), Box::new(BufReader::new(file)))
        };
        let (sender, lines) = mpsc::channel(READ_AHEAD);
        // Not joined: it may be waiting for a terminal when the process has long done its work.
        thread::spawn(move || read(source, &name, &defaults, &form, &sender));
        Ok(Self { lines })
    }

    /// The next message, or what is wrong with its line; `None` at the end.
    pub(in crate::commands) async fn next(&mut self) -> Option<Result<Outgoing, Failure>> {
        self.lines.recv().await
    }

    /// The next message if it is there already.
    pub(in crate::commands) fn ready(&mut self) -> Option<Result<Outgoing, Failure>> {
        self.lines.try_recv().ok()
    }
}

fn read(
    mut source: impl BufRead,
    name: &str,
    defaults: &Message,
    form: &Form,
    sender: &mpsc::Sender<Result<Outgoing, Failure>>,
) {
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let limit = LINE_BYTES_MAX as u64 + 1;
        let read = source.by_ref().take(limit).read_until(b'\n', &mut line);
        let place = || format!("{name}:{number}");
        if number == 1 && !matches!(form, Form::Raw) && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        let message = match read {
            Ok(0) => return,
            Ok(_) if line.len() > LINE_BYTES_MAX => Err(Failure::failed(format!(
                "the line is longer than {}",
                show_size(LINE_BYTES_MAX as u64)
            ))),
            Ok(_) if matches!(form, Form::Raw) => Ok(Outgoing {
                message: Message {
                    body: Body::bytes(line.strip_suffix(b"\n").unwrap_or(&line)),
                    ..defaults.clone()
                },
                ..Outgoing::default()
            }),
            Ok(_) if line.trim_ascii().is_empty() => continue,
            Ok(_) if !line.trim_ascii_start().starts_with(b"{") => Err(Failure::failed(
                "this line is no JSON object, such as {\"body\": \"hello\"}",
            )
            .hint(NOT_LINES)),
            Ok(_) => outgoing(&line, defaults, form).map_err(Failure::failed),
            Err(error) => Err(Failure::failed(error)),
        };
        let wrong = message.is_err();
        let item = message
            .map(|message| Outgoing {
                place: Some(place()),
                ..message
            })
            .map_err(|failure| failure.context(place()));
        // Nobody listens any more, or the line was wrong: nothing after it is sent.
        if sender.blocking_send(item).is_err() || wrong {
            return;
        }
    }
}

/// A line as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    body: &'a RawValue,
    #[serde(default)]
    body_encoding: Encoding,
    key: Option<String>,
    group: Option<String>,
    unique_id: Option<String>,
    delay_ms: Option<u64>,
    due_at: Option<String>,
    time_to_live_ms: Option<u64>,
    #[serde(borrow, default)]
    headers: Once<'a>,
    content_type: Option<String>,
    trace_context: Option<String>,
    level: Option<String>,
    priority: Option<u64>,
    routing_key: Option<String>,
}

/// Values by names, of which none is there twice: a map would keep the last one only.
#[derive(Default)]
struct Once<'a>(BTreeMap<String, &'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Once<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = Once<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of headers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut given: A) -> Result<Once<'de>, A::Error> {
                let mut once = Once::default();
                while let Some((name, value)) = given.next_entry::<String, _>()? {
                    match once.0.entry(name) {
                        Entry::Vacant(place) => place.insert(value),
                        Entry::Occupied(place) => {
                            let what = format!("header {:?} is there twice", place.key());
                            return Err(A::Error::custom(what));
                        }
                    };
                }
                Ok(once)
            }
        }

        from.deserialize_map(Names)
    }
}

/// The message of a line for a queue.
pub(in crate::commands) fn parse(line: &[u8], defaults: &Message) -> Result<Message, String> {
    outgoing(line, defaults, &Form::Messages).map(|outgoing| outgoing.message)
}

/// The message of a line.
fn outgoing(line: &[u8], defaults: &Message, form: &Form) -> Result<Outgoing, String> {
    let text = str::from_utf8(line).map_err(|error| {
        format!(
            "byte {} is not UTF-8, which JSON has to be",
            error.valid_up_to() + 1
        )
    })?;
    let line: Line<'_> = serde_json::from_str(text).map_err(|error| explain(&error))?;
    let mut headers = defaults.headers.clone();
    for (name, value) in line.headers.0 {
        let value = header(value.get()).map_err(|what| format!("header {name:?}: {what}"))?;
        headers.insert(name, value);
    }
    let routing_key = match (form, line.routing_key) {
        (Form::Routed(_), Some(own)) => own,
        (Form::Routed(default), None) => default.clone(),
        (_, None) => String::new(),
        (_, Some(_)) => {
            let what = "routing_key: a queue routes nothing; publish the message to an exchange: `lockgate exchange publish`";
            return Err(what.to_owned());
        }
    };
    let no_place = line.key.is_none() && line.group.is_none();
    let message = Message {
        body: Body {
            text: body(line.body)?,
            encoding: line.body_encoding,
        },
        key: line
            .key
            .or_else(|| defaults.key.clone().filter(|_| no_place)),
        group: line
            .group
            .or_else(|| defaults.group.clone().filter(|_| no_place)),
        unique_id: line.unique_id,
        delay_ms: line
            .delay_ms
            .or(defaults.delay_ms.filter(|_| line.due_at.is_none())),
        due_at: line
            .due_at
            .or(defaults.due_at.clone().filter(|_| line.delay_ms.is_none())),
        time_to_live_ms: line.time_to_live_ms,
        headers,
        content_type: line.content_type,
        trace_context: line.trace_context,
        level: line.level,
        priority: line.priority.map_or(Ok(defaults.priority), priority)?,
        producer: None,
    };
    Ok(Outgoing {
        place: None,
        message,
        routing_key,
    })
}

fn priority(given: u64) -> Result<u8, String> {
    let priority = u8::try_from(given).ok();
    let priority = priority.filter(|&priority| priority <= PRIORITY_MAX);
    priority.ok_or_else(|| format!("priority must be 0 to {PRIORITY_MAX}, not {given}"))
}

/// For the fuzzer.
pub fn fuzz_line(bytes: &[u8]) -> Result<(), String> {
    let form = Form::Routed(String::new());
    let message = outgoing(bytes, &Message::default(), &form)?;
    let body = message.message.body.text.len();
    assert!(message.size() >= body, "its size");
    Ok(())
}

/// A string's text; any other value as it stands, without the white space between its parts. Going
/// through a parsed value instead would reorder objects and round numbers.
pub(in crate::commands) fn body(value: &RawValue) -> Result<String, String> {
    let json = value.get();
    if json.starts_with('"') {
        return serde_json::from_str(json).map_err(|error| explain(&error));
    }
    let mut compact = String::with_capacity(json.len());
    let mut in_string = false;
    let mut escaped = false;
    for c in json.chars() {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if c.is_ascii_whitespace() {
            continue;
        } else {
            in_string = c == '"';
        }
        compact.push(c);
    }
    Ok(compact)
}

/// A header: a string or number, or an object in the words of the API.
fn header(json: &str) -> Result<Header, String> {
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str::<String>(json)
            .map(|value| Header::text("String", value))
            .map_err(|error| explain(&error)),
        Some(b'-' | b'0'..=b'9') => Ok(Header::text("Number", json)),
        Some(b'{') => serde_json::from_str(json).map_err(|error| explain(&error)),
        _ => Err("expected a string, a number, or {\"type\": ..., \"value\": ...}".to_owned()),
    }
}

/// The parser's words without its line number, which is always 1 here.
fn explain(error: &serde_json::Error) -> String {
    error
        .to_string()
        .replace(" at line 1 column ", " at column ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Message {
        Message {
            key: Some("default".to_owned()),
            ..Message::default()
        }
    }

    fn read_line(line: &str) -> Result<Message, String> {
        parse(line.as_bytes(), &defaults())
    }

    #[test]
    fn a_body_is_a_strings_text_or_the_value_as_it_stands() {
        let body = |json: &str| {
            read_line(&format!("{{\"body\":{json}}}"))
                .unwrap()
                .body
                .text
        };
        assert_eq!(body(r#""a \"b\"\n""#), "a \"b\"\n");
        assert_eq!(
            body(r#"{ "z" : [1.50, 12345678901234567890123 ] , "a b":"\" , \\" }"#),
            r#"{"z":[1.50,12345678901234567890123],"a b":"\" , \\"}"#
        );
        assert_eq!(body(" null "), "null");
        assert_eq!(body("7"), "7");
    }

    #[test]
    fn headers_have_the_type_of_their_json() {
        let message = read_line(
            r#"{"body":"","headers":{"a":"x","b":-1.5e3,"c":{"type":"Binary","value":"AA==","encoding":"base64"}}}"#,
        )
        .unwrap();
        let shown: Vec<_> = message
            .headers
            .values()
            .map(|header| (&*header.kind, &*header.value, header.encoding))
            .collect();
        assert_eq!(
            shown,
            [
                ("String", "x", Encoding::Text),
                ("Number", "-1.5e3", Encoding::Text),
                ("Binary", "AA==", Encoding::Base64)
            ]
        );
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        let problem = |line: &str| read_line(line).unwrap_err();
        assert!(
            problem("{").contains("EOF while parsing an object at column 1"),
            "{}",
            problem("{")
        );
        assert!(problem("{}").contains("missing field `body`"));
        assert!(problem(r#"{"body":1,"boddy":2}"#).contains("unknown field `boddy`"));
        assert!(problem(r#"{"body":1,"body":2}"#).contains("duplicate field `body`"));
        assert!(problem(r#"{"body":1,"headers":{"a":true}}"#).contains("header \"a\""));
        let twice = problem(r#"{"body":1,"headers":{"a":"x","b":1,"a":"y"}}"#);
        assert!(twice.contains("header \"a\" is there twice"), "{twice}");
        assert_eq!(
            problem(r#"{"body":1,"priority":10}"#),
            "priority must be 0 to 9, not 10"
        );
        assert!(problem(r#"{"body":1} x"#).contains("trailing"));
        assert!(
            parse(b"{\"body\":\"\xff\"}", &defaults())
                .unwrap_err()
                .contains("byte 10")
        );
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        let (sender, mut lines) = mpsc::channel(10);
        let text = "\u{feff}{\"body\":1}\r\n\u{feff}{\"body\":2}\r\n";
        read(text.as_bytes(), "f", &defaults(), &Form::Messages, &sender);
        assert_eq!(lines.try_recv().unwrap().unwrap().message.body.text, "1");
        let wrong = lines.try_recv().unwrap().unwrap_err().to_string();
        assert!(
            wrong.starts_with("f:2: this line is no JSON object"),
            "{wrong}"
        );
    }

    #[test]
    fn a_raw_line_is_a_body_as_it_is() {
        let (sender, mut lines) = mpsc::channel(10);
        read(
            &b"a\r\n\n{\xff\nend"[..],
            "f",
            &defaults(),
            &Form::Raw,
            &sender,
        );
        drop(sender);
        let mut bodies = Vec::new();
        while let Ok(line) = lines.try_recv() {
            let message = line.unwrap().message;
            assert_eq!(message.key.as_deref(), Some("default"));
            bodies.push(message.body.decode().unwrap());
        }
        assert_eq!(bodies, [&b"a\r"[..], b"", b"{\xff", b"end"]);
    }

    #[test]
    fn lines_are_numbered_and_nothing_follows_a_wrong_one() {
        let (sender, mut lines) = mpsc::channel(10);
        let text = "{\"body\":1}\n\n{\"body\":2,\"key\":\"k\"}\nnonsense\n{\"body\":3}";
        read(text.as_bytes(), "f", &defaults(), &Form::Messages, &sender);
        drop(sender);
        let first = lines.try_recv().unwrap().unwrap();
        assert_eq!(
            (first.place.as_deref(), first.message.key.as_deref()),
            (Some("f:1"), Some("default"))
        );
        let second = lines.try_recv().unwrap().unwrap();
        assert_eq!(
            (second.place.as_deref(), second.message.key.as_deref()),
            (Some("f:3"), Some("k"))
        );
        let wrong = lines.try_recv().unwrap().unwrap_err().to_string();
        assert!(
            wrong.starts_with("f:4: this line is no JSON object"),
            "{wrong}"
        );
        assert!(lines.try_recv().is_err());
    }
}
