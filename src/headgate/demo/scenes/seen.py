"""What scenes look for in the frames that they have seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.demo.agents import LAG_THRESHOLD_S
from headgate.demo.stage import Frame


def lags(frames: Iterable[Frame]) -> list[float]:
    """Where it was known: a missing value is no 0."""
    return [frame.lag_s for frame in frames if frame.lag_s is not None]


def is_calm(frame: Frame) -> bool:
    return frame.lag_s is not None and frame.lag_s <= LAG_THRESHOLD_S


def chunks(frames: Iterable[Frame], job: str) -> int:
    return sum(desk.chunks for frame in frames for desk in frame.desks if desk.name == job)


def held(frames: Iterable[Frame]) -> set[str]:
    """Jobs that were seen held."""
    desks = (desk for frame in frames for desk in frame.desks)
    return {desk.name for desk in desks if desk.rejected_for_s is not None}


def all_go_on(frames: Sequence[Frame]) -> bool:
    """Whether every job was admitted in the last of them, and the shard is calm."""
    last = frames[-1]
    return is_calm(last) and all(d.chunks and d.rejected_for_s is None for d in last.desks)
