"""What is set, over HTTP: looked at, applied, gone back to, restored; who may. One list, file,
history and way back for both logs and every kind: a fleet's (`fleet`), and an agent's own (`own`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from headgate.base.keyvalue import Put
from headgate.base.ports import ChangeLog
from headgate.changes.model import HEAD, ITEMS, followed_prefixes, log_key
from headgate.errors import OutcomeUnknown, StoreRejected
from headgate.http.control import description
from headgate.store.sqlite import SqliteStore
from tests.budgets.budget_world import ETL
from tests.changes.own_world import keep, set_here
from tests.fixtures.memory_log import KeptInMemory, MemoryLog
from tests.http.serving import LOOPS, OPERATOR, VIEWER, Plan, Served, bearer, serving
from tests.http.talk import Reply
from tests.http.test_budgets import Traffic
from tests.http.test_checks import is_problem

CHANGES = "/v1/changes"
HALF = {"id": "half", "reach": "fleet", "target": "etl", "ratio": 0.5, "for": "2h"}
STOP = {
    "id": "stop",
    "reach": "shard:commerce/-80",
    "target": "purge",
    "kind": "hold",
    "reason": "incident 42",
    "for": "1h",
}
CAP = {"name": "cap", "reach": "region:eu-*", "mode": "warn", "rate": 20, "capacity": 200}
FILE: dict[str, Any] = {"rules": [HALF, STOP], "budgets": [CAP]}
OWN_FILE: dict[str, Any] = {
    "rules": [{"id": "half", "target": "etl", "kind": "hold", "reason": "x", "for": "2h"}],
    "budgets": [{"database": "main", "name": "etl", "rate": 30}],
    "metrics": [{"database": "main", "metric": "lag", "threshold": "9s", "for": "never"}],
}
LAG = "/v1/databases/main/metrics/lag"
SHARD = "commerce/-80"


class FaultyStore(MemoryLog):
    """Raises what a test lays into it, once, instead of answering."""

    fault: Exception | None = None

    def _reached(self) -> KeptInMemory:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
        return super()._reached()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def served(store: FaultyStore, tmp_path: Path) -> Iterator[Served]:
    with serving(LOOPS["asyncio"], tmp_path, Plan(fleet=store)) as served:
        yield served


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
def own(home: Home) -> Served:
    return home.served


@pytest.fixture(params=["own", "served"])
def either(request: pytest.FixtureRequest) -> Served:
    """An agent with its own log, or with its fleet's."""
    served: Served = request.getfixturevalue(request.param)
    return served


def ask(
    served: Served, method: str, path: str, body: Any = None, token: str = OPERATOR, **more: str
) -> Reply:
    """Of the log that it has: of an agent in a fleet, the fleet's."""
    headers: dict[str, Any] = {"Authorization": bearer(token), **more}
    target = of_fleet(path) if served.fleet is not None else f"{CHANGES}{path}"
    target = path if path.startswith("/v1/") else target
    if body is None:
        return served.ask(method, target, **headers)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return served.ask(method, target, body=raw, Content_Type="application/json", **headers)


def of_fleet(path: str) -> str:
    return f"{CHANGES}{path}{'&' if '?' in path else '?'}log=fleet"


def listed(served: Served, query: str = "") -> dict[tuple[str, str], Any]:
    changes = ask(served, "GET", query, token=VIEWER).json["changes"]
    return {(one["kind"], one["id"]): one for one in changes}


def lag_threshold(served: Served) -> str | float:
    threshold: str | float = ask(served, "GET", LAG).json["settings"].get("threshold", 0)
    return threshold


def verdict(served: Served) -> str:
    found: str = served.ask("GET", "/v1/check?app=etl&database=main").json["verdict"]
    return found


def follow(served: Served, store: MemoryLog) -> None:
    """As its follower does, once."""
    prefixes = followed_prefixes([SHARD])

    async def listed() -> None:
        assert served.fleet is not None
        listing = await store.list((HEAD, *prefixes))
        served.fleet.mirror.adopt(listing, prefixes)

    served.run_there(listed)


def lose_everything(served: Served, store: MemoryLog) -> None:
    served.call(setattr, store, "kept", KeptInMemory())


def described(reply: Reply, path: str, method: str) -> bool:
    """Whether it is as the description says."""
    path = path if path.startswith("/v1/") else f"{CHANGES}{path}"
    responses = description()["paths"][path][method]["responses"]
    content = responses[str(reply.status)]["content"]
    schema = content[reply.headers["Content-Type"].split(";")[0]]["schema"]
    whole = {**schema, "components": description()["components"]}
    jsonschema_rs.Draft202012Validator(whole).validate(reply.json)
    return True


def applied(served: Served, file: Any = None, query: str = "", **more: str) -> Reply:
    usual = FILE if served.fleet is not None else OWN_FILE
    return ask(served, "POST", f"/apply{query}", usual if file is None else file, **more)


# --- what is there -----------------------------------------------------------------------------


def test_what_was_applied_is_listed_with_its_reach_and_its_revision(served: Served) -> None:
    """R140: in one place, with who set it, what it does and how long still."""
    reply = applied(served)
    assert described(reply, "/apply", "post")
    assert (reply.json["before_n"], reply.json["after_n"], reply.json["changed"]) == (0, 1, True)
    assert reply.headers["ETag"] == '"1"'
    assert [one["kind"] for one in reply.json["difference"]] == [
        "rule added",
        "rule added",
        "budget added",
    ]
    listed = ask(served, "GET", "", token=VIEWER)
    assert described(listed, "", "get") and listed.headers["ETag"] == '"1"'
    by_id = {item["id"]: item for item in listed.json["changes"]}
    assert set(by_id) == {"half", "stop", "cap@region:eu-*"}
    half = by_id["half"]
    assert (half["reach"], half["n"], half["set_by"], half["state"]) == (
        "fleet",
        1,
        "ops",
        "in_force",
    )
    assert half["says"] == "rejects 50% of the checks of etl"
    assert 7100 < half["left_s"] <= 7200
    assert by_id["cap@region:eu-*"]["says"].startswith("warn: 20% of the server")


def test_a_dry_run_shows_what_would_change_and_changes_nothing(served: Served) -> None:
    reply = applied(served, query="?dry_run=true")
    assert described(reply, "/apply", "post")
    assert (reply.json["dry_run"], reply.json["changed"], reply.json["after_n"]) == (True, True, 0)
    assert reply.json["difference_total"] == 3
    assert reply.json["reached"]["unknown"] and "unknown" in reply.json["reached"]["says"]
    assert ask(served, "GET", "").json == {
        "log": "fleet",
        "n": 0,
        "changes": [],
        "rejected": [],
    }


def test_an_export_that_is_applied_again_changes_nothing(either: Served) -> None:
    applied(either)
    exported = ask(either, "GET", "/export", token=VIEWER)
    assert described(exported, "/export", "get")
    assert (exported.json["n"], exported.json["left_out"]) == (1, [])
    again = applied(either, exported.json["document"], "?prune=true").json
    assert (again["changed"], again["after_n"], again["difference"]) == (False, 1, [])


def test_the_export_of_the_kill_switch_sets_it_again(served: Served) -> None:
    """It is in a file, and only an operator lifts it: neither a file without it nor --prune."""
    token: dict[str, Any] = {"Authorization": bearer(OPERATOR), "Content_Type": "application/json"}

    def switch(mode: str) -> None:
        body = json.dumps({"mode_cap": mode}).encode()
        assert served.ask("PATCH", "/v1/budgets/all?reach=fleet", body=body, **token).status == 200

    switch("off")
    document = ask(served, "GET", "/export").json["document"]
    entry = {"database": "all", "reach": "fleet", "mode_cap": "off"}
    assert document["policies"] == [entry]
    for query in ("", "?prune=true"):
        assert not applied(served, document, query).json["changed"]
        assert not applied(served, {"rules": []}, query).json["changed"]
    switch("enforce")
    again = applied(served, document)
    assert again.json["changed"] and described(again, "/apply", "post"), again.body
    (item,) = ask(served, "GET", "").json["changes"]
    assert (item["id"], item["says"]) == ("all@fleet", "mode_cap = off")
    assert applied(served, {"policies": [{**entry, "mode_cap": "enforce"}]}).json["changed"]
    assert ask(served, "GET", "").json["changes"] == []
    wrong = {**entry, "database": "main", "order": ["etl"], "mode_cap": "none"}
    faults = applied(served, {"policies": [wrong]}).json["faults"]
    assert [fault.partition(":")[0] for fault in faults] == [
        "policies[0].order",
        "policies[0].database",
        "policies[0].mode_cap",
    ]


def test_what_a_file_does_not_name_stays_but_for_prune(served: Served) -> None:
    applied(served)
    document = ask(served, "GET", "/export").json["document"]
    rest = {**document, "budgets": []}
    kept = applied(served, rest)
    assert not kept.json["changed"] and "--prune" in kept.json["advice"][0]
    pruned = applied(served, rest, "?prune=true")
    assert [one["line"] for one in pruned.json["difference"]] == [
        "budget cap@region:eu-*: taken out, warn: "
        "20% of the server, up to 200%·s (2 s of the server) of debt; "
        "for no statement (checks that name it)"
    ]
    assert {item["id"] for item in ask(served, "GET", "").json["changes"]} == {"half", "stop"}
    ended = ask(served, "GET", "?all=true").json["changes"]
    assert {item["id"]: item["state"] for item in ended}["cap@region:eu-*"] == "removed"


def test_a_change_is_shown_setting_by_setting(served: Served) -> None:
    applied(served)
    reply = applied(served, {"rules": [{**HALF, "ratio": 0.9}]})
    (one,) = reply.json["difference"]
    assert one["kind"] == "rule changed"
    ratio = next(setting for setting in one["settings"] if setting["name"] == "ratio")
    assert ratio == {"name": "ratio", "before": 0.5, "after": 0.9}
    assert one["line"].startswith("rule half (fleet): ")
    assert "ratio 0.5 → 0.9" in one["line"]


def test_every_fault_of_a_file_is_reported_with_its_place(served: Served) -> None:
    file = {"rules": [{**HALF, "ratio": 1.5}], "budgets": [{**CAP, "mode": "maybe"}]}
    reply = applied(served, file)
    assert is_problem(reply, 422)
    places = [fault.partition(": ")[0] for fault in reply.json["faults"]]
    assert places == ["rules[0].ratio", "budgets[0].mode"]


@pytest.mark.parametrize(
    ("section", "entry", "place"),
    [
        ("rules", {**OWN_FILE["rules"][0], "reach": "fleet"}, "rules[0].reach"),
        ("metrics", {"database": "x", "metric": "lag"}, "metrics[0].database"),
        ("metrics", {**OWN_FILE["metrics"][0], "threshold": -1}, "metrics[0].threshold"),
        ("budgets", {"database": "main", "name": "etl", "rate": 900}, "budgets[0].rate"),
        ("skips", {"shard": "s", "member": "m"}, "skips"),
        ("quotas", {}, "quotas"),
    ],
)
def test_what_an_agent_cannot_keep_is_reported_with_its_place(
    own: Served, section: str, entry: Any, place: str
) -> None:
    reply = applied(own, {section: [entry]})
    assert is_problem(reply, 422)
    assert [fault.partition(": ")[0] for fault in reply.json["faults"]] == [place]
    assert ask(own, "GET", "/history").json["n"] == 0


def test_each_log_takes_what_it_can_keep(served: Served) -> None:
    here = {"rules": [{**OWN_FILE["rules"][0], "reach": "host"}]}
    (fault,) = applied(served, here).json["faults"]
    assert fault.startswith("rules[0].reach: is 'host', one agent alone")
    unknown = {"skips": [{"shard": "s", "member": m, "reach": "shard:s"} for m in "ab"]}
    (fault,) = applied(served, unknown).json["faults"]
    assert fault.startswith("skips: this agent cannot validate [[skips]]")
    assert ask(served, "GET", "/history").json["n"] == 0
    metrics = [{**OWN_FILE["metrics"][0], "database": "*", "reach": "fleet"}]
    made = applied(served, {"metrics": metrics})
    assert [one["id"] for one in made.json["difference"]] == ["*/lag@fleet"]
    exported = ask(served, "GET", "/export").json["document"]
    assert not applied(served, exported).json["changed"]
    at_agent = ask(served, "POST", f"{CHANGES}/apply", {"rules": OWN_FILE["rules"]})
    assert at_agent.json["log"] == "agent"
    assert [one["id"] for one in ask(served, "GET", CHANGES).json["changes"]] == ["half"]


def test_what_was_built_on_an_older_state_is_rejected(either: Served) -> None:
    applied(either)
    assert is_problem(applied(either, {"rules": []}, If_Match='"0"'), 412)
    assert is_problem(ask(either, "POST", "/rollback", {"n": 0}, If_Match='"0"'), 412)
    assert applied(either, {"rules": []}, If_Match='"1"').status == 200
    assert ask(either, "POST", "/rollback", {"n": 0}, If_Match='"1"').json["after_n"] == 2


# --- history and the way back --------------------------------------------------------------------


def test_history_shows_who_did_what_and_one_entry_in_full(served: Served) -> None:
    applied(served)
    applied(served, {"rules": [{**HALF, "ratio": 0.9}]})
    history = ask(served, "GET", "/history", token=VIEWER)
    assert described(history, "/history", "get")
    assert [(one["n"], one["is_current"]) for one in history.json["revisions"]] == [
        (2, True),
        (1, False),
    ]
    assert history.json["revisions"][1]["who"] == "ops"
    assert len(ask(served, "GET", "/history?limit=1").json["revisions"]) == 1
    one = ask(served, "GET", "/history/1")
    assert described(one, "/history/{n}", "get")
    assert (one.json["about"]["n"], one.json["difference_total"]) == (1, 3)
    assert is_problem(ask(served, "GET", "/history/17"), 404)


def test_one_step_leads_back(served: Served) -> None:
    applied(served)
    applied(served, {"rules": [{**HALF, "ratio": 0.9}]})
    tried = ask(served, "POST", "/rollback?dry_run=true", {"n": 1})
    assert described(tried, "/rollback", "post") and tried.json["dry_run"]
    back = ask(served, "POST", "/rollback", {"n": 1}, If_Match='"2"')
    assert (back.json["before_n"], back.json["after_n"]) == (2, 3)
    half = ask(served, "GET", "").json["changes"][0]
    assert (half["id"], half["value"]["ratio"], half["n"]) == ("half", 0.5, 3)
    assert is_problem(ask(served, "POST", "/rollback", {"n": 99}), 404)
    assert is_problem(ask(served, "POST", "/rollback", {"n": -1}), 400, field="n")


def test_a_store_that_lost_everything_gets_it_back(served: Served, store: FaultyStore) -> None:
    applied(served)
    follow(served, store)
    lose_everything(served, store)
    follow(served, store)
    tried = ask(served, "POST", "/restore?dry_run=true")
    assert described(tried, "/restore", "post")
    assert tried.json["difference_total"] == 3 and tried.json["dry_run"]
    restored = ask(served, "POST", "/restore")
    assert restored.json["changed"] and restored.json["after_n"] >= 1
    listed = ask(served, "GET", "").json["changes"]
    assert {item["id"] for item in listed} == {"half", "stop", "cap@region:eu-*"}
    assert {item["set_by"] for item in listed} == {"ops"}
    follow(served, store)
    assert not ask(served, "POST", "/restore").json["changed"]


# --- who may, and what goes wrong ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body"), [("/apply", FILE), ("/rollback", {"n": 0}), ("/restore", None)]
)
def test_only_operators_change_it(either: Served, path: str, body: Any) -> None:
    assert is_problem(ask(either, "POST", path, body, token=VIEWER), 403)
    bare = b"" if body is None else json.dumps(body).encode()
    target = f"{CHANGES}{path}" if either.fleet is None else of_fleet(path)
    asked = either.ask("POST", target, body=bare, Content_Type="application/json")
    assert is_problem(asked, 401)
    assert ask(either, "GET", "/history").json["n"] == 0


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("POST", "/apply?dryrun=true", "dryrun"),
        ("POST", "/apply?dry_run=yes", "dry_run"),
        ("POST", "/apply?prune=maybe", "prune"),
        ("POST", "/rollback?prune=true", "prune"),
        ("GET", "?every=true", "every"),
        ("GET", "/history?limit=0", "limit"),
        ("GET", "/history/first", "n"),
    ],
)
def test_a_misspelt_parameter_changes_nothing(
    served: Served, method: str, path: str, field: str
) -> None:
    assert is_problem(ask(served, method, path, FILE), 400, field=field)
    assert ask(served, "GET", "/history").json["n"] == 0


def test_a_body_that_says_something_twice_is_rejected(served: Served) -> None:
    assert is_problem(applied(served, b'{"rules": [], "rules": []}'), 400, field="rules")
    assert is_problem(applied(served, b"[]"), 400)
    assert is_problem(applied(served, b"{"), 400)


def test_a_store_that_is_away_is_distinguished_from_a_change_that_may_have_been_made(
    served: Served, store: FaultyStore
) -> None:
    """A commit whose answer was lost is not said to have changed nothing."""
    store.fault = StoreRejected("etcd a:2379 does not know user headgate")
    rejected = ask(served, "GET", "")
    assert is_problem(rejected, 503) and "does not know user headgate" in rejected.json["detail"]
    store.fault = OutcomeUnknown("etcd a:2379: no answer in 2 s")
    unknown = ask(served, "GET", "")
    assert is_problem(unknown, 503)
    assert "may or may not have been made" in unknown.json["detail"]
    assert "nothing was changed" not in unknown.json["detail"]


def test_what_cannot_be_read_is_reported_and_the_rest_is_listed(
    either: Served, store: FaultyStore
) -> None:
    applied(either)
    log: ChangeLog = either.store if either.fleet is None else store
    key = f"{ITEMS}wide/rule/strange"
    either.run_there(lambda: log.commit([], [Put(key, b'{"kind": "wish"}')]))
    either.run_there(either.own.load)
    assert len(listed(either)) == 3
    assert any("strange" in told for told in ask(either, "GET", "").json["rejected"])


def test_a_revision_that_cannot_be_read_is_reported_and_not_nothing(
    served: Served, store: FaultyStore
) -> None:
    applied(served)
    served.run_there(lambda: store.commit([], [Put(log_key(1), b"not JSON")]))
    told = ask(served, "GET", "/history/1")
    assert described(told, "/history/{n}", "get")
    assert (told.json["about"]["n"], told.json["about"]["at"]) == (1, None)
    assert "not JSON" in told.json["about"]["unread"]


def test_an_agent_of_no_fleet_says_how_to_join_one(tmp_path: Path) -> None:
    with serving(LOOPS["asyncio"], tmp_path, Plan()) as served:
        for method, path, body in [
            ("GET", "", None),
            ("GET", "/export", None),
            ("GET", "/history", None),
            ("GET", "/history/1", None),
            ("POST", "/apply", FILE),
            ("POST", "/rollback", {"n": 0}),
            ("POST", "/restore", None),
        ]:
            reply = ask(served, method, of_fleet(path), body)
            assert is_problem(reply, 404) and "[fleet]" in reply.json["detail"]
        nobody = served.ask("GET", "/v1/fleet/reach?reach=fleet")
        assert is_problem(nobody, 404) and "[fleet]" in nobody.json["detail"]


# --- whom it reaches -----------------------------------------------------------------------------


def test_a_reach_is_shown_before_anything_is_set(served: Served) -> None:
    reply = served.ask("GET", "/v1/fleet/reach?reach=shard:commerce/*")
    assert described(reply, "/v1/fleet/reach", "get")
    assert (reply.json["reach"], reply.json["shards"]) == ("shard:commerce/*", None)
    for wrong in ("?reach=planet:earth", "?reach=host", ""):
        assert is_problem(served.ask("GET", f"/v1/fleet/reach{wrong}"), 400, field="reach")


# --- of one agent ------------------------------------------------------------------------------


def test_whatever_was_set_one_by_one_is_in_one_list(own: Served) -> None:
    rule = {"target": "etl", "ratio": 0.5, "for": "2h"}
    rule_id = ask(own, "POST", "/v1/rules", rule).json["id"]
    ask(own, "PATCH", LAG, {"threshold": "9s", "for": "2h"})
    ask(own, "DELETE", LAG.replace("lag", "threads_running"))
    ask(own, "PATCH", "/v1/budgets/main/etl", {"rate": 30})
    reply = ask(own, "GET", "", token=VIEWER)
    assert described(reply, "", "get")
    assert (reply.json["log"], reply.json["n"], reply.headers["ETag"]) == ("agent", 4, '"4"')
    found = listed(own)
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
    ask(own, "DELETE", f"/v1/rules/{rule_id}")
    assert ("rule", rule_id) not in listed(own)
    assert listed(own, "?all=true")["rule", rule_id]["state"] == "ended"


def test_nobody_reads_a_secret_in_it(own: Served) -> None:
    settings = {"url": "https://ada:s3cret@stats/q?key=1", "pointer": "/n", "threshold": 5}
    assert ask(own, "PUT", LAG.replace("lag", "queue"), settings).status == 200
    assert ask(own, "PATCH", LAG.replace("lag", "queue"), {"threshold": 6}).status == 200
    for path in ("", "/export", "/history", "/history/1", "/history/2"):
        reply = ask(own, "GET", path, token=VIEWER)
        assert reply.status == 200 and b"s3cret" not in reply.body
    back = ask(own, "POST", "/rollback?dry_run=true", {"n": 0})
    assert back.json["difference_total"] == 1 and b"s3cret" not in back.body


def test_what_a_newer_version_set_is_listed_and_not_understood(own: Served) -> None:
    own.run_there(lambda: keep(own.store, set_here("quota", "a", {"api_token": "s3cret"})))
    own.run_there(own.own.load)
    quota = listed(own)["quota", "a"]
    assert quota["state"] == "unreadable" and "newer version" in quota["says"]
    assert quota["value"] == {"api_token": "…"}
    exported = ask(own, "GET", "/export")
    assert described(exported, "/export", "get")
    assert exported.json["left_out"][0].startswith("not exported: quota a.")
    assert not applied(own, {}, "?prune=true").json["changed"]


def test_a_file_is_in_force_when_it_is_acknowledged(own: Served) -> None:
    assert verdict(own) == "OK"
    tried = applied(own, query="?dry_run=true")
    assert described(tried, "/apply", "post")
    assert (tried.json["log"], tried.json["dry_run"], tried.json["after_n"]) == ("agent", True, 0)
    assert (verdict(own), lag_threshold(own)) == ("OK", 0)
    rule, metric = tried.json["replay"]
    assert rule.startswith("rule ") and "of the last hour" in rule
    assert metric.startswith("metric main/lag: ")
    made = applied(own)
    assert made.json["replay"] == []
    assert described(made, "/apply", "post") and made.headers["ETag"] == '"1"'
    assert [one["kind"] for one in made.json["difference"]] == [
        "rule added",
        "budget added",
        "metric added",
    ]
    assert made.json["difference"][2]["line"] == "metric main/lag: set, threshold = 9s"
    assert made.json["reached"] is None
    assert (verdict(own), lag_threshold(own)) == ("ON_HOLD", "9s")
    budget = ask(own, "GET", "/v1/budgets/main/etl").json
    assert budget["settings"]["rate"] == 30
    less = {**ask(own, "GET", "/export").json["document"], "metrics": []}
    assert [one["line"] for one in applied(own, less, "?prune=true").json["difference"]] == [
        "metric main/lag: reverted to the settings file, threshold = 9s"
    ]
    assert lag_threshold(own) == 0


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


def test_one_sort_goes_back_and_the_others_stay(own: Served) -> None:
    applied(own)
    back = ask(own, "POST", "/rollback?dry_run=true", {"n": 0}).json
    assert len(back["difference"]) == 3
    (told,) = back["replay"]
    assert told.startswith("metric main/lag: "), (
        "as it would be without; of a rule that goes, nothing"
    )
    tried = ask(own, "POST", "/rollback?dry_run=true", {"n": 0, "only": ["budgets"]})
    assert [one["kind"] for one in tried.json["difference"]] == ["budget taken out"]
    ask(own, "POST", "/rollback", {"n": 0, "only": ["budgets", "metrics"]})
    assert set(listed(own)) == {("rule", "half")}
    assert (verdict(own), lag_threshold(own)) == ("ON_HOLD", 0)
    for body in ({"n": 0, "only": ["quotas"]}, {"n": 0, "only": "rules"}, {"only": ["rules"]}):
        field = "only" if "n" in body else "n"
        assert is_problem(ask(own, "POST", "/rollback", body), 400, field=field)


def test_what_an_agent_has_lost_is_not_restored_by_this(own: Served) -> None:
    reply = ask(own, "POST", "/restore")
    assert is_problem(reply, 400, field="log") and "log=fleet" in reply.json["detail"]


@pytest.mark.parametrize("path", ["?log=both", "/history?log=", "/export?log=Agent"])
def test_there_are_two_logs(own: Served, path: str) -> None:
    assert is_problem(ask(own, "GET", path), 400, field="log")
