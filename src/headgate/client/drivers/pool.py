"""Kept-alive connections, shared by both drivers.

A connection is lent to one question at a time, so threads never share one. A socket that a
forked child inherited is the parent's: the child closes its copy and opens its own. There
is no lock to be caught held by a fork; a deque's ends are safe to push and pop.
"""

from __future__ import annotations

import errno
import os
import socket
from collections import deque
from typing import TYPE_CHECKING

from headgate.client.http1 import BadResponse
from headgate.client.replies import NoAnswer
from headgate.client.target import Target

if TYPE_CHECKING:
    from headgate.client.tls import TlsSession

MAX_CONNECTIONS = 8
"""So many are kept. An event loop, with checks of thousands of tasks, opens no more."""
MAX_AGENTS = 16
FULL_QUEUE_PAUSE_S = 0.01
READ_BYTES = 64 * 1024
NO_SIGNAL: int = getattr(socket, "MSG_NOSIGNAL", 0)
"""For every send: a program that has SIGPIPE by default (as scripts for pipes do) would be killed
by an agent that closes a connection."""


class PooledConnection:
    __slots__ = ("raw", "tls")

    def __init__(self, raw: socket.socket, tls: TlsSession | None = None) -> None:
        self.raw = raw
        self.tls = tls

    def close(self) -> None:
        self.raw.close()


def connection_over(raw: socket.socket, target: Target) -> PooledConnection:
    """TLS is spoken by the first exchange, within the deadline of that."""
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return PooledConnection(raw, None if target.trust is None else target.trust.session())


class Pool:
    def __init__(self, *, closed: bool = False) -> None:
        self._idle: deque[tuple[int, PooledConnection]] = deque()
        self._closed = closed

    def take(self) -> PooledConnection | None:
        """The connection used last that is still good, else None: open a new one."""
        if self._closed:
            raise RuntimeError("this client was closed: make another one")
        while self._idle:
            try:
                pid, connection = self._idle.pop()
            except IndexError:
                break
            if pid == os.getpid() and _is_quiet(connection.raw):
                return connection
            connection.close()
        return None

    def give(self, connection: PooledConnection) -> None:
        """For the next question, unless there are enough of them."""
        if len(self._idle) >= MAX_CONNECTIONS:
            connection.close()
            return
        self._idle.append((os.getpid(), connection))
        if self._closed:
            self.close()

    def close(self) -> None:
        self._closed = True
        self.empty()

    def empty(self) -> None:
        while self._idle:
            try:
                _, connection = self._idle.pop()
            except IndexError:
                break
            connection.close()


class Pools:
    """One for each agent: the client's own, and those that it was sent to."""

    def __init__(self) -> None:
        self._pools: dict[tuple[object, ...], Pool] = {}
        self._closed = False

    def of(self, target: Target) -> Pool:
        key = (target.host, target.port, target.socket_path, target.trust is None)
        pool = self._pools.get(key)
        if pool is None:
            if len(self._pools) >= MAX_AGENTS:
                # After so many failovers the first agents are not used again. Emptied, not
                # closed: another thread may be about to send a check there.
                for other in tuple(self._pools.values()):
                    other.empty()
                self._pools.clear()
            pool = self._pools.setdefault(key, Pool(closed=self._closed))
        return pool

    def close(self) -> None:
        self._closed = True
        for pool in tuple(self._pools.values()):
            pool.close()


def _is_quiet(connection: socket.socket) -> bool:
    """An idle connection has nothing to say: bytes, or an end, make it unfit for a question."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def connect_unix(path: str) -> socket.socket | None:
    """Connected at once, or None: the server's queue is full just now.

    Python and asyncio take that EAGAIN for a failure and for a success, respectively.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        connection.connect(path)
    except BlockingIOError:
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


def no_answer(fault: OSError | BadResponse, timeout_s: float) -> NoAnswer:
    if isinstance(fault, TimeoutError):
        return NoAnswer(f"no answer in {timeout_s:g} s")
    if isinstance(fault, OSError) and fault.errno is not None and fault.errno in errno.errorcode:
        return NoAnswer(os.strerror(fault.errno).lower())
    if isinstance(fault, OSError) and fault.strerror:
        return NoAnswer(fault.strerror.lower())
    return NoAnswer(str(fault))
