//! What an engine tells of itself on a page of metrics. The names are documented in `docs/metrics.md`; a test of the server compares
//! the two.

use std::time::Duration;

use lockgate_core::{SpaceState, WallTime, limits::Limit};
use lockgate_machine::{
    COUNTERS, Counter, CounterKind, ExchangeCounts, ExchangeDescription, ExchangesPage,
    LedgerDescription, LedgersPage, ListExchanges, ListLedgers, ListSchedules, Query, QueueCounts,
    QueueLimited, ScheduleCounts, ScheduleDescription, SchedulesPage,
};
use lockgate_metrics::Page;
use tokio::time::timeout;

use crate::{Engine, EngineMetrics};

impl Engine {
    /// Adds all that this engine tells of itself to a page of metrics: its counters, and figures of its queues, ledgers, exchanges and
    /// schedules, of at most `names_max` each. If the engine does not answer within a second each, theirs are missing, and the page says
    /// so.
    ///
    /// # Cancel safety
    /// If the future is dropped, the page has some of the figures.
    pub async fn write_metrics(&self, page: &mut Page, names_max: usize) {
        engine(page, &self.metrics());
        queues(page, self, names_max).await;
        ledgers(page, self, names_max).await;
        exchanges(page, self, names_max).await;
        schedules(page, self, names_max).await;
    }
}

fn engine(page: &mut Page, engine: &EngineMetrics) {
    for (name, help, value) in [
        (
            "lockgate_engine_groups_total",
            "Groups of records appended to the log, each by one write.",
            engine.groups,
        ),
        (
            "lockgate_engine_records_total",
            "Records appended to the log.",
            engine.records,
        ),
        (
            "lockgate_engine_bytes_total",
            "Bytes appended to the log, without its own headers.",
            engine.bytes,
        ),
        ("lockgate_engine_syncs_total", "Syncs done.", engine.syncs),
        (
            "lockgate_engine_commands_total",
            "Commands decided.",
            engine.commands,
        ),
        (
            "lockgate_engine_queries_total",
            "Queries answered.",
            engine.queries,
        ),
        (
            "lockgate_engine_rejected_total",
            "Commands rejected, by the rules of a queue or for a full log.",
            engine.rejected,
        ),
        (
            "lockgate_engine_overloaded_total",
            "Requests refused for load before they did anything.",
            engine.overloaded,
        ),
        (
            "lockgate_engine_unknown_outcomes_total",
            "Requests of which nobody knows whether they happened.",
            engine.unknown,
        ),
        (
            "lockgate_engine_damaged_total",
            "Payloads that could not be read any more.",
            engine.damaged,
        ),
        (
            "lockgate_engine_given_back_total",
            "Leases given back because their client was gone.",
            engine.given_back,
        ),
        (
            "lockgate_records_stale_total",
            "Commands that named a lease of a record that had ended.",
            engine.kept.stale,
        ),
    ] {
        page.counter(name, help).value(value);
    }
    page.counter(
        "lockgate_engine_answered_total",
        "Commands answered positively, by the durability level the answer waited for.",
    )
    .sample(&[("level", "memory")], engine.answered.memory)
    .sample(&[("level", "process")], engine.answered.process)
    .sample(&[("level", "disk")], engine.answered.disk);
    for (name, help, value) in [
        (
            "lockgate_log_snapshots_total",
            "Snapshots of the state completed.",
            engine.maintenance.snapshots,
        ),
        (
            "lockgate_log_snapshots_failed_total",
            "Snapshots of the state given up.",
            engine.maintenance.snapshots_failed,
        ),
        (
            "lockgate_log_compacted_bytes_total",
            "Bytes of messages moved forward in the log, so that space comes back.",
            engine.maintenance.compacted_bytes,
        ),
        (
            "lockgate_log_ranges_released_total",
            "Ranges of the log given back.",
            engine.maintenance.ranges_released,
        ),
        (
            "lockgate_log_records_lost_total",
            "Records that were durable once and that the start found unreadable.",
            engine.records_lost,
        ),
    ] {
        page.counter(name, help).value(value);
    }
    let space = engine.maintenance.space;
    for (name, help, value) in [
        (
            "lockgate_log_used_bytes",
            "Bytes the log takes, with its snapshots and what it keeps ready.",
            space.used_bytes,
        ),
        (
            "lockgate_log_ready_bytes",
            "Of these, bytes ready for new records.",
            space.ready_bytes,
        ),
        (
            "lockgate_log_free_bytes",
            "Bytes of storage that nobody has taken.",
            space.free_bytes,
        ),
        (
            "lockgate_log_live_bytes",
            "Bytes of the log that messages live in.",
            engine.maintenance.live_bytes,
        ),
        (
            "lockgate_log_ranges",
            "Ranges the log consists of.",
            engine.maintenance.ranges,
        ),
        (
            "lockgate_engine_group_records_max",
            "Records of the largest group since the start.",
            engine.group_records_max,
        ),
        (
            "lockgate_engine_inbox_requests",
            "Requests waiting to be decided.",
            engine.inbox,
        ),
        (
            "lockgate_engine_inbox_bytes",
            "Payload bytes waiting to be decided.",
            engine.inbox_bytes,
        ),
        (
            "lockgate_engine_held_answers",
            "Answers waiting for a sync.",
            engine.held,
        ),
        (
            "lockgate_engine_waiters",
            "Receives waiting for a message, and watches of records for a change.",
            engine.waiters,
        ),
        (
            "lockgate_records",
            "Records that are kept.",
            engine.kept.records,
        ),
        (
            "lockgate_records_bytes",
            "What records and states of keys take of the bytes that they may have together.",
            engine.kept.bytes + engine.kept.state_bytes,
        ),
    ] {
        page.gauge(name, help).value(value);
    }
    let index = engine.index.unwrap_or_default();
    page.gauge(
        "lockgate_index_entries",
        "Unique ids in the index on disk, about.",
    )
    .value(index.entries);
    page.gauge(
        "lockgate_index_disk_bytes",
        "Bytes of the index of unique ids.",
    )
    .value(index.disk_bytes);
    page.counter(
        "lockgate_index_merges_failed_total",
        "Merges of the index of unique ids that failed.",
    )
    .value(index.merges_failed);
    let state = page.gauge(
        "lockgate_log_space_state",
        "How much room there is: 1 for the state it is in, else 0.",
    );
    for known in [SpaceState::Normal, SpaceState::Low, SpaceState::Full] {
        let label = [("state", known.name())];
        state.sample(&label, space.state == known);
    }
    page.gauge(
        "lockgate_engine_sync_age_seconds",
        "How long somebody has waited for a sync without one coming to its end.",
    )
    .value(engine.sync_age.as_secs_f64());
    page.gauge(
        "lockgate_engine_inbox_age_seconds",
        "How long the oldest request waits to be decided.",
    )
    .value(engine.inbox_age.as_secs_f64());
    for (name, help, spans) in [
        (
            "lockgate_engine_append_seconds",
            "How long the log took to write a group of records.",
            engine.log_spans.appends,
        ),
        (
            "lockgate_engine_sync_seconds",
            "How long syncs took.",
            engine.log_spans.syncs,
        ),
        (
            "lockgate_delivery_age_seconds",
            "How long messages had been there, or due, when they were leased.",
            engine.spans.ages,
        ),
        (
            "lockgate_lease_seconds",
            "How long leases lasted that were ended by an ack, a nack or a reject.",
            engine.spans.leases,
        ),
    ] {
        page.histogram(name, help).value(&spans);
    }
    page.gauge(
        "lockgate_engine_sync_seconds_max",
        "The longest sync since the start.",
    )
    .value(engine.sync_time_max.as_secs_f64());
}

/// A metric of a queue that is one field: its name, its help text, and the field.
type OfField<T> = (&'static str, &'static str, fn(&T) -> u64);

const QUEUE_GAUGES: &[OfField<QueueCounts>] = &[
    (
        "lockgate_queue_ready_messages",
        "Messages waiting for a lease, also behind a message of the same key.",
        |counts| counts.ready,
    ),
    (
        "lockgate_queue_in_flight_messages",
        "Messages leased, or nacked and waiting for their delay.",
        |counts| counts.in_flight,
    ),
    (
        "lockgate_queue_delayed_messages",
        "Messages not yet due.",
        |counts| counts.delayed,
    ),
    (
        "lockgate_queue_bytes",
        "Bytes of bodies and headers.",
        |counts| counts.bytes,
    ),
    (
        "lockgate_queue_keys",
        "Keys with at least one message.",
        |counts| counts.keys,
    ),
    (
        "lockgate_queue_parked_keys",
        "Keys frozen until an operator acts.",
        |counts| counts.parked_keys,
    ),
    (
        "lockgate_queue_limited_keys",
        "Keys whose next message only a limit of theirs holds.",
        |counts| counts.limited_keys,
    ),
    (
        "lockgate_queue_owing_keys",
        "Keys that owe something under a limit of theirs or are held, with messages or without.",
        |counts| counts.owing_keys,
    ),
    (
        "lockgate_queue_unique_ids",
        "Unique ids in memory; the others are in the index on disk.",
        |counts| counts.unique_ids,
    ),
    (
        "lockgate_queue_states",
        "Keys that have a state.",
        |counts| counts.states,
    ),
    (
        "lockgate_queue_state_bytes",
        "Bytes of the states of keys: key, value, and 256 bytes for each.",
        |counts| counts.state_bytes,
    ),
    (
        "lockgate_queue_producers",
        "Producers that the queue knows.",
        |counts| counts.producers,
    ),
    (
        "lockgate_queue_producer_openings",
        "Openings of producers' spools of which the queue knows the records it has accepted.",
        |counts| counts.producer_openings,
    ),
];

/// The limits that a queue can have.
const LIMITS: [Limit; 5] = [
    Limit::Held,
    Limit::Concurrency,
    Limit::Gap,
    Limit::Rate,
    Limit::OwingKeys,
];

/// How long the page waits for the queues' figures. They need no sync, so an engine that takes
/// longer hangs, and the rest of the page helps to find out why.
const QUEUES_WAIT: Duration = Duration::from_secs(1);

async fn queues(page: &mut Page, engine: &Engine, limit: usize) {
    let known = engine.directory().len();
    page.gauge("lockgate_queues", "Queues there are.")
        .value(known);
    let overview = timeout(QUEUES_WAIT, engine.overview(limit)).await;
    let overview = overview.ok().flatten();
    page.gauge(
        "lockgate_queues_missing",
        "Whether the figures of all queues are missing below, for the engine did not answer in time: 1, else 0.",
    )
    .value(overview.is_none());
    let queues = overview.unwrap_or_default();
    page.gauge(
        "lockgate_queues_omitted",
        "Queues that do not appear below, for there are more than the page shows, or their figures are missing.",
    )
    .value(known.saturating_sub(queues.len()));
    for &(name, help, value) in QUEUE_GAUGES {
        let family = page.gauge(name, help);
        for queue in &queues {
            family.sample(&[("queue", queue.name.as_str())], value(&queue.counts));
        }
    }
    let paused = page.gauge(
        "lockgate_queue_paused",
        "Whether the queue gives no leases, because somebody paused it: 1, else 0.",
    );
    for queue in &queues {
        paused.sample(&[("queue", queue.name.as_str())], queue.paused);
    }
    let limited = page.gauge(
        "lockgate_queue_limited",
        "Whether a limit of the queue as a whole holds all its messages, by limit: 1 for the one that lets go last, else 0.",
    );
    for queue in &queues {
        let holds = queue.limited.map(|limited| limited.limit);
        for limit in LIMITS {
            let labels = [("queue", queue.name.as_str()), ("limit", limit.name())];
            limited.sample(&labels, holds == Some(limit));
        }
    }
    let limited = page.gauge(
        "lockgate_queue_limited_seconds",
        "How much longer a limit of the queue as a whole holds all its messages, if that is known, by limit.",
    );
    for queue in &queues {
        if let Some(QueueLimited {
            limit,
            remaining: Some(remaining),
        }) = queue.limited
        {
            let labels = [("queue", queue.name.as_str()), ("limit", limit.name())];
            limited.sample(&labels, seconds(remaining));
        }
    }
    let now = engine.now().wall;
    let age = page.gauge(
        "lockgate_queue_oldest_age_seconds",
        "How long ago the oldest message was accepted; 0 for an empty queue.",
    );
    for queue in &queues {
        let oldest = queue.counts.oldest.unwrap_or(WallTime::MAX);
        age.sample(
            &[("queue", queue.name.as_str())],
            seconds(now.since(oldest)),
        );
    }
    for counter in counters(CounterKind::Total) {
        let family = page.counter(metric_of(counter), counter.about());
        for queue in &queues {
            let labels = [("queue", queue.name.as_str())];
            family.sample(&labels, counter.get(&queue.totals));
        }
    }
    let dropped = page.counter(
        "lockgate_queue_dropped_total",
        "Messages dropped, by reason.",
    );
    for queue in &queues {
        for counter in counters(CounterKind::Dropped) {
            let labels = [("queue", queue.name.as_str()), ("reason", counter.name)];
            dropped.sample(&labels, counter.get(&queue.totals));
        }
    }
}

/// The figures of a ledger that are numbers.
type LedgerGauge = (&'static str, &'static str, fn(&LedgerDescription) -> u64);

const LEDGER_GAUGES: &[LedgerGauge] = &[
    (
        "lockgate_ledger_head",
        "Sequence id of the last event; 0 if there was none.",
        |ledger| ledger.head.sequence_id.0,
    ),
    (
        "lockgate_ledger_first",
        "Sequence id of the first event that is kept.",
        |ledger| ledger.head.first_id.0,
    ),
    (
        "lockgate_ledger_epoch",
        "Latest term of a writer that the ledger has seen.",
        |ledger| ledger.head.epoch.0,
    ),
    (
        "lockgate_ledger_sealed",
        "Whether nothing can be appended any more: 1, else 0.",
        |ledger| u64::from(ledger.head.is_sealed),
    ),
    (
        "lockgate_ledger_unique_ids",
        "Unique ids in memory; the others are in the index on disk.",
        |ledger| ledger.unique_ids,
    ),
    (
        "lockgate_ledger_inputs",
        "Inputs remembered until they are settled.",
        |ledger| ledger.inputs,
    ),
    (
        "lockgate_ledger_appends",
        "Appends whose events are kept.",
        |ledger| ledger.appends,
    ),
    (
        "lockgate_ledger_bytes",
        "Bytes of the log that the kept events take, approximately.",
        |ledger| ledger.bytes,
    ),
];

/// `limit`: of the ledgers that are shown by name, and of the readers that are.
async fn ledgers(page: &mut Page, engine: &Engine, limit: usize) {
    let known = timeout(QUEUES_WAIT, first_ledgers(engine, limit)).await;
    let known = known.ok().flatten();
    page.gauge(
        "lockgate_ledgers_missing",
        "Whether the figures of all ledgers are missing below, for the engine did not answer in time: 1, else 0.",
    )
    .value(known.is_none());
    let (ledgers, count) = known.unwrap_or_default();
    page.gauge("lockgate_ledgers", "Ledgers there are.")
        .value(count);
    page.gauge(
        "lockgate_ledgers_omitted",
        "Ledgers that do not appear below, for there are more than the page shows.",
    )
    .value(count - ledgers.len());
    for &(name, help, value) in LEDGER_GAUGES {
        let family = page.gauge(name, help);
        for ledger in &ledgers {
            family.sample(&[("ledger", ledger.name.as_str())], value(ledger));
        }
    }
    let readers = || {
        let of = |ledger| -> (&LedgerDescription, _) { (ledger, ledger.readers.iter()) };
        let each = ledgers.iter().map(of);
        each.flat_map(|(ledger, readers)| readers.map(move |reader| (ledger, reader)))
    };
    let lag = page.gauge(
        "lockgate_ledger_reader_lag_events",
        "Events behind the last one that the reader is done with.",
    );
    for (ledger, reader) in readers().take(limit) {
        let labels = [
            ("ledger", ledger.name.as_str()),
            ("reader", reader.reader.as_str()),
        ];
        let head = ledger.head.sequence_id.0;
        lag.sample(&labels, head.saturating_sub(reader.sequence_id.0));
    }
    page.gauge(
        "lockgate_ledger_readers_omitted",
        "Readers of the ledgers above that do not appear, for there are more than the page shows.",
    )
    .value(readers().skip(limit).count());
}

/// The first ledgers by name, and how many there are.
async fn first_ledgers(engine: &Engine, limit: usize) -> Option<(Vec<LedgerDescription>, usize)> {
    let (mut first, mut count) = (Vec::new(), 0);
    let mut list = ListLedgers {
        prefix: String::new(),
        after: None,
        limit: Query::LIMIT_MAX,
    };
    loop {
        let LedgersPage { ledgers, next } = engine.query(list.clone()).await.ok()?;
        count += ledgers.len();
        let room = limit - first.len();
        first.extend(ledgers.into_iter().take(room));
        match next {
            Some(next) => list.after = Some(next),
            None => return Some((first, count)),
        }
    }
}

const EXCHANGE_COUNTERS: &[OfField<ExchangeCounts>] = &[
    (
        "lockgate_exchange_published_total",
        "Messages that were accepted.",
        |counts| counts.published,
    ),
    (
        "lockgate_exchange_copies_total",
        "Messages that queues got of them.",
        |counts| counts.copies,
    ),
    (
        "lockgate_exchange_unroutable_total",
        "Of the accepted messages, those for which the exchange found no queue: its alternate got them, or they were dropped.",
        |counts| counts.unroutable,
    ),
    (
        "lockgate_exchange_dropped_total",
        "Of the accepted messages, those that were dropped, for there was no queue.",
        |counts| counts.dropped,
    ),
    (
        "lockgate_exchange_skipped_total",
        "Copies that were left out, for the queue was full and its binding says so.",
        |counts| counts.skipped,
    ),
    (
        "lockgate_exchange_refused_total",
        "Messages that were refused, for there was no queue. Since the start.",
        |counts| counts.refused,
    ),
];

/// `limit`: of the exchanges that are shown by name.
async fn exchanges(page: &mut Page, engine: &Engine, limit: usize) {
    let known = timeout(QUEUES_WAIT, first_exchanges(engine, limit)).await;
    let known = known.ok().flatten();
    page.gauge(
        "lockgate_exchanges_missing",
        "Whether the figures of all exchanges are missing below, for the engine did not answer in time: 1, else 0.",
    )
    .value(known.is_none());
    let (exchanges, count) = known.unwrap_or_default();
    page.gauge("lockgate_exchanges", "Exchanges there are.")
        .value(count);
    page.gauge(
        "lockgate_exchanges_omitted",
        "Exchanges that do not appear below, for there are more than the page shows.",
    )
    .value(count - exchanges.len());
    let bindings = page.gauge("lockgate_exchange_bindings", "Bindings of the exchange.");
    for exchange in &exchanges {
        bindings.sample(&[("exchange", exchange.name.as_str())], exchange.bindings);
    }
    for &(name, help, value) in EXCHANGE_COUNTERS {
        let family = page.counter(name, help);
        for exchange in &exchanges {
            let labels = [("exchange", exchange.name.as_str())];
            family.sample(&labels, value(&exchange.counts));
        }
    }
}

/// The first exchanges by name, and how many there are.
async fn first_exchanges(
    engine: &Engine,
    limit: usize,
) -> Option<(Vec<ExchangeDescription>, usize)> {
    let (mut first, mut count) = (Vec::new(), 0);
    let mut list = ListExchanges {
        prefix: String::new(),
        after: None,
        limit: Query::LIMIT_MAX,
    };
    loop {
        let ExchangesPage { exchanges, next } = engine.query(list.clone()).await.ok()?;
        count += exchanges.len();
        let room = limit - first.len();
        first.extend(exchanges.into_iter().take(room));
        match next {
            Some(next) => list.after = Some(next),
            None => return Some((first, count)),
        }
    }
}

const SCHEDULE_COUNTERS: &[OfField<ScheduleCounts>] = &[
    (
        "lockgate_schedule_fired_total",
        "Firings of the schedule at its times.",
        |counts| counts.fired,
    ),
    (
        "lockgate_schedule_by_hand_total",
        "Firings by hand.",
        |counts| counts.by_hand,
    ),
    (
        "lockgate_schedule_missed_total",
        "Times that were missed and did not fire.",
        |counts| counts.missed,
    ),
    (
        "lockgate_schedule_overlapped_total",
        "Times that did not fire because the last message was still there.",
        |counts| counts.overlapped,
    ),
    (
        "lockgate_schedule_replaced_total",
        "Messages that were cancelled for the next one.",
        |counts| counts.replaced,
    ),
];

/// `limit`: of the schedules that are shown by name.
async fn schedules(page: &mut Page, engine: &Engine, limit: usize) {
    let known = timeout(QUEUES_WAIT, first_schedules(engine, limit)).await;
    let known = known.ok().flatten();
    page.gauge(
        "lockgate_schedules_missing",
        "Whether the figures of all schedules are missing below, for the engine did not answer in time: 1, else 0.",
    )
    .value(known.is_none());
    let (schedules, count) = known.unwrap_or_default();
    page.gauge("lockgate_schedules", "Schedules there are.")
        .value(count);
    page.gauge(
        "lockgate_schedules_omitted",
        "Schedules that do not appear below, for there are more than the page shows.",
    )
    .value(count - schedules.len());
    let now = engine.now().wall;
    let late = page.gauge(
        "lockgate_schedule_late_seconds",
        "For how long the next time of the schedule has passed: 0 if it has not, or if the schedule is paused.",
    );
    for schedule in &schedules {
        let next = schedule.next.filter(|_| !schedule.paused);
        let passed = next.map_or(0, |next| now.since(next));
        late.sample(&[("schedule", schedule.name.as_str())], seconds(passed));
    }
    for &(name, help, value) in SCHEDULE_COUNTERS {
        let family = page.counter(name, help);
        for schedule in &schedules {
            let labels = [("schedule", schedule.name.as_str())];
            family.sample(&labels, value(&schedule.counts));
        }
    }
}

/// The first schedules by name, and how many there are.
async fn first_schedules(
    engine: &Engine,
    limit: usize,
) -> Option<(Vec<ScheduleDescription>, usize)> {
    let (mut first, mut count) = (Vec::new(), 0);
    let mut list = ListSchedules {
        prefix: String::new(),
        after: None,
        limit: Query::LIMIT_MAX,
    };
    loop {
        let SchedulesPage { schedules, next } = engine.query(list.clone()).await.ok()?;
        count += schedules.len();
        let room = limit - first.len();
        first.extend(schedules.into_iter().take(room));
        match next {
            Some(next) => list.after = Some(next),
            None => return Some((first, count)),
        }
    }
}

fn counters(kind: CounterKind) -> impl Iterator<Item = &'static Counter> {
    COUNTERS.iter().filter(move |counter| counter.kind == kind)
}

/// The metric's name of a queue's counter.
fn metric_of(counter: &Counter) -> String {
    format!("lockgate_queue_{}_total", counter.name)
}

/// Prometheus wants times in seconds.
fn seconds(milliseconds: u64) -> f64 {
    // Exact up to 2^53 ms, which is 285,000 years.
    #[expect(clippy::cast_precision_loss)]
    let milliseconds = milliseconds as f64;
    milliseconds / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `UPDATE_SNAPSHOTS` set, the rows are put there instead.
    #[test]
    fn the_page_of_metrics_has_a_row_for_each_counter_of_a_queue() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let page = std::fs::read_to_string(path).unwrap();
        let row = |name: &str, about: &str| format!("| `{name}` | counter | {about} |");
        let mut rows: Vec<String> = counters(CounterKind::Total)
            .map(|counter| row(&metric_of(counter), counter.about()))
            .collect();
        let reasons: Vec<String> = counters(CounterKind::Dropped)
            .map(|counter| format!("`{}`", counter.name))
            .collect();
        let about = format!("Messages dropped. Label `reason`: {}.", reasons.join(", "));
        rows.push(row("lockgate_queue_dropped_total", &about));
        let is_row = |line: &&str| {
            line.starts_with("| `lockgate_queue_") && line.contains("_total` | counter |")
        };
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            let first = page.lines().find(is_row).expect("it has such rows");
            let renewed = page.lines().filter(|line| !is_row(line) || *line == first);
            let renewed = renewed.map(|line| match line == first {
                true => rows.join("\n"),
                false => line.to_owned(),
            });
            let renewed: Vec<_> = renewed.collect();
            std::fs::write(path, renewed.join("\n") + "\n").unwrap();
            return;
        }
        let found: Vec<_> = page.lines().filter(is_row).collect();
        assert_eq!(found, rows, "renew it with UPDATE_SNAPSHOTS=1");
    }
}
