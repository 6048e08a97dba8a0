//! As much of HOCON as ElasticMQ's configuration files are written in, with the line of everything.
//!
//! Objects with and without their outer braces, nested and dotted keys, `=`, `:` or a brace behind a
//! key, values up to the end of their line, both comments, all three kinds of text, arrays, and keys
//! given again (objects join, the last other value counts). Includes and substitutions are read and
//! kept as such, for whoever may do without them.
//!
//! Follows the HOCON specification (<https://github.com/lightbend/config/blob/main/HOCON.md>). The
//! readers there are as packages do not tell lines.

use std::collections::HashMap;

/// A value, and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Object(Object),
    Array(Vec<Node>),
    /// Text, a number, a truth or a duration: whoever reads it knows which.
    Text(String),
    /// Something whose value stands elsewhere: `${...}`, as written.
    Substitution(String),
}

/// Members in the order in which they came first, and what was to be included.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Object {
    pub(super) members: Vec<(String, Node)>,
    /// Where each member stands among them: a file may have very many.
    places: HashMap<String, usize>,
    /// `include ...`, as written, with its line.
    pub(super) includes: Vec<(usize, String)>,
}

/// What cannot be read, and on which line.
pub(super) type Unreadable = (usize, String);

impl Object {
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        self.places.get(name).map(|&at| &self.members[at].1)
    }

    fn put(&mut self, path: &[String], node: Node) {
        let [first, rest @ ..] = path else { return };
        let node = if rest.is_empty() {
            node
        } else {
            let line = node.line;
            let mut inner = Self::default();
            inner.put(rest, node);
            let value = Value::Object(inner);
            Node { line, value }
        };
        match self.places.get(first) {
            Some(&at) => self.members[at].1.join(node),
            None => {
                self.places.insert(first.clone(), self.members.len());
                self.members.push((first.clone(), node));
            }
        }
    }
}

impl Node {
    /// The same key again: objects join, anything else is replaced.
    fn join(&mut self, other: Self) {
        match (&mut self.value, other.value) {
            (Value::Object(object), Value::Object(more)) => {
                for (key, node) in more.members {
                    object.put(&[key], node);
                }
                object.includes.extend(more.includes);
            }
            (value, replaced) => {
                *value = replaced;
                self.line = other.line;
            }
        }
    }
}

/// Reads a whole file.
pub(super) fn parse(text: &str) -> Result<Object, Unreadable> {
    let mut reader = Reader {
        rest: text.strip_prefix('\u{feff}').unwrap_or(text),
        line: 1,
        depth: 0,
    };
    reader.skip_blank();
    if reader.take("{") {
        let object = reader.object(true)?;
        reader.skip_blank();
        if reader.rest.is_empty() {
            Ok(object)
        } else {
            Err(reader.wrong("nothing may follow the last brace"))
        }
    } else {
        reader.object(false)
    }
}

struct Reader<'t> {
    rest: &'t str,
    line: usize,
    depth: usize,
}

/// Objects and arrays within each other, by braces or by the dots of a key; more are no configuration.
const DEPTH_MAX: usize = 32;
/// What ends an unquoted text, beside the end of its line.
const SPECIAL: &[char] = &[
    '{', '}', '[', ']', ',', '=', ':', '"', '$', '#', '+', '`', '^', '?', '!', '@', '*', '&', '\\',
];

impl<'t> Reader<'t> {
    fn wrong(&self, what: impl Into<String>) -> Unreadable {
        (self.line, what.into())
    }

    fn take(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    /// Spaces and comments on this line.
    fn skip_spaces(&mut self) {
        self.take_while(|c| c.is_whitespace() && c != '\n');
        if self.rest.starts_with('#') || self.rest.starts_with("//") {
            self.take_while(|c| c != '\n');
        }
    }

    /// Spaces, comments and lines' ends.
    fn skip_blank(&mut self) {
        loop {
            self.skip_spaces();
            if self.take_while(|c| c == '\n').is_empty() {
                return;
            }
        }
    }

    fn deeper(&mut self) -> Result<(), Unreadable> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(self.too_deep());
        }
        Ok(())
    }

    fn too_deep(&self) -> Unreadable {
        self.wrong(format!("more than {DEPTH_MAX} objects within each other"))
    }

    /// The members of an object, behind its opening brace if it has one.
    fn object(&mut self, braced: bool) -> Result<Object, Unreadable> {
        self.deeper()?;
        let opened = self.line;
        let mut object = Object::default();
        loop {
            self.skip_blank();
            while self.take(",") {
                self.skip_blank();
            }
            if self.rest.is_empty() {
                if braced {
                    let what = format!("the brace opened on line {opened} is not closed");
                    return Err(self.wrong(what));
                }
                break;
            }
            if self.rest.starts_with('}') {
                if !braced {
                    return Err(self.wrong("this brace closes nothing"));
                }
                self.take("}");
                break;
            }
            self.member(&mut object)?;
        }
        self.depth -= 1;
        Ok(object)
    }

    fn member(&mut self, object: &mut Object) -> Result<(), Unreadable> {
        let line = self.line;
        if let Some(after) = self.rest.strip_prefix("include")
            && after.starts_with([' ', '\t', '"'])
        {
            let text = self.take_while(|c| c != '\n').trim();
            object.includes.push((line, text.to_owned()));
            return Ok(());
        }
        let path = self.path()?;
        self.skip_spaces();
        let node = if self.rest.starts_with('{') {
            self.value()?
        } else if self.take("+=") {
            return Err((
                line,
                format!("{}: += is not supported; write the whole", path.join(".")),
            ));
        } else if self.take("=") || self.take(":") {
            self.skip_blank();
            self.value()?
        } else {
            let what = format!("{}: expected = or {{ behind it", path.join("."));
            return Err(self.wrong(what));
        };
        object.put(&path, Node { line, ..node });
        self.skip_spaces();
        if self.rest.is_empty() || self.rest.starts_with(['\n', ',', '}']) {
            Ok(())
        } else {
            Err(self.wrong(format!("{}: its value cannot be read", path.join("."))))
        }
    }

    /// A key: parts with dots between them.
    fn path(&mut self) -> Result<Vec<String>, Unreadable> {
        let mut path = Vec::new();
        loop {
            let part = if self.rest.starts_with('"') {
                self.quoted()?
            } else {
                let part =
                    self.take_while(|c| !c.is_whitespace() && c != '.' && !SPECIAL.contains(&c));
                if part.is_empty() {
                    let found = self.rest.chars().next().unwrap_or(' ');
                    return Err(self.wrong(format!("expected a key, found {found:?}")));
                }
                part.to_owned()
            };
            path.push(part);
            if !self.take(".") {
                return Ok(path);
            }
            if self.depth + path.len() > DEPTH_MAX {
                return Err(self.too_deep());
            }
        }
    }

    fn value(&mut self) -> Result<Node, Unreadable> {
        let line = self.line;
        let value = if self.take("{") {
            Value::Object(self.object(true)?)
        } else if self.take("[") {
            Value::Array(self.array()?)
        } else {
            self.text()?
        };
        Ok(Node { line, value })
    }

    fn array(&mut self) -> Result<Vec<Node>, Unreadable> {
        self.deeper()?;
        let mut items = Vec::new();
        loop {
            self.skip_blank();
            while self.take(",") {
                self.skip_blank();
            }
            if self.take("]") {
                break;
            }
            if self.rest.is_empty() || self.rest.starts_with(['}', ':', '=']) {
                return Err(self.wrong("an array is not closed"));
            }
            items.push(self.value()?);
        }
        self.depth -= 1;
        Ok(items)
    }

    /// Texts behind each other on a line are one, with the spaces between them.
    fn text(&mut self) -> Result<Value, Unreadable> {
        let mut text = String::new();
        let mut substituted = false;
        let mut any = false;
        loop {
            let spaces = self.take_while(|c| c.is_whitespace() && c != '\n');
            let part: String =
                if self.rest.starts_with('"') {
                    self.quoted()?
                } else if self.rest.starts_with("${") {
                    substituted = true;
                    let end = self
                        .rest
                        .find(['}', '\n'])
                        .filter(|&end| self.rest[end..].starts_with('}'));
                    let end = end.ok_or_else(|| self.wrong("${ is not closed"))?;
                    let (taken, rest) = self.rest.split_at(end + 1);
                    self.rest = rest;
                    taken.to_owned()
                } else {
                    let mut part = self
                        .take_while(|c| !c.is_whitespace() && c != '/' && !SPECIAL.contains(&c))
                        .to_owned();
                    // A slash that begins no comment is a letter.
                    while self.rest.starts_with('/') && !self.rest.starts_with("//") {
                        part.push('/');
                        self.rest = &self.rest[1..];
                        part.push_str(self.take_while(|c| {
                            !c.is_whitespace() && c != '/' && !SPECIAL.contains(&c)
                        }));
                    }
                    if part.is_empty() {
                        break;
                    }
                    part
                };
            if any {
                text.push_str(spaces);
            }
            text.push_str(&part);
            any = true;
        }
        match (any, substituted) {
            (false, _) => Err(self.wrong("expected a value")),
            (true, true) => Ok(Value::Substitution(text)),
            (true, false) => Ok(Value::Text(text)),
        }
    }

    fn quoted(&mut self) -> Result<String, Unreadable> {
        if self.take("\"\"\"") {
            let end = self.rest.find("\"\"\"");
            let mut end = end.ok_or_else(|| self.wrong("a text in \"\"\" is not closed"))?;
            // Quotes before the last three belong to the text.
            while self.rest[end + 3..].starts_with('"') {
                end += 1;
            }
            let text = self.rest[..end].to_owned();
            self.line += text.matches('\n').count();
            self.rest = &self.rest[end + 3..];
            return Ok(text);
        }
        // As in JSON, so JSON's reader knows where it ends and what it says.
        let mut texts = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        match texts.next() {
            Some(Ok(text)) => {
                self.rest = &self.rest[texts.byte_offset()..];
                Ok(text)
            }
            _ => Err(self.wrong("a text in quotes is not closed, or has a wrong escape in it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(object: &Object) -> String {
        let member = |(key, node): &(String, Node)| format!("{key}={}", show_value(&node.value));
        let members: Vec<_> = object.members.iter().map(member).collect();
        format!("{{{}}}", members.join(","))
    }

    fn show_value(value: &Value) -> String {
        match value {
            Value::Object(object) => show(object),
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| show_value(&item.value)).collect();
                format!("[{}]", items.join(","))
            }
            Value::Text(text) => format!("<{text}>"),
            Value::Substitution(text) => format!("?{text}"),
        }
    }

    #[test]
    fn the_forms_of_a_value() {
        for (text, expected) in [
            ("", "{}"),
            ("{}", "{}"),
            ("{ a : 1 } # end", "{a=<1>}"),
            ("a = 1, b = 2\nc = 3", "{a=<1>,b=<2>,c=<3>}"),
            ("a = 10 seconds // long\n", "{a=<10 seconds>}"),
            ("a = \"x y\" z", "{a=<x y z>}"),
            ("a = \"\"\"x\n\"y\"\"\"\"\nb = 1", "{a=<x\n\"y\">,b=<1>}"),
            ("a.b.c = 1\na { b { d = 2 } }", "{a={b={c=<1>,d=<2>}}}"),
            ("\"a.b\" { c = 1 }", "{a.b={c=<1>}}"),
            ("a = 1\na = 2", "{a=<2>}"),
            ("a = [1, 2\n 3,]", "{a=[<1>,<2>,<3>]}"),
            ("a = ${x}/y", "{a=?${x}/y}"),
            ("a = /dev/null", "{a=</dev/null>}"),
            ("a =\n  { b = 1 }", "{a={b=<1>}}"),
            ("a = \"\\u00e4\\n\"", "{a=<ä\n>}"),
            ("include \"other\"\na = 1", "{a=<1>}"),
        ] {
            let object = parse(text).unwrap_or_else(|error| panic!("{text:?}: {error:?}"));
            assert_eq!(show(&object), expected, "{text:?}");
        }
    }

    #[test]
    fn lines_are_those_of_keys() {
        let object = parse("# one\na {\n\n  b = \"\"\"\n\n\"\"\"\n  c = 1\n}").unwrap();
        let Value::Object(a) = &object.get("a").unwrap().value else {
            panic!("{object:?}");
        };
        assert_eq!(object.get("a").unwrap().line, 2);
        assert_eq!(a.get("b").unwrap().line, 4);
        assert_eq!(a.get("c").unwrap().line, 7);
    }

    #[test]
    fn no_file_uses_up_the_stack_or_much_time() {
        // Without optimisation a level takes 5 KiB.
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let reading = small.spawn(|| {
            for text in [
                "a {".repeat(300_000),
                "a = ".to_owned() + &"[".repeat(300_000),
                "a = ".to_owned() + &"[{a=".repeat(300_000),
                "a.".repeat(300_000) + "b = 1",
                "\"\".".repeat(300_000) + "b = 1",
                "a {".repeat(DEPTH_MAX - 2) + &"a.".repeat(300_000) + "b = 1",
            ] {
                let (_, what) = parse(&text).unwrap_err();
                assert!(what.contains("within each other"), "{text:.20}: {what}");
            }
            let deepest = "a {".repeat(DEPTH_MAX - 1) + "b=1" + &"}".repeat(DEPTH_MAX - 1);
            let object = parse(&deepest).unwrap();
            assert_eq!(object.clone(), object);
            // Each is looked up among all others.
            let many: String = (0..200_000).map(|n| format!("k{n} = {n}\n")).collect();
            assert_eq!(parse(&many).unwrap().members.len(), 200_000);
            // An object that is given again joins the one before.
            let again = format!("a {{ {many} }}\n").repeat(2);
            assert!(parse(&again).unwrap().get("a").is_some());
        });
        reading.unwrap().join().unwrap();
    }

    #[test]
    fn what_is_no_hocon_is_refused_and_never_a_panic() {
        for (text, line) in [
            ("a", 1),
            ("a = ", 1),
            ("a = 1 }", 1),
            ("\na {", 2),
            ("a = [1", 1),
            ("a = \"x\ny\"", 1),
            ("\n\n= 1", 3),
            ("a += 1", 1),
            ("a = ${x\n", 1),
            ("{ } x", 1),
            ("a = {} {}", 1),
            ("a = \"\\q\"", 1),
        ] {
            assert_eq!(parse(text).unwrap_err().0, line, "{text:?}");
        }
        parse(&"a {".repeat(1_000_000)).unwrap_err();
        parse(&format!("a = {}", "[".repeat(1_000_000))).unwrap_err();
    }
}
