//! Reads bytes that are in the system's cache, without waiting for the disk.

#[cfg(target_os = "linux")]
pub(crate) use linux::ReadsAtOnce;

#[cfg(not(target_os = "linux"))]
pub(crate) use others::ReadsAtOnce;

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        fs::File,
        io::IoSliceMut,
        os::unix::fs::FileExt,
        sync::atomic::{AtomicU8, Ordering::Relaxed},
    };

    use rustix::{
        fs::fstatfs,
        io::{Errno, ReadWriteFlags, preadv2},
    };

    /// The file system type that `statfs` reports for a tmpfs.
    const TMPFS_MAGIC: u64 = 0x0102_1994;

    /// How a file can be read without waiting, as far as that is known.
    ///
    /// On request the system reads from its cache only, and reports when a read would wait. Some
    /// file systems cannot: NFS, FUSE, an overlay and tmpfs. A tmpfs has all its files in memory,
    /// so any read of it does not wait.
    #[derive(Default)]
    pub(crate) struct ReadsAtOnce(AtomicU8);

    /// Reads ask the system not to wait.
    const FROM_CACHE: u8 = 0;
    /// Every read is a read from memory.
    const IN_MEMORY: u8 = 1;
    /// No read without waiting is possible.
    const NEVER: u8 = 2;

    impl ReadsAtOnce {
        pub(crate) fn read(&self, file: &File, buffer: &mut [u8], offset: u64) -> Option<usize> {
            match self.0.load(Relaxed) {
                FROM_CACHE => {
                    let buffers = &mut [IoSliceMut::new(buffer)];
                    match preadv2(file, buffers, offset, ReadWriteFlags::NOWAIT) {
                        Ok(count) => Some(count),
                        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                            let is_memory = fstatfs(file)
                                .is_ok_and(|system| system.f_type.cast_unsigned() == TMPFS_MAGIC);
                            self.0
                                .store(if is_memory { IN_MEMORY } else { NEVER }, Relaxed);
                            None
                        }
                        // Mostly because the read would wait.
                        Err(_) => None,
                    }
                }
                IN_MEMORY => file.read_at(buffer, offset).ok(),
                _ => None,
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod others {
    use std::fs::File;

    /// Other systems cannot read from their cache only.
    #[derive(Default)]
    pub(crate) struct ReadsAtOnce;

    impl ReadsAtOnce {
        pub(crate) fn read(&self, _file: &File, _buffer: &mut [u8], _offset: u64) -> Option<usize> {
            None
        }
    }
}
