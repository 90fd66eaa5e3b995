"""What every store does alike with the values it is given: text form, checks, messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headgate.core.records import (
    AuditEntry,
    BudgetMinute,
    MetricChange,
    PolicyRevision,
    Record,
    Report,
    Tally,
)
from headgate.errors import Conflict, Fault, InvalidSettings, StoreUnavailable

MAX_METRIC_CHANGES = 10_000
"""Changed metrics kept, removed ones included: a removal must outlive the settings file."""

MAX_RECORDS = 10_000
"""Of each kind. Removed ones count only until their room is needed."""
MAX_KIND_CHARS = 32
MAX_KEY_CHARS = 512
MAX_VALUE_BYTES = 64 * 1024
"""As JSON in ASCII."""

MAX_POLICIES = 100
"""Of a database: further back nobody goes."""
MAX_POLICY_BYTES = 16 * 1024 * 1024
MAX_POLICIES_BYTES = 32 * 1024 * 1024
"""Of one database, as JSON in ASCII; the newest stays in any case."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is kept of one metric or record now, and who put it there."""

    raw_json: str | None
    revision: int
    wall_s: float
    who: str
    action: str


def standing_of(raw: Mapping[str, Any] | None, audit: AuditEntry, revision: int) -> Standing:
    raw_json = None if raw is None else to_json(raw)
    return Standing(raw_json, revision, audit.wall_s, audit.who, audit.action)


def change_of(database: str, metric: str, raw_json: str | None, revision: int) -> MetricChange:
    raw = None if raw_json is None else json.loads(raw_json)
    return MetricChange(database, metric, raw, revision)


def record_of(kind: str, key: str, value_json: str | None, revision: int) -> Record:
    value = None if value_json is None else json.loads(value_json)
    return Record(kind, key, value, revision)


def to_json(value: Any) -> str:
    """ASCII, so that no string can be one that a store's encoding refuses."""
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be kept as JSON")


def check_replaces(change: MetricChange, standing: Standing | None, *, kept: int) -> None:
    """Raise Conflict unless `change` was built on what stands; refuse one metric too many."""
    name = f"{change.database}/{change.metric}"
    if change.revision != (standing.revision if standing else 0):
        raise Conflict(f"{name}: {_what_happened(change.revision, standing)}")
    if standing is None and kept >= MAX_METRIC_CHANGES:
        raise StoreUnavailable(
            f"{name}: {kept} changed metrics are kept, the most there may be; "
            "set metrics in the settings file instead of under ever new names"
        )


def _what_happened(revision: int, standing: Standing | None) -> str:
    if standing is None:
        return f"nothing is kept that has revision {revision}; look again and add it as new"
    when = datetime.fromtimestamp(standing.wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    built_on = f"revision {revision}" if revision else "none being there"
    return (
        f"the change was built on {built_on}, but {standing.who} made revision "
        f"{standing.revision} at {when} ({standing.action}); look again and repeat"
    )


def check_record(record: Record) -> None:
    """Raise InvalidSettings for what is too long, or is no text that a file can hold."""
    _check_text("kind", record.kind, MAX_KIND_CHARS)
    _check_text(f"{record.kind} key", record.key, MAX_KEY_CHARS)
    size_bytes = 0 if record.value is None else len(to_json(record.value))
    if size_bytes > MAX_VALUE_BYTES:
        place = f"{record.kind} {record.key}"
        message = f"its value takes {size_bytes} bytes as JSON, may take {MAX_VALUE_BYTES}"
        raise InvalidSettings([Fault(place, message)])


def check_report(report: Report) -> None:
    """Raise InvalidSettings for what is too long, or is no text that a file can hold."""
    _check_text("client", report.client, MAX_KEY_CHARS)
    _check_text("origin", report.origin, MAX_KEY_CHARS)
    size_bytes = len(to_json(report.value))
    if size_bytes > MAX_VALUE_BYTES:
        message = f"takes {size_bytes} bytes as JSON, may take {MAX_VALUE_BYTES}"
        raise InvalidSettings([Fault(f"report of {report.client}", message)])


def _check_text(place: str, text: str, max_chars: int) -> None:
    if len(text) > max_chars:
        beginning = f"{text[:MAX_KIND_CHARS]}…"
        message = f"{beginning!a} has {len(text)} characters, may have {max_chars}"
        raise InvalidSettings([Fault(place, message)])
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{text!a} holds half of a surrogate pair, which is no character"
        raise InvalidSettings([Fault(place, message)]) from None


def check_record_replaces(record: Record, standing: Standing | None) -> None:
    """Raise Conflict unless `record` was built on what stands.

    Who looked after a removal saw nothing there, who made it has its revision: both know.
    """
    if standing is None:
        current = {0}
    elif standing.raw_json is None:
        current = {0, standing.revision}
    else:
        current = {standing.revision}
    if record.revision not in current:
        happened = _what_happened(record.revision, standing)
        raise Conflict(f"{record.kind} {record.key}: {happened}")


def check_stands(record: Record, standing: Standing | None) -> Standing:
    """Raise Conflict unless it is there, and at the record's very revision."""
    if standing is None or standing.raw_json is None or standing.revision != record.revision:
        happened = _what_happened(record.revision, standing)
        raise Conflict(f"{record.kind} {record.key}: {happened}")
    return standing


def too_many_records(record: Record) -> StoreUnavailable:
    return StoreUnavailable(
        f"{record.kind} {record.key}: {MAX_RECORDS} of kind {record.kind} are kept, the most "
        "there may be; remove some that are no longer needed"
    )


def check_policy(new: PolicyRevision) -> tuple[str, str]:
    """As JSON: the document, and the changes. Raises InvalidSettings for what is too long."""
    found = to_json(new.document), to_json(new.changes)
    size_bytes = sum(map(len, found))
    if size_bytes > MAX_POLICY_BYTES:
        message = f"takes {size_bytes} bytes as JSON, may take {MAX_POLICY_BYTES}"
        raise InvalidSettings([Fault(f"policy of {new.database}", message)])
    return found


def check_policy_replaces(new: PolicyRevision, newest: PolicyRevision | None) -> None:
    """Raise Conflict unless `new` was built on the newest."""
    if new.revision == (newest.revision if newest else 0):
        return
    standing = None
    if newest is not None:
        standing = Standing("", newest.revision, newest.wall_s, newest.who, newest.action)
    happened = _what_happened(new.revision, standing)
    raise Conflict(f"policy of {new.database}: {happened}")


def check_budget_minutes(minutes: Sequence[BudgetMinute]) -> None:
    for one in minutes:
        if one.count < 1:
            message = f"a minute of budget {one.budget!r} counts {one.count}, must be 1 or more"
            raise ValueError(message)


def check_tallies(tallies: Sequence[Tally]) -> None:
    for tally in tallies:
        if tally.count < 1:
            raise ValueError(f"a tally of {tally.client!r} counts {tally.count}, must be 1 or more")


def check_step(step_minutes: int | None) -> None:
    if step_minutes is not None and step_minutes < 1:
        raise ValueError(f"a step of {step_minutes} minutes sums up nothing, must be 1 or more")
