//! Word of each new file in a folder.

use std::{io, mem::MaybeUninit, os::fd::OwnedFd, path::Path, sync::Arc, thread};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    fs::inotify,
};
use tokio::sync::watch;

/// A thread that waits for the kernel's word, and ends with this. A task would need the runtime of whoever opened the
/// folder, which may end before others that wait.
pub(super) struct Watcher {
    stop: Arc<OwnedFd>,
}

impl Watcher {
    pub(super) fn start(folder: &Path, changed: watch::Sender<()>) -> io::Result<Self> {
        let events = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&events, folder, inotify::WatchFlags::CREATE)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = stop.clone();
        thread::Builder::new()
            .name("lockgate-watch".to_owned())
            .spawn(move || run(&events, &stopped, &changed))?;
        Ok(Self { stop })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A counter of 0 takes one more.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
    }
}

fn run(events: &OwnedFd, stopped: &OwnedFd, changed: &watch::Sender<()>) {
    let mut buffer = [const { MaybeUninit::uninit() }; 4096];
    loop {
        let mut fds = [
            PollFd::new(events, PollFlags::IN),
            PollFd::new(stopped, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        // Which file it is, or that the kernel has dropped some of them, does not matter: all who wait look.
        let mut reader = inotify::Reader::new(events, &mut buffer);
        while reader.next().is_ok() {}
        changed.send_replace(());
    }
}
