//! The local segmented log of Lockgate, and the real disk and clock under it.
