//! `lockgate check`.

use lockgate_inspect::{Findings, Granted, Unreadable, Verdict};

use super::place;
use crate::{
    args::Check,
    exit::{Exit, Failure},
    output::{Output, Table, count},
    units::show_bytes,
};

/// So many files that would be changed are named.
const CHANGES_TOLD: usize = 8;

pub(crate) fn run(args: &Check) -> Result<(), Failure> {
    let (place, name) = place::open(&args.source)?;
    let what = format!("reading {name}");
    let findings = Findings::of(&place, name)
        .map_err(|error| Failure::from_error(Exit::of_log(&error), error).context(what))?;
    let mut output = Output::new();
    if args.json {
        output.json(&findings)?;
    } else {
        tell(&findings, &mut output)?;
    }
    output.flush()?;
    match findings.verdict {
        Verdict::Clean => Ok(()),
        Verdict::Damaged => Err(Failure::signal(Exit::Damaged)),
        Verdict::Refused => Err(Failure::signal(Exit::Refused)),
    }
}

/// What was found, for people.
fn tell(findings: &Findings, output: &mut Output) -> Result<(), Failure> {
    match &findings.files {
        Some(files) => {
            output.line(&format!(
                "{}: {}, {}, {}",
                findings.folder,
                count(files.segments, "segment"),
                count(files.snapshots, "snapshot"),
                show_bytes(files.bytes),
            ))?;
            if files.set_aside > 0 {
                output.line(&format!(
                    "  {} set aside by an earlier start",
                    count(files.set_aside, "damaged segment")
                ))?;
            }
        }
        None => output.line(&format!(
            "{}: {}",
            findings.folder,
            count(findings.snapshots.len() as u64, "snapshot")
        ))?,
    }
    if let Some(standby) = &findings.standby {
        output.line(&format!("  {standby}"))?;
    }
    if let Some(target) = &findings.unfinished_restore_of {
        output.line(&format!(
            "  a restore into {target} left it unfinished; nothing needs it, remove it"
        ))?;
    }
    if findings.unfinished_restore {
        output.line(
            "  a restore into it is under way or has left something unfinished beside it, which the next one removes",
        )?;
    }
    for snapshot in &findings.snapshots {
        let state = match (&snapshot.damage, &snapshot.contradiction) {
            (Some(damage), _) => format!("DAMAGED: {damage}"),
            (None, Some(contradiction)) => {
                format!("DAMAGED, and a start would load it: {contradiction}")
            }
            (None, None) => format!("whole, {}", show_bytes(snapshot.bytes)),
        };
        output.line(&format!("  snapshot {}: {state}", snapshot.position))?;
    }
    if let Some(start) = &findings.start {
        output.line(if findings.missing.is_empty() {
            "a start"
        } else {
            "a start with --accept-loss"
        })?;
        output.line(&format!(
            "  would {}read {} ({}) and begin epoch {} of shard {}",
            start
                .snapshot
                .as_ref()
                .map_or_else(String::new, |at| format!("load the snapshot {at}, ")),
            count(start.records, "record"),
            show_bytes(start.bytes),
            start.epoch,
            start.shard,
        ))?;
        if start.after_crash {
            output.line("  would say that the last run did not end in good order")?;
        }
        if start.tail_bytes_cut > 0 {
            output.line(&format!(
                "  would cut {} of a torn tail: nobody was told that they are durable",
                show_bytes(start.tail_bytes_cut)
            ))?;
        }
        for stretch in &start.damaged {
            output.line(&format!(
                "  would serve without {} at {} to {}: {}",
                count(stretch.records.unwrap_or(0), "record"),
                stretch.from,
                stretch.to,
                match &stretch.kept_as {
                    Some(name) => format!("DAMAGED, kept in {name}"),
                    None => "NOT THERE".to_owned(),
                },
            ))?;
        }
        if let Some(found) = &start.without_queue {
            output.line(&format!("  would serve without {}: LOST", found.told))?;
        }
        if start.undecodable > 0 {
            let records = count(start.undecodable, "record");
            output.line(&format!("  would skip {records} of no sense: DAMAGED"))?;
        }
        if start.possibly_lost > 0 {
            output.line(&format!(
                "  would say that crashes took at most {} of level memory",
                count(start.possibly_lost, "message")
            ))?;
        }
        for change in start.changes.iter().take(CHANGES_TOLD) {
            output.line(&format!("  would {change}"))?;
        }
        let more = start.changes.len().saturating_sub(CHANGES_TOLD) as u64;
        if more > 0 {
            let more = count(more, "more file");
            output.line(&format!("  would change {more}; --json names them"))?;
        }
    }
    if let Some(found) = &findings.records {
        output.line("the log")?;
        output.line(&format!(
            "  {} verified, {}",
            count(found.records, "record"),
            show_bytes(found.bytes)
        ))?;
        for stretch in &found.damaged {
            output.line(&format!(
                "  {} to {}: DAMAGED{}",
                stretch.from,
                stretch.to,
                (stretch.kept_as.as_ref()).map_or_else(String::new, |file| format!(", in {file}")),
            ))?;
        }
        output.line(&match found.unreadable {
            0 => format!(
                "  {} in the queues, all readable",
                count(found.messages, "message")
            ),
            unreadable => format!(
                "  {} in the queues, {unreadable} of them UNREADABLE",
                count(found.messages, "message")
            ),
        })?;
        tell_unreadable(&found.unreadable_in, output)?;
    }
    if let Some(index) = &findings.index {
        output.line("the index of unique ids")?;
        output.line(&match &index.damage {
            None => format!(
                "  {} verified, {}",
                count(index.ids, "unique id"),
                show_bytes(index.bytes)
            ),
            Some(damage) => format!("  DAMAGED: {damage}"),
        })?;
    }
    if let Some(values) = &findings.values {
        output.line(&format!(
            "  {} and {} take {} of memory",
            count(values.records, "named record"),
            count(values.states, "key state"),
            show_bytes(values.bytes)
        ))?;
    }
    if let Some(bytes) = findings.state_bytes {
        output.line(&format!(
            "  the state takes {} of memory",
            show_bytes(bytes)
        ))?;
    }
    if let Some(granted) = &findings.granted {
        tell_granted(granted, output)?;
    }
    let queues = findings.queues.as_deref().unwrap_or_default();
    if !queues.is_empty() {
        let mut table = Table::new([
            "QUEUE",
            "READY",
            "IN FLIGHT",
            "DELAYED",
            "BYTES",
            "KEYS",
            "UNIQUE IDS",
            "STATES",
            "COUNTS",
        ]);
        for queue in queues {
            table.row([
                queue.name.clone(),
                queue.ready.to_string(),
                queue.in_flight.to_string(),
                queue.delayed.to_string(),
                queue.bytes.to_string(),
                queue.keys.to_string(),
                queue.unique_ids.to_string(),
                queue.states.to_string(),
                if queue.conserved {
                    "add up"
                } else {
                    "DO NOT ADD UP"
                }
                .to_owned(),
            ]);
        }
        output.table(&table)?;
    }
    output.line(&match (&findings.refused, findings.verdict, findings.loads_contradiction()) {
        (Some(reason), ..) => format!("REFUSED: a start would end with: {reason}"),
        (None, _, Some(at)) => format!(
            "DAMAGED: a start would load the snapshot {at}, whose contents contradict each other: put it aside and \
             check again, or restore a backup"
        ),
        (None, Verdict::Damaged, None) if !findings.lacks_something() => {
            "DAMAGED: a start would do without what is damaged; nothing is lost with it".to_owned()
        }
        (None, Verdict::Damaged, None) => {
            "DAMAGED: a start would serve without what is damaged".to_owned()
        }
        (None, _, None) => "clean".to_owned(),
    })
}

/// Where messages had their payloads that cannot be read, for people.
fn tell_unreadable(unreadable: &[Unreadable], output: &mut Output) -> Result<(), Failure> {
    for place in unreadable {
        let from = || format!("the log from {} on", place.from);
        output.line(&format!(
            "    {} of them in {}{}",
            place.messages,
            place.file.clone().unwrap_or_else(from),
            if place.is_missing {
                ", which is not there"
            } else {
                ""
            }
        ))?;
    }
    if unreadable.iter().any(|place| place.file.is_some()) {
        output.line(
            "    a server that starts drops them: if you have those files, put them back before a start",
        )?;
    }
    Ok(())
}

/// What the queues may come to hold, for people.
fn tell_granted(granted: &Granted, output: &mut Output) -> Result<(), Failure> {
    let unique_ids = show_bytes(granted.unique_ids_bytes_max);
    output.line("the queues' limits")?;
    let owing_keys = match granted.owing_keys_bytes_max {
        0 => String::new(),
        bytes => format!(
            ", keys that owe a rate or a gap up to {}",
            show_bytes(bytes)
        ),
    };
    output.line(&match granted.memory_bytes_max {
        Some(bytes) => format!(
            "  add up to {} of memory, {unique_ids} of it for unique ids{owing_keys}",
            show_bytes(bytes)
        ),
        None => format!(
            "  set no limit to memory: any number of messages in {}; unique ids take up to {unique_ids}{owing_keys}",
            some_of(&granted.messages_without_limit)
        ),
    })?;
    output.line(&match granted.message_bytes_max {
        Some(bytes) => format!("  add up to {} of messages on the disk", show_bytes(bytes)),
        None => format!(
            "  set no limit to the disk: any number of bytes in {}",
            some_of(&granted.bytes_without_limit)
        ),
    })
}

/// The first few names.
fn some_of(names: &[String]) -> String {
    match names {
        [some @ .., _, _] if some.len() >= 3 => {
            let more = names.len() - 3;
            format!("{} and {more} more", names[..3].join(", "))
        }
        names => names.join(", "),
    }
}
