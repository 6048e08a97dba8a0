//! Turns for several members on few threads: no notification is lost, and a member that leaves is gone.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use shuttle::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    thread,
};

use super::{check, finds, turn};
use crate::{
    maintenance::threads::{MaintenanceThreads, Turn, Turns},
    sync::{Condvar, Mutex},
};
/// Does all wanted work, and reports it.
struct Worker {
    shared: Arc<Work>,
    /// Works only when notified.
    deaf: bool,
}

#[derive(Default)]
struct Work {
    wanted: AtomicU64,
    done: Mutex<u64>,
    more: Condvar,
    gone: AtomicBool,
}

impl Turns for Worker {
    fn turn(&mut self, notified: bool) -> Turn {
        if self.deaf && !notified {
            return Turn::After(Duration::MAX);
        }
        let wanted = self.shared.wanted.load(SeqCst);
        *self.shared.done.lock().unwrap() = wanted;
        self.shared.more.notify_all();
        // No timeout hides a lost notification.
        Turn::After(Duration::MAX)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.gone.store(true, SeqCst);
    }
}

impl Work {
    fn wait(&self, for_all_of: u64) {
        let mut done = self.done.lock().unwrap();
        while *done < for_all_of {
            done = self.more.wait(done).unwrap();
        }
    }
}

/// Two members, with two threads that notify each, over so many maintenance threads.
fn rung_for(threads: usize) {
    let maintenance = MaintenanceThreads::new(NonZeroUsize::new(threads).unwrap());
    let members = [(); 2].map(|()| {
        let shared = Arc::new(Work::default());
        let notifier = Arc::new(maintenance.notifier());
        let worker = Worker {
            shared: shared.clone(),
            deaf: true,
        };
        let place = notifier.add(Box::new(worker)).unwrap();
        (shared, notifier, place)
    });
    let ringing = members.each_ref().map(|(shared, notifier, _)| {
        let (shared, notifier) = (shared.clone(), notifier.clone());
        thread::spawn(move || {
            for _ in 0..2 {
                let wanted = shared.wanted.fetch_add(1, SeqCst) + 1;
                notifier.notify();
                turn();
                shared.wait(wanted);
            }
        })
    });
    for ringing in ringing {
        ringing.join().unwrap();
    }
    for (shared, notifier, place) in members {
        notifier.notify();
        drop(place);
        assert!(shared.gone.load(SeqCst), "it may still take a turn");
        notifier.notify();
    }
}

#[test]
fn every_ring_is_followed_by_a_turn() {
    check(|| rung_for(1));
    check(|| rung_for(2));
}

/// Two of three members hang; the third still gets its turns.
#[test]
fn a_member_that_hangs_holds_one_thread() {
    struct Hangs(Arc<Work>);
    impl Turns for Hangs {
        fn turn(&mut self, _rung: bool) -> Turn {
            self.0.wait(1);
            Turn::After(Duration::from_secs(10))
        }
    }
    fn model(threads: usize) {
        let maintenance = MaintenanceThreads::new(NonZeroUsize::new(threads).unwrap());
        let hung = Arc::new(Work::default());
        let hanging = [(); 2].map(|()| {
            let notifier = maintenance.notifier();
            notifier.add(Box::new(Hangs(hung.clone()))).unwrap()
        });
        let shared = Arc::new(Work::default());
        let notifier = maintenance.notifier();
        let worker = Worker {
            shared: shared.clone(),
            deaf: true,
        };
        let place = notifier.add(Box::new(worker)).unwrap();
        shared.wanted.store(1, SeqCst);
        notifier.notify();
        shared.wait(1);
        // The drop need not wait until the others leave.
        drop(place);
        *hung.done.lock().unwrap() = 1;
        hung.more.notify_all();
        drop(hanging);
    }
    check(|| model(3));
    finds(|| model(2), "deadlock");
}

/// A stop does not wait for a turn that has not begun, even if other members hang.
#[test]
fn one_that_waits_for_its_turn_can_leave() {
    struct Hangs(Arc<Work>);
    impl Turns for Hangs {
        fn turn(&mut self, _rung: bool) -> Turn {
            self.0.wait(1);
            Turn::Ended
        }
    }
    check(|| {
        let maintenance = MaintenanceThreads::new(NonZeroUsize::MIN);
        let hung = Arc::new(Work::default());
        let hanging = maintenance.notifier().add(Box::new(Hangs(hung.clone())));
        turn();
        let waits = Arc::new(Work::default());
        let worker = Worker {
            shared: waits.clone(),
            deaf: false,
        };
        let place = maintenance.notifier().add(Box::new(worker)).unwrap();
        drop(place);
        assert!(waits.gone.load(SeqCst));
        *hung.done.lock().unwrap() = 1;
        hung.more.notify_all();
        drop(hanging.unwrap());
    });
}
