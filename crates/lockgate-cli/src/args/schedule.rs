//! The commands about schedules.

use std::{path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use lockgate_core::{PRIORITY_MAX, ScheduleName};

use super::{admin::instant, typed_pair};
use crate::{
    settings::ClientFlags,
    units::{delay, duration, queue_name},
};

/// Send messages at times: once, at a fixed rate, or as a cron expression says
///
/// The server fires schedules by itself, also after a restart, and never early. Each firing is one message with the headers
/// lockgate.schedule and lockgate.scheduled-at. With --queue, list, show, run, cancel and move are about one delayed message of
/// that queue instead, by its id.
#[derive(Debug, Subcommand)]
pub(crate) enum Schedule {
    Create(Box<ScheduleCreate>),
    List(ScheduleList),
    Show(ScheduleShow),
    Run(ScheduleRun),
    Pause(SchedulePause),
    Resume(ScheduleResume),
    Cancel(ScheduleCancel),
    Move(ScheduleMove),
}

impl Schedule {
    pub(crate) fn settings(&self) -> &ClientFlags {
        match self {
            Self::Create(args) => &args.settings,
            Self::List(args) => &args.settings,
            Self::Show(args) => &args.one.settings,
            Self::Run(args) => &args.one.settings,
            Self::Pause(args) => &args.schedule.settings,
            Self::Resume(args) => &args.schedule.settings,
            Self::Cancel(args) => &args.one.settings,
            Self::Move(args) => &args.one.settings,
        }
    }
}

fn schedule_name(text: &str) -> Result<String, String> {
    ScheduleName::new(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// A schedule, or with --queue a delayed message.
#[derive(Debug, Args)]
pub(crate) struct OneSchedule {
    /// The schedule's name; with --queue the id of a message
    #[arg(value_name = "NAME|ID")]
    pub(crate) name: String,

    /// Queue of a delayed message
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: Option<String>,

    /// Only if it has this generation
    #[arg(long, value_name = "N", conflicts_with = "queue")]
    pub(crate) generation: Option<u64>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CatchUpFlag {
    Skip,
    Once,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OverlapFlag {
    Allow,
    Skip,
    Queue,
    Replace,
}

/// Make a schedule, or change the one of that name
///
/// If it is as asked, nothing changes, so the command may be repeated. A schedule that changes keeps its next time unless its
/// timing changes. The message's body is BODY or the bytes of --file.
///
/// A cron expression has five fields (minute, hour, day of month, month, day of week), or six with seconds first. Where the clock
/// of the zone is set forward, a fixed time that does not exist fires once right behind the gap; where it is set back, a fixed time
/// fires once.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("when").required(true).args(["cron", "every", "at", "after"])))]
#[command(group(ArgGroup::new("target").required(true).args(["queue", "exchange"])))]
#[command(after_help = "\
Examples:
  lockgate schedule create report --cron '0 9 * * mon-fri' --zone Europe/Berlin --queue mail 'weekly report'
  lockgate schedule create tick --every 30s --queue jobs.fifo --key clock --overlap skip tick
  lockgate schedule create launch --at 2027-01-01T09:00:00Z --exchange news --routing-key launch 'we are live'
  lockgate schedule create report --cron '0 9 * * mon-fri' --zone Europe/Berlin --queue mail --dry-run x")]
pub(crate) struct ScheduleCreate {
    /// The schedule's name
    #[arg(value_name = "NAME", value_parser = schedule_name)]
    pub(crate) name: String,

    /// The body of its messages [default: empty]
    #[arg(value_name = "BODY")]
    pub(crate) body: Option<String>,

    /// File whose bytes are the body
    #[arg(long, short, value_name = "FILE", conflicts_with = "body")]
    pub(crate) file: Option<PathBuf>,

    /// Fire as this cron expression says
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) cron: Option<String>,

    /// Time zone of --cron, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) zone: Option<String>,

    /// Fire once in so much time, 100ms to 36525d
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) every: Option<Duration>,

    /// First time of --every [default: one period from now]
    #[arg(long, value_name = "INSTANT", value_parser = instant, requires = "every")]
    pub(crate) from: Option<jiff::Timestamp>,

    /// Fire once, at this instant
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    pub(crate) at: Option<jiff::Timestamp>,

    /// Fire once, after this time
    #[arg(id = "after", long = "in", value_name = "TIME", value_parser = delay)]
    pub(crate) after: Option<Duration>,

    /// Queue that gets the messages
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: Option<String>,

    /// Exchange to which the messages are published
    #[arg(long, value_name = "EXCHANGE")]
    pub(crate) exchange: Option<String>,

    /// Routing key of the messages [default: empty]
    #[arg(long, value_name = "KEY", requires = "exchange")]
    pub(crate) routing_key: Option<String>,

    /// Ordering key of the messages, for a keyed queue
    #[arg(long, short, value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Group of the messages, for an unkeyed queue
    #[arg(long, short, value_name = "GROUP", conflicts_with = "key")]
    pub(crate) group: Option<String>,

    /// Header of the messages, NAME=VALUE or NAME:TYPE=VALUE; repeatable
    #[arg(long, short = 'H', value_name = "NAME=VALUE", value_parser = typed_pair)]
    pub(crate) header: Vec<(String, String, String)>,

    /// How urgent the messages are, 0 to 9 [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=i64::from(PRIORITY_MAX)))]
    pub(crate) priority: Option<u8>,

    /// What becomes of times that were missed: skip, once (fire once for all of them) or all
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = CatchUpFlag::Once, hide_possible_values = true)]
    pub(crate) catch_up: CatchUpFlag,

    /// What happens while the last message is still in its queue: allow, skip, queue (wait for it) or replace
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = OverlapFlag::Allow, hide_possible_values = true)]
    pub(crate) overlap: OverlapFlag,

    /// A time to which the schedule comes later than this is missed
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1m")]
    pub(crate) late_max: Duration,

    /// Only if it has this generation; 0: only if there is none of the name
    #[arg(long, value_name = "N")]
    pub(crate) generation: Option<u64>,

    /// Print the next ten times, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// List schedules, or the delayed messages of a queue
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate schedule list
  lockgate schedule list report- --json | jq -r .next_at
  lockgate schedule list --queue mail")]
pub(crate) struct ScheduleList {
    /// Only names that start with this
    #[arg(value_name = "PREFIX", conflicts_with = "queue")]
    pub(crate) prefix: Option<String>,

    /// List the delayed messages of this queue
    #[arg(long, value_name = "QUEUE", value_parser = queue_name)]
    pub(crate) queue: Option<String>,

    /// Stop after this many
    #[arg(long, short, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max: u64,

    /// Print one JSON object for each
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Show a schedule with its next times and counts, or a delayed message
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate schedule show report
  lockgate schedule show --queue mail 00000001-0000-8000-8000-00000000a001")]
pub(crate) struct ScheduleShow {
    #[command(flatten)]
    pub(crate) one: OneSchedule,
}

/// Fire a schedule now beside its times, or let a delayed message be due now
///
/// If the schedule skips or waits while its last message is in its queue, the command exits with 4.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate schedule run report
  lockgate schedule run --queue mail 00000001-0000-8000-8000-00000000a001")]
pub(crate) struct ScheduleRun {
    #[command(flatten)]
    pub(crate) one: OneSchedule,
}

/// Cancel a schedule or a delayed message
///
/// The schedule is deleted; messages that it has sent stay.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate schedule cancel report
  lockgate schedule cancel --queue mail 00000001-0000-8000-8000-00000000a001")]
pub(crate) struct ScheduleCancel {
    #[command(flatten)]
    pub(crate) one: OneSchedule,
}

/// Give a schedule another next time, or a delayed message another due time
///
/// The schedule fires then instead of at its next time, and its series goes on behind both.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("when").required(true).args(["at", "after"])))]
#[command(after_help = "\
Examples:
  lockgate schedule move report --in 2h
  lockgate schedule move report --at 2027-01-01T09:00:00Z
  lockgate schedule move --queue mail 00000001-0000-8000-8000-00000000a001 --in 10m")]
pub(crate) struct ScheduleMove {
    #[command(flatten)]
    pub(crate) one: OneSchedule,

    /// At this instant
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    pub(crate) at: Option<jiff::Timestamp>,

    /// After this time
    #[arg(id = "after", long = "in", value_name = "TIME", value_parser = delay)]
    pub(crate) after: Option<Duration>,
}

/// Which schedule.
#[derive(Debug, Args)]
pub(crate) struct NamedSchedule {
    /// The schedule's name
    #[arg(value_name = "NAME", value_parser = schedule_name)]
    pub(crate) name: String,

    /// Only if it has this generation
    #[arg(long, value_name = "N")]
    pub(crate) generation: Option<u64>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) settings: ClientFlags,
}

/// Pause a schedule: it does not fire until it is resumed
///
/// Times that pass meanwhile are not missed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate schedule pause report")]
pub(crate) struct SchedulePause {
    #[command(flatten)]
    pub(crate) schedule: NamedSchedule,
}

/// Resume a schedule, from its first time after now on
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lockgate schedule resume report")]
pub(crate) struct ScheduleResume {
    #[command(flatten)]
    pub(crate) schedule: NamedSchedule,
}
