"""The command line as called, and agents that say what a test tells them: as for tests/cli."""

from tests.cli.conftest import (  # noqa: F401 -- fixtures
    a_slow_machine_is_no_silent_agent,
    bare_environment,
    run,
    scripted,
)
