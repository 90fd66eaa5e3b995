"""Airflow 3.   HeadgateSensor ──deferred──► HeadgateTrigger (in the triggerer)   ·   @throttled

A sensor that is deferred takes no worker's slot while it waits: its trigger waits on the
triggerer's event loop. Between the sensor and the task behind it time passes, and an OK speaks of
the moment it was given: gate the pieces of a long task inside it, with `gate.chunks`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from airflow.sdk import BaseSensorOperator, get_current_context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from headgate import AsyncClient, Client
from headgate.errors import HeadgateError

Params = ParamSpec("Params")
Result = TypeVar("Result")


def identity_of(context: Mapping[str, Any]) -> str:
    """`<task>:<dag>:airflow`; a mapped task's runs share one name."""
    instance = context["ti"]
    return f"{instance.task_id}:{instance.dag_id}:airflow"


class HeadgateTrigger(BaseTrigger):  # type: ignore[misc] # Airflow may be missing here
    """Fires once, when admitted or when there is no more hope."""

    def __init__(self, app: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.app = app
        self.settings = dict(settings)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"app": self.app, "settings": self.settings}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async with AsyncClient(self.app, **self.settings) as gate:
            try:
                answer = await gate.wait()
            except HeadgateError as failure:
                yield TriggerEvent({"admitted": False, "reason": str(failure)})
                return
        yield TriggerEvent({"admitted": True, "reason": answer.reason})


class HeadgateSensor(BaseSensorOperator):  # type: ignore[misc] # likewise
    """Succeeds once admitted. `deferrable=False` pokes from a worker's slot instead.

    `headgate` are settings of the client: database, url, max_wait_s, on_unavailable …
    They are kept in Airflow's database: give a token by the agent's Unix socket or an environment.
    """

    template_fields = ("app",)

    def __init__(
        self,
        *,
        database: str,
        app: str | None = None,
        deferrable: bool = True,
        headgate: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.app = app
        self.deferrable = deferrable
        self.settings = {**(headgate or {}), "database": database}

    def execute(self, context: Any) -> Any:
        if not self.deferrable:
            return super().execute(context)
        if self.poke(context):
            return None  # admitted at once: no trigger need be made
        trigger = HeadgateTrigger(self._identity(context), self.settings)
        self.defer(
            trigger=trigger,
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )
        raise AssertionError("defer() does not return")

    def poke(self, context: Any) -> bool:
        with Client(self._identity(context), **self.settings) as gate:
            return bool(gate.check())

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> None:
        if not event["admitted"]:
            raise HeadgateError(event["reason"])

    def _identity(self, context: Any) -> str:
        return self.app or identity_of(context)


def throttled(
    *, database: str, app: str | None = None, **settings: Any
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Below `@task`: each run waits until it is admitted, before the function's first line."""

    def decorate(work: Callable[Params, Result]) -> Callable[Params, Result]:
        @wraps(work)
        def asking(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            name = app or identity_of(get_current_context())
            with Client(name, database=database, **settings) as gate:
                gate.wait()
            return work(*args, **kwargs)

        return asking

    return decorate
