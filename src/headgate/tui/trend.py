"""What `top` remembers between two looks: recent values, rates, and whether anybody answers.

Values are kept by the quarter of a minute, each with the worst that was seen in it: what the
agent's history tells of the minutes before goes in front, so that nothing begins empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headgate.check.answer_api import MetricDoc
from headgate.check.api import ClientDoc, DatabaseDoc, StatusDoc
from headgate.proxy.api import ProxyStatusDoc

SLOT_S = 15.0
KEEP_SLOTS = 60
"""A quarter of an hour."""
RATE_WINDOW_S = 5.0
Key = tuple[str, str]
"""Database and metric; of a shard's member, `member metric`."""
Slots = dict[int, float | None]
Clients = Mapping[Key, ClientDoc]


class PastMinute(NamedTuple):
    """One metric in one minute that is over."""

    key: Key
    ended_s_ago: float
    value: float | None


class Picture(Struct, frozen=True):
    """The status, whole: the screen draws it while the next one is being asked for."""

    url: str
    status: StatusDoc | None = None
    seen_at_s: float | None = None
    """Monotonic: when the agent last answered."""
    lost: str | None = None
    """Why the last look failed; None while the agent answers."""
    lost_at_s: float | None = None
    recent: Mapping[Key, Sequence[float | None]] = {}
    rates: Mapping[Key, tuple[float, float]] = {}
    restarted_at_s: float | None = None
    """When the agent was seen to have restarted; None: not since this one watches."""

    proxy: ProxyStatusDoc | None = None
    """Of a proxy, which has no status of an agent."""

    @property
    def databases(self) -> Sequence[DatabaseDoc]:
        return self.status.databases if self.status is not None else ()


class Trend:
    def __init__(self, url: str) -> None:
        self.url = url
        self._slots: dict[Key, Slots] = {}
        self._history: list[tuple[Key, int, float | None]] = []
        self._looks: deque[tuple[float, Clients]] = deque()
        self.picture = Picture(url)

    def take(self, status: StatusDoc, at_s: float) -> Picture:
        restarted = self._restarted(status, at_s)
        clients = {(c.database, c.client): c for c in status.clients}
        before = self.picture.status
        is_another = before is not None and before.agent != status.agent
        rates = self._rates(clients, at_s, is_another=is_another)
        recent = self._remember(status, at_s)
        self.picture = Picture(
            self.url, status, at_s, recent=recent, rates=rates, restarted_at_s=restarted
        )
        return self.picture

    def recall(self, minutes: Iterable[PastMinute], now_s: float) -> None:
        """What the agent's history says; it goes where nothing was seen."""
        found = []
        for past in minutes:
            last = _slot(now_s - past.ended_s_ago - SLOT_S / 2)
            found += [(past.key, slot, past.value) for slot in range(last - 3, last + 1)]
        self._history = found

    def lose(self, why: str, at_s: float) -> Picture:
        """Keep the last picture, and say that it is the last one."""
        before = self.picture
        lost_at_s = before.lost_at_s if before.lost is not None else at_s
        self.picture = replace(before, lost=why, lost_at_s=lost_at_s)
        return self.picture

    def _rates(
        self, clients: Clients, at_s: float, *, is_another: bool
    ) -> dict[Key, tuple[float, float]]:
        """Over some seconds: a job that checks once a second would flicker between 0 and 2. Two
        agents' counts are not compared."""
        looks = self._looks
        if looks and (is_another or _went_back(looks[-1][1], clients)):
            looks.clear()
        looks.append((at_s, clients))
        while len(looks) > 2 and looks[1][0] <= at_s - RATE_WINDOW_S:
            looks.popleft()
        before_s, before = looks[0]
        return _rates(before, clients, at_s - before_s)

    def _restarted(self, status: StatusDoc, at_s: float) -> float | None:
        before, seen_at_s = self.picture.status, self.picture.seen_at_s
        if before is None or seen_at_s is None:
            return None
        if status.agent != before.agent:
            return None  # Another agent answers now, as after a failover: it is up for longer.
        restarted = status.uptime_s < before.uptime_s
        return at_s if restarted else self.picture.restarted_at_s

    def _remember(self, status: StatusDoc, at_s: float) -> dict[Key, tuple[float | None, ...]]:
        slot = _slot(at_s)
        seen: dict[Key, Slots] = {}
        for database in status.databases:
            for key, value in _values(database):
                slots = seen[key] = self._slots.get(key, {})
                slots[slot] = _worse(slots.get(slot), value)
        self._slots = seen  # A metric that was removed is forgotten: this stays bounded.
        self._merge_history(slot)
        return {key: _row(slots, slot) for key, slots in seen.items()}

    def _merge_history(self, now: int) -> None:
        for key, slot, value in self._history:
            if now - KEEP_SLOTS < slot < now and key in self._slots:
                self._slots[key].setdefault(slot, value)
        self._history = []


def _values(database: DatabaseDoc) -> Iterable[tuple[Key, float | None]]:
    for metric in database.every_metric:
        yield (database.database, metric.name), _seen(metric)
    for member in database.shard.members if database.shard is not None else ():
        for metric in member.readings:
            yield (database.database, f"{member.member} {metric.metric}"), _seen(metric)


def _seen(metric: MetricDoc) -> float | None:
    """A value that was read counts, whatever else is wrong: replication that stopped has a lag."""
    return None if metric.state in ("unavailable", "idle") else metric.value


def _slot(at_s: float) -> int:
    return int(at_s // SLOT_S)


def _worse(before: float | None, now: float | None) -> float | None:
    """A spike that lasted a second is seen for as long as its slot is."""
    if before is None or now is None:
        return before if now is None else now
    return max(before, now)


def _row(slots: Slots, now: int) -> tuple[float | None, ...]:
    """The last ones, up to this; what was not seen is a gap."""
    if len(slots) > KEEP_SLOTS:
        for old in [slot for slot in slots if slot <= now - KEEP_SLOTS]:
            del slots[old]
    return tuple(map(slots.get, range(now - KEEP_SLOTS + 1, now + 1)))


def _went_back(before: Clients, now: Clients) -> bool:
    """The agent has started to count again."""
    for key, client in now.items():
        past = before.get(key)
        if past is not None and (
            client.admitted < past.admitted or client.rejected < past.rejected
        ):
            return True
    return False


def _rates(before: Clients, now: Clients, elapsed_s: float) -> dict[Key, tuple[float, float]]:
    """Per second. A client without a past has no rate yet."""
    rates = {}
    for key, client in now.items():
        past = before.get(key)
        if past is not None and elapsed_s > 0:
            admitted, rejected = client.admitted - past.admitted, client.rejected - past.rejected
            rates[key] = (admitted / elapsed_s, rejected / elapsed_s)
    return rates
