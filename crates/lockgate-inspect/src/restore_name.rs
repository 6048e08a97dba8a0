//! The temporary name of a folder that a restore fills.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
};

/// Follows a dot and the name of the target folder; random characters follow.
const MARK: &str = ".lockgate-restore-";

/// The name of an unfinished restore's folder: a dot, the name of the target folder, a mark and
/// random characters.
pub struct RestoreName;

impl RestoreName {
    /// How many random characters follow [`RestoreName::prefix`].
    pub const RANDOM_LEN: usize = 6;

    #[must_use]
    pub fn prefix(target: &OsStr) -> OsString {
        let mut prefix = OsString::from(".");
        prefix.push(target);
        prefix.push(MARK);
        prefix
    }

    /// The name of the target folder, if this is the name of an unfinished restore's folder.
    #[must_use]
    pub fn target_of(name: &OsStr) -> Option<&OsStr> {
        let name = name.as_bytes().strip_prefix(b".")?;
        let (name, random) = name.split_at_checked(name.len().checked_sub(Self::RANDOM_LEN)?)?;
        let name = name.strip_suffix(MARK.as_bytes())?;
        let is_random = random.iter().all(u8::is_ascii_alphanumeric);
        (is_random && !name.is_empty()).then(|| OsStr::from_bytes(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> Option<&str> {
        RestoreName::target_of(OsStr::new(name)).map(|name| name.to_str().unwrap())
    }

    #[test]
    fn only_what_a_restore_made_is_taken_for_it() {
        assert_eq!(target(".data.lockgate-restore-a1B2c3"), Some("data"));
        let nested = "..x.lockgate-restore-a1B2c3.lockgate-restore-000000";
        assert_eq!(target(nested), Some(".x.lockgate-restore-a1B2c3"));
        for other in [
            "",
            ".",
            "data",
            "..lockgate-restore-a1B2c",
            ".lockgate-restore-a1B2c3",
            "data.lockgate-restore-a1B2c3",
            ".data.lockgate-restore-a1B2c",
            ".data.lockgate-restore-a1B2c3d",
            ".data.lockgate-restore-a1.2c3",
            ".data.lockgate-restore-é1B2c",
        ] {
            assert_eq!(target(other), None, "{other}");
        }
    }
}
