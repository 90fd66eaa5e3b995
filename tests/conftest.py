"""Fixtures live in tests/fixtures/, by subject; this only names them to pytest."""

import pytest
from hypothesis import HealthCheck, settings

from tests.fixtures.environment import begin_afresh
from tests.fixtures.ports import claim_ports

pytest_plugins = [
    "tests.fixtures.agents",
    "tests.fixtures.etcd",
    "tests.fixtures.pgkits",
    "tests.fixtures.reporting",
    "tests.fixtures.servers",
    "tests.fixtures.worlds",
]

# A busy machine is no failure: how long an example took, or was in the making, is not judged.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Examples of a property that says no number itself: each run has others.
settings.register_profile("short", UNTIMED, max_examples=20)
settings.register_profile("extended", UNTIMED, max_examples=300)
begin_afresh()
claim_ports()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--extended", action="store_true", help="run the tests marked extended, too")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("extended" if config.getoption("--extended") else "short")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--extended"):
        return
    left_out = {item for item in items if item.get_closest_marker("extended")}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
