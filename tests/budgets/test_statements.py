"""Texts of statements: learned without literals, bounded, and with a cause where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from headgate.budgets.meter import MEMORY_S, Rates
from headgate.budgets.readings import BudgetCounts, BudgetReadings, PatternReading
from headgate.budgets.statements import (
    ASK_AGAIN_S,
    ASLEEP,
    LOOK_INTERVAL_S,
    MAX_CHARS,
    MAX_TEXTS,
    NOT_LOOKED,
    Statements,
    StatementTexts,
    shape_text,
)
from headgate.check.demand import Demands
from headgate.check.model import Activity, Idleness
from headgate.errors import ProbeFailed
from headgate.metrics.samples import Cause
from tests.fixtures.fakes import HandClock

SECOND_NS = 1_000_000_000


def readings(*query_ids: int, cpu_ns: int = 100) -> BudgetReadings:
    patterns = tuple(
        PatternReading(query_id, 5, 10, None, 1e6, 1e6, 0.1, cpu_ns - at)
        for at, query_id in enumerate(query_ids)
    )
    return BudgetReadings(version=1, checksum=1, started_ms=1, patterns=patterns)


@dataclass
class Watched:
    readings: BudgetReadings | None = None


@dataclass
class FakeProbe:
    tells: Sequence[tuple[int, str]] | ProbeFailed = ()
    asked: list[list[int]] = field(default_factory=list)

    async def read(self, wanted: Sequence[int]) -> Sequence[tuple[int, str]]:
        self.asked.append(list(wanted))
        if isinstance(self.tells, ProbeFailed):
            raise self.tells
        return self.tells


@dataclass
class Scene:
    clock: HandClock = field(default_factory=HandClock)
    probe: FakeProbe = field(default_factory=FakeProbe)
    watch: Watched = field(default_factory=Watched)
    texts: StatementTexts = field(default_factory=StatementTexts)

    def __post_init__(self) -> None:
        self.demands = Demands(self.clock)
        self.demands.open("main", Idleness())

    async def look(self) -> None:
        watched = {"main": (self.watch, self.texts)}
        await Statements(lambda: watched, self.demands, self.clock, lambda _: self.probe).look()


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- what is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            "SELECT a.b, c::text FROM T WHERE p = 'hunter2' AND n IN (1, 2,3) -- why",
            "select a.b, c::text from t where p = ? and n in (?)",
        ),
        ("ALTER ROLE x PASSWORD E'it\\'s'", ""),
        ("select 1; select 'b'", ""),
        ("select 1;", "select ?"),
        ("insert into t values ($$ a ' b $$, 0xff) /* token=abc */", "insert into t values (?)"),
        ("select 'cut off by the ser", "select ?"),
        ("<insufficient privilege>", ""),
    ],
)
def test_no_literal_and_no_comment_is_ever_kept(text: str, kept: str) -> None:
    assert shape_text(text) == kept


def test_texts_are_bounded_in_number_and_length(scene: Scene) -> None:
    texts = scene.texts
    texts.learn([(n, f"select c{n}") for n in range(MAX_TEXTS + 5)])
    assert len(texts) == MAX_TEXTS and texts.text(0) is None
    texts.learn([(5, "select c5"), (-1, "select " + "a, " * MAX_CHARS)])
    long = texts.text(2**64 - 1)
    assert long is not None and len(long) == MAX_CHARS and long.endswith("…"), "either sign"
    assert texts.text(5) == "select c5", "what was seen again stays"


# --- looking -------------------------------------------------------------------------------------


async def test_only_missing_texts_are_read_and_not_again_at_once(scene: Scene) -> None:
    scene.watch.readings = readings(7, 8)
    assert scene.texts.cause("headgate") == NOT_LOOKED
    scene.probe.tells = [(7, "select x where y = 1")]
    await scene.look()
    assert scene.probe.asked == [[7, 8]] and scene.texts.text(7) == "select x where y = ?"
    assert "pg_stat_statements" in scene.texts.cause("headgate")
    await scene.look()
    assert len(scene.probe.asked) == 1, "it is not time yet"
    scene.watch.readings = readings(7, 8, 9)
    await scene.look()
    assert scene.probe.asked[1:] == [[9]], "what is new is asked for at once"
    await scene.clock.advance(LOOK_INTERVAL_S)
    await scene.look()
    await scene.clock.advance(ASK_AGAIN_S)
    await scene.look()
    assert scene.probe.asked[2:] == [[], [8, 9]]


async def test_a_text_that_may_not_be_seen_says_what_to_grant(scene: Scene) -> None:
    scene.probe.tells = [(7, "<insufficient privilege>")]
    await scene.look()
    assert scene.texts.text(7) is None
    assert "GRANT pg_monitor TO headgate" in scene.texts.cause("headgate")


async def test_a_server_that_does_not_answer_is_the_cause_and_nothing_is_lost(scene: Scene) -> None:
    scene.probe.tells = [(7, "select 1")]
    await scene.look()
    await scene.clock.advance(LOOK_INTERVAL_S)
    scene.probe.tells = ProbeFailed(Cause.TIMED_OUT, "no answer in 2 s")
    await scene.look()
    assert scene.texts.text(7) == "select ?" and scene.texts.cause("r") == "no answer in 2 s"


async def test_a_hibernating_database_is_left_asleep(scene: Scene) -> None:
    scene.demands.by_database["main"].state = Activity.HIBERNATING
    await scene.look()
    assert not scene.probe.asked and scene.texts.cause("r") == ASLEEP


# --- recent use ----------------------------------------------------------------------------------


def counted(charged_ns: int, pattern_ns: int, started_ms: int = 1) -> BudgetReadings:
    return BudgetReadings(
        version=1,
        checksum=1,
        started_ms=started_ms,
        budgets={"etl": BudgetCounts(charged_ns=charged_ns)},
        patterns=(PatternReading(7, 5, 1, None, 1.0, 1.0, 0.0, pattern_ns),),
    )


def test_recent_use_is_not_known_before_two_readings() -> None:
    rates = Rates()
    rates.note(None, counted(0, 0), 0.0)
    assert rates.budget_cpus("etl") is None and rates.pattern_cpus(7) is None
    rates.note(counted(0, 0), counted(SECOND_NS // 2, SECOND_NS // 4), 1.0)
    assert rates.budget_cpus("etl") == pytest.approx(0.5), "at once, without a slow start"
    assert rates.pattern_cpus(7) == pytest.approx(0.25)
    assert rates.budget_cpus("another") == 0.0


def test_recent_use_fades_and_restarts_with_the_server() -> None:
    rates, now = Rates(), counted(SECOND_NS, SECOND_NS)
    rates.note(counted(0, 0), now, 1.0)
    rates.note(now, now, 4 * MEMORY_S)
    assert rates.budget_cpus("etl") == pytest.approx(0.0, abs=0.02)
    rates.note(now, counted(5, 5, started_ms=2), 1.0)
    assert rates.budget_cpus("etl") is None
