"""Periods without a throttler as documents: what clients tell, and what operators see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from headgate.check.questions import APP_SCHEMA, DATABASE_SCHEMA, MAX_CHECKS
from headgate.check.reasons import duration

MAX_PERIODS = 100
MAX_AGO_MS = 7 * 86_400_000
MAX_DURATION_MS = 366 * 86_400_000
MAX_PIECES = 10**12
MAX_TOLD = 5
_Ago = Annotated[float, msgspec.Meta(ge=0, le=MAX_AGO_MS)]
_Duration = Annotated[float, msgspec.Meta(ge=0, le=MAX_DURATION_MS)]
# Not int: to JSON Schema 312.0 is an integer, too, to msgspec it is none.
_Pieces = Annotated[float, msgspec.Meta(ge=1, le=MAX_PIECES, multiple_of=1)]
_Database = Annotated[str, msgspec.Meta(extra_json_schema=DATABASE_SCHEMA)]


class PeriodBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """Made up by the client: a repeated report counts once."""
    ended_ago_ms: _Ago
    duration_ms: _Duration
    pieces: _Pieces
    """Pieces of work that started without a check."""


class UnthrottledBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    app: Annotated[str, msgspec.Meta(extra_json_schema=APP_SCHEMA | {"minLength": 1})]
    databases: Annotated[list[_Database], msgspec.Meta(min_length=1, max_length=MAX_CHECKS)]
    periods: Annotated[list[PeriodBody], msgspec.Meta(min_length=1, max_length=MAX_PERIODS)]


class TakenDoc(msgspec.Struct, frozen=True):
    taken: int
    """Periods that were new."""


class UnthrottledDoc(msgspec.Struct, frozen=True):
    client: str
    databases: Sequence[str]
    started_at: str
    """ISO 8601, UTC, by this agent's clock."""
    duration_s: float
    ended_s_ago: float
    pieces: int


class UnthrottledsDoc(msgspec.Struct, frozen=True):
    unthrottled: Sequence[UnthrottledDoc]


def unthrottled_advice(docs: Sequence[UnthrottledDoc]) -> list[str]:
    """In words, one line for each client, the most work first."""
    by_client: dict[str, list[UnthrottledDoc]] = {}
    for doc in docs:
        by_client.setdefault(doc.client, []).append(doc)
    most_first = sorted(by_client.items(), key=lambda item: -sum(d.pieces for d in item[1]))
    told = [_line(client, mine) for client, mine in most_first[:MAX_TOLD]]
    more = len(most_first) - MAX_TOLD
    return [*told, f"and {more} more clients worked without a throttler"] if more > 0 else told


def _line(client: str, docs: Sequence[UnthrottledDoc]) -> str:
    pieces, total_s = sum(doc.pieces for doc in docs), sum(doc.duration_s for doc in docs)
    ago = duration(min(doc.ended_s_ago for doc in docs))
    works = "piece" if pieces == 1 else "pieces"
    return (
        f"{client} worked without a throttler for {duration(total_s)} and started {pieces:,} "
        f"{works} of work; that ended {ago} ago. Check whether it can reach its agent"
    )
