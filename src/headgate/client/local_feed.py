"""Keep the newest snapshot of one database, in the background.

    agent ══stream══► Feed's thread ──Snapshot, replaced whole──► LocalGate
    LocalGate ──counts──► LocalLedger ──► Reporter's thread ══batches══► agent

One Feed serves every client of this process that uses the same agent for the same database,
whether they block or await: a thread goes on while an event loop is busy. A forked child has
the feeds of its parent without their threads; it starts its own when it first decides.
"""

from __future__ import annotations

import atexit
import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from headgate.base.strict import Malformed
from headgate.check.snapshot_api import (
    HELLO,
    MAX_EVENT_BYTES,
    SnapshotReader,
    StoodStill,
    WrongVersion,
)
from headgate.client import local_clock
from headgate.client.drivers.pool import NO_SIGNAL, READ_BYTES, PooledConnection
from headgate.client.drivers.sync import Deadline, connect, converse
from headgate.client.events import warn
from headgate.client.gate import system_dice
from headgate.client.http1 import (
    BadResponse,
    Response,
    ResponseReader,
    _chunk_size,
    _ResponseHead,
    encode_request,
    exchange,
)
from headgate.client.local_ledger import LocalLedger
from headgate.client.parsing import BadAnswer, parse_object
from headgate.client.target import Target

if TYPE_CHECKING:
    from headgate.check.snapshot_api import Snapshot
    from headgate.client.local import LocalCheck, LocalGate


FRESH_S = 3.0
"""How old the agent's last word may be. It says something every second."""
SILENT_S = 5.0
"""A stream that says nothing for so long is dead; one that says what is older is of no use."""
RENEW_S = 600.0
"""A new stream is opened after about that long: two clocks do not run quite alike."""
LATE_S, RENEW_SOON_S = 0.2, 5.0
"""And so soon, where its first word took longer than that, as on an overloaded host."""
CONNECT_TIMEOUT_S = 2.0
REPORT_TIMEOUT_S = 1.0
REPORT_EVERY_S = 1.0
FLUSH_S = 1.0
"""What closing a client, and the end of the process, may take to tell the last counts."""
GIVE_UP_S = 60.0
"""So long a closed client's last counts are offered to an agent that does not answer."""
BACKOFF_BASE_S, BACKOFF_CAP_S = 0.1, 5.0
SETTLED_S = 10.0
"""A stream that lived that long did not fail at once: the next try is soon."""
REJECTED_RETRY_S = 30.0
"""After a no to the stream itself: too old an agent, no such database, too many streams."""


class LocalReports:
    """What was decided here, on its way to the agent: one batch at a time, in order."""

    def __init__(self, target: Target, database: str, token: str | None, told: set[str]) -> None:
        self._target = target
        self._database = database
        self._token = token
        self._told = told
        self.ledger = LocalLedger()
        self.checks: list[LocalCheck] = []
        """Who counts here."""
        self._post: PooledConnection | None = None
        self._reporting = threading.Lock()

    def forked(self) -> None:
        self.close()
        self._reporting = threading.Lock()
        self.ledger.restart()
        for check in self.checks:
            check.forked()
            check.gate.forked()

    def count(self, now_s: float) -> None:
        """Bring what was counted without a lock into the ledger."""
        for check in tuple(self.checks):
            check.settle(now_s)

    def report(self, deadline_s: float) -> bool:
        """Tell everything; False: nobody took it, in the time there was."""
        if not self._reporting.acquire(timeout=max(0.0, deadline_s - time.monotonic())):
            return False
        try:
            return self._reported(deadline_s)
        finally:
            self._reporting.release()

    def _reported(self, deadline_s: float) -> bool:
        while True:
            now_s = local_clock.now()
            self.count(now_s)
            body = self.ledger.batch(now_s)
            if body is None:
                return True
            left_s = min(REPORT_TIMEOUT_S, deadline_s - time.monotonic())
            if left_s <= 0 or not self._posted(body, left_s):
                return False
            self.ledger.taken()

    def _posted(self, body: bytes, timeout_s: float) -> bool:
        request = encode_request(
            "POST", "/v1/reports", host=self._target.host_header, token=self._token, body=body
        )
        deadline = Deadline(timeout_s)
        kept, self._post = self._post, None
        for connection in (kept, None):
            try:
                response = self._exchange(connection, request, deadline)
            except (OSError, BadResponse):
                if connection is None:
                    return False
                continue  # closed while it lay idle: a batch may come twice, and counts once
            return self._is_settled(response)
        return False

    def _exchange(
        self, kept: PooledConnection | None, request: bytes, deadline: Deadline
    ) -> Response:
        connection = kept or connect(self._target, deadline)
        try:
            response = converse(connection, request, ResponseReader(), deadline)
        except BaseException:
            connection.close()
            raise
        if response.keep_alive:
            self._post = connection
        else:
            connection.close()
        return response

    def _is_settled(self, response: Response) -> bool:
        """Whether to send the next batch: a rejected batch would be rejected again."""
        if response.status == 200:
            return True
        if response.status >= 500 or response.status == 429:
            return False
        if "reports" not in self._told:
            self._told.add("reports")
            warn("%s at %s: what was decided here is not counted there (status %d: %s)",
                 self._database, self._target, response.status, _why(response))  # fmt: skip
        return True

    def close(self) -> None:
        if self._post is not None:
            self._post.close()
            self._post = None


class Feed:
    def __init__(self, target: Target, database: str, app: str, token: str | None) -> None:
        self.target = target
        self.database = database
        self._app = app
        self._token = token
        self.snapshot: Snapshot | None = None
        """Read on the hot path; replaced whole by the thread."""
        self.users = 0
        self.left_s = 0.0
        """When the last user went."""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._connection: PooledConnection | None = None
        self._tries = 0
        self._late_streams = 0
        """In a row."""
        self._told: set[str] = set()
        """What was logged: each kind of trouble once, until a stream has held for a while."""
        self.reports = LocalReports(target, database, token, self._told)
        self._stale_since_s: float | None = None

    def __repr__(self) -> str:
        return f"<Feed of {self.database} from {self.target}>"

    # --- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Called with the registry's lock held; again in a child, where nothing runs."""
        if self._thread is None or not self._thread.is_alive() or self._stopped.is_set():
            self._stopped = threading.Event()
            self._thread = _started("headgate-snapshot", self._run, self._stopped)

    @property
    def has_begun(self) -> bool:
        """In this process, rather than in the one that it was forked from."""
        return self._thread is not None

    @property
    def is_running(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    def is_fresh(self, now_s: float) -> bool:
        snapshot = self.snapshot
        return snapshot is not None and now_s <= snapshot.sent_s + FRESH_S

    def stop(self) -> None:
        self._stopped.set()
        connection = self._connection
        if connection is not None:
            with suppress(OSError):  # it was faster, and is closed already
                connection.raw.shutdown(socket.SHUT_RDWR)

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def forked(self) -> None:
        """In a child: the thread, the connections and the counts are the parent's."""
        if self._connection is not None:
            self._connection.close()
        self._thread = self._connection = self.snapshot = None
        self.reports.forked()

    # --- the stream ------------------------------------------------------------------------

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            began_s = time.monotonic()
            try:
                pause_s = self._listen(stopped)
            except Exception as fault:  # the supervisor of this loop: it outlives what it reads
                self._tell("failed", f"{type(fault).__name__}: {fault}")
                self.snapshot = pause_s = None
            if pause_s is None:
                self._tries = 0 if time.monotonic() - began_s >= SETTLED_S else self._tries + 1
                # Cut off: an agent that is away for an hour makes a thousand tries.
                longest_s = BACKOFF_BASE_S * 2.0 ** min(self._tries, 16)
                pause_s = system_dice() * min(BACKOFF_CAP_S, longest_s)
            stopped.wait(pause_s)

    def _listen(self, stopped: threading.Event) -> float | None:
        """One stream, to its end. How long to pause then; None: as long as it takes."""
        try:
            response = self._stream(stopped)
        except WrongVersion as fault:
            self._tell("cannot be read", f"{fault}; install a newer SDK, or use local=False")
            return REJECTED_RETRY_S * (1 + system_dice())
        except StoodStill as fault:
            self._tell("cannot be dated", _words(fault))
            self.snapshot = None
            return 0.0
        except (Malformed, BadResponse, OSError) as fault:
            self._tell("broke", _words(fault))
            return None
        if response is None:
            return 0.0
        if response.status != 200:
            self._tell("is not available", f"status {response.status}: {_why(response)}")
            return REJECTED_RETRY_S * (1 + system_dice())
        self._tell("ended", "the agent stops, or does not know the database any more")
        return None

    def _stream(self, stopped: threading.Event) -> Response | None:
        """None: it has run for long enough; a new one is opened."""
        connection = connect(self.target, Deadline(CONNECT_TIMEOUT_S))
        self._connection = connection
        try:
            return self._read(connection, stopped)
        finally:
            self._connection = None
            connection.close()

    def _read(self, connection: PooledConnection, stopped: threading.Event) -> Response | None:
        asked_s = local_clock.now()
        reader = SnapshotReader(asked_s)
        renew_at_s = asked_s + RENEW_S * (0.75 + system_dice() / 2)

        def take(kind: str, data: str) -> None:
            nonlocal renew_at_s
            now_s = local_clock.now()
            snapshot = reader.take(kind, data, now_s)
            if kind == HELLO:
                renew_at_s = min(renew_at_s, self._renew_at_s(asked_s, now_s))
            if snapshot is None:
                return
            self.snapshot, age_s = snapshot, now_s - snapshot.sent_s
            if age_s > SILENT_S:
                raise Malformed(f"what it says is {age_s:.1f} s old when it is read")
            self._note_fresh(asked_s, now_s)

        path = f"/v1/snapshot?database={quote(self.database)}&app={quote(self._app, safe='')}"
        request = encode_request("GET", path, host=self.target.host_header, token=self._token)
        steps = exchange(request, StreamReader(take, MAX_EVENT_BYTES), connection.tls)
        outgoing = next(steps)
        try:
            while local_clock.now() < renew_at_s and not stopped.is_set():
                connection.raw.settimeout(SILENT_S)
                if outgoing:
                    connection.raw.sendall(outgoing, NO_SIGNAL)
                outgoing = steps.send(connection.raw.recv(READ_BYTES))
        except StopIteration as end:
            response: Response = end.value
            return response
        return None

    def _renew_at_s(self, asked_s: float, now_s: float) -> float:
        """Of a stream whose first word took long to come: whatever it says looks older by so
        much, for as long as it lasts, and short-lived values look aged out. Another one may be
        quicker; over a long way none is, so each try is twice as far off as the last."""
        if now_s - asked_s <= LATE_S:
            self._late_streams = 0
            return math.inf
        self._late_streams = min(self._late_streams + 1, 9)
        return now_s + RENEW_SOON_S * 2.0 ** (self._late_streams - 1) * (0.5 + system_dice())

    def _tell(self, what: str, detail: str) -> None:
        if what not in self._told and not self._stopped.is_set():
            self._told.add(what)
            warn("%s at %s: the stream of snapshots %s (%s); until there is a fresh one, "
                 "checks go to the agent", self.database, self.target, what, detail)  # fmt: skip

    def note_stale(self, now_s: float, age_s: float) -> None:
        """Log once that checks go to the agent from here on."""
        if self._stale_since_s is None:
            self._stale_since_s = now_s
            warn("%s at %s: the newest snapshot is %.1f s old (limit %g s); checks now go to the "
                 "agent", self.database, self.target, age_s, FRESH_S)  # fmt: skip

    def _note_fresh(self, asked_s: float, now_s: float) -> None:
        if self._told and now_s - asked_s > SETTLED_S:
            self._told.clear()
        since_s, self._stale_since_s = self._stale_since_s, None
        if since_s is not None:
            warn("%s at %s: snapshots come again after %.1f s; from now on decisions are made "
                 "here", self.database, self.target, max(0.0, now_s - since_s))  # fmt: skip


def _started(name: str, run: Callable[..., None], *args: object) -> threading.Thread | None:
    thread = threading.Thread(target=run, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None  # No thread available: check at the agent; a later check tries again.
    return thread


def _words(fault: Exception) -> str:
    if isinstance(fault, TimeoutError):
        return f"no data for {SILENT_S:g} s"
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror.lower()
    return str(fault)


def _why(response: Response) -> str:
    try:
        detail = parse_object(response.body).get("detail")
    except BadAnswer:
        detail = None
    return detail if isinstance(detail, str) else "no reason given"


# --- of this process -----------------------------------------------------------------------


class Feeds:
    """All of this process, and the thread that tells their counts."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._feeds: dict[tuple[object, ...], Feed] = {}
        self._wanted = threading.Event()
        self._reporter: threading.Thread | None = None
        self.abandoned: deque[LocalGate] = deque()
        """Of clients that were forgotten rather than closed. Filled by the garbage collector,
        which may come while a lock is held: so nothing else is done there."""

    def join(self, target: Target, database: str, app: str, token: str | None) -> Feed:
        # Clients may share a connection if they trust the same certificate authorities.
        trusted = target.trust and frozenset(target.trust.context.get_ca_certs(binary_form=True))
        key = (*target[1:4], trusted, database, token)
        with self.lock:
            feed = self._feeds.get(key)
            if feed is None:
                feed = self._feeds[key] = Feed(target, database, app, token)
            feed.users += 1
            self._start(feed)
        return feed

    def leave(self, feed: Feed) -> None:
        with self.lock:
            feed.users -= 1
            feed.left_s = time.monotonic()
        self._wanted.set()

    def revive(self, feed: Feed) -> None:
        """In a child, on its first decision."""
        with self.lock:
            self._start(feed)

    def _start(self, feed: Feed) -> None:
        feed.start()
        if self._reporter is None or not self._reporter.is_alive():
            self._reporter = _started("headgate-reports", self._report)

    def hurry(self) -> None:
        """Tell what there is now, rather than within the second."""
        self._wanted.set()

    def _report(self) -> None:
        while True:
            self._wanted.wait(REPORT_EVERY_S)
            self._wanted.clear()
            for feed in self._all():
                feed.reports.report(time.monotonic() + REPORT_TIMEOUT_S)
            if not self._swept():
                return

    def _all(self) -> list[Feed]:
        with self.lock:
            return list(self._feeds.values())

    def _swept(self) -> bool:
        """Let go of what nobody uses and has nothing left to tell; False: of everything."""
        while self.abandoned:
            self.abandoned.popleft().close(flush_s=0.0)
        now_s = time.monotonic()
        with self.lock:
            for key, feed in list(self._feeds.items()):
                if feed.users:
                    continue
                feed.stop()
                if feed.reports.ledger.is_empty or now_s - feed.left_s > GIVE_UP_S:
                    feed.reports.close()
                    del self._feeds[key]
            if not self._feeds:
                self._reporter = None
            return bool(self._feeds)

    def flush(self, within_s: float = FLUSH_S) -> None:
        """At the end of the process."""
        ends_s = time.monotonic() + within_s
        for feed in self._all():
            if feed.has_begun:
                feed.reports.report(ends_s)

    def forked(self) -> None:
        self.lock = threading.Lock()
        self._wanted = threading.Event()
        self._reporter = None
        for feed in self._feeds.values():
            feed.forked()


FEEDS = Feeds()
atexit.register(FEEDS.flush)
os.register_at_fork(after_in_child=FEEDS.forked)


# --- the stream ----------------------------------------------------------------------------
# A stream of events, read as it comes.   bytes ──► StreamReader ──► (kind, data)
#
# No sockets here: a driver feeds it, over TLS or not, as it feeds any other exchange.


EVENT_STREAM = "text/event-stream"
TakeEvent = Callable[[str, str], None]


class EventReader:
    """Server-Sent Events, as much of them as our agent sends: a kind and one line of data."""

    def __init__(self, take: TakeEvent, max_event_bytes: int) -> None:
        self._take = take
        self._most = max_event_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        searched = max(0, len(self._buffer) - 1)
        self._buffer += data
        while (end := self._buffer.find(b"\n\n", searched)) >= 0:
            block = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            searched = 0
            self._tell(block)
        if len(self._buffer) > self._most:
            raise BadResponse(f"an event of more than {self._most} bytes")

    def _tell(self, block: bytes) -> None:
        fields: dict[str, str] = {}
        try:
            lines = block.decode().split("\n")
        except UnicodeDecodeError:
            raise BadResponse("an event that is not UTF-8") from None
        for line in lines:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        if "data" in fields:
            self._take(fields.get("event", "message"), fields["data"])


class StreamReader(ResponseReader):
    """A response whose body is handed on piece by piece, where it is a stream of events."""

    def __init__(self, take: TakeEvent, max_event_bytes: int) -> None:
        super().__init__()
        self._events = EventReader(take, max_event_bytes)
        self._max_chunk_bytes = max_event_bytes + 1024

    def _body(self, head: _ResponseHead) -> Generator[None, None, tuple[bytes, bool]]:
        kind = head.headers.get("content-type", "").partition(";")[0].strip()
        if head.status != 200 or kind != EVENT_STREAM:
            return (yield from super()._body(head))
        coding = head.headers.get("transfer-encoding", "").lower()
        yield from self._pieces() if coding == "chunked" else self._as_it_comes()
        return b"", False

    def _pieces(self) -> Generator[None, None, None]:
        while size := _chunk_size((yield from self._until(b"\r\n"))):
            if size > self._max_chunk_bytes:
                raise BadResponse(f"a piece of {size} bytes, at most {self._max_chunk_bytes}")
            piece = yield from self._take(size + 2)
            if not piece.endswith(b"\r\n"):
                raise BadResponse("a piece of the stream is not as long as it says")
            self._events.feed(piece[:-2])

    def _as_it_comes(self) -> Generator[None, None, None]:
        while True:
            piece = bytes(self._buffer)
            self._buffer.clear()
            self._events.feed(piece)
            if self._ended:
                return
            yield
