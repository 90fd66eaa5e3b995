"""One request, one document: where the agent is, and every way in which it may not answer."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from headgate.cli import api
from headgate.cli.api import (
    AgentSilent,
    AgentUnreachable,
    checked_token,
    connect,
    find_target,
    metric_path,
)
from headgate.errors import HeadgateError, InvalidRequest, InvalidSettings
from tests.cli import builders
from tests.cli.scripted import Heard, Reply, ScriptedAgent, problem
from tests.fixtures.eventually import DEADLINE_S


@contextmanager
def raw_server(answer: bytes, *, hang: bool = False) -> Iterator[str]:
    """Answers one connection with these bytes; hanging, it then keeps it open."""
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                if hang:
                    done.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


# --- where -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "tls"),
    [
        ("http://db1:8087", "db1", 8087, "", False),
        ("https://db1", "db1", 443, "", True),
        ("https://[::1]:9", "::1", 9, "", True),
        ("unix:///run/headgate/agent.sock", "", 0, "/run/headgate/agent.sock", False),
        ("/tmp/a.sock", "", 0, "/tmp/a.sock", False),
        ("http://db1:8087, http://db2:8087", "db1", 8087, "", False),
    ],
)
def test_where_the_agent_is(url: str, host: str, port: int, path: str, tls: bool) -> None:
    target = find_target(url)
    assert (target.host, target.port, target.socket_path) == (host, port, path)
    assert (target.trust is not None) is tls


@pytest.mark.parametrize("url", ["ftp://db1", "db1:8087", "http://", "https://u:secret@db1"])
def test_an_odd_url_is_rejected_without_repeating_it(url: str) -> None:
    with pytest.raises(InvalidSettings) as rejected:
        find_target(url)
    assert "secret" not in str(rejected.value)


def test_by_default_a_socket_on_this_host_then_the_usual_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "SYSTEM_SOCKET", tmp_path / "agent.sock")
    assert api.default_url() == "http://127.0.0.1:8087"
    with ScriptedAgent().serving(tmp_path / "agent.sock"):
        assert api.default_url() == f"unix://{tmp_path}/agent.sock"
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        with ScriptedAgent().serving(tmp_path / "headgate.sock"):
            assert api.default_url() == f"unix://{tmp_path}/headgate.sock"


def test_a_token_that_cannot_stand_in_a_header_is_rejected_and_not_shown() -> None:
    for token in ("se cret", "secret\r\nX: y", "sécret"):
        with pytest.raises(InvalidSettings) as rejected:
            checked_token(f"{token}x")
        assert "cret" not in str(rejected.value)
    assert checked_token(" good-token\n") == "good-token"
    assert checked_token("") is None


def test_names_are_quoted_in_paths() -> None:
    assert metric_path("ma/in", "q d?") == "/v1/databases/ma%2Fin/metrics/q%20d%3F"


# --- what --------------------------------------------------------------------------------------


def test_a_document_comes_over_tcp_and_over_a_unix_socket(
    scripted: ScriptedAgent, tmp_path: Path
) -> None:
    scripted.says("/v1/status", builders.status())
    assert connect(scripted.url, None).get("/v1/status").document["agent"] == "db1"
    unix = ScriptedAgent(scripted.replies)
    with unix.serving(tmp_path / "a.sock"):
        assert connect(unix.url, None).get("/v1/status").document["agent"] == "db1"


def test_a_document_comes_over_tls_from_a_trusted_agent_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    body = b'{"agent": "db1"}'
    with tls_server(context, b"HTTP/1.0 200 OK\r\n\r\n" + body, connections=2) as url:
        with pytest.raises(AgentUnreachable, match="certificate"):
            connect(url, None).get("/v1/status")
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert connect(url, None).get("/v1/status").document == {"agent": "db1"}


@contextmanager
def tls_server(context: ssl.SSLContext, answer: bytes, *, connections: int) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)

        def serve() -> None:
            for _ in range(connections):
                plain, _ = server.accept()
                try:
                    with context.wrap_socket(plain, server_side=True) as connection:
                        connection.recv(65536)
                        connection.sendall(answer)
                except OSError:
                    plain.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://localhost:{server.getsockname()[1]}"
        finally:
            thread.join()


def test_token_and_if_match_are_sent(scripted: ScriptedAgent) -> None:
    scripted.says("/x", {}, method="PATCH")
    connect(scripted.url, "t0ken").change("PATCH", "/x", {"a": 1}, etag='"7"', dry_run=True)
    [heard] = scripted.heard
    assert heard.headers["authorization"] == "Bearer t0ken"
    assert heard.headers["if-match"] == '"7"'
    assert heard.headers["content-type"] == "application/json"
    assert (heard.query, heard.body) == ({"dry_run": "true"}, {"a": 1})


def test_queries_are_quoted(scripted: ScriptedAgent) -> None:
    scripted.says("/v1/check", builders.answer())
    connect(scripted.url, None).ask("/v1/check", app="a b&c=d", database="main", metrics=None)
    assert scripted.heard[0].query == {"app": "a b&c=d", "database": "main"}


def test_a_large_history_is_taken(scripted: ScriptedAgent) -> None:
    rows = [{"n": n, "text": "x" * 100} for n in range(20_000)]
    scripted.says("/v1/history", {"tallies": rows})
    answered = connect(scripted.url, None).get("/v1/history")
    assert len(answered.document["tallies"]) == 20_000


def test_a_rejection_is_an_answer_and_a_problem_is_an_error(scripted: ScriptedAgent) -> None:
    replies = iter([Reply(builders.rejection(), 424), problem(500, "failed inside the agent")])
    scripted.replies["GET", "/v1/check"] = lambda _: next(replies)
    assert connect(scripted.url, None).ask("/v1/check").document["verdict"] == "THRESHOLD_EXCEEDED"
    with pytest.raises(InvalidRequest, match="answers 500: failed inside the agent"):
        connect(scripted.url, None).ask("/v1/check")


def test_every_fault_of_rejected_settings_is_reported(scripted: ScriptedAgent) -> None:
    faults = ["metrics.q.threshold: is missing", "metrics.q.sql: must be one SELECT"]
    scripted.replies["PUT", "/x"] = problem(422, "these settings are rejected", faults)
    with pytest.raises(InvalidRequest) as rejected:
        connect(scripted.url, None).change("PUT", "/x", {})
    assert all(fault in str(rejected.value) for fault in faults)


# --- nobody there --------------------------------------------------------------------------------


def test_a_closed_port_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(AgentUnreachable, match=r"connection refused; start `headgate agent`"):
        connect(url, None).get("/v1/status")
    with pytest.raises(AgentUnreachable, match="no such file"):
        connect(f"unix://{tmp_path}/none.sock", None).get("/v1/status")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "closed without an answer"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}", "closed 41 bytes into"),
    ],
)
def test_what_is_no_agent_is_unreachable(answer: bytes, told: str) -> None:
    with raw_server(answer) as url, pytest.raises(AgentUnreachable, match=told):
        connect(url, None).get("/v1/status")


def test_another_web_server_is_not_taken_for_an_agent() -> None:
    page = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"
    with raw_server(page) as url, pytest.raises(HeadgateError, match="is a Headgate agent there"):
        connect(url, None).get("/v1/status")


def test_a_hung_agent_costs_the_timeout_and_no_more() -> None:
    """Every wait has a deadline: this one never says more."""
    unanswered = pytest.raises(AgentUnreachable, match=r"no answer in 0.2 s")
    with raw_server(b"HTTP/1.1 200 OK\r\n", hang=True) as url, unanswered:
        connect(url, None, timeout_s=0.2).get("/v1/status")


def test_one_that_runs_and_is_busy_is_not_said_to_need_a_start() -> None:
    """And a change that it may be at work on is not repeated blindly."""
    with raw_server(b"", hang=True) as url, pytest.raises(AgentSilent) as busy:
        connect(url, None, timeout_s=1.0).change("POST", "/v1/changes/apply", {})
    assert "took the question" in str(busy.value) and "look before you repeat" in str(busy.value)
    assert "start" not in str(busy.value)
    with raw_server(b"", hang=True) as url, pytest.raises(AgentSilent) as slow:
        connect(url, None, timeout_s=1.0).get("/v1/rules")
    assert "repeat" not in str(slow.value)


def test_the_scripted_agent_speaks_as_recorded(scripted: ScriptedAgent) -> None:
    scripted.replies["GET", "/echo"] = lambda heard: Reply({"method": heard.method})
    assert connect(scripted.url, None).get("/echo").document == {"method": "GET"}
    assert isinstance(scripted.heard[0], Heard)
