//! Elections: every state of candidates, holders, store and sink. See docs/internals/simulation.md.

mod search;
mod world;
