"""Celery.   @app.task(base=ThrottledTask) ──rejected──► published again, with a countdown

A rejected task goes back to the broker and is delivered again after the agent's retry_after: the
worker is free meanwhile. It checks once per run and never blocks a worker on an agent that is away.

A rejection is no failure: it leaves `request.retries` as it is, so `max_retries` and
`autoretry_for` count real failures only. Celery's own `expires` ends a task that is never admitted;
it is kept over retries. The task's state is RETRY meanwhile. With SQS and Redis a countdown longer
than the visibility timeout delivers a task twice; the agent's are seconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import Lock
from typing import Any, ClassVar

from celery import Task
from celery.exceptions import Retry

from headgate import Client
from headgate.client.gate import system_dice
from headgate.errors import ThrottlerUnavailable, WaitedTooLong

DEFAULT_COUNTDOWN_S = 5.0
"""Where the agent named no time, or did not answer."""
SPREAD = 0.5
"""Countdowns are up to this much longer: tasks rejected together do not return together."""


class TaskClients:
    """Of this process: one client for each task, made when it is first needed."""

    def __init__(self) -> None:
        self._gates: dict[str, Client] = {}
        self._lock = Lock()

    def of(self, app: str, settings: Mapping[str, Any]) -> Client:
        with self._lock:
            if app not in self._gates:
                self._gates[app] = Client(app, **settings)
            return self._gates[app]

    def after_fork(self) -> None:
        """Another thread may have held the lock. The clients themselves bear a fork."""
        self._lock = Lock()

    def forget(self) -> None:
        with self._lock:
            gates, self._gates = self._gates, {}
        for gate in gates.values():
            gate.close()


_gates = TaskClients()
os.register_at_fork(after_in_child=_gates.after_fork)


class ThrottledTask(Task):  # type: ignore[misc] # Celery has no types
    """Checks before each run, as `<task's name>:<headgate_app>`.

    headgate_app       the levels above the task's own name
    headgate           settings of headgate.Client: database, url, metrics, on_unavailable …
    """

    abstract = True
    headgate_app: ClassVar[str] = "celery"
    headgate: ClassVar[Mapping[str, Any]] = {"database": "main"}

    @property
    def headgate_identity(self) -> str:
        return f"{self.name}:{self.headgate_app}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        gate = _gates.of(self.headgate_identity, self.headgate)
        if self.request.is_eager or self.request.called_directly:
            gate.wait()  # there is nowhere to go back to
        else:
            go_or_come_again(self, gate)
        return super().__call__(*args, **kwargs)


def go_or_come_again(task: Any, gate: Client) -> None:
    """Returns if admitted; else publishes the task again and raises Retry.

    For bound tasks that know their database only at run time, such as the tenant's shard.
    """
    try:
        gate.wait(deadline_s=0)
    except WaitedTooLong as rejected:
        advised_s = rejected.answer.retry_after_s if rejected.answer else None
        raise come_again(task, advised_s, str(rejected)) from None
    except ThrottlerUnavailable as nobody:
        raise come_again(task, None, str(nobody)) from None


def come_again(task: Any, advised_s: float | None, why: str) -> Retry:
    countdown_s = (advised_s or DEFAULT_COUNTDOWN_S) * (1 + SPREAD * system_dice())
    task.signature_from_request(
        task.request, countdown=countdown_s, retries=task.request.retries
    ).apply_async()
    return Retry(why, when=countdown_s)
