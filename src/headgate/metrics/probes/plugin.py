"""Metrics from other packages: an entry point in the group `headgate.probes`.

A plug-in is one function. It gets the metric's options and answers a number; it may be
`async`, otherwise it runs in a thread. Whatever it raises becomes a failed reading.

    # queue_depth.py
    import urllib.request

    def read(options):
        with urllib.request.urlopen(options["url"], timeout=1) as answer:
            return int(answer.read())

    # pyproject.toml
    [project.entry-points."headgate.probes"]
    queue_depth = "queue_depth:read"

    # headgate.toml
    [databases.main.metrics.jobs]
    plugin = "queue_depth"
    threshold = 1000
    options = { url = "http://127.0.0.1:9000/depth" }
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from headgate.errors import Fault, InvalidSettings, ProbeFailed
from headgate.metrics.probes.numbers import number_of, one_line
from headgate.metrics.probes.server import Options
from headgate.metrics.probes.threads import OneThread
from headgate.metrics.samples import Cause

GROUP = "headgate.probes"


class PluginProbe:
    def __init__(self, name: str, function: Callable[[Options], Any], options: Options) -> None:
        self._label = f"plug-in {name}"
        self._options = options
        self._call = _awaitable(self._label, function)

    async def read(self) -> float:
        try:
            return number_of(await self._call(self._options))
        except ProbeFailed as failure:
            raise ProbeFailed(failure.cause, f"{self._label} {failure.detail}") from None
        except (asyncio.CancelledError, GeneratorExit) as error:
            if isinstance(error, GeneratorExit) or _is_being_cancelled():
                raise
            message = f"{self._label} raised CancelledError, though nobody has cancelled it"
            raise ProbeFailed(Cause.FAILED, message) from error
        except BaseException as error:  # others' code: even SystemExit is its failure, not ours
            message = f"{self._label} raised {type(error).__name__}: {one_line(error)}"
            raise ProbeFailed(Cause.FAILED, message) from error

    async def close(self) -> None:
        """A plug-in manages its own resources."""


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def load_plugin(metric: str, name: str, options: Options) -> PluginProbe:
    place = f"metrics.{metric}.plugin"
    found = entry_points(group=GROUP)
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "none is installed"
        message = f"there is no plug-in {name!r} in the group {GROUP}; known: {known}"
        raise InvalidSettings([Fault(place, message)])
    return PluginProbe(name, _load(found[name], place), options)


def _load(entry: EntryPoint, place: str) -> Callable[[Options], Any]:
    try:
        function = entry.load()
    except (ImportError, AttributeError) as error:
        message = f"{entry.value} cannot be imported: {one_line(error)}"
        raise InvalidSettings([Fault(place, message)]) from None
    if not callable(function):
        raise InvalidSettings([Fault(place, f"{entry.value} is no function")])
    return function  # type: ignore[no-any-return]


def _awaitable(
    label: str, function: Callable[[Options], Any]
) -> Callable[[Options], Awaitable[Any]]:
    if inspect.iscoroutinefunction(function):
        return function
    thread: OneThread[Any] = OneThread(label)

    async def call(options: Options) -> Any:
        return await thread.run(lambda: function(options))

    return call
