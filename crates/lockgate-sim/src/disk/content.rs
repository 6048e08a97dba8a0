//! A file's bytes and the sectors it takes.

use std::{collections::BTreeMap, sync::Arc};

/// What hardware writes whole or not at all.
pub(super) const SECTOR: usize = 512;

const PAGE: usize = 4_096;

/// The bytes of a file. Pages of nothing but zeros take no memory, and clones share all pages until
/// one of them writes, so that a big file that was only allocated is as cheap as a crash is.
#[derive(Clone, Default)]
pub(super) struct Content {
    len: usize,
    pages: BTreeMap<usize, Arc<[u8; PAGE]>>,
    taken: Taken,
}

impl Content {
    /// A file of these bytes that takes all of its sectors.
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes);
        content.taken.take(0, bytes.len(), &mut u64::MAX.clone());
        content
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of all sectors taken.
    pub(super) fn taken_bytes(&self) -> u64 {
        (self.taken.count * SECTOR) as u64
    }

    /// Reads what there is.
    pub(super) fn read(&self, offset: usize, buffer: &mut [u8]) -> usize {
        let start = offset.min(self.len);
        let count = buffer.len().min(self.len - start);
        for (page, within, part) in parts(start, count) {
            let to = &mut buffer[part];
            match self.pages.get(&page) {
                Some(bytes) => to.copy_from_slice(&bytes[within..within + to.len()]),
                None => to.fill(0),
            }
        }
        count
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.len = self.len.max(offset + bytes.len());
        for (page, within, part) in parts(offset, bytes.len()) {
            let new = &bytes[part];
            if !self.pages.contains_key(&page) && new.iter().all(|byte| *byte == 0) {
                continue;
            }
            let page = self
                .pages
                .entry(page)
                .or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[within..within + new.len()].copy_from_slice(new);
        }
    }

    /// Writes over bytes that are there; whether any is another then.
    pub(super) fn replace(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let mut before = vec![0; bytes.len()];
        self.read(offset, &mut before);
        self.write(offset, bytes);
        before != bytes
    }

    pub(super) fn zero(&mut self, offset: usize, len: usize) {
        self.len = self.len.max(offset + len);
        for (page, within, part) in parts(offset, len) {
            if part.len() == PAGE {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                Arc::make_mut(bytes)[within..within + part.len()].fill(0);
            }
        }
    }

    /// Cuts or grows the file; sectors behind its end are given back.
    pub(super) fn set_len(&mut self, len: usize) {
        if len < self.len {
            self.zero(len, self.len - len);
            self.pages.split_off(&len.div_ceil(PAGE));
        }
        self.len = len;
        self.taken.cut(len);
    }

    pub(super) fn grow(&mut self, len: usize) {
        self.len = self.len.max(len);
    }

    /// Takes the sectors under `len` bytes as long as there is room; returns how many of the bytes
    /// have their sectors.
    pub(super) fn take(&mut self, offset: usize, len: usize, free: &mut u64) -> usize {
        self.taken.take(offset, len, free)
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes);
        bytes
    }
}

/// The pages under so many bytes: each page's number, where in it they start, and which of the bytes
/// stand in it.
fn parts(
    offset: usize,
    len: usize,
) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done;
        let within = at % PAGE;
        let count = (PAGE - within).min(len - done);
        let part = done..done + count;
        done += count;
        Some((at / PAGE, within, part))
    })
}

/// Which sectors take space, a bit each.
#[derive(Clone, Default)]
struct Taken {
    bits: Vec<u64>,
    count: usize,
}

impl Taken {
    fn take(&mut self, offset: usize, len: usize, free: &mut u64) -> usize {
        if len == 0 {
            return 0;
        }
        let sectors = offset / SECTOR..(offset + len).div_ceil(SECTOR);
        if self.bits.len() < sectors.end.div_ceil(64) {
            self.bits.resize(sectors.end.div_ceil(64), 0);
        }
        for sector in sectors {
            let (word, bit) = (&mut self.bits[sector / 64], 1 << (sector % 64));
            if *word & bit != 0 {
                continue;
            }
            let Some(rest) = free.checked_sub(SECTOR as u64) else {
                return (sector * SECTOR).saturating_sub(offset);
            };
            *free = rest;
            *word |= bit;
            self.count += 1;
        }
        len
    }

    /// Gives back the sectors that hold nothing of the first `len` bytes.
    fn cut(&mut self, len: usize) {
        let kept = len.div_ceil(SECTOR);
        if kept >= self.bits.len() * 64 {
            return;
        }
        self.bits[kept / 64] &= (1 << (kept % 64)) - 1;
        self.bits.truncate(kept / 64 + 1);
        self.count = self
            .bits
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum();
    }
}
