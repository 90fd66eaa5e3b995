"""Metrics with a reach over HTTP: kept in the log that it says, and in force where it reaches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.changes.inforce import ChangeShelf
from headgate.changes.model import ITEMS
from tests.fixtures.memory_log import MemoryLog
from tests.http.serving import LOOPS, VIEWER, Plan, Served, serving
from tests.http.test_checks import is_problem
from tests.http.test_control import LAG, change

EVERY = "/v1/databases/*/metrics/lag"


@pytest.fixture
def store() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def served(store: MemoryLog, tmp_path: Path) -> Iterator[Served]:
    with serving(LOOPS["asyncio"], tmp_path, Plan(fleet=store)) as served:
        yield served


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Served]:
    with serving(LOOPS["asyncio"], tmp_path, Plan()) as served:
        yield served


def follow(served: Served, store: MemoryLog) -> None:
    async def followed() -> None:
        items = ChangeShelf().read((await store.list([ITEMS])).entries)
        await served.book.follow(items, (), whole=True)

    served.run_there(followed)


def threshold(served: Served, path: str = LAG) -> float:
    return float(served.ask("GET", path).json["now"]["threshold"])


def test_a_threshold_is_set_and_reverted_for_the_fleet(served: Served, store: MemoryLog) -> None:
    before = threshold(served)
    tried = change(served, "PATCH", f"{EVERY}?reach=fleet&dry_run=true", {"threshold": "2s"})
    assert tried.json["dry_run"] is True and tried.json["reached"]["reach"] == "fleet"
    assert tried.json["replay"]["says"], "what it would have done here in the last hour"
    elsewhere = change(served, "PATCH", "/v1/databases/x/metrics/lag?reach=fleet&dry_run=true",
                       {"threshold": "2s"})  # fmt: skip
    assert elsewhere.json["replay"] is None
    done = change(served, "PATCH", f"{EVERY}?reach=fleet", {"threshold": "2s"})
    assert (done.status, done.json["state"], done.json["reach"]) == (200, "set", "fleet")
    assert done.json["settings"] == {"threshold": "2s"} and done.headers["etag"] == '"1"'
    assert any("main/lag" in line for line in done.json["advice"])
    assert threshold(served) == before, "the agent follows the fleet's log"
    follow(served, store)
    assert threshold(served) == 2
    assert served.ask("GET", LAG).json["origin"] == "fleet"
    for method, path in (("DELETE", EVERY), ("POST", f"{EVERY}/revert")):
        gone = change(served, method, f"{path}?reach=fleet&dry_run=true", None)
        assert gone.json["replay"]["says"], method
    again = change(served, "POST", f"{EVERY}/revert?reach=fleet", {})
    assert again.json["state"] == "reverted"
    follow(served, store)
    assert threshold(served) == before
    assert change(served, "POST", f"{EVERY}/revert?reach=fleet", {}).status == 404


def test_what_is_for_this_agent_alone_needs_no_fleet(alone: Served) -> None:
    assert change(alone, "PATCH", f"{LAG}?reach=host", {"threshold": "3s"}).status == 200
    assert threshold(alone) == 3
    rejected = change(alone, "PATCH", f"{LAG}?reach=fleet", {"threshold": "2s"})
    assert is_problem(rejected, 409, field="reach") and threshold(alone) == 3
    assert is_problem(change(alone, "PATCH", f"{EVERY}", {"threshold": "2s"}), 404)


@pytest.mark.parametrize("reach", ["flet", "shard:", "fleet&reach=host"])
def test_a_reach_that_nobody_understands_changes_nothing(served: Served, reach: str) -> None:
    rejected = change(served, "PATCH", f"{LAG}?reach={reach}", {"threshold": "2s"})
    assert is_problem(rejected, 400, field="reach")


def test_it_is_removed_for_all(served: Served, store: MemoryLog) -> None:
    done = change(served, "DELETE", f"{EVERY}?reach=fleet&for=2h", {})
    assert done.json["state"] == "removed" and done.json["expires_at"]
    follow(served, store)
    assert served.ask("GET", LAG).status == 404


def test_what_is_not_in_force_here_is_shown(served: Served, store: MemoryLog) -> None:
    path = "/v1/databases/orders/metrics/lag?reach=fleet"
    assert change(served, "PUT", path, {"interval_s": 9, "max_age_s": 1}).status == 200
    follow(served, store)
    assert served.ask("GET", "/v1/metrics").json["rejected"] == []
    item = "main/lag@fleet"

    async def invalid() -> None:
        (known,) = ChangeShelf().read((await store.list([ITEMS])).entries)
        await served.book.follow([replace(known, id=item)], (), whole=True)

    served.run_there(invalid)
    (told,) = served.ask("GET", "/v1/metrics").json["rejected"]
    assert told.startswith(f"{item} on main: ") and "below interval_s" in told


def test_only_operators_change_the_fleet(served: Served) -> None:
    reply = change(served, "PATCH", f"{LAG}?reach=fleet", {"threshold": "2s"}, token=VIEWER)
    assert is_problem(reply, 403)
