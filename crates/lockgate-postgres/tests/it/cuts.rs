//! Connections that are cut at any byte, by a proxy between.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    thread,
};

use lockgate_core::{AppendError, Log as _, LogSource, RecordGroup};

use crate::{
    server::{new_shard, shared_server},
    support::Owner,
};

/// Passes everything on until so many more bytes have gone in one direction; then it ends all there is.
struct Proxy {
    url: String,
    left: Arc<Left>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Server,
    Client,
}

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
    fn start(url: &str) -> Self {
        let (before, rest) = url.rsplit_once('@').unwrap();
        let (server, database) = rest.split_once('/').unwrap();
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
                    let server = TcpStream::connect(&server).unwrap();
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
            url: format!("{before}@{address}/{database}"),
            left,
        }
    }

    /// Cuts after so many more bytes.
    fn cut_after(&self, to: To, bytes: i64) {
        self.left.of(to).store(bytes, SeqCst);
    }

    fn heal(&self) {
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

const RECORDS: usize = 3;

#[test]
fn a_group_that_was_cut_off_is_there_whole_or_not_at_all() {
    let Some(url) = shared_server("a_group_that_was_cut_off_is_there_whole_or_not_at_all") else {
        return;
    };
    let proxy = Proxy::start(&url);
    let shard = new_shard();
    let cuts = (0..1_600).step_by(200).map(|bytes| (To::Server, bytes));
    let (mut there, mut gone, mut answered) = (0, 0, 0);
    for (to, bytes) in cuts.chain((0..100).step_by(7).map(|bytes| (To::Client, bytes))) {
        proxy.heal();
        let mut owner = Owner::start(&proxy.url, &shard);
        // What is asked for the first time is prepared first.
        owner.append("before").unwrap();
        owner.sync();
        let kept = owner.records.len();

        proxy.cut_after(to, bytes);
        let mut group = RecordGroup::new(owner.log.capabilities().gap);
        for number in 0..RECORDS {
            let payload = format!("{to:?} {bytes} {number} {}", "x".repeat(300));
            group.push(|buffer| buffer.extend_from_slice(payload.as_bytes()));
        }
        let tail = owner.log.tail();
        let appended = owner.log.append(owner.epoch, tail, &mut group);
        let is_answered = match appended {
            Ok(()) => owner.log.progress().sync().is_ok(),
            Err(AppendError::Unknown(_)) => {
                owner.log.progress().sync().unwrap_err();
                false
            }
            other => panic!("{other:?}"),
        };

        let found = Owner::start(&url, &shard).records;
        assert_eq!(found[..kept], owner.records[..], "{to:?} {bytes}");
        match found.len() - kept {
            0 if !is_answered => gone += 1,
            RECORDS => there += 1,
            other => panic!("{other} records of {RECORDS}, cut {to:?} {bytes}"),
        }
        answered += usize::from(is_answered);
        // And what was found then stays so.
        assert_eq!(Owner::start(&url, &shard).records, found);
    }
    assert!(
        gone > 0 && there > answered && answered > 0,
        "the cuts are everywhere: {gone} {there} {answered}"
    );
}
