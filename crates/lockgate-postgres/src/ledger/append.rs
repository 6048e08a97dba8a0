//! One append, in a transaction.

use std::{collections::HashMap, sync::Arc};

use lockgate_core::{
    InputId, UniqueId, WallTime,
    ledger::{Append, Appended, Decision, LedgerError, LedgerHead, SequenceId},
    with_sources,
};
use lockgate_records::{
    ledger::{HeadRow, failed, natural, not_found, place},
    number,
};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::{
    GenericClient, Row,
    error::SqlState,
    types::{ToSql, Type},
};

use super::{
    DELETED_AT_ONCE, get,
    store::{Store, partition},
};
use crate::asked::{Connection, Fault, Link, Parameter, int8};

pub(super) const HEAD: &str = "SELECT * FROM {ledger}.head";

/// The head, and events behind a place, up to a number of them and of bytes.
pub(super) const PAGE: &str = "\
SELECT head.*, page.* FROM {ledger}.head LEFT JOIN LATERAL (
    SELECT * FROM (
        SELECT sequence_id AS event_id, previous_id, unique_id, time_ms AS event_time_ms, epoch AS event_epoch,
            hash AS event_hash, payload,
            sum(octet_length(payload)) OVER (ORDER BY sequence_id) - octet_length(payload) AS bytes_before
        FROM {ledger}.events
        WHERE sequence_id > $1 AND sequence_id >= head.first_id AND sequence_id <= head.sequence_id
        ORDER BY sequence_id LIMIT $2) AS found
    WHERE bytes_before < $3) AS page ON true
ORDER BY event_id";

const LOCK: &str = "\
SELECT *, (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now_ms FROM {ledger}.head FOR UPDATE";

/// Where the events with those ids are.
const LOOK_UP: &str = "\
SELECT true AS is_unique_id, unique_id AS id, sequence_id FROM {ledger}.unique_ids WHERE unique_id = ANY ($1)
UNION ALL
SELECT false, input, sequence_id FROM {ledger}.inputs WHERE input = ANY ($2)";

const ADD_EVENTS: &str = "\
INSERT INTO {ledger}.events (sequence_id, previous_id, unique_id, time_ms, epoch, hash, payload)
SELECT $1 + at, $1 + at - 1, unique_id, $2, $3, hash, payload
FROM unnest($4::text[], $5::bytea[], $6::bytea[]) WITH ORDINALITY AS new (unique_id, hash, payload, at)";

const ADD_UNIQUE_IDS: &str = "\
INSERT INTO {ledger}.unique_ids (unique_id, sequence_id) SELECT * FROM unnest($1::text[], $2::bigint[])";

const ADD_INPUTS: &str = "\
INSERT INTO {ledger}.inputs (input, sequence_id) SELECT * FROM unnest($1::text[], $2::bigint[])";

const FORGET_INPUTS: &str = "DELETE FROM {ledger}.inputs WHERE input = ANY ($1)";

const MOVE_HEAD: &str = "\
UPDATE {ledger}.head SET sequence_id = $1, epoch = $2, time_ms = $3, hash = $4, first_id = $5, partitioned_to = $7
WHERE sequence_id = $6 AND epoch <= $2";

/// Deletes events that are older than the retention; times never go back, so they are the first ones. Nothing more is read while
/// the first one is younger, and of large ones fewer go at once: an append waits for it.
const LET_GO: &str = "\
WITH first AS (
    SELECT sequence_id FROM (
        SELECT sequence_id, time_ms, sum(octet_length(payload)) OVER (ORDER BY sequence_id) - octet_length(payload) AS before
        FROM (SELECT sequence_id, time_ms, payload FROM {ledger}.events
              WHERE sequence_id >= $1
                AND (SELECT time_ms FROM {ledger}.events WHERE sequence_id >= $1 ORDER BY sequence_id LIMIT 1) < $3
              ORDER BY sequence_id LIMIT $2) AS kept) AS first
    WHERE time_ms < $3 AND before < 33554432)
DELETE FROM {ledger}.events USING first WHERE events.sequence_id = first.sequence_id";

/// How many those are, of a ledger in which they go with their partition.
const COUNT_OLD: &str = "\
SELECT count(*) AS old FROM (
    SELECT time_ms FROM {ledger}.events
    WHERE sequence_id >= $1
      AND (SELECT time_ms FROM {ledger}.events WHERE sequence_id >= $1 ORDER BY sequence_id LIMIT 1) < $3
    ORDER BY sequence_id LIMIT $2) AS first
WHERE time_ms < $3";

const TELL: &str = "SELECT pg_notify('{ledger}', '')";

/// An append that was made.
pub(super) struct Made {
    pub(super) appended: Appended,
    /// How many events a partition has, if one has no event more that is kept.
    pub(super) drops: Option<i64>,
}

/// Ends the connection of an append that is given up, and so its transaction.
struct Open<'c>(Option<&'c Connection>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.0 {
            connection.end();
        }
    }
}

/// Appends over that connection, which nobody else uses meanwhile.
pub(super) async fn over(link: &Arc<Link<Store>>, append: Append) -> Result<Made, LedgerError> {
    let connection = link.connection().await.map_err(failed)?;
    let client = &connection.client;
    let mut open = Open(Some(&connection));
    let deadline = Instant::now() + link.timeout();
    let within = async {
        let begun = client.batch_execute("BEGIN").await;
        begun.map_err(|error| LedgerError::Unavailable {
            why: with_sources(&error),
        })?;
        within(client, &link.purpose().schema, append).await
    };
    let Ok(done) = timeout_at(deadline, within).await else {
        // Nothing is committed, and what is open ends with the connection.
        drop(open);
        link.forget(&connection).await;
        let why = format!("no answer within {} ms", link.timeout().as_millis());
        return Err(LedgerError::Unavailable { why });
    };
    let ended = match &done {
        Ok(_) => "COMMIT",
        Err(_) => "ROLLBACK",
    };
    connection.take_warning();
    let ended = timeout_at(deadline, client.simple_query(ended)).await;
    let ended = ended.map_err(|_late| "no answer to the commit".to_owned());
    let lost = match (ended, &done) {
        // A wait for standbys that somebody has cancelled is told in a warning only.
        (Ok(Ok(_)), Ok(_)) if let Some(why) = connection.take_warning() => {
            LedgerError::Unknown { why }
        }
        (Ok(Ok(_)), _) => {
            open.0 = None;
            return done;
        }
        (Ok(Err(error)), Ok(_)) => match Fault::of(&error) {
            Fault::Lost(why) => LedgerError::Unknown { why },
            Fault::Denied(why) => LedgerError::Denied { why },
            Fault::Refused(why) | Fault::Undone(why) => LedgerError::Unavailable { why },
        },
        (Err(why), Ok(_)) => LedgerError::Unknown { why },
        // Whatever is open ends with the connection.
        (_, Err(_)) => {
            drop(open);
            link.forget(&connection).await;
            return done;
        }
    };
    drop(open);
    link.forget(&connection).await;
    Err(lost)
}

/// Appends in the transaction that the client is in.
pub(super) async fn within(
    client: &impl GenericClient,
    schema: &str,
    mut append: Append,
) -> Result<Made, LedgerError> {
    let on = On { client, schema };
    let (unique_ids, inputs) = append.ids();
    let unique_ids: Vec<_> = unique_ids.into_iter().map(UniqueId::as_str).collect();
    let inputs: Vec<_> = inputs.into_iter().map(InputId::as_str).collect();
    // Both are on their way at once, and the second statement sees what there is when the first one has its lock.
    let ids = [texts(&unique_ids), texts(&inputs)];
    let (locked, found) = tokio::join!(on.ask(LOCK, &[]), on.ask(LOOK_UP, &ids));
    let locked = locked?;
    let Some(locked) = locked.first() else {
        return Err(not_found(schema));
    };
    let before = head(schema, Some(locked))?;
    let now = WallTime(natural("now_ms", get(locked, "now_ms")?)?);
    let (mut by_unique_id, mut by_input) = (HashMap::new(), HashMap::new());
    for row in &found? {
        let (id, at) = (
            get::<&str>(row, "id")?.to_owned(),
            place("sequence_id", get(row, "sequence_id")?)?,
        );
        match get(row, "is_unique_id")? {
            true => by_unique_id.insert(id, at),
            false => by_input.insert(id, at),
        };
    }
    let settled = std::mem::take(&mut append.settled);
    let decision = append.decide(
        &before,
        now,
        |id| by_unique_id.get(id.as_str()).copied(),
        |input| by_input.get(input.as_str()).copied(),
    )?;
    let part = get::<Option<i64>>(locked, "partition_events")?;
    let gone = match get::<Option<i64>>(locked, "retention_ms")? {
        Some(retention) => {
            let (first, last) = (number(before.first_id.0), number(now.0) - retention);
            let of = [int8(&first), int8(&DELETED_AT_ONCE), int8(&last)];
            match part {
                None => on.run(LET_GO, &of).await?,
                Some(_) => match on.ask(COUNT_OLD, &of).await?.first() {
                    Some(row) => natural("old", get(row, "old")?)?,
                    None => 0,
                },
            }
        }
        None => 0,
    };
    let mut decision = decision;
    let after = &mut decision.appended.head;
    after.first_id = SequenceId(after.first_id.0 + gone);
    let (last, first) = (number(after.sequence_id.0), number(after.first_id.0));
    let mut partitioned_to = get::<Option<i64>>(locked, "partitioned_to")?;
    if let (Some(of), Some(to)) = (part, partitioned_to) {
        partitioned_to = Some(on.partition(of, to, last).await?);
    }
    let drops = part.filter(|of| (first - 1) / of > (number(before.first_id.0) - 1) / of);
    let appended = on.write(&before, decision, &settled, partitioned_to);
    Ok(Made {
        appended: appended.await?,
        drops,
    })
}

/// Why a statement of an append was not done.
fn refused(error: &tokio_postgres::Error, schema: &str) -> LedgerError {
    let why = with_sources(error);
    match error.code().map(SqlState::code) {
        // No such table, or schema.
        Some("42P01" | "3F000") => not_found(schema),
        // No right.
        Some("42501") => LedgerError::Denied { why },
        // Rows or columns that are not those that a ledger has: somebody else has changed them, or restored a part.
        Some(code) if code.starts_with("23") || code.starts_with("42") => {
            LedgerError::Damaged { why }
        }
        _ => LedgerError::Unavailable { why },
    }
}

struct On<'c, C> {
    client: &'c C,
    schema: &'c str,
}

impl<C: GenericClient> On<'_, C> {
    async fn ask(&self, sql: &str, of: &[Parameter<'_>]) -> Result<Vec<Row>, LedgerError> {
        let sql = sql.replace("{ledger}", self.schema);
        let asked = self.client.query_typed(&sql, of).await;
        asked.map_err(|error| refused(&error, self.schema))
    }

    /// Runs a statement; how many rows it has changed.
    async fn run(&self, sql: &str, of: &[Parameter<'_>]) -> Result<u64, LedgerError> {
        let sql = sql.replace("{ledger}", self.schema);
        let run = self.client.execute_typed(&sql, of).await;
        run.map_err(|error| refused(&error, self.schema))
    }

    /// As [`run`](Self::run), if there is something to do.
    async fn run_if(
        &self,
        is_due: bool,
        sql: &str,
        of: &[Parameter<'_>],
    ) -> Result<(), LedgerError> {
        match is_due {
            true => self.run(sql, of).await.map(drop),
            false => Ok(()),
        }
    }

    /// Makes partitions of so many events, up to one behind the head, if the last event that one is there for is less than half of one
    /// behind it. Before one is needed, that is left to a later append if somebody changes the table's form. Up to where there
    /// are some.
    async fn partition(&self, of: i64, to: i64, head: i64) -> Result<i64, LedgerError> {
        if to >= head.saturating_add(of / 2) {
            return Ok(to);
        }
        let mut ahead = to;
        let lock = "LOCK TABLE {ledger}.events IN SHARE UPDATE EXCLUSIVE MODE";
        let mut sql = match to >= head {
            true => format!("SAVEPOINT lockgate_ahead; {lock} NOWAIT;"),
            false => format!("SAVEPOINT lockgate_ahead; {lock};"),
        };
        while ahead < head.saturating_add(of) {
            sql += &partition(ahead / of, of);
            ahead += of;
        }
        sql += "RELEASE SAVEPOINT lockgate_ahead";
        let sql = sql.replace("{ledger}", self.schema);
        let Err(error) = self.client.batch_execute(&sql).await else {
            return Ok(ahead);
        };
        let back = self
            .client
            .batch_execute("ROLLBACK TO SAVEPOINT lockgate_ahead");
        match back.await {
            Ok(()) if to >= head => Ok(to),
            _ => Err(LedgerError::Unavailable {
                why: format!("making a partition: {}", with_sources(&error)),
            }),
        }
    }

    /// Writes what was decided: all statements are on their way at once.
    async fn write(
        &self,
        before: &LedgerHead,
        decision: Decision,
        settled: &[InputId],
        partitioned_to: Option<i64>,
    ) -> Result<Appended, LedgerError> {
        let Decision {
            new,
            inputs,
            appended,
        } = decision;
        let after = &appended.head;
        let (last, now) = (number(after.sequence_id.0), number(after.time.0));
        let (base, epoch) = (number(before.sequence_id.0), number(after.epoch.0));
        let first = number(after.first_id.0);
        let last_hash = after.hash.map(|hash| hash.0);
        let last_hash = last_hash.as_ref().map(|hash| &hash[..]);
        let ids: Vec<_> = new
            .iter()
            .map(|event| event.unique_id.as_ref().map(UniqueId::as_str))
            .collect();
        let hashes: Vec<_> = new
            .iter()
            .map(|event| event.hash.as_ref().map(|hash| &hash.0[..]))
            .collect();
        let payloads: Vec<_> = new.iter().map(|event| &event.payload[..]).collect();
        let (unique_ids, unique_at): (Vec<_>, Vec<_>) = new
            .iter()
            .filter_map(|event| {
                let id = event.unique_id.as_ref()?;
                Some((id.as_str(), number(event.sequence_id.0)))
            })
            .unzip();
        let (inputs, inputs_at): (Vec<_>, Vec<_>) = inputs
            .iter()
            .map(|(input, at)| (input.as_str(), number(at.0)))
            .unzip();
        let settled: Vec<_> = settled.iter().map(InputId::as_str).collect();
        let is_due = !new.is_empty();
        let events: [Parameter<'_>; 6] = [
            int8(&base),
            int8(&now),
            int8(&epoch),
            texts(&ids),
            bytes(&hashes),
            bytes(&payloads),
        ];
        let unique = [texts(&unique_ids), int8s(&unique_at)];
        let of_inputs = [texts(&inputs), int8s(&inputs_at)];
        let forget = [texts(&settled)];
        let head: [Parameter<'_>; 7] = [
            int8(&last),
            int8(&epoch),
            int8(&now),
            (&last_hash as &(dyn ToSql + Sync), Type::BYTEA),
            int8(&first),
            int8(&base),
            int8(&partitioned_to),
        ];
        let (added, unique, remembered, forgotten, moved, told) = tokio::join!(
            self.run_if(is_due, ADD_EVENTS, &events),
            self.run_if(!unique_ids.is_empty(), ADD_UNIQUE_IDS, &unique),
            self.run_if(!inputs.is_empty(), ADD_INPUTS, &of_inputs),
            self.run_if(!settled.is_empty(), FORGET_INPUTS, &forget),
            self.run(MOVE_HEAD, &head),
            self.run_if(is_due, TELL, &[]),
        );
        // What failed first is why all behind it failed.
        added.and(unique).and(remembered).and(forgotten)?;
        if moved? != 1 {
            return Err(LedgerError::Damaged {
                why: "the head has moved while it was locked".to_owned(),
            });
        }
        told?;
        Ok(appended)
    }
}

fn texts<'v>(values: &'v (dyn ToSql + Sync)) -> Parameter<'v> {
    (values, Type::TEXT_ARRAY)
}

fn bytes<'v>(values: &'v (dyn ToSql + Sync)) -> Parameter<'v> {
    (values, Type::BYTEA_ARRAY)
}

fn int8s(values: &Vec<i64>) -> Parameter<'_> {
    (values, Type::INT8_ARRAY)
}

/// The head as a row shows it.
pub(super) fn head(schema: &str, row: Option<&Row>) -> Result<LedgerHead, LedgerError> {
    let Some(row) = row else {
        return Err(not_found(schema));
    };
    let row = HeadRow {
        sequence_id: get(row, "sequence_id")?,
        first_id: get(row, "first_id")?,
        epoch: get(row, "epoch")?,
        time_ms: get(row, "time_ms")?,
        hash: get(row, "hash")?,
        is_sealed: get(row, "is_sealed")?,
    };
    row.into_head()
}
