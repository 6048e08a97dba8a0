//! The commands about elections.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Subcommand};
use lockgate_core::{ElectionName, HolderName};

use crate::{
    settings::{CoordinationFlags, LeadFlags},
    units::duration,
};

/// Run a command in exactly one of many processes
///
/// Stands as a candidate of the election, and runs COMMAND when it leads: without a shell, with the standard input,
/// output and error of `lead`. Another process that runs the same line waits, and runs COMMAND when this one has ended.
/// The election is held by the server of --endpoint, or by the store that --via names.
///
/// COMMAND finds LOCKGATE_ELECTION, LOCKGATE_EPOCH and LOCKGATE_LEASE_DEADLINE in its environment. The epoch is higher than
/// that of every earlier leader: give it to whatever COMMAND writes to, which can then refuse a leader from before.
/// LOCKGATE_FENCE does that for all that COMMAND changes by this program (`lockgate send`, `lockgate record put`). The
/// deadline is when the lease ends at the latest without a renewal, in milliseconds since 1970. COMMAND is ended --margin
/// before that; `lead` renews the lease and moves the deadline, which COMMAND is not told.
///
/// COMMAND is in a process group of its own. Neither that nor whom it starts outlives the lease. If the lease is not renewed,
/// they get SIGTERM --notice before its end, and SIGKILL --margin before the store can let another one lead. A watchdog,
/// which is a process of its own in that group, does it also while `lead` is frozen, and at once if `lead` is killed. They are
/// found in other groups and sessions too (`timeout`, setsid, a daemon), by LOCKGATE_LEAD_MARKS in their environment: without
/// that, or as another user, a process that leaves the group is on its own.
///
/// SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2 and SIGWINCH go on to the group, and the first four to those beside it.
/// While `lead` waits to be elected, these four end it. When COMMAND has ended, what it has left gets SIGKILL, and then the
/// lease is given back, so the successor leads at once. If somebody asks for a switch (`lockgate leaders resign`), COMMAND
/// gets SIGTERM, and SIGKILL after --kill-after. COMMAND has no terminal: if it reads one or changes its settings, the term
/// ends.
///
/// --inaugurate and --hand-over are run by `sh -c` before and after COMMAND, within the same lease. The first one finds
/// the last checkpoint on its standard input, and LOCKGATE_PREDECESSOR_EPOCH if there was a term before; if it fails,
/// COMMAND is not run, nor --hand-over. The second one finds LOCKGATE_REASON (asked, end_of_term, lease_lost or error); if it
/// succeeds and prints something, that is the next checkpoint, of up to 128KiB. Behind a signal or a switch it has
/// --kill-after as well. --health is run again and again; if it fails, or takes
/// longer than --health-every, three times in a row, the term ends.
///
/// Exit codes: that of COMMAND, or 128 and the number of the signal that has ended it; 120 if it was not elected in time;
/// 121 if the leadership ended before COMMAND did; 122 if the store does not answer for as long as a lease, or as --timeout or
/// (with --try) 3 s if that is shorter; 126 and 127 if COMMAND cannot be run; 1 if --inaugurate or --health has failed, and if --hand-over has, where COMMAND has not.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate lead --election reports -- ./make-reports --hourly
  lockgate lead --election reports --via file:///var/lib/reports/election -- ./make-reports
  lockgate lead --election nightly --try -- ./nightly-job || [ $? = 120 ]
  lockgate lead --election billing --inaugurate 'cat > state' --hand-over 'cat state' -- ./bill")]
pub(crate) struct Lead {
    /// Election to stand in
    #[arg(long, value_name = "NAME", value_parser = election)]
    pub(crate) election: ElectionName,

    /// Name as a candidate, for people who look [default: the host's name and the process id]
    #[arg(long, value_name = "NAME", value_parser = holder)]
    pub(crate) name: Option<HolderName>,

    /// How long the leader leads without a renewal, and so how long its successor waits after a crash
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) lease: Duration,

    /// How long before the end of its lease nothing of COMMAND runs any more [default: a tenth of the lease]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) margin: Option<Duration>,

    /// How long before that COMMAND gets SIGTERM if the lease is not renewed [default: a fifth of the lease]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) notice: Option<Duration>,

    /// Lead now, or not at all
    #[arg(long = "try", conflicts_with = "wait")]
    pub(crate) try_once: bool,

    /// How long to wait for the election [default: for ever]
    #[arg(id = "wait", long = "timeout", value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// How long COMMAND may take to end after a signal, before it gets SIGKILL
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) kill_after: Duration,

    /// Command to run when it leads, before COMMAND
    #[arg(long, value_name = "SCRIPT")]
    pub(crate) inaugurate: Option<String>,

    /// Command to run when COMMAND has ended, before another one leads
    #[arg(long, value_name = "SCRIPT")]
    pub(crate) hand_over: Option<String>,

    /// Command that says by its exit code whether COMMAND is well
    #[arg(long, value_name = "SCRIPT")]
    pub(crate) health: Option<String>,

    /// How often --health is run, and how long it may take
    #[arg(long, value_name = "TIME", requires = "health", default_value = "10s", value_parser = health_every)]
    pub(crate) health_every: Duration,

    #[command(flatten)]
    pub(crate) settings: LeadFlags,

    /// What to run, with its arguments
    #[arg(value_name = "COMMAND", required = true, num_args = 1.., trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// Reads how often a check is run: at least every 10 ms.
fn health_every(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        every if every >= Duration::from_millis(10) => Ok(every),
        _ => Err(format!(
            "{text:?} is too short: a check takes at least 10ms"
        )),
    }
}

/// The process that ends a command when its term is over.
#[derive(Debug, Args)]
pub(crate) struct LeadWatchdog {
    /// What the environment has of all whom the command has started
    pub(crate) mark: String,
}

/// What `lead` runs in place of a command, which it then becomes.
#[derive(Debug, Args)]
pub(crate) struct LeadCommand {
    /// Process id of `lead`
    pub(crate) parent: i32,

    #[arg(required = true, num_args = 1.., trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// See who leads, and ask for a switch
///
/// Shows the elections of the server of --endpoint, or of the store that --via names.
#[derive(Debug, Subcommand)]
pub(crate) enum Leaders {
    List(LeadersList),
    Watch(LeadersWatch),
    Resign(LeadersResign),
}

impl Leaders {
    pub(crate) fn settings(&self) -> &CoordinationFlags {
        match self {
            Self::List(args) => &args.settings,
            Self::Watch(args) => &args.settings,
            Self::Resign(args) => &args.settings,
        }
    }
}

/// List elections, or show one with its history
///
/// Prints who leads, since when by its own clock, with which epoch, how long its lease lasts without a renewal, and who
/// waits to lead. With ELECTION it prints the terms of that election too, the newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate leaders list
  lockgate leaders list reports --json | jq -r .leader.name")]
pub(crate) struct LeadersList {
    /// Print a JSON object for each election: election, leader, candidates, history, last_checkpoint
    #[arg(long)]
    pub(crate) json: bool,

    /// Election to show [default: all that have had a leader]
    #[arg(value_name = "ELECTION", value_parser = election)]
    pub(crate) election: Option<ElectionName>,

    #[command(flatten)]
    pub(crate) settings: CoordinationFlags,
}

/// Print who leads, and again whenever that changes
///
/// Goes on until it is interrupted. On a terminal it prints a line of text for each change, into a pipe or a file, or with
/// --json, a JSON object. Of changes that follow one another quickly, the last is printed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate leaders watch reports
  lockgate leaders watch reports --json | jq -r .leader.name")]
pub(crate) struct LeadersWatch {
    /// Print a JSON object for each change, also on a terminal
    #[arg(long)]
    pub(crate) json: bool,

    /// Election to watch
    #[arg(value_name = "ELECTION", value_parser = election)]
    pub(crate) election: ElectionName,

    #[command(flatten)]
    pub(crate) settings: CoordinationFlags,
}

/// Ask a leader to hand over
///
/// The leader ends what it is at, leaves a checkpoint, and lets the next candidate lead. With --wait the command waits
/// until that has happened. Nothing happens to a leader that was elected since the command began.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate leaders resign reports --wait 1m")]
pub(crate) struct LeadersResign {
    /// Ask also if nobody stands who could lead next
    #[arg(long)]
    pub(crate) even_if_alone: bool,

    /// Wait so long for the switch; exit code 6 if the leader has not handed over then
    #[arg(long, short, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Print a JSON object: election, epoch, leader of the term that was asked to end; with --wait who leads now
    #[arg(long)]
    pub(crate) json: bool,

    /// Election whose leader is asked
    #[arg(value_name = "ELECTION", value_parser = election)]
    pub(crate) election: ElectionName,

    #[command(flatten)]
    pub(crate) settings: CoordinationFlags,
}

pub(super) fn election(text: &str) -> Result<ElectionName, String> {
    ElectionName::new(text).map_err(|error| error.to_string())
}

pub(super) fn holder(text: &str) -> Result<HolderName, String> {
    HolderName::new(text).map_err(|error| error.to_string())
}
