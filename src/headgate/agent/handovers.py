"""Planned switchovers that operators announce, so that no answer rests on the old primary's view.

    pre-hook ──announce──► Handovers ──► store, then Shard.handover ──► shard scope is refused
    role read: the server stepped down, or the time is over ──look──► forgotten

An orchestrator calls it before it makes the primary read only. It ends with the role, when it is
taken back, or when its time is over: one that nobody ends holds the shard up for an hour at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog

from headgate.agent.members import LocalMember
from headgate.agent.ports import Clock
from headgate.agent.shard import NoSuchMember, Shard
from headgate.core.records import Record
from headgate.core.samples import Instant
from headgate.core.shard import MAX_HANDOVER_S, Handover
from headgate.core.topology import Following, Role
from headgate.errors import Conflict, InvalidRequest, StoreUnavailable

log = structlog.get_logger()

HANDOVER = "handover"
OURSELVES = "headgate"
"""Who ends one whose switchover is done."""

Keep = Callable[[str, str, str, Mapping[str, Any] | None, Record | None, str], Awaitable[Record]]
"""(kind, shard, member, value, before, who): into the store, with its audit entry."""


class Handovers:
    def __init__(self, clock: Clock, keep: Keep) -> None:
        self._clock = clock
        self._keep = keep
        self._kept: dict[str, Record] = {}
        """By shard, as the store has them."""
        self._handovers: dict[str, Handover] = {}
        self._errands: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    def load(self, records: Sequence[Record]) -> None:
        now = self._clock.now()
        self._kept = {record.key: record for record in records}
        self._handovers = {record.key: _handover_of(record, now) for record in records}

    def set_in(self, shard: Shard) -> None:
        shard.handover = self._handovers.get(shard.name)
        shard.look_again()

    async def announce(
        self, shard: Shard, database: str, *, for_s: float, reason: str, who: str
    ) -> Handover:
        """It is kept before it takes effect; once this returns, no check at shard scope is admitted
        by the view of that server. Announced again, it gets another end."""
        if not 0 < for_s <= MAX_HANDOVER_S:
            message = f"a handover lasts at most {MAX_HANDOVER_S / 60:g} minutes"
            raise InvalidRequest(message, field="for")
        async with self._lock:
            now = self._clock.now()
            local = _stepping_down(shard, database, now.mono_s)
            value = {
                "member": local.name,
                "term": local.role.term if local.role else None,
                "until_wall_s": now.wall_s + for_s,
                "for_s": for_s,
                "who": who,
                "reason": reason,
            }
            before = self._kept.get(shard.name)
            kept = await self._keep(HANDOVER, shard.name, "", value, before, who)
            self._kept[shard.name] = kept
            self._handovers[shard.name] = _handover_of(kept, self._clock.now())
            self.set_in(shard)
            return self._handovers[shard.name]

    async def take_back(self, shard: Shard, *, who: str) -> None:
        async with self._lock:
            if shard.handover is None:
                raise NoSuchMember(f"no handover of {shard.name} is announced here")
            await self._forget(shard.name, who)
            self.set_in(shard)

    async def _forget(self, name: str, who: str) -> None:
        await self._keep(HANDOVER, name, "", None, self._kept[name], who)
        del self._kept[name], self._handovers[name]

    def look(self, shard: Shard) -> None:
        """A role was read: by it the switchover may be done, and by now its time may be over."""
        handover = shard.handover
        if handover is None:
            return
        local = next((m for m in shard.locals.values() if m.name == handover.member), None)
        done = local is None or handover.is_done(local.role)
        if not done and handover.holds(self._clock.now().mono_s):
            return
        shard.handover = None
        if not done:
            log.warning("handover.expired", shard=shard.name, member=handover.member)
        task = asyncio.create_task(self._drop(shard.name, handover))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _drop(self, name: str, handover: Handover) -> None:
        """One that cannot be forgotten now is forgotten by the agent's next start, or is over."""
        async with self._lock:
            if self._handovers.get(name) is not handover:
                return  # Announced again, or taken back, meanwhile.
            try:
                await self._forget(name, OURSELVES)
            except (Conflict, StoreUnavailable) as error:
                log.warning("handover.kept", shard=name, detail=str(error))

    async def close(self) -> None:
        await asyncio.gather(*self._errands)


def _stepping_down(shard: Shard, database: str, now: float) -> LocalMember:
    local = shard.roster.local_primary(now) or shard.locals[database]
    if isinstance(shard.point, Following):
        where = f", {shard.point.url}" if shard.point.url else ""
        message = f"{local.name} is not the primary of {shard.name}: announce it at the agent of "
        raise InvalidRequest(f"{message}{shard.point.primary}{where}", status=409)
    if local.role is not None and local.role.role is Role.REPLICA:
        message = f"{local.name} is a replica in {shard.name}: it has nothing to hand over"
        raise InvalidRequest(message, status=409)
    return local


def _handover_of(record: Record, now: Instant) -> Handover:
    """Its time is counted by our own clock: a wall clock that is set back does not lengthen it."""
    assert record.value is not None
    kept = record.value
    left_s = min(max(0.0, kept["until_wall_s"] - now.wall_s), kept["for_s"])
    return Handover(
        shard=record.key,
        member=kept["member"],
        term=kept["term"],
        until_mono_s=now.mono_s + left_s,
        until_wall_s=kept["until_wall_s"],
        set_mono_s=now.mono_s,
        who=kept["who"],
        reason=kept["reason"],
    )
