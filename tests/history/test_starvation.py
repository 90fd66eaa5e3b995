"""Who is starved, and nobody else: edges. Whole hours are in tests/situations."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headgate.history import starvation_courses
from headgate.history.starvation import Culprit, Starved, judge, lasts
from headgate.history.starvation_courses import (
    ClientMetrics,
    ClientTick,
    DatabaseCourses,
    MinuteLook,
    Reason,
    StarvationTerms,
    Subject,
    Tick,
    advance,
)

POLICY = StarvationTerms()
Metrics = frozenset[str]
LAG: Metrics = frozenset({"lag"})
REJECTED = ClientTick(by_metric={"lag": 1})
ADMITTED = ClientTick(admitted=1)
PINNED, FINE = MinuteLook(True, 3.0), MinuteLook(False, 0.4)


class Course:
    """A database, told second by second what happened."""

    def __init__(self, policy: StarvationTerms = POLICY) -> None:
        self.policy = policy
        self.scene = DatabaseCourses("main", 0.0)

    def go(self, seconds: int, look: MinuteLook, step_s: int = 5, **seen: ClientTick) -> Course:
        """Names are written with `_` for their colons."""
        named = {name.replace("_", ":"): what for name, what in seen.items()}
        return self.pass_by(seconds, look, named, step_s)

    def pass_by(
        self, seconds: int, look: MinuteLook, seen: Mapping[str, ClientTick], step_s: int = 5
    ) -> Course:
        judged = {name: ClientMetrics(LAG) for name in seen}
        for _ in range(seconds // step_s):
            now_s = self.scene.now_s + step_s
            tick = Tick(now_s, seen, {"lag": look}, judged)
            self.scene = advance(self.scene, tick, self.policy)
        return self

    def move(self, seconds: int, seen: Mapping[str, ClientTick], *, metrics: Metrics = LAG) -> None:
        """The same, with a metric that follows what the admitted do, which changes."""
        judged = {n: ClientMetrics(LAG if s == REJECTED else metrics) for n, s in seen.items()}
        for turn in range(seconds // 5):
            often = turn * turn % 7 % 3
            now = {n: s for n, s in seen.items() if often or s == REJECTED}
            now |= {n: s.plus(s) for n, s in now.items() if often == 2 and s != REJECTED}
            look = MinuteLook(True, 3.0 + often / 10)
            tick = Tick(self.scene.now_s + 5, now, {"lag": look}, judged)
            self.scene = advance(self.scene, tick, self.policy)

    @property
    def found(self) -> tuple[Starved, ...]:
        return tuple(one.starved for one in judge(self.scene, self.policy))


def test_ten_minutes_of_twelve_hours_are_probably_fine() -> None:
    """R89: 1.4 % of the runtime is noticed, and no alarm."""
    day = Course().go(12 * 3600 - 605, FINE, etl=ADMITTED).go(605, PINNED, etl=REJECTED)
    [finding] = day.found
    assert finding.share == pytest.approx(600 / (12 * 3600), rel=0.02)
    assert not finding.alarming
    [later] = day.go(1800, PINNED, etl=REJECTED).found
    assert later.alarming and later.share > POLICY.waterline


def test_time_rejected_by_dice_is_kept_apart_from_time_rejected_by_metrics() -> None:
    """R91"""
    day = Course().go(300, FINE, etl=ClientTick(diced=3)).go(200, PINNED, etl=REJECTED)
    day.go(100, PINNED, etl=ClientTick(held=1)).go(60, FINE, etl=ClientTick(paced=1, passed=1))
    spent = day.scene.courses[Subject("etl")].rejected_s
    assert spent[Reason.DICE] == pytest.approx(295)
    assert spent[Reason.METRIC] == pytest.approx(200)
    assert spent[Reason.HELD] == pytest.approx(100)


def test_evidence_and_proposal_come_with_a_finding() -> None:
    day = Course()
    seen = {"etl:nightly": REJECTED, "fix:x": ClientTick(exempted=4, exempt_by="r7")}
    day.move(900, seen)
    [finding] = day.found
    assert (finding.client, finding.metric, finding.cause) == (
        "etl:nightly",
        "lag",
        Culprit.EXEMPT_CLIENT,
    )
    assert finding.blamed == ("fix:x",) and finding.rule == "r7"
    assert finding.proposal == "headgate rule lift r7"
    assert finding.effect == pytest.approx(0.1 / 4) and finding.effect_error == pytest.approx(0.0)
    assert finding.breached_share == 1.0 and finding.mean_utilization == pytest.approx(3.1, 0.05)
    assert finding.starved_s == pytest.approx(895) and finding.rejections == 180


def test_a_level_is_reported_once_for_all_its_clients() -> None:
    day = Course()
    day.go(700, PINNED, a_etl=REJECTED, b_etl=REJECTED, c_report=REJECTED)
    assert [(f.client, f.is_level, f.members) for f in day.found] == [
        ("c:report", False, ("c:report",)),
        ("etl", True, ("a:etl", "b:etl")),
    ]


def test_one_admitted_client_of_a_level_is_the_level_progressing() -> None:
    day = Course()
    day.go(700, PINNED, a_etl=REJECTED, b_etl=ClientTick(exempted=1, exempt_by="r1"))
    assert [f.client for f in day.found] == ["a:etl"]


def test_those_without_a_name_are_reported_by_their_level() -> None:
    """R69, R88: of names that are made up without end, the level is what is starved."""
    [finding] = Course().pass_by(900, PINNED, {"other:etl:nightly": REJECTED}).found
    assert finding.is_level and finding.client == "etl"
    assert finding.members == ("other:etl:nightly",)


@pytest.mark.parametrize(
    ("busy", "proposal"),
    [
        (["other:import:nightly"], "headgate rule ratio import 0.5 --database all --for 1h"),
        (["other"], "headgate clients"),
        (["other", "x:web"], "headgate rule ratio x:web 0.5 --database all --for 1h"),
        (["other:nightly"], "headgate clients"),
    ],
)
def test_no_rule_is_proposed_that_matches_nobody_or_the_starved(
    busy: list[str], proposal: str
) -> None:
    seen = {"u1:etl:nightly": REJECTED} | dict.fromkeys(busy, ADMITTED)
    day = Course()
    day.move(1200, seen)
    [finding] = day.found
    assert finding.cause is Culprit.ADMITTED_WORK
    assert finding.proposal == proposal


def test_no_metrics_are_proposed_for_those_without_a_name() -> None:
    day = Course()
    seen = {"u1:etl": REJECTED, "other": ADMITTED}
    day.move(1200, seen, metrics=frozenset({"loadavg"}))
    [finding] = day.found
    assert finding.cause is Culprit.DIFFERENTIAL_METRICS
    assert finding.proposal == "headgate clients"


def test_a_level_that_many_have_finds_room_before_those_who_are_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starvation_courses, "MAX_COURSES", 5)
    crowd = {f"u{number}:etl": REJECTED for number in range(20)}
    day = Course().pass_by(900, PINNED, crowd)
    assert Subject("etl", is_level=True) in day.scene.courses


def test_a_silence_ends_a_stretch() -> None:
    """Bursty return: what lies before the absence says nothing of now."""
    day = Course().go(500, PINNED, etl=REJECTED).go(300, PINNED).go(500, PINNED, etl=REJECTED)
    assert day.found == ()
    assert day.scene.courses[Subject("etl")].runtime_s == pytest.approx(990)


def test_a_hold_in_between_is_no_metric() -> None:
    day = Course().go(300, PINNED, etl=REJECTED).go(400, PINNED, etl=ClientTick(held=5))
    assert day.go(100, PINNED, etl=REJECTED).found == ()


def test_a_metric_that_was_never_seen_accuses_nobody() -> None:
    scene = DatabaseCourses("main", 0.0)
    for now_s in range(5, 1000, 5):
        tick = Tick(float(now_s), {"etl": REJECTED}, {}, {"etl": ClientMetrics(LAG)})
        scene = advance(scene, tick, POLICY)
    assert judge(scene, POLICY) == ()


def test_a_finding_lasts_until_its_client_comes_through() -> None:
    day = Course().go(700, PINNED, etl=REJECTED)
    [finding] = judge(day.scene, POLICY)
    day.go(600, MinuteLook(False, 0.9), etl=REJECTED)
    assert day.found == () and lasts(finding, day.scene, POLICY)
    day.go(5, FINE, etl=ADMITTED)
    assert not lasts(finding, day.scene, POLICY)


def test_names_made_up_without_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """R69: who runs is not pushed out by who makes up names."""
    monkeypatch.setattr(starvation_courses, "MAX_COURSES", 50)
    day = Course().go(100, PINNED, etl_nightly=REJECTED)
    for number in range(100):
        crowd = {f"u{number}x{n}": ADMITTED for n in range(20)}
        day.pass_by(5, PINNED, {"etl:nightly": REJECTED, **crowd})
    assert len(day.scene.courses) <= 50
    assert Subject("etl:nightly") in day.scene.courses


def test_a_long_silence_begins_another_run() -> None:
    day = Course().go(3600, FINE, etl=ADMITTED)
    day.go(1000, FINE).go(700, PINNED, etl=REJECTED)
    [finding] = day.found
    assert finding.share == 1.0
