"""A rule of the fleet that cannot be lifted: what is said, and how it is suspended at one agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.base.keyvalue import Put
from headgate.changes.model import ITEMS
from tests.http.serving import LOOPS, VIEWER, Plan, Served, serving
from tests.http.test_changes import FaultyStore
from tests.http.test_checks import is_problem
from tests.http.test_fleet_ruling import HOLD, away, follow
from tests.http.test_ruling import CHECK, RULES, change, described, listed

STOP = f"{RULES}/stop"
REST = f"{STOP}/suspension"
WHY = {"reason": "etcd is away"}


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def served(store: FaultyStore, tmp_path: Path) -> Iterator[Served]:
    with serving(LOOPS["asyncio"], tmp_path, Plan(fleet=store)) as served:
        change(served, "POST", RULES, HOLD)
        follow(served, store)
        yield served


def test_it_is_suspended_here_while_the_store_is_away(served: Served, store: FaultyStore) -> None:
    assert served.ask("GET", CHECK).status == 417
    away(served, store)
    rejected = change(served, "DELETE", STOP)
    assert is_problem(rejected, 503) and "`headgate rule suspend stop" in rejected.json["detail"]
    rests = change(served, "PUT", REST, WHY)
    assert rests.status == 200 and described(rests, "/v1/rules/{rule}/suspension", "put")
    assert served.ask("GET", CHECK).status == 200
    [shown] = listed(served)
    assert (shown["state"], shown["suspended"]) == (
        "suspended",
        "by ops at this agent: etcd is away",
    )
    woken = change(served, "DELETE", REST)
    assert woken.status == 200 and described(woken, "/v1/rules/{rule}/suspension", "delete")
    assert served.ask("GET", CHECK).status == 417


def test_what_cannot_be_suspended_is_reported(served: Served) -> None:
    assert is_problem(change(served, "PUT", f"{RULES}/nosuch/suspension", WHY), 422)
    for body in ({}, {"reason": ""}, {"reason": 7}, {"why": "x"}):
        assert is_problem(change(served, "PUT", REST, body), 422)
    assert change(served, "PUT", f"{REST}?dry_run=true", WHY).status == 200
    assert served.ask("GET", CHECK).status == 417
    viewer = change(served, "PUT", REST, WHY, token=VIEWER)
    assert is_problem(viewer, 403), "who may set a rule may suspend it"


def test_one_that_the_store_has_lost_is_not_denied(served: Served, store: FaultyStore) -> None:
    """It is in force here, and rejects work."""

    async def lose() -> None:
        found = await store.list([ITEMS])
        await store.commit([], [Put(entry.key, None) for entry in found.entries])

    served.run_there(lose)
    assert served.ask("GET", STOP).status == 200
    rejected = change(served, "DELETE", STOP)
    assert is_problem(rejected, 409)
    assert (
        "the fleet's store has lost it: `headgate changes restore --fleet`"
        in rejected.json["detail"]
    )
    assert "`headgate rule suspend stop" in rejected.json["detail"]


def test_a_reader_gets_no_note_that_nothing_was_changed(served: Served, store: FaultyStore) -> None:
    away(served, store)
    detail = served.ask("GET", "/v1/changes?log=fleet").json["detail"]
    assert "the store is unavailable: etcd: no answer in 2 s" in detail
