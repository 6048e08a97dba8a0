//! Clicks, sent to a collector by many threads: each again until it is answered.
//!
//! `load URL THREADS CLICKS` sends CLICKS of each thread, one POST each, and prints the id of each click as soon as it is
//! answered with 2xx. A click whose answer is lost, or that is refused for now, is sent again with the same id.

use std::{
    env,
    error::Error,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

/// Nobody waits longer for an answer, or for a collector that is away.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [url, threads, clicks] = &arguments[..] else {
        return Err("usage: load URL THREADS CLICKS".into());
    };
    let address = url.trim_start_matches("http://").to_owned();
    let (threads, clicks): (u32, u32) = (threads.parse()?, clicks.parse()?);
    let senders = (0..threads).map(|thread| {
        let address = address.clone();
        thread::spawn(move || send(&address, thread, clicks))
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.join().map_err(|_| "a sender has panicked")??;
    }
    Ok(())
}

fn send(address: &str, thread: u32, clicks: u32) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut wire = None;
    for click in 0..clicks {
        let id = format!("click-{thread}-{click}");
        let until = Instant::now() + PATIENCE;
        loop {
            match attempt(&mut wire, address, &id) {
                Ok(200..=299) => break,
                Ok(503) => {}
                Ok(status) => return Err(format!("{id} is answered with {status}").into()),
                // The collector is away, or was killed before it could answer.
                Err(_) => wire = None,
            }
            if Instant::now() > until {
                return Err(format!("{id} has no answer within {PATIENCE:?}").into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        println!("{id}");
    }
    Ok(())
}

/// Sends a click once, and returns the status of its answer.
fn attempt(
    wire: &mut Option<BufReader<TcpStream>>,
    address: &str,
    id: &str,
) -> Result<u16, Box<dyn Error + Send + Sync>> {
    if wire.is_none() {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_nodelay(true)?;
        *wire = Some(BufReader::new(socket));
    }
    let wire = wire.as_mut().ok_or("there is no connection")?;
    let len = id.len();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nlockgate-id: {id}\r\nContent-Length: {len}\r\n\r\n{id}"
    );
    wire.get_mut().write_all(request.as_bytes())?;
    let (mut status, mut len) = (0, 0);
    loop {
        let mut line = String::new();
        if wire.read_line(&mut line)? == 0 {
            return Err("the connection ended".into());
        }
        if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
            status = rest.get(..3).unwrap_or_default().parse()?;
        }
        if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            len = text.trim().parse()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; len];
    wire.read_exact(&mut body)?;
    Ok(status)
}
