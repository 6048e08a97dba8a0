//! The decisions of a forwarder.

use lockgate_core::Fate;

use super::{
    Candidate, Found,
    plan::{Outcome, Pass, Plan, Rules, Verdict},
};

fn plan(batch_max: usize) -> Plan {
    Plan::new(Rules {
        resend_max: 1_000,
        batch_max,
        batch_bytes_max: 100,
        backoff_min: 10,
        backoff_max: 80,
    })
}

fn row(id: i64, key: &str) -> Candidate {
    Candidate {
        id,
        key: (!key.is_empty()).then(|| key.to_owned()),
        size: 1,
        first_sent: None,
    }
}

fn sent(id: i64, key: &str, first_sent: i64) -> Candidate {
    Candidate {
        first_sent: Some(first_sent),
        ..row(id, key)
    }
}

fn found(now: i64, candidates: impl Into<Vec<Candidate>>) -> Found {
    Found {
        now,
        candidates: candidates.into(),
        more: false,
    }
}

fn ids(batch: &[Candidate]) -> Vec<i64> {
    batch.iter().map(|candidate| candidate.id).collect()
}

fn failed(fate: Fate) -> Outcome {
    Outcome::Failed {
        fate,
        reason: "no".to_owned(),
    }
}

/// Answers a batch, all of it alike but for one row.
fn answer(
    plan: &mut Plan,
    pass: &mut Pass,
    batch: Vec<Candidate>,
    other: (i64, Fate),
    now: u64,
) -> Verdict {
    let answers = batch.into_iter().map(|candidate| {
        let outcome = match candidate.id == other.0 {
            true => failed(other.1),
            false => Outcome::Accepted,
        };
        (candidate, outcome)
    });
    plan.answered(pass, answers.collect(), now, 0)
}

#[test]
fn a_batch_has_the_oldest_row_of_each_key() {
    let plan = plan(10);
    let rows = [
        row(1, "a"),
        row(2, "a"),
        row(3, ""),
        row(4, "b"),
        row(5, ""),
        row(6, "a"),
    ];
    let (mut pass, parked) = plan.pass(found(0, rows), 0);
    assert!(parked.is_empty());
    assert_eq!(ids(&plan.batch(&mut pass, 0)), [1, 3, 4, 5]);
    assert_eq!(ids(&plan.batch(&mut pass, 0)), [2]);
    assert_eq!(ids(&plan.batch(&mut pass, 0)), [6]);
    assert!(plan.batch(&mut pass, 0).is_empty());
}

#[test]
fn few_keys_with_many_rows_leave_room_for_others() {
    let plan = plan(3);
    let mut full = found(0, [row(1, "a"), row(2, "b"), row(3, "a")]);
    assert_eq!(plan.crowding(&full), None, "there are no more rows");
    full.more = true;
    let mut keys = plan.crowding(&full).unwrap();
    keys.sort();
    assert_eq!(keys, ["a", "b"]);
    full.candidates.push(row(4, "c"));
    assert_eq!(plan.crowding(&full), None, "they fill a batch");
    full.candidates[3] = row(4, "");
    assert_eq!(plan.crowding(&full), None, "rows without a key go together");

    let rows: Vec<Candidate> = (1..=200).map(|id| row(id, "a")).collect();
    let (mut pass, _) = plan.pass(found(0, rows), 0);
    let mut sent = Vec::new();
    while let [id] = ids(&plan.batch(&mut pass, 0))[..] {
        sent.push(id);
    }
    assert_eq!(
        sent,
        (1..=100).collect::<Vec<i64>>(),
        "the rest is looked at again"
    );
}

#[test]
fn a_batch_has_as_many_rows_and_bytes_as_the_sink_takes() {
    let large = |id, size| Candidate {
        size,
        ..row(id, "")
    };
    let plan = plan(2);
    let rows = [
        row(1, ""),
        row(2, ""),
        row(3, ""),
        large(4, 100),
        large(5, 101),
        row(6, ""),
    ];
    let (mut pass, _) = plan.pass(found(0, rows), 0);
    let mut batches = Vec::new();
    loop {
        let batch = plan.batch(&mut pass, 0);
        if batch.is_empty() {
            break;
        }
        batches.push(ids(&batch));
    }
    let expected: [&[i64]; 5] = [&[1, 2], &[3], &[4], &[5], &[6]];
    assert_eq!(batches, expected);
}

#[test]
fn what_failed_holds_up_its_key_and_no_other() {
    let mut plan = plan(10);
    let rows = [row(1, "a"), row(2, "b"), row(3, "a"), row(4, "b")];
    let (mut pass, _) = plan.pass(found(0, rows), 0);
    let batch = plan.batch(&mut pass, 0);
    let verdict = answer(&mut plan, &mut pass, batch, (1, Fate::Retry), 0);
    assert_eq!((verdict.done, verdict.unclaimed), (vec![2], vec![1]));
    assert_eq!(verdict.wait, None, "the sink is there");
    assert_eq!(ids(&plan.batch(&mut pass, 0)), [4]);

    assert_eq!(plan.skipped(1).keys, ["a"]);
    assert!(plan.skipped(10).keys.is_empty(), "its time has come");
}

#[test]
fn a_sink_that_takes_nothing_is_left_alone_for_longer_and_longer() {
    let mut plan = plan(10);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let (mut pass, _) = plan.pass(found(0, [row(1, "a"), row(2, "")]), 0);
        let answers = plan.batch(&mut pass, 0).into_iter();
        let answers = answers.map(|candidate| (candidate, failed(Fate::Closed)));
        let verdict = plan.answered(&mut pass, answers.collect(), 0, 0);
        assert_eq!(verdict.unclaimed, [1, 2], "they were not accepted");
        waits.push(verdict.wait.unwrap());
    }
    assert_eq!(
        waits,
        [5, 10, 20, 40, 40, 40],
        "a half of the span, without luck"
    );
    assert_eq!(plan.delay(0, 5), 10, "all of it, with luck");
    assert_eq!(plan.skipped(0).ids, [2]);
}

#[test]
fn what_can_never_be_accepted_is_parked() {
    let mut plan = plan(10);
    let (mut pass, _) = plan.pass(found(10, [row(1, "a"), sent(2, "b", 5), row(3, "a")]), 0);
    for (id, in_doubt) in [(1, false), (2, true)] {
        let mut batch = plan.batch(&mut pass, 0);
        if batch.is_empty() {
            batch = vec![sent(2, "b", 5)];
        }
        batch.retain(|candidate| candidate.id == id);
        let verdict = answer(&mut plan, &mut pass, batch, (id, Fate::Refused), 0);
        assert_eq!(verdict.parked[0].id, id);
        assert_eq!(
            verdict.parked[0].in_doubt, in_doubt,
            "whether it was sent before"
        );
        assert_eq!(verdict.wait, None);
    }
    assert!(
        plan.batch(&mut pass, 0).is_empty(),
        "what is behind them waits"
    );
}

#[test]
fn a_claim_stays_until_no_send_of_the_row_can_have_been_accepted() {
    let mut plan = plan(10);
    let rows = [row(1, ""), sent(2, "", 90), row(3, "")];
    let (mut pass, _) = plan.pass(found(100, rows), 0);
    let batch = plan.batch(&mut pass, 0);
    let answers = batch.into_iter().map(|candidate| {
        let fate = if candidate.id == 3 {
            Fate::Unknown
        } else {
            Fate::Retry
        };
        (candidate, failed(fate))
    });
    let verdict = plan.answered(&mut pass, answers.collect(), 0, 0);
    assert_eq!(verdict.unclaimed, [1]);
}

#[test]
fn a_row_is_not_sent_again_when_its_unique_id_may_be_forgotten() {
    let plan = plan(10);
    let rows = [
        sent(1, "young", 9_000),
        sent(2, "old", 8_999),
        row(3, "old"),
        // The database's clock was set back.
        sent(4, "odd", 10_001),
        row(5, ""),
    ];
    let (mut pass, parked) = plan.pass(found(10_000, rows), 0);
    let doubtful: Vec<_> = parked.iter().map(|row| (row.id, row.in_doubt)).collect();
    assert_eq!(doubtful, [(2, true), (4, true)]);
    assert_eq!(ids(&plan.batch(&mut pass, 0)), [1, 5]);
}

#[test]
fn a_row_grows_old_while_others_are_sent() {
    let plan = plan(1);
    let rows = [row(1, ""), sent(2, "a", 9_500), row(3, "a"), row(4, "")];
    let (mut pass, _) = plan.pass(found(10_000, rows), 50);
    assert_eq!(ids(&plan.batch(&mut pass, 50)), [1]);
    assert_eq!(
        ids(&plan.batch(&mut pass, 551)),
        [4],
        "2 is judged at the next look"
    );
    assert!(
        plan.batch(&mut pass, 551).is_empty(),
        "and 3 stays behind it"
    );
}

#[test]
fn only_so_many_failures_are_remembered() {
    let mut plan = plan(2_000);
    let rows: Vec<_> = (1..=1_500).map(|id| row(id, "")).collect();
    let (mut pass, _) = plan.pass(found(0, rows), 0);
    for now in 0.. {
        let batch = plan.batch(&mut pass, now);
        if batch.is_empty() {
            break;
        }
        let answers = batch.into_iter();
        let answers = answers.map(|candidate| (candidate, failed(Fate::Retry)));
        plan.answered(&mut pass, answers.collect(), now, 0);
    }
    assert_eq!(plan.skipped(0).ids.len(), 1_000);
}
