//! The format of the stream: a head, blocks, and an end. Checksums cover every byte.

use std::io::{self, Read, Write};

use crc32c::{crc32c, crc32c_append};
use lockgate_core::{Epoch, Position, WallTime};

use super::RestoreError;

const MAGIC: &[u8; 8] = b"LOCKBACK";

/// The highest version that is read.
const VERSION: u32 = 2;

/// The version of a stream without ids of an index, and of one with them.
const WITHOUT_IDS: u32 = 1;
const WITH_IDS: u32 = 2;

/// Bytes of the head.
const HEAD_BYTES: usize = 40;

/// Bytes in front of a block's content: checksum, kind, length.
const BLOCK_HEAD_BYTES: usize = 9;

/// The longest block.
const BLOCK_BYTES_MAX: u32 = 128 << 20;

/// The contents of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// When the backup was begun.
    pub(crate) created: WallTime,
    /// The position of the backup's instant, in the original log.
    pub(crate) position: Position,
    /// The epoch of the shard's owner.
    pub(crate) epoch: Epoch,
}

/// The kind of a block. Blocks come in the order in which the kinds stand here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The next piece of the image.
    Piece = 1,
    /// The next piece of the index of unique ids, if there are some in it.
    Ids = 4,
    /// The record of one message, or of the events of one append.
    Message = 2,
    /// The number of such records. Nothing follows.
    End = 3,
}

impl Kind {
    /// Its place in the stream.
    fn place(self) -> u8 {
        match self {
            Self::Piece => 0,
            Self::Ids => 1,
            Self::Message => 2,
            Self::End => 3,
        }
    }
}

/// Writes a stream.
pub(crate) struct Writer<'a> {
    out: &'a mut dyn Write,
    blocks: u64,
    pub(crate) bytes: u64,
}

impl<'a> Writer<'a> {
    pub(crate) fn begin(out: &'a mut dyn Write, head: Head, ids: bool) -> io::Result<Self> {
        let version = if ids { WITH_IDS } else { WITHOUT_IDS };
        let mut bytes = Vec::with_capacity(HEAD_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&head.created.0.to_le_bytes());
        bytes.extend_from_slice(&head.position.0.to_le_bytes());
        bytes.extend_from_slice(&head.epoch.0.to_le_bytes());
        let checksum = crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        out.write_all(&bytes)?;
        Ok(Self {
            out,
            blocks: 0,
            bytes: bytes.len() as u64,
        })
    }

    pub(crate) fn block(&mut self, kind: Kind, content: &[u8]) -> io::Result<()> {
        let len = u32::try_from(content.len())
            .ok()
            .filter(|len| *len <= BLOCK_BYTES_MAX)
            .ok_or(io::ErrorKind::FileTooLarge)?;
        let checksum = checksum(self.blocks, kind as u8, len, content);
        let mut head = [0; BLOCK_HEAD_BYTES];
        head[..4].copy_from_slice(&checksum.to_le_bytes());
        head[4] = kind as u8;
        head[5..].copy_from_slice(&len.to_le_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(content)?;
        self.blocks += 1;
        self.bytes += (BLOCK_HEAD_BYTES + content.len()) as u64;
        Ok(())
    }

    pub(crate) fn finish(mut self, records: u64) -> io::Result<u64> {
        self.block(Kind::End, &records.to_le_bytes())?;
        self.out.flush()?;
        Ok(self.bytes)
    }
}

/// Reads a stream. Trusts no byte that is not verified.
pub(crate) struct Reader<'a> {
    input: &'a mut dyn Read,
    blocks: u64,
    /// Bytes read and verified.
    pub(crate) bytes: u64,
    last: Kind,
}

impl<'a> Reader<'a> {
    pub(crate) fn begin(input: &'a mut dyn Read) -> Result<(Self, Head), RestoreError> {
        let mut bytes = [0; HEAD_BYTES];
        let mut filled = 0;
        while filled < HEAD_BYTES {
            match input.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(RestoreError::Input(error)),
            }
        }
        let known = filled.min(MAGIC.len());
        if known == 0 || bytes[..known] != MAGIC[..known] {
            return Err(RestoreError::NoBackup);
        }
        let damaged = |what| RestoreError::Damaged { at: 0, what };
        if filled < HEAD_BYTES {
            return Err(damaged("it ends within its head"));
        }
        let (head, sum) = bytes.split_at(HEAD_BYTES - 4);
        if crc32c(head) != u32::from_le_bytes(sum.try_into().expect("four bytes")) {
            return Err(damaged("its head does not verify"));
        }
        let version = u32::from_le_bytes(head[8..12].try_into().expect("four bytes"));
        if version > VERSION {
            return Err(RestoreError::NewerFormat {
                found: version,
                known: VERSION,
            });
        }
        let number = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight"));
        let head = Head {
            created: WallTime(number(12)),
            position: Position(number(20)),
            epoch: Epoch(number(28)),
        };
        let reader = Self {
            input,
            blocks: 0,
            bytes: HEAD_BYTES as u64,
            last: Kind::Piece,
        };
        Ok((reader, head))
    }

    /// Reads the next block into `content`.
    pub(crate) fn block(&mut self, content: &mut Vec<u8>) -> Result<Kind, RestoreError> {
        content.clear();
        self.take(BLOCK_HEAD_BYTES as u64, content)?;
        let sum = u32::from_le_bytes(content[..4].try_into().expect("four bytes"));
        let number = content[4];
        let len = u32::from_le_bytes(content[5..9].try_into().expect("four bytes"));
        content.clear();
        if len > BLOCK_BYTES_MAX {
            return Err(self.damaged("a length is out of range"));
        }
        // Grows with the bytes that arrive, so that a wrong length takes no memory.
        self.take(len.into(), content)?;
        if checksum(self.blocks, number, len, content) != sum {
            return Err(self.damaged("a block does not verify"));
        }
        let kind = match number {
            1 => Kind::Piece,
            2 => Kind::Message,
            3 => Kind::End,
            4 => Kind::Ids,
            _ => return Err(self.damaged("a block is of no kind")),
        };
        if kind.place() < self.last.place() {
            return Err(self.damaged("its blocks are not in order"));
        }
        self.last = kind;
        self.blocks += 1;
        self.bytes += BLOCK_HEAD_BYTES as u64 + u64::from(len);
        Ok(kind)
    }

    /// Checks that nothing follows the end.
    pub(crate) fn end(&mut self) -> Result<(), RestoreError> {
        let mut more = Vec::new();
        match (&mut *self.input).take(1).read_to_end(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.damaged("something follows its end")),
            Err(error) => Err(RestoreError::Input(error)),
        }
    }

    pub(crate) fn damaged(&self, what: &'static str) -> RestoreError {
        RestoreError::Damaged {
            at: self.bytes,
            what,
        }
    }

    fn take(&mut self, count: u64, content: &mut Vec<u8>) -> Result<(), RestoreError> {
        let got = (&mut *self.input)
            .take(count)
            .read_to_end(content)
            .map_err(RestoreError::Input)?;
        if (got as u64) < count {
            return Err(self.damaged("it ends too early"));
        }
        Ok(())
    }
}

/// The checksum covers the block's place in the stream, so that no block can be moved or removed.
fn checksum(index: u64, kind: u8, len: u32, content: &[u8]) -> u32 {
    let mut place = [0; 13];
    place[..8].copy_from_slice(&index.to_le_bytes());
    place[8] = kind;
    place[9..].copy_from_slice(&len.to_le_bytes());
    crc32c_append(crc32c(&place), content)
}
