"""The shard over HTTP: who may pull, what operators may set, and what is left of who hangs up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.check.model import Activity
from headgate.errors import InvalidRequest
from headgate.http.auth import Credential, Gatekeeper, Peer, _name_in
from headgate.http.control import ROUTES
from headgate.metrics.samples import Instant
from headgate.shard.model import Pull
from headgate.shard.peers_api import encode_pull, encode_wake
from tests.fixtures.eventually import eventually
from tests.http.serving import LoopFactory, bearer
from tests.http.talk import Reply, Talk, request
from tests.http.test_checks import is_problem
from tests.shard.peers.authority import Authority
from tests.shard.peers.serving import OPERATOR, PEER, SHARD, VIEWER, Agent, Plan, agent

JSON: dict[str, Any] = {"Content_Type": "application/json"}
NOW = Instant(5.0, 1_700_000_000.0)
SHARD_ROUTE = "/v1/databases/main/shard"
SKIP = f"{SHARD_ROUTE}/skips/db-c"
HANDOVER = f"{SHARD_ROUTE}/handover"
ADD = f"{SHARD_ROUTE}/peers/db-d"
SKIPPED = {"for": "30m", "reason": "rebuild"}
ADDED = {"url": "https://db-d:8087", "database": "main"}


@pytest.fixture
def served(loop_factory: LoopFactory, tmp_path: Path) -> Iterator[Agent]:
    with agent(loop_factory, tmp_path) as served:
        yield served


def pull_body(shard: str = SHARD, database: str = "main", wait_s: float = 0.0) -> bytes:
    return encode_pull(Pull(shard, database, "db-a", "", None, Activity.AWAKE, wait_s), now=NOW)


def pull(served: Agent, body: bytes, token: str | None = PEER, **more: Any) -> Reply:
    headers = {**JSON, **({"Authorization": bearer(token)} if token else {})}
    return served.ask("POST", "/v1/peer/pull", body=body, **{**headers, **more})


def change(
    served: Agent, method: str, path: str, body: Any = None, token: str | None = OPERATOR
) -> Reply:
    headers: dict[str, Any] = {"Authorization": bearer(token)} if token else {}
    data = None if body is None else json.dumps(body).encode()
    return served.ask(method, path, body=data, **headers, **(JSON if data is not None else {}))


# --- who may pull --------------------------------------------------------------------------


@pytest.mark.parametrize("token", [PEER, OPERATOR])
def test_a_peer_or_an_operator_pulls(served: Agent, token: str) -> None:
    reply = pull(served, pull_body(), token)
    assert reply.status == 200
    assert (reply.json["version"], reply.json["name"]) == (1, "db-b")
    assert reply.json["readings"]["lag"]["value"] == 0.25
    assert 0.2 <= reply.json["readings"]["lag"]["age_s"] < 60
    assert "db-b" in reply.json["url"]


def test_the_unix_socket_needs_no_token(served: Agent) -> None:
    assert pull(served, pull_body(), None, unix=True).status == 200


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("wrong", 401), (VIEWER, 403)], ids=str)
@pytest.mark.parametrize("route", ["/v1/peer/pull", "/v1/peer/wake"])
def test_nobody_else_does_not_even_from_loopback(
    served: Agent, route: str, token: str | None, status: int
) -> None:
    headers: dict[str, Any] = {"Authorization": bearer(token)} if token else {}
    reply = served.ask("POST", route, body=pull_body(), **JSON, **headers)
    assert is_problem(reply, status)
    assert (reply.headers["WWW-Authenticate"] == "Bearer") == (status == 401)
    assert not served.shards.asked and not served.shards.woken_by


def test_a_caller_that_is_no_peer_learns_what_to_configure(served: Agent) -> None:
    words = pull(served, pull_body(), None).json["detail"]
    for setting in ("token_file", "cert", "key", "[[tokens]]", "tls_client_ca"):
        assert setting in words


def test_a_wrong_token_is_rejected_on_the_unix_socket_as_well(served: Agent) -> None:
    assert is_problem(pull(served, pull_body(), "wrong", unix=True), 401)


@pytest.mark.parametrize("token", [PEER, VIEWER])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", SKIP, SKIPPED),
        ("DELETE", SKIP, None),
        ("PUT", ADD, ADDED),
        ("DELETE", ADD, None),
        ("PATCH", "/v1/databases/main/metrics/lag", {"threshold": "9s"}),
    ],
)
def test_neither_a_peer_nor_a_viewer_changes_settings(
    served: Agent, method: str, path: str, body: Any, token: str
) -> None:
    reply = change(served, method, path, body, token)
    assert is_problem(reply, 403)
    assert "operator" in reply.json["detail"]
    assert is_problem(change(served, method, path, body, None), 401)
    assert not served.shards.who


def test_a_certificate_pulls_and_changes_nothing(
    loop_factory: LoopFactory, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    context = authority.access(name="db-a").tls
    assert context is not None
    plan = Plan(tls=authority.server(believes=authority.ca_path), tokens=False)
    with agent(loop_factory, tmp_path, plan) as served:
        with Talk(("127.0.0.1", served.port)).wrapped(context) as talk:
            assert talk.ask("POST", "/v1/peer/pull", body=pull_body(), **JSON).status == 200
            body = json.dumps(SKIPPED).encode()
            assert is_problem(talk.ask("PUT", SKIP, body=body, **JSON), 401)
        assert not served.shards.who


def test_the_name_in_a_certificate() -> None:
    """A verified one that has no common name still has a name for the log."""
    subject = ((("organizationName", "x"),), (("commonName", "db-a"),))
    assert _name_in({"subject": subject, "subjectAltName": (("DNS", "b"),)}) == "db-a"
    assert _name_in({"subject": (), "subjectAltName": (("DNS", "db-a.internal"),)}) == (
        "db-a.internal"
    )
    assert _name_in({"serialNumber": "07"}) == "certificate 07"


def test_roles_of_tokens() -> None:
    local = Peer("127.0.0.1", None)
    gate = Gatekeeper(
        [Credential("ops", "operator", "0" * 64), Credential("eve", "viewer", "1" * 64)]
    )
    with pytest.raises(InvalidRequest, match="send a token"):
        gate.who_pulls(local, "Basic abc")
    assert gate.who_pulls(Peer("10.0.0.1", None, "db-a"), None) == "db-a"
    assert gate.who_pulls(Peer("unix", 0), None) == "uid:0"
    nameless = {"headgate-on-behalf-of": "anna (operator)"}
    assert gate.who_changes(Peer("unix", 4_000_000_000), nameless) == "uid:4000000000"
    with pytest.raises(InvalidRequest) as rejected:
        gate.who_changes(Peer("10.0.0.1", None, "db-a"), {})
    assert rejected.value.status == 401


# --- pulls ---------------------------------------------------------------------------------


def test_a_pull_for_another_shard_is_rejected(served: Agent) -> None:
    """R39"""
    assert is_problem(pull(served, pull_body(shard="commerce/80-")), 409)
    wake = encode_wake("commerce/80-", "main", "db-a")
    reply = served.ask("POST", "/v1/peer/wake", body=wake, Authorization=bearer(PEER), **JSON)
    assert is_problem(reply, 409)
    assert is_problem(pull(served, pull_body(database="other")), 404)
    assert not served.shards.asked and not served.shards.woken_by


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"null", b"\xff", b'{"version": 1, "shard": 3}', b"[" * 20_000]
)
def test_what_is_no_pull_is_rejected(served: Agent, body: bytes) -> None:
    assert is_problem(pull(served, body), 400)
    headers: dict[str, Any] = {"Authorization": bearer(PEER), **JSON}
    assert is_problem(served.ask("POST", "/v1/peer/wake", body=body, **headers), 400)
    assert is_problem(pull(served, body, Content_Type="text/plain"), 415)


def test_a_wake_up_call(served: Agent) -> None:
    body = encode_wake(SHARD, "main", "db-c")
    reply = served.ask("POST", "/v1/peer/wake", body=body, Authorization=bearer(PEER), **JSON)
    assert (reply.status, reply.json) == (200, {"database": "main", "activity": "awake"})
    assert served.shards.woken_by == [(SHARD, "main", "db-c")]


def test_an_agent_without_a_shard(loop_factory: LoopFactory, tmp_path: Path) -> None:
    with agent(loop_factory, tmp_path, Plan(in_shard=False)) as served:
        assert is_problem(pull(served, pull_body()), 404)
        assert is_problem(served.ask("GET", SHARD_ROUTE), 404)
        assert is_problem(change(served, "PUT", SKIP, SKIPPED), 404)


def test_a_waiting_pull_is_answered_at_a_change_and_ends_with_its_connection(
    served: Agent,
) -> None:
    """The one whose agent died leaves nothing behind; the other is answered."""
    asked = request(
        "POST",
        "/v1/peer/pull",
        body=pull_body(wait_s=30),
        Authorization=bearer(PEER),
        **JSON,
    )
    address = ("127.0.0.1", served.port)
    with Talk(address) as stays, Talk(address) as dies, Talk(address) as leaves:
        for talk in (stays, dies, leaves):
            talk.send(asked)
        eventually(lambda: served.shards.holding == 3)
        dies.reset()
        leaves.sock.close()
        eventually(lambda: served.shards.holding == 1)
        assert served.ask("GET", "/healthz").status == 200
        served.change(7.0)
        reply = stays.reply("POST")
        assert reply.json["readings"]["lag"]["value"] == 7.0
        assert 0 < reply.json["held_s"] < 30
    eventually(served.settled)


def test_a_pull_counts_as_no_client(served: Agent) -> None:
    pull(served, pull_body())
    assert served.ask("GET", "/v1/clients").json["clients"] == []


# --- operators -----------------------------------------------------------------------------


def test_everybody_may_look_at_the_shard(served: Agent) -> None:
    reply = served.ask("GET", SHARD_ROUTE)
    assert (reply.status, reply.json["shard"], reply.json["member"]) == (200, SHARD, "db-b")
    assert is_problem(served.ask("GET", "/v1/databases/nowhere/shard"), 404)


def test_a_member_is_skipped_for_a_while_and_for_a_reason(served: Agent) -> None:
    """R150"""
    reply = change(served, "PUT", SKIP, SKIPPED)
    assert (reply.status, reply.json["shard"]) == (200, SHARD)
    assert reply.json["copies"]["have"] == 1 and reply.json["copies"]["of"] == 2
    assert served.ask("GET", SHARD_ROUTE).json["copies"] is None
    skip = served.shards.skipped["db-c"]
    assert (skip.who, skip.reason) == ("ops", "rebuild")
    assert skip.until_wall_s - skip.set_wall_s == pytest.approx(1800)
    assert change(served, "DELETE", SKIP).status == 200
    assert not served.shards.skipped
    assert is_problem(change(served, "DELETE", SKIP), 404)
    assert is_problem(change(served, "PUT", f"{SHARD_ROUTE}/skips/nobody", SKIPPED), 404)


def test_a_switchover_is_announced_by_an_operator_and_taken_back(served: Agent) -> None:
    for token in (None, VIEWER, PEER):
        assert change(served, "POST", HANDOVER, {}, token=token).status in (401, 403)
        assert change(served, "DELETE", HANDOVER, token=token).status in (401, 403)
    assert served.shards.handovers == []
    reply = change(served, "POST", HANDOVER, {"for": "5m", "reason": "upgrade"})
    assert (reply.status, reply.json["shard"]) == (200, SHARD)
    [handover] = served.shards.handovers
    assert (handover.who, handover.reason) == ("ops", "upgrade")
    assert handover.until_mono_s - handover.set_mono_s == pytest.approx(300)
    assert change(served, "DELETE", HANDOVER).status == 200
    assert is_problem(change(served, "DELETE", HANDOVER), 404)
    assert change(served, "POST", HANDOVER, {}).status == 200, "60 s, without a reason"
    served.shards.handovers.clear()
    for body in ({"for": 60}, {"for": "soon"}, {"until": "60s"}):
        assert change(served, "POST", HANDOVER, body).status == 400
    bare = change(served, "POST", HANDOVER, {"for": 60}).json["detail"]
    assert bare.startswith("for is 60, which has no unit: 60s or 60m?; an example: ")
    for body in ({"for": "2h"}, {"for": "0s"}):
        assert change(served, "POST", HANDOVER, body).status == 422
    assert served.shards.handovers == []


def test_the_socket_replaces_a_token(served: Agent) -> None:
    reply = served.ask("PUT", SKIP, body=json.dumps(SKIPPED).encode(), unix=True, **JSON)
    assert reply.status == 200
    assert served.shards.who[0].startswith("uid:")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"for": "30m"},
        {"reason": "x"},
        {"for": "30m", "reason": ""},
        {"for": "30m", "reason": "x" * 501},
        {"for": "8d", "reason": "x"},
        {"for": "0s", "reason": "x"},
        {"for": "-1h", "reason": "x"},
        {"for": "1w", "reason": "x"},
        {"for": 30, "reason": "x"},
        {"for": "30m", "reason": "x", "until": "noon"},
        [],
        None,
    ],
    ids=str,
)
def test_a_skip_without_an_end_or_a_reason_is_rejected(served: Agent, body: Any) -> None:
    data = json.dumps(body).encode()
    headers: dict[str, Any] = {"Authorization": bearer(OPERATOR), **JSON}
    status = 422 if body and body in ({"for": f, "reason": "x"} for f in ("8d", "0s")) else 400
    assert served.ask("PUT", SKIP, body=data, **headers).status == status
    assert not served.shards.skipped


def test_a_skip_of_a_week_is_the_longest(served: Agent) -> None:
    assert change(served, "PUT", SKIP, {"for": "7d", "reason": "x"}).status == 200


def test_members_are_added_and_removed(served: Agent) -> None:
    assert change(served, "PUT", ADD, ADDED).status == 200
    assert served.shards.peers["db-d"] == ("https://db-d:8087", "main")
    assert is_problem(change(served, "PUT", ADD, ADDED), 409)
    assert change(served, "DELETE", ADD).status == 200
    assert is_problem(change(served, "DELETE", ADD), 404)
    assert served.shards.who == ["ops", "ops"]


@pytest.mark.parametrize(
    "body",
    [
        {"url": "https://db-d:8087"},
        {"database": "main"},
        {"url": "db-d", "database": "main"},
        {"url": "https://u:hunter2@db-d", "database": "main"},
        {"url": "https://db-d/path", "database": "main"},
        {"url": "https://db-d", "database": "../main"},
        {"url": 3, "database": "main"},
        {"url": "https://db-d", "database": 60},
    ],
    ids=str,
)
def test_a_member_without_an_address_is_rejected(served: Agent, body: Any) -> None:
    """A number where a name belongs lacks no unit."""
    reply = change(served, "PUT", ADD, body)
    assert reply.status == 400 and reply.json["title"] == "Bad Request"
    assert "unit" not in reply.json["detail"]
    assert b"hunter2" not in reply.body
    assert "db-d" not in served.shards.peers


@pytest.mark.parametrize(("path", "body"), [("skips", SKIPPED), ("peers", ADDED)])
def test_a_member_whose_name_is_none_is_rejected(served: Agent, path: str, body: Any) -> None:
    reply = change(served, "PUT", f"{SHARD_ROUTE}/{path}/a%20b", body)
    assert is_problem(reply, 400)
    assert "member name" in reply.json["detail"]


def test_a_request_that_is_not_understood_changes_nothing(served: Agent) -> None:
    assert is_problem(change(served, "PUT", f"{SKIP}?dryrun=true", SKIPPED), 400, field="dryrun")
    assert is_problem(change(served, "PUT", f"{SKIP}?reach=here", SKIPPED), 400, field="reach")
    assert not served.shards.skipped


def test_a_skip_that_is_only_tried_changes_nothing(served: Agent) -> None:
    assert change(served, "PUT", f"{SKIP}?dry_run=true&reach=host", SKIPPED).status == 200
    assert not served.shards.skipped


def test_a_change_goes_on_when_its_client_hangs_up(served: Agent) -> None:
    data = request(
        "PUT", SKIP, body=json.dumps(SKIPPED).encode(), Authorization=bearer(OPERATOR), **JSON
    )
    with Talk(("127.0.0.1", served.port)) as talk:
        talk.send(data)
        talk.reset()
    eventually(lambda: "db-c" in served.shards.skipped or served.settled())


# --- waking --------------------------------------------------------------------------------


def test_waking_needs_nothing_more_than_looking_does(served: Agent) -> None:
    def sleep() -> None:
        demand = served.demands.by_database["main"]
        demand.asked_at = demand.shard_asked_at = -1e6
        demand.refresh(served.plan.clock.now().mono_s)

    served.call(sleep)
    assert served.call(served.demands.state, "main") is Activity.HIBERNATING
    reply = served.ask("POST", "/v1/databases/main/wake", body=b"{}", **JSON)
    assert (reply.status, reply.json) == (200, {"database": "main", "activity": "awake"})
    assert served.call(served.demands.state, "main") is Activity.AWAKE
    nowhere = served.ask("POST", "/v1/databases/nowhere/wake", body=b"{}", **JSON)
    assert is_problem(nowhere, 404)
    assert is_problem(served.ask("GET", "/v1/databases/main/wake"), 405)


SIMPLE = ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]


@pytest.mark.parametrize("kind", SIMPLE)
def test_another_sites_web_page_wakes_nobody(served: Agent, kind: str) -> None:
    """L4: what a page can send to another site without being allowed to is no wake-up call."""
    headers: dict[str, Any] = {"Content-Type": kind} if kind else {}
    headers |= {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    reply = served.ask("POST", "/v1/databases/main/wake", body=b"{}", **headers)
    assert is_problem(reply, 415)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"a": 1}', b"\xff"])
def test_a_wake_up_call_says_nothing_else(served: Agent, body: bytes) -> None:
    assert is_problem(served.ask("POST", "/v1/databases/main/wake", body=body, **JSON), 400)


def test_help_lists_the_shards_routes(served: Agent) -> None:
    listed = served.ask("GET", "/help").json
    assert "POST /v1/peer/pull" in listed
    wanted = {f"{r.method} {r.path}" for r in ROUTES if "shard" in r.path}
    assert wanted <= set(listed)
