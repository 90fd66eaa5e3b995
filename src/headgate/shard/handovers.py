"""Planned switchovers that operators announce, so that no answer relies on the old primary's view.

    pre-hook ──announce──► log ──follow──► Shard.handover ──► shard scope is rejected
    role read: the server stepped down, or the time is over ──look──► removed from the log

An orchestrator calls it before it makes the primary read only. It ends when the role changes, when
it is taken back, or when its time is over: a forgotten one stops the shard for at most an hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from headgate.base.ports import Clock
from headgate.changes.items import Make, SetItems, put, standing
from headgate.changes.model import OURSELVES, Change, ChangeKind
from headgate.changes.state import Draft, LogState
from headgate.changes.time import ChangeTime
from headgate.errors import Conflict, InvalidRequest, StoreUnavailable
from headgate.metrics.samples import Instant
from headgate.rules.drafts import ChangeAuthor
from headgate.shard.members import LocalMember
from headgate.shard.model import MAX_HANDOVER_S, Handover
from headgate.shard.shard import NoSuchMember, Shard
from headgate.shard.topology import Following, Role

log = structlog.get_logger()

HANDOVER = ChangeKind.HANDOVER
"""One for each shard, by its name."""


class Handovers:
    def __init__(self, clock: Clock, make: Make, time: ChangeTime) -> None:
        self._clock = clock
        self._make = make
        self.kept = SetItems(
            HANDOVER, lambda item, ends_mono_s: _handover_of(item, clock.now(), ends_mono_s), time
        )
        self._errands: set[asyncio.Task[None]] = set()

    def follow(self, items: Sequence[Change], *, whole: bool) -> list[str]:
        """The shards that have another one now, or none."""
        return self.kept.follow(items, whole=whole)

    def set_in(self, shard: Shard) -> None:
        shard.handover = self.kept.values.get(shard.name)
        shard.look_again()

    async def announce(
        self, shard: Shard, database: str, *, for_s: float, reason: str, who: str
    ) -> Handover:
        """It is kept before it takes effect; once this returns, no check at shard scope is admitted
        by the view of that server. Announced again, it gets another end."""
        if not 0 < for_s <= MAX_HANDOVER_S:
            message = f"a handover lasts at most {MAX_HANDOVER_S / 60:g} minutes"
            raise InvalidRequest(message, field="for")
        local = _stepping_down(shard, database, self._clock.now().mono_s)

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            value = {
                "member": local.name,
                "term": local.role.term if local.role else None,
                "until_wall_s": asked.wall_s + for_s,
                "who": asked.who,
                "reason": reason,
            }
            return Draft("handover.set", [put(held, HANDOVER, shard.name, value, asked)])

        made = await self._make(draft, who, dry_run=False)
        now = self._clock.now()
        return _handover_of(made.items[0], now, now.mono_s + for_s)

    async def take_back(self, shard: Shard, *, who: str) -> None:
        if shard.handover is None:
            raise NoSuchMember(_NONE.format(shard.name))
        if not await self._take_out(shard.name, who):
            raise NoSuchMember(_NONE.format(shard.name))

    async def _take_out(self, name: str, who: str, n: int | None = None) -> bool:
        """`n`: only the one of that revision. False: it is gone, or another one."""

        def draft(held: LogState, asked: ChangeAuthor) -> Draft:
            found = standing(held, HANDOVER, name)
            changes = [
                put(held, HANDOVER, name, None, asked) for one in found if n in (None, one.n)
            ]
            return Draft("handover.removed", changes)

        return bool((await self._make(draft, who, dry_run=False)).changes)

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
        task = asyncio.create_task(self._drop(shard.name, self.kept.n_of(shard.name)))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _drop(self, name: str, n: int) -> None:
        """One that cannot be taken out now is taken out after the agent's next start, or is over.
        Announced again meanwhile, it is another one."""
        try:
            await self._take_out(name, OURSELVES, n)
        except (Conflict, StoreUnavailable) as error:
            log.warning("handover.kept", shard=name, detail=str(error))

    async def close(self) -> None:
        await asyncio.gather(*self._errands)


_NONE = "no handover of {} is announced here"


def _stepping_down(shard: Shard, database: str, now: float) -> LocalMember:
    local = shard.roster.local_primary(now) or shard.locals[database]
    if isinstance(shard.point, Following):
        where = f", {shard.point.url}" if shard.point.url else ""
        message = f"{local.name} is not the primary of {shard.name}: announce it at the agent of "
        raise InvalidRequest(f"{message}{shard.point.primary}{where}", status=409)
    if local.role is not None and local.role.role is Role.REPLICA:
        message = f"{local.name} is a replica in {shard.name}: only a primary can hand over"
        raise InvalidRequest(message, status=409)
    return local


def _handover_of(item: Change, now: Instant, ends_mono_s: float) -> Handover:
    kept = item.value or {}
    return Handover(
        shard=item.id,
        member=kept["member"],
        term=kept["term"],
        until_mono_s=ends_mono_s,
        until_wall_s=kept["until_wall_s"],
        set_mono_s=now.mono_s,
        who=kept["who"],
        reason=kept["reason"],
    )
