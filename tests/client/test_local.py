"""Deciding in process: as the agent would, while it is known what that is; else it is asked."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.base.names import Scope
from headgate.check.health import ShardHealth, Window, stand
from headgate.check.model import Activity
from headgate.check.snapshot_api import Snapshot
from headgate.client import events, local, local_feed
from headgate.client.local_feed import FEEDS
from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.rules.matching import Kind, Rule
from tests.client.authority import Authority
from tests.client.callers import feed_in_use
from tests.client.relay import Relay, flaky
from tests.client.test_import import SOURCE, loaded_by
from tests.fixtures.eventually import DEADLINE_S, aeventually, eventually
from tests.http.serving import LOOPS, Plan, Served, serving


@pytest.fixture(scope="module")
def _agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(LOOPS["uvloop"], tmp_path_factory.mktemp("agent")) as served:
        yield served


@pytest.fixture
def agent(_agent: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """What it said stays fresh, and is waited for, through any pause of the machine."""
    for name in ("FRESH_S", "SILENT_S", "CONNECT_TIMEOUT_S", "REPORT_TIMEOUT_S"):
        monkeypatch.setattr(local_feed, name, DEADLINE_S)
    monkeypatch.setattr(local, "FRESH_S", DEADLINE_S)
    for closed in (local.LocalGate.close, local.Locally.close):
        monkeypatch.setattr(closed, "__defaults__", (DEADLINE_S,))
    _agent.reset()
    return _agent


Opened = Callable[..., headgate.Client]


@pytest.fixture
def opened(agent: Served) -> Iterator[Opened]:
    """A client that has its first snapshot."""
    made: list[headgate.Client] = []

    def open_one(app: str = "etl:nightly", **more: Any) -> headgate.Client:
        settings = {"database": "main", "url": agent.base_url, "local": True, **more}
        client = headgate.Client(app, **settings)
        made.append(client)
        eventually(lambda: client.check().decided == "local")
        return client

    yield open_one
    for client in made:
        client.close()
    eventually(lambda: not FEEDS._feeds)


def rule(ratio: float = 1.0, target: str = "etl", **more: Any) -> Rule:
    return Rule("r1", target, ratio, time.time() + 600, **more)


# --- what is decided here ------------------------------------------------------------------


def test_checks_go_to_the_agent_until_there_is_a_snapshot(
    agent: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Too many listen, so there is none to be had; then there is."""
    monkeypatch.setattr(local_feed, "REJECTED_RETRY_S", 0.05)
    monkeypatch.setattr(agent.broadcasts, "max_subscribers", 0)
    with headgate.Client("etl", database="main", url=agent.base_url, local=True) as gate:
        eventually(lambda: "is not available (status 503" in caplog.text)
        assert gate.check().decided == "agent"
        monkeypatch.setattr(agent.broadcasts, "max_subscribers", 9)
        eventually(lambda: gate.check().decided == "local")
    assert caplog.text.count("is not available") == 1, "said once"


def test_over_tls_as_well(tmp_path: Path, authority: Authority) -> None:
    plan = Plan(tls=authority.vouches_for("127.0.0.1"))
    with serving(LOOPS["uvloop"], tmp_path, plan) as served:
        url = served.base_url.replace("http:", "https:")
        settings: dict[str, Any] = {"url": url, "tls_ca": authority.ca_path, "local": True}
        with (
            headgate.Client("one", database="main", **settings) as one,
            headgate.Client("two", database="main", **settings) as two,
        ):
            eventually(lambda: one.check().decided == "local" == two.check().decided)
            assert served.call(lambda: served.broadcasts.subscribers) == 1
        assert served.counted("one") >= 1


def test_over_the_unix_socket_as_well(agent: Served, opened: Opened) -> None:
    assert opened(url=f"unix://{agent.socket_path}").check().admitted


def rejected(gate: headgate.Client) -> headgate.Answer:
    """Its first rejection, which is to come."""
    found: list[headgate.Answer] = []

    def is_rejected() -> bool:
        found.append(gate.check())
        return not found[-1].admitted

    eventually(is_rejected)
    return found[-1]


def test_breaches_and_rules_are_obeyed_as_they_come(agent: Served, opened: Opened) -> None:
    gate = opened()
    agent.measure(lag=99.0)
    answer = rejected(gate)
    assert (answer.verdict, answer.decided) == ("THRESHOLD_EXCEEDED", "local")
    assert "lag is 99 s, above its threshold" in answer.reason
    agent.measure(lag=0.1)
    eventually(lambda: gate.check().admitted)
    agent.rule(rule(kind=Kind.HOLD))
    answer = rejected(gate)
    assert (answer.verdict, answer.decided, answer.raw["rule"]) == ("ON_HOLD", "local", "r1")


def test_a_rule_ends_here_on_time(agent: Served, opened: Opened) -> None:
    """R84, and without another word from the agent."""
    gate = opened()

    def is_seen_for(seconds: float) -> bool:
        ends_s = time.time() + seconds
        agent.rule(Rule("r1", "etl", 1.0, ends_s))
        return eventually(lambda: not gate.check().admitted or time.time() > ends_s) and (
            time.time() <= ends_s
        )

    assert any(map(is_seen_for, (0.5, 2, 8, 30))), "however slow the machine is"
    eventually(lambda: (answer := gate.check()).admitted and answer.decided == "local")


def test_dice_are_thrown_for_each_check(agent: Served, opened: Opened) -> None:
    """R33: what is kept is the ratio, never how they fell."""
    falls = iter([0.9, 0.3, 0.7, 0.1, 0.5, 0.49] * 10_000)
    gate = opened(dice=lambda: next(falls))
    agent.rule(rule(0.5))
    rejected(gate)
    while next(falls) != 0.49:
        pass
    answers = [gate.check() for _ in range(60)]
    assert all(answer.decided == "local" for answer in answers)
    assert [answer.admitted for answer in answers] == [True, False, True, False, True, False] * 10


def test_a_share_is_rejected_as_its_ratio_says(agent: Served, opened: Opened) -> None:
    """R72: 5,000 draws, of which the standard deviation is 0.004."""
    gate = opened()
    agent.rule(rule(0.9))
    rejected(gate)
    share = sum(gate.check().admitted for _ in range(5000)) / 5000
    assert share == pytest.approx(0.1, abs=0.025)


def test_reads_scopes_and_named_metrics_are_decided_here(agent: Served, opened: Opened) -> None:
    gate = opened(metrics=("lag", "pool_usage"), scope="host")
    assert gate.check_read(2.5).decided == "local"
    assert not gate.check_read(0.1).admitted
    assert gate.check_read(0.1).read_only
    agent.measure(threads_running=999.0)
    assert gate.check().admitted, "it is not judged by that one"


def test_several_databases_are_decided_together_or_not_at_all(
    agent: Served, opened: Opened
) -> None:
    gate = opened("both", database=("main", "replica"))
    answer = gate.check()
    assert [part.decided for part in answer.checks] == ["local", "local"]
    agent.rule(rule(target="both", kind=Kind.HOLD, database="replica"))
    answer = rejected(gate)
    assert [part.verdict for part in answer.checks] == ["OK", "ON_HOLD"]


def newest() -> Snapshot:
    feed = feed_in_use()
    assert feed.snapshot is not None
    return feed.snapshot


def test_a_wait_goes_on_when_the_snapshot_says_so(agent: Served, opened: Opened) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        agent.measure(lag=0.1)
        eventually(lambda: newest().view.health.standings["lag"].passes)

    gate = opened("waits", sleep=sleep)
    agent.measure(lag=99.0)
    rejected(gate)
    before = len(slept)
    assert gate.wait(deadline_s=60).decided == "local"
    assert len(slept) == before + 1


def test_event_listeners_get_local_checks(agent: Served, opened: Opened) -> None:
    heard: list[events.Event] = []
    opened("listener", on_event=heard.append).check()
    asked = [event for event in heard if isinstance(event, events.Checked)]
    assert (asked[-1].agent, asked[-1].verdict) == ("local", "OK")


async def test_an_awaiting_client_decides_here_as_well(agent: Served) -> None:
    async with headgate.AsyncClient("a", database="main", url=agent.base_url, local=True) as gate:

        async def is_local() -> bool:
            return (await gate.check()).decided == "local"

        await aeventually(is_local)  # type: ignore[arg-type]
        assert (await gate.wait()).decided == "local"
    await asyncio.to_thread(eventually, lambda: not FEEDS._feeds)


async def test_others_on_the_loop_have_their_turn_while_it_decides_here(agent: Served) -> None:
    """Nothing is awaited where nobody is asked: a deadline of the loop would not be heard."""
    settings: dict[str, Any] = {"database": "main", "url": agent.base_url, "local": True}
    hooks: list[Callable[[events.Event], None] | None] = [None, lambda event: None]
    for hook in hooks:
        async with headgate.AsyncClient("busy", on_event=hook, **settings) as gate:

            async def is_local(gate: headgate.AsyncClient = gate) -> bool:
                return (await gate.check()).decided == "local"

            await aeventually(is_local)  # type: ignore[arg-type]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    for _ in range(10**7):
                        await gate.wait()
    await asyncio.to_thread(eventually, lambda: not FEEDS._feeds)


@pytest.mark.parametrize(
    "asked",
    [
        lambda gate: gate.check(cost=-5),
        lambda gate: gate.wait(cost=float("nan")),
        lambda gate: gate.wait(-3),
        lambda gate: gate.check_read(0),
    ],
)
def test_what_no_agent_would_take_is_rejected_here_as_well(
    opened: Opened, asked: Callable[[headgate.Client], object]
) -> None:
    with pytest.raises(headgate.InvalidSettings):
        asked(opened())


def test_clients_of_one_process_share_one_stream(agent: Served, opened: Opened) -> None:
    opened("a"), opened("b"), opened("c")
    assert agent.call(lambda: agent.broadcasts.subscribers) == 1


def test_a_client_that_is_forgotten_leaves_nothing_behind(agent: Served) -> None:
    def forget() -> None:
        gate = headgate.Client("etl", database="main", url=agent.base_url, local=True)
        eventually(lambda: gate.check().decided == "local")
        gate._driver.close()

    forget()
    eventually(lambda: gc.collect() and not FEEDS._feeds)
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("headgate")])


# --- what is asked all the same ------------------------------------------------------------


def test_paced_work_always_checks_with_the_agent(agent: Served, opened: Opened) -> None:
    """R142: one bucket, in one place, is the only exact one."""
    gate = opened("paced")
    agent.run_there(lambda: agent.book.patch("main", "lag", {"pace": True}, who="ann"))
    try:
        agent.call(agent.pacers.look, "main")
        eventually(lambda: newest().view.paced)
        assert {gate.check().decided for _ in range(20)} == {"agent"}
        eventually(lambda: gate.check_read(2.5).decided == "local")  # Reading is no work.
    finally:
        agent.run_there(lambda: agent.book.revert("main", "lag", who="ann"))
        agent.call(agent.pacers.look, "main")


def test_an_idle_database_is_woken_by_a_check(agent: Served, opened: Opened) -> None:
    """R58"""
    gate = opened("waker")
    demand = agent.demands.by_database["main"]

    def rest() -> Activity:
        demand.asked_at = demand.shard_asked_at = -1e9
        demand.refresh(agent.clock.now().mono_s)
        return demand.state

    def is_asked() -> bool:
        # Each time: what was decided here before is still to be reported, and wakes it as well.
        assert agent.call(rest) is not Activity.AWAKE
        return gate.check().decided == "agent"

    eventually(is_asked)
    eventually(lambda: demand.state is Activity.AWAKE)
    eventually(lambda: gate.check().decided == "local")


def test_deciding_here_keeps_a_database_awake(agent: Served, opened: Opened) -> None:
    gate = opened("busy")
    demand = agent.demands.by_database["main"]
    asked_at = demand.asked_at
    eventually(lambda: gate.check() and demand.asked_at > asked_at + 0.5)


def elsewhere(spec: MetricSpec, url: str) -> ShardHealth:
    absent = Absent(Cause.ELSEWHERE, "", 0.0)
    standing = stand(spec, Window().push(absent, keep=1), scope=Scope.SHARD)
    return ShardHealth("s", {spec.name: standing}, "db-b", url, "replica")


def leading(spec: MetricSpec, value: float, now: float) -> ShardHealth:
    window = Window().push(Sample(value, now), keep=1)
    return ShardHealth("s", {spec.name: stand(spec, window, scope=Scope.SHARD)}, "db-b")


def test_the_shards_primary_is_followed_to_its_own_stream(
    agent: Served, opened: Opened, tmp_path: Path
) -> None:
    """R37, R38"""
    spec = agent.board.healths["main"].standings["lag"].spec
    with serving(LOOPS["uvloop"], tmp_path) as primary:
        lead = leading(spec, 0.1, primary.clock.now().mono_s + 60)
        primary.call(primary.board.set_shard, "replica", lead)
        agent.call(agent.board.set_shard, "main", elsewhere(spec, primary.base_url))
        try:
            gate = opened("follower", metrics="lag", scope="shard")
            assert gate.check().admitted
            assert gate.check().database == "replica", "as it is called there"
            late = leading(spec, 99.0, primary.clock.now().mono_s + 60)
            primary.call(primary.board.set_shard, "replica", late)
            assert rejected(gate).decided == "local"
            gate.close()
            eventually(lambda: primary.counted("follower", "THRESHOLD_EXCEEDED"))
        finally:
            agent.call(agent.board.set_shard, "main", None)


def test_a_passive_standbys_client_follows_to_the_active_one(
    agent: Served, opened: Opened, tmp_path: Path
) -> None:
    """R52"""
    with serving(LOOPS["uvloop"], tmp_path) as active:
        agent.call(setattr, agent.checker, "active_agent", active.base_url)
        try:
            gate = opened("passive")
            gate.close()
            eventually(lambda: active.counted("passive", "OK"))
        finally:
            agent.call(setattr, agent.checker, "active_agent", "")


# --- counts --------------------------------------------------------------------------------


def decided_here(gate: headgate.Client, times: int) -> None:
    """So many decisions of its own, whatever becomes of the connection."""
    assert gate._only is not None
    for _ in range(times):
        eventually(lambda: gate._only is not None and gate._only.quick() is not None)


def test_counts_are_exact_over_a_flaky_connection(
    agent: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 checks; connections are cut after a few pieces, between a report and its answer
    too: nothing is lost, and nothing counts twice."""
    monkeypatch.setattr(local_feed, "REPORT_EVERY_S", 0.01)
    monkeypatch.setattr(local_feed, "BACKOFF_CAP_S", 0.05)
    repeated = agent.intake.repeated_total
    with Relay(agent.listener.ports[0], flaky(7)) as relay:
        gate = headgate.Client("flaky", database="main", url=relay.url, local=True)
        for n in range(50):
            told = agent.intake.batches_total
            decided_here(gate, 200)
            if n == 25:
                agent.rule(rule(0.5, "flaky"))
            eventually(lambda told=told: agent.intake.batches_total > told)  # type: ignore[misc]
        gate.close()
        eventually(lambda: not FEEDS._feeds)
        assert relay.connections > 10
    assert agent.counted("flaky") == 10_000
    assert agent.counted("flaky", "REJECTED_BY_RATIO") > 1000
    assert agent.intake.repeated_total > repeated, "some came twice, and counted once"


def test_threads_lose_no_count(agent: Served) -> None:
    gate = headgate.Client("threads", database="main", url=agent.base_url, local=True)
    asked: list[str] = []

    def decides_here() -> bool:
        asked.append(gate.check().decided)
        return asked[-1] == "local"

    eventually(decides_here)
    workers = [threading.Thread(target=decided_here, args=(gate, 5000)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    gate.close()
    assert agent.counted("threads") == len(asked) + 20_000


def run_job(program: str, url: str) -> str:
    """Another process, as a job is one."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", HEAD + program],
        env={"PYTHONPATH": SOURCE, "HEADGATE_URL": url},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


HEAD = """
import os, sys, time, headgate
from headgate.client import local, local_feed

# A slow machine loses no counts by this: the end of the process waits as long as it takes.
local_feed.REPORT_TIMEOUT_S = 60.0
for ends in (local_feed.Feeds.flush, local.LocalGate.close, local.Locally.close):
    ends.__defaults__ = (60.0,)

def decide(gate, times):
    ends = time.monotonic() + 60
    while times:
        assert time.monotonic() < ends
        if gate._only.quick() is not None:
            times -= 1
        else:
            time.sleep(0.005)

"""


def test_a_process_reports_its_last_counts_when_it_ends(agent: Served) -> None:
    run_job("gate = headgate.Client('ends', database='main', local=True); decide(gate, 777)",
            agent.base_url)  # fmt: skip
    assert agent.counted("ends") == 777


def test_a_forked_child_counts_and_listens_for_itself(agent: Served) -> None:
    program = """
gate = headgate.Client('forks', database='main', local=True)
decide(gate, 500)
children = []
for _ in range(2):
    pid = os.fork()
    if not pid:
        assert gate._only.quick() is None, 'the snapshot was the parents'
        decide(gate, 300)
        gate.close()
        os._exit(0)
    children.append(pid)
decide(gate, 100)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
gate.close()
"""
    run_job(program, agent.base_url)
    assert agent.counted("forks") == 500 + 2 * 300 + 100


def test_checks_of_all_kinds_are_counted_however_many_there_are(
    agent: Served, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a threshold of its own: what is known of them is bounded, the counts are not."""
    monkeypatch.setattr("headgate.client.local.MAX_CHECKS", 3)
    gate = opened("reader")
    for number in range(20):
        eventually(lambda n=number: gate.check_read(1 + n).decided == "local")  # type: ignore[misc]
        gate.check()
    gate.close()
    assert agent.counted("reader") >= 40


# --- what it costs -------------------------------------------------------------------------


def test_without_local_nothing_of_it_is_loaded() -> None:
    loaded = loaded_by("import headgate; headgate.Client('etl', database='main')")
    assert not [n for n in loaded if "local" in n or n.startswith("headgate.check")]


def test_with_it_the_standard_library_is_enough() -> None:
    """Without site-packages: msgspec and the like are not there to be loaded."""
    loaded = loaded_by(
        "import headgate; headgate.Client('etl', database='main', url='http://127.0.0.1:9',"
        " local=True)"
    )
    assert "headgate.check.decide" in loaded
    assert not {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"headgate"}
