//! The machine of one key, its policies, and the defects of the published design that it must not have.

use lockgate_consumer::coalesce::{KeyState, Merge, Rejection, Stale, Token, Verdict};

fn entered<P: Clone>(state: &mut KeyState<P>, payload: P, merge: &Merge<P>, token: u64) -> Verdict {
    state.enter(payload, merge, Token(token), None)
}

/// What the second run has when "a" runs and "b", "c", "d" wait, after the first has failed or not.
fn second_run(merge: &Merge<String>, first_fails: bool) -> (Vec<String>, u64) {
    let mut state = KeyState::default();
    assert_eq!(
        entered(&mut state, "a".into(), merge, 1),
        Verdict::Run(Token(1))
    );
    assert_eq!(entered(&mut state, "b".into(), merge, 2), Verdict::Pending);
    for payload in ["c", "d"] {
        assert_eq!(
            entered(&mut state, payload.into(), merge, 2),
            Verdict::Covered
        );
    }
    let ended = match first_fails {
        true => state.fail(merge, Token(1)),
        false => state.succeed(Token(1)),
    };
    ended.unwrap();
    let batch = state.start(merge, Token(2), None).unwrap();
    (batch.payloads().to_vec(), batch.triggers())
}

#[test]
fn a_policy_says_what_the_run_has() {
    let sum = Merge::with(|a: String, b: String| format!("{a}+{b}"));
    for (merge, after_success, after_failure) in [
        (Merge::KeepFirst, &["b"][..], &["a"][..]),
        (Merge::KeepLast, &["d"], &["d"]),
        (sum, &["b+c+d"], &["a+b+c+d"]),
        (
            Merge::Append { max: 3 },
            &["b", "c", "d"],
            &["a", "b", "c", "d"],
        ),
        (Merge::Count, &[], &[]),
    ] {
        let name = format!("{merge:?}");
        assert_eq!(
            second_run(&merge, false),
            (strings(after_success), 3),
            "{name}"
        );
        assert_eq!(
            second_run(&merge, true),
            (strings(after_failure), 4),
            "{name}"
        );
    }
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn append_rejects_what_has_no_room_also_after_failures() {
    let merge = Merge::Append { max: 2 };
    let full = Verdict::Rejected(Rejection::Pending { max: 2 });
    let mut state = KeyState::default();
    assert_eq!(entered(&mut state, 0, &merge, 1), Verdict::Run(Token(1)));
    assert_eq!(entered(&mut state, 1, &merge, 2), Verdict::Pending);
    assert_eq!(entered(&mut state, 2, &merge, 2), Verdict::Covered);
    assert_eq!(entered(&mut state, 3, &merge, 2), full);
    assert_eq!(state.accepted(), 3, "a rejected trigger has no number");
    state.fail(&merge, Token(1)).unwrap();
    let batch = state.start(&merge, Token(2), None).unwrap();
    assert_eq!(batch.payloads(), [0, 1, 2]);
    assert_eq!(entered(&mut state, 3, &merge, 3), Verdict::Pending);
    assert_eq!(entered(&mut state, 4, &merge, 3), full, "4 run or wait");
}

/// The published design takes the head out whoever asks. A release by a run that was expired would start the tail
/// early, beside the head.
#[test]
fn a_release_by_a_run_from_before_changes_nothing() {
    let merge = Merge::KeepLast;
    let mut state = KeyState::default();
    assert_eq!(entered(&mut state, 'a', &merge, 1), Verdict::Run(Token(1)));
    assert_eq!(entered(&mut state, 'b', &merge, 2), Verdict::Pending);
    state.fail(&merge, Token(1)).unwrap();
    state.start(&merge, Token(2), Some(9)).unwrap();
    let before = state.clone();
    let stale = Err(Stale { token: Token(1) });
    assert_eq!(state.succeed(Token(1)), stale);
    assert_eq!(state.fail(&merge, Token(1)), stale);
    assert_eq!(state.extend(Token(1), None), stale);
    assert_eq!(
        state.start(&merge, Token(2), None).err(),
        Some(Stale { token: Token(2) })
    );
    assert_eq!(state, before);
}

/// The published design looks whether the head is too old, and then evicts whoever is the head by then.
#[test]
fn an_expiry_names_the_run_that_it_expires() {
    let merge = Merge::KeepLast;
    let mut state = KeyState::default();
    assert_eq!(entered(&mut state, 'a', &merge, 1), Verdict::Run(Token(1)));
    let seen = state.running().unwrap();
    state.succeed(seen).unwrap();
    assert_eq!(entered(&mut state, 'b', &merge, 2), Verdict::Run(Token(2)));
    assert_eq!(state.fail(&merge, seen), Err(Stale { token: seen }));
    assert_eq!(state.running(), Some(Token(2)));
}

/// The published design declines the newest, and loses it when the one that waits fails.
#[test]
fn a_covered_trigger_is_covered_by_a_later_run_though_the_waiting_one_fails() {
    let merge = Merge::KeepLast;
    let mut state = KeyState::default();
    assert_eq!(entered(&mut state, 1, &merge, 1), Verdict::Run(Token(1)));
    assert_eq!(entered(&mut state, 2, &merge, 2), Verdict::Pending);
    assert_eq!(entered(&mut state, 3, &merge, 2), Verdict::Covered);
    let newest = state.accepted();
    state.succeed(Token(1)).unwrap();
    assert_eq!(
        state.covered(),
        1,
        "the first run started before the others came"
    );
    state.start(&merge, Token(2), None).unwrap();
    state.fail(&merge, Token(2)).unwrap();
    assert!(state.covered() < newest);
    let batch = state.start(&merge, Token(3), None).unwrap();
    assert_eq!((batch.payloads(), state.failures()), (&[3][..], 1));
    state.succeed(Token(3)).unwrap();
    assert_eq!(
        (state.covered(), state.covered_by(), state.failures()),
        (newest, Token(3), 0)
    );
    assert!(state.is_idle());
}
