"""The fleet's budgets lie on the settings file, and under what was changed at the agent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from headgate.budgets import parse
from headgate.budgets.layers import FleetBudget, Layers
from headgate.budgets.policy import Mode
from headgate.changes.exchanged import succeeding
from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import EVERYWHERE, Place
from tests.budgets.budget_world import ETL, WEB, BudgetWorld, document
from tests.budgets.test_layers import budgets, documents
from tests.builders import NOW
from tests.changes.fleet_items import HERE, budget_item, iso, taken_out
from tests.changes.own_world import set_here

ENFORCED = {**ETL, "mode": "enforce"}


async def opened(*items: Change, **given: Any) -> BudgetWorld:
    """As app.py does: the log, settings, what is known of the fleet; then the loop."""
    world = BudgetWorld(**given)
    await world.store.open()
    await world.log.load()
    await world.budgets.adopt([world.plan()])
    await follow(world, *items)
    return world


async def follow(
    world: BudgetWorld, *items: Change, places: tuple[Place, ...] = (HERE,), **more: Any
) -> None:
    """And a second later."""
    await world.budgets.follow(items, places, **more)
    await world.budgets.tick()


def rates(world: BudgetWorld) -> dict[str, Any]:
    return {b.name: b.rate_mpct for b in world.main.edition.policy.budgets}


# --- layers --------------------------------------------------------------------------------------


async def test_a_budget_of_the_fleet_reaches_the_server_and_is_shown_as_such() -> None:
    world = await opened(base=document(WEB))
    await follow(world, budget_item(ETL, 4, "shard:commerce/*"))
    assert world.server.modes == {"web": "warn", "etl": "warn"}
    edition = world.main.edition
    assert (edition.origin("etl"), edition.origin("web")) == ("fleet", "file")
    assert edition.fleet["etl"].n == 4


async def test_where_it_does_not_reach_it_is_not() -> None:
    world = await opened(budget_item(ETL, 1, "region:us-*"), budget_item(WEB, 1, "shard:search/0"))
    assert not world.main.edition.policy.budgets and not world.main.edition.fleet


async def test_of_one_name_the_one_that_reaches_less_far_counts() -> None:
    items = [
        budget_item({**ETL, "rate": rate}, n, reach)
        for n, (rate, reach) in enumerate(
            [(40, "host:db-*"), (10, "fleet"), (50, "host:db-1"), (30, "shard:commerce/*")], start=1
        )
    ]
    world = await opened(*items, base=document(ETL))
    assert rates(world) == {"etl": 50_000}
    await follow(world, taken_out(items[2], 5))
    assert rates(world) == {"etl": 40_000}
    for item in (items[0], items[3], items[1]):
        await follow(world, taken_out(item, 6))
    assert rates(world) == {"etl": 20_000} and world.main.edition.origin("etl") == "file"


async def test_what_was_changed_at_the_agent_lies_on_top_over_a_restart() -> None:
    """Also where what the fleet has set arrives after the store was read."""
    items = [budget_item(ENFORCED), budget_item(WEB)]
    world = await opened(*items)
    await world.main.book.patch_budget("etl", {"rate": 30}, who="ann")
    await world.main.book.remove("web", who="ann")
    assert rates(world) == {"etl": 30_000}
    assert world.main.edition.origin("etl") == "changed"
    again = await opened(store=world.store, server=world.server)
    assert rates(again) == {}, "nothing is known of the fleet yet"
    await again.main.book.set_budget("mine", {**WEB, "name": "mine"}, who="ann")
    await follow(again, *items)
    assert rates(again) == {"mine": None, "etl": 30_000}
    await follow(again, budget_item({**ENFORCED, "capacity": 300}, 2))
    budget = again.main.edition.budget("etl")
    assert budget is not None and (budget.rate_mpct, budget.capacity_mpcts) == (30_000, 300_000)


async def test_a_budget_of_the_agents_own_is_not_lost_to_one_of_the_fleet() -> None:
    world = await opened()
    await world.main.book.set_budget("etl", {**ETL, "rate": 30}, who="ann")
    item = budget_item({**ETL, "rate": 10, "capacity": None})
    await follow(world, budget_item({**ETL, "rate": 10}))
    assert rates(world) == {"etl": 30_000} and world.main.edition.origin("etl") == "runtime"
    await follow(world, taken_out(item, 2))
    assert rates(world) == {"etl": 30_000}


async def test_one_that_ends_at_the_agent_gives_way_to_the_fleets() -> None:
    world = await opened(budget_item({**ETL, "rate": 10}))
    await world.main.book.set_budget("etl", {**ETL, "rate": 30, "for": "1h"}, who="ann")
    assert rates(world) == {"etl": 30_000}
    await world.clock.advance(3601)
    await world.budgets.tick()
    assert rates(world) == {"etl": 10_000} and world.main.edition.origin("etl") == "fleet"
    assert world.server.policies[-1][0].budgets[0].rate_mpct == 10_000


async def test_the_switch_for_all_applies_to_those_of_the_fleet_too() -> None:
    world = await opened(budget_item(ENFORCED))
    await world.main.book.cap(Mode.WARN, who="ann")
    assert world.server.modes == {"etl": "warn"}
    await follow(world, budget_item(ENFORCED, 2), budget_item({**WEB, "mode": "enforce"}, 2))
    assert world.server.modes == {"etl": "warn", "web": "warn"}


@given(documents, budgets, documents)
def test_whatever_the_layers_say_the_document_is_the_one_that_was_wanted(
    file: dict[str, Any], fleet: list[dict[str, Any]], wanted: dict[str, Any]
) -> None:
    of_fleet = tuple(FleetBudget(b["name"], b, "", EVERYWHERE, 1, "ann") for b in fleet)
    layers = Layers(file, of_fleet)
    changes = layers.changes_to(wanted)
    assert Layers(file, of_fleet, changes).document == wanted
    # Without the fleet, and with it again: nothing that was said is lost.
    alone = Layers(file, (), changes)
    waiting = alone.changes_to(alone.document)
    partly = {name: c for name, c in changes.budgets.items() if name in changes.of_fleet}
    in_file = {b["name"] for b in file["budgets"]}
    assert all(waiting.budgets.get(n, 0) == c for n, c in partly.items() if n not in in_file)


# --- following -----------------------------------------------------------------------------------


async def test_a_repeated_or_late_list_changes_nothing() -> None:
    first, second = budget_item(ETL), budget_item({**ETL, "rate": 30}, 2)
    world = await opened(first)
    await follow(world, second)
    told = len(world.server.policies)
    for late in ((second,), (first,), ()):
        await follow(world, *late)
    assert len(world.server.policies) == told and rates(world) == {"etl": 30_000}
    await follow(world, whole=True)
    assert rates(world) == {}


async def test_a_database_without_a_file_gets_a_policy_when_one_matches_it() -> None:
    """Before that, what lies at its server is left alone."""
    world = await opened(source="")
    had_one, told = world.main.has_policy, len(world.server.policies)
    assert (had_one, told) == (False, 0)
    await follow(world, budget_item(ETL))
    assert world.main.has_policy and world.server.modes == {"etl": "warn"}
    await follow(world, taken_out(budget_item(ETL), 2))
    assert world.server.modes == {}


async def test_a_database_that_comes_later_has_them_at_once() -> None:
    world = BudgetWorld()
    await world.store.open()
    await world.log.load()
    await world.budgets.follow([budget_item(ETL)], (HERE,))
    await world.budgets.adopt([world.plan()])
    await world.budgets.tick()
    assert world.server.modes == {"etl": "warn"}


async def test_while_the_store_is_unread_no_server_gets_a_policy() -> None:
    """What was changed here is not known: it may be that an operator has removed it."""
    world = BudgetWorld()
    await world.store.open()
    await world.budgets.adopt([world.plan()])
    await follow(world, budget_item(ETL))
    await world.budgets.tick()
    assert not world.server.policies
    await world.log.load()
    await world.budgets.tick()
    assert world.server.modes == {"etl": "warn"}


async def test_while_another_agent_of_the_pair_speaks_this_one_is_silent() -> None:
    world = await opened(passive=True)
    await follow(world, budget_item(ETL))
    assert not world.server.policies
    world.passive = False
    await world.budgets.tick()
    assert world.server.modes == {"etl": "warn"}


async def test_the_audit_has_what_the_fleet_brought() -> None:
    """Nobody changed it at this agent: it is no revision."""
    world = await opened(base=document(WEB))
    await follow(world, budget_item(ETL))
    await world.budgets.tick()
    newest, *_ = entries = await world.store.audit()
    assert (newest.who, newest.action, newest.target) == ("headgate", "policy.followed", "main")
    assert list(newest.after["budgets"]) == ["etl"] and newest.before["budgets"] == {}
    assert await world.history() == []
    again = await opened(
        budget_item(ETL), base=document(WEB), store=world.store, server=world.server
    )
    await again.budgets.tick()
    assert await again.store.audit() == entries


async def test_the_fleets_lies_beneath_what_is_said_at_the_agent_setting_by_setting() -> None:
    """Also where the fleet says it later, and after it takes its own back."""
    world = await opened(base=document({**ETL, "rate": 10}))
    await world.main.book.patch_budget("etl", {"mode": "enforce"}, who="ann")
    await follow(world, budget_item({**ETL, "rate": 40}))
    assert (rates(world), world.server.modes) == ({"etl": 40_000}, {"etl": "enforce"})
    revision = world.main.edition.revision
    await follow(world, taken_out(budget_item(ETL), 2))
    assert (rates(world), world.server.modes) == ({"etl": 10_000}, {"etl": "enforce"})
    assert world.main.edition.revision == revision == 1, "the fleet's is no revision of ours"


async def test_some_of_the_own_log_count_only_once_all_of_it_is_known() -> None:
    """What is not known yet may be the switch for all."""
    world = BudgetWorld(base=document(WEB))
    await world.store.open()
    await world.budgets.adopt([world.plan()])
    made = await world.main.book.set_budget("etl", ETL, who="ann")
    assert not world.server.policies and set(rates(world)) == {"web"}
    assert made.after.revision == 1
    await world.log.load()
    await world.budgets.tick()
    assert world.server.modes == {"web": "warn", "etl": "warn"}


async def test_what_is_for_one_agent_alone_counts_in_its_own_log_only() -> None:
    here = set_here(ChangeKind.BUDGET, "main/etl", {"settings": {"rate": 1}, "whole": False})
    capped = set_here(
        ChangeKind.POLICY, "main", {"policy": {}, "order": [], "mode_cap": "off", "of_fleet": []}
    )
    world = await opened(here, capped, base=document(ETL))
    assert (rates(world), world.server.modes) == ({"etl": 20_000}, {"etl": "warn"})
    assert all("one agent alone" in fault for fault in world.budgets.fleet_faults.values())
    await follow(world, here, capped, own=True)
    assert (rates(world), world.server.modes) == ({"etl": 1_000}, {"etl": "off"})
    wide = budget_item({**WEB, "burst": 9}, 2, "shard:commerce/-80")
    await follow(world, wide, own=True)
    assert world.main.edition.origin("web") == "shard", "of a shard, in the own log"


async def test_one_of_a_shard_has_its_time_also_in_place_of_one_from_a_fast_clock() -> None:
    now_s = NOW.wall_s
    fast = replace(budget_item(ETL, 1, "shard:commerce/-80"), set_at=now_s + 7200)
    ends = {**ETL, "rate": 30, "expires_at": iso(now_s + 3600)}
    wanted = replace(budget_item(ends, 2, "shard:commerce/-80"), set_at=now_s)
    world = await opened()
    await follow(world, succeeding(wanted, fast), own=True)
    await world.clock.advance(3590)
    await world.budgets.tick()
    assert world.server.modes == {"etl": "warn"}
    world.clock.set_wall(-7200)
    await world.clock.advance(20)
    await world.budgets.tick()
    await world.budgets.tick()
    assert world.server.modes == {}


# --- what cannot stand ---------------------------------------------------------------------------


async def test_one_that_cannot_be_read_is_reported_and_the_others_stay_in_force() -> None:
    bad = budget_item({**WEB, "burts": 5})
    world = await opened(bad, budget_item(ETL))
    assert world.server.modes == {"etl": "warn"}
    assert "burts" in world.budgets.fleet_faults["web@fleet"]
    await follow(world, budget_item({**ETL, "rate": 120}, 2))
    assert rates(world) == {"etl": 20_000}, "the last good one stays"
    named = budget_item({**WEB, "name": "web"}, 3)
    await follow(world, Change(named.kind, "other@fleet", named.reach, named.value, 3, 0.0, "ann"))
    assert "is named 'web' inside" in world.budgets.fleet_faults["other@fleet"]
    await follow(world, budget_item(ETL, 4), budget_item(WEB, 4))
    assert set(world.budgets.fleet_faults) == {"other@fleet"}


async def test_one_that_conflicts_with_the_rest_is_left_out_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each by itself is sound; together they are more than a policy may have."""
    monkeypatch.setattr(parse, "MAX_RULES", 12)
    many = [{"match": {"username": f"u{n}"}} for n in range(7)]
    world = await opened(base=document({**WEB, "rules": many}))
    big = budget_item({**ETL, "rules": many}, 1)
    await follow(world, big, budget_item({**ETL, "name": "small"}, 1))
    assert set(rates(world)) == {"web", "small"}
    assert "at most 12" in world.budgets.fleet_faults["etl@fleet on main"]
    change = await world.main.book.patch_budget("small", {"rate": 5}, who="ann")
    assert change.after.left_out
    await world.main.book.patch_budget("web", {"rules": many[:2]}, who="ann")
    assert not world.budgets.fleet_faults and "etl" in world.server.modes
    await world.budgets.tick()
    assert (await world.actions())[0] == ("headgate", "policy.followed")


async def test_one_that_ended_long_ago_is_not_taken_up() -> None:
    day_s = 86_400.0
    ended = budget_item({**ETL, "expires_at": iso(NOW.wall_s - 60)})
    old = budget_item({**WEB, "expires_at": iso(NOW.wall_s - 2 * day_s)})
    world = await opened(ended, old)
    assert list(rates(world)) == ["etl"] and world.server.modes == {}
