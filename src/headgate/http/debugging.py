"""GET /v1/debug.   operators ──► Debugging ──► the process: memory, loop, stacks, packages, servers

No secrets by construction: stacks have no variables, and settings are redacted. It is still for
operators only, because of the stacks and paths.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import resource
import shutil
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import msgspec
from starlette.responses import Response

from headgate.base.paths import distribution, packages
from headgate.check.model import Activity
from headgate.check.views import Views
from headgate.errors import ProbeFailed
from headgate.http.documents import json_response
from headgate.http.exposition import Works
from headgate.http.routes import Caller, Plain, Route

# --- the document --------------------------------------------------------------------------


class ProcessDoc(msgspec.Struct, frozen=True):
    pid: int
    rss_bytes: int | None
    """null: the system does not report it."""
    cpu_s: float
    """CPU seconds of the agent's process so far."""
    files: int | None
    files_max: int
    threads: int
    """How many threads it has."""
    tasks: int
    """How many tasks its loop has."""
    collections: Sequence[int]
    """Objects of the garbage collector, by generation."""


class LoopDoc(msgspec.Struct, frozen=True):
    kind: str
    late: Mapping[str, int]
    """How late the loop was: upper bound in seconds → number of times."""
    late_sum_s: float


class ClocksDoc(msgspec.Struct, frozen=True):
    wall_s: float
    mono_s: float
    started_wall_s: float
    uptime_s: float
    zone: str
    """The host's local time zone; the agent itself uses UTC."""


class DiskDoc(msgspec.Struct, frozen=True):
    what: str
    """What the agent writes there."""
    path: str
    free_bytes: int | None
    total_bytes: int | None
    fault: str | None = None


class ServerDoc(msgspec.Struct, frozen=True):
    """What a database says of itself."""

    database: str
    facts: Mapping[str, str]
    fault: str | None = None
    """Why nothing is known, or the server was not queried."""


class StackDoc(msgspec.Struct, frozen=True):
    name: str
    frames: Sequence[str]
    """`file:line function`, the innermost last."""


class TracesDoc(msgspec.Struct, frozen=True):
    collector: str
    outcomes: Mapping[str, int]
    waiting: int
    fault: str | None


class DebugDoc(msgspec.Struct, frozen=True):
    agent: str
    version: str
    """Of Headgate."""
    python: str
    system: Mapping[str, str]
    packages: Mapping[str, str]
    process: ProcessDoc
    loop: LoopDoc
    clocks: ClocksDoc
    disks: Sequence[DiskDoc]
    servers: Sequence[ServerDoc]
    connections: int
    connections_max: int
    traces: TracesDoc | None
    """null: nothing is traced."""
    settings: Mapping[str, Any]
    """The settings in force, without secrets."""
    threads: Sequence[StackDoc]
    """The stack of each thread."""
    tasks: Sequence[StackDoc]
    """The stack of each task."""
    tasks_left_out: int


# --- the handler ---------------------------------------------------------------------------


MAX_THREADS = 64
MAX_TASKS = 300
MAX_FRAMES = 40
MAX_TASK_FRAMES = 12
MAX_SERVERS = 64
RESTING = "the database is idle, and this request does not wake it: try again after a check"

AskServer = Callable[[str], Awaitable[Mapping[str, str]]]
"""What the server of a database reports about itself; ProbeFailed."""


def _nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Inside:
    """What only the composition root knows."""

    settings: Callable[[], Mapping[str, Any]] = _nothing
    """The settings in force, without secrets."""
    disks: Callable[[], Mapping[str, str]] = _nothing
    """Purpose → path."""
    ask_server: AskServer | None = None
    works: Works | None = field(default=None)


class Debugging:
    """Handlers, as Control's."""

    def __init__(self, views: Views, inside: Inside) -> None:
        self._views = views
        self._inside = inside

    async def debug(self, call: Plain) -> Response:
        return json_response(await self._doc())

    async def _doc(self) -> DebugDoc:
        facts, works = self._views.facts, self._inside.works
        listener = works.listener() if works is not None else None
        tasks = list(asyncio.all_tasks())
        names = [plan.name for plan in self._views.parts.book.databases()]
        return DebugDoc(
            agent=facts.name,
            version=facts.version,
            python=sys.version,
            system=system_facts(),
            packages=await asyncio.to_thread(packages),
            process=await asyncio.to_thread(_process, len(tasks)),
            loop=self._loop(),
            clocks=self._clocks(),
            disks=await asyncio.to_thread(_disks, self._inside.disks()),
            servers=await asyncio.gather(*map(self._server, names[:MAX_SERVERS])),
            connections=0 if listener is None else len(listener.connections),
            connections_max=0 if listener is None else listener.limits.max_connections,
            traces=self._traces(),
            settings=self._inside.settings(),
            threads=list(_threads()),
            tasks=[_task(task) for task in tasks[:MAX_TASKS]],
            tasks_left_out=max(0, len(tasks) - MAX_TASKS),
        )

    def _loop(self) -> LoopDoc:
        loop, works = asyncio.get_running_loop(), self._inside.works
        kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
        if works is None:
            return LoopDoc(kind, {}, 0.0)
        return LoopDoc(kind, works.pulse.up_to(), works.pulse.sum_s)

    def _clocks(self) -> ClocksDoc:
        now, began = self._views.parts.clock.now(), self._views.facts.started_at
        return ClocksDoc(
            wall_s=now.wall_s,
            mono_s=now.mono_s,
            started_wall_s=began.wall_s,
            uptime_s=now.mono_s - began.mono_s,
            zone="/".join(time.tzname),
        )

    async def _server(self, database: str) -> ServerDoc:
        ask = self._inside.ask_server
        if ask is None:
            return ServerDoc(database, {}, "no probe is configured for it")
        if self._views.activity(database) is Activity.HIBERNATING:
            return ServerDoc(database, {}, RESTING)
        try:
            return ServerDoc(database, await ask(database))
        except ProbeFailed as error:
            return ServerDoc(database, {}, error.detail)

    def _traces(self) -> TracesDoc | None:
        spans = self._views.facts.spans
        if spans is None:
            return None
        return TracesDoc(spans.collector, dict(spans.outcomes), spans.waiting, spans.fault)


DEBUG_ROUTES = (
    Route(
        "GET", "/v1/debug", "debug", "The process: memory, loop, stacks, servers", DebugDoc,
        role=Caller.OPERATOR,
        about="With the settings in force without secrets, packages, and what each server reports "
        "about itself. [A debug bundle](../howto/debug-bundle.md) has it.",
    ),
)  # fmt: skip


def system_facts() -> dict[str, str]:
    import psutil  # As below.

    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "distribution": distribution(),
        "implementation": platform.python_implementation(),
        "platform": sysconfig.get_platform(),
        "cpus": str(os.cpu_count() or ""),
        "cpus_allowed": str(len(os.sched_getaffinity(0))),
        "memory_bytes": str(psutil.virtual_memory().total),
        "load": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }


def _process(tasks: int) -> ProcessDoc:
    import psutil  # 1 MB that only this document needs.

    mine = psutil.Process()
    used = mine.cpu_times()
    return ProcessDoc(
        pid=mine.pid,
        rss_bytes=mine.memory_info().rss,
        cpu_s=used.user + used.system,
        files=mine.num_fds(),
        files_max=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        threads=threading.active_count(),
        tasks=tasks,
        collections=[generation["collections"] for generation in gc.get_stats()],
    )


def _disks(paths: Mapping[str, str]) -> list[DiskDoc]:
    return [_disk(what, path) for what, path in paths.items()]


def _disk(what: str, path: str) -> DiskDoc:
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return DiskDoc(what, path, None, None, error.strerror or str(error))
    return DiskDoc(what, path, usage.free, usage.total)


def _threads() -> Iterator[StackDoc]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in list(sys._current_frames().items())[:MAX_THREADS]:
        yield StackDoc(names.get(ident, "unknown"), _frames(frame))


def _frames(frame: FrameType) -> list[str]:
    """Places alone: what is in the variables is nobody's business."""
    places = traceback.extract_stack(frame, limit=MAX_FRAMES)
    return [_place(one.filename, one.lineno, one.name) for one in places]


def _task(task: asyncio.Task[Any]) -> StackDoc:
    stack = task.get_stack(limit=MAX_TASK_FRAMES)
    frames = [_place(f.f_code.co_filename, f.f_lineno, f.f_code.co_qualname) for f in stack]
    coroutine = getattr(task.get_coro(), "__qualname__", "unknown")
    return StackDoc(task.get_name(), frames or [coroutine])


def _place(path: str, line: int | None, name: str) -> str:
    """From the package on: where it is installed says more of the host than of the fault."""
    parts: Sequence[str] = path.split("/")
    for root in ("site-packages", "src"):
        if root in parts:
            parts = parts[len(parts) - parts[::-1].index(root) :]
            break
    return f"{'/'.join(parts[-6:])}:{line or 0} {name}"
