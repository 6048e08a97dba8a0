//! Settings: each is defined once, in [`table`], and from that one definition come its flag, its
//! `LOCKGATE_*` variable, its key in the configuration file, its default, its check and its help.
//!
//! Precedence: flag, then variable, then file, then default.

pub(crate) mod access_keys;
pub(crate) mod file;
mod flags;
mod resolve;
pub(crate) mod table;

pub(crate) use file::{ConfigFile, locate};
pub(crate) use flags::{
    AllFlags, ClientFlags, CoordinationFlags, Flags, ForwardFlags, LeadFlags, OF_METRICS,
    SequenceFlags, ServeFlags,
};
pub(crate) use resolve::{Environment, Resolved, Source, resolve, resolve_with_problems};

use std::fmt;

/// One setting. The flag `--allowed-host`, the variable `LOCKGATE_ALLOWED_HOST` and the file key
/// `allowed_host` follow from the name `allowed-host`.
pub(crate) struct Setting<T: 'static> {
    pub(crate) about: About,
    /// Makes the value of what was written, or says what is wrong with it.
    pub(crate) read: fn(&[String]) -> Result<T, String>,
}

/// What a setting is called and what it is for, whatever type its value has.
pub(crate) struct About {
    /// Words joined by `-`.
    pub(crate) name: &'static str,
    /// What stands for the value in help, such as `DIR`.
    pub(crate) value_name: &'static str,
    /// As it would be written; empty: not set.
    pub(crate) default: &'static [&'static str],
    pub(crate) form: Form,
    pub(crate) scope: Scope,
    /// One line.
    pub(crate) help: &'static str,
    /// What one has to know beyond the line; may be empty.
    pub(crate) detail: &'static str,
}

/// How often and how a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Exactly one value.
    One,
    /// Exactly one value, which may hold a password: it is never shown.
    Secret,
    /// Exactly one value, a whole number.
    Number,
    /// `true` or `false`; the bare flag means `true`.
    Switch,
    /// Any number: a repeated flag, a comma-separated variable, an array in the file.
    Many,
}

/// Which commands a setting is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// `lockgate serve`.
    Serve,
    /// The commands that listen: `lockgate serve`, `lockgate forward` and `lockgate sequence`.
    Listener,
    /// The commands that talk to a server.
    Client,
    /// The commands about elections, which talk to a server or to another store.
    Coordination,
    /// The commands over a ledger.
    Ledger,
}

/// A setting without its type, for everything that treats all settings alike.
pub(crate) trait AnySetting: Sync {
    fn about(&self) -> &About;
    /// Whether these texts make a value.
    fn check(&self, texts: &[String]) -> Result<(), String>;
}

impl<T> AnySetting for Setting<T> {
    fn about(&self) -> &About {
        &self.about
    }

    fn check(&self, texts: &[String]) -> Result<(), String> {
        (self.read)(texts).map(drop)
    }
}

impl About {
    /// The environment variable.
    pub(crate) fn variable(&self) -> String {
        format!(
            "LOCKGATE_{}",
            self.name.to_ascii_uppercase().replace('-', "_")
        )
    }

    /// The key in the configuration file.
    pub(crate) fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The default as it stands in help; `None` if there is none.
    pub(crate) fn default_text(&self) -> Option<String> {
        (!self.default.is_empty()).then(|| self.default.join(","))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serve => "serve",
            Self::Listener => "serve, forward, sequence",
            Self::Client => "commands that talk to a server",
            Self::Coordination => "lead, leaders, sequence",
            Self::Ledger => "sequence",
        })
    }
}
