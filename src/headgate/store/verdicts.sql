-- Version 8: the names of today, in the history of an earlier version: verdicts, and metrics that
-- were unavailable.
-- None of the new names was used before, so no two kinds become one.

UPDATE kinds SET verdict = CASE verdict
    WHEN 'REJECT_BY_RATIO' THEN 'REJECTED_BY_RATIO'
    WHEN 'APP_DENIED' THEN 'ON_HOLD'
    WHEN 'INTERNAL_ERROR' THEN 'METRIC_UNAVAILABLE'
    WHEN 'MISDIRECTED' THEN 'WRONG_AGENT'
    ELSE verdict
END;

ALTER TABLE metric_minutes RENAME COLUMN absent TO unavailable;
