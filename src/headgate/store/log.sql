-- Version 7: one log of keys for everything an operator changes, and for what the agent notes.

-- As etcd has it for a fleet (changes/etcd), but without leases or a list of changes: one process
-- reads and writes it. A revision counts the commits of the log; an entry has that of the commit
-- which last put it.
CREATE TABLE entries (
    key      TEXT NOT NULL PRIMARY KEY,
    value    BLOB NOT NULL,
    revision INTEGER NOT NULL
) WITHOUT ROWID;

-- One row. The id is of the data: another one means that revisions of before say nothing.
CREATE TABLE log (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    id       TEXT NOT NULL,
    revision INTEGER NOT NULL
);

INSERT INTO log VALUES (1, lower(hex(randomblob(16))), 0);

-- What metric_changes, records and policy_revisions keep moves here, and they go: statecopy.py.
