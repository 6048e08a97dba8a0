//! A queue's settings, annotations and tags as bytes.
//!
//! To change them, read "Changing it" in the module above. All settings are written, also those
//! that have their default: a later version may have other defaults, and an existing queue must not
//! change with them. Fields, with the numbers taken for ever:

use std::collections::BTreeMap;

use lockgate_core::{MachineTime, QueueName};

use super::{
    DecodeError, message,
    wire::{CRITICAL, Reader, Writer},
};
use crate::{DeadLetter, Dedup, DedupScope, KeyPolicy, KeyProfile, QueueSettings, Quota};

/// 0 or 1.
const KEYED: u8 = 1;
/// One byte: the level's number.
const LEVEL: u8 = 2;
/// Milliseconds.
const LEASE: u8 = 3;
/// Milliseconds.
const DELAY: u8 = 4;
/// Milliseconds.
const RETENTION: u8 = 5;
/// Milliseconds.
const RECEIVE_WAIT: u8 = 6;
/// Bytes.
const MESSAGE_BYTES_MAX: u8 = 7;
/// Milliseconds.
const DEDUP_WINDOW: u8 = 8;
/// One byte: 1 queue, 2 key.
const DEDUP_SCOPE: u8 = 9;
/// 0 or 1.
const DEDUP_CONTENT_BASED: u8 = 10;
/// Bytes.
const DEDUP_BYTES_MAX: u8 = 11;
/// 0 or 1.
const DEDUP_SURVIVES_PURGE: u8 = 12;
/// Attempts, then the queue's name to the end. Absent: no dead-letter queue.
const DEAD_LETTER: u8 = 13;
/// One byte: 1 block, 2 skip, 3 park. Absent: not set.
const KEY_POLICY: u8 = 14;
/// Attempts.
const PARK_AFTER: u8 = 15;
/// One byte: 1 SQS, 2 strict.
const KEY_PROFILE: u8 = 16;
/// Messages.
const QUOTA_MESSAGES: u8 = 17;
/// Bytes.
const QUOTA_BYTES: u8 = 18;
/// Messages.
const IN_FLIGHT_MAX: u8 = 19;
/// Milliseconds. Absent: as the log.
const SYNC_AFTER: u8 = 20;
/// Records. Absent: as the log.
const SYNC_RECORDS: u8 = 21;

/// Keys. Absent: 0. A version that does not know it would give a key's next message no number.
const KEY_SEQUENCES: u8 = 22 | CRITICAL;
/// Machine time, milliseconds. Absent: the scope was never changed. A version that does not know it
/// would take a duplicate for a new message.
const DEDUP_SCOPE_FROM: u8 = 23 | CRITICAL;

/// The fields a record of this format always has.
const ALWAYS: u32 = ((1 << (IN_FLIGHT_MAX + 1)) - 2) & !(1 << DEAD_LETTER) & !(1 << KEY_POLICY);

pub(super) fn write(settings: &QueueSettings, writer: &mut Writer<'_>) {
    let QueueSettings {
        keyed,
        level,
        lease,
        delay,
        retention,
        receive_wait,
        message_bytes_max,
        dedup,
        dead_letter,
        key_policy,
        park_after,
        key_profile,
        quota,
        in_flight_max,
        sync_window,
        key_sequences_max,
    } = settings;
    let Dedup {
        window,
        scope,
        scope_from,
        content_based,
        bytes_max: dedup_bytes_max,
        survives_purge,
    } = dedup;
    let Quota {
        messages_max,
        bytes_max,
    } = quota;
    writer.tagged_bytes(KEYED, &[u8::from(*keyed)]);
    writer.tagged_bytes(LEVEL, &[*level as u8]);
    writer.tagged_number(LEASE, *lease);
    writer.tagged_number(DELAY, *delay);
    writer.tagged_number(RETENTION, *retention);
    writer.tagged_number(RECEIVE_WAIT, *receive_wait);
    writer.tagged_number(MESSAGE_BYTES_MAX, u64::from(*message_bytes_max));
    writer.tagged_number(DEDUP_WINDOW, *window);
    writer.tagged_bytes(DEDUP_SCOPE, &[*scope as u8]);
    writer.tagged_bytes(DEDUP_CONTENT_BASED, &[u8::from(*content_based)]);
    writer.tagged_number(DEDUP_BYTES_MAX, *dedup_bytes_max);
    writer.tagged_bytes(DEDUP_SURVIVES_PURGE, &[u8::from(*survives_purge)]);
    if let Some(DeadLetter {
        queue,
        attempts_max,
    }) = dead_letter
    {
        writer.tagged(DEAD_LETTER, |writer| {
            writer.number(u64::from(*attempts_max));
            writer.raw(queue.as_str().as_bytes());
        });
    }
    if let Some(policy) = key_policy {
        writer.tagged_bytes(KEY_POLICY, &[*policy as u8]);
    }
    writer.tagged_number(PARK_AFTER, u64::from(*park_after));
    writer.tagged_bytes(KEY_PROFILE, &[*key_profile as u8]);
    writer.tagged_number(QUOTA_MESSAGES, *messages_max);
    writer.tagged_number(QUOTA_BYTES, *bytes_max);
    writer.tagged_number(IN_FLIGHT_MAX, u64::from(*in_flight_max));
    if let Some(after) = sync_window.after {
        writer.tagged_number(SYNC_AFTER, after);
    }
    if let Some(records) = sync_window.records {
        writer.tagged_number(SYNC_RECORDS, records);
    }
    if *key_sequences_max > 0 {
        writer.tagged_number(KEY_SEQUENCES, u64::from(*key_sequences_max));
    }
    if let Some(from) = scope_from {
        writer.tagged_number(DEDUP_SCOPE_FROM, from.0);
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Box<QueueSettings>, DecodeError> {
    let mut settings = Box::new(QueueSettings::default());
    let mut seen = 0_u32;
    reader.fields(|tag, value| {
        match tag {
            KEYED => settings.keyed = value.flag()?,
            LEVEL => settings.level = message::level(value)?,
            LEASE => settings.lease = value.number()?,
            DELAY => settings.delay = value.number()?,
            RETENTION => settings.retention = value.number()?,
            RECEIVE_WAIT => settings.receive_wait = value.number()?,
            MESSAGE_BYTES_MAX => settings.message_bytes_max = value.small()?,
            DEDUP_WINDOW => settings.dedup.window = value.number()?,
            DEDUP_SCOPE => {
                settings.dedup.scope = match value.byte()? {
                    1 => DedupScope::Queue,
                    2 => DedupScope::Key,
                    number => return Err(value.newer("deduplication scope", number)),
                }
            }
            DEDUP_CONTENT_BASED => settings.dedup.content_based = value.flag()?,
            DEDUP_BYTES_MAX => settings.dedup.bytes_max = value.number()?,
            DEDUP_SURVIVES_PURGE => settings.dedup.survives_purge = value.flag()?,
            DEAD_LETTER => {
                let attempts_max = value.small()?;
                let queue = queue_name(value.rest_text()?, value)?;
                settings.dead_letter = Some(DeadLetter {
                    queue,
                    attempts_max,
                });
            }
            KEY_POLICY => {
                settings.key_policy = Some(match value.byte()? {
                    1 => KeyPolicy::Block,
                    2 => KeyPolicy::Skip,
                    3 => KeyPolicy::Park,
                    number => return Err(value.newer("key policy", number)),
                });
            }
            PARK_AFTER => settings.park_after = value.small()?,
            KEY_PROFILE => {
                settings.key_profile = match value.byte()? {
                    1 => KeyProfile::Sqs,
                    2 => KeyProfile::Strict,
                    number => return Err(value.newer("key profile", number)),
                }
            }
            QUOTA_MESSAGES => settings.quota.messages_max = value.number()?,
            QUOTA_BYTES => settings.quota.bytes_max = value.number()?,
            IN_FLIGHT_MAX => settings.in_flight_max = value.small()?,
            SYNC_AFTER => settings.sync_window.after = Some(value.number()?),
            SYNC_RECORDS => settings.sync_window.records = Some(value.number()?),
            DEDUP_SCOPE_FROM => settings.dedup.scope_from = Some(MachineTime(value.number()?)),
            KEY_SEQUENCES => settings.key_sequences_max = value.small()?,
            _ => return Ok(false),
        }
        seen |= 1 << (tag & !CRITICAL);
        Ok(true)
    })?;
    if seen & ALWAYS != ALWAYS {
        return Err(reader.malformed("a setting is missing"));
    }
    Ok(settings)
}

/// For each entry: name and value, each with its length, in rising order of the names.
pub(super) fn write_map(map: &BTreeMap<String, String>, writer: &mut Writer<'_>) {
    for (name, value) in map {
        writer.bytes(name.as_bytes());
        writer.bytes(value.as_bytes());
    }
}

pub(super) fn read_map(reader: &mut Reader<'_>) -> Result<BTreeMap<String, String>, DecodeError> {
    let mut map = BTreeMap::new();
    while !reader.is_at_end() {
        let name = reader.counted_text()?.to_owned();
        let value = reader.counted_text()?.to_owned();
        if map.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return Err(reader.malformed("names are not in rising order"));
        }
        map.insert(name, value);
    }
    Ok(map)
}

pub(super) fn queue_name(text: &str, reader: &Reader<'_>) -> Result<QueueName, DecodeError> {
    QueueName::new(text).map_err(|_| reader.malformed("no queue name"))
}
