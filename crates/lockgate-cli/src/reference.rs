//! `docs/cli.md` and `docs/settings.md`, made from the definitions they document.

use std::fmt::Write as _;

use clap::{Arg, Command};
use lockgate_machine::QueueSettings;

use crate::settings::{Scope, table::SETTINGS};

/// Renders `docs/cli.md`: every command with its full help, and the table of settings.
#[must_use]
pub fn reference() -> String {
    let mut page = "\
# The command line

This page is made from the program's own definitions; a test keeps it true. To renew it:
`UPDATE_SNAPSHOTS=1 cargo test -p lockgate-cli`. The options that all commands have that talk to a server stand
[once, at the end](#options-of-all-commands-that-talk-to-a-server).

"
    .to_owned();
    let mut root = crate::command().term_width(100);
    root.build();
    let shared = section(&mut page, &root, &mut Vec::new());
    options(&mut page, &shared);
    settings(&mut page);
    page
}

/// Renders `docs/settings.md`: every setting of a queue.
#[must_use]
pub fn queue_settings() -> String {
    let mut page = "\
# The settings of a queue

This page is made from the table of settings in the program; a test keeps it true. To renew it:
`UPDATE_SNAPSHOTS=1 cargo test -p lockgate-cli`.

A setting has one name. `lockgate queue create` and `queue set` take it as a flag (`--key-policy park`), a file of queues as a
key (`key_policy = \"park\"`), `/api/v1` and `lockgate dump` as a field of JSON. There a time ends in `_ms` and is a number of
milliseconds, a size is a number of bytes, and no value is `null`; everywhere else times and sizes have a unit (`90s`, `1h30m`,
`64MiB`), and no value is `none`. What no attribute of SQS sets has a tag ([sqs.md](sqs.md#beyond-sqs)).

A time of `forever` is 9007199254740991 there, and said when the queue is made. It needs a log in a folder, beside which is an
index on disk ([semantics.md](semantics.md#deduplication)).

Whether a queue is *keyed* is no setting: its name says so (`.fifo`), and it is fixed when the queue is made. Defaults are those
of queues made over HTTP; in the library `key_profile` is `strict`.

| setting | values | default | SQS attribute, or tag | meaning |
|---|---|---|---|---|
"
    .to_owned();
    let defaults = QueueSettings::over_http(true);
    for setting in lockgate_machine::SETTINGS {
        let sqs = match setting.sqs {
            Some(attribute) => attribute.to_owned(),
            None => format!("`lockgate:{}`", setting.flag_name()),
        };
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {sqs} | {} |",
            setting.name,
            setting.values(),
            setting.show(&setting.get(&defaults)),
            setting.about(),
        );
    }
    page
}

/// Prints a command and those below it, without the options that many have; those options.
fn section(page: &mut String, command: &Command, path: &mut Vec<String>) -> Vec<Arg> {
    path.push(command.get_name().to_owned());
    let is_root = path.len() == 1;
    // `lockgate config` takes the flags of every other command.
    let takes_all = path.get(1).is_some_and(|name| name == "config");
    let is_shared = |arg: &Arg| {
        let id = arg.get_id().as_str();
        let setting = SETTINGS.iter().find(|setting| setting.about().name == id);
        match id {
            "config" => true,
            "help" | "color" => !is_root,
            _ => setting.is_some_and(|setting| takes_all || setting.about().scope == Scope::Client),
        }
    };
    let mut shared: Vec<Arg> = (command.get_arguments().filter(|arg| is_shared(arg)))
        .filter(|arg| !takes_all && !matches!(arg.get_id().as_str(), "help" | "color"))
        .cloned()
        .collect();
    let help = command
        .clone()
        .term_width(100)
        .mut_args(|arg| {
            let hide = is_shared(&arg);
            arg.hide(hide)
        })
        .render_long_help()
        .to_string();
    let _ = writeln!(page, "## `{}`\n\n```text", path.join(" "));
    for line in help.trim_end().lines() {
        let _ = writeln!(page, "{}", line.trim_end());
    }
    page.push_str("```\n\n");
    let subs = command.get_subcommands();
    for sub in subs.filter(|sub| sub.get_name() != "help" && !sub.is_hide_set()) {
        for arg in section(page, sub, path) {
            if shared.iter().all(|known| known.get_id() != arg.get_id()) {
                shared.push(arg);
            }
        }
    }
    path.pop();
    shared
}

/// The options that the sections leave out.
fn options(page: &mut String, shared: &[Arg]) {
    let command = Command::new("options")
        .disable_help_flag(true)
        .help_template("{options}")
        .term_width(100)
        .args(shared.iter().map(|arg| arg.clone().help_heading("Options")));
    page.push_str(
        "## Options of all commands that talk to a server\n\n\
         `--config` is an option of `lockgate serve` too, `--color` and `--help` are options of every command, and\n\
         `lockgate config` takes the options of all commands.\n\n```text\n",
    );
    for line in (command.clone().render_long_help().to_string().trim_end()).lines() {
        let _ = writeln!(page, "{}", line.trim_end());
    }
    page.push_str("```\n\n");
}

fn settings(page: &mut String) {
    page.push_str(
        "## Settings\n\n\
         The first that is there wins: flag, variable, key in the configuration file, default.\n\
         Lists are a repeated flag, a comma-separated variable, an array in the file.\n\n\
         | flag | variable | key | default | for | meaning |\n|---|---|---|---|---|---|\n",
    );
    for setting in SETTINGS {
        let about = setting.about();
        let default = match about.default_text() {
            Some(default) => format!("`{default}`"),
            None => String::new(),
        };
        let _ = writeln!(
            page,
            "| `--{}` | `{}` | `{}` | {default} | {} | {} |",
            about.name,
            about.variable(),
            about.key(),
            about.scope,
            about.help,
        );
    }
}
