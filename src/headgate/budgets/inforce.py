"""The policy of one database that is in force.   file, fleet, own log ──► Edition ──► audit

settings file ─┐
fleet ─────────┼─base─┐
own log ──PolicyChanges─────┴──► document ──parse, lint──► Edition ──► PolicyKeeper, servers

What does not pass leaves the last good one where it is. What the settings file and the fleet bring
is in the audit (PolicyNotes).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import structlog

from headgate.base.advice import Severity
from headgate.base.keyvalue import Put, read_object
from headgate.base.ports import ChangeLog, Clock
from headgate.base.supervise import beside
from headgate.budgets.advice import advise
from headgate.budgets.layers import (
    ANOTHER,
    EMPTY,
    RESERVED_NAMES,
    ChangesHere,
    Document,
    Edition,
    EditionChange,
    FleetBudget,
    Layers,
    PolicyChanges,
    PolicyTarget,
    WideCap,
    audited,
    changes_here,
    exempting,
    fitting,
    no_room,
    read_wide,
    summary,
)
from headgate.budgets.parse import parse_policy, written
from headgate.budgets.policy import Policy, When
from headgate.changes.model import NOTES, OURSELVES, quoted
from headgate.changes.reach import HERE
from headgate.changes.state import LogState
from headgate.errors import Fault, InvalidSettings
from headgate.history.records import AuditEntry

log = structlog.get_logger()


class PolicyInForce:
    def __init__(
        self,
        database: str,
        store: ChangeLog,
        clock: Clock,
        publish: Callable[[Edition], Awaitable[None]],
        own_role: str = "",
    ) -> None:
        self.database = database
        self._own_role = own_role
        self._clock = clock
        self._publish = publish
        self._file: Document = EMPTY
        self._fleet: tuple[FleetBudget, ...] = ()
        """Those of the fleet's for this database; the edition has those that are valid."""
        self._here = ChangesHere()
        """As in the own log; the edition has what of it is valid."""
        self._lock = asyncio.Lock()
        self._stood: tuple[Layers, str] | None = None
        """The layers and our role that the edition was computed from."""
        self.ahead: Edition | None = None
        """Computed for a change that is not in force yet."""
        self.notes = PolicyNotes(database, store, clock)
        self.edition = Edition(0, EMPTY, Policy(), own_role=own_role)

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
        size = size_of(self._file) + len(self._fleet) + len(layers.changes.budgets)
        ready = await beside(size, lambda: self._ready(layers) or self._fitted(layers))
        before = self.edition  # It may have waited.
        self.edition = replace(ready, revision=revision, over=before.over, caps=before.caps)
        self._stood, self.ahead = (layers, self._own_role), None
        if is_first or (before.file, before.fleet) != (ready.file, ready.fleet):
            self.notes.brought(before, self.edition, action)

    def _ready(self, layers: Layers) -> Edition | None:
        """Where there is nothing to validate: it is the one that a change was worked out as, or
        the mode of all is another, which has no time to lose."""
        now, ahead = self.edition, self.ahead
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
        fit = fitting(layers, lambda some: self.judged(some.document, some, some.changes))
        if fit.rejected:
            log.error("policy.layers_rejected", database=self.database, fault=fit.rejected)
        for item_id, fault in fit.edition.left_out.items():
            about = {"database": self.database, "budget": item_id}
            log.error("policy.fleet_budget_left_out", **about, fault=fault)
        return fit.edition

    def at(self, held: LogState, of: PolicyTarget) -> Edition:
        """As the log has it, which may be ahead of what is in force."""
        here, fleet = changes_here(held.items.values(), self.database), self._fleet
        if of.reach != HERE:
            item = held.budget(of.name, of.reach)
            alike = [one for one in fleet if one.name != of.name]
            if item is not None and item.value is not None:
                alike.append(read_wide(item, of_shard=True))
            fleet = tuple(sorted(alike, key=lambda one: one.name))
        if (here, fleet) == (self._here, self._fleet):
            return self.edition
        now, fitted = self.edition, self._fitted(Layers(self._file, fleet, here.changes))
        return replace(fitted, revision=here.revision, over=now.over, caps=now.caps)

    def judged(self, raw: object, layers: Layers, changes: PolicyChanges | None = None) -> Edition:
        """The edition that `raw` would be, or InvalidSettings with all that is wrong with it.
        `changes`: what makes it of the layers beneath, where that is known."""
        policy, role = parse_policy(raw), self._own_role
        advice = advise(exempting(policy, role), wall_ms=int(self._clock.now().wall_s * 1000))
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
        self.check_names(self.judged(layers.document, layers, changes), self.edition)

    def check_names(self, after: Edition, before: Edition) -> None:
        """Of those that are new: what the settings file has cannot be helped."""
        known = {budget.name for budget in before.policy.budgets}
        faults = [
            Fault(f"budgets[{at}].name", f"{budget.name} is a reserved word of the API: {ANOTHER}")
            for at, budget in enumerate(after.policy.budgets)
            if budget.name in RESERVED_NAMES and budget.name not in known
        ]
        if faults:
            raise InvalidSettings(faults)


def size_of(raw: object) -> int:
    budgets = raw.get("budgets", ()) if isinstance(raw, Mapping) else ()
    if not isinstance(budgets, Sequence):
        return 0
    rules = (one.get("rules", ()) for one in budgets if isinstance(one, Mapping))
    return len(budgets) + sum(len(some) for some in rules if isinstance(some, Sequence))


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
