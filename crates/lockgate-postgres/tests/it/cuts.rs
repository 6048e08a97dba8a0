//! Connections that are cut at any byte, by a proxy between.

use lockgate_conformance::servers::{Proxy, To};
use lockgate_core::{AppendError, Log as _, LogSource, RecordGroup};

use crate::{
    server::{new_shard, shared_server},
    support::Owner,
};

const RECORDS: usize = 3;

#[test]
fn a_group_that_was_cut_off_is_there_whole_or_not_at_all() {
    let Some(url) = shared_server("a_group_that_was_cut_off_is_there_whole_or_not_at_all") else {
        return;
    };
    let proxy = Proxy::start(&url);
    let shard = new_shard();
    let cuts = (0..1_600).step_by(200).map(|bytes| (To::Server, bytes));
    let (mut there, mut gone, mut answered) = (0, 0, 0);
    for (to, bytes) in cuts.chain((0..100).step_by(7).map(|bytes| (To::Client, bytes))) {
        proxy.heal();
        let mut owner = Owner::start(&proxy.url, &shard);
        // What is asked for the first time is prepared first.
        owner.append("before").unwrap();
        owner.sync();
        let kept = owner.records.len();

        proxy.cut_after(to, bytes);
        let mut group = RecordGroup::new(owner.log.capabilities().gap);
        for number in 0..RECORDS {
            let payload = format!("{to:?} {bytes} {number} {}", "x".repeat(300));
            group.push(|buffer| buffer.extend_from_slice(payload.as_bytes()));
        }
        let tail = owner.log.tail();
        let appended = owner.log.append(owner.epoch, tail, &mut group);
        let is_answered = match appended {
            Ok(()) => owner.log.progress().sync().is_ok(),
            Err(AppendError::Unknown(_)) => {
                owner.log.progress().sync().unwrap_err();
                false
            }
            other => panic!("{other:?}"),
        };

        let found = Owner::start(&url, &shard).records;
        assert_eq!(found[..kept], owner.records[..], "{to:?} {bytes}");
        match found.len() - kept {
            0 if !is_answered => gone += 1,
            RECORDS => there += 1,
            other => panic!("{other} records of {RECORDS}, cut {to:?} {bytes}"),
        }
        answered += usize::from(is_answered);
        // And what was found then stays so.
        assert_eq!(Owner::start(&url, &shard).records, found);
    }
    assert!(
        gone > 0 && there > answered && answered > 0,
        "the cuts are everywhere: {gone} {there} {answered}"
    );
}
