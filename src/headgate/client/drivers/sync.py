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
    Pool,
    connect_unix,
    no_answer,
)
from headgate.client.http1 import BadResponse, ClosedUnread, Response, ResponseReader
from headgate.client.target import Target


class SyncDriver:
    def __init__(self, target: Target, sleep: Callable[[float], None]) -> None:
        self._target = target
        self._sleep = sleep
        self._pool = Pool()

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
        self._pool.close()

    def _ask(self, ask: Ask) -> Reply:
        deadline = _Deadline(ask.timeout_s)
        try:
            kept = self._pool.take()
            if kept is not None:
                try:
                    return self._exchange(kept, ask.request, deadline)
                except ClosedUnread:
                    pass  # closed while it lay idle: the question was not heard, ask anew
            return self._exchange(self._connect(deadline), ask.request, deadline)
        except (OSError, BadResponse) as fault:
            return no_answer(fault, ask.timeout_s)

    def _connect(self, deadline: _Deadline) -> socket.socket:
        target = self._target
        if target.socket_path:
            while (connection := connect_unix(target.socket_path)) is None:
                time.sleep(min(FULL_QUEUE_PAUSE_S, deadline.left_s()))
            return connection
        connection = socket.create_connection((target.host, target.port), deadline.left_s())
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _exchange(self, connection: socket.socket, request: bytes, deadline: _Deadline) -> Response:
        reader = ResponseReader()
        try:
            response = _converse(connection, request, reader, deadline)
        except ConnectionError as fault:
            connection.close()
            if reader.received_bytes:
                raise
            raise ClosedUnread from fault
        except BaseException:
            connection.close()
            raise
        if response.keep_alive:
            self._pool.give(connection)
        else:
            connection.close()
        return response


class _Deadline:
    """Of one question, over all of its reads and writes: dripping bytes does not extend it."""

    def __init__(self, timeout_s: float) -> None:
        self._ends_s = time.monotonic() + timeout_s

    def left_s(self) -> float:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def _converse(
    connection: socket.socket, request: bytes, reader: ResponseReader, deadline: _Deadline
) -> Response:
    connection.settimeout(deadline.left_s())
    connection.sendall(request)
    while True:
        connection.settimeout(deadline.left_s())
        data = connection.recv(READ_BYTES)
        if not data:
            return reader.end()
        response = reader.feed(data)
        if response is not None:
            return response
