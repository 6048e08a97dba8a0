-- Tables and procedures of records. The statements are apart by lines of two dashes; all of it may be run again.
--
-- Whoever changes a record locks the row of {store}_store first, which puts all changes in one order, and then the record.
-- Who extends a lease locks the record only. Each procedure is one transaction, so that its locks last as long as it runs
-- here, whatever becomes of the client. {now} is the time in microseconds since 1970.

CREATE TABLE IF NOT EXISTS {store}_store (
    id TINYINT PRIMARY KEY,
    -- The highest revision that was given out.
    revision BIGINT NOT NULL,
    -- The highest version of a record that was deleted.
    deleted_version BIGINT NOT NULL
) ENGINE = InnoDB
--
INSERT IGNORE INTO {store}_store VALUES (1, 0, 0)
--
CREATE TABLE IF NOT EXISTS {store}_record (
    name VARBINARY(512) PRIMARY KEY,
    value MEDIUMBLOB NOT NULL,
    version BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    -- Milliseconds since 1970.
    written BIGINT NOT NULL,
    -- The lease: all of these, or none. It ends at so many microseconds since 1970.
    holder VARBINARY(128),
    epoch BIGINT,
    ends BIGINT,
    delete_at_end BOOLEAN NOT NULL DEFAULT FALSE,
    KEY {store}_ends (ends)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
--
DROP PROCEDURE IF EXISTS {store}_next_revision
--
-- The number of the next change. It is at least the time, so it rises over a backup and a failover too.
CREATE PROCEDURE {store}_next_revision(OUT next BIGINT) SQL SECURITY INVOKER
BEGIN
    UPDATE {store}_store SET revision = GREATEST({now}, revision + 1) WHERE id = 1;
    SELECT revision INTO next FROM {store}_store WHERE id = 1;
END
--
DROP PROCEDURE IF EXISTS {store}_end_lease
--
-- Ends a lease that is there. The caller has locked the store and the record.
CREATE PROCEDURE {store}_end_lease(IN of_name VARBINARY(512)) SQL SECURITY INVOKER
BEGIN
    DECLARE next, of_version BIGINT;
    DECLARE is_deleted BOOLEAN;
    CALL {store}_next_revision(next);
    SELECT version, delete_at_end INTO of_version, is_deleted FROM {store}_record WHERE name = of_name FOR UPDATE;
    IF is_deleted THEN
        DELETE FROM {store}_record WHERE name = of_name;
        UPDATE {store}_store SET deleted_version = GREATEST(deleted_version, of_version) WHERE id = 1;
    ELSE
        UPDATE {store}_record SET holder = NULL, epoch = NULL, ends = NULL, revision = next WHERE name = of_name;
    END IF;
END
--
DROP PROCEDURE IF EXISTS {store}_end_some
--
-- Ends leases whose time is over, the oldest first. One that somebody is extending is left to whoever comes next.
CREATE PROCEDURE {store}_end_some(IN most INT) SQL SECURITY INVOKER
BEGIN
    DECLARE at BIGINT;
    DECLARE found_name VARBINARY(512);
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET found_name = NULL;
    SELECT revision INTO at FROM {store}_store WHERE id = 1 FOR UPDATE;
    SET at = {now};
    each_one: WHILE most > 0 DO
        SELECT name INTO found_name FROM {store}_record WHERE ends <= at ORDER BY ends LIMIT 1 FOR UPDATE SKIP LOCKED;
        IF found_name IS NULL THEN
            LEAVE each_one;
        END IF;
        CALL {store}_end_lease(found_name);
        SET most = most - 1;
    END WHILE;
END
--
DROP PROCEDURE IF EXISTS {store}_take
--
-- Locks the store and the record, which then has no lease that has ended. All is null if there is none.
CREATE PROCEDURE {store}_take(IN of_name VARBINARY(512), OUT its_version BIGINT, OUT its_holder VARBINARY(128),
    OUT its_epoch BIGINT, OUT its_ends BIGINT) SQL SECURITY INVOKER
BEGIN
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET its_version = NULL, its_holder = NULL, its_epoch = NULL, its_ends = NULL;
    CALL {store}_end_some(8);
    SELECT version, holder, epoch, ends INTO its_version, its_holder, its_epoch, its_ends
        FROM {store}_record WHERE name = of_name FOR UPDATE;
    IF its_ends <= {now} THEN
        CALL {store}_end_lease(of_name);
        SELECT version, holder, epoch, ends INTO its_version, its_holder, its_epoch, its_ends
            FROM {store}_record WHERE name = of_name FOR UPDATE;
    END IF;
END
--
DROP PROCEDURE IF EXISTS {store}_end_leases
--
CREATE PROCEDURE {store}_end_leases(IN most INT) SQL SECURITY INVOKER
BEGIN
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL {store}_end_some(most);
    COMMIT;
END
--
DROP PROCEDURE IF EXISTS {store}_put
--
-- A write or, without a new value, a deletion. The lease is looked at first: who has lost it must learn that.
CREATE PROCEDURE {store}_put(IN of_name VARBINARY(512), IN new_value MEDIUMBLOB, IN replaces BIGINT, IN by_epoch BIGINT)
SQL SECURITY INVOKER
BEGIN
    DECLARE its_version, its_epoch, its_ends, next BIGINT;
    DECLARE its_holder VARBINARY(128);
    DECLARE outcome VARCHAR(8) DEFAULT 'done';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL {store}_take(of_name, its_version, its_holder, its_epoch, its_ends);
    IF by_epoch IS NOT NULL AND NOT (its_epoch <=> by_epoch) THEN
        SET outcome = 'lost';
    ELSEIF by_epoch IS NULL AND its_holder IS NOT NULL THEN
        SET outcome = 'held';
    ELSEIF NOT (its_version <=> replaces) THEN
        SET outcome = 'conflict';
    ELSE
        CALL {store}_next_revision(next);
        IF new_value IS NULL THEN
            DELETE FROM {store}_record WHERE name = of_name;
            UPDATE {store}_store SET deleted_version = GREATEST(deleted_version, its_version) WHERE id = 1;
        ELSEIF its_version IS NULL THEN
            SELECT deleted_version + 1 INTO its_version FROM {store}_store WHERE id = 1;
            INSERT INTO {store}_record (name, value, version, revision, written)
                VALUES (of_name, new_value, its_version, next, {now} DIV 1000);
        ELSE
            SET its_version = its_version + 1;
            UPDATE {store}_record SET value = new_value, version = its_version, revision = next, written = {now} DIV 1000
                WHERE name = of_name;
        END IF;
    END IF;
    COMMIT;
    IF outcome = 'lost' OR (outcome = 'done' AND new_value IS NULL) THEN
        DO RELEASE_LOCK({lock});
    END IF;
    SELECT outcome, its_version AS version, next AS revision, its_holder AS holder, its_ends - {now} AS remaining;
END
--
DROP PROCEDURE IF EXISTS {store}_lease
--
CREATE PROCEDURE {store}_lease(IN of_name VARBINARY(512), IN by_holder VARBINARY(128), IN span BIGINT, IN delete_it BOOLEAN)
SQL SECURITY INVOKER
BEGIN
    DECLARE its_version, its_epoch, its_ends, next BIGINT;
    DECLARE its_holder VARBINARY(128);
    DECLARE outcome VARCHAR(8) DEFAULT 'done';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL {store}_take(of_name, its_version, its_holder, its_epoch, its_ends);
    IF its_holder <> by_holder THEN
        COMMIT;
        SELECT 'held' AS outcome, 0 AS version, 0 AS revision, its_holder AS holder, its_ends - {now} AS remaining;
    ELSE
        IF its_version IS NULL THEN
            INSERT INTO {store}_record (name, value, version, revision, written)
                SELECT of_name, '', deleted_version + 1, 0, {now} DIV 1000 FROM {store}_store WHERE id = 1;
        END IF;
        IF its_holder IS NULL THEN
            CALL {store}_next_revision(next);
            UPDATE {store}_record SET holder = by_holder, epoch = next, revision = next, ends = {now} + span,
                delete_at_end = delete_it WHERE name = of_name;
        ELSE
            UPDATE {store}_record SET ends = {now} + span, delete_at_end = delete_it WHERE name = of_name;
        END IF;
        SELECT 'done' AS outcome, {columns} FROM {store}_record WHERE name = of_name;
        COMMIT;
        -- Who waits for the end of the lease waits for this lock.
        DO GET_LOCK({lock}, 0);
    END IF;
END
--
DROP PROCEDURE IF EXISTS {store}_extend
--
CREATE PROCEDURE {store}_extend(IN of_name VARBINARY(512), IN by_epoch BIGINT, IN span BIGINT) SQL SECURITY INVOKER
BEGIN
    DECLARE its_epoch, its_ends, at BIGINT;
    DECLARE outcome VARCHAR(8) DEFAULT 'done';
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET its_epoch = NULL;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT epoch, ends INTO its_epoch, its_ends FROM {store}_record WHERE name = of_name FOR UPDATE;
    SET at = {now};
    IF NOT (its_epoch <=> by_epoch) OR its_ends <= at THEN
        SET outcome = 'lost';
    ELSE
        UPDATE {store}_record SET ends = at + span WHERE name = of_name;
    END IF;
    COMMIT;
    IF outcome = 'lost' THEN
        DO RELEASE_LOCK({lock});
    END IF;
    SELECT outcome;
END
--
DROP PROCEDURE IF EXISTS {store}_release
--
CREATE PROCEDURE {store}_release(IN of_name VARBINARY(512), IN by_epoch BIGINT) SQL SECURITY INVOKER
BEGIN
    DECLARE its_version, its_epoch, its_ends BIGINT;
    DECLARE its_holder VARBINARY(128);
    DECLARE outcome VARCHAR(8) DEFAULT 'done';
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL {store}_take(of_name, its_version, its_holder, its_epoch, its_ends);
    IF its_epoch <=> by_epoch THEN
        CALL {store}_end_lease(of_name);
    ELSE
        SET outcome = 'lost';
    END IF;
    COMMIT;
    DO RELEASE_LOCK({lock});
    SELECT outcome;
END
