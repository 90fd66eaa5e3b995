"""A statement that ended or was blocked, as a server keeps it for replay.

    hg_trace ──budgets/pgext/meter──► Trace ──budgets/tracing──► counterfactual

Servers draw them in proportion to their cost: an expensive one is always kept, a cheap one
sometimes, with the number that it represents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntFlag
from typing import NamedTuple
from urllib.parse import quote_from_bytes

from headgate.budgets.model import (
    Limit,
    Statement,
    StatementFlags,
    StatementIdentity,
    StatementVerdict,
)

NO_FINGERPRINT = 0
PLANLESS_COST = 1.0
"""The plan's cost where there was no plan yet."""
LEAST_BLOCKED_NS = 100_000
_KEPT_FLAGS = StatementFlags.IN_TRANSACTION | StatementFlags.UTILITY


class TraceFlag(IntFlag):
    """Besides those of `StatementFlags`."""

    ABORTED = 128


@dataclass(frozen=True, slots=True)
class Trace:
    sequence: int
    """The n-th that its server ever wrote: in the order in which statements ended."""
    wall_ms: int
    """Unix time at which it started, or was blocked."""
    who: StatementIdentity
    tags: tuple[tuple[bytes, bytes], ...] = ()
    tags_left_out: int = 0
    query_id: int = 0
    fingerprint: int = NO_FINGERPRINT
    plan_cost: float = PLANLESS_COST
    estimate_ns: int = 0
    """0: no budget concerned it, so that nobody made one."""
    p90_ns: int = 0
    """What the per-query limit was compared with."""
    actual_ns: int = 0
    """0: it was blocked."""
    wall_ns: int = 0
    """How long it ran."""
    workers: int = 1
    weight: float = 1.0
    """Statements that it represents."""
    verdict: StatementVerdict = StatementVerdict.RUN
    limit: Limit = Limit.NONE
    """What decided."""
    budget: int = 0
    """The lower half of the deciding budget's key; 0: none."""
    flags: int = 0

    @property
    def blocked(self) -> bool:
        return self.verdict is StatementVerdict.BLOCK

    @property
    def aborted(self) -> bool:
        return bool(self.flags & TraceFlag.ABORTED)

    @property
    def asked(self) -> StatementFlags:
        return StatementFlags(self.flags) & _KEPT_FLAGS

    @property
    def blocked_early(self) -> bool:
        """Before planning: by a quarter of what its like usually takes, or by nothing at all."""
        planless = self.plan_cost == PLANLESS_COST and not self.asked & StatementFlags.UTILITY
        return self.blocked and planless

    @property
    def stands_for_ns(self) -> float:
        """CPU of all the statements that it represents; of blocked ones, as estimated."""
        if self.blocked:
            # Many are blocked before anybody knows what they would take: they are many all the
            # same, and not to be drawn once in a million times, for a million.
            return self.weight * max(self.estimate_ns, LEAST_BLOCKED_NS)
        return self.weight * max(self.actual_ns, 1)

    @property
    def statement(self) -> Statement:
        """As rules see it: its tags, and no text."""
        pairs = (f"{_quoted(key)}='{_quoted(value)}'" for key, value in self.tags)
        comment = f"/*{','.join(pairs)}*/".encode() if self.tags else b""
        return Statement(comment, query_id=self.query_id, fingerprint=self.fingerprint)


def _quoted(raw: bytes) -> str:
    return quote_from_bytes(raw, safe="")


class TraceBatch(NamedTuple):
    """What a server has written since one last looked."""

    traces: tuple[Trace, ...]
    next_sequence: int
    """To look from, next time."""
    lost: int
    """Overwritten before they were read, or while they were."""
    started_ms: int
    """Of the server: another one counts from 0 again."""


def thinned(traces: Sequence[Trace], keep: int) -> list[Trace]:
    """About `keep` of them (at most one more than that), drawn again as they were drawn: along
    their CPU time, so that its sum stays as it is, and no expensive statement is lost to chance."""
    if len(traces) <= keep:
        return list(traces)
    return list(_drawn(traces, _stride_ns([trace.stands_for_ns for trace in traces], keep)))


def _stride_ns(costs_ns: Sequence[float], keep: int) -> float:
    """Those that cost more are all kept, and the rest of the places are for the rest."""
    rest_ns, places = sum(costs_ns), keep
    for cost_ns in sorted(costs_ns, reverse=True):
        if places <= 1 or cost_ns < rest_ns / places:
            break
        rest_ns, places = rest_ns - cost_ns, places - 1
    return rest_ns / max(places, 1)


def _drawn(traces: Sequence[Trace], stride_ns: float) -> Iterator[Trace]:
    walked_ns = stride_ns / 2
    for trace in traces:
        cost_ns = trace.stands_for_ns
        if cost_ns >= stride_ns:
            yield trace
            continue
        walked_ns += cost_ns
        if walked_ns >= stride_ns:
            walked_ns -= stride_ns
            yield replace(trace, weight=trace.weight * stride_ns / cost_ns)
