"""Advice on a hold: whom it does not reach, found without a look at every rule for each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.rules.matching import Kind, Rule
from headgate.rules.settings import Sparing, not_held
from tests.builders import NOW
from tests.rules.test_matching import rule

TARGETS = ["all", "etl", "etl:a", "etl:a:b", "b:etl", "web", "web:a"]
KINDS = [Kind.HOLD, Kind.RATIO, Kind.EXEMPT, Kind.METRICS]


def rules_of(given_: list[tuple[str, Kind]]) -> list[Rule]:
    return [rule(f"r-{at}", target, kind) for at, (target, kind) in enumerate(given_)]


@given(st.lists(st.tuples(st.sampled_from(TARGETS), st.sampled_from(KINDS)), max_size=12))
def test_the_same_is_found_as_by_a_look_at_all(given_: list[tuple[str, Kind]]) -> None:
    rules = rules_of(given_)
    sparing = Sparing(rules)
    for one in rules:
        if one.kind is Kind.HOLD:
            found = not_held(one, sparing.of(one), NOW.wall_s)
            assert found == not_held(one, rules, NOW.wall_s)


def test_a_hold_among_thousands_looks_at_few() -> None:
    """A list of 10,000 holds would take as many looks for each, while checks wait."""
    rules = rules_of([(f"etl:x{at}", Kind.RATIO) for at in range(2000)])
    assert len(Sparing(rules).of(rule("r-h", "etl:x7", Kind.HOLD))) == 1
