"""Keep one database's traffic policy.   operators ──change──► own log (with audit) ──► in force

settings file ─┐
fleet ─────────┼─base─┐
own log ──Changes─────┴──► document ──parse, lint──► Edition ──► Publisher ──► every server

Every change is a whole new edition: validated first, in the log next, in force last. What does not
pass leaves the last good one where it is. The log keeps each, to look at and to go back to.

A change is worked out on what the log has, within the log's own turn (OwnWriter), and comes into
force by `follow_own`, before `OwnBook.make` returns: nobody calls that with this book's lock held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import structlog

from headgate.agent.budgetdrafts import with_end
from headgate.agent.budgetedition import (
    ANOTHER,
    RESERVED_NAMES,
    Change,
    Edition,
    audited,
    capped,
    exempting,
    fitting,
    no_room,
    summary,
)
from headgate.agent.budgetitems import ChangesHere, changes_here, database_of, edits
from headgate.agent.budgetlayers import (
    EMPTY,
    NO_CHANGES,
    Changes,
    Document,
    FleetBudget,
    Layers,
    beneath,
    budgets_of,
    laid_over,
    merged,
)
from headgate.agent.changebook import OwnBook
from headgate.agent.logwriter import Draft, NoSuchItem, Shown, beside
from headgate.agent.ownitems import Expecting
from headgate.agent.policynotes import FOLLOWED, READ, PolicyNotes
from headgate.agent.ports import Clock, OwnStore
from headgate.agent.rollback import as_after
from headgate.agent.ruledrafts import Asked
from headgate.core.change import FORGET_AFTER_S, OURSELVES, ChangeKind, Item, Revision
from headgate.core.change_log import ChangeMade, LogState
from headgate.core.lint import Severity
from headgate.errors import (
    Conflict,
    Fault,
    HeadgateError,
    InvalidSettings,
    StoreUnavailable,
)
from headgate.traffic.lint import advise
from headgate.traffic.parse import parse_policy, written
from headgate.traffic.policy import Mode, Policy, When

__all__ = [
    "ANOTHER",
    "RESERVED_NAMES",
    "Change",
    "Edition",
    "NoSuchBudget",
    "PolicyKeeper",
    "capped",
    "exempting",
]

log = structlog.get_logger()

LOOK_EVERY_S = 3600.0
"""A removed change stays in the log for a day."""
MAX_FORGOTTEN_AT_ONCE = 250
UNCHANGED = "as the settings file and the fleet have it"
WITHOUT_STORE = (
    "Nothing was changed. `headgate pg disable` on the server's host stops everything without it"
)


class NoSuchBudget(HeadgateError, LookupError):
    """A budget, or a revision, that is not kept here; or a database without traffic control."""


class Then(NamedTuple):
    """The policy after a revision, on top of today's settings file and fleet."""

    about: Revision
    document: Document


Wanted = Callable[[Document], object]
"""Takes the current document, returns the wanted one; parsing validates it."""
Propose = Callable[[Edition], Edition]
"""Takes what is in force, returns what shall be; raises if it is not valid."""


class PolicyKeeper:
    def __init__(
        self,
        database: str,
        store: OwnStore,
        own: OwnBook,
        clock: Clock,
        publish: Callable[[Edition], Awaitable[None]],
        own_role: str = "",
    ) -> None:
        self.database = database
        self._own_role = own_role
        self._own = own
        self._clock = clock
        self._publish = publish
        self._file: Document = EMPTY
        self._fleet: tuple[FleetBudget, ...] = ()
        """The fleet's budgets that match this database; the edition says which are valid."""
        self._here = ChangesHere()
        """As in the own log; the edition says what of it is valid."""
        self._lock = asyncio.Lock()
        self._stood: tuple[Layers, str] | None = None
        """The layers and our role that the edition was computed from."""
        self._ahead: Edition | None = None
        """Computed for a change that is not in force yet."""
        self._notes = PolicyNotes(database, store, clock)
        self._unkept = ""
        """Why an automatic change of the agent could not be stored."""
        self._forget_at = clock.now().mono_s + LOOK_EVERY_S
        self.over: frozenset[str] = frozenset()
        """Of those that end: their time is used up, whatever the clock says (changetime.py)."""
        self.edition = Edition(0, EMPTY, Policy(), own_role=own_role)

    # --- looking ---------------------------------------------------------------------------

    @property
    def had_base(self) -> bool:
        """The settings file or the fleet has set budgets once, as far as that is known yet."""
        return self._notes.is_noted

    def raw(self, name: str) -> Mapping[str, Any]:
        return self._of(self.edition.document, name)

    async def history(self, limit: int) -> Sequence[Revision]:
        """The revisions of the own log that changed this policy, newest first."""
        found: list[Revision] = []
        async for revision in self._own.revisions((await self._own.items()).n):
            if self._is_changed_by(revision):
                found.append(replace(revision, changes=()))
            if len(found) >= limit:
                break
        return found

    async def at_revision(self, n: int) -> Then:
        """0: before anything was changed here."""
        if n == 0:
            return Then(Revision(0, 0.0, "", "", UNCHANGED, ""), self.edition.layers.base)
        held, later = await self._own.items(), list[Revision]()
        async for revision in self._own.revisions(held.n, after_n=n - 1):
            if revision.n == n and self._is_changed_by(revision):
                changes = self._changes_at(held, n, later)
                return Then(revision, laid_over(self.edition.layers.base, changes))
            later.append(revision)
        raise self._no_revision(n)

    def _is_changed_by(self, revision: Revision) -> bool:
        items = (item for one in revision.changes for item in (one.before, one.after))
        return any(item is not None and self._is_ours(item) for item in items)

    def _is_ours(self, item: Item) -> bool:
        return database_of(item) == self.database

    def _changes_at(self, held: LogState, n: int, later: Sequence[Revision]) -> Changes:
        """`later`: every revision beyond n, newest first."""
        if n == 0:
            return NO_CHANGES
        try:
            items = {**held.items, **as_after(held, n, later)}
        except NoSuchItem:
            raise self._no_revision(n) from None
        found = [item for item in items.values() if item is not None]
        return changes_here(found, self.database).changes

    # --- from the file, the fleet and the log ----------------------------------------------

    async def adopt(self, base: Document, own_role: str = "") -> None:
        """The settings file's document (as `written`). What was changed at run time stays on top
        of it."""
        if self._stood is not None and (base, own_role) == (self._file, self._own_role):
            return
        async with self._lock:
            self._file, self._own_role = base, own_role
            await self._stand(READ)

    async def follow(self, fleet: Sequence[FleetBudget]) -> bool:
        """The fleet's budgets that apply to this database, by name. Whether the edition is another
        one now."""
        if tuple(fleet) == self._fleet:
            return False
        async with self._lock:
            before, self._fleet = self.edition, tuple(fleet)
            await self._stand(FOLLOWED)
            return self.edition.document != before.document

    async def follow_own(self, here: ChangesHere, *, publish: bool) -> bool:
        """Changes of the agent's own log. `publish`: to servers at once. Whether the edition is
        another one now."""
        if here == self._here:
            return False
        async with self._lock:
            self._here = here
            await self._stand(FOLLOWED)
            if publish:
                await self._publish(self.edition)
            return True

    async def _stand(self, action: str) -> None:
        """What can stand of all layers: the file in any case; of the fleet's, what can with it.
        `action`: what it is where another base is in force by it."""
        layers, revision = Layers(self._file, self._fleet, self._here.changes), self._here.revision
        before, is_first = self.edition, self._stood is None
        size = _size(self._file) + len(self._fleet) + len(layers.changes.budgets)
        ready = await beside(size, lambda: self._ready(layers) or self._fitted(layers))
        self.edition = replace(ready, revision=revision)
        self._stood, self._ahead = (layers, self._own_role), None
        if is_first or (before.file, before.fleet) != (ready.file, ready.fleet):
            self._notes.brought(before, self.edition, action)

    def _ready(self, layers: Layers) -> Edition | None:
        """Where there is nothing to validate: it is the one that a change was worked out as, or
        the mode of all is another, which has no time to lose."""
        now, ahead = self.edition, self._ahead
        cap = layers.changes.mode_cap
        if self._stood is not None:
            was, role = self._stood
            same = replace(was, changes=replace(was.changes, mode_cap=cap)) == layers
            in_order = [*was.changes.budgets] == [*layers.changes.budgets]
            if same and in_order and role == self._own_role:
                return replace(now, changes=replace(now.changes, mode_cap=cap))
        if ahead is not None and (ahead.layers, ahead.own_role) == (layers, self._own_role):
            return ahead if ahead.document == layers.document else None
        return None

    def _fitted(self, layers: Layers) -> Edition:
        def judged(some: Layers) -> Edition:
            return self._judged(some.document, some, some.changes)

        fit = fitting(layers, judged)
        if fit.refused:
            log.error("policy.layers_refused", database=self.database, fault=fit.refused)
        for item_id, fault in fit.edition.left_out.items():
            about = {"database": self.database, "budget": item_id}
            log.error("policy.fleet_budget_left_out", **about, fault=fault)
        return fit.edition

    # --- changing --------------------------------------------------------------------------

    async def judge(self, raw: object) -> Change:
        """What a whole document would be, and change; nothing does."""
        return await self.put(raw, who=OURSELVES, dry_run=True)

    async def put(self, raw: object, **by: Unpack[Expecting]) -> Change:
        """The whole document."""
        propose = self._written_as(lambda _: raw)
        return await self._change(propose, "policy.set", size=_size(raw), **by)

    async def set_budget(
        self,
        name: str,
        raw: Mapping[str, Any],
        *,
        new: bool = False,
        **by: Unpack[Expecting],
    ) -> Change:
        """Add or replace one; `new`: only if there is none yet. Starts in `warn`."""
        whole = with_end({**raw, "name": raw.get("name", name)}, self._clock.now().wall_s)
        if whole["name"] != name:
            raise InvalidSettings([Fault("name", f"is {whole['name']!r}, not {name!r}")])

        def wanted(document: Document) -> Document:
            if new and name in budgets_of(document):
                raise Conflict(f"budget {name} already exists; change that one")
            return _with_budget(document, name, whole)

        return await self._change(self._written_as(wanted, name), "budget.set", name=name, **by)

    async def patch_budget(
        self, name: str, raw: Mapping[str, Any], **by: Unpack[Expecting]
    ) -> Change:
        """Some settings of one; null takes one out."""
        given = with_end(raw, self._clock.now().wall_s)
        if given.get("name", name) != name:
            message = "cannot be changed: that is another budget; create it, and delete this"
            raise InvalidSettings([Fault("name", message)])

        def wanted(document: Document) -> Document:
            return _with_budget(document, name, merged(self._of(document, name), given))

        return await self._change(self._written_as(wanted, name), "budget.changed", name=name, **by)

    async def forgive(self, name: str, **by: Unpack[Expecting]) -> Change:
        """Forgive the debt of its buckets: its epoch rises."""

        def wanted(document: Document) -> Document:
            raw = self._of(document, name)
            return _with_budget(document, name, {**raw, "epoch": raw.get("epoch", 0) + 1})

        return await self._change(
            self._written_as(wanted, name), "budget.forgiven", name=name, **by
        )

    async def remove(self, name: str, **by: Unpack[Expecting]) -> Change:
        def wanted(document: Document) -> Document:
            self._of(document, name)
            return _without(document, {name})

        return await self._change(self._written_as(wanted, name), "budget.removed", name=name, **by)

    async def cap(self, mode: Mode, **by: Unpack[Expecting]) -> Change:
        """No budget goes beyond `mode` from now on; each keeps its own for when this is lifted."""

        def propose(before: Edition) -> Edition:
            # The switch for all of them changes nothing else, and has no time to lose.
            return replace(before, changes=replace(before.changes, mode_cap=mode))

        action = "policy.capped" if mode is not Mode.ENFORCE else "policy.uncapped"
        try:
            return await self._change(propose, action, **by)
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{error}. {WITHOUT_STORE}") from error

    async def rollback(
        self, n: int, *, who: str, expect: int | None = None, dry_run: bool = False
    ) -> Change:
        """To what was changed here after revision n, as a new one; 0: to nothing. The cap is not
        of the document, and stays."""
        await self.at_revision(n)  # Else there is none of this database.
        tried: list[Change] = []

        def draft(held: LogState, later: Sequence[Revision], asked: Asked) -> Draft:
            changes = self._changes_at(held, n, later)

            def propose(before: Edition) -> Edition:
                layers = replace(before.layers, changes=changes)
                cap = before.changes.mode_cap
                return self._judged(layers.document, layers, replace(changes, mode_cap=cap))

            tried[:] = [self._tried(self._at(held), propose, expect)]
            return self._drafted(held, tried[0], "policy.rolled_back", asked)

        done = await self._own.make_back(n, draft, who, dry_run=dry_run)
        return self._made(tried[0], done)

    async def tend(self) -> None:
        """Drop what has expired; have the audit say what the file and the fleet brought."""
        wall_ms = self._wall_ms()
        ending = self.edition.ending
        expired = {one.name for one in ending if one.expired(wall_ms) or one.name in self.over}
        ours = {name for name in expired if self.edition.ends_at_agent(name)}
        if ours:
            await self._automatically(self._drop(ours))
        elif self._notes.is_due:
            await self._automatically(self._notes.keep())
        elif self._clock.now().mono_s >= self._forget_at:
            self._forget_at = self._clock.now().mono_s + LOOK_EVERY_S
            await self._automatically(self._forget())

    async def _drop(self, expired: set[str]) -> None:
        """One that lay on the fleet's gives way to it."""

        def propose(before: Edition) -> Edition:
            fleet = [one for one in before.fleet.values() if one.name in expired]
            document = beneath(_without(before.document, expired), fleet)
            return self._proposed(before, document, "")

        await self._change(propose, "budget.expired", who=OURSELVES)

    async def _forget(self) -> None:
        """What was taken out long ago; but for the newest, by which the revision is known."""
        before_s = self._clock.now().wall_s - FORGET_AFTER_S
        over = [
            item.id
            for item in self._own.held.items.values()
            if item.kind == ChangeKind.BUDGET
            and self._is_ours(item)
            and item.value is None
            and item.set_at < before_s
            and item.n != self._here.revision
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

    async def _change(
        self,
        propose: Propose,
        action: str,
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
        name: str = "",
        size: int = 0,
    ) -> Change:
        """`size`: of what is wanted, where that is not what is there but for a little."""
        before = self.edition
        size = max(size, _size(before.document))
        if dry_run:  # A dry run needs no store, and does not delay changes.
            return await beside(size, lambda: self._tried(before, propose, expect))
        tried: list[Change] = []

        def draft(held: LogState, asked: Asked) -> Draft:
            tried[:] = [self._tried(self._at(held), propose, expect)]
            return self._drafted(held, tried[0], action, asked, name)

        done = await self._own.make(draft, who, dry_run=False, size=size)
        return self._made(tried[0], done)

    def _at(self, held: LogState) -> Edition:
        """The state of the log, which may be ahead of what is in force."""
        here = changes_here(held.items.values(), self.database)
        if here == self._here:
            return self.edition
        layers = Layers(self._file, self._fleet, here.changes)
        return replace(self._fitted(layers), revision=here.revision)

    def _tried(self, before: Edition, propose: Propose, expect: int | None) -> Change:
        if expect is not None and expect != before.revision:
            message = (
                f"the policy of {self.database} is at revision {before.revision}, not "
                f"{expect}: it was changed meanwhile; look again and repeat"
            )
            raise Conflict(message)
        after = replace(propose(before), left_out=before.left_out, revision=before.revision)
        self._check_names(after, before)
        return Change(before, after, dry_run=True)

    def _drafted(
        self, held: LogState, change: Change, action: str, asked: Asked, name: str = ""
    ) -> Draft:
        """What has to be in the log so that it is so."""
        if not change.changed:
            return Draft(action)
        self._ahead = change.after
        target = f"{self.database}/{name}" if name else self.database
        return Draft(
            action,
            edits(held.items.values(), self.database, change.after.changes, asked),
            entry=Shown(target, *audited(change)),
            summary=summary(change),
        )

    def _made(self, tried: Change, done: ChangeMade) -> Change:
        """In force by now, and perhaps another change after it."""
        if done.dry_run or not done.changes:
            return replace(tried, dry_run=done.dry_run)
        now, n = self.edition, done.after_n
        after = now if now.revision == n else replace(tried.after, revision=n)
        return replace(tried, after=after, dry_run=False)

    def _written_as(self, wanted: Wanted, name: str = "") -> Propose:
        return lambda before: self._proposed(before, wanted(before.document), name)

    def _proposed(self, before: Edition, wanted: object, name: str) -> Edition:
        try:
            after = self._judged(wanted, before.layers)
        except InvalidSettings as error:
            raise InvalidSettings(_about(error.faults, wanted, name)) from None
        return before if after.document == before.document else after

    def _judged(self, raw: object, layers: Layers, changes: Changes | None = None) -> Edition:
        """The edition that `raw` would be, or InvalidSettings with all that is wrong with it.
        `changes`: what makes it of the layers beneath, where that is known."""
        policy, role = parse_policy(raw), self._own_role
        advice = advise(exempting(policy, role), wall_ms=self._wall_ms())
        refused = [Fault(a.place, a.message) for a in advice if a.severity is Severity.ERROR]
        if refused:
            raise InvalidSettings(refused)
        document = written(policy)
        return Edition(
            revision=0,
            document=document,
            policy=policy,
            file=layers.file,
            changes=layers.changes_to(document) if changes is None else changes,
            advice=(*no_room(policy, role), *advice),
            by_health=any(budget.when is When.UNHEALTHY for budget in policy.kept),
            ending=tuple(budget for budget in policy.budgets if budget.expires_at_ms is not None),
            own_role=role,
            fleet={one.name: one for one in layers.fleet},
        )

    def validate(self, changes: Changes) -> None:
        """InvalidSettings with all that is wrong with the policy that these would make."""
        layers = replace(self.edition.layers, changes=changes)
        self._check_names(self._judged(layers.document, layers, changes), self.edition)

    def _check_names(self, after: Edition, before: Edition) -> None:
        """Of those that are new: what the settings file has cannot be helped."""
        known = {budget.name for budget in before.policy.budgets}
        faults = [
            Fault(f"budgets[{at}].name", f"{budget.name} is a reserved word of the API: {ANOTHER}")
            for at, budget in enumerate(after.policy.budgets)
            if budget.name in RESERVED_NAMES and budget.name not in known
        ]
        if faults:
            raise InvalidSettings(faults)

    def _of(self, document: Document, name: str) -> Mapping[str, Any]:
        budgets = budgets_of(document)
        if name not in budgets:
            known = ", ".join(list(budgets)[:10]) or "none"
            raise NoSuchBudget(f"{self.database} has no budget {name!r}; budgets: {known}")
        return budgets[name]

    def _no_revision(self, n: int) -> NoSuchBudget:
        return NoSuchBudget(
            f"{self.database} has no revision {n} of its policy; "
            f"`headgate budget history {self.database}` lists those that are kept"
        )

    def _wall_ms(self) -> int:
        return int(self._clock.now().wall_s * 1000)


def _with_budget(document: Document, name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    budgets = {**budgets_of(document), name: raw}
    return {**document, "budgets": list(budgets.values())}


def _without(document: Document, names: set[str]) -> dict[str, Any]:
    kept = [raw for raw in document.get("budgets", ()) if raw["name"] not in names]
    return {**document, "budgets": kept}


def _size(raw: object) -> int:
    budgets = raw.get("budgets", ()) if isinstance(raw, Mapping) else ()
    if not isinstance(budgets, Sequence):
        return 0
    rules = (one.get("rules", ()) for one in budgets if isinstance(one, Mapping))
    return len(budgets) + sum(len(some) for some in rules if isinstance(some, Sequence))


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
