"""What a server says of itself is text, whatever its driver has for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from headgate.metrics.model import Engine
from headgate.metrics.probes.connections import Lane
from headgate.metrics.probes.server import MAX_FACT_CHARS, ServerFacts


class Told:
    label = "main at db"

    @asynccontextmanager
    async def session(self, timeout_s: float) -> AsyncIterator[Told]:
        yield self

    async def rows(self, query: str) -> list[tuple[object, object]]:
        return [(b"version", b"11.4 caf\xe9"), ("max_connections", 151), ("long", "x" * 2000)]


async def test_bytes_are_told_as_their_letters() -> None:
    found = await ServerFacts(cast("Lane[Any]", Told()), Engine.MYSQL, 1.0).read()
    assert found["version"] == "11.4 caf\N{REPLACEMENT CHARACTER}"
    assert found["max_connections"] == "151" and len(found["long"]) == MAX_FACT_CHARS
