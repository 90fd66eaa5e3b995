"""A policy in layers: the settings file's, the fleet's, what was changed on top. Pure.

what is said of budgets ──changes/reach.layers_at──► FleetBudget…, BudgetHere…, for a place
file + fleet ──beneath──► base          base + PolicyChanges ──laid_over──► document ──► Edition
                                        base, document ──changes_on──► PolicyChanges
items of the own log ──read_budget, read_policy──► BudgetHere, PolicyChanges
items of now, PolicyChanges as wanted ──edits──► Edits ──► OwnBook

    budget  <database>/<name>  {"settings": {…}, "whole": true, "at": 3}, or {"removed": true}
    policy  <database>         {"policy": {…}, "order": […], "mode_cap": "warn", "of_fleet": […]}

Of a budget that the base has, only the settings that differ are kept: what it says of the others
goes on counting, also after the base has changed. What has a reach beyond this agent is a whole
budget, and hides what lies beneath; but for what a shard changes of its agents' settings files:

    budget  <name>@shard:<shard>  {"name": …, "settings": {…}, "whole": false}, or "removed": true

`at` orders the budgets that neither the settings file nor the
fleet has; where it is missing, the item's n does. An item that cannot be read, for a newer version
set it, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from headgate.base.advice import Advice, Severity
from headgate.budgets.difference import PolicyDifference
from headgate.budgets.difference import differences as policy_differences
from headgate.budgets.parse import parse_budget, written_budget
from headgate.budgets.policy import MAX_EXEMPT, Budget, Mode, Policy
from headgate.changes.model import Change, ChangeKind, Edit
from headgate.changes.reach import HERE, Place, Reach
from headgate.changes.state import Copies, is_change_of_file, said_by
from headgate.errors import Fault, InvalidSettings
from headgate.rules.drafts import ChangeAuthor, taken_out

Document = Mapping[str, Any]
"""As parse.written makes it: {"policy": {…}, "budgets": [{"name": …}, …]}."""
Raw = Mapping[str, Any]
NOTHING: Mapping[str, Any] = MappingProxyType({})
EMPTY: Document = MappingProxyType({"budgets": []})


@dataclass(frozen=True, slots=True)
class FleetBudget:
    """A budget of the fleet that applies to a database; or what its shard changed of one that the
    settings file has."""

    name: str
    raw: Raw | None
    """As `written`; None: the shard has removed it."""
    item_id: str
    reach: Reach
    n: int
    """The revision that set it, of the fleet's log or of the agent's own."""
    set_by: str
    of_shard: bool = False
    """In the agent's own log: the agents of its shard exchange it (exchange.py)."""
    whole: bool = True
    """Else `raw` has the settings that differ from what lies beneath; None takes one out."""

    def applies_to(self, place: Place) -> bool:
        return self.reach.meets(place)

    def over(self, under: Raw | None) -> Raw | None:
        """What it makes of a budget beneath; None: there is none then."""
        if self.whole or under is None or self.raw is None:
            return self.raw if self.whole else None
        return merged(under, self.raw)


@dataclass(frozen=True, slots=True)
class WideCap:
    """The switch for all budgets, where it was set for more than this agent."""

    reach: Reach
    mode: Mode
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
class PolicyChanges:
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


NO_CHANGES = PolicyChanges()


@dataclass(frozen=True, slots=True)
class Layers:
    file: Document
    fleet: tuple[FleetBudget, ...] = ()
    changes: PolicyChanges = NO_CHANGES

    @property
    def base(self) -> Document:
        return beneath(self.file, self.fleet)

    @property
    def document(self) -> Document:
        return laid_over(self.base, self.changes)

    def changes_to(self, document: Document) -> PolicyChanges:
        """What makes that of it."""
        names = {one.name for one in self.fleet}
        cap, before = self.changes.mode_cap, self.changes
        return changes_on(self.base, document, cap, fleet=names, before=before)


def beneath(file: Document, fleet: Iterable[FleetBudget]) -> Document:
    """The file's with the fleet's on top: of a name that both have, the fleet's counts."""
    budgets: dict[str, Raw | None] = {**budgets_of(file)}
    for one in fleet:
        budgets[one.name] = one.over(budgets.get(one.name))
    return {**file, "budgets": [raw for raw in budgets.values() if raw is not None]}


def stacked(alike: Iterable[FleetBudget]) -> FleetBudget:
    """Of one name, from the widest reach on: the last whole one, with what was changed of it."""
    first, *others = alike
    for one in others:
        raw = one.over(first.raw if first.whole else None)
        is_change = first.whole and not one.whole and raw is not None
        first = replace(one, raw=raw, whole=True) if is_change else one
    return first


def laid_over(base: Document, changes: PolicyChanges) -> dict[str, Any]:
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
    before: PolicyChanges | None = None,
) -> PolicyChanges:
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
    return PolicyChanges(
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
    before: PolicyChanges, base: Mapping[str, Raw], found: Mapping[str, Raw]
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


# --- editions: a policy as it is, and what a change makes of it -----------------------------------

MAX_AUDIT_BUDGETS = 50
"""Shown in full in one audit entry; of more, the names."""
MAX_TOLD = 5
"""Differences in the line that sums a revision up."""
MODES = (Mode.OFF, Mode.WARN, Mode.ENFORCE)
"""From the mildest on."""
RESERVED_NAMES = frozenset({"violations", "state", "explain", "lint", "replay"})
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
    changes: PolicyChanges = NO_CHANGES
    """What was changed here, on top of the file and the fleet."""
    advice: tuple[Advice, ...] = ()
    by_health: bool = False
    """Some budget applies only while the database is unhealthy."""
    ending: tuple[Budget, ...] = ()
    """Those that end automatically: looked at each second, where there may be thousands."""
    own_role: str = ""
    """Database user of the agent: always exempt. A budget that blocked the probes would make the
    database unhealthy, and one that applies while it is would never end."""
    fleet: Mapping[str, FleetBudget] = field(default_factory=lambda: NONE_OF_FLEET)
    """Budgets of the fleet, by name: between the file and the changes."""
    left_out: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Budgets of the fleet, by id: why one is not valid together with the rest."""
    over: frozenset[str] = frozenset()
    """Of those that end by what was changed here: their time is used up, whatever the wall clock
    says (changes/time.py)."""
    caps: tuple[WideCap, ...] = ()
    """The switches for all budgets that reach further than this agent."""

    @property
    def mode_cap(self) -> Mode:
        """No budget goes beyond it. Of several switches the mildest mode counts."""
        modes = [self.changes.mode_cap, *(cap.mode for cap in self.caps)]
        return min(modes, key=MODES.index)

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
        """As servers get it: no budget beyond the cap, none that has expired."""
        return self.as_published(self.policy, wall_ms)

    def as_published(self, policy: Policy, wall_ms: int) -> Policy:
        budgets = (b for b in policy.budgets if not self.has_ended(b, wall_ms))
        return replace(
            exempting(policy, self.own_role),
            budgets=tuple(self._capped(budget) for budget in budgets),
        )

    def _capped(self, budget: Budget) -> Budget:
        mode = capped(budget.mode, self.mode_cap)
        return budget if mode is budget.mode else replace(budget, mode=mode)


NOT_IN_FILE = "the settings file here has no budget {}, so the shard's change of it has no effect"


class Fit(NamedTuple):
    """What can stand of all layers."""

    edition: Edition
    layers: Layers
    rejected: str = ""
    """Why the changes on top are not valid; empty if they are."""


def fitting(layers: Layers, judge: Callable[[Layers], Edition]) -> Fit:
    """The file counts in any case; what was changed on top, if it is valid; of the fleet's each
    that is valid with the rest. `judge` raises InvalidSettings for what cannot."""
    known = budgets_of(layers.file)
    left_out = {
        one.item_id: NOT_IN_FILE.format(one.name)
        for one in layers.fleet
        if not one.whole and one.name not in known
    }
    layers = replace(layers, fleet=tuple(f for f in layers.fleet if f.item_id not in left_out))
    try:
        return Fit(replace(judge(layers), left_out=left_out), layers)
    except InvalidSettings:
        fits, rejected = replace(layers, fleet=()), ""
    try:
        judge(fits)
    except InvalidSettings as error:
        # The file, or another version of this program, has made them invalid together: the file
        # counts alone, except for the switch.
        rejected = str(error)
        fits = replace(fits, changes=PolicyChanges(mode_cap=layers.changes.mode_cap))
    for one in layers.fleet:
        more = replace(fits, fleet=(*fits.fleet, one))
        try:
            judge(more)
            fits = more
        except InvalidSettings as error:
            left_out[one.item_id] = str(error)
    return Fit(replace(judge(fits), left_out=left_out), fits, rejected)


def exempting(policy: Policy, role: str) -> Policy:
    """That role first: where there are as many as there may be, the last one goes."""
    if not role or role in policy.exempt_usernames:
        return policy
    return replace(policy, exempt_usernames=(role, *policy.exempt_usernames)[:MAX_EXEMPT])


def capped(mode: Mode, cap: Mode) -> Mode:
    return min(mode, cap, key=MODES.index)


class PolicyTarget(NamedTuple):
    """What a change is of: one budget, or the policy; at this agent, or for its shard."""

    name: str = ""
    reach: Reach = HERE

    def built_on(self, edition: Edition) -> int:
        """The revision that it is built on."""
        return edition.revision if self.reach == HERE else edition.built_on(self.name)


WHOLE_POLICY = PolicyTarget()


@dataclass(frozen=True, slots=True)
class EditionChange:
    """What became of a change, or would."""

    before: Edition
    after: Edition
    dry_run: bool
    of: PolicyTarget = WHOLE_POLICY
    n: int | None = None
    """The revision that made it; None: none did."""
    copies: Copies | None = None
    """Of a shard's: which of its agents have it."""

    @property
    def changed(self) -> bool:
        was, now = self.before, self.after
        is_shared = self.of.reach != HERE and was.fleet != now.fleet
        return is_shared or (was.document, was.changes) != (now.document, now.changes)

    @property
    def differences(self) -> Sequence[PolicyDifference]:
        if self.before.policy is self.after.policy:
            return ()
        return policy_differences(self.before.policy, self.after.policy)


def no_room(policy: Policy, role: str) -> Iterator[Advice]:
    names = policy.exempt_usernames
    if role and role not in names and len(names) >= MAX_EXEMPT:
        message = (
            f"has {len(names)} names, and the agent's own role, {role}, is always exempt: "
            f"{names[-1]} is left out for it. Remove one, or add {role} to them"
        )
        yield Advice(Severity.WARNING, "exempt-full", "policy.exempt_usernames", message)


def summary(change: EditionChange) -> str:
    """What changed, in a line: `etl: mode warn → enforce; web: new, warn, 2 rules`."""
    told = [one.line for one in change.differences]
    if len(told) > MAX_TOLD:
        told = [*told[:MAX_TOLD], f"and {len(told) - MAX_TOLD:,} more"]
    cap = change.after.changes.mode_cap
    if cap is not change.before.changes.mode_cap:
        lifted = "each budget by its own mode again"
        told.insert(0, lifted if cap is Mode.ENFORCE else f"no budget beyond {cap.value}")
    return "; ".join(told) or "as it was"


def audited(change: EditionChange) -> tuple[dict[str, Any], dict[str, Any]]:
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


# --- as items of the agent's own log --------------------------------------------------------

KINDS = (ChangeKind.BUDGET, ChangeKind.POLICY)
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)


class ChangesHere(NamedTuple):
    """All that was changed of one database at this agent."""

    changes: PolicyChanges = NO_CHANGES
    revision: int = 0
    """Revision of the own log that last changed it; 0: nothing was ever changed."""


def database_of(item: Change) -> str:
    """Whose policy it changes at this agent; empty: none's."""
    if item.reach != HERE or item.kind not in KINDS:
        return ""
    return item.id if item.kind == ChangeKind.POLICY else item.id.partition("/")[0]


def read_budget(item: Change) -> BudgetHere | None:
    """None: taken out. Raises one of UNREADABLE for what is none."""
    if item.value is None:
        return None
    database, _, name = item.id.partition("/")
    if not name:
        raise ValueError("its id names no budget of a database")
    about = (name, item.id, item.n, database)
    if item.value.get("removed") is True:
        return BudgetHere(*about, None)
    settings = {**item.value["settings"]}
    return BudgetHere(
        *about,
        BudgetChange(settings, bool(item.value["whole"])),
        int(item.value.get("at", item.n)),
    )


def read_wide(item: Change, *, of_shard: bool) -> FleetBudget:
    """Of a reach beyond this agent. Raises one of UNREADABLE for what is none."""
    said, name = said_by(item), item.id.removesuffix(f"@{item.reach}")
    about = (item.id, item.reach, item.n, item.set_by, of_shard)
    if is_change_of_file(said):
        found = FleetBudget(
            name, None if "removed" in said else {**said["settings"]}, *about, whole=False
        )
        is_named = said["name"] == name
    else:
        budget = parse_budget(said, place=f"budget {item.id}")
        found, is_named = FleetBudget(name, written_budget(budget), *about), budget.name == name
    if not is_named:
        raise InvalidSettings([Fault(f"budget {item.id}", f"is named {said['name']!r} inside")])
    return found


def shared_value(budget: FleetBudget | None) -> dict[str, Any] | None:
    """What a shard changes of a budget that the settings file has, as its log keeps it."""
    if budget is None:
        return None
    if budget.raw is None:
        return {"name": budget.name, "removed": True}
    return {"name": budget.name, "settings": dict(budget.raw), "whole": False}


def read_cap(item: Change) -> WideCap:
    """Of a reach beyond this agent, where a policy is nothing but the switch."""
    changes = read_policy(item)
    if changes != PolicyChanges(mode_cap=changes.mode_cap):
        raise ValueError("beyond one agent, a policy has a mode_cap and nothing else")
    return WideCap(item.reach, changes.mode_cap, item.set_by)


def read_policy(item: Change) -> PolicyChanges:
    """Without its budgets. Raises one of UNREADABLE for what is none."""
    if item.value is None:
        return NO_CHANGES
    return PolicyChanges(
        policy={**item.value["policy"]},
        order=tuple(item.value["order"]),
        mode_cap=Mode(item.value["mode_cap"]),
        of_fleet=frozenset(item.value.get("of_fleet", ())),
    )


def changes_of(budgets: Iterable[BudgetHere], policy: PolicyChanges = NO_CHANGES) -> PolicyChanges:
    ordered = sorted(budgets, key=lambda one: (one.at, one.name))
    return replace(policy, budgets={one.name: one.change for one in ordered})


def changes_here(items: Iterable[Change], database: str) -> ChangesHere:
    """As items of a log say; what cannot be read of them is left out."""
    found = list(_of(items, database))
    policy, budgets = NO_CHANGES, list[BudgetHere]()
    for item in found:
        try:
            if item.kind == ChangeKind.POLICY:
                policy = read_policy(item)
            elif (budget := read_budget(item)) is not None:
                budgets.append(budget)
        except UNREADABLE:
            continue
    return ChangesHere(changes_of(budgets, policy), max((item.n for item in found), default=0))


def _of(items: Iterable[Change], database: str) -> Iterator[Change]:
    return (item for item in items if database_of(item) == database)


def edits(
    items: Iterable[Change], database: str, wanted: PolicyChanges, asked: ChangeAuthor
) -> list[Edit]:
    """What makes `wanted` of them; those that say it already are not touched."""
    known = {(item.kind, item.id): item for item in _of(items, database)}
    found = list[Edit]()
    last = 0
    for name, change in wanted.budgets.items():
        item = known.pop((ChangeKind.BUDGET, f"{database}/{name}"), None)
        was = _readable(item)
        at = 0
        if change is not None and change.whole:
            at = was.at if was is not None and was.at > last else last + 1
            last = at
        if was is None or was.change != change or (at and was.at != at):
            value = _budget_value(change, at)
            found.append(_put(item, ChangeKind.BUDGET, f"{database}/{name}", value, asked))
    policy = known.pop((ChangeKind.POLICY, database), None)
    for item in known.values():
        if _readable(item) is not None:
            found.append(Edit(item, taken_out(item, asked)))
    if not _says(policy, rest := replace(wanted, budgets={})):
        found.append(_put(policy, ChangeKind.POLICY, database, policy_value(rest), asked))
    return found


def _says(policy: Change | None, wanted: PolicyChanges) -> bool:
    try:
        return (NO_CHANGES if policy is None else read_policy(policy)) == wanted
    except UNREADABLE:
        return wanted == NO_CHANGES


def _readable(item: Change | None) -> BudgetHere | None:
    """None, too, where there is none, or it is taken out."""
    try:
        return None if item is None else read_budget(item)
    except UNREADABLE:
        return None


def _put(
    before: Change | None,
    kind: ChangeKind,
    item_id: str,
    value: Mapping[str, Any] | None,
    asked: ChangeAuthor,
) -> Edit:
    return Edit(before, Change(kind, item_id, HERE, value, 0, asked.wall_s, asked.who))


def _budget_value(change: BudgetChange | None, at: int) -> dict[str, Any]:
    if change is None:
        return {"removed": True}
    value = {"settings": dict(change.settings), "whole": change.whole}
    return {**value, "at": at} if at else value


def policy_value(changes: PolicyChanges) -> dict[str, Any] | None:
    """None: all of it is as by default."""
    if changes == NO_CHANGES:
        return None
    return {
        "policy": dict(changes.policy),
        "order": list(changes.order),
        "mode_cap": changes.mode_cap.value,
        "of_fleet": sorted(changes.of_fleet),
    }
