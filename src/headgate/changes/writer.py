"""One change of a log, on top of its current state.   ChangeBook ──plan──► LogWriter ──► store

read ──LogState──► plan ──Draft──► parts ──commit, compared with head──► revisions n+1, n+2 …
  ▲                                             │
  └── another change was first: start over ─────┘

Every commit compares head, so that of all changes built on revision n only one succeeds. Its
log/<n+1> has its op: a writer that lost an answer looks there, and knows whether it was its own.

own.py does the same with the log of one agent.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import structlog

from headgate.base.keyvalue import Compare, Entry, Listing, Put
from headgate.base.overlay import Overlay
from headgate.base.ports import ChangeLog, Clock, SharedLog
from headgate.changes.model import BEAT, HEAD, ITEMS, MAX_REVISIONS, Change, Edit, Revision, log_key
from headgate.changes.state import (
    MAX_ITEM_BYTES,
    ChangeMade,
    ChangeName,
    LogState,
    head_bytes,
    item_bytes,
    lease_s,
    newest,
    numbered,
    op_of,
    oversized,
    parts_of,
    put_by,
    read_head,
    read_item_at,
    revision_bytes,
    summary_of,
)
from headgate.errors import (
    Conflict,
    HeadgateError,
    InvalidSettings,
    LeaseLost,
    OutcomeUnknown,
    StoreRejected,
    StoreUnavailable,
)
from headgate.fleet.beat import Beat, read_beat
from headgate.metrics.lint import Advice

log = structlog.get_logger()

MAX_DRAFTS = 12
"""How often another change may be first."""
MAX_LOOKS = 5
"""How often a change with an unknown outcome is looked for, or tried again."""
WITHIN_S = 20.0
"""For all tries together: an operator waits for the answer."""
PAUSE_S = 0.05
MAX_PAUSE_S = 1.0
LARGE = 500
"""Items; more are processed in a thread, so that checks have their turn."""

T = TypeVar("T")


class NoSuchItem(HeadgateError, LookupError):
    """A rule, a budget or a revision that the fleet does not have."""


class StoppedMidway(StoreUnavailable):
    """A change of several revisions of which some were made: says how far it came."""

    def __init__(self, message: str, done: ChangeMade, left: int) -> None:
        super().__init__(message)
        self.done = done
        self.left = left
        """Items that are still as they were."""


class AuditView(NamedTuple):
    """A change as the audit shows it."""

    target: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Draft:
    """What a change would do to the current state."""

    action: str
    changes: Sequence[Edit] = ()
    """Whatever n their items carry: they get that of the revision which puts them."""
    advice: tuple[Advice, ...] = ()
    least_n: int = 0
    """Revisions continue above this, even if the store is behind it."""
    shown: Mapping[ChangeName, tuple[Any, Any]] = field(default_factory=dict)
    """Before and after for the audit, if that is not the value itself."""
    entry: AuditView | None = None
    """One audit entry for all of it, in place of one for each change."""
    summary: str = ""
    """Empty: made of the changes."""


Plan = Callable[[LogState], Awaitable[Draft]]
"""Called again whenever another change was first; raises if the change is not valid."""


class LogHead(NamedTuple):
    """What a commit is built on."""

    n: int
    head_revision: int


@dataclass(slots=True)
class PendingChange:
    """One change under way."""

    plan: Plan
    who: str
    before_n: int
    draft: Draft
    parts: list[tuple[Edit, ...]]
    done: list[Revision] = field(default_factory=list)

    @property
    def left(self) -> int:
        return sum(map(len, self.parts))

    def advance(self, made: Revision) -> None:
        self.done.append(made)
        self.parts.pop(0)

    def change(self, advice: tuple[Advice, ...] = ()) -> ChangeMade:
        """As far as it came."""
        after_n = self.done[-1].n if self.done else self.before_n
        changes = tuple(change for revision in self.done for change in revision.changes)
        return ChangeMade(self.before_n, after_n, changes, advice=advice, revisions=len(self.done))


class LogWriter(ABC):
    """The steps of a change that are the same in every log."""

    _event = ""
    _flag = ""
    """Flag of `headgate changes` for this log."""
    _max_item_bytes = MAX_ITEM_BYTES

    def __init__(
        self,
        store: ChangeLog,
        clock: Clock,
        roll: Callable[[], float],
        new_op: Callable[[], str],
    ) -> None:
        self._store = store
        self._clock = clock
        self._roll = roll
        self._new_op = new_op

    # --- reading ---------------------------------------------------------------------------

    async def read(self) -> LogState:
        listing = await self._store.list((HEAD, BEAT, ITEMS))
        return await beside(
            len(listing.entries), lambda: holdings_of(listing, self._max_item_bytes)
        )

    async def head(self) -> LogHead:
        return _ground(holdings_of(await self._store.list((HEAD,))))

    # --- changing --------------------------------------------------------------------------

    async def carry_out(
        self, plan: Plan, *, who: str, expect_n: int | None = None, dry_run: bool = False
    ) -> ChangeMade:
        """All of it; of a change that takes several revisions perhaps some: StoppedMidway."""
        holdings = await self.read()
        _check_expected(holdings.n, expect_n)
        draft, parts = await self._drafted(plan, holdings)
        if dry_run or not parts:
            return _proposed(holdings, draft, len(parts), dry_run=dry_run)
        run = PendingChange(plan, who, holdings.n, draft, parts)
        try:
            await self._run(run, holdings, expect_n)
        except (Conflict, InvalidSettings, NoSuchItem, StoreUnavailable) as error:
            if not run.done:
                raise
            stopped = _stopped(run, error, self._flag)
            # The caller may be gone.
            log.error("fleet.stopped_midway", who=who, detail=str(stopped))
            raise stopped from error
        return run.change(run.draft.advice)

    async def _run(self, run: PendingChange, holdings: LogState, expect_n: int | None) -> None:
        ground, patience = _ground(holdings), self._patience(MAX_DRAFTS)
        while run.parts:
            step = self._step(run, ground)
            try:
                made = await self._attempt(ground, step, run.draft)
            except (OutcomeUnknown, StoreRejected):
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
                raise Conflict("another change came first")
            await patience.wait(_busy(step))
            holdings = await self.read()
            _check_expected(holdings.n, expect_n)
            run.draft, run.parts = await self._drafted(run.plan, holdings)
            ground = _ground(holdings)

    async def _drafted(
        self, plan: Plan, holdings: LogState
    ) -> tuple[Draft, list[tuple[Edit, ...]]]:
        draft = await plan(holdings)
        changes = draft.changes
        most_bytes = self._max_item_bytes
        faults = await beside(len(changes), lambda: list(oversized(changes, most_bytes)))
        if faults:
            raise InvalidSettings(faults)
        parts = await beside(len(changes), lambda: self._parts(changes))
        if not parts and draft.least_n > holdings.n:
            return draft, [()]  # Nothing but the number, so that nobody takes the store for old.
        return draft, parts

    @abstractmethod
    def _parts(self, changes: Sequence[Edit]) -> list[tuple[Edit, ...]]:
        """Each a revision of its own."""

    def _step(self, run: PendingChange, ground: LogHead) -> Revision:
        """The next part as a revision."""
        n = max(ground.n, run.draft.least_n) + 1
        changes = tuple(numbered(change, n) for change in run.parts[0])
        place, of = len(run.done) + 1, len(run.done) + len(run.parts)
        summary = run.draft.summary or summary_of(changes)
        summary = summary if of == 1 else f"{place}/{of}: {summary}"
        wall_s = round(self._clock.now().wall_s, 3)
        before_n = None if n == ground.n + 1 else ground.n
        said = (run.who, run.draft.action, summary, self._new_op())
        return Revision(n, wall_s, *said, changes, before_n)

    @abstractmethod
    async def _attempt(self, ground: LogHead, step: Revision, draft: Draft) -> LogHead | None:
        """One commit. The head after it; None: another writer was first, and it was not made."""

    def _patience(self, tries: int) -> Backoff:
        return Backoff(self._clock, self._roll, tries)


class SharedWriter(LogWriter):
    """Of the log of a fleet, in which any agent may be first."""

    _event = "fleet."
    _flag = " --fleet"

    def __init__(
        self,
        store: SharedLog,
        clock: Clock,
        roll: Callable[[], float],
        new_op: Callable[[], str],
    ) -> None:
        super().__init__(store, clock, roll, new_op)
        self._leases = store

    def _parts(self, changes: Sequence[Edit]) -> list[tuple[Edit, ...]]:
        return parts_of(changes)

    async def _attempt(self, ground: LogHead, step: Revision, draft: Draft) -> LogHead | None:
        """Where no answer came the very same commit is sent again: it compares the same head, so
        that of both at most one gets through, and a Conflict tells that one of them, or another
        writer's, did.
        """
        lease, patience = await self._lease(step), self._patience(MAX_LOOKS)
        puts, lost = puts_of(step, lease), list[StoreUnavailable]()
        while True:
            try:
                head = Compare(HEAD, ground.head_revision)
                return LogHead(step.n, await self._store.commit([head], puts))
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

    async def _whose(self, step: Revision, lease: int) -> LogHead | None:
        """Our own commit, whose answer was lost, or another one's."""
        for entry in (await self._store.list((log_key(step.n),))).entries:
            if entry.key == log_key(step.n) and op_of(entry.value) == step.op:
                return LogHead(step.n, entry.revision)
        if lease:  # Nothing was put under it. If it stays, it expires.
            with suppress(StoreUnavailable):
                await self._leases.revoke(lease)
        return None

    async def _lease(self, step: Revision) -> int:
        """One for all that the revision puts and that will once be of no use: the longest."""
        put = [item for change in step.changes for item in put_by(change)]
        longest_s = max((lease_s(item, step.wall_s) for item in put), default=0.0)
        if not longest_s:
            return 0
        try:
            return (await self._leases.grant(longest_s)).id
        except OutcomeUnknown as error:  # Of the lease alone: that is no change.
            raise StoreUnavailable(f"{step.action} was not made: {error}") from error


class Backoff:
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
        f"it is unknown whether {step.action} was made as revision {step.n} of the fleet: "
        f"{store} did not answer ({cause}). Look with `headgate changes history --fleet` before "
        f"you try again ({step.summary})"
    )


def puts_of(step: Revision, lease: int) -> list[Put]:
    """All in one: the number, what was done, the new state; the oldest revision goes."""
    items = [item for change in step.changes for item in put_by(change)]
    puts = [
        Put(item.key, item_bytes(item), lease if lease_s(item, step.wall_s) else 0)
        for item in items
    ]
    return [*head_puts(step), *puts]


def head_puts(step: Revision) -> list[Put]:
    head = [Put(HEAD, head_bytes(step.n)), Put(log_key(step.n), revision_bytes(step))]
    oldest = [Put(log_key(step.n - MAX_REVISIONS), None)] if step.n > MAX_REVISIONS else []
    return [*head, *oldest]


# --- as it was read ------------------------------------------------------------------------


def holdings_of(
    listing: Listing,
    most_bytes: int = MAX_ITEM_BYTES,
    named: Callable[[Iterable[Change]], dict[ChangeName, Change]] = newest,
) -> LogState:
    """`most_bytes`: of an item. `named`: by what names items are known."""
    n, head_revision, items, rejected = 0, 0, list[Change](), list[str]()
    beat: Beat | None = None
    for entry in listing.entries:
        if entry.key == HEAD:
            n, head_revision = _head(entry), entry.revision
        elif entry.key == BEAT:
            with suppress(ValueError):  # For advice alone.
                beat = read_beat(entry.value)
        elif entry.key.startswith(ITEMS):
            try:
                items.append(read_item_at(entry.key, entry.value, most_bytes))
            except ValueError as error:
                rejected.append(f"{entry.key} {error}")
    known = Overlay(named(items))
    return LogState(n, known, tuple(rejected), head_revision, listing.store_id, beat)


def _head(entry: Entry) -> int:
    try:
        return read_head(entry.value)
    except ValueError as error:
        message = f"the log's {HEAD} cannot be read, so nothing is changed: it {error}"
        raise StoreUnavailable(message) from None


def _ground(holdings: LogState) -> LogHead:
    return LogHead(holdings.n, holdings.head_revision)


# --- what came of it -----------------------------------------------------------------------


def _check_expected(n: int, expect_n: int | None) -> None:
    if expect_n is not None and expect_n != n:
        message = (
            f"the log is at revision {n}, not {expect_n}: it was changed meanwhile; "
            "look again and repeat"
        )
        raise Conflict(message)


def _busy(step: Revision) -> Conflict:
    return Conflict(
        f"{step.action} was not made: the log was changed by others at the same time, {MAX_DRAFTS} "
        "times in a row; try again"
    )


def _proposed(holdings: LogState, draft: Draft, revisions: int, *, dry_run: bool) -> ChangeMade:
    n = max(holdings.n, draft.least_n) + 1
    changes = tuple(numbered(change, n) for change in draft.changes)
    return ChangeMade(
        holdings.n, holdings.n, changes, advice=draft.advice, dry_run=dry_run, revisions=revisions
    )


def _stopped(run: PendingChange, error: HeadgateError, flag: str) -> StoppedMidway:
    of = len(run.done) + len(run.parts)
    message = (
        f"{run.draft.action} stopped after {len(run.done)} of {of} revisions "
        f"(n {run.done[0].n} to {run.done[-1].n}), {run.left:,} items are not changed yet: "
        f"{error}. The finished part is in force; repeat the same to continue, or go back with "
        f"`headgate changes rollback {run.before_n}{flag}`"
    )
    return StoppedMidway(message, run.change(), run.left)


async def beside(size: int, work: Callable[[], T]) -> T:
    """Work on many items is done in a thread."""
    return await asyncio.to_thread(work) if size > LARGE else work()
