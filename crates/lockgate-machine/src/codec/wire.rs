//! The basic encodings of the format.

use std::ops::Range;

use bytes::Bytes;
use lockgate_core::{MachineTime, Now, QueueId, Sequence, ShardId, WallTime};

use super::DecodeError;

/// Set in a field's number if a version that does not know the field must refuse the record.
pub(crate) const CRITICAL: u8 = 0x80;

/// Appends to a buffer, or only counts: a length comes before its value, so a value is written
/// twice, first to count it.
pub(super) struct Writer<'a> {
    out: Option<&'a mut Vec<u8>>,
    len: usize,
}

/// Reads a part of a record: all of it, an effect, or a field.
pub(super) struct Reader<'a> {
    record: &'a Bytes,
    at: usize,
    end: usize,
    /// The index of its effect; for the reader of a whole record, of the next effect.
    effect: usize,
}

/// Bytes within a record.
pub(super) struct Stretch<'a> {
    record: &'a Bytes,
    range: Range<usize>,
}

impl Stretch<'_> {
    pub(super) fn len(&self) -> usize {
        self.range.len()
    }

    /// The bytes as a slice of the record, without a copy.
    pub(super) fn to_bytes(&self) -> Bytes {
        self.record.slice(self.range.clone())
    }
}

impl<'a> Writer<'a> {
    pub(super) fn into(out: &'a mut Vec<u8>) -> Self {
        Self {
            out: Some(out),
            len: 0,
        }
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
        if let Some(out) = &mut self.out {
            out.extend_from_slice(bytes);
        }
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.raw(&[byte]);
    }

    /// LEB128: seven bits a byte, lowest first, the highest bit set on all bytes but the last.
    #[expect(clippy::cast_possible_truncation, reason = "the lowest byte is wanted")]
    pub(super) fn number(&mut self, mut number: u64) {
        let mut bytes = [0; 10];
        let mut len = 0;
        while number >= 0x80 {
            bytes[len] = number as u8 | 0x80;
            number >>= 7;
            len += 1;
        }
        bytes[len] = number as u8;
        self.raw(&bytes[..=len]);
    }

    /// Writes a length and the bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    pub(super) fn queue(&mut self, queue: QueueId) {
        self.number(u64::from(queue.0));
    }

    pub(super) fn now(&mut self, now: Now) {
        self.number(now.wall.0);
        self.number(now.machine.0);
    }

    /// Writes a field or an effect: its number, the length of the value, the value.
    pub(super) fn tagged(&mut self, tag: u8, value: impl Fn(&mut Writer<'_>)) {
        let mut counter = Writer { out: None, len: 0 };
        value(&mut counter);
        self.byte(tag);
        self.number(counter.len as u64);
        if let Some(out) = &mut self.out {
            out.reserve(counter.len);
        }
        value(self);
    }

    pub(super) fn tagged_bytes(&mut self, tag: u8, value: &[u8]) {
        self.byte(tag);
        self.bytes(value);
    }

    pub(super) fn tagged_number(&mut self, tag: u8, value: u64) {
        self.tagged(tag, |writer| writer.number(value));
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(record: &'a Bytes) -> Self {
        Self {
            record,
            at: 0,
            end: record.len(),
            effect: 0,
        }
    }

    /// Another reader of the same part.
    pub(super) fn again(&self) -> Self {
        Self { ..*self }
    }

    /// Reads the next effect of a record: its kind and its body.
    pub(super) fn next_effect(&mut self) -> Result<Option<(u8, Reader<'a>)>, DecodeError> {
        if self.at == self.end {
            return Ok(None);
        }
        let tagged = self.tagged()?;
        self.effect += 1;
        Ok(Some(tagged))
    }

    /// Reads fields up to the end. `known` takes the value of a field if it knows the field's
    /// number, and returns whether it did.
    pub(super) fn fields(
        &mut self,
        mut known: impl FnMut(u8, &mut Reader<'a>) -> Result<bool, DecodeError>,
    ) -> Result<(), DecodeError> {
        let mut last = 0;
        while self.at < self.end {
            let start = self.at;
            let (tag, mut value) = self.tagged()?;
            if tag <= last {
                self.at = start;
                return Err(self.malformed("fields are not in rising order of their numbers"));
            }
            last = tag;
            if known(tag, &mut value)? {
                value.expect_end()?;
            } else if tag & CRITICAL != 0 {
                return Err(self.newer("field", tag));
            }
        }
        Ok(())
    }

    /// Reads fields up to the end, of which this version knows none.
    pub(super) fn no_fields(&mut self) -> Result<(), DecodeError> {
        self.fields(|_, _| Ok(false))
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.end
    }

    /// All remaining bytes.
    pub(super) fn rest(&mut self) -> Stretch<'a> {
        let start = self.at;
        self.at = self.end;
        Stretch {
            record: self.record,
            range: start..self.end,
        }
    }

    /// All remaining bytes, as text.
    pub(super) fn rest_text(&mut self) -> Result<&'a str, DecodeError> {
        self.text(self.end - self.at)
    }

    /// Reads a length and so many bytes.
    pub(super) fn bytes(&mut self) -> Result<Stretch<'a>, DecodeError> {
        let len = self.length()?;
        let start = self.at;
        self.skip(len)?;
        Ok(Stretch {
            record: self.record,
            range: start..self.at,
        })
    }

    /// Reads a length and so many bytes of text.
    pub(super) fn counted_text(&mut self) -> Result<&'a str, DecodeError> {
        let len = self.length()?;
        self.text(len)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let start = self.at;
        self.skip(N)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.record[start..self.at]);
        Ok(array)
    }

    pub(super) fn byte(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn flag(&mut self) -> Result<bool, DecodeError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed("a flag is neither 0 nor 1")),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(self.malformed("a number is larger than 64 bits"));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                // Each value has one form, so that equal effects have equal bytes.
                if byte == 0 && shift > 0 {
                    return Err(self.malformed("a number is longer than it need be"));
                }
                return Ok(number);
            }
        }
        Err(self.malformed("a number is larger than 64 bits"))
    }

    /// Reads a number that must fit into a smaller type.
    pub(super) fn small<T: TryFrom<u64>>(&mut self) -> Result<T, DecodeError> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| self.malformed("a number is too large for its field"))
    }

    pub(super) fn queue(&mut self) -> Result<QueueId, DecodeError> {
        let queue = QueueId(self.small()?);
        if queue > QueueId::MAX {
            return Err(self.malformed("a queue number is above the highest"));
        }
        Ok(queue)
    }

    pub(super) fn shard(&mut self) -> Result<ShardId, DecodeError> {
        ShardId::new(self.small()?)
            .ok_or_else(|| self.malformed("a shard number is above the highest"))
    }

    pub(super) fn sequence(&mut self) -> Result<Sequence, DecodeError> {
        let sequence = Sequence(self.number()?);
        if sequence > Sequence::MAX {
            return Err(self.malformed("a sequence number is above the highest"));
        }
        Ok(sequence)
    }

    pub(super) fn wall(&mut self) -> Result<WallTime, DecodeError> {
        self.number().map(WallTime)
    }

    pub(super) fn machine(&mut self) -> Result<MachineTime, DecodeError> {
        self.number().map(MachineTime)
    }

    pub(super) fn now(&mut self) -> Result<Now, DecodeError> {
        Ok(Now {
            wall: self.wall()?,
            machine: self.machine()?,
        })
    }

    pub(super) fn malformed(&self, what: &'static str) -> DecodeError {
        DecodeError::Malformed {
            effect: self.effect,
            at: self.at,
            what,
        }
    }

    pub(super) fn newer(&self, what: &'static str, number: u8) -> DecodeError {
        DecodeError::NewerFormat {
            effect: self.effect,
            what,
            number,
        }
    }

    fn expect_end(&self) -> Result<(), DecodeError> {
        if self.is_at_end() {
            Ok(())
        } else {
            Err(self.malformed("a field is longer than its value"))
        }
    }

    fn tagged(&mut self) -> Result<(u8, Reader<'a>), DecodeError> {
        let tag = self.byte()?;
        let len = self.length()?;
        let at = self.at;
        self.skip(len)?;
        let value = Reader {
            record: self.record,
            at,
            end: self.at,
            effect: self.effect,
        };
        Ok((tag, value))
    }

    fn length(&mut self) -> Result<usize, DecodeError> {
        let len = self.number()?;
        usize::try_from(len)
            .ok()
            .filter(|&len| len <= self.end - self.at)
            .ok_or_else(|| self.malformed("a length goes beyond its frame"))
    }

    fn text(&mut self, len: usize) -> Result<&'a str, DecodeError> {
        let start = self.at;
        self.skip(len)?;
        str::from_utf8(&self.record[start..self.at])
            .map_err(|_| self.malformed("a text is not UTF-8"))
    }

    fn skip(&mut self, len: usize) -> Result<(), DecodeError> {
        if len > self.end - self.at {
            return Err(self.malformed("it ends too early"));
        }
        self.at += len;
        Ok(())
    }
}
