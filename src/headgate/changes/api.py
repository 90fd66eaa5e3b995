"""What operators changed, as documents: changes of a log, differences, revisions, files.

changes/model (Change, Edit, Revision) ──► here ──► changes/routes ──► present/changes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from headgate.base.declared import iso
from headgate.base.redaction import redacted
from headgate.budgets.api import says as budget_says
from headgate.budgets.parse import parse_budget
from headgate.changes.exchange_api import CopiesDoc, copies_doc
from headgate.changes.model import Change, ChangeKind, Edit, Revision, Sort
from headgate.changes.reach import HERE
from headgate.changes.state import (
    ChangeDifference,
    ChangeMade,
    What,
    difference,
    ends_at,
    is_change_of_file,
    said_by,
    starts_at,
    waits,
)
from headgate.check.reasons import says as rule_says
from headgate.fleet.api import ReachedDoc, reached_doc
from headgate.rules.settings import RuleSpec, parse_kept

MAX_CHANGES_TOLD = 1000
MAX_SAID_CHARS = 300
MAX_N = 2**53
"""Above this, numbers in JSON are not exact any more."""
_N = Annotated[int, msgspec.Meta(ge=0, le=MAX_N)]


class Log(StrEnum):
    AGENT = "agent"
    FLEET = "fleet"


# --- documents -------------------------------------------------------------------------------


class ChangeDoc(msgspec.Struct, frozen=True):
    """One change of a log in its current state."""

    kind: str
    """`rule`, `budget`, `policy`, `metric`, `skip`, `peer`, `handover`, or one of a newer
    version."""
    id: str
    reach: str
    """`host` (this agent), `fleet`, `region:eu-*`, `cluster:x`, `shard:commerce/*`,
    `host:db-1`."""
    state: str
    """`in_force`, `waiting` (it starts later), `ended` (it expired or was lifted), `removed`, or
    `unreadable`."""
    says: str
    """What it does, as a sentence; if it is unreadable, why."""
    value: Mapping[str, Any] | None
    """As it was set, without secrets; null: removed."""
    expires_at: str | None
    left_s: float | None
    n: int
    """The log's revision that set it."""
    set_at: str
    set_by: str


class ChangesDoc(msgspec.Struct, frozen=True):
    log: Log
    n: int
    """The log's revision."""
    changes: Sequence[ChangeDoc]
    rejected: Sequence[str]
    """Entries that could not be read, by key, with the reason."""


class ChangeSettingDoc(msgspec.Struct, frozen=True):
    name: str
    """`reach`, or a setting."""
    before: Any
    """Null: unset."""
    after: Any


class ChangeDifferenceDoc(msgspec.Struct, frozen=True):
    """One thing that was, or would be, set another way."""

    kind: str
    """`rule added`, `rule changed`, `rule taken out`, and the same for other kinds."""
    id: str
    reach: str
    settings: Sequence[ChangeSettingDoc]
    """Settings that differ; all of them if it is added or removed."""
    line: str
    """For display: `rule f-1a2b3c (fleet): ratio 0.5 → 0.9`."""


class ChangeMadeDoc(msgspec.Struct, frozen=True):
    log: Log
    before_n: int
    after_n: int
    """The log's revision now; unchanged if nothing was changed."""
    dry_run: bool
    changed: bool
    """Changes that were made, or would be."""
    revisions: int
    """Number of revisions in which they were made, or would be."""
    difference: Sequence[ChangeDifferenceDoc]
    """At most 1,000."""
    difference_total: int
    advice: Sequence[str]
    reached: ReachedDoc | None = None
    """All places that it applies to, before or after; null: this agent, and those of its shard."""
    copies: CopiesDoc | None = None
    """For a change of a shard in the agent's own log: which other agents have it."""
    replay: Sequence[str] = ()
    """Of a dry run: what the first 5 rules or metrics would have done to the checks of this agent's
    last hour, as sentences."""


class ChangeExportDoc(msgspec.Struct, frozen=True):
    log: Log
    n: int
    """The log's revision of this export."""
    document: Mapping[str, Any]
    """As `POST /v1/changes/apply` takes it: a list of entries for each section."""
    left_out: Sequence[str]
    """What a file cannot hold, as sentences."""


class ChangeRevisionDoc(msgspec.Struct, frozen=True):
    n: int
    at: str | None
    """Null: not even that can be read."""
    who: str
    action: str
    summary: str
    is_current: bool
    unread: str | None = None
    """Why this agent's version cannot read what it changed; null: it can."""


class ChangeRevisionsDoc(msgspec.Struct, frozen=True):
    log: Log
    n: int
    """The log's revision."""
    revisions: Sequence[ChangeRevisionDoc]
    """Newest first."""


class ChangeRevisionWholeDoc(msgspec.Struct, frozen=True):
    log: Log
    about: ChangeRevisionDoc
    difference: Sequence[ChangeDifferenceDoc]
    """Its changes, at most 1,000."""
    difference_total: int


class ChangeRollbackBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    n: _N
    """The revision to go back to."""
    only: Sequence[Sort] = ()
    """Changes that go back; the rest stays. Missing or empty: everything."""


# --- changes of a log ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ItemRead:
    says: str
    state: str
    expires_at: float | None = None


def change_doc(item: Change, wall_s: float) -> ChangeDoc:
    found = _read(item, wall_s)
    ends = found.expires_at
    if found.state == "in_force" and waits(item, wall_s):
        told = f"from {iso(starts_at(item) or 0.0)}: {found.says}"
        found = replace(found, says=told, state="waiting")
    running = ends is not None and found.state == "in_force"
    return ChangeDoc(
        kind=str(item.kind),
        id=item.id,
        reach=str(item.reach),
        state=found.state,
        says=found.says,
        value=None if item.value is None else _shown(item, item.value),
        expires_at=None if ends is None else iso(ends),
        left_s=max(0.0, ends - wall_s) if running and ends is not None else None,
        n=item.n,
        set_at=iso(item.set_at),
        set_by=item.set_by,
    )


def _shown(item: Change, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a metric is read with may open doors; of a newer version's value anything may."""
    known = item.kind in _SAYS and item.kind != ChangeKind.METRIC
    return dict(value) if known else redacted(value)


def _read(item: Change, wall_s: float) -> _ItemRead:
    if item.value is None:
        return _ItemRead("taken out", "removed")
    try:
        if item.kind is ChangeKind.RULE:
            return _rule(parse_kept(item.id, item.value, item.n), wall_s)
        ends = ends_at(item)
        over = ends is not None and wall_s >= ends
        return _ItemRead(_says(item, item.value), "ended" if over else "in_force", ends)
    except (ValueError, *_STRANGE) as error:  # InvalidSettings among them.
        why = str(error) if isinstance(error, ValueError) else repr(error)
        return _ItemRead(f"cannot be read by this agent: {why}", "unreadable")


_STRANGE = (AttributeError, KeyError, TypeError)
"""Raised for a value of another shape."""


def _rule(spec: RuleSpec, wall_s: float) -> _ItemRead:
    over = bool(spec.lifted_by) or wall_s >= spec.rule.expires_at
    lifted = f"; lifted by {spec.lifted_by}" if spec.lifted_by else ""
    says = f"{rule_says(spec.rule)}{lifted}"
    return _ItemRead(says, "ended" if over else "in_force", spec.rule.expires_at)


def _says(item: Change, value: Mapping[str, Any]) -> str:
    """Of any kind but a rule; raises ValueError, or one of _STRANGE, where it cannot be read."""
    if item.kind not in _SAYS:
        raise ValueError(f"{item.kind} is a kind of a newer version")
    text = _SAYS[item.kind](item, value)
    return text if len(text) <= MAX_SAID_CHARS else f"{text[: MAX_SAID_CHARS - 1]}…"


def _budget(item: Change, value: Mapping[str, Any]) -> str:
    if item.reach != HERE and not is_change_of_file(value):
        budget = parse_budget(said_by(item))
        return f"{budget.mode.value}: {budget_says(budget)}"
    if value.get("removed") is True:
        return "removed"
    if value["whole"]:
        budget = parse_budget({"name": item.id.partition("/")[2], **value["settings"]})
        return f"{budget.mode.value}: {budget_says(budget)}"
    return _table(value["settings"])


def _metric(item: Change, value: Mapping[str, Any]) -> str:
    return "removed" if value.get("removed") is True else _table(redacted(value["settings"]))


def _policy(item: Change, value: Mapping[str, Any]) -> str:
    cap = {} if value["mode_cap"] == "enforce" else {"mode_cap": value["mode_cap"]}
    order = {"order": list(value["order"])} if value["order"] else {}
    return _table({**cap, **value["policy"], **order})


def _skip(item: Change, value: Mapping[str, Any]) -> str:
    return str(value["reason"])


def _peer(item: Change, value: Mapping[str, Any]) -> str:
    return f"{value['url']}, database {value['database']}"


def _handover(item: Change, value: Mapping[str, Any]) -> str:
    why = f": {value['reason']}" if value["reason"] else ""
    return f"{value['member']} is about to step down{why}"


_SAYS: Mapping[str, Callable[[Change, Mapping[str, Any]], str]] = {
    ChangeKind.RULE: lambda item, value: rule_says(parse_kept(item.id, value, item.n).rule),
    ChangeKind.BUDGET: _budget,
    ChangeKind.POLICY: _policy,
    ChangeKind.METRIC: _metric,
    ChangeKind.SKIP: _skip,
    ChangeKind.PEER: _peer,
    ChangeKind.HANDOVER: _handover,
}


def _table(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_value(value)}" for name, value in settings.items()) or "nothing"


def _value(value: Any) -> str:
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


# --- what a change does ----------------------------------------------------------------------


def change_made_doc(change: ChangeMade, log: Log, replay: Sequence[str] = ()) -> ChangeMadeDoc:
    return ChangeMadeDoc(
        log=log,
        before_n=change.before_n,
        after_n=change.after_n,
        dry_run=change.dry_run,
        changed=bool(change.changes),
        revisions=change.revisions,
        difference=difference_docs(change.changes),
        difference_total=len(change.changes),
        advice=[str(advice) for advice in change.advice],
        reached=reached_doc(change.reached) if log is Log.FLEET else None,
        copies=copies_doc(change.copies),
        replay=replay,
    )


def difference_docs(changes: Sequence[Edit]) -> list[ChangeDifferenceDoc]:
    return [_difference_doc(change) for change in changes[:MAX_CHANGES_TOLD]]


def _difference_doc(change: Edit) -> ChangeDifferenceDoc:
    found = difference(change)
    return ChangeDifferenceDoc(
        kind=f"{found.kind} {found.what.value}",
        id=found.id,
        reach=str(found.reach),
        settings=[ChangeSettingDoc(one.name, one.before, one.after) for one in found.settings],
        line=_line(change, found),
    )


def _line(change: Edit, found: ChangeDifference) -> str:
    """A change that comes or goes is shown with what it does: the name alone says little."""
    item = change.before if found.what is What.TAKEN_OUT else change.after
    if found.what is What.CHANGED or item is None or item.value is None:
        return found.line
    try:
        said = _says(item, item.value)
        told = "" if found.line.endswith(f": {said}") else f", {said}"
        return f"{found.line}{told}{_until(item)}"
    except (ValueError, *_STRANGE):  # InvalidSettings among them: of another version, or broken.
        return found.line


def _until(item: Change) -> str:
    starts, ends = starts_at(item), ends_at(item)
    begins = "" if starts is None else f", from {iso(starts)}"
    return begins if ends is None else f"{begins}, until {iso(ends)}"


# --- revisions -------------------------------------------------------------------------------


def revision_doc(revision: Revision, current_n: int) -> ChangeRevisionDoc:
    return ChangeRevisionDoc(
        n=revision.n,
        at=iso(revision.wall_s) if revision.wall_s else None,
        who=revision.who,
        action=revision.action,
        summary=revision.summary,
        is_current=revision.n == current_n,
        unread=revision.unread or None,
    )
