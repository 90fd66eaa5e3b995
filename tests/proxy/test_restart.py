"""Real processes: a restart by the API, and what a service manager says and hears."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headgate.base.notify import Notifier
from headgate.cli.app import app
from tests.fixtures.eventually import eventually
from tests.fixtures.proxies import ProxyProcess


@pytest.fixture(scope="module")
def proxy() -> Iterator[ProxyProcess]:
    """In front of a server that is not there: nothing is sent to it."""
    with ProxyProcess.started("postgres", 1, forked=False) as started:
        yield started


def test_a_restart_by_the_api_has_a_successor_that_serves(proxy: ProxyProcess) -> None:
    before = proxy.process.pid
    done = CliRunner().invoke(app, ["proxy", "restart", str(proxy.settings)])
    told = re.fullmatch(r"process (\d+) has taken over\n", done.output)
    assert told, (done, proxy.log())
    successor = int(told[1])
    try:
        assert successor != before
        assert proxy.process.wait(60) == 0, "the old one has ended by itself"
        status = proxy.status()["proxy"]
        assert (status["pid"], status["memory"]) == (successor, "taken over")
        with socket.create_connection(("127.0.0.1", proxy.port), 60):
            pass
        eventually(lambda: proxy.events("handover.predecessor_gone"))
        proxy.settings.write_text(proxy.settings.read_text() + "\n[nonsense]\n")
        code, answer = proxy.request("POST", "/v1/proxy/restart")
        assert code == 422 and "nonsense" in str(answer)
        assert proxy.status()["proxy"]["pid"] == successor, "it serves on"
    finally:
        os.kill(successor, signal.SIGTERM)
        eventually(lambda: not Path(f"/proc/{successor}").exists() or _is_zombie(successor))


STARTUP = b"\0\0\0\x10\0\3\0\0user\0u\0\0"
LET_IN = b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I"
QUERY = b"Q\0\0\0\x0dSELECT 1\0"


def _is_blocked(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 60).close()
    except ConnectionRefusedError:
        return True
    return False


def test_who_comes_while_a_proxy_drains_is_blocked_at_once() -> None:
    """What runs goes on, and so does the process: who has a second address must not wait for it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        ProxyProcess.started("postgres", listening.getsockname()[1]) as drained,
        socket.create_connection(("127.0.0.1", drained.port), 60) as client,
    ):
        client.sendall(STARTUP)
        listening.settimeout(60)
        server, _ = listening.accept()
        with server:
            server.settimeout(60)
            server.recv(1000)
            server.sendall(LET_IN)
            client.recv(1000)
            client.sendall(QUERY)
            server.recv(1000)
            drained.process.send_signal(signal.SIGTERM)
            eventually(lambda: _is_blocked(drained.port))
            assert drained.process.poll() is None, "it waits for what runs"
            assert drained.status()["proxy"]["state"] == "draining"
            drained.process.send_signal(signal.SIGTERM)
            assert drained.process.wait(60) == 0


def _is_zombie(pid: int) -> bool:
    """Where nobody is there who would reap an orphan."""
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


def test_a_service_manager_learns_who_serves_now(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        Notifier({"NOTIFY_SOCKET": str(path)}).ready()
        told = manager.recv(1000).decode().splitlines()
    assert told[:2] == ["READY=1", f"MAINPID={os.getpid()}"]
    Notifier({"NOTIFY_SOCKET": str(path)}).stopping("nobody listens any more")
    Notifier({}).ready()


ACTIVATED = """
import os, socket, sys
from headgate.base.notify import inherited_sockets
sock = socket.create_server(("127.0.0.1", 0))
os.dup2(sock.fileno(), 3)
mine = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
(found,) = inherited_sockets(mine)
assert found.getsockname() == sock.getsockname() and not found.get_inheritable()
assert inherited_sockets({**mine, "LISTEN_PID": "1"}) == []
assert inherited_sockets({}) == []
"""


def test_sockets_of_a_service_manager_are_used() -> None:
    done = subprocess.run([sys.executable, "-c", ACTIVATED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
