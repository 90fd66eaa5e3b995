"""Keep one database's traffic policy.   operators ──change──► own log (with audit) ──► in force

settings file ─┐
fleet ─────────┼─base─┐
own log ──PolicyChanges─────┴──► document ──parse, lint──► Edition ──► Publisher ──► every server

Every change is a whole new edition: validated first, in the log next, in force last. What does not
pass leaves the last good one where it is.

A change is worked out on what the log has, within the log's own turn (OwnWriter), and comes into
force by `follow_own`, before `OwnBook.make` returns: nobody calls that with this book's lock held.
What the settings file and the fleet bring is in the audit (PolicyNotes). A file of changes says of
budgets and policies what `headgate changes` takes and writes (BudgetRoom):

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

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, Unpack

import structlog

from headgate.base.keyvalue import Put, read_object
from headgate.base.ports import ChangeLog, Clock
from headgate.budgets.drafts import check_budget_room, judged, with_end
from headgate.budgets.layers import (
    ANOTHER,
    EMPTY,
    KINDS,
    RESERVED_NAMES,
    ChangesHere,
    Document,
    Edition,
    EditionChange,
    FleetBudget,
    Layers,
    PolicyChanges,
    WideCap,
    audited,
    beneath,
    budgets_of,
    changes_here,
    database_of,
    differences,
    edits,
    exempting,
    fitting,
    merged,
    no_room,
    policy_value,
    summary,
)
from headgate.budgets.lint import advise
from headgate.budgets.parse import parse_budget, parse_policy, written, written_budget
from headgate.budgets.policy import Mode, Policy, When
from headgate.changes.book import OwnBook
from headgate.changes.file_format import FileEntry
from headgate.changes.files import UNSET
from headgate.changes.items import Expecting
from headgate.changes.model import (
    FORGET_AFTER_S,
    NOTES,
    OURSELVES,
    Change,
    ChangeKind,
    Edit,
    quoted,
)
from headgate.changes.reach import HERE
from headgate.changes.state import ChangeMade, LogState, name_of
from headgate.changes.writer import AuditView, Draft, beside
from headgate.errors import (
    Conflict,
    Fault,
    HeadgateError,
    InvalidRequest,
    InvalidSettings,
    StoreUnavailable,
)
from headgate.history.records import AuditEntry
from headgate.metrics.lint import Advice, Severity
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
    def __init__(
        self,
        database: str,
        store: ChangeLog,
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
        """Those of the fleet's for this database; the edition has those that are valid."""
        self._here = ChangesHere()
        """As in the own log; the edition says the edition has what of it is valid."""
        self._lock = asyncio.Lock()
        self._stood: tuple[Layers, str] | None = None
        """The layers and our role that the edition was computed from."""
        self._ahead: Edition | None = None
        """Computed for a change that is not in force yet."""
        self._notes = PolicyNotes(database, store, clock)
        self._unkept = ""
        """Why an automatic change of the agent could not be stored."""
        self._forget_at = clock.now().mono_s + LOOK_EVERY_S
        self.edition = Edition(0, EMPTY, Policy(), own_role=own_role)

    # --- looking ---------------------------------------------------------------------------

    @property
    def had_base(self) -> bool:
        """The settings file or the fleet has set budgets once, as far as that is known yet."""
        return self._notes.is_noted

    def raw(self, name: str) -> Mapping[str, Any]:
        return self._of(self.edition.document, name)

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
        """What is set for the fleet, as far as it applies to this database, by name. Whether it is
        another edition now."""
        if tuple(fleet) == self._fleet:
            return False
        async with self._lock:
            before, self._fleet = self.edition, tuple(fleet)
            await self._stand(FOLLOWED)
            return self.edition.document != before.document

    async def follow_own(self, here: ChangesHere, *, publish: bool) -> bool:
        """What the agent's own log has. `publish`: servers get it at once. Whether it is
        another edition now."""
        if here == self._here:
            return False
        async with self._lock:
            self._here = here
            await self._stand(FOLLOWED)
            if publish:
                await self._publish(self.edition)
            return True

    def end(self, over: frozenset[str]) -> None:
        """Of those that were changed here: their time is used up."""
        if over != self.edition.over:
            self.edition = replace(self.edition, over=over)

    def cap_by(self, caps: tuple[WideCap, ...]) -> bool:
        """Switches that reach further than this agent. Whether that is another mode now."""
        before = self.edition
        if caps != before.caps:
            self.edition = replace(before, caps=caps)
        return self.edition.mode_cap is not before.mode_cap

    async def _stand(self, action: str) -> None:
        """What can stand of all layers: the file in any case; of the fleet's, what can with it.
        `action`: what it is where another base is in force by it."""
        layers, revision = Layers(self._file, self._fleet, self._here.changes), self._here.revision
        before, is_first = self.edition, self._stood is None
        size = _size(self._file) + len(self._fleet) + len(layers.changes.budgets)
        ready = await beside(size, lambda: self._ready(layers) or self._fitted(layers))
        before = self.edition  # It may have waited.
        self.edition = replace(ready, revision=revision, over=before.over, caps=before.caps)
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
        if fit.rejected:
            log.error("policy.layers_rejected", database=self.database, fault=fit.rejected)
        for item_id, fault in fit.edition.left_out.items():
            about = {"database": self.database, "budget": item_id}
            log.error("policy.fleet_budget_left_out", **about, fault=fault)
        return fit.edition

    # --- changing --------------------------------------------------------------------------

    async def judge(self, raw: object) -> EditionChange:
        """What a whole document would be, and change; nothing does."""
        propose = self._written_as(lambda _: raw)
        return await self._change(
            propose, "policy.set", size=_size(raw), who=OURSELVES, dry_run=True
        )

    async def tried(self, items: Iterable[Change], fleet: Sequence[FleetBudget]) -> EditionChange:
        """What the policy would be with these changes of the log, and these budgets that reach
        beyond this agent; nothing changes."""
        held = {**self._own.held.items, **{name_of(item): item for item in items}}

        def propose(before: Edition) -> Edition:
            changes = changes_here(held.values(), self.database).changes
            layers = replace(before.layers, fleet=tuple(fleet), changes=changes)
            return self._judged(layers.document, layers, changes)

        return await self._change(propose, "policy.set", who=OURSELVES, dry_run=True)

    async def set_budget(
        self,
        name: str,
        raw: Mapping[str, Any],
        *,
        new: bool = False,
        **by: Unpack[Expecting],
    ) -> EditionChange:
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
    ) -> EditionChange:
        """Some settings of one; null takes one out."""
        given = with_end(raw, self._clock.now().wall_s)
        if given.get("name", name) != name:
            message = "cannot be changed: that is another budget; create it, and delete this"
            raise InvalidSettings([Fault("name", message)])

        def wanted(document: Document) -> Document:
            return _with_budget(document, name, merged(self._of(document, name), given))

        return await self._change(self._written_as(wanted, name), "budget.changed", name=name, **by)

    async def forgive(self, name: str, **by: Unpack[Expecting]) -> EditionChange:
        """Clear the debt of its buckets: its epoch rises."""

        def wanted(document: Document) -> Document:
            raw = self._of(document, name)
            return _with_budget(document, name, {**raw, "epoch": raw.get("epoch", 0) + 1})

        return await self._change(
            self._written_as(wanted, name), "budget.forgiven", name=name, **by
        )

    async def remove(self, name: str, **by: Unpack[Expecting]) -> EditionChange:
        def wanted(document: Document) -> Document:
            self._of(document, name)
            return _without(document, {name})

        return await self._change(self._written_as(wanted, name), "budget.removed", name=name, **by)

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
        ended = self.edition.ended(self._wall_ms())
        ours = {name for name in ended if self.edition.ends_at_agent(name)}
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
            and database_of(item) == self.database
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
    ) -> EditionChange:
        """`size`: of what is wanted, where that is not what is there but for a little."""
        before = self.edition
        size = max(size, _size(before.document))
        if dry_run:  # A dry run needs no store, and does not delay changes.
            return await beside(size, lambda: self._tried(before, propose, expect))
        tried: list[EditionChange] = []

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            now = self._at(held)
            if now.of_shard(name) is not None and before.of_shard(name) is None:
                message = f"budget {name} just came from its shard; look again and repeat"
                raise InvalidRequest(message, status=409)
            tried[:] = [self._tried(now, propose, expect)]
            return self._drafted(held, tried[0], action, asked, name)

        done = await self._own.make(draft, who, dry_run=False, size=size)
        return self._made(tried[0], done)

    def _at(self, held: LogState) -> Edition:
        """As the log has it, which may be ahead of what is in force."""
        here = changes_here(held.items.values(), self.database)
        if here == self._here:
            return self.edition
        layers = Layers(self._file, self._fleet, here.changes)
        now, fitted = self.edition, self._fitted(layers)
        return replace(fitted, revision=here.revision, over=now.over, caps=now.caps)

    def _tried(self, before: Edition, propose: Propose, expect: int | None) -> EditionChange:
        if expect is not None and expect != before.revision:
            message = (
                f"the policy of {self.database} is at revision {before.revision}, not "
                f"{expect}: another operator changed it in between; look again and repeat"
            )
            raise Conflict(message)
        after = replace(propose(before), left_out=before.left_out, revision=before.revision)
        after = replace(after, over=before.over, caps=before.caps)
        self._check_names(after, before)
        return EditionChange(before, after, dry_run=True)

    def _drafted(
        self,
        held: LogState,
        change: EditionChange,
        action: str,
        asked: ChangeAuthor,
        name: str = "",
    ) -> Draft:
        """What has to be in the log so that it is so."""
        if not change.changed:
            return Draft(action)
        self._ahead = change.after
        target = f"{self.database}/{name}" if name else self.database
        return Draft(
            action,
            edits(held.items.values(), self.database, change.after.changes, asked),
            entry=AuditView(target, *audited(change)),
            summary=summary(change),
        )

    def _made(self, tried: EditionChange, done: ChangeMade) -> EditionChange:
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

    def _judged(self, raw: object, layers: Layers, changes: PolicyChanges | None = None) -> Edition:
        """The edition that `raw` would be, or InvalidSettings with all that is wrong with it.
        `changes`: what makes it of the layers beneath, where that is known."""
        policy, role = parse_policy(raw), self._own_role
        advice = advise(exempting(policy, role), wall_ms=self._wall_ms())
        rejected = [Fault(a.place, a.message) for a in advice if a.severity is Severity.ERROR]
        if rejected:
            raise InvalidSettings(rejected)
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

    def validate(self, changes: PolicyChanges) -> None:
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


# --- what the settings file and the fleet bring, for the audit ---------------------------------

READ, FOLLOWED = "policy.read", "policy.followed"
"""Actions: the file's policy, and the fleet's, came into force."""
NOTHING = Edition(0, EMPTY, Policy())


class PolicyNotes:
    """Nobody at this agent changed it, so it is no revision of the log. The note says which file
    and which of the fleet's budgets were audited last: a start with the same ones is no change."""

    def __init__(self, database: str, store: ChangeLog, clock: Clock) -> None:
        self._database = database
        self._store = store
        self._clock = clock
        self._key = f"{NOTES}policy/{quoted(database)}"
        self._noted: str | None = None
        """The digest that the store has; empty: it has none; None: not read yet."""
        self._before: Edition | None = None
        """As it was before the first change that is not audited yet."""
        self._brought: tuple[Edition, str] | None = None

    @property
    def is_noted(self) -> bool:
        """There has been one, as far as the store was read."""
        return bool(self._noted)

    @property
    def is_due(self) -> bool:
        return self._brought is not None

    def brought(self, before: Edition, after: Edition, action: str) -> None:
        """It is in force; the next `keep` audits it."""
        if self._noted is not None and self._before is None:
            self._before = before
        self._brought = (after, action)

    async def keep(self) -> None:
        """Raises StoreUnavailable where it cannot be: then it is still due."""
        due = self._brought
        if due is None:
            return
        if self._noted is None:
            self._noted = await self._read()
        (after, action), noted = due, self._noted
        size = len(after.policy.budgets)
        digest = await beside(size, lambda: _digest(after))
        if digest != (noted or NONE):
            audit = await beside(size, lambda: self._entries(after, action, noted))
            await self._store.commit((), (self._note(digest),), audit=audit)
            self._noted = digest
        if self._brought is due:
            self._brought, self._before = None, None

    def _entries(self, after: Edition, action: str, noted: str) -> list[AuditEntry]:
        """None where the document is as it was: what was changed here lies on top of it."""
        before = self._before if noted and self._before is not None else NOTHING
        change = EditionChange(before, after, dry_run=False)
        if before.document == after.document:
            return []
        was, became = audited(change)
        what = summary(change)
        shown: Mapping[str, Any] | None = was
        if noted and self._before is None:  # It was another when the agent ran last.
            shown, what = None, "another than before the start"
        log.info(action, database=self._database, who=OURSELVES, what=what)
        now_s = self._clock.now().wall_s
        return [AuditEntry(now_s, OURSELVES, action, self._database, shown, became)]

    async def _read(self) -> str:
        entries = (await self._store.list((self._key,))).entries
        for entry in entries:
            if entry.key == self._key:
                try:
                    return str(read_object(entry.value).get("digest", ""))
                except ValueError as error:
                    log.error("policy.note_unreadable", key=entry.key, fault=str(error))
        return ""

    def _note(self, digest: str) -> Put:
        return Put(self._key, json.dumps({"digest": digest}).encode())


def _digest(edition: Edition) -> str:
    said = json.dumps(edition.layers.base, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()


NONE = _digest(NOTHING)


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
    """Implements changefiles.Room. One with a reach beyond this agent is a whole budget, as in a
    fleet."""

    def __init__(self, by_database: Mapping[str, Kept]) -> None:
        self._by_database = by_database

    def drafted(
        self, held: LogState, entry: FileEntry, asked: ChangeAuthor
    ) -> tuple[Change, Sequence[Advice]]:
        if entry.kind is ChangeKind.POLICY:
            value = _policy(held, entry, self._book(entry))
            return Change(ChangeKind.POLICY, entry.id, HERE, value, 0, asked.wall_s, asked.who), ()
        if entry.reach != HERE:
            return judged(entry.raw, entry.reach, asked, place=entry.place)
        base = budgets_of(self._book(entry).edition.layers.base).get(entry.raw["name"])
        removal = _removal(entry, base) if "removed" in entry.raw else None
        value = removal or _change(held, entry, base, asked)
        return Change(ChangeKind.BUDGET, entry.id, HERE, value, 0, asked.wall_s, asked.who), ()

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
    if entry.reach != HERE:
        faults.append(Fault(f"{entry.place}.reach", f"is {entry.reach}, must be {HERE}"))
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


def _removal(entry: FileEntry, base: Mapping[str, Any] | None) -> dict[str, Any]:
    fault = ""
    if entry.raw["removed"] is not True:
        fault = "must be true; leave it out to keep the budget"
    elif entry.raw.keys() - {"database", "name", "removed"}:
        fault = "removes the budget, so settings have no effect: give those, or removed = true"
    elif base is None:
        fault = "neither the settings file nor the fleet has such a budget: leave the entry out"
    if fault:
        raise InvalidSettings([Fault(f"{entry.place}.removed", fault)])
    return {"removed": True}


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
        book.validate(wanted)
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
