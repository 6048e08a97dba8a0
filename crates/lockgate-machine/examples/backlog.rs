//! What a send, a receive and an acknowledgement cost the machine beside a backlog.
//!
//! ```text
//! cargo run --release -p lockgate-machine --example backlog [MESSAGES [BATCH]]
//! ```
//!
//! Each row is a queue of its own: empty ones, and ones with MESSAGES (default 1,000,000) waiting
//! messages. Rounds go over all queues in turn, so that what else happens on the computer falls on
//! all alike; a figure is the median of its rounds. Keys come in no order, as from many users. An
//! operation is `tick`, `decide`, `fold` and `reached`, without log and codec. With a BATCH above 1
//! the machine reads ahead (`read_ahead`) for so many of them at once, as an engine does for a batch.

use std::time::{Duration, Instant};

use lockgate_core::{HolderName, Key, LeaseToken, MachineTime, Message, Now, Position, WallTime};
use lockgate_machine::{
    AnyCommand, Command, CreateQueue, Machine, MachineLimits, QueueSettings, Receive, Reply,
    SendMessage, Settle, SettleAction,
};

mod support;

const ROUNDS: usize = 41;
/// Operations of each kind in a round. Before them as many are done unmeasured, because the round's
/// first ones find the caches full of another queue.
const PER_ROUND: u64 = 2_000;

fn main() {
    let Some((messages, batch)) = arguments() else {
        eprintln!("usage: backlog [MESSAGES [BATCH]]");
        std::process::exit(2);
    };
    // What the keyed ones are compared with: so many keys that each message has its own.
    let mut queues = [
        Bench::new("empty, unkeyed", 0, None, batch),
        Bench::new("full, unkeyed", messages, None, batch),
        Bench::new("empty, keyed", 0, Some(100_000_000_000), batch),
        Bench::new(
            "full, ten messages a key",
            messages,
            Some((messages / 10).max(1)),
            batch,
        ),
        Bench::new("full, one message a key", messages, Some(messages), batch),
        Bench::new("full, 5,000 keys", messages, Some(5_000), batch),
    ];
    let mut rounds = vec![Vec::with_capacity(ROUNDS); queues.len()];
    for _ in 0..ROUNDS {
        for (queue, rounds) in queues.iter_mut().zip(&mut rounds) {
            queue.round();
            rounds.push(queue.round());
        }
    }

    println!("{messages} messages; ns per operation, and the rate compared with the empty queue's");
    println!(
        "{:<26}{:>12}{:>14}{:>14}{:>14}{:>16}",
        "queue", "send", "receive", "ack", "bytes/msg", "longest send"
    );
    let mut empty = [0; 3];
    for (queue, rounds) in queues.iter().zip(&rounds) {
        let medians = [0, 1, 2].map(|kind| median(rounds.iter().map(|round| round[kind])));
        if queue.backlog == 0 {
            empty = medians;
        }
        let figure = |kind: usize| {
            let percent = empty[kind] * 100 / medians[kind].max(1);
            format!("{} ({percent}%)", medians[kind])
        };
        let (bytes, longest) = match queue.backlog {
            0 => (String::new(), String::new()),
            backlog => (
                (queue.machine.heap_bytes() as u64 / backlog).to_string(),
                format!("{} us", queue.longest.as_micros()),
            ),
        };
        println!(
            "{:<26}{:>12}{:>14}{:>14}{bytes:>14}{longest:>16}",
            queue.label,
            figure(0),
            figure(1),
            figure(2),
        );
    }
}

/// How many messages wait, and how many commands are given at once.
fn arguments() -> Option<(u64, usize)> {
    let mut arguments = std::env::args().skip(1);
    let messages = arguments.next().map_or(Some(1_000_000), |n| n.parse().ok());
    let batch = arguments.next().map_or(Some(1), |n| n.parse().ok());
    messages.filter(|&n| n > 0).zip(batch.filter(|&n| n > 0))
}

/// One machine with one queue.
struct Bench {
    label: &'static str,
    backlog: u64,
    /// How many keys the messages are spread over.
    keys: Option<u64>,
    /// How many commands are given at once.
    batch: usize,
    machine: Machine,
    now: Now,
    position: u64,
    sent: u64,
    /// The longest single send while the backlog was built.
    longest: Duration,
}

impl Bench {
    fn new(label: &'static str, backlog: u64, keys: Option<u64>, batch: usize) -> Self {
        let mut bench = Self {
            label,
            backlog,
            keys,
            batch,
            machine: Machine::new(MachineLimits::default()),
            now: Now {
                wall: WallTime(1_700_000_000_000),
                machine: MachineTime(1_000),
            },
            position: 0,
            sent: 0,
            longest: Duration::ZERO,
        };
        bench.run(&support::start_term());
        bench.run(&Command::CreateQueue(Box::new(CreateQueue {
            name: support::queue(),
            settings: QueueSettings {
                keyed: keys.is_some(),
                in_flight_max: u32::MAX,
                ..QueueSettings::default()
            },
            annotations: Default::default(),
            tags: Default::default(),
        })));
        for _ in 0..backlog {
            let send = bench.next_send();
            let start = clock();
            bench.run(&send);
            bench.longest = bench.longest.max(start.elapsed());
        }
        // The first message of each key goes, so that receives do not find what was sent together.
        for _ in 0..keys.unwrap_or(0).min(backlog).div_ceil(PER_ROUND) {
            bench.round();
        }
        bench
    }

    /// Nanoseconds per send, receive and acknowledgement. Leaves as many messages as it found.
    fn round(&mut self) -> [u128; 3] {
        let sends: Vec<Command> = (0..PER_ROUND).map(|_| self.next_send()).collect();
        let send = self.time(&sends, |_| {});

        let receive = Command::Receive(Receive {
            queue: support::queue(),
            max: 1,
            key_max: None,
            lease: None,
            holder: HolderName::new("worker").expect("a valid name"),
        });
        let receives = vec![receive; sends.len()];
        let mut tokens: Vec<LeaseToken> = Vec::with_capacity(sends.len());
        let receive = self.time(&receives, |reply| match reply {
            Reply::Received(deliveries) => tokens.extend(deliveries.iter().map(|one| one.token)),
            other => panic!("a receive was answered {other:?}"),
        });
        assert_eq!(tokens.len(), sends.len(), "a receive came back empty");

        let settle = |token| {
            let action = SettleAction::Ack;
            Command::Settle(Settle { token, action })
        };
        let settles: Vec<Command> = tokens.into_iter().map(settle).collect();
        [send, receive, self.time(&settles, |_| {})]
    }

    fn time(&mut self, commands: &[Command], mut note: impl FnMut(Reply)) -> u128 {
        let start = clock();
        for batch in commands.chunks(self.batch) {
            if batch.len() > 1 {
                self.machine.read_ahead(batch);
            }
            for command in batch {
                note(self.run(command));
            }
        }
        start.elapsed().as_nanos() / commands.len() as u128
    }

    fn next_send(&mut self) -> Command {
        self.sent += 1;
        // A thousand operations a millisecond.
        if self.sent.is_multiple_of(1_000) {
            self.now.wall = self.now.wall.plus(1);
            self.now.machine = self.now.machine.plus(1);
        }
        let mut message = Message::new("x");
        if let Some(keys) = self.keys {
            let key = format!("user-{:011}", scatter(self.sent) % keys);
            message = message.with_key(Key::new(&key).expect("a valid key"));
        }
        Command::Send(Box::new(SendMessage {
            queue: support::queue(),
            message,
        }))
    }

    fn run<'a>(&mut self, command: impl Into<AnyCommand<'a>>) -> Reply {
        while let Some(effect) = self.machine.tick(self.now) {
            self.fold(&[effect]);
        }
        let decision = self.machine.decide(command, self.now);
        self.fold(&decision.effects);
        match decision.outcome {
            Ok(reply) => reply,
            Err(rejection) => panic!("refused: {rejection}"),
        }
    }

    fn fold(&mut self, effects: &[lockgate_machine::Effect]) {
        self.position += 1_100;
        self.machine.fold(effects, Position(self.position));
        self.machine.reached(Position(self.position + 1));
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the machine is pure, its stopwatch is not"
)]
fn clock() -> Instant {
    Instant::now()
}

/// Numbers in a fixed order that looks like none (SplitMix64's finaliser).
fn scatter(number: u64) -> u64 {
    let mut bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn median(figures: impl Iterator<Item = u128>) -> u128 {
    let mut figures: Vec<u128> = figures.collect();
    figures.sort_unstable();
    figures[figures.len() / 2]
}
