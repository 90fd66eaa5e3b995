"""Fixtures live in tests/fixtures/, by subject; this only names them to pytest."""

from hypothesis import HealthCheck, settings

from tests.fixtures.ports import claim_ports

pytest_plugins = [
    "tests.fixtures.agents",
    "tests.fixtures.etcd",
    "tests.fixtures.pgkits",
    "tests.fixtures.servers",
]

# A busy machine is no failure: how long an example took, or was in the making, is not judged.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")
claim_ports()
