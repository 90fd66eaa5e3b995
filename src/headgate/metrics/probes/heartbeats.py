"""What both engines' heartbeats share: reading the newest row, and writing one in time.

A row that is old has five explanations, and only one of them is lag: the replica is behind;
replication was stopped; it broke; the writer is idle because no client checks; the writer is dead.
So an old row is compared with what the server itself says about its replication.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, NamedTuple

from headgate.errors import ProbeFailed
from headgate.metrics.probes.connections import Connector, Lane, S, part
from headgate.metrics.samples import Cause, Measured, Number

# Clocks kept by NTP differ by less; beyond it, "now" on the replica means nothing.
TOLERATED_SKEW_S = 0.1
# The default of our writer and of pt-heartbeat, for rows that do not say.
USUAL_INTERVAL_S = 1.0
RECENT_S = 60.0
UTC, LOCAL = "utc", "local"
DOWN = (Cause.REPLICATION_STOPPED, Cause.REPLICATION_BROKEN)


@dataclass(slots=True)
class ClockSkew:
    """This database's clock minus its primary's; None while nobody has compared them."""

    ahead_s: float | None = None
    error_s: float = 0.0
    """How far `ahead_s` may be off."""


class HeartbeatRow(NamedTuple):
    """The newest row of `table`."""

    table: str
    age_s: float
    """By the clock of the server that it was read on."""
    interval_s: float | None = None
    """How often it is written, where the row says."""
    resting: bool = False
    server: str = ""

    @property
    def stale_after_s(self) -> float:
        """Three beats may be lost or late; a fourth means something."""
        return 3 * (self.interval_s or USUAL_INTERVAL_S) + 1.0


NativeLag = Callable[[], Awaitable[Number]]
"""Lag by the server's own account of its replication, read strictly: silence is no proof."""


WithoutWriter = Callable[[], float | None]
"""What lag is at most by the work that arrives, where no heartbeat is written any more. With a
writer every heartbeat is such work; without one, a primary that commits nothing looks lagged."""


async def heartbeat_lag(
    heartbeat: HeartbeatRow,
    skew: ClockSkew,
    native: NativeLag,
    without_writer: WithoutWriter = lambda: None,
) -> Number:
    if heartbeat.resting:
        return _while_resting(heartbeat, await _account_of(native))
    age = corrected(heartbeat, skew)
    if age.value > heartbeat.stale_after_s:
        try:
            age = _of_stale(heartbeat, age, await _account_of(native))
        except ProbeFailed as dead:
            at_most_s = without_writer()
            if at_most_s is None:
                raise
            return Measured(at_most_s, dead.cause, dead.detail)
    return age if age.cause else age.value


def corrected(heartbeat: HeartbeatRow, skew: ClockSkew) -> Measured:
    """The row's age with both clocks set alike; never a comfortable 0 from a wrong one."""
    ahead_s = skew.ahead_s or 0.0
    age_s = heartbeat.age_s - ahead_s
    if age_s < -TOLERATED_SKEW_S:
        raise ProbeFailed(
            Cause.CLOCK_SKEW,
            f"the heartbeat in {heartbeat.table} is {-age_s:.3f} s in the future"
            f"{_corrected_by(skew)}: the clocks of the two servers disagree; keep both by NTP",
        )
    if age_s < 0:
        detail = f"the heartbeat is {-age_s:.3f} s in the future{_corrected_by(skew)}; taken as 0"
        return Measured(0.0, Cause.CLOCK_SKEW, detail)
    if abs(ahead_s) > TOLERATED_SKEW_S:
        return Measured(age_s, Cause.CLOCK_SKEW, f"heartbeat{_corrected_by(skew)}")
    return Measured(age_s)


def _corrected_by(skew: ClockSkew) -> str:
    if not skew.ahead_s:
        return ""
    side = "ahead of" if skew.ahead_s > 0 else "behind"
    return (
        f", corrected for a clock here {abs(skew.ahead_s):.3f} s {side} the primary's "
        f"(±{skew.error_s:.3f} s)"
    )


async def _account_of(native: NativeLag) -> Measured | ProbeFailed:
    try:
        number = await native()
    except ProbeFailed as failure:
        return failure
    return number if isinstance(number, Measured) else Measured(number)


def _while_resting(heartbeat: HeartbeatRow, account: Measured | ProbeFailed) -> Measured:
    if isinstance(account, ProbeFailed):
        if account.cause in DOWN:
            raise account
        message = f"the heartbeat in {heartbeat.table} is idle because no client checks, and the "
        message += f"server's own replication status has no lag: {account.detail}"
        raise ProbeFailed(Cause.HEARTBEAT_IDLE, message)
    if account.cause in DOWN:
        return account
    # Also where the server is silent: the next check wakes the writer, and silence ends or counts.
    detail = "heartbeat is idle, native positions"
    return Measured(account.value, Cause.HEARTBEAT_IDLE, detail)


def _of_stale(heartbeat: HeartbeatRow, age: Measured, account: Measured | ProbeFailed) -> Measured:
    if account.cause in DOWN:
        return Measured(age.value, account.cause, account.detail)
    if isinstance(account, ProbeFailed):
        return age
    # A live writer's row would be no older than what is not replayed yet.
    if age.value <= account.value + heartbeat.stale_after_s:
        return age
    every = "" if heartbeat.interval_s is None else f" every {heartbeat.interval_s:g} s"
    by = f" by {heartbeat.server}" if heartbeat.server else ""
    written = f", written{every}{by}," if every or by else ""
    raise ProbeFailed(
        Cause.HEARTBEAT_DEAD,
        f"the newest heartbeat in {heartbeat.table}{written} is {age.value:.1f} s old, but "
        f"replication runs and is {account.value:g} s behind: the heartbeat's writer has stopped, "
        "or a replica upstream has. Check the primary's agent (heartbeat_interval_s) or "
        "pt-heartbeat. If nobody is meant to write it, drop the table",
    )


def empty(table: str) -> ProbeFailed:
    message = f"the heartbeat table {table} is empty: nobody has written to it yet"
    return ProbeFailed(Cause.FAILED, message)


def missing(table: str) -> ProbeFailed:
    message = f"there is no heartbeat table {table}: set heartbeat_interval_s on the "
    message += "primary's agent, or give the option heartbeat_table"
    return ProbeFailed(Cause.FAILED, message)


def not_ours(table: str) -> ProbeFailed:
    message = f"the table {table} is not one of Headgate's (it lacks id, ts or server), so it is "
    message += "read and never written: set heartbeat_table to another name"
    return ProbeFailed(Cause.FAILED, message)


def zone_of(utc_age_s: float, local_age_s: float) -> str:
    """Which clock pt-heartbeat wrote by."""
    if utc_age_s == local_age_s:
        return UTC
    recent = [
        zone
        for zone, age_s in ((UTC, utc_age_s), (LOCAL, local_age_s))
        if -TOLERATED_SKEW_S <= age_s <= RECENT_S
    ]
    if len(recent) == 1:
        return recent[0]
    raise ProbeFailed(
        Cause.INVALID,
        f"the heartbeat is {utc_age_s:.1f} s old if written in UTC and {local_age_s:.1f} s old if "
        "in local time, and neither is recent enough to tell: look whether pt-heartbeat runs",
    )


# --- writing -------------------------------------------------------------------------------

END_WITHIN_S = 1.0

Beat = Callable[[S, bool], Awaitable[bool]]
"""Writes one row over a session, as the last one before idling or not; says whether it did."""
End = Callable[[S, S], Awaitable[None]]
"""(fresh, stuck): over a fresh session, ends on the server what a stuck one has left there."""


class Enders(Generic[S]):
    """Ends given-up statements on the server, over connections of a second's life.

    A commit that waits for a replica's acknowledgment does not see its client go, and would
    hold up the demotion of its server (`SET GLOBAL read_only = 1`) for as long as it waits.
    """

    def __init__(self, connector: Connector[S], end: End[S] | None) -> None:
        self._connector = connector
        self._end = end
        self._tasks: set[asyncio.Task[None]] = set()

    def give_up(self, stuck: S) -> None:
        if self._end is not None:
            task = asyncio.create_task(self._try(self._end, stuck))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Waits for what is under way; none of it lasts longer than END_WITHIN_S."""
        await asyncio.gather(*self._tasks)

    async def _try(self, end: End[S], stuck: S) -> None:
        # A server that does not answer cannot take the command; it is not being demoted either.
        with suppress(*self._connector.errors, TimeoutError):
            async with asyncio.timeout(END_WITHIN_S):
                fresh = await self._connector.connect()
                try:
                    await end(fresh, stuck)
                finally:
                    await part(fresh)


class Writer(Generic[S]):
    """One heartbeat per call, on a connection of its own: a slow probe must not delay it."""

    def __init__(self, lane: Lane[S], beat: Beat[S], timeout_s: float, enders: Enders[S]) -> None:
        self._lane = lane
        self._beat = beat
        self._timeout_s = timeout_s
        self._enders = enders

    async def beat(self, *, resting: bool = False) -> bool:
        """The last one before a rest says so, and replicas need not take it for a death."""
        try:
            async with asyncio.timeout(self._timeout_s):
                async with self._lane.session(self._timeout_s) as session:
                    return await self._write(session, resting)
        except TimeoutError:
            message = f"{self._lane.label}: no heartbeat written in {self._timeout_s:g} s"
            raise ProbeFailed(Cause.TIMED_OUT, message) from None

    async def _write(self, session: S, resting: bool) -> bool:
        try:
            return await self._beat(session, resting)
        except asyncio.CancelledError:
            self._enders.give_up(session)
            raise

    async def close(self) -> None:
        await self._lane.close()
        await self._enders.close()
