-- Tables and procedures of records. The statements are apart by lines of two dashes; all of it may be run again, also over the
-- procedures of an earlier program while that is in use: they serve its calls as before.
--
-- Whoever changes a record locks the row of {store}_store first, which puts all changes in one order, and then the record.
-- Who extends a lease locks the record only. Each procedure is one transaction, so that its locks last as long as it runs
-- here, whatever becomes of the client. {now} is the time in microseconds since 1970.
--
-- A change comes in two procedures: one under a fence, which does it, and one without. Guard and term are null there.

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
DROP PROCEDURE IF EXISTS {store}_seen_by
--
-- The highest epoch that a guard has seen; null if it is not there. A value that is none has seen all. Locks the store, and the
-- guard.
CREATE PROCEDURE {store}_seen_by(IN guard VARBINARY(512), OUT seen DECIMAL(20, 0)) SQL SECURITY INVOKER
BEGIN
    DECLARE its_version, its_epoch, its_ends BIGINT;
    DECLARE its_holder VARBINARY(128);
    DECLARE its_value MEDIUMBLOB;
    CALL {store}_take(guard, its_version, its_holder, its_epoch, its_ends);
    IF its_version IS NULL THEN
        SET seen = NULL;
    ELSE
        SET seen = 18446744073709551615;
        SELECT value INTO its_value FROM {store}_record WHERE name = guard;
        -- The digits as a text: what is no text cannot be matched.
        IF HEX(its_value) REGEXP '^(30|3[1-9](3[0-9]){0,19})$' THEN
            SET seen = LEAST(seen, CAST(its_value AS DECIMAL(20, 0)));
        END IF;
    END IF;
END
--
DROP PROCEDURE IF EXISTS {store}_look_at_guard
--
-- What a change under a fence is told if its guard has seen a later term; null: it may be made. Each change looks at this before
-- it takes its record: later, the record's lease might end here.
CREATE PROCEDURE {store}_look_at_guard(IN guard VARBINARY(512), IN term DECIMAL(20, 0), OUT refused VARCHAR(32))
SQL SECURITY INVOKER
BEGIN
    DECLARE seen DECIMAL(20, 0);
    SET refused = NULL;
    IF guard IS NOT NULL THEN
        CALL {store}_seen_by(guard, seen);
        IF seen > term THEN
            SET refused = CONCAT('fenced ', seen);
        END IF;
    END IF;
END
--
DROP PROCEDURE IF EXISTS {store}_raise_guard
--
-- Raises the guard of the fence behind a change that was made, whoever has its lease.
CREATE PROCEDURE {store}_raise_guard(IN guard VARBINARY(512), IN term DECIMAL(20, 0)) SQL SECURITY INVOKER
BEGIN
    DECLARE seen DECIMAL(20, 0);
    DECLARE next BIGINT;
    IF guard IS NOT NULL THEN
        CALL {store}_seen_by(guard, seen);
        IF seen IS NULL THEN
            CALL {store}_next_revision(next);
            INSERT INTO {store}_record (name, value, version, revision, written)
                SELECT guard, CAST(term AS CHAR), deleted_version + 1, next, {now} DIV 1000 FROM {store}_store WHERE id = 1;
        ELSEIF seen < term THEN
            CALL {store}_next_revision(next);
            UPDATE {store}_record SET value = CAST(term AS CHAR), version = version + 1, revision = next,
                written = {now} DIV 1000 WHERE name = guard;
        END IF;
    END IF;
END
--
DROP PROCEDURE IF EXISTS {store}_fenced_put
--
-- A write or, without a new value, a deletion. The lease is looked at first: who has lost it must learn that.
CREATE PROCEDURE {store}_fenced_put(IN of_name VARBINARY(512), IN new_value MEDIUMBLOB, IN replaces BIGINT,
    IN by_epoch BIGINT, IN guard VARBINARY(512), IN term DECIMAL(20, 0)) SQL SECURITY INVOKER
BEGIN
    DECLARE its_version, its_epoch, its_ends, next BIGINT;
    DECLARE its_holder VARBINARY(128);
    DECLARE outcome VARCHAR(32);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL {store}_look_at_guard(guard, term, outcome);
    CALL {store}_take(of_name, its_version, its_holder, its_epoch, its_ends);
    IF outcome IS NOT NULL THEN
        SET next = NULL;
    ELSEIF by_epoch IS NOT NULL AND NOT (its_epoch <=> by_epoch) THEN
        SET outcome = 'lost';
    ELSEIF by_epoch IS NULL AND its_holder IS NOT NULL THEN
        SET outcome = 'held';
    ELSEIF NOT (its_version <=> replaces) THEN
        SET outcome = 'conflict';
    ELSE
        SET outcome = 'done';
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
        CALL {store}_raise_guard(guard, term);
    END IF;
    COMMIT;
    IF outcome = 'lost' OR (outcome = 'done' AND new_value IS NULL) THEN
        DO RELEASE_LOCK({lock});
    END IF;
    SELECT outcome, its_version AS version, next AS revision, its_holder AS holder, its_ends - {now} AS remaining;
END
--
DROP PROCEDURE IF EXISTS {store}_put
--
CREATE PROCEDURE {store}_put(IN of_name VARBINARY(512), IN new_value MEDIUMBLOB, IN replaces BIGINT, IN by_epoch BIGINT)
SQL SECURITY INVOKER
BEGIN
    CALL {store}_fenced_put(of_name, new_value, replaces, by_epoch, NULL, NULL);
END
--
DROP PROCEDURE IF EXISTS {store}_fenced_lease
--
CREATE PROCEDURE {store}_fenced_lease(IN of_name VARBINARY(512), IN by_holder VARBINARY(128), IN span BIGINT,
    IN delete_it BOOLEAN, IN guard VARBINARY(512), IN term DECIMAL(20, 0)) SQL SECURITY INVOKER
BEGIN
    DECLARE its_version, its_epoch, its_ends, next BIGINT;
    DECLARE its_holder VARBINARY(128);
    DECLARE refused VARCHAR(32);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL {store}_look_at_guard(guard, term, refused);
    CALL {store}_take(of_name, its_version, its_holder, its_epoch, its_ends);
    IF refused IS NOT NULL OR its_holder <> by_holder THEN
        COMMIT;
        SELECT COALESCE(refused, 'held') AS outcome, 0 AS version, 0 AS revision, its_holder AS holder,
            its_ends - {now} AS remaining;
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
        CALL {store}_raise_guard(guard, term);
        COMMIT;
        -- Who waits for the end of the lease waits for this lock. It counts how often a session takes it.
        IF NOT (IS_USED_LOCK({lock}) <=> CONNECTION_ID()) THEN
            DO GET_LOCK({lock}, 0);
        END IF;
    END IF;
END
--
DROP PROCEDURE IF EXISTS {store}_lease
--
CREATE PROCEDURE {store}_lease(IN of_name VARBINARY(512), IN by_holder VARBINARY(128), IN span BIGINT, IN delete_it BOOLEAN)
SQL SECURITY INVOKER
BEGIN
    CALL {store}_fenced_lease(of_name, by_holder, span, delete_it, NULL, NULL);
END
--
DROP PROCEDURE IF EXISTS {store}_fenced_extend
--
CREATE PROCEDURE {store}_fenced_extend(IN of_name VARBINARY(512), IN by_epoch BIGINT, IN span BIGINT,
    IN guard VARBINARY(512), IN term DECIMAL(20, 0)) SQL SECURITY INVOKER
BEGIN
    DECLARE its_epoch, its_ends, at BIGINT;
    DECLARE outcome VARCHAR(32);
    DECLARE CONTINUE HANDLER FOR NOT FOUND SET its_epoch = NULL;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL {store}_look_at_guard(guard, term, outcome);
    IF outcome IS NULL THEN
        SELECT epoch, ends INTO its_epoch, its_ends FROM {store}_record WHERE name = of_name FOR UPDATE;
        SET at = {now};
        IF NOT (its_epoch <=> by_epoch) OR its_ends <= at THEN
            SET outcome = 'lost';
        ELSE
            SET outcome = 'done';
            UPDATE {store}_record SET ends = at + span WHERE name = of_name;
            CALL {store}_raise_guard(guard, term);
        END IF;
    END IF;
    COMMIT;
    IF outcome = 'lost' THEN
        DO RELEASE_LOCK({lock});
    END IF;
    SELECT outcome;
END
--
DROP PROCEDURE IF EXISTS {store}_extend
--
CREATE PROCEDURE {store}_extend(IN of_name VARBINARY(512), IN by_epoch BIGINT, IN span BIGINT) SQL SECURITY INVOKER
BEGIN
    CALL {store}_fenced_extend(of_name, by_epoch, span, NULL, NULL);
END
--
DROP PROCEDURE IF EXISTS {store}_fenced_release
--
CREATE PROCEDURE {store}_fenced_release(IN of_name VARBINARY(512), IN by_epoch BIGINT, IN guard VARBINARY(512),
    IN term DECIMAL(20, 0)) SQL SECURITY INVOKER
BEGIN
    DECLARE its_version, its_epoch, its_ends BIGINT;
    DECLARE its_holder VARBINARY(128);
    DECLARE outcome VARCHAR(32);
    DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    CALL {store}_look_at_guard(guard, term, outcome);
    CALL {store}_take(of_name, its_version, its_holder, its_epoch, its_ends);
    IF outcome IS NULL THEN
        IF its_epoch <=> by_epoch THEN
            SET outcome = 'done';
            CALL {store}_end_lease(of_name);
            CALL {store}_raise_guard(guard, term);
        ELSE
            SET outcome = 'lost';
        END IF;
    END IF;
    COMMIT;
    IF outcome IN ('done', 'lost') THEN
        DO RELEASE_LOCK({lock});
    END IF;
    SELECT outcome;
END
--
DROP PROCEDURE IF EXISTS {store}_release
--
CREATE PROCEDURE {store}_release(IN of_name VARBINARY(512), IN by_epoch BIGINT) SQL SECURITY INVOKER
BEGIN
    CALL {store}_fenced_release(of_name, by_epoch, NULL, NULL);
END
