"""Sums of history as a picture of a day: "07:00–07:25 mostly held by shard/lag" (R68, R91).

tallies by minute, tallies by client ──timeline──► bins, spans, children

Time refused by dice is kept apart from time refused by metrics, by hold and by pacing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headgate.core.courses import Reason
from headgate.core.decision import Verdict
from headgate.core.records import Tally

MOSTLY = 0.5
"""Share of a minute's checks from which on it counts as held."""
MAX_GAP_MINUTES = 1
"""A minute without a question does not end a span."""
MAX_CHILDREN = 50
OTHER = "other"

REASONS: Mapping[str, Reason | None] = {
    Verdict.OK.value: None,
    Verdict.THRESHOLD_EXCEEDED.value: Reason.METRIC,
    Verdict.REJECT_BY_RATIO.value: Reason.DICE,
    Verdict.APP_DENIED.value: Reason.HELD,
    Verdict.PACED.value: Reason.PACED,
    Verdict.UNKNOWN_METRIC.value: Reason.OTHER,
    Verdict.INTERNAL_ERROR.value: Reason.OTHER,
    Verdict.MISDIRECTED.value: Reason.OTHER,
}


@dataclass(frozen=True, slots=True)
class Sums:
    """Checks, by what became of them."""

    admitted: int = 0
    exempted: int = 0
    """Those of the admitted that a metric would have refused."""
    refused: Mapping[Reason, int] = field(default_factory=dict)
    by: tuple[tuple[str, int], ...] = ()
    """Metrics and rules that refused, the most telling first."""

    @property
    def refusals(self) -> int:
        return sum(self.refused.values())

    @property
    def checks(self) -> int:
        return self.admitted + self.refusals

    @property
    def refused_share(self) -> float:
        return self.refusals / self.checks if self.checks else 0.0


@dataclass(frozen=True, slots=True)
class Bin:
    minute: int
    minutes: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch in which most checks were refused."""

    from_minute: int
    until_minute: int
    """Not included."""
    sums: Sums


@dataclass(frozen=True, slots=True)
class Child:
    client: str
    """A client, or a level where one was asked for."""
    sums: Sums


@dataclass(frozen=True, slots=True)
class Timeline:
    since_minute: int
    until_minute: int
    """Included."""
    total: Sums
    bins: tuple[Bin, ...]
    spans: tuple[Span, ...]
    children: tuple[Child, ...]
    """Who was refused most comes first; beyond the most that are shown, `other`."""


def timeline(
    by_minute: Sequence[Tally],
    by_client: Iterable[Tally],
    *,
    since_minute: int,
    until_minute: int,
    step_minutes: int,
    level: int | None = None,
) -> Timeline:
    """Bins begin at round times: with steps of ten minutes at 07:00, 07:10 and so on.

    `level`: the place in clients' names, from 1, to break the sums down by.
    """
    minutes = _grouped((t.minute, t) for t in by_minute)
    steps = _grouped((t.minute - t.minute % step_minutes, t) for t in by_minute)
    return Timeline(
        since_minute,
        until_minute,
        sums_of(by_minute),
        tuple(Bin(start, step_minutes, sums_of(steps[start])) for start in sorted(steps)),
        tuple(_spans(minutes)),
        tuple(_children(by_client, level)),
    )


def sums_of(tallies: Iterable[Tally]) -> Sums:
    admitted = exempted = 0
    refused: Counter[Reason] = Counter()
    by: Counter[str] = Counter()
    for t in tallies:
        reason = REASONS.get(t.verdict, Reason.OTHER)
        if reason is None:
            admitted += t.count
            exempted += t.count if t.metric else 0
        else:
            refused[reason] += t.count
            by[t.metric or t.verdict] += t.count
    ordered = sorted(by.items(), key=lambda item: (-item[1], item[0]))
    return Sums(admitted, exempted, dict(refused), tuple(ordered))


def _grouped(pairs: Iterable[tuple[int, Tally]]) -> dict[int, list[Tally]]:
    found: dict[int, list[Tally]] = {}
    for key, tally in pairs:
        found.setdefault(key, []).append(tally)
    return found


def _spans(minutes: Mapping[int, list[Tally]]) -> Iterable[Span]:
    run: list[int] = []
    for minute in sorted(minutes):
        if sums_of(minutes[minute]).refused_share < MOSTLY:
            continue
        if run and minute - run[-1] > 1 + MAX_GAP_MINUTES:
            yield _span(run, minutes)
            run = []
        elif run and any(m in minutes for m in range(run[-1] + 1, minute)):
            yield _span(run, minutes)  # The minute between was a good one.
            run = []
        run.append(minute)
    if run:
        yield _span(run, minutes)


def _span(run: Sequence[int], minutes: Mapping[int, list[Tally]]) -> Span:
    tallies = [t for minute in run for t in minutes[minute]]
    return Span(run[0], run[-1] + 1, sums_of(tallies))


def _children(tallies: Iterable[Tally], level: int | None) -> list[Child]:
    found: dict[str, list[Tally]] = {}
    for t in tallies:
        found.setdefault(child_name(t.client, level), []).append(t)
    children = [Child(name, sums_of(mine)) for name, mine in found.items()]
    children.sort(key=lambda c: (-c.sums.refusals, -c.sums.admitted, c.client))
    shown, rest = children[:MAX_CHILDREN], children[MAX_CHILDREN:]
    if rest:
        left = [t for child in rest for t in found[child.client]]
        shown.append(Child(OTHER, sums_of(left)))
    return shown


def child_name(client: str, level: int | None) -> str:
    """The level at that place; a shorter name has none there, and stands for itself."""
    tokens = client.split(":")
    return client if level is None or level > len(tokens) else tokens[level - 1]
