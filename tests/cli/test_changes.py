"""What operators changed, from the command line: what is sent to the agent, what is shown."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.budgets.replay_api import BudgetTallyDoc
from headgate.changes.api import (
    ChangeExportDoc,
    ChangeMadeDoc,
    ChangeRevisionsDoc,
    ChangeRevisionWholeDoc,
    ChangesDoc,
)
from headgate.cli.changes import CHANGES
from headgate.fleet.api import ReachedDoc
from tests.cli.conftest import Ran, Run
from tests.cli.scripted import Heard, Reply, ScriptedAgent, problem
from tests.cli.terminal import terminal
from tests.cli.test_budgets import policy
from tests.fixtures.eventually import eventually

REACHED = {
    "reach": "shard:commerce/*",
    "shards": 37,
    "hosts": 111,
    "unhealthy": 2,
    "sample": ["commerce/-80", "commerce/80-"],
    "unknown": None,
    "says": "reaches 37 shards (2 unhealthy), 111 hosts; commerce/-80, commerce/80-, …",
}
DOCUMENT = {
    "rules": [{"id": "half", "reach": "fleet", "target": "etl", "ratio": 0.5}],
    "budgets": [
        {
            "name": "cap",
            "reach": "region:eu-*",
            "rate": 20,
            "rules": [{"match": {"username": "etl"}}],
        }
    ],
}
EXPORT = {"log": "fleet", "n": 14, "document": DOCUMENT, "left_out": []}
TOML = """\
[[rules]]
id = "half"
reach = "fleet"
target = "etl"
ratio = 0.5
expires_at = 2031-01-01T00:00:00Z
"""


def built(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(msgspec.convert(values, kind))
    return found


def change(**given: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "log": "fleet",
        "before_n": 13,
        "after_n": 14,
        "dry_run": False,
        "changed": True,
        "revisions": 1,
        "difference": [
            {
                "kind": "rule changed",
                "id": "half",
                "reach": "fleet",
                "settings": [{"name": "ratio", "before": 0.5, "after": 0.9}],
                "line": "rule half (fleet): ratio 0.5 → 0.9",
            },
            {
                "kind": "budget taken out",
                "id": "cap@fleet",
                "reach": "fleet",
                "settings": [],
                "line": "budget cap@fleet: taken out",
            },
        ],
        "difference_total": 2,
        "reached": REACHED,
        "advice": ["warning fleet: 3 that the file does not name stay as they are"],
    }
    return built(ChangeMadeDoc, {**values, **given})


def item(**given: Any) -> dict[str, Any]:
    return {
        "kind": "rule",
        "id": "half",
        "reach": "fleet",
        "state": "in_force",
        "says": "rejects 50% of the checks of etl",
        "value": {"target": "etl", "ratio": 0.5},
        "expires_at": "2026-11-16T18:00:00Z",
        "left_s": 7200.0,
        "n": 12,
        "set_at": "2026-11-16T16:00:00Z",
        "set_by": "ops",
        **given,
    }


REPLAYED = "rule half: of its clients' checks of the last hour 9 were admitted"


def changed(heard: Heard) -> Reply:
    dry_run = heard.query.get("dry_run") == "true"
    replay = [REPLAYED] if dry_run else []
    document = change(dry_run=dry_run, after_n=13 if dry_run else 14, replay=replay)
    return Reply(document, headers={"ETag": '"13"' if dry_run else '"14"'})


@pytest.fixture
def agent(scripted: ScriptedAgent) -> ScriptedAgent:
    """Takes every change, and shows a little."""
    for path in ("apply", "rollback", "restore"):
        scripted.replies["POST", f"{CHANGES}/{path}"] = changed
    return scripted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "changes.toml"
    path.write_text(TOML)
    return path


def sent(agent: ScriptedAgent) -> Heard:
    return agent.heard[-1]


def said(ran: Ran) -> str:
    return " ".join(ran.out.split())


# --- looking -----------------------------------------------------------------------------------


def test_what_is_set_is_listed_with_reach_and_revision(run: Run, agent: ScriptedAgent) -> None:
    items = [
        item(),
        item(
            id="cap@region:eu-*", kind="budget", reach="region:eu-*", says="warn: 20%", left_s=None
        ),
        item(id="old", state="ended", says="rejects every check of x; lifted by ann", left_s=None),
    ]
    rejected = ["items/wide/rule/strange: is not an item"]
    document = built(ChangesDoc, {"log": "fleet", "n": 12, "changes": items, "rejected": rejected})
    agent.says(CHANGES, document)
    ran = run("changes", "--fleet", "--all")
    assert ran.code == 0 and sent(agent).query == {"log": "fleet", "all": "true"}
    assert "the fleet is at revision 12" in ran.out
    assert "half" in ran.out and "2.0 h" in ran.out
    assert "rejects 50% of the checks of etl" in ran.out
    assert "budget: warn: 20%" in ran.out and "ended" in ran.out
    assert "UNREADABLE" in ran.out and "strange" in ran.out
    assert json.loads(run("changes", "list", "--fleet", "--json").out) == document


def test_a_fleet_without_rules_says_so(run: Run, agent: ScriptedAgent) -> None:
    agent.says(CHANGES, built(ChangesDoc, {"log": "fleet", "n": 0, "changes": [], "rejected": []}))
    assert "nothing is set for it" in run("changes", "--fleet").out


@pytest.mark.parametrize(
    "given", [("shard:commerce/*",), ("--shard", "commerce/*")], ids=lambda given: given[0]
)
def test_a_reach_is_given_by_name_and_by_option(
    run: Run, agent: ScriptedAgent, given: tuple[str, ...]
) -> None:
    agent.says("/v1/fleet/reach", built(ReachedDoc, REACHED))
    ran = run("fleet", "reach", *given)
    assert sent(agent).query == {"reach": "shard:commerce/*"}
    assert "37 shards (2 unhealthy), 111 hosts" in ran.out and "commerce/80-" in ran.out


@pytest.mark.parametrize(
    "given",
    [(), ("fleet", "--fleet"), ("--fleet", "--shard", "x"), ("--shard", ""), ("--host", "a b")],
    ids=str,
)
def test_a_reach_is_said_once_and_can_be_one(
    run: Run, agent: ScriptedAgent, given: tuple[str, ...]
) -> None:
    ran = run("fleet", "reach", *given)
    assert ran.code == 2 and agent.heard == []


def test_history_and_one_of_it(run: Run, agent: ScriptedAgent) -> None:
    about = {
        "n": 14,
        "at": "2026-11-16T12:01:07Z",
        "who": "ops",
        "action": "apply",
        "summary": "rule half (fleet): added",
        "is_current": True,
    }
    revisions = built(ChangeRevisionsDoc, {"log": "fleet", "n": 14, "revisions": [about]})
    agent.says(f"{CHANGES}/history", revisions)
    ran = run("changes", "history", "--fleet", "--limit", "5")
    assert sent(agent).query == {"log": "fleet", "limit": "5"}
    assert "apply: rule half (fleet): added" in ran.out and "(in force)" in ran.out
    whole = {
        "log": "fleet",
        "about": about,
        "difference": change()["difference"],
        "difference_total": 2,
    }
    agent.says(f"{CHANGES}/history/14", built(ChangeRevisionWholeDoc, whole))
    assert "~ rule half (fleet): ratio 0.5 → 0.9" in run("changes", "history", "--fleet", "14").out


def test_a_revision_of_a_newer_version_is_listed_as_one_that_cannot_be_read(
    run: Run, agent: ScriptedAgent
) -> None:
    about = {
        "n": 14,
        "at": None,
        "who": "",
        "action": "",
        "summary": "",
        "is_current": True,
        "unread": "it 'quota' is not a valid ChangeKind",
    }
    agent.says(
        f"{CHANGES}/history",
        built(ChangeRevisionsDoc, {"log": "fleet", "n": 14, "revisions": [about]}),
    )
    assert "CANNOT BE READ HERE" in run("changes", "history", "--fleet").out
    whole = {"log": "fleet", "about": about, "difference": [], "difference_total": 0}
    agent.says(f"{CHANGES}/history/14", built(ChangeRevisionWholeDoc, whole))
    assert "'quota' is not a valid ChangeKind" in said(run("changes", "history", "--fleet", "14"))


# --- files -------------------------------------------------------------------------------------


def test_an_export_is_a_file_that_apply_takes(
    run: Run, agent: ScriptedAgent, tmp_path: Path
) -> None:
    agent.says(f"{CHANGES}/export", built(ChangeExportDoc, EXPORT))
    exported = run("changes", "export", "--fleet")
    assert exported.out.startswith("# What is set for the fleet, at revision 14.\n")
    assert tomllib.loads(exported.out) == DOCUMENT
    assert json.loads(run("changes", "export", "--fleet", "--json").out) == DOCUMENT
    for name, text in (("a.toml", exported.out), ("a.json", json.dumps(DOCUMENT))):
        path = tmp_path / name
        path.write_text(text)
        assert run("changes", "apply", "--fleet", str(path), "--yes").code == 0
        assert sent(agent).body == DOCUMENT


def test_a_difference_is_shown_and_nothing_is_changed(
    run: Run, agent: ScriptedAgent, file: Path
) -> None:
    ran = run("changes", "diff", "--fleet", str(file))
    assert ran.code == 0 and sent(agent).query == {"log": "fleet", "dry_run": "true"}
    assert sent(agent).body["rules"][0]["expires_at"] == "2031-01-01T00:00:00+00:00"
    assert "~ rule half (fleet): ratio 0.5 → 0.9" in ran.out
    assert "- budget cap@fleet: taken out" in ran.out
    assert "reaches 37 shards (2 unhealthy)" in said(ran)
    assert run("changes", "diff", "--fleet", str(file), "--prune", "--strict").code == 1
    assert sent(agent).query == {"log": "fleet", "dry_run": "true", "prune": "true"}
    same = change(changed=False, difference=[], difference_total=0)
    agent.says(f"{CHANGES}/apply", same, method="POST")
    ran = run("changes", "diff", "--fleet", str(file), "--strict")
    assert ran.code == 0 and "no difference" in ran.out


def test_a_dry_run_of_apply_changes_nothing(run: Run, agent: ScriptedAgent, file: Path) -> None:
    ran = run("changes", "apply", "--fleet", str(file), "--dry-run")
    assert "WOULD BE APPLIED" in ran.out and "revision 13" in ran.out
    assert [heard.query for heard in agent.heard] == [{"log": "fleet", "dry_run": "true"}]


def test_apply_in_a_script_needs_a_yes(run: Run, agent: ScriptedAgent, file: Path) -> None:
    ran = run("changes", "apply", "--fleet", str(file))
    assert ran.code == 2 and "--yes" in ran.err
    assert "reaches 37 shards" in ran.err, "it is shown before it is asked for"
    assert all(heard.query.get("dry_run") == "true" for heard in agent.heard)
    ran = run("changes", "apply", "--fleet", str(file), "--yes", "--prune")
    assert ran.code == 0 and sent(agent).query == {"log": "fleet", "prune": "true"}
    assert "APPLIED the fleet is at revision 14 (was 13)" in said(ran)


def test_apply_wants_a_yes_on_a_terminal_and_makes_just_what_was_shown(
    agent: ScriptedAgent, file: Path
) -> None:
    with terminal("changes", "apply", "--fleet", str(file), HEADGATE_URL=agent.url) as shown:
        eventually(lambda: "Change it for the fleet?" in shown.text)
        assert "ratio 0.5 → 0.9" in shown.text
        shown.press(b"y\n")
        assert shown.wait() == 0
    tried, made = agent.heard
    assert tried.query == {"log": "fleet", "dry_run": "true"}
    assert (made.query, made.headers["if-match"]) == ({"log": "fleet"}, '"13"')


def test_what_is_so_already_needs_no_confirmation(
    run: Run, agent: ScriptedAgent, file: Path
) -> None:
    same = change(changed=False, difference=[], difference_total=0, after_n=13, dry_run=True)
    agent.says(f"{CHANGES}/apply", same, method="POST")
    ran = run("changes", "apply", "--fleet", str(file))
    assert ran.code == 0 and "UNCHANGED" in ran.out and len(agent.heard) == 1


def test_faults_are_reported_with_the_file_and_its_lines(
    run: Run, agent: ScriptedAgent, tmp_path: Path
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('[[rules]]\nreach = "shard:"\n\n[[rule]]\nid = "b"\nreach = "fleet"\n')
    faults = ["rule: unknown", "rules[0].reach: is 'shard:'", "rules[0].id: is missing"]
    agent.replies["POST", f"{CHANGES}/apply"] = problem(422, "these settings are rejected", faults)
    ran = run("changes", "apply", "--fleet", str(path))
    assert ran.code == 2
    assert f"{path}: line 2, rules[0].reach: is 'shard:'" in ran.err
    assert "line 4, rule: unknown" in ran.err and "line 1, rules[0].id: is missing" in ran.err


def test_what_the_agent_finds_wrong_is_reported_with_lines_too(
    run: Run, agent: ScriptedAgent, file: Path
) -> None:
    faults = ["rules[0].ratio: is 1.5, must be at most 1"]
    agent.replies["POST", f"{CHANGES}/apply"] = problem(422, "these settings are rejected", faults)
    ran = run("changes", "diff", "--fleet", str(file))
    assert ran.code == 2
    assert f"{file}: line 5, rules[0].ratio: is 1.5, must be at most 1" in ran.err
    agent.replies["POST", f"{CHANGES}/apply"] = problem(413, "the body has 70000 bytes")
    assert "max_body_bytes" in run("changes", "diff", "--fleet", str(file)).err
    agent.replies["POST", f"{CHANGES}/apply"] = problem(412, "the log is at revision 15")
    ran = run("changes", "apply", "--fleet", str(file), "--yes")
    assert ran.code == 1 and "the agent answers 412: the log is at revision 15" in ran.err


@pytest.mark.parametrize("content", [b"[", b"\xff"], ids=str)
def test_a_file_that_is_none_is_not_sent(
    run: Run, agent: ScriptedAgent, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "odd.toml"
    path.write_bytes(content)
    ran = run("changes", "apply", "--fleet", str(path), "--yes")
    assert ran.code == 2 and str(path) in ran.err and agent.heard == []
    assert run("changes", "diff", "--fleet", str(tmp_path / "missing.toml")).code == 2


# --- back ----------------------------------------------------------------------------------------


def test_rollback_and_restore_are_shown_and_made(run: Run, agent: ScriptedAgent) -> None:
    tried = run("changes", "rollback", "--fleet", "12", "--dry-run")
    assert "WOULD BE ROLLED BACK" in tried.out and sent(agent).body == {"n": 12}
    assert REPLAYED in tried.out
    made = run("changes", "rollback", "--fleet", "12", "--yes")
    assert "ROLLED BACK" in made.out and sent(agent).query == {"log": "fleet"}
    assert "WOULD BE RESTORED" in run("changes", "restore", "--fleet", "--dry-run").out
    assert (
        "RESTORED" in run("changes", "restore", "--fleet", "--yes").out and sent(agent).body is None
    )


def test_several_revisions_are_shown(run: Run, agent: ScriptedAgent) -> None:
    agent.says(f"{CHANGES}/rollback", change(revisions=3, after_n=16), method="POST")
    assert "was 13, in 3 revisions" in run("changes", "rollback", "--fleet", "1", "--yes").out


# --- of one agent --------------------------------------------------------------------------------

OWN = """\
[[rules]]
id = "half"
target = "etl"
ratio = 0.5

[[metrics]]
database = "main"
metric = "lag"
threshold = "10s"

[metrics.options]
table = "x"

[[skips]]
shard = "commerce/-80"
member = "db-b"
for = "1h"
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    return path


def own_change(**given: Any) -> dict[str, Any]:
    return change(log="agent", reached=None, **given)


def test_without_a_reach_the_agents_own_log_is_used(
    run: Run, agent: ScriptedAgent, own: Path
) -> None:
    metric = item(kind="metric", id="main/lag", reach="host", says="threshold = 10")
    document = {"log": "agent", "n": 3, "changes": [metric], "rejected": []}
    agent.says(CHANGES, built(ChangesDoc, document))
    for words in (("changes",), ("changes", "list")):
        ran = run(*words)
        assert ran.code == 0 and sent(agent).query == {}
        assert "this agent is at revision 3" in ran.out and "metric: threshold = 10" in ran.out
    agent.says(
        f"{CHANGES}/history", built(ChangeRevisionsDoc, {"log": "agent", "n": 0, "revisions": []})
    )
    assert "no revision is kept" in run("changes", "history").out
    agent.says(f"{CHANGES}/apply", own_change(), method="POST")
    ran = run("changes", "apply", str(own), "--yes")
    assert "APPLIED this agent is at revision 14 (was 13)" in said(ran)
    assert sent(agent).query == {} and "reaches" not in ran.out
    assert [*sent(agent).body] == ["rules", "metrics", "skips"]
    ran = run("changes", "diff", str(own), "--strict")
    assert ran.code == 1 and sent(agent).query == {"dry_run": "true"}


def test_a_policy_file_is_applied_to_a_database_with_its_budgets_whole(
    run: Run, agent: ScriptedAgent, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(
        '[policy]\nexempt_usernames = ["ops"]\n\n[[budgets]]\nname = "etl"\nrate = 20\n'
    )
    agent.says(f"{CHANGES}/apply", own_change(), method="POST")
    assert run("changes", "apply", str(file), "--policy-of", "main", "--yes").code == 0
    assert sent(agent).body == {
        "budgets": [{"database": "main", "whole": True, "name": "etl", "mode": "warn", "rate": 20}],
        "policies": [{"database": "main", "exempt_usernames": ["ops"]}],
    }
    heard = len(agent.heard)
    file.write_text('[[budgets]]\nname = "etl"\nrate = 120\n')
    rejected = run("changes", "apply", str(file), "--policy-of", "main")
    assert rejected.code == 2 and "line 3, budgets[0].rate: 120 is more than 100" in rejected.err
    assert len(agent.heard) == heard, "a file that is wrong is never sent"


def test_a_policy_file_that_is_all_of_it_removes_the_other_budgets_and_nothing_else(
    run: Run, agent: ScriptedAgent, tmp_path: Path
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('[[budgets]]\nname = "new"\nrate = 20\n')
    agent.says(f"{CHANGES}/apply", own_change(), method="POST")
    shown = policy()
    agent.says("/v1/budgets/main", shown)
    for words in (("diff",), ("apply", "--yes"), ("apply", "--dry-run")):
        run("changes", *words, str(file), "--policy-of", "main", "--prune")
        heard = next(one for one in reversed(agent.heard) if one.path == f"{CHANGES}/apply")
        assert "prune" not in heard.query, "rules and metrics stay"
        new, *gone = heard.body["budgets"]
        assert new["name"] == "new"
        assert gone == [
            {"database": "main", "name": one["name"], "removed": True} for one in shown["budgets"]
        ]


def test_two_policy_files_are_compared_without_an_agent(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text('[[budgets]]\nname = "etl"\nrate = 20\n\n[[budgets]]\nname = "web"\n')
    new.write_text('[[budgets]]\nname = "etl"\nrate = 30\n')
    words = ("changes", "diff", str(new), "--against", str(old))
    ran = run(*words, url="http://127.0.0.1:9")
    assert (ran.code, ran.out) == (0, "web: gone, warn, 0 rules\netl: rate 20% → 30%\n")
    assert run(*words, "--strict", url="http://127.0.0.1:9").code == 1
    found = json.loads(run(*words, "--json", url="http://127.0.0.1:9").out)["difference"]
    assert [one["kind"] for one in found] == ["budget removed", "budget changed"]
    same = run("changes", "diff", str(new), "--against", str(new), "--strict")
    assert (same.code, same.out) == (0, "no difference\n")
    new.write_text('[[budgets]]\nname = "etl"\nrate = 300\n')
    assert "300 is more than 100" in run(*words).err


def test_diff_and_a_dry_run_say_what_budgets_would_have_done(
    run: Run, agent: ScriptedAgent, tmp_path: Path
) -> None:
    file = tmp_path / "budgets.toml"
    file.write_text('[[budgets]]\ndatabase = "main"\nname = "etl"\nrate = 20\n')
    agent.says(f"{CHANGES}/apply", own_change(), method="POST")
    agent.says("/v1/budgets", {"databases": [policy()]})
    agent.says("/v1/budgets/main/replay", replayed(difference_total=1), method="POST")
    for words in (("diff", str(file)), ("apply", str(file), "--dry-run")):
        out = run("changes", *words).out
        assert "main: nothing was traced within the last hour" in out
        body = next(one.body for one in reversed(agent.heard) if one.path.endswith("/replay"))
        assert body["changes"]["budgets"][0]["name"] == "etl"
    agent.says("/v1/budgets/main/replay", replayed(difference_total=0), method="POST")
    assert "main:" not in run("changes", "diff", str(file)).out, "it concerns another one"


def replayed(**given: Any) -> Any:
    tally = dict.fromkeys(BudgetTallyDoc.__struct_fields__, 0.0)
    return {
        "database": "main", "since": "2026-11-16T12:00:00Z", "until": "2026-11-16T13:00:00Z",
        "step_s": 60, "by": ["username"], "traces": 0, "total": tally, "in_force": tally,
        "clients": [], "more_clients": 0, "steps": [], "more_steps": 0, "difference": [],
        "difference_total": 0, "notes": [], **given,
    }  # fmt: skip


def test_a_change_of_a_shard_says_who_has_it(run: Run, agent: ScriptedAgent, own: Path) -> None:
    copies = {"have": 1, "of": 2, "missing": ["db-c"], "standby": None, "says": "1 of 2 replicas"}
    agent.says(f"{CHANGES}/apply", own_change(copies=copies), method="POST")
    assert "1 of 2 replicas" in run("changes", "apply", str(own), "--yes").out


def test_it_checks_for_this_agent(agent: ScriptedAgent, own: Path) -> None:
    agent.says(f"{CHANGES}/apply", own_change(), method="POST")
    with terminal("changes", "apply", str(own), HEADGATE_URL=agent.url) as shown:
        eventually(lambda: "Change it at this agent?" in shown.text)
        shown.press(b"n\n")
        assert shown.wait() != 0
    assert [heard.query for heard in agent.heard] == [{"dry_run": "true"}]


def test_what_no_file_can_have_is_a_comment_of_the_export(run: Run, agent: ScriptedAgent) -> None:
    told = "not exported: quota main. Files have no section for it"
    document = {"rules": [{"id": "half", "target": "etl"}]}
    export = {"log": "agent", "n": 3, "document": document, "left_out": [told]}
    agent.says(f"{CHANGES}/export", built(ChangeExportDoc, export))
    ran = run("changes", "export")
    assert ran.out.startswith(f"# What is set at this agent, at revision 3.\n# {told}\n")
    assert tomllib.loads(ran.out) == document
    ran = run("changes", "export", "--json")
    assert json.loads(ran.out) == document and told in ran.err


def test_one_sort_is_rolled_back(run: Run, agent: ScriptedAgent) -> None:
    agent.says(f"{CHANGES}/rollback", own_change(), method="POST")
    ran = run("changes", "rollback", "12", "--only", "rules", "--only", "metrics", "--yes")
    assert ran.code == 0 and sent(agent).query == {}
    assert sent(agent).body == {"n": 12, "only": ["rules", "metrics"]}
    assert run("changes", "rollback", "12", "--only", "quotas").code == 2


def test_restore_is_for_the_fleet(run: Run, agent: ScriptedAgent) -> None:
    ran = run("changes", "restore", "--yes")
    assert ran.code == 2 and "add --fleet" in ran.err and agent.heard == []


def test_faults_of_every_section_get_their_lines(run: Run, agent: ScriptedAgent, own: Path) -> None:
    faults = [
        "metrics[0].threshold: is 10, must be at most 5",
        "metrics[0].options.table: is no table",
        "skips[0].for: is too long",
        "skips[0].reason: is missing",
        "metrics: there are too many",
    ]
    agent.replies["POST", f"{CHANGES}/apply"] = problem(422, "these settings are rejected", faults)
    ran = run("changes", "diff", str(own))
    assert ran.code == 2
    for line, place in [(9, "metrics[0].threshold"), (12, "metrics[0].options.table"),
                        (17, "skips[0].for"), (14, "skips[0].reason")]:  # fmt: skip
        assert f"line {line}, {place}:" in ran.err


@pytest.mark.parametrize(
    "old", ["rules", "export", "diff", "apply", "history", "rollback", "restore"]
)
def test_the_old_commands_are_gone(run: Run, agent: ScriptedAgent, old: str) -> None:
    assert run("fleet", old, "--help").code == 2
