"""Requests documents in threads of its own. status thread ─┐
                                            feed thread  ──┴─► Scene ──► screen

The status has a thread to itself: a slow history holds up no metric. Looking wakes nobody; who
wants databases awake says so (`--wake`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from headgate.check.api import StatusDoc
from headgate.cli.api import AgentUnreachable, Api, database_path
from headgate.errors import HeadgateError
from headgate.proxy.api import ProxyStatusDoc
from headgate.tui.sources import (
    MAX_STRIPS,
    NOTHING,
    STRIP_EVERY_S,
    Chosen,
    LastAnswer,
    Scene,
    history_of_metrics,
    next_told,
    sources,
    strip_of,
)
from headgate.tui.terminal import WakePipe
from headgate.tui.trend import Picture, Trend

WAKE_EVERY_S = 20.0
"""Well below the time after which a database without checks is measured less."""
RECALL_AGAIN_S = 10.0
FAULT_PAUSE_S = 5.0
MAX_REST_S = 60.0
Look = Callable[[Api, Trend], Picture]
STRIP_PAUSE_S = 0.05
"""Between two questions about clients' hours: the agent has other things to do."""


def look(api: Api, trend: Trend) -> Picture:
    """One look. Whatever is wrong with the answer is shown, as no answer is."""
    trend.url = api.url
    try:
        status = api.read(StatusDoc, "/v1/status")
    except HeadgateError as error:
        return trend.lose(str(error), time.monotonic())
    return trend.take(status, time.monotonic())


def look_at_proxy(api: Api, trend: Trend) -> Picture:
    try:
        proxy = api.read(ProxyStatusDoc, "/v1/proxy/status")
    except HeadgateError as error:
        return trend.lose(str(error), time.monotonic())
    trend.picture = Picture(api.url, seen_at_s=time.monotonic(), proxy=proxy)
    return trend.picture


class Waker:
    """Keeps databases awake for who says that they watch: again and again.

    Whether it may is the agent's to say; the picture is shown all the same.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._due_s = float("-inf")

    def wake(self, picture: Picture, now_s: float) -> None:
        if picture.lost is not None or picture.status is None or now_s < self._due_s:
            return
        self._due_s = now_s + WAKE_EVERY_S
        for database in picture.status.databases:
            try:
                self._api.change("POST", database_path(database.database, "wake"), {})
            except AgentUnreachable:
                return
            except HeadgateError:
                continue


class History:
    """Recalled once; where the agent could not say, after a while again."""

    def __init__(self, api: Api, trend: Trend) -> None:
        self._api = api
        self._trend = trend
        self._due_s: float | None = float("-inf")

    def recall(self, now_s: float) -> None:
        if self._due_s is None or now_s < self._due_s:
            return
        try:
            minutes = history_of_metrics(self._api, datetime.now(UTC))
        except HeadgateError:
            self._due_s = now_s + RECALL_AGAIN_S
            return
        self._trend.recall(minutes, time.monotonic())
        self._due_s = None


class Poller:
    def __init__(
        self,
        api: Api,
        interval_s: float,
        *,
        wake: bool = False,
        patient: Api | None = None,
        chosen: Chosen | None = None,
        look: Look = look,
    ) -> None:
        """`patient`: the same agent, for what takes it longer than its status."""
        self._look = look
        self._api = api
        self._interval_s = interval_s
        self._trend = Trend(api.url)
        self._history = History(patient or api, self._trend)
        self._waker = Waker(api) if wake else None
        self.bell = WakePipe()
        """Rings when there is something new."""
        self._feed = ViewFeed(patient or api, chosen or Chosen(), self.bell.ring)
        self._stop = threading.Event()
        # A daemon: leaving does not wait for an agent that does not answer.
        self._thread = threading.Thread(target=self._run, name="headgate-top", daemon=True)

    @property
    def scene(self) -> Scene:
        return Scene(self._trend.picture, self._feed.told, self._feed.strips)

    def want(self, names: Iterable[str], clients: Sequence[str] = ()) -> None:
        self._feed.want(names, clients)

    def ask_again(self) -> None:
        self._feed.ask_again()

    def __enter__(self) -> Poller:
        self._thread.start()
        self._feed.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._feed.stop()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._look(self._api, self._trend)
            self.bell.ring()
            now_s = time.monotonic()
            if self._waker is not None:
                self._waker.wake(self._trend.picture, now_s)
            if self._trend.picture.status is not None and self._trend.picture.lost is None:
                self._history.recall(now_s)
            self._stop.wait(self._interval_s)


class ViewFeed:
    """What the view that is open needs besides: asked for while it is open, no longer."""

    def __init__(self, api: Api, chosen: Chosen, on_news: Callable[[], None]) -> None:
        self._api = api
        self._sources = sources(chosen)
        self._on_news = on_news
        self.told: Mapping[str, LastAnswer] = {}
        self.strips: Mapping[str, LastAnswer] = {}
        self._names: tuple[str, ...] = ()
        self._clients: tuple[str, ...] = ()
        self._nudge = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="headgate-top-feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._nudge.set()

    def want(self, names: Iterable[str], clients: Sequence[str]) -> None:
        wanted = (tuple(names), tuple(clients))
        if wanted != (self._names, self._clients):
            self._names, self._clients = wanted
            self._nudge.set()

    def ask_again(self) -> None:
        """What the open view shows, now: something was changed."""
        for name in self._names:
            if name in self.told:
                self.told = {**self.told, name: replace(self.told[name], tried_at_s=float("-inf"))}
        self._nudge.set()

    def ask_all(self, names: Iterable[str]) -> None:
        """Once each, here and now: for one frame."""
        for name in names:
            self._ask(name)

    def ask_strips(self, clients: Iterable[str]) -> None:
        for client in clients:
            self._ask_strip(client)

    def _run(self) -> None:
        while not self._stopped:
            self._nudge.clear()
            name, client = self._due_name(), self._due_client()
            if name is not None:
                self._ask(name)
            elif client is not None:
                self._ask_strip(client)
                self._nudge.wait(STRIP_PAUSE_S)
            else:
                self._nudge.wait(self._rest_s())

    def _due_name(self) -> str | None:
        now_s = time.monotonic()
        due = {name: self._due_s(self.told.get(name, NOTHING), name) for name in self._names}
        ready = [name for name in due if due[name] <= now_s]
        return min(ready, key=lambda name: due[name], default=None)

    def _rest_s(self) -> float:
        """Until the next is due; who wants another view nudges."""
        due = [self._due_s(self.told.get(name, NOTHING), name) for name in self._names]
        due += [
            self.strips.get(client, NOTHING).tried_at_s + STRIP_EVERY_S for client in self._clients
        ]
        return max(0.0, min([MAX_REST_S, *(at_s - time.monotonic() for at_s in due)]))

    def _due_s(self, told: LastAnswer, name: str) -> float:
        every_s = self._sources[name].every_s
        return told.tried_at_s + (max(every_s, FAULT_PAUSE_S) if told.fault else every_s)

    def _due_client(self) -> str | None:
        now_s = time.monotonic()
        for client in self._clients:
            if self.strips.get(client, NOTHING).tried_at_s + STRIP_EVERY_S <= now_s:
                return client
        return None

    def _ask(self, name: str) -> None:
        before, now_s = self.told.get(name, NOTHING), time.monotonic()
        ask = self._sources[name].ask
        told = next_told(before, lambda: ask(self._api, before, now_s), now_s)
        self.told = {**self.told, name: told}
        self._on_news()

    def _ask_strip(self, client: str) -> None:
        before = self.strips.get(client, NOTHING)
        told = next_told(before, lambda: strip_of(self._api, client), time.monotonic())
        kept = {name: one for name, one in self.strips.items() if name != client}
        newest = sorted(kept.items(), key=lambda item: item[1].tried_at_s)[-(MAX_STRIPS - 1) :]
        self.strips = {**dict(newest), client: told}
        self._on_news()
