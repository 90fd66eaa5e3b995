"""Whether a MySQL or MariaDB server replicates, and from where."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pymysql import err

from headgate.errors import ProbeFailed
from headgate.metrics.probes.mysql_session import NOT_ALLOWED_CODES, MysqlSession, code_of
from headgate.metrics.samples import Cause

FIRST_WITH_REPLICA_WORDS = (8, 0, 22)


@dataclass(frozen=True, slots=True)
class Thread:
    name: str
    """As the server calls its state: Slave_IO_Running."""
    state: str
    """Yes, No, or what it is just trying."""
    error: str


@dataclass(frozen=True, slots=True)
class Channel:
    """One source of a replica."""

    name: str
    """Empty for the only one, usually."""
    upstream: str
    """host:port"""
    upstream_id: str
    """Its server_uuid, or its server_id where there are none of these (MariaDB)."""
    threads: tuple[Thread, Thread]
    seconds_behind: float | None


def channel_of(row: Mapping[str, Any]) -> Channel:
    # MySQL 8.4 dropped the old words, MariaDB keeps them.
    old = "Slave_IO_Running" in row
    replica, source = ("Slave", "Master") if old else ("Replica", "Source")
    seconds = row[f"Seconds_Behind_{source}"]
    number = row.get(f"{source}_Server_Id") or ""
    return Channel(
        name=str(row.get("Connection_name") or row.get("Channel_Name") or ""),
        upstream=f"{row[f'{source}_Host']}:{row[f'{source}_Port']}",
        upstream_id=str(row.get(f"{source}_UUID", number)),
        threads=(
            _thread(row, f"{replica}_IO_Running", "Last_IO_Error"),
            _thread(row, f"{replica}_SQL_Running", "Last_SQL_Error"),
        ),
        seconds_behind=None if seconds is None else float(seconds),
    )


def _thread(row: Mapping[str, Any], state: str, error: str) -> Thread:
    return Thread(state, str(row[state]), str(row.get(error) or ""))


async def replica_status(session: MysqlSession) -> list[dict[str, Any]]:
    """One row per source; none on a server that replicates from nowhere."""
    try:
        return await session.dicts(_show_status(session))
    except err.Error as error:
        if code_of(error) not in NOT_ALLOWED_CODES:
            raise
        right = "SLAVE MONITOR" if session.is_mariadb else "REPLICATION CLIENT"
        statement = f"GRANT {right} ON *.* TO {await session.account()}"
        message = f"{error.args[1]}; as an administrator run: {statement}"
        session.discard()  # rights on *.* reach new sessions only
        raise ProbeFailed(Cause.FAILED, message) from None


def _show_status(session: MysqlSession) -> str:
    if session.is_mariadb:
        return "SHOW ALL SLAVES STATUS"
    return f"SHOW {'REPLICA' if has_replica_words(session) else 'SLAVE'} STATUS"


def has_replica_words(session: MysqlSession) -> bool:
    numbers = tuple(int(part) for part in re.findall(r"\d+", session.version)[:3])
    return not session.is_mariadb and numbers >= FIRST_WITH_REPLICA_WORDS


async def is_read_only(session: MysqlSession) -> bool:
    # By the setting, not by a write: an administrator's session may write all the same.
    [(read_only,)] = await session.rows("SELECT @@global.read_only")
    return is_on(read_only)


async def takes_writes(session: MysqlSession) -> bool:
    return not await is_read_only(session)


def is_on(setting: object) -> bool:
    """Newer MariaDB has words for it (NO_LOCK and the like are on, too)."""
    return setting not in (0, "0", "OFF", None)


async def is_primary(session: MysqlSession) -> bool:
    return not await is_read_only(session) and not await replica_status(session)
