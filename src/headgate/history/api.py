"""History as documents: a timeline of any level, metrics by the minute, replay, one check in the
past, and starvation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from headgate.base.units import share_of
from headgate.check.api import RejectionDoc
from headgate.check.questions import Span
from headgate.check.reasons import duration
from headgate.history.records import MetricMinute, Tally
from headgate.history.replay import ReplayedHour
from headgate.history.replay_outcomes import How
from headgate.history.sessions import Suspect
from headgate.history.starvation import LOOK, Culprit, Starved
from headgate.history.timeline import Runs, Sums, Timeline, sums_of
from headgate.rules.api import MatchDoc
from headgate.rules.matching import Kind, Rule
from headgate.rules.settings import rule_schema

When = Callable[[float], str]
"""Wall-clock seconds as ISO 8601."""
MAX_BY = 10
MAX_REPLAY_ROWS = 5000


class ByDoc(msgspec.Struct, frozen=True):
    by: str
    """A metric (`shard/lag`), a rule (`rule:r7`), or a verdict where neither decided."""
    count: int


class SumsDoc(msgspec.Struct, frozen=True):
    checks: int
    """How many checks there were."""
    admitted: int
    exempted: int
    """Admitted checks that a metric would have rejected."""
    rejected: int
    by_reason: Mapping[str, int]
    """`metric`, `dice`, `held`, `paced`, `budget`, `other`: counted separately."""
    by: Sequence[ByDoc]
    """What rejected checks, the most first; at most 10."""

    @property
    def rejected_share(self) -> float:
        return self.rejected / self.checks if self.checks else 0.0


class BinDoc(msgspec.Struct, frozen=True):
    at: str
    minutes: int
    """How many minutes it covers."""
    sums: SumsDoc


class SpanDoc(msgspec.Struct, frozen=True):
    """Consecutive minutes in which most checks were rejected."""

    since: str
    until: str
    mostly_by: str
    share: float
    """Number of rejected checks."""
    sums: SumsDoc


class ChildDoc(msgspec.Struct, frozen=True):
    client: str
    sums: SumsDoc


class RunsDoc(msgspec.Struct, frozen=True):
    """How long it has been at it, compared with its own past runs."""

    since: str
    until: str
    ongoing: bool
    minutes: int
    """How long the run has lasted."""
    earlier: int
    """Earlier runs within two weeks whose start is known."""
    usual_minutes: float | None
    """Their median; null for fewer than three."""
    longest_minutes: int
    unusual: bool
    """Far longer than the longest of them."""


class TimelineDoc(msgspec.Struct, frozen=True):
    app: str
    """The requested client or level; `all` for every client."""
    since: str
    until: str
    step_minutes: int
    total: SumsDoc
    bins: Sequence[BinDoc]
    """Only those with checks."""
    spans: Sequence[SpanDoc]
    """Those with the most rejections, at most 50."""
    children: Sequence[ChildDoc]
    """The most rejected first, at most 50; the last, `other`, is the rest."""
    whole: bool
    """False: there are too many clients to look at each. All sums are exact, and what is not under
    a client's name is under `other`."""
    more_spans: int
    """Number of spans that are not in `spans`."""
    runs: RunsDoc | None = None
    """Null for `all`, and if it never checked."""


class ClientSumsDoc(msgspec.Struct, frozen=True):
    client: str
    database: str
    sums: SumsDoc


class ClientsSumsDoc(msgspec.Struct, frozen=True):
    """What became of each client's checks, over a time that is over or goes on."""

    since: str
    """Start of a minute: sums are of whole minutes."""
    until: str
    seconds: float
    """Its length, up to now if it is not over: the basis of rates."""
    clients: Sequence[ClientSumsDoc]
    """By client and database."""
    whole: bool
    """False: the list is cut; the smallest are left out."""


class MetricMinuteDoc(msgspec.Struct, frozen=True):
    at: str
    database: str
    metric: str
    looks: int
    unavailable: int
    """How many of the looks found no value."""
    low: float | None
    mean: float | None
    high: float | None
    breached_share: float | None
    threshold: float


class MetricMinutesDoc(msgspec.Struct, frozen=True):
    minutes: Sequence[MetricMinuteDoc]
    whole: bool = True
    """False: there are more than fit into one answer, and the oldest are left out."""
    step_minutes: int = 1
    """Number of minutes that each row sums up; `at` is when the first begins."""


class ReplayRowDoc(msgspec.Struct, frozen=True):
    """One client in one hour."""

    hour: str
    database: str
    client: str
    checks: int
    """How many checks there were."""
    admitted_before: int
    rejected_before: int
    admitted_after: float | None
    """Null if unknown."""
    admitted_low: float
    admitted_high: float
    how: str
    """`exact`, `expected` (a ratio, on average), `bounded`, `unknown`."""
    shadowed_by: str
    """The more specific rule that decides, if the proposed one would have no effect."""


class ReplayTotalDoc(msgspec.Struct, frozen=True):
    checks: int
    """How many checks there were."""
    admitted_before: int
    admitted_low: float
    admitted_high: float


class ReplayDoc(msgspec.Struct, frozen=True):
    rule: str
    target: str
    kind: str
    since: str
    """Start of the replayed history."""
    until: str
    whole: bool
    """False: there was too much history to replay; it begins later than requested."""
    total: ReplayTotalDoc
    rows: Sequence[ReplayRowDoc]
    """Only rows with a change; at most 5000, the largest changes."""
    more_rows: int
    """Number of rows that are not in `rows`; the totals include them."""
    notes: Sequence[str]


class ReplayBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=rule_schema({}))]
    """As for POST /v1/rules."""
    since: Span = "1h"
    """How long ago it begins."""


# --- making them ---------------------------------------------------------------------------


def sums_doc(sums: Sums) -> SumsDoc:
    return SumsDoc(
        checks=sums.checks,
        admitted=sums.admitted,
        exempted=sums.exempted,
        rejected=sums.rejections,
        by_reason={reason.value: count for reason, count in sums.rejected.items()},
        by=[ByDoc(by, count) for by, count in sums.by[:MAX_BY]],
    )


def clients_sums_doc(
    tallies: Iterable[Tally], span_s: tuple[float, float], when: When, *, whole: bool
) -> ClientsSumsDoc:
    since_s, until_s = span_s
    found: dict[tuple[str, str], list[Tally]] = {}
    for tally in tallies:
        found.setdefault((tally.client, tally.database), []).append(tally)
    told = [ClientSumsDoc(*place, sums_doc(sums_of(mine))) for place, mine in found.items()]
    return ClientsSumsDoc(when(since_s), when(until_s), until_s - since_s, told, whole)


def timeline_doc(
    found: Timeline, app: str, step_minutes: int, when: When, runs: Runs | None = None
) -> TimelineDoc:
    return TimelineDoc(
        app=app,
        since=when(found.since_minute * 60),
        until=when((found.until_minute + 1) * 60),
        step_minutes=step_minutes,
        total=sums_doc(found.total),
        bins=[BinDoc(when(b.minute * 60), b.minutes, sums_doc(b.sums)) for b in found.bins],
        spans=[
            SpanDoc(
                when(span.from_minute * 60),
                when(span.until_minute * 60),
                span.sums.by[0][0],
                span.sums.rejected_share,
                sums_doc(span.sums),
            )
            for span in found.spans
        ],
        children=[ChildDoc(child.client, sums_doc(child.sums)) for child in found.children],
        whole=found.whole,
        more_spans=found.more_spans,
        runs=None if runs is None else runs_doc(runs, when),
    )


def runs_doc(runs: Runs, when: When) -> RunsDoc:
    return RunsDoc(
        since=when(runs.last.from_minute * 60),
        until=when(runs.last.until_minute * 60),
        ongoing=runs.ongoing,
        minutes=runs.last.minutes,
        earlier=len(runs.earlier),
        usual_minutes=runs.usual_minutes,
        longest_minutes=runs.longest_minutes,
        unusual=runs.unusual,
    )


def minutes_doc(
    minutes: Iterable[MetricMinute], when: When, *, whole: bool = True, step_minutes: int = 1
) -> MetricMinutesDoc:
    return MetricMinutesDoc(
        [
            MetricMinuteDoc(
                when(m.minute * 60),
                m.database,
                m.metric,
                m.looks,
                m.absent,
                m.low,
                m.mean,
                m.high,
                m.breached_share,
                m.threshold,
            )
            for m in minutes
        ],
        whole,
        step_minutes,
    )


FEEDBACK = (
    "What other clients would have done is not replayed: more admitted work raises the metrics, "
    "less lowers them."
)


NAMED = (
    "The replay assumes that checks use the database's current default metrics; which metrics a "
    "check named is not stored. Metrics are sampled once a second, and stored by the minute."
)


def replay_doc(
    changes: Sequence[ReplayedHour],
    rule: Rule,
    span: tuple[str, str],
    *,
    whole: bool,
    when: When,
    notes: Sequence[str] = (),
) -> ReplayDoc:
    changed = [change for change in changes if change.changes or change.shadowed_by]
    told = _most_changed(changed)
    return ReplayDoc(
        rule=rule.id,
        target=rule.target,
        kind=rule.kind.value,
        since=span[0],
        until=span[1],
        whole=whole,
        total=ReplayTotalDoc(
            checks=sum(c.checks for c in changes),
            admitted_before=sum(c.admitted_before for c in changes),
            admitted_low=sum(c.after.low for c in changes),
            admitted_high=sum(c.after.high for c in changes),
        ),
        rows=[_row(change, when) for change in told],
        more_rows=len(changed) - len(told),
        notes=[*_notes(changes, changed, rule), *notes],
    )


def _most_changed(changed: Sequence[ReplayedHour]) -> Sequence[ReplayedHour]:
    """Those that are shown, in their order."""
    if len(changed) <= MAX_REPLAY_ROWS:
        return changed

    def size(at: int) -> float:
        after, before = changed[at].after, changed[at].admitted_before
        return max(abs(after.high - before), abs(after.low - before))

    largest = sorted(range(len(changed)), key=size, reverse=True)[:MAX_REPLAY_ROWS]
    return [changed[at] for at in sorted(largest)]


def _row(change: ReplayedHour, when: When) -> ReplayRowDoc:
    after = change.after
    told = after.how in (How.EXACT, How.EXPECTED)
    return ReplayRowDoc(
        hour=when(change.hour_minute * 60),
        database=change.database,
        client=change.client,
        checks=change.checks,
        admitted_before=change.admitted_before,
        rejected_before=change.rejected_before,
        admitted_after=after.high if told else None,
        admitted_low=after.low,
        admitted_high=after.high,
        how=after.how.value,
        shadowed_by=change.shadowed_by,
    )


_BY_METRICS = (Kind.EXEMPT, Kind.METRICS, Kind.THRESHOLDS)


def _notes(
    changes: Sequence[ReplayedHour], changed: Sequence[ReplayedHour], rule: Rule
) -> list[str]:
    if not changes:
        return ["No client that the rule matches checked within that time."]
    if not changed:
        return ["The rule would have changed nothing."]
    notes = [FEEDBACK, *([NAMED] if rule.kind in _BY_METRICS else [])]
    if any(change.after.how is How.UNKNOWN for change in changed):
        notes.append("Unknown: history does not have what the result depends on.")
    if first := sorted({change.shadowed_by for change in changed if change.shadowed_by}):
        notes.append(f"More specific rules that decide instead: {', '.join(first)}.")
    return notes


# --- starvation ----------------------------------------------------------------------------------

# Starved clients and rogue clients, as documents and as sentences.

STARVED = "starved: "
ROGUE_SHARE = 0.05
"""Share of a database's activity from which on status mentions a rogue client."""


class StarvationDoc(msgspec.Struct, frozen=True):
    window_s: float
    """A client may be starved once metrics rejected it without a break for so long."""
    waterline: float
    """Share of its runtime from which on starvation is alarming."""
    starved: Sequence[Starved]
    """The longest first."""


class SuspectDoc(msgspec.Struct, frozen=True):
    """A rogue client: it works in the database and never checks."""

    database: str
    user: str
    """Database user."""
    application: str
    """Its application_name; empty: it has none."""
    host: str
    """Where it connects from."""
    sessions: int
    """Sessions that it has now."""
    active_mean: float
    """Sessions at work, on average over about eight minutes."""
    share: float
    """Share of the database's activity, over about eight minutes."""


class RogueFaultDoc(msgspec.Struct, frozen=True):
    database: str
    detail: str
    """Why its sessions cannot be listed."""


class RoguesDoc(msgspec.Struct, frozen=True):
    suspects: Sequence[SuspectDoc]
    faults: Sequence[RogueFaultDoc]
    """Databases whose sessions could not be listed."""


def suspect_doc(database: str, suspect: Suspect) -> SuspectDoc:
    who = suspect.who
    return SuspectDoc(
        database,
        who.user,
        who.application,
        who.host,
        suspect.sessions,
        suspect.active_mean,
        suspect.share,
    )


# --- sentences -----------------------------------------------------------------------------


def starvation_advice(found: Iterable[Starved]) -> list[str]:
    """Of those above the waterline."""
    return [
        f"{STARVED}{starved_says(one)}: {starved_why(one)}; {_remedy(one)}"
        for one in found
        if one.alarming
    ]


def starved_says(one: Starved) -> str:
    """`etl (2 clients) on main: rejected by lag for 15 min, 25% of its runtime`."""
    who = f"{one.client} ({len(one.members)} clients)" if one.is_level else one.client
    lasted = f"{duration(one.starved_s)}, {share_of(one.share)} of its runtime"
    return f"{who} on {one.database} is rejected by {one.metric} for {lasted}"


def starved_why(one: Starved) -> str:
    return f"{one.why} ({', '.join(one.blamed)})" if one.blamed else one.why


def _remedy(one: Starved) -> str:
    if one.cause is Culprit.UNEXPLAINED_LOAD or one.proposal == LOOK:
        return f"see `{one.proposal}`"
    return f"`{one.proposal}` would end it"


def rogue_advice(database: str, found: Sequence[Suspect], *, rejecting: bool) -> list[str]:
    """While the database rejects checks, a rogue client is worth a line."""
    loud = [suspect for suspect in found if suspect.share >= ROGUE_SHARE]
    if not loud or not rejecting:
        return []
    first = loud[0]
    name = first.who.application or first.who.user
    more = f" and {len(loud) - 1} more" if len(loud) > 1 else ""
    return [
        f"{database}: rogue client {name} (user {first.who.user}, from {first.who.host}){more} "
        f"never checks and has {first.share:.0%} of the activity; see `headgate clients --rogue`"
    ]


# --- the past ------------------------------------------------------------------------------------

# A past minute as a document, with notes on what is not known.

MAX_CLIENTS = 10
SAMPLED = (
    "rejections in full are kept in memory only, at most one a second per client and 512 in all; "
    "the counts are exact"
)
BY_MINUTE = (
    "what each check saw is not stored: metrics are sampled once a second and stored by the minute"
)
NAMED_IN_PAST = (
    "which metrics a check named is not stored: without names, the default metrics apply"
)


class PastDoc(msgspec.Struct, frozen=True):
    app: str
    """The client, or a level of its name."""
    database: str
    at: str
    """Start of the minute."""
    until: str
    sums: SumsDoc
    """Checks of that minute, of the client or of all clients with that level."""
    clients: Sequence[ChildDoc]
    """If there are several clients: the most rejected; at most 10."""
    checked_before: str | None
    """If there was no check in that minute: the last minute before it with a check, within an
    hour; and the next one after."""
    checked_after: str | None
    metrics: Sequence[MetricMinuteDoc]
    matched: Sequence[MatchDoc]
    """Rules that matched it then; those that applied come first."""
    rejections: Sequence[RejectionDoc]
    """Rejections of that minute that are still kept in full; at most 10."""
    known: Sequence[str]
    unknown: Sequence[str]
    """What is unknown, and why."""


class Past(msgspec.Struct, frozen=True):
    """What was found of it."""

    app: str
    database: str
    minute: int
    found: Timeline
    asked: Sequence[int]
    """Minutes around it with checks."""
    metrics: Sequence[MetricMinute]
    matched: Sequence[MatchDoc]
    rejections: Sequence[RejectionDoc]
    unknown: Sequence[str]


def past_doc(past: Past, when: When) -> PastDoc:
    total, minute = past.found.total, past.minute
    several = [c.client for c in past.found.children] != [past.app]
    before = max((m for m in past.asked if m < minute), default=None)
    after = min((m for m in past.asked if m > minute), default=None)
    return PastDoc(
        app=past.app,
        database=past.database,
        at=when(minute * 60),
        until=when((minute + 1) * 60),
        sums=sums_doc(total),
        clients=[
            ChildDoc(child.client, sums_doc(child.sums))
            for child in (past.found.children[:MAX_CLIENTS] if several else ())
        ],
        checked_before=None if total.checks or before is None else when(before * 60),
        checked_after=None if total.checks or after is None else when(after * 60),
        metrics=minutes_doc(past.metrics, when).minutes,
        matched=past.matched,
        rejections=past.rejections,
        known=_told(past, total),
        unknown=past.unknown,
    )


def _told(past: Past, total: Sums) -> list[str]:
    if not total.checks:
        return [f"{past.app} did not check {past.database} in that minute"]
    by = ", ".join(f"{count:,} by {name}" for name, count in total.by[:3])
    told = [f"{total.rejections:,} of {total.checks:,} checks were rejected: {by}"]
    if not total.rejections:
        told = [f"all {total.checks:,} checks were admitted"]
    for m in past.metrics:
        if m.breached and m.breached_share is not None:
            told.append(
                f"{m.metric} was above its threshold of {m.threshold:g} for "
                f"{m.breached_share:.0%} of the minute: {m.low:.3g} to {m.high:.3g}"
            )
        elif m.absent == m.looks:
            told.append(f"{m.metric} had no value in that minute")
    return told
