//! Makes right again what a decoder checks first: without that no change would get behind it.
//!
//! Follows `docs/internals/format.md`, not the code that is tested.

use crc32c::{crc32c, crc32c_append};
use lockgate_sim::SeededRandom;

use crate::disk::{HEADER_BYTES, RECORD_HEADER_BYTES, SNAPSHOT};

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..at + N) {
        place.copy_from_slice(&value);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number) as usize
}

pub(crate) fn planted(input: &mut [u8], _: &mut SeededRandom) {
    if input.len() >= 4 {
        let sum = crc32c(&input[4..]).to_le_bytes();
        put(input, 0, sum);
    }
}

/// Segments as [`disk::segments`](crate::disk::segments) takes them.
pub(crate) fn segments(input: &mut [u8], random: &mut SeededRandom) {
    let Some(rest) = input.len().checked_sub(2) else {
        return;
    };
    let first = usize::from(u16::from_le_bytes([input[0], input[1]])).min(rest);
    let (one, other) = input[2..].split_at_mut(first);
    let number = segment(one, 1, 1, random);
    segment(other, 2, number, random);
}

/// Returns the number that comes after its last record.
fn segment(bytes: &mut [u8], segment: u32, first_number: u64, random: &mut SeededRandom) -> u64 {
    if bytes.len() < HEADER_BYTES {
        return first_number;
    }
    let (header, mut records) = bytes.split_at_mut(HEADER_BYTES);
    put(header, 0, *b"LOCKGATE");
    if random.chance(95) {
        put(header, 8, 1u32.to_le_bytes());
        put(header, 12, segment.to_le_bytes());
    }
    if random.chance(80) {
        put(header, 32, first_number.to_le_bytes());
    }
    let sum = crc32c(&header[..60]).to_le_bytes();
    put(header, 60, sum);
    let generation: [u8; 8] = header[16..24].try_into().expect("eight bytes");
    let epoch: [u8; 8] = header[24..32].try_into().expect("eight bytes");
    let mut number = first_number;
    let mut offset = 4096;
    while records.len() >= RECORD_HEADER_BYTES {
        let room = records.len() - RECORD_HEADER_BYTES;
        let mut len = u32_at(records, 4);
        if len > room && random.chance(80) {
            len = room;
            put(
                records,
                4,
                u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes(),
            );
        }
        let len = len.min(room);
        if random.chance(95) {
            put(records, 8, generation);
        }
        if random.chance(90) {
            put(records, 16, epoch);
            put(records, 24, number.to_le_bytes());
        }
        let (record, later) = records.split_at_mut(RECORD_HEADER_BYTES + len);
        let position = (u64::from(segment) << 32) | offset;
        let sum = crc32c_append(crc32c(&position.to_le_bytes()), &record[4..]);
        put(record, 0, sum.to_le_bytes());
        offset += record.len() as u64;
        records = later;
        number += 1;
    }
    number
}

/// A snapshot as [`disk::snapshot`](crate::disk::snapshot) takes it.
pub(crate) fn snapshot(input: &mut [u8], random: &mut SeededRandom) {
    if input.len() < 32 {
        return;
    }
    put(input, 0, *b"LOCKSNAP");
    if random.chance(95) {
        put(input, 8, 1u32.to_le_bytes());
        put(input, 12, SNAPSHOT.0.to_le_bytes());
        put(input, 20, SNAPSHOT.1.to_le_bytes());
    }
    let sum = crc32c(&input[..28]).to_le_bytes();
    put(input, 28, sum);
    let mut rest = &mut input[32..];
    for index in 0u64.. {
        let Some(room) = rest.len().checked_sub(8) else {
            return;
        };
        let mut len = u32_at(rest, 4);
        if len != u32::MAX as usize && len > room && random.chance(80) {
            len = room;
            put(
                rest,
                4,
                u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes(),
            );
        }
        let mark = [rest[4], rest[5], rest[6], rest[7]];
        let len = if len == u32::MAX as usize {
            0
        } else {
            len.min(room)
        };
        let (piece, later) = rest.split_at_mut(8 + len);
        let mut place = SNAPSHOT.0.to_le_bytes().to_vec();
        place.extend_from_slice(&index.to_le_bytes());
        place.extend_from_slice(&mark);
        let sum = crc32c_append(crc32c(&place), &piece[8..]);
        put(piece, 0, sum.to_le_bytes());
        rest = later;
    }
}

pub(crate) fn backup(input: &mut [u8], random: &mut SeededRandom) {
    if input.len() < 40 {
        return;
    }
    put(input, 0, *b"LOCKBACK");
    if random.chance(95) {
        put(input, 8, 1u32.to_le_bytes());
    }
    let sum = crc32c(&input[..36]).to_le_bytes();
    put(input, 36, sum);
    let mut rest = &mut input[40..];
    for index in 0u64.. {
        let Some(room) = rest.len().checked_sub(9) else {
            return;
        };
        let mut len = u32_at(rest, 5);
        if len > room && random.chance(80) {
            len = room;
            put(
                rest,
                5,
                u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes(),
            );
        }
        let (block, later) = rest.split_at_mut(9 + len.min(room));
        let sum = crc32c_append(crc32c(&index.to_le_bytes()), &block[4..]);
        put(block, 0, sum.to_le_bytes());
        rest = later;
    }
}

/// Rows of PostgreSQL.
pub(crate) fn rows(input: &mut [u8], random: &mut SeededRandom) {
    let (shard, head) = lockgate_postgres::fuzzing::LAYOUT;
    let mut at = shard;
    let mut number = 1u64;
    while let Some(row) = input.get_mut(at..).filter(|row| row.len() >= head) {
        let room = row.len() - head;
        let len = usize::from(u16::from_le_bytes([row[28], row[29]]));
        if len > room {
            let room = u16::try_from(room).unwrap_or(u16::MAX);
            put(row, 28, room.to_le_bytes());
        }
        if random.chance(80) {
            put(row, 8, number.to_le_bytes());
        }
        if let Some(sum) = lockgate_postgres::fuzzing::checksum_of(row)
            && random.chance(90)
        {
            put(row, 24, sum);
        }
        at += head + len.min(room);
        number += 1;
    }
}
