//! Rules on source files and scripts.

use std::collections::BTreeSet;

use super::Problems;
use crate::workspace::Workspace;

const LINES_MAX: usize = 1000;

/// What must not stay, and what to do instead. Split so that this file does not contain them.
const LEFTOVERS: [(&str, &str); 6] = [
    (concat!("todo", "!("), "write it"),
    (
        concat!("unimplemented", "!("),
        "write it, or make it an error the caller can see",
    ),
    (concat!("dbg", "!("), "remove it"),
    (concat!("FIX", "ME"), "fix it, or write an issue"),
    (concat!("XX", "X"), "fix it, or write an issue"),
    (
        concat!("#[ign", "ore"),
        "a test runs or does not exist; one that needs a service says NOT RUN",
    ),
];

/// Files, by how their paths begin, and the module that they may not name. What both APIs need stands in
/// neither.
const ROOMS: [(&str, &str); 6] = [
    ("crates/lockgate-server/src/api/", "sqs"),
    ("crates/lockgate-server/src/sqs/", "api"),
    ("crates/lockgate-server/src/http/health.rs", "sqs"),
    ("crates/lockgate-server/src/queue/", "sqs"),
    ("crates/lockgate-server/src/queue/", "api"),
    ("crates/lockgate-server/src/receipt.rs", "sqs"),
];

/// Scripts that documents tell people to run as they are.
const SCRIPTS: [&str; 4] = [
    ".ci/run",
    "examples/replay/run",
    "scripts/python",
    "scripts/test",
];

pub(super) fn long_files(workspace: &Workspace) -> Problems {
    sources(workspace)
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(path, lines)| {
            format!("{path}: {lines} lines, at most {LINES_MAX}: split it by meaning, not by size")
        })
        .collect()
}

pub(super) fn leftovers(workspace: &Workspace) -> Problems {
    let mut problems = Problems::new();
    for (path, text) in sources(workspace) {
        for (number, line) in (1..).zip(text.lines()) {
            for (leftover, remedy) in LEFTOVERS {
                if line.contains(leftover) {
                    problems.push(format!("{path}:{number}: {leftover}: {remedy}"));
                }
            }
        }
    }
    problems
}

pub(super) fn rooms(workspace: &Workspace) -> Problems {
    let mut problems = Problems::new();
    for (room, module) in ROOMS {
        let files = workspace.files.iter();
        for (path, text) in files.filter(|(path, _)| path.starts_with(room)) {
            for (number, line) in (1..).zip(text.lines()) {
                if names_module(line, module) {
                    problems.push(format!(
                        "{path}:{number}: names the module `{module}`: move what both need to a module of its own"
                    ));
                }
            }
        }
    }
    problems
}

/// Whether a line of code goes into a module or imports it: `sqs::`, `crate::sqs;`, or `sqs,` in a list.
fn names_module(line: &str, module: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    if line.trim_start().starts_with("//") {
        return false;
    }
    line.match_indices(module).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + module.len()..]);
        let imported = before.ends_with("crate::") || before.trim().is_empty();
        !before.ends_with(is_name)
            && (after.starts_with("::") || imported && !after.starts_with(is_name))
    })
}

/// A file that no `mod` names is not compiled, and nothing else would say so.
pub(super) fn dead_files(workspace: &Workspace) -> Problems {
    let mut problems = Problems::new();
    for path in workspace.files.keys().filter(|path| path.ends_with(".rs")) {
        let Some((folder, module)) = module_of(path) else {
            continue;
        };
        // `folder/module.rs` belongs to `folder.rs`, to `folder/mod.rs`, or to a root in `folder`.
        let parents = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
        let roots = workspace.files.keys().filter(|root| {
            root.rsplit_once('/').is_some_and(|(of, _)| of == folder) && is_root(root)
        });
        let declared = parents
            .iter()
            .chain(roots)
            .filter_map(|parent| workspace.files.get(parent))
            .any(|text| text.contains(&format!("mod {module};")));
        if !declared {
            problems.push(format!(
                "{path}: no `mod {module};` names it: it is not compiled; remove it"
            ));
        }
    }
    problems
}

pub(super) fn scripts(workspace: &Workspace) -> Problems {
    let mut problems = Problems::new();
    for path in SCRIPTS {
        if !workspace.files.contains_key(path) {
            problems.push(format!("{path}: missing, but documents and CI call it"));
        } else if !is_executable(path) {
            problems.push(format!(
                "{path}: not executable: `git update-index --chmod=+x {path}`"
            ));
        }
    }
    problems
}

fn sources(workspace: &Workspace) -> impl Iterator<Item = (&str, &str)> {
    let extensions: BTreeSet<&str> = BTreeSet::from(["rs", "py", "sh", "toml"]);
    let files = workspace
        .files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()));
    files.filter(move |(path, _)| {
        let extension = path.rsplit_once('.').map(|(_, extension)| extension);
        extension.is_some_and(|extension| extensions.contains(extension))
    })
}

/// Folder and name of a module's file; `None` for files that cargo finds by itself.
fn module_of(path: &str) -> Option<(&str, &str)> {
    let (folder, file) = path.strip_suffix(".rs")?.rsplit_once('/')?;
    if is_root(path) {
        return None;
    }
    if file == "mod" {
        return folder.rsplit_once('/');
    }
    Some((folder, file))
}

/// Whether cargo compiles a file without being told by another one.
fn is_root(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let (file, folder) = (parts.next(), parts.next());
    let of_folder = match folder {
        Some("tests" | "benches" | "examples") => !path.contains("/src/"),
        Some("bin") => true,
        _ => false,
    };
    of_folder || matches!(file, Some("lib.rs" | "main.rs" | "build.rs"))
}

#[cfg(unix)]
fn is_executable(path: &str) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(Workspace::root().join(path))
        .is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(_: &str) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::super::{assert_caught, tree};
    use super::*;

    #[test]
    fn a_long_file_is_caught() {
        let long = "x\n".repeat(LINES_MAX + 1);
        let fits = "x\n".repeat(LINES_MAX);
        assert_caught(
            &long_files(&tree([("a.rs", &long), ("b.rs", &fits)])),
            &["a.rs", "1001 lines"],
        );
    }

    #[test]
    fn a_leftover_is_caught() {
        for (leftover, _) in LEFTOVERS {
            let text = format!("fn a() {{\n{leftover}\n");
            assert_caught(
                &leftovers(&tree([("a.rs", &text), ("b.md", &text)])),
                &["a.rs:2", leftover],
            );
        }
    }

    #[test]
    fn a_file_that_nobody_compiles_is_caught() {
        let problems = dead_files(&tree([
            ("a/src/lib.rs", "mod used;\nmod folder;"),
            ("a/src/used.rs", "mod inner;"),
            ("a/src/used/inner.rs", ""),
            ("a/src/folder/mod.rs", "mod leaf;"),
            ("a/src/folder/leaf.rs", ""),
            ("a/src/bin/tool.rs", ""),
            ("a/tests/process.rs", "mod support;"),
            ("a/tests/support/mod.rs", ""),
            ("a/src/dead.rs", ""),
        ]));
        assert_caught(&problems, &["a/src/dead.rs", "not compiled"]);
    }

    #[test]
    fn a_module_that_names_one_it_may_not_know_is_caught() {
        let path = "crates/lockgate-server/src/api/mod.rs";
        for line in [
            "use crate::sqs::Receipts;",
            "use crate::sqs;",
            "    sqs::{self, Receipts},",
            "    sqs,",
            "fn a() -> sqs::Response {",
        ] {
            assert_caught(
                &rooms(&tree([
                    (path, line),
                    ("crates/lockgate-server/src/lib.rs", line),
                ])),
                &["src/api/mod.rs:1", "`sqs`"],
            );
        }
        for line in [
            "// As crate::sqs::a does.",
            "let sqs_arn = x.sqs;",
            "use crate::sqs_names;",
        ] {
            assert!(rooms(&tree([(path, line)])).is_empty(), "{line}");
        }
    }

    #[test]
    fn a_missing_script_is_caught() {
        let there = tree([
            (".ci/run", ""),
            ("examples/replay/run", ""),
            ("scripts/python", ""),
        ]);
        assert_caught(&scripts(&there), &["scripts/test", "missing"]);
    }
}
