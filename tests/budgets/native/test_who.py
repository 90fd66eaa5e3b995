"""Rules on clients in the core decide as rules/matching.py does; signatures are HMAC-SHA256."""

from __future__ import annotations

import ctypes
import hashlib
import hmac
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headgate.base.names import parse_identity
from headgate.budgets.compiled import compile_policy, gate_rules
from headgate.budgets.identity import IdentityTerms, ServerRules, gates_of
from headgate.budgets.native import library
from headgate.budgets.native.debits import policy_fault
from headgate.budgets.policy import Policy
from headgate.rules.matching import EVERYONE, Kind, Rule, RuleBook

NO_GATE = 2**32 - 1
LEVELS = st.sampled_from(["a", "b", "c", "d"])
TARGETS = st.lists(LEVELS, min_size=1, max_size=3, unique=True).map(":".join)
TIMES = st.integers(0, 40)


@st.composite
def rules(draw: st.DrawFn) -> list[Rule]:
    kinds = st.sampled_from([Kind.HOLD, Kind.RATIO, Kind.EXEMPT])
    found = []
    for number in range(draw(st.integers(0, 8))):
        kind, begin = draw(kinds), draw(TIMES)
        found.append(
            Rule(
                f"r{number}",
                draw(TARGETS | st.just(EVERYONE)),
                kind=kind,
                ratio=draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])) if kind is Kind.RATIO else 0.0,
                expires_at=draw(TIMES) + 1 if draw(st.booleans()) else float("inf"),
                windows=draw(st.none() | st.just(((begin, begin + 5), (begin + 10, begin + 12)))),
                metrics=draw(st.sampled_from([(), ("lag",)])) if kind is Kind.EXEMPT else (),
                database=draw(st.sampled_from(["", "main", "other"])),
            )
        )
    return found


def _gate_of(compiled: bytes, name: bytes, wall_ms: int, *, by_tag: bool) -> int:
    core = library.load()
    core.hg_gate_of.restype = ctypes.c_uint32
    core.hg_gate_of.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_bool, ctypes.c_int64,
    ]  # fmt: skip
    aligned = (ctypes.c_uint64 * (len(compiled) // 8)).from_buffer_copy(compiled)
    return int(core.hg_gate_of(aligned, name, len(name), by_tag, wall_ms))


@given(rules(), TARGETS, TIMES, TIMES, st.booleans())
def test_the_core_finds_the_rule_that_the_book_does(
    given_rules: list[Rule], name: str, published_at: int, later_s: int, by_tag: bool
) -> None:
    """Now and later: what ends and begins meanwhile needs no publication. A rule on all is for
    clients that their statements name."""
    decide = [rule for rule in given_rules if by_tag or rule.target != EVERYONE]
    book, decided = RuleBook(given_rules), RuleBook(decide)
    gates = gates_of(book, "main", published_at)
    compiled = compile_policy(Policy(ruling=ServerRules(IdentityTerms(), gates)), 1)
    assert policy_fault(compiled) is None
    wall_s = published_at + later_s
    applied = decided.applied(parse_identity(name), "main", wall_s)
    partly = applied.exempt is not None and applied.exempt.metrics
    found = _gate_of(compiled, name.encode(), wall_s * 1000, by_tag=by_tag)
    # In the order in which they are compiled: by token, then by rank.
    in_order = gate_rules(compiled)
    rule_id = None if found == NO_GATE else in_order[found]
    expected = applied.reject or (None if partly else applied.exempt)
    assert rule_id == (None if expected is None else expected.id)


def test_a_full_exemption_behind_a_partial_one_exempts_no_statement() -> None:
    """As for checks: the narrower rule, of two on one target the stricter, says what is exempt."""
    full, partly = Rule("full", "etl", kind=Kind.EXEMPT), Rule("lag", "etl:b", kind=Kind.EXEMPT)
    partly = replace(partly, metrics=("lag",))
    hold = Rule("hold", "all", kind=Kind.HOLD)
    assert _decides([full, hold], "etl:b") == "full"
    assert _decides([full, partly, hold], "etl:b") == "hold"
    assert _decides([full, partly, hold], "etl:c") == "full"
    assert _decides([full, replace(partly, target="etl")], "etl:b") is None
    assert gates_of(RuleBook([partly]), "main", 0) == (), "alone, it does nothing to statements"


def _decides(given_rules: list[Rule], name: str) -> str | None:
    gates = gates_of(RuleBook(given_rules), "main", 0)
    compiled = compile_policy(Policy(ruling=ServerRules(IdentityTerms(), gates)), 1)
    found = _gate_of(compiled, name.encode(), 0, by_tag=True)
    return None if found == NO_GATE else gate_rules(compiled)[found]


@given(st.binary(max_size=100), st.binary(max_size=300))
def test_hmac_sha256_is_that_of_the_standard_library(key: bytes, message: bytes) -> None:
    core = library.load()
    core.hg_hmac_sha256.restype = None
    core.hg_hmac_sha256.argtypes = [
        ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p,
    ]  # fmt: skip
    digest = ctypes.create_string_buffer(32)
    core.hg_hmac_sha256(key, len(key), message, len(message), digest)
    assert digest.raw == hmac.new(key, message, hashlib.sha256).digest()
