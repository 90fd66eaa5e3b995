"""The extension is built before the first test runs."""

from __future__ import annotations

from tests.fixtures.builds import before_tests_below
from tests.fixtures.pgkits import build_all

pytest_collection_finish = before_tests_below(__file__, build_all)
