"""Decisions per minute, summed up per client: when was it mostly refused, and by what (R68)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from headgate.cli.documents import BadDocument, Tally

MOSTLY = 0.5
"""Share of a minute's checks from which on the client counts as held in that minute."""
MAX_SPANS = 4
MAX_BLAMED = 3


@dataclass(frozen=True, slots=True)
class ClientHistory:
    client: str
    database: str
    admitted: int
    refused: int
    mainly_by: tuple[tuple[str, float], ...]
    """Metrics or rules, with their share of the refusals, largest first."""
    spans: tuple[tuple[str, str], ...]
    """The newest stretches of minutes in which it was mostly refused, as (from, until)."""

    @property
    def refused_share(self) -> float:
        return self.refused / (self.admitted + self.refused)


def summarise(tallies: Iterable[Tally]) -> list[ClientHistory]:
    """Who was refused most comes first."""
    by_client: dict[tuple[str, str], list[Tally]] = {}
    for tally in tallies:
        if tally.count > 0:
            by_client.setdefault((tally.client, tally.database), []).append(tally)
    rows = [_one(client, database, mine) for (client, database), mine in by_client.items()]
    return sorted(rows, key=lambda row: (-row.refused, row.client, row.database))


def _one(client: str, database: str, tallies: Sequence[Tally]) -> ClientHistory:
    admitted: Counter[datetime] = Counter()
    refused: Counter[datetime] = Counter()
    blamed: Counter[str] = Counter()
    for tally in tallies:
        minute = _minute(tally.minute)
        if tally.verdict == "OK":
            admitted[minute] += tally.count
        else:
            refused[minute] += tally.count
            blamed[tally.metric or tally.verdict] += tally.count
    total = refused.total()
    held = [m for m, count in refused.items() if count >= MOSTLY * (count + admitted[m])]
    return ClientHistory(
        client=client,
        database=database,
        admitted=admitted.total(),
        refused=total,
        mainly_by=tuple((name, n / total) for name, n in blamed.most_common(MAX_BLAMED)),
        spans=tuple(_spans(held))[-MAX_SPANS:],
    )


def _spans(minutes: Iterable[datetime]) -> list[tuple[str, str]]:
    spans: list[list[datetime]] = []
    for minute in sorted(minutes):
        if spans and minute - spans[-1][1] <= timedelta(minutes=1):
            spans[-1][1] = minute
        else:
            spans.append([minute, minute])
    last_day = spans[-1][1].date() if spans else None
    return [
        (_clock(start, last_day), f"{end + timedelta(minutes=1):%H:%M}") for start, end in spans
    ]


def _clock(at: datetime, last_day: object) -> str:
    """The day is said only where it is not that of the newest span."""
    return f"{at:%H:%M}" if at.date() == last_day else f"{at:%d %b %H:%M}"


def _minute(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise BadDocument("tallies.minute", f"is {text!r}, which is no time") from None
