"""The fleet as a document.   FleetPicture, Holders ──fleet_doc──► FleetDoc, for page, CLI, programs

One page of shards and one of rules at a time: a fleet of ten thousand shards is never sent whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec

from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import NAME
from headgate.changes.state import ends_at
from headgate.check.questions import about
from headgate.check.reasons import duration, quantity, says
from headgate.errors import InvalidSettings
from headgate.fleet.members import PASSING, MetricTold
from headgate.fleet.view import (
    FleetAgent,
    FleetCounts,
    FleetPicture,
    Holders,
    ShardFilter,
    ShardSeen,
    ShardState,
    StoreLink,
    select,
)
from headgate.rules.settings import parse_kept

T = TypeVar("T")
MAX_PER_PAGE = 500
PER_PAGE = 100
MAX_PAGE = 1_000_000
MAX_BEHIND = 50
ITEMS_PER_PAGE = 50


class FleetMetricDoc(msgspec.Struct, frozen=True):
    metric: str
    """With `shard/` before it where it is rolled up."""
    state: str
    passes: bool
    """Whether it admits checks."""
    value: float | None
    threshold: float | None
    unit: str
    for_s: float | None
    """How long it has been in this state."""
    detail: str


class FleetShardDoc(msgspec.Struct, frozen=True):
    shard: str
    region: str
    cluster: str
    """From its agents' settings."""
    condition: str
    """`unhealthy`, `silent` (no agent reports it), `starting`, `healthy` or `idle`."""
    for_s: float | None
    why: str
    """What is wrong, in a line; empty: nothing."""
    url: str
    """Address of the agent that reports, its primary's."""
    agent: str
    reported_s_ago: float | None
    """Values are of then: values that only move are reported every few minutes."""
    rules: int | None
    """In force there, the fleet's and its own."""
    checks: int | None
    """Checks answered there in the minute before the report."""
    rejected: float | None
    """The share of them that was rejected; null: there were none."""
    metrics: Sequence[FleetMetricDoc]
    agents: Sequence[FleetAgent]
    """Its agents, the primary's first."""

    @property
    def lag_s(self) -> float | None:
        """The longest of its members."""
        return max((one.lag_s for one in self.agents if one.lag_s is not None), default=None)


class FleetItemDoc(msgspec.Struct, frozen=True):
    kind: str
    """`rule` or `budget`."""
    id: str
    reach: str
    says: str
    reason: str
    n: int
    """The fleet's revision that set it."""
    set_by: str
    set_s_ago: float
    left_s: float | None
    """Until it ends; null: it does not."""
    agents: int
    """Agents that it reaches, as far as they are known."""
    have: int
    without: int
    """Agents with an older revision. The remaining ones have not reported a revision."""
    rejected: int = 0
    """Agents that have that revision but could not apply it."""


class FleetDoc(msgspec.Struct, frozen=True):
    agent: str
    """The agent that shows it."""
    n: int | None
    """The fleet's revision; null: nothing was ever set, or it is not known."""
    revision: int
    """Of the store."""
    source: str
    stale_for_s: float | None
    """Time without contact to the store: all of this is as of then."""
    fault: str
    store_behind: bool
    """The store has lost changes; they stay in force at the agents that have them."""
    counts: FleetCounts
    """How many shards and agents are in each state."""
    matching: int
    """Matching shards, on all pages."""
    page: int
    """Which page of the shards this is."""
    pages: int
    """How many pages of shards there are."""
    shards: Sequence[FleetShardDoc]
    """The unhealthy first."""
    items_total: int
    items_page: int
    items_pages: int
    items: Sequence[FleetItemDoc]
    """Rules and budgets in force, the newest first."""
    behind: Sequence[FleetAgent]
    """Agents that are behind, the furthest first; the first 50."""
    advice: Sequence[str]


_Pattern = Annotated[
    str,
    msgspec.Meta(
        pattern=f"^({NAME})?$",
        description="Only matching ones; * matches any characters.",
        examples=["eu-*", "commerce/*"],
    ),
]
_Page = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]


class FleetQuery(msgspec.Struct, frozen=True):
    """Which part of it."""

    unhealthy: Annotated[bool, about("`true`: only shards that are unhealthy or silent.")] = False
    behind: Annotated[bool, about("`true`: only shards with agents that are behind.")] = False
    region: _Pattern = ""
    cluster: _Pattern = ""
    shard: _Pattern = ""
    page: Annotated[_Page, about("Page of the shards.")] = 1
    rules_page: Annotated[_Page, about("Page of the fleet's rules and budgets.")] = 1
    per_page: Annotated[
        int, msgspec.Meta(ge=1, le=MAX_PER_PAGE, description="Shards per page.")
    ] = PER_PAGE

    @property
    def look(self) -> ShardFilter:
        return ShardFilter(self.unhealthy, self.behind, self.region, self.cluster, self.shard)


def fleet_doc(
    picture: FleetPicture,
    holders: Holders,
    link: StoreLink,
    asked: FleetQuery,
    *,
    agent: str,
    wall_s: float,
) -> FleetDoc:
    """ValueError where a pattern that was asked for cannot be one."""
    selected = select(picture, asked.look)
    shards, page, pages = _cut(selected, asked.page, asked.per_page)
    standing = [seen.item for seen in picture.items if not seen.ended]
    items, items_page, items_pages = _cut(standing, asked.rules_page, ITEMS_PER_PAGE)
    return FleetDoc(
        agent=agent,
        n=picture.n,
        revision=link.revision,
        source=link.source,
        stale_for_s=_since(link.stale_since_wall_s, wall_s),
        fault=link.fault,
        store_behind=link.went_back,
        counts=picture.counts,
        matching=len(selected),
        page=page,
        pages=pages,
        shards=[_shard(seen, wall_s) for seen in shards],
        items_total=len(standing),
        items_page=items_page,
        items_pages=items_pages,
        items=[_item(item, holders, wall_s) for item in items],
        behind=picture.behind[:MAX_BEHIND],
        advice=_advice(picture, link, wall_s),
    )


def _cut(rows: Sequence[T], page: int, per_page: int) -> tuple[Sequence[T], int, int]:
    """A page beyond the last is the last: what was there may have become less."""
    pages = max(1, -(-len(rows) // per_page))
    page = min(page, pages)
    return rows[(page - 1) * per_page : page * per_page], page, pages


def _since(at_wall_s: float | None, wall_s: float) -> float | None:
    return None if at_wall_s is None else max(0.0, wall_s - at_wall_s)


# --- shards -----------------------------------------------------------------------------------


def _shard(seen: ShardSeen, wall_s: float) -> FleetShardDoc:
    told = seen.told
    metrics = [_metric(one, wall_s) for one in told.metrics] if told else []
    return FleetShardDoc(
        shard=seen.place.shard,
        region=seen.place.region,
        cluster=seen.place.cluster,
        condition=seen.condition.value,
        for_s=_since(seen.since, wall_s),
        why=_why(seen, metrics),
        url=told.url if told else "",
        agent=told.agent if told else "",
        reported_s_ago=_since(told.at, wall_s) if told else None,
        rules=told.rules if told else None,
        checks=told.checks if told else None,
        rejected=told.rejected if told else None,
        metrics=metrics,
        agents=seen.agents,
    )


def _why(seen: ShardSeen, metrics: Sequence[FleetMetricDoc]) -> str:
    if seen.clash:
        return seen.clash
    if seen.condition is ShardState.SILENT:
        registered = sum(agent.registered for agent in seen.agents)
        if not registered:
            return "none of its agents is registered any more"
        agents = "1 agent is" if registered == 1 else f"{registered} agents are"
        before = "any more" if seen.told is not None else "yet"
        return f"{agents} registered, but none reports the shard {before}: does it have a primary?"
    if seen.condition is ShardState.STARTING:
        return "its agents have just registered"
    if seen.told is not None and seen.told.problem:
        return seen.told.problem
    return "; ".join(_obstacle(one) for one in metrics if not one.passes)


def _obstacle(metric: FleetMetricDoc) -> str:
    if metric.state != "breached" or metric.value is None or metric.threshold is None:
        detail = f" ({metric.detail})" if metric.detail else ""
        return f"{metric.metric} is {metric.state}{detail}"
    limit = quantity(metric.threshold, metric.unit)
    return f"{metric.metric} is {quantity(metric.value, metric.unit)}, limit {limit}"


def _metric(told: MetricTold, wall_s: float) -> FleetMetricDoc:
    return FleetMetricDoc(
        metric=told.metric if told.scope == "host" else f"{told.scope}/{told.metric}",
        state=told.state,
        passes=told.state in PASSING,
        value=told.value,
        threshold=told.threshold,
        unit=told.unit,
        for_s=_since(told.since or None, wall_s),
        detail=told.detail,
    )


# --- rules and budgets ------------------------------------------------------------------------


def _item(item: Change, holders: Holders, wall_s: float) -> FleetItemDoc:
    held, value = holders.held(item), item.value or {}
    return FleetItemDoc(
        kind=str(item.kind),
        id=item.id,
        reach=str(item.reach),
        says=_says(item),
        reason=str(value.get("reason") or ""),
        n=item.n,
        set_by=item.set_by,
        set_s_ago=max(0.0, wall_s - item.set_at),
        left_s=_left_s(item, wall_s),
        agents=held.agents,
        have=held.have,
        without=held.without,
        rejected=held.rejected,
    )


def _left_s(item: Change, wall_s: float) -> float | None:
    try:
        end = ends_at(item)
    except ValueError:  # By a newer version: its content is shown as not readable.
        return None
    return None if end is None else max(0.0, end - wall_s)


def _says(item: Change) -> str:
    if item.kind is ChangeKind.BUDGET:
        value = item.value or {}
        told = ", ".join(f"{key} {value[key]}" for key in _TOLD_OF_A_BUDGET if key in value)
        return f"budget {value.get('name') or item.id.partition('@')[0]}: {told}".rstrip(": ")
    try:
        return says(parse_kept(item.id, item.value, item.n).rule)
    except InvalidSettings:
        return "cannot be read by this version"


_TOLD_OF_A_BUDGET = ("mode", "rate", "capacity", "burst", "concurrency")


# --- what an operator should do ---------------------------------------------------------------


def _advice(picture: FleetPicture, link: StoreLink, wall_s: float) -> list[str]:
    counts, advice = picture.counts, []
    if link.went_back:
        advice.append(
            "the fleet's store has lost changes; agents that had them keep them in force: "
            "`headgate changes restore --fleet` restores them"
        )
    if link.stale_since_wall_s is not None:
        ago = duration(max(0.0, wall_s - link.stale_since_wall_s))
        why = f" ({link.fault})" if link.fault else ""
        advice.append(f"no contact with the store for {ago}{why}: this is as of then")
    if counts.behind:
        advice.append(
            f"{_many(counts.behind, 'agent')} behind: checks there still use the old rules; "
            "look at `headgate status` there, and whether it reaches the store"
        )
    if counts.rejecting:
        advice.append(
            f"{_many(counts.rejecting, 'agent')} not able to apply all that was set: "
            "`headgate status` there says what, and why; it may be an older version"
        )
    if counts.shardless:
        advice.append(
            f"{_many(counts.shardless, 'database')} in no shard, so their health is not reported: "
            "give them `shard = …` in their agents' settings"
        )
    if picture.unreadable:
        advice.append(
            f"{picture.unreadable} entries of the store cannot be read here: of a newer version?"
        )
    return advice


def _many(count: int, noun: str) -> str:
    return f"1 {noun} is" if count == 1 else f"{count:,} {noun}s are"
