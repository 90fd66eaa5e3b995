"""Who is starved, and nobody else, in hours that are played through: bench/starvation.py's."""

from __future__ import annotations

from typing import Any

import pytest
from bench.starvation import HEALTHY, SITUATIONS, STARVED, Situation, play

from headgate.history.starvation import CULPRIT_MEANINGS, Culprit
from headgate.history.starvation_courses import StarvationTerms

LONG = {
    "200 saturating jobs, the metric hovers",
    "chunks of 20 s each, the metric hovers",
    "dice after the metrics, 99.9 %",
    "a client that checks once a minute, among fast ones",
    "a rogue, after hours of work",
}
"""To play through; shorter ones of their kind are left in each run."""


def _marked(situation: Situation) -> Any:
    marks = [pytest.mark.extended] if situation.name in LONG else []
    return pytest.param(situation, marks=marks, id=situation.name)


@pytest.mark.parametrize("situation", [_marked(situation) for situation in SITUATIONS])
def test_situation(situation: Situation) -> None:
    """R13, R81, R88–R92, R154: found where there is starvation, and no false alarm where there is
    none; nobody is blamed who is harmless."""
    outcome = play(situation, StarvationTerms())
    assert outcome.alarms == situation.starved
    if situation.culprit is not None:
        assert outcome.culprits == {situation.culprit}
    if situation.blamed is not None:
        assert outcome.blamed == situation.blamed


def test_there_are_enough_situations_half_of_them_healthy() -> None:
    assert len(SITUATIONS) >= 20
    assert {s.name for s in SITUATIONS} > LONG
    assert len(HEALTHY) >= 0.4 * len(SITUATIONS)
    assert {s.culprit for s in STARVED} == set(Culprit) == set(CULPRIT_MEANINGS)
