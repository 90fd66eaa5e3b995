"""GET /v1/debug: the agent's process, to find out what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class ProcessDoc(msgspec.Struct, frozen=True):
    pid: int
    rss_bytes: int | None
    """null: the system does not report it."""
    cpu_s: float
    files: int | None
    files_max: int
    threads: int
    tasks: int
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
    tasks: Sequence[StackDoc]
    tasks_left_out: int
