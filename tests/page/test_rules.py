"""The rules page over HTTP: what it shows, who may, faults at their fields, and what was seen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from headgate.changes.inforce import ChangeShelf
from headgate.changes.model import ITEMS
from headgate.changes.reach import Place
from headgate.history.api import ReplayDoc, ReplayRowDoc, ReplayTotalDoc
from headgate.page.rules import replayed, rule_list
from headgate.page.rules_form import body_of, fields_of, link_to, seal
from headgate.present.rules import left_text, rule_view
from headgate.present.view import line
from headgate.rules.api import RuleDoc, RulesDoc
from tests.fixtures.memory_log import MemoryLog
from tests.http.serving import LOOPS, OPERATOR, VIEWER, Plan, Served, serving
from tests.http.talk import Reply
from tests.page.visiting import Visitor, field_of, signed_in, text_of

PLACES = (Place("eu-1", "c", "commerce/-80", "db-1", "main"),)
HOSTILE = "<img src=x onerror=alert(1)>"
HOLD = {"kind": "hold", "target": "etl", "reason": "INC-1", "for": "1h", "end": "for"}


@pytest.fixture(scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(LOOPS["asyncio"], tmp_path_factory.mktemp("rules")) as served:
        yield served


@pytest.fixture
def served(_served: Served) -> Served:
    for rule in listed(_served):  # Of a pair, the other one has gone with the first.
        _served.ask("DELETE", f"/v1/rules/{rule['id']}", unix=True)
    return _served


def api(served: Served, method: str, path: str, body: Any = None) -> Any:
    raw = b"" if body is None else json.dumps(body).encode()
    reply = served.ask(method, path, body=raw, unix=True, Content_Type="application/json")
    assert reply.status < 400, reply.body
    return reply.json


def listed(served: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api(served, "GET", "/v1/rules")["rules"]
    return found


def put(served: Served, **said: Any) -> dict[str, Any]:
    made: dict[str, Any] = api(served, "POST", "/v1/rules", said)
    return made


def check(served: Served, app: str, times: int = 1) -> None:
    for _ in range(times):
        assert served.ask("GET", f"/v1/check?app={app}&database=main").status in (200, 417, 429)


def previewed(visitor: Visitor, fields: dict[str, str]) -> Reply:
    return visitor.post("/rules/preview", fields)


def set_by(visitor: Visitor, fields: dict[str, str]) -> Reply:
    shown = previewed(visitor, fields)
    assert shown.status == 200, text_of(shown)
    return visitor.post("/rules", {**fields, "seal": field_of(shown, "seal")})


# --- the list -----------------------------------------------------------------------------------


def test_without_rules_it_says_what_rules_are_and_offers_three(ann: Visitor) -> None:
    shown = text_of(ann.get("/rules"))
    assert "No rule is in force: only the metrics apply." in shown
    for words in ("Hold a client", "Throttle a client", "Favor one over all others"):
        assert words in shown


def test_a_row_shows_who_what_why_how_long_and_which_clients_match(
    served: Served, ann: Visitor
) -> None:
    """R78, R84: and an exemption is loud, with its justification and ceiling."""
    check(served, "etl:nightly")
    put(served, target="etl", kind="hold", reason="INC-7", **{"for": "30m"})
    exempt = {"kind": "exempt", "justification": "incident", "reason": "INC-8", "ceiling": 2}
    put(served, target="repair", **exempt)
    put(
        served,
        target="all",
        ratio=0.5,
        schedule="mon 07:00-07:01 Europe/Berlin",
        database="main",
        **{"for": "20d"},
    )
    shown = text_of(ann.get("/rules"))
    assert "EXEMPT: repair from every metric, up to 2 times a threshold" in shown
    assert "incident , ceiling 2×: INC-8" in shown
    assert "hold, in force rejects every check of etl" in shown and "etl:nightly" in shown
    assert re.search(r"(30 min 00 s|29 min 5\d s)", shown) and "INC-7" in shown and "uid:" in shown
    assert "rejects 50% of the checks of all on main" in shown
    assert "only mon 07:00-07:01 Europe/Berlin" in shown


def test_both_rules_of_a_favor_are_shown_together(served: Served, ann: Visitor) -> None:
    api(served, "POST", "/v1/rules/favor", {"target": "migration"})
    put(served, target="batch", kind="hold", reason="x")
    shown = text_of(ann.get("/rules"))
    places = [shown.index(f"of {name}") for name in ("all", "batch")]
    spared = shown.index("sets no ratio for migration: only the metrics decide")
    assert not min(places[1], spared) < places[0] < max(places[1], spared)
    assert shown.count(" with r-") == 2


def test_the_live_part_is_the_list_alone_and_keeps_the_filter(served: Served, ann: Visitor) -> None:
    put(served, target="etl", kind="hold", reason="INC-7")
    put(served, target="report", kind="hold", reason="INC-9")
    part = ann.get("/rules/list", script=True, q="INC-9").body.decode()
    assert part.lstrip().startswith('<section id="rules" data-live hx-get="/rules/list?q=INC-9"')
    assert "report" in part and "check of etl" not in part and "<html" not in part
    nothing = text_of(ann.get("/rules/list", script=True, q="nosuch"))
    assert "No rule matches “nosuch”." in nothing


def test_ended_rules_say_who_lifted_them(served: Served, ann: Visitor) -> None:
    made = put(served, target="etl", kind="hold", reason="INC-7")
    api(served, "DELETE", f"/v1/rules/{made['id']}")
    assert made["id"] not in text_of(ann.get("/rules"))
    for reply in (ann.get("/rules/ended", script=True), ann.get("/rules", all="true")):
        assert made["id"] in text_of(reply) and "lifted by uid:" in text_of(reply)


def test_many_rules_are_bounded_and_can_be_filtered(served: Served) -> None:
    one = msgspec.convert(put(served, target="etl", kind="hold", reason="x"), RuleDoc)
    docs = [msgspec.structs.replace(one, id=f"r-{n}", target=f"job{n:03}") for n in range(205)]
    found = rule_list(RulesDoc(docs), "")
    assert (len(found.rows), found.more, found.counts) == (100, 105, (205, 0, 0))
    assert (found.poll_s(2), rule_list(RulesDoc(docs[:9]), "").poll_s(2)) == (10, 2)
    assert [row.doc.target for row in rule_list(RulesDoc(docs), "job204").rows] == ["job204"]


def test_names_of_others_are_text(served: Served, ann: Visitor) -> None:
    put(served, target="etl", kind="hold", reason=HOSTILE)
    for path in ("/rules", "/rules/list", f"/rules?q={HOSTILE.replace(' ', '%20')}"):
        body = ann.get(path).body.decode()
        assert "<img src=x" not in body
    queries: list[dict[str, Any]] = [{"target": HOSTILE}, {"reason": HOSTILE}, {"reach": HOSTILE}]
    for query in queries:
        assert "<img src=x" not in ann.get("/rules/new", **query).body.decode()
    shown = previewed(ann, {"kind": HOSTILE, "target": HOSTILE, "ratio": HOSTILE})
    assert shown.status == 422 and "<img src=x" not in shown.body.decode()


# --- who may ------------------------------------------------------------------------------------


def test_who_may_not_change_sees_all_of_it_and_why_not(served: Served) -> None:
    made = put(served, target="etl", kind="hold", reason="INC-7")
    for visitor, status, why in (
        (signed_in(served, VIEWER), 403, "eve may look, not change"),
        (Visitor(served), 401, "sign in with the token of an operator to change something"),
    ):
        page = visitor.get("/rules")
        assert made["id"] in text_of(page) and why in text_of(page)
        assert f'disabled title="{why}' in page.body.decode()
        assert "/lift" not in page.body.decode()
        form = visitor.get("/rules/new", kind="exempt")
        assert why in text_of(form) and '<fieldset class="plain-set" disabled' in form.body.decode()
        assert visitor.get(f"/rules/{made['id']}/lift").status == 200
        assert visitor.post(f"/rules/{made['id']}/lift").status == status
        assert visitor.post(f"/rules/{made['id']}/extend/preview", {"by": "1h"}).status == status
    assert [rule["state"] for rule in listed(served)] == ["in_force"]


# --- forms --------------------------------------------------------------------------------------


FORMS = [
    HOLD,
    {"kind": "ratio", "target": "etl", "ratio": "90%", "order": "after", "id": "etl-slow"},
    {"kind": "favor", "target": "migration", "over": "etl", "ratio": "0.8"},
    {
        "kind": "exempt",
        "target": "etl",
        "justification": "system",
        "ceiling": "2",
        "metrics.lag": "on",
        "reason": "light",
    },
    {"kind": "metrics", "target": "etl", "metrics.lag": "on", "metrics.pool_usage": "on"},
    {"kind": "thresholds", "target": "etl", "thresholds.lag": "2s", "database": "main"},
    {
        "kind": "ratio",
        "target": "etl",
        "ratio": "0.5",
        "schedule.days.mon": "on",
        "schedule.days.fri": "on",
        "schedule.from": "07:00",
        "schedule.to": "09:30",
        "schedule.zone": "Europe/Berlin",
        "end": "until",
        "expires_at": "2999-01-01T00:00",
    },
]


@pytest.mark.parametrize("fields", FORMS[:-1], ids=lambda fields: str(fields["kind"]))
def test_each_kind_is_previewed_and_then_set(
    served: Served, ann: Visitor, fields: dict[str, str]
) -> None:
    reply = set_by(ann, {**fields, "for": "2h", "end": "for"})
    assert reply.status == 303 and reply.headers["location"].startswith("/rules?done=set&rule=")
    rules = listed(served)
    assert len(rules) == (2 if fields["kind"] == "favor" else 1)
    assert {rule["created_by"] for rule in rules} == {"ops"}
    assert all(7100 < rule["left_s"] <= 7200 for rule in rules)
    flash = text_of(ann.get(reply.headers["location"]))
    assert rules[0]["id"] in flash and "is set" in flash and "Lift it" in flash


def test_what_a_form_says_is_what_the_api_is_sent() -> None:
    assert body_of(FORMS[1]) == {
        "kind": "ratio",
        "target": "etl",
        "ratio": 0.9,
        "order": "after",
        "id": "etl-slow",
    }
    assert body_of(FORMS[3])["metrics"] == ["lag"]
    assert body_of(FORMS[5])["thresholds"] == {"lag": "2s"}
    assert body_of(FORMS[6]) == {
        "kind": "ratio",
        "target": "etl",
        "ratio": 0.5,
        "schedule": {
            "days": ["mon", "fri"],
            "from": "07:00",
            "to": "09:30",
            "zone": "Europe/Berlin",
        },
        "expires_at": "2999-01-01T00:00:00Z",
    }
    # What is of another kind stays in the form, and is not said.
    assert body_of({**HOLD, "ratio": "0.5", "thresholds.lag": "2"}) == {
        "kind": "hold",
        "target": "etl",
        "reason": "INC-1",
        "for": "1h",
    }


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"kind": "hold", "target": "etl"}, "reason", "a hold needs a reason"),
        ({"kind": "hold", "target": "all", "reason": "x"}, "target", "locks out every client"),
        ({"kind": "ratio", "target": "etl", "ratio": "much"}, "ratio", "must be a share"),
        ({"kind": "ratio", "target": "etl", "ratio": "1"}, "ratio", "set a hold, with a reason"),
        ({"kind": "exempt", "target": "etl", "reason": "x"}, "justification", "is missing"),
        ({"kind": "metrics", "target": "etl"}, "metrics", "name the metrics"),
        ({"kind": "thresholds", "target": "etl"}, "thresholds", "give a limit"),
        (
            {"kind": "thresholds", "target": "all", "thresholds.lag": "0.1ms"},
            "thresholds.lag",
            "locks out every client",
        ),
        ({"kind": "ratio", "ratio": "0.5"}, "target", "is missing"),
        ({**HOLD, "for": "soon"}, "for", "must read like"),
        ({**HOLD, "for": "90d"}, "for", "at most 30"),
        (
            {**HOLD, "end": "until", "expires_at": "2001-01-01T00:00"},
            "expires_at",
            "is in the past",
        ),
        ({**HOLD, "schedule.from": "07:00"}, "schedule.to", "is missing"),
        ({**HOLD, "id": "No Such"}, "id", "must be 1–63"),
        ({"kind": "favor", "target": "all"}, "target", "cannot be favored"),
    ],
)
def test_a_fault_is_shown_at_its_field(
    ann: Visitor, fields: dict[str, str], field: str, words: str
) -> None:
    reply = previewed(ann, fields)
    assert reply.status == 422
    found = re.search(rf'id="fault-{re.escape(field)}"[^>]*>(.*?)</span>', reply.body.decode())
    assert found is not None, text_of(reply)
    assert re.search(words, found[1].replace("<code>", "`").replace("</code>", "`")), found[1]
    assert f'aria-describedby="fault-{field}"' in reply.body.decode()
    assert "Set this rule" not in text_of(reply)


def test_a_form_that_was_changed_after_its_preview_is_previewed_again(
    served: Served, ann: Visitor
) -> None:
    sealed = field_of(previewed(ann, HOLD), "seal")
    other = {**HOLD, "target": "all", "lock_out": "on", "seal": sealed}
    reply = ann.post("/rules", other)
    assert "changed after its preview" in text_of(
        reply
    ) and "rejects every check of all" in text_of(reply)
    assert not listed(served)


def test_a_preview_replays_the_last_hour(served: Served, ann: Visitor) -> None:
    """R145. Of a name that no other test has a rule on: what changed within a minute is bounded."""
    check(served, "copy:nightly", 10)
    check(served, "copy:hourly", 5)
    shown = text_of(previewed(ann, {"kind": "ratio", "target": "copy", "ratio": "0.5"}))
    assert "15 checks since" in shown and "15 were admitted, with it 7.5 ." in shown
    assert "copy:nightly 10 10 5 on average: dice decide" in shown
    assert "copy:hourly 5 5 2.5 on average: dice decide" in shown
    assert "more admitted work raises the metrics" in shown
    nobody = text_of(previewed(ann, {**HOLD, "target": "nobody-asked"}))
    assert "No client that it matches has checked since" in nobody
    put(served, target="copy:nightly", kind="hold", reason="x", id="first")
    shadowed = text_of(previewed(ann, {"kind": "ratio", "target": "copy", "ratio": "0.9"}))
    assert "between these" in shadowed or "rule first comes first" in shadowed


def test_a_link_fills_in_the_form(ann: Visitor) -> None:
    """By the API's own names: other pages lead here."""
    query: dict[str, Any] = {"kind": "thresholds", "target": "etl", "thresholds": "lag=2s"}
    query |= {"reason": "why", "database": "main", "for": "2h"}
    body = ann.get("/rules/new", **query).body.decode()
    for value in ('value="etl"', 'value="2s"', 'value="why"', 'value="2h"'):
        assert value in body
    assert '<option value="main" selected>' in body
    fields = fields_of({"schedule": "sat-mon 07:00-09:30 Europe/Berlin", "metrics": "lag,x"})
    days = [name for name in fields if name.startswith("schedule.days.")]
    assert sorted(days) == ["schedule.days.mon", "schedule.days.sat", "schedule.days.sun"]
    assert (fields["schedule.from"], fields["schedule.zone"]) == ("07:00", "Europe/Berlin")
    assert "metrics.lag" in fields and "metrics.x" in fields


@pytest.mark.parametrize("fields", FORMS[:-1], ids=lambda fields: str(fields["kind"]))
def test_what_was_lifted_can_be_set_again_as_it_was(
    served: Served, ann: Visitor, fields: dict[str, str]
) -> None:
    set_by(ann, {"for": "2h", "end": "for", **fields})
    before = listed(served)
    first = before[0]["id"]
    shown = ann.get(f"/rules/{first}/lift")
    said = {name: field_of(shown, name) for name in ("revision", "seal")}
    reply = ann.post(f"/rules/{first}/lift", said)
    assert reply.status == 303 and not listed(served)
    flash = ann.get(reply.headers["location"])
    again = re.search(r'href="(/rules/new\?[^"]+)">Set it again', flash.body.decode())
    assert again is not None, text_of(flash)
    link = again[1].replace("&amp;", "&")
    query = {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}
    set_by(ann, fields_of(query))
    kept = ("target", "kind", "ratio", "thresholds", "metrics", "justification", "ceiling")
    assert [[rule[k] for k in kept] for rule in sorted(listed(served), key=_target)] == [
        [rule[k] for k in kept] for rule in sorted(before, key=_target)
    ]
    assert abs(listed(served)[0]["left_s"] - before[0]["left_s"]) < 60


def _target(rule: dict[str, Any]) -> str:
    return str(rule["target"])


# --- what is there ------------------------------------------------------------------------------


def acted(visitor: Visitor, rule: str, act: str, fields: dict[str, str]) -> Reply:
    form = visitor.get(f"/rules/{rule}/{act}")
    said = {**fields, "revision": field_of(form, "revision")}
    tried = visitor.post(f"/rules/{rule}/{act}/preview", said)
    assert tried.status == 200, text_of(tried)
    said |= {name: field_of(tried, name) for name in ("seal", "revision")}
    return visitor.post(f"/rules/{rule}/{act}", said, script=True)


def test_a_rule_is_extended_by_what_was_said(served: Served, ann: Visitor) -> None:
    made = put(served, target="etl", kind="hold", reason="x", **{"for": "1h"})
    reply = acted(ann, made["id"], "extend", {"by": "15m", "expires_at": ""})
    assert reply.headers["hx-trigger"] == "rules-changed"
    assert f"Rule {made['id']} on etl now ends at" in text_of(reply)
    (rule,) = listed(served)
    assert 4440 <= rule["left_s"] <= 4500
    undo = re.search(r"/rules/[^/]+/extend\?expires_at=([^\"]+)", reply.body.decode())
    assert undo is not None
    back = {"by": "", "expires_at": made["expires_at"]}
    assert acted(ann, made["id"], "extend", back).status == 200
    assert listed(served)[0]["left_s"] <= 3600


def test_only_what_differs_is_changed(served: Served, ann: Visitor) -> None:
    """R86: and its end stays."""
    made = put(served, target="etl", ratio=0.9, reason="x", **{"for": "1h"})
    reply = acted(ann, made["id"], "change", {"ratio": "0.5", "reason": "x"})
    assert "rejects 50% of the checks of etl" in text_of(reply)
    (rule,) = listed(served)
    assert (rule["ratio"], rule["reason"], rule["expires_at"]) == (0.5, "x", made["expires_at"])
    assert "change?reason=x&amp;ratio=0.9" in reply.body.decode()
    path = f"/rules/{made['id']}/change/preview"
    same = ann.post(path, {"ratio": "0.5", "reason": "x", "revision": str(rule["revision"])})
    assert same.status == 422 and "nothing to change yet" in text_of(same)


@pytest.mark.parametrize("act", ["extend", "change", "lift"])
def test_the_loser_of_a_race_sees_who_was_first_and_the_state_now(
    served: Served, ann: Visitor, act: str
) -> None:
    made = put(served, target="etl", ratio=0.9, reason="x", **{"for": "1h"})
    fields = {"by": "1h", "expires_at": "", "ratio": "0.2", "reason": "x"}
    path = f"/rules/{made['id']}/{act}"
    seen = {**fields, "revision": str(made["revision"])}
    tried = ann.post(f"{path}/preview", seen)
    seen["seal"] = field_of(tried, "seal")
    api(served, "PATCH", f"/v1/rules/{made['id']}", {"ratio": 0.7})
    reply = ann.post(path, seen, script=True)
    assert reply.status == 412 and "Changed meanwhile by uid:" in text_of(reply)
    assert "rejects 70% of the checks of etl" in text_of(reply)
    (rule,) = listed(served)
    assert rule["ratio"] == 0.7 and rule["expires_at"] == made["expires_at"]
    assert field_of(reply, "revision") == str(rule["revision"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"by": "soon", "expires_at": ""}, "must read like 250ms, 90s"),
        ({"by": "", "expires_at": ""}, "must read like 250ms, 90s"),
        ({"by": "999999d", "expires_at": ""}, "more than a calendar|at most 30"),
        ({"by": "", "expires_at": "2001-01-01T00:00"}, "is in the past"),
    ],
)
def test_an_impossible_end_is_reported_at_its_field(
    served: Served, ann: Visitor, fields: dict[str, str], words: str
) -> None:
    made = put(served, target="etl", kind="hold", reason="x")
    reply = ann.post(f"/rules/{made['id']}/extend/preview", fields)
    assert reply.status == 422 and re.search(words, text_of(reply)), text_of(reply)
    assert 'class="fault"' in reply.body.decode()


def test_a_rule_that_is_not_there_and_an_act_that_is_none(ann: Visitor) -> None:
    assert ann.get("/rules/nosuch/lift").status == 404
    assert "no rule 'nosuch'" in text_of(ann.get("/rules/nosuch/lift"))
    assert ann.get("/rules/nosuch/burn").status == 404


def test_a_forged_flash_says_nothing(served: Served, ann: Visitor) -> None:
    made = put(served, target="etl", kind="hold", reason="x")
    for done, rule in (("lift", made["id"]), ("set", "nosuch")):
        assert "data-flash" not in ann.get("/rules", done=done, rule=rule).body.decode()
    asked = ann.get("/rules", done="set", rule=made["id"], undo='"><script>')
    assert "<script>" not in asked.body.decode()


# --- a fleet ------------------------------------------------------------------------------------


def test_a_rule_of_the_fleet_shows_its_reach_and_is_suspended_here(tmp_path: Path) -> None:
    store = MemoryLog()
    with serving(LOOPS["asyncio"], tmp_path, Plan(fleet=store)) as served:
        ann = signed_in(served, OPERATOR)
        assert 'name="reach"' in ann.get("/rules/new").body.decode()
        assert "which agents it reaches is unknown" in text_of(
            ann.get("/rules/reach", reach="fleet")
        )
        assert "reach" in text_of(ann.get("/rules/reach", reach="shards:x"))
        shown = previewed(ann, {**HOLD, "reach": "fleet"})
        assert "For fleet: which agents it reaches is unknown" in text_of(shown)
        assert "Set this rule for fleet" in text_of(shown)
        set_by(ann, {**HOLD, "reach": "fleet", "id": "stop"})
        _follow(served, store)
        page = text_of(ann.get("/rules"))
        assert "stop for fleet" in page and "Suspend here" in page
        assert "is suspended here" in text_of(acted(ann, "stop", "suspend", {"reason": "etcd"}))
        page = text_of(ann.get("/rules"))
        assert "Suspended: by ops at this agent: etcd" in page and "Resume" in page
        dialog = ann.get("/rules/stop/resume")
        woken = ann.post("/rules/stop/resume", {"seal": field_of(dialog, "seal")}, script=True)
        assert "counts again here" in text_of(woken)
        assert [rule["state"] for rule in listed(served)] == ["in_force"]


def _follow(served: Served, store: MemoryLog) -> None:
    async def followed() -> None:
        items = ChangeShelf().read((await store.list([ITEMS])).entries)
        await served.rules.follow(items, PLACES)

    served.run_there(followed)


def test_an_agent_without_a_fleet_offers_no_reach(ann: Visitor) -> None:
    assert 'name="reach"' not in ann.get("/rules/new").body.decode()


# --- figures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left_s", "told"),
    [
        (0.2, "0 s"),
        (59.6, "1 min 00 s"),
        (872, "14 min 32 s"),
        (7440, "2 h 04 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_time_left_is_shown_to_the_second_while_it_is_short(left_s: float, told: str) -> None:
    assert left_text(left_s) == told


def row(client: str, low: float, high: float, how: str = "exact", by: str = "") -> ReplayRowDoc:
    return ReplayRowDoc("2026-01-01T00:00:00Z", "main", client, 10, 8, 2, None, low, high, how, by)


def test_a_replay_is_summed_up_by_client_and_says_how_sure_it_is() -> None:
    rows = [row("a", 1, 2, "bounded"), row("a", 1, 1), row("b", 8, 8, "exact", "r-1")]
    total = ReplayTotalDoc(30, 24, 10, 11)
    doc = ReplayDoc("proposed", "etl", "ratio", "", "", True, total, rows, 0, ["note"])
    found = replayed(doc)
    first, second = found.clients
    assert (first.client, first.checks, first.before, str(first.after)) == ("a", 20, 16, "2–3")
    assert first.how.startswith("exact; between")
    assert second.how == "as before: rule r-1 comes first"
    assert (first.checks_width, first.before_width, first.open_width) == (200.0, 160.0, 10.0)


def test_the_favored_client_is_unchanged_in_the_replay_of_a_favor() -> None:
    rows = [row("u1:migration", 0, 0), row("etl", 1, 1)]
    doc = ReplayDoc(
        "proposed", "all", "ratio", "", "", True, ReplayTotalDoc(20, 16, 1, 1), rows, 0, []
    )
    found = replayed(doc, "migration")
    assert [one.client for one in found.clients] == ["etl"]
    assert str(found.total.after) == "9"


def test_a_seal_is_of_what_is_said_and_not_of_its_order() -> None:
    assert seal({"a": 1, "b": 2}) == seal({"b": 2, "a": 1}) != seal({"a": 1, "b": 3})


def test_a_link_to_a_favor_names_both(served: Served) -> None:
    both = api(served, "POST", "/v1/rules/favor", {"target": "migration", "over": "etl"})["rules"]
    first, second = (msgspec.convert(rule, RuleDoc) for rule in both)
    for one, other in ((first, second), (second, first)):
        query = parse_qs(urlsplit(link_to(one, other)).query)
        assert query["kind"] == ["favor"] and query["over"] == ["etl"]
        assert query["target"] == ["migration:etl"]


# --- a field that is declared ---------------------------------------------------------------------

LINK = "https://tickets.example/42"
SOURCE = Path(__file__).parents[2] / "src" / "headgate"


def test_a_declared_field_of_a_rule_is_everywhere(served: Served, ann: Visitor) -> None:
    """`ticket` is named by the model and the document of a rule, and by nothing else: form, page,
    JSON, OpenAPI, CLI and history follow."""
    made = put(served, target="etl", kind="hold", reason="INC-1", ticket=LINK)
    assert made["ticket"] == LINK
    assert line(f"ticket: {LINK}") in rule_view(msgspec.convert(made, RuleDoc))
    assert f'<a href="{LINK}"' in ann.get("/rules").body.decode()
    form = ann.get("/rules/new", kind="hold", ticket=LINK).body.decode()
    assert f'name="ticket" id="f-ticket" value="{LINK}"' in form
    assert "Link to a ticket or an incident." in form
    assert parse_qs(urlsplit(link_to(msgspec.convert(made, RuleDoc))).query)["ticket"] == [LINK]

    path = f"/rules/{made['id']}/change"
    assert f'value="{LINK}"' in ann.get(path).body.decode()
    other = {"reason": "INC-1", "ticket": f"{LINK}0"}
    tried = ann.post(f"{path}/preview", {**other, "revision": str(made["revision"])})
    assert f"{LINK}0" in tried.body.decode()
    wrong = previewed(ann, {**HOLD, "ticket": "42"})
    assert wrong.status == 422 and "must be a link" in text_of(wrong)
    both = api(served, "POST", "/v1/rules/favor", {"target": "web", "ticket": LINK})
    assert [rule["ticket"] for rule in both["rules"]] == [LINK, LINK]
    kept = api(served, "GET", "/v1/changes/export")["document"]
    assert LINK in {rule.get("ticket") for rule in kept["rules"]}

    described = api(served, "GET", "/openapi.json")
    content = described["paths"]["/v1/rules"]["post"]["requestBody"]["content"]
    kinds = content["application/json"]["schema"]["oneOf"]
    assert all("ticket" in kind["properties"] for kind in kinds)
    assert "ticket" in described["components"]["schemas"]["RuleDoc"]["properties"]

    named = re.compile(r"""["'`]ticket["'`]|^    ticket: """, re.MULTILINE)
    files = [file for file in SOURCE.rglob("*") if file.suffix in (".py", ".html", ".js")]
    assert len([file for file in files if named.search(file.read_text(encoding="utf-8"))]) == 2
