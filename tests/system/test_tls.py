"""The SDK and the command line over TLS, against a real agent."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme

import headgate
from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import AgentProcess, postgres_database
from tests.fixtures.eventually import eventually
from tests.fixtures.servers import Pair


@pytest.fixture
def ca(tmp_path: Path) -> trustme.CA:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return authority


@pytest.fixture
def serving(
    agent: AgentProcess, postgres_pair: Pair[PostgresServer], ca: trustme.CA
) -> AgentProcess:
    certificate, key = agent.folder / "cert.pem", agent.folder / "key.pem"
    issued = ca.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(str(key))
    for position, part in enumerate(issued.cert_chain_pems):
        part.write_to_path(str(certificate), append=position > 0)
    agent.tls = True
    agent.write_settings(
        postgres_database(
            postgres_pair.primary.dsn(), "threads_running: interval_s=0.1, timeout_s=20"
        ),
        f'tls_cert = "{certificate}"\ntls_key = "{key}"',
    )
    agent.start()
    eventually(agent.admitted)
    return agent


def test_both_clients_are_admitted_over_tls(serving: AgentProcess, tmp_path: Path) -> None:
    trusting: dict[str, Any] = {"tls_ca": tmp_path / "ca.pem", "timeout_s": 60.0}
    with headgate.Client("a:b", database="main", url=serving.url, **trusting) as gate:
        assert all(gate.check() for _ in range(50))
        assert gate.wait(deadline_s=60).verdict == "OK"

    async def ask() -> list[headgate.Answer]:
        client = headgate.AsyncClient("a:b", database="main", url=serving.url, **trusting)
        async with client:
            return await asyncio.gather(*(client.check() for _ in range(50)))

    assert all(asyncio.run(ask()))
    clients = {c["client"]: c for c in serving.get("/v1/clients").json["clients"]}
    assert clients["a:b"]["admitted"] >= 100
    assert "Traceback" not in serving.log()


def test_an_agent_that_cannot_prove_itself_is_not_used(serving: AgentProcess) -> None:
    unproven = headgate.Client("a", database="main", url=serving.url, timeout_s=60.0)
    rejected = pytest.raises(headgate.ThrottlerUnavailable, match="certificate is not accepted")
    with unproven, rejected:
        unproven.check()
    plain = headgate.Client("a", database="main", url=serving.url.replace("https", "http"))
    with plain, pytest.raises(headgate.ThrottlerUnavailable):
        plain.check()
    assert "a" not in {c["client"] for c in serving.get("/v1/clients").json["clients"]}
    assert "Traceback" not in serving.log()


def test_the_command_line_trusts_what_the_system_trusts(
    serving: AgentProcess, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "check", "--as", "a", "--database", "main"],
        env={"HEADGATE_URL": serving.url, "SSL_CERT_FILE": str(tmp_path / "ca.pem")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_other_programs_are_answered_over_tls(serving: AgentProcess, tmp_path: Path) -> None:
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    connection = http.client.HTTPSConnection("localhost", serving.port, context=context, timeout=60)
    try:
        for _ in range(3):
            connection.request("GET", "/v1/check?app=a&database=main")
            answer = connection.getresponse()
            assert (answer.status, b'"OK"' in answer.read()) == (200, True)
    finally:
        connection.close()
