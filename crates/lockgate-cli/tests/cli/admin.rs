//! What an operator does: looking why nothing moves, and making it.

use std::{io::Write, process::Stdio};

use serde_json::{Value, json};

use crate::{
    messages::{Town, bodies},
    support::{Done, Sandbox, Server, json_lines, run_to_file, signal},
};

fn received(town: &Town, arguments: &str) -> Vec<Value> {
    town.run(&format!("receive --wait 5s {arguments}")).json()
}

fn receipt(message: &Value) -> &str {
    message["receipt"].as_str().unwrap()
}

#[test]
fn a_key_says_why_it_does_not_move() {
    let town = Town::new();
    town.run("queue create orders.fifo").ok();
    town.run("send orders.fifo --key user/42 first").ok();
    town.run("send orders.fifo --key user/42 second").ok();
    let explain = || {
        let done = town.run("key explain orders.fifo user/42 --json");
        done.json().remove(0)
    };
    assert_eq!(explain()["waits_for"], "nothing");
    received(&town, "orders.fifo --max 1 --lease 1h --consumer worker-3");
    let key = explain();
    assert_eq!(key["waits_for"], "lease");
    assert_eq!(key["holder"], "worker-3");
    assert_eq!(key["messages"], 2);
    let text = town.run("key explain orders.fifo user/42").ok();
    assert!(text.contains("held by\tworker-3\n"), "{text}");
    assert!(text.contains("worker-3 holds message 1"), "{text}");

    town.run("queue pause orders.fifo").ok();
    assert_eq!(explain()["waits_for"], "paused");
    town.run("queue resume orders.fifo").ok();
    town.run("key park orders.fifo user/42").ok();
    assert_eq!(explain()["waits_for"], "parked");
    town.run("key resume orders.fifo user/42").ok();
    assert_eq!(explain()["waits_for"], "lease");

    let ask = town.run("key drop orders.fifo user/42").fails_with(2);
    assert!(
        ask.contains("holds 2 messages") && ask.contains("--yes"),
        "{ask}"
    );
    let done = town.run("key drop orders.fifo user/42 --yes");
    assert!(done.stderr.contains("dropped 1 message\n"), "{done:?}");
    done.ok();
    assert_eq!(explain()["messages"], 1, "what is in flight stays");

    for (arguments, code, says) in [
        (
            "key explain none.fifo k",
            3,
            "there is no queue \"none.fifo\"",
        ),
        ("key drop orders.fifo nobody --yes", 3, "no key nobody"),
        ("queue pause none", 3, "there is no queue"),
    ] {
        let error = town.run(arguments).fails_with(code);
        assert!(error.contains(says), "{arguments}: {error}");
    }
    town.run("queue create mail").ok();
    for arguments in ["key list mail", "key state list mail", "key park mail k"] {
        let error = town.run(arguments).fails_with(4);
        assert!(error.contains("mail is not keyed"), "{arguments}: {error}");
    }
}

#[test]
fn the_state_of_a_key_is_read_written_and_dropped() {
    let town = Town::new();
    town.run("queue create orders.fifo").ok();
    let state = |arguments: &str| town.run(&format!("key state {arguments}"));
    let error = state("get orders.fifo user/42").fails_with(3);
    assert!(
        error.contains("user/42 of queue orders.fifo has no state"),
        "{error}"
    );
    let set = state("set orders.fifo user/42 one --new --json").json();
    assert_eq!(set, [json!({"version": 1})]);
    assert_eq!(state("get orders.fifo user/42").ok(), "one");
    for (arguments, code, says) in [
        ("set orders.fifo user/42 x", 2, "--replaces"),
        (
            "set orders.fifo user/42 x --new --any",
            2,
            "cannot be used with",
        ),
        ("set orders.fifo user/42 x --new", 4, "has version 1"),
        ("set orders.fifo user/42 x --new", 4, "--replaces 1"),
        ("set orders.fifo user/42 x --replaces 2", 4, "has version 1"),
        ("set orders.fifo user/1 x --replaces 2", 3, "no state"),
        ("drop orders.fifo user/1 --replaces 2", 3, "no state"),
        ("drop orders.fifo user/42", 2, "--replaces"),
        ("drop orders.fifo user/42 --replaces 2", 4, "has version 1"),
    ] {
        let error = state(arguments).fails_with(code);
        assert!(error.contains(says), "{arguments}: {error}");
    }
    let set = state("set orders.fifo user/42 two --replaces 1");
    assert!(set.stderr.contains("has version 2"), "{set:?}");
    set.ok();
    let explained = town.run("key explain orders.fifo user/42").ok();
    assert!(
        explained.contains("state\tversion 2, 3 bytes, written at 2"),
        "{explained}"
    );
    let shown = state("get orders.fifo user/42 --json").json().remove(0);
    assert_eq!(
        (&shown["value"], &shown["version"]),
        (&json!("two"), &json!(2))
    );
    let listed = |arguments: &str| {
        let states = state(&format!("list orders.fifo {arguments} --json")).json();
        let keys = states
            .iter()
            .map(|state| state["key"].as_str().unwrap().to_owned());
        keys.collect::<Vec<_>>()
    };
    state("set orders.fifo user/1 x --new").ok();
    state("set orders.fifo a x --new").ok();
    assert_eq!(listed(""), ["a", "user/1", "user/42"]);
    assert_eq!(listed("--prefix user/"), ["user/1", "user/42"]);
    assert_eq!(listed("--max 1"), ["a"]);
    let table = state("list orders.fifo").ok();
    assert!(table.contains("user/42\t2\t3\t2"), "{table}");
    let too_much = "x".repeat((256 << 10) + 1);
    let mut command = town.sandbox.command("key state set orders.fifo a --any");
    let mut set = command
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    set.stdin
        .take()
        .unwrap()
        .write_all(too_much.as_bytes())
        .unwrap();
    let error = Done::from(set.wait_with_output().unwrap()).fails_with(2);
    assert!(error.contains("more than 262144 bytes"), "{error}");
    state("drop orders.fifo user/42 --replaces 2").ok();
    state("drop orders.fifo user/42 --any").fails_with(3);
    state("get orders.fifo user/42").fails_with(3);
}

#[test]
fn a_receipt_can_be_put_back_for_later_or_given_up() {
    let town = Town::new();
    town.run("queue create dead").ok();
    town.run("queue create mail --dead-letter dead").ok();
    town.run("queue create orders.fifo").ok();
    town.run("send orders.fifo --key k hello").ok();
    let message = received(&town, "orders.fifo");
    let receipt = receipt(&message[0]);
    let nack = format!("nack orders.fifo --delay 1h {receipt}");
    town.run(&nack).ok();
    let counts = town.counts("orders.fifo");
    assert_eq!(counts["in_flight"], 1, "it waits for its next attempt");
    let again = town.run(&nack).fails_with(4);
    assert!(
        again.contains("the message could not be put back"),
        "{again}"
    );
    assert!(again.contains("the lease has ended"), "{again}");

    town.run("send mail early").ok();
    let message = received(&town, "mail");
    let defer = format!("defer mail --delay 1h {}", self::receipt(&message[0]));
    town.run(&defer).ok();
    assert_eq!(town.counts("mail")["ready"], 0);

    town.run("send mail bad").ok();
    let message = received(&town, "mail");
    let reject = ["--reason", "no such product", self::receipt(&message[0])];
    let mut command = town.sandbox.command("reject mail");
    Done::from(command.args(reject).output().unwrap()).ok();
    assert_eq!(town.counts("dead")["ready"], 1);
    let made_up = town.run("nack mail made-up").fails_with(4);
    assert!(
        made_up.contains("no receipt that this server gave out"),
        "{made_up}"
    );
}

#[test]
fn settings_are_shown_and_changed_in_words_of_ones_own() {
    let town = Town::new();
    town.run("queue create orders-dead.fifo").ok();
    town.run("queue create orders.fifo --delay 5s").ok();
    let settings = || town.run("queue show orders.fifo --json").json()[0]["settings"].clone();
    town.run(
        "queue set orders.fifo --lease 90s --level process --dead-letter orders-dead.fifo \
         --key-policy park --quota-messages 10 --dedup-window 1h --tag team=shop",
    )
    .ok();
    let now = settings();
    assert_eq!(
        json!([
            now["lease_ms"],
            now["delay_ms"],
            now["level"],
            now["dead_letter"],
            now["key_policy"],
            now["quota_messages"],
            now["dedup_window_ms"],
        ]),
        json!([
            90_000,
            5_000,
            "process",
            "orders-dead.fifo",
            "park",
            10,
            3_600_000,
        ])
    );
    let text = town.run("queue show orders.fifo").ok();
    for line in [
        "lease\t1m30s\n",
        "dedup window\t1h\n",
        "message bytes max\t1MiB\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in:\n{text}");
    }
    town.run("queue set orders.fifo --attempts-max 3 --lease default --quota-messages none")
        .ok();
    let now = settings();
    assert_eq!(now["attempts_max"], 3);
    assert_eq!(now["dead_letter"], "orders-dead.fifo");
    assert_eq!(now["lease_ms"], 30_000);
    assert_eq!(now["quota_messages"], Value::Null);
    town.run("queue set orders.fifo --dead-letter none --key-policy default --untag team")
        .ok();
    assert_eq!(settings()["dead_letter"], Value::Null);
    for (arguments, code, says) in [
        (
            "queue set orders.fifo",
            2,
            "no setting and no tag was named",
        ),
        (
            "queue set orders.fifo --lease 13h",
            2,
            "a time from 0s to 12h",
        ),
        (
            "queue set orders.fifo --level paper",
            2,
            "memory, process, disk or replicated",
        ),
        (
            "queue set orders.fifo --key-policy skip",
            1,
            "settings.key_policy",
        ),
        (
            "queue set order.fifo --lease 1s",
            3,
            "did you mean orders.fifo?",
        ),
        ("queue set none --lease 1s", 3, "there is no queue"),
    ] {
        let error = town.run(arguments).fails_with(code);
        assert!(error.contains(says), "{arguments}: {error}");
    }
}

#[test]
fn every_setting_of_a_queue_can_be_set() {
    let town = Town::new();
    town.run("queue create dead.fifo").ok();
    town.run("queue create q.fifo").ok();
    let settings = || town.run("queue show q.fifo --json").json()[0]["settings"].clone();
    let before = settings();
    town.run(
        "queue set q.fifo --level process --lease 9s --delay 1s --retention 1d --receive-wait 2s \
         --message-bytes-max 1KiB --in-flight-max 7 --key-sequences-max 8 --sync-window 50ms \
         --sync-records 9 --dedup-window 1h --dedup-scope key --dedup-content true \
         --dedup-bytes-max 1MiB --dedup-survives-purge true --dead-letter dead.fifo \
         --attempts-max 3 --key-policy skip --key-profile strict --quota-messages 10 \
         --quota-bytes 1GiB --limit-rate 10/s --limit-concurrency 3 --limit-gap 5ms \
         --producer-age 7d --producers-max 9",
    )
    .ok();
    let after = settings();
    for (name, was) in before.as_object().unwrap() {
        assert_ne!(*was, after[name], "{name} cannot be set");
    }
    assert_eq!(after["dedup_scope"], "key");
    let error = town
        .run("queue set q.fifo --dedup-content perhaps")
        .fails_with(2);
    assert!(error.contains("must be true or false"), "{error}");
}

/// A folder whose server wants requests signed by these keys.
fn sandbox_with_keys(keys: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    let keys = sandbox.write("keys.toml", keys);
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&keys, private).unwrap();
    sandbox.write(
        "lockgate.toml",
        "auth = \"sigv4\"\naccess_keys = \"keys.toml\"\n",
    );
    sandbox
}

#[test]
fn admin_commands_are_signed_where_keys_are_needed() {
    let sandbox = sandbox_with_keys(
        "[[key]]\nid = \"OPS\"\nsecret = \"wJalrXUtnFEMI\"\ngrants = [{ queues = \"*\", verbs = \
         [\"read\", \"manage\"] }]\n",
    );
    let server = Server::start(&sandbox);
    let run = |secret: &str, arguments: &str| -> Done {
        let mut command = sandbox.command(arguments);
        command.env("LOCKGATE_ENDPOINT", &server.url);
        command.env("AWS_ACCESS_KEY_ID", "OPS");
        command.env("AWS_SECRET_ACCESS_KEY", secret);
        command.output().unwrap().into()
    };
    let good = |arguments: &str| run("wJalrXUtnFEMI", arguments);
    good("queue create orders.fifo").ok();
    good("queue pause orders.fifo").ok();
    good("key park orders.fifo user/42").ok();
    let denied = good("key drop orders.fifo user/42 --yes").fails_with(7);
    assert!(denied.contains("no grant of purge"), "{denied}");
    let wrong = run("another secret", "queue pause orders.fifo").fails_with(7);
    assert!(wrong.contains("signature"), "{wrong}");
}

/// Who may only send sends, also what a lost answer must not double.
#[test]
fn a_key_that_may_only_send_can_send() {
    let sandbox = sandbox_with_keys(
        "[[key]]\nid = \"OPS\"\nsecret = \"secret of OPS\"\ngrants = [{ queues = \"*\", verbs = [\"manage\", \"read\"] }]\n\
         [[key]]\nid = \"APP\"\nsecret = \"secret of APP\"\ngrants = [{ queues = \"*\", verbs = [\"send\"] }]\n",
    );
    let server = Server::start(&sandbox);
    let run = |id: &str, arguments: &str| -> Done {
        let mut command = sandbox.command(arguments);
        command.env("LOCKGATE_ENDPOINT", &server.url);
        command.env("AWS_ACCESS_KEY_ID", id);
        command.env("AWS_SECRET_ACCESS_KEY", format!("secret of {id}"));
        command.output().unwrap().into()
    };
    run("OPS", "queue create q.fifo").ok();
    run("OPS", "queue create by-body.fifo --dedup-content true").ok();
    run("APP", "send q.fifo --key k hello").ok();
    for duplicate in [false, true] {
        let sent = run("APP", "send by-body.fifo --key k --json hello").json();
        assert_eq!(sent[0]["duplicate"], duplicate);
    }
    let shown = run("OPS", "queue show q.fifo --json").json();
    // The command gave the message a unique id.
    assert_eq!(shown[0]["counts"]["unique_ids"], 1);
    run("APP", "queue show q.fifo").fails_with(3);
    run("OPS", "send q.fifo --key k hello").fails_with(7);
}

/// Who may write a record and not read it writes and deletes it whatever version it has.
#[test]
fn a_key_that_may_only_manage_records_can_write_them() {
    let sandbox = sandbox_with_keys(
        "[[key]]\nid = \"OPS\"\nsecret = \"secret of OPS\"\ngrants = [{ records = \"*\", verbs = [\"manage\"] }]\n",
    );
    let server = Server::start(&sandbox);
    let run = |arguments: &str| -> Done {
        let mut command = sandbox.command(arguments);
        command.env("LOCKGATE_ENDPOINT", &server.url);
        command.env("AWS_ACCESS_KEY_ID", "OPS");
        command.env("AWS_SECRET_ACCESS_KEY", "secret of OPS");
        command.output().unwrap().into()
    };
    run("record get a").fails_with(7);
    run("record delete a --any").fails_with(3);
    assert_eq!(run("record put a one --any").ok(), "1\n");
    assert_eq!(run("record put a two --any").ok(), "2\n");
    run("record put a three").fails_with(4);
    run("record delete a --any").ok();
    run("record delete a --any").fails_with(3);
}

/// Keys come and go without a restart, and a file that went wrong does no harm.
#[test]
fn new_access_keys_are_taken_without_a_restart() {
    let sandbox = Sandbox::new();
    let write = |name: &str, text: &str, mode: u32| {
        let fresh = sandbox.write(&format!("{name}.fresh"), text);
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&fresh, mode).unwrap();
        std::fs::rename(&fresh, sandbox.path().join(name)).unwrap();
    };
    let key = |id: &str, secret: &str| {
        let grants = "grants = [{ queues = \"*\", verbs = [\"read\", \"manage\"] }]";
        format!("[[key]]\nid = \"{id}\"\n{secret}\n{grants}\n")
    };
    let in_a_file = "secret_file = \"secret\"";
    write("secret", "first secret", 0o600);
    write("keys.toml", &key("OLD", in_a_file), 0o600);
    sandbox.write(
        "lockgate.toml",
        "auth = \"sigv4\"\naccess_keys = \"keys.toml\"\n",
    );
    let mut server = Server::start(&sandbox);
    let url = server.url.clone();
    let list = |id: &str, secret: &str| -> Done {
        let mut command = sandbox.command("queue list");
        command.env("LOCKGATE_ENDPOINT", &url);
        command.env("AWS_ACCESS_KEY_ID", id);
        command.env("AWS_SECRET_ACCESS_KEY", secret);
        command.output().unwrap().into()
    };
    let taken = "the access keys were read again; new requests need these";
    let refused = "the new access keys cannot be used, the old ones stay";
    list("OLD", "first secret").ok();

    write("secret", "second secret", 0o600);
    server.event(taken);
    list("OLD", "first secret").fails_with(7);
    list("OLD", "second secret").ok();

    let new = key("NEW", "secret = \"third secret\"");
    for (text, mode, why) in [
        (new.clone(), 0o644, "chmod 600"),
        (new.clone() + &new, 0o600, "each id once"),
    ] {
        write("keys.toml", &text, mode);
        let event = server.event(refused);
        assert_eq!(event["level"], "WARN");
        let error = event["error"].as_str().unwrap();
        assert!(error.contains(why), "{error}");
        assert!(!error.contains("third"), "{error}");
    }
    list("OLD", "second secret").ok();
    list("NEW", "third secret").fails_with(7);

    write("keys.toml", &new, 0o600);
    let event = server.event(taken);
    assert_eq!(event["keys"], 1);
    list("OLD", "second secret").fails_with(7);
    list("NEW", "third secret").ok();

    // At a SIGHUP also where nothing has changed.
    server.signal(rustix::process::Signal::HUP);
    server.event(taken);
    list("NEW", "third secret").ok();
}

/// Who leaves is refused from the next start on. What he holds he holds to its deadline: nobody else
/// gets it earlier.
#[test]
fn a_key_that_is_gone_at_a_restart_is_refused_and_its_leases_end_when_they_should() {
    let sandbox = Sandbox::new();
    let keys = |ids: &[&str]| {
        let grants = "[{ queues = \"*\", verbs = [\"read\", \"manage\", \"send\", \"receive\"] }]";
        let text: String = ids
            .iter()
            .map(|id| format!("[[key]]\nid = \"{id}\"\nsecret = \"of {id}\"\ngrants = {grants}\n"))
            .collect();
        let file = sandbox.write("keys.toml", &text);
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, private).unwrap();
    };
    sandbox.write(
        "lockgate.toml",
        "auth = \"sigv4\"\naccess_keys = \"keys.toml\"\n",
    );
    keys(&["LEAVES", "STAYS"]);
    let server = Server::start(&sandbox);
    let run = |url: &str, id: &str, arguments: &str| -> Done {
        let mut command = sandbox.command(arguments);
        command.env("LOCKGATE_ENDPOINT", url);
        command.env("AWS_ACCESS_KEY_ID", id);
        command.env("AWS_SECRET_ACCESS_KEY", format!("of {id}"));
        command.env("LOCKGATE_CONSUMER", format!("who {}", id.to_lowercase()));
        run_to_file(&mut command)
    };
    let url = server.url.clone();
    for key in ["long", "short"] {
        let send = format!("send jobs.fifo --create --key {key} {key}");
        run(&url, "STAYS", &send).ok();
    }
    let held = run(&url, "LEAVES", "receive jobs.fifo --max 1 --lease 10m").json();
    assert_eq!(held[0]["body"], "long");
    let held = run(&url, "LEAVES", "receive jobs.fifo --max 1 --lease 1s").json();
    assert_eq!(held[0]["body"], "short");
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().success());

    keys(&["STAYS"]);
    let server = Server::start(&sandbox);
    let url = server.url.clone();
    let refused = run(&url, "LEAVES", "receive jobs.fifo").fails_with(7);
    assert!(refused.contains("unauthenticated"), "{refused}");
    run(&url, "LEAVES", "send jobs.fifo --key long more").fails_with(7);
    // It waits for the one whose lease ends, and does not get the other.
    let got = run(&url, "STAYS", "receive jobs.fifo --max 10 --wait 20s --ack").json();
    assert_eq!(got.len(), 1, "{got:?}");
    assert_eq!(
        (&got[0]["body"], &got[0]["attempt"]),
        (&json!("short"), &json!(2))
    );
    let queue = run(&url, "STAYS", "queue list --json").json();
    assert_eq!(queue[0]["counts"]["in_flight"], 1, "{queue:?}");
    run(&url, "STAYS", "send jobs.fifo --key long more").ok();
    let why = run(&url, "STAYS", "key explain jobs.fifo long --json").json();
    assert_eq!(why[0]["waits_for"], "lease", "{why:?}");
    assert_eq!(why[0]["holder"], "who leaves", "{why:?}");
}

/// One dead-letter queue of many queues: what one of them gave up goes back alone.
/// Letters of `mail` in `dead`.
fn with_letters(count: usize) -> Town {
    let town = Town::new();
    town.run("queue create dead").ok();
    town.run("queue create mail --dead-letter dead").ok();
    let lines = "{\"body\":1}\n".repeat(count);
    town.send_lines("mail", &lines).ok();
    let held = received(&town, &format!("mail --max {count}"));
    let receipts: Vec<_> = held.iter().map(receipt).collect();
    town.run(&format!("reject mail {}", receipts.join(" ")))
        .ok();
    town
}

#[test]
fn a_redrive_that_ends_half_way_says_how_far_it_got_and_can_be_repeated() {
    let town = with_letters(4);
    let moved = || town.counts("mail")["ready"].as_u64().unwrap();
    let half_way = || {
        let before = moved();
        let mut command = town.sandbox.command("dlq redrive dead --rate 1 --json");
        let redrive = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while moved() == before {}
        redrive
    };
    let redrive = half_way();
    signal(&redrive, rustix::process::Signal::INT);
    let done = Done::from(redrive.wait_with_output().unwrap());
    let so_far = moved();
    assert_eq!(done.code, Some(130), "{done:?}");
    let says = "before it was interrupted; run the same command again to move the rest";
    assert!(done.stderr.contains(says), "{done:?}");
    assert_eq!(json_lines(&done.stdout)[0]["moved"], so_far, "{done:?}");
    assert!(so_far < 4);

    let redrive = half_way();
    let address = town.server.url.trim_start_matches("http://").to_owned();
    let Town { sandbox, server } = town;
    server.signal(rustix::process::Signal::KILL);
    let done = Done::from(redrive.wait_with_output().unwrap());
    let before = json_lines(&done.stdout)[0]["moved"].as_u64().unwrap();
    assert!(matches!(done.code, Some(1 | 5)), "{done:?}");
    assert!(
        done.stderr.contains("before it ended; run the same"),
        "{done:?}"
    );
    let server = Server::restart(server, &sandbox, &address);
    let town = Town { sandbox, server };
    let after = town.run("dlq redrive dead --json").json()[0]["moved"].clone();
    // A step whose answer was lost may have moved one more.
    let all = so_far + before + after.as_u64().unwrap();
    assert!((3..=4).contains(&all), "{done:?}");
    assert_eq!(town.counts("mail")["ready"], 4);
    assert_eq!(town.counts("dead")["ready"], 0);
}

#[test]
fn a_redrive_of_one_queue_finds_its_letters_behind_any_number_of_others() {
    let town = with_letters(1);
    town.run("queue set dead --level memory").ok();
    let others = "{\"body\":1}\n".repeat(100_001);
    town.send_lines("dead", &others).ok();
    let ids = town
        .send_lines("mail --json", &"{\"body\":2}\n".repeat(2))
        .json();
    let held = received(&town, "mail --max 2");
    for message in &held {
        town.run(&format!("reject mail {}", receipt(message))).ok();
    }
    let done = town.run("dlq redrive dead --source mail --json");
    assert_eq!(done.stderr, "moved 3 messages that came from mail\n");
    assert_eq!(done.json(), [json!({"moved": 3, "left": 100_001})]);
    let back = town.drain("mail");
    assert_eq!(
        [&back[1]["id"], &back[2]["id"]],
        [&ids[0]["id"], &ids[1]["id"]]
    );
}

#[test]
fn a_redrive_takes_the_letters_of_one_queue_and_can_be_foreseen() {
    let town = Town::new();
    town.run("queue create dead").ok();
    for queue in ["mail", "news"] {
        town.run(&format!("queue create {queue} --dead-letter dead"))
            .ok();
    }
    for (queue, body) in [
        ("news", "n1"),
        ("mail", "m1"),
        ("news", "n2"),
        ("mail", "m2"),
    ] {
        town.run(&format!("send {queue} {body}")).ok();
        let receipt = town.run(&format!("receive {queue}")).json()[0]["receipt"].clone();
        town.run(&format!("reject {queue} {}", receipt.as_str().unwrap()))
            .ok();
    }
    let foresee = |options: &str| {
        let done = town.run(&format!("dlq redrive dead --dry-run {options}"));
        assert!(done.stderr.ends_with("nothing was moved\n"), "{done:?}");
        done.ok()
    };
    assert_eq!(foresee(""), "TO\tMESSAGES\nmail\t2\nnews\t2\n");
    assert_eq!(foresee("--source mail"), "TO\tMESSAGES\nmail\t2\n");
    assert_eq!(
        foresee("--source mail --to news"),
        "TO\tMESSAGES\nnews\t2\n"
    );
    assert_eq!(
        town.run("dlq redrive dead --dry-run --max 3 --to news --json")
            .json(),
        [json!({"to": "news", "messages": 3})]
    );
    assert_eq!(town.counts("dead")["ready"], 4);

    town.run("dlq redrive dead --source mail --rate 1000").ok();
    assert_eq!(bodies(&town.drain("mail")), ["m1", "m2"]);
    let error = town.run("dlq redrive dead --source nwes").fails_with(3);
    assert!(error.contains("did you mean news?"), "{error}");
    town.run("dlq redrive dead --source news --to mail --max 1")
        .ok();
    assert_eq!(bodies(&town.drain("mail")), ["n1"]);
    assert_eq!(town.counts("dead")["ready"], 1);
}

#[test]
fn a_redrive_ends_although_letters_stay_or_come_back() {
    let town = Town::new();
    town.run("queue create dead.fifo").ok();
    town.run("queue create q.fifo --dead-letter dead.fifo").ok();
    let reject = || {
        let held = received(&town, "q.fifo");
        for message in &held {
            town.run(&format!("reject q.fifo {}", receipt(message)))
                .ok();
        }
        !held.is_empty()
    };
    for key in ["a", "b", "b"] {
        town.run(&format!("send q.fifo --key {key} x")).ok();
    }
    while reject() {}
    town.run("key park dead.fifo b").ok();
    for paused in [false, true] {
        if paused {
            town.run("queue pause dead.fifo").ok();
        }
        let foreseen = town.run("dlq redrive dead.fifo --dry-run");
        assert_eq!(
            foreseen.stderr,
            "would move 1 message, and not 2 ready messages whose key is parked or waits for a message in flight; \
             nothing was moved\n"
        );
        assert_eq!(foreseen.stdout, "TO\tMESSAGES\nq.fifo\t1\n");
    }
    let done = town.run("dlq redrive dead.fifo");
    assert_eq!(
        done.stderr,
        "moved 1 message; 2 ready messages stay: they came meanwhile, or their key is parked or waits for a message \
         in flight\n"
    );

    town.run("key resume dead.fifo b").ok();
    let mut redrive = town.sandbox.command("dlq redrive dead.fifo --rate 1");
    let mut redrive = redrive.stderr(Stdio::null()).spawn().unwrap();
    // Whatever it moves comes back at once.
    while redrive.try_wait().unwrap().is_none() {
        reject();
    }
    while reject() {}
    assert_eq!(town.counts("dead.fifo")["ready"], 3);
}

#[test]
fn what_was_done_can_be_had_as_json() {
    let town = Town::new();
    town.run("queue create q.fifo").ok();
    for body in ["one", "two", "three", "four"] {
        town.run(&format!("send q.fifo --key k {body}")).ok();
    }
    let json = |command: &str| {
        let done = town.run(&format!("{command} --json"));
        assert_eq!(done.stderr.matches("error").count(), 0, "{done:?}");
        done.json().remove(0)
    };
    assert_eq!(json("queue pause q.fifo")["paused"], true);
    assert_eq!(json("queue resume q.fifo")["paused"], false);
    assert_eq!(json("key park q.fifo k")["waits_for"], "parked");
    assert_eq!(json("key resume q.fifo k")["waits_for"], "nothing");
    let leased = received(&town, "q.fifo --max 1").remove(0);
    let ack = format!("ack q.fifo {}", receipt(&leased));
    let done = json!({"receipt": receipt(&leased), "outcome": "done", "why": null});
    assert_eq!(json(&ack), done);
    // Again: it is gone, as it should be.
    assert_eq!(json(&ack), done);
    let nack = town.run(&format!("nack q.fifo {} --json", receipt(&leased)));
    assert_eq!(nack.code, Some(4), "{nack:?}");
    assert!(nack.stdout.contains("\"outcome\":\"failed\""), "{nack:?}");
    let next = town.run("peek q.fifo --max 1 --json").json().remove(0);
    let id = next["id"].as_str().unwrap();
    assert_eq!(json(&format!("cancel q.fifo {id}")), json!({"messages": 1}));
    assert_eq!(json("key drop q.fifo k --yes"), json!({"messages": 2}));
    town.run("send q.fifo --key k five").ok();
    assert_eq!(json("queue purge q.fifo --yes"), json!({"messages": 1}));
    let deleted = json!({"name": "q.fifo", "messages": 0});
    assert_eq!(json("queue delete q.fifo --yes"), deleted);
}

#[test]
fn a_server_says_what_it_is_and_does() {
    let town = Town::new();
    town.run("queue create mail").ok();
    town.run("send mail x").ok();
    let status = town.run("status --over 10ms --json").json().remove(0);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["status"], "serving");
    assert_eq!(status["queues"], 1);
    assert_eq!(status["messages"]["ready"], 1);
    assert!(status["log"]["records"].as_u64().unwrap() > 0, "{status}");
    assert!(
        status["space"]["free_bytes"].as_u64().unwrap() > 0,
        "{status}"
    );
    assert_eq!(status["rates"]["sent"], 0.0);
    let shown = town.run("status --over 0s").ok();
    for row in [
        format!("server\t{}\n", town.server.url),
        "messages\t1 ready, 0 in flight, 0 delayed".to_owned(),
        // Whether it has room depends on where the tests run.
        format!("disk\t{}: ", status["space"]["state"].as_str().unwrap()),
    ] {
        assert!(shown.contains(&row), "{row}: {shown}");
    }
    assert!(!shown.contains("a second"), "{shown}");
}

#[test]
fn dead_letters_go_back_or_are_dropped() {
    let town = Town::new();
    town.run("queue create dead").ok();
    town.run("queue create mail --dead-letter dead").ok();
    let die = |body: &str| {
        town.run(&format!("send mail {body}")).ok();
        let message = received(&town, "mail").remove(0);
        town.run(&format!("reject mail {}", receipt(&message))).ok();
        message["id"].as_str().unwrap().to_owned()
    };
    die("one");
    die("two");
    let third = die("three");
    let some = town.run("dlq redrive dead --max 2 --json").json();
    assert_eq!(some, [json!({"moved": 2, "left": 1})]);
    assert_eq!(town.counts("mail")["ready"], 2);
    town.run(&format!("dlq drop dead {third}")).ok();
    let again = town.run(&format!("dlq drop dead {third}")).fails_with(3);
    assert!(again.contains("no waiting message"), "{again}");
    town.run("send dead astray").ok();
    let stuck = town.run("dlq redrive dead").fails_with(4);
    assert!(stuck.contains("nowhere to go back to"), "{stuck}");
    assert!(stuck.contains("--to QUEUE"), "{stuck}");
    town.run("dlq redrive dead --to mail").ok();
    assert_eq!(town.counts("mail")["ready"], 3);
    // Moved on to a further queue, it is still a dead letter of where it died.
    town.run("queue create purged").ok();
    town.run("queue set dead --dead-letter purged").ok();
    let fourth = die("four");
    town.run("dlq redrive dead --to purged").ok();
    let letters = town.run("dlq list purged --source mail --json").json();
    assert_eq!(letters[0]["id"], fourth.as_str());
    town.run("dlq redrive purged").ok();
    assert_eq!(town.counts("purged")["ready"], 0);
    town.run("send dead x").ok();
    let ask = town.run("dlq drop dead --all").fails_with(2);
    assert!(ask.contains("dead holds 1 message (1 ready"), "{ask}");
    town.run("dlq drop dead --all --yes").ok();
    assert_eq!(town.counts("dead")["ready"], 0);
    town.run("dlq drop dead").fails_with(2);
    town.run("dlq redrive none").fails_with(3);
}

#[test]
fn messages_keys_and_dead_letters_can_be_looked_at() {
    let town = Town::new();
    town.run("queue create dead.fifo").ok();
    town.run("queue create q.fifo --dead-letter dead.fifo").ok();
    for (key, body) in [("a", "1"), ("b", "2"), ("a", "3")] {
        town.run(&format!("send q.fifo --key {key} {body}")).ok();
    }
    let held = received(&town, "q.fifo --max 1 --consumer eve").remove(0);
    let before = town.counts("q.fifo");
    let all = town.run("peek q.fifo --json").json();
    let bodies: Vec<_> = all.iter().map(|message| message["body"].clone()).collect();
    assert_eq!(bodies, ["1", "2", "3"]);
    assert_eq!(town.run("peek q.fifo --max 2 --json").json().len(), 2);
    let of_key = town.run("peek q.fifo --key a --state ready --json").json();
    assert_eq!(of_key.len(), 1);
    assert_eq!(of_key[0]["body"], "3");
    let table = town.run("peek q.fifo --state in_flight").ok();
    assert!(table.contains("\tin_flight\ta\t\t1\teve\t"), "{table}");
    let id = held["id"].as_str().unwrap();
    let one = town.run(&format!("peek q.fifo --id {id} --json")).json();
    assert_eq!(one[0]["holder"], "eve");
    assert_eq!(town.counts("q.fifo"), before);

    town.run("key park q.fifo b").ok();
    assert_eq!(town.run("key list q.fifo --json").json().len(), 2);
    let parked = town.run("key list q.fifo --parked").ok();
    let header = "KEY\tMESSAGES\tWAITS FOR\tHELD BY\tUNTIL\n";
    let row = parked.strip_prefix(header).unwrap_or_default();
    assert!(row.starts_with("b\t1\tparked\t"), "{parked}");

    let mut reject = town.sandbox.command("reject q.fifo --reason");
    reject.args(["no such product", receipt(&held)]);
    Done::from(reject.output().unwrap()).ok();
    let letters = town.run("dlq list dead.fifo").ok();
    assert!(
        letters.contains("\tq.fifo\trejected: no such product\t"),
        "{letters}"
    );
    assert_eq!(
        town.run("dlq list dead.fifo --json").json()[0]["id"],
        held["id"]
    );
    let none = town.run("dlq list dead.fifo --source other --json").json();
    assert!(none.is_empty());
    let hint = town.run("dlq list q.fifo").fails_with(1);
    assert!(hint.contains("go to dead.fifo"), "{hint}");
    town.run("peek none").fails_with(3);
}

/// A queue may lose its dead-letter queue, but nobody has to find that out by chance.
#[test]
fn a_dead_letter_queue_that_was_deleted_is_told_where_it_matters() {
    let town = Town::new();
    town.run("queue create dead").ok();
    town.run("queue create q --dead-letter dead").ok();
    let done = town.run("queue delete dead --yes --json");
    assert!(
        done.stderr.contains("dead is the dead-letter queue of q:"),
        "{done:?}"
    );
    assert_eq!(done.json()[0]["dead_letter_queue_of"], json!(["q"]));

    let listed = town.run("queue list").ok();
    assert!(listed.contains("dead (missing)"), "{listed}");
    let shown = town.run("queue show q").ok();
    assert!(shown.contains("dead letter\tdead (missing)"), "{shown}");
    assert_eq!(
        town.run("queue list --json").json()[0]["dead_letter_missing"],
        true
    );

    town.run("send q x").ok();
    let receipt = &town.run("receive q --json").json()[0]["receipt"];
    let receipt = receipt.as_str().unwrap();
    let long = "x".repeat(1025);
    let error = town
        .run(&format!("reject q {receipt} --reason {long}"))
        .fails_with(2);
    assert!(error.contains("may have 1024"), "{error}");
    let done = town.run(&format!("reject q {receipt}"));
    assert!(
        done.stderr
            .contains("1 message dropped: q has no dead-letter queue"),
        "{done:?}"
    );

    let exported = town.run("queue export").ok();
    assert!(
        exported.contains("# its dead-letter queue dead is missing"),
        "{exported}"
    );
    let file = town.sandbox.write("queues.toml", &exported);
    town.run(&format!("queue apply {}", file.display())).ok();
    town.run("queue create dead").ok();
    let listed = town.run("queue list").ok();
    assert!(!listed.contains("missing"), "{listed}");
}
