"""A web site whose name was made to mean the agent's address reads nothing of it (L1)."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme

from headgate.base.assemble import own_names
from headgate.http.auth import MAX_REMEMBERED, KnownHosts
from headgate.settings.sections import AgentSettings
from tests.http.conftest import Serve
from tests.http.serving import OPERATOR, VIEWER, Plan, Served, bearer, serving
from tests.http.test_checks import is_problem

EVERYWHERE = [
    "/v1/status",
    "/v1/audit",
    "/v1/clients",
    "/v1/check?app=etl&database=main",
    "/check/etl/mysql/main",
    "/metrics",
    "/healthz",
    "/openapi.json",
    "/",
    "/nothing",
]
FOREIGN = [
    "evil.example",
    "evil.example:8087",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "a b",
    "evil.example/x?",
]
OWN = ["127.0.0.1", "127.0.0.1:1", "[::1]:1", "localhost", "a.localhost:1", "AGENT", "agent:80", ""]


@pytest.mark.parametrize("path", EVERYWHERE)
@pytest.mark.parametrize("host", FOREIGN)
def test_nothing_is_read_under_another_sites_name(served: Served, path: str, host: str) -> None:
    reply = served.ask("GET", path, Host=host)
    assert is_problem(reply, 421)
    assert "add it to `hosts` of [agent]" in reply.json["detail"]


@pytest.mark.parametrize("host", OWN)
def test_by_its_address_and_its_own_names_it_answers(served: Served, host: str) -> None:
    for path in ("/v1/status", "/v1/check?app=etl&database=main", "/healthz"):
        assert served.ask("GET", path, Host=host).status == 200


def test_a_check_that_is_remembered_is_not_answered_under_another_name(served: Served) -> None:
    path = "/v1/check?app=etl&database=main"
    for _ in range(2):
        assert served.ask("GET", path, Host="127.0.0.1").status == 200
        assert served.ask("GET", path, Host="evil.example").status == 421


def test_without_a_host_it_is_no_browser(served: Served) -> None:
    with served.talk() as talk:
        talk.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert talk.reply().status == 200


def test_a_caller_with_a_token_is_no_web_site(served: Served) -> None:
    """A peer, a scraper or an operator goes on under whatever name it has for the agent."""
    for token, status in ((OPERATOR, 200), (VIEWER, 200), ("guessed", 421), ("", 421)):
        reply = served.ask(
            "GET", "/v1/status", Host="db1.corp.example", Authorization=bearer(token)
        )
        assert reply.status == status


def test_by_the_unix_socket_any_name_does(served: Served) -> None:
    assert served.ask("GET", "/v1/status", unix=True, Host="evil.example").status == 200


def test_a_body_under_another_name_is_not_taken(served: Served) -> None:
    head = b"POST /v1/unthrottled HTTP/1.1\r\nHost: evil.example\r\nExpect: 100-continue\r\n"
    with served.talk() as talk:
        talk.send(head + b"Content-Length: 1000\r\n\r\n")
        assert talk.reply().status == 421


def test_over_tls_the_certificate_speaks_for_the_name(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    with serving(asyncio.SelectorEventLoop, tmp_path, Plan(tls=context)) as served:
        for path, status in (("/v1/status", 200), ("/rules", 421)):
            with served.talk().wrapped(client) as talk:
                assert talk.ask("GET", path, Host="db.corp.example").status == status


def test_names_of_a_reload_count_at_once(serve: Serve) -> None:
    served = serve(Plan())
    assert served.ask("GET", "/v1/status", Host="new.corp.example").status == 421
    served.call(setattr, served.listener, "hosts", KnownHosts({"new.corp.example"}))
    assert served.ask("GET", "/v1/status", Host="new.corp.example").status == 200


def test_the_agents_own_names_are_those_of_its_settings() -> None:
    agent = AgentSettings(
        name="Db-A",
        listen=("db1.corp", 8087),
        advertise="http://DB1.example.com:8087",
        hosts=("lb.example.com",),
    )
    names = own_names(agent)
    assert {"db-a", "db1.corp", "db1.example.com", "lb.example.com"} <= names
    assert not {"", "evil.example"} & names


def test_made_up_names_fill_nothing() -> None:
    known = KnownHosts({"agent"})
    for number in range(5000):
        assert known.fault(b"127.0.0.1:%d" % number, None) is None
        assert known.fault(b"evil%d.example" % number, None) is not None
    assert len(known._known) == MAX_REMEMBERED
    assert len(known._logged) <= 20
