//! Delayed messages and schedules of a real server whose wall clock is set, and which is stopped and killed meanwhile.
//!
//! The server runs with a library in front of the C library's clock, which adds to the wall clock what a file says.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Done, Sandbox, Server};

/// Adds the milliseconds in the file that CLOCK_FILE names to the wall clock.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map(void) {
    const char *name = getenv("CLOCK_FILE");
    int file = name ? open(name, O_RDONLY) : -1;
    if (file >= 0) {
        void *at = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
        offset = at == MAP_FAILED ? 0 : at;
    }
}

int clock_gettime(clockid_t id, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, id, time);
    if (result == 0 && id == CLOCK_REALTIME && offset) {
        int64_t millis = *offset;
        time->tv_sec += millis / 1000;
        time->tv_nsec += millis % 1000 * 1000000;
        if (time->tv_nsec < 0) { time->tv_nsec += 1000000000; time->tv_sec--; }
        if (time->tv_nsec >= 1000000000) { time->tv_nsec -= 1000000000; time->tv_sec++; }
    }
    return result;
}
"#;

const HOUR: i64 = 3_600_000;

struct Town {
    sandbox: Sandbox,
    server: Server,
    library: PathBuf,
    clock: PathBuf,
}

impl Town {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        let source = sandbox.write("clock.c", CLOCK);
        let library = sandbox.path().join("clock.so");
        let clock = sandbox.path().join("clock");
        fs::write(&clock, 0_i64.to_ne_bytes()).unwrap();
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .status();
        assert!(made.unwrap().success(), "cc makes the library");
        let server = Self::serve(&sandbox, &library, &clock);
        let town = Self {
            sandbox,
            server,
            library,
            clock,
        };
        town.run("queue create mail").ok();
        town
    }

    fn serve(sandbox: &Sandbox, library: &Path, clock: &Path) -> Server {
        let mut command = sandbox.command("serve --listen 127.0.0.1:0 --data data");
        command.env("LD_PRELOAD", library).env("CLOCK_FILE", clock);
        Server::spawn(command, "data")
    }

    fn run(&self, arguments: &str) -> Done {
        let url = &self.server.url;
        self.sandbox.run(&format!("{arguments} --endpoint {url}"))
    }

    /// Sets the server's wall clock to that many milliseconds beside the true time.
    fn set_clock(&self, millis: i64) {
        // In place: the server has it mapped.
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&self.clock)
            .unwrap();
        file.write_all_at(&millis.to_ne_bytes(), 0).unwrap();
    }

    /// The bodies of what comes within that time.
    fn take(&self, wait: &str) -> Vec<String> {
        let taken = self.run(&format!(
            "receive mail --max 100 --wait {wait} --ack --json"
        ));
        let body = |message: &Value| message["body"].as_str().unwrap().to_owned();
        taken.json().iter().map(body).collect()
    }

    fn kill_and_start(self) -> Self {
        let Self {
            sandbox,
            server,
            library,
            clock,
        } = self;
        server.signal(Signal::KILL);
        server.wait();
        let server = Self::serve(&sandbox, &library, &clock);
        Self {
            sandbox,
            server,
            library,
            clock,
        }
    }
}

#[test]
fn nothing_is_early_while_the_servers_clock_is_set() {
    let town = Town::new();
    // By the server's clock it is an hour later.
    town.run("send mail --in 1h later").ok();
    assert_eq!(town.take("1s"), [""; 0]);
    town.set_clock(HOUR + 60_000);
    assert_eq!(town.take("20s"), ["later"]);
    // A step back makes it wait, however long that is.
    town.run("send mail --in 500ms soon").ok();
    town.set_clock(-HOUR);
    assert_eq!(town.take("2s"), [""; 0]);
    let listed = town.run("schedule list --queue mail --json").json();
    assert_eq!(listed.len(), 1, "{listed:?}");
    // Also over a kill and a start.
    let town = town.kill_and_start();
    assert_eq!(town.take("2s"), [""; 0]);
    town.set_clock(HOUR + 60_000);
    assert_eq!(town.take("20s"), ["soon"]);
    assert_eq!(town.take("1s"), [""; 0], "and it comes once");
}

#[test]
fn a_schedule_fires_once_for_each_of_its_times_while_clocks_step() {
    let town = Town::new();
    // Half an hour from each full one.
    let now = jiff::Timestamp::now().as_millisecond();
    let base = HOUR / 2 - now % HOUR;
    town.set_clock(base);
    let create =
        "schedule create hourly --cron @hourly --queue mail --catch-up all --late-max 36500d tick";
    town.run(create).ok();
    assert_eq!(town.take("1s"), [""; 0]);
    town.set_clock(base + 3 * HOUR);
    let mut came = 0;
    while came < 3 {
        came += town.take("20s").len();
    }
    assert_eq!(came, 3);
    town.set_clock(base);
    assert_eq!(town.take("1s"), [""; 0]);
    // The same three hours pass again, while nobody serves.
    let town = town.kill_and_start();
    town.set_clock(base + 3 * HOUR);
    assert_eq!(town.take("1s"), [""; 0]);
    let shown = town.run("schedule show hourly --json").json();
    assert_eq!(shown[0]["counts"]["fired"], json!(3));
}

#[test]
fn what_comes_due_while_the_server_is_stopped_or_restored_is_not_early() {
    let town = Town::new();
    town.run("send mail --in 2s one").ok();
    town.run("send mail --in 1h two").ok();
    town.server.signal(Signal::STOP);
    town.server.signal(Signal::CONT);
    assert_eq!(town.take("20s"), ["one"]);
    town.run("backup backup.lockgate").ok();
    town.sandbox
        .run("restore backup.lockgate --data other")
        .ok();
    let mut command = town
        .sandbox
        .command("serve --listen 127.0.0.1:0 --data other");
    command.env("LD_PRELOAD", &town.library);
    command.env("CLOCK_FILE", &town.clock);
    let town = Town {
        server: Server::spawn(command, "other"),
        ..town
    };
    assert_eq!(town.take("1s"), [""; 0]);
    town.set_clock(HOUR + 1_000);
    assert_eq!(town.take("20s"), ["two"]);
}
