//! What a history is made of: its queues, its workers and their options.

use std::{fmt::Debug, str::FromStr, time::Duration};

use lockgate_consumer::dispatch::{Backoff, DispatchOptions, Fairness, Order, SourceOptions};
use lockgate_core::{
    KeyOrder, Millis, QueueName, SourceCapabilities,
    limits::{Limits, Scoped, Window},
};
use lockgate_machine::{KeyPolicy, KeyProfile, QueueSettings, Settle};
use lockgate_sim::SeededRandom;

use crate::world::queue_name;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) queues: Vec<QueuePlan>,
    pub(crate) keys: u64,
    pub(crate) workers: u64,
    pub(crate) options: DispatchOptions,
    /// For how long things go wrong.
    pub(crate) lasts: Millis,
    /// How much goes wrong, in percent of the occasions.
    pub(crate) faults: u64,
    /// Handlers that are dropped end at once; others go on until they end by themselves.
    pub(crate) ends_when_dropped: bool,
    /// Messages are acknowledged before they are handled.
    pub(crate) at_most_once: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct QueuePlan {
    pub(crate) name: QueueName,
    pub(crate) keyed: bool,
    pub(crate) settings: QueueSettings,
    pub(crate) source: SourceOptions,
    pub(crate) wait: Millis,
}

const DEAD: [&str; 2] = ["dead", "dead.keyed"];

pub(crate) fn any(random: &mut SeededRandom) -> Plan {
    let count = 1 + random.index(3);
    let options = DispatchOptions {
        order: match random.below(10) {
            0 => Order::Unordered,
            1 => Order::Partition(3.try_into().expect("not zero")),
            _ => Order::Key,
        },
        fairness: [Fairness::Keys, Fairness::Tenants][random.index(2)],
        concurrency: 1 + random.index(6),
        run_max: 1 + random.index(3),
        held_max: count + random.index(30),
        held_bytes_max: [20, 64 << 20][usize::from(random.chance(80))],
        run_time_max: random.chance(50).then(|| 2_000 + random.below(30_000)),
        attempts_max: random.chance(20).then_some(2),
        backoff: Backoff {
            first: 1 + random.below(1_000),
            max: 1_000 + random.below(9_000),
        },
        limits: worker_limits(random),
        ..DispatchOptions::default()
    };
    Plan {
        queues: (0..count).map(|number| any_queue(random, number)).collect(),
        keys: 1 + random.below(4),
        workers: 1 + random.below(3),
        options,
        lasts: 20_000 + random.below(160_000),
        faults: [0, 3, 10, 25][random.index(4)],
        ends_when_dropped: random.chance(60),
        at_most_once: random.chance(12),
    }
}

/// Mostly none.
fn some<T: FromStr<Err: Debug>>(random: &mut SeededRandom, limits: &[&str]) -> Scoped<T> {
    match random.chance(6) {
        true => limits[random.index(limits.len())].parse().expect("a limit"),
        false => Scoped::NONE,
    }
}

fn worker_limits(random: &mut SeededRandom) -> Scoped<Limits> {
    let limits = Scoped::of(
        some(random, &["10/s", "3/s per key", "1/s burst 1 per key"]),
        some(random, &["1", "3", "1 per key"]),
        some(random, &["50ms", "2s per key"]),
    );
    let window = random
        .chance(10)
        .then(|| Window::new(3, 1_000).expect("in range"));
    Scoped {
        queue: match window {
            None => limits.queue,
            Some(_) => Some(Limits {
                window,
                ..limits.queue.unwrap_or_default()
            }),
        },
        ..limits
    }
}

fn any_queue(random: &mut SeededRandom, number: usize) -> QueuePlan {
    let keyed = random.chance(75);
    let mut settings = settings(keyed);
    settings.attempts_max = 2 + u16::from(random.chance(50));
    settings.key_profile = [KeyProfile::Sqs, KeyProfile::Strict][random.index(2)];
    settings.limit_rate = some(
        random,
        &["5/s", "2/s burst 1 per key", "10/s + 1/s per key"],
    );
    settings.limit_concurrency = some(random, &["2", "1 per key"]);
    settings.limit_gap = some(random, &["100ms", "700ms per key"]);
    let dead = Some(queue_name(DEAD[usize::from(keyed)]));
    match random.below(3) {
        0 => {}
        1 => settings.dead_letter = dead,
        _ if keyed => settings.key_policy = Some(KeyPolicy::Park),
        _ => settings.dead_letter = dead,
    }
    let mut can = SourceCapabilities::plain();
    can.receive_max = 1 + random.index(10);
    can.settle_max = 1 + random.index(10);
    if random.chance(70) {
        can.wait_max = Duration::from_secs(20);
    }
    if keyed {
        can.key_order = KeyOrder::Locked;
        can.key_max = random.chance(70);
    }
    can.lease_max = Duration::from_millis(QueueSettings::LEASE_MAX);
    can.nack_delay_max = Duration::from_millis(Settle::DELAY_MAX);
    can.defer = true;
    can.reject = true;
    can.give_back = true;
    let wait = if can.wait_max.is_zero() {
        0
    } else {
        1_000 + random.below(19_000)
    };
    let mut source = SourceOptions::new(can);
    // Without one the source decides, and nothing is extended.
    source.lease = random.chance(90).then(|| 2_000 + random.below(30_000));
    source.priority = u8::try_from(random.below(3)).expect("small");
    QueuePlan {
        name: queue_name(&format!("queue-{number}")),
        keyed,
        settings,
        source,
        wait,
    }
}

fn settings(keyed: bool) -> QueueSettings {
    QueueSettings {
        keyed,
        lease: 10_000,
        // Longer than any step of the wall clock.
        retention: 365 * 24 * 3_600_000,
        ..QueueSettings::default()
    }
}

/// The queues of a plan, those for dead letters first.
pub(crate) fn all_queues(plan: &Plan) -> Vec<(QueueName, QueueSettings)> {
    let dead = DEAD.into_iter().zip([false, true]);
    let dead = dead.map(|(name, keyed)| (queue_name(name), settings(keyed)));
    let served = plan.queues.iter();
    let served = served.map(|queue| (queue.name.clone(), queue.settings.clone()));
    dead.chain(served).collect()
}
