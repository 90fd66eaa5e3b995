"""Ways to deploy a shard, over real Postgres servers: found by the database, one agent for
all, two for one host, mutual TLS, several shards on a machine, a shard that nobody checks.
"""

from __future__ import annotations

import hashlib
import http.client
import signal
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme

from headgate import Client
from headgate.demo import postgres
from headgate.demo.postgres import PostgresServer
from headgate.demo.servers import make_folder
from tests.fixtures.agents import AgentProcess, postgres_database, reserve_port
from tests.fixtures.eventually import eventually
from tests.fixtures.failovers import Promotions, watching
from tests.fixtures.shard_agents import (
    SHARD,
    ShardAgents,
    agents_for,
    because,
    call_peers_localhost,
    dsns_of,
    execute,
    frozen,
    hosted_agents,
    paused_replay,
    running,
    shard_agents,
)
from tests.fixtures.shards import Shard, start_postgres_shard

LAG = "lag: threshold='0.5s', timeout_s=5"


@pytest.fixture(scope="module")
def lasting(servers_dir: Path) -> Iterator[Shard[PostgresServer]]:
    with start_postgres_shard(servers_dir) as shard:
        yield shard


@pytest.fixture
def shard(lasting: Shard[PostgresServer]) -> Iterator[Shard[PostgresServer]]:
    """Shared: roles may change, but two replicas follow one primary when a test ends."""
    yield lasting
    lasting.heal()


# --- found by the database -------------------------------------------------------------------


def test_replicas_that_no_settings_name_are_found_by_their_primary(
    servers_dir: Path, tmp_path: Path
) -> None:
    """R36, R44: no peers in the settings; who joins later is found, too."""
    hosts = ["127.0.0.2", "127.0.0.3"]
    with ExitStack() as ends:
        found = ends.enter_context(start_postgres_shard(servers_dir, hosts, cluster=2))
        agents = hosted_agents([*hosts, "127.0.0.4"], tmp_path, metrics=LAG, peers=_no_peers())
        port = agents["127.0.0.2"].port
        agents.database = f'discover = "http://{{name}}:{port}"'
        agents.more_agent = {name: f'advertise = "{agents[name].url}"' for name in agents.agents}
        dsns = {**dsns_of(found), "127.0.0.4": ("postgres", found.primary.dsn())}
        late = agents.agents.pop("127.0.0.4")
        agents.write_settings(dsns)
        ends.enter_context(running(agents))
        agents.await_lead("127.0.0.2")
        eventually(lambda: "127.0.0.3, worst of 1" in _detail(agents, "127.0.0.2"))
        eventually(lambda: agents.check_shard("127.0.0.3")["check_at"] == agents["127.0.0.2"].url)

        joined = ends.enter_context(
            postgres.start_replica(found.primary, servers_dir, name="127.0.0.4")
        )
        agents.await_rejection("127.0.0.2", because("unreachable", "127.0.0.4"))
        agents.agents["127.0.0.4"] = late
        agents.write_settings({**dsns_of(found), "127.0.0.4": ("postgres", joined.dsn())})
        late.start()
        agents.await_lead("127.0.0.2")
        eventually(lambda: "worst of 2" in _detail(agents, "127.0.0.2"))


def _no_peers() -> Mapping[str, list[str]]:
    return {f"127.0.0.{n}": [] for n in (2, 3, 4)}


def _detail(agents: ShardAgents, name: str) -> str:
    return str(agents.check_shard(name)["metrics"][0]["detail"])


def test_a_replica_that_no_agent_watches_is_named(
    shard: Shard[PostgresServer], tmp_path: Path
) -> None:
    """R44: its lag counts nowhere, and the operator sees it."""
    lead, watched, unwatched = (s.name for s in [shard.primary, *shard.replicas])
    agents = shard_agents([lead, watched], tmp_path, metrics=LAG)
    agents.write_settings(dsns_of(shard))
    with running(agents):
        agents.await_lead(lead)
        eventually(lambda: [u["name"] for u in agents.shard_of(lead)["unwatched"]] == [unwatched])
        advice = eventually(lambda: agents[lead].get("/v1/status").json["advice"])
        assert any(f"replica {unwatched} " in told and "has no agent" in told for told in advice)


def test_a_replica_is_watched_whatever_its_agent_and_its_address_are_called(
    shard: Shard[PostgresServer], tmp_path: Path
) -> None:
    """B11: the server knows its replicas as db-b at 127.0.0.1, the agents each other as m1 at
    localhost."""
    servers = [shard.primary, *shard.replicas]
    agents = shard_agents([f"m{n}" for n, _ in enumerate(servers)], tmp_path, metrics=LAG)
    agents.write_settings({f"m{n}": ("postgres", server.dsn()) for n, server in enumerate(servers)})
    call_peers_localhost(agents)
    with running(agents):
        agents.await_lead("m0")
        eventually(lambda: agents.shard_of("m0")["unwatched"] == [])
        agents["m2"].kill()
        eventually(lambda: agents.member_of("m0", "m2")["reachable"] is False)
        assert agents.shard_of("m0")["unwatched"] == [], "it is missing, and known"


# --- no replicas at all ----------------------------------------------------------------------


def test_an_empty_shard_is_rejected_unless_configured(servers_dir: Path, tmp_path: Path) -> None:
    """R43: no replica is no lag of 0; anyone who runs without replicas says so."""
    with (
        start_postgres_shard(servers_dir, ["db-a"]) as alone,
        agents_for(alone, tmp_path, metrics=LAG) as agents,
    ):
        answer = agents.await_rejection("db-a", because("empty_shard", "no replica"))
        assert answer["metrics"][0]["value"] is None
        agents.change("db-a", "PATCH", "metrics/lag", {"empty": "admit"})
        admitted = eventually(lambda: (told := agents.check_shard("db-a"))["admitted"] and told)
        [lag] = admitted["metrics"]
        assert lag["value"] is None and lag["cause"] == "empty_shard"
        assert lag["state"] == "ignored"


# --- several shards --------------------------------------------------------------------------


@dataclass(slots=True)
class Looks:
    seen: dict[str, set[int]]
    """Ports that each agent was ever seen connected to, by agent."""
    count: int = 0


@contextmanager
def connections_of(agents: Mapping[str, AgentProcess]) -> Iterator[Looks]:
    looks, stop = Looks({name: set() for name in agents}), threading.Event()

    def look() -> None:
        while not stop.is_set():
            ports = _remote_ports()
            for name, agent in agents.items():
                sockets = _sockets_of(agent.process.pid)
                looks.seen[name] |= {ports[inode] for inode in sockets & ports.keys()}
            looks.count += 1
            stop.wait(0.25)  # Agents keep their connections open.

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        stop.set()
        thread.join()


def _remote_ports() -> dict[str, int]:
    """By socket, as the kernel numbers it."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {line[9]: int(line[2].rpartition(":")[2], 16) for line in lines}


def _sockets_of(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            kind, _, inode = str(descriptor.readlink()).partition(":")
            if kind == "socket":
                found.add(inode.strip("[]"))
    return found


def test_no_message_ever_crosses_from_one_shard_to_another(
    shard: Shard[PostgresServer], servers_dir: Path, tmp_path: Path
) -> None:
    """R39: under load, and whoever of the other shard is asked; one by mistake is rejected."""
    with ExitStack() as ends:
        other = ends.enter_context(start_postgres_shard(servers_dir, ["ot-a", "ot-b"], cluster=2))
        groups = []
        for name, members in (("one", shard), ("two", other)):
            (tmp_path / name).mkdir()
            made = agents_for(members, tmp_path / name, metrics=LAG, shard=f"commerce/{name}")
            groups.append((ends.enter_context(made), members))
        for agents, members in groups:
            agents.await_lead(members.primary.name)
        everybody = {n: a for agents, _ in groups for n, a in agents.agents.items()}
        ports = {name: agent.port for name, agent in everybody.items()}
        with watching(ports) as watch, connections_of(everybody) as looks:
            for agents, members in groups:
                with paused_replay(members.replicas[0]):
                    agents.await_rejection(members.primary.name, because("replication_stopped"))
                agents.await_lead(members.primary.name)
            eventually(lambda: looks.count >= 10)
        seen = looks.seen
        assert {told.agent for told in watch.admitted} == {m.primary.name for _, m in groups}
        for agents, members in groups:
            own = {agent.port for agent in agents.agents.values()}
            for name in agents.agents:
                assert not seen[name] & (set(ports.values()) - own), name
            lead = members.primary.name
            assert seen[lead] >= own - {ports[lead]}  # It would have been seen.
        _rejected_stray(groups[0][0], groups[1][0], shard.primary.name)


def _rejected_stray(one: ShardAgents, two: ShardAgents, lead: str) -> None:
    """The agents of both must know each other's token for the shard to be the obstacle."""
    settings = two["ot-b"].settings
    digest = hashlib.sha256(one.token.encode()).hexdigest()
    known = f'[[tokens]]\nname = "one"\nrole = "peer"\nsha256 = "{digest}"\n'
    settings.write_text(settings.read_text() + known)
    two["ot-b"].process.send_signal(signal.SIGHUP)
    peer = {"url": two["ot-b"].url, "database": "main"}
    one.change(lead, "PUT", "shard/peers/stray", peer)
    one.await_rejection(lead, because("failed", "stray", "commerce/two", "commerce/one"))


# --- mutual TLS ------------------------------------------------------------------------------


def _certified(authority: trustme.CA, folder: Path, name: str) -> tuple[Path, Path]:
    issued = authority.issue_cert("127.0.0.1", common_name=name)
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    cert.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return cert, key


def _pull_as(agent: AgentProcess, tls: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", agent.port, timeout=60, context=tls)
    question = (
        f'{{"version":1,"shard":"{SHARD}","database":"main","sender":"x",'
        '"activity":"awake","wait_s":0,"sent_wall_s":0}'
    )
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/peer/pull", question, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def test_agents_know_each_other_by_certificate_and_a_foreign_one_is_no_peer(
    shard: Shard[PostgresServer], tmp_path: Path
) -> None:
    """No token at all: mTLS in both directions; a certificate of another authority is rejected."""
    ours, foreign = trustme.CA(), trustme.CA()
    ca = tmp_path / "ca.pem"
    ours.cert_pem.write_to_path(str(ca))
    lead, friend, stranger = (s.name for s in [shard.primary, *shard.replicas])
    agents = shard_agents([lead, friend, stranger], tmp_path, metrics=LAG)
    more_agent, shown = {}, {}
    for name in (lead, friend, stranger):
        signer = foreign if name == stranger else ours
        cert, key = _certified(signer, tmp_path, name)
        more_agent[name] = f'tls_cert = "{cert}"\ntls_key = "{key}"\ntls_client_ca = "{ca}"'
        shown[name] = f'ca = "{ca}"\ncert = "{cert}"\nkey = "{key}"'
        agents[name].tls = True
    agents.more_agent, agents.shown = more_agent, shown
    agents.write_settings(dsns_of(shard))
    with running(agents):
        agents.await_rejection(lead, because("failed", stranger, "certificate"))
        eventually(lambda: agents.member_of(lead, friend)["reachable"])
        skip = {"for": "1h", "reason": "unknown authority"}
        agents.change(lead, "PUT", f"shard/skips/{stranger}", skip)
        agents.await_lead(lead)
        nobody = ssl.create_default_context(cafile=str(ca))
        assert _pull_as(agents[friend], nobody) == 401
        nobody.load_cert_chain(*_certified(ours, tmp_path, "db-x"))
        assert _pull_as(agents[friend], nobody) == 200
        impostor = ssl.create_default_context(cafile=str(ca))
        impostor.load_cert_chain(*_certified(foreign, tmp_path, "db-y"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _pull_as(agents[friend], impostor)


# --- one agent for a whole shard -------------------------------------------------------------


def test_an_agent_in_each_zone_answers_for_itself_and_outlives_the_others(
    shard: Shard[PostgresServer], tmp_path: Path
) -> None:
    """R52: AZ-parallel. Nobody waits for the agent of another zone, and both see one lag."""
    zones = [AgentProcess(make_folder(tmp_path, f"hg{n}-"), reserve_port()) for n in range(2)]
    lead, [replica, _] = shard.primary.name, shard.replicas
    try:
        for zone in zones:
            zone.write_settings(
                "".join(
                    postgres_database(s.dsn(), LAG, name=s.name, more=f'shard = "{SHARD}"')
                    for s in shard.servers
                )
            )
            zone.start()
        for zone in zones:
            eventually(partial(zone.admitted, lead, metrics="shard/lag"))
        with paused_replay(replica):
            eventually(lambda: not any(z.admitted(lead, metrics="shard/lag") for z in zones))
        for zone in zones:
            eventually(partial(zone.admitted, lead, metrics="shard/lag"))
        first, second = zones
        first.kill()
        assert second.admitted(lead, metrics="shard/lag")
        with Client("etl:x", database=lead, url=[z.url for z in zones], scope="shard") as client:
            eventually(lambda: client.check().admitted)
    finally:
        for zone in zones:
            zone.end()


def test_one_agent_speaks_for_a_whole_shard_and_through_a_promotion(
    shard: Shard[PostgresServer], agent: AgentProcess
) -> None:
    """R52: no agents on the replicas; each database can be asked about the shard."""
    agent.write_settings(
        "".join(
            postgres_database(server.dsn(), LAG, name=server.name, more=f'shard = "{SHARD}"')
            for server in shard.servers
        )
    )
    agent.start()

    def admitted() -> bool:
        """By whichever database of the shard one asks."""
        return all(agent.admitted(s.name, metrics="shard/lag") for s in shard.servers)

    def names_the_replica() -> bool:
        [lag] = agent.check(shard.primary.name, metrics="shard/lag")["metrics"]
        stopped = lag["cause"] == "replication_stopped" and lag["state"] == "breached"
        return stopped and replica.name in lag["detail"]

    eventually(admitted)
    [replica, _] = shard.replicas
    with paused_replay(replica):
        eventually(names_the_replica)
        assert not agent.admitted(shard.primary.name, metrics="shard/lag")
    eventually(admitted)
    promotions = Promotions(shard)
    old = shard.primary.name
    promotions.switch_over()
    eventually(admitted)

    def shows_the_new_one() -> bool:
        view = agent.get(f"/v1/databases/{old}/shard").json
        leads = view["primary"] == shard.primary.name and view["state"] == "leading"
        roles = {m["member"]: m["role"] for m in view["members"]}
        return bool(leads and roles[old] == "replica")

    eventually(shows_the_new_one)


# --- two agents for one host -----------------------------------------------------------------


def test_a_standby_takes_over_from_a_dead_and_from_a_frozen_agent_and_steps_back(
    shard: Shard[PostgresServer], tmp_path: Path
) -> None:
    """R52, R53: and both say what they are. How soon, bench/notice.py measures."""
    active, standby = _two_agents(tmp_path)
    metrics = "threads_running: interval_s=0.1, timeout_s=20"
    database = postgres_database(shard.primary.dsn(), metrics)
    active.write_settings(database)
    standby.write_settings(database, f'standby_for = "{active.url}"\ntakeover_after_s = 1.5')
    try:
        active.start()
        eventually(active.admitted)
        standby.start()
        _stands_by(standby, active)

        active.kill()
        _takes_over(standby)
        active.start()
        _stands_by(standby, active)

        with frozen(active):
            _takes_over(standby)
        _stands_by(standby, active)
    finally:
        for process in (active, standby):
            process.end()


def _two_agents(folder: Path) -> tuple[AgentProcess, AgentProcess]:
    for name in ("active", "standby"):
        (folder / name).mkdir()
    return (
        AgentProcess(folder / "active", reserve_port()),
        AgentProcess(folder / "standby", reserve_port()),
    )


def _stands_by(standby: AgentProcess, active: AgentProcess) -> None:
    answer = eventually(lambda: (a := standby.check())["verdict"] == "WRONG_AGENT" and a)
    assert answer["check_at"] == active.url
    eventually(active.admitted)
    eventually(lambda: _is_advised(standby, "is the standby of"))


def _takes_over(standby: AgentProcess) -> None:
    eventually(standby.admitted)
    assert _is_advised(standby, "this agent replaces")


def _is_advised(agent: AgentProcess, words: str) -> bool:
    return any(words in told for told in agent.get("/v1/status").json["advice"])


# --- nobody checks ---------------------------------------------------------------------------

ASLEEP = "idle_after_s = 0.5\nhibernate_after_s = 1\nheartbeat_interval_s = 0.2"
SLOW_INTERVAL_S = 2.6
"""Ten times that of reading, and what a reading takes: how long a slow pause may still last."""
WORK = """SELECT pid, query_start FROM pg_stat_activity
          WHERE application_name = 'headgate' ORDER BY 1"""


@pytest.fixture(scope="module")
def sleepers(
    lasting: Shard[PostgresServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShardAgents]:
    folder = tmp_path_factory.mktemp("sleepers")
    with agents_for(lasting, folder, metrics=LAG, database=ASLEEP) as agents:
        yield agents


@pytest.fixture
def sleepy(shard: Shard[PostgresServer], sleepers: ShardAgents) -> ShardAgents:
    """Shared, and awake to begin with."""
    sleepers.await_lead(shard.primary.name)
    return sleepers


def _activity(agents: ShardAgents) -> dict[str, str]:
    """By looking at status, which wakes nobody."""
    return {
        name: agent.get("/v1/status").json["databases"][0]["activity"]
        for name, agent in agents.agents.items()
    }


def _asleep(agents: ShardAgents) -> bool:
    return set(_activity(agents).values()) == {"hibernating"}


def _work(shard: Shard[PostgresServer], agents: ShardAgents) -> dict[str, Any]:
    """All that was done so far: queries, messages, heartbeats."""
    done: dict[str, Any] = {}
    for server in shard.servers:
        view = agents.shard_of(server.name)
        done[server.name] = (execute(server, WORK), view["messages_total"], view["costs"])
    done["beats"] = execute(shard.primary, "SELECT * FROM headgate.heartbeat ORDER BY 1")
    return done


def test_a_shard_that_nobody_checks_costs_nothing_and_wakes_as_a_whole(
    shard: Shard[PostgresServer], sleepy: ShardAgents
) -> None:
    """R56–R59, R62: no query, message or beat; the first answer is honest, and then comes an OK.
    How soon, bench/notice.py measures."""
    eventually(lambda: _asleep(sleepy))
    before, since = _settled_work(shard, sleepy), time.monotonic()
    for agent in sleepy.agents.values():  # Looked at, scraped, explained: nobody asks.
        for path in ("/metrics", "/v1/status", "/v1/explain?app=a&database=main", "/readyz"):
            agent.get(path)
    eventually(lambda: time.monotonic() - since > 1.5)
    assert _work(shard, sleepy) == before
    assert _asleep(sleepy)

    lead = shard.primary.name
    first = sleepy.check_shard(lead)
    assert not first["admitted"]
    assert first["metrics"][0]["cause"] in ("hibernating", "warming_up"), first
    eventually(lambda: sleepy.leads(lead) and "hibernating" not in _activity(sleepy).values())


def _settled_work(shard: Shard[PostgresServer], agents: ShardAgents) -> dict[str, Any]:
    """Once what was under way has ended: a farewell beat, the last reading of each metric."""
    last, since = _work(shard, agents), time.monotonic()

    def still() -> bool:
        nonlocal last, since
        time.sleep(0.2)
        before, last = last, _work(shard, agents)
        if before != last:
            since = time.monotonic()
        return time.monotonic() - since > SLOW_INTERVAL_S

    eventually(still)
    return last


def test_a_check_of_one_replica_wakes_only_that_one(
    shard: Shard[PostgresServer], sleepy: ShardAgents
) -> None:
    """R58: hosts sleep and wake one by one; the heartbeat is written for the one that is awake."""
    eventually(lambda: _asleep(sleepy))
    _, asked, other = (s.name for s in [shard.primary, *shard.replicas])

    def only_that_one_is_awake() -> bool:
        admitted, activity = sleepy[asked].admitted(metrics="host/lag"), _activity(sleepy)
        assert activity[other] == "hibernating"
        return admitted and activity[asked] != "hibernating"

    eventually(only_that_one_is_awake)


def test_a_shard_that_sleeps_beside_a_busy_host_wakes(
    shard: Shard[PostgresServer], sleepy: ShardAgents
) -> None:
    """R58, R59: questions about the primary's host keep that one awake, and nobody else."""
    lead, *replicas = (s.name for s in [shard.primary, *shard.replicas])

    def only_others_sleep() -> bool:
        assert sleepy[lead].check(metrics="host/lag")
        activity = _activity(sleepy)
        asleep = all(activity[name] == "hibernating" for name in replicas)
        return asleep and activity[lead] == "awake"

    eventually(only_others_sleep)
    explain = "/v1/explain?app=test:job&database=main&metrics=shard/lag"
    eventually(lambda: not sleepy[lead].get(explain).json["admitted"])
    sleepy.await_lead(lead)
