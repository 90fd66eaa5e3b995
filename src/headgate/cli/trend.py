"""What `top` remembers between two looks: recent values, rates, and whether anybody answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.cli.documents import Client, Status

KEEP_VALUES = 120
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class View:
    """One picture, whole: the screen draws it while the next one is being asked for."""

    url: str
    status: Status | None = None
    seen_at_s: float | None = None
    """Monotonic: when the agent last answered."""
    lost: str | None = None
    """Why the last look failed; None while the agent answers."""
    lost_at_s: float | None = None
    recent: Mapping[Key, Sequence[float | None]] = field(default_factory=dict)
    rates: Mapping[Key, tuple[float, float]] = field(default_factory=dict)


class Trend:
    def __init__(self, url: str) -> None:
        self._url = url
        self._recent: dict[Key, deque[float | None]] = {}
        self._before: Mapping[Key, Client] = {}
        self.view = View(url)

    def take(self, status: Status, at_s: float) -> View:
        recent = self._remember(status)
        clients = {(c.database, c.client): c for c in status.clients}
        seen_at_s = self.view.seen_at_s
        rates = _rates(self._before, clients, at_s - seen_at_s) if seen_at_s is not None else {}
        self._before = clients
        self.view = View(self._url, status, at_s, recent=recent, rates=rates)
        return self.view

    def lose(self, why: str, at_s: float) -> View:
        """Keep the last picture, and say that it is the last one."""
        view = self.view
        lost_at_s = view.lost_at_s if view.lost is not None else at_s
        self.view = View(
            self._url, view.status, view.seen_at_s, why, lost_at_s, view.recent, view.rates
        )
        return self.view

    def _remember(self, status: Status) -> dict[Key, tuple[float | None, ...]]:
        seen: dict[Key, deque[float | None]] = {}
        for database in status.databases:
            for metric in database.every_metric:
                name = (
                    metric.metric if metric.scope == "host" else f"{metric.scope}/{metric.metric}"
                )
                key = (database.database, name)
                values = seen[key] = self._recent.get(key, deque(maxlen=KEEP_VALUES))
                values.append(None if metric.cause is not None else metric.value)
        self._recent = seen  # A metric that was removed is forgotten: this stays bounded.
        return {key: tuple(values) for key, values in seen.items()}


def _rates(
    before: Mapping[Key, Client], now: Mapping[Key, Client], elapsed_s: float
) -> dict[Key, tuple[float, float]]:
    """Per second. A client without a past, or whose counts went back, has no rate yet."""
    rates = {}
    for key, client in now.items():
        past = before.get(key)
        if past is None or elapsed_s <= 0:
            continue
        admitted, refused = client.admitted - past.admitted, client.refused - past.refused
        if admitted >= 0 and refused >= 0:
            rates[key] = (admitted / elapsed_s, refused / elapsed_s)
    return rates
