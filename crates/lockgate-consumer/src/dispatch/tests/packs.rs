//! Messages that came in packs.

use lockgate_core::limits::{HoldScope, Scoped};

use super::{limits::rate, *};

/// The messages of a pack.
fn pack(key: Option<&'static str>, numbers: std::ops::Range<u64>) -> Vec<Arrival<Text>> {
    let first = numbers.start;
    let message = |number| Arrival {
        pack: Some(first),
        ..arrival(key, number)
    };
    numbers.map(message).collect()
}

/// A source that locks keys and can hold them.
fn holding() -> SourceOptions {
    let mut source = locked();
    source.capabilities.hold = true;
    source
}

fn waits(rest: Rest) -> RunEnd {
    RunEnd { done: 0, rest }
}

fn nack(delay: u64) -> Settlement {
    Settlement::Nack {
        delay: Duration::from_millis(delay),
        reason: None,
    }
}

/// The source is told of a pack once, by all of it, and what is told of a failure is not told again where that may hide
/// a message that somebody else has.
#[test]
fn a_pack_is_settled_once_when_all_of_it_has_ended() {
    for (fails, is_told_again) in [(false, true), (true, false)] {
        let mut source = plain();
        source.capabilities.nack_delay_max = Duration::from_secs(1);
        let mut dispatcher = dispatcher(DispatchOptions::default(), source);
        let both = [pack(None, 1..3), pack(None, 3..5)].concat();
        dispatcher.received(0, 10, both, 0);
        let runs = runs(&drain_actions(&mut dispatcher, 0));
        let first = if fails { failed(0) } else { succeeded() };
        dispatcher.finished(runs[0], first, 0, 0);
        dispatcher.finished(runs[2], succeeded(), 0, 0);
        assert_eq!(settles(&drain_actions(&mut dispatcher, 0)), []);
        let acknowledged = dispatcher.counts().acknowledged;
        assert_eq!(acknowledged, 0, "none of it is settled");
        dispatcher.finished(runs[1], succeeded(), 40, 0);
        let call = settles(&drain_actions(&mut dispatcher, 40));
        // It has waited for the other.
        let first = if fails { nack(60) } else { Settlement::Ack };
        let how: Vec<_> = call
            .iter()
            .map(|(_, number, how)| (*number, how.clone()))
            .collect();
        assert_eq!(how, [(1, first), (2, Settlement::Ack)]);
        let unknown = call.iter().map(|(id, ..)| (*id, Err(Fate::Unknown)));
        dispatcher.settled(0, unknown, 40, 0);
        let again = dispatcher.next_deadline().unwrap();
        let again = settles(&drain_actions(&mut dispatcher, again));
        assert_eq!(!again.is_empty(), is_told_again);
        let left = if is_told_again { 4 } else { 2 };
        assert_eq!(dispatcher.held(), left);
    }
}

#[test]
fn a_pack_counts_as_one_message_of_a_call() {
    let mut source = locked();
    source.capabilities.settle_max = 1;
    let mut dispatcher = dispatcher(DispatchOptions::default(), source);
    let packs = [pack(None, 1..4), pack(None, 4..7)].concat();
    dispatcher.received(0, 10, packs, 0);
    let actions = drain_actions(&mut dispatcher, 10_000);
    let extended = actions.iter().filter_map(|action| match action {
        Action::Extend { items, .. } => Some(items[..].to_vec()),
        _ => None,
    });
    let extended: Vec<_> = extended.collect();
    let numbers = extended
        .iter()
        .map(|items| (items.len(), items[0].1.number));
    assert!(numbers.eq([(1, 1), (1, 4)]));
    // One lease is extended for all of the pack, the other is lost.
    let [first, second] = [extended[0][0].0, extended[1][0].0];
    let answers = [(first, Ok(30_000)), (second, Err(Fate::Stale))];
    dispatcher.extended(answers, 10_000);
    let all = runs(&actions);
    let cancels = drain_actions(&mut dispatcher, 30_000);
    let cancels = cancels
        .iter()
        .filter(|action| matches!(action, Action::Cancel { .. }));
    assert_eq!(cancels.count(), 3, "those of the second");
    for run in all {
        dispatcher.finished(run, succeeded(), 30_000, 0);
    }
    let calls = drain_actions(&mut dispatcher, 30_000);
    let call = calls
        .iter()
        .find(|action| matches!(action, Action::Settle { .. }));
    let call = settles(&[call.unwrap().clone()]);
    assert!(call.iter().map(|(_, number, _)| *number).eq(1..4));
    dispatcher.settled(0, call.into_iter().map(|(id, ..)| (id, Ok(()))), 30_000, 0);
    let counts = dispatcher.counts();
    assert_eq!((counts.acknowledged, counts.lost), (3, 3));
    assert_eq!(dispatcher.held(), 0);
    assert!(dispatcher.packs.is_empty());
}

/// What had ended before is told to nobody but who remembers it.
#[test]
fn what_has_ended_of_a_pack_that_is_lost_is_lost() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    dispatcher.received(0, 10, pack(Some("a"), 1..4), 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.finished(run, succeeded(), 0, 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    let actions = drain_actions(&mut dispatcher, 30_000);
    let why = Cancelled::LeaseLost;
    assert!(actions.contains(&Action::Cancel { run, why }));
    assert_eq!(settles(&actions), []);
    dispatcher.finished(run, succeeded(), 30_000, 0);
    let call = settles(&drain_actions(&mut dispatcher, 30_000));
    assert_eq!((call.len(), call[0].1), (1, 1));
    dispatcher.settled(0, [(call[0].0, Err(Fate::Stale))], 30_000, 0);
    assert_eq!((dispatcher.counts().lost, dispatcher.held()), (3, 0));
}

#[test]
fn behind_a_rejected_message_its_pack_goes_on_and_what_is_behind_goes_back() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    let arrivals = [pack(Some("a"), 1..4), vec![arrival(Some("a"), 4)]].concat();
    dispatcher.received(0, 10, arrivals, 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    let reason = "bad".into();
    dispatcher.finished(run, waits(Rest::Rejected { reason }), 0, 0);
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(outcomes(&actions), [(4, Settlement::GiveBack)]);
    assert_eq!(started(&actions), [[2]]);
    dispatcher.finished(runs(&actions)[0], succeeded(), 0, 0);
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(started(&actions), [[3]]);
}

/// Over a queue that holds all of it, a hold is worth something only while it lasts.
#[test]
fn a_hold_ends_what_has_not_begun_of_the_pack() {
    let options = DispatchOptions {
        concurrency: 2,
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, holding());
    dispatcher.received(0, 10, pack(None, 1..5), 0);
    let runs = runs(&drain_actions(&mut dispatcher, 0));
    let (delay, scope) = (5_000, HoldScope::Queue);
    dispatcher.finished(runs[0], waits(Rest::Held { delay, scope }), 0, 0);
    assert_eq!(settles(&drain_actions(&mut dispatcher, 0)), []);
    dispatcher.finished(runs[1], succeeded(), 2_000, 0);
    let delay = Duration::from_millis(3_000);
    let back = Settlement::GiveBack;
    let expected = [
        (1, Settlement::Hold { delay, scope }),
        (2, Settlement::Ack),
        (3, back.clone()),
        (4, back),
    ];
    assert_eq!(outcomes(&drain_actions(&mut dispatcher, 2_000)), expected);
}

/// Packs are asked for, so packs are counted: one of a slow key leaves room for the others.
#[test]
fn a_pack_takes_the_room_of_one_message() {
    let options = DispatchOptions {
        held_max: 2,
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    let max_of = |actions: &[Action<Text>]| match actions.last() {
        Some(Action::Receive { max, .. }) => Some(*max),
        _ => None,
    };
    assert_eq!(max_of(&drain_actions(&mut dispatcher, 0)), Some(2));
    dispatcher.received(0, 2, pack(Some("a"), 1..9), 0);
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!(max_of(&actions), Some(1));
    assert!(!dispatcher.sources[0].is_deep, "it brought one of two");
    dispatcher.received(0, 1, pack(Some("b"), 9..11), 0);
    let actions = drain_actions(&mut dispatcher, 0);
    assert_eq!((started(&actions), max_of(&actions)), (vec![vec![9]], None));
}

/// It would come to another worker, which does again what was done of it.
#[test]
fn a_pack_that_has_begun_waits_here_for_a_limit() {
    let options = DispatchOptions {
        limits: Scoped {
            queue: None,
            key: Some(rate(1, 5_000)),
        },
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, pack(Some("a"), 1..3), 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.finished(run, succeeded(), 0, 0);
    assert_eq!(settles(&drain_actions(&mut dispatcher, 0)), []);
    assert_eq!(started(&drain_actions(&mut dispatcher, 5_000)), [[2]]);
    // Nothing has begun of the next one.
    dispatcher.received(0, 10, pack(Some("b"), 3..4), 5_000);
    dispatcher.received(0, 10, pack(Some("b"), 4..6), 5_000);
    let actions = drain_actions(&mut dispatcher, 5_000);
    dispatcher.finished(runs(&actions)[0], succeeded(), 5_000, 0);
    let call = settles(&drain_actions(&mut dispatcher, 5_000));
    assert_eq!((call.len(), call[0].1), (1, 3));
    dispatcher.settled(0, [(call[0].0, Ok(()))], 5_000, 0);
    let how = outcomes(&drain_actions(&mut dispatcher, 5_000));
    let delay = Duration::from_millis(5_000);
    let expected = [(4, Settlement::Defer { delay }), (5, Settlement::GiveBack)];
    assert_eq!(how, expected);
}

#[test]
fn what_is_settled_at_once_does_not_run() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), plain());
    let at_once = |number, how| Arrival {
        at_once: Some(how),
        ..arrival(Some("a"), number)
    };
    let arrivals = [
        at_once(1, Settlement::Ack),
        at_once(2, Settlement::GiveBack),
    ];
    dispatcher.received(0, 10, arrivals, 0);
    let actions = drain_actions(&mut dispatcher, 0);
    // This source cannot take back what was not tried.
    assert_eq!(outcomes(&actions), [(1, Settlement::Ack), (2, nack(0))]);
    assert_eq!(started(&actions), Vec::<Vec<u64>>::new());
}
