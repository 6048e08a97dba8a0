//! The settings as command-line flags, made from the table.

use std::collections::BTreeMap;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, builder::ValueParser};

use super::{
    About, AnySetting, Form, Scope,
    table::{SETTINGS, TIMEOUT},
};

/// What was given by flag: the setting's name with its texts. Checked later, together with what
/// came from elsewhere, so that a wrong value gets the same message wherever it stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) given: BTreeMap<&'static str, Vec<String>>,
    /// `--config`, which is no setting: it says where settings are read from.
    pub(crate) config: Option<String>,
}

impl Flags {
    /// The flags that were given of those that only a command which listens needs. How a log is written is none of them.
    pub(crate) fn of_listener(&self) -> impl Iterator<Item = &'static str> {
        let given = self.given.keys().copied();
        given.filter(|name| {
            let mut settings = SETTINGS.iter().map(|setting| setting.about());
            let about = settings.find(|about| about.name == *name);
            about.is_some_and(|about| about.scope == Scope::Listener) && !name.starts_with("log-")
        })
    }
}

/// Declares a group of flags: those of the scopes it takes, and what those of a listener stand under in help.
macro_rules! flag_group {
    ($(#[$doc:meta])* $type:ident, $takes:expr, $listener:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub(crate) struct $type(pub(crate) Flags);

        impl Args for $type {
            fn augment_args(command: Command) -> Command {
                augment(command, $takes, $listener)
            }

            fn augment_args_for_update(command: Command) -> Command {
                augment(command, $takes, $listener)
            }
        }

        impl FromArgMatches for $type {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                Ok(Self(collect(matches, $takes)))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }
    };
}

flag_group!(
    /// The flags of `lockgate serve`.
    ServeFlags,
    |about| matches!(about.scope, Scope::Serve | Scope::Listener),
    None
);
flag_group!(
    /// The flags of the commands that talk to a server.
    ClientFlags,
    |about| about.scope == Scope::Client,
    None
);
flag_group!(
    /// The flags of `lockgate config`, which shows every setting.
    AllFlags,
    |_| true,
    None
);
flag_group!(
    /// The flags of `lockgate forward`, which talks to a server and may listen itself.
    ForwardFlags,
    |about| matches!(about.scope, Scope::Client | Scope::Listener),
    Some("Listener")
);

flag_group!(
    /// The flags of `lockgate leaders`.
    CoordinationFlags,
    |about| matches!(about.scope, Scope::Client | Scope::Coordination),
    None
);
flag_group!(
    /// The flags of `lockgate lead`, whose `--timeout` is another one.
    LeadFlags,
    |about| matches!(about.scope, Scope::Client | Scope::Coordination)
        && about.name != TIMEOUT.about.name,
    None
);

/// Flags of a listener that count also where only figures are served.
pub(crate) const OF_METRICS: [&str; 6] = [
    "allow-remote",
    "allowed-host",
    "connections-max",
    "connections-per-address-max",
    "header-timeout",
    "idle-timeout",
];

flag_group!(
    /// The flags of `lockgate sequence`, which talks to a server, a ledger and a store that elects, and may serve figures.
    SequenceFlags,
    |about| match about.scope {
        Scope::Client | Scope::Coordination | Scope::Ledger => true,
        Scope::Listener => about.name.starts_with("log-") || OF_METRICS.contains(&about.name),
        Scope::Serve => false,
    },
    Some("Listener")
);

fn augment(command: Command, takes: fn(&About) -> bool, listener: Option<&'static str>) -> Command {
    let config = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .help("Configuration file (TOML)")
        .long_help(
            "Configuration file (TOML).\n\nWithout it: the file that LOCKGATE_CONFIG names, else \
             ./lockgate.toml if there is one, else $XDG_CONFIG_HOME/lockgate/config.toml \
             (~/.config/lockgate/config.toml).",
        );
    settings(takes).fold(command.arg(config), |command, setting| {
        command.arg(flag(setting, listener))
    })
}

fn flag(setting: &'static dyn AnySetting, listener: Option<&'static str>) -> Arg {
    let about = setting.about();
    let facts = match about.default_text() {
        Some(default) => format!("[default: {default}] [env: {}]", about.variable()),
        None => format!("[env: {}]", about.variable()),
    };
    let long = match about.detail {
        "" => format!("{}\n\n{facts}", about.help),
        detail => format!("{}.\n\n{detail}\n\n{facts}", about.help),
    };
    let flag = Arg::new(about.name)
        .long(about.name)
        .value_name(about.value_name)
        .value_parser(ValueParser::string())
        .help(match about.default_text() {
            Some(default) if about.form != Form::Switch => {
                format!("{} [default: {default}]", about.help)
            }
            _ => about.help.to_owned(),
        })
        .long_help(long);
    let flag = match about.scope {
        Scope::Serve | Scope::Coordination | Scope::Ledger => flag,
        Scope::Listener => flag.help_heading(listener),
        // Apart from what the command itself is about.
        Scope::Client => flag.help_heading("Settings"),
    };
    match about.form {
        Form::One | Form::Secret | Form::Number => flag.action(ArgAction::Set),
        Form::Many => flag.action(ArgAction::Append),
        Form::Switch => flag
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
    }
}

fn collect(matches: &ArgMatches, takes: fn(&About) -> bool) -> Flags {
    let given = settings(takes)
        .filter_map(|setting| {
            let name = setting.about().name;
            let texts = matches.get_many::<String>(name)?.cloned().collect();
            Some((name, texts))
        })
        .collect();
    Flags {
        given,
        config: matches.get_one::<String>("config").cloned(),
    }
}

fn settings(takes: fn(&About) -> bool) -> impl Iterator<Item = &'static dyn AnySetting> {
    SETTINGS
        .iter()
        .copied()
        .filter(move |setting| takes(setting.about()))
}
