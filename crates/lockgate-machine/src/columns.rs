//! Rows of numbers as columns of bytes: the form of a slab's page in an image.
//!
//! Neighbours in a page were mostly created one after the other, so the values of each field are
//! close together. A column is therefore its smallest value and, for each row, the difference from
//! it, in as few bytes as the largest difference needs (frame of reference: Goldstein, Ramakrishnan
//! and Shaft 1998). A message of 52 bytes in memory takes 15 to 25 in an image, and reading it
//! takes a few tight loops over a page that stays in the processor's cache.
//!
//! Each type lists its columns once, in [`Row::columns`], for both writer and reader.

use std::cell::RefCell;

use crate::slab::{NONE, Slot};

/// A type that can be written as a row of columns.
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

    /// An index, or [`NONE`], that is mostly close to the row's own, such as a neighbour in a list.
    fn neighbour(
        &mut self,
        get: impl Fn(&T) -> u32,
        set: impl FnMut(&mut T, u32),
    ) -> Result<(), ImageError>;

    /// A string of bytes. `set` returns `None` for invalid bytes.
    fn bytes(
        &mut self,
        get: impl Fn(&T, &mut Vec<u8>),
        set: impl FnMut(&mut T, &[u8]) -> Option<()>,
    ) -> Result<(), ImageError>;

    /// An index of another slab, or [`NONE`].
    fn index(
        &mut self,
        get: impl Fn(&T) -> u32,
        mut set: impl FnMut(&mut T, u32),
    ) -> Result<(), ImageError> {
        // Adds one, so that `NONE` becomes the smallest.
        self.number(
            u64::from(u32::MAX),
            |row| u64::from(get(row).wrapping_add(1)),
            |row, number| set(row, narrow::<u32>(number).wrapping_sub(1)),
        )
    }

    fn flag(
        &mut self,
        get: impl Fn(&T) -> bool,
        mut set: impl FnMut(&mut T, bool),
    ) -> Result<(), ImageError> {
        self.number(1, |row| u64::from(get(row)), |row, bit| set(row, bit == 1))
    }
}

/// A column, or those of a list, that are a field of the row: how it is written, its name, and what that takes.
macro_rules! column {
    // A smaller number.
    ($columns:ident, number $($field:ident).+, $max:expr) => {
        $columns.number(
            $max,
            |row| u64::from(row.$($field).+),
            |row, number| row.$($field).+ = $crate::columns::narrow(number),
        )
    };
    ($columns:ident, u64 $($field:ident).+) => {
        $columns.number(u64::MAX, |row| row.$($field).+, |row, number| row.$($field).+ = number)
    };
    // A struct around a u64.
    ($columns:ident, wrapped $($field:ident).+, $type:ident) => {
        $columns.number(u64::MAX, |row| row.$($field).+.0, |row, number| row.$($field).+ = $type(number))
    };
    ($columns:ident, packed $field:ident, $type:ident, $max:expr) => {
        $columns.number($max, |row| row.$field.get(), |row, number| row.$field = $type::new(number))
    };
    ($columns:ident, links $field:ident) => {
        column!($columns, neighbour $field.before).and_then(|()| column!($columns, neighbour $field.after))
    };
    ($columns:ident, list $field:ident) => {
        column!($columns, index $field.first).and_then(|()| column!($columns, index $field.last))
    };
    // `index`, `neighbour` or `flag`.
    ($columns:ident, $method:ident $($field:ident).+) => {
        $columns.$method(|row| row.$($field).+, |row, value| row.$($field).+ = value)
    };
}
pub(crate) use column;

/// Why an image cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A newer version wrote the image.
    #[error(
        "the image has format version {version}; this version reads up to {}",
        crate::machine::IMAGE_VERSION
    )]
    NewerFormat { version: u32 },
    /// The bytes are no image or only part of one, or contradict each other.
    #[error("the image is damaged: {what}")]
    Damaged { what: &'static str },
    /// The contents of the image contradict each other.
    #[error("the image does not fit together: {}", problems.join("; "))]
    Inconsistent {
        /// One sentence for each problem, at most 100.
        problems: Vec<String>,
    },
}

/// The error for invalid bytes.
pub(crate) fn damaged(what: &'static str) -> ImageError {
    ImageError::Damaged { what }
}

/// A number that was checked against its field's range.
pub(crate) fn narrow<N: TryFrom<u64> + Default>(number: u64) -> N {
    N::try_from(number).unwrap_or_default()
}

/// The bytes left to read.
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

    /// The number of elements that take at least `each` bytes. Refuses a number that the remaining
    /// bytes cannot hold.
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

/// Writes the columns of the used slots among `slots`, whose first index is `first`.
pub(crate) struct Encoder<'a, T> {
    slots: &'a [Slot<T>],
    first: u32,
    out: &'a mut Vec<u8>,
    /// One number for each row.
    numbers: Vec<u64>,
}

impl<'a, T: Row> Encoder<'a, T> {
    /// Appends all columns of the rows to `out`; nothing if there is no row.
    pub(crate) fn encode(slots: &'a [Slot<T>], first: u32, rows: usize, out: &'a mut Vec<u8>) {
        if rows == 0 {
            return;
        }
        let mut encoder = Self {
            slots,
            first,
            out,
            numbers: Vec::with_capacity(rows),
        };
        T::columns(&mut encoder).expect("writing into memory does not fail");
    }
}

impl<T> Encoder<'_, T> {
    /// Writes one number of each row.
    fn pack(&mut self, get: impl Fn(u32, &T) -> u64) {
        let (mut low, mut high) = (u64::MAX, 0);
        self.numbers.clear();
        for (index, slot) in (self.first..).zip(self.slots) {
            if let Slot::Used(row) = slot {
                let number = get(index, row);
                (low, high) = (low.min(number), high.max(number));
                self.numbers.push(number);
            }
        }
        let bits = u64::BITS - (high - low).leading_zeros();
        let width = bits.div_ceil(8) as usize;
        self.out.push(narrow(width as u64));
        self.out.extend_from_slice(&low.to_le_bytes());
        let start = self.out.len();
        self.out.resize(start + self.numbers.len() * width, 0);
        let (bytes, numbers) = (&mut self.out[start..], &self.numbers);
        match width {
            0 => {}
            1 => shorten::<1>(numbers, low, bytes),
            2 => shorten::<2>(numbers, low, bytes),
            3 => shorten::<3>(numbers, low, bytes),
            4 => shorten::<4>(numbers, low, bytes),
            5 => shorten::<5>(numbers, low, bytes),
            6 => shorten::<6>(numbers, low, bytes),
            7 => shorten::<7>(numbers, low, bytes),
            _ => shorten::<8>(numbers, low, bytes),
        }
    }
}

impl<T> Columns<T> for Encoder<'_, T> {
    fn number(
        &mut self,
        max: u64,
        get: impl Fn(&T) -> u64,
        _: impl FnMut(&mut T, u64),
    ) -> Result<(), ImageError> {
        self.pack(|_, row| {
            let number = get(row);
            debug_assert!(number <= max, "a number is above its field's highest");
            number
        });
        Ok(())
    }

    fn neighbour(
        &mut self,
        get: impl Fn(&T) -> u32,
        _: impl FnMut(&mut T, u32),
    ) -> Result<(), ImageError> {
        self.pack(|own, row| match get(row) {
            NONE => 0,
            other => 1 + u64::from(zigzag(other.wrapping_sub(own))),
        });
        Ok(())
    }

    fn bytes(
        &mut self,
        get: impl Fn(&T, &mut Vec<u8>),
        _: impl FnMut(&mut T, &[u8]) -> Option<()>,
    ) -> Result<(), ImageError> {
        let all = RefCell::new(Vec::new());
        self.pack(|_, row| {
            let mut all = all.borrow_mut();
            let before = all.len();
            get(row, &mut all);
            (all.len() - before) as u64
        });
        self.out.extend_from_slice(&all.into_inner());
        Ok(())
    }
}

/// Reads columns into the used slots among `slots`, whose first index is `first`.
pub(crate) struct Decoder<'a, 'b, T> {
    slots: &'a mut [Slot<T>],
    first: u32,
    input: &'a mut Input<'b>,
    /// One number for each row.
    numbers: Vec<u64>,
}

impl<'a, 'b, T: Row> Decoder<'a, 'b, T> {
    /// Fills the rows, which are blank.
    pub(crate) fn decode(
        slots: &'a mut [Slot<T>],
        first: u32,
        rows: usize,
        input: &'a mut Input<'b>,
    ) -> Result<(), ImageError> {
        if rows == 0 {
            return Ok(());
        }
        T::columns(&mut Self {
            slots,
            first,
            input,
            numbers: vec![0; rows],
        })
    }
}

impl<T> Decoder<'_, '_, T> {
    /// Sets each row's number.
    fn give(&mut self, low: u64, mut set: impl FnMut(u32, &mut T, u64)) {
        let rows = (self.first..).zip(&mut *self.slots);
        let rows = rows.filter_map(|(index, slot)| match slot {
            Slot::Used(row) => Some((index, row)),
            Slot::Free(_) => None,
        });
        for ((index, row), &number) in rows.zip(&self.numbers) {
            set(index, row, low + number);
        }
    }

    /// Reads a column into `numbers`. Returns the number to add to each of them; no sum is above `max`.
    fn unpack(&mut self, max: u64) -> Result<u64, ImageError> {
        let width = self.input.u8()?;
        let low = self.input.u64()?;
        if width > 8 {
            return Err(damaged("a column is wider than a number"));
        }
        let numbers = &mut self.numbers;
        let bytes = self.input.take(numbers.len() * usize::from(width))?;
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
        // The bits of all numbers together are at least the largest number, and cheaper to compute.
        let fits = |above: u64| low.checked_add(above).is_some_and(|high| high <= max);
        if fits(numbers.iter().fold(0, |all, number| all | number))
            || fits(numbers.iter().copied().max().unwrap_or(0))
        {
            Ok(low)
        } else {
            Err(damaged("a number is above its field's highest"))
        }
    }
}

impl<T> Columns<T> for Decoder<'_, '_, T> {
    fn number(
        &mut self,
        max: u64,
        _: impl Fn(&T) -> u64,
        mut set: impl FnMut(&mut T, u64),
    ) -> Result<(), ImageError> {
        let low = self.unpack(max)?;
        self.give(low, |_, row, number| set(row, number));
        Ok(())
    }

    fn neighbour(
        &mut self,
        _: impl Fn(&T) -> u32,
        mut set: impl FnMut(&mut T, u32),
    ) -> Result<(), ImageError> {
        let low = self.unpack(1 << 32)?;
        self.give(low, |own, row, number| {
            let other = match number {
                0 => NONE,
                number => own.wrapping_add(unzigzag(narrow(number - 1))),
            };
            set(row, other);
        });
        Ok(())
    }

    fn bytes(
        &mut self,
        _: impl Fn(&T, &mut Vec<u8>),
        mut set: impl FnMut(&mut T, &[u8]) -> Option<()>,
    ) -> Result<(), ImageError> {
        let low = self.unpack(u64::from(u32::MAX))?;
        let total = self.numbers.iter().map(|number| low + number).sum::<u64>();
        let total = usize::try_from(total).map_err(|_| damaged("it ends too early"))?;
        let mut all = Input::new(self.input.take(total)?);
        let mut made = Some(());
        self.give(low, |_, row, len| {
            let bytes = all.take(narrow::<u32>(len) as usize).unwrap_or_default();
            made = made.and_then(|()| set(row, bytes));
        });
        made.ok_or(damaged("a name or a setting makes no sense"))
    }
}

/// Small numbers for small distances in both directions.
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

fn shorten<const WIDTH: usize>(numbers: &[u64], low: u64, bytes: &mut [u8]) {
    for (&number, bytes) in numbers.iter().zip(bytes.chunks_exact_mut(WIDTH)) {
        bytes.copy_from_slice(&(number - low).to_le_bytes()[..WIDTH]);
    }
}
