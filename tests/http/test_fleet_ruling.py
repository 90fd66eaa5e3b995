"""Rules and budgets with a reach: set for the fleet over HTTP, shown beside the agent's own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headgate.base.keyvalue import Put
from headgate.budgets import parse
from headgate.budgets.service import Gear, TrafficPlan
from headgate.changes.inforce import ChangeShelf
from headgate.changes.model import HEAD, ITEMS
from headgate.changes.reach import Place
from headgate.changes.state import head_bytes, item_bytes
from headgate.errors import StoreUnavailable
from tests.budgets.budget_world import FakeServer, document
from tests.changes.fleet_items import rule_item
from tests.fixtures.memory_log import KeptInMemory, MemoryLog
from tests.http.serving import LOOPS, OPERATOR, VIEWER, Plan, Served, bearer, serving
from tests.http.test_changes import FaultyStore
from tests.http.test_checks import is_problem
from tests.http.test_ruling import CHECK, RULES, change, described, listed

PLACES = (
    Place("eu-1", "c", "commerce/-80", "db-1", "main"),
    Place("eu-1", "c", "search/0", "db-1", "replica"),
)
HOLD = {"target": "etl", "kind": "hold", "reason": "incident 42", "id": "stop", "reach": "fleet"}
CAP = {"rate": 20, "capacity": 200, "rules": [{"match": {"username": "etl"}}]}
BUDGET = "/v1/budgets/main/cap"
SHARD = "shard:commerce/*"


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def served(store: FaultyStore, tmp_path: Path) -> Iterator[Served]:
    gear = Gear((FakeServer(),))
    traffic = TrafficPlan("main", document(), "policy.toml", "dir", lambda: gear)
    with serving(LOOPS["asyncio"], tmp_path, Plan(fleet=store, traffic=traffic)) as served:
        yield served


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Served]:
    with serving(LOOPS["asyncio"], tmp_path, Plan()) as served:
        yield served


def follow(served: Served, store: MemoryLog) -> None:
    """As the agent does when the store has news."""

    async def followed() -> None:
        items = ChangeShelf().read((await store.list([ITEMS])).entries)
        await served.rules.follow(items, PLACES)
        await served.budgets.follow(items, PLACES)

    served.run_there(followed)


def away(served: Served, store: FaultyStore) -> None:
    """For the next question."""
    served.call(setattr, store, "fault", StoreUnavailable("etcd: no answer in 2 s"))


# --- rules ---------------------------------------------------------------------------------


def test_a_rule_is_set_for_the_fleet_and_shown_beside_the_agents_own(
    served: Served, store: FaultyStore
) -> None:
    reply = change(served, "POST", RULES, HOLD)
    assert reply.status == 201 and described(reply, RULES, "post")
    assert (reply.headers["ETag"], reply.headers["Location"]) == ('"1"', "/v1/rules/stop")
    assert (reply.json["reach"], reply.json["n"]) == ("fleet", 1)
    assert "no agent has registered" in reply.json["reached"]["says"]
    assert served.ask("GET", CHECK).status == 200, "not heard of yet"
    change(served, "POST", RULES, {"target": "web", "ratio": 0.1, "id": "own"})
    follow(served, store)
    rejected = served.ask("GET", CHECK)
    assert (rejected.status, rejected.json["rule"]) == (417, "stop")
    shown = {rule["id"]: (rule["reach"], rule["n"]) for rule in listed(served)}
    assert shown == {"stop": ("fleet", 1), "own": (None, None)}
    why = served.ask("GET", "/v1/explain?app=etl:nightly&database=main").json
    assert [match["rule"] for match in why["matched"]] == ["stop"]


def put_newer(served: Served, store: FaultyStore, n: int, **said: Any) -> None:
    """As a version would that knows a setting more."""
    newer = rule_item("fut", n=n, set_at=time.time(), target="etl", quota=5, **said)
    puts = [Put(newer.key, item_bytes(newer)), Put(HEAD, head_bytes(n))]
    served.run_there(lambda: store.commit([], puts))


def test_what_a_newer_version_set_can_be_seen_and_lifted(
    served: Served, store: FaultyStore
) -> None:
    put_newer(served, store, 7, kind="hold", reason="x")
    seen = served.ask("GET", f"{RULES}/fut")
    assert seen.status == 200 and described(seen, "/v1/rules/{rule}", "get")
    assert (seen.json["kind"], seen.json["target"], seen.json["n"]) == ("unreadable", "etl", 7)
    assert "unknown setting 'quota'" in seen.json["says"] and seen.json["ratio"] is None
    tried = change(served, "DELETE", f"{RULES}/fut?dry_run=true", If_Match='"7"')
    assert [rule["id"] for rule in tried.json["rules"]] == ["fut"]
    lifted = change(served, "DELETE", f"{RULES}/fut", If_Match=seen.headers["ETag"])
    assert described(lifted, "/v1/rules/{rule}", "delete")
    assert [(rule["lifted_by"], rule["state"]) for rule in lifted.json["rules"]] == [
        ("ops", "ended")
    ]
    assert is_problem(served.ask("GET", f"{RULES}/fut"), 404)


def test_the_last_good_edition_is_not_what_a_change_is_built_on(
    served: Served, store: FaultyStore
) -> None:
    """A newer version changed the rule; what this one could read last stays in force here."""
    change(served, "POST", RULES, {**HOLD, "id": "fut"})
    follow(served, store)
    put_newer(served, store, 7, kind="hold", reason="x")
    follow(served, store)
    assert served.ask("GET", CHECK).status == 417
    seen = served.ask("GET", f"{RULES}/fut")
    assert seen.headers["ETag"] == '"7"'
    assert change(served, "DELETE", f"{RULES}/fut", If_Match=seen.headers["ETag"]).status == 200
    follow(served, store)
    assert served.ask("GET", CHECK).status == 200


def test_its_past_is_reported_like_that_of_others(served: Served, store: FaultyStore) -> None:
    """R144, R145: by the audit of the agent where it was in force."""
    change(served, "POST", RULES, HOLD)
    follow(served, store)
    served.run_there(served.rules.keep_notes)  # As its loop does, each second.
    served.ask("GET", CHECK)
    past = served.ask("GET", "/v1/explain?app=etl:nightly&database=main&at=0s").json
    assert [match["rule"] for match in past["matched"]] == ["stop"]
    audit = served.ask("GET", "/v1/audit", Authorization=bearer(OPERATOR)).json["audit"]
    assert ("ops", "rule.followed", "stop") in [(e["who"], e["action"], e["target"]) for e in audit]
    replayed = change(
        served, "POST", "/v1/replay", {"rule": {"target": "etl", "ratio": 0.5}, "since": "10m"}
    )
    assert replayed.status == 200


def test_a_dry_run_shows_where_it_would_apply_and_changes_nothing(
    served: Served, store: FaultyStore
) -> None:
    served.ask("GET", CHECK)
    tried = change(served, "POST", f"{RULES}?dry_run=true", HOLD)
    assert tried.status == 200 and tried.json["clients"] == ["etl:nightly"]
    assert tried.json["reached"]["reach"] == "fleet"
    pair = change(served, "POST", f"{RULES}/favor?dry_run=true", {"target": "x", "reach": SHARD})
    assert pair.status == 200 and described(pair, f"{RULES}/favor", "post")
    assert pair.json["reached"]["says"] == pair.json["rules"][0]["reached"]["says"]
    assert served.run_there(lambda: store.count(ITEMS)) == 0


def test_an_agent_without_a_database_knows_of_no_clients(
    store: FaultyStore, tmp_path: Path
) -> None:
    plan = Plan(fleet=store, databases=())
    with serving(LOOPS["asyncio"], tmp_path, plan) as served:
        tried = change(served, "POST", f"{RULES}?dry_run=true", HOLD)
        assert tried.status == 200 and described(tried, RULES, "post")
        assert (tried.json["clients"], tried.json["clients_total"]) == ([], None)


def test_it_is_changed_and_lifted_by_its_id_at_any_agent(
    served: Served, store: FaultyStore
) -> None:
    """Also where it is not in force, or under another id."""
    change(served, "POST", RULES, {**HOLD, "reach": SHARD})
    seen = served.ask("GET", f"{RULES}/stop")
    assert seen.status == 200 and described(seen, "/v1/rules/{rule}", "get")
    assert "is not in force at this agent" in seen.json["advice"][0]
    follow(served, store)
    assert [rule["id"] for rule in listed(served)] == ["stop@main"]
    seen = served.ask("GET", f"{RULES}/stop")
    assert (seen.json["id"], seen.json["advice"]) == ("stop", [])
    late = change(served, "PATCH", f"{RULES}/stop", {"reason": "x"}, If_Match='"7"')
    assert is_problem(late, 412) and "revision 1, not 7" in late.json["detail"]
    etag = served.ask("GET", f"{RULES}/stop@main").headers["ETag"]
    changed = change(
        served, "PATCH", f"{RULES}/stop@main", {"reason": "incident 43"}, If_Match=etag
    )
    assert (changed.json["reason"], changed.json["n"]) == ("incident 43", 2)
    same = change(served, "PATCH", f"{RULES}/stop", {"reason": "incident 43"})
    assert same.json["n"] == 2 and "nothing changed" in same.json["advice"][0]
    lifted = change(served, "DELETE", f"{RULES}/stop")
    assert described(lifted, "/v1/rules/{rule}", "delete")
    assert [rule["lifted_by"] for rule in lifted.json["rules"]] == ["ops"]
    follow(served, store)
    assert listed(served) == [] and served.ask("GET", CHECK).status == 200


def test_favor_for_the_fleet_is_lifted_as_one(served: Served, store: FaultyStore) -> None:
    """R76"""
    made = change(served, "POST", f"{RULES}/favor", {"target": "etl", "reach": "fleet"})
    assert made.status == 201
    favored, reduced = made.json["rules"]
    follow(served, store)
    assert served.ask("GET", CHECK).status == 200
    assert served.ask("GET", "/v1/check?app=web&database=main").json["rule"] == reduced["id"]
    lifted = change(served, "DELETE", f"{RULES}/{favored['id']}").json["rules"]
    assert {rule["id"] for rule in lifted} == {favored["id"], reduced["id"]}


def test_the_agents_own_rules_need_no_fleet(served: Served, store: FaultyStore) -> None:
    """Set, changed and lifted while its store is away."""
    for method, path, body in [
        ("POST", RULES, {"target": "etl", "ratio": 0.5, "id": "own"}),
        ("PATCH", f"{RULES}/own", {"ratio": 0.6}),
        ("DELETE", f"{RULES}/own", None),
    ]:
        away(served, store)
        assert change(served, method, path, body).status in (200, 201)
    assert is_problem(change(served, "POST", RULES, HOLD), 503)


def test_a_rule_in_force_is_shown_though_the_store_is_away(
    served: Served, store: FaultyStore
) -> None:
    change(served, "POST", RULES, {**HOLD, "reach": SHARD})
    follow(served, store)
    away(served, store)
    shown = served.ask("GET", f"{RULES}/stop")
    assert (shown.status, shown.json["id"]) == (200, "stop@main")
    away(served, store)
    assert is_problem(served.ask("GET", f"{RULES}/other"), 503)


def test_an_id_that_nobody_knows_is_looked_for_in_both(served: Served) -> None:
    for method in ("GET", "DELETE"):
        reply = change(served, method, f"{RULES}/nobody")
        assert is_problem(reply, 404) and "exists here or for the fleet" in reply.json["detail"]
    assert is_problem(change(served, "PATCH", f"{RULES}/nobody", {"ratio": 0.1}), 404)


def test_one_that_this_version_cannot_read_is_reported(served: Served, store: FaultyStore) -> None:
    odd = rule_item("f-1", 1, kind="of tomorrow", target="etl")
    served.run_there(lambda: store.commit([], [Put(odd.key, item_bytes(odd))]))
    follow(served, store)
    (told,) = served.ask("GET", RULES).json["rejected"]
    assert told.startswith("f-1: ") and "of tomorrow" in told


@pytest.mark.parametrize("reach", ["shards:x", "fleet:x", "shard:", 7, {"shard": "x"}])
def test_a_reach_that_cannot_be_one_is_named(served: Served, reach: Any) -> None:
    for path, body in [(RULES, HOLD), (f"{RULES}/favor", {"target": "etl"})]:
        reply = change(served, "POST", path, {**body, "reach": reach})
        assert is_problem(reply, 422) and ".reach: " in reply.json["faults"][0]
    assert is_problem(change(served, "PUT", BUDGET, {**CAP, "reach": reach}), 422)


def test_an_agent_of_no_fleet_says_how_to_join_one(alone: Served) -> None:
    for method, path, body in [
        ("POST", RULES, HOLD),
        ("POST", f"{RULES}/favor", {"target": "etl", "reach": "fleet"}),
        ("PUT", BUDGET, {**CAP, "reach": "fleet"}),
        ("DELETE", f"{BUDGET}?reach=fleet", None),
    ]:
        reply = change(alone, method, path, body)
        assert is_problem(reply, 409, field="reach") and "[fleet]" in reply.json["detail"]
    assert is_problem(change(alone, "DELETE", f"{RULES}/nobody"), 404)


def test_only_operators_change_the_fleet(served: Served, store: FaultyStore) -> None:
    for method, path, body in [
        ("POST", RULES, HOLD),
        ("PUT", BUDGET, {**CAP, "reach": "fleet"}),
        ("DELETE", f"{BUDGET}?reach=fleet", None),
    ]:
        assert is_problem(change(served, method, path, body, token=VIEWER), 403)
    assert served.run_there(lambda: store.count(ITEMS)) == 0


# --- budgets -------------------------------------------------------------------------------


def budgets(served: Served) -> Mapping[str, Any]:
    found = served.ask("GET", "/v1/budgets/main").json["budgets"]
    return {budget["name"]: budget for budget in found}


def test_a_budget_is_set_for_the_fleet_and_shown_with_its_reach(
    served: Served, store: FaultyStore
) -> None:
    tried = change(served, "PUT", f"{BUDGET}?dry_run=true", {**CAP, "reach": SHARD})
    assert tried.json["changed"] and tried.json["reached"]["reach"] == SHARD
    made = change(served, "PUT", BUDGET, {**CAP, "reach": SHARD})
    assert made.status == 200 and described(made, "/v1/budgets/{database}/{name}", "put")
    assert (made.json["reach"], made.json["revision"]) == (SHARD, 1)
    assert made.json["difference"][0]["line"].startswith("budget cap@shard:commerce/*: added")
    assert "cap" not in budgets(served)
    follow(served, store)
    found = budgets(served)["cap"]
    assert (found["origin"], found["reach"], found["n"]) == ("fleet", SHARD, 1)


def test_without_a_reach_a_change_is_the_agents_alone(served: Served, store: FaultyStore) -> None:
    change(served, "PUT", BUDGET, {**CAP, "reach": "fleet"})
    follow(served, store)
    change(served, "PATCH", BUDGET, {"rate": 30})
    found = budgets(served)["cap"]
    assert (found["origin"], found["settings"]["rate"], found["reach"]) == ("changed", 30, "fleet")
    seen = served.ask("GET", f"{BUDGET}?reach=fleet")
    assert (seen.json["settings"]["rate"], seen.headers["ETag"]) == (20, '"1"')
    patched = change(served, "PATCH", BUDGET, {"capacity": 300, "reach": "fleet"}, If_Match='"1"')
    assert patched.json["revision"] == 2
    follow(served, store)
    settings = budgets(served)["cap"]["settings"]
    assert (settings["rate"], settings["capacity"]) == (30, 300)


def test_a_budget_of_the_fleet_is_removed_by_its_reach(served: Served, store: FaultyStore) -> None:
    change(served, "PUT", BUDGET, {**CAP, "reach": SHARD})
    missing = change(served, "DELETE", f"{BUDGET}?reach=fleet")
    assert is_problem(missing, 404) and SHARD in missing.json["detail"]
    stale = change(served, "DELETE", f"{BUDGET}?reach={SHARD}", If_Match='"9"')
    assert is_problem(stale, 412)
    gone = change(served, "DELETE", f"{BUDGET}?reach={SHARD}")
    assert gone.json["changed"] and gone.json["budget"] is None
    follow(served, store)
    assert "cap" not in budgets(served)
    assert is_problem(served.ask("GET", f"{BUDGET}?reach={SHARD}"), 404)


def test_two_reaches_are_two_budgets(served: Served) -> None:
    reply = change(served, "PUT", f"{BUDGET}?reach=fleet", {**CAP, "reach": SHARD})
    assert is_problem(reply, 422, field="reach")
    odd = change(served, "DELETE", f"{BUDGET}?reach=fleet&dryrun=true")
    assert is_problem(odd, 400, field="dryrun")


def test_one_that_cannot_apply_here_is_reported_in_the_status(
    served: Served, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [{"match": {"username": f"u{n}"}} for n in range(7)]
    change(served, "PUT", "/v1/budgets/main/own", {**CAP, "rules": many})
    change(served, "PUT", BUDGET, {**CAP, "rules": many, "reach": "fleet"})
    monkeypatch.setattr(parse, "MAX_RULES", 12)
    follow(served, store)
    told = served.ask("GET", "/v1/budgets/main").json["advice"]
    assert any("budget cap@fleet is left out here" in line for line in told)


def test_what_a_store_has_lost_stays_in_force(served: Served, store: FaultyStore) -> None:
    change(served, "POST", RULES, HOLD)
    change(served, "PUT", BUDGET, {**CAP, "reach": "fleet"})
    follow(served, store)
    served.call(setattr, store, "kept", KeptInMemory())
    follow(served, store)
    assert served.ask("GET", CHECK).status == 417 and "cap" in budgets(served)
