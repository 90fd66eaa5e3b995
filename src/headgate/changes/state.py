"""A log of changes: its items and revisions as bytes, what they say, and what a change does. Pure.

bytes ──read_item──► Change ──LogState──► a change ──► ChangeMade (differences, Reached, Copies)
                                          └──parts_of──► revisions that a store takes ──► bytes
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from sys import intern
from typing import Any, NamedTuple

from headgate.base.advice import Advice
from headgate.base.declared import iso, parse_date_time
from headgate.base.keyvalue import read_object
from headgate.base.overlay import Overlay
from headgate.base.redaction import redacted
from headgate.budgets.limits import amount_told
from headgate.changes.model import Change, ChangeKind, Edit, Revision, log_n
from headgate.changes.reach import EVERYWHERE, HERE, Reach, parse_reach
from headgate.errors import Fault, HeadgateError
from headgate.fleet.beat import Beat

# --- who has a copy, besides the agent that made it: what an acknowledgment says ------------


class CopyState(NamedTuple):
    """What another agent has of a shard's changes, as it last reported."""

    has_all: bool
    exchanged_at: float | None
    """Monotonic seconds of its last answer; None: never."""
    fault: str
    """Why the last try failed; empty: it did not."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Who has a change, besides the agent that made it."""

    have: int
    of: int
    """Agents of replicas."""
    missing: tuple[str, ...] = ()
    """Replicas without a copy, and why: `db-b does not answer`."""
    standby: bool | None = None
    """Whether the standby agent has a copy; None: there is no standby."""
    left_out: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Copies without effect, by the id of the change and the replica: why."""

    @property
    def words(self) -> str:
        told = ["in force here"]
        if self.of:
            missing = f": {', '.join(self.missing)}" if self.missing else ""
            told.append(f"{self.have} of {self.of} replicas have a copy{missing}")
        if self.standby is not None:
            told.append(f"the standby has {'a copy' if self.standby else 'no copy yet'}")
        if len(told) == 1:
            told.append("no other agent of the shard is known")
        told += [f"{member} reports: {why}" for (_, member), why in self.left_out.items()]
        return "; ".join(told)

    def of_items(self, items: Iterable[Change | None]) -> Copies:
        """Of these changes alone."""
        ids = {item.id for item in items if item is not None}
        left_out = {one: why for one, why in self.left_out.items() if one[0] in ids}
        return replace(self, left_out=left_out)


def both(one: Copies | None, other: Copies | None) -> Copies | None:
    """The copies of a change that applies to two shards."""
    if one is None or other is None:
        return one or other
    told = [copies.standby for copies in (one, other) if copies.standby is not None]
    return Copies(
        one.have + other.have,
        one.of + other.of,
        (*one.missing, *other.missing),
        all(told) if told else None,
        {**one.left_out, **other.left_out},
    )


# --- as bytes ------------------------------------------------------------------------------
# Readers may be older than writers: a field that is not known is ignored, an item that cannot
# be rejected with its key, and the others are used.

_KINDS = {kind.value: kind for kind in ChangeKind}
_KIND = re.compile(r"[a-z][a-z_]{0,31}")
_ALIKE = frozenset({"kind", "order", "reason", "created_by", "database"})
"""Rules of one job repeat the same texts: each is kept once."""
MAX_ITEM_BYTES = 64 * 1024
"""In the store of a fleet: every agent reads it."""
MAX_OWN_ITEM_BYTES = 16 * 1024 * 1024
"""In an agent's own log: a budget there may have as many rules as a policy."""
MAX_N = 10**12 - 1
"""As many digits as the keys of the log have. No agent writes a higher one, and a reader that
accepted it would reject everything after it."""
MAX_WALL_S = 2e11
MAX_TEXT_CHARS = 1000
"""Of what another version says of its own."""


def item_bytes(item: Change) -> bytes:
    return _bytes(item_document(item))


def item_document(item: Change) -> dict[str, Any]:
    said = {} if item.again is None else {"again": item.again}
    return {
        "kind": str(item.kind),
        "id": item.id,
        "reach": str(item.reach),
        "value": None if item.value is None else dict(item.value),
        "n": item.n,
        "set_at": item.set_at,
        "set_by": item.set_by,
        **said,
    }


def read_item(raw: bytes) -> Change:
    """ValueError where it is none."""
    return _item(read_object(raw))


def read_item_at(key: str, raw: bytes, most_bytes: int = MAX_ITEM_BYTES) -> Change:
    """For readers of the store: ValueError, too, for an item under the key of another one. It was
    copied by hand, and a lookup by its name would not find it there."""
    if len(raw) > most_bytes:
        raise ValueError(f"has {len(raw):,} bytes, at most {most_bytes:,} are allowed")
    item = read_item(raw)
    if item.key != key:
        raise ValueError(f"has an item that belongs to {item.key}")
    return item


def revision_bytes(revision: Revision) -> bytes:
    return _bytes(
        {
            "n": revision.n,
            "wall_s": revision.wall_s,
            "who": revision.who,
            "action": revision.action,
            "summary": revision.summary,
            "op": revision.op,
            "changes": [
                {"before": _document(change.before), "after": _document(change.after)}
                for change in revision.changes
            ],
            "before_n": revision.built_on,
        }
    )


def read_revision(raw: bytes) -> Revision:
    """ValueError where it is none."""
    document = read_object(raw)
    try:
        return Revision(
            int(document["n"]),
            float(document["wall_s"]),
            str(document["who"]),
            str(document["action"]),
            str(document["summary"]),
            str(document["op"]),
            tuple(
                Edit(_maybe_item(change["before"]), _maybe_item(change["after"]))
                for change in document["changes"]
            ),
            _before_n(document),
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"is not a revision: {error!r}") from None


def read_revision_at(key: str, raw: bytes) -> Revision | None:
    """Whatever lies there, if only that it cannot be read, and why; None under any other key."""
    n = log_n(key)
    if n is None:
        return None
    try:
        revision = read_revision(raw)
        if revision.n != n:
            raise ValueError(f"says that it is revision {revision.n}")
    except ValueError as error:
        return _unread(n, raw, str(error))
    return revision


def op_of(raw: bytes) -> str:
    """The op of a revision, to compare with one's own; empty: it has none."""
    with suppress(ValueError):
        return str(read_object(raw).get("op", ""))
    return ""


def _unread(n: int, raw: bytes, why: str) -> Revision:
    said: Mapping[str, Any] = {}
    with suppress(ValueError):
        said = read_object(raw)
    who, action, summary = (_text(said.get(key)) for key in ("who", "action", "summary"))
    wall_s, before_n = 0.0, None
    with suppress(ValueError, TypeError, OverflowError):
        wall_s = _time(said.get("wall_s"))
    with suppress(ValueError):
        before_n = _before_n({**said, "n": n})
    return Revision(n, wall_s, who, action, summary, "", (), before_n, f"it {why}")


def _text(given: object) -> str:
    return given[:MAX_TEXT_CHARS] if isinstance(given, str) else ""


def _before_n(document: Mapping[str, Any]) -> int | None:
    """None, too, for the one just before it."""
    given = document.get("before_n")
    if given is None:
        return None
    before_n = _n(given, "revision")
    if before_n >= document["n"]:
        raise ValueError(f"is not a revision: it is {document['n']}, built on {before_n}")
    return None if before_n == document["n"] - 1 else before_n


def head_bytes(n: int) -> bytes:
    return _bytes({"n": n})


def read_head(raw: bytes) -> int:
    return _n(read_object(raw).get("n"), "head of a fleet")


def _document(item: Change | None) -> dict[str, Any] | None:
    return None if item is None else item_document(item)


def _maybe_item(document: Mapping[str, Any] | None) -> Change | None:
    return None if document is None else _item(document)


def _item(document: Mapping[str, Any]) -> Change:
    try:
        value = document["value"]
        if value is not None and not isinstance(value, Mapping):
            raise ValueError("is not an item: its value is not an object")
        if value is not None:  # Thousands of them have the same few keys, and say much alike.
            value = {
                intern(key): intern(one) if key in _ALIKE and type(one) is str else one
                for key, one in value.items()
            }
        return Change(
            _kind(document["kind"]),
            str(document["id"]),
            parse_reach(document["reach"]),
            value,
            _n(document["n"], "item"),
            _time(document["set_at"]),
            intern(str(document["set_by"])),
            None if document.get("again") is None else _n(document["again"], "item"),
        )
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"is not an item: {error!r}") from None


def _kind(given: object) -> str:
    """A word of a newer version is kept as it is."""
    if not isinstance(given, str) or not _KIND.fullmatch(given):
        raise ValueError(f"is not an item: its kind is {str(given)[:40]!r}")
    return _KINDS.get(given, given)


def _n(given: object, of_what: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= MAX_N:
        raise ValueError(f"is not a {of_what}: n is {str(given)[:40]}, must be 0 to {MAX_N:,}")
    return given


def _time(given: Any) -> float:
    """One that people can be shown."""
    if not abs(wall_s := float(given)) < MAX_WALL_S:
        raise ValueError(f"is not an item: {str(given)[:40]} is not a time")
    return wall_s


def _bytes(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


# --- what is set ---------------------------------------------------------------------------

MAX_TOLD = 5
"""Differences in the line that sums a revision up."""
MAX_VALUE_CHARS = 80
UNSET = "unset"
STARTS = "starts_at"
"""In the value of a change of any kind that starts later."""
START_WITHIN_S = 30 * 86_400.0
BOOKKEEPING = frozenset({"created_at", "created_by", "set_at", "ruled_at", "charged", "suspended"})
"""In a rule's value: author and time, which no file has."""
_SAID_BESIDES = frozenset({"who", "set_wall_s", "for_s", "term"})
"""The same, of a skip and a handover."""
_TIMED = frozenset({ChangeKind.SKIP, ChangeKind.HANDOVER})
_OVER_FILE = frozenset({ChangeKind.METRIC, ChangeKind.BUDGET})
"""With the reach HERE, these change what the settings file says."""

ChangeName = tuple[str, str]
"""By which one is known, wherever it reaches."""


def name_of(item: Change) -> ChangeName:
    return item.kind, item.id


def newest(items: Iterable[Change]) -> dict[ChangeName, Change]:
    """One of each name. An item that was moved to another reach leaves one behind that is removed:
    the higher n counts, and of the same n the one that is not removed."""
    found: dict[ChangeName, Change] = {}
    for item in items:
        known = found.get(name_of(item))
        if known is None or _precedence(item) > _precedence(known):
            found[name_of(item)] = item
    return found


def _precedence(item: Change) -> tuple[int, bool, str]:
    return item.n, not is_taken_out(item), item.key


def is_taken_out(item: Change) -> bool:
    return item.value is None or bool(item.value.get("lifted_by"))


def ends_at(item: Change) -> float | None:
    """Wall-clock seconds; None: it has no end of its own. ValueError: nobody can tell."""
    key = "until_wall_s" if item.kind in _TIMED else "expires_at"
    given = None if item.value is None else item.value.get(key)
    return None if given is None else parse_date_time(given)


def starts_at(item: Change) -> float | None:
    """Wall-clock seconds; None: at once. ValueError: nobody can tell."""
    given = None if item.value is None else item.value.get(STARTS)
    return None if given is None else parse_date_time(given)


def waits(item: Change, wall_s: float) -> bool:
    """Is set, and starts later. One whose start cannot be read does not wait."""
    try:
        start = None if is_taken_out(item) else starts_at(item)
    except ValueError:
        return False
    return start is not None and start > wall_s


def counted_from(item: Change) -> float:
    """When its time began, by the clock of who set it: `set_at` of a shard's change may lie later,
    behind what it took the place of (exchange.succeeding)."""
    key = "set_wall_s" if item.kind in _TIMED else "set_at"
    given = None if item.value is None else item.value.get(key)
    return item.set_at if given is None else parse_date_time(given)


def said_by(item: Change) -> dict[str, Any]:
    """What a budget's value says of the budget itself."""
    internal = {*BOOKKEEPING, STARTS}
    return {key: one for key, one in (item.value or {}).items() if key not in internal}


def is_change_of_file(value: Mapping[str, Any]) -> bool:
    """Of a budget that reaches beyond one agent, where it is not whole: what its shard changes of
    the one that the settings files have."""
    return value.get("removed") is True or value.get("whole") is False


def redated(item: Change, set_at: float) -> Change:
    """With another place among the versions; its time goes on being counted from where it was."""
    value = item.value
    said = {**(value or {}), **((value or {}).get("settings") or {})}
    if item.kind in _OVER_FILE and value and "expires_at" in said:
        value = {"set_at": item.set_at, **value}
    return replace(item, set_at=set_at, value=value)


def stands(item: Change, wall_s: float) -> bool:
    """Is in force, or would be within its schedule. One whose end cannot be read has ended."""
    if is_taken_out(item):
        return False
    try:
        end = ends_at(item)
    except ValueError:
        return False
    return end is None or end > wall_s


@dataclass(frozen=True, slots=True)
class LogState:
    """All that is set for a fleet, as its store has it at one revision."""

    n: int = 0
    """The fleet's revision; 0: nothing was ever set."""
    items: Overlay[ChangeName, Change] = field(default_factory=Overlay)
    """The newest of each name, ended and removed ones too."""
    rejected: tuple[str, ...] = ()
    """Entries that could not be read, by key, with the reason: of another version, or broken."""
    head_revision: int = 0
    """Of the store: what the next change compares with."""
    store_id: str = ""
    beat: Beat | None = None
    """The last one, as the store has it; None: there is none, or it cannot be read."""

    has_ended: Callable[[Change], bool] = field(default=lambda item: False, compare=False)
    """By the time that changes count, which goes on where the wall clock was set back."""

    def stands(self, item: Change, wall_s: float) -> bool:
        return stands(item, wall_s) and not self.has_ended(item)

    def standing(self, wall_s: float) -> dict[ChangeName, Change]:
        return {name: item for name, item in self.items.items() if self.stands(item, wall_s)}

    def rule(self, rule_id: str) -> Change | None:
        return self.items.get((ChangeKind.RULE, rule_id))

    def standing_rule(self, rule_id: str, wall_s: float) -> Change | None:
        item = self.rule(rule_id)
        return item if item is not None and self.stands(item, wall_s) else None

    def budget(self, name: str, reach: Reach) -> Change | None:
        return self.items.get((ChangeKind.BUDGET, budget_id(name, reach)))


def budget_id(name: str, reach: Reach) -> str:
    return f"{name}@{reach}"


# --- where it applies ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reached:
    """Where something would be in force. Numbers are None if unknown."""

    shards: int | None = None
    hosts: int | None = None
    """Agents."""
    unhealthy: int | None = None
    """Of these shards."""
    names: tuple[str, ...] = ()
    """Of some shards, unhealthy ones first."""
    unknown: str = ""
    """Why it is unknown, or not all of it is known."""
    reach: Reach = EVERYWHERE


# --- a change ------------------------------------------------------------------------------


class What(Enum):
    ADDED = "added"
    CHANGED = "changed"
    TAKEN_OUT = "taken out"


@dataclass(frozen=True, slots=True)
class SettingDifference:
    name: str
    """`reach`, or a setting of the rule or budget."""
    before: Any
    """None: unset."""
    after: Any

    def __str__(self) -> str:
        before, after = (amount_told(self.name, one) for one in (self.before, self.after))
        return f"{self.name} {_shown(before)} → {_shown(after)}"


@dataclass(frozen=True, slots=True)
class ChangeDifference:
    kind: str
    id: str
    reach: Reach
    what: What
    settings: tuple[SettingDifference, ...]
    """Those that differ; all of them of one that is added."""

    @property
    def line(self) -> str:
        """For people: `rule f-1a2b3c (fleet): ratio 0.5 → 0.9`."""
        head = f"{self.kind} {self.id}"
        if self.kind is ChangeKind.RULE and self.reach != HERE:
            head += f" ({self.reach})"
        return f"{head}: {self._became}"

    @property
    def _became(self) -> str:
        names = {one.name for one in self.settings if one.before is True or one.after is True}
        is_partial = "removed" in names or any(one.name == "whole" for one in self.settings)
        is_over_file = self.kind in _OVER_FILE and "whole" not in names
        is_over_file = is_over_file and (self.reach == HERE or is_partial)
        if is_over_file and self.what is not What.CHANGED:
            if self.what is What.TAKEN_OUT:
                return "reverted to the settings file"
            return "removed" if "removed" in names else "set"
        if self.what is not What.CHANGED:
            return str(self.what.value)
        changed = "" if self.kind in _TIMED else ", ".join(map(str, self.settings))
        return changed or "set again"


def difference(change: Edit) -> ChangeDifference:
    """ValueError for a change of nothing into nothing."""
    shown = change.after or change.before
    if shown is None:
        raise ValueError("is not a change: there is nothing before and nothing after it")
    before, after = _settings(change.before), _settings(change.after)
    differing = _differing(before, after)
    if shown.kind == ChangeKind.METRIC:
        differing = map(_without_secrets, differing)
    what = What.CHANGED if before and after else What.ADDED if after else What.TAKEN_OUT
    return ChangeDifference(shown.kind, shown.id, shown.reach, what, tuple(differing))


def _settings(item: Change | None) -> dict[str, Any]:
    if item is None or item.value is None or is_taken_out(item):
        return {}
    internal = _SAID_BESIDES if item.kind in _TIMED else BOOKKEEPING
    said = {key: value for key, value in item.value.items() if key not in internal}
    if item.kind in _OVER_FILE and isinstance(said.get("settings"), Mapping):
        said |= said.pop("settings")
    return {"reach": str(item.reach), **said}


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[SettingDifference]:
    for name in {**before, **after}:
        if before.get(name) != after.get(name):
            yield SettingDifference(name, before.get(name), after.get(name))


def _without_secrets(one: SettingDifference) -> SettingDifference:
    """What a metric is read with opens doors, and this is for everybody."""
    before, after = (redacted({one.name: value})[one.name] for value in (one.before, one.after))
    return SettingDifference(one.name, before, after)


def same_setting(one: Change | None, other: Change | None) -> bool:
    """Whether both have the same content, whatever their authors and times."""
    return _settings(one) == _settings(other)


def audit_values(changes: Iterable[Edit]) -> dict[ChangeName, tuple[Any, Any]]:
    """What the audit shows of a change, before and after, where that is not the value itself: of
    a metric its settings."""
    found: dict[ChangeName, tuple[Any, Any]] = {}
    for change in changes:
        item = change.after or change.before
        if item is not None and item.kind == ChangeKind.METRIC:
            found[name_of(item)] = _metric_settings(change.before), _metric_settings(change.after)
    return found


def _metric_settings(item: Change | None) -> Any:
    return None if item is None or item.value is None else item.value.get("settings")


class NoSuchItem(HeadgateError, LookupError):
    """A rule, a budget or a revision that the fleet does not have."""


class AuditView(NamedTuple):
    """A change as the audit shows it."""

    target: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Draft:
    """What a change would do to the current state."""

    action: str
    changes: Sequence[Edit] = ()
    """Whatever n their items carry: they get that of the revision which puts them."""
    advice: tuple[Advice, ...] = ()
    least_n: int = 0
    """Revisions continue above this, even if the store is behind it."""
    shown: Mapping[ChangeName, tuple[Any, Any]] = field(default_factory=dict)
    """Before and after for the audit, if that is not the value itself."""
    entry: AuditView | None = None
    """One audit entry for all of it, in place of one for each change."""
    summary: str = ""
    """Empty: made of the changes."""


@dataclass(frozen=True, slots=True)
class ChangeMade:
    """What became of a change of the fleet's items, or would."""

    before_n: int
    after_n: int
    """The same as before where nothing was changed, as in a dry run."""
    changes: tuple[Edit, ...] = ()
    reached: Reached = Reached()
    """All places that it applies to, before or after."""
    advice: tuple[Advice, ...] = ()
    dry_run: bool = False
    revisions: int = 0
    """Number of revisions in which it was made, or would be."""
    copies: Copies | None = None
    """Which other agents have it; None: none needs it, or all share the log."""

    @property
    def differences(self) -> tuple[ChangeDifference, ...]:
        return tuple(map(difference, self.changes))

    @property
    def items(self) -> tuple[Change, ...]:
        """As they are now, or would be."""
        return tuple(change.after for change in self.changes if change.after is not None)


def summary_of(changes: Sequence[Edit]) -> str:
    """`rule f-1a2b3c (fleet): added; budget etl@fleet: rate 20% → 30%`."""
    told = [difference(change).line for change in changes[:MAX_TOLD]]
    if len(changes) > MAX_TOLD:
        told.append(f"and {len(changes) - MAX_TOLD:,} more")
    return "; ".join(told) or "nothing but the number"


def _shown(value: Any) -> str:
    if value is None:
        return UNSET
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"


# --- in parts, each a revision of its own ----------------------------------------------------
# etcd takes 128 keys and 1.5 MiB in a commit; a part stays well below, with its log in it.

MAX_PART_KEYS = 100
MAX_PART_BYTES = 512 * 1024
KEEP_S = 86_400.0
"""Ended and removed changes are still there to be shown, and to be followed."""


def numbered(change: Edit, n: int) -> Edit:
    return replace(change, after=replace(change.after, n=n) if change.after else None)


def put_by(change: Edit) -> tuple[Change, ...]:
    """What a change puts: how it is now, and at the key that it has left how it is there."""
    before, after = change.before, change.after
    if after is None:
        return ()
    if before is None or before.key == after.key or is_taken_out(before):
        return (after,)
    return after, replace(after, reach=before.reach, value=None)


def lease_s(item: Change, wall_s: float) -> float:
    """How long it is of use to anybody; 0: for as long as nobody takes it out."""
    if is_taken_out(item):
        return KEEP_S
    end = ends_at(item)
    return 0.0 if end is None else max(0.0, end - wall_s) + KEEP_S


def oversized(changes: Iterable[Edit], most_bytes: int = MAX_ITEM_BYTES) -> Iterator[Fault]:
    for change in changes:
        size_bytes = len(item_bytes(change.after)) if change.after else 0
        if change.after is not None and size_bytes > most_bytes:
            where = " in a fleet's store" if most_bytes == MAX_ITEM_BYTES else ""
            message = (
                f"takes {size_bytes:,} bytes, at most {most_bytes:,}{where}: split it into several"
            )
            yield Fault(f"{change.after.kind} {change.after.id}", message)


def untimely(
    changes: Iterable[Edit], held: LogState, wall_s: float, *, replaces: bool = False
) -> Iterator[Fault]:
    """Of starts. What waits for its start is no part of what is in force now: one takes no place
    of the other unless that is meant (`replaces`)."""
    for before, after in ((one.before, one.after) for one in changes):
        if after is None or is_taken_out(after):
            continue
        place, start = f"{after.kind} {after.id}", starts_at(after)
        was_waiting = before is not None and waits(before, wall_s)
        if start is None or start <= wall_s:
            is_switch = after.kind is ChangeKind.POLICY  # Set now, it counts now.
            if was_waiting and before is not None and not (replaces or start or is_switch):
                message = f"waits until {iso(starts_at(before) or 0.0)}: remove that change first"
                yield Fault(place, f"{message}, or replace it with a file of changes")
            continue
        end = ends_at(after)
        if after.kind is ChangeKind.POLICY and after.reach == HERE:
            yield Fault(place, f"cannot have {STARTS} at one agent; give it a reach")
        elif start > wall_s + START_WITHIN_S:
            yield Fault(place, f"starts at {iso(start)}, more than 30 days ahead")
        elif before is not None and held.stands(before, wall_s) and not was_waiting:
            message = f"is in force now, and would not be until {iso(start)}: remove it first"
            yield Fault(place, f"{message}, or use another name")
        elif end is not None and end <= start:
            message = f"ends at {iso(end)}, before it starts at {iso(start)}"
            yield Fault(place, f"{message}: give `for` or `expires_at`")


def parts_of(changes: Sequence[Edit]) -> list[tuple[Edit, ...]]:
    """In their order; rules that were set together stay together."""
    parts: list[tuple[Edit, ...]] = []
    part, keys, size_bytes = list[Edit](), 0, 0
    for group in _groups(changes):
        more_keys = sum(len(put_by(change)) for change in group)
        more_bytes = sum(map(_size_bytes, group))
        full = keys + more_keys > MAX_PART_KEYS or size_bytes + more_bytes > MAX_PART_BYTES
        if part and full:
            parts.append(tuple(part))
            part, keys, size_bytes = [], 0, 0
        part += group
        keys, size_bytes = keys + more_keys, size_bytes + more_bytes
    return [*parts, tuple(part)] if part else parts


def _groups(changes: Sequence[Edit]) -> Iterator[list[Edit]]:
    """Each change with that of the rule which it was set together with."""
    by_id = {_rule_id(change): change for change in changes if _rule_id(change)}
    done: set[str] = set()
    for change in changes:
        if _rule_id(change) in done:
            continue
        pair = by_id.get(_pair(change))
        alone = pair is None or pair is change or _rule_id(pair) in done
        together = [change] if pair is None or alone else [change, pair]
        done |= {_rule_id(one) for one in together} - {""}
        yield together


def _rule_id(change: Edit) -> str:
    item = change.after or change.before
    return item.id if item is not None and item.kind is ChangeKind.RULE else ""


def _pair(change: Edit) -> str:
    for item in (change.after, change.before):
        if item is not None and item.kind is ChangeKind.RULE and item.value:
            return str(item.value.get("pair", ""))
    return ""


def _size_bytes(change: Edit) -> int:
    """In the commit: what is put, and before and after once more in the log."""
    logged = [item for item in (change.before, change.after) if item is not None]
    return sum(len(item_bytes(item)) for item in (*put_by(change), *logged))
