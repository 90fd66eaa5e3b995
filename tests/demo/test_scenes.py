"""What the scenes promise is broken by what would break it, and by nothing else. Pure."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from headgate.demo.handover import PrimarySwitch
from headgate.demo.postgres import SwitchStep
from headgate.demo.scenes import SCENES, agent_dies, failover, favor, flood, rogue
from headgate.demo.stage import BACKFILL, ETL, MIGRATION, SYNC, Frame, SceneFacts, Stage
from headgate.demo.tour import Promise, Tour, Whither, is_calm
from headgate.demo.traffic import Enforcement, Traffic
from tests.demo.builders import desk, empty_stage, frame, heard, scene
from tests.fixtures.eventually import eventually

JOBS = [BACKFILL, ETL]


def both(at: float, lag_s: float | None, *, held: bool = False) -> Frame:
    held_s = 1.0 if held else None
    return frame(at, [desk(j, chunks=0 if held else 9, held_s=held_s) for j in JOBS], lag_s=lag_s)


def broken(promises: list[Promise]) -> list[str]:
    return [promise.text for promise in promises if not promise.kept]


def test_every_scene_says_what_happens_and_where_to_look() -> None:
    titles = [one.title for one in SCENES]
    assert len(set(titles)) == len(SCENES) == 6
    for one in SCENES:
        looks = one.looks(empty_stage())
        assert one.watch and looks
        assert all(look.path.startswith("/") and look.text for look in looks)


def test_why_a_job_was_rejected_is_explained_for_that_minute() -> None:
    """By the time that someone looks, the lag is below its threshold again."""
    assert not any("explain" in look.path for look in flood.SCENE.looks(empty_stage()))
    *_, why = flood.SCENE.looks(empty_stage(found=SceneFacts("2026-03-01T07:10:05Z")))
    assert why.path.endswith("&at=2026-03-01T07%3A10%3A05Z")


def test_a_dead_agent_is_looked_at_by_one_that_lives() -> None:
    stage = empty_stage(speaker_is_up=False)
    assert [look.agent for look in agent_dies.SCENE.looks(stage)] == [stage.agents["db-b"].url]
    assert {look.agent for look in agent_dies.SCENE.looks(empty_stage())} == {""}


def test_where_no_budget_can_stop_the_rogue_no_link_promises_one() -> None:
    nobody = empty_stage(traffic=Traffic(Enforcement.NONE, "no compiler"))
    assert [look.path for look in rogue.SCENE.looks(nobody)] == ["/clients"]
    *_, why = rogue.SCENE.looks(empty_stage())
    assert why.path.startswith("/explain#sql=select"), "a statement goes into no address"


class TestFlood:
    GREEDY = tuple(both(n, 0.5 * n) for n in range(6))
    ASKING = (
        *(both(10 + n, 3.0, held=True) for n in range(2)),
        *(both(12 + n, 0.5) for n in range(4)),
        both(16, 2.4, held=True),
        both(17, 1.0),
    )

    def test_lag_that_rises_and_comes_down_keeps_all_of_it(self) -> None:
        assert broken(flood.promises(self.GREEDY, self.ASKING, JOBS)) == []
        assert flood.was_tried(self.ASKING) and not flood.was_tried(self.ASKING[:-1])

    def test_a_lag_that_nobody_knows_is_no_0(self) -> None:
        unknown = [both(n, None) for n in range(6)]
        assert any("without checks" in text for text in broken(flood.promises(unknown, [], JOBS)))

    def test_a_lag_that_does_not_come_down_again_breaks_it(self) -> None:
        high = (*self.ASKING[:-1], both(17, 2.1))
        assert any("came down" in text for text in broken(flood.promises(self.GREEDY, high, JOBS)))

    def test_a_job_that_was_never_throttled_breaks_it(self) -> None:
        free = [both(10 + n, lag_s) for n, lag_s in enumerate((3.0, 1.0, 1.0, 1.0, 1.0))]
        assert any("THROTTLED" in text for text in broken(flood.promises(self.GREEDY, free, JOBS)))


class TestFavor:
    CROWDED = (frame(1, [desk(MIGRATION, held_s=1.0)]),)

    @pytest.mark.parametrize(("others", "kept"), [(4, True), (30, False)])
    def test_the_migration_must_get_far_more_than_the_others(self, others: int, kept: bool) -> None:
        desks = [desk(MIGRATION, chunks=40), desk(ETL, chunks=others), desk(BACKFILL, chunks=1)]
        assert (broken(favor.promises(self.CROWDED, [frame(2, desks)], "f-1")) == []) is kept

    @pytest.mark.parametrize(
        ("odds", "state", "named"),
        [
            (0.4, "applies", "f-1"),
            (0.99, "applies", ""),
            (None, "applies", ""),
            (0.4, "shadowed", ""),
        ],
    )
    def test_a_rule_thins_only_where_it_applies_and_few_get_through(
        self, odds: float | None, state: str, named: str
    ) -> None:
        found = {"odds": odds, "matched": [{"rule": "f-1", "state": state}]}
        assert favor.thinned_by(found, ["f-2", "f-1"]) == named

    def test_a_rule_that_explain_does_not_name_breaks_it(self) -> None:
        told = broken(favor.promises(self.CROWDED, [frame(2, [desk(MIGRATION)])], ""))
        assert any("explain names" in text for text in told)


class TestRogue:
    SHED = rogue.Shed(
        warned=5,
        done_warned=20,
        blocked=40,
        block='budget "best-effort": capacity limit',
        jobs_blocked=0,
        critical_blocked=0,
        before_s=0.02,
        flooded_s=0.06,
        enforced_s=0.03,
    )

    def test_a_budget_that_warns_then_rejects_keeps_all_of_it(self) -> None:
        assert broken(rogue.promises(self.SHED)) == []

    @pytest.mark.parametrize(
        ("change", "names"),
        [
            ({"warned": 0}, "warned first"),
            ({"blocked": 0, "block": ""}, "53000"),
            ({"critical_blocked": 1}, "shed first"),
            ({"jobs_blocked": -1}, "shed first"),
            ({"enforced_s": None}, "went on"),
        ],
    )
    def test_each_part_breaks_a_promise_of_its_own(
        self, change: dict[str, Any], names: str
    ) -> None:
        (told,) = broken(rogue.promises(replace(self.SHED, **change)))
        assert names in told


class TestAgentDies:
    DEAD = (
        frame(
            1,
            [
                *(desk(job, chunks=0, held_s=1.0) for job in JOBS),
                desk(SYNC, last=heard(unthrottled=True)),
            ],
        ),
    )
    SILENCE = agent_dies.AgentOutage(
        agent="db-a",
        dead=DEAD,
        others_said="db-b says of db-a: connection refused",
        wrong=0,
        after=[frame(5, [desk(job) for job in (*JOBS, SYNC)])],
        on_record=12,
    )

    def test_who_waits_waits_and_who_may_goes_on(self) -> None:
        assert broken(agent_dies.promises(self.SILENCE)) == []

    @pytest.mark.parametrize(
        ("change", "names"),
        [
            ({"wrong": 1}, "waited"),
            ({"others_said": ""}, "said so"),
            ({"on_record": 0}, "on record"),
            ({"after": []}, "came back"),
        ],
    )
    def test_each_part_breaks_a_promise_of_its_own(
        self, change: dict[str, Any], names: str
    ) -> None:
        (told,) = broken(agent_dies.promises(replace(self.SILENCE, **change)))
        assert names in told


def test_calm_needs_a_lag_that_is_known() -> None:
    assert is_calm(frame(1, lag_s=1.9)) and not is_calm(frame(1, lag_s=None))


class TestFailover:
    """The shard has no primary for as long as the viewer wants it, and never forever."""

    @staticmethod
    def begun(monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> Tour:
        def fail_over(stage: Stage, handover: PrimarySwitch) -> None:
            handover.tell(SwitchStep.GONE)
            steps.append("gone")
            steps.append("promoted" if handover.noticed.wait(60) else "never promoted")

        monkeypatch.setattr(failover, "fail_over", fail_over)
        stage = empty_stage()
        tour = Tour(stage, [failover.SCENE, scene("two")], steps.append, pauses=True)
        tour.go(1)
        eventually(lambda: _heard_by(tour) and bool(tour.waits_for))
        return tour

    @pytest.mark.parametrize("step", ["next", 2])
    def test_no_primary_lasts_until_a_step_and_no_longer(
        self, monkeypatch: pytest.MonkeyPatch, step: Whither
    ) -> None:
        steps: list[str] = []
        tour = self.begun(monkeypatch, steps)
        try:
            assert steps[-1] == "gone"
            tour.go(step)
            eventually(lambda: _heard_by(tour) and "promoted" in steps)
        finally:
            tour.leave()

    def test_leaving_leaves_no_shard_in_halves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps: list[str] = []
        self.begun(monkeypatch, steps).leave()
        assert steps[-1] == "promoted"


def _heard_by(tour: Tour) -> bool:
    tour.hear(both(time.monotonic(), 0.0))
    return True
