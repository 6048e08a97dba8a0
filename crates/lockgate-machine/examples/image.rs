//! What a snapshot of a full machine costs: freezing it, the sends meanwhile, writing the image and
//! loading it again.
//!
//! ```text
//! cargo run --release -p lockgate-machine --example image [MESSAGES [KEYS]]
//! ```
//!
//! One keyed queue holds MESSAGES (default 10,000,000) over KEYS (default a tenth of them), which
//! come in no order. Everything stays in memory. Each figure is of one run, so run it a few times.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use lockgate_core::{Key, Message, Now, Position, WallTime};
use lockgate_machine::{
    AnyCommand, Command, CreateQueue, Frozen, ImageLoader, Machine, MachineLimits, QueueSettings,
    SendMessage,
};

mod support;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse());
    let messages: u64 = arguments.next().map_or(10_000_000, number);
    let keys: u64 = arguments.next().map_or(messages / 10, number).max(1);
    let mut bench = Bench::new(messages, keys);
    let heap = bench.machine.heap_bytes();
    println!("{messages} messages over {keys} keys, {} MB", heap >> 20);
    println!(
        "estimated image    {:>10} MB",
        bench.machine.image_bytes() >> 20
    );

    let alone = bench.longest_send(|| Some(()), 300_000);
    println!("sends alone        {alone}");

    let start = clock();
    let frozen = bench.machine.freeze();
    println!("freeze             {:>10.2?}", start.elapsed());
    let kept = bench.longest_send(|| Some(()), 300_000);
    println!("sends, all shared  {kept}");
    let start = clock();
    drop(frozen);
    println!("drop               {:>10.2?}", start.elapsed());
    let after = bench.longest_send(|| Some(()), 300_000);
    println!("sends, given back  {after}");

    let mut frozen = bench.machine.freeze();
    let done = AtomicBool::new(false);
    let encoded = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let encoded = encode(&mut frozen);
            done.store(true, Ordering::Relaxed);
            encoded
        });
        let during = bench.longest_send(|| (!done.load(Ordering::Relaxed)).then_some(()), u64::MAX);
        println!("sends, beside it   {during}");
        writer.join().expect("the writer does not panic")
    });
    println!("written beside     {:>10.2?}", encoded.1);
    drop(encoded);

    let (pieces, taken, bytes) = encode(&mut bench.machine.freeze());
    println!(
        "written alone      {taken:>10.2?}, {} MB, {:.1} bytes a message",
        bytes >> 20,
        bytes as f64 / bench.sent as f64
    );
    drop(bench.machine);
    for _ in 0..3 {
        let start = clock();
        let mut loader = ImageLoader::new(MachineLimits::default());
        for piece in &pieces {
            loader.piece(piece).expect("the image is whole");
        }
        let read = start.elapsed();
        let machine = loader.finish().expect("the image is whole");
        println!(
            "loaded             {:>10.2?}, of that {:.2?} in the end; {} MB",
            start.elapsed(),
            start.elapsed() - read,
            machine.heap_bytes() >> 20
        );
        drop(machine);
    }
}

fn number<E: std::fmt::Debug>(parsed: Result<u64, E>) -> u64 {
    parsed.expect("arguments are numbers")
}

/// The pieces, how long that took, and how many bytes they have.
fn encode(frozen: &mut Frozen) -> (Vec<Vec<u8>>, Duration, usize) {
    let start = clock();
    let mut pieces = Vec::new();
    let mut buffer = Vec::new();
    while let Some(piece) = frozen.next_piece(&mut buffer) {
        pieces.push(piece.to_vec());
    }
    let bytes = pieces.iter().map(Vec::len).sum();
    (pieces, start.elapsed(), bytes)
}

struct Bench {
    machine: Machine,
    keys: u64,
    sent: u64,
}

impl Bench {
    fn new(messages: u64, keys: u64) -> Self {
        let mut bench = Self {
            machine: Machine::new(MachineLimits::default()),
            keys,
            sent: 0,
        };
        bench.run(&support::start_term());
        bench.run(&Command::CreateQueue(Box::new(CreateQueue {
            name: support::queue(),
            settings: QueueSettings {
                keyed: true,
                ..QueueSettings::default()
            },
            annotations: Default::default(),
            tags: Default::default(),
        })));
        for _ in 0..messages {
            let send = bench.next_send();
            bench.run(&send);
        }
        bench
    }

    /// Sends while `goes_on`, at most `max` messages, and says how long they took.
    fn longest_send(&mut self, goes_on: impl Fn() -> Option<()>, max: u64) -> String {
        let (mut longest, mut sum, mut count) = (Duration::ZERO, Duration::ZERO, 0);
        while count < max && goes_on().is_some() {
            let send = self.next_send();
            let start = clock();
            self.run(&send);
            let taken = start.elapsed();
            longest = longest.max(taken);
            sum += taken;
            count += 1;
        }
        let mean = sum.as_nanos() / u128::from(count.max(1));
        format!("{mean:>10} ns each, longest {longest:.2?}, {count} in {sum:.2?}")
    }

    fn next_send(&mut self) -> Command {
        self.sent += 1;
        let key = format!("user-{:011}", scatter(self.sent) % self.keys);
        Command::Send(Box::new(SendMessage {
            queue: support::queue(),
            message: Message::new("x").with_key(Key::new(&key).expect("a valid key")),
        }))
    }

    fn run<'a>(&mut self, command: impl Into<AnyCommand<'a>>) {
        let now = Now {
            wall: WallTime(1_700_000_000_000 + self.sent / 1_000),
            ..Now::default()
        };
        let decision = self.machine.decide(command, now);
        decision.outcome.expect("nothing is refused");
        let position = Position(self.sent * 1_100);
        self.machine.fold(&decision.effects, position);
        self.machine.reached(Position(position.0 + 1));
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
