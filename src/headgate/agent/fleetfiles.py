"""A file of rules and budgets, as one change.   FleetFile + Holdings ──ApplyDrafts──► Draft

What the file says as it stands is not looked at any further: an export that is applied again
changes nothing, whatever else has changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.agent.fleetbudgetdrafts import check_budget_room, judged
from headgate.agent.fleetcommit import Draft
from headgate.agent.ruledrafts import (
    UNCHANGED,
    Asked,
    Neighbours,
    RuleDrafts,
    check_pairs,
    check_room,
    ended,
    is_change,
    rule_item,
    rule_spec,
)
from headgate.core.fleet import Item, ItemChange, ItemKind
from headgate.core.fleet_change import Holdings, ItemName, name_of
from headgate.core.fleet_files import MAX_FAULTS, FileEntry, FleetFile, written_entry
from headgate.core.lint import Advice, Severity
from headgate.core.rule_settings import PAIRED, RuleSpec
from headgate.core.rule_times import parse_date_time
from headgate.errors import Fault, InvalidSettings

MAX_ADVICE = 50
MAX_ADVISED = 200
"""Rules that are held against what stands, for advice: a file of thousands is a program's."""


@dataclass(slots=True)
class _Reading:
    """What was found so far."""

    others: Neighbours
    changes: list[ItemChange] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ApplyDrafts:
    rules: RuleDrafts

    def apply(self, held: Holdings, file: FleetFile, asked: Asked, *, prune: bool) -> Draft:
        """As the file says; what it does not name stays, unless `prune`."""
        standing = held.standing(asked.wall_s)
        found = _Reading(Neighbours(held, asked.wall_s))
        for entry in (*file.rules, *file.budgets):
            self._read(held, standing, entry, asked, found)
            if len(found.faults) > MAX_FAULTS:
                break
        if found.faults:
            raise InvalidSettings(found.faults)
        named = {(entry.kind, entry.id) for entry in (*file.rules, *file.budgets)}
        others = [item for name, item in standing.items() if name not in named]
        if prune:
            found.changes += [ItemChange(item, ended(item, asked)) for item in others]
        check_pairs(held, found.changes, asked.wall_s)
        check_room(held, found.changes, self.rules.limits, asked.wall_s)
        check_budget_room(held, found.changes, asked.wall_s)
        advice = [*found.advice[:MAX_ADVICE], *_told(others, prune=prune)]
        return Draft(
            "apply", found.changes, tuple(advice if found.changes else (*advice, UNCHANGED))
        )

    def _read(
        self,
        held: Holdings,
        standing: Mapping[ItemName, Item],
        entry: FileEntry,
        asked: Asked,
        found: _Reading,
    ) -> None:
        now = standing.get((entry.kind, entry.id))
        if now is not None and written_entry(now) == _as_written(entry):
            return
        if _is_over(entry, asked.wall_s):
            found.advice.append(_over(entry))
            if now is not None:
                found.changes.append(ItemChange(now, ended(now, asked)))
            return
        try:
            item, advice = self._judged(entry, now, asked, found)
        except InvalidSettings as error:
            found.faults += error.faults
            return
        change = ItemChange(now or held.items.get(name_of(item)), item)
        if is_change(change):
            found.changes.append(change)
            found.advice += advice

    def _judged(
        self, entry: FileEntry, now: Item | None, asked: Asked, found: _Reading
    ) -> tuple[Item, Sequence[Advice]]:
        if entry.kind is ItemKind.BUDGET:
            return judged(entry.raw, entry.reach, asked, place=entry.place)
        spec = self._spec(entry, now, asked)
        self.rules.check_lock_out(spec, entry.reach, now, place=entry.place)
        item = rule_item(spec, entry.reach, asked)
        if len(found.changes) > MAX_ADVISED:
            return item, ()
        return item, list(self.rules.advice(found.others, spec, entry.reach, asked))

    def _spec(self, entry: FileEntry, now: Item | None, asked: Asked) -> RuleSpec:
        raw = dict(entry.raw)
        before = None if now is None else rule_spec(now)
        if before is not None and not any(key in raw for key in PAIRED):
            raw["expires_at"] = before.rule.expires_at  # Who does not say leaves it as it is.
        spec = self.rules.parsed(raw, entry.id, asked, entry.reach, place=entry.place)
        if before is not None:
            spec = self.rules.in_place_of(before, spec)
        return replace(spec, pair=entry.pair) if entry.pair else spec


def _as_written(entry: FileEntry) -> dict[str, Any]:
    pair = {"pair": entry.pair} if entry.pair else {}
    return {**entry.raw, "reach": str(entry.reach), **pair}


def _is_over(entry: FileEntry, wall_s: float) -> bool:
    try:
        given = entry.raw.get("expires_at")
        return given is not None and parse_date_time(given) <= wall_s
    except ValueError:
        return False  # Told by whoever reads it.


def _over(entry: FileEntry) -> Advice:
    message = f"{entry.id} ended at {entry.raw['expires_at']}: it is left out"
    return Advice(Severity.WARNING, "over", f"{entry.place}.expires_at", message)


def _told(others: Sequence[Item], *, prune: bool) -> Iterator[Advice]:
    if others and not prune:
        named = ", ".join(sorted(item.id for item in others)[:5])
        more = f" and {len(others) - 5:,} more" if len(others) > 5 else ""
        message = (
            f"{len(others):,} that the file does not name stay as they are ({named}{more}); "
            "--prune takes them out"
        )
        yield Advice(Severity.WARNING, "not-in-file", "fleet", message)
