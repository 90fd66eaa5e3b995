"""Who is starved, and nobody else, in hours that are played through: bench/starvation.py's."""

from __future__ import annotations

import pytest
from bench.starvation import HEALTHY, SITUATIONS, STARVED, Situation, play

from headgate.core.courses import Policy
from headgate.core.starvation import CULPRIT_MEANINGS, Culprit


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_situation(situation: Situation) -> None:
    """R88–R92: found where there is starvation, and no false alarm where there is none."""
    outcome = play(situation, Policy())
    assert outcome.alarms == situation.starved
    if situation.culprit is not None:
        assert outcome.culprits == {situation.culprit}


def test_there_are_enough_situations_half_of_them_healthy() -> None:
    assert len(SITUATIONS) >= 20
    assert len(HEALTHY) >= len(SITUATIONS) / 2
    assert {s.culprit for s in STARVED} == set(Culprit) == set(CULPRIT_MEANINGS)
