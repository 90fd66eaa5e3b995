"""Change what a log has.   operators ──► ChangeBook ──commit──► log ──► in force

There is one for the agent's own log, and one for the log that a fleet shares, where there is one.
Everything is validated against the state of that moment, and again if another change was first
(writer.py). Each change is a revision of the log, n, with author and content: to look at, and to
go back to.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, Unpack

from headgate.base.ports import ChangeLog, Clock, SharedLog
from headgate.budgets import drafts as budgetdrafts
from headgate.changes.exchanged import Entry, Inventory, apart, shards_of
from headgate.changes.file_format import parse_file
from headgate.changes.files import (
    ApplyDrafts,
    FleetBudgetRoom,
    Room,
    RuleRoom,
    written_file,
)
from headgate.changes.items import By
from headgate.changes.model import (
    MAX_REVISIONS,
    MEMBERS,
    SHARDS,
    Change,
    ChangeKind,
    Revision,
    log_key,
)
from headgate.changes.own import Lead, Loaded, Merged, OwnWriter
from headgate.changes.reach import EVERYWHERE, HERE, Level, Reach
from headgate.changes.rollback import of_sorts, restored, rolled_back
from headgate.changes.state import (
    MAX_PART_KEYS,
    ChangeMade,
    Copies,
    LogState,
    Reached,
    read_revision_at,
)
from headgate.changes.writer import (
    Draft,
    LogWriter,
    NoSuchItem,
    SharedWriter,
    StoppedMidway,
    beside,
)
from headgate.errors import StoreUnavailable
from headgate.fleet.beat import clock_told
from headgate.fleet.members import prefixes_of, reached_by
from headgate.metrics.lint import Advice, Severity
from headgate.rules.drafts import ChangeAuthor, Here, RuleDrafts
from headgate.rules.matching import EVERYONE
from headgate.rules.settings import FAVOR_RATIO, KnownMetrics, RuleLimits

__all__ = ["ChangeBook", "Exported", "NoSuchItem", "OwnBook", "SharedBook", "StoppedMidway"]
NOBODY = "no agent has registered yet"
REVISIONS_A_PAGE = 10
"""Read at once: each may be half a megabyte."""


def _new_id() -> str:
    return f"f-{secrets.token_hex(3)}"


def _own_id() -> str:
    return f"r-{secrets.token_hex(3)}"


def _new_op() -> str:
    return secrets.token_hex(8)


class Exported(NamedTuple):
    n: int
    document: Mapping[str, Any]
    """As changes/file_format.py reads it."""
    left_out: Sequence[str] = ()
    """What a file cannot hold, in words."""


InForce = Callable[[Sequence[Change]], Awaitable[Sequence[str]]]
"""Called with the new entries of the agent's own log, before it is acknowledged. Returns why it
is not in force everywhere."""


class ChangeBook:
    """Raises InvalidSettings, Conflict, NoSuchItem and StoreUnavailable: StoreRejected,
    OutcomeUnknown, and StoppedMidway where some of several revisions were made."""

    _flag = ""
    """Flag of `headgate changes` for this log."""
    _default_reach: Reach | None = None
    """For a file's entries without a reach; None: they need one."""
    _here_called = ""
    """The agent that HERE means, by its name."""

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

    def revisions(self, n: int, *, after_n: int = 0) -> AsyncIterator[Revision]:
        """With their changes, from revision n back to the first beyond `after_n`."""
        return self._history.back_from(n, after_n=after_n)

    async def reached(self, reach: Reach) -> Reached:
        return await look_up(self._store, [reach])

    # --- rules -----------------------------------------------------------------------------

    async def put_rule(
        self, raw: Mapping[str, Any], *, reach: Reach, **by: Unpack[By]
    ) -> ChangeMade:
        return await self.make(lambda held, asked: self.rules.put(held, raw, reach, asked), **by)

    async def favor(
        self,
        target: str,
        *,
        reach: Reach,
        over: str = EVERYONE,
        ratio: float = FAVOR_RATIO,
        more: Mapping[str, Any] | None = None,
        **by: Unpack[By],
    ) -> ChangeMade:
        """Prioritize the target by throttling all others: two rules, set and lifted together.

        `more`: for, expires_at, schedule, database, reason; both rules have them.
        """
        targets = (target, over, ratio)
        return await self.make(
            lambda held, asked: self.rules.favor(held, targets, more or {}, reach, asked), **by
        )

    async def patch_rule(
        self,
        rule_id: str,
        raw: Mapping[str, Any],
        *,
        expect: int | None = None,
        **by: Unpack[By],
    ) -> ChangeMade:
        """Some of it; `expect`: only if it is of that revision. A new end is of its pair, too."""
        return await self.make(
            lambda held, asked: self.rules.patch(held, rule_id, raw, asked, expect), **by
        )

    async def lift_rule(
        self, rule_id: str, *, expect: int | None = None, **by: Unpack[By]
    ) -> ChangeMade:
        """End it now, and the one that was set together with it."""
        return await self.make(
            lambda held, asked: self.rules.lift(held, rule_id, asked, expect), **by
        )

    # --- budgets ---------------------------------------------------------------------------

    async def set_budget(
        self,
        name: str,
        raw: Mapping[str, Any],
        *,
        reach: Reach,
        expect: int | None = None,
        new: bool = False,
        **by: Unpack[By],
    ) -> ChangeMade:
        """Add or replace the one of that name and reach; `new`: only where there is none yet."""
        return await self.make(
            lambda held, asked: budgetdrafts.set_budget(
                held, name, raw, reach, asked, expect=expect, new=new
            ),
            **by,
        )

    async def patch_budget(
        self,
        name: str,
        raw: Mapping[str, Any],
        *,
        reach: Reach,
        expect: int | None = None,
        **by: Unpack[By],
    ) -> ChangeMade:
        return await self.make(
            lambda held, asked: budgetdrafts.patch_budget(
                held, name, raw, reach, asked, expect=expect
            ),
            **by,
        )

    async def remove_budget(
        self, name: str, *, reach: Reach, expect: int | None = None, **by: Unpack[By]
    ) -> ChangeMade:
        return await self.make(
            lambda held, asked: budgetdrafts.remove_budget(held, name, reach, asked, expect=expect),
            **by,
        )

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
        drafts = ApplyDrafts(self._rooms(), self._reach_fault, apart=self._default_reach == HERE)
        return await self.make(
            lambda held, asked: drafts.apply(held, file, asked, prune=prune),
            expect_n=expect_n,
            size=len(file.entries),
            **by,
        )

    def _rooms(self) -> Mapping[str, Room]:
        return {ChangeKind.RULE: RuleRoom(self.rules), **self.rooms}

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
        return await self.make_back(
            n,
            lambda held, later, asked: rolled_back(held, n, later, asked, chosen),
            expect_n=expect_n,
            **by,
        )

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

    def _asked(self, who: str) -> ChangeAuthor:
        """One clock reading for all tries and parts: a new draft is the same change."""
        return ChangeAuthor(who, round(self._clock.now().wall_s, 3))

    async def make(
        self,
        draft: Callable[[LogState, ChangeAuthor], Draft],
        who: str,
        *,
        dry_run: bool = False,
        expect_n: int | None = None,
        size: int = 1,
    ) -> ChangeMade:
        async def plan(held: LogState, asked: ChangeAuthor) -> Draft:
            return await beside(size + len(held.items), lambda: draft(held, asked))

        return await self._carry_out(plan, who, dry_run=dry_run, expect_n=expect_n)

    async def make_back(
        self,
        n: int,
        draft: Callable[[LogState, Sequence[Revision], ChangeAuthor], Draft],
        who: str,
        *,
        dry_run: bool = False,
        expect_n: int | None = None,
    ) -> ChangeMade:
        """As `make`; `draft` is given every revision beyond n, too, newest first."""

        async def plan(held: LogState, asked: ChangeAuthor) -> Draft:
            later = [one async for one in self.revisions(held.n, after_n=n)]
            size = len(held.items) + sum(len(one.changes) for one in later)
            return await beside(size, lambda: draft(held, later, asked))

        return await self._carry_out(plan, who, dry_run=dry_run, expect_n=expect_n)

    async def _carry_out(
        self,
        plan: Callable[[LogState, ChangeAuthor], Awaitable[Draft]],
        who: str,
        *,
        dry_run: bool,
        expect_n: int | None,
    ) -> ChangeMade:
        asked = self._asked(self._signed(who))

        async def planned(held: LogState) -> Draft:
            held = replace(held, has_ended=self.has_ended)
            return _with_clocks(await plan(held, asked), held, asked)

        change = await self._writer.carry_out(
            planned, who=self._signed(who), expect_n=expect_n, dry_run=dry_run
        )
        return await self._made(change)

    def _signed(self, who: str) -> str:
        return who

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
        known_metrics: KnownMetrics,
        roll: Callable[[], float],
        *,
        limits: RuleLimits = RuleLimits(),  # noqa: B008 -- frozen
        host: str = "",
        new_id: Callable[[], str] = _new_id,
        new_op: Callable[[], str] = _new_op,
    ) -> None:
        writer = SharedWriter(store, clock, roll, new_op)
        super().__init__(store, writer, clock, RuleDrafts(known_metrics, limits, new_id))
        self._host = host
        """The agent's name."""
        self.rooms = dict.fromkeys((ChangeKind.BUDGET, ChangeKind.POLICY), FleetBudgetRoom())

    def _signed(self, who: str) -> str:
        """A user's number says nothing to those of another host."""
        return f"{who}@{self._host}" if self._host and who.startswith("uid:") else who

    async def _made(self, change: ChangeMade) -> ChangeMade:
        """With all places that it applies to, before or after: those it leaves count, too."""
        concerned = {
            item.reach
            for one in change.changes
            for item in (one.before, one.after)
            if item is not None
        }
        return replace(change, reached=await look_up(self._store, concerned))


class Exchanges(Lead, Protocol):
    """Tells the other agents of a shard of its changes (exchange.py)."""

    async def copied(self, shards: Collection[str]) -> Copies | None:
        """After it: who has it, as far as that is known within a moment."""
        ...

    def shares(self, reach: Reach) -> bool:
        """Whether changes with that reach are in the own logs of a shard's agents."""
        ...


class OwnBook(ChangeBook):
    """Of the agent's own log: in force when a change is acknowledged."""

    _default_reach = HERE

    def __init__(
        self,
        store: ChangeLog,
        clock: Clock,
        known_metrics: KnownMetrics,
        roll: Callable[[], float],
        here: Here,
        in_force: InForce,
        *,
        name: str = "",
        limits: RuleLimits = RuleLimits(),  # noqa: B008 -- frozen
        new_id: Callable[[], str] = _own_id,
        new_op: Callable[[], str] = _new_op,
    ) -> None:
        self._own = OwnWriter(store, clock, roll, new_op)
        rules = RuleDrafts(known_metrics, limits, new_id, here)
        super().__init__(store, self._own, clock, rules)
        self._own.on_found = self._in_force = in_force
        self._here_called = name
        self._exchanges: Exchanges | None = None
        self._merging: set[asyncio.Future[Merged]] = set()

    @property
    def held(self) -> LogState:
        """What is set, as far as it is known."""
        return self._own.held

    def name(self, kind: str, item_id: str, reach: Reach) -> str:
        """What a change is called in `held`: its id, unless another has that name here."""
        item = Change(kind, item_id, reach, None, 0, 0.0, "")
        named = self.held.items.get((kind, item_id))
        is_apart = named is not None and named.key != item.key and apart(item) in self.held.items
        return apart(item)[1] if is_apart else item_id

    def close(self) -> None:
        self._own.close()

    async def load(self, then: Loaded | None = None, *, salvaged: bool = False) -> LogState:
        """As the store has it now; put in force by `then`, while no other change is made."""
        return await self._own.load(then, salvaged=salvaged)

    async def forget(self, kind: str, ids: Iterable[str]) -> None:
        """What ended long ago is taken out, with an audit entry and no revision."""
        await self._own.forget([(kind, self.name(kind, one, HERE)) for one in ids])

    def _reach_fault(self, reach: Reach) -> str:
        is_shared = self._exchanges is not None and self._exchanges.shares(reach)
        return "" if reach == HERE or is_shared else _FURTHER.format(reach)

    async def _made(self, change: ChangeMade) -> ChangeMade:
        if not change.changes or change.dry_run:
            return change
        for told in await self._in_force(change.items):
            failed = Advice(Severity.WARNING, "not-in-force", "changes", told)
            change = replace(change, advice=(*change.advice, failed))
        shards = shards_of(change.items)
        if self._exchanges is None or not shards:
            return change
        copies = await self._exchanges.copied(shards)
        return replace(change, copies=copies and copies.of_items(change.items))

    # --- with the other agents of a shard ----------------------------------------------------

    def exchange_by(self, exchanges: Exchanges, changed: Callable[[Sequence[str]], None]) -> None:
        """`changed` is called with the keys of what has changed of shards."""
        self._exchanges = exchanges
        self._own.lead, self._own.on_shared = exchanges, changed

    def inventory(self, shard: str) -> Inventory:
        """Which versions of a shard's changes are here."""
        return self._own.shared.of(shard)

    async def entries(self, keys: Iterable[str]) -> list[Entry]:
        """What is held under these keys of shards."""
        return await self._own.entries(keys)

    async def merge(self, shard: str, entries: Sequence[Entry], *, by: str) -> Merged:
        """Apply what another agent has of a shard, as far as it is newer. The caller may be gone
        meanwhile: what is stored is applied anyway."""
        merging = asyncio.ensure_future(self._merge(shard, entries, by))
        self._merging.add(merging)
        merging.add_done_callback(self._merged)
        return await asyncio.shield(merging)

    async def _merge(self, shard: str, entries: Sequence[Entry], by: str) -> Merged:
        """A part at a time, each in force before the next: what fails takes none of it back."""
        items, rejected = list[Change](), list[str]()
        for start in range(0, len(entries), MAX_PART_KEYS):
            merged = await self._own.merge(shard, entries[start : start + MAX_PART_KEYS], by=by)
            if merged.items:
                await self._in_force(merged.items)
            items += merged.items
            rejected += merged.rejected
        return Merged(tuple(items), tuple(rejected))

    def _merged(self, merging: asyncio.Future[Merged]) -> None:
        self._merging.discard(merging)
        if not merging.cancelled():
            merging.exception()  # Seen, though nobody may be waiting any more.

    async def collect(self) -> None:
        """Drop what ended long ago, of all shards; what is in force is not touched."""
        await self._own.collect()


_FOR_ONE_AGENT = (
    f"is {str(HERE)!r}, one agent alone: that is for its own log (without --fleet). For an agent "
    "of the fleet, use host:NAME"
)
_FURTHER = (
    "is '{}', but this is the log of one agent: leave it out, or put the entry into a file for the "
    "fleet's log (--fleet)"
)


def _with_clocks(draft: Draft, held: LogState, asked: ChangeAuthor) -> Draft:
    told = clock_told(held.beat, asked.wall_s)
    if not told:
        return draft
    return replace(draft, advice=(*draft.advice, Advice(Severity.WARNING, "clock", "fleet", told)))


async def look_up(store: ChangeLog, reaches: Iterable[Reach]) -> Reached:
    """Which places they match, or why that is unknown. A preview, and never a condition: an unknown
    reach stops no change."""
    wanted = sorted(set(reaches), key=str)
    if not wanted:
        return Reached(0, 0, 0)
    reach = wanted[0] if len(wanted) == 1 else EVERYWHERE
    try:
        found = await _read(store, wanted)
    except StoreUnavailable as error:
        return await _counted(store, wanted, Reached(unknown=str(error), reach=reach))
    if found.hosts or found.shards or await _is_told(store):
        return found
    return Reached(unknown=NOBODY, reach=reach)


async def _read(store: ChangeLog, reaches: list[Reach]) -> Reached:
    listing = await store.list(prefixes_of(reaches))
    return await beside(len(listing.entries), lambda: reached_by(reaches, listing.entries))


async def _is_told(store: ChangeLog) -> bool:
    """Whether there is anything to look among."""
    try:
        return await store.count(SHARDS) + await store.count(MEMBERS) > 0
    except StoreUnavailable:
        return False


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
