"""Shared memory: made once, handed over whole, and never taken for another's."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace

import pytest

from headgate.errors import RelayFault
from headgate.proxy.memory import F_GET_SEALS, F_SEAL_SHRINK, SharedMemory, adopt, create
from tests.proxy.conftest import SMALL


def test_it_cannot_be_made_smaller_under_those_who_read_it(memory: SharedMemory) -> None:
    assert fcntl.fcntl(memory.fd, F_GET_SEALS) & F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fd, 4096)


def test_what_one_process_wrote_the_next_one_reads(memory: SharedMemory) -> None:
    memory.state.lost = 3
    again = adopt(os.dup(memory.fd), memory.laid, SMALL)
    assert again.state.lost == 3
    assert again.region.head().started_ms == memory.region.head().started_ms
    os.close(again.fd)


def test_buckets_are_spread_by_a_secret(memory: SharedMemory) -> None:
    """Else a client could make up values that crowd one set of the table."""
    from headgate.budgets.native.layout import HgRegion

    secrets = {HgRegion.from_address(memory.region_address).secret}
    other = create(SMALL)
    secrets.add(HgRegion.from_address(other.region_address).secret)
    os.close(other.fd)
    assert len(secrets) == 2 and 0 not in secrets


@pytest.mark.parametrize(
    "changed", [replace(SMALL, cpus_milli=9000), replace(SMALL, workers=7)], ids=["cpus", "workers"]
)
def test_percentages_of_another_server_begin_anew(memory: SharedMemory, changed: object) -> None:
    with pytest.raises(RelayFault, match="budgets start from zero"):
        adopt(os.dup(memory.fd), memory.laid, changed)  # type: ignore[arg-type]


def test_other_sizes_wait_for_a_cold_start(memory: SharedMemory) -> None:
    again = adopt(os.dup(memory.fd), memory.laid, replace(SMALL, buckets=512))
    assert again.laid == memory.laid
    os.close(again.fd)


def test_memory_of_another_version_is_not_taken(memory: SharedMemory) -> None:
    memory.state.format = 99
    with pytest.raises(RelayFault):
        adopt(os.dup(memory.fd), memory.laid, SMALL)


def test_what_is_no_memory_of_ours_is_not_taken(memory: SharedMemory) -> None:
    plain = os.memfd_create("plain")
    os.ftruncate(plain, memory.laid.total_bytes)
    with pytest.raises(RelayFault, match="not sealed"):
        adopt(plain, memory.laid, SMALL)
    longer = replace(memory.laid, state_bytes=memory.laid.state_bytes * 2)
    with pytest.raises(RelayFault, match="has not"):
        adopt(os.dup(memory.fd), longer, SMALL)


def test_sizes_are_rounded_up_to_what_the_core_takes() -> None:
    odd = create(replace(SMALL, budgets=17, buckets=100, clients=20, traces=0))
    assert odd.state.sizes.clients == 32
    os.close(odd.fd)
