"""A burst at a paced metric, through a real agent and a real server (R142, R143)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, Response, postgres_database
from tests.fixtures.eventually import eventually
from tests.fixtures.forking import forked_agents
from tests.fixtures.servers import Pair

T = TypeVar("T")
CLIENTS = 50
# A rate of 2 a second to begin with, and no reading that would raise it: a burst cannot outrun it.
PACED = "threads_running: threshold=500, interval_s=600, timeout_s=20, pace=true"


def burst(ask: Callable[[int], T]) -> list[T]:
    """All at once, each on a connection of its own."""
    barrier = Barrier(CLIENTS)

    def one(number: int) -> T:
        barrier.wait(timeout=60)
        return ask(number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(one, range(CLIENTS)))


def metrics_set(agent: AgentProcess, *options: str) -> None:
    command = ("metrics", "set", "main", "threads_running", *options)
    ran = forked_agents().start(agent.folder, *command, "--url", f"unix://{agent.socket}")
    assert ran.wait(timeout=60) == 0, ran.err


def test_release_thundering_herd_a_burst_comes_back_one_by_one(
    agent: AgentProcess, postgres_pair: Pair[PostgresServer]
) -> None:
    agent.write_settings(postgres_database(postgres_pair.primary.dsn(), PACED))
    agent.start()
    eventually(lambda: agent.check(app="first")["verdict"] in ("OK", "PACED"))

    answers = burst(lambda number: agent.check(app=f"{number}:herd"))
    paced = [answer for answer in answers if answer["verdict"] == "PACED"]
    assert len(paced) >= CLIENTS * 0.7
    assert {answer["verdict"] for answer in answers} <= {"OK", "PACED"}
    waits_ms = [answer["retry_after_ms"] for answer in paced]
    assert min(waits_ms) > 0
    assert len(set(waits_ms)) > len(waits_ms) / 2
    assert max(waits_ms) > 2 * min(waits_ms)

    replies = burst(lambda number: agent.get(f"/check/gh-ost:{number}/mysql/main"))
    rejected = [reply for reply in replies if reply.status == 429]
    assert len(rejected) >= CLIENTS * 0.7
    assert all(int(reply.headers["Retry-After"]) >= 1 for reply in rejected)

    pace = agent.get("/v1/status").json["databases"][0]["pace"]
    assert pace["set_points"][0]["metric"] == "threads_running"
    assert pace["paced_total"] >= len(paced) + len(rejected)
    assert pace["clients_total"] >= len(paced)

    metrics_set(agent, "pace=false")
    all_go(burst(lambda number: agent.get(f"/v1/check?app={number}:herd&database=main")))
    all_go(burst(lambda number: agent.get(f"/check/gh-ost:{number}/mysql/main")))
    assert agent.get("/v1/status").json["databases"][0]["pace"] is None


def all_go(replies: list[Response]) -> None:
    assert {reply.status for reply in replies} == {200}
