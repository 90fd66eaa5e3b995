"""What the tests of a proxy share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headgate.budgets.identity import (
    IdentitySource,
    IdentityTerms,
    SourceKind,
)
from headgate.proxy.memory import SharedMemory, create
from headgate.proxy.model import (
    MemoryTerms,
    RelayTerms,
)
from headgate.proxy.relay import NativeRelay

SMALL = MemoryTerms(
    budgets=64,
    buckets=256,
    patterns=256,
    policy_bytes=1 << 16,
    traces=64,
    clients=32,
    statements=64,
    plans=32,
)
IDENTITY = IdentityTerms((IdentitySource(SourceKind.USER),))
"""By user."""


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = create(SMALL)
    yield made
    os.close(made.fd)


@pytest.fixture
def relay(memory: SharedMemory) -> Iterator[NativeRelay]:
    """Opened, not started: no thread runs."""
    opened = NativeRelay(RelayTerms(threads=1), IDENTITY, memory)
    yield opened
    opened.close()
