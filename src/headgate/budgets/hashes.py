"""hg_hash: the one hash of names and values, the same in native/headgate.h.

FNV-1a over the bytes, then mixed, since a table of slots goes by the lowest bits.
"""

from __future__ import annotations

SYSTEM_KEY, TAG_KEY, BUDGET, FINGERPRINT = range(4)
"""Seeds, so that the same bytes mean another thing."""

_BASIS = 0xCBF2_9CE4_8422_2325
_SHORT_BYTES = 32


def hg_hash(seed: int, data: bytes) -> int:
    return mixed(fnv(seed ^ _BASIS, data))


# Ten thousand values are hashed for every publication, so the constants stand in the loops, and
# short values grow past 64 bits first and are cut once: a third of the time.
def fnv(state: int, data: bytes) -> int:
    """On from `state`: for a stream, begin with fnv_start(seed), and end with mixed()."""
    if len(data) <= _SHORT_BYTES:
        for byte in data:
            state = (state ^ byte) * 0x100_0000_01B3
        return state & 0xFFFF_FFFF_FFFF_FFFF
    for byte in data:
        state = (state ^ byte) * 0x100_0000_01B3 & 0xFFFF_FFFF_FFFF_FFFF
    return state


def fnv_start(seed: int) -> int:
    return seed ^ _BASIS


def mixed(state: int) -> int:
    state = (state ^ (state >> 32)) * 0xD6E8_FEB8_6659_FD93 & 0xFFFF_FFFF_FFFF_FFFF
    state = (state ^ (state >> 32)) * 0xD6E8_FEB8_6659_FD93 & 0xFFFF_FFFF_FFFF_FFFF
    return state ^ (state >> 32)


def budget_key(name: str) -> int:
    """0 and 1 mean a free place and one that is being taken, in the region."""
    key = hg_hash(BUDGET, name.encode())
    return key if key > 1 else key + 2
