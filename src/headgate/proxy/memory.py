"""The one mapping that all threads share, and a process that takes over.   memfd ──► region, state

In this order: the traffic region of native/headgate.h, which an agent on this host may read and
charge, then the relay's own state. It is sealed: nobody can make it smaller under its readers.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import secrets
import time
from ctypes import byref
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from headgate.budgets.native.layout import PAGE_BYTES, HgRegion, HgSizes
from headgate.budgets.native.library import CHECKOUT, FLAGS, Recipe, build_beside, load
from headgate.budgets.native.region import RegionView
from headgate.errors import RelayFault
from headgate.proxy.layout import MAX_THREADS, HrSizes, HrState, declare, misfits
from headgate.proxy.model import MemoryTerms

F_ADD_SEALS, F_GET_SEALS = 1033, 1034
F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW = 1, 2, 4
SEATS = 4 * MAX_THREADS
"""Of threads: of this process, of one that drains, and of some that died."""


@dataclass(frozen=True, slots=True)
class Laid:
    """Where each part lies in the mapping; sent to the process that takes over."""

    region_bytes: int
    state_at: int
    state_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.state_at + self.state_bytes


class SharedMemory:
    def __init__(self, fd: int, laid: Laid) -> None:
        """Takes `fd` over."""
        self.fd = fd
        self.laid = laid
        self._mapping = mmap.mmap(fd, laid.total_bytes)
        self.region_address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self.state_address = self.region_address + laid.state_at
        self.region = RegionView(memoryview(self._mapping)[: laid.region_bytes])
        self.state = HrState.from_buffer(self._mapping, laid.state_at)

    @property
    def state_view(self) -> memoryview:
        """To be read."""
        return memoryview(self._mapping)[self.laid.state_at :].toreadonly()


def create(terms: MemoryTerms) -> SharedMemory:
    sizes, own = _region_sizes(terms), _state_sizes(terms)
    laid = _lay(sizes, own)
    fd = _sealed_file(laid.total_bytes)
    with mmap.mmap(fd, laid.total_bytes) as mapping:
        at = ctypes.c_char.from_buffer(mapping)
        fault = _initialise(ctypes.addressof(at), laid, sizes, own, terms)
        del at  # Else the mapping could not be closed.
    if fault:
        os.close(fd)
        raise RelayFault(f"shared memory of {laid.total_bytes} bytes: {fault}")
    return SharedMemory(fd, laid)


def _initialise(
    address: int, laid: Laid, sizes: HgSizes, own: HrSizes, terms: MemoryTerms
) -> str | None:
    library, wall_ms = relay_library(), time.time_ns() // 1_000_000
    who = (terms.cpus_milli, terms.workers, time.monotonic_ns(), wall_ms)
    fault = library.hg_region_init(address, laid.region_bytes, byref(sizes), *who)
    if fault is None:
        fault = library.hr_state_init(address + laid.state_at, laid.state_bytes, byref(own))
    # Nobody can make up values that crowd one set of the table of buckets.
    library.hg_region_keyed(address, secrets.randbits(63) | 1)
    return None if fault is None else str(fault.decode())


def adopt(fd: int, laid: Laid, terms: MemoryTerms) -> SharedMemory:
    """What another process has used; RelayFault, and `fd` closed, where it is of another version
    or another make."""
    try:
        _check(fd, laid, terms)
    except RelayFault:
        os.close(fd)
        raise
    return SharedMemory(fd, laid)


def _check(fd: int, laid: Laid, terms: MemoryTerms) -> None:
    if not fcntl.fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK:
        raise RelayFault("the memory that was handed over is not sealed, so it is not a proxy's")
    if os.fstat(fd).st_size < laid.total_bytes or laid.region_bytes < ctypes.sizeof(HgRegion):
        raise RelayFault(f"the memory that was handed over has not {laid.total_bytes} bytes")
    with mmap.mmap(fd, laid.total_bytes) as mapping:
        head = HgRegion.from_buffer_copy(mapping)
        at = ctypes.c_char.from_buffer(mapping)
        address = ctypes.addressof(at)
        library = relay_library()
        fault = library.hg_region_check(address, laid.region_bytes)
        if fault is None:
            fault = library.hr_state_check(address + laid.state_at, laid.state_bytes)
        del at
    if fault:
        raise RelayFault(fault.decode())
    if (head.cpus_milli, head.workers) != (terms.cpus_milli, terms.workers):
        raise RelayFault("cpus or max_connections have changed, so budgets start from zero")


def _sealed_file(total_bytes: int) -> int:
    fd = os.memfd_create("headgate-proxy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, total_bytes)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        raise RelayFault(
            f"no shared memory of {total_bytes} bytes: {error.strerror}; make [memory] smaller"
        ) from None
    return fd


def _lay(sizes: HgSizes, own: HrSizes) -> Laid:
    region_bytes = int(relay_library().hg_region_bytes(byref(sizes)))
    state_bytes = int(relay_library().hr_state_bytes(byref(own)))
    if not region_bytes or not state_bytes:
        raise RelayFault("no memory has these sizes: see [memory] in the settings")
    state_at = -(-region_bytes // PAGE_BYTES) * PAGE_BYTES
    return Laid(region_bytes, state_at, state_bytes)


def _region_sizes(terms: MemoryTerms) -> HgSizes:
    policy_bytes = -(-terms.policy_bytes // PAGE_BYTES) * PAGE_BYTES
    traces = power_of_two(terms.traces) if terms.traces else 0
    return HgSizes(
        SEATS,
        power_of_two(terms.budgets),
        power_of_two(terms.buckets),
        power_of_two(terms.patterns),
        policy_bytes,
        traces,
    )


def _state_sizes(terms: MemoryTerms) -> HrSizes:
    return HrSizes(power_of_two(terms.clients), terms.statements, power_of_two(terms.plans), 0)


def power_of_two(at_least: int) -> int:
    return 1 << max(0, at_least - 1).bit_length()


# --- the shared library --------------------------------------------------------------------------

# The relay's shared library: found beside this file, or built from relay/*.c and native/*.c.
#
# It links OpenSSL, whose headers are a package of their own; the rest is as in
# budgets/native/library.py.

_NO_HEADERS = (
    "OpenSSL's headers are missing: install libssl-dev (Debian, Ubuntu), openssl-devel (Fedora, "
    "RHEL) or openssl-dev (Alpine), and run it again"
)
_NO_OPENSSL = (
    "OpenSSL 3 is missing: install libssl3 (Debian, Ubuntu) or openssl-libs (Fedora, RHEL), or run "
    "headgate proxy build, for the OpenSSL that this host has"
)
RELAY = Recipe(
    name="libheadgate_relay",
    what="the relay of the proxy",
    header="relay.h",
    folders=("relay", "native"),
    beside=Path(__file__).parent / "libheadgate_relay.so",
    misfits=misfits,
    building="building the relay for this host's OpenSSL (once, about 20 s) …",
    flags=(*FLAGS, "-D_GNU_SOURCE", "-pthread"),
    libraries=("-lssl", "-lcrypto", "-lpthread", "-lm"),
    needs=(
        ("fatal error: openssl/", _NO_HEADERS),
        ("fatal error: 'openssl/", _NO_HEADERS),
        ("find -lssl", _NO_HEADERS),
        ("find -lcrypto", _NO_HEADERS),
        ("library -lssl", _NO_HEADERS),
        ("library -lcrypto", _NO_HEADERS),
        ("libssl.so.3: cannot open", _NO_OPENSSL),
        ("libcrypto.so.3: cannot open", _NO_OPENSSL),
    ),
)


@cache
def relay_library(checkout: Path = CHECKOUT) -> ctypes.CDLL:
    """With the prototypes of its functions declared; NativeUnavailable says what is missing."""
    return declare(load(checkout, recipe=RELAY))


def build() -> Path:
    """For all users of this installation (`headgate proxy build`), with the agent's core."""
    build_beside()
    return build_beside(recipe=RELAY)
