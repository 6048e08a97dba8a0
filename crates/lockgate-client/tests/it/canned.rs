//! A server of a thread of its own, which answers as it is told to.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
};

/// What it does with a connection when a request has come.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    /// Sends these bytes and goes on with the next request.
    Answer(String),
    /// Sends these bytes and closes the connection.
    AnswerAndClose(String),
    /// Says nothing more, and keeps the connection.
    Silence,
}

/// An answer with this status and body.
pub(crate) fn answer(status: u16, body: &str) -> String {
    let len = body.len();
    format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"
    )
}

/// Answers each request by its first line and its body.
pub(crate) fn serve(mut decide: impl FnMut(&str, &str) -> Then + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        // One at a time; what is kept is kept to the end of the test.
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while let Some((line, body)) = request(&mut reader) {
                let mut writer: &TcpStream = &stream;
                match decide(&line, &body) {
                    Then::Answer(bytes) => writer.write_all(bytes.as_bytes()).unwrap(),
                    Then::AnswerAndClose(bytes) => {
                        writer.write_all(bytes.as_bytes()).unwrap();
                        stream.shutdown(Shutdown::Both).unwrap();
                        break;
                    }
                    Then::Silence => {
                        kept.push(stream);
                        break;
                    }
                }
            }
        }
    });
    address
}

/// The first line and the body of the next request; `None` at the end of the connection.
pub(crate) fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let mut first = String::new();
    if reader.read_line(&mut first).ok()? == 0 {
        return None;
    }
    let mut len = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            len = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some((first, String::from_utf8(body).unwrap()))
}
