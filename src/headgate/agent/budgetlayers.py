"""The policy's document in two layers: the settings file's, and what was changed on top. Pure.

base + Changes ──laid_over──► document          base, document ──changes_on──► Changes

Of a budget that the file has, only the settings that differ are kept: what the file says of the
others goes on counting, also after the file has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from headgate.traffic.policy import Mode

Document = Mapping[str, Any]
"""As parse.written makes it: {"policy": {…}, "budgets": [{"name": …}, …]}."""
Raw = Mapping[str, Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})
EMPTY: Document = MappingProxyType({"budgets": []})


@dataclass(frozen=True, slots=True)
class BudgetChange:
    settings: Raw
    """Those that differ from the file's; None takes one out."""
    whole: bool = False
    """The file has no such budget: these are all of it."""


@dataclass(frozen=True, slots=True)
class Changes:
    policy: Raw = field(default_factory=lambda: NOTHING)
    """Of [policy], likewise."""
    budgets: Mapping[str, BudgetChange | None] = field(default_factory=lambda: NOTHING)
    """None: removed, though the file has it."""
    order: tuple[str, ...] = ()
    """Of all budgets, where it is not the file's followed by the new ones."""
    mode_cap: Mode = Mode.ENFORCE
    """No budget goes beyond this mode: the switch for all of them."""

    @property
    def any(self) -> bool:
        return bool(self.policy or self.budgets or self.order or self.mode_cap is not Mode.ENFORCE)


NO_CHANGES = Changes()


def laid_over(base: Document, changes: Changes) -> dict[str, Any]:
    budgets: dict[str, dict[str, Any]] = {}
    for name, raw in budgets_of(base).items():
        change = changes.budgets.get(name, BudgetChange(NOTHING))
        if change is not None:
            budgets[name] = {**(change.settings if change.whole else merged(raw, change.settings))}
    for name, change in changes.budgets.items():
        # What was a change of a budget that the file no longer has says too little to be one.
        if change is not None and change.whole and name not in budgets:
            budgets[name] = {**change.settings}
    policy = merged(base.get("policy", NOTHING), changes.policy)
    head = {"policy": policy} if policy else {}
    return {**head, "budgets": [budgets[name] for name in _ordered(budgets, changes.order)]}


def changes_on(base: Document, wanted: Document, mode_cap: Mode = Mode.ENFORCE) -> Changes:
    """What has to lie on `base` so that it reads as `wanted`."""
    file, found = budgets_of(base), budgets_of(wanted)
    budgets: dict[str, BudgetChange | None] = dict.fromkeys(
        name for name in file if name not in found
    )
    for name, raw in found.items():
        if name not in file:
            budgets[name] = BudgetChange(raw, whole=True)
        elif differing := differences(file[name], raw):
            budgets[name] = BudgetChange(differing)
    natural = [*(name for name in file if name in found), *(n for n in found if n not in file)]
    return Changes(
        policy=differences(base.get("policy", NOTHING), wanted.get("policy", NOTHING)),
        budgets=budgets,
        order=() if natural == list(found) else tuple(found),
        mode_cap=mode_cap,
    )


def budgets_of(document: Document) -> dict[str, Raw]:
    return {raw["name"]: raw for raw in document.get("budgets", ())}


def merged(raw: Raw, change: Raw) -> dict[str, Any]:
    return {key: value for key, value in {**raw, **change}.items() if value is not None}


def differences(before: Raw, after: Raw) -> dict[str, Any]:
    """What merges `before` into `after`."""
    gone = {key: None for key in before if key not in after}
    return {**gone, **{k: v for k, v in after.items() if k not in before or before[k] != v}}


def _ordered(names: Iterable[str], order: tuple[str, ...]) -> list[str]:
    """As `order` says; what it does not know follows."""
    places = {name: at for at, name in enumerate(order)}
    return sorted(names, key=lambda name: places.get(name, len(places)))


# --- as they are kept ------------------------------------------------------------------------


def written_changes(changes: Changes) -> dict[str, Any]:
    return {
        "policy": dict(changes.policy),
        "budgets": {
            name: None if one is None else {"settings": dict(one.settings), "whole": one.whole}
            for name, one in changes.budgets.items()
        },
        "order": list(changes.order),
        "mode_cap": changes.mode_cap.value,
    }


def read_changes(raw: Mapping[str, Any]) -> Changes:
    """What written_changes wrote; raises KeyError, TypeError or ValueError for anything else."""
    return Changes(
        policy=dict(raw["policy"]),
        budgets={
            name: None if one is None else BudgetChange(dict(one["settings"]), bool(one["whole"]))
            for name, one in raw["budgets"].items()
        },
        order=tuple(raw["order"]),
        mode_cap=Mode(raw["mode_cap"]),
    )


# --- compared ---------------------------------------------------------------------------------


def changed_budgets(before: Document, after: Document) -> tuple[dict[str, Raw], dict[str, Raw]]:
    """Those that differ, as they were and as they are."""
    old, new = budgets_of(before), budgets_of(after)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return {n: old[n] for n in names if n in old}, {n: new[n] for n in names if n in new}
