"""A policy as one flat piece of bytes, which every process of a server maps and reads in place.

    Policy ──compile_policy──► bytes ──file──► native/ (hg_policy_check, hg_match)
                                     ├──encoded──► pg_headgate.policy (hg_policy_decode)
                                     └──read_compiled──► status, differences

The layout is native/headgate.h's. What that leaves open is fixed here: sections in the order of the
header, each padded to 8; strings without sharing; an empty run of conditions, eaches or candidates
begins where the next one does.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from operator import attrgetter
from struct import Struct, error
from typing import Any, NamedTuple

from headgate.budgets.identity import IDENTITY_BYTES, ClientRule, identity_bytes
from headgate.budgets.matching import key_hash
from headgate.budgets.model import budget_key, hg_hash
from headgate.budgets.policy import (
    REMOTE_ADDRESS,
    SYSTEM_KEYS,
    TAG_PREFIX,
    Budget,
    BudgetRule,
    Condition,
    InTransaction,
    Mode,
    Policy,
    UnknownHealth,
    When,
    address_family,
    is_tag,
    tag_name,
)
from headgate.errors import Fault, InvalidSettings

MAGIC = b"HGPOLICY"
FORMAT = 2
MIN_SLOTS = 8
MAX_REASON_BYTES = 200
MAX_PARAMETER_BYTES = 128 * 1024
"""Of a policy in the server parameter: Postgres reads long values in quadratic time."""

OFF, BY_HEALTH, EXPIRES, UNKNOWN_BITES = 1, 2, 4, 8
"""Flags of the policy."""
WHEN_UNHEALTHY, BLOCKS_INSIDE = 1, 2
"""Flags of a budget."""
SECTIONS = (
    "budgets", "rules", "conditions", "eaches", "pairs", "slots", "candidates", "always", "keys",
    "masks", "exempt", "identity", "gates", "strings",
)  # fmt: skip

_HEAD = Struct("<8sIIQQII")
_SECTION = Struct("<II")
_BUDGET = Struct("<Q2I11IBBHq")
_RULE = Struct("<3I3HHI")
_PAIR = Struct("<QII2III")
_SLOT = Struct("<II")
_KEY = Struct("<Q2III")
_MASK = Struct("<II")
_STRING = Struct("<II")
_INDEX = Struct("<I")
_GATE = Struct("<Q2I2I2IqqIIBBHI")
_IDENTITY = Struct(f"<{IDENTITY_BYTES}s")
_GATE_SEED = 5
_ELEMENTS = (
    _BUDGET, _RULE, _INDEX, _INDEX, _PAIR, _SLOT, _INDEX, _INDEX, _KEY, _MASK, _STRING, _IDENTITY,
    _GATE,
)  # fmt: skip
_HEAD_BYTES = _HEAD.size + len(SECTIONS) * _SECTION.size
_CRC_AT = 12

_MODES = {Mode.OFF: 0, Mode.WARN: 1, Mode.ENFORCE: 2}
_LIMITS = (
    "rate_mpct", "capacity_mpcts", "burst_mpcts", "concurrency_mpct", "max_workers", "warning_mpct",
)  # fmt: skip
"""Fields that may be unset: the first is bit 0 of hg_budget.set."""
_AMOUNTS = ("epoch", "max_delay_ms", "penalty_ms", "max_delayed")
_limits_of, _amounts_of = attrgetter(*_LIMITS), attrgetter(*_AMOUNTS)


def compile_policy(policy: Policy, version: int, *, off: bool = False) -> bytes:
    """`off` switches everything off, with the policy still there to look at."""
    budgets = policy.kept
    identity, gates = policy.ruling.identity, _in_order(policy.ruling.gates)
    index = _Index([rule for budget in budgets for rule in budget.rules])
    strings = (
        [budget.name.encode() for budget in budgets],
        [tag_name(key).encode() for key in index.keys],
        [value for _, value in index.pairs],
        [username.encode() for username in policy.exempt_usernames],
        [text for gate in gates for text in _gate_texts(gate)],
    )
    names, key_names, values, exempt, texts = _places(strings)
    sections = (
        _joined(map(_budget_record, budgets, names)),
        _joined(_rule_records(budgets)),
        _indices(chain.from_iterable(index.conditions)),
        _indices(chain.from_iterable(index.eaches)),
        _joined(_pair_records(index, values)),
        _slots(index.hashes),
        _indices(chain(*index.by_pair, *index.by_key)),
        _indices(index.always),
        _joined(_key_records(index, key_names)),
        _joined(_MASK.pack(*mask) for mask in index.masks()),
        _joined(_STRING.pack(*place) for place in exempt),
        b"" if identity is None else identity_bytes(identity),
        _joined(_gate_records(gates, texts)),
        _joined(chain.from_iterable(strings)),
    )
    flags = _flags(policy, off=off)
    return _assembled(sections, version, flags, index.system_keys())


def encoded(compiled: bytes) -> str:
    """As the server parameter pg_headgate.policy takes it: base64 in one line."""
    return b64encode(compiled).decode()


def _flags(policy: Policy, *, off: bool) -> int:
    kept = policy.kept
    flags = OFF if off else 0
    if any(budget.when is When.UNHEALTHY for budget in kept):
        flags |= BY_HEALTH
    if any(budget.expires_at_ms is not None for budget in kept):
        flags |= EXPIRES
    if policy.health_unknown is UnknownHealth.UNHEALTHY:
        flags |= UNKNOWN_BITES
    return flags


def _in_order(gates: Iterable[ClientRule]) -> list[ClientRule]:
    return sorted(gates, key=lambda gate: (_token(gate), gate.rank, gate.from_ms))


def _token(gate: ClientRule) -> int:
    return hg_hash(_GATE_SEED, gate.first_level.encode())


def _gate_texts(gate: ClientRule) -> tuple[bytes, bytes, bytes]:
    reason = gate.reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore").encode()
    return gate.target.encode(), gate.rule.encode()[:MAX_REASON_BYTES], reason


def _gate_records(gates: Iterable[ClientRule], places: list[tuple[int, int]]) -> Iterator[bytes]:
    for at, gate in enumerate(gates):
        texts = chain.from_iterable(places[3 * at : 3 * at + 3])
        spans = gate.from_ms, gate.until_ms, gate.ratio, gate.rank
        yield _GATE.pack(_token(gate), *texts, *spans, gate.kind, gate.levels, 0, 0)


# --- what leads to a rule ----------------------------------------------------------------------


class _Index:
    """Pairs, keys, and the rules that are found by each."""

    def __init__(self, rules: list[BudgetRule]) -> None:
        self._used = {key for rule in rules for key in rule.keys}
        self.keys = (*SYSTEM_KEYS, *sorted(filter(is_tag, self._used)))
        self.key_at = {key: at for at, key in enumerate(self.keys)}
        pair_at: dict[Condition, int] = {}
        for rule in rules:
            for condition in rule.conditions:
                pair_at.setdefault(condition, len(pair_at))
        self.pairs = list(pair_at)
        self.conditions = [[pair_at[one] for one in rule.conditions] for rule in rules]
        self.eaches = [[self.key_at[key] for key in rule.each] for rule in rules]
        self.key_hashes = [key_hash(key) for key in self.keys]
        by_name = dict(zip(self.keys, self.key_hashes, strict=True))
        self.hashes = [hg_hash(by_name[key], value) for key, value in self.pairs]
        self._find_candidates()

    def _find_candidates(self) -> None:
        """A conjunction is found under its rarest pair alone, so it is looked at once."""
        named = [0] * len(self.pairs)
        for pair in chain.from_iterable(self.conditions):
            named[pair] += 1
        self.by_pair: list[list[int]] = [[] for _ in self.pairs]
        self.by_key: list[list[int]] = [[] for _ in self.keys]
        self.always: list[int] = []
        for at, (conditions, eaches) in enumerate(zip(self.conditions, self.eaches, strict=True)):
            if conditions:
                self.by_pair[min(conditions, key=named.__getitem__)].append(at)
            elif eaches:
                self.by_key[eaches[0]].append(at)
            else:
                self.always.append(at)

    def masks(self) -> list[tuple[int, int]]:
        """Each length of prefix in use: IPv4 first, longest first."""
        addresses = (value for key, value in self.pairs if key == REMOTE_ADDRESS)
        used = {(address_family(value), value[-1]) for value in addresses}
        return sorted(used, key=lambda mask: (mask[0], -mask[1]))

    def system_keys(self) -> int:
        return sum(1 << at for at, key in enumerate(SYSTEM_KEYS) if key in self._used)


# --- records -----------------------------------------------------------------------------------


def _places(groups: Iterable[list[bytes]]) -> Iterator[list[tuple[int, int]]]:
    """Offset and length of each string, laid one after the other."""
    offset = 0
    for group in groups:
        lengths = [len(string) for string in group]
        offsets = list(accumulate(lengths, initial=offset))
        offset = offsets.pop()
        yield list(zip(offsets, lengths, strict=True))


def _budget_record(budget: Budget, name: tuple[int, int]) -> bytes:
    limits = _limits_of(budget)
    present = 0
    for bit, limit in enumerate(limits):
        if limit is not None:
            present |= 1 << bit
    flags = (budget.when is When.UNHEALTHY) * WHEN_UNHEALTHY
    flags |= (budget.in_transaction is InTransaction.BLOCK) * BLOCKS_INSIDE
    return _BUDGET.pack(
        budget_key(budget.name),
        *name,
        present,
        *[limit or 0 for limit in limits],
        *_amounts_of(budget),
        _MODES[budget.mode],
        flags,
        0,
        budget.expires_at_ms or 0,
    )


def _rule_records(budgets: Iterable[Budget]) -> Iterator[bytes]:
    condition = each = 0
    owned = ((at, rule) for at, budget in enumerate(budgets) for rule in budget.rules)
    for budget, rule in owned:
        bits = rule.prefix_bits
        prefix = 0 if bits is None else bits + 1
        sizes = len(rule.conditions), len(rule.each)
        yield _RULE.pack(budget, condition, each, *sizes, prefix, 0, 0)
        condition += sizes[0]
        each += sizes[1]


def _pair_records(index: _Index, places: list[tuple[int, int]]) -> Iterator[bytes]:
    first = 0
    rows = zip(index.pairs, index.hashes, index.by_pair, places, strict=True)
    for (key, value), hashed, rules, place in rows:
        prefix = address_family(value) * 256 + value[-1] if key == REMOTE_ADDRESS else 0
        yield _PAIR.pack(hashed, index.key_at[key], prefix, *place, first, len(rules))
        first += len(rules)


def _key_records(index: _Index, places: list[tuple[int, int]]) -> Iterator[bytes]:
    first = sum(map(len, index.by_pair))
    for hashed, rules, place in zip(index.key_hashes, index.by_key, places, strict=True):
        yield _KEY.pack(hashed, *place, first, len(rules))
        first += len(rules)


def _slots(hashes: list[int]) -> bytes:
    """Open addressing: the look-up goes on from hash & (slots - 1) to the first free slot."""
    if not hashes:
        return b""
    count = MIN_SLOTS
    while count < 2 * len(hashes):
        count *= 2
    slots, mask = [0] * count, count - 1
    for pair, hashed in enumerate(hashes):
        at = hashed & mask
        while slots[at]:
            at = (at + 1) & mask
        slots[at] = (pair + 1) << 32 | hashed >> 32
    return Struct(f"<{count}Q").pack(*slots)


def _joined(records: Iterable[bytes]) -> bytes:
    return b"".join(records)


def _indices(indices: Iterable[int]) -> bytes:
    given = list(indices)
    return Struct(f"<{len(given)}I").pack(*given)


def _assembled(sections: tuple[bytes, ...], version: int, flags: int, system_keys: int) -> bytes:
    table, body, offset = [], [], _HEAD_BYTES
    sizes = (*(element.size for element in _ELEMENTS), 1)
    for content, size in zip(sections, sizes, strict=True):
        table.append(_SECTION.pack(offset, len(content) // size))
        padded = content + bytes(-len(content) % 8)
        body.append(padded)
        offset += len(padded)
    head = _HEAD.pack(MAGIC, FORMAT, 0, offset, version, flags, system_keys)
    whole = b"".join((head, *table, *body))  # With zeroes where the checksum goes.
    crc = zlib.crc32(whole).to_bytes(4, "little")
    return whole[:_CRC_AT] + crc + whole[_CRC_AT + 4 :]


# --- reading one -------------------------------------------------------------------------------


class CompiledPolicy(NamedTuple):
    """What a compiled policy says of itself, and the policy that it was made of."""

    version: int
    crc: int
    flags: int
    length: int
    policy: Policy
    """Without comments, and without budgets that were off."""
    rules: int
    pairs: int
    keys: int
    """Those of the server, which are always there, and tags."""

    @property
    def off(self) -> bool:
        return bool(self.flags & OFF)

    @property
    def checksum(self) -> str:
        return f"{self.crc:08x}"


def read_compiled(whole: bytes, source: str = "") -> CompiledPolicy:
    """InvalidSettings, with what is wrong, if these are not the bytes of a whole policy."""
    if fault := _unsound(whole):
        raise InvalidSettings([Fault("", fault)], source)
    _, _, crc, length, version, flags, _ = _HEAD.unpack_from(whole)
    try:
        read = _PolicyReader(whole)
        policy = read.policy(flags)
    except (error, IndexError, KeyError, ValueError):
        fault = "is no compiled policy: its checksum is right, but its contents are inconsistent"
        raise InvalidSettings([Fault("", fault)], source) from None
    counts = (read.count(name) for name in ("rules", "pairs", "keys"))
    return CompiledPolicy(version, crc, flags, length, policy, *counts)


def _unsound(whole: bytes) -> str:
    if whole[: len(MAGIC)] != MAGIC:
        return f"is no compiled policy: it does not begin with {MAGIC.decode()}"
    if len(whole) < _HEAD_BYTES:
        return f"is cut off: {len(whole)} bytes, and the head alone has {_HEAD_BYTES}"
    _, format_, crc, length, *_ = _HEAD.unpack_from(whole)
    if format_ != FORMAT:
        return (
            f"has format {format_}, this is a Headgate for format {FORMAT}: publish the policy "
            "again with the version that the server runs"
        )
    if length != len(whole):
        return f"has {len(whole)} bytes and says {length}: it was not written whole"
    actual = zlib.crc32(whole[:_CRC_AT] + bytes(4) + whole[_CRC_AT + 4 :])
    if actual != crc:
        return f"is damaged: its checksum is {actual:08x} and should be {crc:08x}"
    return ""


def gate_rules(whole: bytes) -> list[str]:
    """Ids of the rules on clients, as they lie there."""
    return _PolicyReader(whole).gate_rules()


class _PolicyReader:
    def __init__(self, whole: bytes) -> None:
        self._whole = whole
        table = _SECTION.iter_unpack(whole[_HEAD.size : _HEAD_BYTES])
        self._sections = dict(zip(SECTIONS, table, strict=True))

    def gate_rules(self) -> list[str]:
        return [self._text(*record[3:5]) for record in self._records("gates", _GATE)]

    def count(self, name: str) -> int:
        return int(self._sections[name][1])

    def policy(self, flags: int) -> Policy:
        unknown = UnknownHealth.UNHEALTHY if flags & UNKNOWN_BITES else UnknownHealth.HEALTHY
        exempt = tuple(self._text(*at) for at in self._records("exempt", _STRING))
        return Policy(tuple(self._budgets()), unknown, exempt)

    def _records(self, name: str, element: Struct) -> list[tuple[int, ...]]:
        offset, count = self._sections[name]
        return list(element.iter_unpack(self._slice(offset, count * element.size)))

    def _slice(self, offset: int, length: int) -> bytes:
        if offset + length > len(self._whole):
            raise IndexError("beyond the end")
        return self._whole[offset : offset + length]

    def _text(self, offset: int, length: int) -> str:
        return self._value(offset, length).decode()

    def _value(self, offset: int, length: int) -> bytes:
        start, count = self._sections["strings"]
        if offset + length > count:
            raise IndexError("beyond the strings")
        return self._slice(start + offset, length)

    def _budgets(self) -> Iterator[Budget]:
        records = self._records("budgets", _BUDGET)
        owned: list[list[BudgetRule]] = [[] for _ in records]
        for budget, rule in self._rules():
            owned[budget].append(rule)
        for record, rules in zip(records, owned, strict=True):
            yield self._budget(record, tuple(rules))

    def _budget(self, record: tuple[int, ...], rules: tuple[BudgetRule, ...]) -> Budget:
        _, offset, length, present, *rest = record
        limits, amounts, (mode, flags, _, expires_at_ms) = rest[:6], rest[6:10], rest[10:]
        fields: dict[str, Any] = {
            field: limit if present >> bit & 1 else None
            for bit, (field, limit) in enumerate(zip(_LIMITS, limits, strict=True))
        }
        fields |= zip(_AMOUNTS, amounts, strict=True)
        return Budget(
            self._text(offset, length),
            {code: known for known, code in _MODES.items()}[mode],
            **fields,
            when=When.UNHEALTHY if flags & WHEN_UNHEALTHY else When.ALWAYS,
            in_transaction=(InTransaction.BLOCK if flags & BLOCKS_INSIDE else InTransaction.CHARGE),
            expires_at_ms=expires_at_ms or None,
            rules=rules,
        )

    def _rules(self) -> Iterator[tuple[int, BudgetRule]]:
        records = self._records("keys", _KEY)
        names = [self._text(offset, length) for _, offset, length, *_ in records]
        system = len(SYSTEM_KEYS)
        keys = [*names[:system], *(f"{TAG_PREFIX}{name}" for name in names[system:])]
        pairs = [
            Condition(keys[key], self._value(offset, length))
            for _, key, _, offset, length, *_ in self._records("pairs", _PAIR)
        ]
        conditions = [pairs[at] for (at,) in self._records("conditions", _INDEX)]
        eaches = [keys[at] for (at,) in self._records("eaches", _INDEX)]
        for budget, first, first_each, count, each_count, *_ in self._records("rules", _RULE):
            matched = tuple(conditions[first : first + count])
            yield budget, BudgetRule(matched, tuple(eaches[first_each : first_each + each_count]))
