"""Whether two agents that share an election answer for the same databases."""

from __future__ import annotations

import json

import pytest

from headgate.shard.model import ServedDatabase, answers_doc, read_answers, why_apart

OURS = ServedDatabase("commerce/-80/db-b", "7001", "db-b:5432/app")


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (OURS, ""),
        (ServedDatabase("commerce/-80/db-b", "7001", "10.0.0.5:5432/app"), ""),
        (ServedDatabase(target="local@m:5432/app"), ""),
        (ServedDatabase(), ""),
        (ServedDatabase("commerce/-80/db-c", "7001"), "commerce/-80/db-c"),
        (ServedDatabase("commerce/-80/db-b", "7002"), "server 7002"),
        (ServedDatabase(target="db-x:5432/app"), "db-x:5432/app"),
    ],
)
def test_what_is_known_of_both_has_to_be_the_same(theirs: ServedDatabase, why: str) -> None:
    told = why_apart({"main": OURS}, {"main": theirs})
    assert why in told if why else told == ""


def test_two_machines_by_the_same_local_address_are_two() -> None:
    """The settings file of one, copied to the other."""
    one, other = (ServedDatabase(target=f"local@{name}:5432/app") for name in ("one", "other"))
    assert "local@other:5432/app" in why_apart({"main": one}, {"main": other})


def test_one_that_lacks_a_database_of_ours_cannot_answer_for_it() -> None:
    assert why_apart({"main": OURS}, {"other": OURS}) == "it has no database main"
    assert why_apart({}, {"other": OURS}) == ""


def test_they_are_read_as_they_were_written() -> None:
    answers = {"main": OURS, "side": ServedDatabase()}
    assert read_answers(json.loads(json.dumps(answers_doc(answers)))) == answers


@pytest.mark.parametrize("raw", [None, 3, [], {"main": 3}, {"main": {"server": 7}}])
def test_what_cannot_be_read_says_nothing(raw: object) -> None:
    assert all(one == ServedDatabase() for one in read_answers(raw).values())
