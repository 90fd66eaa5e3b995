"""Files of a fleet: every fault with its place, and what is written reads the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.fleet import Item, ItemKind
from headgate.core.fleet_files import (
    MAX_ENTRIES,
    MAX_FAULTS,
    parse_file,
    read_document,
    to_toml,
    written_file,
)
from headgate.core.reach import EVERYWHERE, parse_reach
from headgate.errors import InvalidSettings
from headgate.traffic.parse import with_lines

RULE = {"id": "a", "reach": "fleet", "target": "etl", "ratio": 0.5}
BUDGET = {"name": "cap", "reach": "shard:x", "rate": 20}


def test_a_file_is_read_with_ids_and_reaches() -> None:
    file = parse_file({"rules": [RULE], "budgets": [BUDGET, {**BUDGET, "reach": "fleet"}]})
    (rule,) = file.rules
    assert (rule.id, rule.reach, rule.raw) == (
        "a",
        EVERYWHERE,
        {"id": "a", "target": "etl", "ratio": 0.5},
    )
    assert [budget.id for budget in file.budgets] == ["cap@shard:x", "cap@fleet"]
    assert [budget.place for budget in file.budgets] == ["budgets[0]", "budgets[1]"]
    assert parse_file({}) == parse_file({"rules": [], "budgets": []})


@pytest.mark.parametrize(
    ("document", "place", "words"),
    [
        ([], "", "must be a table"),
        ({"rule": []}, "rule", "did you mean 'rules'"),
        ({"rules": {}}, "rules", "list of tables"),
        ({"rules": ["x"]}, "rules[0]", "table of settings"),
        ({"rules": [{**RULE, "id": None}]}, "rules[0].id", "any name will do"),
        ({"rules": [{"id": "a"}]}, "rules[0].reach", "say how far it reaches"),
        ({"rules": [{**RULE, "reach": "planet:x"}]}, "rules[0].reach", "must begin with one of"),
        ({"rules": [RULE, RULE]}, "rules[1]", "'a' is rules[0] as well"),
        ({"rules": [{**RULE, "pair": "b"}]}, "rules[0].pair", "stand and go together"),
        ({"rules": [{**RULE, "pair": 7}]}, "rules[0].pair", "must be the id"),
        ({"budgets": [{"reach": "fleet"}]}, "budgets[0].name", "known by its name"),
        ({"budgets": [BUDGET, BUDGET]}, "budgets[1]", "'cap@shard:x' is budgets[0] as well"),
        ({"rules": [{}] * (MAX_ENTRIES + 1)}, "rules", "has 20,001 entries, at most 20,000"),
    ],
)
def test_what_is_no_file_says_where_and_what(document: object, place: str, words: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        parse_file(document)
    (fault,) = refused.value.faults
    assert fault.place == place
    assert words in fault.message


def test_a_pair_has_to_be_of_one_reach() -> None:
    """R76."""
    other = {**RULE, "id": "b", "pair": "a"}
    assert len(parse_file({"rules": [{**RULE, "pair": "b"}, other]}).rules) == 2
    with pytest.raises(InvalidSettings, match="same reach"):
        parse_file({"rules": [{**RULE, "pair": "b"}, {**other, "reach": "shard:x"}]})


def test_faults_are_bounded() -> None:
    with pytest.raises(InvalidSettings) as refused:
        parse_file({"rules": [{}] * 5000})
    assert len(refused.value.faults) == MAX_FAULTS


def test_faults_of_a_toml_file_get_their_lines() -> None:
    text = '[[rules]]\nid = "a"\nreach = "fleet"\n\n[[rules]]\nid = "b"\nreach = "moon"\n'
    with pytest.raises(InvalidSettings) as refused:
        parse_file(read_document(text))
    (fault,) = with_lines(refused.value.faults, text)
    assert fault.line == 7


@pytest.mark.parametrize(
    ("text", "is_json"),
    [("[[rules]\n", False), ("{", True), ("[1]", True), ("[" * 100_000, True), ("\x00", False)],
)  # fmt: skip
def test_text_that_is_no_document_is_refused(text: str, is_json: bool) -> None:
    with pytest.raises(InvalidSettings):
        read_document(text, is_json=is_json)


def test_dates_of_toml_become_text() -> None:
    document: Any = read_document("[[rules]]\nexpires_at = 2026-11-16T18:00:00Z\n")
    assert document["rules"][0]["expires_at"] == "2026-11-16T18:00:00+00:00"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.dictionaries(TEXTS.filter(lambda key: key != "rules"), VALUES, min_size=1, max_size=4)


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list):
        return all(map(_finite, value))
    return not isinstance(value, float) or abs(value) != float("inf")


@given(st.lists(ENTRIES, max_size=2), st.lists(ENTRIES, max_size=2))
def test_whatever_is_written_as_toml_reads_the_same(rules: list[Any], budgets: list[Any]) -> None:
    document = {"rules": rules, "budgets": [{**one, "rules": [one]} for one in budgets]}
    if _finite(document):
        read = read_document(to_toml(document, ["written by hand"]))
        assert {"rules": [], "budgets": [], **read} == document


def test_what_is_written_has_no_word_of_who_and_when() -> None:
    value = {"target": "etl", "ratio": 0.5, "created_by": "ada", "set_at": "x", "pair": "b"}
    rule = Item(ItemKind.RULE, "a", parse_reach("shard:x"), value, 3, 1.0, "ada")
    gone = Item(ItemKind.BUDGET, "cap@fleet", EVERYWHERE, None, 4, 1.0, "ada")
    cap = Item(ItemKind.BUDGET, "b@fleet", EVERYWHERE, {"name": "b", "rate": 1}, 4, 1.0, "ada")
    assert written_file([gone, rule, cap]) == {
        "rules": [{"id": "a", "reach": "shard:x", "target": "etl", "ratio": 0.5, "pair": "b"}],
        "budgets": [{"name": "b", "reach": "fleet", "rate": 1}],
    }
