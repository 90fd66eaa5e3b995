"""A database's traffic policy as it stands, and what a change makes of it. Values, and words."""

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
"""Told in full in one audit entry; of more, the names."""
MAX_TOLD = 5
"""Differences in the line that sums a revision up."""
MODES = (Mode.OFF, Mode.WARN, Mode.ENFORCE)
"""From the mildest on."""
RESERVED_NAMES = frozenset({"violations", "state", "explain", "lint", "replay"})
"""Of the API's own routes: such a budget could not be looked at."""
ANOTHER = "it could not be looked at; give it another name"
NONE_OF_FLEET: Mapping[str, FleetBudget] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Edition:
    """The policy of a database, as a whole."""

    revision: int
    """Of the agent's own log, that changed it last; 0: nothing was ever changed here."""
    document: Document
    policy: Policy
    file: Document = field(default_factory=lambda: EMPTY)
    """What the settings file says of it."""
    changes: Changes = NO_CHANGES
    """What was changed here, on top of the file and the fleet."""
    advice: tuple[Advice, ...] = ()
    by_health: bool = False
    """Some budget that takes part bites under pressure alone (R147)."""
    ending: tuple[Budget, ...] = ()
    """Those that end by themselves: looked at each second, where there may be thousands."""
    own_role: str = ""
    """Whom the agent measures as: always exempt. A budget that refused the probes would make the
    database unhealthy, and one that bites when it is would never let go."""
    fleet: Mapping[str, FleetBudget] = field(default_factory=lambda: NONE_OF_FLEET)
    """Those that the fleet has set, by name: they lie between the file and the changes."""
    left_out: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Of the fleet's, by id: why one cannot stand with the rest."""
    over: frozenset[str] = frozenset()
    """Of those that end by what was changed here: their time is used up, whatever the wall clock
    says (changetime.py)."""

    @property
    def layers(self) -> Layers:
        return Layers(self.file, tuple(self.fleet.values()), self.changes)

    def budget(self, name: str) -> Budget | None:
        return next((budget for budget in self.policy.budgets if budget.name == name), None)

    def origin(self, name: str) -> str:
        """`file`, `fleet`, `shard`, `changed` (here, on top of one of them) or `runtime`."""
        change = self.changes.budgets.get(name)
        if change is not None:
            return "runtime" if change.whole else "changed"
        if name not in self.fleet:
            return "file"
        return "shard" if self.fleet[name].of_shard else "fleet"

    def of_shard(self, name: str) -> FleetBudget | None:
        """The one that counts, where the agents of a shard share it: who changes that budget
        changes it for all of them."""
        found = self.fleet.get(name)
        is_so = found is not None and found.of_shard and name not in self.changes.budgets
        return found if is_so else None

    def built_on(self, name: str) -> int:
        """The revision that a change of that budget is built on."""
        shared = self.of_shard(name)
        return self.revision if shared is None else shared.n

    def ends_at_agent(self, name: str) -> bool:
        """Its end is of what was changed at run time, and that is what ends then."""
        change = self.changes.budgets.get(name)
        if change is None:
            return False
        return change.whole or (name in self.fleet and "expires_at" in change.settings)

    def has_ended(self, budget: Budget, wall_ms: int) -> bool:
        return budget.expired(wall_ms) or (
            budget.expires_at_ms is not None and budget.name in self.over
        )

    def ended(self, wall_ms: int) -> set[str]:
        return {budget.name for budget in self.ending if self.has_ended(budget, wall_ms)}

    def in_force(self, wall_ms: int) -> Policy:
        """As servers are told: no budget beyond the cap, none that has expired."""
        return self.as_published(self.policy, wall_ms)

    def as_published(self, policy: Policy, wall_ms: int) -> Policy:
        budgets = (b for b in policy.budgets if not self.has_ended(b, wall_ms))
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
    """Why what was changed on top cannot; empty where it can."""


def fitting(layers: Layers, judge: Callable[[Layers], Edition]) -> Fit:
    """The file stands in any case; what was changed on top, if it can; of the fleet's each that
    can with the rest. `judge` raises InvalidSettings for what cannot."""
    try:
        return Fit(judge(layers), layers)
    except InvalidSettings:
        fits, refused = replace(layers, fleet=()), ""
    try:
        judge(fits)
    except InvalidSettings as error:
        # The file, or another version of this program, has made them impossible together: the
        # file stands alone, but for the switch.
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
            f"{names[-1]} is left out for it. Take one out, or name {role} among them"
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
