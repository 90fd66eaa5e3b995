"""Rules from the command line: what is sent to the agent, and what is shown of its answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rich.console import Console

from headgate.cli.documents import read
from headgate.cli.render import Canvas, drawn
from headgate.present.explain import explain_view
from headgate.present.rules import chance_text
from headgate.rules.api import ExplainDoc, RuleDoc
from headgate.rules.matching import Kind
from headgate.rules.settings import settings_of
from tests.cli import builders
from tests.cli.conftest import Run
from tests.cli.scripted import Heard, Reply, ScriptedAgent, problem

RULES = "/v1/rules"


def rule(name: str = "r-1", **given: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": name,
        "target": "etl",
        "kind": "ratio",
        "says": "rejects 90% of the checks of etl",
        "ratio": 0.9,
        "order": "before",
        "metrics": [],
        "thresholds": {},
        "justification": None,
        "ceiling": None,
        "reason": "rush hour",
        "database": None,
        "schedule": None,
        "created_at": "2024-05-17T10:05:00Z",
        "created_by": "ops",
        "expires_at": "2024-05-17T16:00:00Z",
        "left_s": 1800.0,
        "state": "in_force",
        "next_at": None,
        "suspended": None,
        "lifted_by": None,
        "pair": None,
        "clients": ["etl:nightly"],
        "clients_total": 1,
        "advice": [],
        "revision": 7,
    }
    built: dict[str, Any] = msgspec.to_builtins(msgspec.convert({**values, **given}, RuleDoc))
    return built


EXEMPT = rule(
    "fix",
    kind="exempt",
    says="EXEMPTS etl from every metric and rejection, up to 3 times its threshold",
    justification="incident",
    reason="the fix of 42",
)


@pytest.fixture
def agent(scripted: ScriptedAgent) -> ScriptedAgent:
    """Takes every change, and shows one rule."""
    scripted.says(RULES, {"rules": [rule()]})
    scripted.says(RULES, rule(), method="POST", status=201)
    scripted.says(f"{RULES}/favor", {"rules": [rule(), rule("r-2")]}, method="POST", status=201)
    scripted.says(f"{RULES}/r-1", rule(), headers={"ETag": '"7"'})
    scripted.says(f"{RULES}/r-1", rule(ratio=0.5), method="PATCH")
    ended = rule(state="ended", lifted_by="ops", left_s=0.0)
    scripted.says(f"{RULES}/r-1", {"rules": [ended]}, method="DELETE")
    return scripted


def sent(agent: ScriptedAgent) -> Heard:
    return agent.heard[-1]


# --- setting ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "body"),
    [
        (
            "rule ratio etl 50% --for 1h30m",
            {"kind": "ratio", "target": "etl", "ratio": "50%", "for": "1h30m"},
        ),
        (
            "rule ratio etl 0.9 --for 2h --order after --ticket https://tickets/42",
            {
                "kind": "ratio",
                "target": "etl",
                "ratio": 0.9,
                "for": "2h",
                "order": "after",
                "ticket": "https://tickets/42",
            },
        ),
        (
            "rule hold etl:nightly --reason 123 --for 90s --database orders --id stop",
            {
                "kind": "hold",
                "target": "etl:nightly",
                "reason": "123",
                "for": "90s",
                "database": "orders",
                "id": "stop",
            },
        ),
        (
            "hold all --reason incident --lock-out --expires-at 2024-05-17T16:00:00Z",
            {
                "kind": "hold",
                "target": "all",
                "reason": "incident",
                "lock_out": True,
                "expires_at": "2024-05-17T16:00:00Z",
            },
        ),
        (
            "rule exempt etl --justification incident --reason fix --metrics lag "
            "--metrics pool_usage --ceiling 2",
            {
                "kind": "exempt",
                "target": "etl",
                "justification": "incident",
                "reason": "fix",
                "metrics": ["lag", "pool_usage"],
                "ceiling": 2,
            },
        ),
        (
            "rule metrics etl lag,pool_usage loadavg",
            {"kind": "metrics", "target": "etl", "metrics": ["lag", "pool_usage", "loadavg"]},
        ),
        (
            "rule thresholds etl lag=2s pool_usage=0.5",
            {"kind": "thresholds", "target": "etl", "thresholds": {"lag": "2s", "pool_usage": 0.5}},
        ),
    ],
)
def test_every_kind_of_rule_is_one_command(
    agent: ScriptedAgent, run: Run, argv: str, body: dict[str, Any]
) -> None:
    ran = run(*argv.split())
    assert (ran.code, ran.err) == (0, "")
    said = {"database": "main", **body}
    assert (sent(agent).method, sent(agent).path, sent(agent).body) == ("POST", RULES, said)
    assert ran.out.startswith("SET  r-1")
    assert "applies to: etl:nightly" in ran.out


def test_a_rule_is_for_one_database_unless_it_says_all(
    agent: ScriptedAgent, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a check is: the same default, and the same variable."""
    monkeypatch.setenv("HEADGATE_DATABASE", "orders")
    run("rule", "ratio", "etl", "0.9")
    assert sent(agent).body["database"] == "orders"
    run("rule", "ratio", "etl", "0.9", "--database", "all")
    assert "database" not in sent(agent).body


@pytest.mark.parametrize("kind", Kind)
def test_every_declared_setting_is_a_flag(run: Run, kind: Kind) -> None:
    shown = run("rule", kind.value, "--help").out
    for row in settings_of(kind):
        is_argument = row.name in ("target", kind.value)
        assert (f"--{row.name.replace('_', '-')} " in shown) is not is_argument, row.name


def test_a_rush_hour_is_a_rule_with_a_schedule(agent: ScriptedAgent, run: Run) -> None:
    line = "mon-fri 07:00-09:30 Europe/Berlin"
    run("rule", "ratio", "etl", "0.9", "--schedule", line, "--for", "30d")
    assert sent(agent).body["schedule"] == line


def test_favor_is_one_command(agent: ScriptedAgent, run: Run) -> None:
    """R76"""
    ran = run("favor", "fix", "--over", "all", "--ratio", "0.9", "--for", "2h")
    assert sent(agent).path == f"{RULES}/favor"
    assert sent(agent).body == {
        "target": "fix",
        "over": "all",
        "ratio": 0.9,
        "for": "2h",
        "database": "main",
    }
    assert ran.out.count("SET  ") == 2


@pytest.mark.parametrize(
    "argv",
    [
        ["rule", "ratio", "etl", "0.9"],
        ["hold", "etl", "--reason", "x"],
        ["favor", "etl"],
        ["rule", "extend", "r-1", "--for", "2h"],
        ["rule", "change", "r-1", "--ratio", "0.5"],
        ["rule", "lift", "r-1"],
    ],
)
def test_every_change_has_a_dry_run_and_a_document(
    agent: ScriptedAgent, run: Run, argv: list[str]
) -> None:
    """R140"""
    ran = run(*argv, "--dry-run")
    [asked] = [heard for heard in agent.heard if "dry_run" in heard.query]
    assert asked.query == {"dry_run": "true"} and asked.path.startswith(RULES)
    assert ran.out.startswith("WOULD BE ") and "nothing was changed" in ran.out
    run(*argv)
    assert sent(agent).query == {}
    document = json.loads(run(*argv, "--json").out)
    assert "rules" in document or document["id"] == "r-1"


# --- changing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "method", "body"),
    [
        (["extend", "r-1", "--for", "2h"], "PATCH", {"for": "2h"}),
        (["change", "r-1", "--ratio", "0.5"], "PATCH", {"ratio": 0.5}),
        (["change", "r-1", "--thresholds", "lag=1s"], "PATCH", {"thresholds": {"lag": "1s"}}),
        (["change", "r-1", "--ratio", "0"], "PATCH", {"ratio": 0}),
        (["lift", "r-1"], "DELETE", None),
    ],
)
def test_a_change_is_built_on_what_was_seen(
    agent: ScriptedAgent, run: Run, argv: list[str], method: str, body: Any
) -> None:
    """R86: If-Match, so that the loser of two gets a conflict."""
    assert run("rule", *argv).code == 0
    heard = sent(agent)
    assert (heard.method, heard.path, heard.body) == (method, f"{RULES}/r-1", body)
    assert heard.headers["if-match"] == '"7"'


def test_the_loser_gets_a_conflict(agent: ScriptedAgent, run: Run) -> None:
    told = "rule r-1 is at revision 8, not 7: somebody changed it in between"
    agent.replies["PATCH", f"{RULES}/r-1"] = problem(412, told)
    ran = run("rule", "change", "r-1", "--ratio", "0.5")
    assert ran.code == 1 and told in ran.err


def test_a_rejected_rule_shows_every_fault(agent: ScriptedAgent, run: Run) -> None:
    faults = ["rule.ratio: is 0.99, at most 0.9 here", "rule.for: is 90 days"]
    agent.replies["POST", RULES] = problem(422, "these settings are rejected", faults)
    ran = run("rule", "ratio", "etl", "0.99", "--for", "90d")
    assert ran.code == 1
    assert all(fault in ran.err for fault in faults)


@pytest.mark.parametrize(
    "argv",
    [
        ["rule", "extend", "r-1"],
        ["rule", "change", "r-1"],
        ["rule", "thresholds", "etl", "lag"],
        ["rule", "thresholds", "etl", "lag=high"],
        ["rule", "thresholds", "etl", "lag=nan"],
        ["rule", "ratio", "etl", "nan"],
        ["rule", "ratio", "etl", "1.5"],
        ["rule", "change", "r-1", "--ratio", "inf"],
        ["favor", "etl", "--ratio", "nan"],
        ["rule", "hold", "etl"],
        ["rule", "exempt", "etl", "--reason", "x"],
    ],
)
def test_a_command_called_wrongly_contacts_nobody(
    agent: ScriptedAgent, run: Run, argv: list[str]
) -> None:
    assert run(*argv).code == 2
    assert agent.heard == []


# --- looking ---------------------------------------------------------------------------------


def test_rules_are_a_table_with_exemptions_marked(agent: ScriptedAgent, run: Run) -> None:
    """R78"""
    waiting = rule(
        "rush",
        state="waiting",
        schedule={"days": ["mon"], "from": "07:00", "to": "09:00", "zone": "UTC"},
        advice=["warning rush: rule r-1 comes first [shadowed]"],
    )
    agent.says(RULES, {"rules": [rule(), EXEMPT, waiting]})
    out = run("rules").out
    assert out.startswith("EXEMPT  etl from every metric, by ops (incident: the fix of 42); 30 min")
    for told in (
        "rejects 90%",
        "rush hour",
        "30 min 00 s, waits",
        "only mon 07:00-09:00 UTC",
        "rule r-1 comes first",
    ):
        assert told in out
    assert sent(agent).query == {}
    run("rules", "--all")
    assert sent(agent).query == {"all": "true"}


def test_a_suspended_exemption_is_not_announced_as_one(agent: ScriptedAgent, run: Run) -> None:
    """R79"""
    resting = {**EXEMPT, "state": "suspended", "suspended": "it starves web"}
    agent.says(RULES, {"rules": [resting]})
    out = run("rules").out
    assert not out.startswith("EXEMPT") and "SUSPENDED: it starves web" in out


def test_without_rules_every_client_is_treated_alike(agent: ScriptedAgent, run: Run) -> None:
    agent.says(RULES, {"rules": []})
    assert "no rule is in force" in run("rules").out


def test_one_rule_shows_all_that_is_known(agent: ScriptedAgent, run: Run) -> None:
    more = rule(pair="r-2", next_at="2024-05-20T05:00:00Z", clients_total=41)
    agent.replies["GET", f"{RULES}/r-1"] = Reply(more)
    out = run("rule", "show", "r-1").out
    for told in ("ends in 30 min", "together with r-2", "next window", "and 40 more", "set by ops"):
        assert told in out


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (
            {"clients": [], "clients_total": 0},
            "applies to: no client that checked at this agent lately; other agents",
        ),
        ({}, "applies to: etl:nightly, of those that checked at this agent"),
        ({"clients": [], "clients_total": None}, "not known: this agent has no database"),
    ],
)
def test_the_matches_of_a_rule_of_the_fleet_are_of_one_agent_alone(
    agent: ScriptedAgent, run: Run, known: dict[str, Any], told: str
) -> None:
    """Nobody is to think that it matches nobody: no client checks with an agent of the view."""
    agent.says(RULES, rule("f-1", reach="fleet", n=12, **known), method="POST", status=200)
    ran = run("rule", "hold", "etl", "--fleet", "--reason", "x", "--dry-run")
    assert told in " ".join(ran.out.split())
    replayed = any(heard.path == "/v1/replay" for heard in agent.heard)
    assert replayed is ("no database" not in told)


def test_rules_of_the_fleet_are_shown_with_their_reach(agent: ScriptedAgent, run: Run) -> None:
    far = rule("f-1", reach="shard:commerce/*", n=12)
    rejected = ["f-2: kind is 'of tomorrow'"]
    agent.says(RULES, {"rules": [rule(), far], "rejected": rejected})
    out = run("rules").out
    assert "shard:commerce/*" in out and "this agent" in out
    assert "NOT IN FORCE HERE  rule f-2: kind is 'of tomorrow'" in out
    agent.says(RULES, {"rules": [], "rejected": rejected})
    assert "NOT IN FORCE HERE" in run("rules").out
    agent.says(RULES, {"rules": [rule()]})
    assert "this agent" not in run("rules").out
    agent.replies["GET", f"{RULES}/r-1"] = Reply(far)
    shown = run("rule", "show", "r-1").out
    assert "set for shard:commerce/*, revision 12" in shown


SHARD: dict[str, Any] = {"reach": "shard:commerce/-80", "n": 12}
COPIES: dict[str, Any] = {"have": 1, "of": 2, "missing": ["db-c does not answer"], "standby": None}
COPIES["says"] = "in force here; 1 of 2 replicas have a copy: db-c does not answer"


def test_a_change_for_the_shard_says_who_has_a_copy(agent: ScriptedAgent, run: Run) -> None:
    """R164"""
    made = rule(**SHARD, copies=COPIES)
    agent.says(RULES, made, method="POST", status=201)
    shown = " ".join(run("rule", "hold", "etl", "--reason", "x").out.split())
    assert COPIES["says"] in shown and "set for shard:commerce/-80, revision 12" in shown
    agent.replies["GET", f"{RULES}/r-1"] = Reply(rule(**SHARD), headers={"ETag": '"12"'})
    agent.says(f"{RULES}/r-1", {"rules": [made], "copies": COPIES}, method="DELETE")
    assert str(COPIES["says"]) in " ".join(run("rule", "lift", "r-1").out.split())


def test_what_reaches_no_further_than_the_shard_needs_no_confirmation(
    agent: ScriptedAgent, run: Run
) -> None:
    """The agent's own log: there is nobody else whom it could surprise."""
    agent.says(RULES, rule(**SHARD, copies=COPIES), method="POST", status=201)
    ran = run("rule", "hold", "etl", "--reason", "x", "--shard", "commerce/-80")
    assert ran.code == 0 and "Change it for" not in ran.err
    assert sent(agent).body["reach"] == "shard:commerce/-80"


def test_an_ended_rule_says_who_lifted_it(agent: ScriptedAgent, run: Run) -> None:
    agent.says(RULES, {"rules": [rule(state="ended", lifted_by="eve", left_s=0.0), rule("r-2")]})
    assert "lifted by eve" in run("rules", "--all").out


def test_control_characters_do_not_reach_the_terminal(agent: ScriptedAgent, run: Run) -> None:
    agent.says(RULES, {"rules": [rule(reason="a\x1b[2Jb", created_by="\x1b]0;x\x07")]})
    assert "\x1b" not in run("rules").out


def test_an_explanation_lists_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    """R144"""
    base = {"rule": "r", "target": "etl", "kind": "ratio", "state": "applies", "by": None,
            "says": "rejects 90%", "left_s": 60.0, "ended_s_ago": None}  # fmt: skip
    shadowed = {**base, "rule": "s", "state": "shadowed", "by": "r"}
    ended = {**base, "rule": "e", "state": "ended", "left_s": None, "ended_s_ago": 180.0}
    fair = "rejected by dice for 3.0 s"
    found = explained(matched=[base, shadowed, ended], odds=0.1, fairness=fair)
    Console(width=120, markup=False).print(drawn(explain_view(found), Canvas(120)))
    shown = capsys.readouterr().out
    for told in ("applies, 60.0 s left", "shadowed by r", "ended 3 min ago", "by dice for 3.0 s"):
        assert told in shown


def explained(**given: Any) -> ExplainDoc:
    return read(ExplainDoc, builders.explained(builders.rejection(), **given))


@pytest.mark.parametrize("share", ["-0.1", "-1", "-.5"])
def test_a_share_below_zero_is_shown_as_one(run: Run, share: str) -> None:
    done = run("rule", "ratio", "etl", share)
    assert done.code == 2 and f"ratio is {share}, must be 0 up to below 1" in done.err.replace(
        "\n", " "
    )


def test_what_depends_on_dice_is_shown_as_a_chance() -> None:
    assert chance_text(explained(odds=0.001, rule="r-1")) == "with a chance of 0.1% (rule r-1)"
    assert chance_text(explained(odds=None, rule="r-1")) == ""


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ("rule ratio etl 0.5 --for 30", "is 30, which has no unit: 30s or 30m?"),
        (
            "rule ratio etl 50",
            'ratio is 50, must be at most 1: 1 is all of it; did you mean "50%"',
        ),
        ("favor etl --ratio much", "must be a share such as 0.8 or 80%"),
        ("rule thresholds etl lag=soon", "lag is 'soon', must be a number, or a text with a unit"),
        (
            "rule thresholds etl commit_delay=10",
            "is 10, which has no unit: 10ms or 10s?",
        ),
        ("rule thresholds etl lag", "must read NAME=VALUE, such as lag=2s"),
    ],
)
def test_a_number_without_its_unit_is_reported_and_not_sent(
    agent: ScriptedAgent, run: Run, argv: str, told: str
) -> None:
    ran = run(*argv.split())
    assert ran.code == 2 and told in " ".join(ran.err.split()), ran.err
    assert agent.heard == []
