//! House rules as checks: what a reviewer would have to say twice, a machine says at once.
//!
//! Each rule is a function from the tree to sentences that say what is wrong and what to do. To add
//! one, write it with a test that plants a fault, and list it in [`RULES`].

use anyhow::{Result, bail};

use crate::workspace::Workspace;

mod crates;
mod documents;
mod exports;
mod sources;

/// What a rule finds: one sentence a problem, the place first.
type Problems = Vec<String>;

type Rule = fn(&Workspace) -> Problems;

const RULES: [(&str, Rule); 15] = [
    ("files can be read in one sitting", sources::long_files),
    ("nothing is left for later", sources::leftovers),
    ("every source file is compiled", sources::dead_files),
    ("modules know only what they may", sources::rooms),
    ("scripts can be run", sources::scripts),
    (
        "a crate's folder is named as the crate",
        crates::folder_names,
    ),
    ("every crate takes the workspace's lints", crates::lints),
    ("every library shows how it is used", crates::examples),
    (
        "every dependency says why it is there",
        crates::dependency_reasons,
    ),
    ("crates depend downwards only", crates::layers),
    (
        "the facade exports the types that its functions name",
        exports::facade_exports,
    ),
    ("links in documents lead somewhere", documents::links),
    ("documents name crates that exist", documents::crate_names),
    ("documents name tests that exist", documents::test_names),
    (
        "every rule of semantics.md has its tests",
        documents::tested_rules,
    ),
];

/// Checks the workspace.
pub(crate) fn run() -> Result<()> {
    let workspace = Workspace::load(&["x86_64-unknown-linux-gnu".to_owned()])?;
    let mut found = 0;
    for (rule, check) in RULES {
        let problems = check(&workspace);
        if problems.is_empty() {
            continue;
        }
        println!("{rule}:");
        for problem in &problems {
            println!("  {problem}");
        }
        found += problems.len();
    }
    if found > 0 {
        bail!("{found} problems");
    }
    println!(
        "{} files, {} rules, no problem",
        workspace.files.len(),
        RULES.len()
    );
    Ok(())
}

/// A tree made of the given files.
#[cfg(test)]
fn tree<const N: usize>(files: [(&str, &str); N]) -> Workspace {
    Workspace {
        files: files
            .map(|(path, text)| (path.to_owned(), text.to_owned()))
            .into(),
        ..Workspace::default()
    }
}

/// Exactly one problem, which contains every one of the texts.
#[cfg(test)]
#[track_caller]
fn assert_caught(problems: &Problems, texts: &[&str]) {
    let caught = problems.len() == 1 && texts.iter().all(|text| problems[0].contains(text));
    assert!(caught, "{problems:?}");
}
