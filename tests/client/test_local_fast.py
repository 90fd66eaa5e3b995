"""What is kept from one local check to the next: it never says what deciding again would not."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import pytest

from headgate.check.model import Verdict
from headgate.check.snapshot import DatabaseSnapshot, decided
from headgate.check.snapshot_api import SnapshotReader, SnapshotWriter, hello
from headgate.client import local_clock
from headgate.client.circuit import Availability, Endpoints
from headgate.client.local import LocalCheck, LocalGate
from headgate.client.local_answers import answer_of, to_ms
from headgate.client.local_feed import Feed
from headgate.client.question import Question, make_asker
from headgate.client.routes import Routes
from headgate.client.target import parse_target
from headgate.metrics.model import AbsencePolicy
from headgate.rules.matching import DiceOrder, Kind, Rule, RuleBook
from tests.builders import NOW, absent, health, metric, sample, window
from tests.check.test_snapshot_api import split

LAG = metric("lag", threshold=5, max_age_s=2.2)
POOL = metric("pool_usage", threshold=0.8, max_age_s=60)
HELD_LAG = replace(LAG, absence=AbsencePolicy.HOLD, hold_s=2.0)
FINE = health((LAG, 1.0), (POOL, 0.1))
LATE = health((LAG, 9.0), (POOL, 0.1))
LOST = health((HELD_LAG, window(sample(1.0, age_s=0.5), absent())), (POOL, 0.1))
LOST_LATE = health((HELD_LAG, window(sample(9.0, age_s=0.5), absent())), (POOL, 0.1))
TARGET = parse_target("http://h:1")
ASKER = make_asker("job7:etl:nightly", "main", TARGET, None)
WRITE = ASKER.may_write(())


def rule(kind: Kind, *, ends_s: float = 600.0, **more: object) -> Rule:
    return Rule("r1", "etl", kind=kind, expires_at=NOW.wall_s + ends_s, **more)  # type: ignore[arg-type]


class Case(NamedTuple):
    view: DatabaseSnapshot
    question: Question = WRITE


CASES = {
    "nothing applies": Case(DatabaseSnapshot(FINE, RuleBook())),
    "thresholds, below": Case(
        DatabaseSnapshot(FINE, RuleBook([rule(Kind.THRESHOLDS, thresholds={"lag": 2.0})]))
    ),
    "thresholds, above": Case(
        DatabaseSnapshot(FINE, RuleBook([rule(Kind.THRESHOLDS, thresholds={"lag": 0.5})]))
    ),
    "thresholds that end": Case(
        DatabaseSnapshot(
            FINE, RuleBook([rule(Kind.THRESHOLDS, ends_s=1.25, thresholds={"lag": 0.5})])
        )
    ),
    "metrics": Case(
        DatabaseSnapshot(LATE, RuleBook([rule(Kind.METRICS, metrics=("pool_usage",))]))
    ),
    "exempt": Case(DatabaseSnapshot(LATE, RuleBook([rule(Kind.EXEMPT)]))),
    "exempt, for a second": Case(DatabaseSnapshot(LATE, RuleBook([rule(Kind.EXEMPT, ends_s=1.0)]))),
    "exempt, breached and lost": Case(DatabaseSnapshot(LOST_LATE, RuleBook([rule(Kind.EXEMPT)]))),
    "breached": Case(DatabaseSnapshot(LATE, RuleBook())),
    "held through an absence": Case(DatabaseSnapshot(LOST, RuleBook())),
    "held, by own thresholds": Case(
        DatabaseSnapshot(LOST, RuleBook([rule(Kind.THRESHOLDS, thresholds={"lag": 2.0})]))
    ),
    "on hold": Case(DatabaseSnapshot(FINE, RuleBook([rule(Kind.HOLD)]))),
    "on hold, for 20 s": Case(DatabaseSnapshot(FINE, RuleBook([rule(Kind.HOLD, ends_s=20.0)]))),
    "dice": Case(DatabaseSnapshot(FINE, RuleBook([rule(Kind.RATIO, ratio=0.6)]))),
    "dice, after the metrics": Case(
        DatabaseSnapshot(FINE, RuleBook([rule(Kind.RATIO, ratio=0.6, order=DiceOrder.AFTER)]))
    ),
    "dice, breached": Case(DatabaseSnapshot(LATE, RuleBook([rule(Kind.RATIO, ratio=0.6)]))),
    "read, below": Case(DatabaseSnapshot(FINE, RuleBook()), ASKER.may_read(2.5, "lag", None)),
    "read, above": Case(DatabaseSnapshot(FINE, RuleBook()), ASKER.may_read(0.5, "lag", None)),
    "read, by another's limit": Case(
        DatabaseSnapshot(LATE, RuleBook()), ASKER.may_read(20, "lag", None)
    ),
    "no such metric": Case(DatabaseSnapshot(FINE, RuleBook()), ASKER.may_write(["nope"])),
}
ROLLS = [0.0, 0.3, 0.59, 0.6, 0.99]


class World:
    """A client with a snapshot, a clock and dice of the test's."""

    def __init__(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.roll = 0.0, 0.5
        monkeypatch.setattr(local_clock, "now", lambda: self.now_s)
        endpoints, closed = Endpoints([TARGET]), Availability(10.0, "closed")
        self.gate = LocalGate(
            "etl", None, endpoints, closed, routes=Routes(TARGET), dice=lambda: self.roll
        )
        self.feed = Feed(TARGET, "main", "etl", None)
        self.feed._thread = threading.current_thread()
        self.gate._feeds[(*TARGET[1:4], True, "main")] = self.feed
        writer, reader = SnapshotWriter(), SnapshotReader(0.0)
        writer.change(case.view, NOW)
        for message in (hello(NOW.mono_s, 1.0), writer.whole(NOW)):
            self.feed.snapshot = reader.take(*split(message), 0.0)
        local = self.gate._check_for(case.question)
        assert local is not None
        self.local: LocalCheck = local

    def counted(self) -> Counter[Verdict]:
        self.feed.reports.count(self.now_s)
        rows = self.feed.reports.ledger._rows.items()
        return Counter({key[2]: row.times for key, row in rows})


@pytest.mark.parametrize("name", CASES)
def test_every_check_is_decided_as_if_it_were_the_first(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R33: over three seconds, in which values age out and rules end, with dice of all kinds."""
    case = CASES[name]
    world = World(case, monkeypatch)
    told: Counter[Verdict] = Counter()
    for step, roll in itertools.product(range(30), ROLLS):
        world.now_s, world.roll = step / 10, roll
        answer = world.local.quick(lambda: world.now_s)
        snapshot = world.feed.snapshot
        assert snapshot is not None
        now = snapshot.now(world.now_s)
        anew = decided(snapshot.view, world.local.check, now=now, roll=roll)
        if answer is None:
            assert world.now_s >= 2.2 or world.local.ready(world.now_s) is None
            continue
        told[anew.verdict] += 1
        assert answer.verdict == anew.verdict.value
        assert answer.retry_after_s == to_ms(anew.retry_after_s)
        first = answer_of(anew)
        assert (answer.utilization, answer.raw["rule"]) == (first.utilization, first.raw["rule"])
        assert answer.raw["rules"] == first.raw["rules"]
    assert told, "it was decided here at all"
    world.feed.reports.checks.append(world.local)
    # Per minute and reason; all of one verdict are of one row here.
    assert sum(world.counted().values()) == sum(told.values())


def slow_ways(world: World, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    slowly = LocalCheck._slowly

    def counted(self: LocalCheck, roll: float | None, alone: bool) -> object:
        taken.append(world.now_s)
        return slowly(self, roll, alone)

    monkeypatch.setattr(LocalCheck, "_slowly", counted)
    return taken


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"dice, breached", "on hold, for 20 s"}))
def test_most_checks_need_no_deciding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds of rules and rejections; but for what dice decide before metrics do."""
    world = World(CASES[name], monkeypatch)
    taken = slow_ways(world, monkeypatch)
    for number in range(200):
        world.roll = ROLLS[number % len(ROLLS)]
        assert world.local.quick(lambda: world.now_s) is not None
    assert len(taken) <= 4


@pytest.mark.parametrize("name", ["dice", "dice, breached"])
def test_who_is_rejected_by_dice_each_time_is_rejected_quickly(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although nobody knows yet what the metrics would say."""
    world = World(CASES[name], monkeypatch)
    taken = slow_ways(world, monkeypatch)
    world.roll = 0.3
    answers = [world.local.quick(lambda: world.now_s) for _ in range(50)]
    assert all(answer is not None and answer.verdict == "REJECTED_BY_RATIO" for answer in answers)
    assert len(taken) == 1


def test_who_is_forgotten_arms_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may still have it in hand: nobody would collect what it counts by the way."""
    world = World(CASES["nothing applies"], monkeypatch)
    world.local.quick(lambda: world.now_s)
    world.local.retire(0.0)
    for _ in range(5):
        assert world.local.quick(lambda: world.now_s) is not None
    assert world.counted()[Verdict.OK] == 6


def test_a_check_that_two_threads_make_at_once_is_listed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the list would grow for as long as the process lives."""
    world = World(CASES["nothing applies"], monkeypatch)
    question = ASKER.may_read(7.0, "lag", None)
    made = {world.gate._new_check(question) for _ in range(3)}
    assert len(made) == 1
    assert len([check for check in world.feed.reports.checks if check in made]) == 1


def test_the_preferred_agent_is_gone_back_to_when_its_stream_is_there_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R52: no question is ever put that would find out."""
    world = World(CASES["nothing applies"], monkeypatch)
    other = parse_target("http://h:2")
    endpoints = world.gate._endpoints = Endpoints([TARGET, other])
    endpoints.answered(other, 0.0)
    second = Feed(other, "main", "etl", None)
    second._thread, second.snapshot = threading.current_thread(), world.feed.snapshot
    world.gate._feeds[(*other[1:4], True, "main")] = second
    world.feed.snapshot, back = None, world.feed.snapshot
    assert world.gate.home_feed("main", 0.0) is second
    world.feed.snapshot = back
    assert world.gate.home_feed("main", 0.0) is world.feed
    assert endpoints.current is TARGET


def test_the_last_speaker_of_the_shard_is_believed_while_the_own_agent_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R37: its stream is read all the time; and it is asked there when that falls silent, too."""
    world = World(CASES["on hold"], monkeypatch)
    there = parse_target("http://primary:1")
    primary = Feed(there, "main", "etl", None)
    primary._thread, primary.snapshot = threading.current_thread(), world.feed.snapshot
    routes = world.gate._routes
    assert routes is not None
    ready = world.local.ready(0.0)
    assert ready is not None and routes.to(WRITE) is None
    world.local._settle_at(ready._replace(feed=primary), ready)
    assert routes.to(WRITE) is there
    world.feed.snapshot = None
    answer = world.local.quick(lambda: world.now_s)
    assert answer is not None and answer.verdict == "ON_HOLD"
    world.feed.snapshot = primary.snapshot
    assert world.local.ready(0.0) is not None
    assert routes.to(WRITE) is None, "its own agent speaks again"
