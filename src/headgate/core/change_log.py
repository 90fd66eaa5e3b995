"""What a fleet has set, what a change of it does, and where it applies: values for people.

Items of a store ──holdings_of──► LogState ──a change──► ChangeMade (differences, Reached, advice)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from headgate.core.beat import Beat
from headgate.core.change import ChangeKind, Edit, Item
from headgate.core.copies import Copies
from headgate.core.lint import Advice
from headgate.core.metric_redaction import redacted
from headgate.core.overlay import Overlay
from headgate.core.reach import EVERYWHERE, HERE, Reach
from headgate.core.rule_times import parse_date_time

MAX_TOLD = 5
"""Differences in the line that sums a revision up."""
MAX_VALUE_CHARS = 80
UNSET = "unset"
BOOKKEEPING = frozenset({"created_at", "created_by", "set_at", "ruled_at", "charged", "suspended"})
"""In a rule's value: author and time, which no file has."""
_SAID_BESIDES = frozenset({"who", "set_wall_s", "for_s", "term"})
"""The same, of a skip and a handover."""
_TIMED = frozenset({ChangeKind.SKIP, ChangeKind.HANDOVER})
_OVER_FILE = frozenset({ChangeKind.METRIC, ChangeKind.BUDGET})
"""With the reach HERE, these change what the settings file says."""

ChangeName = tuple[str, str]
"""By which one is known, wherever it reaches."""


def name_of(item: Item) -> ChangeName:
    return item.kind, item.id


def newest(items: Iterable[Item]) -> dict[ChangeName, Item]:
    """One of each name. An item that was moved to another reach leaves one behind that is removed:
    the higher n counts, and of the same n the one that is not removed."""
    found: dict[ChangeName, Item] = {}
    for item in items:
        known = found.get(name_of(item))
        if known is None or _precedence(item) > _precedence(known):
            found[name_of(item)] = item
    return found


def _precedence(item: Item) -> tuple[int, bool, str]:
    return item.n, not is_taken_out(item), item.key


def is_taken_out(item: Item) -> bool:
    return item.value is None or bool(item.value.get("lifted_by"))


def ends_at(item: Item) -> float | None:
    """Wall-clock seconds; None: it has no end of its own. ValueError: nobody can tell."""
    key = "until_wall_s" if item.kind in _TIMED else "expires_at"
    given = None if item.value is None else item.value.get(key)
    return None if given is None else parse_date_time(given)


def counted_from(item: Item) -> float:
    """When its time began, by the clock of who set it: `set_at` of a shard's change may lie later,
    behind what it took the place of (exchange.succeeding)."""
    key = "set_wall_s" if item.kind in _TIMED else "set_at"
    given = None if item.value is None else item.value.get(key)
    return item.set_at if given is None else parse_date_time(given)


def redated(item: Item, set_at: float) -> Item:
    """With another place among the versions; its time goes on being counted from where it was."""
    value = item.value
    if item.kind == ChangeKind.METRIC and value and "expires_at" in value:
        value = {"set_at": item.set_at, **value}
    return replace(item, set_at=set_at, value=value)


def stands(item: Item, wall_s: float) -> bool:
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
    items: Overlay[ChangeName, Item] = field(default_factory=Overlay)
    """The newest of each name, ended and removed ones too."""
    refused: tuple[str, ...] = ()
    """Entries that could not be read, by key, with the reason: of another version, or broken."""
    head_revision: int = 0
    """Of the store: what the next change compares with."""
    store_id: str = ""
    beat: Beat | None = None
    """The last one, as the store has it; None: there is none, or it cannot be read."""

    def standing(self, wall_s: float) -> dict[ChangeName, Item]:
        return {name: item for name, item in self.items.items() if stands(item, wall_s)}

    def rule(self, rule_id: str) -> Item | None:
        return self.items.get((ChangeKind.RULE, rule_id))

    def standing_rule(self, rule_id: str, wall_s: float) -> Item | None:
        item = self.rule(rule_id)
        return item if item is not None and stands(item, wall_s) else None

    def budget(self, name: str, reach: Reach) -> Item | None:
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
        return f"{self.name} {_shown(self.before)} → {_shown(self.after)}"


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
        is_over_file = self.reach == HERE and self.kind in _OVER_FILE and "whole" not in names
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


def _settings(item: Item | None) -> dict[str, Any]:
    if item is None or item.value is None or is_taken_out(item):
        return {}
    aside = _SAID_BESIDES if item.kind in _TIMED else BOOKKEEPING
    said = {key: value for key, value in item.value.items() if key not in aside}
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


def same_setting(one: Item | None, other: Item | None) -> bool:
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


def _metric_settings(item: Item | None) -> Any:
    return None if item is None or item.value is None else item.value.get("settings")


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
    def items(self) -> tuple[Item, ...]:
        """As they are now, or would be."""
        return tuple(change.after for change in self.changes if change.after is not None)


def summary_of(changes: Sequence[Edit]) -> str:
    """`rule f-1a2b3c (fleet): added; budget etl@fleet: rate 20 → 30`."""
    told = [difference(change).line for change in changes[:MAX_TOLD]]
    if len(changes) > MAX_TOLD:
        told.append(f"and {len(changes) - MAX_TOLD:,} more")
    return "; ".join(told) or "nothing but the number"


def _shown(value: Any) -> str:
    if value is None:
        return UNSET
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 1]}…"
