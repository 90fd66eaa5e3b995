"""Match statements and debit budgets in a region that others decide by.

mmap ──RegionDebits──► hg_match, hg_take, hg_settle

Without a seat, which belong to the server's processes: it goes by a copy of the policy in force,
made again when that is another one, and checked. Sizes and places are a copy as well, made when the
memory was mapped (hg_region_pin): what the server's user writes there later moves no write of ours.
A server that restarts after a crash makes another region, in another memory: the old one stays as
it was until it is unmapped, and what is charged there counts for nobody.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
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
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from headgate.budgets.bucket import cpu_ns
from headgate.budgets.matching import Matched, Now, known_address
from headgate.budgets.model import (
    Dialect,
    Limit,
    Match,
    Statement,
    StatementAnswer,
    StatementCheck,
    StatementIdentity,
    StatementVerdict,
)
from headgate.budgets.native.layout import (
    LABEL_BYTES,
    REGION_MAGIC,
    HgAnswer,
    HgAsk,
    HgBudget,
    HgHolding,
    HgMatch,
    HgMatches,
    HgPolicyHead,
    HgRegion,
)
from headgate.budgets.native.ledger import core
from headgate.budgets.native.library import load
from headgate.budgets.native.region import RegionView
from headgate.budgets.sql_text import MAX_TAGS, MAX_TEXT_BYTES, ParsedTags
from headgate.errors import Fault, InvalidSettings, MeterFailed

_WAYS = 16
_KEY = Struct(f"<Q{ctypes.sizeof(HgBudget) - 8}x")
_POLICY_OFF = 1
_PROTOTYPES: dict[str, list[Any]] = {
    "hg_count_block": [
        c_void_p,
        c_void_p,
        POINTER(HgMatches),
        POINTER(HgAnswer),
        c_bool,
        c_int64,
    ],
    "hg_process_gone": [c_void_p, c_uint32],
    "hg_region_unpin": [c_void_p],
}


@cache
def _core() -> ctypes.CDLL:
    library = core()
    for name, arguments in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = None, arguments
    library.hg_region_pin.restype = c_char_p
    library.hg_region_pin.argtypes = [c_void_p, c_size_t]
    return library


@dataclass(frozen=True, slots=True)
class _Book:
    """A copy of the policy in force."""

    version: int = 0
    crc: int = 0
    policy: Any = None
    """The bytes, where C can read them."""
    places: dict[int, int] = field(default_factory=dict)
    """Of budgets, by key."""


class Charged(NamedTuple):
    answer: StatementAnswer
    debt_ns: int | None
    """CPU, before it was charged; None: the budget has no bucket."""
    cpus_milli: int


class RegionDebits:
    """One thread's."""

    def __init__(self, memory: mmap.mmap) -> None:
        """`memory` is a region, mapped to be written."""
        self._memory = memory
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        why = _core().hg_region_pin(self._address, len(memory))
        if why is not None:
            raise MeterFailed(f"this memory is no region that could be charged: {why.decode()}")
        weakref.finalize(self, _core().hg_region_unpin, self._address)
        self._view = RegionView(memoryview(memory))
        self._head = HgRegion.from_buffer(memory)
        self._book = _Book()
        self._free_locks_of_the_dead()

    @property
    def is_on(self) -> bool:
        """Whether anybody decides anything there."""
        return bool(self._head.enabled) and self._head.magic == REGION_MAGIC

    def debit(
        self, budget_key: int, ask: StatementCheck, *, only_look: bool = False
    ) -> Charged | None:
        """None: the policy in force has no such budget."""
        book = self._current()
        place = book.places.get(budget_key)
        if place is None or not self.is_on:
            return None
        matches, answer, holding = _own_bucket(place, budget_key), HgAnswer(), HgHolding()
        question = (self._address, book.policy, byref(matches), byref(_words(ask)), byref(answer))
        if only_look:
            _core().hg_check(*question)
        else:
            _core().hg_take(*question, byref(holding))
        told = _answer(answer)
        charged = Charged(told, self._debt_ns(told, holding, ask), int(self._head.cpus_milli))
        if not only_look:
            self._close(book, matches, answer, holding, ask)
        return charged

    def _close(
        self,
        book: _Book,
        matches: HgMatches,
        answer: HgAnswer,
        holding: HgHolding,
        ask: StatementCheck,
    ) -> None:
        """A declared cost is the cost: settled at once, which gives the place back."""
        if answer.verdict in (StatementVerdict.RUN, StatementVerdict.WARN):
            estimate_ns = holding.estimate_ns
            _core().hg_settle(self._address, byref(holding), estimate_ns, False, ask.now_ns)
        else:
            question = (self._address, book.policy, byref(matches), byref(answer))
            _core().hg_count_block(*question, False, ask.wall_ms)

    def _debt_ns(
        self, answer: StatementAnswer, holding: HgHolding, ask: StatementCheck
    ) -> int | None:
        if answer.decided_by is Limit.BUCKET:
            return answer.used
        held = holding.at[0]
        if not holding.count or not held.charged:
            return None
        before_ns = max(0, held.after_ns - held.charged_ns - ask.now_ns)
        return cpu_ns(before_ns, held.rate_mpct, self._head.cpus_milli)

    def _current(self) -> _Book:
        head, book = self._head, self._book
        if (head.version, head.crc) != (book.version, book.crc):
            self._book = book = _copied(self._view.policy(), (head.version, head.crc))
        return book

    def _free_locks_of_the_dead(self) -> None:
        """One like us may have been killed while it held one; the server's own are the server's
        to free, and to free one again does nothing."""
        places = self._view.places
        locks = (c_uint32 * (places.sizes.buckets // _WAYS)).from_buffer(
            self._memory, places.bucket_locks_at
        )
        for pid in {int(pid) for pid in locks if pid}:
            if pid != os.getpid() and not Path(f"/proc/{pid}").exists():
                _core().hg_process_gone(self._address, pid)


def _copied(policy: bytes | None, named: tuple[int, int]) -> _Book:
    """`named`: version and checksum by which the region calls it."""
    if policy is None:
        return _Book()
    if policy_fault(policy) is not None:
        return _Book(*named)  # Not looked at again until it is another one.
    head = HgPolicyHead.from_buffer_copy(policy)
    if head.flags & _POLICY_OFF:
        return _Book(head.version, head.crc)
    at, count = head.budgets.offset, head.budgets.count
    keys = _KEY.iter_unpack(policy[at : at + count * _KEY.size])
    return _Book(
        version=head.version,
        crc=head.crc,
        policy=ctypes.create_string_buffer(policy, len(policy)),
        places={key: place for place, (key,) in enumerate(keys)},
    )


def _own_bucket(place: int, key: int) -> HgMatches:
    matches = HgMatches(count=1)
    matches.at[0].budget, matches.at[0].bucket = place, key
    return matches


def _words(ask: StatementCheck) -> HgAsk:
    return HgAsk(
        now_ns=ask.now_ns,
        wall_ms=ask.wall_ms,
        plan_cost=ask.plan_cost,
        cost_ns=ask.cost_ns,
        p90_ns=ask.p90_ns,
        workers=ask.workers,
        flags=int(ask.flags),
    )


def _answer(words: HgAnswer) -> StatementAnswer:
    return StatementAnswer(
        verdict=StatementVerdict(words.verdict),
        limits=(Limit(words.limit[0]),),
        thresholds=(Limit(words.threshold[0]),),
        estimate_ns=words.estimate_ns,
        p90_ns=words.p90_ns,
        decided_by=Limit(words.decided_by),
        passed=words.passed,
        used=words.used,
        bound=words.bound,
        retry_ns=words.retry_ns,
    )


# --- matching ------------------------------------------------------------------------------------

# The matching half of native/headgate.h, with the values of traffic/.
#
#     bytes ──CompiledRules──► session(StatementIdentity) ──match(Statement, Now)──► Matched
#
# For what is measured and compared; a server calls the same functions from its own process.

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
        ("tag_keys", c_uint64),
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
_MATCH_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
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
def _match_core() -> ctypes.CDLL:
    """With its prototypes: without them ctypes would cut 64 bits down to an int."""
    core = load()
    for name, (result, arguments) in _MATCH_PROTOTYPES.items():
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    return core


# --- bytes and text ----------------------------------------------------------------------------


def hashed(seed: int, data: bytes) -> int:
    """hg_hash."""
    return int(_match_core().hg_hash(seed, data, len(data)))


def checksum(data: bytes, crc: int = 0) -> int:
    """hg_crc32: zlib's, on from `crc`."""
    return int(_match_core().hg_crc32(crc, data, len(data)))


def fingerprint(text: bytes, dialect: Dialect = Dialect.POSTGRES) -> int:
    return int(_match_core().hg_fingerprint(text, len(text), dialect))


def read_tags(text: bytes, dialect: Dialect = Dialect.POSTGRES) -> ParsedTags:
    tags = _Tags()
    _match_core().hg_tags_read(text, len(text), dialect, byref(tags))
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
    fault = _match_core().hg_policy_check(policy, length)
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
        _match_core().hg_session_resolve(rules.bytes, byref(given), byref(self._resolved))

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
        _match_core().hg_match(
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
