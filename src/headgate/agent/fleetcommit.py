"""One change of a log, on top of what stands.   ChangeBook ──plan──► FleetWriter ──► store

read ──Holdings──► plan ──Draft──► parts ──commit, compared with head──► revisions n+1, n+2 …
  ▲                                             │
  └── somebody else was first: all of it anew ──┘

Every commit compares head, so that of all who build on revision n one gets through. That one's
log/<n+1> carries its op: who lost an answer looks there, and knows whether it was theirs.

OwnWriter does the same with the log of one agent. It keeps what stands in memory, and puts the
audit entries into the same transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, cast

import structlog

from headgate.agent.fleethistory import MAX_REVISIONS
from headgate.agent.ports import Clock, FleetStore, OwnStore
from headgate.core.fleet import BEAT, HEAD, ITEMS, Item, ItemChange, ItemKind, Revision, log_key
from headgate.core.fleet_beat import Beat, read_beat
from headgate.core.fleet_change import (
    FleetChange,
    Holdings,
    ItemName,
    is_taken_out,
    name_of,
    newest,
    summary_of,
)
from headgate.core.fleet_items import (
    head_bytes,
    item_bytes,
    op_of,
    read_head,
    read_item_at,
    revision_bytes,
)
from headgate.core.fleet_parts import lease_s, numbered, oversized, parts_of, put_by
from headgate.core.keyvalue import Compare, Entry, Listing, Put
from headgate.core.lint import Advice
from headgate.core.records import AuditEntry
from headgate.errors import (
    Conflict,
    HeadgateError,
    InvalidSettings,
    LeaseLost,
    OutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
)

log = structlog.get_logger()

MAX_DRAFTS = 12
"""Times that somebody else may be first."""
MAX_LOOKS = 5
"""Times that a change whose outcome was lost is looked for, or tried again."""
WITHIN_S = 20.0
"""All tries of the same together: somebody waits for the answer."""
PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
OURSELVES = "headgate"
LARGE = 500
"""Items; more are worked on in a thread, so that checks have their turn."""

T = TypeVar("T")


class NoSuchItem(HeadgateError, LookupError):
    """A rule, a budget or a revision that the fleet does not have."""


class StoppedMidway(StoreUnavailable):
    """A change of several revisions of which some were made: says how far it came."""

    def __init__(self, message: str, done: FleetChange, left: int) -> None:
        super().__init__(message)
        self.done = done
        self.left = left
        """Items that are still as they were."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a change would do to what stands."""

    action: str
    changes: Sequence[ItemChange] = ()
    """Whatever n their items carry: they get that of the revision which puts them."""
    advice: tuple[Advice, ...] = ()
    least_n: int = 0
    """Revisions go on above this, also where the store is further back."""
    shown: Mapping[ItemName, tuple[Any, Any]] = field(default_factory=dict)
    """What the audit shows of a change as before and after, where that is not the value itself."""


Plan = Callable[[Holdings], Awaitable[Draft]]
"""Asked again whenever somebody else was first; raises what is wrong with it."""


class Ground(NamedTuple):
    """What a commit is built on."""

    n: int
    head_revision: int


@dataclass(slots=True)
class _Run:
    """One change under way."""

    plan: Plan
    who: str
    before_n: int
    draft: Draft
    parts: list[tuple[ItemChange, ...]]
    done: list[Revision] = field(default_factory=list)

    @property
    def left(self) -> int:
        return sum(map(len, self.parts))

    def advance(self, made: Revision) -> None:
        self.done.append(made)
        self.parts.pop(0)

    def change(self, advice: tuple[Advice, ...] = ()) -> FleetChange:
        """As far as it came."""
        after_n = self.done[-1].n if self.done else self.before_n
        changes = tuple(change for revision in self.done for change in revision.changes)
        return FleetChange(self.before_n, after_n, changes, advice=advice, revisions=len(self.done))


class FleetWriter:
    _event = "fleet."
    _flag = " --fleet"
    """With which `headgate changes` asks for this log."""

    def __init__(
        self,
        store: FleetStore,
        clock: Clock,
        roll: Callable[[], float],
        new_op: Callable[[], str],
    ) -> None:
        self._store = store
        self._clock = clock
        self._roll = roll
        self._new_op = new_op

    # --- reading ---------------------------------------------------------------------------

    async def read(self) -> Holdings:
        listing = await self._store.list((HEAD, BEAT, ITEMS))
        return await beside(len(listing.entries), lambda: holdings_of(listing))

    async def head(self) -> Ground:
        return _ground(holdings_of(await self._store.list((HEAD,))))

    # --- changing --------------------------------------------------------------------------

    async def carry_out(
        self, plan: Plan, *, who: str, expect_n: int | None = None, dry_run: bool = False
    ) -> FleetChange:
        """All of it; of a change that takes several revisions perhaps some: StoppedMidway."""
        holdings = await self.read()
        _check_expected(holdings.n, expect_n)
        draft, parts = await self._drafted(plan, holdings)
        if dry_run or not parts:
            return _proposed(holdings, draft, len(parts), dry_run=dry_run)
        run = _Run(plan, who, holdings.n, draft, parts)
        try:
            await self._run(run, holdings, expect_n)
        except (Conflict, InvalidSettings, NoSuchItem, StoreUnavailable) as error:
            if not run.done:
                raise
            stopped = _stopped(run, error, self._flag)
            # Who asked may be gone.
            log.error("fleet.stopped_midway", who=who, detail=str(stopped))
            raise stopped from error
        return run.change(run.draft.advice)

    async def _run(self, run: _Run, holdings: Holdings, expect_n: int | None) -> None:
        ground, patience = _ground(holdings), self._patience(MAX_DRAFTS)
        while run.parts:
            step = self._step(run, ground)
            try:
                made = await self._attempt(ground, step, run.draft)
            except (OutcomeUnknown, StoreRefused):
                raise
            except StoreUnavailable as error:
                # Half a change is worse than a late one; of one not begun, its caller decides.
                if not run.done:
                    raise
                await patience.wait(error)
                continue
            if made is not None:
                log.info(self._event + step.action, n=step.n, who=step.who, what=step.summary)
                run.advance(step)
                ground, patience = made, self._patience(MAX_DRAFTS)
                continue
            if run.done and expect_n is not None:
                raise Conflict("somebody else changed it in between")
            await patience.wait(_busy(step))
            holdings = await self.read()
            _check_expected(holdings.n, expect_n)
            run.draft, run.parts = await self._drafted(run.plan, holdings)
            ground = _ground(holdings)

    async def _drafted(
        self, plan: Plan, holdings: Holdings
    ) -> tuple[Draft, list[tuple[ItemChange, ...]]]:
        draft = await plan(holdings)
        changes = draft.changes
        faults = await beside(len(changes), lambda: list(oversized(changes)))
        if faults:
            raise InvalidSettings(faults)
        parts = await beside(len(changes), lambda: parts_of(changes))
        if not parts and draft.least_n > holdings.n:
            return draft, [()]  # Nothing but the number, so that nobody takes the store for old.
        return draft, parts

    def _step(self, run: _Run, ground: Ground) -> Revision:
        """The next part as a revision."""
        n = max(ground.n, run.draft.least_n) + 1
        changes = tuple(numbered(change, n) for change in run.parts[0])
        place, of = len(run.done) + 1, len(run.done) + len(run.parts)
        summary = summary_of(changes) if of == 1 else f"{place}/{of}: {summary_of(changes)}"
        wall_s = round(self._clock.now().wall_s, 3)
        before_n = None if n == ground.n + 1 else ground.n
        said = (run.who, run.draft.action, summary, self._new_op())
        return Revision(n, wall_s, *said, changes, before_n)

    # --- one commit ------------------------------------------------------------------------

    async def _attempt(self, ground: Ground, step: Revision, draft: Draft) -> Ground | None:
        """What it stands on after; None: somebody else was first, and it was not made.

        Where no answer came the very same commit is sent again: it compares the same head, so
        that of both at most one gets through, and a Conflict tells that one of them, or somebody
        else's, did.
        """
        lease, patience = await self._lease(step), self._patience(MAX_LOOKS)
        puts, lost = _puts(step, lease), list[StoreUnavailable]()
        while True:
            try:
                return Ground(step.n, await self._commit(ground, puts))
            except LeaseLost:
                return None
            except Conflict:
                with _while_lost(lost):
                    return await self._whose(step, lease)
            except OutcomeUnknown as error:
                lost.append(error)
            except StoreUnavailable:
                with _while_lost(lost):
                    raise
            await patience.wait(_not_known(self._store.name, step, lost[0]))

    async def _commit(self, ground: Ground, puts: Sequence[Put]) -> int:
        return await self._store.commit([Compare(HEAD, ground.head_revision)], puts)

    async def _whose(self, step: Revision, lease: int) -> Ground | None:
        """Ours, whose answer was lost, or somebody else's."""
        for entry in (await self._store.list((log_key(step.n),))).entries:
            if entry.key == log_key(step.n) and op_of(entry.value) == step.op:
                return Ground(step.n, entry.revision)
        if lease:  # Nothing was put under it. If it stays, it runs out by itself.
            with suppress(StoreUnavailable):
                await self._store.revoke(lease)
        return None

    async def _lease(self, step: Revision) -> int:
        """One for all that the revision puts and that will once be of no use: the longest."""
        put = [item for change in step.changes for item in put_by(change)]
        longest_s = max((lease_s(item, step.wall_s) for item in put), default=0.0)
        if not longest_s:
            return 0
        try:
            return (await self._store.grant(longest_s)).id
        except OutcomeUnknown as error:  # Of the lease alone: that is no change.
            raise StoreUnavailable(f"{step.action} was not made: {error}") from error

    def _patience(self, tries: int) -> Patience:
        return Patience(self._clock, self._roll, tries)


class OwnWriter(FleetWriter):
    """Of the log that only this agent writes: nobody else is ever first."""

    _event = ""
    _flag = ""

    def __init__(
        self,
        store: OwnStore,
        clock: Clock,
        roll: Callable[[], float],
        new_op: Callable[[], str],
    ) -> None:
        super().__init__(cast(FleetStore, store), clock, roll, new_op)
        self._own = store
        self._held: Holdings | None = None
        self._lock = asyncio.Lock()

    async def read(self) -> Holdings:
        if self._held is None:
            self._held = await super().read()
        return self._held

    @property
    def held(self) -> Holdings:
        """What was read or written last."""
        return self._held or Holdings()

    async def load(self, *, salvaged: bool = False) -> Holdings:
        """As the store has it now. `salvaged`: it cannot be opened, and is only looked at."""
        if salvaged:
            self._held = holdings_of(await self._own.salvage_list((HEAD, ITEMS)))
        else:
            self._held = await super().read()
        return self._held

    async def carry_out(
        self, plan: Plan, *, who: str, expect_n: int | None = None, dry_run: bool = False
    ) -> FleetChange:
        if dry_run:  # Who only asks holds up nobody who changes.
            return await super().carry_out(plan, who=who, expect_n=expect_n, dry_run=True)
        async with self._lock:
            return await super().carry_out(plan, who=who, expect_n=expect_n)

    async def _attempt(self, ground: Ground, step: Revision, draft: Draft) -> Ground | None:
        held, self._held = await self.read(), None  # Until the outcome is known.
        compares = [Compare(HEAD, ground.head_revision)]
        lifts = all(one.after is not None and is_taken_out(one.after) for one in step.changes)
        audit = list(_audit_of(step, draft))
        try:
            made = await self._own.commit(compares, _puts(step, 0), audit=audit, must_fit=lifts)
        except Conflict:
            return None
        except OutcomeUnknown:
            raise
        except StoreUnavailable:
            self._held = held
            raise
        self._held = _after(held, step, made)
        return Ground(step.n, made)

    async def forget(self, names: Sequence[ItemName]) -> None:
        """Without a revision: what is forgotten had ended, and nobody goes back to it."""
        async with self._lock:
            held, self._held = await self.read(), None
            gone = [held.items[name] for name in names if name in held.items]
            wall_s = self._clock.now().wall_s
            audit = [
                AuditEntry(wall_s, OURSELVES, f"{item.kind}.forgotten", item.id, item.value, None)
                for item in gone
            ]
            compares = [Compare(HEAD, held.head_revision)]
            await self._own.commit(compares, [Put(item.key, None) for item in gone], audit=audit)
            left = {name: item for name, item in held.items.items() if name not in names}
            self._held = replace(held, items=left)


def _after(held: Holdings, step: Revision, revision: int) -> Holdings:
    items = dict(held.items)
    for change in step.changes:
        if change.after is not None:
            items[name_of(change.after)] = change.after
    return replace(held, n=step.n, items=items, head_revision=revision)


def _audit_of(step: Revision, draft: Draft) -> Iterator[AuditEntry]:
    for change in step.changes:
        item = change.after or change.before
        if item is None:
            continue
        was = change.before.value if change.before is not None else None
        now = change.after.value if change.after is not None else None
        was, now = draft.shown.get(name_of(item), (was, now))
        yield AuditEntry(step.wall_s, step.who, _audited(step, change, item), item.id, was, now)


def _audited(step: Revision, change: ItemChange, item: Item) -> str:
    """As the change was called; of what a file or a rollback did, what it did to this one."""
    if step.action.startswith(f"{item.kind}."):
        return step.action
    if change.after is None or is_taken_out(change.after):
        return f"{item.kind}.{'lifted' if item.kind == ItemKind.RULE else 'removed'}"
    return f"{item.kind}.{'set' if change.before is None else 'changed'}"


class Patience:
    """Waits between tries, of all who try at the same time each a while of its own."""

    def __init__(self, clock: Clock, roll: Callable[[], float], tries: int) -> None:
        self._clock = clock
        self._roll = roll
        self._pauses_s = [min(MAX_PAUSE_S, PAUSE_S * 2**at) for at in range(tries - 1)]
        self._deadline_mono_s = clock.now().mono_s + WITHIN_S

    async def wait(self, fault: HeadgateError) -> None:
        """Raises `fault` when that was the last try, or the time is up."""
        if not self._pauses_s or self._clock.now().mono_s >= self._deadline_mono_s:
            raise fault
        await self._clock.sleep(self._pauses_s.pop(0) * self._roll())


@contextmanager
def _while_lost(lost: Sequence[StoreUnavailable]) -> Iterator[None]:
    """A store that is away tells nothing of what it did before it was: that stays not known."""
    try:
        yield
    except StoreUnavailable:
        if not lost:
            raise


def _not_known(store: str, step: Revision, cause: StoreUnavailable) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"whether {step.action} was made as revision {step.n} of the fleet is not known: "
        f"{store} gave no answer ({cause}). Look with `headgate changes history --fleet` before "
        f"it is tried again ({step.summary})"
    )


def _puts(step: Revision, lease: int) -> list[Put]:
    """All in one: the number, what was done, what now stands; the oldest revision goes."""
    items = [item for change in step.changes for item in put_by(change)]
    puts = [
        Put(item.key, item_bytes(item), lease if lease_s(item, step.wall_s) else 0)
        for item in items
    ]
    head = [Put(HEAD, head_bytes(step.n)), Put(log_key(step.n), revision_bytes(step))]
    oldest = [Put(log_key(step.n - MAX_REVISIONS), None)] if step.n > MAX_REVISIONS else []
    return [*head, *puts, *oldest]


# --- as it was read ------------------------------------------------------------------------


def holdings_of(listing: Listing) -> Holdings:
    n, head_revision, items, refused = 0, 0, list[Item](), list[str]()
    beat: Beat | None = None
    for entry in listing.entries:
        if entry.key == HEAD:
            n, head_revision = _head(entry), entry.revision
        elif entry.key == BEAT:
            with suppress(ValueError):  # For advice alone.
                beat = read_beat(entry.value)
        elif entry.key.startswith(ITEMS):
            try:
                items.append(read_item_at(entry.key, entry.value))
            except ValueError as error:
                refused.append(f"{entry.key} {error}")
    return Holdings(n, newest(items), tuple(refused), head_revision, listing.store_id, beat)


def _head(entry: Entry) -> int:
    try:
        return read_head(entry.value)
    except ValueError as error:
        message = f"the log's {HEAD} cannot be read, so nothing is changed: it {error}"
        raise StoreUnavailable(message) from None


def _ground(holdings: Holdings) -> Ground:
    return Ground(holdings.n, holdings.head_revision)


# --- what came of it -----------------------------------------------------------------------


def _check_expected(n: int, expect_n: int | None) -> None:
    if expect_n is not None and expect_n != n:
        message = (
            f"the log is at revision {n}, not {expect_n}: somebody changed it in between; "
            "look again and repeat"
        )
        raise Conflict(message)


def _busy(step: Revision) -> Conflict:
    return Conflict(
        f"{step.action} was not made: others changed the log at the same time, {MAX_DRAFTS} "
        "times in a row; try again"
    )


def _proposed(holdings: Holdings, draft: Draft, revisions: int, *, dry_run: bool) -> FleetChange:
    n = max(holdings.n, draft.least_n) + 1
    changes = tuple(numbered(change, n) for change in draft.changes)
    return FleetChange(
        holdings.n, holdings.n, changes, advice=draft.advice, dry_run=dry_run, revisions=revisions
    )


def _stopped(run: _Run, error: HeadgateError, flag: str) -> StoppedMidway:
    of = len(run.done) + len(run.parts)
    message = (
        f"{run.draft.action} stopped after {len(run.done)} of {of} revisions "
        f"(n {run.done[0].n} to {run.done[-1].n}), {run.left:,} items are still to be changed: "
        f"{error}. What was done stands; repeat the same to go on, or go back with "
        f"`headgate changes rollback {run.before_n}{flag}`"
    )
    return StoppedMidway(message, run.change(), run.left)


async def beside(size: int, work: Callable[[], T]) -> T:
    """What concerns many items is done in a thread."""
    return await asyncio.to_thread(work) if size > LARGE else work()
