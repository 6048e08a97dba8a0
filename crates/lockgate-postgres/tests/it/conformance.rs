//! The suite for every log.

use lockgate_conformance::{
    log::{self, Fixture},
    queue,
};
use lockgate_core::Storage;
use lockgate_postgres::{PostgresLog, PostgresLogOptions};

use crate::server::{Server, execute, new_shard, shared_server};

struct Database<'a> {
    url: String,
    shard: String,
    options: PostgresLogOptions,
    /// The server, if this test may crash it.
    server: Option<&'a Server>,
}

impl Fixture for Database<'_> {
    fn fresh(&mut self) {
        self.shard = new_shard();
    }

    fn open(&mut self) -> Storage {
        PostgresLog::open(&self.url, &self.shard, self.options.clone())
            .unwrap()
            .into()
    }

    fn shares_storage(&self) -> bool {
        true
    }

    fn kill(&mut self) {}

    fn damage(&mut self, payload: &[u8]) -> bool {
        let mut damaged = payload.to_vec();
        damaged[0] ^= 1;
        let record = "
            UPDATE lockgate.record SET payload = $2
            FROM lockgate.shard WHERE record.shard = shard.id AND name = $3 AND payload = $1";
        let piece = "
            UPDATE lockgate.piece SET payload = $2
            FROM lockgate.snapshot JOIN lockgate.shard ON shard = shard.id
            WHERE snapshot = snapshot.id AND name = $3 AND payload = $1";
        let changed: u64 = [record, piece]
            .map(|sql| execute(&self.url, sql, &[&payload, &damaged, &self.shard]))
            .iter()
            .sum();
        assert_eq!(changed, 1);
        true
    }

    fn cut_power(&mut self) -> bool {
        self.server.inspect(|server| server.crash()).is_some()
    }
}

fn options() -> PostgresLogOptions {
    PostgresLogOptions {
        range_bits: 14,
        bytes_max: Some(1 << 30),
        ..PostgresLogOptions::default()
    }
}

#[test]
fn on_a_server_that_stays() {
    let Some(url) = shared_server("log and queue conformance") else {
        return;
    };
    let mut database = Database {
        url,
        shard: String::new(),
        options: options(),
        server: None,
    };
    assert_eq!(
        log::run(&mut database),
        [
            "synced_records_survive_a_power_cut",
            "an_epoch_survives_a_power_cut",
            "a_snapshot_survives_a_power_cut",
        ]
    );
    assert_eq!(
        queue::run(&mut database),
        ["what_was_answered_survives_a_power_cut"]
    );
}

#[test]
fn on_a_server_that_crashes() {
    if shared_server("log and queue conformance beside crashes").is_none() {
        return;
    }
    let server = Server::start();
    let mut database = Database {
        url: server.url.clone(),
        shard: String::new(),
        options: options(),
        server: Some(&server),
    };
    assert_eq!(log::run(&mut database), [""; 0]);
    assert_eq!(queue::run(&mut database), [""; 0]);
}
