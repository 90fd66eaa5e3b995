"""Asks the agent for its status again and again, in a thread of its own."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from headgate.cli.api import Api, database_path
from headgate.cli.documents import Status, read
from headgate.cli.exits import AgentUnreachable
from headgate.cli.trend import Trend, View
from headgate.errors import HeadgateError

WAKE_EVERY_S = 20.0
"""Well below the time after which a database that nobody asks about is measured less."""


def look(api: Api, trend: Trend) -> View:
    """One look. Whatever is wrong with the answer is shown, as no answer is."""
    try:
        status = read(Status, api.get("/v1/status").document)
    except HeadgateError as error:
        return trend.lose(str(error), time.monotonic())
    return trend.take(status, time.monotonic())


class Waker:
    """Who watches wants to see measurements: an agent that rests is woken, again and again.

    Whether it may is the agent's to say; the picture is shown all the same.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._due_s = float("-inf")

    def wake(self, view: View, now_s: float) -> None:
        if view.lost is not None or view.status is None or now_s < self._due_s:
            return
        self._due_s = now_s + WAKE_EVERY_S
        for database in view.status.databases:
            try:
                self._api.change("POST", database_path(database.database, "wake"))
            except AgentUnreachable:
                return
            except HeadgateError:
                continue


class Poller:
    def __init__(self, api: Api, interval_s: float) -> None:
        self._api = api
        self._interval_s = interval_s
        self._trend = Trend(api.url)
        self._waker = Waker(api)
        self._changed = threading.Condition()
        self._stop = threading.Event()
        # A daemon: leaving does not wait for an agent that does not answer.
        self._thread = threading.Thread(target=self._run, name="headgate-top", daemon=True)

    @property
    def view(self) -> View:
        return self._trend.view

    def wait_for_next(self, within_s: float) -> None:
        with self._changed:
            self._changed.wait(within_s)

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            look(self._api, self._trend)
            with self._changed:
                self._changed.notify_all()
            self._waker.wake(self._trend.view, time.monotonic())
            self._stop.wait(self._interval_s)
