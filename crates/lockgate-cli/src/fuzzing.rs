//! What a fuzzer gives its bytes to; no interface for anybody else. Each function says whether the
//! bytes were taken, and why not.

use std::path::Path;

use crate::{
    queue_file::{Format, QueueFile},
    settings::{access_keys, file::ConfigFile},
};

pub use crate::commands::{
    analyze::fuzz as requests, send::fuzz_line as send_line, size::fuzz as sizing_model,
};

/// A file of queues in TOML.
pub fn queues_toml(bytes: &[u8]) -> Result<(), String> {
    queues(bytes, Format::Toml)
}

/// A file of queues in ElasticMQ's form, which is HOCON.
pub fn queues_hocon(bytes: &[u8]) -> Result<(), String> {
    queues(bytes, Format::ElasticMq)
}

fn queues(bytes: &[u8], format: Format) -> Result<(), String> {
    let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let file =
        QueueFile::parse(Path::new("q"), text, format).map_err(|failure| failure.to_string())?;
    assert_eq!(file.declared(), file.declared(), "what it declares");
    assert_eq!(file.exchanges(), file.exchanges(), "what it declares");
    Ok(())
}

/// A configuration file.
pub fn config(bytes: &[u8]) -> Result<(), String> {
    let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let file = ConfigFile::parse(Path::new("c"), text);
    file.problems.into_iter().next().map_or(Ok(()), Err)
}

/// A file of access keys.
pub fn access_keys(bytes: &[u8]) -> Result<(), String> {
    let text = str::from_utf8(bytes).map_err(|error| error.to_string())?;
    access_keys::fuzz(text)
}
