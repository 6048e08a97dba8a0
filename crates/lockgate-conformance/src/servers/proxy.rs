//! A proxy that cuts connections at any byte.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    thread,
};

/// Passes everything on until so many more bytes have gone in one direction; then it ends all there is.
#[derive(Debug)]
pub struct Proxy {
    /// Where it is: the server's URL, with its own address.
    pub url: String,
    left: Arc<Left>,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// What clients say.
    Server,
    /// What the server answers.
    Client,
}

#[derive(Debug)]
struct Left {
    to_server: AtomicI64,
    to_client: AtomicI64,
}

impl Left {
    fn of(&self, to: To) -> &AtomicI64 {
        match to {
            To::Server => &self.to_server,
            To::Client => &self.to_client,
        }
    }
}

impl Proxy {
    /// In front of the server at that URL, `SCHEME://USER@HOST:PORT/REST`; it needs no user and no rest.
    ///
    /// # Panics
    /// If the URL is another one, or there is no port.
    #[must_use]
    pub fn start(url: &str) -> Self {
        let host = url
            .rfind('@')
            .map_or_else(|| url.find("://").unwrap() + 3, |at| at + 1);
        let (before, rest) = url.split_at(host);
        let (server, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let left = Arc::new(Left {
            to_server: AtomicI64::new(i64::MAX),
            to_client: AtomicI64::new(i64::MAX),
        });
        thread::spawn({
            let (server, left) = (server.to_owned(), left.clone());
            move || {
                for client in listener.incoming() {
                    let client = client.unwrap();
                    let Ok(server) = TcpStream::connect(&server) else {
                        continue;
                    };
                    for stream in [&client, &server] {
                        stream.set_nodelay(true).unwrap();
                    }
                    for (to, from, into) in [
                        (To::Server, &client, &server),
                        (To::Client, &server, &client),
                    ] {
                        let from = from.try_clone().unwrap();
                        let into = into.try_clone().unwrap();
                        let left = left.clone();
                        thread::spawn(move || pass_on(from, into, left.of(to)));
                    }
                }
            }
        });
        Self {
            url: format!("{before}{address}{rest}"),
            left,
        }
    }

    /// Cuts after so many more bytes.
    pub fn cut_after(&self, to: To, bytes: i64) {
        self.left.of(to).store(bytes, SeqCst);
    }

    /// How many bytes have gone since it was last [healed](Self::heal).
    #[must_use]
    pub fn passed(&self, to: To) -> i64 {
        i64::MAX - self.left.of(to).load(SeqCst)
    }

    /// Ends every connection at the next byte, and lets none begin.
    pub fn cut(&self) {
        for to in [To::Server, To::Client] {
            self.cut_after(to, 0);
        }
    }

    /// Cuts no more.
    pub fn heal(&self) {
        for to in [To::Server, To::Client] {
            self.cut_after(to, i64::MAX);
        }
    }
}

fn pass_on(mut from: TcpStream, mut into: TcpStream, left: &AtomicI64) {
    let mut buffer = [0; 8192];
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        let wanted = i64::try_from(bytes).unwrap();
        let allowed = left.fetch_sub(wanted, SeqCst).clamp(0, wanted);
        let allowed = usize::try_from(allowed).unwrap();
        if into.write_all(&buffer[..allowed]).is_err() || allowed < bytes {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = into.shutdown(Shutdown::Both);
}
