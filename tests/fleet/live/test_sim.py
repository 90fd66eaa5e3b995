"""The simulation of a fleet (bench/fleet_sim.py), small: its bounds hold at every commit."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest
import structlog
from bench.fleet_sim import Asked, play, quieten
from bench.fleet_sim_bounds import Told, faults
from bench.fleet_sim_net import Rates
from bench.fleet_sim_scenes import Storm
from bench.fleet_sim_time import Deadlock, VirtualLoop, run

from headgate.fleet import beat as fleet_timing
from headgate.fleet import registrar

SHARDS = 20
MANY_SHARDS = 60
MANY_SPREAD_S = 3.0
"""What MANY_SHARDS do at once is spread over so long, as it would be for 600."""


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    """And without looking for rings of garbage, which would cost a third."""
    was = structlog.get_config()
    quieten()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        structlog.configure(**was)
        gc.collect()


@pytest.fixture(scope="module")
def told(quiet: None) -> Told:
    """One run for all: a minute of a small fleet's life."""
    scenes = ("restart", "rest", "steady", "loss", "fallback", "cold")
    return run(play(SHARDS, Asked(scenes, seconds=3.0, away_s=10.0, beats=3)))


@pytest.fixture(scope="module")
def many(quiet: None) -> tuple[Told, list[str]]:
    """And what was broken, by the bounds of its pace."""
    with pytest.MonkeyPatch.context() as patch:
        return storms(patch, "restart", "rest", "roles")


def storms(
    patch: pytest.MonkeyPatch,
    *scenes: str,
    contacts_per_s: float = MANY_SHARDS / MANY_SPREAD_S,
) -> tuple[Told, list[str]]:
    """Of a fleet that is large, by how often it may turn to its store."""
    patch.setattr(fleet_timing, "CONTACTS_PER_S", contacts_per_s)
    told = run(play(MANY_SHARDS, Asked(scenes, beats=3)))
    return told, faults([told])


def test_a_rule_is_in_force_at_all_agents_within_a_second(told: Told) -> None:
    """R84: from the operator's request on, for the whole fleet and for one shard."""
    assert told.steady is not None
    assert told.steady.missed == 0
    assert told.steady.wide.count >= SHARDS * 3
    assert told.steady.wide.p99 < 1.0
    assert told.steady.narrow.p99 < 1.0


def test_an_agent_receives_no_more_in_a_larger_fleet(
    told: Told, many: tuple[Told, list[str]]
) -> None:
    """R39: three times as many shards, and as many messages an agent and a second."""
    assert told.rest is not None
    assert many[0].rest is not None
    sizes = [Told(SHARDS, rest=told.rest), Told(MANY_SHARDS, rest=many[0].rest)]
    assert not faults(sizes)
    assert many[0].rest.messages_replica > told.rest.messages_replica / 1.3
    assert 1.0 < told.rest.messages_primary < 4.0
    assert 0.5 < told.rest.messages_replica < 2.0


def test_messages_that_grow_with_the_fleet_are_a_fault(told: Told) -> None:
    """That the bound above would show it."""
    assert told.rest is not None
    more = replace(told.rest, messages_replica=1.5 * told.rest.messages_replica)
    (fault,) = faults([Told(SHARDS, rest=told.rest), Told(MANY_SHARDS, rest=more)])
    assert "replica's agent are not flat" in fault


def test_a_store_that_is_away_takes_no_rule_away(told: Told) -> None:
    """R84: all know that they are stale, and all have the next rule soon after its return."""
    assert told.loss is not None
    assert told.loss.rules_lost == 0
    assert told.loss.stale == SHARDS * 3
    assert told.loss.fresh_after_s < 30.0


def test_replicas_turn_to_the_store_and_back(told: Told) -> None:
    assert told.fallback is not None
    assert told.fallback.to_store.count == told.fallback.replicas
    assert told.fallback.to_store.most < 15.0
    assert told.fallback.rule_missed == 0
    assert told.fallback.back.count == told.fallback.replicas


def test_a_fleet_that_starts_at_once_has_its_rules(told: Told) -> None:
    assert told.restart is not None
    assert told.restart.in_force_at_once == told.restart.agents == SHARDS * 3
    assert told.restart.all_follow_after_s < 15.0


def test_a_fleet_with_empty_disks_follows_soon_and_registers_later(told: Told) -> None:
    """Primaries' agents come at once, as nobody knows how large the fleet is; no more than that:
    a list and a watch each, and what is to be registered waits until the size is known."""
    assert told.cold is not None
    assert told.cold.in_force_at_once == 0
    assert told.cold.follow == told.cold.agents == SHARDS * 3
    assert told.cold.unanswered == 0
    assert told.cold.storm.peak < 2 * told.cold.agents


# --- nobody comes at once -----------------------------------------------------------------------


def test_what_a_large_fleet_does_at_once_is_spread(many: tuple[Told, list[str]]) -> None:
    """All start, and all lose sight of their servers for two seconds: no stampede."""
    told, broken = many
    assert broken == []
    assert told.roles is not None
    assert told.restart is not None
    assert told.restart.storm.over_s == 4 * MANY_SPREAD_S


def test_without_spreading_the_same_bounds_show_a_stampede(
    monkeypatch: pytest.MonkeyPatch, quiet: None
) -> None:
    monkeypatch.setattr(fleet_timing, "LEAST_SPREAD_S", 1e-6)
    monkeypatch.setattr(fleet_timing, "MOST_SPREAD_S", 1e-6)
    monkeypatch.setattr(registrar, "LOST_AFTER_S", 0.0)
    told, faults_found = storms(monkeypatch, "restart", "roles")
    broken = "\n".join(faults_found)
    assert told.restart is not None
    assert told.restart.storm.peak > 2 * told.restart.agents
    assert "kinds of contact" in broken
    assert "× the mean of 12 s" in broken
    assert "writes by 180 agents for roles" in broken


def test_a_storm_of_a_moment_is_not_its_own_mean() -> None:
    """Also one that lies across two seconds."""
    now_s = [0.0]
    rates = Rates(lambda: now_s[0])
    for now_s[0] in (4.7, 4.9, 5.2, 5.6, 9.0):
        for _ in range(100):
            rates.count()
    storm = Storm.of(rates, 4.0, 20.0)
    assert (storm.total, storm.peak, storm.mean) == (500, 400, 25.0)
    later = Storm.of(rates, 4.0, 1.0, 10.0)
    assert (later.total, later.peak) == (200, 400), "the peak is looked for until the end"


# --- the time of the simulation ------------------------------------------------------------


def test_time_passes_only_where_a_task_waits() -> None:
    async def life() -> list[tuple[str, float]]:
        loop, seen = asyncio.get_running_loop(), list[tuple[str, float]]()

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, loop.time()))

        await asyncio.gather(
            sleeper("late", 3600.0), sleeper("soon", 1.0), sleeper("soon too", 1.0)
        )
        return seen

    assert run(life()) == [("soon", 1.0), ("soon too", 1.0), ("late", 3600.0)]


def test_waiting_for_nothing_is_found_out() -> None:
    loop = VirtualLoop()
    with pytest.raises(Deadlock):
        loop.run_until_complete(loop.create_future())
    loop.close()
