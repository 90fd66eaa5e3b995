"""Change what a log has.   operators ──► ChangeBook ──plan──► LogWriter ──commit──► log

There is one for the agent's own log (own.py), and one for the log that a fleet shares, where there
is one. Each change is a revision of the log, n, with author and content: to look at, and to go back
to. Everything is validated against the state of that moment, and again if another change was first:

read ──LogState──► plan ──Draft──► parts ──commit, compared with head──► revisions n+1, n+2 …
  ▲                                             │
  └── another change was first: start over ─────┘

Every commit compares head, so that of all changes built on revision n only one succeeds. Its
log/<n+1> has its op: a writer that lost an answer looks there, and knows whether it was its own.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Unpack

import structlog

from headgate.base.advice import Advice, Severity
from headgate.base.keyvalue import Compare, Lease, Listing, Put
from headgate.base.overlay import Overlay
from headgate.base.ports import ChangeLog, Clock, SharedLog
from headgate.base.supervise import beside
from headgate.changes.file_format import parse_file
from headgate.changes.files import APPLY, ApplyDrafts, FleetBudgetRoom, Room, RuleRoom, written_file
from headgate.changes.items import By
from headgate.changes.model import (
    BEAT,
    HEAD,
    ITEMS,
    MAX_REVISIONS,
    MEMBERS,
    ROLLBACK,
    SHARDS,
    Change,
    ChangeKind,
    Edit,
    Revision,
    log_key,
)
from headgate.changes.reach import EVERYWHERE, HERE, Level, Reach
from headgate.changes.rollback import RESTORE, of_sorts, restored, rolled_back
from headgate.changes.state import (
    MAX_ITEM_BYTES,
    ChangeMade,
    ChangeName,
    Draft,
    LogState,
    NoSuchItem,
    Reached,
    head_bytes,
    item_bytes,
    lease_s,
    name_of,
    newest,
    numbered,
    op_of,
    oversized,
    parts_of,
    put_by,
    read_head,
    read_item_at,
    read_revision_at,
    revision_bytes,
    summary_of,
    untimely,
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
from headgate.fleet.beat import Beat, clock_told, read_beat
from headgate.fleet.members import prefixes_of, reached_by
from headgate.rules.drafts import ChangeAuthor, RuleDrafts

__all__ = ["ChangeBook", "Exported", "NoSuchItem", "SharedBook", "StoppedMidway"]

log = structlog.get_logger()

NOBODY = "no agent has registered yet"
REVISIONS_A_PAGE = 10
"""Read at once: each may be half a megabyte."""
MAX_DRAFTS = 12
"""How often another change may be first."""
MAX_LOOKS = 5
"""How often a change with an unknown outcome is looked for, or tried again."""
MAX_CAUGHT_UP = 8
"""Revisions that are read alone, after others were first."""
WITHIN_S = 20.0
"""For all tries together: an operator waits for the answer."""
PAUSE_S = 0.05
MAX_PAUSE_S = 1.0


class StoppedMidway(StoreUnavailable):
    """A change of several revisions of which some were made: says how far it came."""

    def __init__(self, message: str, done: ChangeMade, left: int) -> None:
        super().__init__(message)
        self.done = done
        self.left = left
        """Items that are still as they were."""


def random_op() -> str:
    return secrets.token_hex(8)


class Exported(NamedTuple):
    n: int
    document: Mapping[str, Any]
    """As changes/file_format.py reads it."""
    left_out: Sequence[str] = ()
    """What a file cannot hold, in words."""


class ChangeBook:
    """Raises InvalidSettings, Conflict, NoSuchItem and StoreUnavailable: StoreRejected,
    OutcomeUnknown, and StoppedMidway where some of several revisions were made."""

    _flag = ""
    """Flag of `headgate changes` for this log."""
    _default_reach: Reach | None = None
    """For a file's entries without a reach; None: they need one."""
    _here_called = ""
    """The agent that HERE means, by its name."""
    _signed_at = ""
    """The agent's name, where others read it: a user's number says nothing on another host."""

    def __init__(
        self, store: ChangeLog, writer: LogWriter, clock: Clock, rules: RuleDrafts
    ) -> None:
        self._store = store
        self._writer = writer
        self._clock = clock
        self._history = LogHistory(store)
        self.rules = rules
        self.has_ended: Callable[[Change], bool] = lambda item: False
        """By the time that changes count (changes/time.py), whatever the wall clock says now."""
        self.rooms: dict[str, Room] = {}
        """For other kinds than rules: what validates a file's entries."""

    # --- looking ---------------------------------------------------------------------------

    async def items(self) -> LogState:
        """Ended and taken out ones too, for a day."""
        return replace(await self._writer.read(), has_ended=self.has_ended)

    async def export(self) -> Exported:
        """What is set, in the form of a file."""
        held, wall_s = await self.items(), self._clock.now().wall_s
        written = await beside(
            len(held.items), lambda: written_file(held.standing(wall_s).values())
        )
        return Exported(held.n, *written)

    async def history(self, limit: int = 50) -> Sequence[Revision]:
        """Newest first, without their changes."""
        found: list[Revision] = []
        async for revision in self._history.back_from((await self._writer.head()).n):
            found.append(replace(revision, changes=()))
            if len(found) >= limit:
                break
        return found

    async def revision(self, n: int) -> Revision:
        found = await self._history.revision(n)
        if found is None:
            message = (
                f"the log has no revision {n}, or has dropped it: "
                f"`headgate changes history{self._flag}` lists the last {MAX_REVISIONS}"
            )
            raise NoSuchItem(message)
        return found

    async def reached(self, reach: Reach) -> Reached:
        return await look_up(self._store, [reach])

    # --- many at once ----------------------------------------------------------------------

    async def apply(
        self,
        document: object,
        *,
        expect_n: int | None = None,
        prune: bool = False,
        **by: Unpack[By],
    ) -> ChangeMade:
        """As a file says (changes/file_format.py); `prune`: what it does not name is taken out.
        `expect_n`: only if the log is at that revision."""
        file = parse_file(document, default_reach=self._default_reach, host=self._here_called)
        rooms = {ChangeKind.RULE: RuleRoom(self.rules), **self.rooms}
        drafts = ApplyDrafts(rooms, self._reach_fault, apart=self._default_reach == HERE)
        return await self.make(
            lambda held, asked: drafts.apply(held, file, asked, prune=prune),
            expect_n=expect_n,
            size=len(file.entries),
            **by,
        )

    def _reach_fault(self, reach: Reach) -> str:
        return _FOR_ONE_AGENT if reach == HERE else ""

    async def rollback(
        self,
        n: int,
        *,
        only: Collection[str] = (),
        expect_n: int | None = None,
        **by: Unpack[By],
    ) -> ChangeMade:
        """Back to the state after revision n, as new revisions. What has ended since stays ended.
        `only`: of rollback.SORTS, those that go back; none: all of it."""
        chosen = of_sorts(only)

        async def plan(held: LogState, asked: ChangeAuthor) -> Draft:
            later = [one async for one in self._history.back_from(held.n, after_n=n)]
            size = len(held.items) + sum(len(one.changes) for one in later)
            return await beside(size, lambda: rolled_back(held, n, later, asked, chosen))

        return await self._carry_out(plan, expect_n=expect_n, **by)

    async def restore(
        self, items: Iterable[Change], *, known_n: int = 0, **by: Unpack[By]
    ) -> ChangeMade:
        """Put back what a store has lost, from what an agent still has; revisions go on above
        `known_n`, so that nobody takes them for old ones."""
        kept = list(items)
        return await self.make(
            lambda held, asked: restored(held, kept, known_n, asked), size=len(kept), **by
        )

    # --- steps -----------------------------------------------------------------------------

    async def make(
        self,
        draft: Callable[[LogState, ChangeAuthor], Draft],
        who: str,
        *,
        dry_run: bool = False,
        expect_n: int | None = None,
        size: int = 1,
    ) -> ChangeMade:
        """Whatever its kind: `draft` is called with what is set, and with the author and time."""

        async def plan(held: LogState, asked: ChangeAuthor) -> Draft:
            return await beside(size + len(held.items), lambda: draft(held, asked))

        return await self._carry_out(plan, who, dry_run=dry_run, expect_n=expect_n)

    async def _carry_out(
        self,
        plan: Callable[[LogState, ChangeAuthor], Awaitable[Draft]],
        who: str,
        *,
        dry_run: bool = False,
        expect_n: int | None = None,
    ) -> ChangeMade:
        if self._signed_at and who.startswith("uid:"):
            who = f"{who}@{self._signed_at}"
        # One clock reading for all tries and parts: a new draft is the same change.
        asked = ChangeAuthor(who, round(self._clock.now().wall_s, 3))

        async def planned(held: LogState) -> Draft:
            draft = await plan(replace(held, has_ended=self.has_ended), asked)
            told = clock_told(held.beat, asked.wall_s)
            clocks = [Advice(Severity.WARNING, "clock", "fleet", told)] if told else []
            return replace(draft, advice=(*draft.advice, *clocks))

        change = await self._writer.carry_out(planned, who=who, expect_n=expect_n, dry_run=dry_run)
        return await self._made(change)

    async def _made(self, change: ChangeMade) -> ChangeMade:
        """With what there is to tell of it."""
        return change


class SharedBook(ChangeBook):
    """Of the log that a fleet shares."""

    _flag = " --fleet"

    def __init__(
        self,
        store: SharedLog,
        clock: Clock,
        roll: Callable[[], float],
        rules: RuleDrafts,
        *,
        host: str = "",
        new_op: Callable[[], str] = random_op,
    ) -> None:
        super().__init__(store, SharedWriter(store, clock, roll, new_op), clock, rules)
        self._signed_at = host
        self.rooms = dict.fromkeys((ChangeKind.BUDGET, ChangeKind.POLICY), FleetBudgetRoom())

    async def _made(self, change: ChangeMade) -> ChangeMade:
        """With all places that it applies to, before or after: those it leaves count, too."""
        concerned = {
            item.reach
            for one in change.changes
            for item in (one.before, one.after)
            if item is not None
        }
        return replace(change, reached=await look_up(self._store, concerned))


_FOR_ONE_AGENT = (
    f"is {str(HERE)!r}, one agent alone: that is for its own log (without --fleet). For an agent "
    "of the fleet, use host:NAME"
)


async def look_up(store: ChangeLog, reaches: Iterable[Reach]) -> Reached:
    """Which places they match, or why that is unknown. A preview, and never a condition: an unknown
    reach stops no change."""
    wanted = sorted(set(reaches), key=str)
    if not wanted:
        return Reached(0, 0, 0)
    reach = wanted[0] if len(wanted) == 1 else EVERYWHERE
    try:
        listing = await store.list(prefixes_of(wanted))
    except StoreUnavailable as error:
        return await _counted(store, wanted, Reached(unknown=str(error), reach=reach))
    found = await beside(len(listing.entries), lambda: reached_by(wanted, listing.entries))
    with suppress(StoreUnavailable):
        if found.hosts or found.shards or await store.count(SHARDS) + await store.count(MEMBERS):
            return found
    return Reached(unknown=NOBODY, reach=reach)


async def _counted(store: ChangeLog, reaches: list[Reach], unknown: Reached) -> Reached:
    """The whole of a fleet too large to be listed in time can still be counted."""
    if not any(reach.level is Level.FLEET for reach in reaches):
        return unknown
    try:
        shards, hosts = await store.count(SHARDS), await store.count(MEMBERS)
    except StoreUnavailable:
        return unknown
    return Reached(shards, hosts, None, (), f"only counted: {unknown.unknown}", unknown.reach)


class LogHistory:
    """Revisions as they are kept. Each says on which it was built: numbers are skipped where a
    store was restored. One that cannot be read, for a newer version made it, takes no other away.
    """

    def __init__(self, store: ChangeLog) -> None:
        self._store = store

    async def revision(self, n: int) -> Revision | None:
        return (await self._listed(log_key(n))).get(n)

    async def back_from(self, n: int, *, after_n: int = 0) -> AsyncIterator[Revision]:
        """Down to the first beyond `after_n`, or as far as they are kept."""
        page: Mapping[int, Revision] = {}
        at = -1
        for _ in range(MAX_REVISIONS):
            if n <= after_n:
                return
            if at != n // REVISIONS_A_PAGE:
                at = n // REVISIONS_A_PAGE
                page = await self._listed(log_key(n)[:-1])
            revision = page.get(n)
            if revision is None:
                return
            yield revision
            n = revision.built_on

    async def _listed(self, prefix: str) -> Mapping[int, Revision]:
        """What lies there under any other key is none."""
        entries = (await self._store.list((prefix,))).entries
        found = (read_revision_at(entry.key, entry.value) for entry in entries)
        return {revision.n: revision for revision in found if revision is not None}


# --- one change, on top of the current state ---------------------------------------------------

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
    lease: Lease | None = None
    """Granted for a try that was not made: nothing is under it."""

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
            n, after_n = holdings.n, max(holdings.n, draft.least_n) + 1
            proposed = tuple(numbered(change, after_n) for change in draft.changes)
            told, revisions = draft.advice, len(parts)
            return ChangeMade(n, n, proposed, advice=told, dry_run=dry_run, revisions=revisions)
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
                made = await self._attempt(run, ground, step)
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
            message = (
                f"{step.action} was not made: the log was changed by others at the same time, "
                f"{MAX_DRAFTS} times in a row; try again"
            )
            await patience.wait(Conflict(message))
            holdings = await self._read_again(holdings)
            _check_expected(holdings.n, expect_n)
            run.draft, run.parts = await self._drafted(run.plan, holdings)
            ground = _ground(holdings)

    async def _drafted(
        self, plan: Plan, holdings: LogState
    ) -> tuple[Draft, list[tuple[Edit, ...]]]:
        draft = await plan(holdings)
        changes, wall_s = draft.changes, self._clock.now().wall_s
        most_bytes = self._max_item_bytes
        faults = await beside(len(changes), lambda: list(oversized(changes, most_bytes)))
        if draft.action not in (ROLLBACK, RESTORE):  # Those set what was so before.
            replaces = draft.action == APPLY
            faults += await beside(
                len(changes),
                lambda: list(untimely(changes, holdings, wall_s, replaces=replaces)),
            )
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

    async def _read_again(self, known: LogState) -> LogState:
        """Where another change was first; `known`: as it was read before."""
        return await self.read()

    @abstractmethod
    async def _attempt(self, run: PendingChange, ground: LogHead, step: Revision) -> LogHead | None:
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

    async def _read_again(self, known: LogState) -> LogState:
        """The log of a fleet has ten thousand items, and those who tell them are just telling what
        came first to all agents: only what was done since is read, where that is little."""
        since = [log_key(known.n + step) for step in range(1, MAX_CAUGHT_UP + 1)]
        listing = await self._store.list((HEAD, *since))
        return caught_up(known, listing) or await self.read()

    async def _run(self, run: PendingChange, holdings: LogState, expect_n: int | None) -> None:
        try:
            await super()._run(run, holdings, expect_n)
        finally:
            if run.lease is not None:  # If it stays, it expires.
                with suppress(StoreUnavailable):
                    await self._leases.revoke(run.lease.id)

    async def _attempt(self, run: PendingChange, ground: LogHead, step: Revision) -> LogHead | None:
        """Where no answer came the very same commit is sent again: it compares the same head, so
        that of both at most one gets through, and a Conflict tells that one of them, or another
        writer's, did.
        """
        lease, patience = await self._lease(run, step), self._patience(MAX_LOOKS)
        puts, lost = puts_of(step, lease.id if lease else 0), list[StoreUnavailable]()
        while True:
            try:
                head = Compare(HEAD, ground.head_revision)
                return LogHead(step.n, await self._store.commit([head], puts))
            except LeaseLost:
                return None
            except Conflict:
                with _while_lost(lost):
                    made = await self._found(step) if lost else None
                    run.lease = lease if made is None else None
                    return made
            except OutcomeUnknown as error:
                lost.append(error)
            except StoreUnavailable:
                with _while_lost(lost):
                    raise
            message = (
                f"it is unknown whether {step.action} was made as revision {step.n} of the fleet: "
                f"{self._store.name} did not answer ({lost[0]}). Look with `headgate changes "
                f"history --fleet` before you try again ({step.summary})"
            )
            await patience.wait(OutcomeUnknown(message))

    async def _found(self, step: Revision) -> LogHead | None:
        """Our own commit, whose answer was lost; None: another one's."""
        for entry in (await self._store.list((log_key(step.n),))).entries:
            if entry.key == log_key(step.n) and op_of(entry.value) == step.op:
                return LogHead(step.n, entry.revision)
        return None

    async def _lease(self, run: PendingChange, step: Revision) -> Lease | None:
        """One for all that the revision puts and that will once be of no use: the longest. That of
        a try before, which another change was ahead of, is as good."""
        put = [item for change in step.changes for item in put_by(change)]
        longest_s = max((lease_s(item, step.wall_s) for item in put), default=0.0)
        unused, run.lease = run.lease, None
        if not longest_s:
            return None
        if unused is not None and unused.ttl_s >= longest_s:
            return unused
        try:
            return await self._leases.grant(longest_s)
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
            try:
                n, head_revision = read_head(entry.value), entry.revision
            except ValueError as error:
                message = f"the log's {HEAD} cannot be read, so nothing is changed: it {error}"
                raise StoreUnavailable(message) from None
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


def caught_up(known: LogState, listing: Listing) -> LogState | None:
    """With what the revisions since then have done; None where these do not say all of it."""
    head, log = holdings_of(listing), dict[int, Revision]()
    for entry in listing.entries:
        revision = read_revision_at(entry.key, entry.value)
        if revision is not None and not revision.unread:
            log[revision.n] = revision
    items, n = known.items.copy(), known.n
    for revision in (log[n] for n in sorted(log)):
        if revision.built_on == n:
            n = revision.n
            items.update((name_of(one.after), one.after) for one in revision.changes if one.after)
    is_same = listing.store_id == known.store_id and not known.rejected
    if not is_same or n != head.n or (n == known.n and head.head_revision != known.head_revision):
        return None
    return replace(known, n=n, items=items, head_revision=head.head_revision)


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


def _stopped(run: PendingChange, error: HeadgateError, flag: str) -> StoppedMidway:
    of = len(run.done) + len(run.parts)
    message = (
        f"{run.draft.action} stopped after {len(run.done)} of {of} revisions "
        f"(n {run.done[0].n} to {run.done[-1].n}), {run.left:,} items are not changed yet: "
        f"{error}. The finished part is in force; repeat the same to continue, or go back with "
        f"`headgate changes rollback {run.before_n}{flag}`"
    )
    return StoppedMidway(message, run.change(), run.left)
