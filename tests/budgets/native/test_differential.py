"""The reference and the core in C, asked the same, step by step: every answer and every bucket.

Where they differ one of them is wrong, and docs say which: headgate.budgets is the specification.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.budgets import model
from headgate.budgets import sql_text as shapes
from headgate.budgets.compiled import compile_policy
from headgate.budgets.matching import Now, RuleSet
from headgate.budgets.model import (
    Dialect,
    Statement,
    StatementCheck,
    StatementFlags,
    StatementIdentity,
)
from headgate.budgets.native import debits as native
from headgate.budgets.parse import parse_policy
from headgate.budgets.policy import Policy
from headgate.budgets.sql_text import read_tags
from tests.budgets.native import generated as made
from tests.budgets.native.engines import Native, Reference, Sizes

DIALECTS = st.sampled_from(Dialect)
START_NS = 10**15
TIMES = float(os.environ.get("HEADGATE_EXAMPLES_TIMES", "1"))
"""To look for longer than every run of the tests can."""


def examples(number: int) -> settings:
    return settings(max_examples=max(int(number * TIMES), 1))


@examples(60)
@given(made.RAW_TEXTS, DIALECTS)
def test_a_text_has_one_fingerprint(text: bytes, dialect: Dialect) -> None:
    assert native.fingerprint(text, dialect) == shapes.fingerprint(text, dialect)


@examples(60)
@given(st.one_of(made.RAW_TEXTS, made.LONG_TAGS), DIALECTS)
def test_a_text_has_the_same_tags(text: bytes, dialect: Dialect) -> None:
    assert native.read_tags(text, dialect) == read_tags(text, dialect)


@examples(30)
@given(st.integers(0, 2**64 - 1), st.binary(max_size=30))
def test_one_hash(seed: int, data: bytes) -> None:
    assert native.hashed(seed, data) == model.hg_hash(seed, data)


@examples(30)
@given(made.documents(), st.integers(1, 2**64 - 1))
def test_whatever_is_compiled_is_sound(document: dict[str, Any], version: int) -> None:
    assert native.policy_fault(compile_policy(parse_policy(document), version)) is None


@examples(30)
@given(made.documents(), made.WHOS, st.lists(made.STATEMENTS, min_size=1, max_size=3), made.NOWS)
def test_the_same_budgets_apply(document: dict[str, Any], who: Any, asked: Any, now: Any) -> None:
    """With the same look-ups, buckets and labels."""
    policy = parse_policy(document)
    rules, session = RuleSet(policy), native.CompiledRules(compile_policy(policy, 1)).session(who)
    for statement in asked:
        assert session.match(statement, now) == rules.match(who, statement, now)


@examples(30)
@given(
    st.lists(made.documents(), min_size=1, max_size=3),
    st.sampled_from([Sizes(), Sizes(8000, 97, 32, 8, 2**64 - 1), Sizes(100, 1)]),
    st.lists(made.OPERATIONS, min_size=4, max_size=30),
)
def test_every_answer_and_every_bucket_is_the_same(
    documents: list[dict[str, Any]], sizes: Sizes, operations: list[made.Operation]
) -> None:
    compare(documents, sizes, operations)


LIMITS: list[dict[str, Any]] = [
    {"rate": 50, "capacity": 100},
    {"rate": 0.5, "capacity": 100},
    {"max_workers": 1},
    {"max_workers": 2, "rate": 10, "capacity": 100, "epoch": 1},
]
OWN = [f"o{at}" for at in range(9)]


@examples(12)
@given(
    st.lists(st.sampled_from(LIMITS), min_size=1, max_size=3),
    st.sampled_from([0, 12345]),
    st.lists(
        st.tuples(
            st.sampled_from(
                ["take"] * 12 + ["settle"] * 4 + ["pause"] * 2 + ["resume", "publish", "charge"]
            ),
            st.integers(0, 32),
            st.integers(1, 200 * made.MS),
        ),
        min_size=20,
        max_size=60,
    ),
)
def test_a_crowded_table_evicts_the_same(
    limits: list[dict[str, Any]], secret: int, steps: list[tuple[str, int, int]]
) -> None:
    """One set of sixteen for twenty-four tenants and nine users' own buckets."""
    documents = [
        {
            "budgets": [
                {"name": "b", "mode": "enforce", "rules": [{"each": ["tag.t"]}], **chosen},
                *(
                    {"name": o, "mode": "enforce", "rules": [{"match": {"username": o}}], **chosen}
                    for o in OWN
                ),
            ]
        }
        for chosen in limits
    ]
    asked = StatementFlags.COST_GIVEN
    operations = [
        made.Operation(
            name,
            cost // 3,
            StatementIdentity(OWN[tenant - 24] if tenant >= 24 else "app"),
            Statement(f"SELECT 1 /*t={tenant}*/".encode() if tenant < 24 else b"SELECT 1"),
            Now(),
            StatementCheck(0, cost_ns=cost, flags=asked),
            actual_ns=cost // 2,
            aborted=False,
            which=tenant,
        )
        for name, tenant, cost in steps
    ]
    compare(documents, Sizes(secret=secret), operations)


def compare(
    documents: list[dict[str, Any]], sizes: Sizes, operations: list[made.Operation]
) -> None:
    """`publish` puts one of the documents in force; the first is at the start."""
    pair = Pair(sizes, [parse_policy(document) for document in documents])
    now_ns = START_NS
    for operation in operations:
        now_ns += operation.gap_ns
        pair.do(operation, now_ns)
        assert pair.theirs.buckets(now_ns) == pair.ours.buckets(now_ns)
    pair.compare_what_is_known({operation.ask.pattern for operation in operations})


class Pair:
    def __init__(self, sizes: Sizes, policies: list[Policy]) -> None:
        self.ours, self.theirs = Reference(sizes), Native(sizes)
        self._policies = policies
        self._holdings: list[tuple[Any, Any]] = []
        self._publish(policies[0])

    def do(self, operation: made.Operation, now_ns: int) -> None:
        if operation.name == "publish":
            self._publish(self._policies[operation.which % len(self._policies)])
        elif operation.name in ("take", "check"):
            self._ask(operation, replace(operation.ask, now_ns=now_ns))
        elif operation.name == "charge":
            matched = self.ours.match(operation.who, operation.statement, operation.now)
            for engine in (self.ours, self.theirs):
                engine.charge(matched.at, operation.actual_ns, now_ns)
        elif self._holdings:
            self._go_on(operation, operation.which % len(self._holdings), now_ns)

    def _publish(self, policy: Policy) -> None:
        self.ours.publish(policy)
        self.theirs.publish(policy)

    def _ask(self, operation: made.Operation, ask: StatementCheck) -> None:
        asked = operation.who, operation.statement, operation.now
        matched = self.ours.match(*asked)
        assert self.theirs.match(*asked) == matched
        assert self.theirs.estimate(ask) == self.ours.estimate(ask)
        answer = self.ours.check(matched.at, ask)
        assert self.theirs.check(matched.at, ask) == answer
        if operation.name == "check":
            return
        (took, held), (also_took, also_held) = (
            engine.take(matched.at, ask) for engine in (self.ours, self.theirs)
        )
        assert took == also_took == answer
        assert (held is None) == (also_held is None) == (not answer.admitted)
        self._holdings += [(held, also_held)] if answer.admitted else []

    def _go_on(self, operation: made.Operation, which: int, now_ns: int) -> None:
        held, also_held = self._holdings.pop(which)
        if operation.name == "settle":
            end = operation.actual_ns, now_ns, operation.aborted
            self.ours.settle(held, *end)
            self.theirs.settle(also_held, *end)
            return
        changed = (
            getattr(engine, operation.name)(one)
            for engine, one in ((self.ours, held), (self.theirs, also_held))
        )
        self._holdings.append((next(changed), next(changed)))

    def compare_what_is_known(self, patterns: set[int]) -> None:
        for name in ("b", *OWN, *made.NAMES):
            assert self.theirs.counts(name) == self.ours.counts(name), name
        for key in patterns:
            assert self.theirs.pattern(key) == self.ours.pattern(key), key
        assert self.theirs.host() == self.ours.host()
