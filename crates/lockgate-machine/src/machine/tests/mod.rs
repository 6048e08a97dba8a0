//! Scripts of commands with what each is answered.

mod basics;
mod harness;
