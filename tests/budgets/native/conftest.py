"""The core and its tests in C are built before the first test runs."""

from __future__ import annotations

from headgate.budgets.native import library
from tests.fixtures import relaytests
from tests.fixtures.builds import before_tests_below

pytest_collection_finish = before_tests_below(
    __file__, lambda _: library.load(), lambda _: relaytests.built(relaytests.NATIVE)
)
