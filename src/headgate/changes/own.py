"""The agent's own log.   operators ──► OwnBook ──plan──► OwnWriter ──► state file ──► in force

As book.py does it, but no other agent writes there: the current state is kept in memory, and
the audit entries are in the same transaction. Changes of a shard are there besides the agent's own.
The agents of a shard send them to each other (exchange.py); those of others are merged here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, Protocol

import structlog

from headgate.base.advice import Advice, Severity
from headgate.base.keyvalue import Compare, Listing, Put
from headgate.base.overlay import Overlay
from headgate.base.ports import ChangeLog, Clock
from headgate.base.supervise import beside
from headgate.changes.book import (
    ChangeBook,
    LogHead,
    LogWriter,
    PendingChange,
    Plan,
    head_puts,
    holdings_of,
    puts_of,
    random_op,
)
from headgate.changes.exchanged import (
    MAX_SHARED_BYTES,
    Entry,
    Inventory,
    ShardItems,
    Version,
    apart,
    check_room_above,
    collectable,
    is_long_over,
    is_of,
    own_names,
    rename,
    shard_of,
    shards_of,
    succeeding,
    version_of,
)
from headgate.changes.model import (
    HEAD,
    ITEMS,
    OURSELVES,
    REPLICATED,
    ROLLBACK,
    Change,
    ChangeKind,
    Edit,
    Revision,
)
from headgate.changes.reach import HERE, Reach
from headgate.changes.state import (
    MAX_OWN_ITEM_BYTES,
    MAX_PART_KEYS,
    ChangeMade,
    ChangeName,
    Copies,
    Draft,
    LogState,
    is_taken_out,
    item_bytes,
    name_of,
    put_by,
    read_item_at,
    summary_of,
)
from headgate.errors import Conflict, Fault, InvalidSettings, OutcomeUnknown, StoreUnavailable
from headgate.history.records import AuditEntry
from headgate.rules.drafts import RuleDrafts

log = structlog.get_logger()

LOOK_AGAIN_S = 1.0
JUST_SET_S = 60.0
"""A change set this recently is another one than the one to be dropped."""
_BEHIND = (
    "this agent has just become the leader of {}, and does not know yet what other agents have: "
    "going back now might undo their changes. Repeat it in a few seconds"
)


class Lead(Protocol):
    """Called before a change of shards: whether this agent may make it (changes/exchange.py). Both
    raise InvalidRequest, with the agent that has to make the change."""

    def is_ready(self, shards: Collection[str] = ()) -> bool:
        """Whether that is known, and so is what others have of the shards that it leads."""
        ...

    async def get_ready(self, shards: Collection[str] = ()) -> None:
        """As far as that comes within a moment."""
        ...


class _Unready(Exception):
    def __init__(self, shards: frozenset[str]) -> None:
        self.shards = shards


class Merged(NamedTuple):
    items: tuple[Change, ...] = ()
    """What is different now."""
    rejected: tuple[str, ...] = ()
    """What was not accepted, by its key, with the reason."""


Loaded = Callable[[Sequence[Change]], Awaitable[None]]
_New = tuple[str, bytes, Change | None]
"""A key, the bytes of its item, and the item; None: only a newer version can read it."""


InForce = Callable[[Sequence[Change]], Awaitable[Sequence[str]]]
"""Called with the new entries of the agent's own log, before it is acknowledged. Returns why it
is not in force everywhere."""


class SharesReach(Protocol):
    def shares(self, reach: Reach) -> bool:
        """Whether changes with that reach are in the own logs of a shard's agents."""
        ...


class Exchanges(Lead, Protocol):
    """Tells the other agents of a shard of its changes (exchange.py)."""

    async def copied(self, shards: Collection[str]) -> Copies | None:
        """After it: who has it, as far as that is known within a moment."""
        ...

    @property
    def lead(self) -> SharesReach: ...


class OwnBook(ChangeBook):
    """Of the agent's own log: in force when a change is acknowledged."""

    _default_reach = HERE

    def __init__(
        self,
        store: ChangeLog,
        clock: Clock,
        roll: Callable[[], float],
        rules: RuleDrafts,
        in_force: InForce,
        *,
        name: str = "",
        new_op: Callable[[], str] = random_op,
    ) -> None:
        self._own = OwnWriter(store, clock, roll, new_op)
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

    async def renew(self, then: Loaded) -> None:
        """All that is held, once more, while no other change is made."""
        async with self._own.lock:
            await then(list(self.held.items.values()))

    async def forget(self, kind: str, ids: Iterable[str]) -> None:
        """What ended long ago is taken out, with an audit entry and no revision."""
        await self._own.forget([(kind, self.name(kind, one, HERE)) for one in ids])

    def _reach_fault(self, reach: Reach) -> str:
        is_shared = self._exchanges is not None and self._exchanges.lead.shares(reach)
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


_FURTHER = (
    "is '{}', but this is the log of one agent: leave it out, or put the entry into a file for the "
    "fleet's log (--fleet)"
)


class OwnWriter(LogWriter):
    """Of the log that only this agent writes: nobody else is ever first. Changes of its shards are
    there besides its own, and other agents' are merged into them as they were made."""

    _max_item_bytes = MAX_OWN_ITEM_BYTES

    def __init__(
        self,
        store: ChangeLog,
        clock: Clock,
        roll: Callable[[], float],
        new_op: Callable[[], str],
    ) -> None:
        super().__init__(store, clock, roll, new_op)
        self._held: LogState | None = None
        """None: not read yet, or the outcome of a commit is not known."""
        self.held = LogState()
        """What was read or written last."""
        self.shared = ShardItems()
        """The part of `held` that belongs to shards."""
        self.lead: Lead | None = None
        """None: no other agent has anything of this log."""
        self.on_shared: Callable[[Sequence[str]], None] = lambda keys: None
        """Called with the keys of what has changed of shards."""
        self.on_found: Callable[[Sequence[Change]], Awaitable[object]] | None = None
        """Called with what a commit with an unknown outcome did after all."""
        self.lock = asyncio.Lock()
        """Held while a change is made."""
        self._looking: asyncio.Task[None] | None = None

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self, before: Mapping[ChangeName, Change]) -> None:
        """What may have been kept is put in force as soon as the store says whether it was."""
        while True:
            await self._clock.sleep(LOOK_AGAIN_S)
            with suppress(StoreUnavailable):
                async with self.lock:
                    held = await self.read()
                found = [item for name, item in held.items.items() if before.get(name) != item]
                if found and self.on_found is not None:
                    log.warning("changes.found", changes=[item.id for item in found[:10]])
                    await self.on_found(found)
                return

    async def read(self) -> LogState:
        if self._held is None:
            await self._take(await self._store.list((HEAD, ITEMS)))
        return self.held

    async def load(self, then: Loaded | None = None, *, salvaged: bool = False) -> LogState:
        """As the store has it now. `then`: puts all of it in force, before anybody makes another
        change: one that came in between would be missing. `salvaged`: it cannot be opened, and is
        only looked at."""
        async with self.lock:
            await self._take(await self._store.list((HEAD, ITEMS), allow_stale=salvaged))
            if then is not None:
                await then(list(self.held.items.values()))
            return self.held

    async def _take(self, listing: Listing) -> None:
        def worked_out() -> tuple[LogState, ShardItems]:
            return own_holdings(listing), shard_items_of(listing)

        held, self.shared = await beside(len(listing.entries), worked_out)
        self._held = self.held = held

    async def carry_out(
        self, plan: Plan, *, who: str, expect_n: int | None = None, dry_run: bool = False
    ) -> ChangeMade:
        if self.lead is not None and not self.lead.is_ready():
            await self.lead.get_ready()
        awaited = frozenset[str]()
        while True:
            led = self._led(plan, awaited)
            try:
                if dry_run:  # A dry run does not wait for changes, nor they for it.
                    return await super().carry_out(led, who=who, expect_n=expect_n, dry_run=True)
                async with self.lock:
                    return await super().carry_out(led, who=who, expect_n=expect_n)
            except _Unready as unready:
                # Without the lock: what others have is merged meanwhile.
                assert self.lead is not None
                await self.lead.get_ready(unready.shards)
                awaited |= unready.shards

    def _led(self, plan: Plan, awaited: frozenset[str]) -> Plan:
        """With a look at who leads the shards whose changes it makes; those of `awaited` have been
        waited for."""

        async def led(held: LogState) -> Draft:
            drafted = await plan(held)
            shards = shards_of(change.after for change in drafted.changes)
            if self.lead is not None and shards:
                is_ready = self.lead.is_ready(shards)
                if not is_ready and not shards <= awaited:
                    raise _Unready(shards)
                if not is_ready and drafted.action == ROLLBACK:
                    raise Conflict(_BEHIND.format(", ".join(sorted(shards))))
            return drafted

        return led

    async def _drafted(
        self, plan: Plan, holdings: LogState
    ) -> tuple[Draft, list[tuple[Edit, ...]]]:
        draft, parts = await super()._drafted(plan, holdings)
        shared = (one.after for one in draft.changes if one.after and shard_of(one.after.key))
        faults = [
            Fault(f"{item.kind} {item.id}", f"takes {size:,} bytes, at most {MAX_SHARED_BYTES:,}")
            for item in shared
            if (size := len(item_bytes(item))) > MAX_SHARED_BYTES
        ]
        if faults:
            raise InvalidSettings(faults)
        return draft, parts

    def _step(self, run: PendingChange, ground: LogHead) -> Revision:
        step = super()._step(run, ground)
        changes = []
        for one in step.changes:
            was, now = one.before, one.after
            if was is not None and now is not None and was.key != now.key:
                # What ended for a shard may be set for this agent, or the reverse: they are two.
                was = None if shard_of(was.key) or shard_of(now.key) else was
            if now is not None and shard_of(now.key):
                now = succeeding(now, self.shared.items.get(now.key))
            changes.append(Edit(was, now))
        return replace(step, changes=tuple(changes))

    def _parts(self, changes: Sequence[Edit]) -> list[tuple[Edit, ...]]:
        """One: its store takes all of it in one transaction."""
        return [tuple(changes)] if changes else []

    async def _attempt(self, run: PendingChange, ground: LogHead, step: Revision) -> LogHead | None:
        held = await self.read()
        lifts = all(one.after is not None and is_taken_out(one.after) for one in step.changes)
        audit = list(_audit_of(step, run.draft))
        puts = await beside(len(step.changes), lambda: puts_of(step, 0))
        try:
            made = await self._commit_here(ground.head_revision, puts, audit, must_fit=lifts)
        except Conflict:
            return None
        self._put(held, step.n, made, [_new(item) for one in step.changes for item in put_by(one)])
        return LogHead(step.n, made)

    async def _commit_here(
        self, head: int, puts: Sequence[Put], audit: Sequence[AuditEntry], *, must_fit: bool = False
    ) -> int:
        """What is held is not known until the outcome is: the store is asked for it later."""
        held, self._held = self._held, None
        try:
            compares = [Compare(HEAD, head)]
            return await self._store.commit(compares, puts, audit=audit, must_fit=must_fit)
        except OutcomeUnknown:
            if self._looking is None or self._looking.done():
                # As it is in force now: who reads in the meantime finds the outcome, and only that.
                self._looking = asyncio.create_task(self._look(self.held.items))
            raise
        except StoreUnavailable:
            self._held = held
            raise

    def _put(self, held: LogState, n: int, revision: int, put: Sequence[_New]) -> None:
        """From here on it is so."""
        shared = [one for one in put if shard_of(one[0])]
        for one in shared:
            self.shared.put(*one)
        items, new = held.items.copy(), [item for _, _, item in put if item is not None]
        if self.shared.items:
            rename(items, new, self.shared.inventories)
        else:
            items.update({name_of(item): item for item in new})
        self._held = self.held = replace(held, n=n, items=items, head_revision=revision)
        if shared:
            self.on_shared([key for key, _, _ in shared])

    async def forget(self, names: Sequence[ChangeName]) -> None:
        """Without a revision: what is forgotten had ended, and nobody goes back to it. What is of
        a shard stays, for agents that were away: `collect` drops that."""
        async with self.lock:
            held = await self.read()
            found = (held.items[name] for name in names if name in held.items)
            before_s = self._clock.now().wall_s - JUST_SET_S
            over = [item for item in found if not shard_of(item.key) and item.set_at < before_s]
            await self._drop(over)

    async def collect(self) -> None:
        """Drop what has been over for long of all shards."""
        async with self.lock:
            await self.read()
            wall_s, items = self._clock.now().wall_s, self.shared.items
            for shard in list(self.shared.inventories):
                over = await beside(len(items), lambda of=shard: _over(items, of, wall_s))  # type: ignore[misc]
                for start in range(0, len(over), MAX_PART_KEYS):
                    await self._drop(over[start : start + MAX_PART_KEYS])

    async def _drop(self, gone: Sequence[Change]) -> None:
        if not gone:
            return
        held, wall_s = await self.read(), self._clock.now().wall_s
        audit = [
            AuditEntry(wall_s, OURSELVES, f"{item.kind}.forgotten", item.id, item.value, None)
            for item in gone
        ]
        await self._commit_here(held.head_revision, [Put(item.key, None) for item in gone], audit)
        keys = {item.key for item in gone}
        left = Overlay({name: item for name, item in held.items.items() if item.key not in keys})
        self._held = self.held = replace(held, items=left)
        shared = [key for key in keys if shard_of(key)]
        for key in shared:
            self.shared.drop(key)
        if shared:
            self.on_shared(shared)

    # --- what other agents of a shard have made ----------------------------------------------

    async def merge(self, shard: str, entries: Sequence[Entry], *, by: str) -> Merged:
        """What another agent (`by`) has of a shard, as far as it is newer than what is held, in one
        commit; with the numbers that it has. The next change made here gets a higher one than any
        of them."""
        async with self.lock:
            await self.read()
            newer, rejected = self._newer(shard, entries)
            if newer:
                held = self.held
                wall_s = round(self._clock.now().wall_s, 3)
                n = max(held.n, *(version_of(raw).n for _, raw, _ in newer)) + 1
                was = self.shared.items
                changes = [Edit(was.get(key), item) for key, _, item in newer if item is not None]
                before_n = None if n == held.n + 1 else held.n
                said = (f"agent {by}", REPLICATED, summary_of(changes), self._new_op())
                step = Revision(n, wall_s, *said, tuple(changes), before_n)
                items = [Put(key, raw) for key, raw, _ in newer]
                lifts = all(version_of(raw).taken_out for _, raw, _ in newer)
                puts, audit = [*head_puts(step), *items], list(_replicated(changes, wall_s))
                made = await self._commit_here(held.head_revision, puts, audit, must_fit=lifts)
                self._put(held, n, made, newer)
                log.info("changes.merged", n=n, by=by, what=step.summary)
        return Merged(tuple(item for _, _, item in newer if item is not None), tuple(rejected))

    def _newer(self, shard: str, entries: Sequence[Entry]) -> tuple[list[_New], list[str]]:
        inventory, wall_s = self.shared.of(shard), self._clock.now().wall_s
        found, rejected = dict[str, tuple[bytes, Change | None]](), list[str]()
        best = dict[str, Version]()
        for key, raw in entries:
            try:
                if not is_of(shard, key):
                    raise ValueError(f"is none of {shard}")
                version = version_of(raw)
                check_room_above(version, wall_s)
            except ValueError as error:
                rejected.append(f"{key} {error}")
                continue
            if not inventory.lacks(key, version) or (key in best and best[key] >= version):
                continue
            item = _read_at(key, raw)
            if item is not None and not inventory.has(key) and is_long_over(item, wall_s):
                continue  # It was dropped here, or would be at once.
            best[key], found[key] = version, (raw, item)
        return [(key, *one) for key, one in found.items()], rejected

    async def entries(self, keys: Iterable[str]) -> list[Entry]:
        """What is held under these keys of shards, as it was made."""
        found, unread = dict[str, bytes](), list[str]()
        for key in keys:
            if key not in self.shared.items:
                continue
            item = self.shared.items[key]
            raw = b"" if item is None else item_bytes(item)
            if raw and self.shared.is_as(key, raw):
                found[key] = raw
            else:  # A newer version says more of it than this one knows.
                unread.append(key)
        if unread:
            listed = (await self._store.list(unread)).entries
            found |= {entry.key: entry.value for entry in listed if entry.key in set(unread)}
        return list(found.items())


def _over(items: Mapping[str, Change | None], shard: str, wall_s: float) -> list[Change]:
    mine = {key: item for key, item in items.items() if shard_of(key) == shard}
    return [item for key in collectable(mine, wall_s) if (item := mine[key])]


def _new(item: Change) -> _New:
    """Its bytes are sent to others only if it belongs to a shard."""
    return item.key, item_bytes(item) if shard_of(item.key) else b"", item


def _read_at(key: str, raw: bytes) -> Change | None:
    try:
        return read_item_at(key, raw)
    except ValueError as error:
        log.warning("change.unreadable", key=key, fault=str(error))
        return None


def _replicated(changes: Sequence[Edit], wall_s: float) -> Iterator[AuditEntry]:
    for change in changes:
        after = change.after
        assert after is not None
        was = change.before.value if change.before is not None else None
        yield AuditEntry(
            wall_s, after.set_by, f"{after.kind}.{REPLICATED}", after.id, was, after.value
        )


def _audit_of(step: Revision, draft: Draft) -> Iterator[AuditEntry]:
    if draft.entry is not None:
        yield AuditEntry(step.wall_s, step.who, step.action, *draft.entry)
        return
    for change in step.changes:
        item = change.after or change.before
        if item is None:
            continue
        was = change.before.value if change.before is not None else None
        now = change.after.value if change.after is not None else None
        was, now = draft.shown.get(name_of(item), (was, now))
        yield AuditEntry(step.wall_s, step.who, _audited(step, change, item), item.id, was, now)


def _audited(step: Revision, change: Edit, item: Change) -> str:
    """As the change was called; of what a file or a rollback did, what it did to this one, and of
    what was set in the place of another, that the other is gone."""
    is_gone = change.after is None or is_taken_out(change.after)
    if step.action.startswith(f"{item.kind}.") and not (is_gone and step.action.endswith(".set")):
        return step.action
    if item.kind == ChangeKind.METRIC:
        is_removed = (item.value or {}).get("removed") is True
        return f"metric.{'revert' if is_gone else 'remove' if is_removed else 'set'}"
    if is_gone:
        return f"{item.kind}.{'lifted' if item.kind == ChangeKind.RULE else 'removed'}"
    return f"{item.kind}.{'set' if change.before is None else 'changed'}"


# --- as it was read ------------------------------------------------------------------------


def own_holdings(listing: Listing) -> LogState:
    """Of an agent's own log, whose shards' changes others have made, too: their numbers count."""
    held = holdings_of(listing, MAX_OWN_ITEM_BYTES, own_names)
    return replace(held, n=max([held.n, *(item.n for item in held.items.values())]))


def shard_items_of(listing: Listing) -> ShardItems:
    found = ShardItems()
    for entry in listing.entries:
        if shard_of(entry.key):
            with suppress(ValueError):  # Reported with the holdings.
                found.put(entry.key, entry.value, _read_at(entry.key, entry.value))
    return found
