"""The slow-log tells who, what and why, and never a value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.budgets.model import Dialect
from headgate.proxy.layout import EVENT_DELAYED, EVENT_WARNED
from headgate.proxy.process import Slowlog, SlowlogTerms, redacted
from tests.fixtures.fakes import HandClock
from tests.proxy.fakes import event


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slow.log"


def slowlog(path: Path | None, clock: HandClock | None = None, **terms: Any) -> Slowlog:
    chosen = SlowlogTerms(path, **terms)
    return Slowlog(chosen, Dialect.POSTGRES, clock or HandClock(), lambda index: f"etl:{index}")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_blocked_statement_is_logged_without_its_values(path: Path) -> None:
    log = slowlog(path)
    log.note(event())
    log.close()
    (line,) = lines(path)
    assert line["what"] == "blocked"
    assert (line["client"], line["user"], line["database"]) == ("etl:7", "app", "shop")
    assert (line["by"], line["budget"], line["reason"]) == ("budget", "exports", "5 of 5 workers")
    assert line["statement"] == "SELECT * FROM t WHERE card = ?"
    assert "4111" not in path.read_text()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"select 'a''b', $$secret$$, 12, $1", "select ?, ?, ?, ?"),
        (b"select /* token='hunter2' */ 1 -- hunter2\n, 2", "select ? , ?"),
        (b"insert into t values ('cut in the mid", "insert into t values (?"),
        (b"select $tag$cut in the mid", "select ?"),
        (b'select "Quoted Name" from t', 'select "Quoted Name" from t'),
        (b"select E'\\'hunter2'", "select ?"),
        (b"select '\xff\xfe'", "select ?"),
    ],
)
def test_literals_and_comments_are_taken_out(text: bytes, shown: str) -> None:
    assert redacted(text, Dialect.POSTGRES) == shown


@pytest.mark.parametrize(
    ("dialect", "text", "shown"),
    [
        (Dialect.MYSQL, rb"select 'a\', 'hunter2', 5", "select ?…"),
        (Dialect.MYSQL, b'select "a\\", \'hunter2\', 5"', "select ?…"),
        (Dialect.MYSQL, rb"select 'a\\n', 'hunter2', 5", "select ?, ?, ?"),
        (Dialect.POSTGRES, rb"select 'a\', hunter2 , \'b'", "select ?…"),
        (Dialect.POSTGRES, rb"select '\d+', E'\'', $$\'$$, 'hunter2'", "select ?, ?, ?, ?"),
    ],
)
def test_what_other_sessions_would_read_otherwise_is_left_out(
    dialect: Dialect, text: bytes, shown: str
) -> None:
    """Whether a backslash escapes is a setting of the session, which the text does not tell."""
    assert redacted(text, dialect) == shown


def test_mysqls_double_quotes_are_literals() -> None:
    assert redacted(b'select "hunter2", `name` # hunter2', Dialect.MYSQL) == "select ?, `name`"


def test_a_long_statement_is_cut() -> None:
    shown = redacted(b"select " + b"a," * 4000, Dialect.POSTGRES)
    assert len(shown) == 2001 and shown.endswith("…")


def test_short_delays_and_warnings_are_counted_only(path: Path) -> None:
    log = slowlog(path, min_delay_s=0.1)
    log.note(event(EVENT_DELAYED, took_ns=50_000_000))
    log.note(event(EVENT_WARNED))
    log.note(event(EVENT_DELAYED, took_ns=250_000_000))
    log.close()
    (line,) = lines(path)
    assert (line["what"], line["took_s"]) == ("delayed", 0.25)


def test_warnings_are_logged_where_they_are_wanted(path: Path) -> None:
    log = slowlog(path, warnings=True)
    log.note(event(EVENT_WARNED))
    log.close()
    assert lines(path)[0]["what"] == "warned"


async def test_a_flood_is_rationed_and_what_was_left_out_is_reported(path: Path) -> None:
    clock = HandClock()
    log = slowlog(path, clock, per_s=2.0)
    for _ in range(10):
        log.note(event())
    assert (log.lines, log.suppressed) == (2, 8)
    await clock.advance(1.0)
    log.note(event(left_out=3))
    log.close()
    assert lines(path)[-1]["left_out"] == 8 + 3


def test_a_renamed_file_is_opened_again_by_a_reload(path: Path) -> None:
    log = slowlog(path)
    log.note(event())
    path.rename(path.with_suffix(".1"))
    log.note(event())
    log.adopt(SlowlogTerms(path))
    log.note(event())
    log.close()
    assert (len(lines(path.with_suffix(".1"))), len(lines(path))) == (2, 1)


def test_a_file_that_cannot_be_opened_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    log = slowlog(tmp_path / "missing" / "slow.log")
    log.note(event())
    assert "cannot be opened: No such file or directory" in log.fault
    assert log.suppressed == 1


def test_without_a_slow_log_nothing_is_written(path: Path) -> None:
    log = slowlog(path, per_s=0.0)
    log.note(event())
    log.close()
    assert path.read_text() == ""
