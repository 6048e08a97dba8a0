//! Drives one Lockgate machine over one log for many callers.
