//! Licences, sources and duplicates of everything that is compiled, held against `deny.toml`.
//!
//! The same file serves `cargo deny`; this check reads the parts that matter here and needs nothing
//! but cargo, so it runs in every clone. Advisories are not checked: their database is a download.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail};
use toml::{Table, Value};

use crate::workspace::Workspace;

/// Checks the workspace.
pub(crate) fn run() -> Result<()> {
    let root = Workspace::root();
    let rules = Rules::parse(&std::fs::read_to_string(root.join("deny.toml"))?)?;
    let workspace = Workspace::load(&rules.targets)?;
    let problems = check(&workspace, &rules);
    if !problems.is_empty() {
        bail!("{} problems\n{}", problems.len(), problems.join("\n"));
    }
    println!("{} packages within deny.toml", workspace.packages.len());
    Ok(())
}

/// The parts of `deny.toml` that are read.
struct Rules {
    targets: Vec<String>,
    licenses: BTreeSet<String>,
    registries: BTreeSet<String>,
    banned: BTreeMap<String, String>,
    /// `name` or `name@version prefix` that may exist beside another version.
    skipped: Vec<String>,
}

impl Rules {
    fn parse(text: &str) -> Result<Self> {
        let table: Table = text.parse().context("deny.toml")?;
        let crates = |list: &str| -> Result<Vec<(String, String)>> {
            values(&table, "bans", list)?
                .iter()
                .map(|entry| {
                    let field = |name| entry.get(name).and_then(Value::as_str);
                    let name = field("crate")
                        .with_context(|| format!("deny.toml: bans.{list}: no crate"))?;
                    let reason = field("reason")
                        .with_context(|| format!("deny.toml: {name} has no reason"))?;
                    Ok((name.to_owned(), reason.to_owned()))
                })
                .collect()
        };
        Ok(Self {
            targets: texts(&table, "graph", "targets")?,
            licenses: texts(&table, "licenses", "allow")?.into_iter().collect(),
            registries: texts(&table, "sources", "allow-registry")?
                .into_iter()
                .collect(),
            banned: crates("deny")?.into_iter().collect(),
            skipped: crates("skip")?.into_iter().map(|(name, _)| name).collect(),
        })
    }
}

/// Every package that breaks a rule, one line each.
fn check(workspace: &Workspace, rules: &Rules) -> Vec<String> {
    let mut problems = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in &workspace.packages {
        let named = format!("{} {}", package.name, package.version);
        if !is_allowed(&package.license, &rules.licenses) {
            let license = &package.license;
            problems.push(format!(
                "{named}: licence `{license}` is not covered by licenses.allow: replace the crate, or \
                 allow the licence if it asks no more than a notice"
            ));
        }
        if let Some(source) = &package.source {
            let registry = source.strip_prefix("registry+").unwrap_or_default();
            if !rules.registries.contains(registry) {
                problems.push(format!(
                    "{named}: comes from {source}, not from sources.allow-registry"
                ));
            }
        }
        if let Some(reason) = rules.banned.get(&package.name) {
            problems.push(format!("{named}: banned: {reason}"));
        }
        versions
            .entry(&package.name)
            .or_default()
            .insert(&package.version);
    }
    for (name, versions) in &versions {
        let counted: Vec<&str> = versions
            .iter()
            .filter(|version| !is_skipped(name, version, &rules.skipped))
            .copied()
            .collect();
        if counted.len() > 1 {
            problems.push(format!(
                "{name}: versions {} at once: align them (`cargo tree --invert {name}` shows who wants \
                 which), or list one under bans.skip with the reason",
                counted.join(" and ")
            ));
        }
    }
    for entry in &rules.skipped {
        let name = entry.split('@').next().unwrap_or(entry);
        let listed = versions.get(name).is_some_and(|versions| {
            versions.len() > 1
                && versions
                    .iter()
                    .any(|version| is_skipped(name, version, std::slice::from_ref(entry)))
        });
        if !listed {
            problems.push(format!(
                "bans.skip: {entry} is not needed any more: remove it"
            ));
        }
    }
    problems
}

fn is_skipped(name: &str, version: &str, skipped: &[String]) -> bool {
    skipped.iter().any(|entry| match entry.split_once('@') {
        Some((of, prefix)) => {
            let rest = version.strip_prefix(prefix);
            of == name && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        }
        None => entry == name,
    })
}

/// Whether an SPDX expression can be met with the allowed licences alone.
///
/// `AND` binds tighter than `OR`, as SPDX has it; the old `A/B` means `A OR B`. A licence with an
/// exception must be allowed as a whole, since an exception may take as well as give.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words: Vec<&str> = spaced.split_whitespace().rev().collect();
    let result = either(&mut words, allowed);
    result && words.is_empty()
}

fn either(words: &mut Vec<&str>, allowed: &BTreeSet<String>) -> bool {
    let mut result = both(words, allowed);
    while words.pop_if(|word| *word == "OR").is_some() {
        result |= both(words, allowed);
    }
    result
}

fn both(words: &mut Vec<&str>, allowed: &BTreeSet<String>) -> bool {
    let mut result = one(words, allowed);
    while words.pop_if(|word| *word == "AND").is_some() {
        result &= one(words, allowed);
    }
    result
}

fn one(words: &mut Vec<&str>, allowed: &BTreeSet<String>) -> bool {
    match words.pop() {
        Some("(") => {
            let result = either(words, allowed);
            words.pop() == Some(")") && result
        }
        Some(license) if words.pop_if(|word| *word == "WITH").is_some() => {
            let exception = words.pop().unwrap_or_default();
            allowed.contains(&format!("{license} WITH {exception}"))
        }
        Some(license) => allowed.contains(license),
        None => false,
    }
}

fn values<'a>(table: &'a Table, section: &str, list: &str) -> Result<&'a Vec<Value>> {
    let value = table.get(section).and_then(|section| section.get(list));
    let list = value.and_then(Value::as_array);
    list.with_context(|| format!("deny.toml: [{section}] has no such list"))
}

fn texts(table: &Table, section: &str, list: &str) -> Result<Vec<String>> {
    let of = || format!("deny.toml: {section}.{list} holds something else than texts");
    values(table, section, list)?
        .iter()
        .map(|value| Ok(value.as_str().with_context(of)?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Package;

    const RULES: &str = r#"
        [graph]
        targets = ["x86_64-unknown-linux-gnu"]
        [licenses]
        allow = ["MIT", "Apache-2.0", "Unicode-3.0"]
        [bans]
        deny = [{ crate = "openssl-sys", reason = "use rustls" }]
        skip = [{ crate = "syn@2", reason = "compile time" }]
        [sources]
        allow-registry = ["https://index"]
    "#;

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            license: "MIT OR Apache-2.0".into(),
            source: Some("registry+https://index".into()),
            ..Package::default()
        }
    }

    fn problems(mut more: Vec<Package>) -> Vec<String> {
        more.extend([
            package("syn", "2.0.1"),
            package("syn", "3.0.9"),
            package("bytes", "1.0.0"),
        ]);
        let workspace = Workspace {
            packages: more,
            ..Workspace::default()
        };
        check(&workspace, &Rules::parse(RULES).unwrap())
    }

    #[track_caller]
    fn caught(package: Package, text: &str) {
        let problems = problems(vec![package]);
        assert!(
            problems.len() == 1 && problems[0].contains(text),
            "{problems:?}"
        );
    }

    #[test]
    fn a_clean_graph_passes() {
        assert_eq!(problems(vec![]), Vec::<String>::new());
    }

    #[test]
    fn a_licence_outside_the_list_is_caught() {
        caught(
            Package {
                license: "GPL-3.0".into(),
                ..package("a", "1.0.0")
            },
            "GPL-3.0",
        );
        caught(
            Package {
                license: String::new(),
                ..package("a", "1.0.0")
            },
            "licence",
        );
    }

    #[test]
    fn another_source_is_caught() {
        caught(
            Package {
                source: Some("git+https://x".into()),
                ..package("a", "1.0.0")
            },
            "git+https",
        );
    }

    #[test]
    fn a_banned_crate_is_caught() {
        caught(package("openssl-sys", "0.9.0"), "use rustls");
    }

    #[test]
    fn a_second_version_is_caught() {
        caught(package("bytes", "0.5.0"), "0.5.0 and 1.0.0");
        // Of three versions only the one that is listed is left out.
        caught(package("syn", "1.0.0"), "1.0.0 and 3.0.9");
    }

    #[test]
    fn an_exemption_that_is_not_needed_is_caught() {
        let workspace = Workspace {
            packages: vec![package("syn", "3.0.9")],
            ..Workspace::default()
        };
        let problems = check(&workspace, &Rules::parse(RULES).unwrap());
        assert!(problems[0].contains("not needed any more"), "{problems:?}");
    }

    #[test]
    fn expressions_are_read_as_spdx_has_them() {
        let allowed = Rules::parse(RULES).unwrap().licenses;
        for (expression, expected) in [
            ("MIT", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("MIT OR GPL-3.0 AND BSD-2-Clause", true),
            ("(MIT OR GPL-3.0) AND BSD-2-Clause", false),
            ("Apache-2.0 WITH LLVM-exception", false),
            ("Apache-2.0 WITH LLVM-exception OR MIT", true),
            ("MIT OR", true), // what is missing adds nothing
            ("(MIT", false),
            ("MIT MIT", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
        }
    }
}
