//! What is read from lines of every form.

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};

use super::*;

fn wanted(key: &str) -> Wanted {
    Wanted {
        key: key.to_owned(),
        time: None,
        format: None,
        line_bytes_max: 200,
    }
}

/// Each line as its number, and its key or what is wrong.
fn read(path: &str, wanted: Wanted, bytes: &[u8]) -> Result<Vec<String>, String> {
    let source = Box::new(Cursor::new(bytes.to_vec()));
    let mut requests =
        Requests::new(source, Path::new(path), wanted).map_err(|error| error.to_string())?;
    let mut key = Vec::new();
    let mut told = Vec::new();
    while let Some(line) = requests.next(&mut key).map_err(|error| error.to_string())? {
        let number = line.number;
        told.push(match line.request {
            Ok(None) => format!("{number} {}", String::from_utf8_lossy(&key)),
            Ok(Some(time)) => format!("{number} {} {time}", String::from_utf8_lossy(&key)),
            Err(why) => format!("{number} {why}"),
        });
    }
    Ok(told)
}

#[track_caller]
fn check(key: &str, text: &str, expected: &[&str]) {
    assert_eq!(read("-", wanted(key), text.as_bytes()).unwrap(), expected);
}

#[test]
fn json_is_read_by_a_path() {
    let line = |json: &str, key: &str| {
        let told = read("-", wanted(key), json.as_bytes()).unwrap();
        told[0].strip_prefix("1 ").unwrap().to_owned()
    };
    for (json, key, value) in [
        (r#"{"a":"x"}"#, "a", "x"),
        (r#"{"a":{"b":{"c":"x\u00e4\n"}}}"#, "a.b.c", "xä\n"),
        (r#"{"a":[{"b":1},{"b":2}]}"#, "a.1.b", "2"),
        (r#"[7,{"b":true}]"#, "1.b", "true"),
        // Digits are not lost.
        (
            r#"{"a":12345678901234567890123}"#,
            "a",
            "12345678901234567890123",
        ),
        (r#"{"a": 1.50 }"#, "a", "1.50"),
        // A name that has the dots itself goes first.
        (r#"{"a":{"b":1},"a.b":2}"#, "a.b", "2"),
        (r#"{"x":{"a":{"b":1},"a.b":2}}"#, "x.a.b", "2"),
        // The last of several counts.
        (r#"{"a":1,"a":2}"#, "a", "2"),
        (r#"{"":"x"}"#, "", "x"),
        (r#"{"a":null}"#, "a", "has no a"),
        (r#"{"a":1}"#, "b", "has no b"),
        (r#"{"a":1}"#, "a.b", "has no a.b"),
        (r#"{"a":[1]}"#, "a.1", "has no a.1"),
        (r#"{"a":[1]}"#, "a.x", "has no a.x"),
        (
            r#"{"a":{"b":1}}"#,
            "a",
            "a is an object; name a value in it, such as a.id",
        ),
        (
            r#"{"a":[]}"#,
            "a",
            "a is an array; name a value in it, such as a.0",
        ),
        (
            r#"{"a":1} x"#,
            "a",
            "is no JSON: trailing characters at column 9",
        ),
        (
            r#"{"a":"\ud800"}"#,
            "a",
            "is no JSON: unexpected end of hex escape at column 8",
        ),
    ] {
        assert_eq!(line(json, key), value, "{key} of {json}");
    }
}

#[test]
fn json_of_any_depth_takes_neither_stack_nor_time() {
    let deep = 200_000;
    let json = format!(
        "{{\"deep\":{}{},\"a\":1}}\n",
        "[".repeat(deep),
        "]".repeat(deep)
    );
    let wanted = Wanted {
        line_bytes_max: 1 << 20,
        ..wanted("a")
    };
    let told = std::thread::Builder::new()
        .stack_size(128 << 10)
        .spawn(move || read("-", wanted, json.as_bytes()))
        .unwrap();
    assert_eq!(told.join().unwrap().unwrap(), ["1 1"]);
}

#[test]
fn blank_lines_and_a_byte_order_mark_are_no_requests() {
    check(
        "a",
        "\u{feff}{\"a\":1}\r\n\r\n  \n{\"a\":2}\n{}\nnonsense\n\n",
        &[
            "1 1",
            "4 2",
            "5 has no a",
            "6 is no JSON: expected ident at column 2",
        ],
    );
    check("a", "\n\n a,b \n1,2\n", &["4 1"]);
    check("a", "", &[]);
    let bytes = b"{\"a\":\"\xff\"}\n";
    let told = read("-", wanted("a"), bytes).unwrap();
    assert_eq!(told, ["1 is no UTF-8 at byte 7, which JSON has to be"]);
}

#[test]
fn csv_has_names_in_its_first_line() {
    check(
        "user name",
        "id,\"user name\",note\n1,eve,\"two\nlines, one \"\"field\"\"\"\n2,,x\n3,bob\n4,\"a,b\",\n",
        &[
            "2 eve",
            "4 has no user name",
            "5 has 2 fields, and the first line has 3",
            "6 a,b",
        ],
    );
    let no_column = read("x.csv", wanted("user"), b"id,name\n1,2\n").unwrap_err();
    assert_eq!(no_column, "the first line has no column user");
    let twice = read("x.csv", wanted("a"), b"a,b,a\n1,2,3\n").unwrap_err();
    assert_eq!(twice, "the first line has a more than once");
    // Any bytes are a key.
    assert_eq!(
        read("-", wanted("a"), b"a,b\n\xff,1\n").unwrap(),
        ["2 \u{fffd}"]
    );
}

const COMBINED: &str = r#"10.0.0.1 - eve smith [10/Oct/2000:13:55:36 -0700] "GET /a/b?c=d e HTTP/1.0" 200 2326 "http://x/\"y\"" "curl" "extra""#;

#[test]
fn an_access_log_has_fields_by_name() {
    for (field, value) in [
        ("host", "10.0.0.1"),
        ("ident", "has no ident"),
        ("user", "eve smith"),
        ("time", "10/Oct/2000:13:55:36 -0700"),
        ("request", "GET /a/b?c=d e HTTP/1.0"),
        ("method", "GET"),
        ("target", "/a/b?c=d e"),
        ("path", "/a/b"),
        ("query", "c=d e"),
        ("protocol", "HTTP/1.0"),
        ("status", "200"),
        ("bytes", "2326"),
        ("referer", r#"http://x/\"y\""#),
        ("agent", "curl"),
    ] {
        check(field, COMBINED, &[&format!("1 {value}")]);
    }
    let common = "::1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.1\" 304 -\n\
                  ::1 - - [10/Oct/2000:13:55:36 -0700] \"\\x16\\x03\" 400 0\nstarted\n";
    check(
        "path",
        common,
        &[
            "1 /",
            "2 has no path",
            "3 is no line of an access log: it is one word",
        ],
    );
    check(
        "agent",
        common,
        &[
            "1 has no agent",
            "2 has no agent",
            "3 is no line of an access log: it is one word",
        ],
    );
    let unknown = Wanted {
        format: Some(Format::Access),
        ..wanted("uri")
    };
    assert_eq!(
        read("-", unknown, b"").unwrap_err(),
        "an access log has no uri"
    );
}

#[test]
fn the_name_the_content_or_the_flag_says_what_lines_are() {
    for (path, format, text, told) in [
        ("-", None, "a,b\n1,2\n", "2 1"),
        (
            "a.json",
            None,
            "a,b\n",
            "1 is no JSON: expected value at column 1",
        ),
        ("A.JSONL.GZ", None, "{\"a\":1}", "1 1"),
        ("a.jsonl", Some(Format::Csv), "a,b\n1,2\n", "2 1"),
        ("a.b/c", None, "{\"a\":1}", "1 1"),
    ] {
        let wanted = Wanted {
            format,
            ..wanted("a")
        };
        assert_eq!(
            read(path, wanted, text.as_bytes()).unwrap(),
            [told],
            "{path} {text}"
        );
    }
    let unknown = read("-", wanted("a"), b"some words\n").unwrap_err();
    assert_eq!(unknown, "it is not plain what the lines are");
}

#[test]
fn gzip_is_unpacked_also_in_several_members() {
    let packed = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let mut bytes = packed("{\"a\":1}\n{\"a\"");
    bytes.extend(packed(":2}\n"));
    assert_eq!(read("-", wanted("a"), &bytes).unwrap(), ["1 1", "2 2"]);
    bytes.truncate(bytes.len() - 3);
    assert_eq!(read("-", wanted("a"), &bytes).unwrap_err(), "line 3");
}

#[test]
fn a_line_is_refused_where_it_gets_too_long() {
    let long = "x".repeat(199);
    let line = |more: &str| format!("{{\"a\":1}}\n\"{long}{more}\n{{\"a\":2}}\n");
    let fits = read("-", wanted("a"), line("").as_bytes()).unwrap();
    assert_eq!((fits.len(), &*fits[2]), (3, "3 2"));
    let error = read("-", wanted("a"), line("x").as_bytes()).unwrap_err();
    assert_eq!(error, "line 2 is longer than 200B");
    // The end of a file ends no line that is too long.
    let error = read("-", wanted("a"), line("xx").trim_end().as_bytes()).unwrap_err();
    assert_eq!(error, "line 2 is longer than 200B");

    let open = format!("a,b\n1,2\n3,\"{long}\n{long}");
    let error = read("-", wanted("a"), open.as_bytes()).unwrap_err();
    assert_eq!(
        error,
        "line 3: a quoted field that begins here or later has no end within 200B"
    );
}

#[test]
fn a_request_may_have_a_time() {
    let with = |field: &str, unit| Wanted {
        time: Some((field.to_owned(), unit)),
        ..wanted("a")
    };
    let text = "{\"a\":1,\"t\":{\"at\":1500}}\n{\"a\":2}\n{\"a\":3,\"t\":{\"at\":\"soon\"}}\n";
    assert_eq!(
        read("-", with("t.at", TimeUnit::Ms), text.as_bytes()).unwrap(),
        [
            "1 1 1500000",
            "2 has no t.at",
            "3 t.at is no time: \"soon\""
        ]
    );
    assert_eq!(
        read("-", with("t", TimeUnit::S), b"t,a\n1.5,x\n").unwrap(),
        ["2 x 1500000"]
    );
    let by_path = Wanted {
        key: "path".to_owned(),
        ..with("time", TimeUnit::S)
    };
    assert_eq!(
        read("-", by_path, COMBINED.as_bytes()).unwrap(),
        ["1 /a/b 971211336000000"]
    );
}

#[test]
fn the_fields_of_lines_without_the_key_are_remembered() {
    let text = "{\"user\":{\"id\":1,\"deep\":{\"er\":{\"x\":1}},\"no\":null},\"at\":2}\n[]\n{\"at\":2,\"z\":[]}\n";
    let source = Box::new(Cursor::new(text.as_bytes()));
    let mut requests = Requests::new(source, Path::new("-"), wanted("id")).unwrap();
    while requests.next(&mut Vec::new()).unwrap().is_some() {}
    assert_eq!(requests.names(), ["user.id", "user.no", "at", "z"]);
}

/// What follows a quote without an end is in its field: it must not be taken for nothing.
#[test]
fn a_quote_without_an_end_is_told() {
    let rows = |from: usize, to: usize| (from..to).map(|n| format!("k{n},x\n")).collect::<String>();
    let open = format!("k,v\n{}k,\"oops\n{}", rows(0, 3), rows(3, 9));
    let told = read("x.csv", wanted("k"), open.as_bytes()).unwrap_err();
    assert!(
        told.to_string().contains("line 5: a quoted field"),
        "{told}"
    );
    let closed = format!("k,v\nk,\"two\nlines\"\n{}k,\"at\nthe end\"\n", rows(0, 3));
    assert!(read("x.csv", wanted("k"), closed.as_bytes()).is_ok());
}
