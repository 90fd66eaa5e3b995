"""Blocking sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from headgate.client.answers import Answer
from headgate.client.conversation import Ask, Reply, Steps
from headgate.client.drivers.pool import (
    FULL_QUEUE_PAUSE_S,
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


class SyncDriver:
    def __init__(self, target: Target, sleep: Callable[[float], None]) -> None:
        self._target = target
        self._sleep = sleep
        self._pools = Pools()

    def run(self, steps: Steps) -> Answer:
        reply: Reply | None = None
        while True:
            try:
                step = steps.send(reply)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            if isinstance(step, Ask):
                reply = self._ask(step)
            else:
                reply = None
                self._sleep(step.seconds)

    def close(self) -> None:
        self._pools.close()

    def _ask(self, ask: Ask) -> Reply:
        deadline, target = Deadline(ask.timeout_s), ask.target or self._target
        pool = self._pools.of(target)
        try:
            kept = pool.take()
            if kept is not None:
                try:
                    return _exchange(pool, kept, ask.request, deadline)
                except ClosedUnread:
                    pass  # closed while it lay idle: the question was not heard, ask anew
            return _exchange(pool, connect(target, deadline), ask.request, deadline)
        except (OSError, BadResponse) as fault:
            return no_answer(fault, ask.timeout_s)


def _exchange(pool: Pool, connection: Connection, request: bytes, deadline: Deadline) -> Response:
    reader = ResponseReader()
    try:
        response = converse(connection, request, reader, deadline)
    except ConnectionError as fault:
        connection.close()
        if reader.received_bytes:
            raise
        raise ClosedUnread from fault
    except BaseException:
        connection.close()
        raise
    if response.keep_alive:
        pool.give(connection)
    else:
        connection.close()
    return response


class Deadline:
    """Of one question, over all of its reads and writes: dripping bytes does not extend it."""

    def __init__(self, timeout_s: float) -> None:
        self._ends_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def connect(target: Target, deadline: Deadline) -> Connection:
    if not target.socket_path:
        raw = socket.create_connection((target.host, target.port), deadline.left_s())
        return connection_over(raw, target)
    while (unix := connect_unix(target.socket_path)) is None:
        time.sleep(min(FULL_QUEUE_PAUSE_S, deadline.left_s()))
    return Connection(unix)


def converse(
    connection: Connection, request: bytes, reader: ResponseReader, deadline: Deadline
) -> Response:
    raw, exchange = connection.raw, connection.exchange(request, reader)
    try:
        outgoing = next(exchange)
        while True:
            if outgoing:
                raw.settimeout(deadline.left_s())
                raw.sendall(outgoing)
            raw.settimeout(deadline.left_s())
            outgoing = exchange.send(raw.recv(READ_BYTES))
    except StopIteration as end:
        response: Response = end.value
        return response
