"""Blocking sockets."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeVar

from headgate.client.drivers.pool import (
    FULL_QUEUE_PAUSE_S,
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
from headgate.client.steps import Ask, Outcomes, Reply, Sent, Sleep, Step, Tell, Together
from headgate.client.target import Target

if TYPE_CHECKING:
    from threading import Thread

Result = TypeVar("Result")


class SyncDriver:
    def __init__(self, target: Target, sleep: Callable[[float], None]) -> None:
        self._target = target
        self._sleep = sleep
        self._pools = Pools()
        self._telling: list[tuple[Thread, float]] = []

    def run(self, steps: Generator[Step, Sent, Result]) -> Result:
        sent: Sent = None
        while True:
            try:
                step = steps.send(sent)
            except StopIteration as end:
                result: Result = end.value
                return result
            try:
                sent = self._do(step)
            except BaseException:
                steps.close()  # Now, not whenever its frame is let go of: it may have to tell so.
                raise

    def close(self) -> None:
        """Give background reports their time to finish, and no more."""
        for telling, ends_s in tuple(self._telling):
            telling.join(max(0.0, ends_s - time.monotonic()))
        self._pools.close()

    def _do(self, step: Step) -> Sent:
        if isinstance(step, Ask):
            return self._ask(step)
        if isinstance(step, Together):
            return self._one_by_one(step)
        if isinstance(step, Sleep):
            self._sleep(step.seconds)
        else:
            self._tell(step)
        return None

    def _one_by_one(self, step: Together) -> Outcomes:
        outcomes: Outcomes = []
        for asking in step.asking:
            outcomes.append(self.run(asking))
            if step.settles(outcomes[-1]):
                break
        return outcomes

    def _tell(self, step: Tell) -> None:
        """By a thread of its own, which ends with what it has to tell: work does not wait."""
        from threading import Thread  # here: see client/__init__.py

        thread = Thread(target=self._told, args=(step,), name="headgate-report", daemon=True)
        self._telling = [(other, ends_s) for other, ends_s in self._telling if other.is_alive()]
        try:
            thread.start()
        except RuntimeError as fault:  # no thread is to be had: a later answer brings the next try
            step.settle(NoAnswer(str(fault)))
        else:
            self._telling.append((thread, time.monotonic() + step.timeout_s))

    def _told(self, step: Tell) -> None:
        try:
            reply = self._ask(Ask(step.request, step.timeout_s, step.target))
        except RuntimeError as fault:  # the client was closed meanwhile
            reply = NoAnswer(str(fault))
        step.settle(reply)

    def _ask(self, ask: Ask) -> Reply:
        deadline, target = Deadline(ask.timeout_s), ask.target or self._target
        pool = self._pools.of(target)
        try:
            kept = pool.take()
            if kept is not None:
                try:
                    return _exchange(pool, kept, ask.request, deadline)
                except ClosedUnread:
                    pass  # closed while idle: the agent did not read the check, so send it again
            return _exchange(pool, connect(target, deadline), ask.request, deadline)
        except (OSError, BadResponse) as fault:
            return no_answer(fault, ask.timeout_s)


def _exchange(
    pool: Pool, connection: PooledConnection, request: bytes, deadline: Deadline
) -> Response:
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


def connect(target: Target, deadline: Deadline) -> PooledConnection:
    if not target.socket_path:
        raw = socket.create_connection((target.host, target.port), deadline.left_s())
        return connection_over(raw, target)
    while (unix := connect_unix(target.socket_path)) is None:
        time.sleep(min(FULL_QUEUE_PAUSE_S, deadline.left_s()))
    return PooledConnection(unix)


def converse(
    connection: PooledConnection, request: bytes, reader: ResponseReader, deadline: Deadline
) -> Response:
    raw, steps = connection.raw, exchange(request, reader, connection.tls)
    try:
        outgoing = next(steps)
        while True:
            if outgoing:
                raw.settimeout(deadline.left_s())
                raw.sendall(outgoing, NO_SIGNAL)
            raw.settimeout(deadline.left_s())
            outgoing = steps.send(raw.recv(READ_BYTES))
    except StopIteration as end:
        response: Response = end.value
        return response
