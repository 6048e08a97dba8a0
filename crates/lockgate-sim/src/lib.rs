//! A faulty disk and a manual clock for Lockgate, and the crash tests over them.
