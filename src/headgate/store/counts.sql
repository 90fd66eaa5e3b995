-- Version 4: history by numbers instead of names, and summed up by the hour beside the minute.
-- A fortnight of fifty clients takes a sixth of the room, and is summed up within a second.

-- last_hour: the latest with a count, in hours since 1970. A name goes when its counts are gone.
CREATE TABLE clients (
    id        INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,
    last_hour INTEGER NOT NULL
);
CREATE INDEX clients_by_hour ON clients (last_hour);

CREATE TABLE kinds (
    id        INTEGER PRIMARY KEY,
    database  TEXT NOT NULL,
    verdict   TEXT NOT NULL,
    metric    TEXT NOT NULL,
    last_hour INTEGER NOT NULL,
    UNIQUE (database, verdict, metric)
);

-- Minute first: reads and forgetting are ranges of time. Kind before client: sums of all of a
-- level's clients come out in the order of the rows, and nothing has to be sorted.
CREATE TABLE counts (
    minute INTEGER NOT NULL,
    kind   INTEGER NOT NULL,
    client INTEGER NOT NULL,
    count  INTEGER NOT NULL CHECK (count >= 0),
    PRIMARY KEY (minute, kind, client)
) WITHOUT ROWID;

-- The same by the hour. Each is always the sum of its minutes.
CREATE TABLE hours (
    hour   INTEGER NOT NULL,
    kind   INTEGER NOT NULL,
    client INTEGER NOT NULL,
    count  INTEGER NOT NULL CHECK (count >= 0),
    PRIMARY KEY (hour, kind, client)
) WITHOUT ROWID;

INSERT INTO clients (name, last_hour) SELECT client, max(minute) / 60 FROM tallies GROUP BY client;
INSERT INTO kinds (database, verdict, metric, last_hour)
    SELECT database, verdict, metric, max(minute) / 60 FROM tallies
    GROUP BY database, verdict, metric;
INSERT INTO counts
    SELECT t.minute, k.id, c.id, t.count
    FROM tallies AS t
    CROSS JOIN kinds AS k
        ON k.database = t.database AND k.verdict = t.verdict AND k.metric = t.metric
    CROSS JOIN clients AS c ON c.name = t.client
    ORDER BY t.minute, k.id, c.id;
INSERT INTO hours
    SELECT minute / 60 AS hour, kind, client, sum(count) FROM counts GROUP BY hour, kind, client;
DROP TABLE tallies;

-- For whoever looks into the file.
CREATE VIEW tallies AS
    SELECT minute, database, name AS client, verdict, metric, count
    FROM counts JOIN kinds ON kinds.id = kind JOIN clients ON clients.id = client;
