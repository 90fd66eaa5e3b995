"""The circuit breaker: closed, open, half-open, with one probe at a time (R49, R50)."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from typing import Any

import pytest

from headgate import Client, ThrottlerUnavailable, WaitedTooLong
from headgate.client.circuit import Availability, Claim, Outage
from headgate.client.steps import Ask
from headgate.client.waits import Patience
from tests.client.faketime import FakeTime
from tests.client.scripted import Play, ScriptedAgent
from tests.client.test_import import SOURCE
from tests.client.test_retrying import OK, QUESTION, REJECTED, SILENT, Talk, declared
from tests.fixtures.eventually import DEADLINE_S, eventually


def state(talk: Talk) -> str:
    return talk.conversation.circuit.state


@pytest.mark.parametrize("on_unavailable", ["open", "closed"])
def test_the_states_in_turn(on_unavailable: Any) -> None:
    talk = Talk(Patience(on_unavailable=on_unavailable), silence_s=1.0)
    assert talk.conversation.circuit == ("closed", 0.0, 0, "")
    try:
        talk.wait(itertools.repeat(SILENT))
    except ThrottlerUnavailable:
        assert on_unavailable == "closed"
    assert state(talk) == "open"
    assert talk.conversation.circuit.outage_s >= 10
    assert talk.conversation.circuit.detail == "no answer in 1 s"
    talk.time.now_s += 9 if on_unavailable == "closed" else 15
    probe = talk.conversation.wait(QUESTION)
    assert isinstance(next(probe), Ask)
    assert state(talk) == "half-open"
    with pytest.raises((StopIteration, ThrottlerUnavailable)):
        probe.send(SILENT)
    assert state(talk) == "open"
    talk.time.now_s += 9 if on_unavailable == "closed" else 15
    assert talk.wait([OK]).verdict == "OK"
    assert state(talk) == "closed"


def test_silence_within_the_bounded_wait_opens_nothing() -> None:
    talk = Talk(silence_s=1.0)
    with pytest.raises(ThrottlerUnavailable):
        talk.check(SILENT)
    assert state(talk) == "closed"
    assert talk.conversation.circuit.asks == 1


def test_rejections_never_open_it() -> None:
    """R50: also not those of an agent that has just started and knows nothing yet."""
    talk = Talk(Patience(on_unavailable="open"))
    with pytest.raises(WaitedTooLong):
        talk.wait(itertools.repeat(REJECTED), deadline_s=3600)
    assert talk.conversation.circuit == ("closed", 0.0, 0, "")


def test_a_rejected_probe_closes_it() -> None:
    talk = declared()
    talk.time.now_s += 15
    with pytest.raises(WaitedTooLong):
        talk.wait([REJECTED], deadline_s=0)
    assert state(talk) == "closed"


def opened() -> Availability:
    availability = Availability(10.0, "open")
    outage = availability.unanswered(0.0, 10.0, "silent")
    assert availability.declare(outage, 10.0, probe_at_s=20.0)
    assert not availability.declare(outage, 10.0, probe_at_s=20.0), "it was open already"
    return availability


def at_once(count: int, act: Any) -> list[Any]:
    barrier, found = threading.Barrier(count), []

    def run() -> None:
        barrier.wait()
        found.append(act())

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_of_many_threads_one_probes() -> None:
    for _ in range(20):
        availability = opened()
        told = at_once(16, lambda a=availability: a.bypassed(20.0, next_probe_at_s=30.0))
        assert sum(outage is None for outage in told) == 1


def test_a_claim_is_won_once() -> None:
    for _ in range(20):
        assert sum(at_once(16, Claim().win)) == 1


def test_a_probe_that_never_came_to_anything_is_made_again() -> None:
    """Its thread was killed, or a fork left it behind."""
    availability = opened()
    declared = availability._declared
    assert declared is not None and declared.claim.win()
    assert isinstance(availability.bypassed(20.0, 30.0), Outage)
    assert availability.bypassed(declared.lost_after_s, 60.0) is None
    assert isinstance(availability.bypassed(declared.lost_after_s, 60.0), Outage)


def test_threads_go_on_while_one_probes_an_agent_that_hangs() -> None:
    """The others neither ask nor wait: one question at a time reaches the agent."""
    with ScriptedAgent(default=Play(b"", hold=True)) as agent:
        time, done = FakeTime(), list[bool]()
        settings: dict[str, Any] = {"on_unavailable": "open", "clock": time.clock}
        agent.stop()
        with Client("etl", database="main", url=agent.url, sleep=time.sleep, **settings) as gate:
            assert gate.wait().unthrottled
            assert gate.circuit.state == "open"
            agent.start()
            time.now_s += 60

            def work() -> None:
                for _ in range(200):
                    done.append(gate.wait().unthrottled)

            probing = threading.Thread(target=at_once, args=(8, work))
            probing.start()
            eventually(lambda: len(done) >= 7 * 200)
            eventually(lambda: agent.heard)
            assert len(agent.heard) == 1, "and it is still waited for by one"
            agent.stop()
            probing.join()
        assert len(done) == 8 * 200 and all(done)


FORKING = """
import os
from headgate import Client

gate = Client("etl", database="main", on_unavailable="open", unavailable_after_s=0.05)
assert gate.wait().unthrottled
child = os.fork()
if not child:
    os._exit(0 if gate.wait().unthrottled and gate.circuit.state == "open" else 1)
assert os.waitpid(child, 0)[1] == 0
assert gate.wait().unthrottled
"""


def test_a_child_forked_in_an_outage_goes_on_and_probes_alone() -> None:
    with ScriptedAgent(default=Play(b"", close=True)) as agent:
        subprocess.run(
            [sys.executable, "-W", "error", "-c", FORKING],
            env={"HEADGATE_URL": agent.url, "PYTHONPATH": SOURCE},
            check=True,
            timeout=DEADLINE_S,
        )
