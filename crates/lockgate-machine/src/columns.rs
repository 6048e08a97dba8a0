//! Rows of numbers as columns of bytes: how an image holds a page of a slab.
//!
//! Neighbours in a page were mostly made one after the other, so each of their fields has values
//! close together. A column is therefore its smallest value and, for each row, how much more it is,
//! in as few bytes as the largest of them needs (frame of reference: Goldstein, Ramakrishnan and
//! Shaft 1998). A message of 52 bytes in memory is 15 to 25 in an image, and reading it is a few
//! tight loops over a page that stays in the processor's cache.
//!
//! Each type says its columns once, in [`Row::columns`]; writer and reader both go by that.

use crate::slab::NONE;

/// What can be written as a row of columns.
pub(crate) trait Row: Clone {
    /// A row to fill in.
    fn blank() -> Self;

    /// Visits all columns, always in the same order.
    fn columns(columns: &mut impl Columns<Self>) -> Result<(), ImageError>;
}

/// Writes or reads one column after the other.
pub(crate) trait Columns<T> {
    /// A number of at most `max`.
    fn number(
        &mut self,
        max: u64,
        get: impl Fn(&T) -> u64,
        set: impl FnMut(&mut T, u64),
    ) -> Result<(), ImageError>;

    /// An index, or [`NONE`], that is mostly close to the row's own: a neighbour in a list.
    fn neighbour(
        &mut self,
        get: impl Fn(&T) -> u32,
        set: impl FnMut(&mut T, u32),
    ) -> Result<(), ImageError>;

    /// A string of bytes. `set` says `None` to bytes that make no sense.
    fn bytes(
        &mut self,
        get: impl Fn(&T, &mut Vec<u8>),
        set: impl FnMut(&mut T, &[u8]) -> Option<()>,
    ) -> Result<(), ImageError>;

    /// An index, or [`NONE`], of something else.
    fn index(
        &mut self,
        get: impl Fn(&T) -> u32,
        mut set: impl FnMut(&mut T, u32),
    ) -> Result<(), ImageError> {
        // One more, so that none is the smallest.
        self.number(
            u64::from(u32::MAX),
            |row| u64::from(get(row).wrapping_add(1)),
            |row, number| set(row, narrow::<u32>(number).wrapping_sub(1)),
        )
    }

    /// Yes or no.
    fn flag(
        &mut self,
        get: impl Fn(&T) -> bool,
        mut set: impl FnMut(&mut T, bool),
    ) -> Result<(), ImageError> {
        self.number(1, |row| u64::from(get(row)), |row, bit| set(row, bit == 1))
    }
}

/// Why an image cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A newer version wrote it.
    #[error(
        "the image has format version {version}; this version reads up to {}",
        crate::machine::IMAGE_VERSION
    )]
    NewerFormat {
        /// The image's version.
        version: u32,
    },
    /// The bytes are no image, or not all of one, or what they say does not fit together.
    #[error("the image is damaged: {what}")]
    Damaged {
        /// What does not fit.
        what: &'static str,
    },
}

/// The error of bytes that do not fit.
pub(crate) fn damaged(what: &'static str) -> ImageError {
    ImageError::Damaged { what }
}

/// A number that was checked against its field's range.
pub(crate) fn narrow<N: TryFrom<u64> + Default>(number: u64) -> N {
    N::try_from(number).unwrap_or_default()
}

/// What is left to read.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], ImageError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(damaged("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ImageError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, ImageError> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, ImageError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, ImageError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, ImageError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, ImageError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(damaged("a flag is neither 0 nor 1")),
        }
    }

    /// A count of things that take at least `each` bytes: never more than there can be.
    pub(crate) fn count(&mut self, each: usize) -> Result<usize, ImageError> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / each {
            return Err(damaged("a count is larger than what follows"));
        }
        Ok(count)
    }

    pub(crate) fn expect_end(&self) -> Result<(), ImageError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(damaged("something is longer than it says"))
        }
    }
}

/// Writes columns of `rows`, which come with their indexes.
pub(crate) struct Encoder<'a, T> {
    rows: Vec<(u32, &'a T)>,
    out: &'a mut Vec<u8>,
    numbers: Vec<u64>,
}

impl<'a, T: Row> Encoder<'a, T> {
    /// Appends all columns of the rows to `out`; nothing, if there is no row.
    pub(crate) fn encode(rows: Vec<(u32, &'a T)>, out: &'a mut Vec<u8>) {
        if rows.is_empty() {
            return;
        }
        let numbers = Vec::with_capacity(rows.len());
        let mut encoder = Self { rows, out, numbers };
        T::columns(&mut encoder).expect("writing into memory does not fail");
    }
}

impl<T> Encoder<'_, T> {
    /// Writes the column gathered in `numbers`.
    fn pack(&mut self) {
        let low = self.numbers.iter().copied().min().unwrap_or(0);
        let high = self.numbers.iter().copied().max().unwrap_or(0);
        let bits = u64::BITS - (high - low).leading_zeros();
        let width = bits.div_ceil(8) as usize;
        self.out.push(narrow(u64::from(bits.div_ceil(8))));
        self.out.extend_from_slice(&low.to_le_bytes());
        if width == 0 {
            return;
        }
        // Whole words, each over the unused rest of the one before it; the last one's rest goes.
        let start = self.out.len();
        let end = start + self.numbers.len() * width;
        self.out.resize(end + 8, 0);
        for (number, place) in self.numbers.iter().zip((start..).step_by(width)) {
            self.out[place..place + 8].copy_from_slice(&(number - low).to_le_bytes());
        }
        self.out.truncate(end);
    }
}

impl<T> Columns<T> for Encoder<'_, T> {
    fn number(
        &mut self,
        max: u64,
        get: impl Fn(&T) -> u64,
        _: impl FnMut(&mut T, u64),
    ) -> Result<(), ImageError> {
        self.numbers.clear();
        self.numbers
            .extend(self.rows.iter().map(|(_, row)| get(row)));
        debug_assert!(self.numbers.iter().all(|&number| number <= max));
        self.pack();
        Ok(())
    }

    fn neighbour(
        &mut self,
        get: impl Fn(&T) -> u32,
        _: impl FnMut(&mut T, u32),
    ) -> Result<(), ImageError> {
        self.numbers.clear();
        self.numbers
            .extend(self.rows.iter().map(|&(own, row)| match get(row) {
                NONE => 0,
                other => 1 + u64::from(zigzag(other.wrapping_sub(own))),
            }));
        self.pack();
        Ok(())
    }

    fn bytes(
        &mut self,
        get: impl Fn(&T, &mut Vec<u8>),
        _: impl FnMut(&mut T, &[u8]) -> Option<()>,
    ) -> Result<(), ImageError> {
        let mut all = Vec::new();
        self.numbers.clear();
        for (_, row) in &self.rows {
            let before = all.len();
            get(row, &mut all);
            self.numbers.push((all.len() - before) as u64);
        }
        self.pack();
        self.out.extend_from_slice(&all);
        Ok(())
    }
}

/// Reads columns into rows, which stand at rising indexes.
pub(crate) struct Decoder<'a, 'b, T> {
    rows: Vec<(u32, T)>,
    input: &'a mut Input<'b>,
    numbers: Vec<u64>,
}

impl<'a, 'b, T: Row> Decoder<'a, 'b, T> {
    /// The rows at these indexes.
    pub(crate) fn decode(
        indexes: impl Iterator<Item = u32>,
        input: &'a mut Input<'b>,
    ) -> Result<Vec<(u32, T)>, ImageError> {
        let rows: Vec<_> = indexes.map(|index| (index, T::blank())).collect();
        if rows.is_empty() {
            return Ok(rows);
        }
        let numbers = vec![0; rows.len()];
        let mut decoder = Self {
            rows,
            input,
            numbers,
        };
        T::columns(&mut decoder)?;
        Ok(decoder.rows)
    }
}

impl<T> Decoder<'_, '_, T> {
    /// Reads a column into `numbers`.
    fn unpack(&mut self, max: u64) -> Result<(), ImageError> {
        let width = self.input.u8()?;
        let low = self.input.u64()?;
        if width > 8 {
            return Err(damaged("a column is wider than a number"));
        }
        let bytes = self.input.take(self.rows.len() * usize::from(width))?;
        let numbers = &mut self.numbers;
        match width {
            0 => numbers.fill(0),
            1 => widen::<1>(bytes, numbers),
            2 => widen::<2>(bytes, numbers),
            3 => widen::<3>(bytes, numbers),
            4 => widen::<4>(bytes, numbers),
            5 => widen::<5>(bytes, numbers),
            6 => widen::<6>(bytes, numbers),
            7 => widen::<7>(bytes, numbers),
            _ => widen::<8>(bytes, numbers),
        }
        let above = numbers.iter().copied().max().unwrap_or(0);
        if low.checked_add(above).is_none_or(|high| high > max) {
            return Err(damaged("a number is above its field's highest"));
        }
        for number in numbers {
            *number += low;
        }
        Ok(())
    }
}

impl<T> Columns<T> for Decoder<'_, '_, T> {
    fn number(
        &mut self,
        max: u64,
        _: impl Fn(&T) -> u64,
        mut set: impl FnMut(&mut T, u64),
    ) -> Result<(), ImageError> {
        self.unpack(max)?;
        for ((_, row), &number) in self.rows.iter_mut().zip(&self.numbers) {
            set(row, number);
        }
        Ok(())
    }

    fn neighbour(
        &mut self,
        _: impl Fn(&T) -> u32,
        mut set: impl FnMut(&mut T, u32),
    ) -> Result<(), ImageError> {
        self.unpack(1 << 32)?;
        for ((own, row), &number) in self.rows.iter_mut().zip(&self.numbers) {
            let other = match number {
                0 => NONE,
                number => own.wrapping_add(unzigzag(narrow(number - 1))),
            };
            set(row, other);
        }
        Ok(())
    }

    fn bytes(
        &mut self,
        _: impl Fn(&T, &mut Vec<u8>),
        mut set: impl FnMut(&mut T, &[u8]) -> Option<()>,
    ) -> Result<(), ImageError> {
        self.unpack(u64::from(u32::MAX))?;
        for ((_, row), &len) in self.rows.iter_mut().zip(&self.numbers) {
            let bytes = self.input.take(narrow::<u32>(len) as usize)?;
            set(row, bytes).ok_or(damaged("a name or a setting makes no sense"))?;
        }
        Ok(())
    }
}

/// Small numbers for small distances in either direction.
fn zigzag(distance: u32) -> u32 {
    distance << 1 ^ (distance.cast_signed() >> 31).cast_unsigned()
}

fn unzigzag(number: u32) -> u32 {
    number >> 1 ^ (number & 1).wrapping_neg()
}

fn widen<const WIDTH: usize>(bytes: &[u8], numbers: &mut [u64]) {
    for (number, bytes) in numbers.iter_mut().zip(bytes.chunks_exact(WIDTH)) {
        let mut word = [0; 8];
        word[..WIDTH].copy_from_slice(bytes);
        *number = u64::from_le_bytes(word);
    }
}
