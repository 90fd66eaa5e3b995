"""Budgets of a fleet, as drafts of changes.   what is requested + LogState ──► Draft

Each is validated alone, as a policy of one: the agents that it reaches validate it together with
their own policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headgate.base.advice import Advice, Severity
from headgate.base.declared import iso, parse_for
from headgate.budgets.advice import advise
from headgate.budgets.layers import ANOTHER, RESERVED_NAMES, merged
from headgate.budgets.parse import parse_budget, written_budget
from headgate.budgets.policy import Mode, Policy
from headgate.changes.items import put
from headgate.changes.model import Change, ChangeKind, Edit
from headgate.changes.reach import Place, Reach
from headgate.changes.state import (
    Draft,
    LogState,
    NoSuchItem,
    budget_id,
    is_change_of_file,
    said_by,
    stands,
)
from headgate.errors import Conflict, Fault, InvalidSettings
from headgate.rules.drafts import (
    UNCHANGED,
    ChangeAuthor,
    check_expected,
    is_change,
    taken_out,
)

EVERY = "all"
"""In place of a database: each one of an agent."""
MAX_TOLD = 5
MAX_BUDGETS = 10_000
"""Budgets of a fleet in force: every agent compares those that reach it with its policy."""


def set_budget(
    held: LogState,
    asked: ChangeAuthor,
    *,
    name: str,
    raw: Mapping[str, Any],
    reach: Reach,
    expect: int | None = None,
    new: bool = False,
) -> Draft:
    """Add or replace one; `new`: only if there is none yet. Starts in `warn`."""
    before = held.budget(name, reach)
    if before is not None and stands(before, asked.wall_s) and new:
        raise Conflict(f"budget {before.id} already exists; change that one")
    if expect is not None:
        check_expected(_standing(held, name, reach, asked), expect)
    whole = {**raw, "name": raw.get("name", name)}
    if whole["name"] != name:
        raise InvalidSettings([Fault("name", f"is {whole['name']!r}, not {name!r}")])
    item, advice = judged(whole, reach, asked)
    return _drafted(held, "budget.set", Edit(before, item), advice, asked)


def patch_budget(
    held: LogState,
    asked: ChangeAuthor,
    *,
    name: str,
    raw: Mapping[str, Any],
    reach: Reach,
    expect: int | None = None,
) -> Draft:
    """Some settings of one; null takes one out."""
    before = _standing(held, name, reach, asked)
    if is_change_of_file(before.value or {}):
        raise NoSuchItem(f"the settings file here has no budget {name!r}; set it whole (PUT)")
    check_expected(before, expect)
    fixed = {"name": raw.get("name", name) != name, "reach": "reach" in raw}
    if any(fixed.values()):
        message = "cannot be changed: that is another budget; create it, and delete this"
        raise InvalidSettings([Fault(key, message) for key, is_so in fixed.items() if is_so])
    if not raw:
        raise InvalidSettings([Fault("", "nothing to change: give a setting of it")])
    lasting = {"expires_at": None} if raw.get("for") is not None else {}
    item, advice = judged(merged(said_by(before), {**lasting, **raw}), reach, asked)
    return _drafted(held, "budget.changed", Edit(before, item), advice, asked)


def forgive_budget(
    held: LogState, asked: ChangeAuthor, *, name: str, reach: Reach, expect: int | None = None
) -> Draft:
    """Its buckets begin empty again: its epoch rises."""
    epoch = (_standing(held, name, reach, asked).value or {}).get("epoch", 0)
    raw = {"epoch": epoch + 1}
    draft = patch_budget(held, asked, name=name, raw=raw, reach=reach, expect=expect)
    return replace(draft, action="budget.forgiven")


def remove_budget(
    held: LogState, asked: ChangeAuthor, *, name: str, reach: Reach, expect: int | None = None
) -> Draft:
    before = _standing(held, name, reach, asked)
    check_expected(before, expect)
    return Draft("budget.removed", [Edit(before, taken_out(before, asked))])


def cap_budgets(held: LogState, asked: ChangeAuthor, *, mode: Mode, reach: Reach) -> Draft:
    """The switch for all budgets in that reach; `enforce` lifts it."""
    value = _cap_value(mode)
    change = put(held, ChangeKind.POLICY, f"{EVERY}@{reach}", value, asked, reach)
    was = None if change.before is None else change.before.value
    action = "policy.uncapped" if value is None else "policy.capped"
    return Draft(action, [] if was == value else [change])


def judged_cap(raw: Mapping[str, Any], reach: Reach, asked: ChangeAuthor, *, place: str) -> Change:
    """The same, as a file of changes says it; InvalidSettings with its faults."""
    modes = [mode.value for mode in Mode]
    faults = [
        Fault(f"{place}.{key}", "is for one agent: with a reach, a policy is `mode_cap` alone")
        for key in raw
        if key not in ("database", "mode_cap")
    ]
    if raw["database"] != EVERY:
        message = f"is {raw['database']!r}: with a reach, a policy is of every database, {EVERY!r}"
        faults.append(Fault(f"{place}.database", message))
    if raw.get("mode_cap") not in modes:
        faults.append(Fault(f"{place}.mode_cap", f"must be one of {', '.join(modes)}"))
    if faults:
        raise InvalidSettings(faults)
    value = _cap_value(Mode(raw["mode_cap"]))
    return Change(
        ChangeKind.POLICY, f"{EVERY}@{reach}", reach, value, 0, asked.wall_s, asked.who
    )  # fmt: skip


def _cap_value(mode: Mode) -> dict[str, Any] | None:
    if mode is Mode.ENFORCE:
        return None
    return {"policy": {}, "order": [], "mode_cap": mode.value, "of_fleet": []}


# --- one budget ----------------------------------------------------------------------------


def judged(
    raw: Mapping[str, Any], reach: Reach, asked: ChangeAuthor, *, place: str = ""
) -> tuple[Change, list[Advice]]:
    """As it will be kept; InvalidSettings with its faults."""
    name = raw.get("name")
    if name in RESERVED_NAMES:
        message = f"{name} is a reserved word of the API: {ANOTHER}"
        raise InvalidSettings([Fault(f"{place}.name".lstrip("."), message)])
    try:
        budget = parse_budget(with_end(raw, asked.wall_s, place=place), place=place)
    except InvalidSettings as error:
        faults = [fault._replace(place=fault.place.lstrip(".")) for fault in error.faults]
        raise InvalidSettings(faults) from None
    advice = advise(Policy((budget,)), wall_ms=int(asked.wall_s * 1000))
    shown = budget_id(budget.name, reach)
    item = Change(
        ChangeKind.BUDGET, shown, reach, written_budget(budget), 0, asked.wall_s, asked.who
    )  # fmt: skip
    return item, [_as_advice(one, shown) for one in advice]


def with_end(raw: Mapping[str, Any], wall_s: float, *, place: str = "") -> dict[str, Any]:
    """`for`, as rules have it, is counted from now; it is not kept, the end is."""
    given = dict(raw)
    lasts = given.pop("for", None)
    if lasts is None:
        return given
    where = f"{place}.for" if place else "for"
    if given.get("expires_at") is not None:
        raise InvalidSettings([Fault(where, "has two ends: give `for` or `expires_at`")])
    try:
        ends_s = wall_s + parse_for(lasts)
    except ValueError as error:
        raise InvalidSettings([Fault(where, str(error))]) from None
    return {**given, "expires_at": iso(round(ends_s))}


def check_budget_room(held: LogState, changes: Sequence[Edit], wall_s: float) -> None:
    budgets = {name for name in held.standing(wall_s) if name[0] is ChangeKind.BUDGET}
    for after in (change.after for change in changes):
        if after is not None and after.kind is ChangeKind.BUDGET:
            (budgets.add if stands(after, wall_s) else budgets.discard)((after.kind, after.id))
    if len(budgets) > MAX_BUDGETS:
        message = f"the log would have {len(budgets):,}, at most {MAX_BUDGETS:,}; remove some"
        raise InvalidSettings([Fault("budgets", message)])


def _drafted(
    held: LogState, action: str, change: Edit, advice: Sequence[Advice], asked: ChangeAuthor
) -> Draft:
    if not is_change(change):
        return Draft(action, (), (UNCHANGED,))
    check_budget_room(held, [change], asked.wall_s)
    return Draft(action, [change], (*advice, *_narrower(held, change.after, asked.wall_s)))


def _narrower(held: LogState, item: Change | None, wall_s: float) -> Iterator[Advice]:
    """Of the same name: they count where both reach, which may be everywhere."""
    if item is None:
        return
    name = (item.value or {}).get("name")
    found = sorted(
        one.id
        for one in held.standing(wall_s).values()
        if one.kind is ChangeKind.BUDGET
        and (one.value or {}).get("name") == name
        and one.reach.rank > item.reach.rank
        and _may_meet(item.reach, one.reach)
    )
    if found:
        more = f" and {len(found) - MAX_TOLD:,} more" if len(found) > MAX_TOLD else ""
        message = f"where {', '.join(found[:MAX_TOLD])}{more} apply as well, those count instead"
        place = f"budget {item.id}"
        yield Advice(Severity.WARNING, "narrower", place, f"{message}: their reach is narrower")


def _may_meet(wide: Reach, narrow: Reach) -> bool:
    """Whether both can apply at one place; the regions of a shard are not known here."""
    if wide.level is not narrow.level or not narrow.is_exact:
        return True
    return wide.meets(Place(**{narrow.level.value: narrow.pattern}))


def _standing(held: LogState, name: str, reach: Reach, asked: ChangeAuthor) -> Change:
    item = held.budget(name, reach)
    if item is None or not stands(item, asked.wall_s):
        alike = [
            str(one.reach)
            for one in held.standing(asked.wall_s).values()
            if one.kind is ChangeKind.BUDGET and (one.value or {}).get("name") == name
        ]
        known = f"; there is one for {', '.join(alike[:5])}" if alike else ""
        raise NoSuchItem(f"there is no budget {name!r} for {reach}{known}")
    return item


def _as_advice(one: Advice, shown: str) -> Advice:
    """What an agent would reject depends on the users that its own policy exempts."""
    place = one.place.replace("budgets[0]", f"budget {shown}")
    if one.severity is not Severity.ERROR:
        return replace(one, place=place)
    message = f"{one.message}. Agents whose policy does not exempt them leave this budget out"
    return Advice(Severity.WARNING, one.code, place, message)
