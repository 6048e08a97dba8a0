//! Tests that run for as long as one likes, and write down what they did.

mod kernel;
mod seeds;

use anyhow::Result;

pub(crate) const USAGE: &str = "\
Usage: cargo xtask torture [seeds] [--seeds N [--first SEED] | --minutes M] [--json FILE]
       cargo xtask torture kernel [OPTIONS]

  seeds    random histories of the whole shard over a disk that fails in every way, one seed each;
           prints what was injected, what of it had an effect, and how to replay a seed that fails
  kernel   the real server on real file systems whose power is cut and whose syncs fail; as root
";

/// Runs what comes after `torture`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["kernel", rest @ ..] => kernel::run(rest),
        ["seeds", rest @ ..] | rest => seeds::run(rest),
    }
}
