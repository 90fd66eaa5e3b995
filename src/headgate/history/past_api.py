"""A past minute as a document, with notes on what is not known."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.check.api import RejectionDoc
from headgate.history.api import ChildDoc, MetricMinuteDoc, SumsDoc, When, minutes_doc, sums_doc
from headgate.history.records import MetricMinute
from headgate.history.timeline import Sums, Timeline
from headgate.rules.api import MatchDoc

MAX_CLIENTS = 10
SAMPLED = (
    "rejections in full are kept in memory only, at most one a second per client and 512 in all; "
    "the counts are exact"
)
BY_MINUTE = (
    "what each check saw is not stored: metrics are sampled once a second and stored by the minute"
)
NAMED = "which metrics a check named is not stored: without names, the default metrics apply"


class PastDoc(msgspec.Struct, frozen=True):
    app: str
    database: str
    at: str
    """Start of the minute."""
    until: str
    sums: SumsDoc
    """Checks of that minute, of the client or of all clients with that level."""
    clients: Sequence[ChildDoc]
    """If there are several clients: the most rejected; at most 10."""
    asked_before: str | None
    """If there was no check in that minute: the last minute before it with a check, within an
    hour; and the next one after."""
    asked_after: str | None
    metrics: Sequence[MetricMinuteDoc]
    matched: Sequence[MatchDoc]
    """Rules that matched it then; those that applied come first."""
    rejections: Sequence[RejectionDoc]
    """Rejections of that minute that are still kept in full; at most 10."""
    told: Sequence[str]
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
        asked_before=None if total.checks or before is None else when(before * 60),
        asked_after=None if total.checks or after is None else when(after * 60),
        metrics=minutes_doc(past.metrics, when).minutes,
        matched=past.matched,
        rejections=past.rejections,
        told=_told(past, total),
        unknown=past.unknown,
    )


def _told(past: Past, total: Sums) -> list[str]:
    if not total.checks:
        return [f"{past.app} did not check {past.database} in that minute"]
    told = [_outcome(total)]
    for m in past.metrics:
        if m.breached and m.breached_share is not None:
            told.append(
                f"{m.metric} was above its threshold of {m.threshold:g} for "
                f"{m.breached_share:.0%} of the minute: {m.low:.3g} to {m.high:.3g}"
            )
        elif m.absent == m.looks:
            told.append(f"{m.metric} had no value in that minute")
    return told


def _outcome(total: Sums) -> str:
    if not total.rejections:
        return f"all {total.checks:,} checks were admitted"
    by = ", ".join(f"{count:,} by {name}" for name, count in total.by[:3])
    return f"{total.rejections:,} of {total.checks:,} checks were rejected: {by}"
