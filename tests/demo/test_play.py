"""The scenes without a person: what the exit code tells, and what stands above it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headgate.demo import play
from headgate.demo.tour import Promise, TourScene, open_server
from headgate.demo.traffic import Enforcement, Traffic
from tests.demo.builders import empty_stage, frame, scene

KEPT, BROKEN = Promise("it held", kept=True), Promise("it did not", kept=False)
UNTRIED = Promise("nobody knows", kept=False, tried=False)


def ending(*promises: Promise) -> TourScene:
    return replace(scene("one"), play=lambda run: promises)


@pytest.mark.parametrize(
    ("promises", "code", "told"),
    [
        ([KEPT], 0, "1 of 1 promises kept, in"),
        ([KEPT, BROKEN], 1, "PROMISE BROKEN: it did not"),
        ([KEPT, UNTRIED], play.NOT_ALL, "1 of 1 promises kept, 1 not tried, in"),
        ([BROKEN, UNTRIED], 1, "0 of 1 promises kept, 1 not tried, in"),
    ],
)
def test_what_could_not_be_tried_is_no_success(
    promises: Sequence[Promise],
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(play, "SCENES", (ending(*promises),))
    monkeypatch.setattr(play, "FRAME_S", 0.01)
    stage = empty_stage(
        traffic=Traffic(Enforcement.NONE, "no compiler: install gcc"), look=lambda: frame(1)
    )
    guide = open_server()
    try:
        assert play.play_through(stage, 1.0, guide) == code
    finally:
        guide.end()
    said = capsys.readouterr().out
    assert told in said
    assert ("not tried: no traffic control: no compiler: install gcc" in said) is (
        code == play.NOT_ALL
    )
