"""What a server says of itself: version, extension, role, clock. For people, not for loops."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headgate.errors import ProbeFailed
from headgate.metrics.model import Engine
from headgate.metrics.probes.connections import Lane
from headgate.metrics.samples import Cause

MAX_FACT_CHARS = 512
POSTGRES = """
SELECT 'version', version()
UNION ALL SELECT 'extension', coalesce(
  (SELECT extversion FROM pg_extension WHERE extname = 'pg_headgate'), 'not created here')
UNION ALL SELECT 'in_recovery', pg_is_in_recovery()::text
UNION ALL SELECT 'clock', clock_timestamp()::text
UNION ALL SELECT 'started', pg_postmaster_start_time()::text
UNION ALL SELECT name, setting FROM pg_settings WHERE name IN
  ('shared_preload_libraries', 'max_connections', 'wal_level', 'TimeZone')
"""
MYSQL = """
SELECT 'version', VERSION() UNION ALL SELECT 'comment', @@version_comment
UNION ALL SELECT 'read_only', @@read_only UNION ALL SELECT 'clock', UTC_TIMESTAMP(6)
UNION ALL SELECT 'max_connections', @@max_connections
UNION ALL SELECT 'performance_schema', @@performance_schema
"""
QUERIES = {Engine.POSTGRES: POSTGRES, Engine.MYSQL: MYSQL}


class ServerFacts:
    def __init__(self, lane: Lane[Any], engine: Engine, timeout_s: float) -> None:
        self._lane = lane
        self._query = QUERIES[engine]
        self._timeout_s = timeout_s

    async def read(self) -> Mapping[str, str]:
        """Or ProbeFailed with the cause."""
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    rows = await session.rows(self._query)
        except TimeoutError:
            message = f"{self._lane.label}: no answer in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None
        return {_text(name): _text(value)[:MAX_FACT_CHARS] for name, value in rows}


def _text(value: object) -> str:
    """MySQL may have bytes for what a UNION mixes: their letters, and no b'…'."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
