-- The tables of a ledger. The statements are apart by lines of two dashes; all of them may be run again.

-- One row: the head. Whoever appends locks it, so appends come one after the other.
CREATE TABLE IF NOT EXISTS {ledger}_head (
    only_row     TINYINT PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    sequence_id  BIGINT NOT NULL,
    first_id     BIGINT NOT NULL,
    epoch        BIGINT NOT NULL,
    time_ms      BIGINT NOT NULL,
    hash         VARBINARY(32),
    is_sealed    BOOLEAN NOT NULL,
    retention_ms BIGINT,
    -- How many events a partition of the table of events has; null: it has no partitions.
    partition_events BIGINT,
    -- How often the row was changed.
    revision     BIGINT NOT NULL
) ENGINE = InnoDB
--
CREATE TABLE IF NOT EXISTS {ledger}_events (
    sequence_id BIGINT PRIMARY KEY,
    previous_id BIGINT NOT NULL,
    unique_id   VARBINARY(1024),
    time_ms     BIGINT NOT NULL,
    epoch       BIGINT NOT NULL,
    hash        VARBINARY(32),
    payload     MEDIUMBLOB NOT NULL,
    -- What a page is measured by without reading the payloads that it has no room for.
    bytes       INT GENERATED ALWAYS AS (OCTET_LENGTH(payload)) STORED
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC {partitions}
--
-- Every unique id that there ever was.
CREATE TABLE IF NOT EXISTS {ledger}_unique_ids (
    unique_id   VARBINARY(1024) PRIMARY KEY,
    sequence_id BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
--
-- Inputs that are not settled yet.
CREATE TABLE IF NOT EXISTS {ledger}_inputs (
    input       VARBINARY(256) PRIMARY KEY,
    sequence_id BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
--
-- How far each reader is.
CREATE TABLE IF NOT EXISTS {ledger}_readers (
    reader      VARBINARY(128) PRIMARY KEY,
    sequence_id BIGINT NOT NULL
) ENGINE = InnoDB
--
-- One row, which a reader changes so that the server flushes what the reader has seen.
CREATE TABLE IF NOT EXISTS {ledger}_flushes (
    only_row TINYINT PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    number   BIGINT NOT NULL
) ENGINE = InnoDB
--
INSERT IGNORE INTO {ledger}_flushes VALUES (1, 0)
--
CREATE TABLE IF NOT EXISTS {ledger}_version (version INT PRIMARY KEY) ENGINE = InnoDB
