"""Probes run alone, on time, and always leave a reading."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headgate.check.board import Board
from headgate.check.checker import Checker
from headgate.check.decide import findings
from headgate.check.demand import Demands
from headgate.check.health import Window
from headgate.check.model import Idleness
from headgate.check.sampler import Sampler, take
from headgate.errors import ProbeFailed
from headgate.history.recorder import Recorder
from headgate.metrics.probes.heartbeats import ClockSkew, HeartbeatRow, heartbeat_lag
from headgate.metrics.samples import Absent, Cause, Number, Sample
from tests.builders import check, metric
from tests.fixtures.fakes import FakeProbe, HandClock, HangingProbe, settle


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def board() -> Board:
    board = Board()
    board.open("main", None)
    return board


@pytest.fixture
def demands(clock: HandClock) -> Demands:
    demands = Demands(clock)
    demands.open("main", Idleness())
    return demands


@pytest.fixture
async def sampler(board: Board, clock: HandClock, demands: Demands) -> AsyncIterator[Sampler]:
    sampler = Sampler(board, clock, demands)
    yield sampler
    await sampler.close()


def latest(board: Board) -> Sample | Absent | None:
    window = board.window("main", "lag")
    assert window is not None
    return window.latest


async def test_probes_at_its_own_pace(board: Board, sampler: Sampler, clock: HandClock) -> None:
    """R17"""
    spec = metric("lag", interval_s=0.5)
    board.place("main", spec, at=clock.now().mono_s)
    probe = FakeProbe(lambda: 1.5)
    sampler.start("main", spec, probe)
    await clock.advance(2.1)
    assert probe.reads == 5
    assert isinstance(latest(board), Sample)


@pytest.mark.parametrize("begins_s", [10.1, 10.5, 11.0, 11.5, 11.9])
@pytest.mark.parametrize(("interval_s", "seen"), [(2.0, True), (20.0, False)])
async def test_missed_uptick_a_rise_as_long_as_the_threshold_is_seen_where_lint_is_content(
    board: Board,
    sampler: Sampler,
    clock: HandClock,
    demands: Demands,
    begins_s: float,
    interval_s: float,
    seen: bool,
) -> None:
    """R27: of 5 s, at an interval of 5 s / 2.5, wherever it falls. Lint warns of the other one."""
    start = clock.now().mono_s

    def lag() -> float:
        return 9.0 if begins_s <= clock.now().mono_s - start < begins_s + 5.0 else 0.0

    spec = metric("lag", threshold=5.0, interval_s=interval_s, max_age_s=30.0)
    board.place("main", spec, at=start)
    sampler.start("main", spec, FakeProbe(lag))
    checker = Checker(
        board, Recorder(max_clients=9), demands, clock, lambda: 0.5, anonymous_may_pass=False
    )
    await clock.advance(1.0)
    admitted = set()
    for _ in range(170):
        await clock.advance(0.1)
        admitted.add(checker.check(check("etl")).admitted)
    assert (False in admitted) is seen


async def test_a_hung_probe_times_out_and_never_piles_up(
    board: Board, sampler: Sampler, clock: HandClock
) -> None:
    """R26: one in flight, whatever the interval."""
    spec = metric("lag", interval_s=0.01, timeout_s=0.02, max_age_s=1)
    board.place("main", spec, at=clock.now().mono_s)
    probe = HangingProbe(lambda: 0.0)
    reading = await take(probe, spec, clock)
    assert isinstance(reading, Absent) and reading.cause is Cause.TIMED_OUT
    assert "0.02 s" in reading.detail
    assert probe.running == 0 and probe.most_running == 1


async def test_a_failing_probe_keeps_its_cause_and_since_when(
    board: Board, sampler: Sampler, clock: HandClock
) -> None:
    spec = metric("lag", interval_s=1)
    board.place("main", spec, at=clock.now().mono_s)
    answers: list[float | ProbeFailed] = [1.0]

    def answer() -> float:
        if isinstance(answers[0], ProbeFailed):
            raise answers[0]
        return answers[0]

    sampler.start("main", spec, FakeProbe(answer))
    await clock.advance(0.5)
    began = clock.now().mono_s + 0.5
    answers[0] = ProbeFailed(Cause.FAILED, "connection refused")
    await clock.advance(3)
    window = board.window("main", "lag")
    assert isinstance(window, Window) and window.absent_since == pytest.approx(began)
    assert window.last_sample == Sample(1.0, began - 1)
    answers[0] = 2.0
    await clock.advance(1)
    assert latest(board) == Sample(2.0, began + 3)


async def test_a_defect_in_a_probe_makes_its_metric_unavailable_and_probing_goes_on(
    board: Board, sampler: Sampler, clock: HandClock
) -> None:
    spec = metric("lag", interval_s=1)
    board.place("main", spec, at=clock.now().mono_s)
    broken = [True]

    def answer() -> float:
        if broken[0]:
            raise ZeroDivisionError
        return 1.0

    sampler.start("main", spec, FakeProbe(answer))
    await clock.advance(0.1)
    reading = latest(board)
    assert isinstance(reading, Absent) and "ZeroDivisionError" in reading.detail
    broken[0] = False
    await clock.advance(2)
    assert isinstance(latest(board), Sample)


async def test_the_rate_of_a_counter(board: Board, sampler: Sampler, clock: HandClock) -> None:
    spec = metric("bytes", sql="select 1", threshold=100, mode="rate", interval_s=2)
    board.place("main", spec, at=clock.now().mono_s)
    counter = iter([100.0, 140.0, 10.0, 30.0])
    sampler.start("main", spec, FakeProbe(lambda: next(counter)))
    await clock.advance(6.5)
    window = board.window("main", "bytes")
    assert window is not None
    values = [r.value if isinstance(r, Sample) else r.cause for r in window.readings[1:]]
    assert values == [Cause.WARMING_UP, 20.0, Cause.WARMING_UP, 10.0]


async def test_stopping_closes_the_probe(board: Board, sampler: Sampler, clock: HandClock) -> None:
    spec = metric("lag")
    board.place("main", spec, at=clock.now().mono_s)
    probe = FakeProbe(lambda: 1.0)
    sampler.start("main", spec, probe)
    await settle()
    await sampler.stop("main", "lag")
    assert probe.closed


async def test_compounded_polling_staleness_adds_up_over_heartbeat_sample_and_check(
    board: Board, sampler: Sampler, clock: HandClock, demands: Demands
) -> None:
    """R18, R19: heartbeat at 0.000 s, sample at 0.995 s, check at 1.990 s: the answer is of 2 s
    ago, by the lag that the row had then and the age that the sample has now."""
    written_at = clock.now().mono_s
    spec = metric("lag", interval_s=1.0, timeout_s=1.0, max_age_s=3.0)
    board.place("main", spec, at=written_at)

    class Row:
        async def close(self) -> None: ...

        async def read(self) -> Number:
            async def nothing_is_missing() -> Number:
                return 0.0

            row = HeartbeatRow("headgate.heartbeat", clock.now().mono_s - written_at, 1.0)
            return await heartbeat_lag(row, ClockSkew(), nothing_is_missing)

    await clock.advance(0.995)
    sampler.start("main", spec, Row())
    await clock.advance(0.0)
    await clock.advance(0.995)
    checker = Checker(
        board, Recorder(max_clients=9), demands, clock, lambda: 0.5, anonymous_may_pass=False
    )
    [finding] = findings(checker.check(check("etl")))
    assert finding.value == pytest.approx(0.995) and finding.age_s == pytest.approx(0.995)
    assert finding.value is not None and finding.age_s is not None
    assert clock.now().mono_s - written_at == pytest.approx(finding.value + finding.age_s)
    # A second later nothing newer has come, and then the sample is too old to count.
    await sampler.close()
    await clock.advance(2.1)
    late = checker.check(check("etl"))
    assert late.failing[0].cause is Cause.STALE
