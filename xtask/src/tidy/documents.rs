//! Rules on documents: what they name must exist.

use std::collections::BTreeSet;

use super::Problems;
use crate::workspace::Workspace;

/// Words that look like a crate's name and are not one.
const NOT_CRATES: [&str; 4] = [
    "lockgate-data",
    // Headers of `lockgate forward`.
    "lockgate-group",
    "lockgate-id",
    "lockgate-key",
];

/// The rules that users read, and the tests that hold them.
const SEMANTICS: &str = "docs/semantics.md";
const RULE_TESTS: &str = "docs/internals/rules.md";

/// A relative link leads to a file or folder of the tree, and to a heading in it if it names one.
pub(super) fn links(workspace: &Workspace) -> Problems {
    let mut problems = Problems::new();
    for (path, text) in documents(workspace) {
        for (number, line) in prose(text) {
            for target in link_targets(line) {
                if target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let (file, heading) = target.split_once('#').unwrap_or((target, ""));
                let resolved = if file.is_empty() {
                    Some(path.to_owned())
                } else {
                    resolve(path, file)
                };
                let Some(resolved) = resolved.filter(|resolved| exists(workspace, resolved)) else {
                    problems.push(format!("{path}:{number}: {target}: there is no such file"));
                    continue;
                };
                let page = workspace.files.get(&resolved);
                if !heading.is_empty() && !page.is_some_and(|page| has_heading(page, heading)) {
                    problems.push(format!(
                        "{path}:{number}: {target}: {resolved} has no such heading"
                    ));
                }
            }
        }
    }
    problems
}

/// A `lockgate-something` in a document is a crate of the workspace.
pub(super) fn crate_names(workspace: &Workspace) -> Problems {
    let known: BTreeSet<&str> = workspace
        .members()
        .map(|member| member.name.as_str())
        .chain(NOT_CRATES)
        .collect();
    let mut problems = Problems::new();
    for (path, text) in documents(workspace) {
        for (number, line) in (1..).zip(text.lines()) {
            for name in names_in(line, "lockgate-") {
                if !known.contains(name) {
                    problems.push(format!("{path}:{number}: {name}: there is no such crate"));
                }
            }
        }
    }
    problems
}

/// `crates/x/tests/y.rs::name` in a document is a test, or another function, of that file.
pub(super) fn test_names(workspace: &Workspace) -> Problems {
    let mut problems = Problems::new();
    for (path, text) in documents(workspace) {
        for (number, line) in (1..).zip(text.lines()) {
            // Every second piece between backticks is code.
            for code in line.split('`').skip(1).step_by(2) {
                let Some((file, name)) = code.split_once("::") else {
                    continue;
                };
                let definition = match file.rsplit_once('.') {
                    Some((_, "rs")) => format!("fn {name}"),
                    Some((_, "py")) => format!("def {name}"),
                    _ => continue,
                };
                let is_defined = |source: &String| {
                    let mut rest = source.split(&definition).skip(1);
                    // A generic one names its types first.
                    rest.any(|rest| rest.starts_with(['(', '<']))
                };
                match workspace.files.get(file) {
                    None => {
                        problems.push(format!("{path}:{number}: {file}: there is no such file"));
                    }
                    Some(source) if !is_defined(source) => {
                        problems.push(format!("{path}:{number}: {file} has no `{definition}(..)`"));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    problems
}

/// Each `- **N.M**` of the semantics has a row `| N.M |` in the list of tests, and each row a rule.
pub(super) fn tested_rules(workspace: &Workspace) -> Problems {
    let numbers = |page: &str, before: &str, after: &str| -> BTreeSet<String> {
        let text = workspace.files.get(page).map_or("", String::as_str);
        let rows = text.lines().filter_map(|line| line.strip_prefix(before));
        rows.filter_map(|row| row.split_once(after))
            .map(|(number, _)| number.to_owned())
            .filter(|number| number.starts_with(|c: char| c.is_ascii_digit()))
            .collect()
    };
    let rules = numbers(SEMANTICS, "- **", "**");
    let tested = numbers(RULE_TESTS, "| ", " |");
    let untested = rules.difference(&tested);
    let gone = tested.difference(&rules);
    untested
        .map(|number| format!("{SEMANTICS}: {number}: name its tests in {RULE_TESTS}"))
        .chain(gone.map(|number| format!("{RULE_TESTS}: {number}: {SEMANTICS} has no such rule")))
        .collect()
}

fn documents(workspace: &Workspace) -> impl Iterator<Item = (&str, &str)> {
    let files = workspace
        .files
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()));
    files.filter(|(path, _)| path.ends_with(".md"))
}

/// Lines outside of code blocks, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The `target` of every `[text](target)`.
fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
}

/// `file` as seen from the folder of `document`, from the root; `None` if it leads out of the tree.
fn resolve(document: &str, file: &str) -> Option<String> {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." => _ = parts.pop()?,
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

fn exists(workspace: &Workspace, path: &str) -> bool {
    let inside = format!("{path}/");
    path.is_empty()
        || workspace.files.contains_key(path)
        || workspace.files.keys().any(|file| file.starts_with(&inside))
}

/// Whether a page has a heading that a link with this fragment finds.
fn has_heading(page: &str, fragment: &str) -> bool {
    prose(page).any(|(_, line)| {
        let heading = line.trim_start_matches('#');
        heading.len() < line.len() && slug(heading) == fragment
    })
}

/// A heading as a fragment, the way forges make it.
fn slug(heading: &str) -> String {
    let kept = heading
        .trim()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| {
        if c == ' ' {
            '-'
        } else {
            c.to_ascii_lowercase()
        }
    })
    .collect()
}

/// Words of letters, digits and `-` that begin with `prefix` and stand alone.
fn names_in<'a>(line: &'a str, prefix: &str) -> impl Iterator<Item = &'a str> {
    let words = line
        .split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '/' | '.' | ':'));
    words
        .map(|word| word.trim_end_matches(['.', ':', '-', '/', ',']))
        .filter(move |word| word.starts_with(prefix))
        .filter(|word| !word.contains(['/', '.', ':', '_']))
}

#[cfg(test)]
mod tests {
    use super::super::{assert_caught, tree};
    use super::*;
    use crate::workspace::Package;

    #[test]
    fn a_link_to_nowhere_is_caught() {
        let page =
            "[a](docs/there.md) [b](docs) [c](https://x/y.md)\n```\n[d](code)\n```\n[e](gone.md)";
        let problems = links(&tree([
            ("README.md", page),
            ("docs/there.md", "[up](../README.md)"),
        ]));
        assert_caught(&problems, &["README.md:5", "gone.md"]);
    }

    #[test]
    fn a_link_to_a_missing_heading_is_caught() {
        let page = "# Top\n[a](#top) [b](other.md#the-log-s-form) [c](other.md#gone)";
        let other = "## The log: `s` form\n## The log-s form\n";
        assert_caught(
            &links(&tree([("a.md", page), ("other.md", other)])),
            &["a.md:2", "#gone"],
        );
    }

    #[test]
    fn a_crate_that_does_not_exist_is_caught() {
        let page =
            "`lockgate-core`, lockgate-log. ./lockgate-data\nand lockgate-gone, not lockgate_x.";
        let mut workspace = tree([("a.md", page)]);
        for name in ["lockgate-core", "lockgate-log"] {
            let folder = Some(format!("crates/{name}"));
            workspace.packages.push(Package {
                name: name.into(),
                folder,
                ..Package::default()
            });
        }
        assert_caught(&crate_names(&workspace), &["a.md:2", "lockgate-gone"]);
    }

    #[test]
    fn a_test_that_does_not_exist_is_caught() {
        let page = "`a/b.rs::there`, `a/b.py::there`, `Vec::new`\n`a/b.rs::gone`";
        let files = [
            ("a.md", page),
            ("a/b.rs", "fn there() {}"),
            ("a/b.py", "def there():"),
        ];
        assert_caught(&test_names(&tree(files)), &["a.md:2", "fn gone("]);
    }

    #[test]
    fn a_rule_without_tests_is_caught() {
        let rules = "- **1.1** One.\n- **1.2** Two.\n- **bold** no rule";
        let tests = "| rule | tests |\n|---|---|\n| 1.1 | `a.rs::b` |";
        assert_caught(
            &tested_rules(&tree([(SEMANTICS, rules), (RULE_TESTS, tests)])),
            &["1.2"],
        );
    }

    #[test]
    fn a_test_file_that_does_not_exist_is_caught() {
        assert_caught(
            &test_names(&tree([("a.md", "see `a/b.rs::gone`")])),
            &["a/b.rs"],
        );
    }
}
