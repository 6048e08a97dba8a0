//! Tests that run for as long as one likes, and write down what they did.

mod kernel;
mod report;
mod seeds;

use anyhow::Result;

pub(crate) const USAGE: &str = "\
Usage: cargo xtask torture [--hours H | --minutes M | --rounds N] [--only FAULTS] [--json FILE]
       cargo xtask torture seeds [--seeds N [--first SEED] | --minutes M] [--json FILE]
       cargo xtask torture workers [--seeds N [--first SEED] | --minutes M]
       cargo xtask torture report FILE

Without a word of its own: everything, for a time or for so many faults of each kind (default: 100),
and docs/internals/reliability.md from its figures. Faults are cut, thin, freeze, full, kill, seeds; all but the
last two need root on Linux.

  seeds    random histories of the whole shard over a disk that fails in every way, one seed each;
           prints what was injected, what of it had an effect, and how to replay a seed that fails
  workers  random histories of workers over a whole shard, in virtual time, one seed each
  report   docs/internals/reliability.md from the figures of an earlier run
";

/// Runs what comes after `torture`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["seeds", rest @ ..] => seeds::run(&seeds::SHARD, rest),
        ["workers", rest @ ..] => seeds::run(&seeds::WORKERS, rest),
        ["report", json] => kernel::report_again(json),
        rest => kernel::run(rest),
    }
}
