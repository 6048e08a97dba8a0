//! The whole engine over the local log: its three threads, callers, a shutdown at any moment, and a
//! power cut after each answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future as _,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use lockgate_core::{
    BootId, Clock, DiskOperation, HolderName, Incarnation, Message, MessageId, Millis, QueueName,
    WallTime,
};
use lockgate_log::{LocalLog, LocalLogOptions};
use lockgate_machine::{
    Command, CreateQueue, ListMessages, MessagePage, Query, QueryReply, QueueSettings, Receive,
    Reply, SendMessage, Settle, SettleAction,
};
use lockgate_sim::{Fault, FaultyDisk};
use shuttle::{future::block_on, rand::Rng as _, thread};

use super::{
    check, check_one_in,
    disk::{TurnDisk, power_cut},
    turn,
};
use crate::{
    BackupError, Beginning, Driver, Engine, EngineError, EngineOptions, Status, StopReason,
    inbox::AnswerSender, sync::Instant,
};

/// The clock of the models: it moves when a timed wait ends.
struct ModelClock(Instant);

impl ModelClock {
    fn passed(&self) -> Millis {
        u64::try_from(self.0.elapsed().as_millis()).unwrap()
    }
}

impl Clock for ModelClock {
    fn wall(&self) -> WallTime {
        WallTime(1_700_000_000_000 + self.passed())
    }

    fn since_boot(&self) -> Millis {
        1_000 + self.passed()
    }

    fn boot_id(&self) -> BootId {
        BootId([1; 16])
    }
}

fn queue() -> QueueName {
    QueueName::new("q").unwrap()
}

fn receive() -> Receive {
    Receive {
        queue: queue(),
        max: 1,
        key_max: None,
        lease: None,
        holder: HolderName::new("model").unwrap(),
    }
}

/// Two or three messages fill a segment.
fn log(disk: Arc<TurnDisk>) -> LocalLog {
    let options = LocalLogOptions {
        segment_bytes: 8 << 10,
        record_bytes_max: 4_000,
        low_bytes: Some(0),
        free_bytes_min: 0,
        reserve_segments: 1,
        write_ahead_bytes_max: 0,
        generation_seed: Some(1),
        ..LocalLogOptions::default()
    };
    LocalLog::open(disk, options).unwrap()
}

fn options() -> EngineOptions {
    EngineOptions {
        // Room for a few requests, so that others wait for it.
        inbox_requests_max: 2,
        inbox_bytes_max: 4 << 10,
        shed_after: Duration::from_secs(3_600),
        group_requests_max: 2,
        // So few that the owner sometimes waits until a sync lets one leave.
        answers_max: 2,
        // So small that maintenance takes snapshots and releases segments.
        snapshot_bytes_min: 1 << 10,
        ..EngineOptions::default()
    }
}

/// What callers were told, and the disk after a power cut at the last answer.
#[derive(Default)]
struct Told {
    sent: BTreeSet<MessageId>,
    acked: BTreeSet<MessageId>,
    /// A settle was requested; it may have happened or not.
    settling: BTreeSet<MessageId>,
    cuts: Vec<Cut>,
}

struct Cut {
    after: FaultyDisk,
    /// Present unless settled.
    sent: BTreeSet<MessageId>,
    /// Gone.
    acked: BTreeSet<MessageId>,
}

struct Shard {
    disk: FaultyDisk,
    engine: Engine,
    told: Mutex<Told>,
}

impl Shard {
    fn start() -> Arc<Self> {
        let disk = FaultyDisk::new();
        disk.set_free_bytes(Some(1 << 20));
        let clock = Arc::new(ModelClock(Instant::now()));
        let log = log(TurnDisk::new(&disk));
        let (engine, _) = Engine::start(log, clock, options()).unwrap();
        let create = CreateQueue {
            name: queue(),
            settings: QueueSettings::default(),
            annotations: BTreeMap::new(),
            tags: BTreeMap::new(),
        };
        block_on(engine.submit(Command::CreateQueue(Box::new(create)))).unwrap();
        Arc::new(Self {
            disk,
            engine,
            told: Mutex::default(),
        })
    }

    fn send(&self, bytes: usize) -> Result<(), EngineError> {
        let message = Message::new("x".repeat(bytes));
        let queue = queue();
        let send = Command::Send(Box::new(SendMessage { queue, message }));
        match block_on(self.engine.submit(send))? {
            Reply::Sent(sent) => self.tell(|told| told.sent.insert(sent.id)),
            other => panic!("{other:?}"),
        }
        Ok(())
    }

    /// Receives a message and settles it; returns false if none came.
    fn consume(&self) -> Result<bool, EngineError> {
        let batch = block_on(self.engine.receive(receive(), Duration::from_secs(20)))?;
        let Some(received) = batch.keep().pop() else {
            return Ok(false);
        };
        let id = received.delivery.id;
        self.told.lock().unwrap().settling.insert(id);
        let token = received.delivery.token;
        let settle = Command::Settle(Settle {
            token,
            action: SettleAction::Ack,
        });
        block_on(self.engine.submit(settle))?;
        self.tell(|told| told.acked.insert(id));
        Ok(true)
    }

    /// Begins a receive and leaves, so that a lease that was given meanwhile goes back.
    fn leave(&self) {
        let receiving = self.engine.receive(receive(), Duration::from_secs(20));
        let mut receiving = pin!(receiving);
        for _ in 0..3 {
            let polled = receiving
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            if polled.is_ready() {
                return;
            }
            turn();
        }
    }

    fn stop(&self) -> StopReason {
        block_on(self.engine.shutdown());
        match self.engine.status() {
            Status::Stopped { reason } => reason,
            status => panic!("{status:?}"),
        }
    }

    /// Records an answer, and the disk after a power cut at this moment.
    fn tell(&self, note: impl FnOnce(&mut Told) -> bool) {
        let mut told = self.told.lock().unwrap();
        assert!(note(&mut told), "answered twice");
        let cut = Cut {
            after: self.disk.crash(power_cut()),
            sent: told.sent.difference(&told.settling).copied().collect(),
            acked: told.acked.clone(),
        };
        told.cuts.push(cut);
    }

    fn verify(&self) {
        for cut in &self.told.lock().unwrap().cuts {
            let found = messages(&cut.after);
            assert!(found.is_superset(&cut.sent), "an answered send is lost");
            assert!(found.is_disjoint(&cut.acked), "an answered settle is lost");
        }
    }
}

/// The messages that a new start finds.
fn messages(disk: &FaultyDisk) -> BTreeSet<MessageId> {
    let beginning = Beginning {
        wall: WallTime(1_700_000_100_000),
        since_boot: 1_000,
        boot_id: BootId([2; 16]),
        incarnation: Incarnation(2),
        secret: [0; 32],
    };
    let log = log(TurnDisk::new(disk));
    let (driver, _) = Driver::<AnswerSender>::recover(log, &options(), || beginning).unwrap();
    let now = lockgate_core::Now {
        wall: beginning.wall,
        machine: driver.machine_time(beginning.since_boot),
    };
    let query = Query::ListMessages(ListMessages {
        queue: queue(),
        key: None,
        after: None,
        limit: 100,
    });
    match driver.machine().query(&query, now) {
        Ok(QueryReply::Messages(MessagePage { messages, .. })) => {
            messages.iter().map(|status| status.id).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Threads that send, consume and leave, until each has done its part or the engine stops.
fn callers(shard: &Arc<Shard>) -> Vec<thread::JoinHandle<Result<(), EngineError>>> {
    let beside = |work: fn(&Shard) -> Result<(), EngineError>| {
        let shard = shard.clone();
        thread::spawn(move || work(&shard))
    };
    vec![
        beside(|shard| {
            shard.send(10)?;
            shard.send(2 << 10)
        }),
        beside(|shard| {
            shard.send(2 << 10)?;
            shard.send(10)
        }),
        beside(|shard| {
            let mut left = 3;
            while left > 0 {
                left -= u32::from(shard.consume()?);
            }
            Ok(())
        }),
        beside(|shard| {
            shard.leave();
            Ok(())
        }),
    ]
}

/// All of them end, with only this error.
fn join(
    callers: Vec<thread::JoinHandle<Result<(), EngineError>>>,
    is_expected: impl Fn(&EngineError) -> bool,
) {
    for caller in callers {
        let outcome = caller.join().unwrap();
        assert!(
            outcome.as_ref().err().is_none_or(&is_expected),
            "{outcome:?}"
        );
    }
}

#[test]
fn what_the_engine_answers_survives_a_power_cut_at_once() {
    check(|| {
        let shard = Shard::start();
        join(callers(&shard), |_| false);
        assert_eq!(shard.stop(), StopReason::ShutDown);
        shard.verify();
    });
}

#[test]
fn a_shutdown_at_any_moment_ends_all_threads_and_callers() {
    check(|| {
        let shard = Shard::start();
        let callers = callers(&shard);
        turn();
        assert_eq!(shard.stop(), StopReason::ShutDown);
        join(callers, |error| {
            matches!(error, EngineError::Stopped { .. })
        });
        shard.verify();
    });
}

/// A sync of a file fails: maintenance's, which is tried again, or one that answers wait for.
#[test]
fn a_failed_sync_ends_all_threads_and_callers() {
    check(|| {
        let shard = Shard::start();
        let before = shuttle::rand::thread_rng().gen_range(0..4);
        shard
            .disk
            .fail(DiskOperation::Sync, before, Fault::LostPages);
        let callers = callers(&shard);
        turn();
        let _reason = shard.stop();
        join(callers, |error| {
            matches!(
                error,
                EngineError::Stopped { .. } | EngineError::UnknownOutcome { .. }
            )
        });
        shard.verify();
    });
}

/// The backup waits for the owner, then for a sync.
#[test]
fn a_backup_beside_a_shutdown_ends() {
    check_one_in(4, || {
        let shard = Shard::start();
        let sends = thread::spawn({
            let shard = shard.clone();
            move || shard.send(10)
        });
        let backup = thread::spawn({
            let shard = shard.clone();
            move || shard.engine.backup(&mut Vec::new())
        });
        turn();
        assert_eq!(shard.stop(), StopReason::ShutDown);
        let written = backup.join().unwrap();
        assert!(
            matches!(written, Ok(_) | Err(BackupError::Stopped { .. })),
            "{written:?}"
        );
        join(vec![sends], |error| {
            matches!(error, EngineError::Stopped { .. })
        });
        shard.verify();
    });
}

/// So many large messages make maintenance take a snapshot, trim, and release segments.
const FILLS: u32 = 10;

/// All of maintenance's work during appends.
#[test]
fn what_is_answered_beside_maintenance_survives_a_power_cut_at_once() {
    check_one_in(10, || {
        let shard = Shard::start();
        let fills = thread::spawn({
            let shard = shard.clone();
            move || (0..FILLS).try_for_each(|_| shard.send(3_000))
        });
        let drains = thread::spawn({
            let shard = shard.clone();
            move || {
                let mut left = FILLS - 1;
                while left > 0 {
                    left -= u32::from(shard.consume()?);
                }
                Ok(())
            }
        });
        join(vec![fills, drains], |_| false);
        assert!(
            shard.engine.metrics().maintenance.snapshots > 0,
            "it was to be busy"
        );
        assert_eq!(shard.stop(), StopReason::ShutDown);
        shard.verify();
    });
}
