"""Send snapshots to clients that decide locally, as they change (Server-Sent Events).

    Snapshots.view ──compared 20 × a second──► Broadcast ──same bytes──► every Subscriber

One loop per database looks for changes while a client listens, and encodes each once. A client
that does not read costs only its place: when it reads again it gets a whole snapshot, and after a
while without reading it is dropped. A client that may check may listen: a snapshot has no more
than the answers to a few checks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Annotated, Any

import msgspec
import structlog
from starlette.responses import Response

from headgate.base.names import parse_database, parse_identity
from headgate.base.ports import Clock
from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.demand import Demands
from headgate.check.health import Health, MetricStatus
from headgate.check.model import Activity
from headgate.check.questions import App, Database, about
from headgate.check.snapshot import NOTHING, DatabaseSnapshot
from headgate.check.snapshot_api import CONTENT_TYPE, SnapshotWriter, hello
from headgate.errors import InvalidRequest
from headgate.http.documents import SECURITY_HEADERS
from headgate.http.routes import Call, Route, Text

log = structlog.get_logger()

LOOK_EVERY_S, LOOK_AT_REST_S = 0.05, 0.5
"""Shortest pause between two events; a change that affects decisions waits no longer than this.
Clients of an idle database check at the agent instead, so there is less to look for."""
CALM_S = 0.2
"""How often to send readings that change no verdict, so that values do not become stale; more
often if a value's age limit is below four times this."""
BEAT_S = 1.0
"""Longest pause between two events: a client that gets nothing for longer is cut off."""
SEND_TIMEOUT_S = 5.0
"""A client that has not read for this long is dropped."""
MAX_SUBSCRIBERS = 512
"""Or half of the agent's connections, if that is less."""
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Broadcast:
    """One database's changes, numbered; `latest` is what all but latecomers get next."""

    def __init__(self, database: str, snapshots: Snapshots, clock: Clock) -> None:
        self.database = database
        self._snapshots = snapshots
        self._clock = clock
        self._writer = SnapshotWriter()
        self._view: DatabaseSnapshot | None = None
        self._said_at = 0.0
        self._whole: tuple[int, float, bytes] = (0, 0.0, b"")
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.number = 0
        self.latest = b""
        self.ended = False
        self.sent_bytes = 0

    async def prime(self) -> None:
        view = self._snapshots.view(self.database)
        for _ in self._writer.prime(view, self._clock.now()) if view is not None else ():
            await asyncio.sleep(0)

    def look(self) -> bool:
        """See what changed, and say it; False once the database is gone."""
        view, now = self._snapshots.view(self.database), self._clock.now()
        if view is None:
            return False
        quiet_s, before = now.mono_s - self._said_at, self._view
        if before is None or self._is_due(before, view, quiet_s):
            self._view = view
            self._say(self._writer.change(view, now), now.mono_s)
        elif quiet_s >= BEAT_S:
            self._say(self._writer.beat(now), now.mono_s)
        return True

    @property
    def is_awake(self) -> bool:
        return self._view is None or self._view.awake

    @staticmethod
    def _is_due(before: DatabaseSnapshot, view: DatabaseSnapshot, quiet_s: float) -> bool:
        if not differs(before, view):
            return False
        return quiet_s >= _calm_s(view) or is_urgent(before, view)

    def _say(self, message: bytes, mono_s: float) -> None:
        self._said_at = mono_s
        self.number += 1
        self.latest = message
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(None)

    def whole(self) -> bytes:
        """For who comes, or comes late; encoded once for all who come at about one time."""
        serial, at, encoded = self._whole
        now = self._clock.now()
        if serial != self._writer.serial or now.mono_s - at > BEAT_S / 2:
            encoded = self._writer.whole(now)
            self._whole = (self._writer.serial, now.mono_s, encoded)
        return encoded

    async def after(self, number: int) -> None:
        """Until there is something that comes after `number`."""
        while self.number == number and not self.ended:
            await asyncio.shield(self._news)

    def end(self) -> None:
        self.ended = True
        if not self._news.done():
            self._news.set_result(None)


def _calm_s(view: DatabaseSnapshot) -> float:
    lasting_s = (standing.spec.max_age_s for standing in view.health.standings.values())
    return min(CALM_S, min(lasting_s, default=CALM_S) / 4)


class Subscriber:
    """The place of one who listens."""

    __slots__ = ("broadcast", "lost", "origin")

    def __init__(self, broadcast: Broadcast, origin: str) -> None:
        self.broadcast = broadcast
        self.origin = origin
        self.lost = False
        """Its place went to another client: the stream ends with the next event."""


class Broadcasts:
    """For all databases; each runs while a client listens. If all places are taken, the address
    with the most loses one to an address with fewer."""

    def __init__(
        self, snapshots: Snapshots, clock: Clock, max_subscribers: int = MAX_SUBSCRIBERS
    ) -> None:
        self._snapshots = snapshots
        self._clock = clock
        self.max_subscribers = max_subscribers
        self._running: dict[str, tuple[Broadcast, asyncio.Task[None]]] = {}
        self._seats: set[Subscriber] = set()
        self._opening = asyncio.Lock()
        self.dropped_total = 0
        self.closed = False

    @property
    def subscribers(self) -> int:
        return sum(not seat.lost for seat in self._seats)

    async def join(self, database: str, origin: str) -> Subscriber:
        async with self._opening:
            giving_way = self._check(database, origin)
            if database not in self._running:
                await self._open(database, origin)
            seat = Subscriber(self._running[database][0], origin)
            self._seats.add(seat)
            if giving_way is not None:
                giving_way.lost = True
            return seat

    async def _open(self, database: str, origin: str) -> None:
        broadcast = Broadcast(database, self._snapshots, self._clock)
        await broadcast.prime()
        if not broadcast.look():
            self._check(database, origin)
        task = asyncio.ensure_future(self._run(broadcast))
        self._running[database] = (broadcast, task)

    def _check(self, database: str, origin: str) -> Subscriber | None:
        """Raises where there is no place; the one whose place it would be, where all are taken."""
        if self._snapshots.closed:
            raise InvalidRequest(f"{self._snapshots.closed}; check at the agent", status=503)
        giving_way = None
        if self.subscribers >= self.max_subscribers:
            giving_way = self._giving_way_to(origin)
        if self.closed or (giving_way is None and self.subscribers >= self.max_subscribers):
            message = f"{self.subscribers} clients listen to snapshots, or the agent is stopping"
            raise InvalidRequest(f"{message}; check at the agent, and retry later", status=503)
        if self._snapshots.view(database) is None:
            known = ", ".join(self._snapshots.databases) or "none"
            message = f"no database {database!r} is configured on this agent; configured: {known}"
            raise InvalidRequest(message, status=404, field="database")
        return giving_way

    def _giving_way_to(self, origin: str) -> Subscriber | None:
        """One of the address that has the most, if that is more than the newcomer's would be."""
        sitting = [seat for seat in self._seats if not seat.lost]
        counts = Counter(seat.origin for seat in sitting)
        most, count = counts.most_common(1)[0] if counts else ("", 0)
        if count <= counts[origin] + 1:
            return None
        return next(seat for seat in sitting if seat.origin == most)

    def leave(self, seat: Subscriber) -> None:
        self._seats.discard(seat)
        database = seat.broadcast.database
        if any(other.broadcast is seat.broadcast for other in self._seats):
            return
        broadcast, task = self._running.get(database, (None, None))
        if broadcast is seat.broadcast and task is not None:
            del self._running[database]
            task.cancel()

    async def _run(self, broadcast: Broadcast) -> None:
        try:
            while broadcast.look():
                await self._clock.sleep(LOOK_EVERY_S if broadcast.is_awake else LOOK_AT_REST_S)
            log.info("snapshots.database_gone", database=broadcast.database)
        except Exception:  # the supervisor of this loop: its end tells the clients
            log.exception("snapshots.failed", database=broadcast.database)
        finally:
            broadcast.end()
            if self._running.get(broadcast.database, (None,))[0] is broadcast:
                del self._running[broadcast.database]

    def close(self) -> None:
        """The agent stops: every stream ends."""
        self.closed = True
        for broadcast, _ in list(self._running.values()):
            broadcast.end()


class _Stream(Response):
    """Runs for as long as its client reads."""

    media_type = CONTENT_TYPE

    def __init__(self, broadcasts: Broadcasts, seat: Subscriber, clock: Clock) -> None:
        super().__init__(headers={**SECURITY_HEADERS, "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._broadcasts = broadcasts
        self._seat = seat
        self._broadcast = seat.broadcast
        self._clock = clock

    async def __call__(self, scope: Any, receive: Any, send: _Send) -> None:
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            if scope["method"] != "HEAD":
                await self._tell(send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._broadcasts.leave(self._seat)

    async def _tell(self, send: _Send) -> None:
        broadcast = self._broadcast
        greeting = hello(self._clock.now().mono_s, BEAT_S)
        number = broadcast.number
        if not await self._sent(send, greeting + broadcast.whole()):
            return
        while not broadcast.ended and not self._seat.lost:
            await broadcast.after(number)
            missed = broadcast.number - number - 1
            number = broadcast.number
            message = broadcast.whole() if missed > 0 else broadcast.latest
            if not broadcast.ended and not await self._sent(send, message):
                return

    async def _sent(self, send: _Send, data: bytes) -> bool:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            self._broadcasts.dropped_total += 1
            log.warning("snapshots.reader_dropped", database=self._broadcast.database)
            # The end cannot be said to who does not read: the connection is cut instead.
            raise ConnectionAbortedError("the client does not read its snapshots") from None
        self._broadcast.sent_bytes += len(data)
        return True


class SnapshotQuery(msgspec.Struct, frozen=True, kw_only=True):
    database: Annotated[Database, about("Database to listen to.")]
    app: Annotated[App, about("Client name.")] = ""


class Streaming:
    """Handlers, as Control's."""

    def __init__(self, broadcasts: Broadcasts, clock: Clock) -> None:
        self._broadcasts = broadcasts
        self._clock = clock

    async def snapshot(self, call: Call[SnapshotQuery, None]) -> Response:
        parse_identity(call.query.app)
        origin = call.request.state.peer.address
        seat = await self._broadcasts.join(parse_database(call.query.database), origin)
        return _Stream(self._broadcasts, seat, self._clock)


STREAMING_ROUTES = (
    Route(
        "GET", "/v1/snapshot", "snapshot", "All that decides checks of a database, as it changes",
        Text(CONTENT_TYPE), query=SnapshotQuery, errors=(404, 503), example={"database": "main"},
        about="A stream of events; see [deciding locally](http.md#deciding-locally).",
    ),
)  # fmt: skip


# --- snapshots -----------------------------------------------------------------------------------

# What a database looks like to clients that decide locally.   Board, Checker ──► DatabaseSnapshot
#
# Everything in it is frozen and replaced as a whole, so a change is a new object. The streamer
# (check/streaming.py) compares objects, several times in a tenth of a second, and only while a
# client listens. So neither a check nor a reading has to notify anyone.


class Snapshots:
    def __init__(self, board: Board, checker: Checker, demands: Demands | None) -> None:
        self._healths = board.healths
        self._checker = checker
        self._demands = demands

    @property
    def closed(self) -> str:
        """Why no client may decide locally: the agent rejects every check, too."""
        return self._checker.closed

    @property
    def databases(self) -> list[str]:
        return sorted(self._healths)

    def view(self, database: str) -> DatabaseSnapshot | None:
        health, checker = self._healths.get(database), self._checker
        if health is None:
            return None
        pacer = checker.pacers.get(database)
        return DatabaseSnapshot(
            health,
            checker.rules,
            checker.anonymous_may_pass,
            checker.active_agent,
            self._is_awake(database),
            frozenset(pacer.metrics) if pacer is not None else NOTHING,
            checker.fairness is not None,
        )

    def _is_awake(self, database: str) -> bool:
        demand = self._demands.by_database.get(database) if self._demands is not None else None
        return demand is None or demand.state is Activity.AWAKE


def differs(before: DatabaseSnapshot, after: DatabaseSnapshot) -> bool:
    """By identity: what is equal but new has been read again, and is fresher."""
    return (
        before.health is not after.health
        or before.rules is not after.rules
        or before[2:] != after[2:]
    )


def is_urgent(before: DatabaseSnapshot, after: DatabaseSnapshot) -> bool:
    """Whether some check may be decided differently now; else it is just the next reading."""
    if before.rules is not after.rules or before[2:] != after[2:]:
        return True
    return _shape(before.health) != _shape(after.health)


def _shape(health: Health) -> tuple[object, ...]:
    shard = health.shard
    whole = (
        (shard.check_at, shard.check_at_database, _marks(shard.standings))
        if shard is not None
        else None
    )
    return _marks(health.standings), whole


def _marks(standings: Mapping[str, MetricStatus]) -> tuple[object, ...]:
    return tuple(
        (name, s.spec, s.breached, s.passes, s.absent is None or s.absent.cause)
        for name, s in standings.items()
    )
