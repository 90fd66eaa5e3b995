"""The agents that a proxy follows: which one to trust now, which one to query next.

    settings ──urls──► Agents ──► AgentStream (one agent: its stream of snapshots, its API)
                          │  best(): the first that is fresh and may speak
                          └─ learned: the agents that the others name

Streams run in threads of their own (the SDK's feed), so nothing here waits. Each caller makes its
own calls, with its own deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import structlog

from headgate.base.names import Scope
from headgate.base.ports import Clock
from headgate.check.health import Health
from headgate.check.reasons import duration
from headgate.check.snapshot import DatabaseSnapshot
from headgate.check.snapshot_api import Snapshot
from headgate.errors import PeerFailed
from headgate.metrics.samples import Cause
from headgate.proxy.ports import PartState, Relay

FRESH_S = 3.0
"""How old an agent's last word may be, to be believed before another's. It speaks each second."""
MAX_HOPS = 3
MAX_LEARNT = 8
KEEP_LEARNT_S = 60.0
"""So long a stream is kept to which nobody points any more."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


class SnapshotFeed(Protocol):
    """A stream of snapshots (client/local_feed.py)."""

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest; replaced whole by a thread."""
        ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class AgentApi(Protocol):
    """One agent's API."""

    @property
    def url(self) -> str: ...

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        body: bytes = b"",
        timeout_s: float = 2.0,
        max_bytes: int = 1024 * 1024,
    ) -> Reply:
        """Or PeerFailed with who, what and how long."""
        ...

    async def close(self) -> None: ...


class Dialling(Protocol):
    """How agents are reached: addresses, tokens and TLS are the composition root's."""

    def now_s(self) -> float:
        """The clock that snapshots are dated by. Never compared with another."""
        ...

    def feed(self, url: str, database: str) -> SnapshotFeed | None:
        """Not started. None: not a place to go to (from TLS to plain text)."""
        ...

    def line(self, url: str) -> AgentApi: ...


class AgentStream:
    """One agent's stream."""

    def __init__(self, url: str, database: str, feed: SnapshotFeed) -> None:
        self.url = url
        self.database = database
        """What that agent calls it."""
        self.feed = feed
        self.wanted_s = 0.0
        """When an agent last named this one."""

    def fresh(self, now_s: float) -> Snapshot | None:
        snapshot = self.feed.snapshot
        if snapshot is None or now_s > snapshot.sent_s + FRESH_S:
            return None
        return snapshot


class AgentSnapshot(NamedTuple):
    voice: AgentStream
    snapshot: Snapshot


class Agents:
    def __init__(self, dialling: Dialling, urls: Sequence[str], database: str) -> None:
        self.database = database
        self._dial = dialling
        self.now_s: Callable[[], float] = dialling.now_s
        feeds = [(url, dialling.feed(url, database)) for url in urls]
        self._homes = [AgentStream(url, database, feed) for url, feed in feeds if feed is not None]
        self._learnt: dict[tuple[str, str], AgentStream] = {}
        self._lines = {url: dialling.line(url) for url in urls}
        self._spoke = ""
        """The URL of the agent that reported last: queried first."""

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def start(self) -> None:
        for voice in self._homes:
            voice.feed.start()

    # --- listening -------------------------------------------------------------------------

    def best(self) -> AgentSnapshot | None:
        """The agent that decides for the database; else the first that is fresh, whose rules hold
        although it does not decide for the shard; None: no agent reports."""
        now_s = self.now_s()
        fallback: AgentSnapshot | None = None
        for home in self._homes:
            heard = self._followed(home, now_s)
            if heard is not None and not points_on(heard.snapshot.view):
                return self._settled(heard)
            fallback = fallback or heard
        for voice in self._learnt.values():
            snapshot = voice.fresh(now_s)
            if snapshot is not None and not points_on(snapshot.view):
                return self._settled(AgentSnapshot(voice, snapshot))
        return None if fallback is None else self._settled(fallback)

    def _settled(self, heard: AgentSnapshot) -> AgentSnapshot:
        self._spoke = heard.voice.url
        return heard

    def _followed(self, home: AgentStream, now_s: float) -> AgentSnapshot | None:
        """Where `home` points to, and so on; itself, where that is silent yet."""
        snapshot = home.fresh(now_s)
        if snapshot is None:
            return None
        found = AgentSnapshot(home, snapshot)
        for _ in range(MAX_HOPS):
            onward = points_on(found.snapshot.view)
            voice = self._at(onward, now_s) if onward else None
            further = voice.fresh(now_s) if voice is not None else None
            if voice is None or further is None:
                break
            found = AgentSnapshot(voice, further)
        return found

    def _at(self, place: tuple[str, str], now_s: float) -> AgentStream | None:
        url, database = place[0], place[1] or self.database
        known = self._learnt.get((url, database))
        if known is None:
            known = self._meet(url, database)
        if known is not None:
            known.wanted_s = now_s
        return known

    def _meet(self, url: str, database: str) -> AgentStream | None:
        feed = self._dial.feed(url, database) if len(self._learnt) < MAX_LEARNT else None
        if feed is None:
            return None
        feed.start()
        voice = self._learnt[(url, database)] = AgentStream(url, database, feed)
        return voice

    def forget(self) -> None:
        """Streams to which nobody has pointed for a while end."""
        now_s = self.now_s()
        for place, voice in list(self._learnt.items()):
            if now_s - voice.wanted_s > KEEP_LEARNT_S:
                voice.feed.stop()
                del self._learnt[place]

    # --- requests --------------------------------------------------------------------------

    def lines(self) -> Iterator[AgentApi]:
        """Those of the settings, the last that reported first: the only token is theirs."""
        first = self._lines.get(self._spoke)
        if first is not None:
            yield first
        yield from (line for line in self._lines.values() if line is not first)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        body: bytes = b"",
        timeout_s: float = 2.0,
        max_bytes: int = 1024 * 1024,
    ) -> tuple[AgentApi, Reply]:
        """The first that answers; PeerFailed with what the last one did, where none does."""
        failed: PeerFailed | None = None
        for line in self.lines():
            try:
                reply = await line.ask(
                    method, path,
                    headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes,
                )  # fmt: skip
            except PeerFailed as fault:
                failed = fault
                continue
            return line, reply
        assert failed is not None, "settings name at least one agent"
        raise failed

    async def close(self) -> None:
        for voice in [*self._homes, *self._learnt.values()]:
            voice.feed.stop()
        for line in self._lines.values():
            await line.close()


def points_on(view: DatabaseSnapshot) -> tuple[str, str] | None:
    """Where the database is spoken for, if that is elsewhere: (agent, what it calls it)."""
    if view.active_agent:
        return view.active_agent, ""
    shard = view.health.shard
    if shard is None or not shard.check_at:
        return None
    whole = any(standing.ref.scope is Scope.SHARD for standing in view.health.default.standings)
    return (shard.check_at, shard.check_at_database) if whole else None


# --- link ----------------------------------------------------------------------------------------

# Follow the agents: what they report about the database goes to the parts that act on it.
#
#     Agents ──Snapshot──► AgentLink ──► gates, release (listeners)
#                              └──► relay.tell_health, for budgets that bite under pressure
#
# An agent that is gone changes nothing here: the gates keep the last rules. Its report of health
# expires in the relay, which then applies the configured fail policy. When the agent is back, the
# next look finds it.

log = structlog.get_logger()

LOOK_S = 0.05
"""As often as an agent sends, at most."""
TELL_S = 1.0
TOLD_FOR_S = 10.0
"""How long budgets with `when = "unhealthy"` believe it; as long as servers believe agents."""
FORGET_S = 10.0
_TOO_EARLY = frozenset({Cause.NEVER_READ, Cause.HIBERNATING, Cause.WARMING_UP, Cause.ELSEWHERE})


class SnapshotListener(Protocol):
    """Gets each new snapshot; returns at once."""

    def hear(self, snapshot: Snapshot) -> None: ...


class AgentLink:
    name = "agent"

    def __init__(
        self, agents: Agents, relay: Relay, clock: Clock, listeners: Sequence[SnapshotListener]
    ) -> None:
        self._agents = agents
        self._relay = relay
        self._clock = clock
        self._listeners = tuple(listeners)
        self._heard: AgentSnapshot | None = None
        self._told: tuple[float, bool] | None = None
        """When health was last reported (monotonic), and what."""
        self._silent_since: float | None = clock.now().mono_s
        self._forgot_at = 0.0
        self.heard_total = 0

    @property
    def snapshot(self) -> Snapshot | None:
        """The last one, however old."""
        return self._heard.snapshot if self._heard else None

    async def run(self) -> None:
        self._agents.start()
        while True:
            self.look()
            await self._clock.sleep(LOOK_S)

    def look(self) -> None:
        heard, now = self._agents.best(), self._clock.now().mono_s
        self._note(heard, now)
        if heard is not None and heard.snapshot is not self.snapshot:
            self._heard = heard
            self.heard_total += 1
            for listener in self._listeners:
                listener.hear(heard.snapshot)
        if heard is not None:
            self._tell_health(heard.snapshot, now)
        if now - self._forgot_at >= FORGET_S:
            self._forgot_at = now
            self._agents.forget()

    def _note(self, heard: AgentSnapshot | None, now: float) -> None:
        """Each change of state is said once."""
        if heard is None and self._silent_since is None:
            self._silent_since = now
            log.warning(
                "agent.silent", database=self._agents.database, agents=list(self._agents.urls),
                detail="the last policy and rules stay; health ages out, then on_loss applies",
            )  # fmt: skip
        if heard is None:
            return
        since, self._silent_since = self._silent_since, None
        if since is not None or self._heard is None or heard.voice is not self._heard.voice:
            away_s = None if since is None else round(now - since, 1)
            log.info("agent.heard", database=heard.voice.database, agent=heard.voice.url,
                     after_s=away_s)  # fmt: skip

    def _tell_health(self, snapshot: Snapshot, now: float) -> None:
        healthy = healthy_of(snapshot.view.health, self._agents.now_s())
        if healthy is None:
            return
        if self._told is not None and self._told[1] is healthy and now - self._told[0] < TELL_S:
            return
        self._told = (now, healthy)
        until_ms = int((self._clock.now().wall_s + TOLD_FOR_S) * 1000)
        self._relay.tell_health(healthy, until_ms)

    def state(self) -> PartState:
        now = self._clock.now().mono_s
        if self._silent_since is not None or self._heard is None:
            since_s = None if self._silent_since is None else now - self._silent_since
            told = duration(since_s) if since_s is not None else "the start"
            summary = f"no report from any agent since {told}: {', '.join(self._agents.urls)}"
            return PartState(self.name, False, summary, since_s, self._figures())
        snapshot = self._heard.snapshot
        age_s = max(0.0, self._agents.now_s() - snapshot.sent_s)
        summary = (
            f"follows {self._heard.voice.database} at {self._heard.voice.url}, "
            f"last seen {duration(age_s)} ago, {len(snapshot.view.rules.rules)} rules"
        )
        return PartState(self.name, True, summary, figures=self._figures())

    def _figures(self) -> dict[str, float | int | str | None]:
        snapshot = self.snapshot
        age_s = None if snapshot is None else max(0.0, self._agents.now_s() - snapshot.sent_s)
        return {
            "agent": self._heard.voice.url if self._heard else None,
            "snapshots_total": self.heard_total,
            "snapshot_age_s": age_s,
            "rules": len(snapshot.view.rules.rules) if snapshot else 0,
            "rules_revision": snapshot.view.rules.revision if snapshot else 0,
        }

    async def close(self) -> None:
        await self._agents.close()


def healthy_of(health: Health, now_s: float) -> bool | None:
    """As an agent reports to its server (budgets/service.py): a check of the default metrics, as
    far as this agent may decide. None while nothing was measured yet, and where values are stale:
    in a copy that means that the agent is silent, not that anything is wrong."""
    own = health.own
    if not own.standings:
        return None
    if any(s.absent is not None and s.absent.cause in _TOO_EARLY for s in own.standings):
        return None
    if own.all_pass and now_s > own.all_pass_until:
        return None
    return own.all_pass
