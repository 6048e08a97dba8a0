//! What a backlog costs in memory, at the worst moment: just after a table has grown.
//!
//! Counted is what the machine's tables have allocated. It holds no other memory that grows with
//! messages but the texts of keys, which are added here.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use lockgate_core::{
    HolderName, Key, LeaseNumber, MachineTime, Message, MessageId, Now, Position, QueueId,
    QueueName, Sequence, Term, UniqueId, WallTime,
};
use lockgate_machine::{Effect, Machine, MachineLimits, Payload, QueueSettings, StoredMessage};

const QUEUE: QueueId = QueueId(1);
const START: WallTime = WallTime(1_760_000_000_000);
const MESSAGES: u32 = 300_000;
/// From here on the fixed parts (first pages, wheels) no longer show.
const FROM: u32 = 50_000;

/// The most bytes per message at any time from [`FROM`] messages on.
fn worst(keyed: bool, leased: bool, message: impl Fn(u32) -> Message) -> f64 {
    let without = measure(keyed, leased, false, &message);
    without.max(measure(keyed, leased, true, &message))
}

/// With `frozen` just after a frozen machine was given up, which is once in a while.
fn measure(keyed: bool, leased: bool, frozen: bool, message: impl Fn(u32) -> Message) -> f64 {
    let mut machine = Machine::new(MachineLimits::default());
    machine.fold(
        &[Effect::QueueCreated {
            queue: QUEUE,
            name: QueueName::new("q").unwrap(),
            settings: Box::new(QueueSettings {
                keyed,
                ..QueueSettings::default()
            }),
            annotations: Default::default(),
            tags: Default::default(),
            at: START,
        }],
        Position(0),
    );
    let holder = HolderName::new("somebody").unwrap();
    let mut worst: f64 = 0.0;
    for number in 1..=MESSAGES {
        let message = message(number);
        let sequence = Sequence(number.into());
        let mut effects = vec![Effect::Accepted(Box::new(StoredMessage {
            queue: QUEUE,
            sequence,
            id: MessageId::new(QUEUE, sequence, Term::default()),
            accepted: START,
            unique_until: message.unique_id.as_ref().map(|_| MachineTime::MAX),
            key_sequence: None,
            marked_at: None,
            payload: Payload::Own,
            message,
        }))];
        if leased {
            let machine = MachineTime(u64::from(number) / 8);
            effects.push(Effect::Leased {
                queue: QUEUE,
                sequence,
                lease: LeaseNumber(number.into()),
                now: Now {
                    wall: START,
                    machine,
                },
                deadline: machine.plus(30_000),
                holder: holder.clone(),
            });
        }
        machine.fold(&effects, Position(u64::from(number) * 1000));
        if frozen && number % 6_400 == 0 {
            drop(machine.freeze());
        }
        if number >= FROM && number % 64 == 0 {
            let bytes = u32::try_from(machine.heap_bytes()).unwrap();
            worst = worst.max(f64::from(bytes) / f64::from(number));
        }
    }
    assert_eq!(machine.effects_ignored(), 0);
    worst
}

fn plain(_: u32) -> Message {
    Message::default()
}

fn with_keys(keys: u32) -> impl Fn(u32) -> Message {
    let keys: Vec<Key> = (0..keys)
        .map(|key| Key::new(&format!("user-{key:011}")).unwrap())
        .collect();
    move |number| {
        let key = number as usize % keys.len();
        Message::default().with_key(keys[key].clone())
    }
}

#[test]
fn an_unkeyed_message_costs_at_most_64_bytes() {
    let bytes = worst(false, false, plain);
    println!("{bytes:.1}");
    assert!(bytes <= 64.0, "{bytes:.1} bytes");
}

#[test]
fn a_keyed_message_costs_at_most_96_bytes() {
    let bytes = worst(true, false, with_keys(100));
    println!("{bytes:.1}");
    assert!(bytes <= 96.0, "{bytes:.1} bytes");
}

#[test]
fn a_key_costs_at_most_200_bytes_beside_its_message() {
    // Its text is 16 bytes, and its reference counts are as many.
    let bytes = worst(true, false, with_keys(MESSAGES)) + 32.0;
    println!("{bytes:.1}");
    assert!(bytes <= 96.0 + 200.0, "{bytes:.1} bytes");
}

#[test]
fn a_unique_id_costs_at_most_64_bytes_more() {
    let bytes = worst(false, false, |number| {
        Message::default().with_unique_id(UniqueId::new(&format!("id-{number}")).unwrap())
    });
    println!("{bytes:.1}");
    assert!(bytes <= 64.0 + 64.0, "{bytes:.1} bytes");
}

#[test]
fn a_delayed_message_costs_at_most_64_bytes_more() {
    let bytes = worst(false, false, |number| {
        Message::default().with_due(START.plus(u64::from(number) * 7919 % 31_000_000_000))
    });
    println!("{bytes:.1}");
    assert!(bytes <= 64.0 + 64.0, "{bytes:.1} bytes");
}

#[test]
fn a_message_in_flight_costs_at_most_64_bytes_more() {
    let bytes = worst(false, true, plain);
    println!("{bytes:.1}");
    assert!(bytes <= 64.0 + 64.0, "{bytes:.1} bytes");
}
