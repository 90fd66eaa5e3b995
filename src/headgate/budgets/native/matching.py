"""The matching half of native/headgate.h, with the values of traffic/.

    bytes ──CompiledRules──► session(StatementIdentity) ──match(Statement, Now)──► Matched

For what is measured and compared; a server calls the same functions from its own process.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any

from headgate.budgets.ask import Dialect, Match, Statement, StatementIdentity
from headgate.budgets.matching import Matched, Now, known_address
from headgate.budgets.native.layout import LABEL_BYTES, HgMatch, HgMatches
from headgate.budgets.native.library import load
from headgate.budgets.tags import MAX_TAGS, MAX_TEXT_BYTES, ParsedTags
from headgate.errors import Fault, InvalidSettings

_MAX_SESSION_PRESENT = 132
_SESSION_KEYS = 4


class _Who(Structure):
    _fields_ = [
        ("username", c_char_p),
        ("database", c_char_p),
        ("application_name", c_char_p),
        ("family", c_uint8),
        ("address", c_uint8 * 16),
    ]


class _Session(Structure):
    _fields_ = [
        ("present", c_uint32 * _MAX_SESSION_PRESENT),
        ("presents", c_uint32),
        ("addresses", c_uint32),
        ("probes", c_uint32),
        ("exempt", c_bool),
        ("may_match", c_bool),
        ("needs_tags", c_bool),
        ("needs_query", c_bool),
        ("needs_fingerprint", c_bool),
        ("each_tags", c_bool),
        ("each_hash", c_uint64 * _SESSION_KEYS),
        ("each_label_length", c_uint8 * _SESSION_KEYS),
        ("each_label", (c_char * LABEL_BYTES) * _SESSION_KEYS),
    ]


class _Tag(Structure):
    _fields_ = [
        ("key_offset", c_uint16),
        ("key_length", c_uint16),
        ("value_offset", c_uint16),
        ("value_length", c_uint16),
    ]


class _Tags(Structure):
    _fields_ = [
        ("count", c_uint32),
        ("ignored", c_uint32),
        ("duplicates", c_uint32),
        ("tags", _Tag * MAX_TAGS),
        ("used", c_uint16),
        ("text", c_char * MAX_TEXT_BYTES),
    ]


class _Statement(Structure):
    _fields_ = [
        ("text", c_char_p),
        ("length", c_size_t),
        ("dialect", c_int),
        ("query_id", c_uint64),
        ("fingerprinted", c_bool),
        ("cut", c_bool),
        ("fingerprint", c_uint64),
    ]


_TEXT: list[Any] = [c_char_p, c_size_t]
_ROOM: list[Any] = [c_void_p, c_size_t]
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "hg_hash": (c_uint64, [c_uint64, *_TEXT]),
    "hg_crc32": (c_uint32, [c_uint32, *_TEXT]),
    "hg_policy_check": (c_char_p, _ROOM),
    "hg_session_resolve": (None, [c_void_p, POINTER(_Who), POINTER(_Session)]),
    "hg_tags_read": (None, [*_TEXT, c_int, POINTER(_Tags)]),
    "hg_fingerprint": (c_uint64, [*_TEXT, c_int]),
    "hg_match": (
        None,
        [
            c_void_p,
            POINTER(_Session),
            POINTER(_Statement),
            c_int64,
            c_int,
            POINTER(_Tags),
            POINTER(HgMatches),
        ],
    ),
}


@cache
def _core() -> ctypes.CDLL:
    """With its prototypes: without them ctypes would cut 64 bits down to an int."""
    core = load()
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    return core


# --- bytes and text ----------------------------------------------------------------------------


def hashed(seed: int, data: bytes) -> int:
    """hg_hash."""
    return int(_core().hg_hash(seed, data, len(data)))


def checksum(data: bytes, crc: int = 0) -> int:
    """hg_crc32: zlib's, on from `crc`."""
    return int(_core().hg_crc32(crc, data, len(data)))


def fingerprint(text: bytes, dialect: Dialect = Dialect.POSTGRES) -> int:
    return int(_core().hg_fingerprint(text, len(text), dialect))


def read_tags(text: bytes, dialect: Dialect = Dialect.POSTGRES) -> ParsedTags:
    tags = _Tags()
    _core().hg_tags_read(text, len(text), dialect, byref(tags))
    held = ctypes.string_at(ctypes.addressof(tags) + _Tags.text.offset, tags.used)
    pairs = dict(_pair(held, tag) for tag in tags.tags[: tags.count])
    return ParsedTags(pairs, tags.ignored, tags.duplicates)


def _pair(held: bytes, tag: _Tag) -> tuple[bytes, bytes]:
    key = held[tag.key_offset : tag.key_offset + tag.key_length]
    return key, held[tag.value_offset : tag.value_offset + tag.value_length]


# --- policies ----------------------------------------------------------------------------------


def policy_fault(compiled: bytes) -> str | None:
    """hg_policy_check: None if the bytes are a sound policy, else what is wrong with them."""
    return _fault_of(_aligned(compiled), len(compiled))


def _room(length: int) -> ctypes.Array[c_uint64]:
    """Aligned to 8, as a policy must be."""
    return (c_uint64 * (length // 8 + 1))()


def _aligned(data: bytes) -> ctypes.Array[c_uint64]:
    room = _room(len(data))
    ctypes.memmove(room, data, len(data))
    return room


def _fault_of(policy: ctypes.Array[c_uint64], length: int) -> str | None:
    fault = _core().hg_policy_check(policy, length)
    return None if fault is None else fault.decode()


class CompiledRules:
    """A sound policy in memory of its own. InvalidSettings if it is not sound."""

    def __init__(self, compiled: bytes) -> None:
        self.bytes = _aligned(compiled)
        fault = _fault_of(self.bytes, len(compiled))
        if fault is not None:
            raise InvalidSettings([Fault("", fault)])

    def session(self, who: StatementIdentity) -> ClientMatcher:
        return ClientMatcher(self, who)

    def match(self, who: StatementIdentity, statement: Statement, now: Now) -> Matched:
        return self.session(who).match(statement, now)


class ClientMatcher:
    """What one client's own pairs resolve to; good for any number of its statements."""

    def __init__(self, rules: CompiledRules, who: StatementIdentity) -> None:
        self._rules = rules
        self._resolved = _Session()
        self._tags = _Tags()
        given = _who(who)
        _core().hg_session_resolve(rules.bytes, byref(given), byref(self._resolved))

    @property
    def exempt(self) -> bool:
        return bool(self._resolved.exempt)

    @property
    def may_match(self) -> bool:
        return bool(self._resolved.may_match)

    @property
    def needs_tags(self) -> bool:
        return bool(self._resolved.needs_tags)

    def match(self, statement: Statement, now: Now) -> Matched:
        matches = self.matches(statement, now)
        at = tuple(map(_match, matches.at[: matches.count]))
        return Matched(
            at, matches.left_out, matches.ignored_tags, matches.duplicate_tags, matches.probes
        )

    def matches(self, statement: Statement, now: Now) -> HgMatches:
        """As the deciding half takes them."""
        matches = HgMatches()
        given = _statement(statement)
        healthy = -1 if now.healthy is None else int(now.healthy)
        _core().hg_match(
            self._rules.bytes,
            byref(self._resolved),
            byref(given),
            now.wall_ms,
            healthy,
            byref(self._tags),
            byref(matches),
        )
        return matches


def _who(who: StatementIdentity) -> _Who:
    names = (who.username, who.database, who.application_name)
    encoded = (None if n is None else n.encode("utf-8", "surrogateescape") for n in names)
    given = _Who(*encoded)
    if (address := known_address(who.address)) is not None:
        given.family = address.version
        ctypes.memmove(given.address, address.packed, len(address.packed))
    return given


def _statement(statement: Statement) -> _Statement:
    return _Statement(
        statement.text,
        len(statement.text),
        statement.dialect,
        statement.query_id,
        statement.fingerprint is not None,
        statement.cut,
        statement.fingerprint or 0,
    )


def _match(one: HgMatch) -> Match:
    return Match(one.budget, one.rule, one.bucket, bytes(one.label[: one.label_length]))
