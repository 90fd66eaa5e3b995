"""Shared memory: made once, handed over whole, and never taken for another's."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.budgets.native.library import CHECKOUT, built
from headgate.errors import NativeUnavailable, RelayFault
from headgate.proxy import layout
from headgate.proxy.memory import (
    F_GET_SEALS,
    F_SEAL_SHRINK,
    RELAY,
    SharedMemory,
    adopt,
    create,
    relay_library,
)
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
def test_percentages_of_another_server_begin_again(memory: SharedMemory, changed: object) -> None:
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


# The relay's library is built once, fits relay.h, and says what is missing where it cannot be.


def test_the_structures_are_those_of_the_header() -> None:
    assert layout.misfits(relay_library()) == []


def test_every_function_that_python_declares_is_there() -> None:
    assert layout.declare(relay_library()) is relay_library()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder, name in (("relay", "needs_ssl"), ("native", "core")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.c").write_text(f"int {name};\n")
    return tmp_path


@pytest.mark.parametrize("compiler", [c for c in ("gcc", "clang") if shutil.which(c)])
def test_missing_headers_of_openssl_name_the_package(checkout: Path, compiler: str) -> None:
    source = '#include "openssl/no-such-header-of.h"\n'
    (checkout / "relay" / "needs_ssl.c").write_text(source)
    with pytest.raises(NativeUnavailable, match=r"install libssl-dev \(Debian, Ubuntu\)"):
        built(checkout, compiler, RELAY)


def test_a_missing_library_of_openssl_names_the_package(checkout: Path) -> None:
    recipe = replace(RELAY, libraries=("-lssl-that-is-not-there",))
    with pytest.raises(NativeUnavailable, match="libssl-dev"):
        built(checkout, None, recipe)


def test_half_of_the_sources_is_none(tmp_path: Path) -> None:
    (tmp_path / "relay").mkdir()
    (tmp_path / "relay" / "a.c").write_text("int a;\n")
    with pytest.raises(NativeUnavailable, match="install headgate from a wheel"):
        built(tmp_path, None, RELAY)


def test_one_changed_file_is_compiled_alone(checkout: Path) -> None:
    """Of fifty files; a header that has changed is everybody's."""
    recipe = replace(RELAY, libraries=())
    objects = built(checkout, None, recipe).parent / "objects"
    before = {path.name for path in objects.iterdir()}
    (checkout / "relay" / "needs_ssl.c").write_text("int changed;\n")
    built(checkout, None, recipe)
    assert len({path.name for path in objects.iterdir()} - before) == 1
    (checkout / "native" / "core.h").write_text("/* another one */\n")
    built(checkout, None, recipe)
    assert len({path.name for path in objects.iterdir()} - before) == 3


def test_the_wheel_brings_the_sources_beside_each_other() -> None:
    """relay/*.c includes ../native: they lie in the wheel as in the checkout."""
    wheel = (CHECKOUT / "pyproject.toml").read_text()
    assert '"relay" = "headgate/budgets/pgext/sources/relay"' in wheel
    assert '"native" = "headgate/budgets/pgext/sources/native"' in wheel
