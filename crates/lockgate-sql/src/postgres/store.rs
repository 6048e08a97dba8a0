//! What a forwarder asks of PostgreSQL.

use std::time::Duration;

use tokio::time::{error::Elapsed, timeout};
use tokio_postgres::{
    Client, Config, Socket,
    tls::{MakeTlsConnect, TlsConnect},
};

use super::{PostgresOutbox, begin, boolean, int8, int8s, outbox::LOCK_PARKING, text, texts};
use crate::{
    Error, StartError,
    forward::{Candidate, Found, Lead, Loaded, Skipped, Step, Store},
    row::Row,
};

/// How long the server may take for a statement or a transaction. A network that loses everything says nothing.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The rows that wait, and whether something is parked before them. It tells the time also where there are none.
const CANDIDATES: &str = "\
SELECT c.now, o.id, o.key, o.size, o.first_sent, o.held
FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) c LEFT JOIN LATERAL (
    SELECT r.id, r.key, (octet_length(r.body) + coalesce(octet_length(r.headers), 0))::bigint AS size, r.first_sent,
        r.key IS NOT NULL AND EXISTS (SELECT FROM lockgate_outbox p
            WHERE p.outbox = r.outbox AND p.key = r.key AND p.state <> 0) AS held
    FROM lockgate_outbox r
    WHERE r.outbox = $1 AND r.state = 0
        AND (r.key IS NULL OR r.key <> ALL ($2)) AND r.id <> ALL ($3)
    ORDER BY r.id LIMIT $4) o ON true
ORDER BY o.id";

/// Somebody may have resolved what was parked since it was looked at.
const HOLD: &str = "\
UPDATE lockgate_outbox o SET state = 2 WHERE o.outbox = $1 AND o.id = ANY ($2) AND o.state = 0
    AND EXISTS (SELECT FROM lockgate_outbox p
        WHERE p.outbox = o.outbox AND p.key = o.key AND p.state <> 0 AND p.state = 1)";

/// What waits behind a parked row that somebody has deleted by hand.
const RELEASE: &str = "\
UPDATE lockgate_outbox o SET state = 0 WHERE o.outbox = $1 AND o.state = 2
    AND o.key IN (SELECT r.key FROM lockgate_outbox r WHERE r.outbox = $1 AND r.id = ANY ($2))
    AND NOT EXISTS (SELECT FROM lockgate_outbox p
        WHERE p.outbox = o.outbox AND p.key = o.key AND p.state <> 0 AND p.state = 1)";

/// The lock of the forwarder. Advisory locks know no schemas, and each may have an outbox of this name.
const LEAD: &str = "\
SELECT pg_try_advisory_lock(hashtextextended('lockgate_outbox forwarder ' || $1 || ' ' || n.nspname, 0))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('lockgate_outbox')";

const CLAIM: &str = "\
UPDATE lockgate_outbox
SET first_sent = coalesce(first_sent, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
WHERE outbox = $1 AND id = ANY ($2) AND state = 0
RETURNING id, key, unique_id, body, headers, message_group, due, time_to_live, content_type, trace_context, level,
    priority";

const PARK: &str = "\
UPDATE lockgate_outbox SET state = 1, reason = $3, first_sent = CASE WHEN $4 THEN first_sent END
WHERE outbox = $1 AND id = $2 AND state = 0";

pub(super) struct PostgresStore<T> {
    outbox: PostgresOutbox,
    config: Config,
    tls: T,
    /// A session of the server, once there is one, and whether it holds the lock of the forwarder.
    session: Option<(Client, bool)>,
}

impl<T> PostgresStore<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    pub(super) fn new(outbox: PostgresOutbox, config: Config, tls: T) -> Self {
        Self {
            outbox,
            config,
            tls,
            session: None,
        }
    }

    async fn connect(&self) -> Result<Client, Error> {
        let mut config = self.config.clone();
        if config.get_application_name().is_none() {
            config.application_name(format!("lockgate outbox {}", self.outbox.name()));
        }
        let (client, connection) = config.connect(self.tls.clone()).await?;
        // It ends with the client, and the client tells of its errors.
        tokio::spawn(connection);
        self.outbox.check_table(&client).await?;
        Ok(client)
    }

    /// A session that does not answer is given up.
    fn answered<A>(&mut self, answer: Result<Result<A, Error>, Elapsed>) -> Result<A, Error> {
        answer.unwrap_or_else(|_elapsed| {
            self.session = None;
            Err(Error::Disconnected)
        })
    }

    /// The session that leads. It is never replaced here: with it the lock would be lost.
    fn leader(&mut self) -> Result<(&mut Client, &str), Error> {
        let (client, _) = self.session.as_mut().ok_or(Error::Disconnected)?;
        Ok((client, self.outbox.name()))
    }
}

impl<T> PostgresStore<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    async fn try_lead(&mut self) -> Result<Lead, Error> {
        if self
            .session
            .as_ref()
            .is_none_or(|(client, _)| client.is_closed())
        {
            self.session = None;
            self.session = Some((self.connect().await?, false));
        }
        let Some((client, leads)) = &mut self.session else {
            return Ok(Lead::Elsewhere);
        };
        if *leads {
            Ok(Lead::Held)
        } else {
            let name = self.outbox.name();
            let row = client.query_typed_opt(LEAD, &[text(&name)]).await?;
            let table = "lockgate_outbox";
            *leads = row.ok_or(Error::NoTable { table })?.get(0);
            Ok(if *leads { Lead::Taken } else { Lead::Elsewhere })
        }
    }

    async fn try_find(&mut self, skipped: Skipped, max: usize) -> Result<Found, Error> {
        let (client, outbox) = self.leader()?;
        let limit = i64::try_from(max).unwrap_or(i64::MAX);
        let parameters = &[
            text(&outbox),
            texts(&skipped.keys),
            int8s(&skipped.ids),
            int8(&limit),
        ];
        let rows = client.query_typed(CANDIDATES, parameters).await?;
        let mut found = Found {
            now: rows.first().map_or(0, |row| row.get(0)),
            candidates: Vec::with_capacity(rows.len()),
            more: rows.len() == max,
        };
        let mut held = Vec::new();
        for row in &rows {
            let Some(id) = row.get::<_, Option<i64>>(1) else {
                continue;
            };
            if row.get(5) {
                held.push(id);
                continue;
            }
            found.candidates.push(Candidate {
                id,
                key: row.get(2),
                size: row.get::<_, i64>(3).unsigned_abs(),
                first_sent: row.get(4),
            });
        }
        if !held.is_empty() {
            let transaction = begin(client).await?;
            transaction
                .query_typed(LOCK_PARKING, &[text(&outbox)])
                .await?;
            let parameters = &[text(&outbox), int8s(&held)];
            let behind = transaction.execute_typed(HOLD, parameters).await?;
            if behind < held.len() as u64 {
                transaction.execute_typed(RELEASE, parameters).await?;
            }
            transaction.commit().await?;
        }
        Ok(found)
    }

    async fn try_step(&mut self, step: &Step) -> Result<Vec<Loaded>, Error> {
        let (client, outbox) = self.leader()?;
        let transaction = begin(client).await?;
        // First of all locks, as others take it.
        if !step.parked.is_empty() {
            transaction
                .query_typed(LOCK_PARKING, &[text(&outbox)])
                .await?;
        }
        for (sql, ids) in [
            (
                // What was sent has its claim; without one it is another row, of a table that was made anew.
                "DELETE FROM lockgate_outbox WHERE outbox = $1 AND id = ANY ($2) AND state = 0 \
                 AND first_sent IS NOT NULL",
                &step.done,
            ),
            (
                "UPDATE lockgate_outbox SET first_sent = NULL WHERE outbox = $1 AND id = ANY ($2) AND state = 0",
                &step.unclaimed,
            ),
        ] {
            if !ids.is_empty() {
                let parameters = &[text(&outbox), int8s(ids)];
                transaction.execute_typed(sql, parameters).await?;
            }
        }
        for parked in &step.parked {
            // No text of PostgreSQL has this character.
            let reason = parked.reason.replace('\0', " ");
            let parameters = &[
                text(&outbox),
                int8(&parked.id),
                text(&reason),
                boolean(&parked.in_doubt),
            ];
            transaction.execute_typed(PARK, parameters).await?;
        }
        let mut loaded = Vec::with_capacity(step.claims.len());
        if !step.claims.is_empty() {
            let parameters = &[text(&outbox), int8s(&step.claims)];
            for row in transaction.query_typed(CLAIM, parameters).await? {
                let read = Row {
                    key: row.get(1),
                    unique_id: row.get(2),
                    body: row.get(3),
                    headers: row.get(4),
                    message_group: row.get(5),
                    due: row.get(6),
                    time_to_live: row.get(7),
                    content_type: row.get(8),
                    trace_context: row.get(9),
                    level: row.get(10),
                    priority: row.get(11),
                };
                loaded.push((row.get(0), read.into_message()));
            }
        }
        transaction.commit().await?;
        Ok(loaded)
    }
}

impl<T> Store for PostgresStore<T>
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    async fn start(&mut self) -> Result<(), StartError> {
        let client = timeout(ANSWER_MAX, self.connect()).await;
        self.session = Some((client.unwrap_or(Err(Error::Disconnected))?, false));
        Ok(())
    }

    async fn lead(&mut self) -> Result<Lead, Error> {
        let answer = timeout(ANSWER_MAX, self.try_lead()).await;
        self.answered(answer)
    }

    async fn find(&mut self, skipped: Skipped, max: usize) -> Result<Found, Error> {
        let answer = timeout(ANSWER_MAX, self.try_find(skipped, max)).await;
        self.answered(answer)
    }

    async fn step(&mut self, step: &Step) -> Result<Vec<Loaded>, Error> {
        let answer = timeout(ANSWER_MAX, self.try_step(step)).await;
        self.answered(answer)
    }
}
