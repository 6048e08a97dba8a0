-- The tables of a ledger, in a schema of their own.

-- One row: the head. Whoever appends locks it, so appends come one after the other.
CREATE TABLE IF NOT EXISTS {ledger}.head (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    sequence_id  bigint NOT NULL,
    first_id     bigint NOT NULL,
    epoch        bigint NOT NULL,
    time_ms      bigint NOT NULL,
    hash         bytea,
    is_sealed    boolean NOT NULL,
    retention_ms bigint,
    -- How many events a partition of the table of events has, and the last event that one is there for; null: it has none.
    partition_events bigint,
    partitioned_to   bigint
);

CREATE TABLE IF NOT EXISTS {ledger}.events (
    sequence_id bigint PRIMARY KEY,
    previous_id bigint NOT NULL,
    unique_id   text COLLATE "C",
    time_ms     bigint NOT NULL,
    epoch       bigint NOT NULL,
    hash        bytea,
    payload     bytea NOT NULL
) {partitions};

-- Every unique id that there ever was.
CREATE TABLE IF NOT EXISTS {ledger}.unique_ids (
    unique_id   text COLLATE "C" PRIMARY KEY,
    sequence_id bigint NOT NULL
);

-- Inputs that are not settled yet.
CREATE TABLE IF NOT EXISTS {ledger}.inputs (
    input       text COLLATE "C" PRIMARY KEY,
    sequence_id bigint NOT NULL
);

-- How far each reader is.
CREATE TABLE IF NOT EXISTS {ledger}.readers (
    reader      text COLLATE "C" PRIMARY KEY,
    sequence_id bigint NOT NULL
);

CREATE TABLE IF NOT EXISTS {ledger}.format (version integer NOT NULL);
