"""A pair that elects through three real etcd members, while those are killed, frozen and lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from headgate.base.clock import Dice, SystemClock
from headgate.changes.etcd import EtcdAccess, EtcdStore
from headgate.shard import election
from headgate.shard.election import Candidate, Elector, Office
from tests.fixtures.agents import AgentProcess, postgres_database
from tests.fixtures.etcd import QUICK, EtcdCluster
from tests.fixtures.eventually import DEADLINE_S, aeventually, eventually
from tests.fixtures.shard_agents import running, shard_agents

TTL_S = 3.0
LONG_S = 10 * DEADLINE_S
"""Nobody waits for the end of such a term."""
CLOCK = SystemClock()
NOWHERE = "host=127.0.0.1 port=9 user=x dbname=x"


class Watched:
    """Two electors, and how many led at once, looked at all the while."""

    def __init__(self, electors: dict[str, Elector]) -> None:
        self.electors = electors
        self.most_leaders = 0

    def offices(self) -> list[str]:
        return sorted(elector.office().value for elector in self.electors.values())

    def leader(self) -> str:
        found = [n for n, e in self.electors.items() if e.office() is Office.LEADING]
        return found[0] if found else ""

    async def look(self) -> None:
        while True:
            self.most_leaders = max(self.most_leaders, self.offices().count("leading"))
            await CLOCK.sleep(0.005)


@asynccontextmanager
async def pair(endpoints: list[str], prefix: str, ttl_s: float) -> AsyncIterator[Watched]:
    async with AsyncExitStack() as undo:
        electors = {}
        tasks = []
        for at, name in enumerate(("a", "b")):
            # Each begins at another member, as agents do.
            store = EtcdStore(
                [*endpoints[at:], *endpoints[:at]],
                EtcdAccess(),
                prefix,
                timeout_s=min(ttl_s / 2, DEADLINE_S),
                roll=lambda: 0.0,
            )
            undo.push_async_callback(store.close)
            url = f"http://{name}:8087"
            electors[name] = Elector(
                store,
                CLOCK,
                Dice().roll,
                Candidate("pair", name, url, ttl_s, among=["http://{host}:8087"]),
            )
            tasks.append(asyncio.create_task(electors[name].run()))
        watched = Watched(electors)
        tasks.append(asyncio.create_task(watched.look()))
        try:
            yield watched
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_one_leads_and_when_it_leaves_the_other_follows_at_once(
    etcd_endpoints: list[str], etcd_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R52"""
    monkeypatch.setattr(election, "LEAVE_WITHIN_S", DEADLINE_S)
    async with pair(etcd_endpoints, etcd_prefix, LONG_S) as watched:
        await aeventually(lambda: watched.offices() == ["following", "leading"])
        leader = watched.leader()
        await watched.electors[leader].leave()
        await aeventually(lambda: watched.leader() not in ("", leader))
        assert watched.most_leaders == 1


async def test_through_a_frozen_leader_and_a_lost_quorum_two_never_lead() -> None:
    """R53: nobody leads without the store, and both say so."""
    with EtcdCluster.started(members=3, pace=QUICK) as cluster:
        async with pair(cluster.endpoints, "/election/", TTL_S) as watched:
            await aeventually(lambda: watched.offices() == ["following", "leading"])

            frozen = cluster.leader()
            frozen.pause()
            await aeventually(lambda: any(m.leads() for m in cluster.members if m is not frozen))
            await aeventually(lambda: watched.offices() == ["following", "leading"])
            frozen.resume()
            await aeventually(lambda: watched.offices() == ["following", "leading"])

            lost = cluster.members[:2]
            for member in lost:
                member.pause()
            await aeventually(lambda: watched.offices() == ["alone", "alone"])
            # A term may end while the request that will fail is still under way.
            await aeventually(lambda: all(e.state().fault for e in watched.electors.values()))
            for member in lost:
                member.resume()
            await aeventually(lambda: watched.offices() == ["following", "leading"])
            assert watched.most_leaders == 1


def test_of_two_real_agents_one_answers_and_the_other_takes_over_when_it_stops(
    etcd_endpoints: list[str], etcd_prefix: str, tmp_path: Path
) -> None:
    """R52: the same host twice, by the same name; neither is told which is the active one. Who
    stops leaves its office: nobody waits for a term to end."""
    agents = shard_agents(["one", "two"], tmp_path)
    fleet = f'[fleet]\nendpoints = {json.dumps(etcd_endpoints)}\nprefix = "{etcd_prefix}"\n'
    for process in agents.agents.values():
        own = 'name = "db-a"\nelect = "db-a-pair"\nelect_ttl_s = 300'
        process.write_settings(postgres_database(NOWHERE, "loadavg", more="") + fleet, own)

    def sent_to(name: str) -> str:
        return str(agents[name].check().get("check_at") or "")

    def is_elected() -> bool:
        urls = {agents["one"].url, agents["two"].url}
        return sorted(map(bool, (sent_to("one"), sent_to("two")))) == [False, True] and (
            urls > {sent_to("one"), sent_to("two")} - {""}
        )

    with running(agents):
        eventually(is_elected)
        passive, active = ("one", "two") if sent_to("one") else ("two", "one")
        assert sent_to(passive) == agents[active].url
        assert any("leads the pair db-a-pair" in line for line in _advice(agents[active]))
        assert any("sends checks there" in line for line in _advice(agents[passive]))
        agents[active].stop()
        eventually(lambda: not sent_to(passive))
        agents[active].start()
        eventually(is_elected)
        assert sent_to(active) == agents[passive].url, "who leads, stays"


def _advice(agent: AgentProcess) -> list[str]:
    return list(agent.get("/v1/status").json["advice"])
