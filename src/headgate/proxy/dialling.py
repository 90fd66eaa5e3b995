"""The way from a proxy to its agents: the SDK's own feed and connections, as proxy/ wants them.

proxy/ knows agents as Protocols (proxy/agents.py), and `client` is another edge: the two are
joined here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

import structlog

from headgate.client import local_clock
from headgate.client.drivers.pool import PooledConnection
from headgate.client.drivers.sync import Deadline, connect, converse
from headgate.client.http1 import BadResponse, ResponseReader, encode_request
from headgate.client.local_feed import Feed
from headgate.client.target import Target, parse_target, sent_on
from headgate.errors import Fault, InvalidSettings, PeerFailed
from headgate.metrics.samples import Cause
from headgate.proxy.agents import NO_HEADERS, AgentApi, Reply, SnapshotFeed
from headgate.proxy.beside import Beside

log = structlog.get_logger()

APP = "headgate-proxy"
Path = str | os.PathLike[str]


class AgentDialling:
    """Implements proxy.agents.Dialling. `app` is what agents see of the proxy."""

    def __init__(
        self,
        urls: tuple[str, ...],
        *,
        token: str | None = None,
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
        app: str = APP,
    ) -> None:
        """InvalidSettings where a certificate or an authority cannot be used."""
        self._token = token
        self._app = app
        self._targets = {url: _target(url, ca, cert, key) for url in urls}

    def now_s(self) -> float:
        return local_clock.now()

    def feed(self, url: str, database: str) -> SnapshotFeed | None:
        target = self._targets.get(url) or self._elsewhere(url)
        return None if target is None else ProxyFeed(target, database, self._app, self._token)

    def line(self, url: str) -> AgentApi:
        return ThreadedLine(self._targets[url], self._token)

    def _elsewhere(self, url: str) -> Target | None:
        """Where an agent points to: as those of the settings are trusted, never less."""
        homes = list(self._targets.values())
        secure = next((target for target in homes if target.trust is not None), homes[0])
        return sent_on(secure, url)


def _target(url: str, ca: Path | None, cert: Path | None, key: Path | None) -> Target:
    target = parse_target(url, ca if url.startswith("https:") else None)
    if target.trust is not None and cert is not None:
        try:
            target.trust.context.load_cert_chain(cert, key)
        except OSError as error:
            message = f"{os.fspath(cert)} and its key cannot be used: {error}"
            raise InvalidSettings([Fault("agent.cert", message)]) from None
    return target


class ProxyFeed(Feed):
    """As the SDK's, but for the messages: a proxy has no check to send instead."""

    def _tell(self, what: str, detail: str) -> None:
        if what not in self._told and not self._stopped.is_set():
            self._told.add(what)
            log.warning("agent.stream", database=self.database, agent=str(self.target),
                        what=what, detail=detail)  # fmt: skip


class ThreadedLine:
    """One request at a time to one agent, in a thread of its own: a resolver or an agent that hangs
    holds up this thread, and neither the loop nor the line to another agent."""

    def __init__(self, target: Target, token: str | None) -> None:
        self._target = target
        self._token = token
        self._beside = Beside(f"requests to {target.url}")
        self._kept: PooledConnection | None = None
        self._turn = asyncio.Lock()

    @property
    def url(self) -> str:
        return self._target.url

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
        request = encode_request(
            method, path,
            host=self._target.host_header, token=self._token, body=body, headers=headers,
        )  # fmt: skip
        try:
            async with asyncio.timeout(timeout_s + 0.5), self._turn:
                return await self._beside.run(lambda: self._exchange(request, timeout_s, max_bytes))
        except TimeoutError:
            detail = f"{self.url}: no answer in {timeout_s:g} s"
            raise PeerFailed(Cause.TIMED_OUT, detail) from None
        except (OSError, BadResponse) as fault:
            detail = f"{self.url}: {_words(fault)}"
            raise PeerFailed(Cause.UNREACHABLE, detail) from None

    def _exchange(self, request: bytes, timeout_s: float, max_bytes: int) -> Reply:
        deadline, kept = Deadline(timeout_s), self._kept
        self._kept = None
        if kept is not None:
            try:
                return self._on(kept, request, deadline, max_bytes)
            except (ConnectionError, BadResponse):
                pass  # Closed while it lay idle. Our requests may be sent twice.
        return self._on(connect(self._target, deadline), request, deadline, max_bytes)

    def _on(
        self, connection: PooledConnection, request: bytes, deadline: Deadline, max_bytes: int
    ) -> Reply:
        try:
            reader = ResponseReader(max_body_bytes=max_bytes)
            response = converse(connection, request, reader, deadline)
        except BaseException:
            connection.close()
            raise
        if response.keep_alive:
            self._kept = connection
        else:
            connection.close()
        return Reply(response.status, response.headers, response.body)

    async def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


def _words(fault: Exception) -> str:
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror.lower()
    return str(fault) or type(fault).__name__
