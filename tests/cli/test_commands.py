"""The commands as they are called: exit codes, documents for programs, pages for people."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headgate.check.answers import STATUS
from headgate.check.model import Verdict
from headgate.cli import api
from headgate.cli.api import DEFAULT_TIMEOUT_S
from headgate.cli.change import _patience_s
from headgate.cli.exits import EXIT_CODES
from headgate.metrics.settings import METRIC_SETTINGS
from headgate.version import VERSION
from tests.cli import builders
from tests.cli.conftest import Run, headgate
from tests.cli.documents import STARVATION, SUSPECT, TIMELINE
from tests.cli.scripted import Reply, ScriptedAgent, problem
from tests.fixtures.agents import HOST_ONLY

CHECK = ("check", "--as", "etl:nightly", "--database", "main")
EXPLAINED = builders.explained(builders.rejection(), needed=["lag must fall from 7.2 s"])
EXPLAIN = ("explain", "--as", "etl:nightly", "--database", "main")
QUEUE = "/v1/databases/main/metrics/queue_depth"
REFUSED_URL = "http://127.0.0.1:1"


def said(verdict: Verdict) -> Reply:
    document = builders.answer() if verdict is Verdict.OK else builders.rejection(verdict.value)
    return Reply(document, STATUS[verdict])


# --- check -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        (*CHECK, "--wait"),
        ("wait", "--as", "etl", "--unavailable-after"),
        ("wait", "--as", "etl", "--max-wait"),
        ("run", "--as", "etl", "--every"),
        ("run", "--as", "etl", "--steady"),
        ("run", "--as", "etl", "--max-stop"),
        ("top", "--interval"),
        ("budget", "top", "main", "--interval"),
        ("fleet", "status", "--interval"),
        ("pg", "publish", "policy.toml", "--within"),
        ("demo", "--for"),
        ("debug", "bundle", "--since"),
        ("history", "--since"),
        ("budget", "violations", "main", "--since"),
        ("hold", "etl", "--reason", "x", "--for"),
    ],
)
def test_a_time_without_a_unit_is_rejected(
    scripted: ScriptedAgent, run: Run, argv: tuple[str, ...]
) -> None:
    ran = run(*argv, "30")
    assert ran.code == 2 and "which has no unit: 30s or 30m?" in " ".join(ran.err.split())
    assert scripted.heard == []


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_its_exit_code(
    scripted: ScriptedAgent, run: Run, verdict: Verdict
) -> None:
    """R29"""
    scripted.replies["GET", "/v1/check"] = said(verdict)
    ran = run(*CHECK)
    assert ran.code == EXIT_CODES[verdict]
    assert ran.out.startswith("ADMITTED" if verdict is Verdict.OK else "REJECTED")
    assert ran.err == ""


@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.THRESHOLD_EXCEEDED])
def test_verdicts_reach_the_shell(scripted: ScriptedAgent, verdict: Verdict) -> None:
    """R29, as a process of its own."""
    scripted.replies["GET", "/v1/check"] = said(verdict)
    ran = headgate(*CHECK, HEADGATE_URL=scripted.url)
    assert ran.returncode == EXIT_CODES[verdict]
    assert ran.stdout.startswith("ADMITTED" if verdict is Verdict.OK else "REJECTED")
    assert ran.stderr == ""


def test_without_an_agent_there_is_no_permission_to_work() -> None:
    ran = headgate(*CHECK, HEADGATE_URL=REFUSED_URL)
    assert ran.returncode == 20
    assert ran.stdout == ""
    assert ran.stderr.startswith("headgate: no agent answers at http://127.0.0.1:1: connection")


def test_a_verdict_of_a_newer_agent_is_a_rejection(scripted: ScriptedAgent, run: Run) -> None:
    scripted.says("/v1/check", builders.rejection("HELD_BY_BUDGET"), status=429)
    assert run(*CHECK).code == 19


@pytest.mark.parametrize(
    ("document", "status"),
    [
        (builders.answer(), 429),
        (builders.answer(admitted=False), 200),
        (builders.rejection(admitted=True), 429),
        (builders.answer(database="other"), 200),
    ],
)
def test_an_incoherent_leave_is_none(
    scripted: ScriptedAgent, run: Run, document: dict[str, Any], status: int
) -> None:
    """R28: OK is the only answer on which a client proceeds, and it must be a whole one."""
    scripted.says("/v1/check", document, status=status)
    ran = run(*CHECK)
    assert ran.code == 1
    assert "the agent's answer cannot be shown" in ran.err


def test_check_sends_the_metrics_it_was_given(scripted: ScriptedAgent, run: Run) -> None:
    scripted.says("/v1/check", builders.answer())
    run(*CHECK, "--metrics", "lag,self/threads_running")
    assert scripted.heard[0].query["metrics"] == "lag,self/threads_running"


def test_check_declares_what_the_work_costs(scripted: ScriptedAgent, run: Run) -> None:
    scripted.says("/v1/check", builders.answer())
    run(*CHECK, "--cost", "100")
    run(*CHECK)
    assert [heard.query.get("cost") for heard in scripted.heard] == ["100", None]


def test_check_charges_a_budget(scripted: ScriptedAgent, run: Run) -> None:
    """R146"""
    debit = builders.debit()
    scripted.says("/v1/check", builders.answer(budget=debit))
    ran = run(*CHECK, "--budget", "etl", "--cpu", "500ms")
    heard = scripted.heard[0].query
    assert (heard["budget"], heard["cpu_s"]) == ("etl", "0.5")
    assert "may work on main; 0.5 s of CPU charged to budget etl" in ran.out


def test_a_budget_that_warns_is_reported(scripted: ScriptedAgent, run: Run) -> None:
    debit = builders.debit(state="warned", note="budget etl warns: full")
    scripted.says("/v1/check", builders.answer(budget=debit))
    assert "; budget etl warns: full" in run(*CHECK, "--budget", "etl", "--cpu", "500ms").out


def test_a_cost_that_is_none_is_a_usage_error(scripted: ScriptedAgent, run: Run) -> None:
    scripted.replies["GET", "/v1/check"] = problem(400, "cost '0' must be a number above 0")
    ran = run(*CHECK, "--cost", "0")
    assert (ran.code, "cost '0' must be" in ran.err) == (2, True)
    assert run(*CHECK, "--cost", "many").code == 2


def test_explain_says_what_is_released_and_who_waits(scripted: ScriptedAgent, run: Run) -> None:
    reason = "main: the current allowance is used up"
    rejected = builders.rejection("PACED", reason=reason, metrics=[builders.metric()])
    scripted.says("/v1/explain", builders.explained(rejected, pace=builders.pace()))
    ran = run(*EXPLAIN)
    assert "would be REJECTED  PACED" in ran.out
    assert "12.3/s of cost are admitted" in ran.out


def test_check_prints_the_document_as_it_came(scripted: ScriptedAgent, run: Run) -> None:
    scripted.says("/v1/check", builders.rejection(), status=429)
    ran = run(*CHECK, "--json")
    assert ran.code == 10
    assert json.loads(ran.out) == builders.rejection()


def test_check_waits_until_admitted(scripted: ScriptedAgent, run: Run) -> None:
    replies = iter([Reply(builders.rejection(retry_after_ms=20), 429)] * 3 + [said(Verdict.OK)])
    scripted.replies["GET", "/v1/check"] = lambda _: next(replies)
    assert run(*CHECK, "--wait", "20s").code == 0
    assert len(scripted.heard) == 4


def test_check_does_not_retry_too_soon_nor_wait_in_vain(scripted: ScriptedAgent, run: Run) -> None:
    """R143: where the agent says an hour and half of one is left, the answer is given now."""
    scripted.says("/v1/check", builders.rejection(retry_after_ms=3_600_000), status=429)
    assert run(*CHECK, "--wait", "30m").code == 10
    assert len(scripted.heard) == 1


def test_check_waits_for_an_agent_that_is_restarted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headgate.cli import check

    monkeypatch.setattr(check, "RETRY_S", 0.02)
    ran = run(*CHECK, "--wait", "100ms", url=f"unix://{tmp_path}/none.sock")
    assert ran.code == 20


def test_a_name_that_cannot_be_one_is_a_usage_error(scripted: ScriptedAgent, run: Run) -> None:
    scripted.replies["GET", "/v1/check"] = problem(400, "client name 'a b' has odd letters")
    ran = run("check", "--as", "a b", "--database", "main")
    assert ran.code == 2
    assert "the agent answers 400: client name" in ran.err


def test_missing_options_are_a_usage_error(run: Run) -> None:
    ran = run("check", "--database", "main")
    assert ran.code == 2
    assert "--as" in ran.err


def test_check_explain_and_wait_take_the_same_names(
    scripted: ScriptedAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.says("/v1/check", builders.answer())
    assert run("check", "--as", "etl").code == 0
    assert scripted.heard[-1].query == {"app": "etl", "database": "main"}
    monkeypatch.setenv("HEADGATE_APP", "nightly")
    monkeypatch.setenv("HEADGATE_DATABASE", "orders")
    for command in ("check", "wait"):
        run(command)
        assert scripted.heard[-1].query["database"] == "orders"
        assert scripted.heard[-1].query["app"] == "nightly"


def test_the_token_is_never_printed(scripted: ScriptedAgent, run: Run) -> None:
    scripted.replies["GET", "/v1/status"] = problem(401, "this agent does not know the token")
    for argv in (("status", "--token", "hunter2hunter2"), ("status", "--token", "hunter2 x")):
        ran = run(*argv)
        assert ran.code in (1, 2)
        assert "hunter2" not in ran.out + ran.err


# --- idle databases ------------------------------------------------------------------------------


def without_value(cause: str) -> Reply:
    metrics = [builders.metric(), builders.absent("lag", cause=cause)]
    return Reply(builders.rejection("METRIC_UNAVAILABLE", metrics=metrics), 424)


def test_a_check_wakes_an_idle_database_and_waits_for_its_first_readings(
    scripted: ScriptedAgent, run: Run
) -> None:
    causes = ("hibernating", "warming_up", "never_read")
    replies = iter([*map(without_value, causes), said(Verdict.OK)])
    scripted.replies["GET", "/v1/check"] = lambda _: next(replies)
    ran = run(*CHECK)
    assert (ran.code, ran.out.split()[0]) == (0, "ADMITTED")
    assert ran.err == "headgate: main was idle; it wakes up\n"


def test_a_check_waits_no_longer_than_waking_takes(
    scripted: ScriptedAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.cli.check.WAKE_S", 0.5)
    scripted.replies["GET", "/v1/check"] = without_value("stale")
    ran = run(*CHECK)
    assert ran.code == EXIT_CODES[Verdict.METRIC_UNAVAILABLE]
    assert len(scripted.heard) > 1


@pytest.mark.parametrize("cause", ["failed", "never_read", "no_primary"])
def test_a_check_does_not_wait_for_what_is_not_idle(
    scripted: ScriptedAgent, run: Run, cause: str
) -> None:
    scripted.replies["GET", "/v1/check"] = without_value(cause)
    assert run(*CHECK).code == EXIT_CODES[Verdict.METRIC_UNAVAILABLE]
    assert len(scripted.heard) == 1


# --- scopes, and being sent elsewhere ----------------------------------------------------------


def wrong_agent(ask: str | None, **more: object) -> Reply:
    return Reply(builders.rejection("WRONG_AGENT", check_at=ask, metrics=[], **more), 421)


def test_check_and_explain_pass_on_the_scope(scripted: ScriptedAgent, run: Run) -> None:
    """R41"""
    scripted.says("/v1/check", builders.answer())
    scripted.says("/v1/explain", builders.explained(builders.answer()))
    for argv in (CHECK, EXPLAIN):
        assert run(*argv, "--scope", "shard").code == 0
        assert scripted.heard[-1].query["scope"] == "shard"


def test_check_goes_where_it_is_sent_and_says_so(scripted: ScriptedAgent, run: Run) -> None:
    """R37"""
    with ScriptedAgent().serving() as primary:
        scripted.replies["GET", "/v1/check"] = wrong_agent(primary.url)
        primary.says("/v1/check", builders.answer())
        ran = run(*CHECK, "--token", "hunter2hunter2")
        assert (ran.code, ran.out.split()[0]) == (0, "ADMITTED")
        assert ran.err == f"headgate: {scripted.url} sends us to {primary.url}\n"
        assert primary.heard[0].headers["authorization"] == "Bearer hunter2hunter2"
        assert primary.heard[0].query == scripted.heard[0].query


def test_check_uses_the_name_that_the_database_has_there(scripted: ScriptedAgent, run: Run) -> None:
    with ScriptedAgent().serving() as primary:
        sent = wrong_agent(primary.url, check_at_database="orders")
        scripted.replies["GET", "/v1/check"] = sent
        primary.says("/v1/check", builders.answer())
        assert run(*CHECK).code == 0
        assert primary.heard[0].query["database"] == "orders"


@pytest.mark.parametrize("where", [None, "unix:///x", "http://u:p@h"])
def test_check_that_is_sent_nowhere_is_rejected(
    scripted: ScriptedAgent, run: Run, where: str | None
) -> None:
    scripted.replies["GET", "/v1/check"] = wrong_agent(where)
    ran = run(*CHECK)
    assert (ran.code, ran.err) == (15, "")
    assert ran.out.startswith("REJECTED")


def test_check_does_not_run_in_circles(scripted: ScriptedAgent, run: Run) -> None:
    with ScriptedAgent().serving() as other:
        scripted.replies["GET", "/v1/check"] = wrong_agent(other.url)
        other.replies["GET", "/v1/check"] = wrong_agent(scripted.url)
        assert run(*CHECK).code == 15
        assert (len(scripted.heard), len(other.heard)) == (2, 1)


def test_check_that_is_sent_to_nobody_has_no_permission(scripted: ScriptedAgent, run: Run) -> None:
    scripted.replies["GET", "/v1/check"] = wrong_agent(REFUSED_URL)
    ran = run(*CHECK)
    assert ran.code == 20
    assert "no agent answers at http://127.0.0.1:1" in ran.err


# --- the shard ---------------------------------------------------------------------------------

SHARD = "/v1/databases/main/shard"


@pytest.mark.parametrize("argv", [("shard", "main"), ("shard", "show", "main")])
def test_shard_draws_its_tree(scripted: ScriptedAgent, run: Run, argv: tuple[str, ...]) -> None:
    scripted.says(SHARD, builders.troubled_shard())
    ran = run(*argv)
    assert (ran.code, ran.err) == (0, "")
    assert "├─ db-b" in ran.out
    for more in ((*argv, "--json"), ("shard", "--json", "main")):
        assert json.loads(run(*more).out) == builders.troubled_shard()


def test_shard_without_a_name_is_helpful(run: Run) -> None:
    ran = run("shard", "--help")
    assert ran.code == 0
    assert "skip" in ran.out and "add-peer" in ran.out
    assert run("shard").code in (0, 2)


def test_a_member_is_skipped_and_counts_again(scripted: ScriptedAgent, run: Run) -> None:
    path = f"{SHARD}/skips/db-b"
    two = builders.shard(members=[builders.primary(), builders.member(), builders.member("db-c")])
    scripted.says(SHARD, two)
    scripted.says(path, builders.shard(), method="PUT")
    scripted.says(path, builders.shard(), method="DELETE")
    ran = run("shard", "skip", "main", "db-b", "--for", "2h", "--reason", "rebuild")
    assert "SKIPPED  db-b of main for 2h: rebuild" in ran.out
    assert scripted.heard[-1].body == {"for": "2h", "reason": "rebuild"}
    assert "in force here" not in ran.out
    says = "in force here; 2 of 2 replicas have a copy"
    kept = {**builders.shard(), "copies": {"says": says}}
    scripted.says(path, kept, method="PUT")
    ran = run("shard", "skip", "main", "db-b", "--reason", "x", "--for", "1m30s")
    assert ran.out.splitlines()[-1] == says
    assert scripted.heard[-1].body == {"for": "90s", "reason": "x"}
    ran = run("shard", "unskip", "main", "db-b")
    assert (ran.code, scripted.heard[-1].method) == (0, "DELETE")
    assert "COUNTS AGAIN  db-b of main" in ran.out
    assert "WOULD COUNT AGAIN" in run("shard", "unskip", "main", "db-b", "--dry-run").out
    assert scripted.heard[-1].query == {"dry_run": "true"}


def test_skipping_the_last_replica_warns_and_asks_first(scripted: ScriptedAgent, run: Run) -> None:
    path = f"{SHARD}/skips/db-b"
    scripted.says(SHARD, builders.shard(members=[builders.primary(), builders.member()]))
    scripted.says(path, builders.shard(), method="PUT")
    ran = run("shard", "skip", "main", "db-b", "--reason", "rebuild")
    assert ran.code == 2 and "add --yes to confirm" in ran.err
    told = " ".join(ran.err.split())
    assert "db-b is the only replica of commerce/-80 that counts" in told
    assert "headgate metrics set main lag empty=admit --for 30m" in told
    assert [one.method for one in scripted.heard] == ["GET"]
    assert run("shard", "skip", "main", "db-b", "--reason", "rebuild", "--yes").code == 0
    ran = run("shard", "skip", "main", "db-b", "--reason", "rebuild", "--dry-run")
    assert (ran.code, scripted.heard[-1].query) == (0, {"dry_run": "true"})
    assert "only replica" in " ".join(ran.err.split()) and "WOULD SKIP" in ran.out


def test_a_skip_needs_a_reason_and_a_time(scripted: ScriptedAgent, run: Run) -> None:
    assert run("shard", "skip", "main", "db-b").code == 2
    for text in ("", "soon", "-1", "1w", "30"):
        ran = run("shard", "skip", "main", "db-b", "--reason", "x", "--for", text)
        told = "30s or 30m?" if text == "30" else "must read like 250ms, 90s, 30m"
        assert (ran.code, told in " ".join(ran.err.split())) == (2, True)
    assert scripted.heard == []


def test_a_switchover_is_announced_and_taken_back(scripted: ScriptedAgent, run: Run) -> None:
    path = f"{SHARD}/handover"
    scripted.says(path, builders.shard(), method="POST")
    scripted.says(path, builders.shard(), method="DELETE")
    ran = run("shard", "handover", "main")
    assert (ran.code, scripted.heard[-1].body) == (0, {"for": "60s", "reason": ""})
    assert "HANDING OVER  main: checks at shard scope are rejected for 60s" in ran.out
    run("shard", "handover", "main", "--for", "5m", "--reason", "upgrade")
    assert scripted.heard[-1].body == {"for": "5m", "reason": "upgrade"}
    ran = run("shard", "take-back", "main")
    assert (ran.code, scripted.heard[-1].method) == (0, "DELETE")
    assert "TAKEN BACK" in ran.out


def test_peers_come_and_go(scripted: ScriptedAgent, run: Run) -> None:
    path = f"{SHARD}/peers/db-c"
    scripted.says(path, builders.shard(), method="PUT")
    scripted.says(path, builders.shard(), method="DELETE")
    assert run("shard", "add-peer", "main", "db-c", "https://db-c:8087").code == 0
    assert scripted.heard[-1].body == {"url": "https://db-c:8087", "database": "main"}
    run("shard", "add-peer", "main", "db-c", "https://db-c:8087", "--peer-database", "orders")
    assert scripted.heard[-1].body == {"url": "https://db-c:8087", "database": "orders"}
    ran = run("shard", "remove-peer", "main", "db-c")
    assert "REMOVED  db-c from the shard of main" in ran.out


def test_a_change_that_is_rejected_says_why(scripted: ScriptedAgent, run: Run) -> None:
    scripted.replies["DELETE", f"{SHARD}/skips/db-z"] = problem(404, "db-z is not skipped")
    ran = run("shard", "unskip", "main", "db-z")
    assert ran.code == 1
    assert "db-z is not skipped" in ran.err


def test_wake_wakes_and_status_does_not(scripted: ScriptedAgent, run: Run) -> None:
    """R58"""
    woken = {"database": "main", "activity": "awake"}
    scripted.says("/v1/databases/main/wake", woken, method="POST")
    assert "AWAKE  main is being measured" in run("wake", "main").out
    assert json.loads(run("wake", "main", "--json").out) == woken
    scripted.heard.clear()
    scripted.says("/v1/status", builders.status())
    run("status")
    assert [heard.method for heard in scripted.heard] == ["GET"]


def test_reload_shows_what_is_in_force_and_what_waits(scripted: ScriptedAgent, run: Run) -> None:
    """B8: and how a drop is confirmed."""
    done = {"settings": "/etc/h.toml", "databases": ["main"], "waiting": ["agent", "peers"]}
    scripted.says("/v1/reload", done, method="POST")
    ran = run("reload", "--drop", "old", "--drop", "older", "--whole")
    assert "RELOADED  /etc/h.toml: main; changes in [agent], [peers] wait for a restart" in ran.out
    assert scripted.heard[-1].body == {"drop": ["old", "older"], "whole": True}
    lost = ["databases.old: is not in the file"]
    scripted.replies["POST", "/v1/reload"] = problem(422, "rejected", faults=lost)
    ran = run("reload")
    assert ran.code == 1 and "databases.old: is not in the file" in ran.err


# --- looking ---------------------------------------------------------------------------------


AUDIT = {
    "at": "2026-03-01T07:40:12Z",
    "who": "alice",
    "action": "metric.set",
    "target": "main/lag",
    "before": None,
    "after": {"threshold": 9},
}
LOOKS: list[tuple[tuple[str, ...], str, Any, str]] = [
    (("status",), "/v1/status", builders.busy_status(), "BREACHED"),
    (EXPLAIN, "/v1/explain", EXPLAINED, "lag must fall from 7.2 s"),
    (("clients",), "/v1/clients", {"clients": [builders.client()]}, "etl:nightly"),
    (("history", "etl"), "/v1/history/timeline", TIMELINE, "mostly throttled between"),
    (("starvation",), "/v1/starvation", STARVATION, "STARVED  etl"),
    (("clients", "--rogue"), "/v1/rogues", {"suspects": [SUSPECT], "faults": []}, "alice"),
    (("audit",), "/v1/audit", {"audit": [AUDIT]}, "threshold: 9"),
    (("metrics", "list"), "/v1/metrics", {"metrics": [builders.metric_view()]}, "builtin"),
    (("metrics", "show", "main", "queue_depth"), QUEUE, builders.metric_view(), "probed every"),
]


@pytest.mark.parametrize(("argv", "path", "document", "told"), LOOKS, ids=lambda a: str(a)[:24])
def test_looking_shows_a_page_or_the_document(
    scripted: ScriptedAgent,
    run: Run,
    argv: tuple[str, ...],
    path: str,
    document: Any,
    told: str,
) -> None:
    scripted.says(path, document)
    page = run(*argv)
    assert (page.code, page.err) == (0, "")
    assert told in page.out
    raw = run(*argv, "--json")
    assert json.loads(raw.out) == document


def test_looking_at_an_agent_that_is_away_fails_by_name(run: Run) -> None:
    for argv, *_ in LOOKS:
        assert run(*argv, url=REFUSED_URL).code == 20


UNTHROTTLED = {
    "client": "etl",
    "databases": ["main"],
    "started_at": "2026-03-01T07:00:30Z",
    "duration_s": 53.0,
    "ended_s_ago": 600.0,
    "pieces": 1421,
}


def test_history_and_audit_pass_on_what_was_requested(scripted: ScriptedAgent, run: Run) -> None:
    scripted.says("/v1/history/timeline", TIMELINE)
    scripted.says("/v1/unthrottled", {"unthrottled": [UNTHROTTLED]})
    scripted.says("/v1/audit", {"audit": []})
    assert "without a throttler from" in run("history", "etl", "--since", "7d").out
    run("audit", "--limit", "5")
    timeline, unthrottled, audit = (heard.query for heard in scripted.heard)
    assert timeline == {"app": "etl", "since": "10080m", "step": "720m", "database": "main"}
    assert unthrottled == {"app": "etl", "since": "10080m"}
    assert audit == {"limit": "5"}


def test_a_document_of_another_version_is_named_not_a_traceback(
    scripted: ScriptedAgent, run: Run
) -> None:
    scripted.says("/v1/status", {"agent": "db1"})
    ran = run("status")
    assert ran.code == 1
    assert "the agent's answer cannot be shown: version is missing" in ran.err
    assert run("status", "--json").code == 0


# --- metrics ---------------------------------------------------------------------------------


def test_add_sends_only_what_was_given(scripted: ScriptedAgent, run: Run) -> None:
    """R1."""
    scripted.says(QUEUE, builders.metric_view("queue_depth"), method="PUT")
    ran = run(
        *("metrics", "add", "main", "queue_depth", "sql=select count(*) from jobs"),
        *("threshold=1000", "interval_s=1", "timeout_s=200ms", "comparison=>="),
        *("debounce=3 of 5", "absence=hold", "hold_s=30s", "mode=rate", "max_age_s=9", "unit=5"),
    )
    assert (ran.code, ran.err) == (0, "")
    assert scripted.heard[-1].body == {
        "sql": "select count(*) from jobs",
        "threshold": 1000,
        "interval_s": 1,
        "timeout_s": "200ms",
        "comparison": ">=",
        "debounce": "3 of 5",
        "absence": "hold",
        "hold_s": "30s",
        "mode": "rate",
        "max_age_s": 9,
        "unit": "5",
    }


def test_add_takes_other_sources_and_options(scripted: ScriptedAgent, run: Run) -> None:
    path = "/v1/databases/main/metrics/x"
    scripted.says(path, builders.metric_view("x"), method="PUT")
    given = {
        ("url=http://e/m", 'series=up{a="b"}'): {"url": "http://e/m", "series": 'up{a="b"}'},
        ("url=http://e/m", "pointer=/a"): {"url": "http://e/m", "pointer": "/a"},
        ("command=wc -l 'a b'",): {"command": ["wc", "-l", "a b"]},
        ("plugin=p", "options.n=3", 'options.t=["a"]', "options.s=x=y"): {
            "plugin": "p",
            "options": {"n": 3, "t": ["a"], "s": "x=y"},
        },
        ("threshold=0", "enabled=false"): {"threshold": 0, "enabled": False},
        ("rollup_labels.region=7",): {"rollup_labels": {"region": "7"}},
        ("threshold=80%", "pace_target=50%"): {"threshold": "80%", "pace_target": "50%"},
    }
    for argv, body in given.items():
        assert run("metrics", "add", "main", "x", *argv).code == 0
        assert scripted.heard[-1].body == body


def test_add_does_not_replace_what_is_there(scripted: ScriptedAgent, run: Run) -> None:
    scripted.says(QUEUE, builders.metric_view("queue_depth"))
    ran = run("metrics", "add", "main", "queue_depth", "sql=select 1", "threshold=1")
    assert ran.code == 1
    assert "is there already; change it with `headgate metrics set main queue_depth" in ran.err
    assert [heard.method for heard in scripted.heard] == ["GET"]


def test_rejected_settings_are_reported_with_every_fault(scripted: ScriptedAgent, run: Run) -> None:
    faults = ["metrics.queue_depth.threshold: is missing (or 0)"]
    scripted.replies["PUT", QUEUE] = problem(422, "these settings are rejected", faults)
    ran = run("metrics", "add", "main", "queue_depth", "sql=select 1")
    assert ran.code == 1
    assert faults[0] in ran.err


def test_set_changes_only_what_was_given_and_builds_on_what_it_saw(
    scripted: ScriptedAgent, run: Run
) -> None:
    seen = builders.metric_view("queue_depth", revision=3, settings={"threshold": 1000})
    scripted.says(QUEUE, seen, headers={"ETag": '"3"'})
    after = builders.metric_view("queue_depth", settings={"threshold": 500})
    scripted.says(QUEUE, after, method="PATCH")
    ran = run("metrics", "set", "main", "queue_depth", "threshold=500", "debounce=unset")
    assert "threshold: 1000 → 500" in ran.out
    patch = scripted.heard[-1]
    assert patch.body == {"threshold": 500, "debounce": None}
    assert patch.headers["if-match"] == '"3"'


def test_set_sends_only_the_options_that_were_named(scripted: ScriptedAgent, run: Run) -> None:
    """The agent merges them: what it shows of a secret one must not be sent back."""
    settings = {"options": {"method": "native", "token": "…"}}
    scripted.says(QUEUE, builders.metric_view(settings=settings))
    scripted.says(QUEUE, builders.metric_view(), method="PATCH")
    run("metrics", "set", "main", "queue_depth", "options.method=heartbeat")
    assert scripted.heard[-1].body == {"options": {"method": "heartbeat"}}


def test_a_change_for_the_agents_own_host_is_shown_as_its_own(
    scripted: ScriptedAgent, run: Run
) -> None:
    after = builders.metric_view("queue_depth", settings={"threshold": 500})
    scripted.says(QUEUE, after, method="PATCH")
    ran = run("metrics", "set", "main", "queue_depth", "threshold=500", "--host", "db1", "--yes")
    assert ran.code == 0 and "SET  main/queue_depth" in ran.out
    assert scripted.heard[-1].query["reach"] == "host:db1"


def test_revert_lets_the_file_decide_again(scripted: ScriptedAgent, run: Run) -> None:
    seen = builders.metric_view("queue_depth", revision=3, settings={"threshold": 9})
    scripted.says(QUEUE, seen, headers={"ETag": '"3"'})
    after = builders.metric_view("queue_depth", revision=4, settings={"threshold": 5})
    scripted.says(f"{QUEUE}/revert", after, method="POST")
    ran = run("metrics", "revert", "main", "queue_depth")
    assert "REVERTED  main/queue_depth" in ran.out and "threshold: 9 → 5" in ran.out
    assert (scripted.heard[-1].method, scripted.heard[-1].headers["if-match"]) == ("POST", '"3"')


def test_revert_brings_back_what_was_removed(scripted: ScriptedAgent, run: Run) -> None:
    scripted.says(f"{QUEUE}/revert", builders.metric_view("queue_depth"), method="POST")
    ran = run("metrics", "revert", "main", "queue_depth")
    assert (ran.code, "if-match" in scripted.heard[-1].headers) == (0, False)


@pytest.mark.parametrize(
    ("given_s", "waits_s"), [(None, DEFAULT_TIMEOUT_S), (1.0, DEFAULT_TIMEOUT_S), (20.0, 22.0)]
)
def test_a_dry_run_waits_for_its_probe(given_s: float | None, waits_s: float) -> None:
    assert _patience_s(given_s) == waits_s


def test_a_dry_run_outwaits_the_timeout_the_metric_has(
    scripted: ScriptedAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given up at the usual time, the answer to `set --dry-run` would never be seen."""
    patience_s: list[float] = []

    def connect(url: str | None, token: str | None, *, timeout_s: float = 5.0) -> api.Api:
        patience_s.append(timeout_s)
        return real(url, token, timeout_s=timeout_s)

    real = api.connect
    monkeypatch.setattr(api, "connect", connect)
    scripted.says(QUEUE, builders.metric_view("queue_depth", timeout_s=20.0))
    scripted.says(QUEUE, builders.metric_view("queue_depth"), method="PATCH")
    run("metrics", "set", "main", "queue_depth", "threshold=5", "--dry-run")
    assert patience_s == [5.0, 22.0]


def test_a_dry_run_prints_what_it_would_have_done(scripted: ScriptedAgent, run: Run) -> None:
    """R140"""
    says = "would have rejected between 3 and 9 of 40 checks of the last 60 minutes (now: 1)"
    counts = {"minutes": 60, "checks": 40, "at_least": 3, "at_most": 9, "rejected": 1, "unknown": 0}
    replay = {**counts, "says": says}
    scripted.says(QUEUE, builders.metric_view("queue_depth"))
    view = {**builders.metric_view("queue_depth"), "replay": replay}
    scripted.says(QUEUE, view, method="PATCH")
    ran = run("metrics", "set", "main", "queue_depth", "threshold=5", "--dry-run")
    assert says in ran.out


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("treshold=5",), "unknown setting 'treshold'; did you mean 'threshold'?"),
        (("threshold",), "must read SETTING=VALUE, such as threshold=10s"),
        (
            ("threshold=much",),
            "must be a number, or a text with a unit: 50ms, 80%",
        ),
        (("pace=yes",), "pace must be true or false, not a string, or unset"),
        (
            ("interval_s=9h",),
            "interval_s is '9h', must be at least 10ms and at most 1h",
        ),
        (("threshold=5", "threshold=6"), "threshold is given twice; say it once"),
        (("threshold=5", "--for", "30"), "is 30, which has no unit: 30s or 30m?"),
    ],
)
def test_what_was_typed_wrongly_is_reported_and_not_sent(
    scripted: ScriptedAgent, run: Run, argv: tuple[str, ...], told: str
) -> None:
    ran = run("metrics", "set", "main", "queue_depth", *argv)
    assert ran.code == 2 and told in " ".join(ran.err.split()), ran.err
    assert scripted.heard == []


def test_help_lists_the_settings(run: Run) -> None:
    shown = run("metrics", "set", "--help").out
    assert [name for name in METRIC_SETTINGS if f"\n    {name} " not in shown] == []


def test_the_version_is_an_option_too(run: Run) -> None:
    assert run("--version").out == run("version").out == f"headgate {VERSION}\n"


def test_set_without_a_setting_is_a_usage_error(scripted: ScriptedAgent, run: Run) -> None:
    ran = run("metrics", "set", "main", "queue_depth")
    assert ran.code == 2
    assert "nothing to set" in ran.err
    assert scripted.heard == []


def test_a_change_that_another_user_made_in_between_is_not_overwritten(
    scripted: ScriptedAgent, run: Run
) -> None:
    scripted.says(QUEUE, builders.metric_view(revision=3))
    scripted.replies["PATCH", QUEUE] = problem(412, "is at revision 4, not 3: look again")
    ran = run("metrics", "set", "main", "queue_depth", "threshold=5")
    assert ran.code == 1
    assert "revision 4, not 3" in ran.err
    assert scripted.heard[-1].headers["if-match"] == '"3"'


def test_a_dry_run_says_so_and_requests_one(scripted: ScriptedAgent, run: Run) -> None:
    """R140."""
    scripted.says(QUEUE, builders.metric_view("queue_depth"), method="PUT")
    argv = ("metrics", "add", "main", "queue_depth", "sql=select 1", "threshold=1")
    ran = run(*argv, "--dry-run")
    assert "dry run: nothing was changed" in ran.out
    assert scripted.heard[-1].query == {"dry_run": "true"}


def test_remove_needs_a_yes(scripted: ScriptedAgent, run: Run) -> None:
    scripted.says(QUEUE, builders.metric_view("queue_depth", revision=2))
    removed = builders.removed_metric("queue_depth")
    scripted.says(QUEUE, removed, method="DELETE")
    unsure = run("metrics", "remove", "main", "queue_depth")
    assert unsure.code == 2
    assert "add --yes" in unsure.err
    assert [heard.method for heard in scripted.heard] == ["GET"]
    sure = run("metrics", "remove", "main", "queue_depth", "--yes")
    assert "REMOVED  main/queue_depth" in sure.out
    assert scripted.heard[-1].headers["if-match"] == '"2"'


def test_a_change_of_a_metric_may_end(scripted: ScriptedAgent, run: Run) -> None:
    """R155"""
    scripted.says(QUEUE, builders.metric_view("queue_depth"))
    told = "warning queue_depth: ends at 2026-03-01T08:00:00Z, after 1 h"
    end = {"expires_at": "2026-03-01T08:00:00Z", "advice": [told]}
    for method in ("PATCH", "PUT"):
        scripted.says(QUEUE, builders.metric_view("queue_depth", **end), method=method)
    scripted.says(QUEUE, builders.removed_metric("queue_depth", **end), method="DELETE")
    ran = run("metrics", "set", "main", "queue_depth", "threshold=9", "--for", "2h")
    assert scripted.heard[-1].body == {"threshold": 9, "for": "2h"}
    assert "ends at 2026-03-01" in ran.out and "after 1 h" in ran.out
    run("metrics", "set", "main", "queue_depth", "--for", "never")
    assert scripted.heard[-1].body == {"for": "never"}
    ran = run("metrics", "remove", "main", "queue_depth", "--yes", "--for", "30m")
    assert scripted.heard[-1].query == {"for": "30m"}
    assert "REMOVED  main/queue_depth" in ran.out and "ends at 2026-03-01" in ran.out


def test_a_metric_that_is_not_there_cannot_be_removed(scripted: ScriptedAgent, run: Run) -> None:
    scripted.replies["GET", QUEUE] = problem(404, "no metric 'queue_depth' on main")
    ran = run("metrics", "remove", "main", "queue_depth", "--yes")
    assert ran.code == 1
    assert "no metric 'queue_depth' on main" in ran.err


# --- token, version, help --------------------------------------------------------------------


def test_a_token_comes_with_settings_that_have_only_its_digest(run: Run) -> None:
    import hashlib

    made = json.loads(run("token", "--name", "ci", "--role", "viewer", "--json").out)
    assert made["sha256"] == hashlib.sha256(made["token"].encode()).hexdigest()
    text = run("token", "--name", 'a "b"').out
    [token] = [line.split(": ")[1] for line in text.splitlines() if line.startswith("token,")]
    settings = tomllib.loads(text[text.index("[[tokens]]") :])["tokens"][0]
    assert settings["name"] == 'a "b"'
    assert settings["sha256"] == hashlib.sha256(token.encode()).hexdigest()
    assert token not in text[text.index("[[tokens]]") :]
    assert run("token", "--role", "root").code == 2


def test_the_version_is_shown(run: Run) -> None:
    assert run("version").out == f"headgate {VERSION}\n"
    assert json.loads(run("version", "--json").out) == {"version": VERSION}


def test_help_is_complete() -> None:
    """What it costs, bench/bounds.py says."""
    ran = headgate("--help")
    assert ran.returncode == 0
    for name in ("check", "explain", "top", "status", "metrics", "agent", "lint", "token"):
        assert name in ran.stdout


def test_help_loads_nothing_that_only_commands_need() -> None:
    code = (
        "import sys\nimport headgate.__main__\n"
        "heavy = {'json', 'ssl', 'socket', 'rich.console', 'msgspec', 'asyncio',"
        " 'headgate.settings', 'headgate.check.decide', 'headgate.app'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_an_admission_loads_neither_what_draws_nor_what_decides(scripted: ScriptedAgent) -> None:
    """A job may start with it: it is the command that has to be fast."""
    scripted.replies["GET", "/v1/check"] = said(Verdict.OK)
    code = (
        "import atexit, sys\nfrom headgate.__main__ import main\n"
        "heavy = {'asyncio', 'rich.console', 'ssl', 'headgate.check.model'}\n"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules))))\n"
        f"sys.argv = {['headgate', *CHECK, '--url', scripted.url]!r}\nmain()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ},  # Without the width that a debugger's readline sets behind it.
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == ["ADMITTED  etl:nightly may work on main", "[]"]


def test_an_admission_is_the_same_line_with_colors(
    scripted: ScriptedAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.replies["GET", "/v1/check"] = said(Verdict.OK)
    plain = run(*CHECK).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    colored = run(*CHECK).out
    assert colored != plain and re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_without_typer_the_remedy_is_named() -> None:
    """The SDK installs without it, and so does the `headgate` program."""
    code = "import sys; sys.modules['typer'] = None; import headgate.__main__"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "pip install 'headgate[cli]'" in ran.stderr


def test_output_survives_a_terminal_that_knows_no_unicode(scripted: ScriptedAgent) -> None:
    scripted.says("/v1/status", builders.busy_status())
    ran = headgate("status", HEADGATE_URL=scripted.url, PYTHONIOENCODING="ascii")
    assert ran.returncode == 0
    assert ran.stdout.isascii()
    assert "BREACHED" in ran.stdout


def test_the_agent_command_validates_settings_without_starting(run: Run, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text(HOST_ONLY)
    bad.write_text("[agent]\nlisen = 1\n")
    assert run("agent", "--config", str(good), "--check-config").code == 0
    ran = run("agent", "--config", str(bad), "--check-config")
    assert ran.code == 2
    assert "did you mean 'listen'" in ran.out
