//! Rules on manifests and on what depends on what.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Problems;
use crate::workspace::{Package, Workspace};

/// Below the engine nothing knows an async runtime: the machine and the log must run in a
/// simulation, in another runtime, or in none. Signatures need none either.
const WITHOUT_RUNTIME: [&str; 7] = [
    "lockgate-core",
    "lockgate-schedule",
    "lockgate-machine",
    "lockgate-log",
    "lockgate-index",
    "lockgate-sigv4",
    "lockgate-sim",
];
const RUNTIMES: [&str; 4] = ["tokio", "async-std", "smol", "futures-executor"];

/// The crates each crate may name, tests aside. ARCHITECTURE.md draws the same picture.
const LAYERS: [(&str, &[&str]); 29] = [
    ("lockgate-core", &[]),
    ("lockgate-machine", &["lockgate-core"]),
    ("lockgate-log", &["lockgate-core"]),
    ("lockgate-index", &[]),
    ("lockgate-schedule", &["lockgate-core"]),
    ("lockgate-postgres", &["lockgate-core", "lockgate-records"]),
    ("lockgate-mysql", &["lockgate-core", "lockgate-records"]),
    ("lockgate-redis", &["lockgate-core", "lockgate-records"]),
    ("lockgate-sigv4", &[]),
    ("lockgate-client", &["lockgate-core", "lockgate-sigv4"]),
    ("lockgate-consumer", &["lockgate-core"]),
    (
        "lockgate-coordination",
        &["lockgate-core", "lockgate-log", "lockgate-consumer"],
    ),
    (
        "lockgate-zookeeper",
        &["lockgate-core", "lockgate-coordination"],
    ),
    (
        "lockgate-sequencer",
        &[
            "lockgate-core",
            "lockgate-consumer",
            "lockgate-coordination",
        ],
    ),
    ("lockgate-sql", &["lockgate-core", "lockgate-consumer"]),
    ("lockgate-sqs", &["lockgate-core"]),
    (
        "lockgate-producer",
        &["lockgate-core", "lockgate-log", "lockgate-consumer"],
    ),
    (
        "lockgate-conformance",
        &[
            "lockgate-core",
            "lockgate-machine",
            "lockgate-engine",
            "lockgate-sim",
            "lockgate-consumer",
            "lockgate-coordination",
        ],
    ),
    ("lockgate-records", &["lockgate-core"]),
    ("lockgate-sim", &["lockgate-core"]),
    (
        "lockgate-engine",
        &[
            "lockgate-core",
            "lockgate-machine",
            "lockgate-log",
            "lockgate-index",
            "lockgate-schedule",
        ],
    ),
    (
        "lockgate",
        &[
            "lockgate-core",
            "lockgate-machine",
            "lockgate-log",
            "lockgate-engine",
            "lockgate-postgres",
            "lockgate-mysql",
            "lockgate-redis",
            "lockgate-client",
            "lockgate-consumer",
            "lockgate-coordination",
            "lockgate-producer",
            "lockgate-sequencer",
            "lockgate-sql",
            "lockgate-sqs",
            "lockgate-zookeeper",
        ],
    ),
    (
        "lockgate-inspect",
        &[
            "lockgate-core",
            "lockgate-machine",
            "lockgate-log",
            "lockgate-engine",
            "lockgate-postgres",
        ],
    ),
    (
        "lockgate-server",
        &[
            "lockgate-core",
            "lockgate-machine",
            "lockgate-engine",
            "lockgate-sigv4",
        ],
    ),
    (
        "lockgate-bench",
        &[
            "lockgate-core",
            "lockgate-machine",
            "lockgate-log",
            "lockgate-engine",
            "lockgate",
            "lockgate-server",
            "lockgate-client",
            "lockgate-consumer",
            "lockgate-producer",
            "lockgate-coordination",
            "lockgate-sequencer",
            "lockgate-mysql",
            "lockgate-postgres",
            "lockgate-redis",
            "lockgate-zookeeper",
        ],
    ),
    (
        "lockgate-cli",
        &[
            "lockgate-core",
            "lockgate-machine",
            "lockgate-log",
            "lockgate-engine",
            "lockgate-server",
            "lockgate-client",
            "lockgate-consumer",
            "lockgate-coordination",
            "lockgate-producer",
            "lockgate-inspect",
            "lockgate-mysql",
            "lockgate-postgres",
            "lockgate-redis",
            "lockgate-schedule",
            "lockgate-sequencer",
            "lockgate-zookeeper",
            "lockgate",
        ],
    ),
    (
        "lockgate-fuzz",
        &[
            "lockgate-core",
            "lockgate-machine",
            "lockgate-log",
            "lockgate-engine",
            "lockgate-consumer",
            "lockgate-coordination",
            "lockgate-producer",
            "lockgate-schedule",
            "lockgate-sequencer",
            "lockgate-server",
            "lockgate-client",
            "lockgate-cli",
            "lockgate-postgres",
            "lockgate-sim",
            "lockgate-zookeeper",
        ],
    ),
    ("lockgate-torture", &[]),
    ("xtask", &[]),
];

pub(super) fn folder_names(workspace: &Workspace) -> Problems {
    let mut problems = Problems::new();
    for Package { name, folder, .. } in workspace.members() {
        let folder = folder.as_deref().unwrap_or_default();
        let expected = if name == "xtask" {
            name.clone()
        } else {
            format!("crates/{name}")
        };
        if folder != expected {
            problems.push(format!(
                "{folder}: holds crate {name}: move it to {expected}"
            ));
        }
    }
    problems
}

pub(super) fn lints(workspace: &Workspace) -> Problems {
    let mut problems = Problems::new();
    for package in workspace.members() {
        let path = format!(
            "{}/Cargo.toml",
            package.folder.as_deref().unwrap_or_default()
        );
        let manifest = workspace.files.get(&path).map_or("", String::as_str);
        if !manifest.contains("[lints]\nworkspace = true") {
            problems.push(format!(
                "{path}: no `[lints] workspace = true`: unsafe code would pass here"
            ));
        }
    }
    problems
}

/// The first page of a library shows how it is used, in code that is compiled and run.
pub(super) fn examples(workspace: &Workspace) -> Problems {
    let mut problems = Problems::new();
    for package in workspace.members() {
        let path = format!(
            "{}/src/lib.rs",
            package.folder.as_deref().unwrap_or_default()
        );
        let Some(text) = workspace.files.get(&path) else {
            continue;
        };
        let page = text.lines().filter_map(|line| line.strip_prefix("//!"));
        let fences = page.map(str::trim).filter(|line| line.starts_with("```"));
        // Every second fence opens a block; one without a word is compiled and run.
        if !fences.step_by(2).any(|fence| fence == "```") {
            problems.push(format!(
                "{path}: no example in the crate's documentation that is run"
            ));
        }
    }
    problems
}

pub(super) fn dependency_reasons(workspace: &Workspace) -> Problems {
    let manifest = match workspace.file("Cargo.toml") {
        Ok(manifest) => manifest,
        Err(error) => return vec![error.to_string()],
    };
    let section = manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1);
    section
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .filter(|line| !line.contains("path = ") && !line.contains("# "))
        .map(|line| {
            let name = line.split_whitespace().next().unwrap_or_default();
            format!("Cargo.toml: {name}: say in a comment on its line why it is needed")
        })
        .collect()
}

pub(super) fn layers(workspace: &Workspace) -> Problems {
    let mut problems = Problems::new();
    let members: BTreeSet<&str> = workspace
        .members()
        .map(|member| member.name.as_str())
        .collect();
    let allowed: BTreeMap<&str, &[&str]> = LAYERS.into();
    for member in workspace.members() {
        let Some(allowed) = allowed.get(member.name.as_str()) else {
            let name = &member.name;
            problems.push(format!(
                "{name}: new here: give it its place in xtask's LAYERS and in ARCHITECTURE.md"
            ));
            continue;
        };
        for dependency in &member.dependencies {
            if members.contains(dependency.as_str()) && !allowed.contains(&dependency.as_str()) {
                let name = &member.name;
                problems.push(format!(
                    "{name}: may not depend on {dependency}: see ARCHITECTURE.md"
                ));
            }
        }
    }
    for name in WITHOUT_RUNTIME {
        for runtime in RUNTIMES {
            if let Some(path) = path_between(workspace, name, runtime) {
                problems.push(format!(
                    "{name}: depends on {runtime} ({path}): it must run in any runtime, or in none"
                ));
            }
        }
    }
    problems
}

/// How one package comes to depend on another, as `a > b > c`.
fn path_between(workspace: &Workspace, from: &str, to: &str) -> Option<String> {
    let mut dependencies: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in &workspace.packages {
        let of = dependencies.entry(&package.name).or_default();
        of.extend(package.dependencies.iter().map(String::as_str));
    }
    let mut seen = BTreeSet::from([from]);
    let mut paths = VecDeque::from([vec![from]]);
    while let Some(path) = paths.pop_front() {
        let last = *path.last()?;
        if last == to {
            return Some(path.join(" > "));
        }
        for next in dependencies.get(last).into_iter().flatten() {
            if seen.insert(next) {
                paths.push_back(path.iter().copied().chain([*next]).collect());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::{assert_caught, tree};
    use super::*;

    fn member(name: &str, dependencies: &[&str]) -> Package {
        Package {
            name: name.into(),
            folder: Some(format!("crates/{name}")),
            dependencies: dependencies.iter().map(|name| (*name).to_owned()).collect(),
            ..Package::default()
        }
    }

    fn graph(packages: Vec<Package>) -> Workspace {
        Workspace {
            packages,
            ..Workspace::default()
        }
    }

    #[test]
    fn a_crate_in_the_wrong_folder_is_caught() {
        let moved = Package {
            folder: Some("crates/log".into()),
            ..member("lockgate-log", &[])
        };
        assert_caught(
            &folder_names(&graph(vec![moved])),
            &["crates/log:", "crates/lockgate-log"],
        );
        assert!(folder_names(&graph(vec![member("lockgate-log", &[])])).is_empty());
    }

    #[test]
    fn a_crate_without_lints_is_caught() {
        let mut workspace = tree([
            ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n"),
            (
                "crates/b/Cargo.toml",
                "[package]\n\n[lints]\nworkspace = true\n",
            ),
        ]);
        workspace.packages = vec![member("a", &[]), member("b", &[])];
        assert_caught(&lints(&workspace), &["crates/a/Cargo.toml", "unsafe"]);
    }

    #[test]
    fn a_library_without_example_is_caught() {
        let mut workspace = tree([
            (
                "crates/a/src/lib.rs",
                "//! About.\n//! ```text\n//! x\n//! ```\n",
            ),
            (
                "crates/b/src/lib.rs",
                "//! About.\n//!\n//! ```\n//! let x = 1;\n//! ```\n",
            ),
        ]);
        workspace.packages = vec![
            member("a", &[]),
            member("b", &[]),
            member("no-library", &[]),
        ];
        assert_caught(&examples(&workspace), &["crates/a/src/lib.rs"]);
    }

    #[test]
    fn a_dependency_without_reason_is_caught() {
        let manifest = "[workspace.dependencies]\nown = { path = \"own\" }\n\ngood = \"1\" # needed\nbad = \"1\"\n[profile]\nx = 1\n";
        assert_caught(
            &dependency_reasons(&tree([("Cargo.toml", manifest)])),
            &["bad"],
        );
    }

    #[test]
    fn an_arrow_upwards_is_caught() {
        let problems = layers(&graph(vec![
            member("lockgate-core", &[]),
            member("lockgate-machine", &["lockgate-core"]),
            member("lockgate-log", &["lockgate-core", "lockgate-machine"]),
        ]));
        assert_caught(&problems, &["lockgate-log", "lockgate-machine"]);
    }

    #[test]
    fn a_crate_without_a_place_is_caught() {
        assert_caught(
            &layers(&graph(vec![member("lockgate-new", &[])])),
            &["lockgate-new", "LAYERS"],
        );
    }

    #[test]
    fn a_runtime_below_the_engine_is_caught() {
        let outside = |name: &str, dependencies: &[&str]| Package {
            folder: None,
            ..member(name, dependencies)
        };
        let problems = layers(&graph(vec![
            member("lockgate-log", &["helper"]),
            member("lockgate-engine", &["tokio"]),
            outside("helper", &["tokio"]),
            outside("tokio", &[]),
        ]));
        assert_caught(&problems, &["lockgate-log > helper > tokio"]);
    }
}
