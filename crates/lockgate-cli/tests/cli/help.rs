//! Help, completions, exit codes of wrong usage, and the page made of them.

use std::path::Path;

use crate::support::{Sandbox, assert_snapshot};

fn snapshot(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cli/snapshots")
        .join(name)
}

#[test]
fn help_texts() {
    let sandbox = Sandbox::new();
    for command in [
        "",
        "serve",
        "send",
        "receive",
        "forward",
        "ack",
        "peek",
        "nack",
        "defer",
        "reject",
        "queue",
        "queue create",
        "queue set",
        "key",
        "key explain",
        "lead",
        "exchange",
        "dlq",
        "dlq redrive",
        "status",
        "backup",
        "restore",
        "check",
        "dump",
        "bench",
        "analyze",
        "size",
        "config",
    ] {
        let name = match command {
            "" => "lockgate".to_owned(),
            command => command.replace(' ', "-"),
        };
        for flag in ["-h", "--help"] {
            let help = sandbox.run(&format!("{command} {flag}")).ok();
            let kind = if flag == "-h" { "short" } else { "long" };
            let help: String = help
                .lines()
                .map(|line| line.trim_end().to_owned() + "\n")
                .collect();
            assert_snapshot(&snapshot(&format!("{name}.{kind}.txt")), &help);
        }
    }
}

/// `docs/cli.md` says what the program does, because it is made from the same definitions.
#[test]
fn the_page_on_the_command_line_is_true() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    assert_snapshot(&page, &lockgate_cli::reference());
}

/// `docs/settings.md` has every setting of a queue, because it is made from their table.
#[test]
fn the_page_on_the_settings_of_a_queue_is_true() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
    assert_snapshot(&page, &lockgate_cli::queue_settings());
}

#[test]
fn every_command_teaches_by_example() {
    fn check(command: &clap::Command) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            if sub.has_subcommands() {
                check(sub);
                continue;
            }
            let examples = sub
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                examples.contains("Examples:"),
                "{} has none",
                sub.get_name()
            );
        }
    }
    check(&lockgate_cli::command());
}

#[test]
fn every_command_but_four_prints_json_if_asked() {
    fn lacking(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            let path = format!("{path} {}", sub.get_name());
            if sub.has_subcommands() {
                lacking(sub, &path, found);
            } else if sub.get_arguments().all(|flag| flag.get_id() != "json") {
                found.push(path.trim().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    lacking(&lockgate_cli::command(), "", &mut found);
    // An export is JSON unless something else is asked for.
    assert_eq!(found, ["serve", "ledger export", "lead", "completions"]);
}

#[test]
fn help_is_a_command_too() {
    let sandbox = Sandbox::new();
    for command in ["send", "queue create"] {
        let help = sandbox.run(&format!("help {command}")).ok();
        assert_eq!(help, sandbox.run(&format!("{command} --help")).ok());
    }
}

#[test]
fn wrong_usage_exits_with_2_and_says_what_is_wrong() {
    let sandbox = Sandbox::new();
    for (arguments, says) in [
        ("", "Usage: lockgate"),
        ("frobnicate", "unrecognized subcommand 'frobnicate'"),
        ("send", "<QUEUE>"),
        ("send q --delay 5 x", "\"5\" is no duration: write 5s"),
        (
            "send q --header x body",
            "\"x\" has no name and value: write NAME=VALUE",
        ),
        ("receive q --ack --nack", "cannot be used with"),
        (
            "queue create q --lease 13h",
            "lease must be a time from 0s to 12h, not 13h",
        ),
        (
            "queue set q --lease 13",
            "lease must be a time from 0s to 12h, not 13: write 13s",
        ),
        (
            "receive q --lease 13h",
            "\"13h\" is too long: a lease lasts up to 12h",
        ),
        (
            "extend q --lease 13h r",
            "\"13h\" is too long: a lease lasts up to 12h",
        ),
        (
            "queue set q --quota-bytes 1000",
            "quota_bytes must be a size from 1B to 1048576TiB, not 1000: write 1000B",
        ),
        ("bench --size 1000", "\"1000\" is no size: write 1000B"),
        ("receive q --max 0", "0 is not in 1.."),
        (
            "reschedule q 00000001-0000-8000-8000-00000000a001",
            "<--delay <TIME>|--at <INSTANT>>",
        ),
        ("transact q x", "<--ack <RECEIPT>|--file <FILE>>"),
        ("restore b", "<--data <DIR>|--postgres-shard <NAME>>"),
        ("queue create q --attempts-max 0", "a number from 1 to 1000"),
        (
            "serve --listen nowhere",
            "--listen: \"nowhere\" is no address",
        ),
        ("serve --listen 0.0.0.0:0", "--allow-remote"),
        ("serve --idle-timeout 0s", "\"0s\" is less than 1s"),
        ("serve --stall-timeout 10ms", "is less than 1s"),
        ("serve --body-max 1B", "is less than 1KiB"),
        (
            "serve --postgres postgres://a --data d",
            "--postgres and --data are both given",
        ),
        ("send q -H a=1 -H a=2 x", "the header a is given twice"),
        (
            "queue create q --tag x=1 --tag x=2",
            "the tag x is given twice",
        ),
        ("dlq drop q", "--all"),
        ("queue list --endpoint ftp://a", "is no endpoint"),
        (
            "queue list --endpoint http://a:99999",
            "a port is a number up to 65535",
        ),
        ("bench --batch 11", "11 is not in 1..=10"),
        ("bench --size 2MiB", "\"2MiB\" is not from 1B to 1MiB"),
        (
            "send q --delay 3000001d x",
            "\"3000001d\" is too long: a delay lasts up to 3000000d",
        ),
        ("nack q --delay 367d r", "lasts up to 366d"),
        ("receive q --lease 0s", "a lease lasts 1ms to 12h, not 0s"),
        (
            "serve --body-max 1000",
            "--body-max: \"1000\" is no size: write 1000B",
        ),
        (
            "send a/b x",
            "\"a/b\" is no queue name: write 1 to 80 letters",
        ),
        (
            "bench --size 200KiB",
            "10 messages of 200KiB are more than the 1MiB that one call takes",
        ),
        ("bench --time 0s", "\"0s\" is not from 1s to 1h"),
        ("bench --time 10", "\"10\" is no duration: write 10s"),
        ("bench --callers 1001", "1001 is not in 1..=1000"),
        ("completions tcsh", "invalid value 'tcsh'"),
    ] {
        let error = sandbox.run(arguments).fails_with(2);
        assert!(
            error.contains(says),
            "`lockgate {arguments}` said:\n{error}"
        );
    }
}

#[test]
fn a_missing_server_is_a_code_of_its_own() {
    let sandbox = Sandbox::new();
    // A port that was free a moment ago, and that nobody is given while its owner still holds it.
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = held.local_addr().unwrap().port();
    drop(held);
    let error = sandbox
        .run(&format!("queue list --endpoint http://127.0.0.1:{port}"))
        .fails_with(5);
    assert!(
        error.contains(&format!("no server at http://127.0.0.1:{port}")),
        "{error}"
    );
    assert!(error.contains("start one with `lockgate serve`"), "{error}");
}

#[test]
fn completions_know_the_commands() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = sandbox.run(&format!("completions {shell}")).ok();
        for word in ["receive", "allowed-host", "dead-letter"] {
            assert!(script.contains(word), "{shell} has no {word}");
        }
    }
}

#[test]
fn the_version_is_the_packages() {
    let version = Sandbox::new().run("--version").ok();
    assert_eq!(version, format!("lockgate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn colour_only_where_it_is_wanted() {
    let sandbox = Sandbox::new();
    let piped = sandbox
        .run("config check --config missing.toml")
        .fails_with(3);
    assert!(!piped.contains('\x1b'), "{piped:?}");
    let forced = sandbox
        .run("config check --config missing.toml --color always")
        .fails_with(3);
    assert!(forced.contains("\x1b[1;31merror:"), "{forced:?}");
}
