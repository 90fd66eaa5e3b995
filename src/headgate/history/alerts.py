"""Tell the outside.   Watch ──put──► bounded queue ──► POST as JSON, again until it is taken

A webhook that is slow or gone delays nothing and fills nothing: each try has a deadline, each
alert a number of tries, and when too many wait, the oldest is dropped and counted.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

import structlog

from headgate.base.ports import Clock

log = structlog.get_logger()

MAX_WAITING = 100
MAX_TRIES = 6
TIMEOUT_S = 5.0
GIVE_UP_AFTER_S = 10.0
"""A call that hangs beyond its own timeouts, for example in DNS, is abandoned after this time."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
MAX_REPLY_BYTES = 64 * 1024

Alert = Mapping[str, Any]
Send = Callable[[bytes], int]
"""Sends one alert and blocks for a bounded time. Returns the HTTP status, or raises OSError or
HTTPException."""


class Webhook:
    """Where alerts go. The address may hold secrets: only its host is ever shown."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = urlsplit(url)
        self.label = self._url.netloc.rpartition("@")[2]
        self._headers = {"Content-Type": "application/json", "User-Agent": "headgate"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def __call__(self, body: bytes) -> int:
        kind = HTTPSConnection if self._url.scheme == "https" else HTTPConnection
        connection = kind(self._url.hostname or "", self._url.port, timeout=TIMEOUT_S)
        try:
            path = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
            connection.request("POST", path, body=body, headers=self._headers)
            response = connection.getresponse()
            response.read(MAX_REPLY_BYTES)
            return response.status
        finally:
            connection.close()


OUTCOMES = ("raised", "sent", "dropped")


class Alerts:
    """Sends alerts to the webhook. Without a webhook, alerts are only logged and counted."""

    def __init__(self, clock: Clock, *, agent: str = "", send: Send | None = None) -> None:
        self._clock = clock
        self._agent = agent
        self.send_by(send)
        self._waiting: deque[tuple[str, Alert]] = deque()
        self._stirred = asyncio.Event()
        self._left_behind: threading.Thread | None = None
        self.fault: str | None = None
        """Why the last try failed; None: it succeeded."""
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """(kind, one of OUTCOMES) → how often."""

    def send_by(self, send: Send | None) -> None:
        """From now on, for what waits, too."""
        self._send: Send | None = send
        self._label = getattr(send, "label", "webhook")

    def put(self, kind: str, document: Alert) -> None:
        """Such as `starvation.begins`. Never waits."""
        self.outcomes[kind, "raised"] += 1
        log.warning("alert", kind=kind, **document)
        if self._send is None:
            return
        if len(self._waiting) >= MAX_WAITING:
            dropped, _ = self._waiting.popleft()
            self.outcomes[dropped, "dropped"] += 1
        at = self._clock.now().wall_s
        self._waiting.append((kind, {"kind": kind, "agent": self._agent, "at": at, **document}))
        self._stirred.set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def run(self) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            while self._waiting:
                kind, alert = self._waiting.popleft()
                taken = await self._deliver(json.dumps(alert).encode())
                self.outcomes[kind, "sent" if taken else "dropped"] += 1

    async def _deliver(self, body: bytes) -> bool:
        pause_s = FIRST_PAUSE_S
        for _ in range(MAX_TRIES - 1):
            if await self._try(body):
                return True
            await self._clock.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
        return await self._try(body)

    async def _try(self, body: bytes) -> bool:
        problem = await self._posted(body)
        if problem is not None and self.fault is None:
            log.error("alert.not_taken", webhook=self._label, detail=problem)
        self.fault = problem
        return problem is None

    async def _posted(self, body: bytes) -> str | None:
        if self._left_behind is not None and self._left_behind.is_alive():
            return "the previous alert is still being sent"
        send = self._send
        if send is None:
            return "the webhook was removed from the settings"
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        # Not asyncio.to_thread: a call that hangs must hold neither its pool nor the process.
        thread = threading.Thread(
            target=_post, args=(send, body, asyncio.get_running_loop(), answer), daemon=True
        )
        thread.start()
        try:
            async with asyncio.timeout(GIVE_UP_AFTER_S):
                return await answer
        except TimeoutError:
            self._left_behind = thread
            return f"no answer in {GIVE_UP_AFTER_S:g} s"


def _post(
    send: Send,
    body: bytes,
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[str | None],
) -> None:
    try:
        status = send(body)
        problem = None if 200 <= status < 300 else f"answered {status}"
    except (OSError, HTTPException, ValueError) as error:
        problem = str(error) or type(error).__name__
    with suppress(RuntimeError):  # The loop was closed meanwhile.
        loop.call_soon_threadsafe(_settle, answer, problem)


def _settle(answer: asyncio.Future[str | None], problem: str | None) -> None:
    if not answer.done():
        answer.set_result(problem)
