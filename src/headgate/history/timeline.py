"""Sums of history as a picture of a day: "07:00–07:25 mostly throttled by shard/lag".

tallies by step and by client, minutes in which it checked ──timeline──► bins, spans, children

Time throttled by ratio rules is separate from time throttled by metrics, holds and pacing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.check.model import Verdict
from headgate.history.records import CheckedMinute, Tally
from headgate.history.starvation_courses import Reason

MOSTLY = 0.5
"""Share of a minute's checks that must be rejected for the minute to count as throttled."""
MAX_GAP_MINUTES = 1
"""A minute without a check does not end a span."""
MAX_CHILDREN = 50
MAX_SPANS = 50
OTHER = "other"

REASONS: Mapping[str, Reason | None] = {
    Verdict.OK.value: None,
    Verdict.THRESHOLD_EXCEEDED.value: Reason.METRIC,
    Verdict.REJECTED_BY_RATIO.value: Reason.DICE,
    Verdict.ON_HOLD.value: Reason.HELD,
    Verdict.PACED.value: Reason.PACED,
    Verdict.OVER_BUDGET.value: Reason.BUDGET,
    Verdict.UNKNOWN_METRIC.value: Reason.OTHER,
    Verdict.METRIC_UNAVAILABLE.value: Reason.OTHER,
    Verdict.WRONG_AGENT.value: Reason.OTHER,
    Verdict.INTERNAL_ERROR.value: Reason.OTHER,
}


@dataclass(frozen=True, slots=True)
class Sums:
    """Checks, by what became of them."""

    admitted: int = 0
    exempted: int = 0
    """Admitted checks that a metric would have rejected."""
    rejected: Mapping[Reason, int] = field(default_factory=dict)
    by: tuple[tuple[str, int], ...] = ()
    """Metrics and rules that rejected checks, the one with the most first."""

    @property
    def rejections(self) -> int:
        return sum(self.rejected.values())

    @property
    def checks(self) -> int:
        return self.admitted + self.rejections

    @property
    def rejected_share(self) -> float:
        return self.rejections / self.checks if self.checks else 0.0


@dataclass(frozen=True, slots=True)
class Bin:
    minute: int
    minutes: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class ThrottledSpan:
    """A stretch in which most checks were rejected."""

    from_minute: int
    until_minute: int
    """Not included."""
    sums: Sums


class ThrottledMinutes(NamedTuple):
    """A span before it is known what rejected the checks."""

    from_minute: int
    until_minute: int
    """Not included."""
    rejected: int


@dataclass(frozen=True, slots=True)
class Child:
    client: str
    """A client, or a level if the request is for levels."""
    sums: Sums


@dataclass(frozen=True, slots=True)
class Timeline:
    since_minute: int
    until_minute: int
    """Included."""
    total: Sums
    bins: tuple[Bin, ...]
    spans: tuple[ThrottledSpan, ...]
    children: tuple[Child, ...]
    """Most rejected first; those that do not fit are summed as `other`."""
    whole: bool = True
    """False: there are too many clients to look at each; sums are exact."""
    more_spans: int = 0
    """Number that did not fit."""


def stretches(asked: Iterable[CheckedMinute]) -> list[ThrottledMinutes]:
    """`asked` in order. A good minute ends a stretch, a silent one does not."""
    found: list[ThrottledMinutes] = []
    last = None
    for minute, checks, rejected in asked:
        held = rejected / checks >= MOSTLY if checks else False
        if held and last is not None and minute - last <= 1 + MAX_GAP_MINUTES:
            found[-1] = ThrottledMinutes(
                found[-1].from_minute, minute + 1, found[-1].rejected + rejected
            )
        elif held:
            found.append(ThrottledMinutes(minute, minute + 1, rejected))
        last = minute if held else None
    return found


def most_telling(found: Sequence[ThrottledMinutes]) -> list[ThrottledMinutes]:
    """Those with the most rejections, in order of time."""
    return sorted(sorted(found, key=lambda s: (-s.rejected, s.from_minute))[:MAX_SPANS])


def timeline(
    by_step: Iterable[Tally],
    spans: Iterable[tuple[ThrottledMinutes, Sequence[Tally]]],
    by_client: Sequence[Tally],
    *,
    since_minute: int,
    until_minute: int,
    step_minutes: int,
    level: int | None = None,
    whole: bool = True,
) -> Timeline:
    """Bins begin at round times: with steps of ten minutes at 07:00, 07:10 and so on.

    `level`: the place in clients' names, from 1, to break the sums down by. `whole`: whether
    `by_client` is all of it.
    """
    steps: dict[int, list[Tally]] = {}
    for tally in by_step:
        steps.setdefault(tally.minute, []).append(tally)
    total = sums_of(t for mine in steps.values() for t in mine)
    told = ((stretch, sums_of(mine)) for stretch, mine in spans)
    return Timeline(
        since_minute,
        until_minute,
        total,
        tuple(Bin(start, step_minutes, sums_of(steps[start])) for start in sorted(steps)),
        tuple(ThrottledSpan(s.from_minute, s.until_minute, sums) for s, sums in told if sums.by),
        tuple(_children(by_client, level, None if whole else total)),
        whole,
    )


def sums_of(tallies: Iterable[Tally]) -> Sums:
    admitted = exempted = 0
    rejected: Counter[Reason] = Counter()
    by: Counter[str] = Counter()
    for t in tallies:
        reason = REASONS.get(t.verdict, Reason.OTHER)
        if reason is None:
            admitted += t.count
            exempted += t.count if t.metric else 0
        else:
            rejected[reason] += t.count
            by[t.metric or t.verdict] += t.count
    ordered = sorted(by.items(), key=lambda item: (-item[1], item[0]))
    return Sums(admitted, exempted, dict(rejected), tuple(ordered))


def _children(tallies: Iterable[Tally], level: int | None, total: Sums | None) -> list[Child]:
    """`total`: of all, where these are not all."""
    found: dict[str, list[Tally]] = {}
    for t in tallies:
        found.setdefault(child_name(t.client, level), []).append(t)
    children = [Child(name, sums_of(mine)) for name, mine in found.items()]
    children.sort(key=lambda c: (-c.sums.rejections, -c.sums.admitted, c.client))
    shown, rest = children[:MAX_CHILDREN], children[MAX_CHILDREN:]
    if total is not None:
        told = sums_of(t for child in shown for t in found[child.client])
        shown.append(Child(OTHER, _less(total, told)))
    elif rest:
        shown.append(Child(OTHER, sums_of(t for child in rest for t in found[child.client])))
    return shown


def _less(total: Sums, told: Sums) -> Sums:
    """What is left of a total. Never less than none: one more may be counted between two reads."""
    by = Counter(dict(total.by)) - Counter(dict(told.by))
    ordered = sorted(by.items(), key=lambda item: (-item[1], item[0]))
    return Sums(
        max(0, total.admitted - told.admitted),
        max(0, total.exempted - told.exempted),
        dict(Counter(total.rejected) - Counter(told.rejected)),
        tuple(ordered),
    )


def child_name(client: str, level: int | None) -> str:
    """The level at that place; a shorter name has no level there and is its own child."""
    tokens = client.split(":")
    return client if level is None or level > len(tokens) else tokens[level - 1]


# --- runs ----------------------------------------------------------------------------------
# How long a client runs, compared with its own past runs.   minutes ──runs_of──► Runs
#
# A run is a stretch of minutes in which the client checked, with no pause longer than 15 minutes.
# A job that takes far longer than ever before is worth a look, starved or not.

GAP_MINUTES = 15
"""As StarvationTerms.run_gap_s: after a pause this long, the next check begins another run."""
MIN_EARLIER = 3
FAR_BEYOND = 1.5
"""Factor on the longest run before."""
MIN_MINUTES = 10


class ClientRun(NamedTuple):
    from_minute: int
    until_minute: int
    """Not included."""

    @property
    def minutes(self) -> int:
        return self.until_minute - self.from_minute


class Runs(NamedTuple):
    last: ClientRun
    ongoing: bool
    earlier: tuple[ClientRun, ...]

    @property
    def usual_minutes(self) -> float | None:
        """The median of those before; None where there are too few to say."""
        lengths = sorted(run.minutes for run in self.earlier)
        if len(lengths) < MIN_EARLIER:
            return None
        half = len(lengths) // 2
        return lengths[half] if len(lengths) % 2 else (lengths[half - 1] + lengths[half]) / 2

    @property
    def longest_minutes(self) -> int:
        return max((run.minutes for run in self.earlier), default=0)

    @property
    def unusual(self) -> bool:
        if len(self.earlier) < MIN_EARLIER or self.last.minutes < MIN_MINUTES:
            return False
        return self.last.minutes > FAR_BEYOND * self.longest_minutes


def runs_of(minutes: Iterable[int], *, since_minute: int, now_minute: int) -> Runs | None:
    """From the minutes in which it checked; None if there are none. A run that began before
    `since_minute` may be longer than it looks, so it is not compared."""
    found: list[ClientRun] = []
    for minute in sorted(set(minutes)):
        if found and minute - found[-1].until_minute < GAP_MINUTES:
            found[-1] = ClientRun(found[-1].from_minute, minute + 1)
        else:
            found.append(ClientRun(minute, minute + 1))
    if not found:
        return None
    last = found.pop()
    whole = [run for run in found if run.from_minute > since_minute + GAP_MINUTES]
    return Runs(last, now_minute - last.until_minute < GAP_MINUTES, tuple(whole))
