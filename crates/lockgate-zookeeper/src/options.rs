//! Where a ZooKeeper is, and how to speak with it.

use std::fmt;

use lockgate_core::coordination::CoordinationError;
use percent_encoding::percent_decode_str;

/// The port of a host that names none.
const PORT: u16 = 2181;

/// The parameters of a URL.
const PARAMETERS: [&str; 1] = ["style"];

/// Whose nodes an election has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Style {
    /// Those of Curator's `LeaderLatch`.
    #[default]
    Latch,
    /// Those of Curator's `LeaderSelector`.
    Selector,
    /// Those of Curator's `InterProcessMutex`.
    Mutex,
}

impl Style {
    const ALL: [(&str, Self); 3] = [
        ("latch", Self::Latch),
        ("selector", Self::Selector),
        ("mutex", Self::Mutex),
    ];

    /// What stands in the name of a node between what tells it from others and its number.
    pub(crate) fn infix(self) -> &'static str {
        match self {
            Self::Latch => "latch-",
            // A selector is a mutex, whose holder leads.
            Self::Selector | Self::Mutex => "lock-",
        }
    }
}

/// Where a ZooKeeper is, and how to speak with it, as a URL says it:
/// `zk://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]]...[/PATH][?style=latch|selector|mutex]`.
///
/// The password is not shown by `Debug`, nor by any error.
#[derive(Clone, PartialEq, Eq)]
pub struct ZookeeperOptions {
    /// `HOST:PORT`, with commas between them.
    pub(crate) hosts: String,
    /// The path in front of the names of elections, such as `/teams/reports`; empty: the root.
    pub(crate) path: String,
    pub(crate) style: Style,
    pub(crate) login: Option<Login>,
}

/// Whom ZooKeeper's `digest` shall take us for.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ZookeeperOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperOptions")
            .field("hosts", &self.hosts)
            .field("path", &self.path)
            .field("style", &self.style)
            .field("login", &self.login)
            .finish()
    }
}

impl ZookeeperOptions {
    /// Reads a URL. What is not plain in user, password or path is written as `%` and two digits. A host without a port
    /// has 2181.
    ///
    /// # Errors
    /// [`Invalid`](CoordinationError::Invalid): what is wrong with it. It never shows the password.
    pub fn parse(url: &str) -> Result<Self, CoordinationError> {
        let rest = url
            .strip_prefix("zk://")
            .ok_or_else(|| invalid("a URL of ZooKeeper begins with zk://"))?;
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Some(login), rest),
            None => (None, rest),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let login = login
            .map(|login| match login.split_once(':') {
                Some((user, password)) if !user.is_empty() => Ok(Login {
                    user: decoded(user, "user")?,
                    password: decoded(password, "password")?,
                }),
                _ => Err(invalid("in front of the @ must stand USER:PASSWORD")),
            })
            .transpose()?;
        let (hosts, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let hosts: Vec<String> = hosts.split(',').map(host).collect::<Result<_, _>>()?;
        let path = decoded(path, "path")?;
        let mut style = Style::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("style", value) => {
                    let known = Style::ALL.iter().find(|(name, _)| *name == value);
                    let (_, known) = known.ok_or_else(|| {
                        let names = Style::ALL.map(|(name, _)| name).join(", ");
                        invalid(&format!("there is no style {value:?}; styles are: {names}"))
                    })?;
                    style = *known;
                }
                (other, _) => {
                    let known = PARAMETERS.join(", ");
                    return Err(invalid(&format!(
                        "there is no parameter {other:?}; parameters are: {known}"
                    )));
                }
            }
        }
        let options = Self {
            hosts: hosts.join(","),
            path: String::new(),
            style,
            login,
        };
        options.under(path.trim_end_matches('/'))
    }

    /// The same with that path in front of the names of elections; empty: the root.
    ///
    /// # Errors
    /// [`Invalid`](CoordinationError::Invalid) if ZooKeeper has no such paths.
    pub fn under(mut self, path: &str) -> Result<Self, CoordinationError> {
        if !path.is_empty() {
            check_path(path)?;
        }
        path.clone_into(&mut self.path);
        Ok(self)
    }

    /// The path in front of the names of elections, or of the node that the URL is about; empty: the root.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The same with the nodes of another recipe.
    #[must_use]
    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }
}

fn invalid(why: &str) -> CoordinationError {
    CoordinationError::Invalid {
        why: format!("the URL of ZooKeeper is not valid: {why}"),
    }
}

fn decoded(text: &str, what: &str) -> Result<String, CoordinationError> {
    let text = percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| invalid(&format!("the {what} is not UTF-8")))?;
    Ok(text.into_owned())
}

/// `HOST:PORT`.
fn host(text: &str) -> Result<String, CoordinationError> {
    // An address of IPv6 stands in brackets.
    let after = text.rfind(']').map_or(0, |at| at + 1);
    let (name, port) = match text.get(after..).and_then(|rest| rest.rfind(':')) {
        Some(at) => (&text[..after + at], Some(&text[after + at + 1..])),
        None => (text, None),
    };
    let is_bare = !name.starts_with('[') && name.contains([':', ']']);
    if name.is_empty() || is_bare || name.contains(char::is_whitespace) {
        let why = "a host is HOST or HOST:PORT, an address of IPv6 in brackets";
        return Err(invalid(why));
    }
    let port = match port {
        None => PORT,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            // What stands there may be a password without a host behind it.
            _ => {
                return Err(invalid(&format!(
                    "the port of host {name:?} is not 1 to 65535"
                )));
            }
        },
    };
    Ok(format!("{name}:{port}"))
}

/// Looks whether ZooKeeper has such paths.
pub(crate) fn check_path(path: &str) -> Result<(), CoordinationError> {
    let refuse = |why: &str| {
        Err(CoordinationError::Invalid {
            why: format!("{path:?} is no path of ZooKeeper: {why}"),
        })
    };
    let Some(parts) = path.strip_prefix('/') else {
        return refuse("it must begin with /");
    };
    for part in parts.split('/') {
        match part {
            "" => return refuse("a part of it is empty"),
            "." | ".." => return refuse("a part of it is . or .."),
            _ => {}
        }
    }
    // What ZooKeeper itself refuses.
    let is_refused =
        |c: char| c.is_control() || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}');
    match path.chars().find(|c| is_refused(*c)) {
        Some(found) => refuse(&format!("it may not have {found:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(url: &str) -> String {
        ZookeeperOptions::parse(url).unwrap_err().to_string()
    }

    #[test]
    fn a_url_says_where_and_how() {
        let plain = ZookeeperOptions::parse("zk://localhost").unwrap();
        assert_eq!(plain.hosts, "localhost:2181");
        assert_eq!((plain.path.as_str(), plain.style), ("", Style::Latch));
        assert_eq!(plain.login, None);

        let url = "zk://me:s%40fe%3A@a,b:2182,[::1],[::2]:7/teams/eu%20west/?style=selector";
        let full = ZookeeperOptions::parse(url).unwrap();
        assert_eq!(full.hosts, "a:2181,b:2182,[::1]:2181,[::2]:7");
        assert_eq!(
            (full.path.as_str(), full.style),
            ("/teams/eu west", Style::Selector)
        );
        let login = full.login.clone().unwrap();
        assert_eq!(
            (login.user.as_str(), login.password.as_str()),
            ("me", "s@fe:")
        );
        let shown = format!("{full:?}");
        assert!(shown.contains("me") && !shown.contains("s@fe"), "{shown}");
        assert_eq!(full.style(Style::Mutex).style, Style::Mutex);
    }

    #[test]
    fn what_is_no_url_says_why_and_no_password() {
        for (url, part) in [
            ("http://a", "begins with zk://"),
            ("zk://", "HOST"),
            ("zk://a,,b", "HOST"),
            ("zk://::1", "HOST"),
            ("zk://a:0", "port"),
            ("zk://a:x", "port"),
            ("zk://secret@a", "USER:PASSWORD"),
            ("zk://:secret@a", "USER:PASSWORD"),
            ("zk://me:secret/a", "port"),
            ("zk://me:and:secret/a", "HOST"),
            ("zk://me:secret?x/a", "port"),
            ("zk://me:secret%ff@a", "password is not UTF-8"),
            ("zk://me:secret@a/b//c", "empty"),
            ("zk://me:secret@a/b/../c", ".."),
            ("zk://me:secret@a/b%01", "may not have"),
            ("zk://a?style=lock", "latch, selector, mutex"),
            ("zk://a?stile=latch", "parameters are: style"),
        ] {
            let why = why(url);
            assert!(why.contains(part), "{url}: {why}");
            assert!(!why.contains("secret"), "{url}: {why}");
        }
    }
}
