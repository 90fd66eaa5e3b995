"""Follow what Patroni reports about a cluster in its own etcd keys.

etcd <namespace>/<scope>/ ──list, watch──► PatroniFollower ──► Shards: members, who leads
                                           └──► PatroniRoleProbe: a role if the server gives none

Read only. Patroni's report never overrides the server's own: the server knows its role better than
a lock that it may be about to lose.

Patroni demotes primaries when its etcd is slow, and servers tend to lose their role all at once. So
the agent watches, and reads little besides. For a replica the watch is enough. A lock is confirmed
by the quorum, not by any one etcd member: a member that lost the others would keep it forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from headgate.base.keyvalue import Changes, Entry, Listing
from headgate.base.ports import Clock, LogReader, RoleProbe
from headgate.check.demand import first_of
from headgate.errors import ProbeFailed, StoreUnavailable
from headgate.metrics.samples import Cause
from headgate.shard.patroni_keys import PatroniCluster, read_cluster
from headgate.shard.topology import Role, RoleSeen

log = structlog.get_logger()

RETRY_S = 1.0
LONGEST_RETRY_S = 15.0
LIST_EVERY_S = 30.0
"""A watch can stall, and Patroni has no beat: after this long without a message, list the keys."""
UNLISTED_TIMES = 4
"""A watch that does report is listed every so often, too: a change has no time of its own."""
LOCK_TRUSTED_S = 10.0
"""How long a lock counts after it was listed, while a watch would report its release. The lock of a
dead holder expires later: Patroni's `ttl` is 30 s, and at least 20 s."""
CONFIRM_WITHIN_S = 1.0
"""Spreads requests, so that thousands of slow primaries do not all send them at once."""
CONFIRMS_PER_S = 1.0
"""For one agent, over all its clusters."""
MAX_KEYS = 1024
BESIDE_S = 0.1
"""Share of a role's timeout that is reserved for reading Patroni's report instead."""


class ConfirmPace:
    """How many reads one agent sends besides its watches, whatever the number of its clusters."""

    def __init__(self, per_s: float = CONFIRMS_PER_S) -> None:
        self._every_s = 1 / per_s
        self._free_at = 0.0

    def wait_s(self, now: float) -> float:
        """Until the turn that is hereby taken."""
        turn_at = max(now, self._free_at)
        self._free_at = turn_at + self._every_s
        return turn_at - now


class PatroniKeys:
    """A cluster's keys: as last listed, and the changes that a watch has reported since."""

    def __init__(self, reader: LogReader, scope: str, timeout_s: float) -> None:
        self.reader = reader
        self.scope = scope
        self.list_timeout_s = 2 * timeout_s
        self._entries: dict[str, Entry] = {}
        self._store_id = ""
        self._listed_revision = 0
        self._revision = 0

    def cluster(self) -> PatroniCluster:
        return read_cluster(self.scope, self._entries.values())

    async def list(self) -> bool:
        """As `adopt`. After StoreUnavailable what was known stays."""
        try:
            async with asyncio.timeout(self.list_timeout_s):
                return self.adopt(await self.reader.list([f"{self.scope}/"]))
        except TimeoutError:
            detail = f"{self.reader.name}: no answer in {self.list_timeout_s:g} s"
            raise StoreUnavailable(detail) from None

    def adopt(self, listing: Listing) -> bool:
        """Whether they are otherwise than known. Nothing that the watch reported is undone."""
        same = listing.store_id == self._store_id
        if same and listing.revision < self._revision:
            return False
        entries = {entry.key: entry for entry in listing.entries[:MAX_KEYS]}
        is_known = same and entries == self._entries
        self._entries, self._store_id = entries, listing.store_id
        self._revision = self._listed_revision = listing.revision
        return not is_known

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Until the watch ends."""
        changes = self.reader.watch([f"{self.scope}/"], after_revision=self._revision)
        try:
            async for change in changes:
                self.apply(change)
                on_change()
        finally:
            await changes.aclose()

    def apply(self, changes: Changes) -> None:
        for event in changes.events:
            if event.revision <= self._listed_revision:
                continue  # A list beside the watch was faster.
            if event.value is None:
                self._entries.pop(event.key, None)
            elif event.key in self._entries or len(self._entries) < MAX_KEYS:
                self._entries[event.key] = Entry(event.key, event.value, event.revision)
        self._revision = max(self._revision, changes.revision)


class PatroniFollower:
    def __init__(
        self,
        reader: LogReader,
        scope: str,
        clock: Clock,
        roll: Callable[[], float],
        *,
        timeout_s: float = 2.0,
        pace: ConfirmPace | None = None,
    ) -> None:
        """`reader` is of Patroni's namespace, and `scope` one of its clusters; `pace` is shared by
        all followers of an agent."""
        self.scope = scope
        self.keys = PatroniKeys(reader, scope, timeout_s)
        self._clock = clock
        self._roll = roll
        self._pace = pace or ConfirmPace()
        self.cluster: PatroniCluster | None = None
        """None: it has not been read yet."""
        self.heard_at: float | None = None
        """Monotonic seconds: the store had this state at that time, or later."""
        self.fault = ""
        self._failures = 0
        self._patience_s = LIST_EVERY_S
        self._told_at = 0.0
        """Monotonic: the last message of the watch, or the last list."""
        self._is_watching = False
        self._behind = asyncio.Event()
        """A list had something that the watch had not reported."""
        self._wanted = asyncio.Event()
        self._watchers: list[Callable[[], None]] = []

    def watch(self, callback: Callable[[], None]) -> None:
        """Called when the cluster is another one than before."""
        self._watchers.append(callback)

    def known_at(self, role: Role) -> float | None:
        """Monotonic: until when that role was certain. None: unknown.

        A lock counts for a while after the store confirmed it. A wrong "not the primary" does no
        harm: there the watch is enough.
        """
        if self.heard_at is None or not self._is_watching:
            return self.heard_at
        now = self._now()
        if role is Role.PRIMARY:
            return now if now - self.heard_at <= LOCK_TRUSTED_S else self.heard_at
        return now if now < self._list_due_at() + self.keys.list_timeout_s else self.heard_at

    def confirm(self) -> None:
        """A role depends on a lock alone: read it soon, unless that was done recently."""
        self._wanted.set()

    def words(self) -> str:
        """For people: what it says, and how old that is where it is old."""
        if self.cluster is None:
            return f"Patroni ({self.scope}) has not been read: {self.fault or 'no attempt yet'}"
        told = f"Patroni ({self.scope}): {self.cluster.words()}"
        if not self.fault:
            return told
        age_s = self._now() - (self.heard_at or 0.0)
        return f"{told} (as of {age_s:.0f} s ago; {self.fault})"

    async def run(self) -> None:
        confirming = asyncio.ensure_future(self._confirm())
        try:
            while True:
                try:
                    await self.look_once()
                    await self._watch_along()
                except StoreUnavailable as error:
                    self._failed(str(error))
                # Without a fault it is only time for another watch.
                await self._clock.sleep(self._backed_off_s() if self.fault else 0.0)
        finally:
            confirming.cancel()
            await asyncio.gather(confirming, return_exceptions=True)

    # --- list and watch --------------------------------------------------------------------

    async def _watch_along(self) -> None:
        """Ends when the way is gone, or the watch has left something out."""
        began_at = self._now()
        self._behind.clear()
        ended = asyncio.ensure_future(self._until_ended())
        self._is_watching = True
        try:
            while not ended.done():
                if self._now() >= self._list_due_at():
                    await self.look_once()
                await first_of(self._clock, max(0.0, self._list_due_at() - self._now()), ended)
            ended.result()
        finally:
            self._is_watching = False
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)
            # Where lists are answered and watches are not, each list is no new beginning.
            if self._now() - began_at > LONGEST_RETRY_S:
                self._failures = 0

    async def _until_ended(self) -> None:
        watching = asyncio.ensure_future(self.keys.watch(self._changed))
        behind = asyncio.ensure_future(self._behind.wait())
        try:
            await asyncio.wait({watching, behind}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            behind.cancel()
            await asyncio.gather(watching, behind, return_exceptions=True)

    def _list_due_at(self) -> float:
        listed_at = self.heard_at or 0.0
        return min(self._told_at, listed_at + (UNLISTED_TIMES - 1) * self._patience_s) + (
            self._patience_s
        )

    async def look_once(self) -> None:
        """Or StoreUnavailable, and what was known stays."""
        asked_at = self._now()
        if await self.keys.list() and self._is_watching:
            self._behind.set()
        self._patience_s = LIST_EVERY_S * (0.8 + 0.4 * self._roll())
        self.heard_at = asked_at
        self._heard()

    def _changed(self) -> None:
        """A change was under way for a time that nobody knows: it tells, and confirms nothing."""
        self._failures = 0
        self._heard()

    def _heard(self) -> None:
        self._told_at = self._now()
        self.fault = ""
        before, self.cluster = self.cluster, self.keys.cluster()
        if before is None or before.words() != self.cluster.words():
            log.info("patroni.cluster", scope=self.scope, words=self.cluster.words())
        if before != self.cluster:
            for callback in self._watchers:
                callback()

    def _failed(self, detail: str) -> None:
        if not self._failures:
            store = self.keys.reader.name
            log.warning("patroni.away", scope=self.scope, store=store, detail=detail)
        self.fault = detail
        self._failures += 1

    def _backed_off_s(self) -> float:
        longest = min(LONGEST_RETRY_S, RETRY_S * 2.0 ** min(self._failures, 10))
        return longest * (0.5 + 0.5 * self._roll())

    # --- confirm ---------------------------------------------------------------------------

    async def _confirm(self) -> None:
        """Never more often than a lock must be, to stay believed; less often while that fails."""
        while True:
            await self._wanted.wait()
            await self._clock.sleep(self._confirm_in_s())
            self._wanted.clear()
            if self.heard_at is not None and self._now() - self.heard_at < LOCK_TRUSTED_S / 2:
                continue  # Confirmed by another list, meanwhile.
            await self._clock.sleep(self._pace.wait_s(self._now()))
            try:
                await self.look_once()
            except StoreUnavailable as error:
                self._failed(str(error))

    def _confirm_in_s(self) -> float:
        if self.fault:
            return self._backed_off_s()
        due_at = (self.heard_at or 0.0) + LOCK_TRUSTED_S * (0.6 + 0.2 * self._roll())
        return max(due_at - self._now(), CONFIRM_WITHIN_S * self._roll())

    def _now(self) -> float:
        return self._clock.now().mono_s


class PatroniRoleProbe:
    """A server's own word, or Patroni's where the server says nothing. Implements RoleProbe."""

    def __init__(
        self, probe: RoleProbe, follower: PatroniFollower, member: str, clock: Clock,
        *, timeout_s: float = 0.5,
    ) -> None:  # fmt: skip
        self._probe = probe
        self._follower = follower
        self._member = member
        """Its name in Patroni's cluster."""
        self._clock = clock
        self._timeout_s = timeout_s

    async def read(self) -> RoleSeen:
        allowed_s = max(self._timeout_s - BESIDE_S, self._timeout_s / 2)
        try:
            async with asyncio.timeout(allowed_s):
                return await self._probe.read()
        except ProbeFailed as error:
            return self._told(error)
        except TimeoutError:
            detail = f"the server did not report its role in {allowed_s:g} s"
            return self._told(ProbeFailed(Cause.TIMED_OUT, detail))

    async def lost(self) -> None:
        await self._probe.lost()

    async def close(self) -> None:
        await self._probe.close()

    def _told(self, error: ProbeFailed) -> RoleSeen:
        """Dated by the last time at which it was certain: the caller checks that age."""
        cluster = self._follower.cluster
        member = cluster.member(self._member) if cluster else None
        if cluster is None or member is None:
            raise self._untold(error, f"has no member {self._member}")
        role = cluster.role_of(self._member)
        if role is None:
            raise self._untold(error, "does not report its role")
        # The lock of a server that is gone is held until it runs out: only one that is there, and
        # too busy to answer, is taken for the primary by its lock.
        if role is Role.PRIMARY and (error.cause, member.state) != (Cause.TIMED_OUT, "running"):
            raise self._untold(error, "does not count for a primary that does not answer")
        if role is Role.PRIMARY:
            self._follower.confirm()
        known_at = self._follower.known_at(role)
        assert known_at is not None, "a cluster that was never read"
        return RoleSeen(role, known_at, cluster=cluster.system_id, term=member.timeline)

    def _untold(self, error: ProbeFailed, why: str) -> ProbeFailed:
        return ProbeFailed(error.cause, f"{error.detail}; {self._follower.words()} – which {why}")
