"""What a series is, and what its rows are read from.   Views, Works ──Scrape──► rows of one scrape

One row a metric: name, kind, labels, meaning. No label may have a value that grows without an
end; LABELS says of each what bounds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from headgate.base.ports import Clock
from headgate.base.prometheus import Row, Spread
from headgate.base.prometheus import Section as AnySection
from headgate.base.prometheus import Series as AnySeries
from headgate.check.health import Health
from headgate.http.listener import Listener
from headgate.metrics.samples import Instant
from headgate.shard.api import ShardDoc

# --- how late the loop is ------------------------------------------------------------------
# How late this process is.   Pulse.run ──► counts ──► /metrics
#
# It sleeps until a given time and measures how late it wakes. Anything that keeps the loop busy (a
# large answer, a host without CPU) makes it late, and would delay a check at that moment as well.

BEAT_S = 0.25
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Pulse:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    async def run(self) -> None:
        while True:
            due_s = self._clock.now().mono_s + BEAT_S
            await self._clock.sleep(BEAT_S)
            self.note(self._clock.now().mono_s - due_s)

    def note(self, late_s: float) -> None:
        late_s = max(0.0, late_s)
        self._counts[bisect_left(BOUNDS_S, late_s)] += 1
        self.sum_s += late_s

    def up_to(self) -> dict[str, int]:
        """Upper bound → how many were no later, as a histogram tells it."""
        found, so_far = {}, 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            so_far += count
            found[bound] = so_far
        return found


if TYPE_CHECKING:
    from headgate.check.views import AgentFacts, Parts, Views
    from headgate.history.recorder import Key

LABELS: dict[str, str] = {
    "agent": "this agent's `name`",
    "budget": "the first 200 of a database that were seen; the rest together is `other`",
    "cause": "why a metric is unavailable, a closed list ([causes](metrics.md#causes-of-absence)); "
    "of starvation, `exempt_client`, `differential_metrics`, `admitted_work`, `unexplained_load`",
    "client": "clients with their own place, at most `max_clients`; further ones are counted by "
    "level as `other:LEVEL`, at most a quarter of that, and then as `other`. Lists of throttled, "
    "starved or unthrottled clients have 100 at most",
    "database": "those of the settings; checks of any other are `(unknown)`",
    "health": "`healthy`, `unhealthy`, `unknown`",
    "kind": "of a rule: `ratio`, `hold`, `exempt`, `metrics`, `thresholds`; of an alert, a closed "
    "list",
    "limit": "`concurrency`, `burst`, `capacity`; of warnings also `threshold`",
    "member": "members of the database's shard, at most 256",
    "metric": "those of the settings, and of changes at run time; `(rule)` or `(budget)` if one of "
    "these decided. Empty if nothing rejected the check; `other` for names that are no metric's",
    "mode": "`off`, `warn`, `enforce`",
    "outcome": "a closed list, named with the series",
    "quantile": "`0.1`, `0.5`, `0.9`",
    "role": "`primary`, `replica`",
    "scope": "`host` or `shard`, of the metric that decided; empty if none did",
    "source": "`store`, `agent`, `nobody`",
    "state": "a closed list, named with the series",
    "store": "id of the fleet's store: one, and another once the agent follows a new store",
    "target": "of rules in force, 100 at most: exemptions and holds first",
    "user": "users of the database, the ten with the most work; the rest together is `other`",
    "verdict": "a closed list, see [verdicts](verdicts.md)",
    "version": "of this agent",
    "why": "a closed list, named with the series",
    "window": "`5m`, `1h`, `24h`",
}


Rows = Callable[["Scrape"], Iterator[Row]]
Series = AnySeries[["Scrape"]]
Section = AnySection[["Scrape"]]


@dataclass(frozen=True, slots=True)
class Works:
    """Measurements of the process itself; without it, there are none."""

    pulse: Pulse
    listener: Callable[[], Listener]


class Scrape:
    """One scrape: all values are of one instant, and computed once."""

    def __init__(self, views: Views, works: Works | None = None) -> None:
        self.views = views
        self.works = works
        self.now: Instant = views.parts.clock.now()

    @property
    def parts(self) -> Parts:
        return self.views.parts

    @property
    def facts(self) -> AgentFacts:
        return self.views.facts

    @property
    def healths(self) -> Mapping[str, Health]:
        return self.parts.board.healths

    @cached_property
    def shards(self) -> list[ShardDoc]:
        return self.views.shards(self.now)

    @cached_property
    def totals(self) -> dict[Key, int]:
        return self.parts.recorder.totals()


def single(value: Callable[[Scrape], float | Spread | None]) -> Rows:
    """The rows of a series without labels; None: it is missing."""

    def rows(look: Scrape) -> Iterator[Row]:
        if (found := value(look)) is not None:
            yield (), found

    return rows
