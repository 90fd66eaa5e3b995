"""All series of an agent.   Scrape ──rows──► base/prometheus ──► /metrics"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prometheus_client import ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from headgate.base.prometheus import CONTENT_TYPE, head, lines
from headgate.http.exposition.agent import AGENT, WATCHING
from headgate.http.exposition.budgets import BUDGETS, POLICIES
from headgate.http.exposition.clients import CLIENTS, RULES
from headgate.http.exposition.health import HEALTH, PACING
from headgate.http.exposition.series import Scrape, Section, Series, Works
from headgate.http.exposition.shards import FLEET, SHARDS

if TYPE_CHECKING:
    from headgate.check.views import Views

SECTIONS: dict[str, Section] = {
    "Clients and their checks": CLIENTS,
    "Health": HEALTH,
    "Shards": SHARDS,
    "Rules": RULES,
    "Paced admission": PACING,
    "Starvation and rogue clients": WATCHING,
    "Budgets": BUDGETS,
    "The policy of budgets": POLICIES,
    "Fleet": FLEET,
    "The agent itself": AGENT,
}
SERIES: tuple[Series, ...] = tuple(series for section in SECTIONS.values() for series in section)
ROWS_A_TURN = 250
"""About a millisecond."""


def render_metrics(views: Views, works: Works | None = None) -> tuple[bytes, str]:
    look = Scrape(views, works)
    return b"".join([*(series.text(look) for series in SERIES), _process(look)]), CONTENT_TYPE


async def render_in_turns(views: Views, works: Works | None = None) -> tuple[bytes, str]:
    """The same, and checks are answered between one series and the next, and within large ones."""
    look, texts = Scrape(views, works), []
    for series in SERIES:
        texts.append(head(series))
        # At once: what rows are made from may change while others have their turn.
        rows = list(series.rows(look))
        for at in range(0, len(rows), ROWS_A_TURN):
            texts.append("".join(lines(series, rows[at : at + ROWS_A_TURN])).encode())
            await asyncio.sleep(0)
        await asyncio.sleep(0)
    return b"".join([*texts, _process(look)]), CONTENT_TYPE


def _process(look: Scrape) -> bytes:
    """process_cpu_seconds_total and its like, under the names that every dashboard knows."""
    if look.works is None:
        return b""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return generate_latest(registry)
