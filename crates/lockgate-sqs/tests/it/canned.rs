//! A server of a thread of its own, which answers as it is told to.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
};

/// What it does with a connection when a request has come.
#[derive(Clone, Debug)]
pub(crate) enum Then {
    /// Answers with this status and body, and goes on with the next request.
    Answer(u16, String),
    /// Closes the connection without an answer.
    Close,
}

/// Answers each request by its action and its body.
pub(crate) fn serve(mut decide: impl FnMut(&str, &str) -> Then + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while let Some((action, body)) = request(&mut reader) {
                let Then::Answer(status, body) = decide(&action, &body) else {
                    stream.shutdown(Shutdown::Both).unwrap();
                    break;
                };
                let len = body.len();
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {len}\r\n\r\n");
                stream.write_all((head + &body).as_bytes()).unwrap();
            }
        }
    });
    address
}

/// The action and the body of the next request; `None` at the end of the connection.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut len, mut action) = (0, None);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            match name.to_lowercase().as_str() {
                "content-length" => len = value.trim().parse().unwrap(),
                "x-amz-target" => action = value.rsplit('.').next().map(ToOwned::to_owned),
                _ => {}
            }
        }
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some((action?, String::from_utf8(body).unwrap()))
}
