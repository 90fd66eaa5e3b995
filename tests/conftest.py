"""Fixtures live in tests/fixtures/, by subject; this only names them to pytest."""

pytest_plugins = ["tests.fixtures.agents", "tests.fixtures.servers"]
