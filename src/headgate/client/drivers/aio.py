"""Sockets on an event loop.

Sockets rather than asyncio's streams: an idle connection is then registered with no loop,
so it can be closed, or used by the next loop, whatever became of the one that opened it.
TLS is a matter of bytes (client/tls.py) and changes nothing of that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from headgate.client.answers import Answer
from headgate.client.conversation import Ask, Reply, Steps
from headgate.client.drivers.pool import (
    FULL_QUEUE_PAUSE_S,
    MAX_CONNECTIONS,
    READ_BYTES,
    Connection,
    Pool,
    Pools,
    connect_unix,
    connection_over,
    no_answer,
)
from headgate.client.http1 import BadResponse, ClosedUnread, Response, ResponseReader
from headgate.client.target import Target


class AsyncDriver:
    def __init__(self, target: Target, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._target = target
        self._sleep = sleep
        self._pools = Pools()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore = asyncio.Semaphore(MAX_CONNECTIONS)

    async def run(self, steps: Steps) -> Answer:
        reply: Reply | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            if isinstance(step, Ask):
                reply = await self._ask(step)
            else:
                reply = None
                await self._sleep(step.seconds)

    def close(self) -> None:
        self._pools.close()

    async def _ask(self, ask: Ask) -> Reply:
        try:
            async with asyncio.timeout(ask.timeout_s), self._turns():
                return await self._respond(ask.request, ask.target or self._target)
        except (OSError, BadResponse) as fault:
            return no_answer(fault, ask.timeout_s)

    def _turns(self) -> asyncio.Semaphore:
        """Of the running loop: a semaphore serves one loop only, a client may see several."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(MAX_CONNECTIONS)
        return self._semaphore

    async def _respond(self, request: bytes, target: Target) -> Response:
        pool = self._pools.of(target)
        kept = pool.take()
        if kept is not None:
            try:
                return await _exchange(pool, kept, request)
            except ClosedUnread:
                pass  # closed while it lay idle: the question was not heard, ask anew
        return await _exchange(pool, await _connect(target), request)


async def _connect(target: Target) -> Connection:
    if target.socket_path:
        return Connection(await _connected_unix(target.socket_path))
    fault = OSError("the host name has no address")
    for family, address in await _resolve(target.host, target.port):
        try:
            return connection_over(await _connected(family, address), target)
        except OSError as refused:
            fault = refused
    raise fault


async def _exchange(pool: Pool, connection: Connection, request: bytes) -> Response:
    reader = ResponseReader()
    try:
        response = await _converse(connection, request, reader)
    except ConnectionError as fault:
        connection.close()
        if reader.received_bytes:
            raise
        raise ClosedUnread from fault
    except BaseException:
        # A cancelled question may still be answered: its connection must not be reused.
        connection.close()
        raise
    if response.keep_alive:
        pool.give(connection)
    else:
        connection.close()
    return response


_Address = str | tuple[Any, ...]


async def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, _Address]]:
    try:
        # A numeric address needs no resolver, and so no thread to run it in.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


async def _connected(family: socket.AddressFamily, address: _Address) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


async def _connected_unix(path: str) -> socket.socket:
    while True:
        connection = connect_unix(path)
        if connection is not None:
            return connection
        await asyncio.sleep(FULL_QUEUE_PAUSE_S)


async def _converse(connection: Connection, request: bytes, reader: ResponseReader) -> Response:
    loop = asyncio.get_running_loop()
    raw, exchange = connection.raw, connection.exchange(request, reader)
    try:
        outgoing = next(exchange)
        while True:
            if outgoing:
                await loop.sock_sendall(raw, outgoing)
            outgoing = exchange.send(await loop.sock_recv(raw, READ_BYTES))
    except StopIteration as end:
        response: Response = end.value
        return response
