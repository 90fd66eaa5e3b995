"""A fleet of real agents on real servers and real etcd: rules reach whom they should, and stay,
whatever becomes of the store; and no check ever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from headgate.fleet.cache import decoded
from tests.fixtures.agents import AgentProcess
from tests.fixtures.etcd import QUICK, EtcdCluster
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.fleets import (
    TIMEOUT_S,
    FleetWorld,
    fleet_of,
    fleet_world,
    hold,
    is_fresh,
    is_held,
    lift,
    source_of,
)
from tests.fixtures.shards import start_postgres_shard

MORE_CHECKS = 2 * int(DEADLINE_S / TIMEOUT_S)
"""If each waited for a store that does not answer, so many would take longer than a test waits."""


@pytest.fixture(scope="module")
def the_fleet(tmp_path_factory: pytest.TempPathFactory, servers_dir: Path) -> Iterator[FleetWorld]:
    folder = tmp_path_factory.mktemp("fleet")
    with (
        EtcdCluster.started(members=3, pace=QUICK) as etcd,
        start_postgres_shard(servers_dir) as shard,
        fleet_world(folder, shard, etcd, f"/fleet-{uuid4().hex[:6]}/") as world,
    ):
        yield world


@pytest.fixture
def fleet(the_fleet: FleetWorld) -> Iterator[FleetWorld]:
    yield the_fleet
    the_fleet.heal()


@pytest.fixture
def target() -> str:
    """A client that no other test has rules on."""
    return f"etl-{uuid4().hex[:6]}"


class Witness:
    """Asks an agent all the while; every check is answered."""

    def __init__(self, agent: AgentProcess) -> None:
        self.answered = 0
        self.failures: list[Exception] = []
        self._agent = agent
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        while not self._stop.wait(0.05):
            try:
                self._agent.check(app="witness:job")
            except Exception as error:
                self.failures.append(error)
            self.answered += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def checks_go_on(*agents: AgentProcess) -> Iterator[Callable[[], None]]:
    """Called while the store is away: until then no check has waited for it, nor does one now."""
    witnesses = [Witness(agent) for agent in agents]

    def go_on() -> None:
        for witness, before in [(one, one.answered) for one in witnesses]:
            eventually(lambda: witness.answered >= before + MORE_CHECKS)  # noqa: B023 -- at once

    try:
        yield go_on
    finally:
        for witness in witnesses:
            witness.end()
    assert [witness.failures for witness in witnesses] == [[]] * len(witnesses)


def is_on_disk(agent: AgentProcess, target: str) -> bool:
    path = agent.folder / "state.db.fleet"
    if not path.exists():
        return False
    copy = decoded(path.read_bytes())
    return any(target.encode() in entry.value for entry in copy.listing.entries)


def stale_for_s(agent: AgentProcess) -> float:
    return fleet_of(agent)["stale_for_s"] or 0.0


def everywhere(fleet: FleetWorld, target: str, *, held: bool = True) -> bool:
    return all(is_held(agent, target) is held for agent in fleet.all.values())


# --- whom it reaches -------------------------------------------------------------------------


def test_one_rule_reaches_a_whole_shard_and_nobody_else(fleet: FleetWorld, target: str) -> None:
    rule_id = hold(fleet.lone, target, "shard:commerce/*")
    eventually(lambda: all(is_held(agent, target) for agent in fleet.shard.agents.values()))
    assert not is_held(fleet.lone, target)
    lift(fleet.replicas[0], rule_id)
    eventually(lambda: everywhere(fleet, target, held=False))


@pytest.mark.parametrize(
    ("reach", "shard", "lone"),
    [
        ("fleet", True, True),
        ("region:eu-*", True, False),
        ("region:us-east", False, True),
        ("cluster:commerce", True, True),
        ("host:lone", False, True),
    ],
)
def test_every_level_has_its_reach(
    fleet: FleetWorld, target: str, reach: str, shard: bool, lone: bool
) -> None:
    hold(fleet.primary, target, reach)
    meant = [*(fleet.shard.agents.values() if shard else ()), *([fleet.lone] if lone else ())]
    eventually(lambda: all(is_held(agent, target) for agent in meant))
    others = [agent for agent in fleet.all.values() if agent not in meant]
    assert not any(is_held(agent, target) for agent in others)


def test_where_it_will_apply_is_shown_before(fleet: FleetWorld, target: str) -> None:
    def preview() -> bool:
        body = {"target": target, "kind": "hold", "reason": "x", "reach": "shard:commerce/*"}
        answer = fleet.lone.request("POST", "/v1/rules?dry_run=true", body, unix=True)
        assert answer.status == 200, answer.body
        reached = answer.json["reached"]
        return bool(reached["shards"] == 1 and reached["hosts"] == 3)

    eventually(preview)
    assert everywhere(fleet, target, held=False)


def test_replicas_have_it_from_their_primary(fleet: FleetWorld) -> None:
    """Only shard primaries watch the store."""
    eventually(lambda: "etcd" in source_of(fleet.primary))
    for replica in fleet.replicas:
        # One that lost it for a moment, on a busy machine, takes its time before it goes back.
        eventually(lambda one=replica: fleet.primary.url in source_of(one), 2 * DEADLINE_S)  # type: ignore[misc]


# --- faults ----------------------------------------------------------------------------------


def test_a_replica_turns_to_the_store_while_its_primarys_agent_is_away(
    fleet: FleetWorld, target: str
) -> None:
    replica = fleet.replicas[0]
    fleet.primary.kill()
    eventually(lambda: "etcd" in source_of(replica))
    hold(fleet.lone, target, "shard:commerce/-80")
    eventually(lambda: is_held(replica, target))
    fleet.primary.start()
    eventually(lambda: is_held(fleet.primary, target))


@pytest.mark.extended
def test_a_replica_goes_back_to_its_primarys_agent_when_that_has_answered_for_a_while(
    fleet: FleetWorld,
) -> None:
    replica = fleet.replicas[0]
    fleet.primary.kill()
    eventually(lambda: "etcd" in source_of(replica))
    fleet.primary.start()
    eventually(lambda: fleet.primary.url in source_of(replica), within_s=4 * DEADLINE_S)


def test_rules_go_on_while_the_leader_of_the_store_dies(fleet: FleetWorld, target: str) -> None:
    """Every rule that was acknowledged is there afterwards; setters are told the truth."""
    acknowledged: list[str] = []
    stop = threading.Event()

    def set_rules() -> None:
        while not stop.is_set():
            body = {"target": f"{target}-{len(acknowledged)}", "kind": "hold", "reason": "x"}
            answer = fleet.lone.request("POST", "/v1/rules", {**body, "reach": "fleet"}, unix=True)
            if answer.status == 201:
                acknowledged.append(body["target"])

    with checks_go_on(fleet.primary, fleet.lone) as go_on:
        setter = threading.Thread(target=set_rules)
        setter.start()
        try:
            eventually(lambda: len(acknowledged) >= 5)
            fleet.etcd.leader().kill()
            after = len(acknowledged) + 5
            eventually(lambda: len(acknowledged) >= after)
            go_on()
        finally:
            stop.set()
            setter.join()
    fleet.etcd.start_all()
    for agent in fleet.all.values():
        eventually(lambda one=agent: all(is_held(one, t) for t in acknowledged))  # type: ignore[misc]


def test_a_frozen_leader_delays_no_check_and_loses_no_rule(fleet: FleetWorld, target: str) -> None:
    hold(fleet.lone, target, "fleet")
    frozen = fleet.etcd.leader()
    with checks_go_on(*fleet.all.values()) as go_on:
        frozen.pause()
        try:
            go_on()
            eventually(lambda: all(is_fresh(agent) for agent in fleet.all.values()))
            later = f"{target}-later"
            hold(fleet.lone, later, "fleet")
            eventually(lambda: everywhere(fleet, later))
        finally:
            frozen.resume()
    assert everywhere(fleet, target)


@pytest.mark.parametrize("for_s", [5.0, pytest.param(60.0, marks=pytest.mark.extended)])
def test_without_a_quorum_rules_stay_and_setting_one_says_so(
    fleet: FleetWorld, target: str, for_s: float
) -> None:
    hold(fleet.lone, target, "fleet")
    eventually(lambda: everywhere(fleet, target))
    with checks_go_on(*fleet.all.values()) as go_on:
        lost = fleet.etcd.followers()
        for member in lost:
            member.pause()
        try:
            body = {"target": "other", "kind": "hold", "reason": "x", "reach": "fleet"}
            rejected = fleet.lone.request("POST", "/v1/rules", body, unix=True)
            assert rejected.status == 503 and b"store" in rejected.body, rejected.body
            go_on()
            for agent in fleet.all.values():
                eventually(lambda one=agent: stale_for_s(one) > for_s, within_s=for_s + DEADLINE_S)  # type: ignore[misc]
            assert everywhere(fleet, target)
            own = {"target": f"{target}-own", "kind": "hold", "reason": "x"}
            assert fleet.lone.request("POST", "/v1/rules", own, unix=True).status == 201
            assert is_held(fleet.lone, f"{target}-own")
        finally:
            for member in lost:
                member.resume()
    eventually(lambda: all(is_fresh(agent) for agent in fleet.all.values()))
    hold(fleet.lone, f"{target}-after", "fleet")
    eventually(lambda: everywhere(fleet, f"{target}-after"))


def test_an_agent_that_starts_with_nobody_there_knows_its_rules_and_their_age(
    fleet: FleetWorld, target: str
) -> None:
    """etcd and all peers are gone."""
    hold(fleet.lone, target, "fleet")
    replica = fleet.replicas[0]
    eventually(lambda: is_held(replica, target) and is_held(fleet.lone, target))
    eventually(lambda: is_on_disk(replica, target))
    for agent in fleet.all.values():
        agent.kill()
    for member in fleet.etcd.members:
        member.kill()
    replica.start()
    assert is_held(replica, target)
    told = fleet_of(replica)
    assert told["from_cache_of"] is not None and told["stale_for_s"] is not None
    ready = replica.get("/readyz")
    assert b"fleet" in ready.body


def test_changes_that_the_store_has_compacted_are_listed_again(
    fleet: FleetWorld, target: str
) -> None:
    """A follower that was away while others wrote, and the store forgot what it missed."""
    away = fleet.lone
    away.process.send_signal(19)
    try:
        for number in range(3):
            hold(fleet.primary, f"{target}-{number}", "fleet")
        fleet.etcd.compact()
    finally:
        away.process.send_signal(18)
    eventually(lambda: all(is_held(away, f"{target}-{n}") for n in range(3)))


def test_a_member_that_comes_back_with_an_empty_disk_changes_nothing(
    fleet: FleetWorld, target: str
) -> None:
    hold(fleet.lone, target, "fleet")
    with checks_go_on(*fleet.all.values()) as go_on:
        fleet.etcd.replace(fleet.etcd.followers()[0])
        fleet.etcd.wait_until_ready()
        hold(fleet.lone, f"{target}-after", "fleet")
        eventually(lambda: everywhere(fleet, f"{target}-after"))
        go_on()
    assert everywhere(fleet, target)


def test_a_store_that_lost_everything_takes_nothing_out_of_force(
    fleet: FleetWorld, target: str
) -> None:
    """Nothing that an operator set is lost: agents keep it, say so, and can put it back."""
    hold(fleet.lone, target, "fleet")
    eventually(lambda: everywhere(fleet, target))
    with checks_go_on(*fleet.all.values()) as go_on:
        fleet.etcd.lose_all()
        go_on()
        eventually(lambda: fleet_of(fleet.lone)["kept"])
        assert everywhere(fleet, target)
    restored = fleet.lone.request("POST", "/v1/changes/restore?log=fleet", {}, unix=True)
    assert restored.status == 200, restored.body
    eventually(lambda: not fleet_of(fleet.lone)["kept"])
    hold(fleet.primary, f"{target}-after", "fleet")
    eventually(lambda: everywhere(fleet, f"{target}-after"))
    assert everywhere(fleet, target)
