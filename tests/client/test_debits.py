"""Work that is charged to a budget, as the SDK asks for it (R146)."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from headgate import AsyncClient, Client
from headgate.client.local_answers import check_of
from headgate.client.question import Debit, make_asker
from headgate.client.target import DEFAULT_URL, parse_target
from headgate.errors import InvalidSettings
from tests.client import bodies
from tests.client.scripted import ScriptedAgent, answer


async def test_a_budget_is_named_with_what_it_is_charged() -> None:
    with ScriptedAgent() as agent:
        with Client("etl", database="main", url=agent.url) as gate:
            gate.check(budget="etl", cpu_s=0.5)
            gate.wait(budget="etl", cpu_s=2, cost=9)
            gate.check()
        async with AsyncClient("etl", database="main", url=agent.url) as other:
            await other.check(budget="a b", cpu_s=0.5)
            await other.wait(budget="etl", cpu_s=1)
        asked = [debit_of(heard.line) for heard in agent.heard]
    assert asked == [
        ("etl", "0.5"),
        ("etl", "2.0"),
        None,
        ("a%20b", "0.5"),
        ("etl", "1.0"),
    ]


def debit_of(line: str) -> tuple[str, str] | None:
    found = re.search(r"&budget=([^& ]+)&cpu_s=([0-9.]+)", line)
    return (found[1], found[2]) if found else None


@pytest.mark.parametrize("cpu_s", [None, 0, -1, math.nan, math.inf, 10_001, True, "1"])
def test_a_charge_that_no_agent_would_take_is_rejected_before_it_is_sent(cpu_s: Any) -> None:
    with pytest.raises(InvalidSettings, match="cpu_s"):
        Client("etl", database="main").check(budget="etl", cpu_s=cpu_s)


@pytest.mark.parametrize("budget", [None, ""])
def test_a_charge_needs_a_budget(budget: Any) -> None:
    with pytest.raises(InvalidSettings, match="budget"):
        Client("etl", database="main").wait(budget=budget, cpu_s=1)


@pytest.mark.parametrize(
    "database", [("a", "b"), {"a": "http://127.0.0.1:1", "b": "http://127.0.0.1:2"}]
)
def test_a_budget_is_of_one_database(database: Any) -> None:
    with pytest.raises(InvalidSettings, match="budget: is of one database"):
        Client("etl", database=database).check(budget="etl", cpu_s=1)


def test_only_the_agent_can_charge_and_it_is_remembered_by_the_budget() -> None:
    """However much is charged: what a client remembers of questions stays bounded."""
    asker = make_asker("etl", "main", parse_target(DEFAULT_URL, None), None)
    asked = [asker.may_debit((), None, Debit("etl", cpu_s)) for cpu_s in (0.5, 0.7)]
    assert asked[0].subject == asked[1].subject != asker.may_write(()).subject
    assert check_of(asked[0]) is None


def test_over_budget_is_waited_out_for_the_given_time() -> None:
    over = {**bodies.rejection(retry_after_ms=20), "verdict": "OVER_BUDGET"}
    with ScriptedAgent([answer(429, over)]) as agent:
        slept: list[float] = []
        with Client("etl", database="main", url=agent.url, sleep=slept.append) as gate:
            assert gate.wait(budget="etl", cpu_s=1)
    assert len(slept) == 1 and slept[0] >= 0.02
