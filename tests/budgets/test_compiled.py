"""The compiled policy: laid out as native/headgate.h says, and found again in full."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import replace
from struct import pack_into, unpack_from
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.budgets.compiled import (
    BY_HEALTH,
    EXPIRES,
    OFF,
    SECTIONS,
    UNKNOWN_BITES,
    compile_policy,
    read_compiled,
)
from headgate.budgets.model import budget_key, hg_hash
from headgate.budgets.parse import parse_policy
from headgate.budgets.policy import Budget, Condition, Mode, Policy, budget_rule
from headgate.errors import InvalidSettings
from tests.budgets.policies import policies

FORMATS = {
    "budgets": "<Q2I11IBBHq", "rules": "<3I4HI", "conditions": "<I", "eaches": "<I",
    "pairs": "<Q6I", "slots": "<2I", "candidates": "<I", "always": "<I", "keys": "<Q4I",
    "masks": "<2I", "exempt": "<2I",
}  # fmt: skip
SIZES = {"budgets": 72, "rules": 24, "pairs": 32, "slots": 8, "keys": 24, "masks": 8, "exempt": 8}


def section(whole: bytes, name: str) -> list[tuple[int, ...]]:
    offset, count = unpack_from("<2I", whole, 40 + 8 * SECTIONS.index(name))
    size = SIZES.get(name, 4)
    return [unpack_from(FORMATS[name], whole, offset + at * size) for at in range(count)]


def numbers(whole: bytes, name: str) -> list[int]:
    return [number for (number,) in section(whole, name)]


def strings(whole: bytes) -> bytes:
    offset, count = unpack_from("<2I", whole, 40 + 8 * SECTIONS.index("strings"))
    return whole[offset : offset + count]


def compiled(*budgets: dict[str, Any], version: int = 1, **policy: Any) -> bytes:
    named = [{"name": f"b{at}", **budget} for at, budget in enumerate(budgets)]
    return compile_policy(parse_policy({"policy": policy, "budgets": named}), version)


def test_an_empty_policy_is_a_head_and_the_servers_keys() -> None:
    """R101."""
    whole = compiled(version=7)
    magic, format_, crc, length, version, flags, keys = unpack_from("<8sIIQQII", whole)
    assert (magic, format_, length, version) == (b"HGPOLICY", 2, len(whole), 7)
    assert (flags, keys) == (0, 0)
    assert crc == zlib.crc32(whole[:12] + bytes(4) + whole[16:])
    names = b"usernamedatabaseapplication_nameremote_addressqueryfingerprint"
    assert strings(whole) == names
    assert [key[0] for key in section(whole, "keys")][:2] == [
        hg_hash(0, b"username"),
        hg_hash(0, b"database"),
    ]
    assert {len(section(whole, name)) for name in FORMATS if name != "keys"} == {0}
    assert len(whole) == 152 + 6 * 24 + len(names) + -len(names) % 8


def test_sections_follow_each_other_and_are_padded_with_zeroes() -> None:
    whole = compiled({"rules": [{"match": {"username": "x"}}]})
    at = 152
    for index, name in enumerate(SECTIONS):
        offset, count = unpack_from("<2I", whole, 40 + 8 * index)
        size = count * SIZES.get(name, 1 if name == "strings" else 4)
        assert offset == at
        at += size + -size % 8
        assert not any(whole[offset + size : at])
    assert at == len(whole)


def test_a_budget_is_laid_out_as_the_header_says() -> None:
    whole = compiled(
        {
            "mode": "enforce", "rate": 20, "capacity": 200, "burst": 0, "concurrency": 10,
            "warning_threshold": 80, "when": "unhealthy", "in_transaction": "block", "epoch": 5,
            "max_delay_s": 2, "penalty_s": 0.1, "max_delayed": 4, "expires_at": 1000,
        },
        {"max_workers": 3},
    )  # fmt: skip
    assert section(whole, "budgets") == [
        (
            budget_key("b0"), 0, 2, 1 | 2 | 4 | 8 | 32, 20_000, 200_000, 0, 10_000, 0, 80_000,
            5, 2000, 100, 4, 2, 3, 0, 1_000_000,
        ),
        (budget_key("b1"), 2, 2, 16, 0, 0, 0, 0, 3, 0, 0, 0, 50, 100, 1, 0, 0, 0),
    ]  # fmt: skip


def test_the_flags_say_what_the_policy_needs() -> None:
    """R147: the file with the health is looked at only if some budget asks for it."""

    def flags(*budgets: dict[str, Any], **policy: Any) -> int:
        return read_compiled(compiled(*budgets, **policy)).flags

    assert flags({"when": "unhealthy"}) == BY_HEALTH
    assert flags({"expires_at": 5}) == EXPIRES
    assert flags({"mode": "off", "when": "unhealthy", "expires_at": 5}) == 0
    assert flags(health_unknown="unhealthy") == UNKNOWN_BITES
    off = read_compiled(compile_policy(Policy(), 3, off=True))
    assert off.off and off.flags == OFF


def test_pairs_stand_in_the_order_of_first_use() -> None:
    """Conditions of a rule in the order of their keys, however the document has them."""
    whole = compiled(
        {
            "rules": [
                {"match": {"tag.b": "1", "username": "x"}},
                {"match": {"tag.a": "1", "username": "x"}},
                {"each": ["tag.c", "database"]},
                {},
            ]
        }
    )
    keys = [name for *_, name in _named(whole, "keys", 1)]
    assert keys[6:] == [b"a", b"b", b"c"]
    assert [(key, value) for _, key, _, value in _pairs(whole)] == [(0, b"x"), (7, b"1"), (6, b"1")]
    assert numbers(whole, "conditions") == [0, 1, 0, 2]
    assert numbers(whole, "eaches") == [1, 8]
    assert section(whole, "rules") == [
        (0, 0, 0, 2, 0, 0, 0, 0),
        (0, 2, 0, 2, 0, 0, 0, 0),
        (0, 4, 0, 0, 2, 0, 0, 0),
        (0, 4, 2, 0, 0, 0, 0, 0),
    ]
    assert numbers(whole, "always") == [3]
    assert unpack_from("<I", whole, 36) == (0b11,)


def _named(whole: bytes, name: str, at: int) -> list[tuple[Any, ...]]:
    text = strings(whole)
    records = section(whole, name)
    return [(*one, text[one[at] : one[at] + one[at + 1]]) for one in records]


def _pairs(whole: bytes) -> list[tuple[int, int, int, bytes]]:
    """Hash, key, prefix, value."""
    return [(one[0], one[1], one[2], one[-1]) for one in _named(whole, "pairs", 3)]


def test_a_conjunction_is_found_under_its_rarest_pair_alone() -> None:
    """R116, R117: the fewest rules name it; of several, the first in the order of the keys."""
    whole = compiled(
        {
            "rules": [
                {"match": {"username": "web", "tag.a": "1"}},
                {"match": {"username": "web", "tag.a": "2"}},
                {"match": {"username": "etl", "tag.b": "1"}},
                {"match": {"username": "web"}},
                {"each": ["tag.b", "username"]},
            ]
        }
    )
    found = [
        numbers(whole, "candidates")[first : first + count]
        for *_, first, count in section(whole, "pairs")
    ]
    values = [(key, value) for _, key, _, value in _pairs(whole)]
    assert dict(zip(values, found, strict=True)) == {
        (0, b"web"): [3],
        (6, b"1"): [0],
        (6, b"2"): [1],
        (0, b"etl"): [2],
        (7, b"1"): [],
    }
    by_key = [(first, count) for *_, first, count in section(whole, "keys")]
    assert by_key[0] == (4, 1)  # under username, its first each-key
    assert numbers(whole, "candidates")[4] == 4
    assert by_key[1:] == [(5, 0)] * 7


def test_prefixes_are_listed_longest_first_and_ipv4_before_ipv6() -> None:
    """R117: one probe for a mask length in use."""
    addresses = ["10.0.0.0/8", "2001:db8::/32", "10.1.2.3", "::/0", "11.0.0.0/8"]
    whole = compiled({"rules": [{"match": {"remote_address": one}} for one in addresses]})
    assert section(whole, "masks") == [(4, 32), (4, 8), (6, 32), (6, 0)]
    assert [prefix for *_, prefix, _ in _pairs(whole)] == [1032, 1568, 1056, 1536, 1032]
    assert [rule[5] for rule in section(whole, "rules")] == [9, 33, 33, 1, 9]
    assert _pairs(whole)[0][3] == b"\x0a\0\0\0\x08"


@pytest.mark.parametrize(("pairs", "slots"), [(0, 0), (1, 8), (4, 8), (5, 16), (9, 32)])
def test_slots_are_at_least_twice_the_pairs(pairs: int, slots: int) -> None:
    whole = compiled({"rules": [{"match": {"username": f"u{n}"}} for n in range(pairs)]})
    assert len(section(whole, "slots")) == slots


@given(policies(), st.integers(0, 2**64 - 1))
def test_what_is_compiled_reads_back(policy: Policy, version: int) -> None:
    whole = compile_policy(policy, version)
    read = read_compiled(whole)
    kept = tuple(replace(budget, comment="") for budget in policy.kept)
    assert read.policy == replace(policy, budgets=kept)
    assert (read.version, read.length, len(whole) % 8) == (version, len(whole), 0)
    assert read.rules == sum(len(budget.rules) for budget in kept)
    assert compile_policy(read.policy, version) == whole
    _find_every_pair(whole)


def _find_every_pair(whole: bytes) -> None:
    slots, pairs = section(whole, "slots"), section(whole, "pairs")
    for number, (hashed, *_) in enumerate(pairs):
        at = hashed & (len(slots) - 1)
        while slots[at] != (hashed >> 32, number + 1):
            assert slots[at][1], "a free slot ends the search"
            at = (at + 1) & (len(slots) - 1)


def test_a_thousand_pairs_are_all_found_from_their_hashes() -> None:
    """R116."""
    _find_every_pair(compiled({"rules": [{"match": {"tag.t": f"t{n}"}} for n in range(1000)]}))


def test_what_is_off_leaves_no_trace() -> None:
    """R122: nor do its tags, by which nobody then has to read a comment."""
    rule = {"match": {"tag.a": "1"}, "each": ["query"]}
    assert compiled({"mode": "off", "rules": [rule]}) == compiled()


# --- what is not a policy --------------------------------------------------------------------


def rejection(whole: bytes) -> str:
    with pytest.raises(InvalidSettings) as rejected:
        read_compiled(whole, "policy.hgp")
    return str(rejected.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda whole: b"", "policy.hgp: is no compiled policy: it does not begin with HGPOLICY"),
        (lambda whole: whole[:100], "policy.hgp: is cut off: 100 bytes"),
        (lambda whole: whole[:-8], "bytes and says"),
        (lambda whole: whole + bytes(8), "it was not written whole"),
        (lambda whole: whole[:8] + b"\1" + whole[9:], "has format 1, this is a Headgate for"),
        (lambda whole: whole[:-20] + b"x" + whole[-19:], "is damaged: its checksum is"),
    ],
)
def test_a_damaged_policy_says_what_is_wrong_with_it(change: Any, told: str) -> None:
    """R132."""
    assert told in rejection(change(compiled({"rules": [{}]})))


@given(st.integers(32, 400), st.binary(min_size=4, max_size=4))
def test_a_policy_that_lies_with_a_right_checksum_is_rejected_or_read(at: int, lie: bytes) -> None:
    """Whatever stands in it, there is no other error."""
    whole = bytearray(compiled({"rules": [{"match": {"username": "x"}, "each": ["database"]}]}))
    pack_into("<4s", whole, at % (len(whole) - 4), lie)
    pack_into("<I", whole, 12, 0)
    pack_into("<I", whole, 12, zlib.crc32(whole))
    with suppress(InvalidSettings):
        read_compiled(bytes(whole))


def test_status_can_show_versions_and_budgets_apart() -> None:
    read = read_compiled(compiled({"rate": 5}, {"mode": "off"}, {"mode": "enforce"}, version=9))
    assert [(b.name, b.mode, b.rate_mpct) for b in read.policy.budgets] == [
        ("b0", Mode.WARN, 5_000),
        ("b2", Mode.ENFORCE, None),
    ]
    assert (read.version, read.pairs, read.keys) == (9, 0, 6)
    assert read.checksum == f"{read.crc:08x}"


def test_each_of_many_values_is_compiled() -> None:
    """R129; what ten thousand cost, bench/bounds.py says."""
    rules = tuple(budget_rule([Condition("tag.t", b"tenant-%d" % n)]) for n in range(1_000))
    whole = compile_policy(Policy((Budget("b", rules=rules),)), 1)
    assert len(section(whole, "pairs")) == 1_000
