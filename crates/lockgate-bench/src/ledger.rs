//! `ledger.*`: appends to ledgers in batches, each awaited before the next as a sequencer does, beside the same bytes written
//! without a ledger; and how fast a follower applies them.
//!
//! The floor of the embedded ledger is the log alone: one record for each batch, appended and synced. That of a database is
//! the same payloads in one insert of many rows and one transaction, into a table with a number and the payload.

use std::{
    convert::Infallible,
    future::pending,
    iter::zip,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use lockgate_core::{
    Epoch, LedgerName, Log, LogSource as _, Position, Purpose, RecordGroup, UniqueId,
    ledger::{Append, Chain, Event, Ledger, LedgerOptions, NewEvent},
};
use lockgate_engine::{Engine, EngineLedger};
use lockgate_log::{FolderDisk, LocalLog, LocalLogOptions};
use lockgate_machine::CreateLedger;
use lockgate_mysql::MysqlLedger;
use lockgate_postgres::PostgresLedger;
use lockgate_sequencer::{Apply, Follower};
use mysql_async::{Conn, Value, prelude::Queryable as _};
use serde_json::json;
use tokio_postgres::{Client, NoTls};

use crate::{
    Course, Courses, Setup,
    election::{Served, start_by},
    load::{as_f64, start_engine},
    payload::Payloads,
    queue::params,
    report::{Params, Report, Round, histogram},
    wanted,
};

/// Bytes of an event and events of a batch, unless they are given.
const SIZE: usize = 200;
const BATCH: u16 = 1_000;

/// How often figure and floor alternate in a round.
const SLICES: u32 = 4;

/// Events that a follower applies, with `--scale 1`.
const REPLAYED: u32 = 10_000_000;

const RAW: &str = "the log alone, a record for each batch";
const ROWS: &str = "one insert of the same payloads, in a transaction";

fn shape(setup: &Setup) -> (Payloads, Params) {
    let payloads = match setup.args.size {
        Some(_) => setup.payloads.clone(),
        None => setup.payloads.with_size(SIZE),
    };
    let params = Params {
        size: payloads.size(),
        keys: 0,
        ..params(setup, setup.args.batch.unwrap_or(BATCH), 1)
    };
    (payloads, params)
}

/// Draws batches of events.
struct Batches {
    payloads: Payloads,
    batch: u16,
    /// The number of the next unique id, if events have one.
    unique: Option<u64>,
}

impl Batches {
    fn next(&mut self) -> anyhow::Result<Append> {
        let mut events = Vec::with_capacity(self.batch.into());
        for _ in 0..self.batch {
            let unique_id = match &mut self.unique {
                Some(next) => {
                    *next += 1;
                    Some(UniqueId::new(&format!("transfer-{next:016}"))?)
                }
                None => None,
            };
            events.push(NewEvent {
                unique_id,
                input: None,
                payload: self.payloads.next(),
            });
        }
        Ok(Append {
            epoch: Epoch(1),
            head: None,
            events,
            settled: Vec::new(),
        })
    }

    /// Appends for that long. Returns how many events, in which time.
    async fn append(
        &mut self,
        ledger: &impl Ledger,
        time: Duration,
    ) -> anyhow::Result<(u64, Duration)> {
        let (began, mut events) = (Instant::now(), 0);
        while events == 0 || began.elapsed() < time {
            ledger.append(self.next()?).await?;
            events += u64::from(self.batch);
        }
        Ok((events, began.elapsed()))
    }
}

/// A log without a machine.
struct RawLog {
    log: Box<dyn Log>,
    group: RecordGroup,
}

impl RawLog {
    fn new(folder: &Path) -> anyhow::Result<Self> {
        let disk = FolderDisk::open(folder)?;
        let mut log = LocalLog::open(Arc::new(disk), LocalLogOptions::default())?;
        log.claim()?;
        log.recover(Position(0), Epoch(0), &mut |_, _| {})?;
        log.apply_recovery()?;
        log.begin_epoch(Epoch(1))?;
        let gap = log.capabilities().gap;
        Ok(Self {
            log: Box::new(log),
            group: RecordGroup::new(gap),
        })
    }

    fn append(&mut self, batches: &mut Batches, time: Duration) -> anyhow::Result<(u64, Duration)> {
        let (began, mut events) = (Instant::now(), 0);
        while events == 0 || began.elapsed() < time {
            let append = batches.next()?;
            let bytes = self.group.push(|buffer| {
                for event in &append.events {
                    buffer.extend_from_slice(&event.payload);
                }
            });
            self.log.reserve(bytes as u64, 1, Purpose::Growth)?;
            let tail = self.log.tail();
            self.log.append(Epoch(1), tail, &mut self.group)?;
            self.log.progress().sync()?;
            self.group.clear(16 << 20);
            events += u64::from(batches.batch);
        }
        Ok((events, began.elapsed()))
    }
}

/// What was done and its floor, over the slices of a round.
#[derive(Default)]
struct Sums {
    done: (u64, Duration),
    floor: (u64, Duration),
}

impl Sums {
    fn report(
        &self,
        figure: &'static str,
        params: &Params,
        floor_is: &'static str,
        report: &mut Report,
    ) {
        let rate = |(events, time): (u64, Duration)| as_f64(events) / time.as_secs_f64();
        let round = Round {
            rate: Some(rate(self.done)),
            floor: Some(rate(self.floor)),
            syncs_per_message: None,
        };
        report.add(figure, params, Some(floor_is), round, &histogram());
    }
}

fn add(sum: &mut (u64, Duration), (events, time): (u64, Duration)) {
    sum.0 += events;
    sum.1 += time;
}

struct Embedded {
    figure: &'static str,
    engine: Engine,
    ledger: EngineLedger,
    batches: Batches,
    raw: RawLog,
    params: Params,
}

pub(crate) fn open_embedded(setup: &Setup) -> anyhow::Result<Courses> {
    let (payloads, params) = shape(setup);
    let figures = [("ledger.append", None), ("ledger.append_unique", Some(0))];
    let courses = figures.into_iter().map(|(figure, unique)| {
        let engine = start_engine(&setup.folder(figure))?;
        let ledger = make(setup, &engine, "bench")?;
        Ok(Box::new(Embedded {
            figure,
            raw: RawLog::new(&setup.folder(&format!("{figure}-floor")))?,
            engine,
            ledger,
            batches: Batches {
                payloads: payloads.clone(),
                batch: params.batch,
                unique,
            },
            params: params.clone(),
        }) as Box<dyn Course>)
    });
    courses.collect()
}

fn make(setup: &Setup, engine: &Engine, name: &str) -> anyhow::Result<EngineLedger> {
    let name = LedgerName::new(name)?;
    let create = CreateLedger {
        name: name.clone(),
        options: LedgerOptions::default(),
    };
    setup.runtime.block_on(engine.submit(create))?;
    Ok(engine.ledger(name))
}

impl Course for Embedded {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let slice = time / (2 * SLICES);
        let mut sums = Sums::default();
        for _ in 0..SLICES {
            let appended = self.batches.append(&self.ledger, slice);
            add(&mut sums.done, setup.runtime.block_on(appended)?);
            add(&mut sums.floor, self.raw.append(&mut self.batches, slice)?);
        }
        sums.report(self.figure, &self.params, RAW, report);
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}

/// What a follower does to events that cost nothing.
struct Counts(u64);

impl Apply for Counts {
    type Error = Infallible;

    async fn apply(&mut self, events: Vec<Event>, _: Chain) -> Result<(), Infallible> {
        self.0 += events.len() as u64;
        Ok(())
    }
}

struct Replay {
    engine: Engine,
    ledger: EngineLedger,
    events: u64,
    params: Params,
}

pub(crate) fn open_replay(setup: &Setup) -> anyhow::Result<Courses> {
    let (payloads, mut params) = shape(setup);
    let engine = start_engine(&setup.folder("ledger-replay"))?;
    let ledger = make(setup, &engine, "bench")?;
    let mut batches = Batches {
        payloads,
        batch: params.batch,
        unique: None,
    };
    let wanted = setup.scaled(REPLAYED).max(u64::from(params.batch));
    let mut events = 0;
    setup.runtime.block_on(async {
        while events < wanted {
            ledger.append(batches.next()?).await?;
            events += u64::from(batches.batch);
        }
        ledger.seal(Epoch(1)).await?;
        anyhow::Ok(())
    })?;
    params.more.insert("events", json!(events));
    Ok(vec![Box::new(Replay {
        engine,
        ledger,
        events,
        params,
    })])
}

impl Course for Replay {
    fn round(&mut self, setup: &Setup, _: Duration, report: &mut Report) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut counts = Counts(0);
        let follower = Follower::new(self.ledger.clone());
        setup
            .runtime
            .block_on(follower.run(&mut counts, pending()))?;
        anyhow::ensure!(
            counts.0 == self.events,
            "{} of {} events",
            counts.0,
            self.events
        );
        let round = Round {
            rate: Some(as_f64(counts.0) / began.elapsed().as_secs_f64()),
            floor: None,
            syncs_per_message: None,
        };
        report.add("ledger.replay", &self.params, None, round, &histogram());
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        setup.runtime.block_on(self.engine.shutdown());
    }
}

/// A database, which a script of the project starts for its course.
struct Database<L> {
    /// Of events without unique ids, and with them.
    figures: [&'static str; 2],
    served: Served,
    ledger: L,
    plain: Plain,
    batches: [Batches; 2],
    next: i64,
    params: Params,
}

/// A connection that inserts rows into a table of its own.
enum Plain {
    Postgres(Client),
    Mysql(Conn),
}

impl Plain {
    async fn insert(&mut self, numbers: Vec<i64>, payloads: Vec<&[u8]>) -> anyhow::Result<()> {
        match self {
            Self::Postgres(client) => {
                let insert =
                    "INSERT INTO lockgate_bench SELECT * FROM unnest($1::bigint[], $2::bytea[])";
                client.execute(insert, &[&numbers, &payloads]).await?;
            }
            Self::Mysql(connection) => {
                let rows = vec!["(?, ?)"; numbers.len()].join(", ");
                let row = |(number, payload): (i64, &[u8])| [number.into(), payload.into()];
                let values: Vec<Value> = zip(numbers, payloads).flat_map(row).collect();
                let insert = format!("INSERT INTO lockgate_bench VALUES {rows}");
                connection.exec_drop(insert, values).await?;
            }
        }
        Ok(())
    }
}

/// The server of that script, if a figure is named: a run of all figures installs and starts nothing.
fn served(
    setup: &Setup,
    figures: [&'static str; 2],
    (script, variable): (&str, &str),
) -> anyhow::Result<Option<Served>> {
    let names = &setup.args.names;
    if names.is_empty() || !figures.iter().any(|figure| wanted(names, figure)) {
        return Ok(None);
    }
    let served = start_by(script, variable)?;
    if served.is_none() {
        eprintln!("{}: not measured, its server is not there", figures[0]);
    }
    Ok(served)
}

fn database<L: Ledger>(
    setup: &Setup,
    figures: [&'static str; 2],
    served: Served,
    (ledger, plain): (L, Plain),
) -> Courses {
    let (payloads, params) = shape(setup);
    let batches = [None, Some(0)].map(|unique| Batches {
        payloads: payloads.clone(),
        batch: params.batch,
        unique,
    });
    vec![Box::new(Database {
        figures,
        served,
        ledger,
        plain,
        batches,
        next: 0,
        params,
    })]
}

pub(crate) fn open_postgres(setup: &Setup) -> anyhow::Result<Courses> {
    let figures = ["ledger.postgres", "ledger.postgres_unique"];
    let Some(served) = served(setup, figures, ("services", "LOCKGATE_TEST_POSTGRES"))? else {
        return Ok(Vec::new());
    };
    let opened = setup.runtime.block_on(async {
        let ledger = PostgresLedger::connect(&served.url).await?;
        let (plain, connection) = tokio_postgres::connect(&served.url, NoTls).await?;
        tokio::spawn(connection);
        let table =
            "CREATE TABLE lockgate_bench (number bigint PRIMARY KEY, payload bytea NOT NULL)";
        plain.batch_execute(table).await?;
        anyhow::Ok((ledger, Plain::Postgres(plain)))
    })?;
    Ok(database(setup, figures, served, opened))
}

pub(crate) fn open_mysql(setup: &Setup) -> anyhow::Result<Courses> {
    let figures = ["ledger.mysql", "ledger.mysql_unique"];
    let Some(served) = served(setup, figures, ("mariadb", "LOCKGATE_TEST_MYSQL"))? else {
        return Ok(Vec::new());
    };
    let opened = setup.runtime.block_on(async {
        let ledger = MysqlLedger::connect(&served.url).await?;
        let mut plain = Conn::from_url(&served.url).await?;
        let table =
            "CREATE TABLE lockgate_bench (number bigint PRIMARY KEY, payload mediumblob NOT NULL)";
        plain.query_drop(table).await?;
        anyhow::Ok((ledger, Plain::Mysql(plain)))
    })?;
    Ok(database(setup, figures, served, opened))
}

impl<L> Database<L> {
    async fn insert(&mut self, time: Duration) -> anyhow::Result<(u64, Duration)> {
        let (began, mut events) = (Instant::now(), 0);
        while events == 0 || began.elapsed() < time {
            let append = self.batches[0].next()?;
            let numbers: Vec<i64> = (self.next..).take(append.events.len()).collect();
            let payloads = append.events.iter().map(|event| &*event.payload);
            self.next += numbers.len() as i64;
            self.plain.insert(numbers, payloads.collect()).await?;
            events += append.events.len() as u64;
        }
        Ok((events, began.elapsed()))
    }
}

impl<L: Ledger> Course for Database<L> {
    fn round(&mut self, setup: &Setup, time: Duration, report: &mut Report) -> anyhow::Result<()> {
        let slice = time / (3 * SLICES);
        let mut of_figures = [Sums::default(), Sums::default()];
        for _ in 0..SLICES {
            let inserted = setup.runtime.block_on(self.insert(slice));
            let inserted = inserted.context("inserting rows")?;
            for (sums, batches) in zip(&mut of_figures, &mut self.batches) {
                let appended = batches.append(&self.ledger, slice);
                add(&mut sums.done, setup.runtime.block_on(appended)?);
                add(&mut sums.floor, inserted);
            }
        }
        for (figure, sums) in zip(self.figures, of_figures) {
            sums.report(figure, &self.params, ROWS, report);
        }
        Ok(())
    }

    fn close(self: Box<Self>, setup: &Setup) {
        let Self {
            figures,
            served,
            ledger,
            plain,
            ..
        } = *self;
        // Their connections belong to the runtime.
        setup.runtime.block_on(async move { drop((ledger, plain)) });
        if let Err(error) = served.stop(setup) {
            eprintln!("{}: {error:#}", figures[0]);
        }
    }
}
