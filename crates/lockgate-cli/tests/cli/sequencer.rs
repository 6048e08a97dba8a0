//! Running sequencers, for the tests of each ledger.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, ChildStderr, Command, Stdio},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::signal;

/// A running `lockgate sequence`; killed when dropped.
pub(crate) struct Sequencer {
    process: Child,
    log: BufReader<ChildStderr>,
    url: String,
}

impl Sequencer {
    /// Starts one that serves its figures, by a command with `--metrics`.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut sequencer = Self {
            process,
            log,
            url: String::new(),
        };
        let url = sequencer.event("figures")["url"].clone();
        sequencer.url = url.as_str().unwrap().to_owned();
        sequencer
    }

    /// Reads the log up to the event with this sentence.
    #[track_caller]
    pub(crate) fn event(&mut self, sentence: &str) -> Value {
        let (mut line, mut passed) = (String::new(), String::new());
        while self.log.read_line(&mut line).unwrap() > 0 {
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["message"] == sentence {
                return event;
            }
            passed.push_str(&line);
            line.clear();
        }
        panic!("it ended without saying {sentence:?}: {passed}");
    }

    /// What /metrics has.
    pub(crate) fn page(&self) -> String {
        self.get("/metrics")
    }

    /// The answer to a request for that path, with its head.
    pub(crate) fn get(&self, path: &str) -> String {
        let address = self.url.strip_prefix("http://").unwrap();
        let address = address.strip_suffix("/metrics").unwrap();
        let mut wire = TcpStream::connect(address).unwrap();
        let ask = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        wire.write_all(ask.as_bytes()).unwrap();
        let mut page = String::new();
        wire.read_to_string(&mut page).unwrap();
        page
    }

    /// A whole number of it.
    pub(crate) fn figure(&self, name: &str) -> u64 {
        let page = self.page();
        let name = format!("lockgate_sequencer_{name}");
        let line = page.lines().find(|line| line.starts_with(&name));
        let line = line.unwrap_or_else(|| panic!("{name} is not in {page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub(crate) fn wait_for_appended(&self, count: u64) {
        while self.figure("appended_total{") < count {
            std::thread::yield_now();
        }
    }

    pub(crate) fn signal(&self, what: Signal) {
        signal(&self.process, what);
    }

    pub(crate) fn code(mut self) -> Option<i32> {
        std::io::copy(&mut self.log, &mut std::io::sink()).unwrap();
        self.process.wait().unwrap().code()
    }
}

impl Drop for Sequencer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
