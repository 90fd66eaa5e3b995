"""What a database looks like to clients that decide locally.   Board, Checker ──► DatabaseSnapshot

Everything in it is frozen and replaced as a whole, so a change is a new object. The streamer
(check/streaming.py) compares objects, several times in a tenth of a second, and only while a client
listens. So neither a check nor a reading has to notify anyone.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.check.activity import Activity
from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.demand import Demands
from headgate.check.health import Health, MetricStatus
from headgate.check.snapshot import NOTHING, DatabaseSnapshot


class Snapshots:
    def __init__(self, board: Board, checker: Checker, demands: Demands | None) -> None:
        self._healths = board.healths
        self._checker = checker
        self._demands = demands

    @property
    def closed(self) -> str:
        """Why no client may decide locally: the agent rejects every check, too."""
        return self._checker.closed

    @property
    def databases(self) -> list[str]:
        return sorted(self._healths)

    def view(self, database: str) -> DatabaseSnapshot | None:
        health, checker = self._healths.get(database), self._checker
        if health is None:
            return None
        pacer = checker.pacers.get(database)
        return DatabaseSnapshot(
            health,
            checker.rules,
            checker.anonymous_may_pass,
            checker.active_agent,
            self._is_awake(database),
            frozenset(pacer.metrics) if pacer is not None else NOTHING,
            checker.fairness is not None,
        )

    def _is_awake(self, database: str) -> bool:
        demand = self._demands.by_database.get(database) if self._demands is not None else None
        return demand is None or demand.state is Activity.AWAKE


def differs(before: DatabaseSnapshot, after: DatabaseSnapshot) -> bool:
    """By identity: what is equal but new has been read again, and is fresher."""
    return (
        before.health is not after.health
        or before.rules is not after.rules
        or before[2:] != after[2:]
    )


def is_urgent(before: DatabaseSnapshot, after: DatabaseSnapshot) -> bool:
    """Whether some check may be decided differently now; else it is just the next reading."""
    if before.rules is not after.rules or before[2:] != after[2:]:
        return True
    return _shape(before.health) != _shape(after.health)


def _shape(health: Health) -> tuple[object, ...]:
    shard = health.shard
    whole = (shard.ask, shard.ask_database, _marks(shard.standings)) if shard is not None else None
    return _marks(health.standings), whole


def _marks(standings: Mapping[str, MetricStatus]) -> tuple[object, ...]:
    return tuple(
        (name, s.spec, s.breached, s.passes, s.absent is None or s.absent.cause)
        for name, s in standings.items()
    )
