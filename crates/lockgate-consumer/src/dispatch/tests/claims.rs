//! Messages that are acknowledged before their handlers.

use super::*;

/// At most once: acknowledged before the handler begins, so neither its end nor its lease matter.
#[test]
fn a_claimed_run_settles_nothing() {
    let options = DispatchOptions {
        run_max: 3,
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, (1..=3).map(|number| arrival(Some("a"), number)), 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    let answers = [Ok(()), Ok(()), Err(Fate::Unknown)];
    assert_eq!(dispatcher.claimed(run, answers, 0), [true, true, false]);
    while let Some(now) = dispatcher.next_deadline().filter(|now| *now < 100_000) {
        assert_eq!(drain_actions(&mut dispatcher, now), []);
    }
    assert!(dispatcher.is_current(run));
    dispatcher.finished(run, failed(0), 100_000, 0);
    assert_eq!(settles(&drain_actions(&mut dispatcher, 100_000)), []);
    let counts = dispatcher.counts();
    assert_eq!(
        (counts.acknowledged, counts.unconfirmed, dispatcher.held()),
        (2, 1, 0)
    );
}

/// A message whose claim has failed may come again, and what is behind it waits for that.
#[test]
fn nothing_runs_behind_a_message_that_could_not_be_claimed() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    dispatcher.received(0, 10, (1..=3).map(|number| arrival(Some("a"), number)), 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    assert_eq!(dispatcher.claimed(run, [Err(Fate::Retry)], 5), [false]);
    let rest = Rest::Cancelled;
    dispatcher.finished(run, RunEnd { done: 0, rest }, 5, 0);
    let actions = drain_actions(&mut dispatcher, 5);
    let how = outcomes(&actions);
    let back = Settlement::GiveBack;
    assert_eq!(how, [(2, back.clone()), (3, back)]);
    assert!(started(&actions).is_empty());
}

/// What is acknowledged before it runs would be gone without having run.
#[test]
fn a_run_that_is_being_claimed_is_not_cancelled_and_its_time_begins_behind_the_claim() {
    let options = DispatchOptions {
        run_time_max: Some(100),
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, [arrival(Some("a"), 1)], 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.claiming(run);
    // Too long, and a lease that is not there any more.
    let actions = drain_actions(&mut dispatcher, 10_000);
    let extended = actions.iter().find_map(|action| match action {
        Action::Extend { items, .. } => Some(items[0].0),
        _ => None,
    });
    dispatcher.extended([(extended.unwrap(), Err(Fate::Stale))], 10_000);
    dispatcher.drain(20_000);
    let actions = drain_actions(&mut dispatcher, 10_000);
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::Cancel { .. }))
    );
    assert_eq!(dispatcher.claimed(run, [Ok(())], 10_050), [true]);
    assert!(dispatcher.is_current(run));
    assert_eq!(drain_actions(&mut dispatcher, 10_149), []);
    let why = Cancelled::TooLong;
    assert_eq!(
        drain_actions(&mut dispatcher, 10_150),
        [Action::Cancel { run, why }]
    );
}

/// Nothing behind the failure was asked for, and none of it is gone.
#[test]
fn a_run_that_is_claimed_behind_the_drain_is_cancelled() {
    let mut dispatcher = dispatcher(DispatchOptions::default(), locked());
    dispatcher.received(0, 10, [arrival(Some("a"), 1)], 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.claiming(run);
    dispatcher.drain(10);
    assert_eq!(drain_actions(&mut dispatcher, 10), []);
    assert_eq!(dispatcher.claimed(run, [Ok(())], 11), [true]);
    let why = Cancelled::Draining;
    assert_eq!(
        drain_actions(&mut dispatcher, 11),
        [Action::Cancel { run, why }]
    );
}

#[test]
fn what_a_claim_did_not_get_to_goes_back() {
    let options = DispatchOptions {
        run_max: 3,
        ..DispatchOptions::default()
    };
    let mut dispatcher = dispatcher(options, locked());
    dispatcher.received(0, 10, (1..=3).map(|number| arrival(Some("a"), number)), 0);
    let run = runs(&drain_actions(&mut dispatcher, 0))[0];
    dispatcher.claiming(run);
    assert_eq!(
        dispatcher.claimed(run, [Ok(()), Err(Fate::Retry)], 5),
        [true, false]
    );
    let rest = Rest::Cancelled;
    dispatcher.finished(run, RunEnd { done: 1, rest }, 6, 0);
    let actions = drain_actions(&mut dispatcher, 6);
    let how = outcomes(&actions);
    assert_eq!(how, [(3, Settlement::GiveBack)]);
    let counts = dispatcher.counts();
    assert_eq!((counts.acknowledged, counts.lost), (1, 1));
}
