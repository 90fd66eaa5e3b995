"""A database's current traffic policy, and what a change does to it. Values, and words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from headgate.agent.budgetlayers import (
    EMPTY,
    NO_CHANGES,
    NOTHING,
    Changes,
    Document,
    FleetBudget,
    Layers,
    changed_budgets,
)
from headgate.core.lint import Advice, Severity
from headgate.errors import InvalidSettings
from headgate.traffic.difference import Change as Difference
from headgate.traffic.difference import differences
from headgate.traffic.policy import MAX_EXEMPT, Budget, Mode, Policy

MAX_AUDIT_BUDGETS = 50
"""Shown in full in one audit entry; for more changes, only the names."""
MAX_TOLD = 5
"""Differences in the line that sums a revision up."""
MODES = (Mode.OFF, Mode.WARN, Mode.ENFORCE)
"""From the mildest on."""
RESERVED_NAMES = frozenset(
    {"history", "rollback", "violations", "state", "explain", "lint", "replay"}
)
"""Words of the API's own routes: such a budget could not be shown."""
ANOTHER = "the API could not show such a budget; choose another name"
NONE_OF_FLEET: Mapping[str, FleetBudget] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Edition:
    """The policy of a database, as a whole."""

    revision: int
    """Revision of the agent's own log that last changed it; 0: nothing was ever changed here."""
    document: Document
    policy: Policy
    file: Document = field(default_factory=lambda: EMPTY)
    """What the settings file has."""
    changes: Changes = NO_CHANGES
    """What was changed here, on top of the file and the fleet."""
    advice: tuple[Advice, ...] = ()
    by_health: bool = False
    """A budget that is not off applies only under pressure."""
    ending: tuple[Budget, ...] = ()
    """Budgets that expire: looked at each second, where there may be thousands."""
    own_role: str = ""
    """The agent's database user: always exempt. A budget that blocked the probes would make the
    database unhealthy, and one that applies when it is unhealthy would never end."""
    fleet: Mapping[str, FleetBudget] = field(default_factory=lambda: NONE_OF_FLEET)
    """Budgets of the fleet, by name: between the file and the changes."""
    left_out: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Budgets of the fleet, by id: why one is not valid together with the rest."""

    @property
    def layers(self) -> Layers:
        return Layers(self.file, tuple(self.fleet.values()), self.changes)

    def budget(self, name: str) -> Budget | None:
        return next((budget for budget in self.policy.budgets if budget.name == name), None)

    def origin(self, name: str) -> str:
        """`file`, `fleet`, `changed` (at run time, on top of either) or `runtime`."""
        change = self.changes.budgets.get(name)
        if change is None:
            return "fleet" if name in self.fleet else "file"
        return "runtime" if change.whole else "changed"

    def ends_at_agent(self, name: str) -> bool:
        """Its end is of what was changed at run time, and that is what ends then."""
        change = self.changes.budgets.get(name)
        if change is None:
            return False
        return change.whole or (name in self.fleet and "expires_at" in change.settings)

    def in_force(self, wall_ms: int) -> Policy:
        """As published to servers: no budget beyond the cap, none that has expired."""
        return self.as_published(self.policy, wall_ms)

    def as_published(self, policy: Policy, wall_ms: int) -> Policy:
        budgets = (b for b in policy.budgets if not b.expired(wall_ms))
        return replace(
            exempting(policy, self.own_role),
            budgets=tuple(self._capped(budget) for budget in budgets),
        )

    def _capped(self, budget: Budget) -> Budget:
        mode = capped(budget.mode, self.changes.mode_cap)
        return budget if mode is budget.mode else replace(budget, mode=mode)


class Fit(NamedTuple):
    """What can stand of all layers."""

    edition: Edition
    layers: Layers
    refused: str = ""
    """Why the changes on top are not valid; empty if they are."""


def fitting(layers: Layers, judge: Callable[[Layers], Edition]) -> Fit:
    """The file counts in any case; the changes on top, if they are valid; of the fleet's budgets
    each that is valid with the rest. `judge` raises InvalidSettings for what is not."""
    try:
        return Fit(judge(layers), layers)
    except InvalidSettings:
        fits, refused = replace(layers, fleet=()), ""
    try:
        judge(fits)
    except InvalidSettings as error:
        # The file, or another version of this program, has made them invalid together: the file
        # counts alone, except for the switch.
        refused = str(error)
        fits = replace(fits, changes=Changes(mode_cap=layers.changes.mode_cap))
    left_out = {}
    for one in layers.fleet:
        more = replace(fits, fleet=(*fits.fleet, one))
        try:
            judge(more)
            fits = more
        except InvalidSettings as error:
            left_out[one.item_id] = str(error)
    return Fit(replace(judge(fits), left_out=left_out), fits, refused)


def exempting(policy: Policy, role: str) -> Policy:
    """That role first: where there are as many as there may be, the last one goes."""
    if not role or role in policy.exempt_usernames:
        return policy
    return replace(policy, exempt_usernames=(role, *policy.exempt_usernames)[:MAX_EXEMPT])


def capped(mode: Mode, cap: Mode) -> Mode:
    return min(mode, cap, key=MODES.index)


@dataclass(frozen=True, slots=True)
class Change:
    """What became of a change, or would."""

    before: Edition
    after: Edition
    dry_run: bool

    @property
    def changed(self) -> bool:
        return (self.before.document, self.before.changes) != (
            self.after.document,
            self.after.changes,
        )

    @property
    def differences(self) -> Sequence[Difference]:
        if self.before.policy is self.after.policy:
            return ()
        return differences(self.before.policy, self.after.policy)


def no_room(policy: Policy, role: str) -> Iterator[Advice]:
    names = policy.exempt_usernames
    if role and role not in names and len(names) >= MAX_EXEMPT:
        message = (
            f"has {len(names)} names, and the agent's own role, {role}, is always exempt: "
            f"{names[-1]} is left out for it. Remove one, or add {role} to them"
        )
        yield Advice(Severity.WARNING, "exempt-full", "policy.exempt_usernames", message)


def summary(change: Change) -> str:
    """What changed, in a line: `etl: mode warn → enforce; web: new, warn, 2 rules`."""
    told = [one.line for one in change.differences]
    if len(told) > MAX_TOLD:
        told = [*told[:MAX_TOLD], f"and {len(told) - MAX_TOLD:,} more"]
    cap = change.after.changes.mode_cap
    if cap is not change.before.changes.mode_cap:
        lifted = "each budget by its own mode again"
        told.insert(0, lifted if cap is Mode.ENFORCE else f"no budget beyond {cap.value}")
    return "; ".join(told) or "as it was"


def audited(change: Change) -> tuple[dict[str, Any], dict[str, Any]]:
    """What changed, as it was and as it is; bounded, for the revision has it whole."""
    was, became = dict[str, Any](), dict[str, Any]()
    if change.before.document is not change.after.document:
        was, became = changed_budgets(change.before.document, change.after.document)
    told = []
    for edition, budgets in ((change.before, was), (change.after, became)):
        short = budgets if len(budgets) <= MAX_AUDIT_BUDGETS else sorted(budgets)[:1000]
        head = {"policy": edition.document["policy"]} if "policy" in edition.document else {}
        cap = {"mode_cap": edition.changes.mode_cap.value}
        told.append({**head, **cap, "budgets": short})
    return told[0], told[1]
