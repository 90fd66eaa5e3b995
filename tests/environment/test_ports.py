"""Test processes do not take each other's ports, in whichever checkout and as whichever user."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headgate.demo import servers
from tests.environment.starting import PATIENCE_S
from tests.environment.test_home import STRANGER, can_be_a_stranger
from tests.fixtures.ports import claimed_slot

ROOT = Path(__file__).parents[2]
CLAIM = """
from headgate.demo import servers
from tests.fixtures.ports import claim_ports
claim_ports()
print(servers.FIRST_PORT, servers.FIRST_PORT + servers.PORT_COUNT, flush=True)
input()
"""


@contextmanager
def claiming(*prefix: str) -> Iterator[range]:
    """Another test process, until it should end."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", CLAIM],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    try:
        first, end = map(int, process.stdout.readline().split())
        yield range(first, end)
    finally:
        process.communicate("\n", timeout=PATIENCE_S)


def test_every_process_has_ports_of_its_own() -> None:
    ours = range(servers.FIRST_PORT, servers.FIRST_PORT + servers.PORT_COUNT)
    users = [(), STRANGER] if can_be_a_stranger() else [(), ()]
    with ExitStack() as running:
        taken = [ours, *(running.enter_context(claiming(*prefix)) for prefix in users)]
    assert all(len(ports) >= 100 for ports in taken)
    assert len(set().union(*taken)) == sum(len(ports) for ports in taken)


def test_a_process_that_ended_leaves_its_ports_to_others() -> None:
    name = f"headgate-test-{secrets.token_hex(8)}"
    code = f"from tests.fixtures.ports import claimed_slot; print(claimed_slot({name!r}, 1))"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=PATIENCE_S
        )
        assert done.stdout == b"0\n", done.stderr


def test_one_process_too_many_is_rejected() -> None:
    """It would share ports with another one, and fail now and then."""
    name = f"headgate-test-{secrets.token_hex(8)}"
    assert [claimed_slot(name, 2) for _ in range(2)] == [0, 1]
    with pytest.raises(pytest.UsageError, match="no ports for one more"):
        claimed_slot(name, 2)
