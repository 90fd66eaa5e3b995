-- Version 3: metrics by the minute, for the picture of a day and for replay.

-- low and high NULL: no look of that minute found a value. Minute first, as with tallies.
CREATE TABLE metric_minutes (
    minute    INTEGER NOT NULL,
    database  TEXT NOT NULL,
    metric    TEXT NOT NULL,
    looks     INTEGER NOT NULL,
    absent    INTEGER NOT NULL,
    breached  INTEGER NOT NULL,
    total     REAL NOT NULL,
    low       REAL,
    high      REAL,
    threshold REAL NOT NULL,
    PRIMARY KEY (minute, database, metric)
) WITHOUT ROWID;
