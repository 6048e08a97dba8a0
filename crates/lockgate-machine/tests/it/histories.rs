//! Random histories, and what must hold in all of them.
//!
//! Each of these was broken by hand once, one at a time, and the histories failed (the last column
//! says with what):
//!
//! | broken | seen as |
//! |---|---|
//! | a message joins its key in front of what waits already | a message that was not to be had |
//! | a nacked message goes to the end of its key | a message that was not to be had |
//! | a change of profile holds for a batch that is out | a message that was not to be had |
//! | strict: a batch is acknowledged in any order | a wrong reply |
//! | a token settles whatever lease its message has, or one of another term | a wrong reply |
//! | unkeyed: a late ack is refused | a wrong reply |
//! | a lease ends a millisecond late, a backoff or the retention a millisecond early | wrong counts |
//! | due timers fire by the highest time seen, not by the present one | wrong counts |
//! | unique ids are not remembered, or a purge keeps them | a wrong reply, wrong counts |
//! | a duplicate does not wait for the original's record | says so |
//! | a token is told that its message is gone before that is certain | says so |
//! | a move goes to an origin that is not allowed | says so |
//! | what is not synced is leasable | wrong `leasable` |
//! | a lease does not wait for the record that freed its key | says so |
//! | the lease bound is not raised, or not kept after a power cut | says so |
//! | sequence numbers that were told are given out again | a wrong reply |
//! | one attempt more than allowed | leased instead of moved |
//! | a lease given back counts as an attempt | a wrong attempt |
//! | the park policy does not freeze, a resumed key keeps its attempts | wrong counts, a wrong attempt |
//! | a failure is lost by a move, or its attempt is another's | a wrong delivery |
//! | a quota off by one, the limit of messages in flight not kept | a wrong reply |
//! | half a refused transaction happens | a refusal with effects |
//! | an expired message is counted under another reason | wrong totals |
//! | nobody is woken when a key becomes ready | says so |
//! | the codec drops a field | what is decoded differs |
//! | a mark is not raised; a lane takes another's; a gap is not seen | a wrong reply |
//! | a mark is raised without its message, or by a move | a wrong reply, wrong counts |
//! | a duplicate by mark, or a fenced producer, does not wait | says so |
//! | an earlier incarnation sends | a wrong reply |
//! | producers or openings are kept too long, or not long enough | wrong counts |
//! | a start is charged to no key, or not to its queue; what was given back is not refunded | wrong counts |
//! | what keys owe is forgotten when their limits change | wrong counts |
//! | leases of a key, or of a queue, do not count for its concurrency | wrong counts |
//! | nobody is woken when a gap or a rate of the queue lets go | says so |
//! | a hold changes nothing | wrong counts |
//! | a version of a record comes again after a deletion, or its revision does not rise | a wrong reply |
//! | who has lost a record's lease still writes it | a refusal with effects |
//! | a record is not deleted with its lease; the lease ends a millisecond late | wrong records |
//! | a command for records does not wait for the change before it | says so |
//! | records and states, or states alone, take more memory than they may; a state takes more than its queue's quota | a refusal with effects |
//! | folding looks at what is volatile | serving and recovering differ |
//! | the alternate of an inner exchange is not asked; bindings are taken in another order | another way |
//! | a full queue is left out that should refuse, or refuses that should be left out | a wrong reply |
//! | a group is lost in a copy, or not taken for a key; the last header gives the key | a wrong reply |
//! | duplicates count as copies; what an alternate takes is not counted | a wrong description |
//! | the bindings of a deleted queue stay; nobody waits for its deletion | a wrong description; says so |
//! | the alternate of a deleted exchange stays, or makes a cycle | a wrong description, a wrong reply |
//! | a second bind of a pattern changes nothing | wrong bindings |

use std::{str::FromStr, sync::Arc};

use lockgate_core::{
    Level, Millis, Sequence,
    limits::{HoldScope, Scoped},
};
use lockgate_machine::*;
use proptest::prelude::*;

use crate::world::{
    KEYED, QUEUES, Send, Step, World, Written,
    exchanges::{Asked, Facts, Options, Rule, Told},
    limits, queue_name,
};

/// Whether the wall clock may step back. Retention goes by the oldest message first, which is exact
/// only while the clock does not; so histories have one or the other.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Clock {
    Steady,
    StepsBack,
}

const RATES: [&str; 10] = [
    "none",
    "20/s per key",
    "1/50ms burst 2 per key",
    "3/100ms burst 3",
    "none",
    "1/7ms burst 1",
    "none",
    "3/s burst 1 + 9/s burst 1 per key",
    "50/s burst 4 + 10/s burst 2 per key",
    "1/3s per key",
];
const CONCURRENCIES: [&str; 10] = [
    "1",
    "none",
    "none",
    "none",
    "1 per key",
    "2",
    "none",
    "none",
    "3 + 2 per key",
    "none",
];
const GAPS: [&str; 10] = [
    "none",
    "none",
    "none",
    "none",
    "none",
    "none",
    "30ms per key",
    "none",
    "5ms + 20ms per key",
    "40ms",
];

fn limit<T: FromStr>(limited: bool, limits: &[&str; 10], which: u8) -> Scoped<T> {
    match limits[usize::from(which)] {
        limit if limited && limit != "none" => limit.parse().unwrap(),
        _ => Scoped::NONE,
    }
}

fn settings(queue: usize, clock: Clock) -> impl Strategy<Value = Box<QueueSettings>> {
    let keyed = KEYED[queue];
    let spans = (
        prop::sample::select(vec![0, 20, 200, 200, 40_000_u64]),
        prop::sample::select(vec![0, 0, 50_u64]),
        prop::sample::select(vec![1_000, 2_000, 1_000_000_u64]),
        prop::sample::select(vec![0, 100, 5_000_u64]),
    );
    let counts = (
        1..4_u16,
        prop::sample::select(vec![Some(3), Some(8), None]),
        prop::sample::select(vec![Some(60), None]),
        prop::sample::select(vec![2, 5, 1_000_u32]),
    );
    let policy = prop::option::of(prop::sample::select(vec![
        KeyPolicy::Block,
        KeyPolicy::Skip,
        KeyPolicy::Park,
    ]));
    let level = prop::sample::select(vec![
        Level::Memory,
        Level::Process,
        Level::Disk,
        Level::Disk,
    ]);
    (spans, counts, policy, level, any::<[bool; 5]>(), 0..10_u8).prop_map(
        move |(
            (lease, delay, retention, window),
            (attempts_max, quota_messages, quota_bytes, in_flight_max),
            key_policy,
            level,
            [dead_letter, by_key, survives_purge, strict, mistaken],
            one_in_ten,
        )| {
            let dead = if keyed { 0 } else { 1 };
            // Without another draw, so that saved failure cases stay what they are.
            let limited = mistaken && by_key;
            let dead_letter = dead_letter && queue > 1;
            // Now and then a policy that the queue cannot have.
            let possible = match key_policy {
                Some(KeyPolicy::Skip) => dead_letter,
                Some(KeyPolicy::Park) => keyed,
                _ => true,
            };
            let key_policy = key_policy.filter(|_| possible || mistaken && one_in_ten == 0);
            Box::new(QueueSettings {
                keyed,
                level,
                lease,
                delay,
                retention: match clock {
                    Clock::Steady => retention,
                    Clock::StepsBack => 1 << 40,
                },
                dedup_window: window,
                dedup_scope: match by_key {
                    true => DedupScope::Key,
                    false => DedupScope::Queue,
                },
                dedup_content: one_in_ten == 1,
                dedup_survives_purge: survives_purge,
                dead_letter: dead_letter.then(|| queue_name(dead)),
                key_policy,
                attempts_max,
                // What a queue is named for, unless it is changed.
                key_profile: match (QUEUES[queue], one_in_ten) {
                    ("sqs", 4..) | ("strict", 0..4) => KeyProfile::Sqs,
                    ("sqs", 0..4) | ("strict", 4..) => KeyProfile::Strict,
                    _ if strict => KeyProfile::Strict,
                    _ => KeyProfile::Sqs,
                },
                quota_messages,
                quota_bytes,
                in_flight_max,
                limit_rate: limit(limited, &RATES, one_in_ten),
                limit_concurrency: limit(limited, &CONCURRENCIES, one_in_ten),
                limit_gap: limit(limited, &GAPS, one_in_ten),
                // Without another draw, so that saved failure cases stay what they are.
                producer_age: [60_000, 3_600_000][usize::from(one_in_ten % 2)],
                producers_max: [1, 2, 3, 100][usize::from(one_in_ten % 4)],
                key_sequences_max: [0, 1, 3, 1_000][usize::from(one_in_ten % 4)],
                ..QueueSettings::default()
            })
        },
    )
}

fn any_queue(clock: Clock) -> impl Strategy<Value = (usize, Box<QueueSettings>)> {
    (0..QUEUES.len()).prop_flat_map(move |queue| (Just(queue), settings(queue, clock)))
}

/// Mostly the three queues that messages are sent to.
fn queue() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 2..5_usize, 1 => 0..2_usize]
}

fn move_to() -> impl Strategy<Value = (MoveTo, Option<MoveCursor>)> {
    let among = prop::collection::btree_set(queue().prop_map(queue_name), 0..3);
    prop_oneof![
        1 => Just((MoveTo::Origins, None)),
        1 => among.prop_map(|among| (MoveTo::OriginsAmong(among), None)),
        2 => queue().prop_map(|queue| (MoveTo::Queue(queue_name(queue)), None)),
        2 => (queue(), prop::option::of(queue()), prop::option::of(0..12_u64)).prop_map(
            |(source, to, after)| {
                let to = to.map(queue_name);
                let source = queue_name(source);
                // Without another draw, so that saved failure cases stay what they are.
                let cursor = after.map(|after| MoveCursor {
                    after: Sequence(after),
                    below: Sequence(if after % 3 == 0 { after + 4 } else { u64::MAX }),
                });
                (MoveTo::Of { source, to }, cursor)
            }
        ),
    ]
}

fn send() -> impl Strategy<Value = Send> {
    (
        queue(),
        // Mostly one key, so that there are batches.
        prop::option::weighted(0.95, prop_oneof![2 => Just(0), 1 => 0..3_usize]),
        prop::option::weighted(0.4, 0..3_usize),
        prop::option::weighted(0.25, -50..300_i64),
        prop::option::weighted(0.15, prop::sample::select(vec![1, 30, 400_u64])),
        prop::option::weighted(
            0.1,
            prop::sample::select(vec![Level::Memory, Level::Process, Level::Disk]),
        ),
        0..20_usize,
    )
        .prop_map(
            |(queue, key, unique, due, time_to_live, level, size)| Send {
                queue,
                key,
                unique,
                due,
                time_to_live,
                level,
                size,
            },
        )
}

fn lease() -> impl Strategy<Value = Option<Millis>> {
    prop_oneof![
        4 => Just(None),
        3 => (0..300_u64).prop_map(Some),
        1 => (25_000..35_000_u64).prop_map(Some),
    ]
}

/// None, a short one, or the longest.
fn reason() -> impl Strategy<Value = Option<Arc<str>>> {
    prop::sample::select(vec![0, 6, 1_024])
        .prop_map(|bytes| (bytes > 0).then(|| "x".repeat(bytes).into()))
}

fn action() -> impl Strategy<Value = SettleAction> {
    prop_oneof![
        5 => Just(SettleAction::Ack),
        3 => (prop::sample::select(vec![0, 0, 30, 300]), reason())
            .prop_map(|(delay, reason)| SettleAction::Nack { delay, reason }),
        2 => prop::sample::select(vec![1, 50, 29_000, 40_000, 43_200_000])
            .prop_map(|lease| SettleAction::Extend { lease }),
        1 => prop::option::of(Just("broken".into())).prop_map(|reason| SettleAction::Reject { reason }),
        2 => Just(SettleAction::GiveBack),
        3 => prop::sample::select(vec![0, 0, 1, 50, 29_000, 40_000, 43_200_000])
            .prop_map(|hidden| SettleAction::ChangeVisibility { hidden }),
        2 => prop::sample::select(vec![0, 30, 300]).prop_map(|delay| SettleAction::Defer { delay }),
    ]
}

fn written() -> impl Strategy<Value = Written> {
    (
        prop::sample::select(vec![Some(0), Some(0), Some(0), Some(1), None]),
        prop::option::weighted(0.8, 0..20_usize),
    )
        .prop_map(|(replaces, bytes)| Written { replaces, bytes })
}

fn step(clock: Clock) -> impl Strategy<Value = Step> {
    // Mostly what is still new.
    let which = || prop_oneof![4 => 0..3_usize, 1 => 0..10_usize];
    let key_action = prop::sample::select(vec![
        Some(KeyAction::Park),
        Some(KeyAction::Resume),
        // A hold.
        None,
        Some(KeyAction::Drop),
    ]);
    let back: i64 = if clock == Clock::StepsBack { -400 } else { 0 };
    let forward = prop_oneof![
        4 => 0..40_u64,
        3 => 0..500_u64,
        1 => 0..40_000_u64,
    ];
    prop_oneof![
        60 => send().prop_map(Step::Send),
        80 => (queue(), 1..5_u16, lease(), 0..2_usize).prop_map(|(queue, max, lease, holder)| {
            Step::Receive { queue, max, lease, holder }
        }),
        80 => (which(), action()).prop_map(|(which, action)| {
            // Without another draw, so that saved failure cases stay what they are.
            let action = match (which, action) {
                (1, SettleAction::Defer { delay: delay @ 1.. }) => {
                    SettleAction::Hold { delay, scope: HoldScope::Key }
                }
                (2, SettleAction::Defer { delay: delay @ 1.. }) => {
                    SettleAction::Hold { delay, scope: HoldScope::Queue }
                }
                (_, action) => action,
            };
            Step::Settle(which, action)
        }),
        12 => (
            prop::collection::vec((which(), action()), 0..4),
            prop::collection::vec((which(), written()), 0..3),
            prop::collection::vec(send(), 0..3),
        )
            .prop_map(|(settles, states, sends)| Step::Transact(settles, states, sends)),
        8 => (queue(), 0..3_usize, written())
            .prop_map(|(queue, key, written)| Step::State(queue, key, written)),
        25 => (0..20_usize, -1..2_i64).prop_map(|(which, offset)| Step::Until(which, offset)),
        20 => forward.prop_map(|by| Step::Time(by as i64, by)),
        8 => (back..400, 0..400_u64).prop_map(|(wall, machine)| Step::Time(wall, machine)),
        40 => Just(Step::Sync),
        3 => any_queue(clock).prop_map(|(queue, settings)| Step::Create(queue, settings)),
        12 => any_queue(clock).prop_map(|(queue, settings)| Step::Change(queue, settings)),
        1 => queue().prop_map(Step::Delete),
        2 => queue().prop_map(Step::Purge),
        2 => (queue(), prop::bool::weighted(0.3)).prop_map(|(queue, paused)| Step::Pause(queue, paused)),
        6 => which().prop_map(Step::Cancel),
        6 => (which(), -50..300_i64).prop_map(|(which, by)| Step::Reschedule(which, by)),
        6 => (queue(), move_to(), 1..5_u16)
            .prop_map(|(from, to, max)| Step::Move(from, to, max)),
        10 => (queue(), 0..3_usize, key_action)
            .prop_map(|(queue, key, action)| match action {
                Some(action) => Step::Key(queue, key, action),
                None => Step::Hold(queue, key),
            }),
        2 => which().prop_map(Step::Damaged),
        4 => any::<bool>().prop_map(|orderly| Step::Restart { orderly }),
        5 => which().prop_map(|survivors| Step::PowerCut { survivors }),
        5 => (1..6_usize).prop_map(Step::Housekeep),
        4 => Just(Step::Freeze),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        2 => Just(Rule::Reject),
        1 => Just(Rule::Drop),
        3 => (0..5_usize).prop_map(Rule::Alternate),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    (
        prop::option::weighted(0.5, 0..9_usize),
        prop::option::weighted(0.4, prop_oneof![8 => Just(0), 1 => Just(1), 8 => Just(2)]),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(filter, key_from, skip_when_full)| Options {
            filter,
            key_from,
            skip_when_full,
        })
}

fn plain_options() -> impl Strategy<Value = Options> {
    prop_oneof![
        1 => options(),
        1 => prop::option::weighted(0.3, 0..9_usize).prop_map(|filter| Options {
            filter,
            key_from: None,
            skip_when_full: false,
        }),
    ]
}

fn told() -> impl Strategy<Value = Box<Told>> {
    let facts = (
        0..7_usize,
        prop::option::of(0..3_usize),
        prop::option::of(prop::sample::select(vec![1, 3, 7, 8_i64])),
        any::<bool>(),
        prop::collection::vec(prop_oneof![6 => 0..3_usize, 1 => 3..5_usize], 0..3),
        0..4_usize,
    );
    let facts = facts.prop_map(|(routing, kind, size, tags, users, body)| Facts {
        routing,
        kind,
        size,
        tags,
        users,
        body,
    });
    (0..5_usize, facts, send()).prop_map(|(exchange, facts, send)| {
        Box::new(Told {
            exchange,
            facts,
            send,
        })
    })
}

fn asked() -> impl Strategy<Value = Asked> {
    let exchange = || 0..5_usize;
    // Mostly queues.
    let place = || prop_oneof![3 => 0..5_usize, 2 => 5..10_usize];
    let pattern = || prop_oneof![20 => 0..12_usize, 1 => Just(99)];
    prop_oneof![
        4 => (exchange(), 0..4_usize, rule()).prop_map(|(exchange, kind, unroutable)| {
            Asked::Create { exchange, kind, unroutable }
        }),
        3 => (exchange(), rule()).prop_map(|(exchange, unroutable)| {
            Asked::Update { exchange, unroutable }
        }),
        1 => (exchange(), any::<bool>()).prop_map(|(exchange, force)| {
            Asked::Delete { exchange, force }
        }),
        16 => (exchange(), place(), pattern(), plain_options()).prop_map(|(exchange, to, pattern, options)| {
            Asked::Bind { exchange, to, pattern, options }
        }),
        4 => (0..40_usize, plain_options()).prop_map(|(which, options)| Asked::Rebind { which, options }),
        4 => (0..40_usize).prop_map(Asked::Unbind),
        1 => (exchange(), place(), pattern()).prop_map(|(exchange, to, pattern)| {
            Asked::UnbindNone { exchange, to, pattern }
        }),
        30 => told().prop_map(Asked::Publish),
    ]
}

/// A history in which most of what queues get is published to exchanges.
fn published(clock: Clock) -> impl Strategy<Value = History> {
    let queues: Vec<_> = (0..QUEUES.len())
        .map(|queue| settings(queue, clock))
        .collect();
    let exchanges = prop::collection::vec(rule(), 4);
    let bindings = (0..4_usize, 0..5_usize, 0..12_usize, plain_options());
    let bindings = prop::collection::vec(bindings, 0..10);
    let step = prop_oneof![2 => step(clock), 3 => asked().prop_map(Step::Exchange)];
    let steps = prop::collection::vec(step, 1..120);
    (queues, exchanges, bindings, steps).prop_map(|(settings, exchanges, bindings, steps)| {
        let create = |(queue, settings)| Step::Create(queue, settings);
        let queues = settings.into_iter().enumerate().map(create);
        let make = |(exchange, unroutable)| {
            let kind = exchange;
            Step::Exchange(Asked::Create {
                exchange,
                kind,
                unroutable,
            })
        };
        let exchanges = exchanges.into_iter().enumerate().map(make);
        let bind = |(exchange, to, pattern, options)| {
            Step::Exchange(Asked::Bind {
                exchange,
                to,
                pattern,
                options,
            })
        };
        let bindings = bindings.into_iter().map(bind);
        let all = queues.chain(exchanges).chain(bindings);
        History(all.chain([Step::Sync]).chain(steps).collect())
    })
}

/// Steps, printed one a line.
#[derive(Clone)]
struct History(Vec<Step>);

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|step| write!(f, "\n{step:?}"))
    }
}

fn history(clock: Clock) -> impl Strategy<Value = History> {
    let queues: Vec<_> = (0..QUEUES.len())
        .map(|queue| settings(queue, clock))
        .collect();
    (queues, prop::collection::vec(step(clock), 1..150)).prop_map(|(settings, steps)| {
        let create = |(queue, settings)| Step::Create(queue, settings);
        let queues = settings.into_iter().enumerate().map(create);
        History(queues.chain([Step::Sync]).chain(steps).collect())
    })
}

fn play(history: &History) -> World {
    let mut world = World::new();
    for step in &history.0 {
        world.step(step);
    }
    world
}

/// So many cases; any other number by `PROPTEST_CASES`.
fn config(cases: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let overridden = std::env::var_os("PROPTEST_CASES").is_some();
    ProptestConfig {
        cases: if overridden { default.cases } else { cases },
        max_shrink_iters: 20_000,
        ..default
    }
}

proptest! {
    #![proptest_config(config(700))]

    /// Every reply, every count and every explanation is the model's; recovery equals serving after
    /// every record; see `World::step`.
    #[test]
    fn the_machine_does_what_the_model_does(history in history(Clock::Steady)) {
        play(&history);
    }

    #[test]
    fn also_when_the_wall_clock_steps_back(history in history(Clock::StepsBack)) {
        play(&history);
    }
}

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn also_with_exchanges(history in published(Clock::Steady)) {
        play(&history);
    }
}

proptest! {
    #![proptest_config(config(300))]

    /// Whatever records are lost, folding the others never panics, loses count of nothing that is
    /// there, and leaves a machine that goes on.
    #[test]
    fn any_records_may_be_lost(
        history in prop_oneof![history(Clock::Steady), published(Clock::Steady)],
        kept in prop::collection::vec(prop::bool::weighted(0.8), 64),
    ) {
        let records = play(&history).records;
        let mut machine = Machine::new(limits());
        let mut batched = Machine::new(limits());
        let mut decoder = BatchDecoder::new(&batched);
        for ((position, record), _) in records.iter().zip(kept.iter().cycle()).filter(|(_, kept)| **kept) {
            machine.fold(&decode_record(record).unwrap(), *position);
            decoder.push(record, *position);
            if position.0 % 4 == 0 {
                batched.fold_batch(&decoder.take(RecordBatch::default()), |_, _| {});
            }
        }
        batched.fold_batch(&decoder.take(RecordBatch::default()), |_, _| {});
        prop_assert_eq!(batched.state_view(), machine.state_view());
        prop_assert_eq!(batched.effects_ignored(), machine.effects_ignored());
        let image = machine.freeze();
        crate::world::go_on(machine);
        crate::world::go_on(crate::world::load(image));
    }
}
