//! The dispatcher against a simulated source: seeded histories with lost leases, lost answers, failures,
//! pauses and drains, and the invariants after every step.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use lockgate_core::{Fate, Key, KeyOrder, Millis, Settlement, SourceCapabilities};
use proptest::prelude::*;

use super::*;

mod cases;
mod claims;
mod coalescing;
mod histories;
mod limits;
mod packs;

/// A message of the tests: its key, if it has one, and its number among all messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Text {
    key: Option<&'static str>,
    number: u64,
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

/// A source that locks keys and can do everything.
fn locked() -> SourceOptions {
    let mut can = plain_with_leases();
    can.key_order = KeyOrder::Locked;
    can.nack_delay_max = Duration::from_secs(1_000);
    can.defer = true;
    can.reject = true;
    can.give_back = true;
    SourceOptions::new(can)
}

/// A source that keeps no order, and whose leases can be extended.
fn plain() -> SourceOptions {
    SourceOptions::new(plain_with_leases())
}

fn plain_with_leases() -> SourceCapabilities {
    let mut can = SourceCapabilities::plain();
    can.receive_max = 10;
    can.settle_max = 10;
    can.wait_max = Duration::from_secs(20);
    can.lease_max = Duration::from_secs(30);
    can
}

fn arrival(key_name: Option<&'static str>, number: u64) -> Arrival<Text> {
    Arrival {
        message: Text {
            key: key_name,
            number,
        },
        key: key_name.map(key),
        tenant: None,
        priority: 0,
        bytes: 1,
        cost: 1,
        attempt: 1,
        age: None,
        lease: 30_000,
        alone: false,
        pack: None,
        at_once: None,
    }
}

fn dispatcher(options: DispatchOptions, source: SourceOptions) -> Dispatcher<Text> {
    Dispatcher::new(options, vec![source], 0).unwrap()
}

/// All that is to be done now.
fn drain_actions(dispatcher: &mut Dispatcher<Text>, now: Millis) -> Vec<Action<Text>> {
    std::iter::from_fn(|| dispatcher.poll(now)).collect()
}

/// The numbers of the messages that were started, run by run.
fn started(actions: &[Action<Text>]) -> Vec<Vec<u64>> {
    let runs = actions.iter().filter_map(|action| match action {
        Action::Start(started) => Some(started),
        _ => None,
    });
    runs.map(|run| run.messages.iter().map(|(text, _)| text.number).collect())
        .collect()
}

fn runs(actions: &[Action<Text>]) -> Vec<RunId> {
    let runs = actions.iter().filter_map(|action| match action {
        Action::Start(started) => Some(started.run),
        _ => None,
    });
    runs.collect()
}

/// What is to be settled, and how.
fn settles(actions: &[Action<Text>]) -> Vec<(ItemId, u64, Settlement)> {
    let calls = actions.iter().filter_map(|action| match action {
        Action::Settle { items, .. } => Some(items),
        _ => None,
    });
    calls
        .flatten()
        .map(|(id, text, settlement)| (*id, text.number, settlement.clone()))
        .collect()
}

/// The same by the number of the message.
fn outcomes(actions: &[Action<Text>]) -> Vec<(u64, Settlement)> {
    let settles = settles(actions).into_iter();
    settles.map(|(_, number, how)| (number, how)).collect()
}

fn succeeded() -> RunEnd {
    RunEnd {
        done: usize::MAX,
        rest: Rest::Cancelled,
    }
}

fn failed(done: usize) -> RunEnd {
    RunEnd {
        done,
        rest: Rest::Failed {
            error: "boom".into(),
            retry_in: Some(100),
        },
    }
}
