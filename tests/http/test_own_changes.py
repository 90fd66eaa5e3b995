"""What was set at one agent, over HTTP: one list, file, history and way back for every kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from headgate.base.keyvalue import Put
from headgate.changes.model import ITEMS
from headgate.store.sqlite import SqliteStore
from tests.budgets.budget_world import ETL
from tests.changes.own_world import keep, set_here
from tests.fixtures.memory_log import MemoryLog
from tests.http.serving import LOOPS, OPERATOR, VIEWER, Plan, Served, bearer, serving
from tests.http.talk import Reply
from tests.http.test_budgets import Traffic
from tests.http.test_changes import CHANGES, described
from tests.http.test_checks import is_problem

FILE: dict[str, Any] = {
    "rules": [{"id": "half", "target": "etl", "kind": "hold", "reason": "x", "for": "2h"}],
    "budgets": [{"database": "main", "name": "etl", "rate": 30}],
    "metrics": [{"database": "main", "metric": "lag", "threshold": "9s", "for": "never"}],
}
LAG = "/v1/databases/main/metrics/lag"


class Home:
    """An agent with its state in a file, that can be started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self.served: Served

    def start(self) -> Served:
        store = SqliteStore(self._folder / "state.db")
        plan = Plan(store=store, traffic=Traffic({**ETL}).plan.traffic)
        self.served = self._stack.enter_context(serving(LOOPS["asyncio"], self._folder, plan))
        return self.served

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    home.start()
    yield home
    home.stop()


@pytest.fixture
def served(home: Home) -> Served:
    return home.served


def ask(
    served: Served, method: str, path: str, body: Any = None, token: str = OPERATOR, **more: str
) -> Reply:
    headers: dict[str, Any] = {"Authorization": bearer(token), **more}
    target = path if path.startswith("/v1/") else f"{CHANGES}{path}"
    if body is None:
        return served.ask(method, target, **headers)
    raw = json.dumps(body).encode()
    return served.ask(method, target, body=raw, Content_Type="application/json", **headers)


def applied(served: Served, file: Any = None, query: str = "", **more: str) -> Reply:
    return ask(served, "POST", f"/apply{query}", FILE if file is None else file, **more)


def listed(served: Served, query: str = "") -> dict[tuple[str, str], Any]:
    changes = ask(served, "GET", query, token=VIEWER).json["changes"]
    return {(one["kind"], one["id"]): one for one in changes}


def lag_threshold(served: Served) -> str | float | str:
    threshold: str | float | str = ask(served, "GET", LAG).json["settings"].get("threshold", 0)
    return threshold


def verdict(served: Served) -> str:
    found: str = served.ask("GET", "/v1/check?app=etl&database=main").json["verdict"]
    return found


# --- the list ------------------------------------------------------------------------------------


def test_whatever_was_set_one_by_one_is_in_one_list(served: Served) -> None:
    rule = {"target": "etl", "ratio": 0.5, "for": "2h"}
    rule_id = ask(served, "POST", "/v1/rules", rule).json["id"]
    ask(served, "PATCH", LAG, {"threshold": "9s", "for": "2h"})
    ask(served, "DELETE", LAG.replace("lag", "threads_running"))
    ask(served, "PATCH", "/v1/budgets/main/etl", {"rate": 30})
    reply = ask(served, "GET", "", token=VIEWER)
    assert described(reply, "", "get")
    assert (reply.json["log"], reply.json["n"], reply.headers["ETag"]) == ("agent", 4, '"4"')
    found = listed(served)
    assert set(found) == {
        ("rule", rule_id),
        ("metric", "main/lag"),
        ("metric", "main/threads_running"),
        ("budget", "main/etl"),
    }
    assert {one["reach"] for one in found.values()} == {"host"}
    lag = found["metric", "main/lag"]
    assert (lag["says"], lag["state"], lag["set_by"]) == (
        "max_age_s = 600, threshold = 9s",
        "in_force",
        "ops",
    )
    assert 7100 < lag["left_s"] <= 7201
    assert found["metric", "main/threads_running"]["says"] == "removed"
    assert found["budget", "main/etl"]["says"] == "rate = 30"
    ask(served, "DELETE", f"/v1/rules/{rule_id}")
    assert ("rule", rule_id) not in listed(served)
    assert listed(served, "?all=true")["rule", rule_id]["state"] == "ended"


def test_nobody_reads_a_secret_in_it(served: Served) -> None:
    settings = {"url": "https://ada:s3cret@stats/q?key=1", "pointer": "/n", "threshold": 5}
    assert ask(served, "PUT", LAG.replace("lag", "queue"), settings).status == 200
    assert ask(served, "PATCH", LAG.replace("lag", "queue"), {"threshold": 6}).status == 200
    for path in ("", "/export", "/history", "/history/1", "/history/2"):
        reply = ask(served, "GET", path, token=VIEWER)
        assert reply.status == 200 and b"s3cret" not in reply.body
    back = ask(served, "POST", "/rollback?dry_run=true", {"n": 0})
    assert back.json["difference_total"] == 1 and b"s3cret" not in back.body


def test_what_a_newer_version_set_is_listed_and_not_understood(served: Served) -> None:
    served.run_there(lambda: keep(served.store, set_here("quota", "a", {"api_token": "s3cret"})))
    served.run_there(served.own.load)
    quota = listed(served)["quota", "a"]
    assert quota["state"] == "unreadable" and "newer version" in quota["says"]
    assert quota["value"] == {"api_token": "…"}
    exported = ask(served, "GET", "/export")
    assert described(exported, "/export", "get")
    assert exported.json["left_out"][0].startswith("not exported: quota a.")
    assert not applied(served, {}, "?prune=true").json["changed"]


def test_an_entry_that_cannot_be_read_is_reported(served: Served) -> None:
    key = f"{ITEMS}wide/rule/strange"
    served.run_there(lambda: served.store.commit([], [Put(key, b'{"kind": "wish"}')]))
    served.run_there(served.own.load)
    assert "strange" in ask(served, "GET", "").json["rejected"][0]


# --- files ---------------------------------------------------------------------------------------


def test_a_file_is_in_force_when_it_is_acknowledged(served: Served) -> None:
    assert verdict(served) == "OK"
    tried = applied(served, query="?dry_run=true")
    assert described(tried, "/apply", "post")
    assert (tried.json["log"], tried.json["dry_run"], tried.json["after_n"]) == ("agent", True, 0)
    assert (verdict(served), lag_threshold(served)) == ("OK", 0)
    rule, metric = tried.json["replay"]
    assert rule.startswith("rule ") and "of the last hour" in rule
    assert metric.startswith("metric main/lag: ")
    made = applied(served)
    assert made.json["replay"] == []
    assert described(made, "/apply", "post") and made.headers["ETag"] == '"1"'
    assert [one["kind"] for one in made.json["difference"]] == [
        "rule added",
        "budget added",
        "metric added",
    ]
    assert made.json["difference"][2]["line"] == "metric main/lag: set, threshold = 9s"
    assert made.json["reached"] is None
    assert (verdict(served), lag_threshold(served)) == ("ON_HOLD", "9s")
    budget = ask(served, "GET", "/v1/budgets/main/etl").json
    assert budget["settings"]["rate"] == 30


def test_an_export_that_is_applied_again_changes_nothing(served: Served) -> None:
    applied(served)
    exported = ask(served, "GET", "/export", token=VIEWER).json
    assert (exported["log"], exported["n"], exported["left_out"]) == ("agent", 1, [])
    again = applied(served, exported["document"], "?prune=true")
    assert (again.json["changed"], again.json["after_n"]) == (False, 1)
    less = {**exported["document"], "metrics": []}
    pruned = applied(served, less, "?prune=true")
    assert [one["line"] for one in pruned.json["difference"]] == [
        "metric main/lag: reverted to the settings file, threshold = 9s"
    ]
    assert lag_threshold(served) == 0


@pytest.mark.parametrize(
    ("section", "entry", "place"),
    [
        ("rules", {**FILE["rules"][0], "reach": "fleet"}, "rules[0].reach"),
        ("metrics", {"database": "x", "metric": "lag"}, "metrics[0].database"),
        ("metrics", {**FILE["metrics"][0], "threshold": -1}, "metrics[0].threshold"),
        ("budgets", {"database": "main", "name": "etl", "rate": 900}, "budgets[0].rate"),
        ("skips", {"shard": "s", "member": "m"}, "skips"),
        ("quotas", {}, "quotas"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(
    served: Served, section: str, entry: Any, place: str
) -> None:
    reply = applied(served, {section: [entry]})
    assert is_problem(reply, 422)
    assert [fault.partition(": ")[0] for fault in reply.json["faults"]] == [place]
    assert ask(served, "GET", "/history").json["n"] == 0


def test_each_log_takes_what_it_can_keep(tmp_path: Path) -> None:
    with serving(LOOPS["asyncio"], tmp_path, Plan(fleet=MemoryLog())) as served:
        here = {"rules": [{**FILE["rules"][0], "reach": "host"}]}
        (fault,) = applied(served, here, "?log=fleet").json["faults"]
        assert fault.startswith("rules[0].reach: is 'host', one agent alone")
        unknown = {"skips": [{"shard": "s", "member": m, "reach": "shard:s"} for m in "ab"]}
        (fault,) = applied(served, unknown, "?log=fleet").json["faults"]
        assert fault.startswith("skips: this agent cannot validate [[skips]]")
        assert ask(served, "GET", "/history?log=fleet").json["n"] == 0
        metrics = [{**FILE["metrics"][0], "database": "*", "reach": "fleet"}]
        made = applied(served, {"metrics": metrics}, "?log=fleet")
        assert [one["id"] for one in made.json["difference"]] == ["*/lag@fleet"]
        exported = ask(served, "GET", "/export?log=fleet").json["document"]
        assert not applied(served, exported, "?log=fleet").json["changed"]
        assert applied(served, {"rules": FILE["rules"]}).json["log"] == "agent"
        assert set(listed(served)) == {("rule", "half")}


def test_what_was_built_on_an_older_revision_is_rejected(served: Served) -> None:
    applied(served)
    assert is_problem(applied(served, {"rules": []}, If_Match='"0"'), 412)
    assert is_problem(ask(served, "POST", "/rollback", {"n": 0}, If_Match='"0"'), 412)
    assert applied(served, {"rules": []}, If_Match='"1"').status == 200
    assert ask(served, "POST", "/rollback", {"n": 0}, If_Match='"1"').json["after_n"] == 2


# --- history and the way back --------------------------------------------------------------------


def test_history_outlives_a_restart_and_so_does_the_way_back(home: Home) -> None:
    applied(home.served)
    ask(home.served, "PATCH", LAG, {"threshold": "7s"})
    home.stop()
    served = home.start()
    history = ask(served, "GET", "/history", token=VIEWER)
    assert described(history, "/history", "get")
    assert [(one["n"], one["who"], one["action"]) for one in history.json["revisions"]] == [
        (2, "ops", "metric.set"),
        (1, "ops", "apply"),
    ]
    assert history.json["revisions"][0]["is_current"]
    one = ask(served, "GET", "/history/2")
    assert described(one, "/history/{n}", "get")
    assert [two["line"] for two in one.json["difference"]] == ["metric main/lag: threshold 9s → 7s"]
    back = ask(served, "POST", "/rollback", {"n": 1})
    assert described(back, "/rollback", "post")
    assert (back.json["after_n"], lag_threshold(served)) == (3, "9s")
    assert verdict(served) == "ON_HOLD"
    home.stop()
    served = home.start()
    assert (lag_threshold(served), verdict(served)) == ("9s", "ON_HOLD")
    ask(served, "POST", "/rollback", {"n": 0})
    assert (listed(served), lag_threshold(served), verdict(served)) == ({}, 0, "OK")


def test_one_sort_goes_back_and_the_others_stay(served: Served) -> None:
    applied(served)
    back = ask(served, "POST", "/rollback?dry_run=true", {"n": 0}).json
    assert len(back["difference"]) == 3
    (told,) = back["replay"]
    assert told.startswith("metric main/lag: "), (
        "as it would be without; of a rule that goes, nothing"
    )
    tried = ask(served, "POST", "/rollback?dry_run=true", {"n": 0, "only": ["budgets"]})
    assert [one["kind"] for one in tried.json["difference"]] == ["budget taken out"]
    ask(served, "POST", "/rollback", {"n": 0, "only": ["budgets", "metrics"]})
    assert set(listed(served)) == {("rule", "half")}
    assert (verdict(served), lag_threshold(served)) == ("ON_HOLD", 0)
    for body in ({"n": 0, "only": ["quotas"]}, {"n": 0, "only": "rules"}, {"only": ["rules"]}):
        field = "only" if "n" in body else "n"
        assert is_problem(ask(served, "POST", "/rollback", body), 400, field=field)


def test_what_an_agent_has_lost_is_not_restored_by_this(served: Served) -> None:
    reply = ask(served, "POST", "/restore")
    assert is_problem(reply, 400, field="log") and "log=fleet" in reply.json["detail"]


@pytest.mark.parametrize("path", ["?log=both", "/history?log=", "/export?log=Agent"])
def test_there_are_two_logs(served: Served, path: str) -> None:
    assert is_problem(ask(served, "GET", path), 400, field="log")


@pytest.mark.parametrize(("path", "body"), [("/apply", FILE), ("/rollback", {"n": 0})])
def test_only_operators_change_it(served: Served, path: str, body: Any) -> None:
    assert is_problem(ask(served, "POST", path, body, token=VIEWER), 403)
    assert ask(served, "GET", "/history").json["n"] == 0
