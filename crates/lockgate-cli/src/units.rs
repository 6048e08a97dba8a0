//! Durations, sizes and names as people write them: `500ms`, `5s`, `10MiB`.

use std::time::Duration;

pub(crate) use lockgate_core::units::{
    bytes as size, round_bytes as show_bytes, show_bytes as show_size,
};
use lockgate_core::{QueueName, RECORD_LEASE_MAX, limits::Rate, units};
pub(crate) use lockgate_inspect::setting_json;
use lockgate_machine::{Hold, QueueSettings, Settle};

/// Reads a duration as [`units::millis`] does.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    units::millis(text).map(Duration::from_millis)
}

/// Reads how many in a second: a number, or a rate as limits have it, such as `100/s` and `6000/m`.
pub(crate) fn per_second(text: &str) -> Option<f64> {
    if let Ok(number) = text.parse() {
        return Some(number).filter(|number: &f64| number.is_finite());
    }
    // A burst says nothing here.
    let rate: Rate = text.parse().ok().filter(|_| !text.contains(' '))?;
    #[expect(clippy::cast_precision_loss, reason = "a rate is no count")]
    Some(rate.units() as f64 * 1_000.0 / rate.period() as f64)
}

/// Reads a duration up to what the server takes.
fn up_to(max: u64, what: &str, text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if millis(time) <= max {
        return Ok(time);
    }
    let max = units::show_millis(max);
    Err(format!("{text:?} is too long: {what} lasts up to {max}"))
}

/// Reads how long a message waits before its delivery.
pub(crate) fn delay(text: &str) -> Result<Duration, String> {
    up_to(QueueSettings::DELAY_MAX, "a delay", text)
}

/// Reads how long a message that was received stays away.
pub(crate) fn retry_delay(text: &str) -> Result<Duration, String> {
    up_to(
        Settle::DELAY_MAX,
        "the delay of a message that was received",
        text,
    )
}

/// Reads how long a hold lasts; `none` ends one.
pub(crate) fn hold(text: &str) -> Result<Duration, String> {
    match text {
        "none" => Ok(Duration::ZERO),
        text => up_to(Hold::TIME_MAX, "a hold", text),
    }
}

/// Reads how long a lease lasts.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    match up_to(QueueSettings::LEASE_MAX, "a lease", text)? {
        Duration::ZERO => Err(
            "a lease lasts 1ms to 12h, not 0s: to look at messages use `lockgate peek`, to put received ones back \
             `lockgate defer`"
                .to_owned(),
        ),
        lease => Ok(lease),
    }
}

/// Reads how long the lease of a record lasts.
pub(crate) fn record_lease(text: &str) -> Result<Duration, String> {
    match up_to(RECORD_LEASE_MAX, "a lease", text)? {
        Duration::ZERO => Err("a lease lasts 1ms to 12h, not 0s".to_owned()),
        lease => Ok(lease),
    }
}

/// Reads a queue's name. One that the server has no queue of is refused by it, one that it cannot have is
/// refused here, in the same words everywhere.
pub(crate) fn queue_name(text: &str) -> Result<String, String> {
    match QueueName::new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!(
            "{text:?} is no queue name: write 1 to 80 letters, digits, '-' and '_', with .fifo at the end if the queue \
             keeps the order of its keys"
        )),
    }
}

/// A time as the API has it.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Writes a duration so that [`duration`] reads it back.
pub(crate) fn show_duration(duration: Duration) -> String {
    units::show_millis(millis(duration))
}
