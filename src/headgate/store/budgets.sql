-- Version 5: traffic policies as they stood, to look at and to go back to; violations by minute.

-- The newest of a database is the one in force. document_json: the whole policy; changes_json:
-- what of it lies on top of the settings file. A revision is the id of an audit entry, and as
-- those it is never given twice. Not WITHOUT ROWID: documents may be long.
CREATE TABLE policy_revisions (
    revision      INTEGER PRIMARY KEY,
    database      TEXT NOT NULL,
    wall_s        REAL NOT NULL,
    who           TEXT NOT NULL,
    action        TEXT NOT NULL,
    summary       TEXT NOT NULL,
    document_json TEXT NOT NULL,
    changes_json  TEXT NOT NULL
);
CREATE INDEX policy_revisions_by_database ON policy_revisions (database, revision);

-- Minute first: reads and forgetting are ranges of time.
CREATE TABLE budget_minutes (
    minute   INTEGER NOT NULL,
    database TEXT NOT NULL,
    budget   TEXT NOT NULL,
    what     TEXT NOT NULL,
    limited  TEXT NOT NULL,
    count    INTEGER NOT NULL CHECK (count >= 0),
    PRIMARY KEY (minute, database, budget, what, limited)
) WITHOUT ROWID;
