mod drawn;
mod exchanges;
mod meeting;
mod shared;

use std::{collections::BTreeMap, fmt::Write, fs, num::NonZeroU64, path::Path, sync::Arc};

use lockgate_core::{
    BootId, CatchUp, Epoch, ExchangeId, ExchangeName, Header, HolderName, Incarnation, InputId,
    Key, LeaseNumber, LedgerId, LedgerName, Level, MachineTime, Message, MessageId, Now, Overlap,
    PRIORITY_MAX, Produced, ProducerIncarnation, ProducerMark, ProducerName, QueueId, QueueName,
    ReaderName, RecordName, RecordVersion, Revision, RoutingKey, ScheduleId, ScheduleName,
    Sequence, ShardId, Term, Timing, UniqueId, WallTime,
    ledger::{EventHash, SequenceId},
};
use proptest::prelude::*;

use self::drawn::*;
use super::*;
use crate::{
    AppendedEvents, BindTo, Binding, BindingOptions, DeadLetterReason, DropReason, ExchangeKind,
    ExchangeNotes, Failed, Filter, FilterScope, Firing, HeaderPair, HeadersMatch, HoldTarget,
    KeyFrom, KeyPolicy, Pattern, QueueSettings, SETTINGS, ScheduleSpec, ScheduleTo, SettingKind,
    SettingValue, StoredEvent, TopicPattern, Unroutable,
};

/// The number of kinds of effects. A new effect makes the match in `place` incomplete. Giving the effect the
/// next place and raising this number makes every test below need its strategy and its golden bytes.
const KINDS: usize = 53;

fn place(effect: &Effect) -> usize {
    match effect {
        Effect::TermStarted { .. } => 0,
        Effect::TermEnded { .. } => 1,
        Effect::Advanced { .. } => 2,
        Effect::QueueCreated { .. } => 3,
        Effect::QueueChanged { .. } => 4,
        Effect::QueueDeleted { .. } => 5,
        Effect::Purged { .. } => 6,
        Effect::Paused { .. } => 7,
        Effect::Accepted(_) => 8,
        Effect::Compacted(_) => 9,
        Effect::SequencesReserved { .. } => 10,
        Effect::Leased { .. } => 11,
        Effect::LeaseBoundRaised { .. } => 12,
        Effect::Acked { .. } => 13,
        Effect::Nacked { .. } => 14,
        Effect::Extended { .. } => 15,
        Effect::GivenBack { .. } => 16,
        Effect::Moved { .. } => 17,
        Effect::Dropped { .. } => 18,
        Effect::Rescheduled { .. } => 19,
        Effect::KeyParked { .. } => 20,
        Effect::KeyResumed { .. } => 21,
        Effect::RecordPut { .. } => 22,
        Effect::RecordDeleted { .. } => 23,
        Effect::RecordLeased { .. } => 24,
        Effect::RecordReleased { .. } => 25,
        Effect::KeyStatePut { .. } => 26,
        Effect::KeyStateDropped { .. } => 27,
        Effect::Held { .. } => 28,
        Effect::ProducerOpened { .. } => 29,
        Effect::ProducerForgotten { .. } => 30,
        Effect::MarkRaised { .. } => 31,
        Effect::LedgerCreated { .. } => 32,
        Effect::LedgerDeleted { .. } => 33,
        Effect::EventsAppended(_) => 34,
        Effect::ReaderMoved { .. } => 35,
        Effect::LedgerSealed { .. } => 36,
        Effect::LedgerTrimmed { .. } => 37,
        Effect::EventsCompacted(_) => 38,
        Effect::EventsLost { .. } => 39,
        Effect::IdsIndexed { .. } => 40,
        Effect::EventIdsIndexed { .. } => 41,
        Effect::ExchangeCreated { .. } => 42,
        Effect::ExchangeChanged { .. } => 43,
        Effect::ExchangeDeleted { .. } => 44,
        Effect::Bound { .. } => 45,
        Effect::Unbound { .. } => 46,
        Effect::Published { .. } => 47,
        Effect::ExchangeNoted { .. } => 48,
        Effect::ScheduleSet { .. } => 49,
        Effect::ScheduleChanged { .. } => 50,
        Effect::ScheduleDeleted { .. } => 51,
        Effect::ScheduleStepped { .. } => 52,
    }
}

fn encode(effects: &[Effect]) -> Bytes {
    let mut bytes = Vec::new();
    encode_record(effects, &mut bytes);
    bytes.into()
}

/// One effect of each kind, in order of their places.
fn examples() -> Vec<Effect> {
    let queue = QueueId(7);
    let sequence = Sequence(300);
    let at = WallTime(1_700_000_000_000);
    let now = Now {
        wall: at,
        machine: MachineTime(5_000_000),
    };
    let key = Key::new("user-42").unwrap();
    let record = RecordName::new("jobs/a").unwrap();
    let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let settings = Box::new(QueueSettings {
        keyed: true,
        dead_letter: Some(QueueName::new("dead").unwrap()),
        attempts_max: 3,
        key_policy: Some(KeyPolicy::Skip),
        ..QueueSettings::default()
    });
    let stored = Box::new(full_message());
    let ledger = LedgerId(3);
    vec![
        Effect::TermStarted {
            term: Term {
                shard: ShardId::new(513).unwrap(),
                epoch: Epoch(2),
                incarnation: Incarnation(0x1122_3344_5566_7788),
            },
            boot_id: BootId([0xb0; 16]),
            clock_offset: -2,
            secret: [0x5e; 32],
            now,
        },
        Effect::TermEnded { now },
        Effect::Advanced { now, budget: 1000 },
        Effect::QueueCreated {
            queue,
            name: QueueName::new("orders.fifo").unwrap(),
            settings: settings.clone(),
            annotations: map("Policy", "{}"),
            tags: map("team", "a"),
            at,
        },
        Effect::QueueChanged {
            queue,
            settings: Box::default(),
            annotations: BTreeMap::new(),
            tags: map("team", ""),
            at,
        },
        Effect::QueueDeleted { queue },
        Effect::Purged { queue },
        Effect::Paused {
            queue,
            paused: true,
        },
        Effect::Accepted(Box::new(StoredMessage {
            queue,
            sequence,
            id: stored.id,
            accepted: at,
            unique_until: None,
            key_sequence: None,
            marked_at: None,
            payload: Payload::Own,
            message: Message::new("post").with_key(key.clone()),
        })),
        Effect::Compacted(stored),
        Effect::SequencesReserved {
            queue,
            below: Sequence(1000),
        },
        Effect::Leased {
            queue,
            sequence,
            lease: LeaseNumber(99),
            now,
            deadline: MachineTime(5_030_000),
            holder: HolderName::new("worker-1").unwrap(),
        },
        Effect::LeaseBoundRaised {
            queue,
            until: MachineTime(5_060_000),
        },
        Effect::Acked { queue, sequence },
        Effect::Nacked {
            queue,
            sequence,
            until: Some(MachineTime(5_001_000)),
            failed: None,
        },
        Effect::Extended {
            queue,
            sequence,
            deadline: MachineTime(5_090_000),
        },
        Effect::GivenBack {
            queue,
            sequence,
            started: true,
        },
        Effect::Moved {
            from: queue,
            sequence,
            to: QueueId(8),
            to_sequence: Sequence(1),
            reason: DeadLetterReason::Attempts { attempts: 3 },
            at,
        },
        Effect::Dropped {
            queue,
            sequence,
            reason: DropReason::Expired,
        },
        Effect::Rescheduled {
            queue,
            sequence,
            due: WallTime(1_700_000_060_000),
        },
        Effect::KeyParked {
            queue,
            key: key.clone(),
        },
        Effect::KeyResumed {
            queue,
            key: key.clone(),
        },
        Effect::RecordPut {
            name: record.clone(),
            version: RecordVersion(3),
            revision: Revision(1_700_000_000_000_001),
            at,
            value: Bytes::from_static(b"on"),
        },
        Effect::RecordDeleted {
            name: record.clone(),
            revision: Revision(1_700_000_000_000_002),
        },
        Effect::RecordLeased {
            name: record.clone(),
            holder: HolderName::new("worker-1").unwrap(),
            epoch: Epoch(1_700_000_000_000_003),
            deadline: MachineTime(5_030_000),
            delete_at_end: true,
        },
        Effect::RecordReleased {
            name: record,
            revision: Revision(1_700_000_000_000_004),
        },
        Effect::KeyStatePut {
            queue,
            key: key.clone(),
            version: RecordVersion(4),
            at,
            value: Bytes::from_static(b"on"),
        },
        Effect::KeyStateDropped {
            queue,
            key: key.clone(),
        },
        Effect::Held {
            queue,
            what: HoldTarget::Key(Some(key)),
            until: Some(MachineTime(5_060_000)),
        },
        Effect::ProducerOpened {
            queue,
            producer: ProducerName::new("p1/a").unwrap(),
            incarnation: ProducerIncarnation(1_700_000_000_000_001),
            at: MachineTime(5_000_000),
        },
        Effect::ProducerForgotten {
            queue,
            producer: ProducerName::new("p1/a").unwrap(),
        },
        Effect::MarkRaised {
            queue,
            produced: Box::new(produced()),
            at: MachineTime(5_000_000),
        },
        Effect::LedgerCreated {
            ledger,
            name: LedgerName::new("trades").unwrap(),
            hashed: true,
            retention: Some(86_400_000),
            at,
        },
        Effect::LedgerDeleted { ledger },
        Effect::EventsAppended(Box::new(AppendedEvents {
            block: block(),
            inputs: vec![(InputId::new("orders/1").unwrap(), SequenceId(41))],
            settled: vec![InputId::new("orders/0").unwrap()],
        })),
        Effect::ReaderMoved {
            ledger,
            reader: ReaderName::new("engine-1").unwrap(),
            to: Some(SequenceId(40)),
        },
        Effect::LedgerSealed {
            ledger,
            epoch: Epoch(1_700_000_000_000_004),
        },
        Effect::LedgerTrimmed {
            ledger,
            first: SequenceId(40),
        },
        Effect::EventsCompacted(Box::new(EventBlock {
            hashes: None,
            ..block()
        })),
        Effect::EventsLost {
            ledger,
            first: SequenceId(41),
        },
        Effect::IdsIndexed {
            queue,
            up_to: sequence,
        },
        Effect::EventIdsIndexed {
            ledger,
            up_to: SequenceId(42),
        },
        Effect::ExchangeCreated {
            exchange: ExchangeId(2),
            name: ExchangeName::new("orders").unwrap(),
            kind: ExchangeKind::Topic,
            unroutable: Unroutable::Alternate(ExchangeId(1)),
            at,
        },
        Effect::ExchangeChanged {
            exchange: ExchangeId(2),
            unroutable: Unroutable::Drop,
            at,
        },
        Effect::ExchangeDeleted {
            exchange: ExchangeId(2),
        },
        Effect::Bound {
            exchange: ExchangeId(2),
            number: 300,
            binding: Arc::new(binding()),
        },
        Effect::Unbound {
            exchange: ExchangeId(2),
            number: 300,
        },
        Effect::Published {
            exchange: ExchangeId(2),
            copies: 300,
            skipped: 1,
            unroutable: true,
            dropped: false,
        },
        Effect::ExchangeNoted {
            exchange: ExchangeId(2),
            notes: Arc::new(ExchangeNotes {
                annotations: map("DisplayName", "Orders"),
                tags: map("team", "a"),
            }),
        },
        Effect::ScheduleSet {
            schedule: ScheduleId(2),
            name: ScheduleName::new("nightly").unwrap(),
            generation: 300,
            next: Some(at),
            planned: None,
            anchor: at,
            at,
            spec: Arc::new(schedule_spec()),
        },
        Effect::ScheduleChanged {
            schedule: ScheduleId(2),
            generation: 301,
            paused: true,
            next: Some(at),
            planned: Some(at),
            at,
        },
        Effect::ScheduleDeleted {
            schedule: ScheduleId(2),
        },
        Effect::ScheduleStepped {
            schedule: ScheduleId(2),
            firing: Some(Firing {
                scheduled: Some(at),
                at,
                message: Some(full_message().id),
            }),
            replaced: true,
            missed: 300,
            next: Some(at),
        },
    ]
}

fn schedule_spec() -> ScheduleSpec {
    ScheduleSpec {
        timing: Timing::Cron {
            expression: "0 9 * * *".into(),
            zone: "Europe/Berlin".into(),
        },
        to: ScheduleTo::Exchange {
            exchange: ExchangeName::new("news").unwrap(),
            routing_key: RoutingKey::new("a.b").unwrap(),
        },
        message: Arc::new(Message {
            due: None,
            unique_id: None,
            ..full_message().message
        }),
        catch_up: CatchUp::All,
        overlap: Overlap::Allow,
        late_max: 60_000,
    }
}

fn binding() -> Binding {
    let filter = Filter::new(FilterScope::Body, r#"{"a":["x"]}"#).unwrap();
    Binding {
        to: BindTo::Queue(QueueId(7)),
        pattern: Pattern::Topic(TopicPattern::new("orders.*.eu").unwrap()),
        options: BindingOptions {
            filter: Some(filter),
            key_from: Some(KeyFrom::Header("user".into())),
            skip_when_full: true,
            envelope: None,
            overflow: None,
        },
    }
}

fn block() -> EventBlock {
    let event = |unique_id: Option<&str>, payload| StoredEvent {
        unique_id: unique_id.map(|id| UniqueId::new(id).unwrap()),
        payload: Bytes::from_static(payload),
    };
    EventBlock {
        ledger: LedgerId(3),
        first: SequenceId(41),
        epoch: Epoch(1_700_000_000_000_003),
        time: WallTime(1_700_000_000_000),
        hashes: Some([EventHash([0xa5; 32]), EventHash([0x5a; 32])]),
        events: vec![event(Some("t-1"), b"one"), event(None, b"")],
    }
}

fn produced() -> Produced {
    let producer = ProducerName::new("p1/a").unwrap();
    Produced {
        mark: ProducerMark::new(producer, 0x1122_3344_5566_7788, 3, 300).unwrap(),
        incarnation: ProducerIncarnation(1_700_000_000_000_001),
        after: 0,
    }
}

/// A message with every field.
fn full_message() -> StoredMessage {
    let queue = QueueId(7);
    let sequence = Sequence(300);
    let term = Term {
        shard: ShardId::new(513).unwrap(),
        epoch: Epoch(2),
        incarnation: Incarnation(0x1122_3344_5566_7788),
    };
    StoredMessage {
        queue,
        sequence,
        id: MessageId::new(queue, sequence, term),
        accepted: WallTime(1_700_000_000_000),
        unique_until: Some(MachineTime(5_300_000)),
        key_sequence: None,
        marked_at: None,
        payload: Payload::Own,
        message: Message {
            body: Bytes::from_static(b"post"),
            headers: vec![Header {
                name: "n".into(),
                kind: "String".into(),
                value: Bytes::from_static(b"v"),
            }],
            key: Some(Key::new("user-42").unwrap()),
            group: None,
            unique_id: Some(UniqueId::new("u-1").unwrap()),
            due: Some(WallTime(1_700_000_004_000)),
            time_to_live: Some(60_000),
            content_type: Some("text/plain".into()),
            trace_context: Some("00-ab".into()),
            level: Some(Level::Process),
            priority: 9,
            producer: None,
        },
    }
}

/// The format, byte for byte. Once version 1 is fixed, lines may only be added, because files
/// contain these bytes.
const GOLDEN: [&str; KINDS] = [
    "014d8104028877665544332211b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0feffffffffffffff5e5e5e5e5e5e5e\
     5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e5e80d095ffbc31c096b102",
    "020a80d095ffbc31c096b102",
    "030c80d095ffbc31c096b102e807",
    "04730780d095ffbc310b6f72646572732e6669666f01490101010201030303b0ea01040100050580e0e5a4\
     0106010007038080400803e0a7120901010a01000b0580808080010c01000d04646561640e01020f01031001\
     021303c0a907960100020a06506f6c696379027b7d0307047465616d0161",
    "05530780d095ffbc3101400101000201030303b0ea01040100050580e0e5a40106010007038080400803e0a7\
     120901010a01000b0580808080010c01000f01051001021303c0a90796010002000306047465616d00",
    "060107",
    "070107",
    "08020701",
    "092807ac028877660200b00480008000c00100408080d095ffbc310104706f73740307757365722d3432",
    "0a6607ac028877660200b00480008000c00100408080d095ffbc310104706f7374020b016e06537472696e67\
     01760307757365722d34320403752d310504a0bec3020706a0ef95ffbc310803e0d403090109\
     0a0a746578742f706c61696e0b0530302d61620c0102",
    "0b0307e807",
    "0c1b07ac026380d095ffbc31c096b102f080b30208776f726b65722d31",
    "0d0507a0ebb402",
    "0e0307ac02",
    "0f0907ac020104a89eb102",
    "100707ac02d0d5b602",
    "110407ac0201",
    "120f07ac02080180d095ffbc3101010103",
    "130407ac0203",
    "140907ac02e0a499ffbc31",
    "15090707757365722d3432",
    "16090707757365722d3432",
    "1719066a6f62732f61038180f9c0c1c4820380d095ffbc31026f6e",
    "180f066a6f62732f618280f9c0c1c48203",
    "191d066a6f62732f6108776f726b65722d318380f9c0c1c48203f080b30201",
    "1a0f066a6f62732f618480f9c0c1c48203",
    "1b130707757365722d34320480d095ffbc31026f6e",
    "1c090707757365722d3432",
    "1d0f070107757365722d343201a0ebb402",
    "1e12070470312f618180f9c0c1c48203c096b102",
    "1f06070470312f61",
    "201d078180f9c0c1c48203887766554433221103ac020470312f61c096b102",
    "21140306747261646573010180b8992980d095ffbc31",
    "220103",
    "237103298380f9c0c1c4820380d095ffbc3101a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a55a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a0203742d31036f6e65000001086f72646572732f312901086f72646572732f30",
    "240c0308656e67696e652d310128",
    "2509038480f9c0c1c48203",
    "26020328",
    "271c03298380f9c0c1c4820380d095ffbc31000203742d31036f6e650000",
    "28020329",
    "290307ac02",
    "2a02032a",
    "2b1102066f726465727302020180d095ffbc31",
    "2c08020180d095ffbc31",
    "2d0102",
    "2e2802ac020107020b6f72646572732e2a2e6575010c027b2261223a5b2278225d7d0204757365720300",
    "2f0302ac02",
    "300602ac02010100",
    "321f0201130b446973706c61794e616d65064f72646572730207047465616d0161",
    "33950102076e696768746c79ac020180d095ffbc310080d095ffbc3180d095ffbc310309302039202a202a20\
     2a0d4575726f70652f4265726c696e02046e65777303612e620301e0d4030001010000000000040080008000\
     4000000000000104706f7374020b016e06537472696e6701760307757365722d34320803e0d4030901090a0a\
     746578742f706c61696e0b0530302d61620c0102",
    "341802ad02010180d095ffbc310180d095ffbc3180d095ffbc31",
    "350102",
    "362902010180d095ffbc3180d095ffbc318877660200b00480008000c00100408001ac020180d095ffbc31",
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn every_kind_of_effect_has_its_golden_bytes() {
    for (number, (effect, golden)) in examples().into_iter().zip(GOLDEN).enumerate() {
        assert_eq!(place(&effect), number);
        let bytes = encode(std::slice::from_ref(&effect));
        assert_eq!(hex(&bytes), golden, "{effect:?}");
        assert_eq!(decode_record(&bytes).unwrap()[..], [effect]);
    }
}

/// Settings without their own window have the bytes from before there were windows.
#[test]
fn sync_windows_have_their_golden_bytes() {
    let changed = |sync_window, sync_records| Effect::QueueChanged {
        queue: QueueId(7),
        settings: Box::new(QueueSettings {
            sync_window,
            sync_records,
            ..QueueSettings::default()
        }),
        annotations: BTreeMap::new(),
        tags: BTreeMap::new(),
        at: WallTime(0),
    };
    let plain = hex(&encode(&[changed(None, None)]));
    let with = encode(&[changed(Some(50), Some(1_000))]);
    let fields = "140132".to_owned() + "1502e807";
    assert!(!plain.contains(&fields) && hex(&with).contains(&fields));
    assert_eq!(hex(&with).len(), plain.len() + fields.len());
    let read = decode_record(&with).unwrap();
    assert_eq!(read[..], [changed(Some(50), Some(1_000))]);
}

/// A message without the field has the bytes from before the field existed. A queue without the
/// setting has the bytes from before the setting existed.
#[test]
fn key_sequences_have_their_golden_bytes() {
    let accepted = |key_sequence| {
        let stored = StoredMessage {
            key_sequence,
            ..full_message()
        };
        Effect::Accepted(Box::new(stored))
    };
    let with = accepted(NonZeroU64::new(300));
    let (plain, bytes) = (
        encode(&[accepted(None)]),
        encode(std::slice::from_ref(&with)),
    );
    // Behind the level. The effect's length is four bytes more.
    assert_eq!(hex(&bytes[3..]), hex(&plain[3..]) + "1002ac02");
    assert_eq!(decode_record(&bytes).unwrap()[..], [with]);
    let none = [&bytes[..bytes.len() - 4], &[16, 2, 0x80, 0]].concat();
    assert!(decode_record(&none.into()).is_err(), "there is no number 0");

    let settings = |key_sequences_max| Effect::QueueChanged {
        queue: QueueId(7),
        settings: Box::new(QueueSettings {
            key_sequences_max,
            ..QueueSettings::default()
        }),
        annotations: BTreeMap::new(),
        tags: BTreeMap::new(),
        at: WallTime(0),
    };
    let (with, plain) = (encode(&[settings(1000)]), encode(&[settings(0)]));
    assert!(hex(&plain).contains("960100") && hex(&with).contains("9602e807"));
    assert_eq!(decode_record(&with).unwrap()[..], [settings(1000)]);
}

/// A message that is no record of a producer has the bytes from before there were producers, and so has a queue with the
/// default settings.
#[test]
fn marks_have_their_golden_bytes() {
    let accepted = |producer: Option<Produced>| {
        let mut stored = full_message();
        stored.marked_at = producer.as_ref().map(|_| MachineTime(5_000_000));
        stored.message.producer = producer.map(Box::new);
        Effect::Accepted(Box::new(stored))
    };
    let with = accepted(Some(produced()));
    let (plain, bytes) = (
        encode(&[accepted(None)]),
        encode(std::slice::from_ref(&with)),
    );
    // Behind the level: when, the incarnation, opening, lane, number, and the producer. The effect's length has a byte more.
    let mark = "c096b102".to_owned() + "8180f9c0c1c48203" + "887766554433221103ac02" + "70312f61";
    assert_eq!(hex(&bytes[4..]), hex(&plain[3..]) + "911b" + &mark);
    assert_eq!(decode_record(&bytes).unwrap()[..], [with]);
    let refused = |at: usize, byte: u8, expected: &str| {
        let mut bytes = bytes.to_vec();
        let at = bytes.len() - at;
        bytes[at] = byte;
        let bytes = Bytes::from(bytes);
        let error = decode_record(&bytes).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(batch::error_of(&bytes), Some(error));
    };
    refused(7, 16, "no mark of a producer");
    refused(1, b'\n', "no producer name");

    let settings = |producer_age, producers_max| Effect::QueueChanged {
        queue: QueueId(7),
        settings: Box::new(QueueSettings {
            producer_age,
            producers_max,
            ..QueueSettings::default()
        }),
        annotations: BTreeMap::new(),
        tags: BTreeMap::new(),
        at: WallTime(0),
    };
    let QueueSettings {
        producer_age,
        producers_max,
        ..
    } = QueueSettings::default();
    let (with, plain) = (
        encode(&[settings(60_000, 7)]),
        encode(&[settings(producer_age, producers_max)]),
    );
    let fields = "1a03e0d4031b0107";
    assert!(hex(&with).contains(fields) && with.len() == plain.len() + fields.len() / 2);
    assert_eq!(decode_record(&with).unwrap()[..], [settings(60_000, 7)]);
}

/// A nack without a reason has the bytes from before there were reasons.
#[test]
fn reasons_of_nacks_have_their_golden_bytes() {
    let nacked = |error: Option<&str>| Effect::Nacked {
        queue: QueueId(7),
        sequence: Sequence(300),
        until: None,
        failed: Some(Failed {
            at: WallTime(1_700_000_000_000),
            error: error.map(Into::into),
        }),
    };
    for (error, golden) in [
        (Some("no"), "0f0f07ac02020680d095ffbc3103026e6f"),
        (None, "0f0b07ac02020680d095ffbc31"),
    ] {
        let effect = nacked(error);
        let bytes = encode(std::slice::from_ref(&effect));
        assert_eq!(hex(&bytes), golden, "{effect:?}");
        assert_eq!(decode_record(&bytes).unwrap()[..], [effect]);
    }
}

#[test]
fn moves_by_an_operator_have_their_golden_bytes() {
    for (source, golden) in [
        (None, "120c07ac02080180d095ffbc3103"),
        (Some(QueueId(7)), "120f07ac02080180d095ffbc3103030107"),
    ] {
        let moved = Effect::Moved {
            from: QueueId(7),
            sequence: Sequence(300),
            to: QueueId(8),
            to_sequence: Sequence(1),
            reason: DeadLetterReason::Redriven { source },
            at: WallTime(1_700_000_000_000),
        };
        let bytes = encode(std::slice::from_ref(&moved));
        assert_eq!(hex(&bytes), golden, "{moved:?}");
        assert_eq!(decode_record(&bytes).unwrap()[..], [moved]);
    }
}

/// Readers of a dump look up these names there.
#[test]
fn every_kind_of_effect_stands_in_the_format_under_its_name() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/format.md");
    let page = fs::read_to_string(page).unwrap();
    for effect in examples() {
        let kind = encode(std::slice::from_ref(&effect))[0];
        let row = format!("\n| {kind} | {} | ", effect.name());
        assert_eq!(page.matches(&row).count(), 1, "{row}");
    }
    let (_, reasons) = page.split_once("\nReasons of *dropped*: ").unwrap();
    for reason in [
        DropReason::Purged,
        DropReason::QueueDeleted,
        DropReason::Expired,
        DropReason::Damaged,
        DropReason::Rejected,
        DropReason::Cancelled,
        DropReason::KeyDropped,
    ] {
        let listed = format!("{} {}", reason as u8, reason.name());
        assert!(reasons.contains(&listed), "{listed}");
    }
}

#[test]
fn every_unknown_kind_is_refused_as_newer() {
    let known: Vec<u8> = examples()
        .iter()
        .map(|effect| encode(std::slice::from_ref(effect))[0])
        .collect();
    assert_eq!(known.len(), KINDS);
    for kind in 0..=255 {
        let record = [encode(&examples()[..1]).as_ref(), &[kind, 1, 255]].concat();
        let error = decode_record(&record.into()).unwrap_err();
        let newer = DecodeError::NewerFormat {
            effect: 1,
            what: "kind",
            number: kind,
        };
        assert_eq!(error == newer, !known.contains(&kind), "{kind}: {error}");
    }
}

#[test]
fn hot_effects_are_small() {
    let size = |place: usize| encode(&examples()[place..=place]).len();
    assert!(size(11) <= 40, "leased: {}", size(11));
    assert!(size(13) <= 8, "acked: {}", size(13));
    let Effect::Accepted(stored) = &examples()[8] else {
        unreachable!()
    };
    let payload = stored.message.body.len() + "user-42".len();
    assert!(size(8) - payload <= 40, "accepted: {}", size(8) - payload);
}

/// The record with a field appended to its only effect.
fn with_field(effect: &Effect, field: &[u8]) -> Bytes {
    let bytes = encode(std::slice::from_ref(effect));
    let mut reader = Reader::new(&bytes);
    let (kind, mut body) = reader.next_effect().unwrap().unwrap();
    let mut out = Vec::new();
    Writer::into(&mut out).tagged(kind, |writer| writer.raw(&[]));
    let body = [&*body.rest().to_bytes(), field].concat();
    out.clear();
    Writer::into(&mut out).tagged_bytes(kind, &body);
    out.into()
}

#[test]
fn unknown_fields_are_skipped_and_unknown_critical_ones_refused_everywhere() {
    for effect in examples() {
        let skipped = with_field(&effect, &[0x7f, 2, 1, 2]);
        let read = decode_record(&skipped).unwrap();
        assert_eq!(read[..], *std::slice::from_ref(&effect));
        let refused = with_field(&effect, &[0xff, 2, 1, 2]);
        assert_eq!(
            decode_record(&refused),
            Err(DecodeError::NewerFormat {
                effect: 0,
                what: "field",
                number: 0xff
            }),
            "{effect:?}"
        );
    }
}

#[test]
fn a_message_is_found_by_its_part_and_shares_the_record() {
    let examples = examples();
    let record = encode(&examples);
    for (part, effect) in (0..).zip(&examples) {
        let read = read_message(&record, part);
        if let Effect::Accepted(stored) | Effect::Compacted(stored) = effect {
            let read = read.unwrap();
            assert_eq!(read, **stored);
            let shared = |part: &Bytes| record.as_ptr_range().contains(&part.as_ptr());
            assert!(shared(&read.message.body));
            assert!(read.message.headers.iter().all(|h| shared(&h.value)));
        } else {
            assert_eq!(read, Err(DecodeError::NoMessage { part }));
        }
    }
    let part = u16::try_from(KINDS).unwrap();
    assert_eq!(
        read_message(&record, part),
        Err(DecodeError::NoSuchPart { part })
    );
}

#[test]
fn malformed_parts_are_named() {
    let says = |record: &'static [u8], expected: &str| {
        let error = decode_record(&Bytes::from_static(record)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(expected), "{text}");
    };
    says(&[14], "byte 1: it ends too early");
    says(&[14, 3, 1], "byte 2: a length goes beyond its frame");
    says(&[14, 2, 0x81, 0], "a number is longer than it need be");
    says(
        &[6, 5, 255, 255, 255, 255, 1],
        "a queue number is above the highest",
    );
    says(
        &[14, 8, 1, 255, 255, 255, 255, 255, 255, 127],
        "a sequence number is above",
    );
    says(&[8, 2, 1, 2], "a flag is neither 0 nor 1");
    says(&[21, 4, 1, 2, b'a', b'\n'], "no key");
    says(&[14, 6, 1, 1, 9, 0, 8, 0], "fields are not in rising order");
    says(&[14, 4, 1, 1, 9, 2], "a length goes beyond its frame");
    says(&[4, 5, 1, 1, 1, b'a', 1], "it ends too early");
    says(&[4, 4, 1, 1, 1, b'a'], "a queue has no settings");
    says(
        &[4, 9, 1, 1, 1, b'a', 1, 3, 15, 1, 0],
        "a setting is out of its bounds",
    );
    says(&[15, 5, 1, 1, 3, 1, b'a'], "a failure has no time");
    says(&[18, 6, 1, 1, 2, 1, 1, 1], "the attempts are missing");
    says(&[18, 6, 1, 1, 2, 1, 1, 9], "dead-letter reason 9");
    // Queue, sequence, id and time of acceptance come before the priority.
    const MESSAGE: [u8; 24] = *b"\x09\x16\x01\x010123456789abcdef\x01\x09\x01\x0a";
    says(&MESSAGE, "a priority is 0 to 9");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_effects_survive_a_round_trip(effects in effects()) {
        let record = encode(&effects);
        let read = decode_record(&record).unwrap();
        prop_assert_eq!(&read[..], &effects[..]);
        for (part, effect) in (0..).zip(&effects) {
            match effect {
                Effect::Accepted(stored) | Effect::Compacted(stored) => match stored.payload {
                    Payload::Of { .. } => drop(read_message(&record, part)),
                    _ => {
                        let whole = StoredMessage { payload: Payload::Own, ..*stored.clone() };
                        prop_assert_eq!(read_message(&record, part).unwrap(), whole);
                    }
                },
                _ => prop_assert!(read_message(&record, part).is_err()),
            }
        }
    }

    #[test]
    fn each_kind_survives_a_round_trip(effects in (0..KINDS).map(effect_at).collect::<Vec<_>>()) {
        for (number, effect) in effects.iter().enumerate() {
            prop_assert_eq!(place(effect), number);
        }
        prop_assert_eq!(&decode_record(&encode(&effects)).unwrap()[..], &effects[..]);
    }

    #[test]
    fn any_bytes_give_effects_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        total(bytes)?;
    }

    #[test]
    fn damaged_records_give_effects_or_an_error(
        effects in effects(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4_u8), 1..6),
    ) {
        let mut bytes = encode(&effects).to_vec();
        for (at, byte, how) in damage {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes[at] ^= 1 << (byte % 8),
                2 => bytes.insert(at, byte),
                _ => bytes.truncate(at),
            }
        }
        total(bytes)?;
    }
}

/// Everything that can be decoded is a form that the encoder writes, unless it has fields that this
/// version skips or parts that it would leave out.
fn total(bytes: Vec<u8>) -> Result<(), TestCaseError> {
    let record = Bytes::from(bytes);
    for part in 0..3 {
        let _ = read_message(&record, part);
    }
    let decoded = decode_record(&record);
    prop_assert_eq!(batch::error_of(&record), decoded.as_ref().err().cloned());
    if let Ok(effects) = decoded {
        let again = encode(&effects);
        prop_assert!(again.len() <= record.len() + 4 * effects.len());
        prop_assert_eq!(&decode_record(&again).unwrap()[..], &effects[..]);
    }
    Ok(())
}
