//! Histories written by hand, to be crashed at every one of their changes.

use lockgate_core::LeaseToken;
use lockgate_engine::Request;
use lockgate_machine::{KeyAction, SettleAction};
use lockgate_sim::PowerCut;

use crate::{
    Violation,
    asks::Sending,
    exchanges::{COPIED, Exchanges},
    world::{DEAD, End, KEYED, PASSING, PLAIN, SKIPPED, SKIPPING, WRITTEN, World},
};

/// One step of a history.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sends as one request.
    Send(Vec<Sending>),
    /// A receive of so many.
    Receive(&'static str, u16),
    /// Settles every lease that its holder may count on, in order, each in a request of its own.
    Settle(SettleAction),
    /// Settles the first of them.
    SettleFirst(SettleAction),
    /// Acknowledges all of them and sends, as one command.
    Transact(Vec<Sending>),
    /// Publishes a message to all queues that are bound.
    Publish,
    /// Binds the last of them, or removes its binding.
    BindLater(bool),
    /// A receive of so many copies.
    ReceiveCopies(&'static str, u16),
    /// Acknowledges all copies that were received.
    AckCopies,
    Purge(&'static str),
    Delete(&'static str),
    Make(&'static str),
    /// Cancels the message of this number.
    Cancel(u64),
    /// Reschedules it to so much later than now.
    Reschedule(u64, u64),
    Key(&'static str, u64, KeyAction),
    /// These together, as one group.
    Together(Vec<Step>),
    Sync,
    Pass(u64),
    /// A whole snapshot, or what is missing of it, and a trim if it is the second one.
    Snapshot,
    /// Begins a snapshot, or writes its next piece.
    Piece,
    /// Moves so many messages of the oldest range forward.
    Compact(usize),
    /// Releases what may be released.
    Release,
    /// All of the log's work that nobody waits for.
    Maintenance,
    /// So many bytes are free from now on.
    Limit(u64),
    /// Space has no end any more.
    Lift,
    /// An end in good order.
    Stop,
    /// This life ends and the next begins.
    Restart(End),
}

use Step::{
    AckCopies, BindLater, Cancel, Compact, Delete, Key, Lift, Limit, Maintenance, Make, Pass,
    Piece, Publish, Purge, Receive, ReceiveCopies, Release, Reschedule, Restart, Send, Settle,
    SettleFirst, Snapshot, Stop, Sync, Together, Transact,
};

const ACK: SettleAction = SettleAction::Ack;
const NACK: SettleAction = SettleAction::Nack {
    delay: 0,
    reason: None,
};
const POWER: End = End::Power(PowerCut::LoseAllUnsynced);

/// A message to a queue, with no key.
fn to(queue: &'static str) -> Sending {
    Sending {
        queue,
        ..Sending::default()
    }
}

/// A message of a key.
fn of(queue: &'static str, key: u64) -> Sending {
    Sending {
        key: Some(key),
        ..to(queue)
    }
}

fn unique(sending: Sending, id: u64) -> Sending {
    Sending {
        unique: Some(id),
        ..sending
    }
}

fn delayed(sending: Sending, delay_ms: u64) -> Sending {
    Sending {
        delay_ms: Some(delay_ms),
        ..sending
    }
}

fn send(sending: Sending) -> Step {
    Send(vec![sending])
}

fn many(sending: Sending, count: usize) -> Step {
    Send(vec![sending; count])
}

/// All histories, by name. Every one begins with a start on an empty disk and the making of the
/// queues.
pub(crate) fn scripts() -> Vec<(&'static str, Vec<Step>)> {
    let nack_later = SettleAction::Nack {
        delay: 2_000,
        reason: None,
    };
    let extend = SettleAction::Extend { lease: 40_000 };
    let reject = SettleAction::Reject { reason: None };
    vec![
        (
            "sends",
            vec![
                send(to(PLAIN)),
                Sync,
                send(to(PLAIN)),
                Sync,
                send(of(KEYED, 1)),
                send(of(KEYED, 1)),
                Sync,
            ],
        ),
        (
            "batches",
            vec![
                many(to(PLAIN), 3),
                many(of(KEYED, 1), 4),
                Sync,
                many(to(PLAIN), 9),
                Sync,
                Together(vec![
                    many(to(PLAIN), 2),
                    send(of(KEYED, 2)),
                    Receive(PLAIN, 2),
                ]),
                Sync,
            ],
        ),
        (
            "order of a key",
            vec![
                many(of(KEYED, 1), 3),
                send(of(KEYED, 2)),
                Sync,
                Receive(KEYED, 2),
                Sync,
                SettleFirst(NACK),
                Sync,
                Receive(KEYED, 5),
                SettleFirst(ACK),
                Sync,
                Pass(6_000),
                Receive(KEYED, 5),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "unique ids",
            vec![
                send(unique(to(PLAIN), 1)),
                send(unique(to(PLAIN), 1)),
                Sync,
                send(unique(to(PLAIN), 1)),
                Send(vec![
                    unique(of(KEYED, 1), 2),
                    unique(of(KEYED, 1), 2),
                    unique(of(KEYED, 2), 3),
                ]),
                Sync,
                Receive(PLAIN, 1),
                Settle(ACK),
                Sync,
                send(unique(to(PLAIN), 1)),
                Sync,
            ],
        ),
        (
            "receive and acknowledge",
            vec![
                many(to(PLAIN), 5),
                Sync,
                Receive(PLAIN, 2),
                Settle(ACK),
                Sync,
                Receive(PLAIN, 5),
                SettleFirst(ACK),
                Sync,
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "failing and extending",
            vec![
                many(to(PASSING), 3),
                Sync,
                Receive(PASSING, 3),
                SettleFirst(NACK),
                Settle(extend.clone()),
                Sync,
                Pass(20_000),
                Receive(PASSING, 3),
                SettleFirst(nack_later.clone()),
                Sync,
                Pass(2_000),
                Receive(PASSING, 3),
                Settle(SettleAction::GiveBack),
                Sync,
            ],
        ),
        (
            "leases that end",
            vec![
                many(of(KEYED, 1), 2),
                many(to(PLAIN), 2),
                Sync,
                Receive(KEYED, 1),
                Receive(PLAIN, 1),
                Sync,
                Pass(4_999),
                Receive(KEYED, 1),
                Pass(1),
                Receive(KEYED, 1),
                Receive(PLAIN, 2),
                Sync,
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "leases over restarts",
            vec![
                many(of(KEYED, 1), 3),
                send(of(KEYED, 2)),
                Sync,
                Receive(KEYED, 1),
                Sync,
                Restart(End::Kill),
                Receive(KEYED, 5),
                Restart(POWER),
                Receive(KEYED, 5),
                Pass(36_000),
                Receive(KEYED, 5),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "delayed",
            vec![
                send(delayed(to(PLAIN), 1_000)),
                send(delayed(of(KEYED, 1), 2_000)),
                send(of(KEYED, 1)),
                Sync,
                Receive(PLAIN, 1),
                Pass(1_000),
                Receive(PLAIN, 1),
                Receive(KEYED, 5),
                Sync,
                Restart(POWER),
                Pass(40_000),
                Receive(KEYED, 5),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "dead letters",
            vec![
                many(to(PLAIN), 2),
                Sync,
                Receive(PLAIN, 2),
                Settle(NACK),
                Receive(PLAIN, 2),
                Settle(NACK),
                Sync,
                Receive(PLAIN, 2),
                Sync,
                Receive(DEAD, 2),
                SettleFirst(ACK),
                Sync,
                send(to(PLAIN)),
                Sync,
                Receive(PLAIN, 1),
                Settle(reject.clone()),
                Sync,
                Receive(DEAD, 5),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "a key that skips",
            vec![
                many(of(SKIPPING, 1), 3),
                Sync,
                Receive(SKIPPING, 1),
                Settle(NACK),
                Receive(SKIPPING, 1),
                Settle(NACK),
                Sync,
                Receive(SKIPPING, 1),
                Sync,
                Receive(SKIPPED, 1),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "purge",
            vec![
                many(of(KEYED, 1), 3),
                send(delayed(of(KEYED, 2), 5_000)),
                send(unique(of(KEYED, 3), 1)),
                Sync,
                Receive(KEYED, 1),
                Purge(KEYED),
                Sync,
                send(unique(of(KEYED, 3), 1)),
                Sync,
                Settle(ACK),
                Receive(KEYED, 5),
                Sync,
            ],
        ),
        (
            "delete",
            vec![
                many(to(PASSING), 3),
                Sync,
                Receive(PASSING, 1),
                Delete(PASSING),
                Sync,
                Make(PASSING),
                send(to(PASSING)),
                Sync,
                Settle(ACK),
                Receive(PASSING, 5),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "purges around snapshots",
            vec![
                many(of(KEYED, 1), 3),
                send(delayed(of(KEYED, 2), 5_000)),
                send(unique(of(KEYED, 3), 1)),
                many(to(PASSING), 2),
                Sync,
                Receive(KEYED, 1),
                Snapshot,
                Purge(KEYED),
                many(of(KEYED, 1), 2),
                Snapshot,
                send(unique(of(KEYED, 3), 1)),
                Restart(POWER),
                Receive(KEYED, 5),
                SettleFirst(ACK),
                // Frozen with what is purged before it is finished.
                Piece,
                Purge(KEYED),
                Purge(PASSING),
                many(of(KEYED, 2), 2),
                Piece,
                send(to(PASSING)),
                Snapshot,
                Restart(End::Kill),
                many(of(KEYED, 2), 8),
                Purge(KEYED),
                Sync,
                Snapshot,
                many(of(KEYED, 4), 2),
                Sync,
                Snapshot,
                Release,
                Sync,
                Release,
                Maintenance,
                Restart(POWER),
                Receive(KEYED, 5),
                Receive(PASSING, 5),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "deletions around snapshots",
            vec![
                many(to(PASSING), 3),
                send(delayed(to(PASSING), 2_000)),
                Sync,
                Snapshot,
                Delete(PASSING),
                Snapshot,
                Make(PASSING),
                many(to(PASSING), 2),
                Sync,
                Receive(PASSING, 1),
                Restart(POWER),
                Settle(ACK),
                // Frozen with the queue that goes before it is finished.
                Piece,
                Delete(PASSING),
                Make(PASSING),
                many(to(PASSING), 2),
                Piece,
                Delete(PASSING),
                Snapshot,
                Restart(End::Kill),
                Make(PASSING),
                many(to(PASSING), 9),
                Sync,
                Delete(PASSING),
                Make(PASSING),
                send(to(PASSING)),
                Sync,
                Snapshot,
                Release,
                Sync,
                Release,
                Maintenance,
                many(to(PASSING), 2),
                Restart(POWER),
                Receive(PASSING, 9),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "transactions",
            vec![
                many(to(PLAIN), 2),
                Sync,
                Receive(PLAIN, 1),
                Transact(vec![of(KEYED, 1), to(WRITTEN)]),
                Sync,
                Receive(PLAIN, 1),
                Pass(6_000),
                Transact(vec![of(KEYED, 1)]),
                Sync,
                Receive(KEYED, 5),
                Transact(vec![to(PASSING), of(SKIPPING, 1), to(PLAIN)]),
                Sync,
            ],
        ),
        (
            "cancel and reschedule",
            vec![
                many(to(PLAIN), 2),
                send(delayed(to(PLAIN), 3_000)),
                many(of(KEYED, 1), 2),
                Sync,
                Cancel(0),
                Cancel(2),
                Reschedule(1, 1_000),
                Reschedule(3, 2_000),
                Sync,
                Pass(1_000),
                Receive(PLAIN, 5),
                Receive(KEYED, 5),
                Sync,
                Pass(6_000),
                Receive(KEYED, 5),
                Sync,
            ],
        ),
        (
            "keys",
            vec![
                many(of(KEYED, 1), 2),
                many(of(KEYED, 2), 2),
                Sync,
                Key(KEYED, 1, KeyAction::Park),
                Receive(KEYED, 5),
                Sync,
                Key(KEYED, 1, KeyAction::Resume),
                Key(KEYED, 2, KeyAction::Drop),
                Sync,
                Receive(KEYED, 5),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "written, not synced",
            vec![
                many(to(WRITTEN), 3),
                send(unique(to(WRITTEN), 1)),
                Receive(WRITTEN, 2),
                SettleFirst(ACK),
                Sync,
                send(unique(to(WRITTEN), 1)),
                Receive(WRITTEN, 5),
                Restart(End::Kill),
                send(unique(to(WRITTEN), 1)),
                Receive(WRITTEN, 5),
                Restart(POWER),
                Receive(WRITTEN, 5),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "many segments",
            vec![
                many(to(PLAIN), 12),
                many(of(KEYED, 1), 12),
                Sync,
                many(to(PLAIN), 24),
                Sync,
                many(of(KEYED, 2), 24),
                many(to(PLAIN), 24),
                Sync,
                Receive(PLAIN, 20),
                Settle(ACK),
                Sync,
                many(of(KEYED, 3), 30),
                Sync,
            ],
        ),
        (
            "lives without a word",
            vec![
                Restart(End::Kill),
                Restart(End::Kill),
                Restart(POWER),
                send(to(PLAIN)),
                Restart(End::Kill),
                Restart(POWER),
                send(to(PLAIN)),
                Sync,
                Restart(POWER),
                Restart(POWER),
            ],
        ),
        (
            "ends in good order",
            vec![
                many(to(PLAIN), 3),
                Stop,
                Restart(End::Kill),
                Receive(PLAIN, 1),
                Settle(ACK),
                Stop,
                Restart(POWER),
                many(of(KEYED, 1), 3),
                Receive(KEYED, 1),
                Stop,
                Restart(POWER),
                Receive(KEYED, 1),
                Stop,
            ],
        ),
        (
            "drained",
            vec![
                many(to(PLAIN), 20),
                many(of(KEYED, 1), 20),
                many(to(PASSING), 20),
                Sync,
                Receive(PLAIN, 20),
                Receive(KEYED, 20),
                Receive(PASSING, 20),
                Settle(ACK),
                Sync,
                send(to(PLAIN)),
                Sync,
                Receive(PLAIN, 1),
                Settle(ACK),
                Sync,
            ],
        ),
        (
            "snapshots",
            vec![
                many(to(PLAIN), 6),
                Sync,
                Snapshot,
                Receive(PLAIN, 3),
                Settle(ACK),
                Sync,
                Snapshot,
                many(of(KEYED, 1), 3),
                Sync,
                Snapshot,
                Restart(POWER),
                Receive(PLAIN, 5),
                Sync,
            ],
        ),
        (
            "trim and release",
            vec![
                many(to(PLAIN), 20),
                Sync,
                Maintenance,
                Receive(PLAIN, 20),
                Settle(ACK),
                Sync,
                Snapshot,
                many(of(KEYED, 1), 20),
                Sync,
                Snapshot,
                Release,
                Sync,
                Release,
                Maintenance,
                Receive(KEYED, 10),
                Settle(ACK),
                Sync,
                Snapshot,
                Release,
                Maintenance,
                Restart(POWER),
                many(to(PLAIN), 20),
                Sync,
                Release,
                Maintenance,
            ],
        ),
        (
            "compaction",
            vec![
                many(to(PLAIN), 20),
                many(of(KEYED, 1), 12),
                Sync,
                Receive(PLAIN, 20),
                SettleFirst(NACK),
                Settle(ACK),
                Sync,
                Snapshot,
                Compact(3),
                Snapshot,
                Compact(9),
                Sync,
                Release,
                Sync,
                Release,
                Maintenance,
                Compact(20),
                Sync,
                Snapshot,
                Release,
                Maintenance,
                Receive(KEYED, 5),
                Restart(POWER),
                Receive(KEYED, 5),
                Sync,
            ],
        ),
        (
            "publishes",
            vec![
                Publish,
                Publish,
                Sync,
                BindLater(true),
                Publish,
                Sync,
                ReceiveCopies(COPIED[0], 2),
                ReceiveCopies(COPIED[2], 1),
                AckCopies,
                Sync,
                Together(vec![Publish, BindLater(false), Publish]),
                Sync,
                Snapshot,
                ReceiveCopies(COPIED[1], 4),
                AckCopies,
                Publish,
                Sync,
                Compact(3),
                Sync,
                Snapshot,
                Release,
                Restart(POWER),
                ReceiveCopies(COPIED[0], 5),
                AckCopies,
                Sync,
            ],
        ),
        (
            "a full disk",
            vec![
                Maintenance,
                many(to(PLAIN), 12),
                Sync,
                Maintenance,
                Limit(4 << 10),
                many(to(PLAIN), 30),
                many(to(PLAIN), 30),
                Sync,
                Receive(PLAIN, 3),
                Settle(ACK),
                Sync,
                Restart(End::Kill),
                Receive(PLAIN, 3),
                Settle(ACK),
                Sync,
                Lift,
                many(to(PLAIN), 3),
                Sync,
            ],
        ),
    ]
}

impl World {
    /// Plays the script on an empty disk, as far as it gets. Whether the shard is still running.
    pub(crate) fn play(&mut self, steps: &[Step]) -> Result<bool, Violation> {
        let publishes = steps.iter().any(|step| matches!(step, Publish));
        self.exchanges = publishes.then(|| Exchanges::new(0));
        if !self.start()? {
            return Ok(false);
        }
        self.make_queues()?;
        for step in steps {
            if !self.is_serving() {
                return Ok(false);
            }
            self.step(step)?;
        }
        Ok(self.is_serving())
    }

    fn step(&mut self, step: &Step) -> Result<(), Violation> {
        match step {
            Sync => self.sync(),
            Pass(span) => {
                self.pass(*span);
                Ok(())
            }
            Stop => self.stop(),
            Snapshot => self.snapshot(),
            Piece => self.snapshot_step(),
            Compact(count) => self.compact(*count),
            Release => self.release(),
            Maintenance => self.log_maintenance(100).map(|_| ()),
            Limit(free) => {
                self.disk.set_free_bytes(Some(*free));
                self.is_limited = true;
                Ok(())
            }
            Lift => {
                self.disk.set_free_bytes(None);
                self.is_limited = false;
                Ok(())
            }
            Restart(end) => {
                self.end(*end);
                self.start().map(|_| ())
            }
            Together(steps) => {
                let requests = steps.iter().flat_map(|step| self.requests(step)).collect();
                self.group(requests)
            }
            step => {
                for request in self.requests(step) {
                    if self.is_serving() {
                        self.group(vec![request])?;
                    }
                }
                Ok(())
            }
        }
    }

    fn requests(&mut self, step: &Step) -> Vec<Request<u64>> {
        let settle = |world: &mut Self, tokens: Vec<LeaseToken>, action: &SettleAction| {
            tokens
                .into_iter()
                .map(|token| world.settle(token, action.clone()))
                .collect()
        };
        match step {
            Send(sendings) => vec![self.send(sendings)],
            Receive(queue, max) => {
                let holder = self.next_holder();
                vec![self.receive(queue, holder, *max)]
            }
            Settle(action) => {
                let tokens = self.current_leases();
                settle(self, tokens, action)
            }
            SettleFirst(action) => {
                let tokens = self.current_leases().into_iter().take(1).collect();
                settle(self, tokens, action)
            }
            Transact(sendings) => {
                let tokens = self.current_leases();
                vec![self.transact(&tokens, sendings)]
            }
            Publish => vec![self.publish_next()],
            BindLater(is_bound) => vec![self.bind_later(*is_bound)],
            ReceiveCopies(queue, max) => vec![self.receive_copies(queue, *max)],
            AckCopies => self.acknowledge_copies(),
            Purge(queue) => vec![self.purge(queue)],
            Delete(queue) => vec![self.delete(queue)],
            Make(queue) => vec![self.make_queue(queue)],
            Cancel(message) => self.cancel(*message).into_iter().collect(),
            Reschedule(message, span) => self.reschedule(*message, *span).into_iter().collect(),
            Key(queue, key, action) => vec![self.key_action(queue, *key, *action)],
            other => unreachable!("{other:?} asks for nothing"),
        }
    }
}

/// What may be left of so many unsynced operations: everything that matters of it, in a number of
/// ways that stays bounded.
pub(crate) fn ends(unsynced: usize, seed: u64) -> Vec<End> {
    let mut cuts = vec![
        PowerCut::LoseAllUnsynced,
        PowerCut::KeepAll,
        PowerCut::KeepNames,
        PowerCut::KeepBytes,
    ];
    cuts.extend((0..unsynced.min(6)).map(PowerCut::KeepPrefix));
    if unsynced <= 4 {
        cuts.extend((1..(1 << unsynced) - 1).map(PowerCut::KeepSubset));
    }
    if unsynced > 0 {
        cuts.extend((0..6).map(|n| PowerCut::Seeded(seed * 100 + n)));
    } else {
        // They are all the same.
        cuts.truncate(1);
    }
    let cuts = cuts.into_iter().map(End::Power);
    [End::Kill].into_iter().chain(cuts).collect()
}
