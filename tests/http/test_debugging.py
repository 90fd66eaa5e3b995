"""GET /v1/debug: the process as it is, for operators and nobody else."""

from __future__ import annotations

from tests.http.serving import OPERATOR, VIEWER, Served, bearer
from tests.http.test_ruling import described


def test_operators_see_the_process(served: Served) -> None:
    served.ask("GET", "/v1/check?app=etl&database=main")
    reply = served.ask("GET", "/v1/debug", authorization=bearer(OPERATOR))
    assert reply.status == 200
    assert described(reply, "/v1/debug", "get")
    doc = reply.json
    assert doc["process"]["rss_bytes"] > 1024 * 1024
    assert doc["process"]["files_max"] >= doc["process"]["files"] > 0
    assert "msgspec" in doc["packages"]
    assert [server["database"] for server in doc["servers"]] == ["main", "replica"]
    assert "probe main/lag" in {task["name"] for task in doc["tasks"]}
    assert any("sampler.py" in place for task in doc["tasks"] for place in task["frames"])
    assert any(thread["name"] == "MainThread" for thread in doc["threads"])
    assert doc["clocks"]["uptime_s"] >= 0
    assert doc["traces"] is None


def test_nobody_else_does(served: Served) -> None:
    assert served.ask("GET", "/v1/debug").status == 401
    assert served.ask("GET", "/v1/debug", authorization=bearer(VIEWER)).status == 403
    assert served.ask("GET", "/v1/debug", unix=True).status == 200
