"""A shard's changes over HTTP: who may exchange them, and what an acknowledgment says (R164)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headgate.budgets.service import TrafficPlan
from headgate.changes import exchange
from headgate.changes.exchange_api import decode_answer, encode_offer
from headgate.changes.exchanged import MAX_SHARED_BYTES, Inventory, Offer, version_of
from headgate.changes.model import Change
from headgate.changes.reach import parse_reach
from headgate.changes.state import item_bytes
from headgate.metrics.samples import Absent, Cause
from headgate.shard.topology import Following, Leading, Unled
from tests.budgets.budget_world import document
from tests.changes.exchange_world import StubRemote
from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.http.serving import OPERATOR, PEER, VIEWER, LoopFactory, Plan, Served, bearer, serving
from tests.http.talk import Reply
from tests.http.test_checks import is_problem
from tests.page.test_rules import set_by
from tests.page.visiting import field_of, signed_in, text_of

SHARD = "commerce/-80"
REACH = parse_reach(f"shard:{SHARD}")
ROUTE = "/v1/changes/exchange"
JSON: dict[str, Any] = {"Content_Type": "application/json"}
EMPTY = Inventory().digest
LATER = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
RULE = {"id": "half", "target": "etl", "ratio": 0.5, "for": "2h"}

Start = Callable[..., Served]


@pytest.fixture
def start(
    loop_factory: LoopFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    # However busy the machine is: agents that answer have answered.
    monkeypatch.setattr(exchange, "ACK_S", DEADLINE_S)
    with ExitStack() as stack:

        def served(name: str = "db-a", **more: Any) -> Served:
            folder = tmp_path / name
            folder.mkdir()
            plan = Plan(shard=SHARD, databases=("main",), **more)
            return stack.enter_context(serving(loop_factory, folder, plan))

        yield served


@pytest.fixture
def served(start: Start) -> Served:
    return start()


def offer(**more: Any) -> bytes:
    return encode_offer(Offer(**{**ASKED, **more}))


ASKED: dict[str, Any] = {"shard": SHARD, "database": "main", "sender": "db-b", "digest": EMPTY}


def tell(served: Served, body: bytes, token: str | None = PEER, **more: Any) -> Reply:
    headers = {**JSON, **({"Authorization": bearer(token)} if token else {})}
    return served.ask("POST", ROUTE, body=body, **{**headers, **more})


def change(served: Served, method: str, path: str, body: Any = None) -> Reply:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": bearer(OPERATOR), **(JSON if data is not None else {})}
    return served.ask(method, path, body=data, **headers)


def rule_entry(name: str = "half", n: int = 3) -> tuple[str, bytes]:
    value = {
        "target": "etl",
        "kind": "ratio",
        "ratio": 0.5,
        "reason": "",
        "expires_at": LATER,
        "created_at": "2024-01-01T00:00:00Z",
        "created_by": "ops",
        "set_at": "2024-01-01T00:00:00Z",
    }
    item = Change("rule", name, REACH, value, n, 1_700_000_000.0, "ops@db-b", 0)
    return item.key, item_bytes(item)


def lead(served: Served, *others: Served) -> None:
    """With the agents of others as its replicas'."""
    names = [f"db-{letter}" for letter in "bcd"[: len(others)]]
    remotes = {
        name: StubRemote(name, f"http://127.0.0.1:{other.listener.ports[0]}")
        for name, other in zip(names, others, strict=True)
    }

    def there() -> None:
        served.shard.point = Leading("agent", 1, 0.0)
        served.shard.roster.remotes = remotes
        assert served.exchange is not None
        served.exchange.look()

    served.call(there)


def follow(served: Served, url: str = "https://db-x:8087") -> None:
    served.call(setattr, served.shard, "point", Following("db-x", url))


# --- who may -------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [PEER, OPERATOR])
def test_a_peer_or_an_operator_exchanges(served: Served, token: str) -> None:
    reply = tell(served, offer(entries=(rule_entry(),)), token)
    assert reply.status == 200, reply.body
    answer = decode_answer(reply.body)
    there = Inventory()
    there.put(rule_entry()[0], version_of(rule_entry()[1]))
    assert answer.digest == there.digest
    assert [rule["id"] for rule in served.ask("GET", "/v1/rules").json["rules"]] == ["half"]


def test_the_unix_socket_needs_no_token(served: Served) -> None:
    assert tell(served, offer(), None, unix=True).status == 200


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("wrong", 401), (VIEWER, 403)], ids=str)
def test_nobody_else_does(served: Served, token: str | None, status: int) -> None:
    assert is_problem(tell(served, offer(entries=(rule_entry(),)), token), status)
    assert served.ask("GET", "/v1/rules").json["rules"] == []


def test_a_peer_changes_nothing_but_by_exchange(served: Served) -> None:
    lead(served)
    headers = {"Authorization": bearer(PEER), **JSON}
    reply = served.ask("POST", "/v1/rules", body=json.dumps(RULE).encode(), **headers)
    assert is_problem(reply, 403)


@pytest.mark.parametrize(
    ("more", "status"),
    [({"shard": "other"}, 409), ({"database": "nothing"}, 404)],
)
def test_nothing_crosses_shards(served: Served, more: dict[str, str], status: int) -> None:
    """R39."""
    assert is_problem(tell(served, offer(**more, entries=(rule_entry(),))), status)
    assert served.ask("GET", "/v1/rules").json["rules"] == []


def test_an_agent_without_shards_says_so(start: Start, tmp_path: Path) -> None:
    plain = start("plain")
    plain.call(setattr, plain.shard, "locals", {})
    assert is_problem(tell(plain, offer()), 404)


# --- what is taken -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        json.dumps({"version": 1}).encode(),
        offer().replace(b'"version":1', b'"version":0'),
        offer().replace(b'"version":1', b'"version":"1"'),
        offer().replace(EMPTY.encode(), b"0"),
        offer(shard="x" * 300),
        offer(sender="\0"),
        offer(wait_s=1e9),
        offer(entries=(("k" * 2000, b"{}"),)),
        offer().replace(b'"digest"', b'"entries":[["k"]],"digest"'),
        offer().replace(b'"digest"', b'"entries":7,"digest"'),
        offer().replace(b'"digest"', b'"page":{"have":[["k",1]]},"digest"'),
        b'{"a":' * 100_000,
    ],
    ids=range(16),
)
def test_what_is_no_offer_is_rejected(served: Served, body: bytes) -> None:
    reply = tell(served, body)
    assert is_problem(reply, 413 if len(body) > 65_536 else 400), reply.body


def test_it_has_to_be_json(served: Served) -> None:
    assert is_problem(tell(served, offer(), Content_Type="text/plain"), 415)


def test_a_body_beyond_the_limit_is_rejected(served: Served) -> None:
    assert is_problem(tell(served, b" " * 70_000 + offer()), 413)


def test_a_change_of_the_largest_size_fits_into_a_request_by_default(served: Served) -> None:
    item = Change("quota", "x", REACH, {"text": ""}, 1, 1.0, "ops", 0)
    room = MAX_SHARED_BYTES - len(item_bytes(item))
    item = Change("quota", "x", REACH, {"text": "é" * (room // 2)}, 1, 1.0, "ops", 0)
    reply = tell(served, offer(entries=((item.key, item_bytes(item)),)))
    assert reply.status == 200
    assert decode_answer(reply.body).digest != EMPTY


def test_one_that_cannot_be_read_takes_no_other_with_it(served: Served) -> None:
    bad = (rule_entry("other")[0], b'{"n":"many"}')
    assert tell(served, offer(entries=(bad, rule_entry()))).status == 200
    assert [rule["id"] for rule in served.ask("GET", "/v1/rules").json["rules"]] == ["half"]


def test_fields_and_entries_of_a_newer_version_are_taken(served: Served) -> None:
    key, raw = rule_entry()
    raw = raw.replace(b'"kind":"rule"', b'"kind":"rule","since":"9"')
    body = offer(entries=((key, raw),)).replace(b'"version":1', b'"version":9,"more":[1]')
    assert tell(served, body).status == 200
    page = offer(page=Inventory().page("")).replace(b'"version":1', b'"version":9')
    assert decode_answer(tell(served, page).body).entries == ((key, raw),)


# --- held ----------------------------------------------------------------------------------


def test_an_answer_waits_until_something_changes(served: Served) -> None:
    lead(served)
    told: list[Reply] = []
    waiting = threading.Thread(target=lambda: told.append(tell(served, offer(wait_s=60.0))))
    waiting.start()
    eventually(lambda: served.call(lambda: held(served)) == 1)
    assert change(served, "POST", "/v1/rules", RULE).status == 201
    waiting.join()
    [entry] = decode_answer(told[0].body).entries
    assert entry[0].endswith("rule/half")
    assert served.call(lambda: held(served)) == 0


def held(served: Served) -> int:
    assert served.exchange is not None
    return len(served.exchange._track(SHARD).waiters)


def test_a_caller_that_hangs_up_is_not_waited_for(served: Served) -> None:
    lead(served)
    with served.talk() as talk:
        body = offer(wait_s=60.0)
        head = f"POST {ROUTE} HTTP/1.1\r\nHost: agent\r\nAuthorization: {bearer(PEER)}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        talk.send(head.encode() + body)
        eventually(lambda: served.call(lambda: held(served)) == 1)
    eventually(lambda: served.call(lambda: held(served)) == 0)


# --- what an acknowledgment says -----------------------------------------------------------


def test_the_page_says_how_many_have_a_copy(start: Start) -> None:
    a, b, c = start("a"), start("b"), start("c")
    for other in (b, c):
        follow(other)
    lead(a, b, c)
    ann = signed_in(a, OPERATOR)
    made = set_by(
        ann, {"kind": "ratio", "target": "etl", "ratio": "0.5", "for": "2h", "end": "for"}
    )
    assert "2 of 2 replicas have a copy." in text_of(ann.get(made.headers["location"]))
    [rule] = a.ask("GET", "/v1/rules").json["rules"]
    path = f"/rules/{rule['id']}/lift"
    asked = ann.get(path, script=True)
    fields = {name: field_of(asked, name) for name in ("revision", "seal")}
    lifted = ann.post(path, fields, script=True)
    assert "in force here; 2 of 2 replicas have a copy" in text_of(lifted), lifted.body


def test_the_leader_sets_for_the_shard_by_default_and_says_who_has_it(start: Start) -> None:
    a, b, c = start("a"), start("b"), start("c")
    for other in (b, c):
        follow(other)
    lead(a, b, c)
    reply = change(a, "POST", "/v1/rules", RULE)
    assert reply.status == 201, reply.body
    assert reply.json["reach"] == f"shard:{SHARD}" and reply.json["reached"] is None
    assert reply.json["copies"] == {
        "have": 2,
        "of": 2,
        "missing": [],
        "standby": None,
        "says": "in force here; 2 of 2 replicas have a copy",
        "left_out": {},
    }
    for one in (a, b, c):
        [rule] = one.ask("GET", "/v1/rules").json["rules"]
        assert (rule["id"], rule["state"], rule["reach"]) == ("half", "in_force", f"shard:{SHARD}")
        assert rule["copies"] is None
    changed = change(a, "PATCH", "/v1/rules/half", {"ratio": 0.9})
    assert changed.json["copies"]["have"] == 2 and changed.json["ratio"] == 0.9
    favored = change(a, "POST", "/v1/rules/favor", {"target": "fix"})
    assert favored.json["copies"]["have"] == 2
    assert {rule["reach"] for rule in favored.json["rules"]} == {f"shard:{SHARD}"}
    lifted = change(a, "DELETE", "/v1/rules/half")
    assert lifted.json["copies"]["says"] == "in force here; 2 of 2 replicas have a copy"
    states = {
        rule["id"]: rule["state"] for rule in b.ask("GET", "/v1/rules?all=true").json["rules"]
    }
    assert states["half"] == "ended" and len(states) == 3


def test_a_dry_run_notifies_nobody(start: Start) -> None:
    a, b = start("a"), start("b")
    lead(a, b)
    reply = change(a, "POST", "/v1/rules?dry_run=true", RULE)
    assert reply.json["copies"] is None and reply.json["reach"] == f"shard:{SHARD}"
    assert b.ask("GET", "/v1/rules").json["rules"] == []


def test_a_replica_that_is_gone_is_named(start: Start, served: Served) -> None:
    gone = start("gone")
    lead(served, gone)
    gone.call(setattr, gone.shard, "locals", {})
    reply = change(served, "POST", "/v1/rules", RULE)
    assert reply.status == 201
    assert (reply.json["copies"]["have"], reply.json["copies"]["of"]) == (0, 1)
    assert reply.json["copies"]["missing"][0].startswith("db-b ")
    assert served.ask("GET", "/v1/rules/half").json["state"] == "in_force"


# --- budgets -------------------------------------------------------------------------------

BUDGETS = "/v1/budgets/main"
ETL = {"rate": 20, "capacity": 200, "rules": [{"match": {"username": "etl"}}]}
WITH_TRAFFIC = {"traffic": TrafficPlan("main", document({"name": "web", "rate": 50}), "policy")}


def budgets_at(served: Served) -> dict[str, tuple[str, str | None]]:
    found = served.ask("GET", BUDGETS).json["budgets"]
    return {one["name"]: (one["origin"], one["reach"]) for one in found}


def test_a_budget_of_a_shard_is_in_force_at_all_of_its_agents_when_it_is_acknowledged(
    start: Start,
) -> None:
    a, b, c = (start(name, **WITH_TRAFFIC) for name in "abc")
    for other in (b, c):
        follow(other)
    lead(a, b, c)
    reply = change(a, "PUT", f"{BUDGETS}/etl", ETL)
    assert reply.status == 201, reply.body
    assert (reply.json["reach"], reply.json["reached"]) == (f"shard:{SHARD}", None)
    assert reply.json["copies"]["says"] == "in force here; 2 of 2 replicas have a copy"
    here, of_shard = ("file", None), ("shard", f"shard:{SHARD}")
    for one in (a, b, c):
        assert budgets_at(one) == {"web": here, "etl": of_shard}
    for method, path, body in (
        ("PATCH", f"{BUDGETS}/etl", {"mode": "enforce"}),
        ("PATCH", f"/v1/budgets/all/etl?reach=shard:{SHARD}", {"rate": 30}),
        ("POST", f"{BUDGETS}/etl/forgive", None),
    ):
        changed = change(a, method, path, body)
        assert changed.status == 200 and changed.json["copies"]["have"] == 2, changed.body
    settings = {**ETL, "name": "etl", "mode": "enforce", "rate": 30, "epoch": 1}
    for one in (a, b, c):
        assert one.ask("GET", f"{BUDGETS}/etl").json["settings"] == settings
    assert change(a, "DELETE", f"{BUDGETS}/etl").json["copies"]["have"] == 2
    assert budgets_at(a) == budgets_at(b) == budgets_at(c) == {"web": here}


def test_the_switch_for_all_budgets_of_a_shard_is_at_all_of_its_agents(start: Start) -> None:
    """R164: a promotion keeps it. Without a reach it is this agent's alone."""
    a, b = (start(name, **WITH_TRAFFIC) for name in "ab")
    follow(b)
    lead(a, b)
    wide = f"/v1/budgets/all?reach=shard:{SHARD}"
    reply = change(a, "PATCH", wide, {"mode_cap": "off"})
    assert (reply.status, reply.json["mode_cap"], reply.json["copies"]["have"]) == (200, "off", 1)
    assert [one.ask("GET", BUDGETS).json["mode_cap"] for one in (a, b)] == ["off", "off"]
    assert change(b, "PATCH", wide, {"mode_cap": "enforce"}).status == 409
    assert change(a, "PATCH", BUDGETS, {"mode_cap": "warn"}).json["mode_cap"] == "off"
    assert change(a, "PATCH", wide, {"mode_cap": "enforce"}).json["changed"]
    assert [one.ask("GET", BUDGETS).json["mode_cap"] for one in (a, b)] == ["warn", "enforce"]


def test_the_page_says_how_many_have_a_copy_of_a_budget(start: Start) -> None:
    a, b = start("a", **WITH_TRAFFIC), start("b", **WITH_TRAFFIC)
    follow(b)
    lead(a, b)
    ann = signed_in(a, OPERATOR)
    shown = ann.post("/budgets/main/new", {"name": "etl", "s.rate": "20", "s.capacity": "200"})
    sent = {name: field_of(shown, name) for name in ("document", "step")}
    made = ann.post("/budgets/main/new", sent)
    assert made.status == 303, made.body
    assert "1 of 1 replicas have a copy." in text_of(ann.get(made.headers["location"]))
    assert set(budgets_at(b)) == {"web", "etl"}
    asked = ann.post("/budgets/main/etl/mode", {"mode": "enforce"})
    assert "at every agent of the shard" in text_of(asked)
    sent = {name: field_of(asked, name) for name in ("mode", "revision", "step")}
    assert ann.post("/budgets/main/etl/mode", sent).status == 303
    assert b.ask("GET", f"{BUDGETS}/etl").json["mode"] == "enforce"


def test_a_promoted_agent_goes_on_with_the_budgets_of_its_shard(start: Start) -> None:
    a, b = start("a", **WITH_TRAFFIC), start("b", **WITH_TRAFFIC)
    lead(a, b)
    follow(b)
    assert change(a, "PUT", f"{BUDGETS}/etl", ETL).json["copies"]["have"] == 1
    rejected = change(b, "PATCH", f"{BUDGETS}/etl", {"rate": 30})
    assert (
        is_problem(rejected, 409) and "made at the agent of its primary" in rejected.json["detail"]
    )
    lead(b)
    seen = b.ask("GET", f"{BUDGETS}/etl")
    token = {"Authorization": bearer(OPERATOR), "If_Match": seen.headers["ETag"], **JSON}
    first = b.ask("PATCH", f"{BUDGETS}/etl", body=b'{"rate":30}', **token)
    assert first.status == 200, first.body
    again = b.ask("PATCH", f"{BUDGETS}/etl", body=b'{"rate":40}', **token)
    assert is_problem(again, 412)
    assert b.ask("GET", f"{BUDGETS}/etl").json["settings"]["rate"] == 30


def test_a_budget_is_for_the_shard_or_for_this_agent_as_is_said(start: Start) -> None:
    served = start(**WITH_TRAFFIC)
    lead(served)
    assert change(served, "PUT", f"{BUDGETS}/mine?reach=host:agent", ETL).json["copies"] is None
    ours = change(served, "PUT", f"{BUDGETS}/ours", {**ETL, "reach": f"shard:{SHARD}"})
    assert ours.json["copies"]["says"] == "in force here; no other agent of the shard is known"
    here = change(served, "PATCH", f"{BUDGETS}/web?reach=host", {"rate": 60})
    assert here.json["copies"] is None
    assert change(served, "PATCH", f"{BUDGETS}/web", {"rate": 70}).json["copies"] is None
    assert budgets_at(served) == {
        "web": ("changed", None),
        "ours": ("shard", f"shard:{SHARD}"),
        "mine": ("runtime", None),
    }
    again = served.ask("GET", f"/v1/budgets/all/ours?reach=shard:{SHARD}")
    assert again.json["settings"] == {**ETL, "name": "ours", "mode": "warn"}
    assert change(served, "PUT", "/v1/budgets/all/x?reach=fleet", ETL).status == 409


def test_what_a_shard_changes_of_a_budget_in_the_settings_file_survives_a_promotion(
    start: Start,
) -> None:
    """R164: setting by setting, so each agent goes on following its file in the others."""
    file = document({"name": "web", "rate": 50}, {"name": "old", "rate": 5})
    slower = document({"name": "web", "rate": 40, "capacity": 100}, {"name": "old", "rate": 5})
    a = start("a", traffic=TrafficPlan("main", file, "policy"))
    b = start("b", traffic=TrafficPlan("main", slower, "policy"))
    follow(b)
    lead(a, b)
    seen = a.ask("GET", f"{BUDGETS}/web")
    token = {"Authorization": bearer(OPERATOR), "If_Match": seen.headers["ETag"], **JSON}
    tried = a.ask("PATCH", f"{BUDGETS}/web?dry_run=true", body=b'{"mode":"enforce"}', **token)
    assert tried.json["changed"] and budgets_at(a)["web"] == ("file", None)
    first = a.ask("PATCH", f"{BUDGETS}/web", body=b'{"mode":"enforce"}', **token)
    assert first.status == 200, first.body
    assert first.json["copies"]["says"] == "in force here; 1 of 1 replicas have a copy"
    assert first.json["difference"][0]["line"] == "web: mode warn → enforce"
    assert is_problem(a.ask("PATCH", f"{BUDGETS}/web", body=b'{"rate":1}', **token), 412)
    assert change(a, "POST", f"{BUDGETS}/web/forgive").json["copies"]["have"] == 1
    assert change(a, "DELETE", f"{BUDGETS}/old").json["copies"]["have"] == 1
    assert is_problem(change(b, "PATCH", f"{BUDGETS}/web", {"rate": 30}), 409)
    for one, settings in ((a, {"rate": 50}), (b, {"rate": 40, "capacity": 100})):
        assert budgets_at(one) == {"web": ("shard", f"shard:{SHARD}")}
        wanted = {"name": "web", "mode": "enforce", "epoch": 1, **settings}
        assert one.ask("GET", f"{BUDGETS}/web").json["settings"] == wanted
    assert a.ask("GET", f"{BUDGETS}/web?reach=shard:{SHARD}").json["mode"] == "enforce"
    exported = change(a, "GET", "/v1/changes/export").json["document"]
    assert exported["budgets"] == [
        {"name": "old", "reach": f"shard:{SHARD}", "removed": True},
        {
            "name": "web",
            "reach": f"shard:{SHARD}",
            "whole": False,
            "mode": "enforce",
            "epoch": 1,
        },
    ]
    assert not change(a, "POST", "/v1/changes/apply?prune=true", exported).json["changed"]
    lead(b)
    assert b.ask("GET", f"{BUDGETS}/web").json["mode"] == "enforce"
    back = change(b, "PUT", f"{BUDGETS}/old", {"rate": 5})
    assert back.status == 201 and budgets_at(b)["old"] == ("file", None), back.body
    assert change(b, "PATCH", f"{BUDGETS}/web", {"mode": "warn", "epoch": None}).json["changed"]
    assert budgets_at(b)["web"] == ("file", None), "as the file has it again"
    assert change(b, "POST", "/v1/changes/apply", exported).json["changed"]
    assert budgets_at(b) == {"web": ("shard", f"shard:{SHARD}")}


def test_an_agent_whose_settings_file_lacks_the_changed_budget_is_named(start: Start) -> None:
    a, b = start("a", **WITH_TRAFFIC), start("b", traffic=TrafficPlan("main"))
    follow(b)
    lead(a, b)
    copies = change(a, "PATCH", f"{BUDGETS}/web", {"rate": 60}).json["copies"]
    why = "the settings file here has no budget web, so the shard's change of it has no effect"
    assert (copies["have"], copies["left_out"]) == (1, {"db-b": why})
    assert copies["says"] == f"in force here; 1 of 1 replicas have a copy; db-b reports: {why}"
    policy = b.ask("GET", BUDGETS).json
    assert policy["budgets"] == [] and not policy["has_policy"], "it lifts nobody's limits"
    assert any(why in told for told in policy["advice"])
    other = change(a, "PUT", f"{BUDGETS}/etl", ETL).json["copies"]
    assert other["left_out"] == {}, "that one is in force there"


@pytest.mark.parametrize("reach", ["host", "host:agent"])
def test_an_explicit_reach_of_this_agent_alone_stays_here(served: Served, reach: str) -> None:
    lead(served)
    reply = change(served, "POST", "/v1/rules", {**RULE, "reach": reach})
    assert (reply.status, reply.json["reach"], reply.json["copies"]) == (201, None, None)


def test_a_replicas_agent_says_where_to_set_it(served: Served) -> None:
    follow(served, "https://db-x:8087")
    reply = change(served, "POST", "/v1/rules", {**RULE, "reach": f"shard:{SHARD}"})
    assert is_problem(reply, 409, field="reach")
    assert "https://db-x:8087" in reply.json["detail"]
    own = change(served, "POST", "/v1/rules", RULE)
    assert (own.status, own.json["reach"]) == (201, None)


def test_what_the_shard_set_is_lifted_where_it_leads_and_can_be_suspended_anywhere(
    served: Served,
) -> None:
    follow(served, "https://db-x:8087")
    assert tell(served, offer(entries=(rule_entry(),))).status == 200
    for method, body in (("DELETE", None), ("PATCH", {"ratio": 0.1})):
        reply = change(served, method, "/v1/rules/half", body)
        assert is_problem(reply, 409)
        assert "https://db-x:8087" in reply.json["detail"]
    assert "headgate rule suspend half" in change(served, "DELETE", "/v1/rules/half").json["detail"]
    rested = change(served, "PUT", "/v1/rules/half/suspension", {"reason": "nobody leads"})
    assert rested.status == 200, rested.body
    assert served.ask("GET", "/v1/rules/half").json["state"] == "suspended"


def test_without_a_leader_the_shards_rules_are_not_changed(served: Served) -> None:
    absent = Absent(Cause.NO_PRIMARY, "no member is known to be the primary", 0.0)
    served.call(setattr, served.shard, "point", Unled(absent))
    reply = change(served, "POST", "/v1/rules", {**RULE, "reach": f"shard:{SHARD}"})
    assert is_problem(reply, 409, field="reach")
    assert "no member is known to be the primary" in reply.json["detail"]


@pytest.mark.parametrize("reach", ["fleet", "shard:other", "shard:commerce/*"])
def test_what_reaches_further_still_needs_a_fleet(served: Served, reach: str) -> None:
    lead(served)
    reply = change(served, "POST", "/v1/rules", {**RULE, "reach": reach})
    assert is_problem(reply, 409, field="reach")
    assert "[fleet]" in reply.json["detail"]
