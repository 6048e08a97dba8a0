//! Images: a loaded machine equals the one that was frozen, freezing leaves no trace in that one,
//! and no bytes make loading panic.
//!
//! These bugs, made on purpose, failed a test here:
//!
//! | broken | seen as |
//! |---|---|
//! | pages are given back that are needed to find others | an image that does not load |
//! | a walk does not compare the neighbour before | a list that never ends |
//! | the check does not compare a queue's settings with its content | an index names nothing later |
//! | the next sequence may lie among those given out | an insertion out of order |
//! | totals may be as high as a word goes | an addition that overflows |
//! | a column is not read | the loaded snapshot differs |
//! | what awaits its sync stays so | it is not leasable |
//! | free slots, or pages with room, come back in reverse order | the second image differs |
//! | superseded unique ids are found again (`dedup`) | the first message of two |

use lockgate_core::{HolderName, Key, MachineTime, Message, Now, QueueName, UniqueId, WallTime};
use proptest::prelude::*;

use super::{
    harness::name,
    random::{History, step},
};
use crate::{
    ChangeKey, Command, CreateQueue, DeleteQueue, ExplainKey, Frozen, ImageError, ImageLoader,
    KeyAction, Machine, MachineLimits, Purge, Query, QueueSettings, Receive, Reply, SendMessage,
    Settle, SettleAction,
};

/// The pieces of an image.
fn pieces(mut frozen: Frozen) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut buffer = Vec::new();
    while let Some(piece) = frozen.next_piece(&mut buffer) {
        pieces.push(piece.to_vec());
    }
    assert_eq!(frozen.next_piece(&mut buffer), None);
    pieces
}

/// A machine from the image of that one.
pub(super) fn loaded(machine: &mut Machine) -> Machine {
    let limits = machine.limits.clone();
    let pieces = pieces(machine.freeze());
    load_within(limits, &pieces).expect("an image loads")
}

fn load(pieces: &[Vec<u8>]) -> Result<Machine, ImageError> {
    load_within(MachineLimits::default(), pieces)
}

fn load_within(limits: MachineLimits, pieces: &[Vec<u8>]) -> Result<Machine, ImageError> {
    let mut loader = ImageLoader::new(limits);
    for piece in pieces {
        loader.piece(piece)?;
    }
    loader.finish_checked()
}

fn history(steps: &[super::random::Step]) -> History {
    let mut history = History::new();
    for step in steps {
        history.step(step);
    }
    history
}

/// A queue with so many messages over so many keys.
fn filled(messages: u64, keys: u64) -> Machine {
    let mut run = super::harness::Run::new();
    let settings = QueueSettings {
        keyed: true,
        ..QueueSettings::default()
    };
    let create = CreateQueue {
        name: name("q"),
        settings,
        annotations: Default::default(),
        tags: Default::default(),
    };
    run.give(&Command::CreateQueue(Box::new(create))).unwrap();
    for number in 0..messages {
        let key = Key::new(&format!("key-{}", number * 7919 % keys)).unwrap();
        let id = UniqueId::new(&format!("id-{number}")).unwrap();
        let message = Message::new("x").with_key(key).with_unique_id(id);
        let queue = name("q");
        run.give(&Command::Send(Box::new(SendMessage { queue, message })))
            .unwrap();
    }
    run.machine
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_machine_that_was_loaded_goes_on_as_the_one_that_was_frozen(
        before in prop::collection::vec(step(), 0..120),
        between in prop::collection::vec(step(), 0..40),
        after in prop::collection::vec(step(), 0..60),
    ) {
        let mut history = history(&before);
        let expected = history.run.machine.state_view();
        let mut frozen = history.run.machine.freeze();
        let folded = history.run.log.len();
        // The image is written while the machine continues.
        for step in &between {
            history.step(step);
        }
        let mut loaded = load(&pieces(frozen.fork())).unwrap();
        prop_assert_eq!(loaded.state_view(), expected);
        for step in &after {
            history.step(step);
        }
        let mut again = load(&pieces(frozen)).unwrap();
        let problems = loaded.problems();
        prop_assert!(problems.is_empty(), "loaded: {problems:#?}");
        prop_assert_eq!(pieces(again.freeze()), pieces(loaded.freeze()));

        for (position, effects) in &history.run.log[folded..] {
            loaded.fold(effects, *position);
        }
        let problems = loaded.problems();
        prop_assert!(problems.is_empty(), "gone on: {problems:#?}");
        prop_assert_eq!(loaded.state_view(), history.run.machine.state_view());
        // And freezing has changed nothing in the frozen machine.
        history.run.check_recovery();
    }

    #[test]
    fn what_was_loaded_answers_like_what_was_frozen(
        before in prop::collection::vec(step(), 0..120),
        after in prop::collection::vec(step(), 0..80),
    ) {
        // Both are synced, because a loaded machine takes everything for durable.
        let (mut one, mut other) = (history(&before), history(&before));
        one.run.set_syncing(true);
        other.run.set_syncing(true);
        one.run.sync();
        let image = pieces(one.run.machine.freeze());
        other.run.machine = load_within(super::random::limits(), &image).unwrap();
        other.run.sync();
        for step in &after {
            one.step(step);
            other.step(step);
        }
        // The log contains the decisions in order.
        prop_assert_eq!(&one.run.log, &other.run.log);
        prop_assert_eq!(one.run.machine.state_view(), other.run.machine.state_view());
        // What is deleted counts until it is freed.
        for run in [&mut one.run, &mut other.run] {
            while run.machine.housekeep(1_000).is_unfinished() {}
        }
        prop_assert_eq!(one.run.machine.image_bytes(), other.run.machine.image_bytes());
    }

    /// A machine from a log that lost records can be written and loaded like any other.
    #[test]
    fn a_machine_from_a_damaged_log_can_be_loaded(
        steps in prop::collection::vec(step(), 0..150),
        lost in prop::collection::vec(any::<prop::sample::Index>(), 1..6),
        freed in 0..20_usize,
    ) {
        let history = history(&steps);
        let mut machine = Machine::new(MachineLimits::default());
        let lost: Vec<usize> = lost.iter().map(|at| at.index(history.run.log.len())).collect();
        for (at, (position, effects)) in history.run.log.iter().enumerate() {
            if !lost.contains(&at) {
                machine.fold(effects, *position);
            }
        }
        machine.housekeep(freed);
        let loaded = load(&pieces(machine.freeze())).unwrap();
        prop_assert_eq!(loaded.state_view(), machine.state_view());
        let problems = loaded.problems();
        prop_assert!(problems.is_empty(), "without records {lost:?}: {problems:#?}");
    }
}

/// A change to a piece.
#[derive(Clone, Debug)]
enum Change {
    Flip(prop::sample::Index, u8),
    Set(prop::sample::Index, u8),
    Number(prop::sample::Index, u64),
    Cut(prop::sample::Index),
    Repeat(prop::sample::Index, prop::sample::Index),
    Remove(prop::sample::Index, u8),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    let numbers = vec![
        0,
        1,
        255,
        65_535,
        1 << 32,
        (1 << 32) - 1,
        u64::MAX - 1,
        u64::MAX,
    ];
    prop_oneof![
        6 => (at(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        4 => (at(), prop::sample::select(vec![0, 1, 2, 8, 127, 255]))
            .prop_map(|(at, byte)| Change::Set(at, byte)),
        3 => (at(), prop::sample::select(numbers)).prop_map(|(at, n)| Change::Number(at, n)),
        1 => at().prop_map(Change::Cut),
        1 => (at(), at()).prop_map(|(from, to)| Change::Repeat(from, to)),
        1 => (at(), any::<u8>()).prop_map(|(at, len)| Change::Remove(at, len)),
    ]
}

fn apply(change: &Change, piece: &mut Vec<u8>) {
    if piece.is_empty() {
        return;
    }
    let len = piece.len();
    match change {
        Change::Flip(at, bit) => piece[at.index(len)] ^= 1 << bit,
        Change::Set(at, byte) => piece[at.index(len)] = *byte,
        Change::Number(at, number) => {
            for (byte, new) in piece[at.index(len)..].iter_mut().zip(number.to_le_bytes()) {
                *byte = new;
            }
        }
        Change::Cut(at) => piece.truncate(at.index(len)),
        Change::Repeat(from, to) => {
            let part = piece[from.index(len)..].to_vec();
            let to = to.index(len);
            piece.splice(to..to, part);
        }
        Change::Remove(at, count) => {
            let at = at.index(len);
            piece.drain(at..(at + usize::from(*count)).min(len));
        }
    }
}

/// Uses all parts of a machine, far into the future.
fn walk(mut machine: Machine) {
    let queues: Vec<QueueName> = machine.state_view().queues.into_keys().collect();
    let mut position = lockgate_core::Position(1 << 60);
    let mut now = machine.clock_state().now;
    let mut give = |machine: &mut Machine, now: Now, command: &Command| {
        let mut fold = |machine: &mut Machine, effects: &[_]| {
            position = lockgate_core::Position(position.0 + 100);
            machine.fold(effects, position);
        };
        for _ in 0..1_000 {
            let Some(effect) = machine.tick(now) else {
                break;
            };
            fold(machine, &[effect]);
        }
        let decision = machine.decide(command, now);
        fold(machine, &decision.effects);
        machine.reached(position);
        decision.outcome
    };
    for span in [0, 10, 1_000, 100_000, 1 << 30, 1 << 41] {
        now.wall = WallTime(now.wall.0.saturating_add(span));
        now.machine = MachineTime(now.machine.0.saturating_add(span));
        for queue in &queues {
            for key in 0..4 {
                let key = Key::new(&format!("key-{key}")).unwrap();
                let message = Message::new("x").with_key(key.clone());
                let send = Box::new(SendMessage {
                    queue: queue.clone(),
                    message,
                });
                let _ = give(&mut machine, now, &Command::Send(send));
                let action = if span == 10 {
                    KeyAction::Park
                } else {
                    KeyAction::Resume
                };
                let queue = queue.clone();
                let _ = machine.query(
                    &Query::ExplainKey(ExplainKey {
                        queue: queue.clone(),
                        key: Some(key.clone()),
                    }),
                    now,
                );
                let _ = give(
                    &mut machine,
                    now,
                    &Command::ChangeKey(ChangeKey { queue, key, action }),
                );
            }
            let receive = Command::Receive(Receive {
                queue: queue.clone(),
                max: 4,
                key_max: None,
                lease: None,
                holder: HolderName::new("walker").unwrap(),
            });
            let Ok(Reply::Received(deliveries)) = give(&mut machine, now, &receive) else {
                continue;
            };
            for (number, delivery) in deliveries.iter().enumerate() {
                let action = match number {
                    0 => SettleAction::Ack,
                    1 => SettleAction::Nack {
                        delay: 500,
                        reason: None,
                    },
                    2 => SettleAction::GiveBack,
                    _ => continue,
                };
                let token = delivery.token;
                let _ = give(
                    &mut machine,
                    now,
                    &Command::Settle(Settle { token, action }),
                );
            }
            if span == 100_000 && queue.as_str().len().is_multiple_of(2) {
                let queue = queue.clone();
                let _ = give(&mut machine, now, &Command::Purge(Purge { queue }));
            }
            machine.housekeep(5);
        }
    }
    for queue in queues {
        let _ = give(
            &mut machine,
            now,
            &Command::DeleteQueue(DeleteQueue { queue }),
        );
    }
    while machine.housekeep(100).is_unfinished() {}
    let _ = machine.state_view();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// There is no checksum at this level: only checking everything finds the change.
    #[test]
    fn no_bytes_make_loading_panic(
        steps in prop::collection::vec(step(), 0..40),
        changes in prop::collection::vec(change(), 1..3),
    ) {
        let mut image = pieces(history(&steps).run.machine.freeze());
        for change in &changes {
            apply(change, &mut image[0]);
        }
        if let Ok(machine) = load(&image) {
            walk(machine);
        }
    }

    #[test]
    fn no_bytes_at_all_make_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut piece = b"LOCKGIMG\0\0\0\0".to_vec();
        prop_assert!(load(std::slice::from_ref(&bytes)).is_err());
        piece.extend(bytes);
        let _ = load(&[piece]);
    }
}

#[test]
fn an_image_is_read_whole_in_order_and_once() {
    let image = pieces(filled(150_000, 10_000).freeze());
    assert!(image.len() > 2, "{} pieces", image.len());
    assert!(image.iter().all(|piece| piece.len() < 2 << 20));
    assert!(load(&image).is_ok());
    let damaged = |image: &[Vec<u8>]| matches!(load(image), Err(ImageError::Damaged { .. }));
    assert!(damaged(&[]));
    for missing in 0..image.len() {
        let mut other = image.clone();
        other.remove(missing);
        assert!(damaged(&other), "without piece {missing}");
        let mut other = image.clone();
        other.insert(missing, image[missing].clone());
        assert!(damaged(&other), "with piece {missing} twice");
    }
    let mut other = image.clone();
    other.swap(0, 1);
    assert!(damaged(&other));
}

#[test]
fn a_newer_format_is_refused_and_says_so() {
    let mut image = pieces(filled(1, 1).freeze());
    image[0][8..12].copy_from_slice(&7_u32.to_le_bytes());
    let error = load(&image).unwrap_err();
    assert_eq!(error, ImageError::NewerFormat { version: 7 });
    assert!(error.to_string().contains("format version 7"), "{error}");
    assert!(load(&[b"something else entirely".to_vec()]).is_err());
}

#[test]
fn locations_are_those_of_the_instant() {
    let mut machine = filled(500, 20);
    let queue = machine.queue_id(&name("q")).unwrap();
    let sequences = || (1..=600).map(lockgate_core::Sequence);
    let expected: Vec<_> = sequences()
        .map(|number| machine.location(queue, number))
        .collect();
    let frozen = machine.freeze();
    machine.fold(
        &[crate::Effect::Purged { queue }],
        lockgate_core::Position(1 << 40),
    );
    while machine.housekeep(100).is_unfinished() {}
    let found: Vec<_> = sequences()
        .map(|number| frozen.location(queue, number))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(
        frozen.location(lockgate_core::QueueId(99), lockgate_core::Sequence(1)),
        None
    );
}

#[test]
fn the_estimate_is_near_and_comes_back_to_nothing() {
    let empty = Machine::new(MachineLimits::default()).image_bytes();
    let mut machine = filled(50_000, 5_000);
    let bytes: usize = pieces(machine.freeze()).iter().map(Vec::len).sum();
    let estimate = machine.image_bytes();
    let near = bytes as u64 / 2..bytes as u64 * 2;
    assert!(near.contains(&estimate), "{estimate} for {bytes} bytes");
    let queue = machine.queue_id(&name("q")).unwrap();
    machine.fold(
        &[crate::Effect::QueueDeleted { queue }],
        lockgate_core::Position(1 << 40),
    );
    while machine.housekeep(1_000).is_unfinished() {}
    assert_eq!(machine.image_bytes(), empty);
}

#[test]
fn what_awaited_its_sync_is_leasable_after_loading() {
    let mut run = super::harness::Run::new();
    run.set_syncing(false);
    run.sync();
    let create = CreateQueue {
        name: name("q"),
        settings: QueueSettings::default(),
        annotations: Default::default(),
        tags: Default::default(),
    };
    run.give(&Command::CreateQueue(Box::new(create))).unwrap();
    let (queue, message) = (name("q"), Message::new("x"));
    run.give(&Command::Send(Box::new(SendMessage { queue, message })))
        .unwrap();
    assert!(!run.machine.leasable(&name("q")));
    let mut loaded = load(&pieces(run.machine.freeze())).unwrap();
    assert!(loaded.leasable(&name("q")));
    assert_eq!(loaded.take_woken().count(), 1);
    assert!(!run.machine.leasable(&name("q")));
}

/// Twelve hours count from the receive, not from the end of the first lease.
#[test]
fn how_long_a_lease_was_held_is_known_after_loading() {
    const HOUR: u64 = 3_600_000;
    let mut run = super::harness::Run::new();
    let create = CreateQueue {
        name: name("q"),
        settings: QueueSettings::default(),
        annotations: Default::default(),
        tags: Default::default(),
    };
    run.give(&Command::CreateQueue(Box::new(create))).unwrap();
    let queue = name("q");
    let message = Message::new("x");
    let send = SendMessage { queue, message };
    run.give(&Command::Send(Box::new(send))).unwrap();
    let receive = Receive {
        queue: name("q"),
        max: 1,
        key_max: None,
        lease: Some(5 * HOUR),
        holder: HolderName::new("h").unwrap(),
    };
    let Ok(Reply::Received(leases)) = run.give(&Command::Receive(receive)) else {
        panic!("another kind of answer");
    };
    let loaded = load(&pieces(run.machine.freeze())).unwrap();
    let later = Now {
        machine: run.now.machine.plus(HOUR),
        wall: run.now.wall.plus(HOUR),
    };
    for machine in [&run.machine, &loaded] {
        let extend = |lease| {
            let settle = Settle {
                token: leases[0].token,
                action: SettleAction::Extend { lease },
            };
            machine.decide(&Command::Settle(settle), later).outcome
        };
        assert!(extend(11 * HOUR).is_ok());
        assert!(extend(11 * HOUR + 1).is_err());
    }
}

/// Effects on something that does not exist show damage to the log, also at later starts.
#[test]
fn what_was_ignored_is_counted_after_loading() {
    let mut machine = filled(1, 1);
    let queue = lockgate_core::QueueId(99);
    machine.fold(
        &[crate::Effect::Purged { queue }],
        lockgate_core::Position(1 << 40),
    );
    assert_eq!(machine.effects_ignored(), 1);
    let loaded = load(&pieces(machine.freeze())).unwrap();
    assert_eq!(loaded.effects_ignored(), 1);
}

#[test]
fn free_room_is_used_again_in_the_same_order() {
    let mut machine = filled(2_000, 100);
    let queue = machine.queue_id(&name("q")).unwrap();
    for number in 0..900_u64 {
        let sequence = lockgate_core::Sequence(1 + number * 7919 % 1_999);
        let position = lockgate_core::Position((1 << 40) + number);
        machine.fold(&[crate::Effect::Acked { queue, sequence }], position);
    }
    let image = pieces(machine.freeze());
    assert_eq!(pieces(load(&image).unwrap().freeze()), image);
}

/// A restore's log may have ranges of another size.
#[test]
fn what_lives_is_counted_by_the_ranges_of_the_loader() {
    let mut machine = filled(500, 20);
    let image = pieces(machine.freeze());
    for range_bits in [10, 32, 40] {
        let mut loader = ImageLoader::new(MachineLimits {
            range_bits,
            ..MachineLimits::default()
        });
        for piece in &image {
            loader.piece(piece).unwrap();
        }
        let loaded = loader.finish().unwrap();
        let live: Vec<_> = loaded.live_ranges().collect();
        assert_eq!(loaded.problems(), [""; 0]);
        assert_eq!(live.len() > 1, range_bits == 10);
        assert_eq!(
            live.iter().map(|(_, range)| range.messages).sum::<u64>(),
            500
        );
    }
}
