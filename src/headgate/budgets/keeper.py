"""Change one database's traffic policy.   operators ──change──► own log (with audit) ──► in force

Every change is a whole new edition: validated first, in the log next, in force last.

A change is worked out on what the log has, within the log's own turn (OwnWriter), and comes into
force by PolicyInForce.follow_own, before `OwnBook.make` returns: nobody calls that with the lock of
a policy held. A file of changes says of budgets and policies what `headgate changes` takes and
writes (BudgetRoom):

    [[budgets]]
    database = "main"
    name = "etl"
    rate = 30                   what differs from the settings file and the fleet,
    unset = ["burst"]           also what is taken out of it; or removed = true

    [[budgets]]
    database = "main"
    name = "exports"
    whole = true                neither has it: this is all of it
    rate = 20

    [[policies]]
    database = "main"
    mode_cap = "warn"           no budget goes beyond it; without it, that stays as it is
    exempt_usernames = ["ops"]  of [policy], what differs from the settings file; unset as above
    order = ["exports", "etl"]  of all budgets
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Unpack

import structlog

from headgate.base.advice import Advice
from headgate.base.ports import Clock
from headgate.base.supervise import beside
from headgate.budgets.drafts import check_budget_room, judged, judged_cap, with_end
from headgate.budgets.inforce import PolicyInForce, size_of
from headgate.budgets.layers import (
    ANOTHER,
    KINDS,
    RESERVED_NAMES,
    WHOLE_POLICY,
    Document,
    Edition,
    EditionChange,
    FleetBudget,
    PolicyChanges,
    PolicyTarget,
    audited,
    budgets_of,
    changes_here,
    database_of,
    differences,
    edits,
    merged,
    policy_value,
    shared_value,
    summary,
)
from headgate.budgets.parse import parse_budget, parse_policy, written, written_budget
from headgate.budgets.policy import Mode
from headgate.changes.file_format import FileEntry
from headgate.changes.files import UNSET
from headgate.changes.items import Expecting, put
from headgate.changes.model import (
    FORGET_AFTER_S,
    OURSELVES,
    Change,
    ChangeKind,
    Edit,
)
from headgate.changes.own import OwnBook
from headgate.changes.reach import HERE, Reach
from headgate.changes.state import AuditView, Draft, LogState, name_of
from headgate.errors import (
    Conflict,
    Fault,
    HeadgateError,
    InvalidRequest,
    InvalidSettings,
    StoreUnavailable,
)
from headgate.rules.drafts import ChangeAuthor

log = structlog.get_logger()

LOOK_EVERY_S = 3600.0
"""A removed change stays in the log for a day."""
MAX_FORGOTTEN_AT_ONCE = 250
WITHOUT_STORE = (
    "Nothing was changed. `headgate pg disable` on the server's host stops everything without it"
)


class NoSuchBudget(HeadgateError, LookupError):
    """A budget that is not kept here, or a database without traffic control."""


Wanted = Callable[[Document], object]
"""Takes the document, returns the one that is wanted; parsing validates it."""
Propose = Callable[[Edition], Edition]
"""Takes what is in force, returns what shall be; raises if it is not valid."""


class PolicyKeeper:
    def __init__(self, in_force: PolicyInForce, own: OwnBook, clock: Clock) -> None:
        self.database = in_force.database
        self.in_force = in_force
        self._own = own
        self._clock = clock
        self._unkept = ""
        """Why an automatic change of the agent could not be stored."""
        self._forget_at = clock.now().mono_s + LOOK_EVERY_S

    @property
    def edition(self) -> Edition:
        return self.in_force.edition

    # --- changing --------------------------------------------------------------------------

    async def judge(self, raw: object) -> EditionChange:
        """What a whole document would be, and change; nothing does."""
        propose = self._written_as(lambda _: raw)
        return await self._change(
            propose, "policy.set", size=size_of(raw), who=OURSELVES, dry_run=True
        )

    async def tried(self, items: Iterable[Change], fleet: Sequence[FleetBudget]) -> EditionChange:
        """What the policy would be with these changes of the log, and these budgets that reach
        beyond this agent; nothing changes."""
        held = {**self._own.held.items, **{name_of(item): item for item in items}}

        def propose(before: Edition) -> Edition:
            changes = changes_here(held.values(), self.database).changes
            layers = replace(before.layers, fleet=tuple(fleet), changes=changes)
            return self.in_force.judged(layers.document, layers, changes)

        return await self._change(propose, "policy.set", who=OURSELVES, dry_run=True)

    async def set_budget(
        self,
        name: str,
        raw: Mapping[str, Any],
        *,
        new: bool = False,
        reach: Reach = HERE,
        **by: Unpack[Expecting],
    ) -> EditionChange:
        """Add or replace one; `new`: only if there is none yet. Starts in `warn`. Here and below,
        `reach`: of a shard, for a budget that the settings file has."""
        whole = with_end({**raw, "name": raw.get("name", name)}, self._clock.now().wall_s)
        if whole["name"] != name:
            raise InvalidSettings([Fault("name", f"is {whole['name']!r}, not {name!r}")])

        def wanted(document: Document) -> Document:
            if new and name in budgets_of(document):
                raise Conflict(f"budget {name} already exists; change that one")
            return _with_budget(document, name, whole)

        return await self._change_one(name, wanted, "budget.set", reach, **by)

    async def patch_budget(
        self, name: str, raw: Mapping[str, Any], *, reach: Reach = HERE, **by: Unpack[Expecting]
    ) -> EditionChange:
        """Some settings of one; null takes one out."""
        given = with_end(raw, self._clock.now().wall_s)
        if given.get("name", name) != name:
            message = "cannot be changed: that is another budget; create it, and delete this"
            raise InvalidSettings([Fault("name", message)])

        def wanted(document: Document) -> Document:
            raw = budget_in(document, name, self.database)
            return _with_budget(document, name, merged(raw, given))

        return await self._change_one(name, wanted, "budget.changed", reach, **by)

    async def forgive(
        self, name: str, *, reach: Reach = HERE, **by: Unpack[Expecting]
    ) -> EditionChange:
        """Clear the debt of its buckets: its epoch rises."""

        def wanted(document: Document) -> Document:
            raw = budget_in(document, name, self.database)
            return _with_budget(document, name, {**raw, "epoch": raw.get("epoch", 0) + 1})

        return await self._change_one(name, wanted, "budget.forgiven", reach, **by)

    async def remove(
        self, name: str, *, reach: Reach = HERE, **by: Unpack[Expecting]
    ) -> EditionChange:
        def wanted(document: Document) -> Document:
            budget_in(document, name, self.database)
            return _without(document, {name})

        return await self._change_one(name, wanted, "budget.removed", reach, **by)

    async def cap(self, mode: Mode, **by: Unpack[Expecting]) -> EditionChange:
        """No budget goes beyond `mode` from now on; each keeps its own for when this is lifted."""

        def propose(before: Edition) -> Edition:
            # The switch for all of them changes nothing else, and has no time to lose.
            return replace(before, changes=replace(before.changes, mode_cap=mode))

        action = "policy.capped" if mode is not Mode.ENFORCE else "policy.uncapped"
        try:
            return await self._change(propose, action, **by)
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{error}. {WITHOUT_STORE}") from error

    async def tend(self) -> None:
        """Drop what has expired; have the audit say what the file and the fleet brought."""
        ended = self.edition.ended(int(self._clock.now().wall_s * 1000))
        ours = {name for name in ended if self.edition.ends_at_agent(name)}
        if ours:
            await self._automatically(self._drop(ours))
        elif self.in_force.notes.is_due:
            await self._automatically(self.in_force.notes.keep())
        elif self._clock.now().mono_s >= self._forget_at:
            self._forget_at = self._clock.now().mono_s + LOOK_EVERY_S
            await self._automatically(self._forget())

    async def _drop(self, expired: set[str]) -> None:
        """One that lay on the fleet's gives way to it."""

        def propose(before: Edition) -> Edition:
            base = budgets_of(before.layers.base)
            document: Document = _without(before.document, expired)
            for name in sorted(expired & before.fleet.keys() & base.keys()):
                document = _with_budget(document, name, base[name])
            return self._proposed(before, document, "")

        await self._change(propose, "budget.expired", who=OURSELVES)

    async def _forget(self) -> None:
        """What was taken out long ago; but for the newest, by which the revision is known."""
        before_s = self._clock.now().wall_s - FORGET_AFTER_S
        over = [
            item.id
            for item in self._own.held.items.values()
            if item.kind == ChangeKind.BUDGET
            and database_of(item) == self.database
            and item.value is None
            and item.set_at < before_s
            and item.n != self.edition.revision
        ]
        if over:
            await self._own.forget(ChangeKind.BUDGET, over[:MAX_FORGOTTEN_AT_ONCE])

    # --- steps of a change -----------------------------------------------------------------

    async def _automatically(self, step: Awaitable[None]) -> None:
        """Tried again each second while the store is away, and logged once."""
        try:
            await step
            self._unkept = ""
        except (StoreUnavailable, Conflict) as error:
            if not self._unkept:
                log.warning("policy.unkept", database=self.database, detail=str(error))
            self._unkept = str(error)

    async def _change_one(
        self,
        name: str,
        wanted: Wanted,
        action: str,
        reach: Reach,
        **by: Unpack[Expecting],
    ) -> EditionChange:
        if reach == HERE:
            propose = self._written_as(wanted, name)
        else:
            propose = partial(self._proposed_for, reach, wanted, name)
        return await self._change(propose, action, of=PolicyTarget(name, reach), **by)

    async def _change(
        self,
        propose: Propose,
        action: str,
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
        of: PolicyTarget = WHOLE_POLICY,
        size: int = 0,
    ) -> EditionChange:
        """`size`: of what is wanted, where that is not what is there but for a little."""
        before = self.edition
        size = max(size, size_of(before.document))
        if dry_run:  # A dry run needs no store, and does not delay changes.
            return await beside(size, lambda: self._tried(before, propose, expect, of))
        tried: list[EditionChange] = []

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            now = self.in_force.at(held, of)
            is_late = now.of_shard(of.name) is not None and before.of_shard(of.name) is None
            if is_late and of.reach == HERE:
                message = f"budget {of.name} just came from its shard; look again and repeat"
                raise InvalidRequest(message, status=409)
            tried[:] = [self._tried(now, propose, expect, of)]
            return self._drafted(held, tried[0], action, asked, of)

        done = await self._own.make(draft, who, dry_run=False, size=size)
        if not done.changes:
            return replace(tried[0], dry_run=False)
        # In force by now, and perhaps another change after it.
        now, n = self.edition, done.after_n
        after = now if of.built_on(now) == n else tried[0].after
        after = replace(after, revision=n) if of.reach == HERE else after
        return replace(tried[0], after=after, dry_run=False, n=n, copies=done.copies)

    def _tried(
        self, before: Edition, propose: Propose, expect: int | None, of: PolicyTarget
    ) -> EditionChange:
        if expect is not None and expect != of.built_on(before):
            message = (
                f"the policy of {self.database} is at revision {of.built_on(before)}, not "
                f"{expect}: another operator changed it in between; look again and repeat"
            )
            raise Conflict(message)
        after = replace(propose(before), left_out=before.left_out, revision=before.revision)
        after = replace(after, over=before.over, caps=before.caps)
        self.in_force.check_names(after, before)
        return EditionChange(before, after, dry_run=True, of=of)

    def _drafted(
        self,
        held: LogState,
        change: EditionChange,
        action: str,
        asked: ChangeAuthor,
        of: PolicyTarget,
    ) -> Draft:
        """What has to be in the log so that it is so."""
        if not change.changed:
            return Draft(action)
        if of.reach == HERE:
            self.in_force.ahead = change.after
            made = edits(held.items.values(), self.database, change.after.changes, asked)
        else:
            item_id, value = f"{of.name}@{of.reach}", shared_value(change.after.fleet.get(of.name))
            made = [put(held, ChangeKind.BUDGET, item_id, value, asked, of.reach)]
        target = f"{self.database}/{of.name}" if of.name else self.database
        entry = AuditView(target, *audited(change))
        return Draft(action, made, entry=entry, summary=summary(change))

    def _proposed_for(self, reach: Reach, wanted: Wanted, name: str, before: Edition) -> Edition:
        """What a shard changes of a budget in the settings file; what was changed here lies on
        top of that."""
        layers = before.layers
        others = tuple(one for one in layers.fleet if one.name != name)
        document, under = wanted(layers.base), budgets_of(layers.file).get(name, {})
        try:
            budget = budgets_of(written(parse_policy(document))).get(name)
            raw = None if budget is None else differences(under, budget)
            known = before.fleet.get(name)
            if known is not None and not known.whole and known.raw == raw:
                return before
            if raw is None or raw:
                item_id = f"{name}@{reach}"
                shared = FleetBudget(name, raw, item_id, reach, 0, "", of_shard=True, whole=False)
                others = tuple(sorted((*others, shared), key=lambda one: one.name))
            layers = replace(layers, fleet=others)
            return self.in_force.judged(layers.document, layers, layers.changes)
        except InvalidSettings as error:
            raise InvalidSettings(_about(error.faults, document, name)) from None

    def _written_as(self, wanted: Wanted, name: str = "") -> Propose:
        return lambda before: self._proposed(before, wanted(before.document), name)

    def _proposed(self, before: Edition, wanted: object, name: str) -> Edition:
        try:
            after = self.in_force.judged(wanted, before.layers)
        except InvalidSettings as error:
            raise InvalidSettings(_about(error.faults, wanted, name)) from None
        return before if after.document == before.document else after


def budget_in(document: Document, name: str, database: str) -> Mapping[str, Any]:
    budgets = budgets_of(document)
    if name not in budgets:
        known = ", ".join(list(budgets)[:10]) or "none"
        raise NoSuchBudget(f"{database} has no budget {name!r}; budgets: {known}")
    return budgets[name]


def _with_budget(document: Document, name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    budgets = {**budgets_of(document), name: raw}
    return {**document, "budgets": list(budgets.values())}


def _without(document: Document, names: set[str]) -> dict[str, Any]:
    kept = [raw for raw in document.get("budgets", ()) if raw["name"] not in names]
    return {**document, "budgets": kept}


def _about(faults: Sequence[Fault], wanted: Any, name: str) -> list[Fault]:
    """Of a change of one budget: `rate: 120 is more than 100`, without its place in the list."""
    names = list(budgets_of(wanted)) if name else []
    if name not in names:
        return list(faults)
    prefix = f"budgets[{names.index(name)}]"
    return [
        fault._replace(place=fault.place.removeprefix(prefix).lstrip(".") or name)
        if fault.place.startswith(prefix)
        else fault
        for fault in faults
    ]


# --- in a file of changes -------------------------------------------------------------------

_BESIDES = ("database", "name", "removed", "whole", "at", UNSET)
"""What an entry has besides the budget's settings."""
_BESIDES_POLICY = ("database", "mode_cap", "order", UNSET)
"""The same, of a policy."""
_INDEX = re.compile(r"budgets\[(\d+)\]")


class Kept(Protocol):
    """As Controlled: a database with traffic control."""

    @property
    def book(self) -> PolicyKeeper: ...


class BudgetRoom:
    """Implements changes/files.Room. One with a reach beyond this agent is a whole budget, as in a
    fleet."""

    def __init__(self, by_database: Mapping[str, Kept]) -> None:
        self._by_database = by_database

    def drafted(
        self, held: LogState, entry: FileEntry, asked: ChangeAuthor
    ) -> tuple[Change, Sequence[Advice]]:
        if entry.kind is ChangeKind.POLICY and entry.reach != HERE:
            return judged_cap(entry.raw, entry.reach, asked, place=entry.place), ()
        if entry.kind is ChangeKind.POLICY:
            value = _policy(held, entry, self._book(entry))
            return Change(ChangeKind.POLICY, entry.id, HERE, value, 0, asked.wall_s, asked.who), ()
        is_of_file = "removed" in entry.raw or entry.raw.get("whole") is False
        if entry.reach != HERE and not is_of_file:
            return judged(entry.raw, entry.reach, asked, place=entry.place)
        base = self._base(entry).get(entry.raw["name"])
        is_removal = "removed" in entry.raw
        value = _removal(held, entry, base) if is_removal else _change(held, entry, base, asked)
        if entry.reach != HERE and value is not None:
            value = {"name": entry.raw["name"], **value}
        item = Change(ChangeKind.BUDGET, entry.id, entry.reach, value, 0, asked.wall_s, asked.who)
        return item, ()

    def _base(self, entry: FileEntry) -> Mapping[str, Mapping[str, Any]]:
        """The budgets that lie beneath; for a shard, those of the settings files here."""
        if entry.reach == HERE:
            return budgets_of(self._book(entry).edition.layers.base)
        files = (controlled.book.edition.file for controlled in self._by_database.values())
        return {name: raw for file in files for name, raw in budgets_of(file).items()}

    def _book(self, entry: FileEntry) -> PolicyKeeper:
        controlled = self._by_database.get(entry.raw["database"])
        if controlled is None:
            known = ", ".join(sorted(self._by_database)) or "none"
            message = f"has no traffic control; databases that have it: {known}"
            raise InvalidSettings([Fault(f"{entry.place}.database", message)])
        return controlled.book

    def check(self, held: LogState, changes: Sequence[Edit], asked: ChangeAuthor) -> Sequence[Edit]:
        """Every policy as a whole; and each says which of its budgets lie on one of the fleet's."""
        check_budget_room(held, changes, asked.wall_s)
        touched = [item for one in changes for item in (one.before, one.after) if item is not None]
        items = dict(held.items)
        items |= {name_of(one.after): one.after for one in changes if one.after is not None}
        said = {item.id for item in touched if item.kind == ChangeKind.POLICY}
        found: list[Edit] = []
        for database in sorted({database_of(item) for item in touched if item.kind in KINDS}):
            if database in self._by_database:
                checked = _checked(self._by_database[database].book, items, asked)
                found += [] if database in said else checked
        return found


def _policy(held: LogState, entry: FileEntry, book: PolicyKeeper) -> dict[str, Any] | None:
    """`held` has the budgets of the file, too. None: it adds nothing to what lies beneath."""
    changes = changes_here(held.items.values(), book.database).changes
    # Who does not say leaves the switch as it is.
    cap, order = entry.raw.get("mode_cap", changes.mode_cap.value), entry.raw.get("order", [])
    unset, modes = entry.raw.get(UNSET, []), [mode.value for mode in Mode]
    faults = []
    if cap not in modes:
        faults.append(Fault(f"{entry.place}.mode_cap", f"must be one of {', '.join(modes)}"))
    for key, names in (("order", order), (UNSET, unset)):
        if not _are_texts(names):
            faults.append(Fault(f"{entry.place}.{key}", "must be a list of names"))
    if faults:
        raise InvalidSettings(faults)
    base = book.edition.layers.base.get("policy", {})
    given = {key: one for key, one in entry.raw.items() if key not in _BESIDES_POLICY}
    try:
        wanted = parse_policy({"policy": merged(base, {**given, **dict.fromkeys(unset)})})
    except InvalidSettings as error:
        at = len("policy")
        faults = [fault._replace(place=entry.place + fault.place[at:]) for fault in error.faults]
        raise InvalidSettings(faults) from None
    fleet = book.edition.fleet.keys() | changes.of_fleet
    return policy_value(
        PolicyChanges(
            differences(base, written(wanted).get("policy", {})),
            order=tuple(order),
            mode_cap=Mode(cap),
            of_fleet=frozenset(changes.budgets.keys() & fleet),
        )
    )


def _are_texts(names: object) -> bool:
    return isinstance(names, list | tuple) and all(isinstance(one, str) for one in names)


def _removal(
    held: LogState, entry: FileEntry, base: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """None: nothing lies beneath what was changed, so that is taken out."""
    fault = ""
    if entry.raw["removed"] is not True:
        fault = "must be true; leave it out to keep the budget"
    elif entry.raw.keys() - {"database", "name", "removed"}:
        fault = "removes the budget, so settings have no effect: give those, or removed = true"
    elif base is None and (ChangeKind.BUDGET, entry.id) not in held.items:
        fault = "neither the settings file, the fleet nor a change has such a budget: leave it out"
    if fault:
        raise InvalidSettings([Fault(f"{entry.place}.removed", fault)])
    return {"removed": True} if base is not None else None


def _change(
    held: LogState, entry: FileEntry, base: Mapping[str, Any] | None, asked: ChangeAuthor
) -> dict[str, Any] | None:
    """None: it adds nothing to what lies beneath."""
    name, place = entry.raw["name"], entry.place
    whole, at, unset = _besides(entry, base)
    given = {key: one for key, one in entry.raw.items() if key not in _BESIDES}
    settings = with_end(given, asked.wall_s, place=place)
    if name in RESERVED_NAMES and base is None:
        message = f"{name} is a reserved word of the API: {ANOTHER}"
        raise InvalidSettings([Fault(f"{place}.name", message)])
    if whole or base is None:
        budget = written_budget(parse_budget({"name": name, **settings}, place=place))
        if budget == base:
            return None
        return {"settings": budget, "whole": True, "at": at or _next_at(held, entry)}
    wanted = merged(base, {**settings, **dict.fromkeys(unset)})
    differing = differences(base, written_budget(parse_budget(wanted, place=place)))
    return {"settings": differing, "whole": False} if differing else None


def _besides(
    entry: FileEntry, base: Mapping[str, Any] | None
) -> tuple[bool, int | None, list[str]]:
    """`whole`, `at` and `unset` of an entry."""
    whole, at, unset = (entry.raw.get(key) for key in ("whole", "at", UNSET))
    faults = []
    if whole is not None and not isinstance(whole, bool):
        faults.append(Fault(f"{entry.place}.whole", "must be true or false"))
    if whole is False and base is None:
        message = "neither the settings file nor the fleet has such a budget: it must be whole"
        faults.append(Fault(f"{entry.place}.whole", message))
    if at is not None and (isinstance(at, bool) or not isinstance(at, int) or at < 1):
        faults.append(Fault(f"{entry.place}.at", "must be a whole number from 1"))
    if unset is not None and not _are_texts(unset):
        faults.append(Fault(f"{entry.place}.{UNSET}", "must be a list of settings"))
    if faults:
        raise InvalidSettings(faults)
    return bool(whole), at, list(unset or ())


def _next_at(held: LogState, entry: FileEntry) -> int:
    """Behind those that are there, and before what comes later in the file."""
    now = held.items.get((ChangeKind.BUDGET, entry.id))
    if now is not None and now.value is not None and isinstance(now.value.get("at"), int):
        return int(now.value["at"])
    there = (
        (item.value or {}).get("at", 0)
        for item in held.items.values()
        if item.kind == ChangeKind.BUDGET and database_of(item) == entry.raw["database"]
    )
    return 1 + max((at for at in there if isinstance(at, int)), default=0)


def _checked(
    book: PolicyKeeper, items: Mapping[tuple[str, str], Change], asked: ChangeAuthor
) -> list[Edit]:
    changes = changes_here(items.values(), book.database).changes
    fleet = book.edition.fleet.keys() | changes.of_fleet
    wanted = replace(changes, of_fleet=frozenset(changes.budgets.keys() & fleet))
    try:
        book.in_force.validate(wanted)
    except InvalidSettings as error:
        names = list(budgets_of(replace(book.edition.layers, changes=wanted).document))
        faults = [_named(fault, book.database, names) for fault in error.faults]
        raise InvalidSettings(faults) from None
    return [
        change
        for change in edits(items.values(), book.database, wanted, asked)
        if change.after is not None and change.after.kind == ChangeKind.POLICY
    ]


def _named(fault: Fault, database: str, names: Sequence[str]) -> Fault:
    """By its name: where it is in the whole policy says nothing of the file."""
    match = _INDEX.match(fault.place)
    if match is None or int(match[1]) >= len(names):
        return fault._replace(place=f"policy {database}" if not fault.place else fault.place)
    rest = fault.place[match.end() :]
    return fault._replace(place=f"budget {database}/{names[int(match[1])]}{rest}")
