//! File systems made for a test: in an image file, mounted over a loop device, broken on purpose.
//!
//! They are mounted in a mount namespace that belongs to the process (see [`crate::episode`]), and a
//! loop device detaches itself with its last mount. So nothing is left behind, whatever ends us.

use std::{
    fmt, fs,
    fs::File,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use crate::command::{exists, run, run_with};

/// Longest freeze: then it thaws by itself, or a harness that was killed would leave processes that
/// nobody can end.
const FREEZE_MAX: Duration = Duration::from_secs(180);
const UNMOUNT_TRIES: usize = 100;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(50);

/// A file system.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum FileSystem {
    /// ext4, with its journal
    Ext4,
    Xfs,
}

impl FileSystem {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Ext4, Self::Xfs];
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        })
    }
}

/// Programs without which there are no volumes, and Debian's package of each.
const PROGRAMS: [(&str, &str); 10] = [
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xfs_io", "xfsprogs"),
    ("mount", "mount"),
    ("umount", "mount"),
    ("fsfreeze", "util-linux"),
    ("fallocate", "util-linux"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
];

/// Why no volume can be made here; `None` if one can.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root, to mount file systems made for the test".to_owned());
    }
    let (program, package) = PROGRAMS.iter().find(|(program, _)| !exists(program))?;
    Some(format!("needs {program}, of the package {package}"))
}

/// Makes, breaks and mends a volume of each kind, to see whether that works here.
pub(crate) fn rehearse() -> Result<()> {
    for file_system in FileSystem::ALL {
        let folder = tempfile::tempdir()?;
        let (bytes, memory) = (1 << 30, 256 << 20);
        let mut volume = Volume::create_thin(folder.path(), file_system, bytes, memory)?;
        fs::write(volume.path().join("file"), "written")?;
        volume.freeze()?;
        volume.thaw()?;
        volume.cut()?;
        volume.remount()?;
    }
    Ok(())
}

/// A mounted file system of our own; unmounted and removed when dropped.
pub(crate) struct Volume {
    file_system: FileSystem,
    folder: PathBuf,
    /// The image lies in memory of its own that can run out.
    thin: bool,
    mounted: bool,
    thaw_guard: Option<Child>,
}

impl Volume {
    /// Makes and mounts one of so many bytes, with everything it needs in `folder`.
    pub(crate) fn create(folder: &Path, file_system: FileSystem, bytes: u64) -> Result<Self> {
        Self::make(folder, file_system, bytes, None)
    }

    /// The same over an image that is given `memory` bytes of room, and no more.
    pub(crate) fn create_thin(
        folder: &Path,
        file_system: FileSystem,
        bytes: u64,
        memory: u64,
    ) -> Result<Self> {
        Self::make(folder, file_system, bytes, Some(memory))
    }

    fn make(
        folder: &Path,
        file_system: FileSystem,
        bytes: u64,
        memory: Option<u64>,
    ) -> Result<Self> {
        let mut volume = Self {
            file_system,
            folder: folder.to_owned(),
            thin: false,
            mounted: false,
            thaw_guard: None,
        };
        fs::create_dir_all(volume.path())?;
        fs::create_dir_all(volume.store())?;
        if let Some(memory) = memory {
            run(Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={memory}"), "tmpfs"])
                .arg(volume.store()))?;
            volume.thin = true;
        }
        File::create(volume.image())?.set_len(bytes)?;
        let mut make = match file_system {
            // Nothing is left to a thread of the kernel that works when it likes.
            FileSystem::Ext4 => {
                let mut make = Command::new("mkfs.ext4");
                make.args(["-q", "-F", "-m", "0", "-b", "4096"]);
                make.args(["-E", "lazy_itable_init=0,lazy_journal_init=0"]);
                make
            }
            FileSystem::Xfs => {
                let mut make = Command::new("mkfs.xfs");
                make.args(["-q", "-f"]);
                make
            }
        };
        run(make.arg(volume.image()))?;
        volume.mount()?;
        Ok(volume)
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join("volume")
    }

    fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    fn image(&self) -> PathBuf {
        self.store().join("image")
    }

    fn ballast(&self) -> PathBuf {
        self.store().join("ballast")
    }

    fn mount(&mut self) -> Result<()> {
        run(Command::new("mount")
            .args(["-t", &self.file_system.to_string(), "-o", "loop"])
            .args([self.image(), self.path()]))?;
        self.mounted = true;
        if self.thin {
            self.one_page_at_a_time()?;
        }
        Ok(())
    }

    /// The loop driver takes a write that found room for its first pages only for a whole one (seen
    /// on Linux 6.18: the sync succeeds and the rest is gone). Such a disk is a liar, and no log can
    /// stand on it; requests of one page find room or do not.
    fn one_page_at_a_time(&self) -> Result<()> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let (path, name) = (self.path(), |line: &str| {
            line.split(' ').nth(1).map(PathBuf::from)
        });
        let line = mounts
            .lines()
            .find(|line| name(line).as_ref() == Some(&path));
        let device = line.and_then(|line| line.split(' ').next()?.strip_prefix("/dev/"));
        let device = device.context("the volume has no device")?;
        let limit = format!("/sys/block/{device}/queue/max_sectors_kb");
        fs::write(&limit, "4\n").with_context(|| format!("could not write {limit}"))
    }

    fn unmount(&mut self) -> Result<()> {
        if !self.mounted {
            return Ok(());
        }
        let mut tries = 0;
        loop {
            match run(Command::new("umount").arg(self.path())) {
                Ok(()) => break,
                Err(error) if tries == UNMOUNT_TRIES => return Err(error),
                Err(_) => thread::sleep(UNMOUNT_PAUSE),
            }
            tries += 1;
        }
        self.mounted = false;
        Ok(())
    }

    /// Loses what was not synced, in the order in which it happens to lie: from now on the file
    /// system neither writes nor reads, and its journal is not flushed.
    pub(crate) fn cut(&self) -> Result<()> {
        run(Command::new("xfs_io")
            .args(["-x", "-c", "shutdown"])
            .arg(self.path()))
    }

    /// Unmounts and mounts again, as a start of the machine does.
    pub(crate) fn remount(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    /// Stops everything that writes; what is written so far is synced before.
    pub(crate) fn freeze(&mut self) -> Result<()> {
        let path = self.path();
        let guard = Command::new("sh")
            .args(["-c", "sleep \"$0\" && fsfreeze --unfreeze \"$1\""])
            .arg(FREEZE_MAX.as_secs().to_string())
            .arg(&path)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .context("could not start the guard of a freeze")?;
        self.thaw_guard = Some(guard);
        run(Command::new("fsfreeze").arg("--freeze").arg(path))
    }

    /// Ends a freeze.
    pub(crate) fn thaw(&mut self) -> Result<()> {
        let result = run(Command::new("fsfreeze").arg("--unfreeze").arg(self.path()));
        if let Some(mut guard) = self.thaw_guard.take() {
            if let Some(group) = Pid::from_raw(i32::try_from(guard.id())?) {
                // It has a group of its own; if it is gone, that is as good.
                let _ = kill_process_group(group, Signal::KILL);
            }
            guard.wait()?;
        }
        result
    }

    /// Takes all room from under a thin volume: blocks that hold only zeros are given back, and
    /// what is free is filled. From now on a write to such a block, or to a new one, is lost when it
    /// is synced.
    pub(crate) fn starve(&mut self) -> Result<()> {
        if !self.thin {
            bail!("only a thin volume can be starved");
        }
        // Frozen, or a block could be written between the look at it and its return.
        self.freeze()?;
        let dug = run(Command::new("fallocate")
            .arg("--dig-holes")
            .arg(self.image()));
        let filled = dug.and_then(|()| fill(&self.ballast()));
        self.thaw()?;
        filled
    }

    /// Gives a starved volume its room back, repairs it as the system would, and mounts it again.
    pub(crate) fn feed(&mut self) -> Result<()> {
        self.unmount()?;
        fs::remove_file(self.ballast())?;
        if self.file_system == FileSystem::Ext4 {
            // 1: something was corrected.
            run_with(
                Command::new("e2fsck").args(["-f", "-p"]).arg(self.image()),
                &[0, 1],
            )?;
        }
        self.mount()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.thaw_guard.is_some() {
            let _ = self.thaw();
        }
        if let Err(error) = self.unmount() {
            eprintln!("{error:#}: taken away as soon as nobody uses it");
            let _ = run(Command::new("umount").arg("--lazy").arg(self.path()));
        }
        if self.thin {
            let _ = run(Command::new("umount").arg("--lazy").arg(self.store()));
        } else {
            let _ = fs::remove_file(self.image());
        }
    }
}

/// Writes a file until there is no room.
fn fill(path: &Path) -> Result<()> {
    let mut file = File::create(path)?;
    for size in [1 << 20, 4 << 10] {
        let block = vec![1; size];
        loop {
            match file.write_all(&block) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::StorageFull => break,
                Err(error) => return Err(error).context("filling the memory of a volume"),
            }
        }
    }
    Ok(())
}
