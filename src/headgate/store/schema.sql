-- Version 1 of the state file. Later versions are steps after this one (file.py, STEPS):
-- what has been released here is never edited.

-- AUTOINCREMENT: an id is never given twice, even when the newest entry was forgotten.
-- The id of an entry is also the revision of the change it records.
CREATE TABLE audit (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    wall_s      REAL NOT NULL,
    who         TEXT NOT NULL,
    action      TEXT NOT NULL,
    target      TEXT NOT NULL,
    before_json TEXT NOT NULL,
    after_json  TEXT NOT NULL
);

CREATE INDEX audit_by_time ON audit (wall_s);

-- The newest change of each metric. raw_json NULL: removed, which must be remembered, or the
-- settings file would bring the metric back. wall_s, who and action name the author of a
-- conflicting change after its audit entry has been forgotten.
CREATE TABLE metric_changes (
    database TEXT NOT NULL,
    metric   TEXT NOT NULL,
    raw_json TEXT,
    revision INTEGER NOT NULL UNIQUE,
    wall_s   REAL NOT NULL,
    who      TEXT NOT NULL,
    action   TEXT NOT NULL,
    PRIMARY KEY (database, metric)
) WITHOUT ROWID;

-- Minute first: reads and forgetting are ranges of time.
CREATE TABLE tallies (
    minute   INTEGER NOT NULL,
    database TEXT NOT NULL,
    client   TEXT NOT NULL,
    verdict  TEXT NOT NULL,
    metric   TEXT NOT NULL,
    count    INTEGER NOT NULL CHECK (count >= 0),
    PRIMARY KEY (minute, database, client, verdict, metric)
) WITHOUT ROWID;
