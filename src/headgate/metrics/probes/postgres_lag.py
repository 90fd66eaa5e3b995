"""How far a Postgres replica is behind, from write-ahead-log positions.

On a standby: 0 while it streams and has replayed all it received; otherwise the time
since it was last known to be current, which grows while nothing is replayed. With a
paused replay or a lost primary the number says so.

On a primary: when did the primary pass the position that a standby has replayed? Each
read marks (time, position); the answer is the age of the first mark beyond the standby's
position, so it is never too high and at most one probe interval too low. Not
pg_stat_replication.replay_lag: that is how long the last replayed record took, so it
keeps its last small value while replay is stuck, and is NULL on an idle server.

A silent network is noticed here only when the WAL receiver notices (wal_receiver_timeout);
the heartbeat method notices at once.
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from headgate.errors import ProbeFailed
from headgate.metrics.probes.postgres_replication import PRIMARY_CONNINFO, may_not_see, upstream_of
from headgate.metrics.probes.postgres_session import PostgresSession, Row
from headgate.metrics.samples import Cause, Measured, Number

MAX_MARKS = 4096
MAX_REPLICAS = 256
# Long enough for a reboot; a replica that is gone for good must not stop work for hours.
REMEMBER_REPLICA_S = 600.0
# Lint warns about lag thresholds above this, so "at least 30 s" is a breach wherever it matters.
TELLING_HISTORY_S = 30.0

Monotonic = Callable[[], float]


class PostgresNativeLag:
    """Reads as a standby or as a primary, whichever the server is just now."""

    def __init__(
        self, *, remember_s: float = REMEMBER_REPLICA_S, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._remember_s = remember_s
        self._monotonic = monotonic
        self._role: StandbyLag | PrimaryLag | None = None

    async def __call__(self, session: PostgresSession) -> Number:
        [in_recovery] = await session.row("SELECT pg_is_in_recovery()")
        wanted = StandbyLag if in_recovery else PrimaryLag
        # A promoted or demoted server starts over: what was seen in the other role is void.
        if not isinstance(self._role, wanted):
            self._role = StandbyLag() if in_recovery else PrimaryLag(self._remember_s)
        return await self._role.read(session, self._monotonic)


# --- on a standby --------------------------------------------------------------------------

STANDBY_QUERY = f"""
SELECT r.pid IS NOT NULL, r.status,
       pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn(),
       extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8,
       extract(epoch FROM clock_timestamp() - r.last_msg_receipt_time)::float8,
       extract(epoch FROM current_setting('wal_receiver_timeout')::interval)::float8,
       CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() ELSE false END,
       r.sender_host, r.sender_port, {PRIMARY_CONNINFO}
FROM (SELECT 1) AS always LEFT JOIN pg_stat_wal_receiver AS r ON true
LIMIT 1
"""  # noqa: S608 -- constants only


@dataclass(frozen=True, slots=True)
class StandbyState:
    has_receiver: bool
    status: str | None
    replayed_all: bool
    since_replay_s: float | None
    """Age of the last replayed commit; on an idle primary that says nothing about lag."""
    silent_s: float | None
    receiver_timeout_s: float
    paused: bool = False
    sender_host: str | None = None
    sender_port: int | None = None
    conninfo: str | None = field(default=None, repr=False)
    """None where the role may not see it; empty on a standby that is fed from an archive."""

    @property
    def is_current(self) -> bool:
        # One that is paused misses what comes next: it is stopped, even with nothing to replay.
        return not self.paused and self.replayed_all and self.streams

    @property
    def streams(self) -> bool:
        return self.status == "streaming" and not self.is_cut_off

    @property
    def is_cut_off(self) -> bool:
        """A silent receiver sends a request after half its timeout; no answer, no connection."""
        if not self.receiver_timeout_s or self.silent_s is None:
            return False
        return self.silent_s > self.receiver_timeout_s / 2 + 1.0

    @property
    def trouble(self) -> tuple[Cause, str] | None:
        """Why it falls behind, where that is not just the work."""
        if not self.streams and (self.has_receiver or self.conninfo != ""):
            return Cause.REPLICATION_BROKEN, self._broken
        if self.paused:
            message = "replay is paused: SELECT pg_wal_replay_resume() on the replica"
            return Cause.REPLICATION_STOPPED, message
        return None

    @property
    def _broken(self) -> str:
        upstream = upstream_of(self.sender_host, self.sender_port, self.conninfo)
        source = f" from {upstream}" if upstream else ""
        what = f"the WAL receiver{source} is {self.status or 'not running'}"
        if self.status == "streaming":
            what = f"the WAL receiver{source} has received nothing for {self.silent_s:.0f} s"
        paused = "; replay is paused, too" if self.paused else ""
        return f"{what}{paused}; look at the primary, primary_conninfo and the server's log"


class StandbyLag:
    def __init__(self) -> None:
        self._current_at: float | None = None

    async def read(self, session: PostgresSession, monotonic: Monotonic) -> Number:
        state = StandbyState(*await session.row(STANDBY_QUERY))
        if state.has_receiver and state.status is None:
            raise ProbeFailed(Cause.FAILED, may_not_see(session, "pg_stat_wal_receiver"))
        return self.judge(state, monotonic())

    def judge(self, state: StandbyState, now_s: float) -> Number:
        if state.is_current:
            self._current_at = now_s
            return 0.0
        lag_s = self._bound_s(state, now_s)
        if state.trouble is None:
            return lag_s
        return Measured(lag_s, *state.trouble)

    def _bound_s(self, state: StandbyState, now_s: float) -> float:
        # Each is an upper bound: no commit newer than the last replayed one is missing for
        # longer than that one's age, and nothing was missing when we saw it current. The
        # second keeps the first commit after a quiet hour from reading as an hour of lag.
        bounds = [state.since_replay_s]
        if self._current_at is not None:
            bounds.append(now_s - self._current_at)
        known = [bound for bound in bounds if bound is not None]
        if not known:
            cause, why = state.trouble or (Cause.FAILED, "it replays what it has received")
            message = "nothing has been replayed since the server started, so the lag is unknown"
            raise ProbeFailed(cause, f"{message}: {why}")
        return max(0.0, min(known))


# --- on a primary --------------------------------------------------------------------------

# Only physical standbys: a logical subscriber is bound to a database, pg_receivewal writes
# and never replays, pg_basebackup is in another state. A new standby has no position yet.
PRIMARY_QUERY = """
SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::int8,
       pg_has_role('pg_read_all_stats', 'USAGE'),
       r.application_name || '@' || coalesce(r.client_addr::text, 'local'),
       pg_wal_lsn_diff(r.replay_lsn, '0/0')::int8
FROM (SELECT 1) AS always
LEFT JOIN (pg_stat_replication AS r JOIN pg_stat_activity AS a USING (pid))
  ON a.datid IS NULL AND r.state IN ('streaming', 'catchup')
  AND (r.replay_lsn IS NOT NULL OR r.write_lsn IS NULL)
ORDER BY 3, 4 DESC NULLS LAST
LIMIT 256
"""


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    replayed: int
    at_s: float


class WalMarks:
    """When the primary was first seen at which position. Old marks are thinned, never lost."""

    def __init__(self, limit: int = MAX_MARKS) -> None:
        self._limit = limit
        self._positions: list[int] = []
        self._times_s: list[float] = []

    def note(self, position: int, now_s: float) -> None:
        if self._positions and position < self._positions[-1]:
            # Another server, or an older one restored: its past is not this one's.
            self._positions, self._times_s = [], []
        if self._positions and position == self._positions[-1]:
            return
        self._positions.append(position)
        self._times_s.append(now_s)
        if len(self._positions) > self._limit:
            self._thin()

    def history_s(self, now_s: float) -> float:
        return now_s - self._times_s[0]

    def reaches_back_to(self, position: int) -> bool:
        return position >= self._positions[0]

    def lag_s(self, replayed: int, now_s: float) -> float:
        index = bisect.bisect_right(self._positions, replayed)
        return now_s - self._times_s[index] if index < len(self._times_s) else 0.0

    def _thin(self) -> None:
        half = len(self._positions) // 2
        self._positions[1:half] = self._positions[1:half:2]
        self._times_s[1:half] = self._times_s[1:half:2]


class PrimaryLag:
    """The worst of the standbys. One that has vanished counts on, for `remember_s`."""

    def __init__(self, remember_s: float = REMEMBER_REPLICA_S) -> None:
        self._remember_s = remember_s
        self._marks = WalMarks()
        self._seen: dict[str, ReplayPosition] = {}

    async def read(self, session: PostgresSession, monotonic: Monotonic) -> float:
        rows = await session.rows(PRIMARY_QUERY)
        flushed, sees_all = rows[0][:2]
        if not sees_all:
            raise ProbeFailed(Cause.FAILED, may_not_see(session, "pg_stat_replication"))
        return self.judge(flushed, _by_name(rows), monotonic())

    def judge(self, flushed: int, replayed: Mapping[str, int | None], now_s: float) -> float:
        self._marks.note(flushed, now_s)
        self._remember(replayed, now_s)
        if replayed and not self._seen:
            message = f"replica {next(iter(replayed))} has just connected and not reported yet"
            raise ProbeFailed(Cause.WARMING_UP, message)
        if not self._seen:
            raise ProbeFailed(
                Cause.UNSUPPORTED,
                "no replica streams from this primary, nor has one since measuring began: "
                "connect one, or leave this metric out here",
            )
        return max(self._lag_of(name, seen, now_s) for name, seen in self._seen.items())

    def _remember(self, replayed: Mapping[str, int | None], now_s: float) -> None:
        for name, position in replayed.items():
            if position is not None:
                self._seen[name] = ReplayPosition(position, now_s)
        fresh = {n: s for n, s in self._seen.items() if now_s - s.at_s <= self._remember_s}
        newest = sorted(fresh, key=lambda name: fresh[name].at_s, reverse=True)[:MAX_REPLICAS]
        self._seen = {name: fresh[name] for name in newest}

    def _lag_of(self, name: str, seen: ReplayPosition, now_s: float) -> float:
        at_least_s = max(self._marks.lag_s(seen.replayed, now_s), now_s - seen.at_s)
        history_s = self._marks.history_s(now_s)
        # A standby that was behind before we looked: how far, the marks cannot tell yet.
        if not self._marks.reaches_back_to(seen.replayed) and history_s < TELLING_HISTORY_S:
            raise ProbeFailed(
                Cause.WARMING_UP,
                f"replica {name} was behind already when measuring began {history_s:.1f} s ago: "
                f"at least {at_least_s:.1f} s",
            )
        return at_least_s


def _by_name(rows: Iterable[Row]) -> dict[str, int | None]:
    """Standbys of one name (`walreceiver` is everybody's) are distinguished by rank."""
    ranks: Counter[str] = Counter()
    replayed: dict[str, int | None] = {}
    for _, _, name, position in rows:
        if name is not None:
            ranks[name] += 1
            replayed[f"{name}#{ranks[name]}"] = position
    return replayed
