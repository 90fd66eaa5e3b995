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

from headgate.base.names import Scope
from headgate.check.snapshot import DatabaseSnapshot
from headgate.check.snapshot_api import Snapshot
from headgate.errors import PeerFailed

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
    if shard is None or not shard.ask:
        return None
    whole = any(standing.ref.scope is Scope.SHARD for standing in view.health.default.standings)
    return (shard.ask, shard.ask_database) if whole else None
