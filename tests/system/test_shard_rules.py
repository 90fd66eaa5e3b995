"""R164: without etcd a shard keeps its rules and budgets, over promotions with kill -9 meanwhile.

Real servers, real agents. Operators set and lift rules and budgets all the time, and write down
what was acknowledged, with how many copies. What every agent has must be at whichever leads next;
and when all are back, everything that was ever acknowledged is so at every agent.
"""

from __future__ import annotations

import http.client
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.agents import AgentProcess, Response, postgres_database, reserve_port
from tests.fixtures.eventually import eventually
from tests.fixtures.failovers import _follow, _rejoin, _step_down
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.pgkits import (
    NEWEST,
    ExtendedServer,
    start_extended,
    start_extended_replica,
)
from tests.fixtures.servers import Pair
from tests.fixtures.shard_agents import (
    SHARD,
    ShardAgents,
    agents_for,
    dsns_of,
    running,
    shard_agents,
)
from tests.fixtures.shards import Shard

REACH = f"shard:{SHARD}"
RULES = "/v1/rules"
BUDGETS = "/v1/budgets/main"
BUDGET = {
    "rate": 20,
    "capacity": 200,
    "rules": [{"match": {"application_name": "etl"}}],
    "for": "2h",
}
TRAFFIC = "[databases.main.traffic]\n"
NIGHTLY = f"{BUDGETS}/nightly"
POLICY = '[[budgets]]\nname = "nightly"\nmode = "enforce"\nrate = 20\n'
PAUSE_S = 0.1
OPERATORS = 2
MOST_STANDING = 15
FEW, MANY = 3, 50


@dataclass
class Told:
    """What was last acknowledged of a rule, or of a budget."""

    lifted: bool
    have: int
    of: int

    @property
    def everywhere(self) -> bool:
        return self.have == self.of == 2


@dataclass
class Operator:
    """Sets and lifts rules and budgets of its own wherever that can be done just now."""

    name: str
    agents: ShardAgents
    roll: random.Random
    told: dict[str, Told] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    """Asked for, and no answer came: it may be so, or not."""
    made: int = 0
    rejected: int = 0
    at_work: threading.Lock = field(default_factory=threading.Lock)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with self.at_work:
                self._turn()
            stop.wait(PAUSE_S * self.roll.random())

    def _turn(self) -> None:
        standing = [name for name, told in self.told.items() if not told.lifted]
        standing = [name for name in standing if name not in self.unknown]
        if len(standing) >= MOST_STANDING or (standing and self.roll.random() < 0.45):
            self._lift(self.roll.choice(standing))
        else:
            self._set()

    def _set(self) -> None:
        self.made += 1
        if self.agents.tail == TRAFFIC and self.made % 2:
            name = f"budget-{self.name}-{self.made}"
            answer = self._ask(name, "PUT", f"{BUDGETS}/{name}", {**BUDGET, "reach": REACH})
        else:
            name = f"{self.name}-{self.made}"
            body = {"id": name, "target": name, "ratio": 0.5, "for": "2h", "reach": REACH}
            answer = self._ask(name, "POST", RULES, body)
        if answer is not None:
            self.told[name] = _told(answer.json["copies"], lifted=False)

    def _lift(self, name: str) -> None:
        of = BUDGETS if name.startswith("budget-") else RULES
        answer = self._ask(name, "DELETE", f"{of}/{name}")
        if answer is not None:
            self.told[name] = _told(answer.json["copies"], lifted=True)

    def _ask(self, name: str, method: str, path: str, body: Any = None) -> Response | None:
        """By whichever agent takes it; 409 says that another one has to."""
        for agent in self.roll.sample(list(self.agents.agents.values()), 3):
            try:
                answer = agent.request(method, path, body, unix=True)
            except ConnectionRefusedError:
                continue
            except (OSError, http.client.HTTPException):
                self.unknown.add(name)
                return None
            if answer.status in (200, 201):
                return answer
            assert answer.status in (404, 409, 503), answer.body
            if answer.status == 503:
                self.unknown.add(name)
                return None
        self.rejected += 1
        return None

    def known(self) -> dict[str, Told]:
        """What is certain, once no question is under way."""
        with self.at_work:
            return {name: told for name, told in self.told.items() if name not in self.unknown}


def _told(copies: Any, *, lifted: bool) -> Told:
    return Told(lifted, copies["have"], copies["of"])


@dataclass
class Drill:
    shard: Shard[Any]
    agents: ShardAgents
    operators: list[Operator]
    roll: random.Random
    promotions: int = 0
    killed: int = 0
    checked: int = 0

    def promote(self) -> None:
        """Another server becomes the primary; its agent has what was acknowledged everywhere."""
        old, new = self.shard.primary, self.roll.choice(self.shard.replicas)
        others = [server for server in self.shard.replicas if server is not new]
        time.sleep(self.roll.random())  # At any moment of what the operators do.
        deeds = [lambda: self._kill_agent(old.name), old.kill]
        if self.roll.random() < 0.2:  # Planned: nobody dies.
            deeds = [lambda: _step_down(old)]
        self.roll.shuffle(deeds)
        for deed in deeds:
            deed()
            time.sleep(0.2 * self.roll.random())
        self._check_everywhere(new.name)
        new.promote()
        self.shard.primary = new
        eventually(lambda: self._leads(new.name))
        self.promotions += 1
        for server in others:
            _follow(server, new)
        _rejoin(old, new)
        if self.agents[old.name].process.poll() is not None:
            self.agents[old.name].start()

    def _kill_agent(self, name: str) -> None:
        self.agents[name].kill()
        self.killed += 1

    def _check_everywhere(self, name: str) -> None:
        """Before it leads, and before anybody else could have told it anything."""
        told = {rule: one for operator in self.operators for rule, one in operator.known().items()}
        in_force = in_force_at(self.agents[name])
        for rule, one in told.items():
            if one.everywhere:
                assert (rule in in_force) is not one.lifted, (rule, one, self.agents[name].log())
                self.checked += 1

    def _leads(self, name: str) -> bool:
        shard = self.agents.shard_of(name)
        if shard["state"] != "leading":  # A question wakes it.
            self.agents.check_shard(name)
        return bool(shard["state"] == "leading")

    def check_all(self) -> None:
        """All are back: what was acknowledged, by whomever and with however many copies, is so."""
        leader = self.shard.primary.name
        eventually(lambda: self._leads(leader))
        eventually(lambda: self._have_copies(leader))
        found = {name: in_force_at(agent) for name, agent in self.agents.agents.items()}
        assert len(set(map(frozenset, found.values()))) == 1, found
        told = {rule: one for operator in self.operators for rule, one in operator.known().items()}
        lost = {rule for rule, one in told.items() if not one.lifted} - found[leader]
        risen = {rule for rule, one in told.items() if one.lifted} & found[leader]
        assert (lost, risen) == (set(), set())
        assert any(one.lifted for one in told.values()) and found[leader]

    def _have_copies(self, leader: str) -> bool:
        members = self.agents.shard_of(leader)["members"]
        return all(one["copy"] and one["copy"]["has_all"] for one in members if not one["here"])


def in_force_at(agent: AgentProcess) -> set[str]:
    rules = agent.request("GET", RULES, unix=True).json["rules"]
    policy = agent.request("GET", BUDGETS, unix=True)
    budgets = policy.json["budgets"] if policy.status == 200 else []
    return {rule["id"] for rule in rules} | {budget["name"] for budget in budgets}


@contextmanager
def working(operators: list[Operator]) -> Iterator[None]:
    stop, faults = threading.Event(), list[BaseException]()

    def run(operator: Operator) -> None:
        try:
            operator.run(stop)
        except BaseException as error:
            faults.append(error)
            raise

    threads = [threading.Thread(target=run, args=(one,)) for one in operators]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not faults, faults


def drilled(
    shard: Shard[Any], folder: Path, promotions: int, seed: int, *, tail: str = ""
) -> Drill:
    with agents_for(shard, folder, tail=tail) as agents:
        agents.await_lead(shard.primary.name)
        operators = [Operator(f"op{n}", agents, random.Random(seed + n)) for n in range(OPERATORS)]
        drill = Drill(shard, agents, operators, random.Random(seed))
        with working(operators):
            for _ in range(promotions):
                drill.promote()
                eventually(lambda: any(one.everywhere for one in _newest(operators)))
        drill.check_all()
        return drill


def _newest(operators: list[Operator]) -> Iterator[Told]:
    """What each was told last."""
    for operator in operators:
        known = list(operator.known().values())
        yield from known[-1:]


TIMES = [
    pytest.param(FEW, id="few"),
    pytest.param(MANY, id="many", marks=[pytest.mark.extended, pytest.mark.timeout(3600)]),
]


@pytest.mark.parametrize("promotions", TIMES)
def test_promotions_lose_no_rule_or_budget_and_bring_none_back_on_postgres(
    postgres_shard: Shard[Any],
    tmp_path: Path,
    promotions: int,
    record_property: Callable[[str, object], None],
) -> None:
    drill = drilled(postgres_shard, tmp_path, promotions, seed=1, tail=TRAFFIC)
    told = {name for operator in drill.operators for name in operator.known()}
    assert any(name.startswith("budget-") for name in told)
    _report(drill, record_property)


@pytest.mark.parametrize("promotions", TIMES)
def test_promotions_lose_no_rule_and_bring_none_back_on_mariadb(
    mariadb_shard: Shard[MariaDBServer],
    tmp_path: Path,
    promotions: int,
    record_property: Callable[[str, object], None],
) -> None:
    _report(drilled(mariadb_shard, tmp_path, promotions, seed=2), record_property)


def test_what_a_shard_changes_of_a_budget_in_its_settings_files_survives_promotions(
    postgres_shard: Shard[Any], tmp_path: Path
) -> None:
    """And where a settings file has no such budget, the answer says so."""
    names = [server.name for server in postgres_shard.servers]
    agents = shard_agents(names, tmp_path, tail=f'{TRAFFIC}policy = "POLICY"\n')
    agents.write_settings(dsns_of(postgres_shard))
    files = {name: agents[name].folder / "policy.toml" for name in names}
    for name, file in files.items():
        file.write_text(POLICY)
        settings = agents[name].settings
        settings.write_text(settings.read_text().replace("POLICY", str(file)))
    with running(agents):
        drill = Drill(postgres_shard, agents, [], random.Random(3))
        agents.await_lead(postgres_shard.primary.name)
        for rate in (30, 40, 50)[:FEW]:
            leader = agents[postgres_shard.primary.name]
            changed = leader.request("PATCH", NIGHTLY, {"rate": rate}, unix=True)
            assert (changed.status, changed.json["reach"]) == (200, REACH), changed.body
            eventually(partial(_has_copies, leader))
            drill.promote()
            new = agents[postgres_shard.primary.name].request("GET", NIGHTLY, unix=True).json
            assert (new["settings"]["rate"], new["mode"]) == (rate, "enforce")
        leader, other = (one.name for one in (postgres_shard.primary, postgres_shard.replicas[0]))
        files[other].write_text("")
        agents[other].process.send_signal(signal.SIGHUP)
        eventually(lambda: "nightly" not in in_force_at(agents[other]))
        eventually(lambda: other in _forgiven(agents[leader])["left_out"])
        says = _forgiven(agents[leader])["says"]
        assert f"{other} reports: the settings file here has no budget nightly" in says


def test_a_budget_of_a_shard_blocks_at_each_of_its_servers(
    tmp_path: Path, servers_dir: Path
) -> None:
    """R129: a primary and its replica obey in their next statement, without a restart."""
    with (
        start_extended(servers_dir, NEWEST) as primary,
        start_extended_replica(primary, servers_dir) as replica,
        primary.connect() as owner,
    ):
        owner.execute("CREATE ROLE app LOGIN")
        agents = shard_agents(["primary", "replica"], tmp_path)
        both = {"primary": primary, "replica": replica}
        agents.write_settings({name: ("postgres", at.dsn()) for name, at in both.items()})
        for name, server in both.items():
            settings = agents[name].settings
            directory = f'directory = "{server.traffic_dir}"\n'
            settings.write_text(f"{settings.read_text()}\n{TRAFFIC}{directory}")

        def obey(*, blocked: bool) -> bool:
            return all(_blocks(server) is blocked for server in both.values())

        with running(agents):
            agents.await_lead("primary")
            assert eventually(lambda: obey(blocked=False))
            stop = {**BUDGET, "mode": "enforce", "max_workers": 0, "reach": REACH}
            made = agents["primary"].request("PUT", NIGHTLY, stop, unix=True)
            assert (made.status, made.json["reach"]) == (201, REACH), made.body
            eventually(lambda: obey(blocked=True))
            agents["primary"].request("PATCH", NIGHTLY, {"mode": "warn"}, unix=True)
            eventually(lambda: obey(blocked=False))


def _blocks(server: ExtendedServer) -> bool:
    """Also one that cannot be reached as that user yet."""
    try:
        with server.connect(user="app", application_name="etl") as session:
            session.execute("SELECT 1")
    except psycopg.errors.InsufficientResources:
        return True
    return False


def _has_copies(agent: AgentProcess) -> bool:
    return bool(_forgiven(agent)["have"] == 2)


def _forgiven(agent: AgentProcess) -> Any:
    """Who has that change, which is another one each time."""
    return agent.request("POST", f"{NIGHTLY}/forgive", unix=True).json["copies"]


def _report(drill: Drill, record: Callable[[str, object], None]) -> None:
    told = [one for operator in drill.operators for one in operator.told.values()]
    figures = {
        "promotions": drill.promotions,
        "agents killed": drill.killed,
        "rules and budgets acknowledged": len(told),
        "of them lifted": sum(one.lifted for one in told),
        "last acknowledged with every copy": sum(one.everywhere for one in told),
        "outcome unknown": sum(len(operator.unknown) for operator in drill.operators),
        "turned away by all agents": sum(operator.rejected for operator in drill.operators),
        "looked for at a new leader": drill.checked,
    }
    for name, figure in figures.items():
        record(name, figure)
    print(figures)


# --- two agents for one host -----------------------------------------------------------------


def test_a_standby_that_takes_over_has_every_acknowledged_rule_and_hands_back_the_rest(
    postgres_pair: Pair[Any], tmp_path: Path
) -> None:
    token = tmp_path / "peers.token"
    token.write_text("0123456789abcdef")
    database = postgres_database(
        postgres_pair.primary.dsn(),
        "threads_running: timeout_s=20, threshold=1e9",
        more=f'shard = "{SHARD}"',
    )
    database += f'\n[peers]\ntoken_file = "{token}"\n'
    for name in ("active", "standby"):
        (tmp_path / name).mkdir()
    active = AgentProcess(tmp_path / "active", reserve_port())
    standby = AgentProcess(tmp_path / "standby", reserve_port())
    active.write_settings(database, 'name = "db-a"')
    more = f'name = "db-a"\nstandby_for = "{active.url}"\ntakeover_after_s = 1.5'
    standby.write_settings(database, more)
    try:
        active.start()
        standby.start()
        eventually(lambda: standby.check()["verdict"] == "WRONG_AGENT")
        eventually(lambda: _set(active, "first").json["copies"]["standby"])
        said = _set(active, "stays").json["copies"]["says"]
        assert said == "in force here; the standby has a copy"
        _set(active, "goes")
        assert _lift(active, "first").json["copies"]["standby"]
        rejected = _set(standby, "nowhere", reach=REACH)
        assert rejected.status == 409 and active.url in rejected.json["detail"]
        active.kill()
        assert in_force_at(standby) == {"stays", "goes"}
        eventually(lambda: _set(standby, "meanwhile", reach=REACH).status == 201)
        assert _lift(standby, "goes").status == 200
        active.start()
        eventually(lambda: in_force_at(active) == {"stays", "meanwhile"})
        eventually(lambda: standby.check()["verdict"] == "WRONG_AGENT")
        assert _set(active, "last").status == 201
        eventually(lambda: in_force_at(standby) == {"stays", "meanwhile", "last"})
    finally:
        for process in (active, standby):
            process.end()


def _set(agent: AgentProcess, name: str, **more: Any) -> Response:
    """Again, where it is there already: lifted first."""
    body = {"id": name, "target": name, "ratio": 0.5, "for": "2h", **more}
    answer = agent.request("POST", RULES, body, unix=True)
    if answer.status == 412:
        _lift(agent, name)
        return agent.request("POST", RULES, body, unix=True)
    return answer


def _lift(agent: AgentProcess, name: str) -> Response:
    return agent.request("DELETE", f"{RULES}/{name}", unix=True)
