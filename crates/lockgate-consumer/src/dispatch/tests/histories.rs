//! Seeded histories.

use lockgate_core::limits::{HoldScope, Limits, Scoped};

use super::{
    limits::{at_once, rate, window},
    *,
};

/// What the world does next. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    /// Messages arrive, of these keys (0: without one); from [`KEYS`] on, packs of three of them.
    Arrive(Vec<u8>),
    ReceiveFails,
    /// A run ends: how, and after how many messages.
    End(usize, u8, usize),
    /// A settle call is answered: each item by a fate.
    Settled(usize, Vec<u8>),
    Extended(usize, Vec<u8>),
    Wait(Millis),
    Pause,
    Resume,
    Drain,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => prop::collection::vec(0_u8..9, 0..8).prop_map(Step::Arrive),
        1 => Just(Step::ReceiveFails),
        8 => (any::<usize>(), 0_u8..10, 0_usize..4).prop_map(|(at, how, done)| Step::End(at, how, done)),
        6 => (any::<usize>(), prop::collection::vec(0_u8..8, 10)).prop_map(|(at, fates)| Step::Settled(at, fates)),
        3 => (any::<usize>(), prop::collection::vec(0_u8..6, 10)).prop_map(|(at, fates)| Step::Extended(at, fates)),
        4 => prop_oneof![1_u64..200, 5_000_u64..12_000].prop_map(Step::Wait),
        1 => Just(Step::Pause),
        2 => Just(Step::Resume),
    ];
    let last = prop_oneof![4 => Just(None), 1 => Just(Some(Step::Drain))];
    (prop::collection::vec(step, 1..120), last).prop_map(|(mut steps, last)| {
        steps.extend(last);
        steps
    })
}

/// What the shell would know.
struct World {
    dispatcher: Dispatcher<Text>,
    now: Millis,
    next: u64,
    receives: Vec<usize>,
    runs: Vec<Ran>,
    calls: VecDeque<Vec<(ItemId, u64)>>,
    extends: VecDeque<Vec<ItemId>>,
    cancelled: BTreeSet<RunId>,
    /// The last message of each key whose run began for the first time.
    first_runs: BTreeMap<&'static str, u64>,
    seen: BTreeSet<u64>,
    /// The messages of each pack, by the first of them.
    packs: BTreeMap<u64, Vec<u64>>,
    /// In which call each message is.
    in_call: BTreeSet<u64>,
    order: Order,
    /// The messages of runs that have succeeded as far as they were.
    done: BTreeSet<u64>,
}

/// Whether a message runs with no other.
fn is_alone(number: u64) -> bool {
    number.is_multiple_of(7)
}

/// A run with the numbers of its messages and their key.
type Ran = (RunId, Vec<u64>, Option<&'static str>);

const KEYS: [Option<&str>; 6] = [None, Some("a"), Some("b"), Some("c"), Some("d"), Some("e")];

impl World {
    fn new(options: DispatchOptions, source: SourceOptions) -> Self {
        Self {
            order: options.order,
            done: BTreeSet::new(),
            dispatcher: dispatcher(options, source),
            now: 0,
            next: 1,
            receives: Vec::new(),
            runs: Vec::new(),
            calls: VecDeque::new(),
            extends: VecDeque::new(),
            cancelled: BTreeSet::new(),
            first_runs: BTreeMap::new(),
            seen: BTreeSet::new(),
            packs: BTreeMap::new(),
            in_call: BTreeSet::new(),
        }
    }

    /// The first message of the pack in which the message is, or itself.
    fn pack_of(&self, number: u64) -> u64 {
        let before = self.packs.range(..=number).next_back();
        let of_it = before.filter(|(_, members)| members.contains(&number));
        of_it.map_or(number, |(first, _)| *first)
    }

    fn step(&mut self, step: &Step, options: &DispatchOptions) {
        let now = self.now;
        match step {
            Step::Arrive(keys) => {
                let Some(max) = self.receives.pop() else {
                    return;
                };
                let mut arrivals = Vec::new();
                for key in keys.iter().take(max).map(|key| usize::from(*key)) {
                    let first = self.next;
                    let is_pack = key >= KEYS.len();
                    self.next += if is_pack { 3 } else { 1 };
                    let numbers = first..self.next;
                    arrivals.extend(numbers.clone().map(|number| Arrival {
                        age: (number % 3 > 0).then(|| number % 5 * 40),
                        pack: is_pack.then_some(first),
                        alone: is_alone(number),
                        at_once:
                            (number.is_multiple_of(13) && !is_pack).then_some(Settlement::GiveBack),
                        ..arrival(KEYS[key % KEYS.len()], number)
                    }));
                    if is_pack {
                        self.packs.insert(first, numbers.collect());
                    }
                }
                self.dispatcher.received(0, max, arrivals, now);
            }
            Step::ReceiveFails => {
                let Some(max) = self.receives.pop() else {
                    return;
                };
                self.dispatcher.receive_failed(0, max, now, 3);
            }
            Step::End(at, how, done) => {
                if self.runs.is_empty() {
                    return;
                }
                let run = self.runs.swap_remove(at % self.runs.len());
                let rest = match how {
                    0 => Rest::Failed {
                        error: "boom".into(),
                        retry_in: None,
                    },
                    1 => Rest::Deferred { delay: 300 },
                    2 => Rest::Rejected {
                        reason: "bad".into(),
                    },
                    3 => Rest::Cancelled,
                    4 => Rest::NotBegun,
                    5 => Rest::Held {
                        delay: 200,
                        scope: HoldScope::Queue,
                    },
                    _ => return self.end(run, succeeded(), options),
                };
                self.end(run, RunEnd { done: *done, rest }, options);
            }
            Step::Settled(at, fates) => {
                if self.calls.is_empty() {
                    return;
                }
                let call = self.calls.remove(at % self.calls.len()).unwrap();
                let fates = fates.iter().copied().cycle();
                let mut of_packs = BTreeMap::new();
                let results: Vec<_> = (call.iter().zip(fates))
                    .map(|(&(id, number), fate)| {
                        // A pack has one answer.
                        let fate = *of_packs.entry(self.pack_of(number)).or_insert(fate);
                        let result = match fate {
                            0 => Err(Fate::Retry),
                            1 => Err(Fate::Unknown),
                            2 => Err(Fate::Stale),
                            _ => Ok(()),
                        };
                        (id, result)
                    })
                    .collect();
                for (_, number) in call {
                    self.in_call.remove(&number);
                }
                self.dispatcher.settled(0, results, now, 5);
            }
            Step::Extended(at, fates) => {
                if self.extends.is_empty() {
                    return;
                }
                let call = self.extends.remove(at % self.extends.len()).unwrap();
                let results: Vec<_> = (call.into_iter().zip(fates.iter().cycle()))
                    .map(|(id, fate)| match fate {
                        0 => (id, Err(Fate::Unknown)),
                        1 => (id, Err(Fate::Stale)),
                        _ => (id, Ok(30_000)),
                    })
                    .collect();
                self.dispatcher.extended(results, now);
            }
            Step::Wait(time) => self.now += time,
            Step::Pause => self.dispatcher.pause(),
            Step::Resume => self.dispatcher.resume(now),
            Step::Drain => self.dispatcher.drain(now + 500),
        }
    }

    fn end(&mut self, (run, numbers, key): Ran, end: RunEnd, options: &DispatchOptions) {
        // Of messages that a run covers all have succeeded, or none.
        let covers = options.coalescing.is_some() && self.order == Order::Key && key.is_some();
        if !covers || end.done >= numbers.len() {
            self.done.extend(numbers.iter().take(end.done));
        }
        let current = self.dispatcher.finished(run, end, self.now, 11);
        assert!(current, "each run is ended once");
        self.cancelled.remove(&run);
    }

    /// Does what is to be done, and checks it.
    fn act(&mut self, options: &DispatchOptions) {
        while let Some(action) = self.dispatcher.poll(self.now) {
            match action {
                Action::Receive { max, .. } => {
                    assert!(max > 0);
                    self.receives.push(max);
                }
                Action::Start(started) => {
                    let key = started.messages[0].0.key;
                    let numbers: Vec<u64> = started
                        .messages
                        .iter()
                        .map(|(text, _)| text.number)
                        .collect();
                    let coalescing = options.coalescing.map(|coalescing| coalescing.messages_max);
                    assert!(numbers.len() <= coalescing.unwrap_or(options.run_max));
                    assert!(numbers.is_sorted(), "{numbers:?}");
                    assert!(numbers.len() == 1 || !numbers.iter().any(|number| is_alone(*number)));
                    if self.order == Order::Key
                        && let Some(key) = key
                    {
                        assert!(
                            self.runs.iter().all(|(.., other)| *other != Some(key)),
                            "two runs of {key}"
                        );
                        for number in &numbers {
                            if self.seen.insert(*number) {
                                let before = self.first_runs.insert(key, *number);
                                assert!(before < Some(*number), "{number} after {before:?}");
                            }
                        }
                    }
                    for number in &numbers {
                        assert!(!self.in_call.contains(number), "{number} is being settled");
                    }
                    self.runs.push((started.run, numbers, key));
                    assert!(self.runs.len() <= options.concurrency);
                    let limits = options.limits.queue.as_ref();
                    let most = limits.and_then(|limits| limits.concurrency);
                    // A run that covers its messages counts once.
                    let counts = |(_, numbers, _): &Ran| match options.coalescing {
                        Some(_) => 1,
                        None => numbers.len(),
                    };
                    let going: usize = self.runs.iter().map(counts).sum();
                    assert!(most.is_none_or(|most| going <= most as usize));
                }
                Action::Cancel { run, .. } => {
                    assert!(self.cancelled.insert(run), "cancelled twice");
                    assert!(!self.dispatcher.is_current(run));
                }
                Action::Settle { items, .. } => {
                    let call: Vec<_> = (items.iter())
                        .map(|(id, text, _)| (*id, text.number))
                        .collect();
                    let mut packs: Vec<u64> = (call.iter())
                        .map(|(_, number)| self.pack_of(*number))
                        .collect();
                    packs.dedup();
                    assert!((1..=10).contains(&packs.len()));
                    assert!(packs.iter().collect::<BTreeSet<_>>().len() == packs.len());
                    let runs = self.runs.iter().flat_map(|(_, numbers, _)| numbers);
                    let mut runs = runs.map(|number| self.pack_of(*number));
                    assert!(runs.all(|pack| !packs.contains(&pack)), "a part is settled");
                    for (_, text, how) in &items {
                        let is_done = self.done.contains(&text.number);
                        assert!(
                            *how != Settlement::Ack || is_done,
                            "{text:?} is acknowledged"
                        );
                    }
                    for (_, number) in &call {
                        assert!(self.in_call.insert(*number), "{number} in two calls");
                    }
                    self.calls.push_back(call);
                }
                Action::Extend { items, .. } => {
                    assert!(!items.is_empty() && items.len() <= 10);
                    self.extends
                        .push_back(items.into_iter().map(|(id, _)| id).collect());
                }
            }
        }
        let counts = self.dispatcher.counts();
        let left = counts.acknowledged
            + counts.failed
            + counts.deferred
            + counts.rejected
            + counts.given_back
            + counts.lost
            + counts.unconfirmed
            + self.dispatcher.held() as u64;
        assert_eq!(counts.arrived, left, "{counts:?}");
        assert_eq!(self.dispatcher.running(), self.runs.len());
        if let Some(at) = self.dispatcher.next_deadline() {
            assert!(at > self.now);
        }
    }

    /// The world gets well: everything that is here comes to its end, and nothing is left behind.
    fn come_to_rest(mut self, options: &DispatchOptions) {
        self.dispatcher.resume(self.now);
        for _ in 0..10_000 {
            self.act(options);
            for run in std::mem::take(&mut self.runs) {
                self.end(run, succeeded(), options);
            }
            for call in std::mem::take(&mut self.calls) {
                for (_, number) in &call {
                    self.in_call.remove(number);
                }
                let results = call.into_iter().map(|(id, _)| (id, Ok(())));
                self.dispatcher.settled(0, results, self.now, 5);
            }
            for call in std::mem::take(&mut self.extends) {
                let results = call.into_iter().map(|id| (id, Ok(30_000)));
                self.dispatcher.extended(results, self.now);
            }
            self.act(options);
            if self.dispatcher.held() == 0 {
                break;
            }
            if self.runs.is_empty() && self.calls.is_empty() && self.extends.is_empty() {
                self.now = self.dispatcher.next_deadline().expect("something is held");
            }
        }
        assert_eq!(self.dispatcher.held(), 0);
        // Lanes that have become empty are dropped when their turn comes, and while the worker is held none has.
        self.act(options);
        while let Some(at) = self
            .dispatcher
            .next_deadline()
            .filter(|_| !self.dispatcher.lanes.is_empty())
        {
            self.now = at;
            self.act(options);
        }
        assert!(
            self.dispatcher.lanes.is_empty(),
            "{:?}",
            self.dispatcher.lanes.iter().collect::<Vec<_>>()
        );
        assert!(self.dispatcher.by_name.is_empty());
        assert_eq!(self.dispatcher.turns.ready(), 0);
        assert_eq!(self.dispatcher.held_bytes, 0);
        assert!(self.dispatcher.packs.is_empty());
        assert_eq!(self.dispatcher.sources[0].held, 0);
    }
}

fn check(options: &DispatchOptions, source: &SourceOptions, steps: &[Step]) {
    let mut world = World::new(options.clone(), source.clone());
    world.act(options);
    for step in steps {
        world.step(step, options);
        world.act(options);
    }
    world.come_to_rest(options);
}

/// None, of one scope, of both.
fn limits() -> impl Strategy<Value = Scoped<Limits>> {
    let short = Limits {
        gap: Some(20),
        ..at_once(2)
    };
    let some = [
        rate(10, 1_000),
        rate(1, 10_000),
        at_once(1),
        window(3, 500),
        short,
    ];
    let one =
        || prop_oneof![3 => Just(None), 1 => prop::sample::select(some.to_vec()).prop_map(Some)];
    (one(), one()).prop_map(|(queue, key)| Scoped { queue, key })
}

fn coalescing() -> impl Strategy<Value = Option<Coalescing>> {
    let some = (0_u64..3, 0_u64..3, 0_u64..2, 1_usize..6, 2_u64..8);
    let some = some.prop_map(
        |(quiet, more, period, messages_max, bytes_max)| Coalescing {
            quiet: quiet * 60,
            wait_max: (quiet + more) * 60,
            period: period * 150,
            messages_max,
            bytes_max,
        },
    );
    prop::option::weighted(0.4, some)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_arrives_runs_in_order_and_leaves_once(
        steps in steps(),
        run_max in 1_usize..4,
        concurrency in 1_usize..5,
        order in prop_oneof![Just(Order::Key), Just(Order::Unordered), Just(Order::Partition(3.try_into().unwrap()))],
        fairness in prop_oneof![Just(Fairness::Keys), Just(Fairness::Tenants)],
        attempts_max in prop_oneof![Just(None), Just(Some(2))],
        run_time_max in prop_oneof![Just(None), Just(Some(1_000))],
        limits in limits(),
        locks in any::<bool>(),
        coalescing in coalescing(),
    ) {
        // As a worker has it.
        let coalescing = coalescing.filter(|_| order == Order::Key);
        let run_max = coalescing.map_or(run_max, |_| 1);
        let options = DispatchOptions {
            order,
            fairness,
            concurrency,
            run_max,
            coalescing,
            held_max: 12,
            attempts_max,
            run_time_max,
            limits,
            ..DispatchOptions::default()
        };
        let source = if locks { locked() } else { plain() };
        check(&options, &source, &steps);
    }
}
