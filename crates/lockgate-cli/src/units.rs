//! Durations, sizes and names as people write them: `500ms`, `5s`, `10MiB`.

use std::time::Duration;

pub(crate) use lockgate_core::units::{
    bytes as size, round_bytes as show_bytes, show_bytes as show_size,
};
use lockgate_core::{QueueName, units};
pub(crate) use lockgate_inspect::setting_json;
use lockgate_machine::QueueSettings;

/// Reads a duration as [`units::millis`] does.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    units::millis(text).map(Duration::from_millis)
}

/// Reads how long a lease may last: up to what the machine allows.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let lease = duration(text)?;
    let max = Duration::from_millis(QueueSettings::LEASE_MAX);
    if lease > max {
        let max = show_duration(max);
        return Err(format!("{text:?} is too long, a lease lasts up to {max}"));
    }
    Ok(lease)
}

/// The same of a lease that somebody wants to hold.
pub(crate) fn receive_lease(text: &str) -> Result<Duration, String> {
    match lease(text)? {
        Duration::ZERO => Err(
            "a lease of 0s is over before the message is there, and counts as an \
                               attempt: to look, use --nack or `lockgate peek`"
                .to_owned(),
        ),
        lease => Ok(lease),
    }
}

/// Reads a queue's name. One that the server has no queue of is refused by it, one that it cannot have is
/// refused here, in the same words everywhere.
pub(crate) fn queue_name(text: &str) -> Result<String, String> {
    match QueueName::new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(
            "a queue name is 1 to 80 letters, digits, '-' and '_', and ends in .fifo if the queue keeps \
             the order of its keys"
                .to_owned(),
        ),
    }
}

/// Writes a duration so that [`duration`] reads it back.
pub(crate) fn show_duration(duration: Duration) -> String {
    units::show_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
