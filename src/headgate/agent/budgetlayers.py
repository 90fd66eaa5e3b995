"""The policy's document in layers: the settings file's, the fleet's, what was changed on top. Pure.

what is said of budgets ──core/layers_at──► FleetBudget…, BudgetHere…, for a place
file + fleet ──beneath──► base          base + Changes ──laid_over──► document
                                        base, document ──changes_on──► Changes

Of a budget that the base has, only the settings that differ are kept: what it says of the others
goes on counting, also after the base has changed. What has a reach beyond this agent is a whole
budget, and hides what lies beneath.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from headgate.core.reach import HERE, Place, Reach
from headgate.traffic.policy import Mode

Document = Mapping[str, Any]
"""As parse.written makes it: {"policy": {…}, "budgets": [{"name": …}, …]}."""
Raw = Mapping[str, Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})
EMPTY: Document = MappingProxyType({"budgets": []})


@dataclass(frozen=True, slots=True)
class FleetBudget:
    """A budget of the fleet that applies to a database."""

    name: str
    raw: Raw
    """As `written`."""
    item_id: str
    reach: Reach
    n: int
    """The fleet's revision that set it."""
    set_by: str

    def applies_to(self, place: Place) -> bool:
        return self.reach.meets(place)


@dataclass(frozen=True, slots=True)
class BudgetChange:
    settings: Raw
    """Settings that differ from the file's; None removes one."""
    whole: bool = False
    """The file has no such budget: these are all of it."""


@dataclass(frozen=True, slots=True)
class BudgetHere:
    """What was changed of one at this agent."""

    name: str
    item_id: str
    n: int
    """The revision of the agent's own log that changed it."""
    database: str
    change: BudgetChange | None
    """None: removed."""
    at: int = 0
    """Its position among those that were added here."""

    @property
    def reach(self) -> Reach:
        return HERE

    def applies_to(self, place: Place) -> bool:
        return self.database == place.database


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
    of_fleet: frozenset[str] = frozenset()
    """Those of `budgets` that change, or remove, one of the fleet's: they wait for it where it is
    not known yet, as after a start."""

    @property
    def any(self) -> bool:
        return bool(self.policy or self.budgets or self.order or self.mode_cap is not Mode.ENFORCE)


NO_CHANGES = Changes()


@dataclass(frozen=True, slots=True)
class Layers:
    file: Document
    fleet: tuple[FleetBudget, ...] = ()
    changes: Changes = NO_CHANGES

    @property
    def base(self) -> Document:
        return beneath(self.file, self.fleet)

    @property
    def document(self) -> Document:
        return laid_over(self.base, self.changes)

    def changes_to(self, document: Document) -> Changes:
        """What makes that of it."""
        names = {one.name for one in self.fleet}
        cap, before = self.changes.mode_cap, self.changes
        return changes_on(self.base, document, cap, fleet=names, before=before)


def beneath(file: Document, fleet: Iterable[FleetBudget]) -> Document:
    """The file's with the fleet's on top, whole: of a name that both have, the fleet's counts."""
    budgets = budgets_of(file)
    for one in fleet:
        budgets[one.name] = one.raw
    return {**file, "budgets": list(budgets.values())}


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


def changes_on(
    base: Document,
    wanted: Document,
    mode_cap: Mode = Mode.ENFORCE,
    *,
    fleet: Collection[str] = (),
    before: Changes | None = None,
) -> Changes:
    """What has to lie on `base` so that it reads as `wanted`. `fleet`: which of the base's are
    the fleet's; `before`: changes of those that are not known now stay, and wait."""
    under, found = budgets_of(base), budgets_of(wanted)
    known = before.budgets if before is not None else NOTHING
    budgets: dict[str, BudgetChange | None] = dict.fromkeys(
        name for name in under if name not in found
    )
    for name, raw in found.items():
        if name not in under:
            budgets[name] = BudgetChange(raw, whole=True)
        elif change := _on_top(under[name], raw, known.get(name) if name in fleet else None):
            budgets[name] = change
    waiting = _waiting(before, under, found) if before is not None else {}
    natural = [*(name for name in under if name in found), *(n for n in found if n not in under)]
    order = () if natural == list(found) else tuple(found)
    return Changes(
        policy=differences(base.get("policy", NOTHING), wanted.get("policy", NOTHING)),
        budgets={**waiting, **budgets},
        order=before.order if waiting and before is not None else order,
        mode_cap=mode_cap,
        of_fleet=frozenset({name for name in fleet if name in budgets} | waiting.keys()),
    )


def _on_top(under: Raw, raw: Raw, before: BudgetChange | None) -> BudgetChange | None:
    """`before`: what lay on one of the fleet's. It was said, and goes on counting though the
    fleet says some of it, too, or takes its own back."""
    if raw == under:
        return None
    if before is not None and before.whole:
        return BudgetChange(raw, whole=True)
    said = {k: v for k, v in before.settings.items() if raw.get(k) == v} if before else {}
    return BudgetChange({**said, **differences(under, raw)})


def _waiting(
    before: Changes, base: Mapping[str, Raw], found: Mapping[str, Raw]
) -> dict[str, BudgetChange | None]:
    names = before.of_fleet - base.keys() - found.keys()
    return {name: change for name, change in before.budgets.items() if name in names}


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


# --- compared ---------------------------------------------------------------------------------


def changed_budgets(before: Document, after: Document) -> tuple[dict[str, Raw], dict[str, Raw]]:
    """Those that differ, as they were and as they are."""
    old, new = budgets_of(before), budgets_of(after)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return {n: old[n] for n in names if n in old}, {n: new[n] for n in names if n in new}
