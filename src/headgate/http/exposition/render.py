"""All series of an agent, and their text.   Look ──rows──► lines ──► /metrics

Lines are written here and not by prometheus_client, which takes five times as long: thousands of
rows are made on the loop that answers checks, and in turns with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from math import inf, isnan
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import CollectorRegistry

from headgate.http.exposition.agent import AGENT
from headgate.http.exposition.budgets import BUDGETS
from headgate.http.exposition.clients import CLIENTS
from headgate.http.exposition.fleet import FLEET
from headgate.http.exposition.health import HEALTH
from headgate.http.exposition.pacing import PACING
from headgate.http.exposition.policies import POLICIES
from headgate.http.exposition.rules import RULES
from headgate.http.exposition.series import Look, Row, Series, Spread, Works
from headgate.http.exposition.shards import SHARDS
from headgate.http.exposition.watching import WATCHING

if TYPE_CHECKING:
    from headgate.http.views import Views

SECTIONS: dict[str, tuple[Series, ...]] = {
    "Clients and their checks": CLIENTS,
    "Health": HEALTH,
    "Shards": SHARDS,
    "Rules": RULES,
    "Paced admission": PACING,
    "Starvation, and who never asks": WATCHING,
    "Budgets": BUDGETS,
    "The policy of budgets": POLICIES,
    "Fleet": FLEET,
    "The agent itself": AGENT,
}
SERIES: tuple[Series, ...] = tuple(series for section in SECTIONS.values() for series in section)
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
ROWS_A_TURN = 250
"""About a millisecond."""


def render_metrics(views: Views, works: Works | None = None) -> tuple[bytes, str]:
    look = Look(views, works)
    return b"".join([*(_text(series, look) for series in SERIES), _process(look)]), CONTENT_TYPE


async def render_in_turns(views: Views, works: Works | None = None) -> tuple[bytes, str]:
    """The same, and checks are answered between one series and the next, and within large ones."""
    look, texts = Look(views, works), []
    for series in SERIES:
        texts.append(_head(series))
        # At once: what rows are made from may change while others have their turn.
        rows = list(series.rows(look))
        for at in range(0, len(rows), ROWS_A_TURN):
            texts.append("".join(_lines(series, rows[at : at + ROWS_A_TURN])).encode())
            await asyncio.sleep(0)
        await asyncio.sleep(0)
    return b"".join([*texts, _process(look)]), CONTENT_TYPE


def _text(series: Series, look: Look) -> bytes:
    return _head(series) + "".join(_lines(series, series.rows(look))).encode()


def _head(series: Series) -> bytes:
    about = series.about.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {series.name} {about}\n# TYPE {series.name} {series.kind}\n".encode()


def _lines(series: Series, rows: Iterable[Row]) -> Iterator[str]:
    name = series.name
    places = sorted(range(len(series.labels)), key=series.labels.__getitem__)
    openings = [(place, f'{series.labels[place]}="') for place in places]
    for values, value in rows:
        labels = ",".join([f'{opening}{_escaped(values[at])}"' for at, opening in openings])
        if isinstance(value, Spread):
            yield from _histogram(name, labels, value)
        else:
            yield (
                f"{name}{{{labels}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n"
            )


def _histogram(name: str, labels: str, spread: Spread) -> Iterator[str]:
    before = f"{labels}," if labels else ""
    for bound, count in spread.counts.items():
        yield f'{name}_bucket{{{before}le="{bound}"}} {_number(count)}\n'
    own = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{own} {_number(spread.counts['+Inf'])}\n"
    yield f"{name}_sum{own} {_number(spread.sum_s)}\n"


def _escaped(value: str) -> str:
    if value.isalnum():
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if isnan(value) else repr(float(value))


def _process(look: Look) -> bytes:
    """process_cpu_seconds_total and its like, under the names that every dashboard knows."""
    if look.works is None:
        return b""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return generate_latest(registry)
