-- Version 1 of a fleet's store in a file. Several agents of one machine may begin it at once, so
-- every statement does no harm when done again.

-- One row. log_bytes is what `changes` holds, so that a long log is cut without being summed up.
CREATE TABLE IF NOT EXISTS store (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    id          TEXT NOT NULL,
    revision    INTEGER NOT NULL,
    known_after INTEGER NOT NULL,
    log_bytes   INTEGER NOT NULL
);

INSERT OR IGNORE INTO store VALUES (1, lower(hex(randomblob(16))), 0, 0, 0);

CREATE TABLE IF NOT EXISTS entries (
    key      TEXT NOT NULL PRIMARY KEY,
    value    BLOB NOT NULL,
    revision INTEGER NOT NULL,
    lease    INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX IF NOT EXISTS entries_by_lease ON entries (lease) WHERE lease <> 0;

-- AUTOINCREMENT: a lease that has ended is never granted to somebody else.
-- until_mono_s is of the machine's monotonic clock, which says nothing after a restart: boot.
CREATE TABLE IF NOT EXISTS leases (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    ttl_s        REAL NOT NULL,
    boot         TEXT NOT NULL,
    until_mono_s REAL NOT NULL
);

CREATE INDEX IF NOT EXISTS leases_by_end ON leases (until_mono_s);

-- value NULL: taken out.
CREATE TABLE IF NOT EXISTS changes (
    revision INTEGER NOT NULL,
    place    INTEGER NOT NULL,
    key      TEXT NOT NULL,
    value    BLOB,
    PRIMARY KEY (revision, place)
) WITHOUT ROWID;
