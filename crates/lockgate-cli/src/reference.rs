//! `docs/cli.md`, made from the definitions it documents.

use std::fmt::Write as _;

use clap::Command;

use crate::settings::table::SETTINGS;

/// Renders `docs/cli.md`: every command with its full help, and the table of settings.
#[must_use]
pub fn reference() -> String {
    let mut page = "\
# The command line

This page is made from the program's own definitions; a test keeps it true. To renew it:
`UPDATE_SNAPSHOTS=1 cargo test -p lockgate-cli`.

"
    .to_owned();
    let mut root = crate::command().term_width(100);
    root.build();
    section(&mut page, &root, &mut Vec::new());
    settings(&mut page);
    page
}

fn section(page: &mut String, command: &Command, path: &mut Vec<String>) {
    path.push(command.get_name().to_owned());
    let help = command
        .clone()
        .term_width(100)
        .render_long_help()
        .to_string();
    let _ = writeln!(page, "## `{}`\n\n```text", path.join(" "));
    for line in help.trim_end().lines() {
        let _ = writeln!(page, "{}", line.trim_end());
    }
    page.push_str("```\n\n");
    for sub in command.get_subcommands() {
        section(page, sub, path);
    }
    path.pop();
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
