"""The changes of a log in the form of a file, and a file as one change of the log.

items ──written_file──► document             ChangeFile + LogState ──ApplyDrafts──► Draft
                                                             └── Room (validates one kind)

An entry that equals the current change is not validated again: applying an export again changes
nothing, whatever else has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from headgate.base.advice import Advice, Severity
from headgate.base.declared import iso, parse_date_time, parse_for
from headgate.base.overlay import Overlay
from headgate.base.redaction import redacted
from headgate.budgets.drafts import check_budget_room, judged, judged_cap
from headgate.changes.exchanged import apart as apart_from_others
from headgate.changes.file_format import MAX_FAULTS, SECTIONS, ChangeFile, FileEntry, known_by
from headgate.changes.items import known
from headgate.changes.model import Change, ChangeKind, Edit, item_key
from headgate.changes.reach import HERE, Reach
from headgate.changes.state import (
    BOOKKEEPING,
    STARTS,
    ChangeName,
    Draft,
    LogState,
    audit_values,
    is_change_of_file,
    name_of,
)
from headgate.errors import Fault, InvalidSettings
from headgate.metrics.settings import with_units
from headgate.rules.drafts import (
    UNCHANGED,
    ChangeAuthor,
    Neighbours,
    RuleDrafts,
    check_pairs,
    check_room,
    ended,
    is_change,
    rule_item,
    rule_spec,
)
from headgate.rules.settings import PAIRED, RuleSpec, with_limit_units

APPLY = "apply"
"""The action."""
MAX_ADVICE = 50
MAX_ADVISED = 200
"""Rules that are compared with the current ones, for advice: thousands come from a program."""
MAX_NAMED = 5
NEVER = "never"
UNSET = "unset"
"""Settings that an entry removes from what is beneath: TOML has no null."""
_SECTION_OF = {kind: section for section, kind in SECTIONS.items()}
_NO_ENTRY = (AttributeError, KeyError, TypeError, ValueError)
"""Of a value that another version has put."""


class Room(Protocol):
    """Validates a file's entries of one kind, in the same way as single requests."""

    def drafted(
        self, held: LogState, entry: FileEntry, asked: ChangeAuthor
    ) -> tuple[Change, Sequence[Advice]]:
        """As it would be kept. `held` has what the file sets before this entry, too.
        InvalidSettings with all its faults, each at `entry.place`."""
        ...

    def check(self, held: LogState, changes: Sequence[Edit], asked: ChangeAuthor) -> Sequence[Edit]:
        """Validates all changes of the file together, of all kinds; returns what has to change
        along with them. `held`: the state before."""
        ...


# --- written -------------------------------------------------------------------------------


class Written(NamedTuple):
    document: dict[str, list[dict[str, Any]]]
    """As changes/file_format.parse_file takes it."""
    left_out: list[str]
    """What a file cannot hold, in words."""


def written_file(items: Iterable[Change]) -> Written:
    """What is set, by kind and then by id."""
    found = Written({section: [] for section in SECTIONS}, [])
    by_kind: dict[str, list[str]] = {}
    for item in sorted(items, key=lambda one: one.id):
        if item.value is None:
            continue
        try:
            entry = written_entry(item)
            section = _SECTION_OF[ChangeKind(item.kind)]
        except _NO_ENTRY:
            by_kind.setdefault(str(item.kind), []).append(item.id)
            continue
        if item.kind == ChangeKind.POLICY and entry.keys() == {"database", "reach"}:
            continue  # It only keeps which budgets lie on the fleet's.
        if item.reach == HERE:
            del entry["reach"]  # It is what a file of the agent's own log means without a word.
        found.document[section].append(entry)
    found.left_out.extend(_left_out(kind, ids) for kind, ids in by_kind.items())
    return found


def _left_out(kind: str, ids: Sequence[str]) -> str:
    named = ", ".join(ids[:MAX_NAMED])
    more = f" and {len(ids) - MAX_NAMED:,} more" if len(ids) > MAX_NAMED else ""
    return f"not exported: {kind} {named}{more}. Files have no section for it; it stays as it is"


def written_entry(item: Change) -> dict[str, Any]:
    """As a file has it, without secrets: who set it when is for the history. One of _NO_ENTRY
    where no file can have it."""
    said = dict(item.value or {})
    starts = {STARTS: said.pop(STARTS)} if STARTS in said else {}
    return {**_written(item, said), **starts}


def _written(item: Change, said: dict[str, Any]) -> dict[str, Any]:
    reach = {"reach": str(item.reach)}
    if item.kind == ChangeKind.METRIC:
        names = _names(item)
        return {**names, **reach, **_metric(names["metric"], said)}
    if item.kind in (ChangeKind.SKIP, ChangeKind.HANDOVER):
        ends = {"expires_at": iso(said["until_wall_s"])}
        member = {"member": said["member"]} if item.kind == ChangeKind.HANDOVER else {}
        return {**_names(item), **reach, **member, **ends, "reason": said["reason"]}
    if item.kind == ChangeKind.POLICY:
        return {**_names(item), **reach, **_policy(said)}
    if item.kind == ChangeKind.PEER:
        return {**_names(item), **reach, "url": said["url"], "database": said["database"]}
    if item.kind == ChangeKind.BUDGET and item.reach == HERE:
        return {**_names(item), **reach, **_over_file(said)}
    if item.kind == ChangeKind.BUDGET and is_change_of_file(said):
        partly = {"whole": False} if "settings" in said else {}
        return {"name": said["name"], **reach, **partly, **_over_file(said)}
    said = {key: one for key, one in said.items() if key not in BOOKKEEPING}
    if item.kind == ChangeKind.BUDGET:
        return {"name": said.pop("name"), **reach, **said}
    if item.kind == ChangeKind.RULE:
        return {"id": item.id, **reach, **with_limit_units(said)}
    raise ValueError(f"files have no section for {item.kind}")


def _names(item: Change) -> dict[str, str]:
    """As FileEntry.id has them, apart."""
    if item.kind in (ChangeKind.POLICY, ChangeKind.HANDOVER):
        (name,) = known_by(item.kind, item.reach)
        return {name: item.id.removesuffix(f"@{item.reach}")}
    if item.kind == ChangeKind.BUDGET:
        first, _, second = item.id.partition("/")
    elif item.kind == ChangeKind.METRIC:
        first, _, second = item.id.removesuffix(f"@{item.reach}").rpartition("/")
    else:
        first, _, second = item.id.rpartition(" ")
    if not first or not second:
        raise ValueError(f"{item.id!r} is not a valid name of a {item.kind}")
    return dict(zip(known_by(item.kind, item.reach), (first, second), strict=True))


def _metric(metric: str, said: Mapping[str, Any]) -> dict[str, Any]:
    ends = {"expires_at": said.get("expires_at", NEVER)}
    if said.get("removed") is True:
        return {"removed": True, **ends}
    settings = redacted(with_units(metric, said["settings"]))
    unset = sorted(_unset(settings))
    return {
        **({"adds": True} if said.get("adds") is True else {}),
        **_without_none(settings),
        **({UNSET: unset} if unset else {}),
        **ends,
    }


def _unset(settings: Mapping[str, Any], under: str = "") -> Iterator[str]:
    for key, one in settings.items():
        if one is None:
            yield f"{under}{key}"
        elif isinstance(one, Mapping):
            yield from _unset(one, f"{under}{key}.")


def _without_none(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(one) if isinstance(one, Mapping) else one
        for key, one in settings.items()
        if one is not None
    }


def with_unset(settings: Mapping[str, Any], unset: Iterable[str]) -> dict[str, Any]:
    """With None for each of these; `options.table` is one within another."""
    found = dict(settings)
    for path in unset:
        key, dot, rest = path.partition(".")
        inner = found.get(key) if isinstance(found.get(key), Mapping) else {}
        found[key] = with_unset(inner or {}, [rest]) if dot else None
    return found


def _policy(said: Mapping[str, Any]) -> dict[str, Any]:
    settings = said["policy"]
    unset = sorted(key for key, one in settings.items() if one is None)
    return {
        **({} if said["mode_cap"] == "enforce" else {"mode_cap": said["mode_cap"]}),
        **({"order": list(said["order"])} if said["order"] else {}),
        **{key: one for key, one in settings.items() if one is not None},
        **({UNSET: unset} if unset else {}),
    }


def _over_file(said: Mapping[str, Any]) -> dict[str, Any]:
    if said.get("removed") is True:
        return {"removed": True}
    settings = {key: one for key, one in said["settings"].items() if key != "name"}
    unset = sorted(key for key, one in settings.items() if one is None)
    return {
        **({"whole": True} if said["whole"] else {}),
        **({"at": said["at"]} if "at" in said else {}),
        **{key: one for key, one in settings.items() if one is not None},
        **({UNSET: unset} if unset else {}),
    }


# --- applied -------------------------------------------------------------------------------


class _Standing:
    """What a log has, for the entries of a file.

    In a fleet's log a change is identified by its id: with another reach it is moved there. In an
    agent's own log, a change for the agent and one for its shard are two (`apart`)."""

    def __init__(self, held: LogState, file: ChangeFile, wall_s: float, *, apart: bool) -> None:
        self._held = held
        self._items = held.standing(wall_s)
        self._by_key = {item.key: name for name, item in held.items.items()} if apart else None
        self._claimed = {self._name(entry) for entry in file.entries}

    def _name(self, entry: FileEntry) -> ChangeName | None:
        """In `held`; None: it was never there."""
        if self._by_key is None:
            return entry.kind, entry.id
        return self._by_key.get(item_key(entry.kind, entry.id, entry.reach))

    def of(self, entry: FileEntry) -> Change | None:
        name = self._name(entry)
        return None if name is None else self._items.get(name)

    def before(self, entry: FileEntry) -> Change | None:
        """The same, or how it ended."""
        name = self._name(entry)
        return None if name is None else self._held.items.get(name)

    def new_name(self, entry: FileEntry, item: Change) -> ChangeName:
        """Under which the rooms find it from now on."""
        name = self._name(entry)
        if name is not None:
            return name
        return apart_from_others(item) if name_of(item) in self._held.items else name_of(item)

    def others(self) -> list[Change]:
        """Those that the file could name, and does not. What switches budgets off, or announces a
        switchover, ends only where an operator says so."""
        kinds = _SECTION_OF.keys() - {ChangeKind.POLICY, ChangeKind.HANDOVER}
        found = ((name, item) for name, item in self._items.items() if item.kind in kinds)
        return [item for name, item in found if name not in self._claimed]


@dataclass(slots=True)
class _FilesRead:
    """What was found so far."""

    items: Overlay[ChangeName, Change]
    """The resulting change."""
    held: LogState
    changes: list[Edit] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)
    strange: set[ChangeKind] = field(default_factory=set)
    """Kinds that this log has no room for."""


@dataclass(frozen=True, slots=True)
class ApplyDrafts:
    rooms: Mapping[str, Room]
    reach_fault: Callable[[Reach], str]
    """Why this log has nothing with that reach; empty: it has."""
    apart: bool = False
    """See _Standing."""

    def apply(self, held: LogState, file: ChangeFile, asked: ChangeAuthor, *, prune: bool) -> Draft:
        """As the file says; what it does not name stays, unless `prune`."""
        standing = _Standing(held, file, asked.wall_s, apart=self.apart)
        items = held.items.copy()
        found = _FilesRead(items, replace(held, items=items), faults=list(file.faults))
        for entry in file.entries:
            self._read(standing, entry, asked, found)
            if len(found.faults) > MAX_FAULTS:
                break
        if found.faults:
            raise InvalidSettings(found.faults[:MAX_FAULTS])
        others = standing.others()
        if prune:
            found.changes += [Edit(item, ended(item, asked)) for item in others]
        for room in dict.fromkeys(self.rooms.values()):
            try:
                found.changes += room.check(held, found.changes, asked)
            except InvalidSettings as error:
                found.faults += error.faults
        if found.faults:
            raise InvalidSettings(found.faults[:MAX_FAULTS])
        advice = [*found.advice[:MAX_ADVICE], *_told(others, prune=prune)]
        advice += [] if found.changes else [UNCHANGED]
        return Draft(APPLY, found.changes, tuple(advice), shown=audit_values(found.changes))

    def _read(
        self, standing: _Standing, entry: FileEntry, asked: ChangeAuthor, found: _FilesRead
    ) -> None:
        now = standing.of(entry)
        if now is not None and _is_written_as(now, _as_written(entry)):
            return
        if _is_over(entry, asked.wall_s):
            found.advice.append(_over(entry))
            if now is not None:
                found.changes.append(Edit(now, ended(now, asked)))
            return
        try:
            item, advice = self._drafted(entry, asked, found)
        except InvalidSettings as error:
            found.faults += error.faults
            return
        if now is None and item.value is None:
            return  # It adds nothing to the settings file.
        if now is not None and item.value is not None and _is_written_as(now, written_entry(item)):
            return
        change = Edit(standing.before(entry), item)
        if is_change(change):
            found.items[standing.new_name(entry, item)] = item
            found.changes.append(change)
            found.advice += advice

    def _drafted(
        self, entry: FileEntry, asked: ChangeAuthor, found: _FilesRead
    ) -> tuple[Change, Sequence[Advice]]:
        if entry.kind not in self.rooms:
            faults = [] if entry.kind in found.strange else [_strange(entry)]
            found.strange.add(entry.kind)
            raise InvalidSettings(faults)
        if why := self.reach_fault(entry.reach):
            raise InvalidSettings([Fault(f"{entry.place}.reach", why)])
        room = self.rooms[entry.kind]
        if STARTS not in entry.raw or entry.kind is ChangeKind.RULE:  # A rule's schedule has it.
            return room.drafted(found.held, entry, asked)
        faults = list[Fault]()
        start_s, entry = _without_start(entry, faults)
        try:
            item, advice = room.drafted(found.held, entry, asked)
        except InvalidSettings as error:
            raise InvalidSettings([*faults, *error.faults]) from None
        if faults:
            raise InvalidSettings(faults)
        if item.value is not None:
            item = replace(item, value={**item.value, STARTS: iso(start_s)})
        return item, advice


def _without_start(entry: FileEntry, faults: list[Fault]) -> tuple[float, FileEntry]:
    """When it starts, and the rest, with `for` counted from then: what rooms know."""
    raw = {key: one for key, one in entry.raw.items() if key != STARTS}
    try:
        start_s = parse_date_time(entry.raw[STARTS])
    except ValueError as error:
        faults.append(Fault(f"{entry.place}.{STARTS}", str(error)))
        return 0.0, replace(entry, raw=raw)
    if raw.get("expires_at") is None and raw.get("for") is not None:
        with suppress(ValueError):  # Its room says what is wrong with it.
            raw["expires_at"] = iso(round(start_s + parse_for(raw["for"])))
            del raw["for"]
    return start_s, replace(entry, raw=raw)


def _is_written_as(item: Change, entry: Mapping[str, Any]) -> bool:
    with suppress(*_NO_ENTRY):
        return written_entry(item) == entry
    return False


def _as_written(entry: FileEntry) -> dict[str, Any]:
    pair = {"pair": entry.pair} if entry.pair else {}
    return {**entry.raw, "reach": str(entry.reach), **pair}


def _is_over(entry: FileEntry, wall_s: float) -> bool:
    try:
        given = entry.raw.get("expires_at")
        return given is not None and parse_date_time(given) <= wall_s
    except ValueError:
        return False  # Its room says what is wrong with it.


def _over(entry: FileEntry) -> Advice:
    message = f"{entry.id} ended at {entry.raw['expires_at']}: it is left out"
    return Advice(Severity.WARNING, "over", f"{entry.place}.expires_at", message)


def _strange(entry: FileEntry) -> Fault:
    section = _SECTION_OF[entry.kind]
    return Fault(section, f"this agent cannot validate [[{section}]] for this log")


def _told(others: Sequence[Change], *, prune: bool) -> Iterator[Advice]:
    if others and not prune:
        named = ", ".join(sorted(item.id for item in others)[:MAX_NAMED])
        more = f" and {len(others) - MAX_NAMED:,} more" if len(others) > MAX_NAMED else ""
        message = (
            f"{len(others):,} that the file does not name stay as they are ({named}{more}); "
            "--prune removes them"
        )
        yield Advice(Severity.WARNING, "not-in-file", "file", message)


# --- rules, and budgets of a fleet -----------------------------------------------------------


class RuleRoom:
    """Rules of either log."""

    def __init__(self, rules: RuleDrafts) -> None:
        self._rules = rules
        self._held: LogState | None = None
        self._others: Neighbours | None = None
        self._advised = 0

    def drafted(
        self, held: LogState, entry: FileEntry, asked: ChangeAuthor
    ) -> tuple[Change, Sequence[Advice]]:
        now = self._standing(held, entry, asked.wall_s)
        spec = self._spec(entry, now, asked)
        self._rules.check_lock_out(spec, entry.reach, now, place=entry.place)
        item = rule_item(spec, entry.reach, asked)
        return item, self._advice(held, spec, entry.reach, asked)

    def check(self, held: LogState, changes: Sequence[Edit], asked: ChangeAuthor) -> Sequence[Edit]:
        check_pairs(held, changes, asked.wall_s)
        check_room(held, changes, self._rules.limits, asked.wall_s)
        return ()

    def _standing(self, held: LogState, entry: FileEntry, wall_s: float) -> Change | None:
        if self._rules.here is None:  # Of a fleet: it may have had another reach.
            return held.standing_rule(entry.id, wall_s)
        found = known(held, ChangeKind.RULE, entry.id, entry.reach)
        return found if found is not None and held.stands(found, wall_s) else None

    def _spec(self, entry: FileEntry, now: Change | None, asked: ChangeAuthor) -> RuleSpec:
        raw = dict(entry.raw)
        before = None if now is None else rule_spec(now)
        if before is not None and not any(key in raw for key in PAIRED):
            raw["expires_at"] = before.rule.expires_at  # Who does not say leaves it as it is.
        spec = self._rules.parsed(raw, entry.id, asked, entry.reach, place=entry.place)
        if before is not None:
            spec = self._rules.in_place_of(before, spec)
        return replace(spec, pair=entry.pair) if entry.pair else spec

    def _advice(
        self, held: LogState, spec: RuleSpec, reach: Reach, asked: ChangeAuthor
    ) -> Sequence[Advice]:
        if held is not self._held:  # Another file, or the same file after a change of the log.
            self._held, self._others, self._advised = held, None, 0
        self._advised += 1
        if self._advised > MAX_ADVISED:
            return ()
        if self._rules.here is not None and reach == HERE:
            return self._rules.here.advice(spec)
        self._others = self._others or Neighbours(held, asked.wall_s)
        return list(self._rules.advice(self._others, spec, reach, asked))


class FleetBudgetRoom:
    """Budgets that are set for a fleet, each whole, and the switch for all of them."""

    def drafted(
        self, held: LogState, entry: FileEntry, asked: ChangeAuthor
    ) -> tuple[Change, Sequence[Advice]]:
        if entry.kind is ChangeKind.POLICY:
            return judged_cap(entry.raw, entry.reach, asked, place=entry.place), ()
        return judged(entry.raw, entry.reach, asked, place=entry.place)

    def check(self, held: LogState, changes: Sequence[Edit], asked: ChangeAuthor) -> Sequence[Edit]:
        check_budget_room(held, changes, asked.wall_s)
        return ()
