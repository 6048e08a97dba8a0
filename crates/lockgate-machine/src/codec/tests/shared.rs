//! Messages of one record that have the same payload.

use super::*;
use crate::{Copies, copies};

fn stored(number: u64, payload: Payload) -> Box<StoredMessage> {
    let mut stored = full_message();
    stored.sequence = Sequence(number);
    stored.payload = Payload::Own;
    match payload {
        Payload::Of { part, .. } => copies::share(&mut stored, part),
        payload => stored.payload = payload,
    }
    Box::new(stored)
}

fn whole(number: u64) -> StoredMessage {
    *stored(number, Payload::Own)
}

/// Behind the other fields. A message that shares nothing has the bytes from before the field existed.
#[test]
fn payloads_of_others_have_their_golden_bytes() {
    let accepted = |payload| encode(&[Effect::Accepted(stored(300, payload))]);
    let plain = hex(&accepted(Payload::Own));
    let shared = hex(&accepted(Payload::Shared));
    // The effect's length is two bytes more.
    assert_eq!(shared[6..], plain[6..].to_owned() + "9200");
    let copy = accepted(Payload::Of { part: 300, size: 0 });
    // No body, headers, content type or trace context.
    let golden =
        "0307757365722d34320403752d310504a0bec3020706a0ef95ffbc310803e0d4030901090c01029203ac020c";
    assert!(hex(&copy).ends_with(golden), "{}", hex(&copy));
    for bytes in [accepted(Payload::Shared), copy] {
        assert_eq!(encode(&decode_record(&bytes).unwrap()), bytes);
    }
}

#[test]
fn a_message_is_read_with_the_payload_of_another_one() {
    let settled = Effect::Acked {
        queue: QueueId(1),
        sequence: Sequence(1),
    };
    let of = Payload::Of { part: 1, size: 0 };
    let record = encode(&[
        settled,
        Effect::Accepted(stored(1, Payload::Shared)),
        Effect::Accepted(stored(2, of)),
        Effect::Compacted(stored(3, of)),
    ]);
    for (part, number) in [(1, 1), (2, 2), (3, 3)] {
        assert_eq!(read_message(&record, part), Ok(whole(number)), "{part}");
    }
    let text = full_message().message;
    let times = record
        .windows(4)
        .filter(|bytes| *bytes == text.body)
        .count();
    assert_eq!(times, 1, "the payload is written once");
}

#[test]
fn a_payload_that_is_not_in_the_record_is_an_error() {
    let (first, second) = (
        stored(1, Payload::Own),
        stored(2, Payload::Of { part: 0, size: 0 }),
    );
    let lost = Err(DecodeError::NoPayload { part: 1, of: 0 });
    // The other one keeps it for itself.
    let record = encode(&[
        Effect::Accepted(first.clone()),
        Effect::Accepted(second.clone()),
    ]);
    assert_eq!(read_message(&record, 1), lost);
    // It has another size.
    let mut other = stored(1, Payload::Shared);
    other.message.body = Bytes::from_static(b"another");
    let record = encode(&[Effect::Accepted(other), Effect::Accepted(second.clone())]);
    assert_eq!(read_message(&record, 1), lost);
    // It is a copy itself.
    let record = encode(&[
        Effect::Accepted(second.clone()),
        Effect::Accepted(second.clone()),
    ]);
    assert_eq!(read_message(&record, 1), lost);
    // There is no such effect.
    let mut beyond = second;
    beyond.payload = Payload::Of { part: 9, size: 5 };
    let record = encode(&[Effect::Accepted(beyond.clone())]);
    assert_eq!(
        read_message(&record, 0),
        Err(DecodeError::NoSuchPart { part: 9 })
    );
    let (copies, others) = Copies::of_record([Effect::Accepted(first), Effect::Accepted(beyond)]);
    assert_eq!((copies.len(), others.len()), (1, 0), "nobody can read it");
}

#[test]
fn a_message_has_one_payload() {
    let mut both = stored(1, Payload::Own);
    both.payload = Payload::Of { part: 0, size: 3 };
    let record = encode(&[Effect::Accepted(both)]);
    let error = decode_record(&record).unwrap_err().to_string();
    assert!(
        error.contains("its own payload and that of another"),
        "{error}"
    );
    assert_eq!(batch::error_of(&record), decode_record(&record).err());
}

/// Who is left of the messages of a record has the payload once, also if the one that it came with is gone.
#[test]
fn those_that_are_left_take_the_payload_with_them() {
    let of = Payload::Of { part: 0, size: 0 };
    let effects = [
        Effect::Accepted(stored(1, Payload::Shared)),
        Effect::Accepted(stored(2, of)),
        Effect::Accepted(stored(3, Payload::Own)),
        Effect::Accepted(stored(4, of)),
    ];
    let (copies, _) = Copies::of_record(effects);
    let parts = |copies: &Copies| copies.messages().map(|(part, _)| part).collect::<Vec<_>>();
    let parts: Vec<_> = copies.iter().map(parts).collect();
    assert_eq!(parts, [vec![0, 1, 3], vec![2]]);
    for alive in 1_u64..8 {
        let is_alive = |number: u64| alive & (1 << (number / 2)) != 0;
        let compacted = copies[0].compacted(2, |_, stored| {
            let number = stored.sequence.0;
            is_alive(number).then_some((QueueId(9), Sequence(number + 100)))
        });
        let before = Effect::Acked {
            queue: QueueId(1),
            sequence: Sequence(1),
        };
        let mut record = vec![before.clone(), before];
        record.extend(compacted);
        let record = encode(&record);
        let left = [1, 2, 4].into_iter().filter(|&number| is_alive(number));
        let expected: Vec<_> = left
            .map(|number| StoredMessage {
                queue: QueueId(9),
                sequence: Sequence(number + 100),
                ..whole(number)
            })
            .collect();
        let read: Vec<_> = (2..2 + expected.len())
            .map(|part| read_message(&record, u16::try_from(part).unwrap()).unwrap())
            .collect();
        assert_eq!(read, expected, "{alive:b}");
        let first = decode_record(&record).unwrap().into_iter().nth(2);
        let Some(Effect::Compacted(first)) = first else {
            panic!("no message is left of {alive:b}");
        };
        let shares = if expected.len() > 1 {
            Payload::Shared
        } else {
            Payload::Own
        };
        assert_eq!(first.payload, shares);
    }
}
