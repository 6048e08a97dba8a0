//! An index as a stream of pieces, for backups and copies.
//!
//! | bytes | in each piece, little-endian |
//! |---|---|
//! | 4 | CRC-32C of what follows |
//! | 8 | which piece it is, counted from 0 |
//! | 1 | what it holds: 1 spaces, 2 ids, 3 the end |
//! | 16 each | spaces: the space, and up to where it is complete |
//! | 12 and 24 each | ids: runs of a space, a count (32 bits), and as many ids (128 bits) with their numbers |
//! | 16 | the end: how many spaces and ids there were |
//!
//! Spaces come first, and all is in ascending order, so that an index is built without sorting.

use std::{
    fs,
    path::{Path, PathBuf},
};

use lsm_tree::{AbstractTree, Guard, IterGuardImpl};

use crate::{
    IndexError, IndexOptions, IndexReport, UniqueIndex,
    error::guarded,
    open::{
        LOADING, Owner, TREE, check_options, lock, open_locked, open_tree, remove_unfinished,
        sync_folder,
    },
    rows::{self, FORMAT, FORMAT_KEY, SpaceRow},
    salvage::Skip,
};

/// The most bytes of a piece.
pub const PIECE_BYTES_MAX: usize = 1 << 20;

const HEADER: usize = 4 + 8 + 1;
const SPACE: usize = 8 + 8;
const RUN: usize = 8 + 4;
const ID: usize = 16 + 8;

const SPACES: u8 = 1;
const IDS: u8 = 2;
const END: u8 = 3;

pub(crate) type Ids = Box<dyn DoubleEndedIterator<Item = IterGuardImpl> + Send>;

/// All ids of an index at one point in time, as pieces of at most [`PIECE_BYTES_MAX`] bytes. Each has a checksum and
/// its number in it; a missing piece is noticed as well as a damaged one.
///
/// Reads from the disk while it is iterated, in the memory of two pieces, and keeps the runs that it reads from being
/// deleted. After an error it ends.
pub struct IndexView {
    index: PathBuf,
    spaces: Vec<(u64, u64)>,
    /// Whether ids that stand for numbers above those of their space are left out.
    limited: bool,
    ids: Ids,
    /// An id that was read and found no room.
    next: Option<(u64, u128, u64)>,
    stage: Stage,
    pieces: u64,
    pub(crate) count: u64,
    /// Whether what cannot be read is left out, instead of an error.
    pub(crate) skip: Option<Skip>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// As many spaces have been given out.
    Spaces(usize),
    Ids,
    Ended,
}

impl UniqueIndex {
    /// A view of what is in the index now, synced or not.
    ///
    /// # Errors
    /// [`IndexError::Damaged`].
    pub fn view(&self) -> Result<IndexView, IndexError> {
        let _writer = self.writer();
        Ok(IndexView {
            index: self.folder.clone(),
            spaces: self.all_up_to(),
            limited: false,
            ids: self.guarded(|| Ok(self.tree.range(rows::all_ids(), self.visible.get(), None)))?,
            next: None,
            stage: Stage::Spaces(0),
            pieces: 0,
            count: 0,
            skip: None,
        })
    }

    /// Makes an index in a folder that has none from the pieces of a [view](Self::view), in their order, and opens it.
    /// Needs no more memory than `options` allow. Either all of it is there in the end or nothing.
    ///
    /// # Errors
    /// [`IndexError::Piece`] for a piece that does not fit; [`IndexError::Exists`]; the first error of `pieces`.
    pub fn load(
        folder: &Path,
        options: &IndexOptions,
        pieces: impl IntoIterator<Item = Result<Vec<u8>, IndexError>>,
    ) -> Result<(Self, IndexReport), IndexError> {
        check_options(options)?;
        let lock = lock(folder)?;
        let io = |error| IndexError::io(folder, error);
        if folder.join(TREE).try_exists().map_err(io)? {
            return Err(IndexError::Exists {
                folder: folder.to_owned(),
            });
        }
        remove_unfinished(folder)?;
        let loaded = build(folder, options, None, pieces);
        if loaded.is_err() {
            // The next open removes it, if this does not.
            let _ = remove_unfinished(folder);
        }
        loaded?;
        fs::rename(folder.join(LOADING), folder.join(TREE)).map_err(io)?;
        sync_folder(folder).map_err(io)?;
        open_locked(folder, options, lock)
    }
}

pub(crate) fn build(
    folder: &Path,
    options: &IndexOptions,
    owner: Option<Owner>,
    pieces: impl IntoIterator<Item = Result<Vec<u8>, IndexError>>,
) -> Result<(), IndexError> {
    let (tree, ..) = open_tree(folder, &folder.join(LOADING), options)?;
    let mut tree = guarded(folder, || tree.ingestion())?;
    let mut write = |key: &[u8], value: &[u8]| guarded(folder, || tree.write(key, value));
    let mut format = vec![FORMAT];
    format.extend(owner.into_iter().flatten());
    write(&FORMAT_KEY, &format)?;
    let mut check = PieceCheck {
        last: FORMAT_KEY.to_vec(),
        ..PieceCheck::default()
    };
    for piece in pieces {
        check.read(&piece?, &mut write)?;
    }
    check.finish()?;
    guarded(folder, || tree.finish())
}

/// Reads pieces of a [view](UniqueIndex::view) in their order, and finds out whether an index can be made of them,
/// without a disk.
#[derive(Debug, Default)]
pub struct PieceCheck {
    number: u64,
    last: Vec<u8>,
    spaces: Vec<(u64, u64)>,
    ids: u64,
    ended: bool,
}

impl PieceCheck {
    /// Reads the next piece.
    ///
    /// # Errors
    /// [`IndexError::Piece`].
    pub fn piece(&mut self, piece: &[u8]) -> Result<(), IndexError> {
        self.read(piece, &mut |_, _| Ok(()))
    }

    /// The spaces of the pieces, each with up to where it is complete, and how many ids there were.
    ///
    /// # Errors
    /// [`IndexError::Piece`] if the last piece was not read.
    pub fn finish(self) -> Result<(Vec<(u64, u64)>, u64), IndexError> {
        let Self {
            number,
            spaces,
            ids,
            ended,
            ..
        } = self;
        match ended {
            true => Ok((spaces, ids)),
            false => {
                let what = "it is missing";
                Err(IndexError::Piece { number, what })
            }
        }
    }

    /// As [`piece`](Self::piece), and gives each row to `write`.
    fn read(
        &mut self,
        piece: &[u8],
        write: &mut impl FnMut(&[u8], &[u8]) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let number = self.number;
        self.number += 1;
        let bad = |what| IndexError::Piece { number, what };
        let (kind, mut rest) = open_piece(number, piece).map_err(bad)?;
        if self.ended {
            return Err(bad("it comes after the end"));
        }
        let mut rows = Rows(Vec::new());
        while !rest.is_empty() {
            rows.0.clear();
            let read = match kind {
                SPACES => rows.space(&mut rest).map(|space| self.spaces.push(space)),
                IDS => rows.run(&mut rest).map(|count| self.ids += count),
                END => self.end(&mut rest),
                _ => None,
            };
            if read.is_none() {
                return Err(bad("its rows have another shape"));
            }
            for (key, value) in &rows.0 {
                if *key <= self.last {
                    return Err(bad("its rows are not in order"));
                }
                self.last.clone_from(key);
                write(key, value)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, rest: &mut &[u8]) -> Option<()> {
        let counts = (u64(rest)?, u64(rest)?);
        let spaces = self.spaces.len() as u64;
        self.ended = rest.is_empty() && counts == (spaces, self.ids);
        self.ended.then_some(())
    }
}

/// Rows of the tree that were read from a piece.
struct Rows(Vec<(Vec<u8>, Vec<u8>)>);

impl Rows {
    fn space(&mut self, rest: &mut &[u8]) -> Option<(u64, u64)> {
        let (space, up_to) = (u64(rest)?, u64(rest)?);
        let row = SpaceRow {
            up_to,
            removing: false,
        };
        self.0
            .push((rows::space_key(space).into(), row.encode().into()));
        Some((space, up_to))
    }

    fn run(&mut self, rest: &mut &[u8]) -> Option<u64> {
        let space = u64(rest)?;
        let count = u32::from_le_bytes(*take(rest)?);
        for _ in 0..count {
            let id = u128::from_le_bytes(*take(rest)?);
            let number = u64(rest)?;
            self.0
                .push((rows::id_key(space, id).into(), number.to_le_bytes().into()));
        }
        (count > 0).then_some(count.into())
    }
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(taken)
}

fn u64(rest: &mut &[u8]) -> Option<u64> {
    take(rest).map(|bytes| u64::from_le_bytes(*bytes))
}

fn open_piece(number: u64, mut piece: &[u8]) -> Result<(u8, &[u8]), &'static str> {
    if piece.len() > PIECE_BYTES_MAX {
        return Err("it is too long");
    }
    let checksum = take(&mut piece).map(|bytes| u32::from_le_bytes(*bytes));
    if checksum != Some(crc32c::crc32c(piece)) {
        return Err("it has another checksum");
    }
    if u64(&mut piece) != Some(number) {
        return Err("another piece is there in its place");
    }
    let (&kind, rest) = piece.split_first().ok_or("it is too short")?;
    Ok((kind, rest))
}

impl IndexView {
    /// Leaves out all but these spaces, and in each what stands for a number above the one given with it: an earlier
    /// state, if spaces are complete up to numbers for which ids stand. `None` if a space is not complete that far.
    ///
    /// Call it before the view is iterated.
    #[must_use]
    pub fn only(mut self, mut spaces: Vec<(u64, u64)>) -> Option<Self> {
        spaces.sort_unstable();
        let has = |&(space, up_to): &(u64, u64)| {
            let found = self.spaces.binary_search_by_key(&space, |space| space.0);
            found.is_ok_and(|found| self.spaces[found].1 >= up_to)
        };
        if !spaces.iter().all(has) {
            return None;
        }
        self.spaces = spaces;
        self.limited = true;
        Some(self)
    }

    fn piece(&mut self) -> Result<Vec<u8>, IndexError> {
        let mut piece = vec![0; HEADER];
        piece[4..12].copy_from_slice(&self.pieces.to_le_bytes());
        self.pieces += 1;
        if let Stage::Spaces(given) = self.stage {
            let rows = self.spaces[given..].chunks((PIECE_BYTES_MAX - HEADER) / SPACE);
            if let Some(rows) = rows.into_iter().next() {
                piece[12] = SPACES;
                for (space, up_to) in rows {
                    piece.extend_from_slice(&space.to_le_bytes());
                    piece.extend_from_slice(&up_to.to_le_bytes());
                }
                self.stage = Stage::Spaces(given + rows.len());
                return Ok(seal(piece));
            }
            self.stage = Stage::Ids;
        }
        piece[12] = IDS;
        self.add_ids(&mut piece)?;
        if piece.len() == HEADER {
            piece[12] = END;
            piece.extend_from_slice(&(self.spaces.len() as u64).to_le_bytes());
            piece.extend_from_slice(&self.count.to_le_bytes());
            self.stage = Stage::Ended;
        }
        Ok(seal(piece))
    }

    fn add_ids(&mut self, piece: &mut Vec<u8>) -> Result<(), IndexError> {
        let mut run: Option<(u64, usize)> = None;
        while let Some((space, id, number)) = match self.next.take() {
            Some(next) => Some(next),
            None => self.read()?,
        } {
            let at = run.filter(|run| run.0 == space).map(|run| run.1);
            let more = if at.is_some() { ID } else { RUN + ID };
            if piece.len() + more > PIECE_BYTES_MAX {
                self.next = Some((space, id, number));
                break;
            }
            let at = at.unwrap_or_else(|| {
                piece.extend_from_slice(&space.to_le_bytes());
                piece.extend_from_slice(&0_u32.to_le_bytes());
                piece.len() - 4
            });
            run = Some((space, at));
            piece.extend_from_slice(&id.to_le_bytes());
            piece.extend_from_slice(&number.to_le_bytes());
            let count = u32::try_from((piece.len() - at - 4) / ID).expect("a piece has few ids");
            piece[at..at + 4].copy_from_slice(&count.to_le_bytes());
            self.count += 1;
        }
        Ok(())
    }

    /// The next id.
    fn row(&mut self) -> Result<Option<(u64, u128, u64)>, IndexError> {
        let ids = &mut self.ids;
        let row = guarded(&self.index, || {
            ids.next().map(Guard::into_inner).transpose()
        })?;
        let Some((key, value)) = row else {
            return Ok(None);
        };
        let row = rows::id_of(&key).zip(rows::number(&value));
        let row = row.map(|((space, id), number)| (space, id, number));
        let shape = || IndexError::damaged(&self.index, "an id has another shape");
        row.map(Some).ok_or_else(shape)
    }

    /// The next id of a space that is not being removed.
    fn read(&mut self) -> Result<Option<(u64, u128, u64)>, IndexError> {
        loop {
            let row = self.row();
            let Some((space, id, number)) = (match (row, &mut self.skip) {
                (Err(IndexError::Damaged { .. }), Some(skip)) => {
                    let Some(ids) = skip.behind_damage(&self.index, &self.spaces)? else {
                        return Ok(None);
                    };
                    self.ids = ids;
                    continue;
                }
                (row, _) => row?,
            }) else {
                return Ok(None);
            };
            if let Some(skip) = &mut self.skip {
                skip.read = Some((space, id));
            }
            let kept = self.spaces.binary_search_by_key(&space, |kept| kept.0);
            if kept.is_ok_and(|kept| !self.limited || number <= self.spaces[kept].1) {
                return Ok(Some((space, id, number)));
            }
        }
    }
}

fn seal(mut piece: Vec<u8>) -> Vec<u8> {
    let checksum = crc32c::crc32c(&piece[4..]);
    piece[..4].copy_from_slice(&checksum.to_le_bytes());
    piece
}

impl Iterator for IndexView {
    type Item = Result<Vec<u8>, IndexError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.stage == Stage::Ended {
            return None;
        }
        let piece = self.piece();
        if piece.is_err() {
            self.stage = Stage::Ended;
        }
        Some(piece)
    }
}

impl std::fmt::Debug for IndexView {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("IndexView")
            .field("index", &self.index)
            .field("pieces", &self.pieces)
            .finish_non_exhaustive()
    }
}
