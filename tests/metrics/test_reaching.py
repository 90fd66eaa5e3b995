"""Metrics that reach beyond one agent: each lays them over its own settings, or says why not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import Place, parse_reach
from headgate.changes.state import ends_at
from headgate.check.board import Board
from headgate.check.demand import Demands
from headgate.check.model import Idleness
from headgate.check.sampler import Sampler
from headgate.errors import Conflict, InvalidName, InvalidSettings
from headgate.metrics.drafts import LOOSER_FOR_S
from headgate.metrics.model import Engine
from headgate.metrics.reaching import WideMetrics
from headgate.metrics.service import DatabasePlan, MetricKeeper, NoSuchMetric
from tests.changes.own_world import OwnLog, keep
from tests.fixtures.fakes import FakeProbes, HandClock, settle
from tests.fixtures.memory_store import MemoryStore

SHARD = "shard:commerce/-80"
OURS = Place("eu-1", "commerce", "commerce/-80", "db-1", "main")


class World:
    """One agent, with its own log and what it hears of the fleet's."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.clock, self.board, self.store = HandClock(), Board(), store or MemoryStore()
        demands = Demands(self.clock)
        demands.open("main", Idleness())
        self.probes = FakeProbes({"lag": 1.0})
        self.log = OwnLog(self.store, self.clock, places=(OURS,))
        self.book = MetricKeeper(
            self.board,
            Sampler(self.board, self.clock, demands),
            self.clock,
            make=self.log.make,
            time=self.log.time,
        )
        self.log.attach(self.book)
        self.fleet: dict[str, Change] = {}

    async def start(self) -> World:
        await self.store.open()
        await self.log.load()
        await self.adopt({"lag": {"threshold": "5s"}})
        return self

    async def adopt(self, raw: Mapping[str, Any], place: Place = OURS) -> None:
        plan = DatabasePlan("main", Engine.POSTGRES, raw, lambda: self.probes, place=place)
        await self.book.adopt([plan])
        await settle()

    async def hear(
        self, reach: str, value: Mapping[str, Any] | None, name: str = "main/lag"
    ) -> None:
        """Of the fleet's log, all there is."""
        item_id, n = f"{name}@{reach}", len(self.fleet) + 1
        self.fleet[item_id] = Change(
            ChangeKind.METRIC, item_id, parse_reach(reach), value, n, 0.0, "ops"
        )
        await self.book.follow(list(self.fleet.values()), (OURS,), whole=True)

    def wide(self, reach: str = SHARD) -> WideMetrics:
        return WideMetrics(self.book, self.log.make, parse_reach(reach))

    def threshold(self) -> float:
        return self.board.healths["main"].standings["lag"].spec.threshold

    @property
    def settings(self) -> dict[str, Any] | None:
        entry = self.book.database("main").entries.get("lag")
        return None if entry is None else dict(entry.raw)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = await World().start()
    yield world
    await world.book.close()


def said(**settings: Any) -> dict[str, Any]:
    return {"settings": settings}


SAID = ("fleet", "region:eu-*", "cluster:commerce", "shard:commerce/*", SHARD, "host:db-1")
"""From what counts least to what counts most; above all of them is what is set at the agent."""


@pytest.mark.parametrize("order", [SAID, SAID[::-1]], ids=["widest first", "narrowest first"])
async def test_the_narrower_counts_and_each_falls_back_to_what_lies_beneath(
    world: World, order: tuple[str, ...]
) -> None:
    """file < fleet < region < cluster < shard < host < this agent, whatever came first."""
    for reach in order:
        await world.hear(reach, said(threshold=f"{SAID.index(reach) + 10}s"))
    assert world.threshold() == 15
    assert world.book.database("main").entry("lag").origin == "host:db-1"
    await world.book.patch("main", "lag", {"threshold": "1s"}, who="ops")
    assert world.threshold() == 1
    await world.book.revert("main", "lag", who="ops")
    for reach in SAID[::-1]:
        assert world.threshold() == SAID.index(reach) + 10
        await world.hear(reach, None)
    assert world.threshold() == 5 and world.book.database("main").entry("lag").origin == "file"


async def test_a_patch_changes_what_it_says_and_nothing_else(world: World) -> None:
    await world.hear("fleet", said(interval_s=2))
    await world.hear(SHARD, said(threshold="7s"))
    assert world.settings == {"threshold": "7s", "interval_s": 2}
    await world.hear(SHARD, said(threshold=None))
    assert world.settings == {"interval_s": 2}


@pytest.mark.parametrize(
    ("name", "reach", "applies"),
    [
        ("main/lag", "fleet", True),
        ("*/lag", "fleet", True),
        ("other/lag", "fleet", False),
        ("main/lag", "region:us-*", False),
        ("*/lag", "shard:search/*", False),
    ],
)
async def test_it_is_for_databases_of_that_name_where_it_reaches(
    world: World, name: str, reach: str, applies: bool
) -> None:
    await world.hear(reach, said(threshold="2s"), name)
    assert world.threshold() == (2 if applies else 5)


async def test_a_stored_threshold_without_a_unit_is_in_the_unit_of_the_metric(
    world: World,
) -> None:
    """R141: also where only the settings file says which unit that is."""
    await world.hear("fleet", {"settings": {"threshold": 9}})
    assert (world.threshold(), world.book.faults) == (9.0, {})
    assert world.settings == {"threshold": "9s"}
    raw = {"sql": "select 7", "unit": "ms", "threshold": "50ms"}
    world.probes.values["wait"] = 7.0
    await world.adopt({"lag": {"threshold": "5s"}, "wait": raw})
    await world.hear("fleet", {"settings": {"threshold": 90}}, "main/wait")
    entry = world.book.database("main").entry("wait")
    assert (entry.spec.threshold, entry.raw["threshold"]) == (90.0, "90ms")


async def test_what_was_stored_without_a_unit_can_be_patched_and_people_give_one(
    world: World,
) -> None:
    kept = {"settings": {"threshold": 9}}
    change = Change(ChangeKind.METRIC, f"main/lag@{SHARD}", parse_reach(SHARD), kept, 1, 0.0, "ops")
    await keep(world.store, change)
    await world.log.load()
    assert world.threshold() == 9.0
    await world.wide().patch("main", "lag", {"interval_s": 2}, who="ops")
    assert world.settings == {"threshold": "9s", "interval_s": 2}
    for database in ("main", "elsewhere"):
        with pytest.raises(InvalidSettings, match="no unit"):
            await world.wide().patch(database, "lag", {"threshold": 8}, who="ops")


async def test_a_patch_adds_no_metric_where_there_is_none_and_a_put_does(world: World) -> None:
    """Else a threshold for all would have agents judge by what they never measured."""
    await world.hear("fleet", said(threshold=20), "*/lock_waits")
    assert "lock_waits" not in world.book.database("main").entries and not world.book.faults
    await world.hear("fleet", {**said(threshold=20), "adds": True}, "*/lock_waits")
    assert world.book.database("main").entry("lock_waits").spec.threshold == 20


async def test_where_it_is_not_valid_the_agent_keeps_what_it_had_and_reports(world: World) -> None:
    await world.hear("fleet", said(threshold="7s"))
    await world.hear("fleet", said(threshold="3s", interval_s=9, max_age_s=1))
    assert world.threshold() == 7
    (told,) = world.book.faults.items()
    assert told[0] == "main/lag@fleet on main" and "below interval_s" in told[1]
    await world.hear("fleet", said(threshold="3s"))
    assert world.threshold() == 3 and not world.book.faults


async def test_one_that_was_never_valid_leaves_the_others_in_force(world: World) -> None:
    await world.hear("fleet", said(threshold="7s"))
    await world.hear(SHARD, said(unknown_setting=1))
    assert world.threshold() == 7 and list(world.book.faults) == [f"main/lag@{SHARD} on main"]


async def test_no_query_comes_from_outside_where_the_file_does_not_allow_it(world: World) -> None:
    """Who may write to the fleet's store may not read this agent's database."""
    value = {**said(sql="select 1", threshold=1), "adds": True}
    await world.hear("fleet", value, "*/mine")
    assert "mine" not in world.book.database("main").entries
    assert "may only be set in the settings file" in world.book.faults["*/mine@fleet on main"]


async def test_it_is_removed_for_all_and_comes_back_when_that_ends(world: World) -> None:
    end = "1970-01-01T00:00:00Z"
    await world.hear("fleet", {"removed": True, "expires_at": end.replace("1970", "2100")})
    assert world.settings is None and world.book.database("main").removed() == ["lag"]
    assert world.book.expires_at("main", "lag") is not None
    await world.hear("fleet", {"removed": True, "expires_at": end})
    assert world.threshold() == 5


async def test_it_ends_on_time_at_every_agent(world: World) -> None:
    change = await world.wide().patch("main", "lag", {"threshold": "2s", "for": "60s"}, who="ops")
    assert world.threshold() == 2 and ends_at(change.items[0]) is not None
    await world.clock.advance(61)
    await world.book.tick()
    assert world.threshold() == 5
    (item,) = world.log.book.held.items.values()
    assert item.value is not None, "its log takes it out, once nobody needs it any more"


async def test_a_reload_of_the_file_keeps_what_lies_on_it(world: World) -> None:
    await world.hear(SHARD, said(threshold="2s"))
    await world.adopt({"lag": {"threshold": "9s", "interval_s": 3}})
    assert world.settings == {"threshold": "2s", "interval_s": 3}
    await world.adopt({"lag": {"threshold": "9s"}}, Place(database="main"))
    assert world.threshold() == 9, "it is of another shard now"


# --- setting it ----------------------------------------------------------------------------------


async def test_what_is_set_for_a_shard_is_kept_as_a_patch_in_the_own_log(world: World) -> None:
    """R164: the agents of the shard tell each other of it."""
    wide = world.wide()
    await wide.put("main", "lag", {"threshold": "4s", "interval_s": 2}, who="ops")
    change = await wide.patch("main", "lag", {"threshold": "3s", "interval_s": None}, who="ops")
    (item,) = world.log.standing(ChangeKind.METRIC).values()
    assert item.id == f"main/lag@{SHARD}" and item.key.startswith("items/shard/")
    assert item.value == {"settings": {"threshold": "3s", "interval_s": None}, "adds": True}
    assert world.settings == {"threshold": "3s"}
    assert [one.code for one in change.advice] == ["validated"]
    assert "main/lag of this agent" in change.advice[0].message
    await wide.revert("main", "lag", who="ops")
    assert world.threshold() == 5
    with pytest.raises(NoSuchMetric, match="is not set"):
        await wide.revert("main", "lag", who="ops")


async def test_what_is_looser_ends_after_an_hour(world: World) -> None:
    """R83"""
    wide, now_s = world.wide(), world.clock.now().wall_s
    for raw, is_looser in (({"threshold": "2s"}, False), ({"threshold": "50s"}, True)):
        change = await wide.put("*", "lag", raw, who="ops", dry_run=True)
        end_s = ends_at(change.items[0])
        assert (end_s is not None) is is_looser
        assert end_s is None or abs(end_s - now_s - LOOSER_FOR_S) < 1
    removed = await wide.remove("*", "lag", who="ops")
    assert ends_at(removed.items[0]) is not None and world.settings is None


async def test_what_cannot_be_compared_here_is_validated_as_far_as_possible(world: World) -> None:
    wide = world.wide()
    change = await wide.patch("orders", "lag", {"threshold": "2s"}, who="ops")
    assert {one.code for one in change.advice} == {"validated", "ends"}
    assert "only the settings themselves" in str(change.advice[0])
    with pytest.raises(InvalidSettings, match="thresold"):
        await wide.patch("orders", "lag", {"thresold": 2}, who="ops")
    with pytest.raises(InvalidSettings, match="settings file"):
        await wide.put("orders", "mine", {"sql": "select 1", "threshold": 1}, who="ops")


@pytest.mark.parametrize("raw", [{"threshold": -1}, {"nothing": 1}, {"max_age_s": 0.02}, {}])
async def test_what_is_not_valid_here_is_rejected(world: World, raw: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        await world.wide().patch("main", "lag", raw, who="ops")
    assert not world.log.book.held.items


async def test_only_what_was_seen_is_changed(world: World) -> None:
    change = await world.wide().patch("main", "lag", {"threshold": "2s"}, who="ops", expect=0)
    n = change.items[0].n
    with pytest.raises(Conflict):
        await world.wide().patch("main", "lag", {"threshold": "3s"}, who="ops", expect=n + 1)
    await world.wide().patch("main", "lag", {"threshold": "3s"}, who="ops", expect=n)
    with pytest.raises(InvalidName):
        await world.wide().patch("no such/name", "lag", {"threshold": "3s"}, who="ops")
