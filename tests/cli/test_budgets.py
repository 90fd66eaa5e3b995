"""Budgets from the command line: what is sent to the agent, and what is shown of its answer."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from headgate.budgets.api import (
    BudgetDoc,
    PolicyChangeDoc,
    PolicyDoc,
    StatementExplainDoc,
    ViolationsDoc,
)
from headgate.budgets.compiled import read_compiled
from headgate.budgets.replay_routes import REPLAY_ROUTES
from headgate.budgets.routes import BUDGET_ROUTES
from headgate.cli.budget import TAKEN_NAMES
from headgate.cli.exits import FAILED
from headgate.cli.lint import read_rules
from headgate.present.words import moment
from headgate.settings.document import load_policy
from tests.budgets.budget_world import ETL, WEB, document
from tests.cli import builders
from tests.cli.conftest import Run
from tests.cli.scripted import Heard, ScriptedAgent, problem

MAIN = "/v1/budgets/main"
COUNTS: dict[str, Any] = {
    "admitted": 1200,
    "estimated_ms": 900.0,
    "charged_ms": 1000.0,
    "warned": {"burst": 3},
    "blocked": {"capacity": 40, "concurrency": 2},
    "blocked_early": 30,
    "delayed": 5,
    "delayed_ms": 400.0,
    "passed": 1,
    "sleeping": 2,
    "forgiven_ms": 10.0,
    "evicted": 0,
    "unpinned": 0,
    "last_violation_at": "2026-11-16T03:00:00Z",
}
BUCKET: dict[str, Any] = {
    "budget": "etl",
    "label": "tenant=acme",
    "debt_ms": 3900.0,
    "capacity_ms": 4000.0,
    "fill": 0.975,
    "running": 2,
    "max_workers": 2,
}
OUTLET: dict[str, Any] = {
    "where": "server a",
    "version": 12,
    "checksum": "0000abcd",
    "published_at": "2026-11-16T02:00:00Z",
    "is_current": True,
    "fault": None,
    "fault_for_s": None,
    "failures_total": 0,
    "health_fault": None,
}


def budget(name: str = "etl", **given: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "name": name,
        "mode": "enforce",
        "state": "enforcing",
        "says": "20% of the server, up to 200%·s of debt; for username=etl",
        "origin": "file",
        "settings": {**ETL, "name": name, "mode": "enforce"},
        "expires_at": None,
        "left_s": None,
        "counts": COUNTS,
        "buckets": [BUCKET],
        "buckets_total": 1,
        "fill": 0.975,
        "running": 2,
        "advice": [],
        "revision": 7,
    }
    return checked({**values, **given}, BudgetDoc)


def policy(**given: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "database": "main",
        "revision": 7,
        "mode_cap": "enforce",
        "source": "policy.toml",
        "changed_at_runtime": False,
        "document": document({**ETL, "mode": "enforce"}),
        "budgets": [budget()],
        "published": [OUTLET],
        "in_force_version": 12,
        "ledger": "the server's own (4711)",
        "read_fault": None,
        "rejection": None,
        "advice": [],
    }
    return checked({**values, **given}, PolicyDoc)


def changed(**given: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "database": "main",
        "revision": 8,
        "dry_run": False,
        "changed": True,
        "mode_cap": "enforce",
        "difference": [
            {
                "kind": "budget changed",
                "budget": "etl",
                "setting": "rate",
                "before": 20,
                "after": 30,
                "line": "etl: rate 20 → 30",
            }
        ],
        "difference_total": 1,
        "budget": None,
        "advice": [],
        "published": [OUTLET],
    }
    return checked({**values, **given}, PolicyChangeDoc)


def checked(values: dict[str, Any], kind: type) -> dict[str, Any]:
    """As the agent would say it."""
    built: dict[str, Any] = msgspec.to_builtins(msgspec.convert(values, kind))
    return built


@pytest.fixture
def agent(scripted: ScriptedAgent) -> ScriptedAgent:
    """Takes every change, and shows one policy of one budget."""
    etag = {"ETag": '"7"'}
    scripted.says(MAIN, policy(), headers=etag)
    scripted.says("/v1/budgets", {"databases": [policy()]})
    scripted.says(f"{MAIN}/etl", budget(), headers=etag)
    for method, path in [
        ("PUT", MAIN),
        ("PATCH", MAIN),
        ("PUT", f"{MAIN}/web"),
        ("PATCH", f"{MAIN}/etl"),
        ("DELETE", f"{MAIN}/etl"),
        ("POST", f"{MAIN}/etl/forgive"),
        ("POST", f"{MAIN}/rollback"),
    ]:
        scripted.says(path, changed(), method=method)
    return scripted


def sent(agent: ScriptedAgent) -> Heard:
    return agent.heard[-1]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(document(ETL, WEB)))
    return path


# --- looking ---------------------------------------------------------------------------------


def test_the_list_shows_how_full_who_is_rejected_and_what_to_do(
    agent: ScriptedAgent, run: Run
) -> None:
    for argv in (("budget", "list"), ("budget", "list", "main")):
        shown = run(*argv)
        assert shown.code == 0, shown.err
        for part in ("etl", "enforcing", "97%", "42", "20% of the server", "version 12 in force"):
            assert part in shown.out
        assert "headgate budget mode main etl warn" in shown.out
        assert "headgate budget forgive main etl" in shown.out


def test_what_is_wrong_is_printed_above_the_table(agent: ScriptedAgent, run: Run) -> None:
    broken = {**OUTLET, "is_current": False, "fault": "disk full", "fault_for_s": 90.0}
    agent.says(
        MAIN,
        policy(
            mode_cap="off",
            published=[broken],
            rejection="not sound",
            read_fault="server down",
            budgets=[budget(counts=None, fill=None, state="off")],
            advice=[f"warning budgets[0]: {n} [x]" for n in range(9)],
        ),
    )
    out = run("budget", "list", "main").out
    for part in (
        "CAPPED TO OFF",
        "headgate budget mode main --all enforce",
        "NOT PUBLISHED  The newest policy is not at server a for 90.0 s",
        "disk full",
        "REJECTED BY THE SERVER",
        "COUNTERS UNREADABLE",
        "and 4 more pieces of advice",
    ):
        assert part in out
    assert "40" not in out, "what is not known is no number"


def test_a_budget_that_would_reject_is_one_command_from_enforcing(
    agent: ScriptedAgent, run: Run
) -> None:
    warns = budget(mode="warn", state="warning", counts={**COUNTS, "blocked": {}})
    agent.says(MAIN, policy(budgets=[warns]))
    assert "headgate budget mode main etl enforce" in run("budget", "list", "main").out


def test_an_empty_policy_says_how_to_begin(agent: ScriptedAgent, run: Run) -> None:
    agent.says(MAIN, policy(budgets=[]))
    assert "headgate budget create main" in run("budget", "list", "main").out
    agent.says("/v1/budgets", {"databases": []})
    assert "[databases.NAME.traffic]" in run("budget", "list").out


def test_one_budget_is_shown_with_its_buckets(agent: ScriptedAgent, run: Run) -> None:
    out = run("budget", "show", "main", "etl").out
    for part in (
        "tenant=acme",
        "3.90 s of 4.00 s",
        "2 of 2",
        "blocked: 42, capacity 40, concurrency 2, 30 of them before planning",
        "delayed: 5, 400 ms in all, 2 now",
        "for username=etl",
        f"last violation at {moment('2026-11-16T03:00:00Z')}",
    ):
        assert part in out, part


def test_json_is_the_agents_own_document(agent: ScriptedAgent, run: Run) -> None:
    assert json.loads(run("budget", "list", "main", "--json").out) == policy()
    assert json.loads(run("budget", "show", "main", "etl", "--json").out) == budget()


def test_violations_are_shown_by_limit_and_minute(agent: ScriptedAgent, run: Run) -> None:
    row = {"budget": "etl", "what": "blocked", "limit": "capacity"}
    doc = {
        "database": "main",
        "since": "2026-11-16T02:00:00Z",
        "until": "2026-11-16T03:00:00Z",
        "budgets": [
            {
                "budget": "etl",
                "warned": {},
                "blocked": {"capacity": 5, "burst": 1},
                "delayed": 0,
                "last_at": "2026-11-16T02:59:00Z",
            }
        ],
        "minutes": [
            {**row, "at": "2026-11-16T02:58:00Z", "count": 5},
            {**row, "at": "2026-11-16T02:59:00Z", "limit": "burst", "count": 1},
        ],
        "whole": False,
    }
    agent.says(f"{MAIN}/violations", checked(doc, ViolationsDoc))
    out = run("budget", "violations", "main", "--since", "6h", "--budget", "etl").out
    assert sent(agent).query == {"since": "360m", "budget": "etl"}
    assert "capacity 5, burst 1" in out and "oldest are left out" in out
    agent.says(f"{MAIN}/violations", checked({**doc, "budgets": [], "minutes": []}, ViolationsDoc))
    assert "no violation" in run("budget", "violations", "main").out


def test_an_explanation_has_the_verdict_and_what_would_help(agent: ScriptedAgent, run: Run) -> None:
    """R144"""
    doc = {
        "verdict": "block",
        "decided_by": "etl",
        "limit": "capacity",
        "retry_after_ms": 150.0,
        "estimate_ms": 250.0,
        "estimate_p90_ms": 400.0,
        "tags": {"controller": "export"},
        "fingerprint": "00ff",
        "budgets": [
            {
                "budget": "etl",
                "label": "tenant=acme",
                "mode": "enforce",
                "fails": "capacity",
                "bucket": BUCKET,
            }
        ],
        "rules": [
            {
                "budget": "etl",
                "place": "budgets[0].rules[0]",
                "rule": "username=etl",
                "outcome": "applies",
                "why": "it matches",
            }
        ],
        "rules_total": 5,
        "needed": ["etl: wait 0.150 s"],
        "notes": ["a note"],
    }
    agent.says(f"{MAIN}/explain", checked(doc, StatementExplainDoc), method="POST")
    shown = run("budget", "explain", "main", "select 1", "--user", "etl", "--address", "10.0.0.1")
    assert sent(agent).body == {
        "sql": "select 1",
        "username": "etl",
        "remote_address": "10.0.0.1",
    }
    for part in (
        "IT WOULD BE BLOCKED  by budget etl, its capacity limit; it fits in 150 ms",
        "expected: 250 ms of CPU, at most 400 ms in 9 of 10 executions",
        "needed: etl: wait 0.150 s",
        "etl [tenant=acme]",
        "controller=export",
        "and 4 more rules",
        "note: a note",
    ):
        assert part in shown.out, part


def test_an_explanation_may_be_of_the_past(agent: ScriptedAgent, run: Run) -> None:
    run("budget", "explain", "main", "select 1", "--user", "etl", "--at", "2026-03-01T07:10+01:00")
    told = {"sql": "select 1", "username": "etl", "at": "2026-03-01T06:10:00Z"}
    assert sent(agent).body == told


def test_one_frame_of_top(agent: ScriptedAgent, run: Run) -> None:
    agent.says("/v1/status", builders.busy_status())
    shown = run("budget", "top", "main", "--once", "--interval", "0.2s")
    assert shown.code == 0 and "enforcing" in shown.out
    unknown = run("budget", "top", "other", "--once", "--interval", "0.2s")
    assert unknown.code == 1 and "budgets cannot be shown: the agent answers 404" in unknown.out
    assert run("budget", "top", "main", "--once", url="http://127.0.0.1:9").code == 20


# --- changing --------------------------------------------------------------------------------


def test_a_budget_is_made_of_words(agent: ScriptedAgent, run: Run) -> None:
    shown = run(
        *("budget", "create", "main", "web", "rate=20", "capacity=0.5", "in_transaction=block"),
        *("comment=INC 7", "--match", "username=web,tag.controller=export"),
        *("--match", "remote_address=10.0.0.0/8", "--each", "tag.tenant", "--for", "2h"),
    )
    assert shown.code == 0, shown.err
    heard = sent(agent)
    assert (heard.method, heard.path, heard.headers["if-none-match"]) == ("PUT", f"{MAIN}/web", "*")
    assert heard.body == {
        "rate": 20,
        "capacity": 0.5,
        "in_transaction": "block",
        "comment": "INC 7",
        "rules": [
            {
                "match": {"username": "web", "tag.controller": "export"},
                "each": ["tag.tenant"],
            },
            {"match": {"remote_address": "10.0.0.0/8"}, "each": ["tag.tenant"]},
        ],
        "for": "2h",
    }
    assert "CREATED" in shown.out and "published to server a, version 12" in shown.out


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("set", "main", "etl", "rat=5"), "did you mean 'rate'"),
        (("set", "main", "etl", "rate"), "SETTING=VALUE"),
        (("set", "main", "etl", "rate=much"), "must be a percentage such as 20%, or unset"),
        (("set", "main", "etl", "rate=nan"), "must be a percentage such as 20%"),
        (("set", "main", "etl", "rate=1", "rate=2"), "twice"),
        (("set", "main", "etl", "in_transaction=true"), "'charge', 'block'"),
        (("set", "main", "etl"), "nothing to change"),
        (("set", "main", "etl", "--match", "username"), "KEY=VALUE"),
        (("set", "main", "etl", "--match", "username=a,username=b"), "twice"),
        (("create", "main", "state", "rate=5"), "another name"),
        (("mode", "main", "etl"), "mode main off --all"),
        (("mode", "main", "etl", "on"), "mode main off --all"),
        (("mode", "main", "etl", "off", "--all"), "mode main off --all"),
    ],
)
def test_what_was_typed_wrongly_is_reported_and_not_sent(
    agent: ScriptedAgent, run: Run, argv: tuple[str, ...], told: str
) -> None:
    shown = run("budget", *argv)
    assert shown.code == 2 and told in " ".join(shown.err.split()), shown.err
    assert all(heard.method == "GET" for heard in agent.heard)


def test_every_keyword_of_the_api_is_no_name() -> None:
    routes = (*BUDGET_ROUTES, *REPLAY_ROUTES)
    paths = [r.path.split("/")[4] for r in routes if r.path.count("/") >= 4]
    assert {word for word in paths if word != "{name}"} == TAKEN_NAMES


@pytest.mark.parametrize(
    ("argv", "method", "path", "body"),
    [
        (("set", "main", "etl", "rate=30"), "PATCH", "/etl", {"rate": 30}),
        (("set", "main", "etl", "rate=12.5%"), "PATCH", "/etl", {"rate": "12.5%"}),
        (("set", "main", "etl", "capacity=2s"), "PATCH", "/etl", {"capacity": "2s"}),
        (("set", "main", "etl", "max_delay_s=50ms"), "PATCH", "/etl", {"max_delay_s": "50ms"}),
        (("set", "main", "etl", "burst=unset"), "PATCH", "/etl", {"burst": None}),
        (("mode", "main", "etl", "warn"), "PATCH", "/etl", {"mode": "warn"}),
        (("mode", "main", "off", "--all"), "PATCH", "", {"mode_cap": "off"}),
        (("delete", "main", "etl"), "DELETE", "/etl", None),
        (("forgive", "main", "etl"), "POST", "/etl/forgive", None),
    ],
)
def test_each_change_is_built_on_what_was_seen(
    agent: ScriptedAgent, run: Run, argv: tuple[str, ...], method: str, path: str, body: Any
) -> None:
    shown = run("budget", *argv, "--dry-run")
    assert shown.code == 0, shown.err
    heard = sent(agent)
    assert (heard.method, heard.path, heard.body) == (method, f"{MAIN}{path}", body)
    assert (heard.headers["if-match"], heard.query) == ('"7"', {"dry_run": "true"})


def test_the_switch_for_all_has_a_reach(agent: ScriptedAgent, run: Run) -> None:
    agent.says("/v1/budgets/all", changed(), method="PATCH")
    assert run("budget", "mode", "all", "off", "--all", "--fleet", "--yes").code == 0
    heard = sent(agent)
    assert (heard.path, heard.body) == ("/v1/budgets/all", {"mode_cap": "off"})
    assert heard.query["reach"] == "fleet"
    shown = run("budget", "mode", "main", "off", "--all", "--fleet")
    assert shown.code == 2 and "every database in it" in " ".join(shown.err.split())


def test_what_became_of_a_change_is_shown(agent: ScriptedAgent, run: Run) -> None:
    change = ("budget", "set", "main", "etl", "rate=30")
    assert "~ etl: rate 20 → 30" in run(*change).out
    agent.says(f"{MAIN}/etl", changed(dry_run=True), method="PATCH")
    assert "WOULD BE CHANGED" in run(*change, "--dry-run").out
    agent.says(f"{MAIN}/etl", changed(changed=False, difference=[]), method="PATCH")
    assert "UNCHANGED" in run(*change).out
    broken = {**OUTLET, "fault": "disk full", "fault_for_s": 0.0, "is_current": False}
    agent.says(f"{MAIN}/etl", changed(published=[broken]), method="PATCH")
    done = run(*change)
    assert "NOT PUBLISHED" in done.out
    assert done.code == FAILED, "kept, but no script may take it for done"
    off = {**OUTLET, "off": True}
    agent.says(f"{MAIN}/etl", changed(published=[off]), method="PATCH")
    assert "SWITCHED OFF AT THE SERVER" in run(*change).out
    agent.replies["PATCH", f"{MAIN}/etl"] = problem(422, "rejected", ["rate: 120 is more than 100"])
    rejected = run(*change)
    assert rejected.code == 1 and "rate: 120 is more than 100" in rejected.err


def test_surprises_are_printed_above_the_table(agent: ScriptedAgent, run: Run) -> None:
    others = {**OUTLET, "others_version": 23}
    given = {"is_off": True, "has_policy": False, "own_role": "headgate", "published": [others]}
    said = document({**ETL, "mode": "enforce"}, exempt_usernames=["monitor"])
    agent.says(MAIN, policy(document=said, **given))
    out = run("budget", "list", "main").out
    assert "exempt: monitor, headgate (the agent's own)" in out
    assert "SWITCHED OFF AT THE SERVER" in out
    assert "Version 23 at server a was published by another program; it is left alone" in out
    agent.says(f"{MAIN}/etl", budget(own_role="headgate"))
    assert "exempt: headgate (the agent's own)" in run("budget", "show", "main", "etl").out


def test_a_rule_for_everything_can_be_typed() -> None:
    assert read_rules(["*"], []) == [{}]
    assert read_rules(["*", "username=etl"], ["tag.tenant"]) == [
        {"each": ["tag.tenant"]},
        {"match": {"username": "etl"}, "each": ["tag.tenant"]},
    ]
    with pytest.raises(typer.BadParameter, match="--each is empty"):
        read_rules(["username=etl"], [""])


# --- files -----------------------------------------------------------------------------------


def test_a_file_is_validated_without_an_agent(run: Run, file: Path, tmp_path: Path) -> None:
    good = run("budget", "lint", str(file), url="http://127.0.0.1:9")
    assert good.code == 0
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[[budgets]]\nname = "etl"\n\n[[budgets]]\nname = "web"\nrat = 5\n')
    rejected = run("budget", "lint", str(wrong), url="http://127.0.0.1:9")
    assert rejected.code == 1 and ":6: fault budgets[1].rat: unknown setting" in rejected.out
    note = json.loads(run("budget", "lint", str(wrong), "--json").out)["notes"][0]
    assert (note["level"], note["line"]) == ("fault", 6)
    advised = tmp_path / "advised.json"
    advised.write_text(json.dumps({"budgets": [{"name": "x", "rate": 5}]}))
    assert run("budget", "lint", str(advised)).code == 0
    assert run("budget", "lint", str(advised), "--strict").code == 1
    assert run("budget", "lint", str(tmp_path / "none.toml")).code == 1


def test_a_file_is_compiled_for_a_server_without_an_agent(
    run: Run, file: Path, tmp_path: Path
) -> None:
    compiled = run("budget", "compile", str(file), url="http://127.0.0.1:9")
    assert compiled.code == 0
    read = read_compiled(b64decode(compiled.out.strip(), validate=True))
    assert read.version == 0
    assert [one.name for one in read.policy.budgets] == [one.name for one in load_policy(file).kept]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[[budgets]]\nname = "etl"\nrate = 120\n')
    rejected = run("budget", "compile", str(wrong))
    assert (rejected.code, rejected.out) == (2, "") and "line 3, budgets[0].rate" in rejected.err


def test_what_locks_out_or_is_too_large_for_a_parameter_is_not_compiled(
    run: Run, tmp_path: Path
) -> None:
    shut = tmp_path / "shut.json"
    shut.write_text(
        json.dumps({"budgets": [{"name": "x", "mode": "enforce", "max_workers": 0, "rules": [{}]}]})
    )
    rejected = run("budget", "compile", str(shut))
    assert (rejected.code, rejected.out) == (2, "") and "--anyway" in rejected.err
    assert run("budget", "compile", str(shut), "--anyway").code == 0
    large = tmp_path / "large.json"
    rules = [{"match": {"username": f"u{n}"}} for n in range(2000)]
    large.write_text(json.dumps({"budgets": [{"name": "x", "rules": rules}]}))
    rejected = run("budget", "compile", str(large))
    assert rejected.code == 2 and "headgate pg publish" in rejected.err
