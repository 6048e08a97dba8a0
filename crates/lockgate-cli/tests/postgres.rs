//! A server whose queues are in a PostgreSQL database: `./scripts/test --only postgres`.

#![expect(clippy::unwrap_used, reason = "in tests a panic is the report")]

#[path = "cli/support.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

#[path = "cli/sequencer.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod sequencer;

#[path = "postgres/sequence.rs"]
mod sequence;

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Lines, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Sandbox, json_lines};

fn url() -> String {
    std::env::var("LOCKGATE_TEST_POSTGRES").expect("scripts/services run sets it")
}

/// A server on a shard; killed when dropped.
struct Server {
    process: Child,
    log: Lines<BufReader<ChildStderr>>,
    url: String,
    recovered: Value,
}

impl Server {
    fn start(sandbox: &Sandbox, shard: &str) -> Self {
        Self::start_on(sandbox, &url(), shard, "disk")
    }

    fn start_on(sandbox: &Sandbox, url: &str, shard: &str, level: &str) -> Self {
        let mut server = Self::spawn(sandbox, url, shard, &["--postgres-level", level]);
        server.recovered = server.event("recovered");
        server.wait_ready(shard);
        server
    }

    /// One that has done nothing yet.
    fn spawn(sandbox: &Sandbox, url: &str, shard: &str, arguments: &[&str]) -> Self {
        let mut process = sandbox
            .command("serve --listen 127.0.0.1:0 --postgres-shard")
            .arg(shard)
            .args(arguments)
            .env("LOCKGATE_POSTGRES", url)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(process.stderr.take().unwrap()).lines();
        Self {
            process,
            log,
            url: String::new(),
            recovered: Value::Null,
        }
    }

    fn wait_ready(&mut self, shard: &str) {
        let ready = self.event("ready");
        assert_eq!(ready["data"], format!("the shard {shard:?} in PostgreSQL"));
        self.url = ready["url"].as_str().unwrap().to_owned();
    }

    fn event(&mut self, sentence: &str) -> Value {
        loop {
            let line = self.log.next().expect("the server goes on").unwrap();
            let event = json_lines(&line).remove(0);
            if event["message"] == sentence {
                return event;
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A database server of a test's own; killed when dropped.
struct Database {
    folder: TempDir,
    url: String,
}

impl Database {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = services("start", &[folder.path()]);
        Self { folder, url }
    }

    /// One that follows `primary`, whose commits wait for it from then on.
    fn standby_of(primary: &Self) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = services("standby", &[folder.path(), primary.folder.path()]);
        let setting = "synchronous_standby_names = 'standby'\n";
        let file = primary.folder.path().join("data/postgresql.conf");
        let mut file = File::options().append(true).open(file).unwrap();
        file.write_all(setting.as_bytes()).unwrap();
        primary.kill();
        assert_eq!(services("start", &[primary.folder.path()]), primary.url);
        Self { folder, url }
    }

    fn kill(&self) {
        services("crash", &[self.folder.path()]);
    }

    fn promote(&self) {
        services("promote", &[self.folder.path()]);
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `scripts/services`; returns the URL it prints.
fn services(what: &str, folders: &[&Path]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
    // To a file: a server that it starts would keep a pipe open.
    let said = folders[0].join("said");
    let status = Command::new(script)
        .arg(what)
        .args(folders)
        .stdin(Stdio::null())
        .stdout(File::create(&said).unwrap())
        .status();
    assert!(status.unwrap().success(), "scripts/services {what}");
    let said = fs::read_to_string(said).unwrap();
    let url = said.trim().strip_prefix("LOCKGATE_TEST_POSTGRES=");
    url.unwrap_or_default().to_owned()
}

fn shard(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

#[test]
fn a_killed_server_finds_everything_and_a_second_one_takes_over() {
    let sandbox = Sandbox::new();
    let shard = shard("kill");
    let server = Server::start(&sandbox, &shard);
    for number in 0..5 {
        let url = &server.url;
        sandbox
            .run(&format!(
                "send orders.fifo --create --key k --endpoint {url} order-{number}"
            ))
            .ok();
    }
    drop(server);

    let mut server = Server::start(&sandbox, &shard);
    assert_eq!(server.recovered["messages"], 5, "{}", server.recovered);
    assert_eq!(server.recovered["after_crash"], true);
    // A backup goes from a database to a folder.
    let url = server.url.clone();
    sandbox.run(&format!("backup kept.backup --endpoint {url}"));
    sandbox.run("restore kept.backup --data restored").ok();
    let text = sandbox.run("check restored").ok();
    assert!(text.contains("5 messages in the queues"), "{text}");

    // Two servers: the later one has it, and the earlier one ends when it is told.
    let second = Server::start(&sandbox, &shard);
    let done = sandbox.run(&format!(
        "send orders.fifo --key k --timeout 1s --endpoint {url} late"
    ));
    assert_ne!(done.code, Some(0), "{done:?}");
    assert_eq!(server.process.wait().unwrap().code(), Some(4));
    let url = &second.url;
    let received = sandbox
        .run(&format!(
            "receive orders.fifo --max 10 --ack --endpoint {url}"
        ))
        .json();
    let bodies: Vec<_> = received.iter().map(|line| line["body"].clone()).collect();
    assert_eq!(
        bodies,
        ["order-0", "order-1", "order-2", "order-3", "order-4"]
    );
    assert!(!sandbox.path().join("lockgate-data").exists());
}

#[test]
fn a_start_that_cannot_serve_deposes_nobody() {
    let sandbox = Sandbox::new();
    let shard = shard("cannot-serve");
    let server = Server::start(&sandbox, &shard);
    let endpoint = &server.url;
    sandbox
        .run(&format!("queue create orders --endpoint {endpoint}"))
        .ok();
    let address = endpoint.strip_prefix("http://").unwrap();
    for (arguments, says) in [
        (
            format!("--listen {address}"),
            format!("listening on {address}"),
        ),
        (
            "--listen 192.0.2.1:9 --allow-remote".to_owned(),
            "listening on 192.0.2.1:9".to_owned(),
        ),
        (
            "--listen 127.0.0.1:0 --tls-cert none.pem --tls-key none.pem".to_owned(),
            "none.pem".to_owned(),
        ),
    ] {
        let output = sandbox
            .command(&format!(
                "serve --log-format text --postgres-shard {shard} {arguments}"
            ))
            .env("LOCKGATE_POSTGRES", url())
            .output();
        let error = support::Done::from(output.unwrap()).fails_with(1);
        assert!(error.contains(&says), "{error}");
        // It would be refused, were the shard another one's.
        sandbox
            .run(&format!("send orders --endpoint {endpoint} x"))
            .ok();
    }
}

#[test]
fn a_takeover_serves_although_its_queues_cannot_be_declared() {
    let sandbox = Sandbox::new();
    let shard = shard("declared");
    let mut first = Server::start(&sandbox, &shard);
    let endpoint = &first.url;
    sandbox
        .run(&format!("send orders --create --endpoint {endpoint} kept"))
        .ok();
    let text = "[[queue]]\nname = \"more\"\ndead_letter = \"gone\"\n";
    sandbox.write("queues.toml", text);
    let mut second = Server::spawn(&sandbox, &url(), &shard, &["--queues", "queues.toml"]);
    let told = second.event(
        "the declared queues could not be made as the file says; those that are there are served as they are",
    );
    assert_eq!(told["level"], "ERROR");
    let why = "queue \"more\": its dead-letter queue gone is neither declared nor there";
    assert!(told["error"].as_str().unwrap().contains(why), "{told}");
    second.wait_ready(&shard);
    assert_eq!(first.process.wait().unwrap().code(), Some(4));
    let endpoint = &second.url;
    let list = sandbox.run(&format!("queue list --json --endpoint {endpoint}"));
    let names: Vec<_> = list
        .json()
        .iter()
        .map(|line| line["name"].clone())
        .collect();
    assert_eq!(names, ["orders"]);
    sandbox
        .run(&format!("receive orders --endpoint {endpoint}"))
        .ok();
}

#[test]
fn a_server_ends_with_its_database_and_a_start_finds_the_next_one() {
    let sandbox = Sandbox::new();
    let primary = Database::start();
    let standby = Database::standby_of(&primary);
    let (credentials, second) = standby.url.rsplit_once('@').unwrap();
    let first = primary.url.strip_suffix("/postgres").unwrap();
    assert!(first.starts_with(credentials));
    let url = format!("{first},{second}");
    let mut server = Server::start_on(&sandbox, &url, "shard", "replicated");
    let endpoint = server.url.clone();
    sandbox
        .run(&format!("queue create orders --endpoint {endpoint}"))
        .ok();
    sandbox
        .run(&format!(
            "queue set orders --level replicated --endpoint {endpoint}"
        ))
        .ok();
    sandbox
        .run(&format!("send orders --endpoint {endpoint} kept"))
        .ok();

    // By itself: nobody asks anything of it.
    primary.kill();
    let ended = server.event("ended");
    let told = ended["error"].as_str().unwrap();
    // Unless the engine writes something of its own just then.
    let ways = ["connection to the database was lost", "in the database"];
    assert!(ways.iter().any(|way| told.contains(way)), "{ended}");
    assert_eq!(server.process.wait().unwrap().code(), Some(1));
    let start = |level: &str| {
        let output = sandbox
            .command("serve --listen 127.0.0.1:0 --log-format text --postgres-shard shard")
            .args(["--postgres-level", level])
            .env("LOCKGATE_POSTGRES", &url)
            .output();
        support::Done::from(output.unwrap()).fails_with(1)
    };
    let error = start("replicated");
    assert!(
        error.contains("Connection refused") && error.contains("it is a standby"),
        "{error}"
    );
    standby.promote();
    let error = start("replicated");
    assert!(error.contains("leaves nobody to replicate to"), "{error}");

    let server = Server::start_on(&sandbox, &url, "shard", "disk");
    assert_eq!(server.recovered["messages"], 1, "{}", server.recovered);
    let endpoint = &server.url;
    let received = sandbox
        .run(&format!(
            "receive orders --max 10 --ack --endpoint {endpoint}"
        ))
        .json();
    assert_eq!(received[0]["body"], "kept");
    let refused = sandbox
        .run(&format!("send orders --endpoint {endpoint} more"))
        .fails_with(1);
    assert!(refused.contains("the log reaches disk"), "{refused}");
}

/// Sends three messages to that queue, and writes a backup to `kept.backup`.
fn back_three_up(sandbox: &Sandbox, server: &Server, queue: &str) {
    let endpoint = &server.url;
    for number in 0..3 {
        sandbox
            .run(&format!(
                "send {queue} --endpoint {endpoint} order-{number}"
            ))
            .ok();
    }
    sandbox
        .run(&format!("backup kept.backup --endpoint {endpoint}"))
        .ok();
}

#[test]
fn a_backup_is_restored_into_a_new_shard_and_no_other() {
    let sandbox = Sandbox::new();
    let (source, target) = (shard("source"), shard("target"));
    let server = Server::start(&sandbox, &source);
    back_three_up(&sandbox, &server, "orders.fifo --create --key k");
    let restore = |file: &str, shard: &str| {
        let output = sandbox
            .command(&format!("restore {file} --postgres-shard {shard}"))
            .env("LOCKGATE_POSTGRES", url())
            .output();
        support::Done::from(output.unwrap())
    };
    // Not even a look at one that is in use harms its server.
    let error = restore("kept.backup", &source).fails_with(4);
    assert!(error.contains("holds something already"), "{error}");
    sandbox
        .run(&format!(
            "send orders.fifo --key k --endpoint {} order-3",
            server.url
        ))
        .ok();

    let whole = fs::read(sandbox.path().join("kept.backup")).unwrap();
    let cut = sandbox.path().join("cut.backup");
    fs::write(&cut, &whole[..whole.len() - 40]).unwrap();
    let error = restore("cut.backup", &target).fails_with(9);
    assert!(!error.contains("is left there"), "{error}");
    let told = restore("kept.backup", &target);
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(told.stderr.contains("3 messages in 1 queue"), "{told:?}");
    restore("kept.backup", &target).fails_with(4);

    let restored = Server::start(&sandbox, &target);
    assert_eq!(restored.recovered["messages"], 3, "{}", restored.recovered);
    let received = sandbox
        .run(&format!(
            "receive orders.fifo --max 10 --ack --endpoint {}",
            restored.url
        ))
        .json();
    let bodies: Vec<_> = received.iter().map(|line| line["body"].clone()).collect();
    assert_eq!(bodies, ["order-0", "order-1", "order-2"]);

    let error = sandbox
        .run("restore kept.backup --postgres-shard x")
        .fails_with(2);
    assert!(error.contains("LOCKGATE_POSTGRES"), "{error}");
}

#[test]
fn a_killed_restore_is_named_and_replaced() {
    let sandbox = Sandbox::new();
    let (source, target) = (shard("whole"), shard("half"));
    let server = Server::start(&sandbox, &source);
    back_three_up(&sandbox, &server, "orders --create");
    let whole = fs::read(sandbox.path().join("kept.backup")).unwrap();
    let on_target = |command: &str| {
        let mut command = sandbox.command(&format!("{command} --postgres-shard {target}"));
        command.env("LOCKGATE_POSTGRES", url());
        command
    };
    let run = |command: &str| support::Done::from(on_target(command).output().unwrap());

    // It waits for the rest when it has begun to write.
    let mut killed = on_target("restore -")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = killed.stdin.take().unwrap();
    input.write_all(&whole[..whole.len() - 40]).unwrap();
    let begun = format!(
        "SELECT EXISTS (SELECT FROM lockgate.shard WHERE name = '.{target}.lockgate-restore' AND epoch > 0)"
    );
    until(&begun);
    let error = run("restore kept.backup").fails_with(4);
    assert!(error.contains("is under way"), "{error}");
    killed.kill().unwrap();
    killed.wait().unwrap();
    drop(input);
    let no_lock = "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE classid = 1718185068)";
    until(no_lock);

    let error = run("check").fails_with(3);
    assert!(error.contains("left it unfinished"), "{error}");
    let told = run("restore kept.backup");
    assert_eq!(told.code, Some(0), "{told:?}");
    let told = run("check").ok();
    assert!(
        told.contains("3 messages in the queues") && !told.contains("unfinished"),
        "{told}"
    );
}

/// Asks the server that all tests share until it says yes.
fn until(question: &str) {
    on_a_connection(async |client| {
        while !client.query_one(question, &[]).await?.get::<_, bool>(0) {}
        Ok(())
    });
}

#[test]
fn a_shard_is_checked_and_dumped_beside_its_server() {
    let sandbox = Sandbox::new();
    let shard = shard("looked-at");
    let look = |command: &str, shard: &str| {
        let output = sandbox
            .command(&format!("{command} --postgres-shard {shard}"))
            .env("LOCKGATE_POSTGRES", url())
            .output();
        support::Done::from(output.unwrap())
    };
    let error = look("check", &shard).fails_with(3);
    assert!(error.contains("there is no shard"), "{error}");
    let error = look("dump", &shard).fails_with(3);
    assert!(error.contains("there is no shard"), "{error}");

    let server = Server::start(&sandbox, &shard);
    let endpoint = &server.url;
    let send = |body: &str| {
        sandbox
            .run(&format!(
                "send orders.fifo --create --key k --endpoint {endpoint} {body}"
            ))
            .ok();
    };
    for body in ["order-0", "order-1", "order-2"] {
        send(body);
    }
    let told = look("check", &shard).ok();
    assert!(
        told.contains("3 messages in the queues, all readable") && told.ends_with("clean\n"),
        "{told}"
    );
    let found = look("check --json", &shard).json().remove(0);
    assert_eq!(found["verdict"], "clean");
    assert_eq!(found["queues"][0]["ready"], 3);
    // The server was not deposed by any of that.
    send("order-3");
    let records = look("dump --bodies", &shard).json();
    let told = serde_json::to_string(&records).unwrap();
    for number in 0..4 {
        assert!(told.contains(&format!("order-{number}")), "{told}");
    }
    let numbers: Vec<_> = records
        .iter()
        .map(|record| record["number"].as_u64().unwrap())
        .collect();
    assert!(numbers.is_sorted() && numbers[0] == 1, "{numbers:?}");
    assert_eq!(numbers.len() as u64, numbers[numbers.len() - 1], "dense");
    send("order-4");

    // A table that somebody put a hand on.
    drop(server);
    let damage = format!(
        "UPDATE lockgate.record SET payload = payload || '\\x00' FROM lockgate.shard
         WHERE record.shard = shard.id AND shard.name = '{shard}' AND number = {}",
        numbers[numbers.len() - 1]
    );
    statement(&damage);
    let told = look("check", &shard);
    assert_eq!(told.code, Some(8), "{told:?}");
    assert!(told.stdout.contains("DAMAGED"), "{told:?}");
    let told = look("dump", &shard);
    assert_eq!(told.code, Some(8), "{told:?}");
    assert!(told.stdout.contains("\"damaged\""), "{told:?}");
}

/// Runs a statement on the server that all tests share.
fn statement(sql: &str) {
    on_a_connection(async |client| client.batch_execute(sql).await);
}

fn on_a_connection(
    ask: impl AsyncFnOnce(tokio_postgres::Client) -> Result<(), tokio_postgres::Error>,
) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&url(), tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        ask(client).await.unwrap();
    });
}

#[test]
fn a_standby_is_checked_and_dumped_while_its_primary_serves() {
    let sandbox = Sandbox::new();
    let primary = Database::start();
    let standby = Database::standby_of(&primary);
    let server = Server::start_on(&sandbox, &primary.url, "shard", "disk");
    let endpoint = &server.url;
    sandbox
        .run(&format!("send orders --create --endpoint {endpoint} kept"))
        .ok();
    let look = |command: &str| {
        let output = sandbox
            .command(&format!("{command} --postgres-shard shard"))
            .env("LOCKGATE_POSTGRES", &standby.url)
            .output();
        support::Done::from(output.unwrap())
    };
    // It has all that was answered, and shows it as soon as it has replayed it.
    let told = loop {
        let told = look("check").ok();
        if told.contains("1 message in the queues, all readable") {
            break told;
        }
    };
    assert!(
        told.contains("a standby that has replayed up to") && told.ends_with("clean\n"),
        "{told}"
    );
    let found = look("check --json").json().remove(0);
    assert_eq!(found["verdict"], "clean");
    assert!(found["standby"]["replayed"].is_string(), "{found}");
    let dumped = look("dump --bodies");
    assert_eq!(dumped.code, Some(0), "{dumped:?}");
    assert!(dumped.stdout.contains("kept"), "{dumped:?}");
    assert!(
        dumped.stderr.contains("is read from a standby"),
        "{dumped:?}"
    );
    // Nothing but looking: a server finds no place there.
    let refused = sandbox
        .command("serve --listen 127.0.0.1:0 --log-format text --postgres-shard shard")
        .env("LOCKGATE_POSTGRES", &standby.url)
        .output();
    let error = support::Done::from(refused.unwrap()).fails_with(1);
    assert!(error.contains("takes no writes"), "{error}");
}

#[test]
fn what_is_wrong_is_told_without_the_password() {
    let sandbox = Sandbox::new();
    for (url, code, says) in [
        ("postgres://u:hidden@127.0.0.1:1/d", 1, "opening the shard"),
        (
            "postgres://u:hidden@127.0.0.1/d?sslmode=never",
            1,
            "sslmode=never is none of disable",
        ),
        (
            "mysql://u:hidden@127.0.0.1/d",
            2,
            "does not begin with postgres://",
        ),
    ] {
        let output = sandbox
            .command("serve --listen 127.0.0.1:0 --log-format text")
            .env("LOCKGATE_POSTGRES", url)
            .output()
            .unwrap();
        let error = support::Done::from(output).fails_with(code);
        assert!(error.contains(says), "{error}");
        assert!(!error.contains("hidden"), "{error}");
    }
    let output = sandbox
        .command("config show")
        .env("LOCKGATE_POSTGRES", "postgres://u:secret-word@127.0.0.1/d")
        .output()
        .unwrap();
    let shown = support::Done::from(output).ok();
    assert!(
        shown.contains("(hidden)") && !shown.contains("secret-word"),
        "{shown}"
    );
}

/// One request, on a connection of its own.
fn status_of(endpoint: &str, path: &str) -> String {
    let address = endpoint.strip_prefix("http://").unwrap();
    let mut connection = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn reads_that_the_database_does_not_answer_hold_no_health_check_up() {
    const RECEIVES: usize = 12;

    let sandbox = Sandbox::new();
    let application = shard("frozen");
    let url = format!("{}?application_name={application}", url());
    let server = Server::start_on(&sandbox, &url, &application, "disk");
    let endpoint = &server.url;
    let send = format!("send orders --create --endpoint {endpoint} order");
    let receive = format!("receive orders --max 1 --timeout 1m --endpoint {endpoint}");
    for _ in 0..=RECEIVES {
        sandbox.run(&send).ok();
    }
    // From now on there is a connection for reads.
    sandbox.run(&receive).ok();
    let mut reader = 0;
    on_a_connection(async |client| {
        let sql = "
            SELECT pid FROM pg_stat_activity
            WHERE application_name = $1 AND query LIKE '%position = ANY%'";
        reader = client.query_one(sql, &[&application]).await?.get(0);
        Ok(())
    });
    let reader = Pid::from_raw(reader).unwrap();
    kill_process(reader, Signal::STOP).unwrap();
    let mut receives: Vec<_> = (0..RECEIVES)
        .map(|_| {
            let mut command = sandbox.command(&receive);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    // Until all of them have their leases and wait for the messages, or one gave up.
    let has_ended = |receive: &mut Child| receive.try_wait().unwrap().is_some();
    while !receives.iter_mut().any(has_ended) {
        let queues = format!("queue list --json --endpoint {endpoint}");
        let queue = sandbox.run(&queues).json().remove(0);
        // And the one above.
        if queue["counts"]["in_flight"] == RECEIVES + 1 {
            break;
        }
    }
    for _ in 0..20 {
        assert_eq!(status_of(endpoint, "/healthz"), "HTTP/1.1 200 OK");
    }
    kill_process(reader, Signal::CONT).unwrap();
    for receive in receives {
        let done = receive.wait_with_output().unwrap();
        assert!(done.status.success(), "{done:?}");
        assert!(String::from_utf8_lossy(&done.stdout).contains("order"));
    }
}
