"""What a fleet shares, as documents: items, changes, revisions, whom a reach meets.

core/fleet (Item, ItemChange, Revision) ──► here ──► http/fleet, http/ruling ──► cli/fleet_pages
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from headgate.core.fleet import Item, ItemChange, ItemKind, Revision
from headgate.core.fleet_change import FleetChange, ItemDifference, What, difference
from headgate.core.rule_settings import RuleSpec, parse_kept
from headgate.traffic.parse import parse_budget
from headgate.wire.budgets import says as budget_says
from headgate.wire.fleet_reach import ReachedDoc, reached_doc
from headgate.wire.reasons import says as rule_says
from headgate.wire.rules import FAR_WALL_S

MAX_CHANGES_TOLD = 1000
MAX_N = 2**53
"""Beyond that, numbers in JSON are not whole any more."""
_N = Annotated[int, msgspec.Meta(ge=0, le=MAX_N)]


# --- documents -------------------------------------------------------------------------------


class HeldItemDoc(msgspec.Struct, frozen=True):
    kind: str
    """`rule` or `budget`."""
    id: str
    reach: str
    """`fleet`, `region:eu-*`, `cluster:x`, `shard:commerce/*` or `host:db-1`."""
    state: str
    """`in_force`, `ended` (a rule that is over, or was lifted), `removed`, or `unreadable`."""
    says: str
    """What it does, as a sentence; of one that is unreadable, why."""
    value: Mapping[str, Any] | None
    """As it was set; null: taken out."""
    expires_at: str | None
    left_s: float | None
    n: int
    """The fleet's revision that put it so."""
    set_at: str
    set_by: str


class FleetItemsDoc(msgspec.Struct, frozen=True):
    n: int
    """The fleet's revision."""
    items: Sequence[HeldItemDoc]
    refused: Sequence[str]
    """What could not be read, by its key, with the reason."""


class FleetSettingDoc(msgspec.Struct, frozen=True):
    name: str
    """`reach`, or a setting of the rule or budget."""
    before: Any
    """Null: unset."""
    after: Any


class FleetDifferenceDoc(msgspec.Struct, frozen=True):
    """One item that was, or would be, put another way."""

    kind: str
    """`rule added`, `rule changed`, `rule taken out`, and of budgets the same."""
    id: str
    reach: str
    settings: Sequence[FleetSettingDoc]
    """Those that differ; all of them of one that is added or taken out."""
    line: str
    """For people: `rule f-1a2b3c (fleet): ratio 0.5 → 0.9`."""


class FleetChangeDoc(msgspec.Struct, frozen=True):
    before_n: int
    after_n: int
    """The fleet's revision now: the same as before where nothing was changed."""
    dry_run: bool
    changed: bool
    """Or would be."""
    revisions: int
    """In how many revisions it was made, or would be."""
    difference: Sequence[FleetDifferenceDoc]
    """At most 1,000."""
    difference_total: int
    reached: ReachedDoc
    """All places that are concerned, before or after."""
    advice: Sequence[str]


class FleetExportDoc(msgspec.Struct, frozen=True):
    n: int
    """The fleet's revision that it is of."""
    document: Mapping[str, Any]
    """As `POST /v1/fleet/apply` takes it: `rules` and `budgets`, each with its `reach`."""


class FleetRevisionDoc(msgspec.Struct, frozen=True):
    n: int
    at: str | None
    """Null: not even that can be read."""
    who: str
    action: str
    summary: str
    is_current: bool
    unread: str | None = None
    """Why this agent's version cannot read what it changed; null: it can."""


class FleetRevisionsDoc(msgspec.Struct, frozen=True):
    n: int
    """The fleet's revision."""
    revisions: Sequence[FleetRevisionDoc]
    """Newest first."""


class FleetRevisionWholeDoc(msgspec.Struct, frozen=True):
    about: FleetRevisionDoc
    difference: Sequence[FleetDifferenceDoc]
    """What it did, at most 1,000."""
    difference_total: int


class FleetRollbackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    n: _N
    """The revision after which everything stood as it is to stand again."""


class FleetFollowingDoc(msgspec.Struct, frozen=True):
    """How far this agent knows what the fleet has set."""

    says: str
    """In a line."""
    source: str | None
    """Whom it hears it from; null: from nobody just now."""
    direct: bool
    """That is the store itself, not another agent."""
    n: int
    """The fleet's revision that this agent has come to at least."""
    revision: int
    """Of the store."""
    heard_s_ago: float | None
    """Null: never since it started."""
    stale_for_s: float | None
    """How old what it knows may be; null: it is current."""
    from_cache_of: str | None
    """What is in force is from its disk, and of that time; null: it is not."""
    fault: str | None
    """Why nobody is followed, or not who should be."""
    kept: int
    """Items that stay in force although the store has lost them."""


# --- items -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Read:
    says: str
    state: str
    expires_at: float | None = None


def item_doc(item: Item, wall_s: float) -> HeldItemDoc:
    found = _read(item, wall_s)
    ends = found.expires_at
    running = ends is not None and found.state == "in_force"
    return HeldItemDoc(
        kind=str(item.kind),
        id=item.id,
        reach=str(item.reach),
        state=found.state,
        says=found.says,
        value=None if item.value is None else dict(item.value),
        expires_at=None if ends is None else iso(ends),
        left_s=max(0.0, ends - wall_s) if running and ends is not None else None,
        n=item.n,
        set_at=iso(item.set_at),
        set_by=item.set_by,
    )


def _read(item: Item, wall_s: float) -> _Read:
    if item.value is None:
        return _Read("taken out", "removed")
    try:
        if item.kind is ItemKind.RULE:
            return _rule(parse_kept(item.id, item.value, item.n), wall_s)
        return _budget(item.value, wall_s)
    except ValueError as error:  # InvalidSettings among them.
        return _Read(f"cannot be read by this agent: {error}", "unreadable")


def _rule(spec: RuleSpec, wall_s: float) -> _Read:
    over = bool(spec.lifted_by) or wall_s >= spec.rule.expires_at
    lifted = f"; lifted by {spec.lifted_by}" if spec.lifted_by else ""
    says = f"{rule_says(spec.rule)}{lifted}"
    return _Read(says, "ended" if over else "in_force", spec.rule.expires_at)


def _budget(value: Mapping[str, Any], wall_s: float) -> _Read:
    budget = parse_budget(value)
    ends = None if budget.expires_at_ms is None else budget.expires_at_ms / 1000
    over = ends is not None and wall_s >= ends
    says = f"{budget.mode.value}: {budget_says(budget)}"
    return _Read(says, "ended" if over else "in_force", ends)


# --- changes ---------------------------------------------------------------------------------


def fleet_change_doc(change: FleetChange) -> FleetChangeDoc:
    return FleetChangeDoc(
        before_n=change.before_n,
        after_n=change.after_n,
        dry_run=change.dry_run,
        changed=bool(change.changes),
        revisions=change.revisions,
        difference=difference_docs(change.changes),
        difference_total=len(change.changes),
        reached=reached_doc(change.reached),
        advice=[str(advice) for advice in change.advice],
    )


def difference_docs(changes: Sequence[ItemChange]) -> list[FleetDifferenceDoc]:
    return [_difference_doc(change) for change in changes[:MAX_CHANGES_TOLD]]


def _difference_doc(change: ItemChange) -> FleetDifferenceDoc:
    found = difference(change)
    return FleetDifferenceDoc(
        kind=f"{found.kind} {found.what.value}",
        id=found.id,
        reach=str(found.reach),
        settings=[FleetSettingDoc(one.name, one.before, one.after) for one in found.settings],
        line=_line(change, found),
    )


def _line(change: ItemChange, found: ItemDifference) -> str:
    """One that comes or goes is told with what it does: names alone tell nobody."""
    item = change.before if found.what is What.TAKEN_OUT else change.after
    if found.what is What.CHANGED or item is None or item.value is None:
        return found.line
    try:
        return f"{found.line}, {_summary(item, item.value)}"
    except ValueError:  # InvalidSettings among them: of another version, or broken.
        return found.line


def _summary(item: Item, value: Mapping[str, Any]) -> str:
    if item.kind is ItemKind.RULE:
        spec = parse_kept(item.id, value, item.n)
        return f"{rule_says(spec.rule)}, until {iso(spec.rule.expires_at)}"
    budget = parse_budget(value)
    return f"{budget.mode.value}: {budget_says(budget)}"


# --- revisions -------------------------------------------------------------------------------


def fleet_revision_doc(revision: Revision, current_n: int) -> FleetRevisionDoc:
    return FleetRevisionDoc(
        n=revision.n,
        at=iso(revision.wall_s) if revision.wall_s else None,
        who=revision.who,
        action=revision.action,
        summary=revision.summary,
        is_current=revision.n == current_n,
        unread=revision.unread or None,
    )


def iso(wall_s: float) -> str:
    at = datetime.fromtimestamp(max(0.0, min(wall_s, FAR_WALL_S)), tz=UTC)
    return at.isoformat().replace("+00:00", "Z")
