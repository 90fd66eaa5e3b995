"""Files of changes: every fault with its place, and what is written reads the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.base.places import with_lines
from headgate.changes.file_format import (
    MAX_ENTRIES,
    MAX_FAULTS,
    SECTIONS,
    parse_file,
    read_document,
    to_toml,
)
from headgate.changes.model import ChangeKind
from headgate.changes.reach import EVERYWHERE, HERE, parse_reach
from headgate.errors import InvalidSettings

RULE = {"id": "a", "reach": "fleet", "target": "etl", "ratio": 0.5}
BUDGET = {"name": "cap", "reach": "shard:x", "rate": 20}


def test_a_file_is_read_with_ids_and_reaches() -> None:
    file = parse_file({"rules": [RULE], "budgets": [BUDGET, {**BUDGET, "reach": "fleet"}]})
    (rule,) = file.of(ChangeKind.RULE)
    assert (rule.id, rule.reach, rule.raw) == (
        "a",
        EVERYWHERE,
        {"id": "a", "target": "etl", "ratio": 0.5},
    )
    budgets = file.of(ChangeKind.BUDGET)
    assert [budget.id for budget in budgets] == ["cap@shard:x", "cap@fleet"]
    assert [budget.place for budget in budgets] == ["budgets[0]", "budgets[1]"]
    assert parse_file({}) == parse_file({"rules": [], "budgets": []})


@pytest.mark.parametrize(
    ("document", "place", "words"),
    [
        ([], "", "must be a table"),
        ({"rule": []}, "rule", "did you mean 'rules'"),
        ({"rules": {}}, "rules", "list of tables"),
        ({"rules": ["x"]}, "rules[0]", "table of settings"),
        ({"rules": [{**RULE, "id": None}]}, "rules[0].id", "any name will do"),
        ({"rules": [{"id": "a"}]}, "rules[0].reach", "give its reach"),
        ({"rules": [{**RULE, "reach": "planet:x"}]}, "rules[0].reach", "must begin with one of"),
        ({"rules": [RULE, RULE]}, "rules[1]", "'a' is rules[0] as well"),
        ({"rules": [{**RULE, "pair": "b"}]}, "rules[0].pair", "are set and removed together"),
        ({"rules": [{**RULE, "pair": 7}]}, "rules[0].pair", "must be the id"),
        ({"budgets": [{"reach": "fleet"}]}, "budgets[0].name", "a budget needs a name"),
        ({"budgets": [BUDGET, BUDGET]}, "budgets[1]", "'cap@shard:x' is budgets[0] as well"),
        ({"rules": [{}] * (MAX_ENTRIES + 1)}, "rules", "has 20,001 entries, at most 20,000"),
    ],
)
def test_what_is_no_file_says_where_and_what(document: object, place: str, words: str) -> None:
    (fault,) = parse_file(document).faults
    assert fault.place == place
    assert words in fault.message


def test_a_pair_has_to_be_of_one_reach() -> None:
    """R76."""
    other = {**RULE, "id": "b", "pair": "a"}
    assert len(parse_file({"rules": [{**RULE, "pair": "b"}, other]}).entries) == 2
    apart = parse_file({"rules": [{**RULE, "pair": "b"}, {**other, "reach": "shard:x"}]})
    assert all("same reach" in fault.message for fault in apart.faults) and apart.faults


def test_faults_are_bounded() -> None:
    assert len(parse_file({"rules": [{}] * 5000}).faults) == MAX_FAULTS


def test_faults_of_a_toml_file_get_their_lines() -> None:
    text = '[[rules]]\nid = "a"\nreach = "fleet"\n\n[[rules]]\nid = "b"\nreach = "moon"\n'
    (fault,) = with_lines(parse_file(read_document(text)).faults, text)
    assert fault.line == 7


def test_an_unknown_section_hides_nothing_and_has_its_line() -> None:
    text = '[[rules]]\nreach = "moon"\nid = "a"\n\n[[rule]]\nid = "b"\n[rule.schedule]\nfrom = 7\n'
    text += '[[skips]]\nshard = "s"\n'
    faults = with_lines(parse_file(read_document(text), default_reach=HERE).faults, text)
    assert {fault.place: fault.line for fault in faults} == {
        "rule": 5,
        "rules[0].reach": 2,
        "skips[0].member": 9,
    }


@pytest.mark.parametrize(
    ("text", "is_json"),
    [("[[rules]\n", False), ("{", True), ("[1]", True), ("[" * 100_000, True), ("\x00", False)],
)  # fmt: skip
def test_text_that_is_no_document_is_rejected(text: str, is_json: bool) -> None:
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


@given(st.dictionaries(st.sampled_from([*SECTIONS]), st.lists(ENTRIES, max_size=2)))
def test_whatever_is_written_as_toml_reads_the_same(document: dict[str, list[Any]]) -> None:
    for budget in document.get("budgets", []):
        budget["rules"] = [dict(budget)]
    if _finite(document):
        read = read_document(to_toml(document, ["written by hand"]))
        assert read == {section: entries for section, entries in document.items() if entries}


# --- of one agent --------------------------------------------------------------------------------

OWN: dict[str, list[dict[str, Any]]] = {
    "rules": [{"id": "a", "target": "etl", "ratio": 0.5}],
    "budgets": [{"database": "main", "name": "cap", "rate": 20}],
    "metrics": [{"database": "main", "metric": "lag", "threshold": 10}],
    "peers": [{"shard": "commerce/-80", "member": "db-b", "url": "x", "database": "main"}],
    "skips": [{"shard": "commerce/-80", "member": "db-b", "reason": "y", "for": "1h"}],
}


def test_an_entry_of_an_agents_own_log_is_for_that_agent_by_default() -> None:
    file = parse_file(OWN, default_reach=HERE)
    assert {(entry.id, entry.reach) for entry in file.entries} == {
        ("a", HERE),
        ("main/cap", HERE),
        ("main/lag", HERE),
        ("commerce/-80 db-b", HERE),
    }
    assert [entry.kind for entry in file.entries][-2:] == [ChangeKind.PEER, ChangeKind.SKIP], (
        "a skip may be of a peer of the same file"
    )


def test_the_agents_own_name_is_this_agent() -> None:
    entries = [{**OWN["rules"][0], "reach": text, "id": text} for text in ("host:db-1", "host")]
    file = parse_file({"rules": entries}, default_reach=HERE, host="db-1")
    assert {entry.reach for entry in file.entries} == {HERE}
    (other,) = parse_file({"rules": entries[:1]}, default_reach=HERE, host="db-2").entries
    assert other.reach == parse_reach("host:db-1")


def test_a_budget_with_a_reach_is_known_by_it_and_not_by_a_database() -> None:
    wide = {"name": "cap", "reach": "shard:x", "rate": 20}
    assert parse_file({"budgets": [wide]}, default_reach=HERE).entries[0].id == "cap@shard:x"


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("budgets", "database"),
        ("metrics", "database"),
        ("metrics", "metric"),
        ("peers", "shard"),
        ("peers", "member"),
        ("skips", "shard"),
        ("skips", "member"),
    ],
)
@pytest.mark.parametrize("given", [None, "", 7])
def test_what_an_entry_is_known_by_has_to_be_said(section: str, key: str, given: Any) -> None:
    entry = {**OWN[section][0], key: given}
    found = parse_file({section: [entry]}, default_reach=HERE).faults
    assert [fault.place for fault in found] == [f"{section}[0].{key}"]
