"""The running proxy: the relay's events, and the loops of its parts.

    relay ──events──► pump ──► watchers (new clients, plans), slow-log, log
    parts: each a loop of its own, kept running (base/supervise)

Parts of two kinds. Those that write what all processes share (gates, release, policy) stop when
another process takes over, for they are its now, unless it could not take the memory over. Those of
this relay alone (targets), and the reports of its last sessions, go on until the last session has
ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog

from headgate.base.ports import Clock
from headgate.base.supervise import supervised
from headgate.budgets.model import Dialect
from headgate.budgets.sql_text import COMMENT, LITERAL, SPACE, SqlPiece, pieces
from headgate.proxy.layout import (
    EVENT_BLOCKED,
    EVENT_CLIENT,
    EVENT_DELAYED,
    EVENT_DRAINED,
    EVENT_PATTERN,
    EVENT_SESSION,
    EVENT_WARNED,
)
from headgate.proxy.ports import Part, PartState, RelayWatcher, WantedPlan
from headgate.proxy.relay import NativeRelay, RelayEvent, client_of

log = structlog.get_logger()

EVENTS_A_TURN = 256
"""Then the loop sees to others first."""
STIR_S = 0.1
DRAIN_SLACK_S = 2.0
PATIENT_SHARE = 0.5
"""Of the time to drain, after a hand-over."""
SESSION_FAULTS_PER_S = 5


class Process:
    def __init__(self, relay: NativeRelay, slowlog: Slowlog, clock: Clock) -> None:
        self.relay = relay
        self.slowlog = slowlog
        self._clock = clock
        self._watchers: tuple[RelayWatcher, ...] = ()
        self._told: tuple[Callable[[RelayEvent], None], ...] = ()
        self._shared: dict[str, tuple[Part, asyncio.Task[None]]] = {}
        self._own: dict[str, tuple[Part, asyncio.Task[None]]] = {}
        self._reading = False
        self._drained = asyncio.Event()
        self._fault_second = 0
        self._faults_told = 0
        self.session_faults = 0
        self.events = 0
        self.draining_since: float | None = None

    # --- parts -----------------------------------------------------------------------------

    def begin(self) -> None:
        """The relay has been started."""
        asyncio.get_running_loop().add_reader(self.relay.event_fd, self._pump)
        self._reading = True

    def listen(
        self, watchers: Sequence[RelayWatcher], told: Sequence[Callable[[RelayEvent], None]] = ()
    ) -> None:
        """Set the watchers of events; they replace the ones before."""
        self._watchers, self._told = tuple(watchers), tuple(told)

    async def adopt(self, shared: Sequence[Part], own: Sequence[Part]) -> None:
        """These parts run from now on. One that runs already goes on as it is; others end."""
        self._shared = await _replaced(self._shared, shared)
        self._own = await _replaced(self._own, own)

    @property
    def parts(self) -> list[Part]:
        return [part for part, _ in (*self._shared.values(), *self._own.values())]

    def states(self) -> list[PartState]:
        return [part.state() for part in self.parts]

    # --- the end ---------------------------------------------------------------------------

    async def drain(self, *, handed_over: bool, within_s: float, memory_taken: bool = True) -> bool:
        """Until no session is left, or that long; whether none was left."""
        self.draining_since = self._clock.now().mono_s
        if handed_over and memory_taken:
            self._shared = await _replaced(self._shared, ())
        stirring = asyncio.create_task(self._stir())
        try:
            if handed_over and await self._drained_for(within_s, within_s * PATIENT_SHARE):
                return True
            left_s = within_s * (1 - PATIENT_SHARE) if handed_over else within_s
            self.relay.drain(keep_sockets=handed_over, patient=False, deadline_s=left_s)
            return await self._is_drained(left_s + DRAIN_SLACK_S)
        finally:
            stirring.cancel()

    async def _drained_for(self, within_s: float, patient_s: float) -> bool:
        """Another process takes new sessions, so the old ones may end on their own: no statement
        fails because of a restart. After a while, sessions are ended between transactions."""
        self.relay.drain(keep_sockets=True, patient=True, deadline_s=within_s)
        return await self._is_drained(patient_s)

    async def _is_drained(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._drained.wait()
        except TimeoutError:
            return False
        return True

    async def _stir(self) -> None:
        """The process that took over changes gates and policy in shared memory, and cannot wake
        those who wait here."""
        while True:
            self.relay.stir()
            await self._clock.sleep(STIR_S)

    async def close(self) -> None:
        self._shared = await _replaced(self._shared, ())
        self._own = await _replaced(self._own, ())
        if self._reading:
            asyncio.get_running_loop().remove_reader(self.relay.event_fd)
            self._reading = False
        self.slowlog.close()
        # Joins its threads, each of which ends within one round of its loop.
        await asyncio.to_thread(self.relay.close)

    # --- events ----------------------------------------------------------------------------

    def _pump(self) -> None:
        for _ in range(EVENTS_A_TURN):
            event = self.relay.take_event()
            if event is None:
                return
            self.events += 1
            self._dispatch(event)
        # The ring may have more: others first, then again, whether or not the file says so.
        asyncio.get_running_loop().call_soon(self._pump_on)

    def _pump_on(self) -> None:
        if self._reading:
            self._pump()

    def _dispatch(self, event: RelayEvent) -> None:
        if event.kind == EVENT_CLIENT:
            client = client_of(event)
            for watcher in self._watchers:
                watcher.client_seen(client)
        elif event.kind == EVENT_PATTERN:
            wanted = _wanted(event)
            for watcher in self._watchers:
                watcher.plan_wanted(wanted)
        elif event.kind == EVENT_SESSION:
            self._note_fault(event)
        elif event.kind == EVENT_DRAINED:
            self._drained.set()
        else:
            self.slowlog.note(event)
            for tell in self._told:
                tell(event)

    def _note_fault(self, event: RelayEvent) -> None:
        """So many a second: a client that fails over and over must not fill the log."""
        self.session_faults += 1
        second = int(self._clock.now().mono_s)
        if second != self._fault_second:
            self._fault_second, self._faults_told = second, 0
        if self._faults_told >= SESSION_FAULTS_PER_S:
            return
        self._faults_told += 1
        log.warning(
            "session.failed",
            detail=event.reason,
            user=event.username,
            database=event.database,
            session=event.pattern or None,
        )


def _wanted(event: RelayEvent) -> WantedPlan:
    return WantedPlan(
        pattern=event.pattern,
        database=event.database,
        username=event.username,
        text=event.text.decode(errors="replace"),
        whole=event.text_whole,
        parameters=event.parameters,
    )


Running = dict[str, tuple[Part, asyncio.Task[None]]]


async def _replaced(running: Running, wanted: Sequence[Part]) -> Running:
    stays = {id(part) for part in wanted}
    ending = [(part, task) for part, task in running.values() if id(part) not in stays]
    for _, task in ending:
        task.cancel()
    await asyncio.gather(*(task for _, task in ending), return_exceptions=True)
    for part, _ in ending:
        await part.close()
    there = {id(part): task for part, task in running.values()}
    return {part.name: (part, there.get(id(part)) or _started(part)) for part in wanted}


def _started(part: Part) -> asyncio.Task[None]:
    return asyncio.create_task(supervised(part.name, part.run), name=part.name)


# --- slow log ------------------------------------------------------------------------------------

# Statements that were blocked or delayed, without their values.   events ──► Slowlog ──► log
#
# A line says which client, what was done, why, and how long it took. Literals become `?` and
# comments go: no log has what a user wrote as a value. So many lines a second; the rest is counted
# and logged.

MAX_STATEMENT_CHARS = 2000
MAX_LEXED_BYTES = 8192
WHAT = {EVENT_BLOCKED: "blocked", EVENT_DELAYED: "delayed", EVENT_WARNED: "warned"}


@dataclass(frozen=True, slots=True)
class SlowlogTerms:
    path: Path | None = None
    """None: into the log."""
    min_delay_s: float = 0.1
    warnings: bool = False
    per_s: float = 10.0


_QUOTE = re.compile(rb"['\"]")
_WHOLE = {
    b"'": (
        re.compile(rb"'(?:[^'\\]|\\.|'')*+(?:'|\\?\Z)", re.DOTALL),
        re.compile(rb"'(?:[^']|'')*+(?:'|\Z)"),
    ),
    b'"': (
        re.compile(rb'"(?:[^"\\]|\\.|"")*+(?:"|\\?\Z)', re.DOTALL),
        re.compile(rb'"(?:[^"]|"")*+(?:"|\Z)'),
    ),
}
"""A quoted text, by sessions for which a backslash escapes and for which it does not."""


def redacted(text: bytes, dialect: Dialect) -> str:
    """Without literals and comments, on one line. A text that was cut in a literal loses it. In a
    session with other settings (standard_conforming_strings, NO_BACKSLASH_ESCAPES) literals may
    end elsewhere: then the text is shown as far as both readings agree."""
    kept, at, text = [], 0, text[:MAX_LEXED_BYTES]
    for piece in pieces(text, dialect):
        if piece.kind in (SPACE, COMMENT):
            kept.append(b" ")
        else:
            kept.append(b"?" if piece.kind == LITERAL else piece.text)
        if _is_ambiguous(text, at, piece, dialect):
            kept.append("…".encode())
            break
        at += len(piece.text)
    shown = b" ".join(b"".join(kept).split()).decode(errors="replace")
    return shown if len(shown) <= MAX_STATEMENT_CHARS else shown[:MAX_STATEMENT_CHARS] + "…"


def _is_ambiguous(text: bytes, at: int, piece: SqlPiece, dialect: Dialect) -> bool:
    if piece.kind != LITERAL or b"\\" not in piece.text:
        return False
    if dialect is Dialect.POSTGRES and piece.text[:1] in b"eE$":  # These read alike anywhere.
        return False
    quote = _QUOTE.search(text, at, at + len(piece.text))
    if quote is None:
        return False
    found = [way.match(text, quote.start()) for way in _WHOLE[quote.group()]]
    return found[0] is None or found[1] is None or found[0].end() != found[1].end()


class Slowlog:
    def __init__(
        self,
        terms: SlowlogTerms,
        dialect: Dialect,
        clock: Clock,
        client_of: Callable[[int], str],
    ) -> None:
        self._terms = terms
        self._dialect = dialect
        self._clock = clock
        self._client_of = client_of
        self._fd: int | None = None
        self._tokens = max(1.0, terms.per_s)
        self._filled_at = clock.now().mono_s
        self._left_out = 0
        self.lines = 0
        self.suppressed = 0
        """Ever; those that the relay did not tell of included."""
        self.fault = ""
        self._open()

    # --- life ------------------------------------------------------------------------------

    def adopt(self, terms: SlowlogTerms) -> None:
        """Also the same terms: after logrotate has renamed the file, a new one is opened."""
        self._terms = terms
        self.close()
        self._open()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None

    def _open(self) -> None:
        self.fault = ""
        if self._terms.path is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(self._terms.path, flags, 0o640)
        except OSError as error:
            self.fault = f"{self._terms.path} cannot be opened: {error.strerror}"
            log.error("slowlog.unwritable", detail=self.fault)

    # --- events ----------------------------------------------------------------------------

    def note(self, event: RelayEvent) -> None:
        if event.left_out:
            self._left_out += event.left_out
            self.suppressed += event.left_out
        if not self._wants(event):
            return
        if not self._may_write():
            self._left_out += 1
            self.suppressed += 1
            return
        left_out, self._left_out = self._left_out, 0
        self._write(self._line(event, left_out))

    def _wants(self, event: RelayEvent) -> bool:
        if self._terms.per_s <= 0:
            return False
        if event.kind == EVENT_DELAYED:
            return event.took_ns >= self._terms.min_delay_s * 1e9
        return event.kind == EVENT_BLOCKED or (event.kind == EVENT_WARNED and self._terms.warnings)

    def _may_write(self) -> bool:
        """A bucket of a second's worth."""
        now = self._clock.now().mono_s
        most = max(1.0, self._terms.per_s)
        gained = (now - self._filled_at) * self._terms.per_s
        self._tokens, self._filled_at = min(most, self._tokens + gained), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def _line(self, event: RelayEvent, left_out: int) -> dict[str, Any]:
        line: dict[str, Any] = {
            "what": WHAT[event.kind],
            "by": event.by.name.lower(),
            "client": self._client_of(event.number),
            "user": event.username,
            "database": event.database,
            "budget": event.budget or None,
            "reason": event.reason or None,
            "took_s": round(event.took_ns / 1e9, 6),
            "in_transaction": event.in_transaction or None,
            "pattern": f"{event.pattern:016x}" if event.pattern else None,
            "statement": redacted(event.text, self._dialect),
            "left_out": left_out or None,
        }
        return {key: value for key, value in line.items() if value is not None}

    def _write(self, line: Mapping[str, Any]) -> None:
        self.lines += 1
        if self._terms.path is None:
            log.info("statement", **line)
            return
        if self._fd is None:
            self.suppressed += 1
            return
        at = datetime.fromtimestamp(self._clock.now().wall_s, UTC).isoformat(
            timespec="milliseconds"
        )
        body = json.dumps({"at": at, **line}, ensure_ascii=False) + "\n"
        try:
            os.write(self._fd, body.encode())
        except OSError as error:
            self._note_fault(error)

    def _note_fault(self, error: OSError) -> None:
        """Once, until the file is opened again: a full disk must not fill the log as well."""
        self.suppressed += 1
        if not self.fault:
            self.fault = f"{self._terms.path} cannot be written: {error.strerror}"
            log.error("slowlog.unwritable", detail=self.fault)
