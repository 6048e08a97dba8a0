//! Pushes, receives, settlements and a close of a [`MemoryQueue`] at the same time. A model in which somebody
//! waits and is never woken ends in a deadlock, which the scheduler reports.

use std::{future::Future, pin::pin, task::Poll, time::Duration};

use lockgate_core::{
    Fate, HolderName, Key, Leased, Message, ReceiveRequest, Settlement, Source as _,
};
use shuttle::{future::block_on, thread};

use super::{check, finds};
use crate::memory::{MemoryOptions, MemoryQueue, PushRefusal, Receipt};

fn queue(messages_max: usize, key_messages_max: Option<usize>) -> MemoryQueue {
    let options = MemoryOptions {
        messages_max,
        key_messages_max,
        ..MemoryOptions::default()
    };
    MemoryQueue::new(options).unwrap()
}

fn message(key: &str) -> Message {
    Message::new("a body").with_key(Key::new(key).unwrap())
}

fn receive(queue: &MemoryQueue, max: usize) -> Result<Vec<Leased<Receipt>>, Fate> {
    let request = ReceiveRequest {
        max,
        key_max: None,
        wait: Duration::MAX,
        lease: None,
        holder: HolderName::new("model").unwrap(),
    };
    block_on(queue.receive_batch(request)).map_err(|error| error.fate)
}

fn settle(queue: &MemoryQueue, leased: &[Leased<Receipt>], how: Settlement) {
    let settles = leased
        .iter()
        .map(|leased| (leased.receipt.clone(), how.clone()));
    for settled in block_on(queue.settle_batch(settles.collect())) {
        settled.unwrap();
    }
}

/// Receives and acknowledges so many.
fn take(queue: &MemoryQueue, count: usize) {
    let mut taken = 0;
    while taken < count {
        let leased = receive(queue, 1).unwrap();
        taken += leased.len();
        settle(queue, &leased, Settlement::Ack);
    }
}

/// Asks a future once and gives it up. Whether it was ready.
fn give_up<T>(future: impl Future<Output = T>) -> bool {
    let mut future = pin!(future);
    block_on(std::future::poll_fn(|context| {
        Poll::Ready(future.as_mut().poll(context).is_ready())
    }))
}

/// The bounds hold at every moment, and the queue is empty with all its room.
fn is_empty(queue: &MemoryQueue, messages_max: usize) {
    let counts = queue.counts();
    assert_eq!((counts.waiting, counts.leased), (0, 0), "{counts:?}");
    assert_eq!(queue.room(), messages_max, "room is lost");
    assert!(queue.keeps_nothing(), "an idle key takes memory");
}

/// Who waits for room is woken when it appears, and no bound is exceeded.
#[test]
fn pushes_that_wait_get_their_room() {
    check(|| {
        let queue = queue(2, Some(1));
        let pushes = ["a", "a", "b"].map(|key| {
            let queue = queue.clone();
            thread::spawn(move || {
                block_on(queue.push(message(key))).unwrap();
                let counts = queue.counts();
                assert!(counts.waiting + counts.leased <= 2, "{counts:?}");
            })
        });
        take(&queue, 3);
        for push in pushes {
            push.join().unwrap();
        }
        is_empty(&queue, 2);
    });
}

/// Who waits for a message is woken when one can be leased, whoever else waits or gives back.
#[test]
fn receives_that_wait_get_their_messages() {
    check(|| {
        let queue = queue(10, None);
        let receives = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || take(&queue, 1))
        });
        let back = queue.clone();
        let back = thread::spawn(move || {
            let leased = receive(&back, 1).unwrap();
            settle(&back, &leased, Settlement::GiveBack);
        });
        block_on(queue.push(message("a"))).unwrap();
        block_on(queue.push(message("a"))).unwrap();
        for receive in receives {
            receive.join().unwrap();
        }
        // There may be nothing left for it.
        block_on(queue.push(message("a"))).unwrap();
        back.join().unwrap();
        take(&queue, 1);
        is_empty(&queue, 10);
    });
}

/// A push or a receive that is given up leaves no message, no lease and no room behind.
#[test]
fn what_is_given_up_leaves_nothing() {
    check(|| {
        let queue = queue(1, Some(1));
        let other = queue.clone();
        let pushes = thread::spawn(move || {
            let pushed = give_up(other.push(message("a")));
            usize::from(pushed)
        });
        let other = queue.clone();
        let waits = thread::spawn(move || block_on(other.push(message("a"))).is_ok());
        let leased = receive(&queue, 1).unwrap();
        settle(&queue, &leased, Settlement::Ack);
        let pushed = pushes.join().unwrap();
        take(&queue, pushed);
        assert!(waits.join().unwrap());
        is_empty(&queue, 1);
    });
}

/// A close wakes everybody: pushes are refused or were before it, receives get what there is and then the end.
#[test]
fn a_close_wakes_everybody() {
    check(|| {
        let queue = queue(1, None);
        let pushes = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || match block_on(queue.push(message("a"))) {
                Ok(_) => 1,
                Err(error) => {
                    assert_eq!(error.reason, PushRefusal::Closed);
                    0
                }
            })
        });
        let receives = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || {
                let mut taken = 0;
                loop {
                    match receive(&queue, 1) {
                        Ok(leased) => settle(&queue, &leased, Settlement::Ack),
                        Err(fate) => {
                            assert_eq!(fate, Fate::Closed);
                            return taken;
                        }
                    }
                    taken += 1;
                }
            })
        });
        queue.close();
        let pushed: u32 = pushes.map(|push| push.join().unwrap()).iter().sum();
        let taken: u32 = receives.map(|taker| taker.join().unwrap()).iter().sum();
        assert_eq!(pushed, taken);
        assert!(queue.keeps_nothing());
    });
}

/// A lease that ends gives its message to one other, and its receipt settles nothing any more.
#[test]
fn a_lease_that_ends_comes_back_once() {
    check(|| {
        let queue = queue(10, None);
        block_on(queue.push(message("a"))).unwrap();
        let first = receive(&queue, 1).unwrap();
        queue.pass(Duration::from_secs(31));
        let others = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || match receive(&queue, 1) {
                Ok(leased) => {
                    assert_eq!(leased[0].attempt, 2);
                    settle(&queue, &leased, Settlement::Ack);
                    1
                }
                Err(fate) => {
                    assert_eq!(fate, Fate::Closed);
                    0
                }
            })
        });
        let late = vec![(first[0].receipt.clone(), Settlement::Ack)];
        let late = block_on(queue.settle_batch(late)).remove(0);
        assert_eq!(late.unwrap_err().fate, Fate::Stale);
        queue.close();
        let taken: u32 = others.map(|other| other.join().unwrap()).iter().sum();
        assert_eq!(taken, 1);
    });
}

/// The models find a wake-up that goes to nobody.
#[test]
fn a_forgotten_wake_up_is_found() {
    finds(
        || {
            let queue = queue(10, None);
            let other = queue.clone();
            let takes = thread::spawn(move || take(&other, 1));
            queue.push_quietly(message("a"));
            takes.join().unwrap();
        },
        "deadlock",
    );
}

/// The models find room that is taken and not given up, where the push comes second.
#[test]
fn lost_room_is_found() {
    finds(
        || {
            let queue = queue(1, None);
            let other = queue.clone();
            let takes = thread::spawn(move || other.take_room_and_forget());
            block_on(queue.push(message("a"))).unwrap();
            takes.join().unwrap();
        },
        "deadlock",
    );
}
