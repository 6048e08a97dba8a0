//! The driver and the engine around it, over a disk in memory and a clock set by hand.

mod driver;
mod engine;
mod overload;
mod recovery;
mod support;
mod waiters;
