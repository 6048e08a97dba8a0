//! What the machine does for each message, to be counted by `cargo xtask instructions` and looked at in a profiler.
//!
//! ```text
//! cargo run --release -p lockgate-machine --example hot_paths -- PATH [MESSAGES [BATCH]]
//! ```
//!
//! Does [`TIMES`] operations of one kind inside [`measured`], beside MESSAGES that wait (default 0), after reading
//! ahead for BATCH of them (default 1: not at all). Nothing depends on time or chance, so every run executes the same
//! instructions.

use std::hint::black_box;

use lockgate_core::{
    HolderName, Key, LeaseToken, MachineTime, Message, Now, Position, UniqueId, WallTime,
};
use lockgate_machine::{
    AnyCommand, BatchDecoder, Command, CreateQueue, Effects, ImageLoader, Machine, MachineLimits,
    QueueSettings, Receive, RecordBatch, Reply, SendMessage, Settle, SettleAction, encode_record,
};

mod support;

/// Operations that are counted.
const TIMES: u64 = 2_000;
/// Messages that one receive asks for, and records that are folded together.
const TOGETHER: u16 = 10;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_default();
    let backlog = arguments.next();
    let backlog = backlog.map_or(0, |text| text.parse().expect("a number"));
    let batch = arguments.next();
    let batch = batch.map_or(1, |text| text.parse().expect("a number"));
    let keyed = path.ends_with("keyed") && !path.ends_with("unkeyed");
    let mut bench = Bench::new(keyed, backlog, batch);
    match path.as_str() {
        "send-unkeyed" | "send-keyed" => bench.send(),
        "receive-unkeyed" | "receive-keyed" => bench.receive(),
        "ack-unkeyed" | "ack-keyed" => bench.ack(),
        "fold-keyed" => bench.fold(),
        "load-keyed" => bench.load(),
        _ => {
            eprintln!(
                "PATH is one of send, receive and ack with -unkeyed or -keyed, fold-keyed, load-keyed"
            );
            std::process::exit(2);
        }
    }
}

/// What is counted: everything done in here.
#[inline(never)]
fn measured(work: &mut dyn FnMut()) {
    work();
}

struct Bench {
    machine: Machine,
    now: Now,
    position: u64,
    sent: u64,
    keyed: bool,
    backlog: u64,
    batch: usize,
    record: Vec<u8>,
}

impl Bench {
    fn new(keyed: bool, backlog: u64, batch: usize) -> Self {
        let mut bench = Self {
            machine: Machine::new(MachineLimits::default()),
            now: Now {
                wall: WallTime(1_700_000_000_000),
                machine: MachineTime(1_000),
            },
            position: 0,
            sent: 0,
            keyed,
            backlog,
            batch,
            record: Vec::new(),
        };
        bench.run(&support::start_term());
        bench.run(&Command::CreateQueue(Box::new(CreateQueue {
            name: support::queue(),
            settings: QueueSettings {
                keyed,
                in_flight_max: u32::MAX,
                ..QueueSettings::default()
            },
            annotations: Default::default(),
            tags: Default::default(),
        })));
        let sends = bench.sends(backlog);
        bench.run_all(&sends);
        bench
    }

    fn send(&mut self) {
        let (unmeasured, sends) = (self.sends(TIMES), self.sends(TIMES));
        self.run_all(&unmeasured);
        measured(&mut || {
            black_box(self.run_all(&sends));
        });
    }

    fn receive(&mut self) {
        self.fill();
        let receives: Vec<_> = (0..TIMES / u64::from(TOGETHER))
            .map(|_| receive())
            .collect();
        measured(&mut || {
            black_box(self.run_all(&receives));
        });
    }

    fn ack(&mut self) {
        self.fill();
        let receives: Vec<_> = (0..TIMES / u64::from(TOGETHER))
            .map(|_| receive())
            .collect();
        let tokens = self.run_all(&receives);
        let acks: Vec<_> = tokens
            .into_iter()
            .map(|token| {
                Command::Settle(Settle {
                    token,
                    action: SettleAction::Ack,
                })
            })
            .collect();
        measured(&mut || {
            black_box(self.run_all(&acks));
        });
    }

    /// Recovery: records of sends, decoded and folded.
    fn fold(&mut self) {
        let records: Vec<_> = self
            .sends(TIMES)
            .iter()
            .map(|send| {
                let effects = self.run(send).1;
                let mut record = Vec::new();
                encode_record(&effects, &mut record);
                (bytes::Bytes::from(record), Position(self.position))
            })
            .collect();
        let mut machine = Self::new(self.keyed, self.backlog, 1).machine;
        measured(&mut || {
            let mut batch = RecordBatch::default();
            for records in records.chunks(TOGETHER.into()) {
                let mut decoder = BatchDecoder::new(&machine);
                for (record, at) in records {
                    decoder.push(record, *at);
                }
                batch = decoder.take(std::mem::take(&mut batch));
                machine.fold_batch(&batch, |_, _| {});
            }
        });
        black_box(machine);
    }

    /// A start: an image, loaded.
    fn load(&mut self) {
        let sends = self.sends(TIMES);
        self.run_all(&sends);
        let mut frozen = self.machine.freeze();
        let (mut pieces, mut buffer) = (Vec::new(), Vec::new());
        while let Some(piece) = frozen.next_piece(&mut buffer) {
            pieces.push(piece.to_vec());
        }
        measured(&mut || {
            let mut loader = ImageLoader::new(MachineLimits::default());
            for piece in &pieces {
                loader.piece(piece).expect("what was frozen");
            }
            black_box(loader.finish().expect("what was frozen"));
        });
    }

    /// At least what is to be received.
    fn fill(&mut self) {
        let sends = self.sends(2 * TIMES);
        self.run_all(&sends);
    }

    fn sends(&mut self, times: u64) -> Vec<Command> {
        (0..times)
            .map(|_| {
                self.sent += 1;
                let mut message = Message::new(vec![7; 100]);
                if self.keyed {
                    // In no order, as from many users, ten messages of each.
                    let keys = (self.backlog / 10).max(TIMES);
                    let key = self.sent.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys;
                    let key = Key::new(&format!("user-{key}")).expect("a valid key");
                    let id = UniqueId::new(&format!("id-{}", self.sent)).expect("a valid id");
                    message = message.with_key(key).with_unique_id(id);
                }
                Command::Send(Box::new(SendMessage {
                    queue: support::queue(),
                    message,
                }))
            })
            .collect()
    }

    /// The tokens of what was received.
    fn run_all(&mut self, commands: &[Command]) -> Vec<LeaseToken> {
        let mut tokens = Vec::new();
        for commands in commands.chunks(self.batch) {
            if self.batch > 1 {
                self.machine.read_ahead(commands);
            }
            for command in commands {
                let (reply, _) = self.run(command);
                if let Reply::Received(deliveries) = reply {
                    tokens.extend(deliveries.iter().map(|delivery| delivery.token));
                }
            }
        }
        tokens
    }

    /// As a driver does it: decided, encoded, folded, durable.
    fn run<'a>(&mut self, command: impl Into<AnyCommand<'a>>) -> (Reply, Effects) {
        while let Some(effect) = self.machine.tick(self.now) {
            self.machine.fold(&[effect], Position(self.position));
        }
        let decision = self.machine.decide(command, self.now);
        let reply = decision.outcome.expect("nothing is refused");
        self.record.clear();
        encode_record(&decision.effects, &mut self.record);
        self.position += 200;
        self.machine
            .fold(&decision.effects, Position(self.position));
        self.machine.reached(Position(self.position + 1));
        (reply, decision.effects)
    }
}

fn receive() -> Command {
    Command::Receive(Receive {
        queue: support::queue(),
        max: TOGETHER,
        key_max: None,
        lease: None,
        holder: HolderName::new("bench").expect("a valid name"),
    })
}
