//! A connection to ZooKeeper that is cut, or that stops.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

/// What becomes of the first connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// The connection is cut instead of that part, and the next ones are whole.
    Cut,
    /// That part and all that follow are swallowed.
    Swallow,
}

/// Which way the parts go that are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Way {
    Requests,
    Answers,
}

/// Listens, and does it to the part of that number. Returns the address, and what hears when it is done.
pub(crate) fn start(fault: Fault, way: Way, number: usize) -> (String, mpsc::Receiver<()>) {
    let server = crate::zookeeper();
    let server = server.strip_prefix("zk://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, done) = mpsc::channel();
    let left = Arc::new(AtomicUsize::new(number));
    thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(client), Ok(server)) = (client, TcpStream::connect(&server)) else {
                return;
            };
            for (from, to, of) in [
                (&client, &server, Way::Requests),
                (&server, &client, Way::Answers),
            ] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                let (left, sender) = (left.clone(), sender.clone());
                thread::spawn(move || {
                    let mut bytes = [0; 64 << 10];
                    let mut swallows = false;
                    loop {
                        let read = from.read(&mut bytes).unwrap_or(0);
                        if read == 0 {
                            break;
                        }
                        if of == way && !swallows {
                            let before = left.load(Ordering::SeqCst);
                            left.store(before.saturating_sub(1), Ordering::SeqCst);
                            if before == 1 {
                                let _ = sender.send(());
                                if fault == Fault::Cut {
                                    break;
                                }
                                swallows = true;
                            }
                        }
                        if !swallows && to.write_all(&bytes[..read]).is_err() {
                            break;
                        }
                    }
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                });
            }
        }
    });
    (address, done)
}
