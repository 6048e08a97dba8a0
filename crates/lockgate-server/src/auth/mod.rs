//! Who asks, and what they may.
//!
//! An access key is an id and a secret, as on AWS; requests are signed with the secret and never
//! carry it. A key has grants: which queues, by pattern, and what may be done with them. What is not
//! granted is refused.

#[cfg(test)]
mod ambiguity;
mod deciding;
pub(crate) mod fuzzing;

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use lockgate_core::{ExchangeName, LedgerName, QueueName, RecordName};
use lockgate_engine::Directory;
use lockgate_machine::MoveTo;
pub use lockgate_sigv4::Secret;
pub(crate) use lockgate_sigv4::{BodyDigest, Claim, Head};
use lockgate_sigv4::{SignatureError, is_plain};

/// What may be done with a queue, a record, a ledger or an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Send messages; also be named as where another queue's dead letters go, or where an exchange's messages go. A
    /// ledger: append to it. An exchange: publish to it, and have another exchange lead to it.
    Send,
    /// Receive, delete, and change the visibility of messages. A ledger: move and forget its readers.
    Receive,
    /// Read its attributes, tags and counts, and find it in lists. A record or a ledger: read, list and watch it.
    /// An exchange: show it with its bindings, which names what it leads to, and explain routes.
    Read,
    /// Make it, and change its attributes, tags and permissions. A record: write, delete and lease it, which shows its value.
    /// A ledger: make and seal it. An exchange: make and change it, bind and unbind.
    Manage,
    /// Empty it, or remove it with all it holds. A ledger: trim or delete it. An exchange: delete it.
    Purge,
}

impl Verb {
    pub const ALL: [Self; 5] = [
        Self::Send,
        Self::Receive,
        Self::Read,
        Self::Manage,
        Self::Purge,
    ];

    /// Its word in settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Read => "read",
            Self::Manage => "manage",
            Self::Purge => "purge",
        }
    }

    /// The verb of that word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == word)
    }
}

/// Verbs for what has a name that fits a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Names of queues, of records, of ledgers or of exchanges.
    pub on: Names,
    /// What may be done with them; with records: [`Verb::Read`] and [`Verb::Manage`]; with exchanges:
    /// all but [`Verb::Receive`].
    pub verbs: Vec<Verb>,
}

/// A pattern of names. Each `*` stands for any number of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// Names of queues.
    Queues(String),
    /// Names of records.
    Records(String),
    /// Names of ledgers.
    Ledgers(String),
    /// Names of exchanges.
    Exchanges(String),
}

/// Whether a name fits a pattern in which `*` stands for any number of characters.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        // The earliest place leaves the most for what follows.
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// An access key.
#[derive(Clone, Debug)]
pub struct AccessKey {
    /// Its id, which requests name: 1 to 128 letters and digits.
    pub id: String,
    /// What requests are signed with: 8 to 256 characters.
    pub secret: Secret,
    /// What it may do; without any, nothing.
    pub grants: Vec<Grant>,
}

impl AccessKey {
    /// Whether it may do that with that queue.
    #[must_use]
    pub fn may(&self, verb: Verb, queue: &QueueName) -> bool {
        self.grants_of(verb).any(
            |names| matches!(names, Names::Queues(pattern) if matches(pattern, queue.as_str())),
        )
    }

    /// Whether it may do that with that record.
    #[must_use]
    pub fn may_with_record(&self, verb: Verb, record: &RecordName) -> bool {
        self.grants_of(verb).any(
            |names| matches!(names, Names::Records(pattern) if matches(pattern, record.as_str())),
        )
    }

    /// Whether it may do that with that ledger.
    #[must_use]
    pub fn may_with_ledger(&self, verb: Verb, ledger: &LedgerName) -> bool {
        self.grants_of(verb).any(
            |names| matches!(names, Names::Ledgers(pattern) if matches(pattern, ledger.as_str())),
        )
    }

    /// Whether it may do that with that exchange.
    #[must_use]
    pub fn may_with_exchange(&self, verb: Verb, exchange: &ExchangeName) -> bool {
        self.grants_of(verb).any(
            |names| matches!(names, Names::Exchanges(pattern) if matches(pattern, exchange.as_str())),
        )
    }

    /// What it may do that with.
    fn grants_of(&self, verb: Verb) -> impl Iterator<Item = &Names> {
        let grants = self.grants.iter();
        let grants = grants.filter(move |grant| grant.verbs.contains(&verb));
        grants.map(|grant| &grant.on)
    }
}

impl AccessKey {
    /// Whether it may do everything with every queue, and read every record, ledger and exchange.
    pub(crate) fn may_everything(&self) -> bool {
        let all_records =
            |names: &Names| matches!(names, Names::Records(pattern) if pattern == "*");
        let all_ledgers =
            |names: &Names| matches!(names, Names::Ledgers(pattern) if pattern == "*");
        let all_exchanges =
            |names: &Names| matches!(names, Names::Exchanges(pattern) if pattern == "*");
        Verb::ALL.iter().all(|&verb| self.may_everywhere(verb))
            && self.grants_of(Verb::Read).any(all_records)
            && self.grants_of(Verb::Read).any(all_ledgers)
            && self.grants_of(Verb::Read).any(all_exchanges)
    }

    /// Whether it may do that with every queue.
    pub(crate) fn may_everywhere(&self, verb: Verb) -> bool {
        self.grants_of(verb)
            .any(|names| matches!(names, Names::Queues(pattern) if pattern == "*"))
    }

    /// Where messages go that it takes back to where they came from: a queue that one came from is
    /// known when the message moves, which is too late to ask whether it may be sent to.
    pub(crate) fn origins(&self, directory: &Directory) -> MoveTo {
        if self.may_everywhere(Verb::Send) {
            return MoveTo::Origins;
        }
        let queues = directory.all();
        let names = queues.iter().map(|queue| &queue.name);
        let allowed = names.filter(|name| self.may(Verb::Send, name)).cloned();
        MoveTo::OriginsAmong(allowed.collect())
    }
}

/// How clients say who they are.
#[derive(Clone, Debug, Default)]
pub enum Authentication {
    /// Not at all: whoever reaches the server may do everything. The default, for loopback.
    #[default]
    None,
    /// By requests signed with one of these keys (AWS Signature Version 4). What they are can be
    /// changed by [`Server::access_keys`](crate::Server::access_keys).
    AccessKeys(Vec<AccessKey>),
}

/// The access keys of a server, which may change while it serves. Cheap to clone: all clones are the
/// same keys.
#[derive(Clone, Debug)]
pub struct AccessKeys(Arc<RwLock<ById>>);

type ById = BTreeMap<String, Arc<AccessKey>>;

impl AccessKeys {
    /// `keys` have been checked.
    pub(crate) fn new(keys: &[AccessKey]) -> Self {
        Self(Arc::new(RwLock::new(by_id(keys))))
    }

    /// Puts these in the place of all there were. Requests whose signature is checked from now on are those of the
    /// new keys; one that was believed before goes on with what its key could do then, to its end. A move task may do
    /// at each step what the key that started it may do then, and who follows a ledger gets each page by what the key
    /// may do then.
    ///
    /// # Errors
    /// If an id or a secret is not what it must be, or an id comes twice: the keys stay what they were.
    pub fn replace(&self, keys: &[AccessKey]) -> Result<(), KeyError> {
        check_keys(keys)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = by_id(keys);
        Ok(())
    }

    /// The key of that id.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<AccessKey>> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.get(id).cloned()
    }
}

fn by_id(keys: &[AccessKey]) -> ById {
    let shared = |key: &AccessKey| (key.id.clone(), Arc::new(key.clone()));
    keys.iter().map(shared).collect()
}

/// What is wrong with an access key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Its id is none.
    #[error("the access key {id:?} has no valid id: give it 1 to 128 letters and digits")]
    Id { id: String },
    /// Another key has its id.
    #[error("there are two access keys {id:?}: give each id once")]
    Twice { id: String },
    /// Its secret is too short or too long.
    #[error("the secret of the access key {id:?} is too short or too long: give it 8 to 256 bytes")]
    Secret { id: String },
    /// A grant has a verb that nothing can be done by.
    #[error(
        "the access key {id:?} is granted {} on records: there are read and manage", verb.as_str()
    )]
    RecordVerb { id: String, verb: Verb },
    /// A grant is to receive from exchanges.
    #[error(
        "the access key {id:?} is granted receive on exchanges: there are send, read, manage and purge"
    )]
    ExchangeVerb { id: String },
}

/// Whether a server would take these keys.
pub(crate) fn check_keys(keys: &[AccessKey]) -> Result<(), KeyError> {
    for (at, key) in keys.iter().enumerate() {
        let id = || key.id.clone();
        let is_id = (1..=128).contains(&key.id.len())
            && key.id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_id {
            return Err(KeyError::Id { id: id() });
        }
        if keys[..at].iter().any(|other| other.id == key.id) {
            return Err(KeyError::Twice { id: id() });
        }
        if !(8..=256).contains(&key.secret.len()) {
            return Err(KeyError::Secret { id: id() });
        }
        let of_records = key.grants.iter();
        let of_records = of_records.filter(|grant| matches!(grant.on, Names::Records(_)));
        let mut verbs = of_records.flat_map(|grant| &grant.verbs);
        if let Some(&verb) = verbs.find(|verb| !matches!(verb, Verb::Read | Verb::Manage)) {
            return Err(KeyError::RecordVerb { id: id(), verb });
        }
        let mut of_exchanges = key.grants.iter();
        if of_exchanges.any(|grant| {
            matches!(grant.on, Names::Exchanges(_)) && grant.verbs.contains(&Verb::Receive)
        }) {
            return Err(KeyError::ExchangeVerb { id: id() });
        }
    }
    Ok(())
}

/// Who made a request.
#[derive(Debug)]
pub(crate) struct Authenticator {
    keys: AccessKeys,
    region: String,
}

impl Authenticator {
    /// `None` if there is nothing to check.
    pub(crate) fn new(authentication: &Authentication, region: &str) -> Option<Self> {
        let Authentication::AccessKeys(keys) = authentication else {
            return None;
        };
        Some(Self {
            keys: AccessKeys::new(keys),
            region: region.to_owned(),
        })
    }

    /// The keys it believes.
    pub(crate) fn keys(&self) -> &AccessKeys {
        &self.keys
    }

    /// What can be refused before the body is read: also a key that is not there, although this tells
    /// who asks that it is not. Bodies would else be read for anybody. `now` is in seconds since 1970.
    pub(crate) fn claim(&self, head: Head<'_>, now: i64) -> Result<Claim, AuthError> {
        let claim = Claim::of(head)?.ok_or(AuthError::Missing)?;
        deciding::check(&claim, head.headers)?;
        claim.check_time(now)?;
        if !is_plain(head.path) {
            return Err(AuthError::Incomplete(
                "the path of a signed request has no empty parts, '.' or '..'",
            ));
        }
        if claim.region() != self.region {
            return Err(AuthError::Scope {
                what: "region",
                expected: self.region.clone(),
                found: claim.region().to_owned(),
            });
        }
        // Which of the two a request is for is known when it is read.
        let may_be_sns = head.path == "/" && claim.service() == "sns";
        if claim.service() != "sqs" && !may_be_sns {
            return Err(AuthError::Scope {
                what: "service",
                expected: "sqs".to_owned(),
                found: claim.service().to_owned(),
            });
        }
        match self.keys.get(claim.key_id()) {
            Some(_) => Ok(claim),
            None => Err(AuthError::UnknownKey),
        }
    }

    /// Who made the request, if its body has this digest.
    pub(crate) fn verify(
        &self,
        claim: &Claim,
        head: Head<'_>,
        body: &BodyDigest,
    ) -> Result<Arc<AccessKey>, AuthError> {
        // It may have been taken away since.
        let key = self.keys.get(claim.key_id()).ok_or(AuthError::UnknownKey)?;
        if claim.verify(head, body, &key.secret) {
            Ok(key)
        } else {
            Err(AuthError::Mismatch)
        }
    }
}

/// Why nobody is believed to have made a request. The texts are AWS's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AuthError {
    #[error("Request is missing Authentication Token.")]
    Missing,
    #[error("The request signature does not conform to AWS standards: {0}.")]
    Incomplete(&'static str),
    #[error("The security token included in the request is invalid.")]
    UnknownKey,
    #[error(
        "The request signature we calculated does not match the signature you provided. Check your \
         AWS Secret Access Key and signing method. Consult the service documentation for details."
    )]
    Mismatch,
    #[error("Credential should be scoped to a valid {what}: {expected}, not {found:.64}.")]
    Scope {
        what: &'static str,
        expected: String,
        found: String,
    },
    #[error("The signature of {signed} has expired, or the clocks differ by more than 15 minutes.")]
    Expired { signed: String },
}

impl From<SignatureError> for AuthError {
    fn from(error: SignatureError) -> Self {
        match error {
            SignatureError::Expired { signed } => Self::Expired { signed },
            SignatureError::Incomplete(what) => Self::Incomplete(what),
            _ => Self::Incomplete("the signature cannot be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, fits) in [
            ("*", "anything.fifo", true),
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("orders-*", "orders-", true),
            ("orders-*", "orders", false),
            ("*.fifo", "a.fifo", true),
            ("*.fifo", "a.fifo2", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("**", "x", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    /// Exchanges keep no messages.
    #[test]
    fn nobody_is_granted_to_receive_from_an_exchange() {
        for verb in Verb::ALL {
            let key = AccessKey {
                id: "K".into(),
                secret: Secret::new("do not show"),
                grants: vec![Grant {
                    on: Names::Exchanges("*".into()),
                    verbs: vec![verb],
                }],
            };
            let expected = match verb {
                Verb::Receive => Err(KeyError::ExchangeVerb { id: "K".into() }),
                _ => Ok(()),
            };
            assert_eq!(check_keys(&[key]), expected, "{verb:?}");
        }
    }

    #[test]
    fn nothing_is_granted_by_default() {
        let mut key = AccessKey {
            id: "K".into(),
            secret: Secret::new("do not show"),
            grants: vec![],
        };
        let queue = QueueName::new("orders").unwrap();
        assert!(Verb::ALL.iter().all(|&verb| !key.may(verb, &queue)));
        key.grants.push(Grant {
            on: Names::Queues("orders".into()),
            verbs: vec![Verb::Send],
        });
        assert!(key.may(Verb::Send, &queue));
        assert!(!key.may(Verb::Receive, &queue));
        let record = RecordName::new("orders").unwrap();
        assert!(!key.may_with_record(Verb::Send, &record));
        let exchange = ExchangeName::new("orders").unwrap();
        assert!(!key.may_with_exchange(Verb::Send, &exchange));
        assert!(!format!("{key:?}").contains("show"));
    }
}
