"""A server that cannot be told is tried again, seen by all, and never told an older policy last."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from headgate.budgets import publisher as budgetpublisher
from headgate.budgets.readings import BudgetReadings, Lying
from headgate.budgets.service import TOLD_FOR_MS
from headgate.budgets.views import policy_doc, told_of
from tests.budgets.budget_world import ETL, WEB, BudgetWorld, FakeServer, document

PRESSED = {**ETL, "when": "unhealthy"}


async def test_what_cannot_be_published_is_seen_and_tried_again_after_longer_and_longer() -> None:
    """R132"""
    world = await BudgetWorld(document(ETL), server=FakeServer("disk full")).start()
    (outlet,) = world.main.publisher.outlets
    assert (outlet.fault, outlet.failures_total, outlet.published) == ("disk full", 1, None)
    tries = []
    for _ in range(20):
        world.clock._step(1)
        await world.budgets.tick()
        tries.append(world.server.tries)
    assert tries[:8] == [2, 2, 3, 3, 3, 3, 4, 4], "after 1, 2, 4, 8 … s"
    world.server.fault = ""
    world.clock._step(30)
    await world.budgets.tick()
    assert outlet.fault == "" and world.server.modes == {"etl": "warn"}
    tried = world.server.tries
    await world.budgets.tick()
    assert world.server.tries == tried, "once it has it, it is left alone"


async def test_a_change_is_made_though_the_server_does_not_take_it() -> None:
    world = await BudgetWorld(document(ETL)).start()
    world.server.fault = "read-only file system"
    await world.main.book.remove("etl", who="ann")
    (outlet,) = world.main.publisher.outlets
    assert outlet.fault == "read-only file system" and outlet.told != world.main.publisher.wanted
    assert await world.history() == ["budget.removed"]


async def test_what_hangs_is_not_begun_beside_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the older policy could be written last."""
    world = await BudgetWorld(document(ETL)).start()
    monkeypatch.setattr(budgetpublisher, "PUBLISH_TIMEOUT_S", 0.02)
    world.server.goes_on.clear()
    await world.main.book.set_budget("web", WEB, who="ann")
    await world.main.book.remove("etl", who="ann")
    (outlet,) = world.main.publisher.outlets
    assert world.server.tries == 2 and "not done within" in outlet.fault
    monkeypatch.undo()
    world.server.goes_on.set()
    world.clock._step(60)
    await world.budgets.tick()
    assert [sorted(b.name for b in p.budgets) for p, _ in world.server.policies] == [
        ["etl"],
        ["etl", "web"],
        ["web"],
    ]
    assert outlet.fault == ""


async def test_a_passive_agent_publishes_nothing_until_it_takes_over() -> None:
    world = await BudgetWorld(document(ETL), passive=True).start()
    await world.main.book.set_budget("web", WEB, who="ann")
    assert world.server.policies == [] and world.server.health == []
    world.passive = False
    await world.budgets.tick()
    assert list(world.server.modes) == ["etl", "web"]


# --- health ----------------------------------------------------------------------------------


async def test_a_budget_that_bites_under_pressure_hangs_on_the_default_metrics() -> None:
    """R147, R133"""
    world = await BudgetWorld(document(PRESSED)).start()
    assert world.server.health == [], "nothing is measured: not known"
    world.watch_lag()
    await world.budgets.tick()
    assert world.server.health == [], "nor has a probe finished"
    until_ms = int(world.clock.now().wall_s * 1000) + TOLD_FOR_MS
    world.measure(1.0)
    await world.budgets.tick()
    world.measure(9.0)
    await world.budgets.tick()
    assert world.server.health == [(True, until_ms), (False, until_ms)]
    world.measure(1.0)
    world.clock._step(100)
    await world.budgets.tick()
    assert world.server.health[-1][0] is False, "a value that is too old lets nothing through"


async def test_such_a_budget_keeps_the_metrics_awake_and_others_do_not() -> None:
    """R61"""
    world = await BudgetWorld(document(PRESSED)).start()
    keepers = world.demands.by_database["main"].keepers
    assert keepers == {"budgets"}
    await world.main.book.patch_budget("etl", {"when": "always"}, who="ann")
    await world.budgets.tick()
    assert keepers == set() and world.server.health == []
    await world.main.book.patch_budget("etl", {"when": "unhealthy"}, who="ann")
    await world.budgets.tick()
    await world.budgets.adopt([])
    assert keepers == set(), "nor once traffic control is gone"


async def test_health_that_cannot_be_published_is_seen() -> None:
    world = await BudgetWorld(document(PRESSED)).start()
    world.watch_lag()
    world.measure(1.0)
    world.server.fault = "disk full"
    await world.budgets.tick()
    (outlet,) = world.main.publisher.outlets
    assert outlet.health_fault == "disk full"
    world.server.fault = ""
    await world.budgets.tick()
    assert outlet.health_fault == ""


# --- what lies there -------------------------------------------------------------------------


async def test_a_policy_that_is_gone_or_older_is_put_back_and_reported() -> None:
    """R132: a restore of the data directory does not lift limits."""
    world = await BudgetWorld(document(ETL)).start()
    (outlet,) = world.main.publisher.outlets
    first = world.server.lies
    await world.main.book.set_budget("web", WEB, who="ann")
    for lies, words in ((None, "missing"), (first, "an older policy was there, version 1")):
        world.clock._step(budgetpublisher.CALM_S + 1)
        world.server.lies = lies
        await world.budgets.tick()
        assert list(world.server.modes) == ["etl", "web"] and words in outlet.displaced.found
        assert any(words in told for told in told_of(world.main, world.clock.now().wall_s))
    assert outlet.displaced.total == 2 and outlet.told == world.main.publisher.wanted
    tried = world.server.tries
    await world.budgets.tick()
    assert world.server.tries == tried, "once it lies there, it is left alone"


async def test_who_publishes_beside_the_agent_again_and_again_is_not_outrun() -> None:
    world = await BudgetWorld(document(ETL)).start()
    with capture_logs() as logs:
        for second in range(20):
            world.server.lies = Lying(90 + second, 0xF00, 999, off=False)
            await world.budgets.tick()
            world.clock._step(1)
    (outlet,) = world.main.publisher.outlets
    assert 3 <= outlet.displaced.total <= 6, "at once, then after 2, 4, 8 … s"
    assert [log["event"] for log in logs].count("policy.put_back") == 1
    assert "another program's policy was there, version" in outlet.displaced.found


async def test_what_the_server_itself_goes_by_counts_whatever_lies_there() -> None:
    world = await BudgetWorld(document(ETL)).start()
    world.server.reads = BudgetReadings(version=7, checksum=0xF00, started_ms=1)
    await world.budgets.tick()
    await world.budgets.tick()
    assert len(world.server.policies) == 2
    assert "version 7" in world.main.publisher.outlets[0].displaced.found


async def test_what_is_switched_off_at_the_server_is_shown_and_not_undone() -> None:
    """R122"""
    world = await BudgetWorld(document({**ETL, "mode": "enforce"})).start()
    (outlet,) = world.main.publisher.outlets
    (lies, was_off) = world.server.lies, world.main.is_off
    assert lies is not None and not was_off
    world.server.lies = lies._replace(version=2, checksum=0xF00, off=True)
    await world.budgets.tick()
    assert world.main.is_off and outlet.displaced.total == 0
    wall_s = world.clock.now().wall_s
    doc = policy_doc(world.main, None, wall_s)
    assert (doc.is_off, doc.published[0].off, doc.budgets[0].state) == (True, True, "off")
    assert any("headgate pg enable" in told for told in told_of(world.main, wall_s))
    await world.main.book.patch_budget("etl", {"rate": 30}, who="ann")
    assert outlet.published is not None and outlet.published.off
    assert world.server.lies is not None
    world.server.lies = world.server.lies._replace(version=9, off=False)
    await world.budgets.tick()
    assert [world.main.is_off, outlet.displaced.total] == [False, 0]


async def test_an_agent_without_a_policy_leaves_alone_what_is_in_force() -> None:
    """A new agent, or one whose state was lost, lifts nobody's limits."""
    world = BudgetWorld(source="")
    world.server.lies = Lying(23, 0xF00, 999, off=False)
    await world.start()
    assert [world.server.tries, world.main.has_policy] == [0, False]
    (told,) = told_of(world.main, world.clock.now().wall_s)
    assert "version 23 is in force, published by another program" in told
    await world.main.book.set_budget("web", WEB, who="ann")
    assert world.main.has_policy and list(world.server.modes) == ["web"]
    again = await world.restart()
    assert again.server.tries == 2, "what was changed here is its own from now on"


async def test_the_agents_own_role_is_exempt_whatever_the_policy_says() -> None:
    """R147: else a budget that rejects the probes makes the database unhealthy, and one that
    bites when it is never lets go."""
    world = await BudgetWorld(document(PRESSED, exempt_usernames=["ann"]), own_role="hg").start()
    policy, _ = world.server.policies[-1]
    assert policy.exempt_usernames == ("hg", "ann")
    doc = policy_doc(world.main, None, 0.0)
    assert doc.own_role == doc.budgets[0].own_role == "hg"
    assert "hg" not in str(doc.document), "not written into anybody's file"
    many = [f"u{n}" for n in range(64)]
    await world.apply(exempt_usernames=many)
    policy, _ = world.server.policies[-1]
    assert policy.exempt_usernames == ("hg", *many[:63])
    assert any("u63 is left out" in str(one) for one in world.main.edition.advice)


async def test_a_look_that_hangs_is_seen_and_delays_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await BudgetWorld(document(ETL)).start()
    monkeypatch.setattr(budgetpublisher, "LOOK_TIMEOUT_S", 0.01)
    world.server.goes_on.clear()
    await world.budgets.tick()
    (outlet,) = world.main.publisher.outlets
    assert "hang" in outlet.look_fault
    assert any("cannot be looked at" in told for told in told_of(world.main, 0.0))
    world.server.goes_on.set()
    await world.budgets.tick()
    assert outlet.look_fault == "" and outlet.displaced.total == 0
