//! Open files: how many there may be, how many the log needs, and how many are left for connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

use super::log_options;
use crate::{
    exit::Failure,
    settings::{Resolved, table},
};

/// Open files beside the log's and the connections: standard streams, the runtime, the listener, files
/// of settings, keys and certificates that are read again, connections to a database.
const OTHERS: u64 = 32;

/// What systems without a limit of their own allow at least.
const USUAL_MAX: u64 = 10_240;

/// How many connections there may be, in all and of one address.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::commands) struct Connections {
    pub(in crate::commands) max: usize,
    pub(in crate::commands) per_address_max: usize,
}

/// What is said about connections.
struct Said {
    max: usize,
    /// Whether somebody said so, or nobody said anything.
    max_is_given: bool,
    per_address_max: usize,
    per_address_is_given: bool,
}

/// Raises the limit of open files as far as it goes, and leaves the connections what the log does not
/// need: a log that cannot open a file refuses sends.
///
/// # Errors
/// If nothing is left, or less than somebody asked for.
pub(in crate::commands) fn connections(settings: &Resolved) -> Result<Connections, Failure> {
    let kept = log_options(settings).files_max() as u64 + OTHERS;
    let allowed = allow_open_files();
    let said = Said {
        max: settings.get(&table::CONNECTIONS_MAX),
        max_is_given: settings.is_given(&table::CONNECTIONS_MAX),
        per_address_max: settings.get(&table::CONNECTIONS_PER_ADDRESS_MAX),
        per_address_is_given: settings.is_given(&table::CONNECTIONS_PER_ADDRESS_MAX),
    };
    let connections = share(&said, allowed, kept)?;
    if connections.max < said.max {
        warn!(
            connections_max = connections.max,
            files_max = allowed,
            files_kept = kept,
            "fewer connections than usual: the limit of open files (`ulimit -n`) leaves no more"
        );
    }
    Ok(connections)
}

fn share(said: &Said, allowed: u64, kept: u64) -> Result<Connections, Failure> {
    let room = allowed.saturating_sub(kept);
    let advice = "raise the limit: `ulimit -n` in a shell, LimitNOFILE= in a unit of systemd, --ulimit \
                  nofile= of a container";
    if room == 0 {
        let what = format!(
            "this process may open {allowed} files, and the log and the server themselves need {kept}"
        );
        return Err(Failure::usage(what).hint(advice));
    }
    let room = usize::try_from(room).unwrap_or(usize::MAX);
    if said.max_is_given && said.max > room {
        let what = format!(
            "connections-max is {}, but this process may open {allowed} files, of which {kept} are kept \
             for the log: that leaves {room} connections",
            said.max
        );
        return Err(Failure::usage(what).hint(format!(
            "set connections-max to {room} or less, or {advice}"
        )));
    }
    let max = said.max.min(room);
    let per_address_max = if said.per_address_is_given {
        said.per_address_max
    } else {
        // Three quarters, so that one address cannot take all of them.
        said.per_address_max.min((max - max / 4).max(1))
    };
    Ok(Connections {
        max,
        per_address_max,
    })
}

/// Raises the limit to what the process may raise it to, and returns what it is then. The usual 1,024 is
/// there only for programs older than `poll`.
fn allow_open_files() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raise = |current| setrlimit(Resource::Nofile, Rlimit { current, maximum });
    if let Err(error) = raise(maximum) {
        // A system that says it has no limit may have one all the same.
        let is_raised =
            current.is_none_or(|current| current >= USUAL_MAX) || raise(Some(USUAL_MAX)).is_ok();
        if !is_raised {
            warn!(%error, "cannot raise the limit of open files");
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING_SAID: Said = Said {
        max: 16_384,
        max_is_given: false,
        per_address_max: 12_288,
        per_address_is_given: false,
    };

    /// The help of `--connections-max` has the number.
    #[test]
    fn so_many_are_kept_as_the_help_says() {
        let kept = lockgate_log::LocalLogOptions::default().files_max() as u64 + OTHERS;
        assert_eq!(kept, 256);
    }

    fn of(said: &Said, allowed: u64) -> Result<(usize, usize), String> {
        let shared = share(said, allowed, 256).map_err(|failure| failure.to_string());
        shared.map(|it| (it.max, it.per_address_max))
    }

    #[test]
    fn connections_get_what_the_log_does_not_need() {
        for (allowed, connections) in [
            (u64::MAX, (16_384, 12_288)),
            (16_384 + 256, (16_384, 12_288)),
            (4_096, (3_840, 2_880)),
            (257, (1, 1)),
        ] {
            assert_eq!(of(&NOTHING_SAID, allowed), Ok(connections), "{allowed}");
        }
        let refused = of(&NOTHING_SAID, 256).unwrap_err();
        assert!(refused.contains("may open 256 files"), "{refused}");
    }

    #[test]
    fn what_somebody_asked_for_is_not_made_less_without_a_word() {
        let said = |max, per_address_max| Said {
            max,
            max_is_given: true,
            per_address_max,
            per_address_is_given: true,
        };
        assert_eq!(of(&said(3_840, 3_840), 4_096), Ok((3_840, 3_840)));
        assert_eq!(of(&said(16_384, 1), u64::MAX), Ok((16_384, 1)));
        let refused = of(&said(3_841, 1), 4_096).unwrap_err();
        assert!(refused.contains("leaves 3840 connections"), "{refused}");
    }
}
