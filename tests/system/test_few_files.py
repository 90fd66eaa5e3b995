"""An agent that may open few files says so, and serves every client (N3, N4)."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fixtures.agents import HOST_ONLY, AgentProcess, release_port
from tests.fixtures.eventually import eventually

FEW = 96


def start_with(agent: AgentProcess, files: int) -> None:
    limited = f"resource.setrlimit(resource.RLIMIT_NOFILE, ({files},) * 2)"
    run = f"import resource, os, sys; {limited}; os.execv(sys.argv[1], sys.argv[1:])"
    argv = [sys.executable, "-m", "headgate", "agent", "--config", str(agent.settings)]
    agent.forked = False
    agent.write_settings(HOST_ONLY)
    release_port(agent.port)
    with (agent.folder / "agent.log").open("ab") as log:
        agent.process = subprocess.Popen(
            [sys.executable, "-c", run, *argv], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    agent.await_serving()


def test_silent_connections_take_no_file_from_those_that_check(agent: AgentProcess) -> None:
    start_with(agent, FEW)
    eventually(agent.admitted)
    advice = agent.get("/v1/status").json["advice"]
    assert any("this process may open too few files" in told for told in advice)
    with ExitStack() as stack:
        for _ in range(3 * FEW):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", agent.port), 5.0))
            sock.setblocking(False)
        for _ in range(20):
            assert agent.admitted(), "over TCP"
            assert agent.request("GET", "/v1/status", unix=True).status == 200
        assert b"headgate_out_of_files 0.0" in agent.get("/metrics").body
    rule = {"target": "etl", "kind": "hold", "reason": "INC-1", "for": "1h"}
    assert agent.request("POST", "/v1/rules", rule, unix=True).status == 201


def test_who_is_out_of_files_says_so_and_when_it_is_over(agent: AgentProcess) -> None:
    agent.write_settings(HOST_ONLY)
    agent.start()
    eventually(agent.admitted)
    pid = agent.process.pid
    with socket.create_connection(("127.0.0.1", agent.port), 5.0) as line:
        # One that is open already: no further one can be taken.
        def ask(path: str) -> bytes:
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            return line.recv(1 << 20)

        assert b" 200 " in ask("/healthz")
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used - 3, limits[1]))
        eventually(lambda: b"open files" in ask("/readyz"))
        assert "agent.out_of_files" in agent.log()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        eventually(lambda: b" 200 " in ask("/readyz"))
        assert "agent.has_files_again" in agent.log()


@pytest.mark.parametrize("limit", [64, 128, 256, 1024])
def test_connections_fit_into_the_files(limit: int) -> None:
    code = (
        "import resource; from headgate.http.assemble import most_connections as most;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit},) * 2); print(most(1024, 64, 5))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    most = int(done.stdout)
    assert 8 <= most <= 1024
    assert most + 48 + min(most, 64) + 5 <= max(limit, 80)
