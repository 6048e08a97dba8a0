//! Folding batches of records.

use bytes::Bytes;
use lockgate_core::Position;

use super::harness::check;
use crate::{BatchDecoder, Effect, Machine, MachineLimits, RecordBatch, encode_record};

/// Only a log that was put together from others has such a record. The message that was read ahead
/// for the first of the two must not be used for the second.
#[test]
fn a_settle_that_comes_again_leaves_alone_what_has_the_messages_place_by_now() {
    let run = check(
        "
        queue q keyed
        send q key=a
        send q key=b
        receive q 1 => 1
        ack q 1     => done
        send q key=c
        ",
    );
    let is_ack = |effect: &Effect| matches!(effect, Effect::Acked { .. });
    let settled = run
        .log
        .iter()
        .find(|(_, effects)| effects.iter().any(is_ack));
    let again = (Position(1_000_000), settled.unwrap().1.clone());

    let mut machine = Machine::new(MachineLimits::default());
    let mut batched = Machine::new(MachineLimits::default());
    let mut decoder = BatchDecoder::new(&batched);
    for (position, effects) in run.log.iter().chain([&again]) {
        machine.fold(effects, *position);
        let mut record = Vec::new();
        encode_record(effects, &mut record);
        decoder.push(&Bytes::from(record), *position);
    }
    batched.fold_batch(&decoder.take(RecordBatch::default()), |_, _| {});
    assert_eq!(batched.state_view(), machine.state_view());
    assert_eq!(
        (batched.effects_ignored(), machine.effects_ignored()),
        (1, 1)
    );
}
