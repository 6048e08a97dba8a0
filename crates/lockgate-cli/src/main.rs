//! The `lockgate` binary.

fn main() {}
