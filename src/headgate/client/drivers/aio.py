"""Sockets on an event loop.

Sockets rather than asyncio's streams: an idle connection is then registered with no loop,
so it can be closed, or used by the next loop, whatever became of the one that opened it.
TLS is a matter of bytes (client/tls.py) and changes nothing of that.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from headgate.client.drivers.pool import (
    FULL_QUEUE_PAUSE_S,
    MAX_CONNECTIONS,
    NO_SIGNAL,
    READ_BYTES,
    Pool,
    PooledConnection,
    Pools,
    connect_unix,
    connection_over,
    no_answer,
)
from headgate.client.http1 import BadResponse, ClosedUnread, Response, ResponseReader, exchange
from headgate.client.replies import NoAnswer
from headgate.client.steps import Ask, NoTurn, Outcomes, Reply, Sent, Sleep, Step, Tell, Together
from headgate.client.target import Target

Result = TypeVar("Result")
GIVE_WAY_EVERY_S = 0.005


class AsyncDriver:
    def __init__(self, target: Target, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._target = target
        self._sleep = sleep
        self._pools = Pools()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore = asyncio.Semaphore(MAX_CONNECTIONS)
        self._telling: set[asyncio.Task[None]] = set()
        self.give_way_at_s = 0.0

    async def run(self, steps: Generator[Step, Sent, Result]) -> Result:
        sent: Sent = None
        while True:
            try:
                step = steps.send(sent)
            except StopIteration as end:
                result: Result = end.value
                break
            try:
                sent = await self._do(step)
            except BaseException:
                steps.close()  # Now, not whenever its frame is let go of: it may have to tell so.
                raise
        if time.monotonic() >= self.give_way_at_s:
            await self.give_way()
        return result

    async def give_way(self) -> None:
        """A decision in this process awaits nothing: let other tasks on the loop run, and let a
        cancellation arrive."""
        await asyncio.sleep(0)
        self.give_way_at_s = time.monotonic() + GIVE_WAY_EVERY_S

    async def finish(self) -> None:
        """Let background reports finish: each request has a deadline."""
        await asyncio.gather(*self._telling, return_exceptions=True)
        self.close()

    def close(self) -> None:
        for task in tuple(self._telling):
            # A loop that is over has ended its tasks itself.
            if not task.get_loop().is_closed():
                task.cancel()
        self._pools.close()

    async def _do(self, step: Step) -> Sent:
        if isinstance(step, Ask):
            return await self._ask(step)
        if isinstance(step, Together):
            return await self._all_at_once(step)
        if isinstance(step, Sleep):
            await self._sleep(step.seconds)
        else:
            self._tell(step)
        return None

    async def _all_at_once(self, step: Together) -> Outcomes:
        tasks = [asyncio.create_task(self.run(asking)) for asking in step.asking]
        try:
            return await asyncio.gather(*tasks)
        finally:
            # An agent rejected one of them as invalid, or we were cancelled: end the others too.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _tell(self, step: Tell) -> None:
        task = asyncio.create_task(self._told(step))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _told(self, step: Tell) -> None:
        reply: Reply = NoAnswer("the client was closed meanwhile")
        try:
            ask = Ask(step.request, step.timeout_s, step.target, queue_s=step.timeout_s)
            asked = await self._ask(ask)
            reply = NoAnswer("no connection was free") if isinstance(asked, NoTurn) else asked
        finally:
            step.settle(reply)

    async def _ask(self, ask: Ask) -> Reply | NoTurn:
        turns, queued_s = self._turns(), 0.0
        if turns.locked():
            queued_s = await _in_line(turns, ask.queue_s)
            if queued_s >= ask.queue_s:
                return NoTurn(queued_s)
        else:
            await turns.acquire()
        try:
            return await self._put(ask, queued_s)
        finally:
            turns.release()

    async def _put(self, ask: Ask, queued_s: float) -> Reply:
        if queued_s and (why := ask.in_vain()):
            return NoAnswer(why)
        try:
            async with asyncio.timeout(ask.timeout_s):
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
                pass  # closed while it was idle: the agent did not read the check, so send it again
        return await _exchange(pool, await _connect(target), request)


async def _in_line(turns: asyncio.Semaphore, queue_s: float) -> float:
    """How long it took; `queue_s` where its turn has not come in that time."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        async with asyncio.timeout(queue_s if math.isfinite(queue_s) else None):
            await turns.acquire()
    except TimeoutError:
        return queue_s
    # A task that gets its turn uses it, even if the turn came at the last moment.
    return min(loop.time() - began_s, math.nextafter(queue_s, 0.0))


async def _connect(target: Target) -> PooledConnection:
    if target.socket_path:
        return PooledConnection(await _connected_unix(target.socket_path))
    fault = OSError("the host name has no address")
    for family, address in await _resolve(target.host, target.port):
        try:
            return connection_over(await _connected(family, address), target)
        except OSError as rejected:
            fault = rejected
    raise fault


async def _exchange(pool: Pool, connection: PooledConnection, request: bytes) -> Response:
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


async def _send(raw: socket.socket, outgoing: bytes, loop: asyncio.AbstractEventLoop) -> None:
    """By ourselves what goes at once, which nearly always is all of it: the loop has no flags."""
    try:
        sent = raw.send(outgoing, NO_SIGNAL)
    except BlockingIOError:
        sent = 0
    if sent < len(outgoing):
        await loop.sock_sendall(raw, outgoing[sent:])


async def _converse(
    connection: PooledConnection, request: bytes, reader: ResponseReader
) -> Response:
    loop = asyncio.get_running_loop()
    raw, steps = connection.raw, exchange(request, reader, connection.tls)
    try:
        outgoing = next(steps)
        while True:
            if outgoing:
                await _send(raw, outgoing, loop)
            outgoing = steps.send(await loop.sock_recv(raw, READ_BYTES))
    except StopIteration as end:
        response: Response = end.value
        return response
