-- Version 2: what operators set besides metrics, such as members set aside and peers.

-- value_json NULL: removed, and no longer listed. Such a row only tells who removed it; the
-- oldest of a kind makes room when the kind is full. A revision is the id of an audit entry,
-- and as those it is never given twice.
-- Not WITHOUT ROWID: values may be long, and counting a kind reads the index of keys alone.
CREATE TABLE records (
    revision   INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL,
    key        TEXT NOT NULL,
    value_json TEXT,
    wall_s     REAL NOT NULL,
    who        TEXT NOT NULL,
    action     TEXT NOT NULL,
    UNIQUE (kind, key)
);
