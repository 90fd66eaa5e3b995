"""Looking and changing, over sockets."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headgate.base.keyvalue import Compare, Put
from headgate.history.records import AuditEntry, MetricMinute, Tally
from headgate.http.auth import user_of
from headgate.metrics.model import Engine
from headgate.metrics.service import DatabasePlan
from tests.changes.own_world import Unwritable
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.memory_store import MemoryStore
from tests.http.conftest import Serve
from tests.http.serving import METRICS, OPERATOR, VIEWER, Plan, Served, bearer
from tests.http.talk import Reply, request
from tests.http.test_checks import CHECK, is_problem

LAG = "/v1/databases/main/metrics/lag"
CUSTOM = "/v1/databases/main/metrics/queue"
FILED = dict(METRICS["lag"])
QUERY = {"sql": "SELECT count(*) FROM queue", "threshold": 50}


@pytest.fixture
def own(serve: Serve) -> Served:
    """A server of its own: changes stay."""
    return serve(Plan())


def change(
    served: Served, method: str, path: str, settings: Any = None, token: str = OPERATOR, **more: str
) -> Reply:
    body = None if settings is None else json.dumps(settings).encode()
    if body is not None:
        more.setdefault("Content_Type", "application/json")
    headers = {"Authorization": bearer(token), **more}
    return served.ask(method, path, body=body, unix=False, **headers)


# --- looking -------------------------------------------------------------------------------


def test_status_shows_everything(served: Served) -> None:
    served.ask("GET", CHECK)
    served.measure(lag=7.0)
    status = served.ask("GET", "/v1/status").json
    assert (status["agent"], status["version"]) == ("test-agent", "0.0")
    databases = {database["database"]: database for database in status["databases"]}
    assert list(databases) == ["main", "replica"]
    assert databases["main"]["verdict"] == "THRESHOLD_EXCEEDED"
    assert "lag is 7 s" in databases["main"]["reason"]
    assert 0 <= databases["main"]["healthy_s_ago"] < 60
    assert {m["metric"] for m in databases["main"]["metrics"]} == {
        "lag",
        "threads_running",
        "pool_usage",
    }
    assert "etl:nightly" in {client["client"] for client in status["clients"]}
    assert status["store"] == {
        "name": "memory",
        "writable": True,
        "fault": None,
        "fault_for_s": None,
        "tallies_waiting": status["store"]["tallies_waiting"],
    }


def test_metrics_show_settings_and_values(served: Served) -> None:
    every = served.ask("GET", "/v1/metrics").json["metrics"]
    assert len(every) == 6
    only = served.ask("GET", "/v1/metrics?database=replica").json["metrics"]
    assert {metric["database"] for metric in only} == {"replica"}
    assert is_problem(served.ask("GET", "/v1/metrics?database=nowhere"), 404)
    one = served.ask("GET", LAG)
    assert one.headers["ETag"] == '"0"'
    assert (one.json["origin"], one.json["source"], one.json["now"]["value"]) == (
        "file",
        "builtin",
        0.25,
    )
    assert one.json["granularity_s"] >= one.json["interval_s"]
    assert is_problem(served.ask("GET", "/v1/databases/main/metrics/nothing"), 404)


def test_explain_counts_nothing(served: Served) -> None:
    """R144"""
    before = served.counted("explain:me")
    reply = served.ask("GET", "/v1/explain?app=explain:me&database=main&metrics=lag")
    assert (reply.json["verdict"], [m["metric"] for m in reply.json["metrics"]]) == ("OK", ["lag"])
    served.measure(lag=7.0)
    rejected = served.ask("GET", "/v1/explain?app=explain:me&database=main")
    assert (rejected.status, rejected.json["verdict"]) == (200, "THRESHOLD_EXCEEDED")
    assert served.counted("explain:me") == before == 0
    assert is_problem(served.ask("GET", "/v1/explain?app=a"), 400, field="database")


def test_clients_and_history_agree_with_the_counters(own: Served) -> None:
    for _ in range(3):
        own.ask("GET", "/v1/check?app=history:a&database=main")
    own.measure(lag=7.0)
    own.ask("GET", "/v1/check?app=history:a&database=main")
    (client,) = own.ask("GET", "/v1/clients").json["clients"]
    assert (client["client"], client["admitted"], client["rejected"]) == ("history:a", 3, 1)
    assert (client["last_verdict"], client["rejected_by"]) == ("THRESHOLD_EXCEEDED", "lag")
    for query in ("since=1h", "since=1h&app=history:a", "since=30m&app=history"):
        tallies = own.ask("GET", f"/v1/history?{query}").json["tallies"]
        counts: dict[tuple[str, str], int] = {}
        for tally in tallies:
            key = (tally["verdict"], tally["metric"])
            counts[key] = counts.get(key, 0) + tally["count"]
        assert counts == {("OK", ""): 3, ("THRESHOLD_EXCEEDED", "lag"): 1}
    assert own.ask("GET", "/v1/history?app=somebody").json["tallies"] == []


@pytest.mark.parametrize("since", ["", "1", "1w", "h", "-1h", "1h1h", "9999999h", "%C2%B2h"])
def test_a_since_that_cannot_be_read_is_rejected(served: Served, since: str) -> None:
    assert is_problem(served.ask("GET", f"/v1/history?since={since}"), 400, field="since")


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "%C2%B2", "9" * 5000, "1_0"])
def test_a_limit_that_cannot_be_read_is_rejected(served: Served, limit: str) -> None:
    assert is_problem(served.ask("GET", f"/v1/audit?limit={limit}"), 400, field="limit")


def test_alive_and_ready(served: Served) -> None:
    assert served.ask("GET", "/healthz").json == {"serving": True}
    ready = served.ask("GET", "/readyz")
    assert (ready.status, ready.json) == (200, {"ready": True, "waiting_for": [], "notes": []})


def test_not_ready_while_a_metric_was_never_read_or_the_store_is_away(own: Served) -> None:
    own.call(own.keeper.mark_fault, "disk full")
    reply = own.ask("GET", "/readyz")
    assert (reply.status, reply.json["waiting_for"]) == (503, ["store memory: disk full"])
    status = own.ask("GET", "/v1/status").json["store"]
    assert (status["writable"], status["fault"]) == (False, "disk full")


@pytest.mark.parametrize("path", ["/nothing", "/v1", "/v1/status/", "/%ff", "//v1/status"])
def test_nothing_there_is_a_problem_that_points_to_help(served: Served, path: str) -> None:
    reply = served.ask("GET", path)
    assert is_problem(reply, 404)
    assert "GET /help" in reply.json["detail"]
    assert reply.headers["Location"] is None


@pytest.mark.parametrize("host", ["[", "a b", "evil.example/x?", "\xff", ""])
def test_a_strange_host_header_changes_nothing(served: Served, host: str) -> None:
    """Where there is no browser. Elsewhere it is no name of the agent's (test_hosts.py)."""
    with served.talk(unix=True) as talk:
        for target, status in (("/nothing", 404), ("/v1/status", 200), ("/v1/status/", 404)):
            raw = f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1")
            assert talk.send(raw).reply().status == status
        explain = f"GET /v1/explain?app=a&database=main HTTP/1.1\r\nHost: {host}\r\n\r\n"
        assert talk.send(explain.encode("latin-1")).reply().status == 200


# --- changing ------------------------------------------------------------------------------


def test_a_metric_is_added_changed_and_removed(own: Served) -> None:
    """R1, R139: without a restart, and every step is in the audit."""
    own.script.values["queue"] = 10.0
    put = change(own, "PUT", CUSTOM, QUERY)
    assert put.status == 200, put.body
    assert (put.status, put.json["origin"], put.json["source"]) == (200, "runtime", "sql")
    eventually(lambda: own.ask("GET", CHECK + "&metrics=queue").status == 200)
    patch = change(own, "PATCH", CUSTOM, {"threshold": 5})
    assert patch.json["settings"] == {**QUERY, "threshold": 5}
    assert own.ask("GET", CHECK + "&metrics=queue").status == 429
    restored = change(own, "PATCH", CUSTOM, {"threshold": 50, "comparison": None})
    assert restored.headers["ETag"] == f'"{restored.json["revision"]}"'
    gone = change(own, "DELETE", CUSTOM)
    assert (gone.json["metric"], gone.json["removed"]) == ("queue", True)
    assert gone.json["expires_at"] is None, "there is nothing that it could go back to"
    assert own.ask("GET", CHECK + "&metrics=queue").status == 404
    assert own.ask("GET", CUSTOM).status == 404
    audit = own.ask("GET", "/v1/audit").json["audit"]
    assert [(e["who"], e["action"], e["target"]) for e in audit] == [
        ("ops", "metric.remove", "main/queue"),
        ("ops", "metric.set", "main/queue"),
        ("ops", "metric.set", "main/queue"),
        ("ops", "metric.set", "main/queue"),
    ]
    assert (audit[-1]["before"], audit[-1]["after"]) == (None, QUERY)
    assert audit[0]["after"] is None
    assert len(own.ask("GET", "/v1/audit?limit=2").json["audit"]) == 2


def test_a_reverted_metric_is_as_in_the_file(own: Served) -> None:
    change(own, "PATCH", LAG, {"threshold": "60s"})
    seen = own.ask("GET", LAG).json
    assert seen["file"] == FILED and "threshold = default" in seen["advice"][-1]
    (told,) = own.ask("GET", "/v1/status").json["advice"]
    assert "main/lag: runtime settings hide the file's until" in told
    assert "threshold = default" in told
    tried = change(own, "POST", f"{LAG}/revert?dry_run=true")
    assert tried.json["settings"] == FILED
    assert own.ask("GET", LAG).json["settings"] == {**FILED, "threshold": "60s"}
    assert is_problem(change(own, "POST", f"{LAG}/revert?dry=true"), 400, field="dry")
    assert is_problem(own.ask("POST", f"{LAG}/revert"), 401)
    back = change(own, "POST", f"{LAG}/revert")
    assert (back.json["origin"], back.json["settings"]) == ("file", FILED)
    assert own.ask("GET", "/v1/audit").json["audit"][0]["action"] == "metric.revert"
    assert own.ask("GET", "/v1/status").json["advice"] == []
    change(own, "DELETE", LAG)
    assert "removed at run time" in own.ask("GET", "/v1/status").json["advice"][0]
    assert change(own, "POST", f"{LAG}/revert").json["metric"] == "lag"
    change(own, "PUT", CUSTOM, QUERY)
    assert change(own, "POST", f"{CUSTOM}/revert").json["removed"] is True


def test_a_disabled_metric_is_shown_as_such_and_enabled_again(own: Served) -> None:
    off = change(own, "PATCH", LAG, {"enabled": False})
    assert (off.json["now"]["state"], off.json["now"]["value"]) == ("disabled", None)
    assert own.ask("GET", LAG).json["now"]["state"] == "disabled"
    main = own.ask("GET", "/v1/status").json["databases"][0]
    assert "lag" not in {metric["metric"] for metric in main["metrics"]}
    assert [metric["metric"] for metric in main["other_metrics"]] == ["lag"]
    assert own.ask("GET", CHECK + "&metrics=lag").status == 404
    assert change(own, "PATCH", LAG, {"enabled": True}).status == 200
    eventually(lambda: own.ask("GET", CHECK + "&metrics=lag").status == 200)


def test_a_metric_outside_the_default_set_says_that_it_protects_nothing(
    own: Served,
) -> None:
    raw: dict[str, dict[str, Any]] = {"lag": {}, "threads_running": {}}
    plan = DatabasePlan("main", Engine.MYSQL, raw, lambda: own.script, ("lag",))
    own.run_there(lambda: own.book.adopt([plan]))
    put = change(own, "PUT", CUSTOM, QUERY)
    assert put.json["in_default"] is False
    assert "it does not apply to checks that name no metric" in put.json["advice"][-1]
    assert own.ask("GET", LAG).json["in_default"] is True
    (main,) = own.ask("GET", "/v1/status").json["databases"]
    assert [metric["metric"] for metric in main["metrics"]] == ["lag"]
    assert {m["metric"] for m in main["other_metrics"]} == {"threads_running", "queue"}


def test_a_dry_run_says_what_it_would_have_done_in_the_last_hour(own: Served) -> None:
    """R140"""
    wall_minute = int(own.call(own.clock.now).wall_s // 60)

    async def history() -> None:
        minute = MetricMinute(wall_minute - 1, "main", "lag", 60, 0, 0, 150.0, 2.0, 3.0, 5.0)
        await own.store.history.add_metric_minutes([minute])
        await own.store.history.add_tallies([Tally(wall_minute - 1, "main", "etl", "OK", "", 40)])

    own.run_there(history)
    replay = change(own, "PATCH", f"{LAG}?dry_run=true", {"threshold": "1s"}).json["replay"]
    assert (replay["at_least"], replay["at_most"], replay["rejected"]) == (40, 40, 0)
    assert replay["says"].startswith("would have rejected 40 of ")
    assert change(own, "PATCH", LAG, {"threshold": "1s"}).json["replay"] is None


def test_secrets_in_settings_are_shown_to_nobody(own: Served) -> None:
    raw = {"url": "http://u:S3cret@h/x?token=S3cret", "threshold": 5}
    put = change(own, "PUT", CUSTOM, raw)
    assert put.json["settings"]["url"] == "http://…@h/x?…"
    patched = change(own, "PATCH", CUSTOM, {"threshold": 6})
    for reply in (put, patched, *(own.ask("GET", p) for p in ("/v1/metrics", "/v1/audit", CUSTOM))):
        assert reply.status == 200 and b"S3cret" not in reply.body
    assert own.call(own.book.database, "main").entry("queue").raw["url"] == raw["url"]
    sent_back = change(own, "PUT", CUSTOM, put.json["settings"])
    assert is_problem(sent_back, 422) and "placeholder" in sent_back.json["faults"][0]


def test_null_restores_a_default(own: Served) -> None:
    change(own, "PATCH", LAG, {"threshold": "60s"})
    own.measure(lag=7.0)
    assert own.ask("GET", CHECK).status == 200
    assert change(own, "PATCH", LAG, {"threshold": None}).json["settings"] == FILED
    assert own.ask("GET", CHECK).status == 429


def test_a_dry_run_tries_and_changes_nothing(own: Served) -> None:
    """R140"""
    own.script.values["queue"] = 77.0
    tried = change(own, "PUT", f"{CUSTOM}?dry_run=true", QUERY)
    assert (tried.status, tried.json["now"]["value"], tried.json["now"]["state"]) == (
        200,
        77.0,
        "breached",
    )
    assert own.ask("GET", CUSTOM).status == 404
    gone = change(own, "DELETE", f"{LAG}?dry_run=true")
    assert gone.json["removed"] is False and own.ask("GET", LAG).status == 200
    assert own.ask("GET", "/v1/audit").json["audit"] == []


@pytest.mark.parametrize(
    "query",
    ["dry_run=1", "dry_run=True", "dry_run", "dryrun=true", "dry_run=true&dry_run=false", "x=1"],
)
def test_a_misspelt_dry_run_is_no_change(own: Served, query: str) -> None:
    reply = change(own, "DELETE", f"{LAG}?{query}")
    assert is_problem(reply, 400, field=query.split("=")[0])
    assert "dry_run" in reply.json["detail"] and "nothing was changed" in reply.json["detail"]
    assert own.ask("GET", LAG).status == 200


def test_two_operators_do_not_overwrite_each_other(own: Served) -> None:
    seen = own.ask("GET", LAG).headers["ETag"]
    first = change(own, "PATCH", LAG, {"threshold": "6s"}, If_Match=seen)
    assert first.status == 200
    second = change(own, "PATCH", LAG, {"threshold": "7s"}, If_Match=seen)
    assert is_problem(second, 412)
    assert "it was changed meanwhile" in second.json["detail"]
    third = change(own, "PATCH", LAG, {"threshold": "7s"}, If_Match=first.headers["ETag"])
    assert third.json["settings"] == {**FILED, "threshold": "7s"}
    assert change(own, "DELETE", LAG, If_Match="*").status == 200


@pytest.mark.parametrize("etag", ["x", '"x"', "\xb2", "9" * 5000, '"1", "2"', "-1"])
def test_an_etag_of_another_server_is_a_412(own: Served, etag: str) -> None:
    assert is_problem(change(own, "PATCH", LAG, {"threshold": "6s"}, If_Match=etag), 412)


def test_rejected_settings_name_every_fault_and_change_nothing(own: Served) -> None:
    """R7, R8: validated first."""
    reply = change(own, "PUT", CUSTOM, {"sql": "DELETE FROM t", "treshold": 5})
    assert is_problem(reply, 422)
    assert len(reply.json["faults"]) >= 2 and "threshold" in " ".join(reply.json["faults"])
    assert is_problem(change(own, "PUT", CUSTOM, {"sql": "SELECT 1"}), 422)
    command = change(own, "PUT", CUSTOM, {"command": ["/bin/true"], "threshold": 1})
    assert is_problem(command, 422)
    assert own.ask("GET", CUSTOM).status == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/databases/nowhere/metrics/lag", 404),
        ("/v1/databases/main/metrics/LAG", 400),
        ("/v1/databases/main/metrics/%00", 400),
    ],
)
def test_a_change_of_nothing_known_is_rejected(served: Served, path: str, status: int) -> None:
    assert is_problem(change(served, "PATCH", path, {"threshold": "1s"}), status)


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[" * 60000, "application/json", 400),
        (b'{"a":' * 10000, "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"{}", "", 415),
        (b'{"threshold":1e999}', "application/json", 400),
        (b'{"threshold":' + b"9" * 5000 + b"}", "application/json", 400),
    ],
)
def test_settings_that_are_no_json_object_are_rejected(
    served: Served, body: bytes, content_type: str, status: int
) -> None:
    reply = served.ask(
        "PUT", CUSTOM, body=body, Content_Type=content_type, Authorization=bearer(OPERATOR)
    )
    assert is_problem(reply, status)


# --- who may -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Basic {OPERATOR}"}, 401),
        ({"Authorization": bearer(VIEWER)}, 403),
        ({"Authorization": "Bearer \xff\xfe"}, 401),
    ],
)
def test_a_change_needs_an_operators_token(
    served: Served, headers: dict[str, str], status: int
) -> None:
    for method, path in (("DELETE", LAG), ("DELETE", f"{LAG}?dry_run=true")):
        reply = served.ask(method, path, body=None, unix=False, **headers)
        assert is_problem(reply, status)
        assert (reply.headers["WWW-Authenticate"] == "Bearer") == (status == 401)
        assert "token" in reply.json["detail"]
    assert served.ask("GET", LAG).status == 200
    assert served.ask("GET", "/v1/audit").json["audit"] == []


def test_without_tokens_nobody_changes_anything_over_tcp(serve: Serve) -> None:
    served = serve(Plan(tokens=False))
    assert is_problem(served.ask("DELETE", LAG), 401)
    assert is_problem(change(served, "DELETE", LAG), 401)
    assert served.ask("DELETE", LAG, unix=True).status == 200


def test_the_unix_sockets_permissions_stand_in_for_a_token(own: Served) -> None:
    claim: Any = {"Headgate-On-Behalf-Of": "anna"}
    assert own.ask("DELETE", LAG, unix=True, **claim).status == 200
    (entry,) = own.ask("GET", "/v1/audit").json["audit"]
    assert entry["who"] == f"{user_of(os.getuid())} on behalf of anna (claimed)"
    rejected = own.ask("DELETE", CUSTOM, unix=True, Authorization="Bearer wrong")
    assert is_problem(rejected, 401), "a wrong token is not overlooked, even there"


# --- changes that end ----------------------------------------------------------------------


def test_the_end_of_a_change_is_shown(own: Served) -> None:
    """R155"""
    assert own.ask("GET", LAG).json["expires_at"] is None
    end = f"{datetime.now(UTC) + timedelta(days=7):%Y-%m-%dT%H:%M:%SZ}"
    tight = change(own, "PATCH", LAG, {"threshold": "0.1s", "expires_at": end})
    assert tight.json["expires_at"] == end
    assert tight.json["settings"] == {**FILED, "threshold": "0.1s"}
    assert own.ask("GET", LAG).json["expires_at"] == end
    listed = own.ask("GET", "/v1/metrics?database=main").json["metrics"]
    assert [m["expires_at"] for m in listed if m["metric"] == "lag"] == [end]
    stays = change(own, "PUT", LAG, {**FILED, "threshold": "0.1s", "for": None})
    assert stays.json["expires_at"] is None
    assert is_problem(change(own, "PATCH", LAG, {"for": "soon"}), 422)


def test_a_looser_change_ends_and_says_so(own: Served) -> None:
    """R83, R155"""
    looser = change(own, "PATCH", LAG, {"threshold": "600s"})
    assert looser.json["expires_at"] is not None
    assert any("after 1 h" in told and "for: never" in told for told in looser.json["advice"])
    told = own.ask("GET", "/v1/status").json["advice"]
    assert any(f"until {looser.json['expires_at']}" in line for line in told)
    stays = change(own, "PATCH", LAG, {"for": "never"})
    assert stays.json["expires_at"] is None and stays.json["settings"]["threshold"] == "600s"
    gone = change(own, "DELETE", f"{LAG}?for=2h")
    assert gone.json["expires_at"] is not None and not gone.json["advice"]
    told = own.ask("GET", "/v1/status").json["advice"]
    assert any(f"removed at run time until {gone.json['expires_at']}" in line for line in told)
    assert change(own, "POST", f"{LAG}/revert").json["expires_at"] is None
    assert is_problem(change(own, "DELETE", f"{LAG}?for=soon"), 422)
    assert is_problem(change(own, "DELETE", f"{LAG}?fro=2h"), 400, field="fro")
    default = change(own, "DELETE", LAG)
    assert default.json["expires_at"] is not None and "after 1 h" in default.json["advice"][0]


# --- a store that fails or takes its time --------------------------------------------------


class SlowStore(MemoryStore):
    """Keeps a change only when told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    async def commit(
        self,
        compares: Sequence[Compare],
        puts: Sequence[Put],
        *,
        audit: Sequence[AuditEntry] = (),
        must_fit: bool = False,
    ) -> int:
        revision = await super().commit(compares, puts, audit=audit, must_fit=must_fit)
        self.asked.set()
        await asyncio.get_running_loop().run_in_executor(None, self.go_on.wait, DEADLINE_S)
        return revision


def test_a_change_whose_client_hangs_up_is_made_to_the_end(serve: Serve) -> None:
    """Else the store would hold what is not in force, and every later change would conflict."""
    store = SlowStore()
    served = serve(Plan(store=store))
    with served.talk() as talk:
        body = json.dumps({"threshold": "60s"}).encode()
        headers = {"Authorization": bearer(OPERATOR), "Content_Type": "application/json"}
        talk.send(request("PATCH", LAG, body=body, **headers))
        assert store.asked.wait(DEADLINE_S)
        talk.reset()
    eventually(lambda: not served.listener.connections)
    store.go_on.set()
    eventually(lambda: served.ask("GET", LAG).json["settings"] == {**FILED, "threshold": "60s"})
    assert change(served, "PATCH", LAG, {"threshold": "61s"}).status == 200
    eventually(served.settled)


def test_a_change_the_store_cannot_keep_is_not_made(serve: Serve) -> None:
    served = serve(Plan(store=Unwritable()))
    reply = change(served, "PATCH", LAG, {"threshold": "60s"})
    assert is_problem(reply, 503)
    assert "nothing was changed" in reply.json["detail"]
    assert served.ask("GET", LAG).json["settings"] == FILED
