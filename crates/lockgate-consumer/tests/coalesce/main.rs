//! The coalescer, by what its users see.

mod local;
mod machine;
