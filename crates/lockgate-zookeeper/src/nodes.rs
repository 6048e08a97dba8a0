//! What the nodes of an election are called, and who of them is first.
//!
//! ```text
//! PATH/NAME/_c_GUID-latch-0000000007    a candidate, as Curator names it; ephemeral
//! PATH/_lockgate_/term/NAME             who leads, the history, the last checkpoint
//! PATH/_lockgate_/ask/NAME              the last request to resign
//! PATH/_lockgate_/lock/NAME/_c_GUID-lock-0000000007    whoever wants a lock
//! ```
//! Curator looks at all children of `PATH/NAME`, so nothing else may be there. In the names of nodes below `_lockgate_`,
//! `/` is `%2F` and `%` is `%25`.

use lockgate_core::{ElectionName, HolderName, NameError, coordination::CoordinationError};
use uuid::Uuid;

use crate::options::{Style, ZookeeperOptions, check_path};

const OWN: &str = "_lockgate_";

/// The last number of a node. ZooKeeper's next one is negative, and Curator, which compares texts, takes it for the first.
const LAST: u32 = i32::MAX.unsigned_abs();

/// Whether something is kept of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Election,
    Lock,
}

/// Below which node all elections have the record of their terms.
pub(crate) fn terms(options: &ZookeeperOptions) -> String {
    format!("{}/{OWN}/term", options.path)
}

/// The election to which a record belongs.
pub(crate) fn election(node: &str) -> Result<ElectionName, NameError> {
    ElectionName::new(&node.replace("%2F", "/").replace("%25", "%"))
}

#[derive(Clone, Debug)]
pub(crate) struct Nodes {
    pub(crate) election: ElectionName,
    pub(crate) kind: Kind,
    /// Whose children stand.
    pub(crate) line: String,
    pub(crate) term: String,
    pub(crate) ask: String,
    style: Style,
}

impl Nodes {
    pub(crate) fn new(
        options: &ZookeeperOptions,
        kind: Kind,
        election: &ElectionName,
    ) -> Result<Self, CoordinationError> {
        let (path, name) = (&options.path, election.as_str());
        let own = |folder: &str| {
            let name = name.replace('%', "%25").replace('/', "%2F");
            format!("{path}/{OWN}/{folder}/{name}")
        };
        let (line, style) = match kind {
            Kind::Election => (format!("{path}/{name}"), options.style),
            Kind::Lock => (own("lock"), Style::Mutex),
        };
        check_path(&line)?;
        if name.split('/').any(|part| part == OWN) {
            return Err(CoordinationError::Invalid {
                why: format!(
                    "an election over ZooKeeper may not be called {name:?}: {OWN} is kept for what belongs to others"
                ),
            });
        }
        Ok(Self {
            election: election.clone(),
            kind,
            line,
            term: own("term"),
            ask: own("ask"),
            style,
        })
    }

    /// A new node's path, in front of its number.
    pub(crate) fn place(&self, id: &str) -> String {
        format!("{}/{id}{}", self.line, self.style.infix())
    }

    pub(crate) fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.line)
    }

    /// The children that stand, in the order in which Curator has them.
    ///
    /// # Errors
    /// `Damaged` for one of another recipe: its holder and this one would not exclude each other.
    pub(crate) fn in_order(&self, children: Vec<String>) -> Result<Vec<Place>, CoordinationError> {
        let mut places = Vec::with_capacity(children.len());
        for name in children {
            match place(&name) {
                Some((infix, Number::Is(number))) if infix == self.style.infix() => {
                    places.push(Place { name, number });
                }
                Some((infix, Number::Overflown)) if infix == self.style.infix() => {
                    return Err(self.damaged(format!(
                        "the numbers below {} are used up: delete that node when nobody stands, and they begin anew",
                        self.line
                    )));
                }
                Some(_) => {
                    return Err(self.damaged(format!(
                        "node {} is of another recipe: all candidates must have one style",
                        self.child(&name)
                    )));
                }
                // Of whom it may be, it does not stand.
                None => {}
            }
        }
        places.sort_by_key(|place| place.number);
        Ok(places)
    }

    pub(crate) fn damaged(&self, why: String) -> CoordinationError {
        let election = self.election.clone();
        CoordinationError::Damaged { election, why }
    }
}

/// A candidate's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) name: String,
    /// By which it stands.
    pub(crate) number: u32,
}

/// The number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Is(u32),
    /// It is behind the last one.
    Overflown,
}

/// What its recipe writes in front of the number of a node, and the number.
fn place(name: &str) -> Option<(&'static str, Number)> {
    let infixes = [Style::Latch, Style::Mutex].map(Style::infix);
    let found = infixes
        .iter()
        .find_map(|infix| Some((*infix, name.rsplit_once(infix)?.1)));
    let (infix, number) = found?;
    let digits = number.strip_prefix('-').unwrap_or(number);
    if number.len() < 10 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = number.parse().ok().filter(|number| *number <= LAST);
    Some((infix, number.map_or(Number::Overflown, Number::Is)))
}

/// What a node's name begins with, by which its candidate finds it again.
pub(crate) fn new_id() -> String {
    format!("_c_{}-", Uuid::new_v4().hyphenated())
}

/// Whom a node's data names. One without a name is shown by the name of its node.
pub(crate) fn holder(data: &[u8], node: &str) -> Result<HolderName, NameError> {
    let name = str::from_utf8(data).ok();
    let name = name.and_then(|name| HolderName::new(name).ok());
    name.map_or_else(|| HolderName::new(node), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(url: &str, kind: Kind, name: &str) -> Result<Nodes, CoordinationError> {
        let options = ZookeeperOptions::parse(url).unwrap();
        Nodes::new(&options, kind, &ElectionName::new(name).unwrap())
    }

    #[test]
    fn an_election_has_the_path_that_its_name_says_and_shares_it_with_nothing() {
        let election = nodes("zk://a/teams", Kind::Election, "eu/reports").unwrap();
        assert_eq!(election.line, "/teams/eu/reports");
        assert_eq!(election.place("_c_x-"), "/teams/eu/reports/_c_x-latch-");
        assert_eq!(election.term, "/teams/_lockgate_/term/eu%2Freports");
        for name in ["eu/reports", "100%", "%2F/%25"] {
            let term = nodes("zk://a", Kind::Election, name).unwrap().term;
            let term = term.strip_prefix("/_lockgate_/term/").unwrap();
            assert_eq!(super::election(term).unwrap().as_str(), name);
        }
        let lock = nodes("zk://a", Kind::Lock, "100%").unwrap();
        assert_eq!(lock.line, "/_lockgate_/lock/100%25");
        assert_eq!(lock.place("_c_x-"), "/_lockgate_/lock/100%25/_c_x-lock-");
        for name in ["_lockgate_/term", "a//b", "a/..", "/a"] {
            let refused = nodes("zk://a", Kind::Election, name);
            assert!(
                matches!(refused, Err(CoordinationError::Invalid { .. })),
                "{name}"
            );
        }
    }

    #[test]
    fn candidates_stand_in_the_order_of_their_numbers() {
        let election = nodes("zk://a?style=latch", Kind::Election, "reports").unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let order = election
            .in_order(names(&[
                "_c_9-latch-0000000010",
                "000-foreign",
                "latch-1",
                "_c_é0000000001",
                "_c_1-latch-0000000012",
                "_c_5-latch-2147483647",
                "_c_7-latch-0000000009",
            ]))
            .unwrap();
        let order: Vec<_> = order.iter().map(|place| place.number).collect();
        assert_eq!(order, [9, 10, 12, 2_147_483_647]);

        for number in ["-2147483648", "-000000007", "2147483648"] {
            let overflown = election.in_order(names(&[&format!("_c_5-latch-{number}")]));
            let told = overflown.unwrap_err().to_string();
            assert!(told.contains("used up"), "{told}");
        }
        let mixed = election.in_order(names(&["_c_9-lock-0000000010"]));
        assert!(
            matches!(mixed, Err(CoordinationError::Damaged { .. })),
            "{mixed:?}"
        );
    }

    #[test]
    fn a_node_names_its_candidate() {
        for (data, name) in [
            (&b"host-1"[..], "host-1"),
            (b"", "_c_9-latch-1"),
            (b"\xff", "_c_9-latch-1"),
        ] {
            assert_eq!(holder(data, "_c_9-latch-1").unwrap().as_str(), name);
        }
        assert_eq!(new_id().len(), "_c_".len() + 36 + 1);
    }
}
