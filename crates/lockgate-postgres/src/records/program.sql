-- Tables and functions of records, in the schema {store}. All of it may be run again, also over the functions of an earlier
-- program while that is in use: they serve its calls as before.
--
-- Whoever changes a record locks the row of {store}.store first, which puts all changes in one order, and then the record.
-- Who extends a lease locks the record only. Each function is one statement, so that its locks last as long as it runs here,
-- whatever becomes of the client.

CREATE TABLE IF NOT EXISTS {store}.store (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    -- The highest revision that was given out.
    revision bigint NOT NULL DEFAULT 0,
    -- The highest version of a record that was deleted.
    deleted_version bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

INSERT INTO {store}.store DEFAULT VALUES ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS {store}.record (
    name text COLLATE "C" PRIMARY KEY,
    value bytea NOT NULL,
    version bigint NOT NULL,
    revision bigint NOT NULL,
    -- Milliseconds since 1970.
    written bigint NOT NULL,
    -- The lease: all of these, or none. It ends at so many microseconds since 1970.
    holder text COLLATE "C",
    epoch bigint,
    ends bigint,
    delete_at_end boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

CREATE INDEX IF NOT EXISTS record_ends ON {store}.record (ends) WHERE ends IS NOT NULL;

CREATE OR REPLACE FUNCTION {store}.now() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint
$$;

-- The number of the next change. It is at least the time, so it rises over a backup and a failover too.
CREATE OR REPLACE FUNCTION {store}.next_revision() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    UPDATE {store}.store SET revision = greatest({store}.now(), revision + 1) RETURNING revision
$$;

-- Ends a lease that is there. The caller has locked the store.
CREATE OR REPLACE FUNCTION {store}.end_lease(of text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    change bigint := {store}.next_revision();
    gone bigint;
BEGIN
    DELETE FROM {store}.record WHERE name = of AND delete_at_end RETURNING version INTO gone;
    IF FOUND THEN
        UPDATE {store}.store SET deleted_version = greatest(deleted_version, gone);
    ELSE
        UPDATE {store}.record SET holder = NULL, epoch = NULL, ends = NULL, revision = change WHERE name = of;
    END IF;
    PERFORM pg_catalog.pg_notify('{store}', of);
END
$$;

-- Ends leases whose time is over, the oldest first. One that somebody is extending is left to whoever comes next.
CREATE OR REPLACE FUNCTION {store}.end_leases(most integer) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    over_at bigint;
    found_name text;
BEGIN
    PERFORM FROM {store}.store FOR UPDATE;
    over_at := {store}.now();
    FOR found_name IN
        SELECT name FROM {store}.record WHERE ends <= over_at ORDER BY ends LIMIT most FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM {store}.end_lease(found_name);
    END LOOP;
END
$$;

-- The record, locked, with no lease that has ended. The columns are null if there is none.
CREATE OR REPLACE FUNCTION {store}.take(of text) RETURNS {store}.record LANGUAGE plpgsql AS $$
DECLARE
    it {store}.record;
BEGIN
    PERFORM {store}.end_leases(8);
    SELECT * INTO it FROM {store}.record WHERE name = of FOR UPDATE;
    IF it.ends <= {store}.now() THEN
        PERFORM {store}.end_lease(of);
        SELECT * INTO it FROM {store}.record WHERE name = of;
    END IF;
    RETURN it;
END
$$;

-- Why a write of the record is refused; null: it is not. The lease is looked at first: who has lost it must learn that.
CREATE OR REPLACE FUNCTION {store}.refusal(it {store}.record, replaces bigint, by_epoch bigint) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN by_epoch IS NOT NULL AND it.epoch IS DISTINCT FROM by_epoch THEN 'lost'
        WHEN by_epoch IS NULL AND it.holder IS NOT NULL THEN 'held'
        WHEN it.version IS DISTINCT FROM replaces THEN 'conflict'
    END
$$;

-- The highest epoch that a guard has seen; null if it is not there. A value that is none has seen all. Locks the store, and the
-- guard.
CREATE OR REPLACE FUNCTION {store}.seen_by(guard text) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
    it {store}.record := {store}.take(guard);
    said text := pg_catalog.encode(it.value, 'escape');
    every CONSTANT numeric := 18446744073709551615;
BEGIN
    RETURN CASE
        WHEN said ~ '^(0|[1-9][0-9]{0,19})$' THEN least(said::numeric, every)
        WHEN it.name IS NOT NULL THEN every
    END;
END
$$;

-- What a change under a fence is told if its guard has seen a later term; null: it may be made. Each change looks at this before
-- it takes its record: later, the record's lease might end here. Guard and term are null without a fence.
CREATE OR REPLACE FUNCTION {store}.fenced(guard text, term text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    seen numeric;
BEGIN
    IF guard IS NOT NULL THEN
        seen := {store}.seen_by(guard);
    END IF;
    RETURN CASE WHEN seen > term::numeric THEN 'fenced ' || seen END;
END
$$;

-- Raises the guard of the fence behind a change that was made, whoever has its lease.
CREATE OR REPLACE FUNCTION {store}.raise_guard(guard text, term text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF guard IS NULL OR {store}.seen_by(guard) >= term::numeric THEN
        RETURN;
    END IF;
    INSERT INTO {store}.record AS it (name, value, version, revision, written)
        VALUES (guard, pg_catalog.convert_to(term, 'UTF8'), (SELECT deleted_version + 1 FROM {store}.store),
            {store}.next_revision(), {store}.now() / 1000)
        ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value, version = it.version + 1,
            revision = EXCLUDED.revision, written = EXCLUDED.written;
    PERFORM pg_catalog.pg_notify('{store}', guard);
END
$$;

-- Those of an earlier program, which knew no fences. The ones below serve its calls too.
DROP FUNCTION IF EXISTS {store}.put(text, bytea, bigint, bigint);
DROP FUNCTION IF EXISTS {store}.delete(text, bigint, bigint);
DROP FUNCTION IF EXISTS {store}.lease(text, text, bigint, boolean);
DROP FUNCTION IF EXISTS {store}.extend(text, bigint, bigint);
DROP FUNCTION IF EXISTS {store}.release(text, bigint);

CREATE OR REPLACE FUNCTION {store}.put(of text, new_value bytea, replaces bigint, by_epoch bigint,
    guard text DEFAULT NULL, term text DEFAULT NULL,
    OUT outcome text, OUT version bigint, OUT revision bigint, OUT holder text, OUT remaining bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    refused text := {store}.fenced(guard, term);
    it {store}.record := {store}.take(of);
BEGIN
    outcome := coalesce(refused, {store}.refusal(it, replaces, by_epoch));
    version := it.version;
    holder := it.holder;
    remaining := it.ends - {store}.now();
    IF outcome IS NOT NULL THEN
        RETURN;
    END IF;
    outcome := 'done';
    revision := {store}.next_revision();
    IF it.name IS NULL THEN
        version := (SELECT deleted_version + 1 FROM {store}.store);
        INSERT INTO {store}.record (name, value, version, revision, written)
            VALUES (of, new_value, put.version, put.revision, {store}.now() / 1000);
    ELSE
        version := it.version + 1;
        UPDATE {store}.record SET value = new_value, version = put.version, revision = put.revision,
            written = {store}.now() / 1000 WHERE name = of;
    END IF;
    PERFORM pg_catalog.pg_notify('{store}', of);
    PERFORM {store}.raise_guard(guard, term);
END
$$;

CREATE OR REPLACE FUNCTION {store}.delete(of text, replaces bigint, by_epoch bigint,
    guard text DEFAULT NULL, term text DEFAULT NULL,
    OUT outcome text, OUT version bigint, OUT revision bigint, OUT holder text, OUT remaining bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    refused text := {store}.fenced(guard, term);
    it {store}.record := {store}.take(of);
BEGIN
    outcome := coalesce(refused, {store}.refusal(it, replaces, by_epoch));
    version := it.version;
    holder := it.holder;
    remaining := it.ends - {store}.now();
    IF outcome IS NOT NULL THEN
        RETURN;
    END IF;
    outcome := 'done';
    revision := {store}.next_revision();
    DELETE FROM {store}.record WHERE name = of;
    UPDATE {store}.store SET deleted_version = greatest(deleted_version, it.version);
    PERFORM pg_catalog.pg_notify('{store}', of);
    PERFORM {store}.raise_guard(guard, term);
END
$$;

CREATE OR REPLACE FUNCTION {store}.lease(of text, by_holder text, span bigint, delete_it boolean,
    guard text DEFAULT NULL, term text DEFAULT NULL,
    OUT outcome text, OUT version bigint, OUT revision bigint, OUT holder text, OUT remaining bigint,
    OUT value bytea, OUT written bigint, OUT epoch bigint, OUT delete_at_end boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    refused text := {store}.fenced(guard, term);
    it {store}.record := {store}.take(of);
    new_ends bigint := {store}.now() + span;
BEGIN
    IF refused IS NOT NULL THEN
        outcome := refused;
        RETURN;
    END IF;
    IF it.holder <> by_holder THEN
        outcome := 'held';
        holder := it.holder;
        remaining := it.ends - {store}.now();
        RETURN;
    END IF;
    IF it.name IS NULL THEN
        INSERT INTO {store}.record (name, value, version, revision, written)
            VALUES (of, '', (SELECT deleted_version + 1 FROM {store}.store), 0, {store}.now() / 1000);
    END IF;
    IF it.holder IS NULL THEN
        revision := {store}.next_revision();
        UPDATE {store}.record SET holder = by_holder, epoch = lease.revision, ends = new_ends,
            delete_at_end = delete_it, revision = lease.revision WHERE name = of;
    ELSE
        UPDATE {store}.record SET ends = new_ends, delete_at_end = delete_it WHERE name = of;
    END IF;
    IF it.holder IS NULL OR new_ends < it.ends THEN
        -- Who watches waits for the end of the lease at most.
        PERFORM pg_catalog.pg_notify('{store}', of);
    END IF;
    SELECT * INTO it FROM {store}.record WHERE name = of;
    outcome := 'done';
    version := it.version;
    revision := it.revision;
    holder := it.holder;
    remaining := it.ends - {store}.now();
    value := it.value;
    written := it.written;
    epoch := it.epoch;
    delete_at_end := it.delete_at_end;
    PERFORM {store}.raise_guard(guard, term);
END
$$;

CREATE OR REPLACE FUNCTION {store}.extend(of text, by_epoch bigint, span bigint,
    guard text DEFAULT NULL, term text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    refused text := {store}.fenced(guard, term);
    it {store}.record;
    at bigint;
BEGIN
    IF refused IS NOT NULL THEN
        RETURN refused;
    END IF;
    SELECT * INTO it FROM {store}.record WHERE name = of FOR UPDATE;
    at := {store}.now();
    IF it.epoch IS DISTINCT FROM by_epoch OR it.ends <= at THEN
        RETURN 'lost';
    END IF;
    UPDATE {store}.record SET ends = at + span WHERE name = of;
    IF at + span < it.ends THEN
        PERFORM pg_catalog.pg_notify('{store}', of);
    END IF;
    PERFORM {store}.raise_guard(guard, term);
    RETURN 'done';
END
$$;

CREATE OR REPLACE FUNCTION {store}.release(of text, by_epoch bigint,
    guard text DEFAULT NULL, term text DEFAULT NULL) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    refused text := {store}.fenced(guard, term);
    it {store}.record := {store}.take(of);
BEGIN
    IF refused IS NOT NULL THEN
        RETURN refused;
    END IF;
    IF it.epoch IS DISTINCT FROM by_epoch THEN
        RETURN 'lost';
    END IF;
    PERFORM {store}.end_lease(of);
    PERFORM {store}.raise_guard(guard, term);
    RETURN 'done';
END
$$;
