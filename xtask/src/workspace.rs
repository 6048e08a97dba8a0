//! The workspace as cargo and git see it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// What the checks look at. Made from the real tree by [`Workspace::load`], by hand in tests.
#[derive(Default)]
pub(crate) struct Workspace {
    /// Every file that is, or could be, under version control, by path from the root; what is not
    /// UTF-8 is empty.
    pub(crate) files: BTreeMap<String, String>,
    /// Every package that any target of the workspace compiles.
    pub(crate) packages: Vec<Package>,
}

/// One package of the dependency graph.
#[derive(Clone, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// An SPDX expression; empty if it states none.
    pub(crate) license: String,
    /// Where cargo got it; `None` for crates of the workspace.
    pub(crate) source: Option<String>,
    /// Its folder from the root, for crates of the workspace.
    pub(crate) folder: Option<String>,
    /// Names of the packages it is compiled with, tests left out.
    pub(crate) dependencies: BTreeSet<String>,
}

impl Workspace {
    /// The folder of the workspace's `Cargo.toml`.
    pub(crate) fn root() -> PathBuf {
        let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
        xtask.parent().unwrap_or(xtask).to_owned()
    }

    /// Where cargo puts what it builds.
    pub(crate) fn target() -> PathBuf {
        let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        named.unwrap_or_else(|| Self::root().join("target"))
    }

    /// Reads the tree and asks cargo for the dependency graph of the given targets.
    pub(crate) fn load(targets: &[String]) -> Result<Self> {
        let mut packages = BTreeMap::new();
        for target in targets {
            let metadata = output(
                "cargo",
                &[
                    "metadata",
                    "--locked",
                    "--format-version=1",
                    "--filter-platform",
                    target,
                ],
            )?;
            let metadata =
                serde_json::from_slice(&metadata).context("cargo metadata is not JSON")?;
            read_packages(&metadata, &mut packages)?;
        }
        Ok(Self {
            files: read_files()?,
            packages: packages.into_values().collect(),
        })
    }

    /// A file that must be there.
    pub(crate) fn file(&self, path: &str) -> Result<&str> {
        let text = self
            .files
            .get(path)
            .with_context(|| format!("{path} is missing"))?;
        Ok(text)
    }

    /// The workspace's own crates.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .iter()
            .filter(|package| package.folder.is_some())
    }
}

fn read_files() -> Result<BTreeMap<String, String>> {
    let root = Workspace::root();
    let listed = output(
        "git",
        &[
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ],
    )?;
    let listed = String::from_utf8(listed).context("git ls-files: a path is not UTF-8")?;
    let mut files = BTreeMap::new();
    for path in listed.split_terminator('\0') {
        // A file deleted but not yet staged is listed and not there.
        if let Ok(bytes) = fs::read(root.join(path)) {
            files.insert(
                path.to_owned(),
                String::from_utf8(bytes).unwrap_or_default(),
            );
        }
    }
    Ok(files)
}

fn read_packages(metadata: &Value, packages: &mut BTreeMap<String, Package>) -> Result<()> {
    let root = format!("{}/", text(&metadata["workspace_root"])?);
    let mut by_id = BTreeMap::new();
    for package in list(&metadata["packages"])? {
        let source = package["source"].as_str().map(str::to_owned);
        let manifest = text(&package["manifest_path"])?;
        let folder = manifest
            .strip_prefix(&root)
            .and_then(|path| path.strip_suffix("/Cargo.toml"));
        by_id.insert(
            text(&package["id"])?,
            Package {
                name: text(&package["name"])?.to_owned(),
                version: text(&package["version"])?.to_owned(),
                license: package["license"].as_str().unwrap_or_default().to_owned(),
                folder: folder.filter(|_| source.is_none()).map(str::to_owned),
                source,
                dependencies: BTreeSet::new(),
            },
        );
    }
    let names: BTreeMap<&str, String> = by_id
        .iter()
        .map(|(id, package)| (*id, package.name.clone()))
        .collect();
    for node in list(&metadata["resolve"]["nodes"])? {
        let id = text(&node["id"])?;
        let package = by_id
            .get_mut(id)
            .with_context(|| format!("{id} is no package"))?;
        for dependency in list(&node["deps"])? {
            let kinds = list(&dependency["dep_kinds"])?;
            if kinds.iter().any(|kind| kind["kind"] != "dev") {
                package
                    .dependencies
                    .insert(names[text(&dependency["pkg"])?].clone());
            }
        }
        packages
            .entry(id.to_owned())
            .or_default()
            .clone_from(package);
    }
    Ok(())
}

fn output(program: &str, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(Workspace::root())
        .output()
        .with_context(|| format!("could not start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} {arguments:?} failed: {said}"
    );
    Ok(output.stdout)
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().context("cargo metadata: a text is missing")
}

fn list(value: &Value) -> Result<&[Value]> {
    let list = value
        .as_array()
        .context("cargo metadata: a list is missing")?;
    Ok(list)
}
