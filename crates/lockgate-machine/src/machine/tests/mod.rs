//! Scripts of commands with what each is answered; `harness` says how to read them.

mod basics;
mod batches;
mod compact;
mod dead_letters;
mod dedup;
mod durability;
mod failures;
mod fences;
pub(super) mod harness;
mod holds;
mod images;
mod key_sequences;
mod key_states;
mod keys;
mod ledgers;
mod owing_keys;
mod producers;
mod queues;
mod random;
mod records;
mod scale;
mod settles;
mod shards;
mod terms;
mod time;
mod transactions;
