"""A policy is validated before it is kept, and kept before it is in force."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headgate.budgets.drafts import cap_budgets
from headgate.budgets.keeper import NoSuchBudget, PolicyKeeper
from headgate.budgets.layers import FleetBudget
from headgate.budgets.policy import Mode
from headgate.budgets.views import told_of
from headgate.changes.model import Change, ChangeKind
from headgate.changes.reach import EVERYWHERE, parse_reach
from headgate.changes.state import ChangeMade
from headgate.errors import Conflict, InvalidRequest, InvalidSettings, StoreUnavailable
from headgate.store.sqlite import SqliteStore
from tests.budgets.budget_world import ETL, PLACE, WEB, BudgetWorld, FakeServer, document
from tests.builders import NOW
from tests.changes.own_world import Unwritable, keep, set_here
from tests.fixtures.eventually import DEADLINE_S, aeventually
from tests.fixtures.memory_store import MemoryStore

STATE_6 = Path(__file__).parent.parent / "contracts" / "data" / "state-6"
ENFORCED = {**ETL, "mode": "enforce"}
CAP: dict[str, Any] = {"policy": {}, "order": [], "of_fleet": []}


async def opened(**given: Any) -> BudgetWorld:
    return await BudgetWorld(**given).start()


def names(book: PolicyKeeper) -> list[str]:
    return [budget.name for budget in book.edition.policy.budgets]


# --- changing --------------------------------------------------------------------------------


async def test_a_new_budget_starts_in_warn_is_kept_and_reaches_the_server() -> None:
    """R122, R129, R139"""
    world = await opened()
    change = await world.main.book.set_budget("etl", ETL, who="ann")
    assert world.server.modes == {"etl": "warn"}
    assert world.server.policies[-1][1] == change.after.revision > 0
    (kept,) = await world.own.history()
    assert (kept.who, kept.action, kept.n) == ("ann", "budget.set", change.after.revision)
    entry = (await world.store.audit())[0]
    assert (entry.who, entry.target) == ("ann", "main/etl")
    assert list(entry.after["budgets"]) == ["etl"] and entry.before["budgets"] == {}


async def test_a_patch_changes_what_it_says_and_null_takes_out() -> None:
    world = await opened(base=document(ENFORCED))
    book = world.main.book
    await book.patch_budget("etl", {"rate": 30, "capacity": None}, who="ann")
    budget = book.edition.budget("etl")
    assert budget is not None
    assert (budget.rate_mpct, budget.capacity_mpcts, budget.mode) == (30_000, None, Mode.ENFORCE)
    assert book.edition.origin("etl") == "changed"
    with pytest.raises(InvalidSettings, match="another budget"):
        await book.patch_budget("etl", {"name": "web"}, who="ann")


async def test_what_is_wrong_changes_nothing_and_is_reported_by_its_own_place() -> None:
    """R132: the last good one stays."""
    world = await opened(base=document(WEB, ETL))
    before, published = world.main.book.edition, len(world.server.policies)
    with pytest.raises(InvalidSettings) as rejected:
        await world.main.book.patch_budget("etl", {"rate": 120}, who="ann")
    assert str(rejected.value) == "rate: 120 is more than 100"
    with pytest.raises(InvalidSettings, match=r"budgets\[0\]\.rate"):
        await world.main.book.judge({"budgets": [{**ETL, "rate": 120}]})
    assert world.main.book.edition == before and len(world.server.policies) == published


async def test_nothing_changes_in_a_dry_run() -> None:
    """R140"""
    world = await opened(base=document(ETL))
    before = world.main.book.edition
    change = await world.main.book.judge({"budgets": [WEB]})
    assert change.changed and [b.name for b in change.after.policy.budgets] == ["web"]
    assert world.main.book.edition == before and len(world.server.policies) == 1


async def test_the_loser_of_two_changes_gets_a_conflict() -> None:
    world = await opened()
    book = world.main.book
    first = await book.set_budget("etl", ETL, who="ann", expect=0)
    with pytest.raises(Conflict, match=f"revision {first.after.revision}, not 0"):
        await book.set_budget("web", WEB, who="bob", expect=0)
    await book.set_budget("web", WEB, who="bob", expect=first.after.revision)
    assert names(book) == ["etl", "web"]


async def test_what_is_to_be_new_replaces_nothing() -> None:
    world = await opened(base=document(ETL))
    with pytest.raises(Conflict, match="already exists"):
        await world.main.book.set_budget("etl", ETL, who="ann", new=True)


async def test_a_change_that_changes_nothing_is_no_revision() -> None:
    world = await opened(base=document(ETL))
    before = world.main.book.edition.revision
    change = await world.main.book.patch_budget("etl", {"rate": 20}, who="ann")
    assert not change.changed and world.main.book.edition.revision == before


async def test_a_store_that_is_away_rejects_and_the_policy_stays() -> None:
    store = Unwritable()
    store.is_full = False
    world = await opened(base=document(ETL), store=store)
    store.is_full = True
    with pytest.raises(StoreUnavailable):
        await world.main.book.remove("etl", who="ann")
    assert world.server.modes == {"etl": "warn"}


async def test_of_changes_at_the_same_time_none_is_lost() -> None:
    """Each is worked out on the log, which may be ahead of what is in force."""
    world = await opened(base=document(ETL))
    book = world.main.book
    many = [{**WEB, "name": f"web{n}"} for n in range(8)]
    made = await asyncio.gather(
        *(book.set_budget(one["name"], one, who="ann") for one in many),
        book.patch_budget("etl", {"rate": 30}, who="bob"),
        book.cap(Mode.WARN, who="cy"),
    )
    assert names(book) == ["etl", *(one["name"] for one in many)]
    assert sorted(one.after.revision for one in made) == list(range(1, 11))
    assert book.edition.revision == 10 and book.edition.changes.mode_cap is Mode.WARN
    again = await world.restart()
    assert again.main.book.edition.document == book.edition.document


async def test_another_order_is_a_change_of_its_own() -> None:
    world = await opened()
    await world.apply(ETL, WEB)
    await world.apply(order=["web", "etl"])
    assert names(world.main.book) == ["web", "etl"]
    again = await world.restart()
    assert names(again.main.book) == ["web", "etl"]
    await again.own.rollback(1, who="ann", only=["budgets"])
    assert names(again.main.book) == ["etl", "web"]


async def test_a_budget_that_is_not_there_is_named_with_those_that_are() -> None:
    world = await opened(base=document(ETL, WEB))
    book = world.main.book
    for attempt in (
        book.patch_budget("els", {}, who="ann"),
        book.remove("els", who="ann"),
        book.forgive("els", who="ann"),
    ):
        with pytest.raises(NoSuchBudget, match=r"no budget 'els'; budgets: etl, web"):
            await attempt
    with pytest.raises(NoSuchBudget, match=r"traffic control is not set up for 'aux'.*main"):
        world.budgets.of("aux")


# --- switches --------------------------------------------------------------------------------


async def test_one_command_stops_every_budget_and_another_brings_each_back() -> None:
    """The kill switch: modes are kept for when it is lifted."""
    world = await opened(base=document(ENFORCED, WEB))
    book = world.main.book
    await book.cap(Mode.OFF, who="ann")
    assert world.server.modes == {"etl": "off", "web": "off"}
    await book.cap(Mode.WARN, who="ann")
    assert world.server.modes == {"etl": "warn", "web": "warn"}
    again = await world.restart()
    assert again.server.modes == {"etl": "warn", "web": "warn"}, "it outlives a restart"
    await again.main.book.cap(Mode.ENFORCE, who="ann")
    assert world.server.modes == {"etl": "enforce", "web": "warn"}


async def test_forgiving_raises_the_epoch_and_nothing_else() -> None:
    world = await opened(base=document(ETL))
    for epoch in (1, 2):
        await world.main.book.forgive("etl", who="ann")
        (budget,) = world.server.policies[-1][0].budgets
        assert (budget.epoch, budget.rate_mpct) == (epoch, 20_000)
    newer = document({**ETL, "rate": 30})
    await world.budgets.adopt([world.plan(newer)])
    await world.budgets.tick()
    (budget,) = world.server.policies[-1][0].budgets
    assert (budget.epoch, budget.rate_mpct) == (2, 30_000), "the file's change counts beneath it"


# --- history ---------------------------------------------------------------------------------


async def test_every_revision_is_kept_and_can_be_rolled_back_to() -> None:
    world = await opened(base=document(ETL))
    book = world.main.book
    await book.patch_budget("etl", {"rate": 10}, who="ann")
    first = book.edition.revision
    await book.patch_budget("etl", {"mode": "enforce", "rate": 5}, who="ann")
    await book.cap(Mode.WARN, who="bob")
    await world.own.rollback(first, who="cy", only=["budgets"])
    assert book.edition.document == document({**ETL, "rate": 10})
    assert book.edition.changes.mode_cap is Mode.WARN, "a switch is not of the document"
    assert world.server.modes == {"etl": "warn"}
    told = await world.own.history()
    assert [one.action for one in told] == [
        "rollback",
        "policy.capped",
        "budget.changed",
        "budget.changed",
    ]
    assert "etl: mode warn → enforce" in told[2].summary
    await world.own.rollback(0, who="cy", only=["budgets"])
    assert book.edition.document == document(ETL), "as the settings file has it"
    assert book.edition.changes.mode_cap is Mode.WARN


async def test_what_an_earlier_version_kept_is_on_the_file(tmp_path: Path) -> None:
    """Its policies are items of the log since then (store/statecopy.py)."""
    (tmp_path / "state.db").write_bytes((STATE_6 / "state.db").read_bytes())
    store = SqliteStore(tmp_path / "state.db", deadline_s=DEADLINE_S)
    world = await opened(base=document(WEB, ETL), store=store)
    book = world.main.book
    assert names(book) == ["etl", "new"] and book.edition.revision == 14
    assert (book.edition.origin("etl"), book.edition.origin("new")) == ("changed", "runtime")
    assert await world.history() == []
    await book.patch_budget("new", {"rate": 7}, who="ann")
    await book.set_budget("web", WEB, who="ann")
    (second, first) = await world.own.history()
    await world.own.rollback(first.n, who="ann")
    assert names(book) == ["etl", "new"] and second.n == first.n + 1
    await world.store.close()


async def test_what_was_changed_is_there_after_a_restart(tmp_path: Path) -> None:
    """R141"""
    store = SqliteStore(tmp_path / "state.db", deadline_s=DEADLINE_S)
    world = await opened(base=document(ETL), store=store)
    await world.main.book.set_budget("web", WEB, who="ann")
    await world.main.book.remove("etl", who="ann")
    revision = world.main.book.edition.revision
    await world.store.close()
    again = await world.restart()
    assert names(again.main.book) == ["web"]
    assert again.main.book.edition.revision == revision
    assert again.server.policies[-1][1] == revision
    await again.store.close()


async def test_what_was_kept_before_the_agent_was_killed_is_published_by_the_next() -> None:
    """Between the log and the server."""
    world = await opened(base=document(ETL))
    world.server.goes_on.clear()
    making = asyncio.create_task(world.main.book.set_budget("web", WEB, who="ann"))
    await aeventually(lambda: world.server.tries == 2)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    server = FakeServer()
    again = await world.restart(server=server)
    assert server.modes == {"etl": "warn", "web": "warn"}
    (kept,) = await again.own.history()
    assert (kept.action, kept.n) == ("budget.set", again.main.book.edition.revision)


async def test_a_budget_of_the_file_that_is_gone_is_lifted_also_by_a_start() -> None:
    """Else an agent without a policy leaves alone what lies at the server."""
    for restarts in (False, True):
        world = await opened(base=document(ETL))
        world.source = ""
        if restarts:
            world = await world.restart(base=document())
        else:
            await world.budgets.adopt([world.plan(document())])
            await world.budgets.tick()
        assert world.main.has_policy and world.server.modes == {}
    new = await opened(base=document(), source="")
    await new.budgets.tick()
    again = await new.restart()
    await again.budgets.tick()
    assert not again.main.has_policy and not again.server.policies


async def test_another_file_is_in_the_audit_and_beneath_the_changes() -> None:
    """Nobody changed it here: it is no revision."""
    world = await opened(base=document(ETL))
    changed = await world.main.book.patch_budget("etl", {"mode": "enforce"}, who="ann")
    newer = document({**ETL, "rate": 30}, WEB)
    await world.budgets.adopt([world.plan(newer)])
    await world.budgets.tick()
    entry = (await world.store.audit())[0]
    assert (entry.who, entry.action, entry.target) == ("headgate", "policy.read", "main")
    assert [b["rate"] for b in entry.before["budgets"].values()] == [20]
    assert [b.get("rate") for b in entry.after["budgets"].values()] == [30, None]
    edition = world.main.book.edition
    assert edition.document == document({**ETL, "rate": 30, "mode": "enforce"}, WEB)
    assert edition.revision == changed.after.revision
    assert world.server.modes == {"etl": "enforce", "web": "warn"}
    await world.budgets.tick()
    again = await world.restart(base=newer)
    actions = [action for _, action in await again.actions()]
    assert actions == ["policy.read", "budget.changed", "policy.read"], "kept once"
    await world.restart(base=document(WEB))
    entry = (await world.store.audit())[0]
    assert (entry.action, entry.before) == ("policy.read", None), "what it was, nobody knows"
    assert list(entry.after["budgets"]) == ["web"]


async def test_changes_that_cannot_stand_on_the_new_file_leave_it_alone() -> None:
    world = await opened(base=document({**ETL, "concurrency": 10}))
    await world.main.book.patch_budget("etl", {"burst": 10}, who="ann")
    await world.main.book.cap(Mode.WARN, who="ann")
    await world.main.book.patch_budget("etl", {"concurrency": None, "max_workers": 2}, who="ann")
    newer = document({**ETL, "mode": "enforce"})
    await world.budgets.adopt([world.plan(newer)])
    await world.budgets.tick()
    assert world.server.modes == {"etl": "warn"}, "a switch stands in any case"


async def test_a_file_is_kept_once_the_store_is_back() -> None:
    store = Unwritable()
    world = await opened(base=document(ETL), store=store)
    assert world.server.modes == {"etl": "warn"}, "no server waits for the store"
    assert await world.actions() == []
    store.is_full = False
    await world.budgets.tick()
    assert await world.actions() == [("headgate", "policy.read")]


async def test_while_the_changes_are_not_known_no_server_gets_a_policy() -> None:
    """A switch that was thrown must not be undone because the disk cannot be read."""
    world = BudgetWorld(base=document(ETL))
    await world.budgets.adopt([world.plan()])
    await world.budgets.tick()
    assert world.server.policies == []
    await world.store.open()
    await world.log.load()
    await world.budgets.tick()
    assert world.server.modes == {"etl": "warn"}


async def test_changes_of_another_version_are_reported_and_left_out() -> None:
    """Also of the items that a change puts and takes out: an agent of that version needs them."""
    store = MemoryStore()
    await store.open()
    odd = set_here(ChangeKind.BUDGET, "main/odd", {"settings": 7, "whole": True})
    capped = set_here(ChangeKind.POLICY, "main", {"mode_cap": ["warn"]})
    await keep(store, odd, capped)
    world = await BudgetWorld(base=document(ETL), store=store).start()
    assert world.server.modes == {"etl": "warn"}
    assert set(world.budgets.fleet_faults) == {"main/odd", "main"}
    await world.main.book.set_budget("web", WEB, who="ann")
    await world.main.book.remove("etl", who="ann")
    held = await world.own.load()
    assert held.items[ChangeKind.BUDGET, "main/odd"] == odd
    assert held.items[ChangeKind.POLICY, "main"] == capped


# --- time ------------------------------------------------------------------------------------


async def test_a_budget_for_a_while_is_dropped_when_its_time_is_over() -> None:
    world = await opened(base=document(WEB))
    await world.main.book.set_budget("etl", {**ETL, "for": "2h"}, who="ann")
    (_, budget) = world.server.policies[-1][0].budgets
    assert budget.expires_at_ms == round(NOW.wall_s + 7200) * 1000
    world.clock._step(7199)
    await world.budgets.tick()
    assert list(world.server.modes) == ["web", "etl"]
    world.clock._step(2)
    await world.budgets.tick()
    assert list(world.server.modes) == ["web"] and names(world.main.book) == ["web"]
    assert (await world.history())[0] == "budget.expired"


async def test_the_files_budget_stays_in_the_document_and_goes_from_the_server() -> None:
    ends = NOW.wall_s + 60
    world = await opened(base=document({**ETL, "expires_at": ends}, WEB))
    assert list(world.server.modes) == ["etl", "web"]
    world.clock._step(61)
    await world.budgets.tick()
    await world.budgets.tick()
    assert list(world.server.modes) == ["web"] and names(world.main.book) == ["etl", "web"]
    assert len(world.server.policies) == 2, "told once"


async def test_what_was_taken_out_a_day_ago_is_forgotten_but_for_the_revision() -> None:
    world = await opened(base=document(ETL))
    book = world.main.book
    for name in ("a", "b", "c"):
        await book.set_budget(name, {**WEB, "name": name}, who="ann")
        await book.remove(name, who="ann")
    revision = book.edition.revision
    world.clock._step(86_401)
    await world.budgets.tick()
    held = await world.own.load()
    assert set(held.items) == {(ChangeKind.BUDGET, "main/c")}
    assert (await world.restart()).main.book.edition.revision == revision


@pytest.mark.parametrize("given", [{"for": "soon"}, {"for": "2h", "expires_at": 2e9}])
async def test_an_end_is_said_once_and_in_plain_words(given: dict[str, Any]) -> None:
    world = await opened()
    with pytest.raises(InvalidSettings, match=r"^for: "):
        await world.main.book.set_budget("etl", {**ETL, **given}, who="ann")


async def test_a_large_policy_is_validated_beside_the_loop() -> None:
    world = await opened()
    many = [
        {**ETL, "name": f"b{n}", "rules": [{"match": {"username": f"u{n}"}}]} for n in range(600)
    ]
    await world.apply(*({**one, "expires_at": NOW.wall_s + 60} for one in many))
    assert len(world.server.policies[-1][0].budgets) == 600
    world.clock._step(61)
    await world.budgets.tick()
    entry = (await world.store.audit())[0]
    assert isinstance(entry.before["budgets"], list), "of so many, the names"


async def test_a_reader_delays_no_change() -> None:
    """A dry run needs no token; it must not stand between an operator and the switch."""
    world = await BudgetWorld(document(ETL)).start()
    book = world.main.book
    async with world.main.in_force._lock, world.own._own.lock, asyncio.timeout(DEADLINE_S):
        change = await book.judge(document(ETL, WEB))
    assert change.changed and change.dry_run


async def test_the_switch_that_cannot_be_kept_names_the_one_that_needs_no_store() -> None:
    store = Unwritable()
    world = await BudgetWorld(document(ETL), store=store).start()
    with pytest.raises(StoreUnavailable, match=r"disk full.*headgate pg disable"):
        await world.main.book.cap(Mode.OFF, who="ann")


async def test_a_budget_that_its_shard_brings_meanwhile_is_not_removed_at_one_agent_alone() -> None:
    """R164: an agent that waits for others has it only when the change's turn comes."""
    world = await BudgetWorld().start()
    book, shared = world.main.book, {"name": "new", "rate": 5}
    reach = parse_reach("shard:commerce/-80")
    of_shard = FleetBudget("new", shared, f"new@{reach}", reach, 3, "ann", of_shard=True)
    make = world.own.make

    async def later(*args: Any, **more: Any) -> ChangeMade:
        await world.main.in_force.follow([of_shard])
        return await make(*args, **more)

    world.own.make = later  # type: ignore[method-assign]
    with pytest.raises(InvalidRequest, match="just came from its shard"):
        await book.remove("new", who="bob")
    assert book.edition.of_shard("new") is not None


async def test_the_switch_for_all_applies_as_far_as_it_was_set() -> None:
    """Of several switches the mildest mode counts; each is lifted where it was set."""
    world = await opened(base=document(ENFORCED))
    shard = parse_reach(f"shard:{PLACE.shard}")
    set_ = partial(cap_budgets, mode=Mode.WARN, reach=shard)
    await world.own.make(set_, "ann")
    assert world.server.modes == {"etl": "warn"}, "at once, as everything of the own log"
    item = Change(
        ChangeKind.POLICY, "all@fleet", EVERYWHERE, {**CAP, "mode_cap": "off"}, 1, 0.0, "dora"
    )
    await world.budgets.follow([item], (PLACE,), whole=True)
    await world.budgets.tick()
    assert world.server.modes == {"etl": "off"}
    assert world.main.edition.changes.mode_cap is Mode.ENFORCE, "nothing was changed here"
    await world.main.book.cap(Mode.WARN, who="ann")
    await world.main.book.cap(Mode.ENFORCE, who="ann")
    assert world.server.modes == {"etl": "off"}
    assert any("for fleet, by dora" in one for one in told_of(world.main, 0.0))
    world = await world.restart()
    await world.budgets.follow([replace(item, value=None, n=2)], (PLACE,), whole=True)
    await world.budgets.tick()
    assert world.server.modes == {"etl": "warn"}, "the shard's is in the own log"
    await world.own.make(partial(cap_budgets, mode=Mode.ENFORCE, reach=shard), "ann")
    assert world.server.modes == {"etl": "enforce"}
    assert (await world.own.make(set_, "ann", dry_run=True)).changes


async def test_beyond_one_agent_a_policy_is_nothing_but_the_switch() -> None:
    world = await opened(base=document(ENFORCED))
    value = {**CAP, "mode_cap": "off", "policy": {"exempt_usernames": ["etl"]}}
    item = Change(ChangeKind.POLICY, "all@fleet", EVERYWHERE, value, 1, 0.0, "dora")
    await world.budgets.follow([item], (PLACE,), whole=True)
    assert "nothing else" in world.budgets.fleet_faults["all@fleet"]
    assert world.main.edition.mode_cap is Mode.ENFORCE
