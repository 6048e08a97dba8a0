//! Where settings come from, seen through the program.

use serde_json::{Value, json};

use crate::support::Sandbox;

/// The setting's value and source as `config show --json` prints them.
fn shown(sandbox: &Sandbox, setting: &str, arguments: &str, env: &[(&str, &str)]) -> Value {
    let output = sandbox
        .command(&format!("config show --json {arguments}"))
        .envs(env.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = crate::support::json_lines(&String::from_utf8(output.stdout).unwrap());
    let line = lines.iter().find(|line| line["setting"] == setting);
    let line = line.unwrap_or_else(|| panic!("no setting {setting}"));
    json!([line["value"], line["source"], line["place"]])
}

/// Each place beats all after it.
#[test]
fn flag_beats_variable_beats_file_beats_default() {
    let sandbox = Sandbox::new();
    sandbox.write("lockgate.toml", "# comment\n\nlisten = \"127.0.0.1:3\"\n");
    let env = [("LOCKGATE_LISTEN", "127.0.0.1:2")];
    let show = |arguments, env: &[(&str, &str)]| shown(&sandbox, "listen", arguments, env);
    assert_eq!(
        show("--listen 127.0.0.1:1", &env),
        json!(["127.0.0.1:1", "flag", null])
    );
    assert_eq!(
        show("", &env),
        json!(["127.0.0.1:2", "env", "LOCKGATE_LISTEN"])
    );
    assert_eq!(
        show("", &[]),
        json!(["127.0.0.1:3", "file", "lockgate.toml:3"])
    );
    // An empty variable is as good as none.
    assert_eq!(
        show("", &[("LOCKGATE_LISTEN", "")]),
        json!(["127.0.0.1:3", "file", "lockgate.toml:3"])
    );
    assert_eq!(
        show("--config /dev/null", &[]),
        json!(["127.0.0.1:9324", "default", null])
    );
}

/// The file that is read: flag, variable, working directory, user's folder; only one of them.
#[test]
fn one_file_is_read() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.path().join("xdg/lockgate")).unwrap();
    sandbox.write(
        "xdg/lockgate/config.toml",
        "region = \"user\"\naccount = \"111111111111\"\n",
    );
    let place = |arguments, env: &[(&str, &str)]| {
        let [value, _, place] =
            [0, 1, 2].map(|i| shown(&sandbox, "region", arguments, env)[i].clone());
        format!("{} {}", value.as_str().unwrap(), place.as_str().unwrap())
    };
    let user = sandbox.path().join("xdg/lockgate/config.toml");
    assert_eq!(place("", &[]), format!("user {}:1", user.display()));
    sandbox.write("lockgate.toml", "\nregion = \"here\"\n");
    sandbox.write("variable.toml", "region = \"variable\"\n");
    sandbox.write("flag.toml", "region = \"flag\"\n");
    assert_eq!(place("", &[]), "here lockgate.toml:2");
    let env = [("LOCKGATE_CONFIG", "variable.toml")];
    assert_eq!(place("", &env), "variable variable.toml:1");
    assert_eq!(place("--config flag.toml", &env), "flag flag.toml:1");
    // Files are not mixed.
    assert_eq!(shown(&sandbox, "account", "", &[])[1], "default");
}

#[test]
fn lists_and_switches_can_be_written_everywhere() {
    let sandbox = Sandbox::new();
    let hosts = |arguments, env: &[(&str, &str)]| {
        shown(&sandbox, "allowed-host", arguments, env)[0].clone()
    };
    assert_eq!(
        hosts("--allowed-host a --allowed-host b", &[]),
        json!(["a", "b"])
    );
    assert_eq!(
        hosts("", &[("LOCKGATE_ALLOWED_HOST", "a, b")]),
        json!(["a", "b"])
    );
    let remote = |arguments| shown(&sandbox, "allow-remote", arguments, &[])[0].clone();
    assert_eq!(remote("--allow-remote"), json!(true));
    assert_eq!(remote("--allow-remote=false"), json!(false));
    sandbox.write(
        "lockgate.toml",
        "allowed_host = [\"c\"]\nallow_remote = true\nconnections_max = 1_000\n",
    );
    assert_eq!(hosts("", &[]), json!(["c"]));
    assert_eq!(remote(""), json!(true));
    assert_eq!(shown(&sandbox, "connections-max", "", &[])[0], json!(1000));
}

#[test]
fn every_problem_of_a_file_is_named_with_its_line_by_every_command() {
    let sandbox = Sandbox::new();
    sandbox.write("lockgate.toml", "listenn = \"x\"\n\nlog_format = \"xml\"\n");
    for command in ["config check", "config show", "serve", "queue list"] {
        let error = sandbox.run(command).fails_with(2);
        let expected = "lockgate.toml:1: unknown key \"listenn\", did you mean \"listen\"?";
        assert!(error.contains(expected), "{command}: {error}");
        assert!(
            error.contains("lockgate.toml:3: log_format: "),
            "{command}: {error}"
        );
    }
    sandbox.write("lockgate.toml", "log_format = \"text\"\n");
    let done = sandbox.run("config check");
    assert_eq!(
        (done.code, done.stderr.as_str()),
        (Some(0), "lockgate.toml: no problems\n")
    );
}

#[test]
fn a_variable_that_is_no_setting_is_only_worth_a_warning() {
    let sandbox = Sandbox::new();
    let output = sandbox
        .command("config check")
        .env("LOCKGATE_LISTN", "x")
        .output()
        .unwrap();
    assert!(output.status.success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("warning: the variable LOCKGATE_LISTN is not"),
        "{stderr}"
    );
}

#[test]
fn a_table_in_a_pipe_is_tab_separated() {
    let sandbox = Sandbox::new();
    let first = sandbox.run("config show --region x").ok();
    assert!(
        first.lines().any(|line| line == "region\tx\tflag"),
        "{first}"
    );
}

#[test]
fn a_program_reads_all_problems_at_once() {
    let sandbox = Sandbox::new();
    let check = |code: i32| {
        let done = sandbox.run("config check --json");
        assert_eq!(done.code, Some(code), "{done:?}");
        crate::support::json_lines(&done.stdout).remove(0)
    };
    let none = json!({"file": null, "queues": null, "warnings": [], "problems": []});
    assert_eq!(check(0), none);
    sandbox.write("lockgate.toml", "listenn = \"x\"\nregion = \"A\"\n");
    let found = check(2);
    assert_eq!(found["file"], "lockgate.toml");
    let problems = found["problems"].as_array().unwrap();
    let places: Vec<_> = problems
        .iter()
        .map(|one| &one.as_str().unwrap()[..16])
        .collect();
    assert_eq!(places, ["lockgate.toml:1:", "lockgate.toml:2:"]);
    sandbox.write("lockgate.toml", "queues = \"q.toml\"\n");
    sandbox.write(
        "q.toml",
        "[[queue]]\nname = \"a\"\nlease = \"13h\"\nlevel = \"ram\"\n",
    );
    let found = check(2);
    assert_eq!(found["queues"], "q.toml");
    assert_eq!(found["problems"].as_array().unwrap().len(), 2, "{found}");
}
