"""Explain a minute of the past.   Watching ──► explain_at ──► Store, audit, Recorder"""

from __future__ import annotations

import re
from asyncio import to_thread
from collections.abc import Iterable, Sequence
from datetime import datetime

from headgate.base.names import Identity
from headgate.check.answers import answer_doc
from headgate.check.api import RejectionDoc
from headgate.check.views import Parts
from headgate.errors import InvalidRequest
from headgate.history.looking import iso
from headgate.history.past import RulesThen, rules_at
from headgate.history.past_api import BY_MINUTE, NAMED, SAMPLED, Past
from headgate.history.records import AuditEntry, MetricMinute
from headgate.history.timeline import timeline
from headgate.http.documents import seconds
from headgate.rules.api import explain_rules, match_doc
from headgate.rules.settings import RuleSpec

AROUND_MINUTES = 60
LAST_INSTANT_S = 59.999
MAX_AUDIT = 10_000
MAX_ROWS = 10_000
MAX_REJECTIONS = 10
_AGO = re.compile(r"[0-9]{1,6}[smhd]")


def minute_at(text: str, now_s: float) -> int:
    """`90m` ago, or an instant with its zone, as a minute; one that is over."""
    ago = _AGO.fullmatch(text)
    wall_s = now_s - seconds(text) if ago else _instant(text)
    minute = int(wall_s // 60)
    if not 0 <= minute <= int(now_s // 60):
        message = f"at is {text!r}, which is not in the past; omit it to explain the present"
        raise InvalidRequest(message, status=422, field="at")
    return minute


def _instant(text: str) -> float:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        message = f"at is {text!r}, must read like 2026-03-01T07:10Z, with its zone, or like 90m"
        raise InvalidRequest(message, status=422, field="at")
    return at.timestamp()


async def find_past(
    parts: Parts, identity: Identity, database: str, minute: int, present: Iterable[RuleSpec]
) -> Past:
    await parts.keeper.flush()
    store = parts.store
    around = await store.minutes_asked(
        identity.tokens,
        since_minute=minute - AROUND_MINUTES,
        until_minute=minute + AROUND_MINUTES,
        database=database,
    )
    total = await store.sums(
        identity.tokens,
        since_minute=minute,
        until_minute=minute,
        database=database,
        by_client=False,
    )
    mine = await store.client_sums(
        identity.tokens,
        since_minute=minute,
        until_minute=minute,
        database=database,
        limit=MAX_ROWS,
    )
    metrics = await store.metric_minutes(
        since_minute=minute, until_minute=minute, database=database
    )
    audit = await store.audit(limit=MAX_AUDIT)
    # As the minute ended: what was set or ended within it is shown as well.
    wall_s = min(parts.clock.now().wall_s, minute * 60.0 + LAST_INSTANT_S)
    then = await to_thread(rules_at, audit, list(present), wall_s)
    matches = explain_rules(then.book, identity, database, wall_s)
    return Past(
        app=identity.text,
        database=database,
        minute=minute,
        found=timeline(
            total,
            (),
            mine,
            since_minute=minute,
            until_minute=minute,
            step_minutes=1,
            whole=len(mine) < MAX_ROWS,
        ),
        asked=[one.minute for one in around],
        metrics=metrics,
        matched=[match_doc(match, wall_s) for match in matches],
        rejections=_rejections(parts, identity, database, minute),
        unknown=_unknown(parts, minute, metrics, audit, then),
    )


def _rejections(parts: Parts, identity: Identity, database: str, minute: int) -> list[RejectionDoc]:
    wanted = frozenset(identity.tokens)
    found = (
        decision
        for decision in parts.recorder.recent()
        if int(decision.at.wall_s // 60) == minute
        and decision.check.database == database
        and wanted <= frozenset(decision.check.identity.tokens)
    )
    return [
        RejectionDoc(iso(d.at.wall_s), answer_doc(d))
        for d, _ in zip(found, range(MAX_REJECTIONS), strict=False)
    ]


def _unknown(
    parts: Parts,
    minute: int,
    metrics: Sequence[MetricMinute],
    audit: Sequence[AuditEntry],
    then: RulesThen,
) -> list[str]:
    told = [BY_MINUTE, NAMED, SAMPLED]
    now_s = parts.clock.now().wall_s
    if minute == int(now_s // 60):
        told.append("metrics of a minute are stored once it is over; try again in a minute")
    elif not metrics:
        told.append("no metric of that minute is stored: the agent did not run, or it expired")
    kept_from = parts.keeper.kept_from(now_s)
    if minute < kept_from:
        told.append(f"history and audit before {iso(kept_from * 60)} have expired")
    if len(audit) >= MAX_AUDIT and audit[-1].wall_s > minute * 60:
        told.append(f"changes of rules before {iso(audit[-1].wall_s)} were not read")
    if then.unreadable:
        told.append(f"rules that this version cannot read: {', '.join(then.unreadable)}")
    return told
