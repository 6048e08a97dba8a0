//! The file of access keys: who may ask, and what for.

use std::path::{Path, PathBuf};

use lockgate_server::{AccessKey, FileBytes, FileKinds, Grant, Names, Secret, Verb, WatchedFiles};
use serde::Deserialize;
use tokio::task::spawn_blocking;

use crate::exit::{Exit, Failure};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Key>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    id: String,
    secret: Option<String>,
    secret_env: Option<String>,
    secret_file: Option<String>,
    #[serde(default)]
    grants: Vec<GrantEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantEntry {
    queues: Option<String>,
    records: Option<String>,
    ledgers: Option<String>,
    exchanges: Option<String>,
    verbs: Vec<String>,
}

/// Where access keys are.
#[derive(Debug)]
pub(crate) struct KeyFile {
    path: PathBuf,
    /// The file, and those of the secrets that it names.
    files: WatchedFiles,
}

impl KeyFile {
    /// Reads the keys.
    ///
    /// # Errors
    /// If the file cannot be read, others may read the secrets in it, or something in it is wrong.
    pub(crate) fn open(path: PathBuf) -> Result<(Self, Vec<AccessKey>), Failure> {
        let (files, keys) = read(&path, FileKinds::Any);
        Ok((Self { path, files }, keys?))
    }

    /// Waits until a file has changed, and reads the keys again.
    ///
    /// # Cancellation
    /// Dropping the future loses no change.
    pub(crate) async fn changed(&mut self) -> Result<Vec<AccessKey>, Failure> {
        // A copy: whoever drops this while it reads finds the change again.
        self.files.clone().changed().await;
        self.read_again().await
    }

    /// Reads the keys again, changed or not, on a thread that may block.
    ///
    /// # Errors
    /// As [`open`](Self::open), and if one of the files is no regular file any more: to open a pipe
    /// would wait for a writer.
    pub(crate) async fn read_again(&mut self) -> Result<Vec<AccessKey>, Failure> {
        let path = self.path.clone();
        let read = spawn_blocking(move || read(&path, FileKinds::Regular)).await;
        let (files, keys) = read.map_err(|error| Failure::from_error(Exit::Failed, error))?;
        self.files = files;
        keys
    }
}

/// The keys, and the files to watch, as they were before they were read.
fn read(path: &Path, kinds: FileKinds) -> (WatchedFiles, Result<Vec<AccessKey>, Failure>) {
    let mut files = WatchedFiles::new([path.to_owned()]);
    let keys = read_watched(path, kinds, &mut files).map_err(|failure| {
        failure.context(format!("reading the access keys in {}", path.display()))
    });
    (files, keys)
}

fn read_watched(
    path: &Path,
    kinds: FileKinds,
    files: &mut WatchedFiles,
) -> Result<Vec<AccessKey>, Failure> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let (text, is_private) = read_file(path, kinds)?;
    let wrong = |what| Failure::new(Exit::Usage, what);
    let file = parse(&text).map_err(wrong)?;
    let of_secrets = file.key.iter().filter_map(|key| key.secret_file.as_ref());
    files.also(of_secrets.map(|name| folder.join(name)));
    access_keys(file, folder, kinds, is_private).map_err(wrong)
}

fn parse(text: &str) -> Result<File, String> {
    toml::from_str(text).map_err(|error| {
        // The library shows the line with it, and the line may have a secret in it.
        let line = error.span().map_or(0, |span| span.start);
        let line = 1 + text.as_bytes()[..line.min(text.len())]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        format!("line {line}: {}", error.message())
    })
}

/// For the fuzzer: files and variables that a key names are left alone.
pub(crate) fn fuzz(text: &str) -> Result<(), String> {
    let mut file = parse(text)?;
    file.key
        .retain(|key| key.secret_file.is_none() && key.secret_env.is_none());
    access_keys(file, Path::new(""), FileKinds::Regular, true).map(drop)
}

fn access_keys(
    file: File,
    folder: &Path,
    kinds: FileKinds,
    is_private: bool,
) -> Result<Vec<AccessKey>, String> {
    if file.key.is_empty() {
        return Err("there is no [[key]] in it".to_owned());
    }
    file.key
        .into_iter()
        .map(|key| access_key(key, folder, kinds, is_private))
        .collect()
}

fn access_key(
    key: Key,
    folder: &Path,
    kinds: FileKinds,
    is_private: bool,
) -> Result<AccessKey, String> {
    let id = key.id;
    let secret = match (key.secret, key.secret_env, key.secret_file) {
        (Some(_), None, None) if !is_private => {
            return Err(format!(
                "key {id}: others may read the file that has its secret; chmod 600 it"
            ));
        }
        (Some(secret), None, None) => Secret::new(secret),
        (None, Some(name), None) => {
            Secret::new(std::env::var(&name).map_err(|_| format!("key {id}: ${name} is not set"))?)
        }
        (None, None, Some(name)) => {
            let path = folder.join(name);
            let (secret, is_private) =
                read_file(&path, kinds).map_err(|failure| format!("key {id}: {failure}"))?;
            if !is_private {
                let path = path.display();
                return Err(format!("key {id}: others may read {path}; chmod 600 it"));
            }
            Secret::new(secret.trim_end_matches(['\r', '\n']))
        }
        _ => {
            return Err(format!(
                "key {id}: exactly one of secret, secret_env and secret_file is needed"
            ));
        }
    };
    let grants = key.grants.into_iter().map(|grant| {
        let verbs = grant.verbs.iter().map(|word| {
            Verb::from_word(word).ok_or_else(|| {
                let known: Vec<&str> = Verb::ALL.iter().map(|verb| verb.as_str()).collect();
                format!(
                    "key {id}: {word:?} is no verb; there are {}",
                    known.join(", ")
                )
            })
        });
        let on = match (grant.queues, grant.records, grant.ledgers, grant.exchanges) {
            (Some(queues), None, None, None) => Names::Queues(queues),
            (None, Some(records), None, None) => Names::Records(records),
            (None, None, Some(ledgers), None) => Names::Ledgers(ledgers),
            (None, None, None, Some(exchanges)) => Names::Exchanges(exchanges),
            _ => {
                return Err(format!(
                    "key {id}: a grant names queues, records, ledgers or exchanges; give each a grant of its own"
                ));
            }
        };
        Ok(Grant {
            on,
            verbs: verbs.collect::<Result<_, String>>()?,
        })
    });
    let grants = grants.collect::<Result<_, String>>()?;
    Ok(AccessKey { id, secret, grants })
}

/// The file's text, and whether nobody but its owner may read it.
fn read_file(path: &Path, kinds: FileKinds) -> Result<(String, bool), Failure> {
    let failed = |what| Failure::new(Exit::Failed, format!("{}: {what}", path.display()));
    let file = FileBytes::read(path, kinds).map_err(|error| failed(error.to_string()))?;
    let is_private = file.is_private();
    let text = String::from_utf8(file.bytes).map_err(|_| failed("this is not UTF-8".to_owned()))?;
    Ok((text, is_private))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, is_private: bool) -> Result<Vec<AccessKey>, String> {
        access_keys(parse(text)?, Path::new(""), FileKinds::Regular, is_private)
    }

    #[test]
    fn keys_are_read_with_their_grants() {
        let text = r#"
            [[key]]
            id = "ORDERS"
            secret = "do not show this"
            grants = [
                { queues = "orders-*", verbs = ["send", "read"] },
                { queues = "dead", verbs = [] },
                { ledgers = "trades*", verbs = ["send"] },
                { exchanges = "events", verbs = ["send"] },
            ]
        "#;
        let keys = read(text, true).unwrap();
        assert_eq!(keys.len(), 1);
        assert_eq!(keys[0].grants[0].verbs, [Verb::Send, Verb::Read]);
        assert_eq!(keys[0].grants[2].on, Names::Ledgers("trades*".into()));
        assert_eq!(keys[0].grants[3].on, Names::Exchanges("events".into()));
        assert!(!format!("{keys:?}").contains("show"));
        let open = read(text, false).unwrap_err();
        assert!(open.contains("chmod 600"), "{open}");
    }

    #[test]
    fn what_is_wrong_is_said_without_the_secret() {
        for (text, said) in [
            ("", "no [[key]]"),
            ("[[key]]\nid = \"A\"", "exactly one of secret"),
            (
                "[[key]]\nid = \"A\"\nsecret = \"hush\"\nsecret_env = \"X\"",
                "exactly one",
            ),
            (
                "[[key]]\nid = \"A\"\nsecret_env = \"LOCKGATE_NOT_SET\"",
                "$LOCKGATE_NOT_SET",
            ),
            (
                "[[key]]\nid = \"A\"\nsecret = \"hush\"\ngrant = []",
                "unknown field",
            ),
            ("[[key]]\nid = \"A\"\nsecret = \"hush\" hush", "line 3"),
            (
                "[[key]]\nid = \"A\"\nsecret = \"hush\"\ngrants = [{queues = \"*\", verbs = [\"fly\"]}]",
                "send, receive, read, manage, purge",
            ),
        ] {
            let error = read(text, true).unwrap_err();
            assert!(error.contains(said), "{error}");
            assert!(!error.contains("hush"), "{error}");
        }
    }
}
