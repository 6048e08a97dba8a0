//! Everything that a coalescer can do, in one process and over records, for a few callers of one key.

mod local;
mod shared;
