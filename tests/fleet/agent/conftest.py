"""The same worlds as the agent's own tests have."""

from tests.agent.conftest import open_world

__all__ = ["open_world"]
