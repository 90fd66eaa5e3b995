"""What the agent tells systemd: that it serves, that its loop runs, that it reloads, or goes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.app import Agent
from headgate.base.notify import MAX_STATUS_CHARS, Notifier
from headgate.demo import servers
from headgate.settings.agent import parse_settings
from tests.deploy.managers import Manager, Message
from tests.fixtures.agents import HOST_ONLY, AgentProcess, reserve_port
from tests.fixtures.eventually import DEADLINE_S

WATCHDOG_S = 0.3


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    # Unix socket paths are short; pytest's may not be.
    folder = tmp_path if len(str(tmp_path)) < 80 else servers.make_folder(Path("/tmp"), "hg-")
    made = Manager(folder / "notify")
    yield made
    made.close()


@pytest.fixture
def watched(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AgentProcess]:
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
    agent = AgentProcess(manager.path.parent, reserve_port(), forked=False)
    agent.write_settings(HOST_ONLY)
    agent.launch()
    yield agent
    agent.end()  # SIGKILL ends a frozen one, too.


def is_sign(message: Message) -> bool:
    return "WATCHDOG" in message


def is_ready(message: Message) -> bool:
    return message.get("READY") == "1"


def test_a_manager_learns_of_the_whole_life_of_an_agent(
    watched: AgentProcess, manager: Manager
) -> None:
    """Also under it: a process that is frozen falls silent, which is what gets it restarted."""
    first = manager.hear()
    assert first is not None
    assert first["STATUS"].startswith("serving 1 database")
    assert first == {
        "READY": "1",
        "MAINPID": str(watched.process.pid),
        "STATUS": first["STATUS"],
    }
    assert watched.get("/healthz").status == 200, "whoever is told that it serves is served"
    for _ in range(3):
        manager.wait_for(is_sign)

    asked_s = time.monotonic()
    watched.process.send_signal(signal.SIGHUP)
    told = manager.wait_for(lambda message: "RELOADING" in message)
    assert asked_s <= int(told["MONOTONIC_USEC"]) / 1e6 <= time.monotonic()
    assert "STATUS" in manager.wait_for(is_ready)

    watched.settings.write_text("[agent]\nlisen = 1\n")
    watched.process.send_signal(signal.SIGHUP)
    manager.wait_for(lambda message: "RELOADING" in message)
    assert "is invalid" in manager.wait_for(is_ready)["STATUS"]

    watched.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, watched.process.pid, os.WSTOPPED)
    manager.drained()
    assert manager.hear(within_s=2 * WATCHDOG_S) is None, "frozen, and yet it says that it runs"
    watched.process.send_signal(signal.SIGCONT)
    manager.wait_for(is_sign)

    watched.process.send_signal(signal.SIGTERM)
    assert "under way" in manager.wait_for(lambda message: "STOPPING" in message)["STATUS"]
    assert watched.process.wait(timeout=DEADLINE_S) == 0


async def test_a_loop_that_is_stuck_gives_no_sign(manager: Manager) -> None:
    """The process lives, its threads run; nobody would be answered."""
    notifier = Notifier({"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "60000"})
    settings = parse_settings(f'[agent]\nlisten = ""\nsocket = "{manager.path}.agent"\n')
    agent = Agent(settings, notifier=notifier)
    await agent.start()
    try:
        await asyncio.to_thread(manager.wait_for, is_sign)
        manager.drained()
        time.sleep(0.2)  # noqa: ASYNC251 -- this very call is what is stuck
        assert manager.drained() == []
        await asyncio.to_thread(manager.wait_for, is_sign)
    finally:
        await agent.stop()
    assert any("STOPPING" in message for message in manager.drained())


async def test_what_it_waits_for_is_in_the_status(manager: Manager) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(manager.path)})
    folder = manager.path.parent
    settings = parse_settings(
        f'[agent]\nlisten = ""\nsocket = "{folder}/agent"\nstate = "{folder}/no/state.db"\n'
    )
    agent = Agent(settings, notifier=notifier)
    await agent.start()
    try:
        ready = await asyncio.to_thread(manager.wait_for, is_ready)
    finally:
        await agent.stop()
    assert ready["STATUS"].startswith("serving 0 databases; store sqlite: state.db: No such file")


def test_signs_come_three_times_within_the_deadline() -> None:
    told = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000"}
    assert Notifier(told).sign_interval_s == 1.0
    assert Notifier({**told, "WATCHDOG_USEC": "600000000"}).sign_interval_s == 5.0


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WATCHDOG_USEC": "3000000"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "0"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"},
    ],
)
def test_nobody_watches_a_child_or_without_a_deadline(environment: dict[str, str]) -> None:
    assert Notifier(environment).watchdog_s is None
    Notifier(environment).alive()


def test_a_status_is_one_line_and_has_an_end(manager: Manager) -> None:
    """A line of its own would be a message of its own: `STOPPING=1` of an error's text."""
    notifier = Notifier({"NOTIFY_SOCKET": str(manager.path)})
    notifier.status("store away\nSTOPPING=1\n" + "x" * 1000)
    message = manager.hear()
    assert message is not None and message.keys() == {"STATUS"}
    assert message["STATUS"].startswith("store away STOPPING=1 x")
    assert len(message["STATUS"]) == MAX_STATUS_CHARS


def test_a_manager_that_is_behind_delays_nobody(manager: Manager) -> None:
    """It would be held up for good: nobody reads, and the queue is full long before."""
    notifier = Notifier({"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "3000000"})
    for _ in range(2000):
        notifier.alive()
    assert 0 < len(manager.drained()) < 2000


def test_a_manager_that_is_gone_is_no_fault(tmp_path: Path) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "3000000"})
    notifier.ready()
    notifier.alive()
    notifier.stopping("nobody listens any more")
