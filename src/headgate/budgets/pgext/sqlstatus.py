"""The same status over SQL, for servers whose memory cannot be read from outside."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headgate.budgets.pgext.locate import session_with
from headgate.budgets.pgext.status import Document, in_trouble, problems_of, troubles
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    import psycopg

ABOUT = """
SELECT current_setting('server_version_num')::int AS version_num,
       current_setting('max_connections')::int AS max_connections,
       extract(epoch FROM now() - pg_postmaster_start_time())::float8 AS started_s_ago,
       to_regprocedure('headgate.status()') IS NOT NULL AS created,
       current_database() AS database
"""
STATUS = """
SELECT *, extract(epoch FROM health_until - now())::float8 AS health_left_s
FROM headgate.status()
"""
BACKENDS = (
    "SELECT pid, policy_version AS version, policy_checksum AS checksum FROM headgate.backends"
)
BUDGETS = """
SELECT budget, fill_percent / 100 AS fill, '' AS bucket, running, sleeping, admitted,
       warned_threshold + warned_concurrency + warned_burst + warned_capacity AS warned,
       blocked_concurrency + blocked_burst + blocked_capacity AS blocked, delayed,
       extract(epoch FROM now() - last_violation_at)::float8 AS last_violation_s_ago
FROM headgate.budgets
"""


def status_by_sql(dsn: str) -> Document:
    with session_with(dsn) as session:
        (about,) = _rows(session, ABOUT)
        if not about["created"]:
            raise HeadgateError(
                f"the database {about['database']!r} does not have the extension: run CREATE "
                "EXTENSION pg_headgate there, or read from outside (--data-directory)"
            )
        status = next(iter(_rows(session, STATUS)), None)
        if status is None:
            raise HeadgateError(
                "the server was started without pg_headgate in shared_preload_libraries"
            )
        budgets = _rows(session, BUDGETS)
        for row in budgets:
            row["trouble"] = list(troubles(row, full=False))
        return _document(about, status, _rows(session, BACKENDS), in_trouble(budgets))


def _document(
    about: Mapping[str, Any],
    status: Mapping[str, Any],
    backends: list[Document],
    budgets: list[Document],
) -> Document:
    in_force = {
        "version": status["policy_version"] or 0,
        "checksum": status["policy_checksum"] or "",
        "enabled": status["enabled"],
        "off": None,
        "since_ms": _ms(status["published_at"]),
        "rejected": status["rejected_policies"],
        "rejection": status["last_rejection"] or "",
    }
    left_s = status["health_left_s"]
    known = left_s is not None and left_s > 0
    return {
        "directory": None,
        "source": "sql",
        "server": {
            "pid": None,
            "version_num": about["version_num"],
            "extension": status["extension_version"],
            "max_connections": about["max_connections"],
            "cpus": status["server_cpus"],
            "started_s_ago": about["started_s_ago"],
        },
        "published": None,
        "in_force": in_force,
        "health": {"state": status["health"] if known else "unknown", "until_s": left_s},
        "backends": backends,
        "budgets": budgets,
        "problems": list(problems_of(None, in_force)),
    }


def _rows(session: psycopg.Connection[Any], query: str) -> list[Document]:
    from psycopg.rows import dict_row

    with session.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query).fetchall()


def _ms(at: datetime | None) -> int:
    return 0 if at is None else int(at.timestamp() * 1000)
