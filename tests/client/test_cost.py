"""What a piece of work declares to cost, as the SDK asks for it (R142)."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from headgate import AsyncClient, Client
from headgate.client.question import make_asker
from headgate.client.target import DEFAULT_URL, parse_target
from headgate.errors import InvalidSettings
from tests.client.scripted import ScriptedAgent

BAD = [0, -1, math.nan, math.inf, 1e10, True, "100"]


def request(cost: float | None, *databases: str) -> bytes:
    asker = make_asker("etl", databases or ("main",), parse_target(DEFAULT_URL, None), None)
    return asker.may_write((), cost).request


@pytest.mark.parametrize(
    ("cost", "asked"), [(None, b"database=main "), (100, b"&cost=100.0 "), (0.5, b"&cost=0.5 ")]
)
def test_a_cost_is_sent_only_if_given(cost: float | None, asked: bytes) -> None:
    assert asked in request(cost)


def test_work_on_several_databases_costs_each_of_them() -> None:
    body = json.loads(request(7, "main", "other").partition(b"\r\n\r\n")[2])
    assert [check["cost"] for check in body["checks"]] == [7, 7]


@pytest.mark.parametrize("cost", BAD)
def test_a_cost_that_no_agent_would_take_is_rejected_before_it_is_sent(cost: Any) -> None:
    with pytest.raises(InvalidSettings, match="cost"):
        Client("etl", database="main", cost=cost)
    with pytest.raises(InvalidSettings, match="cost"):
        Client("etl", database="main").check(cost=cost)


@pytest.mark.parametrize(
    ("items_cost", "costs"), [(True, ["3.0", "3.0", "1.0"]), (False, [None, None, None])]
)
async def test_chunks_declare_their_size_only_if_configured(
    items_cost: bool, costs: list[str | None]
) -> None:
    with ScriptedAgent() as agent:
        with Client("etl", database="main", url=agent.url) as gate:
            assert len(list(gate.chunks(range(7), 3, items_cost=items_cost))) == 3
        async with AsyncClient("etl", database="main", url=agent.url) as other:
            assert [len(c) async for c in other.chunks(range(7), 3, items_cost=items_cost)]
        assert [cost_of(heard.line) for heard in agent.heard] == [*costs, *costs]


async def test_one_check_may_cost_more_than_the_others() -> None:
    with ScriptedAgent() as agent:
        with Client("etl", database="main", url=agent.url, cost=2) as gate:
            gate.check()
            gate.wait(cost=9)
        async with AsyncClient("etl", database="main", url=agent.url, cost=2) as other:
            await other.check(cost=9)
        assert [cost_of(heard.line) for heard in agent.heard] == ["2.0", "9.0", "9.0"]


def cost_of(line: str) -> str | None:
    found = re.search(r"&cost=([0-9.]+)", line)
    return found[1] if found else None
