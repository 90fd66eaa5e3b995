"""The two files that a server reads its policy from, as bytes.

A compiled policy (budgets/compiled.py) is made once; its version and whether it is switched off
are stamped on when it is published, since only then the version is known.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from headgate.budgets.compiled import FORMAT, MAGIC, OFF

MAX_VERSION = 2**63 - 1
MAX_POLICY_BYTES = 1 << 30

# Of hg_policy in native/headgate.h: magic, format, crc, length, version, flags.
_HEAD = struct.Struct("<8sIIQQI")
_CRC_AT, _VERSION_AT, _FLAGS_AT = 12, 24, 32
_WORD, _LONG = struct.Struct("<I"), struct.Struct("<Q")

# health.hgs: magic, format, crc, health, 0, until_ms, written_ms.
_HEALTH = struct.Struct("<8sIIIIqq")
_HEALTH_MAGIC = b"HGHEALTH"
_HEALTHY, _UNHEALTHY = 1, 2


@dataclass(frozen=True, slots=True)
class PolicyHead:
    version: int
    checksum: int
    off: bool
    content: int
    """Checksum of what it says, whatever its version, switched off or on."""


def head_of(whole: bytes) -> PolicyHead | None:
    """None where these are not the bytes of a whole policy, as they were written."""
    if len(whole) < _HEAD.size:
        return None
    magic, format_, crc, length, version, flags = _HEAD.unpack_from(whole)
    if (magic, format_, length) != (MAGIC, FORMAT, len(whole)) or version > MAX_VERSION:
        return None
    if crc != _crc(whole):
        return None
    return PolicyHead(version, crc, bool(flags & OFF), _crc(stamped(whole, 0, off=False)))


def stamped(whole: bytes, version: int, *, off: bool) -> bytes:
    """The same policy under another version, switched off or on."""
    body = bytearray(whole)
    flags = _WORD.unpack_from(body, _FLAGS_AT)[0] & ~OFF
    _WORD.pack_into(body, _FLAGS_AT, flags | (OFF if off else 0))
    _LONG.pack_into(body, _VERSION_AT, version)
    _WORD.pack_into(body, _CRC_AT, _crc(body))
    return bytes(body)


def _crc(whole: bytes | bytearray) -> int:
    """Of all of it, with the checksum's own four bytes zero."""
    seen = memoryview(whole)
    return zlib.crc32(seen[_CRC_AT + 4 :], zlib.crc32(bytes(4), zlib.crc32(seen[:_CRC_AT])))


def health_of(whole: bytes) -> tuple[bool, int] | None:
    """Healthy, and until when (Unix ms) that is believed; None: no whole health file."""
    if len(whole) != _HEALTH.size:
        return None
    magic, format_, crc, word, _, until_ms, _ = _HEALTH.unpack(whole)
    if (magic, format_) != (_HEALTH_MAGIC, 1) or word not in (_HEALTHY, _UNHEALTHY):
        return None
    blank = whole[:_CRC_AT] + bytes(4) + whole[_CRC_AT + 4 :]
    return (word == _HEALTHY, until_ms) if zlib.crc32(blank) == crc else None


def health_bytes(*, healthy: bool, until_ms: int, written_ms: int) -> bytes:
    word = _HEALTHY if healthy else _UNHEALTHY
    body = bytearray(_HEALTH.pack(_HEALTH_MAGIC, 1, 0, word, 0, until_ms, written_ms))
    _WORD.pack_into(body, _CRC_AT, zlib.crc32(body))
    return bytes(body)
