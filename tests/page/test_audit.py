"""The audit page: differences that can be read, filters, bounds, and the fleet's revisions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from headgate.base.keyvalue import Put
from headgate.check.api import AuditDoc
from headgate.history.records import AuditEntry
from headgate.page.audit import AuditFilter
from headgate.present.changes import (
    MAX_AUDIT_LINES,
    SettingChange,
    audit_line,
    settings_changed,
)
from tests.fixtures.memory_log import MemoryLog
from tests.http.serving import LOOPS, Plan, Served, serving
from tests.page.visiting import Visitor, text_of

AT = "2026-03-01T07:10:30Z"


def lines(before: Any, after: Any) -> list[str]:
    return [
        " ".join(filter(None, (one.mark, *one[2:]))) for one in settings_changed(before, after, UTC)
    ]


# --- differences --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, {"threshold": 5}, ["+ threshold 5"]),
        ({"threshold": 5}, None, ["− threshold 5"]),
        ({"threshold": 5, "unit": "s"}, {"threshold": 7, "unit": "s"}, ["~ threshold 5 7"]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [2]}}, ["~ a b 1, 2 2"]),
        (
            {"budgets": [{"name": "etl", "rate": 1}, {"name": "web", "rate": 2}]},
            {"budgets": [{"name": "web", "rate": 3}]},
            ["− budget etl server share 1%", "~ budget web server share 2% 3%"],
        ),
        ("off", "warn", ["~ off warn"]),
        (None, {"until": "2026-03-01T07:10:30.584Z"}, ["+ until 1 Mar 07:10:30"]),
        (None, {"created_by": "ann", "ratio": 0.5}, ["+ ratio 50%"]),
        ({"a": 1}, {"a": 1}, []),
        (None, None, []),
    ],
)
def test_differences_are_shown_by_their_place(before: Any, after: Any, told: list[str]) -> None:
    assert lines(before, after) == told


def test_a_long_change_is_cut_and_says_so() -> None:
    after = {f"s{n}": "x" * 500 for n in range(200)}
    entry = audit_line(AuditDoc(AT, "ann", "policy.set", "main", None, after), UTC)
    assert len(entry.lines) == MAX_AUDIT_LINES and entry.more == 200 - MAX_AUDIT_LINES
    assert entry.lines[0] == SettingChange("+", "set", "s0", "", "x" * 160 + "…")
    assert entry.kept.endswith("characters more") and len(entry.kept) < 21_000
    assert (entry.day, entry.did) == ("Sunday 1 March 2026", "replaced the policy of")


def test_what_an_agent_notes_for_itself_is_left_out_and_times_are_times() -> None:
    before = {"ruled_s": 1.79486e9, "until_wall_s": 1_772_349_030.7, "lifted_by": "default"}
    after = {"ruled_s": 1.8e9, "until_wall_s": 1_772_352_630.7, "lifted_by": "ann", "max_age_s": 90}
    assert lines(before, after) == [
        "~ ends 1 Mar 07:10:30 1 Mar 08:10:30",
        "~ lifted by default ann",
        "+ max age 90 s",
    ]


def test_filters_match_parts_of_names_and_whole_actions() -> None:
    doc = AuditDoc(AT, "Ann", "rule.set", "r-1", None, {})
    assert (
        AuditFilter().is_all
        and AuditFilter().meets(doc)
        and AuditFilter("ann", "rule.set", "r-").meets(doc)
    )
    assert not AuditFilter(action="rule").meets(doc) and not AuditFilter(target="r-2").meets(doc)


# --- over HTTP ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    plan = Plan(fleet=MemoryLog())
    with serving(LOOPS["asyncio"], tmp_path_factory.mktemp("audit"), plan) as served:
        yield served


def put(served: Served, path: str, body: Any, method: str = "POST") -> Any:
    raw = json.dumps(body).encode()
    reply = served.ask(method, path, body=raw, unix=True, Content_Type="application/json")
    assert reply.status < 300, reply.body
    return reply.json


def test_nothing_changed_yet_is_said(tmp_path: Path) -> None:
    with serving(LOOPS["asyncio"], tmp_path) as alone:
        shown = text_of(Visitor(alone).get("/audit"))
    assert "Nothing has been changed yet." in shown and "Revisions of the fleet" not in shown


def test_a_change_is_shown_with_before_and_after(served: Served, ann: Visitor) -> None:
    for threshold in ("6s", "7s"):
        put(served, "/v1/databases/main/metrics/lag", {"threshold": threshold}, "PATCH")
    reply = ann.get("/audit", target="main/lag")
    assert "<del>6s</del> → <ins>7s</ins>" in reply.body.decode()
    shown = text_of(reply)
    assert "uid:" in shown and "changed metric main/lag" in shown and "changed: threshold" in shown


def test_filters_and_the_live_part(served: Served, ann: Visitor) -> None:
    rule = put(served, "/v1/rules", {"target": "etl", "kind": "hold", "reason": "<b>bold</b>"})
    part = ann.get("/audit", script=True, action="rule.set", target=rule["id"]).body.decode()
    assert part.lstrip().startswith('<div id="audit-live"') and "<html" not in part
    assert "&lt;b&gt;bold" in part and "<b>bold" not in part and "metric.set" not in part
    nothing = text_of(ann.get("/audit", who="nobody-at-all"))
    assert "changes is like that" in nothing


def test_many_changes_are_paged_by_their_number(served: Served, ann: Visitor) -> None:
    async def many() -> None:
        for n in range(120):
            entry = AuditEntry(1.0, "many", "metric.set", "main/many", None, {"n": n})
            await served.store.commit([], [Put("notes/many", b"{}")], audit=[entry])

    served.run_there(many)
    shown = ann.get("/audit").body.decode()
    assert shown.count('<tr id="entry-') == 100 and "/audit?limit=300" in shown
    more = ann.get("/audit", limit="300").body.decode()
    assert more.count('<tr id="entry-') >= 120 and "limit=1000" not in more


def test_the_fleets_revisions_are_listed_and_each_is_shown_in_full(
    served: Served, ann: Visitor
) -> None:
    put(served, "/v1/rules", {"target": "etl", "ratio": 0.5, "reach": "fleet"})
    shown = text_of(ann.get("/audit"))
    assert "Revisions of the fleet" in shown and "current" in shown
    part = ann.get("/audit/fleet/1", script=True)
    assert part.status == 200 and "rule added" in text_of(part)
    assert "Revision 1 of the fleet" in text_of(ann.get("/audit/fleet/1"))
    assert ann.get("/audit/fleet/999").status == 404
