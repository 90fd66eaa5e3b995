"""The relay's tests in C are built before the first of them runs."""

from __future__ import annotations

from tests.fixtures import relaytests
from tests.fixtures.builds import before_tests_below


def _build(extended: bool) -> None:
    relaytests.built(relaytests.RELAY)
    if extended:
        relaytests.built(relaytests.RELAY_TSAN)


pytest_collection_finish = before_tests_below(__file__, _build)
