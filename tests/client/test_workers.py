"""Where jobs run: pools of threads, prefork workers, gevent. Each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.client.scripted import OK, REJECTED, ScriptedAgent
from tests.client.test_import import SOURCE
from tests.fixtures.eventually import DEADLINE_S


def run(program: str, agent: ScriptedAgent, *paths: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={"HEADGATE_URL": agent.url, "PYTHONPATH": ":".join([SOURCE, *paths])},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PREFORK = """
import os, sys
from headgate import Client

# As Celery does it: the module makes the client, the pool forks, each child works.
gate = Client("etl", database="main", timeout_s=60)
assert gate.wait()
children = []
for _ in range(4):
    child = os.fork()
    if not child:
        done = [ids[0] for ids in gate.ranges(1, 40, 10)]
        gate.close()
        os._exit(0 if done == [1, 11, 21, 31] else 1)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
assert gate.wait()
gate.close()
"""


def test_prefork_workers_share_nothing_but_the_settings(agent: ScriptedAgent) -> None:
    run(PREFORK, agent)
    assert len(agent.heard) == 1 + 4 * 4 + 1
    assert agent.script.connections == 5, "one of each process"


IN_THREADS = """
import threading
from concurrent.futures import ThreadPoolExecutor
from headgate import Client

with Client("etl", database="main", timeout_s=60) as gate:
    @gate.throttled
    def work(number):
        return number * 2

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(200))) == [number * 2 for number in range(200)]
assert threading.active_count() == 1
"""


def test_a_pool_of_threads(agent: ScriptedAgent) -> None:
    agent.script.plays.extend([OK, REJECTED] * 10)
    run(IN_THREADS, agent)
    assert len(agent.heard) >= 200
    assert agent.script.connections <= 8


GEVENT = """
from gevent import monkey
monkey.patch_all()
import gevent, time
from headgate import Client

with Client("etl", database="main", timeout_s=60, on_unavailable="open") as gate:
    ticks = []
    ticker = gevent.spawn(lambda: [(ticks.append(1), gevent.sleep(0.01)) for _ in range(20)])
    answers = [gevent.spawn(gate.wait) for _ in range(50)]
    gevent.joinall([*answers, ticker], raise_error=True)
    assert all(one.value for one in answers) and len(ticks) == 20
    # Reports go by a patched thread, which is a greenlet.
    gate._conversation.periods.piece(1.0)
    gate._conversation.periods.ended(2.0)
    assert gate.wait()
print("fine")
"""


def test_monkey_patched_gevent(agent: ScriptedAgent) -> None:
    """Sockets and sleeps give way to other greenlets; a report is a greenlet, not a thread."""
    gevent = pytest.importorskip("gevent")
    agent.script.plays.extend([REJECTED] * 5)
    packages = gevent.__path__[0].rpartition("/")[0]
    assert run(GEVENT, agent, packages) == "fine\n"
    assert sum("/v1/unthrottled" in heard.line for heard in agent.heard) == 1
