-- Version 6: what clients said of themselves, apart from what operators change and its audit.

-- Anybody who reaches the agent may report: what is kept here is bounded by who writes it
-- (history/unthrottled.py), and goes first where the file runs out of room.
CREATE TABLE reports (
    client     TEXT NOT NULL,
    origin     TEXT NOT NULL,
    wall_s     REAL NOT NULL,
    value_json TEXT NOT NULL,
    PRIMARY KEY (client, origin)
);

-- They were records with an audit entry each: the newest that the bound has room for move here.
INSERT INTO reports
    SELECT key, '', wall_s, value_json FROM records
    WHERE kind = 'unthrottled' AND value_json IS NOT NULL AND length(value_json) <= 20480
    ORDER BY revision DESC LIMIT 100;
DELETE FROM records WHERE kind = 'unthrottled';
DELETE FROM audit WHERE action IN ('unthrottled.reported', 'unthrottled.forgotten');
