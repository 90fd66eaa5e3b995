"""Keep one database's traffic policy.   operators ──change──► store (with audit) ──► in force

settings file ─┐
fleet ─────────┼─base─┐
store ──Changes───────┴──► document ──parse, lint──► Edition ──► Publisher ──► every server

Every change is a whole new edition: judged first, kept next, in force last. What does not pass
leaves the last good one where it is. Each stays in the store, to look at and to go back to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog

from headgate.agent.budgetedition import (
    Change,
    Edition,
    audited,
    capped,
    exempting,
    fitting,
    no_room,
    summary,
)
from headgate.agent.budgetlayers import (
    EMPTY,
    NO_CHANGES,
    Changes,
    Document,
    FleetBudget,
    Layers,
    beneath,
    budgets_of,
    merged,
    read_changes,
    written_changes,
)
from headgate.agent.ports import Clock, Store
from headgate.core.lint import Severity
from headgate.core.records import AuditEntry, PolicyRevision
from headgate.core.rule_times import parse_for
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
    "OURSELVES",
    "RESERVED_NAMES",
    "BudgetBook",
    "Change",
    "Edition",
    "NoSuchBudget",
    "capped",
    "exempting",
]

log = structlog.get_logger()

OURSELVES = "headgate"
READ, FOLLOWED = "policy.read", "policy.followed"
"""Actions: the settings file's, and the fleet's, as they came into force."""
LARGE = 500
"""Budgets and rules; more are judged in a thread, so that checks have their turn."""
RESERVED_NAMES = frozenset(
    {"history", "rollback", "violations", "state", "explain", "lint", "replay"}
)
"""Of the API's own routes: such a budget could not be looked at."""
WITHOUT_STORE = (
    "Nothing was changed. `headgate pg disable` on the server's host stops everything without it"
)
ANOTHER = "it could not be looked at; give it another name"


class NoSuchBudget(HeadgateError, LookupError):
    """A budget, or a revision, that is not kept here; or a database without traffic control."""


Draft = Callable[[Document], object]
"""The document as it stands in, as it is wanted out; whether it is one, parsing tells."""
T = TypeVar("T")


class BudgetBook:
    def __init__(
        self,
        database: str,
        store: Store,
        clock: Clock,
        publish: Callable[[Edition], Awaitable[None]],
        own_role: str = "",
    ) -> None:
        self.database = database
        self._own_role = own_role
        self._store = store
        self._clock = clock
        self._publish = publish
        self._file: Document = EMPTY
        self._fleet: tuple[FleetBudget, ...] = ()
        """Those of the fleet's that meet this database; which of them stand, the edition says."""
        self._lock = asyncio.Lock()
        self._newest_kept: Document = EMPTY
        """What the store has."""
        self._unkept = False
        """Another is in force: to be kept as soon as it can be."""
        self._unkept_action = READ
        self._keep_fault = ""
        self.edition = Edition(0, EMPTY, Policy(), own_role=own_role)

    # --- looking ---------------------------------------------------------------------------

    def raw(self, name: str) -> Mapping[str, Any]:
        try:
            return budgets_of(self.edition.document)[name]
        except KeyError:
            raise self._no_budget(name) from None

    async def history(self, limit: int) -> Sequence[PolicyRevision]:
        return await self._store.policy_revisions(self.database, limit=limit)

    async def at_revision(self, revision: int) -> PolicyRevision:
        found = await self._store.policy_revision(self.database, revision)
        if found is None:
            message = (
                f"{self.database} has no revision {revision} of its policy; "
                f"`headgate budget history {self.database}` lists those that are kept"
            )
            raise NoSuchBudget(message)
        return found

    # --- from the file and the store -------------------------------------------------------

    async def load(self, base: Document, kept: PolicyRevision | None) -> None:
        """The file's document (as `written`), and what the store has as newest."""
        async with self._lock:
            self._file = base
            changes = self.edition.changes if kept is None else self._kept_changes(kept)
            revision = self.edition.revision if kept is None else kept.revision
            if kept is not None:
                self._newest_kept = kept.document
            await self._stand(changes, revision)
            self._unkept = self.edition.document != self._newest_kept
            self._unkept_action = READ

    async def adopt(self, base: Document, own_role: str = "") -> None:
        """Another settings file. What was changed at run time stays on top of it."""
        if (base, own_role) != (self._file, self._own_role):
            self._own_role = own_role
            await self.load(base, None)

    async def follow(self, fleet: Sequence[FleetBudget]) -> bool:
        """What is set for the fleet, as far as it meets this database, by name. Whether it is
        another edition now."""
        if tuple(fleet) == self._fleet:
            return False
        async with self._lock:
            before, self._fleet = self.edition, tuple(fleet)
            await self._stand(before.changes, before.revision)
            changed = self.edition.document != before.document
            if changed:
                self._unkept = self.edition.document != self._newest_kept
                self._unkept_action = FOLLOWED
            return changed

    async def _stand(self, changes: Changes, revision: int) -> None:
        """What can stand of all layers: the file in any case; of the fleet's, what can with it."""
        layers, wall_ms = Layers(self._file, self._fleet, changes), self._wall_ms()
        wanted = layers.document

        def judged(some: Layers) -> Edition:
            return self._judged(some.document, some, revision, wall_ms)

        fit = await _beside(wanted, lambda: fitting(layers, judged))
        self.edition = fit.edition
        if fit.refused:
            log.error("policy.layers_refused", database=self.database, fault=fit.refused)
        for item_id, fault in fit.edition.left_out.items():
            about = {"database": self.database, "budget": item_id}
            log.error("policy.fleet_budget_left_out", **about, fault=fault)

    def _kept_changes(self, kept: PolicyRevision) -> Changes:
        try:
            return read_changes(kept.changes)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            log.error("policy.kept_changes_refused", database=self.database, fault=repr(error))
            return NO_CHANGES

    # --- changing --------------------------------------------------------------------------

    async def judge(self, raw: object) -> Change:
        """What a whole document would be, and change; nothing does."""
        return await self.put(raw, who=OURSELVES, dry_run=True)

    async def put(
        self, raw: object, *, who: str, expect: int | None = None, dry_run: bool = False
    ) -> Change:
        """The whole document."""
        return await self._change(
            lambda _: raw, "policy.set", who=who, expect=expect, dry_run=dry_run
        )

    async def set_budget(
        self,
        name: str,
        raw: Mapping[str, Any],
        *,
        who: str,
        expect: int | None = None,
        new: bool = False,
        dry_run: bool = False,
    ) -> Change:
        """Add or replace one; `new`: only where there is none yet. Starts in `warn` (R122)."""
        whole = self._with_end({**raw, "name": raw.get("name", name)})
        if whole["name"] != name:
            raise InvalidSettings([Fault("name", f"is {whole['name']!r}, not {name!r}")])

        def drafted(document: Document) -> Document:
            if new and name in budgets_of(document):
                raise Conflict(f"budget {name} is there already; change that one")
            return _with_budget(document, name, whole)

        return await self._change(
            drafted, "budget.set", who=who, expect=expect, dry_run=dry_run, name=name
        )

    async def patch_budget(
        self,
        name: str,
        raw: Mapping[str, Any],
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
    ) -> Change:
        """Some settings of one; null takes one out."""
        given = self._with_end(raw)
        if given.get("name", name) != name:
            message = "cannot be changed: that would be another budget; make it, and delete this"
            raise InvalidSettings([Fault("name", message)])
        return await self._change(
            lambda document: _with_budget(document, name, merged(self._of(document, name), given)),
            "budget.changed",
            who=who,
            expect=expect,
            dry_run=dry_run,
            name=name,
        )

    async def forgive(
        self, name: str, *, who: str, expect: int | None = None, dry_run: bool = False
    ) -> Change:
        """What its buckets owe is forgotten: its epoch rises."""

        def drafted(document: Document) -> Document:
            raw = self._of(document, name)
            return _with_budget(document, name, {**raw, "epoch": raw.get("epoch", 0) + 1})

        return await self._change(
            drafted, "budget.forgiven", who=who, expect=expect, dry_run=dry_run, name=name
        )

    async def remove(
        self, name: str, *, who: str, expect: int | None = None, dry_run: bool = False
    ) -> Change:
        def drafted(document: Document) -> Document:
            self._of(document, name)
            return _without(document, {name})

        return await self._change(
            drafted, "budget.removed", who=who, expect=expect, dry_run=dry_run, name=name
        )

    async def cap(
        self, mode: Mode, *, who: str, expect: int | None = None, dry_run: bool = False
    ) -> Change:
        """No budget goes beyond `mode` from now on; each keeps its own for when this is lifted."""
        try:
            return await self._change(
                lambda document: document,
                "policy.capped" if mode is not Mode.ENFORCE else "policy.uncapped",
                who=who,
                expect=expect,
                dry_run=dry_run,
                mode_cap=mode,
            )
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{error}. {WITHOUT_STORE}") from error

    async def rollback(
        self, revision: int, *, who: str, expect: int | None = None, dry_run: bool = False
    ) -> Change:
        """As it stood then, as a new revision. The cap is not of the document, and stays."""
        kept = await self.at_revision(revision)
        return await self._change(
            lambda _: kept.document, "policy.rolled_back", who=who, expect=expect, dry_run=dry_run
        )

    async def tend(self) -> None:
        """Drop what has expired; keep what the file brought and the store has not got."""
        wall_ms = self._wall_ms()
        expired = {budget.name for budget in self.edition.ending if budget.expired(wall_ms)}
        ours = {name for name in expired if self.edition.ends_at_agent(name)}
        if ours:
            await self._by_itself(self._drop(ours))
        elif self._unkept:
            await self._by_itself(self._keep_file())

    async def _drop(self, expired: set[str]) -> None:
        """One that lay on the fleet's gives way to it."""

        def drafted(document: Document) -> Document:
            fleet = [one for one in self.edition.fleet.values() if one.name in expired]
            return beneath(_without(document, expired), fleet)

        await self._change(drafted, "budget.expired", who=OURSELVES)

    async def _keep_file(self) -> None:
        """The file's new document, or the fleet's, as a revision of its own: history has all that
        was in force."""
        async with self._lock:
            was = await _beside(self._newest_kept, lambda: _readable(self._newest_kept))
            before = replace(self.edition, document=self._newest_kept, policy=was)
            change = Change(before, self.edition, dry_run=False)
            kept = await self._keep(change, self._unkept_action, OURSELVES, "")
            await self._in_force(replace(self.edition, revision=kept.revision))

    # --- steps of a change -----------------------------------------------------------------

    async def _by_itself(self, step: Awaitable[None]) -> None:
        """Tried again each second while the store is away, and told once."""
        try:
            await step
            self._keep_fault = ""
        except (StoreUnavailable, Conflict) as error:
            if not self._keep_fault:
                log.warning("policy.unkept", database=self.database, detail=str(error))
            self._keep_fault = str(error)

    async def _change(
        self,
        draft: Draft,
        action: str,
        *,
        who: str,
        expect: int | None = None,
        dry_run: bool = False,
        mode_cap: Mode | None = None,
        name: str = "",
    ) -> Change:
        if dry_run:  # Whoever only asks holds up nobody who changes.
            return await self._tried(draft, expect, mode_cap, name)
        async with self._lock:
            change = replace(await self._tried(draft, expect, mode_cap, name), dry_run=False)
            after = change.after
            if not change.changed:
                return change
            kept = await self._keep(change, action, who, name)
            await self._in_force(replace(after, revision=kept.revision))
            if self.edition.left_out:
                await self._try_again()
            return replace(change, after=self.edition)

    async def _try_again(self) -> None:
        """What was in the way of one of the fleet's may be gone."""
        before = self.edition
        await self._stand(before.changes, before.revision)
        if self.edition.document != before.document:
            self._unkept, self._unkept_action = True, FOLLOWED
            await self._publish(self.edition)

    async def _tried(
        self, draft: Draft, expect: int | None, mode_cap: Mode | None, name: str
    ) -> Change:
        before = self.edition
        self._check_expected(expect)
        if mode_cap is not None:
            # The switch for all of them changes nothing else, and has no time to lose.
            after = replace(before, changes=replace(before.changes, mode_cap=mode_cap))
            return Change(before, after, dry_run=True)
        after = await self._proposed(draft(before.document), before.changes.mode_cap, name)
        self._check_names(after, before)
        return Change(before, after, dry_run=True)

    async def _in_force(self, edition: Edition) -> None:
        self.edition, self._newest_kept, self._unkept = edition, edition.document, False
        await self._publish(edition)

    async def _proposed(self, wanted: object, cap: Mode, name: str) -> Edition:
        before, wall_ms = self.edition, self._wall_ms()
        changes = replace(before.changes, mode_cap=cap)
        layers = Layers(self._file, tuple(before.fleet.values()), changes)
        try:
            after = await _beside(
                wanted, lambda: self._judged(wanted, layers, before.revision, wall_ms)
            )
            return replace(after, left_out=before.left_out)
        except InvalidSettings as error:
            raise InvalidSettings(_about(error.faults, wanted, name)) from None

    def _judged(self, raw: object, layers: Layers, revision: int, wall_ms: int) -> Edition:
        """The edition that `raw` would be, or InvalidSettings with all that is wrong with it."""
        policy, role = parse_policy(raw), self._own_role
        advice = advise(exempting(policy, role), wall_ms=wall_ms)
        refused = [Fault(a.place, a.message) for a in advice if a.severity is Severity.ERROR]
        if refused:
            raise InvalidSettings(refused)
        document = written(policy)
        return Edition(
            revision=revision,
            document=document,
            policy=policy,
            changes=layers.changes_to(document),
            advice=(*no_room(policy, role), *advice),
            by_health=any(budget.when is When.UNHEALTHY for budget in policy.kept),
            ending=tuple(budget for budget in policy.budgets if budget.expires_at_ms is not None),
            own_role=role,
            fleet={one.name: one for one in layers.fleet},
        )

    def _check_expected(self, expect: int | None) -> None:
        if expect is not None and expect != self.edition.revision:
            message = (
                f"the policy of {self.database} is at revision {self.edition.revision}, not "
                f"{expect}: somebody changed it in between; look again and repeat"
            )
            raise Conflict(message)

    def _check_names(self, after: Edition, before: Edition) -> None:
        """Of those that are new: what the settings file has cannot be helped."""
        known = {budget.name for budget in before.policy.budgets}
        faults = [
            Fault(f"budgets[{at}].name", f"{budget.name} is a word of the API's own: {ANOTHER}")
            for at, budget in enumerate(after.policy.budgets)
            if budget.name in RESERVED_NAMES and budget.name not in known
        ]
        if faults:
            raise InvalidSettings(faults)

    async def _keep(self, change: Change, action: str, who: str, name: str) -> PolicyRevision:
        now_s, database = self._clock.now().wall_s, self.database
        target = f"{database}/{name}" if name else database

        def made() -> tuple[PolicyRevision, AuditEntry]:
            after, (was, became) = change.after, audited(change)
            about = (database, change.before.revision, now_s, who, action, summary(change))
            new = PolicyRevision(*about, after.document, written_changes(after.changes))
            return new, AuditEntry(now_s, who, action, target, was, became)

        new, audit = await _beside(change.after.document, made)
        kept = await self._store.put_policy(new, audit)
        log.info(action, database=database, who=who, revision=kept.revision, what=new.summary)
        return kept

    def _of(self, document: Document, name: str) -> Mapping[str, Any]:
        try:
            return budgets_of(document)[name]
        except KeyError:
            raise self._no_budget(name) from None

    def _no_budget(self, name: str) -> NoSuchBudget:
        known = ", ".join(list(budgets_of(self.edition.document))[:10]) or "none"
        return NoSuchBudget(f"{self.database} has no budget {name!r}; there are: {known}")

    def _with_end(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """`for`, as rules have it, is counted from now; it is not kept, the end is."""
        given = dict(raw)
        lasts = given.pop("for", None)
        if lasts is None:
            return given
        if given.get("expires_at") is not None:
            raise InvalidSettings([Fault("for", "says the end twice: give `for` or `expires_at`")])
        try:
            ends_s = self._clock.now().wall_s + parse_for(lasts)
        except ValueError as error:
            raise InvalidSettings([Fault("for", str(error))]) from None
        ends = datetime.fromtimestamp(round(ends_s), UTC).isoformat().replace("+00:00", "Z")
        return {**given, "expires_at": ends}

    def _wall_ms(self) -> int:
        return int(self._clock.now().wall_s * 1000)


def _with_budget(document: Document, name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    budgets = {**budgets_of(document), name: raw}
    return {**document, "budgets": list(budgets.values())}


def _without(document: Document, names: set[str]) -> dict[str, Any]:
    kept = [raw for raw in document.get("budgets", ()) if raw["name"] not in names]
    return {**document, "budgets": kept}


async def _beside(raw: object, work: Callable[[], T]) -> T:
    """What has to do with the whole of a large document is done in a thread."""
    return await asyncio.to_thread(work) if _size(raw) > LARGE else work()


def _readable(kept: Document) -> Policy:
    """One that another version kept may not be; then everything reads as new."""
    try:
        return parse_policy(kept)
    except InvalidSettings:
        return Policy()


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
