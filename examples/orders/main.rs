//! Orders in Rust: `cargo run --release -p lockgate --example orders`.
//!
//! Real events (changes of files in public repositories) play orders: the file is the customer, whose
//! orders are handled in their order, and the repository is the partner that is called for each. One
//! partner is slow, and one order is poisoned: it fails whenever it is tried. Two workers
//! share the orders, over a durable queue in a folder that is removed at the end.
//!
//! The last line is one JSON object. Exit code 0: no order was lost, handled twice, out of its customer's
//! order, or beside another one of its customer, failed attempts included; no order ran between the attempts of
//! the poisoned one or before its last; and that one is the only dead letter. It takes at most two minutes, else
//! it fails.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use lockgate::{
    Key, Lockgate, Message, Queue,
    consumer::{Backoff, Failure, Handler, Job, Worker, handler},
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::Notify;

const EVENTS: &str = include_str!("events.jsonl");
const SLOW_PARTNER: &str = "cberner/redb";
const POISONED_CUSTOMER: &str = "apache/iggy/Cargo.lock";
/// Which of that customer's orders, from 1.
const POISONED_ORDER: u32 = 10;
const ATTEMPTS: u16 = 3;
const TIME_MAX: Duration = Duration::from_secs(120);

/// What the queue carries.
#[derive(Clone, Deserialize, Serialize)]
struct Order {
    customer: String,
    partner: String,
    /// Among the customer's orders, from 1.
    number: u32,
}

/// A line of the events.
#[derive(Deserialize)]
struct Event {
    key: String,
    repo: String,
}

/// What a handler saw, in the order of the ends.
struct Run {
    order: Order,
    failed: bool,
    began: Instant,
    ended: Instant,
}

#[derive(Default)]
struct Ledger {
    runs: Mutex<Vec<Run>>,
    changed: Notify,
}

impl Ledger {
    fn runs(&self) -> std::sync::MutexGuard<'_, Vec<Run>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many orders are done.
    async fn done(&self, orders: usize) {
        loop {
            let changed = self.changed.notified();
            if self.runs().iter().filter(|run| !run.failed).count() >= orders {
                return;
            }
            changed.await;
        }
    }
}

fn orders() -> anyhow::Result<Vec<Order>> {
    let mut numbers: HashMap<String, u32> = HashMap::new();
    let order = |(line, text): (usize, &str)| {
        let event: Event = serde_json::from_str(text).with_context(|| format!("line {line}"))?;
        let number = numbers.entry(event.key.clone()).or_default();
        *number += 1;
        Ok(Order {
            customer: event.key,
            partner: event.repo,
            number: *number,
        })
    };
    (1..).zip(EVENTS.lines()).map(order).collect()
}

fn message(order: &Order) -> anyhow::Result<Message> {
    let customer = Key::new(&order.customer)?;
    Ok(Message::new(serde_json::to_vec(order)?).with_key(customer))
}

fn is_poisoned(order: &Order) -> bool {
    order.customer == POISONED_CUSTOMER && order.number == POISONED_ORDER
}

/// Calls the partner. This is what a service would write.
fn handler(ledger: Arc<Ledger>) -> impl Handler {
    handler::json(move |order: Order, _job: Job| {
        let ledger = ledger.clone();
        async move {
            let began = Instant::now();
            let partner = match order.partner.as_str() {
                SLOW_PARTNER => Duration::from_millis(40),
                _ => Duration::from_millis(1),
            };
            tokio::time::sleep(partner).await;
            let failed = is_poisoned(&order);
            ledger.runs().push(Run {
                order,
                failed,
                began,
                ended: Instant::now(),
            });
            ledger.changed.notify_waiters();
            match failed {
                true => Err(Failure::from("the partner's answer makes no sense")),
                false => Ok(()),
            }
        }
    })
}

/// What must all be 0.
#[derive(Default, PartialEq, Serialize)]
struct Violations {
    lost: usize,
    handled_twice: usize,
    out_of_order: usize,
    at_the_same_time: usize,
}

impl Violations {
    fn of(orders: &[Order], runs: &[Run]) -> Self {
        let mut by_customer: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
        for run in runs {
            by_customer
                .entry(&run.order.customer)
                .or_default()
                .push(run);
        }
        let mut found = Self::default();
        for runs in by_customer.values() {
            for pair in runs.windows(2) {
                let (one, next) = (pair[0], pair[1]);
                found.out_of_order += usize::from(one.order.number > next.order.number);
                found.at_the_same_time += usize::from(next.began < one.ended);
            }
        }
        let handled = |order: &Order| {
            let runs = by_customer.get(order.customer.as_str());
            let runs = runs.into_iter().flatten();
            runs.filter(|run| !run.failed && run.order.number == order.number)
                .count()
        };
        for order in orders.iter().filter(|order| !is_poisoned(order)) {
            let count = handled(order);
            found.lost += usize::from(count == 0);
            found.handled_twice += count.saturating_sub(1);
        }
        found
    }
}

/// The orders that are dead letters, once there is one.
async fn dead_letters(dead: &Queue) -> anyhow::Result<Vec<Order>> {
    let mut letters = Vec::new();
    let mut wait = Duration::from_secs(30);
    loop {
        let batch = dead.receive().max(10).wait(wait).await?;
        if batch.is_empty() {
            return Ok(letters);
        }
        for letter in batch {
            letters.push(serde_json::from_slice(letter.body())?);
            letter.ack().await?;
        }
        wait = Duration::ZERO;
    }
}

async fn run(folder: &Path) -> anyhow::Result<serde_json::Value> {
    let orders = orders()?;
    let lockgate = Lockgate::open(folder).await?;
    let dead = lockgate.queue("dead-orders").keyed().create().await?;
    let queue = lockgate.queue("orders").keyed().dead_letter("dead-orders");
    let queue = queue.attempts_max(ATTEMPTS).create().await?;

    let began = Instant::now();
    for batch in orders.chunks(500) {
        let messages = batch
            .iter()
            .map(message)
            .collect::<anyhow::Result<Vec<_>>>()?;
        for sent in queue.send_all(messages).await? {
            sent?;
        }
    }
    let sent_in = began.elapsed();

    let ledger = Arc::new(Ledger::default());
    let began = Instant::now();
    let start = || {
        let backoff = Backoff {
            first: 20,
            max: 200,
        };
        let worker = Worker::over(queue.clone()).concurrency(16).backoff(backoff);
        worker.start(handler(ledger.clone()))
    };
    let workers = [start()?, start()?];
    ledger.done(orders.len() - 1).await;
    let letters = dead_letters(&dead).await?;
    for worker in workers {
        let ended = worker.drain(Duration::from_secs(10)).await;
        anyhow::ensure!(ended.left == 0, "messages are left: {ended:?}");
    }
    lockgate.shutdown().await;

    let runs = ledger.runs();
    let failures = runs.iter().filter(|run| run.failed).count();
    let violations = Violations::of(&orders, &runs);
    let proven = violations == Violations::default()
        && letters.len() == 1
        && letters.iter().all(is_poisoned)
        && failures == usize::from(ATTEMPTS);
    let customers: BTreeSet<_> = orders.iter().map(|order| &order.customer).collect();
    let slow = |order: &Order| order.partner == SLOW_PARTNER;
    let done_ms = |which: &dyn Fn(&Order) -> bool| {
        let runs = runs.iter().filter(|run| which(&run.order));
        let last = runs.map(|run| run.ended - began).max();
        last.unwrap_or_default().as_millis()
    };
    Ok(json!({
        "proven": proven,
        "orders": orders.len(),
        "customers": customers.len(),
        "handled": runs.len() - failures,
        "violations": violations,
        "failed_attempts": failures,
        "dead_letters": letters.len(),
        "sent_ms": sent_in.as_millis(),
        "slow_partner_orders": orders.iter().filter(|order| slow(order)).count(),
        "slow_partner_done_ms": done_ms(&slow),
        "others_done_ms": done_ms(&|order| !slow(order) && order.customer != POISONED_CUSTOMER),
    }))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let proof = tokio::time::timeout(TIME_MAX, run(folder.path())).await;
    let proof =
        proof.with_context(|| format!("the orders were not done within {TIME_MAX:?}"))??;
    println!("{proof}");
    anyhow::ensure!(proof["proven"] == true, "a promise is broken");
    Ok(())
}
