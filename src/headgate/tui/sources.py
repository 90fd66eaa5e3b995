"""What the live screen asks for besides the status, and how each answer is read.

Source: name ──► its last value and fault; only those that the open view names are requested.
An agent that does not know a route, or may not answer it, says so in the view's own place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from msgspec import Struct

from headgate.check.api import AuditsDoc, RejectionsDoc
from headgate.cli.api import Api, with_query
from headgate.errors import BadDocument, HeadgateError
from headgate.history.api import StarvationDoc
from headgate.rules.api import RulesDoc
from headgate.tui.trend import PastMinute, Picture

if TYPE_CHECKING:  # Read by one view each: what is not open is not loaded.
    from headgate.budgets.api import PolicyDoc, StateDoc, ViolationsDoc
    from headgate.fleet.view_api import FleetDoc
    from headgate.history.api import TimelineDoc
    from headgate.proxy.api import ProxySessionListDoc

T = TypeVar("T")
LIST_LIMIT = "200"
HISTORY_SINCE = "15m"
STRIP_SINCE, STRIP_STEP_MINUTES = "1h", 2
STRIP_EVERY_S = 30.0
MAX_STRIPS = 400
"""Remembered at a time; who is shown is asked for again."""


class LastAnswer(Struct, frozen=True):
    """The last good answer, and why there is no newer one."""

    value: Any = None
    at_s: float = float("-inf")
    fault: str = ""
    tried_at_s: float = float("-inf")


class BudgetedDatabase(Struct, frozen=True):
    """One database with budgets."""

    policy: PolicyDoc
    rates: Mapping[str, float] | None
    """Of its budgets: blocked a second; None: seen once only."""
    at_s: float
    state: StateDoc | None
    """What its statements cost, and how far off that is foreseen."""
    violations: ViolationsDoc | None
    faults: Sequence[str]


class ThrottledStrip(Struct, frozen=True):
    """When a client was held within the last hour: a share of its checks for each step, None
    where there was none."""

    shares: Sequence[float | None]
    told: str
    """What held it most, if anything."""


class Scene(Struct, frozen=True):
    """All that is known, at one instant. Replaced, never edited."""

    picture: Picture
    told: Mapping[str, LastAnswer] = {}
    strips: Mapping[str, LastAnswer] = {}

    def of(self, name: str) -> LastAnswer:
        return self.told.get(name, NOTHING)


NOTHING = LastAnswer()


class Source(NamedTuple):
    every_s: float
    ask: Callable[[Api, LastAnswer, float], Any]
    """From the agent, the answer before it, and now."""


def next_told(before: LastAnswer, ask: Callable[[], Any], now_s: float) -> LastAnswer:
    try:
        return LastAnswer(ask(), now_s, "", now_s)
    except HeadgateError as error:
        return LastAnswer(before.value, before.at_s, str(error), now_s)


# --- each of them ------------------------------------------------------------------------------


def _whole(kind: type[Any], path: str, api: Api, _before: LastAnswer, _now_s: float) -> Any:
    return api.read(kind, path)


def _fleet(
    query: Mapping[str, str | None], api: Api, _before: LastAnswer, _now_s: float
) -> tuple[FleetDoc, bool]:
    """The fleet, and whether some of its shards were asked for."""
    from headgate.fleet.view_api import FleetDoc

    is_part = any(query.get(key) for key in ("unhealthy", "behind"))
    return api.read(FleetDoc, "/v1/fleet", **query), is_part


def _sessions(api: Api, _before: LastAnswer, _now_s: float) -> ProxySessionListDoc:
    from headgate.proxy.api import ProxySessionListDoc

    return api.read(ProxySessionListDoc, PROXY_DOCUMENTS["sessions"])


def _budgets(
    database: str | None, api: Api, before: LastAnswer, now_s: float
) -> Sequence[BudgetedDatabase]:
    from headgate.budgets.api import PoliciesDoc, PolicyDoc

    if database is None:
        policies = api.read(PoliciesDoc, "/v1/budgets").databases
    else:
        policies = [api.read(PolicyDoc, budget_path(database))]
    was = {one.policy.database: one for one in before.value or ()}
    return [_controlled(api, policy, was.get(policy.database), now_s) for policy in policies]


def _controlled(
    api: Api, policy: PolicyDoc, before: BudgetedDatabase | None, now_s: float
) -> BudgetedDatabase:
    """Counters are the policy's own; what statements cost is the server's word."""
    from headgate.budgets.api import StateDoc, ViolationsDoc

    faults: list[str] = []

    def asked(kind: type[T], below: str, **query: str) -> T | None:
        try:
            return api.read(kind, budget_path(policy.database, below), **query)
        except HeadgateError as error:
            faults.append(f"{below}: {error}")
            return None

    rates = None if before is None else _blocked_per_s(before, policy, now_s)
    state, violations = asked(StateDoc, "state"), asked(ViolationsDoc, "violations", since="1h")
    return BudgetedDatabase(policy, rates, now_s, state, violations, faults)


def _blocked_per_s(
    before: BudgetedDatabase, policy: PolicyDoc, now_s: float
) -> dict[str, float] | None:
    """A counter that fell has started again."""
    passed_s = now_s - before.at_s
    if passed_s <= 0:
        return None
    was = {b.name: b.counts.blocked_total for b in before.policy.budgets if b.counts}
    now = {b.name: b.counts.blocked_total for b in policy.budgets if b.counts}
    return {name: max(0, count - was.get(name, count)) / passed_s for name, count in now.items()}


def budget_path(database: str, *below: str) -> str:
    return "/".join(("/v1/budgets", *(quote(part, safe="") for part in (database, *below))))


class Chosen(Struct, frozen=True):
    """What a command asks for besides a view."""

    database: str | None = None
    """Its budgets alone."""
    fleet: Mapping[str, str | None] = {}
    """Which shards of the fleet."""
    every_s: float | None = None
    """How often for those; None: as usual."""


def sources(chosen: Chosen) -> Mapping[str, Source]:
    budgets_s, fleet_s = chosen.every_s or 2.0, chosen.every_s or 5.0
    return {
        "rules": Source(2.0, partial(_whole, RulesDoc, DOCUMENTS["rules"])),
        "starvation": Source(5.0, partial(_whole, StarvationDoc, DOCUMENTS["starvation"])),
        "rejections": Source(2.0, partial(_whole, RejectionsDoc, DOCUMENTS["rejections"])),
        "audit": Source(5.0, partial(_whole, AuditsDoc, DOCUMENTS["audit"])),
        "budgets": Source(budgets_s, partial(_budgets, chosen.database)),
        "fleet": Source(fleet_s, partial(_fleet, chosen.fleet)),
        "sessions": Source(2.0, _sessions),
    }


# --- history -----------------------------------------------------------------------------------


def history_of_metrics(api: Api, now: datetime) -> list[PastMinute]:
    """The last minutes, so that no curve begins empty."""
    from headgate.history.api import MetricMinutesDoc

    minutes = api.read(MetricMinutesDoc, DOCUMENTS["metric_minutes"]).minutes
    ages = [(now - _instant(one.at)).total_seconds() - 60.0 for one in minutes]
    # An agent whose clock runs ahead of ours has no minutes in the future.
    ahead_s = max(0.0, -min(ages, default=0.0))
    return [
        PastMinute((one.database, one.metric), age_s + ahead_s, one.high)
        for one, age_s in zip(minutes, ages, strict=True)
    ]


def _instant(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise BadDocument("at", f"says {text!r}, which is no time") from None


def strip_of(api: Api, client: str) -> ThrottledStrip:
    from headgate.history.api import TimelineDoc

    step = f"{STRIP_STEP_MINUTES}m"
    timeline = api.read(
        TimelineDoc, "/v1/history/timeline", app=client, since=STRIP_SINCE, step=step
    )
    return strip(timeline)


def strip(timeline: TimelineDoc) -> ThrottledStrip:
    begin, end = _instant(timeline.since), _instant(timeline.until)
    minutes = max(1, round((end - begin).total_seconds() / 60))
    shares: list[float | None] = [None] * min(-(-minutes // timeline.step_minutes), 200)
    for one in timeline.bins:
        at = int((_instant(one.at) - begin).total_seconds() // 60 // timeline.step_minutes)
        if 0 <= at < len(shares):
            shares[at] = one.sums.rejected_share if one.sums.checks else None
    by = timeline.total.by[0].by if timeline.total.by else ""
    return ThrottledStrip(shares, by)


# --- for programs ------------------------------------------------------------------------------

DOCUMENTS: Mapping[str, str] = {
    "status": "/v1/status",
    "rules": "/v1/rules",
    "starvation": "/v1/starvation",
    "budgets": "/v1/budgets",
    "rejections": with_query("/v1/rejections", {"limit": LIST_LIMIT}),
    "audit": with_query("/v1/audit", {"limit": LIST_LIMIT}),
    "metric_minutes": with_query("/v1/history/metrics", {"since": HISTORY_SINCE}),
    "timeline": with_query("/v1/history/timeline", {"since": "1h", "step": "5m"}),
}
"""Name in the document that `--json` prints, and the path of its answer, kept as it came."""


PROXY_DOCUMENTS: Mapping[str, str] = {
    "status": "/v1/proxy/status",
    "sessions": with_query("/v1/proxy/sessions", {"limit": LIST_LIMIT}),
}


def whole_document(api: Api, at: str, paths: Mapping[str, str] = DOCUMENTS) -> dict[str, Any]:
    """What cannot be had is null, with the reason among the faults."""
    answers: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, path in paths.items():
        try:
            answers[name] = api.get(path).document
        except HeadgateError as error:
            answers[name], faults[name] = None, str(error)
    return {"at": at, "agent_url": api.url, **answers, "faults": faults}
