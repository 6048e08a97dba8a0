//! One suite per seam trait of Lockgate, run against every implementation of it.
