//! `docs/internals/reliability.md`, from the figures of a run.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// What stands above the figures.
const HEAD: &str = "\
# Reliability

Written by `cargo xtask torture` from the figures of one run; not to be edited by hand. What is promised
is in [semantics.md](../semantics.md); here is what was done to break it.

Two harnesses do it, each with a checker that sees only what clients were told:

- **Simulation** (`lockgate-sim`): the engine, the machine and the log over a disk in memory that loses
  any subset of what was not synced, tears writes, fails syncs and then lies, misreads, decays and fills
  up. One seed is one history, and replays.
- **Real kernels** (`lockgate-torture`): the `lockgate serve` binary, loaded by HTTP clients, over ext4
  and XFS that are made for the test.
";

/// What the faults of real kernels are.
const KERNEL_FAULTS: [(&str, &str); 5] = [
    (
        "kill",
        "SIGKILL at random moments, one in three as soon as a snapshot is being written, one in four also in \
         the recovery from the one before.",
    ),
    (
        "cut",
        "The file system is shut down under the server by the kernel's own call for it, without a flush of \
         its journal; what was not synced is lost. The server dies up to 30 ms later. Some cuts also give \
         the next server another boot id, as a start of the machine does.",
    ),
    (
        "thin",
        "The image under the file system runs out of room, so that `fdatasync` fails once and the pages are \
         gone. The server must stop, say why, and exit with an error; it starts again after the repair.",
    ),
    (
        "freeze",
        "`fsfreeze` for 1 to 37 s: writes hang in the kernel. `/readyz` fails or sends are refused, nothing \
         is acknowledged, memory stays bounded; half of them also get SIGTERM meanwhile.",
    ),
    (
        "full",
        "Producers fill the disk. Sends are refused with the reason; receives, acks and purges go on, acks \
         alone make room, sends are taken again without help. Half of them are killed and started while full.",
    ),
];

/// What stands below them.
const TAIL: &str = "
## What these figures do not say

- A fault is *effective* if it met work under way: a cut, kill or freeze while requests waited whose
  answers it took, a failed sync that stopped the server, a disk so full that sends were refused.
- *In a snapshot*: servers that left a snapshot half written, by a kill or by a cut; the next start began
  from the one before.
- Cuts of a file system prove the order of our writes and syncs over the kernel's; a drive that lies
  about flushes is another matter, and was not tried.
- A loop device of Linux 6.18 takes a write that found room only for its first pages for a whole one: the
  sync succeeds and the bytes are gone. The checker found it on its first day as lost messages; the thin
  volumes use requests of one page for that reason. No log survives a disk that says yes and means no.
- Messages are counted per history: a history ends with empty queues, and begins with an empty folder.

## Again

`cargo xtask torture --hours H` as root on Linux, with e2fsprogs and xfsprogs; `--only` names the faults.
`./scripts/test --only faults` is the short form. A failed episode leaves its server log and history behind.
";

pub(super) fn text(run: &Value) -> Result<String> {
    let mut text = HEAD.to_owned();
    let word = |name: &str| run[name].as_str().unwrap_or("unknown");
    let date = day(run["date"].as_u64().context("date")?);
    writeln!(text, "\n## The run\n")?;
    writeln!(text, "- {date}, commit {}", word("commit"))?;
    writeln!(text, "- {}", word("build"))?;
    writeln!(text, "- {}", word("machine"))?;
    real_kernels(&mut text, &run["kernel"])?;
    simulation(&mut text, &run["seeds"])?;
    text.push_str(TAIL);
    Ok(text)
}

fn real_kernels(text: &mut String, kernel: &Value) -> Result<()> {
    writeln!(text, "\n## Real kernels\n")?;
    let Some(faults) = kernel["faults"].as_array() else {
        writeln!(text, "Not run.")?;
        return Ok(());
    };
    let seconds = kernel["seconds"].as_f64().unwrap_or_default();
    let lanes = kernel["lanes"].as_u64().unwrap_or_default();
    writeln!(
        text,
        "{} in all, {lanes} servers at a time.\n",
        duration(seconds)
    )?;
    for (name, what) in KERNEL_FAULTS {
        if faults.iter().any(|figures| figures["fault"] == name) {
            writeln!(text, "- **{name}**: {what}")?;
        }
    }
    let columns = [
        ("injected", "injected"),
        ("effective", "effective"),
        ("kills", "kills"),
        ("in a snapshot", "in_snapshot"),
        ("sent", "sent"),
        ("acknowledged", "acked"),
        ("delivered", "delivered"),
        ("unknown outcomes", "unknown"),
        ("refused", "refused"),
    ];
    table(text, faults, &columns)?;
    let columns = [
        ("lost", "lost"),
        ("undone", "undone"),
        ("reordered", "reordered"),
        ("two in flight", "two_in_flight"),
        ("other", "other"),
        ("recovery at most, ms", "recovery_ms_max"),
    ];
    table(text, faults, &columns)?;
    writeln!(
        text,
        "\n*Lost*: a message whose send was acknowledged and that was never delivered. *Undone*: one that came \
         back after its ack was acknowledged. *Reordered*: a message of a key before an earlier one. *Two in \
         flight*: a key with two holders. *Other*: a unique id with two messages, a message that nobody sent or \
         that was refused, an attempt counted twice, an answer in a freeze, damage reported where none was made, \
         a server that did not say why it ended. *Recovery*: from the start of a process to its first answer."
    )?;
    let problems = faults
        .iter()
        .filter_map(|figures| figures["problems"].as_array())
        .flatten();
    for problem in problems.filter_map(Value::as_str) {
        writeln!(text, "- broken: {problem}")?;
    }
    Ok(())
}

fn table(text: &mut String, faults: &[Value], columns: &[(&str, &str)]) -> Result<()> {
    let sum = |column: &str| -> u64 {
        let numbers = faults.iter().filter_map(|figures| figures[column].as_u64());
        if column.ends_with("_max") {
            numbers.max().unwrap_or_default()
        } else {
            numbers.sum()
        }
    };
    write!(text, "\n| fault | on |")?;
    for (title, _) in columns {
        write!(text, " {title} |")?;
    }
    writeln!(text, "\n|---|---|{}", "---:|".repeat(columns.len()))?;
    for figures in faults {
        let word = |name: &str| figures[name].as_str().unwrap_or("any");
        write!(text, "| {} | {} |", word("fault"), word("file_system"))?;
        for (_, column) in columns {
            write!(
                text,
                " {} |",
                grouped(figures[*column].as_u64().unwrap_or_default())
            )?;
        }
        writeln!(text)?;
    }
    write!(text, "| all | |")?;
    for (_, column) in columns {
        write!(text, " **{}** |", grouped(sum(column)))?;
    }
    writeln!(text)?;
    Ok(())
}

fn simulation(text: &mut String, seeds: &Value) -> Result<()> {
    writeln!(text, "\n## Simulation\n")?;
    let Some(faults) = seeds["faults"].as_array() else {
        writeln!(text, "Not run.")?;
        return Ok(());
    };
    let count = |value: &Value| grouped(value.as_u64().unwrap_or_default());
    writeln!(
        text,
        "{} in all, from seed {} on; promises broken: **{}**.\n",
        duration(seeds["seconds"].as_f64().unwrap_or_default()),
        seeds["first_seed"],
        count(&seeds["violations"])
    )?;
    writeln!(text, "| fault | injected | effective |\n|---|---:|---:|")?;
    for fault in faults {
        let name = spaced(fault["fault"].as_str().unwrap_or_default());
        let (injected, effective) = (count(&fault["injected"]), count(&fault["effective"]));
        writeln!(text, "| {name} | {injected} | {effective} |")?;
    }
    if let Some(counts) = seeds["counts"].as_object() {
        writeln!(text, "\n| what | times |\n|---|---:|")?;
        for (name, times) in counts {
            writeln!(text, "| {name} | {} |", count(times))?;
        }
    }
    Ok(())
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn duration(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else if seconds < 5400.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

/// `FailedSync` as people write it.
fn spaced(name: &str) -> String {
    let mut text = String::new();
    for (place, letter) in name.chars().enumerate() {
        if place > 0 && letter.is_uppercase() {
            text.push(' ');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// The date of a time in seconds since 1970: days to a civil date, after Howard Hinnant's algorithm.
fn day(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (1_709_251_199, "2024-02-29"),
            (1_709_251_200, "2024-03-01"),
            (1_798_761_599, "2026-12-31"),
        ] {
            assert_eq!(day(seconds), date);
        }
    }

    #[test]
    fn numbers_and_names_are_for_people() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(123_456), "123,456");
        assert_eq!(spaced("FailedSync"), "failed sync");
    }

    #[test]
    fn what_was_not_run_is_said() {
        let run = json!({ "date": 0, "commit": "abc", "machine": "one", "kernel": null });
        let text = text(&run).unwrap();
        assert_eq!(text.matches("Not run.").count(), 2);
    }

    #[test]
    fn figures_are_added_up() {
        let of = |place: &str, cuts: u64, recovery: u64| {
            json!({ "fault": "cut", "file_system": place, "injected": cuts, "lost": 0, "in_snapshot": 7,
                    "recovery_ms_max": recovery, "problems": [] })
        };
        let kernel = json!({ "seconds": 7200.0, "lanes": 3,
                             "faults": [of("ext4", 1000, 20), of("xfs", 234, 30)] });
        let run = json!({ "date": 0, "commit": "abc", "machine": "one", "kernel": kernel });
        let text = text(&run).unwrap();
        assert!(text.contains("| all | | **1,234** |"), "{text}");
        assert!(text.contains("**30** |\n"), "{text}");
        assert!(text.contains("| **14** |"), "{text}");
        assert!(text.contains("2.0 h in all"), "{text}");
    }
}
