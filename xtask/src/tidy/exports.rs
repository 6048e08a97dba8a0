//! The rule on what the facade exports.

use std::collections::BTreeSet;

use super::Problems;
use crate::workspace::Workspace;

const FACADE: &str = "crates/lockgate/src/";

/// Types of the standard library that signatures name.
const STANDARD: &[&str] = &[
    "Arc",
    "AsRef",
    "Box",
    "Debug",
    "Duration",
    "NonZeroU32",
    "FnOnce",
    "Future",
    "Into",
    "IntoFuture",
    "IntoIterator",
    "Item",
    "Iterator",
    "Option",
    "Output",
    "Path",
    "Read",
    "Result",
    "Self",
    "Send",
    "String",
    "Sync",
    "Vec",
    "Write",
];

/// Every type that a public function of the facade names can be named by who uses the facade.
pub(super) fn facade_exports(workspace: &Workspace) -> Problems {
    let Some(library) = workspace.files.get(&format!("{FACADE}lib.rs")) else {
        return Vec::new();
    };
    let exports = library.split("pub use ").skip(1);
    let exported: BTreeSet<&str> = exports
        .flat_map(|rest| names(rest.split(';').next().unwrap_or_default()))
        .chain(STANDARD.iter().copied())
        .collect();
    let sources = workspace
        .files
        .iter()
        .filter(|(path, _)| path.starts_with(FACADE));
    let mut problems = Vec::new();
    for (path, text) in sources {
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
        for signature in code.split("\n    pub ").skip(1) {
            let end = signature.find(['{', ';']).unwrap_or(signature.len());
            let signature = &signature[..end];
            if !signature
                .split('(')
                .next()
                .is_some_and(|head| head.contains("fn "))
            {
                continue;
            }
            let missing = names(signature).find(|name| !exported.contains(name));
            problems.extend(missing.map(|name| {
                let function = signature.split('(').next().unwrap_or_default();
                format!("{path}: `pub {function}` names {name}: export it in {FACADE}lib.rs")
            }));
        }
    }
    problems
}

/// Names of types: a capital letter, then more letters. One letter alone is a parameter.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_alphanumeric() && character != '_')
        .filter(|word| word.len() > 1 && word.starts_with(char::is_uppercase))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::{assert_caught, tree};

    #[test]
    fn a_type_that_is_not_exported_is_caught() {
        let library = "pub use a::{\n    Known, One as Other,\n};\n";
        let good = "impl X {\n    pub async fn f(&self, k: Known) -> Result<Other, ()> {}\n}\n";
        let bad = "impl X {\n    pub fn g<T>(&self) -> Vec<Hidden> {}\n    pub(crate) fn h(_: Own) {}\n}\n";
        let tree_of = |source| {
            tree([
                ("crates/lockgate/src/lib.rs", library),
                ("crates/lockgate/src/x.rs", source),
            ])
        };
        assert!(facade_exports(&tree_of(good)).is_empty());
        assert_caught(&facade_exports(&tree_of(bad)), &["x.rs", "fn g", "Hidden"]);
    }
}
