"""Rogue client: sessions in the database whose owner never checks (R138)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate.check.decide import decide
from headgate.check.demand import Demands
from headgate.check.model import Activity, Idleness
from headgate.errors import ProbeFailed
from headgate.history.recorder import Recorder
from headgate.history.rogues import Rogues, SessionsProbe
from headgate.history.sessions import SessionGroup
from headgate.metrics.samples import Cause
from headgate.rules.matching import NO_RULES
from tests.builders import at, check, health, metric
from tests.fixtures.fakes import HandClock

ETL = SessionGroup("etl_rw", "etl:nightly", "10.0.0.1", 4, 2)
ROGUE = SessionGroup("alice", "psql", "10.0.0.9", 1, 2)


@dataclass
class Listed:
    groups: list[SessionGroup] = field(default_factory=lambda: [ETL, ROGUE])
    fault: ProbeFailed | None = None
    reads: int = 0

    async def read(self) -> Sequence[SessionGroup]:
        self.reads += 1
        if self.fault is not None:
            raise self.fault
        return self.groups


def watched(probe: SessionsProbe | None) -> tuple[Rogues, Recorder, Demands]:
    clock, recorder = HandClock(), Recorder(max_clients=10)
    demands = Demands(clock)
    demands.open("main", Idleness())
    return Rogues(recorder, demands, clock, lambda database: probe), recorder, demands


def asks(recorder: Recorder, client: str) -> None:
    known = health((metric("lag"), 1.0))
    recorder.record(decide(check(client), known, NO_RULES, now=at(0), roll=0.5))


async def test_who_works_and_never_checked_is_listed() -> None:
    rogues, recorder, _ = watched(Listed())
    asks(recorder, "etl:nightly")
    await rogues.look()
    [suspect] = rogues.suspects("main")
    assert suspect.who.user == "alice" and suspect.share == 0.5
    asks(recorder, "alice:adhoc")
    assert rogues.suspects("main") == ()


async def test_a_database_that_hibernates_is_left_in_peace() -> None:
    """R58"""
    probe = Listed()
    rogues, _, demands = watched(probe)
    demands.by_database["main"].state = Activity.HIBERNATING
    await rogues.look()
    assert probe.reads == 0


async def test_a_client_seen_before_an_idle_time_is_not_listed_throughout_it() -> None:
    """An absence is no stale number: anyone who worked there may be gone for hours."""
    probe = Listed()
    rogues, _, demands = watched(probe)
    await rogues.look()
    assert rogues.suspects("main")
    demands.by_database["main"].state = Activity.HIBERNATING
    await rogues.look()
    assert rogues.suspects("main") == () and rogues.databases == []
    demands.by_database["main"].state = Activity.AWAKE
    probe.fault = ProbeFailed(Cause.FAILED, "permission denied")
    await rogues.look()
    demands.by_database["main"].state = Activity.HIBERNATING
    await rogues.look()
    assert rogues.faults == {}


async def test_sessions_that_cannot_be_listed_are_a_fault_and_no_empty_list() -> None:
    probe = Listed(fault=ProbeFailed(Cause.FAILED, "permission denied"))
    rogues, _, _ = watched(probe)
    await rogues.look()
    assert rogues.faults == {"main": "permission denied"} and rogues.databases == ["main"]
    probe.fault = None
    await rogues.look()
    assert rogues.faults == {}


async def test_a_database_that_is_gone_is_forgotten() -> None:
    rogues, _, demands = watched(Listed())
    await rogues.look()
    demands.shut("main")
    await rogues.look()
    assert rogues.databases == [] and rogues.suspects("main") == ()


async def test_without_a_probe_nothing_is_claimed() -> None:
    rogues, _, _ = watched(None)
    await rogues.look()
    assert rogues.databases == []
